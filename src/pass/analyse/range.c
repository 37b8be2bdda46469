/* range.c: intervals, operation by operation.
 *
 * Sums, differences and products of finite numbers count as finite. The intervals are for other cases: a
 * logarithm of 0, a root of a negative number, a division by 0, an exponential that overflows. So a bound
 * beyond MOST counts as MOST, unless it is infinite or the product of two known bounds. A number that f32
 * cannot distinguish from 0 counts as 0. */
#include "pass/analyse/range.h"

#include <float.h>
#include <math.h>

#include "pass/analyse/monomial.h"

#define MOST ((double)FLT_MAX)
#define LEAST ((double)FLT_MIN)

/* exp and exp2 of more than this may overflow. */
#define MOST_EXP 88.0
#define MOST_EXP2 127.0

static const epi_range unknown = {-INFINITY, INFINITY, true};

epi_range epi_range_finite(void) {
    return (epi_range){-MOST, MOST, false};
}

bool epi_is_finite(const epi_range *r) {
    return !r->nan && isfinite(r->low) && isfinite(r->high);
}

static double bounded(double x) {
    return isinf(x) ? x : fmin(fmax(x, -MOST), MOST);
}

static epi_range between(double low, double high, bool nan) {
    low = low > 0 && low < LEAST ? 0 : low;
    high = high < 0 && high > -LEAST ? 0 : high;
    return (epi_range){bounded(low), bounded(high), nan};
}

static epi_range either(epi_range a, epi_range b) {
    return (epi_range){fmin(a.low, b.low), fmax(a.high, b.high), a.nan || b.nan};
}

static epi_range negated(epi_range a) {
    return (epi_range){-a.high, -a.low, a.nan};
}

static epi_range added(epi_range a, epi_range b) {
    if ((a.low == -INFINITY && b.high == INFINITY) || (a.high == INFINITY && b.low == -INFINITY))
        return unknown;
    return between(a.low + b.low, a.high + b.high, a.nan || b.nan);
}

/* A bound that is MOST is not known. */
static double times(double a, double b) {
    bool known = fabs(a) < MOST && fabs(b) < MOST;
    return known && fabs(a * b) > MOST ? copysign(INFINITY, a * b) : a * b;
}

static epi_range multiplied(epi_range a, epi_range b) {
    if (!epi_is_finite(&a) || !epi_is_finite(&b))
        return unknown;
    double x[] = {times(a.low, b.low), times(a.low, b.high), times(a.high, b.low), times(a.high, b.high)};
    return between(fmin(fmin(x[0], x[1]), fmin(x[2], x[3])), fmax(fmax(x[0], x[1]), fmax(x[2], x[3])), false);
}

/* What a*h + b becomes, step by step: it counts as finite, as a sum of products does. */
static epi_range recurring(epi_range a, epi_range b) {
    if (!epi_is_finite(&a) || !epi_is_finite(&b))
        return unknown;
    return (epi_range){a.low >= 0 && b.low >= 0 ? 0 : -MOST, MOST, false};
}

static epi_range squared(epi_range a) {
    epi_range x = multiplied(a, a);
    return epi_is_finite(&x) ? between(a.low > 0 ? x.low : 0, x.high, false) : x;
}

/* An input that is one number counts as not 0 where the program divides by it, unless a choice depends on it.
 */
static epi_range divided(epi_range a, epi_range b, const epi_node *by, const bool *chooses) {
    if (by->op == EPI_OP_INPUT && !by->axes.count && !(chooses && chooses[by->tensor]))
        return multiplied(a, epi_range_finite());
    bool signs = b.low > 0 || b.high < 0; /* it is not 0 */
    return signs && epi_is_finite(&b) ? multiplied(a, between(1 / b.high, 1 / b.low, false)) : unknown;
}

/* A function that grows, of numbers above `from`, or from it on. */
static epi_range grown(epi_range a, double (*f)(double), double from, bool at) {
    bool inside = a.low > from || (at && a.low == from);
    return inside && epi_is_finite(&a) ? between(f(a.low), f(a.high), false) : unknown;
}

static epi_range exponential(epi_range a, double (*f)(double), double most) {
    return (epi_range){0, a.high > most ? INFINITY : f(a.high), a.nan};
}

