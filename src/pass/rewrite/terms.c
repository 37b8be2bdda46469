/* terms.c: merges terms that are added up into one sum.
 *
 *     x @ w + scale*((x @ a) @ b)    becomes    x @ w + (scale*(x @ a)) @ b
 *
 * Products that are added up are one product (plan.h), but not if a number scales one of them. The number
 * can scale an operand instead, if the program computes that operand: the stored operand then includes it.
 * All users of the operand, products and sums of products, must have this scale, or it would be stored
 * twice.
 *
 *     sum(a, X) + sum(b, X)    becomes    sum(a + b, X)
 *
 * Each sum of a tile costs registers, and partials in memory. This is done only if a and b depend on the
 * same products and reductions. Otherwise each is summed where it is computed, and neither has to be stored.
 */
#include "pass/rewrite/terms.h"

#include <string.h>

#include "pass/analyse/direction.h"

/* A product, or the sum of one, that a number scales, and what else it is multiplied by, or EPI_NO_NODE; or
 * none. */
typedef struct scaled {
    int product, number, rest;
} scaled;

static const scaled none = {EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE};

static bool used_once(const epi_graph *g, int node) {
    return epi_graph_uses(g, node).count == 1;
}

/* A number that is there before all else: an input, a constant, a size, or a function of one. */
static bool is_scalar(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    if (epi_op_is_map(n->op) && n->arg[1] == EPI_NO_NODE)
        n = &g->nodes[n->arg[0]];
    return !n->axes.count && (n->op == EPI_OP_INPUT || n->op == EPI_OP_CONST || n->op == EPI_OP_SIZE);
}

static scaled scaled_product(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    for (int a = 0; a < 2 && n->op == EPI_OP_MUL; a++) {
        int product = n->arg[a], by = n->arg[!a];
        epi_op op = g->nodes[product].op;
        if ((op != EPI_OP_MATMUL && op != EPI_OP_SUM) || !used_once(g, product))
            continue;
        if (is_scalar(g, by))
            return (scaled){product, by, EPI_NO_NODE};
        for (int b = 0; b < 2 && g->nodes[by].op == EPI_OP_MUL; b++)
            if (is_scalar(g, g->nodes[by].arg[b]))
                return (scaled){product, g->nodes[by].arg[b], g->nodes[by].arg[!b]};
    }
    return none;
}

/* A product that nothing but a number scales; or none. */
static scaled scaled_term(const epi_graph *g, int node) {
    scaled s = scaled_product(g, node);
    bool term = s.product != EPI_NO_NODE && s.rest == EPI_NO_NODE && g->nodes[s.product].op == EPI_OP_MATMUL;
    return term ? s : none;
}

/* Will the value be a product, or a sum of such, that nothing else wants? */
static bool is_term(const epi_graph *g, int node, int depth) {
    const epi_node *n = &g->nodes[node];
    if (!used_once(g, node) || depth == 8)
        return false;
    return n->op == EPI_OP_MATMUL || scaled_term(g, node).product != EPI_NO_NODE ||
           (n->op == EPI_OP_ADD && is_term(g, n->arg[0], depth + 1) && is_term(g, n->arg[1], depth + 1));
}

/* The two operands of a product, or of one that is summed; NULL: the node is neither. */
static const int *operands_of(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    if (n->op == EPI_OP_SUM && g->nodes[n->arg[0]].op == EPI_OP_MUL && used_once(g, n->arg[0]))
        return g->nodes[n->arg[0]].arg;
    return n->op == EPI_OP_MATMUL ? n->arg : NULL;
}

/* The product, or the sum of one, in which a user takes its operand: a factor is taken by the sum of the
 * factors' product, but a factor of what a product takes is none of the product's operands. */
static int product_of(const epi_graph *g, int user) {
    if (user == EPI_NO_NODE || g->nodes[user].op != EPI_OP_MUL || !used_once(g, user))
        return user;
    int sum = epi_graph_uses(g, user).at[0].node;
    return sum != EPI_NO_NODE && g->nodes[sum].op == EPI_OP_SUM ? sum : EPI_NO_NODE;
}

