/* normal.c: the walk that brings a graph into its normal form.
 *
 *     * / -        the factors of the whole product, multiplied in one order: equal products are one value
 *     + -          the terms of the whole sum; equal ones are one term, and a factor that all have goes out
 *     sum, @       of the factors those that lack the axes go out; what stays is a product of two operands
 *                  where it is one, else a map and a sum
 *     pairs, join, gather
 *                  factors that lack the axis go out
 *     else         the same operation
 *
 * Not every factor that could go out of a product of matrices does: one that is complete while its
 * neighbour's tile is on chip costs nothing there, and would only be in the way of others that use the same
 * operand. It goes if it is of weights alone, or if it is complete only when the tile is gone: that is the
 * delayed scale of a norm. A sum inside a product stays one factor. */
#include "pass/rewrite/normal.h"

#include <stdlib.h>
#include <string.h>

typedef struct walk {
    const epi_normal_request *request;
    const epi_graph *in;
    epi_graph *g;
    epi_facts *facts;
    int *memo; /* by node that comes in: its value */
} walk;

/* Two forms that a product was written with. */
typedef struct written {
    epi_monomial side[2];
} written;

static const epi_fact *fact(epi_facts *facts, int node) {
    static const epi_fact none = {0};
    const epi_fact *f = epi_fact_of(facts, node);
    return f ? f : &none;
}

static int valued(epi_graph *g, int node) {
    return epi_graph_failed(g) ? EPI_NO_NODE : epi_graph_value(g, node);
}

static bool is_sum(const epi_graph *g, int node) {
    return epi_op_has_terms(g->nodes[node].op);
}

/* ---- products of matrices ---- */

/* The two operands that factors fall into. */
typedef struct sides {
    epi_monomial of[2];
    epi_axes axes[2];
    int core[2]; /* nodes */
    int depth[2];
    bool acts[2]; /* it is not of weights alone */
} sides;

static void put(epi_facts *facts, sides *s, int side, epi_monomial_factor factor) {
    const epi_fact *f = fact(facts, factor.node);
    s->of[side].at[s->of[side].count++] = factor;
    s->depth[side] = f->depth > s->depth[side] ? f->depth : s->depth[side];
    s->acts[side] |= !f->weights;
}

/* The first pair that is a product over these axes, those of most axes first; false: there is none. */
static bool find_cores(const epi_graph *g, const epi_monomial *f, const epi_axes *over, int *core) {
    int most = 0;
    for (int i = 0; i < f->count; i++)
        for (int j = i + 1; j < f->count; j++) {
            int a = f->at[i].node, b = f->at[j].node, axes = g->nodes[a].axes.count + g->nodes[b].axes.count;
            if (a != b && axes > most && epi_graph_is_contraction(g, a, b, over)) {
                most = axes;
                core[0] = i;
                core[1] = j;
            }
        }
    return most > 0;
}

/* The side of params alone, where this factor is one that is multiplied into it once and for all; or -1. */
static int folding_side(epi_facts *facts, const sides *s, epi_monomial_factor factor) {
    if (fact(facts, factor.node)->folds && fact(facts, factor.node)->params)
        for (int i = 0; i < 2; i++)
            if (s->acts[1 - i] && fact(facts, s->core[i])->params && !s->acts[i])
                return i;
    return -1;
}

/* Is it an input that stays where it was written? */
static bool is_to_stay(const epi_facts *facts, int node) {
    const epi_node *n = &facts->g->nodes[node];
    return n->op == EPI_OP_INPUT && facts->stays && facts->stays[n->tensor];
}

/* The side of a factor that both could take: where it is complete when that side's tile is on chip; where it
 * was written, if that is so of both, or if it is to stay; the side that is made later, if of neither. */
static int choose_side(epi_facts *facts, const sides *s, epi_monomial_factor factor, const written *origin) {
    int depth = fact(facts, factor.node)->depth;
    bool ok[2] = {depth < s->depth[0], depth < s->depth[1]}, stays = is_to_stay(facts, factor.node);
    bool second = s->depth[1] > s->depth[0] || (s->depth[1] == s->depth[0] && s->acts[1] && !s->acts[0]);
    if (ok[0] != ok[1] && !stays)
        return ok[1];
    if ((ok[0] || stays) && origin) {
        bool home[2];
        for (int i = 0; i < 2; i++)
            home[i] = epi_monomial_find(&origin->side[i], factor.node, factor.power) >= 0;
        if (home[0] != home[1])
            return epi_monomial_find(&origin->side[home[1]], s->core[0], 1) < 0;
    }
    return second;
}

