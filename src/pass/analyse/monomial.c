/* monomial.c: monomials: built from nodes, multiplied, and written as nodes again. */
#include "pass/analyse/monomial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool epi_is_number(const epi_graph *g, int node, double *number) {
    if (node == EPI_NO_NODE)
        return false;
    const epi_node *n = &g->nodes[node];
    double sign = 1;
    for (; n->op == EPI_OP_NEG; sign = -sign)
        n = &g->nodes[n->arg[0]];
    *number = sign * n->value;
    return n->op == EPI_OP_CONST;
}

bool epi_is_constant(const epi_graph *g, int node, double value) {
    double number;
    return epi_is_number(g, node, &number) && number == value;
}

int epi_choice_of(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    return n->op != EPI_OP_WHERE ? 0 : epi_is_zero(g, n->arg[2]) ? 1 : epi_is_zero(g, n->arg[1]) ? 2 : 0;
}

bool epi_is_clamped(const epi_graph *g, const epi_node *n) {
    double number;
    return n->op == EPI_OP_MAX && ((epi_is_number(g, n->arg[0], &number) && number > 0) ||
                                   (epi_is_number(g, n->arg[1], &number) && number > 0));
}

bool epi_is_zeros(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    return n->op == EPI_OP_MUL && epi_is_zero(g, n->arg[0]) && g->nodes[n->arg[1]].op == EPI_OP_INDEX;
}

epi_monomial epi_monomial_of(const epi_graph *g, int node, int power) {
    double number;
    if (epi_is_number(g, node, &number) && isfinite(number) && (power > 0 || number != 0))
        return (epi_monomial){.number = power > 0 ? number : 1 / number};
    return (epi_monomial){.number = 1, .count = 1, .at = {{node, power}}};
}

/* May a factor cancel against one over itself? Only what is neither 0 nor infinite: a size, or a number that
 * the program divides by before, as in cap*tanh(x/cap). */
static bool cancels(const epi_graph *g, int node) {
    bool divides = false;
    for (int i = 0; i < g->node_count && g->nodes[node].op == EPI_OP_INPUT && !g->nodes[node].axes.count; i++)
        divides |= g->nodes[i].op == EPI_OP_DIV && g->nodes[i].arg[1] == node;
    return divides || g->nodes[node].op == EPI_OP_SIZE;
}

bool epi_monomial_multiply(const epi_graph *g, epi_monomial *f, const epi_monomial *by, int sign) {
    epi_monomial out = *f;
    if (sign < 0 && by->number == 0)
        return false;
    out.number *= sign > 0 ? by->number : 1 / by->number;
    for (int i = 0; i < by->count; i++) {
        int at = 0, power = sign * by->at[i].power;
        while (at < out.count && !(out.at[at].node == by->at[i].node &&
                                   ((out.at[at].power > 0) == (power > 0) || cancels(g, by->at[i].node))))
            at++;
        if (at == EPI_MOST_FACTORS)
            return false;
        if (at == out.count)
            out.at[out.count++] = (epi_monomial_factor){by->at[i].node, 0};
        out.at[at].power += power;
        if (abs(out.at[at].power) > EPI_MOST_POWER)
            return false;
        if (!out.at[at].power)
            epi_monomial_drop(&out, at);
    }
    *f = out;
    return true;
}

/* ---- a monomial as nodes ---- */

/* Factors of the same axes, as the product above a fraction's line and that below it. */
typedef struct group {
    epi_axes axes;
    int above, below;
} group;

static int times(epi_graph *g, int a, int b) {
    return a == EPI_NO_NODE ? b : epi_graph_map2(g, EPI_OP_MUL, a, b);
}

/* a times what a group is. */
static int times_group(epi_graph *g, int a, const group *b) {
    if (b->above != EPI_NO_NODE && b->below != EPI_NO_NODE)
        return times(g, a, epi_graph_map2(g, EPI_OP_DIV, b->above, b->below));
    if (b->below == EPI_NO_NODE)
        return times(g, a, b->above);
    return epi_graph_map2(g, EPI_OP_DIV, a == EPI_NO_NODE ? epi_graph_const(g, 1) : a, b->below);
}

/* Groups the factors, those of the fewest axes first. The number goes to the first of them. */
static int make_groups(epi_graph *g, const epi_monomial *f, int number, group *groups) {
    int count = 0;
    for (int axes = 0; axes <= EPI_MAX_AXES; axes++)
        for (int i = 0; i < f->count; i++) {
            const epi_axes have = g->nodes[f->at[i].node].axes;
            if (have.count != axes)
                continue;
            int at = 0, power = f->at[i].power;
            while (at < count && !epi_axes_same_set(&groups[at].axes, &have))
                at++;
            if (at == count) {
                groups[count++] = (group){have, EPI_NO_NODE, EPI_NO_NODE};
                if (at == 0)
                    groups[0].above = number;
            }
            int *side = power > 0 ? &groups[at].above : &groups[at].below;
            for (int n = power > 0 ? power : -power; n > 0; n--)
                *side = times(g, *side, f->at[i].node);
        }
    return count;
}

