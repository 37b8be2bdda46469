/* cut.c: from a program to parts with one mainloop each, and what is stored between them.
 *
 * 1. Every value gets a *placement*, in an order in which operands come first:
 *
 *        tile p    on part p's tile (or row) while it is on chip
 *        after p   a short vector made of p's finished reductions
 *        unplaced  a map of something that is complete only after part p; it is made wherever it is used
 *
 *    An unplaced value that must exist in memory (an operand, an output, what a reduction reads) joins a later
 *    part that has its shape, or becomes a rows part, whichever costs less (cost.h).
 * 2. What each part loads from earlier ones is a smallest vertex cut (cut_loads.c): the values of fewest
 *    bytes are stored, the others are recomputed.
 * 3. Each part is written down as a graph (cut_parts.c).
 *
 * Sets of axes are sets of dims here, as bits: one for each row axis and each column axis of the part that is
 * asked, and one for all others. */
#include "pass/place/placer.h"
#include "pass/place/refusals.h"

#include <string.h>

#include "ir/index.h"
#include "ir/stretch.h"
#include "pass/analyse/direction.h"
#include "pass/analyse/square.h"

/* ---- sizes ---- */

/* The dims of `axes` as bits: one for each row and column axis there is, and one for all others. */
static unsigned dims_of(const epi_axes *rows, const epi_axes *cols, const epi_axes *axes) {
    unsigned dims = 0;
    for (int i = 0; i < axes->count; i++) {
        int row = epi_axes_find_dim(rows, axes->at[i].dim), col = epi_axes_find_dim(cols, axes->at[i].dim);
        dims |= 1u << (row >= 0 ? row : col >= 0 ? EPI_MAX_AXES + col : 2 * EPI_MAX_AXES);
    }
    return dims;
}

/* Is a value of these axes short beside the tile: one per row, or one per column? */
static bool are_vector(const epi_axes *rows, const epi_axes *cols, const epi_axes *axes) {
    unsigned dims = dims_of(rows, cols, axes), r = dims_of(rows, cols, rows), c = dims_of(rows, cols, cols);
    return dims != (r | c) && (!(dims & ~r) || !(dims & ~c));
}

/* Is it a sum that a scatter makes, and an output of f32 all that a map makes of it? It is not rounded on its
 * way there. */
static bool is_scattered(const epi_placer *s, int node) {
    epi_use_list uses = epi_graph_uses(s->g, node);
    int user = uses.count == 1 ? uses.at[0].node : EPI_NO_NODE;
    if (!epi_op_scatters(s->g->nodes[node].op) || user == EPI_NO_NODE)
        return false;
    uses = epi_graph_uses(s->g, user);
    return epi_ops[s->g->nodes[user].op].cls == EPI_CLASS_MAP && uses.count == 1 &&
           uses.at[0].node == EPI_NO_NODE && !epi_dtype_is_narrow(s->spec->types[uses.at[0].operand]);
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
    unsigned all = dims_of(&p->rows, &p->cols, &p->rows) | dims_of(&p->rows, &p->cols, &p->cols);
    return dims_of(&p->rows, &p->cols, &n->axes) != all;
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

/* The name that the program's tensors have for an axis. */
static epi_axis first_name(const epi_graph *g, epi_axis axis) {
    while (axis.dim >= g->declared_count && g->same[axis.dim].shift == 0)
        axis.dim = g->same[axis.dim].dim;
    return axis;
}

/* Is it another name of an axis that is there as well, as the keys of scores are of queries? */
static bool is_again(const epi_graph *g, const epi_axes *axes, epi_axis axis) {
    epi_axis first = first_name(g, axis);
    return !epi_axis_equal(first, axis) && epi_axes_find(axes, first) >= 0;
}

/* These axes, those that count rows first; but such as count the same once more last: scores are made and read
 * along them. */
static epi_axes put_rows_first(const epi_spec *spec, const epi_axes *axes) {
    epi_axes out = {0};
    for (int turn = 0; turn < 3; turn++)
        for (int i = 0; i < axes->count; i++) {
            bool again = is_again(spec->graph, axes, axes->at[i]);
            if ((again ? 2 : !spec->is_row[axes->at[i].dim]) == turn)
                out.at[out.count++] = axes->at[i];
        }
    return out;
}

/* Where they lie innermost, as its mainloop wants them. */
static epi_axes put_last(const epi_axes *axes, const epi_axes *last) {
    epi_axes out = epi_axes_without(axes, last);
    epi_axes_unite(&out, last);
    return out;
}

/* Is it a sum of a scan's states at each step, of which nothing but a sum over other axes is wanted? Then the state's own
 * axis lies innermost, along which the mainloop stores it. */
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
        first.at[k] = first_name(g, own->at[k]);
        again |= is_again(g, own, own->at[k]);
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
    return put_rows_first(spec, own);
}

static bool lies_so(const epi_axes *axes, const epi_axes *memory) {
    bool same = axes->count == memory->count;
    for (int i = 0; i < axes->count && same; i++)
        same = epi_axis_equal(axes->at[i], memory->at[i]);
    return same;
}

/* Does the slice of an input, or of a value that is no output with its axes in another order, begin where a
 * tensor may? Whatever the number of rows: it counts as one. */
static bool is_aligned(const epi_placer *s, int node) {
    const epi_graph *g = s->g;
    int root = epi_placer_root(s, g->nodes[node].arg[0]);
    const epi_node *n = &g->nodes[root];
    epi_axes memory = n->op == EPI_OP_INPUT ? g->tensors[n->tensor].axes : epi_cut_layout(s->spec, root);
    for (int t = g->input_count; t < g->tensor_count && n->op != EPI_OP_INPUT; t++)
        if (epi_graph_renamed(g, g->tensors[t].node) == root && !lies_so(&g->tensors[t].axes, &memory))
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
        alone &= uses.at[i].node == node || uses.at[i].node == EPI_NO_NODE ||
                 !epi_op_is_half(g->nodes[uses.at[i].node].op);
    return alone;
}

/* Is it a part of its operand that lies there as a tensor may? */
static bool is_part(const epi_placer *s, int node) {
    return (s->g->nodes[node].op == EPI_OP_GATHER || is_lone_half(s->g, node)) && is_aligned(s, node);
}

/* ---- what a part can hold ---- */

/* May every value of these axes be on an attention part's score tile, or on that of another result? */
static bool fits_attention(const epi_placer_part *p, const epi_axes *axes) {
    const epi_attention *a = &p->attention->plan;
    bool fits = false;
    for (int v = -1; v < epi_attention_outs(a) && !fits; v++) {
        const epi_axes *cols = v < 0 ? &a->stream : &a->sums[v].cols;
        fits = true;
        for (int i = 0; i < axes->count && fits; i++)
            fits = epi_axes_find(&p->rows, axes->at[i]) >= 0 || epi_axes_find(cols, axes->at[i]) >= 0;
    }
    return fits;
}

static epi_tile tile_of(const epi_placer_part *p) {
    return (epi_tile){p->rows, p->cols, p->split, p->fine};
}

/* May every value of these axes be on the part's tile? */
static bool axes_fit(const epi_placer_part *p, const epi_axes *axes) {
    epi_tile tile = tile_of(p);
    return epi_tile_fits(&tile, axes) || (p->attention && fits_attention(p, axes));
}

/* Notes the one axis that the part takes apart. */
static bool note_split(epi_placer_part *p, const epi_node *n) {
    epi_tile tile = tile_of(p);
    bool grouped = p->kind == EPI_KIND_ROWS && p->local; /* whose columns are neighbours */
    if ((epi_op_split(n->op) == EPI_OP_LOW && p->ordered) || grouped || !epi_tile_split(&tile, n))
        return false;
    p->split = tile.split;
    p->fine = tile.fine;
    return true;
}

/* Has the value some of the part's axes, and not all? One row, which everything is reduced over, is cut
 * anywhere: it has none of these. */
static void note_vector(epi_placer_part *p, const epi_axes *axes) {
    int count = epi_axes_count_in(axes, &p->rows) + epi_axes_count_in(axes, &p->cols);
    p->vectors |= count && count < p->rows.count + p->cols.count;
}

static bool is_one_row(const epi_placer_part *p) {
    return p->kind == EPI_KIND_ROWS && p->shaped && !p->rows.count;
}

/* Can the part keep what it makes for a few steps? Its rows end with the one axis along which they go, and beside maps there are
 * sums over all rows alone. */
static bool can_keep(const epi_placer_part *p) {
    return p->kind == EPI_KIND_ROWS && !p->square && !p->scans && !p->folds && !p->alone &&
           p->split == EPI_OP_COUNT && p->rows.count && p->cols.count && p->shifted.count == 1 &&
           epi_axis_equal(p->shifted.at[0], p->rows.at[p->rows.count - 1]);
}

/* Can the part take values from other places along the axes that it does so: has it rows along each, or that axis alone
 * as its columns? */
static bool can_shift(const epi_placer_part *p) {
    bool can = (!p->shifted.count || (p->kind == EPI_KIND_ROWS && !p->square)) && (!p->window || can_keep(p));
    for (int i = 0; i < p->shifted.count && can; i++)
        can = epi_axes_find(&p->rows, p->shifted.at[i]) >= 0 ||
              (p->cols.count == 1 && epi_axis_equal(p->cols.at[0], p->shifted.at[i]) &&
               p->split == EPI_OP_COUNT);
    return can;
}

/* Are the steps of recurrences rows, or the one column axis there is? */
static bool scan_fits(const epi_placer_part *p) {
    return epi_axes_find(&p->rows, p->scan) >= 0 ||
           (p->cols.count == 1 && epi_axis_equal(p->cols.at[0], p->scan));
}

/* Notes that rows go through a recurrence: all along one axis, and one way. It has all their axes, and nothing was reduced
 * over rows before. */
static bool note_scan(epi_placer_part *p, const epi_node *n) {
    bool back = epi_ops[n->op].back;
    epi_axes axes = p->rows;
    epi_axes_unite(&axes, &p->cols);
    if (p->kind != EPI_KIND_ROWS || p->square || p->alone || p->crosses || p->window ||
        !epi_axes_same_set(&axes, &n->axes) ||
        (p->scans && (p->scan_back != back || !epi_axis_equal(p->scan, n->over.at[0]))))
        return false;
    p->scans = true;
    p->scan_back = back;
    p->scan = n->over.at[0];
    return scan_fits(p);
}

