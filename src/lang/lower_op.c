/* lower_op.c: calls of operations and words: values first, then axes. */
#include "lang/lower.h"

#include <math.h>
#include <string.h>

#include "lang/hints.h"
#include "lang/words.h"

static epi_arity arity_of(epi_op op) {
    int arity = epi_ops[op].arity;
    switch (epi_ops[op].cls) {
    case EPI_CLASS_MAP: return (epi_arity){arity, 0, 0};
    case EPI_CLASS_REDUCE:
    case EPI_CLASS_RANDOM: return (epi_arity){arity, 1, EPI_MAX_AXES};
    case EPI_CLASS_MOVE: return (epi_arity){arity, 1, op == EPI_OP_UPDATE ? 1 : EPI_MAX_AXES};
    case EPI_CLASS_SORT:
        return (epi_arity){arity, op == EPI_OP_SEGMENTS || op == EPI_OP_TOPK ? 2 : 1,
                           op == EPI_OP_OFFSETS ? 1
                           : op == EPI_OP_TOPK  ? 2
                                                : EPI_MAX_AXES};
    case EPI_CLASS_SCAN: return (epi_arity){arity, 1, 2}; /* the second is a value: what it begins with */
    case EPI_CLASS_VIEW: return (epi_arity){arity, 2, 2};
    default: return (epi_arity){arity, 1, 1};
    }
}

/* max(a, b) is a map and max(x, D) a reduction: the second argument decides. */
static bool names_an_axis(const epi_frame *f, const epi_ast *e) {
    epi_ast_axis a;
    return epi_ast_as_axis(e, &a) && epi_frame_dim(f, a.name) >= 0;
}

static epi_op find_op(const epi_frame *f, const epi_ast *e) {
    bool reduces = e->arg_count >= 2 && names_an_axis(f, e->args[1]);
    for (int op = 0; op < EPI_OP_COUNT; op++)
        if (!strcmp(epi_ops[op].text, e->name) && !(reduces && (op == EPI_OP_MAX || op == EPI_OP_MIN)))
            return (epi_op)op;
    return EPI_OP_COUNT;
}

/* The arguments of an operation that takes any number of axes. */
static const char *what_it_takes(const char *name) {
    epi_op_class cls = EPI_CLASS_REDUCE; /* so are words that do */
    for (int op = 0; op < EPI_OP_COUNT; op++)
        cls = strcmp(epi_ops[op].text, name) != 0 ? cls : epi_ops[op].cls;
    switch (cls) {
    case EPI_CLASS_RANDOM: return "a seed and the axes of the result";
    case EPI_CLASS_MOVE: return "a value, an index and the axes that it indexes";
    case EPI_CLASS_SCAN: return "a factor, a term, an axis and an optional first state";
    case EPI_CLASS_SORT: return "a value, the axis that its elements index, and the axes of the positions";
    default: return "a value and the axes to reduce over";
    }
}

static EPI_NOINLINE void fail_count(epi_lowering *lo, const epi_ast *e, epi_arity want, int given) {
    int least = want.values + want.least_axes;
    const char *hint = epi_hint_call(e->name);
    if (want.least_axes == want.most_axes)
        epi_graph_fail(lo->g, "%s takes %d argument%s, but %d %s given%s%s", e->name, least,
                       least == 1 ? "" : "s", given, given == 1 ? "was" : "were", hint ? ": " : "",
                       hint ? hint : "");
    else
        epi_graph_fail(lo->g, "%s takes %s, but %d argument%s given", e->name, what_it_takes(e->name), given,
                       given == 1 ? " was" : "s were");
}

/* A value alone, where axes are wanted too: says which it has. */
static EPI_NOINLINE void fail_no_axes(epi_lowering *lo, const epi_ast *e, int a) {
    const epi_axes *axes = &lo->g->nodes[a].axes;
    epi_lower_at(lo, e->place);
    if (axes->count)
        epi_graph_fail(lo->g, "%s needs an axis too: for %s write %s(%s, %s)", e->name,
                       epi_node_label(lo->g, a).text, e->name,
                       e->args[0]->kind == EPI_AST_NAME ? e->args[0]->name : "…",
                       epi_axis_label(lo->g, axes->at[axes->count - 1]).text);
}

