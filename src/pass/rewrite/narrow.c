/* narrow.c: values that are stored in 16 bits are rounded where they are computed, so that a user on the
 * tile sees the same number as a user that loads it.
 *
 * The reason is logits and their log-sum-exp. A backward that reads both computes weights that sum to 1. If
 * the log-sum-exp came from logits before they were rounded, it would be off by their roundings, and each
 * weight by as much.
 *
 * So in a program that is compiled in 16 bits such a value has two versions. The log-sum-exp, and everything
 * that meets it later, uses the rounded one. Everything else uses the value itself, which is rounded only
 * where it is stored. */
#include "pass/rewrite/narrow.h"

/* Is a log-sum-exp taken of the value, or of what maps make of it? `of` has its users. */
static bool is_summed(const epi_graph *g, int node, const bool *of) {
    epi_use_list uses = epi_graph_uses(g, node);
    for (int i = 0; i < uses.count; i++) {
        epi_op op = epi_use_op(g, uses.at[i]);
        if (op == EPI_OP_LOGSUMEXP || (epi_op_is_map(op) && of[uses.at[i].node]))
            return true;
    }
    return false;
}

/* The 16-bit type of all outputs that the value is, or EPI_F32. */
static epi_dtype narrow_type(const epi_spec *spec, int node) {
    const epi_graph *g = spec->graph;
    epi_dtype type = EPI_DTYPE_COUNT;
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (g->tensors[t].node == node)
            type = type == EPI_DTYPE_COUNT || type == spec->types[t] ? spec->types[t] : EPI_F32;
    return epi_dtype_is_narrow(type) ? type : EPI_F32;
}

/* The rounded value, which takes the name. */
static int rounded(epi_graph *g, int value, epi_dtype type) {
    if (epi_graph_failed(g))
        return EPI_NO_NODE;
    const char *name = g->nodes[value].name;
    int to = epi_graph_map1(g, type == EPI_BF16 ? EPI_OP_STORED_BF16 : EPI_OP_STORED_F16, value);
    if (epi_graph_failed(g))
        return EPI_NO_NODE;
    g->nodes[value].name = NULL;
    g->nodes[to].name = name;
    return to;
}

static int write_rounded(epi_rewrite *r, int node) {
    epi_dtype type = ((const epi_dtype *)r->ctx)[node];
    if (!epi_dtype_is_narrow(type))
        return EPI_NO_NODE;
    return rounded(r->g, epi_graph_copy(r->g, &r->in->nodes[node], r->fresh), type);
}

epi_status epi_narrow_values(epi_arena *arena, epi_spec *spec, epi_dtype *types, epi_error *err) {
    return epi_graph_rewrite(arena, &spec->graph, write_rounded, types, err);
}

/* ---- outputs, and what is made of them ---- */

/* What is found by node, and the two versions of it in the new graph. */
typedef struct narrower {
    epi_dtype *types; /* the 16-bit type of an output that a log-sum-exp is taken of, or EPI_F32 */
    bool *of;         /* a log-sum-exp is taken of it, or of what maps make of it */
    bool *made;       /* it is made of such an output, */
    bool *after;      /* and of its log-sum-exp */
    bool *joins;      /* it is made of such an output, not of the log-sum-exp, and meets that further on */
    bool *whole;      /* someone wants it who does not meet that */
    int *as_it_is, *narrow;
} narrower;

static bool has_versions(const narrower *w, int node) {
    return w->joins[node] || w->types[node] != EPI_F32;
}

/* What f16 has no number for stays as it is: there the output is infinite, and the log-sum-exp need not be. */
static int rounded_where_finite(epi_graph *g, int value, epi_dtype type) {
    int to = rounded(g, value, type);
    if (type != EPI_F16 || epi_graph_failed(g))
        return to;
    const char *name = g->nodes[to].name;
    int size = epi_graph_map1(g, EPI_OP_ABS, value),
        finite = epi_graph_map2(g, EPI_OP_LT, size, epi_graph_const(g, 65520));
    g->nodes[to].name = NULL;
    to = epi_graph_map(g, EPI_OP_WHERE, finite, to, value);
    if (epi_graph_failed(g))
        return EPI_NO_NODE;
    g->nodes[to].name = name;
    g->nodes[to].has_stored = true;
    g->nodes[to].stored = type;
    return to;
}

