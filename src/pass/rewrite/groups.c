/* groups.c: a product whose weight is chosen by the row, where rows with one weight follow each other.
 *
 *     sum(a*gather(w, s, E), D)    rows of the same s have the same weight
 *     scatter(a*b, s, E)           positions of the same s are added up
 *
 * where s = segments(o, E, T, K), which never falls. The first is a product of each group of rows with its own
 * matrix, the second a product for each group of positions, summed over these: the weights' gradient. Neither
 * a weight for each row nor a product for each position is ever in memory. */
#include "pass/rewrite/groups.h"

/* A product of groups, as far as it is found. */
typedef struct found {
    int a, b, segments;
    epi_axes over;
} found;

/* Are rows and columns such that a tile can have them? Positions are all that groups of rows have for rows. */
static bool is_product(const epi_graph *g, const found *f) {
    epi_node n = {.op = EPI_OP_GROUPED, .arg = {f->a, f->b, f->segments}, .over = f->over};
    epi_axes positions = epi_grouped_positions(g, &n), rows = epi_product_side(g, &n, 0),
             cols = epi_product_side(g, &n, 1), group = {1, {epi_grouped_axis(g, &n)}};
    bool of_rows = epi_grouped_rows(g, &n);
    for (int a = 0; a < 2; a++)
        if (!epi_axes_include(&g->nodes[n.arg[a]].axes, &n.over))
            return false;
    return rows.count && cols.count && !epi_axes_count_in(&rows, &cols) &&
           !epi_axes_count_in(&group, &g->nodes[f->a].axes) && !epi_axes_count_in(&cols, &positions) &&
           epi_axes_same_set(&positions, of_rows ? &rows : &n.over);
}

/* sum(a*gather(w, s, E), D), with the factors in either order. */
static bool find_rows(const epi_graph *g, const epi_node *sum, found *f) {
    const epi_node *of = &g->nodes[sum->arg[0]];
    for (int a = 0; a < 2 && sum->op == EPI_OP_SUM && of->op == EPI_OP_MUL && !of->has_stored; a++) {
        const epi_node *chosen = &g->nodes[of->arg[!a]];
        if (chosen->op != EPI_OP_GATHER || chosen->has_stored ||
            g->nodes[chosen->arg[1]].op != EPI_OP_SEGMENTS)
            continue;
        *f = (found){of->arg[a], chosen->arg[0], chosen->arg[1], sum->over};
        epi_axis group = g->nodes[f->segments].over.at[0];
        if (chosen->over.count == 1 && epi_axis_equal(chosen->over.at[0], group) && is_product(g, f))
            return true;
    }
    return false;
}

/* scatter(a*b, s, E). */
static bool find_depth(const epi_graph *g, const epi_node *n, found *f) {
    if (n->op != EPI_OP_SCATTER || n->over.count != 1 || g->nodes[n->arg[1]].op != EPI_OP_SEGMENTS)
        return false;
    const epi_node *of = &g->nodes[n->arg[0]], *s = &g->nodes[n->arg[1]];
    if (of->op != EPI_OP_MUL || of->has_stored || !epi_axis_equal(n->over.at[0], s->over.at[0]))
        return false;
    *f = (found){of->arg[0], of->arg[1], n->arg[1], s->over};
    epi_axes_remove(&f->over, 0);
    return !epi_axes_has_dim(&g->nodes[f->b].axes, n->over.at[0].dim) && is_product(g, f);
}

static bool find(const epi_graph *g, int node, found *f) {
    const epi_node *n = &g->nodes[node];
    return g->live[node] && (find_rows(g, n, f) || find_depth(g, n, f));
}

bool epi_is_grouped(const epi_graph *g, int node) {
    found f;
    return find(g, node, &f);
}

static int write_node(epi_rewrite *r, int node) {
    found f;
    if (!find(r->in, node, &f))
        return EPI_NO_NODE;
    int value = epi_graph_grouped(r->g, r->fresh[f.a], r->fresh[f.b], r->fresh[f.segments], &f.over);
    return epi_graph_stand_for(r->g, value, &r->in->nodes[node]);
}

epi_status epi_groups_write(epi_arena *arena, const epi_graph **graph, epi_error *err) {
    bool any = false;
    for (int i = 0; i < (*graph)->node_count && !any; i++)
        any = epi_is_grouped(*graph, i);
    return any ? epi_graph_rewrite(arena, graph, write_node, NULL, err) : EPI_OK;
}
