/* strip_recur.h: steps of a scan of products: each step adds one more product to the state, and sums over
 * the state.
 *
 * A tile of the state stays in registers for all steps: RECUR_ROWS rows, or one of the rest, by
 * RECUR_VECTORS vectors, or one. Tiles go along the rows, then down. So the steps of an element run one
 * after the other. A sum down the rows adds four rows at a time, from above. Along a row, each of
 * RECUR_LANES partial sums adds every RECUR_LANES-th element, from the left. None of this depends on how
 * many steps run at a time.
 *
 * States of another scan are computed first, a tile of them for each step, and are kept as long as that tile
 * needs them. */
#ifndef EPI_CPU_STRIP_RECUR_H
#define EPI_CPU_STRIP_RECUR_H

#include "cpu/rows/strip_loop.h"
#include "cpu/rows/strip_wide.h"

enum { RECUR_ROWS = EPI_RECUR_ROWS, RECUR_LANES = 16, RECUR_PARTS = RECUR_LANES / WIDE };
#if defined(__AVX512F__) || defined(__aarch64__)
enum { RECUR_VECTORS = 4 };
#else
enum { RECUR_VECTORS = 2 };
#endif

/* Where a tile is: from row i and column j on. */
typedef struct recur_place {
    int i, j;
    wide_bits valid; /* of a tile of one vector: its columns before n */
} recur_place;

/* What the tiles of some rows share: partial sums along these, of a step after the other. */
typedef struct recur_lanes {
    float along[EPI_RECUR_STEPS * RECUR_ROWS][RECUR_LANES],
        product[EPI_RECUR_STEPS * RECUR_ROWS][RECUR_LANES];
} recur_lanes;

typedef float recur_kept[EPI_RECUR_STEPS][RECUR_ROWS][RECUR_VECTORS * WIDE];

static ALWAYS_INLINE void recur_load(const float *state, ptrdiff_t ld, int rows, int vectors,
                                     wide s[RECUR_ROWS][RECUR_VECTORS]) {
    UNROLLED
    for (int e = 0; e < rows; e++)
        UNROLLED
    for (int c = 0; c < vectors; c++)
        s[e][c] = wide_get(state + e * ld + c * WIDE);
}

/* Columns behind n are 0. */
static ALWAYS_INLINE void recur_mask(const recur_place *at, int rows, int vectors,
                                     wide s[RECUR_ROWS][RECUR_VECTORS]) {
    if (vectors == 1)
        UNROLLED
    for (int e = 0; e < rows; e++)
        s[e][0] = (wide)((wide_bits)s[e][0] & at->valid);
}

/* The state before these steps. */
static ALWAYS_INLINE void recur_begin(const epi_recur *r, const recur_place *at, int rows, int vectors,
                                      wide s[RECUR_ROWS][RECUR_VECTORS]) {
    UNROLLED
    for (int i = 0; i < rows * vectors; i++)
        s[i / vectors][i % vectors] = (wide){0};
    if (r->before)
        recur_load(r->before + at->i * r->ld + at->j, r->ld, rows, vectors, s);
    recur_mask(at, rows, vectors, s);
}

static ALWAYS_INLINE void recur_store(float *state, ptrdiff_t ld, int rows, int vectors,
                                      wide s[RECUR_ROWS][RECUR_VECTORS]) {
    UNROLLED
    for (int e = 0; e < rows; e++)
        UNROLLED
    for (int c = 0; c < vectors; c++)
        wide_put(state + e * ld + c * WIDE, s[e][c]);
}

/* s = d*s + k*v; where there was no state, k*v: the decay may be anything then. */
static ALWAYS_INLINE void recur_step(const epi_recur *r, int step, const recur_place *at, int rows,
                                     int vectors, wide s[RECUR_ROWS][RECUR_VECTORS]) {
    const float *k = r->k + step * r->step + at->i, *v = r->v + step * r->step + at->j,
                *d = r->decay + step * r->step;
    wide x[RECUR_VECTORS];
    UNROLLED
    for (int c = 0; c < vectors; c++)
        x[c] = wide_get(v + c * WIDE);
    if (step == 0 && !r->before) {
        UNROLLED
        for (int e = 0; e < rows; e++)
            UNROLLED
        for (int c = 0; c < vectors; c++)
            s[e][c] = wide_of(k[e]) * x[c];
    } else if (r->decay_of == EPI_DECAY_COLUMN) {
        UNROLLED
        for (int e = 0; e < rows; e++)
            UNROLLED
        for (int c = 0; c < vectors; c++)
            s[e][c] = wide_fma(wide_of(k[e]), x[c], wide_get(d + at->j + c * WIDE) * s[e][c]);
    } else {
        const bool by_row = r->decay_of == EPI_DECAY_ROW;
        d += by_row ? at->i : 0;
        UNROLLED
        for (int e = 0; e < rows; e++)
            UNROLLED
        for (int c = 0; c < vectors; c++)
            s[e][c] = wide_fma(wide_of(k[e]), x[c], wide_of(by_row ? d[e] : d[0]) * s[e][c]);
    }
    recur_mask(at, rows, vectors, s);
}

