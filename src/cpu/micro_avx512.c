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
typedef __m512i raw;
enum { SUMS = 16, TURNED = 2 };

static inline vector load_f16(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

static inline vector widen_halves(__m512i x) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x));
}

static inline vector look_up(const vector table[], __m512i x) {
    return _mm512_permutexvar_ps(x, table[0]);
}

/* A quarter of a vector has four columns that lie four apart; then quarters are turned. */
static inline __attribute__((always_inline)) void turn(const char *const column[], int64_t at, __m512i w[4]) {
    __m512i x[4];
    EPI_UNROLL for (int i = 0; i < 4; i++) {
        x[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(column[i] + at)));
        x[i] = _mm512_inserti32x4(x[i], _mm_loadu_si128((const __m128i *)(column[i + 4] + at)), 1);
        x[i] = _mm512_inserti32x4(x[i], _mm_loadu_si128((const __m128i *)(column[i + 8] + at)), 2);
        x[i] = _mm512_inserti32x4(x[i], _mm_loadu_si128((const __m128i *)(column[i + 12] + at)), 3);
    }
    const __m512i lo01 = _mm512_unpacklo_epi32(x[0], x[1]), hi01 = _mm512_unpackhi_epi32(x[0], x[1]),
                  lo23 = _mm512_unpacklo_epi32(x[2], x[3]), hi23 = _mm512_unpackhi_epi32(x[2], x[3]);
    w[0] = _mm512_unpacklo_epi64(lo01, lo23);
    w[1] = _mm512_unpackhi_epi64(lo01, lo23);
    w[2] = _mm512_unpacklo_epi64(hi01, hi23);
    w[3] = _mm512_unpackhi_epi64(hi01, hi23);
}

#include "cpu/micro_turned.h"

#include "cpu/micro_across.h"

const epi_micro epi_micro_avx512 = {
    .name = "avx512",
    EPI_MICRO_F32,
    .own = 1 << 20,
    .usable = epi_has_avx512,
    .direct = {.rows = {1, 4, 8}, .ka = 1, .run = run_direct, .bits = run_bits, .across = run_across},
    .widen_f16 = epi_widen_f16c,
};
#endif
