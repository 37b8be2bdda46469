/* unify.c: if x and x*v are both operands of products, only x*v is stored, and a product with x becomes a
 * product with x*v, divided by v after it. v is a vector that is never 0, or that cancels. */
#include <stdlib.h>

#include "pass/rewrite/algebra.h"

/* An operand, and a number that all operands have in common which differ by vectors alone. */
typedef struct candidate {
    int node;
    uint64_t key;
} candidate;

static int compare(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return (x->node > y->node) - (x->node < y->node);
}

/* Of the factors that have as many axes as the value. */
static uint64_t key_of(epi_facts *facts, int node) {
    epi_monomial f = epi_flat_monomial(facts, node);
    uint64_t key = 0;
    for (int i = 0; i < f.count; i++)
        if (facts->g->nodes[f.at[i].node].axes.count >= facts->g->nodes[node].axes.count)
            key += epi_factor_hash(f.at[i]);
    return key;
}

/* No product with this operand sums over an axis of the vectors. */
static bool goes_past(const epi_graph *g, int operand, const epi_monomial *by) {
    epi_use_list uses = epi_graph_uses(g, operand);
    for (int u = 0; u < uses.count; u++) {
        if (epi_use_op(g, uses.at[u]) != EPI_OP_MATMUL)
            continue;
        epi_monomial rest, inside = epi_monomial_having(g, by, &g->nodes[uses.at[u].node].over, &rest);
        if (inside.count)
            return false;
    }
    return true;
}

/* May a product with x be divided by this vector after it? What is deeper than x may be made of the product.
 */
static bool may_divide(epi_facts *facts, const bool *cancels, int x, epi_monomial_factor by) {
    const epi_fact *f = epi_fact_of(facts, by.node);
    const epi_node *n = &facts->g->nodes[by.node];
    if (!f || n->axes.count >= facts->g->nodes[x].axes.count || f->depth > facts->at[x].depth)
        return false;
    return f->divides || (by.power > 0 && n->op == EPI_OP_INPUT && cancels[n->tensor]);
}

/* Is y x times vectors that may be divided by? Then *by are these. */
static bool differ_by_vectors(epi_facts *facts, const bool *cancels, int x, int y, epi_monomial *by) {
    const epi_graph *g = facts->g;
    epi_monomial of = epi_flat_monomial(facts, x);
    *by = epi_flat_monomial(facts, y);
    if (!epi_axes_same_set(&g->nodes[x].axes, &g->nodes[y].axes))
        return false;
    /* what both have is the same in both: no need that it be positive */
    for (int i = 0; i < of.count; i++) {
        int at = epi_monomial_find_factor(by, of.at[i]);
        if (at < 0)
            continue;
        by->at[at] = by->at[--by->count];
        of.at[i--] = of.at[--of.count];
    }
    if (by->number != of.number || !epi_flat_multiply(facts, by, &of, -1) || !by->count)
        return false;
    by->number = 1;
    for (int i = 0; i < by->count; i++)
        if (!may_divide(facts, cancels, x, by->at[i]))
            return false;
    return goes_past(g, x, by);
}

/* Are the vectors complete while x is on chip? Then what is stored of it is the operand alone, and sums may
 * as well be of that. */
static bool come_before(epi_facts *facts, int x, const epi_monomial *by) {
    bool before = true;
    for (int i = 0; i < by->count; i++)
        before &= facts->at[by->at[i].node].depth < facts->at[x].depth;
    return before;
}

static int list_operands(epi_facts *facts, candidate *out) {
    const epi_graph *g = facts->g;
    int count = 0;
    for (int i = 0; i < facts->finished; i++) {
        epi_use_list uses = epi_graph_uses(g, i);
        bool operand = false;
        for (int u = 0; u < uses.count && g->live[i]; u++)
            operand |= epi_use_op(g, uses.at[u]) == EPI_OP_MATMUL;
        if (operand)
            out[count++] = (candidate){i, key_of(facts, i)};
    }
    return count;
}

int epi_unify(epi_facts *facts, const bool *cancels, epi_stand_in *operand) {
    epi_graph *g = facts->g;
    int nodes = facts->finished, applied = 0;
    candidate *list = epi_arena_alloc(g->arena, ((size_t)nodes + 1) * sizeof *list);
    if (!list)
        return 0;
    for (int i = 0; i < nodes; i++)
        operand[i].node = EPI_NO_NODE;
    int count = list_operands(facts, list);
    bool *taken = epi_arena_alloc(g->arena, (size_t)nodes + 1); /* another one stands for it already */
    if (!taken)
        return 0;
    qsort(list, (size_t)count, sizeof *list, compare);
    for (int first = 0, end; first < count && !epi_graph_failed(g); first = end) {
        for (end = first; end < count && list[end].key == list[first].key;)
            end++;
        for (int y = first; y < end; y++)
            for (int x = first; x < end; x++) {
                int from = list[x].node, to = list[y].node;
                epi_monomial by;
                if (x == y || g->nodes[from].op == EPI_OP_INPUT || g->nodes[from].has_stored ||
                    operand[from].node != EPI_NO_NODE || operand[to].node != EPI_NO_NODE || taken[from] ||
                    !differ_by_vectors(facts, cancels, from, to, &by))
                    continue;
                operand[from] = (epi_stand_in){to, by, come_before(facts, from, &by)};
                taken[to] = true;
                applied++;
            }
    }
    return applied;
}
