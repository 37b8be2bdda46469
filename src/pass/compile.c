/* compile.c: the passes that a program goes through on its way to a backend, as a table.
 *
 * The first passes bring the program into one form. From the algebra on there are candidates: the program as
 * it is written, and as the algebra rewrites it (rewriting.c). Each goes through the rest of the table, and
 * the one with the cheapest cut is used. */
#include "pass/compile.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ir/verify.h"
#include "pass/analyse/cost.h"
#include "pass/analyse/dequant.h"
#include "pass/analyse/integers.h"
#include "pass/place/kept.h"
#include "pass/place/split.h"
#include "pass/rewrite/attention_form.h"
#include "pass/rewrite/choices.h"
#include "pass/rewrite/chosen.h"
#include "pass/rewrite/groups.h"
#include "pass/rewrite/integers.h"
#include "pass/rewrite/narrow.h"
#include "pass/rewrite/once.h"
#include "pass/rewrite/prepare.h"
#include "pass/rewrite/recurrences.h"
#include "pass/rewrite/renames.h"
#include "pass/rewrite/scans.h"
#include "pass/rewrite/scatters.h"
#include "pass/rewrite/shifts.h"
#include "pass/rewrite/slices.h"
#include "pass/rewrite/slots.h"
#include "pass/rewrite/sums.h"
#include "pass/rewrite/terms.h"
#include "pass/rewrite/variance.h"
#include "pass/rewrite/widen.h"

#ifndef EPI_VERIFY
#define EPI_VERIFY 0 /* 1 in tests: graphs are verified after each pass */
#endif

/* ---- the passes ---- */

static epi_status integers(epi_candidate *c, epi_error *err) {
    return epi_integers_write(c->arena, &c->spec, err);
}

static epi_status large(epi_candidate *c, epi_error *err) {
    return epi_large_mark(c->arena, &c->spec, err);
}

static epi_status narrow(epi_candidate *c, epi_error *err) {
    return c->narrows ? epi_narrow_outputs(c->arena, &c->spec, err) : EPI_OK;
}

static epi_status scatters(epi_candidate *c, epi_error *err) {
    return epi_scatters_write(c->arena, &c->spec, err);
}

static epi_status once(epi_candidate *c, epi_error *err) {
    return epi_once_write(c->arena, &c->spec, err);
}

static epi_status scans(epi_candidate *c, epi_error *err) {
    return epi_scans_write(c->arena, &c->spec, !c->strict, err);
}

static epi_status shifts(epi_candidate *c, epi_error *err) {
    return epi_shifts_write(c->arena, &c->spec, c->strict, err);
}

static epi_status slices(epi_candidate *c, epi_error *err) {
    return epi_slices_push(c->arena, &c->spec.graph, err);
}

static epi_status renames(epi_candidate *c, epi_error *err) {
    EPI_TRY(epi_renames_push(c->arena, &c->spec.graph, err));
    return epi_renames_pull(c->arena, &c->spec.graph, err);
}

static epi_status slots(epi_candidate *c, epi_error *err) {
    return c->limits->groups ? epi_slots_write(c->arena, &c->spec.graph, &c->spec, NULL, err) : EPI_OK;
}

static epi_status groups(epi_candidate *c, epi_error *err) {
    return c->limits->groups ? epi_groups_write(c->arena, &c->spec.graph, err) : EPI_OK;
}

static epi_status choices(epi_candidate *c, epi_error *err) {
    return epi_choices_write(c->arena, &c->spec.graph, &c->spec, err);
}

static epi_status algebra(epi_candidate *c, epi_error *err) {
    epi_graph *out = c->choice ? epi_arena_alloc(c->arena, sizeof *out) : NULL;
    if (!out)
        return c->choice ? epi_fail(err, EPI_ERR_MEMORY, "out of memory") : EPI_OK;
    out->arena = c->arena;
    epi_algebra_rewrite(&c->spec, c->choice, out, &c->log);
    c->spec.graph = out;
    return epi_graph_status(out, err);
}