/* What a tile adds to the sums down the rows. */
static ALWAYS_INLINE void recur_down(const float *w, float *y, int rows, int vectors,
                                     wide s[RECUR_ROWS][RECUR_VECTORS]) {
    UNROLLED
    for (int c = 0; c < vectors; c++) {
        wide sum = rows == 1 ? wide_of(w[0]) * s[0][c]
                             : wide_fma(wide_of(w[0]), s[0][c], wide_of(w[1]) * s[1][c]) +
                                   wide_fma(wide_of(w[2]), s[2][c], wide_of(w[3]) * s[3][c]);
        wide_put(y + c * WIDE, wide_get(y + c * WIDE) + sum);
    }
}

/* Products with another state's tile, summed down the rows. */
static ALWAYS_INLINE wide recur_column(int c, int rows, wide s[RECUR_ROWS][RECUR_VECTORS],
                                       wide o[RECUR_ROWS][RECUR_VECTORS]) {
    wide sum = s[0][c] * o[0][c];
    UNROLLED
    for (int e = 1; e < rows; e++)
        sum = wide_fma(s[e][c], o[e][c], sum);
    return sum;
}

static ALWAYS_INLINE float *recur_part(float *lanes, int j, int c) {
    return lanes + (j / WIDE + c) % RECUR_PARTS * WIDE;
}

/* What vectors from column j on add to a row's lanes. */
static ALWAYS_INLINE void recur_along(float *lanes, int j, int vectors, const wide *s, const wide *u) {
    UNROLLED
    for (int c = 0; c < vectors; c++) {
        float *lane = recur_part(lanes, j, c);
        wide_put(lane, wide_fma(u[c], s[c], wide_get(lane)));
    }
}

/* Neighbours are added up until one is left of each row's lanes. */
static ALWAYS_INLINE void recur_fold(float lanes[][RECUR_LANES], int rows, float *to) {
    for (int i = 0; i < rows; i += WIDE) {
        wide x[RECUR_LANES];
        UNROLLED
        for (int e = 0; e < RECUR_LANES; e++)
            x[e] = wide_get(&lanes[i][0] + e * WIDE);
        UNROLLED
        for (int left = RECUR_LANES / 2; left > 0; left /= 2)
            UNROLLED
        for (int e = 0; e < left; e++)
            x[e] = wide_even(x[2 * e], x[2 * e + 1]) + wide_odd(x[2 * e], x[2 * e + 1]);
        wide_put(to + i, x[0]);
    }
}

/* The states of the other scan, before each of its steps. */
static ALWAYS_INLINE void recur_keep(const epi_recur *r, const recur_place *at, int rows, int vectors,
                                     recur_kept kept) {
    wide s[RECUR_ROWS][RECUR_VECTORS];
    recur_begin(r, at, rows, vectors, s);
    for (int step = 0; step < r->steps; step++) {
        recur_store(&kept[step][0][0], RECUR_VECTORS * WIDE, rows, vectors, s);
        recur_step(r, step, at, rows, vectors, s);
    }
}

static ALWAYS_INLINE void recur_product(const epi_recur *r, int step, const recur_place *at, int rows,
                                        int vectors, wide s[RECUR_ROWS][RECUR_VECTORS], recur_kept kept,
                                        recur_lanes *lanes) {
    wide o[RECUR_ROWS][RECUR_VECTORS];
    recur_load(&kept[r->steps - 1 - step][0][0], RECUR_VECTORS * WIDE, rows, vectors, o);
    if (r->over_rows)
        UNROLLED
    for (int c = 0; c < vectors; c++) {
        float *to = r->over_cols ? recur_part(lanes->product[step], at->j, c)
                                 : r->product + step * r->step + at->j + c * WIDE;
        wide_put(to, wide_get(to) + recur_column(c, rows, s, o));
    }
    else UNROLLED for (int e = 0; e < rows; e++)
        recur_along(lanes->product[step * rows + e], at->j, vectors, s[e], o[e]);
}