static int write_versions(epi_rewrite *r, int node) {
    narrower *w = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    bool two = has_versions(w, node);
    int *as_it_is = &w->as_it_is[node], *narrow = &w->narrow[node];
    *as_it_is = *narrow = EPI_NO_NODE;
    if (two ? w->whole[node] : !w->after[node])
        *as_it_is = *narrow = epi_graph_copy(r->g, n, w->as_it_is);
    if (two || w->after[node]) {
        *narrow = epi_graph_copy(r->g, n, w->narrow);
        if (w->types[node] != EPI_F32)
            *narrow = rounded_where_finite(r->g, *narrow, w->types[node]);
        if (!two)
            *as_it_is = *narrow;
    }
    if (two && w->whole[node] && *narrow != *as_it_is && !epi_graph_failed(r->g)) {
        r->g->nodes[*narrow].name = NULL;
        r->g->nodes[*as_it_is].name = n->name;
    }
    return w->types[node] != EPI_F32 && w->whole[node] ? *as_it_is : *narrow;
}

/* Is the value made by a program that is compiled in the type of its outputs, and not kept in f32 by the text? */
static epi_dtype type_to_round(const epi_spec *spec, int node, const bool *of) {
    const epi_node *n = &spec->graph->nodes[node];
    bool open = of[node] && n->op != EPI_OP_INPUT && !(n->has_stored && n->stored == EPI_F32);
    return open && narrow_type(spec, node) == spec->type && epi_dtype_is_narrow(spec->type) ? spec->type
                                                                                            : EPI_F32;
}

/* What outputs make, and what their log-sum-exps do. */
static bool find_made(const epi_spec *spec, narrower *w) {
    const epi_graph *g = spec->graph;
    bool any = false;
    for (int i = g->node_count - 1; i >= 0; i--)
        w->of[i] = g->live[i] && is_summed(g, i, w->of);
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        w->types[i] = type_to_round(spec, i, w->of);
        w->made[i] = w->types[i] != EPI_F32 || epi_node_takes(n, w->made);
        w->after[i] = epi_node_takes(n, w->after) ||
                      (n->op == EPI_OP_LOGSUMEXP && w->of[n->arg[0]] && w->made[n->arg[0]]);
        any |= w->types[i] != EPI_F32;
    }
    return any;
}

/* Which of them meet one that is after, and which are wanted by others, too. */
static void find_versions(const epi_graph *g, narrower *w) {
    for (int i = g->node_count - 1; i >= 0; i--) {
        epi_use_list uses = epi_graph_uses(g, i);
        for (int u = 0; u < uses.count; u++) {
            int user = uses.at[u].node;
            if (user == EPI_NO_NODE)
                continue;
            w->joins[i] |= g->live[i] && w->made[i] && !w->after[i] && (w->after[user] || w->joins[user]);
            w->whole[i] |= !w->after[user] && (!has_versions(w, user) || w->whole[user]);
        }
    }
}

epi_status epi_narrow_outputs(epi_arena *arena, epi_spec *spec, epi_error *err) {
    const epi_graph *in = spec->graph;
    size_t nodes = (size_t)in->node_count + 1;
    narrower w = {.types = epi_arena_alloc(arena, nodes * sizeof *w.types),
                  .of = epi_arena_alloc(arena, nodes),
                  .made = epi_arena_alloc(arena, nodes),
                  .after = epi_arena_alloc(arena, nodes),
                  .joins = epi_arena_alloc(arena, nodes),
                  .whole = epi_arena_alloc(arena, nodes),
                  .as_it_is = epi_arena_alloc(arena, nodes * sizeof *w.as_it_is),
                  .narrow = epi_arena_alloc(arena, nodes * sizeof *w.narrow)};
    EPI_TRY(epi_has_memory(!arena->failed, err));
    if (!find_made(spec, &w))
        return EPI_OK;
    find_versions(in, &w);
    return epi_graph_rewrite(arena, &spec->graph, write_versions, &w, err);
}
