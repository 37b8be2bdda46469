/* gemm_internal.h: a run of the gemm mainloop, and where its tiles are, in memory and packed. */
#ifndef EPI_CPU_GEMM_INTERNAL_H
#define EPI_CPU_GEMM_INTERNAL_H

#include <stdatomic.h>

#include "cpu/product/gemm.h"
#include "cpu/product/groups.h"

enum {
    PACK_LIMIT = 64 << 20, /* bytes of one packed operand at a time */
    TILE_BYTES = EPI_TILE_M * EPI_TILE_N * sizeof(float),
    FEW_DEPTH = 32,                     /* of few rows, at a time: a multiple of every micro-kernel's */
    GROUP = EPI_TILE_M / EPI_MICRO_FEW, /* tiles of few rows that one accumulator has room for */
    LINE = 64,                          /* bytes of a cache line */
};

/* How the micro-kernel gets B of few rows. */
typedef enum few_variant { STAGED, DIRECT, ACROSS } few_variant;

/* Tiles that a thread takes one after the other; the others take from them once they have none left. */
typedef struct range {
    _Alignas(64) _Atomic int64_t next;
    int64_t end;
    int64_t packed; /* the tile of A, or of B, that the thread has packed for itself, or -1 */
} range;

/* The scale, the zero point or the offset of an operand of few bits. */
typedef struct lowbit_part {
    epi_ref ref; /* without data: there is none */
    epi_walk rows, depth;
    epi_columns cols;
} lowbit_part;
enum { PART_SCALE, PART_ZERO, PART_OFFSET, PARTS };

typedef struct gemm_run {
    const epi_gemm *g;
    epi_tile_run tiles;
    epi_ref ref[EPI_MAX_OPERANDS];
    epi_walk rows[EPI_MAX_OPERANDS];    /* of operands with rows along M */
    epi_columns cols[EPI_MAX_OPERANDS]; /* of operands with columns along N */
    epi_walk depth[EPI_MAX_OPERANDS];
    int64_t apart[EPI_MAX_OPERANDS]; /* elements from a group's matrix to the next; 0: all have the same */
    epi_groups groups;
    const int64_t *index;                 /* by position, and -1 where it names nothing, or NULL */
    bool gaps;                            /* there are such */
    int64_t *koff[EPI_MAX_OPERANDS];      /* element offsets along K where it is no single run, else NULL */
    lowbit_part *parts[EPI_MAX_OPERANDS]; /* PARTS of an operand of few bits, or NULL */
    epi_micro_bits
        bits[EPI_MAX_OPERANDS]; /* how the micro-kernel takes it as it lies; without a group: it cannot */
    few_variant variant;        /* of few rows */
    int64_t group;              /* tiles of columns that a thread takes at a time: 1 unless ACROSS */
    unsigned char *scratch;
    range *ranges;
    int64_t row0, col0;           /* the first tiles that are packed */
    int64_t row_tiles, col_tiles; /* how many are packed */
} gemm_run;

/* The most rows of a tile. */
static inline int64_t tile_size(const epi_gemm *g, int side) {
    return side == EPI_SIDE_A ? EPI_TILE_M : g->epilogue.tile.tile_n;
}

/* A tile of B is known by its number among those of all groups. */
static inline int64_t column_tile(const gemm_run *r, int64_t tile) {
    return tile % epi_max64(1, r->g->epilogue.col_tiles);
}

static inline int64_t first_row(const gemm_run *r, int side, int64_t tile) {
    return side == EPI_SIDE_A ? epi_run_row(&r->tiles, tile)
                              : column_tile(r, tile) * r->g->epilogue.tile.tile_n;
}

static inline int64_t tile_rows(const gemm_run *r, int side, int64_t tile) {
    int64_t first = first_row(r, side, tile);
    return side == EPI_SIDE_A ? epi_run_row(&r->tiles, tile + 1) - first
                              : epi_min64(r->g->n - first, r->g->epilogue.tile.tile_n);
}

static inline bool has_row_groups(const epi_gemm *g) {
    return g->plan.group == EPI_GROUP_ROWS;
}

/* Does the index, if it has one, name positions of the depth? */
static inline bool takes_depth(const epi_gemm *g) {
    return g->plan.group == EPI_GROUP_DEPTH;
}

