/* slab_loops.c: which parts of a cut can run slab by slab, and which loops they form. */
#include "ir/index.h"
#include "pass/analyse/monomial.h"
#include "pass/schedule/slabs.h"

bool epi_slabs_is_sum(const epi_slab_maker *m, const epi_node *n) {
    return (epi_ops[n->op].adds || n->op == EPI_OP_MATMUL) && epi_axes_has_dim(&n->over, m->dim);
}

/* Are positions wanted for nothing but to give a value the axis? */
static bool is_for_zeros(const epi_graph *g, int index) {
    for (int i = 0; i < g->node_count; i++)
        for (int a = 0; a < 3; a++)
            if (g->nodes[i].arg[a] == index && !epi_is_zeros(g, i))
                return false;
    return true;
}

/* Does the operation give rows from rows of the same number alone, or sum over all of them? */
static bool node_can(const epi_slab_maker *m, const epi_part *p, const epi_node *n) {
    const epi_graph *g = &p->graph;
    for (int l = 0; l < 2; l++) {
        const epi_axes *axes = l ? &n->over : &n->axes;
        for (int i = 0; i < axes->count; i++)
            if (axes->at[i].dim == m->dim && axes->at[i].shift)
                return false;
    }
    if (epi_op_draws(n->op) && epi_axes_has_dim(&n->axes, m->dim))
        return false; /* it is drawn by its place */
    if (epi_axes_has_dim(&n->over, m->dim) && !epi_slabs_is_sum(m, n) && n->op != EPI_OP_SIZE &&
        !(n->op == EPI_OP_INDEX && is_for_zeros(g, (int)(n - g->nodes))))
        return false;
    for (int a = 0; a < 3; a++)
        if (n->arg[a] != EPI_NO_NODE && epi_axes_has_dim(&g->nodes[n->arg[a]].axes, m->dim) &&
            !epi_axes_has_dim(&n->axes, m->dim) && !epi_slabs_is_sum(m, n))
            return false; /* scatter */
    if (epi_op_gives_places(n->op) && epi_axes_has_dim(&n->axes, m->dim))
        return false;               /* it is ordered among all */
    if (epi_op_index(n->op) >= 0) { /* an index outside its axis is told by its place */
        const epi_node *index = epi_index_of(g, n);
        return index->op != EPI_OP_INPUT || !epi_axes_has_dim(&index->axes, m->dim);
    }
    return true;
}

/* How a tensor of a part lies in memory. */
static const epi_axes *memory_of(const epi_part *p, int t) {
    return p->slices[t].memory.count ? &p->slices[t].memory : &p->graph.tensors[t].axes;
}

static const epi_axes *axes_of(const epi_slab_maker *m, epi_part_tensor at) {
    const epi_graph *g = m->spec->graph;
    return at.tensor >= 0 ? &g->tensors[at.tensor].axes : &m->from->values[at.value].axes;
}

/* Is it a slice along the slabs' axis? Then every slab needs the same rows, whichever slab made them. */
static bool is_sliced(const epi_slab_maker *m, const epi_part *p, int t) {
    const epi_slice *s = &p->slices[t];
    const epi_axes *own = &p->graph.tensors[t].axes;
    int there = s->memory.count ? epi_axes_find_dim(&s->memory, m->dim) : -1,
        at = epi_axes_find_dim(own, m->dim);
    if (!s->memory.count || (there < 0 && at < 0))
        return false;
    return there < 0 || at < 0 || s->along[at] != there || !epi_axis_equal(own->at[at], s->memory.at[there]);
}

/* Do the tensor's slabs lie one after the other, and each begin where a tensor may? */
static bool tensor_can(const epi_slab_maker *m, const epi_part *p, int t, int64_t grain, int aligned) {
    const epi_axes *axes = memory_of(p, t);
    int at = epi_axes_find_dim(axes, m->dim);
    if ((at >= 0) != epi_axes_has_dim(axes_of(m, p->tensors[t]), m->dim) || is_sliced(m, p, t))
        return false; /* under another name */
    int64_t inner = grain * (int64_t)epi_dtype_size(p->types[t]);
    for (int i = 0; i < axes->count && at >= 0; i++) {
        int64_t size = epi_axis_size(axes->at[i], m->spec->sizes);
        if (i < at && size != 1)
            return false;
        inner *= i > at ? size : 1;
    }
    return at < 0 || inner % aligned == 0;
}

