/* attention.c: finds the values of a graph that are the attention around a product.
 *
 * A value product sums a weight times another operand over some axes, the *stream*: the key axis of a
 * forward. The weight is computed from score products, element by element. The axes alone decide. The axes
 * of the weight are those of a score tile. The stream is what the value product sums over. Of the other
 * axes, those that some operand with the stream has too are batches, and the rest are rows. */
#include "pass/analyse/attention.h"

#include <math.h>

#include "pass/analyse/cost.h"
#include "pass/analyse/monomial.h"
#include "pass/analyse/tile.h"

static bool has_some(const epi_axes *axes, const epi_axes *of) {
    return epi_axes_count_in(axes, of) > 0;
}

int epi_attention_loaded(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    return n->on_load && epi_ops[n->op].converts ? n->arg[0] : node;
}

/* The product with its operands: which has some of the stream? */
static epi_attention_term term_of(const epi_graph *g, const epi_attention *a, int product, int score) {
    const int *arg = g->nodes[product].arg;
    bool first_has = has_some(&g->nodes[arg[0]].axes, &a->stream);
    return (epi_attention_term){product, score, arg[first_has], epi_attention_loaded(g, arg[!first_has])};
}

/* A score product: one operand has all of the stream, the other one nothing of it. */
static bool is_score(const epi_graph *g, const epi_attention *a, int node) {
    epi_attention_term t = term_of(g, a, node, 0);
    return epi_axes_include(&g->nodes[t.stream].axes, &a->stream) &&
           !has_some(&g->nodes[t.rows].axes, &a->stream);
}

static void list_terms(const epi_graph *g, epi_attention *a) {
    a->term_count = 0;
    for (int s = 0; s < a->score_count; s++) {
        const epi_node *n = &g->nodes[a->scores[s]];
        bool sum = n->op != EPI_OP_MATMUL;
        for (int t = 0; t <= sum; t++)
            a->terms[a->term_count++] = term_of(g, a, sum ? n->arg[t] : a->scores[s], s);
    }
}

static bool is_term(const epi_attention *a, int node) {
    for (int t = 0; t < a->term_count; t++)
        if (a->terms[t].product == node)
            return true;
    return false;
}

int epi_attention_operands(const epi_attention *a, int out[EPI_ATTENTION_OPERANDS]) {
    int count = 0;
    for (int t = 0; t < a->term_count; t++) {
        out[count++] = a->terms[t].rows;
        out[count++] = a->terms[t].stream;
    }
    for (int v = 0; v < a->sum_count; v++)
        out[count++] = a->sums[v].operand;
    return count;
}

static bool is_element(const epi_graph *g, int node, const epi_axes *full) {
    epi_op op = g->nodes[node].op;
    return (op == EPI_OP_MATMUL || epi_op_is_map(op)) && epi_axes_same_set(&g->nodes[node].axes, full);
}

/* The same, or, of shared scores, one that is the same along some batches or rows: it has the stream, and a product has rows. */
static bool is_shared(const epi_graph *g, const epi_attention *a, int node, const epi_axes *full) {
    const epi_node *n = &g->nodes[node];
    if (!a->shared || is_element(g, node, full))
        return is_element(g, node, full);
    if ((n->op != EPI_OP_MATMUL && !epi_op_is_map(n->op)) || !epi_axes_include(full, &n->axes) ||
        !epi_axes_include(&n->axes, &a->stream))
        return false;
    if (n->op != EPI_OP_MATMUL)
        return true;
    epi_attention_term t = term_of(g, a, node, 0);
    epi_axes rows = epi_axes_without(&g->nodes[t.rows].axes, &g->nodes[t.stream].axes);
    rows = epi_axes_without(&rows, &g->nodes[a->sums[0].operand].axes);
    return epi_axes_count_in(&rows, full) > 0;
}

/* A sum of two products of which nothing else is made: both are terms of one score. */
static bool is_sum_of_scores(const epi_graph *g, const epi_attention *a, int node, const epi_axes *full) {
    const epi_node *n = &g->nodes[node];
    bool both = n->op == EPI_OP_ADD && n->arg[0] != n->arg[1];
    for (int k = 0; k < 2 && both; k++)
        both = g->nodes[n->arg[k]].op == EPI_OP_MATMUL && is_shared(g, a, n->arg[k], full) &&
               epi_graph_uses(g, n->arg[k]).count == 1 && is_score(g, a, n->arg[k]);
    return both;
}

