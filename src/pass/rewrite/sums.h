/* sums.h: sums over axes on both sides of others, inside rows first. */
#ifndef EPI_PASS_SUMS_H
#define EPI_PASS_SUMS_H

#include "ir/spec.h"

epi_status epi_sums_write(epi_arena *arena, epi_spec *spec, epi_error *err);

#endif