bool epi_placer_fits(const epi_graph *g, epi_placer_part *p, int node) {
    const epi_node *n = &g->nodes[node];
    epi_placer_part trial = *p;
    if (epi_ops[n->op].cls == EPI_CLASS_SPLIT && !note_split(&trial, n))
        return false;
    if (epi_ops[n->op].cls == EPI_CLASS_SCAN && !note_scan(&trial, n))
        return false;
    bool fits = axes_fit(&trial, &n->axes), taken = n->op == EPI_OP_GATHER;
    note_vector(&trial, &n->axes);
    for (int a = 0; a < 3 && fits && !taken && epi_ops[n->op].cls != EPI_CLASS_PRODUCT; a++)
        if (n->arg[a] != EPI_NO_NODE) {
            fits = axes_fit(&trial, &g->nodes[n->arg[a]].axes);
            note_vector(&trial, &g->nodes[n->arg[a]].axes);
        }
    fits &= !(is_one_row(p) && trial.vectors);
    if (n->op == EPI_OP_SHIFT)
        fits &= epi_axes_unite(&trial.shifted, &n->over);
    fits &= can_shift(&trial);
    if (taken && p->kind == EPI_KIND_ROWS) { /* each by its own number */
        const epi_axes *by = &g->nodes[n->arg[1]].axes;
        fits &= epi_axes_count_in(by, &p->rows) == by->count;
        epi_axes_unite(&trial.taken_by, by);
    } else if (taken) { /* tiles do so by that of their group */
        const epi_node *product = p->grouped ? &g->nodes[p->product] : NULL;
        fits &= product && epi_grouped_rows(g, product) && epi_gather_is_of_group(g, node, product->arg[2]);
    }
    if (fits)
        *p = trial;
    return fits;
}

/* Of two products that share a tile each has half of its columns. */
static bool group_fits(const epi_backend_limits *limits, bool pair, int64_t columns) {
    return columns > 0 && columns <= limits->local_most / (pair ? 2 : 1) &&
           columns % limits->local_multiple == 0;
}

/* Is it a statistic of rows: does it reduce all that the axes have behind those that count rows? */
static bool is_statistic(const epi_spec *spec, const epi_axes *axes, const epi_axes *over) {
    bool ends = over && !epi_spec_has_rows(spec, over) && over->count < axes->count;
    epi_axes last = put_rows_first(spec, axes);
    for (int i = 0; ends && i < over->count; i++)
        ends = epi_axes_find(over, last.at[last.count - 1 - i]) >= 0;
    return ends;
}

/* Shapes rows of these axes for a reduction over some of them, or for none: those are the columns where they
 * come last, the rows where they come first. A statistic of rows has its columns last, however they lie.
 * False: they are somewhere between. */
static bool shape_rows(const epi_spec *spec, epi_placer_part *p, const epi_axes *of, const epi_axes *over) {
    bool leading = over != NULL, ends = true;
    epi_axes axes = is_statistic(spec, of, over) ? put_rows_first(spec, of) : *of;
    int count = over ? over->count : 1;
    p->rows.count = p->cols.count = 0;
    p->shaped = over != NULL;
    for (int i = 0; over && i < count && i < axes.count; i++)
        leading &= epi_axes_find(over, axes.at[i]) >= 0;
    int columns = leading ? axes.count - count : count;
    if (columns == 0) /* over everything */
        columns = axes.count;
    for (int i = 0; i < axes.count; i++) {
        bool column = i >= axes.count - columns;
        if (over && !leading) { /* wherever they are */
            ends &= column == (epi_axes_find(over, axes.at[i]) >= 0);
            column = epi_axes_find(over, axes.at[i]) >= 0;
        }
        epi_axes *side = column ? &p->cols : &p->rows;
        side->at[side->count++] = axes.at[i];
    }
    return ends;
}

/* Rows that reduce nothing yet take the shape that their first reduction asks for, if all that they make
 * already can be made in it. */
static void shape_for(const epi_spec *spec, epi_placer_part *p, const epi_axes *over) {
    epi_placer_part trial = *p;
    epi_axes axes = p->rows;
    epi_axes_unite(&axes, &p->cols);
    bool may = p->kind == EPI_KIND_ROWS && !p->shaped;
    for (int i = 0; i < over->count && may; i++)
        may = epi_axes_find(&axes, over->at[i]) >= 0;
    may &= !p->vectors || over->count < axes.count;
    if (may && shape_rows(spec, &trial, &axes, over) &&
        (p->split == EPI_OP_COUNT || epi_axes_find_dim(&trial.cols, p->fine.dim) >= 0) &&
        epi_axes_count_in(&p->taken_by, &trial.rows) == p->taken_by.count && can_shift(&trial) &&
        (!p->scans || scan_fits(&trial)))
        *p = trial;
}

/* Can rows of so many columns reduce over groups of these? Lanes of a warp share a group on a GPU. */
static bool row_group_fits(int whole, int64_t columns, int64_t group) {
    return whole == 1 || (whole > 1 && columns % whole == 0 && group >= 16 && group <= whole / 2 &&
                          (group & (group - 1)) == 0);
}

/* How a value in a row is reduced over some of its columns: those that come last, always the same. */
static epi_reduction reduce_in_row(const epi_placer *s, epi_placer_part *p, const epi_axes *over) {
    unsigned dims = dims_of(&p->rows, &p->cols, over);
    const int64_t *sizes = s->spec->sizes; /* of columns, whose number a kernel knows */
    bool last = p->shaped && p->split == EPI_OP_COUNT && (!p->local || p->local == dims);
    for (int i = 0; i < p->cols.count; i++)
        last &= !epi_open_has(s->spec->open, p->cols.at[i].dim);
    for (int i = 0; i < over->count; i++)
        last &= epi_axes_find(over, p->cols.at[p->cols.count - 1 - i]) >= 0;
    if (!last ||
        !row_group_fits(s->limits->row_columns, epi_axes_size(&p->cols, sizes), epi_axes_size(over, sizes)))
        return EPI_REDUCE_NONE;
    p->local = dims;
    return EPI_REDUCE_LOCAL;
}

/* Can rows that go through recurrences reduce so besides? */
static bool reduces_beside_scans(const epi_placer *s, const epi_placer_part *p, epi_reduction reduction) {
    return scan_fits(p) &&
           (reduction == EPI_REDUCE_COLS ? s->limits->scan_sums && epi_axes_find(&p->rows, p->scan) >= 0
                                         : s->limits->scan_folds);
}

/* How a value on the part's tile is reduced; NONE: it cannot be done there. */
static epi_reduction reduction_of(const epi_placer *s, epi_placer_part *p, int value, const epi_axes *over) {
    if (p->square) /* find_square has what it reduces */
        return EPI_REDUCE_NONE;
    shape_for(s->spec, p, over);
    const epi_axes *from = &s->g->nodes[value].axes;
    epi_tile tile = tile_of(p);
    epi_reduction reduction = epi_tile_reduction(&tile, from, over);
    unsigned dims = dims_of(&p->rows, &p->cols, over);
    bool local = !p->local || p->local == dims; /* no other ones are */
    if (reduction == EPI_REDUCE_NONE || (reduction == EPI_REDUCE_COLS && (p->batched || p->grouped)) ||
        (p->scans && !reduces_beside_scans(s, p, reduction)) || (p->window && reduction != EPI_REDUCE_COLS))
        return EPI_REDUCE_NONE;
    if (p->kind == EPI_KIND_ROWS) /* a row has all columns */
        return epi_axes_count_in(from, &p->rows) < p->rows.count ? EPI_REDUCE_NONE
               : reduction == EPI_REDUCE_LOCAL                   ? reduce_in_row(s, p, over)
               : reduction == EPI_REDUCE_ROWS                    ? EPI_REDUCE_LOCAL
                                                                 : reduction;
    if (p->kind == EPI_KIND_ATTENTION) /* and so has a tile */
        local &= reduction != EPI_REDUCE_COLS && s->value[value] <= 0 &&
                 (!s->reads_loaded_tile[value] || s->limits->reads_loaded_tile);
    else if (reduction != EPI_REDUCE_LOCAL)
        return reduction;
    else
        local &= !(s->without[p->product] & EPI_REFUSED_LOCAL) &&
                 group_fits(s->limits, p->pair != EPI_NO_NODE, epi_axes_size(over, s->sizes));
    if (local)
        p->local = dims;
    return local ? EPI_REDUCE_LOCAL : EPI_REDUCE_NONE;
}

/* ---- parts ---- */

/* The part at which a value can be used first: its own, or the rows that take all that is made of it. */
static int time_of(const epi_placer *s, int node) {
    epi_cut_placement at = s->placement[node];
    if (at.kind == EPI_PLACED_TILE && s->parts[at.part].spilled == node)
        return s->parts[at.part].next;
    return at.kind == EPI_PLACED_INPUT ? -1 : at.part;
}

/* What is stored now is wanted where this value is there, too. */
static void want_after(epi_placer *s, int node) {
    s->until = (int)epi_max64(s->until, time_of(s, node));
}

static int add_part(epi_placer *s, epi_kind kind, int product) {
    s->parts[s->part_count] = (epi_placer_part){.kind = kind,
                                                .product = product,
                                                .pair = EPI_NO_NODE,
                                                .ordered = kind == EPI_KIND_ATTENTION && !s->limits->halves,
                                                .split = EPI_OP_COUNT,
                                                .spilled = EPI_NO_NODE};
    return s->part_count++;
}

/* Do the columns of two products that share an operand lie alike? A GPU's tile wants that of both. */
static bool have_same_layout(const epi_graph *g, int first, int second, int shared) {
    const epi_node *p = &g->nodes[first], *q = &g->nodes[second];
    return epi_operand_is_deep(g, p, p->arg[0] == shared) == epi_operand_is_deep(g, q, q->arg[0] == shared);
}

/* Are halves of the value taken, or of what maps make of it? A GPU reorders the columns of a product for
 * that, which a tile that is shared has no room for. */
static bool is_halved(const epi_graph *g, int node, int depth) {
    epi_use_list uses = epi_graph_uses(g, node);
    for (int i = 0; i < uses.count && depth < 8; i++) {
        int user = uses.at[i].node;
        if (user == EPI_NO_NODE)
            continue;
        epi_op op = g->nodes[user].op;
        if (op == EPI_OP_LOW || op == EPI_OP_HIGH ||
            (epi_ops[op].cls == EPI_CLASS_MAP && is_halved(g, user, depth + 1)))
            return true;
    }
    return false;
}

