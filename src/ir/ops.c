/* ops.c: the columns of ops.def as tables and functions. */
#include "ir/ops.h"

#include <math.h>

/* clang-format off: it takes the line after a continued macro for a directive */
const epi_op_row epi_ops[EPI_OP_COUNT] = {
#define EPI_MAP1(id, text, ref, strip, cuda, da) {#id, text, EPI_CLASS_MAP, 1, cuda, {da, 0, 0}},
#define EPI_MAP2(id, text, ref, strip, cuda, da, db) \
    {#id, text, EPI_CLASS_MAP, 2, cuda, {da, db, 0}},
#define EPI_MAP3(id, text, ref, strip, cuda, da, db, dc) \
    {#id, text, EPI_CLASS_MAP, 3, cuda, {da, db, dc}},
#define EPI_REDUCE(id, text, identity, combine, cuda, da) \
    {#id, text, EPI_CLASS_REDUCE, 1, cuda, {da, 0, 0}},
#define EPI_SPLIT(id, text, da) \
    {#id, text, EPI_CLASS_SPLIT, EPI_OP_##id >= EPI_OP_JOIN ? 2 : 1, "", {da, da, 0}},
#define EPI_PRODUCT(id, text, da, db) {#id, text, EPI_CLASS_PRODUCT, 2, "", {da, db, 0}},
#define EPI_LEAF(id, text) {#id, text, EPI_CLASS_LEAF, 0, "", {0, 0, 0}},
#define EPI_MOVE(id, text, da, db, dc) \
    {#id, text, EPI_CLASS_MOVE, EPI_OP_##id == EPI_OP_UPDATE ? 3 : 2, "", {da, db, dc}},
#define EPI_VIEW(id, text, da) {#id, text, EPI_CLASS_VIEW, 1, "", {da, 0, 0}},
#define EPI_RANDOM(id, text, da) {#id, text, EPI_CLASS_RANDOM, 1, "", {da, 0, 0}},
#include "ir/ops.def"
};

/* The two bf16 neighbours of x lie a unit apart; the first 16 bits of u say from which fraction of it on the one
 * away from zero is taken. */
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

/* The nearest number of so many binary digits, of two the even one; no digit is less than 2^least. */
static double narrowed(double x, int digits, int least, double most) {
    int e;
    if (!isfinite(x))
        return x;
    frexp(x, &e);
    int unit = e - digits > least ? e - digits : least;
    double rounded = ldexp(rint(ldexp(x, -unit)), unit);
    return fabs(rounded) > most ? copysign(INFINITY, x) : rounded;
}

double epi_op_reference(epi_op op, double a, double b, double c) {
    switch (op) {
#define EPI_MAP1(id, text, ref, ...) \
    case EPI_OP_##id: return ref;
#define EPI_MAP2(id, text, ref, ...) \
    case EPI_OP_##id: return ref;
#define EPI_MAP3(id, text, ref, ...) \
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
#define EPI_REDUCE(id, text, identity, combine, cuda, da) \
    case EPI_OP_##id: return identity;
#include "ir/ops.def"
    default: return NAN;
    }
}

double epi_op_combine(epi_op op, double a, double b) {
    switch (op) {
#define EPI_REDUCE(id, text, identity, combine, cuda, da) \
    case EPI_OP_##id: return combine;
#include "ir/ops.def"
    default: return NAN;
    }
}

bool epi_op_is_dear(epi_op op) {
    switch (op) {
    case EPI_OP_EXP:
    case EPI_OP_EXP2:
    case EPI_OP_LOG:
    case EPI_OP_LOG2:
    case EPI_OP_LOG1P:
    case EPI_OP_SIN:
    case EPI_OP_COS:
    case EPI_OP_TANH:
    case EPI_OP_ERF:
    case EPI_OP_SIGMOID:
    case EPI_OP_SILU:
    case EPI_OP_GELU:
    case EPI_OP_GELU_TANH:
    case EPI_OP_SOFTPLUS:
    case EPI_OP_POW: return true;
    default: return false;
    }
}
