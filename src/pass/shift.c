/* shift.c: (n + b) @ w = n @ w + b @ w, where b is of weights alone: a vector of the epilogue. Then n @ w is
 * at hand as it is, and no statistic has to be had by taking a large shift off again. */
#include "pass/algebra.h"

/* The terms of weights alone that have fewer axes than the sum go to the end; answers how many others there
 * are. */
static int heavy_first(epi_facts *facts, epi_form *terms, int count, int axes) {
    int heavy = 0;
    for (int i = 0; i < count; i++) {
        int most = 0;
        bool weights = true;
        for (int k = 0; k < terms[i].count; k++) {
            int node = terms[i].at[k].node, has = facts->g->nodes[node].axes.count;
            const epi_fact *f = epi_fact_of(facts, node);
            weights &= f && f->weights;
            most = has > most ? has : most;
        }
        if (weights && most < axes)
            continue;
        epi_form swap = terms[heavy];
        terms[heavy++] = terms[i];
        terms[i] = swap;
    }
    return heavy;
}

static int shifted(epi_facts *facts, int product) {
    epi_graph *g = facts->g;
    const epi_node n = g->nodes[product];
    for (int a = 0; a < 2; a++) {
        epi_form terms[EPI_MOST_TERMS], sum[EPI_MOST_TERMS];
        const epi_op op = g->nodes[n.arg[a]].op;
        if (op != EPI_OP_ADD && op != EPI_OP_SUB)
            continue;
        int count = epi_flat_terms(facts, n.arg[a], terms), parts = 0;
        int heavy = heavy_first(facts, terms, count, g->nodes[n.arg[a]].axes.count);
        if (!heavy || heavy == count)
            continue;
        epi_form other = epi_flat_form(facts, n.arg[1 - a]), rest = epi_flat_add(facts, terms, heavy);
        for (int i = heavy - 1; i < count && !epi_graph_failed(g); i++) {
            epi_form whole = i < heavy ? rest : terms[i];
            if (!epi_flat_multiply(facts, &whole, &other, 1))
                return EPI_NO_NODE;
            sum[parts++] = epi_normal_sum(facts, &whole, &n.over);
        }
        epi_form out = epi_flat_add(facts, sum, parts);
        return epi_graph_failed(g) ? EPI_NO_NODE : epi_normal_build(facts, &out);
    }
    return EPI_NO_NODE;
}

int epi_shift(epi_facts *facts, int *found) {
    int count = facts->finished, applied = 0;
    for (int i = 0; i < count && !epi_graph_failed(facts->g); i++) {
        bool product = facts->g->live[i] && facts->g->nodes[i].op == EPI_OP_MATMUL;
        int value = product ? shifted(facts, i) : EPI_NO_NODE;
        if (value != EPI_NO_NODE && !epi_reaches(facts, value, i, found, i)) /* b may be 0 */
            found[i] = value;
        applied += found[i] != EPI_NO_NODE;
    }
    return applied;
}
