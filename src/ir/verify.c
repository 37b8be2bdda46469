/* verify.c: checks that a finished graph has what its builders promise. */
#include "ir/verify.h"

#include <stdio.h>
#include <string.h>

typedef struct verifier {
    const epi_graph *g;
    int node; /* that is looked at */
    epi_error *err;
} verifier;

static epi_status broken(const verifier *v, const char *what) {
    char text[120];
    snprintf(text, sizeof text, "value %d: %s", v->node, what);
    return EPI_INTERNAL(v->err, v->g->nodes[v->node].place, text);
}

static epi_status broken_tensor(const verifier *v, int t, const char *what) {
    char text[160];
    const char *name = v->g->tensors[t].name;
    snprintf(text, sizeof text, "tensor %d, %.40s: %s", t, name ? name : "without a name", what);
    return EPI_INTERNAL(v->err, v->g->tensors[t].place, text);
}

/* ---- axes ---- */

/* Are they axes of the program, each dim once? */
static bool are_axes(const epi_graph *g, const epi_axes *axes) {
    if (axes->count < 0 || axes->count > EPI_MAX_AXES)
        return false;
    for (int i = 0; i < axes->count; i++) {
        epi_axis a = axes->at[i];
        if (a.dim < 0 || a.dim >= g->dim_count || a.shift < -EPI_MAX_SHIFT || a.shift > EPI_MAX_SHIFT ||
            epi_axes_find_dim(axes, a.dim) != i)
            return false;
    }
    return true;
}

static const epi_axes *axes_of(const verifier *v, int operand) {
    return &v->g->nodes[v->g->nodes[v->node].arg[operand]].axes;
}

/* The axes of all operands. */
static epi_axes united(const verifier *v) {
    epi_axes all = {0};
    for (int a = 0; a < epi_node_operands(&v->g->nodes[v->node]); a++)
        if (!epi_axes_unite(&all, axes_of(v, a)))
            all.count = -1;
    return all;
}

/* One of the axes by another name. */
static epi_axes exchanged(const epi_axes *axes, epi_axis from, epi_axis to) {
    epi_axes out = *axes;
    int at = epi_axes_find(axes, from);
    if (at < 0)
        return (epi_axes){.count = -1};
    out.at[at] = to;
    return out;
}

static epi_axis half_of(epi_axis axis) {
    return (epi_axis){axis.dim, (int16_t)(axis.shift - 1)};
}

static epi_axes without(const epi_axes *axes, const epi_axes *gone) {
    return epi_axes_include(axes, gone) ? epi_axes_without(axes, gone) : (epi_axes){.count = -1};
}

/* The axes that a value has by its operands; a negative count: these do not fit. */
static epi_axes split_axes(const verifier *v, const epi_node *n) {
    epi_axis whole = n->over.at[0], half = half_of(whole);
    epi_axes all = united(v);
    if (epi_op_is_half(n->op))
        return exchanged(axes_of(v, 0), whole, half);
    for (int a = 0; a < 2; a++)
        if (epi_axes_find(axes_of(v, a), half) < 0)
            return (epi_axes){.count = -1};
    return exchanged(&all, half, whole);
}

static epi_axes moved_axes(const verifier *v, const epi_node *n) {
    const epi_axes *from = axes_of(v, 0), *index = axes_of(v, 1);
    epi_axes rest = epi_axes_without(from, n->op == EPI_OP_GATHER ? &n->over : index);
    epi_axes first = n->op == EPI_OP_GATHER ? *index : n->over;
    if (n->op == EPI_OP_UPDATE)
        return epi_axes_include(from, &n->over) && epi_axes_include(from, index) &&
                       epi_axes_include(from, axes_of(v, 2))
                   ? *from
                   : (epi_axes){.count = -1};
    bool all = n->over.count == 1 ? epi_axes_include(from, &n->over) : epi_axes_meet(from, &n->over);
    if ((n->op == EPI_OP_GATHER && !all) || !epi_axes_unite(&first, &rest))
        first.count = -1;
    return first;
}

static epi_axes sorted_axes(const verifier *v, const epi_node *n) {
    epi_axes first = {1, {n->over.at[0]}};
    epi_axes places = epi_axes_without(&n->over, &first);
    if (n->op == EPI_OP_TOPK)
        return exchanged(axes_of(v, 0), n->over.at[0], n->over.at[1]);
    if (n->op == EPI_OP_OFFSETS)
        return first;
    return epi_axes_same_set(axes_of(v, 0), n->op == EPI_OP_SEGMENTS ? &first : &places)
               ? places
               : (epi_axes){.count = -1};
}

