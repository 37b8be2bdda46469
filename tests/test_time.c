/* test_time.c: recurrences by their definition: both ways, in every layout, type and order of axes, from a state and to
 * one; and their laws. A sequence cut in two is the whole one, and so is one token after the other, within the bounds of
 * docs/time.md; what comes later, other recurrences and threads change no bit; an infinity stays where it is; 2^20 steps
 * do not drift. Laws of further programs: tests/scans.epi, tests/time.epi. */
#include "along.h"

static epi_context *ctx;

/* ---- a recurrence and what it should be ---- */

typedef struct run {
    shape s;
    bool back;
    way how;
    ran r; /* a, x, h, then y and the last state */
} run;

static bool prepare(run *r) {
    char text[512], all[16], rest[16], one[20] = "", dims[80];
    write_axes(all, r->s.axes, true);
    write_axes(rest, r->s.axes, false);
    write_sizes(dims, &r->s);
    if (*rest)
        snprintf(one, sizeof one, "[%s]", rest);
    snprintf(text, sizeof text,
             "f(a[%s], x[%s], h: f32%s) -> (y[%s], s: f32%s) { y = %s(a, x, T, h)  s = gather(y, %s, T) }",
             all, all, one, all, one, r->back ? "scan_back" : "scan", r->back ? "0" : "size(T) - 1");
    r->how.seed = 11;
    return made_of(&r->r, ctx, text, dims, r->how);
}

/* Of a recurrence and a step the element, in the written order. */
static int64_t element(const shape *s, int64_t recurrence, int64_t t) {
    int64_t step = step_of(s);
    return (recurrence / step * s->t + t) * step + recurrence % step;
}

static double get(const run *r, int tensor_number, int64_t i) {
    return at(&r->r.p.t[tensor_number], i);
}

static void put(run *r, int tensor_number, int64_t i, double value) {
    put_at(&r->r.p.t[tensor_number], i, value);
}

enum { A, X, H, Y, S };

/* How far an element may be off: a rounding to its type, and what docs/time.md says of the state. What is made
 * before it, a*h of the first step and its sum, is rounded, too: `begun` is by how much that is off, and what the factors make of it. */
static double bound_of(epi_dtype type, double want, double steps, double of_sizes, double begun) {
    double least = type == EPI_F16 ? 0x1p-25 : 0x1p-140;
    return 1.01 * type_unit(type) * fabs(want) + steps * 0x1p-51 * of_sizes + begun + least;
}

static int64_t count_wrong(const run *r) {
    int64_t wrong = 0;
    epi_dtype between = r->how.path == EPI_PATH_UNFUSED ? r->how.type : EPI_F32; /* which stores each value */
    for (int64_t i = 0; i < r->r.p.t[S].shape.count && r->s.t; i++) {
        double h = get(r, H, i), sizes = fabs(h), begun = 0;
        for (int64_t k = 0; k < r->s.t; k++) {
            int64_t place = element(&r->s, i, r->back ? r->s.t - 1 - k : k);
            double a = get(r, A, place), x = get(r, X, place);
            begun = k ? fabs(a) * begun : 2 * type_unit(between) * (fabs(a * h) + fabs(x));
            h = a * h + x;
            sizes = fabs(a) * sizes + fabs(x);
            double bound = bound_of(r->how.type, h, (double)k + 1, sizes, begun);
            wrong += !(fabs(get(r, Y, place) - h) <= bound);
        }
        wrong += !(fabs(get(r, S, i) - h) <= bound_of(between, h, (double)r->s.t, sizes, begun));
    }
    return wrong;
}

static void test_one(run r) {
    if (prepare(&r)) {
        for (int64_t i = 0; i < r.r.p.t[A].shape.count; i += 7) /* none, and more than one */
            put(&r, A, i, i % 2 ? 0 : 1.125);
        bool ok = run_again(&r.r), intact = true;
        for (int i = 0; i < r.r.p.count; i++)
            intact &= tensor_intact(&r.r.p.t[i]);
        int64_t wrong = ok ? count_wrong(&r) : 0;
        check(ok && intact && !wrong,
              "[%s] of %ld, %ld, %ld, %s, %s, path %d, layout %d: %ld elements are off", r.s.axes,
              (long)r.s.b, (long)r.s.t, (long)r.s.d, r.back ? "back" : "forth", epi_dtype_name(r.how.type),
              (int)r.how.path, (int)r.how.layout, (long)wrong);
    }
    discard(&r.r);
}

