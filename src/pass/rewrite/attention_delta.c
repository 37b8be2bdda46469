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
#include "pass/analyse/monomial.h"
#include "pass/place/placer.h"

typedef struct delta {
    int weight, product; /* the factors: p, and dp; EPI_NO_NODE: it is no such sum */
    int outer;           /* dp with its factors, which go to p */
} delta;

/* A product behind a few factors that have no scores in them, x*m, x/m and where(m, x, 0): itself, or
 * EPI_NO_NODE. */
static int behind_factors(const epi_graph *g, int node, const bool *inner) {
    enum { MOST = 16 };
    for (int count = 0; count <= MOST; count++) {
        const epi_node *n = &g->nodes[node];
        bool chosen = epi_choice_of(g, node) == 1, times = n->op == EPI_OP_MUL, by = n->op == EPI_OP_DIV;
        int rest = chosen || (times && !inner[n->arg[0]]) ? 1 : 0;
        if (n->op == EPI_OP_MATMUL)
            return inner[node] ? node : EPI_NO_NODE;
        if ((!chosen && !times && !by) || !inner[n->arg[rest]] || inner[n->arg[chosen ? 0 : !rest]])
            return EPI_NO_NODE;
        node = n->arg[rest];
    }
    return EPI_NO_NODE;
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

/* The weight with the factors of the other side, inside out as they are there. */
static int make_weight(epi_graph *out, const epi_graph *in, const delta *d, int from, const bool *inner,
                       const int *value) {
    const epi_node *n = &in->nodes[from];
    if (from == d->product)
        return value[d->weight];
    bool chosen = n->op == EPI_OP_WHERE;
    int rest = chosen || (n->op == EPI_OP_MUL && !inner[n->arg[0]]) ? 1 : 0;
    int inside = make_weight(out, in, d, n->arg[rest], inner, value);
    return chosen ? epi_graph_map(out, EPI_OP_WHERE, value[n->arg[0]], inside, value[n->arg[2]])
                  : epi_graph_map2(out, n->op, inside, value[n->arg[!rest]]);
}

/* EPI_NO_NODE where the text has that result stored in fewer bits than `storage`: it is not what was summed.
 */
static int make_delta(epi_graph *out, const epi_graph *in, int node, delta d, const bool *inner,
                      const int *value, epi_dtype storage) {
    const epi_node *n = &in->nodes[node], *product = &in->nodes[d.product];
    int first_has = epi_axes_include(&in->nodes[product->arg[0]].axes, &n->over);
    int v = value[product->arg[!first_has]], other = value[product->arg[first_has]];
    int o = epi_graph_contract(out, make_weight(out, in, &d, d.outer, inner, value), v, &n->over);
    if (o != EPI_NO_NODE && out->nodes[o].has_stored &&
        epi_dtype_size(out->nodes[o].stored) < epi_dtype_size(storage))
        return EPI_NO_NODE;
    int sum = epi_graph_reduce(out, EPI_OP_SUM, epi_graph_map2(out, EPI_OP_MUL, other, o), &product->over);
    return epi_graph_value(out, sum);
}

/* The graph again, with the sums in their other form. */
static void rewrite(const epi_graph *in, epi_dtype storage, const delta *deltas, const bool *inner,
                    int *value, epi_graph *out) {
    for (int i = 0; i < in->node_count && !epi_graph_failed(out); i++) {
        if (!in->live[i] && in->nodes[i].op != EPI_OP_INPUT)
            continue;
        out->place = in->nodes[i].place;
        value[i] = deltas[i].weight == EPI_NO_NODE ? EPI_NO_NODE
                                                   : make_delta(out, in, i, deltas[i], inner, value, storage);
        if (value[i] == EPI_NO_NODE)
            value[i] = epi_graph_copy(out, &in->nodes[i], value);
    }
    epi_graph_end(out, in, value);
}

epi_status epi_attention_deltas(epi_arena *arena, epi_spec *spec, const epi_backend_limits *limits,
                                epi_error *err) {
    const epi_graph *in = spec->graph;
    size_t nodes = (size_t)in->node_count + 1;
    bool *inner = epi_arena_alloc(arena, nodes), any = false;
    int *value = epi_arena_alloc(arena, nodes * sizeof *value);
    epi_attentions found;
    delta *deltas = epi_arena_alloc(arena, nodes * sizeof *deltas);
    epi_graph *out = epi_arena_alloc(arena, sizeof *out);
    if (!inner || !value || !deltas || !out || !epi_attentions_find(arena, spec, limits, NULL, &found))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int i = 0; i < found.count; i++)
        for (int k = 0; k < found.at[i].inner.count; k++)
            inner[found.at[i].inner.at[k]] = true;
    for (int i = 0; i < in->node_count; i++) {
        deltas[i] = in->live[i] ? find_delta(in, i, inner) : (delta){EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE};
        any |= deltas[i].weight != EPI_NO_NODE;
    }
    if (!any)
        return EPI_OK;
    out->arena = arena;
    if (epi_graph_begin(out, in))
        rewrite(in, spec->type, deltas, inner, value, out);
    if (arena->failed)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    if (out->error.status == EPI_OK)
        spec->graph = out;
    return EPI_OK;
}
