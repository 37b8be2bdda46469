/* cut_loads.c: what each part loads, as a minimum vertex cut.
 *
 * A part needs some values that are computed elsewhere. It can load each of them, or recompute it from its
 * operands, if it is elementwise and has the shape of the part's tile. The choice that moves the fewest
 * bytes is a minimum vertex cut between memory and what the part needs. A value that is stored already, or
 * is an input, costs its bytes. A value that would have to be stored for it costs them twice. A value that
 * is not in memory in time cannot be loaded. The cut is found as a maximum flow.
 *
 * The parts choose one after the other. At the end, each value that is stored only because one of them
 * wanted it is tried without: its users choose again, and the result stays if fewer bytes move. */
#include <math.h>
#include <string.h>

#include "base/heap.h"
#include "pass/analyse/flow.h"
#include "pass/place/placer.h"

/* What choosing for one part works on; its room is used again for the next one. A value of the part is known
 * by its place in `values`. */
typedef struct chooser {
    epi_arena *arena;
    epi_placer *s;
    epi_part_values *parts;
    bool *required;       /* by node: it is stored whatever the parts choose */
    bool *forbidden;      /* by node: it may not be loaded */
    int *loaded;          /* by node: by how many parts */
    double moved;         /* bytes that are loaded by parts, and stored for them */
    int *users;           /* parts: scratch */
    epi_node_list values; /* that the part may load or make again, in the order of nodes */
    int *place;           /* by node: its place among them */
    bool *wanted;         /* by place: the part itself uses it */
    bool *recomputable;   /* by place: it can be recomputed */
    bool *moved_from;     /* by place: it is read at other places than an element's own, in memory */
    int *behind;          /* by place: stored values on the way from the part to it, at least */
    int *work;            /* by place: operations that are recomputed on the longest way to it */
    epi_flow f;
} chooser;

static bool is_own(const epi_placer *s, int q, int node) {
    epi_cut_placement_kind kind = s->placement[node].kind;
    return (kind == EPI_PLACED_TILE || kind == EPI_PLACED_AFTER) && s->placement[node].part == q;
}

/* Can the part make the value again? It takes one axis apart in one way: what it noted first counts. A random
 * number that is unplaced is one that attention makes; rows take rows of tables. */
static bool can_remake(const epi_placer *s, epi_placer_part *p, int node) {
    epi_op op = s->g->nodes[node].op;
    if (s->g->nodes[node].integer) /* a pass by itself makes it */
        return false;
    return (epi_op_on_tile(op) || s->placement[node].kind == EPI_UNPLACED ||
            ((epi_op_by_index(op) || op == EPI_OP_SHIFT) && s->takes[node])) &&
           epi_placer_fits(s, p, node);
}

/* What loading the value costs the part. */
static double price(const chooser *c, int q, int node) {
    epi_cut_placement placement = c->s->placement[node];
    bool there =
        placement.kind == EPI_PLACED_INPUT || (placement.kind == EPI_PLACED_VIEW && placement.part < q);
    if (placement.kind == EPI_UNPLACED ||
        (!there && (placement.part > q || placement.kind == EPI_PLACED_VIEW)) || c->forbidden[node])
        return INFINITY;
    double bytes = epi_placer_bytes(c->s, node) + 1; /* of an empty value, too: loads are not for nothing */
    return there || c->s->forced[node] ? bytes : epi_cost_stored(bytes);
}

/* ---- the values of a part ---- */

/* The last of the program is on top of the heap. */
static bool is_later(const void *ctx, int a, int b) {
    (void)ctx;
    return a > b;
}

/* Is it what says where the groups of the part's product, or of what it adds up alone, begin? That is had of the offsets
 * in memory. */
static bool is_segments(const chooser *c, int q, int node) {
    const epi_placer_part *p = &c->s->parts[q];
    int user = p->kind == EPI_KIND_PASS && c->parts[q].own.count ? c->parts[q].own.at[0] : p->product;
    return c->s->g->nodes[node].op == EPI_OP_SEGMENTS && user != EPI_NO_NODE &&
           epi_node_segments(c->s->g, &c->s->g->nodes[user]) == node;
}

