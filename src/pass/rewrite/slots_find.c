/* slots_find.c: finds products in which rows choose their weight, and values that are computed in slot order
 * with them.
 *
 * A value whose operands are in slot order is computed there, too. The exception: another operand of the
 * same size would have to be sorted, and nothing needs the result in slot order. A sum over some axes of the
 * rows leaves slot order. */
#include "pass/rewrite/slots_find.h"

#include "pass/analyse/monomial.h"

enum {
    MOST_ROWS = 1 << 24,    /* that a sort takes */
    BEHIND = 512,           /* rows that tiles have beyond a group's end: */
    MOST_COUNTED = 1 << 30, /* for choices times rows with these tiles have numbers */
    MOST_TERMS = 64         /* of a sum over choices of one row */
};

/* ---- the factors of a sum ---- */

/* Is it a product that falls into its factors: one that is nowhere in slot order, or all that is summed up? */
static bool opens(const epi_slots *s, int node, const epi_axes *whole) {
    const epi_node *n = &s->in->nodes[node];
    bool product = epi_op_has_factors(n->op) || n->op == EPI_OP_NEG;
    bool plain = !n->exact && !n->opaque && n->saving == EPI_SAVE_OPEN;
    return product && plain && (!epi_in_slots(s, node) || epi_axes_same_set(&n->axes, whole));
}

static void find_factors(const epi_slots *s, int node, epi_slot_factors *f) {
    const epi_axes *whole = &s->in->nodes[node].axes;
    *f = (epi_slot_factors){.at = {{node, false}}, .count = 1};
    for (int i = 0; i < f->count;) {
        const epi_node *n = &s->in->nodes[f->at[i].node];
        bool two = n->op != EPI_OP_NEG;
        if (f->at[i].divides || !opens(s, f->at[i].node, whole) || (two && f->count == EPI_SLOT_FACTORS)) {
            i++;
            continue;
        }
        f->negative ^= !two;
        f->at[i].node = n->arg[0];
        for (int k = f->count; k > i + 1 && two; k--)
            f->at[k] = f->at[k - 1];
        if (two)
            f->at[i + 1] = (epi_factor){n->arg[1], n->op == EPI_OP_DIV};
        f->count += two;
    }
}

static const epi_axes *factor_axes(const epi_slots *s, const epi_slot_factors *f, int i) {
    return &s->in->nodes[f->at[i].node].axes;
}

/* Have some factors of this side axes of the rows, and is one no divisor? */
static bool has_rows(const epi_slots *s, const epi_slot_factors *f, epi_slot_side side,
                     const epi_axes *rows) {
    bool meets = false, multiplies = false;
    for (int i = 0; i < f->count; i++)
        if (f->side[i] == side) {
            meets |= epi_axes_meet(factor_axes(s, f, i), rows);
            multiplies |= !f->at[i].divides;
        }
    return meets && multiplies;
}

/* ---- what there is to do ---- */

/* The axes by which rows choose, of a gather or a scatter by an index of several elements that is not sorted
 * already; else none. */
static epi_axes choosing_rows(const epi_graph *g, const epi_node *n) {
    const epi_node *index = epi_op_by_index(n->op) ? &g->nodes[n->arg[1]] : NULL;
    bool chooses = index && n->over.count == 1 && index->op != EPI_OP_SEGMENTS &&
                   !epi_axes_has_dim(&index->axes, n->over.at[0].dim);
    return chooses ? index->axes : (epi_axes){0};
}

/* Are there no more choices and rows than a sort takes? What is not known yet is asked again. */
static bool can_sort(const epi_slots *s, epi_axis choice, const epi_axes *rows) {
    if (!s->spec)
        return true;
    const int64_t *sizes = s->spec->open ? s->spec->open->largest : s->spec->sizes;
    int64_t choices = epi_axis_size(choice, sizes), count = epi_axes_size(rows, sizes);
    return choices >= 0 && choices < MOST_ROWS && count >= 0 && count <= MOST_ROWS &&
           choices * (count + BEHIND) < MOST_COUNTED;
}

