/* reuse.c: sum(u*z, X) = sum(u*(r*z), X)/r, if r*z is stored anyway, as an operand of a product or as a
 * result, and z is not. The stored value is marked as opaque, so that no later walk looks inside it. */
#include "pass/rewrite/algebra.h"

/* A stored value that is another one times vectors. */
typedef struct stored {
    int node; /* EPI_NO_NODE: there is none */
    epi_monomial by;
} stored;

typedef struct search {
    epi_facts *facts;
    epi_graph *g;
    bool *kept; /* by node: it is stored anyway */
    stored *of; /* by node: what it can be had from */
    int count;
} search;

/* ---- what is stored ---- */

static void note_stored(search *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    epi_monomial f = epi_flat_monomial(s->facts, node);
    int wide = -1;
    for (int i = 0; i < f.count; i++) {
        const epi_fact *fact = epi_fact_of(s->facts, f.at[i].node);
        if (s->g->nodes[f.at[i].node].axes.count == n->axes.count) {
            if (wide >= 0 || f.at[i].power != 1)
                return;
            wide = i;
        } else if (!fact || !fact->divides) {
            return;
        }
    }
    if (wide < 0 || f.number != 1 || f.count < 2)
        return;
    int of = f.at[wide].node;
    if (of >= s->count || s->kept[of] || s->g->nodes[of].has_stored || s->of[of].node != EPI_NO_NODE)
        return;
    f.at[wide] = f.at[--f.count];
    s->of[of] = (stored){node, f};
}

static void find_stored(search *s) {
    epi_graph *g = s->g;
    for (int i = 0; i < s->count; i++) {
        s->of[i].node = EPI_NO_NODE;
        if (g->live[i] && g->nodes[i].op == EPI_OP_MATMUL)
            s->kept[g->nodes[i].arg[0]] = s->kept[g->nodes[i].arg[1]] = true;
    }
    for (int t = 0; t < g->tensor_count; t++)
        s->kept[g->tensors[t].node] = true;
    for (int i = 0; i < s->count && !epi_graph_failed(g); i++)
        if (s->kept[i] && g->live[i])
            note_stored(s, i);
}

/* ---- one statistic ---- */

/* Replaces a factor by what it can be had from; returns which stored value that is, or EPI_NO_NODE. */
static int from_stored(search *s, epi_monomial *f) {
    for (int i = 0; i < f->count; i++) {
        if (f->at[i].power != 1 || f->at[i].node >= s->count || s->of[f->at[i].node].node == EPI_NO_NODE)
            continue;
        const stored *of = &s->of[f->at[i].node];
        epi_monomial by = epi_monomial_of(s->g, of->node, 1);
        f->at[i] = f->at[--f->count];
        bool fits = epi_flat_multiply(s->facts, f, &by, 1) && epi_flat_multiply(s->facts, f, &of->by, -1);
        return fits ? of->node : EPI_NO_NODE;
    }
    return EPI_NO_NODE;
}

/* What stands for a sum; *from is the stored value that it is taken from. */
static int find_one(search *s, int node, int *from) {
    epi_graph *g = s->g;
    const epi_node n = g->nodes[node];
    epi_monomial f = epi_flat_monomial(s->facts, n.arg[0]);
    *from = from_stored(s, &f);
    if (*from == EPI_NO_NODE || (n.op == EPI_OP_MEAN && !epi_flat_over_sizes(s->facts, &f, &n.over)))
        return EPI_NO_NODE;
    epi_monomial sum = epi_normal_sum(s->facts, &f, &n.over, NULL);
    return epi_graph_failed(g) ? EPI_NO_NODE : epi_flat_build(s->facts, &sum);
}

int epi_reuse(epi_facts *facts, int *found) {
    epi_graph *g = facts->g;
    int count = facts->finished, applied = 0;
    search s = {.facts = facts, .g = g, .count = count};
    s.kept = epi_arena_alloc(g->arena, (size_t)count + 1);
    s.of = epi_arena_alloc(g->arena, ((size_t)count + 1) * sizeof *s.of);
    if (epi_graph_failed(g))
        return 0;
    find_stored(&s);
    for (int i = 0; i < count && !epi_graph_failed(g); i++) {
        bool sum = g->live[i] && epi_ops[g->nodes[i].op].adds;
        int from, value = sum ? find_one(&s, i, &from) : EPI_NO_NODE;
        if (value != EPI_NO_NODE && !epi_reaches(facts, value, i, found, i))
            found[i] = value, g->nodes[from].opaque = true;
        applied += found[i] != EPI_NO_NODE;
    }
    return applied;
}
