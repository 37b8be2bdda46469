/* taken.c: a value that a choice does not select gets no gradient, whatever is computed there.
 *
 * The gradient of where(c, a, b) with respect to a is where(c, d, 0). Later it is multiplied by operands of
 * a, which may be infinite or NaN where a was not selected: log(x) in where(x > 0, x*log(x), 0). So grad.c
 * follows the conditions of a gradient. If it meets such a factor f, it makes the choice after the factor:
 *     where(c, d, 0)*f   becomes   where(c, d*f, 0) */
#include "pass/derive/taken.h"

#include "pass/analyse/monomial.h"

/* Values that are looked at for choices inside, at most. */
enum { MOST_LOOKED_AT = 64 };

/* Is it known from the text, as a comparison of numbers? */
static bool is_constant(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    for (int a = 0; a < epi_node_operands(n); a++) {
        double number;
        if (!epi_is_number(g, n->arg[a], &number))
            return false;
    }
    return n->op != EPI_OP_INPUT;
}

static bool has(const epi_taken *t, epi_condition c) {
    for (int i = 0; i < t->count; i++)
        if (t->at[i].node == c.node && t->at[i].fails == c.fails)
            return true;
    return false;
}

static int truth_of(epi_graph *g, epi_condition c) {
    return c.fails ? epi_graph_map1(g, EPI_OP_NOT, c.node) : c.node;
}

/* One condition for all from `first` on. */
static epi_condition together(epi_graph *g, const epi_taken *t, int first) {
    epi_condition all = t->at[first];
    for (int i = first + 1; i < t->count && !epi_graph_failed(g); i++)
        all = (epi_condition){epi_graph_map2(g, EPI_OP_AND, truth_of(g, all), truth_of(g, t->at[i])), false};
    return all;
}

static void add(epi_graph *g, epi_taken *t, epi_condition c) {
    if (has(t, c) || epi_graph_failed(g))
        return;
    if (t->count == EPI_MOST_CONDITIONS) {
        t->at[t->count - 2] = together(g, t, t->count - 2);
        t->count--;
    }
    t->at[t->count++] = c;
}

void epi_taken_note(epi_graph *g, epi_taken *t, int value) {
    int x = epi_graph_failed(g) ? 0 : epi_choice_of(g, value);
    if (x && !is_constant(g, g->nodes[value].arg[0]))
        add(g, t, (epi_condition){g->nodes[value].arg[0], x == 2});
}

void epi_taken_keep(const epi_graph *g, epi_taken *t, const epi_axes *axes) {
    int kept = 0;
    for (int i = 0; i < t->count; i++)
        if (epi_axes_include(axes, &g->nodes[t->at[i].node].axes))
            t->at[kept++] = t->at[i];
    t->count = kept;
}

epi_taken epi_taken_either(epi_graph *g, const epi_taken *a, const epi_taken *b) {
    epi_taken both = {0}, rest[2] = {{0}, {0}};
    for (int i = 0; i < a->count; i++)
        add(g, has(b, a->at[i]) ? &both : &rest[0], a->at[i]);
    for (int i = 0; i < b->count; i++)
        if (!has(a, b->at[i]))
            add(g, &rest[1], b->at[i]);
    if (!rest[0].count || !rest[1].count || epi_graph_failed(g))
        return both;
    int one = truth_of(g, together(g, &rest[0], 0)), other = truth_of(g, together(g, &rest[1], 0));
    if (!epi_graph_failed(g))
        add(g, &both, (epi_condition){epi_graph_map2(g, EPI_OP_OR, one, other), false});
    return both;
}

/* A value with a name is used as it is, unless `named`, or it is such a choice. */
static int without_choice(epi_graph *g, const epi_taken *t, int node, bool named, int *looks) {
    if (epi_graph_failed(g) || --*looks < 0)
        return node;
    epi_node n = g->nodes[node];
    int x = epi_choice_of(g, node);
    bool choice = x > 0;
    if (choice && has(t, (epi_condition){n.arg[0], x == 2}))
        return without_choice(g, t, n.arg[x], named, looks);
    bool two = n.op == EPI_OP_MUL || n.op == EPI_OP_ADD || n.op == EPI_OP_SUB, same = true;
    if ((!named && n.name) || n.has_stored || !(choice || two || n.op == EPI_OP_DIV || n.op == EPI_OP_NEG))
        return node;
    for (int a = choice ? x : 0; a <= (choice ? x : two); a++) {
        int fresh = without_choice(g, t, n.arg[a], named, looks);
        same &= fresh == n.arg[a];
        n.arg[a] = fresh;
    }
    return same || epi_graph_failed(g) ? node : epi_graph_map(g, n.op, n.arg[0], n.arg[1], n.arg[2]);
}

int epi_taken_inside(epi_graph *g, const epi_taken *t, int value, bool named) {
    int looks = MOST_LOOKED_AT;
    return without_choice(g, t, value, named, &looks);
}

int epi_taken_only(epi_graph *g, const epi_taken *t, int value) {
    for (int i = t->count - 1; i >= 0 && !epi_graph_failed(g); i--) {
        int zero = epi_graph_const(g, 0), c = t->at[i].node;
        value = t->at[i].fails ? epi_graph_map(g, EPI_OP_WHERE, c, zero, value)
                               : epi_graph_map(g, EPI_OP_WHERE, c, value, zero);
    }
    return value;
}
