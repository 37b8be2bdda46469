/* test_shifts.c: shift(x, T, c) by its definition, element by element and bit by bit: along rows and inside them, to
 * both sides and further than the axis is long, in every layout and type, fused and one operation at a time. */
#include "harness.h"

static epi_context *ctx;

typedef struct shape {
    const char *axes; /* T is the one that is shifted along */
    int64_t b, t, c;
} shape;

static int64_t size_of(const shape *s, char axis) {
    return axis == 'B' ? s->b : axis == 'T' ? s->t : s->c;
}

/* "f(x[B,T,C], z[B,T,C]) -> (…)": a value as it is shifted, and a sum of two, each of which has one rounding. */
static void write_text(char *text, size_t size, const shape *s, int by, int other) {
    char axes[8];
    int n = 0;
    for (const char *a = s->axes; *a; a++) {
        if (n)
            axes[n++] = ',';
        axes[n++] = *a;
    }
    axes[n] = 0;
    snprintf(text, size,
             "f(x[%s]) -> (y[%s], z[%s], w[%s]) {\n    y = shift(x, T, %d)\n    z = x - shift(x, T, %d)\n"
             "    w = shift(x, T, %d)*4 + shift(x, T, %d)\n}\n",
             axes, axes, axes, axes, by, by, by, other);
}

/* The element of x that is so many places before element i along T; 0 where there is none. */
static double element_before(const tensor *x, const shape *s, int64_t i, int64_t by) {
    int64_t step = 1, at = (int64_t)(strchr(s->axes, 'T') - s->axes);
    for (int a = (int)at + 1; s->axes[a]; a++)
        step *= size_of(s, s->axes[a]);
    int64_t place = i / step % s->t - by;
    return place < 0 || place >= s->t ? 0 : get_element(x->data, x->shape.type, tensor_at(x, i - by * step));
}

static double rounded(epi_dtype type, double value) {
    unsigned char element[8];
    put_element(element, type, 0, value);
    return get_element(element, type, 0);
}

static int64_t count_wrong(const problem *p, const shape *s, int by, int other, epi_dtype type) {
    const tensor *x = &p->t[0];
    int64_t wrong = 0;
    for (int64_t i = 0; i < x->shape.count; i++) {
        double own = get_element(x->data, type, tensor_at(x, i)), before = element_before(x, s, i, by),
               two = 4 * before + element_before(x, s, i, other);
        const double want[] = {before, rounded(type, (double)(float)(own - before)),
                               rounded(type, (double)(float)two)};
        for (int o = 0; o < 3; o++)
            wrong += get_element(p->t[1 + o].data, type, tensor_at(&p->t[1 + o], i)) != want[o];
    }
    return wrong;
}

static void test_one(const shape *s, int by, int other, epi_dtype type, epi_path path, layout how) {
    char text[512];
    epi_dim_binding dims[3];
    int count = 0;
    epi_error err = {0};
    epi_module *module = NULL;
    epi_kernel *kernel = NULL;
    problem p = {0};
    static const char *const names[] = {"B", "T", "C"};
    for (int i = 0; i < 3; i++)
        if (strchr(s->axes, names[i][0]))
            dims[count++] = (epi_dim_binding){names[i], size_of(s, names[i][0])};
    write_text(text, sizeof text, s, by, other);
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = count, .type = type, .path = path, .threads = 2);
    bool ok = epi_module_parse(ctx, text, strlen(text), "t.epi", &module, &err) == EPI_OK &&
              epi_kernel_compile(epi_module_program(module, 0), &o, &kernel, &err) == EPI_OK &&
              problem_make(&p, epi_module_program(module, 0), kernel, how);
    if (check(ok, "%s compiles: %s", text, err.message)) {
        problem_fill(&p, 7);
        ok = problem_run(kernel, &p);
        int64_t wrong = ok ? count_wrong(&p, s, by, other, type) : 0;
        bool intact = true;
        for (int i = 0; i < p.count; i++)
            intact &= tensor_intact(&p.t[i]);
        check(ok && wrong == 0 && intact,
              "[%s] of %ld, %ld, %ld by %d and %d, %s, path %d, layout %d: %ld elements differ", s->axes,
              (long)s->b, (long)s->t, (long)s->c, by, other, epi_dtype_name(type), (int)path, (int)how,
              (long)wrong);
    }
    problem_free(&p);
    epi_kernel_free(kernel);
    epi_module_free(module);
}