static epi_status variance(epi_candidate *c, epi_error *err) {
    return epi_variance_form(c->arena, &c->spec, err);
}

static epi_status terms(epi_candidate *c, epi_error *err) {
    return c->limits->merges_sums ? epi_gather_terms(c->arena, &c->spec.graph, c->limits->pairs, err)
                                  : EPI_OK;
}

static epi_status recurrences(epi_candidate *c, epi_error *err) {
    return c->limits->recurrence_most ? epi_recurrences_form(c->arena, &c->spec, !c->strict, err) : EPI_OK;
}

static epi_status sums(epi_candidate *c, epi_error *err) {
    return epi_sums_write(c->arena, &c->spec, err);
}

static epi_status attention(epi_candidate *c, epi_error *err) {
    EPI_TRY(epi_attention_form(c->arena, &c->spec, c->limits, err));
    return c->narrows ? epi_attention_stored(c->arena, &c->spec, c->limits, err) : EPI_OK;
}

static epi_status widen(epi_candidate *c, epi_error *err) {
    EPI_TRY(epi_widen_operands(c->arena, &c->spec, c->limits->scaled, err));
    return c->limits->dequants ? epi_widen_on_load(c->arena, &c->spec, c->limits, c->ahead, err) : EPI_OK;
}

static epi_status chosen(epi_candidate *c, epi_error *err) {
    return c->limits->groups ? epi_chosen_mark(c->arena, &c->spec, c->written, c->limits, err) : EPI_OK;
}

