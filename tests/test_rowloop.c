/* test_rowloop.c: the rows mainloop: programs without a product against the f64 reference, bits that do not
 * depend on threads, batch, layout or place, and which tensors may share memory. */
#include <float.h>

#include "ran.h"

static epi_context *ctx;
static epi_module *module;

static const char text[] =
    "rmsnorm(x[T,D], g[D], eps) -> y[T,D] { y = x*rsqrt(mean(x*x, D) + eps)*g }\n"
    "layernorm(x[T,D], g[D], b[D], eps) -> (y[T,D], mu[T], r[T]) {\n"
    "    mu = mean(x, D); d = x - mu; r = rsqrt(mean(d*d, D) + eps); y = d*r*g + b }\n"
    "softmax(x[T,D]) -> y[T,D] { e = exp(x - max(x, D)); y = e/sum(e, D) }\n"
    "losses(x[T,D], t:i32[T]) -> (l[T], p[T,D]) {\n"
    "    z = logsumexp(x, D); l = z - sum(where(index(D) == t, x, 0), D); p = exp(x - z) }\n"
    "norm_back(x[T,D], dy[T,D], g[D], eps) -> (dx[T,D], dg[D], db[D]) {\n"
    "    r = rsqrt(mean(x*x, D) + eps); h = x*r; dg = sum(dy*h, T); db = mean(dy, T)\n"
    "    dx = r*(dy*g - h*mean(dy*g*h, D)) }\n"
    "down(x[T,D]) -> (l[D], m[D], y[T,D]) { l = logsumexp(x, T); m = max(x, T); y = x*x }\n"
    "swiglu(g[T,D], u[T,D]) -> y[T,D] { y = silu(g)*u }\n"
    "swiglu_halves(x[T,D]) -> y[T,D/2] { g, u = halves(x, D); y = silu(g)*u }\n"
    "swiglu_pairs(x[T,D]) -> y[T,D/2] { g, u = pairs(x, D); y = silu(g)*u }\n"
    "rope(x[T,S,D], f[D/2]) -> y[T,S,D] {\n"
    "    a, b = halves(x, D); c = cos(index(S)*f); s = sin(index(S)*f); y = concat(a*c - b*s, a*s + b*c, D) "
    "}\n"
    "rope_pairs(x[T,S,D], f[D/2]) -> y[T,S,D] {\n"
    "    a, b = pairs(x, D); c = cos(index(S)*f); s = sin(index(S)*f); y = join(a*c - b*s, a*s + b*c, D) }\n"
    "totals(x[T,D]) -> (n, l, y[T,D]) { n = sum(x*x, T, D); l = logsumexp(x, T, D); y = 2*x }\n"
    "adam(p[T,D], g[T,D], m[T,D], v[T,D], lr) -> (q[T,D], n[T,D], w[T,D]) {\n"
    "    n = 0.9*m + 0.1*g; w = 0.99*v*v + 0.01*g*g; q = p - lr*n/(sqrt(w) + 0.1) }\n"
    "crossed(x[T,D], k[T,D]) -> (a[T,D], b[T,D]) { a = x + k; b = x*k - a }\n"
    "handed(x[T,D], k[T,D]) -> (a[T,D], b[T,D]) { a = x + k; b = x }\n"
    "swapped(x[T,D], k[T,D]) -> (a[T,D], b[T,D]) { a = k; b = x }\n"
    "mixed(x:bf16[T,D], y:f32[T,D], z:f16[T]) -> (a:f32[T,D], b:bf16[T,D], c:f16[T]) {\n"
    "    c = max(x*y, D) + z; a = x - c; b = y*exp(x - c) }\n"
    "vector(x[D]) -> y[D] { e = exp(x - max(x, D)); y = e/sum(e, D) }\n"
    "twice(x[T,D]) -> (y[T,D], z[T,D]) { e = exp(x - max(x, D)); z = e; y = e/sum(e, D) }\n"
    "row_scales(x[T,D], g[D], c[T]) -> (s[T], y[T,D]) {\n"
    "    e = exp(x - max(x, D)); s = sum(e, D) + c; y = (e*c - s)*g }\n"
    "log_softmax(x[T,D]) -> y[T,D] { c = x - max(x, D); y = c - log(sum(exp(c), D)) }\n"
    "kept_early(x[T,D]) -> y[T,D] { e = exp(x - max(x, D)); f = exp(e/sum(e, D)); y = e*f/sum(f, D) }\n"
    "over(x[T,D], c[T]) -> y[T,D] { y = x/c }\n"
    "strewn(x[B,T,D], t[T,B,D]) -> (m[T,B], n[B,T], l[B,T]) {\n"
    "    m = mean(x, D); n = mean(t, D); l = logsumexp(t, D) }\n"
    "strewn_stores(x[B,T,D], t[B,T,D]) -> (m[B,T], l[B,T], y[T,B,D]) {\n"
    "    y = x*t; m = mean(y, D); l = logsumexp(y, D) }\n"
    "flat(x[T,D], u[T,D], c) -> (y[T,D], z[T,D]) {\n    y = silu(x)*u\n    z = sigmoid(x)/c + x\n}\n";

