/* simplify.c: what a rule of ops.def says in general becomes what one would write.
 *
 * Every value is brought into a *monomial*: a number times powers of other values. A factor of a product that
 * is used once and has no name is taken apart, so all of it is one monomial. Then
 *     numbers and signs are one number;
 *     equal terms of a sum are one term, and zeros are left out;
 *     two joins that are added are one join of sums;
 *     a factor that lacks the axes of a sum goes out of it, and a sum over an axis that nothing has is a
 *     multiplication by its size; what stays is a product of two operands where it is one;
 *     factors of few axes are multiplied with each other first: per row, not per element.
 *     what all terms are divided by goes out of their sum, and a quotient that is there stands for its two,
 *     or its logarithm does;
 *     x - mean(x, X) sums to 0 over X.
 * Nothing else is left out that is not the same for infinity and NaN: x*0 and x - x stay. */
#include "pass/derive/simplify.h"

#include <math.h>
#include <string.h>

#include "pass/rewrite/normal.h"

enum { MOST_TERMS = 32 };

/* Terms that are added. */
typedef struct terms {
    epi_monomial at[MOST_TERMS];
    int count; /* beyond the room: it stays as it is */
} terms;

typedef struct rewrite {
    const epi_graph *in;
    epi_graph *g;            /* new */
    epi_facts facts;         /* of that */
    int first;               /* old nodes from here on are derived: the others stay as they are */
    int written;             /* and new ones from here on */
    epi_monomial *monomials; /* by old node, from `first` on */
    int *value;              /* by old node: its value in the new graph, or EPI_NO_NODE: not written yet */
    bool with_results;       /* old nodes before `first` are wanted for themselves */
    bool *sigmoid;           /* by old node: its sigmoid is a value of the program */
    terms *terms;            /* scratch */
    int *quotients, quotient_count; /* old nodes a/b, and a - log(b), that stay as they are */
} rewrite;

/* ---- values of the old graph ---- */

static int value_of(rewrite *r, int node) {
    if (r->value[node] == EPI_NO_NODE && !epi_graph_failed(r->g))
        r->value[node] = epi_graph_value(r->g, epi_monomial_build(r->g, &r->monomials[node]));
    return r->value[node];
}

/* Is it written where it is used? */
static bool is_open(const rewrite *r, int node) {
    return node >= r->first && !r->in->nodes[node].name && !r->in->nodes[node].has_stored &&
           epi_graph_uses(r->in, node).count == 1;
}

static epi_monomial monomial_of(rewrite *r, int node) {
    return is_open(r, node) ? r->monomials[node] : epi_monomial_of(r->g, value_of(r, node), 1);
}

/* An operand with all the axes it had. */
static int operand(rewrite *r, const epi_node *n, int a) {
    if (n->arg[a] == EPI_NO_NODE)
        return EPI_NO_NODE;
    int value = value_of(r, n->arg[a]);
    return epi_graph_complete(r->g, value, &r->in->nodes[n->arg[a]].axes);
}

/* The factor exp(node), or -1. */
static int find_exp(const rewrite *r, const epi_monomial *f, int node) {
    for (int i = 0; i < f->count; i++) {
        const epi_node *n = &r->g->nodes[f->at[i].node];
        if (n->op == EPI_OP_EXP && n->arg[0] == node && f->at[i].power == 1)
            return i;
    }
    return -1;
}

/* Where a/b is a value of the program, as in a softmax, it stands for a over b; and where a - log(b) is one,
 * as in a log-softmax, exp of that stands for exp(a) over b. */
static void find_quotients(rewrite *r, epi_monomial *f) {
    bool divides = false;
    for (int i = 0; i < f->count; i++)
        divides |= f->at[i].power < 0;
    for (int q = 0; q < r->quotient_count && divides; q++) {
        const epi_node *n = &r->in->nodes[r->quotients[q]];
        bool logs = n->op == EPI_OP_SUB;
        int over = logs ? r->in->nodes[n->arg[1]].arg[0] : n->arg[1];
        int a = logs ? find_exp(r, f, r->value[n->arg[0]]) : epi_monomial_find(f, r->value[n->arg[0]], 1);
        int b = epi_monomial_find(f, r->value[over], -1), stands = r->value[r->quotients[q]];
        if (a < 0 || b < 0)
            continue;
        if (logs)
            stands = epi_graph_map1(r->g, EPI_OP_EXP, stands);
        if (epi_graph_failed(r->g))
            return;
        epi_monomial value = epi_monomial_of(r->g, epi_graph_value(r->g, stands), 1);
        epi_monomial without = {.number = f->number};
        for (int i = 0; i < f->count; i++) {
            epi_monomial_factor rest = f->at[i];
            rest.power -= i == a ? 1 : i == b ? -1 : 0;
            if (rest.power)
                without.at[without.count++] = rest;
        }
        if (epi_monomial_multiply(r->g, &without, &value, 1))
            *f = without;
    }
}

