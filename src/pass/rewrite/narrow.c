/* narrow.c: values that are stored in 16 bits, and rounded to them where they are made: whoever is given the
 * value on a tile sees what whoever loads it does.
 *
 * Logits are the ones that their log-sum-exp is taken of. A backward that reads both makes of them weights that
 * sum up to 1. Of logits as they were before they were stored, the log-sum-exp would be off by their roundings,
 * and each weight by as much. */
#include "pass/rewrite/narrow.h"

/* Is a log-sum-exp taken of the value, or of what maps make of it? `of` has its users. */
static bool is_summed(const epi_graph *g, int node, const bool *of) {
    epi_use_list uses = epi_graph_uses(g, node);
    for (int i = 0; i < uses.count; i++) {
        int user = uses.at[i].node;
        if (user == EPI_NO_NODE)
            continue;
        epi_op op = g->nodes[user].op;
        if (op == EPI_OP_LOGSUMEXP || (epi_ops[op].cls == EPI_CLASS_MAP && of[user]))
            return true;
    }
    return false;
}

/* The 16-bit type of all outputs that the value is, or EPI_F32. */
static epi_dtype narrow_type(const epi_spec *spec, int node) {
    const epi_graph *g = spec->graph;
    epi_dtype type = EPI_DTYPE_COUNT;
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (g->tensors[t].node == node)
            type = type == EPI_DTYPE_COUNT || type == spec->types[t] ? spec->types[t] : EPI_F32;
    return epi_dtype_is_narrow(type) ? type : EPI_F32;
}

static int write_node(epi_rewrite *r, int node) {
    epi_dtype type = ((const epi_dtype *)r->ctx)[node];
    if (type != EPI_BF16 && type != EPI_F16)
        return EPI_NO_NODE;
    int value = epi_graph_copy(r->g, &r->in->nodes[node], r->fresh);
    if (epi_graph_failed(r->g))
        return EPI_NO_NODE;
    const char *name = r->g->nodes[value].name;
    r->g->nodes[value].name = NULL; /* it is the rounded one's */
    value = epi_graph_map1(r->g, type == EPI_BF16 ? EPI_OP_STORED_BF16 : EPI_OP_STORED_F16, value);
    if (!epi_graph_failed(r->g))
        r->g->nodes[value].name = name;
    return value;
}

epi_status epi_narrow_values(epi_arena *arena, epi_spec *spec, epi_dtype *types, epi_error *err) {
    return epi_graph_rewrite(arena, &spec->graph, write_node, types, err);
}

epi_status epi_narrow_outputs(epi_arena *arena, epi_spec *spec, epi_error *err) {
    const epi_graph *in = spec->graph;
    size_t nodes = (size_t)in->node_count + 1;
    bool *of = epi_arena_alloc(arena, nodes), any = false;
    epi_dtype *types = epi_arena_alloc(arena, nodes * sizeof *types);
    EPI_TRY(epi_has_memory(of && types, err));
    for (int i = in->node_count - 1; i >= 0; i--)
        of[i] = in->live[i] && is_summed(in, i, of);
    for (int i = 0; i < in->node_count; i++) {
        const epi_node *n = &in->nodes[i];
        bool open = of[i] && n->op != EPI_OP_INPUT && !(n->has_stored && n->stored == EPI_F32);
        types[i] = open ? narrow_type(spec, i) : EPI_F32;
        any |= types[i] != EPI_F32;
    }
    return any ? epi_narrow_values(arena, spec, types, err) : EPI_OK;
}
