/* graph_anew.c: writes a graph anew, node by node. A rule says what a node becomes. */
#include <string.h>

#include "ir/graph.h"

void epi_graph_take_dims(epi_graph *g, const epi_graph *from) {
    g->dim_count = from->dim_count;
    g->declared_count = from->declared_count;
    memcpy(g->dims, from->dims, sizeof g->dims);
    memcpy(g->fixed, from->fixed, sizeof g->fixed);
    memcpy(g->same, from->same, sizeof g->same);
}

bool epi_graph_begin(epi_graph *g, const epi_graph *old) {
    epi_arena *arena = g->arena;
    size_t tensors = (size_t)old->tensor_count;
    *g = (epi_graph){.arena = arena, .tensor_count = old->tensor_count, .input_count = old->input_count};
    epi_graph_take_dims(g, old);
    g->tensors = epi_arena_alloc(arena, (tensors + 1) * sizeof *g->tensors);
    if (epi_graph_failed(g))
        return false;
    memcpy(g->tensors, old->tensors, tensors * sizeof *g->tensors);
    return true;
}

int epi_graph_copy(epi_graph *g, const epi_node *n, const int *fresh) {
    int arg[3];
    for (int a = 0; a < 3; a++)
        arg[a] = n->arg[a] == EPI_NO_NODE ? EPI_NO_NODE : fresh[n->arg[a]];
    g->place = n->place;
    return epi_graph_value(g, epi_graph_rebuild(g, n, arg));
}

void epi_graph_end(epi_graph *g, const epi_graph *old, const int *fresh) {
    for (int t = 0; t < old->tensor_count && !epi_graph_failed(g); t++)
        g->tensors[t].node = epi_graph_value(g, fresh[old->tensors[t].node]);
    epi_graph_finish(g);
}

epi_status epi_graph_rewrite(epi_arena *arena, const epi_graph **graph, epi_rewrite_rule *rule, void *ctx,
                             epi_error *err) {
    const epi_graph *in = *graph;
    epi_rewrite r = {.in = in, .g = epi_arena_alloc(arena, sizeof *r.g), .ctx = ctx};
    r.fresh = epi_arena_alloc(arena, ((size_t)in->node_count + 1) * sizeof *r.fresh);
    bool fired = false;
    EPI_TRY(epi_has_memory(r.g && r.fresh, err));
    r.g->arena = arena;
    epi_graph_begin(r.g, in);
    for (int i = 0; i < in->node_count && !epi_graph_failed(r.g); i++) {
        if (!in->live[i] && in->nodes[i].op != EPI_OP_INPUT)
            continue;
        r.g->place = in->nodes[i].place;
        int value = rule(&r, i);
        fired |= value != EPI_NO_NODE;
        if (!epi_graph_failed(r.g))
            r.fresh[i] = value == EPI_NO_NODE ? epi_graph_copy(r.g, &in->nodes[i], r.fresh)
                                              : epi_graph_value(r.g, value);
    }
    epi_graph_end(r.g, in, r.fresh);
    if (fired || r.g->node_count != in->node_count || epi_graph_failed(r.g)) /* dead nodes go */
        *graph = r.g;
    return epi_graph_status(r.g, err);
}

/* The value itself; what was said of the mark is said of it. */
static int drop_mark(epi_rewrite *r, int node) {
    const epi_node *n = &r->in->nodes[node];
    if (n->op != EPI_OP_OWN && n->op != EPI_OP_LIST)
        return EPI_NO_NODE;
    int value = r->fresh[n->arg[0]];
    if (n->op == EPI_OP_LIST || epi_graph_failed(r->g))
        return value;
    epi_node *to = &r->g->nodes[epi_graph_value(r->g, value)];
    to->saving = to->saving == EPI_SAVE_OPEN ? n->saving : to->saving;
    return epi_graph_stand_for(r->g, value, n);
}

epi_status epi_own_drop(epi_arena *arena, const epi_graph **graph, epi_error *err) {
    const epi_graph *g = *graph;
    for (int i = 0; i < g->node_count; i++)
        if (g->nodes[i].op == EPI_OP_OWN)
            return epi_graph_rewrite(arena, graph, drop_mark, NULL, err);
    return EPI_OK;
}
