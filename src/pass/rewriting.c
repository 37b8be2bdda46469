/* rewriting.c: chooses the rewriting of a program: candidates go through the passes, and their costs decide.
 */
#include <math.h>
#include <string.h>

#include "pass/analyse/cost.h"
#include "pass/compile.h"

/* Has the algebra made the same of both? */
static bool is_like(const epi_candidate *c, const epi_candidate *other) {
    return epi_hash_equal(c->content, other->content);
}

/* Sends what the algebra makes by a choice through the passes, in the candidate's own arena: unless that is what it made
 * of `best`, or the program as it is written, whose cost it has then, but no cut. Its cost is without end where that fails. */
static void try_choice(const epi_candidate *from, const epi_graph *written, const epi_algebra_choice *choice,
                       const epi_candidate *best, epi_candidate *t) {
    epi_error err = {0};
    epi_arena_free(t->arena);
    *t = (epi_candidate){.arena = t->arena, .spec = from->spec, .limits = from->limits, .choice = choice};
    t->spec.graph = t->written = written;
    memcpy(t->after, from->after, sizeof t->after);
    epi_status status = epi_candidate_rewrite(t, &err);
    if (status == EPI_OK && (is_like(t, from) || (best && is_like(t, best)))) {
        t->cost = is_like(t, from) ? from->cost : best->cost;
        return;
    }
    if (status == EPI_OK)
        status = epi_candidate_cut(t, &err);
    if (status != EPI_OK) {
        t->cost = INFINITY;
        t->refused = err;
    }
}

double epi_rewriting_cost(const epi_spec *spec, const epi_backend_limits *limits, const epi_rewriting *r,
                          epi_algebra_rule rule) {
    epi_algebra_choice choice = r->choice;
    epi_arena arena = {0};
    epi_candidate from = {.spec = *spec, .limits = limits}, t = {.arena = &arena};
    choice.without |= 1u << rule;
    try_choice(&from, r->written, &choice, NULL, &t);
    epi_arena_free(&arena);
    return t.cost;
}

/* The search for the best choice. */
typedef struct search {
    const epi_candidate *plain; /* the program as it is written */
    const epi_graph *written;   /* and what the algebra begins with */
    epi_algebra_choice *choice;
    epi_candidate *best, *other;
    unsigned without; /* what the backend refused in some of them */
    epi_error broken; /* a mistake of our own in one of the passes, or no memory for it */
} search;

static void try_one(search *s, epi_candidate *t) {
    try_choice(s->plain, s->written, s->choice, t == s->best ? NULL : s->best, t);
    s->without |= t->cut.without;
    if (t->refused.status == EPI_ERR_INTERNAL || t->refused.status == EPI_ERR_MEMORY)
        s->broken = t->refused;
}

static void take_other(search *s) {
    epi_candidate *better = s->other;
    s->other = s->best;
    s->best = better;
}

/* Is the choice cheaper than the best so far? Then it is the best. */
static bool try_better(search *s) {
    try_one(s, s->other);
    bool better = epi_cost_is_less(s->other->cost, s->best->cost);
    if (better)
        take_other(s);
    return better;
}

/* Norms of inputs stay as they are written where that costs no more: then one has the same bits in every program that begins
 * with it. */
static void hold_near(search *s) {
    s->choice->near = true;
    try_one(s, s->other);
    s->choice->near = !epi_cost_is_less(s->best->cost, s->other->cost);
    if (s->choice->near && !is_like(s->other, s->best))
        take_other(s);
}

/* Vectors are tried one by one in programs of a few layers, and no more than a few of them. */
enum { MOST_NODES = 1000, MOST_TRIED = 8 };

/* Which params are multiplied into other params once: those that save something; in long programs all or
 * none. */
static void fold_params(search *s) {
    const epi_graph *g = s->written;
    epi_algebra_choice *choice = s->choice;
    bool at_once = g->node_count >= MOST_NODES;
    int vectors = 0;
    for (int t = 0; t < g->input_count && s->plain->limits->prepares; t++)
        if (g->tensors[t].param && g->tensors[t].axes.count == 1 && (at_once || vectors < MOST_TRIED)) {
            vectors++;
            choice->folds[t] = true;
            if (!at_once)
                choice->folds[t] = try_better(s);
        }
    if (at_once && vectors && !try_better(s))
        memset(choice->folds, 0, (size_t)g->input_count);
}

/* Is the input a vector: of one axis, or a number for each row? */
static bool is_vector(const epi_spec *spec, const epi_axes *axes) {
    bool rows = axes->count > 0;
    for (int i = 0; i < axes->count; i++)
        rows &= spec->is_row[axes->at[i].dim];
    return rows || axes->count == 1;
}

/* Which weights go past products: all but vectors that are better multiplied where they are written. A norm's
 * scale that the forward saved is such a vector where the gradient that it would go to is in memory without
 * it. */
static void choose(search *s) {
    const epi_graph *g = s->written;
    epi_algebra_choice *choice = s->choice;
    try_one(s, s->best);
    fold_params(s);
    for (int t = 0, tried = 0; t < g->input_count && g->node_count < MOST_NODES && tried < MOST_TRIED; t++) {
        if (!is_vector(&s->plain->spec, &g->tensors[t].axes))
            continue;
        tried++;
        choice->pinned[t] = true;
        choice->pinned[t] = try_better(s);
    }
    if (s->best->log.applied[EPI_RULE_DELAY])
        hold_near(s);
}

epi_status epi_rewriting_choose(epi_arena *arena, epi_candidate *plain, epi_rewriting *r, epi_error *err) {
    epi_candidate *both = epi_arena_alloc(arena, 2 * sizeof *both);
    search s = {.plain = plain,
                .written = r->written,
                .choice = &r->choice,
                .best = both,
                .other = both ? both + 1 : NULL};
    r->choice.pinned = epi_arena_alloc(arena, (size_t)r->written->input_count + 1);
    r->choice.folds = epi_arena_alloc(arena, (size_t)r->written->input_count + 1);
    EPI_TRY(epi_has_memory(r->choice.pinned && r->choice.folds && both, err));
    s.best->arena = &r->trials[0];
    s.other->arena = &r->trials[1];
    choose(&s);
    epi_arena_free(s.other->arena);
    if (s.broken.status != EPI_OK && err)
        *err = s.broken;
    if (s.broken.status != EPI_OK)
        return s.broken.status;
    r->hasty = r->written->node_count >= MOST_NODES;
    r->without = s.without;
    r->after = s.best->cost;
    r->applies = epi_cost_is_less(r->after, r->before);
    if (!r->applies) {
        r->refused = s.best->refused;
        return EPI_OK;
    }
    r->graph = s.best->after[EPI_PASS_ALGEBRA];
    r->log = s.best->log;
    *plain = *s.best;
    return EPI_OK;
}

void epi_rewriting_free(epi_rewriting *r) {
    for (int i = 0; i < 2; i++)
        epi_arena_free(&r->trials[i]);
}
