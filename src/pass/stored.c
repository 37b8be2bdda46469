/* stored.c: which values are stored in a type of their own: those of which the text says it, and those that
 * must be exact. */
#include "pass/stored.h"

/* Is it a random number, or an index of gather, scatter or update? `exact` has its users. */
static bool is_exact(const epi_graph *g, int node, const bool *exact) {
    epi_use_list uses = epi_graph_uses(g, node);
    if (epi_ops[g->nodes[node].op].cls == EPI_CLASS_RANDOM)
        return true;
    for (int i = 0; i < uses.count; i++)
        if (uses.at[i].node != EPI_NO_NODE) {
            const epi_node *user = &g->nodes[uses.at[i].node];
            bool index = uses.at[i].operand == 1 && epi_ops[user->op].cls == EPI_CLASS_MOVE;
            if (index || (epi_ops[user->op].cls == EPI_CLASS_VIEW && exact[uses.at[i].node]))
                return true;
        }
    return false;
}

/* Is it a position, a size or an integer, or made of such and numbers alone, by whatever they are chosen? So
 * is what argmax finds. Products take it in their own type. `whole` has its operands. */
static bool is_whole(const epi_graph *g, int node, const bool *whole) {
    const epi_node *n = &g->nodes[node];
    bool counts = n->op == EPI_OP_INDEX || n->op == EPI_OP_SIZE, all = true;
    if (n->op == EPI_OP_INPUT)
        return g->tensors[n->tensor].has_type && epi_dtype_is_integer(g->tensors[n->tensor].type);
    bool logical = n->op >= EPI_OP_LT && n->op <= EPI_OP_NOT;
    if ((epi_ops[n->op].cls != EPI_CLASS_MAP && n->op != EPI_OP_RMIN && n->op != EPI_OP_RMAX) || logical)
        return counts;
    for (int a = n->op == EPI_OP_WHERE; a < epi_node_operands(n); a++) {
        all &= whole[n->arg[a]] || g->nodes[n->arg[a]].op == EPI_OP_CONST;
        counts |= whole[n->arg[a]];
    }
    epi_use_list uses = epi_graph_uses(g, node);
    for (int i = 0; i < uses.count && all; i++)
        all = uses.at[i].node == EPI_NO_NODE || g->nodes[uses.at[i].node].op != EPI_OP_MATMUL;
    return all && counts;
}

epi_dtype *epi_stored_find(epi_arena *arena, const epi_graph *g) {
    size_t nodes = (size_t)g->node_count + 1;
    epi_dtype *said = epi_arena_alloc(arena, nodes * sizeof *said);
    bool *exact = epi_arena_alloc(arena, nodes), *whole = epi_arena_alloc(arena, nodes);
    if (!said || !exact || !whole)
        return NULL;
    for (int i = 0; i < g->node_count; i++)
        whole[i] = is_whole(g, i, whole);
    for (int i = g->node_count - 1; i >= 0; i--) { /* users come first */
        const epi_node *n = &g->nodes[i];
        exact[i] = is_exact(g, i, exact);
        /* on the tile that it is compared on, what is made once is f32: whoever loads it sees the same */
        bool f32 = exact[i] || (whole[i] && n->op != EPI_OP_INPUT) || n->op == EPI_OP_ONCE;
        said[i] = n->has_stored ? n->stored : f32 ? EPI_F32 : EPI_DTYPE_COUNT;
    }
    return said;
}
