/* cut_rows.c: places reductions, elementwise operations and scans: on the tile of their operands, after it,
 * or on rows. */
#include "pass/place/placer.h"

/* Is a value of these axes short beside the tile: one per row, or one per column? */
static bool are_vector(const epi_axes *rows, const epi_axes *cols, const epi_axes *axes) {
    unsigned dims = epi_placer_dims(rows, cols, axes), r = epi_placer_dims(rows, cols, rows),
             c = epi_placer_dims(rows, cols, cols);
    return dims != (r | c) && (!(dims & ~r) || !(dims & ~c));
}

/* Is the result compared with something? Then it must be of the values as they are stored, not of those on
 * the tile before they were rounded: x == max(x, X) holds somewhere. */
static bool is_compared(const epi_graph *g, int node) {
    epi_use_list uses = epi_graph_uses(g, node);
    for (int i = 0; i < uses.count; i++) {
        if (epi_op_compares(epi_use_op(g, uses.at[i])))
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
            if (!epi_op_is_map(epi_use_op(s->g, uses.at[u])) || !epi_placer_fits(s, &p, user))
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
    unsigned x = epi_placer_dims(&p->rows, &p->cols, &n->over);
    if (reduction <= EPI_REDUCE_LOCAL || p->kind != EPI_KIND_GEMM || p->pair != EPI_NO_NODE || columns < 1 ||
        columns > s->limits->full_row_most || s->without[p->product] & EPI_REFUSED_FULL_ROW ||
        !is_tile(&s->g->nodes[n->arg[0]].axes, &p->rows, &p->cols) ||
        (p->local ? p->local != x : !makes_elements(s, *p, node)))
        return false;
    p->local = x;
    return true;
}

/* Can rows of the value's axes reduce it over these: are they the first or the last of them? */
static bool can_be_rows(const epi_placer *s, int node, const epi_axes *over) {
    epi_placer_part rows = {.kind = EPI_KIND_ROWS};
    epi_axes axes = epi_cut_layout(s->spec, node);
    return epi_placer_shape_rows(s->spec, &rows, &axes, over);
}

/* Will the value lie in memory with these axes innermost: as an output, or as a product reads it? */
static bool lies_along(const epi_placer *s, int node, const epi_axes *over) {
    const epi_graph *g = s->g;
    epi_axes at = epi_cut_layout(s->spec, node);
    bool stored = epi_scaled_depth(g, node).count > 0;
    for (int t = g->input_count; t < g->tensor_count && !stored; t++)
        if (g->tensors[t].node == node) {
            at = g->tensors[t].axes;
            stored = true;
        }
    return stored && epi_axes_end_with(&at, over);
}

/* Is what maps make of the reduction, and of what it reduces, stored with the axes that it is over innermost,
 * as what is quantised down its rows is for a product over these? Then rows along them make both. */
static bool is_turned(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    bool turned = false;
    epi_visits_begin(&s->visits, node);
    for (int i; !turned && epi_visits_next(&s->visits, &i);) {
        epi_use_list uses = epi_graph_uses(s->g, i);
        turned = epi_axes_same_set(&s->g->nodes[i].axes, &s->g->nodes[n->arg[0]].axes) &&
                 lies_along(s, i, &n->over);
        for (int u = 0; u < uses.count; u++)
            if (epi_op_is_map(epi_use_op(s->g, uses.at[u])))
                epi_visit(&s->visits, uses.at[u].node);
    }
    return turned;
}

/* Is it over axes between others, across which rows may lie, and do these compute what is reduced? Else a pass reads it
 * as it lies. */
static bool lies_across(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    int from = n->arg[0];
    bool whole = false; /* a tensor has all axes, as rows need */
    if (s->placement[from].kind != EPI_UNPLACED || s->forced[from] || !epi_op_is_map(s->g->nodes[from].op) ||
        !epi_plan_crosses(s->spec, &n->over))
        return false;
    epi_placer_find_cone(s, from);
    for (int i = 0; i < s->read.count; i++)
        whole |= epi_axes_same_set(&s->g->nodes[s->read.at[i]].axes, &s->g->nodes[from].axes);
    return whole;
}

/* Takes the extreme on a square tile, unless the tile of a product that makes the value does. */
static bool place_in_square(epi_placer *s, int node, bool on_product) {
    epi_square square;
    if (on_product || !epi_square_find(s->spec, &s->visits, node, &square))
        return false;
    int q = epi_placer_find_square(s, s->g->nodes[node].arg[0], &square);
    if (q < 0)
        return false;
    s->placement[node] = (epi_cut_placement){EPI_PLACED_TILE, q};
    epi_placer_count_folds(s, node);
    return true;
}

void epi_placer_place_reduction(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    int from = n->arg[0], q = epi_placer_time_of(s, from);
    epi_reduction reduction = EPI_REDUCE_NONE;
    epi_placer_part part = {.kind = EPI_KIND_ROWS};
    if (s->placement[from].kind == EPI_PLACED_TILE && q >= s->first) {
        part = s->parts[q];
        reduction = epi_placer_reduction_of(s, &part, from, &n->over);
    }
    if (reduction != EPI_REDUCE_NONE && keeps_full_row(s, &part, node, reduction))
        reduction = EPI_REDUCE_LOCAL;
    bool full =
        reduction == EPI_REDUCE_LOCAL && part.kind == EPI_KIND_ROWS && s->folds[from] >= EPI_MOST_FOLDS;
    if (place_in_square(s, node, reduction == EPI_REDUCE_LOCAL && part.kind == EPI_KIND_GEMM))
        return;
    if (reduction == EPI_REDUCE_NONE && !can_be_rows(s, from, &n->over) && !is_turned(s, node) &&
        !lies_across(s, node)) {
        epi_placer_place_pass(s, node);
        return;
    }
    if (reduction == EPI_REDUCE_NONE || full || (reduction > EPI_REDUCE_LOCAL && is_compared(s->g, node))) {
        q = epi_placer_find_part(s, from, &n->over);
        part = s->parts[q];
        reduction = epi_placer_reduction_of(s, &part, from, &n->over);
    }
    part.folds |= reduction == EPI_REDUCE_LOCAL;
    part.crosses |= reduction > EPI_REDUCE_LOCAL;
    s->parts[q] = part;
    /* where no part can, the part's plan says so and it is split (split.c) */
    s->placement[node] =
        (epi_cut_placement){reduction == EPI_REDUCE_LOCAL ? EPI_PLACED_TILE : EPI_PLACED_AFTER, q};
    epi_placer_count_folds(s, node);
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

/* Can the value be made on the part's tile, and, of what it is made of, what is made of rows of tables, or
 * takes an axis apart? The tile does so in one way. */
static bool fits_with_tables(epi_placer *s, epi_placer_part *p, int node) {
    const epi_node *n = &s->g->nodes[node];
    epi_placer_part trial = *p;
    bool fits = epi_placer_fits(s, &trial, node);
    for (int a = 0; a < epi_node_operands(n) && fits; a++)
        if ((s->takes[n->arg[a]] || s->apart[n->arg[a]]) && s->placement[n->arg[a]].kind == EPI_UNPLACED) {
            epi_placer_find_cone(s, n->arg[a]);
            fits = epi_placer_first_misfit(s, &trial) == EPI_NO_NODE;
        }
    if (fits)
        *p = trial;
    return fits;
}

void epi_placer_place_map(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    int time = -1;
    bool tile = true, vector = true;
    for (int a = 0; a < 3; a++)
        if (n->arg[a] != EPI_NO_NODE && epi_placer_time_of(s, n->arg[a]) > time)
            time = epi_placer_time_of(s, n->arg[a]);
    epi_placer_part *p = time < s->first ? NULL : &s->parts[time];
    if (p && p->attention)
        tile = note_value(s, time, node);
    for (int a = 0; a < epi_node_operands(n) && p; a++) {
        epi_cut_placement at = s->placement[n->arg[a]];
        tile &= epi_placer_time_of(s, n->arg[a]) < time || at.kind == EPI_PLACED_TILE ||
                (p->attention && at.kind == EPI_PLACED_AFTER);
        bool again = p->attention && at.kind == EPI_UNPLACED && at.part < time; /* its tiles make that */
        vector &= (at.kind == EPI_PLACED_INPUT || at.kind == EPI_PLACED_AFTER || again) &&
                  are_vector(&p->rows, &p->cols, &s->g->nodes[n->arg[a]].axes);
    }
    epi_cut_placement_kind kind = EPI_UNPLACED;
    if (p && tile && fits_with_tables(s, p, node))
        kind = EPI_PLACED_TILE;
    else if (p && !p->scans && vector && are_vector(&p->rows, &p->cols, &n->axes) && epi_op_is_map(n->op))
        kind = EPI_PLACED_AFTER;
    s->placement[node] = (epi_cut_placement){kind, time};
    s->takes[node] = kind == EPI_UNPLACED && epi_node_takes(n, s->takes);
    s->apart[node] = kind == EPI_UNPLACED && (epi_op_has_halves(n->op) || epi_node_takes(n, s->apart));
    epi_placer_count_folds(s, node);
}

void epi_placer_place_scan(epi_placer *s, int node) {
    if (!s->limits->scans) {
        epi_placer_place_move(s, node);
        return;
    }
    epi_placer_place_map(s, node);
    if (s->placement[node].kind == EPI_UNPLACED)
        epi_placer_find_part(s, node, NULL);
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
            epi_reduction reduction = epi_placer_reduction_of(s, &trial, node, &s->g->nodes[user].over);
            more = reduction != EPI_REDUCE_NONE && keeps_full_row(s, &trial, user, reduction) ? 1 : -1;
        } else if ((epi_ops[op].exact && !epi_op_compares(op)) || op == EPI_OP_SUB) {
            s->placement[user] = s->placement[node];
            more = depth < DEEPEST ? count_full_rows(s, user, depth + 1) : -1;
        }
        count = more < 0 ? -1 : count + more;
    }
    return count;
}

bool epi_placer_stays_on_tile(epi_placer *s, int node) {
    epi_cut_placement at = s->placement[s->g->nodes[node].arg[0]];
    if (at.kind != EPI_PLACED_TILE || at.part < s->first)
        return false;
    const epi_placer_part *p = &s->parts[at.part];
    s->placement[node] = at;
    return p->kind == EPI_KIND_GEMM && p->spilled == EPI_NO_NODE && count_full_rows(s, node, 0) > 0;
}
