/* micro_avx2.c: f32 with AVX2 and FMA: 6 rows of A against two vectors of B, 12 sums in registers. */
#include "cpu/micro_internal.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { MR = 6, NR = 16, VECTOR = 8, STEP = 1, AHEAD = 32, KC = 256 };

typedef __m256 sums, lanes;
typedef float lane;

static inline __attribute__((always_inline)) sums multiply_add(sums sum, lane x, lanes b) {
    return _mm256_fmadd_ps(_mm256_set1_ps(x), b, sum);
}

#include "cpu/micro_pair.h"

EPI_MICRO_RUNS(1, EPI_MICRO_CASE(1) EPI_MICRO_CASE(2) EPI_MICRO_CASE(4))

/* ---- few rows against B as it lies in memory ---- */

typedef __m256 vector;
enum { SUMS = 8 };

#include "cpu/micro_lanes.h"

static inline __attribute__((always_inline)) void load_columns(const int vectors, const epi_dtype type,
                                                               const void *p, vector w[]) {
    EPI_UNROLL for (int v = 0; v < vectors; v++) {
        if (type == EPI_F32) {
            w[v] = _mm256_loadu_ps((const float *)p + v * VECTOR);
            continue;
        }
        const __m128i half = _mm_loadu_si128((const __m128i *)p + v);
        w[v] = type == EPI_BF16 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))
                                : _mm256_cvtph_ps(half);
    }
}

#include "cpu/micro_across.h"

const epi_micro epi_micro_avx2 = {
    .name = "avx2",
    .type = EPI_F32,
    .mr = MR,
    .nr = NR,
    .ka = 1,
    .kb = 1,
    .depth = 1,
    .kc = KC,
    .usable = epi_has_avx2,
    .run = run,
    .run_rows = run_rows,
    .direct = {.rows = {8}, .ka = 1, .run = run_direct, .across = run_across},
    .widen_f16 = epi_widen_f16c,
};
#endif