int epi_slots_prelude(epi_slots *s, const epi_node *move) {
    int i = 0;
    while (i < s->count &&
           (s->preludes[i].index != move->arg[1] || !epi_axis_equal(s->preludes[i].choice, move->over.at[0])))
        i++;
    if (i == s->count)
        s->preludes[s->count++] = (epi_prelude){.index = move->arg[1],
                                                .choice = move->over.at[0],
                                                .rows = s->in->nodes[move->arg[1]].axes,
                                                .p = EPI_NO_NODE,
                                                .q = EPI_NO_NODE,
                                                .s = EPI_NO_NODE,
                                                .there = EPI_NO_NODE};
    return i;
}

/* ---- indices that choose nothing ---- */

static int behind_once(const epi_graph *g, int node) {
    while (g->nodes[node].op == EPI_OP_ONCE)
        node = g->nodes[node].arg[0];
    return node;
}

/* Is it x == max(x, E) or x != x: true somewhere along the axis? */
static bool is_top(const epi_graph *g, const epi_node *n, const epi_axes *over) {
    const epi_node *top = n->op == EPI_OP_OR ? &g->nodes[n->arg[0]] : NULL,
                   *none = top ? &g->nodes[n->arg[1]] : NULL;
    if (!top || top->op != EPI_OP_EQ || none->op != EPI_OP_NE)
        return false;
    const epi_node *most = &g->nodes[behind_once(g, top->arg[1])];
    int x = behind_once(g, top->arg[0]);
    return most->op == EPI_OP_RMAX && epi_axes_same_set(&most->over, over) &&
           behind_once(g, most->arg[0]) == x && behind_once(g, none->arg[0]) == x &&
           behind_once(g, none->arg[1]) == x;
}

/* Is it argmax(x, E): the first position where x is the largest, or NaN? */
static bool is_argmax(const epi_graph *g, const epi_node *n, epi_axis axis) {
    const epi_axes over = {1, {axis}};
    const epi_node *which = n->op == EPI_OP_RMIN ? &g->nodes[n->arg[0]] : NULL;
    if (!which || which->op != EPI_OP_WHERE || !epi_axes_same_set(&n->over, &over))
        return false;
    const epi_node *at = &g->nodes[which->arg[1]];
    return at->op == EPI_OP_INDEX && epi_axis_equal(at->over.at[0], axis) &&
           is_top(g, &g->nodes[which->arg[0]], &over);
}

/* Are these places along the axis, which the program itself found? */
static bool are_found(const epi_graph *g, int node, epi_axis axis, int depth) {
    enum { DEEPEST = 8 };
    const epi_node *n = &g->nodes[node];
    switch (depth < DEEPEST ? n->op : EPI_OP_COUNT) {
    case EPI_OP_TOPK: return epi_axis_equal(n->over.at[0], axis);
    case EPI_OP_ONCE:
    case EPI_OP_RENAME:
    case EPI_OP_GATHER: return are_found(g, n->arg[0], axis, depth + 1);
    case EPI_OP_WHERE:
        return are_found(g, n->arg[1], axis, depth + 1) && are_found(g, n->arg[2], axis, depth + 1);
    default: return is_argmax(g, n, axis);
    }
}

/* A run looks through an input that is the index, or that the index is a slice of. One that an index is computed
 * of may have any numbers. */
bool epi_slots_within(const epi_graph *g, int index, epi_axis axis) {
    int64_t number;
    int of = epi_graph_renamed(g, index);
    bool slice = g->nodes[of].op == EPI_OP_GATHER && epi_graph_at_number(g, of, &number);
    const epi_node *n = &g->nodes[slice ? g->nodes[of].arg[0] : of];
    bool checked = n->op == EPI_OP_INPUT && epi_dtype_is_integer(g->tensors[n->tensor].type);
    return checked || are_found(g, index, axis, 0);
}

/* ---- products ---- */

/* Is the operation 0 for rows that choose nothing, of which gather makes 0? */
static bool keeps_nothing(const epi_graph *g, const epi_node *n, const epi_node *chosen) {
    return !epi_op_is_map(n->op) || epi_op_reference(n->op, 0, 0, 0) == 0 ||
           epi_slots_within(g, chosen->arg[1], chosen->over.at[0]);
}

/* The gather that a value is made of, row by row, by what has no rows: of weights that are chosen, their
 * halves are chosen halves. */
