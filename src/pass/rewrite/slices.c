/* slices.c: moves slices from results to inputs.
 *
 * If a value is used only in slices along one axis, gather(z, 0, C) and gather(z, 2, C), it is not computed
 * as a whole. Its operands are sliced instead, and the value is computed once for each slice. So a packed
 * projection becomes products of slices of its weight, and a slice of an input is a view.
 *
 * For gradients it works the other way round. scatter(d, 2, C) is where(index(C) == 2, d, 0). A product that
 * sums over C, with a sum of such scatters as operand, is a sum of products with slices. */
#include "pass/rewrite/slices.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 64 }; /* different slices of a program; others stay as they are */

typedef struct slice {
    epi_axis axis;
    int64_t at;
} slice;

typedef struct pusher {
    const epi_graph *in;
    slice slices[MOST];
    int count;
    int *slice_of;   /* by node: which slice a gather takes, or -1 */
    uint64_t *wants; /* by node: the slices of it that are made in its place; 0: it is made whole */
    int *sliced;     /* by node and slice: the value in the new graph */
} pusher;

/* ---- which values fall into slices ---- */

static int find_slice(pusher *p, epi_axis axis, int64_t at) {
    int i = 0;
    while (i < p->count && (!epi_axis_equal(p->slices[i].axis, axis) || p->slices[i].at != at))
        i++;
    if (i == p->count && i < MOST)
        p->slices[p->count++] = (slice){axis, at};
    return i < MOST ? i : -1;
}

/* Can slices of this value be made of slices of its operands? Rows that an index names can, along what the index has not. */
static bool falls_apart(const epi_graph *g, const epi_node *n, epi_axis axis) {
    if (n->op == EPI_OP_GATHER)
        return epi_axes_find(&g->nodes[n->arg[0]].axes, axis) >= 0 && epi_axes_find(&n->over, axis) < 0 &&
               epi_axes_find(&g->nodes[n->arg[1]].axes, axis) < 0;
    switch (epi_ops[n->op].cls) {
    case EPI_CLASS_MAP:
    case EPI_CLASS_PRODUCT:
    case EPI_CLASS_REDUCE: return true;
    case EPI_CLASS_SPLIT:
    case EPI_CLASS_SCAN: return n->over.at[0].dim != axis.dim;
    default: return false;
    }
}

/* The slices that are wanted of a value, where nothing else of it is; else 0. Its users are looked at before. A
 * slice itself is made whole: of its operand there is what it takes, and no slices of that. */
static uint64_t wanted_slices(const pusher *p, int node) {
    const epi_graph *g = p->in;
    if (p->slice_of[node] >= 0)
        return 0;
    epi_use_list uses = epi_graph_uses(g, node);
    uint64_t wants = 0;
    for (int i = 0; i < uses.count; i++) {
        int user = uses.at[i].node;
        if (user == EPI_NO_NODE)
            return 0;
        uint64_t more = p->slice_of[user] >= 0 && uses.at[i].operand == 0 ? (uint64_t)1 << p->slice_of[user]
                                                                          : p->wants[user];
        if (!more)
            return 0;
        wants |= more;
    }
    int first = -1;
    for (int i = 0; i < p->count; i++)
        if (wants >> i & 1) {
            first = first < 0 ? i : first;
            if (!epi_axis_equal(p->slices[i].axis, p->slices[first].axis))
                return 0;
        }
    bool may = first >= 0 && epi_axes_find(&g->nodes[node].axes, p->slices[first].axis) >= 0;
    return may && falls_apart(g, &g->nodes[node], p->slices[first].axis) ? wants : 0;
}

/* ---- the new graph ---- */

/* "w_2", for a slice of w, unless an axis is called so. */
static const char *slice_name(const epi_graph *g, const char *name, int64_t at) {
    char text[160];
    snprintf(text, sizeof text, "%.120s_%ld", name ? name : "", (long)at);
    for (int d = 0; d < g->dim_count; d++)
        if (!strcmp(g->dims[d], text))
            return NULL;
    return name ? epi_arena_text(g->arena, text, strlen(text)) : NULL;
}

