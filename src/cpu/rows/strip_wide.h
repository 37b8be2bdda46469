/* strip_wide.h: the CPU's own vectors, and functions for which the CPU has better instructions than a
 * compiler finds in plain C. AVX-512 multiplies by a power of two up to infinity and down to the denormals
 * in one step. NEON's minimum keeps NaN. The formulas are those of strip_math.h, except the last steps of
 * exp. The error bounds are the same.
 */
#ifndef EPI_CPU_STRIP_WIDE_H
#define EPI_CPU_STRIP_WIDE_H

#include "cpu/rows/strip_convert.h"

#if defined(__AVX512F__)
enum { WIDE = 16 };
typedef __m512 wide;
#elif defined(__AVX2__)
enum { WIDE = 8 };
typedef __m256 wide;
#elif defined(__aarch64__)
enum { WIDE = 4 };
typedef float32x4_t wide;
#else
enum { WIDE = 4 };
typedef float wide __attribute__((vector_size(WIDE * sizeof(float))));
#endif

typedef float wide_at __attribute__((vector_size(WIDE * sizeof(float)), aligned(4), may_alias));
typedef uint32_t wide_bits __attribute__((vector_size(WIDE * sizeof(uint32_t))));
typedef uint16_t wide_halves __attribute__((vector_size(WIDE * sizeof(uint16_t))));

static ALWAYS_INLINE wide wide_get(const float *p) {
    return *(const wide_at *)p;
}
static ALWAYS_INLINE void wide_put(float *p, wide x) {
    *(wide_at *)p = x;
}
/* Less a zero, -0 stays -0. */
static ALWAYS_INLINE wide wide_of(float x) {
    return x - (wide){0};
}

/* a*b + c */
static ALWAYS_INLINE wide wide_fma(wide a, wide b, wide c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}

/* As POLYNOMIAL. */
#define WIDE_POLYNOMIAL(x, ...) \
    wide_polynomial(x, (const float[]){__VA_ARGS__}, sizeof((const float[]){__VA_ARGS__}) / sizeof(float))
static ALWAYS_INLINE wide wide_polynomial(wide x, const float *coefficients, size_t count) {
    wide p = wide_of(coefficients[0]);
    UNROLLED
    for (size_t i = 1; i < count; i++)
        p = wide_fma(p, x, wide_of(coefficients[i]));
    return p;
}

static ALWAYS_INLINE wide wide_choose(wide_bits which, wide a, wide b) {
    return (wide)((which & (wide_bits)a) | (~which & (wide_bits)b));
}

/* As fold_max and fold_min. AVX-512's instruction gives the second where the first is no more, or either is
 * NaN, and is left out where the first is NaN; NEON's gives a NaN that is either. */
static ALWAYS_INLINE wide wide_max(wide a, wide b) {
#if defined(__AVX512F__)
    return _mm512_mask_max_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_ORD_Q), a, b);
#elif defined(__aarch64__)
    return vmaxq_f32(a, b);
#else
    return wide_choose((wide_bits)((a > b) | (a != a)), a, b);
#endif
}
static ALWAYS_INLINE wide wide_min(wide a, wide b) {
#if defined(__AVX512F__)
    return _mm512_mask_min_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_ORD_Q), a, b);
#elif defined(__aarch64__)
    return vminq_f32(a, b);
#else
    return wide_choose((wide_bits)((a < b) | (a != a)), a, b);
#endif
}

