/* terms.h: merges terms that are added up into one sum, if one tile can have it. */
#ifndef EPI_PASS_TERMS_H
#define EPI_PASS_TERMS_H

#include "ir/graph.h"

/* The same program with fewer sums and, if a tile can add up products, with more that it can. *graph stays
 * where there is nothing to do. What is stored between kernels may then be scaled, so its bits are others. */
epi_status epi_gather_terms(epi_arena *arena, const epi_graph **graph, bool products, epi_error *err);

#endif
