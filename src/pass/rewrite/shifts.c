/* shifts.c: turns indexing at a fixed distance into shifts, and applies shifts to values in memory.
 *
 * gather(rename(x, T, U), index(T) - 2, U) is shift(x, T, 2), because a computed index outside the axis
 * gives 0. where(i >= 0, gather(u, max(i, 0), U), 0) gives 0 there too. scatter(d, index(T) - 2, U), its
 * derivative, is shift(d, T, -2) under the name U. If the distance has a short axis of its own, as index(T)
 * + index(K) - 3 of a convolution has, sums over K are written out, and values that keep K are put together
 * from their pieces.
 *
 * A shift of an elementwise function of inputs is the function of the shifted inputs, if the function is
 * cheap and gives 0 for zeros. */
#include "pass/rewrite/shifts.h"

#include <math.h>

#include "pass/analyse/number.h"

enum { MOST_PLACES = 16, DEEPEST = 8 };

/* Where an index points: index(along) + at, or index(along) + step*index(over) + at. */
typedef struct place {
    epi_axis along, over;
    bool spread; /* it has the second axis */
    int64_t step, at;
} place;

typedef struct taken {
    int value;     /* what a gather takes from, or a scatter sends; EPI_NO_NODE: the node is neither */
    epi_axis axis; /* that the index counts along */
    place place;
} taken;

typedef struct finder {
    const epi_spec *spec;
    const epi_graph *in;
    taken *at;     /* by node */
    int *spread;   /* by node: one of those with a short axis, of which maps make it; or EPI_NO_NODE */
    bool *written; /* by node: a sum that is written out, or a scatter */
} finder;

/* ---- indices ---- */

/* A sum of positions, each so many times, and of a number. */
typedef struct positions {
    epi_axis axis[2];
    double times[2], at;
    int count;
} positions;

static bool is_known(const epi_spec *spec, epi_axis axis) {
    return !spec->is_row[axis.dim] && !spec->is_open[axis.dim];
}

static bool add_position(positions *p, epi_axis axis, double times) {
    int i = 0;
    while (i < p->count && !epi_axis_equal(p->axis[i], axis))
        i++;
    if (i == 2)
        return false;
    p->axis[i] = axis;
    p->times[i] = (i < p->count ? p->times[i] : 0) + times;
    p->count = (int)epi_max64(p->count, i + 1);
    return true;
}

static bool find_positions(const epi_spec *spec, int node, double times, int depth, positions *p) {
    const epi_node *n = &spec->graph->nodes[node];
    double number;
    if (epi_index_known(spec, node, false, &number)) {
        p->at += times * number;
        return true;
    }
    if (n->op == EPI_OP_INDEX)
        return add_position(p, n->over.at[0], times);
    if (depth == DEEPEST)
        return false;
    switch (n->op) {
    case EPI_OP_NEG: return find_positions(spec, n->arg[0], -times, depth + 1, p);
    case EPI_OP_ADD:
    case EPI_OP_SUB:
        return find_positions(spec, n->arg[0], times, depth + 1, p) &&
               find_positions(spec, n->arg[1], n->op == EPI_OP_SUB ? -times : times, depth + 1, p);
    case EPI_OP_MUL:
        for (int a = 0; a < 2; a++)
            if (epi_index_known(spec, n->arg[a], false, &number))
                return find_positions(spec, n->arg[1 - a], times * number, depth + 1, p);
        return false;
    default: return false;
    }
}

static bool is_whole(double x) {
    return fabs(x) < 0x1p30 && x == nearbyint(x);
}

/* Does the index point to places along an axis as long as this one, one after the other? */
static bool find_place(const epi_spec *spec, int index, epi_axis counted, place *out) {
    positions p = {.count = 0};
    if (spec->graph->nodes[index].op == EPI_OP_INDEX || !find_positions(spec, index, 1, 0, &p) || !p.count ||
        !is_whole(p.at))
        return false;
    int first = p.times[0] == 1 && epi_spec_alike(spec, p.axis[0], counted) ? 0 : p.count - 1;
    *out = (place){.along = p.axis[first], .spread = p.count == 2, .at = (int64_t)p.at};
    if (p.times[first] != 1 || !epi_spec_alike(spec, out->along, counted))
        return false;
    if (!out->spread)
        return true;
    out->over = p.axis[1 - first];
    out->step = is_whole(p.times[1 - first]) ? (int64_t)p.times[1 - first] : 0;
    return out->step && is_known(spec, out->over) && epi_axis_size(out->over, spec->sizes) > 0 &&
           epi_axis_size(out->over, spec->sizes) <= MOST_PLACES;
}

