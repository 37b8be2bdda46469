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

/* The value by its new name, in the new graph. `fresh` has what its products are made of. */
static int push(epi_graph *g, const epi_graph *in, int node, const epi_axes *names, const int *fresh) {
    const epi_node *n = &in->nodes[node];
    int arg[2] = {EPI_NO_NODE, EPI_NO_NODE};
    for (int a = 0; a < 2 && !epi_graph_failed(g); a++)
        if (n->op == EPI_OP_ADD)
            arg[a] = push(g, in, n->arg[a], names, fresh);
        else if (epi_axes_find(&in->nodes[n->arg[a]].axes, names->at[0]) < 0)
            arg[a] = fresh[n->arg[a]];
        else
            arg[a] = epi_graph_rename(g, fresh[n->arg[a]], names->at[0], names->at[1]);
    g->place = n->place;
    int value = n->op == EPI_OP_ADD ? epi_graph_map2(g, n->op, arg[0], arg[1])
                                    : epi_graph_contract(g, arg[0], arg[1], &n->over);
    if (epi_graph_failed(g))
        return EPI_NO_NODE;
    value = epi_graph_value(g, value);
    if (!g->nodes[value].name)
        g->nodes[value].name = n->name;
    epi_graph_store_as(g, value, n);
    return value;
}

static void write_graph(const epi_graph *in, const bool *pushed, int *fresh, epi_graph *g) {
    for (int i = 0; i < in->node_count && !epi_graph_failed(g); i++) {
        const epi_node *n = &in->nodes[i];
        if (!in->live[i] && n->op != EPI_OP_INPUT)
            continue;
        fresh[i] = pushed[i] ? push(g, in, n->arg[0], &n->over, fresh) : epi_graph_copy(g, n, fresh);
        epi_graph_store_as(g, fresh[i], n);
    }
    epi_graph_end(g, in, fresh);
}

epi_status epi_renames_push(epi_arena *arena, const epi_graph *in, const epi_graph **out, epi_error *err) {
    size_t nodes = (size_t)in->node_count + 1;
    bool *pushed = epi_arena_alloc(arena, nodes), any = false;
    *out = in;
    for (int i = 0; i < in->node_count && pushed; i++) {
        pushed[i] = in->live[i] && is_pushed(in, i);
        any |= pushed[i];
    }
    if (pushed && !any)
        return EPI_OK;
    int *fresh = epi_arena_alloc(arena, nodes * sizeof *fresh);
    epi_graph *g = epi_arena_alloc(arena, sizeof *g);
    if (!pushed || !fresh || !g)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    g->arena = arena;
    if (epi_graph_begin(g, in))
        write_graph(in, pushed, fresh, g);
    *out = g;
    return epi_graph_status(g, err);
}
