/* polynomial.c: sums of monomials: split into terms, equal terms merged, and written as nodes again.
 *
 * In strict mode terms keep their order, and two terms that cancel stay: with infinities their sum would be
 * NaN. */
#include <math.h>
#include <string.h>

#include "pass/analyse/facts.h"

int epi_flat_terms(epi_facts *facts, int node, epi_monomial *terms) {
    int todo[EPI_MOST_TERMS + 2], count = 0, out = 0;
    double sign[EPI_MOST_TERMS + 2];
    todo[count] = node;
    sign[count++] = 1;
    while (count) {
        int at = todo[--count];
        double by = sign[count];
        const epi_fact *fact = epi_fact_of(facts, at);
        if (!fact)
            return 0;
        const epi_node n = facts->g->nodes[at];
        bool sum = epi_op_has_terms(n.op) && !n.has_stored;
        if (sum && (at == node || !fact->keep)) {
            if (count + 2 > EPI_MOST_TERMS)
                return 0;
            todo[count] = n.arg[1]; /* the first operand's terms come first */
            sign[count++] = n.op == EPI_OP_SUB ? -by : by;
            todo[count] = n.arg[0];
            sign[count++] = by;
            continue;
        }
        epi_monomial f = epi_flat_monomial(facts, at);
        epi_op op = f.count == 1 ? facts->g->nodes[f.at[0].node].op : EPI_OP_COUNT;
        if (f.count == 1 && f.at[0].power == 1 && f.at[0].node != at && isfinite(f.number) &&
            epi_op_has_terms(op)) { /* a number times a sum */
            todo[count] = f.at[0].node;
            sign[count++] = by * f.number;
            continue;
        }
        if (out == EPI_MOST_TERMS)
            return 0;
        terms[out] = f;
        terms[out++].number *= by;
    }
    return out;
}

static void drop_term(epi_monomial *terms, int *count, int at) {
    memmove(&terms[at], &terms[at + 1], (size_t)(--*count - at) * sizeof *terms);
}

/* ---- joins ---- */

int epi_flat_join(epi_facts *facts, epi_monomial *terms, int count) {
    epi_graph *g = facts->g;
    for (int i = 0; i < count; i++)
        for (int j = i + 1; j < count && !epi_graph_failed(g); j++) {
            if (!epi_monomials_join(g, &terms[i], &terms[j]))
                continue;
            const epi_node a = g->nodes[terms[i].at[0].node], b = g->nodes[terms[j].at[0].node];
            int half[2];
            for (int k = 0; k < 2; k++) {
                epi_monomial both[2] = {epi_flat_monomial(facts, a.arg[k]),
                                        epi_flat_monomial(facts, b.arg[k])};
                epi_monomial sum = epi_flat_add(facts, both, 2);
                half[k] = epi_flat_build(facts, &sum);
                if (half[k] != EPI_NO_NODE)
                    half[k] = epi_graph_complete(g, half[k], &g->nodes[a.arg[k]].axes);
            }
            if (epi_graph_failed(g))
                return count;
            int join = epi_graph_join(g, a.op, half[0], half[1], a.over.at[0]);
            terms[i] = epi_monomial_of(g, epi_graph_value(g, join), 1);
            drop_term(terms, &count, j--);
        }
    return count;
}

/* ---- equal terms ---- */

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
        epi_monomial inner = epi_monomial_of(g, n->arg[0], 1), b = epi_monomial_of(g, n->arg[1], 1), whole;
        if (!epi_monomial_multiply(g, &inner, &b, n->op == EPI_OP_MUL ? 1 : -1) ||
            !write_out(g, &inner, depth + 1, &whole) || !epi_monomial_multiply(g, out, &whole, 1))
            return false;
    }
    return true;
}

/* Are the terms the same but for their numbers, also where one has a product as a value and the other its
 * factors? */
static bool are_equal(const epi_facts *facts, const epi_monomial *a, const epi_monomial *b) {
    epi_monomial x, y;
    return epi_monomials_match(a, b) ||
           (facts->strict && write_out(facts->g, a, 0, &x) && write_out(facts->g, b, 0, &y) &&
            epi_monomials_match(&x, &y) && x.number == a->number && y.number == b->number);
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
static int drop_zeros(const epi_graph *g, epi_monomial *terms, int count) {
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count && is_zero(g, &terms[i]); j++)
            if (j != i && has_axes_of(g, &terms[j], &terms[i])) {
                drop_term(terms, &count, i--);
                break;
            }
    return count;
}

