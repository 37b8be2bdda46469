/* index.c: index inputs. */
#include "ir/index.h"

#include <stdio.h>
#include <string.h>

epi_index_source epi_index_find(const epi_graph *g, const epi_node *n) {
    const epi_node *index = epi_index_of(g, n);
    epi_index_source out = {.node = (int)(index - g->nodes)};
    if (index->op == EPI_OP_GATHER && epi_graph_at_number(g, out.node, &out.at)) {
        out.sliced = true;
        out.axis = index->over.at[0];
        out.node = index->arg[0];
    }
    return out;
}

epi_axes epi_order_places(const epi_graph *g, const epi_node *n) {
    epi_axes first = {1, {n->over.at[0]}};
    return n->op == EPI_OP_OFFSETS ? g->nodes[n->arg[0]].axes : epi_axes_without(&n->over, &first);
}

bool epi_orders_alike(const epi_graph *g, int a, int b) {
    const epi_node *x = &g->nodes[a], *y = &g->nodes[b];
    if (!epi_op_orders(x->op) || !epi_op_orders(y->op) || x->arg[0] != y->arg[0])
        return false;
    epi_axes one = epi_order_places(g, x), other = epi_order_places(g, y);
    return epi_axes_equal(&one, &other) && epi_axis_equal(x->over.at[0], y->over.at[0]);
}

bool epi_is_sorted(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node], *order = &g->nodes[epi_max64(0, n->arg[1])];
    if (n->op != EPI_OP_GATHER || order->op != EPI_OP_ARGSORT)
        return false;
    epi_axes places = epi_order_places(g, order);
    bool sorted = n->over.count == places.count && n->axes.count == places.count;
    for (int i = 0; i < places.count && sorted; i++)
        sorted = epi_axis_equal(n->over.at[i], places.at[i]);
    return sorted;
}

bool epi_is_largest(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node], *places = &g->nodes[epi_max64(0, n->arg[1])];
    return n->op == EPI_OP_GATHER && places->op == EPI_OP_TOPK && n->arg[0] == places->arg[0] &&
           n->over.count == 1 && epi_axis_equal(n->over.at[0], places->over.at[0]) &&
           epi_axes_same_set(&n->axes, &places->axes);
}

bool epi_index_is_input(const epi_spec *spec, int node) {
    const epi_graph *g = spec->graph;
    const epi_node *n = &g->nodes[node];
    if (!g->live[node] || epi_op_index(n->op) < 0)
        return false;
    const epi_node *index = epi_index_of(g, n);
    return index->op == EPI_OP_INPUT && !g->tensors[index->tensor].made &&
           epi_dtype_is_integer(spec->types[index->tensor]);
}

/* Is the size of one of the axes another one at each run? */
static bool are_open(const epi_spec *spec, const epi_axes *axes) {
    bool open = false;
    for (int i = 0; i < axes->count && spec->open; i++)
        open |= epi_open_grows(spec->open, epi_axis_size(axes->at[i], spec->open->sizes));
    return open;
}

epi_status epi_index_fail(const epi_spec *spec, int node, int64_t at, int64_t value, epi_error *err) {
    const epi_graph *g = spec->graph;
    const epi_node *n = &g->nodes[node], *input = epi_index_of(g, n);
    char place[200] = "";
    for (int a = 0; a < input->axes.count; a++) {
        int64_t inner = 1;
        for (int b = a + 1; b < input->axes.count; b++)
            inner *= epi_axis_size(input->axes.at[b], spec->sizes);
        size_t length = strlen(place);
        snprintf(place + length, sizeof place - length, "%s%ld", a ? "," : "[",
                 (long)(at / inner % epi_axis_size(input->axes.at[a], spec->sizes)));
    }
    epi_axes inner = input->axes;
    if (inner.count)
        epi_axes_remove(&inner, 0);
    if (*place && !are_open(spec, &inner)) /* else it is only known how many elements come before it */
        snprintf(place + strlen(place), sizeof place - strlen(place), "]");
    else if (*place)
        snprintf(place, sizeof place, ", element %ld,", (long)at);
    char of[32] = "";
    epi_axes along = epi_index_along(g, n);
    if (!are_open(spec, &along))
        snprintf(of, sizeof of, " of %ld", (long)epi_axes_size(&along, spec->sizes));
    return epi_fail(err, EPI_ERR_INDEX, "%.60s%s is %ld: outside axis %s%s", input->name, place, (long)value,
                    epi_along_label(g, &along).text, of);
}

bool epi_is_end(const epi_spec *spec, int index, epi_axis axis, bool first) {
    const epi_graph *g = spec->graph;
    const epi_node *n = &g->nodes[index];
    if (n->op == EPI_OP_CONST)
        return first ? n->value == 0
                     : !spec->is_open[axis.dim] && n->value == (double)epi_axis_size(axis, spec->sizes) - 1;
    if (first || n->op != EPI_OP_SUB)
        return false;
    const epi_node *size = &g->nodes[n->arg[0]], *one = &g->nodes[n->arg[1]];
    return size->op == EPI_OP_SIZE && epi_axis_equal(size->over.at[0], axis) && one->op == EPI_OP_CONST &&
           one->value == 1;
}

bool epi_takes_end(const epi_spec *spec, int node, bool first) {
    const epi_node *n = &spec->graph->nodes[node];
    return n->op == EPI_OP_GATHER && n->over.count == 1 && epi_is_end(spec, n->arg[1], n->over.at[0], first);
}