static bool split(epi_facts *facts, const epi_monomial *f, const epi_axes *over, const written *origin,
                  sides *s) {
    const epi_graph *g = facts->g;
    int core[2];
    if (!find_cores(g, f, over, core))
        return false;
    *s = (sides){.of = {{.number = 1}, {.number = 1}}};
    for (int i = 0; i < 2; i++) {
        s->core[i] = f->at[core[i]].node;
        s->axes[i] = g->nodes[s->core[i]].axes;
        put(facts, s, i, f->at[core[i]]);
    }
    bool both[EPI_MOST_FACTORS] = {false};
    for (int axes = EPI_MAX_AXES; axes >= 0; axes--)
        for (int i = 0; i < f->count; i++) {
            const epi_axes *have = &g->nodes[f->at[i].node].axes;
            if (i == core[0] || i == core[1] || have->count != axes)
                continue;
            bool fits[2] = {epi_axes_include(&s->axes[0], have), epi_axes_include(&s->axes[1], have)};
            both[i] = fits[0] && fits[1];
            int side = fits[1] || (!fits[0] && epi_axes_without(have, &s->axes[1]).count <
                                                   epi_axes_without(have, &s->axes[0]).count);
            if (both[i])
                continue;
            put(facts, s, side, f->at[i]);
            if (!epi_axes_unite(&s->axes[side], have))
                return false;
        }
    for (int i = 0; i < f->count; i++)
        if (both[i]) {
            int side = folding_side(facts, s, f->at[i]);
            put(facts, s, side >= 0 ? side : choose_side(facts, s, f->at[i], origin), f->at[i]);
        }
    for (int i = 0; i < 2; i++) {
        epi_axes own = epi_axes_without(&s->axes[i], &s->axes[1 - i]);
        if (!epi_axes_without(&own, over).count)
            return false;
    }
    return true;
}

/* Which side is the first operand: the one that was; else activations before weights, and what is made later
 * before what is made earlier. */
static int first_side(const sides *s, const written *origin) {
    if (origin)
        for (int i = 0; i < 2; i++) {
            bool in[2];
            for (int k = 0; k < 2; k++)
                in[k] = epi_monomial_find(&origin->side[k], s->core[i], 1) >= 0;
            if (in[0] != in[1])
                return in[0] ? i : 1 - i;
        }
    if (s->acts[0] != s->acts[1])
        return s->acts[1];
    return s->depth[1] > s->depth[0];
}

/* ---- sums over axes ---- */

/* Does the factor go past the product? */
static bool leaves(epi_facts *facts, int node, const epi_monomial *inside) {
    const epi_graph *g = facts->g;
    const epi_fact *v = fact(facts, node);
    if (v->weights)
        return !is_to_stay(facts, node);
    for (int i = 0; i < inside->count; i++)
        if (epi_axes_meet(&g->nodes[node].axes, &g->nodes[inside->at[i].node].axes) &&
            v->depth < fact(facts, inside->at[i].node)->depth)
            return false;
    return true;
}

static epi_monomial sum_of(epi_facts *facts, const epi_monomial *f, const epi_axes *over,
                           const written *origin, bool may_cancel);

/* The only factor that is a sum of terms, or -1. */
static int only_sum(const epi_graph *g, const epi_monomial *f) {
    int found = -1;
    for (int i = 0; i < f->count; i++)
        if (f->at[i].power == 1 && is_sum(g, f->at[i].node) && !g->nodes[f->at[i].node].has_stored) {
            if (found >= 0)
                return -1;
            found = i;
        }
    return found;
}

/* sum(x - mean(x, X), X) is 0, and so is sum(p*(d - sum(p*d))) for a softmax p: takes a sum inside apart, and
 * keeps that if terms vanish. */
