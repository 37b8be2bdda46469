/* attention_form.c: rewrites softmax in the form that the attention mainloop needs.
 *
 * A value product sums a weight w*x over the stream. If w is an exponential of scores minus their maximum or
 * their log-sum-exp, times factors that are constant along a row, these factors move out of the sum:
 *
 *     sum(exp(s - shift)/z*x, R)  ->  sum(exp(s - shift)*x, R)/z
 *     sum(exp(s - l)*x, R)        ->  sum(exp(s - shift)*x, R)/sum(exp(s - shift), R)
 *     sum(exp(s - a)*x, R)        ->  sum(exp(s - shift)*x, R)*exp(shift - a)
 *     sum(w*m*x, R)               ->  the same with m beside the exponential
 *     sum(where(m, w, 0)*x, R)    ->  the same with where(m, 1, 0) beside it
 *     logsumexp(s, R)             ->  shift + log(sum(exp(s - shift), R))
 *
 * with row_max = max(s, R), shift = where(row_max == -inf, 0, row_max) and l = logsumexp(s, R). a is
 * computed from row_max or from l. m contains no scores, as dropout's mask contains none. The result of a
 * row of -inf alone does not change.
 *
 * Other sums are computed over the stream first, which leaves one number per row:
 *
 *     sum(x, B, S, R)             ->  sum(sum(x, R), B, S)
 *     sum(sum(x, B)*w, S, R)      ->  sum(sum(x*w, R), B, S)
 *     sum(w*y, S, H)              ->  sum(sum(w*y, S), H)
 *
 * In the first two, x is an element from which gradients are computed. In the last one, sum(w*z, S) is a
 * value product of the same weights and this sum is none: keys that all heads share, next to others. */
#include "pass/rewrite/attention_form.h"

#include "pass/analyse/monomial.h"

enum { MOST = 8, DEEP = 8 }; /* factors and differences of a weight; steps from a difference to a maximum */

/* What a weight is: exp(score - row - ...) * factor * ... * kept * ... */
typedef struct weight {
    int score;
    int kept[MOST], kept_count; /* elements that are no scores, and stay in the sum; */
    bool chosen[MOST];          /* of where(m, w, 0) the condition */
    int rows[MOST], row_count;
    int factors[MOST], factor_count;
    bool divides[MOST];
    int shift; /* which of the rows is the maximum, or -1 */
    int side;  /* which operand of the product it is */
    bool found;
} weight;

/* What becomes of a node. */
typedef struct formed {
    weight weight;    /* of a value product that is to be brought into the form */
    int product;      /* a value product that has it for its score, or EPI_NO_NODE */
    int first;        /* a sum that takes this value product's stream first, or EPI_NO_NODE; */
    signed char side; /* and which factor of what it sums is a sum itself, or -1 */
    epi_axes outer;   /* of a product the axes that are summed over behind the others */
    bool is_value;    /* it is a value product */
} formed;

typedef struct former {
    const epi_graph *in;
    epi_graph *g;
    const int *value; /* by node of the graph that comes in: what it is now */
    formed *of;       /* by node */
} former;

static bool is_row(const epi_graph *g, int node, const epi_axes *stream) {
    return epi_axes_count_in(&g->nodes[node].axes, stream) == 0;
}

static bool reduces(const epi_graph *g, int node, int score, const epi_axes *stream) {
    return g->nodes[node].arg[0] == score && epi_axes_same_set(&g->nodes[node].over, stream);
}

/* Is it the maximum of the score, guarded or not? */
static bool is_top(const epi_graph *g, int node, int score, const epi_axes *stream) {
    int top = epi_attention_row_max(g, node);
    return top != EPI_NO_NODE && reduces(g, top, score, stream);
}

static bool is_logsumexp(const epi_graph *g, int node, int score, const epi_axes *stream) {
    return g->nodes[node].op == EPI_OP_LOGSUMEXP && reduces(g, node, score, stream);
}

