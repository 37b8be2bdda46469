/* groups.h: products whose weight is chosen by the row become grouped products. */
#ifndef EPI_PASS_GROUPS_H
#define EPI_PASS_GROUPS_H

#include "ir/graph.h"

/* Is it a product of groups, as plain operations? */
bool epi_is_grouped(const epi_graph *g, int node);
/* *graph with products of groups (GROUPED in ops.def); as it is where there are none. */
epi_status epi_groups_write(epi_arena *arena, const epi_graph **graph, epi_error *err);

#endif
