/* cut_holds.c: what a part can hold: the values that its tile or rows may have, and reductions of these. */
#include "pass/place/placer.h"

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

epi_tile epi_placer_tile_of(const epi_placer_part *p) {
    return (epi_tile){p->rows, p->cols, p->split, p->fine};
}

/* May every value of these axes be on the part's tile? */
static bool axes_fit(const epi_placer_part *p, const epi_axes *axes) {
    epi_tile tile = epi_placer_tile_of(p);
    return epi_tile_fits(&tile, axes) || (p->attention && fits_attention(p, axes));
}

/* May what is reduced inside a tile stand beside an axis that is taken apart? That one counts fastest, and the
 * columns of a group are neighbours. */
static bool keeps_split(const epi_placer_part *p, const epi_axes *fine) {
    return !(epi_placer_dims(&p->rows, &p->cols, fine) & ~p->local);
}

bool epi_placer_note_split(epi_placer_part *p, const epi_node *n) {
    epi_tile tile = epi_placer_tile_of(p);
    bool grouped = p->local && (p->kind == EPI_KIND_ROWS || !keeps_split(p, &n->over));
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

/* Can the part keep what it makes for a few steps? Its rows end with the one axis along which they go, and
 * beside maps there are sums over all rows alone. */
static bool can_keep(const epi_placer_part *p) {
    epi_tile tile = epi_placer_tile_of(p);
    return p->kind == EPI_KIND_ROWS && !p->square && !p->scans && !p->folds && p->shifted.count == 1 &&
           epi_has_window(&tile, p->shifted.at[0]);
}

/* Can the part take values from other places along the axes that it does so: has it rows along each, or that
 * axis alone as its columns? */
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

/* Notes that rows go through a recurrence: all along one axis, and one way. It has all their axes, and
 * nothing was reduced over rows before. */
static bool note_scan(const epi_placer *s, epi_placer_part *p, const epi_node *n) {
    bool back = epi_ops[n->op].back;
    epi_axes axes = p->rows;
    epi_axes_unite(&axes, &p->cols);
    if (p->kind != EPI_KIND_ROWS || p->square || p->crosses || p->window ||
        (p->folds && !s->spec->scan_folds) || !epi_axes_same_set(&axes, &n->axes) ||
        (p->scans && (p->scan_back != back || !epi_axis_equal(p->scan, n->over.at[0]))))
        return false;
    p->scans = true;
    p->scan_back = back;
    p->scan = n->over.at[0];
    return scan_fits(p);
}

bool epi_placer_fits(const epi_placer *s, epi_placer_part *p, int node) {
    const epi_graph *g = s->g;
    const epi_node *n = &g->nodes[node];
    epi_placer_part trial = *p;
    if (epi_op_has_halves(n->op) && !epi_placer_note_split(&trial, n))
        return false;
    if (epi_op_scans(n->op) && !note_scan(s, &trial, n))
        return false;
    bool fits = axes_fit(&trial, &n->axes), taken = n->op == EPI_OP_GATHER;
    note_vector(&trial, &n->axes);
    for (int a = 0; a < 3 && fits && !taken && !epi_op_is_product(n->op); a++)
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
        fits &= p->kind == EPI_KIND_GEMM && epi_takes_of_group(g, p->product, node);
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
    epi_axes first = epi_rows_first(spec, axes);
    return over && !epi_spec_has_rows(spec, over) && over->count < axes->count &&
           epi_axes_end_with(&first, over);
}

bool epi_placer_shape_rows(const epi_spec *spec, epi_placer_part *p, const epi_axes *of,
                           const epi_axes *over) {
    bool leading = over != NULL, ends = true;
    epi_axes axes = is_statistic(spec, of, over) ? epi_rows_first(spec, of) : *of;
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
    if (may && epi_placer_shape_rows(spec, &trial, &axes, over) &&
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

/* May a value in a row be reduced over some of its columns? They are always the same. */
static epi_reduction reduce_in_row(const epi_placer *s, epi_placer_part *p, const epi_axes *over) {
    unsigned dims = epi_placer_dims(&p->rows, &p->cols, over);
    const int64_t *sizes = s->spec->sizes; /* of columns, whose number a kernel knows */
    bool may = p->shaped && (!p->local || p->local == dims);
    for (int i = 0; i < p->cols.count; i++)
        may &= !epi_open_has(s->spec->open, p->cols.at[i].dim);
    if (!may ||
        !row_group_fits(s->limits->row_columns, epi_axes_size(&p->cols, sizes), epi_axes_size(over, sizes)))
        return EPI_REDUCE_NONE;
    p->local = dims;
    return EPI_REDUCE_LOCAL;
}

epi_reduction epi_placer_reduction_of(const epi_placer *s, epi_placer_part *p, int value,
                                      const epi_axes *over) {
    if (p->square) /* find_square has what it reduces */
        return EPI_REDUCE_NONE;
    shape_for(s->spec, p, over);
    const epi_axes *from = &s->g->nodes[value].axes;
    epi_tile tile = epi_placer_tile_of(p);
    epi_reduction reduction =
        (p->kind == EPI_KIND_ROWS ? epi_row_reduction : epi_tile_reduction)(&tile, from, over);
    unsigned dims = epi_placer_dims(&p->rows, &p->cols, over);
    bool local = !p->local || p->local == dims; /* no other ones are */
    if (reduction == EPI_REDUCE_NONE || (reduction == EPI_REDUCE_COLS && (p->batched || p->grouped)) ||
        (p->scans && !(scan_fits(p) && epi_scan_reduces(s->spec, &p->rows, p->scan, reduction))) ||
        (p->window && reduction != EPI_REDUCE_COLS))
        return EPI_REDUCE_NONE;
    if (p->kind == EPI_KIND_ROWS) /* a row has all columns */
        return reduction == EPI_REDUCE_LOCAL  ? reduce_in_row(s, p, over)
               : reduction == EPI_REDUCE_ROWS ? EPI_REDUCE_LOCAL
                                              : reduction;
    if (p->kind == EPI_KIND_ATTENTION) /* and so has a tile */
        local &= reduction != EPI_REDUCE_COLS && s->value[value] <= 0 &&
                 (!s->reads_loaded_tile[value] || s->limits->reads_loaded_tile);
    else if (reduction != EPI_REDUCE_LOCAL)
        return reduction;
    else
        local &= !(s->without[p->product] & EPI_REFUSED_LOCAL) &&
                 group_fits(s->limits, p->pair != EPI_NO_NODE, epi_axes_size(over, s->sizes));
    local &= p->split == EPI_OP_COUNT || epi_axes_has_dim(over, p->fine.dim);
    if (local)
        p->local = dims;
    return local ? EPI_REDUCE_LOCAL : EPI_REDUCE_NONE;
}
