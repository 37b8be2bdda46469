/* tape.h: steps of a tile's list that one strip carries out together, see epi_link in strips.h.
 *
 * A chain is a line of steps; a tape takes any steps on elements of one scale whose operations have links, as
 * many as do not wait for another kind of step. A value that the next link takes goes on to it in registers.
 * What only one tape reads has room for a row, which every row uses anew. */
#ifndef EPI_CPU_TAPE_H
#define EPI_CPU_TAPE_H

#include "cpu/block.h"

/* A link with values for operands, or -1. */
typedef struct epi_tape_link {
    epi_link_kind kind;
    int a, b;
    int made; /* the value that it leaves in registers, or -1 */
    int step; /* the step it comes from, or -1; of JOIN the one that alone reads its result, and stores it */
} epi_tape_link;

enum { EPI_TAPE_STEPS = 256 }; /* of a tape, at most */
enum { EPI_TAPE_FETCHES = 8 }; /* after a tape's links there is room for so many and its end */

/* Steps one after the other: a tape of them, or (no links) one that is a strip of its own. */
typedef struct epi_tape_item {
    int first, count;
    int link, link_count;
    epi_scale scale;
} epi_tape_item;

typedef struct epi_tapes {
    epi_tape_item *items; /* all steps on elements */
    epi_tape_link *links;
    int item_count, link_count;
    bool *local; /* by value: one tape alone makes and reads it, */
    int *own;    /* and its place among those that it does not only have in registers, or -1 */
    int *load;   /* by value: the step that loads it for tapes alone, or -1 */
    int own_count, fold_count;
} epi_tapes;

/* Puts the list's steps in the order in which they are to be carried out, those on elements last. */
epi_status epi_tapes_build(epi_arena *arena, const epi_strips *strips, epi_tile_program *t, epi_tapes *out);

/* What the links of a tile's tapes need to be told. */
typedef struct epi_tape_place {
    const epi_tapes *tapes;
    const epi_block *block;
    int rows; /* of a block */
    /* Where the partials of a reduction go: one per row from the first on, or one per column. */
    float *(*partials)(const void *ctx, const epi_instr *s);
    const void *ctx;
    float *state; /* EPI_BLOCK_MOST floats for every fold */
} epi_tape_place;

/* The links of an item on the first block of a tile, into their places among all of them. */
void epi_tape_set(const epi_tape_place *p, const epi_tape_item *item, epi_link *links);
/* The same on the next block. */
void epi_tape_walk(epi_link *link);

#endif
