/* strip_convert.h: converts elements between their storage type and f32, one at a time or as many as the
 * hardware converts at once.
 *
 * Only strips.c includes this. Each storage type has a getter and a putter for one element, without
 * branches, so that a unit-stride loop over it vectorises. f16 uses the CPU's own conversion if there is
 * one, which gives the same bits.
 */
#ifndef EPI_CPU_STRIP_CONVERT_H
#define EPI_CPU_STRIP_CONVERT_H

#include "cpu/rows/strip_loop.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

static inline float bf16_float(uint16_t h) {
    return bits_float((uint32_t)h << 16);
}

static inline uint16_t float_bf16(float x) {
    uint32_t u = float_bits(x);
    uint32_t rounded = u + 0x7fffu + (u >> 16 & 1u);
    return (uint16_t)((x != x ? u | 0x400000u : rounded) >> 16);
}

static inline float f16_float(uint16_t h) {
    uint32_t e = (h & 0x7fffu) << 13, sign = (h & 0x8000u) << 16;
    uint32_t normal = e + (112u << 23);
    uint32_t small = float_bits(bits_float(e + (113u << 23)) - 0x1p-14f);
    uint32_t special = e | 0x7f800000u | (e > 0x0f800000u ? 0x400000u : 0u);
    uint32_t u = e < 0x00800000u ? small : normal;
    return bits_float((e < 0x0f800000u ? u : special) | sign);
}

/* Adding 0.5 to a number too small for a normal f16 leaves its rounded multiple of 2^-24 in the low
 * bits. A normal one that rounds past the largest becomes infinity by the carry. */
static inline uint16_t float_f16(float x) {
    uint32_t u = float_bits(x), a = u & 0x7fffffffu;
    uint32_t normal = (a - (112u << 23) + 0xfffu + (a >> 13 & 1u)) >> 13;
    uint32_t small = float_bits(bits_float(a) + 0.5f) - 0x3f000000u;
    uint32_t special = a > 0x7f800000u ? 0x7e00u | (a >> 13 & 0x3ffu) : 0x7c00u;
    uint32_t h = a < (113u << 23) ? small : normal;
    return (uint16_t)((a < (143u << 23) ? h : special) | (u >> 16 & 0x8000u));
}

/* An 8-bit float has its sign, its exponent and its first digits where f32 has them, but for the shift and the
 * exponents' offset. Below the normal ones, digits count multiples of the smallest number. NaN is all ones. */
static inline float e4m3_float(uint8_t b) {
    uint32_t e = (b & 0x7fu) << 20, sign = (b & 0x80u) << 24;
    uint32_t small = float_bits(bits_float(e + (121u << 23)) - 0x1p-6f);
    uint32_t u = e < 0x00800000u ? small : e + (120u << 23);
    return bits_float((e == 0x07f00000u ? 0x7fc00000u : u) | sign);
}
static inline uint8_t float_e4m3(float x) {
    float y = ve4m3(x);
    uint32_t u = float_bits(y), a = u & 0x7fffffffu;
    uint32_t small = float_bits(bits_float(a) + 0x1p14f) - 0x46800000u, normal = (a - (120u << 23)) >> 20;
    uint32_t b = a < (121u << 23) ? small : normal;
    return (uint8_t)((a > 0x7f800000u ? 0x7fu : b) | (u >> 24 & 0x80u));
}

static inline float e5m2_float(uint8_t b) {
    return f16_float((uint16_t)(b << 8));
}
static inline uint8_t float_e5m2(float x) {
    float y = ve5m2(x);
    uint32_t u = float_bits(y), a = u & 0x7fffffffu;
    uint32_t small = float_bits(bits_float(a) + 0x1p7f) - 0x43000000u, normal = (a - (112u << 23)) >> 21;
    uint32_t b = a < (113u << 23) ? small : normal, special = a > 0x7f800000u ? 0x7fu : 0x7cu;
    return (uint8_t)((a < 0x7f800000u ? b : special) | (u >> 24 & 0x80u));
}

static inline int32_t float_i32(float x) {
    float y = vround(x);
    y = y < -0x1p31f ? -0x1p31f : y;
    y = y > 0x1.fffffep30f ? 0x1.fffffep30f : y;
    int32_t i = (int32_t)(x != x ? 0.0f : y);
    return x >= 0x1p31f ? INT32_MAX : i;
}

/* Nothing between 2^63 - 2^39, the largest f32 below the range's end, and 2^63 is a f32. */
static inline int64_t float_i64(float x) {
    float y = vround(x);
    y = y < -0x1p63f ? -0x1p63f : y;
    y = y > 0x1.fffffep62f ? 0x1.fffffep62f : y;
    int64_t i = (int64_t)(x != x ? 0.0f : y);
    return x >= 0x1p63f ? INT64_MAX : i;
}

/* Of every storage type: one element as a f32, and back. */
#define EPI_TYPE(id, text, bytes, is, file, map, element, from, to) \
    static inline float get_##id(const void *p, ptrdiff_t i) { \
        element x = ((const element *)p)[i]; \
        return from; \
    } \
    static inline void put_##id(void *p, ptrdiff_t i, float x) { \
        ((element *)p)[i] = to; \
    }
#include "base/dtype.def"

