/* micro_avx512bf16.c: bf16 with the pairwise dot product of AVX-512: as the f32 kernel, each iteration
 * taking two elements of depth. */
#include "cpu/micro/micro_internal.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

enum { MR = 12, NR = 32, VECTOR = 16, PAIR = 2, STEP = PAIR, AHEAD = 16, KC = 768 };

typedef __m512 sums;
typedef __m512i lanes;
typedef int lane; /* a pair */

static inline __attribute__((always_inline)) sums multiply_add(sums sum, lane x, lanes b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(x), (__m512bh)b);
}

#include "cpu/micro/micro_pair.h"

EPI_MICRO_RUNS(PAIR, EPI_MICRO_CASE(1) EPI_MICRO_CASE(2) EPI_MICRO_CASE(4) EPI_MICRO_CASE(8))

/* ---- few rows against B as it lies in memory ---- */

/* Columns that are taken together, the bytes of a line, and those that a column is asked for ahead. */
enum { COLS = 8, LINE = 64, EARLY = 512 };

/* A pair of the depth of one column, or its first alone, for all lanes. */
static inline __m512bh pair_of(const uint16_t *column, const size_t size) {
    int pair = 0;
    memcpy(&pair, column, size);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* One sweep of eight columns; the lanes of a vector are rows. */
static inline void add_columns(int64_t depth, const int *a, const uint16_t *const b[], float *c, int64_t ldc,
                               bool add) {
    __m512 sum[COLS];
    int64_t k = 0;
    EPI_UNROLL for (int j = 0; j < COLS; j++) sum[j] = _mm512_setzero_ps();
    for (; k + PAIR <= depth; k += PAIR, a += VECTOR) {
        const __m512bh x = (__m512bh)_mm512_loadu_si512(a);
        if (k % (LINE / (int64_t)sizeof **b) == 0)
            EPI_UNROLL for (int j = 0; j < COLS; j++) __builtin_prefetch((const char *)(b[j] + k) + EARLY);
        EPI_UNROLL for (int j = 0; j < COLS; j++) {
            sum[j] = _mm512_dpbf16_ps(sum[j], x, pair_of(b[j] + k, sizeof(int)));
        }
    }
    if (k < depth) {
        const __m512bh x = (__m512bh)_mm512_loadu_si512(a);
        EPI_UNROLL for (int j = 0; j < COLS; j++) {
            sum[j] = _mm512_dpbf16_ps(sum[j], x, pair_of(b[j] + k, sizeof **b));
        }
    }
    float turned[COLS][VECTOR];
    EPI_UNROLL for (int j = 0; j < COLS; j++) _mm512_storeu_ps(turned[j], sum[j]);
    for (int i = 0; i < VECTOR; i++, c += ldc)
        for (int j = 0; j < COLS; j++)
            c[j] = add ? turned[j][i] + c[j] : turned[j][i];
}

static void run_direct(int rows, int cols, int64_t k, const void *a, const void *const b[], epi_dtype type,
                       float *c, int64_t ldc, bool add) {
    (void)rows, (void)type;
    for (int j = 0; j < cols; j += COLS)
        for (int64_t k0 = 0; k0 < k; k0 += KC) {
            const int64_t depth = k - k0 < KC ? k - k0 : KC;
            const uint16_t *column[COLS];
            for (int i = 0; i < COLS; i++) /* beyond the last column the first one again: unread */
                column[i] = (const uint16_t *)b[j + i < cols ? j + i : j] + k0;
            add_columns(depth, (const int *)a + k0 / PAIR * VECTOR, column, c + j, ldc, add || k0 > 0);
        }
}

const epi_micro epi_micro_avx512bf16 = {
    .name = "avx512bf16",
    .type = EPI_BF16,
    .mr = MR,
    .nr = NR,
    .ka = PAIR,
    .kb = PAIR,
    .depth = PAIR,
    .kc = KC,
    .usable = epi_has_avx512bf16,
    .worth = epi_worth_avx512bf16,
    .run = run,
    .run_rows = run_rows,
    .direct = {.rows = {VECTOR}, .ka = PAIR, .run = run_direct},
};
#endif
