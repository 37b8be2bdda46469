/* graph_finish.c: questions about a finished graph: the axes of its outputs, which values are live, and who
 * uses them.
 */
#include "ir/graph.h"

#include <math.h>
#include <stdlib.h>

static void mark_live(epi_graph *g) {
    for (int t = g->input_count; t < g->tensor_count; t++)
        g->live[g->tensors[t].node] = true;
    for (int i = g->node_count - 1; i >= 0; i--)
        for (int a = 0; a < epi_node_operands(&g->nodes[i]) && g->live[i]; a++)
            g->live[g->nodes[i].arg[a]] = true;
}

static bool is_infinite(const epi_graph *g, const epi_node *n) {
    while (n->op == EPI_OP_NEG)
        n = &g->nodes[n->arg[0]];
    return n->op == EPI_OP_CONST && isinf(n->value);
}

/* Is it compared with infinity, or with its own extreme, which moves as it does? */
static bool is_same_anyway(const epi_graph *g, const epi_node *n, int operand) {
    const epi_node *other = &g->nodes[n->arg[1 - operand]];
    bool extreme = other->op == EPI_OP_RMAX || other->op == EPI_OP_RMIN;
    return is_infinite(g, other) || (extreme && other->arg[0] == n->arg[operand]);
}

/* Does the operation jump where its operand moves by its last bit? */
static bool is_step(const epi_graph *g, const epi_node *n, int operand) {
    const epi_op_row *row = &epi_ops[n->op];
    if (epi_op_compares(n->op))
        return !is_same_anyway(g, n, operand);
    if (n->op == EPI_OP_WHERE) /* 0 is the other side */
        return operand == 0;
    return n->op == EPI_OP_FLOOR || n->op == EPI_OP_QUOTIENT || n->op == EPI_OP_REMAINDER ||
           n->op == EPI_OP_ROUND || n->op == EPI_OP_TOPK || row->signs ||
           (row->converts && !epi_dtype_is_operand(row->type)) || epi_op_wants_exact(n->op, operand);
}

/* Is the result as exact as this operand, where all numbers are short? Functions that are never exact are not,
 * but for a root and a power of two, which are of some. */
static bool hands_on(const epi_node *n, int operand) {
    const epi_op_row *row = &epi_ops[n->op];
    switch (n->op) {
    case EPI_OP_POW:
    case EPI_OP_EXP2:
    case EPI_OP_LOG2: return true;
    case EPI_OP_WHERE: return operand > 0;
    case EPI_OP_OWN: return operand == 0;
    case EPI_OP_LIST: return false;
    default: return !row->expensive && !row->two && !row->signs && !epi_op_wants_exact(n->op, operand);
    }
}

/* A product with the inverse of a power of two is the quotient. */
static bool is_power_of_two(const epi_node *n) {
    int exponent;
    return n->op == EPI_OP_CONST && fabs(frexp(n->value, &exponent)) == 0.5;
}

/* Marks quotients that a step looks at, or that become an integer. */
static void mark_exact(epi_graph *g) {
    bool *looked = epi_arena_alloc(g->arena, (size_t)g->node_count + 1);
    for (int t = g->input_count; t < g->tensor_count && looked; t++)
        looked[g->tensors[t].node] |= g->tensors[t].has_type && epi_dtype_is_whole(g->tensors[t].type);
    for (int i = g->node_count - 1; i >= 0 && looked; i--) {
        epi_node *n = &g->nodes[i];
        n->exact |= n->op == EPI_OP_DIV && looked[i] && !is_power_of_two(&g->nodes[n->arg[1]]);
        for (int a = 0; a < epi_node_operands(n) && g->live[i]; a++)
            looked[n->arg[a]] |= is_step(g, n, a) || (looked[i] && hands_on(n, a));
    }
}

/* Goes through all uses in order: counts them by what they use in next[], or puts each where that says. */
static void each_use(epi_graph *g, int *next, bool put) {
    for (int i = 0; i < g->node_count; i++)
        for (int a = 0; a < epi_node_operands(&g->nodes[i]) && g->live[i]; a++) {
            int at = next[g->nodes[i].arg[a]]++;
            if (put)
                g->uses[at] = (epi_use){i, a};
        }
    for (int t = g->input_count; t < g->tensor_count; t++) {
        int at = next[g->tensors[t].node]++;
        if (put)
            g->uses[at] = (epi_use){EPI_NO_NODE, t};
    }
}

