/* strip_recur.h: a step of a scan of products: the state takes in one more product, and is summed up.
 *
 * Rows of the state come by fours, so that a sum down the rows is in memory once for four of them; along a row
 * each of LANES partial sums takes every LANES-th element. Neither order depends on anything but rows and n. */
#ifndef EPI_CPU_STRIP_RECUR_H
#define EPI_CPU_STRIP_RECUR_H

#include "cpu/strip_loop.h"
#include "cpu/strip_wide.h"

enum { RECUR_ROWS = 4, RECUR_LANES = 16 };

/* s = d*s + k*v; where the state is fresh, k*v: the decay may be anything then. */
static ALWAYS_INLINE void recur_row(const epi_recur *r, int i, const float *d, int d_step) {
    float *s = r->state + i * r->ld;
    const float k = r->k[i], *v = r->v;
    if (r->fresh) {
        VECTOR_LOOP
        for (int j = 0; j < r->n; j++)
            s[j] = k * v[j];
    } else if (d_step) {
        VECTOR_LOOP
        for (int j = 0; j < r->n; j++)
            s[j] = fmadd(k, v[j], d[j] * s[j]);
    } else {
        const float decay = *d;
        VECTOR_LOOP
        for (int j = 0; j < r->n; j++)
            s[j] = fmadd(k, v[j], decay * s[j]);
    }
}

/* Four rows, and what they add to the sums down the rows. */
static ALWAYS_INLINE void recur_four(const epi_recur *r, int i, const float *d, int d_row, int d_step) {
    float *s0 = r->state + i * r->ld, *s1 = s0 + r->ld, *s2 = s1 + r->ld, *s3 = s2 + r->ld, *y = r->down;
    const float *k = r->k + i, *v = r->v, *w = r->by_row + i;
    const float d0 = d[0], d1 = d[d_row], d2 = d[2 * d_row], d3 = d[3 * d_row];
    VECTOR_LOOP
    for (int j = 0; j < r->n; j++) {
        const float x = v[j], dj = d_step ? d[j] : 0;
        const float a0 = fmadd(k[0], x, (d_step ? dj : d0) * s0[j]);
        const float a1 = fmadd(k[1], x, (d_step ? dj : d1) * s1[j]);
        const float a2 = fmadd(k[2], x, (d_step ? dj : d2) * s2[j]);
        const float a3 = fmadd(k[3], x, (d_step ? dj : d3) * s3[j]);
        s0[j] = a0;
        s1[j] = a1;
        s2[j] = a2;
        s3[j] = a3;
        y[j] += fmadd(w[0], a0, w[1] * a1) + fmadd(w[2], a2, w[3] * a3);
    }
}

/* What rows that are there add to the sums: four, or one. */
static ALWAYS_INLINE void recur_down(const epi_recur *r, int i, int count) {
    const float *s0 = r->state + i * r->ld, *w = r->by_row + i;
    const float *s1 = s0 + r->ld, *s2 = s1 + r->ld, *s3 = s2 + r->ld;
    VECTOR_LOOP
    for (int j = 0; j < r->n; j++)
        r->down[j] +=
            count == 1 ? w[0] * s0[j] : fmadd(w[0], s0[j], w[1] * s1[j]) + fmadd(w[2], s2[j], w[3] * s3[j]);
}

typedef float eight_lanes
    __attribute__((vector_size(RECUR_LANES / 2 * sizeof(float)), aligned(4), may_alias));
typedef float four_lanes __attribute__((vector_size(RECUR_LANES / 4 * sizeof(float)), aligned(4), may_alias));

/* The upper half of the lanes is added to the lower one until one is left. */
static ALWAYS_INLINE float recur_fold(float *lane) {
    *(eight_lanes *)lane += *(const eight_lanes *)(lane + 8);
    four_lanes x = *(const four_lanes *)lane + *(const four_lanes *)(lane + 4);
    return (x[0] + x[2]) + (x[1] + x[3]);
}