static void test_elements(void) {
    static const shape shapes[] = {
        {"BTD", 2, 7, 5},   {"BDT", 2, 7, 5},   {"TBD", 2, 7, 5},   {"BTD", 3, 20, 600}, {"BDT", 3, 1300, 4},
        {"TD", 1, 5, 1100}, {"DT", 1, 5, 1100}, {"T", 1, 700, 1},   {"T", 1, 1, 1},      {"BTD", 2, 1, 40},
        {"BDT", 2, 1, 40},  {"BTD", 2, 1, 1},   {"BT", 3, 3000, 1}, {"TB", 70, 20, 1},   {"BTD", 5, 130, 3},
    };
    static const epi_dtype types[] = {EPI_F32, EPI_BF16, EPI_F16};
    int turn = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int k = 0; k < 6; k++, turn++)
            test_one((run){.s = shapes[i],
                           .back = k & 1,
                           .how = {.type = types[turn % 3],
                                   .path = k / 2 == 1 ? EPI_PATH_UNFUSED : EPI_PATH_FUSED,
                                   .layout = (layout)(turn / 3 % LAYOUT_COUNT)}});
}

/* ---- laws ---- */

/* Copies recurrences and steps of one problem's inputs to another's; and the states that they begin with. */
static void copy_steps(run *to, const run *from, int64_t first, int64_t begins) {
    for (int64_t i = 0; i < to->r.p.t[S].shape.count; i++)
        for (int64_t t = 0; t < to->s.t; t++)
            for (int k = A; k <= X; k++)
                put(to, k, element(&to->s, i, t), get(from, k, element(&from->s, first + i, begins + t)));
}

static void copy_inputs(run *to, const run *from, int64_t first, int64_t begins) {
    copy_steps(to, from, first, begins);
    for (int64_t i = 0; i < to->r.p.t[S].shape.count; i++)
        put(to, H, i, get(from, H, first + i));
}

/* How many of its results differ from those of the other, of the same recurrences and steps. */
static int64_t count_different(const run *r, const run *other, int64_t first, int64_t begins) {
    int64_t different = 0;
    for (int64_t i = 0; i < r->r.p.t[S].shape.count; i++)
        for (int64_t t = 0; t < r->s.t; t++)
            different +=
                get(r, Y, element(&r->s, i, t)) != get(other, Y, element(&other->s, first + i, begins + t));
    return different;
}

/* One of the batch by itself, with another number of threads, has the same bits; and so has the beginning of it. */
static void test_bits(const char *axes, bool back) {
    run whole = {.s = {axes, 3, 41, 20}, .back = back, .how = {.threads = 2}},
        one = {.s = {axes, 1, 41, 20}, .back = back, .how = {.threads = 1}},
        few = {.s = {axes, 3, 18, 20}, .back = back};
    if (prepare(&whole) && prepare(&one) && prepare(&few)) {
        copy_inputs(&one, &whole, 20, 0);
        copy_inputs(&few, &whole, 0, back ? 41 - 18 : 0);
        bool ok = run_again(&whole.r) && run_again(&one.r) && run_again(&few.r);
        check(ok && !count_different(&one, &whole, 20, 0), "[%s]: one of a batch has its bits", axes);
        check(ok && !count_different(&few, &whole, 0, back ? 41 - 18 : 0), "[%s]: a beginning has its bits",
              axes);
    }
    DISCARD(&whole.r, &one.r, &few.r);
}

/* The second half from the last state of the first; and one token after the other. Sums of sizes bound what is lost:
 * the state is rounded to f32 where it is handed on. */
