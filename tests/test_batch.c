/* test_batch.c: the batch changes nothing. For every program of the folder the list of parts is the same for
 * every number of rows, on the CPU and for Hopper; and each row of an output has the same bits in a batch of
 * 1, 7 and 128 rows.
 *
 *     batch [programs] */
#include "batch.h"
#include "ran.h"

static epi_context *ctx;
static int compared, lists;

/* A part's text. The last of a recurrence's steps has its number there: here it is `last`, whatever that is. */
static void add_part(epi_text *to, const char *text, int64_t rows) {
    char number[40];
    int n = snprintf(number, sizeof number, ", %ld, ", (long)(rows - 1));
    bool steps = strstr(text, "scan(") || strstr(text, "scan_back(");
    for (const char *at; steps && (at = strstr(text, number)); text = at + n)
        epi_text_add(to, "%.*s, last, ", (int)(at - text), text);
    epi_text_add(to, "%s", text);
}

/* What the parts are: each with its mainloop, as a program. */
static char *list_parts(const epi_kernel *k, int64_t rows) {
    epi_text t = {0};
    epi_part_info p;
    for (int i = 0; epi_kernel_part(k, i, &p) == EPI_OK; i++) {
        size_t n = epi_kernel_part_print(k, i, NULL, 0);
        char *text = malloc(n + 1);
        epi_kernel_part_print(k, i, text, n + 1);
        epi_text_add(&t, "%d %s\n", p.first, p.info.mainloop);
        add_part(&t, text, rows);
        free(text);
    }
    return t.data;
}

/* Compiles for so many rows, which are the first `rows` dims of the first input; NULL where the program has no such
 * sizes. */
static epi_kernel *compile(const epi_program *p, int rows, int64_t n, epi_dtype type, int device) {
    int count = epi_program_dim_count(p);
    const epi_axes *first = &p->graph.tensors[0].axes;
    int64_t sizes[EPI_MAX_DIMS];
    epi_text dims = {0};
    epi_kernel *k;
    epi_error err;
    for (int d = 0; d < count; d++) { /* of many axes each is short, or attention would take a minute */
        int64_t fixed = epi_program_dim_size(p, d);
        sizes[d] = fixed ? fixed : count > 4 ? 8 << d % 2 : 16 << d % 3;
    }
    for (int i = 0; i < rows; i++) /* of four row axes the first two: more is no size that anything has */
        sizes[first->at[i].dim] = i < 2 ? n : 2 + n % 2;
    for (int d = 0; d < count; d++)
        epi_text_add(&dims, "%s%s=%ld", d ? "," : "", epi_program_dim(p, d), (long)sizes[d]);
    epi_status status =
        compile_as(p, dims.data ? dims.data : "", (way){.type = type, .device = device}, &k, &err);
    check(status == EPI_OK || status == EPI_ERR_DIMS, "%s with %ld rows compiles: %s", epi_program_name(p),
          (long)n, err.message);
    epi_text_free(&dims);
    return k;
}

/* Is anything reduced along one of the row axes but the first? */
static bool mixes_any(const epi_graph *g, int rows) {
    bool mixes = false;
    for (int t = g->input_count; t < g->tensor_count; t++)
        for (int i = 1; i < rows; i++)
            mixes |= mixes_rows(g, g->tensors[t].node, g->tensors[0].axes.at[i].dim);
    return mixes;
}

/* The first input's axes that count rows: all but the last, and none that an input without rows has, a weight. */
static int row_axes(const epi_graph *g) {
    const epi_axes *first = &g->tensors[0].axes;
    int rows = first->count - 1;
    for (int t = 1; t < g->input_count; t++)
        for (int i = 1; i < rows && !epi_axes_has_dim(&g->tensors[t].axes, first->at[0].dim); i++)
            if (epi_axes_has_dim(&g->tensors[t].axes, first->at[i].dim))
                rows = i;
    return rows;
}

static bool has_few_bits(const epi_graph *g) {
    bool few = false;
    for (int t = 0; t < g->input_count; t++)
        few |= g->tensors[t].has_type && epi_dtype_size(g->tensors[t].type) == 1;
    for (int n = 0; n < g->node_count; n++)
        few |= epi_ops[g->nodes[n].op].converts && epi_dtype_size(epi_ops[g->nodes[n].op].type) == 1;
    return few;
}

/* Left out: one row, where a reduction along it is none; and on a GPU few rows of weights of few bits, which have a
 * mainloop of their own. */
static void check_lists(const epi_program *p, int rows, epi_dtype type, int device) {
    static const int64_t counts[] = {8192, 128, 7, 1};
    char *first = NULL;
    int count = device && has_few_bits(&p->graph) ? 2 : mixes_any(&p->graph, rows) ? 3 : 4;
    if (!wanted("%s parts %d %d %s", epi_program_name(p), device, rows, epi_dtype_name(type)))
        return;
    for (int i = 0; i < count; i++) {
        epi_kernel *k = compile(p, rows, counts[i], type, device);
        char *list = k ? list_parts(k, counts[i]) : NULL;
        if (first && list) {
            check(!strcmp(first, list), "%s: parts of %ld rows are those of 8192:\n%s\n%s",
                  epi_program_name(p), (long)counts[i], first, list);
            lists++;
        }
        if (!first)
            first = list;
        else
            free(list);
        epi_kernel_free(k);
    }
    free(first);
}

