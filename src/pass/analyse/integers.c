/* integers.c: finds which values are integers and how large, from the leaves to the results. Then finds,
 * back to the leaves, which of these integers their readers can distinguish. */
#include "pass/analyse/integers.h"

#include <math.h>

#include "ir/index.h"

/* f32 has all integers up to this one, so that whatever is beyond a stretch within it stays beyond. */
#define HELD (((int64_t)1 << 24) - 1)
/* What becomes a float is exact up to here; beyond, its rounding is one of f32. Sums of it with smaller numbers are
 * so still. */
#define FLOAT ((int64_t)1 << 23)

typedef __int128 exact; /* of bounds, which int64_t may not hold */

/* ---- which are integers ---- */

static bool is_whole(double x) {
    return fabs(x) <= 0x1p53 && x == rint(x);
}

/* Are these operands integers, all that there are? */
static bool all_are(const bool *is, const epi_node *n, unsigned which) {
    for (int a = 0; a < epi_node_operands(n); a++)
        if (which >> a & 1 && !is[n->arg[a]])
            return false;
    return true;
}

/* Which operand of c*a is the constant, if that is 2^-k: the product is a quotient by a power of two; -1: none. */
static int scale_down(const epi_graph *g, const epi_node *n) {
    int exponent;
    for (int a = 0; a < 2 && n->op == EPI_OP_MUL; a++) {
        double c = g->nodes[n->arg[a]].value;
        if (g->nodes[n->arg[a]].op == EPI_OP_CONST && c < 1 && c >= 0x1p-40 && frexp(c, &exponent) == 0.5)
            return a;
    }
    return -1;
}

static bool map_is(const epi_graph *g, const epi_node *n, const bool *is) {
    const epi_node *of = &g->nodes[n->arg[0]];
    int scale = n->op == EPI_OP_FLOOR ? scale_down(g, of) : -1;
    switch (n->op) {
    case EPI_OP_NEG:
    case EPI_OP_ADD:
    case EPI_OP_SUB:
    case EPI_OP_MUL:
    case EPI_OP_QUOTIENT:
    case EPI_OP_REMAINDER:
    case EPI_OP_MIN:
    case EPI_OP_MAX:
    case EPI_OP_ABS:
    case EPI_OP_SIGN:
    case EPI_OP_RELU:
    case EPI_OP_ROUND:
    case EPI_OP_I32:
    case EPI_OP_I64: return all_are(is, n, 3);
    case EPI_OP_FLOOR:
        return is[n->arg[0]] || (of->op == EPI_OP_DIV && all_are(is, of, 3)) ||
               (scale >= 0 && is[of->arg[1 - scale]]);
    case EPI_OP_WHERE: return all_are(is, n, 6);
    case EPI_OP_AND:
    case EPI_OP_OR:
    case EPI_OP_NOT: return true;
    default: return epi_op_compares(n->op);
    }
}

static bool node_is(const epi_graph *g, const epi_node *n, const bool *is, const epi_dtype *types) {
    const epi_tensor_decl *t = n->op == EPI_OP_INPUT ? &g->tensors[n->tensor] : NULL;
    switch (epi_ops[n->op].cls) {
    case EPI_CLASS_MAP: return map_is(g, n, is);
    case EPI_CLASS_REDUCE:
        return is[n->arg[0]] && (n->op == EPI_OP_SUM || n->op == EPI_OP_RMAX || n->op == EPI_OP_RMIN);
    case EPI_CLASS_SPLIT:
    case EPI_CLASS_SHIFT:
    case EPI_CLASS_SCAN: return all_are(is, n, 7);
    case EPI_CLASS_VIEW: return is[n->arg[0]];
    case EPI_CLASS_MOVE: return all_are(is, n, 5);
    case EPI_CLASS_SORT: return true;
    case EPI_CLASS_LEAF: break;
    default: return false;
    }
    if (t)
        return types ? epi_dtype_is_whole(types[n->tensor]) : t->has_type && epi_dtype_is_whole(t->type);
    return n->op == EPI_OP_CONST ? is_whole(n->value) : true;
}

