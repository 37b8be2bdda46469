/* test_groups.c: products of groups against the f64 reference, for groups of many sizes; a row's bits depend on
 * nothing but the row and its group's matrix; a NaN stays in its row, or in its group. */
#include "base/base.h"
#include "harness.h"

enum { T = 150, K = 4, ROWS = T * K, GROUPS = 8 };

/* Where groups begin: of 0, 1, 63, 64, 65, 127 and 129 rows; all rows in one, the first or the last; few rows each; no
 * order, which says where groups begin all the same; from behind the first row on. */
static const int offsets[][GROUPS] = {{0, 0, 1, 64, 128, 193, 320, 449},
                                      {0, 600, 600, 600, 600, 600, 600, 600},
                                      {0, 0, 0, 0, 0, 0, 0, 0},
                                      {0, 8, 15, 16, 22, 30, 38, 39},
                                      {0, 96, 192, 289, 385, 480, 481, 600},
                                      {300, 7, 500, 40, 2000, 90, 33, 599},
                                      {9, 20, 33, 60, 160, 300, 400, 500}};
enum { SETS = sizeof offsets / sizeof *offsets };

static epi_context *ctx;
static epi_module *module;
static int64_t depth = 12, columns = 40; /* D and F */

static epi_kernel *compile(const char *name, epi_dtype type, epi_path path, int threads) {
    const epi_dim_binding all[] = {{"T", T}, {"K", K}, {"E", GROUPS}, {"D", depth}, {"F", columns}};
    epi_dim_binding dims[5];
    const epi_program *program = epi_module_find(module, name);
    epi_type_binding types[4];
    int type_count = 0, dim_count = 0;
    for (int i = 0; i < epi_program_tensor_count(program) && path >= EPI_PATH_NAIVE; i++) {
        epi_tensor_info info;
        epi_program_tensor(program, i, &info);
        if (info.is_output)
            types[type_count++] = (epi_type_binding){info.name, EPI_F64};
    }
    for (int d = 0; d < 5; d++) {
        bool has = false;
        for (int i = 0; i < epi_program_tensor_count(program); i++) {
            epi_tensor_info info;
            epi_program_tensor(program, i, &info);
            for (int a = 0; a < info.rank; a++)
                has |= !strcmp(info.axes[a].dim, all[d].name);
        }
        if (has)
            dims[dim_count++] = all[d];
    }
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = dim_count, .type = type, .path = path,
                                .threads = threads, .types = types, .type_count = type_count);
    epi_kernel *k = NULL;
    epi_error err = {0};
    check(epi_kernel_compile(program, &o, &k, &err) == EPI_OK, "%s compiles: %s", name, err.message);
    return k;
}

static int find(const problem *p, const char *name) {
    epi_tensor_info info;
    for (int i = 0; i < p->count; i++)
        if (epi_program_tensor(p->program, i, &info) == EPI_OK && !strcmp(info.name, name))
            return i;
    return -1;
}

static int group_of(const int *o, int row) {
    int first = 0, last = GROUPS - 1;
    while (first < last) {
        int middle = (first + last + 1) / 2;
        if (o[middle] <= row)
            first = middle;
        else
            last = middle - 1;
    }
    return first;
}

/* The program with these offsets; `bad` >= 0 is an element of the first input that is NaN. */
static bool run(const char *name, epi_dtype type, epi_path path, int threads, layout how, int set,
                int64_t bad, problem *p) {
    epi_kernel *k = compile(name, type, path, threads);
    bool ok = k && problem_make(p, epi_module_find(module, name), k, how);
    if (ok) {
        problem_fill(p, 7);
        int at = find(p, "offsets");
        for (int e = 0; e < GROUPS && at >= 0; e++)
            put_element(p->t[at].data, EPI_I32, tensor_at(&p->t[at], e), offsets[set][e]);
        if (bad >= 0)
            put_element(p->t[0].data, p->t[0].shape.type, tensor_at(&p->t[0], bad), (double)NAN);
        ok = problem_run(k, p);
    }
    epi_kernel_free(k);
    return check(ok, "%s runs", name);
}

static void check_values(const char *name, epi_dtype type, int set, layout how) {
    static problem out, ref, naive;
    double error = 0, bound = 0;
    if (run(name, type, EPI_PATH_FUSED, 3, how, set, -1, &out) &&
        run(name, type, EPI_PATH_REFERENCE, 2, LAYOUT_PLAIN, set, -1, &ref) &&
        run(name, type, EPI_PATH_NAIVE, 2, LAYOUT_PLAIN, set, -1, &naive))
        for (int i = out.inputs; i < out.count; i++)
            check(tensor_intact(&out.t[i]) &&
                      within_rule(&out.t[i], &ref.t[i], &naive.t[i], EPI_F32, out.terms, &error, &bound),
                  "%s, %s, groups %d, result %d: error %g, allowed %g", name, epi_dtype_name(type), set, i,
                  error, bound);
    problem_free(&out);
    problem_free(&ref);
    problem_free(&naive);
}

/* Rows that have the same group's matrix have the same bits, whichever rows are beside them, whatever the threads. */
static void check_bits(const char *name, epi_dtype type, int a, int b) {
    static problem p, q;
    if (run(name, type, EPI_PATH_FUSED, 3, LAYOUT_PLAIN, a, -1, &p) &&
        run(name, type, EPI_PATH_FUSED, 1, LAYOUT_PLAIN, b, -1, &q)) {
        const tensor *y = &p.t[p.inputs], *z = &q.t[q.inputs];
        size_t row = (size_t)(y->shape.count / ROWS) * epi_dtype_size(y->shape.type);
        int same = 0, differ = 0;
        for (int r = 0; r < ROWS; r++)
            if (group_of(offsets[a], r) == group_of(offsets[b], r)) {
                same++;
                differ += memcmp(y->data + (size_t)r * row, z->data + (size_t)r * row, row) != 0;
            }
        check(same && !differ, "%s, %s: of %d rows with groups %d and %d, %d differ", name,
              epi_dtype_name(type), same, a, b, differ);
    }
    problem_free(&p);
    problem_free(&q);
}

