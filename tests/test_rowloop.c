/* test_rowloop.c: the rows mainloop: programs without a product against the f64 reference, bits that do not
 * depend on threads, batch, layout or place, and which tensors may share memory. */
#include <float.h>

#include "cases.h"

static epi_context *ctx;

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

static const test_case rows[] = {
    {"rowloop", "rmsnorm", "T=1,D=1", 0},
    {"rowloop", "rmsnorm", "T=37,D=17", 0},
    {"rowloop", "rmsnorm", "T=300,D=5", 0},
    {"rowloop", "rmsnorm", "T=3,D=2049", 0},
    {"rowloop", "rmsnorm", "T=41,D=2500", 0},
    {"rowloop", "rmsnorm", "T=0,D=5", 0},
    {"rowloop", "rmsnorm", "T=5,D=0", 0},
    {"rowloop", "layernorm", "T=67,D=3", 0},
    {"rowloop", "layernorm", "T=11,D=4099", 0},
    {"rowloop", "layernorm", "T=27,D=2051", 0},
    {"rowloop", "layernorm", "T=4,D=0", 0},
    {"rowloop", "softmax", "T=130,D=16", 0},
    {"rowloop", "softmax", "T=29,D=4096", 0},
    {"rowloop", "softmax", "T=2,D=70001", 0},
    {"rowloop", "softmax", "T=1,D=262144", 0},
    {"rowloop", "softmax", "T=7,D=1", 0},
    {"rowloop", "row_scales", "T=23,D=1024", 0},
    {"rowloop", "row_scales", "T=9,D=1300", 0},
    {"rowloop", "log_softmax", "T=70,D=1024", 0},
    {"rowloop", "kept_early", "T=21,D=1024", 0},
    {"rowloop", "losses", "T=19,D=523", 0},
    {"rowloop", "losses", "T=3,D=9001", 0},
    {"rowloop", "norm_back", "T=391,D=23", 0},
    {"rowloop", "norm_back", "T=5,D=2500", 0},
    {"rowloop", "norm_back", "T=0,D=7", 0},
    {"rowloop", "down", "T=700,D=31", 0},
    {"rowloop", "down", "T=1,D=1", 0},
    {"rowloop", "down", "T=0,D=3", 0},
    {"rowloop", "swiglu", "T=41,D=1031", 0},
    {"rowloop", "swiglu", "T=0,D=4", 0},
    {"rowloop", "swiglu_halves", "T=29,D=2", 0},
    {"rowloop", "swiglu_halves", "T=9,D=5006", 0},
    {"rowloop", "swiglu_pairs", "T=9,D=5006", 0},
    {"rowloop", "swiglu_pairs", "T=29,D=14", 0},
    {"rowloop", "swiglu_pairs", "T=31,D=4006", 0},
    {"rowloop", "rope", "T=3,S=7,D=64", 0},
    {"rowloop", "rope", "T=2,S=3,D=4100", 0},
    {"rowloop", "rope_pairs", "T=3,S=7,D=64", 0},
    {"rowloop", "totals", "T=31,D=41", 0},
    {"rowloop", "totals", "T=97,D=1009", 0},
    {"rowloop", "totals", "T=0,D=3", 0},
    {"rowloop", "adam", "T=13,D=999", 0},
    {"rowloop", "crossed", "T=5,D=3000", 0},
    {"rowloop", "mixed", "T=23,D=301", 0},
    {"rowloop", "mixed", "T=3,D=4500", 0},
    {"rowloop", "vector", "D=4097", 0},
    {"rowloop", "vector", "D=1", 0},
    {"rowloop", "twice", "T=3,D=2100", 0},
    {"rowloop", "strewn", "B=3,T=5,D=700", 0}, /* rows that are not a fixed distance apart */
    {"rowloop", "strewn", "B=3,T=5,D=7", 0},
    {"rowloop", "strewn_stores", "B=3,T=5,D=700", 0},
};

