/* attention_scales.c: scales of keys go to the scores, and scales of values to the weights.
 *
 * Attention reads keys and values from memory, and its mainloops convert 8-bit elements as they load them. A
 * key or value times its scale is a computed value, which would have to be stored first. Here k and v are
 * inputs, or are stored in 8 bits; s has no features, c has no keys:
 *
 *     sum(q*(k*s), E)      ->  sum(q*k, E)*s
 *     sum(q*(k*c), E)      ->  sum((q*c)*k, E)
 *     sum(q*(k - z)*s, E)  ->  (sum(q*k, E) - sum(q, E)*z)*s        z has no features either
 *     sum(w*(v*s), R)      ->  sum((w*s)*v, R)
 *     sum(w*(v*c), R)      ->  sum(w*v, R)*c
 *
 * Weights that are rounded to f16 take no scale: tiny numbers would be lost. A scale that has both, features
 * and keys, stays where it is, too. */
#include "pass/analyse/dequant.h"
#include "pass/rewrite/attention_form.h"
#include "pass/rewrite/widen.h"

enum { MOST = 6 };

/* An operand as a value in memory times factors, the outermost first; `zero` was subtracted from it before that. */
typedef struct scaled {
    int rest, zero;
    int factors[MOST], count;
    bool divides[MOST];
} scaled;

/* What becomes of a product: which operand is taken apart. */
typedef struct rescaled {
    bool taken;
    signed char side;
    scaled of;
} rescaled;

typedef struct rescaling {
    const epi_spec *spec;
    bool rounds;  /* weights are rounded to f16 */
    rescaled *of; /* by node */
} rescaling;

static bool is_short(const epi_graph *g, const epi_node *n, int whole, int part) {
    return epi_axes_same_set(&g->nodes[whole].axes, &n->axes) && g->nodes[part].axes.count < n->axes.count;
}

/* Takes one factor off a value; false: it has none. */
static bool take_factor(const epi_graph *g, scaled *s) {
    const epi_node *n = &g->nodes[s->rest];
    bool divides = n->op == EPI_OP_DIV && !n->exact;
    if (s->count == MOST || (n->op != EPI_OP_MUL && !divides))
        return false;
    bool second = !is_short(g, n, n->arg[0], n->arg[1]);
    if (second && (divides || !is_short(g, n, n->arg[1], n->arg[0])))
        return false;
    s->divides[s->count] = divides;
    s->factors[s->count++] = n->arg[!second];
    s->rest = n->arg[second];
    return true;
}

/* Numbers of 8 bits are numbers of every wider type: whatever these are converted to, they stay what they are. */
static bool take_conversion(const epi_spec *spec, scaled *s) {
    const epi_node *n = &spec->graph->nodes[s->rest];
    bool wider = n->op == EPI_OP_F32 || n->op == EPI_OP_BF16 || n->op == EPI_OP_F16;
    if (!wider || !epi_is_widened(spec, n->arg[0]))
        return false;
    s->rest = n->arg[0];
    return true;
}

/* Is it in memory as it is? */
static bool lies(const epi_spec *spec, int node) {
    return epi_is_widened(spec, node) ||
           spec->graph->nodes[epi_elements_source(spec->graph, node)].op == EPI_OP_INPUT;
}

/* Takes an operand apart; false: there is nothing to take, or some of it must stay. */
static bool take_apart(const epi_spec *spec, int operand, const epi_axes *features, const epi_axes *stream,
                       bool zeros, scaled *s) {
    const epi_graph *g = spec->graph;
    *s = (scaled){.rest = operand, .zero = EPI_NO_NODE};
    while (take_factor(g, s))
        ;
    const epi_node *n = &g->nodes[s->rest];
    if (zeros && n->op == EPI_OP_SUB && is_short(g, n, n->arg[0], n->arg[1]) &&
        !epi_axes_count_in(&g->nodes[n->arg[1]].axes, features)) {
        s->zero = n->arg[1];
        s->rest = n->arg[0];
    }
    take_conversion(spec, s);
    bool taken = (s->count || s->zero != EPI_NO_NODE) && lies(spec, s->rest);
    for (int i = 0; i < s->count; i++) {
        const epi_axes *axes = &g->nodes[s->factors[i]].axes;
        bool of_feature = epi_axes_count_in(axes, features) > 0, of_key = epi_axes_count_in(axes, stream) > 0;
        taken &= !of_feature || !of_key;
        taken &= !of_feature || s->zero == EPI_NO_NODE; /* it would be in the sum of queries, too */
    }
    return taken;
}

