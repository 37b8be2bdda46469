/* law_gpu.h: the tensors of a run, in memory of a GPU while it runs. */
#ifndef EPI_TESTS_LAW_GPU_H
#define EPI_TESTS_LAW_GPU_H

#include "harness.h"

static int law_device; /* where fused and unfused runs are; 0: the CPU */

enum { GPU_ALIGN = 256 };

/* One block of the GPU's memory: all tensors, the workspace with its guards, and what is prepared. */
typedef struct gpu_block {
    epi_context *ctx;
    unsigned char *memory;
    size_t tensor[MAX_TENSORS], work, prepared, total;
    epi_tensor args[MAX_TENSORS];
} gpu_block;

static inline size_t gpu_reserve(gpu_block *b, size_t bytes) {
    size_t at = b->total;
    b->total += (bytes + GPU_ALIGN) / GPU_ALIGN * GPU_ALIGN;
    return at;
}

/* Tensors there, or back; the workspace as well. */
static inline epi_status gpu_move(gpu_block *b, const problem *p, unsigned char *work, size_t bytes,
                                  bool back, epi_error *err) {
    epi_status status = EPI_OK;
    for (int i = back ? p->inputs : 0; i <= p->count && status == EPI_OK; i++) {
        unsigned char *here = i < p->count ? p->t[i].data : work,
                      *there = b->memory + (i < p->count ? b->tensor[i] : b->work);
        size_t size = i < p->count ? tensor_bytes(&p->t[i]) : bytes;
        if (size)
            status = epi_device_copy(b->ctx, law_device, back ? here : there, back ? there : here, size, err);
    }
    return status;
}

/* As epi_kernel_call, of tensors and a workspace that lie here. */
static inline epi_status gpu_call(epi_context *ctx, const epi_kernel *kernel, const problem *p,
                                  unsigned char *work, size_t bytes, epi_error *err) {
    gpu_block b = {.ctx = ctx};
    for (int i = 0; i < p->count; i++)
        b.tensor[i] = gpu_reserve(&b, tensor_bytes(&p->t[i]));
    b.work = gpu_reserve(&b, bytes);
    b.prepared = gpu_reserve(&b, epi_kernel_prepare_size(kernel));
    void *memory = NULL;
    epi_status status = epi_device_alloc(ctx, law_device, b.total, &memory, err);
    b.memory = memory;
    for (int i = 0; i < p->count; i++)
        b.args[i] = (epi_tensor){b.memory + b.tensor[i], NULL};
    epi_call call = EPI_CALL(.tensors = b.args, .count = p->count, .workspace = b.memory + b.work + GUARD);
    if (status == EPI_OK)
        status = gpu_move(&b, p, work, bytes, false, err);
    if (status == EPI_OK && epi_kernel_prepare_size(kernel)) {
        status = epi_kernel_prepare(kernel, &call, b.memory + b.prepared, err);
        call.prepared = b.memory + b.prepared;
    }
    if (status == EPI_OK)
        status = epi_kernel_call(kernel, &call, err);
    if (status == EPI_OK)
        status = epi_device_wait(ctx, law_device, err);
    if (status == EPI_OK)
        status = gpu_move(&b, p, work, bytes, true, err);
    if (memory)
        epi_device_free(ctx, law_device, memory, NULL);
    return status;
}

#endif
