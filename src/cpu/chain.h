/* chain.h: steps of a list that one strip carries out together, see epi_chain in strips.h.
 *
 * A chain is a run of steps each of which takes the value that the one before made, where nothing else of the
 * list reads that value. It comes last where its last step was. */
#ifndef EPI_CPU_CHAIN_H
#define EPI_CPU_CHAIN_H

#include "cpu/block.h"

/* Puts `count` steps in the order in which they are to be carried out, a chain's one after the other with
 * what only it loads before them, and says in last[i] where the one that list[i] belongs to ends. `kept` says
 * which values have to be left behind. */
epi_status epi_chains_find(epi_arena *arena, const epi_tile_program *t, int *list, int *last, int count,
                           const int *kept);

/* Is the step one that a chain may end with, leaving nothing but a state per row? */
static inline bool epi_chain_folds(const epi_instr *s) {
    return s->kind == EPI_INSTR_REDUCE_ROW || s->kind == EPI_INSTR_PARTIAL_ROWS;
}

/* The link that makes of v what the step makes of its operands, the others of which are a and b or -1; NONE
 * where there is none. A division is SCALE by a. */
epi_link_kind epi_link_of(const epi_instr *s, int v, int *a, int *b);

/* The chain of `count` steps on row i of a block, whose columns' scale it gives; its loads and what it stores
 * lie in rows, unless that is held back in the slot of the last value. */
epi_scale epi_chain_set(epi_chain *c, const epi_block *b, const int *steps, int count, int i, bool held_back);
/* The same a step of the block further. */
void epi_chain_next(epi_chain *c);
/* Do all tensors of the chain lie in rows, the same way from each to the next? */
bool epi_chain_is_regular(const epi_tile_program *t, const epi_tile_access *access, const int *steps,
                          int count);

/* Carries out the `count` steps of a chain on a block; of one that folds the states go to `out`. Elements
 * that it stores stay in the slot of the last value if `held`. */
void epi_chain_run(const epi_block *b, const int *steps, int count, bool held, float *out,
                   const epi_fetch *next);

#endif
