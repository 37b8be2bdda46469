/* index.h: index inputs: which operations have one that must be checked, and the message about an element
 * outside its axis. */
#ifndef EPI_IR_INDEX_H
#define EPI_IR_INDEX_H

#include "ir/spec.h"

/* What such an operation has as its index. */
static inline const epi_node *epi_index_of(const epi_graph *g, const epi_node *n) {
    int operand = epi_op_index(n->op);
    return &g->nodes[n->arg[operand > 0 ? operand : 0]];
}
/* Where its elements lie, if that is not a value of its own: in what it is a slice of, at a number along an
 * axis. Else the node is the index itself. */
typedef struct epi_index_source {
    int node;
    bool sliced;
    epi_axis axis;
    int64_t at;
} epi_index_source;
epi_index_source epi_index_find(const epi_graph *g, const epi_node *n);
/* What its elements count along. */
static inline epi_axes epi_index_along(const epi_graph *g, const epi_node *n) {
    epi_axes kept = epi_scatter_kept(g, n);
    return epi_op_by_index(n->op) ? epi_axes_without(&n->over, &kept) : (epi_axes){1, {n->over.at[0]}};
}
/* What an order counts the elements of its index through; offsets do it as these lie. */
epi_axes epi_order_places(const epi_graph *g, const epi_node *n);
/* Are both orders of one index, by the same values and through the same places? */
bool epi_orders_alike(const epi_graph *g, int a, int b);
/* Is it a value with an element for each place at most, in the order of an argsort? */
bool epi_is_sorted(const epi_graph *g, int node);
/* Is it gather(p, topk(p, E, K), E): the largest elements themselves? */
bool epi_is_largest(const epi_graph *g, int node);
/* Does the index name the last element along the axis, size(T) - 1; or, `first`, the first? And does the node take
 * that element of a value, gather(v, size(T) - 1, T)? */
bool epi_is_end(const epi_spec *spec, int index, epi_axis axis, bool first);
bool epi_takes_end(const epi_spec *spec, int node, bool first);
/* Is the node a gather, scatter or update, or an order, whose index is an input of integers? */
bool epi_index_is_input(const epi_spec *spec, int node);
/* EPI_ERR_INDEX for element `at` of that input. */
epi_status epi_index_fail(const epi_spec *spec, int node, int64_t at, int64_t value, epi_error *err);

#endif