/* Sums of products along some rows. */
static ALWAYS_INLINE void recur_along(const float *s, ptrdiff_t ld, const float *u, ptrdiff_t u_ld, int rows,
                                      int n, float *to) {
    enum { PARTS = RECUR_LANES / WIDE };
    wide sum[RECUR_ROWS][PARTS];
    float lane[RECUR_ROWS][RECUR_LANES];
    int j = 0;
    UNROLLED
    for (int i = 0; i < rows * PARTS; i++)
        sum[i / PARTS][i % PARTS] = (wide){0};
    for (; j + RECUR_LANES <= n; j += RECUR_LANES)
        UNROLLED
    for (int i = 0; i < rows; i++)
        UNROLLED
    for (int e = 0; e < PARTS; e++)
        sum[i][e] =
            wide_fma(wide_get(u + i * u_ld + j + e * WIDE), wide_get(s + i * ld + j + e * WIDE), sum[i][e]);
    UNROLLED
    for (int i = 0; i < rows * PARTS; i++)
        wide_put(&lane[i / PARTS][i % PARTS * WIDE], sum[i / PARTS][i % PARTS]);
    for (int i = 0; i < rows; i++) {
        for (int e = 0; j + e < n; e++)
            lane[i][e] = fmadd(u[i * u_ld + j + e], s[i * ld + j + e], lane[i][e]);
        to[i] = recur_fold(lane[i]);
    }
}

static void recur_rows(const float *s, ptrdiff_t ld, const float *u, ptrdiff_t u_ld, int rows, int n,
                       float *to) {
    int i = 0;
    for (; i + RECUR_ROWS <= rows; i += RECUR_ROWS)
        recur_along(s + i * ld, ld, u + i * u_ld, u_ld, RECUR_ROWS, n, to + i);
    for (; i < rows; i++)
        recur_along(s + i * ld, ld, u + i * u_ld, u_ld, 1, n, to + i);
}

static ALWAYS_INLINE void recur_with(const epi_recur *r, int d_row, int d_step) {
    int i = 0;
    if (r->by_row)
        fill(r->down, 0, r->n);
    for (; i + RECUR_ROWS <= r->rows; i += RECUR_ROWS) {
        if (r->by_row && !r->fresh && !r->still) {
            recur_four(r, i, r->decay + i * d_row, d_row, d_step);
            continue;
        }
        for (int e = 0; e < RECUR_ROWS && !r->still; e++)
            recur_row(r, i + e, r->decay + (i + e) * d_row, d_step);
        if (r->by_row)
            recur_down(r, i, RECUR_ROWS);
    }
    for (; i < r->rows; i++) {
        if (!r->still)
            recur_row(r, i, r->decay + i * d_row, d_step);
        if (r->by_row)
            recur_down(r, i, 1);
    }
    if (r->by_column)
        recur_rows(r->state, r->ld, r->by_column, 0, r->rows, r->n, r->along);
}

static void recur(const epi_recur *r) {
    if (r->decay_of == EPI_DECAY_ROW)
        recur_with(r, 1, 0);
    else if (r->decay_of == EPI_DECAY_COLUMN)
        recur_with(r, 0, 1);
    else
        recur_with(r, 0, 0);
}

static void recur_product(const float *a, const float *b, ptrdiff_t ld, int rows, int n, float *down,
                          float *along) {
    if (along)
        recur_rows(b, ld, a, ld, rows, n, along);
    if (!down)
        return;
    fill(down, 0, n);
    for (int i = 0; i < rows; i += RECUR_ROWS) {
        int left = rows - i < RECUR_ROWS ? rows - i : RECUR_ROWS;
        const float *x = a + i * ld, *y = b + i * ld;
        VECTOR_LOOP
        for (int j = 0; j < n; j++) {
            float sum = x[j] * y[j];
            for (int e = 1; e < left; e++)
                sum = fmadd(x[e * ld + j], y[e * ld + j], sum);
            down[j] += sum;
        }
    }
}

#endif