/* ---- guards ---- */

/* Is the node this number? */
static bool is_number(const epi_spec *spec, int node, double value) {
    positions p = {.count = 0};
    return find_positions(spec, node, 1, 0, &p) && !p.count && p.at == value;
}

/* Is the index another one that is held inside, max(i, 0)? Returns i, or the index itself. */
static int without_bound(const epi_spec *spec, int index) {
    const epi_node *n = &spec->graph->nodes[index];
    for (int a = 0; a < 2 && n->op == EPI_OP_MAX; a++)
        if (is_number(spec, n->arg[a], 0))
            return n->arg[1 - a];
    return index;
}

/* Is it i >= 0? */
static bool is_inside(const epi_spec *spec, int node, int index) {
    const epi_node *n = &spec->graph->nodes[node];
    return (n->op == EPI_OP_GE && n->arg[0] == index && is_number(spec, n->arg[1], 0)) ||
           (n->op == EPI_OP_LE && n->arg[1] == index && is_number(spec, n->arg[0], 0));
}

/* Is it where(i >= 0, v, 0), of an index i? Returns v, or EPI_NO_NODE. */
static int without_guard(const epi_spec *spec, int node, int index) {
    const epi_node *n = &spec->graph->nodes[node];
    bool guard = n->op == EPI_OP_WHERE && !n->fixed && !n->has_stored && is_inside(spec, n->arg[0], index) &&
                 is_number(spec, n->arg[2], 0);
    return guard ? n->arg[1] : EPI_NO_NODE;
}

/* ---- what is a shift ---- */

/* Has the value none of the axes that the index has? Else each row takes by its own number. */
static bool is_apart(const epi_graph *g, const taken *t) {
    const epi_axes *axes = &g->nodes[t->value].axes;
    return epi_axes_find_dim(axes, t->place.along.dim) < 0 &&
           (!t->place.spread || epi_axes_find_dim(axes, t->place.over.dim) < 0);
}

static taken find_gather(const epi_spec *spec, int node) {
    const epi_graph *g = spec->graph;
    const epi_node *n = &g->nodes[node];
    taken none = {.value = EPI_NO_NODE}, t = none;
    const epi_node *gather = n->op == EPI_OP_WHERE ? &g->nodes[n->arg[1]] : n;
    if (gather->op != EPI_OP_GATHER || gather->over.count != 1 || gather->has_stored)
        return none;
    int index = gather->arg[1], of = without_bound(spec, index);
    if (n->op == EPI_OP_WHERE ? without_guard(spec, node, of) == EPI_NO_NODE : of != index)
        return none;
    t.axis = gather->over.at[0];
    t.value = gather->arg[0];
    return find_place(spec, of, t.axis, &t.place) && is_apart(g, &t) ? t : none;
}

static taken find_scatter(const epi_spec *spec, int node) {
    const epi_graph *g = spec->graph;
    const epi_node *n = &g->nodes[node];
    taken none = {.value = EPI_NO_NODE}, t = none;
    if (n->op != EPI_OP_SCATTER || n->over.count != 1)
        return none;
    int of = without_bound(spec, n->arg[1]), inside = without_guard(spec, n->arg[0], of);
    if (of != n->arg[1] && inside == EPI_NO_NODE)
        return none;
    t.axis = n->over.at[0];
    t.value = inside == EPI_NO_NODE ? n->arg[0] : inside;
    return find_place(spec, of, t.axis, &t.place) &&
                   epi_axes_find(&g->nodes[t.value].axes, t.place.along) >= 0
               ? t
               : none;
}

