/* graph.c: builds the values of a program, with axis inference and its error messages. */
#include "ir/graph.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"

/* ---- errors ---- */

int epi_graph_fail(epi_graph *g, const char *fmt, ...) {
    if (g->error.status != EPI_OK)
        return EPI_NO_NODE;
    va_list args;
    va_start(args, fmt);
    vsnprintf(g->error.message, sizeof g->error.message, fmt, args);
    va_end(args);
    g->error.status = EPI_ERR_CHECK;
    g->error.line = g->place.line;
    g->error.column = g->place.column;
    return EPI_NO_NODE;
}

bool epi_graph_failed(epi_graph *g) {
    if (g->arena->failed && g->error.status == EPI_OK) {
        epi_graph_fail(g, "out of memory");
        g->error.status = EPI_ERR_MEMORY;
    }
    return g->error.status != EPI_OK;
}

epi_status epi_graph_status(const epi_graph *g, epi_error *err) {
    EPI_TRY(epi_has_memory(!g->arena->failed, err));
    if (g->error.status != EPI_OK && err)
        *err = g->error;
    return g->error.status;
}

/* ---- nodes ---- */

static bool same_node(const epi_node *a, const epi_node *b) {
    return a->op == b->op && memcmp(a->arg, b->arg, sizeof a->arg) == 0 && a->tensor == b->tensor &&
           a->fixed == b->fixed && a->own == b->own && memcmp(&a->value, &b->value, sizeof a->value) == 0 &&
           a->over.count == b->over.count &&
           memcmp(a->over.at, b->over.at, (size_t)a->over.count * sizeof *a->over.at) == 0;
}

/* Of what same_node compares. */
static uint64_t node_hash(const epi_node *n) {
    epi_hash h = {1, 2};
    uint64_t value;
    memcpy(&value, &n->value, sizeof value);
    epi_hash_word(&h, (uint64_t)n->op << 32 | (uint32_t)n->tensor);
    epi_hash_word(&h, (uint64_t)(uint32_t)n->arg[0] << 32 | (uint32_t)n->arg[1]);
    epi_hash_word(&h, (uint32_t)n->arg[2] ^ value);
    epi_hash_add(&h, n->over.at, (size_t)n->over.count * sizeof *n->over.at);
    return h.b;
}

/* Where in the table the node is, or would be put. */
static int *find_slot(const epi_graph *g, const epi_node *n) {
    uint64_t mask = (uint64_t)g->table_size - 1, at = node_hash(n) & mask;
    while (g->table[at] != EPI_NO_NODE && !same_node(&g->nodes[g->table[at]], n))
        at = (at + 1) & mask;
    return &g->table[at];
}

/* A table of at least twice as many places as nodes, with all nodes in it. */
static bool make_table(epi_graph *g) {
    if (g->table_size > 2 * g->node_count)
        return true;
    int size = g->table_size ? 2 * g->table_size : 64;
    while (size <= 2 * g->node_count)
        size *= 2;
    int *table = epi_arena_alloc(g->arena, (size_t)size * sizeof *table);
    if (!table)
        return false;
    for (int i = 0; i < size; i++)
        table[i] = EPI_NO_NODE;
    g->table = table;
    g->table_size = size;
    for (int i = 0; i < g->node_count; i++)
        *find_slot(g, &g->nodes[i]) = i;
    return true;
}

int epi_graph_value(const epi_graph *g, int node) {
    return node != EPI_NO_NODE && g->nodes[node].op == (epi_op)EPI_OP_ORDER ? g->nodes[node].arg[0] : node;
}

/* Carried axes come first, the others keep their order. */
static epi_axes carried_first(const epi_graph *g, const epi_axes *axes) {
    epi_axes out = {0};
    for (int rest = 0; rest < 2; rest++)
        for (int i = 0; i < axes->count; i++)
            if (rest == (epi_axes_find(&g->carried, axes->at[i]) < 0))
                out.at[out.count++] = axes->at[i];
    return out;
}

static epi_node new_node(epi_op op, int a, int b, int c) {
    return (epi_node){.op = op, .arg = {a, b, c}};
}

/* A node of the value a, with its axes; false after an error. */
static bool begin_node(epi_graph *g, epi_op op, int a, epi_node *out) {
    if (epi_graph_failed(g))
        return false;
    *out = new_node(op, a, EPI_NO_NODE, EPI_NO_NODE);
    out->axes = g->nodes[a].axes;
    return true;
}

/* Where among its axes a value has the one that an operation is over; -1 after an error. */
static int find_axis(epi_graph *g, epi_op op, const char *over, epi_axis axis, int a) {
    int at = epi_axes_find(&g->nodes[a].axes, axis);
    if (at < 0)
        epi_graph_fail(g, "%s %s %s: %s has no such axis", epi_ops[op].text, over,
                       epi_axis_label(g, axis).text, epi_node_label(g, a).text);
    return at;
}