/* max(x, 1), a size and the like: what may divide 0. */
static bool is_above_zero(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    if (n->op == EPI_OP_SQRT || n->op == EPI_OP_RSQRT)
        n = &g->nodes[n->arg[0]];
    return n->op == EPI_OP_SIZE || epi_is_clamped(g, n);
}

static epi_monomial scaled(rewrite *r, const epi_node *n) {
    epi_monomial a = monomial_of(r, n->arg[0]), b = monomial_of(r, n->arg[1]);
    int sign = n->op == EPI_OP_MUL ? 1 : -1;
    if (epi_monomial_multiply(r->g, &a, &b, sign)) {
        find_quotients(r, &a);
        return a;
    }
    a = epi_monomial_of(r->g, value_of(r, n->arg[0]), 1);
    b = epi_monomial_of(r->g, value_of(r, n->arg[1]), 1);
    return epi_monomial_multiply(r->g, &a, &b, sign)
               ? a
               : epi_monomial_of(
                     r->g, epi_graph_map2(r->g, n->op, value_of(r, n->arg[0]), value_of(r, n->arg[1])), 1);
}

/* ---- sums of terms ---- */

/* So deep and no deeper: a value that is used often has a long chain of sums as its gradient. */
static void collect_terms(rewrite *r, int node, double sign, int depth, terms *out) {
    const epi_node *n = &r->in->nodes[node];
    if (is_open(r, node) && epi_op_has_terms(n->op) && depth < MOST_TERMS) {
        collect_terms(r, n->arg[0], sign, depth + 1, out);
        collect_terms(r, n->arg[1], n->op == EPI_OP_SUB ? -sign : sign, depth + 1, out);
        return;
    }
    if (out->count < MOST_TERMS) {
        out->at[out->count] = monomial_of(r, node);
        out->at[out->count].number *= sign;
    }
    out->count++;
}

/* The monomial with products that are values of the program written out; false where there is no room. */
static bool write_out(const epi_graph *g, const epi_monomial *f, int depth, epi_monomial *out) {
    *out = (epi_monomial){.number = f->number};
    for (int i = 0; i < f->count; i++) {
        const epi_node *n = &g->nodes[f->at[i].node];
        if (f->at[i].power != 1 || !epi_op_has_factors(n->op) || depth == EPI_MOST_FACTORS) {
            epi_monomial one = {.number = 1, .count = 1, .at = {f->at[i]}};
            if (!epi_monomial_multiply(g, out, &one, 1))
                return false;
            continue;
        }
        epi_monomial a = epi_monomial_of(g, n->arg[0], 1), b = epi_monomial_of(g, n->arg[1], 1), inner = a,
                     whole;
        if (!epi_monomial_multiply(g, &inner, &b, n->op == EPI_OP_MUL ? 1 : -1) ||
            !write_out(g, &inner, depth + 1, &whole) || !epi_monomial_multiply(g, out, &whole, 1))
            return false;
    }
    return true;
}

/* Are the terms the same but for their numbers, also where one has a product as a value and the other its
 * factors? */
static bool are_equal(const epi_graph *g, const epi_monomial *a, const epi_monomial *b) {
    epi_monomial x, y;
    return epi_monomials_match(a, b) ||
           (write_out(g, a, 0, &x) && write_out(g, b, 0, &y) && epi_monomials_match(&x, &y) &&
            x.number == a->number && y.number == b->number);
}

static void drop_term(terms *t, int at) {
    memmove(&t->at[at], &t->at[at + 1], (size_t)(t->count - at - 1) * sizeof *t->at);
    t->count--;
}

static void merge_equal(const epi_graph *g, terms *t) {
    for (int i = 0; i < t->count; i++)
        for (int j = i + 1; j < t->count; j++)
            if (are_equal(g, &t->at[i], &t->at[j]) && t->at[i].number + t->at[j].number != 0) {
                t->at[i].number += t->at[j].number;
                drop_term(t, j--);
            }
}

