/* chosen.h: matrices that batches choose, read in place. */
#ifndef EPI_PASS_CHOSEN_H
#define EPI_PASS_CHOSEN_H

#include "ir/spec.h"
#include "pass/analyse/limits.h"

/* Marks the gathers through whose index products read a matrix for each batch: an input of which a gather of the program
 * as it is `written` makes sure that its numbers are inside. */
epi_status epi_chosen_mark(epi_arena *arena, epi_spec *spec, const epi_graph *written,
                           const epi_backend_limits *limits, epi_error *err);

#endif