static bool note_score(const epi_graph *g, epi_attention *a, int node) {
    for (int i = 0; i < a->score_count; i++)
        if (a->scores[i] == node)
            return true;
    if (a->score_count == 2 || (g->nodes[node].op == EPI_OP_MATMUL && !is_score(g, a, node)))
        return false;
    a->scores[a->score_count++] = node;
    if (a->score_count == 2 && a->scores[0] > a->scores[1]) {
        a->scores[1] = a->scores[0];
        a->scores[0] = node;
    }
    list_terms(g, a);
    return true;
}

bool epi_attention_reduces(const epi_graph *g, const epi_attention *a, int node) {
    return node != EPI_NO_NODE && epi_op_reduces(g->nodes[node].op) &&
           epi_axes_same_set(&g->nodes[node].over, &a->stream);
}

/* ---- the elements of a score tile ---- */

/* What is looked at: the elements of one attention, which are marked as long as they are in the list. */
typedef struct finder {
    const epi_graph *g;
    bool *inner; /* by node */
    epi_node_list list;
    int *scratch; /* as many as nodes */
} finder;

/* Takes the last ones out of the list again, down to so many. */
static void forget(finder *f, int count) {
    while (f->list.count > count)
        f->inner[f->list.at[--f->list.count]] = false;
}

static void note(finder *f, int node) {
    if (f->inner[node])
        return;
    f->inner[node] = true;
    f->list.at[f->list.count++] = node;
}

/* Lists the elements that one is made of, back to the score products, and notes these; false: it is made of
 * something else, and nothing is listed. */
static bool trace(finder *f, epi_attention *a, int root) {
    const epi_graph *g = f->g;
    const epi_axes *full = &g->nodes[a->sums[0].weight].axes;
    int before = f->list.count;
    note(f, root);
    for (int at = before; at < f->list.count; at++) {
        int node = f->list.at[at];
        const epi_node *n = &g->nodes[node];
        bool sum = is_sum_of_scores(g, a, node, full), score = sum || n->op == EPI_OP_MATMUL;
        if (score && !is_term(a, node) && !note_score(g, a, node)) {
            forget(f, before);
            return false;
        }
        for (int i = 0; i < epi_node_operands(n) && (sum || !score); i++)
            if (is_shared(g, a, n->arg[i], full))
                note(f, n->arg[i]);
    }
    return true;
}

/* What sums along the stream beside the weights, of the same scores; or, of sums that `claimed` does not have, of a
 * second one, too. */
static void trace_sums(finder *f, epi_attention *a, const bool *claimed) {
    const epi_graph *g = f->g;
    const epi_axes *full = &g->nodes[a->sums[0].weight].axes;
    for (int i = 0; i < g->node_count && a->row_max == EPI_NO_NODE; i++) {
        const epi_node *n = &g->nodes[i];
        if (!g->live[i] || !epi_ops[n->op].adds || !epi_attention_reduces(g, a, i) ||
            !is_element(g, n->arg[0], full))
            continue;
        epi_attention trial = *a;
        int before = f->list.count;
        if (!trace(f, &trial, n->arg[0]))
            continue;
        if (claimed && !claimed[i])
            *a = trial;
        else if (trial.score_count > a->score_count)
            forget(f, before);
    }
}

/* What is not made of a score product is none of its elements: a bias, a condition. */
static void keep_dependents(finder *f, const epi_attention *a) {
    int count = 0;
    epi_list_sort(&f->list);
    for (int i = 0; i < f->list.count; i++) {
        int node = f->list.at[i];
        f->inner[node] = is_term(a, node) || epi_node_takes(&f->g->nodes[node], f->inner);
        if (f->inner[node])
            f->list.at[count++] = node;
    }
    f->list.count = count;
}

/* The reduction of the value over the stream by this operation that is used, or EPI_NO_NODE. */
static int find_reduction(const epi_graph *g, const epi_attention *a, int value, epi_op op) {
    epi_use_list uses = epi_graph_uses(g, value);
    for (int i = 0; i < uses.count; i++) {
        int user = uses.at[i].node;
        if (epi_attention_reduces(g, a, user) && g->nodes[user].op == op)
            return user;
    }
    return EPI_NO_NODE;
}