static int find_chosen(const epi_slots *s, int node) {
    const epi_graph *g = s->in;
    const epi_node *n = &g->nodes[node];
    int64_t number;
    if (n->op == EPI_OP_GATHER) {
        epi_axes rows = choosing_rows(g, n);
        if (rows.count && !epi_axes_meet(&g->nodes[n->arg[0]].axes, &rows))
            return node;
    }
    int chosen = epi_node_operands(n) ? s->at[n->arg[0]].chosen : EPI_NO_NODE;
    if (chosen == EPI_NO_NODE)
        return EPI_NO_NODE;
    epi_axes rows = choosing_rows(g, &g->nodes[chosen]);
    epi_axes around = rows;
    bool apart = epi_axes_unite(&around, &g->nodes[chosen].over) && !epi_axes_count_in(&n->over, &around);
    bool alone = epi_node_operands(n) == 1 || epi_graph_at_number(g, node, &number);
    bool by_row = epi_op_on_tile(n->op) || n->op == EPI_OP_RENAME || n->op == EPI_OP_GATHER;
    return apart && alone && by_row && n->op != EPI_OP_ONCE && keeps_nothing(g, n, &g->nodes[chosen])
               ? chosen
               : EPI_NO_NODE;
}

/* Which side of a grouped product a factor is on; EPI_SLOT_SIDES: there is no such side. */
static epi_slot_side side_of(const epi_slots *s, const epi_slot_factors *f, int i, const epi_axes *rows,
                             const epi_axes *weight) {
    const epi_axes *axes = factor_axes(s, f, i);
    epi_axes of_rows = *rows, cols = epi_axes_without(weight, &f->depth);
    if (!epi_axes_meet(axes, &f->depth))
        return EPI_SLOT_RESULT;
    if (!epi_axes_meet(axes, &cols))
        return epi_axes_unite(&of_rows, &f->depth) && epi_axes_include(&of_rows, axes) ? EPI_SLOT_ROWS
                                                                                       : EPI_SLOT_SIDES;
    return epi_axes_include(weight, axes) ? EPI_SLOT_WEIGHTS : EPI_SLOT_SIDES;
}

/* Is this factor a weight that the rows of a product choose? */
static bool is_chosen_weight(const epi_slots *s, const epi_axes *over, epi_slot_factors *f, int i) {
    const epi_graph *g = s->in;
    int chosen = s->at[f->at[i].node].chosen;
    if (chosen == EPI_NO_NODE || f->at[i].divides)
        return false;
    epi_axes rows = choosing_rows(g, &g->nodes[chosen]);
    epi_axes weight = epi_axes_without(factor_axes(s, f, i), &rows), cols = epi_axes_without(&weight, over);
    f->chosen = i;
    f->depth = epi_axes_without(&weight, &cols);
    f->rest = epi_axes_without(over, &weight);
    if (!f->depth.count || !cols.count || !epi_axes_include(&rows, &f->rest) ||
        !can_sort(s, g->nodes[chosen].over.at[0], &rows))
        return false;
    for (int k = 0; k < f->count; k++) {
        f->side[k] = k == i ? EPI_SLOT_WEIGHTS : side_of(s, f, k, &rows, &weight);
        if (f->side[k] == EPI_SLOT_SIDES)
            return false;
    }
    return has_rows(s, f, EPI_SLOT_ROWS, &rows);
}

/* Is it a sum, or a mean? That is divided by the number of its terms ahead of the sum over these axes of the
 * rows, so they must not be empty: a sum of nothing is 0, a mean is none. */
static bool is_sum(const epi_slots *s, const epi_node *n, const epi_axes *sums) {
    bool some = !sums->count || (s->spec && epi_axes_size(sums, s->spec->sizes) > 0);
    return n->op == EPI_OP_SUM || (n->op == EPI_OP_MEAN && some);
}

bool epi_slots_product(const epi_slots *s, int node, epi_slot_factors *f) {
    const epi_node *n = &s->in->nodes[node];
    if (n->op != EPI_OP_SUM && n->op != EPI_OP_MEAN)
        return false;
    find_factors(s, n->arg[0], f);
    for (int i = 0; i < f->count; i++)
        if (is_chosen_weight(s, &n->over, f, i) && is_sum(s, n, &f->rest))
            return true;
    return false;
}

/* The axes of a value in the order in which it is stored, if it is. */
static const epi_axes *stored_axes(const epi_graph *g, int node) {
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (g->tensors[t].node == node)
            return &g->tensors[t].axes;
    return &g->nodes[node].axes;
}

