/* transpose.c: sum(u*L(d), X) = sum(d*Lt(u), X), with L linear and made of the halves of one axis, as a
 * rotary embedding is. Taken where Lt(u) is, up to vectors, a value that is stored anyway: an operand of a
 * product, or a result. The same for L that changes nothing: sum(d*z) is sum(d*(r*z))/r where r*z is stored
 * and z is not. The stored value is marked as whole, so that no later walk looks inside it. */
#include "pass/algebra.h"

enum { MOST_VALUES = 64 };

/* A stored value that is another one times vectors. */
typedef struct stored {
    int node; /* EPI_NO_NODE: there is none */
    epi_form by;
} stored;

typedef struct search {
    epi_facts *facts;
    epi_graph *g;
    bool *kept; /* by node: it is stored anyway */
    stored *of; /* by node: what it can be had from */
    int count;
} search;

/* ---- what is stored ---- */

static void note_stored(search *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    epi_form f = epi_flat_form(s->facts, node);
    int whole = -1;
    for (int i = 0; i < f.count; i++) {
        const epi_fact *fact = epi_fact_of(s->facts, f.at[i].node);
        if (s->g->nodes[f.at[i].node].axes.count == n->axes.count) {
            if (whole >= 0 || f.at[i].power != 1)
                return;
            whole = i;
        } else if (!fact || !fact->divides) {
            return;
        }
    }
    if (whole < 0 || f.number != 1 || f.count < 2)
        return;
    int of = f.at[whole].node;
    if (of >= s->count || s->kept[of] || s->g->nodes[of].has_stored || s->of[of].node != EPI_NO_NODE)
        return;
    f.at[whole] = f.at[--f.count];
    s->of[of] = (stored){node, f};
}

static void find_stored(search *s) {
    epi_graph *g = s->g;
    for (int i = 0; i < s->count; i++) {
        s->of[i].node = EPI_NO_NODE;
        if (g->live[i] && g->nodes[i].op == EPI_OP_MATMUL)
            s->kept[g->nodes[i].arg[0]] = s->kept[g->nodes[i].arg[1]] = true;
    }
    for (int t = 0; t < g->tensor_count; t++)
        s->kept[g->tensors[t].node] = true;
    for (int i = 0; i < s->count && !epi_graph_failed(g); i++)
        if (s->kept[i] && g->live[i])
            note_stored(s, i);
}

/* ---- linear maps of the halves of one value ---- */

/* The values that a join is made of, down to the halves. */
typedef struct cone {
    int base; /* the value that is taken apart, or EPI_NO_NODE: there is none yet */
    int at[MOST_VALUES], count;
    bool linear[MOST_VALUES]; /* it depends on the halves */
} cone;

static int find_in(const cone *c, int node) {
    for (int i = 0; i < c->count; i++)
        if (c->at[i] == node)
            return i;
    return -1;
}

/* Is it one of the operations that a linear map is made of? */
static bool is_linear(epi_op op) {
    return op == EPI_OP_ADD || op == EPI_OP_SUB || op == EPI_OP_NEG || op == EPI_OP_MUL || op == EPI_OP_DIV;
}

/* Lists the values below a node, operands first; false: it is too much, or the halves of two values. */
static bool collect(const epi_graph *g, const epi_node *join, int node, cone *c, int depth) {
    const epi_node *n = &g->nodes[node];
    if (find_in(c, node) >= 0)
        return true;
    if (depth > 16 || c->count == MOST_VALUES)
        return false;
    bool linear = false, halves = epi_op_is_half(n->op) && epi_axis_equal(n->over.at[0], join->over.at[0]) &&
                                  epi_axes_same_set(&g->nodes[n->arg[0]].axes, &join->axes);
    if (halves) {
        if (c->base != EPI_NO_NODE && c->base != n->arg[0])
            return false;
        c->base = n->arg[0];
        linear = true;
    } else if (is_linear(n->op) && !n->has_stored) {
        bool of[2] = {false, false};
        for (int a = 0; a < 2 && n->arg[a] != EPI_NO_NODE; a++) {
            if (!collect(g, join, n->arg[a], c, depth + 1))
                return false;
            of[a] = c->linear[find_in(c, n->arg[a])];
        }
        bool sum = n->op == EPI_OP_ADD || n->op == EPI_OP_SUB;
        if ((n->op == EPI_OP_MUL && of[0] && of[1]) || (n->op == EPI_OP_DIV && of[1]) ||
            (sum && of[0] != of[1]))
            return false;
        linear = of[0] || of[1];
    }
    if (c->count == MOST_VALUES)
        return false;
    c->linear[c->count] = linear;
    c->at[c->count++] = node;
    return true;
}

