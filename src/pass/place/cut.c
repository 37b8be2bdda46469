/* cut.c: from a program to parts with one mainloop each, and what is stored between them.
 *
 * 1. Every value gets a *placement*, in an order in which operands come first. This file goes through the
 *    values; cut_product.c, cut_rows.c, cut_moves.c, cut_attention.c and cut_recurrence.c say where one
 *    goes, by what a part can hold (cut_holds.c):
 *
 *        tile p    on part p's tile (or row) while it is on chip
 *        after p   a short vector made of p's finished reductions
 *        unplaced  elementwise in something that is complete only after part p; computed wherever it is used
 *
 *    An unplaced value that must be in memory (an operand, an output, the operand of a reduction) joins a
 *    later part that has its shape, or becomes a rows part, whichever costs less (cut_stores.c, cost.h).
 * 2. What each part loads from earlier ones is a minimum vertex cut (cut_loads.c): it stores the values with
 *    the fewest bytes, and the others are recomputed.
 * 3. Each part is written down as a graph (cut_parts.c). */
#include "pass/place/placer.h"

#include <string.h>

#include "ir/stretch.h"
#include "pass/analyse/direction.h"

static void place(epi_placer *s, int node) {
    if (s->g->nodes[node].integer && !epi_op_is_leaf(s->g->nodes[node].op)) {
        for (int a = 0; a < epi_node_operands(&s->g->nodes[node]); a++)
            epi_placer_settle_view(s, s->g->nodes[node].arg[a]);
        epi_placer_place_pass(s, node);
        return;
    }
    switch (epi_ops[s->g->nodes[node].op].cls) {
    case EPI_CLASS_LEAF: s->placement[node] = (epi_cut_placement){EPI_PLACED_INPUT, -1}; break;
    case EPI_CLASS_PRODUCT: epi_placer_place_product(s, node); break;
    case EPI_CLASS_REDUCE: epi_placer_place_reduction(s, node); break;
    case EPI_CLASS_VIEW:
        s->view[node] = s->g->nodes[node].op == EPI_OP_RENAME || !epi_placer_stays_on_tile(s, node);
        s->view[node] ? epi_placer_see_view(s, node) : epi_placer_place_map(s, node);
        break;
    case EPI_CLASS_MOVE: epi_placer_place_indexed(s, node); break;
    case EPI_CLASS_SCAN: epi_placer_place_scan(s, node); break;
    case EPI_CLASS_SHIFT: epi_placer_place_shift(s, node); break;
    case EPI_CLASS_RANDOM: epi_placer_place_random(s, node); break;
    case EPI_CLASS_MAP:
    case EPI_CLASS_SPLIT:
        s->view[node] = epi_placer_is_slice(s, node);
        if (s->view[node])
            epi_placer_see_view(s, node);
        else if (s->sum[node] == EPI_NO_NODE) /* else its part places it */
            epi_placer_place_map(s, node);
        break;
    default: epi_placer_place_move(s, node); /* a pass by itself */
    }
}

/* What an attention part's tiles cannot make must be in memory: its products' operands, and what does not
 * have the shape of a tile. */
static void store_needs(epi_placer *s, const epi_placer_attention *at) {
    const epi_attention *a = &at->plan;
    epi_placer_part part = {.kind = EPI_KIND_ATTENTION,
                            .rows = a->rows,
                            .cols = a->sums[0].cols,
                            .ordered = !s->limits->halves,
                            .split = EPI_OP_COUNT,
                            .attention = at};
    int operands[EPI_ATTENTION_OPERANDS], count = epi_attention_operands(a, operands);
    for (int i = 0; i < at->needs.count; i++)
        epi_placer_want_after(s, at->needs.at[i]);
    for (int i = 0; i < at->needs.count; i++)
        epi_placer_settle_view(s, at->needs.at[i]);
    for (int i = 0; i < at->needs.count; i++) {
        int node = at->needs.at[i];
        bool store = false;
        if (s->inner[node]) /* it is read through its pages */
            continue;
        for (int k = 0; k < count; k++)
            store |= node == operands[k];
        if (!store && s->placement[node].kind == EPI_UNPLACED) {
            epi_placer_find_cone(s, node);
            for (int c = 0; c < s->cone.count; c++) {
                epi_op op = s->g->nodes[s->cone.at[c]].op;
                store |=
                    (!epi_op_is_map(op) && !epi_op_draws(op)) || !epi_placer_fits(s, &part, s->cone.at[c]);
            }
        }
        if (store)
            epi_placer_store(s, node);
    }
    s->until = -1;
}

/* Views that a value is made of are there: those of a product when its part is made. A view of a view waits
 * as that does. */
static void settle_operands(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    epi_stretch part;
    bool view = n->op == EPI_OP_RENAME || (n->op == EPI_OP_GATHER && epi_stretch_find(s->spec, node, &part));
    for (int a = 0; a < 3 && !epi_op_is_product(n->op) && !view; a++)
        if (n->arg[a] != EPI_NO_NODE)
            epi_placer_settle_view(s, n->arg[a]);
}