/* A slice of a value in the new graph; of positions it is the number itself: they are nowhere in memory. */
static int take(epi_graph *g, int value, slice s) {
    int count = g->node_count;
    if (!epi_graph_failed(g) && g->nodes[epi_graph_value(g, value)].op == EPI_OP_INDEX)
        return epi_graph_const(g, (double)s.at);
    int node = epi_graph_slice(g, value, s.axis, s.at);
    if (node >= count && !epi_graph_failed(g))
        g->nodes[node].name = slice_name(g, g->nodes[value].name, s.at);
    return node;
}

/* A slice of an old value in the new graph. */
static int slice_value(epi_rewrite *r, int node, int which) {
    const pusher *p = r->ctx;
    if (epi_axes_find(&p->in->nodes[node].axes, p->slices[which].axis) < 0)
        return r->fresh[node];
    return p->wants[node] ? p->sliced[node * p->count + which] : take(r->g, r->fresh[node], p->slices[which]);
}

/* The slice of a value that falls into slices, of slices of its operands. */
static int make_slice(epi_rewrite *r, int node, int which) {
    const pusher *p = r->ctx;
    const epi_node *n = &p->in->nodes[node];
    epi_node copy = *n;
    int arg[3];
    for (int a = 0; a < 3; a++)
        arg[a] = n->arg[a] == EPI_NO_NODE ? EPI_NO_NODE : slice_value(r, n->arg[a], which);
    copy.name = NULL;
    copy.axes = epi_axes_without(&n->axes, &(epi_axes){1, {p->slices[which].axis}});
    return epi_graph_rebuild(r->g, &copy, arg);
}

/* scatter(d, 2, C) of the new d. */
static int make_choice(epi_graph *g, int d, epi_axis axis, int64_t at) {
    int here =
        epi_graph_map2(g, EPI_OP_EQ, epi_graph_leaf(g, EPI_OP_INDEX, axis), epi_graph_const(g, (double)at));
    return epi_graph_map(g, EPI_OP_WHERE, here, d, epi_graph_const(g, 0));
}

/* Is the value a sum of scatters to numbers along one axis, which `over` has? */
static bool is_gathered(const epi_graph *g, int node, const epi_axes *over, int depth) {
    const epi_node *n = &g->nodes[node];
    int64_t at;
    if (n->op == EPI_OP_ADD && depth < 16)
        return is_gathered(g, n->arg[0], over, depth + 1) && is_gathered(g, n->arg[1], over, depth + 1);
    return n->op == EPI_OP_SCATTER && epi_graph_at_number(g, node, &at) &&
           epi_axes_find(over, n->over.at[0]) >= 0;
}

/* The product of such a sum with another value, term by term. */
static int sum_products(epi_rewrite *r, int product, int node, int other, bool first) {
    const epi_node *n = &r->in->nodes[node];
    int64_t at;
    if (n->op == EPI_OP_ADD) {
        int a = sum_products(r, product, n->arg[0], other, first),
            b = sum_products(r, product, n->arg[1], other, first);
        return epi_graph_map2(r->g, EPI_OP_ADD, a, b);
    }
    epi_graph_at_number(r->in, node, &at);
    int d = r->fresh[n->arg[0]], rest = take(r->g, r->fresh[other], (slice){n->over.at[0], at});
    epi_axes over = epi_axes_without(&r->in->nodes[product].over, &n->over);
    return epi_graph_contract(r->g, first ? d : rest, first ? rest : d, &over);
}

static int make_product(epi_rewrite *r, int node) {
    const pusher *p = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    for (int a = 0; a < 2; a++) {
        int other = n->arg[!a];
        if (n->over.count > 1 && is_gathered(r->in, n->arg[a], &n->over, 0) && !p->wants[other])
            return sum_products(r, node, n->arg[a], other, a == 0);
    }
    return EPI_NO_NODE;
}

