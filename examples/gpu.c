/* gpu.c: runs a program on a GPU if the machine has one, else on the CPU.
 *
 *     cc gpu.c $(pkg-config --cflags --libs epilog) -Wl,-rpath,$(pkg-config --variable=libdir epilog) -o gpu && ./gpu
 */
#include <epilog.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char text[] = "norm_swiglu(n[T,D], w[F,D], r: f32[T]) -> (z[T,F], o[T,F/2]) {\n"
                           "    z = (n @ w)*r\n"
                           "    gate, up = pairs(z, F)\n"
                           "    o = silu(gate)*up\n"
                           "}\n";

enum { T = 256, D = 512, F = 1024, TENSORS = 5 };

static int fail(const epi_error *err) {
    char message[2048];
    epi_error_format(err, message, sizeof message);
    fprintf(stderr, "%s\n", message);
    return 1;
}

/* bf16 is the upper half of an f32. */
static uint16_t to_bf16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t x) {
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
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
        printf("usage: gpu\nRuns a program on the first GPU, or on the CPU, and compares one element with "
               "plain C.\n");
        return finish(0);
    }
    if (count > 1) {
        fprintf(stderr, "gpu: it takes no arguments; see gpu --help\n");
        return 2;
    }
    epi_error err;
    epi_context *ctx;
    epi_module *module;
    epi_kernel *kernel;
    epi_device_info device;
    if (epi_context_open(&ctx, &err) != EPI_OK)
        return fail(&err);
    int at = epi_device_find(ctx, "gpu");
    if (at < 0) {
        printf("no GPU: %s\n", epi_device_why_no_gpu(ctx));
        at = 0;
    }
    epi_device_get(ctx, at, &device);
    printf("on %s, %s\n", device.name, device.model);

    epi_dim_binding dims[] = {{"T", T}, {"D", D}, {"F", F}};
    epi_options options = EPI_OPTIONS(.dims = dims, .dim_count = 3, .type = EPI_BF16, .device = at);
    if (epi_module_parse(ctx, text, strlen(text), "gpu.c", &module, &err) != EPI_OK ||
        epi_kernel_compile(epi_module_find(module, "norm_swiglu"), &options, &kernel, &err) != EPI_OK)
        return fail(&err);

    /* Fill the tensors here and copy them to the device. On the CPU this is an ordinary copy. */
    uint16_t *n = malloc(sizeof *n * T * D), *w = malloc(sizeof *w * F * D), o[F / 2];
    float r[T];
    if (!n || !w)
        return 1;
    for (int i = 0; i < T * D; i++)
        n[i] = to_bf16((float)(i * 7 % 31 - 15) / 16);
    for (int i = 0; i < F * D; i++)
        w[i] = to_bf16((float)(i * 11 % 37 - 18) / 256);
    for (int t = 0; t < T; t++)
        r[t] = 1 + (float)t / T;
    const void *inputs[] = {n, w, r};
    epi_tensor tensors[TENSORS];
    void *workspace;
    for (int i = 0; i < TENSORS; i++) {
        epi_tensor_shape shape;
        epi_kernel_tensor(kernel, i, &shape);
        size_t bytes = (size_t)shape.count * epi_dtype_size(shape.type);
        tensors[i].strides = NULL;
        if (epi_device_alloc(ctx, at, bytes, &tensors[i].data, &err) != EPI_OK ||
            (i < 3 && epi_device_copy(ctx, at, tensors[i].data, inputs[i], bytes, &err) != EPI_OK))
            return fail(&err);
    }
    if (epi_device_alloc(ctx, at, epi_kernel_workspace(kernel), &workspace, &err) != EPI_OK)
        return fail(&err);

    /* On a GPU, epi_kernel_start returns at once. Pass your own stream in place of NULL. */
    if (epi_kernel_start(kernel, tensors, TENSORS, workspace, NULL, &err) != EPI_OK ||
        epi_device_wait(ctx, at, &err) != EPI_OK ||
        epi_device_copy(ctx, at, o, tensors[4].data, sizeof o, &err) != EPI_OK)
        return fail(&err);

    /* Compute the first element of o again, in plain C. */
    double gate = 0, up = 0;
    for (int d = 0; d < D; d++) {
        gate += (double)from_bf16(n[d]) * (double)from_bf16(w[d]);
        up += (double)from_bf16(n[d]) * (double)from_bf16(w[D + d]);
    }
    double e = 1;
    for (int k = 40; k > 0; k--) /* exp(-gate) by Horner's rule, without the math library */
        e = 1 - gate / k * e;
    double wanted = gate / (1 + e) * up, got = (double)from_bf16(o[0]);
    printf("o[0][0] is %.4f, in f64 %.4f\n", got, wanted);

    for (int i = 0; i < TENSORS; i++)
        epi_device_free(ctx, at, tensors[i].data, NULL);
    epi_device_free(ctx, at, workspace, NULL);
    free(n);
    free(w);
    epi_kernel_free(kernel);
    epi_module_free(module);
    epi_context_close(ctx);
    double off = got - wanted, most = 0.02 * (wanted < 0 ? -wanted : wanted) + 0.001;
    return finish(off <= most && off >= -most ? 0 : 1);
}
