/* plan_rows.c: a program without a product as one kernel over rows.
 *
 * The axes of the largest tensor are split in two; if a row has statistics, axes that count rows come first.
 * The last few axes are the columns of a row, which is on chip as a whole. The others count the rows. A
 * reduction over all columns, or over the last of them, stays in the row. A reduction over all rows is
 * cross-tile. There are as few column axes as possible. If none suits, the columns are axes between others,
 * and rows lie across the tensor. If no split suits every value, the part is no kernel. If all tensors have one
 * shape, nothing distinguishes rows: the kernel is *flat*, one row that may be cut anywhere.
 *
 * If a value is quantised along one axis and down another, a row is a square tile of both: these two axes
 * are its columns, and extremes are taken over either or both. */
#include <stdio.h>
#include <string.h>

#include "ir/index.h"
#include "pass/analyse/square.h"
#include "pass/place/plan.h"

typedef struct shaper {
    const epi_graph *g;
    const bool *is_row; /* by dim: epi_spec has it */
    const epi_spec *spec;
    epi_plan *plan;
    epi_axes axes; /* of the longest tensor, at the longer scale */
    bool *needed;  /* by node: some long value depends on it */
    int *pending;  /* for epi_plan_mark_before */
} shaper;

static bool refuse(shaper *s, const char *reason) {
    snprintf(s->plan->reason, sizeof s->plan->reason, "%s", reason);
    return false;
}

/* Does the value have every axis there is? */
static bool is_long(const shaper *s, int node) {
    return epi_axes_count_in(&s->axes, &s->g->nodes[node].axes) == s->axes.count;
}

/* ---- the axes ---- */

/* Is the input one that rows are only taken from, by number? Its own axes do not matter to the rows then. */
static bool is_table(const shaper *s, int node) {
    epi_use_list uses = epi_graph_uses(s->g, node);
    bool taken = uses.count && s->g->nodes[node].op == EPI_OP_INPUT;
    for (int i = 0; i < uses.count && taken; i++)
        taken = epi_use_op(s->g, uses.at[i]) == EPI_OP_GATHER && uses.at[i].operand == 0;
    return taken;
}

static const epi_axes *longest_tensor(const shaper *s) {
    const epi_graph *g = s->g;
    const epi_axes *best = NULL;
    for (int pass = 0; pass < 2; pass++) /* outputs first: what is written decides the order */
        for (int t = pass ? 0 : g->input_count; t < (pass ? g->input_count : g->tensor_count); t++)
            if ((!pass || (s->g->live[g->tensors[t].node] && !is_table(s, g->tensors[t].node))) &&
                (!best || g->tensors[t].axes.count > best->count))
                best = &g->tensors[t].axes;
    return best;
}

/* Is something reduced over axes none of which counts rows, as a statistic of a row is? */
static bool has_statistics(const shaper *s) {
    for (int i = 0; i < s->g->node_count; i++) {
        const epi_node *n = &s->g->nodes[i];
        bool rows = !s->g->live[i] || !epi_op_reduces(n->op);
        for (int j = 0; j < n->over.count && !rows; j++)
            rows = s->is_row[n->over.at[j].dim];
        if (!rows)
            return true;
    }
    return false;
}

/* The one axis that is taken apart, if any, and how. */
static bool find_split(shaper *s) {
    epi_tile tile = {.cols = s->axes, .split = EPI_OP_COUNT};
    for (int i = 0; i < s->g->node_count; i++) {
        const epi_node *n = &s->g->nodes[i];
        if (s->g->live[i] && epi_op_has_halves(n->op) && !epi_tile_split(&tile, n))
            return refuse(s, tile.split == EPI_OP_COUNT
                                 ? "no tensor has all axes"
                                 : "a row splits one axis in one way; this program splits twice");
    }
    s->plan->split = tile.split;
    s->plan->fine = tile.fine;
    if (tile.split != EPI_OP_COUNT)
        s->axes.at[epi_axes_find_dim(&s->axes, tile.fine.dim)] = tile.fine;
    return true;
}

/* A factor of each side: their sums are a product, which rows would take an element at a time. */
static bool is_crossed(const epi_graph *g, const epi_node *n) {
    return n->op == EPI_OP_MUL && g->nodes[n->arg[0]].axes.count < n->axes.count &&
           g->nodes[n->arg[1]].axes.count < n->axes.count;
}

