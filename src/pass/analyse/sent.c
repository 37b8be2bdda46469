/* sent.c: scatters in which an index sends one element to each position, as a choice. */
#include "pass/analyse/sent.h"

#include <math.h>

/* Is it a whole number whatever the inputs are: a position, an input of integers, or what is made of such alone? A
 * conversion rounds, but gradcheck leaves it out. */
static bool is_whole(const epi_graph *g, int node, int depth) {
    enum { DEEPEST = 16 };
    const epi_node *n = &g->nodes[node];
    const epi_op_row *op = &epi_ops[n->op];
    if (n->op == EPI_OP_INPUT)
        return g->tensors[n->tensor].has_type && epi_dtype_is_whole(g->tensors[n->tensor].type);
    if (n->op == EPI_OP_CONST)
        return n->value == rint(n->value);
    if (n->op == EPI_OP_INDEX || n->op == EPI_OP_SIZE || n->op == EPI_OP_ROUND || n->op == EPI_OP_FLOOR ||
        op->signs || op->places)
        return true;
    bool sums = n->op == EPI_OP_ADD || n->op == EPI_OP_SUB || n->op == EPI_OP_MUL || n->op == EPI_OP_SUM;
    unsigned of = sums ? 3 : op->elements;
    bool whole = of && depth < DEEPEST;
    for (int a = 0; a < epi_node_operands(n) && whole; a++)
        whole = !(of >> a & 1) || is_whole(g, n->arg[a], depth + 1);
    return whole;
}

/* The number of each element among all along these axes, the last running fastest. */
static int flat_index(epi_graph *g, const epi_axes *along) {
    int flat = epi_graph_leaf(g, EPI_OP_INDEX, along->at[0]);
    for (int i = 1; i < along->count; i++) {
        int before = epi_graph_map2(g, EPI_OP_MUL, flat, epi_graph_leaf(g, EPI_OP_SIZE, along->at[i]));
        flat = epi_graph_map2(g, EPI_OP_ADD, before, epi_graph_leaf(g, EPI_OP_INDEX, along->at[i]));
    }
    return flat;
}

int epi_sent_alone(epi_graph *g, int value, int index, const epi_axes *along) {
    if (epi_graph_failed(g))
        return EPI_NO_NODE;
    index = epi_graph_value(g, index);
    int number = is_whole(g, index, 0) ? index : epi_graph_map1(g, EPI_OP_ROUND, index);
    int here = epi_graph_map2(g, EPI_OP_EQ, flat_index(g, along), number);
    return epi_graph_map(g, EPI_OP_WHERE, here, value, epi_graph_const(g, 0));
}
