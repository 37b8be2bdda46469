/* facts.c: depth, weights, signs and factors of values, each computed once. */
#include "pass/analyse/facts.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"

/* The depth of a cotangent: it is there when all of the forward is. */
enum { AFTER_ALL = 1000000 };

/* From what is known of its operands. */
static void find_signs(const epi_facts *facts, const epi_node *n, epi_fact *out) {
    const epi_op_row *row = &epi_ops[n->op];
    bool any = false, positive = row->positive_of, divides = positive && epi_op_is_map(n->op);
    bool number = n->op == EPI_OP_CONST && n->value > 0;
    for (int a = 0; a < epi_node_operands(n); a++) {
        any |= facts->at[n->arg[a]].positive;
        positive &= facts->at[n->arg[a]].positive;
        divides &= facts->at[n->arg[a]].divides;
    }
    out->positive = row->positive || number || positive || (n->op == EPI_OP_MAX && any);
    out->divides = row->divides || number || divides || epi_is_clamped(facts->g, n);
}

static epi_fact learn(const epi_facts *facts, int node) {
    const epi_node *n = &facts->g->nodes[node];
    epi_fact out = {.weights = true, .params = true};
    for (int a = 0; a < epi_node_operands(n); a++) {
        const epi_fact *of = &facts->at[n->arg[a]];
        out.depth = of->depth > out.depth ? of->depth : out.depth;
        out.weights &= of->weights;
        out.params &= of->params;
        out.marked |= of->marked;
        out.folds |= of->folds;
    }
    out.depth += epi_op_is_product(n->op);
    if (n->op == EPI_OP_INPUT)
        out.weights = facts->is_weight && facts->is_weight[n->tensor];
    if (n->op == EPI_OP_INPUT) {
        out.params = out.marked = out.weights && facts->g->tensors[n->tensor].param;
        out.folds = out.params && facts->folds && facts->folds[n->tensor];
    }
    if (n->op == EPI_OP_INPUT && facts->g->tensors[n->tensor].cotangent)
        out.depth = AFTER_ALL;
    find_signs(facts, n, &out);
    return out;
}

const epi_fact *epi_fact_of(epi_facts *facts, int node) {
    epi_graph *g = facts->g;
    if (epi_graph_failed(g) || node == EPI_NO_NODE)
        return NULL;
    if (node >= facts->capacity) {
        int capacity = 2 * g->node_count + 64;
        epi_fact *at = epi_arena_alloc(g->arena, (size_t)capacity * sizeof *at);
        if (!at)
            return epi_graph_failed(g), NULL;
        if (facts->count)
            memcpy(at, facts->at, (size_t)facts->count * sizeof *at);
        facts->at = at;
        facts->capacity = capacity;
    }
    while (facts->count <= node) { /* operands come before what is made of them */
        facts->at[facts->count] = learn(facts, facts->count);
        facts->count++;
    }
    return &facts->at[node];
}

/* ---- products ---- */

/* By number, powers above 0 first: the same product is always written in the same order. */
static void sort_factors(epi_monomial *f) {
    for (int i = 1; i < f->count; i++) {
        epi_monomial_factor at = f->at[i];
        int j = i;
        for (; j && (f->at[j - 1].node > at.node || (f->at[j - 1].node == at.node && at.power > 0)); j--)
            f->at[j] = f->at[j - 1];
        f->at[j] = at;
    }
}

static bool cancels(epi_facts *facts, int node) {
    const epi_fact *f = epi_fact_of(facts, node);
    const epi_range *range = f && f->positive ? epi_range_of(&facts->ranges, facts->g, node) : NULL;
    const epi_node *n = &facts->g->nodes[node];
    return range ? epi_is_finite(range)
                 : f && facts->cancels && n->op == EPI_OP_INPUT && facts->cancels[n->tensor];
}

bool epi_flat_multiply(epi_facts *facts, epi_monomial *f, const epi_monomial *by, int sign) {
    if (!epi_monomial_multiply(facts->g, f, by, sign))
        return false;
    if (facts->strict)
        return true;
    for (int i = 0; i < f->count; i++) {
        int other = epi_monomial_find(f, f->at[i].node, -f->at[i].power);
        if (other < 0 || !cancels(facts, f->at[i].node))
            continue;
        f->at[i].power += f->at[other].power;
        int first = other; /* the other goes, and this one too if nothing is left of it */
        for (int gone = 0; gone < (f->at[i].power ? 1 : 2); gone++) {
            int at = gone ? i - (first < i) : first;
            epi_monomial_drop(f, at);
        }
        i = -1; /* from the start: few factors cancel */
    }
    sort_factors(f);
    return true;
}

int epi_flat_build(epi_facts *facts, const epi_monomial *f) {
    epi_monomial sorted = {.number = 1};
    bool fits = !epi_graph_failed(facts->g) && epi_flat_multiply(facts, &sorted, f, 1);
    int value = fits ? epi_monomial_build(facts->g, &sorted) : EPI_NO_NODE;
    return epi_graph_failed(facts->g) ? EPI_NO_NODE : epi_graph_value(facts->g, value);
}