/* What is added up may have more axes than any tensor, unless it is a product: each is one that some tensor has. */
static void add_axes(shaper *s, const epi_axes *longest) {
    bool known[EPI_MAX_DIMS] = {false};
    for (int t = 0; t < s->g->tensor_count; t++)
        for (int i = 0; i < s->g->tensors[t].axes.count; i++)
            known[s->g->tensors[t].axes.at[i].dim] = true;
    for (int i = 0; i < s->g->node_count; i++) {
        const epi_axes *axes = &s->g->nodes[i].axes;
        bool more = s->g->live[i] && !is_table(s, i) && axes->count > s->axes.count &&
                    epi_axes_include(axes, longest);
        for (int k = 0; k < axes->count; k++)
            more &= known[axes->at[k].dim];
        if (more && is_crossed(s->g, &s->g->nodes[i])) {
            s->axes = *longest;
            return;
        }
        if (more) {
            s->axes = *longest;
            epi_axes_unite(&s->axes, axes);
        }
    }
}

static bool find_axes(shaper *s) {
    const epi_axes *longest = longest_tensor(s);
    if (!longest)
        return refuse(s, "it stores nothing");
    s->axes = *longest; /* numbers alone are a row of one */
    add_axes(s, longest);
    if (has_statistics(s)) /* a column that counts rows would have a say in how a row is added up */
        s->axes = epi_rows_first(s->spec, &s->axes);
    if (!find_split(s))
        return false;
    for (int i = 0; i < s->g->node_count; i++) {
        const epi_node *n = &s->g->nodes[i];
        if (!s->g->live[i] || is_table(s, i))
            continue;
        epi_tile tile = {.rows = s->axes, .split = s->plan->split, .fine = s->plan->fine};
        if (!epi_tile_fits(&tile, &n->axes))
            return refuse(s, "a value has an axis that the largest tensor lacks");
    }
    return true;
}

/* Marks what long values depend on. */
static void find_needed(shaper *s) {
    for (int i = s->g->node_count - 1; i >= 0; i--)
        for (int a = 0; a < 3 && s->g->live[i]; a++)
            if (s->g->nodes[i].arg[a] != EPI_NO_NODE && (is_long(s, i) || s->needed[i]))
                s->needed[s->g->nodes[i].arg[a]] = true;
}

/* ---- stages, for one split ---- */

/* Can a row take the value from memory as it goes? A table's row by a number that each row has, or by the
 * row's own place along an axis. */
static bool takes_in_row(const shaper *s, const epi_node *n) {
    if (s->plan->flat || n->op != EPI_OP_GATHER || s->g->nodes[n->arg[0]].op != EPI_OP_INPUT)
        return false;
    const epi_axes *index = &s->g->nodes[n->arg[1]].axes;
    if (s->g->nodes[n->arg[1]].op == EPI_OP_CONST) { /* one of the numbers that a row has, or a column */
        int rows = epi_axes_count_in(&n->axes, &s->plan->rows);
        return n->axes.count && (rows == n->axes.count || (!rows && s->plan->rows.count));
    }
    epi_index_source from = epi_index_find(s->g, n);
    epi_op op = s->g->nodes[from.node].op;
    return (op == EPI_OP_INPUT || (op == EPI_OP_INDEX && !from.sliced)) && index->count &&
           epi_axes_count_in(index, &s->plan->rows) == index->count;
}

/* Is what is shifted made by the rows, along the last of which it may be kept for a few steps? */
static bool shifts_made(const shaper *s, const epi_node *n) {
    const epi_axes *rows = &s->plan->rows;
    return rows->count && epi_axis_equal(n->over.at[0], rows->at[rows->count - 1]) &&
           epi_may_keep(s->spec, n);
}

/* Can a row load the value from other places along an axis: of one that counts rows, or the only one of columns? Or is
 * it in a window? */
static bool shifts_in_row(const shaper *s, const epi_node *n) {
    const epi_plan *plan = s->plan;
    epi_axis along = n->over.at[0];
    if (plan->flat || plan->square)
        return false;
    if (s->g->nodes[n->arg[0]].op != EPI_OP_INPUT)
        return shifts_made(s, n);
    return epi_axes_find(&plan->rows, along) >= 0 ||
           (plan->cols.count == 1 && epi_axis_equal(plan->cols.at[0], along) && plan->split == EPI_OP_COUNT);
}

