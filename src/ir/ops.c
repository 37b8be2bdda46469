/* ops.c: the columns of ops.def as tables and functions. */
#include "ir/ops.h"

#include <math.h>

/* The formatter takes the line after a continued macro for a directive. */
/* clang-format off */
const epi_op_row epi_ops[EPI_OP_COUNT + 1] = {
#define IS(...) __VA_ARGS__
#define EPI_MAP1(id, text, is, ref, strip, cuda, da) \
    {#id, text, EPI_CLASS_MAP, 1, EPI_ELEMENTWISE, EPI_FROM_ONE, cuda, .derivative = {da, 0, 0}, is},
#define EPI_MAP2(id, text, is, ref, strip, cuda, da, db) \
    {#id, text, EPI_CLASS_MAP, 2, EPI_ELEMENTWISE, EPI_FROM_ONE, cuda, .derivative = {da, db, 0}, is},
#define EPI_MAP3(id, text, is, ref, strip, cuda, da, db, dc) \
    {#id, text, EPI_CLASS_MAP, 3, EPI_ELEMENTWISE, EPI_FROM_ONE, cuda, .derivative = {da, db, dc}, is},
#define EPI_REDUCE(id, text, is, identity, combine, cuda, da) \
    {#id, text, EPI_CLASS_REDUCE, 1, EPI_FOLDS, EPI_FROM_ALL, cuda, .derivative = {da, 0, 0}, is},
#define EPI_SPLIT(id, text, is, arity, da) \
    {#id, text, EPI_CLASS_SPLIT, arity, EPI_MOVES, EPI_FROM_ONE, "", .derivative = {da, da, 0}, is},
#define EPI_PRODUCT(id, text, is, arity, da, db) \
    {#id, text, EPI_CLASS_PRODUCT, arity, EPI_FOLDS, EPI_FROM_ALL, "", .derivative = {da, db, 0}, is},
#define EPI_LEAF(id, text, is) {#id, text, EPI_CLASS_LEAF, 0, EPI_WHOLE, EPI_FROM_NONE, .cuda = "", is},
#define EPI_MOVE(id, text, is, arity, along, da, db, dc) \
    {#id, text, EPI_CLASS_MOVE, arity, along, EPI_FROM_ANY, "", .derivative = {da, db, dc}, is},
#define EPI_SORT(id, text, is) \
    {#id, text, EPI_CLASS_SORT, 1, EPI_WHOLE, EPI_FROM_ANY, "", .derivative = {"", 0, 0}, is},
#define EPI_SCAN(id, text, is, da, db) \
    {#id, text, EPI_CLASS_SCAN, 2, EPI_WHOLE, EPI_FROM_ANY, "", .derivative = {da, db, 0}, is},
#define EPI_VIEW(id, text, is, arity, da) \
    {#id, text, EPI_CLASS_VIEW, arity, EPI_MOVES, EPI_FROM_ONE, "", .derivative = {da, "", 0}, is},
#define EPI_RANDOM(id, text, is, da) \
    {#id, text, EPI_CLASS_RANDOM, 1, EPI_WHOLE, EPI_FROM_NONE, "", .derivative = {da, 0, 0}, is},
#define EPI_SHIFT(id, text, is, da) \
    {#id, text, EPI_CLASS_SHIFT, 1, EPI_MOVES, EPI_FROM_ANY, "", .derivative = {da, 0, 0}, is},
#include "ir/ops.def"
    {"", "", .cls = EPI_CLASS_LEAF, .from = EPI_FROM_NONE}, /* no operation */
};

/* The two bf16 neighbours of x lie a unit apart; the first 16 bits of u say from which fraction of it on the
 * one away from zero is taken. */
static double dither(double x, double u) {
    int e;
    if (!isfinite(x))
        return x;
    frexp(x, &e);
    double unit = ldexp(1, (e < -125 ? -125 : e) - 8), units = fabs(x) / unit, low = floor(units);
    double chance = floor(fmin(fmax(u * 65536, 0), 65535)) / 65536;
    double rounded = (low + (units - low + chance >= 1 ? 1 : 0)) * unit;
    return copysign(rounded < 0x1p128 ? rounded : INFINITY, x);
}

/* The nearest number of so many binary digits, of two the even one; no digit is less than 2^least. What is more
 * than `most` becomes `beyond`, and infinity `infinite`. */
static double near(double x, int digits, int least, double most, double beyond, double infinite) {
    int e;
    if (!isfinite(x))
        return isnan(x) ? x : copysign(infinite, x);
    frexp(x, &e);
    int unit = e - digits > least ? e - digits : least;
    double rounded = ldexp(rint(ldexp(x, -unit)), unit);
    return fabs(rounded) > most ? copysign(beyond, x) : rounded;
}

/* The nearest integer of a range, of two the even one; 0 for NaN. */
static double whole(double x, double least, double most) {
    return isnan(x) ? 0 : rint(fmin(fmax(x, least), most)) + 0.0;
}

double epi_op_reference(epi_op op, double a, double b, double c) {
    switch (op) {
#define EPI_MAP1(id, text, is, ref, ...) \
    case EPI_OP_##id: return ref;
#define EPI_MAP2(id, text, is, ref, ...) \
    case EPI_OP_##id: return ref;
#define EPI_MAP3(id, text, is, ref, ...) \
    case EPI_OP_##id: return ref;
#include "ir/ops.def"
    default: return NAN;
    }
}

static double logaddexp(double a, double b) {
    double m = a > b || a != a ? a : b;
    if (m == -INFINITY || m == INFINITY || m != m)
        return m;
    return m + log(exp(a - m) + exp(b - m));
}

double epi_op_identity(epi_op op) {
    switch (op) {
#define EPI_REDUCE(id, text, is, identity, combine, cuda, da) \
    case EPI_OP_##id: return identity;
#include "ir/ops.def"
    default: return NAN;
    }
}

double epi_op_combine(epi_op op, double a, double b) {
    switch (op) {
#define EPI_REDUCE(id, text, is, identity, combine, cuda, da) \
    case EPI_OP_##id: return combine;
#include "ir/ops.def"
    default: return NAN;
    }
}
