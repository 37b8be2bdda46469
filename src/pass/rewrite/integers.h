/* integers.h: the passes `integers` and `large`, which prepare integers for kernels. */
#ifndef EPI_REWRITE_INTEGERS_H
#define EPI_REWRITE_INTEGERS_H

#include "ir/spec.h"

/* Writes a // b and a % b in the operations that kernels have, and leaves out what changes no integer. */
epi_status epi_integers_write(epi_arena *arena, epi_spec *spec, epi_error *err);
/* Marks what is computed in 64 bits, as f32 does not hold it, and converts the integers that products take. */
epi_status epi_large_mark(epi_arena *arena, epi_spec *spec, epi_error *err);

#endif
