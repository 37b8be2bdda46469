/* index.h: indices that are inputs: which operations have one that is looked through, and what is said of an
 * element outside its axis. */
#ifndef EPI_IR_INDEX_H
#define EPI_IR_INDEX_H

#include "ir/spec.h"

/* Is the node a gather, scatter or update whose index is an input of integers? */
bool epi_index_is_input(const epi_spec *spec, int node);
/* EPI_ERR_INDEX for element `at` of that input. */
epi_status epi_index_fail(const epi_spec *spec, int node, int64_t at, int64_t value, epi_error *err);

#endif
