/* widen.c: what is stored in 8 bits is widened before a product takes it.
 *
 * No mainloop takes such operands, but every number of 8 bits is one of bf16, of f16 and of f32, so nothing is
 * rounded: it is converted to the type of the operand that it meets, or else to the storage type. What is made of it
 * before the product, as its scale times it, is a value like any other, and rounded where it is stored. */
#include "pass/rewrite/widen.h"

/* What the elements of a value are read from, where nobody computes them: an input, or a conversion. */
static int source_of(const epi_graph *g, int node) {
    for (;;) {
        const epi_node *n = &g->nodes[node];
        if (epi_ops[n->op].cls != EPI_CLASS_VIEW && n->op != EPI_OP_GATHER && !epi_op_is_half(n->op))
            return node;
        node = n->arg[0];
    }
}

/* The type in which an operand's elements are; of what is computed, the storage type. */
static epi_dtype type_of(const epi_spec *spec, int operand) {
    const epi_graph *g = spec->graph;
    const epi_node *n = &g->nodes[source_of(g, operand)];
    if (n->op == EPI_OP_INPUT)
        return spec->types[n->tensor];
    return n->has_stored ? n->stored : epi_ops[n->op].converts ? epi_ops[n->op].type : spec->type;
}

static bool is_widened(const epi_spec *spec, int operand) {
    epi_dtype type = type_of(spec, operand);
    return !epi_dtype_is_operand(type) && epi_dtype_holds(EPI_BF16, type);
}

/* The conversion of an operand that meets another. Two of 8 bits meet in 16. */
static epi_op conversion(const epi_spec *spec, int other) {
    epi_dtype type = is_widened(spec, other) ? EPI_BF16 : type_of(spec, other);
    if (epi_dtype_is_narrow(spec->type) || !epi_dtype_is_narrow(type))
        type = spec->type;
    return type == EPI_BF16 ? EPI_OP_BF16 : type == EPI_F16 ? EPI_OP_F16 : EPI_OP_F32;
}

static int write_node(epi_rewrite *r, int node) {
    const epi_spec *spec = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    int kept[2];
    if (!epi_op_is_product(n->op) || !(is_widened(spec, n->arg[0]) || is_widened(spec, n->arg[1])))
        return EPI_NO_NODE;
    for (int a = 0; a < 2; a++)
        kept[a] = r->fresh[n->arg[a]];
    for (int a = 0; a < 2; a++)
        if (is_widened(spec, n->arg[a]))
            r->fresh[n->arg[a]] = epi_graph_map1(r->g, conversion(spec, n->arg[1 - a]), kept[a]);
    int product = epi_graph_failed(r->g) ? EPI_NO_NODE : epi_graph_copy(r->g, n, r->fresh);
    for (int a = 0; a < 2; a++)
        r->fresh[n->arg[a]] = kept[a];
    return product;
}

epi_status epi_widen_operands(epi_arena *arena, epi_spec *spec, epi_error *err) {
    const epi_graph *g = spec->graph;
    bool any = false;
    for (int i = 0; i < g->node_count; i++)
        for (int a = 0; a < 2 && g->live[i] && epi_op_is_product(g->nodes[i].op); a++)
            any |= is_widened(spec, g->nodes[i].arg[a]);
    epi_spec before = *spec;
    return any ? epi_graph_rewrite(arena, &spec->graph, write_node, &before, err) : EPI_OK;
}
