/* attention_mask.c: what a mask says about the positions that a row sees.
 *
 * A mask is a where on the score tile with -inf or 0 for hidden elements, such that every hidden element has
 * weight 0. (-inf goes through sums and differences and becomes 0 in an exponential. A product with 0 counts
 * as 0.) Its condition may be a conjunction of comparisons. A comparison that is linear in one position
 * along the stream, or an `or` of two such comparisons, is a *bound*. An equality of a value of the rows and
 * a value along the stream is a *match*. */
#include <math.h>
#include <string.h>

#include "pass/analyse/attention.h"
#include "pass/analyse/monomial.h"

/* What a hidden element is known to be; and how deep an expression is looked into. */
enum { OPEN, ZERO, LOWEST };
enum { DEEP = 32 };

/* ---- what is hidden ---- */

static unsigned char hidden_map(const epi_graph *g, const epi_node *n, const unsigned char *is,
                                int condition) {
    unsigned char of[3] = {OPEN, OPEN, OPEN};
    for (int a = 0; a < epi_node_operands(n); a++)
        of[a] = is[n->arg[a]];
    switch (n->op) {
    case EPI_OP_WHERE:
        if (n->arg[0] == condition)
            return epi_is_constant(g, n->arg[2], 0)                   ? ZERO
                   : epi_is_constant(g, n->arg[2], (double)-INFINITY) ? LOWEST
                                                                      : of[2];
        return of[1] == of[2]                                                                    ? of[1]
               : (of[1] && epi_is_constant(g, n->arg[2], of[1] == ZERO ? 0 : (double)-INFINITY)) ? of[1]
                                                                                                 : OPEN;
    case EPI_OP_ADD: return of[0] == LOWEST || of[1] == LOWEST ? LOWEST : of[0] && of[1] ? ZERO : OPEN;
    case EPI_OP_SUB: return of[0] == LOWEST ? LOWEST : of[0] == ZERO && of[1] == ZERO ? ZERO : OPEN;
    case EPI_OP_NEG: return of[0] == ZERO ? ZERO : OPEN;
    case EPI_OP_MUL: return of[0] == ZERO || of[1] == ZERO ? ZERO : OPEN;
    case EPI_OP_DIV: return of[0] == ZERO ? ZERO : OPEN;
    case EPI_OP_EXP:
    case EPI_OP_EXP2: return of[0] == LOWEST ? ZERO : OPEN;
    default: return OPEN;
    }
}

static bool adds_nothing(const epi_graph *g, const epi_attention *a, int node, const unsigned char *is) {
    const epi_node *n = &g->nodes[node];
    if (!epi_attention_reduces(g, a, node))
        return true;
    return n->op == EPI_OP_SUM                                 ? is[n->arg[0]] == ZERO
           : n->op == EPI_OP_RMAX || n->op == EPI_OP_LOGSUMEXP ? is[n->arg[0]] == LOWEST
                                                               : false;
}

/* Has what the condition hides no weight, and no part in what leaves? */
static bool hides(const epi_graph *g, const epi_attention *a, const bool *inner, int condition,
                  unsigned char *is) {
    memset(is, OPEN, (size_t)g->node_count);
    for (int i = 0; i < g->node_count; i++) {
        if (epi_op_is_map(g->nodes[i].op))
            is[i] = hidden_map(g, &g->nodes[i], is, condition);
        else if (g->live[i] && g->nodes[i].arg[0] != EPI_NO_NODE && inner[g->nodes[i].arg[0]] &&
                 !adds_nothing(g, a, i, is))
            return false;
    }
    for (int v = 0; v < a->sum_count; v++)
        if (is[a->sums[v].weight] != ZERO)
            return false;
    return true;
}

/* ---- bounds ---- */

/* Is it the position along all of a stream of two axes, index(N)*size(C) + index(C)? */
static bool is_flat(const epi_graph *g, const epi_attention *a, int node) {
    const epi_node *n = &g->nodes[node];
    for (int k = 0; k < 2 && n->op == EPI_OP_ADD && a->stream.count == 2; k++) {
        const epi_node *times = &g->nodes[n->arg[k]], *inner = &g->nodes[n->arg[!k]];
        for (int i = 0; i < 2 && times->op == EPI_OP_MUL; i++) {
            const epi_node *outer = &g->nodes[times->arg[i]], *size = &g->nodes[times->arg[!i]];
            if (outer->op == EPI_OP_INDEX && inner->op == EPI_OP_INDEX && size->op == EPI_OP_SIZE &&
                epi_axis_equal(outer->over.at[0], a->stream.at[0]) &&
                epi_axis_equal(inner->over.at[0], a->stream.at[1]) &&
                epi_axis_equal(size->over.at[0], a->stream.at[1]))
                return true;
        }
    }
    return false;
}

/* One side of a comparison less the other, as it is read: a sum, and how often the position along the stream
 * is in it. */
typedef struct reader {
    const epi_graph *g;
    const epi_attention *a;
    epi_bound bound; /* its axis, and the limit */
    int position;    /* 1 or -1: so often; 0: not yet */
    int choice;  /* x <= max(y, z) is an "or": which of the two is read; -1: it is a value as others are */
    int choices; /* met so far */
} reader;

static bool note_position(reader *r, int sign, epi_axis axis, bool flat) {
    bool first = !r->position;
    r->position = sign;
    r->bound.axis = axis;
    r->bound.flat = flat;
    return first;
}

