/* choices.h: sums of elements, each of which goes to a position that its row names. */
#ifndef EPI_PASS_CHOICES_H
#define EPI_PASS_CHOICES_H

#include "ir/spec.h"

/* The same program in which sum(where(index(E) == e, d, 0), K), of a short axis K, is a sum of as many choices
 * by numbers of a row, in the order of K: where(index(E) == gather(e, 0, K), gather(d, 0, K), 0) + …, which
 * rows make as they go; and so of an extreme. So is what a router's gradient gives each choice. *graph stays
 * where there is nothing to do. */
epi_status epi_choices_write(epi_arena *arena, const epi_graph **graph, const epi_spec *spec, epi_error *err);

#endif