/* Is a value of rows made of the score's maximum, or of its log-sum-exp? */
static bool knows_row(const epi_graph *g, int node, int score, const epi_axes *stream, int depth) {
    const epi_node *n = &g->nodes[node];
    if (is_top(g, node, score, stream) || is_logsumexp(g, node, score, stream))
        return true;
    if (!epi_op_is_map(n->op) || depth == DEEP)
        return false;
    for (int a = 0; a < epi_ops[n->op].arity; a++)
        if (knows_row(g, n->arg[a], score, stream, depth + 1))
            return true;
    return false;
}

/* A factor of a weight that is an element, too, but has no scores in it, or has at least some of the stream:
 * returns what is left of the weight, or EPI_NO_NODE. */
static int take_kept(const epi_graph *g, int node, const epi_axes *stream, const bool *inner, weight *w) {
    const epi_node *n = &g->nodes[node];
    int kept, rest = n->op == EPI_OP_DIV ? -1 : epi_attention_factor(g, node, inner, &kept);
    if (rest < 0 || w->kept_count == MOST || is_row(g, kept, stream) ||
        (!epi_op_is_map(g->nodes[kept].op) && epi_axes_same_set(&g->nodes[kept].axes, &n->axes)))
        return EPI_NO_NODE;
    w->chosen[w->kept_count] = n->op == EPI_OP_WHERE;
    w->kept[w->kept_count++] = kept;
    return n->arg[rest];
}

/* Takes factors and differences that are one per row off a weight, and finds those that stay in its sum;
 * `inner` marks what scores are in, NULL: none stays. */
static bool split_weight(const epi_graph *g, int node, const epi_axes *stream, const bool *inner, weight *w) {
    *w = (weight){.shift = -1};
    while (w->factor_count < MOST) {
        const epi_node *n = &g->nodes[node];
        int rest = inner ? take_kept(g, node, stream, inner, w) : EPI_NO_NODE;
        if (rest != EPI_NO_NODE) {
            node = rest;
            continue;
        }
        bool second = (n->op == EPI_OP_DIV || n->op == EPI_OP_MUL) && is_row(g, n->arg[1], stream),
             first = n->op == EPI_OP_MUL && is_row(g, n->arg[0], stream);
        if (first == second)
            break;
        w->factors[w->factor_count] = n->arg[second];
        w->divides[w->factor_count++] = n->op == EPI_OP_DIV;
        node = n->arg[!second];
    }
    if (g->nodes[node].op != EPI_OP_EXP)
        return false;
    node = g->nodes[node].arg[0];
    for (; w->row_count < MOST; w->row_count++) {
        const epi_node *n = &g->nodes[node];
        if (n->op != EPI_OP_SUB || !is_row(g, n->arg[1], stream))
            break;
        w->rows[w->row_count] = n->arg[1];
        node = n->arg[0];
    }
    w->score = node;
    for (int i = 0; i < w->row_count; i++) {
        bool top = is_top(g, w->rows[i], node, stream);
        w->shift = top ? i : w->shift;
        w->found |= knows_row(g, w->rows[i], node, stream, 0);
    }
    return w->found;
}

/* Is the value an element of the score tile, or made of one by a few maps? */
static bool is_near_scores(const epi_graph *g, int node, const epi_axes *full, const bool *inner, int depth) {
    enum { NEAR = 3 };
    const epi_node *n = &g->nodes[node];
    bool near = inner[node];
    for (int a = 0; a < 3 && epi_op_is_map(n->op) && depth < NEAR; a++)
        near = near || (n->arg[a] != EPI_NO_NODE && is_near_scores(g, n->arg[a], full, inner, depth + 1));
    return near && epi_axes_same_set(&n->axes, full);
}

/* sum(sum(x, Y)*w, X) with an element x: which operand of the product is the sum; or -1. */
static int inner_sum(const epi_graph *g, int node, const epi_axes *full, const bool *inner) {
    const epi_node *n = &g->nodes[g->nodes[node].arg[0]];
    for (int a = 0; a < 2 && n->op == EPI_OP_MUL; a++) {
        const epi_node *sum = &g->nodes[n->arg[a]];
        if (sum->op == EPI_OP_SUM && epi_graph_uses(g, n->arg[a]).count == 1 &&
            is_near_scores(g, sum->arg[0], full, inner, 0))
            return a;
    }
    return -1;
}

