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
 * normal_sum.c has the sums. In strict mode, which simplify.c uses, the walk takes apart only values with
 * one use. Values with several uses, splits, joins, renames and gathers stay as they are. */
#include "pass/rewrite/normal.h"

#include <stdlib.h>
#include <string.h>

/* ---- one node ---- */

int epi_normal_value(epi_normal_walk *w, int node) {
    if (w->memo[node] == EPI_NO_NODE)
        w->memo[node] = epi_flat_build(w->facts, &w->monomials[node]);
    return w->memo[node];
}

/* Is it written where it is used? */
static bool is_open(const epi_normal_walk *w, int node) {
    const epi_node *n = &w->in->nodes[node];
    return w->request->strict && node >= w->request->strict->first && node < w->request->count && !n->name &&
           !n->has_stored && epi_graph_uses(w->in, node).count == 1;
}

epi_monomial epi_normal_monomial(epi_normal_walk *w, int node) {
    return is_open(w, node) ? w->monomials[node] : epi_flat_monomial(w->facts, epi_normal_value(w, node));
}

int epi_normal_operand(epi_normal_walk *w, const epi_node *n, int a) {
    int value = n->arg[a] == EPI_NO_NODE ? EPI_NO_NODE : epi_normal_value(w, n->arg[a]);
    return value == EPI_NO_NODE ? EPI_NO_NODE
                                : epi_graph_complete(w->g, value, &w->in->nodes[n->arg[a]].axes);
}

static int rebuild(epi_normal_walk *w, const epi_node *n) {
    int arg[3];
    for (int a = 0; a < 3; a++)
        arg[a] = n->arg[a] != EPI_NO_NODE && epi_op_is_map(n->op) ? epi_normal_value(w, n->arg[a])
                                                                  : epi_normal_operand(w, n, a);
    if (epi_op_is_leaf(n->op) || n->op == EPI_OP_OWN || n->op == EPI_OP_LIST)
        return epi_graph_rebuild(w->g, n, arg);
    if (n->op == EPI_OP_SHIFT)
        return epi_graph_shifted(w->g, arg[0], n->over.at[0], epi_shift_by(n));
    return epi_graph_apply(w->g, n->op, arg, &n->over); /* gradients are taken already: none is fixed */
}

epi_monomial epi_normal_rebuild(epi_normal_walk *w, const epi_node *n) {
    return epi_monomial_of(w->g, epi_graph_value(w->g, rebuild(w, n)), 1);
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
        epi_monomial silu = epi_monomial_of(
            facts->g, epi_graph_value(facts->g, epi_graph_map1(facts->g, EPI_OP_SILU, n.arg[0])), 1);
        if (--rest.at[at].power == 0)
            epi_monomial_drop(&rest, at);
        if (epi_graph_failed(facts->g) || !epi_flat_multiply(facts, &rest, &silu, 1))
            return;
        *f = rest;
        i = -1;
    }
}

static epi_monomial multiplied(epi_normal_walk *w, const epi_node *n) {
    if (n->exact) /* as it is written */
        return epi_normal_rebuild(w, n);
    epi_monomial f = epi_normal_monomial(w, n->arg[0]), by = {.number = -1};
    if (n->op != EPI_OP_NEG)
        by = epi_normal_monomial(w, n->arg[1]);
    if (!epi_flat_multiply(w->facts, &f, &by, n->op == EPI_OP_DIV ? -1 : 1) || epi_flat_is_steep(w->g, &f))
        return epi_normal_rebuild(w, n);
    find_silu(w->facts, &f);
    return f;
}

