/* rows.h: the rows mainloop: a program without a product, row by row, each read and written once.
 *
 * A thread takes a piece: some rows, or columns of one flat row. It works on a band of rows at a time and
 * passes over the band's columns once per phase, stretch by stretch, so that the values of a stretch stay in
 * the first-level cache from one item to the next. Reductions over the row are complete between phases. */
#ifndef EPI_CPU_ROWS_H
#define EPI_CPU_ROWS_H

#include "cpu/rows/tape.h"

/* What a thread has of its own, in bytes: where its arrays begin, and all. */
typedef struct epi_rows_room {
    int64_t at, links, positions, slots, kept, shorts, results, sums, state, scans, bytes;
} epi_rows_room;

/* Where a tape stands: the first row and column of the band that it was set or moved to. */
typedef struct epi_rows_position {
    int64_t row, column;
    bool set;
    bool edge; /* some of what it takes from other places is outside */
} epi_rows_position;

typedef struct epi_rows {
    epi_tile_program tile;
    const epi_strips *strips;
    int threads;
    int band;        /* rows at a time */
    int64_t stretch; /* columns at a time, of the fine scale; even */
    int64_t piece_rows, piece_cols, row_pieces, col_pieces;
    int *list, *list_start; /* the instructions on elements: phase p takes list[list_start[p] to list_start[p
                               + 1]) */
    epi_tapes *tapes;       /* by phase: these as items */
    int *item_start,        /* by phase: its first item among those of all phases, */
        *link_start;        /* and its first link */
    int *fold,              /* the instructions that fold a row, */
        *fold_start;        /* by item of all phases: its first among them */
    int *between,
        *between_start; /* the instructions on rows: those that come before phase p, or after the last */
    int *work;          /* what the items before one cost, of all phases, in simple operations */
    int *keep;          /* by value: which row buffer has it from its first phase on, or -1 */
    int *slot;          /* by value: among the slots of elements, or among the short vectors; or -1 */
    int *store;         /* by value: epi_first_stores */
    /* by instruction: where its partials lie. The second word of a fold of the row, and of sums of a piece's
       columns, is a short vector. Sums down long pieces have theirs, the sums and what rounding lost, at
       `second` among the sums of the thread. */
    epi_states *states;
    int *
        scan; /* by instruction: which recurrence it is, or -1; and the last phase that goes through its steps */
    int *scan_phase;
    int64_t *column; /* by value without rows: where it lies among the columns' floats */
    int slot_count, short_count, keep_count, state_count;
    epi_rows_room room;
    /* offsets in the scratch, in bytes */
    int64_t access, source, regular, columns, partials, per_thread, scratch;
    int64_t partial_count, sum_count; /* floats */
} epi_rows;

epi_status epi_rows_build(epi_arena *arena, const epi_spec *spec, const epi_plan *plan,
                          const epi_strips *strips, const epi_root *roots, int root_count, epi_rows *out,
                          epi_error *err);
/* Runs; `homes` is by node, `tensors` by tensor, `scratch` has out->scratch bytes. */
void epi_rows_run(const epi_rows *k, const epi_ref *homes, const epi_ref *tensors, unsigned char *scratch);

/* All the columns of a row at a scale. */
static inline int64_t epi_rows_width(const epi_rows *k, epi_scale scale) {
    return scale == EPI_SCALE_NONE ? 1 : scale == EPI_SCALE_COARSE ? k->tile.n / 2 : k->tile.n;
}

/* Floats of a slot, of a row buffer and of a short vector. */
static inline int64_t epi_rows_slot(const epi_rows *k) {
    return epi_round_up(k->band * k->stretch, 16);
}
static inline int64_t epi_rows_keep(const epi_rows *k) {
    return epi_round_up(k->band * k->tile.n, 16);
}
/* Numbers of a recurrence's state. */
static inline int64_t epi_rows_scan(const epi_rows *k) {
    return k->tile.plan->scan_inner ? k->band : k->piece_cols;
}
static inline int64_t epi_rows_short(const epi_rows *k) {
    return epi_round_up(k->band, 16);
}

#endif
