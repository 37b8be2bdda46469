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

static inline vector load_f16(const void *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

#include "cpu/micro_lanes.h"

#include "cpu/micro_across.h"

const epi_micro epi_micro_avx2 = {
    .name = "avx2",
    EPI_MICRO_F32,
    .usable = epi_has_avx2,
    .direct = {.rows = {8}, .ka = 1, .run = run_direct, .across = run_across},
    .widen_f16 = epi_widen_f16c,
};
#endif
