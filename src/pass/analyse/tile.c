/* tile.c: what a product's tile, or rows, can hold, as the graph says it. */
#include "pass/analyse/tile.h"

bool epi_tile_fits(const epi_tile *tile, const epi_axes *axes) {
    for (int i = 0; i < axes->count; i++) {
        epi_axis a = axes->at[i];
        if (tile->split != EPI_OP_COUNT && a.dim == tile->fine.dim) {
            if (a.shift != tile->fine.shift && a.shift != tile->fine.shift - 1)
                return false;
        } else if (epi_axes_find(&tile->rows, a) < 0 && epi_axes_find(&tile->cols, a) < 0) {
            return false;
        }
    }
    return true;
}

bool epi_tile_split(epi_tile *tile, const epi_node *n) {
    epi_op split = epi_op_split(n->op);
    epi_axis fine = n->over.at[0];
    if (tile->split != EPI_OP_COUNT)
        return tile->split == split && epi_axis_equal(tile->fine, fine);
    int at = epi_axes_find_dim(&tile->cols, fine.dim);
    if (at < 0 || (tile->cols.at[at].shift != fine.shift && tile->cols.at[at].shift != fine.shift - 1))
        return false;
    tile->split = split;
    tile->fine = fine;
    return true;
}

epi_reduction epi_tile_reduction(const epi_tile *tile, const epi_axes *from, const epi_axes *over) {
    const epi_axes *rows = &tile->rows, *cols = &tile->cols;
    int over_rows = epi_axes_count_in(over, rows), over_cols = epi_axes_count_in(over, cols);
    if (over_rows + over_cols < over->count || (over_rows && over_cols) ||
        epi_axes_count_in(from, rows) + epi_axes_count_in(from, cols) < from->count ||
        epi_axes_count_in(from, cols) < cols->count || (over_rows && over_rows < rows->count))
        return EPI_REDUCE_NONE;
    return over_rows ? EPI_REDUCE_COLS : over_cols < cols->count ? EPI_REDUCE_LOCAL : EPI_REDUCE_ROWS;
}

epi_reduction epi_row_reduction(const epi_tile *rows, const epi_axes *from, const epi_axes *over) {
    epi_reduction reduction = epi_tile_reduction(rows, from, over);
    bool apart = reduction == EPI_REDUCE_LOCAL &&
                 (rows->split != EPI_OP_COUNT || !epi_axes_end_with(&rows->cols, over));
    return apart || epi_axes_count_in(from, &rows->rows) < rows->rows.count ? EPI_REDUCE_NONE : reduction;
}

/* ---- axes ---- */

bool epi_axes_end_with(const epi_axes *axes, const epi_axes *last) {
    bool ends = last->count <= axes->count;
    for (int i = 0; i < last->count && ends; i++)
        ends = epi_axes_find(last, axes->at[axes->count - 1 - i]) >= 0;
    return ends;
}

static bool axis_before(const epi_axes *order, epi_axis a, epi_axis b) {
    int i = epi_axes_find_dim(order, a.dim), j = epi_axes_find_dim(order, b.dim);
    return i >= 0 && j >= 0 && i < j;
}

void epi_axes_sort(epi_axes *axes, const epi_axes *order) {
    for (int i = 1; i < axes->count; i++)
        for (int j = i; j > 0 && axis_before(order, axes->at[j], axes->at[j - 1]); j--) {
            epi_axis t = axes->at[j];
            axes->at[j] = axes->at[j - 1];
            axes->at[j - 1] = t;
        }
}

epi_axis epi_axis_first_name(const epi_graph *g, epi_axis axis) {
    while (axis.dim >= g->declared_count && g->same[axis.dim].shift == 0)
        axis.dim = g->same[axis.dim].dim;
    return axis;
}

bool epi_axis_is_again(const epi_graph *g, const epi_axes *axes, epi_axis axis) {
    epi_axis first = epi_axis_first_name(g, axis);
    return !epi_axis_equal(first, axis) && epi_axes_find(axes, first) >= 0;
}

epi_axes epi_rows_first(const epi_spec *spec, const epi_axes *axes) {
    epi_axes out = {0};
    for (int turn = 0; turn < 3; turn++)
        for (int i = 0; i < axes->count; i++) {
            bool again = epi_axis_is_again(spec->graph, axes, axes->at[i]);
            if ((again ? 2 : !spec->is_row[axes->at[i].dim]) == turn)
                out.at[out.count++] = axes->at[i];
        }
    return out;
}

/* ---- products ---- */

const epi_axes *epi_main_output(const epi_graph *g, const epi_axes *product) {
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (epi_axes_count_in(product, &g->tensors[t].axes) == product->count)
            return &g->tensors[t].axes;
    return product;
}

bool epi_takes_of_group(const epi_graph *g, int product, int node) {
    const epi_node *n = &g->nodes[product];
    return n->op == EPI_OP_GROUPED && epi_grouped_rows(g, n) && epi_gather_is_of_group(g, node, n->arg[2]);
}

bool epi_update_fits(const epi_graph *g, int node, const epi_axes *rows, const epi_axes *cols) {
    const epi_node *n = &g->nodes[node];
    if (n->op != EPI_OP_UPDATE || g->nodes[n->arg[0]].op != EPI_OP_INPUT ||
        g->nodes[n->arg[1]].op != EPI_OP_INPUT)
        return false;
    const epi_axes *index = &g->nodes[n->arg[1]].axes, *value = &g->nodes[n->arg[2]].axes;
    bool along = epi_axes_has_dim(rows, n->over.at[0].dim) || epi_axes_has_dim(cols, n->over.at[0].dim);
    return !along && epi_axes_count_in(index, rows) == index->count &&
           value->count == rows->count + cols->count && epi_axes_count_in(value, rows) == rows->count;
}

/* ---- rows ---- */

bool epi_scan_reduces(const epi_spec *spec, const epi_axes *rows, epi_axis scan, epi_reduction reduction) {
    return reduction == EPI_REDUCE_COLS ? spec->scan_sums && epi_axes_find(rows, scan) >= 0
                                        : spec->scan_folds && reduction != EPI_REDUCE_NONE;
}

bool epi_is_last_step(const epi_spec *spec, int node, epi_axis scan, bool back) {
    return spec->scan_last && epi_takes_end(spec, node, back) &&
           epi_axis_equal(spec->graph->nodes[node].over.at[0], scan);
}

bool epi_may_keep(const epi_spec *spec, const epi_node *shift) {
    return epi_is_near(spec, shift) && epi_op_is_map(spec->graph->nodes[shift->arg[0]].op);
}

bool epi_has_window(const epi_tile *rows, epi_axis along) {
    return rows->split == EPI_OP_COUNT && rows->rows.count && rows->cols.count &&
           epi_axis_equal(along, rows->rows.at[rows->rows.count - 1]);
}
