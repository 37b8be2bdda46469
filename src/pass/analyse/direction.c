/* direction.c: which values of a program are forward and which are backward. */
#include "pass/analyse/direction.h"

#include <string.h>

bool epi_find_forward(const epi_graph *g, bool *forward) {
    bool any = false, both[2] = {false, false};
    for (int i = 0; i < g->node_count; i++) { /* first: does it depend on a cotangent? */
        const epi_node *n = &g->nodes[i];
        forward[i] = n->op == EPI_OP_INPUT ? g->tensors[n->tensor].cotangent : epi_node_takes(n, forward);
        any |= forward[i];
    }
    for (int t = g->input_count; t < g->tensor_count && any; t++)
        both[forward[g->tensors[t].node]] = true;
    if (!both[0] || !both[1]) {
        memset(forward, 1, (size_t)g->node_count);
        return false;
    }
    for (int i = 0; i < g->node_count; i++)
        forward[i] = !forward[i];
    /* what no forward result needs is recomputed by the backward */
    for (int i = g->node_count - 1; i >= 0; i--) {
        epi_use_list uses = epi_graph_uses(g, i);
        bool needed = false;
        for (int u = 0; u < uses.count; u++)
            needed |= uses.at[u].node == EPI_NO_NODE || forward[uses.at[u].node];
        forward[i] = forward[i] && needed;
    }
    return true;
}
