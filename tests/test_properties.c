/* test_properties.c: what must hold whatever the numbers are: linearity, rows that do not see each
 * other, bits that do not depend on threads or on the batch, derivatives, and what the delayed
 * LayerNorm loses where it says it does. */
#include <pthread.h>

#include "ir/ops.h"
#include "ran.h"

static epi_context *ctx;

/* The outputs of a text for inputs that `fill` makes. Discard them in any case. */
static bool run_text(ran *r, const char *text, const char *dims, way how, void (*fill)(problem *, void *),
                     void *arg) {
    how.narrow = true;
    if (!made_of(r, ctx, text, dims, how))
        return false;
    fill(&r->p, arg);
    return run_again(r);
}

/* ---- linearity ---- */

/* Small integers: every product and sum is exact, so equality is exact. */
static void fill_integers(problem *p, void *which) {
    int part = *(int *)which;
    for (int i = 0; i < p->inputs; i++) {
        uint64_t s = 100 + (uint64_t)i, s2 = 200;
        for (int64_t e = 0; e < p->t[i].shape.count; e++) {
            int a = random_below(&s, 15) - 7, b = random_below(&s2, 15) - 7;
            put_element(p->t[i].data, p->t[i].shape.type, e,
                        i           ? a
                        : part == 0 ? a
                        : part == 1 ? b
                                    : a + 2 * b);
        }
    }
}

static void test_linearity(void) {
    for (int type = EPI_F32; type <= EPI_F16; type++) {
        ran r[3] = {0};
        const tensor *y[3];
        bool ok = true;
        for (int part = 0; part < 3; part++) {
            ok &= run_text(&r[part], "f(x[T,K], w[N,K]) -> y[T,N] { y = x @ w }", "T=70,K=130,N=90",
                           (way){.type = (epi_dtype)type, .types = "y=f32"}, fill_integers, &part);
            y[part] = &r[part].p.t[2];
        }
        for (int64_t i = 0; ok && i < y[0]->shape.count; i++)
            ok = at(y[2], i) == at(y[0], i) + 2 * at(y[1], i);
        check(ok, "(a + 2b) @ w == a @ w + 2 (b @ w), %s", epi_dtype_name((epi_dtype)type));
        for (int part = 0; part < 3; part++)
            discard(&r[part]);
    }
}

/* ---- rows ---- */

static const char chain[] = "f(x[T,K], w[F,K], g[F], res[T,F], r[T]) -> (h[T,F], o[T,F/2], s[T], l[T]) {\n"
                            "  h = (x @ w)*r + res\n"
                            "  a, b = pairs(h*g, F)\n"
                            "  o = silu(a)*b\n"
                            "  s = mean(h*h, F)\n"
                            "  l = logsumexp(h, F) - sum(where(index(F) == 3, h, 0), F)\n"
                            "}\n";

static double random_number(const problem *p, int t, uint64_t *s) {
    (void)p, (void)t;
    return 2 * random_unit(s) - 1;
}

static void fill_rows(problem *p, void *from) {
    fill_rows_from(p, "T", from, random_number);
}

static void test_rows(void) {
    enum { ROWS = 211 };
    static const epi_dtype types[] = {EPI_F32, EPI_BF16, EPI_F16};
    int plain[ROWS], mixed[ROWS];
    for (int i = 0; i < ROWS; i++) {
        plain[i] = i;
        mixed[i] = (i * 97 + 13) % ROWS;
    }
    for (int t = 0; t < 3; t++) {
        static const char dims[] = "T=211,K=77,F=522";
        way how = {.type = types[t]};
        const char *type = epi_dtype_name(types[t]);
        ran full, other;
        bool all = run_text(&full, chain, dims, how, fill_rows, plain),
             ok = run_text(&other, chain, dims, how, fill_rows, mixed) && all;
        for (int i = 0; ok && i < ROWS; i++)
            ok = same_rows(&other, i, &full, mixed[i], "T");
        check(ok, "permuting rows permutes the results, bit for bit, %s", type);
        discard(&other);
        for (int i = 0; i < ROWS; i += 70) {
            ok = run_text(&other, chain, "T=1,K=77,F=522", how, fill_rows, &plain[i]) && all;
            check(ok && same_rows(&other, 0, &full, i, "T"),
                  "a batch of one is its row of a larger batch, bit for bit, %s", type);
            discard(&other);
        }
        how.threads = 1;
        ok = run_text(&other, chain, dims, how, fill_rows, plain) && all;
        check(ok && same_outputs(&other, &full), "the same bits with one thread and with two, %s", type);
        DISCARD(&other, &full);
    }
}

/* Few rows take other ways through a product than many: the same bits, whichever axis of the weights is
 * contiguous, with depths of one sweep, of several and of so many that their sums are kept apart, and ends
 * of every length. */
static void test_few_rows(void) {
    enum { ROWS = 64, FEW = 17 };
    static const epi_dtype types[] = {EPI_F32, EPI_BF16, EPI_F16};
    static const int depths[] = {1, 77, 1203, 25001}, columns[] = {522, 270, 38, 522};
    int plain[ROWS];
    for (int i = 0; i < ROWS; i++)
        plain[i] = i;
    for (int n = 0; n < 3 * 4 * 2; n++) {
        char text[sizeof chain], size[64];
        const int k = depths[n / 3 % 4], f = columns[n / 3 % 4];
        const bool deep = n / 3 % 4 == 3; /* one type and a few numbers of rows: each takes long */
        const way how = {.type = types[n % 3]};
        ran full, few;
        if (deep && n % 3)
            continue;
        strcpy(text, chain);
        if (n / 12)
            memcpy(strstr(text, "w[F,K]"), "w[K,F]", 6);
        snprintf(size, sizeof size, "T=%d,K=%d,F=%d", ROWS, k, f);
        bool ok = run_text(&full, text, size, how, fill_rows, plain);
        for (int rows = 1; rows <= FEW; rows += deep ? 7 : 1) {
            snprintf(size, sizeof size, "T=%d,K=%d,F=%d", rows, k, f);
            bool same = run_text(&few, text, size, how, fill_rows, plain) && ok;
            for (int i = 0; same && i < rows; i++)
                same = same_rows(&few, i, &full, i, "T");
            check(same, "%d rows have the bits that they have among %d, %s, %s, %d deep", rows, ROWS,
                  epi_dtype_name(types[n % 3]), n / 12 ? "w[K,F]" : "w[F,K]", k);
            discard(&few);
        }
        discard(&full);
    }
}