/* The operands of a scan of products are in memory, and its results come together. */
static void place_recurrence(epi_placer *s, const epi_recurrence *r) {
    int operands[EPI_RECURRENCE_OPERANDS], count = epi_recurrence_operands(r, operands);
    for (int i = 0; i < count; i++)
        epi_placer_want_after(s, operands[i]);
    for (int i = 0; i < count; i++)
        epi_placer_settle_view(s, operands[i]);
    for (int i = 0; i < count; i++)
        epi_placer_store(s, operands[i]);
    s->until = -1;
    epi_placer_place_recurrence(s, r, epi_placer_add_rows(s, epi_recurrence_result(r), NULL));
}

/* Places a value whose operands are placed; of an attention all that it makes, and then the values that
 * waited for it come: it returns the node to go on with. */
static int place_next(epi_placer *s, int node) {
    if (s->recurrence_of[node]) {
        place_recurrence(s, &s->recurrences.at[s->recurrence_of[node] - 1]);
        return node + 1;
    }
    if (!s->attention_of[node]) {
        settle_operands(s, node);
        place(s, node);
        s->placed[node] = true;
        return node + 1;
    }
    epi_placer_attention *at = &s->attentions[s->attention_of[node] - 1];
    store_needs(s, at);
    epi_placer_place_attention(s, at, epi_placer_add_part(s, EPI_KIND_ATTENTION, EPI_NO_NODE));
    return at->plan.inner.at[0];
}

static bool is_ready(const epi_placer *s, int node) {
    if (s->attention_of[node])
        return epi_placer_attention_ready(s, &s->attentions[s->attention_of[node] - 1]);
    if (s->recurrence_of[node])
        return epi_placer_recurrence_ready(s, &s->recurrences.at[s->recurrence_of[node] - 1]);
    int reads[EPI_PRODUCT_READS];
    int count = epi_op_is_product(s->g->nodes[node].op) ? epi_product_reads(s->g, node, reads) : 0;
    for (int i = 0; i < count; i++)
        if (!s->placed[reads[i]])
            return false;
    for (int a = 0; a < 3; a++)
        if (s->g->nodes[node].arg[a] != EPI_NO_NODE && !s->placed[s->g->nodes[node].arg[a]])
            return false;
    return true;
}

/* Is it a product that nothing wants but outputs? */
static bool is_result(const epi_placer *s, int node) {
    epi_use_list uses = epi_graph_uses(s->g, node);
    bool result = epi_op_is_product(s->g->nodes[node].op) && !s->attention_of[node] && !s->inner[node];
    for (int i = 0; i < uses.count; i++)
        result &= uses.at[i].node == EPI_NO_NODE || s->put_by[node] == uses.at[i].node;
    return result;
}

/* A weight gradient of which an operand is in memory nowhere yet, the normalised rows, waits for the input
 * gradient that is made of its other operand: that part can make them on its tile. */
static bool waits(epi_placer *s, int node) {
    const epi_graph *g = s->g;
    for (int a = 0; a < 2 && is_result(s, node); a++) {
        int unplaced = g->nodes[node].arg[a];
        epi_use_list uses = epi_graph_uses(g, g->nodes[node].arg[1 - a]);
        if (s->placement[unplaced].kind != EPI_UNPLACED || s->forced[unplaced] || s->waiting[unplaced])
            continue;
        for (int i = 0; i < uses.count; i++) {
            int other = uses.at[i].node;
            if (other == EPI_NO_NODE || !epi_op_is_product(g->nodes[other].op) || s->attention_of[other] ||
                s->inner[other] || s->forward[other] != s->forward[node] || is_result(s, other) ||
                !epi_axes_same_set(&g->nodes[other].axes, &g->nodes[unplaced].axes))
                continue;
            epi_product_sum sum = epi_placer_find_sum(s, other);
            for (int p = 0; p < sum.count; p++)
                if (!s->placed[sum.products[p]])
                    return true;
        }
    }
    return false;
}

/* Places all values of a direction; false: an attention or a scan of products waits for itself. */
static bool place_all(epi_placer *s, bool forward) {
    int count = s->g->node_count, left = 0;
    for (int before = -1; before != left;) {
        int waiting =
            count; /* the first that waits for a product, which is gone back to after the next one */
        before = left;
        left = 0;
        for (int i = 0; i < count;) {
            bool ready = s->g->live[i] && !s->placed[i] && s->forward[i] == forward && is_ready(s, i);
            bool later = ready && waits(s, i), product = epi_op_is_product(s->g->nodes[i].op);
            waiting = later && i < waiting ? i : waiting;
            i = ready && !later ? place_next(s, i) : i + 1;
            if (ready && !later && product && waiting < i) {
                i = waiting;
                waiting = count;
            }
        }
        for (int i = 0; i < count; i++)
            left += s->g->live[i] && !s->placed[i] && s->forward[i] == forward;
        if (!left)
            return true;
    }
    return false;
}