/* So deep and no deeper: a value that is used often has a long chain of sums as its gradient. */
static int add_terms(epi_normal_walk *w, int node, double sign, int depth, epi_monomial *terms, int count) {
    const epi_node *n = &w->in->nodes[node];
    int more = 1;
    if (count > EPI_MOST_TERMS)
        return count;
    if (is_open(w, node) && epi_op_has_terms(n->op) && depth < EPI_MOST_TERMS) {
        count = add_terms(w, n->arg[0], sign, depth + 1, terms, count);
        return add_terms(w, n->arg[1], n->op == EPI_OP_SUB ? -sign : sign, depth + 1, terms, count);
    }
    const epi_fact *f = w->facts->strict ? NULL : epi_fact_of(w->facts, w->memo[node]);
    if (!f || f->keep)
        terms[count] = epi_normal_monomial(w, node);
    else
        more = epi_flat_terms(w->facts, w->memo[node], terms + count);
    for (int i = count; i < count + more; i++)
        terms[i].number *= sign;
    return more ? count + more : EPI_MOST_TERMS + 1;
}

int epi_normal_terms(epi_normal_walk *w, const epi_node *n, double sign, epi_monomial *terms) {
    int count = add_terms(w, n->arg[0], sign, 0, terms, 0);
    count = add_terms(w, n->arg[1], n->op == EPI_OP_SUB ? -sign : sign, 0, terms, count);
    return count > EPI_MOST_TERMS ? 0 : count;
}

static epi_monomial added(epi_normal_walk *w, const epi_node *n) {
    epi_monomial terms[2 * EPI_MOST_TERMS];
    int count = epi_normal_terms(w, n, 1, terms);
    if (!count)
        return epi_normal_rebuild(w, n);
    count = epi_flat_join(w->facts, terms, count);
    return epi_flat_add(w->facts, terms, count);
}

/* The product that a node is, or the sum of, if operands are to be replaced; or NULL. */
static const epi_node *product_of(const epi_normal_walk *w, const epi_node *n) {
    if (!w->request->operand || n->op == EPI_OP_MATMUL)
        return w->request->operand ? n : NULL;
    const epi_node *of = n->op == EPI_OP_SUM ? &w->in->nodes[n->arg[0]] : NULL;
    return of && of->op == EPI_OP_MUL && !of->has_stored ? of : NULL;
}

/* What stands for an operand of the product that a node is, or sums; or NULL. */
static const epi_stand_in *operand_for(const epi_normal_walk *w, const epi_node *n, int arg) {
    const epi_stand_in *o = arg < w->request->count ? &w->request->operand[arg] : NULL;
    return o && o->node != EPI_NO_NODE && (o->sums || n->op == EPI_OP_MATMUL) ? o : NULL;
}

/* The operand `arg` of the product that a node is, or sums: another value, if one stands for it up to vectors
 * that lack the axes of the sum. Then *by is divided by these. */
static int replaced(epi_normal_walk *w, const epi_node *n, const epi_node *of, int a, epi_monomial *by,
                    bool *any) {
    const epi_stand_in *o = operand_for(w, n, of->arg[a]);
    epi_monomial others, inside = {.count = 0}, over = {.number = 1};
    if (o)
        inside = epi_monomial_having(w->in, &o->by, &n->over, &others);
    bool ok = o && !inside.count;
    for (int i = 0; ok && i < o->by.count; i++) {
        epi_monomial v = epi_normal_monomial(w, o->by.at[i].node);
        for (int k = o->by.at[i].power; k && ok; k += k > 0 ? -1 : 1)
            ok = epi_flat_multiply(w->facts, &over, &v, k > 0 ? -1 : 1);
    }
    if (!ok || !epi_flat_multiply(w->facts, by, &over, 1))
        return epi_normal_operand(w, of, a);
    *any = true;
    return w->memo[o->node];
}

/* A product, or the sum of one, of whose operands others stand for some up to vectors: the others stay as
 * they are, and the result is divided by the vectors. EPI_NO_NODE: none is replaced. */
