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

/* A factor of 1 is left out: it changes no number, and the sum need not wait for it. */
static void scan_row(double *state, float *dst, const epi_view *v, bool first, bool back, int n) {
    const float *a = v[0].p, *b = v[1].p;
    double h = first ? 0 : *state;
    bool sums = !v[0].col && n > 0 && *a == 1.0f;
    for (int k = 0; k < n; k++) {
        int j = back ? n - 1 - k : k;
        double x = (double)b[j * v[1].col];
        if (sums)
            h = first && !k ? x : h + x;
        else
            h = first && !k ? x : (double)a[j * v[0].col] * h + x;
        dst[j] = (float)h;
    }
    *state = h;
}

#endif