/* Equal terms as one; what comes to nothing is left out, as long as something stays. */
static int merge_terms(const epi_facts *facts, epi_monomial *terms, int count) {
    if (facts->strict)
        count = drop_zeros(facts->g, terms, count);
    for (int i = 0; i < count; i++) {
        for (int j = i + 1; j < count; j++) {
            double number = terms[i].number + terms[j].number;
            if ((facts->strict && number == 0) || !are_equal(facts, &terms[i], &terms[j]))
                continue;
            terms[i].number = number;
            drop_term(terms, &count, j--);
        }
        if (!facts->strict && terms[i].number == 0 && count > 1)
            drop_term(terms, &count, i--);
    }
    return count;
}

/* ---- as nodes ---- */

/* Takes out what all terms have; strictly, what all are divided by, once. */
static epi_monomial take_common(const epi_facts *facts, epi_monomial *terms, int count) {
    epi_monomial out = {.number = 1};
    for (int i = 0; i < terms[0].count; i++) {
        epi_monomial_factor factor = terms[0].at[i];
        int at[EPI_MOST_TERMS * 2] = {i};
        bool all = !facts->strict || factor.power < 0;
        for (int k = 1; k < count && all; k++) {
            at[k] = facts->strict ? epi_monomial_find(&terms[k], factor.node, -1)
                                  : epi_monomial_find_factor(&terms[k], factor);
            all = at[k] >= 0;
        }
        if (!all)
            continue;
        factor.power = facts->strict ? -1 : factor.power;
        out.at[out.count++] = factor;
        for (int k = 0; k < count; k++)
            if ((terms[k].at[at[k]].power -= factor.power) == 0) {
                epi_monomial_drop(&terms[k], at[k]);
                i -= k == 0;
            }
    }
    return out;
}

/* Positive ones first, then by their factors: the same sum is always written in the same order. */
static bool comes_before(const epi_monomial *a, const epi_monomial *b) {
    if ((a->number < 0) != (b->number < 0))
        return b->number < 0;
    for (int i = 0; i < a->count && i < b->count; i++)
        if (a->at[i].node != b->at[i].node)
            return a->at[i].node < b->at[i].node;
    return a->count < b->count;
}

static void sort_terms(epi_monomial *terms, int count) {
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0 && comes_before(&terms[j], &terms[j - 1]); j--) {
            epi_monomial swap = terms[j];
            terms[j] = terms[j - 1];
            terms[j - 1] = swap;
        }
}

/* The first one that has no minus goes first. */
static void bring_first(epi_monomial *terms, int count) {
    int head = 0;
    while (head < count && terms[head].number < 0)
        head++;
    if (head == count)
        return;
    epi_monomial first = terms[head];
    memmove(&terms[1], &terms[0], (size_t)head * sizeof *terms);
    terms[0] = first;
}

epi_monomial epi_flat_add(epi_facts *facts, epi_monomial *terms, int count) {
    epi_graph *g = facts->g;
    count = merge_terms(facts, terms, count);
    if (!facts->strict && count == 1 && terms[0].number == 0)
        return (epi_monomial){.number = 0};
    if (count == 1 || epi_graph_failed(g))
        return terms[0];
    epi_monomial common = take_common(facts, terms, count);
    if (facts->strict)
        bring_first(terms, count);
    else
        sort_terms(terms, count);
    double sign = terms[0].number < 0 ? -1 : 1; /* all are negative then */
    int value = epi_monomial_build_positive(g, &terms[0]);
    for (int i = 1; i < count && !epi_graph_failed(g); i++)
        value = epi_graph_map2(g, terms[i].number * sign < 0 ? EPI_OP_SUB : EPI_OP_ADD, value,
                               epi_monomial_build_positive(g, &terms[i]));
    if (epi_graph_failed(g))
        return common;
    epi_monomial out = epi_monomial_of(g, epi_graph_value(g, value), 1);
    common.number = sign;
    return epi_flat_multiply(facts, &out, &common, 1)
               ? out
               : epi_monomial_of(g, epi_graph_map2(g, EPI_OP_MUL, value, epi_monomial_build(g, &common)), 1);
}