/* Does the order of two axes of a node follow from that in which they appear? Not where it is that of an operand. */
static bool is_loose(const epi_graph *g, const epi_node *n, int p, int q) {
    bool in_place = epi_op_is_view(n->op) || n->op == EPI_OP_TOPK;
    for (int a = 0; a < 3; a++) {
        if (n->arg[a] == EPI_NO_NODE)
            continue;
        const epi_node *x = &g->nodes[n->arg[a]];
        int i = in_place ? p : epi_axes_find_dim(&x->axes, n->axes.at[p].dim);
        int j = in_place ? q : epi_axes_find_dim(&x->axes, n->axes.at[q].dim);
        if (i >= 0 && j >= 0)
            return x->loose >> (i < j ? EPI_MAX_AXES * i + j : EPI_MAX_AXES * j + i) & 1;
    }
    return epi_op_on_tile(n->op) || epi_op_scans(n->op) || n->named;
}

static uint64_t loose_pairs(const epi_graph *g, const epi_node *n) {
    uint64_t loose = 0;
    for (int q = 1; q < n->axes.count && n->op != (epi_op)EPI_OP_ORDER; q++)
        for (int p = 0; p < q; p++)
            loose |= (uint64_t)is_loose(g, n, p, q) << (EPI_MAX_AXES * p + q);
    return loose;
}

static int add_node(epi_graph *g, epi_node node) {
    if (epi_graph_failed(g))
        return EPI_NO_NODE;
    if (node.op != (epi_op)EPI_OP_ORDER)
        node.axes = carried_first(g, &node.axes);
    node.loose = g->notes ? loose_pairs(g, &node) : 0;
    for (int a = 0; a < 3; a++)
        node.arg[a] = epi_graph_value(g, node.arg[a]);
    if (!make_table(g))
        return epi_graph_failed(g), EPI_NO_NODE;
    int *slot = find_slot(g, &node);
    if (*slot != EPI_NO_NODE && g->notes && epi_axes_equal(&g->nodes[*slot].axes, &node.axes))
        return *slot;
    if (*slot != EPI_NO_NODE)
        return epi_graph_ordered(g, *slot, &node.axes);
    if (g->node_count == EPI_MAX_NODES)
        return epi_graph_fail(g, "the program has more than %d operations after inlining", EPI_MAX_NODES);
    epi_node *nodes = epi_arena_grow(g->arena, g->nodes, g->node_count, &g->node_capacity, sizeof *nodes);
    if (!nodes)
        return epi_graph_failed(g), EPI_NO_NODE;
    g->nodes = nodes;
    node.place = g->place;
    g->nodes[g->node_count] = node;
    return *slot = g->node_count++;
}

int epi_graph_ordered(epi_graph *g, int node, const epi_axes *axes) {
    if (epi_axes_equal(&g->nodes[node].axes, axes) &&
        !(g->notes && g->nodes[node].loose)) /* else it is said that they come in this order */
        return node;
    epi_node n = new_node((epi_op)EPI_OP_ORDER, epi_graph_value(g, node), EPI_NO_NODE, EPI_NO_NODE);
    n.axes = n.over = *axes;
    n.name = g->nodes[node].name;
    return add_node(g, n);
}

int epi_graph_const(epi_graph *g, double value) {
    epi_node n = new_node(EPI_OP_CONST, EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE);
    n.value = value;
    return add_node(g, n);
}

int epi_graph_input(epi_graph *g, int tensor) {
    epi_node n = new_node(EPI_OP_INPUT, EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE);
    n.tensor = tensor;
    n.axes = g->tensors[tensor].axes;
    n.name = g->tensors[tensor].name;
    return add_node(g, n);
}

int epi_graph_leaf(epi_graph *g, epi_op op, epi_axis axis) {
    epi_node n = new_node(op, EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE);
    n.over = (epi_axes){1, {axis}};
    if (op == EPI_OP_INDEX)
        n.axes = n.over;
    return add_node(g, n);
}

/* The same dim at two scales never lines up: not in x and y, which are axes of a and b. Returns false after
 * an error. */
static bool axes_agree(epi_graph *g, const epi_axes *x, const epi_axes *y, int a, int b) {
    for (int i = 0; i < x->count; i++) {
        int j = epi_axes_find_dim(y, x->at[i].dim);
        if (j < 0 || epi_axis_equal(x->at[i], y->at[j]))
            continue;
        epi_graph_fail(g,
                       "axes do not line up: %s has %s and %s has %s; take pairs or halves of the longer "
                       "one, or join the shorter ones first",
                       epi_node_label(g, a).text, epi_axis_label(g, x->at[i]).text, epi_node_label(g, b).text,
                       epi_axis_label(g, y->at[j]).text);
        return false;
    }
    return true;
}

