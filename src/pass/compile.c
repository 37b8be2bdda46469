/* compile.c: the passes that a program goes through on its way to a backend, and which rewriting of it is
 * taken.
 */
#include <math.h>
#include <string.h>

#include "pass/compile.h"
#include "pass/cost.h"
#include "pass/narrow.h"
#include "pass/once.h"
#include "pass/prepare.h"
#include "pass/renames.h"
#include "pass/slices.h"
#include "pass/terms.h"
#include "pass/variance.h"

/* The cut of a half of a program; a half that is one kernel has one part. */
static epi_status cut_half(epi_arena *arena, const epi_spec *whole, const epi_half *half,
                           const epi_backend_limits *limits, epi_cut *out, epi_error *err) {
    epi_plan plan;
    epi_spec spec = *whole;
    spec.graph = &half->graph;
    spec.types = half->types;
    epi_status status = epi_plan_make(arena, &spec, &plan, err);
    if (status != EPI_OK)
        return status;
    return epi_cut_is_one(&spec, limits, &plan) ? epi_prepare_whole(arena, half, out, err)
                                                : epi_cut_make(arena, &spec, limits, out, err);
}

/* Cuts what is prepared by itself, and the rest by itself. No part: there is nothing to prepare. */
static epi_status cut_prepared(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                               epi_cut *out, epi_error *err) {
    epi_prepared halves;
    epi_cut once, rest;
    epi_status status = epi_prepare_split(arena, spec, &halves, err);
    if (status != EPI_OK || !halves.count)
        return status;
    status = cut_half(arena, spec, &halves.once, limits, &once, err);
    if (status == EPI_OK)
        status = cut_half(arena, spec, &halves.rest, limits, &rest, err);
    if (status == EPI_OK)
        return epi_prepare_join(arena, spec, &halves, &once, &rest, out, err);
    if (status == EPI_ERR_UNSUPPORTED) /* as if nothing were marked */
        epi_error_clear(err);
    return status == EPI_ERR_UNSUPPORTED ? EPI_OK : status;
}

/* The plan of the program as one kernel. What is compared with its own extreme need not be in memory where
 * the kernel's tile makes it once. */
static epi_status plan_one(epi_arena *arena, epi_spec *spec, const epi_backend_limits *limits, epi_plan *plan,
                           epi_error *err) {
    epi_spec one = *spec;
    epi_status status = epi_once_plan(arena, spec, &one.graph, plan, err);
    if (status == EPI_OK && one.graph && epi_cut_is_one(&one, limits, plan)) {
        spec->graph = one.graph;
        return EPI_OK;
    }
    return status == EPI_OK ? epi_plan_make(arena, spec, plan, err) : status;
}

/* Brings variances and attention into the form of their mainloops. Is the program more than one kernel then?
 * Then cuts it. *cost is what that costs: without end where it runs as passes. */
static epi_status cut_formed(epi_arena *arena, epi_spec *spec, const epi_backend_limits *limits, epi_cut *out,
                             double *cost, epi_error *err) {
    epi_plan plan;
    *out = (epi_cut){0};
    *cost = INFINITY;
    epi_status status = epi_variance_form(arena, spec, err);
    if (status == EPI_OK && limits->gathers)
        status = epi_gather_terms(arena, spec->graph, limits->pairs, &spec->graph, err);
    if (status == EPI_OK)
        status = epi_attention_form(arena, spec, limits, err);
    if (status == EPI_OK && limits->prepares)
        status = cut_prepared(arena, spec, limits, out, err);
    if (status == EPI_OK && out->part_count) {
        *cost = epi_cut_cost(spec, out);
        return EPI_OK;
    }
    if (status == EPI_OK)
        status = plan_one(arena, spec, limits, &plan, err);
    if (status != EPI_OK)
        return status;
    if (!epi_cut_is_one(spec, limits, &plan)) {
        epi_error why = {0};
        status = epi_cut_make(arena, spec, limits, out, &why);
        if (status == EPI_ERR_UNSUPPORTED) { /* it runs as passes */
            *out = (epi_cut){.refused = why};
            return EPI_OK;
        }
        if (status != EPI_OK && err)
            *err = why;
    }
    if (status == EPI_OK)
        *cost = epi_cut_cost(spec, out);
    return status;
}

