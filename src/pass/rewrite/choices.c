/* choices.c: a sum of elements, each of which goes to a position that its row names, is computed by the row.
 * Otherwise all pairs of an element and a position would be in memory.
 *
 *     sum(where(index(E) == e, d, 0), K)    is a choice for each of the few e of a row, added up
 *     sum(x*gather(w, e, E), D)             where x is the same for all e of a row: of x @ w the elements that a row
 *                                           names */
#include "pass/rewrite/choices.h"

#include "pass/analyse/monomial.h"

enum { MOST_TERMS = 16 }; /* that a row adds up, each by two numbers of its own */

/* Has the value, beside this axis, only axes that count rows? */
static bool is_of_rows(const epi_spec *spec, const epi_node *n, epi_axis but) {
    bool rows = true;
    for (int i = 0; i < n->axes.count; i++)
        rows &= epi_axis_equal(n->axes.at[i], but) || spec->is_row[n->axes.at[i].dim];
    return rows;
}

/* How many elements the axis has; 0: it counts rows, whose number may be another at each run. */
static int64_t size_of(const epi_spec *spec, epi_axis axis) {
    return spec->is_row[axis.dim] ? 0 : epi_axis_size(axis, spec->sizes);
}

/* The map that takes in one more element of such a sum, or of an extreme; EPI_OP_COUNT: there is none. */
static epi_op link_of(epi_op op) {
    return op == EPI_OP_SUM    ? EPI_OP_ADD
           : op == EPI_OP_RMAX ? EPI_OP_MAX
           : op == EPI_OP_RMIN ? EPI_OP_MIN
                               : EPI_OP_COUNT;
}

/* The condition index(E) == e of sum(where(index(E) == e, d, 0), K), or NULL: which operand e is in *operand. */
static const epi_node *find_condition(const epi_graph *g, const epi_spec *spec, const epi_node *n,
                                      int *operand) {
    if (link_of(n->op) == EPI_OP_COUNT || n->over.count != 1 || g->nodes[n->arg[0]].op != EPI_OP_WHERE)
        return NULL;
    const epi_node *choice = &g->nodes[n->arg[0]], *is = &g->nodes[choice->arg[0]];
    if (is->op != EPI_OP_EQ || !epi_is_zero(g, choice->arg[2]))
        return NULL;
    *operand = g->nodes[is->arg[0]].op == EPI_OP_INDEX;
    const epi_node *place = &g->nodes[is->arg[!*operand]], *e = &g->nodes[is->arg[*operand]],
                   *d = &g->nodes[choice->arg[1]];
    epi_axis axis = n->over.at[0];
    int64_t terms = size_of(spec, axis);
    bool fits = place->op == EPI_OP_INDEX && !epi_axis_equal(place->over.at[0], axis) &&
                epi_axes_find(&e->axes, axis) >= 0 && is_of_rows(spec, e, axis) &&
                is_of_rows(spec, d, axis) && terms > 0 && terms <= MOST_TERMS;
    return fits ? is : NULL;
}

typedef struct writing {
    const epi_spec *spec;
    epi_visits visits;
} writing;

/* Are rows only added up, in what maps make of the value? Then they are the columns of who does so, and have no
 * numbers of their own there. */
static bool is_summed_down(writing *w, const epi_graph *g, int node) {
    bool down = false;
    epi_visits_begin(&w->visits, node);
    for (int i; epi_visits_next(&w->visits, &i);) {
        epi_use_list uses = epi_graph_uses(g, i);
        for (int u = 0; u < uses.count; u++) {
            int user = uses.at[u].node;
            epi_op op = epi_use_op(g, uses.at[u]);
            if (epi_op_reduces(op) && !w->spec->is_row[g->nodes[user].over.at[0].dim])
                return false;
            down |= epi_op_reduces(op);
            if (epi_op_is_map(op))
                epi_visit(&w->visits, user);
        }
    }
    return down;
}

/* An element of a value along the axis; of one that lacks it, the value. */
static int element(epi_graph *g, int value, epi_axis axis, int64_t at) {
    if (epi_graph_failed(g) || epi_axes_find(&g->nodes[value].axes, axis) < 0)
        return value;
    return epi_graph_slice(g, value, axis, at);
}

/* What the rows choose by e: each place's elements d, by what links them. */
static int write_choices(epi_rewrite *r, int place, int e, int d, epi_axis axis, epi_op link) {
    const writing *w = r->ctx;
    int sum = EPI_NO_NODE;
    for (int64_t k = 0; k < size_of(w->spec, axis) && !epi_graph_failed(r->g); k++) {
        int here = epi_graph_map2(r->g, EPI_OP_EQ, place, element(r->g, e, axis, k));
        int term =
            epi_graph_map(r->g, EPI_OP_WHERE, here, element(r->g, d, axis, k), epi_graph_const(r->g, 0));
        sum = k ? epi_graph_map2(r->g, link, sum, term) : term;
    }
    return sum;
}

