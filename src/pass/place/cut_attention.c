/* cut_attention.c: which values of a program become attention parts.
 *
 * Every product whose weight is computed from scores is a candidate (attention.c). Its elements are never in
 * memory, so every user of them must be an attention part too, which recomputes them. Candidates that break
 * this are dropped until the rest agree. A reduction of elements over the stream belongs to one part: the
 * one whose online softmax it is, or the first that walks over that stream. */
#include <string.h>

#include "pass/place/placer.h"

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
        for (int i = 0; i < a->plan.inner.count; i++)
            inner[a->plan.inner.at[i]] = true;
        for (int v = 0; v < a->plan.sum_count; v++)
            s->attention_of[a->plan.sums[v].product] = k + 1;
        int own[] = {a->plan.row_max, a->plan.denominator};
        for (size_t i = 0; i < sizeof own / sizeof *own; i++)
            if (own[i] != EPI_NO_NODE)
                s->attention_of[own[i]] = k + 1;
    }
    for (int k = 0; k < s->attention_count; k++) {
        const epi_placer_attention *a = &s->attentions[k];
        for (int i = 0; i < a->plan.inner.count && !a->dropped && a->plan.row_max == EPI_NO_NODE; i++) {
            epi_use_list uses = epi_graph_uses(g, a->plan.inner.at[i]);
            for (int u = 0; u < uses.count; u++) {
                int user = uses.at[u].node;
                if (epi_attention_reduces(g, &a->plan, user) && !s->attention_of[user])
                    s->attention_of[user] = k + 1;
            }
        }
    }
}

/* Is every element of it needed by attentions alone? */
static bool agrees(const epi_placer *s, const epi_placer_attention *a, const bool *inner) {
    for (int i = 0; i < a->plan.inner.count; i++) {
        epi_use_list uses = epi_graph_uses(s->g, a->plan.inner.at[i]);
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
    epi_visits_begin(v, a->plan.inner.at[0]);
    for (int i = 1; i < a->plan.inner.count; i++)
        epi_visit(v, a->plan.inner.at[i]);
    if (a->plan.row_max != EPI_NO_NODE) /* it makes what the exponential waits for itself */
        epi_visit(v, a->plan.shift);
    v->count = 0; /* these are known */
    for (int i = 0; i < a->plan.inner.count + a->plan.sum_count; i++) {
        int last = i - a->plan.inner.count,
            node = last < 0 ? a->plan.inner.at[i] : a->plan.sums[last].product;
        for (int n = 0; n < epi_node_operands(&g->nodes[node]); n++)
            epi_visit(v, epi_attention_loaded(g, g->nodes[node].arg[n]));
    }
    if (!epi_list_copy(arena, v->todo, v->count, &a->needs))
        return false;
    for (int i = 0; i < g->node_count; i++)
        if (s->attention_of[i] == k + 1 && !epi_attention_is_value(&a->plan, i))
            s->scratch[reductions++] = i;
    return epi_list_copy(arena, s->scratch, reductions, &a->reductions);
}

bool epi_placer_find_attention(epi_arena *arena, epi_placer *s) {
    size_t nodes = (size_t)s->g->node_count + 1;
    epi_attentions found = {0};
    s->attention_of = epi_arena_alloc(arena, nodes * sizeof *s->attention_of);
    s->value = epi_arena_alloc(arena, nodes);
    s->inner = epi_arena_alloc(arena, nodes);
    s->reads_loaded_tile = epi_arena_alloc(arena, nodes);
    if (!s->attention_of || !s->value || !s->inner || !s->reads_loaded_tile ||
        (s->limits->attention_most &&
         (!epi_attentions_find(arena, s->spec, s->limits, s->without, &found) ||
          !epi_attentions_join(arena, s->g, s->forward, s->limits->row_sums, &found))))
        return false;
    s->attentions = epi_arena_alloc(arena, ((size_t)found.count + 1) * sizeof *s->attentions);
    for (int i = 0; i < found.count && s->attentions; i++)
        s->attentions[s->attention_count++].plan = found.at[i];
    return s->attentions != NULL;
}

/* Keys and values that are read through a table of pages are in memory nowhere, as scores are. */
static void claim_pages(epi_placer *s, const epi_attention *a) {
    if (!s->limits->pages || s->without[a->sums[0].product] & EPI_REFUSED_PAGES)
        return;
    for (int i = 0; i < s->g->node_count; i++)
        s->inner[i] |= s->g->live[i] && epi_attention_is_paged(s->g, a, i);
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
    for (int k = 0; k < s->attention_count; k++)
        if (!s->attentions[k].dropped)
            claim_pages(s, &s->attentions[k].plan);
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