static bool cancel_terms(epi_facts *facts, const epi_monomial *inside, const epi_axes *over,
                         epi_monomial *out) {
    int at = only_sum(facts->g, inside);
    if (at < 0 || (inside->count > 1 && facts->g->nodes[inside->at[at].node].axes.count < 2))
        return false;
    epi_monomial terms[EPI_MOST_TERMS], rest = *inside;
    int count = epi_flat_terms(facts, inside->at[at].node, terms), all = 0;
    epi_monomial sums[2 * EPI_MOST_TERMS];
    epi_monomial_drop(&rest, at);
    for (int i = 0; i < count && !epi_graph_failed(facts->g); i++) {
        epi_monomial more[EPI_MOST_TERMS];
        if (!epi_flat_multiply(facts, &terms[i], &rest, 1))
            return false;
        epi_monomial sum = sum_of(facts, &terms[i], over, NULL, false);
        int value = epi_flat_build(facts, &sum),
            n = value == EPI_NO_NODE ? 0 : epi_flat_terms(facts, value, more);
        if (!n || all + n > 2 * EPI_MOST_TERMS)
            return false;
        for (int k = 0; k < n; k++)
            sums[all++] = more[k];
    }
    int left = 0; /* terms that do not vanish */
    for (int i = 0; i < all; i++) {
        double number = sums[i].number;
        bool first = true;
        for (int j = 0; j < all; j++)
            if (j != i && epi_monomials_match(&sums[i], &sums[j])) {
                number += sums[j].number;
                first &= j > i;
            }
        left += first && number != 0;
    }
    if (!count || left >= count)
        return false;
    *out = epi_flat_add(facts, sums, all);
    return !epi_graph_failed(facts->g);
}

/* Takes out the factors that lack the axes, as far as they go, and axes that no factor has. */
static bool take_out(epi_facts *facts, const written *origin, epi_monomial *inside, epi_monomial *outside,
                     epi_axes *over) {
    epi_graph *g = facts->g;
    sides s;
    if (!facts->strict && split(facts, inside, over, origin, &s))
        for (int i = 0; i < outside->count; i++) {
            epi_monomial_factor v = outside->at[i];
            if (!g->nodes[v.node].axes.count || inside->count == EPI_MOST_FACTORS)
                continue;
            if (!facts->no_delay && leaves(facts, v.node, inside)) {
                facts->delayed += origin != NULL;
                continue;
            }
            inside->at[inside->count++] = v;
            epi_monomial_drop(outside, i--);
        }
    for (int i = 0; i < over->count && !epi_graph_failed(g); i++) {
        bool found = false;
        for (int j = 0; j < inside->count; j++)
            found |= epi_axes_find(&g->nodes[inside->at[j].node].axes, over->at[i]) >= 0;
        if (found)
            continue;
        epi_monomial size = epi_monomial_of(g, epi_graph_leaf(g, EPI_OP_SIZE, over->at[i]), 1);
        if (!epi_flat_multiply(facts, outside, &size, 1))
            return false;
        epi_axes_remove(over, i--);
    }
    return !epi_graph_failed(g);
}

/* What a product does not take becomes what it takes by adding 0, which the normal form leaves out elsewhere.
 */
static int as_operand(epi_facts *facts, int node) {
    epi_graph *g = facts->g;
    if (epi_graph_failed(g) || g->nodes[node].op != EPI_OP_INPUT || !facts->is_foreign ||
        !facts->is_foreign[g->nodes[node].tensor])
        return node;
    return valued(g, epi_graph_map2(g, EPI_OP_ADD, node, epi_graph_const(g, 0)));
}

/* The sum of factors of which all belong inside. */
static int sum_inside(epi_facts *facts, const epi_monomial *inside, const epi_axes *over,
                      const written *origin) {
    epi_graph *g = facts->g;
    const epi_node one = g->nodes[inside->at[0].node];
    if (!facts->strict && inside->count == 1 && inside->at[0].power == 1 && one.op == EPI_OP_SUM &&
        !one.has_stored) { /* a sum of a sum */
        epi_axes all = one.over;
        if (epi_axes_unite(&all, over))
            return valued(g, epi_graph_reduce(g, EPI_OP_SUM, one.arg[0], &all));
    }
    sides s;
    if (!split(facts, inside, over, origin, &s))
        return valued(g, epi_graph_reduce(g, EPI_OP_SUM, epi_flat_build(facts, inside), over));
    int first = first_side(&s, origin);
    int a = as_operand(facts, epi_flat_build(facts, &s.of[first]));
    int b = as_operand(facts, epi_flat_build(facts, &s.of[1 - first]));
    return epi_graph_failed(g) ? EPI_NO_NODE : valued(g, epi_graph_contract(g, a, b, over));
}

