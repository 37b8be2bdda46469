/* recurrences.c: sums of scans of products, in the form that their mainloop supports
 * (pass/analyse/recurrence.h).
 *
 *     sum(s*d, H, P)                            where heads decay each by itself: sum(sum(s*d, P), H)
 *     sum(where(index(T) == 0, s, 0)*x, X)      where s = scan_back(…, T), as the gradient to a first state and to the
 *                                               decay there has it: x and s at 0, then the choice. What x is elsewhere does
 *                                               not count, so it is left as written where infinities are
 *     c*sum(q*s, N)                             where c is a finite number: sum(q*s*c, N), and numbers as rsqrt(size(N)) as constants,
 *                                               which are factors of a step then */
#include "pass/rewrite/recurrences.h"

#include <math.h>

#include "ir/index.h"
#include "pass/analyse/monomial.h"
#include "pass/analyse/number.h"
#include "pass/analyse/recurrence.h"

typedef struct former {
    epi_spec spec;
    bool products; /* 0 times an infinity may be left out */
} former;

enum { MOST_LEAVES = 8 };

/* Factors of a value: what products of all its axes are made of. */
typedef struct leaves {
    int count, at[MOST_LEAVES];
} leaves;

static bool find_leaves(const epi_graph *g, int node, const epi_axes *axes, leaves *out) {
    const epi_node *n = &g->nodes[node];
    if (n->op == EPI_OP_MUL && epi_axes_same_set(&n->axes, axes))
        return find_leaves(g, n->arg[0], axes, out) && find_leaves(g, n->arg[1], axes, out);
    if (out->count == MOST_LEAVES)
        return false;
    out->at[out->count++] = node;
    return true;
}

/* Does it name the first or the last element of an axis that has some? */
static bool is_end(const epi_spec *spec, int place, epi_axis axis) {
    return epi_axis_size(axis, spec->sizes) > 0 &&
           (epi_is_end(spec, place, axis, true) || epi_is_end(spec, place, axis, false));
}

/* Of where(index(T) == e, s, 0), where s is a scan along T and e one of its ends: index(T) == e; or NULL. */
static const epi_node *find_end(const epi_spec *spec, int node) {
    const epi_graph *g = spec->graph;
    const epi_node *n = &g->nodes[node];
    if (n->op != EPI_OP_WHERE || !epi_is_zero(g, n->arg[2]))
        return NULL;
    const epi_node *is = &g->nodes[n->arg[0]], *s = &g->nodes[n->arg[1]];
    for (int side = 0; side < 2 && is->op == EPI_OP_EQ && epi_op_scans(s->op); side++) {
        const epi_node *at = &g->nodes[is->arg[side]];
        if (at->op == EPI_OP_INDEX && epi_axis_equal(at->over.at[0], s->over.at[0]) &&
            is_end(spec, is->arg[!side], s->over.at[0]))
            return is;
    }
    return NULL;
}

/* The value at one place along T; itself where it lacks that. */
static int at_end(epi_rewrite *r, int node, const epi_axes *time, int place) {
    int value = r->fresh[node];
    return epi_axes_meet(&r->in->nodes[node].axes, time)
               ? epi_graph_move(r->g, EPI_OP_GATHER, value, place, EPI_NO_NODE, time)
               : value;
}