/* Zero whatever the inputs are. */
static bool is_zero(const epi_graph *g, const epi_monomial *f) {
    for (int i = 0; i < f->count; i++) {
        epi_op op = g->nodes[f->at[i].node].op;
        if (op == EPI_OP_MUL && f->count == 1)
            return epi_is_zeros(g, f->at[i].node);
        if (op != EPI_OP_INDEX && op != EPI_OP_SIZE)
            return false;
    }
    return f->number == 0;
}

static bool has_axes_of(const epi_graph *g, const epi_monomial *a, const epi_monomial *b) {
    for (int i = 0; i < b->count; i++) {
        epi_axes left = g->nodes[b->at[i].node].axes;
        for (int j = 0; j < a->count; j++)
            left = epi_axes_without(&left, &g->nodes[a->at[j].node].axes);
        if (left.count)
            return false;
    }
    return true;
}

/* Leaves out zeros whose axes another term has. */
static void drop_zeros(const epi_graph *g, terms *t) {
    for (int i = 0; i < t->count; i++)
        for (int j = 0; j < t->count && is_zero(g, &t->at[i]); j++)
            if (j != i && has_axes_of(g, &t->at[j], &t->at[i])) {
                drop_term(t, i--);
                break;
            }
}

static int build_sum(epi_graph *g, terms *t, double *sign);

static int add_nodes(epi_graph *g, int a, int b) {
    terms two = {.at = {epi_monomial_of(g, a, 1), epi_monomial_of(g, b, 1)}, .count = 2};
    double sign;
    drop_zeros(g, &two);
    int value = build_sum(g, &two, &sign);
    return sign < 0 ? epi_graph_map1(g, EPI_OP_NEG, value) : value;
}

/* join(a, b) + join(c, d) */
static void merge_joins(epi_graph *g, terms *t) {
    for (int i = 0; i < t->count; i++)
        for (int j = i + 1; j < t->count && !epi_graph_failed(g); j++) {
            if (!epi_monomials_join(g, &t->at[i], &t->at[j]))
                continue;
            epi_node a = g->nodes[t->at[i].at[0].node], b = g->nodes[t->at[j].at[0].node];
            int low = add_nodes(g, a.arg[0], b.arg[0]), high = add_nodes(g, a.arg[1], b.arg[1]);
            t->at[i] =
                epi_monomial_of(g, epi_graph_value(g, epi_graph_join(g, a.op, low, high, a.over.at[0])), 1);
            drop_term(t, j--);
        }
}

/* The sum, or where all its terms have a minus, what it is the negative of. */
static int build_sum(epi_graph *g, terms *t, double *sign) {
    int head = 0;
    while (head < t->count && t->at[head].number < 0)
        head++;
    *sign = head == t->count ? -1 : 1;
    head = head == t->count ? 0 : head;
    int value = epi_monomial_build_positive(g, &t->at[head]);
    for (int i = 0; i < t->count; i++)
        if (i != head)
            value = epi_graph_map2(g, t->at[i].number * *sign < 0 ? EPI_OP_SUB : EPI_OP_ADD, value,
                                   epi_monomial_build_positive(g, &t->at[i]));
    return epi_graph_value(g, value);
}

/* What all terms are divided by, once, goes out of their sum. */
static epi_monomial take_divisors(terms *t) {
    epi_monomial out = {.number = 1};
    for (int i = 0; i < t->at[0].count; i++) {
        int node = t->at[0].at[i].node, shared = t->at[0].at[i].power < 0;
        for (int k = 1; k < t->count && shared; k++)
            shared = epi_monomial_find(&t->at[k], node, -1) >= 0;
        if (!shared)
            continue;
        out.at[out.count++] = (epi_monomial_factor){node, -1};
        for (int k = 0; k < t->count; k++) {
            epi_monomial *f = &t->at[k];
            int at = epi_monomial_find(f, node, -1);
            if (++f->at[at].power == 0) {
                epi_monomial_drop(f, at);
                i -= k == 0;
            }
        }
    }
    return out;
}