static bool load(epi_module *module, const test_case *c, loaded *l) {
    *l = (loaded){.from = c, .program = epi_module_find(module, c->program)};
    l->dim_count = parse_dims(c->dims, l->dims, l->names);
    return check(l->program != NULL, "%s loads", c->program);
}

static epi_kernel *compile(const loaded *l, epi_dtype type, int threads) {
    epi_options o = case_options(l, type, EPI_PATH_FUSED);
    epi_kernel *k;
    epi_error err;
    epi_kernel_info info = {0};
    o.threads = threads;
    epi_status status = epi_kernel_compile(l->program, &o, &k, &err);
    epi_kernel_get_info(k, &info);
    const char *want = "rows"; /* but a row without elements is none */
    check(status == EPI_OK && (strstr(l->from->dims, "=0") || !strcmp(info.mainloop, want)), "%s %s is a kernel of %s: %s", l->from->program,
          l->from->dims, want, status ? err.message : info.mainloop);
    return k;
}

/* Are all outputs equal, bit for bit, whatever their layout? */
static bool same_bits(const problem *a, const problem *b) {
    bool same = true;
    for (int t = a->inputs; t < a->count; t++) {
        size_t size = epi_dtype_size(a->t[t].shape.type);
        for (int64_t i = 0; i < a->t[t].shape.count && same; i++)
            same = !memcmp(a->t[t].data + (size_t)tensor_at(&a->t[t], i) * size,
                           b->t[t].data + (size_t)tensor_at(&b->t[t], i) * size, size);
    }
    return same;
}

/* ---- results ---- */

static void test_results(const loaded *l, epi_dtype type) {
    static const char *const layouts[] = {"plain", "padded", "reversed"};
    oracles oracle;
    problem p[LAYOUT_COUNT] = {0}, one = {0};
    oracles_make(l, type, &oracle);
    epi_kernel *k = compile(l, type, 2), *single = compile(l, type, 1);
    for (int how = 0; how < LAYOUT_COUNT && check(oracle.ok && k && single, "memory"); how++) {
        if (!check(problem_make(&p[how], l->program, k, (layout)how), "memory"))
            break;
        problem_fill(&p[how], CASE_SEED);
        check(problem_run(k, &p[how]), "%s %s runs inside its workspace", l->from->program, l->from->dims);
        for (int i = 0; i < p[how].count; i++)
            check(tensor_intact(&p[how].t[i]), "%s %s %s: nothing outside tensor %d", l->from->program,
                  l->from->dims, layouts[how], i);
        check_rule(&p[how], l, &oracle, EPI_F32, layouts[how]);
        check(same_bits(&p[0], &p[how]), "%s %s %s: bits as in the plain layout", l->from->program,
              l->from->dims, layouts[how]);
    }
    if (single && problem_make(&one, l->program, single, LAYOUT_PLAIN)) {
        problem_fill(&one, CASE_SEED);
        check(problem_run(single, &one) && same_bits(&p[0], &one), "%s %s: bits of one thread and two",
              l->from->program, l->from->dims);
    }
    for (int how = 0; how < LAYOUT_COUNT; how++)
        problem_free(&p[how]);
    problem_free(&one);
    oracles_free(&oracle);
    epi_kernel_free(k);
    epi_kernel_free(single);
}

/* ---- a row alone ---- */

/* Whether the tensor has T, which is then its first axis. */
static bool has_rows(const epi_program *program, int t) {
    epi_tensor_info info;
    epi_program_tensor(program, t, &info);
    return info.rank && !strcmp(info.axes[0].dim, "T");
}

