/* slots.c: a product whose weight is chosen by the row becomes one over rows that are sorted by their choice.
 *
 * In sum(x*gather(w, i, E), D) the index i chooses one of E weights for each of its elements, the rows of the
 * product. Rows of one choice belong together: a *slot* is a place in the order of the sorted index. Of each
 * index there is one prelude,
 *
 *     p = argsort(i, E)      the row that a slot has
 *     q = rank(i, E)         the slot that a row has
 *     o = offsets(i, E)      the first slot of each choice
 *     s = segments(o, E, …)  the choice of each slot
 *
 * and a grouped product is sum(gather(x, p, …)*gather(w, s, E), D), in slot order: its rows are those of one
 * weight, then those of the next. A weight's gradient, scatter(a*b, i, E) of an outer product, is
 * scatter(gather(a, p, …)*gather(b, p, …), s, E). What is made of such values row by row is made in slot order,
 * too; gather(v, q, …) is v in the order of the program, for whatever else wants it. */
#include "pass/rewrite/slots.h"

#include <stdio.h>
#include <string.h>

enum {
    MOST_FACTORS = 24,
    MOST_CHOICES = 1024, /* and rows that a sort takes */
    MOST_ROWS = 1 << 24,
    MOST_TERMS = 64 /* of a sum over choices of one row */
};

/* What becomes of a value. */
typedef enum role {
    AS_IT_IS,
    PRODUCT,  /* a grouped product */
    OUTER,    /* a sum of outer products, by choice */
    BY_ROW,   /* each row is made of the same row of its operands: so are slots */
    PARTIAL,  /* a sum over some axes of the rows, and perhaps others */
    ADDED,    /* sums over the same axes of the rows, added up */
    ALL_ROWS, /* over all rows, in whatever order they are */
    CHOSEN,   /* a sum by choice of what is in slot order */
    COMBINED  /* a sum of rows that a table has, over axes of the index */
} role;

/* The values of one index, sorted. */
typedef struct prelude {
    int index;       /* a node of the old graph */
    epi_axis choice; /* E */
    epi_axes rows;   /* of the index */
    int p, q, s;     /* in the new graph; EPI_NO_NODE: not made yet */
    int there;       /* is 0 in slots that choose nothing; EPI_NO_NODE: there are none */
} prelude;

typedef struct place {
    role role;
    int prelude;   /* in whose slot order it is made, or -1 */
    epi_axes sums; /* of the rows: it is the sum over these of what is made in slot order */
    int chosen;    /* the gather that it is made of row by row, and of nothing else that has rows: of
                      gather(w, i, E) it is itself; or EPI_NO_NODE */
    bool wanted;   /* something that is made in slot order wants it so */
    int slots;     /* in the new graph: the value in slot order */
    int table;     /* in the new graph: what is chosen from by `chosen` */
} place;

typedef struct slots {
    const epi_graph *in;
    const epi_spec *spec; /* or NULL */
    prelude *preludes;
    int count;
    place *at;      /* by node */
    bool settled;   /* what is wanted is known */
    int old, first; /* see slots.h */
} slots;

/* ---- the factors of a sum ---- */

/* By what a factor is multiplied with: the rows' operand, the weights', or the product. */
typedef enum side { ROWS, WEIGHTS, RESULT, SIDES } side;

typedef struct factors {
    epi_factor at[MOST_FACTORS];
    side side[MOST_FACTORS];
    int count;
    bool negative;
    /* Of a grouped product: */
    int chosen;     /* which factor the chosen weight is */
    epi_axes depth; /* what it sums over and the weight has */
    epi_axes rest;  /* and what it sums over of the rows */
} factors;

static bool in_slots(const slots *s, int node) {
    return s->at[node].prelude >= 0 && !s->at[node].sums.count;
}

/* Is it a product that falls into its factors: one that is nowhere in slot order, or all that is summed up? */
static bool opens(const slots *s, int node, const epi_axes *whole) {
    const epi_node *n = &s->in->nodes[node];
    bool product = epi_op_has_factors(n->op) || n->op == EPI_OP_NEG;
    bool plain = !n->exact && !n->opaque && n->saving == EPI_SAVE_OPEN;
    return product && plain && (!in_slots(s, node) || epi_axes_same_set(&n->axes, whole));
}

