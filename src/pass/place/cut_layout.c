/* cut_layout.c: how a value between parts is laid out in memory, how many bytes it takes, which values are
 * views, and what a cut costs. */
#include "ir/stretch.h"
#include "pass/place/placer.h"

/* ---- sizes ---- */

unsigned epi_placer_dims(const epi_axes *rows, const epi_axes *cols, const epi_axes *axes) {
    unsigned dims = 0;
    for (int i = 0; i < axes->count; i++) {
        int row = epi_axes_find_dim(rows, axes->at[i].dim), col = epi_axes_find_dim(cols, axes->at[i].dim);
        dims |= 1u << (row >= 0 ? row : col >= 0 ? EPI_MAX_AXES + col : 2 * EPI_MAX_AXES);
    }
    return dims;
}

/* Is it a sum that a scatter makes, and an output of f32 all that a map makes of it? It is not rounded on its
 * way there. */
static bool is_scattered(const epi_placer *s, int node) {
    epi_use_list uses = epi_graph_uses(s->g, node);
    int user = uses.count == 1 ? uses.at[0].node : EPI_NO_NODE;
    if (!epi_op_scatters(s->g->nodes[node].op) || user == EPI_NO_NODE)
        return false;
    uses = epi_graph_uses(s->g, user);
    return epi_op_is_map(s->g->nodes[user].op) && uses.count == 1 && uses.at[0].node == EPI_NO_NODE &&
           !epi_dtype_is_narrow(s->spec->types[uses.at[0].operand]);
}

/* Is it a vector, or one for each row, column or group of the part that makes it? An update is longer than
 * the tile that stores what is new of it. */
static bool is_short(const epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    epi_cut_placement at = s->placement[node];
    if (epi_is_vector(&n->axes) || is_scattered(s, node))
        return true;
    if ((at.kind != EPI_PLACED_TILE && at.kind != EPI_PLACED_AFTER) || n->op == EPI_OP_UPDATE)
        return false;
    const epi_placer_part *p = &s->parts[at.part];
    if (p->recurrence) /* the last state is kept as it is stepped */
        return node == p->recurrence->out[EPI_TAKE_LAST];
    unsigned all =
        epi_placer_dims(&p->rows, &p->cols, &p->rows) | epi_placer_dims(&p->rows, &p->cols, &p->cols);
    return epi_placer_dims(&p->rows, &p->cols, &n->axes) != all;
}

epi_dtype epi_placer_type(const epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    return n->op == EPI_OP_INPUT ? s->spec->types[n->tensor]
                                 : epi_stored_type(s->said[node], is_short(s, node), s->spec->type);
}

double epi_placer_bytes(const epi_placer *s, int node) {
    return epi_cost_bytes(&s->g->nodes[node].axes, s->sizes, epi_placer_type(s, epi_placer_root(s, node)));
}

/* ---- views ---- */

bool epi_placer_is_view(const epi_placer *s, int node) {
    return s->g->nodes[node].op == EPI_OP_RENAME || s->view[node];
}

int epi_placer_root(const epi_placer *s, int node) {
    while (epi_placer_is_view(s, node))
        node = s->g->nodes[node].arg[0];
    return node;
}

/* Of the axes of a slice one becomes those that a part is seen by. */
static epi_axes see_stretch(const epi_stretch *part, const epi_axes *of, epi_slice *slice) {
    epi_slice whole = *slice;
    epi_axes axes = {0};
    for (int i = 0; i < of->count; i++) {
        bool here = epi_axis_equal(of->at[i], part->of);
        if (here)
            slice->begin[whole.along[i]] += part->begin * whole.step[i];
        for (int k = 0; k < (here ? part->axes.count : 1); k++) {
            slice->along[axes.count] = whole.along[i];
            slice->step[axes.count] = whole.step[i] * (here ? part->step[k] : 1);
            axes.at[axes.count++] = here ? part->axes.at[k] : of->at[i];
        }
    }
    return axes;
}

static epi_slice all_of(const epi_axes *memory) {
    epi_slice slice = {.memory = *memory};
    for (int i = 0; i < memory->count; i++) {
        slice.along[i] = i;
        slice.step[i] = 1;
    }
    return slice;
}

epi_axes epi_placer_piece(const epi_placer *s, int node, const epi_axes *memory, epi_slice *slice) {
    epi_stretch part;
    *slice = all_of(memory);
    return epi_stretch_find(s->spec, s->put_by[node], &part) ? see_stretch(&part, memory, slice) : *memory;
}

epi_axes epi_placer_view(const epi_placer *s, int node, const epi_axes *memory, epi_slice *slice) {
    const epi_node *n = &s->g->nodes[node];
    if (!epi_placer_is_view(s, node)) {
        *slice = all_of(memory);
        return *memory;
    }
    epi_axes axes = epi_placer_view(s, n->arg[0], memory, slice);
    epi_stretch part;
    if (n->op == EPI_OP_ONCE)
        return axes;
    if (n->op != EPI_OP_RENAME)
        return epi_stretch_find(s->spec, node, &part) ? see_stretch(&part, &axes, slice) : axes;
    int at = epi_axes_find(&axes, n->over.at[0]);
    epi_axis *there = &slice->memory.at[slice->along[at]];
    if (epi_axis_equal(*there, axes.at[at])) /* else it is a stretch of it */
        *there = n->over.at[1];
    axes.at[at] = n->over.at[1];
    return axes;
}

/* Where they lie innermost, as its mainloop wants them. */
static epi_axes put_last(const epi_axes *axes, const epi_axes *last) {
    epi_axes out = epi_axes_without(axes, last);
    epi_axes_unite(&out, last);
    return out;
}

