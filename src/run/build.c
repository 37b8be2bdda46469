/* build.c: describes this build of the library, and which of its parts this machine can use. */
#include "cpu/micro/micro.h"
#include "cuda/jit.h"
#include "run/run.h"

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

#if defined(__x86_64__)
#define MACHINE "x86-64"
#elif defined(__aarch64__)
#define MACHINE "AArch64"
#else
#define MACHINE "another machine, by plain loops"
#endif

static void add_micro_kernels(epi_text *t) {
    epi_text_add(t, "CPU kernels in this build:");
    for (int i = 0; epi_micro_at(i); i++)
        epi_text_add(t, " %s", epi_micro_at(i)->name);
}

static void add_gpus(epi_text *t, const epi_context *ctx) {
    for (int i = 1; i < epi_device_count(ctx); i++) {
        const epi_cuda_device *d = &ctx->cuda.devices[i - 1];
        epi_text_add(t, "%s: %s; the driver is for CUDA %d.%d\n", d->name, d->model,
                     ctx->cuda.driver_version / 1000, ctx->cuda.driver_version % 1000 / 10);
    }
    if (epi_device_count(ctx) < 2)
        epi_text_add(t, "GPU: none: %s\n", epi_device_why_no_gpu(ctx));
}

size_t epi_describe_build(const epi_context *ctx, char *buf, size_t size) {
    char nvrtc[1152];
    epi_text t = {0};
    epi_text_add(&t, "epilog %s\ncompiler: " COMPILER ", for " MACHINE "\n", epi_version());
    add_micro_kernels(&t);
    if (ctx) {
        bool found = epi_jit_available(nvrtc, sizeof nvrtc);
        epi_text_add(&t, "; this CPU runs: %s\n", ctx->cpu_features);
        add_gpus(&t, ctx);
        if (found)
            epi_jit_name(nvrtc, sizeof nvrtc);
        epi_text_add(&t, "NVRTC: %s", nvrtc);
    }
    epi_text_add(&t, "\n");
    return epi_text_give(&t, buf, size);
}
