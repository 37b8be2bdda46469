/* tape.h: groups the instructions of a tile's program into a few items: tapes, which strips.h describes, and
 * strips.
 *
 * A tape takes any instructions on elements of one scale whose operations have links, as many as do not wait
 * for another kind of instruction. A value that the next link needs stays in registers. A value that only
 * one tape reads has a slot, whose floats every row uses again. All other instructions are strips, one each.
 */
#ifndef EPI_CPU_TAPE_H
#define EPI_CPU_TAPE_H

#include "cpu/attention/band.h"

/* A link with values for operands, or -1. */
typedef struct epi_tape_link {
    epi_link_kind kind;
    int a, b;
    int made;  /* the value that it leaves in registers, or -1 */
    int instr; /* what it comes from, or -1; of JOIN the instruction that alone reads its result, and stores
                  it */
} epi_tape_link;

enum { EPI_TAPE_INSTRS = 256 };   /* of a tape, at most */
enum { EPI_TAPE_PREFETCHES = 8 }; /* after a tape's links there is room for so many and its end */

/* Instructions one after the other: a tape of them, or (no links) one that is a strip of its own. */
typedef struct epi_tape_item {
    int first, count; /* places in the order */
    int link, link_count;
    epi_scale scale;
} epi_tape_item;

typedef struct epi_tapes {
    int *order; /* the instructions, as the items take them */
    epi_tape_item *items;
    epi_tape_link *links;
    int count, item_count, link_count;
    bool *local;       /* by value: one tape alone makes and reads it */
    int *load;         /* by value: the instruction that loads it for tapes alone, or -1 */
    int *start, *last; /* by value: the items between which it needs a slot; start -1: it needs none */
    int state_count;
} epi_tapes;

/* What is cut up into items: instructions on elements, in their order. */
typedef struct epi_tape_list {
    const epi_tile_program *tile;
    const int *instrs;
    int count;
    const int *kept; /* by value: not -1 if it is wanted after these; NULL: none is */
    bool strips;     /* strips alone, no tapes */
} epi_tape_list;

epi_status epi_tapes_build(epi_arena *arena, const epi_strips *strips, const epi_tape_list *list,
                           epi_tapes *out);

/* Gives values of elements their slots, by value or -1, such that two have the same one only if no list needs
 * both at once, and short vectors one each; returns how many there are, and in *shorts of these. -1: no
 * memory. */
int epi_tape_slots(epi_arena *arena, const epi_tapes *tapes, int count, const epi_tile_program *t, int *slot,
                   int *shorts);

/* ---- where a tape works ---- */

typedef struct epi_tape_place {
    const epi_tapes *tapes;
    const epi_band *band;
    bool alone; /* the band is one row: tensors need not lie regularly from row to row */
    bool held;  /* nothing is stored before the last item: what would be goes to slots */
    /* Where a fold goes: one float per row of the tile from the first on, or one per column. */
    float *(*fold_at)(const void *ctx, int instr);
    /* Carries an instruction out as a strip. */
    void (*strip)(const void *ctx, int instr);
    const void *ctx;
    float *state; /* EPI_STATE_MOST floats for every state */
} epi_tape_place;

/* Carries out an item that is a strip, unless it is a store or what a tape loads; and, after all items, the
 * stores that no tape does. */
void epi_tape_strip(const epi_tape_place *p, const epi_tape_item *item);
void epi_tape_stores(const epi_tape_place *p);
/* Do all tensors of the item lie such that its tape can be moved on, instead of being set again? */
bool epi_tape_is_regular(const epi_tapes *t, const epi_tile_program *tile, const epi_tape_item *item,
                         const epi_tile_access *access);

/* The links of an item on the band in hand, into their places among all of them; returns where they end. */
epi_link *epi_tape_set(const epi_tape_place *p, const epi_tape_item *item, epi_link *links);
/* One more, which prefetches a share of `bytes` bytes of every row of `a` while the tape goes over n columns:
 * from share[0] to share[1] of share[2]. */
void epi_tape_prefetch(epi_link **end, const epi_link_operand *a, int64_t bytes, int n,
                       const int64_t share[3]);
/* And the end of the tape that starts with `link`. */
void epi_tape_end(const epi_strips *strips, epi_link *link, epi_link *end);

/* Moves a tape on by so many rows and columns of its scale. */
void epi_tape_move(epi_link *link, int64_t rows, int64_t columns);

#endif
