/* kernel.c: a kernel from compiling to freeing: its spec is bound, and a backend compiles it. */
#include <stdlib.h>

#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "run/run.h"

/* For a GPU of this machine, or for a compute capability alone: the texts without a device. */
static epi_status compile_cuda(epi_kernel *k, epi_context *ctx, const epi_spec *spec, const epi_options *o,
                               epi_error *err) {
    epi_cuda_target target = {.capability = epi_device_capability(ctx, o->device),
                              .multiprocessors = 132,
                              .config = o->config,
                              .exact = o->rounding == EPI_ROUND_EXACT};
    if (o->device > 0) {
        target.cuda = &ctx->cuda;
        target.device = o->device - 1;
        target.multiprocessors = ctx->cuda.devices[o->device - 1].multiprocessors;
    }
    if (target.capability < 80)
        return epi_fail(err, EPI_ERR_UNSUPPORTED,
                        "GPU kernels need compute capability 8.0 or newer; this is %d.%d",
                        target.capability / 10, target.capability % 10);
    epi_status status = epi_cuda_compile(&k->arena, spec, &target, &k->cuda, err);
    if (k->cuda)
        k->spec = &k->cuda->spec;
    return status;
}

static epi_status compile(epi_kernel *k, const epi_program *p, const epi_options *o, epi_error *err) {
    epi_spec spec;
    epi_status status = epi_spec_bind(&k->arena, p, o, &spec, err);
    if (status != EPI_OK)
        return status;
    if (o->device) {
        status = compile_cuda(k, p->module->context, &spec, o, err);
    } else {
        status = epi_cpu_compile(&k->arena, &spec, &k->cpu, err);
        if (k->cpu)
            k->spec = &k->cpu->spec;
    }
    if (status == EPI_ERR_CHECK && err)
        epi_ast_locate(&p->module->text, err);
    return status;
}

/* Counted once, so that a run does not. */
static epi_status count_elements(epi_kernel *k, epi_error *err) {
    const epi_graph *g = &k->program->graph;
    k->counts = epi_arena_alloc(&k->arena, ((size_t)g->tensor_count + 1) * sizeof *k->counts);
    if (!k->counts)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int t = 0; t < g->tensor_count; t++)
        k->counts[t] = epi_axes_size(&g->tensors[t].axes, k->spec->sizes);
    return EPI_OK;
}

epi_status epi_kernel_compile(const epi_program *program, const epi_options *options, epi_kernel **out,
                              epi_error *err) {
    epi_error_clear(err);
    if (out)
        *out = NULL;
    if (!program || !options || !out)
        return epi_fail(err, EPI_ERR_ARGUMENT,
                        "epi_kernel_compile: program, options and out may not be NULL");
    if ((options->dim_count > 0 && !options->dims) || (options->type_count > 0 && !options->types))
        return epi_fail(err, EPI_ERR_ARGUMENT, "a list is NULL though its count is not zero");
    epi_kernel *k = calloc(1, sizeof *k);
    if (!k)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    k->program = program;
    atomic_fetch_add(&program->module->owners, 1);
    epi_status status = compile(k, program, options, err);
    if (status == EPI_OK)
        status = count_elements(k, err);
    if (status != EPI_OK) {
        epi_kernel_free(k);
        return status;
    }
    *out = k;
    return EPI_OK;
}

void epi_kernel_free(epi_kernel *kernel) {
    if (!kernel)
        return;
    epi_cuda_kernel_free(kernel->cuda);
    epi_arena_free(&kernel->arena);
    epi_module_free(kernel->program->module);
    free(kernel);
}

size_t epi_kernel_workspace(const epi_kernel *kernel) {
    if (!kernel)
        return 0;
    return (size_t)epi_round_up(epi_max64(64, kernel->cpu ? kernel->cpu->workspace : kernel->cuda->workspace),
                                64);
}
