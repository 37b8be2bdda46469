/* test_choice.c: what is compared with its own extreme. The gradient of a maximum goes to the largest element
 * and argmax finds it, whatever the value is made of, in every type, however it is stored, made again or
 * rewritten: in one program, in forward and backward apart, fused and not, with the algebra free and as
 * written. */
#include "ran.h"

static epi_context *ctx;

static const way ways[] = {{.type = EPI_F32, .path = EPI_PATH_FUSED},
                           {.type = EPI_F32, .path = EPI_PATH_FUSED, .algebra = EPI_ALGEBRA_WRITTEN},
                           {.type = EPI_F32, .path = EPI_PATH_UNFUSED},
                           {.type = EPI_BF16, .path = EPI_PATH_FUSED},
                           {.type = EPI_BF16, .path = EPI_PATH_FUSED, .algebra = EPI_ALGEBRA_WRITTEN},
                           {.type = EPI_BF16, .path = EPI_PATH_UNFUSED},
                           {.type = EPI_F16, .path = EPI_PATH_FUSED},
                           {.type = EPI_BF16, .path = EPI_PATH_NAIVE}};
enum { WAYS = sizeof ways / sizeof *ways };

static const char *name_of(const way *w) {
    static char text[100];
    snprintf(text, sizeof text, "%s, %s, %s", epi_dtype_name(w->type),
             w->path == EPI_PATH_FUSED     ? "fused"
             : w->path == EPI_PATH_UNFUSED ? "unfused"
                                           : "naive",
             w->algebra == EPI_ALGEBRA_FREE ? "free" : "written");
    return text;
}

/* Compiles a program one way; in f64 by the reference where there is none. */
static bool prepare(ran *r, const epi_program *program, const char *dims, const way *w) {
    return made(r, program, dims, w ? *w : (way){.type = EPI_F64, .path = EPI_PATH_REFERENCE, .wide = true});
}

/* Gives a program's inputs what tensors of the same names have. */
static void take(ran *to, const ran *from) {
    for (int t = 0; t < to->p.inputs; t++) {
        const tensor *x = find(from, to->program->graph.tensors[t].name);
        for (int64_t e = 0; x && e < x->shape.count; e++)
            put_element(to->p.t[t].data, to->p.t[t].shape.type, e, at(x, e));
    }
}

/* A text's first program, one way, and its last by the reference, of the same inputs; both are filled. Free it in any
 * case. */
typedef struct two {
    epi_module *m;
    ran r, ref;
    const char *text;
} two;

static bool make_two(two *t, const char *text, const char *dims, const way *w) {
    *t = (two){.m = parsed(ctx, text), .text = text};
    if (!t->m || !prepare(&t->r, epi_module_program(t->m, 0), dims, w) ||
        !prepare(&t->ref, epi_module_program(t->m, epi_module_count(t->m) - 1), dims, NULL))
        return false;
    take(&t->ref, &t->r);
    return true;
}

static bool run_two(two *t) {
    return check(problem_run(t->r.k, &t->r.p) && problem_run(t->ref.k, &t->ref.p), "%s runs", t->text);
}

static void free_two(two *t) {
    discard(&t->r);
    discard(&t->ref);
    epi_module_free(t->m);
}

/* ---- gradients ---- */