/* The axes that factors have together with this one, and with those, and so on: all but rows. */
static epi_axes axes_around(const epi_slots *s, const epi_slot_factors *f, epi_axis axis,
                            const epi_axes *rows) {
    epi_axes around = {1, {axis}};
    for (int i = 0; i < f->count;) {
        epi_axes own = epi_axes_without(factor_axes(s, f, i), rows);
        bool more = epi_axes_meet(&own, &around) && !epi_axes_include(&around, &own);
        if (more)
            epi_axes_unite(&around, &own);
        i = more ? 0 : i + 1;
    }
    return around;
}

/* Takes the factors apart into two sides. Those of rows alone go to the one that is in slot order, else to the
 * one that has all rows, else to the first. */
static void take_sides(const epi_slots *s, epi_slot_factors *f, const epi_axes *first, const epi_axes *rows) {
    int fits[EPI_SLOT_SIDES] = {0};
    for (int i = 0; i < f->count; i++) {
        epi_axes own = epi_axes_without(factor_axes(s, f, i), rows);
        epi_slot_side to = !own.count                   ? EPI_SLOT_RESULT
                           : epi_axes_meet(&own, first) ? EPI_SLOT_ROWS
                                                        : EPI_SLOT_WEIGHTS;
        int fit = epi_in_slots(s, f->at[i].node) ? 2 : epi_axes_include(factor_axes(s, f, i), rows);
        fits[to] = fit > fits[to] ? fit : fits[to];
        f->side[i] = to;
    }
    for (int i = 0; i < f->count; i++)
        if (f->side[i] == EPI_SLOT_RESULT)
            f->side[i] = fits[EPI_SLOT_WEIGHTS] > fits[EPI_SLOT_ROWS] ? EPI_SLOT_WEIGHTS : EPI_SLOT_ROWS;
}

/* The value that was given axes of the rows which it lacks (epi_graph_complete). */
static int before_completed(const epi_graph *g, int node, const epi_axes *rows) {
    const epi_node *n = &g->nodes[node];
    while (n->op == EPI_OP_ADD && epi_is_zeros(g, n->arg[1]) &&
           epi_axes_include(rows, &g->nodes[n->arg[1]].axes)) {
        node = n->arg[0];
        n = &g->nodes[node];
    }
    return node;
}

/* Is it a sum by choice of outer products: do its factors fall into two that share nothing but rows? The
 * first has the axes that come first in the result. */
bool epi_slots_outer(const epi_slots *s, int node, epi_slot_factors *f) {
    const epi_node *n = &s->in->nodes[node];
    epi_axes rows = n->op == EPI_OP_SCATTER ? choosing_rows(s->in, n) : (epi_axes){0};
    if (!rows.count || n->axes.count < 3 || !can_sort(s, n->over.at[0], &rows))
        return false;
    epi_axes own = epi_axes_without(stored_axes(s->in, node), &n->over);
    find_factors(s, before_completed(s->in, n->arg[0], &rows), f);
    epi_axes first = axes_around(s, f, own.at[0], &rows);
    take_sides(s, f, &first, &rows);
    return has_rows(s, f, EPI_SLOT_ROWS, &rows) && has_rows(s, f, EPI_SLOT_WEIGHTS, &rows);
}

int epi_slots_order(const epi_slots *s, const epi_node *n) {
    int order = -1;
    for (int a = 0; a < epi_node_operands(n); a++)
        if (epi_in_slots(s, n->arg[a])) {
            if (order >= 0 && order != s->at[n->arg[a]].prelude)
                return -1;
            order = s->at[n->arg[a]].prelude;
        }
    return order;
}

/* The prelude of an index that grouped products have, or -1. */
static int known_prelude(const epi_slots *s, const epi_node *gather) {
    for (int i = 0; i < s->count; i++)
        if (s->preludes[i].index == gather->arg[1] && gather->over.count == 1 &&
            epi_axis_equal(s->preludes[i].choice, gather->over.at[0]))
            return i;
    return -1;
}

/* A map of what rows choose and of numbers of these rows, as a bias times a gate, which nothing but slots want: in whose
 * order it is made, or -1. Whoever wants it is still as it was found first. */
