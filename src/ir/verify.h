/* verify.h: what holds for every finished graph. */
#ifndef EPI_IR_VERIFY_H
#define EPI_IR_VERIFY_H

#include "ir/graph.h"

/* Does all that the graph says of itself hold? Operands come before their users, axes follow from operands,
 * types are types, tensors and nodes name each other, and the lists of uses have every use. Else the error is
 * an internal one and says which value. */
epi_status epi_graph_verify(const epi_graph *g, epi_error *err);

#endif
