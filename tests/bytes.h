/* bytes.h: the types of 8 bits, written out a second time, by definition and slowly. */
#ifndef EPI_TESTS_BYTES_H
#define EPI_TESTS_BYTES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "epilog.h"

static inline float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline bool is_byte(epi_dtype type) {
    return type == EPI_E4M3 || type == EPI_E5M2 || type == EPI_I8 || type == EPI_U8;
}

/* What a byte of a type of 8 bits means, by the definition of the type. */
static inline double byte_value(epi_dtype type, unsigned byte) {
    int digits = type == EPI_E4M3 ? 3 : 2, bias = type == EPI_E4M3 ? 7 : 15;
    int e = (int)(byte & 127) >> digits, m = (int)byte & ((1 << digits) - 1);
    if (type == EPI_I8 || type == EPI_U8)
        return type == EPI_I8 && byte > 127 ? (double)byte - 256 : (double)byte;
    double v = e ? ldexp((1 << digits) + m, e - bias - digits) : ldexp(m, 1 - bias - digits);
    if (type == EPI_E4M3 ? (byte & 127) == 127 : e == 31)
        v = type == EPI_E4M3 || m ? NAN : INFINITY;
    return byte > 127 ? -v : v;
}

/* The byte of a number, found between its neighbours: the nearest finite one, of two the even one. An infinity has its own
 * where the type has such, and is the largest number otherwise; NaN is all ones, and 0 as an integer. */
static inline unsigned value_byte(epi_dtype type, double x) {
    bool whole = type == EPI_I8 || type == EPI_U8, negative = signbit(x) != 0;
    if (isnan(x))
        return whole ? 0 : negative ? 0xff : 0x7f;
    if (isinf(x) && type == EPI_E5M2)
        return negative ? 0xfc : 0x7c;
    if (whole)
        return (unsigned)(int)rint(fmin(fmax(x, type == EPI_I8 ? -128 : 0), type == EPI_I8 ? 127 : 255)) &
               255;
    unsigned low = 0, high = type == EPI_E4M3 ? 0x7e : 0x7b; /* the finite ones grow with their bytes */
    x = fabs(x);
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        *(byte_value(type, middle) <= x ? &low : &high) = middle;
    }
    double below = x - byte_value(type, low), above = byte_value(type, high) - x;
    return (above < below || (above == below && low % 2) ? high : low) | (negative ? 0x80 : 0);
}

#endif