/* Leaves out the nodes that only order axes; nothing refers to them but numbers of nodes. */
static void drop_orders(epi_graph *g) {
    int *to = epi_arena_alloc(g->arena, ((size_t)g->node_count + 1) * sizeof *to), count = 0;
    for (int i = 0; i < g->node_count && to; i++) {
        epi_node n = g->nodes[i];
        if (n.op == (epi_op)EPI_OP_ORDER)
            continue;
        for (int a = 0; a < 3; a++)
            n.arg[a] = n.arg[a] == EPI_NO_NODE ? EPI_NO_NODE : to[n.arg[a]];
        to[i] = count;
        g->nodes[count++] = n;
    }
    for (int t = 0; t < g->tensor_count && to; t++)
        g->tensors[t].node = to[g->tensors[t].node];
    g->node_count = count;
    g->table_size = 0; /* nodes have other numbers now */
}

void epi_graph_finish(epi_graph *g) {
    if (epi_graph_failed(g))
        return;
    drop_orders(g);
    size_t nodes = (size_t)g->node_count;
    g->live = epi_arena_alloc(g->arena, nodes + 1);
    g->first_use = epi_arena_alloc(g->arena, (nodes + 1) * sizeof *g->first_use);
    g->uses = epi_arena_alloc(g->arena, (3 * nodes + (size_t)g->tensor_count) * sizeof *g->uses);
    int *next = epi_arena_alloc(g->arena, (nodes + 1) * sizeof *next);
    if (!g->live || !g->uses || !g->first_use || !next)
        return; /* the arena tells */
    mark_live(g);
    mark_exact(g);
    each_use(g, next, false);
    for (int i = 0; i < g->node_count; i++) {
        g->first_use[i + 1] = g->first_use[i] + next[i];
        next[i] = g->first_use[i];
    }
    each_use(g, next, true);
}

epi_use_list epi_graph_uses(const epi_graph *g, int node) {
    int first = g->first_use[node];
    return (epi_use_list){g->uses + first, g->first_use[node + 1] - first};
}

/* ---- lists and visits ---- */

bool epi_list_copy(epi_arena *arena, const int *from, int count, epi_node_list *to) {
    *to = (epi_node_list){epi_arena_alloc(arena, ((size_t)count + 1) * sizeof *to->at), count};
    for (int i = 0; i < count && to->at; i++)
        to->at[i] = from[i];
    return to->at != NULL;
}