/* The axes that a sum takes, with those of a sum inside. */
static epi_axes all_summed(const epi_graph *g, int node, int side) {
    epi_axes all = g->nodes[node].over;
    const epi_axes *more =
        side < 0 ? &(epi_axes){0} : &g->nodes[g->nodes[g->nodes[node].arg[0]].arg[side]].over;
    for (int i = 0; i < more->count && all.count < EPI_MAX_AXES; i++)
        all.at[all.count++] = more->at[i];
    return all;
}

/* ---- the graph again ---- */

static int exp_of(former *f, int value, int less) {
    return epi_graph_map1(f->g, EPI_OP_EXP, epi_graph_map2(f->g, EPI_OP_SUB, value, less));
}

/* The exponential times all that stays beside it. */
static int keep_some(former *f, const weight *w, int e) {
    int all = EPI_NO_NODE;
    for (int i = 0; i < w->kept_count && !epi_graph_failed(f->g); i++) {
        int one = f->value[w->kept[i]];
        if (w->chosen[i])
            one =
                epi_graph_fixed(f->g, EPI_OP_WHERE, one, epi_graph_const(f->g, 1), epi_graph_const(f->g, 0));
        all = all == EPI_NO_NODE ? one : epi_graph_map2(f->g, EPI_OP_MUL, all, one);
    }
    return all == EPI_NO_NODE ? e : epi_graph_map2(f->g, EPI_OP_MUL, e, all);
}

/* The product, or the sum, of the exponential alone, then what was taken off its weight. */
static int make_product(former *f, int node) {
    const epi_node *n = &f->in->nodes[node];
    const weight *w = &f->of[node].weight;
    int score = f->value[w->score];
    int shift = w->shift >= 0 ? f->value[w->rows[w->shift]] : epi_graph_shift(f->g, score, &n->over);
    int e = exp_of(f, score, shift);
    int arg[3] = {EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE};
    if (epi_graph_failed(f->g))
        return EPI_NO_NODE;
    epi_node bare = *n;
    bare.name = NULL;
    for (int a = 0; a < 2 && n->op == EPI_OP_MATMUL; a++)
        arg[a] = f->value[n->arg[a]];
    arg[w->side] = keep_some(f, w, e);
    int value = epi_graph_value(f->g, epi_graph_rebuild(f->g, &bare, arg));
    bool shifted = w->shift >= 0; /* has what was added to the exponent been taken off again? */
    for (int i = 0; i < w->row_count && !epi_graph_failed(f->g); i++) {
        const epi_node *row = &f->in->nodes[w->rows[i]];
        int off = f->value[w->rows[i]];
        if (i == w->shift)
            continue;
        if (!shifted && is_logsumexp(f->in, w->rows[i], w->score, &n->over)) {
            value = epi_graph_map2(f->g, EPI_OP_DIV, value, epi_graph_reduce(f->g, EPI_OP_SUM, e, &n->over));
            shifted = true;
        } else if (!shifted && knows_row(f->in, w->rows[i], w->score, &n->over, 0)) {
            value = epi_graph_map2(f->g, EPI_OP_MUL, value, exp_of(f, shift, off));
            shifted = true;
        } else if (row->op == EPI_OP_LOG) {
            value = epi_graph_map2(f->g, EPI_OP_DIV, value, f->value[row->arg[0]]);
        } else {
            value = epi_graph_map2(f->g, EPI_OP_MUL, value,
                                   epi_graph_map1(f->g, EPI_OP_EXP, epi_graph_map1(f->g, EPI_OP_NEG, off)));
        }
    }
    for (int i = w->factor_count - 1; i >= 0; i--)
        value = epi_graph_map2(f->g, w->divides[i] ? EPI_OP_DIV : EPI_OP_MUL, value, f->value[w->factors[i]]);
    return epi_graph_stand_for(f->g, value, n);
}

static int make_logsumexp(former *f, const epi_node *n) {
    int score = f->value[n->arg[0]], shift = epi_graph_shift(f->g, score, &n->over);
    int e = exp_of(f, score, shift);
    int value =
        epi_graph_map2(f->g, EPI_OP_ADD, shift,
                       epi_graph_map1(f->g, EPI_OP_LOG, epi_graph_reduce(f->g, EPI_OP_SUM, e, &n->over)));
    return epi_graph_stand_for(f->g, value, n);
}

