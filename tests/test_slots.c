/* test_slots.c: products whose weight is chosen by the row, in slot order. Whatever rows choose, results are
 * those of the program as it is written; a row's bits do not depend on the others; a program in slot order
 * stays as it is; and what is no such product is left alone. Laws of such programs: tests/experts.epi. */
#include "harness.h"

static epi_context *ctx;
static epi_module *module;

/* ---- what rows choose ---- */

typedef enum route { EVEN, ONE, EMPTY, TWICE, ZIPF, EDGES, ROUTES } route;
static const char *const route_names[ROUTES] = {"even", "one", "empty", "twice", "zipf", "edges"};

/* Groups that end where a tile does, or nearly; rows beyond them choose the last. */
static int64_t choose_edges(int64_t row, int64_t choices) {
    static const int sizes[] = {0, 1, 63, 64, 65, 127, 129, 0, 2};
    int64_t end = 0;
    for (int64_t e = 0; e < choices - 1 && e < (int64_t)(sizeof sizes / sizeof *sizes); e++)
        if (row < (end += sizes[e]))
            return e;
    return choices - 1;
}

/* What an element of the index [T,K] chooses. */
static int64_t choose(route how, int64_t at, int64_t of_row, int64_t choices) {
    int64_t row = at / of_row, k = at % of_row;
    switch (how) {
    case ONE: return choices - 1;
    case EMPTY: return at * 7 % ((choices + 1) / 2) * 2 % choices;
    case TWICE: return row % choices;
    case ZIPF: return (at * 1103 >> 3) % (1 + (at * 40503 >> 4) % choices);
    case EDGES: return choose_edges(at * 89 % 457, choices);
    default: return (row * 3 + k) % choices;
    }
}

static void fill_routes(tensor *t, route how) {
    int64_t of_row = t->shape.rank > 1 ? t->shape.sizes[t->shape.rank - 1] : 1;
    for (int64_t i = 0; i < t->shape.count; i++)
        put_element(t->data, t->shape.type, tensor_at(t, i),
                    (double)choose(how, i, of_row, t->shape.index_below));
}

/* ---- results ---- */

/* Leaves out sizes of axes that the program lacks. */
static void drop_unknown(bound *b, const epi_program *p) {
    int kept = 0;
    for (int i = 0; i < b->options.dim_count; i++)
        for (int d = 0; d < epi_program_dim_count(p); d++)
            if (!strcmp(b->dims[i].name, epi_program_dim(p, d)))
                b->dims[kept++] = b->dims[i];
    b->options.dim_count = kept;
}

static epi_kernel *compile(const epi_program *p, const char *dims, epi_dtype type, epi_path path) {
    bound b;
    epi_type_binding wide[MAX_TENSORS];
    epi_kernel *k = NULL;
    epi_error err = {0};
    bind_dims(&b, dims, type, 0);
    drop_unknown(&b, p);
    b.options.path = path;
    b.options.types = wide;
    b.options.type_count = path >= EPI_PATH_NAIVE ? wide_types(p, false, wide) : 0;
    check(epi_kernel_compile(p, &b.options, &k, &err) == EPI_OK, "%s %s: %s", epi_program_name(p), dims,
          err.message);
    return k;
}

/* infinite: the third row of the first input is. */
static bool run_with(const epi_program *p, const char *dims, epi_dtype type, epi_path path, route how,
                     bool infinite, problem *out) {
    epi_kernel *k = compile(p, dims, type, path);
    bool ok = k && problem_make(out, p, k, LAYOUT_PLAIN);
    if (ok) {
        problem_fill(out, 5);
        for (int i = 0; i < out->inputs; i++)
            if (out->t[i].shape.index_below > 0)
                fill_routes(&out->t[i], how);
        tensor *x = &out->t[0];
        int64_t row = infinite ? x->shape.count / x->shape.sizes[0] : 0;
        for (int64_t i = 2 * row; i < 3 * row; i++)
            put_element(x->data, x->shape.type, tensor_at(x, i), INFINITY);
        ok = problem_run(k, out);
    }
    epi_kernel_free(k);
    return ok;
}

static bool run_routed(const epi_program *p, const char *dims, epi_dtype type, epi_path path, route how,
                       problem *out) {
    return run_with(p, dims, type, path, how, false, out);
}