static bool scales_agree(epi_graph *g, int a, int b) {
    return axes_agree(g, &g->nodes[a].axes, &g->nodes[b].axes, a, b);
}

/* Appends to *into the axes of b that it lacks. */
static bool unite(epi_graph *g, epi_axes *into, const epi_axes *b) {
    bool fits = epi_axes_unite(into, b);
    if (!fits)
        epi_graph_fail(g, "the result would have more than %d axes", EPI_MAX_AXES);
    return fits;
}

/* Has a all axes of b? Carried ones do not count. */
static bool covers(const epi_graph *g, const epi_axes *a, const epi_axes *b) {
    epi_axes own = epi_axes_without(b, &g->carried);
    return epi_axes_include(a, &own);
}

/* Elementwise result: the order of an operand that has all the axes, else in order of appearance. */
static bool unite_in_order(epi_graph *g, epi_axes *out, const epi_axes *x, const epi_axes *y) {
    bool second = covers(g, y, x) && !covers(g, x, y);
    *out = second ? *y : *x;
    return unite(g, out, second ? x : y);
}

static bool broadcast(epi_graph *g, epi_axes *out, int a, int b) {
    return scales_agree(g, a, b) && unite_in_order(g, out, &g->nodes[a].axes, &g->nodes[b].axes);
}

static int add_map(epi_graph *g, epi_op op, int a, int b, int c, bool fixed) {
    epi_node n;
    if (!begin_node(g, op, a, &n) || (b != EPI_NO_NODE && !broadcast(g, &n.axes, a, b)))
        return EPI_NO_NODE;
    n.fixed = fixed;
    n.arg[1] = b;
    n.arg[2] = c;
    if (c != EPI_NO_NODE) {
        epi_axes ab = n.axes;
        if (!scales_agree(g, a, c) || !scales_agree(g, b, c))
            return EPI_NO_NODE;
        if (!unite_in_order(g, &n.axes, &ab, &g->nodes[c].axes))
            return EPI_NO_NODE;
    }
    return add_node(g, n);
}

int epi_graph_map(epi_graph *g, epi_op op, int a, int b, int c) {
    if (epi_ops[op].converts && a != EPI_NO_NODE && g->nodes[epi_graph_value(g, a)].op == op)
        return a; /* to the same type once more */
    return add_map(g, op, a, b, c, false);
}

int epi_graph_fixed(epi_graph *g, epi_op op, int a, int b, int c) {
    return add_map(g, op, a, b, c, true);
}

int epi_graph_map_like(epi_graph *g, const epi_node *n, const int arg[3]) {
    if (epi_graph_failed(g))
        return EPI_NO_NODE;
    int value = (n->fixed ? epi_graph_fixed : epi_graph_map)(g, n->op, arg[0], arg[1], arg[2]);
    if (value != EPI_NO_NODE)
        g->nodes[epi_graph_value(g, value)].exact |= n->exact;
    return value;
}

int epi_graph_reduce(epi_graph *g, epi_op op, int a, const epi_axes *over) {
    epi_node n;
    if (!begin_node(g, op, a, &n))
        return EPI_NO_NODE;
    n.over = *over;
    for (int i = 0; i < over->count; i++) {
        int at = epi_axes_find(&n.axes, over->at[i]);
        if (find_axis(g, op, "over", over->at[i], a) < 0)
            return EPI_NO_NODE;
        if (at < 0)
            return epi_graph_fail(g, "%s names the axis %s twice", epi_ops[op].text,
                                  epi_axis_label(g, over->at[i]).text);
        epi_axes_remove(&n.axes, at);
    }
    return add_node(g, n);
}

int epi_graph_shift(epi_graph *g, int a, const epi_axes *over) {
    int top = epi_graph_reduce(g, EPI_OP_RMAX, a, over);
    int lowest = epi_graph_map1(g, EPI_OP_NEG, epi_graph_const(g, (double)INFINITY));
    int none = epi_graph_map2(g, EPI_OP_EQ, top, lowest);
    return epi_graph_fixed(g, EPI_OP_WHERE, none, epi_graph_const(g, 0), top);
}

int epi_graph_split(epi_graph *g, epi_op op, int a, epi_axis axis) {
    epi_node n;
    int at = begin_node(g, op, a, &n) ? find_axis(g, op, "over", axis, a) : -1;
    if (at < 0)
        return EPI_NO_NODE;
    n.over = (epi_axes){1, {axis}};
    if (axis.shift <= -EPI_MAX_SHIFT)
        return epi_graph_fail(g, "%s is halved too often", g->dims[axis.dim]);
    n.axes.at[at].shift--;
    return add_node(g, n);
}

