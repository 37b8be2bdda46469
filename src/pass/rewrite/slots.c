/* slots.c: a product in which each row chooses its weight becomes a product over rows that are sorted by
 * their choice.
 *
 * In sum(x*gather(w, i, E), D) the index i chooses one of E weights for each of its elements, which are the
 * rows of the product. Rows with the same choice belong together. A *slot* is a position in the sorted
 * index. Each index has one prelude,
 *
 *     p = argsort(i, E)      the row that a slot has
 *     q = rank(i, E)         the slot that a row has
 *     o = offsets(i, E)      the first slot of each choice
 *     s = segments(o, E, …)  the choice of each slot
 *
 * and the grouped product is sum(gather(x, p, …)*gather(w, s, E), D), in slot order: first the rows of one
 * weight, then those of the next. A weight's gradient, scatter(a*b, i, E) of an outer product, is
 * scatter(gather(a, p, …)*gather(b, p, …), s, E). Values that are computed from these row by row stay in
 * slot order; gather(v, q, …) brings v into the order of the program, for all other users. */
#include "pass/rewrite/slots.h"

#include <stdio.h>
#include <string.h>

#include "pass/rewrite/slots_find.h"

/* A new value of the program's order in slot order. */
static int to_slots(epi_rewrite *r, int value, const epi_prelude *of) {
    if (epi_graph_failed(r->g) || !epi_axes_meet(&r->g->nodes[value].axes, &of->rows))
        return value;
    return epi_graph_move(r->g, EPI_OP_GATHER, value, of->p, EPI_NO_NODE, &of->rows);
}

/* "e_rank", of an index e. */
static int sort_named(epi_rewrite *r, epi_op op, const epi_prelude *of) {
    const char *index = r->in->nodes[of->index].name;
    int node = epi_graph_sort(r->g, op, r->fresh[of->index], &(epi_axes){1, {of->choice}});
    char name[160];
    snprintf(name, sizeof name, "%.120s%s%s", index ? index : "", index ? "_" : "", epi_ops[op].text);
    if (!epi_graph_failed(r->g) && !r->g->nodes[node].name)
        r->g->nodes[node].name = epi_arena_text(r->g->arena, name, strlen(name));
    return node;
}

static const epi_prelude *make_prelude(epi_rewrite *r, int which) {
    epi_prelude *of = &((epi_slots *)r->ctx)->preludes[which];
    if (of->p != EPI_NO_NODE)
        return of;
    epi_axes along = {1, {of->choice}};
    epi_axes_unite(&along, &of->rows);
    of->p = sort_named(r, EPI_OP_ARGSORT, of);
    of->q = sort_named(r, EPI_OP_RANK, of);
    of->s = epi_graph_sort(r->g, EPI_OP_SEGMENTS, sort_named(r, EPI_OP_OFFSETS, of), &along);
    if (!epi_slots_within(r->in, of->index, of->choice)) {
        epi_axes all = {1, {of->choice}};
        int ones = epi_graph_complete(r->g, epi_graph_const(r->g, 1), &all);
        int there = epi_graph_move(r->g, EPI_OP_GATHER, ones, r->fresh[of->index], EPI_NO_NODE, &all);
        of->there = to_slots(r, there, of);
    }
    return of;
}

/* A value of slots, which is 0 where a slot chooses nothing. */
static int where_there(epi_rewrite *r, int value, const epi_prelude *of) {
    return of->there == EPI_NO_NODE
               ? value
               : epi_graph_map(r->g, EPI_OP_WHERE, of->there, value, epi_graph_const(r->g, 0));
}

/* What the rows choose from this table, in slot order. */
static int choose(epi_rewrite *r, int table, const epi_prelude *of) {
    return epi_graph_move(r->g, EPI_OP_GATHER, table, of->s, EPI_NO_NODE, &(epi_axes){1, {of->choice}});
}

/* An old value in slot order. */
static int slots_of(epi_rewrite *r, int node, int which) {
    const epi_slots *s = r->ctx;
    const epi_prelude *of = make_prelude(r, which);
    const epi_slot_place *at = &s->at[node];
    if (epi_in_slots(s, node) && at->prelude == which)
        return at->slots;
    if (at->chosen != EPI_NO_NODE) {
        const epi_node *gather = &r->in->nodes[at->chosen];
        if (gather->arg[1] == of->index && epi_axis_equal(gather->over.at[0], of->choice))
            return where_there(r, choose(r, at->table, of), of);
    }
    return to_slots(r, r->fresh[node], of);
}

