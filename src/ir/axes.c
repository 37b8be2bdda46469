/* axes.c: sets of axes: finding, leaving out, sizes, and how messages show them. */
#include <stdio.h>
#include <string.h>

#include "ir/graph.h"

bool epi_axis_equal(epi_axis a, epi_axis b) {
    return a.dim == b.dim && a.shift == b.shift;
}

int epi_axes_find(const epi_axes *axes, epi_axis axis) {
    for (int i = 0; i < axes->count; i++)
        if (epi_axis_equal(axes->at[i], axis))
            return i;
    return -1;
}

int epi_axes_find_dim(const epi_axes *axes, int dim) {
    for (int i = 0; i < axes->count; i++)
        if (axes->at[i].dim == dim)
            return i;
    return -1;
}

int epi_axes_count_in(const epi_axes *axes, const epi_axes *group) {
    int n = 0;
    for (int i = 0; i < axes->count; i++)
        n += epi_axes_find_dim(group, axes->at[i].dim) >= 0;
    return n;
}

void epi_axes_remove(epi_axes *axes, int position) {
    for (int i = position; i + 1 < axes->count; i++)
        axes->at[i] = axes->at[i + 1];
    axes->count--;
}

epi_axes epi_axes_without(const epi_axes *axes, const epi_axes *gone) {
    epi_axes out = {0};
    for (int i = 0; i < axes->count; i++)
        if (epi_axes_find(gone, axes->at[i]) < 0)
            out.at[out.count++] = axes->at[i];
    return out;
}

bool epi_axes_include(const epi_axes *a, const epi_axes *b) {
    for (int i = 0; i < b->count; i++)
        if (epi_axes_find(a, b->at[i]) < 0)
            return false;
    return true;
}

bool epi_axes_meet(const epi_axes *a, const epi_axes *b) {
    return epi_axes_without(a, b).count < a->count;
}

bool epi_axes_unite(epi_axes *into, const epi_axes *more) {
    epi_axes lacks = epi_axes_without(more, into);
    if (into->count + lacks.count > EPI_MAX_AXES)
        return false;
    for (int i = 0; i < lacks.count; i++)
        into->at[into->count++] = lacks.at[i];
    return true;
}

epi_axes epi_axes_shared(const epi_axes *a, const epi_axes *b) {
    epi_axes own = epi_axes_without(a, b);
    return epi_axes_without(a, &own);
}

bool epi_axes_same_set(const epi_axes *a, const epi_axes *b) {
    return a->count == b->count && epi_axes_include(a, b);
}

bool epi_axes_equal(const epi_axes *a, const epi_axes *b) {
    bool equal = a->count == b->count;
    for (int i = 0; i < a->count && equal; i++)
        equal = epi_axis_equal(a->at[i], b->at[i]);
    return equal;
}

int64_t epi_axis_size(epi_axis axis, const int64_t *sizes) {
    int64_t size = sizes[axis.dim];
    if (axis.shift >= 0)
        return epi_mul_size(size, (int64_t)1 << axis.shift, &size) ? size : -1;
    int64_t factor = (int64_t)1 << -axis.shift;
    return size % factor == 0 ? size / factor : -1;
}

int64_t epi_axes_size(const epi_axes *axes, const int64_t *sizes) {
    int64_t total = 1;
    bool zero = false;
    for (int i = 0; i < axes->count; i++) {
        int64_t size = epi_axis_size(axes->at[i], sizes);
        if (size < 0)
            return -1;
        zero |= size == 0;
        if (size && !epi_mul_size(total, size, &total))
            return -1;
    }
    return zero ? 0 : total;
}

/* ---- labels ---- */

epi_label epi_axis_label(const epi_graph *g, epi_axis axis) {
    epi_label l;
    const char *dim = g->dims[axis.dim];
    if (axis.shift > 0)
        snprintf(l.text, sizeof l.text, "%ld*%.60s", 1L << axis.shift, dim);
    else if (axis.shift < 0)
        snprintf(l.text, sizeof l.text, "%.60s/%ld", dim, 1L << -axis.shift);
    else
        snprintf(l.text, sizeof l.text, "%.60s", dim);
    return l;
}

epi_label epi_axes_label(const epi_graph *g, const epi_axes *axes) {
    epi_label l = {"["};
    for (int i = 0; i < axes->count; i++) {
        size_t n = strlen(l.text);
        snprintf(l.text + n, sizeof l.text - n, "%s%.24s", i ? "," : "", epi_axis_label(g, axes->at[i]).text);
    }
    size_t n = strlen(l.text);
    snprintf(l.text + n, sizeof l.text - n, "]");
    return l;
}

epi_label epi_along_label(const epi_graph *g, const epi_axes *along) {
    return along->count == 1 ? epi_axis_label(g, along->at[0]) : epi_axes_label(g, along);
}

epi_label epi_node_label(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    epi_label l, axes = epi_axes_label(g, &n->axes);
    snprintf(l.text, sizeof l.text, "%.60s%.130s", n->name ? n->name : "a value ",
             n->axes.count || !n->name ? axes.text : "");
    return l;
}