static epi_monomial sum_of(epi_facts *facts, const epi_monomial *f, const epi_axes *along,
                           const written *origin, bool may_cancel) {
    epi_graph *g = facts->g;
    epi_monomial outside, core, inside = epi_monomial_having(g, f, along, &outside);
    epi_axes over = *along;
    if (f->number == 0 && !facts->strict)
        return (epi_monomial){.number = 0};
    bool ok = take_out(facts, origin, &inside, &outside, &over);
    if (ok && over.count) {
        if (!may_cancel || !cancel_terms(facts, &inside, &over, &core)) {
            int value = sum_inside(facts, &inside, &over, origin);
            if (value == EPI_NO_NODE)
                return (epi_monomial){.number = 0};
            core = epi_monomial_of(g, value, 1);
        }
        ok = epi_flat_multiply(facts, &outside, &core, 1);
    } else if (ok) {
        ok = epi_flat_multiply(facts, &outside, &inside, 1);
    }
    if (ok || epi_graph_failed(g))
        return outside;
    return epi_monomial_of(g, valued(g, epi_graph_reduce(g, EPI_OP_SUM, epi_flat_build(facts, f), along)), 1);
}

epi_monomial epi_normal_sum(epi_facts *facts, const epi_monomial *f, const epi_axes *over) {
    return sum_of(facts, f, over, NULL, !facts->strict);
}

/* ---- one node ---- */

static epi_monomial monomial_at(walk *w, int node) {
    return epi_flat_monomial(w->facts, w->memo[node]);
}

/* An operand with all the axes it had. */
static int operand(walk *w, const epi_node *n, int a) {
    if (n->arg[a] == EPI_NO_NODE || epi_graph_failed(w->g))
        return EPI_NO_NODE;
    return epi_graph_complete(w->g, w->memo[n->arg[a]], &w->in->nodes[n->arg[a]].axes);
}

static int rebuild(walk *w, const epi_node *n) {
    epi_op_class cls = epi_ops[n->op].cls;
    int arg[3];
    for (int a = 0; a < 3; a++)
        arg[a] = n->arg[a] != EPI_NO_NODE && cls == EPI_CLASS_MAP ? w->memo[n->arg[a]] : operand(w, n, a);
    if (cls == EPI_CLASS_LEAF)
        return epi_graph_rebuild(w->g, n, arg);
    return epi_graph_apply(w->g, n->op, arg, &n->over); /* gradients are taken already: none is fixed */
}

/* x*sigmoid(x) is silu(x), as it may be written elsewhere: then both are one value. */
static void find_silu(epi_facts *facts, epi_monomial *f) {
    for (int i = 0; i < f->count && !epi_graph_failed(facts->g); i++) {
        const epi_node n = facts->g->nodes[f->at[i].node];
        if (n.op != EPI_OP_SIGMOID || f->at[i].power < 1 || n.has_stored)
            continue;
        epi_monomial x = epi_flat_monomial(facts, n.arg[0]), rest = *f;
        bool all = x.count > 0 && x.number == 1;
        for (int k = 0; k < x.count && all; k++) {
            int at = epi_monomial_find(&rest, x.at[k].node, x.at[k].power);
            all = at >= 0 && abs(rest.at[at].power) >= abs(x.at[k].power);
            if (all && (rest.at[at].power -= x.at[k].power) == 0)
                epi_monomial_drop(&rest, at);
        }
        if (!all)
            continue;
        int at = epi_monomial_find(&rest, f->at[i].node, 1);
        epi_monomial silu =
            epi_monomial_of(facts->g, valued(facts->g, epi_graph_map1(facts->g, EPI_OP_SILU, n.arg[0])), 1);
        if (--rest.at[at].power == 0)
            epi_monomial_drop(&rest, at);
        if (epi_graph_failed(facts->g) || !epi_flat_multiply(facts, &rest, &silu, 1))
            return;
        *f = rest;
        i = -1;
    }
}

static int multiplied(walk *w, const epi_node *n) {
    if (n->exact) /* as it is written */
        return rebuild(w, n);
    epi_monomial f = monomial_at(w, n->arg[0]), by = {.number = -1};
    if (n->op != EPI_OP_NEG)
        by = monomial_at(w, n->arg[1]);
    if (!epi_flat_multiply(w->facts, &f, &by, n->op == EPI_OP_DIV ? -1 : 1) || epi_flat_is_steep(w->g, &f))
        return rebuild(w, n);
    find_silu(w->facts, &f);
    return epi_flat_build(w->facts, &f);
}