/* Which gather with a short axis do maps make the value of? */
static int spread_of(const finder *f, int node) {
    const epi_node *n = &f->in->nodes[node];
    int found = f->at[node].value != EPI_NO_NODE && f->at[node].place.spread && n->op != EPI_OP_SCATTER
                    ? node
                    : EPI_NO_NODE;
    for (int a = 0; a < epi_node_operands(n) && found == EPI_NO_NODE && epi_op_is_map(n->op); a++)
        found = f->spread[n->arg[a]];
    bool has = found != EPI_NO_NODE && epi_axes_find(&n->axes, f->at[found].place.over) >= 0;
    return has ? found : EPI_NO_NODE;
}

static bool find_all(finder *f) {
    bool any = false;
    for (int i = 0; i < f->in->node_count; i++) {
        const epi_node *n = &f->in->nodes[i];
        f->at[i].value = f->spread[i] = EPI_NO_NODE;
        if (!f->in->live[i])
            continue;
        f->at[i] = n->op == EPI_OP_SCATTER ? find_scatter(f->spec, i) : find_gather(f->spec, i);
        f->spread[i] = spread_of(f, i);
        bool found = f->at[i].value != EPI_NO_NODE;
        f->written[i] = (found && (n->op == EPI_OP_SCATTER || !f->at[i].place.spread)) ||
                        (n->op == EPI_OP_SUM && f->spread[n->arg[0]] != EPI_NO_NODE);
        any |= f->written[i];
    }
    return any;
}

/* ---- writing ---- */

/* The value under the name that it is shifted along. */
static int named(epi_rewrite *r, int node, epi_axis from, epi_axis to) {
    const epi_node *n = &r->g->nodes[node];
    if (n->op == EPI_OP_RENAME && epi_axis_equal(n->over.at[0], to) && epi_axis_equal(n->over.at[1], from))
        return n->arg[0];
    return epi_graph_rename(r->g, node, from, to);
}

/* What a gather takes where the short axis is at k. */
static int write_gather(epi_rewrite *r, const taken *t, int64_t k) {
    int value = named(r, r->fresh[t->value], t->axis, t->place.along);
    if (epi_graph_failed(r->g))
        return EPI_NO_NODE;
    return epi_graph_shifted(r->g, value, t->place.along, -(t->place.at + t->place.step * k));
}

/* The value where an axis is at k. */
static int write_at(epi_rewrite *r, int node, epi_axis over, int64_t k, int depth) {
    const finder *f = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    int arg[3] = {EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE};
    if (epi_graph_failed(r->g) || epi_axes_find(&n->axes, over) < 0)
        return epi_graph_failed(r->g) ? EPI_NO_NODE : r->fresh[node];
    const taken *t = &f->at[node];
    if (n->op == EPI_OP_INDEX)
        return epi_graph_const(r->g, (double)k);
    if (n->op != EPI_OP_SCATTER && t->value != EPI_NO_NODE && t->place.spread &&
        epi_axis_equal(t->place.over, over))
        return write_gather(r, t, k);
    if (!epi_op_is_map(n->op) || depth == DEEPEST || n->has_stored)
        return epi_graph_slice(r->g, r->fresh[node], over, k);
    for (int a = 0; a < epi_node_operands(n); a++)
        arg[a] = epi_graph_value(r->g, write_at(r, n->arg[a], over, k, depth + 1));
    return epi_graph_map_like(r->g, n, arg);
}

static int add_to(epi_rewrite *r, int sum, int more) {
    if (epi_graph_failed(r->g))
        return EPI_NO_NODE;
    return sum == EPI_NO_NODE ? more : epi_graph_map2(r->g, EPI_OP_ADD, sum, more);
}

/* A sum over the short axis, place by place; or one that keeps it, put together of pieces. */
static int write_sum(epi_rewrite *r, const epi_node *n, epi_axis over) {
    epi_axes along = {1, {over}}, rest = epi_axes_without(&n->over, &along);
    const finder *f = r->ctx;
    bool keeps = rest.count == n->over.count;
    int sum = EPI_NO_NODE;
    for (int64_t k = 0; k < epi_axis_size(over, f->spec->sizes); k++) {
        int term = write_at(r, n->arg[0], over, k, 0);
        if (keeps && !epi_graph_failed(r->g))
            term = epi_graph_move(r->g, EPI_OP_SCATTER, epi_graph_reduce(r->g, EPI_OP_SUM, term, &rest),
                                  epi_graph_const(r->g, (double)k), EPI_NO_NODE, &along);
        sum = add_to(r, sum, term);
    }
    return keeps || !rest.count || epi_graph_failed(r->g) ? sum
                                                          : epi_graph_reduce(r->g, EPI_OP_SUM, sum, &rest);
}

