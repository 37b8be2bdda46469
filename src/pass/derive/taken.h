/* taken.h: where a gradient is known to be nonzero: the choices that it came through. */
#ifndef EPI_PASS_TAKEN_H
#define EPI_PASS_TAKEN_H

#include "ir/graph.h"

enum { EPI_MOST_CONDITIONS = 4 };

typedef struct epi_condition {
    int node;   /* truth, element by element */
    bool fails; /* what holds is that it does not */
} epi_condition;

/* All of these hold where the gradient is not 0; none: nothing is known. */
typedef struct epi_taken {
    int count;
    epi_condition at[EPI_MOST_CONDITIONS];
} epi_taken;

/* Notes what a value that is where(c, x, 0) or where(c, 0, x) says. */
void epi_taken_note(epi_graph *g, epi_taken *t, int value);
/* Forgets conditions that have other axes than these. */
void epi_taken_keep(const epi_graph *g, epi_taken *t, const epi_axes *axes);
/* Of a sum of two gradients. */
epi_taken epi_taken_either(epi_graph *g, const epi_taken *a, const epi_taken *b);
/* A value as it is where all conditions hold: without choices by them. What is named inside stays as it is,
 * unless `named`. */
int epi_taken_inside(epi_graph *g, const epi_taken *t, int value, bool named);
/* The value where all of them hold, else 0. */
int epi_taken_only(epi_graph *g, const epi_taken *t, int value);

#endif
