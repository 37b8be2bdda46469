/* variance.c: chooses the form of a variance.
 *
 * For rows on chip, the mean first and then the mean of squared distances is best: the second walks over the
 * row once more. But a product's tile has only a part of a row, and the mean is complete only when all tiles
 * are. There a variance is one reduction, whose partials, the mean and the squares of some columns, are
 * merged after the last tile. This form is used if the values computed from the statistic are one number per
 * row. If they are elements of the row, rows follow the product in any case, and have the whole row.
 *
 * Over axes between others no mainloop has the rows on chip, and a reduction is a pass over memory. There a
 * variance is one reduction, too: squares in memory would take more space, and would be infinite in f16
 * beyond 256. */
#include "pass/rewrite/variance.h"

#include <math.h>

#include "pass/analyse/direction.h"
#include "pass/place/cut.h"

typedef struct former {
    const epi_spec *spec;
    const epi_graph *in;
    bool *forward; /* by node */
    epi_visits visits;
} former;

/* A variance, however it is written. */
typedef struct variance {
    int x;
    int mean;    /* mean(x, X), or EPI_NO_NODE where the program does not have it */
    int centred; /* x - mean(x, X) and its square, which the text has of a variance as two reductions; */
    int square;  /* else EPI_NO_NODE */
} variance;

static bool is_mean_of(const epi_graph *g, int node, int x, const epi_axes *over) {
    const epi_node *n = &g->nodes[node];
    return n->op == EPI_OP_MEAN && n->arg[0] == x && epi_axes_same_set(&n->over, over);
}

static bool find_variance(const epi_graph *g, int node, variance *out) {
    const epi_node *n = &g->nodes[node];
    *out = (variance){n->arg[0], EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE};
    if (n->op == EPI_OP_VAR) {
        epi_use_list uses = epi_graph_uses(g, out->x);
        for (int i = 0; i < uses.count; i++)
            if (uses.at[i].node != EPI_NO_NODE && is_mean_of(g, uses.at[i].node, out->x, &n->over))
                out->mean = uses.at[i].node;
        return true;
    }
    if (n->op != EPI_OP_MEAN)
        return false;
    const epi_node *square = &g->nodes[n->arg[0]];
    if (square->op != EPI_OP_MUL || square->arg[0] != square->arg[1])
        return false;
    const epi_node *centred = &g->nodes[square->arg[0]];
    *out = (variance){centred->arg[0], centred->arg[1], square->arg[0], n->arg[0]};
    return centred->op == EPI_OP_SUB && is_mean_of(g, out->mean, out->x, &n->over);
}

/* The same axes, but for an axis that was taken apart? */
static bool are_same_dims(const epi_axes *a, const epi_axes *b) {
    return a->count == b->count && epi_axes_count_in(a, b) == a->count;
}

/* Are these the axes that one operand of the product has alone, and none of them counts rows? */
static bool are_columns(const former *f, const epi_node *product, const epi_axes *over) {
    bool columns = false;
    for (int a = 0; a < 2; a++) {
        epi_axes own = epi_axes_without(&product->axes, &f->in->nodes[product->arg[!a]].axes);
        columns |= are_same_dims(&own, over);
    }
    return columns && !epi_spec_has_rows(f->spec, over);
}

/* Is x an element of a product's tile, of which `over` are the columns? Maps make it of products, the last of
 * which has the tile, and of what is there before: a reduction that comes later may be of the tile itself. */
static bool is_on_tile(former *f, int x, const epi_axes *over) {
    const epi_graph *g = f->in;
    int last = EPI_NO_NODE, other = EPI_NO_NODE;
    epi_visits_begin(&f->visits, x);
    for (int node; epi_visits_next(&f->visits, &node);) {
        const epi_node *n = &g->nodes[node];
        if (epi_op_is_product(n->op) && are_same_dims(&n->axes, &g->nodes[x].axes) && are_columns(f, n, over))
            last = node > last ? node : last;
        else if (epi_op_folds(n->op))
            other = node > other ? node : other;
        for (int a = 0; a < epi_node_operands(n) && epi_op_on_tile(n->op); a++)
            epi_visit(&f->visits, n->arg[a]);
    }
    return last > other;
}

/* Does nothing of this direction use the value but the one? A part has results of one direction alone. */
static bool is_used_by(const former *f, int node, int only) {
    epi_use_list uses = epi_graph_uses(f->in, node);
    for (int i = 0; i < uses.count; i++)
        if (uses.at[i].node != only &&
            (uses.at[i].node == EPI_NO_NODE || f->forward[uses.at[i].node] == f->forward[only]))
            return false;
    return true;
}

