/* stretch.c: an index that is a sum of positions, each times a number, plus a number. */
#include "ir/stretch.h"

#include <math.h>

enum { DEEPEST = 16 };

/* The whole number that the value is; false: it is none, or not known. All of them are exact in f32. */
static bool number_of(const epi_spec *spec, int node, int depth, int64_t *out) {
    const epi_node *n = &spec->graph->nodes[node];
    int64_t a, b;
    if (n->op == EPI_OP_SIZE) {
        *out = epi_axis_size(n->over.at[0], spec->sizes);
        return !spec->is_row[n->over.at[0].dim] && *out <= 1 << 24;
    }
    if (n->op == EPI_OP_CONST) {
        *out = n->value >= 0 && n->value <= 1 << 24 ? (int64_t)n->value : -1;
        return *out >= 0 && (double)*out == n->value;
    }
    if ((n->op != EPI_OP_ADD && n->op != EPI_OP_MUL) || depth == DEEPEST ||
        !number_of(spec, n->arg[0], depth + 1, &a) || !number_of(spec, n->arg[1], depth + 1, &b))
        return false;
    *out = n->op == EPI_OP_ADD ? a + b : a * b;
    return *out <= 1 << 24;
}

/* Adds what the value is, times a number. */
static bool add(const epi_spec *spec, int node, int64_t by, int depth, epi_stretch *out) {
    const epi_node *n = &spec->graph->nodes[node];
    int64_t number;
    if (number_of(spec, node, 0, &number)) {
        out->begin += by * number;
        return true;
    }
    if (n->op == EPI_OP_INDEX) {
        epi_axis axis = n->over.at[0];
        if (spec->is_row[axis.dim] || epi_axes_find_dim(&out->axes, axis.dim) >= 0)
            return false;
        out->step[out->axes.count] = by;
        out->axes.at[out->axes.count++] = axis;
        return true;
    }
    if (depth == DEEPEST)
        return false;
    if (n->op == EPI_OP_ADD)
        return add(spec, n->arg[0], by, depth + 1, out) && add(spec, n->arg[1], by, depth + 1, out);
    for (int a = 0; a < 2 && n->op == EPI_OP_MUL; a++)
        if (number_of(spec, n->arg[a], 0, &number))
            return number > 0 && by * number <= 1 << 24 && add(spec, n->arg[!a], by * number, depth + 1, out);
    return false;
}

/* Is all of it inside, and has nothing else of what a gather takes from the axes by which it is seen? */
static bool is_inside(const epi_spec *spec, const epi_node *n, const epi_stretch *s) {
    bool gathers = n->op == EPI_OP_GATHER;
    const epi_axes *have = &spec->graph->nodes[n->arg[0]].axes;
    int64_t last = s->begin;
    for (int i = 0; i < s->axes.count; i++) {
        int64_t size = epi_axis_size(s->axes.at[i], spec->sizes);
        if (size < 1 ||
            (gathers && epi_axes_find_dim(have, s->axes.at[i].dim) >= 0 && s->axes.at[i].dim != s->of.dim))
            return false;
        last += (size - 1) * s->step[i];
    }
    return last < epi_axis_size(s->of, spec->sizes);
}

bool epi_stretch_find(const epi_spec *spec, int node, epi_stretch *out) {
    const epi_node *n = &spec->graph->nodes[node];
    *out = (epi_stretch){.of = n->over.at[0]};
    if (n->op == EPI_OP_GATHER && spec->graph->nodes[n->arg[0]].op == EPI_OP_INDEX)
        return false; /* positions are nowhere in memory */
    if (n->op == EPI_OP_LOW || n->op == EPI_OP_HIGH) {
        epi_axis half = {out->of.dim, (int16_t)(out->of.shift - 1)};
        out->axes = (epi_axes){1, {half}};
        out->step[0] = 1;
        out->begin = n->op == EPI_OP_HIGH ? epi_axis_size(half, spec->sizes) : 0;
        return !spec->is_row[half.dim];
    }
    if ((n->op != EPI_OP_GATHER && n->op != EPI_OP_SCATTER) || n->over.count > 1)
        return false;
    if (epi_graph_at_number(spec->graph, node, &out->begin))
        return true;
    out->begin = 0;
    return !spec->is_row[out->of.dim] && add(spec, n->arg[1], 1, 0, out) && is_inside(spec, n, out);
}