static void test_batch(epi_module *module, const char *program, const char *dims, int64_t row) {
    char alone[64];
    snprintf(alone, sizeof alone, "T=1%s", strchr(dims, ','));
    test_case many = {"rowloop", program, dims, 0}, single = {"rowloop", program, alone, 0};
    loaded l, s;
    problem p = {0}, q = {0};
    if (!load(module, &many, &l) || !load(module, &single, &s))
        return;
    epi_kernel *k = compile(&l, EPI_F32, 2), *j = compile(&s, EPI_F32, 1);
    if (problem_make(&p, l.program, k, LAYOUT_PLAIN) && problem_make(&q, s.program, j, LAYOUT_PLAIN)) {
        problem_fill(&p, CASE_SEED);
        for (int t = 0; t < p.inputs; t++) {
            size_t bytes = (size_t)q.t[t].shape.count * epi_dtype_size(q.t[t].shape.type);
            memcpy(q.t[t].data, p.t[t].data + (has_rows(l.program, t) ? (size_t)row * bytes : 0), bytes);
        }
        check(problem_run(k, &p) && problem_run(j, &q), "%s runs", program);
        for (int t = p.inputs; t < p.count; t++) {
            size_t bytes = (size_t)q.t[t].shape.count * epi_dtype_size(q.t[t].shape.type);
            check(!has_rows(l.program, t) || !memcmp(q.t[t].data, p.t[t].data + (size_t)row * bytes, bytes),
                  "%s %s: row %ld alone has the same bits", program, dims, (long)row);
        }
    }
    problem_free(&p);
    problem_free(&q);
    epi_kernel_free(k);
    epi_kernel_free(j);
}

/* An output that is larger than most caches, in rows that start anywhere, against slices of it that are not.
 */
static void test_large(epi_module *module, const char *program, epi_dtype type, int columns) {
    enum { SLICES = 28, ELEMENTS = 1 << 20 };
    int rows = (type == EPI_F32 ? ELEMENTS : 2 * ELEMENTS) / columns;
    char large[64], small[64];
    snprintf(large, sizeof large, "T=%d,D=%d", SLICES * rows, columns);
    snprintf(small, sizeof small, "T=%d,D=%d", rows, columns);
    test_case many = {"rowloop", program, large, 0}, few = {"rowloop", program, small, 0};
    loaded l, s;
    problem p = {0}, q = {0};
    if (!load(module, &many, &l) || !load(module, &few, &s))
        return;
    epi_kernel *k = compile(&l, type, 2), *j = compile(&s, type, 1);
    if (problem_make(&p, l.program, k, LAYOUT_PLAIN) && problem_make(&q, s.program, j, LAYOUT_PLAIN)) {
        problem_fill(&q, CASE_SEED);
        for (int t = 0; t < p.inputs; t++) /* the same numbers again and again */
            for (int i = 0; i < (has_rows(l.program, t) ? SLICES : 1); i++) {
                size_t bytes = (size_t)q.t[t].shape.count * epi_dtype_size(q.t[t].shape.type);
                memcpy(p.t[t].data + (size_t)i * bytes, q.t[t].data, bytes);
            }
        bool ok = problem_run(k, &p) && problem_run(j, &q);
        for (int t = p.inputs; t < p.count; t++)
            for (int i = 0; i < SLICES && ok; i++) {
                size_t bytes = (size_t)q.t[t].shape.count * epi_dtype_size(q.t[t].shape.type);
                ok = !memcmp(p.t[t].data + (size_t)i * bytes, q.t[t].data, bytes);
            }
        check(ok && tensor_intact(&p.t[p.inputs]), "%s %s %s: a large output is as a small one", program,
              large, epi_dtype_name(type));
    }
    problem_free(&p);
    problem_free(&q);
    epi_kernel_free(k);
    epi_kernel_free(j);
}

/* ---- numbers of all sizes ---- */