/* One more value that the part may load, which lies behind so many stored ones and so much work. */
static void offer(chooser *c, int q, int node, bool wanted, int behind, int work, epi_node_list *heap) {
    epi_placer *s = c->s;
    if (node != EPI_NO_NODE && is_segments(c, q, node))
        node = s->parts[q].kind == EPI_KIND_PASS ? s->g->nodes[node].arg[0]
                                                 : EPI_NO_NODE; /* a product has its offsets anyway */
    if (node == EPI_NO_NODE || epi_op_is_free(s->g->nodes[node].op) || is_own(s, q, node) || s->inner[node])
        return;
    if (s->visits.seen[node] != s->visits.round) {
        s->visits.seen[node] = s->visits.round;
        c->place[node] = c->values.count;
        c->wanted[c->values.count] = c->moved_from[c->values.count] = false;
        c->behind[c->values.count] = behind;
        c->work[c->values.count] = work;
        c->values.at[c->values.count++] = node;
        epi_heap_put(heap->at, &heap->count, node, is_later, NULL);
    }
    c->wanted[c->place[node]] |= wanted;
    if (behind < c->behind[c->place[node]])
        c->behind[c->place[node]] = behind;
    if (work > c->work[c->place[node]])
        c->work[c->place[node]] = work;
}

/* What rows take by a gather, or anyone by a shift, is in memory, unless the part keeps what it makes: it does
 * not make it again. */
static void note_moved(chooser *c, const epi_placer_part *p, int node) {
    const epi_node *n = &c->s->g->nodes[node];
    bool kept = n->op == EPI_OP_SHIFT && p->window && epi_may_keep(c->s->spec, n);
    bool taken = n->op == EPI_OP_GATHER && p->product == EPI_NO_NODE; /* by rows */
    if ((n->op == EPI_OP_SHIFT || taken) && !kept && c->s->visits.seen[n->arg[0]] == c->s->visits.round)
        c->moved_from[c->place[n->arg[0]]] = true;
}

/* Which values the part may load, which it uses itself, and which it can make again; from the last of the
 * program to the first, in which order it notes the axis that it takes apart. It looks behind a few stored
 * values and no further: else a part of the last layer would look through all layers, by way of the value
 * that each adds to. And what is as much work again as this is loaded: else each part of a long chain would
 * make all of it that is before it. */
static void find_values(chooser *c, int q) {
    enum { MOST_BEHIND = 4, MOST_WORK = 64, EXPENSIVE = 8 };
    epi_placer *s = c->s;
    epi_placer_part part = s->parts[q];
    epi_node_list heap = {s->scratch, 0};
    const epi_node_list *own = &c->parts[q].own;
    c->values.count = 0;
    s->visits.round++;
    for (int i = 0; i < own->count && !part.recurrence; i++) /* that reads its operands, and nothing else */
        for (int a = 0; a < 3 && !epi_op_is_product(s->g->nodes[own->at[i]].op); a++)
            offer(c, q, s->g->nodes[own->at[i]].arg[a], true, 0, 0, &heap);
    for (int i = 0; i < own->count; i++)
        note_moved(c, &part, own->at[i]);
    for (int i = 0; part.attention && i < part.attention->plan.inner.count; i++) {
        const epi_node *n = &s->g->nodes[part.attention->plan.inner.at[i]];
        for (int a = 0; a < 3 && !epi_op_is_product(n->op); a++)
            offer(c, q, n->arg[a], true, 0, 0, &heap);
    }
    while (heap.count) {
        int node = epi_heap_take(heap.at, &heap.count, is_later, NULL),
            behind = c->behind[c->place[node]] + s->forced[node];
        int work = c->work[c->place[node]] + (epi_ops[s->g->nodes[node].op].expensive ? EXPENSIVE : 1);
        bool near = behind <= MOST_BEHIND && work <= MOST_WORK;
        bool opens = (near || isinf(price(c, q, node))) && part.kind != EPI_KIND_PASS &&
                     !c->moved_from[c->place[node]] && can_remake(s, &part, node);
        c->recomputable[c->place[node]] = opens;
        for (int a = 0; a < 3 && opens; a++)
            offer(c, q, s->g->nodes[node].arg[a], false, behind, work, &heap);
        if (opens)
            note_moved(c, &part, node);
    }
}

static bool contains(const epi_node_list *list, int node) {
    int low = 0, high = list->count;
    while (low < high) {
        int at = (low + high) / 2;
        if (list->at[at] == node)
            return true;
        *(list->at[at] < node ? &low : &high) = list->at[at] < node ? at + 1 : at;
    }
    return false;
}