static epi_monomial added(rewrite *r, const epi_node *n) {
    terms *t = r->terms;
    t->count = 0;
    collect_terms(r, n->arg[0], 1, 0, t);
    collect_terms(r, n->arg[1], n->op == EPI_OP_SUB ? -1 : 1, 0, t);
    if (t->count > MOST_TERMS)
        return epi_monomial_of(
            r->g, epi_graph_map2(r->g, n->op, value_of(r, n->arg[0]), value_of(r, n->arg[1])), 1);
    drop_zeros(r->g, t);
    merge_joins(r->g, t);
    merge_equal(r->g, t);
    if (t->count == 1)
        return t->at[0];
    double sign;
    epi_monomial out = take_divisors(t), f = epi_monomial_of(r->g, build_sum(r->g, t, &sign), 1);
    f.number *= sign;
    return epi_monomial_multiply(r->g, &f, &out, 1)
               ? f
               : epi_monomial_of(r->g,
                                 epi_graph_map2(r->g, EPI_OP_MUL, epi_monomial_build(r->g, &f),
                                                epi_monomial_build(r->g, &out)),
                                 1);
}

/* ---- sums over axes ---- */

/* x - mean(x, X), whose sum over X is 0. */
static bool is_centred(const epi_graph *g, int node, const epi_axes *over) {
    const epi_node *n = &g->nodes[node];
    if (n->op != EPI_OP_SUB || g->nodes[n->arg[1]].op != EPI_OP_MEAN)
        return false;
    const epi_node *mean = &g->nodes[n->arg[1]];
    return mean->arg[0] == n->arg[0] && epi_axes_same_set(&mean->over, over);
}

/* Is its sum over these axes 0, because all of it that has them is centred? */
static bool sums_to_zero(const epi_graph *g, const epi_monomial *f, const epi_axes *over) {
    int inside = -1;
    for (int i = 0; i < f->count; i++)
        if (epi_axes_meet(&g->nodes[f->at[i].node].axes, over)) {
            if (inside >= 0 || f->at[i].power != 1)
                return false;
            inside = i;
        }
    return inside >= 0 && is_centred(g, f->at[inside].node, over);
}

/* A sum of terms some of which sum to 0, as the sums of the others; false: it has none such. */
static bool sum_terms(rewrite *r, const epi_node *n, epi_monomial *out) {
    epi_graph *g = r->g;
    bool minus = r->in->nodes[n->arg[0]].op == EPI_OP_NEG;
    int of = minus ? r->in->nodes[n->arg[0]].arg[0] : n->arg[0];
    const epi_node *sum = &r->in->nodes[of];
    terms *t = r->terms;
    if (of < r->first || !epi_op_has_terms(sum->op))
        return false;
    double sign = minus ? -1 : 1;
    t->count = 0;
    collect_terms(r, sum->arg[0], sign, 0, t);
    collect_terms(r, sum->arg[1], sum->op == EPI_OP_SUB ? -sign : sign, 0, t);
    int all = t->count;
    if (all > MOST_TERMS)
        return false;
    for (int i = 0; i < t->count; i++)
        if (t->count > 1 && sums_to_zero(g, &t->at[i], &n->over))
            drop_term(t, i--);
    if (t->count == all)
        return false;
    for (int i = 0; i < t->count && !epi_graph_failed(g); i++)
        t->at[i] = epi_normal_sum(&r->facts, &t->at[i], &n->over);
    *out = t->at[0];
    if (t->count > 1) {
        *out = epi_monomial_of(g, build_sum(g, t, &sign), 1);
        out->number *= sign;
    }
    return true;
}

static epi_monomial summed(rewrite *r, const epi_node *n) {
    epi_monomial all;
    if (sum_terms(r, n, &all))
        return all;
    all = monomial_of(r, n->arg[0]);
    return epi_normal_sum(&r->facts, &all, &n->over);
}

/* An operand that lets numbers and scalars go, which *out is multiplied by. */
static int freed_operand(rewrite *r, const epi_node *n, int a, epi_monomial *out) {
    epi_graph *g = r->g;
    epi_monomial f = monomial_of(r, n->arg[a]), kept = {.number = 1}, gone = {.number = f.number};
    for (int i = 0; i < f.count; i++) {
        epi_monomial *to = g->nodes[f.at[i].node].axes.count ? &kept : &gone;
        to->at[to->count++] = f.at[i];
    }
    bool kept_all =
        (gone.number == 1 && !gone.count) || !kept.count || !epi_monomial_multiply(g, out, &gone, 1);
    int value = kept_all ? value_of(r, n->arg[a]) : epi_monomial_build(g, &kept);
    return epi_graph_complete(g, value, &r->in->nodes[n->arg[a]].axes);
}

static epi_monomial times_node(epi_graph *g, epi_monomial f, int node) {
    epi_monomial core = {.number = 1};
    if (!epi_graph_failed(g))
        core = epi_monomial_of(g, epi_graph_value(g, node), 1);
    if (epi_monomial_multiply(g, &f, &core, 1))
        return f;
    return epi_monomial_of(
        g, epi_graph_map2(g, EPI_OP_MUL, epi_monomial_build(g, &f), epi_monomial_build(g, &core)), 1);
}