/* ---- two threads, two kernels, one context ---- */

static void *work(void *arg) {
    ran *r = arg;
    bool ok = true;
    for (int i = 0; i < 20; i++)
        ok &= problem_run(r->k, &r->p);
    return ok ? r : NULL;
}

static void test_concurrent(void) {
    static const char *const texts[] = {
        chain, "f(x[T,K], w[N,K], b[N]) -> (y[T,N], c[N]) { y = gelu(x @ w + b)  c = sum(y, T) }"};
    static const char *const dims[] = {"T=200,K=33,F=300", "T=250,K=31,N=270"};
    static ran alone[2], jobs[4];
    pthread_t id[4];
    bool ok = true;
    for (int i = 0; i < 2; i++)
        ok &= made_of(&alone[i], ctx, texts[i], dims[i], (way){.seed = 9}) && run_again(&alone[i]);
    for (int i = 0; i < 4 && ok; i++) { /* each kernel also runs twice at once */
        jobs[i].k = alone[i % 2].k;
        ok = check(problem_make(&jobs[i].p, alone[i % 2].p.program, jobs[i].k, LAYOUT_PLAIN), "memory");
        problem_fill(&jobs[i].p, 9);
    }
    for (int i = 0; i < 4 && ok; i++)
        pthread_create(&id[i], NULL, work, &jobs[i]);
    for (int i = 0; i < 4 && ok; i++) {
        void *ran_well;
        pthread_join(id[i], &ran_well);
        check(ran_well && same_outputs(&jobs[i], &alone[i % 2]),
              "kernels that run at once give what they give alone");
        problem_free(&jobs[i].p);
    }
    DISCARD(&alone[0], &alone[1]);
}

/* ---- derivatives ---- */

typedef struct point {
    double at[4]; /* a, b, c, d */
} point;

static void fill_point(problem *p, void *arg) {
    for (int i = 0; i < p->inputs; i++)
        put_element(p->t[i].data, EPI_F64, 0, ((point *)arg)->at[i]);
}

/* The value of a scalar program in f64 at a point. */
static double evaluate(const char *text, point at_point) {
    ran r;
    way how = {.path = EPI_PATH_REFERENCE, .types = "a=f64,b=f64,c=f64,d=f64,y=f64"};
    double y = run_text(&r, text, "", how, fill_point, &at_point) ? at(&r.p.t[r.p.count - 1], 0) : NAN;
    discard(&r);
    return y;
}

/* Every derivative in ops.def that is a map's, against central differences. */
static void test_derivatives(void) {
    static const char names[] = "abc";
    static const double points[][3] = {{0.7, 1.3, -0.4}, {1.9, 0.6, 0.8}, {0.31, -1.7, 2.2}};
    for (int op = 0; op < EPI_OP_COUNT; op++) {
        const epi_op_row *row = &epi_ops[op];
        if (row->cls != EPI_CLASS_MAP || op == EPI_OP_DITHER || row->converts) /* these jump */
            continue;
        char f[256], call[128];
        bool word = row->text[0] >= 'a' && row->text[0] <= 'z' && strcmp(row->text, "and") &&
                    strcmp(row->text, "or") && strcmp(row->text, "not");
        const char *form = !word ? (row->arity == 1 ? "%1$s a" : "a %1$s b")
                                 : (const char *[]){"%s(a)", "%s(a, b)", "%s(a, b, c)"}[row->arity - 1];
        snprintf(call, sizeof call, form, row->text);
        snprintf(f, sizeof f, "f(a, b, c, d) -> y { y = %s }", call);
        for (int i = 0; i < row->arity; i++)
            for (int n = 0; n < 3; n++) {
                char g[1024];
                point here = {{points[n][0], points[n][1], points[n][2], 1.5}}, low = here, high = here;
                double h = 1e-6;
                low.at[i] -= h;
                high.at[i] += h;
                double numeric = 1.5 * (evaluate(f, high) - evaluate(f, low)) / (2 * h);
                /* the text may speak of y, the result: it is bound by a call */
                snprintf(g, sizeof g,
                         "f(a, b, c, d) -> y { v = %s  y = rule(a, b, c, d, v) }\n"
                         "rule(a, b, c, d, y) -> g { g = %s }\n",
                         call, *row->derivative[i] ? row->derivative[i] : "0*d");
                double exact = evaluate(g, here);
                check(fabs(exact - numeric) <= 1e-6 * (1 + fabs(numeric)),
                      "d %s / d %c at %g, %g: %g, numerically %g", row->id, names[i], here.at[0], here.at[1],
                      exact, numeric);
            }
    }
}

/* ---- the delayed LayerNorm ---- */

enum { LN_T = 13, LN_D = 257, LN_F = 31 };

/* x is `mean` plus unit noise; statistics and folded weights are made here in f64. */
static void fill_layernorm(problem *p, void *arg) {
    uint64_t s = 77;
    double x[LN_D];
    for (int i = 0; i < LN_T; i++) {
        double mu = 0, var = 0;
        for (int j = 0; j < LN_D; j++) {
            x[j] = (double)(float)(*(double *)arg + 2 * random_unit(&s) - 1);
            mu += x[j] / LN_D;
            put_at(&p->t[0], i * LN_D + j, x[j]);
        }
        for (int j = 0; j < LN_D; j++)
            var += (x[j] - mu) * (x[j] - mu) / LN_D;
        put_at(&p->t[2], i, mu);
        put_at(&p->t[3], i, 1 / sqrt(var + 1e-5));
    }
    for (int i = 0; i < LN_F; i++) {
        double wg = 0;
        for (int j = 0; j < LN_D; j++) {
            double gw = (double)(float)((2 * random_unit(&s) - 1) * (0.5 + random_unit(&s)) / 16);
            wg += gw;
            put_at(&p->t[1], i * LN_D + j, gw);
        }
        put_at(&p->t[4], i, wg);
        put_at(&p->t[5], i, 0.25 * (double)i);
    }
}

