/* bound.h: how far a program's results may be from the exact ones, worked out along its graph.
 *
 * Each element of a value has three numbers: what it is exactly, how far a computed one may be from that, and
 * the same sums taken of absolute values. Arithmetic is f32; what is stored is rounded to its type besides,
 * and who says where that is stands in plan_bound.h. A comparison whose sides may change places, a position
 * that may be another one: what depends on them may be anything between, or is without bound. */
#ifndef EPI_TESTS_BOUND_H
#define EPI_TESTS_BOUND_H

#include "base/philox.h"
#include "harness.h"
#include "ir/index.h"
#include "pass/schedule/steps.h"
#include "pass/schedule/walk.h"

/* One operation in f32: a few roundings, and that of the functions at most 4.5 ulp; on a GPU, where tiles are
 * of 16 bits, about 2^-20. */
#define ROUNDING 0x1p-22
static double function_error = 5 * 0x1p-23;

typedef struct bounded {
    int64_t count;
    double *v, *e, *m;
    bool *sure; /* of a maximum or minimum: which element it is cannot change */
} bounded;

typedef struct bounding {
    const epi_graph *g;
    const int64_t *sizes;
    const bounded *tensors; /* inputs, as they lie in memory */
    const int *of;          /* by tensor: which of these it is */
    const epi_slice *slices;
    bounded *at; /* by node */
    /* How coarsely a node is stored on its way, or 0; and whether that counts from absolute values, as where
       sums may be taken in another order. */
    double (*unit)(const struct bounding *b, int node);
    bool absolute;
    const epi_steps *steps;
    epi_dtype type;
    const epi_dtype *types;
} bounding;

static inline bool bounded_make(bounded *x, int64_t count) {
    *x = (bounded){.count = count, .v = calloc((size_t)count * 3 + 3, sizeof(double))};
    x->e = x->v ? x->v + count + 1 : NULL;
    x->m = x->v ? x->e + count + 1 : NULL;
    return x->v != NULL;
}

static inline void bounded_free(bounded *x) {
    free(x->v);
    free(x->sure);
    *x = (bounded){0};
}

static inline double storage_unit(epi_dtype type) {
    return type == EPI_BF16 || type == EPI_F16 ? type_unit(type) : 0x1p-24;
}

/* One element stored and read again, in f32 where the unit is smaller than that of 16 bits. */
static inline void round_element(bounded *x, int64_t i, double unit, bool absolute) {
    double size = fabs(x->v[i]) + x->e[i];
    if (!isfinite(x->v[i]))
        return;
    x->e[i] += unit * (absolute ? fmax(size, x->m[i]) : size) + (unit == 0x1p-11 ? 0x1p-25 : 0x1p-126);
    if (!(size < (unit == 0x1p-11 ? 65504 : 3e38)))
        x->e[i] = INFINITY;
}

/* ---- maps ---- */

typedef struct element {
    double v, e, m;
} element;

static inline double moved(epi_op op, double a, double b) {
    return epi_op_reference(op, a, b, 0);
}

/* Of a function that goes one way: how far the ends of the interval are. */
static inline double by_ends(epi_op op, element a, double y) {
    return fmax(fabs(moved(op, a.v - a.e, 0) - y), fabs(moved(op, a.v + a.e, 0) - y));
}

static inline double by_corners(epi_op op, element a, element b, double y) {
    double far = 0;
    for (int c = 0; c < 4; c++) {
        double d = fabs(moved(op, a.v + (c & 1 ? a.e : -a.e), b.v + (c & 2 ? b.e : -b.e)) - y);
        far = isnan(d) ? INFINITY : fmax(far, d);
    }
    return far;
}

static inline double jump(epi_op op, element a) {
    double low = moved(op, a.v - a.e, 0), high = moved(op, a.v + a.e, 0);
    return a.e == 0 || low == high ? 0 : high - low;
}

static inline double quotient(element a, element b, double y) {
    return b.e == 0          ? a.e / fabs(b.v)
           : b.e < fabs(b.v) ? (a.e + fabs(y) * b.e) / (fabs(b.v) - b.e)
                             : INFINITY;
}