static float of_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

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
static void test_quotients(epi_module *module) {
    enum { ROWS = 512, COLUMNS = 1024 };
    test_case all = {"rowloop", "over", "T=512,D=1024", 0};
    loaded l;
    problem p = {0};
    if (!load(module, &all, &l))
        return;
    epi_kernel *k = compile(&l, EPI_F32, 1);
    if (problem_make(&p, l.program, k, LAYOUT_PLAIN)) {
        float *x = (void *)p.t[0].data, *c = (void *)p.t[1].data, *y = (void *)p.t[2].data;
        for (int i = 0; i < ROWS; i++)
            c[i] = of_bits((uint32_t)i << 23 | (i % 3 ? (uint32_t)i * 12345 % (1 << 23) : 0));
        for (int i = 0; i < ROWS * COLUMNS; i++)
            x[i] = of_bits((uint32_t)i * 2654435761u);
        int i = problem_run(k, &p) ? 0 : -1;
        while (i >= 0 && i < ROWS * COLUMNS - 1 && is_quotient(y[i], (double)x[i], (double)c[i / COLUMNS]))
            i++;
        check(i == ROWS * COLUMNS - 1, "elements over a row's number, of all sizes: the one at %d", i);
    }
    problem_free(&p);
    epi_kernel_free(k);
}

/* ---- shared memory ---- */

/* Runs with outputs over the inputs given for them (-1: apart) and compares with a run apart. */
static void test_in_place(epi_module *module, const test_case *c, epi_dtype type, layout how,
                          const int *over) {
    loaded l;
    problem p = {0}, q = {0};
    if (!load(module, c, &l))
        return;
    epi_kernel *k = compile(&l, type, 2);
    if (problem_make(&p, l.program, k, how) && problem_make(&q, l.program, k, how)) {
        problem_fill(&p, CASE_SEED);
        problem_fill(&q, CASE_SEED);
        for (int o = 0; o < q.count - q.inputs; o++)
            if (over[o] >= 0) {
                check(epi_kernel_in_place(k, q.inputs + o, over[o]), "%s: output %d may lie over input %d",
                      c->program, o, over[o]);
                q.args[q.inputs + o] = q.args[over[o]];
            }
        check(problem_run(k, &p) && problem_run(k, &q), "%s runs in place", c->program);
        for (int o = 0; o < q.count - q.inputs; o++)
            if (over[o] >= 0)
                memcpy(q.t[q.inputs + o].data, q.t[over[o]].data,
                       (size_t)q.t[over[o]].span * epi_dtype_size(q.t[over[o]].shape.type));
        check(same_bits(&p, &q), "%s %s layout %d: in place and apart have the same bits", c->program,
              c->dims, (int)how);
    }
    problem_free(&p);
    problem_free(&q);
    epi_kernel_free(k);
}

static void test_refusals(epi_module *module) {
    test_case c = {"rowloop", "layernorm", "T=4,D=8", 0};
    loaded l;
    float memory[256] = {0}, g[8], b[8], eps = 1, mu[4], r[4];
    int64_t wide[2] = {16, 1};
    epi_error err;
    if (!load(module, &c, &l))
        return;
    epi_kernel *k = compile(&l, EPI_F32, 1);
    void *work = aligned_alloc(64, epi_kernel_workspace(k));
    epi_tensor args[7] = {{memory, NULL}, {g, NULL},  {b, NULL}, {&eps, NULL},
                          {memory, NULL}, {mu, NULL}, {r, NULL}};
    check(epi_kernel_run(k, args, 7, work, &err) == EPI_OK, "y over x");
    args[4].data = memory + 1;
    check(epi_kernel_run(k, args, 7, work, &err) == EPI_ERR_ARGUMENT &&
              strstr(err.message, "overlaps the input 'x'"),
          "y one element further on is refused: %s", err.message);
    args[4] = (epi_tensor){memory, wide};
    check(epi_kernel_run(k, args, 7, work, &err) == EPI_ERR_ARGUMENT,
          "y over x with other strides is refused");
    args[0].strides = wide;
    args[4].data = memory + 8;
    check(epi_kernel_run(k, args, 7, work, &err) == EPI_OK, "two slices of a matrix lie apart");
    args[4].data = memory + 7;
    check(epi_kernel_run(k, args, 7, work, &err) == EPI_ERR_ARGUMENT,
          "slices that share a column are refused");
    args[4].data = memory + 8;
    args[5].data = r + 2;
    check(epi_kernel_run(k, args, 7, work, &err) == EPI_ERR_ARGUMENT && strstr(err.message, "output"),
          "two outputs may not overlap: %s", err.message);
    args[5].data = g;
    check(epi_kernel_run(k, args, 7, work, &err) == EPI_ERR_ARGUMENT, "nor an output and a short input");
    check(!epi_kernel_in_place(k, 5, 0) && !epi_kernel_in_place(k, 4, 1) && !epi_kernel_in_place(k, 0, 4) &&
              !epi_kernel_in_place(NULL, 4, 0) && !epi_kernel_in_place(k, 4, -1),
          "only a tensor of the same shape");
    free(work);
    epi_kernel_free(k);
}

