/* square.c: finds values that are quantised along both of two axes. */
#include "pass/analyse/square.h"

epi_axes epi_scaled_depth(const epi_graph *g, int node) {
    epi_use_list uses = epi_graph_uses(g, node);
    for (int i = 0; i < uses.count; i++) {
        epi_use use = uses.at[i];
        if (use.node != EPI_NO_NODE && epi_scaled_is_read(g, use.node))
            use = epi_graph_uses(g, use.node).at[0];
        const epi_node *user = use.node == EPI_NO_NODE ? NULL : &g->nodes[use.node];
        if (user && user->scaled && epi_scaled_bits(g, user, use.operand) == node)
            return user->over;
    }
    return (epi_axes){0};
}

static bool is_extreme(const epi_node *n) {
    return n->op == EPI_OP_RMAX || n->op == EPI_OP_RMIN;
}

static epi_axis last_of(const epi_axes *axes) {
    return axes->at[axes->count - 1];
}

static bool is_side(const epi_spec *spec, epi_axis axis) {
    return !epi_open_has(spec->open, axis.dim) && epi_axis_size(axis, spec->sizes) == spec->tile;
}

/* Tiles of a value of these axes, whose last is the tile's last, too; those that count rows come first. */
static epi_square tiles_of(const epi_spec *spec, const epi_axes *own, epi_axis down) {
    epi_square square = {.cols = {.count = 2, .at = {down, last_of(own)}}};
    epi_axes others = epi_axes_without(own, &square.cols);
    for (int rows = 1; rows >= 0; rows--)
        for (int i = 0; i < others.count; i++)
            if (spec->is_row[others.at[i].dim] == rows)
                square.rows.at[square.rows.count++] = others.at[i];
    return square;
}

/* Is the value stored with an axis innermost that is not the last of its own? */
static bool is_turned(const epi_spec *spec, int node, const epi_axes *stored, epi_square *out) {
    const epi_axes *own = &spec->graph->nodes[node].axes;
    if (stored->count < 1 || own->count < 2)
        return false;
    epi_axis down = last_of(stored), along = last_of(own);
    *out = tiles_of(spec, own, down);
    return !epi_axis_equal(down, along) && epi_axes_find(own, down) >= 0 && is_side(spec, down) &&
           is_side(spec, along);
}

/* As an output, or as a product reads it. */
static bool lies_turned(const epi_spec *spec, int node, epi_square *out) {
    const epi_graph *g = spec->graph;
    epi_axes depth = epi_scaled_depth(g, node);
    bool turned = is_turned(spec, node, &depth, out);
    for (int t = g->input_count; t < g->tensor_count && !turned; t++)
        turned = g->tensors[t].node == node && is_turned(spec, node, &g->tensors[t].axes, out);
    return turned;
}

bool epi_square_reduces(const epi_graph *g, const epi_square *square, int node) {
    const epi_node *n = &g->nodes[node];
    const epi_axes *from = &g->nodes[n->arg[0]].axes;
    int rows = epi_axes_count_in(from, &square->rows);
    return is_extreme(n) && epi_axes_count_in(&n->over, &square->cols) == n->over.count &&
           rows == square->rows.count && rows + epi_axes_count_in(from, &square->cols) == from->count;
}

/* Is something made of the extreme that is stored so? */
static bool makes_turned(const epi_spec *spec, epi_visits *visits, int node, epi_square *out) {
    const epi_graph *g = spec->graph;
    bool found = false;
    epi_visits_begin(visits, node);
    for (int i; !found && epi_visits_next(visits, &i);) {
        epi_use_list uses = epi_graph_uses(g, i);
        found = lies_turned(spec, i, out) && epi_square_reduces(g, out, node);
        for (int u = 0; u < uses.count; u++) {
            int user = uses.at[u].node;
            if (epi_op_is_map(epi_use_op(g, uses.at[u])) ||
                (user != EPI_NO_NODE && is_extreme(&g->nodes[user])))
                epi_visit(visits, user);
        }
    }
    return found;
}

bool epi_square_find(const epi_spec *spec, epi_visits *visits, int node, epi_square *out) {
    const epi_node *n = &spec->graph->nodes[node];
    if (!spec->tile || !is_extreme(n))
        return false;
    bool found = makes_turned(spec, visits, node, out);
    epi_use_list uses = epi_graph_uses(spec->graph, n->arg[0]);
    for (int u = 0; u < uses.count && !found; u++) {
        int other = uses.at[u].node;
        found = other != EPI_NO_NODE && other != node && is_extreme(&spec->graph->nodes[other]) &&
                makes_turned(spec, visits, other, out) && epi_square_reduces(spec->graph, out, node);
    }
    return found;
}
