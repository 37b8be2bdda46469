/* sum_product.c: a sum of a product of factors becomes a product of two operands whenever it is one, so that
 * no outer product is ever a value.
 *
 * Two factors are the cores of the operands: both have all axes that are summed over, and each has an axis
 * that the other lacks. A factor whose axes one of them has is multiplied into it. A factor that lacks the
 * summed axes is multiplied into the result. */
#include "ir/graph.h"

typedef struct operands {
    int core[2]; /* by side: which factor */
} operands;

static bool has_some(const epi_graph *g, int node, const epi_axes *over) {
    return epi_axes_meet(over, &g->nodes[node].axes);
}

/* The pair of most axes; false: there is none. */
static bool find_cores(const epi_graph *g, const epi_factor *f, int count, const epi_axes *over,
                       operands *out) {
    int most = 0;
    for (int i = 0; i < count; i++)
        for (int j = i + 1; j < count; j++) {
            int axes = g->nodes[f[i].node].axes.count + g->nodes[f[j].node].axes.count;
            if (f[i].divides || f[j].divides || axes <= most ||
                !epi_graph_is_contraction(g, f[i].node, f[j].node, over))
                continue;
            most = axes;
            *out = (operands){{i, j}};
        }
    return most > 0;
}

/* The side that a factor goes to, or -1: neither core has all its axes. Where both have, it stays with the
 * one that is nearer in the text. */
static int side_of(const epi_graph *g, const epi_factor *f, int at, const operands *o) {
    bool fits[2];
    for (int side = 0; side < 2; side++)
        fits[side] = epi_axes_include(&g->nodes[f[o->core[side]].node].axes, &g->nodes[f[at].node].axes);
    if (!fits[0] && !fits[1])
        return -1;
    if (!fits[0] || !fits[1])
        return fits[1];
    return at > o->core[0] && o->core[1] - at < at - o->core[0];
}

static int multiply(epi_graph *g, int value, const epi_factor *f) {
    return epi_graph_map2(g, f->divides ? EPI_OP_DIV : EPI_OP_MUL, value, f->node);
}

int epi_graph_sum_product(epi_graph *g, const epi_factor *f, int count, const epi_axes *over) {
    operands o;
    if (epi_graph_failed(g) || !find_cores(g, f, count, over, &o))
        return EPI_NO_NODE;
    for (int i = 0; i < count; i++)
        if (has_some(g, f[i].node, over) && side_of(g, f, i, &o) < 0)
            return EPI_NO_NODE;
    int side[2] = {f[o.core[0]].node, f[o.core[1]].node};
    for (int i = 0; i < count; i++)
        if (i != o.core[0] && i != o.core[1] && has_some(g, f[i].node, over)) {
            int *operand = &side[side_of(g, f, i, &o)];
            *operand = multiply(g, *operand, &f[i]);
        }
    int value = epi_graph_contract(g, side[0], side[1], over);
    for (int i = 0; i < count; i++)
        if (!has_some(g, f[i].node, over))
            value = multiply(g, value, &f[i]);
    return value;
}