/* ---- the graph again ---- */

static int times(epi_rewrite *r, int value, const scaled *s, int i) {
    return epi_graph_map2(r->g, s->divides[i] ? EPI_OP_DIV : EPI_OP_MUL, value, r->fresh[s->factors[i]]);
}

static int write_node(epi_rewrite *r, int node) {
    const rescaling *w = r->ctx;
    const rescaled *p = &w->of[node];
    const epi_node *n = &r->in->nodes[node];
    if (!p->taken)
        return EPI_NO_NODE;
    const scaled *s = &p->of;
    const int others = n->arg[!p->side];
    int other = r->fresh[others], arg[2];
    bool before[MOST];
    for (int i = 0; i < s->count && !epi_graph_failed(r->g); i++) {
        const epi_axes *axes = &r->in->nodes[s->factors[i]].axes;
        before[i] = epi_axes_count_in(axes, &n->over) > 0;
        if (before[i])
            other = times(r, other, s, i);
    }
    if (epi_graph_failed(r->g))
        return EPI_NO_NODE;
    arg[p->side] = r->fresh[s->rest];
    arg[!p->side] = other;
    int value = epi_graph_contract(r->g, arg[0], arg[1], &n->over);
    if (s->zero != EPI_NO_NODE && !epi_graph_failed(r->g)) {
        int all = epi_graph_reduce(r->g, EPI_OP_SUM, r->fresh[others], &n->over);
        value =
            epi_graph_map2(r->g, EPI_OP_SUB, value, epi_graph_map2(r->g, EPI_OP_MUL, all, r->fresh[s->zero]));
    }
    for (int i = s->count - 1; i >= 0 && !epi_graph_failed(r->g); i--)
        if (!before[i])
            value = times(r, value, s, i);
    return epi_graph_failed(r->g) ? EPI_NO_NODE : epi_graph_stand_for(r->g, value, n);
}

/* ---- the whole ---- */

static void find_product(rescaling *w, int product, int operand, const epi_attention *a, bool is_value) {
    const epi_graph *g = w->spec->graph;
    const epi_node *n = &g->nodes[product];
    rescaled *p = &w->of[product];
    epi_axes features = is_value ? epi_axes_without(&g->nodes[operand].axes, &a->rows) : n->over;
    if (is_value)
        features = epi_axes_without(&features, &a->stream);
    p->side = n->arg[1] == operand;
    p->taken = take_apart(w->spec, operand, &features, &a->stream, !is_value, &p->of);
    for (int i = 0; i < p->of.count && is_value && w->rounds; i++)
        p->taken &= !epi_axes_count_in(&g->nodes[p->of.factors[i]].axes, &a->stream);
}

epi_status epi_attention_scales(epi_arena *arena, epi_spec *spec, const epi_backend_limits *limits,
                                const epi_attentions *found, epi_error *err) {
    size_t nodes = (size_t)spec->graph->node_count + 1;
    epi_spec before = *spec;
    rescaling w = {&before, limits->rounds_weights && spec->type == EPI_F16,
                   epi_arena_alloc(arena, nodes * sizeof *w.of)};
    bool any = false;
    EPI_TRY(epi_has_memory(w.of, err));
    for (int i = 0; i < found->count; i++) {
        const epi_attention *a = &found->at[i];
        for (int t = 0; t < a->term_count && a->sign == EPI_SIGN_SOFTMAX; t++)
            find_product(&w, a->terms[t].product, a->terms[t].stream, a, false);
        for (int v = 0; v < a->sum_count && a->sign == EPI_SIGN_SOFTMAX; v++)
            find_product(&w, a->sums[v].product, a->sums[v].operand, a, true);
    }
    for (int i = 0; i < spec->graph->node_count; i++)
        any |= w.of[i].taken;
    return any ? epi_attention_rewrite(arena, spec, write_node, &w, err) : EPI_OK;
}