/* Counts what the part loads, or no longer loads (by -1): in bytes, and what is stored for it. */
static void count_loads(chooser *c, int q, int by) {
    const epi_node_list *loads = &c->parts[q].loads;
    for (int i = 0; i < loads->count; i++) {
        int node = loads->at[i], before = c->loaded[node];
        double bytes = epi_placer_bytes(c->s, node);
        c->loaded[node] += by;
        c->moved += by * bytes;
        epi_cut_placement_kind kind = c->s->placement[node].kind;
        if (kind == EPI_PLACED_INPUT || kind == EPI_PLACED_VIEW || c->required[node])
            continue;
        c->s->forced[node] = c->loaded[node] > 0;
        if ((before > 0) != (c->loaded[node] > 0))
            c->moved += by * bytes;
    }
}

/* The part loads what lies between the marked vertices and the others, and its product's operands. */
static bool set_loads(chooser *c, int q) {
    const epi_graph *g = c->s->g;
    const epi_placer_part *p = &c->s->parts[q];
    int count = 0;
    int operands[(EPI_MAX_TERMS + 1) * EPI_PRODUCT_READS + EPI_ATTENTION_OPERANDS + EPI_RECURRENCE_OPERANDS],
        operand_count = 0;
    int products[EPI_MAX_TERMS + 1] = {p->product, p->pair}, product_count = 2;
    for (int i = 0; i < p->added_count; i++)
        products[product_count++] = p->added[i];
    for (int i = 0; i < product_count && !p->attention; i++)
        if (products[i] != EPI_NO_NODE)
            operand_count += epi_product_reads(g, products[i], operands + operand_count);
    if (p->attention)
        operand_count = epi_attention_operands(&p->attention->plan, operands);
    if (p->recurrence)
        operand_count = epi_recurrence_operands(p->recurrence, operands);
    int *at = epi_arena_alloc(c->arena, (size_t)(c->values.count + operand_count + 1) * sizeof *at);
    if (!at)
        return false;
    for (int i = 0; i < c->values.count; i++)
        if (c->f.seen[epi_flow_leaves(i)] && !c->f.seen[epi_flow_enters(i)])
            at[count++] = c->values.at[i];
    for (int k = 0; k < operand_count; k++) {
        bool there = epi_op_is_free(g->nodes[operands[k]].op) || c->s->inner[operands[k]];
        for (int i = 0; i < count; i++)
            there |= at[i] == operands[k];
        if (!there)
            at[count++] = operands[k];
    }
    c->parts[q].loads = (epi_node_list){at, count};
    epi_list_sort(&c->parts[q].loads);
    count_loads(c, q, 1);
    return true;
}

/* Chooses what part q loads; false: it cannot be had, or there is no memory. */
static bool choose(chooser *c, int q) {
    const epi_graph *g = c->s->g;
    epi_flow *f = &c->f;
    count_loads(c, q, -1);
    c->parts[q].loads.count = 0;
    find_values(c, q);
    int vertices = EPI_FLOW_FIRST + 2 * c->values.count;
    f->edge_count = 0;
    for (int i = 0; i < vertices; i++)
        f->first[i] = -1;
    for (int i = 0; i < c->values.count; i++) {
        int node = c->values.at[i];
        epi_flow_add(f, epi_flow_enters(i), epi_flow_leaves(i), price(c, q, node));
        if (c->wanted[i])
            epi_flow_add(f, epi_flow_leaves(i), EPI_FLOW_SINK, INFINITY);
        if (!c->recomputable[i]) {
            epi_flow_add(f, EPI_FLOW_SOURCE, epi_flow_enters(i), INFINITY);
            continue;
        }
        for (int a = 0; a < 3; a++) {
            int arg = g->nodes[node].arg[a];
            if (arg != EPI_NO_NODE && c->s->visits.seen[arg] == c->s->visits.round)
                epi_flow_add(f, epi_flow_leaves(c->place[arg]), epi_flow_enters(i), INFINITY);
        }
    }
    if (!epi_flow_fill(f, vertices))
        return false;
    epi_flow_mark_near(f, vertices);
    return set_loads(c, q);
}

/* ---- without a value ---- */