static epi_monomial contracted(rewrite *r, const epi_node *n) {
    epi_monomial out = {.number = 1};
    int a = freed_operand(r, n, 0, &out), b = freed_operand(r, n, 1, &out);
    return times_node(r->g, out, epi_graph_contract(r->g, a, b, &n->over));
}

static epi_monomial scattered(rewrite *r, const epi_node *n) {
    epi_monomial out = {.number = 1};
    int a = freed_operand(r, n, 0, &out), b = operand(r, n, 1);
    return times_node(r->g, out, epi_graph_move(r->g, n->op, a, b, EPI_NO_NODE, n->over.at[0]));
}

/* ---- other operations ---- */

static int rebuild(rewrite *r, int node) {
    const epi_node *n = &r->in->nodes[node];
    int arg[] = {operand(r, n, 0), operand(r, n, 1), operand(r, n, 2)};
    return epi_ops[n->op].cls == EPI_CLASS_LEAF ? epi_graph_rebuild(r->g, n, arg)
                                                : epi_graph_apply(r->g, n->op, arg, &n->over);
}

/* where(c, x, 0) lets numbers and signs go, and divisors that are not 0. */
static epi_monomial chosen(rewrite *r, int condition, int node, bool second) {
    epi_monomial f = monomial_of(r, node), out = {.number = f.number}, kept = {.number = 1};
    int zero = epi_graph_const(r->g, 0), value;
    for (int i = 0; i < f.count; i++) {
        bool goes = f.at[i].power < 0 && is_above_zero(r->g, f.at[i].node);
        epi_monomial *to = goes ? &out : &kept;
        to->at[to->count++] = f.at[i];
    }
    if (f.number == 0 || !kept.count || (f.number == 1 && !out.count)) {
        out = (epi_monomial){.number = 1};
        value = value_of(r, node);
    } else {
        value = epi_monomial_build(r->g, &kept);
    }
    if (epi_graph_failed(r->g))
        return out;
    int choice = epi_graph_map(r->g, EPI_OP_WHERE, condition, second ? zero : value, second ? value : zero);
    epi_monomial core = epi_monomial_of(r->g, epi_graph_value(r->g, choice), 1);
    return epi_monomial_multiply(r->g, &out, &core, 1) ? out : core;
}

static epi_monomial mapped(rewrite *r, const epi_node *n) {
    int arg[3], arity = epi_ops[n->op].arity;
    double x[3] = {0, 0, 0}, number;
    bool constant = true;
    for (int a = 0; a < arity && !(n->op == EPI_OP_WHERE && a); a++) {
        arg[a] = value_of(r, n->arg[a]);
        constant &= epi_is_number(r->g, arg[a], &x[a]);
    }
    if (epi_graph_failed(r->g))
        return (epi_monomial){.number = 0};
    if (n->op == EPI_OP_WHERE) {
        if (constant)
            return monomial_of(r, n->arg[x[0] != 0 ? 1 : 2]);
        for (int a = 1; a < 3; a++)
            if (epi_is_zero(r->in, n->arg[a]))
                return chosen(r, arg[0], n->arg[3 - a], a == 1);
        arg[1] = value_of(r, n->arg[1]);
        arg[2] = value_of(r, n->arg[2]);
    } else if (constant) {
        double y = epi_op_reference(n->op, x[0], x[1], x[2]);
        if (isfinite(y))
            return (epi_monomial){.number = y};
    }
    if (n->op == EPI_OP_POW && epi_is_number(r->g, arg[1], &number) &&
        (number == 1 || number == 2 || number == 3))
        return epi_monomial_of(r->g, arg[0], (int)number);
    for (int a = arity; a < 3; a++)
        arg[a] = EPI_NO_NODE;
    if (epi_graph_failed(r->g))
        return (epi_monomial){.number = 0};
    return epi_monomial_of(r->g, epi_graph_value(r->g, epi_graph_map(r->g, n->op, arg[0], arg[1], arg[2])),
                           1);
}