/* Is the operand computed, and taken by nothing but products, and sums of such, that this number scales, none
 * of which has another operand that is scaled already? */
static bool takes_scale(const epi_graph *g, int operand, int number, const int *scale) {
    epi_op op = g->nodes[operand].op;
    epi_use_list uses = epi_graph_uses(g, operand);
    bool takes = epi_op_is_product(op) || epi_op_is_map(op);
    for (int i = 0; i < uses.count && takes; i++) {
        int product = product_of(g, uses.at[i].node);
        const int *both = product == EPI_NO_NODE ? NULL : operands_of(g, product);
        if (!both || !used_once(g, product))
            return false;
        int user = epi_graph_uses(g, product).at[0].node;
        takes = user != EPI_NO_NODE && scaled_product(g, user).product == product &&
                scaled_product(g, user).number == number && both[0] != both[1] &&
                scale[both[both[0] == operand]] == EPI_NO_NODE;
    }
    return takes;
}

/* Notes by operand the number that it is to be scaled by, and returns whether there is any. */
static bool find_scales(const epi_graph *g, const bool *forward, int *scale) {
    bool any = false;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        for (int a = 0; a < 2 && g->live[i] && n->op == EPI_OP_ADD; a++) {
            scaled s = scaled_term(g, n->arg[a]);
            if (s.product == EPI_NO_NODE || !is_term(g, n->arg[0], 0) || !is_term(g, n->arg[1], 0))
                continue;
            for (int side = 0; side < 2; side++) {
                int operand = g->nodes[s.product].arg[side];
                if (forward[operand] == forward[i] && takes_scale(g, operand, s.number, scale)) {
                    scale[operand] = s.number;
                    any = true;
                    break;
                }
            }
        }
    }
    return any;
}

/* ---- sums ---- */

enum { MOST_SOURCES = 8, MOST_DEPTH = 8 };

/* The products and reductions that a value is made of by maps alone, in order; count is negative where there
 * are too many to tell. */
typedef struct sources {
    int count, at[MOST_SOURCES];
} sources;

static void find_sources(const epi_graph *g, int node, int depth, sources *out) {
    const epi_node *n = &g->nodes[node];
    if (out->count < 0 || epi_op_is_leaf(n->op))
        return;
    if (epi_op_is_map(n->op) && depth < MOST_DEPTH) {
        for (int a = 0; a < epi_node_operands(n); a++)
            find_sources(g, n->arg[a], depth + 1, out);
        return;
    }
    int at = 0;
    while (at < out->count && out->at[at] < node)
        at++;
    if (at < out->count && out->at[at] == node)
        return;
    if (out->count == MOST_SOURCES || epi_op_is_map(n->op)) {
        out->count = -1;
        return;
    }
    memmove(&out->at[at + 1], &out->at[at], (size_t)(out->count - at) * sizeof *out->at);
    out->at[at] = node;
    out->count++;
}

/* Is the value such a sum, or a sum or difference of such, that nothing else wants? */
static bool is_sum_like(const epi_graph *g, int node, const epi_node *like, const sources *from, int depth) {
    const epi_node *n = &g->nodes[node];
    sources own = {0};
    if (depth == MOST_DEPTH || !used_once(g, node) || n->has_stored)
        return false;
    if (epi_op_has_terms(n->op))
        return is_sum_like(g, n->arg[0], like, from, depth + 1) &&
               is_sum_like(g, n->arg[1], like, from, depth + 1);
    if (n->op != like->op || !epi_axes_same_set(&n->over, &like->over) ||
        !epi_axes_same_set(&g->nodes[n->arg[0]].axes, &g->nodes[like->arg[0]].axes))
        return false;
    find_sources(g, n->arg[0], 0, &own);
    return own.count >= 0 && own.count == from->count &&
           !memcmp(own.at, from->at, (size_t)own.count * sizeof *own.at);
}

