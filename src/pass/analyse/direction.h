/* direction.h: a program with cotangents has two directions. What depends on a cotangent is backward, and so
 * is what only backward results need; the rest is forward. No part has results of both: the forward is done,
 * and its results are there, before the first cotangent is. */
#ifndef EPI_PASS_DIRECTION_H
#define EPI_PASS_DIRECTION_H

#include "ir/graph.h"

/* By node: is it forward? Returns whether the program has both; where it has one, all are forward. */
bool epi_find_forward(const epi_graph *g, bool *forward);

#endif
