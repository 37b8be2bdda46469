/* micro_zmm.h: vectors of AVX-512, as micro_columns.h needs them. */
#ifndef EPI_CPU_MICRO_ZMM_H
#define EPI_CPU_MICRO_ZMM_H

#include <immintrin.h>

#include "cpu/micro/micro_internal.h"

typedef __m512 vector;
typedef __m512i raw;
enum { VECTOR = 16, TURNED = 2, SUMS = 16, KC = 256 };

static inline __attribute__((always_inline)) vector multiply_add(vector sum, float x, vector b) {
    return _mm512_fmadd_ps(_mm512_set1_ps(x), b, sum);
}

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

#endif