/* Has it a softmax: exponentials of scores, less something that is the same along a row, or a column, or over
 * their sum along the stream? */
static bool has_softmax(const finder *f, const epi_attention *a) {
    const epi_graph *g = f->g;
    const epi_axes *full = &g->nodes[a->sums[0].weight].axes;
    for (int i = 0; i < f->list.count; i++) {
        const epi_node *n = &g->nodes[f->list.at[i]];
        if ((n->op != EPI_OP_EXP && n->op != EPI_OP_EXP2) || !f->inner[n->arg[0]])
            continue;
        const epi_node *less = &g->nodes[n->arg[0]];
        if (less->op == EPI_OP_SUB && f->inner[less->arg[0]] && g->nodes[less->arg[1]].axes.count &&
            !epi_axes_same_set(&g->nodes[less->arg[1]].axes, full))
            return true;
        if (find_reduction(g, a, f->list.at[i], EPI_OP_SUM) != EPI_NO_NODE)
            return true;
    }
    return false;
}

/* Is it an input that stays from call to call, or a view of one? */
static bool is_param(const epi_graph *g, int node) {
    while (epi_op_is_view(g->nodes[node].op))
        node = g->nodes[node].arg[0];
    return g->nodes[node].op == EPI_OP_INPUT && g->tensors[g->nodes[node].tensor].param;
}

/* Have both operands of the score products an axis that stays, as a sequence or a head is? */
static bool is_batched(const epi_graph *g, const epi_attention *a) {
    bool batched = a->term_count > 0;
    for (int t = 0; t < a->term_count; t++) {
        const epi_axes *rows = &g->nodes[a->terms[t].rows].axes;
        epi_axes stays =
            epi_axes_without(&g->nodes[a->terms[t].stream].axes, &g->nodes[a->terms[t].product].over);
        batched &= epi_axes_count_in(rows, &stays) > 0 && !is_param(g, a->terms[t].stream);
    }
    return batched;
}

/* Is a value that no score is in made of a position along the stream, by a few maps? */
static bool is_of_position(const epi_graph *g, const epi_attention *a, int node, int depth) {
    enum { NEAR = 6 };
    const epi_node *n = &g->nodes[node];
    if (n->op == EPI_OP_INDEX)
        return epi_axes_find(&a->stream, n->over.at[0]) >= 0;
    for (int k = 0; k < epi_node_operands(n) && epi_op_is_map(n->op) && depth < NEAR; k++)
        if (is_of_position(g, a, n->arg[k], depth + 1))
            return true;
    return false;
}

/* Is an element made of its position along the stream, as a mask is? */
static bool knows_position(const finder *f, const epi_attention *a) {
    const epi_graph *g = f->g;
    for (int i = 0; i < f->list.count; i++) {
        const epi_node *n = &g->nodes[f->list.at[i]];
        for (int k = 0; k < epi_node_operands(n); k++)
            if (!f->inner[n->arg[k]] && is_of_position(g, a, n->arg[k], 0))
                return true;
    }
    return false;
}

/* Two layers with a function between them have the same form: attention has a softmax, or its elements know where they
 * are, or its score products have batches. */
static epi_attention_sign sign_of(const finder *f, const epi_attention *a) {
    return has_softmax(f, a)      ? EPI_SIGN_SOFTMAX
           : knows_position(f, a) ? EPI_SIGN_POSITION
           : is_batched(f->g, a)  ? EPI_SIGN_BATCH
                                  : EPI_SIGN_NONE;
}

/* ---- one attention ---- */

static void find_shape(const epi_graph *g, epi_attention *a) {
    const epi_axes *full = &g->nodes[a->sums[0].weight].axes;
    epi_axes batch = {0}, rows = {0};
    for (int i = 0; i < full->count; i++) {
        epi_axis x = full->at[i];
        bool streams = epi_axes_find(&g->nodes[a->sums[0].operand].axes, x) >= 0;
        for (int t = 0; t < a->term_count; t++)
            streams |= epi_axes_find(&g->nodes[a->terms[t].stream].axes, x) >= 0;
        if (epi_axes_find(&a->stream, x) >= 0)
            continue;
        epi_axes *to = streams ? &batch : &rows;
        to->at[to->count++] = x;
    }
    const epi_axes *order = epi_main_output(g, &g->nodes[a->sums[0].product].axes);
    epi_axes_sort(&batch, order);
    epi_axes_sort(&rows, order);
    a->batch_axes = batch.count;
    a->rows = batch;
    epi_axes_unite(&a->rows, &rows);
}

