/* micro_avx512.c: f32 with AVX-512: 12 rows of A against two vectors of B, 24 sums in registers. */
#include "cpu/micro_internal.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { MR = 12, NR = 32, VECTOR = 16, STEP = 1, AHEAD = 16, KC = 256 };

typedef __m512 sums, lanes;
typedef float lane;

static inline __attribute__((always_inline)) sums multiply_add(sums sum, lane x, lanes b) {
    return _mm512_fmadd_ps(_mm512_set1_ps(x), b, sum);
}

#include "cpu/micro_pair.h"

EPI_MICRO_RUNS(1, EPI_MICRO_CASE(1) EPI_MICRO_CASE(2) EPI_MICRO_CASE(4) EPI_MICRO_CASE(8))

/* ---- few rows against B as it lies in memory ---- */

typedef __m512 vector;
enum { SUMS = 16 };

static inline vector load_f16(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

#include "cpu/micro_lanes.h"

#include "cpu/micro_across.h"

const epi_micro epi_micro_avx512 = {
    .name = "avx512",
    EPI_MICRO_F32,
    .own = 1 << 20,
    .usable = epi_has_avx512,
    .direct = {.rows = {8}, .ka = 1, .run = run_direct, .across = run_across},
    .widen_f16 = epi_widen_f16c,
};
#endif