/* What is sent to places at a distance, by the name that they have. */
static int write_scatter(epi_rewrite *r, const taken *t) {
    const finder *f = r->ctx;
    int64_t places = t->place.spread ? epi_axis_size(t->place.over, f->spec->sizes) : 1;
    int sum = EPI_NO_NODE;
    for (int64_t k = 0; k < places && !epi_graph_failed(r->g); k++) {
        int value = t->place.spread ? write_at(r, t->value, t->place.over, k, 0) : r->fresh[t->value];
        if (!epi_graph_failed(r->g))
            value = epi_graph_shifted(r->g, value, t->place.along, t->place.at + t->place.step * k);
        sum = add_to(r, sum, value);
    }
    return epi_graph_failed(r->g) ? EPI_NO_NODE : epi_graph_rename(r->g, sum, t->place.along, t->axis);
}

static int write_node(epi_rewrite *r, int node) {
    const finder *f = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    if (n->op == EPI_OP_RENAME) /* back to what it was */
        return epi_graph_stand_for(r->g, named(r, r->fresh[n->arg[0]], n->over.at[0], n->over.at[1]), n);
    if (!f->written[node])
        return EPI_NO_NODE;
    int value = n->op == EPI_OP_SCATTER ? write_scatter(r, &f->at[node])
                : n->op == EPI_OP_SUM   ? write_sum(r, n, f->at[f->spread[n->arg[0]]].place.over)
                                        : write_gather(r, &f->at[node], 0);
    return epi_graph_stand_for(r->g, value, n);
}

/* ---- shifts of maps ---- */

enum { MOST_MAPS = 8 };

/* Is it in memory anyway: an input or a part of one, or a statistic, which is short beside it? */
static bool is_there(const epi_graph *g, int node, int axes) {
    const epi_node *n = &g->nodes[epi_graph_renamed(g, node)];
    int64_t at;
    if (n->op == EPI_OP_GATHER && epi_graph_at_number(g, (int)(n - g->nodes), &at))
        n = &g->nodes[n->arg[0]];
    return n->op == EPI_OP_INPUT || (epi_op_reduces(n->op) && n->axes.count < axes);
}

/* Is it wanted in memory itself? */
static bool is_stored(const epi_graph *g, int node) {
    epi_use_list uses = epi_graph_uses(g, node);
    bool stored = g->nodes[node].has_stored || g->nodes[node].opaque;
    for (int i = 0; i < uses.count; i++)
        stored |= uses.at[i].node == EPI_NO_NODE || epi_op_is_product(g->nodes[uses.at[i].node].op);
    return stored;
}

/* Do at most so many cheap maps make the value of others that are in memory, and 0 of zeros? */
static bool can_push(const epi_graph *g, int node, epi_axis along, int axes, int *left) {
    const epi_node *n = &g->nodes[node];
    double zero[3] = {0};
    if (is_there(g, node, axes))
        return epi_axes_find(&n->axes, along) >= 0;
    if (!epi_op_is_map(n->op) || epi_ops[n->op].expensive || is_stored(g, node) || --*left < 0)
        return false;
    for (int a = 0; a < epi_node_operands(n); a++) {
        const epi_node *arg = &g->nodes[n->arg[a]];
        if (arg->op == EPI_OP_CONST)
            zero[a] = arg->value;
        else if (!can_push(g, n->arg[a], along, axes, left))
            return false;
    }
    return epi_op_reference(n->op, zero[0], zero[1], zero[2]) == 0;
}