/* Two vectors of them at a time. */
static ALWAYS_INLINE void wide_get_bf16_two(const uint16_t *p, wide *x, wide *y) {
#if defined(__aarch64__)
    const uint16x8_t zeros = vdupq_n_u16(0), h = vld1q_u16(p);
    *x = vreinterpretq_f32_u16(vzip1q_u16(zeros, h));
    *y = vreinterpretq_f32_u16(vzip2q_u16(zeros, h));
#else
    wide_halves low, high; /* apart: GCC would put an array of both into memory */
    memcpy(&low, p, sizeof low);
    memcpy(&high, p + WIDE, sizeof high);
    *x = (wide)(__builtin_convertvector(low, wide_bits) << 16);
    *y = (wide)(__builtin_convertvector(high, wide_bits) << 16);
#endif
}
/* As float_bf16. */
#if defined(__AVX512F__)
static ALWAYS_INLINE __m256i wide_bf16(wide x) {
    __m512i u = _mm512_castps_si512(x),
            odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
static ALWAYS_INLINE void wide_put_bf16(uint16_t *p, wide x) {
    _mm256_storeu_si256((void *)p, wide_bf16(x));
}
#else
/* In the upper halves */
static ALWAYS_INLINE wide_bits wide_bf16(wide x) {
#if defined(__aarch64__)
    uint32x4_t u = vreinterpretq_u32_f32(x),
               rounded = vsraq_n_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), vshlq_n_u32(u, 15), 31);
    return (wide_bits)vbslq_u32(vceqq_f32(x, x), rounded, vorrq_u32(u, vdupq_n_u32(0x400000)));
#else
    wide_bits u = (wide_bits)x, rounded = u + 0x7fff + (u >> 16 & 1), nan = (wide_bits)(x != x);
    return (wide_bits)wide_choose(nan, (wide)(u | 0x400000), (wide)rounded);
#endif
}
static ALWAYS_INLINE void wide_put_bf16(uint16_t *p, wide x) {
    wide_halves h = __builtin_convertvector(wide_bf16(x) >> 16, wide_halves);
    memcpy(p, &h, sizeof h);
}
#endif
/* As vstored_bf16. */
static ALWAYS_INLINE wide wide_narrow(wide x) {
    wide_bits u = (wide_bits)x, rounded = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    return wide_choose((wide_bits)(x != x), (wide)(u | 0x400000), (wide)rounded);
}
/* Two at a time: NEON takes every other half of both in one instruction. */
static ALWAYS_INLINE void wide_put_bf16_two(uint16_t *p, wide x, wide y) {
#if defined(__aarch64__)
    vst1q_u16(p, vuzp2q_u16(vreinterpretq_u16_u32((uint32x4_t)wide_bf16(x)),
                            vreinterpretq_u16_u32((uint32x4_t)wide_bf16(y))));
#else
    wide_put_bf16(p, x);
    wide_put_bf16(p + WIDE, y);
#endif
}

/* Elements of a and then of b: those with even and those with odd places, and back. */
#if defined(__clang__)
#define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLED(a, b, ...) __builtin_shuffle(a, b, (wide_places){__VA_ARGS__})
#endif
typedef int32_t wide_places __attribute__((vector_size(WIDE * sizeof(int32_t))));

#if defined(__AVX512F__)
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX2__)
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define ODD 1, 3, 5, 7, 9, 11, 13, 15
#define LOW 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define EVEN 0, 2, 4, 6
#define ODD 1, 3, 5, 7
#define LOW 0, 4, 1, 5
#define HIGH 2, 6, 3, 7
#endif

static ALWAYS_INLINE wide wide_even(wide a, wide b) {
    return SHUFFLED(a, b, EVEN);
}
static ALWAYS_INLINE wide wide_odd(wide a, wide b) {
    return SHUFFLED(a, b, ODD);
}
static ALWAYS_INLINE wide wide_low(wide a, wide b) {
    return SHUFFLED(a, b, LOW);
}
static ALWAYS_INLINE wide wide_high(wide a, wide b) {
    return SHUFFLED(a, b, HIGH);
}

/* A non-temporal store where the CPU has one, to an address that is a multiple of the vector's size. */
static ALWAYS_INLINE void wide_nontemporal(float *p, wide x) {
#if defined(__AVX512F__)
    _mm512_stream_ps(p, x);
#elif defined(__AVX2__)
    _mm256_stream_ps(p, x);
#elif defined(__x86_64__)
    _mm_stream_ps(p, x);
#else
    wide_put(p, x);
#endif
}

