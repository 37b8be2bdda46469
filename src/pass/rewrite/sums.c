/* sums.c: splits a sum over axes on both sides of others: first inside rows, then down them. sum(x, T, P) of
 * x[T,H,P] is sum(sum(x, P), T). Mainloops support either sum, and the first one in the kernel that computes
 * x; both at once would be a pass over memory. The same is done for a sum over more axes than the rows have
 * in which x is computed. If x[T,H,P] needs a mean over P, sum(x, H, P) is sum(sum(x, P), H), and the kernel
 * that computes x has the first sum. */
#include "pass/rewrite/sums.h"

#include "ir/ops.h"
#include "pass/place/cut.h"

typedef struct summer {
    const epi_spec *spec;
    epi_visits visits;
} summer;

/* Is it a reduction over the last few of the axes, in rows that the others count? */
static bool has_rows(const epi_node *n, const epi_axes *inside) {
    if (!epi_op_reduces(n->op) || n->over.count >= inside->count)
        return false;
    for (int i = 0; i < inside->count; i++)
        if (epi_axes_find(i < n->over.count ? &n->over : &n->axes, inside->at[i]) < 0)
            return false;
    return true;
}

/* The axes of rows, of all these or the last few, in which the value is made. The last comes first in both lists. */
static epi_axes rows_of(summer *s, const epi_graph *g, int value, const epi_axes *inside) {
    epi_axes rows = *inside;
    epi_visits_begin(&s->visits, value);
    for (int node; epi_visits_next(&s->visits, &node);) {
        const epi_node *n = &g->nodes[node];
        if (has_rows(n, &rows))
            rows.count = n->over.count;
        for (int a = 0; a < epi_node_operands(n) && epi_op_on_tile(n->op); a++)
            epi_visit(&s->visits, n->arg[a]);
    }
    return rows;
}

/* The axes inside rows that are summed over. */
static epi_axes inside_of(summer *s, const epi_graph *g, const epi_node *sum) {
    epi_axes lies = epi_cut_layout(s->spec, sum->arg[0]), inside = {0};
    for (int i = lies.count - 1; i >= 0 && epi_axes_find(&sum->over, lies.at[i]) >= 0; i--)
        inside.at[inside.count++] = lies.at[i];
    return inside.count > 1 ? rows_of(s, g, sum->arg[0], &inside) : inside;
}

static int write_inner(epi_rewrite *r, int node) {
    const epi_node *n = &r->in->nodes[node];
    if (!epi_op_reduces(n->op) || epi_ops[n->op].two || n->over.count < 2)
        return EPI_NO_NODE;
    epi_axes inside = inside_of(r->ctx, r->in, n);
    if (!inside.count || inside.count == n->over.count)
        return EPI_NO_NODE;
    epi_axes rest = epi_axes_without(&n->over, &inside);
    int inner = epi_graph_reduce(r->g, n->op, r->fresh[n->arg[0]], &inside);
    return epi_graph_failed(r->g) ? EPI_NO_NODE
                                  : epi_graph_stand_for(r->g, epi_graph_reduce(r->g, n->op, inner, &rest), n);
}

epi_status epi_sums_write(epi_arena *arena, epi_spec *spec, epi_error *err) {
    summer s = {.spec = spec};
    EPI_TRY(epi_has_memory(epi_visits_make(arena, spec->graph->node_count, &s.visits), err));
    return epi_graph_rewrite(arena, &spec->graph, write_inner, &s, err);
}