/* The sum over these axes of rows of a table, term by term: in the order of the terms. */
static int sum_rows(epi_rewrite *r, int table, int index, const epi_axes *along, const epi_axes *sums) {
    const epi_slots *s = r->ctx;
    int64_t terms = epi_axes_size(sums, s->spec->sizes);
    int value = EPI_NO_NODE;
    for (int64_t term = 0; term < terms && !epi_graph_failed(r->g); term++) {
        int at = index;
        int64_t left = term;
        for (int i = sums->count - 1; i >= 0; i--) {
            int64_t size = epi_axis_size(sums->at[i], s->spec->sizes);
            at = epi_graph_slice(r->g, at, sums->at[i], left % size);
            left /= size;
        }
        int row = epi_graph_move(r->g, EPI_OP_GATHER, table, at, EPI_NO_NODE, along);
        value = value == EPI_NO_NODE ? row : epi_graph_map2(r->g, EPI_OP_ADD, value, row);
    }
    return value;
}

/* A value that is made in slot order, in the order of the program. */
static int from_slots(epi_rewrite *r, int value, int which, const epi_axes *sums) {
    const epi_slots *s = r->ctx;
    const epi_prelude *of = make_prelude(r, which);
    if (epi_graph_failed(r->g))
        return EPI_NO_NODE;
    if (sums->count && epi_slots_few(s, sums) && !epi_axes_include(&of->rows, &r->g->nodes[value].axes))
        return sum_rows(r, value, of->q, &of->rows, sums);
    value = epi_graph_move(r->g, EPI_OP_GATHER, value, of->q, EPI_NO_NODE, &of->rows);
    return sums->count ? epi_graph_reduce(r->g, EPI_OP_SUM, value, sums) : value;
}

static int multiply(epi_graph *g, int value, int by, bool divides) {
    if (value == EPI_NO_NODE && !divides)
        return by;
    return epi_graph_map2(g, divides ? EPI_OP_DIV : EPI_OP_MUL,
                          value == EPI_NO_NODE ? epi_graph_const(g, 1) : value, by);
}

/* How a factor comes into slot order: with others that lack some of the rows, with others that have them all,
 * or it is there already. */
enum { LACKS_ROWS, HAS_ROWS, IS_THERE, WAYS };

static int way_of(const epi_slots *s, int node, const epi_prelude *of) {
    if (epi_in_slots(s, node) || s->at[node].chosen != EPI_NO_NODE)
        return IS_THERE;
    return epi_axes_include(&s->in->nodes[node].axes, &of->rows) ? HAS_ROWS : LACKS_ROWS;
}

/* The product of the factors of a side, in slot order. */
static int multiply_side(epi_rewrite *r, const epi_slot_factors *f, epi_slot_side side, int which) {
    const epi_prelude *of = make_prelude(r, which);
    int value = EPI_NO_NODE;
    for (int way = 0; way < WAYS; way++) {
        int part = EPI_NO_NODE;
        for (int i = 0; i < f->count; i++)
            if (f->side[i] == side && way_of(r->ctx, f->at[i].node, of) == way)
                part = multiply(r->g, part,
                                way == IS_THERE ? slots_of(r, f->at[i].node, which) : r->fresh[f->at[i].node],
                                f->at[i].divides);
        if (part != EPI_NO_NODE)
            value = multiply(r->g, value, way == IS_THERE ? part : to_slots(r, part, of), false);
    }
    return value;
}

/* The weights that rows choose from, times what has their axes and no rows. */
static int multiply_weights(epi_rewrite *r, const epi_slot_factors *f) {
    const epi_slots *s = r->ctx;
    int value = s->at[f->at[f->chosen].node].table;
    for (int i = 0; i < f->count; i++)
        if (f->side[i] == EPI_SLOT_WEIGHTS && i != f->chosen)
            value = multiply(r->g, value, r->fresh[f->at[i].node], f->at[i].divides);
    return value;
}

