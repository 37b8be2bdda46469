/* look.c: what can be asked of a compiled kernel: its tensors, its figures, its description and text. */
#include <stdio.h>

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
        int64_t size = epi_axis_size(n->over.at[0], kernel->spec.sizes);
        below = below < 0 ? size : epi_min64(below, size);
    }
    return below;
}

epi_status epi_kernel_tensor(const epi_kernel *kernel, int index, epi_tensor_shape *out) {
    if (!kernel || !out || index < 0 || index >= kernel->program->graph.tensor_count)
        return EPI_ERR_ARGUMENT;
    const epi_axes *axes = &kernel->program->graph.tensors[index].axes;
    *out = (epi_tensor_shape){
        .type = kernel->spec.types[index], .rank = axes->count, .count = kernel->counts[index]};
    for (int i = 0; i < axes->count; i++)
        out->sizes[i] = epi_axis_size(axes->at[i], kernel->spec.sizes);
    out->index_below = index_below(kernel, index);
    return EPI_OK;
}

int epi_kernel_in_place(const epi_kernel *kernel, int output, int input) {
    if (!kernel || kernel->part_count != 1)
        return 0;
    const epi_part_kernel *p = &kernel->parts[0];
    return epi_steps_in_place(p->cpu ? &p->cpu->steps : &p->cuda->steps, output, input);
}

static void part_info(const epi_part_kernel *p, epi_kernel_info *out) {
    p->cpu ? epi_cpu_info(p->cpu, out) : epi_cuda_info(p->cuda, out);
}

void epi_kernel_get_info(const epi_kernel *kernel, epi_kernel_info *out) {
    if (!kernel || !out)
        return;
    part_info(&kernel->parts[0], out);
    if (kernel->part_count == 1)
        return;
    *out = (epi_kernel_info){.mainloop = "parts", .micro = "", .threads = out->threads};
    for (int i = 0; i < kernel->part_count; i++) {
        epi_kernel_info part;
        part_info(&kernel->parts[i], &part);
        out->flops += part.flops;
        out->bytes_fused += part.bytes_fused;
        out->bytes_unfused += part.bytes_unfused;
    }
}

static void describe_part(const epi_part_kernel *p, epi_text *out) {
    p->cpu ? epi_cpu_describe(p->cpu, out) : epi_cuda_describe(p->cuda, out);
}

/* Where the values between parts lie, and how close that is to the least that could be. */
static void describe_values(const epi_kernel *kernel, epi_text *out) {
    const epi_cut *cut = &kernel->cut;
    for (int i = 0; i < cut->value_count; i++) {
        const epi_cut_value *v = &cut->values[i];
        epi_text_add(out, "%s: %s, %ld bytes at %ld, from part %d to part %d\n",
                     epi_node_label(kernel->spec.graph, v->node).text, epi_dtype_name(v->type),
                     (long)v->bytes, (long)v->offset, v->first + 1, v->last + 1);
    }
    epi_text_add(
        out,
        "workspace: %ld bytes for values between parts (at least %ld are alive at once), %ld for the parts\n",
        (long)cut->bytes, (long)cut->lowest, (long)kernel->values);
}

size_t epi_kernel_describe(const epi_kernel *kernel, char *buf, size_t size) {
    epi_text t = {0};
    if (kernel && kernel->part_count == 1)
        describe_part(&kernel->parts[0], &t);
    for (int i = 0; kernel && kernel->part_count > 1 && i < kernel->part_count; i++) {
        epi_kernel_info info;
        char name[160];
        part_info(&kernel->parts[i], &info);
        epi_text_add(&t, "\npart %d of %d, %s\n", i + 1, kernel->part_count, info.mainloop);
        snprintf(name, sizeof name, "%.120s_%d", kernel->program->ast->name, i + 1);
        epi_graph_print(&kernel->parts[i].part->graph, name, &t);
        describe_part(&kernel->parts[i], &t);
    }
    if (kernel && kernel->part_count > 1) {
        epi_text_add(&t, "\n");
        describe_values(kernel, &t);
    }
    return epi_text_give(&t, buf, size);
}

size_t epi_kernel_source(const epi_kernel *kernel, char *buf, size_t size) {
    epi_text t = {0};
    for (int p = 0; kernel && kernel->gpu && p < kernel->part_count; p++)
        for (int i = 0; kernel->parts[p].first == p && i < kernel->parts[p].cuda->count; i++)
            epi_text_add(&t, "%s%s", t.length ? "\n" : "",
                         kernel->parts[p].cuda->launches[i].text.source.data);
    return epi_text_give(&t, buf, size);
}
