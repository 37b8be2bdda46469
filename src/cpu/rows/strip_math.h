/* strip_math.h: elementary functions of one float that compilers turn into vector code.
 *
 * Every function is straight-line code: it has no branch, no table and no call, and every special case is a
 * select. So a loop over one of them vectorises at any width, and a vector lane and a scalar tail give the
 * same bits, provided the compiler neither reassociates nor contracts (-ffp-contract=off). Products that
 * need a fused add use fmadd. Without it in hardware, fmadd rounds twice; the constants are short enough
 * that argument reduction stays exact.
 *
 * NaN propagates through every function: comparisons are written so that a NaN takes the branch that keeps
 * it. tests/test_strips.c measures the errors in units of the last place. Coefficients are minimax for the
 * stated interval, rounded one after the other.
 */
#ifndef EPI_CPU_STRIP_MATH_H
#define EPI_CPU_STRIP_MATH_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* A call would keep the loop around it from becoming vector code. */
#define ALWAYS_INLINE inline __attribute__((always_inline))

static ALWAYS_INLINE uint32_t float_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static ALWAYS_INLINE float bits_float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static ALWAYS_INLINE uint64_t double_bits(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* which ? a : b. GCC 12 turns a comparison around where it makes a choice of it, and for NEON it writes eight
 * instructions for "not above" instead of two for "above"; from a mask it cannot. */
static ALWAYS_INLINE float choose(int which, float a, float b) {
#if defined(__aarch64__)
    uint32_t mask = -(uint32_t)which;
    return bits_float((float_bits(a) & mask) | (float_bits(b) & ~mask));
#else
    return which ? a : b;
#endif
}

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
static ALWAYS_INLINE float fmadd(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
static ALWAYS_INLINE double fmadd64(double a, double b, double c) {
    return __builtin_fma(a, b, c);
}
#else
static ALWAYS_INLINE float fmadd(float a, float b, float c) {
    return a * b + c;
}
static ALWAYS_INLINE double fmadd64(double a, double b, double c) {
    return a * b + c;
}
#endif

/* Before a loop of few turns that is none to the loop around it, which is to become vector code. */
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif

/* The polynomial with these coefficients, that of the highest power first. */
#define POLYNOMIAL(x, ...) \
    polynomial(x, (const float[]){__VA_ARGS__}, sizeof((const float[]){__VA_ARGS__}) / sizeof(float))
static ALWAYS_INLINE float polynomial(float x, const float *coefficients, size_t count) {
    float p = coefficients[0];
    UNROLLED
    for (size_t i = 1; i < count; i++)
        p = fmadd(p, x, coefficients[i]);
    return p;
}

/* x rounded to one of its two bf16 neighbours: away from zero where the bits that are cut off and the first
 * 16 of u carry. */
static ALWAYS_INLINE float vdither(float x, float u) {
    float t = u * 65536.0f;
    t = t > 0.0f ? t : 0.0f;
    t = t < 65535.0f ? t : 65535.0f;
    uint32_t bits = float_bits(x), rounded = (bits + (uint32_t)(int32_t)t) & 0xffff0000u;
    /* NaN by its bits: GCC 12 gives x for x == x ? y : x in the tail of a loop where t is always 0 */
    return bits_float((bits & 0x7fffffffu) > 0x7f800000u ? bits : rounded);
}

/* x rounded to the nearest bf16, and to the nearest f16, as storing it does. Of numbers too small for a
 * normal f16, 0.5 leaves multiples of 2^-24. */
static ALWAYS_INLINE float vstored_bf16(float x) {
    uint32_t bits = float_bits(x), rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
    return bits_float((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded);
}

static ALWAYS_INLINE float vstored_f16(float x) {
    uint32_t bits = float_bits(x), a = bits & 0x7fffffffu, sign = bits & 0x80000000u;
    uint32_t normal = (a + 0xfffu + (a >> 13 & 1u)) & ~0x1fffu;
    uint32_t small = float_bits((bits_float(a) + 0.5f) - 0.5f);
    uint32_t finite = a < (113u << 23) ? small : normal;
    uint32_t special = a > 0x7f800000u ? a | 0x400000u : 0x7f800000u;
    return bits_float((finite < (143u << 23) && a < 0x7f800000u ? finite : special) | sign);
}

/* The nearest number with `cut` binary digits fewer than f32 has, of two the even one. Below `normal` its digits
 * end where those of `small` do: added and taken away again, that leaves them. What is beyond `most` becomes it,
 * and infinity `infinite`. */
static ALWAYS_INLINE float vnear(float x, int cut, float normal, float small, float most, float infinite) {
    uint32_t bits = float_bits(x), a = bits & 0x7fffffffu, sign = bits & 0x80000000u, low = (1u << cut) - 1;
    uint32_t rounded = (a + (low >> 1) + (a >> cut & 1u)) & ~low;
    rounded = a < float_bits(normal) ? float_bits((bits_float(a) + small) - small) : rounded;
    rounded = rounded < float_bits(most) ? rounded : float_bits(most);
    uint32_t special = a > 0x7f800000u ? a | 0x400000u : float_bits(infinite);
    return bits_float((a < 0x7f800000u ? rounded : special) | sign);
}
static ALWAYS_INLINE float vbf16(float x) {
    return vnear(x, 16, 0.0f, 0.0f, 0x1.fep127f, INFINITY);
}
static ALWAYS_INLINE float vf16(float x) {
    return vnear(x, 13, 0x1p-14f, 0.5f, 65504.0f, INFINITY);
}
static ALWAYS_INLINE float ve4m3(float x) {
    return vnear(x, 20, 0x1p-6f, 0x1p14f, 448.0f, 448.0f);
}
static ALWAYS_INLINE float ve5m2(float x) {
    return vnear(x, 21, 0x1p-14f, 0x1p7f, 57344.0f, INFINITY);
}

/* Adding ROUND leaves the nearest integer in the low bits of the sum; taking it away again leaves
 * that integer as a number. Good for |x| < 2^22 (2^51). */
static const float ROUND = 0x1.8p23f;
static const double ROUND64 = 0x1.8p52;

static ALWAYS_INLINE int32_t rounded_int(float sum) {
    return (int32_t)(float_bits(sum) - 0x4b400000u);
}

static ALWAYS_INLINE float copy_sign(float magnitude, float sign) {
    return bits_float((float_bits(magnitude) & 0x7fffffffu) | (float_bits(sign) & 0x80000000u));
}

static ALWAYS_INLINE float bounded_abs(float x, float bound) {
    float t = fabsf(x);
    return choose(t > bound, bound, t);
}

static ALWAYS_INLINE float bounded(float x, float bound) {
    return copy_sign(bounded_abs(x, bound), x);
}

/* x above zero, and -0 below: a difference from it has the sign of x even where it is zero. */
static ALWAYS_INLINE float positive_part(float x) {
    uint32_t u = float_bits(x), negative = (uint32_t)((int32_t)u >> 31);
    return bits_float(u & (~negative | 0x80000000u));
}

/* ---- exponentials -------------------------------------------------------------------------- */

static const float LOG2E = 0x1.715476p+0f;
static const float LN2_HI = 0x1.62e4p-1f; /* 16 bits: its product with an exponent is exact */
static const float LN2_LO = 0x1.7f7d1cp-20f;

/* (1 + m) * 2^k, not yet rounded to a float: k may lie far outside a float's exponents. */
typedef struct scaled {
    float m;
    int32_t k;
} scaled;

static ALWAYS_INLINE float power_of_two(int32_t k) {
    return bits_float((uint32_t)(k + 127) << 23);
}

/* Two factors of half the exponent each reach infinity and the denormals, and only the last
 * product rounds. */
static ALWAYS_INLINE float times_scaled(float x, scaled s) {
    int32_t half = s.k >> 1;
    return fmadd(x, s.m, x) * power_of_two(half) * power_of_two(s.k - half);
}

/* e^r - 1 for |r| <= ln(2)/2; error 2^-28 of e^r. */
static ALWAYS_INLINE float expm1_reduced(float r) {
    float p = POLYNOMIAL(r, 0x1.6b692ap-10f, 0x1.122f22p-7f, 0x1.55568cp-5f, 0x1.5554a4p-3f, 0.5f);
    return fmadd(r * r, p, r);
}

/* e^x for |x| <= 120: k stays in reach, and the results beyond are 0 even times a thousand. */
static ALWAYS_INLINE scaled exp_scaled(float x) {
    float sum = fmadd(x, LOG2E, ROUND), k = sum - ROUND;
    float r = fmadd(k, -LN2_LO, fmadd(k, -LN2_HI, x));
    return (scaled){expm1_reduced(r), rounded_int(sum)};
}

/* 2^r - 1 for |r| <= 1/2; error 2^-28 of 2^r. */
static ALWAYS_INLINE float exp2m1_reduced(float r) {
    float p = POLYNOMIAL(r, 0x1.4178c2p-13f, 0x1.5f095ap-10f, 0x1.3b2dd4p-7f, 0x1.c6af7ap-5f, 0x1.ebfbdcp-3f,
                         0x1.62e430p-1f);
    return p * r;
}

/* 2^y for |y| <= 200, and for an exponent that a float cannot hold closely enough. */
static ALWAYS_INLINE scaled exp2_scaled64(double y) {
    double k = (y + ROUND64) - ROUND64;
    return (scaled){exp2m1_reduced((float)(y - k)), rounded_int((float)k + ROUND)};
}

static ALWAYS_INLINE float vexp(float x) {
    return times_scaled(1.0f, exp_scaled(bounded(x, 120.0f)));
}

static ALWAYS_INLINE float vexp2(float x) {
    x = bounded(x, 160.0f);
    float sum = x + ROUND;
    return times_scaled(1.0f, (scaled){exp2m1_reduced(x - (sum - ROUND)), rounded_int(sum)});
}

/* ---- logarithms ---------------------------------------------------------------------------- */

/* x = (1 + f) * 2^k with f in [-1/3, 1/3), for positive finite x. */
typedef struct split {
    float f, k;
} split;

static ALWAYS_INLINE split log_split(float x) {
    int tiny = x < FLT_MIN;
    uint32_t i = float_bits(choose(tiny, x * 0x1p23f, x)) - 0x3f2aaaabu; /* relative to 2/3 */
    float k = (float)((int32_t)i >> 23);
    return (split){bits_float((i & 0x7fffffu) + 0x3f2aaaabu) - 1.0f, choose(tiny, k - 23.0f, k)};
}

/* log(1 + f) - f; error 2^-27.7 of the logarithm. */
static ALWAYS_INLINE float log_rest(float f) {
    float p = POLYNOMIAL(f, -0x1.07bd66p-3f, 0x1.1e7726p-3f, -0x1.f33396p-4f, 0x1.1ed3a4p-3f, -0x1.559c82p-3f,
                         0x1.99d062p-3f, -0x1.fffef8p-3f, 0x1.555506p-2f, -0.5f);
    return f * f * p;
}

static ALWAYS_INLINE float log_joined(float f, float k) {
    return fmadd(k, LN2_HI, f + fmadd(k, LN2_LO, log_rest(f)));
}

/* What log and log2 give outside the positive finite numbers, and y within. */
static ALWAYS_INLINE float log_edges(float x, float y) {
    y = choose(x < INFINITY, y, x);
    y = choose(x < 0.0f, NAN, y);
    return choose(x == 0.0f, -INFINITY, y);
}

static ALWAYS_INLINE float vlog(float x) {
    split s = log_split(x);
    return log_edges(x, log_joined(s.f, s.k));
}

static ALWAYS_INLINE float vlog2(float x) {
    const float LOG2E_LO = 0x1.4ae0c0p-26f;
    split s = log_split(x);
    float low = fmadd(log_rest(s.f), LOG2E, s.f * LOG2E_LO);
    return log_edges(x, fmadd(s.f, LOG2E, low) + s.k);
}

/* log(1 + x): where 1 + x is not scaled, f is x itself. Elsewhere the rounding of the sum left `rest`, which
 * changes the logarithm by rest / (1 + f); 1 - f + f^2 is close enough to 1 / (1 + f) for that. */
static ALWAYS_INLINE float vlog1p(float x) {
    float u = 1.0f + x;
    split s = log_split(u);
    float rest = choose(x < 1.0f, x - (u - 1.0f), 1.0f - (u - x));
    rest *= power_of_two(-(int32_t)choose(s.k < 60.0f, s.k, 60.0f)) * fmadd(s.f, s.f, 1.0f - s.f);
    int plain = s.k == 0.0f;
    float f = choose(plain, x, s.f);
    float low = fmadd(s.k, LN2_LO, log_rest(f)) + choose(plain, 0.0f, rest);
    float y = log_edges(u, fmadd(s.k, LN2_HI, f + low));
    return choose(x == 0.0f, x, y);
}

static ALWAYS_INLINE float vsoftplus(float x) {
    float e = times_scaled(1.0f, exp_scaled(-bounded_abs(x, 120.0f)));
    int large = e > 0x1.555556p-2f; /* then 1 + e = 2 * (1 + f) */
    float y = log_joined(choose(large, (e - 1.0f) * 0.5f, e), choose(large, 1.0f, 0.0f));
    return choose(x > 0.0f, x, 0.0f) + y;
}

/* ---- roots and rounding -------------------------------------------------------------------- */

static ALWAYS_INLINE float vsqrt(float x) {
    return __builtin_sqrtf(x);
}

/* The nearest integer, even where two are as near. */
static ALWAYS_INLINE float vround(float x) {
    float t = fabsf(x);
    return choose(t < 0x1p23f, copy_sign((t + 0x1p23f) - 0x1p23f, x), x);
}

static ALWAYS_INLINE float vfloor(float x) {
    float y = vround(x);
    return choose(y > x, y - 1.0f, y);
}

/* The nearest integer of a range, and 0 for NaN; no zero has a sign. */
static ALWAYS_INLINE float vwhole(float x, float least, float most) {
    float y = x > least ? x : least;
    y = vround(y < most ? y : most) + 0.0f;
    return x != x ? 0.0f : y;
}
static ALWAYS_INLINE float vi8(float x) {
    return vwhole(x, -128.0f, 127.0f);
}
static ALWAYS_INLINE float vu8(float x) {
    return vwhole(x, 0.0f, 255.0f);
}

/* ---- hyperbolic, logistic ------------------------------------------------------------------ */

/* n / (1 + e) for e from 0 to 1, corrected for the rounding of 1 + e: that is as much as a unit of the
 * last place of the result where e is small, which is where the correction is good. */
static ALWAYS_INLINE float over_one_plus(float n, float e) {
    float d = 1.0f + e, excess = (d - 1.0f) - e, y = n / d;
    return fmadd(y, excess, y);
}

/* With e = e^(-2|x|) the result is (1 - e) / (1 + e), or, better where that is above a half,
 * 1 - 2e / (1 + e). */
static ALWAYS_INLINE float vtanh(float x) {
    float v = -2.0f * bounded_abs(x, 10.0f);
    scaled p = exp_scaled(v);
    float s = power_of_two(p.k), e = fmadd(s, p.m, s), minus = fmadd(s, p.m, s - 1.0f);
    int large = v < -1.1f;
    float y = over_one_plus(choose(large, 2.0f * e, minus), e);
    return copy_sign(choose(large, 1.0f - y, y), x);
}

static ALWAYS_INLINE float vsigmoid(float x) {
    float e = times_scaled(1.0f, exp_scaled(-bounded_abs(x, 120.0f)));
    return over_one_plus(choose(x < 0.0f, e, 1.0f), e);
}

/* x / (1 + e^-v) given e^-|v|, where v has the sign of x, and t = |x| up to where the result is zero.
 * It is max(x, 0) - t * e^-|v| / (1 + e^-|v|). The product is scaled as a whole: it is representable
 * even where e^-|v| is not. At -inf the formula is inf/inf. */
static ALWAYS_INLINE float gated(float x, float t, scaled e) {
    float y = positive_part(x) - over_one_plus(times_scaled(t, e), times_scaled(1.0f, e));
    return choose(x < -FLT_MAX, NAN, y);
}

static ALWAYS_INLINE float vsilu(float x) {
    float t = bounded_abs(x, 120.0f);
    return gated(x, t, exp_scaled(-t));
}

/* 0.5 * (1 + tanh(u)) = 1 / (1 + e^-2u). The exponent is in double: its error counts in full. */
static ALWAYS_INLINE float vgelu_tanh(float x) {
    float t = bounded_abs(x, 11.5f);
    double d = t, y = d * fmadd64(-0x1.a5a7cf7572a98p-4, d * d, -0x1.26aec21bce759p+1);
    return gated(x, t, exp2_scaled64(y));
}

/* ---- error function ------------------------------------------------------------------------ */

/* An odd polynomial up to 0.92 (error 2^-30), beyond it 1 - e^-u with a polynomial u (2^-30). */
static ALWAYS_INLINE float verf(float x) {
    float s = x * x, p = POLYNOMIAL(s, 0x1.4fa938p-14f, -0x1.a61812p-11f, 0x1.544b08p-8f, -0x1.b80124p-6f,
                                    0x1.ce2d64p-4f, -0x1.812740p-2f, 0x1.06eba8p-3f);

    float t = bounded_abs(x, 3.95f);
    float u = POLYNOMIAL(t, 0x1.41676ep-17f, -0x1.415264p-12f, 0x1.d4ccf4p-9f, -0x1.8310bep-6f,
                         0x1.b28042p-4f, 0x1.453edep-1f, 0x1.076ce8p-3f);
    scaled e = exp_scaled(-fmadd(u, t, t));
    float large = copy_sign(1.0f - (1.0f + e.m) * power_of_two(e.k), x);
    return choose(t < 0.92f, fmadd(p, x, x), large);
}

/* x times the normal distribution q(x), which is max(x, 0) - t * q(-t) with t = |x|. Then
 * q(-t) = g(t) * e^(-t^2/2), where g is a polynomial over 1/(t + 1.5) with error 2^-26.6. To keep the
 * tail right t^2 is taken as the exact square of t's upper half plus the rest. */
static ALWAYS_INLINE float vgelu(float x) {
    float t = bounded_abs(x, 15.0f);
    float d = t + 1.5f, w = 1.0f / d, v = fmadd(-3.0f, w, 1.0f);
    float g = POLYNOMIAL(v, 0x1.3d1f14p-13f, 0x1.e690f6p-12f, 0x1.05b17ep-12f, -0x1.1076b8p-10f,
                         -0x1.63072cp-9f, -0x1.3f320ap-9f, 0x1.0549ccp-8f, 0x1.21056ep-6f, 0x1.2538c4p-6f,
                         -0x1.d700a4p-5f, -0x1.8f9054p-3f, 0x1.3c1440p-1f) *
              w;

    float high = bits_float(float_bits(t) & 0xfffff000u);
    float sum = fmadd(t * t, -0.5f * LOG2E, ROUND), k = sum - ROUND;
    float r = fmadd(k, -LN2_LO, fmadd(k, -LN2_HI, -0.5f * high * high));
    r = fmadd(-0.5f * (t - high), t + high, r);
    float m = expm1_reduced(r);
    float lost = fmadd(w, (d - 1.5f) - t, fmadd(-w, d, 1.0f)); /* by the rounding of d and of w */
    scaled e = {m + fmadd(m, lost, lost), rounded_int(sum)};
    float y = positive_part(x) - times_scaled(t * g, e);
    return choose(x < -FLT_MAX, NAN, y);
}

/* ---- circular functions -------------------------------------------------------------------- */

/* x = r + q * pi/2 with |r| <= pi/4. In double: q * PIO2_HI is exact up to |x| = 2^23 and a bit, so
 * r is right to its last place even beside a multiple of pi/2; past that the absolute error grows
 * as |x| * 2^-53, and from 2^51 on only the bound on r holds. */
typedef struct quadrant {
    float r;
    uint32_t q;
} quadrant;

static ALWAYS_INLINE quadrant reduce_angle(float x) {
    const double PIO2_HI = 0x1.921fb54p+0, PIO2_LO = 0x1.10b4611a62633p-30;
    double d = x, sum = fmadd64(d, 0x1.45f306dc9c883p-1, ROUND64), k = sum - ROUND64;
    float r = (float)fmadd64(k, -PIO2_LO, fmadd64(k, -PIO2_HI, d));
    return (quadrant){bounded(r, 0.7859f), (uint32_t)double_bits(sum)};
}

/* sin(r + q * pi/2); errors 2^-27.9 and 2^-33. */
static ALWAYS_INLINE float sin_quadrant(float r, uint32_t q) {
    float z = r * r;
    float s = fmadd(fmadd(-0x1.9952fap-13f, z, 0x1.110776p-7f), z, -0x1.555546p-3f);
    float c = fmadd(fmadd(0x1.99e902p-16f, z, -0x1.6c0c2ap-10f), z, 0x1.55554ap-5f);
    s = fmadd(s * z, r, r);
    c = fmadd(c, z * z, fmadd(-0.5f, z, 1.0f));
    return bits_float(float_bits(q & 1 ? c : s) ^ (q & 2) << 30);
}

/* Odd by construction, so that -0 stays -0. */
static ALWAYS_INLINE float vsin(float x) {
    quadrant a = reduce_angle(fabsf(x));
    return bits_float(float_bits(sin_quadrant(a.r, a.q)) ^ (float_bits(x) & 0x80000000u));
}

static ALWAYS_INLINE float vcos(float x) {
    quadrant a = reduce_angle(x);
    return sin_quadrant(a.r, a.q + 1);
}

/* ---- power --------------------------------------------------------------------------------- */

/* 2^(y * log2|x|), the exponent in double (error 2^-35.5 of the logarithm), with C's special cases.
 * An infinite y becomes a large one, so that powers of one stay one; zero, infinity and NaN as x
 * come in as the logarithm's exponent. */
static ALWAYS_INLINE float vpow(float x, float y) {
    y = bounded(y, FLT_MAX);
    float ax = fabsf(x);
    split l = log_split(ax);
    l.k = choose(ax == 0.0f, -INFINITY, l.k);
    l.k = choose(ax < INFINITY, l.k, ax);
    double f = l.f, s = f / (2.0 + f), z = s * s;
    double p = 0x1.64bbf441dcb93p-2;
    p = fmadd64(p, z, 0x1.a513b316ea910p-2);
    p = fmadd64(p, z, 0x1.2778a460720c9p-1);
    p = fmadd64(p, z, 0x1.ec709b5afc055p-1);
    p = fmadd64(p, z, 0x1.71547652d7b74p+1);
    double e = y * fmadd64(p, s, l.k);
    e = e < -180.0 ? -180.0 : e;
    e = e > 150.0 ? 150.0 : e;
    float r = times_scaled(1.0f, exp2_scaled64(e));

    float half = 0.5f * y, whole = vfloor(y), invalid = choose(whole == y, -0.0f, NAN);
    uint32_t odd = vfloor(half) == half ? 0u : 0x80000000u;
    odd = whole == y ? odd : 0u;
    r = bits_float(float_bits(r) | (float_bits(x) & odd));
    r = choose((x < 0.0f) & (x >= -FLT_MAX), r + invalid, r);
    r = choose(y == 0.0f, 1.0f, r);
    return choose(x == 1.0f, 1.0f, r);
}

#endif
