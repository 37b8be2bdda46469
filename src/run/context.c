/* context.c: opens a context, which looks at the machine once. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parallel.h"
#include "cpu/micro/micro.h"
#include "cuda/cuda.h"
#include "run/run.h"

/* The CPU's name as the system tells it. */
static void read_model(char *out, size_t size) {
    snprintf(out, size, "unknown CPU");
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (!colon || (strncmp(line, "model name", 10) != 0 && strncmp(line, "CPU part", 8) != 0))
            continue;
        const char *name = colon + 1 + strspn(colon + 1, " \t");
        if (line[0] == 'C')
            snprintf(out, size, "AArch64, CPU part %.*s", (int)strcspn(name, "\n"), name);
        else
            snprintf(out, size, "%.*s", (int)strcspn(name, "\n"), name);
        break;
    }
    if (f)
        fclose(f);
}

epi_status epi_context_open(epi_context **out, epi_error *err) {
    epi_error_clear(err);
    if (!out)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_context_open: out is NULL");
    *out = NULL;
    epi_context *c = calloc(1, sizeof *c);
    EPI_TRY(epi_has_memory(c, err));
    read_model(c->cpu_model, sizeof c->cpu_model);
    for (int i = 0; epi_micro_at(i); i++)
        if (epi_micro_at(i)->usable()) {
            size_t n = strlen(c->cpu_features);
            snprintf(c->cpu_features + n, sizeof c->cpu_features - n, "%s%s", n ? " " : "",
                     epi_micro_at(i)->name);
        }
    c->cpu_threads = epi_parallel_default();
    epi_cuda_open(&c->cuda);
    *out = c;
    return EPI_OK;
}

void epi_context_close(epi_context *ctx) {
    if (!ctx)
        return;
    epi_cuda_close(&ctx->cuda);
    free(ctx);
}

/* ---- devices ---- */

int epi_device_count(const epi_context *ctx) {
    return ctx ? 1 + ctx->cuda.count : 0;
}

epi_status epi_device_get_sized(const epi_context *ctx, int index, epi_device_info *out, size_t size) {
    if (!ctx || !out || index < 0 || index >= epi_device_count(ctx))
        return EPI_ERR_ARGUMENT;
    epi_device_info info = {.name = "cpu",
                            .model = ctx->cpu_model,
                            .features = ctx->cpu_features,
                            .threads = ctx->cpu_threads,
                            .ordinal = -1};
    if (index > 0) {
        const epi_cuda_device *d = &ctx->cuda.devices[index - 1];
        info = (epi_device_info){
            .name = d->name, .model = d->model, .features = d->features, .is_gpu = 1, .ordinal = d->ordinal};
        memcpy(info.uuid, d->uuid, sizeof info.uuid);
    }
    epi_struct_give(out, size, &info, sizeof info);
    return EPI_OK;
}

int epi_device_find(const epi_context *ctx, const char *name) {
    for (int i = 0; name && i < epi_device_count(ctx); i++) {
        epi_device_info d;
        epi_device_get(ctx, i, &d);
        if (!strcmp(d.name, name) || (i == 1 && !strcmp(name, "gpu")))
            return i;
    }
    return -1;
}

const char *epi_device_why_no_gpu(const epi_context *ctx) {
    return ctx ? ctx->cuda.why : "";
}

int epi_device_capability(const epi_context *ctx, int device) {
    if (device <= 0)
        return device < -INT_MAX ? 0 : -device;
    const epi_cuda_device *d = &ctx->cuda.devices[device - 1];
    return 10 * d->major + d->minor;
}

/* ---- their configurations ---- */

/* Those of products, then those of attention. */
int epi_gpu_config_count(void) {
    return epi_config_count() + epi_attention_config_count();
}

const char *epi_gpu_config_name(int index) {
    int products = epi_config_count();
    return index < 0 || index >= epi_gpu_config_count() ? NULL
           : index < products                           ? epi_config_name(index)
                                                        : epi_attention_config_name(index - products);
}

int epi_gpu_config_find(const char *name) {
    return name ? epi_find_named(epi_gpu_config_name, epi_gpu_config_count(), name) : -1;
}

int epi_gpu_config_suits(const epi_context *ctx, int index, int device, epi_rounding rounding) {
    if (!device || device >= epi_device_count(ctx) || !epi_gpu_config_name(index))
        return 0;
    const epi_arch *arch = epi_arch_of(epi_device_capability(ctx, device));
    return index < epi_config_count() ? epi_config_suits(index, rounding == EPI_ROUND_EXACT, arch)
                                      : epi_attention_config_suits(index - epi_config_count(), arch);
}

const char *epi_gpu_arch_name(int index) {
    const epi_arch *arch = epi_arch_at(index);
    return arch ? arch->name : NULL;
}

int epi_gpu_arch_device(const char *name) {
    const epi_arch *arch;
    for (int i = 0; name && (arch = epi_arch_at(i)); i++)
        if (!strcmp(arch->name, name))
            return -arch->capability;
    return 0;
}

/* ---- their memory ---- */

static epi_status use_device(epi_context *ctx, int device, epi_error *err) {
    epi_error_clear(err);
    if (!ctx || device < 0 || device >= epi_device_count(ctx))
        return epi_fail(err, EPI_ERR_ARGUMENT, "there is no device %d", device);
    return device ? epi_cuda_use(&ctx->cuda, device - 1, err) : EPI_OK;
}

epi_status epi_device_alloc(epi_context *ctx, int device, size_t bytes, void **out, epi_error *err) {
    if (out)
        *out = NULL;
    EPI_TRY(use_device(ctx, device, err));
    if (!out)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_device_alloc: out is NULL");
    size_t rounded = bytes > SIZE_MAX - 64 ? bytes : (bytes + 64) / 64 * 64; /* zero bytes are a place, too */
    if (device)
        return epi_cuda_alloc(&ctx->cuda, rounded, out, err);
    *out = aligned_alloc(64, rounded);
    return epi_has_memory(*out, err);
}

epi_status epi_device_free(epi_context *ctx, int device, void *memory, epi_error *err) {
    EPI_TRY(use_device(ctx, device, err));
    if (device && memory)
        return epi_cuda_free(&ctx->cuda, memory, err);
    free(memory);
    return EPI_OK;
}

epi_status epi_device_copy(epi_context *ctx, int device, void *to, const void *from, size_t bytes,
                           epi_error *err) {
    EPI_TRY(use_device(ctx, device, err));
    if (!bytes)
        return EPI_OK;
    if (!to || !from)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_device_copy: a pointer is NULL");
    if (device)
        return epi_cuda_copy(&ctx->cuda, to, from, bytes, err);
    memmove(to, from, bytes);
    return EPI_OK;
}

epi_status epi_device_wait(epi_context *ctx, int device, epi_error *err) {
    EPI_TRY(use_device(ctx, device, err));
    return device ? epi_cuda_wait(&ctx->cuda, err) : EPI_OK;
}
