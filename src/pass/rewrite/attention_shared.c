/* attention_shared.c: gradients of scores that heads share, computed for each head separately.
 *
 * If heads share scores, the gradient of the scores is a sum over heads, and the gradients of queries and
 * keys are products of that sum, which is as large as the scores. In another order of the sums
 *
 *     sum(sum(x, H)*k, U)  ->  sum(sum(x*k, U), H)
 *
 * where x is computed from a product with all of its axes. Then x*k is a value product, and x is never in
 * memory. What is stored instead has the features of k in place of U. So this is done if k has no more
 * features than that, and if the backend may compute all such products as attention. */
#include "pass/analyse/cost.h"
#include "pass/rewrite/attention_form.h"

typedef struct shared {
    const epi_spec *spec;
    int64_t sizes[EPI_MAX_DIMS];
    int count; /* products that were written anew */
} shared;

/* Is it made, by a few maps, of a product that has all of its axes? */
static bool is_of_product(const epi_graph *g, int node, const epi_axes *full, int depth) {
    enum { NEAR = 4 };
    const epi_node *n = &g->nodes[node];
    if (!epi_axes_same_set(&n->axes, full))
        return false;
    bool of = n->op == EPI_OP_MATMUL && depth > 0;
    for (int a = 0; a < epi_node_operands(n) && !of && epi_op_is_map(n->op) && depth < NEAR; a++)
        of = is_of_product(g, n->arg[a], full, depth + 1);
    return of;
}

/* Of a product the operand that is such a sum, or -1. */
static int summed_side(const shared *s, const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    for (int side = 0; side < 2 && n->op == EPI_OP_MATMUL; side++) {
        const epi_node *sum = &g->nodes[n->arg[side]];
        const epi_axes *other = &g->nodes[n->arg[!side]].axes;
        if (sum->op != EPI_OP_SUM || epi_axes_count_in(other, &sum->over))
            continue;
        const epi_axes *full = &g->nodes[sum->arg[0]].axes;
        epi_axes features = epi_axes_without(other, full);
        if (is_of_product(g, sum->arg[0], full, 0) &&
            epi_axes_size(&features, s->sizes) <= epi_axes_size(&n->over, s->sizes))
            return side;
    }
    return -1;
}

/* Is the sum wanted by such products alone? */
static bool is_for_products(const shared *s, const epi_graph *g, int sum) {
    epi_use_list uses = epi_graph_uses(g, sum);
    for (int i = 0; i < uses.count; i++) {
        int user = uses.at[i].node, side = user == EPI_NO_NODE ? -1 : summed_side(s, g, user);
        if (side < 0 || g->nodes[user].arg[side] != sum)
            return false;
    }
    return true;
}

static int write_node(epi_rewrite *r, int node) {
    shared *s = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    int side = summed_side(s, r->in, node);
    if (side < 0 || !is_for_products(s, r->in, n->arg[side]))
        return EPI_NO_NODE;
    const epi_node *sum = &r->in->nodes[n->arg[side]];
    int value = epi_graph_contract(r->g, r->fresh[sum->arg[0]], r->fresh[n->arg[!side]], &n->over);
    s->count++;
    return epi_graph_stand_for(r->g, epi_graph_reduce(r->g, EPI_OP_SUM, value, &sum->over), n);
}

epi_status epi_attention_apart(epi_arena *arena, epi_spec *spec, const epi_backend_limits *limits,
                               epi_error *err) {
    const epi_graph *in = spec->graph;
    epi_attentions before, after;
    shared s = {.spec = spec};
    bool any = false;
    epi_nominal_sizes(spec, s.sizes);
    for (int i = 0; i < in->node_count && !any; i++)
        any = in->live[i] && summed_side(&s, in, i) >= 0;
    if (!any)
        return EPI_OK;
    EPI_TRY(epi_has_memory(epi_attentions_find(arena, spec, limits, NULL, &before), err));
    EPI_TRY(epi_attention_rewrite(arena, spec, write_node, &s, err));
    if (spec->graph == in)
        return EPI_OK;
    EPI_TRY(epi_has_memory(epi_attentions_find(arena, spec, limits, NULL, &after), err));
    if (after.count < before.count + s.count)
        spec->graph = in;
    return EPI_OK;
}
