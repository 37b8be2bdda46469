/* slabs.h: what slabs.c, which writes the parts of loops over slabs, and slab_loops.c, which finds the loops,
 * share. */
#ifndef EPI_PASS_SLABS_H
#define EPI_PASS_SLABS_H

#include "pass/place/cut.h"

/* What is known while the new cut is made. */
typedef struct epi_slab_maker {
    epi_arena *arena;
    const epi_spec *spec;
    const epi_cut *from;
    epi_cut *to;
    int dim;
    bool separate_sums; /* sums are added up by parts of their own */
    bool *can;          /* by part of `from`: it may be in a loop */
    int *loop;          /* likewise: the first part of its loop, or -1 */
    bool **summed;      /* likewise, by node: a sum over the axis, or made of one */
    bool *slab;         /* by value of `from`: no more than a slab of it is stored */
    int *value;         /* likewise: its number in `to`, or -1 */
    int *recomputed;    /* likewise, in the loop that is being written: of what is recomputed in it, or -1 */
} epi_slab_maker;

/* Fills in can, loop, summed and slab. False: there is no loop, or no memory. */
bool epi_slabs_find(epi_slab_maker *m, int64_t grain, int aligned);
/* Is it a sum over the rows? */
bool epi_slabs_is_sum(const epi_slab_maker *m, const epi_node *n);
/* Does a part of this loop load the value? */
bool epi_slabs_wanted_in(const epi_slab_maker *m, int value, int loop);
bool epi_slabs_same_place(epi_part_tensor a, epi_part_tensor b);

#endif
