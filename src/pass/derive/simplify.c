/* simplify.c: turns what the general rules of ops.def give into what one would write by hand.
 *
 * A gradient goes through a strict walk of the normal form (normal.c), with rules of its own:
 *     numbers and signs become one number, and functions of numbers become numbers;
 *     zeros are left out of sums; numbers and scalars move out of products and scatters;
 *     a divisor of all terms moves out of their sum; a quotient that exists already, or its logarithm,
 *     replaces its two operands;
 *     x - mean(x, X) sums to 0 over X;
 *     numbers, signs and divisors that are not 0 move out of where(c, x, 0).
 * Nothing else is simplified if infinity or NaN would give another result: x*0 and x - x stay. */
#include "pass/derive/simplify.h"

#include <math.h>
#include <string.h>

#include "pass/rewrite/algebra.h"

/* Old nodes a/b, and a - log(b), that stay as they are. */
typedef struct quotients {
    int *at, count;
} quotients;

/* ---- products ---- */

static epi_monomial monomial_of(epi_normal_walk *w, int node) {
    epi_monomial none = {.number = 0};
    return epi_graph_failed(w->g) ? none : epi_monomial_of(w->g, epi_graph_value(w->g, node), 1);
}

/* The factor exp(node), or -1. */
static int find_exp(const epi_graph *g, const epi_monomial *f, int node) {
    for (int i = 0; i < f->count; i++) {
        const epi_node *n = &g->nodes[f->at[i].node];
        if (n->op == EPI_OP_EXP && n->arg[0] == node && f->at[i].power == 1)
            return i;
    }
    return -1;
}

/* Where a/b is a value of the program, as in a softmax, it stands for a over b; and where a - log(b) is one,
 * as in a log-softmax, exp of that stands for exp(a) over b. */
static void find_quotients(epi_normal_walk *w, epi_monomial *f) {
    const quotients *all = w->request->strict->ctx;
    bool divides = false;
    for (int i = 0; i < f->count; i++)
        divides |= f->at[i].power < 0;
    for (int q = 0; q < all->count && divides; q++) {
        const epi_node *n = &w->in->nodes[all->at[q]];
        bool logs = n->op == EPI_OP_SUB;
        int over = logs ? w->in->nodes[n->arg[1]].arg[0] : n->arg[1], of = w->memo[n->arg[0]];
        int a = logs ? find_exp(w->g, f, of) : epi_monomial_find(f, of, 1);
        int b = epi_monomial_find(f, w->memo[over], -1), stands = w->memo[all->at[q]];
        if (a < 0 || b < 0)
            continue;
        if (logs)
            stands = epi_graph_map1(w->g, EPI_OP_EXP, stands);
        epi_monomial value = monomial_of(w, stands), without = {.number = f->number};
        for (int i = 0; i < f->count; i++) {
            epi_monomial_factor rest = f->at[i];
            rest.power -= i == a ? 1 : i == b ? -1 : 0;
            if (rest.power)
                without.at[without.count++] = rest;
        }
        if (epi_flat_multiply(w->facts, &without, &value, 1))
            *f = without;
    }
}