/* Is it a slice of numbers, one for each row, by which rows alone take others? They read it where it lies. */
static bool is_number_in_row(const shaper *s, int node) {
    const epi_graph *g = s->g;
    int64_t at;
    epi_use_list uses = epi_graph_uses(g, node);
    bool number = uses.count && g->nodes[node].op == EPI_OP_GATHER && epi_graph_at_number(g, node, &at);
    for (int i = 0; i < uses.count && number; i++)
        number = uses.at[i].node != EPI_NO_NODE && uses.at[i].operand == 1 &&
                 takes_in_row(s, &g->nodes[uses.at[i].node]);
    return number;
}

/* Notes the last columns as those that reductions over some of them remove; false: they remove others. */
static bool note_group(shaper *s, const epi_axes *over) {
    epi_plan *plan = s->plan;
    bool may = !plan->flat && plan->rows.count && (!plan->local_axes || plan->local_axes == over->count);
    plan->local_axes = may ? over->count : plan->local_axes;
    return may;
}

/* How a value that is in the row is reduced; NONE: it cannot be. Between the steps of a recurrence no row is reduced with
 * others. */
static epi_reduction reduction_of(shaper *s, const epi_node *n) {
    const epi_plan *plan = s->plan;
    const epi_axes *from = &s->g->nodes[n->arg[0]].axes;
    if (plan->square)
        return epi_square_reduces(s->g, &(epi_square){plan->rows, plan->cols}, (int)(n - s->g->nodes))
                   ? EPI_REDUCE_LOCAL
                   : EPI_REDUCE_NONE;
    epi_tile tile = {plan->rows, plan->cols, plan->split, plan->fine};
    epi_reduction reduction = epi_row_reduction(&tile, from, &n->over);
    if (reduction == EPI_REDUCE_LOCAL)
        return note_group(s, &n->over) ? reduction : EPI_REDUCE_NONE;
    return reduction == EPI_REDUCE_ROWS && !plan->flat ? EPI_REDUCE_LOCAL : reduction;
}

/* Is it the last step of a value on the rows of recurrences, which nothing but outputs wants? */
static bool is_last_step(const shaper *s, int node) {
    const epi_plan *plan = s->plan;
    const epi_node *n = &s->g->nodes[node];
    if (!plan->scan_count || !epi_is_last_step(s->spec, node, plan->scan, plan->scan_back) ||
        !is_long(s, n->arg[0]) || !plan->placement[n->arg[0]].tile)
        return false;
    epi_use_list uses = epi_graph_uses(s->g, node);
    for (int i = 0; i < uses.count; i++)
        if (uses.at[i].node != EPI_NO_NODE)
            return false;
    return true;
}

/* Does the value lack rows, so that no row can store it? */
static bool lacks_rows(const shaper *s, int node) {
    const epi_axes *axes = &s->g->nodes[node].axes;
    return epi_axes_count_in(axes, &s->plan->rows) != s->plan->rows.count ||
           (!s->plan->rows.count && s->plan->cols.count && !epi_axes_count_in(axes, &s->plan->cols));
}

/* Is the value complete only after the rows? */
static bool is_after(const shaper *s, int node) {
    const epi_placement *stage = &s->plan->placement[node];
    return stage->after || stage->reduction > EPI_REDUCE_LOCAL;
}

/* Is it a short map that nothing else wants? Then it can be made after the rows. */
static bool can_wait(const shaper *s, int node) {
    return epi_op_is_map(s->g->nodes[node].op) && !is_long(s, node) && epi_graph_uses(s->g, node).count == 1;
}

/* A value that is made of what is complete only after the rows. What it needs beside that is made there, too, or before. */
static bool sort_after(shaper *s, int i) {
    const epi_graph *g = s->g;
    int count = 0;
    s->pending[count++] = i;
    while (count) {
        const epi_node *n = &g->nodes[s->pending[--count]];
        s->plan->placement[n - g->nodes] = (epi_placement){.after = true};
        for (int a = 0; a < epi_node_operands(n); a++)
            if (!is_after(s, n->arg[a]) && can_wait(s, n->arg[a]))
                s->pending[count++] = n->arg[a];
            else if (!is_after(s, n->arg[a]))
                epi_plan_mark_before(g, s->plan->placement, s->pending + count, n->arg[a]);
    }
    return !s->needed[i] && epi_op_is_map(g->nodes[i].op);
}