static int added(walk *w, const epi_node *n) {
    epi_monomial terms[2 * EPI_MOST_TERMS];
    int count[2];
    for (int a = 0, at = 0; a < 2; a++) {
        int value = w->memo[n->arg[a]];
        const epi_fact *f = fact(w->facts, value);
        count[a] = f->keep ? 1 : epi_flat_terms(w->facts, value, terms + at);
        if (f->keep)
            terms[at] = epi_monomial_of(w->g, value, 1);
        for (int i = at; i < at + count[a] && a && n->op == EPI_OP_SUB; i++)
            terms[i].number = -terms[i].number;
        at += count[a];
    }
    if (!count[0] || !count[1] || count[0] + count[1] > EPI_MOST_TERMS)
        return rebuild(w, n);
    int all = epi_flat_join(w->facts, terms, count[0] + count[1]);
    epi_monomial sum = epi_flat_add(w->facts, terms, all);
    return epi_flat_build(w->facts, &sum);
}

/* The product that a node is, or the sum of, if operands are to be replaced; or NULL. */
static const epi_node *product_of(const walk *w, const epi_node *n) {
    if (!w->request->operand || n->op == EPI_OP_MATMUL)
        return w->request->operand ? n : NULL;
    const epi_node *of = n->op == EPI_OP_SUM ? &w->in->nodes[n->arg[0]] : NULL;
    return of && of->op == EPI_OP_MUL && !of->has_stored ? of : NULL;
}

/* What stands for an operand of the product that a node is, or sums; or NULL. */
static const epi_stand_in *operand_for(const walk *w, const epi_node *n, int arg) {
    const epi_stand_in *o = arg < w->request->count ? &w->request->operand[arg] : NULL;
    return o && o->node != EPI_NO_NODE && (o->sums || n->op == EPI_OP_MATMUL) ? o : NULL;
}

/* The operand `arg` of the product that a node is, or sums: another value, if one stands for it up to vectors
 * that lack the axes of the sum. Then *by is divided by these. */
static int replaced(walk *w, const epi_node *n, const epi_node *of, int a, epi_monomial *by, bool *any) {
    const epi_stand_in *o = operand_for(w, n, of->arg[a]);
    epi_monomial others, inside = {.count = 0}, over = {.number = 1};
    if (o)
        inside = epi_monomial_having(w->in, &o->by, &n->over, &others);
    bool ok = o && !inside.count;
    for (int i = 0; ok && i < o->by.count; i++) {
        epi_monomial v = monomial_at(w, o->by.at[i].node);
        for (int k = o->by.at[i].power; k && ok; k += k > 0 ? -1 : 1)
            ok = epi_flat_multiply(w->facts, &over, &v, k > 0 ? -1 : 1);
    }
    if (!ok || !epi_flat_multiply(w->facts, by, &over, 1))
        return operand(w, of, a);
    *any = true;
    return w->memo[o->node];
}

/* A product, or the sum of one, of whose operands others stand for some up to vectors: the others stay as
 * they are, and the result is divided by the vectors. EPI_NO_NODE: none is replaced. */
static int summed_with(walk *w, const epi_node *n) {
    epi_graph *g = w->g;
    const epi_node *of = product_of(w, n);
    epi_monomial by = {.number = 1};
    bool any = false;
    if (!of)
        return EPI_NO_NODE;
    int a = replaced(w, n, of, 0, &by, &any), b = replaced(w, n, of, 1, &by, &any);
    if (!any || epi_graph_failed(g))
        return EPI_NO_NODE;
    int sum = n->op == EPI_OP_MATMUL
                  ? epi_graph_contract(g, a, b, &n->over)
                  : epi_graph_reduce(g, EPI_OP_SUM, epi_graph_map2(g, EPI_OP_MUL, a, b), &n->over);
    if (epi_graph_failed(g))
        return EPI_NO_NODE;
    epi_monomial core = epi_monomial_of(g, epi_graph_value(g, sum), 1);
    return epi_flat_multiply(w->facts, &by, &core, 1) ? epi_flat_build(w->facts, &by) : EPI_NO_NODE;
}