/* A mean's sum over the number of its terms. */
static int divide_mean(epi_rewrite *r, int value, const epi_node *n) {
    for (int i = 0; i < n->over.count && n->op == EPI_OP_MEAN; i++)
        value = multiply(r->g, value, epi_graph_leaf(r->g, EPI_OP_SIZE, n->over.at[i]), true);
    return value;
}

static int write_product(epi_rewrite *r, int node, int which) {
    epi_slots *s = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    epi_slot_factors f;
    epi_slots_product(s, node, &f);
    const epi_prelude *of = make_prelude(r, which);
    int rows = multiply_side(r, &f, EPI_SLOT_ROWS, which), weights = choose(r, multiply_weights(r, &f), of);
    int value = epi_graph_reduce(r->g, EPI_OP_SUM, epi_graph_map2(r->g, EPI_OP_MUL, rows, weights), &f.depth);
    value = where_there(r, value, of);
    for (int i = 0; i < f.count; i++)
        if (f.side[i] == EPI_SLOT_RESULT)
            value = multiply(r->g, value, slots_of(r, f.at[i].node, which), f.at[i].divides);
    value = divide_mean(r, value, n);
    return f.negative ? epi_graph_map1(r->g, EPI_OP_NEG, value) : value;
}

static int write_outer(epi_rewrite *r, int node) {
    epi_slots *s = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    epi_slot_factors f;
    epi_slots_outer(s, node, &f);
    int which = epi_slots_prelude(s, n);
    const epi_prelude *of = make_prelude(r, which);
    int a = multiply_side(r, &f, EPI_SLOT_ROWS, which), b = multiply_side(r, &f, EPI_SLOT_WEIGHTS, which);
    a = where_there(r, a, of);
    b = where_there(r, b, of);
    int value = epi_graph_move(r->g, EPI_OP_SCATTER, epi_graph_map2(r->g, EPI_OP_MUL, a, b), of->s,
                               EPI_NO_NODE, &n->over);
    value = f.negative ? epi_graph_map1(r->g, EPI_OP_NEG, value) : value;
    return epi_graph_stand_for(r->g, value, n);
}

/* The same operation on operands in slot order, over these axes. */
static int write_by_row(epi_rewrite *r, const epi_node *n, int which) {
    int arg[3];
    for (int a = 0; a < 3; a++)
        arg[a] = n->arg[a] == EPI_NO_NODE ? EPI_NO_NODE : slots_of(r, n->arg[a], which);
    return epi_graph_value(r->g, epi_graph_rebuild(r->g, n, arg));
}

/* A sum over some axes of the rows and others: over the others here. */
static int write_partial(epi_rewrite *r, const epi_node *n, int which) {
    epi_axes others = epi_axes_without(&n->over, &((epi_slots *)r->ctx)->preludes[which].rows);
    int value = slots_of(r, n->arg[0], which);
    value = others.count ? epi_graph_reduce(r->g, EPI_OP_SUM, value, &others) : value;
    return divide_mean(r, value, n);
}

static int write_added(epi_rewrite *r, const epi_node *n) {
    const epi_slots *s = r->ctx;
    int b = n->arg[1] == EPI_NO_NODE ? EPI_NO_NODE : s->at[n->arg[1]].slots;
    return epi_graph_map2(r->g, n->op, s->at[n->arg[0]].slots, b);
}

/* scatter(v, i, E) of what is in slot order. */
static int write_chosen(epi_rewrite *r, const epi_node *n) {
    int which = epi_slots_order(r->ctx, n), value = slots_of(r, n->arg[0], which);
    const epi_prelude *of = make_prelude(r, which);
    value = epi_graph_move(r->g, EPI_OP_SCATTER, where_there(r, value, of), of->s, EPI_NO_NODE, &n->over);
    return epi_graph_stand_for(r->g, value, n);
}

static int write_combined(epi_rewrite *r, const epi_node *n) {
    const epi_node *of = &r->in->nodes[n->arg[0]];
    int value = sum_rows(r, r->fresh[of->arg[0]], r->fresh[of->arg[1]], &of->over, &n->over);
    return epi_graph_stand_for(r->g, value, n);
}