/* A sum over more than the stream: over that first. */
static int make_sums(former *f, int node) {
    const epi_node *n = &f->in->nodes[node];
    const epi_axes *stream = &f->in->nodes[f->of[node].first].over;
    int side = f->of[node].side, value = f->value[n->arg[0]];
    epi_axes all = all_summed(f->in, node, side), rest = epi_axes_without(&all, stream);
    if (side >= 0) {
        const epi_node *times = &f->in->nodes[n->arg[0]];
        value = epi_graph_map2(f->g, EPI_OP_MUL, f->value[f->in->nodes[times->arg[side]].arg[0]],
                               f->value[times->arg[!side]]);
    }
    value = epi_graph_reduce(f->g, EPI_OP_SUM, value, stream);
    value = epi_graph_reduce(f->g, EPI_OP_SUM, value, &rest);
    return epi_graph_stand_for(f->g, value, n);
}

/* A product that has some of its axes summed over behind it. */
static int make_outer(former *f, int node) {
    const epi_node *n = &f->in->nodes[node];
    epi_axes first = epi_axes_without(&n->over, &f->of[node].outer);
    int value = epi_graph_contract(f->g, f->value[n->arg[0]], f->value[n->arg[1]], &first);
    return epi_graph_stand_for(f->g, epi_graph_reduce(f->g, EPI_OP_SUM, value, &f->of[node].outer), n);
}

static int write_node(epi_rewrite *r, int node) {
    former *f = r->ctx;
    const epi_node *n = &f->in->nodes[node];
    int of = epi_op_reduces(n->op) ? f->of[n->arg[0]].product : EPI_NO_NODE;
    f->g = r->g;
    f->value = r->fresh;
    if (f->of[node].weight.found)
        return make_product(f, node);
    if (n->op == EPI_OP_LOGSUMEXP && of != EPI_NO_NODE && epi_axes_same_set(&n->over, &f->in->nodes[of].over))
        return make_logsumexp(f, n);
    if (f->of[node].outer.count)
        return make_outer(f, node);
    if (f->of[node].first != EPI_NO_NODE)
        return make_sums(f, node);
    int top = epi_attention_row_max(f->in, node), score = top == EPI_NO_NODE ? top : f->in->nodes[top].arg[0];
    if (top != EPI_NO_NODE && top != node && f->of[score].product != EPI_NO_NODE) /* one, whoever wrote it */
        return epi_graph_shift(f->g, f->value[score], &f->in->nodes[top].over);
    return EPI_NO_NODE;
}

/* ---- the whole ---- */

/* Finds sums of elements like the weight over more than the product's stream. */
static bool find_sums(former *f, int product, int weight, const bool *inner) {
    const epi_graph *g = f->in;
    const epi_axes *stream = &g->nodes[product].over, *full = &g->nodes[weight].axes;
    bool any = false;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        if (!g->live[i] || n->op != EPI_OP_SUM || f->of[i].first != EPI_NO_NODE)
            continue;
        int side = inner_sum(g, i, full, inner);
        epi_axes all = all_summed(g, i, side);
        if ((side < 0 && !is_near_scores(g, n->arg[0], full, inner, 0)) || all.count <= stream->count ||
            !epi_axes_include(&all, stream))
            continue;
        f->of[i].first = product;
        f->of[i].side = (signed char)side;
        any = true;
    }
    return any;
}

/* Finds products of the value product's weight over more than its stream. */
static void find_outer(former *f, int product, const epi_attention *a) {
    const epi_graph *g = f->in;
    epi_use_list uses = epi_graph_uses(g, a->sums[0].weight);
    f->of[product].is_value = true;
    for (int u = 0; u < uses.count; u++) {
        const epi_node *n = uses.at[u].node == EPI_NO_NODE ? NULL : &g->nodes[uses.at[u].node];
        if (n && n->op == EPI_OP_MATMUL && n->over.count > a->stream.count &&
            epi_axes_include(&n->over, &a->stream))
            f->of[uses.at[u].node].outer = epi_axes_without(&n->over, &a->stream);
    }
}