static int push(epi_rewrite *r, int node, epi_axis along, int axes, int64_t by) {
    const epi_node *n = &r->in->nodes[node];
    int arg[3] = {EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE};
    if (epi_graph_failed(r->g) || n->op == EPI_OP_CONST)
        return epi_graph_failed(r->g) ? EPI_NO_NODE : r->fresh[node];
    if (is_there(r->in, node, axes))
        return epi_graph_shifted(r->g, r->fresh[node], along, by);
    for (int a = 0; a < epi_node_operands(n); a++)
        arg[a] = epi_graph_value(r->g, push(r, n->arg[a], along, axes, by));
    return epi_graph_map_like(r->g, n, arg);
}

/* Of a product with a factor that lacks the axis, of which nothing else is made, what is left of it is shifted: rows that keep what
 * they shift (limits.h) have it once for all factors. Which operand that is, or -1. */
static int without_factor(const epi_graph *g, const epi_node *shift) {
    const epi_node *m = &g->nodes[shift->arg[0]];
    int left = -1;
    bool may =
        m->op == EPI_OP_MUL && !is_stored(g, shift->arg[0]) && epi_graph_uses(g, shift->arg[0]).count == 1;
    for (int a = 0; a < 2 && may; a++)
        if (epi_axes_find(&g->nodes[m->arg[1 - a]].axes, shift->over.at[0]) < 0)
            left = a;
    return left;
}

static int write_factor(epi_rewrite *r, const epi_node *n, int left) {
    const epi_node *m = &r->in->nodes[n->arg[0]];
    int arg[3] = {EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE};
    arg[1 - left] = r->fresh[m->arg[1 - left]];
    arg[left] = epi_graph_shifted(r->g, r->fresh[m->arg[left]], n->over.at[0], epi_shift_by(n));
    return epi_graph_failed(r->g) ? EPI_NO_NODE
                                  : epi_graph_stand_for(r->g, epi_graph_map_like(r->g, m, arg), n);
}

/* Two shifts to the same side are one. */
static int write_shift(epi_rewrite *r, int node) {
    const epi_node *n = &r->in->nodes[node],
                   *first = n->op == EPI_OP_SHIFT ? &r->g->nodes[r->fresh[n->arg[0]]] : n;
    if (n->op != EPI_OP_SHIFT)
        return EPI_NO_NODE;
    epi_axis along = n->over.at[0];
    int left = MOST_MAPS, axes = n->axes.count;
    if (first->op == EPI_OP_SHIFT && epi_axis_equal(first->over.at[0], along) && !first->has_stored &&
        (first->value > 0) == (n->value > 0) && fabs(first->value + n->value) < 0x1p30) {
        int value = epi_graph_shifted(r->g, first->arg[0], along, epi_shift_by(first) + epi_shift_by(n));
        return epi_graph_stand_for(r->g, value, n);
    }
    const bool *factors = r->ctx;
    int rest = *factors ? without_factor(r->in, n) : -1;
    if (rest >= 0)
        return write_factor(r, n, rest);
    if (is_there(r->in, n->arg[0], axes) || !can_push(r->in, n->arg[0], along, axes, &left))
        return EPI_NO_NODE;
    return epi_graph_stand_for(r->g, push(r, n->arg[0], along, axes, epi_shift_by(n)), n);
}

/* ---- all ---- */

static bool has_shifts(const epi_graph *g) {
    bool any = false;
    for (int i = 0; i < g->node_count && !any; i++)
        any = g->live[i] && g->nodes[i].op == EPI_OP_SHIFT;
    return any;
}

epi_status epi_shifts_write(epi_arena *arena, epi_spec *spec, bool strict, epi_error *err) {
    bool factors = spec->window && !strict;
    size_t nodes = (size_t)spec->graph->node_count + 1;
    finder f = {.spec = spec, .in = spec->graph};
    f.at = epi_arena_alloc(arena, nodes * sizeof *f.at);
    f.spread = epi_arena_alloc(arena, nodes * sizeof *f.spread);
    f.written = epi_arena_alloc(arena, nodes);
    EPI_TRY(epi_has_memory(f.at && f.spread && f.written, err));
    if (find_all(&f))
        EPI_TRY(epi_graph_rewrite(arena, &spec->graph, write_node, &f, err));
    if (!has_shifts(spec->graph))
        return EPI_OK;
    return epi_graph_rewrite(arena, &spec->graph, write_shift, &factors, err);
}