static void test_elements(void) {
    static const shape shapes[] = {
        {"BTC", 2, 7, 5},   {"BCT", 2, 7, 5},   {"TBC", 2, 7, 5},   {"BTC", 3, 20, 600}, {"BCT", 3, 1300, 4},
        {"TC", 1, 5, 1100}, {"CT", 1, 5, 1100}, {"T", 1, 700, 1},   {"T", 1, 1, 1},      {"BTC", 2, 1, 40},
        {"BCT", 2, 1, 40},  {"BTC", 2, 0, 3},   {"BCT", 2, 0, 3},   {"BTC", 0, 4, 3},    {"BT", 3, 5000, 1},
        {"CT", 1, 9000, 2}, {"TC", 1, 2, 9000}, {"TB", 700, 20, 1},
    };
    static const int by[][2] = {{1, 2}, {-1, 3}, {3, -3}, {-7, 1}, {600, 1000000}};
    static const epi_dtype types[] = {EPI_F32, EPI_BF16, EPI_F16};
    int turn = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int k = 0; k < 5; k++)
            for (int path = 0; path < 2; path++, turn++)
                test_one(&shapes[i], by[k][0], by[k][1], types[turn % 3],
                         path ? EPI_PATH_UNFUSED : EPI_PATH_FUSED, (layout)(turn / 3 % LAYOUT_COUNT));
}

/* ---- laws ---- */

/* A program with sizes, and its tensors. */
typedef struct given {
    epi_module *module;
    epi_kernel *kernel;
    problem p;
} given;

static bool prepare(given *g, const char *text, const char *dims, epi_dtype type) {
    epi_dim_binding bound[16];
    char names[16][16];
    epi_error err = {0};
    *g = (given){0};
    epi_options o =
        EPI_OPTIONS(.dims = bound, .dim_count = parse_dims(dims, bound, names), .type = type, .threads = 2);
    bool ok = epi_module_parse(ctx, text, strlen(text), "t.epi", &g->module, &err) == EPI_OK &&
              epi_kernel_compile(epi_module_program(g->module, 0), &o, &g->kernel, &err) == EPI_OK &&
              problem_make(&g->p, epi_module_program(g->module, 0), g->kernel, LAYOUT_PLAIN);
    if (check(ok, "%s compiles: %s", text, err.message))
        problem_fill(&g->p, 3);
    return ok;
}

static void drop(given *g) {
    problem_free(&g->p);
    epi_kernel_free(g->kernel);
    epi_module_free(g->module);
}

static bool same(const tensor *a, const tensor *b) {
    return a->shape.count == b->shape.count &&
           !memcmp(a->data, b->data, (size_t)a->shape.count * epi_dtype_size(a->shape.type));
}

/* Two programs of the same inputs have the same bits. */
static void test_pairs(void) {
    static const char *const head =
        "f(x[B,T,C], w[C,K=4], b[C]) -> y[B,T,C] {\n    u = rename(x, T, U)\n    y = ";
    static const char *const pairs[][2] = {
        {"shift(shift(x, T, 3), T, -3)", "where(index(T) < size(T) - 3, x, 0)"},
        {"shift(shift(x, T, -2), T, 2)", "where(index(T) >= 2, x, 0)"},
        {"shift(shift(x, T, 2), T, 1)", "shift(x, T, 3)"},
        {"shift(x, T, 2)*b", "gather(u, index(T) - 2, U)*b"},
        {"shift(x, T, -1)*b",
         "where(index(T) + 1 < size(T), gather(u, min(index(T) + 1, size(T) - 1), U), 0)*b"},
        {"shift(x, T, 2)*b", "where(index(T) - 2 >= 0, gather(u, max(index(T) - 2, 0), U), 0)*b"},
        {"silu(shift(x, T, 3)*gather(w, 0, K) + shift(x, T, 2)*gather(w, 1, K) + shift(x, T, 1)*gather(w, 2, "
         "K) + "
         "x*gather(w, 3, K) + b)",
         "silu(sum(gather(u, index(T) + index(K) - 3, U)*w, K) + b)"},
    };
    static const char *const dims[] = {"B=2,T=9,C=5", "B=3,T=2,C=700", "B=1,T=1,C=40", "B=2,T=40,C=1100"};
    for (int i = 0; i < 7; i++)
        for (int k = 0; k < 4; k++)
            for (int type = 0; type < 2; type++) {
                char text[2][600];
                given g[2] = {{0}};
                bool ok = true;
                for (int side = 0; side < 2; side++) {
                    snprintf(text[side], sizeof text[side], "%s%s\n}\n", head, pairs[i][side]);
                    ok &= prepare(&g[side], text[side], dims[k], type ? EPI_BF16 : EPI_F32) &&
                          problem_run(g[side].kernel, &g[side].p);
                }
                check(ok && same(&g[0].p.t[3], &g[1].p.t[3]), "%s and %s have the same bits, %s", pairs[i][0],
                      pairs[i][1], dims[k]);
                for (int side = 0; side < 2; side++)
                    drop(&g[side]);
            }
}

