/* strip_scan.h: recurrences, many at a time or one along a row.
 *
 * Only strips.c includes this. The state is f64: a product of two f32 is exact in it, and 2^20 steps lose
 * less than the rounding of the stored result. Every instruction set gives the same numbers. */
#ifndef EPI_CPU_STRIP_SCAN_H
#define EPI_CPU_STRIP_SCAN_H

#include "cpu/rows/strip_loop.h"

static ALWAYS_INLINE void scan_columns(double *state, float *dst, const float *a, int a_col, const float *b,
                                       int b_col, int n) {
    VECTOR_LOOP
    for (int j = 0; j < n; j++) {
        state[j] = (double)a[j * a_col] * state[j] + (double)b[j * b_col];
        dst[j] = (float)state[j];
    }
}

static ALWAYS_INLINE void begin_columns(double *state, float *dst, const float *b, int b_col, int n) {
    VECTOR_LOOP
    for (int j = 0; j < n; j++) {
        dst[j] = b[j * b_col];
        state[j] = (double)b[j * b_col];
    }
}

/* A number for all columns is read before the first element is written: it may lie in the destination. */
static void scan_step(double *state, float *dst, const epi_view *v, bool first, int n) {
    const float a = n > 0 && !first ? *v[0].p : 0.0f, b = n > 0 ? *v[1].p : 0.0f;
    if (first)
        v[1].col ? begin_columns(state, dst, v[1].p, 1, n) : begin_columns(state, dst, &b, 0, n);
    else if (v[0].col)
        v[1].col ? scan_columns(state, dst, v[0].p, 1, v[1].p, 1, n)
                 : scan_columns(state, dst, v[0].p, 1, &b, 0, n);
    else
        v[1].col ? scan_columns(state, dst, &a, 0, v[1].p, 1, n) : scan_columns(state, dst, &a, 0, &b, 0, n);
}

/* A running sum along a row, back from its last element: each waits for the one before. */
static void sum_back(double *state, float *dst, const float *b, int col, int n) {
    double h = *state;
    for (int j = n - 1; j >= 0; j--) {
        h += (double)b[j * col];
        dst[j] = (float)h;
    }
    *state = h;
}

/* The same from the first on, QUAD elements by themselves before they are added to those before: one sum waits where four
 * would. Quads begin where the row does, and what there is of the last one is summed as if all of it were there: no
 * element depends on how many come behind it. */
enum { QUAD = 4 };

static ALWAYS_INLINE void sum_row(double *state, float *dst, const float *b, int col, int n) {
    double h = *state;
    int j = 0;
    for (; j + QUAD <= n; j += QUAD, b += QUAD * col) {
        double p = (double)b[0], q = p + (double)b[col], r = (double)b[2 * col], s = r + (double)b[3 * col];
        dst[j] = (float)(h + p);
        dst[j + 1] = (float)(h + q);
        dst[j + 2] = (float)(h + (q + r));
        h += q + s;
        dst[j + 3] = (float)h;
    }
    double p = 0;
    for (int k = 0; j + k < n; k++) {
        p = k ? p + (double)b[k * col] : (double)b[0];
        dst[j + k] = (float)(h + p);
    }
    *state = j < n ? h + p : h;
}

enum { QUADS = 2 * QUAD, SUMMED = 4 }; /* elements, and rows, of which sums are made side by side */

typedef double eight __attribute__((vector_size(QUADS * sizeof(double))));
typedef float eight_floats __attribute__((vector_size(QUADS * sizeof(float)), aligned(4), may_alias));
#if defined(__clang__)
#define EIGHT_OF(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int64_t eight_places __attribute__((vector_size(QUADS * sizeof(int64_t))));
#define EIGHT_OF(a, b, ...) __builtin_shuffle(a, b, (eight_places){__VA_ARGS__})
#endif

/* Two quads of each row: h has its sum so far in all places. What is added to -0 stays what it is. */
static ALWAYS_INLINE void sum_quads(eight *h, float *dst, ptrdiff_t ld, const float *b, ptrdiff_t b_ld) {
    const eight none = -(eight){0};
    UNROLLED
    for (int i = 0; i < SUMMED; i++) {
        eight x = __builtin_convertvector(*(const eight_floats *)(b + i * b_ld), eight);
        x += EIGHT_OF(x, none, 8, 0, 8, 2, 8, 4, 8, 6);
        x += EIGHT_OF(x, none, 8, 8, 1, 1, 8, 8, 5, 5);
        eight y = (h[i] + EIGHT_OF(x, none, 8, 8, 8, 8, 3, 3, 3, 3)) + x;
        *(eight_floats *)(dst + i * ld) = __builtin_convertvector(y, eight_floats);
        h[i] = EIGHT_OF(y, y, 7, 7, 7, 7, 7, 7, 7, 7);
    }
}

