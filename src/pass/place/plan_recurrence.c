/* plan_recurrence.c: the plan of a program that is one scan of products (pass/analyse/recurrence.h). */
#include <string.h>

#include "pass/analyse/recurrence.h"
#include "pass/place/plan_internal.h"

/* Are its results the outputs, each of them one, and is what it reads there? */
static bool is_all(const epi_graph *g, const epi_recurrence *r) {
    int operands[EPI_RECURRENCE_OPERANDS], count = epi_recurrence_operands(r, operands), made = 0;
    bool all = true;
    for (int i = 0; i < count && all; i++) {
        epi_op op = g->nodes[operands[i]].op;
        all = op == EPI_OP_INPUT || op == EPI_OP_CONST || op == EPI_OP_SIZE;
    }
    for (int t = g->input_count; t < g->tensor_count && all; t++) {
        bool one = false;
        for (int k = 0; k < EPI_TAKE_COUNT; k++)
            one |= r->out[k] == g->tensors[t].node;
        for (int other = g->input_count; other < t; other++)
            one &= g->tensors[other].node != g->tensors[t].node;
        all = one;
    }
    for (int k = 0; k < EPI_TAKE_COUNT; k++)
        made += r->out[k] != EPI_NO_NODE;
    return all && made == g->tensor_count - g->input_count;
}

bool epi_plan_recurrence(epi_arena *arena, const epi_spec *spec, epi_plan *out) {
    const epi_graph *g = spec->graph;
    epi_recurrences all;
    bool scans = false;
    for (int i = 0; i < g->node_count; i++)
        scans |= g->live[i] && epi_op_scans(g->nodes[i].op);
    if (!scans || (!spec->open && epi_spec_has_empty(spec)) ||
        !epi_recurrences_find(arena, spec, true, &all) || all.count != 1 || !is_all(g, &all.at[0]))
        return false;
    out->fused = true;
    out->kind = EPI_KIND_RECURRENCE;
    out->recurrence = &all.at[0];
    out->split = EPI_OP_COUNT;
    memset(out->placement, 0, (size_t)g->node_count * sizeof *out->placement);
    for (int i = 0; i < g->node_count; i++)
        out->placement[i].tile = g->live[i] && !epi_op_is_leaf(g->nodes[i].op);
    return true;
}