static int summed(walk *w, const epi_node *n) {
    epi_monomial f = monomial_at(w, n->arg[0]);
    written origin;
    const epi_node *of = &w->in->nodes[n->arg[0]];
    bool two = of->op == EPI_OP_MUL;
    int value = summed_with(w, n);
    if (value != EPI_NO_NODE || epi_graph_failed(w->g))
        return value;
    for (int a = 0; a < 2 && two; a++)
        origin.side[a] = monomial_at(w, of->arg[a]);
    epi_monomial sum = sum_of(w->facts, &f, &n->over, two ? &origin : NULL, true);
    if (n->op == EPI_OP_MEAN && !epi_flat_over_sizes(w->facts, &sum, &n->over))
        return rebuild(w, n);
    return epi_flat_build(w->facts, &sum);
}

static int contracted(walk *w, const epi_node *n) {
    written origin = {{monomial_at(w, n->arg[0]), monomial_at(w, n->arg[1])}};
    epi_monomial f = origin.side[0];
    int value = summed_with(w, n);
    if (value != EPI_NO_NODE || epi_graph_failed(w->g))
        return value;
    if (!epi_flat_multiply(w->facts, &f, &origin.side[1], 1))
        return rebuild(w, n);
    epi_monomial sum = sum_of(w->facts, &f, &n->over, &origin, true);
    return epi_flat_build(w->facts, &sum);
}

/* One half of an axis: of a join it is what was joined, and factors that lack the axis stay outside. */
static int one_half(epi_facts *facts, epi_op op, int node, epi_axis axis) {
    epi_graph *g = facts->g;
    epi_axes over = {1, {axis}};
    epi_monomial f = epi_flat_monomial(facts, node), rest, own = epi_monomial_having(g, &f, &over, &rest);
    bool pairs = epi_ops[op].pairs, second = epi_ops[op].second;
    int value = epi_flat_build(facts, &own);
    if (value == EPI_NO_NODE)
        return value;
    const epi_node of = g->nodes[value];
    epi_axis half = {axis.dim, (int16_t)(axis.shift - 1)};
    if (of.op == (pairs ? EPI_OP_JOIN : EPI_OP_CONCAT) && !of.has_stored &&
        epi_axis_equal(of.over.at[0], axis) && epi_axes_find(&g->nodes[of.arg[second]].axes, half) >= 0)
        value = of.arg[second];
    else
        value = valued(g, epi_graph_split(g, op, value, axis));
    epi_monomial part = value == EPI_NO_NODE ? rest : epi_flat_monomial(facts, value);
    return epi_flat_multiply(facts, &rest, &part, 1) ? epi_flat_build(facts, &rest)
                                                     : valued(g, epi_graph_split(g, op, node, axis));
}

static int taken_apart(walk *w, const epi_node *n) {
    int node = w->memo[n->arg[0]];
    if (epi_axes_find(&w->g->nodes[node].axes, n->over.at[0]) < 0) /* the same all along the axis */
        return rebuild(w, n);
    return one_half(w->facts, n->op, node, n->over.at[0]);
}

/* Two halves of an axis: factors that both have and that lack the axis go out; and the halves of one value
 * are that value. */
static int both_halves(epi_facts *facts, epi_op op, int a, int b, epi_axis axis) {
    epi_graph *g = facts->g;
    epi_axis half = {axis.dim, (int16_t)(axis.shift - 1)};
    epi_monomial f[2] = {epi_flat_monomial(facts, a), epi_flat_monomial(facts, b)}, rest = {.number = 1};
    int part[2];
    for (int i = 0; i < f[0].count; i++) {
        int other = epi_monomial_find_factor(&f[1], f[0].at[i]);
        if (other < 0 || epi_axes_find(&g->nodes[f[0].at[i].node].axes, half) >= 0)
            continue;
        rest.at[rest.count++] = f[0].at[i];
        epi_monomial_drop(&f[1], other);
        epi_monomial_drop(&f[0], i--);
    }
    if (f[0].number == f[1].number && f[0].number != 0) {
        rest.number = f[0].number;
        f[0].number = f[1].number = 1;
    }
    for (int k = 0; k < 2; k++)
        part[k] = epi_flat_build(facts, &f[k]);
    if (epi_graph_failed(g))
        return EPI_NO_NODE;
    const epi_node x = g->nodes[part[0]], y = g->nodes[part[1]];
    bool pairs = op == EPI_OP_JOIN;
    int value;
    if (!x.has_stored && !y.has_stored && x.op == (pairs ? EPI_OP_EVEN : EPI_OP_LOW) &&
        y.op == (pairs ? EPI_OP_ODD : EPI_OP_HIGH) && x.arg[0] == y.arg[0] &&
        epi_axis_equal(x.over.at[0], axis) && epi_axis_equal(y.over.at[0], axis))
        value = x.arg[0];
    else
        value = valued(g, epi_graph_join(g, op, part[0], part[1], axis));
    epi_monomial whole = value == EPI_NO_NODE ? rest : epi_flat_monomial(facts, value);
    return epi_flat_multiply(facts, &rest, &whole, 1) ? epi_flat_build(facts, &rest)
                                                      : valued(g, epi_graph_join(g, op, a, b, axis));
}