/* Adds sign times the value. */
static bool add_linear(reader *r, int node, int sign, int depth) {
    const epi_node *n = &r->g->nodes[node];
    epi_linear *sum = &r->bound.limit;
    if (depth > DEEP)
        return false;
    if (n->op == EPI_OP_CONST) {
        sum->offset += sign * n->value;
        return isfinite(n->value);
    }
    if (n->op == EPI_OP_INDEX && epi_axes_find(&r->a->stream, n->over.at[0]) >= 0)
        return note_position(r, sign, n->over.at[0], false);
    if (is_flat(r->g, r->a, node))
        return note_position(r, sign, r->a->stream.at[1], true);
    if (epi_op_has_terms(n->op))
        return add_linear(r, n->arg[0], sign, depth + 1) &&
               add_linear(r, n->arg[1], n->op == EPI_OP_SUB ? -sign : sign, depth + 1);
    if (n->op == EPI_OP_NEG)
        return add_linear(r, n->arg[0], -sign, depth + 1);
    if (r->choice >= 0 && n->op == (sign > 0 ? EPI_OP_MAX : EPI_OP_MIN)) {
        r->choices++;
        return add_linear(r, n->arg[r->choice], sign, depth + 1);
    }
    if (epi_axes_count_in(&n->axes, &r->a->stream) || sum->count == EPI_ATTENTION_BOUNDS)
        return false;
    sum->term[sum->count] = node;
    sum->factor[sum->count++] = sign;
    return true;
}

/* Reads a comparison as 0 <= (or <) what is high less what is low. */
static bool read_comparison(const epi_graph *g, const epi_attention *a, int node, int choice, reader *r) {
    const epi_node *n = &g->nodes[node];
    bool less = n->op == EPI_OP_LT || n->op == EPI_OP_LE, more = n->op == EPI_OP_GT || n->op == EPI_OP_GE;
    *r = (reader){.g = g, .a = a, .choice = choice};
    if (!less && !more)
        return false;
    bool read = add_linear(r, n->arg[!less], -1, 0) && add_linear(r, n->arg[less], 1, 0);
    r->bound.limit.strict = n->op == EPI_OP_LT || n->op == EPI_OP_GT;
    r->bound.sign = -r->position; /* it was brought to the side of the limit */
    return read;
}

/* One comparison or another. */
static bool join(const reader *x, const reader *y, epi_bound *out) {
    if (!x->position)
        return y->position && join(y, x, out);
    *out = x->bound;
    out->other = y->bound.limit;
    out->other_is = y->position ? EPI_OR_LIMIT : EPI_OR_ROW;
    return !y->position || (y->position == x->position && y->bound.flat == x->bound.flat &&
                            epi_axis_equal(y->bound.axis, x->bound.axis));
}

static bool make_bound(const epi_graph *g, const epi_attention *a, int node, epi_bound *out) {
    const epi_node *n = &g->nodes[node];
    reader x, y;
    if (n->op == EPI_OP_OR)
        return read_comparison(g, a, n->arg[0], -1, &x) && read_comparison(g, a, n->arg[1], -1, &y) &&
               join(&x, &y, out);
    if (read_comparison(g, a, node, 0, &x) && read_comparison(g, a, node, 1, &y) && x.choices == 1 &&
        y.choices == 1 && join(&x, &y, out))
        return true;
    bool read = read_comparison(g, a, node, -1, &x) && x.position;
    *out = x.bound;
    return read;
}

bool epi_bound_is_start(const epi_graph *g, const epi_bound *b, const epi_axes *batch) {
    const epi_linear *l = &b->limit; /* -index <= -start */
    return b->sign < 0 && b->other_is == EPI_OR_NOTHING && l->count == 1 && l->factor[0] < 0 &&
           l->offset == 0 && !l->strict && g->nodes[l->term[0]].op != EPI_OP_INDEX &&
           epi_axes_include(batch, &g->nodes[l->term[0]].axes);
}

/* A comparison of a value of rows with one along the stream. */
static bool note_match(const epi_graph *g, epi_attention *a, const epi_node *n) {
    bool along[2];
    for (int k = 0; k < 2; k++)
        along[k] = epi_axes_count_in(&g->nodes[n->arg[k]].axes, &a->stream) > 0;
    if (along[0] == along[1] || a->match_count == EPI_ATTENTION_BOUNDS)
        return false;
    a->matches[a->match_count++] = (epi_match){.row = n->arg[along[0]], .column = n->arg[!along[0]]};
    return true;
}

/* Notes the bounds and the matches that the condition says; is it known with them? */
static bool read_condition(const epi_graph *g, epi_attention *a, int node, int depth) {
    const epi_node *n = &g->nodes[node];
    if (n->op == EPI_OP_AND && depth < DEEP) {
        bool first = read_condition(g, a, n->arg[0], depth + 1);
        return read_condition(g, a, n->arg[1], depth + 1) && first;
    }
    if (n->op == EPI_OP_EQ)
        return note_match(g, a, n);
    bool known = a->bound_count < EPI_ATTENTION_BOUNDS && make_bound(g, a, node, &a->bounds[a->bound_count]);
    a->bound_count += known;
    return known;
}

void epi_attention_bound(const epi_graph *g, epi_attention *a, const bool *inner, bool *complete,
                         unsigned char *scratch) {
    *complete = false;
    for (int i = g->node_count - 1; i >= 0; i--) {
        if (!g->live[i] || g->nodes[i].op != EPI_OP_WHERE ||
            !epi_axes_count_in(&g->nodes[i].axes, &a->stream))
            continue;
        int condition = g->nodes[i].arg[0];
        a->bound_count = a->match_count = 0;
        bool known = !inner[condition] && read_condition(g, a, condition, 0);
        if (!(a->bound_count + a->match_count) || !hides(g, a, inner, condition, scratch))
            continue;
        a->condition = condition;
        *complete = known;
        return;
    }
    a->bound_count = a->match_count = 0;
}