bool *epi_integers_kinds(epi_arena *arena, const epi_graph *g, const epi_dtype *types) {
    bool *is = epi_arena_alloc(arena, (size_t)g->node_count + 1);
    for (int i = 0; i < g->node_count && is; i++)
        is[i] = node_is(g, &g->nodes[i], is, types);
    return is;
}

/* ---- how large they are ---- */

typedef struct search {
    const epi_spec *spec;
    const epi_graph *g;
    const int64_t *sizes; /* the largest */
    epi_integer *at;
} search;

static epi_integer between(exact low, exact high) {
    bool fits = low >= INT64_MIN && high <= INT64_MAX;
    return (epi_integer){.is = true,
                         .wraps = !fits,
                         .low = fits ? (int64_t)low : INT64_MIN,
                         .high = fits ? (int64_t)high : INT64_MAX};
}

static exact least(exact a, exact b) {
    return a < b ? a : b;
}

static exact most(exact a, exact b) {
    return a > b ? a : b;
}

static epi_integer either(epi_integer a, epi_integer b) {
    return between(least(a.low, b.low), most(a.high, b.high));
}

static epi_integer or_zero(epi_integer a) {
    return between(least(a.low, 0), most(a.high, 0));
}

static epi_integer product_of(epi_integer a, epi_integer b) {
    exact x[] = {(exact)a.low * b.low, (exact)a.low * b.high, (exact)a.high * b.low, (exact)a.high * b.high};
    return between(least(least(x[0], x[1]), least(x[2], x[3])), most(most(x[0], x[1]), most(x[2], x[3])));
}

/* The largest magnitude. */
static exact size_of(epi_integer a) {
    return most(-(exact)a.low, a.high);
}