static epi_range power(const epi_graph *g, const epi_node *n, epi_range a) {
    const epi_node *by = &g->nodes[n->arg[1]];
    double b = by->value;
    bool whole = by->op == EPI_OP_CONST && b >= 0 && b == floor(b), root = by->op == EPI_OP_CONST && b >= 0;
    bool known = epi_is_finite(&a) && (whole || (root && a.low >= 0));
    return known ? between(a.low >= 0 ? 0 : -MOST, MOST, false) : unknown;
}

static bool is_extreme_of(const epi_node *n, int x) {
    return (n->op == EPI_OP_RMAX || n->op == EPI_OP_LOGSUMEXP) && n->arg[0] == x;
}

/* Is it `top`, and 0 where that is -inf? */
static bool is_safe(const epi_graph *g, const epi_node *n, int top) {
    const epi_node *when = n->op == EPI_OP_WHERE ? &g->nodes[n->arg[0]] : n;
    return when->op == EPI_OP_EQ && when->arg[0] == top && n->arg[2] == top &&
           epi_is_constant(g, when->arg[1], -INFINITY) && epi_is_zero(g, n->arg[1]);
}

/* x less its maximum, 0 instead of -inf there, or more than that, or less its logsumexp, is at most 0; NaN
 * where both are infinite. */
static bool is_below_top(const epi_graph *g, const epi_node *n, const epi_range *at, epi_range *below) {
    int x = n->arg[0], top = n->arg[1];
    const epi_node *t = &g->nodes[top];
    bool odd = at[x].nan || at[x].high == INFINITY;
    *below = (epi_range){-INFINITY, 0, odd || at[x].low == -INFINITY};
    if (is_extreme_of(t, x))
        return true;
    below->nan = odd;
    if (t->op == EPI_OP_WHERE)
        return is_safe(g, t, t->arg[2]) && is_extreme_of(&g->nodes[t->arg[2]], x);
    for (int a = 0; a < 2 && t->op == EPI_OP_MAX; a++)
        if (is_extreme_of(&g->nodes[t->arg[a]], x) && epi_is_finite(&at[t->arg[1 - a]]))
            return true;
    return false;
}

/* Does the sum count where x == max(x, X) along X? That holds somewhere. */
static bool is_found(const epi_graph *g, const epi_node *sum, const epi_range *at) {
    const epi_node *n = &g->nodes[sum->arg[0]], *top = n->op == EPI_OP_EQ ? &g->nodes[n->arg[1]] : n;
    return n->op == EPI_OP_EQ && (top->op == EPI_OP_RMAX || top->op == EPI_OP_RMIN) &&
           top->arg[0] == n->arg[0] && epi_axes_include(&sum->over, &top->over) && !at[n->arg[0]].nan;
}

/* Of one element or more. */
static epi_range summed(epi_range a) {
    return (epi_range){a.low < 0 ? bounded(a.low * MOST) : a.low, a.high > 0 ? fmax(a.high, MOST) : a.high,
                       a.nan};
}

static epi_range folded(const epi_graph *g, const epi_node *n, const epi_range *at) {
    epi_range a = at[n->arg[0]];
    if (n->op == EPI_OP_SUM && is_found(g, n, at))
        return between(1, MOST, false);
    a.nan |= epi_ops[n->op].adds && a.low == -INFINITY && a.high == INFINITY;
    switch (n->op) {
    case EPI_OP_SUM: return summed(a);
    case EPI_OP_VAR: return epi_is_finite(&a) ? between(0, MOST, false) : unknown;
    case EPI_OP_LOGSUMEXP: return (epi_range){a.low, fmax(a.high, MOST), a.nan};
    default: return a;
    }
}

/* What is small is 0 there. */
static epi_range in_f16(epi_range a) {
    return (epi_range){a.low < 1 ? fmin(a.low, 0) : a.low, a.high > -1 ? fmax(a.high, 0) : a.high, a.nan};
}

/* The least that rounding to few digits, or to an integer, makes of numbers from x on. */
static double rounded_from(double x) {
    return x < 0 ? 2 * x - 1 : x < 1 ? 0 : x / 2;
}

/* What a conversion to few digits makes of numbers, which it holds between two others; of integers NaN is 0. */
static epi_range converted(epi_op op, epi_range a) {
    epi_dtype type = epi_ops[op].type;
    double low = rounded_from(a.low), high = -rounded_from(-a.high);
    double least = epi_op_reference(op, isinf(low) ? low : -MOST, 0, 0),
           most = epi_op_reference(op, isinf(high) ? high : MOST, 0, 0);
    return (epi_range){fmax(low, least), fmin(high, most), a.nan && !epi_dtype_is_whole(type)};
}