/* The part of a product that this one can share its tile with, or -1: it has the same rows' operand, and all that
 * it reads is there when that part runs. */
static int find_pair(const epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    int reads[EPI_PRODUCT_READS], count = epi_product_reads(s->g, node, reads), time = -1;
    while (count--)
        time = (int)epi_max64(time, time_of(s, reads[count]));
    for (int q = s->part_count - 1, shared; q >= s->first && s->limits->pairs; q--) {
        const epi_placer_part *p = &s->parts[q];
        if (p->kind != EPI_KIND_GEMM || p->pair != EPI_NO_NODE || p->added_count || p->batched || p->local ||
            (s->without[p->product] | s->without[node]) & EPI_REFUSED_PAIR ||
            !epi_products_pair(s->g, p->product, node, &shared) ||
            (s->limits->same_layout && (!have_same_layout(s->g, p->product, node, shared) ||
                                        is_halved(s->g, p->product, 0) || is_halved(s->g, node, 0))))
            continue;
        const epi_axes *with_rows = &s->g->nodes[shared].axes;
        if (time < q && epi_axes_find(with_rows, n->axes.at[n->axes.count - 1]) < 0)
            return q;
    }
    return -1;
}

/* Notes of all that belongs to a sum of products which sum that is. */
static void mark_sum(epi_placer *s, int node, int root) {
    s->sum[node] = root;
    for (int a = 0; a < 2 && s->g->nodes[node].op == EPI_OP_ADD; a++)
        mark_sum(s, s->g->nodes[node].arg[a], root);
}

/* How an operand will lie: an input, and what is a view of one, as it does. */
static epi_axes operand_layout(const epi_spec *spec, int node) {
    const epi_graph *g = spec->graph;
    epi_op op = g->nodes[epi_graph_renamed(g, node)].op;
    return op == EPI_OP_INPUT || op == EPI_OP_GATHER ? g->nodes[node].axes : epi_cut_layout(spec, node);
}

/* The products that a tile adds up with this one, all of one direction; else it is alone. */
static epi_product_sum find_sum(epi_placer *s, int node) {
    epi_product_sum sum = epi_products_sum(s->g, operand_layout, s->spec, node);
    bool may = s->limits->pairs;
    for (int i = 0; i < sum.count; i++) /* depths are constants of a GPU's text, and rows may be open */
        may &= s->forward[sum.products[i]] == s->forward[sum.root] && !s->attention_of[sum.products[i]] &&
               !s->inner[sum.products[i]] && !(s->without[sum.products[i]] & EPI_REFUSED_PAIR) &&
               !epi_spec_has_rows(s->spec, &s->g->nodes[sum.products[i]].over);
    if (may && sum.count > 1)
        mark_sum(s, sum.root, sum.root);
    return may ? sum : (epi_product_sum){node, {node}, 1};
}

/* The value is in memory, and whoever uses it under another name, or a slice of it, loads it from there. */
static void place_view(epi_placer *s, int node) {
    int from = s->g->nodes[node].arg[0];
    epi_placer_store(s, from);
    bool there = s->placement[from].kind == EPI_PLACED_INPUT;
    s->placement[node] =
        there ? s->placement[from] : (epi_cut_placement){EPI_PLACED_VIEW, s->placement[from].part};
}

/* Something wants the value: if it is a view that waits, what it is a view of is stored. */
static void settle_view(epi_placer *s, int node) {
    while (s->waiting[node]) {
        int first = node;
        while (s->waiting[s->g->nodes[first].arg[0]])
            first = s->g->nodes[first].arg[0];
        s->waiting[first] = false;
        place_view(s, first);
    }
}

/* Products that are added up have a part when the last of them is placed, and their sums are on its tile. */
static void add_product(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    epi_product_sum sum = find_sum(s, node);
    for (int i = 0; i < sum.count; i++)
        if (sum.products[i] != node && !s->placed[sum.products[i]])
            return;
    int operands[EPI_MAX_TERMS * EPI_PRODUCT_READS], count = 0;
    for (int i = 0; i < sum.count; i++)
        count += epi_product_reads(s->g, sum.products[i], operands + count);
    for (int i = 0; i < count; i++)
        want_after(s, operands[i]);
    for (int i = 0; i < count; i++) {
        settle_view(s, operands[i]);
        epi_placer_store(s, operands[i]);
    }
    s->until = -1;
    int other = n->axes.count && sum.count == 1 ? find_pair(s, node) : -1;
    if (other >= 0) {
        s->parts[other].pair = node;
        s->placement[node] = (epi_cut_placement){EPI_PLACED_TILE, other};
        return;
    }
    int q = add_part(s, EPI_KIND_GEMM, sum.products[0]);
    epi_placer_part *p = &s->parts[q];
    for (int i = 1; i < sum.count; i++)
        p->added[p->added_count++] = sum.products[i];
    const epi_axes *first = &s->g->nodes[n->arg[0]].axes, *second = &s->g->nodes[n->arg[1]].axes;
    p->grouped = n->op == EPI_OP_GROUPED;
    for (int i = 0; i < n->axes.count; i++) {
        bool group =
            p->grouped && epi_axis_equal(n->axes.at[i], epi_grouped_axis(s->g, n)); /* of the depth */
        bool in_rows = group || epi_axes_find(first, n->axes.at[i]) >= 0;
        epi_axes *side = in_rows ? &p->rows : &p->cols;
        side->at[side->count++] = n->axes.at[i];
        p->batched |= group || (in_rows && epi_axes_find(second, n->axes.at[i]) >= 0);
    }
    s->placement[node] = (epi_cut_placement){EPI_PLACED_TILE, q};
    for (int i = sum.products[0]; i <= sum.root && sum.count > 1; i++)
        if (s->sum[i] == sum.root)
            s->placement[i] = s->placement[node];
    int spilled = s->spills ? s->spills[p->product] : EPI_NO_NODE;
    if (spilled != EPI_NO_NODE) {
        p->spilled = spilled;
        p->next = add_part(s, EPI_KIND_ROWS, EPI_NO_NODE);
        s->parts[p->next].rows = p->rows;
        s->parts[p->next].cols = p->cols;
        s->parts[p->next].shaped = true;
        s->forced[spilled] = true;
    }
}

/* A part over rows of this value's shape, for a reduction over these axes or for none. */
static int add_rows(epi_placer *s, int node, const epi_axes *over) {
    int q = add_part(s, EPI_KIND_ROWS, EPI_NO_NODE);
    shape_rows(s->spec, &s->parts[q], &s->g->nodes[node].axes, over);
    return q;
}

/* ---- unplaced values that must exist ---- */

/* Notes the unplaced values that `node` needs and what those read, both in the order of nodes. */
static void find_cone(epi_placer *s, int node) {
    s->cone.count = s->read.count = 0;
    epi_visits_begin(&s->visits, node);
    for (int i; epi_visits_next(&s->visits, &i);) {
        if (s->placement[i].kind != EPI_UNPLACED) {
            if (!epi_op_is_free(s->g->nodes[i].op))
                s->read.at[s->read.count++] = i;
            continue;
        }
        s->cone.at[s->cone.count++] = i;
        for (int a = 0; a < epi_node_operands(&s->g->nodes[i]); a++)
            epi_visit(&s->visits, s->g->nodes[i].arg[a]);
    }
    epi_list_sort(&s->cone);
    epi_list_sort(&s->read);
}

/* Does the part read the value already? */
static bool reads(const epi_placer *s, int q, int value) {
    epi_use_list uses = epi_graph_uses(s->g, value);
    for (int i = 0; i < uses.count; i++) {
        int user = uses.at[i].node;
        if (user == EPI_NO_NODE || !s->placed[user])
            continue;
        if (s->placement[user].kind != EPI_UNPLACED && s->placement[user].kind != EPI_PLACED_INPUT &&
            s->placement[user].part == q && s->placement[value].part != q)
            return true;
    }
    return false;
}

bool epi_placer_may_keep(const epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    return n->op == EPI_OP_SHIFT && epi_is_near(s->spec, n) &&
           epi_ops[s->g->nodes[n->arg[0]].op].cls == EPI_CLASS_MAP;
}

/* Is something of the cone shifted that whoever makes the cone makes: another value of it, or one on part q? */
static bool shifts_made(const epi_placer *s, int q) {
    bool made = false;
    for (int i = 0; i < s->cone.count; i++) {
        const epi_node *n = &s->g->nodes[s->cone.at[i]];
        if (n->op != EPI_OP_SHIFT)
            continue;
        epi_cut_placement at = s->placement[n->arg[0]];
        made |= at.kind == EPI_UNPLACED || (at.kind == EPI_PLACED_TILE && at.part == q);
    }
    return made;
}

/* The first value of the cone that the part cannot hold, beside one that is taken apart another way;
 * EPI_NO_NODE: it holds all of them. What is taken apart says at which scales an axis may be. */
static int first_misfit(const epi_placer *s, epi_placer_part *p) {
    p->window |= shifts_made(s, -1);
    for (int i = 0; i < s->cone.count; i++)
        if (epi_ops[s->g->nodes[s->cone.at[i]].op].cls == EPI_CLASS_SPLIT)
            note_split(p, &s->g->nodes[s->cone.at[i]]);
    for (int i = 0; i < s->cone.count; i++)
        if (!epi_placer_fits(s->g, p, s->cone.at[i]))
            return s->cone.at[i];
    return EPI_NO_NODE;
}

/* Can all of the cone be on the part's tile, and be reduced there if that is wanted? */
static bool cone_fits(const epi_placer *s, epi_placer_part *p, int node, const epi_axes *over) {
    bool of_group = p->kind == EPI_KIND_GEMM && s->g->nodes[node].op == EPI_OP_GATHER; /* one for all rows */
    if (of_group || first_misfit(s, p) != EPI_NO_NODE)
        return false;
    unsigned dims = dims_of(&p->rows, &p->cols, &s->g->nodes[node].axes),
             rows = dims_of(&p->rows, &p->cols, &p->rows), cols = dims_of(&p->rows, &p->cols, &p->cols);
    if (!over && p->shaped && p->kind == EPI_KIND_ROWS && rows && dims == rows)
        return true; /* each row stores a number */
    return dims == (rows | cols) && (!over || reduction_of(s, p, node, over) != EPI_REDUCE_NONE);
}

