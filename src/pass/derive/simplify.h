/* simplify.h: a program with the same values in fewer operations: graph in, graph out. */
#ifndef EPI_PASS_SIMPLIFY_H
#define EPI_PASS_SIMPLIFY_H

#include "ir/graph.h"

/* Rewrites *in, which is finished, into *out, whose arena is set. Nodes before `first` stay as they are, but
 * for silu(x) beside sigmoid(x): what a text says in this order has its bits from it. An error is in
 * out->error. */
void epi_simplify(epi_graph *in, int first, epi_graph *out);
/* The same where those before `first` are a program whose results are still wanted: silu stays as well.
 * Returns how many nodes of *out they are. */
int epi_simplify_with_results(const epi_graph *in, int first, epi_graph *out);

/* vanish.c: the gradient `node`, or one of the same value that is 0 where its terms have a factor of 0 by a
 * choice, whatever else they have. Nodes from `first` on are derived. */
int epi_vanish_last(epi_graph *g, int first, int node);

#endif
