/* error_rule.h: how far a result may be from the f64 reference. The command and the tests use this rule.
 *
 *     max|out - ref| <= 2 max(|naive - ref|, spread) + floor * max|ref|
 *
 * With few results the naive computation may be right by luck: the largest error of one scalar is just one
 * error. So there is a floor, which follows from the arithmetic alone. Relative to the result it consists of
 *   - a rounding to the coarsest type in which a value on the way is stored;
 *   - the largest error of a function in f32: 4.5 ulp of 2^-23 each, which tests/test_strips.c checks;
 *   - the error of a sum of n terms in f32: roundings of 2^-24, up as often as down, add up to sqrt(n) of
 *     them.
 *
 * If large terms cancel, the floor is small compared with what their roundings leave: a gradient that is
 * exactly 0 in the naive computation may be 1e-8 in another. So the *spread* is computed for a result that
 * breaks the rule without it; otherwise it is 0. It is the distance that the reference moves if each of its
 * values is moved up or down at random by the floor: the largest of EPI_SPREAD_SAMPLES tries. */
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
