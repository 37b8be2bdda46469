/* attention_internal.h: what the files of the attention mainloop share while it runs. */
#ifndef EPI_CPU_ATTENTION_INTERNAL_H
#define EPI_CPU_ATTENTION_INTERNAL_H

#include "cpu/attention/attention.h"

typedef struct epi_attention_state {
    const epi_attention_loop *l;
    const epi_ref *homes, *tensors;
    epi_tile_run score[2], out[2];
    unsigned char *scratch;
    int64_t first_batch; /* of those that are packed */
} epi_attention_state;

/* Online, by row: the largest score, the sum of weights, and that of weights times values, whose rows are
 * EPI_TILE_N apart. One stretch of memory. */
typedef struct epi_sums {
    float *row_max, *sum, *out;
} epi_sums;

static inline epi_sums sums_at(float *at) {
    return (epi_sums){at, at + EPI_TILE_M, at + 2 * EPI_TILE_M};
}

/* A tile of rows in hand, and a thread's memory. */
typedef struct epi_row_tile {
    const epi_attention_state *r;
    int64_t place, batch, chunk, m0, origin;
    int rows, low, high; /* all, and those that the reach in hand is of, from one to behind the last */
    unsigned char *memory;
    epi_limit limits[EPI_ATTENTION_BOUNDS];
    epi_reach reaches[EPI_TILE_M];
    int reach_count;
    unsigned char reach_of[EPI_TILE_M];   /* by row */
    epi_sums sums;                        /* online: of the chunk in hand, in the end of all */
    float *shift, *grown, *factor, *part; /* online, by row */
} epi_row_tile;

static inline float *floats(const epi_row_tile *t, int64_t offset) {
    return (float *)(void *)(t->memory + offset);
}

/* A tile of columns of a reach of the stream, and which one it is, counted from where that begins. */
typedef struct epi_stream_tile {
    int64_t first, columns, number;
} epi_stream_tile;

static inline epi_stream_tile stream_tile(int64_t from, int64_t to, int64_t number) {
    int64_t first = from + number * EPI_STREAM_TILE;
    return (epi_stream_tile){first, epi_min64(EPI_STREAM_TILE, to - first), number};
}

/* ---- attention_products.c ---- */

/* Packs rows by depth, both walked over from a first element on; `base` in elements. */
typedef struct epi_packing {
    const epi_ref *ref;
    int64_t base;
    epi_columns rows; /* of an axis that is taken apart in the order that its tile has */
    epi_walk depth;
    int64_t row, row_count, k, k_count;
} epi_packing;

void epi_attention_pack(const epi_strips *strips, const epi_micro *micro, int side, const epi_packing *p,
                        void *to);

/* Panels of A by panels of B, both of which have so much depth, of which `k` from k0 on counts. */
typedef struct epi_panels {
    const void *data;
    int64_t rows, depth;
} epi_panels;

void epi_attention_multiply(const epi_micro *u, epi_panels a, epi_panels b, int64_t k0, int64_t k, float *c,
                            int64_t ld, bool add);

/* Part of a tile of weights, `columns` from one on, as the micro-kernel takes it: as it is, or rounded to
 * bf16. */
epi_ref epi_attention_weights(const epi_row_tile *t, const epi_micro *micro, const float *weight,
                              int64_t from, int64_t columns);

/* ---- attention_row_sum.c ---- */

/* Packs the operand's rows; adds a score tile; folds the sums of the batches in hand and stores them. */
void epi_row_sum_begin(const epi_row_tile *t);
void epi_row_sum_add(const epi_row_tile *t, const float *weight, epi_stream_tile tile, epi_span span);
void epi_row_sum_finish(const epi_attention_state *r, int64_t batches);

#endif