bool epi_attention_is_paged(const epi_graph *g, const epi_attention *a, int node) {
    const epi_node *n = &g->nodes[node];
    if (n->op != EPI_OP_GATHER || n->over.count > 1 || g->nodes[n->arg[0]].op != EPI_OP_INPUT ||
        g->nodes[n->arg[1]].op != EPI_OP_INPUT || epi_graph_uses(g, node).count != 1 || a->sum_count != 1 ||
        a->score_count != 1 || (node != a->sums[0].operand && node != a->terms[0].stream))
        return false;
    const epi_axes *slots = &g->nodes[n->arg[1]].axes, *page = &g->nodes[n->arg[0]].axes;
    int i = 0;
    while (i < a->stream.count && epi_axes_find(slots, a->stream.at[i]) >= 0)
        i++;
    bool first = i > 0 && i < a->stream.count;
    for (; i < a->stream.count; i++)
        first &= epi_axes_find(page, a->stream.at[i]) >= 0 && epi_axes_find(slots, a->stream.at[i]) < 0;
    return first;
}

int epi_attention_row_max(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node], *none = n->op == EPI_OP_WHERE ? &g->nodes[n->arg[0]] : NULL;
    if (none && none->op == EPI_OP_EQ && epi_is_zero(g, n->arg[1]))
        for (int side = 0; side < 2; side++)
            if (none->arg[side] == n->arg[2] && epi_is_constant(g, none->arg[!side], (double)-INFINITY))
                node = n->arg[2];
    return g->nodes[node].op == EPI_OP_RMAX ? node : EPI_NO_NODE;
}

int epi_attention_factor(const epi_graph *g, int node, const bool *inner, int *factor) {
    const epi_node *n = &g->nodes[node];
    bool chosen = epi_choice_of(g, node) == 1;
    if (!chosen && !epi_op_has_factors(n->op))
        return -1;
    int rest = chosen || (n->op == EPI_OP_MUL && !inner[n->arg[0]]) ? 1 : 0;
    *factor = n->arg[!rest];
    return inner[n->arg[rest]] && !inner[*factor] ? rest : -1;
}

bool epi_attention_factor_has_rows(const epi_graph *g, const epi_attention *a) {
    bool has = false;
    for (int i = a->batch_axes; i < a->rows.count && a->factor != EPI_NO_NODE; i++)
        has |= epi_axes_has_dim(&g->nodes[a->factor].axes, a->rows.at[i].dim);
    return has;
}

/* Is the weight exp(s - max(s, stream)), or that times a factor that no score is in? */
static void find_online(const epi_graph *g, epi_attention *a, const bool *inner) {
    a->score = a->row_max = a->shift = a->denominator = a->factor = EPI_NO_NODE;
    int weight = a->numerator = a->sums[0].weight;
    int factor = EPI_NO_NODE, by;
    int rest = g->nodes[weight].op == EPI_OP_MUL ? epi_attention_factor(g, weight, inner, &by) : -1;
    if (rest >= 0 && (is_element(g, by, &g->nodes[weight].axes) ||
                      (has_some(&g->nodes[by].axes, &a->stream) &&
                       !epi_axes_same_set(&g->nodes[by].axes, &g->nodes[weight].axes)))) {
        a->numerator = g->nodes[weight].arg[rest];
        factor = by;
    }
    const epi_node *e = &g->nodes[a->numerator], *c = e->op == EPI_OP_EXP ? &g->nodes[e->arg[0]] : NULL;
    if (!c || c->op != EPI_OP_SUB)
        return;
    int top = epi_attention_row_max(g, c->arg[1]);
    if (top == EPI_NO_NODE || g->nodes[top].arg[0] != c->arg[0] ||
        !epi_axes_same_set(&g->nodes[top].over, &a->stream))
        return;
    a->score = c->arg[0];
    a->row_max = top;
    a->shift = c->arg[1];
    a->guarded = a->shift != top;
    a->denominator = find_reduction(g, a, a->numerator, EPI_OP_SUM);
    a->factor = factor;
}

