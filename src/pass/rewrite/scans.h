/* scans.h: running sums that are written with a mask, and the first and last steps of recurrences. */
#ifndef EPI_PASS_SCANS_H
#define EPI_PASS_SCANS_H

#include "ir/spec.h"

/* The same program in which sum(where(index(U) <= index(T), u, 0), U), and its like, is a running sum along T; and, with
 * `products`, sum((index(U) <= index(T))*u, U), which is NaN where a product of 0 and infinity would be one. An index
 * that follows from sizes, as size(T) - 1, is a number. What is sent to one step of a recurrence is
 * where(index(T) == c, x, 0), and the sum of such is a slice. spec->graph stays where there is nothing to do. */
epi_status epi_scans_write(epi_arena *arena, epi_spec *spec, bool products, epi_error *err);

#endif
