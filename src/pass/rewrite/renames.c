/* renames.c: renames of sums of products go to the operands, where they cost nothing.
 *
 * Queries and keys are made of the same rows by two names, so their gradients come back by two names. */
#include "pass/rewrite/renames.h"

/* Is the value a sum of products, or one, that nothing else wants, and can it have this axis? Not of long
 * sums: a tile adds up a few. */
static bool can_have(const epi_graph *g, int node, epi_axis axis, int depth) {
    enum { DEEPEST = 16 };
    const epi_node *n = &g->nodes[node];
    if (depth == DEEPEST || epi_graph_uses(g, node).count != 1 ||
        (n->op != EPI_OP_ADD && n->op != EPI_OP_MATMUL))
        return false;
    for (int a = 0; a < 2; a++)
        if (epi_axes_find_dim(&g->nodes[n->arg[a]].axes, axis.dim) >= 0 ||
            (n->op == EPI_OP_ADD && !can_have(g, n->arg[a], axis, depth + 1)))
            return false;
    return true;
}

/* Is it renamed to be added to something? */
static bool is_pushed(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    if (n->op != EPI_OP_RENAME || epi_graph_uses(g, node).count != 1)
        return false;
    int user = epi_graph_uses(g, node).at[0].node;
    return user != EPI_NO_NODE && g->nodes[user].op == EPI_OP_ADD && can_have(g, n->arg[0], n->over.at[1], 0);
}

/* The value by its new name, in the new graph. */
static int push(epi_rewrite *r, int node, const epi_axes *names) {
    const epi_node *n = &r->in->nodes[node];
    epi_graph *g = r->g;
    int arg[2] = {EPI_NO_NODE, EPI_NO_NODE};
    for (int a = 0; a < 2 && !epi_graph_failed(g); a++)
        if (n->op == EPI_OP_ADD)
            arg[a] = push(r, n->arg[a], names);
        else if (epi_axes_find(&r->in->nodes[n->arg[a]].axes, names->at[0]) < 0)
            arg[a] = r->fresh[n->arg[a]];
        else
            arg[a] = epi_graph_rename(g, r->fresh[n->arg[a]], names->at[0], names->at[1]);
    g->place = n->place;
    int value = n->op == EPI_OP_ADD ? epi_graph_map2(g, n->op, arg[0], arg[1])
                                    : epi_graph_contract(g, arg[0], arg[1], &n->over);
    return epi_graph_stand_for(g, value, n);
}

static int write_node(epi_rewrite *r, int node) {
    const bool *pushed = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    int value = pushed[node] ? push(r, n->arg[0], &n->over) : EPI_NO_NODE;
    if (pushed[node])
        epi_graph_store_as(r->g, value, n);
    return value;
}

epi_status epi_renames_push(epi_arena *arena, const epi_graph **graph, epi_error *err) {
    const epi_graph *in = *graph;
    bool *pushed = epi_arena_alloc(arena, (size_t)in->node_count + 1), any = false;
    for (int i = 0; i < in->node_count && pushed; i++) {
        pushed[i] = in->live[i] && is_pushed(in, i);
        any |= pushed[i];
    }
    EPI_TRY(epi_has_memory(pushed, err));
    return any ? epi_graph_rewrite(arena, graph, write_node, pushed, err) : EPI_OK;
}
