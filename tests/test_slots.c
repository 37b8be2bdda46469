/* test_slots.c: products whose weight is chosen by the row, in slot order. Whatever rows choose, results are
 * those of the program as it is written; a row's bits do not depend on the others; a program in slot order
 * stays as it is; and what is no such product is left alone. Laws of such programs: tests/experts.epi. */
#include "ran.h"

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
        put_at(t, i, (double)choose(how, i, of_row, t->shape.index_below));
}

/* ---- results ---- */

static route chosen;  /* of the next run */
static bool infinite; /* the third row of its first input is */

static void fill_routed(problem *p, uint64_t seed) {
    problem_fill(p, seed);
    for (int i = 0; i < p->inputs; i++)
        if (p->t[i].shape.index_below > 0)
            fill_routes(&p->t[i], chosen);
    int64_t row = infinite ? p->t[0].shape.count / p->t[0].shape.sizes[0] : 0;
    for (int64_t i = 2 * row; i < 3 * row; i++)
        put_at(&p->t[0], i, INFINITY);
}

static way routed(epi_dtype type, route how, bool with_infinite) {
    chosen = how;
    infinite = with_infinite;
    return (way){.type = type, .fill = fill_routed};
}

static void check_routed(const epi_program *p, const char *dims, epi_dtype type, route how) {
    char what[200];
    way in = routed(type, how, false);
    ran got, want = {0}, naive = {0};
    snprintf(what, sizeof what, "%s %s %s, %s", epi_program_name(p), dims, epi_dtype_name(type),
             route_names[how]);
    if (run_as(&got, p, dims, in) && yardsticks(&want, &naive, p, dims, in))
        hold_against(&got, &want, &naive, type, what);
    DISCARD(&got, &want, &naive);
}

/* An infinite row reaches no element that it does not reach in the program as it is written. */
static void check_infinite(const epi_program *p, const char *dims, route how) {
    way in = routed(EPI_F32, how, true);
    ran got, want = {0};
    bool ok = run_as(&got, p, dims, in);
    in.path = EPI_PATH_REFERENCE;
    ok = ok && run_as(&want, p, dims, in);
    for (int i = got.p.inputs; i < got.p.count && ok; i++) {
        int64_t spread = 0, finite = 0;
        for (int64_t e = 0; e < got.p.t[i].shape.count; e++) {
            bool is = isfinite(at(&want.p.t[i], e));
            finite += is;
            spread += is && !isfinite(at(&got.p.t[i], e));
        }
        check(!spread,
              "%s, %s: an infinite row is in %lld of %lld elements of result %d that it does not reach",
              epi_program_name(p), route_names[how], (long long)spread, (long long)finite, i);
    }
    DISCARD(&got, &want);
}

/* The program and its gradients. */
static void check_all(const char *name, const char *dims, epi_dtype type, route how) {
    const epi_program *p = epi_module_find(module, name);
    epi_module *grad = gradient_of(p, NULL);
    const epi_program *both[] = {p, epi_module_program(grad, 0)};
    bool rows = !strstr(dims, "T=0") && !strstr(dims, "T=1,") && strcmp(name, "beside");
    for (int i = 0; i < 2 && grad; i++) {
        check_routed(both[i], dims, type, how);
        if (rows)
            check_infinite(both[i], dims, how);
    }
    epi_module_free(grad);
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
    ran r;
    epi_error err = {0};
    if (made(&r, epi_module_find(module, "moe"), "T=6,K=2,E=4,D=8,F=12", (way){0})) {
        put_at(&r.p.t[4], 7, value);
        refused_as(run_with(r.k, r.p.args, r.p.count, &err), EPI_ERR_INDEX, &err, "e[3,1]");
    }
    discard(&r);
}

/* ---- bits ---- */

/* A row's result is the same whoever else there is, and whatever they choose. */
static void check_bits(const char *name, int rows, epi_dtype type) {
    const epi_program *p = epi_module_find(module, name);
    char dims[80];
    ran all, few = {0};
    snprintf(dims, sizeof dims, "T=%d,K=2,E=5,D=40,F=24", rows);
    bool ok = run_as(&all, p, dims, routed(type, ZIPF, false)) &&
              made(&few, p, "T=3,K=2,E=5,D=40,F=24", routed(type, EVEN, false));
    for (int from = 0; from + 3 <= rows && ok; from += rows / 3) {
        const tensor *out = &few.p.t[few.p.inputs];
        for (int i = 0; i < few.p.inputs; i++) {
            tensor *to = &few.p.t[i];
            bool whole = to->shape.count == all.p.t[i].shape.count;
            size_t bytes = epi_dtype_size(to->shape.type) * (size_t)to->shape.count;
            memcpy(to->data, all.p.t[i].data + (whole ? 0 : bytes / 3 * (size_t)from), bytes);
        }
        size_t row = epi_dtype_size(out->shape.type) * (size_t)out->shape.count / 3;
        check(run_again(&few) && !memcmp(out->data, all.p.t[all.p.inputs].data + row * (size_t)from, 3 * row),
              "%s %s: rows %d to %d of %d have other bits by themselves", name, epi_dtype_name(type), from,
              from + 2, rows);
    }
    DISCARD(&all, &few);
}

/* ---- texts ---- */

/* The program after the pass, in a buffer that lasts for three calls. */
static const char *after_slots(const epi_program *p, const char *dims, epi_dtype type) {
    static char texts[3][1 << 14];
    static int at;
    char *text = texts[at = (at + 1) % 3];
    epi_kernel *k = kernel_of(p, dims, (way){.type = type});
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
        epi_module *m = parsed(ctx, text[i - 1]);
        if (!m)
            return;
        text[i] = after_slots(epi_module_program(m, 0), dims, EPI_F32);
        epi_module_free(m);
    }
    check(!strcmp(text[1], text[2]), "in slot order, and once more:\n%s\n%s", text[1], text[2]);
}

/* Forward and backward have the order in common; what is saved is two products, as such are, and the slots' gates. */
static void check_saved(void) {
    static char text[1 << 14];
    epi_module *m = derived(epi_module_find(module, "moe"), "x wg wu wd gate", epi_program_grad_saved);
    if (!m)
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
    /* an output of f32 is made of what is stored as such; the number of rows decides nothing: no sum over them is
     * written out */
    const char *wide = after_slots(epi_module_find(module, "hidden"), "T=6,K=2,E=4,D=8,F=12", EPI_BF16),
               *down = after_slots(epi_module_find(module, "down"), "T=6,K=2,E=4,D=8,F=12", EPI_F32);
    check(strstr(wide, "h_2: f32 = sum(") && !strstr(wide, "y: f32"), "an output of f32:\n%s", wide);
    check(strstr(down, "e_rank") && !strstr(down, ", 0, T)"), "a sum over rows:\n%s", down);
}

int main(int argc, char **argv) {
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    module = parsed_file(ctx, argc > 1 ? argv[1] : "tests/experts.epi");
    if (module) {
        check_texts();
        check_saved();
        check_results();
        check_outside(4);
        check_outside(-1);
        for (int rows = 7; rows <= 160; rows += 51) {
            check_bits("moe", rows, EPI_F32);
            check_bits("moe", rows, EPI_BF16);
        }
    }
    epi_module_free(module);
    epi_context_close(ctx);
    return finish();
}
