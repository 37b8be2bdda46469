/* cut_attention.c: which values of a program become attention parts.
 *
 * Every product whose weight is made of scores is a candidate (attention.c). Its elements are never in
 * memory, so whoever needs one must be an attention part too, which makes it again: candidates for which that
 * does not hold are dropped until all that are left agree. A reduction of elements over the stream belongs to
 * one of them: to the one whose online softmax it is, or to the first that walks over that stream. */
#include <string.h>

#include "pass/place/placer.h"

bool epi_attention_allowed(const epi_backend_limits *limits, const epi_graph *g, const epi_attention *a,
                           const int64_t *sizes) {
    bool allowed = limits->attention_most > 0 && (!epi_attention_crosses(a) || limits->row_sums);
    epi_attention_term terms[EPI_ATTENTION_TERMS];
    int count = epi_attention_terms(g, a, terms);
    for (int i = 0; i < count + a->sum_count && allowed; i++) {
        const epi_axes *features = i < count ? &g->nodes[terms[i].product].over : &a->sums[i - count].cols;
        int64_t size = epi_axes_size(features, sizes);
        allowed = size > 0 && size <= limits->attention_most && size % limits->attention_multiple == 0;
    }
    return allowed;
}

bool epi_attention_possible(const epi_backend_limits *limits, const epi_graph *g, int node,
                            const int64_t *sizes) {
    const epi_node *n = &g->nodes[node];
    for (int side = 0; side < 2 && g->live[node] && n->op == EPI_OP_MATMUL; side++) {
        const epi_node *weight = &g->nodes[n->arg[side]];
        epi_axes cols = epi_axes_without(&g->nodes[n->arg[!side]].axes, &weight->axes);
        if (epi_ops[weight->op].cls == EPI_CLASS_MAP && epi_axes_size(&cols, sizes) <= limits->attention_most)
            return true;
    }
    return false;
}

static bool copy_list(epi_arena *arena, const int *from, int count, epi_node_list *to) {
    to->at = epi_arena_alloc(arena, ((size_t)count + 1) * sizeof *to->at);
    if (!to->at)
        return false;
    if (count)
        memcpy(to->at, from, (size_t)count * sizeof *to->at);
    to->count = count;
    return true;
}

/* ---- candidates ---- */

static bool add_candidate(epi_arena *arena, epi_placer *s, const epi_placer_attention *found,
                          const bool *inner) {
    epi_placer_attention *a = &s->attentions[s->attention_count];
    int count = 0;
    for (int i = 0; i < s->g->node_count; i++)
        if (inner[i])
            s->scratch[count++] = i;
    *a = *found;
    s->attention_count++;
    return copy_list(arena, s->scratch, count, &a->inner);
}

/* Adds elements to those of an attention. */
static bool add_inner(epi_arena *arena, epi_placer *s, epi_placer_attention *a, const int *more,
                      int more_count) {
    int count = a->inner.count;
    epi_visits *v = &s->visits;
    epi_visits_begin(v, a->inner.at[0]);
    for (int i = 1; i < count; i++)
        epi_visit(v, a->inner.at[i]);
    for (int i = 0; i < more_count; i++)
        epi_visit(v, more[i]);
    if (!copy_list(arena, v->todo, v->count, &a->inner))
        return false;
    epi_list_sort(&a->inner);
    return true;
}

/* Is it the maximum or the sum of an online softmax, which another attention makes? */
static bool is_statistic(const epi_placer *s, int node) {
    for (int k = 0; k < s->attention_count; k++)
        if (s->attentions[k].plan.row_max == node || s->attentions[k].plan.denominator == node)
            return true;
    return false;
}

/* Does something that it makes sum along its stream, beside its products? */
static bool has_sums(const epi_placer *s, const epi_placer_attention *a) {
    for (int i = 0; i < a->inner.count; i++) {
        epi_use_list uses = epi_graph_uses(s->g, a->inner.at[i]);
        for (int u = 0; u < uses.count; u++) {
            int user = uses.at[u].node;
            if (user != EPI_NO_NODE && epi_ops[s->g->nodes[user].op].cls == EPI_CLASS_REDUCE &&
                epi_axes_same_set(&s->g->nodes[user].over, &a->plan.stream) && !is_statistic(s, user))
                return true;
        }
    }
    return false;
}

