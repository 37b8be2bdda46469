/* scale_terms.c: x @ w + scale*((x @ a) @ b) becomes x @ w + (scale*(x @ a)) @ b.
 *
 * Products that are added up are one product (plan.h), but not where a number scales one of them. That number
 * may as well scale an operand, where this is computed: it is multiplied where the operand is made, and
 * stored with it. All that takes the operand must be scaled so, or it would be stored twice. */
#include "pass/scale_terms.h"

#include <string.h>

#include "pass/direction.h"

/* A product that a number scales; or none. */
typedef struct scaled {
    int product, number;
} scaled;

static const scaled none = {EPI_NO_NODE, EPI_NO_NODE};

static bool used_once(const epi_graph *g, int node) {
    return epi_graph_uses(g, node).count == 1;
}

static bool is_number(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    return !n->axes.count && (n->op == EPI_OP_INPUT || n->op == EPI_OP_CONST);
}

static scaled scaled_product(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    for (int a = 0; a < 2 && n->op == EPI_OP_MUL; a++)
        if (g->nodes[n->arg[a]].op == EPI_OP_MATMUL && used_once(g, n->arg[a]) && is_number(g, n->arg[!a]))
            return (scaled){n->arg[a], n->arg[!a]};
    return none;
}

/* Will the value be a product, or a sum of such, that nothing else wants? */
static bool is_term(const epi_graph *g, int node, int depth) {
    const epi_node *n = &g->nodes[node];
    if (!used_once(g, node) || depth == 8)
        return false;
    return n->op == EPI_OP_MATMUL || scaled_product(g, node).product != EPI_NO_NODE ||
           (n->op == EPI_OP_ADD && is_term(g, n->arg[0], depth + 1) && is_term(g, n->arg[1], depth + 1));
}

/* Is the operand computed, and taken by nothing but products that this number scales, none of which has
 * another operand that is scaled already? */
static bool takes_scale(const epi_graph *g, int operand, int number, const int *scale) {
    epi_op_class cls = epi_ops[g->nodes[operand].op].cls;
    epi_use_list uses = epi_graph_uses(g, operand);
    bool takes = cls == EPI_CLASS_PRODUCT || cls == EPI_CLASS_MAP;
    for (int i = 0; i < uses.count && takes; i++) {
        int product = uses.at[i].node;
        takes = product != EPI_NO_NODE && g->nodes[product].op == EPI_OP_MATMUL && used_once(g, product);
        int user = takes ? epi_graph_uses(g, product).at[0].node : EPI_NO_NODE;
        takes = user != EPI_NO_NODE && scaled_product(g, user).product == product &&
                scaled_product(g, user).number == number &&
                scale[g->nodes[product].arg[!uses.at[i].operand]] == EPI_NO_NODE;
    }
    return takes;
}

/* Notes by operand the number that it is to be scaled by, and answers whether there is any. */
static bool find_scales(const epi_graph *g, const bool *forward, int *scale) {
    bool any = false;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        for (int a = 0; a < 2 && g->live[i] && n->op == EPI_OP_ADD; a++) {
            scaled s = scaled_product(g, n->arg[a]);
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

/* A node of the old graph in the new one: scaled itself, or without the scale that went to its operand. */
static int write_node(epi_graph *g, const epi_graph *in, int node, const int *scale, const int *fresh) {
    const epi_node *n = &in->nodes[node];
    scaled s = scaled_product(in, node);
    if (s.product != EPI_NO_NODE)
        for (int a = 0; a < 2; a++)
            if (scale[in->nodes[s.product].arg[a]] == s.number)
                return fresh[s.product];
    int arg[3];
    for (int a = 0; a < 3; a++)
        arg[a] = n->arg[a] == EPI_NO_NODE ? EPI_NO_NODE : fresh[n->arg[a]];
    int copy = n->op == EPI_OP_INPUT ? epi_graph_input(g, n->tensor) : epi_graph_again(g, n, arg);
    if (scale[node] == EPI_NO_NODE || epi_graph_failed(g))
        return copy;
    double value = in->nodes[scale[node]].value;
    int number = in->nodes[scale[node]].op == EPI_OP_CONST
                     ? epi_graph_const(g, value)
                     : epi_graph_input(g, in->nodes[scale[node]].tensor);
    int times = epi_graph_value(g, epi_graph_map(g, EPI_OP_MUL, copy, number, EPI_NO_NODE));
    if (times != EPI_NO_NODE && n->has_stored) {
        g->nodes[times].has_stored = true;
        g->nodes[times].stored = n->stored;
    }
    return times;
}

epi_status epi_scale_terms(epi_arena *arena, const epi_graph *in, const epi_graph **out, epi_error *err) {
    size_t nodes = (size_t)in->node_count + 1, tensors = (size_t)in->tensor_count + 1;
    int *scale = epi_arena_alloc(arena, nodes * sizeof *scale),
        *fresh = epi_arena_alloc(arena, nodes * sizeof *fresh);
    bool *forward = epi_arena_alloc(arena, nodes);
    epi_graph *g = epi_arena_alloc(arena, sizeof *g);
    *out = in;
    if (!scale || !fresh || !forward || !g)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int i = 0; i < in->node_count; i++)
        scale[i] = EPI_NO_NODE;
    epi_find_forward(in, forward);
    if (!find_scales(in, forward, scale))
        return EPI_OK;
    *g = (epi_graph){.arena = arena, .tensor_count = in->tensor_count, .input_count = in->input_count};
    epi_graph_take_dims(g, in);
    g->tensors = epi_arena_alloc(arena, tensors * sizeof *g->tensors);
    if (!g->tensors)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    memcpy(g->tensors, in->tensors, (tensors - 1) * sizeof *g->tensors);
    for (int i = 0; i < in->node_count && !epi_graph_failed(g); i++) {
        g->place = in->nodes[i].place;
        if (in->live[i] || in->nodes[i].op == EPI_OP_INPUT)
            fresh[i] = write_node(g, in, i, scale, fresh);
    }
    for (int t = 0; t < g->tensor_count && !epi_graph_failed(g); t++)
        g->tensors[t].node = epi_graph_value(g, fresh[in->tensors[t].node]);
    epi_graph_finish(g);
    if (arena->failed || g->error.status != EPI_OK)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    *out = g;
    return EPI_OK;
}