/* What the cut costs at the largest sizes of open axes: the choice is the same for all of them. */
static double most_cost(const epi_spec *spec, const epi_cut *cut, double cost) {
    epi_spec most = *spec;
    memcpy(most.sizes, epi_largest_sizes(spec), sizeof most.sizes);
    return isinf(cost) ? cost : epi_cut_cost(&most, cut);
}

/* The same. Where some attention was refused, all that is left of it may be worth less than its form costs:
 * then no attention is one kernel. */
static epi_status cut_graph(epi_arena *arena, epi_spec *spec, const epi_backend_limits *limits, epi_cut *out,
                            double *cost, epi_error *err) {
    epi_backend_limits none = *limits;
    epi_spec other = *spec;
    epi_cut cut;
    double less;
    epi_status status = cut_formed(arena, spec, limits, out, cost, err);
    none.attention_most = 0;
    if (status != EPI_OK || !limits->attention_most || !epi_refusals_have(limits, EPI_REFUSED_ATTENTION))
        return status;
    status = cut_formed(arena, &other, &none, &cut, &less, err);
    if (status == EPI_OK && most_cost(&other, &cut, less) < most_cost(spec, out, *cost)) {
        *spec = other;
        *out = cut;
        *cost = less;
    }
    return status;
}

/* The program that the algebra makes by a choice, and its cut. */
typedef struct trial {
    epi_arena *arena; /* that all of it is in */
    epi_graph graph;
    const epi_graph *last; /* what attention's form made of it, which was cut; NULL: nothing */
    epi_cut cut;
    epi_algebra_log log;
    double cost; /* of the cut; without end where there is none */
} trial;

static void try_choice(const epi_spec *whole, const epi_backend_limits *limits, const epi_graph *written,
                       const epi_algebra_choice *choice, trial *t) {
    epi_spec spec = *whole;
    epi_arena_free(t->arena);
    *t = (trial){.arena = t->arena, .graph = {.arena = t->arena}, .cost = INFINITY};
    spec.graph = written;
    epi_algebra_rewrite(&spec, choice, &t->graph, &t->log);
    spec.graph = &t->graph;
    if (!epi_graph_failed(&t->graph))
        cut_graph(t->arena, &spec, limits, &t->cut, &t->cost, NULL);
    t->last = spec.graph == &t->graph ? NULL : spec.graph;
}

double epi_rewriting_cost(const epi_spec *spec, const epi_backend_limits *limits, const epi_rewriting *r,
                          epi_algebra_rule rule) {
    epi_algebra_choice choice = r->choice;
    epi_arena arena = {0};
    trial t = {.arena = &arena};
    choice.without |= 1u << rule;
    try_choice(spec, limits, r->written, &choice, &t);
    epi_arena_free(&arena);
    return t.cost;
}

/* Is the choice cheaper than the best so far? Then it is the best. */
static bool try_better(const epi_compile *c, const epi_algebra_choice *choice, trial *best, trial *other) {
    try_choice(c->spec, c->limits, c->rewriting->written, choice, other);
    if (!epi_cost_is_less(other->cost, best->cost))
        return false;
    trial better = *other;
    *other = *best;
    *best = better;
    return true;
}

/* Vectors are tried one by one in programs of a few layers, and no more than a few of them. */
enum { MOST_NODES = 1000, MOST_TRIED = 8 };

/* Which params are multiplied into other params once: those that save something; in long programs all or
 * none. */