/* As many f16 as the CPU converts at once. */
#if defined(__AVX512F__)
enum { F16_AT_ONCE = 16 };
static inline void f16_load_some(float *dst, const uint16_t *src) {
    _mm512_storeu_ps(dst, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)src)));
}
static inline void f16_store_some(uint16_t *dst, const float *src) {
    _mm256_storeu_si256((__m256i *)dst, _mm512_cvtps_ph(_mm512_loadu_ps(src), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__)
enum { F16_AT_ONCE = 8 };
static inline void f16_load_some(float *dst, const uint16_t *src) {
    _mm256_storeu_ps(dst, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)src)));
}
static inline void f16_store_some(uint16_t *dst, const float *src) {
    _mm_storeu_si128((__m128i *)dst, _mm256_cvtps_ph(_mm256_loadu_ps(src), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__aarch64__)
enum { F16_AT_ONCE = 4 };
static inline void f16_load_some(float *dst, const uint16_t *src) {
    vst1q_f32(dst, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(src))));
}
static inline void f16_store_some(uint16_t *dst, const float *src) {
    vst1_u16(dst, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(src))));
}
#else
enum { F16_AT_ONCE = 1 };
static inline void f16_load_some(float *dst, const uint16_t *src) {
    *dst = f16_float(*src);
}
static inline void f16_store_some(uint16_t *dst, const float *src) {
    *dst = float_f16(*src);
}
#endif

static ALWAYS_INLINE void load_each(float (*get)(const void *, ptrdiff_t), float *dst, const void *src,
                                    ptrdiff_t stride, int64_t n) {
    if (stride == 1) {
        VECTOR_LOOP
        for (int64_t j = 0; j < n; j++)
            dst[j] = get(src, j);
    } else {
        for (int64_t j = 0; j < n; j++)
            dst[j] = get(src, j * stride);
    }
}

static ALWAYS_INLINE void store_each(void (*put)(void *, ptrdiff_t, float), void *dst, ptrdiff_t stride,
                                     const float *src, int64_t n) {
    if (stride == 1) {
        VECTOR_LOOP
        for (int64_t j = 0; j < n; j++)
            put(dst, j, src[j]);
    } else {
        for (int64_t j = 0; j < n; j++)
            put(dst, j * stride, src[j]);
    }
}

/* How many of n elements the CPU converts some at once. */
static inline int64_t converted_at_once(epi_dtype type, ptrdiff_t stride, int64_t n) {
    return type == EPI_F16 && stride == 1 ? n - n % F16_AT_ONCE : 0;
}

static void load(float *dst, const void *src, epi_dtype type, ptrdiff_t stride, int64_t n) {
    int64_t first = converted_at_once(type, stride, n);
    for (int64_t j = 0; j < first; j += F16_AT_ONCE)
        f16_load_some(dst + j, (const uint16_t *)src + j);
    src = (const uint16_t *)src + first;
    switch (type) {
#define EPI_TYPE(id, ...) \
    case EPI_##id: \
        load_each(get_##id, dst + first, src, stride, n - first); \
        break;
#include "base/dtype.def"
    case EPI_DTYPE_COUNT: break;
    }
}

static void store(void *dst, epi_dtype type, ptrdiff_t stride, const float *src, int64_t n) {
    int64_t first = converted_at_once(type, stride, n);
    for (int64_t j = 0; j < first; j += F16_AT_ONCE)
        f16_store_some((uint16_t *)dst + j, src + j);
    dst = (uint16_t *)dst + first;
    switch (type) {
#define EPI_TYPE(id, ...) \
    case EPI_##id: \
        store_each(put_##id, dst, stride, src + first, n - first); \
        break;
#include "base/dtype.def"
    case EPI_DTYPE_COUNT: break;
    }
}

/* ---- non-temporal stores ---- */

enum { LINE = 64 };

#if defined(__x86_64__)
enum { NONTEMPORAL = 1 };

#if defined(__AVX512F__)
static inline void nontemporal_line(unsigned char *dst, const unsigned char *src) {
    _mm512_stream_si512((void *)dst, _mm512_loadu_si512(src));
}
#else
static inline void nontemporal_line(unsigned char *dst, const unsigned char *src) {
    for (int i = 0; i < LINE; i += 16)
        _mm_stream_si128((void *)(dst + i), _mm_loadu_si128((const void *)(src + i)));
}
#endif

static inline void nontemporal_lines(unsigned char *dst, const unsigned char *src, int64_t bytes) {
    for (int64_t b = 0; b < bytes; b += LINE)
        nontemporal_line(dst + b, src + b);
}

/* Whole lines of the destination; what is left at both ends is stored plainly. */
static void store_nontemporal(void *dst, epi_dtype type, const float *src, int64_t n) {
    unsigned char buf[STRETCH * sizeof(double)], *to = dst;
    int64_t size = (int64_t)epi_dtype_size(type), per_line = LINE / size;
    int64_t head = (int64_t)(-(uintptr_t)dst % LINE) / size;
    head = head < n ? head : n;
    store(to, type, 1, src, head);
    for (int64_t j = head; j < n;) {
        int64_t m = n - j < STRETCH ? n - j : STRETCH, whole = m - m % per_line;
        if (!whole) {
            store(to + j * size, type, 1, src + j, m);
            break;
        }
        const unsigned char *from = type == EPI_F32 ? (const unsigned char *)(src + j) : buf;
        if (type != EPI_F32)
            store(buf, type, 1, src + j, whole);
        nontemporal_lines(to + j * size, from, whole * size);
        j += whole;
    }
}
static void settle(void) {
    _mm_sfence();
}
#else
enum { NONTEMPORAL = 0 };

static inline void nontemporal_lines(unsigned char *dst, const unsigned char *src, int64_t bytes) {
    memcpy(dst, src, (size_t)bytes);
}
static void store_nontemporal(void *dst, epi_dtype type, const float *src, int64_t n) {
    store(dst, type, 1, src, n);
}
static void settle(void) {}
#endif

#endif
