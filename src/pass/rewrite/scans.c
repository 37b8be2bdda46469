/* scans.c: turns running sums that are written with a mask into recurrences, and steps that are named by a
 * number into slices.
 *
 * A mask is a comparison of positions along the axis that is summed over, U, and along another, T. If a
 * value is constant along T, its masked sum is a running sum. It runs from the beginning if the mask selects
 * positions up to T, and from the end if it selects positions from T on. If the mask excludes T itself, it
 * is the running sum of the step before. A running sum contains only the elements that the mask selects, so
 * an infinity stays where it is. A product with the mask would be NaN there. */
#include "pass/rewrite/scans.h"

#include <math.h>

#include "ir/index.h"
#include "pass/analyse/monomial.h"
#include "pass/analyse/number.h"

typedef struct finder {
    const epi_spec *spec;
    const epi_graph *in;
    bool products;
    epi_visits visits;
} finder;

/* ---- masks ---- */

/* A mask: positions along `of` up to those along `to`, or from them on; without these themselves if `apart`. */
typedef struct mask {
    epi_axis of, to;
    bool from, apart;
} mask;

/* Is it such a comparison, for a sum over this axis? */
static bool find_mask(const epi_graph *g, int node, epi_axis of, mask *out) {
    const epi_node *n = &g->nodes[node], *a = &g->nodes[n->arg[0]], *b = &g->nodes[n->arg[1]];
    bool less = n->op == EPI_OP_LT || n->op == EPI_OP_LE, more = n->op == EPI_OP_GT || n->op == EPI_OP_GE;
    if (!less && !more)
        return false;
    bool turned = a->op == EPI_OP_INDEX && !epi_axis_equal(a->over.at[0], of);
    const epi_node *mine = turned ? b : a, *other = turned ? a : b;
    *out = (mask){.of = of,
                  .to = other->over.at[0],
                  .from = more != turned,
                  .apart = n->op == EPI_OP_LT || n->op == EPI_OP_GT};
    return mine->op == EPI_OP_INDEX && other->op == EPI_OP_INDEX && epi_axis_equal(mine->over.at[0], of) &&
           !epi_axis_equal(out->to, of);
}

/* The same where it is written where(c, 1, 0). */
static bool find_number_mask(const epi_graph *g, int node, epi_axis of, mask *out) {
    const epi_node *n = &g->nodes[node];
    bool number = n->op == EPI_OP_WHERE && epi_is_constant(g, n->arg[1], 1) && epi_is_zero(g, n->arg[2]);
    return find_mask(g, number ? n->arg[0] : node, of, out);
}

/* ---- running sums ---- */

/* The value with the axis under its other name. Of what is renamed already, by maps or without, it is what was there
 * before; so deep at most. */
static int under_name(epi_rewrite *r, int node, const mask *m, int depth) {
    enum { DEEPEST = 8 };
    const epi_node *n = &r->in->nodes[node];
    int arg[3];
    if (epi_axes_find(&n->axes, m->of) < 0)
        return r->fresh[node];
    if (n->op == EPI_OP_RENAME && epi_axis_equal(n->over.at[1], m->of) &&
        epi_axis_equal(n->over.at[0], m->to))
        return r->fresh[n->arg[0]];
    if (!epi_op_is_map(n->op) || depth == DEEPEST || n->has_stored)
        return epi_graph_rename(r->g, r->fresh[node], m->of, m->to);
    for (int a = 0; a < 3; a++)
        arg[a] = n->arg[a] == EPI_NO_NODE ? EPI_NO_NODE : under_name(r, n->arg[a], m, depth + 1);
    return epi_graph_map_like(r->g, n, arg);
}

/* Can what is summed be had along the other axis: is it the same all along that now? */
static bool is_running(const finder *f, int value, const mask *m) {
    const epi_axes *axes = &f->in->nodes[value].axes;
    return epi_axes_find(axes, m->of) >= 0 && !epi_axes_has_dim(axes, m->to.dim) &&
           epi_spec_alike(f->spec, m->of, m->to);
}