/* The comment in programs/layernorm_linear.epi says that log2(|mu| * rstd) bits are lost: the error
 * must stay within that, and at mean 1000 it must show, or the comment is wrong. */
static void test_cancellation(void) {
    static const char text[] =
        "f(x[T,D], gw[F,D], mu[T], rstd[T], wg[F], c[F]) -> y[T,F] { y = rstd*(x @ gw) - rstd*mu*wg + c }";
    static const double means[] = {0, 1, 30, 1000, 30000};
    double small = 0;
    for (int n = 0; n < 5; n++) {
        double mean = means[n];
        ran out, ref = {0};
        bool ok = run_text(&out, text, "T=13,D=257,F=31", (way){0}, fill_layernorm, &mean) &&
                  run_text(&ref, text, "T=13,D=257,F=31", (way){.path = EPI_PATH_REFERENCE, .types = "y=f64"},
                           fill_layernorm, &mean);
        double error = 0, wg = 0;
        for (int64_t i = 0; ok && i < ref.p.t[6].shape.count; i++)
            error = fmax(error, apart(at(&out.p.t[6], i), at(&ref.p.t[6], i)));
        for (int i = 0; ok && i < LN_F; i++) /* what the product adds up, in absolute values */
            for (int j = 0; j < LN_D; j++)
                wg = fmax(wg, fabs(at(&out.p.t[1], i * LN_D + j)) * LN_D);
        double rstd = 1.75, bound = 0x1p-24 * (means[n] + 1) * rstd * wg * 4;
        check(ok && error <= bound, "delayed LayerNorm at mean %g: error %g, allowed %g", means[n], error,
              bound);
        if (n == 0)
            small = error;
        if (n == 3)
            check(error > 30 * small, "at mean 1000 the cancellation shows: %g beside %g", error, small);
        DISCARD(&out, &ref);
    }
}

/* ---- the variance of a product's rows ---- */

enum { VAR_T = 5, VAR_K = 16, VAR_D = 700 };

/* x @ w is small integers over 64, exact in f32; res is the mean, also exact beside it. One row has an
 * outlier in its first column, and one is infinite there. */
static void fill_far(problem *p, void *arg) {
    double mean = *(double *)arg;
    uint64_t s = 5;
    for (int i = 0; i < 3; i++)
        for (int64_t e = 0; e < p->t[i].shape.count; e++)
            put_at(&p->t[i], e, i < 2 ? (random_below(&s, 15) - 7) / 8.0 : mean);
    put_element(p->t[2].data, EPI_F32, 3 * VAR_D, mean + 4096);
    put_element(p->t[2].data, EPI_F32, 4 * VAR_D, (double)INFINITY);
}

/* Partials of a tile are merged without cancellation: the statistics are as good as those of the row's exact
 * elements from a mean that is off by a rounding of every addition. And of rows that are infinite the mean
 * is, too. Differences of squares would be off by more than 2^-24 times the squared mean. */
static void test_variance(void) {
    static const char text[] = "f(x[T,K], w[D,K], res[T,D]) -> (h[T,D], m[T], v[T]) "
                               "{ h = x @ w + res  m = mean(h, D)  v = var(h, D) }";
    static const double means[] = {0, 1000, -32768};
    for (int n = 0; n < 3; n++) {
        double offset = means[n];
        ran out;
        bool ok = run_text(&out, text, "T=5,K=16,D=700", (way){0}, fill_far, &offset);
        const tensor *h_of = &out.p.t[3], *m_of = &out.p.t[4], *v_of = &out.p.t[5];
        for (int i = 0; ok && i < VAR_T - 1; i++) {
            double mean = 0, var = 0, h[VAR_D], m = at(m_of, i), v = at(v_of, i);
            for (int j = 0; j < VAR_D; j++)
                mean += (h[j] = at(h_of, i * VAR_D + j)) / VAR_D;
            for (int j = 0; j < VAR_D; j++)
                var += (h[j] - mean) * (h[j] - mean) / VAR_D;
            double off =
                0x1p-24 * 16 * (fabs(mean) + 8); /* 16 additions in a row, at most, are of numbers like it */
            check(fabs(m - mean) <= off, "the mean of row %d at %g is off by %g, allowed %g", i, means[n],
                  fabs(m - mean), off);
            check(fabs(v - var) <= 0x1p-24 * 64 * var + 2 * off * sqrt(var) + off * off,
                  "the variance of row %d at %g, %g, is off by %g", i, means[n], var, fabs(v - var));
        }
        check(ok && isinf(at(m_of, VAR_T - 1)) && isnan(at(v_of, VAR_T - 1)), "an infinite element at %g",
              means[n]);
        discard(&out);
    }
}

/* ---- stages ---- */

static void fill_seven(problem *p, void *arg) {
    (void)arg;
    problem_fill(p, 7);
    for (int i = p->inputs; i < p->count; i++) /* a poison that no result happens to be, not even NaN */
        memset(p->t[i].data, 0x5b, tensor_bytes(&p->t[i]));
}

