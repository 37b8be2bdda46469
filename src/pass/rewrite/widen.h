/* widen.h: 8-bit operands, for mainloops that do not support them. */
#ifndef EPI_PASS_WIDEN_H
#define EPI_PASS_WIDEN_H

#include "ir/spec.h"
#include "pass/analyse/limits.h"

/* Is it an operand in 8 bits, which few mainloops support? */
bool epi_is_widened(const epi_spec *spec, int operand);
/* The same program in which products take 16 bits or f32 of what is stored in 8, or are marked as `scaled`: those that a
 * mainloop takes which wants scales to be the same for so many neighbours (0: there is none). spec->graph stays where
 * there is nothing to do. */
epi_status epi_widen_operands(epi_arena *arena, epi_spec *spec, int scaled, epi_error *err);
/* Marks what products make of few bits as they load an operand. By input: not of those that are widened ahead; behind
 * all inputs: none is. NULL: none is widened ahead. */
epi_status epi_widen_on_load(epi_arena *arena, epi_spec *spec, const epi_backend_limits *limits,
                             const bool *ahead, epi_error *err);

#endif