static int find_size(const epi_graph *g, const epi_monomial *f, epi_axis axis) {
    for (int i = 0; i < f->count; i++) {
        const epi_node *n = &g->nodes[f->at[i].node];
        if (n->op == EPI_OP_SIZE && f->at[i].power < 0 && epi_axis_equal(n->over.at[0], axis))
            return i;
    }
    return -1;
}

/* A sum over the sizes of its axes is a mean. */
static void find_means(epi_graph *g, epi_monomial *f) {
    for (int i = 0; i < f->count && !epi_graph_failed(g); i++) {
        const epi_node n = g->nodes[f->at[i].node];
        bool mean = n.op == EPI_OP_SUM && f->at[i].power == 1;
        for (int a = 0; a < n.over.count && mean; a++)
            mean = find_size(g, f, n.over.at[a]) >= 0;
        if (!mean)
            continue;
        f->at[i].node = epi_graph_value(g, epi_graph_reduce(g, EPI_OP_MEAN, n.arg[0], &n.over));
        for (int a = 0; a < n.over.count; a++) {
            int at = find_size(g, f, n.over.at[a]);
            if (++f->at[at].power == 0) {
                epi_monomial_drop(f, at);
                i -= at < i;
            }
        }
    }
}

/* The monomial with this number, or EPI_NO_NODE for 1, instead of its own. A group is multiplied into the
 * smallest one that has all its axes and more. */
static int build_with(epi_graph *g, const epi_monomial *of, int number) {
    group groups[EPI_MOST_FACTORS];
    epi_monomial means = *of, *f = &means;
    find_means(g, f);
    int count = make_groups(g, f, number, groups), value = EPI_NO_NODE;
    if (epi_graph_failed(g))
        return EPI_NO_NODE;
    if (!count)
        return number == EPI_NO_NODE ? epi_graph_const(g, 1) : number;
    bool top[EPI_MOST_FACTORS] = {false};
    for (int i = 0; i < count; i++) {
        int into = i + 1;
        while (into < count &&
               !(epi_axes_include(&groups[into].axes, &groups[i].axes) && groups[into].above != EPI_NO_NODE))
            into++;
        top[i] = into == count;
        if (into < count)
            groups[into].above = times_group(g, groups[into].above, &groups[i]);
    }
    for (int i = count - 1; i >= 0; i--)
        if (top[i])
            value = times_group(g, value, &groups[i]);
    return value;
}

int epi_monomial_build_positive(epi_graph *g, const epi_monomial *f) {
    double number = fabs(f->number);
    return build_with(g, f, number == 1 ? EPI_NO_NODE : epi_graph_const(g, number));
}

int epi_monomial_build(epi_graph *g, const epi_monomial *f) {
    if (f->number >= 0 || f->number == -1)
        return f->number < 0 ? epi_graph_map1(g, EPI_OP_NEG, epi_monomial_build_positive(g, f))
                             : epi_monomial_build_positive(g, f);
    return build_with(g, f, epi_graph_map1(g, EPI_OP_NEG, epi_graph_const(g, -f->number)));
}

/* ---- factors ---- */

int epi_monomial_find(const epi_monomial *f, int node, int sign) {
    int i = 0;
    while (i < f->count && !(f->at[i].node == node && f->at[i].power * sign > 0))
        i++;
    return i < f->count ? i : -1;
}

int epi_monomial_find_factor(const epi_monomial *f, epi_monomial_factor factor) {
    int at = epi_monomial_find(f, factor.node, factor.power);
    return at >= 0 && f->at[at].power == factor.power ? at : -1;
}

void epi_monomial_drop(epi_monomial *f, int at) {
    memmove(&f->at[at], &f->at[at + 1], (size_t)(f->count - at - 1) * sizeof *f->at);
    f->count--;
}

bool epi_monomials_match(const epi_monomial *a, const epi_monomial *b) {
    for (int i = 0; i < a->count && a->count == b->count; i++)
        if (epi_monomial_find_factor(b, a->at[i]) < 0)
            return false;
    return a->count == b->count;
}

epi_monomial epi_monomial_having(const epi_graph *g, const epi_monomial *f, const epi_axes *axes,
                                 epi_monomial *others) {
    epi_monomial out = {.number = 1};
    *others = (epi_monomial){.number = f->number};
    for (int i = 0; i < f->count; i++) {
        epi_monomial *to = epi_axes_meet(axes, &g->nodes[f->at[i].node].axes) ? &out : others;
        to->at[to->count++] = f->at[i];
    }
    return out;
}

bool epi_monomials_join(const epi_graph *g, const epi_monomial *x, const epi_monomial *y) {
    if (x->count != 1 || y->count != 1 || x->at[0].power != 1 || y->at[0].power != 1 || x->number != 1 ||
        y->number != 1)
        return false;
    const epi_node *a = &g->nodes[x->at[0].node], *b = &g->nodes[y->at[0].node];
    return a->op == b->op && epi_ops[a->op].joins && !a->has_stored && !b->has_stored &&
           epi_axis_equal(a->over.at[0], b->over.at[0]) && epi_axes_same_set(&a->axes, &b->axes);
}