static EPI_NOINLINE void check_count(epi_lowering *lo, epi_frame *f, const epi_ast *e, epi_arity want) {
    int given = e->arg_count;
    epi_lower_at(lo, e->place);
    if (given >= want.values + want.least_axes && given <= want.values + want.most_axes)
        return;
    bool extreme = !strcmp(e->name, epi_ops[EPI_OP_MAX].text) || !strcmp(e->name, epi_ops[EPI_OP_MIN].text);
    if (given == 1 && (want.values == 1 || extreme) && strcmp(e->name, epi_ops[EPI_OP_UNIFORM].text) != 0) {
        int a = epi_lower_one(lo, f, e->args[0]);
        if (epi_lower_ok(lo))
            fail_no_axes(lo, e, a);
    }
    epi_lower_at(lo, e->place);
    fail_count(lo, e, want, given);
}

static EPI_NOINLINE epi_axis axis_argument(epi_lowering *lo, const epi_frame *f, const epi_ast *call, int i) {
    epi_ast_axis a;
    if (epi_ast_as_axis(call->args[i], &a))
        return epi_frame_axis(lo, f, &a);
    const epi_ast *given = epi_ast_leftmost(call->args[i]);
    bool number = given->kind == EPI_AST_NUMBER || (given->kind == EPI_AST_UNARY && given == call->args[i]);
    epi_lower_at(lo, call->args[i]->place);
    epi_graph_fail(
        lo->g,
        number ? "argument %d of %s must be an axis: give its name, not a number"
               : "argument %d of %s must be an axis: a name, or a name with a power of two as in 2*F or F/2",
        i + 1, call->name);
    return (epi_axis){0, 0};
}

/* Adds an axis to those that a call names: each is named once. */
static EPI_NOINLINE void name_axis(epi_lowering *lo, const epi_ast *call, epi_axis axis, epi_axes *axes) {
    epi_lower_at(lo, call->place);
    if (epi_axes_find(axes, axis) >= 0 && epi_lower_ok(lo))
        epi_graph_fail(lo->g, "%s names the axis %s twice", call->name, epi_axis_label(lo->g, axis).text);
    axes->at[axes->count++] = axis;
}

/* What rename calls an axis: an axis of the program, or a name that is new to it. */
static EPI_NOINLINE epi_axis new_axis_argument(epi_lowering *lo, epi_frame *f, const epi_ast *call, int i,
                                               epi_axis from) {
    const epi_ast *given = call->args[i];
    if (given->kind != EPI_AST_NAME || epi_frame_dim(f, given->name) >= 0 ||
        epi_frame_value(f, given->name) != EPI_NO_NODE)
        return axis_argument(lo, f, call, i);
    epi_lower_at(lo, given->place);
    if (f->dim_count == EPI_MAX_DIMS)
        epi_graph_fail(lo->g, "a program has at most %d differently named axes", EPI_MAX_DIMS);
    if (!epi_lower_ok(lo))
        return from;
    f->dims[f->dim_count] = given->name;
    f->axes[f->dim_count] = epi_graph_new_name(lo->g, given->name, from);
    f->bound[f->dim_count] = true;
    return f->axes[f->dim_count++];
}

/* pairs and halves: EVEN and ODD, LOW and HIGH are neighbours. */
static epi_values build_split(epi_lowering *lo, epi_op op, int a, epi_axis axis) {
    epi_values v = epi_lower_values(lo, 2);
    for (int i = 0; i < 2 && v.node; i++)
        v.node[i] = epi_graph_split(lo->g, op + (unsigned)i, a, axis);
    return v;
}

static EPI_NOINLINE epi_values build(epi_lowering *lo, epi_op op, const int *a, const epi_axes *axes) {
    return epi_op_is_half(op) ? build_split(lo, op, a[0], axes->at[0])
                              : epi_lower_value(lo, epi_graph_apply(lo->g, op, a, axes));
}

/* A word's errors name the word, not what it stands for. */
static EPI_NOINLINE void check_axes(epi_lowering *lo, const epi_word *word, int a, const epi_axes *axes) {
    for (int i = 0; i < axes->count && epi_lower_ok(lo); i++)
        if (epi_axes_find(&lo->g->nodes[a].axes, axes->at[i]) < 0)
            epi_graph_fail(lo->g, "%s over %s: %s has no such axis", word->name,
                           epi_axis_label(lo->g, axes->at[i]).text, epi_node_label(lo->g, a).text);
}

