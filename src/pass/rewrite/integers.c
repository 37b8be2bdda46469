/* integers.c: integers on their way to kernels. Those that f32 holds are computed as floats; // then needs
 * an exact division and a check of the divisor. Larger ones are marked and computed in 64 bits, each
 * operation by a pass of its own. */
#include "pass/rewrite/integers.h"

#include "pass/analyse/integers.h"
#include "pass/analyse/stored.h"

typedef struct rewriting {
    const epi_spec *spec;
    const epi_integer *at; /* by node */
} rewriting;

/* ---- before all other passes ---- */

static bool may_be_zero(const epi_integer *divisor) {
    return divisor->low <= 0 && divisor->high >= 0;
}

/* The value, but 0 where the divisor, an integer that may be 0, is. */
static int unless_zero(epi_rewrite *r, const epi_integer *divisor, int b, int value) {
    int zero = epi_graph_const(r->g, 0);
    return may_be_zero(divisor)
               ? epi_graph_map(r->g, EPI_OP_WHERE, epi_graph_map2(r->g, EPI_OP_EQ, b, zero), zero, value)
               : value;
}

/* a // b or a % b; `divisor` is what is known of b, if they are integers. */
static int divide(epi_rewrite *r, epi_op op, int a, int b, const epi_integer *divisor) {
    int whole = epi_graph_map1(r->g, EPI_OP_FLOOR, epi_graph_map2(r->g, EPI_OP_DIV, a, b)), value = whole;
    if (op == EPI_OP_REMAINDER)
        value = epi_graph_map2(r->g, EPI_OP_SUB, a, epi_graph_map2(r->g, EPI_OP_MUL, b, whole));
    return divisor ? unless_zero(r, divisor, b, value) : value;
}

/* The division of integers that f32 does not hold: whatever becomes of its operands, it is one. */
static int divide_integers(epi_rewrite *r, epi_op op, int a, int b) {
    int value = epi_graph_map2(r->g, op, a, b);
    if (!epi_graph_failed(r->g))
        r->g->nodes[epi_graph_value(r->g, value)].integer = true;
    return value;
}

/* The divisor of such a quotient in the new graph. */
static int divisor_of(epi_rewrite *r, const epi_quotient *q) {
    return q->b == EPI_NO_NODE ? epi_graph_const(r->g, (double)q->by) : r->fresh[q->b];
}

static int write_division(epi_rewrite *r, int node) {
    const rewriting *w = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    bool computed = epi_integer_is_computed(r->in, w->at, node);
    epi_quotient q;
    if (epi_quotient_find(r->in, w->at, node, &q)) {
        if (q.b == EPI_NO_NODE && !computed)
            return EPI_NO_NODE;
        int a = r->fresh[q.a], b = divisor_of(r, &q);
        return computed ? divide_integers(r, EPI_OP_QUOTIENT, a, b)
                        : divide(r, EPI_OP_QUOTIENT, a, b, &w->at[q.b]);
    }
    if (n->op != EPI_OP_QUOTIENT && n->op != EPI_OP_REMAINDER)
        return EPI_NO_NODE;
    int a = r->fresh[n->arg[0]], b = r->fresh[n->arg[1]];
    return computed ? divide_integers(r, n->op, a, b)
                    : divide(r, n->op, a, b, w->at[node].is ? &w->at[n->arg[1]] : NULL);
}

static int write_integer(epi_rewrite *r, int node) {
    const rewriting *w = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    const epi_integer *at = &w->at[node];
    bool rounds =
        n->op == EPI_OP_FLOOR || n->op == EPI_OP_ROUND || n->op == EPI_OP_I32 || n->op == EPI_OP_I64;
    int value = EPI_NO_NODE;
    bool known = at->is && at->low == at->high && !n->axes.count && !epi_integer_is_beyond_f64(at);
    if (known && (at->large || epi_integer_is_computed(r->in, w->at, node)))
        return epi_graph_const(r->g, (double)at->low);
    if (at->large && rounds && w->at[n->arg[0]].is)
        value = r->fresh[n->arg[0]];
    if (value == EPI_NO_NODE)
        value = write_division(r, node);
    return value == EPI_NO_NODE ? value : epi_graph_stand_for(r->g, value, n);
}

/* Is it written otherwise? */
static bool is_rewritten(const epi_graph *g, const epi_integer *at, int node) {
    const epi_node *n = &g->nodes[node];
    epi_quotient q;
    bool guarded = epi_quotient_find(g, at, node, &q) && q.b != EPI_NO_NODE && may_be_zero(&at[q.b]);
    return n->op == EPI_OP_QUOTIENT || n->op == EPI_OP_REMAINDER || at[node].large || guarded ||
           epi_integer_is_computed(g, at, node);
}

epi_status epi_integers_write(epi_arena *arena, epi_spec *spec, epi_error *err) {
    rewriting w = {spec, epi_integers_find(arena, spec)};
    EPI_TRY(epi_has_memory(w.at, err));
    bool any = false;
    for (int i = 0; i < spec->graph->node_count && !any; i++)
        any = spec->graph->live[i] && is_rewritten(spec->graph, w.at, i);
    return any ? epi_graph_rewrite(arena, &spec->graph, write_integer, &w, err) : EPI_OK;
}

/* ---- behind them ---- */

/* Is it read by something that is no product? */
static bool has_other_readers(const epi_graph *g, int node) {
    epi_use_list uses = epi_graph_uses(g, node);
    bool other = false;
    for (int i = 0; i < uses.count; i++)
        other |= uses.at[i].node == EPI_NO_NODE || !epi_is_operand(g, uses.at[i]);
    return other;
}