/* Is the product a value product, of the weight on this side, and of scores that are shared? */
static bool find(finder *f, int product, int side, bool shared, epi_attention *out) {
    const epi_graph *g = f->g;
    const epi_node *n = &g->nodes[product];
    int weight = n->arg[side], operand = epi_attention_loaded(g, n->arg[!side]);
    forget(f, 0);
    *out = (epi_attention){.scores = {EPI_NO_NODE, EPI_NO_NODE},
                           .sums = {{.product = product, .weight = weight, .operand = operand}},
                           .sum_count = 1,
                           .stream = n->over,
                           .shared = shared,
                           .condition = EPI_NO_NODE};
    out->sums[0].cols = epi_axes_without(&g->nodes[operand].axes, &g->nodes[weight].axes);
    if (!epi_op_is_map(g->nodes[weight].op) || !trace(f, out, weight) || !out->score_count)
        return false;
    keep_dependents(f, out);
    out->sign = sign_of(f, out);
    if (f->inner[operand] || !out->sign)
        return false;
    epi_axes_sort(&out->stream, &g->nodes[operand].axes);
    find_shape(g, out);
    find_online(g, out, f->inner);
    trace_sums(f, out, NULL);
    keep_dependents(f, out);
    return true;
}

/* ---- all of a program ---- */

/* Are heads of such a size that the backend can do it? */
static bool is_allowed(const epi_backend_limits *limits, const epi_graph *g, const epi_attention *a,
                       const int64_t *sizes) {
    bool allowed = true;
    for (int i = 0; i < a->term_count + a->sum_count; i++) {
        const epi_axes *features =
            i < a->term_count ? &g->nodes[a->terms[i].product].over : &a->sums[i - a->term_count].cols;
        int64_t size = epi_axes_size(features, sizes);
        allowed &= size > 0 && size <= limits->attention_most && size % limits->attention_multiple == 0;
    }
    return allowed;
}

static bool make_finder(epi_arena *arena, const epi_graph *g, finder *out) {
    size_t nodes = (size_t)g->node_count + 1;
    *out = (finder){.g = g,
                    .inner = epi_arena_alloc(arena, nodes),
                    .list.at = epi_arena_alloc(arena, nodes * sizeof *out->list.at),
                    .scratch = epi_arena_alloc(arena, nodes * sizeof *out->scratch)};
    return out->inner && out->list.at && out->scratch;
}

/* Of three products in a row the second is the values of one and the scores of another. */
static bool overlap(const epi_attention *a, const epi_attention *b) {
    for (int i = 0; i < a->inner.count; i++)
        if (a->inner.at[i] == b->sums[0].product)
            return true;
    for (int i = 0; i < b->inner.count; i++)
        if (b->inner.at[i] == a->sums[0].product)
            return true;
    return false;
}

/* May it stay beside those that are kept? One product is one attention's; with a softmax there is no doubt otherwise. */
static bool may_stay(const epi_attention *a, const epi_attentions *kept) {
    for (int k = 0; k < kept->count; k++)
        if (kept->at[k].sums[0].product == a->sums[0].product ||
            (a->sign != EPI_SIGN_SOFTMAX && overlap(a, &kept->at[k])))
            return false;
    return true;
}

/* Of those found the ones that are surest, and of these the first, in the order of nodes. */
static void keep_surest(const epi_attentions *found, epi_attentions *out) {
    out->count = 0;
    for (int sign = EPI_SIGN_SOFTMAX; sign > EPI_SIGN_NONE; sign--)
        for (int i = 0; i < found->count; i++) {
            const epi_attention *a = &found->at[i];
            if ((int)a->sign != sign || !may_stay(a, out))
                continue;
            int at = out->count++;
            for (; at > 0 && out->at[at - 1].sums[0].product > a->sums[0].product; at--)
                out->at[at] = out->at[at - 1];
            out->at[at] = *a;
        }
}

