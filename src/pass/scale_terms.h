/* scale_terms.h: numbers that scale products which are added up go to operands. */
#ifndef EPI_PASS_SCALE_TERMS_H
#define EPI_PASS_SCALE_TERMS_H

#include "ir/graph.h"

/* The same program so that one tile can add up more of its products. `out` is `in` itself where there is
 * nothing to do. What is stored between kernels is then scaled, so its bits are others. */
epi_status epi_scale_terms(epi_arena *arena, const epi_graph *in, const epi_graph **out, epi_error *err);

#endif
