/* scatters.h: batched scatters of few elements, as sums of choices. */
#ifndef EPI_PASS_SCATTERS_H
#define EPI_PASS_SCATTERS_H

#include "ir/spec.h"

epi_status epi_scatters_write(epi_arena *arena, epi_spec *spec, epi_error *err);

#endif