/* ---- bits ---- */

static void check_bits(const epi_program *p, epi_dtype type) {
    static const int64_t counts[] = {1, 7};
    const epi_graph *g = &p->graph;
    int dim = g->tensors[0].axes.at[0].dim;
    for (int c = 0; c < 2; c++) {
        if (!wanted("%s bits %ld %s", epi_program_name(p), (long)counts[c], epi_dtype_name(type)))
            continue;
        problem many = {0}, few = {0};
        epi_kernel *k = compile(p, 1, 128, type, 0), *less = compile(p, 1, counts[c], type, 0);
        bool ok =
            k && less && problem_make(&many, p, k, LAYOUT_PLAIN) && problem_make(&few, p, less, LAYOUT_PLAIN);
        if (ok) {
            problem_fill(&many, 5);
            hold_indices(&many, &few);
            for (int t = 0; t < many.inputs; t++)
                first_rows(&few.t[t], &many.t[t], epi_axes_find_dim(&g->tensors[t].axes, dim), false);
            ok = check(problem_run(k, &many) && problem_run(less, &few), "%s runs", epi_program_name(p));
        }
        for (int t = many.inputs; t < many.count && ok; t++) {
            int a = epi_axes_find_dim(&g->tensors[t].axes, dim);
            if (a < 0 || mixes_rows(g, g->tensors[t].node, dim))
                continue;
            check(first_rows(&few.t[t], &many.t[t], a, true),
                  "%s, %s: %s has the same bits in %ld rows and 128", epi_program_name(p),
                  epi_dtype_name(type), g->tensors[t].name, (long)counts[c]);
            compared++;
        }
        problem_free(&many);
        problem_free(&few);
        epi_kernel_free(k);
        epi_kernel_free(less);
    }
}

/* ---- the folder ---- */

static void check_file(const char *path) {
    no_case();
    epi_module *m = parsed_file(ctx, path);
    for (int i = 0; m && i < epi_module_count(m); i++) {
        const epi_program *p = epi_module_program(m, i);
        int rank = p->graph.input_count ? p->graph.tensors[0].axes.count : 0;
        for (int type = EPI_F32; type <= EPI_BF16 && rank > 1; type++) {
            check_lists(p, 1, (epi_dtype)type, 0);
            if (row_axes(&p->graph) > 1)
                check_lists(p, row_axes(&p->graph), (epi_dtype)type, 0);
            check_lists(p, 1, (epi_dtype)type, -90);
            check_bits(p, (epi_dtype)type);
        }
    }
    epi_module_free(m);
}

/* A value that a part may load or make again, whichever moves fewer bytes: with one row that is the other way
 * round. The first input has no row axes, so only the options can tell. */
static void check_named(void) {
    static const char text[] = "f(b[F], a[T], x[T,D], w[F,D], u[G,F]) -> (c[T,G], d[T,F]) {\n"
                               "    z = tanh(a*b)\n"
                               "    c = z @ u\n"
                               "    d = (x @ w)*z\n"
                               "}\n";
    static const char *const dims[] = {"F=64,T=8192,D=64,G=64", "F=64,T=1,D=64,G=64"};
    epi_module *m = parsed(ctx, text);
    epi_kernel *k;
    epi_error err;
    for (int named = 0; named < 2; named++) {
        char *of[2];
        for (int i = 0; i < 2; i++) {
            k = kernel_of(epi_module_program(m, 0), dims[i], (way){.rows = named ? "T" : NULL});
            of[i] = list_parts(k, 0);
            epi_kernel_free(k);
        }
        check((strcmp(of[0], of[1]) == 0) == (named == 1), "%s row axes:\n%s\n%s", named ? "named" : "no",
              of[0], of[1]);
        free(of[0]);
        free(of[1]);
    }
    static const char *const names[] = {"T", "X"};
    bound b;
    bind_dims(&b, dims[0], EPI_F32, 0);
    b.options.row_axes = names;
    b.options.row_axis_count = 2;
    check(epi_kernel_compile(epi_module_program(m, 0), &b.options, &k, &err) == EPI_ERR_DIMS &&
              strstr(err.message, "no axis 'X'"),
          "a row axis that is none: %s", err.message);
    b.options.row_axes = NULL;
    check(epi_kernel_compile(epi_module_program(m, 0), &b.options, &k, &err) == EPI_ERR_ARGUMENT,
          "a list that is NULL");
    epi_module_free(m);
}

int main(int argc, char **argv) {
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    check_named();
    for_texts(argc > 1 ? argv[1] : "programs", check_file);
    no_case();
    check(!all_run() || (lists > 100 && compared > 100), "there was enough to compare");
    printf("%d lists of parts and %d outputs were compared\n", lists, compared);
    epi_context_close(ctx);
    return finish();
}