int epi_graph_join(epi_graph *g, epi_op op, int a, int b, epi_axis axis) {
    epi_node n;
    if (!begin_node(g, op, a, &n) || !broadcast(g, &n.axes, a, b))
        return EPI_NO_NODE;
    n.arg[1] = b;
    n.over = (epi_axes){1, {axis}};
    epi_axis half = {axis.dim, (int16_t)(axis.shift - 1)};
    int at = epi_axes_find(&n.axes, half);
    if (at < 0 || epi_axes_find(&g->nodes[a].axes, half) < 0 || epi_axes_find(&g->nodes[b].axes, half) < 0)
        return epi_graph_fail(g, "%s to %s: both operands need the axis %s; they are %s and %s",
                              epi_ops[op].text, epi_axis_label(g, axis).text, epi_axis_label(g, half).text,
                              epi_node_label(g, a).text, epi_node_label(g, b).text);
    n.axes.at[at] = axis;
    return add_node(g, n);
}

/* Nothing sums over axes that a call carries, or orders elements along them. */
static bool keeps_carried(epi_graph *g, epi_op op, const epi_axes *over) {
    for (int i = 0; i < over->count; i++)
        if (epi_axes_find(&g->carried, over->at[i]) >= 0) {
            epi_graph_fail(g,
                           "%s would %s %s, an extra axis of the call's arguments; write the formula for "
                           "these axes instead",
                           epi_ops[op].text, epi_op_gives_places(op) ? "order elements along" : "sum over",
                           epi_axis_label(g, over->at[i]).text);
            return false;
        }
    return true;
}

/* The product node: a's axes, then b's, without those it sums over. */
static int contract(epi_graph *g, int a, int b, const epi_axes *over, bool named) {
    epi_node n = new_node(EPI_OP_MATMUL, a, b, EPI_NO_NODE);
    n.named = named;
    n.over = *over;
    n.axes = epi_axes_without(&g->nodes[a].axes, over);
    epi_axes rest = epi_axes_without(&g->nodes[b].axes, over);
    return unite(g, &n.axes, &rest) ? add_node(g, n) : EPI_NO_NODE;
}

int epi_graph_product(epi_graph *g, int a, int b) {
    if (epi_graph_failed(g) || !scales_agree(g, a, b))
        return EPI_NO_NODE;
    epi_axes shared = epi_axes_shared(&g->nodes[a].axes, &g->nodes[b].axes);
    epi_axes over = epi_axes_without(&shared, &g->carried);
    if (!over.count)
        return epi_graph_fail(g,
                              "%s @ %s have no axis in common: give the axis to sum over the same name in "
                              "both, or write * for an outer product",
                              epi_node_label(g, a).text, epi_node_label(g, b).text);
    if (epi_op_is_free(g->nodes[a].op) || epi_op_is_free(g->nodes[b].op)) /* positions are in no memory */
        return epi_graph_contract(g, a, b, &over);
    return contract(g, a, b, &over, false);
}

int epi_graph_contract(epi_graph *g, int a, int b, const epi_axes *over) {
    if (epi_graph_failed(g) || !scales_agree(g, a, b) || !keeps_carried(g, EPI_OP_MATMUL, over))
        return EPI_NO_NODE;
    if (epi_graph_is_contraction(g, a, b, over))
        return contract(g, a, b, over, true);
    return epi_graph_reduce(g, EPI_OP_SUM, epi_graph_map2(g, EPI_OP_MUL, a, b), over);
}

int epi_graph_grouped(epi_graph *g, int a, int b, int segments, const epi_axes *over) {
    if (epi_graph_failed(g))
        return EPI_NO_NODE;
    epi_node n = new_node(EPI_OP_GROUPED, a, b, segments);
    n.over = *over;
    if (!epi_grouped_rows(g, &n))
        n.axes = (epi_axes){1, {epi_grouped_axis(g, &n)}};
    epi_axes rows = epi_product_side(g, &n, 0), cols = epi_product_side(g, &n, 1);
    return unite(g, &n.axes, &rows) && unite(g, &n.axes, &cols) ? add_node(g, n) : EPI_NO_NODE;
}

/* A number as an index: does it name an element? Where the text leaves the size open, that is asked again
 * once it is known. */
static void check_number(epi_graph *g, int index, const epi_axes *along) {
    epi_label why;
    if (epi_graph_misses(g, index, along, g->fixed, &why))
        epi_graph_fail(g, "%s", why.text);
}

