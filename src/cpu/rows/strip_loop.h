/* strip_loop.h: what the strips' loops share: how to request vector code, and rows of a view. */
#ifndef EPI_CPU_STRIP_LOOP_H
#define EPI_CPU_STRIP_LOOP_H

#include "cpu/rows/strip_math.h"
#include "cpu/rows/strips.h"

/* Before a loop in which no iteration reads what another writes: destination and operand are disjoint
 * or the very same. The compiler cannot know it, and its run-time test would send the latter to a scalar
 * loop. Clang takes it as an order, and warns where a sanitizer keeps it from obeying. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"
#define VECTOR_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define VECTOR_LOOP _Pragma("GCC ivdep")
#endif

/* Rows are handled in stretches of so many elements where something has to be buffered. */
enum { STRETCH = 256 };

static inline int stretch_length(int n, int j) {
    return n - j < STRETCH ? n - j : STRETCH;
}

static inline void fill(float *dst, float x, int n) {
    for (int j = 0; j < n; j++)
        dst[j] = x;
}

/* Row i as a pointer to vectors: the row itself, or its one element copied over buf. Stretch j of it
 * lies at p + j * col. */
static inline const float *row_spread(epi_view a, int i, float *buf, int n) {
    const float *p = a.p + i * a.row;
    if (a.col)
        return p;
    fill(buf, *p, stretch_length(n, 0));
    return buf;
}

#endif
