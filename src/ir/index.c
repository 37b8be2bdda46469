/* index.c: indices that are inputs. */
#include "ir/index.h"

#include <stdio.h>
#include <string.h>

bool epi_index_is_input(const epi_spec *spec, int node) {
    const epi_graph *g = spec->graph;
    const epi_node *n = &g->nodes[node];
    if (!g->live[node] || epi_ops[n->op].cls != EPI_CLASS_MOVE)
        return false;
    const epi_node *index = &g->nodes[n->arg[1]];
    return index->op == EPI_OP_INPUT && epi_dtype_is_integer(spec->types[index->tensor]);
}

/* Is the size of the axis another one at each run? */
static bool is_open(const epi_spec *spec, epi_axis axis) {
    return epi_open_grows(spec->open, spec->open ? epi_axis_size(axis, spec->open->sizes) : 0);
}

epi_status epi_index_fail(const epi_spec *spec, int node, int64_t at, int64_t value, epi_error *err) {
    const epi_graph *g = spec->graph;
    const epi_node *n = &g->nodes[node], *input = &g->nodes[n->arg[1]];
    char place[200] = "";
    for (int a = 0; a < input->axes.count; a++) {
        int64_t inner = 1;
        for (int b = a + 1; b < input->axes.count; b++)
            inner *= epi_axis_size(input->axes.at[b], spec->sizes);
        size_t length = strlen(place);
        snprintf(place + length, sizeof place - length, "%s%ld", a ? "," : "[",
                 (long)(at / inner % epi_axis_size(input->axes.at[a], spec->sizes)));
    }
    bool counted = *place; /* else it is only known how many elements come before it */
    for (int a = 1; a < input->axes.count; a++)
        counted &= !is_open(spec, input->axes.at[a]);
    if (counted)
        snprintf(place + strlen(place), sizeof place - strlen(place), "]");
    else if (*place)
        snprintf(place, sizeof place, ", element %ld,", (long)at);
    char of[32] = "";
    if (!is_open(spec, n->over.at[0]))
        snprintf(of, sizeof of, " of %ld", (long)epi_axis_size(n->over.at[0], spec->sizes));
    return epi_fail(err, EPI_ERR_INDEX, "%.60s%s is %ld: outside axis %s%s", input->name, place, (long)value,
                    epi_axis_label(g, n->over.at[0]).text, of);
}