/* Axes of a value that is computed have no order that a text could mean: a call names those that it counts
 * through. */
static EPI_NOINLINE void check_places(epi_lowering *lo, epi_op op, int a, const epi_axes *axes) {
    const epi_node *n = &lo->g->nodes[a];
    if (axes->count > 1 || op == EPI_OP_OFFSETS || n->axes.count < 2 || n->op == EPI_OP_INPUT)
        return;
    epi_graph_fail(
        lo->g,
        "%s of %s, which is computed: name its axes after %s, in the order in which its elements are counted",
        epi_ops[op].text, epi_node_label(lo->g, a).text, epi_axis_label(lo->g, axes->at[0]).text);
}

/* ---- shifts ---- */

/* shift(x, T, 2): a value, an axis, and by how many places. */
static EPI_NOINLINE int lower_shift(epi_lowering *lo, epi_frame *f, const epi_ast *e) {
    enum { MOST = 1 << 30 };
    epi_lower_at(lo, e->place);
    if (e->arg_count != 3)
        return epi_graph_fail(
            lo->g,
            "shift takes a value, an axis and a distance, as in shift(x, T, 1), but %d argument%s given",
            e->arg_count, e->arg_count == 1 ? " was" : "s were");
    int value = epi_lower_one(lo, f, e->args[0]);
    epi_axis axis = epi_lower_ok(lo) ? axis_argument(lo, f, e, 1) : (epi_axis){0, 0};
    int number = epi_lower_ok(lo) ? epi_lower_one(lo, f, e->args[2]) : EPI_NO_NODE;
    if (!epi_lower_ok(lo))
        return EPI_NO_NODE;
    epi_lower_at(lo, e->args[2]->place);
    double by = epi_graph_number(lo->g, number, NULL);
    if (by != nearbyint(by))
        return epi_graph_fail(lo->g,
                              "argument 3 of shift is the distance: write a whole number, such as 1 or -2");
    if (fabs(by) > MOST)
        return epi_graph_fail(lo->g, "shift by %g places: at most %d", by, MOST);
    epi_lower_at(lo, e->place);
    return epi_graph_shifted(lo->g, value, axis, (int64_t)by);
}

/* ---- sums of products ---- */

enum { MOST_FACTORS = 32 };

typedef struct factors {
    epi_factor at[MOST_FACTORS];
    int count; /* more than there is room for: it is not taken apart */
} factors;

static bool is_scaling(const epi_ast *e) {
    return e->kind == EPI_AST_BINARY && epi_op_has_factors(e->op);
}

/* Lowers the factors of a tree of * and /, in the order of the text. */
static void collect_factors(epi_lowering *lo, epi_frame *f, const epi_ast *e, bool divides, factors *out) {
    const epi_ast *at = e;
    while (is_scaling(at))
        at = at->args[0];
    for (bool first = true;; at = at->outer, first = false) {
        const epi_ast *factor = first ? at : at->args[1];
        bool under = divides != (!first && at->op == EPI_OP_DIV);
        if (!first && is_scaling(factor)) {
            collect_factors(lo, f, factor, under, out);
        } else {
            int node = epi_lower_one(lo, f, factor);
            if (!epi_lower_ok(lo))
                return;
            if (out->count < MOST_FACTORS)
                out->at[out->count] = (epi_factor){node, under};
            out->count++;
        }
        if (at == e)
            return;
    }
}

/* sum(a*b, X) and mean(a*b, X) as a product that keeps what other axes a and b share; EPI_NO_NODE where the
 * factors do not fall into two operands. */
static EPI_NOINLINE int lower_contraction(epi_lowering *lo, epi_frame *f, const epi_ast *e, epi_op op) {
    factors all = {.count = 0};
    epi_axes over = {0};
    collect_factors(lo, f, e->args[0], false, &all); /* which may name an axis that is new */
    for (int i = 1; i < e->arg_count && epi_lower_ok(lo); i++)
        name_axis(lo, e, axis_argument(lo, f, e, i), &over);
    epi_lower_at(lo, e->place);
    if (!epi_lower_ok(lo) || all.count > MOST_FACTORS)
        return EPI_NO_NODE;
    int value = epi_graph_sum_product(lo->g, all.at, all.count, &over);
    for (int i = 0; i < over.count && value != EPI_NO_NODE && op == EPI_OP_MEAN; i++)
        value = epi_graph_map2(lo->g, EPI_OP_DIV, value, epi_graph_leaf(lo->g, EPI_OP_SIZE, over.at[i]));
    return value;
}