/* Is everything that the cone reads of this part on its tile, not made of its finished reductions, nor a table
 * that rows are taken from, nor read at other places, but where it may be kept for that? */
static bool reads_tile(const epi_placer *s, int q) {
    for (int i = 0; i < s->cone.count; i++) {
        const epi_node *n = &s->g->nodes[s->cone.at[i]];
        int moved =
            n->op == EPI_OP_GATHER ? 2 : n->op == EPI_OP_SHIFT && !epi_placer_may_keep(s, s->cone.at[i]);
        for (int a = 0; a < moved; a++)
            if (s->placement[n->arg[a]].part == q && s->placement[n->arg[a]].kind != EPI_UNPLACED &&
                s->placement[n->arg[a]].kind != EPI_PLACED_INPUT)
                return false;
    }
    for (int i = 0; i < s->read.count; i++) {
        epi_cut_placement at = s->placement[s->read.at[i]];
        if (at.part == q && at.kind != EPI_PLACED_TILE && at.kind != EPI_PLACED_INPUT)
            return false;
    }
    return true;
}

/* Lists the unplaced operands of a value, the first of them last. */
static void list_operands(epi_placer *s, int node) {
    for (int a = 2; a >= 0; a--) {
        int arg = s->g->nodes[node].arg[a];
        if (arg != EPI_NO_NODE && s->placement[arg].kind == EPI_UNPLACED)
            s->pending.at[s->pending.count++] = arg;
    }
}

/* Lists what has to be stored so that a part for the node can hold the rest: the value that is taken apart
 * another way, if rows can make that by themselves; else its operands. Where the part is to reduce the node
 * and cannot take a row of a table, or is one row, the node; where it cannot keep what is shifted, that. */
static void list_misfit(epi_placer *s, int node, int misfit, const epi_axes *over) {
    if (s->g->nodes[misfit].op == EPI_OP_SHIFT &&
        s->placement[s->g->nodes[misfit].arg[0]].kind == EPI_UNPLACED) {
        list_operands(s, misfit);
        return;
    }
    bool whole =
        over && (s->g->nodes[misfit].op == EPI_OP_GATHER || over->count == s->g->nodes[node].axes.count);
    bool apart = whole || misfit != node;
    int stored = whole ? node : misfit;
    if (apart) {
        find_cone(s, stored);
        apart = first_misfit(s, &s->parts[add_rows(s, stored, NULL)]) == EPI_NO_NODE;
        s->part_count--;
        find_cone(s, node);
    }
    if (apart)
        s->pending.at[s->pending.count++] = stored;
    else
        list_operands(s, misfit);
}

/* Does whoever uses the value recompute it, so that nobody waits for the part that was the first to? A row of
 * a table; and a number for each row, which maps make of inputs. Its operands were asked before. */
static bool stays_unplaced(const epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    if (s->takes[node] && (n->op == EPI_OP_GATHER || n->op == EPI_OP_SHIFT))
        return true;
    bool unplaced = epi_ops[n->op].cls == EPI_CLASS_MAP;
    for (int i = 0; i < n->axes.count; i++)
        unplaced &= s->spec->is_row[n->axes.at[i].dim];
    for (int a = 0; a < 3; a++)
        unplaced &= n->arg[a] == EPI_NO_NODE || time_of(s, n->arg[a]) < 0;
    return unplaced;
}

/* Notes how many reductions of its part a value in a row waits for, itself among them. */
static void count_folds(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    bool reduces = epi_ops[n->op].cls == EPI_CLASS_REDUCE;
    s->folds[node] = reduces;
    for (int a = 0; a < epi_node_operands(n); a++) {
        epi_cut_placement at = s->placement[n->arg[a]];
        if (at.kind == EPI_PLACED_TILE && at.part == s->placement[node].part &&
            s->folds[n->arg[a]] + reduces > s->folds[node])
            s->folds[node] = s->folds[n->arg[a]] + reduces;
    }
}

/* What it costs if part q makes the value of the cone: what it has to load for it and does not yet, and to
 * keep it until it is wanted. Of parts that load the same the one that is nearest to its use makes it: else
 * the rows that a backward makes again would, of all layers, be made by the first part that has their shape,
 * and be alive at once. */
static double cost_at(const epi_placer *s, int q, int node, bool kept) {
    epi_cost cost = {0};
    for (int i = 0; i < s->read.count; i++)
        cost.bytes += reads(s, q, s->read.at[i]) ? 0 : epi_placer_bytes(s, s->read.at[i]);
    if (kept)
        cost.alive = epi_placer_bytes(s, node) * (double)epi_max64(0, s->until - q);
    return epi_cost_sum(cost);
}

/* Does the part read something that the cone does, or make it? */
static bool shares_reads(const epi_placer *s, int q) {
    bool shares = false;
    for (int i = 0; i < s->read.count; i++) {
        epi_cut_placement at = s->placement[s->read.at[i]];
        shares |= (at.kind == EPI_PLACED_TILE && at.part == q) || reads(s, q, s->read.at[i]);
    }
    return shares;
}

/* The part makes the node, and of it, where it is unplaced, all of the cone. */
static void join_part(epi_placer *s, int q, int node, bool unplaced) {
    for (int i = 0; i < s->read.count; i++)
        s->parts[q].tensors += !reads(s, q, s->read.at[i]);
    s->parts[q].tensors++;
    s->parts[q].window |= unplaced && shifts_made(s, q);
    for (int i = 0; i < s->cone.count && unplaced; i++) {
        int at = s->cone.at[i];
        epi_placer_fits(s->g, &s->parts[q], at); /* notes what it takes apart */
        if (at == node || !stays_unplaced(s, at)) {
            s->placement[at] = (epi_cut_placement){EPI_PLACED_TILE, q};
            count_folds(s, at);
        }
    }
}

/* The last part that makes what the cone reads; and how many bytes that is. */
static int time_of_reads(const epi_placer *s, double *bytes) {
    int time = -1;
    *bytes = 0;
    for (int i = 0; i < s->read.count; i++) {
        time = (int)epi_max64(time, time_of(s, s->read.at[i]));
        *bytes += epi_placer_bytes(s, s->read.at[i]);
    }
    return time;
}

/* Gives a value that is not on a fitting tile a part: one after its time that has its shape, or one over
 * rows. -1: a new part cannot hold all that it is made of, and the values that were listed have to be stored
 * first. */
static int try_part(epi_placer *s, int node, const epi_axes *over) {
    bool unplaced = s->placement[node].kind == EPI_UNPLACED;
    find_cone(s, node);
    double least = 0;
    epi_cost rows = {.launches = 1};
    int best = -1, time = time_of_reads(s, &rows.bytes);
    for (int q = time < s->first ? s->first : time; q < s->part_count; q++) { /* all that it reads is there */
        epi_placer_part trial = s->parts[q];
        if (trial.kind == EPI_KIND_ATTENTION || trial.alone) /* tiles hold what comes of their products */
            continue;
        if (trial.square && !shares_reads(s, q)) /* all that it reads is in registers */
            continue;
        if (trial.spilled != EPI_NO_NODE) /* the rows behind it take what it could */
            continue;
        if (over && q > time && trial.kind == EPI_KIND_GEMM) /* a tile reduces what comes of its product */
            continue;
        trial.window |= unplaced && shifts_made(s, q);
        if ((q == time && !(unplaced && reads_tile(s, q))) || !cone_fits(s, &trial, node, over))
            continue;
        if (trial.tensors + s->read.count + 1 > s->limits->tensors) /* it would be refused */
            continue;
        double cost = cost_at(s, q, node, !over);
        if (cost <= epi_cost_sum(rows) && (best < 0 || cost < least)) {
            best = q;
            least = cost;
        }
    }
    if (best < 0) {
        int before = s->pending.count;
        best = add_rows(s, node, over);
        epi_placer_part trial = s->parts[best];
        epi_tile tile = tile_of(&trial);
        trial.folds = over && epi_tile_reduction(&tile, &s->g->nodes[node].axes, over) != EPI_REDUCE_COLS;
        int misfit = unplaced ? first_misfit(s, &trial) : EPI_NO_NODE;
        if (misfit != EPI_NO_NODE)
            list_misfit(s, node, misfit, over);
        if (s->pending.count > before) {
            s->part_count--;
            return -1;
        }
    }
    join_part(s, best, node, unplaced);
    return best;
}

/* The value's part, after all that has to be stored for it. What waits is a list, not recursion: programs are
 * long. */
static int find_part(epi_placer *s, int node, const epi_axes *over) {
    int part;
    while ((part = try_part(s, node, over)) < 0)
        while (s->pending.count) {
            int at = s->pending.at[s->pending.count - 1];
            bool unplaced = s->placement[at].kind == EPI_UNPLACED; /* else it came to a part with another */
            if (unplaced && try_part(s, at, NULL) < 0)
                continue;
            s->forced[at] |= unplaced;
            s->pending.count--;
        }
    return part;
}

/* A map on rows that share it, which none of them can store, is made where it can be. */
static void leave_rows(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    epi_cut_placement at = s->placement[node];
    if (at.kind != EPI_PLACED_TILE || s->forced[node] || epi_ops[n->op].cls != EPI_CLASS_MAP)
        return;
    const epi_placer_part *p = &s->parts[at.part];
    if (p->kind != EPI_KIND_ROWS || !p->rows.count || epi_axes_count_in(&n->axes, &p->rows))
        return;
    s->placement[node] = (epi_cut_placement){EPI_UNPLACED, -1};
    for (int a = 0; a < epi_node_operands(n); a++)
        s->placement[node].part = (int)epi_max64(s->placement[node].part, time_of(s, n->arg[a]));
}

void epi_placer_store(epi_placer *s, int node) {
    if (s->placement[node].kind == EPI_PLACED_PIECES) {
        epi_placer_store_pieces(s, node);
        return;
    }
    if (s->placement[node].kind == EPI_PLACED_INPUT || s->placement[node].kind == EPI_PLACED_VIEW)
        return; /* it is in memory, or needs no memory */
    leave_rows(s, node);
    if (s->placement[node].kind == EPI_UNPLACED)
        find_part(s, node, NULL);
    s->forced[node] = true;
}

/* ---- every value its placement ---- */

/* Is the result compared with something? Then it must be of the values as they are stored, not of those on
 * the tile before they were rounded: x == max(x, X) holds somewhere. */