static ALWAYS_INLINE void recur_tile(const epi_recur *r, recur_place at, int rows, int vectors,
                                     recur_lanes *lanes) {
    wide s[RECUR_ROWS][RECUR_VECTORS];
    recur_kept kept;
    if (r->other) {
        recur_keep(r->other, &at, rows, vectors, kept);
        if (r->begins)
            memset(kept[0], 0, sizeof kept[0]);
    }
    recur_begin(r, &at, rows, vectors, s);
    for (int step = 0; step < r->steps; step++) {
        recur_step(r, step, &at, rows, vectors, s);
        if (step == 0 && r->added) {
            UNROLLED
            for (int i = 0; i < rows * vectors; i++)
                s[i / vectors][i % vectors] +=
                    wide_get(r->added + (at.i + i / vectors) * r->ld + at.j + i % vectors * WIDE);
            recur_mask(&at, rows, vectors, s);
        }
        if (r->by_row)
            recur_down(r->by_row + step * r->step + at.i, r->down + step * r->step + at.j, rows, vectors, s);
        if (r->by_column) {
            wide u[RECUR_ROWS][RECUR_VECTORS];
            recur_load(r->by_column + step * r->step + at.j, 0, 1, vectors, u);
            recur_mask(&at, 1, vectors, u);
            UNROLLED
            for (int e = 0; e < rows; e++)
                recur_along(lanes->along[step * rows + e], at.j, vectors, s[e], u[0]);
        }
        if (r->other)
            recur_product(r, step, &at, rows, vectors, s, kept, lanes);
    }
    if (r->after)
        recur_store(r->after + at.i * r->ld + at.j, r->ld, rows, vectors, s);
}

/* Sums along the rows from their lanes: `count` for each step, to its place among them. */
static ALWAYS_INLINE void recur_leave(const epi_recur *r, float lanes[][RECUR_LANES], int count, float *to) {
    float sum[EPI_RECUR_STEPS * RECUR_ROWS];
    recur_fold(lanes, r->steps * count, sum);
    for (int step = 0; step < r->steps; step++)
        for (int e = 0; e < count; e++)
            to[step * r->step + e] = sum[step * count + e];
}

/* All tiles of some rows. */
static ALWAYS_INLINE void recur_band(const epi_recur *r, int i, int rows) {
    enum { ALL = RECUR_VECTORS * WIDE };
    recur_lanes lanes;
    recur_place at = {.i = i};
    bool products = r->other && r->over_cols;
    for (int e = 0; e < r->steps * rows; e++) {
        fill(lanes.along[e], 0, RECUR_LANES);
        fill(lanes.product[e], 0, RECUR_LANES);
    }
    for (; at.j + ALL <= r->n; at.j += ALL)
        recur_tile(r, at, rows, RECUR_VECTORS, &lanes);
    for (; at.j < r->n; at.j += WIDE) {
        for (int c = 0; c < WIDE; c++)
            at.valid[c] = at.j + c < r->n ? UINT32_MAX : 0;
        recur_tile(r, at, rows, 1, &lanes);
    }
    if (r->by_column)
        recur_leave(r, lanes.along, rows, r->along + i);
    if (products)
        recur_leave(r, lanes.product, r->over_rows ? 1 : rows,
                    r->product + (r->over_rows ? i / RECUR_ROWS + i % RECUR_ROWS : i));
}

static void recur(const epi_recur *steps) {
    epi_recur here = *steps, there; /* copies: nothing that is stored can change them */
    const epi_recur *r = &here;
    int i = 0;
    if (here.other) {
        there = *here.other;
        here.other = &there;
    }
    for (int step = 0; step < r->steps; step++) {
        if (r->by_row)
            fill(r->down + step * r->step, 0, r->n);
        if (r->other && !r->over_cols)
            fill(r->product + step * r->step, 0, r->n);
    }
    for (; i + RECUR_ROWS <= r->rows; i += RECUR_ROWS)
        recur_band(r, i, RECUR_ROWS);
    for (; i < r->rows; i++)
        recur_band(r, i, 1);
}

#endif
