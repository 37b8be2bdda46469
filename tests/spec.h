/* spec.h: a case bound for tests that call a backend themselves and look at its launches. */
#ifndef EPI_TESTS_SPEC_H
#define EPI_TESTS_SPEC_H

#include "cases.h"
#include "run/run.h"

static inline bool bind_spec(const loaded *l, epi_dtype type, epi_path path, epi_arena *arena,
                             epi_spec *spec) {
    epi_options o = EPI_OPTIONS(.dims = l->dims, .dim_count = l->dim_count, .type = type, .path = path);
    return epi_spec_bind(arena, l->program, &o, NULL, spec, NULL) == EPI_OK;
}

/* The same for a GPU with the row axes of its first input open, up to the sizes that `up` has. False where it
 * has none, or cannot have those sizes. */
static inline bool bind_open_spec(const loaded *l, const loaded *up, epi_dtype type, epi_path path,
                                  epi_arena *arena, epi_spec *spec) {
    epi_tensor_info first;
    const char *names[EPI_MAX_AXES];
    epi_spec largest;
    epi_options o =
        EPI_OPTIONS(.dims = up->dims, .dim_count = l->dim_count, .type = type, .path = path, .device = -90);
    epi_program_tensor(l->program, 0, &first);
    o.open_axes = names;
    for (int i = 0; i + 1 < first.rank; i++)
        names[o.open_axis_count++] = first.axes[i].dim;
    if (!o.open_axis_count || epi_spec_bind(arena, l->program, &o, NULL, &largest, NULL) != EPI_OK)
        return false;
    o.dims = l->dims;
    return epi_spec_bind(arena, l->program, &o, &largest, spec, NULL) == EPI_OK;
}

static inline bool has_product(const loaded *l) {
    for (int i = 0; i < l->program->graph.node_count; i++)
        if (l->program->graph.nodes[i].op == EPI_OP_MATMUL)
            return true;
    return false;
}

#endif