/* Programs whose gradient by x has a row for every choice; N is within a tile, or is not. */
static const struct {
    const char *text, *dims[2];
    bool stored; /* what the value is made of is stored where N is long: 16 bits of that may choose otherwise
                  */
} maxima[] = {
    {"f(x[T,D], w[N,D]) -> g: f32[T] { g = max(x @ w, N) }", {"T=60,D=24,N=40", "T=60,D=24,N=300"}, false},
    {"f(x[T,D], w[N,D]) -> g[T] { g = min(x @ w, N) }", {"T=60,D=24,N=40", "T=60,D=24,N=300"}, false},
    {"f(x[T,D], w[N,D]) -> g[T] { g = max(silu(x @ w), N) }", {"T=60,D=24,N=40", "T=60,D=24,N=300"}, false},
    {"f(x[T,D], w[N,D]) -> g: f32[T] { g = max(softmax(x @ w, N), N) }",
     {"T=60,D=24,N=40", "T=60,D=24,N=300"},
     true},
    {"f(x[T,D], w[N,D]) -> y[T,N] { z = x @ w  y = z/max(abs(z), N) }",
     {"T=60,D=24,N=40", "T=60,D=24,N=300"},
     false},
    {"f(x[T,D], w[F,D]) -> (q[T,F], s: f32[T]) { q, s = absmax_quantise(x, w) }",
     {"T=60,D=24,F=40", "T=60,D=24,F=300"},
     false},
    {"f(x[T,D], w[N,D], u[D,N]) -> (m: f32[T], y[T,D]) { z = x @ w  m = max(z, N)  y = z @ u }",
     {"T=60,D=24,N=40", "T=60,D=24,N=300"},
     false},
    {"f(x[T,D], g[D]) -> m: f32[T] { m = max(x*g, D) }", {"T=60,D=50", "T=7,D=1100"}, false},
    {"f(x: f32[T,D]) -> m[T] { m = max(x, D) }", {"T=60,D=50", "T=7,D=1100"}, false},
    {"f(x: f32[T,D], h[D]) -> m[T] { m = max(max(x, h), D) }", {"T=60,D=50", "T=7,D=1100"}, false},
    {"f(x[T,D]) -> m: f32[T] { m = max(silu(x)*exp(x), D) }", {"T=60,D=50", "T=7,D=1100"}, false},
    {"f(x[T,D]) -> m: f32[T] { m = max(softmax(3*x, D), D) }", {"T=60,D=50", "T=7,D=1100"}, false},
    {"f(x[B,T,D], g[D], b[D]) -> m[B,D] { m = max(x*g + b, T) }", {"B=3,T=50,D=20", "B=2,T=7,D=600"}, false},
    {"f(x[T,D], r[T,D], s[T,D]) -> m[D] { m = max(x + r + s, T) }", {"T=50,D=20", "T=300,D=8"}, false},
    {"f(x[T,D], w[N,D]) -> (g: f32[T], aux) { p = softmax(x @ w, N)  g = max(p, N)\n"
     "  aux = sum(mean(where(p == g, 1, 0), T)*mean(p, T), N) }",
     {"T=60,D=24,N=8", "T=60,D=24,N=300"},
     true},
};

/* A choice that is lost, or shared with another, moves a row of the gradient by half of it or more; roundings
 * of 16 bits move it by a few parts in 256. */
static void expect_rows(const tensor *d, const tensor *ref, const char *text, const char *how) {
    int64_t columns = ref->shape.sizes[ref->shape.rank - 1], wrong = 0;
    double most = 0;
    for (int64_t e = 0; e < ref->shape.count; e++)
        most = fmax(most, fabs(at(ref, e)));
    for (int64_t row = 0; row < ref->shape.count / columns; row++) {
        double scale = 0, off = 0;
        for (int64_t e = row * columns; e < (row + 1) * columns; e++) {
            scale = fmax(scale, fabs(at(ref, e)));
            off = fmax(off, apart(at(d, e), at(ref, e)));
        }
        wrong += !(off <= scale / 8 + most / 64);
    }
    check(!wrong, "%s, %s: %d of %d rows are off", text, how, (int)wrong, (int)(ref->shape.count / columns));
}

typedef void judge(const tensor *d, const tensor *ref, const char *text, const char *how);

/* Gradients of a text's program by some inputs: of one program, by the reference, and of two. */
typedef struct gradients {
    epi_module *m, *one, *two;
    ran whole, ref, forward, backward;
} gradients;

static bool make_gradients(gradients *g, const char *text, const char *dims, const char *wrt,
                           const epi_type_binding *type, const way *w) {
    const char *names[4];
    char store[40];
    epi_options typed = EPI_OPTIONS(.types = type, .type_count = type != NULL);
    epi_error err = {0};
    int count = words_of(wrt, store, sizeof store, names, 4);
    *g = (gradients){.m = parsed(ctx, text)};
    const epi_program *p = g->m ? epi_module_program(g->m, 0) : NULL;
    return p && (g->one = gradient_of(p, wrt)) &&
           check(epi_program_grad_typed(p, names, count, &typed, &g->two, &err) == EPI_OK, "%s: %s", text,
                 err.message) &&
           prepare(&g->whole, epi_module_program(g->one, 0), dims, w) &&
           prepare(&g->ref, epi_module_program(g->one, 0), dims, NULL) &&
           prepare(&g->forward, epi_module_program(g->two, 0), dims, w) &&
           prepare(&g->backward, epi_module_program(g->two, 1), dims, w);
}

/* Runs all: the inputs are those of the forward. */
static void run_gradients(gradients *g, const char *text) {
    take(&g->backward, &g->forward);
    take(&g->ref, &g->backward);
    take(&g->ref, &g->forward);
    take(&g->whole, &g->ref);
    check(problem_run(g->whole.k, &g->whole.p) && problem_run(g->ref.k, &g->ref.p) &&
              problem_run(g->forward.k, &g->forward.p),
          "%s runs", text);
    take(&g->backward, &g->forward);
    check(problem_run(g->backward.k, &g->backward.p), "%s runs", text);
}

static void free_gradients(gradients *g) {
    discard(&g->whole);
    discard(&g->ref);
    discard(&g->forward);
    discard(&g->backward);
    epi_module_free(g->one);
    epi_module_free(g->two);
    epi_module_free(g->m);
}