bool epi_attentions_find(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                         const unsigned *without, epi_attentions *out) {
    const epi_graph *g = spec->graph;
    int products = 0;
    int64_t sizes[EPI_MAX_DIMS];
    finder f;
    if (limits)
        epi_nominal_sizes(spec, sizes);
    for (int i = 0; i < g->node_count; i++)
        products += g->live[i] && g->nodes[i].op == EPI_OP_MATMUL;
    epi_attentions found = {.at = epi_arena_alloc(arena, (4 * (size_t)products + 1) * sizeof *found.at)};
    *out = (epi_attentions){.at = epi_arena_alloc(arena, ((size_t)products + 1) * sizeof *out->at)};
    if (!found.at || !out->at || !make_finder(arena, g, &f))
        return false;
    for (int i = 0; i < 4 * g->node_count; i++) {
        int node = i / 4;
        bool may = g->live[node] && g->nodes[node].op == EPI_OP_MATMUL &&
                   !(without && without[node] & EPI_REFUSED_ATTENTION);
        epi_attention *a = &found.at[found.count];
        if (!may || !find(&f, node, i / 2 % 2, i % 2 == 0, a) || (a->shared && a->sign == EPI_SIGN_SOFTMAX) ||
            (limits && !is_allowed(limits, g, a, sizes)))
            continue;
        if (!epi_list_copy(arena, f.list.at, f.list.count, &a->inner))
            return false;
        found.count++;
    }
    keep_surest(&found, out);
    return true;
}

bool epi_attentions_mark_operands(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                                  bool *operands) {
    epi_attentions found = {0};
    if (limits->attention_most && !epi_attentions_find(arena, spec, limits, NULL, &found))
        return false;
    for (int i = 0; i < found.count; i++) {
        int of[EPI_ATTENTION_OPERANDS], count = epi_attention_operands(&found.at[i], of);
        while (count--)
            operands[of[count]] = true;
    }
    return true;
}

/* ---- several value products in one kernel ---- */

bool epi_attention_is_value(const epi_attention *a, int node) {
    for (int v = 0; v < a->sum_count; v++)
        if (a->sums[v].product == node)
            return true;
    return false;
}

/* Takes in the scores of the second; false: both have more than two. */
static bool join_scores(const epi_graph *g, epi_attention *a, const epi_attention *b) {
    for (int i = 0; i < b->score_count; i++) {
        bool there = false;
        for (int k = 0; k < a->score_count; k++)
            there |= a->scores[k] == b->scores[i];
        if (!there && a->score_count == 2)
            return false;
        if (!there)
            a->scores[a->score_count++] = b->scores[i];
    }
    list_terms(g, a);
    return true;
}

bool epi_is_made_of(const epi_graph *g, int node, int of, int *made) {
    if (node < of)
        return false;
    made[of] = 1;
    for (int i = of + 1; i <= node; i++) {
        made[i] = 0;
        for (int k = 0; k < epi_node_operands(&g->nodes[i]); k++)
            made[i] |= g->nodes[i].arg[k] >= of && made[g->nodes[i].arg[k]];
    }
    return made[node];
}

/* Of one kernel all value products are complete at its end, so none of them can be what another is made of. */
static bool wait_for_each_other(const epi_graph *g, const epi_attention *a, int product, int *scratch) {
    for (int v = 0; v < a->sum_count; v++)
        if (epi_is_made_of(g, a->sums[v].product, product, scratch) ||
            epi_is_made_of(g, product, a->sums[v].product, scratch))
            return true;
    return false;
}

static epi_axes batches_of(const epi_attention *a) {
    epi_axes batch = a->rows;
    batch.count = a->batch_axes;
    return batch;
}

/* Lists the elements of both. */
static bool join_inner(epi_arena *arena, finder *f, epi_attention *a, const epi_attention *b) {
    forget(f, 0);
    for (int i = 0; i < a->inner.count + b->inner.count; i++)
        note(f, i < a->inner.count ? a->inner.at[i] : b->inner.at[i - a->inner.count]);
    epi_list_sort(&f->list);
    return epi_list_copy(arena, f->list.at, f->list.count, &a->inner);
}

/* Can the second, of one value product, be made in the kernel of the first, as one over its stream or its
 * rows? Then the first takes it in. */