static int summed_with(epi_normal_walk *w, const epi_node *n) {
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

static epi_monomial summed(epi_normal_walk *w, const epi_node *n) {
    epi_monomial f = epi_normal_monomial(w, n->arg[0]);
    epi_written origin;
    const epi_node *of = &w->in->nodes[n->arg[0]];
    bool two = of->op == EPI_OP_MUL && !w->facts->strict;
    int value = summed_with(w, n);
    if (value != EPI_NO_NODE || epi_graph_failed(w->g))
        return epi_monomial_of(w->g, value, 1);
    for (int a = 0; a < 2 && two; a++)
        origin.side[a] = epi_normal_monomial(w, of->arg[a]);
    epi_monomial sum = epi_normal_sum(w->facts, &f, &n->over, two ? &origin : NULL);
    if (n->op == EPI_OP_MEAN && !epi_flat_over_sizes(w->facts, &sum, &n->over))
        return epi_normal_rebuild(w, n);
    return sum;
}

static epi_monomial contracted(epi_normal_walk *w, const epi_node *n) {
    epi_written origin = {{epi_normal_monomial(w, n->arg[0]), epi_normal_monomial(w, n->arg[1])}};
    epi_monomial f = origin.side[0];
    int value = summed_with(w, n);
    if (value != EPI_NO_NODE || epi_graph_failed(w->g))
        return epi_monomial_of(w->g, value, 1);
    if (!epi_flat_multiply(w->facts, &f, &origin.side[1], 1))
        return epi_normal_rebuild(w, n);
    return epi_normal_sum(w->facts, &f, &n->over, &origin);
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
        value = epi_graph_value(g, epi_graph_split(g, op, value, axis));
    epi_monomial part = value == EPI_NO_NODE ? rest : epi_flat_monomial(facts, value);
    return epi_flat_multiply(facts, &rest, &part, 1) ? epi_flat_build(facts, &rest)
                                                     : epi_graph_value(g, epi_graph_split(g, op, node, axis));
}

static int taken_apart(epi_normal_walk *w, const epi_node *n) {
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
        value = epi_graph_value(g, epi_graph_join(g, op, part[0], part[1], axis));
    epi_monomial whole = value == EPI_NO_NODE ? rest : epi_flat_monomial(facts, value);
    return epi_flat_multiply(facts, &rest, &whole, 1) ? epi_flat_build(facts, &rest)
                                                      : epi_graph_value(g, epi_graph_join(g, op, a, b, axis));
}

static int put_together(epi_normal_walk *w, const epi_node *n) {
    epi_axis half = {n->over.at[0].dim, (int16_t)(n->over.at[0].shift - 1)};
    for (int a = 0; a < 2; a++)
        if (epi_axes_find(&w->g->nodes[w->memo[n->arg[a]]].axes, half) < 0)
            return rebuild(w, n);
    return both_halves(w->facts, n->op, w->memo[n->arg[0]], w->memo[n->arg[1]], n->over.at[0]);
}

/* An axis under another name: vectors that have it are renamed by themselves, so that they can go on. */
static int renamed(epi_normal_walk *w, const epi_node *n) {
    epi_graph *g = w->g;
    epi_monomial f = epi_normal_monomial(w, n->arg[0]), rest = {.number = f.number}, whole = {.number = 1};
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
            node = epi_graph_value(g, epi_graph_rename(g, node, n->over.at[0], n->over.at[1]));
        to->at[to->count++] = (epi_monomial_factor){node, f.at[i].power};
    }
    int value = epi_flat_build(w->facts, &whole);
    if (value == EPI_NO_NODE || epi_axes_find(&g->nodes[value].axes, from.at[0]) < 0)
        return epi_graph_failed(g) ? EPI_NO_NODE : rebuild(w, n);
    epi_monomial core =
        epi_monomial_of(g, epi_graph_value(g, epi_graph_rename(g, value, n->over.at[0], n->over.at[1])), 1);
    return epi_flat_multiply(w->facts, &rest, &core, 1) ? epi_flat_build(w->facts, &rest) : rebuild(w, n);
}

/* Elements along an axis, by an index that is an input: factors that lack the axis go out. (A number is a
 * slice; a computed index may be outside, which gives 0, whatever the factor is.) So a row's scale leaves the
 * logits that a loss picks one of, and the picked ones are of those that are stored anyway. */
