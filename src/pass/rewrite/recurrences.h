/* recurrences.h: sums of scans of products, in the form that their mainloop supports. */
#ifndef EPI_PASS_RECURRENCES_H
#define EPI_PASS_RECURRENCES_H

#include "ir/spec.h"

/* The same program in which sums of a scan's states are over axes of the state alone, and what is made of one end of a
 * scan is made of its last state. *graph stays where there is nothing to do. */
epi_status epi_recurrences_form(epi_arena *arena, epi_spec *spec, bool products, epi_error *err);

#endif