static bool is_compared(const epi_graph *g, int node) {
    epi_use_list uses = epi_graph_uses(g, node);
    for (int i = 0; i < uses.count; i++) {
        epi_op op = uses.at[i].node == EPI_NO_NODE ? EPI_OP_COUNT : g->nodes[uses.at[i].node].op;
        if (epi_op_compares(op))
            return true;
    }
    return false;
}

/* Has it rows and columns? */
static bool is_tile(const epi_axes *axes, const epi_axes *rows, const epi_axes *cols) {
    return epi_axes_count_in(axes, rows) && epi_axes_count_in(axes, cols);
}

/* Is an element of the tile made of a row's number, such as a reduction over the columns gives? */
static bool makes_elements(epi_placer *s, epi_placer_part p, int node) {
    const epi_axes *over = &s->g->nodes[node].over;
    epi_visits_begin(&s->visits, node);
    for (int i; epi_visits_next(&s->visits, &i);) {
        epi_use_list uses = epi_graph_uses(s->g, i);
        for (int u = 0; u < uses.count; u++) {
            int user = uses.at[u].node;
            if (user == EPI_NO_NODE || epi_ops[s->g->nodes[user].op].cls != EPI_CLASS_MAP ||
                !epi_placer_fits(s->g, &p, user))
                continue;
            if (epi_axes_count_in(&s->g->nodes[user].axes, over))
                return true;
            epi_visit(&s->visits, user);
        }
    }
    return false;
}

/* A cross-tile reduction of a product: is it over all columns (or rows, which are the columns then)
 * of a tile that can have all of them, and wanted there? Notes that the tile has them. */
static bool keeps_full_row(epi_placer *s, epi_placer_part *p, int node, epi_reduction reduction) {
    const epi_node *n = &s->g->nodes[node];
    int64_t columns = epi_axes_size(&n->over, s->sizes);
    unsigned x = dims_of(&p->rows, &p->cols, &n->over);
    if (reduction <= EPI_REDUCE_LOCAL || p->kind != EPI_KIND_GEMM || p->pair != EPI_NO_NODE || columns < 1 ||
        columns > s->limits->full_row_most || s->without[p->product] & EPI_REFUSED_FULL_ROW ||
        !is_tile(&s->g->nodes[n->arg[0]].axes, &p->rows, &p->cols) ||
        (p->local ? p->local != x : !makes_elements(s, *p, node)))
        return false;
    p->local = x;
    return true;
}

/* The part that makes an order like this one already, or that by which it is sorted, or the places of these largest
 * elements; or -1. What is sorted is there by then. */
static int find_order(const epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    bool sorted = epi_is_sorted(s->g, node), largest = epi_is_largest(s->g, node);
    int by = sorted || largest ? n->arg[1] : node, made = s->placement[by].part;
    if (sorted || largest)
        return s->placed[by] && made >= s->first && s->placement[n->arg[0]].kind != EPI_UNPLACED &&
                       time_of(s, n->arg[0]) < made
                   ? made
                   : -1;
    epi_use_list uses = epi_graph_uses(s->g, s->g->nodes[by].arg[0]);
    for (int i = 0; i < uses.count; i++) {
        int user = uses.at[i].node;
        if (user != EPI_NO_NODE && s->placed[user] && s->placement[user].part >= s->first &&
            epi_orders_alike(s->g, user, by))
            return s->placement[user].part;
    }
    return -1;
}

/* A part that makes one value from operands in memory, and nothing else; or all orders of an index, and what
 * is sorted by them; or the largest elements and their places. */
static void place_alone(epi_placer *s, int node) {
    int order = find_order(s, node);
    if (order >= 0) {
        for (int a = 0; a < epi_node_operands(&s->g->nodes[node]); a++)
            epi_placer_store(s, s->g->nodes[node].arg[a]);
        s->placement[node] = (epi_cut_placement){EPI_PLACED_AFTER, order};
        return;
    }
    int segments = epi_node_segments(s->g, &s->g->nodes[node]);
    for (int a = 0; a < epi_node_operands(&s->g->nodes[node]); a++)
        epi_placer_store(s, a == 1 && segments != EPI_NO_NODE ? s->g->nodes[segments].arg[0]
                                                              : s->g->nodes[node].arg[a]);
    bool reduces = epi_ops[s->g->nodes[node].op].cls == EPI_CLASS_REDUCE;
    int q = add_rows(s, reduces ? s->g->nodes[node].arg[0] : node, NULL);
    s->parts[q].shaped = s->parts[q].alone = true;
    s->placement[node] = (epi_cut_placement){EPI_PLACED_AFTER, q};
}

/* Can rows of the value's axes reduce it over these: are they the first or the last of them? */
static bool can_be_rows(const epi_placer *s, int node, const epi_axes *over) {
    epi_placer_part rows = {.kind = EPI_KIND_ROWS};
    epi_axes axes = epi_cut_layout(s->spec, node);
    return shape_rows(s->spec, &rows, &axes, over);
}

/* Will the value lie in memory with these axes innermost: as an output, or as a product reads it? */
static bool lies_along(const epi_placer *s, int node, const epi_axes *over) {
    const epi_graph *g = s->g;
    epi_axes at = epi_cut_layout(s->spec, node);
    bool stored = epi_scaled_depth(g, node).count > 0, along = true;
    for (int t = g->input_count; t < g->tensor_count && !stored; t++)
        if (g->tensors[t].node == node) {
            at = g->tensors[t].axes;
            stored = true;
        }
    for (int i = 0; i < over->count && stored; i++)
        along &= epi_axes_find(over, at.at[at.count - 1 - i]) >= 0;
    return stored && along;
}

/* Is what maps make of the reduction, and of what it reduces, stored with the axes that it is over innermost, as what is
 * quantised down its rows is for a product over these? Then rows along them make both. */
static bool is_turned(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    bool turned = false;
    epi_visits_begin(&s->visits, node);
    for (int i; !turned && epi_visits_next(&s->visits, &i);) {
        epi_use_list uses = epi_graph_uses(s->g, i);
        turned = epi_axes_same_set(&s->g->nodes[i].axes, &s->g->nodes[n->arg[0]].axes) &&
                 lies_along(s, i, &n->over);
        for (int u = 0; u < uses.count; u++)
            if (uses.at[u].node != EPI_NO_NODE &&
                epi_ops[s->g->nodes[uses.at[u].node].op].cls == EPI_CLASS_MAP)
                epi_visit(&s->visits, uses.at[u].node);
    }
    return turned;
}

/* A part over square tiles. */
static int add_square(epi_placer *s, const epi_square *square) {
    int q = add_part(s, EPI_KIND_ROWS, EPI_NO_NODE);
    epi_placer_part *p = &s->parts[q];
    p->square = p->shaped = true;
    p->rows = square->rows;
    p->cols = square->cols;
    p->local = dims_of(&p->rows, &p->cols, &p->cols);
    return q;
}

/* Can the part over square tiles make what the extreme is of, which it shares something with? */
static bool can_share_square(const epi_placer *s, int q, int time, const epi_square *square, int from) {
    epi_placer_part trial = s->parts[q];
    epi_cut_placement at = s->placement[from];
    bool there = q > time || (at.kind == EPI_UNPLACED ? reads_tile(s, q) : at.kind == EPI_PLACED_TILE);
    return trial.square && there && epi_axes_same_set(&trial.rows, &square->rows) &&
           epi_axes_same_set(&trial.cols, &square->cols) && shares_reads(s, q) &&
           trial.tensors + s->read.count + 1 <= s->limits->tensors && first_misfit(s, &trial) == EPI_NO_NODE;
}

/* The part over square tiles that takes the extreme of this value; -1: none can. */
static int find_square(epi_placer *s, int from, const epi_square *square) {
    bool unplaced = s->placement[from].kind == EPI_UNPLACED;
    double bytes;
    find_cone(s, from);
    int time = time_of_reads(s, &bytes), q = (int)epi_max64(time, s->first);
    while (q < s->part_count && !can_share_square(s, q, time, square, from))
        q++;
    if (q == s->part_count) {
        add_square(s, square);
        epi_placer_part trial = s->parts[q];
        if (first_misfit(s, &trial) != EPI_NO_NODE) {
            s->part_count--;
            return -1;
        }
    }
    join_part(s, q, from, unplaced);
    return q;
}

/* Takes the extreme on a square tile, unless the tile of a product that makes the value does. */
static bool place_in_square(epi_placer *s, int node, bool on_product) {
    epi_square square;
    if (on_product || !epi_square_find(s->spec, &s->visits, node, &square))
        return false;
    int q = find_square(s, s->g->nodes[node].arg[0], &square);
    if (q < 0)
        return false;
    s->placement[node] = (epi_cut_placement){EPI_PLACED_TILE, q};
    count_folds(s, node);
    return true;
}

static void place_reduction(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    int from = n->arg[0], q = time_of(s, from);
    epi_reduction reduction = EPI_REDUCE_NONE;
    epi_placer_part part = {.kind = EPI_KIND_ROWS};
    if (s->placement[from].kind == EPI_PLACED_TILE && q >= s->first) {
        part = s->parts[q];
        reduction = reduction_of(s, &part, from, &n->over);
    }
    if (reduction != EPI_REDUCE_NONE && keeps_full_row(s, &part, node, reduction))
        reduction = EPI_REDUCE_LOCAL;
    bool full =
        reduction == EPI_REDUCE_LOCAL && part.kind == EPI_KIND_ROWS && s->folds[from] >= EPI_MOST_FOLDS;
    if (place_in_square(s, node, reduction == EPI_REDUCE_LOCAL && part.kind == EPI_KIND_GEMM))
        return;
    if (reduction == EPI_REDUCE_NONE && !can_be_rows(s, from, &n->over) && !is_turned(s, node)) {
        place_alone(s, node);
        return;
    }
    if (reduction == EPI_REDUCE_NONE || full || (reduction > EPI_REDUCE_LOCAL && is_compared(s->g, node))) {
        q = find_part(s, from, &n->over);
        part = s->parts[q];
        reduction = reduction_of(s, &part, from, &n->over);
    }
    part.folds |= reduction == EPI_REDUCE_LOCAL;
    part.crosses |= reduction > EPI_REDUCE_LOCAL;
    s->parts[q] = part;
    /* where no part can, the part's plan says so and it is split (split.c) */
    s->placement[node] =
        (epi_cut_placement){reduction == EPI_REDUCE_LOCAL ? EPI_PLACED_TILE : EPI_PLACED_AFTER, q};
    count_folds(s, node);
}

