/* rows.h: the rows mainloop: a program without a product, row by row, each read and written once.
 *
 * A thread takes a piece: some rows, or a stretch of one flat row. It works on a block of rows at a time and
 * walks over the block's columns once a phase, chunk by chunk, so that a chunk's values stay in the
 * first-level cache from one strip to the next. Folds of the row are complete between phases. */
#ifndef EPI_CPU_ROWS_H
#define EPI_CPU_ROWS_H

#include "cpu/chain.h"

typedef struct epi_rows {
    epi_tile_program tile;
    const epi_strips *strips;
    int threads;
    int block;     /* rows at a time */
    int64_t chunk; /* columns at a time, of the fine scale; even */
    int64_t piece_rows, piece_cols, row_pieces, col_pieces;
    int slot_count, short_count, keep_count, chain_count;
    bool lags; /* the last phase of a row may be carried out beside the one before it of the next row */
    int *list,
        *list_start; /* the steps on elements: phase p takes list[list_start[p] to list_start[p + 1]) */
    int *between,
        *between_start; /* the same for steps on rows, which come before phase p or after the last */
    int *work;          /* what the list's steps before a place cost, in simple operations */
    int *last;          /* by place in the list: where the chain ends that the step is part of, or itself */
    int *keep;          /* by value: which row buffer has it from its first phase on, or -1 */
    int64_t *column;    /* by value without rows: where it lies among the columns' floats */
    /* offsets in the scratch, in bytes */
    int64_t access, source, columns, partials, per_thread, thread_bytes, scratch;
    int64_t partial_count; /* floats */
} epi_rows;

/* A chain that only moves on from row to row, with what is fetched meanwhile. */
typedef struct epi_ready {
    epi_chain chain;
    epi_fetch fetch;
    epi_scale scale;
    int phase;
    const epi_instr *end; /* its last step */
} epi_ready;

epi_status epi_rows_build(epi_arena *arena, const epi_spec *spec, const epi_plan *plan,
                          const epi_strips *strips, const epi_root *roots, int root_count, epi_rows *out,
                          epi_error *err);
/* Runs; `homes` is by node, `tensors` by tensor, `scratch` has out->scratch bytes. */
void epi_rows_run(const epi_rows *k, const epi_ref *homes, const epi_ref *tensors, unsigned char *scratch);

/* Workers that a thread needs room for: rows that are at work at once have one each. */
static inline int epi_rows_workers(const epi_rows *k) {
    return k->lags ? 2 : 1;
}

/* All the columns of a row at a scale. */
static inline int64_t epi_rows_width(const epi_rows *k, epi_scale scale) {
    return scale == EPI_SCALE_NONE ? 1 : scale == EPI_SCALE_COARSE ? k->tile.n / 2 : k->tile.n;
}

/* What a thread has of its own, in floats: slots, row buffers, short vectors. */
static inline int64_t epi_rows_slot(const epi_rows *k) {
    return epi_round_up(k->block * k->chunk, 16);
}
static inline int64_t epi_rows_keep(const epi_rows *k) {
    return epi_round_up(k->block * k->tile.n, 16);
}
static inline int64_t epi_rows_short(const epi_rows *k) {
    return epi_round_up(k->block, 16);
}

#endif
