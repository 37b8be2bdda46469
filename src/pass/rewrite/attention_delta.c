/* attention_delta.c: a row's sum of weights times their gradients, computed without the scores.
 *
 * The backward of a softmax needs sum(p*dp, R), where dp = sum(d*v, E) is as large as the scores. In another
 * order of the sums it is
 *
 *     sum(p*dp, R)  ->  sum(d*o, E)    with o = sum(p*v, R)
 *
 * where dp may have factors that belong to p (dropout: dp*m, where(m, dp, 0)). o is attention's result, or
 * would be: a recomputed forward reads keys and values once, and also gives the statistics of the softmax,
 * which the kernels of the gradients need. If forward and backward are two programs, save.c has done this
 * already.
 *
 * A score's gradient is p*(dp - sum(d*o, E)), a difference in which much cancels. dp uses the stored d; so
 * the sum uses the stored d too, if it has 16 bits. */
#include "pass/analyse/stored.h"
#include "pass/rewrite/attention_form.h"
#include "pass/rewrite/narrow.h"

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

/* ---- d as it is stored ---- */

/* Is a sum over these axes taken of it times something? */
static bool is_summed(const epi_graph *g, int node, const epi_axes *over) {
    epi_use_list uses = epi_graph_uses(g, node);
    for (int i = 0; i < uses.count; i++) {
        int user = uses.at[i].node;
        if (user == EPI_NO_NODE || g->nodes[user].op != EPI_OP_MUL)
            continue;
        epi_use_list sums = epi_graph_uses(g, user);
        for (int k = 0; k < sums.count; k++) {
            const epi_node *sum = sums.at[k].node == EPI_NO_NODE ? NULL : &g->nodes[sums.at[k].node];
            if (sum && sum->op == EPI_OP_SUM && epi_axes_same_set(&sum->over, over))
                return true;
        }
    }
    return false;
}

/* Is it a value of this program that scores are made of, in the storage type? */
static bool is_stored(const epi_graph *g, int node, const epi_dtype *said) {
    const epi_node *n = &g->nodes[node];
    return n->op != EPI_OP_INPUT && !epi_op_is_view(n->op) && !epi_ops[n->op].converts &&
           said[node] == EPI_DTYPE_COUNT;
}

epi_status epi_attention_stored(epi_arena *arena, epi_spec *spec, const epi_backend_limits *limits,
                                epi_error *err) {
    const epi_graph *g = spec->graph;
    epi_attentions found;
    if (!limits->attention_most || !epi_dtype_is_narrow(spec->type))
        return EPI_OK;
    epi_dtype *types = epi_arena_alloc(arena, ((size_t)g->node_count + 1) * sizeof *types),
              *said = epi_stored_find(arena, g, spec->types, spec->type);
    bool any = false;
    EPI_TRY(epi_has_memory(types && said && epi_attentions_find(arena, spec, limits, NULL, &found), err));
    for (int i = 0; i < found.count; i++)
        for (int t = 0; t < found.at[i].term_count && found.at[i].row_max == EPI_NO_NODE; t++) {
            const epi_attention_term *term = &found.at[i].terms[t];
            const int operands[] = {term->rows, term->stream};
            for (int k = 0; k < 2; k++)
                if (is_stored(g, operands[k], said) &&
                    is_summed(g, operands[k], &g->nodes[term->product].over)) {
                    types[operands[k]] = spec->type;
                    any = true;
                }
        }
    return any ? epi_narrow_values(arena, spec, types, err) : EPI_OK;
}
