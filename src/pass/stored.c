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
            if (index || (user->op == EPI_OP_RENAME && exact[uses.at[i].node]))
                return true;
        }
    return false;
}

epi_dtype *epi_stored_find(epi_arena *arena, const epi_graph *g) {
    size_t nodes = (size_t)g->node_count + 1;
    epi_dtype *said = epi_arena_alloc(arena, nodes * sizeof *said);
    bool *exact = epi_arena_alloc(arena, nodes);
    if (!said || !exact)
        return NULL;
    for (int i = g->node_count - 1; i >= 0; i--) { /* users come first */
        const epi_node *n = &g->nodes[i];
        exact[i] = is_exact(g, i, exact);
        said[i] = n->has_stored ? n->stored : exact[i] ? EPI_F32 : EPI_DTYPE_COUNT;
    }
    return said;
}