/* A sum of what is made of one end of a scan. */
static int sum_end(epi_rewrite *r, const epi_node *n) {
    const former *f = r->ctx;
    const epi_graph *in = r->in;
    leaves all = {0};
    int end = -1;
    if (!f->products || !find_leaves(in, n->arg[0], &in->nodes[n->arg[0]].axes, &all))
        return EPI_NO_NODE;
    for (int i = 0; i < all.count && end < 0; i++)
        end = find_end(&f->spec, all.at[i]) ? i : -1;
    if (end < 0)
        return EPI_NO_NODE;
    const epi_node *choice = &in->nodes[all.at[end]], *is = find_end(&f->spec, all.at[end]);
    const epi_axes time = in->nodes[choice->arg[1]].over, over = epi_axes_without(&n->over, &time);
    int place = r->fresh[is->arg[in->nodes[is->arg[0]].op == EPI_OP_INDEX]];
    int value = at_end(r, choice->arg[1], &time, place);
    for (int i = 0; i < all.count; i++)
        if (i != end)
            value = epi_graph_map2(r->g, EPI_OP_MUL, value, at_end(r, all.at[i], &time, place));
    if (over.count)
        value = epi_graph_reduce(r->g, EPI_OP_SUM, value, &over);
    if (epi_axes_meet(&n->over, &time))
        return value;
    return epi_graph_map(r->g, EPI_OP_WHERE, r->fresh[choice->arg[0]], value, epi_graph_const(r->g, 0));
}

/* A number times a sum of a scan's states, which nobody else wants. */
static int scale_sum(epi_rewrite *r, const epi_node *n) {
    const former *f = r->ctx;
    const epi_graph *g = r->in;
    double by;
    for (int side = 0; side < 2 && n->op == EPI_OP_MUL; side++) {
        int sum = n->arg[side];
        const epi_node *m = &g->nodes[sum];
        if (m->op == EPI_OP_SUM && !m->has_stored && epi_graph_uses(g, sum).count == 1 &&
            epi_recurrence_scan(g, sum) != EPI_NO_NODE && epi_number_known(&f->spec, n->arg[!side], true, &by) &&
            isfinite(by))
            return epi_graph_reduce(
                r->g, EPI_OP_SUM,
                epi_graph_map2(r->g, EPI_OP_MUL, r->fresh[m->arg[0]], epi_graph_const(r->g, by)), &m->over);
    }
    return EPI_NO_NODE;
}

/* A value times a number that is worked out. */
static int scale_value(epi_rewrite *r, const epi_node *n) {
    const former *f = r->ctx;
    double by;
    for (int side = 0; side < 2 && n->op == EPI_OP_MUL; side++) {
        const epi_node *factor = &r->in->nodes[n->arg[side]];
        if (factor->op != EPI_OP_CONST && epi_number_known(&f->spec, n->arg[side], true, &by) && isfinite(by))
            return epi_graph_map2(r->g, EPI_OP_MUL, r->fresh[n->arg[!side]], epi_graph_const(r->g, by));
    }
    return EPI_NO_NODE;
}

static int rule(epi_rewrite *r, int node) {
    const former *f = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    epi_axes inner;
    if (n->op == EPI_OP_MUL) {
        int scaled = scale_sum(r, n);
        scaled = scaled == EPI_NO_NODE ? scale_value(r, n) : scaled;
        return scaled == EPI_NO_NODE ? scaled : epi_graph_stand_for(r->g, scaled, n);
    }
    if (n->op != EPI_OP_SUM)
        return EPI_NO_NODE;
    int value = sum_end(r, n);
    if (value == EPI_NO_NODE && epi_recurrence_split(&f->spec, r->in, node, &inner)) {
        epi_axes rest = epi_axes_without(&n->over, &inner);
        value = epi_graph_reduce(r->g, EPI_OP_SUM, r->fresh[n->arg[0]], &inner);
        value = epi_graph_reduce(r->g, EPI_OP_SUM, value, &rest);
    }
    return value == EPI_NO_NODE ? value : epi_graph_stand_for(r->g, value, n);
}

epi_status epi_recurrences_form(epi_arena *arena, epi_spec *spec, bool products, epi_error *err) {
    bool scans = false;
    former f = {*spec, products};
    for (int i = 0; i < spec->graph->node_count; i++)
        scans |= spec->graph->live[i] && epi_op_scans(spec->graph->nodes[i].op);
    return scans ? epi_graph_rewrite(arena, &spec->graph, rule, &f, err) : EPI_OK;
}