/* The cut of a half of a program. */
static epi_status cut_half(epi_arena *arena, const epi_spec *whole, const epi_half *half,
                           const epi_backend_limits *limits, epi_cut *out, epi_error *err) {
    epi_spec spec = *whole;
    spec.graph = &half->graph;
    spec.types = half->types;
    return epi_cut_make(arena, &spec, limits, out, err);
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

static epi_status prepare(epi_candidate *c, epi_error *err) {
    return c->limits->prepares ? cut_prepared(c->arena, &c->spec, c->limits, &c->cut, err) : EPI_OK;
}

static epi_status cut(epi_candidate *c, epi_error *err) {
    epi_status status = EPI_OK;
    epi_error why = {0};
    if (!c->cut.part_count)
        status = epi_cut_make(c->arena, &c->spec, c->limits, &c->cut, &why);
    if (status == EPI_ERR_UNSUPPORTED) {
        status = epi_cut_apart(c->arena, &c->spec, c->limits, &c->cut, err);
        c->cut.refused = why;
    } else if (status != EPI_OK && err) {
        *err = why;
    }
    if (status == EPI_OK)
        c->cost = epi_cut_cost(&c->spec, &c->cut);
    return status;
}

const epi_pass epi_passes[EPI_PASS_COUNT] = {
    [EPI_PASS_INTEGERS] = {"integers", integers, "rewrites // and % as operations that kernels have"},
    [EPI_PASS_SCATTERS] = {"scatters", scatters,
                           "rewrites a batched scatter of few elements as a sum of choices"},
    [EPI_PASS_NARROW] = {"narrow", narrow, "rounds 16-bit outputs before their log-sum-exp is computed"},
    [EPI_PASS_ONCE] = {"once", once,
                       "computes values once, in memory, that are compared with their own extreme"},
    [EPI_PASS_SCANS] = {"scans", scans, "finds running sums, and steps of recurrences that are slices"},
    [EPI_PASS_SHIFTS] = {"shifts", shifts, "turns indexing at a fixed distance into shifts"},
    [EPI_PASS_SLICES] = {"slices", slices, "slices inputs instead of results"},
    [EPI_PASS_RENAMES] = {"renames", renames, "computes a renamed sum of products under its new name"},
    [EPI_PASS_SLOTS] = {"slots", slots, "sorts rows that choose their weight by that choice"},
    [EPI_PASS_GROUPS] = {"groups", groups, "turns products whose rows choose a weight into grouped products"},
    [EPI_PASS_CHOICES] = {"choices", choices, "adds up the choices of a row one after the other"},
    [EPI_PASS_ALGEBRA] = {"algebra", algebra, "reorders sums of products, if the kernels then cost less"},
    [EPI_PASS_VARIANCE] = {"variance", variance,
                           "computes a variance by one reduction on a product's tile, by several elsewhere"},
    [EPI_PASS_TERMS] = {"terms", terms, "merges sums that are added up into one"},
    [EPI_PASS_RECURRENCES] = {"recurrences", recurrences,
                              "rewrites sums of scans as the recurrence mainloop needs them"},
    [EPI_PASS_SUMS] = {"sums", sums, "splits a sum over axes on both sides of others: inside rows first"},
    [EPI_PASS_ATTENTION] = {"attention", attention, "rewrites softmax as the attention mainloop needs it"},
    [EPI_PASS_WIDEN] = {"widen", widen, "converts 8-bit operands of products"},
    [EPI_PASS_CHOSEN] = {"chosen", chosen, "lets products read the matrices that their batches choose"},
    [EPI_PASS_LARGE] = {"large", large,
                        "marks integers that f32 cannot hold; passes compute them in 64 bits"},
    [EPI_PASS_PREPARE] = {"prepare", prepare,
                          "separates values that depend on params alone, which are computed once"},
    [EPI_PASS_CUT] = {"cut", cut, "splits the program into parts of one kernel each"},
};

/* ---- the way through them ---- */

/* Our own mistakes are found where they are made. */
static epi_status verify(const epi_candidate *c, const char *pass, epi_error *err) {
    epi_error broken;
    epi_status status = epi_graph_verify(c->spec.graph, &broken);
    for (int i = 0; i < c->cut.part_count && status == EPI_OK; i++)
        status = epi_graph_verify(&c->cut.parts[i].graph, &broken);
    if (status != EPI_ERR_INTERNAL)
        return status == EPI_OK ? EPI_OK : epi_fail(err, status, "%s", broken.message);
    char text[sizeof broken.message + 40];
    snprintf(text, sizeof text, "after the pass %s: %s", pass, broken.message);
    return EPI_INTERNAL(err, (epi_place){0}, text);
}

epi_status epi_passes_run(epi_candidate *c, epi_pass_id first, epi_pass_id last, epi_error *err) {
    epi_status status = EPI_OK;
    c->cost = INFINITY;
    for (int i = (int)first; i <= (int)last && status == EPI_OK; i++) {
        status = epi_passes[i].run(c, err);
        c->after[i] = c->spec.graph;
        if (status == EPI_OK && EPI_VERIFY)
            status = verify(c, epi_passes[i].name, err);
    }
    return status;
}

/* What a cut costs, and its launches, at the largest sizes of open axes: the choice is the same for all. */
static double most_cost(const epi_candidate *c, int *launches) {
    epi_spec most = c->spec, part;
    memcpy(most.sizes, epi_largest_sizes(&c->spec), sizeof most.sizes);
    *launches = c->cut.part_count - c->cut.prepared_parts;
    for (int i = c->cut.prepared_parts; i < c->cut.part_count; i++) {
        part = epi_part_spec(&most, &c->cut.parts[i]);
        *launches += epi_verdict_of(&part).launches;
    }
    return isinf(c->cost) ? c->cost : epi_cut_cost(&most, &c->cut);
}

/* Does it cost less, with no more launches? */
static bool is_better(const epi_candidate *c, const epi_candidate *than) {
    int launches, had;
    double cost = most_cost(c, &launches), before = most_cost(than, &had);
    return cost < before && (isinf(before) || launches <= had);
}

/* The whole program does without one of these things. False: it does already. */
static bool give_up(epi_backend_limits *limits, unsigned what) {
    if (limits->pages && what & EPI_REFUSED_PAGES)
        limits->pages = false;
    else if (limits->attention_most && what & EPI_REFUSED_ATTENTION)
        limits->attention_most = 0;
    else if (limits->pairs && what & EPI_REFUSED_PAIR)
        limits->pairs = false;
    else if (limits->full_row_most && what & EPI_REFUSED_FULL_ROW)
        limits->full_row_most = 0;
    else if (limits->local_most && what & EPI_REFUSED_LOCAL)
        limits->local_most = 0;
    else if (limits->scaled && what & EPI_REFUSED_SCALED)
        limits->scaled = 0;
    else
        return false;
    return true;
}

/* Sends what the algebra left through the passes behind it, within the candidate's own limits. */
static epi_status cut_anew(epi_candidate *c, epi_error *err) {
    const epi_backend_limits *all = c->limits;
    unsigned without = c->cut.without;
    c->spec.graph = c->after[EPI_PASS_ALGEBRA];
    c->cut = (epi_cut){0};
    c->limits = &c->less;
    epi_status status = epi_passes_run(c, EPI_PASS_VARIANCE, EPI_PASS_CUT, err);
    c->limits = all;
    c->cut.without |= without;
    return status;
}

/* Widens these bytes of a part ahead: the input that they are, or else those of all. False: they were already. */
static bool widen_bytes(epi_candidate *c, const epi_part *part, int bytes) {
    const epi_graph *g = &part->graph;
    const epi_node *source = &g->nodes[epi_elements_source(g, bytes)];
    int t = source->op == EPI_OP_INPUT ? part->tensors[source->tensor].tensor : -1,
        at = t >= 0 && t < c->written->input_count ? t : c->written->input_count;
    bool fresh = !c->ahead[at];
    c->ahead[at] = true;
    return fresh;
}

/* Widens ahead what the part's product, or attention, would widen as it loads it. */
static bool widen_ahead(epi_candidate *c, const epi_part *part) {
    const epi_graph *g = &part->graph;
    const epi_spec spec = epi_part_spec(&c->spec, part);
    const epi_plan *plan = epi_kept_plan(&spec);
    bool fresh = false;
    for (int i = 0; i < g->node_count && plan && plan->attention; i++)
        fresh |= plan->placement[i].on_load && widen_bytes(c, part, g->nodes[i].arg[0]);
    for (int side = 0; plan && side < epi_plan_operands(plan); side++) {
        epi_dequant d;
        int operand = epi_plan_operand(g, plan, side);
        if (plan->placement[operand].on_load && epi_dequant_find(g, operand, &d))
            fresh |= widen_bytes(c, part, d.bytes);
    }
    return fresh;
}

/* Does the program do without what no part can do without while others have it, as the backend refused it? Then more
 * is given up than before. */
static bool give_up_all(epi_candidate *c) {
    bool again = false;
    unsigned all = 0;
    for (int i = 0; i < c->cut.part_count; i++) {
        const epi_spec part = epi_part_spec(&c->spec, &c->cut.parts[i]);
        const epi_verdict v = epi_verdict_of(&part);
        unsigned what = v.granted & EPI_REFUSED_OF_ALL ? epi_refused_of(&part) & EPI_REFUSED_OF_ALL : 0;
        all |= what & -what;
        again |= what == EPI_REFUSED_LOAD && widen_ahead(c, &c->cut.parts[i]);
    }
    c->cut.without |= all;
    again |= give_up(&c->less, all & EPI_REFUSED_SCALED);
    return (c->cut.without & EPI_REFUSED_ATTENTIONS && give_up(&c->less, EPI_REFUSED_ATTENTION)) || again;
}

/* Where some of a thing was refused, what is left of it may be worth less than the forms that it asks for:
 * then the program does without all of it. */
static epi_status try_without(epi_candidate *best, unsigned all, epi_error *err) {
    epi_status status = EPI_OK;
    for (unsigned what = 1; what & EPI_REFUSED_OF_PART && status == EPI_OK; what <<= 1) {
        if (!((all | best->cut.without) & what & ~best->tried))
            continue;
        best->tried |= what;
        epi_candidate other = *best;
        if (!give_up(&other.less, what))
            continue;
        status = cut_anew(&other, err);
        if (status == EPI_OK && is_better(&other, best))
            *best = other;
    }
    return status;
}

epi_status epi_candidate_rewrite(epi_candidate *c, epi_error *err) {
    epi_status status = epi_passes_run(c, EPI_PASS_ALGEBRA, EPI_PASS_ALGEBRA, err);
    if (status == EPI_OK)
        c->content = epi_spec_content(&c->spec);
    return status;
}

epi_status epi_candidate_cut(epi_candidate *c, epi_error *err) {
    epi_status status;
    c->less = *c->limits;
    c->ahead = epi_arena_alloc(c->arena, (size_t)c->written->input_count + 1);
    EPI_TRY(epi_has_memory(c->ahead, err));
    do
        status = cut_anew(c, err);
    while (status == EPI_OK && give_up_all(c));
    return status == EPI_OK ? try_without(c, 0, err) : status;
}

/* Does it make integers that f32 does not hold? */
static bool has_large(const epi_candidate *c) {
    const epi_graph *g = c->spec.graph;
    epi_arena scratch = {0};
    const epi_integer *at = epi_integers_find(&scratch, &c->spec);
    bool large = false;
    for (int i = 0; i < g->node_count && at; i++)
        large |= g->live[i] && (g->nodes[i].integer || (at[i].large && g->nodes[i].op != EPI_OP_INPUT) ||
                                epi_integer_is_computed(g, at, i));
    epi_arena_free(&scratch);
    return large;
}

epi_status epi_compile_cut(const epi_compile *given, epi_error *err) {
    epi_rewriting *r = given->rewriting;
    epi_candidate *c = epi_arena_alloc(given->arena, sizeof *c);
    epi_rewriting_free(r);
    *r = (epi_rewriting){0};
    *given->cut = (epi_cut){0};
    given->spec->tile = given->limits->tile;
    given->spec->scans = given->limits->scans;
    given->spec->scan_folds = given->limits->scan_folds;
    given->spec->scan_last = given->limits->scan_last;
    given->spec->scan_sums = given->limits->scan_sums;
    given->spec->window = given->limits->window;
    EPI_TRY(epi_has_memory(c, err));
    *c = (epi_candidate){.arena = given->arena,
                         .spec = *given->spec,
                         .limits = given->limits,
                         .narrows = given->narrows,
                         .strict = given->strict};
    EPI_TRY(epi_passes_run(c, EPI_PASS_INTEGERS, EPI_PASS_CHOICES, err));
    r->written = c->written = c->spec.graph;
    if (given->same)
        c->spec.graph = given->same;
    epi_status status = epi_candidate_rewrite(c, err);
    if (status == EPI_OK)
        status = epi_candidate_cut(c, err);
    r->before = c->cost;
    r->parts_before = c->cut.part_count - c->cut.prepared_parts;
    r->left = given->left             ? given->left
              : status != EPI_OK      ? NULL /* the graph may be half made */
              : has_large(c)          ? "it has integers that f32 cannot hold, and the algebra is for floats"
              : c->cut.part_count > 1 ? NULL
                                      : "it is not split into parts as it is written";
    if (status == EPI_OK && !r->left)
        status = epi_rewriting_choose(given->arena, c, r, err);
    if (status == EPI_OK) /* what was refused in another cut may be worth no more in this one */
        status = try_without(c, r->without, err);
    *given->cut = c->cut;
    given->spec->graph = c->spec.graph;
    memcpy(r->trace, c->after, sizeof r->trace);
    return status;
}
