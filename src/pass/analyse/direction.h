/* direction.h: a program with cotangents has two directions. Values that depend on a cotangent are backward,
 * and so are values that only backward results need. All others are forward. No part has results of both,
 * because the forward and its results must be complete before the first cotangent exists. */
#ifndef EPI_PASS_DIRECTION_H
#define EPI_PASS_DIRECTION_H

#include "ir/graph.h"

/* By node: is it forward? Returns whether the program has both; where it has one, all are forward. */
bool epi_find_forward(const epi_graph *g, bool *forward);

#endif