/* ---- functions ---- */

#if defined(__AVX512F__) || defined(__aarch64__)
#if defined(__AVX512F__)
/* An integer as a number */
typedef __m512 wide_power;

/* x = k * ln(2) + r, where k may be chosen by what is near x */
static ALWAYS_INLINE wide wide_reduce_near(wide near, wide x, wide_power *k) {
    *k = _mm512_sub_ps(wide_fma(near, wide_of(LOG2E), wide_of(ROUND)), wide_of(ROUND));
    return _mm512_fnmadd_ps(*k, wide_of(LN2_LO), _mm512_fnmadd_ps(*k, wide_of(LN2_HI), x));
}

/* x * 2^k, rounded once */
static ALWAYS_INLINE wide wide_scaled(wide x, wide_power k) {
    return _mm512_scalef_ps(x, k);
}

/* Where x is so large that r is not small, or NaN, k alone decides: the result is infinity, 0 or NaN for any
 * r near 0. So r is bounded in size, and not x from both sides; NaN gives the bound. */
static ALWAYS_INLINE wide wide_exp_reduce(wide x, wide_power *k) {
    enum { SMALLER_BY_SIZE = 2 };
    return _mm512_range_ps(wide_reduce_near(x, x, k), wide_of(0.5f), SMALLER_BY_SIZE);
}

/* -|x| from -120 on */
static ALWAYS_INLINE wide wide_minus_abs(wide x) {
    return _mm512_max_ps(wide_of(-120.0f), _mm512_or_ps(x, wide_of(-0.0f)));
}

/* As over_one_plus. The guess is good to 14 bits, and one step by what its quotient y leaves, n - y - y*e,
 * makes them 28. n - y is exact, but for y a little under n / 2, and 1 + e is rounded in the guess alone. */
static ALWAYS_INLINE wide wide_over_one_plus(wide n, wide e) {
    wide r = _mm512_rcp14_ps(_mm512_add_ps(wide_of(1.0f), e)), y = _mm512_mul_ps(n, r);
    wide left = _mm512_fnmadd_ps(y, e, _mm512_sub_ps(n, y));
    return wide_fma(left, r, y);
}

/* 1/x to the last place but one */
static ALWAYS_INLINE wide wide_inverse(wide x) {
    wide r = _mm512_rcp14_ps(x);
    return wide_fma(_mm512_fnmadd_ps(r, x, wide_of(1.0f)), r, r);
}

/* |x| up to the bound; NaN stays NaN. */
static ALWAYS_INLINE wide wide_bounded_abs(wide x, float bound) {
    return _mm512_min_ps(wide_of(bound), _mm512_abs_ps(x));
}

static ALWAYS_INLINE wide wide_where_negative(wide x, wide yes, wide no) {
    return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), yes);
}

/* y, and NaN where x is -inf */
static ALWAYS_INLINE wide wide_gated_edge(wide x, wide y) {
    return _mm512_fixupimm_ps(y, x, _mm512_set1_epi32(3 << 16), 0);
}

/* (e^r - 1 - r) / r^2, given r2 = r^2. Horner's scheme takes the fewest instructions, */
static ALWAYS_INLINE wide wide_exp_slope(wide r, wide r2) {
    (void)r2;
    return WIDE_POLYNOMIAL(r, 0x1.6b692ap-10f, 0x1.122f22p-7f, 0x1.55568cp-5f, 0x1.5554a4p-3f, 0.5f);
}

/* e^r */
static ALWAYS_INLINE wide wide_exp_reduced(wide r) {
    wide p = wide_exp_slope(r, r);
    return wide_fma(wide_fma(p, r, wide_of(1.0f)), r, wide_of(1.0f));
}
#else
/* The sum of an integer k and BIASED, whose lowest bits are those of k plus the bias of two exponents. */
typedef wide_bits wide_power;
static const float BIASED = 0x1.8p23f + 254;