static int gathered(epi_normal_walk *w, const epi_node *n) {
    epi_graph *g = w->g;
    epi_monomial f = epi_normal_monomial(w, n->arg[0]), rest,
                 own = epi_monomial_having(g, &f, &n->over, &rest);
    if (!own.count || !rest.count || w->in->nodes[n->arg[1]].op != EPI_OP_INPUT)
        return rebuild(w, n);
    int value = epi_flat_build(w->facts, &own);
    if (value != EPI_NO_NODE)
        value = epi_graph_value(
            g, epi_graph_move(g, EPI_OP_GATHER, value, w->memo[n->arg[1]], EPI_NO_NODE, &n->over));
    epi_monomial core = value == EPI_NO_NODE ? rest : epi_monomial_of(g, value, 1);
    return epi_flat_multiply(w->facts, &rest, &core, 1) ? epi_flat_build(w->facts, &rest) : rebuild(w, n);
}

/* Elements at a distance along an axis: factors that lack the axis go out. So the gradient of a convolution shifts one
 * value, not one for each weight. */
static int shifted(epi_normal_walk *w, const epi_node *n) {
    epi_graph *g = w->g;
    epi_monomial f = epi_normal_monomial(w, n->arg[0]), rest,
                 own = epi_monomial_having(g, &f, &n->over, &rest);
    int value = own.count && rest.count ? epi_flat_build(w->facts, &own) : EPI_NO_NODE;
    if (value == EPI_NO_NODE)
        return rebuild(w, n);
    value = epi_graph_value(g, epi_graph_shifted(g, value, n->over.at[0], epi_shift_by(n)));
    epi_monomial core = value == EPI_NO_NODE ? rest : epi_monomial_of(g, value, 1);
    return epi_flat_multiply(w->facts, &rest, &core, 1) ? epi_flat_build(w->facts, &rest) : rebuild(w, n);
}

/* What elements of axes are moved by. */
static int moved(epi_normal_walk *w, const epi_node *n) {
    switch (n->op) {
    case EPI_OP_EVEN:
    case EPI_OP_ODD:
    case EPI_OP_LOW:
    case EPI_OP_HIGH: return taken_apart(w, n);
    case EPI_OP_JOIN:
    case EPI_OP_CONCAT: return put_together(w, n);
    case EPI_OP_RENAME: return renamed(w, n);
    case EPI_OP_GATHER: return gathered(w, n);
    case EPI_OP_SHIFT: return shifted(w, n);
    default: return rebuild(w, n);
    }
}

static epi_monomial rewritten(epi_normal_walk *w, int node) {
    const epi_node *n = &w->in->nodes[node];
    const epi_strict *strict = w->request->strict;
    epi_monomial own;
    if (strict && strict->rule(w, n, &own))
        return own;
    switch (n->op) {
    case EPI_OP_ADD:
    case EPI_OP_SUB: return added(w, n);
    case EPI_OP_SUM: return summed(w, n);
    default: break;
    }
    if (strict)
        return epi_normal_rebuild(w, n);
    switch (n->op) {
    case EPI_OP_MUL:
    case EPI_OP_DIV:
    case EPI_OP_NEG: return multiplied(w, n);
    case EPI_OP_MEAN: return summed(w, n);
    case EPI_OP_MATMUL: return contracted(w, n);
    default: return epi_monomial_of(w->g, epi_graph_value(w->g, moved(w, n)), 1);
    }
}

/* ---- the walk ---- */

static int instead_of(const epi_normal_walk *w, int node) {
    return w->request->found && node < w->request->count ? w->request->found[node] : EPI_NO_NODE;
}

/* What the text says of a value goes with it. One that it gives a type is one factor from here on. */
static void keep_words(epi_normal_walk *w, const epi_node *n, int value) {
    epi_node *to = &w->g->nodes[value];
    if (to->op == EPI_OP_CONST || to->op == EPI_OP_INPUT)
        return;
    to->name = to->name ? to->name : n->name;
    epi_graph_store_as(w->g, value, n);
    if (n->has_stored && epi_fact_of(w->facts, value))
        w->facts->at[value].monomial = NULL;
    to->opaque |= n->opaque;
    to->saving = to->saving == EPI_SAVE_OPEN ? n->saving : to->saving;
    to->exact |= n->exact && to->op == EPI_OP_DIV;
}

