/* sums.c: a sum over axes on both sides of others is one inside rows, then one down them: sum(x, T, P) of x[T,H,P] is
 * sum(sum(x, P), T). Mainloops have either, and the first beside what makes x; together they are a pass over memory. */
#include "pass/rewrite/sums.h"

#include "ir/ops.h"
#include "pass/place/placer.h"

/* The axes inside rows that are summed over. */
static epi_axes inside_of(const epi_spec *spec, const epi_node *sum) {
    epi_axes lies = epi_placer_layout(spec, sum->arg[0]), inside = {0};
    for (int i = lies.count - 1; i >= 0 && epi_axes_find(&sum->over, lies.at[i]) >= 0; i--)
        inside.at[inside.count++] = lies.at[i];
    return inside;
}

static int write_inner(epi_rewrite *r, int node) {
    const epi_node *n = &r->in->nodes[node];
    if (epi_ops[n->op].cls != EPI_CLASS_REDUCE || epi_ops[n->op].two || n->over.count < 2)
        return EPI_NO_NODE;
    epi_axes inside = inside_of(r->ctx, n);
    if (!inside.count || inside.count == n->over.count)
        return EPI_NO_NODE;
    epi_axes rest = epi_axes_without(&n->over, &inside);
    int inner = epi_graph_reduce(r->g, n->op, r->fresh[n->arg[0]], &inside);
    return epi_graph_failed(r->g)
               ? EPI_NO_NODE
               : epi_graph_stand_for(r->g, epi_graph_reduce(r->g, n->op, inner, &rest), n);
}

epi_status epi_sums_write(epi_arena *arena, epi_spec *spec, epi_error *err) {
    return epi_graph_rewrite(arena, &spec->graph, write_inner, spec, err);
}