static int put_together(walk *w, const epi_node *n) {
    epi_axis half = {n->over.at[0].dim, (int16_t)(n->over.at[0].shift - 1)};
    for (int a = 0; a < 2; a++)
        if (epi_axes_find(&w->g->nodes[w->memo[n->arg[a]]].axes, half) < 0)
            return rebuild(w, n);
    return both_halves(w->facts, n->op, w->memo[n->arg[0]], w->memo[n->arg[1]], n->over.at[0]);
}

/* An axis under another name: vectors that have it are renamed by themselves, so that they can go on. */
static int renamed(walk *w, const epi_node *n) {
    epi_graph *g = w->g;
    epi_monomial f = monomial_at(w, n->arg[0]), rest = {.number = f.number}, whole = {.number = 1};
    int most = 0;
    epi_axes from = {1, {n->over.at[0]}};
    for (int i = 0; i < f.count; i++)
        most = g->nodes[f.at[i].node].axes.count > most ? g->nodes[f.at[i].node].axes.count : most;
    if (epi_axes_find(&g->nodes[w->memo[n->arg[0]]].axes, from.at[0]) < 0)
        return rebuild(w, n);
    for (int i = 0; i < f.count && !epi_graph_failed(g); i++) {
        const epi_axes *axes = &g->nodes[f.at[i].node].axes;
        bool alone = axes->count < most && epi_axes_find(axes, from.at[0]) >= 0;
        epi_monomial *to = alone ? &rest : &whole;
        int node = f.at[i].node;
        if (alone)
            node = valued(g, epi_graph_rename(g, node, n->over.at[0], n->over.at[1]));
        to->at[to->count++] = (epi_monomial_factor){node, f.at[i].power};
    }
    int value = epi_flat_build(w->facts, &whole);
    if (value == EPI_NO_NODE || epi_axes_find(&g->nodes[value].axes, from.at[0]) < 0)
        return epi_graph_failed(g) ? EPI_NO_NODE : rebuild(w, n);
    epi_monomial core =
        epi_monomial_of(g, valued(g, epi_graph_rename(g, value, n->over.at[0], n->over.at[1])), 1);
    return epi_flat_multiply(w->facts, &rest, &core, 1) ? epi_flat_build(w->facts, &rest) : rebuild(w, n);
}

/* Elements along an axis, by an index that is an input: factors that lack the axis go out. (A number is a
 * slice; a computed index may be outside, which gives 0, whatever the factor is.) So a row's scale leaves the
 * logits that a loss picks one of, and the picked ones are of those that are stored anyway. */
static int gathered(walk *w, const epi_node *n) {
    epi_graph *g = w->g;
    epi_monomial f = monomial_at(w, n->arg[0]), rest, own = epi_monomial_having(g, &f, &n->over, &rest);
    if (!own.count || !rest.count || w->in->nodes[n->arg[1]].op != EPI_OP_INPUT)
        return rebuild(w, n);
    int value = epi_flat_build(w->facts, &own);
    if (value != EPI_NO_NODE)
        value = valued(
            g, epi_graph_move(g, EPI_OP_GATHER, value, w->memo[n->arg[1]], EPI_NO_NODE, n->over.at[0]));
    epi_monomial core = value == EPI_NO_NODE ? rest : epi_monomial_of(g, value, 1);
    return epi_flat_multiply(w->facts, &rest, &core, 1) ? epi_flat_build(w->facts, &rest) : rebuild(w, n);
}

static int rewritten(walk *w, const epi_node *n) {
    switch (n->op) {
    case EPI_OP_MUL:
    case EPI_OP_DIV:
    case EPI_OP_NEG: return multiplied(w, n);
    case EPI_OP_ADD:
    case EPI_OP_SUB: return added(w, n);
    case EPI_OP_SUM:
    case EPI_OP_MEAN: return summed(w, n);
    case EPI_OP_MATMUL: return contracted(w, n);
    case EPI_OP_EVEN:
    case EPI_OP_ODD:
    case EPI_OP_LOW:
    case EPI_OP_HIGH: return taken_apart(w, n);
    case EPI_OP_JOIN:
    case EPI_OP_CONCAT: return put_together(w, n);
    case EPI_OP_RENAME: return renamed(w, n);
    case EPI_OP_GATHER: return gathered(w, n);
    default: return rebuild(w, n);
    }
}

