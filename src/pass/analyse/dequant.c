/* dequant.c: recognises operands that are stored in few bits. */
#include "pass/analyse/dequant.h"

static bool is_number(const epi_graph *g, int node, double number) {
    return g->nodes[node].op == EPI_OP_CONST && g->nodes[node].value == number;
}

/* Is the node this operation of a value and a number, and of which value? Factors stand in any order. */
static bool is_with(const epi_graph *g, int node, epi_op op, double number, int *value) {
    const epi_node *n = &g->nodes[node];
    bool first = op == EPI_OP_MUL && n->op == op && is_number(g, n->arg[0], number);
    if (n->op != op || !(first || is_number(g, n->arg[1], number)))
        return false;
    *value = n->arg[first];
    return true;
}

/* The same of an operation as the text has it, or as the algebra writes it. */
static bool is_either(const epi_graph *g, int node, epi_op op, double number, epi_op other, double inverse,
                      int *value) {
    return is_with(g, node, op, number, value) || is_with(g, node, other, inverse, value);
}

/* where(x > 7, x + -16, x) is a half of two's complement: x. */
static bool takes_sign(const epi_graph *g, int *node) {
    const epi_node *n = &g->nodes[*node];
    int compared, moved;
    if (n->op != EPI_OP_WHERE || !is_with(g, n->arg[0], EPI_OP_GT, 7, &compared) ||
        !is_either(g, n->arg[1], EPI_OP_ADD, -16, EPI_OP_SUB, 16, &moved) || compared != n->arg[2] ||
        moved != n->arg[2])
        return false;
    *node = n->arg[2];
    return true;
}

/* Two elements a byte, as epi_packed_read writes them. */
static bool find_halves(const epi_graph *g, int node, epi_dequant *out) {
    const epi_node *n = &g->nodes[node];
    int low = n->arg[0], high = n->arg[1], quotient, sixteen, bytes;
    if (n->op != EPI_OP_JOIN || !epi_axis_equal(n->axes.at[n->axes.count - 1], n->over.at[0]))
        return false;
    out->is_signed = takes_sign(g, &low);
    if (takes_sign(g, &high) != out->is_signed || g->nodes[high].op != EPI_OP_FLOOR)
        return false;
    quotient = g->nodes[high].arg[0];
    if (!is_either(g, quotient, EPI_OP_DIV, 16, EPI_OP_MUL, 1.0 / 16, &bytes) ||
        g->nodes[low].op != EPI_OP_SUB || g->nodes[low].arg[0] != bytes ||
        !is_with(g, g->nodes[low].arg[1], EPI_OP_MUL, 16, &sixteen) || sixteen != high)
        return false;
    out->bytes = bytes;
    out->bits = 4;
    return true;
}

/* A map of two values, one of which lacks axes: that one, and *node is the other. Only the first may be the whole
 * of a difference. */
static int take_short(const epi_graph *g, epi_op op, int *node) {
    const epi_node *n = &g->nodes[*node];
    if (n->op != op)
        return EPI_NO_NODE;
    for (int a = 0; a < (op == EPI_OP_SUB ? 1 : 2); a++) {
        int part = n->arg[!a];
        if (epi_axes_same_set(&g->nodes[n->arg[a]].axes, &n->axes) &&
            g->nodes[part].axes.count < n->axes.count && g->nodes[part].op != EPI_OP_CONST) {
            *node = n->arg[a];
            return part;
        }
    }
    return EPI_NO_NODE;
}

bool epi_dequant_find(const epi_graph *g, int node, epi_dequant *out) {
    *out = (epi_dequant){.zero = EPI_NO_NODE, .bits = 8};
    if (!g->nodes[node].axes.count)
        return false;
    out->offset = take_short(g, EPI_OP_ADD, &node);
    out->scale = take_short(g, EPI_OP_MUL, &node);
    if (out->offset == EPI_NO_NODE)
        out->zero = take_short(g, EPI_OP_SUB, &node);
    if (find_halves(g, node, out))
        return true;
    const epi_op op = g->nodes[node].op;
    out->bytes = op == EPI_OP_F32 || op == EPI_OP_BF16 || op == EPI_OP_F16 ? g->nodes[node].arg[0] : node;
    return true;
}

int epi_elements_source(const epi_graph *g, int node) {
    for (;;) {
        const epi_node *n = &g->nodes[node];
        if (!epi_op_is_view(n->op) && n->op != EPI_OP_GATHER && !epi_op_is_half(n->op))
            return node;
        node = n->arg[0];
    }
}