/* False: the rows cannot make it. */
static bool sort_node(shaper *s, int i) {
    const epi_node *n = &s->g->nodes[i];
    epi_placement *stage = &s->plan->placement[i];
    for (int a = 0; a < epi_node_operands(n); a++)
        if (is_after(s, n->arg[a]))
            return sort_after(s, i);
    stage->last = is_last_step(s, i);
    stage->tile = !epi_op_is_leaf(n->op) && !stage->last;
    if (stage->last)
        return true;
    switch (epi_ops[n->op].cls) {
    case EPI_CLASS_RANDOM: return epi_axes_count_in(&n->axes, &s->plan->rows) || !s->plan->rows.count;
    case EPI_CLASS_MOVE: return takes_in_row(s, n) || is_number_in_row(s, i);
    case EPI_CLASS_SHIFT: return shifts_in_row(s, n);
    case EPI_CLASS_SCAN: return s->plan->scan_count && is_long(s, i);
    case EPI_CLASS_REDUCE:
        stage->reduction = reduction_of(s, n);
        if (s->plan->scan_count &&
            !epi_scan_reduces(s->spec, &s->plan->rows, s->plan->scan, stage->reduction))
            return false;
        return stage->reduction == EPI_REDUCE_LOCAL || (stage->reduction != EPI_REDUCE_NONE && !s->needed[i]);
    default: return !epi_op_reads_elsewhere(n->op);
    }
}

/* Can the rows store this output? */
static bool sort_output(shaper *s, int node) {
    if (epi_op_is_leaf(s->g->nodes[node].op))
        s->plan->placement[node].tile = is_long(s, node);
    return is_after(s, node) || s->plan->placement[node].last ||
           (s->plan->placement[node].tile && !lacks_rows(s, node));
}

/* Do the rows nothing but map, shift along the last of their axes, and reduce over all rows? Notes it. False: something
 * is shifted that they make, and they do more. */
static bool note_window(shaper *s) {
    const epi_graph *g = s->g;
    epi_plan *plan = s->plan;
    epi_tile rows = {plan->rows, plan->cols, plan->split, plan->fine};
    bool made = false, shifts = false,
         more = !s->spec->window || plan->flat || plan->square || plan->scan_count;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        if (!g->live[i] || !plan->placement[i].tile)
            continue;
        more |= plan->placement[i].reduction == EPI_REDUCE_LOCAL ||
                plan->placement[i].reduction == EPI_REDUCE_ROWS;
        if (n->op != EPI_OP_SHIFT)
            continue;
        more = more || !epi_has_window(&rows, n->over.at[0]);
        made |= g->nodes[n->arg[0]].op != EPI_OP_INPUT;
        shifts |= is_long(s, i);
    }
    plan->window = shifts && !more;
    return plan->window || !made;
}

/* Sorts every value for this split; false: it cannot be. */
static bool try_split(shaper *s, int columns, bool flat) {
    const epi_graph *g = s->g;
    epi_plan *plan = s->plan;
    plan->flat = flat;
    plan->local_axes = plan->square; /* the last axis of a tile */
    plan->rows = (epi_axes){.count = s->axes.count - columns};
    plan->cols = (epi_axes){.count = columns};
    for (int i = 0; i < s->axes.count; i++)
        *(i < plan->rows.count ? &plan->rows.at[i] : &plan->cols.at[i - plan->rows.count]) = s->axes.at[i];
    memset(plan->placement, 0, (size_t)g->node_count * sizeof *plan->placement);
    bool may = plan->split == EPI_OP_COUNT || epi_axes_find_dim(&plan->cols, plan->fine.dim) >= 0;
    for (int i = 0; i < g->node_count && may; i++)
        may = !g->live[i] || sort_node(s, i);
    for (int t = g->input_count; t < g->tensor_count && may; t++)
        may = sort_output(s, g->tensors[t].node);
    return may && epi_plan_knows(g, plan->placement, false) && note_window(s);
}