/* Does an operation in 64 bits take it? Then it is stored as an integer, so that the part by itself is one on integers. */
static bool feeds_integers(const rewriting *w, int node) {
    const epi_graph *g = w->spec->graph;
    epi_use_list uses = epi_graph_uses(g, node);
    bool feeds = false;
    for (int i = 0; i < uses.count && w->at[node].is; i++)
        feeds |= uses.at[i].node != EPI_NO_NODE &&
                 uses.at[i].operand != epi_op_index(g->nodes[uses.at[i].node].op) &&
                 epi_integer_is_computed(g, w->at, uses.at[i].node);
    return feeds && !epi_op_is_leaf(g->nodes[node].op);
}

/* Is it a number that is made of numbers? */
static bool is_known(const rewriting *w, int node) {
    const epi_node *n = &w->spec->graph->nodes[node];
    const epi_integer *at = &w->at[node];
    return at->is && at->low == at->high && !n->axes.count && epi_op_is_map(n->op) &&
           !epi_integer_is_beyond_f64(at);
}

/* Is the value an integer that is stored in a type that no product takes? */
static bool is_no_operand(const rewriting *w, int node) {
    const epi_graph *g = w->spec->graph;
    const epi_node *n = &g->nodes[epi_graph_renamed(g, node)];
    if (n->op == EPI_OP_INPUT)
        return epi_dtype_is_integer(w->spec->types[n->tensor]);
    return w->at[node].is &&
           (w->at[node].large || feeds_integers(w, node) || epi_op_gives_places(n->op) ||
            (epi_dtype_is_narrow(w->spec->type) && !epi_is_few(n) && has_other_readers(g, node)));
}

static epi_op conversion_to(epi_dtype type) {
    return type == EPI_BF16 ? EPI_OP_BF16 : type == EPI_F16 ? EPI_OP_F16 : EPI_OP_F32;
}

/* A product of what its integers are rounded to. */
static int convert_operands(epi_rewrite *r, int node) {
    const rewriting *w = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    epi_node copy = *n;
    bool any = false;
    for (int a = 0; a < 3; a++)
        copy.arg[a] = n->arg[a] == EPI_NO_NODE ? EPI_NO_NODE : r->fresh[n->arg[a]];
    for (int a = 0; a < 2; a++)
        if (is_no_operand(w, n->arg[a])) {
            copy.arg[a] = epi_graph_map1(r->g, conversion_to(w->spec->type), copy.arg[a]);
            any = true;
        }
    return any ? epi_graph_rebuild(r->g, &copy, copy.arg) : EPI_NO_NODE;
}

/* The operation of operands of which those that are known are numbers: -1 is made of 1, by one more operation. */
static int copy_computed(epi_rewrite *r, int node) {
    const rewriting *w = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    int arg[3];
    epi_quotient q;
    /* other passes may have made its operands larger than they were */
    if (epi_quotient_find(r->in, w->at, node, &q))
        return divide_integers(r, EPI_OP_QUOTIENT, r->fresh[q.a], divisor_of(r, &q));
    for (int a = 0; a < 3; a++) {
        arg[a] = n->arg[a] == EPI_NO_NODE ? EPI_NO_NODE : r->fresh[n->arg[a]];
        if (arg[a] != EPI_NO_NODE && is_known(w, n->arg[a]))
            arg[a] = epi_graph_const(r->g, (double)w->at[n->arg[a]].low);
    }
    return epi_graph_rebuild(r->g, n, arg);
}

/* f32 does not hold it, or it goes where it is to be an integer. */
static void mark_integer(epi_node *n, const epi_integer *at, bool computed) {
    bool word = at->is && (!at->large || (at->low >= INT32_MIN && at->high <= INT32_MAX));
    n->integer |= computed;
    n->stored = word && !(n->has_stored && n->stored == EPI_I64) ? EPI_I32 : EPI_I64;
    n->has_stored = true;
}

static int mark_large(epi_rewrite *r, int node) {
    const rewriting *w = r->ctx;
    const epi_node *n = &r->in->nodes[node], *of = n->op == EPI_OP_RENAME ? &r->in->nodes[n->arg[0]] : n;
    const epi_integer *at = &w->at[node];
    if (epi_op_is_product(n->op))
        return convert_operands(r, node);
    bool position = of != n && of->op == EPI_OP_INDEX && at->large, /* under another name of its axis */
        computed = n->integer || epi_integer_is_computed(r->in, w->at, node), feeds = feeds_integers(w, node);
    if (!computed && !feeds && !position)
        return EPI_NO_NODE;
    int value = position   ? epi_graph_leaf(r->g, EPI_OP_INDEX, n->over.at[1])
                : computed ? copy_computed(r, node)
                           : epi_graph_copy(r->g, n, r->fresh);
    if (epi_graph_failed(r->g))
        return EPI_NO_NODE;
    epi_node *to = &r->g->nodes[epi_graph_renamed(r->g, epi_graph_value(r->g, value))];
    if (at->large || feeds || !at->is)
        mark_integer(to, at, computed || position);
    to->integer |= computed;
    return value;
}

epi_status epi_large_mark(epi_arena *arena, epi_spec *spec, epi_error *err) {
    const epi_graph *g = spec->graph;
    rewriting w = {spec, epi_integers_find(arena, spec)};
    EPI_TRY(epi_has_memory(w.at, err));
    bool any = false;
    for (int i = 0; i < g->node_count && !any; i++) {
        const epi_node *n = &g->nodes[i];
        any = g->live[i] && (n->integer || w.at[i].large || epi_integer_is_computed(g, w.at, i));
        for (int a = 0; a < 2 && g->live[i] && epi_op_is_product(n->op); a++)
            any |= is_no_operand(&w, n->arg[a]);
    }
    return any ? epi_graph_rewrite(arena, &spec->graph, mark_large, &w, err) : EPI_OK;
}