static const struct {
    const char *program;
    const char *dims[7];
} rows[] = {
    {"rmsnorm", {"T=1,D=1", "T=37,D=17", "T=300,D=5", "T=3,D=2049", "T=41,D=2500", "T=0,D=5", "T=5,D=0"}},
    {"layernorm", {"T=67,D=3", "T=11,D=4099", "T=27,D=2051", "T=4,D=0"}},
    {"softmax", {"T=130,D=16", "T=29,D=4096", "T=2,D=70001", "T=1,D=262144", "T=7,D=1"}},
    {"row_scales", {"T=23,D=1024", "T=9,D=1300"}},
    {"log_softmax", {"T=70,D=1024"}},
    {"kept_early", {"T=21,D=1024"}},
    {"losses", {"T=19,D=523", "T=3,D=9001"}},
    {"norm_back", {"T=391,D=23", "T=5,D=2500", "T=0,D=7"}},
    {"down", {"T=700,D=31", "T=1,D=1", "T=0,D=3"}},
    {"swiglu", {"T=41,D=1031", "T=0,D=4"}},
    {"swiglu_halves", {"T=29,D=2", "T=9,D=5006"}},
    {"swiglu_pairs", {"T=9,D=5006", "T=29,D=14", "T=31,D=4006"}},
    {"rope", {"T=3,S=7,D=64", "T=2,S=3,D=4100"}},
    {"rope_pairs", {"T=3,S=7,D=64"}},
    {"totals", {"T=31,D=41", "T=97,D=1009", "T=0,D=3"}},
    {"adam", {"T=13,D=999"}},
    {"crossed", {"T=5,D=3000"}},
    {"mixed", {"T=23,D=301", "T=3,D=4500"}},
    {"vector", {"D=4097", "D=1"}},
    {"twice", {"T=3,D=2100"}},
    {"strewn", {"B=3,T=5,D=700", "B=3,T=5,D=7"}}, /* rows that are not a fixed distance apart */
    {"strewn_stores", {"B=3,T=5,D=700"}},
};

/* Filled tensors and a kernel of the rows mainloop: but a row without elements is none. */
static bool make(ran *r, const char *program, const char *dims, way how) {
    how.seed = 7;
    return made(r, epi_module_find(module, program), dims, how) &&
           check(strstr(dims, "=0") || !strcmp(info_of(r->k).mainloop, "rows"),
                 "%s %s is a kernel of rows: %s", program, dims, info_of(r->k).mainloop);
}

/* ---- results ---- */

static void test_results(const char *program, const char *dims, epi_dtype type) {
    const way in = {.type = type, .seed = 7};
    ran r[LAYOUT_COUNT] = {0}, one = {0}, want, naive;
    char what[200];
    if (!wanted("%s %s %s", program, dims, epi_dtype_name(type)))
        return;
    bool ok = yardsticks(&want, &naive, epi_module_find(module, program), dims, in);
    for (int how = 0; how < LAYOUT_COUNT && ok; how++) {
        snprintf(what, sizeof what, "%s %s %s layout %d", program, dims, epi_dtype_name(type), how);
        if (!make(&r[how], program, dims, (way){.type = type, .layout = (layout)how}) || !run_again(&r[how]))
            break;
        for (int i = 0; i < r[how].p.inputs; i++)
            check(tensor_intact(&r[how].p.t[i]), "%s: nothing outside tensor %d", what, i);
        hold_against(&r[how], &want, &naive, EPI_F32, what);
        check(same_outputs(&r[0], &r[how]), "%s: bits as in the plain layout", what);
    }
    if (make(&one, program, dims, (way){.type = type, .threads = 1}) && run_again(&one))
        check(same_outputs(&r[0], &one), "%s %s: bits of one thread and two", program, dims);
    for (int how = 0; how < LAYOUT_COUNT; how++)
        discard(&r[how]);
    DISCARD(&one, &want, &naive);
}

/* ---- a row alone ---- */

