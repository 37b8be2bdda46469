/* sent.h: scatters in which an index sends one element to each position, as a choice. */
#ifndef EPI_PASS_SENT_H
#define EPI_PASS_SENT_H

#include "ir/graph.h"

/* The value that has at each place along these axes, through which the index counts, what is sent there, and 0 elsewhere:
 * where(index(T) == i, d, 0). */
int epi_sent_alone(epi_graph *g, int value, int index, const epi_axes *along);

#endif
