/* normal_sum.c: sums over axes in the normal form.
 *
 * Factors that lack the axes move out. The rest is a product of two operands if it is one, else an
 * elementwise product and a sum. Not every factor that could move out of a matrix product does. A factor
 * that is complete while its neighbour's tile is on chip costs nothing there, and outside it would only
 * hinder others that use the same operand. It moves out if it consists of weights alone, or if it is
 * complete only when the tile is gone: that is the delayed scale of a norm. A sum inside a product stays one
 * factor. In strict mode all factors move out. */
#include "pass/rewrite/normal.h"

static const epi_fact *fact(epi_facts *facts, int node) {
    static const epi_fact none = {0};
    const epi_fact *f = epi_fact_of(facts, node);
    return f ? f : &none;
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
    return n->op == EPI_OP_INPUT && facts->pinned && facts->pinned[n->tensor];
}

/* The side of a factor that both could take: where it is complete when that side's tile is on chip; where it
 * was written, if that is so of both, or if it is to stay; the side that is made later, if of neither. */
static int choose_side(epi_facts *facts, const sides *s, epi_monomial_factor factor,
                       const epi_written *origin) {
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

static bool split(epi_facts *facts, const epi_monomial *f, const epi_axes *over, const epi_written *origin,
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
static int first_side(const sides *s, const epi_written *origin) {
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
    if (facts->near && v->depth == 0)
        return false;
    for (int i = 0; i < inside->count; i++)
        if (epi_axes_meet(&g->nodes[node].axes, &g->nodes[inside->at[i].node].axes) &&
            v->depth < fact(facts, inside->at[i].node)->depth)
            return false;
    return true;
}

static epi_monomial sum_of(epi_facts *facts, const epi_monomial *f, const epi_axes *over,
                           const epi_written *origin, bool may_cancel);

/* The only factor that is a sum of terms, or -1. */
static int only_sum(const epi_graph *g, const epi_monomial *f) {
    int found = -1;
    for (int i = 0; i < f->count; i++)
        if (f->at[i].power == 1 && epi_op_has_terms(g->nodes[f->at[i].node].op) &&
            !g->nodes[f->at[i].node].has_stored) {
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
static bool take_out(epi_facts *facts, const epi_written *origin, epi_monomial *inside, epi_monomial *outside,
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
    return epi_graph_value(g, epi_graph_map2(g, EPI_OP_ADD, node, epi_graph_const(g, 0)));
}

/* The sum of factors of which all belong inside. */
static int sum_inside(epi_facts *facts, const epi_monomial *inside, const epi_axes *over,
                      const epi_written *origin) {
    epi_graph *g = facts->g;
    const epi_node one = g->nodes[inside->at[0].node];
    if (!facts->strict && inside->count == 1 && inside->at[0].power == 1 && one.op == EPI_OP_SUM &&
        !one.has_stored) { /* a sum of a sum */
        epi_axes all = one.over;
        if (epi_axes_unite(&all, over))
            return epi_graph_value(g, epi_graph_reduce(g, EPI_OP_SUM, one.arg[0], &all));
    }
    sides s;
    if (!split(facts, inside, over, origin, &s))
        return epi_graph_value(g, epi_graph_reduce(g, EPI_OP_SUM, epi_flat_build(facts, inside), over));
    int first = first_side(&s, origin);
    int a = as_operand(facts, epi_flat_build(facts, &s.of[first]));
    int b = as_operand(facts, epi_flat_build(facts, &s.of[1 - first]));
    return epi_graph_failed(g) ? EPI_NO_NODE : epi_graph_value(g, epi_graph_contract(g, a, b, over));
}

static epi_monomial sum_of(epi_facts *facts, const epi_monomial *f, const epi_axes *along,
                           const epi_written *origin, bool may_cancel) {
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
    return epi_monomial_of(
        g, epi_graph_value(g, epi_graph_reduce(g, EPI_OP_SUM, epi_flat_build(facts, f), along)), 1);
}

epi_monomial epi_normal_sum(epi_facts *facts, const epi_monomial *f, const epi_axes *over,
                            const epi_written *origin) {
    return sum_of(facts, f, over, origin, !facts->strict);
}