/* The gradient by x; x is random, or these numbers again and again. */
static void test_gradient(const char *text, const char *dims, const way *w, const double *x, int count,
                          judge *expect) {
    gradients g;
    if (make_gradients(&g, text, dims, "x", NULL, w)) {
        tensor *first = find(&g.forward, "x");
        for (int64_t e = 0; x && e < first->shape.count; e++)
            put_at(first, e, x[e % count]);
        run_gradients(&g, text);
        expect(find(&g.whole, "d_x"), find(&g.ref, "d_x"), text, name_of(w));
        expect(find(&g.backward, "d_x"), find(&g.ref, "d_x"), text, "forward and backward");
    }
    free_gradients(&g);
}

/* Programs that take x where it is between 0 and 10, and what they make of the others is infinite or NaN. */
static const char *const untaken[] = {
    "f(x[T,D]) -> y[T,D] { y = where(x > 0 and x < 10, x*log(x), 0) }",
    "f(x[T,D]) -> y[T,D] { t = log(x)  a = x*t  y = where(x > 0, where(x < 10, a, 3), 0) }",
    "f(x[T,D]) -> (y[T,D], z[T,D]) { t = log(x)  y = where(x > 0 and x < 4, t, 0)\n"
    "  z = where(x > 1 and x < 10, t*t, 0) }",
    "f(x[T,D]) -> y[T,D] { y = where(x <= 0 or x >= 10, 1, x*rsqrt(x)*2) }",
    "f(x[T,D]) -> y[T,D] { y = where(x > 0 and x < 10, sqrt(x)*(1 + sqrt(x)), 0) }",
    "f(x[T,D]) -> y[T,D] { y = where(x > 0 and x < 10, x**1.5, 0) }",
    "f(x[T,D], b) -> y[T,D] { y = where(x > 0 and x < 10, 2*x**(1 + b*b), 0) }",
    "f(x[T,D]) -> y[T,D] { y = where(x > 0 and x < 10, sin(1/x)/x, 0) }",
    "f(x[T,D]) -> y[T,D] { y = where(x > 0 and x < 10, tanh(1/x), 0) }",
    "f(x[T,D]) -> y[T,D] { y = where(x > 0 and x < 10, x*exp(x), 0) }",
    "f(x[T,D]) -> y[T,D] { y = where(x > 0, min(exp(x), exp2(12)), 0) }",
    "f(x[T,D]) -> y[T,D] { y = where(x > 0 and x < 10, silu(exp(x/4)) + log1p(-x/10), 0) }",
    "f(x[T,D]) -> h: f32[T] { h = sum(where(x > 0 and x < 10, -x*log(x), 0), D) }",
    /* what f32 and f16 cannot tell from 0, what only looks like a safe maximum, and a mean of both infinities */
    "f(x[T,D]) -> y[T,D] { y = where(x > 0 and x < 10, 1/(abs(x) + 1e-46), 0) }",
    "f(x[T,D]) -> y[T,D] { y = where(x > 0 and x < 10, 1/f16(abs(x) + 1e-9), 0) }",
    "f(x[T,D]) -> y[T,D] { s: f16 = keep(abs(x) + 1e-9)  y = where(x > 0 and x < 10, 1/s, 0) }",
    "f(x[T,D]) -> y[T,D] { e = x > 0 and x < 10  y = where(e, exp(x - where(not e, 0, max(x, D))), 0) }",
    "f(x[T,D], w[N,D]) -> y[T,D] { e = x > 0 and x < 10  t = where(index(N) < 12 + 100*e, inf, -inf)\n"
    "  y = where(e, x*sigmoid(mean(t, N)), 0) }",
    /* a sum of products beyond any of them, and a maximum that is none along the axis of the sum */
    "f(x[T,D], w[N,D]) -> y[T,D] { e = x > 0 and x < 10  i = index(N) < 2\n"
    "  y = where(e, x*rsqrt(1.5 - i @ (i*(not e))), 0) }",
    "f(x[T,D], w[N,D]) -> y[T,D] { e = x > 0 and x < 10  v = e + 0*index(N)\n"
    "  y = where(e, x/sum(v == max(v, D), N), 0) }",
    "f(x[T,D], w[N,D]) -> y[T,N] { y = where(x > 0 and x < 10, x*log(x), 0) @ w }",
    "f(x[T,D], w[N,D]) -> y[T,N] { y = relu(where(x > 0 and x < 10, x/sqrt(x), 0) @ w) }",
};
enum { ANYWHERE = 14 };
static const double anywhere[ANYWHERE] = {0, -2, 0.5, 1.5, 1000, 3, -1000, 6, 0.25, 2, -0.5, 10, 0.75, 5};

