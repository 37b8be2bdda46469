/* slices.h: a *slice* is gather(x, 2, C), the part of x at one position of an axis. */
#ifndef EPI_PASS_SLICES_H
#define EPI_PASS_SLICES_H

#include "ir/graph.h"

/* The same program with its slices taken from inputs, as far as they can be: gather(n @ w, 2, C) is
 * n @ gather(w, 2, C), and a slice of an input needs no copy. A scatter to a number is a choice by the
 * position. *graph stays where there is nothing to do. */
epi_status epi_slices_push(epi_arena *arena, const epi_graph **graph, epi_error *err);

#endif