/* What is summed over the axis with a mask, and that mask: where(c, u, 0), where(c, 0, u), and, as a product, c*u. */
static int find_running(const finder *f, int node, mask *m) {
    const epi_graph *g = f->in;
    const epi_node *n = &g->nodes[node];
    if (n->over.count != 1 || (n->op != EPI_OP_SUM && n->op != EPI_OP_MATMUL))
        return EPI_NO_NODE;
    epi_axis of = n->over.at[0];
    const epi_node *term = n->op == EPI_OP_SUM ? &g->nodes[n->arg[0]] : n;
    if (term->op == EPI_OP_WHERE && find_mask(g, term->arg[0], of, m)) {
        bool second = epi_is_zero(g, term->arg[1]);
        if (second) { /* what the mask keeps out */
            m->from = !m->from;
            m->apart = !m->apart;
        }
        int value = term->arg[second ? 2 : 1];
        return epi_is_zero(g, term->arg[second ? 1 : 2]) && is_running(f, value, m) ? value : EPI_NO_NODE;
    }
    for (int a = 0; a < 2 && f->products && (term->op == EPI_OP_MUL || term->op == EPI_OP_MATMUL); a++)
        if (find_number_mask(g, term->arg[a], of, m) && is_running(f, term->arg[!a], m))
            return term->arg[!a];
    return EPI_NO_NODE;
}

static int write_running(epi_rewrite *r, int of, const mask *m) {
    int value = under_name(r, of, m, 0);
    if (epi_graph_failed(r->g))
        return EPI_NO_NODE;
    value = epi_graph_scan(r->g, m->from ? EPI_OP_SCAN_BACK : EPI_OP_SCAN, epi_graph_const(r->g, 1), value,
                           m->to);
    return m->apart && !epi_graph_failed(r->g) ? epi_graph_shifted(r->g, value, m->to, m->from ? -1 : 1)
                                               : value;
}

/* ---- steps ---- */

/* What names one step of an axis: a value, and its number where that is known. */
typedef struct step {
    int index;
    bool known;
    double at;
} step;

/* Does it name an element along the axis: by a number that is known, or the last one, however many there are? */
static bool is_step(const finder *f, int index, epi_axis axis, step *out) {
    *out = (step){.index = index};
    out->known = epi_index_known(f->spec, index, true, &out->at) && !f->spec->is_open[axis.dim] &&
                 out->at >= 0 && out->at == floor(out->at) &&
                 out->at < (double)epi_axis_size(axis, f->spec->sizes);
    return out->known || epi_is_end(f->spec, index, axis, false);
}

/* Do maps make the value of a recurrence along this axis? Or, from it on, bring it to one? */
static bool meets_scan(finder *f, int node, epi_axis axis, bool from) {
    const epi_graph *g = f->in;
    bool meets = false;
    epi_visits_begin(&f->visits, node);
    for (int i; !meets && epi_visits_next(&f->visits, &i);) {
        const epi_node *n = &g->nodes[i];
        epi_use_list uses = epi_graph_uses(g, i);
        meets = epi_op_scans(n->op) && epi_axis_equal(n->over.at[0], axis);
        if (!epi_op_is_map(n->op) && i != node)
            continue;
        for (int u = 0; u < uses.count && from; u++)
            if (uses.at[u].node != EPI_NO_NODE)
                epi_visit(&f->visits, uses.at[u].node);
        for (int a = 0; a < epi_node_operands(n) && !from; a++)
            epi_visit(&f->visits, n->arg[a]);
    }
    return meets;
}

/* Is the value wanted for nothing but to name elements by it, whose number is known? Not those of recurrences: the last
 * step is theirs, whatever its number. */
static bool names_elements(finder *f, int node, step *out) {
    epi_use_list uses = epi_graph_uses(f->in, node);
    bool names = uses.count && epi_op_is_map(f->in->nodes[node].op);
    for (int i = 0; i < uses.count && names; i++) {
        const epi_node *user = uses.at[i].node == EPI_NO_NODE ? NULL : &f->in->nodes[uses.at[i].node];
        names = user && uses.at[i].operand == 1 && epi_op_by_index(user->op) && user->over.count == 1 &&
                is_step(f, node, user->over.at[0], out) && out->known &&
                !meets_scan(f, user->arg[0], user->over.at[0], false);
    }
    return names;
}

/* scatter(x, c, T): x at one step, and 0 elsewhere. */
static bool is_sent(finder *f, int node, step *out) {
    const epi_node *n = &f->in->nodes[node];
    return n->op == EPI_OP_SCATTER && n->over.count == 1 && is_step(f, n->arg[1], n->over.at[0], out) &&
           meets_scan(f, node, n->over.at[0], true);
}

