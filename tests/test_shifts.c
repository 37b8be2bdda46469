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

int main(void) {
    epi_error err;
    if (!check(epi_context_open(&ctx, &err) == EPI_OK, "context: %s", err.message))
        return finish();
    test_elements();
    epi_context_close(ctx);
    return finish();
}