/* Of what was not taken the gradient is 0; of the rest it is what it is. */
static void expect_untaken(const tensor *d, const tensor *ref, const char *text, const char *how) {
    int wrong = 0;
    for (int64_t e = 0; e < d->shape.count; e++) {
        double x = anywhere[e % ANYWHERE];
        wrong += x > 0 && x < 10 ? !isfinite(at(d, e)) : at(d, e) != 0;
    }
    check(!wrong, "%s, %s: %d elements that were not taken have a gradient", text, how, wrong);
    expect_rows(d, ref, text, how);
}

/* What two weights are equal for is shared between them, in every type. */
static void test_ties(const way *w) {
    static const char text[] = "f(x[T,D], w[N,D]) -> g: f32[T] { g = max(x @ w, N) }";
    const char *wrt = "w";
    epi_module *m = parsed(ctx, text), *one = NULL;
    ran r = {0};
    if (epi_program_grad(epi_module_program(m, 0), &wrt, 1, &one, NULL) == EPI_OK &&
        prepare(&r, epi_module_program(one, 0), "T=1,D=8,N=40", w)) {
        for (int64_t e = 0; e < 8; e++)
            put_element(r.p.t[0].data, w->type, e, 1);
        for (int64_t e = 0; e < 8 * 40; e++) /* the second and the last are the largest */
            put_element(r.p.t[1].data, w->type, e, e / 8 == 1 || e / 8 == 39 ? 0.75 : (double)e / 1024);
        put_element(r.p.t[2].data, EPI_F32, 0, 6);
        check(problem_run(r.k, &r.p), "ties run");
        for (int64_t e = 0; e < 8 * 40; e++)
            check(at(&r.p.t[3], e) == (e / 8 == 1 || e / 8 == 39 ? 3 : 0), "%s: element %d of a tie is %g",
                  name_of(w), (int)e, at(&r.p.t[3], e));
    }
    discard(&r);
    epi_module_free(one);
    epi_module_free(m);
}

/* ---- argmax ---- */

/* A value v along the last axis, X, and how many elements the others have. */
static const struct {
    const char *in, *axes, *along, *value, *dims[2];
} values[] = {
    {"x[T,D], w[N,D]", "T", "N", "x @ w", {"T=60,D=24,N=40", "T=60,D=24,N=300"}},
    {"x[T,D], w[N,D]", "T", "N", "silu(x @ w)*3.3", {"T=60,D=24,N=40", "T=60,D=24,N=300"}},
    {"x[T,D], w[N,D]", "T", "N", "softmax(x @ w, N)", {"T=60,D=24,N=40", "T=60,D=24,N=300"}},
    {"x[T,D], w[N,D]", "N", "T", "x @ w + 0.3", {"T=60,D=24,N=40", "T=300,D=24,N=40"}},
    {"x[B,T,D]", "B,D", "T", "x*1.1 + 1", {"B=3,T=50,D=20", "B=2,T=7,D=600"}},
    {"x[T,D], r[T,D], s[T,D]", "D", "T", "x + r + s", {"T=50,D=20", "T=300,D=8"}},
    {"x[T,D], z[T,D], h: f32[T,D]", "D", "T", "where(z > 0, max(x, z), h)", {"T=50,D=20", "T=300,D=8"}},
    {"a[T,D], b[T,D], c[T,D]", "D", "T", "min(max(max(a, b), c), 1.3)", {"T=50,D=20", "T=300,D=8"}},
    {"x[T,D], g[D]", "T", "D", "x*g*37.3 + 1", {"T=50,D=40", "T=7,D=1100"}},
    {"x[T,D], g[D]", "T", "D", "x*rsqrt(mean(x*x, D))*g", {"T=50,D=40", "T=7,D=1100"}},
};

/* What it names is within the axis and the largest by f64, up to the roundings of v. */
static void expect_largest(const tensor *i, const tensor *v, double unit, const char *text, const char *how) {
    int64_t rows = i->shape.count, along = v->shape.count / rows, wrong = 0;
    for (int64_t row = 0; row < rows; row++) {
        double best = at(i, row), top = -INFINITY, size = 0;
        for (int64_t e = 0; e < along; e++) {
            top = fmax(top, at(v, row * along + e));
            size = fmax(size, fabs(at(v, row * along + e)));
        }
        wrong += !(best >= 0 && best < (double)along &&
                   at(v, row * along + (int64_t)best) >= top - 8 * unit * size);
    }
    check(!wrong, "%s, %s: argmax is wrong in %d of %d rows", text, how, (int)wrong, (int)rows);
}

/* How v is kept: as it comes, by the text in f32, and as an output of f32. */
enum { AS_IT_COMES, BY_TEXT, AS_OUTPUT, KEPT };