/* Are all tensors of one shape, in one order? Then nothing tells rows apart. */
static bool is_flat(const shaper *s) {
    const epi_graph *g = s->g;
    if (s->plan->split == EPI_OP_LOW ||
        (s->plan->split == EPI_OP_EVEN && s->plan->fine.dim != s->axes.at[s->axes.count - 1].dim))
        return false;
    for (int t = 0; t < g->tensor_count; t++) {
        const epi_axes *axes = &g->tensors[t].axes;
        if (t < g->input_count && !s->g->live[g->tensors[t].node])
            continue;
        for (int i = 0; i < axes->count; i++)
            if (axes->count != s->axes.count || axes->at[i].dim != s->axes.at[i].dim)
                return false;
    }
    for (int i = 0; i < g->node_count; i++)
        if (s->g->live[i] && ((epi_op_reduces(g->nodes[i].op) && (s->needed[i] || g->nodes[i].axes.count)) ||
                              epi_op_reads_elsewhere(g->nodes[i].op)))
            return false;
    return true;
}

/* A row axis along which a tensor as long as the others, or where rows reduce something an input, has its elements side by
 * side, or -1. */
static int axis_across(const shaper *s, bool reduces) {
    const epi_graph *g = s->g;
    const epi_axes *rows = &s->plan->rows;
    for (int t = 0; t < (reduces ? g->input_count : g->tensor_count); t++) {
        const epi_axes *axes = &g->tensors[t].axes;
        if ((t >= g->input_count || g->live[g->tensors[t].node]) && axes->count == s->axes.count &&
            epi_axes_find(rows, axes->at[axes->count - 1]) >= 0)
            return epi_axes_find(rows, axes->at[axes->count - 1]);
    }
    return -1;
}

/* Rows that are made side by side read or write such elements together. Where nothing is reduced over all rows their order
 * changes no number; those that count rows come first. */
static void order_rows(shaper *s) {
    bool reduces = false;
    for (int i = 0; i < s->g->node_count; i++) {
        reduces |= s->g->live[i] && epi_op_reduces(s->g->nodes[i].op);
        if (s->plan->placement[i].reduction > EPI_REDUCE_LOCAL)
            return;
    }
    int last = axis_across(s, reduces);
    if (last < 0 || s->plan->flat || s->plan->window)
        return;
    epi_axes rows = s->plan->rows;
    int count = 0;
    for (int first = 1; first >= 0; first--)
        for (int i = 0; i < rows.count; i++)
            if (i != last && s->is_row[rows.at[i].dim] == first)
                s->plan->rows.at[count++] = rows.at[i];
    s->plan->rows.at[count] = rows.at[last];
}

/* Notes the recurrences: all go along one axis, and one way. */
static bool find_scans(shaper *s) {
    for (int i = 0; i < s->g->node_count; i++) {
        const epi_node *n = &s->g->nodes[i];
        if (!s->g->live[i] || !epi_op_scans(n->op))
            continue;
        if (!s->spec->scans)
            return refuse(s, "a recurrence is a pass by itself");
        if (s->plan->scan_count++ &&
            (s->plan->scan_back != epi_ops[n->op].back || !epi_axis_equal(s->plan->scan, n->over.at[0])))
            return refuse(s, "it has recurrences along two axes, or in both directions along one");
        s->plan->scan = n->over.at[0];
        s->plan->scan_back = epi_ops[n->op].back;
    }
    return true;
}

/* Rows that go through recurrences. Where their axis comes last it is the columns; else all axes behind it are, or as
 * many of these as can be, and it is the last of the rows. */
static bool try_scans(shaper *s) {
    epi_plan *plan = s->plan;
    epi_axes axes = s->axes, scan = {1, {plan->scan}}, rest = epi_axes_without(&axes, &scan);
    int behind = axes.count - 1 - epi_axes_find(&axes, plan->scan);
    plan->scan_inner = !behind;
    for (int columns = behind; columns > 0 || plan->scan_inner; columns--) {
        for (int i = 0; i < axes.count; i++) {
            int at = axes.count - 1 - columns; /* of the recurrence's axis */
            s->axes.at[i] = i < at ? rest.at[i] : i == at ? plan->scan : rest.at[i - 1];
        }
        bool may = plan->split == EPI_OP_COUNT || !plan->scan_inner;
        if (may && try_split(s, plan->scan_inner ? 1 : columns, false))
            return true;
        if (plan->scan_inner)
            break;
    }
    s->axes = axes;
    return refuse(s, "no division of its axes into rows and columns suits its recurrences");
}