static inline bool may_change(element a, element b) {
    return a.e + b.e > 0 && isfinite(a.v) && isfinite(b.v) && !(fabs(a.v - b.v) > a.e + b.e);
}

static inline double chosen(element a, element b, element c) {
    if (a.e == 0)
        return a.v != 0 ? b.e : c.e;
    return b.v == c.v ? fmax(b.e, c.e) : fabs(b.v - c.v) + b.e + c.e;
}

/* How far the result may be for operands that are off, before its own roundings. */
static inline double carried(epi_op op, const element *x, double y) {
    element a = x[0], b = x[1];
    switch (op) {
    case EPI_OP_NEG:
    case EPI_OP_ABS:
    case EPI_OP_RELU: return a.e;
    case EPI_OP_ADD:
    case EPI_OP_SUB: return a.e + b.e;
    case EPI_OP_MUL:
        return (b.e == 0 && b.v == 0) || (a.e == 0 && a.v == 0)
                   ? 0
                   : fabs(a.v) * b.e + fabs(b.v) * a.e + a.e * b.e;
    case EPI_OP_DIV: return quotient(a, b, y);
    case EPI_OP_MIN:
    case EPI_OP_MAX: return may_change(a, b) || a.v == b.v ? fmax(a.e, b.e) : (y == a.v ? a.e : b.e);
    case EPI_OP_SIGN:
    case EPI_OP_FLOOR:
    case EPI_OP_ROUND: return jump(op, a);
    case EPI_OP_POW: return by_corners(op, a, b, y);
    case EPI_OP_LT:
    case EPI_OP_LE:
    case EPI_OP_GT:
    case EPI_OP_GE:
    case EPI_OP_EQ:
    case EPI_OP_NE: return may_change(a, b) ? 1 : 0;
    case EPI_OP_AND: return (a.e == 0 && a.v == 0) || (b.e == 0 && b.v == 0) ? 0 : fmax(a.e, b.e) > 0;
    case EPI_OP_OR: return (a.e == 0 && a.v != 0) || (b.e == 0 && b.v != 0) ? 0 : fmax(a.e, b.e) > 0;
    case EPI_OP_NOT: return a.e > 0;
    case EPI_OP_WHERE: return chosen(a, b, x[2]);
    case EPI_OP_DITHER: return a.e + 0x1p-7 * (fabs(a.v) + a.e);
    case EPI_OP_STORED_F16: return by_ends(op, a, y) + 0x1p-25;
    case EPI_OP_F16:
    case EPI_OP_BF16:
    case EPI_OP_E4M3:
    case EPI_OP_E5M2:
    case EPI_OP_I8:
    case EPI_OP_U8:
    case EPI_OP_I4:
    case EPI_OP_U4:
    case EPI_OP_I32:
    case EPI_OP_I64: return jump(op, a);
    case EPI_OP_SIN:
    case EPI_OP_COS: return fmin(2, a.e);
    case EPI_OP_SILU:
    case EPI_OP_GELU:
    case EPI_OP_GELU_TANH: return 1.2 * a.e;
    default: return by_ends(op, a, y);
    }
}

/* What the operation itself loses, relative to its result; nothing where it chooses or counts. */
static inline double own_loss(epi_op op) {
    switch (op) {
    case EPI_OP_NEG:
    case EPI_OP_ABS:
    case EPI_OP_SIGN:
    case EPI_OP_MIN:
    case EPI_OP_MAX:
    case EPI_OP_FLOOR:
    case EPI_OP_ROUND:
    case EPI_OP_RELU:
    case EPI_OP_WHERE:
    case EPI_OP_AND:
    case EPI_OP_OR:
    case EPI_OP_NOT: return 0;
    case EPI_OP_ADD:
    case EPI_OP_SUB:
    case EPI_OP_MUL:
    case EPI_OP_DIV: return ROUNDING;
    case EPI_OP_STORED_BF16: /* a plan rounds outputs where the program does not say it */
    case EPI_OP_STORED_F16: return storage_unit(epi_ops[op].type);
    case EPI_OP_F32: return ROUNDING;
    default:
        if (epi_ops[op].converts)
            return 0;
        return op >= EPI_OP_LT && op <= EPI_OP_NE ? 0 : function_error;
    }
}