/* Toward minus infinity, as // goes. */
static exact floored(exact a, exact b) {
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/* Of a divisor that may be 0, 1 and -1 are the ones that give most. */
static epi_integer quotient_of(epi_integer a, epi_integer b) {
    if (b.low <= 0)
        return between(-size_of(a), size_of(a));
    exact x[] = {floored(a.low, b.low), floored(a.low, b.high), floored(a.high, b.low),
                 floored(a.high, b.high)};
    return between(least(least(x[0], x[1]), least(x[2], x[3])), most(most(x[0], x[1]), most(x[2], x[3])));
}

/* It has the sign of the divisor, and is less. */
static epi_integer rest_of(epi_integer b) {
    return between(least((exact)b.low + 1, 0), most((exact)b.high - 1, 0));
}

/* Numbers, both of them. */
static bool are_known(epi_integer a, epi_integer b) {
    return a.is && b.is && a.low == a.high && b.low == b.high;
}

static exact rest_at(exact a, exact b) {
    return b ? a - b * floored(a, b) : 0;
}

/* A comparison of numbers is one. */
static epi_integer compared(epi_integer a, epi_integer b, bool result) {
    return are_known(a, b) ? between(result, result) : between(0, 1);
}

/* Up to so many of them added up, or none. */
static epi_integer sum_of(epi_integer a, int64_t count) {
    epi_integer x = between(least(a.low, 0) * (exact)count, most(a.high, 0) * (exact)count);
    bool both = x.low < 0 && x.high > 0; /* what is beyond on the way may come back */
    x.wraps |= both && (x.low < -HELD - 1 || x.high > HELD + 1);
    return x;
}

/* A floor of what is no integer, but is made of such by a division. */
static bool quotient_at(const epi_graph *g, const epi_node *n, const epi_integer *at, epi_quotient *out) {
    if (n->op != EPI_OP_FLOOR)
        return false;
    const epi_node *of = &g->nodes[n->arg[0]];
    if (at[n->arg[0]].is)
        return false;
    int scale = scale_down(g, of);
    *out = (epi_quotient){of->arg[0], of->arg[1], 0};
    if (of->op == EPI_OP_DIV)
        return at[of->arg[0]].is && at[of->arg[1]].is;
    if (scale < 0 || !at[of->arg[1 - scale]].is)
        return false;
    *out = (epi_quotient){of->arg[1 - scale], EPI_NO_NODE, (int64_t)(1 / g->nodes[of->arg[scale]].value)};
    return true;
}

bool epi_quotient_find(const epi_graph *g, const epi_integer *at, int node, epi_quotient *out) {
    return quotient_at(g, &g->nodes[node], at, out);
}

/* What wraps around by less than an operand's range lands as far off as it was: beyond all that f32 holds, unless both
 * operands are, which are told apart then. */
static epi_integer near(epi_integer x) {
    x.wraps = false;
    return x;
}

/* Is the product b*floor(a/b), by this quotient? It is as far from a as b is large, and what is left of a is a % b. */
static bool is_multiple(const search *s, const epi_node *n, epi_quotient *q) {
    for (int a = 0; a < 2 && n->op == EPI_OP_MUL; a++)
        if (quotient_at(s->g, &s->g->nodes[n->arg[a]], s->at, q) && q->b == n->arg[1 - a])
            return true;
    return false;
}

static epi_integer mapped(const search *s, const epi_node *n) {
    epi_integer a = s->at[n->arg[0]], b = epi_ops[n->op].arity > 1 ? s->at[n->arg[1]] : a;
    epi_quotient q = {0};
    if (n->op == EPI_OP_FLOOR && quotient_at(s->g, n, s->at, &q))
        return quotient_of(s->at[q.a], q.b == EPI_NO_NODE ? between(q.by, q.by) : s->at[q.b]);
    if (n->op == EPI_OP_SUB && is_multiple(s, &s->g->nodes[n->arg[1]], &q) && q.a == n->arg[0])
        return rest_of(s->at[q.b]);
    switch (n->op) {
    case EPI_OP_NEG: return near(between(-(exact)a.high, -(exact)a.low));
    case EPI_OP_ADD: return near(between((exact)a.low + b.low, (exact)a.high + b.high));
    case EPI_OP_SUB: return near(between((exact)a.low - b.high, (exact)a.high - b.low));
    case EPI_OP_MUL: {
        epi_integer x = product_of(a, b);
        if (is_multiple(s, n, &q) && !s->at[q.b].wraps)
            return between(s->at[q.a].low - size_of(s->at[q.b]), s->at[q.a].high + size_of(s->at[q.b]));
        return n->arg[0] == n->arg[1] && !x.wraps ? between(most(x.low, 0), x.high) : x;
    }
    case EPI_OP_QUOTIENT: return quotient_of(a, b);
    case EPI_OP_REMAINDER:
        return are_known(a, b) ? between(rest_at(a.low, b.low), rest_at(a.low, b.low)) : rest_of(b);
    case EPI_OP_MIN: return between(least(a.low, b.low), least(a.high, b.high));
    case EPI_OP_MAX: return between(most(a.low, b.low), most(a.high, b.high));
    case EPI_OP_ABS: return near(between(most(0, most(a.low, -(exact)a.high)), size_of(a)));
    case EPI_OP_RELU: return between(most(a.low, 0), most(a.high, 0));
    case EPI_OP_SIGN: return between(a.low < 0 ? -1 : 0, a.high > 0);
    case EPI_OP_FLOOR:
    case EPI_OP_ROUND:
    case EPI_OP_I32:
    case EPI_OP_I64: return a;
    case EPI_OP_WHERE: return either(b, s->at[n->arg[2]]);
    case EPI_OP_LT: return compared(a, b, a.low < b.low);
    case EPI_OP_LE: return compared(a, b, a.low <= b.low);
    case EPI_OP_GT: return compared(a, b, a.low > b.low);
    case EPI_OP_GE: return compared(a, b, a.low >= b.low);
    case EPI_OP_EQ: return compared(a, b, a.low == b.low);
    case EPI_OP_NE: return compared(a, b, a.low != b.low);
    default: return between(0, 1);
    }
}

/* a*h + b: running sums, or, where a state may grow by itself, anything. */
static epi_integer scanned(const search *s, const epi_node *n) {
    epi_integer a = s->at[n->arg[0]], b = s->at[n->arg[1]];
    int64_t count = epi_axes_size(&n->over, s->sizes);
    if (a.low < -1 || a.high > 1)
        return between((exact)INT64_MIN - 1, INT64_MAX);
    return sum_of(a.low < 0 ? between(-size_of(b), size_of(b)) : b, count);
}

/* How many are ordered: the axes that stand behind that of the values. */
static int64_t places_of(const search *s, const epi_node *n) {
    epi_axes first = {1, {n->over.at[0]}}, places = epi_axes_without(&n->over, &first);
    return epi_axes_size(&places, s->sizes);
}

static epi_integer sorted(const search *s, const epi_node *n) {
    int64_t values = epi_axis_size(n->over.at[0], s->sizes), count = places_of(s, n);
    if (n->op == EPI_OP_OFFSETS) /* it has no places of its own */
        count = epi_axes_size(&s->g->nodes[n->arg[0]].axes, s->sizes);
    bool of_values = n->op == EPI_OP_SEGMENTS || n->op == EPI_OP_TOPK;
    return between(0, of_values ? most(values - 1, 0) : count);
}

static epi_integer leaf(const search *s, const epi_node *n) {
    if (n->op == EPI_OP_CONST)
        return between((exact)n->value, (exact)n->value);
    if (n->op == EPI_OP_INPUT)
        switch (s->spec->types[n->tensor]) {
        case EPI_I8: return between(INT8_MIN, INT8_MAX);
        case EPI_U8: return between(0, UINT8_MAX);
        case EPI_I32: return between(INT32_MIN, INT32_MAX);
        default: return between(INT64_MIN, INT64_MAX);
        }
    int64_t size = epi_axis_size(n->over.at[0], s->sizes);
    bool open = n->op == EPI_OP_SIZE && s->spec->is_open[n->over.at[0].dim];
    return n->op == EPI_OP_INDEX ? between(0, most(size - 1, 0)) : between(open ? 0 : size, size);
}

static bool is_held(int64_t low, int64_t high) {
    return low >= -HELD - 1 && high <= HELD + 1;
}

/* Of no large integers the largest is the least of all, and the least the largest. */
static epi_integer extreme_of(const search *s, const epi_node *n, epi_integer a) {
    int64_t none = n->op == EPI_OP_RMAX ? INT64_MIN : INT64_MAX;
    bool empty = epi_axes_size(&n->over, s->sizes) == 0;
    return empty && !is_held(a.low, a.high) ? either(a, between(none, none)) : a;
}

static epi_integer range_of(const search *s, const epi_node *n) {
    epi_integer a = n->arg[0] == EPI_NO_NODE ? (epi_integer){0} : s->at[n->arg[0]];
    switch (epi_ops[n->op].cls) {
    case EPI_CLASS_MAP: return mapped(s, n);
    case EPI_CLASS_REDUCE:
        return n->op == EPI_OP_SUM ? sum_of(a, epi_axes_size(&n->over, s->sizes)) : extreme_of(s, n, a);
    case EPI_CLASS_SPLIT: return n->arg[1] == EPI_NO_NODE ? a : either(a, s->at[n->arg[1]]);
    case EPI_CLASS_SHIFT: return or_zero(a);
    case EPI_CLASS_SCAN: return scanned(s, n);
    case EPI_CLASS_MOVE:
        return n->op == EPI_OP_GATHER   ? or_zero(a)
               : epi_op_scatters(n->op) ? sum_of(a, epi_axes_size(&s->g->nodes[n->arg[1]].axes, s->sizes))
                                        : either(a, s->at[n->arg[2]]);
    case EPI_CLASS_SORT: return sorted(s, n);
    case EPI_CLASS_LEAF: return leaf(s, n);
    default: return a;
    }
}

/* Is it an input, or a number that f32 holds, or does it have elements of such alone? */
static bool is_moved(const search *s, const epi_node *n) {
    if (n->op == EPI_OP_INPUT)
        return true;
    if (n->op == EPI_OP_CONST)
        return fabs(n->value) <= (double)HELD;
    bool moved = n->op == EPI_OP_WHERE || n->op == EPI_OP_GATHER || n->op == EPI_OP_RENAME ||
                 epi_op_has_halves(n->op) || n->op == EPI_OP_SHIFT;
    for (int a = n->op == EPI_OP_WHERE; a < epi_node_operands(n) && moved; a++)
        moved = a == epi_op_index(n->op) || s->at[n->arg[a]].moved;
    return moved;
}

/* ---- what readers tell apart ---- */

/* Some reader tells integers from `from` to `to` apart of this value, of those that it may be. */
static void want(search *s, int node, exact from, exact to) {
    epi_integer *a = &s->at[node];
    if (!a->is || from > to)
        return;
    bool first = a->from > a->to;
    from = least(most(from, a->low), a->high);
    to = most(least(to, a->high), a->low);
    a->from = (int64_t)(first ? from : least(a->from, from));
    a->to = (int64_t)(first ? to : most(a->to, to));
}

static void want_all(search *s, int node) {
    want(s, node, INT64_MIN, INT64_MAX);
}

/* It becomes a float. Of a leaf that is rounded once, as it is to be. */
static void want_float(search *s, int node) {
    if (!epi_op_is_leaf(s->g->nodes[node].op))
        want(s, node, -FLOAT, FLOAT);
}

/* Are elements of inputs compared, each of these with each of those, or all with one number? Masks of documents and of
 * labels are made so. They are made where they are used, of what f32 holds: it tells such numbers apart unless both are
 * beyond it, and a run refuses that. */
static epi_assumed assumed_of(const search *s, const epi_node *n) {
    const epi_integer *a = &s->at[n->arg[0]], *b = &s->at[n->arg[1]];
    int axes = n->axes.count, of_a = s->g->nodes[n->arg[0]].axes.count,
        of_b = s->g->nodes[n->arg[1]].axes.count;
    if (!a->moved || !b->moved || is_held(a->low, a->high) || is_held(b->low, b->high))
        return EPI_ASSUMED_NOTHING;
    bool inputs = s->g->nodes[n->arg[0]].op == EPI_OP_INPUT && s->g->nodes[n->arg[1]].op == EPI_OP_INPUT;
    return (!of_a || !of_b) && inputs                       ? EPI_ASSUMED_ONE
           : !of_a || !of_b || (axes > of_a && axes > of_b) ? EPI_ASSUMED_ALL
                                                            : EPI_ASSUMED_NOTHING;
}

/* That much is assumed of the operand, or more. */
static void assume(search *s, int operand, epi_assumed what) {
    epi_integer *a = &s->at[operand];
    a->assumed = a->moved && what > a->assumed ? what : a->assumed;
}

/* Two integers are compared: of each, how it stands to all that the other may be. */
static void want_order(search *s, const epi_node *n) {
    epi_integer a = s->at[n->arg[0]], b = s->at[n->arg[1]];
    epi_assumed assumed = assumed_of(s, n);
    for (int i = 0; i < 2 && assumed; i++) {
        want(s, n->arg[i], -HELD, HELD);
        assume(s, n->arg[i], assumed);
    }
    if (assumed)
        return;
    if (!a.is || !b.is) {
        want_float(s, n->arg[0]);
        want_float(s, n->arg[1]);
        return;
    }
    want(s, n->arg[0], (exact)b.low - 1, (exact)b.high + 1);
    want(s, n->arg[1], (exact)a.low - 1, (exact)a.high + 1);
}

/* As far from 0 as the result is told apart. */
static void want_size(search *s, int node, epi_integer of) {
    exact far = most(-(exact)of.from, of.to);
    want(s, node, -far, far);
}

static void want_by_map(search *s, const epi_node *n, epi_integer y) {
    epi_quotient q;
    const epi_integer *a = &s->at[n->arg[0]], *b = epi_ops[n->op].arity > 1 ? &s->at[n->arg[1]] : a;
    switch (n->op) {
    case EPI_OP_NEG: want(s, n->arg[0], -(exact)y.to, -(exact)y.from); break;
    case EPI_OP_ADD:
        want(s, n->arg[0], (exact)y.from - b->high, (exact)y.to - b->low);
        want(s, n->arg[1], (exact)y.from - a->high, (exact)y.to - a->low);
        break;
    case EPI_OP_SUB:
        want(s, n->arg[0], (exact)y.from + b->low, (exact)y.to + b->high);
        want(s, n->arg[1], (exact)a->low - y.to, (exact)a->high - y.from);
        break;
    case EPI_OP_MUL:
    case EPI_OP_ABS:
        for (int i = 0; i < epi_ops[n->op].arity; i++)
            if (y.wraps) /* then all of an operand tells */
                want_all(s, n->arg[i]);
            else
                want_size(s, n->arg[i], y);
        break;
    case EPI_OP_MIN:
        want(s, n->arg[0], y.from, least(y.to, (exact)b->high + 1));
        want(s, n->arg[1], y.from, least(y.to, (exact)a->high + 1));
        break;
    case EPI_OP_MAX:
        want(s, n->arg[0], most(y.from, (exact)b->low - 1), y.to);
        want(s, n->arg[1], most(y.from, (exact)a->low - 1), y.to);
        break;
    case EPI_OP_RELU: want(s, n->arg[0], most(y.from, -1), y.to); break;
    case EPI_OP_SIGN: want(s, n->arg[0], -1, 1); break;
    case EPI_OP_ROUND:
    case EPI_OP_I32:
    case EPI_OP_I64: want(s, n->arg[0], y.from, y.to); break;
    case EPI_OP_FLOOR:
        if (quotient_at(s->g, n, s->at, &q)) {
            want_all(s, q.a);
            if (q.b != EPI_NO_NODE)
                want_all(s, q.b);
        } else {
            want(s, n->arg[0], y.from, y.to);
        }
        break;
    default: /* // and % */
        want_all(s, n->arg[0]);
        want_all(s, n->arg[1]);
        break;
    }
}

/* An index is told apart along its axes. */
static void want_index(search *s, const epi_node *n, int operand) {
    epi_axes along = epi_index_along(s->g, n);
    want(s, n->arg[operand], -1, epi_axes_size(&along, s->sizes));
}

/* A condition, an operand of `and`: is it 0? */
static void want_truth(search *s, int node) {
    want(s, node, -1, 1);
}

/* Elements of this operand are elements of the result. */
static void pass_on(search *s, int operand, epi_integer y) {
    want(s, operand, y.from, y.to);
    assume(s, operand, y.assumed);
}

/* What a value wants of its operands. */
static void want_operands(search *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    epi_integer y = s->at[node];
    int operands = epi_node_operands(n);
    if (n->op == EPI_OP_AND || n->op == EPI_OP_OR || n->op == EPI_OP_NOT) {
        for (int a = 0; a < operands; a++)
            want_truth(s, n->arg[a]);
    } else if (epi_op_compares(n->op)) {
        want_order(s, n);
    } else if (n->op == EPI_OP_WHERE || n->op == EPI_OP_GATHER || n->op == EPI_OP_UPDATE ||
               n->op == EPI_OP_SHIFT || epi_op_has_halves(n->op) || epi_op_is_view(n->op) ||
               n->op == EPI_OP_RMAX || n->op == EPI_OP_RMIN) {
        for (int a = 0; a < operands; a++)
            if (n->op == EPI_OP_WHERE && !a)
                want_truth(s, n->arg[a]);
            else if (a == epi_op_index(n->op))
                want_index(s, n, a);
            else if (y.is)
                pass_on(s, n->arg[a], y);
            else
                want_float(s, n->arg[a]);
    } else if (epi_op_orders(n->op)) {
        want_index(s, n, 0);
    } else if (n->op == EPI_OP_SEGMENTS) { /* offsets are compared with places */
        want(s, n->arg[0], -1, places_of(s, n));
    } else if (epi_op_scatters(n->op)) {
        want_index(s, n, 1);
        (y.is ? want_all : want_float)(s, n->arg[0]);
    } else if (epi_op_draws(n->op) || (n->op == EPI_OP_FLOOR && !y.is)) {
        for (int a = 0; a < operands && !epi_op_draws(n->op); a++) /* a seed is an input, as it is */
            want_float(s, n->arg[a]);
    } else if (epi_op_is_map(n->op) && y.is) {
        want_by_map(s, n, y);
    } else {
        for (int a = 0; a < operands; a++)
            (y.is ? want_all : want_float)(s, n->arg[a]);
    }
}

/* A result in 8 bits is the largest of these for all that is beyond. Elements of inputs are rounded once on their way to
 * f32, whether where they are loaded or where they are stored. */
static void want_by_output(search *s, int node, epi_dtype type) {
    if (type == EPI_F32 && s->at[node].moved)
        want(s, node, 0, 0);
    else if (type == EPI_I8)
        want(s, node, INT8_MIN - 1, INT8_MAX + 1);
    else if (type == EPI_U8)
        want(s, node, -1, UINT8_MAX + 1);
    else
        want_all(s, node);
}

bool epi_integer_is_computed(const epi_graph *g, const epi_integer *at, int node) {
    const epi_node *n = &g->nodes[node];
    bool truth =
        n->op == EPI_OP_AND || n->op == EPI_OP_OR || n->op == EPI_OP_NOT; /* 0 is 0, however it is held */
    if (!at[node].is || truth || epi_op_is_view(n->op) || n->op == EPI_OP_INPUT)
        return false;
    bool compares = epi_op_compares(n->op), sorts = epi_op_gives_places(n->op),
         large = at[node].large && !sorts;
    epi_quotient q;
    if (epi_quotient_find(g, at, node, &q))
        return large || at[q.a].large || (q.b != EPI_NO_NODE && at[q.b].large);
    for (int a = 0; a < epi_node_operands(n); a++) {
        if (compares && !at[n->arg[a]].is)
            return false; /* with a float it is one */
        large |= at[n->arg[a]].large && a != epi_op_index(n->op) && n->op != EPI_OP_SEGMENTS;
    }
    return large;
}

bool epi_integer_is_beyond_f64(const epi_integer *at) {
    const int64_t held = (int64_t)1 << 53;
    return at->is && (at->low < -held || at->high > held);
}

const epi_integer *epi_integers_find(epi_arena *arena, const epi_spec *spec) {
    const epi_graph *g = spec->graph;
    search s = {.spec = spec, .g = g, .sizes = spec->open ? spec->open->largest : spec->sizes};
    bool *is = epi_integers_kinds(arena, g, spec->types);
    s.at = epi_arena_alloc(arena, ((size_t)g->node_count + 1) * sizeof *s.at);
    if (!is || !s.at)
        return NULL;
    for (int i = 0; i < g->node_count; i++) {
        s.at[i] = is[i] ? range_of(&s, &g->nodes[i]) : (epi_integer){.from = 1};
        s.at[i].from = 1;
        s.at[i].to = 0;
        s.at[i].moved = is[i] && is_moved(&s, &g->nodes[i]);
    }
    for (int t = g->input_count; t < g->tensor_count; t++)
        want_by_output(&s, g->tensors[t].node, spec->types[t]);
    for (int i = g->node_count - 1; i >= 0; i--) { /* users come first */
        epi_integer *a = &s.at[i];
        if (!g->live[i] || (a->is && a->from > a->to))
            continue;
        want_operands(&s, i);
        a->large = a->is && !is_held(a->low, a->high) && (a->wraps || a->from < -HELD || a->to > HELD);
    }
    return s.at;
}