/* The same numbers as sum_row's, of SUMMED rows. */
static void sum_abreast(double *state, float *dst, ptrdiff_t ld, const float *b, ptrdiff_t b_ld, int n) {
    eight h[SUMMED];
    int j = 0;
    UNROLLED
    for (int i = 0; i < SUMMED; i++)
        h[i] = state[i] - (eight){0};
    for (; j + QUADS <= n; j += QUADS)
        sum_quads(h, dst + j, ld, b + j, b_ld);
    UNROLLED
    for (int i = 0; i < SUMMED; i++) {
        state[i] = h[i][0];
        sum_row(&state[i], dst + i * ld + j, b + i * b_ld + j, 1, n - j);
    }
}

/* So many rows are walked along side by side, where a step is a product and a sum: one need not wait for another. */
enum { ABREAST = 4 };

static ALWAYS_INLINE void scan_abreast(double *state, float *dst, ptrdiff_t ld, const epi_view *v, int step,
                                       int rows, int n) {
    double h[ABREAST];
    for (int i = 0; i < rows; i++)
        h[i] = state[i];
    for (int k = 0, j = 0; k < n; k++, j += step)
        for (int i = 0; i < rows; i++) {
            h[i] = (double)v[0].p[i * v[0].row + j * v[0].col] * h[i] +
                   (double)v[1].p[i * v[1].row + j * v[1].col];
            dst[i * ld + j] = (float)h[i];
        }
    for (int i = 0; i < rows; i++)
        state[i] = h[i];
}

/* The first step is what is added alone. */
static void begin_rows(double *state, float *dst, ptrdiff_t ld, const epi_view *b, int rows) {
    for (int i = 0; i < rows; i++) {
        dst[i * ld] = b->p[i * b->row];
        state[i] = (double)b->p[i * b->row];
    }
}

/* Running sums begin with -0, which changes nothing that is added to it. */
static void sum_rows(double *state, float *dst, ptrdiff_t ld, epi_view b, bool first, bool back, int rows,
                     int n) {
    int i = 0;
    for (int k = 0; k < rows && first; k++)
        state[k] = -0.0;
    for (; i + SUMMED <= rows && b.col && !back; i += SUMMED)
        sum_abreast(&state[i], dst + i * ld, ld, b.p + i * b.row, b.row, n);
    for (; i < rows; i++) {
        if (back)
            sum_back(&state[i], dst + i * ld, b.p + i * b.row, b.col, n);
        else if (b.col)
            sum_row(&state[i], dst + i * ld, b.p + i * b.row, 1, n);
        else
            sum_row(&state[i], dst + i * ld, b.p + i * b.row, 0, n);
    }
}

static void scan_rows(double *state, float *dst, ptrdiff_t ld, const epi_view *v, bool first, bool back,
                      int rows, int n) {
    if (rows <= 0 || n <= 0)
        return;
    if (!v[0].col && !v[0].row &&
        *v[0].p == 1.0f) { /* a factor that changes no number, and need not be waited for */
        sum_rows(state, dst, ld, v[1], first, back, rows, n);
        return;
    }
    int step = back ? -1 : 1, begin = back ? n - 1 : 0, next = first ? begin + step : begin;
    epi_view w[2] = {v[0], v[1]};
    w[1].p += begin * v[1].col;
    if (first)
        begin_rows(state, dst + begin, ld, &w[1], rows);
    for (int i = 0; i < rows; i += rows - i < ABREAST ? 1 : ABREAST) {
        for (int a = 0; a < 2; a++)
            w[a].p = v[a].p + i * v[a].row + next * v[a].col;
        float *y = dst + i * ld + next;
        if (rows - i >= ABREAST && v[0].col && v[1].col) {
            w[0].col = w[1].col = 1;
            scan_abreast(&state[i], y, ld, w, step, ABREAST, n - first);
        } else {
            scan_abreast(&state[i], y, ld, w, step, rows - i < ABREAST ? 1 : ABREAST, n - first);
        }
    }
}

#endif