/* The first of the sums that become one where `node` adds them up; NULL where they do not. */
static const epi_node *sums_of(const epi_graph *g, const bool *forward, int node) {
    const epi_node *n = &g->nodes[node], *first = n;
    sources from = {0};
    for (int at = node, depth = 0; epi_op_has_terms(first->op) && depth < MOST_DEPTH; depth++) {
        at = first->arg[0];
        if (forward[at] != forward[node])
            return NULL;
        first = &g->nodes[at];
    }
    if (first == n || !epi_ops[first->op].adds)
        return NULL;
    find_sources(g, first->arg[0], 0, &from);
    bool all = from.count >= 0 && is_sum_like(g, n->arg[0], first, &from, 0) &&
               is_sum_like(g, n->arg[1], first, &from, 0) && forward[n->arg[0]] == forward[n->arg[1]];
    return all ? first : NULL;
}

static bool find_sums(const epi_graph *g, const bool *forward) {
    for (int i = 0; i < g->node_count; i++)
        if (g->live[i] && sums_of(g, forward, i))
            return true;
    return false;
}

/* What is summed by a value that is_sum_like. */
static int write_terms(epi_rewrite *r, int node) {
    const epi_node *n = &r->in->nodes[node];
    if (!epi_op_has_terms(n->op))
        return r->fresh[n->arg[0]];
    int a = write_terms(r, n->arg[0]), b = write_terms(r, n->arg[1]);
    return epi_graph_map2(r->g, n->op, a, b);
}

/* ---- the new graph ---- */

typedef struct gathering {
    bool *forward; /* by node */
    int *scale;    /* by node: the number that it is scaled by, or EPI_NO_NODE */
} gathering;

/* A number of the old graph in the new one, which may not have it yet. */
static int write_number(epi_graph *g, const epi_node *n, const epi_graph *in) {
    if (n->op == EPI_OP_INPUT)
        return epi_graph_input(g, n->tensor);
    int arg[3] = {EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE};
    if (n->arg[0] != EPI_NO_NODE)
        arg[0] = write_number(g, &in->nodes[n->arg[0]], in);
    return epi_graph_value(g, epi_graph_rebuild(g, n, arg));
}

/* A node of the old graph in the new one: scaled itself, without the scale that went to its operand, or one
 * sum of what sums added up. */
static int write_node(epi_rewrite *r, int node) {
    const gathering *of = r->ctx;
    const epi_node *n = &r->in->nodes[node], *sum = sums_of(r->in, of->forward, node);
    int value = EPI_NO_NODE;
    if (sum)
        value = epi_graph_reduce(r->g, sum->op, write_terms(r, node), &sum->over);
    scaled s = scaled_product(r->in, node);
    const int *both = s.product == EPI_NO_NODE ? NULL : operands_of(r->in, s.product);
    if (both && (of->scale[both[0]] == s.number || of->scale[both[1]] == s.number))
        value = s.rest == EPI_NO_NODE
                    ? r->fresh[s.product]
                    : epi_graph_map2(r->g, EPI_OP_MUL, r->fresh[s.product], r->fresh[s.rest]);
    if (value == EPI_NO_NODE && of->scale[node] != EPI_NO_NODE) {
        int copy = epi_graph_copy(r->g, n, r->fresh),
            number = write_number(r->g, &r->in->nodes[of->scale[node]], r->in);
        value = epi_graph_map2(r->g, EPI_OP_MUL, copy, number);
    }
    if (value != EPI_NO_NODE)
        epi_graph_store_as(r->g, value, n);
    return value;
}

epi_status epi_gather_terms(epi_arena *arena, const epi_graph **graph, bool products, epi_error *err) {
    const epi_graph *in = *graph;
    size_t nodes = (size_t)in->node_count + 1;
    gathering of = {epi_arena_alloc(arena, nodes), epi_arena_alloc(arena, nodes * sizeof *of.scale)};
    EPI_TRY(epi_has_memory(of.forward && of.scale, err));
    for (int i = 0; i < in->node_count; i++)
        of.scale[i] = EPI_NO_NODE;
    epi_find_forward(in, of.forward);
    bool any = (products && find_scales(in, of.forward, of.scale)) || find_sums(in, of.forward);
    return any ? epi_graph_rewrite(arena, graph, write_node, &of, err) : EPI_OK;
}