/* Of where(c, a, b). */
static epi_range selected(const epi_graph *g, const epi_node *n, const epi_range *at) {
    epi_range both = either(at[n->arg[1]], at[n->arg[2]]);
    both.low = is_safe(g, n, n->arg[2]) ? fmax(both.low, -MOST) : both.low;
    return both;
}

static epi_range mapped(const epi_graph *g, const epi_node *n, const epi_range *at, const bool *chooses) {
    epi_range a = at[n->arg[0]], b = epi_ops[n->op].arity > 1 ? at[n->arg[1]] : a;
    bool odd = a.nan || !isfinite(a.low) || !isfinite(a.high);
    switch (n->op) {
    case EPI_OP_NEG: return negated(a);
    case EPI_OP_ADD: return added(a, b);
    case EPI_OP_SUB: {
        epi_range below;
        return is_below_top(g, n, at, &below) ? below : added(a, negated(b));
    }
    case EPI_OP_MUL: return n->arg[0] == n->arg[1] ? squared(a) : multiplied(a, b);
    case EPI_OP_DIV: return divided(a, b, &g->nodes[n->arg[1]], chooses);
    case EPI_OP_QUOTIENT:
    case EPI_OP_REMAINDER: return unknown;
    case EPI_OP_MIN: return (epi_range){fmin(a.low, b.low), fmin(a.high, b.high), a.nan || b.nan};
    case EPI_OP_MAX: return (epi_range){fmax(a.low, b.low), fmax(a.high, b.high), a.nan || b.nan};
    case EPI_OP_ABS: return (epi_range){fmax(0, fmax(a.low, -a.high)), fmax(-a.low, a.high), a.nan};
    case EPI_OP_FLOOR:
    case EPI_OP_ROUND: return between(a.low - 1, a.high + 1, a.nan);
    case EPI_OP_F32:
    case EPI_OP_F64:
    case EPI_OP_DITHER:
    case EPI_OP_BF16:
    case EPI_OP_STORED_BF16: return a;
    case EPI_OP_F16:
    case EPI_OP_STORED_F16: return in_f16(a);
    case EPI_OP_E4M3:
    case EPI_OP_E5M2:
    case EPI_OP_I8:
    case EPI_OP_U8:
    case EPI_OP_I4:
    case EPI_OP_U4:
    case EPI_OP_I32:
    case EPI_OP_I64: return converted(n->op, a);
    case EPI_OP_POW: return power(g, n, a);
    case EPI_OP_WHERE: return selected(g, n, at);
    case EPI_OP_EXP: return exponential(a, exp, MOST_EXP);
    case EPI_OP_EXP2: return exponential(a, exp2, MOST_EXP2);
    case EPI_OP_LOG: return grown(a, log, 0, false);
    case EPI_OP_LOG2: return grown(a, log2, 0, false);
    case EPI_OP_LOG1P: return grown(a, log1p, -1, false);
    case EPI_OP_SQRT: return grown(a, sqrt, 0, true);
    case EPI_OP_RSQRT: return a.low > 0 && !odd ? between(0, 1 / sqrt(a.low), false) : unknown;
    case EPI_OP_SIN:
    case EPI_OP_COS: return (epi_range){-1, 1, odd};
    case EPI_OP_SIGN:
    case EPI_OP_TANH:
    case EPI_OP_ERF: return (epi_range){-1, 1, a.nan};
    case EPI_OP_SIGMOID: return (epi_range){0, 1, a.nan};
    case EPI_OP_RELU: return (epi_range){fmax(a.low, 0), fmax(a.high, 0), a.nan};
    case EPI_OP_SILU:
    case EPI_OP_GELU:
    case EPI_OP_GELU_TANH: return (epi_range){-1, fmax(a.high, 0), odd};
    case EPI_OP_SOFTPLUS: return between(0, fmax(a.high, 0) + 1, a.nan);
    default: return (epi_range){0, 1, false}; /* a comparison */
    }
}

