/* attention_quotient.c: keeps the weight of a softmax separate in a backward.
 *
 * The algebra multiplies all factors of a product before it divides. In a score's gradient p*(dp - delta), with the
 * weight p = e/z and an exponential e, that hides the weight:
 *
 *     e*y/z  ->  (e/z)*y
 *
 * where z is no element of the scores. Then p is one value for both gradients, z goes into the exponent, and p need
 * not wait for dp. */
#include "pass/rewrite/attention_form.h"

/* Which operand of a product that is used once an exponential is in; or -1. */
static int power_side(const epi_graph *g, int node, const bool *inner) {
    const epi_node *n = &g->nodes[node];
    for (int side = 0; side < 2 && n->op == EPI_OP_MUL && epi_graph_uses(g, node).count == 1; side++)
        if (inner[n->arg[side]] &&
            (g->nodes[n->arg[side]].op == EPI_OP_EXP || power_side(g, n->arg[side], inner) >= 0))
            return side;
    return -1;
}

static bool is_quotient(const epi_graph *g, int node, const bool *inner) {
    const epi_node *n = &g->nodes[node];
    return n->op == EPI_OP_DIV && !n->exact && inner[node] && !inner[n->arg[1]] &&
           !epi_axes_same_set(&g->nodes[n->arg[1]].axes, &n->axes) && power_side(g, n->arg[0], inner) >= 0;
}

/* The product with its exponential divided. */
static int divided(epi_rewrite *r, int node, int by) {
    const epi_node *n = &r->in->nodes[node];
    int side = power_side(r->in, node, r->ctx);
    return side < 0 ? epi_graph_map2(r->g, EPI_OP_DIV, r->fresh[node], by)
                    : epi_graph_map2(r->g, EPI_OP_MUL, r->fresh[n->arg[!side]], divided(r, n->arg[side], by));
}

static int write_node(epi_rewrite *r, int node) {
    const epi_node *n = &r->in->nodes[node];
    if (!is_quotient(r->in, node, r->ctx))
        return EPI_NO_NODE;
    return epi_graph_stand_for(r->g, divided(r, n->arg[0], r->fresh[n->arg[1]]), n);
}

epi_status epi_attention_quotients(epi_arena *arena, epi_spec *spec, const epi_attentions *found,
                                   epi_error *err) {
    const epi_graph *g = spec->graph;
    bool *inner = epi_arena_alloc(arena, (size_t)g->node_count + 1), any = false;
    EPI_TRY(epi_has_memory(inner, err));
    for (int i = 0; i < found->count; i++)
        for (int k = 0; k < found->at[i].inner.count && found->at[i].row_max == EPI_NO_NODE; k++)
            inner[found->at[i].inner.at[k]] = true;
    for (int i = 0; i < g->node_count; i++)
        any |= g->live[i] && is_quotient(g, i, inner);
    return any ? epi_attention_rewrite(arena, spec, write_node, inner, err) : EPI_OK;
}
