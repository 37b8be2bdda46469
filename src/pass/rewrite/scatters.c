/* scatters.c: turns a batched scatter of few elements into a sum of choices, which a rows kernel computes
 * along with its other work.
 *
 * scatter(d, e, K -> E) is sum(where(index(E) == e, d, 0), K). A scatter of more elements stays a pass over
 * memory: as a sum it would read all of them for every position. */
#include "pass/rewrite/scatters.h"

#include "pass/analyse/sent.h"

enum { MOST_ELEMENTS = 16 };

/* Are there few elements along these axes, at each run? */
static bool are_few(const epi_spec *spec, const epi_axes *axes) {
    bool known = true;
    for (int i = 0; i < axes->count; i++)
        known &= !spec->is_row[axes->at[i].dim] && !spec->is_open[axes->at[i].dim];
    return known && epi_axes_size(axes, spec->sizes) <= MOST_ELEMENTS;
}

static int write_few(epi_rewrite *r, int node) {
    const epi_node *n = &r->in->nodes[node];
    if (n->op != EPI_OP_SCATTER_BATCH)
        return EPI_NO_NODE;
    epi_axes kept = epi_scatter_kept(r->in, n), along = epi_axes_without(&n->over, &kept);
    epi_axes sums = epi_axes_without(&r->in->nodes[n->arg[1]].axes, &kept);
    if (!are_few(r->ctx, &sums))
        return EPI_NO_NODE;
    int sent = epi_sent_alone(r->g, r->fresh[n->arg[0]], r->fresh[n->arg[1]], &along);
    return epi_graph_stand_for(r->g, epi_graph_reduce(r->g, EPI_OP_SUM, sent, &sums), n);
}

epi_status epi_scatters_write(epi_arena *arena, epi_spec *spec, epi_error *err) {
    bool any = false;
    for (int i = 0; i < spec->graph->node_count && !any; i++)
        any = spec->graph->nodes[i].op == EPI_OP_SCATTER_BATCH;
    return any ? epi_graph_rewrite(arena, &spec->graph, write_few, spec, err) : EPI_OK;
}
