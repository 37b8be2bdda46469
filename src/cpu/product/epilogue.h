/* epilogue.h: what happens to a tile of the product while it is in cache: tapes and strips.
 *
 * Values come in four shapes: one number, one per row, one per column, one per element. The first
 * three are computed once per tile; the last in bands of a few rows, so that a band's values stay
 * in the first-level cache from one item to the next. */
#ifndef EPI_CPU_EPILOGUE_H
#define EPI_CPU_EPILOGUE_H

#include "cpu/rows/tape.h"

enum {
    EPI_TILE_M = 96,
    EPI_TILE_N = 256,
    EPI_TILE_PAIR = EPI_TILE_N / 2, /* where the second product's columns begin, of two that share a tile */
    EPI_TILE_BAND = 4               /* rows that are worked on at a time */
};

typedef struct epi_epilogue {
    epi_tile_program tile;
    epi_tapes tapes;
    const epi_strips *strips;
    epi_states *states; /* by instruction: where its partials lie */
    int *slot;          /* by value: among the slots of elements, or among the short vectors; or -1 */
    int *store;         /* by value: epi_first_stores */
    bool own;           /* attention: partials are those of the tile in hand alone, */
    int *kept;          /* and by value: in which of the kept tiles it is, or -1 */
    int slot_count, short_count;
    int64_t full_slot, short_slot; /* floats: a value's of a band, a short vector's */
    int64_t row_tiles, col_tiles;
    int64_t batches;      /* of rows; each has the same number of tiles */
    int64_t panel;        /* a tile begins at a multiple of so many rows */
    int64_t partials;     /* floats */
    int64_t shared_bytes; /* of the table shared by all threads */
    /* Of what each thread has of its own, in bytes: where its arrays begin, and all. */
    int64_t at, links, slots, shorts, state, private_bytes;
} epi_epilogue;

/* Rows are cut into tiles of up to EPI_TILE_M, all within a panel of the same height; into an even number of
 * them where they are to be shared out (`even`). A tile has `most` columns at most. Fails with
 * EPI_ERR_UNSUPPORTED where a group is longer than a tile. */
epi_status epi_epilogue_build(epi_arena *arena, const epi_spec *spec, const epi_plan *plan,
                              const epi_strips *strips, int panel, bool even, int most, const epi_root *roots,
                              int root_count, epi_epilogue *out, epi_error *err);

/* The first row of a tile, and behind the last one all rows. */
static inline int64_t epi_tile_row(const epi_epilogue *e, int64_t tile) {
    if (!e->row_tiles)
        return 0;
    int64_t rows = e->tile.m / e->batches, tiles = e->row_tiles / e->batches, batch = tile / tiles;
    int64_t panels = epi_ceil_div(rows, e->panel);
    return batch * rows + epi_min64(rows, tile % tiles * panels / tiles * e->panel);
}

/* A run in progress. `homes` is by node, `tensors` by tensor. */
typedef struct epi_tile_run {
    const epi_epilogue *e;
    epi_tile_access *access; /* by instruction */
    float *partials;
    const int64_t *starts;   /* where tiles of rows begin, if not where epi_tile_row says; or NULL */
    const int64_t *groups;   /* by tile of rows: the group that it has rows of, or NULL */
    int64_t column, columns; /* attention: where the tile begins and how many columns it has, else 0; */
    int low, high;           /* and the rows of it that are worked on, from one to behind the last, else 0 */
    float *kept[3];          /* attention: tiles for values that are kept, rows EPI_TILE_N apart */
} epi_tile_run;

static inline int64_t epi_run_row(const epi_tile_run *r, int64_t tile) {
    return r->starts ? r->starts[tile] : epi_tile_row(r->e, tile);
}

void epi_epilogue_begin(epi_tile_run *r, const epi_epilogue *e, const epi_ref *homes, const epi_ref *tensors,
                        void *shared, float *partials);
/* A stretch of memory: rows of neighbouring bytes. */
typedef struct epi_region {
    const unsigned char *data;
    int64_t row_bytes, stride, rows;
    bool write;
} epi_region;

/* What a tile, by its places along rows and columns, will read and write, for whoever can prefetch it; at
 * most `most`. */
int epi_epilogue_regions(const epi_tile_run *r, const int64_t tile[2], epi_region *out, int most);

/* The tile, in acc with rows EPI_TILE_N apart. */
void epi_epilogue_tile(const epi_tile_run *r, float *acc, const int64_t tile[2], void *private_memory);
/* Where a kept value is after that: its tile, or the product's own. */
const float *epi_epilogue_kept(const epi_tile_run *r, const float *acc, int value);
/* Folds the partials, in a fixed order, into the homes of the cross-tile reductions. */
void epi_epilogue_end(const epi_tile_run *r, const epi_ref *homes, int threads);

#endif