/* Token by token, with the last rows as a state, a convolution has the bits of the whole one. */
static void test_steps(epi_dtype type) {
    static const char *const whole =
        "f(x[B,T,C], w[K=4,C], b[C]) -> y[B,T,C] {\n"
        "    y = silu(x*w[3] + shift(x, T, 1)*w[2] + shift(x, T, 2)*w[1] + shift(x, T, 3)*w[0] + b)\n}\n";
    static const char *const step =
        "f(x[B,C], w[K=4,C], b[C], s[B,J=3,C]) -> (y[B,C], next[B,J,C]) {\n"
        "    y = silu(x*w[3] + gather(s, 2, J)*w[2] + gather(s, 1, J)*w[1] + gather(s, 0, J)*w[0] + b)\n"
        "    next = update(shift(s, J, -1), x, 2, J)\n}\n";
    enum { BATCH = 2, STEPS = 7 };
    static const int64_t columns[] = {5, 40, 1100};
    for (int i = 0; i < 3; i++) {
        char dims[2][40];
        given all, one;
        size_t row = (size_t)columns[i] * epi_dtype_size(type);
        snprintf(dims[0], sizeof dims[0], "B=%d,T=%d,C=%ld", BATCH, STEPS, (long)columns[i]);
        snprintf(dims[1], sizeof dims[1], "B=%d,C=%ld", BATCH, (long)columns[i]);
        bool ok = prepare(&all, whole, dims[0], type) && prepare(&one, step, dims[1], type) &&
                  problem_run(all.kernel, &all.p),
             equal = true;
        for (int t = 1; t < 3 && ok; t++)
            memcpy(one.p.t[t].data, all.p.t[t].data,
                   (size_t)one.p.t[t].shape.count * epi_dtype_size(one.p.t[t].shape.type));
        if (ok)
            memset(one.p.t[3].data, 0, 3 * BATCH * row);
        for (int t = 0; t < STEPS && ok; t++) {
            for (int b = 0; b < BATCH; b++)
                memcpy(one.p.t[0].data + (size_t)b * row, all.p.t[0].data + (size_t)(b * STEPS + t) * row,
                       row);
            ok = problem_run(one.kernel, &one.p);
            for (int b = 0; b < BATCH; b++)
                equal &= !memcmp(one.p.t[4].data + (size_t)b * row,
                                 all.p.t[3].data + (size_t)(b * STEPS + t) * row, row);
            memcpy(one.p.t[3].data, one.p.t[5].data, 3 * BATCH * row);
        }
        check(ok && equal, "token by token a convolution of %ld channels has the same bits",
              (long)columns[i]);
        drop(&all);
        drop(&one);
    }
}

/* ---- plans ---- */

/* Convolutions read and write every element once, in one kernel; their gradients go over it twice. On a GPU sums over
 * rows take a launch more, what is put together of them one, and sums over batches two. */
static void test_plans(const char *file) {
    static const struct {
        const char *program;
        double long_tensors; /* that are moved */
        int launches;        /* of a GPU */
    } plans[] = {{"convolution", 2, 1},      {"convolution_inside", 2, 1},      {"windowed", 2, 1},
                 {"convolution_back", 5, 4}, {"convolution_inside_back", 5, 5}, {"windowed_inside", 2, 1}};
    static const epi_dim_binding dims[] = {{"B", 8}, {"T", 4096}, {"C", 2048}};
    size_t length = 0;
    char *text = read_whole(file, &length);
    epi_module *module = NULL;
    epi_error err = {0};
    if (!check(text && epi_module_parse(ctx, text, length, file, &module, &err) == EPI_OK, "%s: %s", file,
               err.message))
        return;
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        for (int device = 0; device >= -90; device -= 90) {
            epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = 3, .type = EPI_BF16, .device = device);
            epi_kernel *k = NULL;
            epi_kernel_info about = {0};
            bool ok = epi_kernel_compile(epi_module_find(module, plans[i].program), &o, &k, &err) == EPI_OK;
            if (ok)
                epi_kernel_get_info(k, &about);
            double tensor = 2.0 * 8 * 4096 * 2048;
            check(ok && about.bytes_fused < plans[i].long_tensors * tensor + 0.1 * tensor &&
                      (!device || about.launches <= plans[i].launches),
                  "%s on %d: %.0f MB in %d launches; %s", plans[i].program, device, about.bytes_fused / 1e6,
                  about.launches, err.message);
            epi_kernel_free(k);
        }
    epi_module_free(module);
    free(text);
}

int main(int argc, char **argv) {
    epi_error err;
    if (!check(epi_context_open(&ctx, &err) == EPI_OK, "context: %s", err.message))
        return finish();
    test_elements();
    test_pairs();
    test_steps(EPI_F32);
    test_steps(EPI_BF16);
    test_plans(argc > 1 ? argv[1] : "tests/shifts.epi");
    epi_context_close(ctx);
    return finish();
}