static void test_argmax(size_t which, const char *dims, int kept, const way *w) {
    char text[700], output[40];
    snprintf(output, sizeof output, ", v: f32[%s,%s]", values[which].axes, values[which].along);
    snprintf(text, sizeof text,
             "f(%s) -> (i: i32[%s], n: f32[%s], p: f32[%s]%s) { v%s = %s  i = argmax(v, %s)\n"
             "  n = sum(v == max(v, %s), %s)  p = sum(exp(v - max(v, %s)), %s) }\n"
             "g(%s) -> v: f32[%s,%s] { v = %s }",
             values[which].in, values[which].axes, values[which].axes, values[which].axes,
             kept == AS_OUTPUT ? output : "", kept == BY_TEXT ? ": f32" : "", values[which].value,
             values[which].along, values[which].along, values[which].along, values[which].along,
             values[which].along, values[which].in, values[which].axes, values[which].along,
             values[which].value);
    two t;
    if (make_two(&t, text, dims, w) && run_two(&t)) {
        const tensor *n = find(&t.r, "n"), *p = find(&t.r, "p");
        int wrong = 0;
        for (int64_t e = 0; e < n->shape.count; e++)
            wrong += !(at(n, e) >= 1 && at(p, e) >= 0.999);
        check(!wrong, "%s, %s: in %d rows no element is the largest", text, name_of(w), wrong);
        expect_largest(find(&t.r, "i"), find(&t.ref, "v"), type_unit(w->type), text, name_of(w));
    }
    free_two(&t);
}

/* ---- logits and their log-sum-exp ---- */

/* What is stored in 16 bits is what the log-sum-exp is of: exp(z - lse) of both as they were stored sums up
 * to 1, also where maps are between them. The exponent has lse's rounding to f32, its exponential 4.5 ulp,
 * the cap as many; of logits that were not rounded it would be off by those of z, which are 2^16 times as
 * large. */
static void test_weights(const char *text, double cap, const way *w) {
    two of;
    if (make_two(&of, text, "T=37,D=40,V=300", w) && run_two(&of)) {
        const tensor *z = find(&of.r, "z"), *lse = find(&of.r, "e");
        for (int64_t t = 0; t < lse->shape.count; t++) {
            double e = at(lse, t), sum = 0;
            for (int64_t v = 0; v < 300; v++) {
                double x = at(z, 300 * t + v);
                sum += exp((cap > 0 ? cap * tanh(x / cap) : x) - e);
            }
            check(fabs(sum - 1) <= ldexp(fabs(e) + 9 * (1 + cap), -24) + ldexp(sqrt(300), -24),
                  "%s, %s: weights of row %d sum up to 1 %+g", text, name_of(w), (int)t, sum - 1);
        }
    }
    free_two(&of);
}

/* What the text keeps in f32 is not rounded for an output of 16 bits that is the same value: the log-sum-exp
 * is as near to that of f64 as products of 40 terms in f32 are. */
static void test_kept(const way *w) {
    two of;
    if (make_two(&of,
                 "p(x[T,D], w[V,D]) -> (z[T,V], e: f32[T]) { c: f32 = x @ w  z = c  e = logsumexp(c, V) }",
                 "T=37,D=40,V=300", w) &&
        run_two(&of)) {
        const tensor *e = find(&of.r, "e"), *want = find(&of.ref, "e");
        for (int64_t t = 0; t < e->shape.count; t++)
            check(fabs(at(e, t) - at(want, t)) <= ldexp(40 * (1 + fabs(at(want, t))), -24),
                  "%s: a log-sum-exp of f32 beside a copy of 16 bits is %g off", name_of(w),
                  at(e, t) - at(want, t));
    }
    free_two(&of);
}

/* Beside an output of 16 bits that a log-sum-exp is taken of, and that has infinities: that is as near to f64's as the
 * roundings of the output's finite elements allow, and what has nothing to do with it is as near as f32 is. */
static void test_beside(const way *w) {
    two of;
    if (make_two(&of,
                 "p(x: f32[T,D]) -> (z: f16[T,D], e: f32[T], s: f32[T], g: f32[T]) {"
                 " z = 200000*x  e = logsumexp(z, D)  s = sum(z, D)  g = sum(tanh(z/200000)*x, D) }",
                 "T=37,D=40", w) &&
        run_two(&of)) {
        const tensor *z = find(&of.r, "z");
        int64_t infinite = 0;
        for (int64_t i = 0; i < z->shape.count; i++)
            infinite += isinf(at(z, i)) != 0;
        check(infinite > 0 && infinite < z->shape.count, "%d elements are infinite", (int)infinite);
        static const struct {
            const char *name;
            double unit;
        } others[] = {{"e", 0x1p-11}, {"s", 0x1p-20}, {"g", 0x1p-20}};
        for (int o = 0; o < 3; o++) {
            const tensor *y = find(&of.r, others[o].name), *want = find(&of.ref, others[o].name);
            for (int64_t t = 0; t < y->shape.count; t++) {
                double size = 0;
                for (int64_t i = 0; i < 40; i++)
                    size += fabs(at(find(&of.ref, "z"), 40 * t + i)) / (o == 2 ? 200000 : 1);
                check(fabs(at(y, t) - at(want, t)) <= size * others[o].unit,
                      "%s: %s[%d] is %g and should be %g", name_of(w), others[o].name, (int)t, at(y, t),
                      at(want, t));
            }
        }
    }
    free_two(&of);
}