/* Drops an attention or a scan of products that waits for itself; false: none does. */
static bool drop_waiting(epi_placer *s) {
    int k = 0;
    if (epi_placer_drop_recurrence(s))
        return true;
    while (k < s->attention_count && (s->attentions[k].dropped || s->attentions[k].placed))
        k++;
    if (k < s->attention_count)
        s->attentions[k].dropped = true;
    return k < s->attention_count;
}

/* Every value's placement, or false where an attention or a scan of products cannot be one part, which is
 * dropped. Where none is left to drop, a value is `stuck`: what it reads is nowhere. */
static bool make_placer(epi_placer *s, epi_arena *arena) {
    const epi_graph *g = s->g;
    memset(s->forced, 0, (size_t)g->node_count);
    memset(s->placed, 0, (size_t)g->node_count);
    memset(s->waiting, 0, (size_t)g->node_count);
    memset(s->takes, 0, (size_t)g->node_count);
    memset(s->apart, 0, (size_t)g->node_count);
    s->part_count = 0;
    for (int i = 0; i < g->node_count; i++)
        s->sum[i] = EPI_NO_NODE;
    if (!epi_placer_agree_attention(arena, s))
        return true; /* the arena tells */
    for (int i = 0; i < g->node_count; i++)
        if (g->live[i] && (g->nodes[i].on_load || epi_gather_is_read(g, i) ||
                           epi_scaled_is_read(g, i))) { /* products make or take these */
            s->inner[i] = s->placed[i] = true;
            s->placement[i] = (epi_cut_placement){EPI_PLACED_SCORE, -1};
        }
    epi_placer_agree_recurrences(s);
    epi_placer_find_pieces(s);
    bool both = epi_find_forward(g, s->forward);
    for (int back = 0; back <= both; back++) {
        s->first = s->part_count;
        if (!place_all(s, !back)) {
            s->stuck = !drop_waiting(s);
            return s->stuck;
        }
        for (int i = 0; i < g->node_count; i++)
            epi_placer_settle_view(s, i);
        for (int t = g->input_count; t < g->tensor_count; t++)
            if (s->forward[g->tensors[t].node] != back)
                epi_placer_store(s, g->tensors[t].node);
    }
    return true;
}

epi_status epi_placer_make(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                           const unsigned *without, const int *spills, epi_placer *s, epi_error *err) {
    const epi_graph *g = spec->graph;
    size_t nodes = (size_t)g->node_count + 1;
    *s = (epi_placer){
        .spec = spec, .limits = limits, .g = g, .without = without, .spills = spills, .until = -1};
    s->said = epi_stored_find(arena, g, spec->types, spec->type);
    s->placement = epi_arena_alloc(arena, nodes * sizeof *s->placement);
    s->parts = epi_arena_alloc(arena, (2 * nodes + (size_t)g->tensor_count) * sizeof *s->parts);
    s->forced = epi_arena_alloc(arena, nodes);
    s->folds = epi_arena_alloc(arena, nodes * sizeof *s->folds);
    s->scratch = epi_arena_alloc(arena, nodes * sizeof *s->scratch);
    s->pending.at = epi_arena_alloc(arena, 3 * nodes * sizeof *s->pending.at);
    s->cone.at = epi_arena_alloc(arena, nodes * sizeof *s->cone.at);
    s->read.at = epi_arena_alloc(arena, nodes * sizeof *s->read.at);
    s->placed = epi_arena_alloc(arena, nodes);
    s->forward = epi_arena_alloc(arena, nodes);
    s->view = epi_arena_alloc(arena, nodes);
    s->waiting = epi_arena_alloc(arena, nodes);
    s->sum = epi_arena_alloc(arena, nodes * sizeof *s->sum);
    s->of_product = epi_arena_alloc(arena, nodes);
    s->takes = epi_arena_alloc(arena, nodes);
    s->apart = epi_arena_alloc(arena, nodes);
    s->put_by = epi_arena_alloc(arena, nodes * sizeof *s->put_by);
    s->put_into = epi_arena_alloc(arena, nodes * sizeof *s->put_into);
    if (!epi_visits_make(arena, g->node_count, &s->visits))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int i = 0; i < g->node_count; i++)
        s->of_product[i] = epi_op_is_product(g->nodes[i].op) || epi_node_takes(&g->nodes[i], s->of_product);
    epi_nominal_sizes(spec, s->sizes);
    epi_find_forward(g, s->forward);
    if (epi_placer_find_recurrences(arena, s) && epi_placer_find_attention(arena, s))
        while (!make_placer(s, arena))
            ;
    if (s->stuck)
        return EPI_INTERNAL(err, (epi_place){0}, "a value waits for a value that no part computes");
    return arena->failed ? epi_fail(err, EPI_ERR_MEMORY, "out of memory") : EPI_OK;
}
