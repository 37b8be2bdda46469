/* test_sums.c: sums of millions of equal terms, of which every addition may round the same way. A plain
 * running sum of so many is off by a percent and more; how far these may be is the bound of EPI_SUM_TERMS
 * additions, or for products those of a sweep. Two numbers of threads give the same bits. And variances of
 * elements whose mean is a million times as large as their distances from it.
 */
#include "ran.h"

enum { TERMS = 1 << 22 };

typedef struct kind {
    const char *name, *text, *dims;
    double factor; /* of the sum of all terms: 1, or what makes it the mean */
    double bound;  /* relative */
} kind;

#define MANY "4194304"
static const double SUMS = 2e-6, PRODUCTS = 1e-5;

static const kind kinds[] = {
    {"along a row", "p(x[T,D]) -> y[T] { y = sum(x, D) }", "T=2,D=" MANY, 1, SUMS},
    {"the mean of a row", "p(x[T,D]) -> y[T] { y = mean(x, D) }", "T=2,D=" MANY, 1.0 / TERMS, SUMS},
    {"along a row that stays", "p(x[T,D]) -> (y[T], z[T,D]) { y = sum(x, D) z = x - y }", "T=1,D=" MANY, 1,
     SUMS},
    {"of everything", "p(x[N]) -> y { y = sum(x, N) }", "N=" MANY, 1, SUMS},
    {"down columns", "p(x[T,D]) -> y[D] { y = sum(x, T) }", "T=" MANY ",D=3", 1, SUMS},
    {"the mean of columns", "p(x[T,D]) -> y[D] { y = mean(x, T) }", "T=" MANY ",D=2", 1.0 / TERMS, SUMS},
    {"down long columns", "p(x[T,D]) -> y[D] { y = sum(x, T) }", "T=32768,D=600", 1.0 / 128, SUMS},
    {"scattered", "p(x[T,D], i: i32[T]) -> y[V,D] { y = scatter(x, i, V) }", "T=" MANY ",D=2,V=1", 1, SUMS},
    {"of products", "p(x[M,K], w[N,K]) -> y[M,N] { y = x @ w }", "M=2,K=" MANY ",N=3", 1, PRODUCTS},
};

static epi_context *ctx;

/* The first input is of one number, indices are 0, and others are 1. */
static float number;
static void fill_sums(problem *p, uint64_t seed) {
    (void)seed;
    for (int i = 0; i < p->inputs; i++)
        for (int64_t e = 0; e < p->t[i].shape.count; e++)
            put_element(p->t[i].data, p->t[i].shape.type, e,
                        p->t[i].shape.type == EPI_I32 ? 0
                        : i                           ? 1
                                                      : (double)number);
}

/* The first result, of inputs that are all x; NaN where it cannot be had. */
static float run(const kind *k, epi_path path, int threads, float x) {
    ran r;
    number = x;
    float y =
        made_of(&r, ctx, k->text, k->dims, (way){.path = path, .threads = threads, .fill = fill_sums}) &&
                run_again(&r)
            ? (float)at(&r.p.t[r.p.inputs], 0)
            : NAN;
    discard(&r);
    return y;
}

static void expect(const kind *k, const char *path, float y, float x) {
    double exact = (double)x * TERMS * k->factor, error = fabs((double)y - exact) / exact;
    check(error <= k->bound, "%s, %s: %g times %d is off by %.2e, %.0e is allowed", k->name, path, (double)x,
          TERMS, error, k->bound);
}

/* Variances of a large mean. Of a product's rows it is the mean of one tile. */
static const kind variances[] = {
    {"a short row", "p(x[T,D]) -> v[T] { v = var(x, D) }", "T=9,D=7", 1, 0},
    {"a row", "p(x[T,D]) -> v[T] { v = var(x, D) }", "T=9,D=300", 1, 0},
    {"a long row", "p(x[T,D]) -> v[T] { v = var(x, D) }", "T=3,D=5000", 1, 0},
    {"a row that stays", "p(x[T,D]) -> y[T,D] { y = x*0 + var(x, D) }", "T=9,D=300", 1, 0},
    {"columns", "p(x[T,D]) -> v[D] { v = var(x, T) }", "T=300,D=9", 1, 0},
    {"everything", "p(x[T,D]) -> v { v = var(x, T, D) }", "T=40,D=70", 1, 0},
    {"a product's rows", "p(x[D,K=1], w[T,K]) -> v[T] { v = var(x @ w, D) }", "T=9,D=200", 1, 0},
};

/* The first input is near a million, which f32 has exactly; the others are 1. */
static void fill_far(problem *p, uint64_t seed) {
    (void)seed;
    for (int i = 0; i < p->inputs; i++)
        for (int64_t e = 0; e < p->t[i].shape.count; e++)
            put_element(p->t[i].data, p->t[i].shape.type, e,
                        i ? 1 : 1e6 + (double)(e * 37 % 29 - 14 + (e % 3 == 1)) / 16);
}

/* The mean costs nothing: the variance is as good as a sum of so many positive terms. */
static void test_variance(const kind *k, epi_path path) {
    ran want = {0}, got = {0};
    no_case();
    if (made_of(&want, ctx, k->text, k->dims, (way){.path = EPI_PATH_REFERENCE, .fill = fill_far}) &&
        made_of(&got, ctx, k->text, k->dims, (way){.path = path, .fill = fill_far}) && run_again(&want) &&
        run_again(&got)) {
        const tensor *out = &got.p.t[got.p.inputs], *ref = &want.p.t[want.p.inputs];
        double worst = 0;
        for (int64_t e = 0; e < out->shape.count; e++)
            worst = fmax(worst, apart(at(out, e), at(ref, e)) / at(ref, e));
        check(worst <= (8 + want.p.terms) * 0x1p-24, "the variance of %s, path %d, is off by %g", k->name,
              (int)path, worst);
    }
    discard(&want);
    discard(&got);
}

int main(void) {
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const kind *k = &kinds[i];
        if (wanted("%s, threads", k->name)) {
            float fused = run(k, EPI_PATH_FUSED, 2, 0.1f);
            expect(k, "fused", fused, 0.1f);
            check(run(k, EPI_PATH_FUSED, 1, 0.1f) == fused, "%s: one thread gives other bits", k->name);
        }
        if (wanted("%s, fused", k->name))
            expect(k, "fused", run(k, EPI_PATH_FUSED, 2, 1.2f), 1.2f);
        if (wanted("%s, unfused", k->name))
            expect(k, "unfused", run(k, EPI_PATH_UNFUSED, 2, 0.1f), 0.1f);
    }
    for (size_t i = 0; i < sizeof variances / sizeof variances[0]; i++) {
        test_variance(&variances[i], EPI_PATH_FUSED);
        test_variance(&variances[i], EPI_PATH_UNFUSED);
    }
    epi_context_close(ctx);
    return finish();
}
