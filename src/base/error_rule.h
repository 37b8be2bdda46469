/* error_rule.h: how far a result may be from the f64 reference; the command and the tests ask here.
 *
 *     max|out - ref| <= 2 max(|naive - ref|, spread) + floor * max|ref|
 *
 * The naive computation may be right by luck where results are few: the largest error of one scalar is just
 * one error. So there is a floor that follows from the arithmetic alone. Relative to the result it is
 *   - a rounding to the coarsest type that a value on the way is stored in,
 *   - the worst of a function in f32, to which tests/test_strips.c holds them: 4.5 ulp, of 2^-23 each,
 *   - what a sum of so many terms loses in f32: roundings of 2^-24 that are as often up as down add up to the
 *     square root of their number.
 *
 * Where large terms cancel, that is little beside what their roundings leave: a gradient that is exactly 0 in
 * the naive computation may be 1e-8 in another. So where a result is beyond the rest, the *spread* is asked
 * for, which is 0 elsewhere: how far the reference itself moves when each of its values is moved up or down
 * by the floor, at random, the most of EPI_SPREAD_SAMPLES times. */
#ifndef EPI_BASE_ERROR_RULE_H
#define EPI_BASE_ERROR_RULE_H

#include <math.h>

static inline double epi_error_floor(double unit, double terms) {
    return unit + 4.5 * 0x1p-23 + 0x1p-24 * sqrt(terms);
}

enum { EPI_SPREAD_SAMPLES = 8 };

static inline double epi_error_bound(double naive, double spread, double scale, double floor) {
    return 2 * fmax(naive, spread) + floor * scale;
}

#endif
