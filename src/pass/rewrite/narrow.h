/* narrow.h: values that are rounded before anything else uses them. */
#ifndef EPI_PASS_NARROW_H
#define EPI_PASS_NARROW_H

#include "ir/spec.h"

/* The same program in which an output of 16 bits, of which a log-sum-exp is taken, is rounded to that type for the
 * log-sum-exp and all that meets it: exp(z - logsumexp(z, V)) of both as they are stored sums up to 1. That follows
 * from the program and its types, not from how it is cut. What does not meet the log-sum-exp is made of the value as
 * it is; so is all of it where the program is compiled in another type than the output's. spec->graph stays where
 * there is nothing to do. */
epi_status epi_narrow_outputs(epi_arena *arena, epi_spec *spec, epi_error *err);
/* The same program with the values whose type, by node, has 16 bits rounded to it. */
epi_status epi_narrow_values(epi_arena *arena, epi_spec *spec, epi_dtype *types, epi_error *err);

#endif