static ALWAYS_INLINE wide wide_reduce_near(wide near, wide x, wide_power *k) {
    wide sum = wide_fma(near, wide_of(LOG2E), wide_of(BIASED)), number = sum - BIASED;
    *k = (wide_bits)sum;
    return vfmsq_f32(vfmsq_f32(x, number, wide_of(LN2_HI)), number, wide_of(LN2_LO));
}

/* Two factors of half the exponent each; what stands above the exponents' bits the shifts take away. */
static ALWAYS_INLINE wide wide_scaled(wide x, wide_power k) {
    wide_bits half = k >> 1;
    return x * (wide)(half << 23) * (wide)((k - half) << 23);
}

static ALWAYS_INLINE wide wide_exp_reduce(wide x, wide_power *k) {
    x = vminq_f32(vmaxq_f32(x, wide_of(-120.0f)), wide_of(120.0f));
    return wide_reduce_near(x, x, k);
}

static ALWAYS_INLINE wide wide_minus_abs(wide x) {
    return vmaxq_f32(wide_of(-120.0f), -vabsq_f32(x));
}

static ALWAYS_INLINE wide wide_over_one_plus(wide n, wide e) {
    wide d = 1.0f + e, excess = (d - 1.0f) - e, y = n / d;
    return wide_fma(y, excess, y);
}

static ALWAYS_INLINE wide wide_inverse(wide x) {
    return 1.0f / x;
}

static ALWAYS_INLINE wide wide_bounded_abs(wide x, float bound) {
    return vminq_f32(wide_of(bound), vabsq_f32(x));
}

static ALWAYS_INLINE wide wide_where_negative(wide x, wide yes, wide no) {
    return vbslq_f32(vcltzq_f32(x), yes, no);
}

static ALWAYS_INLINE wide wide_gated_edge(wide x, wide y) {
    return vbslq_f32(vcltq_f32(x, wide_of(-FLT_MAX)), wide_of(NAN), y);
}

/* and the shorter way from r to the result is better where four instructions can start at once but each one
 * that adds to a constant needs a copy of it. */
static ALWAYS_INLINE wide wide_exp_slope(wide r, wide r2) {
    wide low = wide_fma(wide_of(0x1.5554a4p-3f), r, wide_of(0.5f)),
         high = wide_fma(wide_of(0x1.122f22p-7f), r, wide_of(0x1.55568cp-5f));
    return wide_fma(wide_fma(wide_of(0x1.6b692ap-10f), r2, high), r2, low);
}

static ALWAYS_INLINE wide wide_exp_reduced(wide r) {
    wide r2 = r * r;
    return wide_fma(r2, wide_exp_slope(r, r2), r) + wide_of(1.0f);
}
#endif

static ALWAYS_INLINE wide wide_reduce(wide x, wide_power *k) {
    return wide_reduce_near(x, x, k);
}

/* e^r - 1 */
static ALWAYS_INLINE wide wide_expm1_reduced(wide r) {
    wide r2 = r * r;
    return wide_fma(r2, wide_exp_slope(r, r2), r);
}

static ALWAYS_INLINE wide wide_exp(wide x) {
    wide_power k;
    wide r = wide_exp_reduce(x, &k);
    return wide_scaled(wide_exp_reduced(r), k);
}

static ALWAYS_INLINE wide wide_sigmoid(wide x) {
    wide_power k;
    wide m = wide_expm1_reduced(wide_reduce(wide_minus_abs(x), &k)), e = wide_scaled(m + wide_of(1.0f), k);
    return wide_over_one_plus(wide_where_negative(x, e, wide_of(1.0f)), e);
}

