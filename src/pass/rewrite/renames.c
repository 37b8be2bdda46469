/* renames.c: moves renames of sums of products to the operands, where they cost nothing.
 *
 * Queries and keys come from the same rows under two names, so their gradients have two names, too. */
#include "pass/rewrite/renames.h"

/* Is the value a sum of products, or one, that nothing else wants, and can it have this axis? Not of long
 * sums: a tile adds up a few. */
static bool can_have(const epi_graph *g, int node, epi_axis axis, int depth) {
    enum { DEEPEST = 16 };
    const epi_node *n = &g->nodes[node];
    if (depth == DEEPEST || epi_graph_uses(g, node).count != 1 ||
        (n->op != EPI_OP_ADD && n->op != EPI_OP_MATMUL))
        return false;
    for (int a = 0; a < 2; a++)
        if (epi_axes_find_dim(&g->nodes[n->arg[a]].axes, axis.dim) >= 0 ||
            (n->op == EPI_OP_ADD && !can_have(g, n->arg[a], axis, depth + 1)))
            return false;
    return true;
}

/* Is it renamed to be added to something? */
static bool is_pushed(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    if (n->op != EPI_OP_RENAME || epi_graph_uses(g, node).count != 1)
        return false;
    int user = epi_graph_uses(g, node).at[0].node;
    return user != EPI_NO_NODE && g->nodes[user].op == EPI_OP_ADD && can_have(g, n->arg[0], n->over.at[1], 0);
}

/* The value by its new name, in the new graph. */
static int push(epi_rewrite *r, int node, const epi_axes *names) {
    const epi_node *n = &r->in->nodes[node];
    epi_graph *g = r->g;
    int arg[2] = {EPI_NO_NODE, EPI_NO_NODE};
    for (int a = 0; a < 2 && !epi_graph_failed(g); a++)
        if (n->op == EPI_OP_ADD)
            arg[a] = push(r, n->arg[a], names);
        else if (epi_axes_find(&r->in->nodes[n->arg[a]].axes, names->at[0]) < 0)
            arg[a] = r->fresh[n->arg[a]];
        else
            arg[a] = epi_graph_rename(g, r->fresh[n->arg[a]], names->at[0], names->at[1]);
    g->place = n->place;
    int value = n->op == EPI_OP_ADD ? epi_graph_map2(g, n->op, arg[0], arg[1])
                                    : epi_graph_contract(g, arg[0], arg[1], &n->over);
    return epi_graph_stand_for(g, value, n);
}

static int write_node(epi_rewrite *r, int node) {
    const bool *pushed = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    int value = pushed[node] ? push(r, n->arg[0], &n->over) : EPI_NO_NODE;
    if (pushed[node])
        epi_graph_store_as(r->g, value, n);
    return value;
}

epi_status epi_renames_push(epi_arena *arena, const epi_graph **graph, epi_error *err) {
    const epi_graph *in = *graph;
    bool *pushed = epi_arena_alloc(arena, (size_t)in->node_count + 1), any = false;
    for (int i = 0; i < in->node_count && pushed; i++) {
        pushed[i] = in->live[i] && is_pushed(in, i);
        any |= pushed[i];
    }
    EPI_TRY(epi_has_memory(pushed, err));
    return any ? epi_graph_rewrite(arena, graph, write_node, pushed, err) : EPI_OK;
}
/* ---- maps of renamed sums of products ---- */

typedef struct pull {
    const epi_graph *in;
    int *chain; /* by node: the first rename by whose old name it is made, or EPI_NO_NODE */
    int *inner; /* by node: its value by that name, in the new graph */
} pull;

/* Is a product renamed to an axis that it is summed over? Its operands have that axis, and cannot be renamed. Then this is the
 * first such rename by the same names, else EPI_NO_NODE. */
static int begun_chain(const pull *p, int node) {
    const epi_graph *g = p->in;
    const epi_node *n = &g->nodes[node];
    if (n->op != EPI_OP_RENAME || g->nodes[n->arg[0]].op != EPI_OP_MATMUL ||
        epi_axes_find(&g->nodes[n->arg[0]].over, n->over.at[1]) < 0)
        return EPI_NO_NODE;
    for (int i = 0; i < node; i++)
        if (p->chain[i] == i && epi_axis_equal(g->nodes[i].over.at[0], n->over.at[0]) &&
            epi_axis_equal(g->nodes[i].over.at[1], n->over.at[1]))
            return i;
    return node;
}

/* Can it be made by the other name at no cost? It lacks the axis, or is a few maps of inputs. */
static bool can_be_renamed(const epi_graph *g, int node, const epi_axes *names, int *left) {
    const epi_node *n = &g->nodes[node];
    if (!epi_axes_count_in(&n->axes, names))
        return true;
    if (epi_axes_has_dim(&n->axes, names->at[0].dim) || epi_axes_find(&n->axes, names->at[1]) < 0 ||
        (*left)-- == 0 || n->has_stored)
        return false;
    bool can = n->op == EPI_OP_INPUT || n->op == EPI_OP_INDEX || epi_op_is_map(n->op);
    for (int a = 0; a < 3 && can; a++)
        can = n->arg[a] == EPI_NO_NODE || can_be_renamed(g, n->arg[a], names, left);
    return can;
}