static bool part_can(const epi_slab_maker *m, const epi_part *p, bool *summed, int64_t grain, int aligned) {
    const epi_graph *g = &p->graph;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        if (!node_can(m, p, n))
            return false;
        bool takes = epi_node_takes(n, summed), sum = epi_slabs_is_sum(m, n);
        summed[i] = sum || takes;
        if ((summed[i] && epi_axes_has_dim(&n->axes, m->dim)) || (sum && takes))
            return false; /* the sum must be complete first */
    }
    for (int t = 0; t < g->tensor_count; t++)
        if (!tensor_can(m, p, t, grain, aligned))
            return false;
    return true;
}

bool epi_slabs_same_place(epi_part_tensor a, epi_part_tensor b) {
    return a.tensor >= 0 ? a.tensor == b.tensor : b.tensor < 0 && a.value == b.value;
}

/* Does the part read a sum that parts from `first` on make? */
static bool reads_sum(const epi_slab_maker *m, int part, int first) {
    const epi_part *p = &m->from->parts[part];
    for (int q = first; q < part; q++) {
        const epi_part *other = &m->from->parts[q];
        for (int t = other->graph.input_count; t < other->graph.tensor_count; t++)
            for (int u = 0; u < p->graph.input_count && m->summed[q][other->graph.tensors[t].node]; u++)
                if (epi_slabs_same_place(other->tensors[t], p->tensors[u]))
                    return true;
    }
    return false;
}

static bool reads(const epi_part *p, int value) {
    for (int t = 0; t < p->graph.input_count; t++)
        if (p->tensors[t].tensor < 0 && p->tensors[t].value == value)
            return true;
    return false;
}

/* Is the value in memory for a slab at a time? Where it is long, and everyone who needs it is in a loop. */
static bool goes_by_slabs(const epi_slab_maker *m, int value) {
    const epi_cut_value *v = &m->from->values[value];
    const epi_axes *axes = &v->axes;
    bool is_long = false;
    for (int i = 0; i < axes->count; i++)
        is_long |= !m->spec->is_row[axes->at[i].dim];
    if (!is_long || !epi_axes_has_dim(axes, m->dim) || v->part < 0 || !m->can[v->part])
        return false;
    for (int q = 0; q < m->from->part_count; q++)
        if (m->loop[q] < 0 && reads(&m->from->parts[q], value))
            return false;
    return true;
}

bool epi_slabs_wanted_in(const epi_slab_maker *m, int value, int loop) {
    for (int q = 0; q < m->from->part_count; q++)
        if (m->loop[q] == loop && reads(&m->from->parts[q], value))
            return true;
    return false;
}

/* Is a value that goes by slabs stored or loaded by it? */
static bool needs_loop(const epi_slab_maker *m, int part) {
    for (int v = 0; v < m->from->value_count; v++)
        if (m->slab[v] && (reads(&m->from->parts[part], v) ||
                           (m->from->values[v].part == part && epi_slabs_wanted_in(m, v, m->loop[part]))))
            return true;
    return false;
}

/* Finds the loops: the longest runs of parts, less what needs none at both of their ends. */
bool epi_slabs_find(epi_slab_maker *m, int64_t grain, int aligned) {
    int count = m->from->part_count;
    bool any = false;
    for (int q = 0, first = 0; q < count; q++) {
        const epi_part *p = &m->from->parts[q];
        m->summed[q] = epi_arena_alloc(m->arena, (size_t)p->graph.node_count + 1);
        if (!m->summed[q])
            return false;
        m->can[q] = part_can(m, p, m->summed[q], grain, aligned);
        m->loop[q] = -1;
        if (!m->can[q])
            continue;
        if (!q || m->loop[q - 1] < 0 || reads_sum(m, q, first))
            first = q;
        m->loop[q] = first;
    }
    for (int v = 0; v < m->from->value_count; v++)
        m->slab[v] = goes_by_slabs(m, v);
    for (int q = 0; q < count;) {
        int first = m->loop[q], from = q, to = q, past = q + 1;
        while (first >= 0 && past < count && m->loop[past] == first)
            past++;
        for (from = q; from < past && (first < 0 || !needs_loop(m, from)); from++)
            ;
        for (to = past; to > from && !needs_loop(m, to - 1); to--)
            ;
        for (int i = q; i < past; i++)
            m->loop[i] = i >= from && i < to ? from : -1;
        any |= from < to;
        q = past;
    }
    return any;
}
