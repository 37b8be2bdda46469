/* test_shifts.c: shift(x, T, c) by its definition, element by element and bit by bit: along rows and inside them, to
 * both sides and further than the axis is long, in every layout and type, fused and one operation at a time. */
#include "along.h"

static epi_context *ctx;

/* "f(x[B,T,C], z[B,T,C]) -> (…)": a value as it is shifted, and a sum of two, each of which has one rounding. */
static void write_text(char *text, size_t size, const shape *s, int by, int other) {
    char axes[8];
    write_axes(axes, s->axes, true);
    snprintf(text, size,
             "f(x[%s]) -> (y[%s], z[%s], w[%s]) {\n    y = shift(x, T, %d)\n    z = x - shift(x, T, %d)\n"
             "    w = shift(x, T, %d)*4 + shift(x, T, %d)\n}\n",
             axes, axes, axes, axes, by, by, by, other);
}

/* The element of x that is so many places before element i along T; 0 where there is none. */
static double element_before(const tensor *x, const shape *s, int64_t i, int64_t by) {
    int64_t step = step_of(s), place = i / step % s->t - by;
    return place < 0 || place >= s->t ? 0 : at(x, i - by * step);
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
        double own = at(x, i), before = element_before(x, s, i, by),
               two = 4 * before + element_before(x, s, i, other);
        const double want[] = {before, rounded(type, (double)(float)(own - before)),
                               rounded(type, (double)(float)two)};
        for (int o = 0; o < 3; o++)
            wrong += at(&p->t[1 + o], i) != want[o];
    }
    return wrong;
}

static void test_one(const shape *s, int by, int other, way how) {
    char text[512], dims[80];
    ran r;
    write_sizes(dims, s);
    write_text(text, sizeof text, s, by, other);
    if (made_of(&r, ctx, text, dims, how) && run_again(&r)) {
        int64_t wrong = count_wrong(&r.p, s, by, other, how.type);
        bool intact = true;
        for (int i = 0; i < r.p.count; i++)
            intact &= tensor_intact(&r.p.t[i]);
        check(wrong == 0 && intact, "[%s] of %s by %d and %d, %s, path %d, layout %d: %ld elements differ",
              s->axes, dims, by, other, epi_dtype_name(how.type), (int)how.path, (int)how.layout,
              (long)wrong);
    }
    discard(&r);
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
                test_one(&shapes[i], by[k][0], by[k][1],
                         (way){.type = types[turn % 3],
                               .path = path ? EPI_PATH_UNFUSED : EPI_PATH_FUSED,
                               .layout = (layout)(turn / 3 % LAYOUT_COUNT)});
}

/* ---- laws ---- */

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
                ran side[2] = {0};
                bool ok = true;
                for (int n = 0; n < 2; n++) {
                    char text[600];
                    snprintf(text, sizeof text, "%s%s\n}\n", head, pairs[i][n]);
                    ok &= made_of(&side[n], ctx, text, dims[k], (way){.type = type ? EPI_BF16 : EPI_F32}) &&
                          run_again(&side[n]);
                }
                check(ok && same_outputs(&side[0], &side[1]), "%s and %s have the same bits, %s", pairs[i][0],
                      pairs[i][1], dims[k]);
                discard(&side[0]);
                discard(&side[1]);
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
        char dims[40], step_dims[40];
        ran all, one = {0};
        size_t row = (size_t)columns[i] * epi_dtype_size(type);
        snprintf(dims, sizeof dims, "B=%d,T=%d,C=%ld", BATCH, STEPS, (long)columns[i]);
        snprintf(step_dims, sizeof step_dims, "B=%d,C=%ld", BATCH, (long)columns[i]);
        if (made_of(&all, ctx, whole, dims, (way){.type = type}) && run_again(&all) &&
            made_of(&one, ctx, step, step_dims, (way){.type = type})) {
            tensor *in = one.p.t, *state = &in[3];
            bool equal = true;
            for (int t = 1; t < 3; t++)
                memcpy(in[t].data, all.p.t[t].data,
                       (size_t)in[t].shape.count * epi_dtype_size(in[t].shape.type));
            memset(state->data, 0, 3 * BATCH * row);
            for (int t = 0; t < STEPS; t++) {
                for (int b = 0; b < BATCH; b++)
                    memcpy(in[0].data + (size_t)b * row, all.p.t[0].data + (size_t)(b * STEPS + t) * row,
                           row);
                equal &= run_again(&one);
                for (int b = 0; b < BATCH; b++)
                    equal &= !memcmp(in[4].data + (size_t)b * row,
                                     all.p.t[3].data + (size_t)(b * STEPS + t) * row, row);
                memcpy(state->data, in[5].data, 3 * BATCH * row);
            }
            check(equal, "token by token a convolution of %ld channels has the same bits", (long)columns[i]);
        }
        discard(&all);
        discard(&one);
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
    const double tensor = 2.0 * 8 * 4096 * 2048;
    epi_module *module = parsed_file(ctx, file);
    for (size_t i = 0; module && i < sizeof plans / sizeof *plans; i++)
        for (int device = 0; device >= -90; device -= 90) {
            epi_kernel_info about = {0};
            epi_kernel *k = kernel_of(epi_module_find(module, plans[i].program), "B=8,T=4096,C=2048",
                                      (way){.type = EPI_BF16, .device = device});
            epi_kernel_get_info(k, &about);
            check(k && about.bytes_fused < plans[i].long_tensors * tensor + 0.1 * tensor &&
                      (!device || about.launches <= plans[i].launches),
                  "%s on %d: %.0f MB in %d launches", plans[i].program, device, about.bytes_fused / 1e6,
                  about.launches);
            epi_kernel_free(k);
        }
    epi_module_free(module);
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