static void check_routed(const epi_program *p, const char *dims, epi_dtype type, route how) {
    problem got, want, naive;
    bool ran = run_routed(p, dims, type, EPI_PATH_FUSED, how, &got);
    ran &= run_routed(p, dims, type, EPI_PATH_REFERENCE, how, &want);
    ran &= run_routed(p, dims, type, EPI_PATH_NAIVE, how, &naive);
    check(ran, "%s %s runs, %s", epi_program_name(p), dims, route_names[how]);
    for (int i = got.inputs; i < got.count && ran; i++) {
        double error, most;
        bool right = within_rule(&got.t[i], &want.t[i], &naive.t[i], type, want.terms, &error, &most);
        check(right && tensor_intact(&got.t[i]), "%s %s %s, %s: result %d is %g off, at most %g",
              epi_program_name(p), dims, epi_dtype_name(type), route_names[how], i, error, most);
    }
    problem_free(&got);
    problem_free(&want);
    problem_free(&naive);
}

/* An infinite row reaches no element that it does not reach in the program as it is written. */
static void check_infinite(const epi_program *p, const char *dims, route how) {
    problem got, want;
    bool ran = run_with(p, dims, EPI_F32, EPI_PATH_FUSED, how, true, &got);
    ran &= run_with(p, dims, EPI_F32, EPI_PATH_REFERENCE, how, true, &want);
    for (int i = got.inputs; i < got.count && ran; i++) {
        int64_t spread = 0, finite = 0;
        for (int64_t e = 0; e < got.t[i].shape.count; e++) {
            bool is = isfinite(get_element(want.t[i].data, want.t[i].shape.type, tensor_at(&want.t[i], e)));
            finite += is;
            spread +=
                is && !isfinite(get_element(got.t[i].data, got.t[i].shape.type, tensor_at(&got.t[i], e)));
        }
        check(!spread,
              "%s, %s: an infinite row is in %lld of %lld elements of result %d that it does not reach",
              epi_program_name(p), route_names[how], (long long)spread, (long long)finite, i);
    }
    problem_free(&got);
    problem_free(&want);
}

/* The program and its gradients. */
static void check_all(const char *name, const char *dims, epi_dtype type, route how) {
    const epi_program *p = epi_module_find(module, name);
    const char *wrt[16];
    epi_module *grad;
    epi_error err;
    int count = number_inputs(p, true, wrt, 16);
    bool rows = !strstr(dims, "T=0") && !strstr(dims, "T=1,") && strcmp(name, "beside");
    check_routed(p, dims, type, how);
    if (rows)
        check_infinite(p, dims, how);
    if (check(epi_program_grad(p, wrt, count, &grad, &err) == EPI_OK, "%s: %s", name, err.message)) {
        check_routed(epi_module_program(grad, 0), dims, type, how);
        if (rows)
            check_infinite(epi_module_program(grad, 0), dims, how);
        epi_module_free(grad);
    }
}

static void check_results(void) {
    static const char *const sizes[] = {"T=0,K=2,E=4,D=8,F=16", "T=1,K=1,E=1,D=8,F=16",
                                        "T=1,K=2,E=8,D=8,F=16", "T=9,K=4,E=4,D=8,F=16",
                                        "T=20,K=5,E=3,D=7,F=9", "T=13,K=2,E=40,D=16,F=24"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int how = 0; how < ROUTES; how++)
            check_all("moe", sizes[i], how % 2 ? EPI_BF16 : EPI_F32, (route)how);
    for (int how = 0; how < ROUTES; how++)
        check_all("switch", "T=150,E=5,D=12,F=20", how % 2 ? EPI_F32 : EPI_F16, (route)how);
    check_all("moe", "T=229,K=2,E=10,D=24,F=40", EPI_F32, EDGES);
    check_all("moe", "T=229,K=2,E=10,D=24,F=40", EPI_BF16, EDGES);
    check_all("moe", "T=9,K=66,E=70,D=8,F=8", EPI_F32, ZIPF); /* more terms than are written out */
    check_all("beside", "B=2,T=31,K=3,E=6,D=16,F=24,G=8", EPI_BF16, EVEN);
    check_all("paired", "T=33,K=2,E=6,D=16,F=24", EPI_BF16, ZIPF);
    check_all("unchecked", "T=20,N=15,E=4,D=16,F=24", EPI_F32, ZIPF);
    check_all("dealt", "T=20,K=2,E=6,D=16", EPI_F32, EVEN);
}

