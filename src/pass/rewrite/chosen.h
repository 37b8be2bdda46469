/* chosen.h: matrices that batches choose are read where they lie. */
#ifndef EPI_PASS_CHOSEN_H
#define EPI_PASS_CHOSEN_H

#include "ir/spec.h"
#include "pass/analyse/limits.h"

/* Marks the gathers through whose index products read a matrix for each batch. */
epi_status epi_chosen_mark(epi_arena *arena, epi_spec *spec, const epi_backend_limits *limits,
                           epi_error *err);

#endif
