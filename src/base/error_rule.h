/* error_rule.h: how far a result may be from the f64 reference; the command and the tests ask here.
 *
 *     max|out - ref| <= 2 max|naive - ref| + floor * max|ref|
 *
 * The naive computation may be right by luck where results are few: the largest error of one scalar is just
 * one error. So there is a floor that follows from the arithmetic alone. Relative to the result it is
 *   - a rounding to the coarsest type that a value on the way is stored in,
 *   - the worst of a function in f32, to which tests/test_strips.c holds them: 4.5 ulp, of 2^-23 each,
 *   - what a sum of so many terms loses in f32: roundings of 2^-24 that are as often up as down add up to the
 *     square root of their number. */
#ifndef EPI_BASE_ERROR_RULE_H
#define EPI_BASE_ERROR_RULE_H

#include <math.h>

static inline double epi_error_floor(double unit, double terms) {
    return unit + 4.5 * 0x1p-23 + 0x1p-24 * sqrt(terms);
}

static inline double epi_error_bound(double naive, double scale, double floor) {
    return 2 * naive + floor * scale;
}

#endif
