/* pack_move.c: transposes, zips and conversions in vectors of 16 bytes, which every target has or the
 * compiler emulates.
 *
 * If the number of rows is not a multiple of the vector length, the last vector starts early and writes some
 * results twice, with the same values. */
#include "cpu/product/pack_move.h"

#include <string.h>

#include "cpu/micro/micro_internal.h"

typedef uint32_t v4u32 __attribute__((vector_size(16)));
typedef float v4f32 __attribute__((vector_size(16)));
typedef uint16_t v4u16 __attribute__((vector_size(8)));
typedef uint16_t v8u16 __attribute__((vector_size(16)));

enum { WORDS = 4, ROWS = EPI_PACK_ZIP }; /* 32-bit units, and 16-bit elements, of a vector */

static inline v4u32 load4(const void *row, size_t at) {
    v4u32 x;
    memcpy(&x, (const char *)row + at, sizeof x);
    return x;
}

static inline void store4(char *dst, v4u32 x) {
    memcpy(dst, &x, sizeof x);
}

/* Four units of four rows; the results are `stride` bytes apart. */
static inline void transpose4x4(char *dst, size_t stride, const void *const row[], size_t at) {
    const v4u32 x0 = load4(row[0], at), x1 = load4(row[1], at);
    const v4u32 x2 = load4(row[2], at), x3 = load4(row[3], at);
    const v4u32 lo01 = __builtin_shufflevector(x0, x1, 0, 4, 1, 5);
    const v4u32 hi01 = __builtin_shufflevector(x0, x1, 2, 6, 3, 7);
    const v4u32 lo23 = __builtin_shufflevector(x2, x3, 0, 4, 1, 5);
    const v4u32 hi23 = __builtin_shufflevector(x2, x3, 2, 6, 3, 7);
    store4(dst, __builtin_shufflevector(lo01, lo23, 0, 1, 4, 5));
    store4(dst + stride, __builtin_shufflevector(lo01, lo23, 2, 3, 6, 7));
    store4(dst + 2 * stride, __builtin_shufflevector(hi01, hi23, 0, 1, 4, 5));
    store4(dst + 3 * stride, __builtin_shufflevector(hi01, hi23, 2, 3, 6, 7));
}

/* Units that a single move carries. Inlined for each size, which makes it a constant. */
static inline void transpose_moves(char *dst, const void *const row[], size_t rows, size_t from, size_t units,
                                   size_t unit) {
    for (size_t i = 0; i < rows; i++)
        for (size_t u = from; u < units; u++)
            memcpy(dst + (u * rows + i) * unit, (const char *)row[i] + u * unit, unit);
}

/* Goes in strips of a few units of depth: writing stays within a few lines, and the rows, which in
 * a matrix whose width is a power of two all fall into one set of the cache, are done with a strip
 * before they push each other out. */
static void transpose_words(char *dst, const void *const row[], size_t rows, size_t units) {
    const size_t word = sizeof(uint32_t), whole = units - units % WORDS;
    for (size_t strip = 0; strip < whole; strip += 4 * WORDS) {
        const size_t end = strip + 4 * WORDS < whole ? strip + 4 * WORDS : whole;
        for (size_t i = 0; i < rows; i += WORDS) {
            const size_t first = i + WORDS <= rows ? i : rows - WORDS;
            for (size_t u = strip; u < end; u += WORDS)
                transpose4x4(dst + (u * rows + first) * word, rows * word, row + first, u * word);
        }
    }
    transpose_moves(dst, row, rows, whole, units, word);
}

void epi_pack_transpose(void *dst, const void *const row[], int rows, int units, size_t unit) {
    const size_t r = (size_t)rows, n = (size_t)units;
    switch (unit) {
    case 4: transpose_words(dst, row, r, n); break;
    case 8: transpose_moves(dst, row, r, 0, n, 8); break;
    default: transpose_moves(dst, row, r, 0, n, 64); break;
    }
}

/* Transposes 2, 4 or 8 columns of 8 elements: shuffles the first half of the vectors into the
 * second, once per doubling. Inlined, so that the number of columns is a constant. */