int main(void) {
    epi_module *module;
    epi_error err;
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens") ||
        !check(epi_module_parse(ctx, text, sizeof text - 1, "rowloop", &module, &err) == EPI_OK, "%d: %s",
               err.line, err.message))
        return finish();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        loaded l;
        if (!load(module, &rows[i], &l))
            continue;
        test_results(&l, EPI_F32);
        test_results(&l, EPI_BF16);
    }
    test_batch(module, "rmsnorm", "T=301,D=17", 300);
    test_batch(module, "softmax", "T=9,D=3001", 4);
    test_batch(module, "layernorm", "T=70,D=64", 69);
    test_batch(module, "losses", "T=5,D=1000", 2);
    test_batch(module, "flat", "T=8,D=300", 0); /* alone, it is shorter than what tapes pay for */
    test_batch(module, "flat", "T=8,D=300", 7);
    test_large(module, "rmsnorm", EPI_F32, 1001);
    test_large(module, "rmsnorm", EPI_F32, 3001);
    test_large(module, "softmax", EPI_F32, 4096);
    test_large(module, "softmax", EPI_BF16, 2999);
    test_large(module, "swiglu", EPI_BF16, 1001);
    test_large(module, "log_softmax", EPI_F32, 1024);
    test_quotients(module);
    for (int how = 0; how < LAYOUT_COUNT; how++)
        for (int type = 0; type < 2; type++) {
            epi_dtype t = type ? EPI_BF16 : EPI_F32;
            test_in_place(module, &(test_case){"", "softmax", "T=5,D=4100", 0}, t, (layout)how, (int[]){0});
            test_in_place(module, &(test_case){"", "adam", "T=33,D=1999", 0}, t, (layout)how,
                          (int[]){0, 2, 3});
            test_in_place(module, &(test_case){"", "crossed", "T=33,D=2999", 0}, t, (layout)how,
                          (int[]){0, 1});
            test_in_place(module, &(test_case){"", "crossed", "T=33,D=2999", 0}, t, (layout)how,
                          (int[]){1, 0});
            test_in_place(module, &(test_case){"", "handed", "T=33,D=2999", 0}, t, (layout)how,
                          (int[]){0, -1});
            test_in_place(module, &(test_case){"", "handed", "T=33,D=299", 0}, t, (layout)how, (int[]){1, 0});
            test_in_place(module, &(test_case){"", "swapped", "T=33,D=299", 0}, t, (layout)how,
                          (int[]){0, 1});
            test_in_place(module, &(test_case){"", "swapped", "T=3,D=2999", 0}, t, (layout)how,
                          (int[]){1, 0});
            test_in_place(module, &(test_case){"", "rope", "T=2,S=5,D=64", 0}, t, (layout)how, (int[]){0});
            test_in_place(module, &(test_case){"", "norm_back", "T=80,D=40", 0}, t, (layout)how,
                          (int[]){1, -1, -1});
        }
    test_refusals(module);
    epi_module_free(module);
    epi_context_close(ctx);
    return finish();
}