/* Is the tile one of few rows, and is it packed for the micro-kernel that reads B as it lies? */
static inline bool is_few(const gemm_run *r, int64_t tile) {
    return r->g->few || (has_row_groups(r->g) && tile_rows(r, EPI_SIDE_A, tile) <= EPI_MICRO_FEW);
}

static inline bool is_direct(const gemm_run *r, int64_t tile) {
    return r->variant != STAGED && is_few(r, tile);
}

/* Where an operand is that a tile of B is taken of. */
static inline const unsigned char *matrix_of(const gemm_run *r, int from, int64_t tile) {
    int64_t group = tile / epi_max64(1, r->g->epilogue.col_tiles);
    return r->ref[from].data + group * r->apart[from] * (int64_t)epi_dtype_size(r->ref[from].type);
}

static inline int64_t panel_size(const epi_gemm *g, int side) {
    return side == EPI_SIDE_A ? g->micro->mr : g->micro->nr;
}

/* Bytes of one packed row of an operand, of all terms, and of one packed tile. */
static inline int64_t packed_row(const epi_gemm *g) {
    int64_t depth = 0;
    for (int t = 0; t < g->terms; t++)
        depth += g->packed_k[t];
    return depth * (int64_t)epi_dtype_size(g->micro->type);
}

static inline int64_t packed_tile(const epi_gemm *g, int side) {
    return epi_round_up(tile_size(g, side), panel_size(g, side)) * (side == EPI_SIDE_B ? g->products : 1) *
           packed_row(g);
}

static inline int64_t sweeps(const epi_gemm *g) {
    int64_t all = 0;
    for (int t = 0; t < g->terms; t++)
        all += epi_ceil_div(g->packed_k[t], g->micro->kc);
    return all;
}

/* A sweep's term, where in that term's depth it begins, and how much packed depth is before it in all. */
typedef struct sweep_place {
    int term;
    int64_t k0, before;
} sweep_place;

static inline sweep_place place_of(const epi_gemm *g, int64_t sweep) {
    sweep_place at = {0};
    for (; at.term < g->terms - 1; at.term++) {
        int64_t own = epi_ceil_div(g->packed_k[at.term], g->micro->kc);
        if (sweep < own)
            break;
        sweep -= own;
        at.before += g->packed_k[at.term];
    }
    at.k0 = sweep * g->micro->kc;
    at.before += at.k0;
    return at;
}

/* The rows of a tile, with those that fill its last panel. */
static inline int64_t padded_rows(const gemm_run *r, int side, int64_t tile) {
    if (side == EPI_SIDE_A && is_direct(r, tile))
        return r->g->direct_rows;
    return epi_round_up(tile_rows(r, side, tile), panel_size(r->g, side));
}

/* One sweep of one packed tile. */
typedef struct packed_sweep {
    unsigned char *data;
    int64_t depth, bytes;
} packed_sweep;

static inline unsigned char *own_memory(const gemm_run *r, int thread) {
    return r->scratch + r->g->per_thread + thread * r->g->thread_bytes;
}

/* Where a tile is packed, or will be. */
static inline unsigned char *tile_at(const gemm_run *r, int side, int64_t tile, int thread) {
    const epi_gemm *g = r->g;
    if (side == EPI_SIDE_A ? g->own_a : has_row_groups(g))
        return own_memory(r, thread) + g->packed[side];
    if (has_row_groups(g))
        return r->scratch + g->packed[side] +
               (r->groups.packed[tile] - r->groups.packed[r->row0]) * packed_row(g);
    return r->scratch + g->packed[side] +
           (tile - (side == EPI_SIDE_A ? r->row0 : r->col0)) * packed_tile(g, side);
}

static inline packed_sweep sweep_at(const gemm_run *r, int side, int64_t tile, int64_t sweep, int thread) {
    const epi_gemm *g = r->g;
    int64_t rows = padded_rows(r, side, tile) * (side == EPI_SIDE_B ? g->products : 1),
            size = (int64_t)epi_dtype_size(g->micro->type);
    sweep_place at = place_of(g, sweep);
    int64_t depth = epi_min64(g->micro->kc, g->packed_k[at.term] - at.k0);
    return (packed_sweep){tile_at(r, side, tile, thread) + at.before * rows * size, depth,
                          rows * depth * size};
}

