/* variance.h: a variance on a product's tile is one cross-tile reduction; elsewhere it is several. */
#ifndef EPI_PASS_VARIANCE_H
#define EPI_PASS_VARIANCE_H

#include "ir/spec.h"

/* Brings every variance, written as var(x, X) or as mean((x - mean(x, X))**2, X), into the form that suits
 * it: spec->graph is another one then, with the same tensors. */
epi_status epi_variance_form(epi_arena *arena, epi_spec *spec, epi_error *err);

/* mean((x - mean(x, X))**2, X), less what rounding the mean adds, in place of the variance `n` of x. */
int epi_variance_write(epi_graph *g, int x, const epi_node *n);

#endif