/* ---- the walk ---- */

static int instead_of(const walk *w, int node) {
    return w->request->found && node < w->request->count ? w->request->found[node] : EPI_NO_NODE;
}

/* What the text says of a value goes with it. One that it gives a type is one factor from here on. */
static void keep_words(walk *w, const epi_node *n, int value) {
    epi_node *to = &w->g->nodes[value];
    if (to->op == EPI_OP_CONST || to->op == EPI_OP_INPUT)
        return;
    to->name = to->name ? to->name : n->name;
    epi_graph_store_as(w->g, value, n);
    if (n->has_stored && epi_fact_of(w->facts, value))
        w->facts->at[value].monomial = NULL;
    to->saving = to->saving ? to->saving : n->saving;
    to->opaque |= n->opaque;
    to->exact |= n->exact && to->op == EPI_OP_DIV;
}

static void rewrite(walk *w, int node) {
    const epi_node *n = &w->in->nodes[node];
    int instead = instead_of(w, node), value;
    w->g->place = n->place;
    if (instead != EPI_NO_NODE)
        value = w->memo[instead];
    else if (n->op == EPI_OP_INPUT)
        value = epi_graph_rebuild(w->g, n, n->arg);
    else
        value = rewritten(w, n);
    w->memo[node] = value = valued(w->g, value);
    if (value == EPI_NO_NODE)
        return;
    keep_words(w, n, value);
    if (node < w->request->count && epi_graph_uses(w->in, node).count > 1 && is_sum(w->g, value) &&
        w->g->nodes[value].axes.count > 1 && epi_fact_of(w->facts, value))
        w->facts->at[value].keep = true;
}

/* What has to be there before a node: its operands, or what stands for it; and what stands for an operand of
 * a product, or of a product that it sums. */
static int list_needed(const void *ctx, int node, int *out) {
    const walk *w = ctx;
    int instead = instead_of(w, node), count = 0;
    if (instead != EPI_NO_NODE) {
        out[count++] = instead;
        return count;
    }
    const epi_node *n = &w->in->nodes[node];
    for (int a = 0; a < epi_node_operands(n); a++)
        out[count++] = n->arg[a];
    const epi_node *of = product_of(w, n);
    for (int a = 0; a < 2 && of; a++) {
        const epi_stand_in *o = operand_for(w, n, of->arg[a]);
        if (!o)
            continue;
        out[count++] = o->node;
        for (int i = 0; i < o->by.count; i++)
            out[count++] = o->by.at[i].node;
    }
    return count;
}

void epi_normal(const epi_normal_request *request, epi_graph *out, epi_facts *facts) {
    const epi_graph *in = request->in;
    epi_arena *arena = out->arena;
    *facts = request->known;
    facts->g = out;
    const epi_facts fresh = *facts;
    walk w = {.request = request, .in = in, .g = out, .facts = facts};
    w.memo = epi_arena_alloc(arena, ((size_t)in->node_count + 1) * sizeof *w.memo);
    int listed, *list = epi_list_needed(arena, in, request->count, list_needed, &w, &listed);
    if (!epi_graph_begin(out, in))
        return;
    if (!list)
        epi_graph_fail(out, "values stand for each other");
    for (int i = 0; i < listed && !epi_graph_failed(out); i++)
        rewrite(&w, list[i]);
    for (int t = 0; t < in->tensor_count && !epi_graph_failed(out); t++) {
        int value = w.memo[in->tensors[t].node];
        out->tensors[t].node = epi_graph_value(out, epi_graph_complete(out, value, &in->tensors[t].axes));
    }
    epi_graph_finish(out);
    int delayed = facts->delayed;
    *facts = fresh; /* nodes have other numbers now */
    facts->delayed = delayed;
    facts->finished = out->node_count;
    for (int i = 0; i < out->node_count && epi_fact_of(facts, i); i++)
        facts->at[i].keep =
            is_sum(out, i) && out->nodes[i].axes.count > 1 && epi_graph_uses(out, i).count > 1;
}
