/* extract.c: writes a program that is a piece of another one: parts of a cut and of slabs, the two halves of
 * a program with params, forward and backward. */
#include "pass/place/extract.h"

#include <stdio.h>
#include <string.h>

bool epi_extract_begin(epi_extract *x, const epi_graph *from, epi_graph *to, int tensors) {
    epi_arena *arena = to->arena;
    size_t nodes = (size_t)from->node_count + 1;
    x->from = from;
    x->to = to;
    *to = (epi_graph){.arena = arena};
    epi_graph_take_dims(to, from);
    to->tensors = epi_arena_alloc(arena, ((size_t)tensors + 1) * sizeof *to->tensors);
    if (x->fresh)
        return !epi_graph_failed(to);
    x->fresh = epi_arena_alloc(arena, nodes * sizeof *x->fresh);
    x->needed = epi_arena_alloc(arena, nodes);
    if (epi_graph_failed(to))
        return false;
    for (int i = 0; i < from->node_count; i++)
        x->fresh[i] = EPI_NO_NODE;
    return true;
}

int epi_extract_input(epi_extract *x, const epi_tensor_decl *decl, int node) {
    int t = x->to->tensor_count++;
    x->to->input_count++;
    x->to->tensors[t] = *decl;
    x->to->tensors[t].is_output = false;
    x->to->place = decl->place;
    x->to->tensors[t].node = epi_graph_input(x->to, t);
    if (node != EPI_NO_NODE)
        x->fresh[node] = x->to->tensors[t].node;
    return x->to->tensors[t].node;
}

void epi_extract_node(epi_extract *x, int node) {
    const epi_node *n = &x->from->nodes[node];
    x->to->place = n->place;
    x->fresh[node] = x->write ? x->write(x, n) : EPI_NO_NODE;
    if (x->fresh[node] == EPI_NO_NODE)
        x->fresh[node] = epi_graph_copy(x->to, n, x->fresh);
}

void epi_extract_copy(epi_extract *x) {
    const epi_graph *g = x->from;
    for (int i = g->node_count - 1; i >= 0; i--)
        for (int a = 0; a < epi_node_operands(&g->nodes[i]) && x->needed[i] && x->fresh[i] == EPI_NO_NODE;
             a++)
            x->needed[g->nodes[i].arg[a]] = true;
    for (int i = 0; i < g->node_count && !epi_graph_failed(x->to); i++)
        if (x->needed[i] && x->fresh[i] == EPI_NO_NODE)
            epi_extract_node(x, i);
}

void epi_extract_output(epi_extract *x, const epi_tensor_decl *decl, int value) {
    int t = x->to->tensor_count++;
    x->to->tensors[t] = *decl;
    x->to->tensors[t].is_output = true;
    x->to->tensors[t].node = value;
    if (x->names && !epi_graph_failed(x->to) && !x->to->nodes[value].name)
        x->to->nodes[value].name = decl->name;
}

bool epi_graph_has_tensor(const void *graph, const char *name) {
    return epi_graph_find_tensor(graph, name) >= 0;
}

const char *epi_free_name(epi_arena *arena, const char *wanted, epi_name_taken *taken, const void *context) {
    char text[100];
    snprintf(text, sizeof text, "%.80s", wanted);
    for (int number = 2; taken(context, text); number++)
        snprintf(text, sizeof text, "%.80s_%d", wanted, number);
    const char *name = epi_arena_text(arena, text, strlen(text));
    return name ? name : "";
}