/* sum(x*gather(w, e, E), D): who the gather g and x are, the axis of e that x lacks, and those that both have. */
typedef struct outer {
    int g, x;
    epi_axis axis;
    epi_axes rows;
} outer;

/* Has x all axes of the index but one, of a few elements, for each of which there are not too many places? */
static bool is_shared(const epi_graph *g, const epi_spec *spec, int index, epi_axis places, outer *o) {
    enum { MOST_PLACES = 64 }; /* for each element: more are too many flops */
    const epi_axes *e = &g->nodes[index].axes, *x = &g->nodes[o->x].axes;
    epi_axes gone = epi_axes_without(e, x), own = epi_axes_without(x, e);
    o->rows = epi_axes_without(e, &gone);
    if (gone.count != 1 || !own.count || !o->rows.count || epi_axes_has_dim(x, places.dim) ||
        !is_of_rows(spec, &g->nodes[index], gone.at[0]))
        return false;
    o->axis = gone.at[0];
    int64_t terms = size_of(spec, o->axis);
    return terms > 0 && terms <= MOST_TERMS && epi_axis_size(places, spec->sizes) <= MOST_PLACES * terms;
}

/* Is it a product of elements that nothing else wants? */
static bool is_only_term(const epi_graph *g, int node) {
    return g->nodes[node].op == EPI_OP_MUL && !g->nodes[node].has_stored &&
           epi_graph_uses(g, node).count == 1;
}

static bool find_inner(const epi_graph *g, const epi_spec *spec, const epi_node *n, outer *o) {
    if (n->op != EPI_OP_SUM || !is_only_term(g, n->arg[0]))
        return false;
    for (int a = 0; a < 2; a++) {
        *o = (outer){.g = g->nodes[n->arg[0]].arg[a], .x = g->nodes[n->arg[0]].arg[!a]};
        const epi_node *chosen = &g->nodes[o->g];
        if (chosen->op != EPI_OP_GATHER || chosen->has_stored || chosen->over.count != 1)
            continue;
        epi_axes table = epi_axes_without(&g->nodes[chosen->arg[0]].axes, &chosen->over);
        if (epi_axes_same_set(&table, &n->over) &&
            is_shared(g, spec, chosen->arg[1], chosen->over.at[0], o) &&
            epi_graph_is_contraction(g, o->x, chosen->arg[0], &n->over))
            return true;
    }
    return false;
}

/* A product with all places; single elements of it are taken, so that it is stored as the sums would be. */
static int write_inner(epi_rewrite *r, const epi_node *n, const outer *o) {
    const epi_node *chosen = &r->in->nodes[o->g];
    epi_node wide = {.has_stored = true, .stored = EPI_F32};
    int all = epi_graph_contract(r->g, r->fresh[o->x], r->fresh[chosen->arg[0]], &n->over);
    all = epi_graph_stand_for(r->g, all, &wide);
    int value =
        epi_graph_move(r->g, EPI_OP_GATHER, all, r->fresh[chosen->arg[1]], EPI_NO_NODE, &chosen->over);
    return epi_graph_stand_for(r->g, value, n);
}

static int write_node(epi_rewrite *r, int node) {
    writing *w = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    int operand;
    outer o;
    if (find_inner(r->in, w->spec, n, &o))
        return write_inner(r, n, &o);
    const epi_node *is = find_condition(r->in, w->spec, n, &operand);
    if (!is || is_summed_down(w, r->in, node))
        return EPI_NO_NODE;
    int sum = write_choices(r, r->fresh[is->arg[!operand]], r->fresh[is->arg[operand]],
                            r->fresh[r->in->nodes[n->arg[0]].arg[1]], n->over.at[0], link_of(n->op));
    return epi_graph_stand_for(r->g, sum, n);
}

epi_status epi_choices_write(epi_arena *arena, const epi_graph **graph, const epi_spec *spec,
                             epi_error *err) {
    const epi_graph *in = *graph;
    writing w = {.spec = spec};
    bool any = false;
    int operand;
    outer o;
    for (int i = 0; i < in->node_count && !any; i++)
        any = in->live[i] &&
              (find_condition(in, spec, &in->nodes[i], &operand) || find_inner(in, spec, &in->nodes[i], &o));
    if (any)
        EPI_TRY(epi_has_memory(epi_visits_make(arena, in->node_count, &w.visits), err));
    return any ? epi_graph_rewrite(arena, graph, write_node, &w, err) : EPI_OK;
}