/* What a chosen value is chosen from: the same operation on the table. */
static int write_table(epi_rewrite *r, int node) {
    const epi_slots *s = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    if (s->at[node].chosen == node)
        return r->fresh[n->arg[0]];
    int arg[3] = {s->at[n->arg[0]].table, n->arg[1] == EPI_NO_NODE ? EPI_NO_NODE : r->fresh[n->arg[1]],
                  EPI_NO_NODE};
    return epi_graph_value(r->g, epi_graph_apply(r->g, n->op, arg, &n->over));
}

/* Is the value an output that has more digits than what is stored between parts, or may be? */
static bool is_wide_output(const epi_slots *s, int node) {
    const epi_graph *g = s->in;
    bool wide = false;
    for (int t = g->input_count; t < g->tensor_count; t++) {
        const epi_tensor_decl *d = &g->tensors[t];
        bool known = s->spec || d->has_type;
        epi_dtype type = s->spec ? s->spec->types[t] : d->type;
        wide |= d->node == node && known && !epi_dtype_holds(EPI_BF16, type) && type != EPI_F16 &&
                !epi_dtype_is_integer(type);
    }
    return wide && !(s->spec && s->spec->type == EPI_F32);
}

/* The type of what is made in slot order. It is stored at least as the value in the program's order is; of a sum that
 * leaves slot order they are the terms, which are not to be rounded to the sum's type first. */
static void set_type(const epi_slots *s, int node, epi_node *as) {
    bool terms = as->has_stored && s->at[node].sums.count > 0;
    as->has_stored &= !(terms && s->spec && epi_dtype_holds(s->spec->type, as->stored));
    if (is_wide_output(s, node) || (terms && as->has_stored)) {
        as->has_stored = true;
        as->stored = EPI_F32;
    }
}

/* What is made in slot order, there. */
static int write_slots(epi_rewrite *r, int node) {
    const epi_slot_place *at = &((epi_slots *)r->ctx)->at[node];
    const epi_node *n = &r->in->nodes[node];
    int value = at->role == EPI_SLOT_PRODUCT   ? write_product(r, node, at->prelude)
                : at->role == EPI_SLOT_PARTIAL ? write_partial(r, n, at->prelude)
                : at->role == EPI_SLOT_ADDED   ? write_added(r, n)
                                               : write_by_row(r, n, at->prelude);
    epi_node as = *n;
    set_type(r->ctx, node, &as);
    as.name = at->sums.count ? NULL : n->name; /* else it is the sum's */
    return epi_graph_stand_for(r->g, value, &as);
}

static int write_node(epi_rewrite *r, int node) {
    epi_slots *s = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    epi_slot_place *at = &s->at[node];
    if (node >= s->old && s->first < 0)
        s->first = r->g->node_count;
    if (at->chosen != EPI_NO_NODE)
        at->table = write_table(r, node);
    if (at->prelude >= 0 && !epi_graph_failed(r->g)) {
        at->slots = write_slots(r, node);
        int value = from_slots(r, at->slots, at->prelude, &at->sums);
        return at->sums.count ? epi_graph_stand_for(r->g, value, n) : value;
    }
    switch (at->role) {
    case EPI_SLOT_OUTER: return write_outer(r, node);
    case EPI_SLOT_ALL_ROWS: return write_by_row(r, n, epi_slots_order(s, n));
    case EPI_SLOT_CHOSEN: return write_chosen(r, n);
    case EPI_SLOT_COMBINED: return write_combined(r, n);
    default: return EPI_NO_NODE;
    }
}

epi_status epi_slots_write(epi_arena *arena, const epi_graph **graph, const epi_spec *spec, int *first,
                           epi_error *err) {
    const epi_graph *in = *graph;
    size_t nodes = (size_t)in->node_count + 1;
    epi_slots s = {.in = in,
                   .spec = spec,
                   .preludes = epi_arena_alloc(arena, nodes * sizeof *s.preludes),
                   .at = epi_arena_alloc(arena, nodes * sizeof *s.at),
                   .old = first ? *first : in->node_count,
                   .first = -1};
    EPI_TRY(epi_has_memory(s.preludes && s.at, err));
    if (!epi_slots_find(&s))
        return EPI_OK;
    EPI_TRY(epi_graph_rewrite(arena, graph, write_node, &s, err));
    if (first)
        *first = s.first < 0 ? (*graph)->node_count : s.first;
    return EPI_OK;
}