static int order_beside(const epi_slots *s, int node) {
    const epi_node *n = &s->in->nodes[node];
    int order = -1;
    for (int a = 0; a < epi_node_operands(n) && epi_op_is_map(n->op); a++) {
        int chosen = s->at[n->arg[a]].chosen;
        order = chosen != EPI_NO_NODE && order < 0 ? known_prelude(s, &s->in->nodes[chosen]) : order;
    }
    for (int a = 0; a < epi_node_operands(n) && order >= 0; a++) {
        int chosen = s->at[n->arg[a]].chosen;
        const epi_axes *axes = &s->in->nodes[n->arg[a]].axes, *rows = &s->preludes[order].rows;
        bool own = chosen != EPI_NO_NODE && known_prelude(s, &s->in->nodes[chosen]) == order;
        if (!own && epi_axes_meet(axes, rows) && !epi_axes_include(rows, axes))
            return -1;
    }
    epi_use_list uses = epi_graph_uses(s->in, node);
    for (int i = 0; i < uses.count && order >= 0; i++)
        if (uses.at[i].node == EPI_NO_NODE || s->at[uses.at[i].node].prelude != order)
            return -1;
    return order;
}

/* Would another operand, as large as the result, have to be brought into slot order? Of one number a row every
 * operand is as large. */
static bool reorders(const epi_slots *s, const epi_node *n, int order) {
    const epi_prelude *of = &s->preludes[order];
    bool number = epi_axes_include(&of->rows, &n->axes);
    for (int a = 0; a < epi_node_operands(n); a++) {
        int chosen = s->at[n->arg[a]].chosen;
        const epi_axes *axes = &s->in->nodes[n->arg[a]].axes;
        bool there =
            epi_in_slots(s, n->arg[a]) || (chosen != EPI_NO_NODE && s->in->nodes[chosen].arg[1] == of->index);
        if (!there && (epi_axes_include(axes, &n->axes) || (number && epi_axes_meet(axes, &of->rows))))
            return true;
    }
    return false;
}

/* Is each row of the result made of that row of the operands, whatever the order of rows? */
static bool is_by_row(const epi_slots *s, const epi_node *n, const epi_axes *rows) {
    bool apart = !epi_axes_count_in(&n->over, rows);
    switch (epi_ops[n->op].cls) {
    case EPI_CLASS_MAP:
    case EPI_CLASS_REDUCE:
    case EPI_CLASS_SPLIT:
    case EPI_CLASS_SCAN:
    case EPI_CLASS_VIEW:
    case EPI_CLASS_SHIFT: return apart;
    case EPI_CLASS_PRODUCT:
        for (int a = 0; a < 2; a++)
            apart &= epi_in_slots(s, n->arg[a]) || !epi_axes_meet(&s->in->nodes[n->arg[a]].axes, rows);
        return apart;
    case EPI_CLASS_MOVE:
        return apart && (!epi_op_scatters(n->op) || !epi_axes_meet(&s->in->nodes[n->arg[1]].axes, rows));
    default: return false;
    }
}

/* The role of a value some of whose operands are in slot order. */
static epi_slot_place place_among(epi_slots *s, const epi_node *n, int order, bool wanted) {
    const epi_prelude *of = &s->preludes[order];
    if (n->op == EPI_OP_SCATTER && n->arg[1] == of->index &&
        epi_axes_same_set(&n->over, &(epi_axes){1, {of->choice}}))
        return (epi_slot_place){.role = EPI_SLOT_CHOSEN, .prelude = -1};
    if (is_by_row(s, n, &of->rows))
        return epi_op_is_map(n->op) && s->settled && !wanted && reorders(s, n, order)
                   ? (epi_slot_place){.prelude = -1}
                   : (epi_slot_place){.role = EPI_SLOT_BY_ROW, .prelude = order};
    if (epi_op_folds(n->op) && epi_axes_include(&n->over, &of->rows))
        return (epi_slot_place){.role = EPI_SLOT_ALL_ROWS, .prelude = -1};
    epi_axes others = epi_axes_without(&n->over, &of->rows), sums = epi_axes_without(&n->over, &others);
    if (is_sum(s, n, &sums) && !epi_axes_count_in(&others, &of->rows))
        return (epi_slot_place){.role = EPI_SLOT_PARTIAL, .prelude = order, .sums = sums};
    return (epi_slot_place){.prelude = -1};
}

