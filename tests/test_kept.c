/* test_kept.c: programs of an earlier version parse, and compute what they computed.
 *
 *     kept TEXTS RESULTS TENSORS    compares
 *     kept TEXTS RESULTS --write    writes the results; done once, with the library of that version
 *
 * TEXTS is Markdown; a block "epi NAME [DIM=SIZE ...]" is a text. RESULTS has a line for each of its programs,
 * and of their gradients by all inputs of numbers, with the sizes; below it stands a line for each output:
 *
 *     name, its sizes, the sum of its elements times weights, the sum of their absolute values, how many are
 *     NaN, how many are infinite
 *
 * TENSORS is what `epilog run --out` of that version wrote of a program with an output as_T of every type T,
 * whose elements are i/2 - 1, or 2i - 2 of integers and 2i of u8.
 *
 * Everything is computed by the reference, in f64. Inputs and weights are made here and nowhere else, so that
 * no other test changes them. */
#include "epilog_io.h"
#include "harness.h"

enum { TEXTS = 400, MOST_DIMS = 32, LINE = 2000 };

static epi_context *ctx;

/* ---- texts ---- */

typedef struct block {
    char name[100], sizes[200]; /* "T=8 D=4": what a text wants sizes to be */
    const char *text;
    size_t length;
    epi_module *module;
} block;

static block blocks[TEXTS];
static int block_count;

static void find_blocks(const char *text) {
    for (const char *at = text; at && block_count < TEXTS; at++) {
        block *b = &blocks[block_count];
        const char *line = strstr(at, "```epi ");
        if (!line)
            return;
        sscanf(line, "```epi %99s%*[ ]%199[^\n]", b->name, b->sizes);
        b->text = strchr(line, '\n') + 1;
        at = strstr(b->text, "\n```");
        b->length = at ? (size_t)(at + 1 - b->text) : 0;
        block_count++;
    }
}

static void parse_blocks(void) {
    for (int i = 0; i < block_count; i++) {
        block *b = &blocks[i];
        epi_error err = {0};
        check(epi_module_parse(ctx, b->text, b->length, b->name, &b->module, &err) == EPI_OK, "%s:%d:%d: %s",
              b->name, err.line, err.column, err.message);
    }
}

static const block *find_block(const char *name) {
    for (int i = 0; i < block_count; i++)
        if (!strcmp(blocks[i].name, name))
            return &blocks[i];
    return NULL;
}

/* ---- running ---- */

static double input_element(const tensor *t, uint64_t *s) {
    switch (t->shape.type) {
    case EPI_I32:
    case EPI_I64:
    case EPI_I8:
    case EPI_U8: return random_below(s, t->shape.index_below > 0 ? (int)t->shape.index_below : 6);
    default:
        return t->shape.rank == 0   ? (1 + random_below(s, 16)) / 16.0
               : t->shape.rank == 1 ? (16 + random_below(s, 64)) / 64.0
                                    : (random_below(s, 1 << 16) - (1 << 15)) / 32768.0;
    }
}

static void fill(problem *p) {
    for (int i = 0; i < p->inputs; i++) {
        uint64_t s = 1000003u * (uint64_t)(i + 1);
        for (int64_t e = 0; e < p->t[i].shape.count; e++)
            put_element(p->t[i].data, p->t[i].shape.type, e, input_element(&p->t[i], &s));
    }
}

/* What is written of an output. */
typedef struct figures {
    char sizes[120];
    double sum, absolute;
    int64_t nan, infinite;
} figures;

static figures figures_of(const tensor *t) {
    figures f = {0};
    uint64_t s = 77;
    size_t n = (size_t)snprintf(f.sizes, sizeof f.sizes, "[");
    for (int a = 0; a < t->shape.rank; a++)
        n +=
            (size_t)snprintf(f.sizes + n, sizeof f.sizes - n, "%s%ld", a ? "," : "", (long)t->shape.sizes[a]);
    snprintf(f.sizes + n, sizeof f.sizes - n, "]");
    for (int64_t e = 0; e < t->shape.count; e++) {
        double x = get_element(t->data, t->shape.type, e), weighed = x * (2 * random_unit(&s) - 1);
        f.nan += isnan(x) != 0;
        f.infinite += isinf(x) != 0;
        f.sum += isfinite(x) ? weighed : 0;
        f.absolute += isfinite(x) ? fabs(weighed) : 0;
    }
    return f;
}

/* The sizes "T=8 D=4" as bindings; their names lie in `store`. */
static int bind(const char *sizes, char *store, epi_dim_binding *dims) {
    int count = 0;
    snprintf(store, LINE, "%s", sizes);
    for (char *w = strtok(store, " "); w && count < MOST_DIMS; w = strtok(NULL, " ")) {
        char *equals = strchr(w, '=');
        if (equals) {
            *equals = 0;
            dims[count++] = (epi_dim_binding){w, strtol(equals + 1, NULL, 10)};
        }
    }
    return count;
}