/* An output of another 16-bit type, which has not all numbers of the storage type, is read by nobody. */
static void test_home(void) {
    static const way bf16 = {.type = EPI_BF16, .path = EPI_PATH_FUSED};
    two of;
    int wrong = 0;
    if (make_two(&of, "p(x[T,D], w[N,D]) -> (z: f16[T,N], s[T,N]) { z = (x @ w)*1e6  s = z/max(abs(z), N) }",
                 "T=37,D=40,N=300", &bf16) &&
        run_two(&of)) {
        const tensor *s = find(&of.r, "s");
        for (int64_t i = 0; i < s->shape.count; i++)
            wrong += !(fabs(at(s, i)) <= 1.01);
        check(!wrong, "%d elements are made of what f16 does not hold", wrong);
    }
    free_two(&of);
}

/* ---- forward and backward apart ---- */

/* The backward reads a statistic as the forward had it, although a result has it in 16 bits; so it does what
 * is made of f32 inputs and of integers, where the text or the caller says the type; no result of 16 bits
 * where the others may have more; and the size of an axis that none of its tensors has. */
typedef struct pair {
    const char *text, *dims, *wrt;
} pair;
static const pair pairs[] = {
    {"f(q[S,D], k[R,D], v[R,C]) -> (o[S,C], l[S]) { s = 30*(q @ k)  l = logsumexp(s, R)  o = exp(s - l) @ v "
     "}",
     "S=40,D=16,R=70,C=24", "q k v"},
    {"f(q[S,D], k[R,D], v[R,C]) -> (o[S,C], m[S]) {\n"
     "  s = 30*(q @ k)  m = max(s, R)  e = exp(s - m)  o = (e @ v)/sum(e, R) }",
     "S=40,D=16,R=70,C=24", "v"},
    {"f(x: f32[E,T]) -> m[T] { m = max(x, E) }", "E=50,T=60", "x"},
    {"f(x: f32[T,E]) -> (y[T,E], m[T]) { z = x + 100  m = mean(z, E)  c = z - m  y = c*c*c }", "T=30,E=50",
     "x"},
    {"f(x[T,E], b[T]) -> (y[T,E], m: bf16[T]) { m = 100*b + mean(x, E)  y = sin(x - m) }", "T=30,E=50", "x"},
    {"f(x: f32[T,E], m[T]) -> y[T,E] { y = sin(100 + x - m) }", "T=30,E=50", "x"},
    {"f(x: f32[T,E], a[T,F], w[E,F]) -> y[T,E] { z = 100 + x  y = sin(z + a @ w) }", "T=30,E=50,F=20", "x"},
    {"f(x: f32[T,E], m[T]) -> (z[T,E], y[T,E]) { z = 100 + x - m  y = sin(z) }", "T=30,E=50", "x"},
    {"f(i: i32[T,E], a[T,F], w[E,F]) -> y[T,E] { y = sin(999 + i + a @ w) }", "T=30,E=50,F=20", "a w"},
    {"f(x[E,T], w[E,S]) -> y { y = mean((x @ w)**2, T, S) }", "E=20,T=30,S=40", "w"},
    {"f(x[T,E]) -> (z: bf16[T,E], y[T,E]) { z = 100*x  y = sin(z) }", "T=30,E=50", "x"},
    {"f(x[T,E]) -> (z: bf16[T,E], y[T,E]) { z = x  y = sin(100*x) }", "T=30,E=50", "x"},
    {"f(x[T,D], g[D], seed: i32) -> y[D] { y = sin(g*again(sum(uniform(seed, T), T))) }", "T=30,D=40", "g"},
    {"f(x[T,D], g[D], i: i32[T], b[V]) -> y[D] {\n"
     "  y = sin(g*again(sum(again(scatter(1 + 0*i, i, V))**2, V))/99) }",
     "T=30,D=40,V=20", "g"},
    {"f(x[T,2*F], w[F]) -> y[F] { y = w*size(2*F)/size(T) + w*sum(index(T), T) }", "T=30,F=40", "w"},
};

static const pair open_pair = {"f(x[T,E], a[T,F], w[E,F]) -> y[T,E] { y = sin(100 + x + a @ w) }",
                               "T=30,E=50,F=20", "x a"};
static const epi_type_binding said[] = {{"x", EPI_F32}, {"x", EPI_F16}}; /* by the caller */

