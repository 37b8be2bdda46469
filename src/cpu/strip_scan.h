/* strip_scan.h: recurrences, many side by side or one along a row.
 *
 * Only strips.c includes this. The state is f64: a product of two f32 is exact in it, and 2^20 steps lose less than a
 * rounding of what is stored. Every instruction set makes the same numbers. */
#ifndef EPI_CPU_STRIP_SCAN_H
#define EPI_CPU_STRIP_SCAN_H

#include "cpu/strip_loop.h"

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

/* So many rows are walked along side by side: one sum need not wait for another. */
enum { ABREAST = 8 };

/* A factor of 1 is left out: it changes no number, and the sum need not wait for it. */
static ALWAYS_INLINE void scan_abreast(double *state, float *dst, ptrdiff_t ld, const epi_view *v, bool first,
                                       bool back, bool sums, int rows, int n) {
    const float *a[ABREAST], *b[ABREAST];
    double h[ABREAST];
    for (int i = 0; i < rows; i++) {
        a[i] = v[0].p + i * v[0].row;
        b[i] = v[1].p + i * v[1].row;
        h[i] = state[i];
    }
    for (int k = 0; k < n; k++) {
        int j = back ? n - 1 - k : k;
        for (int i = 0; i < rows; i++) {
            double x = (double)b[i][j * v[1].col];
            if (first && !k)
                h[i] = x;
            else
                h[i] = (sums ? h[i] : (double)a[i][j * v[0].col] * h[i]) + x;
            dst[i * ld + j] = (float)h[i];
        }
    }
    for (int i = 0; i < rows; i++)
        state[i] = h[i];
}

static void scan_rows(double *state, float *dst, ptrdiff_t ld, const epi_view *v, bool first, bool back,
                      int rows, int n) {
    bool sums = !v[0].col && !v[0].row && rows > 0 && *v[0].p == 1.0f;
    for (int i = 0; i < rows; i += ABREAST) {
        epi_view w[2] = {{v[0].p + i * v[0].row, v[0].row, v[0].col},
                         {v[1].p + i * v[1].row, v[1].row, v[1].col}};
        if (rows - i < ABREAST)
            scan_abreast(state + i, dst + i * ld, ld, w, first, back, sums, rows - i, n);
        else if (sums && !back)
            scan_abreast(state + i, dst + i * ld, ld, w, first, false, true, ABREAST, n);
        else
            scan_abreast(state + i, dst + i * ld, ld, w, first, back, sums, ABREAST, n);
    }
}

#endif
