/* compile.h: from a program as it is written to the cut that a backend compiles. */
#ifndef EPI_PASS_COMPILE_H
#define EPI_PASS_COMPILE_H

#include "pass/algebra.h"
#include "pass/cut.h"
#include "pass/steps.h"

/* What the algebra made of the program. */
typedef struct epi_rewriting {
    const epi_graph *written; /* what the algebra begins with: slices are taken from inputs */
    bool applies;             /* its cut costs less, and is the kernel's */
    epi_error refused;        /* why the algebra could not rewrite it, if it could not */
    epi_algebra_choice choice;
    epi_graph graph;
    epi_algebra_log log;
    double before, after; /* what the cuts cost, in bytes */
    int parts_before;
    epi_arena trials[2]; /* one has what the algebra made of the program, if it applies */
} epi_rewriting;

/* What the passes are given, and where they put what they make of it. */
typedef struct epi_compile {
    epi_arena *arena;
    epi_spec *spec; /* its graph becomes the one that was cut */
    const epi_backend_limits *limits;
    bool narrows;          /* outputs of 16 bits are rounded before anything is made of them (narrow.h) */
    bool algebra;          /* the program may be rewritten, if that is cheaper */
    const epi_graph *same; /* what another kernel's algebra made of it, which this one has to take, or NULL */
    epi_rewriting *rewriting;
    epi_cut *cut; /* no parts: the program is one kernel, or runs as passes */
} epi_compile;

/* Rewrites the program, from graph to graph, and cuts it. */
epi_status epi_compile_cut(const epi_compile *c, epi_error *err);

/* What the cut of the rewritten program would cost without this rule. */
double epi_rewriting_cost(const epi_spec *spec, const epi_backend_limits *limits, const epi_rewriting *r,
                          epi_algebra_rule rule);
void epi_rewriting_free(epi_rewriting *r);

/* What the cut took for granted of a part and the backend refused, as bits of epi_refusal. */
unsigned epi_refused_of(const epi_steps *steps);
/* Notes it, one thing at a time, so that a part loses no more than it must. False: there is nothing that was
 * not known. */
bool epi_refusals_note(epi_refusals *r, uint64_t part, unsigned what);
/* The whole program does without one of these things. False: it does already. */
bool epi_limits_give_up(epi_backend_limits *limits, unsigned what);

#endif
