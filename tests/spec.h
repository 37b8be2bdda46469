/* spec.h: a case bound as run/kernel.c would bind it, for tests that call a backend themselves and look at
 * its launches. */
#ifndef EPI_TESTS_SPEC_H
#define EPI_TESTS_SPEC_H

#include "cases.h"
#include "run/run.h"

static inline bool bind_spec(const loaded *l, epi_dtype type, epi_path path, epi_arena *arena,
                             epi_spec *spec) {
    const epi_graph *g = &l->program->graph;
    *spec = (epi_spec){.graph = g, .type = type, .path = path};
    spec->types = epi_arena_alloc(arena, ((size_t)g->tensor_count + 1) * sizeof *spec->types);
    for (int d = 0; d < g->dim_count; d++)
        for (int i = 0; i < l->dim_count; i++)
            if (!strcmp(g->dims[d], l->dims[i].name))
                spec->sizes[d] = l->dims[i].size;
    for (int t = 0; t < g->tensor_count && spec->types; t++)
        spec->types[t] = g->tensors[t].has_type     ? g->tensors[t].type
                         : g->tensors[t].axes.count ? type
                                                    : EPI_F32;
    return spec->types != NULL;
}

static inline bool has_product(const loaded *l) {
    for (int i = 0; i < l->program->graph.node_count; i++)
        if (l->program->graph.nodes[i].op == EPI_OP_MATMUL)
            return true;
    return false;
}

#endif