/* Are all operands sums over the same axes of the same rows? */
static bool adds_sums(const epi_slots *s, const epi_node *n) {
    bool adds = epi_op_has_terms(n->op) || n->op == EPI_OP_NEG;
    if (!adds || s->at[n->arg[0]].prelude < 0 || !s->at[n->arg[0]].sums.count)
        return false;
    const epi_slot_place *first = &s->at[n->arg[0]];
    for (int a = 0; a < epi_node_operands(n); a++) {
        const epi_slot_place *p = &s->at[n->arg[a]];
        if (p->prelude != first->prelude || !epi_axes_same_set(&p->sums, &first->sums))
            return false;
    }
    return true;
}

bool epi_slots_few(const epi_slots *s, const epi_axes *sums) {
    int64_t terms = s->spec && !epi_spec_has_rows(s->spec, sums) ? epi_axes_size(sums, s->spec->sizes) : 0;
    return terms > 0 && terms <= MOST_TERMS;
}

/* Is it a sum of rows of a table, which the index names along several axes at once, and which has none of the axes that are
 * summed over? Of numbers it is not: those of one row are summed up as they lie. */
static bool is_combined(const epi_slots *s, const epi_node *n) {
    const epi_node *of = n->op == EPI_OP_SUM ? &s->in->nodes[n->arg[0]] : NULL;
    if (!of || of->op != EPI_OP_GATHER || of->over.count < 2 || epi_graph_uses(s->in, n->arg[0]).count > 1)
        return false;
    const epi_axes *index = &s->in->nodes[of->arg[1]].axes;
    epi_axes row = epi_axes_without(&s->in->nodes[of->arg[0]].axes, &of->over);
    return epi_axes_include(index, &n->over) && !epi_axes_include(index, &n->axes) &&
           !epi_axes_meet(&row, &n->over) && epi_slots_few(s, &n->over);
}

static epi_slot_place find_place(epi_slots *s, int node) {
    const epi_node *n = &s->in->nodes[node];
    epi_slot_factors f;
    if (epi_slots_product(s, node, &f)) {
        int chosen = s->at[f.at[f.chosen].node].chosen;
        return (epi_slot_place){
            .role = EPI_SLOT_PRODUCT, .prelude = epi_slots_prelude(s, &s->in->nodes[chosen]), .sums = f.rest};
    }
    if (epi_slots_outer(s, node, &f)) {
        epi_slots_prelude(s, n);
        return (epi_slot_place){.role = EPI_SLOT_OUTER, .prelude = -1};
    }
    if (is_combined(s, n))
        return (epi_slot_place){.role = EPI_SLOT_COMBINED, .prelude = -1};
    if (adds_sums(s, n))
        return (epi_slot_place){
            .role = EPI_SLOT_ADDED, .prelude = s->at[n->arg[0]].prelude, .sums = s->at[n->arg[0]].sums};
    int order = epi_slots_order(s, n);
    int beside = order < 0 && s->settled && s->at[node].chosen == EPI_NO_NODE ? order_beside(s, node) : -1;
    if (beside >= 0)
        return (epi_slot_place){.role = EPI_SLOT_BY_ROW, .prelude = beside};
    return order < 0 ? (epi_slot_place){.prelude = -1} : place_among(s, n, order, s->at[node].wanted);
}

static bool find_places(epi_slots *s) {
    bool any = false;
    for (int i = 0; i < s->in->node_count; i++) {
        bool wanted = s->at[i].wanted;
        s->at[i] = s->in->live[i] ? find_place(s, i) : (epi_slot_place){.prelude = -1};
        s->at[i].wanted = wanted;
        s->at[i].chosen = find_chosen(s, i);
        any |= s->at[i].role != EPI_SLOT_AS_IT_IS;
    }
    return any;
}

/* Is it wanted in slot order? Its users are looked at before. */
static bool is_wanted(const epi_slots *s, int node) {
    epi_use_list uses = epi_graph_uses(s->in, node);
    for (int i = 0; i < uses.count; i++) {
        const epi_slot_place *user = uses.at[i].node == EPI_NO_NODE ? NULL : &s->at[uses.at[i].node];
        if (user && (user->role == EPI_SLOT_PRODUCT || user->role == EPI_SLOT_OUTER ||
                     user->role == EPI_SLOT_CHOSEN || (user->role == EPI_SLOT_BY_ROW && user->wanted)))
            return true;
    }
    return false;
}

bool epi_slots_find(epi_slots *s) {
    if (!find_places(s))
        return false;
    for (int i = s->in->node_count - 1; i >= 0; i--)
        s->at[i].wanted = is_wanted(s, i);
    s->settled = true;
    return find_places(s);
}
