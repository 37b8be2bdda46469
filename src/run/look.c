/* look.c: what can be asked of a compiled kernel: its tensors, its figures, its description and text. */
#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "run/run.h"

/* The shortest axis that an input counts along, or -1. */
static int64_t index_below(const epi_kernel *kernel, int tensor) {
    const epi_graph *g = &kernel->program->graph;
    int64_t below = -1;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        if (epi_ops[n->op].cls != EPI_CLASS_MOVE || n->arg[1] != g->tensors[tensor].node ||
            tensor >= g->input_count)
            continue;
        int64_t size = epi_axis_size(n->over.at[0], kernel->spec->sizes);
        below = below < 0 ? size : epi_min64(below, size);
    }
    return below;
}

epi_status epi_kernel_tensor(const epi_kernel *kernel, int index, epi_tensor_shape *out) {
    if (!kernel || !out || index < 0 || index >= kernel->program->graph.tensor_count)
        return EPI_ERR_ARGUMENT;
    const epi_axes *axes = &kernel->program->graph.tensors[index].axes;
    *out = (epi_tensor_shape){
        .type = kernel->spec->types[index], .rank = axes->count, .count = kernel->counts[index]};
    for (int i = 0; i < axes->count; i++)
        out->sizes[i] = epi_axis_size(axes->at[i], kernel->spec->sizes);
    out->index_below = index_below(kernel, index);
    return EPI_OK;
}

int epi_kernel_in_place(const epi_kernel *kernel, int output, int input) {
    return kernel &&
           epi_steps_in_place(kernel->cpu ? &kernel->cpu->steps : &kernel->cuda->steps, output, input);
}

void epi_kernel_get_info(const epi_kernel *kernel, epi_kernel_info *out) {
    if (kernel && out)
        (kernel->cpu ? epi_cpu_info(kernel->cpu, out) : epi_cuda_info(kernel->cuda, out));
}

size_t epi_kernel_describe(const epi_kernel *kernel, char *buf, size_t size) {
    epi_text t = {0};
    if (kernel)
        (kernel->cpu ? epi_cpu_describe(kernel->cpu, &t) : epi_cuda_describe(kernel->cuda, &t));
    return epi_text_give(&t, buf, size);
}

size_t epi_kernel_source(const epi_kernel *kernel, char *buf, size_t size) {
    epi_text t = {0};
    for (int i = 0; kernel && kernel->cuda && i < kernel->cuda->count; i++)
        epi_text_add(&t, "%s%s", i ? "\n" : "", kernel->cuda->launches[i].text.source.data);
    return epi_text_give(&t, buf, size);
}