static void rewrite(epi_normal_walk *w, int node) {
    const epi_node *n = &w->in->nodes[node];
    const epi_strict *strict = w->request->strict;
    int instead = instead_of(w, node), value;
    bool stays = instead != EPI_NO_NODE || n->op == EPI_OP_INPUT || n->op == EPI_OP_CONST ||
                 (strict && node < strict->first);
    w->g->place = n->place;
    if (instead != EPI_NO_NODE) {
        value = epi_normal_value(w, instead);
    } else if (stays) {
        value = epi_graph_copy(w->g, n, w->memo);
    } else {
        epi_monomial made = rewritten(w, node);
        if (strict)
            w->monomials[node] = made;
        if (strict && !n->name && !n->has_stored && n->saving == EPI_SAVE_OPEN)
            return; /* it is written where it is used */
        value = epi_flat_build(w->facts, &made);
    }
    w->memo[node] = value = epi_graph_value(w->g, value);
    w->copied = strict && node < strict->first ? w->g->node_count : w->copied;
    if (value == EPI_NO_NODE)
        return;
    keep_words(w, n, value);
    if (strict && stays)
        w->monomials[node] = epi_monomial_of(w->g, value, 1);
    if (node < w->request->count && epi_graph_uses(w->in, node).count > 1 &&
        epi_op_has_terms(w->g->nodes[value].op) && w->g->nodes[value].axes.count > 1 &&
        epi_fact_of(w->facts, value))
        w->facts->at[value].keep = true;
}

/* What has to be there before a node: its operands, or what stands for it; and what stands for an operand of
 * a product, or of a product that it sums. */
static int list_needed(const void *ctx, int node, int *out) {
    const epi_normal_walk *w = ctx;
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

int epi_normal(const epi_normal_request *request, epi_graph *out, epi_facts *facts) {
    const epi_graph *in = request->in;
    const epi_strict *strict = request->strict;
    epi_arena *arena = out->arena;
    size_t nodes = (size_t)in->node_count + 1;
    *facts = request->known;
    facts->g = out;
    facts->strict = strict != NULL;
    const epi_facts fresh = *facts;
    epi_normal_walk w = {.request = request, .in = in, .g = out, .facts = facts};
    w.memo = epi_arena_alloc(arena, nodes * sizeof *w.memo);
    w.monomials = epi_arena_alloc(arena, (strict ? nodes : 1) * sizeof *w.monomials);
    int listed, *list = epi_list_needed(arena, in, request->count, list_needed, &w, &listed);
    if (!epi_graph_begin(out, in))
        return 0;
    if (!list)
        epi_graph_fail(out, "values stand for each other");
    for (int i = 0; i < in->node_count; i++)
        w.memo[i] = EPI_NO_NODE;
    for (int i = 0; i < listed && !epi_graph_failed(out); i++)
        rewrite(&w, list[i]);
    for (int t = 0; t < in->tensor_count && !epi_graph_failed(out); t++) {
        int value = epi_normal_value(&w, in->tensors[t].node);
        if (strict && value >= w.copied && !epi_graph_failed(out))
            value = strict->last(out, w.copied, value);
        if (!epi_graph_failed(out))
            out->tensors[t].node = epi_graph_value(out, epi_graph_complete(out, value, &in->tensors[t].axes));
    }
    epi_graph_finish(out);
    int delayed = facts->delayed;
    *facts = fresh; /* nodes have other numbers now */
    facts->delayed = delayed;
    facts->finished = out->node_count;
    for (int i = 0; i < out->node_count && epi_fact_of(facts, i); i++)
        facts->at[i].keep = epi_op_has_terms(out->nodes[i].op) && out->nodes[i].axes.count > 1 &&
                            epi_graph_uses(out, i).count > 1;
    return w.copied;
}