/* Is it a sum of a scan's states at each step, of which nothing but a sum over other axes is wanted? Then the
 * state's own axis lies innermost, along which the mainloop stores it. */
static bool is_summed_again(const epi_graph *g, int node, epi_axes *over) {
    epi_use_list uses = epi_graph_uses(g, node);
    const epi_node *user =
        uses.count == 1 && uses.at[0].node != EPI_NO_NODE ? &g->nodes[uses.at[0].node] : NULL;
    if (g->nodes[node].op != EPI_OP_SUM || !user || user->op != EPI_OP_SUM ||
        epi_recurrence_scan(g, node) == EPI_NO_NODE)
        return false;
    *over = user->over;
    return over->count < g->nodes[node].axes.count;
}

epi_axes epi_cut_layout(const epi_spec *spec, int node) {
    const epi_graph *g = spec->graph;
    const epi_axes *own = &g->nodes[node].axes;
    epi_axes first = *own, depth = epi_scaled_depth(g, node);
    for (int t = g->input_count; t < g->tensor_count && depth.count; t++)
        if (g->tensors[t].node == node)
            return g->tensors[t].axes;
    if (depth.count)
        return put_last(own, &depth);
    epi_axes summed;
    if (is_summed_again(g, node, &summed)) {
        epi_axes rest = epi_axes_without(own, &summed);
        return put_last(own, &(epi_axes){1, {rest.at[rest.count - 1]}});
    }
    bool again = false;
    for (int k = 0; k < own->count; k++) {
        first.at[k] = epi_axis_first_name(g, own->at[k]);
        again |= epi_axis_is_again(g, own, own->at[k]);
    }
    for (int t = 0; t < g->tensor_count && !again; t++) {
        epi_axes order = {0};
        for (int i = 0; i < g->tensors[t].axes.count && g->tensors[t].axes.count >= own->count; i++)
            for (int k = 0; k < own->count; k++)
                if (epi_axis_equal(first.at[k], g->tensors[t].axes.at[i]) && order.count < EPI_MAX_AXES)
                    order.at[order.count++] = own->at[k];
        if (order.count == own->count && epi_axes_same_set(&order, own))
            return order;
    }
    return epi_rows_first(spec, own);
}

/* Does the slice of an input, or of a value that is no output with its axes in another order, begin where a
 * tensor may? Whatever the number of rows: it counts as one. */
static bool is_aligned(const epi_placer *s, int node) {
    const epi_graph *g = s->g;
    int root = epi_placer_root(s, g->nodes[node].arg[0]);
    const epi_node *n = &g->nodes[root];
    epi_axes memory = n->op == EPI_OP_INPUT ? g->tensors[n->tensor].axes : epi_cut_layout(s->spec, root);
    for (int t = g->input_count; t < g->tensor_count && n->op != EPI_OP_INPUT; t++)
        if (epi_graph_renamed(g, g->tensors[t].node) == root && !epi_axes_equal(&g->tensors[t].axes, &memory))
            return false;
    epi_slice slice;
    epi_stretch part;
    epi_axes axes = epi_placer_view(s, g->nodes[node].arg[0], &memory, &slice);
    if (!epi_stretch_find(s->spec, node, &part))
        return false;
    int at = epi_axes_find(&axes, part.of), there = slice.along[at];
    int64_t least =
        epi_dtype_size(s->said[root]) == 1 ? 1 : 2; /* bytes of an element, if nobody else gives it */
    int64_t bytes = n->op == EPI_OP_INPUT ? (int64_t)epi_dtype_size(s->spec->types[n->tensor]) : least;
    for (int i = slice.memory.count - 1; i > there; i--)
        if (!s->spec->is_row[slice.memory.at[i].dim])
            bytes =
                bytes * epi_max64(1, epi_axis_size(slice.memory.at[i], s->spec->sizes)) % s->limits->aligned;
    return bytes * (part.axes.count ? part.begin * slice.step[at] : 1) % s->limits->aligned == 0;
}

/* Is it a half of an input, of which the other is not wanted? */
static bool is_lone_half(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    if ((n->op != EPI_OP_LOW && n->op != EPI_OP_HIGH) || g->nodes[n->arg[0]].op != EPI_OP_INPUT)
        return false;
    epi_use_list uses = epi_graph_uses(g, n->arg[0]);
    bool alone = true;
    for (int i = 0; i < uses.count; i++)
        alone &= uses.at[i].node == node || !epi_op_is_half(epi_use_op(g, uses.at[i]));
    return alone;
}

bool epi_placer_is_slice(const epi_placer *s, int node) {
    return (s->g->nodes[node].op == EPI_OP_GATHER || is_lone_half(s->g, node)) && is_aligned(s, node);
}

/* ---- what it costs ---- */

static double kernel_cost(const epi_graph *g, const epi_dtype *types, const int64_t *sizes) {
    epi_cost cost = {.launches = 1};
    for (int t = 0; t < g->tensor_count; t++)
        cost.bytes += epi_cost_bytes(&g->tensors[t].axes, sizes, types[t]);
    for (int i = 0; i < g->node_count; i++)
        if (g->live[i] && epi_op_is_product(g->nodes[i].op))
            cost.flops += epi_cost_flops(g, &g->nodes[i], sizes);
    return epi_cost_sum(cost);
}

double epi_cut_cost(const epi_spec *spec, const epi_cut *cut) {
    int64_t sizes[EPI_MAX_DIMS];
    double cost = 0;
    epi_nominal_sizes(spec, sizes);
    for (int i = cut->prepared_parts; i < cut->part_count; i++)
        cost += kernel_cost(&cut->parts[i].graph, cut->parts[i].types, sizes);
    return cost;
}
