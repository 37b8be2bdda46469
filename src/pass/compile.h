/* compile.h: from the program as it is written to the cut that a backend compiles. */
#ifndef EPI_PASS_COMPILE_H
#define EPI_PASS_COMPILE_H

#include "ir/content.h"
#include "pass/place/cut.h"
#include "pass/rewrite/algebra.h"
#include "pass/schedule/steps.h"

/* The passes, in their order. */
typedef enum epi_pass_id {
    EPI_PASS_INTEGERS,
    EPI_PASS_SCATTERS,
    EPI_PASS_NARROW,
    EPI_PASS_ONCE,
    EPI_PASS_SCANS,
    EPI_PASS_SHIFTS,
    EPI_PASS_SLICES,
    EPI_PASS_RENAMES,
    EPI_PASS_SLOTS,
    EPI_PASS_GROUPS,
    EPI_PASS_CHOICES,
    EPI_PASS_ALGEBRA,
    EPI_PASS_VARIANCE,
    EPI_PASS_TERMS,
    EPI_PASS_RECURRENCES,
    EPI_PASS_SUMS,
    EPI_PASS_ATTENTION,
    EPI_PASS_WIDEN,
    EPI_PASS_CHOSEN,
    EPI_PASS_LARGE,
    EPI_PASS_PREPARE,
    EPI_PASS_CUT,
    EPI_PASS_COUNT
} epi_pass_id;

/* A program on its way through the passes: as it is written, or as the algebra rewrites it by some choice. */
typedef struct epi_candidate {
    epi_arena *arena; /* that all of it is in */
    epi_spec spec;    /* its graph is the program as it is now */
    const epi_backend_limits *limits;
    bool narrows;                     /* as in epi_compile */
    bool strict;                      /* it makes of infinities what is written */
    const epi_graph *written;         /* what the algebra begins with: its indices are looked through */
    const epi_algebra_choice *choice; /* NULL: the algebra leaves it as it is */
    epi_algebra_log log;
    epi_hash content;        /* of the program that the algebra left */
    epi_backend_limits less; /* it was cut with these, */
    unsigned tried;          /* and without these bits of epi_refusal in all of it */
    bool *
        ahead; /* by input: no product widens its few bits as it loads them; behind all: nor those of any value */
    epi_cut cut;                            /* no parts: no result has an element */
    double cost;                            /* in bytes; without end where there is neither */
    epi_error refused;                      /* why it did not get through */
    const epi_graph *after[EPI_PASS_COUNT]; /* by pass: the program that it left */
} epi_candidate;

typedef struct epi_pass {
    const char *name;
    epi_status (*run)(epi_candidate *c, epi_error *err);
    const char *what; /* it does, in a few words */
} epi_pass;
extern const epi_pass epi_passes[EPI_PASS_COUNT];

/* Sends it through these passes. */
epi_status epi_passes_run(epi_candidate *c, epi_pass_id first, epi_pass_id last, epi_error *err);

/* Sends it through the algebra, and then through the passes behind it. */
epi_status epi_candidate_rewrite(epi_candidate *c, epi_error *err);
epi_status epi_candidate_cut(epi_candidate *c, epi_error *err);

/* What became of the program on the way. */
typedef struct epi_rewriting {
    const epi_graph *written; /* what the algebra begins with: slices are taken from inputs */
    const char *left;         /* why the algebra was not tried, or NULL */
    bool applies;             /* its cut costs less, and is the kernel's */
    bool hasty;               /* the program is too long to try vectors one by one */
    unsigned without;         /* what the backend refused in some cut that was tried */
    epi_error refused;        /* why the algebra could not rewrite it, if it could not */
    epi_algebra_choice choice;
    const epi_graph *graph; /* what the algebra made of it */
    epi_algebra_log log;
    double before, after; /* what the cuts cost, in bytes */
    int parts_before;
    epi_arena trials[2];                    /* one has what the algebra made of the program, if it applies */
    const epi_graph *trace[EPI_PASS_COUNT]; /* by pass: the program that it left */
} epi_rewriting;

/* rewriting.c: looks for the rewriting of *plain that costs least, and puts it in its place if it is cheaper,
 * so that a text written with care stays as it is. */
epi_status epi_rewriting_choose(epi_arena *arena, epi_candidate *plain, epi_rewriting *r, epi_error *err);
/* What the cut of the rewritten program would cost without this rule. */
double epi_rewriting_cost(const epi_spec *spec, const epi_backend_limits *limits, const epi_rewriting *r,
                          epi_algebra_rule rule);
void epi_rewriting_free(epi_rewriting *r);

/* What the passes are given, and where they put what they make of it. */
typedef struct epi_compile {
    epi_arena *arena;
    epi_spec *spec; /* its graph becomes the one that was cut */
    const epi_backend_limits *limits;
    bool narrows; /* outputs of 16 bits are rounded before anything is made of them (narrow.h) */
    bool strict;  /* what is made of infinities is what is written */
    /* Why the algebra leaves the program as it is; NULL: it may rewrite it, if that is cheaper. */
    const char *left;
    const epi_graph *same; /* what another kernel's algebra made of it, which this one has to take, or NULL */
    epi_rewriting *rewriting;
    epi_cut *cut; /* no parts: no result has an element */
} epi_compile;

/* Rewrites the program, from graph to graph, and cuts it. */
epi_status epi_compile_cut(const epi_compile *c, epi_error *err);

#endif