/* Programs whose values are needed in more than one stage, or in none, on both paths. */
static void test_stages(void) {
    static const struct {
        const char *text, *dims;
    } cases[] = {
        {"f(x[T,K], w[N,K], b[N]) -> (y[T,N], c[N]) { c = b*2  y = x @ w + c }", "T=10,K=20,N=300"},
        {"f(x[T,K], w[N,K], b[T]) -> (y[T,N], c[T]) { c = b*2  y = (x @ w)*c }", "T=10,K=20,N=30"},
        {"f(x[T,K], w[N,K], b) -> (y[T,N], c) { c = b*2  y = x @ w + c }", "T=10,K=20,N=30"},
        {"f(x[T,K], w[N,K]) -> (y[T,N], z[T,N], t[N,T]) { y = x @ w  z = y  t = y }", "T=10,K=20,N=30"},
        {"f(x[T,K], w[N,K]) -> (y[T,N], z[T,K], i[T]) { y = x @ w  z = x  i = index(T) }", "T=10,K=20,N=30"},
        {"f(x[T,K], w[N,K], g[K]) -> (y[T,N], m[T]) { n = x*g  m = mean(n, K)  y = n @ w + m }",
         "T=10,K=20,N=30"},
        {"f(x[T,K], w[H,D,K]) -> s[T,H] { s = sum(x @ w, D) }", "T=3,H=4,D=0,K=5"},
        {"f(x[T,K], w[H,D,K]) -> s[T,H] { s = max(x @ w, D) }", "T=3,H=4,D=300,K=5"},
        {"f(x[T,K], w[N,K]) -> (l, m[T]) { m = logsumexp(x @ w, N)  l = mean(m, T) }", "T=10,K=20,N=30"},
        {"f(a[D], b[D]) -> (s, t) { s = a @ b  t = s*2 }", "D=66"},
        {"f(x[T,K], w[N,K]) -> (h: f64[T,K], y[T,N]) { h = x*2  y = h @ w }", "T=10,K=20,N=30"},
        {"f(x[T,K], w[N,K]) -> (h: i32[T,N], y[T,N]) { h = 10*(x @ w)  y = h*0.1 }", "T=10,K=20,N=30"},
        {"f(x[T,K], v[K,J], w[N,J]) -> y[T,N] { y = silu(x @ v) @ w }", "T=10,K=20,J=7,N=30"},
        /* large scores, made once for their maximum and once for its difference, there without a rounding */
        {"f(x[A,C]) -> y[A,C,E,F] { u = 8*x*rename(rename(x, A, B), C, D)  v = u - mean(u, B, D)"
         "  w = v @ rename(rename(rename(rename(v, B, E), D, F), A, B), C, D)"
         "  z = rename(rename(w, A, G), C, H)  y = softmax((w @ z)*0.35, G, H) @ z }",
         "A=1,C=8,E=1,F=8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int path = 0; path < 2; path++) {
            ran out, ref = {0};
            bool ok = run_text(&out, cases[i].text, cases[i].dims, (way){.path = (epi_path)path}, fill_seven,
                               NULL) &&
                      run_text(&ref, cases[i].text, cases[i].dims, (way){.path = EPI_PATH_REFERENCE},
                               fill_seven, NULL);
            for (int t = out.p.inputs; t < out.p.count && ok; t++)
                for (int64_t e = 0; e < out.p.t[t].shape.count && ok; e++) {
                    double a = at(&out.p.t[t], e), b = at(&ref.p.t[t], e);
                    bool integer = out.p.t[t].shape.type == EPI_I32;
                    ok = apart(a, b) <=
                         (integer ? 1 : 1e-5 * (1 + fabs(b))); /* sums of up to 66 terms around 1 */
                }
            check(ok, "%s, path %d", cases[i].text, path);
            DISCARD(&out, &ref);
        }
}

static void fill_large(problem *p, void *arg) {
    (void)arg;
    for (int e = 0; e < 4; e++)
        put_element(p->t[0].data, EPI_I32, e, 16777217.0 + 2 * e);
}

/* A copy is a copy, beyond what f32 can hold. */
static void test_exact_copy(void) {
    for (int path = 0; path <= EPI_PATH_REFERENCE; path++) {
        ran r;
        bool ok = run_text(&r, "f(x: i32[T]) -> y: i32[T] { y = x }", "T=4", (way){.path = (epi_path)path},
                           fill_large, NULL);
        check(ok && (path == EPI_PATH_NAIVE || !memcmp(r.p.t[0].data, r.p.t[1].data, 16)),
              "an i32 copy keeps its bits, path %d", path);
        discard(&r);
    }
}

/* ---- special numbers ---- */

static void fill_special(problem *p, void *arg) {
    (void)arg;
    problem_fill(p, 4);
    for (int i = 0; i < 3; i++) /* one row each of +inf, -inf and NaN in the residual */
        put_element(p->t[2].data, EPI_F32, (2 + i) * 300 + 7, i == 0 ? INFINITY : i == 1 ? -INFINITY : NAN);
    for (int j = 0; j < 300; j++)
        put_element(p->t[2].data, EPI_F32, 6 * 300 + j, -INFINITY);
}

static void test_special(void) {
    ran r;
    bool ok = run_text(&r,
                       "f(x[T,K], w[N,K], r[T,N]) -> (l[T], m[T], s[T], c[N]) { h = x @ w + r  l = "
                       "logsumexp(h, N)  m = max(h, N)  s = sum(h, N)  c = max(h, T) }",
                       "T=9,K=5,N=300", (way){0}, fill_special, NULL);
    const float *l = (float *)(void *)r.p.t[3].data, *m = (float *)(void *)r.p.t[4].data,
                *s = (float *)(void *)r.p.t[5].data, *c = (float *)(void *)r.p.t[6].data;
    check(ok && l[2] == INFINITY && m[2] == INFINITY && s[2] == INFINITY, "+inf goes through");
    check(ok && isfinite(l[3]) && isfinite(m[3]) && s[3] == -INFINITY,
          "one -inf is nothing to log-sum-exp and max");
    check(ok && isnan(l[4]) && isnan(m[4]) && isnan(s[4]) && isnan(c[7]), "NaN goes through");
    check(ok && l[6] == -INFINITY && m[6] == -INFINITY, "a row of -inf has the log-sum-exp -inf");
    check(ok && isfinite(l[0]) && isfinite(c[0]), "other rows and columns see nothing of it");
    discard(&r);
}

/* ---- the perturbed reference ---- */

/* How far the outputs of one program come apart by a unit, relative to the largest element of the first. */
static void find_spread(const char *text, double unit, int threads, double *spread) {
    way how = {.path = EPI_PATH_REFERENCE, .threads = threads, .narrow = true, .seed = 11};
    ran ref, moved;
    bool ok = made_of(&ref, ctx, text, "T=5,D=9", how) && run_again(&ref);
    double scale = 0;
    for (int64_t i = 0; ok && i < ref.p.t[ref.p.inputs].shape.count; i++)
        scale = fmax(scale, fabs(at(&ref.p.t[ref.p.inputs], i)));
    for (int out = 0; out < 4; out++)
        spread[out] = 0;
    how.perturb = unit;
    for (how.perturb_seed = 0; how.perturb_seed < 8 && ok; how.perturb_seed++) {
        ok = made_of(&moved, ctx, text, "T=5,D=9", how) && run_again(&moved);
        for (int t = ref.p.inputs; t < ref.p.count && ok; t++)
            for (int64_t i = 0; i < ref.p.t[t].shape.count; i++)
                spread[t - ref.p.inputs] =
                    fmax(spread[t - ref.p.inputs], fabs(at(&moved.p.t[t], i) - at(&ref.p.t[t], i)) / scale);
        discard(&moved);
    }
    discard(&ref);
}

/* A reference whose values are moved by a unit: the results move by about as much, also those that are 0
 * because large terms cancel; what is chosen, compared and counted is as it was. */
static void test_perturbed(void) {
    const char *text =
        "f(x: f64[T,D], i: i32[T]) -> (y: f64[T,D], zero: f64[T,D], best: f64[T], at: f64[T]) {\n"
        "    y = exp(x)\n"
        "    zero = y*y/y - y\n"
        "    best = argmax(y, D)\n"
        "    at = gather(x, min(0*i + 3, 4), D)\n"
        "}\n";
    double spread[4], again[4], unit = 1e-6;
    find_spread(text, unit, 1, spread);
    find_spread(text, unit, 2, again);
    check(spread[0] > unit / 2 && spread[0] <= 1.01 * unit, "a value moves by the unit: %g", spread[0]);
    check(spread[1] > unit / 2 && spread[1] <= 4 * unit, "and so does what cancels: %g", spread[1]);
    check(spread[2] == 0 && spread[3] == 0, "what is compared and counted does not: %g, %g", spread[2],
          spread[3]);
    check(!memcmp(spread, again, sizeof spread), "threads make no difference");
    epi_module *m = parsed(ctx, text);
    epi_error err = {0};
    epi_kernel *k = NULL;
    refused_as(compile_as(epi_module_program(m, 0), "T=5,D=9", (way){.perturb = unit}, &k, &err),
               EPI_ERR_ARGUMENT, &err, "reference path");
    epi_module_free(m);
}

/* Whole numbers that rounded values choose are moved by none: neither they nor what lies at such places. */
static void test_perturbed_integers(void) {
    const char *text =
        "f(x: f64[T,D], t: i32[T,D], c: f64[T]) -> (a: f64[T,K], b: f64[T,K], s: f64[T], n: f64[D]) {\n"
        "    i = gather(t, topk(exp(x), D, K=3), D)\n"
        "    a = gather(c, min(1000*i - 999*i, size(T) - 1), T)\n"
        "    b = 1000*i + 7 - i*i\n"
        "    s = sum(cumsum(where(index(K) == 1, i, 300), K), K)\n"
        "    n = scatter(1 + 0*i, i, D)\n"
        "}\n";
    double spread[4];
    find_spread(text, 0x1p-8, 1, spread);
    check(spread[0] == 0, "what lies at a place that a choice names stays: %g", spread[0]);
    check(spread[1] == 0 && spread[2] == 0 && spread[3] == 0, "integers stay: %g, %g, %g", spread[1],
          spread[2], spread[3]);
}

/* ---- the API's own errors ---- */

/* Scalars that are given as numbers are what they are as tensors of one element. */
static void test_numbers(void) {
    epi_kernel *k = text_kernel(
        ctx, "f(x[T], a, s: bf16, seed: i32) -> y[T] { y = (a*x + s)*uniform(seed, T) }", "T=64", (way){0});
    float x[64], y[2][64], a = 0.3f;
    uint16_t s = 0x3e9a; /* 0.30078125 */
    int32_t seed = 1234567891;
    double numbers[] = {0, (double)a, 0.3, seed, 0};
    epi_tensor tensors[] = {{x, NULL}, {&a, NULL}, {&s, NULL}, {&seed, NULL}, {y[0], NULL}};
    epi_error err;
    void *work = aligned_alloc(64, epi_kernel_workspace(k));
    if (!check(k && work, "memory"))
        return;
    for (int i = 0; i < 64; i++)
        x[i] = (float)i / 8;
    check(epi_kernel_run(k, tensors, 5, work, &err) == EPI_OK, "%s", err.message);
    for (int i = 1; i < 4; i++)
        tensors[i].data = NULL;
    tensors[4].data = y[1];
    epi_call call = EPI_CALL(.tensors = tensors, .count = 5, .workspace = work, .numbers = numbers);
    check(epi_kernel_call(k, &call, &err) == EPI_OK, "%s", err.message);
    check(!memcmp(y[0], y[1], sizeof y[0]), "the same bits");
    epi_call wrong[] = {call, call, call};
    const char *const says[] = {"'a' is NULL", "no events", "EPI_CALL"};
    wrong[0].numbers = NULL;
    wrong[1].wait = x;
    wrong[2].size = 0;
    for (int i = 0; i < 3; i++)
        refused_as(epi_kernel_call(k, &wrong[i], &err), EPI_ERR_ARGUMENT, &err, says[i]);
    tensors[0].data = NULL;
    refused_as(epi_kernel_call(k, &call, &err), EPI_ERR_ARGUMENT, &err, "'x' is NULL");
    free(work);
    epi_kernel_free(k);
}

static void test_device(void) {
    for (int i = 0; i < epi_device_count(ctx); i++) {
        epi_device_info d;
        bool zero = true;
        check(epi_device_get(ctx, i, &d) == EPI_OK && d.is_gpu == (i > 0) && (d.ordinal >= 0) == d.is_gpu &&
                  (i || d.ordinal == -1),
              "a GPU has a number of CUDA's, and the CPU none");
        for (size_t j = 0; j < sizeof d.uuid; j++)
            zero &= d.uuid[j] == 0;
        check(zero == !d.is_gpu, "so it is with a UUID");
    }
}

/* Options of other versions: shorter ones, and longer ones in which nothing is set beyond what is known. */
static void test_sizes(void) {
    static const char text[] = "f(x[T]) -> y[T] { y = 2*x }";
    epi_dim_binding dims[] = {{"T", 4}};
    struct {
        epi_options o;
        unsigned char more[16];
    } later = {.o = EPI_OPTIONS(.dims = dims, .dim_count = 1)};
    epi_module *m = parsed(ctx, text);
    epi_error err;
    static const struct {
        size_t size;
        unsigned char last;
        epi_status status;
    } cases[] = {{sizeof(epi_options), 0, EPI_OK},
                 {offsetof(epi_options, row_axes), 0, EPI_OK},
                 {sizeof(epi_options) + 16, 0, EPI_OK},
                 {sizeof(epi_options) + 16, 1, EPI_ERR_ARGUMENT},
                 {sizeof(size_t), 0, EPI_ERR_DIMS}, /* all fields are missing */
                 {0, 0, EPI_ERR_ARGUMENT},
                 {(size_t)-1, 0, EPI_ERR_ARGUMENT}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        epi_kernel *k;
        later.o.size = cases[i].size;
        later.o.row_axis_count = -(cases[i].size < sizeof(epi_options)); /* not there, so not looked at */
        later.more[15] = cases[i].last;
        epi_status status = epi_kernel_compile(epi_module_program(m, 0), &later.o, &k, &err);
        check(status == cases[i].status, "options of %zu bytes: %s", cases[i].size, err.message);
        epi_kernel_free(k);
    }
    epi_module_free(m);
}

/* The description of the structs: whole, without gaps that a field would fit in. */
static void test_abi(void) {
    static char text[16384];
    size_t length = epi_describe_abi(text, sizeof text), size = 0, end = 0, offset, bytes;
    int structs = 0;
    check(length > 0 && length < sizeof text && strstr(text, "\"other\"") == NULL, "every field has a kind");
    for (const char *at = strstr(text, "\"size\":"); at; at = strstr(at + 1, "\"size\":")) {
        bool whole =
            sscanf(at, "\"size\":%zu,\"fields\"", &bytes) == 1 && strstr(at, "fields") == strchr(at, ',') + 2;
        const char *from = at;
        while (!whole && strncmp(from, "\"offset\":", 9) != 0)
            from--;
        if (whole) {
            check(!structs || end + 8 > size, "struct %d ends at %zu of %zu", structs, end, size);
            structs++;
            size = bytes;
            end = 0;
        } else if (check(sscanf(from, "\"offset\":%zu,\"size\":%zu", &offset, &bytes) == 2, "%.40s", from)) {
            check(offset >= end && offset - end < (bytes < 8 ? bytes : 8),
                  "%zu bytes at %zu are left out before %.60s", offset - end, end, from);
            end = offset + bytes;
        }
    }
    check(structs == 12 && end + 8 > size, "%d structs", structs);
}

/* A caller who knows less of a struct than the library gets no more, one who knows more gets zeros. */
static void test_sized(void) {
    enum { MORE = 64 };
    epi_kernel *k = text_kernel(ctx, "f(x[T,K], w[N,K]) -> y[T,N] { y = x @ w }", "T=3,K=4,N=5", (way){0});
    union {
        epi_device_info device;
        epi_kernel_info kernel;
        epi_part_info part;
        unsigned char bytes[sizeof(epi_part_info) + MORE];
    } whole, given;
    static const size_t own[] = {sizeof(epi_device_info), sizeof(epi_kernel_info), sizeof(epi_part_info)};
    for (int what = 0; what < 3; what++)
        for (size_t size = 0; size <= own[what] + MORE; size += 8) {
            memset(&whole, 0, sizeof whole);
            memset(&given, 0xa5, sizeof given);
            if (what == 0) {
                epi_device_get(ctx, 0, &whole.device);
                epi_device_get_sized(ctx, 0, &given.device, size);
            } else if (what == 1) {
                epi_kernel_get_info(k, &whole.kernel);
                epi_kernel_get_info_sized(k, &given.kernel, size);
            } else {
                epi_kernel_part(k, 0, &whole.part);
                epi_kernel_part_sized(k, 0, &given.part, size);
            }
            bool same = true; /* what there is, zeros, and what the caller had */
            for (size_t i = own[what] < size ? own[what] : size; i < sizeof given; i++)
                same &= given.bytes[i] == (i < size ? 0 : 0xa5);
            if (what == 0)
                same &= !size || !strcmp(given.device.name, whole.device.name);
            else if (what == 1)
                same &= (!size || !strcmp(given.kernel.mainloop, "gemm")) &&
                        (size < own[1] || given.kernel.terms == whole.kernel.terms);
            else
                same &= size < own[2] || given.part.info.terms == whole.part.info.terms;
            check(same, "struct %d of %zu bytes, of which the caller knows %zu", what, own[what], size);
        }
    epi_kernel_free(k);
}

static void test_api(void) {
    epi_error err;
    epi_module *m = parsed(ctx, "f(x[T,K], w[N,K]) -> y[T,N] { y = x @ w }");
    const epi_program *program = epi_module_program(m, 0);
    epi_kernel *k = kernel_of(program, "T=3,K=4,N=5", (way){0});
    float data[64] = {0};
    epi_tensor t[3] = {{data, NULL}, {data, NULL}, {data + 32, NULL}};
    unsigned char *work = aligned_alloc(64, epi_kernel_workspace(k) + 64);
    check(epi_kernel_workspace(k) > 0, "a workspace is never empty");
    const struct {
        int count;
        void *weight, *work;
        const char *message;
    } runs[] = {
        {2, data, work, "f has 3 tensors, 2 were given"},
        {3, data, work + 8, "64-byte aligned"},
        {3, data, NULL, ""},
        {3, NULL, work, "'w' is NULL"},
        {3, (char *)data + 1, work, "aligned"},
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        t[1].data = runs[i].weight;
        refused_as(epi_kernel_run(k, t, runs[i].count, runs[i].work, &err), EPI_ERR_ARGUMENT, &err,
                   runs[i].message);
    }
    check(epi_kernel_run(k, t, 3, work, NULL) == EPI_ERR_ARGUMENT, "without an error struct");
    static const char no_program[] = "the program is NULL, as epi_module_find returns";
    epi_kernel *unset = k;
    epi_module *underived = m;
    refused_as(epi_kernel_compile(NULL, NULL, &unset, &err), EPI_ERR_ARGUMENT, &err, no_program);
    refused_as(epi_program_grad(NULL, (const char *[]){"x"}, 1, &underived, &err), EPI_ERR_ARGUMENT, &err,
               no_program);
    check(!unset && !underived, "nothing is made of no program");
    refused_as(epi_module_parse(ctx, NULL, 0, "", &m, &err), EPI_ERR_ARGUMENT, &err, "");
    static const struct {
        way how;
        epi_status status;
        const char *message;
    } refused[] = {
        {{.types = "q=f32"}, EPI_ERR_ARGUMENT, "no tensor 'q'"},
        {{.types = "x=f64"}, EPI_ERR_UNSUPPORTED, "products take"},
        {{.micro = "nosuch"}, EPI_ERR_UNSUPPORTED, "'nosuch'"},
        {{.micro = "nosuch", .device = -90}, EPI_ERR_ARGUMENT, "is for the CPU"},
        {{.config = "any_64x64"}, EPI_ERR_ARGUMENT, "is for GPUs"},
        {{.device = 7}, EPI_ERR_UNSUPPORTED, "no device 7"},
        {{.threads = -1}, EPI_ERR_ARGUMENT, ""},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        epi_kernel *none;
        refused_as(compile_as(program, "T=3,K=4,N=5", refused[i].how, &none, &err), refused[i].status, &err,
                   refused[i].message);
    }
    check(!strcmp(epi_status_name(EPI_ERR_DIMS), "dims") && epi_dtype_find("bf16") == EPI_BF16 &&
              epi_dtype_find("x") == EPI_DTYPE_COUNT,
          "names");
    epi_kernel_free(NULL);
    epi_module_free(NULL);
    free(work);
    epi_kernel_free(k);
    epi_module_free(m);
}

/* ---- what else can be asked ---- */

static void test_convert(void) {
    static const float values[] = {1, -2.5f, 0x1.01p0f, 0x1.03p0f, 65519, 65520, 3e38f, 2147483648.0f, -3e9f};
    enum { COUNT = sizeof values / sizeof *values, MANY = 5000 };
    static const uint16_t bf16[COUNT] = {0x3f80, 0xc020, 0x3f80, 0x3f82, 0x4780,
                                         0x4780, 0x7f62, 0x4f00, 0xcf33};
    static const uint16_t f16[COUNT] = {0x3c00, 0xc100, 0x3c04, 0x3c0c, 0x7bff,
                                        0x7c00, 0x7c00, 0x7c00, 0xfc00};
    static const int32_t i32[COUNT] = {1, -2, 1, 1, 65519, 65520, INT32_MAX, INT32_MAX, INT32_MIN};
    unsigned char out[1 + MANY * 8]; /* and at an odd address */
    static const int64_t i64[COUNT] = {1, -2, 1, 1, 65519, 65520, INT64_MAX, 2147483648, -3000000000};
    static const int64_t wide[] = {16777217, -16777217, INT64_MAX, INT64_MIN, 4294967296};
    static const int32_t cut[] = {16777217, -16777217, INT32_MAX, INT32_MIN, INT32_MAX};
    static const int64_t again[] = {16777217, -16777217, INT32_MAX, INT32_MIN, INT32_MAX};
    static const float nan = NAN;
    static const int32_t zero = 0;
    static const struct {
        epi_dtype to, from;
        const void *want, *given;
        int count;
    } exact[] = {
        {EPI_BF16, EPI_F32, bf16, values, COUNT}, {EPI_F16, EPI_F32, f16, values, COUNT},
        {EPI_I32, EPI_F32, i32, values, COUNT},   {EPI_I64, EPI_F32, i64, values, COUNT},
        {EPI_I32, EPI_F32, &zero, &nan, 1},       {EPI_I32, EPI_I64, cut, wide, 5},
        {EPI_I64, EPI_I32, again, cut, 5},
    };
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
        check(epi_convert(out + 1, exact[i].to, exact[i].given, exact[i].from, exact[i].count) == EPI_OK &&
                  !memcmp(out + 1, exact[i].want, (size_t)exact[i].count * epi_dtype_size(exact[i].to)),
              "row %zu: %s to %s", i, epi_dtype_name(exact[i].from), epi_dtype_name(exact[i].to));
    float back[MANY];
    double many[MANY];
    for (int i = 0; i < MANY; i++)
        many[i] = i;
    check(epi_convert(out + 1, EPI_I32, many, EPI_F64, MANY) == EPI_OK &&
              epi_convert(back, EPI_F32, out + 1, EPI_I32, MANY) == EPI_OK && back[MANY - 1] == MANY - 1 &&
              back[1024] == 1024,
          "f64 to i32 to f32");
    check(epi_convert(out, EPI_F64, many, EPI_F64, MANY) == EPI_OK && !memcmp(out, many, sizeof many),
          "the same type");
    check(epi_convert(NULL, EPI_F32, NULL, EPI_BF16, 0) == EPI_OK, "nothing");
    check(epi_convert(NULL, EPI_F32, values, EPI_BF16, 1) == EPI_ERR_ARGUMENT, "to nowhere");
    check(epi_convert(out, EPI_DTYPE_COUNT, values, EPI_F32, 1) == EPI_ERR_ARGUMENT, "to no type");
    check(epi_convert(out, EPI_F32, values, EPI_F32, -1) == EPI_ERR_ARGUMENT, "a negative number of them");
}

/* Every configuration that suits a device can be compiled for it by name; one that does not is refused. */
static void test_configs(void) {
    int count = epi_gpu_config_count(), suit = 0;
    check(count > 0 && !epi_gpu_config_name(-1) && !epi_gpu_config_name(count), "%d configurations", count);
    check(epi_gpu_config_find("nosuch") < 0 && epi_gpu_config_find(NULL) < 0, "no such configuration");
    for (int i = 0; i < count; i++) {
        const char *name = epi_gpu_config_name(i);
        check(epi_gpu_config_find(name) == i, "%s is found", name);
        check(!epi_gpu_config_suits(ctx, i, 0, EPI_ROUND_PACKED), "%s is not for the CPU", name);
        for (int capability = 80; capability <= 90; capability += 10) {
            bool suits = epi_gpu_config_suits(ctx, i, -capability, EPI_ROUND_EXACT);
            bool few = !strncmp(name, "few_", 4), scaled = strstr(name, "_p") != NULL;
            const char *text = scaled ? "f(x: e4m3[M,K], y: e4m3[N,K]) -> z[M,N] { z = x @ y }"
                               : few  ? "f(x[M,K], y: i4[N,K]) -> z[M,N] { z = x @ y }"
                                      : "f(x[M,K], y[N,K]) -> z[M,N] { z = x @ y }";
            epi_module *m = parsed(ctx, text);
            epi_kernel *k;
            way how = {.type = EPI_BF16, .device = -capability, .rounding = EPI_ROUND_EXACT, .config = name};
            epi_status status = compile_as(epi_module_program(m, 0),
                                           few ? "M=8,N=512,K=512" : "M=512,N=512,K=512", how, &k, NULL);
            const char *micro = k ? info_of(k).micro : "";
            if (!strncmp(name, "attention_", 10))
                check(suits == (capability == 90 || strstr(name, "_mma_")) && status == EPI_ERR_UNSUPPORTED,
                      "%s for sm_%d: suits %d, and a product is no attention: %s", name, capability, suits,
                      epi_status_name(status));
            else if (few &&
                     status != EPI_OK) /* wide ones fit in shared memory where a group's step is short */
                check(status == EPI_ERR_UNSUPPORTED && strcmp(name, "few_8x16"), "%s for sm_%d: %s", name,
                      capability, epi_status_name(status));
            else
                check(suits == (status == EPI_OK && !strcmp(micro, name)), "%s for sm_%d: suits %d, %s by %s",
                      name, capability, suits, epi_status_name(status), micro);
            suit += suits;
            epi_kernel_free(k);
            epi_module_free(m);
        }
    }
    check(suit > count / 2 && suit < 2 * count, "%d of %d suit", suit, 2 * count);
}

/* Of an input a stride of 0 repeats an element; an output's elements are each somewhere else. */
static void test_zero_strides(void) {
    static const char text[] = "f(x[A,B]) -> y[A,B] { y = x + 1 }";
    static const struct {
        const char *dims;
        int64_t x[2], y[2];
        bool ok;
    } cases[] = {
        {"A=2,B=3", {0, 1}, {3, 1}, true},  {"A=2,B=3", {3, 0}, {3, 1}, true},
        {"A=2,B=3", {3, 1}, {0, 1}, false}, {"A=2,B=3", {3, 1}, {3, 0}, false},
        {"A=1,B=3", {3, 1}, {0, 1}, true},  {"A=2,B=0", {0, 1}, {0, 1}, true},
        {"A=2,B=3", {1, 2}, {1, 2}, true},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int path = EPI_PATH_FUSED; path <= EPI_PATH_REFERENCE; path++) {
            epi_error err;
            epi_kernel *k =
                text_kernel(ctx, text, cases[c].dims, (way){.path = (epi_path)path, .narrow = true});
            float x[6] = {1, 2, 3, 4, 5, 6}, y[6] = {0};
            epi_tensor tensors[] = {{x, cases[c].x}, {y, cases[c].y}};
            epi_status status = run_with(k, tensors, 2, &err);
            if (cases[c].ok)
                check(status == EPI_OK, "case %zu, path %d: %s", c, path, err.message);
            else
                refused_as(status, EPI_ERR_ARGUMENT, &err, "stride of the output 'y' along");
            epi_kernel_free(k);
        }
}

/* A kernel outlives its module: it runs and can be asked as before. Under AddressSanitizer a use of what the
 * module freed would show. */
static void test_outlives(void) {
    static const char text[] = "# doubles\nf(x[T], i: i32[T]) -> y[T] { y = x[i]*2 }";
    for (int path = EPI_PATH_FUSED; path <= EPI_PATH_REFERENCE; path++) {
        const way how = {.path = (epi_path)path, .narrow = true};
        epi_module *m = parsed(ctx, text);
        epi_kernel *other = kernel_of(epi_module_program(m, 0), "T=3", how),
                   *k = kernel_of(epi_module_program(m, 0), "T=3", how);
        epi_error err;
        epi_module_free(m);
        epi_kernel_free(other);
        float x[3] = {1, 2, 3}, y[3];
        int32_t order[3] = {2, 0, 1}, beyond[3] = {0, 7, 0};
        epi_tensor tensors[] = {{x, NULL}, {order, NULL}, {y, NULL}};
        char words[1000];
        epi_tensor_shape shape;
        check(run_on(k, tensors, 3) && y[0] == 6 && y[2] == 4, "path %d runs", path);
        tensors[1].data = beyond;
        refused_as(run_with(k, tensors, 3, &err), EPI_ERR_INDEX, &err, "i[1]");
        refused_as(run_with(k, tensors, 2, &err), EPI_ERR_ARGUMENT, &err, "f has 3");
        check(epi_kernel_describe(k, words, sizeof words) > 0 || path > EPI_PATH_UNFUSED, "a description");
        check(epi_kernel_tensor(k, 1, &shape) == EPI_OK && shape.index_below == 3, "a tensor");
        epi_kernel_free(k);
    }
    epi_kernel *k = text_kernel(ctx, text, "T=3", (way){.type = EPI_BF16, .device = -90});
    char words[1000];
    check(epi_kernel_describe(k, words, sizeof words) > 0 && epi_kernel_source(k, words, sizeof words) > 0,
          "a GPU's can be looked at");
    epi_kernel_free(k);
}

/* An output of a narrower type than the program's is rounded, and what is made of its value is not. */
static void test_narrow_output(void) {
    static const char text[] = "f(x[T,D]) -> (m: bf16[T,D], y[T,D]) { m = -x  y = 2*m }";
    for (int path = EPI_PATH_FUSED; path <= EPI_PATH_UNFUSED; path++) {
        ran r;
        bool right = made_of(&r, ctx, text, "T=5,D=7", (way){.path = (epi_path)path}) && run_again(&r);
        for (int64_t i = 0; i < 35 && right; i++)
            right = at(&r.p.t[2], i) == -2 * at(&r.p.t[0], i);
        check(right, "what is made of a value that is stored as bf16 is not rounded, path %d", path);
        discard(&r);
    }
}

int main(void) {
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    test_linearity();
    test_rows();
    test_few_rows();
    test_concurrent();
    test_derivatives();
    test_cancellation();
    test_variance();
    test_stages();
    test_exact_copy();
    test_special();
    test_api();
    test_perturbed();
    test_perturbed_integers();
    test_numbers();
    test_device();
    test_sizes();
    test_abi();
    test_sized();
    test_convert();
    test_configs();
    test_outlives();
    test_zero_strides();
    test_narrow_output();
    epi_context_close(ctx);
    return finish();
}