static inline double magnitude(epi_op op, const element *x, double y) {
    switch (op) {
    case EPI_OP_NEG: return x[0].m;
    case EPI_OP_ADD:
    case EPI_OP_SUB: return x[0].m + x[1].m;
    case EPI_OP_MUL: return x[0].m * x[1].m;
    case EPI_OP_DIV: return x[0].m / fabs(x[1].v);
    case EPI_OP_WHERE: return x[0].v != 0 ? x[1].m : x[2].m;
    default: return fabs(y);
    }
}

/* The exponential of a difference: both sides may be scaled for it first, so that their size counts. */
static inline double exponent_size(const bounding *b, int node, const epi_walk *w, int64_t i) {
    const epi_node *n = &b->g->nodes[node], *arg = &b->g->nodes[n->arg[0]];
    const bounded *whole = &b->at[n->arg[0]];
    double size = fabs(whole->v[epi_walk_offset(w, i)]);
    if (arg->op == EPI_OP_SUB)
        for (int s = 0; s < 2; s++) {
            const bounded *side = &b->at[arg->arg[s]];
            double most = 0;
            for (int64_t k = 0; k < side->count; k++)
                most = fmax(most, isfinite(side->v[k]) ? fabs(side->v[k]) : 0);
            size = isfinite(size) ? fmax(size, most) : size;
        }
    return isfinite(size) ? size : 0;
}

static inline void bound_map(const bounding *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    bounded *y = &b->at[node];
    epi_walk w[3];
    int arity = epi_ops[n->op].arity;
    for (int a = 0; a < arity; a++) {
        epi_ref r = epi_ref_of_axes(&b->g->nodes[n->arg[a]].axes, b->sizes);
        w[a] = epi_walk_axes(&r, &n->axes, b->sizes);
    }
    bool same = arity == 2 && n->arg[0] == n->arg[1] && n->op >= EPI_OP_LT && n->op <= EPI_OP_NE;
    const epi_node *second = arity == 2 ? &b->g->nodes[n->arg[1]] : NULL;
    bool of_top = n->op == EPI_OP_EQ && second->arg[0] == n->arg[0] && b->at[n->arg[1]].sure;
    double exponent = n->op == EPI_OP_EXP && y->count ? exponent_size(b, node, &w[0], 0) : 0;
    for (int64_t i = 0; i < y->count; i++) {
        element x[3] = {{0, 0, 0}};
        bool wild = false;
        for (int a = 0; a < arity; a++) {
            int64_t at = epi_walk_offset(&w[a], i);
            const bounded *from = &b->at[n->arg[a]];
            x[a] = (element){from->v[at], from->e[at], from->m[at]};
            wild |= !isfinite(x[a].e) && n->op != EPI_OP_WHERE;
        }
        y->v[i] = epi_op_reference(n->op, x[0].v, x[1].v, x[2].v);
        y->m[i] = magnitude(n->op, x, y->v[i]);
        double e = wild ? INFINITY : carried(n->op, x, y->v[i]);
        if (same || (of_top && b->at[n->arg[1]].sure[epi_walk_offset(&w[1], i)]))
            e = 0; /* a number beside itself; and what is the largest stays it */
        if (!isfinite(y->v[i])) {
            y->e[i] = isfinite(e) || isnan(e) ? 0 : INFINITY;
            continue;
        }
        e += own_loss(n->op) * ((b->absolute ? fmax(y->m[i], fabs(y->v[i])) : fabs(y->v[i])) + e);
        e += exponent * 0x1p-22 * fabs(y->v[i]);
        y->e[i] = isnan(e) ? INFINITY : e;
    }
}

#endif