/* An element that names no expert is an error of the run, and is named. */
static void check_outside(double value) {
    const epi_program *p = epi_module_find(module, "moe");
    problem of;
    epi_kernel *k = compile(p, "T=6,K=2,E=4,D=8,F=12", EPI_F32, EPI_PATH_FUSED);
    if (k && problem_make(&of, p, k, LAYOUT_PLAIN)) {
        void *work = aligned_alloc(64, epi_kernel_workspace(k) + 64);
        epi_error err = {0};
        problem_fill(&of, 5);
        put_element(of.t[4].data, EPI_I32, 7, value);
        epi_status status = epi_kernel_run(k, of.args, of.count, work, &err);
        check(status == EPI_ERR_INDEX && strstr(err.message, "e[3,1]"), "an index of %g: %s", value,
              err.message);
        free(work);
        problem_free(&of);
    }
    epi_kernel_free(k);
}

/* ---- bits ---- */

/* A row's result is the same whoever else there is, and whatever they choose. */
static void check_bits(const char *name, int rows, epi_dtype type) {
    const epi_program *p = epi_module_find(module, name);
    char dims[80];
    problem all, few;
    snprintf(dims, sizeof dims, "T=%d,K=2,E=5,D=40,F=24", rows);
    bool ran = run_routed(p, dims, type, EPI_PATH_FUSED, ZIPF, &all);
    ran &= run_routed(p, "T=3,K=2,E=5,D=40,F=24", type, EPI_PATH_FUSED, EVEN, &few);
    if (!check(ran, "%s runs", name))
        return;
    int out = all.inputs;
    epi_kernel *k = compile(p, "T=3,K=2,E=5,D=40,F=24", type, EPI_PATH_FUSED);
    size_t size = epi_dtype_size(all.t[out].shape.type);
    for (int from = 0; from + 3 <= rows && k; from += rows / 3) {
        for (int i = 0; i < few.inputs; i++) {
            tensor *to = &few.t[i];
            bool whole = to->shape.count == all.t[i].shape.count;
            size_t bytes = epi_dtype_size(to->shape.type) * (size_t)to->shape.count;
            memcpy(to->data, all.t[i].data + (whole ? 0 : bytes / 3 * (size_t)from), bytes);
        }
        size_t row = size * (size_t)few.t[out].shape.count / 3;
        check(problem_run(k, &few) && !memcmp(few.t[out].data, all.t[out].data + row * (size_t)from, 3 * row),
              "%s %s: rows %d to %d of %d have other bits by themselves", name, epi_dtype_name(type), from,
              from + 2, rows);
    }
    epi_kernel_free(k);
    problem_free(&all);
    problem_free(&few);
}

/* ---- texts ---- */

/* The program after the pass, in a buffer that lasts for three calls. */
static const char *after_slots(const epi_program *p, const char *dims, epi_dtype type) {
    static char texts[3][1 << 14];
    static int at;
    char *text = texts[at = (at + 1) % 3];
    epi_kernel *k = compile(p, dims, type, EPI_PATH_FUSED);
    text[0] = 0;
    if (k)
        epi_kernel_print_after(k, "slots", text, sizeof texts[0]);
    epi_kernel_free(k);
    return text;
}

static int count_word(const char *text, const char *word) {
    int count = 0;
    for (const char *at = text; (at = strstr(at, word)); at += strlen(word))
        count++;
    return count;
}

/* Has the text these words, each so often? */
static void check_words(const char *name, const char *dims, int sorts, int products, int outers) {
    const char *text = after_slots(epi_module_find(module, name), dims, EPI_F32);
    check(count_word(text, "argsort(") == sorts && count_word(text, "segments(") == sorts &&
              count_word(text, ", D)") + count_word(text, ", F)") + count_word(text, ", F/2)") >= products &&
              count_word(text, "scatter(") == outers,
          "%s: %d sorts, %d outer products in\n%s", name, sorts, outers, text);
}