/* Terms that come together at a value. */
typedef struct sums {
    epi_form term[MOST_VALUES][4];
    int count[MOST_VALUES];
} sums;

static bool send(sums *to, int at, const epi_form *f) {
    if (to->count[at] == 4)
        return false;
    to->term[at][to->count[at]++] = *f;
    return true;
}

/* From what comes together at a value, what goes to its operands. */
static bool send_on(search *s, const cone *c, sums *to, int at) {
    const epi_node n = s->g->nodes[c->at[at]];
    epi_form in = epi_flat_add(s->facts, to->term[at], to->count[at]);
    for (int a = 0; a < 2 && n.arg[a] != EPI_NO_NODE; a++) {
        int operand = find_in(c, n.arg[a]);
        epi_form out = in, by = {.number = 1};
        if (!c->linear[operand])
            continue;
        if (n.op == EPI_OP_NEG || (n.op == EPI_OP_SUB && a == 1))
            out.number = -out.number;
        if (n.op == EPI_OP_MUL || n.op == EPI_OP_DIV)
            by = epi_flat_form(s->facts, n.arg[1 - a]);
        if (!epi_flat_multiply(s->facts, &out, &by, n.op == EPI_OP_DIV ? -1 : 1) || !send(to, operand, &out))
            return false;
    }
    return true;
}

/* Lt(u) as a node, where the join is L of the base. */
static int transposed(search *s, int join, int u, cone *c) {
    epi_graph *g = s->g;
    const epi_node n = g->nodes[join];
    bool pairs = n.op == EPI_OP_JOIN;
    sums *to = epi_arena_alloc(g->arena, sizeof *to);
    epi_axis half = {n.over.at[0].dim, (int16_t)(n.over.at[0].shift - 1)};
    int part[2];
    *c = (cone){.base = EPI_NO_NODE};
    if (!to || !collect(g, &n, n.arg[0], c, 0) || !collect(g, &n, n.arg[1], c, 0) || c->base == EPI_NO_NODE)
        return EPI_NO_NODE;
    for (int k = 0; k < 2; k++) {
        epi_form in = epi_flat_form(
            s->facts,
            epi_normal_half(s->facts, pairs ? (k ? EPI_OP_ODD : EPI_OP_EVEN) : (k ? EPI_OP_HIGH : EPI_OP_LOW),
                            u, n.over.at[0]));
        int at = find_in(c, n.arg[k]);
        if (epi_graph_failed(g) || !c->linear[at] || !send(to, at, &in))
            return EPI_NO_NODE;
    }
    for (int i = c->count - 1; i >= 0; i--) /* users before operands */
        if (c->linear[i] && !epi_op_is_half(g->nodes[c->at[i]].op) &&
            (!to->count[i] || epi_graph_failed(g) || !send_on(s, c, to, i)))
            return EPI_NO_NODE;
    for (int k = 0; k < 2; k++) {
        epi_op op = pairs ? (k ? EPI_OP_ODD : EPI_OP_EVEN) : (k ? EPI_OP_HIGH : EPI_OP_LOW);
        int at = 0;
        while (at < c->count && !(g->nodes[c->at[at]].op == op && g->nodes[c->at[at]].arg[0] == c->base))
            at++;
        if (at == c->count || !to->count[at])
            return EPI_NO_NODE;
        epi_form sum = epi_flat_add(s->facts, to->term[at], to->count[at]);
        part[k] = epi_graph_failed(g) ? EPI_NO_NODE : epi_normal_build(s->facts, &sum);
        if (part[k] == EPI_NO_NODE || epi_axes_find(&g->nodes[part[k]].axes, half) < 0)
            return EPI_NO_NODE;
    }
    return epi_normal_join(s->facts, n.op, part[0], part[1], n.over.at[0]);
}