/* Which of the products that are added up an operand belongs to, and the axes of its depth. */
static inline int term_of(const epi_gemm *g, int operand) {
    return g->terms > 1 ? operand / 2 : 0;
}

static inline const epi_axes *depth_of(const epi_gemm *g, int operand) {
    int term = term_of(g, operand);
    return term ? &g->plan.added_depth[term - 1] : &g->plan.depth;
}

/* Where columns from `first` on lie, in elements; most are equally far apart. */
static inline void epi_gemm_offsets(const epi_columns *c, int64_t first, int64_t count, int64_t *to) {
    const bool even = c->walk.count == 1 && !c->two;
    const int64_t begin = even ? epi_columns_offset(c, first) : 0;
    for (int64_t j = 0; j < count; j++)
        to[j] = even ? begin + j * c->walk.stride[0] : epi_columns_offset(c, first + j);
}

/* A sweep's sums, ld apart, go to the tile. */
static inline void add_sums(float *acc, const float *sum, int64_t ld, int64_t rows, int64_t cols, bool add) {
    for (int64_t i = 0; i < rows; i++, acc += EPI_TILE_N, sum += ld)
        for (int64_t j = 0; j < cols; j++)
            acc[j] = add ? sum[j] + acc[j] : sum[j];
}

/* gemm_pack.c: packs what an operand has of a tile, from depth k0 on, `depth_most` of it or what there is; and one
 * sweep of a tile, of both products of a pair. */
void epi_gemm_pack_rows(const gemm_run *r, int side, int from, int64_t tile, int64_t k0, int64_t depth_most,
                        unsigned char *to);
void epi_gemm_pack_sweep(const gemm_run *r, int side, int64_t tile, int64_t sweep, packed_sweep to);

/* gemm_dequant.c: how many parts operands of few bits have in all; elements of 4 bits have offsets of their own, two to
 * a byte; where parts lie, and where those of a batch do. And some depth of a row, or a column, of such an operand as
 * f32. */
int64_t epi_gemm_parts(const epi_gemm *g);
void epi_gemm_count_halves(epi_ref *ref);
epi_walk epi_gemm_depth_of_halves(const epi_ref *ref, const epi_axes *depth, const int64_t *sizes);
void epi_gemm_find_parts(gemm_run *r, const epi_ref *homes);
void epi_gemm_move_parts(gemm_run *r, const epi_ref *homes, const epi_axes *batch, int64_t number);
/* What the micro-kernel wants to know of a tile's columns of few bits, from depth k on; `parts` is room for pointers. */
epi_micro_bits epi_gemm_bits(const gemm_run *r, int from, int64_t tile, int64_t k,
                             const void *parts[][EPI_TILE_N]);
void epi_gemm_dequantise(const gemm_run *r, int side, int from, int64_t row, int64_t k, int64_t n, float *to);
/* Where A has 8 bits and B few, and parts are the same for EPI_MICRO_GROUP of the depth: are products added up as integers?
 * `types` are those of the operands. A's rows as the micro-kernel takes them, and what it does with them, of columns that lie
 * as it cannot take them. */
bool epi_gemm_takes_integers(const epi_gemm *g, const epi_spec *spec, const epi_dtype *types);
void epi_gemm_pack_integers(const gemm_run *r, int64_t tile, int64_t k0, int64_t depth, unsigned char *to);
void epi_gemm_multiply_integers(const gemm_run *r, int from, const int64_t tile[2], int64_t k0, int64_t depth,
                                const void *a, float *acc, bool add);

/* gemm_few.c: what the micro-kernel can do with all of B as it lies in memory; and a tile of few rows with `count` tiles
 * of columns, each g->direct_rows rows behind the one before. */
few_variant epi_gemm_variant(const gemm_run *r);
void epi_gemm_few(const gemm_run *r, const int64_t tile[2], int64_t count, float *acc, int thread);
/* The tile of some sweeps, at acc in the thread's memory, goes to sums that keep what rounding loses; after
 * the last ones these are the tile. */
void epi_gemm_add_sweeps(const gemm_run *r, float *acc, int64_t rows, int64_t cols, int thread, bool first,
                         bool last);

#endif