/* What is put into one place along the axis, and the index that names it, have axes of what they are put
 * into, but not that one. Carried axes that it lacks are added to it. */
static bool fits_place(epi_graph *g, int *a, int value, epi_axis axis, const char *what) {
    const epi_axes *v = &g->nodes[value].axes;
    epi_axes more = epi_axes_without(v, &g->nodes[*a].axes), own = epi_axes_without(&more, &g->carried);
    if (epi_axes_find_dim(v, axis.dim) >= 0)
        epi_graph_fail(
            g, "update along %s: the %s %s must not have that axis, because it is one element along it",
            epi_axis_label(g, axis).text, what, epi_node_label(g, value).text);
    else if (own.count)
        epi_graph_fail(g, "update along %s: the %s %s has the axis %s, which %s lacks",
                       epi_axis_label(g, axis).text, what, epi_node_label(g, value).text,
                       epi_axis_label(g, own.at[0]).text, epi_node_label(g, *a).text);
    if (!scales_agree(g, *a, value) || epi_graph_failed(g))
        return false;
    *a = epi_graph_complete(g, *a, &more);
    return !epi_graph_failed(g);
}

/* update has the axes of what it puts something into. */
static int put(epi_graph *g, int a, int index, int value, epi_axis axis) {
    if (find_axis(g, EPI_OP_UPDATE, "along", axis, a) < 0 || !fits_place(g, &a, value, axis, "value") ||
        !fits_place(g, &a, index, axis, "index"))
        return EPI_NO_NODE;
    epi_node n = new_node(EPI_OP_UPDATE, a, index, value);
    n.over = (epi_axes){1, {axis}};
    check_number(g, index, &n.over);
    n.axes = g->nodes[a].axes;
    return add_node(g, n);
}

/* Has the value one of the axes that an index counts along, or all of them where that is one? Along those that
 * it lacks it is the same. */
static bool has_along(epi_graph *g, int a, const epi_axes *along) {
    const epi_axes *have = &g->nodes[a].axes;
    if (along->count == 1)
        return find_axis(g, EPI_OP_GATHER, "over", along->at[0], a) >= 0;
    for (int i = 0; i < along->count; i++) {
        epi_axis axis = along->at[i];
        if (epi_axes_find_dim(have, axis.dim) >= 0 && find_axis(g, EPI_OP_GATHER, "over", axis, a) < 0)
            return false;
    }
    if (!epi_axes_meet(have, along))
        epi_graph_fail(g, "gather over %s: %s has none of these axes", epi_along_label(g, along).text,
                       epi_node_label(g, a).text);
    return !epi_graph_failed(g);
}

/* What gather takes has the index's axes, then those it leaves alone; what scatter sums up has the axes that
 * the index counts along, then those of the operand that the index lacks. */
int epi_graph_move(epi_graph *g, epi_op op, int a, int index, int value, const epi_axes *along) {
    if (epi_graph_failed(g))
        return EPI_NO_NODE;
    if (op == EPI_OP_UPDATE)
        return put(g, a, index, value, along->at[0]);
    epi_node n = new_node(op, a, index, EPI_NO_NODE);
    const epi_axes *x = &g->nodes[a].axes, *i = &g->nodes[index].axes;
    n.over = *along;
    bool gathers = op == EPI_OP_GATHER;
    epi_axes sums = op == EPI_OP_SCATTER_BATCH ? epi_axes_without(i, along) : *i;
    if (gathers ? !has_along(g, a, along) : !keeps_carried(g, op, &sums))
        return EPI_NO_NODE;
    epi_axes rest = epi_axes_without(x, gathers ? &n.over : i);
    if (!axes_agree(g, gathers ? &rest : x, i, a, index))
        return EPI_NO_NODE;
    for (int k = 0; k < along->count && !gathers; k++)
        if (epi_axes_find_dim(&rest, along->at[k].dim) >= 0)
            return epi_graph_fail(
                g,
                "scatter to %s: %s has that axis already, and the index %s does not; rename the axis first",
                epi_axis_label(g, along->at[k]).text, epi_node_label(g, a).text,
                epi_node_label(g, index).text);
    check_number(g, index, along);
    n.axes = gathers ? *i : n.over;
    return unite(g, &n.axes, &rest) ? add_node(g, n) : EPI_NO_NODE;
}

