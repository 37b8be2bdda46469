/* content.c: a hash of what a program computes. Equal programs have the same hash, also under other names. */
#include "ir/content.h"

#include <string.h>

static void add_axes(epi_hash *h, const epi_axes *axes) {
    epi_hash_word(h, (uint64_t)axes->count);
    for (int i = 0; i < axes->count; i++)
        epi_hash_word(h,
                      (uint64_t)axes->at[i].dim << 16 | (uint16_t)axes->at[i].shift); /* it may be negative */
}

static void add_node(epi_hash *h, const epi_node *n, bool live) {
    uint64_t value;
    memcpy(&value, &n->value, sizeof value);
    epi_hash_word(h, (uint64_t)n->op << 32 | (uint64_t)n->stored << 16 | (uint64_t)live << 7 |
                         (uint64_t)n->exact << 6 | (uint64_t)n->integer << 5 | (uint64_t)n->on_load << 4 |
                         (uint64_t)n->opaque << 3 | (uint64_t)n->fixed << 2 | (uint64_t)n->has_stored << 1 |
                         (uint64_t)n->scaled);
    epi_hash_word(h, value);
    epi_hash_word(h, (uint64_t)(unsigned)n->tensor);
    for (int a = 0; a < 3; a++)
        epi_hash_word(h, (uint64_t)(unsigned)n->arg[a]);
    add_axes(h, &n->axes);
    add_axes(h, &n->over);
}

static void add_tensor(epi_hash *h, const epi_spec *spec, int t) {
    const epi_tensor_decl *d = &spec->graph->tensors[t];
    const epi_slice *s = spec->slices ? &spec->slices[t] : NULL;
    epi_hash_word(h, (uint64_t)(unsigned)d->node << 32 | (uint64_t)spec->types[t] << 8 |
                         (uint64_t)d->cotangent << 3 | (uint64_t)d->param << 2 | (uint64_t)d->made << 1 |
                         (uint64_t)d->infinite);
    add_axes(h, &d->axes);
    if (s)
        add_axes(h, &s->memory);
    for (int i = 0; s && i < d->axes.count && s->memory.count; i++) {
        epi_hash_word(h, (uint64_t)s->along[i]);
        epi_hash_word(h, (uint64_t)s->step[i]);
    }
}

epi_hash epi_spec_content(const epi_spec *spec) {
    const epi_graph *g = spec->graph;
    epi_hash h = {(uint64_t)g->node_count, (uint64_t)g->tensor_count << 32 | (uint64_t)g->input_count};
    epi_hash_word(&h, (uint64_t)spec->tile << 32 | (uint64_t)spec->window << 4 | (uint64_t)spec->scans << 3 |
                          (uint64_t)spec->scan_folds << 2 | (uint64_t)spec->scan_last << 1 |
                          (uint64_t)spec->scan_sums);
    for (int d = 0; d < g->dim_count; d++)
        epi_hash_word(&h, (uint64_t)spec->sizes[d] << 1 | spec->is_row[d]);
    for (int i = 0; i < g->node_count; i++)
        add_node(&h, &g->nodes[i], g->live[i]);
    for (int t = 0; t < g->tensor_count; t++)
        add_tensor(&h, spec, t);
    return h;
}