static void test_pieces(const char *axes, int64_t length) {
    run whole = {.s = {axes, 2, 48, 10}}, piece = {.s = {axes, 2, length, 10}};
    if (prepare(&whole) && prepare(&piece)) {
        bool ok = run_again(&whole.r);
        double worst = 0;
        copy_inputs(&piece, &whole, 0, 0);
        for (int64_t begins = 0; begins < 48 && ok; begins += length) {
            copy_steps(&piece, &whole, 0, begins);
            ok = run_again(&piece.r);
            for (int64_t i = 0; i < piece.r.p.t[S].shape.count; i++) {
                double sizes = fabs(get(&whole, H, i));
                for (int64_t t = 0; t < begins + length; t++) {
                    int64_t place = element(&whole.s, i, t);
                    sizes = fabs(get(&whole, A, place)) * sizes + fabs(get(&whole, X, place));
                    double off =
                        t < begins
                            ? 0
                            : fabs(get(&piece, Y, element(&piece.s, i, t - begins)) - get(&whole, Y, place));
                    worst = fmax(worst, off / (((double)(t / length) + 2) * 0x1p-23 * sizes));
                }
                put(&piece, H, i, get(&piece, S, i));
            }
        }
        check(ok && worst <= 1, "[%s] in pieces of %ld: %g of the bound", axes, (long)length, worst);
    }
    DISCARD(&whole.r, &piece.r);
}

/* An infinity is in its own recurrence from its step on, and nowhere else; the first factor is not looked at. */
static void test_infinite(const char *axes) {
    run r = {.s = {axes, 2, 9, 6}};
    if (prepare(&r)) {
        put(&r, X, element(&r.s, 4, 5), INFINITY);
        put(&r, A, element(&r.s, 7, 6), NAN);
        bool ok = run_again(&r.r);
        int64_t wrong = 0;
        for (int64_t i = 0; i < r.r.p.t[S].shape.count; i++)
            for (int64_t t = 0; t < 9; t++) {
                bool finite = !((i == 4 && t >= 5) || (i == 7 && t >= 6));
                wrong += isfinite(get(&r, Y, element(&r.s, i, t))) != finite;
            }
        check(ok && !wrong, "[%s]: an infinity stays in its recurrence: %ld elements do not", axes,
              (long)wrong);
    }
    discard(&r.r);
}

/* Stored over what it is made of it has the same bits. */
static void test_in_place(const char *axes, bool back, int over) {
    run apart = {.s = {axes, 3, 50, 30}, .back = back}, same = apart;
    if (prepare(&apart) && prepare(&same) &&
        check(epi_kernel_in_place(same.r.k, Y, over), "[%s]: y may lie over its operand", axes)) {
        same.r.p.args[Y] = same.r.p.args[over];
        bool ok = run_again(&apart.r) && run_again(&same.r);
        check(ok && same_bits(&same.r.p.t[over], &apart.r.p.t[Y]) &&
                  same_bits(&same.r.p.t[S], &apart.r.p.t[S]),
              "[%s], %s: over operand %d it has the same bits", axes, back ? "back" : "forth", over);
    }
    DISCARD(&apart.r, &same.r);
}

/* ---- programs of their own ---- */

/* Without a state a is not looked at in the first step; a mask keeps later infinities out. */
static void test_first(const char *text, bool sums) {
    ran r;
    if (made_of(&r, ctx, text, "T=5,D=3", (way){0})) {
        float *a = (float *)(void *)r.p.t[0].data, *x = (float *)(void *)r.p.t[1].data;
        const float *y = (const float *)(const void *)r.p.t[2].data;
        for (int i = 0; i < 15; i++) {
            a[i] = i < 3 ? (i ? (float)NAN : INFINITY) : 1;
            x[i] = i == 10 ? INFINITY : 1;
        }
        bool ok = run_again(&r);
        for (int i = 0; i < 15; i++)
            ok &= i % 3 == 1 && i >= 10 ? isinf(y[i]) : y[i] == (float)(i / 3 + 1);
        check(ok, "%s: %s", sums ? "a mask" : "the first factor", text);
    }
    discard(&r);
}