/* Notes which value product of an attention part a value is made of; false: of none, or of both. */
static bool note_value(epi_placer *s, int part, int node) {
    const epi_node *n = &s->g->nodes[node];
    const epi_placer_part *p = &s->parts[part];
    int value = -1;
    s->reads_loaded_tile[node] = false;
    for (int a = 0; a < epi_node_operands(n); a++) {
        int arg = n->arg[a];
        bool own = s->placement[arg].kind == EPI_PLACED_TILE && s->placement[arg].part == part;
        s->reads_loaded_tile[node] |=
            own ? s->reads_loaded_tile[arg] : is_tile(&s->g->nodes[arg].axes, &p->rows, &p->cols);
        if (!own)
            continue;
        if (value >= 0 && value != s->value[arg])
            return false;
        value = s->value[arg];
    }
    s->value[node] = (signed char)value;
    return value >= 0 && value < epi_attention_outs(&p->attention->plan);
}

/* Can the value be made on the part's tile, and, of what it is made of, what is made of rows of tables, or takes an axis
 * apart? The tile does so in one way. */
static bool fits_with_tables(epi_placer *s, epi_placer_part *p, int node) {
    const epi_node *n = &s->g->nodes[node];
    epi_placer_part trial = *p;
    bool fits = epi_placer_fits(s->g, &trial, node);
    for (int a = 0; a < epi_node_operands(n) && fits; a++)
        if ((s->takes[n->arg[a]] || s->apart[n->arg[a]]) && s->placement[n->arg[a]].kind == EPI_UNPLACED) {
            find_cone(s, n->arg[a]);
            fits = first_misfit(s, &trial) == EPI_NO_NODE;
        }
    if (fits)
        *p = trial;
    return fits;
}

static void place_map(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    int time = -1;
    bool tile = true, vector = true;
    for (int a = 0; a < 3; a++)
        if (n->arg[a] != EPI_NO_NODE && time_of(s, n->arg[a]) > time)
            time = time_of(s, n->arg[a]);
    epi_placer_part *p = time < s->first ? NULL : &s->parts[time];
    if (p && p->attention)
        tile = note_value(s, time, node);
    for (int a = 0; a < epi_node_operands(n) && p; a++) {
        epi_cut_placement at = s->placement[n->arg[a]];
        tile &= time_of(s, n->arg[a]) < time || at.kind == EPI_PLACED_TILE ||
                (p->attention && at.kind == EPI_PLACED_AFTER);
        bool again = p->attention && at.kind == EPI_UNPLACED && at.part < time; /* its tiles make that */
        vector &= (at.kind == EPI_PLACED_INPUT || at.kind == EPI_PLACED_AFTER || again) &&
                  are_vector(&p->rows, &p->cols, &s->g->nodes[n->arg[a]].axes);
    }
    epi_cut_placement_kind kind = EPI_UNPLACED;
    if (p && tile && fits_with_tables(s, p, node))
        kind = EPI_PLACED_TILE;
    else if (p && !p->scans && vector && are_vector(&p->rows, &p->cols, &n->axes) &&
             epi_ops[n->op].cls == EPI_CLASS_MAP)
        kind = EPI_PLACED_AFTER;
    s->placement[node] = (epi_cut_placement){kind, time};
    s->takes[node] = kind == EPI_UNPLACED && epi_node_takes(n, s->takes);
    s->apart[node] =
        kind == EPI_UNPLACED && (epi_ops[n->op].cls == EPI_CLASS_SPLIT || epi_node_takes(n, s->apart));
    count_folds(s, node);
}

/* Can the part that makes the new elements of an update store them where its index says? The result is one
 * output, so that it may take its operand's place, and has the type in which the new elements would be kept.
 */
static bool updates_on_tile(const epi_placer *s, int node) {
    const epi_graph *g = s->g;
    const epi_node *n = &g->nodes[node];
    if (!s->limits->updates || n->op != EPI_OP_UPDATE || s->placement[n->arg[2]].kind != EPI_PLACED_TILE ||
        s->placement[n->arg[2]].part < s->first)
        return false;
    const epi_placer_part *p = &s->parts[s->placement[n->arg[2]].part];
    int outputs = 0;
    bool alike = true;
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (g->tensors[t].node == node) {
            outputs++;
            alike &= s->spec->types[t] == s->spec->type;
        }
    return outputs == 1 && alike && p->kind == EPI_KIND_GEMM && epi_update_fits(g, node, &p->rows, &p->cols);
}

/* Are rows taken, each by a number of its own? */
static bool has_number_by_row(const epi_graph *g, const epi_node *n) {
    if (n->op != EPI_OP_GATHER)
        return false;
    const epi_axes *by = &g->nodes[n->arg[1]].axes;
    return by->count && epi_axes_find(by, n->axes.at[n->axes.count - 1]) < 0;
}

/* Is the value a row of an input, which rows take as they go, by a number that each row has or by its own
 * place? Then it is made wherever it is used, unless that may be a product's tile, by maps. Or is it one of a
 * value that is stored for it, along several axes, as experts' slots are? A product's tile would want the sum
 * of some of them in memory, and rows want the tile's value: that is the same. */
static bool is_taken(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node], *index = &s->g->nodes[n->arg[1]];
    bool input = n->op == EPI_OP_GATHER && s->g->nodes[n->arg[0]].op == EPI_OP_INPUT &&
                 (index->op == EPI_OP_INPUT || index->op == EPI_OP_INDEX);
    bool taken = (input || n->over.count > 1) && has_number_by_row(s->g, n);
    epi_visits_begin(&s->visits, node);
    for (int i; taken && epi_visits_next(&s->visits, &i);) {
        epi_use_list uses = epi_graph_uses(s->g, i);
        taken = !s->inner[i] && (!s->of_product[i] || n->over.count > 1);
        for (int u = 0; u < uses.count; u++) {
            int user = uses.at[u].node;
            epi_op_class cls = user == EPI_NO_NODE ? EPI_CLASS_LEAF : epi_ops[s->g->nodes[user].op].cls;
            if (cls == EPI_CLASS_MAP || cls == EPI_CLASS_SPLIT)
                epi_visit(&s->visits, user);
        }
    }
    return taken;
}

/* Is it a slice of an index, by which alone rows along several axes are taken? */
static bool is_taken_by(epi_placer *s, int node) {
    int64_t at;
    epi_use_list uses = epi_graph_uses(s->g, node);
    bool taken = s->g->nodes[node].op == EPI_OP_GATHER && epi_graph_at_number(s->g, node, &at) && uses.count;
    for (int i = 0; i < uses.count && taken; i++) {
        int user = uses.at[i].node;
        taken = user != EPI_NO_NODE && uses.at[i].operand == 1 && s->g->nodes[user].over.count > 1 &&
                is_taken(s, user);
    }
    return taken;
}

/* Is it one of several numbers of a row, by which alone elements along an axis are chosen: where(index(E) == i,
 * x, 0)? */
static bool is_chosen_by(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    int64_t at;
    epi_use_list uses = epi_graph_uses(s->g, node);
    bool chosen =
        n->op == EPI_OP_GATHER && epi_graph_at_number(s->g, node, &at) && uses.count && n->axes.count;
    for (int i = 0; i < n->axes.count; i++)
        chosen &= s->spec->is_row[n->axes.at[i].dim];
    for (int i = 0; i < uses.count && chosen; i++) {
        const epi_node *user = uses.at[i].node == EPI_NO_NODE ? n : &s->g->nodes[uses.at[i].node];
        const epi_node *is =
            user->op == EPI_OP_WHERE && uses.at[i].operand ? &s->g->nodes[user->arg[0]] : user;
        chosen = is->op == EPI_OP_EQ &&
                 (s->g->nodes[is->arg[0]].op == EPI_OP_INDEX || s->g->nodes[is->arg[1]].op == EPI_OP_INDEX);
    }
    return chosen;
}

/* Is it one of several numbers of a row, or of a column, in an input, which nothing but maps of the row's elements wants,
 * and none on a product's tile? Rows read it where it lies. */
static bool is_number_of_row(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    int64_t at;
    bool number = n->op == EPI_OP_GATHER && epi_graph_at_number(s->g, node, &at) && n->axes.count &&
                  s->g->nodes[n->arg[0]].op == EPI_OP_INPUT;
    int rows = 0;
    for (int i = 0; i < n->axes.count; i++)
        rows += s->spec->is_row[n->axes.at[i].dim];
    number &= !rows || rows == n->axes.count;
    epi_visits_begin(&s->visits, node);
    for (int i; number && epi_visits_next(&s->visits, &i);) {
        epi_use_list uses = epi_graph_uses(s->g, i);
        number = !s->inner[i] && !s->of_product[i];
        for (int u = 0; u < uses.count && number; u++) {
            int user = uses.at[u].node;
            bool map = user != EPI_NO_NODE && epi_ops[s->g->nodes[user].op].cls == EPI_CLASS_MAP;
            number = i != node || (map && s->g->nodes[user].axes.count > n->axes.count &&
                                   (rows || epi_spec_has_rows(s->spec, &s->g->nodes[user].axes)));
            if (map)
                epi_visit(&s->visits, user);
        }
    }
    return number;
}

/* Is it what the groups of a product have each, which may be the one that makes the tiles on which it is wanted? A number
 * of each is if nothing but products' tiles wants it. */
static bool is_of_group(const epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    if (n->op != EPI_OP_GATHER || !epi_gather_is_of_group(s->g, node, n->arg[1]))
        return false;
    epi_use_list uses = epi_graph_uses(s->g, node);
    bool tiles = true;
    for (int i = 0; i < uses.count; i++)
        tiles &= uses.at[i].node != EPI_NO_NODE && s->of_product[uses.at[i].node] &&
                 epi_ops[s->g->nodes[uses.at[i].node].op].cls == EPI_CLASS_MAP;
    return tiles || has_number_by_row(s->g, n);
}

/* What rows take, or by what, as they go: its operands are in memory by then, but for segments, which a tile does not
 * want. */