/* The chain that a map goes on with, or EPI_NO_NODE: all that it takes can have the chain's name, and nothing but outputs and
 * maps of the chain takes it. */
static int chain_of(const pull *p, int node) {
    enum { MOST = 16 };
    const epi_graph *g = p->in;
    const epi_node *n = &g->nodes[node];
    int chain = EPI_NO_NODE, left = MOST;
    for (int a = 0; a < 3 && chain == EPI_NO_NODE; a++)
        chain = n->arg[a] == EPI_NO_NODE ? EPI_NO_NODE : p->chain[n->arg[a]];
    if (chain == EPI_NO_NODE || !epi_op_is_map(n->op) || n->has_stored)
        return EPI_NO_NODE;
    const epi_axes *names = &g->nodes[chain].over;
    for (int a = 0; a < 3; a++)
        if (n->arg[a] != EPI_NO_NODE && p->chain[n->arg[a]] != chain &&
            !can_be_renamed(g, n->arg[a], names, &left))
            return EPI_NO_NODE;
    return chain;
}

static bool is_left(const pull *p, int node) {
    epi_use_list uses = epi_graph_uses(p->in, node);
    bool left = false;
    for (int i = 0; i < uses.count && p->in->nodes[node].op != EPI_OP_RENAME; i++)
        left |= uses.at[i].node != EPI_NO_NODE && p->chain[uses.at[i].node] != p->chain[node];
    return left;
}

/* Finds the chains. Whoever is taken by something else leaves its chain, and then those that it is made for do. */
static bool find_chains(pull *p) {
    const epi_graph *g = p->in;
    bool any = false, changed = true;
    for (int i = 0; i < g->node_count; i++)
        p->chain[i] = !g->live[i]                       ? EPI_NO_NODE
                      : g->nodes[i].op == EPI_OP_RENAME ? begun_chain(p, i)
                                                        : chain_of(p, i);
    while (changed) {
        changed = any = false;
        for (int i = 0; i < g->node_count; i++) {
            if (p->chain[i] == EPI_NO_NODE || g->nodes[i].op == EPI_OP_RENAME)
                continue;
            if (is_left(p, i) || chain_of(p, i) != p->chain[i]) {
                p->chain[i] = EPI_NO_NODE;
                changed = true;
            }
            any |= p->chain[i] != EPI_NO_NODE;
        }
    }
    return any;
}

/* A value by the product's name. */
static int by_name(const epi_rewrite *r, int node, const epi_axes *names) {
    const pull *p = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    if (p->chain[node] != EPI_NO_NODE)
        return p->inner[node];
    if (!epi_axes_count_in(&n->axes, names))
        return r->fresh[node];
    if (!epi_op_is_map(n->op))
        return epi_graph_rename(r->g, r->fresh[node], names->at[1], names->at[0]);
    int arg[3] = {EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE};
    for (int a = 0; a < 3 && !epi_graph_failed(r->g); a++)
        if (n->arg[a] != EPI_NO_NODE)
            arg[a] = by_name(r, n->arg[a], names);
    r->g->place = n->place;
    return epi_graph_map_like(r->g, n, arg);
}

static int write_chain(epi_rewrite *r, int node) {
    const pull *p = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    if (p->chain[node] == EPI_NO_NODE)
        return EPI_NO_NODE;
    const epi_axes *names = &r->in->nodes[p->chain[node]].over;
    int arg[3] = {EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE};
    for (int a = 0; a < 3 && n->op != EPI_OP_RENAME && !epi_graph_failed(r->g); a++)
        if (n->arg[a] != EPI_NO_NODE)
            arg[a] = by_name(r, n->arg[a], names);
    r->g->place = n->place;
    p->inner[node] = n->op == EPI_OP_RENAME ? r->fresh[n->arg[0]] : epi_graph_map_like(r->g, n, arg);
    return epi_graph_stand_for(r->g, epi_graph_rename(r->g, p->inner[node], names->at[0], names->at[1]), n);
}

epi_status epi_renames_pull(epi_arena *arena, const epi_graph **graph, epi_error *err) {
    size_t count = (size_t)(*graph)->node_count + 1;
    pull p = {*graph, epi_arena_alloc(arena, count * sizeof *p.chain),
              epi_arena_alloc(arena, count * sizeof *p.inner)};
    EPI_TRY(epi_has_memory(p.chain && p.inner ? p.chain : NULL, err));
    return find_chains(&p) ? epi_graph_rewrite(arena, graph, write_chain, &p, err) : EPI_OK;
}