/* Lets candidates take in others of their direction: the lists of both become one. */
static bool join_candidates(epi_arena *arena, epi_placer *s, epi_over over) {
    for (int i = 0; i < s->attention_count; i++)
        for (int k = 0; k < s->attention_count; k++) {
            epi_placer_attention *a = &s->attentions[i], *b = &s->attentions[k];
            if (i == k || a->dropped || b->dropped ||
                s->forward[a->plan.sums[0].product] != s->forward[b->plan.sums[0].product] ||
                (over == EPI_OVER_ROWS && has_sums(s, b)) ||
                !epi_attention_join(s->g, &a->plan, &b->plan, over, s->scratch))
                continue;
            b->dropped = true;
            if (!add_inner(arena, s, a, b->inner.at, b->inner.count))
                return false;
        }
    return true;
}

static bool find_candidates(epi_arena *arena, epi_placer *s) {
    const epi_graph *g = s->g;
    int products = 0;
    for (int i = 0; i < g->node_count; i++)
        products += g->live[i] && g->nodes[i].op == EPI_OP_MATMUL;
    s->attentions = epi_arena_alloc(arena, ((size_t)products + 1) * sizeof *s->attentions);
    bool *inner = epi_arena_alloc(arena, (size_t)g->node_count + 1);
    if (!s->attentions || !inner)
        return false;
    for (int i = 0; i < g->node_count; i++) {
        epi_placer_attention found = {0};
        if (s->without[i] & EPI_REFUSED_ATTENTION || !epi_attention_possible(s->limits, g, i, s->sizes) ||
            !epi_attention_find(g, i, &found.plan, inner, s->scratch) ||
            !epi_attention_allowed(s->limits, g, &found.plan, s->sizes))
            continue;
        if (!add_candidate(arena, s, &found, inner))
            return false;
    }
    return join_candidates(arena, s, EPI_OVER_STREAM) &&
           (!s->limits->row_sums || join_candidates(arena, s, EPI_OVER_ROWS));
}

/* ---- which of them agree ---- */

/* Marks what all attentions make on their score tiles, and whose each value product and reduction is. */
static void claim(epi_placer *s, bool *inner) {
    const epi_graph *g = s->g;
    memset(inner, 0, (size_t)g->node_count);
    memset(s->attention_of, 0, (size_t)g->node_count * sizeof *s->attention_of);
    for (int k = 0; k < s->attention_count; k++) {
        const epi_placer_attention *a = &s->attentions[k];
        if (a->dropped)
            continue;
        for (int i = 0; i < a->inner.count; i++)
            inner[a->inner.at[i]] = true;
        for (int v = 0; v < a->plan.sum_count; v++)
            s->attention_of[a->plan.sums[v].product] = k + 1;
        int own[] = {a->plan.row_max, a->plan.denominator};
        for (size_t i = 0; i < sizeof own / sizeof *own; i++)
            if (own[i] != EPI_NO_NODE)
                s->attention_of[own[i]] = k + 1;
    }
    for (int k = 0; k < s->attention_count; k++) {
        const epi_placer_attention *a = &s->attentions[k];
        for (int i = 0; i < a->inner.count && !a->dropped && a->plan.row_max == EPI_NO_NODE; i++) {
            epi_use_list uses = epi_graph_uses(g, a->inner.at[i]);
            for (int u = 0; u < uses.count; u++) {
                int user = uses.at[u].node;
                if (user != EPI_NO_NODE && epi_ops[g->nodes[user].op].cls == EPI_CLASS_REDUCE &&
                    !s->attention_of[user] && epi_axes_same_set(&g->nodes[user].over, &a->plan.stream))
                    s->attention_of[user] = k + 1;
            }
        }
    }
}