static void test_pair(const pair *of, const epi_type_binding *type, const way *w) {
    gradients g;
    if (make_gradients(&g, of->text, of->dims, of->wrt, type, w)) {
        problem_fill(&g.backward.p, 7);
        run_gradients(&g, of->text);
        for (int t = g.backward.p.inputs; t < g.backward.p.count; t++) {
            const char *name = tensor_name(g.backward.program, t);
            const tensor *d = &g.backward.p.t[t], *want = find(&g.ref, name);
            double off = 0, all = 0;
            for (int64_t e = 0; e < want->shape.count; e++) {
                off += pow(at(d, e) - at(want, e), 2);
                all += pow(at(want, e), 2);
            }
            check(all > 0 && off <= all * 0.02 * 0.02, "%s, %s: %s is off by %.3g", of->text, name_of(w),
                  name, sqrt(off / all));
        }
    }
    free_gradients(&g);
}

/* ---- quotients ---- */

enum { WHOLE = 300 };

/* For whole numbers a and n floor(a/n) is exact, and a/n is 1 or more where a is n or more. a is the column's
 * number where n is the row's, and else the other way round; or n is one number. */
static void test_quotients(const char *text, const char *dims, int n, const way *w) {
    epi_module *m = parsed(ctx, text);
    ran r = {0};
    int wrong = 0;
    if (m && prepare(&r, epi_module_program(m, 0), dims, w)) {
        const tensor *a = find(&r, "a"), *by = find(&r, "n"), *q = find(&r, "q"), *c = find(&r, "c");
        int64_t rows = a->shape.count / WHOLE;
        bool down = by && by->shape.rank == 1 && !strstr(text, "n: f32[T]");
        for (int64_t e = 0; e < a->shape.count; e++)
            put_element(a->data, EPI_F32, e, (double)(1 + (down ? e / WHOLE : e % WHOLE)));
        for (int64_t e = 0; by && e < by->shape.count; e++)
            put_element(by->data, EPI_F32, e, (double)(n ? n : 1 + (by->shape.rank == 2 ? e / WHOLE : e)));
        check(problem_run(r.k, &r.p), "%s runs", text);
        for (int64_t e = 0; e < rows * WHOLE; e++) {
            int64_t x = (int64_t)at(a, e), y = n ? n : 1 + (down ? e % WHOLE : e / WHOLE);
            wrong += at(q, e) != (double)(x / y) || at(c, e) != (x >= y);
        }
        check(!wrong, "%s, %s, n = %d: %d quotients of whole numbers are off", text, name_of(w), n, wrong);
    }
    discard(&r);
    epi_module_free(m);
}

/* By a row's number, a column's, an element's, a number that is given, and one of the text: in one kernel,
 * and beside products, where the algebra is free to multiply out. */
static void test_all_quotients(const way *w) {
    static const char *const types[] = {"n: f32[T]", "n: f32[D]", "n: f32[T,D]"};
    static const char out[] = "(q: i32[T,D], c[T,D], z[T,N]) { t = a/n  q = floor(t)  c = t >= 1\n"
                              "  z = silu((2*x*rsqrt(mean(x*x, D) + 1)) @ w) }";
    static const char one[] = "(q: f32[T,D], c[T,D]) { q = floor(a/n + 0)  c = not (a/n < 1) }";
    char text[400], number[400];
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "f(a: f32[T,D], x[T,D], w[N,D], %s) -> %s", types[i], out);
        test_quotients(text, "T=300,D=300,N=8", 0, w);
        snprintf(text, sizeof text, "f(a: f32[T,D], %s) -> %s", types[i], one);
        test_quotients(text, "T=300,D=300", 0, w);
    }
    for (int n = 1; n <= WHOLE; n += w->type == EPI_F32 ? 1 : 20) {
        snprintf(text, sizeof text, "f(a: f32[T,D], n: f32) -> %s", one);
        test_quotients(text, "T=2,D=300", n, w);
        snprintf(number, sizeof number,
                 "f(a: f32[T,D], x[T,D], w[N,D]) -> (q: f32[T,D], c[T,D], z[T,N]) { q = floor(a/%d + 0)\n"
                 "  c = a/%d >= 1  z = silu((2*x*rsqrt(mean(x*x, D) + 1)) @ w) }",
                 n, n);
        test_quotients(number, "T=2,D=300,N=8", n, w);
    }
}