/* Compiles and runs the program with its own inputs. Free the problem where it was true. */
static bool run(const epi_program *program, const char *sizes, problem *p, epi_error *err) {
    char store[LINE];
    epi_dim_binding dims[MOST_DIMS];
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = bind(sizes, store, dims), .threads = 1,
                                .path = EPI_PATH_REFERENCE);
    epi_kernel *k;
    *err = (epi_error){0};
    if (epi_kernel_compile(program, &o, &k, err) != EPI_OK)
        return false;
    bool ok = problem_make(p, program, k, LAYOUT_PLAIN);
    void *work = aligned_alloc(64, epi_kernel_workspace(k));
    if (ok)
        fill(p);
    ok = ok && work && epi_kernel_run(k, p->args, p->count, work, err) == EPI_OK;
    free(work);
    epi_kernel_free(k);
    if (!ok)
        problem_free(p);
    return ok;
}

/* Of a program its gradient, which `*module` owns; the program itself where `gradient` is false. */
static const epi_program *meant_program(const epi_program *p, bool gradient, epi_module **module,
                                        epi_error *err) {
    const char *names[MAX_TENSORS];
    *module = NULL;
    if (!gradient || !p)
        return p;
    int count = number_inputs(p, true, names, MAX_TENSORS);
    if (!count || epi_program_grad(p, names, count, module, err) != EPI_OK)
        return NULL;
    return epi_module_program(*module, 0);
}

/* ---- comparing ---- */

/* f64 rounds by 2^-53 of a term. Another libm or another order of a sum moves a result by a few of these; a
 * program that means something else moves it by far more than 2^-30 of its terms. */
static bool same(const figures *got, const figures *want) {
    return !strcmp(got->sizes, want->sizes) && got->nan == want->nan && got->infinite == want->infinite &&
           fabs(got->sum - want->sum) <= 0x1p-30 * want->absolute &&
           fabs(got->absolute - want->absolute) <= 0x1p-30 * want->absolute;
}

static void compare_output(const problem *p, int t, const char *line, const char *where) {
    figures want = {0};
    char name[100] = "";
    long nan = 0, infinite = 0;
    sscanf(line, " %99s %119s %lf %lf %ld %ld", name, want.sizes, &want.sum, &want.absolute, &nan, &infinite);
    want.nan = nan, want.infinite = infinite;
    epi_tensor_info info;
    if (!check(t < p->count && epi_program_tensor(p->program, t, &info) == EPI_OK && !strcmp(info.name, name),
               "%s has an output %s in this place", where, name))
        return;
    figures got = figures_of(&p->t[t]);
    check(same(&got, &want), "%s: %s%s sums to %.17g (%.17g), and did to %.17g (%.17g) with sizes %s", where,
          name, got.sizes, got.sum, got.absolute, want.sum, want.absolute, want.sizes);
}

/* A program's line and those of its outputs; returns the line behind them. */
static const char *compare_program(const char *line) {
    char source[100], name[100], kind[20], sizes[LINE] = "", where[400];
    sscanf(line, "%99s %99s %19s%*[ ]%1999[^\n]", source, name, kind, sizes);
    const block *b = find_block(source);
    problem p = {0};
    epi_error err = {0};
    epi_module *derived = NULL;
    snprintf(where, sizeof where, "%s %s %s %.150s", source, name, kind, sizes);
    bool runs = wanted("%s", where);
    const epi_program *program = !runs ? NULL : epi_module_find(b ? b->module : NULL, name);
    if (runs)
        program = meant_program(program, !strcmp(kind, "gradient"), &derived, &err);
    runs = runs && check(program && run(program, sizes, &p, &err), "%s runs: %s", where, err.message);
    int t = p.inputs;
    for (line = strchr(line, '\n') + 1; *line == ' '; line = strchr(line, '\n') + 1)
        if (runs)
            compare_output(&p, t++, line, where);
    if (runs)
        check(t == p.count, "%s has %d outputs, and had %d", where, p.count - p.inputs, t - p.inputs);
    problem_free(&p);
    epi_module_free(derived);
    return line;
}

static void compare(const char *results) {
    for (const char *line = results; *line;)
        line = *line == '#' ? strchr(line, '\n') + 1 : compare_program(line);
}

static double written_element(epi_dtype type, int64_t i) {
    return type == EPI_U8             ? 2.0 * (double)i
           : epi_dtype_is_whole(type) ? 2.0 * (double)i - 2
                                      : (double)i / 2 - 1;
}