/* As gated, t being -v. */
static ALWAYS_INLINE wide wide_silu(wide x) {
    wide_power k;
    wide v = wide_minus_abs(x), m = wide_expm1_reduced(wide_reduce(v, &k)),
         e = wide_scaled(m + wide_of(1.0f), k);
    wide n = wide_scaled(-wide_fma(v, m, v), k), above = wide_max(wide_of(-0.0f), x);
    return wide_gated_edge(x, above - wide_over_one_plus(n, e));
}

/* As vgelu. */
static ALWAYS_INLINE wide wide_gelu(wide x) {
    wide t = wide_bounded_abs(x, 15.0f), d = t + wide_of(1.5f), w = wide_inverse(d),
         v = wide_fma(wide_of(-3.0f), w, wide_of(1.0f));
    wide g = WIDE_POLYNOMIAL(v, 0x1.3d1f14p-13f, 0x1.e690f6p-12f, 0x1.05b17ep-12f, -0x1.1076b8p-10f,
                             -0x1.63072cp-9f, -0x1.3f320ap-9f, 0x1.0549ccp-8f, 0x1.21056ep-6f, 0x1.2538c4p-6f,
                             -0x1.d700a4p-5f, -0x1.8f9054p-3f, 0x1.3c1440p-1f) *
             w;

    wide_power k;
    wide half = wide_of(-0.5f), high = (wide)((wide_bits)t & 0xfffff000u),
         r = wide_reduce_near(half * t * t, half * high * high, &k);
    wide m = wide_expm1_reduced(wide_fma(half * (t - high), t + high, r));
    wide lost = wide_fma(w, (d - wide_of(1.5f)) - t, wide_fma(-w, d, wide_of(1.0f)));
    m += wide_fma(m, lost, lost);
    wide n = t * g, above = wide_max(wide_of(-0.0f), x);
    return wide_gated_edge(x, above - wide_scaled(wide_fma(n, m, n), k));
}

/* Is there such a function for the operation? */
static ALWAYS_INLINE bool wide_has(epi_op op) {
    return op == EPI_OP_EXP || op == EPI_OP_SIGMOID || op == EPI_OP_SILU || op == EPI_OP_GELU;
}
static ALWAYS_INLINE wide wide_map(epi_op op, wide x) {
    return op == EPI_OP_EXP       ? wide_exp(x)
           : op == EPI_OP_SIGMOID ? wide_sigmoid(x)
           : op == EPI_OP_SILU    ? wide_silu(x)
                                  : wide_gelu(x);
}
#else
static ALWAYS_INLINE bool wide_has(epi_op op) {
    (void)op;
    return false;
}
static ALWAYS_INLINE wide wide_map(epi_op op, wide x) {
    (void)op;
    return x;
}
#endif

/* y[j] = f(x[j] - shift). Eight vectors abreast: each by itself is a chain of instructions that wait for each
 * other. The last elements in a vector that is filled up, so all have the same bits anywhere. */
static ALWAYS_INLINE void wide_row(epi_op op, float *y, const float *x, float shift, int n) {
    enum { ABREAST = 8 };
    int j = 0;
    for (; j + ABREAST * WIDE <= n; j += ABREAST * WIDE) {
        wide v[ABREAST];
#pragma GCC unroll 8
        for (int i = 0; i < ABREAST; i++)
            v[i] = wide_map(op, wide_get(x + j + i * WIDE) - shift);
#pragma GCC unroll 8
        for (int i = 0; i < ABREAST; i++)
            wide_put(y + j + i * WIDE, v[i]);
    }
    for (; j + WIDE <= n; j += WIDE)
        wide_put(y + j, wide_map(op, wide_get(x + j) - shift));
    if (j < n) {
        float rest[WIDE] = {0};
        memcpy(rest, x + j, (size_t)(n - j) * sizeof *x);
        wide_put(rest, wide_map(op, wide_get(rest) - shift));
        memcpy(y + j, rest, (size_t)(n - j) * sizeof *x);
    }
}

#endif