static epi_range range_of(const epi_graph *g, const epi_node *n, const epi_range *at, const bool *chooses) {
    const int *arg = n->arg;
    if (n->op == (epi_op)EPI_OP_ORDER)
        return at[arg[0]];
    switch (epi_ops[n->op].cls) {
    case EPI_CLASS_MAP: return mapped(g, n, at, chooses);
    case EPI_CLASS_REDUCE: return folded(g, n, at);
    case EPI_CLASS_SPLIT: return arg[1] == EPI_NO_NODE ? at[arg[0]] : either(at[arg[0]], at[arg[1]]);
    case EPI_CLASS_VIEW: return at[arg[0]];
    case EPI_CLASS_PRODUCT: return summed(multiplied(at[arg[0]], at[arg[1]]));
    case EPI_CLASS_MOVE: {
        epi_range a = either(at[arg[0]], (epi_range){0, 0, false});
        if (epi_op_scatters(n->op))
            return multiplied(a, epi_range_finite());
        return n->op == EPI_OP_UPDATE ? either(a, at[arg[2]]) : a;
    }
    case EPI_CLASS_SHIFT: return either(at[arg[0]], (epi_range){0, 0, false});
    case EPI_CLASS_SORT: return between(0, MOST, false);
    case EPI_CLASS_RANDOM: return (epi_range){0, 1, false};
    case EPI_CLASS_SCAN: return recurring(at[arg[0]], at[arg[1]]);
    case EPI_CLASS_LEAF: break;
    default: return unknown;
    }
    if (n->op == EPI_OP_CONST)
        return between(n->value, n->value, isnan(n->value));
    if (n->op == EPI_OP_INPUT && g->tensors[n->tensor].infinite)
        return unknown;
    return n->op == EPI_OP_SIZE ? between(1, MOST, false) : epi_range_finite();
}

/* Is all that it is made of finite? */
static bool of_finite(const epi_node *n, const epi_range *at) {
    bool finite = n->op != EPI_OP_CONST && n->op != EPI_OP_INPUT;
    for (int a = 0; a < epi_node_operands(n) && finite; a++)
        finite = epi_is_finite(&at[n->arg[a]]);
    return finite;
}

static epi_range learn(const epi_ranges *r, const epi_graph *g, const epi_node *n) {
    epi_range made = range_of(g, n, r->at, r->chooses);
    if (!r->makes && !epi_is_finite(&made) && of_finite(n, r->at))
        made = epi_range_finite();
    return n->has_stored && n->stored == EPI_F16 ? in_f16(made) : made;
}

const epi_range *epi_range_of(epi_ranges *r, epi_graph *g, int node) {
    while (!epi_graph_failed(g) && r->count <= node) { /* operands come before what is made of them */
        epi_range *at = epi_arena_grow(g->arena, r->at, r->count, &r->capacity, sizeof *at);
        if (!at)
            break;
        r->at = at;
        at[r->count] = learn(r, g, &g->nodes[r->count]);
        r->count++;
    }
    return epi_graph_failed(g) ? NULL : &r->at[node];
}

/* A positive number that a maximum is taken with, or 0. */
static double floor_of(const epi_graph *g, int node) {
    return g->nodes[node].op == EPI_OP_CONST ? g->nodes[node].value : 0;
}

/* The least that the scale of a quotient is; 0: it is none of its dividend. */
static double least_scale(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    double over = 1, least = 0;
    if (n->op != EPI_OP_DIV)
        return 0;
    for (int at = n->arg[1];;) {
        const epi_node *s = &g->nodes[at];
        at = s->arg[0];
        if (s->op == EPI_OP_ABS)
            return at == n->arg[0] && over >= 4 && over <= 0x1p20 && least <= 0x1p100 ? least : 0;
        if (s->op == EPI_OP_MAX) {
            int floor = floor_of(g, s->arg[1]) > 0 ? 1 : 0;
            at = s->arg[1 - floor];
            least = over == 1 ? fmax(least, floor_of(g, s->arg[floor])) : least;
        } else if (s->op == EPI_OP_DIV && g->nodes[s->arg[1]].op == EPI_OP_CONST) {
            over *= g->nodes[s->arg[1]].value;
        } else if (s->op == EPI_OP_MUL && g->nodes[s->arg[0]].op == EPI_OP_CONST) {
            over /= g->nodes[s->arg[0]].value;
            at = s->arg[1];
        } else if (s->op != EPI_OP_RMAX) {
            return 0;
        }
    }
}

bool epi_is_scaled(const epi_graph *g, int node) {
    return least_scale(g, node) >= 0x1p-100;
}

bool epi_is_scaled_byte(const epi_graph *g, int node) {
    epi_use_list uses = epi_graph_uses(g, node);
    bool bytes = least_scale(g, node) >= 0x1p-64;
    for (int i = 0; i < uses.count; i++) {
        epi_op op = epi_use_op(g, uses.at[i]);
        bytes &= op == EPI_OP_E4M3 || op == EPI_OP_E5M2;
    }
    return bytes;
}