/* The axes that a scatter is told to sum over are the index's, and it counts along none that are kept. */
static bool sums_over(epi_graph *g, int index, const epi_axes *sums, const epi_axes *kept,
                      const epi_axes *along) {
    for (int i = 0; i < sums->count; i++)
        if (epi_axes_find(&g->nodes[index].axes, sums->at[i]) < 0)
            epi_graph_fail(g, "scatter over %s: the index %s has no such axis",
                           epi_axis_label(g, sums->at[i]).text, epi_node_label(g, index).text);
    for (int i = 0; i < along->count; i++)
        if (epi_axes_has_dim(kept, along->at[i].dim))
            epi_graph_fail(g,
                           "scatter to %s: the index %s has that axis already; name it before the arrow, to "
                           "sum over it, or rename it first",
                           epi_axis_label(g, along->at[i]).text, epi_node_label(g, index).text);
    return !epi_graph_failed(g);
}

/* Along an axis that is summed over and that is there again afterwards, elements change places: what is summed over
 * gets another name. */
static void rename_summed(epi_graph *g, int *value, epi_axis axis, epi_axis name) {
    if (!epi_graph_failed(g) && epi_axes_find(&g->nodes[*value].axes, axis) >= 0)
        *value = epi_graph_rename(g, *value, axis, name);
}

int epi_graph_scatter(epi_graph *g, int a, int index, const epi_axes *sums, const epi_axes *along) {
    if (epi_graph_failed(g))
        return EPI_NO_NODE;
    epi_axes over = epi_axes_without(&g->nodes[index].axes, sums);
    if (!sums_over(g, index, sums, &over, along))
        return EPI_NO_NODE;
    if (!over.count)
        return epi_graph_move(g, EPI_OP_SCATTER, a, index, EPI_NO_NODE, along);
    for (int i = 0; i < along->count && !epi_graph_failed(g); i++)
        if (epi_axes_find(sums, along->at[i]) >= 0) {
            epi_axis name = epi_graph_new_name(g, g->dims[along->at[i].dim], along->at[i]);
            rename_summed(g, &a, along->at[i], name);
            rename_summed(g, &index, along->at[i], name);
        }
    return !epi_graph_failed(g) && unite(g, &over, along)
               ? epi_graph_move(g, EPI_OP_SCATTER_BATCH, a, index, EPI_NO_NODE, &over)
               : EPI_NO_NODE;
}

int epi_graph_slice(epi_graph *g, int value, epi_axis axis, int64_t at) {
    return epi_graph_move(g, EPI_OP_GATHER, value, epi_graph_const(g, (double)at), EPI_NO_NODE,
                          &(epi_axes){1, {axis}});
}

/* What places of an order count along: what the call names behind the first axis, or the operand's own axes. */
static epi_axes places_of(const epi_graph *g, epi_op op, int a, const epi_axes *along) {
    epi_axes first = {1, {along->at[0]}}, rest = epi_axes_without(along, &first);
    bool own = !rest.count && op != EPI_OP_OFFSETS && op != EPI_OP_SEGMENTS;
    return own ? g->nodes[a].axes : rest;
}

/* topk has one axis in the place of another. */
static int take_largest(epi_graph *g, epi_node n, const epi_axes *along) {
    int at = find_axis(g, n.op, "over", along->at[0], n.arg[0]);
    if (at < 0)
        return EPI_NO_NODE;
    if (epi_axes_find_dim(&n.axes, along->at[1].dim) >= 0)
        return epi_graph_fail(g, "topk to %s: %s has that axis already", epi_axis_label(g, along->at[1]).text,
                              epi_node_label(g, n.arg[0]).text);
    n.over = *along;
    n.axes.at[at] = along->at[1];
    return add_node(g, n);
}

int epi_graph_sort(epi_graph *g, epi_op op, int a, const epi_axes *along) {
    epi_node n;
    if (!begin_node(g, op, a, &n))
        return EPI_NO_NODE;
    if (op == EPI_OP_TOPK)
        return take_largest(g, n, along);
    if (!keeps_carried(g, op, &n.axes))
        return EPI_NO_NODE;
    epi_axes first = {1, {along->at[0]}}, places = places_of(g, op, a, along);
    bool segments = op == EPI_OP_SEGMENTS, offsets = op == EPI_OP_OFFSETS;
    if (segments && !epi_axes_same_set(&n.axes, &first))
        return epi_graph_fail(g, "segments of %s: it needs offsets with the axis %s alone",
                              epi_node_label(g, a).text, epi_axis_label(g, first.at[0]).text);
    if (!segments && !n.axes.count)
        return epi_graph_fail(g, "%s of %s: it orders elements, but this is a single number",
                              epi_ops[op].text, epi_node_label(g, a).text);
    if (!segments && !offsets && !epi_axes_same_set(&n.axes, &places))
        return epi_graph_fail(g,
                              "%s of %s: the axes after %s must be the axes of the index, in the order in "
                              "which its elements are counted",
                              epi_ops[op].text, epi_node_label(g, a).text,
                              epi_axis_label(g, first.at[0]).text);
    n.axes = offsets ? first : places;
    if (epi_axes_meet(&first, &places))
        return epi_graph_fail(g, "%s: the index has the axis %s that its elements index; rename that axis",
                              epi_ops[op].text, epi_axis_label(g, first.at[0]).text);
    n.over = first;
    return unite(g, &n.over, &places) ? add_node(g, n) : EPI_NO_NODE;
}

