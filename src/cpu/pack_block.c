/* pack_block.c: transposes, zips and widenings in vectors of 16 bytes, which every target has or
 * the compiler makes up.
 *
 * Where the number of rows is not a multiple of a vector's, the last vector starts early and
 * writes some results a second time, the same ones. */
#include "cpu/pack_block.h"

#include <string.h>

typedef uint32_t v4u32 __attribute__((vector_size(16)));
typedef uint16_t v8u16 __attribute__((vector_size(16)));

enum { UNITS = 4, ROWS = 8 }; /* of a block of 32-bit units; of a vector of 16-bit elements */

static inline v4u32 load4(const void *row, size_t at) {
    v4u32 x;
    memcpy(&x, (const char *)row + at, sizeof x);
    return x;
}

static inline void store4(char *dst, v4u32 x) { memcpy(dst, &x, sizeof x); }

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
static inline void transpose_moves(char *dst, const void *const row[], size_t rows, size_t from,
                                   size_t units, size_t unit) {
    for (size_t i = 0; i < rows; i++)
        for (size_t u = from; u < units; u++)
            memcpy(dst + (u * rows + i) * unit, (const char *)row[i] + u * unit, unit);
}

/* Goes in strips of a few units of depth: writing stays within a few lines, and the rows, which in
 * a matrix whose width is a power of two all fall into one set of the cache, are done with a strip
 * before they push each other out. */
static void transpose_words(char *dst, const void *const row[], size_t rows, size_t units) {
    const size_t word = sizeof(uint32_t), whole = units - units % UNITS;
    for (size_t strip = 0; strip < whole; strip += 2 * UNITS) {
        const size_t end = strip + UNITS < whole ? strip + 2 * UNITS : whole;
        for (size_t i = 0; i < rows; i += UNITS) {
            const size_t first = i + UNITS <= rows ? i : rows - UNITS;
            for (size_t u = strip; u < end; u += UNITS)
                transpose4x4(dst + (u * rows + first) * word, rows * word, row + first, u * word);
        }
    }
    transpose_moves(dst, row, rows, whole, units, word);
}

void epi_block_transpose(void *dst, const void *const row[], int rows, int units, size_t unit) {
    const size_t r = (size_t)rows, n = (size_t)units;
    switch (unit) {
    case 4: transpose_words(dst, row, r, n); break;
    case 8: transpose_moves(dst, row, r, 0, n, 8); break;
    default: transpose_moves(dst, row, r, 0, n, 64); break;
    }
}

/* Transposes `columns` columns (2, 4 or 8) of 8 elements by shuffling the first half of the
 * vectors into the second, once per doubling. */
static inline void zip_block(uint16_t *dst, size_t stride, const uint16_t *const column[], size_t columns,
                             size_t at) {
    v8u16 x[ROWS], y[ROWS];
    for (size_t k = 0; k < columns; k++)
        memcpy(&x[k], column[k] + at, sizeof x[k]);
    for (size_t step = columns; step > 1; step /= 2) {
        for (size_t k = 0; k < columns / 2; k++) {
            v8u16 a = x[k], b = x[k + columns / 2];
            y[2 * k] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
            y[2 * k + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
        }
        memcpy(x, y, sizeof x);
    }
    for (size_t k = 0; k < columns; k++)
        memcpy(dst + k * stride, &x[k], sizeof x[k]);
}

void epi_block_zip(uint16_t *dst, const uint16_t *const column[], int rows, int columns) {
    const size_t r = (size_t)rows, q = (size_t)columns;
    for (size_t i = 0; i < r; i += ROWS) {
        size_t at = i + ROWS <= r ? i : r - ROWS;
        uint16_t *out = dst + at * q;
        switch (q) {
        case 2: zip_block(out, ROWS, column, 2, at); break;
        case 4: zip_block(out, ROWS, column, 4, at); break;
        default:
            for (size_t k = 0; k < q; k += ROWS)
                zip_block(out + k, q, column + k, ROWS, at);
        }
    }
}

static inline float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

void epi_widen_bf16(float *dst, const uint16_t *src, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        dst[i] = float_of_bits((uint32_t)src[i] << 16);
}

/* The exponent moves from bias 15 to bias 127; infinities and NaN move on to the top exponent.
 * Subnormals gain a hidden one, which the subtraction takes away again: no f32 subnormal arises on
 * the way, as those are slow or flushed on some machines. */
void epi_widen_f16(float *dst, const uint16_t *src, int64_t n) {
    const uint32_t top = 0x0f800000, rebias = (127 - 15) << 23, hidden = 1 << 23;
    for (int64_t i = 0; i < n; i++) {
        uint32_t sign = (uint32_t)(src[i] & 0x8000) << 16, bits = (uint32_t)(src[i] & 0x7fff) << 13;
        uint32_t exponent = bits & top;
        uint32_t extra = exponent == top ? rebias : exponent == 0 ? hidden : 0;
        float drop = exponent == 0 ? float_of_bits(rebias + hidden) : 0.0f;
        float magnitude = float_of_bits(bits + rebias + extra) - drop;
        uint32_t word;
        memcpy(&word, &magnitude, sizeof word);
        dst[i] = float_of_bits(word | sign);
    }
}