static void compare_file(const char *path) {
    enum { COUNT = 8 };
    epi_safetensors *file;
    epi_error err = {0};
    if (!check(epi_safetensors_open(path, &file, &err) == EPI_OK, "%s", err.message))
        return;
    for (epi_dtype type = EPI_F32; type <= EPI_U8; type++) {
        const epi_safetensor *t;
        char name[20];
        int64_t buffer[COUNT];
        snprintf(name, sizeof name, "as_%s", epi_dtype_name(type));
        if (!epi_safetensors_find(file, name) && type == EPI_F64) /* which no output has */
            continue;
        if (!check(epi_safetensors_get(file, name, &t, &err) == EPI_OK && t->type == type && t->rank == 1 &&
                       t->shape[0] == COUNT && t->bytes == COUNT * epi_dtype_size(type),
                   "%s has %s of %d elements: %s", path, name, COUNT, err.message))
            continue;
        memcpy(buffer, t->data, t->bytes);
        for (int64_t i = 0; i < COUNT; i++)
            check(get_element(buffer, type, i) == written_element(type, i), "%s: element %ld of %s", path,
                  (long)i, name);
    }
    epi_safetensors_close(file);
}

/* ---- writing ---- */

/* Every size that neither the program nor the block says is `size`. */
static void choose_sizes(const epi_program *p, const block *b, int size, char *out) {
    char store[LINE];
    epi_dim_binding said[MOST_DIMS];
    int count = bind(b->sizes, store, said);
    size_t n = 0;
    *out = 0;
    for (int d = 0; d < epi_program_dim_count(p); d++) {
        int64_t chosen = epi_program_dim_size(p, d);
        for (int i = 0; i < count && !chosen; i++)
            if (!strcmp(said[i].name, epi_program_dim(p, d)))
                chosen = said[i].size;
        n += (size_t)snprintf(out + n, LINE - n, " %s=%ld", epi_program_dim(p, d),
                              (long)(chosen ? chosen : size));
    }
}

static void write_program(FILE *to, const block *b, const epi_program *source, bool gradient) {
    static const int tried[] = {6, 8, 12, 16, 32, 64, 128, 1};
    problem p = {0};
    epi_error err = {0};
    epi_module *derived;
    char sizes[LINE];
    const epi_program *program = meant_program(source, gradient, &derived, &err);
    bool ok = false;
    for (size_t i = 0; i < sizeof tried / sizeof *tried && program && !ok; i++) {
        choose_sizes(program, b, tried[i], sizes);
        ok = run(program, sizes, &p, &err);
    }
    if (!ok)
        printf("left out: %s %s%s: %s\n", b->name, epi_program_name(source), gradient ? " gradient" : "",
               err.message);
    if (ok)
        fprintf(to, "%s %s %s%s\n", b->name, epi_program_name(source), gradient ? "gradient" : "program",
                sizes);
    for (int t = p.inputs; ok && t < p.count; t++) {
        epi_tensor_info info;
        figures f = figures_of(&p.t[t]);
        epi_program_tensor(program, t, &info);
        fprintf(to, "  %s %s %.12g %.12g %ld %ld\n", info.name, f.sizes, f.sum, f.absolute, (long)f.nan,
                (long)f.infinite);
    }
    problem_free(&p);
    epi_module_free(derived);
}

static void write_all(FILE *to) {
    fprintf(to, "# Written by test_kept.c with the library of version %s; it never changes.\n",
            epi_version());
    for (int i = 0; i < block_count; i++)
        for (int j = 0; j < epi_module_count(blocks[i].module); j++) {
            const epi_program *p = epi_module_program(blocks[i].module, j);
            write_program(to, &blocks[i], p, false);
            write_program(to, &blocks[i], p, true);
        }
}

int main(int argc, char **argv) {
    if (argc < 4 || epi_context_open(&ctx, NULL) != EPI_OK)
        return 2;
    size_t length;
    char *texts = read_whole(argv[1], &length), *results = NULL;
    if (!check(texts != NULL, "%s can be read", argv[1]))
        return finish();
    find_blocks(texts);
    parse_blocks();
    if (!strcmp(argv[3], "--write")) {
        FILE *to = fopen(argv[2], "w");
        if (check(to != NULL, "%s can be written", argv[2])) {
            write_all(to);
            fclose(to);
        }
    } else if (check((results = read_whole(argv[2], &length)) != NULL, "%s can be read", argv[2])) {
        compare(results);
        compare_file(argv[3]);
    }
    for (int i = 0; i < block_count; i++)
        epi_module_free(blocks[i].module);
    free(texts);
    free(results);
    epi_context_close(ctx);
    return finish();
}