int epi_graph_scan(epi_graph *g, epi_op op, int a, int b, epi_axis axis) {
    epi_node n;
    if (!begin_node(g, op, a, &n) || !broadcast(g, &n.axes, a, b))
        return EPI_NO_NODE;
    n.arg[1] = b;
    n.over = (epi_axes){1, {axis}};
    if (epi_axes_find(&n.axes, axis) < 0)
        return epi_graph_fail(g, "%s along %s: neither %s nor %s has that axis", epi_ops[op].text,
                              epi_axis_label(g, axis).text, epi_node_label(g, a).text,
                              epi_node_label(g, b).text);
    return add_node(g, n);
}

int epi_graph_rename(epi_graph *g, int a, epi_axis from, epi_axis to) {
    epi_node n;
    int at = begin_node(g, EPI_OP_RENAME, a, &n) ? find_axis(g, EPI_OP_RENAME, "of", from, a) : -1;
    if (at < 0)
        return EPI_NO_NODE;
    if (epi_axis_equal(from, to))
        return a;
    if (epi_axes_find_dim(&n.axes, to.dim) >= 0)
        return epi_graph_fail(g, "rename to %s: %s has that axis already", epi_axis_label(g, to).text,
                              epi_node_label(g, a).text);
    n.over = (epi_axes){2, {from, to}};
    if (g->nodes[epi_graph_value(g, a)].op == EPI_OP_INDEX) /* positions are the same by either name */
        return epi_graph_leaf(g, EPI_OP_INDEX, to);
    n.axes.at[at] = to;
    return add_node(g, n);
}

int epi_graph_shifted(epi_graph *g, int a, epi_axis axis, int64_t by) {
    epi_node n;
    int at = begin_node(g, EPI_OP_SHIFT, a, &n) ? find_axis(g, EPI_OP_SHIFT, "along", axis, a) : -1;
    if (at < 0)
        return EPI_NO_NODE;
    if (by == 0)
        return a;
    n.over = (epi_axes){1, {axis}};
    n.value = (double)by;
    return add_node(g, n);
}

int epi_graph_once(epi_graph *g, int a) {
    epi_node n;
    if (!begin_node(g, EPI_OP_ONCE, a, &n))
        return EPI_NO_NODE;
    n.name = g->nodes[a].name;
    return add_node(g, n);
}

/* The arguments from this one on: a chain whose last link has the last two. */
static int list_arguments(epi_graph *g, const int *arguments, int count) {
    int list = arguments[count - 1];
    for (int i = count - 2; i >= 0; i--)
        list = add_node(g, new_node(EPI_OP_LIST, arguments[i], list, EPI_NO_NODE));
    return list;
}

void epi_graph_own(epi_graph *g, const epi_own *own, const int *arguments, int *out) {
    int list = epi_graph_failed(g) ? EPI_NO_NODE : list_arguments(g, arguments, own->input_count);
    for (int i = 0; i < own->result_count; i++) { /* one after the other */
        epi_node n;
        if (!begin_node(g, EPI_OP_OWN, out[i], &n))
            return;
        n.arg[1] = list;
        n.own = own;
        n.tensor = i;
        out[i] = add_node(g, n);
    }
}

epi_axis epi_graph_new_name(epi_graph *g, const char *name, epi_axis axis) {
    char text[160];
    snprintf(text, sizeof text, "%.120s", name);
    for (int tried = 2;; tried++) {
        int dim = 0;
        while (dim < g->dim_count && strcmp(g->dims[dim], text) != 0)
            dim++;
        if (dim == EPI_MAX_DIMS) {
            epi_graph_fail(g, "a program has at most %d differently named axes", EPI_MAX_DIMS);
            return axis;
        }
        if (dim == g->dim_count) {
            g->dims[g->dim_count++] = epi_arena_text(g->arena, text, strlen(text));
            g->same[dim] = axis;
            return epi_graph_failed(g) ? axis : (epi_axis){(int16_t)dim, 0};
        }
        if (dim >= g->declared_count && epi_axis_equal(g->same[dim], axis))
            return (epi_axis){(int16_t)dim, 0};
        snprintf(text, sizeof text, "%.120s_%d", name, tried);
    }
}