static inline __attribute__((always_inline)) void
zip_eight(uint16_t *dst, size_t stride, const void *const column[], size_t at, const size_t columns) {
    v8u16 x[ROWS], y[ROWS];
    EPI_UNROLL for (size_t k = 0; k < columns; k++) {
        memcpy(&x[k], (const uint16_t *)column[k] + at, sizeof x[k]);
    }
    EPI_UNROLL for (size_t step = 1; step < columns; step *= 2) {
        EPI_UNROLL for (size_t k = 0; k < columns / 2; k++) {
            const v8u16 a = x[k], b = x[k + columns / 2];
            y[2 * k] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
            y[2 * k + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
        }
        EPI_UNROLL for (size_t k = 0; k < columns; k++) x[k] = y[k];
    }
    EPI_UNROLL for (size_t k = 0; k < columns; k++) memcpy(dst + k * stride, &x[k], sizeof x[k]);
}

void epi_pack_zip(void *dst, const void *const column[], int rows, int columns) {
    const size_t r = (size_t)rows, q = (size_t)columns;
    for (size_t i = 0; i < r; i += ROWS) {
        const size_t at = i + ROWS <= r ? i : r - ROWS;
        uint16_t *out = (uint16_t *)dst + at * q;
        switch (q) {
        case 2: zip_eight(out, ROWS, column, at, 2); break;
        case 4: zip_eight(out, ROWS, column, at, 4); break;
        default:
            for (size_t k = 0; k < q; k += ROWS)
                zip_eight(out + k, q, column + k, at, ROWS);
        }
    }
}

void epi_pack_copy(void *dst, const void *const column[], int rows, int columns) {
    const size_t vector = sizeof(v4u32), bytes = (size_t)rows * sizeof(float), whole = bytes - bytes % vector;
    for (char *out = dst, *end = out + (size_t)columns * bytes; out < end; out += bytes, column++) {
        const char *in = *column;
        for (size_t i = 0; i < whole; i += vector)
            memcpy(out + i, in + i, vector);
        for (size_t i = whole; i < bytes; i += sizeof(float))
            memcpy(out + i, in + i, sizeof(float));
    }
}

static inline v4u32 widen_bf16(v4u32 x) {
    return x << 16;
}

/* The exponent moves from bias 15 to bias 127; infinities and NaN move on to the top exponent.
 * Subnormals gain a hidden one, which the subtraction takes away again: no f32 subnormal arises on
 * the way, as those are slow or flushed on some machines. */
static inline v4u32 widen_f16(v4u32 x) {
    const uint32_t top = 0x0f800000, rebias = (127 - 15) << 23, hidden = 1 << 23;
    const v4u32 bits = (x & 0x7fff) << 13, exponent = bits & top;
    const v4u32 special = (v4u32)(exponent == top), tiny = (v4u32)(exponent == 0);
    const v4u32 moved = bits + rebias + (special & rebias) + (tiny & hidden);
    const v4f32 value = (v4f32)moved - (v4f32)(tiny & (rebias + hidden));
    return (v4u32)value | (x & 0x8000) << 16;
}

/* Four elements at a time; fewer than that by way of a full vector. */
static inline void widen(float *dst, const uint16_t *src, int64_t n, v4u32 (*each)(v4u32)) {
    v4u16 x = {0};
    v4u32 y;
    for (int64_t i = 0; i < n && n >= WORDS; i += WORDS) {
        const int64_t at = i + WORDS <= n ? i : n - WORDS;
        memcpy(&x, src + at, sizeof x);
        y = each(__builtin_convertvector(x, v4u32));
        memcpy(dst + at, &y, sizeof y);
    }
    if (n < WORDS) {
        memcpy(&x, src, (size_t)n * sizeof *src);
        y = each(__builtin_convertvector(x, v4u32));
        memcpy(dst, &y, (size_t)n * sizeof *dst);
    }
}

void epi_widen_bf16(float *dst, const uint16_t *src, int64_t n) {
    widen(dst, src, n, widen_bf16);
}

void epi_widen_f16(float *dst, const uint16_t *src, int64_t n) {
    widen(dst, src, n, widen_f16);
}
