/* micro_lanes.h: few rows against B as it lies in memory, for the f32 kernels of x86-64: the lanes of a
 * vector are rows, and an element of B goes to all of them as it is loaded. Included by these kernels' files,
 * which have KC, the depth of a sweep; and, for what micro_across.h wants of both, multiply_add, `vector` of
 * VECTOR floats, SUMS and load_f16(p), a vector from f16. */
#ifndef EPI_CPU_MICRO_LANES_H
#define EPI_CPU_MICRO_LANES_H

#include <immintrin.h>

#include "cpu/micro_internal.h"
#include "cpu/pack_move.h"

enum { LANES = 8, COLS = 8, LINE = 64, EARLY = 512 }; /* EARLY: bytes that a column is asked for ahead */

/* One sweep of eight columns: eight sums that do not wait for each other, each in the order of the depth. */
static inline void add_columns(int64_t depth, const float *a, const float *const b[], float *c, int64_t ldc,
                               bool add) {
    enum { STEP = LINE / sizeof(float) };
    __m256 sum[COLS];
    EPI_UNROLL for (int j = 0; j < COLS; j++) sum[j] = _mm256_setzero_ps();
    for (int64_t k = 0; k < depth;) {
        const int64_t end = k + STEP < depth ? k + STEP : depth;
        EPI_UNROLL for (int j = 0; j < COLS; j++) __builtin_prefetch((const char *)(b[j] + k) + EARLY);
        for (; k < end; k++) {
            const __m256 x = _mm256_loadu_ps(a + k * LANES);
            EPI_UNROLL for (int j = 0; j < COLS; j++) {
                sum[j] = _mm256_fmadd_ps(x, _mm256_broadcast_ss(b[j] + k), sum[j]);
            }
        }
    }
    float turned[COLS][LANES];
    EPI_UNROLL for (int j = 0; j < COLS; j++) _mm256_storeu_ps(turned[j], sum[j]);
    for (int i = 0; i < LANES; i++, c += ldc)
        for (int j = 0; j < COLS; j++)
            c[j] = add ? turned[j][i] + c[j] : turned[j][i];
}

/* direct.run: EPI_MICRO_DIRECT columns by sweeps, so that a sweep of A stays in the first-level cache. 16-bit
 * types are widened there first. */
static void run_direct(int rows, int cols, int64_t k, const void *a, const void *const b[], epi_dtype type,
                       float *c, int64_t ldc, bool add) {
    (void)rows;
    float wide[COLS][KC];
    for (int first = 0; first < cols; first += EPI_MICRO_DIRECT)
        for (int64_t k0 = 0; k0 < k; k0 += KC)
            for (int j = first; j < cols && j < first + EPI_MICRO_DIRECT; j += COLS) {
                const int64_t depth = k - k0 < KC ? k - k0 : KC;
                const float *column[COLS];
                for (int i = 0; i < COLS; i++) { /* beyond the last column the first one again: unread */
                    const void *from = b[j + i < cols ? j + i : j];
                    const uint16_t *half = (const uint16_t *)from + k0;
                    column[i] = type == EPI_F32 ? (const float *)from + k0 : wide[i];
                    if (type != EPI_F32)
                        __builtin_prefetch(half + depth);
                    if (type == EPI_BF16)
                        epi_widen_bf16(wide[i], half, depth);
                    else if (type == EPI_F16)
                        epi_widen_f16c(wide[i], half, depth);
                }
                add_columns(depth, (const float *)a + k0 * LANES, column, c + j, ldc, add || k0 > 0);
            }
}

static inline void widen_f16(float *dst, const uint16_t *src, int64_t n) {
    epi_widen_f16c(dst, src, n);
}

static inline __attribute__((always_inline)) void load_columns(const int vectors, const epi_dtype type,
                                                               const void *p, vector w[]) {
    typedef uint16_t halves __attribute__((vector_size(VECTOR * sizeof(uint16_t)), aligned(2), may_alias));
    typedef uint32_t words __attribute__((vector_size(sizeof(vector))));
    typedef vector vector_at __attribute__((aligned(4), may_alias));
    EPI_UNROLL for (int v = 0; v < vectors; v++) {
        if (type == EPI_F32)
            w[v] = ((const vector_at *)p)[v];
        else if (type == EPI_BF16)
            w[v] = (vector)(__builtin_convertvector(((const halves *)p)[v], words) << 16);
        else
            w[v] = load_f16((const uint16_t *)p + v * VECTOR);
    }
}

static inline __attribute__((always_inline)) void add_rows(const int rows, const int vectors, const float *a,
                                                           const vector w[], vector sum[][SUMS]) {
    EPI_UNROLL for (int i = 0; i < rows; i++) {
        EPI_UNROLL for (int v = 0; v < vectors; v++) {
            sum[i][v] = multiply_add(sum[i][v], a[i], w[v]);
        }
    }
}

#endif
