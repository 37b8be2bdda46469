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

#include "cpu/micro_lanes.h"

static inline __attribute__((always_inline)) void load_columns(const int vectors, const epi_dtype type,
                                                               const void *p, vector w[]) {
    EPI_UNROLL for (int v = 0; v < vectors; v++) {
        if (type == EPI_F32) {
            w[v] = _mm512_loadu_ps((const float *)p + v * VECTOR);
            continue;
        }
        const __m256i half = _mm256_loadu_si256((const __m256i *)p + v);
        w[v] = type == EPI_BF16 ? _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))
                                : _mm512_cvtph_ps(half);
    }
}

#include "cpu/micro_across.h"

const epi_micro epi_micro_avx512 = {
    .name = "avx512",
    .type = EPI_F32,
    .mr = MR,
    .nr = NR,
    .ka = 1,
    .kb = 1,
    .depth = 1,
    .kc = KC,
    .own = 1 << 20,
    .usable = epi_has_avx512,
    .run = run,
    .run_rows = run_rows,
    .direct = {.rows = {8}, .ka = 1, .run = run_direct, .across = run_across},
    .widen_f16 = epi_widen_f16c,
};
#endif