static void place_taken(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    epi_cut_placement at = {EPI_UNPLACED, -1};
    for (int a = 0; a < 2; a++) {
        settle_view(s, n->arg[a]);
        if (!epi_op_is_free(s->g->nodes[n->arg[a]].op) && !s->takes[n->arg[a]] &&
            s->g->nodes[n->arg[a]].op != EPI_OP_SEGMENTS)
            epi_placer_store(s, n->arg[a]);
        at.part = (int)epi_max64(at.part, time_of(s, n->arg[a]));
    }
    s->placement[node] = at;
    s->takes[node] = true;
}

/* Can rows make what is shifted and keep it: those that make it already, or new ones? */
static bool can_be_kept(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    epi_cut_placement at = s->placement[n->arg[0]];
    bool unplaced = at.kind == EPI_UNPLACED, tile = at.kind == EPI_PLACED_TILE && at.part >= s->first;
    if (!epi_placer_may_keep(s, node) || (!unplaced && !tile))
        return false;
    epi_placer_part trial = {.kind = EPI_KIND_ROWS, .split = EPI_OP_COUNT};
    if (tile)
        trial = s->parts[at.part];
    else
        shape_rows(s->spec, &trial, &n->axes, NULL);
    trial.window = true;
    s->cone.count = 0;
    if (unplaced)
        find_cone(s, n->arg[0]);
    return epi_placer_fits(s->g, &trial, node) && first_misfit(s, &trial) == EPI_NO_NODE;
}

/* Rows load it where they want it, from what is in memory by then, or keep it as they make it. */
static void place_shift(epi_placer *s, int node) {
    int from = s->g->nodes[node].arg[0];
    if (!s->limits->shifts) {
        place_alone(s, node);
        return;
    }
    settle_view(s, from);
    if (!can_be_kept(s, node))
        epi_placer_store(s, from);
    s->placement[node] = (epi_cut_placement){EPI_UNPLACED, time_of(s, from)};
    s->takes[node] = true;
}

/* What is made from operands in memory. Rows of a table, and random numbers, are made by rows; other gathers,
 * scatters, orders and updates are parts by themselves. An update moves next to nothing where its result takes its operand's place; or the part that makes its new
 * elements stores them there. */
static void place_move(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    for (int a = 0; a < 3; a++)
        if (n->arg[a] != EPI_NO_NODE)
            settle_view(s, n->arg[a]);
    if (is_taken(s, node)) {
        place_taken(s, node);
        return;
    }
    if (updates_on_tile(s, node)) {
        s->placement[node] = (epi_cut_placement){EPI_PLACED_AFTER, s->placement[n->arg[2]].part};
        return;
    }
    if (n->op != EPI_OP_UNIFORM && !has_number_by_row(s->g, n)) {
        place_alone(s, node);
        return;
    }
    for (int a = 0; a < 3 && n->op != EPI_OP_UNIFORM; a++)
        if (n->arg[a] != EPI_NO_NODE)
            epi_placer_store(s, n->arg[a]);
    int q = add_rows(s, node, NULL);
    s->parts[q].shaped = n->op != EPI_OP_UNIFORM;
    s->placement[node] = (epi_cut_placement){EPI_PLACED_TILE, q};
}

/* Is it the last step of a value on the rows of recurrences? They store it as it comes. */
static bool is_last_step(const epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    if (!s->limits->scan_last || n->op != EPI_OP_GATHER || n->over.count != 1)
        return false;
    epi_cut_placement at = s->placement[n->arg[0]];
    const epi_placer_part *p = at.kind == EPI_PLACED_TILE && at.part >= s->first ? &s->parts[at.part] : NULL;
    return p && p->scans && epi_axis_equal(n->over.at[0], p->scan) &&
           epi_takes_end(s->spec, node, p->scan_back) &&
           s->g->nodes[n->arg[0]].axes.count == p->rows.count + p->cols.count;
}

/* A recurrence is on rows that go through its steps, which nobody makes again. */
static void place_scan(epi_placer *s, int node) {
    if (!s->limits->scans) {
        place_move(s, node);
        return;
    }
    place_map(s, node);
    if (s->placement[node].kind == EPI_UNPLACED)
        find_part(s, node, NULL);
}

/* Is the value a random number of which nothing but elements of attention's scores are made, by maps? Then
 * every attention recomputes it, as it does them. */
static bool is_of_scores(epi_placer *s, int node) {
    epi_visits_begin(&s->visits, node);
    for (int i; epi_visits_next(&s->visits, &i);) {
        epi_use_list uses = epi_graph_uses(s->g, i);
        for (int u = 0; u < uses.count; u++) {
            int user = uses.at[u].node;
            if (user == EPI_NO_NODE || epi_ops[s->g->nodes[user].op].cls != EPI_CLASS_MAP ||
                !epi_axes_same_set(&s->g->nodes[user].axes, &s->g->nodes[node].axes))
                return false;
            if (!s->inner[user])
                epi_visit(&s->visits, user);
        }
    }
    return true;
}

static void place_random(epi_placer *s, int node) {
    if (is_of_scores(s, node))
        s->placement[node] = (epi_cut_placement){EPI_UNPLACED, -1};
    else
        place_move(s, node);
}

/* Is every extreme of the value, or of what maps make of it, taken on the tile that makes it, which has all
 * columns? How many are there? */
static int count_full_rows(epi_placer *s, int node, int depth) {
    enum { DEEPEST = 8 };
    epi_use_list uses = epi_graph_uses(s->g, node);
    int count = 0;
    for (int i = 0; i < uses.count && count >= 0; i++) {
        int user = uses.at[i].node, more = 0;
        if (user == EPI_NO_NODE)
            continue;
        epi_op op = s->g->nodes[user].op;
        epi_placer_part trial = s->parts[s->placement[node].part];
        if (op == EPI_OP_RMAX || op == EPI_OP_RMIN) {
            epi_reduction reduction = reduction_of(s, &trial, node, &s->g->nodes[user].over);
            more = reduction != EPI_REDUCE_NONE && keeps_full_row(s, &trial, user, reduction) ? 1 : -1;
        } else if ((epi_ops[op].exact && !epi_op_compares(op)) || op == EPI_OP_SUB) {
            s->placement[user] = s->placement[node];
            more = depth < DEEPEST ? count_full_rows(s, user, depth + 1) : -1;
        }
        count = more < 0 ? -1 : count + more;
    }
    return count;
}

/* A value that is compared with its own extreme: is it on a product's tile, and so are its extremes? Then
 * they are of the very same numbers there, and are stored, if at all, in f32. */
static bool stays_on_tile(epi_placer *s, int node) {
    epi_cut_placement at = s->placement[s->g->nodes[node].arg[0]];
    if (at.kind != EPI_PLACED_TILE || at.part < s->first)
        return false;
    const epi_placer_part *p = &s->parts[at.part];
    s->placement[node] = at;
    return p->kind == EPI_KIND_GEMM && p->spilled == EPI_NO_NODE && count_full_rows(s, node, 0) > 0;
}

/* A view of an unplaced value waits until something wants it: only then is it known how long it is alive. */
static void see_view(epi_placer *s, int node) {
    int from = s->g->nodes[node].arg[0];
    s->waiting[node] = s->waiting[from] || (s->placement[from].kind == EPI_UNPLACED && !s->forced[from]);
    if (s->waiting[node])
        s->placement[node] = (epi_cut_placement){EPI_UNPLACED, s->placement[from].part};
    else
        place_view(s, node);
}

static void place(epi_placer *s, int node) {
    if (s->g->nodes[node].integer && epi_ops[s->g->nodes[node].op].cls != EPI_CLASS_LEAF) {
        for (int a = 0; a < epi_node_operands(&s->g->nodes[node]); a++)
            settle_view(s, s->g->nodes[node].arg[a]);
        place_alone(s, node);
        return;
    }
    switch (epi_ops[s->g->nodes[node].op].cls) {
    case EPI_CLASS_LEAF: s->placement[node] = (epi_cut_placement){EPI_PLACED_INPUT, -1}; break;
    case EPI_CLASS_PRODUCT: add_product(s, node); break;
    case EPI_CLASS_REDUCE: place_reduction(s, node); break;
    case EPI_CLASS_VIEW:
        s->view[node] = s->g->nodes[node].op == EPI_OP_RENAME || !stays_on_tile(s, node);
        s->view[node] ? see_view(s, node) : place_map(s, node);
        break;
    case EPI_CLASS_MOVE:
        if (is_last_step(s, node)) {
            s->placement[node] =
                (epi_cut_placement){EPI_PLACED_AFTER, s->placement[s->g->nodes[node].arg[0]].part};
            break;
        }
        if (is_taken_by(s, node) || is_chosen_by(s, node) || is_of_group(s, node)) {
            place_taken(s, node);
            break;
        }
        s->view[node] = is_part(s, node);
        if (s->view[node])
            see_view(s, node);
        else
            (is_number_of_row(s, node) ? place_taken : place_move)(s, node);
        break;
    case EPI_CLASS_SCAN: place_scan(s, node); break;
    case EPI_CLASS_SORT: place_move(s, node); break;
    case EPI_CLASS_SHIFT: place_shift(s, node); break;
    case EPI_CLASS_RANDOM: place_random(s, node); break;
    case EPI_CLASS_MAP:
    case EPI_CLASS_SPLIT:
        s->view[node] = is_part(s, node);
        if (s->view[node])
            see_view(s, node);
        else if (s->sum[node] == EPI_NO_NODE) /* else its part places it */
            place_map(s, node);
        break;
    }
}

/* What an attention part's tiles cannot make must be in memory: its products' operands, and what does not
 * have the shape of a tile. */
static void store_needs(epi_placer *s, const epi_placer_attention *at) {
    const epi_attention *a = &at->plan;
    epi_placer_part part = {.kind = EPI_KIND_ATTENTION,
                            .rows = a->rows,
                            .cols = a->sums[0].cols,
                            .ordered = !s->limits->halves,
                            .split = EPI_OP_COUNT,
                            .attention = at};
    int operands[EPI_ATTENTION_OPERANDS], count = epi_attention_operands(a, operands);
    for (int i = 0; i < at->needs.count; i++)
        want_after(s, at->needs.at[i]);
    for (int i = 0; i < at->needs.count; i++)
        settle_view(s, at->needs.at[i]);
    for (int i = 0; i < at->needs.count; i++) {
        int node = at->needs.at[i];
        bool store = false;
        if (s->inner[node]) /* it is read through its pages */
            continue;
        for (int k = 0; k < count; k++)
            store |= node == operands[k];
        if (!store && s->placement[node].kind == EPI_UNPLACED) {
            find_cone(s, node);
            for (int c = 0; c < s->cone.count; c++) {
                epi_op_class cls = epi_ops[s->g->nodes[s->cone.at[c]].op].cls;
                store |= (cls != EPI_CLASS_MAP && cls != EPI_CLASS_RANDOM) ||
                         !epi_placer_fits(s->g, &part, s->cone.at[c]);
            }
        }
        if (store)
            epi_placer_store(s, node);
    }
    s->until = -1;
}