/* Tries to do without storing the value: its users choose again, and what they chose before comes back if
 * that moves no fewer bytes. `old` has room for as many lists as there are parts. */
static bool do_without(chooser *c, int node, epi_node_list *old) {
    double before = c->moved;
    bool ok = true;
    int *users = c->users, count = 0;
    for (int q = c->s->placement[node].part; q < c->s->part_count; q++)
        if (contains(&c->parts[q].loads, node)) {
            old[count] = c->parts[q].loads;
            users[count++] = q;
        }
    c->forbidden[node] = true;
    for (int u = 0; u < count && ok; u++)
        ok = choose(c, users[u]);
    if (ok && c->moved < before)
        return true;
    c->forbidden[node] = false;
    for (int u = 0; u < count; u++) {
        count_loads(c, users[u], -1);
        c->parts[users[u]].loads = old[u];
        count_loads(c, users[u], 1);
    }
    return !c->arena->failed;
}

static bool do_without_some(chooser *c) {
    epi_node_list *old = epi_arena_alloc(c->arena, ((size_t)c->s->part_count + 1) * sizeof *old);
    bool ok = old != NULL;
    for (int i = 0; i < c->s->g->node_count && ok; i++)
        if (c->s->forced[i] && !c->required[i])
            ok = do_without(c, i, old);
    return ok;
}

/* ---- all parts ---- */

/* Lists the values that each part makes itself. */
static bool list_own(chooser *c) {
    epi_placer *s = c->s;
    int *count = epi_arena_alloc(c->arena, ((size_t)s->part_count + 1) * sizeof *count);
    for (int pass = 0; pass < 2 && count; pass++)
        for (int i = 0; i < s->g->node_count; i++) {
            epi_cut_placement at = s->placement[i];
            if (!s->g->live[i] || (at.kind != EPI_PLACED_TILE && at.kind != EPI_PLACED_AFTER))
                continue;
            epi_node_list *own = &c->parts[at.part].own;
            if (pass == 0)
                count[at.part]++;
            else if (own->at || (own->at = epi_arena_alloc(c->arena, (size_t)count[at.part] * sizeof(int))))
                own->at[own->count++] = i;
        }
    return !c->arena->failed;
}

static bool allocate(chooser *c) {
    size_t nodes = (size_t)c->s->g->node_count + 1, vertices = EPI_FLOW_FIRST + 2 * nodes;
    c->parts = epi_arena_alloc(c->arena, ((size_t)c->s->part_count + 1) * sizeof *c->parts);
    c->users = epi_arena_alloc(c->arena, ((size_t)c->s->part_count + 1) * sizeof *c->users);
    c->forbidden = epi_arena_alloc(c->arena, nodes);
    c->required = epi_arena_alloc(c->arena, nodes);
    c->loaded = epi_arena_alloc(c->arena, nodes * sizeof *c->loaded);
    c->values.at = epi_arena_alloc(c->arena, nodes * sizeof *c->values.at);
    c->place = epi_arena_alloc(c->arena, nodes * sizeof *c->place);
    c->wanted = epi_arena_alloc(c->arena, nodes);
    c->recomputable = epi_arena_alloc(c->arena, nodes);
    c->moved_from = epi_arena_alloc(c->arena, nodes);
    c->behind = epi_arena_alloc(c->arena, nodes * sizeof *c->behind);
    c->work = epi_arena_alloc(c->arena, nodes * sizeof *c->work);
    c->f.edges = epi_arena_alloc(c->arena, 2 * 5 * nodes * sizeof *c->f.edges);
    c->f.first = epi_arena_alloc(c->arena, vertices * sizeof *c->f.first);
    c->f.seen = epi_arena_alloc(c->arena, vertices * sizeof *c->f.seen);
    c->f.queue = epi_arena_alloc(c->arena, vertices * sizeof *c->f.queue);
    return !c->arena->failed;
}

epi_part_values *epi_placer_loads(epi_arena *arena, epi_placer *s) {
    chooser c = {.arena = arena, .s = s};
    if (!allocate(&c) || !list_own(&c))
        return NULL;
    memcpy(c.required, s->forced, (size_t)s->g->node_count);
    bool ok = true;
    for (int q = 0; q < s->part_count && ok; q++)
        ok = choose(&c, q);
    return ok && do_without_some(&c) ? c.parts : NULL;
}