/* What a step sees of a/n through an extreme, a sum, an index, a root, a power of two or a product: n/n is 1. */
static const char *const through[] = {
    "floor(max(a/n, D))",           "round(min(a/n, D) - 0.5) + 1", "floor(sum(a/n, D)/size(D))",
    "floor(mean(a/n, D))",          "floor(sqrt(max(a/n, D)))",     "1 + floor(log2(max(a/n, D)))",
    "max(floor(sqrt(a/n)), D)",     "max(floor((a/n)**2), D)",      "max(floor(exp2(a/n)), D) - 1",
    "floor(gather(a/n, 3, D))",     "where(max(a/n, D) < 1, 0, 1)", "floor(max((((a*n) @ w)/(n*n)) @ w, D))",
    "where(max(a/n, D) - 1, 0, 1)", "min(not (a/n - 1), D)",        "1 - max(a/n - 1 or 0, D)"};

static void test_through(const char *formula, const way *w) {
    char text[200];
    snprintf(text, sizeof text, "f(a: f32[T,D], w: f32[E,D], n: f32[T]) -> q: f32[T] { q = %s }", formula);
    epi_module *m = parsed(ctx, text);
    ran r = {0};
    int wrong = 0;
    if (m && prepare(&r, epi_module_program(m, 0), "T=300,D=8,E=8", w)) {
        const tensor *a = find(&r, "a"), *n = find(&r, "n"), *q = find(&r, "q");
        for (int64_t e = 0; e < a->shape.count; e++)
            put_element(a->data, EPI_F32, e, (double)(1 + e / 8));
        for (int64_t e = 0; e < WHOLE; e++)
            put_element(n->data, EPI_F32, e, (double)(1 + e));
        for (int64_t e = 0; e < 64; e++)
            put_element(find(&r, "w")->data, EPI_F32, e, e / 8 == e % 8);
        check(problem_run(r.k, &r.p), "%s runs", text);
        for (int64_t e = 0; e < WHOLE; e++)
            wrong += at(q, e) != 1;
        check(!wrong, "%s, %s: n/n is not 1 for %d numbers", text, name_of(w), wrong);
    }
    discard(&r);
    epi_module_free(m);
}

/* A row's largest element less itself is 0, also where another program found it: products are rounded alike. */
static void test_below_top(const way *w) {
    epi_module *m =
        parsed(ctx, "top(x[T,D], y[T,D]) -> m: f32[T] { m = max(900*x*y, D) }\n"
                    "below(x[T,D], y[T,D], m: f32[T]) -> e: f32[T] { e = max(exp(900*x*y - m), D) }");
    ran top = {0}, below = {0};
    int wrong = 0;
    if (m && prepare(&top, epi_module_program(m, 0), "T=50,D=40", w) &&
        prepare(&below, epi_module_program(m, 1), "T=50,D=40", w)) {
        check(problem_run(top.k, &top.p), "top runs");
        take(&below, &top);
        check(problem_run(below.k, &below.p), "below runs");
        for (int64_t e = 0; e < 50; e++)
            wrong += at(find(&below, "e"), e) != 1;
        check(!wrong, "%s: %d rows' largest weights are not 1", name_of(w), wrong);
    }
    discard(&top);
    discard(&below);
    epi_module_free(m);
}

int main(void) {
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    test_home();
    for (const way *w = ways; w < ways + WAYS; w++) {
        bool fused = w->path == EPI_PATH_FUSED, f32 = w->type == EPI_F32;
        for (size_t i = 0; i < sizeof maxima / sizeof *maxima; i++)
            for (int d = 0; d < 2; d++)
                if (f32 || (fused && !(d && maxima[i].stored)))
                    test_gradient(maxima[i].text, maxima[i].dims[d], w, NULL, 0, expect_rows);
        for (size_t i = 0; i < sizeof untaken / sizeof *untaken; i++)
            if (f32 || fused)
                test_gradient(untaken[i], "T=6,D=35,N=24", w, anywhere, ANYWHERE, expect_untaken);
        for (size_t i = 0; i < sizeof values / sizeof *values; i++)
            for (int d = 0; d < 2 * KEPT; d++)
                test_argmax(i, values[i].dims[d % 2], d / 2, w);
        for (size_t i = 0; i < sizeof through / sizeof *through; i++)
            if (f32 || !strchr(through[i], '@')) /* products are stored in 16 bits */
                test_through(through[i], w);
        test_ties(w);
        test_below_top(w);
        test_all_quotients(w);
        if (!fused) /* what is not rounds what is made of z, too */
            continue;
        test_weights("p(x[T,D], w[V,D]) -> (z[T,V], e: f32[T]) { z = x @ w  e = logsumexp(z, V) }", 0, w);
        test_weights("p(x[T,D], w[V,D]) -> (z[T,V], e: f32[T]) { z = x @ w  e = logsumexp(3*tanh(z/3), V) }",
                     3, w);
        test_kept(w);
        test_beside(w);
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            test_pair(&pairs[i], NULL, w);
        for (size_t i = 0; i < sizeof said / sizeof *said; i++)
            test_pair(&open_pair, &said[i], w);
    }
    epi_context_close(ctx);
    return finish();
}
