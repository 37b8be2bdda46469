/* shifts.h: elements at a fixed distance along an axis, as shifts. */
#ifndef EPI_PASS_SHIFTS_H
#define EPI_PASS_SHIFTS_H

#include "ir/spec.h"

epi_status epi_shifts_write(epi_arena *arena, epi_spec *spec, bool strict, epi_error *err);

#endif
