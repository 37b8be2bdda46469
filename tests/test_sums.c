/* test_sums.c: sums of millions of equal terms, of which every addition may round the same way. A plain
 * running sum of so many is off by a percent and more; how far these may be is the bound of EPI_SUM_TERMS
 * additions, or for products those of a sweep. Two numbers of threads give the same bits.
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
    epi_context_close(ctx);
    return finish();
}