/* Takes rows as square tiles, where something is quantised both ways round. */
static bool try_square(shaper *s, epi_visits *visits) {
    epi_square square;
    epi_axes axes = s->axes;
    bool found = false;
    for (int i = 0; i < s->g->node_count && !found && s->plan->split == EPI_OP_COUNT; i++)
        found = s->g->live[i] && epi_square_find(s->spec, visits, i, &square);
    if (!found)
        return false;
    s->axes = square.rows;
    epi_axes_unite(&s->axes, &square.cols);
    s->plan->square = true;
    if (epi_axes_same_set(&s->axes, &axes) && try_split(s, square.cols.count, false))
        return true;
    s->axes = axes;
    s->plan->square = false;
    return false;
}

/* Columns that do not come last: all axes but those by which rows of a table are taken. One operation is a pass. */
static bool try_columns(shaper *s) {
    epi_axes all = s->axes;
    for (int i = 0; i < s->g->node_count; i++) {
        const epi_node *n = &s->g->nodes[i];
        if (!s->g->live[i] || n->op != EPI_OP_GATHER)
            continue;
        epi_axes cols = epi_axes_without(&all, &s->g->nodes[n->arg[1]].axes);
        s->axes = epi_axes_without(&all, &cols);
        epi_axes_unite(&s->axes, &cols);
        if (cols.count && try_split(s, cols.count, false))
            return true;
    }
    s->axes = all;
    return false;
}

bool epi_plan_crosses(const epi_spec *spec, const epi_axes *over) {
    enum { LONGEST = 256 }; /* a few lanes have such a row, and their neighbours the elements beside theirs */
    bool may = epi_axes_size(over, spec->sizes) <= LONGEST;
    for (int i = 0; i < over->count; i++)
        may &= !spec->is_row[over->at[i].dim] && !epi_open_has(spec->open, over->at[i].dim);
    return may;
}

/* Rows along the axes of a reduction that lie between others, where they make what is reduced or something of it. */
static bool try_across(shaper *s) {
    epi_axes axes = s->axes;
    for (int i = 0; i < s->g->node_count; i++) {
        const epi_node *n = &s->g->nodes[i];
        if (!s->g->live[i] || !epi_op_reduces(n->op) || !epi_plan_crosses(s->spec, &n->over) ||
            epi_axes_count_in(&axes, &n->over) != n->over.count)
            continue;
        s->axes = epi_axes_without(&axes, &n->over);
        epi_axes_unite(&s->axes, &n->over);
        if (try_split(s, n->over.count, false))
            return true;
    }
    s->axes = axes;
    return false;
}

bool epi_plan_rows(epi_arena *arena, const epi_spec *spec, epi_plan *out) {
    const epi_graph *g = spec->graph;
    epi_visits visits;
    shaper s = {.g = g, .is_row = spec->is_row, .spec = spec, .plan = out};
    s.needed = epi_arena_alloc(arena, (size_t)g->node_count + 1);
    s.pending = epi_arena_alloc(arena, 2 * EPI_PLAN_PENDING(g) * sizeof *s.pending);
    if (!s.needed || !s.pending || !epi_visits_make(arena, g->node_count, &visits))
        return refuse(&s, "out of memory");
    for (int i = 0; i < g->node_count; i++)
        if (g->live[i] && g->nodes[i].op == EPI_OP_VAR)
            return refuse(&s, "a variance is several reductions in a row");
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (g->nodes[g->tensors[t].node].op == EPI_OP_UPDATE ||
            epi_op_gives_places(g->nodes[g->tensors[t].node].op))
            return refuse(&s, "an update is a pass by itself, as a sort is");
    if (!find_axes(&s) || !find_scans(&s))
        return false;
    find_needed(&s);
    if (out->scan_count)
        return epi_axes_find(&s.axes, out->scan) >= 0 ? try_scans(&s) : refuse(&s, "no tensor has all axes");
    if (try_square(&s, &visits))
        return true;
    if (is_flat(&s) && try_split(&s, s.axes.count, true))
        return true;
    for (int columns = 1; columns <= s.axes.count; columns++)
        if (try_split(&s, columns, false)) {
            order_rows(&s);
            return true;
        }
    if (epi_graph_operations(g) > 1 && try_columns(&s))
        return true;
    if (epi_graph_operations(g) > 1 && try_across(&s)) {
        order_rows(&s);
        return true;
    }
    return refuse(&s, "no division of its axes into rows and columns suits it");
}