/* Views that a value is made of are there: those of a product when its part is made. A view of a view waits
 * as that does. */
static void settle_operands(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    epi_stretch part;
    bool view = n->op == EPI_OP_RENAME || (n->op == EPI_OP_GATHER && epi_stretch_find(s->spec, node, &part));
    for (int a = 0; a < 3 && !epi_op_is_product(n->op) && !view; a++)
        if (n->arg[a] != EPI_NO_NODE)
            settle_view(s, n->arg[a]);
}

/* The operands of a scan of products are in memory, and its results come together. */
static void place_recurrence(epi_placer *s, const epi_recurrence *r) {
    int operands[EPI_RECURRENCE_OPERANDS], count = epi_recurrence_operands(r, operands);
    for (int i = 0; i < count; i++)
        want_after(s, operands[i]);
    for (int i = 0; i < count; i++)
        settle_view(s, operands[i]);
    for (int i = 0; i < count; i++)
        epi_placer_store(s, operands[i]);
    s->until = -1;
    epi_placer_place_recurrence(s, r, add_rows(s, epi_recurrence_result(r), NULL));
}

/* Places a value whose operands are placed; of an attention all that it makes, and then the values that
 * waited for it come: it returns the node to go on with. */
static int place_next(epi_placer *s, int node) {
    if (s->recurrence_of[node]) {
        place_recurrence(s, &s->recurrences.at[s->recurrence_of[node] - 1]);
        return node + 1;
    }
    if (!s->attention_of[node]) {
        settle_operands(s, node);
        place(s, node);
        s->placed[node] = true;
        return node + 1;
    }
    epi_placer_attention *at = &s->attentions[s->attention_of[node] - 1];
    store_needs(s, at);
    epi_placer_place_attention(s, at, add_part(s, EPI_KIND_ATTENTION, EPI_NO_NODE));
    return at->plan.inner.at[0];
}

static bool is_ready(const epi_placer *s, int node) {
    if (s->attention_of[node])
        return epi_placer_attention_ready(s, &s->attentions[s->attention_of[node] - 1]);
    if (s->recurrence_of[node])
        return epi_placer_recurrence_ready(s, &s->recurrences.at[s->recurrence_of[node] - 1]);
    int reads[EPI_PRODUCT_READS];
    int count = epi_op_is_product(s->g->nodes[node].op) ? epi_product_reads(s->g, node, reads) : 0;
    for (int i = 0; i < count; i++)
        if (!s->placed[reads[i]])
            return false;
    for (int a = 0; a < 3; a++)
        if (s->g->nodes[node].arg[a] != EPI_NO_NODE && !s->placed[s->g->nodes[node].arg[a]])
            return false;
    return true;
}

/* Is it a product that nothing wants but outputs? */
static bool is_result(const epi_placer *s, int node) {
    epi_use_list uses = epi_graph_uses(s->g, node);
    bool result = epi_op_is_product(s->g->nodes[node].op) && !s->attention_of[node] && !s->inner[node];
    for (int i = 0; i < uses.count; i++)
        result &= uses.at[i].node == EPI_NO_NODE || s->put_by[node] == uses.at[i].node;
    return result;
}

/* A weight gradient of which an operand is in memory nowhere yet, the normalised rows, waits for the input
 * gradient that is made of its other operand: that part can make them on its tile. */
static bool waits(epi_placer *s, int node) {
    const epi_graph *g = s->g;
    for (int a = 0; a < 2 && is_result(s, node); a++) {
        int unplaced = g->nodes[node].arg[a];
        epi_use_list uses = epi_graph_uses(g, g->nodes[node].arg[1 - a]);
        if (s->placement[unplaced].kind != EPI_UNPLACED || s->forced[unplaced] || s->waiting[unplaced])
            continue;
        for (int i = 0; i < uses.count; i++) {
            int other = uses.at[i].node;
            if (other == EPI_NO_NODE || !epi_op_is_product(g->nodes[other].op) || s->attention_of[other] ||
                s->inner[other] || s->forward[other] != s->forward[node] || is_result(s, other) ||
                !epi_axes_same_set(&g->nodes[other].axes, &g->nodes[unplaced].axes))
                continue;
            epi_product_sum sum = find_sum(s, other);
            for (int p = 0; p < sum.count; p++)
                if (!s->placed[sum.products[p]])
                    return true;
        }
    }
    return false;
}

/* Places all values of a direction; false: an attention or a scan of products waits for itself. */
static bool place_all(epi_placer *s, bool forward) {
    int count = s->g->node_count, left = 0;
    for (int before = -1; before != left;) {
        int waiting =
            count; /* the first that waits for a product, which is gone back to after the next one */
        before = left;
        left = 0;
        for (int i = 0; i < count;) {
            bool ready = s->g->live[i] && !s->placed[i] && s->forward[i] == forward && is_ready(s, i);
            bool later = ready && waits(s, i), product = epi_op_is_product(s->g->nodes[i].op);
            waiting = later && i < waiting ? i : waiting;
            i = ready && !later ? place_next(s, i) : i + 1;
            if (ready && !later && product && waiting < i) {
                i = waiting;
                waiting = count;
            }
        }
        for (int i = 0; i < count; i++)
            left += s->g->live[i] && !s->placed[i] && s->forward[i] == forward;
        if (!left)
            return true;
    }
    return false;
}

/* Drops an attention or a scan of products that waits for itself; false: none does. */
static bool drop_waiting(epi_placer *s) {
    int k = 0;
    if (epi_placer_drop_recurrence(s))
        return true;
    while (k < s->attention_count && (s->attentions[k].dropped || s->attentions[k].placed))
        k++;
    if (k < s->attention_count)
        s->attentions[k].dropped = true;
    return k < s->attention_count;
}

/* Every value's placement, or false where an attention or a scan of products cannot be one part, which is dropped.
 * Where none is left to drop, a value is `stuck`: what it reads is nowhere. */
static bool make_placer(epi_placer *s, epi_arena *arena) {
    const epi_graph *g = s->g;
    memset(s->forced, 0, (size_t)g->node_count);
    memset(s->placed, 0, (size_t)g->node_count);
    memset(s->waiting, 0, (size_t)g->node_count);
    memset(s->takes, 0, (size_t)g->node_count);
    memset(s->apart, 0, (size_t)g->node_count);
    s->part_count = 0;
    for (int i = 0; i < g->node_count; i++)
        s->sum[i] = EPI_NO_NODE;
    if (!epi_placer_agree_attention(arena, s))
        return true; /* the arena tells */
    for (int i = 0; i < g->node_count; i++)
        if (g->live[i] && (g->nodes[i].on_load || epi_gather_is_read(g, i) ||
                           epi_scaled_is_read(g, i))) { /* products make or take these */
            s->inner[i] = s->placed[i] = true;
            s->placement[i] = (epi_cut_placement){EPI_PLACED_SCORE, -1};
        }
    epi_placer_agree_recurrences(s);
    epi_placer_find_pieces(s);
    bool both = epi_find_forward(g, s->forward);
    for (int back = 0; back <= both; back++) {
        s->first = s->part_count;
        if (!place_all(s, !back)) {
            s->stuck = !drop_waiting(s);
            return s->stuck;
        }
        for (int i = 0; i < g->node_count; i++)
            settle_view(s, i);
        for (int t = g->input_count; t < g->tensor_count; t++)
            if (s->forward[g->tensors[t].node] != back)
                epi_placer_store(s, g->tensors[t].node);
    }
    return true;
}

epi_status epi_placer_make(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                           const unsigned *without, const int *spills, epi_placer *s, epi_error *err) {
    const epi_graph *g = spec->graph;
    size_t nodes = (size_t)g->node_count + 1;
    *s = (epi_placer){
        .spec = spec, .limits = limits, .g = g, .without = without, .spills = spills, .until = -1};
    s->said = epi_stored_find(arena, g, spec->types, spec->type);
    s->placement = epi_arena_alloc(arena, nodes * sizeof *s->placement);
    s->parts = epi_arena_alloc(arena, (2 * nodes + (size_t)g->tensor_count) * sizeof *s->parts);
    s->forced = epi_arena_alloc(arena, nodes);
    s->folds = epi_arena_alloc(arena, nodes * sizeof *s->folds);
    s->scratch = epi_arena_alloc(arena, nodes * sizeof *s->scratch);
    s->pending.at = epi_arena_alloc(arena, 3 * nodes * sizeof *s->pending.at);
    s->cone.at = epi_arena_alloc(arena, nodes * sizeof *s->cone.at);
    s->read.at = epi_arena_alloc(arena, nodes * sizeof *s->read.at);
    s->placed = epi_arena_alloc(arena, nodes);
    s->forward = epi_arena_alloc(arena, nodes);
    s->view = epi_arena_alloc(arena, nodes);
    s->waiting = epi_arena_alloc(arena, nodes);
    s->sum = epi_arena_alloc(arena, nodes * sizeof *s->sum);
    s->of_product = epi_arena_alloc(arena, nodes);
    s->takes = epi_arena_alloc(arena, nodes);
    s->apart = epi_arena_alloc(arena, nodes);
    s->put_by = epi_arena_alloc(arena, nodes * sizeof *s->put_by);
    s->put_into = epi_arena_alloc(arena, nodes * sizeof *s->put_into);
    if (!epi_visits_make(arena, g->node_count, &s->visits))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int i = 0; i < g->node_count; i++)
        s->of_product[i] = epi_op_is_product(g->nodes[i].op) || epi_node_takes(&g->nodes[i], s->of_product);
    epi_nominal_sizes(spec, s->sizes);
    epi_find_forward(g, s->forward);
    if (epi_placer_find_recurrences(arena, s) && epi_placer_find_attention(arena, s))
        while (!make_placer(s, arena))
            ;
    if (s->stuck)
        return EPI_INTERNAL(err, (epi_place){0}, "a value waits for what no part makes");
    return arena->failed ? epi_fail(err, EPI_ERR_MEMORY, "out of memory") : EPI_OK;
}
