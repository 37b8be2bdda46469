/* bytes.h: the types of 8 bits, written out a second time, by definition and slowly. */
#ifndef EPI_TESTS_BYTES_H
#define EPI_TESTS_BYTES_H

#include <math.h>
#include <stdbool.h>

#include "epilog.h"

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

/* The byte of a number, found among all: the nearest finite one, of two the even one. An infinity has its own where
 * the type has such, and is the largest number otherwise; NaN is all ones, and 0 as an integer. */
static inline unsigned value_byte(epi_dtype type, double x) {
    bool whole = type == EPI_I8 || type == EPI_U8, negative = signbit(x) != 0;
    unsigned best = 0;
    double least = INFINITY;
    if (isnan(x))
        return whole ? 0 : negative ? 0xff : 0x7f;
    if (isinf(x) && type == EPI_E5M2)
        return negative ? 0xfc : 0x7c;
    x = fmin(fmax(x, -1e6), 1e6);
    for (unsigned byte = 0; byte < 256; byte++) {
        double v = byte_value(type, byte), far = fabs(v - x);
        bool other = !whole && (byte > 127) != negative; /* -0 is not 0 */
        if (!isfinite(v) || other || far > least || (far == least && byte % 2))
            continue;
        least = far;
        best = byte;
    }
    return best;
}

#endif
