/* test_sums.c: sums of millions of equal terms, of which every addition may round the same way. A plain
 * running sum of so many is off by a percent and more; how far these may be is the bound of EPI_SUM_TERMS
 * additions, or for products those of a sweep. Two numbers of threads give the same bits. And variances of
 * elements whose mean is a million times as large as their distances from it.
 */
#include "harness.h"

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

/* The first result, of inputs that are all x, or of i32 0; NaN where it cannot be had. */
static float run(const kind *k, epi_path path, int threads, float x) {
    epi_module *module = NULL;
    epi_kernel *kernel = NULL;
    epi_error err = {0};
    epi_dim_binding dims[8];
    char store[8][16];
    problem p = {0};
    float y = NAN;
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = parse_dims(k->dims, dims, store), .path = path,
                                .threads = threads);
    if (epi_module_parse(ctx, k->text, strlen(k->text), "sums", &module, &err) == EPI_OK &&
        epi_kernel_compile(epi_module_find(module, "p"), &o, &kernel, &err) == EPI_OK &&
        problem_make(&p, epi_module_find(module, "p"), kernel, LAYOUT_PLAIN)) {
        for (int i = 0; i < p.inputs; i++)
            for (int64_t e = 0; e < p.t[i].shape.count; e++)
                put_element(p.t[i].data, p.t[i].shape.type, e,
                            p.t[i].shape.type == EPI_I32 ? 0
                            : i                          ? 1
                                                         : (double)x);
        if (problem_run(kernel, &p))
            memcpy(&y, p.t[p.inputs].data, sizeof y);
    }
    check(err.message[0] == 0, "%s: %s", k->name, err.message);
    problem_free(&p);
    epi_kernel_free(kernel);
    epi_module_free(module);
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

/* All results of inputs of which the first is near a million and the others are 1. */
static bool run_variance(const kind *k, epi_path path, epi_module **module, problem *p) {
    epi_kernel *kernel = NULL;
    epi_error err = {0};
    epi_dim_binding dims[8];
    char store[8][16];
    epi_type_binding type = {"v", EPI_F64};
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = parse_dims(k->dims, dims, store), .path = path);
    type.tensor = strstr(k->text, "-> y") ? "y" : "v";
    o.types = &type;
    o.type_count = path == EPI_PATH_REFERENCE;
    bool ok = epi_module_parse(ctx, k->text, strlen(k->text), "var", module, &err) == EPI_OK &&
              epi_kernel_compile(epi_module_find(*module, "p"), &o, &kernel, &err) == EPI_OK &&
              problem_make(p, epi_module_find(*module, "p"), kernel, LAYOUT_PLAIN);
    for (int i = 0; ok && i < p->inputs; i++)
        for (int64_t e = 0; e < p->t[i].shape.count; e++) /* which f32 has exactly */
            put_element(p->t[i].data, p->t[i].shape.type, e,
                        i ? 1 : 1e6 + (double)(e * 37 % 29 - 14 + (e % 3 == 1)) / 16);
    ok = ok && problem_run(kernel, p);
    check(ok, "the variance of %s: %s", k->name, err.message);
    epi_kernel_free(kernel);
    return ok;
}

/* The mean costs nothing: the variance is as good as a sum of so many positive terms. */
static void test_variance(const kind *k, epi_path path) {
    epi_module *modules[2] = {NULL, NULL};
    problem want = {0}, got = {0};
    if (run_variance(k, EPI_PATH_REFERENCE, &modules[0], &want) && run_variance(k, path, &modules[1], &got)) {
        const tensor *out = &got.t[got.inputs], *ref = &want.t[want.inputs];
        double worst = 0;
        for (int64_t e = 0; e < out->shape.count; e++) {
            double v = get_element(ref->data, EPI_F64, e);
            worst = fmax(worst, apart(get_element(out->data, EPI_F32, e), v) / v);
        }
        check(worst <= (8 + want.terms) * 0x1p-24, "the variance of %s, path %d, is off by %g", k->name,
              (int)path, worst);
    }
    problem_free(&want);
    problem_free(&got);
    epi_module_free(modules[0]);
    epi_module_free(modules[1]);
}

int main(void) {
    epi_error err;
    if (epi_context_open(&ctx, &err) != EPI_OK)
        return 1;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const kind *k = &kinds[i];
        float fused = run(k, EPI_PATH_FUSED, 2, 0.1f);
        expect(k, "fused", fused, 0.1f);
        expect(k, "fused", run(k, EPI_PATH_FUSED, 2, 1.2f), 1.2f);
        expect(k, "unfused", run(k, EPI_PATH_UNFUSED, 2, 0.1f), 0.1f);
        check(run(k, EPI_PATH_FUSED, 1, 0.1f) == fused, "%s: one thread gives other bits", k->name);
    }
    for (size_t i = 0; i < sizeof variances / sizeof variances[0]; i++) {
        test_variance(&variances[i], EPI_PATH_FUSED);
        test_variance(&variances[i], EPI_PATH_UNFUSED);
    }
    epi_context_close(ctx);
    return finish();
}
