/* strip_wide.h: functions of 16 floats at a time, with what AVX-512 has for them: a multiplication by a power
 * of two that reaches infinity and the denormals in one step, and a first guess of an inverse. The formulas
 * are those of strip_math.h but for the last steps of exp, and so are the bounds of their errors. */
#ifndef EPI_CPU_STRIP_WIDE_H
#define EPI_CPU_STRIP_WIDE_H

#include "cpu/strip_math.h"

#if defined(__AVX512F__)
#include <immintrin.h>

static ALWAYS_INLINE __m512 wide_of(float x) {
    return _mm512_set1_ps(x);
}

/* As float_bf16. */
static ALWAYS_INLINE __m256i wide_bf16(__m512 x) {
    __m512i u = _mm512_castps_si512(x),
            odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

/* e^x = (1 + m) * 2^k for |x| <= 120 */
typedef struct wide_scaled {
    __m512 m, k;
} wide_scaled;

/* x = k * ln(2) + r */
static ALWAYS_INLINE __m512 wide_reduce(__m512 x, __m512 *k) {
    *k = _mm512_sub_ps(_mm512_fmadd_ps(x, wide_of(LOG2E), wide_of(ROUND)), wide_of(ROUND));
    return _mm512_fnmadd_ps(*k, wide_of(LN2_LO), _mm512_fnmadd_ps(*k, wide_of(LN2_HI), x));
}

/* (e^r - 1 - r) / r^2 */
static ALWAYS_INLINE __m512 wide_exp_slope(__m512 r) {
    __m512 p = _mm512_fmadd_ps(wide_of(0x1.6b692ap-10f), r, wide_of(0x1.122f22p-7f));
    p = _mm512_fmadd_ps(p, r, wide_of(0x1.55568cp-5f));
    p = _mm512_fmadd_ps(p, r, wide_of(0x1.5554a4p-3f));
    return _mm512_fmadd_ps(p, r, wide_of(0.5f));
}

static ALWAYS_INLINE __m512 wide_expm1_reduced(__m512 r) {
    return _mm512_fmadd_ps(_mm512_mul_ps(r, r), wide_exp_slope(r), r);
}

static ALWAYS_INLINE wide_scaled wide_exp_scaled(__m512 x) {
    wide_scaled e;
    e.m = wide_expm1_reduced(wide_reduce(x, &e.k));
    return e;
}

/* Where x is so large that r is not small, or NaN, k alone decides: the result is infinity, 0 or NaN for any
 * r near 0. So r is bounded in size, and not x from both sides; NaN gives the bound. */
static ALWAYS_INLINE __m512 wide_exp(__m512 x) {
    enum { SMALLER_BY_SIZE = 2 };
    __m512 k, r = wide_reduce(x, &k);
    r = _mm512_range_ps(r, wide_of(0.5f), SMALLER_BY_SIZE);
    __m512 p = _mm512_fmadd_ps(wide_exp_slope(r), r, wide_of(1.0f));
    return _mm512_scalef_ps(_mm512_fmadd_ps(p, r, wide_of(1.0f)), k);
}

/* n / (1 + e) for e from 0 to 1. The guess is good to 14 bits, and one step by what its quotient y leaves,
 * n - y - y*e, makes them 28. n - y is exact, but for y a little under n / 2, and 1 + e is rounded in the
 * guess alone. */
static ALWAYS_INLINE __m512 wide_over_one_plus(__m512 n, __m512 e) {
    __m512 r = _mm512_rcp14_ps(_mm512_add_ps(wide_of(1.0f), e)), y = _mm512_mul_ps(n, r);
    __m512 left = _mm512_fnmadd_ps(y, e, _mm512_sub_ps(n, y));
    return _mm512_fmadd_ps(left, r, y);
}

static ALWAYS_INLINE __m512 wide_minus_abs(__m512 x) {
    return _mm512_max_ps(wide_of(-120.0f), _mm512_or_ps(x, wide_of(-0.0f)));
}

static ALWAYS_INLINE __m512 wide_sigmoid(__m512 x) {
    wide_scaled s = wide_exp_scaled(wide_minus_abs(x));
    __m512 e = _mm512_scalef_ps(_mm512_add_ps(s.m, wide_of(1.0f)), s.k);
    __mmask16 below = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    return wide_over_one_plus(_mm512_mask_mov_ps(wide_of(1.0f), below, e), e);
}

static ALWAYS_INLINE __m512 wide_silu(__m512 x) {
    __m512 v = wide_minus_abs(x);
    wide_scaled s = wide_exp_scaled(v);
    __m512 e = _mm512_scalef_ps(_mm512_add_ps(s.m, wide_of(1.0f)), s.k);
    __m512 n = _mm512_scalef_ps(_mm512_fnmsub_ps(v, s.m, v), s.k);
    __m512 y = _mm512_sub_ps(_mm512_max_ps(wide_of(-0.0f), x), wide_over_one_plus(n, e));
    return _mm512_fixupimm_ps(y, x, _mm512_set1_epi32(3 << 16), 0); /* NaN for -inf */
}
#endif

#endif
