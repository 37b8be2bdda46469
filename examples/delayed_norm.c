/* delayed_norm.c: an RMSNorm between two matrix products, in only two kernels: the products.
 *
 *     cc delayed_norm.c $(pkg-config --cflags --libs epilog) -Wl,-rpath,$(pkg-config --variable=libdir epilog) -lm -o delayed_norm && ./delayed_norm
 *
 * The first kernel adds the residual, multiplies by the norm's weight and gives the row statistic.
 * The second applies the row scale after its own product, which gives the same result, and then
 * computes SwiGLU. Tensors are stored in bf16, as in a model. The program compares the result with
 * plain loops in double. */
#include <epilog.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char text[] =
    "attention_out(x[T,K], w[D,K], res[T,D], g[D], eps) -> (h[T,D], n[T,D], r: f32[T]) {\n"
    "    h = x @ w + res\n"
    "    n = h*g\n"
    "    r = rsqrt(mean(h*h, D) + eps)\n"
    "}\n"
    "gate_up(n[T,D], w[F,D], r: f32[T]) -> o[T,F/2] {\n"
    "    gate, up = pairs((n @ w)*r, F)\n"
    "    o = silu(gate)*up\n"
    "}\n";

enum { T = 48, K = 64, D = 96, F = 128 };

static uint16_t to_bf16(double v) {
    float f = (float)v;
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static double from_bf16(uint16_t b) {
    uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, 4);
    return (double)f;
}

static void fill(uint16_t *p, int count, double scale, unsigned *seed) {
    for (int i = 0; i < count; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        p[i] = to_bf16(scale * ((double)(*seed >> 8) / 8388608 - 1));
    }
}

/* Compiles one program of the module and runs it once. */
static int run(const epi_module *m, const char *name, const epi_dim_binding *dims, int count,
               const epi_tensor *tensors, int tensor_count) {
    epi_error err;
    epi_kernel *k;
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = count, .type = EPI_BF16);
    if (epi_kernel_compile(epi_module_find(m, name), &o, &k, &err) == EPI_OK) {
        void *work = aligned_alloc(64, epi_kernel_workspace(k));
        epi_status status = work ? epi_kernel_run(k, tensors, tensor_count, work, &err) : EPI_ERR_MEMORY;
        free(work);
        epi_kernel_free(k);
        if (status == EPI_OK)
            return 1;
    }
    fprintf(stderr, "%s: %s\n", name, err.message);
    return 0;
}

/* Returns the exit status: 1 also if standard output failed. */
static int finish(int status) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "standard output could not be written\n");
    return 1;
}

int main(int count, char **words) {
    if (count == 2 && !strcmp(words[1], "--help")) {
        printf("usage: delayed_norm\nRuns a norm after the next product, and compares the result with plain "
               "C.\n");
        return finish(0);
    }
    if (count > 1) {
        fprintf(stderr, "delayed_norm: it takes no arguments; see delayed_norm --help\n");
        return 2;
    }
    static uint16_t x[T * K], w1[D * K], res[T * D], g[D], h[T * D], n[T * D], w2[F * D], o[T * F / 2];
    static float r[T];
    float eps = 1e-5f;
    unsigned seed = 1;
    fill(x, T * K, 1, &seed);
    fill(w1, D * K, 0.2, &seed);
    fill(res, T * D, 1, &seed);
    fill(g, D, 1, &seed);
    fill(w2, F * D, 0.2, &seed);

    epi_error err;
    epi_context *ctx;
    epi_module *m;
    if (epi_context_open(&ctx, &err) != EPI_OK ||
        epi_module_parse(ctx, text, strlen(text), "delayed_norm.c", &m, &err) != EPI_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    epi_dim_binding first[] = {{"T", T}, {"K", K}, {"D", D}}, second[] = {{"T", T}, {"D", D}, {"F", F}};
    epi_tensor a[] = {{x, NULL},    {w1, NULL}, {res, NULL}, {g, NULL},
                      {&eps, NULL}, {h, NULL},  {n, NULL},   {r, NULL}};
    epi_tensor b[] = {{n, NULL}, {w2, NULL}, {r, NULL}, {o, NULL}};
    int ok = run(m, "attention_out", first, 3, a, 8) && run(m, "gate_up", second, 3, b, 4);
    epi_module_free(m);
    epi_context_close(ctx);
    if (!ok)
        return 1;

    double worst = 0, largest = 0;
    for (int t = 0; t < T; t++) {
        double row[D], square = 0;
        for (int d = 0; d < D; d++) {
            row[d] = from_bf16(res[t * D + d]);
            for (int k = 0; k < K; k++)
                row[d] += from_bf16(x[t * K + k]) * from_bf16(w1[d * K + k]);
            square += row[d] * row[d] / D;
        }
        for (int f = 0; f < F / 2; f++) {
            double z[2] = {0, 0};
            for (int d = 0; d < D; d++)
                for (int part = 0; part < 2; part++)
                    z[part] += row[d] * from_bf16(g[d]) / sqrt(square + 1e-5) *
                               from_bf16(w2[(2 * f + part) * D + d]);
            double want = z[0] / (1 + exp(-z[0])) * z[1];
            worst = fmax(worst, fabs(from_bf16(o[t * (F / 2) + f]) - want));
            largest = fmax(largest, fabs(want));
        }
    }
    printf("largest value %.3f, largest error %.4f (%.2f %% of it)\n", largest, worst, 100 * worst / largest);
    return finish(worst <= 0.02 * largest ? 0 : 1); /* bf16 keeps 8 bits, and the chain rounds three times */
}