static void fold_params(const epi_compile *c, epi_algebra_choice *choice, trial *best, trial *other) {
    const epi_graph *g = c->rewriting->written;
    bool at_once = g->node_count >= MOST_NODES;
    int vectors = 0;
    for (int t = 0; t < g->input_count && c->limits->prepares; t++)
        if (g->tensors[t].param && g->tensors[t].axes.count == 1 && (at_once || vectors < MOST_TRIED)) {
            vectors++;
            choice->folds[t] = true;
            if (!at_once)
                choice->folds[t] = try_better(c, choice, best, other);
        }
    if (at_once && vectors && !try_better(c, choice, best, other))
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
static void choose_rewriting(const epi_compile *c, epi_algebra_choice *choice, trial *best, trial *other) {
    const epi_graph *g = c->rewriting->written;
    try_choice(c->spec, c->limits, c->rewriting->written, choice, best);
    fold_params(c, choice, best, other);
    for (int t = 0, tried = 0; t < g->input_count && g->node_count < MOST_NODES && tried < MOST_TRIED; t++) {
        if (!is_vector(c->spec, &g->tensors[t].axes))
            continue;
        tried++;
        choice->stays[t] = true;
        choice->stays[t] = try_better(c, choice, best, other);
    }
}

/* The program as the algebra rewrites it, where its cut costs less, so that a text written with care stays as
 * it is. */
static epi_status rewrite(const epi_compile *c, epi_error *err) {
    epi_rewriting *r = c->rewriting;
    trial *best = epi_arena_alloc(c->arena, 2 * sizeof *best), *other = best + 1;
    r->parts_before = c->cut->part_count - c->cut->prepared_parts;
    r->choice.stays = epi_arena_alloc(c->arena, (size_t)r->written->input_count + 1);
    r->choice.folds = epi_arena_alloc(c->arena, (size_t)r->written->input_count + 1);
    if (!r->choice.stays || !r->choice.folds || !best)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    best->arena = &r->trials[0];
    other->arena = &r->trials[1];
    choose_rewriting(c, &r->choice, best, other);
    r->after = best->cost;
    r->applies = epi_cost_is_less(r->after, r->before);
    epi_arena_free(other->arena);
    if (!r->applies && epi_graph_failed(&best->graph))
        epi_graph_status(&best->graph, &r->refused);
    if (!r->applies)
        return EPI_OK;
    r->graph = best->graph;
    r->log = best->log;
    *c->cut = best->cut;
    c->spec->graph = best->last ? best->last : &r->graph;
    return EPI_OK;
}

/* Rewrites the program, from graph to graph, and cuts it. */
epi_status epi_compile_cut(const epi_compile *c, epi_error *err) {
    epi_rewriting *r = c->rewriting;
    epi_rewriting_free(r);
    *r = (epi_rewriting){.written = c->spec->graph};
    *c->cut = (epi_cut){0};
    epi_status status = EPI_OK;
    if (c->narrows)
        status = epi_narrow_outputs(c->arena, c->spec, &r->written, err);
    if (status == EPI_OK)
        status = epi_once_write(c->arena, c->spec, r->written, &r->written, err);
    if (status == EPI_OK)
        status = epi_slices_push(c->arena, r->written, &r->written, err);
    if (status == EPI_OK)
        status = epi_renames_push(c->arena, r->written, &r->written, err);
    if (status != EPI_OK)
        return status;
    c->spec->graph = c->same ? c->same : r->written;
    status = cut_graph(c->arena, c->spec, c->limits, c->cut, &r->before, err);
    return status == EPI_OK && c->algebra && c->cut->part_count ? rewrite(c, err) : status;
}

void epi_rewriting_free(epi_rewriting *r) {
    for (int i = 0; i < 2; i++)
        epi_arena_free(&r->trials[i]);
}

unsigned epi_refused_of(const epi_steps *steps) {
    const epi_plan *plan = &steps->plan;
    unsigned what = 0;
    if (plan->fused || steps->empty)
        return 0;
    for (int n = 0; n < steps->spec->graph->node_count && plan->attention; n++)
        what |= plan->placement[n].paged ? EPI_REFUSED_PAGES : 0;
    what |= plan->attention ? EPI_REFUSED_ATTENTION : 0;
    what |= plan->pair != EPI_NO_NODE || plan->added_count ? EPI_REFUSED_PAIR : 0;
    if (plan->local_axes)
        what |= epi_plan_is_whole(plan) ? EPI_REFUSED_WHOLE : EPI_REFUSED_LOCAL;
    return what;
}

bool epi_refusals_note(epi_refusals *r, uint64_t part, unsigned what) {
    unsigned known;
    const epi_backend_limits all = {.refused = r};
    epi_is_refused(&all, part, &known);
    what &= ~known;
    what &= -what; /* the first of them */
    if (!what || r->count == EPI_MOST_REFUSED)
        return false;
    r->at[r->count].part = part;
    r->at[r->count++].what = what;
    return true;
}

bool epi_limits_give_up(epi_backend_limits *limits, unsigned what) {
    if (limits->pages && what & EPI_REFUSED_PAGES)
        limits->pages = false;
    else if (limits->attention_most && what & EPI_REFUSED_ATTENTION)
        limits->attention_most = 0;
    else if (limits->pairs && what & EPI_REFUSED_PAIR)
        limits->pairs = false;
    else if (limits->whole_most && what & EPI_REFUSED_WHOLE)
        limits->whole_most = 0;
    else if (limits->local_most && what & EPI_REFUSED_LOCAL)
        limits->local_most = 0;
    else
        return false;
    return true;
}