/* ---- one statistic ---- */

/* The form with a factor replaced by what it can be had from; false: none can. */
static bool from_stored(search *s, epi_form *f, int *whole) {
    for (int i = 0; i < f->count; i++) {
        if (f->at[i].power != 1 || f->at[i].node >= s->count || s->of[f->at[i].node].node == EPI_NO_NODE)
            continue;
        const stored *of = &s->of[f->at[i].node];
        epi_form by = epi_form_of(s->g, of->node, 1);
        f->at[i] = f->at[--f->count];
        *whole = of->node;
        return epi_flat_multiply(s->facts, f, &by, 1) && epi_flat_multiply(s->facts, f, &of->by, -1);
    }
    return false;
}

/* *stored is the value that it is taken from. */
static int find_one(search *s, int node, int *stored) {
    epi_graph *g = s->g;
    const epi_node n = g->nodes[node];
    epi_form f = epi_flat_form(s->facts, n.arg[0]);
    bool found = false;
    for (int i = 0; i < f.count && !found && !epi_graph_failed(g); i++) {
        int join = f.at[i].node;
        if (f.at[i].power != 1 || g->nodes[join].has_stored ||
            (g->nodes[join].op != EPI_OP_JOIN && g->nodes[join].op != EPI_OP_CONCAT) ||
            !epi_axes_include(&n.over, &(epi_axes){1, {g->nodes[join].over.at[0]}}))
            continue;
        epi_form rest = f;
        rest.at[i] = rest.at[--rest.count];
        rest.number = 1;
        int u = epi_normal_build(s->facts, &rest), t = EPI_NO_NODE;
        cone c;
        if (u != EPI_NO_NODE && epi_axes_same_set(&g->nodes[u].axes, &g->nodes[join].axes))
            t = transposed(s, join, u, &c);
        if (t == EPI_NO_NODE)
            continue;
        epi_form whole = epi_flat_form(s->facts, t), base = epi_form_of(g, c.base, 1);
        found = from_stored(s, &whole, stored) && epi_flat_multiply(s->facts, &whole, &base, 1);
        if (found) {
            whole.number *= f.number;
            f = whole;
        }
    }
    if (!found && !from_stored(s, &f, stored))
        return EPI_NO_NODE;
    if (n.op == EPI_OP_MEAN && !epi_flat_over_sizes(s->facts, &f, &n.over))
        return EPI_NO_NODE;
    epi_form sum = epi_normal_sum(s->facts, &f, &n.over);
    return epi_graph_failed(g) ? EPI_NO_NODE : epi_normal_build(s->facts, &sum);
}

int epi_transpose(epi_facts *facts, int *found) {
    epi_graph *g = facts->g;
    int count = facts->finished, applied = 0;
    search s = {.facts = facts, .g = g, .count = count};
    s.kept = epi_arena_alloc(g->arena, (size_t)count + 1);
    s.of = epi_arena_alloc(g->arena, ((size_t)count + 1) * sizeof *s.of);
    if (epi_graph_failed(g))
        return 0;
    find_stored(&s);
    for (int i = 0; i < count && !epi_graph_failed(g); i++) {
        bool sum = g->live[i] && (g->nodes[i].op == EPI_OP_SUM || g->nodes[i].op == EPI_OP_MEAN);
        int stored, value = sum ? find_one(&s, i, &stored) : EPI_NO_NODE;
        if (value != EPI_NO_NODE && !epi_reaches(facts, value, i, found, i))
            found[i] = value, g->nodes[stored].whole = true;
        applied += found[i] != EPI_NO_NODE;
    }
    return applied;
}
