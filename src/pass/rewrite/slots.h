/* slots.h: sorts rows that choose their weight by their choice. */
#ifndef EPI_PASS_SLOTS_H
#define EPI_PASS_SLOTS_H

#include "ir/spec.h"

/* The same program, in which rows of products that choose their weight by an index lie in *slots*: sorted by
 * that index. *graph stays where no product is of that kind. spec has its sizes; NULL: they are not known yet.
 * *first is a node of the program, and becomes the first of the new one that is made for it or for a later one;
 * it may be NULL. */
epi_status epi_slots_write(epi_arena *arena, const epi_graph **graph, const epi_spec *spec, int *first,
                           epi_error *err);

#endif