/* Groups of rows have all positions in a and all groups in b; groups of the depth have all positions in both. */
static epi_axes grouped_axes(const verifier *v, const epi_node *n) {
    const epi_graph *g = v->g;
    const epi_axes none = {.count = -1};
    if (g->nodes[n->arg[2]].op != EPI_OP_SEGMENTS)
        return none;
    epi_axes positions = epi_grouped_positions(g, n), group = {1, {epi_grouped_axis(g, n)}};
    epi_axes rows = epi_product_side(g, n, 0), cols = epi_product_side(g, n, 1), all = rows;
    bool grouped_rows = epi_grouped_rows(g, n), both = true;
    for (int a = 0; a < 2; a++)
        both &= epi_axes_include(axes_of(v, a), &n->over);
    if (!both || epi_axes_find(axes_of(v, 0), group.at[0]) >= 0 || epi_axes_meet(&rows, &cols) ||
        !cols.count || !epi_axes_same_set(&positions, grouped_rows ? &rows : &n->over) || !rows.count ||
        !epi_axes_unite(&all, &cols) || (!grouped_rows && !epi_axes_unite(&all, &group)))
        return none;
    return all;
}

static epi_axes made_axes(const verifier *v, const epi_node *n) {
    epi_axes all = united(v), none = {0};
    switch (epi_ops[n->op].cls) {
    case EPI_CLASS_MAP: return all;
    case EPI_CLASS_REDUCE: return without(&all, &n->over);
    case EPI_CLASS_PRODUCT: {
        if (n->op == EPI_OP_GROUPED)
            return grouped_axes(v, n);
        bool both = epi_axes_include(axes_of(v, 0), &n->over) && epi_axes_include(axes_of(v, 1), &n->over);
        return both ? without(&all, &n->over) : (epi_axes){.count = -1};
    }
    case EPI_CLASS_SPLIT: return split_axes(v, n);
    case EPI_CLASS_MOVE: return moved_axes(v, n);
    case EPI_CLASS_SORT: return sorted_axes(v, n);
    case EPI_CLASS_VIEW:
        return n->op == EPI_OP_RENAME ? exchanged(&all, n->over.at[0], n->over.at[1])
               : n->op == EPI_OP_LIST ? none
                                      : *axes_of(v, 0);
    case EPI_CLASS_RANDOM: return n->over;
    case EPI_CLASS_LEAF: break;
    default: return epi_axes_include(&all, &n->over) ? all : (epi_axes){.count = -1};
    }
    if (n->op == EPI_OP_INPUT)
        return v->g->tensors[n->tensor].axes;
    return n->op == EPI_OP_INDEX ? n->over : none;
}

/* Does an operation name as many axes as it should? */
static bool names_axes(const epi_node *n) {
    int count = n->over.count;
    switch (epi_ops[n->op].cls) {
    case EPI_CLASS_MAP: return !count;
    case EPI_CLASS_SPLIT:
    case EPI_CLASS_SHIFT:
    case EPI_CLASS_SCAN: return count == 1;
    case EPI_CLASS_MOVE: return n->op == EPI_OP_UPDATE ? count == 1 : count > 0;
    case EPI_CLASS_SORT:
        return n->op == EPI_OP_OFFSETS ? count == 1 : n->op == EPI_OP_TOPK ? count == 2 : count > 1;
    case EPI_CLASS_VIEW: return count == (n->op == EPI_OP_RENAME ? 2 : 0);
    case EPI_CLASS_LEAF: return count == (n->op == EPI_OP_INDEX || n->op == EPI_OP_SIZE);
    default: return true;
    }
}

/* ---- values ---- */

static epi_status verify_operands(const verifier *v, const epi_node *n) {
    for (int a = 0; a < 3; a++) {
        if ((n->arg[a] == EPI_NO_NODE) != (a >= epi_ops[n->op].arity))
            return broken(v, "it has not as many operands as its operation takes");
        if (n->arg[a] != EPI_NO_NODE && (n->arg[a] < 0 || n->arg[a] >= v->node))
            return broken(v, "an operand does not come before it");
    }
    return EPI_OK;
}

static epi_status verify_node(verifier *v) {
    const epi_node *n = &v->g->nodes[v->node];
    if ((int)n->op < 0 || n->op >= EPI_OP_COUNT)
        return broken(v, "there is no such operation");
    EPI_TRY(verify_operands(v, n));
    if (n->op == EPI_OP_INPUT && (n->tensor < 0 || n->tensor >= v->g->input_count))
        return broken(v, "it is an input that there is not");
    if (!are_axes(v->g, &n->axes))
        return broken(v, "its axes are none of the program, or the same one twice");
    bool twice = epi_op_is_view(n->op); /* from an axis to another part of the same dim */
    if (!twice && !are_axes(v->g, &n->over))
        return broken(v, "the axes that it names are none of the program, or the same one twice");
    if (!names_axes(n))
        return broken(v, "it names too few axes, or too many");
    epi_axes made = made_axes(v, n);
    if (made.count < 0 || !epi_axes_same_set(&made, &n->axes))
        return broken(v, "its axes are not those that its operands give");
    if (n->op == EPI_OP_SHIFT && (n->value == 0 || n->value != (double)epi_shift_by(n)))
        return broken(v, "it is shifted by no whole number of places");
    if (n->has_stored && ((int)n->stored < 0 || n->stored >= EPI_DTYPE_COUNT))
        return broken(v, "it is stored as a type that there is not");
    return EPI_OK;
}