/* Finds the value products that are to be changed. */
static bool find_weights(former *f, const epi_spec *spec, const epi_attentions *found, bool *inner) {
    const epi_graph *g = f->in;
    bool any = false;
    for (int i = 0; i < g->node_count; i++)
        f->of[i].product = f->of[i].first = EPI_NO_NODE;
    for (int k = 0; k < found->count; k++) {
        const epi_attention *a = &found->at[k];
        int product = a->sums[0].product, of = a->sums[0].weight;
        weight *w = &f->of[product].weight;
        if (!epi_axes_size(&a->stream, spec->sizes))
            continue; /* of no keys at all a sum is 0, whatever it is divided by afterwards */
        for (int i = 0; i < a->inner.count; i++)
            inner[a->inner.at[i]] = true;
        find_outer(f, product, a);
        w->found = split_weight(g, of, &a->stream, inner, w) && inner[w->score];
        if (w->found) {
            w->side = g->nodes[product].arg[1] == of;
            f->of[w->score].product = product;
        }
        any |= w->found || (a->row_max == EPI_NO_NODE && find_sums(f, product, of, inner));
        for (int i = 0; i < a->inner.count; i++)
            inner[a->inner.at[i]] = false;
    }
    for (int i = 0; i < g->node_count; i++) {
        if (f->of[i].is_value)
            f->of[i].outer.count = 0;
        any |= f->of[i].outer.count > 0;
    }
    for (int i = 0; i < g->node_count && any; i++) { /* the sums beside them */
        const epi_node *n = &g->nodes[i];
        weight *w = &f->of[i].weight;
        if (!g->live[i] || n->op != EPI_OP_SUM)
            continue;
        w->found = split_weight(g, n->arg[0], &n->over, NULL, w) && f->of[w->score].product != EPI_NO_NODE &&
                   epi_axes_same_set(&g->nodes[f->of[w->score].product].over, &n->over);
    }
    return any;
}

epi_status epi_attention_rewrite(epi_arena *arena, epi_spec *spec, epi_rewrite_rule *rule, void *ctx,
                                 epi_error *err) {
    const epi_graph *graph = spec->graph;
    epi_error why = {0};
    epi_status status = epi_graph_rewrite(arena, &graph, rule, ctx, &why);
    if (status == EPI_OK)
        spec->graph = graph;
    else if (status != EPI_ERR_CHECK && err)
        *err = why;
    return status == EPI_ERR_CHECK ? EPI_OK : status;
}

epi_status epi_attention_form(epi_arena *arena, epi_spec *spec, const epi_backend_limits *limits,
                              epi_error *err) {
    epi_attentions found;
    if (!limits->attention_most)
        return EPI_OK;
    EPI_TRY(epi_attention_apart(arena, spec, limits, err));
    const epi_graph *in = spec->graph;
    EPI_TRY(epi_has_memory(epi_attentions_find(arena, spec, limits, NULL, &found), err));
    EPI_TRY(epi_attention_scales(arena, spec, limits, &found, err));
    if (spec->graph != in)
        EPI_TRY(epi_has_memory(epi_attentions_find(arena, spec, limits, NULL, &found), err));
    in = spec->graph;
    EPI_TRY(epi_attention_quotients(arena, spec, &found, err));
    if (spec->graph != in)
        EPI_TRY(epi_has_memory(epi_attentions_find(arena, spec, limits, NULL, &found), err));
    in = spec->graph;
    EPI_TRY(epi_attention_deltas(arena, spec, &found, err));
    if (spec->graph != in)
        EPI_TRY(epi_has_memory(epi_attentions_find(arena, spec, limits, NULL, &found), err));
    size_t nodes = (size_t)spec->graph->node_count + 1;
    former f = {.in = spec->graph, .of = epi_arena_alloc(arena, nodes * sizeof *f.of)};
    bool *inner = epi_arena_alloc(arena, nodes);
    EPI_TRY(epi_has_memory(f.of && inner, err));
    return find_weights(&f, spec, &found, inner) ? epi_attention_rewrite(arena, spec, write_node, &f, err)
                                                 : EPI_OK;
}
