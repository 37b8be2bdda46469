/* spec.h: a case bound for tests that call a backend themselves and look at its launches. */
#ifndef EPI_TESTS_SPEC_H
#define EPI_TESTS_SPEC_H

#include "cases.h"
#include "run/run.h"

static inline bool bind_spec(const loaded *l, epi_dtype type, epi_path path, epi_arena *arena,
                             epi_spec *spec) {
    epi_options o = EPI_OPTIONS(.dims = l->dims, .dim_count = l->dim_count, .type = type, .path = path);
    return epi_spec_bind(arena, l->program, &o, spec, NULL) == EPI_OK;
}

static inline bool has_product(const loaded *l) {
    for (int i = 0; i < l->program->graph.node_count; i++)
        if (l->program->graph.nodes[i].op == EPI_OP_MATMUL)
            return true;
    return false;
}

#endif