static void test_batch(const char *program, const char *dims, int64_t row) {
    char alone[64];
    ran all, one = {0};
    snprintf(alone, sizeof alone, "T=1%s", strchr(dims, ','));
    if (make(&all, program, dims, (way){0}) && make(&one, program, alone, (way){.threads = 1})) {
        for (int t = 0; t < all.p.inputs; t++) {
            size_t bytes = tensor_bytes(&one.p.t[t]);
            memcpy(one.p.t[t].data,
                   all.p.t[t].data + (has_first(all.program, t, "T") ? (size_t)row * bytes : 0), bytes);
        }
        check(run_again(&all) && run_again(&one) && same_rows(&one, 0, &all, row, "T"),
              "%s %s: row %ld alone has the same bits", program, dims, (long)row);
    }
    DISCARD(&all, &one);
}

/* An output that is larger than most caches, in rows that start anywhere, against slices of it that are not.
 */
static void test_large(const char *program, epi_dtype type, int columns) {
    enum { SLICES = 28, ELEMENTS = 1 << 20 };
    int rows = (type == EPI_F32 ? ELEMENTS : 2 * ELEMENTS) / columns;
    char large[64], small[64];
    ran all, one = {0};
    snprintf(large, sizeof large, "T=%d,D=%d", SLICES * rows, columns);
    snprintf(small, sizeof small, "T=%d,D=%d", rows, columns);
    if (!wanted("%s %s %s", program, large, epi_dtype_name(type)))
        return;
    if (make(&all, program, large, (way){.type = type, .fill = unfilled}) &&
        make(&one, program, small, (way){.type = type, .threads = 1})) {
        for (int t = 0; t < all.p.inputs; t++) /* the same numbers again and again */
            for (int i = 0; i < (has_first(all.program, t, "T") ? SLICES : 1); i++) {
                size_t bytes = tensor_bytes(&one.p.t[t]);
                memcpy(all.p.t[t].data + (size_t)i * bytes, one.p.t[t].data, bytes);
            }
        bool ok = run_again(&all) && run_again(&one);
        for (int t = all.p.inputs; t < all.p.count; t++)
            for (int i = 0; i < SLICES && ok; i++) {
                size_t bytes = tensor_bytes(&one.p.t[t]);
                ok = !memcmp(all.p.t[t].data + (size_t)i * bytes, one.p.t[t].data, bytes);
            }
        check(ok && tensor_intact(&all.p.t[all.p.inputs]), "%s %s %s: a large output is as a small one",
              program, large, epi_dtype_name(type));
    }
    DISCARD(&all, &one);
}

/* ---- numbers of all sizes ---- */

/* As near to the quotient as two roundings may be; what overflows almost may overflow. */
static bool is_quotient(float y, double x, double c) {
    double want = x / c, size = fabs(want);
    if (want != want || size > 1.0000002 * (double)FLT_MAX)
        return want != want ? y != y : y == (want > 0 ? INFINITY : -INFINITY);
    if (size > 0.9999998 * (double)FLT_MAX)
        return fabs((double)y) > 0.9999997 * (double)FLT_MAX;
    return fabs((double)y - want) <= 0x1p-149 + 0x1p-23 * size;
}

/* Rows over numbers of every exponent, denormal, infinite and NaN ones. */
static void test_quotients(void) {
    enum { ROWS = 512, COLUMNS = 1024 };
    ran r;
    if (wanted("quotients") && make(&r, "over", "T=512,D=1024", (way){.threads = 1})) {
        float *x = (void *)r.p.t[0].data, *c = (void *)r.p.t[1].data, *y = (void *)r.p.t[2].data;
        for (int i = 0; i < ROWS; i++)
            c[i] = from_bits((uint32_t)i << 23 | (i % 3 ? (uint32_t)i * 12345 % (1 << 23) : 0));
        for (int i = 0; i < ROWS * COLUMNS; i++)
            x[i] = from_bits((uint32_t)i * 2654435761u);
        int i = run_again(&r) ? 0 : -1;
        while (i >= 0 && i < ROWS * COLUMNS - 1 && is_quotient(y[i], (double)x[i], (double)c[i / COLUMNS]))
            i++;
        check(i == ROWS * COLUMNS - 1, "elements over a row's number, of all sizes: the one at %d", i);
        discard(&r);
    }
}

/* ---- shared memory ---- */

/* Runs with outputs over the inputs given for them (-1: apart) and compares with a run apart. */
static void test_in_place(const char *program, const char *dims, const int *over, way how) {
    ran apart, over_them = {0};
    if (!wanted("%s %s in place %d, %s layout %d", program, dims, *over, epi_dtype_name(how.type),
                how.layout))
        return;
    if (make(&apart, program, dims, how) && make(&over_them, program, dims, how)) {
        problem *q = &over_them.p;
        for (int o = 0; o < q->count - q->inputs; o++)
            if (over[o] >= 0) {
                check(epi_kernel_in_place(over_them.k, q->inputs + o, over[o]),
                      "%s: output %d may lie over input %d", program, o, over[o]);
                q->args[q->inputs + o] = q->args[over[o]];
            }
        bool ok = run_again(&apart) && run_again(&over_them);
        for (int o = 0; o < q->count - q->inputs; o++)
            if (over[o] >= 0)
                memcpy(q->t[q->inputs + o].data, q->t[over[o]].data, tensor_bytes(&q->t[over[o]]));
        check(ok && same_outputs(&apart, &over_them),
              "%s %s layout %d: in place and apart have the same bits", program, dims, (int)how.layout);
    }
    DISCARD(&apart, &over_them);
}