/* 2^20 times 0.1, and a decay that is nearly 1: the bound of docs/time.md. */
static void test_long(const char *text, int64_t width) {
    enum { STEPS = 1 << 20 };
    ran r;
    if (made_of(&r, ctx, text, width > 1 ? "T=1048576,D=2" : "T=1048576", (way){0})) {
        for (int k = 0; k < 2; k++)
            for (int64_t i = 0; i < r.p.t[k].shape.count; i++)
                ((float *)(void *)r.p.t[k].data)[i] = k ? 0.1f : 0.999999f;
        const float *sum = (const float *)(const void *)r.p.t[2].data,
                    *mean = (const float *)(const void *)r.p.t[3].data;
        bool ok = run_again(&r);
        long double s = 0, h = 0;
        int64_t wrong = 0;
        for (int64_t t = 0; t < STEPS && ok; t++) {
            s += (long double)0.1f;
            h = (long double)0.999999f * h + (long double)0.1f;
            for (int64_t d = 0; d < width; d++) {
                double lost = (double)(t + 1) * 0x1p-51;
                wrong +=
                    fabs((double)((long double)sum[t * width + d] - s)) > (0x1.02p-24 + lost) * (double)s;
                wrong +=
                    fabs((double)((long double)mean[t * width + d] - h)) > (0x1.02p-24 + lost) * (double)h;
            }
        }
        check(ok && !wrong, "2^20 steps, %ld side by side: %ld elements drift", (long)width, (long)wrong);
    }
    discard(&r);
}

/* How many kernels it takes. */
static void test_plans(void) {
    static const struct {
        const char *text;
        int parts;
    } cases[] = {
        {"f(x[B,T,D], a[D], h[B,D]) -> (y[B,T,D], s[B,D]) { y = silu(scan(a, (1 - a)*x, T, h))\n"
         "s = gather(scan(a, (1 - a)*x, T, h), size(T) - 1, T) }",
         1},
        {"f(x[B,T,D]) -> s[B,D] { s = gather(scan_back(0.5, x, T), 0, T) }", 1},
        {"f(x[B,T,D], g[D]) -> y[B,T,D] { h = cumsum(x, T)\ny = h*rsqrt(mean(h*h, D) + 1e-6)*g }", 1},
        {"f(x[B,D,T]) -> y[B,D,T] { u = rename(x, T, U)\n"
         "y = sum(where(index(U) <= index(T), u*u, 0), U)*x }",
         1},
        {"f(x[B,T,D]) -> y[B,T,D] { y = cumsum(x, T) + scan_back(1, x, T) }", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        epi_kernel *k = text_kernel(ctx, cases[i].text, "B=2,T=40,D=24", (way){0});
        check(info_of(k).parts == cases[i].parts, "%d parts, not %d: %s", info_of(k).parts, cases[i].parts,
              cases[i].text);
        epi_kernel_free(k);
    }
}

int main(void) {
    static const char *const orders[] = {"BTD", "BDT", "TBD"};
    epi_error err;
    if (!check(epi_context_open(&ctx, &err) == EPI_OK, "context: %s", err.message))
        return finish();
    test_elements();
    for (int i = 0; i < 2; i++) {
        test_bits(orders[i], false);
        test_bits(orders[i], true);
    }
    for (int i = 0; i < 3; i++) {
        test_pieces(orders[i], 24);
        test_pieces(orders[i], 1);
        test_infinite(orders[i]);
        test_in_place(orders[i], i % 2, X);
        test_in_place(orders[i], !(i % 2), A);
    }
    test_first("f(a[T,D], x[T,D]) -> y[T,D] { y = scan(a, x, T) }", false);
    test_first("f(a[T,D], x[T,D]) -> y[T,D] { u = rename(x, T, U)\ny = sum(where(index(U) <= index(T), u, "
               "0), U) + where(a == 2, 1, 0) }",
               true);
    test_long("f(a[T], x[T]) -> (y[T], z[T]) { y = cumsum(x, T)\nz = scan(a, x, T) }", 1);
    test_long("f(a[T,D], x[T,D]) -> (y[T,D], z[T,D]) { y = cumsum(x, T)\nz = scan(a, x, T) }", 2);
    test_plans();
    epi_context_close(ctx);
    return finish();
}