/* What a scan takes up from a state that it begins with: b, and a times that state at the first step. */
static EPI_NOINLINE int begin_scan(epi_lowering *lo, epi_op op, const int *arg, int begin, epi_axis axis) {
    epi_graph *g = lo->g;
    if (epi_lower_ok(lo) && epi_axes_has_dim(&g->nodes[begin].axes, axis.dim))
        epi_graph_fail(g, "%s along %s begins with one state, but %s has that axis", epi_ops[op].text,
                       epi_axis_label(g, axis).text, epi_node_label(g, begin).text);
    if (!epi_lower_ok(lo))
        return EPI_NO_NODE;
    int first = epi_graph_const(g, 0);
    if (epi_ops[op].back)
        first = epi_graph_map2(g, EPI_OP_SUB, epi_graph_leaf(g, EPI_OP_SIZE, axis), epi_graph_const(g, 1));
    int is_first = epi_graph_map2(g, EPI_OP_EQ, epi_graph_leaf(g, EPI_OP_INDEX, axis), first);
    int carried = epi_graph_map2(g, EPI_OP_MUL, arg[0], begin);
    int more = epi_graph_map(g, EPI_OP_WHERE, is_first, carried, epi_graph_const(g, 0));
    return epi_graph_map2(g, EPI_OP_ADD, arg[1], more);
}

bool epi_lower_op(epi_lowering *lo, epi_frame *f, const epi_ast *e, epi_values *out) {
    epi_op op = find_op(f, e);
    const epi_word *word = op == EPI_OP_COUNT ? epi_word_find(e->name) : NULL;
    if (op == EPI_OP_COUNT && !word)
        return false;
    if (op == EPI_OP_SHIFT) {
        *out = epi_lower_value(lo, lower_shift(lo, f, e));
        return true;
    }
    epi_arity want = word ? word->takes : arity_of(op);
    int node[3] = {EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE};
    epi_axes axes = {0}, sums = {0};
    epi_notes *notes = lo->notes;
    check_count(lo, f, e, want);
    if (epi_ops[op].adds && epi_lower_ok(lo) && is_scaling(e->args[0])) {
        int value = lower_contraction(lo, f, e, op);
        if (value != EPI_NO_NODE) {
            *out = epi_lower_value(lo, value);
            return true;
        }
        lo->notes = NULL; /* what there is to say of the factors is said */
    }
    for (int i = 0; i < e->arg_count && epi_lower_ok(lo); i++)
        if (i < want.values)
            node[word ? i : epi_op_written(op, i)] = epi_lower_one(lo, f, e->args[i]);
        else if (epi_op_scans(op) && axes.count)
            node[1] = begin_scan(lo, op, node, epi_lower_one(lo, f, e->args[i]), axes.at[0]);
        else if (op == EPI_OP_RENAME && axes.count)
            axes.at[axes.count++] = new_axis_argument(lo, f, e, i, axes.at[0]);
        else
            name_axis(lo, e, axis_argument(lo, f, e, i), i < e->arrow ? &sums : &axes);
    lo->notes = notes;
    epi_lower_at(lo, e->place);
    if (epi_lower_ok(lo) && word)
        check_axes(lo, word, node[0], &axes);
    if (epi_lower_ok(lo) && epi_ops[op].cls == EPI_CLASS_SORT)
        check_places(lo, op, node[0], &axes);
    if (epi_lower_ok(lo))
        *out = word       ? epi_lower_value(lo, word->build(lo->g, node, &axes))
               : e->arrow ? epi_lower_value(lo, epi_graph_scatter(lo->g, node[0], node[1], &sums, &axes))
                          : build(lo, op, node, &axes);
    if (lo->notes && op == EPI_OP_SCATTER && !e->arrow && epi_lower_ok(lo))
        epi_note_scatter(lo, f, e, *out->node);
    return true;
}