/* Do maps of this direction make elements of the row of the variance, or of the mean? */
static bool makes_elements(former *f, int node, const variance *v) {
    const epi_graph *g = f->in;
    epi_visits_begin(&f->visits, node);
    if (v->mean != EPI_NO_NODE)
        epi_visit(&f->visits, v->mean);
    for (int of; epi_visits_next(&f->visits, &of);) {
        epi_use_list uses = epi_graph_uses(g, of);
        for (int i = 0; i < uses.count; i++) {
            int user = uses.at[i].node;
            if (user == EPI_NO_NODE || user == v->centred || f->forward[user] != f->forward[node] ||
                !epi_op_is_map(g->nodes[user].op))
                continue;
            if (epi_axes_count_in(&g->nodes[user].axes, &g->nodes[node].over))
                return true;
            epi_visit(&f->visits, user);
        }
    }
    return false;
}

/* Are some of these neither the first axes of the value nor the last? */
static bool is_between(const former *f, int x, const epi_axes *over) {
    epi_axes lies = epi_cut_layout(f->spec, x);
    int first = 0, last = lies.count;
    while (first < last && epi_axes_find(over, lies.at[first]) >= 0)
        first++;
    while (last > first && epi_axes_find(over, lies.at[last - 1]) >= 0)
        last--;
    bool between = false;
    for (int i = first; i < last; i++)
        between |= epi_axes_find(over, lies.at[i]) >= 0;
    return between;
}

/* Is the variance to be one reduction? */
static bool is_one(former *f, int node, const variance *v) {
    if (is_between(f, v->x, &f->in->nodes[node].over))
        return true;
    if (v->square != EPI_NO_NODE &&
        (!is_used_by(f, v->square, node) || !is_used_by(f, v->centred, v->square)))
        return false;
    return is_on_tile(f, v->x, &f->in->nodes[node].over) && !makes_elements(f, node, v);
}

/* The mean is rounded, so it is off by the mean of the distances from it, whose square is in that of theirs.
 * A mean of squares that is no number of f32 stays as it is. */
int epi_variance_write(epi_graph *g, int x, const epi_node *n) {
    int mean = epi_graph_reduce(g, EPI_OP_MEAN, x, &n->over);
    int c = epi_graph_map2(g, EPI_OP_SUB, x, mean);
    int square = epi_graph_reduce(g, EPI_OP_MEAN, epi_graph_map2(g, EPI_OP_MUL, c, c), &n->over);
    int off = epi_graph_reduce(g, EPI_OP_MEAN, c, &n->over);
    int rest = epi_graph_map2(g, EPI_OP_SUB, square, epi_graph_map2(g, EPI_OP_MUL, off, off));
    int finite = epi_graph_map2(g, EPI_OP_LT, square, epi_graph_const(g, (double)INFINITY));
    int value = epi_graph_map(g, EPI_OP_WHERE, finite,
                              epi_graph_map2(g, EPI_OP_MAX, rest, epi_graph_const(g, 0)), square);
    return epi_graph_stand_for(g, value, n);
}

static int write_node(epi_rewrite *r, int node) {
    const epi_node *n = &r->in->nodes[node];
    variance v;
    if (!find_variance(r->in, node, &v) || is_one(r->ctx, node, &v) == (n->op == EPI_OP_VAR))
        return EPI_NO_NODE;
    if (n->op == EPI_OP_VAR)
        return epi_variance_write(r->g, r->fresh[v.x], n);
    epi_node var = *n;
    var.op = EPI_OP_VAR;
    return epi_graph_rebuild(r->g, &var, (int[]){r->fresh[v.x], EPI_NO_NODE, EPI_NO_NODE});
}

/* Has the program a variance that is in the other form than it should be? */
static bool has_other(former *f) {
    variance v;
    for (int i = 0; i < f->in->node_count; i++)
        if (f->in->live[i] && find_variance(f->in, i, &v) &&
            is_one(f, i, &v) != (f->in->nodes[i].op == EPI_OP_VAR))
            return true;
    return false;
}

epi_status epi_variance_form(epi_arena *arena, epi_spec *spec, epi_error *err) {
    int nodes = spec->graph->node_count;
    former f = {.spec = spec, .in = spec->graph, .forward = epi_arena_alloc(arena, (size_t)nodes + 1)};
    EPI_TRY(epi_has_memory(f.forward && epi_visits_make(arena, nodes, &f.visits), err));
    epi_find_forward(f.in, f.forward);
    return has_other(&f) ? epi_graph_rewrite(arena, &spec->graph, write_node, &f, err) : EPI_OK;
}
