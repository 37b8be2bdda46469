/* micro_across.h: few rows times B, whose columns are neighbours in memory. The files of the f32 kernels
 * include it, and define before: `vector` of VECTOR floats; SUMS, how many of them fit the registers as
 * sums, at least EPI_MICRO_FEW; load_columns(vectors, type, p, w), elements of B as f32; add_rows(rows,
 * vectors, a, w, sum), which adds the product of a[i] and w to the sums of each row i; and widen_f16. */
#ifndef EPI_CPU_MICRO_ACROSS_H
#define EPI_CPU_MICRO_ACROSS_H

#include <math.h>

#include "cpu/micro/micro_internal.h"
#include "cpu/product/pack_move.h"

typedef vector vector_at __attribute__((aligned(4), may_alias)); /* in C */

static inline vector load_sums(const float *p) {
    return *(const vector_at *)p;
}

/* The sums of some columns are in registers over all of `depth`, then those of the next columns. While a row
 * of B is read, a little more of it is asked for, and the row that is `depth` further on. */
static inline __attribute__((always_inline)) void
add_depths(const int rows, const int depth, const epi_dtype type, int64_t cols, const float *a, int64_t lda,
           const void *const b[], float *c, int64_t ldc, bool go_on) {
    enum { LINE_BYTES = 64, SOON_BYTES = 256 };
    const int64_t size = type == EPI_F32 ? 4 : 2;
    const int line = (int)(LINE_BYTES / size / VECTOR), vectors = SUMS / rows < line ? SUMS / rows : line;
    int64_t j = 0;
    for (; j + vectors * VECTOR <= cols; j += vectors * VECTOR) {
        vector sum[EPI_MICRO_FEW][SUMS], w[SUMS];
        EPI_UNROLL for (int i = 0; i < rows; i++) {
            EPI_UNROLL for (int v = 0; v < vectors; v++) {
                sum[i][v] = go_on ? load_sums(c + i * ldc + j + v * VECTOR) : (vector){0};
            }
        }
        EPI_UNROLL for (int d = 0; d < depth; d++) {
            const char *row = (const char *)b[d] + j * size;
            if (vectors == line || j * size % LINE_BYTES == 0) {
                __builtin_prefetch(row + SOON_BYTES, 0, 3);
                __builtin_prefetch((const char *)b[depth + d] + j * size, 0, 2);
            }
            load_columns(vectors, type, row, w);
            add_rows(rows, vectors, a + d * lda, w, sum);
        }
        EPI_UNROLL for (int i = 0; i < rows; i++) {
            EPI_UNROLL for (int v = 0; v < vectors; v++) {
                *(vector_at *)(c + i * ldc + j + v * VECTOR) = sum[i][v];
            }
        }
    }
    for (; j < cols; j++)
        for (int i = 0; i < rows; i++) {
            float x = go_on ? c[i * ldc + j] : 0;
            for (int d = 0; d < depth; d++)
                x = fmaf(a[d * lda + i], epi_element(type, b[d], j, widen_f16), x);
            c[i * ldc + j] = x;
        }
}

#define ROWS_CASE(n) \
    if (rows <= (n)) { \
        if (depth == most) \
            add_depths(n, most, type, cols, a, lda, b, c, ldc, go_on); \
        else \
            for (int d = 0; d < depth; d++) \
                add_depths(n, 1, type, cols, a + d * lda, lda, b + d, c, ldc, go_on || d > 0); \
        return; \
    }

static inline __attribute__((always_inline)) void add_typed(const epi_dtype type, int rows, int depth,
                                                            int64_t cols, const float *a, int64_t lda,
                                                            const void *const b[], float *c, int64_t ldc,
                                                            bool go_on) {
    const int most = EPI_MICRO_ACROSS / (type == EPI_F32 ? 4 : 2);
    ROWS_CASE(1)
    ROWS_CASE(2)
    ROWS_CASE(4)
    ROWS_CASE(8)
}

static void run_across(int rows, int depth, int64_t cols, const float *a, int64_t lda, const void *const b[],
                       epi_dtype type, float *c, int64_t ldc, bool go_on) {
    if (type == EPI_F32)
        add_typed(EPI_F32, rows, depth, cols, a, lda, b, c, ldc, go_on);
    else if (type == EPI_BF16)
        add_typed(EPI_BF16, rows, depth, cols, a, lda, b, c, ldc, go_on);
    else
        add_typed(EPI_F16, rows, depth, cols, a, lda, b, c, ldc, go_on);
}

#endif