static epi_monomial scaled(epi_normal_walk *w, const epi_node *n) {
    epi_monomial a = epi_normal_monomial(w, n->arg[0]), b = epi_normal_monomial(w, n->arg[1]);
    if (!epi_flat_multiply(w->facts, &a, &b, n->op == EPI_OP_MUL ? 1 : -1))
        return epi_normal_rebuild(w, n);
    find_quotients(w, &a);
    return a;
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
static bool sum_terms(epi_normal_walk *w, const epi_node *n, epi_monomial *out) {
    bool minus = w->in->nodes[n->arg[0]].op == EPI_OP_NEG;
    int of = minus ? w->in->nodes[n->arg[0]].arg[0] : n->arg[0], left = 0;
    const epi_node *sum = &w->in->nodes[of];
    epi_monomial terms[2 * EPI_MOST_TERMS];
    if (of < w->request->strict->first || !epi_op_has_terms(sum->op))
        return false;
    int count = epi_normal_terms(w, sum, minus ? -1 : 1, terms);
    for (int i = 0; i < count; i++)
        if (left + count - i == 1 || !sums_to_zero(w->g, &terms[i], &n->over))
            terms[left++] = terms[i];
    if (left == count)
        return false;
    for (int i = 0; i < left && !epi_graph_failed(w->g); i++)
        terms[i] = epi_normal_sum(w->facts, &terms[i], &n->over, NULL);
    *out = epi_flat_add(w->facts, terms, left);
    return true;
}

/* An operand that lets numbers and scalars go, which *out is multiplied by. */
static int freed_operand(epi_normal_walk *w, const epi_node *n, int a, epi_monomial *out) {
    epi_graph *g = w->g;
    epi_monomial f = epi_normal_monomial(w, n->arg[a]), kept = {.number = 1}, gone = {.number = f.number};
    for (int i = 0; i < f.count; i++) {
        epi_monomial *to = g->nodes[f.at[i].node].axes.count ? &kept : &gone;
        to->at[to->count++] = f.at[i];
    }
    if ((gone.number == 1 && !gone.count) || !kept.count || !epi_flat_multiply(w->facts, out, &gone, 1))
        return epi_normal_operand(w, n, a);
    return epi_graph_complete(g, epi_monomial_build(g, &kept), &w->in->nodes[n->arg[a]].axes);
}

/* A product or a scatter. */
static epi_monomial moved(epi_normal_walk *w, const epi_node *n) {
    epi_monomial out = {.number = 1};
    bool product = n->op == EPI_OP_MATMUL;
    int a = freed_operand(w, n, 0, &out);
    int b = product ? freed_operand(w, n, 1, &out) : epi_normal_operand(w, n, 1);
    int value = product ? epi_graph_contract(w->g, a, b, &n->over)
                        : epi_graph_move(w->g, n->op, a, b, EPI_NO_NODE, &n->over);
    epi_monomial core = monomial_of(w, value);
    if (epi_graph_failed(w->g) || epi_flat_multiply(w->facts, &out, &core, 1))
        return out;
    return monomial_of(w, epi_graph_map2(w->g, EPI_OP_MUL, epi_monomial_build(w->g, &out), value));
}

/* ---- maps ---- */

/* max(x, 1), a size and the like: what may divide 0. */
static bool is_above_zero(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    if (n->op == EPI_OP_SQRT || n->op == EPI_OP_RSQRT)
        n = &g->nodes[n->arg[0]];
    return n->op == EPI_OP_SIZE || epi_is_clamped(g, n);
}

/* where(c, x, 0), or where(c, 0, x). */
static epi_monomial chosen(epi_normal_walk *w, int condition, int node, bool second) {
    epi_monomial f = epi_normal_monomial(w, node), out = {.number = f.number}, kept = {.number = 1};
    int zero = epi_graph_const(w->g, 0), value;
    for (int i = 0; i < f.count; i++) {
        bool goes = f.at[i].power < 0 && is_above_zero(w->g, f.at[i].node);
        epi_monomial *to = goes ? &out : &kept;
        to->at[to->count++] = f.at[i];
    }
    if (f.number == 0 || !kept.count || (f.number == 1 && !out.count)) {
        out = (epi_monomial){.number = 1};
        value = epi_normal_value(w, node);
    } else {
        value = epi_monomial_build(w->g, &kept);
    }
    int choice = epi_graph_map(w->g, EPI_OP_WHERE, condition, second ? zero : value, second ? value : zero);
    epi_monomial core = monomial_of(w, choice);
    return epi_flat_multiply(w->facts, &out, &core, 1) ? out : core;
}

static epi_monomial mapped(epi_normal_walk *w, const epi_node *n) {
    int arg[3] = {EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE}, first = n->op == EPI_OP_WHERE;
    double x[3] = {0, 0, 0}, number;
    bool constant = true;
    for (int a = 0; a < (first ? 1 : epi_ops[n->op].arity); a++) {
        arg[a] = epi_normal_value(w, n->arg[a]);
        constant &= epi_is_number(w->g, arg[a], &x[a]);
    }
    if (epi_graph_failed(w->g))
        return (epi_monomial){.number = 0};
    if (n->op == EPI_OP_WHERE) {
        if (constant)
            return epi_normal_monomial(w, n->arg[x[0] != 0 ? 1 : 2]);
        for (int a = 1; a < 3; a++)
            if (epi_is_zero(w->in, n->arg[a]))
                return chosen(w, arg[0], n->arg[3 - a], a == 1);
    } else if (constant) {
        double y = epi_op_reference(n->op, x[0], x[1], x[2]);
        if (isfinite(y))
            return (epi_monomial){.number = y};
    }
    if (n->op == EPI_OP_POW && epi_is_number(w->g, arg[1], &number) &&
        (number == 1 || number == 2 || number == 3))
        return epi_monomial_of(w->g, arg[0], (int)number);
    return epi_normal_rebuild(w, n);
}

/* ---- the whole ---- */

static bool rewritten(epi_normal_walk *w, const epi_node *n, epi_monomial *out) {
    if (n->exact) /* as it is written */
        return false;
    switch (n->op) {
    case EPI_OP_MUL:
    case EPI_OP_DIV: *out = scaled(w, n); return true;
    case EPI_OP_NEG:
        *out = epi_normal_monomial(w, n->arg[0]);
        out->number = -out->number;
        return true;
    case EPI_OP_ADD:
    case EPI_OP_SUB: return false;
    case EPI_OP_SUM: return sum_terms(w, n, out);
    case EPI_OP_MATMUL:
    case EPI_OP_SCATTER:
    case EPI_OP_SCATTER_BATCH: *out = moved(w, n); return true;
    default:
        if (epi_op_is_map(n->op))
            *out = mapped(w, n);
        return epi_op_is_map(n->op);
    }
}

static int simplify(const epi_graph *in, int count, int first, const int *found, epi_graph *out) {
    quotients all = {.at = epi_arena_alloc(out->arena, ((size_t)first + 1) * sizeof *all.at)};
    epi_facts facts;
    for (int i = 0; i < first && all.at; i++) {
        const epi_node *n = &in->nodes[i];
        bool logs = n->op == EPI_OP_SUB && in->nodes[n->arg[1]].op == EPI_OP_LOG;
        if (in->live[i] && (n->op == EPI_OP_DIV || logs))
            all.at[all.count++] = i;
    }
    epi_strict strict = {first, rewritten, epi_vanish_last, &all};
    epi_normal_request request = {.in = in, .count = count, .found = found, .strict = &strict};
    return epi_normal(&request, out, &facts);
}

void epi_simplify(epi_graph *in, int first, epi_graph *out) {
    int count = in->node_count, *found = epi_arena_alloc(out->arena, ((size_t)count + 1) * sizeof *found);
    for (int i = 0; i < count && found; i++)
        found[i] = EPI_NO_NODE;
    if (found)
        epi_find_silu(in, count, found);
    simplify(in, count, first, found, out);
}

int epi_simplify_with_results(const epi_graph *in, int first, epi_graph *out) {
    return simplify(in, in->node_count, first, NULL, out);
}