static int write_sent(epi_rewrite *r, const epi_node *n) {
    epi_graph *g = r->g;
    int here =
        epi_graph_map2(g, EPI_OP_EQ, epi_graph_leaf(g, EPI_OP_INDEX, n->over.at[0]), r->fresh[n->arg[1]]);
    return epi_graph_map(g, EPI_OP_WHERE, here, r->fresh[n->arg[0]], epi_graph_const(g, 0));
}

/* Is it where(index(T) == c, x, 0)? */
static bool is_one_step(const finder *f, int node, epi_axis axis, step *out) {
    const epi_graph *in = f->in;
    const epi_node *n = &in->nodes[node];
    if (n->op != EPI_OP_WHERE || in->nodes[n->arg[0]].op != EPI_OP_EQ || !epi_is_zero(in, n->arg[2]))
        return false;
    const epi_node *is = &in->nodes[n->arg[0]], *index = &in->nodes[is->arg[0]];
    return index->op == EPI_OP_INDEX && epi_axis_equal(index->over.at[0], axis) &&
           is_step(f, is->arg[1], axis, out);
}

/* The sum of such over T, x at one step; or of such times a value, which is as much where 0 times an infinity is left
 * out. x, and that value or EPI_NO_NODE. */
static bool find_taken(const finder *f, int node, step *at, int out[2]) {
    const epi_graph *in = f->in;
    const epi_node *n = &in->nodes[node];
    if (n->op != EPI_OP_SUM || n->over.count != 1)
        return false;
    const epi_node *term = &in->nodes[n->arg[0]];
    for (int a = 0; a < 2 && term->op == EPI_OP_MUL && f->products; a++)
        if (is_one_step(f, term->arg[a], n->over.at[0], at)) {
            out[0] = in->nodes[term->arg[a]].arg[1];
            out[1] = term->arg[!a];
            return true;
        }
    out[0] = term->arg[1];
    out[1] = EPI_NO_NODE;
    return is_one_step(f, n->arg[0], n->over.at[0], at);
}

/* The element of a value at a step; of what is the same at all of them, that. */
static int step_of(epi_rewrite *r, int node, epi_axis axis, const step *at) {
    if (epi_axes_find(&r->in->nodes[node].axes, axis) < 0)
        return r->fresh[node];
    bool number = at->known && !meets_scan(r->ctx, node, axis, false);
    return epi_graph_move(r->g, EPI_OP_GATHER, r->fresh[node],
                          number ? epi_graph_const(r->g, at->at) : r->fresh[at->index], EPI_NO_NODE,
                          &(epi_axes){1, {axis}});
}

static int write_taken(epi_rewrite *r, const epi_node *n, const int of[2], const step *at) {
    int value = step_of(r, of[0], n->over.at[0], at);
    return of[1] == EPI_NO_NODE || epi_graph_failed(r->g)
               ? value
               : epi_graph_map2(r->g, EPI_OP_MUL, value, step_of(r, of[1], n->over.at[0], at));
}

/* ---- all of them ---- */

static int write_node(epi_rewrite *r, int node) {
    finder *f = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    step at;
    mask m;
    int value, taken[2], of = find_running(f, node, &m);
    if (names_elements(f, node, &at))
        return epi_graph_const(r->g, at.at);
    if (of != EPI_NO_NODE)
        value = write_running(r, of, &m);
    else if (is_sent(f, node, &at))
        value = write_sent(r, n);
    else if (find_taken(f, node, &at, taken))
        value = write_taken(r, n, taken, &at);
    else
        return EPI_NO_NODE;
    return epi_graph_stand_for(r->g, value, n);
}

epi_status epi_scans_write(epi_arena *arena, epi_spec *spec, bool products, epi_error *err) {
    finder f = {.spec = spec, .in = spec->graph, .products = products};
    bool any = false;
    mask m;
    step at;
    int taken[2];
    EPI_TRY(epi_has_memory(epi_visits_make(arena, f.in->node_count, &f.visits), err));
    for (int i = 0; i < f.in->node_count && !any; i++)
        any = f.in->live[i] && (find_running(&f, i, &m) != EPI_NO_NODE || names_elements(&f, i, &at) ||
                                is_sent(&f, i, &at) || find_taken(&f, i, &at, taken));
    return any ? epi_graph_rewrite(arena, &spec->graph, write_node, &f, err) : EPI_OK;
}