int epi_graph_random(epi_graph *g, epi_op op, int seed, const epi_axes *axes) {
    if (epi_graph_failed(g))
        return EPI_NO_NODE;
    epi_node n = new_node(op, seed, EPI_NO_NODE, EPI_NO_NODE);
    const epi_node *s = &g->nodes[seed];
    if (s->op != EPI_OP_INPUT || s->axes.count || !g->tensors[s->tensor].has_type ||
        !epi_dtype_is_integer(g->tensors[s->tensor].type))
        return epi_graph_fail(g, "the seed of %s must be an input declared as one integer, seed: i32",
                              epi_ops[op].text);
    for (int i = 0; i < axes->count; i++) {
        if (epi_axes_find_dim(&n.axes, axes->at[i].dim) >= 0)
            return epi_graph_fail(g, "%s names the axis %s twice", epi_ops[op].text,
                                  g->dims[axes->at[i].dim]);
        n.axes.at[n.axes.count++] = axes->at[i];
    }
    n.over = g->carried; /* numbers of their own along these too */
    if (!unite(g, &n.over, &n.axes))
        return EPI_NO_NODE;
    n.axes = n.over;
    return add_node(g, n);
}

int epi_graph_apply(epi_graph *g, epi_op op, const int *arg, const epi_axes *axes) {
    int a = arg[0], b = arg[1];
    switch (epi_ops[op].cls) {
    case EPI_CLASS_MAP: return epi_graph_map(g, op, a, b, arg[2]);
    case EPI_CLASS_REDUCE: return epi_graph_reduce(g, op, a, axes);
    case EPI_CLASS_PRODUCT:
        return op == EPI_OP_GROUPED ? epi_graph_grouped(g, a, b, arg[2], axes)
                                    : epi_graph_contract(g, a, b, axes);
    case EPI_CLASS_MOVE: return epi_graph_move(g, op, a, b, arg[2], axes);
    case EPI_CLASS_SORT: return epi_graph_sort(g, op, a, axes);
    case EPI_CLASS_SCAN: return epi_graph_scan(g, op, a, b, axes->at[0]);
    case EPI_CLASS_VIEW:
        return op == EPI_OP_ONCE ? epi_graph_once(g, a) : epi_graph_rename(g, a, axes->at[0], axes->at[1]);
    case EPI_CLASS_RANDOM: return epi_graph_random(g, op, a, axes);
    case EPI_CLASS_LEAF: return epi_graph_leaf(g, op, axes->at[0]);
    case EPI_CLASS_SHIFT: return epi_graph_fail(g, "shift without a number");
    case EPI_CLASS_SPLIT: break;
    }
    return b == EPI_NO_NODE ? epi_graph_split(g, op, a, axes->at[0])
                            : epi_graph_join(g, op, a, b, axes->at[0]);
}

int epi_graph_rebuild(epi_graph *g, const epi_node *n, const int *arg) {
    epi_node copy = *n;
    memcpy(copy.arg, arg, sizeof copy.arg);
    int value = add_node(g, copy);
    epi_graph_store_as(g, value, n); /* an equal one may have been there */
    if (value == EPI_NO_NODE)
        return value;
    epi_node *to = &g->nodes[epi_graph_value(g, value)];
    to->exact |= n->exact;
    to->saving = to->saving == EPI_SAVE_OPEN ? n->saving : to->saving;
    return value;
}

void epi_graph_store_as(epi_graph *g, int value, const epi_node *n) {
    if (epi_graph_failed(g) || !n->has_stored)
        return;
    epi_node *to = &g->nodes[epi_graph_renamed(g, epi_graph_value(g, value))];
    if (epi_op_is_leaf(to->op))
        return;
    to->stored = to->has_stored ? epi_dtype_wider(to->stored, n->stored) : n->stored;
    to->has_stored = true;
}

int epi_graph_stand_for(epi_graph *g, int value, const epi_node *n) {
    if (epi_graph_failed(g))
        return EPI_NO_NODE;
    value = epi_graph_value(g, value);
    if (!g->nodes[value].name && !epi_op_is_leaf(g->nodes[value].op))
        g->nodes[value].name = n->name;
    epi_graph_store_as(g, value, n);
    return value;
}

int epi_graph_complete(epi_graph *g, int value, const epi_axes *axes) {
    for (int i = 0; i < axes->count && !epi_graph_failed(g); i++)
        if (epi_axes_find(&g->nodes[value].axes, axes->at[i]) < 0) {
            int along = epi_graph_leaf(g, EPI_OP_INDEX, axes->at[i]);
            int zeros = epi_graph_map2(g, EPI_OP_MUL, epi_graph_const(g, 0), along);
            value = epi_graph_map2(g, EPI_OP_ADD, value, zeros);
        }
    return value;
}