static bool has_nan(const tensor *t, int64_t first, int64_t count) {
    bool has = false;
    for (int64_t i = first; i < first + count; i++)
        has |= isnan(get_element(t->data, t->shape.type, i));
    return has;
}

/* Of `parts` equal parts of the first result the one that has the bad element is not a number, and no other is. */
static void check_nan(const char *name, int set, int64_t bad, int parts, int where) {
    static problem p;
    if (run(name, EPI_F32, EPI_PATH_FUSED, 2, LAYOUT_PLAIN, set, bad, &p)) {
        const tensor *y = &p.t[p.inputs];
        int64_t count = y->shape.count / parts;
        for (int i = 0; i < parts; i++)
            check(has_nan(y, i * count, count) == (i == where), "%s: NaN in part %d, and not in %d", name,
                  where, i);
    }
    problem_free(&p);
}

/* A number outside the axis is an error, and nothing is written. */
static void check_index(void) {
    static problem p;
    epi_kernel *k = compile("up", EPI_F32, EPI_PATH_FUSED, 2);
    epi_error err = {0};
    if (k && problem_make(&p, epi_module_find(module, "up"), k, LAYOUT_PLAIN)) {
        problem_fill(&p, 7);
        int at = find(&p, "p");
        put_element(p.t[at].data, EPI_I32, 77, ROWS);
        void *work = aligned_alloc(64, epi_kernel_workspace(k));
        epi_call call = EPI_CALL(.tensors = p.args, .count = p.count, .workspace = work);
        check(epi_kernel_call(k, &call, &err) == EPI_ERR_INDEX && strstr(err.message, "p[19,1] is 600"),
              "an index outside: %s", err.message);
        const tensor *y = &p.t[p.inputs];
        check(y->data[0] == POISON && y->data[y->span * 4 - 1] == POISON, "nothing is written");
        free(work);
    }
    problem_free(&p);
    epi_kernel_free(k);
}

/* A sum of two experts that has a type of 16 bits is rounded to it once: 257 - 256 is 1, and 257 in bf16 256. */
static void check_terms(epi_dtype type) {
    static const char text[] = "f(x[T=1,D=1], w[E=2,F=1,D], e: i32[T,K=2]) -> y: f32[T,F] {\n"
                               "    s: bf16 = sum(x*gather(w, e, E), D, K)\n"
                               "    y = 3*s\n"
                               "}\n";
    static problem p;
    epi_module *m;
    epi_kernel *k = NULL;
    epi_error err = {0};
    epi_options o = EPI_OPTIONS(.type = type, .threads = 1);
    if (check(epi_module_parse(ctx, text, strlen(text), "terms", &m, &err) == EPI_OK &&
                  epi_kernel_compile(epi_module_find(m, "f"), &o, &k, &err) == EPI_OK &&
                  problem_make(&p, epi_module_find(m, "f"), k, LAYOUT_PLAIN),
              "terms with a type: %s", err.message)) {
        put_element(p.t[0].data, type, 0, 1);
        for (int i = 0; i < 2; i++) {
            put_element(p.t[1].data, type, i, i ? -256 : 257);
            put_element(p.t[2].data, EPI_I32, i, i);
        }
        void *work = aligned_alloc(64, epi_kernel_workspace(k) + 64);
        epi_call call = EPI_CALL(.tensors = p.args, .count = p.count, .workspace = work);
        epi_status status = epi_kernel_call(k, &call, &err);
        double found = get_element(p.t[3].data, EPI_F32, 0);
        check(status == EPI_OK && found == 3, "a sum of two experts is %g, not 3", found);
        free(work);
    }
    problem_free(&p);
    epi_kernel_free(k);
    epi_module_free(m);
}

int main(int argc, char **argv) {
    epi_error err = {0};
    static const char *const rows[] = {"down", "across", "gated", "added", "back", "up"};
    static const int pairs[][2] = {{0, 2}, {0, 3}, {1, 3}, {2, 3}, {4, 6}};
    const epi_dtype types[] = {EPI_F32, EPI_BF16, EPI_F16};
    FILE *f = argc > 1 ? fopen(argv[1], "r") : NULL;
    static char text[1 << 16];
    size_t length = f ? fread(text, 1, sizeof text, f) : 0;
    if (f)
        fclose(f);
    if (!check(epi_context_open(&ctx, &err) == EPI_OK && length &&
                   epi_module_parse(ctx, text, length, "groups", &module, &err) == EPI_OK,
               "the text parses: %s", err.message))
        return finish();
    for (int i = 0; i < epi_module_count(module); i++) {
        const char *name = epi_program_name(epi_module_program(module, i));
        for (int set = 0; set < SETS; set++)
            check_values(name, types[(set + i) % 3], set, set == 0 ? LAYOUT_PADDED : LAYOUT_PLAIN);
    }
    check_nan("down", 0, 150 * columns + 5, ROWS, 150);
    check_nan("weight", 0, 150 * columns + 5, GROUPS, group_of(offsets[0], 150));
    check_index();
    check_terms(EPI_F32);
    check_terms(EPI_F16);
    depth = 300; /* more than a sweep, and tiles of several columns */
    columns = 290;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++)
            check_bits(rows[i], types[(i + k) % 3], pairs[k][0], pairs[k][1]);
    epi_module_free(module);
    epi_context_close(ctx);
    return finish();
}