/* What is in slot order stays so; slices have names the second time. */
static void check_again(const epi_program *p, const char *dims) {
    const char *text[3] = {after_slots(p, dims, EPI_F32)};
    for (int i = 1; i < 3; i++) {
        epi_module *m;
        epi_error err;
        if (!check(epi_module_parse(ctx, text[i - 1], strlen(text[i - 1]), "slots", &m, &err) == EPI_OK,
                   "%s\n%s", err.message, text[i - 1]))
            return;
        text[i] = after_slots(epi_module_program(m, 0), dims, EPI_F32);
        epi_module_free(m);
    }
    check(!strcmp(text[1], text[2]), "in slot order, and once more:\n%s\n%s", text[1], text[2]);
}

/* Forward and backward have the order in common; what is saved is two products, as such are, and the slots' gates. */
static void check_saved(void) {
    const epi_program *p = epi_module_find(module, "moe");
    const char *wrt[] = {"x", "wg", "wu", "wd", "gate"};
    static char text[1 << 14];
    epi_module *m;
    epi_error err;
    if (!check(epi_program_grad_saved(p, wrt, 5, &m, &err) == EPI_OK, "%s", err.message))
        return;
    epi_program_print(epi_module_program(m, 1), text, sizeof text);
    check(!count_word(text, "argsort(") && !count_word(text, "rank(") && !count_word(text, "offsets(") &&
              count_word(text, "scatter(") == 3 && strstr(text, "e_rank: i32[T,K]") &&
              strstr(text, "saved_2: f32[T,K]") && strstr(text, "saved_3[T,K,F]") && !strstr(text, "saved_4"),
          "the backward:\n%s", text);
    for (int i = 0; i < 2; i++) {
        check_again(epi_module_program(m, i), "T=6,K=2,E=4,D=8,F=12");
        /* sorted before sizes were known, with more values than a program is sorted for */
        check_routed(epi_module_program(m, i), "T=6,K=2,E=1500,D=4,F=4", EPI_F32, EVEN);
    }
    epi_module_free(m);
}

/* An output of f32 is made of what is stored as such. */
static void check_wide(void) {
    const char *text = after_slots(epi_module_find(module, "hidden"), "T=6,K=2,E=4,D=8,F=12", EPI_BF16);
    check(strstr(text, "h_2: f32 = sum(") && !strstr(text, "y: f32"), "an output of f32:\n%s", text);
}

/* The number of rows decides nothing: no sum over them is written out. */
static void check_down(void) {
    const char *text = after_slots(epi_module_find(module, "down"), "T=6,K=2,E=4,D=8,F=12", EPI_F32);
    check(strstr(text, "e_rank") && !strstr(text, ", 0, T)"), "a sum over rows:\n%s", text);
}

static void check_texts(void) {
    static const char small[] = "B=2,T=6,K=2,E=4,D=8,F=12,G=4,P=12,R=4,N=9";
    for (int i = 0; i < epi_module_count(module); i++)
        check_again(epi_module_program(module, i), small);
    check_words("moe", small, 1, 3, 0);
    check_words("stacked", small, 2, 4, 0);
    check_words("outer", small, 1, 0, 1);
    check_words("repeated", small, 1, 0, 1);
    check_words("others", small, 0, 0, 0);
    check_words("moe", "T=6,K=2,E=3000000,D=8,F=12", 0, 0, 0); /* more than tiles have numbers for */
}

int main(int argc, char **argv) {
    size_t length;
    char *text = read_whole(argc > 1 ? argv[1] : "tests/experts.epi", &length);
    epi_error err = {0};
    if (check(text && epi_context_open(&ctx, NULL) == EPI_OK &&
                  epi_module_parse(ctx, text, length, "experts", &module, &err) == EPI_OK,
              "the texts parse: %s", err.message)) {
        check_texts();
        check_wide();
        check_down();
        check_saved();
        check_results();
        check_outside(4);
        check_outside(-1);
        for (int rows = 7; rows <= 160; rows += 51) {
            check_bits("moe", rows, EPI_F32);
            check_bits("moe", rows, EPI_BF16);
        }
        epi_module_free(module);
    }
    epi_context_close(ctx);
    free(text);
    return finish();
}