static bool join(const epi_graph *g, epi_attention *a, const epi_attention *b, epi_over over, int *scratch) {
    epi_axes batch[2] = {batches_of(a), batches_of(b)};
    epi_axes rows = epi_axes_without(&a->rows, &batch[0]), others = epi_axes_without(&b->rows, &batch[1]);
    bool turned = over == EPI_OVER_ROWS;
    epi_attention both = *a;
    if (a->sum_count > 1 + turned || epi_attention_has_row_sum(a) || b->sum_count != 1 ||
        a->row_max != EPI_NO_NODE || b->row_max != EPI_NO_NODE || !epi_axes_same_set(&batch[0], &batch[1]) ||
        !epi_axes_same_set(turned ? &rows : &a->stream, &b->stream) ||
        !epi_axes_same_set(turned ? &a->stream : &rows, &others) || !join_scores(g, &both, b) ||
        wait_for_each_other(g, a, b->sums[0].product, scratch))
        return false;
    *a = both;
    a->sums[a->sum_count] = b->sums[0];
    a->sums[a->sum_count++].over = over;
    return true;
}

/* Is it the maximum or the sum of an online softmax, which another attention makes? */
static bool is_statistic(const epi_attentions *all, int node) {
    for (int k = 0; k < all->count; k++)
        if (all->at[k].row_max == node || all->at[k].denominator == node)
            return true;
    return false;
}

/* Does something that it makes sum along its stream, beside its products? */
static bool has_sums(const epi_graph *g, const epi_attentions *all, const epi_attention *a) {
    for (int i = 0; i < a->inner.count; i++) {
        epi_use_list uses = epi_graph_uses(g, a->inner.at[i]);
        for (int u = 0; u < uses.count; u++) {
            int user = uses.at[u].node;
            if (epi_attention_reduces(g, a, user) && !is_statistic(all, user))
                return true;
        }
    }
    return false;
}

/* Marks the sums along their streams that attentions have elements of. */
static void mark_sums(const epi_graph *g, const epi_attentions *all, bool *claimed) {
    for (int k = 0; k < all->count; k++)
        for (int i = 0; i < all->at[k].inner.count && all->at[k].sum_count; i++) {
            epi_use_list uses = epi_graph_uses(g, all->at[k].inner.at[i]);
            for (int u = 0; u < uses.count; u++)
                if (epi_attention_reduces(g, &all->at[k], uses.at[u].node))
                    claimed[uses.at[u].node] = true;
        }
}

/* Sums that are of more scores than one value product's belong to who has them all together, or else to the first
 * that walks over their stream, which makes them, too. */
static bool take_sums(epi_arena *arena, finder *f, epi_attentions *all) {
    bool *claimed = epi_arena_alloc(arena, (size_t)f->g->node_count + 1);
    for (int second = 0; second < 2 && claimed; second++)
        for (int k = 0; k < all->count; k++) {
            epi_attention *a = &all->at[k];
            if (!a->sum_count || a->row_max != EPI_NO_NODE)
                continue;
            mark_sums(f->g, all, claimed);
            forget(f, 0);
            for (int i = 0; i < a->inner.count; i++)
                note(f, a->inner.at[i]);
            trace_sums(f, a, second ? claimed : NULL);
            keep_dependents(f, a);
            if (f->list.count > a->inner.count && !epi_list_copy(arena, f->list.at, f->list.count, &a->inner))
                return false;
        }
    return claimed != NULL;
}

static bool join_over(epi_arena *arena, finder *f, const bool *forward, epi_over over, epi_attentions *all) {
    for (int i = 0; i < all->count; i++)
        for (int k = 0; k < all->count; k++) {
            epi_attention *a = &all->at[i], *b = &all->at[k];
            if (i == k || !a->sum_count || !b->sum_count ||
                (forward && forward[a->sums[0].product] != forward[b->sums[0].product]) ||
                (over == EPI_OVER_ROWS && has_sums(f->g, all, b)) || !join(f->g, a, b, over, f->scratch))
                continue;
            b->sum_count = 0;
            if (!join_inner(arena, f, a, b))
                return false;
        }
    return true;
}

bool epi_attentions_join(epi_arena *arena, const epi_graph *g, const bool *forward, bool over_rows,
                         epi_attentions *all) {
    finder f;
    if (!make_finder(arena, g, &f) || !join_over(arena, &f, forward, EPI_OVER_STREAM, all) ||
        !take_sums(arena, &f, all) || (over_rows && !join_over(arena, &f, forward, EPI_OVER_ROWS, all)))
        return false;
    int count = 0;
    for (int i = 0; i < all->count; i++)
        if (all->at[i].sum_count)
            all->at[count++] = all->at[i];
    all->count = count;
    return true;
}
