/* reorder.c: (x @ a) @ b = x @ (a @ b), if that takes fewer multiply-adds. Rows count at their nominal
 * number, and a @ b is computed in every run unless both are params. */
#include "pass/rewrite/algebra.h"

static double elements(const epi_facts *facts, const epi_axes *axes) {
    return (double)epi_max64(0, epi_axes_size(axes, facts->sizes));
}

/* Multiply-adds of a product of these operands. */
static double work(const epi_facts *facts, const epi_axes *a, const epi_axes *b) {
    epi_axes rest = epi_axes_without(b, a);
    return elements(facts, a) * elements(facts, &rest);
}

static bool is_of_weights(epi_facts *facts, int node) {
    const epi_fact *f = epi_fact_of(facts, node);
    return f && f->weights;
}

/* Is the product of both made once, and not at every run? */
static bool is_prepared(epi_facts *facts, int a, int b) {
    const epi_fact *f = epi_fact_of(facts, a), *g = epi_fact_of(facts, b);
    return f && g && f->params && g->params && (f->marked || g->marked);
}

/* The product of x and a @ b, or EPI_NO_NODE: it is no less work, or no such product. `of` is x @ a, with a
 * its operand `side`. */
static int reordered(epi_facts *facts, const epi_node *c, const epi_node *of, int side, int b) {
    epi_graph *g = facts->g;
    int a = of->arg[side], x = of->arg[1 - side];
    const epi_axes *xs = &g->nodes[x].axes, *as = &g->nodes[a].axes, *bs = &g->nodes[b].axes;
    if (!is_of_weights(facts, a) || !epi_axes_include(as, &c->over) || epi_axes_meet(&c->over, xs) ||
        epi_axes_meet(bs, &of->over) || !epi_graph_is_contraction(g, a, b, &c->over))
        return EPI_NO_NODE;
    epi_axes ab = epi_axes_without(as, &c->over), more = epi_axes_without(bs, &c->over);
    if (!epi_axes_unite(&ab, &more))
        return EPI_NO_NODE;
    double now = work(facts, xs, as) + work(facts, &of->axes, bs),
           then = (is_prepared(facts, a, b) ? 0 : work(facts, as, bs)) + work(facts, xs, &ab);
    if (then >= now)
        return EPI_NO_NODE;
    int merged = epi_graph_contract(g, a, b, &c->over);
    if (epi_graph_failed(g))
        return EPI_NO_NODE;
    merged = epi_graph_value(g, merged);
    return epi_graph_is_contraction(g, x, merged, &of->over)
               ? epi_graph_value(g, epi_graph_contract(g, x, merged, &of->over))
               : EPI_NO_NODE;
}

int epi_reorder(epi_facts *facts, int *found) {
    epi_graph *g = facts->g;
    int count = facts->finished, applied = 0;
    for (int i = 0; i < count && !epi_graph_failed(g); i++) {
        const epi_node c = g->nodes[i];
        for (int s = 0; s < 2 && g->live[i] && c.op == EPI_OP_MATMUL && found[i] == EPI_NO_NODE; s++) {
            const epi_node of = g->nodes[c.arg[s]];
            if (of.op != EPI_OP_MATMUL || of.has_stored || epi_graph_uses(g, c.arg[s]).count > 1 ||
                !is_of_weights(facts, c.arg[1 - s]) || is_of_weights(facts, c.arg[s]))
                continue;
            for (int side = 0; side < 2 && found[i] == EPI_NO_NODE; side++)
                found[i] = reordered(facts, &c, &of, side, c.arg[1 - s]);
        }
        applied += found[i] != EPI_NO_NODE;
    }
    return applied;
}
