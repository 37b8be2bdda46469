/* prepare.h: a program in two: the values that depend on params alone, which are the same in every call, and
 * the rest. */
#ifndef EPI_PASS_PREPARE_H
#define EPI_PASS_PREPARE_H

#include "pass/place/cut.h"

/* One of the two: a graph with the dims of the whole. */
typedef struct epi_half {
    epi_graph graph;
    epi_dtype *types;    /* by tensor */
    epi_part_tensor *at; /* likewise: a tensor of the program, or one of the prepared values */
    int *node;           /* by node of the graph: a node of the whole that it is */
} epi_half;

typedef struct epi_prepared {
    epi_half once, rest; /* outputs of the first are the prepared values, which are inputs of the second */
    int count;           /* of prepared values; 0: there is nothing to prepare, and no half */
    int *values;         /* their nodes in the whole */
} epi_prepared;

/* Takes the spec's program apart. What is chosen does not depend on the sizes of row axes. */
epi_status epi_prepare_split(epi_arena *arena, const epi_spec *spec, epi_prepared *out, epi_error *err);

/* The cuts of both halves as one: the parts of the first come first. */
epi_status epi_prepare_join(epi_arena *arena, const epi_spec *spec, const epi_prepared *halves,
                            const epi_cut *once, const epi_cut *rest, epi_cut *out, epi_error *err);

#endif