static const struct {
    const char *program, *dims;
    int over[3];
} in_place[] = {
    {"softmax", "T=5,D=4100", {0}},     {"adam", "T=33,D=1999", {0, 2, 3}},
    {"crossed", "T=33,D=2999", {0, 1}}, {"crossed", "T=33,D=2999", {1, 0}},
    {"handed", "T=33,D=2999", {0, -1}}, {"handed", "T=33,D=299", {1, 0}},
    {"swapped", "T=33,D=299", {0, 1}},  {"swapped", "T=3,D=2999", {1, 0}},
    {"rope", "T=2,S=5,D=64", {0}},      {"norm_back", "T=80,D=40", {1, -1, -1}},
};

static void test_refusals(void) {
    float memory[256] = {0}, g[8], b[8], eps = 1, mu[4], r[4];
    int64_t wide[2] = {16, 1};
    epi_error err = {0};
    epi_kernel *k = kernel_of(epi_module_find(module, "layernorm"), "T=4,D=8", (way){.threads = 1});
    no_case();
    if (!k)
        return;
    const struct {
        epi_tensor x, y;
        float *mu;
        const char *refused, *what; /* NULL: it runs */
    } cases[] = {
        {{memory, NULL}, {memory, NULL}, mu, NULL, "y over x"},
        {{memory, NULL}, {memory + 1, NULL}, mu, "overlaps the input 'x'", "y one element further on"},
        {{memory, NULL}, {memory, wide}, mu, "", "y over x with other strides"},
        {{memory, wide}, {memory + 8, wide}, mu, NULL, "two slices of a matrix lie apart"},
        {{memory, wide}, {memory + 7, wide}, mu, "", "slices that share a column"},
        {{memory, wide}, {memory + 8, wide}, r + 2, "output", "two outputs that overlap"},
        {{memory, wide}, {memory + 8, wide}, g, "", "an output and a short input"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const epi_tensor args[] = {cases[i].x, {g, NULL},           {b, NULL}, {&eps, NULL},
                                   cases[i].y, {cases[i].mu, NULL}, {r, NULL}};
        epi_status status = run_with(k, args, 7, &err);
        check(cases[i].refused ? status == EPI_ERR_ARGUMENT && strstr(err.message, cases[i].refused)
                               : status == EPI_OK,
              "%s: %s", cases[i].what, err.message);
    }
    check(!epi_kernel_in_place(k, 5, 0) && !epi_kernel_in_place(k, 4, 1) && !epi_kernel_in_place(k, 0, 4) &&
              !epi_kernel_in_place(NULL, 4, 0) && !epi_kernel_in_place(k, 4, -1),
          "only a tensor of the same shape");
    epi_kernel_free(k);
}

int main(void) {
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    module = parsed(ctx, text);
    test_refusals();
    test_batch("rmsnorm", "T=301,D=17", 300);
    test_batch("softmax", "T=9,D=3001", 4);
    test_batch("layernorm", "T=70,D=64", 69);
    test_batch("losses", "T=5,D=1000", 2);
    test_batch("flat", "T=8,D=300", 0); /* alone, it is shorter than what tapes pay for */
    test_batch("flat", "T=8,D=300", 7);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int d = 0; d < 7 && rows[i].dims[d]; d++) {
            test_results(rows[i].program, rows[i].dims[d], EPI_F32);
            test_results(rows[i].program, rows[i].dims[d], EPI_BF16);
        }
    test_large("rmsnorm", EPI_F32, 1001);
    test_large("rmsnorm", EPI_F32, 3001);
    test_large("softmax", EPI_F32, 4096);
    test_large("softmax", EPI_BF16, 2999);
    test_large("swiglu", EPI_BF16, 1001);
    test_large("log_softmax", EPI_F32, 1024);
    test_quotients();
    for (size_t i = 0; i < sizeof in_place / sizeof *in_place; i++)
        for (int n = 0; n < 2 * LAYOUT_COUNT; n++)
            test_in_place(in_place[i].program, in_place[i].dims, in_place[i].over,
                          (way){.type = n % 2 ? EPI_BF16 : EPI_F32, .layout = (layout)(n / 2)});
    epi_module_free(module);
    epi_context_close(ctx);
    return finish();
}
