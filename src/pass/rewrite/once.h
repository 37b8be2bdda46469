/* once.h: values that are compared with their own extreme, v == max(v, X), as the gradient of a maximum and
 * argmax do. */
#ifndef EPI_PASS_ONCE_H
#define EPI_PASS_ONCE_H

#include "pass/place/plan.h"

/* Marks in compares[] (by node, false before) the comparisons of a value with its own extreme whose outcome
 * depends on how the value was made. False: no memory. */
bool epi_once_find(epi_arena *arena, const epi_graph *g, bool *compares);

/* Such values are stored, if they are, in f32, unless the text says otherwise or a product takes them:
 * rounded to 16 bits, many elements would be the largest. */
void epi_once_store(epi_graph *g);

/* The same program in which such a value is made once: both the extreme and the comparison take it as it is
 * in memory. spec->graph stays where there is nothing to do. */
epi_status epi_once_write(epi_arena *arena, epi_spec *spec, epi_error *err);

#endif