static void find_factors(const slots *s, int node, factors *f) {
    const epi_axes *whole = &s->in->nodes[node].axes;
    *f = (factors){.at = {{node, false}}, .count = 1};
    for (int i = 0; i < f->count;) {
        const epi_node *n = &s->in->nodes[f->at[i].node];
        bool two = n->op != EPI_OP_NEG;
        if (f->at[i].divides || !opens(s, f->at[i].node, whole) || (two && f->count == MOST_FACTORS)) {
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

static const epi_axes *factor_axes(const slots *s, const factors *f, int i) {
    return &s->in->nodes[f->at[i].node].axes;
}

/* Have some factors of this side axes of the rows, and is one no divisor? */
static bool has_rows(const slots *s, const factors *f, side side, const epi_axes *rows) {
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
    const epi_node *index = epi_ops[n->op].cls == EPI_CLASS_MOVE ? &g->nodes[n->arg[1]] : NULL;
    bool chooses = index && n->over.count == 1 && index->op != EPI_OP_SEGMENTS &&
                   !epi_axes_has_dim(&index->axes, n->over.at[0].dim);
    return chooses ? index->axes : (epi_axes){0};
}

/* Are there no more choices and rows than a sort takes? What is not known yet is asked again. */
static bool can_sort(const slots *s, epi_axis choice, const epi_axes *rows) {
    if (!s->spec)
        return true;
    const int64_t *sizes = s->spec->open ? s->spec->open->largest : s->spec->sizes;
    int64_t choices = epi_axis_size(choice, sizes), count = epi_axes_size(rows, sizes);
    return choices >= 0 && choices <= MOST_CHOICES && count >= 0 && count <= MOST_ROWS;
}

/* The prelude of an index, a new one where it has none yet. */
static int prelude_of(slots *s, const epi_node *move) {
    int i = 0;
    while (i < s->count &&
           (s->preludes[i].index != move->arg[1] || !epi_axis_equal(s->preludes[i].choice, move->over.at[0])))
        i++;
    if (i == s->count)
        s->preludes[s->count++] = (prelude){.index = move->arg[1],
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

/* Does every element of an index name an element along the axis? Integers of an input do, or are an error of
 * the run. */
static bool is_within(const epi_graph *g, int node, epi_axis axis, int depth) {
    enum { DEEPEST = 8 };
    const epi_node *n = &g->nodes[node];
    switch (depth < DEEPEST ? n->op : EPI_OP_COUNT) {
    case EPI_OP_INPUT: return epi_dtype_is_integer(g->tensors[n->tensor].type);
    case EPI_OP_TOPK: return epi_axis_equal(n->over.at[0], axis);
    case EPI_OP_ONCE:
    case EPI_OP_RENAME:
    case EPI_OP_GATHER: return is_within(g, n->arg[0], axis, depth + 1);
    case EPI_OP_WHERE:
        return is_within(g, n->arg[1], axis, depth + 1) && is_within(g, n->arg[2], axis, depth + 1);
    default: return is_argmax(g, n, axis);
    }
}

/* The gather that a value is made of, row by row, by what has no rows: of weights that are chosen, their
 * halves are chosen halves. */
static int find_chosen(const slots *s, int node) {
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
    around.at[around.count] = g->nodes[chosen].over.at[0];
    bool room = rows.count < EPI_MAX_AXES;
    around.count += room;
    bool apart = room && !epi_axes_count_in(&n->over, &around);
    bool alone = epi_node_operands(n) == 1 || epi_graph_at_number(g, node, &number);
    bool by_row = epi_ops[n->op].along == EPI_ELEMENTWISE || epi_ops[n->op].cls == EPI_CLASS_SPLIT ||
                  n->op == EPI_OP_RENAME || n->op == EPI_OP_GATHER;
    return apart && alone && by_row && n->op != EPI_OP_ONCE ? chosen : EPI_NO_NODE;
}

/* Which side of a grouped product a factor is on; SIDES: there is no such side. */
static side side_of(const slots *s, const factors *f, int i, const epi_axes *rows, const epi_axes *weight) {
    const epi_axes *axes = factor_axes(s, f, i);
    epi_axes of_rows = *rows, cols = epi_axes_without(weight, &f->depth);
    if (!epi_axes_meet(axes, &f->depth))
        return RESULT;
    if (!epi_axes_meet(axes, &cols))
        return epi_axes_unite(&of_rows, &f->depth) && epi_axes_include(&of_rows, axes) ? ROWS : SIDES;
    return epi_axes_include(weight, axes) ? WEIGHTS : SIDES;
}

/* Is this factor a weight that the rows of a product choose? */
static bool is_chosen_weight(const slots *s, const epi_axes *over, factors *f, int i) {
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
        f->side[k] = k == i ? WEIGHTS : side_of(s, f, k, &rows, &weight);
        if (f->side[k] == SIDES)
            return false;
    }
    return has_rows(s, f, ROWS, &rows);
}

static bool find_product(const slots *s, int node, factors *f) {
    const epi_node *n = &s->in->nodes[node];
    if (n->op != EPI_OP_SUM && n->op != EPI_OP_MEAN)
        return false;
    find_factors(s, n->arg[0], f);
    for (int i = 0; i < f->count; i++)
        if (is_chosen_weight(s, &n->over, f, i))
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
static epi_axes axes_around(const slots *s, const factors *f, epi_axis axis, const epi_axes *rows) {
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
static void take_sides(const slots *s, factors *f, const epi_axes *first, const epi_axes *rows) {
    int fits[SIDES] = {0};
    for (int i = 0; i < f->count; i++) {
        epi_axes own = epi_axes_without(factor_axes(s, f, i), rows);
        side to = !own.count ? RESULT : epi_axes_meet(&own, first) ? ROWS : WEIGHTS;
        int fit = in_slots(s, f->at[i].node) ? 2 : epi_axes_include(factor_axes(s, f, i), rows);
        fits[to] = fit > fits[to] ? fit : fits[to];
        f->side[i] = to;
    }
    for (int i = 0; i < f->count; i++)
        if (f->side[i] == RESULT)
            f->side[i] = fits[WEIGHTS] > fits[ROWS] ? WEIGHTS : ROWS;
}

/* Is it a sum by choice of outer products: do its factors fall into two that share nothing but rows? The
 * first has the axes that come first in the result. */
static bool find_outer(const slots *s, int node, factors *f) {
    const epi_node *n = &s->in->nodes[node];
    epi_axes rows = n->op == EPI_OP_SCATTER ? choosing_rows(s->in, n) : (epi_axes){0};
    if (!rows.count || n->axes.count < 3 || !can_sort(s, n->over.at[0], &rows))
        return false;
    epi_axes own = epi_axes_without(stored_axes(s->in, node), &n->over);
    find_factors(s, n->arg[0], f);
    epi_axes first = axes_around(s, f, own.at[0], &rows);
    take_sides(s, f, &first, &rows);
    return has_rows(s, f, ROWS, &rows) && has_rows(s, f, WEIGHTS, &rows);
}

/* The prelude in whose order operands are, or -1: none is, or they differ. */
static int order_of(const slots *s, const epi_node *n) {
    int order = -1;
    for (int a = 0; a < epi_node_operands(n); a++)
        if (in_slots(s, n->arg[a])) {
            if (order >= 0 && order != s->at[n->arg[a]].prelude)
                return -1;
            order = s->at[n->arg[a]].prelude;
        }
    return order;
}

/* Would another operand, as large as the result, have to be brought into slot order? Of one number a row every
 * operand is as large. */
static bool reorders(const slots *s, const epi_node *n, int order) {
    const prelude *of = &s->preludes[order];
    bool number = epi_axes_include(&of->rows, &n->axes);
    for (int a = 0; a < epi_node_operands(n); a++) {
        int chosen = s->at[n->arg[a]].chosen;
        const epi_axes *axes = &s->in->nodes[n->arg[a]].axes;
        bool there =
            in_slots(s, n->arg[a]) || (chosen != EPI_NO_NODE && s->in->nodes[chosen].arg[1] == of->index);
        if (!there && (epi_axes_include(axes, &n->axes) || (number && epi_axes_meet(axes, &of->rows))))
            return true;
    }
    return false;
}

/* Is each row of the result made of that row of the operands, whatever the order of rows? */
static bool is_by_row(const slots *s, const epi_node *n, const epi_axes *rows) {
    bool apart = !epi_axes_count_in(&n->over, rows);
    switch (epi_ops[n->op].cls) {
    case EPI_CLASS_MAP:
    case EPI_CLASS_REDUCE:
    case EPI_CLASS_SPLIT:
    case EPI_CLASS_VIEW: return apart;
    case EPI_CLASS_PRODUCT:
        for (int a = 0; a < 2; a++)
            apart &= in_slots(s, n->arg[a]) || !epi_axes_meet(&s->in->nodes[n->arg[a]].axes, rows);
        return apart;
    case EPI_CLASS_MOVE:
        return apart && (n->op != EPI_OP_SCATTER || !epi_axes_meet(&s->in->nodes[n->arg[1]].axes, rows));
    default: return false;
    }
}

/* The role of a value some of whose operands are in slot order. */
static place place_among(slots *s, const epi_node *n, int order, bool wanted) {
    const prelude *of = &s->preludes[order];
    epi_op_class cls = epi_ops[n->op].cls;
    if (n->op == EPI_OP_SCATTER && n->arg[1] == of->index && epi_axis_equal(n->over.at[0], of->choice))
        return (place){.role = CHOSEN, .prelude = -1};
    if (is_by_row(s, n, &of->rows))
        return cls == EPI_CLASS_MAP && s->settled && !wanted && reorders(s, n, order)
                   ? (place){.prelude = -1}
                   : (place){.role = BY_ROW, .prelude = order};
    bool folds = cls == EPI_CLASS_REDUCE || cls == EPI_CLASS_PRODUCT;
    if (folds && epi_axes_include(&n->over, &of->rows))
        return (place){.role = ALL_ROWS, .prelude = -1};
    epi_axes others = epi_axes_without(&n->over, &of->rows), sums = epi_axes_without(&n->over, &others);
    if (n->op == EPI_OP_SUM && !epi_axes_count_in(&others, &of->rows))
        return (place){.role = PARTIAL, .prelude = order, .sums = sums};
    return (place){.prelude = -1};
}

/* Are all operands sums over the same axes of the same rows? */
static bool adds_sums(const slots *s, const epi_node *n) {
    bool adds = epi_op_has_terms(n->op) || n->op == EPI_OP_NEG;
    if (!adds || s->at[n->arg[0]].prelude < 0 || !s->at[n->arg[0]].sums.count)
        return false;
    const place *first = &s->at[n->arg[0]];
    for (int a = 0; a < epi_node_operands(n); a++) {
        const place *p = &s->at[n->arg[a]];
        if (p->prelude != first->prelude || !epi_axes_same_set(&p->sums, &first->sums))
            return false;
    }
    return true;
}

static bool is_open(const epi_spec *spec, const epi_axes *axes) {
    for (int i = 0; spec->open && i < spec->open->count; i++)
        if (epi_axes_has_dim(axes, spec->open->dim[i]))
            return true;
    return false;
}

/* Is a sum over these axes of an index taken term by term? */
static bool is_few(const slots *s, const epi_axes *sums) {
    int64_t terms = s->spec && !is_open(s->spec, sums) ? epi_axes_size(sums, s->spec->sizes) : 0;
    return terms > 0 && terms <= MOST_TERMS;
}

/* Is it a sum of rows of a table, which the index names along several axes at once? Of numbers it is not: those
 * of one row are summed up as they lie. */
static bool is_combined(const slots *s, const epi_node *n) {
    const epi_node *of = n->op == EPI_OP_SUM ? &s->in->nodes[n->arg[0]] : NULL;
    if (!of || of->op != EPI_OP_GATHER || of->over.count < 2 || epi_graph_uses(s->in, n->arg[0]).count > 1)
        return false;
    const epi_axes *index = &s->in->nodes[of->arg[1]].axes;
    return epi_axes_include(index, &n->over) && !epi_axes_include(index, &n->axes) && is_few(s, &n->over);
}

static place find_place(slots *s, int node) {
    const epi_node *n = &s->in->nodes[node];
    factors f;
    if (find_product(s, node, &f)) {
        int chosen = s->at[f.at[f.chosen].node].chosen;
        return (place){.role = PRODUCT, .prelude = prelude_of(s, &s->in->nodes[chosen]), .sums = f.rest};
    }
    if (find_outer(s, node, &f)) {
        prelude_of(s, n);
        return (place){.role = OUTER, .prelude = -1};
    }
    if (is_combined(s, n))
        return (place){.role = COMBINED, .prelude = -1};
    if (adds_sums(s, n))
        return (place){.role = ADDED, .prelude = s->at[n->arg[0]].prelude, .sums = s->at[n->arg[0]].sums};
    int order = order_of(s, n);
    return order < 0 ? (place){.prelude = -1} : place_among(s, n, order, s->at[node].wanted);
}

static bool find_places(slots *s) {
    bool any = false;
    for (int i = 0; i < s->in->node_count; i++) {
        bool wanted = s->at[i].wanted;
        s->at[i] = s->in->live[i] ? find_place(s, i) : (place){.prelude = -1};
        s->at[i].wanted = wanted;
        s->at[i].chosen = find_chosen(s, i);
        any |= s->at[i].role != AS_IT_IS;
    }
    return any;
}

/* Is it wanted in slot order? Its users are looked at before. */
static bool is_wanted(const slots *s, int node) {
    epi_use_list uses = epi_graph_uses(s->in, node);
    for (int i = 0; i < uses.count; i++) {
        const place *user = uses.at[i].node == EPI_NO_NODE ? NULL : &s->at[uses.at[i].node];
        if (user && (user->role == PRODUCT || user->role == OUTER || user->role == CHOSEN ||
                     (user->role == BY_ROW && user->wanted)))
            return true;
    }
    return false;
}

/* ---- the new graph ---- */

/* A new value of the program's order in slot order. */
static int to_slots(epi_rewrite *r, int value, const prelude *of) {
    if (epi_graph_failed(r->g) || !epi_axes_meet(&r->g->nodes[value].axes, &of->rows))
        return value;
    return epi_graph_move(r->g, EPI_OP_GATHER, value, of->p, EPI_NO_NODE, &of->rows);
}

/* "e_rank", of an index e. */
static int sort_named(epi_rewrite *r, epi_op op, const prelude *of) {
    const char *index = r->in->nodes[of->index].name;
    int node = epi_graph_sort(r->g, op, r->fresh[of->index], &(epi_axes){1, {of->choice}});
    char name[160];
    snprintf(name, sizeof name, "%.120s%s%s", index ? index : "", index ? "_" : "", epi_ops[op].text);
    if (!epi_graph_failed(r->g) && !r->g->nodes[node].name)
        r->g->nodes[node].name = epi_arena_text(r->g->arena, name, strlen(name));
    return node;
}

static const prelude *make_prelude(epi_rewrite *r, int which) {
    prelude *of = &((slots *)r->ctx)->preludes[which];
    if (of->p != EPI_NO_NODE)
        return of;
    epi_axes along = {1, {of->choice}};
    epi_axes_unite(&along, &of->rows);
    of->p = sort_named(r, EPI_OP_ARGSORT, of);
    of->q = sort_named(r, EPI_OP_RANK, of);
    of->s = epi_graph_sort(r->g, EPI_OP_SEGMENTS, sort_named(r, EPI_OP_OFFSETS, of), &along);
    if (!is_within(r->in, of->index, of->choice, 0)) {
        epi_axes all = {1, {of->choice}};
        int ones = epi_graph_complete(r->g, epi_graph_const(r->g, 1), &all);
        int there = epi_graph_move(r->g, EPI_OP_GATHER, ones, r->fresh[of->index], EPI_NO_NODE, &all);
        of->there = to_slots(r, there, of);
    }
    return of;
}

/* A value of slots, which is 0 where a slot chooses nothing. */
static int where_there(epi_rewrite *r, int value, const prelude *of) {
    return of->there == EPI_NO_NODE
               ? value
               : epi_graph_map(r->g, EPI_OP_WHERE, of->there, value, epi_graph_const(r->g, 0));
}

/* What the rows choose from this table, in slot order. */
static int choose(epi_rewrite *r, int table, const prelude *of) {
    return epi_graph_move(r->g, EPI_OP_GATHER, table, of->s, EPI_NO_NODE, &(epi_axes){1, {of->choice}});
}

/* An old value in slot order. */
static int slots_of(epi_rewrite *r, int node, int which) {
    const slots *s = r->ctx;
    const prelude *of = make_prelude(r, which);
    const place *at = &s->at[node];
    if (in_slots(s, node) && at->prelude == which)
        return at->slots;
    if (at->chosen != EPI_NO_NODE) {
        const epi_node *gather = &r->in->nodes[at->chosen];
        if (gather->arg[1] == of->index && epi_axis_equal(gather->over.at[0], of->choice))
            return where_there(r, choose(r, at->table, of), of);
    }
    return to_slots(r, r->fresh[node], of);
}

/* The sum over these axes of rows of a table, term by term: in the order of the terms. */
static int sum_rows(epi_rewrite *r, int table, int index, const epi_axes *along, const epi_axes *sums) {
    const slots *s = r->ctx;
    int64_t terms = epi_axes_size(sums, s->spec->sizes);
    int value = EPI_NO_NODE;
    for (int64_t term = 0; term < terms && !epi_graph_failed(r->g); term++) {
        int at = index;
        int64_t left = term;
        for (int i = sums->count - 1; i >= 0; i--) {
            int64_t size = epi_axis_size(sums->at[i], s->spec->sizes);
            at = epi_graph_move(r->g, EPI_OP_GATHER, at, epi_graph_const(r->g, (double)(left % size)),
                                EPI_NO_NODE, &(epi_axes){1, {sums->at[i]}});
            left /= size;
        }
        int row = epi_graph_move(r->g, EPI_OP_GATHER, table, at, EPI_NO_NODE, along);
        value = value == EPI_NO_NODE ? row : epi_graph_map2(r->g, EPI_OP_ADD, value, row);
    }
    return value;
}

/* A value that is made in slot order, in the order of the program. */
static int from_slots(epi_rewrite *r, int value, int which, const epi_axes *sums) {
    const slots *s = r->ctx;
    const prelude *of = make_prelude(r, which);
    if (epi_graph_failed(r->g))
        return EPI_NO_NODE;
    if (sums->count && is_few(s, sums) && !epi_axes_include(&of->rows, &r->g->nodes[value].axes))
        return sum_rows(r, value, of->q, &of->rows, sums);
    value = epi_graph_move(r->g, EPI_OP_GATHER, value, of->q, EPI_NO_NODE, &of->rows);
    return sums->count ? epi_graph_reduce(r->g, EPI_OP_SUM, value, sums) : value;
}

static int multiply(epi_graph *g, int value, int by, bool divides) {
    if (value == EPI_NO_NODE && !divides)
        return by;
    return epi_graph_map2(g, divides ? EPI_OP_DIV : EPI_OP_MUL,
                          value == EPI_NO_NODE ? epi_graph_const(g, 1) : value, by);
}

/* How a factor comes into slot order: with others that lack some of the rows, with others that have them all,
 * or it is there already. */
enum { LACKS_ROWS, HAS_ROWS, IS_THERE, WAYS };

static int way_of(const slots *s, int node, const prelude *of) {
    if (in_slots(s, node) || s->at[node].chosen != EPI_NO_NODE)
        return IS_THERE;
    return epi_axes_include(&s->in->nodes[node].axes, &of->rows) ? HAS_ROWS : LACKS_ROWS;
}

/* The product of the factors of a side, in slot order. */
static int multiply_side(epi_rewrite *r, const factors *f, side side, int which) {
    const prelude *of = make_prelude(r, which);
    int value = EPI_NO_NODE;
    for (int way = 0; way < WAYS; way++) {
        int part = EPI_NO_NODE;
        for (int i = 0; i < f->count; i++)
            if (f->side[i] == side && way_of(r->ctx, f->at[i].node, of) == way)
                part = multiply(r->g, part,
                                way == IS_THERE ? slots_of(r, f->at[i].node, which) : r->fresh[f->at[i].node],
                                f->at[i].divides);
        if (part != EPI_NO_NODE)
            value = multiply(r->g, value, way == IS_THERE ? part : to_slots(r, part, of), false);
    }
    return value;
}

/* The weights that rows choose from, times what has their axes and no rows. */
static int multiply_weights(epi_rewrite *r, const factors *f) {
    const slots *s = r->ctx;
    int value = s->at[f->at[f->chosen].node].table;
    for (int i = 0; i < f->count; i++)
        if (f->side[i] == WEIGHTS && i != f->chosen)
            value = multiply(r->g, value, r->fresh[f->at[i].node], f->at[i].divides);
    return value;
}

static int write_product(epi_rewrite *r, int node, int which) {
    slots *s = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    factors f;
    find_product(s, node, &f);
    const prelude *of = make_prelude(r, which);
    int rows = multiply_side(r, &f, ROWS, which), weights = choose(r, multiply_weights(r, &f), of);
    int value = epi_graph_reduce(r->g, EPI_OP_SUM, epi_graph_map2(r->g, EPI_OP_MUL, rows, weights), &f.depth);
    value = where_there(r, value, of);
    for (int i = 0; i < f.count; i++)
        if (f.side[i] == RESULT)
            value = multiply(r->g, value, slots_of(r, f.at[i].node, which), f.at[i].divides);
    for (int i = 0; i < n->over.count && n->op == EPI_OP_MEAN; i++)
        value = multiply(r->g, value, epi_graph_leaf(r->g, EPI_OP_SIZE, n->over.at[i]), true);
    return f.negative ? epi_graph_map1(r->g, EPI_OP_NEG, value) : value;
}

static int write_outer(epi_rewrite *r, int node) {
    slots *s = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    factors f;
    find_outer(s, node, &f);
    int which = prelude_of(s, n);
    const prelude *of = make_prelude(r, which);
    int a = multiply_side(r, &f, ROWS, which), b = multiply_side(r, &f, WEIGHTS, which);
    a = where_there(r, a, of);
    b = where_there(r, b, of);
    int value = epi_graph_move(r->g, EPI_OP_SCATTER, epi_graph_map2(r->g, EPI_OP_MUL, a, b), of->s,
                               EPI_NO_NODE, &n->over);
    value = f.negative ? epi_graph_map1(r->g, EPI_OP_NEG, value) : value;
    return epi_graph_stand_for(r->g, value, n);
}

/* The same operation on operands in slot order, over these axes. */
static int write_by_row(epi_rewrite *r, const epi_node *n, int which) {
    int arg[3];
    for (int a = 0; a < 3; a++)
        arg[a] = n->arg[a] == EPI_NO_NODE ? EPI_NO_NODE : slots_of(r, n->arg[a], which);
    return epi_graph_value(r->g, epi_graph_rebuild(r->g, n, arg));
}

/* A sum over some axes of the rows and others: over the others here. */
static int write_partial(epi_rewrite *r, const epi_node *n, int which) {
    epi_axes others = epi_axes_without(&n->over, &((slots *)r->ctx)->preludes[which].rows);
    int value = slots_of(r, n->arg[0], which);
    return others.count ? epi_graph_reduce(r->g, EPI_OP_SUM, value, &others) : value;
}

static int write_added(epi_rewrite *r, const epi_node *n) {
    const slots *s = r->ctx;
    int b = n->arg[1] == EPI_NO_NODE ? EPI_NO_NODE : s->at[n->arg[1]].slots;
    return epi_graph_map2(r->g, n->op, s->at[n->arg[0]].slots, b);
}

/* scatter(v, i, E) of what is in slot order. */
static int write_chosen(epi_rewrite *r, const epi_node *n) {
    int which = order_of(r->ctx, n), value = slots_of(r, n->arg[0], which);
    const prelude *of = make_prelude(r, which);
    value = epi_graph_move(r->g, EPI_OP_SCATTER, where_there(r, value, of), of->s, EPI_NO_NODE, &n->over);
    return epi_graph_stand_for(r->g, value, n);
}

static int write_combined(epi_rewrite *r, const epi_node *n) {
    const epi_node *of = &r->in->nodes[n->arg[0]];
    int value = sum_rows(r, r->fresh[of->arg[0]], r->fresh[of->arg[1]], &of->over, &n->over);
    return epi_graph_stand_for(r->g, value, n);
}

/* What a chosen value is chosen from: the same operation on the table. */
static int write_table(epi_rewrite *r, int node) {
    const slots *s = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    if (s->at[node].chosen == node)
        return r->fresh[n->arg[0]];
    int arg[3] = {s->at[n->arg[0]].table, n->arg[1] == EPI_NO_NODE ? EPI_NO_NODE : r->fresh[n->arg[1]],
                  EPI_NO_NODE};
    return epi_graph_value(r->g, epi_graph_apply(r->g, n->op, arg, &n->over));
}

/* Is the value an output that has more digits than what is stored between parts, or may be? */
static bool is_wide_output(const slots *s, int node) {
    const epi_graph *g = s->in;
    bool wide = false;
    for (int t = g->input_count; t < g->tensor_count; t++) {
        const epi_tensor_decl *d = &g->tensors[t];
        bool known = s->spec || d->has_type;
        epi_dtype type = s->spec ? s->spec->types[t] : d->type;
        wide |= d->node == node && known && !epi_dtype_is_narrow(type) && !epi_dtype_is_integer(type);
    }
    return wide && !(s->spec && s->spec->type == EPI_F32);
}

/* What is made in slot order, there. It is stored at least as the value in the program's order is. */
static int write_slots(epi_rewrite *r, int node) {
    const place *at = &((slots *)r->ctx)->at[node];
    const epi_node *n = &r->in->nodes[node];
    int value = at->role == PRODUCT   ? write_product(r, node, at->prelude)
                : at->role == PARTIAL ? write_partial(r, n, at->prelude)
                : at->role == ADDED   ? write_added(r, n)
                                      : write_by_row(r, n, at->prelude);
    epi_node as = *n;
    if (is_wide_output(r->ctx, node)) {
        as.has_stored = true;
        as.stored = EPI_F32;
    }
    as.name = at->sums.count ? NULL : n->name; /* else it is the sum's */
    return epi_graph_stand_for(r->g, value, &as);
}

static int write_node(epi_rewrite *r, int node) {
    slots *s = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    place *at = &s->at[node];
    if (node >= s->old && s->first < 0)
        s->first = r->g->node_count;
    if (at->chosen != EPI_NO_NODE)
        at->table = write_table(r, node);
    if (at->prelude >= 0 && !epi_graph_failed(r->g)) {
        at->slots = write_slots(r, node);
        int value = from_slots(r, at->slots, at->prelude, &at->sums);
        return at->sums.count ? epi_graph_stand_for(r->g, value, n) : value;
    }
    switch (at->role) {
    case OUTER: return write_outer(r, node);
    case ALL_ROWS: return write_by_row(r, n, order_of(s, n));
    case CHOSEN: return write_chosen(r, n);
    case COMBINED: return write_combined(r, n);
    default: return EPI_NO_NODE;
    }
}

epi_status epi_slots_write(epi_arena *arena, const epi_graph **graph, const epi_spec *spec, int *first,
                           epi_error *err) {
    const epi_graph *in = *graph;
    size_t nodes = (size_t)in->node_count + 1;
    slots s = {.in = in,
               .spec = spec,
               .preludes = epi_arena_alloc(arena, nodes * sizeof *s.preludes),
               .at = epi_arena_alloc(arena, nodes * sizeof *s.at),
               .old = first ? *first : in->node_count,
               .first = -1};
    EPI_TRY(epi_has_memory(s.preludes && s.at, err));
    if (!find_places(&s))
        return EPI_OK;
    for (int i = in->node_count - 1; i >= 0; i--)
        s.at[i].wanted = is_wanted(&s, i);
    s.settled = true;
    find_places(&s);
    EPI_TRY(epi_graph_rewrite(arena, graph, write_node, &s, err));
    if (first)
        *first = s.first < 0 ? (*graph)->node_count : s.first;
    return EPI_OK;
}