/* ---- tensors ---- */

static epi_status verify_tensor(const verifier *v, int t) {
    const epi_graph *g = v->g;
    const epi_tensor_decl *d = &g->tensors[t];
    bool output = t >= g->input_count;
    if (!d->name || !*d->name || epi_graph_find_tensor(g, d->name) != t)
        return broken_tensor(v, t, "it has no name of its own");
    if (d->is_output != output || (output && (d->param || d->cotangent)))
        return broken_tensor(v, t, "inputs come first, and only they are params or cotangents");
    if (d->has_type && ((int)d->type < 0 || d->type >= EPI_DTYPE_COUNT))
        return broken_tensor(v, t, "its type is none");
    if (d->node < 0 || d->node >= g->node_count || !are_axes(g, &d->axes))
        return broken_tensor(v, t, "it has no value, or axes that are none of the program");
    const epi_node *n = &g->nodes[d->node];
    if (!output && (n->op != EPI_OP_INPUT || n->tensor != t))
        return broken_tensor(v, t, "its value is not this input");
    if (!epi_axes_same_set(&d->axes, &n->axes))
        return broken_tensor(v, t, "its axes are not those of its value");
    return EPI_OK;
}

static epi_status verify_dims(const verifier *v) {
    const epi_graph *g = v->g;
    if (g->dim_count < 0 || g->dim_count > EPI_MAX_DIMS || g->declared_count > g->dim_count)
        return EPI_INTERNAL(v->err, (epi_place){0}, "too many axes");
    for (int i = 0; i < g->dim_count; i++)
        if (!g->dims[i] || (i >= g->declared_count && (g->same[i].dim < 0 || g->same[i].dim >= i)))
            return EPI_INTERNAL(v->err, (epi_place){0}, "an axis has no name, or no size");
    return EPI_OK;
}

/* ---- uses ---- */

/* Is the next use of the node this one? first_use[node + 1] ends its list; `next` is by node how many were
 * seen. */
static bool is_next(const epi_graph *g, int node, int *seen, epi_use use) {
    int at = g->first_use[node] + seen[node]++;
    return at < g->first_use[node + 1] && g->uses[at].node == use.node && g->uses[at].operand == use.operand;
}

/* What outputs depend on is live, nothing else is, and lists have every use, in order. */
static bool has_uses(const epi_graph *g, int *seen, bool *live) {
    for (int t = g->input_count; t < g->tensor_count; t++)
        live[g->tensors[t].node] = true;
    for (int i = g->node_count - 1; i >= 0; i--)
        for (int a = 0; a < epi_node_operands(&g->nodes[i]) && live[i]; a++)
            live[g->nodes[i].arg[a]] = true;
    if (!g->live || !g->uses || !g->first_use)
        return false;
    for (int i = 0; i < g->node_count; i++) {
        if (g->live[i] != live[i])
            return false;
        for (int a = 0; a < epi_node_operands(&g->nodes[i]) && live[i]; a++)
            if (!is_next(g, g->nodes[i].arg[a], seen, (epi_use){i, a}))
                return false;
    }
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (!is_next(g, g->tensors[t].node, seen, (epi_use){EPI_NO_NODE, t}))
            return false;
    for (int i = 0; i < g->node_count; i++)
        if (g->first_use[i] + seen[i] != g->first_use[i + 1])
            return false;
    return true;
}

static epi_status verify_uses(const verifier *v) {
    epi_arena scratch = {0};
    size_t nodes = (size_t)v->g->node_count + 1;
    int *seen = epi_arena_alloc(&scratch, nodes * sizeof *seen);
    bool *live = epi_arena_alloc(&scratch, nodes);
    epi_status status = EPI_OK;
    if (!seen || !live)
        status = epi_fail(v->err, EPI_ERR_MEMORY, "out of memory");
    else if (!has_uses(v->g, seen, live))
        status =
            EPI_INTERNAL(v->err, (epi_place){0}, "what is live and who uses it is not what the nodes say");
    epi_arena_free(&scratch);
    return status;
}

epi_status epi_graph_verify(const epi_graph *g, epi_error *err) {
    verifier v = {.g = g, .err = err};
    if (g->input_count < 0 || g->tensor_count < g->input_count || g->node_count < 0)
        return EPI_INTERNAL(err, (epi_place){0}, "its counts are none");
    epi_status status = verify_dims(&v);
    for (v.node = 0; v.node < g->node_count && status == EPI_OK; v.node++)
        status = verify_node(&v);
    for (int t = 0; t < g->tensor_count && status == EPI_OK; t++)
        status = verify_tensor(&v, t);
    return status == EPI_OK ? verify_uses(&v) : status;
}