/* Is every element of it needed by attentions alone? */
static bool agrees(const epi_placer *s, const epi_placer_attention *a, const bool *inner) {
    for (int i = 0; i < a->inner.count; i++) {
        epi_use_list uses = epi_graph_uses(s->g, a->inner.at[i]);
        for (int u = 0; u < uses.count; u++) {
            int user = uses.at[u].node;
            if (user == EPI_NO_NODE || (!inner[user] && !s->attention_of[user]))
                return false;
        }
    }
    return true;
}

/* ---- what it needs ---- */

static bool list_needs(epi_arena *arena, epi_placer *s, int k) {
    const epi_graph *g = s->g;
    epi_placer_attention *a = &s->attentions[k];
    int reductions = 0;
    epi_visits *v = &s->visits;
    epi_visits_begin(v, a->inner.at[0]);
    for (int i = 1; i < a->inner.count; i++)
        epi_visit(v, a->inner.at[i]);
    if (a->plan.row_max != EPI_NO_NODE) /* it makes what the exponential waits for itself */
        epi_visit(v, a->plan.shift);
    v->count = 0; /* these are known */
    for (int i = 0; i < a->inner.count + a->plan.sum_count; i++) {
        int last = i - a->inner.count, node = last < 0 ? a->inner.at[i] : a->plan.sums[last].product;
        for (int n = 0; n < epi_node_operands(&g->nodes[node]); n++)
            epi_visit(v, g->nodes[node].arg[n]);
    }
    if (!copy_list(arena, v->todo, v->count, &a->needs))
        return false;
    for (int i = 0; i < g->node_count; i++)
        if (s->attention_of[i] == k + 1 && !epi_attention_is_value(&a->plan, i))
            s->scratch[reductions++] = i;
    return copy_list(arena, s->scratch, reductions, &a->reductions);
}

bool epi_placer_find_attention(epi_arena *arena, epi_placer *s) {
    size_t nodes = (size_t)s->g->node_count + 1;
    s->attention_of = epi_arena_alloc(arena, nodes * sizeof *s->attention_of);
    s->value = epi_arena_alloc(arena, nodes);
    s->inner = epi_arena_alloc(arena, nodes);
    s->reads_loaded_tile = epi_arena_alloc(arena, nodes);
    return s->attention_of && s->value && s->inner && s->reads_loaded_tile &&
           (!s->limits->attention_most || find_candidates(arena, s));
}

bool epi_placer_agree_attention(epi_arena *arena, epi_placer *s) {
    for (bool again = true; again;) {
        again = false;
        claim(s, s->inner);
        for (int k = 0; k < s->attention_count; k++)
            if (!s->attentions[k].dropped && !agrees(s, &s->attentions[k], s->inner))
                s->attentions[k].dropped = again = true;
    }
    for (int k = 0; k < s->attention_count; k++) {
        s->attentions[k].placed = false;
        if (!s->attentions[k].dropped && !list_needs(arena, s, k))
            return false;
    }
    for (int i = 0; i < s->g->node_count; i++)
        if (s->inner[i]) {
            s->placement[i] = (epi_cut_placement){EPI_PLACED_SCORE, -1};
            s->placed[i] = true;
        }
    return true;
}

/* ---- placing ---- */

bool epi_placer_attention_ready(const epi_placer *s, const epi_placer_attention *a) {
    for (int i = 0; i < a->needs.count; i++)
        if (!s->placed[a->needs.at[i]])
            return false;
    return true;
}

void epi_placer_place_attention(epi_placer *s, epi_placer_attention *a, int part) {
    epi_placer_part *p = &s->parts[part];
    p->product = a->plan.sums[0].product;
    p->rows = a->plan.rows;
    p->cols = a->plan.sums[0].cols;
    p->attention = a;
    for (int v = 0; v < a->plan.sum_count; v++) {
        int product = a->plan.sums[v].product;
        s->placement[product] = (epi_cut_placement){EPI_PLACED_TILE, part};
        s->value[product] = (signed char)v;
        s->placed[product] = true;
    }
    for (int i = 0; i < a->reductions.count; i++) {
        s->placement[a->reductions.at[i]] = (epi_cut_placement){EPI_PLACED_AFTER, part};
        s->placed[a->reductions.at[i]] = true;
    }
    a->placed = true;
}
