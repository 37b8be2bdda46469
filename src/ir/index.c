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
    return epi_fail(err, EPI_ERR_INDEX, "%.60s%s%s is %ld: outside axis %s of %ld", input->name, place,
                    *place ? "]" : "", (long)value, epi_axis_label(g, n->over.at[0]).text,
                    (long)epi_axis_size(n->over.at[0], spec->sizes));
}