static int compare_nodes(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

void epi_list_sort(epi_node_list *list) {
    qsort(list->at, (size_t)list->count, sizeof *list->at, compare_nodes);
}

bool epi_visits_make(epi_arena *arena, int nodes, epi_visits *out) {
    *out = (epi_visits){.seen = epi_arena_alloc(arena, ((size_t)nodes + 1) * sizeof *out->seen),
                        .todo = epi_arena_alloc(arena, ((size_t)nodes + 1) * sizeof *out->todo)};
    return out->seen && out->todo;
}

void epi_visits_begin(epi_visits *v, int node) {
    v->round++;
    v->count = 0;
    epi_visit(v, node);
}

void epi_visit(epi_visits *v, int node) {
    if (v->seen[node] == v->round)
        return;
    v->seen[node] = v->round;
    v->todo[v->count++] = node;
}

bool epi_visits_next(epi_visits *v, int *node) {
    if (!v->count)
        return false;
    *node = v->todo[--v->count];
    return true;
}

/* ---- outputs ---- */

/* The product that `node` reaches without passing another product and that contracted `dim`
 * together with at least `least - 1` other axes, or EPI_NO_NODE. */
static int contracted_by(epi_graph *g, int node, int dim, int least) {
    bool *seen = epi_arena_alloc(g->arena, (size_t)node + 1);
    if (!seen)
        return EPI_NO_NODE; /* the arena tells */
    seen[node] = true;
    for (int i = node; i >= 0; i--) {
        const epi_node *n = &g->nodes[i];
        if (!seen[i])
            continue;
        if (n->op == EPI_OP_MATMUL) {
            if (!n->named && n->over.count >= least && epi_axes_find_dim(&n->over, dim) >= 0)
                return i;
            continue;
        }
        for (int a = 0; a < (n->op == EPI_OP_OWN ? 1 : epi_node_operands(n)); a++)
            seen[n->arg[a]] = true;
    }
    return EPI_NO_NODE;
}

static void fail_contracted(epi_graph *g, int product, epi_axis axis) {
    const epi_node *p = &g->nodes[product];
    g->place = p->place;
    epi_graph_fail(g,
                   "@ sums over %s here because both %s and %s have it, but the output keeps %s: rename it "
                   "in one of them, or write the sum out: sum(a*b, …)",
                   epi_axis_label(g, axis).text, epi_node_label(g, p->arg[0]).text,
                   epi_node_label(g, p->arg[1]).text, epi_axis_label(g, axis).text);
}

/* Whether a * on the way to `node` has the operands of a matrix product: both have `dim`, and each has an
 * axis that the other lacks. */
static bool multiplied_along(epi_graph *g, int node, int dim) {
    bool *seen = epi_arena_alloc(g->arena, (size_t)node + 1);
    if (!seen)
        return false; /* the arena tells */
    seen[node] = true;
    for (int i = node; i >= 0; i--) {
        const epi_node *n = &g->nodes[i];
        if (!seen[i] || epi_axes_find_dim(&n->axes, dim) < 0)
            continue;
        if (n->op == EPI_OP_MUL) {
            const epi_axes *a = &g->nodes[n->arg[0]].axes, *b = &g->nodes[n->arg[1]].axes;
            if (epi_axes_find_dim(a, dim) >= 0 && epi_axes_find_dim(b, dim) >= 0 &&
                a->count < n->axes.count && b->count < n->axes.count)
                return true;
        }
        for (int a = 0; a < (n->op == EPI_OP_OWN ? 1 : epi_node_operands(n)); a++)
            seen[n->arg[a]] = true;
    }
    return false;
}

/* The value lacks the declared axis `want`. */
static void fail_missing(epi_graph *g, const epi_tensor_decl *t, const epi_axes *have, epi_axis want) {
    epi_label axis = epi_axis_label(g, want), found = epi_axes_label(g, have),
              declared = epi_axes_label(g, &t->axes);
    bool undeclared = false;
    for (int i = 0; i < have->count; i++)
        undeclared |= epi_axes_find(&t->axes, have->at[i]) < 0;
    if (undeclared)
        epi_graph_fail(g,
                       "%s is declared %s but its value is %s: the axis %s is missing; rename gives an axis "
                       "another name",
                       t->name, declared.text, found.text, axis.text);
    else
        epi_graph_fail(g,
                       "%s is declared %s but its value is %s: the axis %s is missing; declare %s%s, or make "
                       "the axis %s with rename",
                       t->name, declared.text, found.text, axis.text, t->name,
                       have->count ? found.text : " without axes", axis.text);
}

void epi_graph_check_output(epi_graph *g, int tensor) {
    if (epi_graph_failed(g))
        return;
    const epi_tensor_decl *t = &g->tensors[tensor];
    const epi_axes *have = &g->nodes[t->node].axes;
    for (int i = 0; i < t->axes.count; i++) {
        epi_axis want = t->axes.at[i];
        bool missing = epi_axes_find(have, want) < 0;
        /* Missing: contracted away. Present again beside another contracted axis: broadcast back in. */
        int product = contracted_by(g, t->node, want.dim, missing ? 1 : 2);
        if (product != EPI_NO_NODE) {
            fail_contracted(g, product, want);
            return;
        }
        if (missing) {
            fail_missing(g, t, have, want);
            return;
        }
    }
    for (int i = 0; i < have->count; i++)
        if (epi_axes_find(&t->axes, have->at[i]) < 0) {
            epi_graph_fail(
                g, "%s is declared %s but its value is %s: declare the axis %s, or reduce over it%s", t->name,
                epi_axes_label(g, &t->axes).text, epi_axes_label(g, have).text,
                epi_axis_label(g, have->at[i]).text,
                multiplied_along(g, t->node, have->at[i].dim) ? "; a matrix product is written @, not *"
                                                              : "");
            return;
        }
}