static epi_monomial rewritten(rewrite *r, int node) {
    const epi_node *n = &r->in->nodes[node];
    epi_monomial f;
    switch (n->op) {
    case EPI_OP_MUL:
    case EPI_OP_DIV: return scaled(r, n);
    case EPI_OP_ADD:
    case EPI_OP_SUB: return added(r, n);
    case EPI_OP_SUM: return summed(r, n);
    case EPI_OP_MATMUL: return contracted(r, n);
    case EPI_OP_SCATTER: return scattered(r, n);
    case EPI_OP_NEG:
        f = monomial_of(r, n->arg[0]);
        f.number = -f.number;
        return f;
    default:
        if (epi_ops[n->op].cls == EPI_CLASS_MAP)
            return mapped(r, n);
        return epi_monomial_of(r->g, epi_graph_value(r->g, rebuild(r, node)), 1);
    }
}

/* A value that stays as it is; but where there is sigmoid(x), silu(x) is x times it. */
static int copied(rewrite *r, const epi_node *n) {
    if (n->op != EPI_OP_SILU || !r->sigmoid[n->arg[0]] || r->with_results)
        return epi_graph_copy(r->g, n, r->value);
    int x = r->value[n->arg[0]], s = epi_graph_map1(r->g, EPI_OP_SIGMOID, x);
    int value = epi_graph_map2(r->g, EPI_OP_MUL, x, s);
    if (value != EPI_NO_NODE && !r->g->nodes[value].name)
        r->g->nodes[value].name = n->name;
    if (value != EPI_NO_NODE)
        epi_graph_store_as(r->g, value, n);
    return value;
}

static void rewrite_nodes(rewrite *r) {
    epi_graph *g = r->g;
    for (int i = 0; i < r->in->node_count; i++) {
        r->value[i] = EPI_NO_NODE;
        const epi_node *n = &r->in->nodes[i];
        bool logs = n->op == EPI_OP_SUB && r->in->nodes[n->arg[1]].op == EPI_OP_LOG;
        if (i < r->first && r->in->live[i] && (n->op == EPI_OP_DIV || logs))
            r->quotients[r->quotient_count++] = i;
        if (r->in->live[i] && r->in->nodes[i].op == EPI_OP_SIGMOID)
            r->sigmoid[r->in->nodes[i].arg[0]] = true;
    }
    for (int i = 0; i < r->in->node_count && !epi_graph_failed(g); i++) {
        const epi_node *n = &r->in->nodes[i];
        g->place = n->place;
        if (!r->in->live[i] && n->op != EPI_OP_INPUT)
            continue;
        if (i < r->first || n->op == EPI_OP_INPUT) {
            r->value[i] = copied(r, n);
            r->written = i < r->first ? g->node_count : r->written;
            continue;
        }
        r->monomials[i] = rewritten(r, i);
        int value = n->name || n->has_stored ? value_of(r, i) : EPI_NO_NODE;
        if (value != EPI_NO_NODE && !g->nodes[value].name && g->nodes[value].op != EPI_OP_CONST)
            g->nodes[value].name = n->name;
        if (value != EPI_NO_NODE)
            epi_graph_store_as(g, value, n);
    }
}

static int simplify(const epi_graph *in, int first, bool with_results, epi_graph *out) {
    epi_arena *arena = out->arena;
    size_t nodes = (size_t)in->node_count + 1;
    rewrite r = {.in = in,
                 .g = out,
                 .facts = {.g = out, .strict = true},
                 .first = first,
                 .with_results = with_results};
    r.monomials = epi_arena_alloc(arena, nodes * sizeof *r.monomials);
    r.value = epi_arena_alloc(arena, nodes * sizeof *r.value);
    r.terms = epi_arena_alloc(arena, sizeof *r.terms);
    r.sigmoid = epi_arena_alloc(arena, nodes);
    r.quotients = epi_arena_alloc(arena, nodes * sizeof *r.quotients);
    if (!epi_graph_begin(out, in))
        return 0;
    rewrite_nodes(&r);
    for (int t = 0; t < in->tensor_count && !epi_graph_failed(out); t++) {
        int value = value_of(&r, in->tensors[t].node);
        if (!epi_graph_failed(out) && value >= r.written)
            value = epi_vanish_last(out, r.written, value);
        if (!epi_graph_failed(out))
            out->tensors[t].node = epi_graph_value(out, epi_graph_complete(out, value, &in->tensors[t].axes));
    }
    epi_graph_finish(out);
    return r.written;
}

void epi_simplify(const epi_graph *in, int first, epi_graph *out) {
    simplify(in, first, false, out);
}

int epi_simplify_with_results(const epi_graph *in, int first, epi_graph *out) {
    return simplify(in, first, true, out);
}
