/* micro_avx2.c: f32 with AVX2 and FMA: 6 rows of A against two vectors of B, 12 sums in registers. */
#include "cpu/micro/micro_internal.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { MR = 6, NR = 16, VECTOR = 8, STEP = 1, AHEAD = 32, KC = 256 };

typedef __m256 sums, lanes;
typedef float lane;

static inline __attribute__((always_inline)) sums multiply_add(sums sum, lane x, lanes b) {
    return _mm256_fmadd_ps(_mm256_set1_ps(x), b, sum);
}

#include "cpu/micro/micro_pair.h"

EPI_MICRO_RUNS(1, EPI_MICRO_CASE(1) EPI_MICRO_CASE(2) EPI_MICRO_CASE(4))

/* ---- few rows against B as it lies in memory ---- */

typedef __m256 vector;
typedef __m256i raw;
enum { SUMS = 8, TURNED = 4 };

static inline vector load_f16(const void *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

static inline vector widen_halves(__m256i x) {
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}

static inline vector look_up(const vector table[], __m256i x) {
    const vector low = _mm256_permutevar8x32_ps(table[0], x), high = _mm256_permutevar8x32_ps(table[1], x);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(x, 28)));
}

/* A half of a vector has four columns that lie four apart; then halves are turned. */
static inline __attribute__((always_inline)) void turn(const char *const column[], int64_t at, __m256i w[4]) {
    __m256i x[4];
    EPI_UNROLL for (int i = 0; i < 4; i++) {
        x[i] = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(column[i] + at)));
        x[i] = _mm256_inserti128_si256(x[i], _mm_loadu_si128((const __m128i *)(column[i + 4] + at)), 1);
    }
    const __m256i lo01 = _mm256_unpacklo_epi32(x[0], x[1]), hi01 = _mm256_unpackhi_epi32(x[0], x[1]),
                  lo23 = _mm256_unpacklo_epi32(x[2], x[3]), hi23 = _mm256_unpackhi_epi32(x[2], x[3]);
    w[0] = _mm256_unpacklo_epi64(lo01, lo23);
    w[1] = _mm256_unpackhi_epi64(lo01, lo23);
    w[2] = _mm256_unpacklo_epi64(hi01, hi23);
    w[3] = _mm256_unpackhi_epi64(hi01, hi23);
}

#include "cpu/micro/micro_turned.h"

#include "cpu/micro/micro_across.h"

/* ---- rows of 8 bits ---- */

enum { SIGNED = 1 };

/* The bytes at even places, and those at odd ones, of 16 bits. */
static inline __attribute__((always_inline)) __m256i even_bytes(__m256i x, bool is_signed) {
    return is_signed ? _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8)
                     : _mm256_and_si256(x, _mm256_set1_epi16(255));
}

static inline __attribute__((always_inline)) __m256i odd_bytes(__m256i x, bool is_signed) {
    return is_signed ? _mm256_srai_epi16(x, 8) : _mm256_srli_epi16(x, 8);
}

static inline __attribute__((always_inline)) __m256i dot_bytes(__m256i sum, __m256i w, __m256i a,
                                                               bool is_signed) {
    const __m256i even = _mm256_madd_epi16(even_bytes(w, is_signed), even_bytes(a, true)),
                  odd = _mm256_madd_epi16(odd_bytes(w, is_signed), odd_bytes(a, true));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}

/* Two products of a half and a byte have no more than 16 bits. */
static inline __attribute__((always_inline)) __m256i dot_halves(__m256i sum, __m256i w, __m256i a) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(w, a), _mm256_set1_epi16(1)));
}

#include "cpu/micro/micro_integers.h"

const epi_micro epi_micro_avx2 = {
    .name = "avx2",
    EPI_MICRO_F32,
    .usable = epi_has_avx2,
    .direct = {.rows = {1, 4, 8},
               .ka = 1,
               .run = run_direct,
               .bits = run_bits,
               .across = run_across,
               .integers = run_integers,
               .has_integers = epi_has_avx2},
    .widen_f16 = epi_widen_f16c,
};
#endif
