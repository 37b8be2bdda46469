/* attention_delta.c: a row's sum of weights times their gradients, without the scores.
 *
 * The backward of a softmax wants sum(p*dp, R), where dp = sum(d*v, E) is as large as the scores. By the
 * order of sums it is
 *
 *     sum(p*dp, R)  ->  sum(d*o, E)    with o = sum(p*v, R)
 *
 * where dp may have factors that belong to p (dropout: dp*m, where(m, dp, 0)), and o is attention's result,
 * or would be: a forward that is recomputed reads keys and values once, and gives the softmax's statistics as
 * well, which the gradients' kernels wait for. Where forward and backward are two programs, save.c has done
 * this. */
#include "pass/rewrite/attention_form.h"

typedef struct delta {
    int weight, product; /* the factors: p, and dp; EPI_NO_NODE: it is no such sum */
    int outer;           /* dp with its factors, which go to p */
} delta;

/* A product behind a few factors that have no scores in them: itself, or EPI_NO_NODE. */
static int behind_factors(const epi_graph *g, int node, const bool *inner) {
    enum { MOST = 16 };
    int factor, rest = 0;
    for (int count = 0; count < MOST && rest >= 0 && g->nodes[node].op != EPI_OP_MATMUL; count++)
        if ((rest = epi_attention_factor(g, node, inner, &factor)) >= 0)
            node = g->nodes[node].arg[rest];
    return g->nodes[node].op == EPI_OP_MATMUL && inner[node] ? node : EPI_NO_NODE;
}

/* Is the node such a sum? */
static delta find_delta(const epi_graph *g, int node, const bool *inner) {
    const epi_node *n = &g->nodes[node], *m = n->op == EPI_OP_SUM ? &g->nodes[n->arg[0]] : NULL;
    for (int side = 0; side < 2 && m && m->op == EPI_OP_MUL; side++) {
        int p = m->arg[!side], dp = behind_factors(g, m->arg[side], inner);
        if (dp == EPI_NO_NODE || !inner[p] || behind_factors(g, p, inner) != EPI_NO_NODE ||
            !epi_axes_same_set(&g->nodes[p].axes, &g->nodes[dp].axes))
            continue;
        const epi_node *product = &g->nodes[dp];
        for (int v = 0; v < 2; v++) { /* v has the stream, d has nothing of it */
            const epi_axes *with = &g->nodes[product->arg[v]].axes,
                           *without = &g->nodes[product->arg[!v]].axes;
            if (epi_axes_include(with, &n->over) && !epi_axes_count_in(without, &n->over))
                return (delta){p, dp, m->arg[side]};
        }
    }
    return (delta){EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE};
}

typedef struct rewriting {
    const bool *inner; /* by node: an element of some attention's scores */
    epi_dtype storage;
} rewriting;

/* The weight with the factors of the other side, inside out as they are there. */
static int make_weight(epi_rewrite *r, const delta *d, int from) {
    const epi_node *n = &r->in->nodes[from];
    int factor;
    if (from == d->product)
        return r->fresh[d->weight];
    int rest = epi_attention_factor(r->in, from, ((const rewriting *)r->ctx)->inner, &factor);
    int inside = make_weight(r, d, n->arg[rest]);
    if (n->op == EPI_OP_WHERE)
        return epi_graph_map(r->g, n->op, r->fresh[factor], inside, r->fresh[n->arg[2]]);
    return epi_graph_map2(r->g, n->op, inside, r->fresh[factor]);
}

/* The sum in its other form; as it is where the text has attention's result stored in fewer bits than the
 * storage type: it is not what was summed. */
static int write_node(epi_rewrite *r, int node) {
    const rewriting *of = r->ctx;
    delta d = find_delta(r->in, node, of->inner);
    if (d.weight == EPI_NO_NODE)
        return EPI_NO_NODE;
    const epi_node *n = &r->in->nodes[node], *product = &r->in->nodes[d.product];
    int first_has = epi_axes_include(&r->in->nodes[product->arg[0]].axes, &n->over);
    int v = r->fresh[product->arg[!first_has]], other = r->fresh[product->arg[first_has]];
    int o = epi_graph_contract(r->g, make_weight(r, &d, d.outer), v, &n->over);
    if (o != EPI_NO_NODE && r->g->nodes[o].has_stored &&
        epi_dtype_size(r->g->nodes[o].stored) < epi_dtype_size(of->storage))
        return EPI_NO_NODE;
    return epi_graph_reduce(r->g, EPI_OP_SUM, epi_graph_map2(r->g, EPI_OP_MUL, other, o), &product->over);
}

epi_status epi_attention_deltas(epi_arena *arena, epi_spec *spec, const epi_attentions *found,
                                epi_error *err) {
    const epi_graph *g = spec->graph;
    bool *inner = epi_arena_alloc(arena, (size_t)g->node_count + 1), any = false;
    EPI_TRY(epi_has_memory(inner, err));
    for (int i = 0; i < found->count; i++)
        for (int k = 0; k < found->at[i].inner.count; k++)
            inner[found->at[i].inner.at[k]] = true;
    for (int i = 0; i < g->node_count; i++)
        any |= g->live[i] && find_delta(g, i, inner).weight != EPI_NO_NODE;
    return any ? epi_attention_rewrite(arena, spec, write_node, &(rewriting){inner, spec->type}, err)
               : EPI_OK;
}