uint64_t epi_factor_hash(epi_monomial_factor factor) {
    epi_hash h = {1, 2};
    epi_hash_word(&h, (uint64_t)(uint32_t)factor.node << 32 | (uint32_t)factor.power);
    return h.b;
}

bool epi_flat_is_steep(const epi_graph *g, const epi_monomial *f) {
    for (int i = 0; i < f->count; i++)
        if ((f->at[i].power > 2 || f->at[i].power < -2) && g->nodes[f->at[i].node].axes.count > 1)
            return true;
    return false;
}

bool epi_flat_over_sizes(epi_facts *facts, epi_monomial *f, const epi_axes *axes) {
    epi_graph *g = facts->g;
    bool fits = true;
    for (int i = 0; i < axes->count && fits && !epi_graph_failed(g); i++) {
        epi_monomial size = epi_monomial_of(g, epi_graph_leaf(g, EPI_OP_SIZE, axes->at[i]), 1);
        fits = epi_flat_multiply(facts, f, &size, -1);
    }
    return fits;
}

static epi_monomial flatten_mean(epi_facts *facts, int node) {
    epi_graph *g = facts->g;
    const epi_node n = g->nodes[node];
    epi_monomial f =
        epi_monomial_of(g, epi_graph_value(g, epi_graph_reduce(g, EPI_OP_SUM, n.arg[0], &n.over)), 1);
    return epi_flat_over_sizes(facts, &f, &n.over) ? f : epi_monomial_of(g, node, 1);
}

/* How many operands it is a product of, if it is taken apart. */
static int flat_operands(const epi_facts *facts, int node) {
    const epi_node *n = &facts->g->nodes[node];
    if (facts->strict || n->has_stored || n->opaque || n->exact)
        return 0;
    return n->op == EPI_OP_NEG ? 1 : epi_op_has_factors(n->op) ? 2 : 0;
}

/* The forms of its operands are known. */
static epi_monomial flatten(epi_facts *facts, int node) {
    const epi_node *n = &facts->g->nodes[node];
    int operands = flat_operands(facts, node);
    if (operands == 1) {
        epi_monomial f = *facts->at[n->arg[0]].monomial;
        f.number = -f.number;
        return f;
    }
    if (operands == 2) {
        epi_monomial f = *facts->at[n->arg[0]].monomial;
        if (epi_flat_multiply(facts, &f, facts->at[n->arg[1]].monomial, n->op == EPI_OP_MUL ? 1 : -1) &&
            !epi_flat_is_steep(facts->g, &f))
            return f;
    }
    if (n->op == EPI_OP_MEAN && !facts->strict && !n->opaque && !n->has_stored)
        return flatten_mean(facts, node);
    return epi_monomial_of(facts->g, node, 1);
}

/* Works a monomial out, and that of all it is made of: by a list, since products are long. */
static bool make_monomial(epi_facts *facts, int node) {
    epi_graph *g = facts->g;
    for (int count = 0, next = node; next != EPI_NO_NODE;) {
        int *todo = epi_arena_grow(g->arena, facts->todo, count, &facts->todo_capacity, sizeof *todo);
        if (!todo)
            return false;
        facts->todo = todo;
        todo[count++] = next;
        for (next = EPI_NO_NODE; count && next == EPI_NO_NODE;) {
            int at = todo[count - 1];
            for (int a = flat_operands(facts, at) - 1; a >= 0; a--)
                if (!facts->at[g->nodes[at].arg[a]].monomial)
                    next = g->nodes[at].arg[a];
            if (next != EPI_NO_NODE)
                break;
            epi_monomial f = flatten(facts, at), *kept = epi_arena_alloc(g->arena, sizeof *kept);
            if (!kept)
                return false;
            *kept = f;
            facts->at[at].monomial = kept;
            count--;
        }
    }
    return true;
}

epi_monomial epi_flat_monomial(epi_facts *facts, int node) {
    if (!epi_fact_of(facts, node) || (!facts->at[node].monomial && !make_monomial(facts, node)))
        return (epi_monomial){.number = 0};
    return *facts->at[node].monomial;
}

/* ---- what depends on what ---- */

static bool allocate(epi_facts *facts) {
    if (facts->g->node_count <= facts->visits_capacity)
        return true;
    facts->visits_capacity = 2 * facts->g->node_count;
    return epi_visits_make(facts->g->arena, facts->visits_capacity, &facts->visits);
}

bool epi_reaches(epi_facts *facts, int value, int node, const int *found, int count) {
    const epi_graph *g = facts->g;
    if (!epi_fact_of(facts, g->node_count - 1) || !allocate(facts))
        return true;
    int low = facts->at[node].depth; /* nothing that depends on it is less deep */
    epi_visits_begin(&facts->visits, value);
    for (int at; epi_visits_next(&facts->visits, &at);) {
        if (at == node)
            return true;
        bool replaced = at < count && found[at] != EPI_NO_NODE;
        for (int a = 0; a < (replaced ? 1 : epi_node_operands(&g->nodes[at])); a++) {
            int next = replaced ? found[at] : g->nodes[at].arg[a];
            if (facts->at[next].depth >= low)
                epi_visit(&facts->visits, next);
        }
    }
    return false;
}