/* A value that is made whole. */
static int make_value(epi_rewrite *r, int node) {
    const pusher *p = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    int64_t at;
    if (p->slice_of[node] >= 0)
        return slice_value(r, n->arg[0], p->slice_of[node]);
    if (n->op == EPI_OP_GATHER && epi_graph_at_number(r->in, node, &at))
        return take(r->g, r->fresh[n->arg[0]], (slice){n->over.at[0], at});
    if (n->op == EPI_OP_SCATTER && epi_graph_at_number(r->in, node, &at))
        return make_choice(r->g, r->fresh[n->arg[0]], n->over.at[0], at);
    int product = n->op == EPI_OP_MATMUL ? make_product(r, node) : EPI_NO_NODE;
    return product != EPI_NO_NODE || epi_graph_failed(r->g) ? product : epi_graph_copy(r->g, n, r->fresh);
}

/* A new value has what the text says of the old one. */
static void take_over(epi_graph *g, int node, const epi_node *old) {
    epi_node *n = &g->nodes[node];
    if (epi_op_is_leaf(n->op))
        return;
    bool is_view = n->op == EPI_OP_GATHER && g->nodes[n->arg[0]].op == EPI_OP_INPUT && n->name;
    if (!is_view) /* a part that takes a slice as input and stores it as it is needs two names */
        n->name = old->name ? old->name : n->name;
    epi_graph_store_as(g, node, old);
}

static int write_node(epi_rewrite *r, int node) {
    const pusher *p = r->ctx;
    int value = EPI_NO_NODE;
    for (int s = 0; s < p->count; s++)
        if (p->wants[node] >> s & 1)
            value = p->sliced[node * p->count + s] = make_slice(r, node, s);
    if (p->wants[node])
        return value; /* what takes it takes its slices */
    value = make_value(r, node);
    if (!epi_graph_failed(r->g))
        take_over(r->g, value, &r->in->nodes[node]);
    return value;
}

/* One round; false in `pushed` at its end: no slice went anywhere, so that a later round leaves the graph. */
static epi_status push_round(epi_arena *arena, const epi_graph **graph, bool first, bool *pushed,
                             epi_error *err) {
    const epi_graph *in = *graph;
    size_t nodes = (size_t)in->node_count + 1;
    pusher p = {.in = in};
    int64_t at;
    bool any = false;
    *pushed = false;
    for (int i = 0; i < in->node_count && !any; i++)
        any = in->live[i] && epi_graph_at_number(in, i, &at);
    if (!any)
        return EPI_OK;
    p.slice_of = epi_arena_alloc(arena, nodes * sizeof *p.slice_of);
    p.wants = epi_arena_alloc(arena, nodes * sizeof *p.wants);
    EPI_TRY(epi_has_memory(p.slice_of && p.wants, err));
    for (int i = 0; i < in->node_count; i++) {
        bool gathers = in->live[i] && in->nodes[i].op == EPI_OP_GATHER && epi_graph_at_number(in, i, &at);
        p.slice_of[i] = gathers ? find_slice(&p, in->nodes[i].over.at[0], at) : -1;
    }
    for (int i = in->node_count - 1; i >= 0; i--)
        if (in->live[i]) {
            p.wants[i] = wanted_slices(&p, i);
            *pushed |= p.wants[i] != 0;
        }
    if (!first && !*pushed)
        return EPI_OK;
    p.sliced = epi_arena_alloc(arena, nodes * (size_t)(p.count + 1) * sizeof *p.sliced);
    return p.sliced ? epi_graph_rewrite(arena, graph, write_node, &p, err)
                    : epi_fail(err, EPI_ERR_MEMORY, "out of memory");
}

/* A slice of a slice goes on in the next round: a value has at most so many axes. */
epi_status epi_slices_push(epi_arena *arena, const epi_graph **graph, epi_error *err) {
    bool pushed = true;
    for (int round = 0; round < EPI_MAX_AXES && pushed; round++)
        EPI_TRY(push_round(arena, graph, round == 0, &pushed, err));
    return EPI_OK;
}
