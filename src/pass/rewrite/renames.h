/* renames.h: rename(x, S, R): the same values along an axis with another name. */
#ifndef EPI_PASS_RENAMES_H
#define EPI_PASS_RENAMES_H

#include "ir/graph.h"

/* The same program in which a sum of products that is renamed where it is added to something is made by its
 * new name: rename(a @ b + c @ d, R, S) + e is rename(a, R, S) @ b + rename(c, R, S) @ d + e. So one tile can
 * add up gradients that come back from both sides of an attention. *graph stays where there is nothing
 * to do. */
epi_status epi_renames_push(epi_arena *arena, const epi_graph **graph, epi_error *err);

/* The same program in which maps of such a sum that ends as an output are made by the old name, where the new one cannot go
 * to the operands: rename(a @ b, R, S)*c, with products over S, is rename((a @ b)*rename(c, S, R), R, S). So the tile
 * that has a gradient goes on with it. */
epi_status epi_renames_pull(epi_arena *arena, const epi_graph **graph, epi_error *err);

#endif
