/* steps.h: a program as a list of steps, and where each value is between them.
 *
 * The same list serves every backend: passes over memory, products and rows with what their tile computes,
 * and copies into outputs that are stored twice. */
#ifndef EPI_PASS_STEPS_H
#define EPI_PASS_STEPS_H

#include "ir/spec.h"
#include "pass/place/plan.h"

/* What a tile must store. */
typedef struct epi_root {
    int node;
    int tensor; /* store it here, or at its home if -1; cross-tile reductions have no store; of an update its
                   new elements are stored */
} epi_root;
/* For a tensor: nowhere, the mainloop takes it up on chip (attention's scores and weights). */
enum { EPI_ROOT_KEPT = -2 };

typedef struct epi_step {
    int node;       /* what a pass computes, or the product; or what is copied into the tensor: */
    int tensor;     /* >= 0: a copy into this output */
    epi_plan *plan; /* not NULL: a product, or rows, with everything the tile computes */
    epi_root *roots;
    int root_count;
} epi_step;

static inline epi_kind epi_step_kind(const epi_step *s) {
    return s->plan ? s->plan->kind : EPI_KIND_PASS;
}

/* Where a node's value lies once computed: a tensor of the program, a buffer at an offset of the
 * workspace, or nowhere. */
typedef struct epi_home {
    int tensor;     /* >= 0 */
    int64_t offset; /* else, if >= 0 */
    epi_dtype type;
} epi_home;

typedef struct epi_steps {
    const epi_spec *spec;
    epi_plan plan; /* of the whole program, where it is fused */
    epi_step *at;
    int count;
    const epi_dtype *said; /* by node; see stored.h */
    epi_home *homes;       /* by node */
    int64_t workspace;     /* bytes that the homes take */
    bool pages;   /* attention may read its stream through an index; set between begin and make, as is: */
    bool updates; /* a tile may store the new elements of an update */
    bool refused; /* no mainloop takes it: there are no steps, and plan.reason says why */
} epi_steps;

/* Looks whether everything is countable; no steps yet. */
epi_status epi_steps_begin(epi_arena *arena, const epi_spec *spec, epi_steps *out, epi_error *err);
/* The steps of the part's plan; none where no output has an element, or where it is refused. */
epi_status epi_steps_make(epi_arena *arena, epi_steps *steps, epi_error *err);
/* For a backend that finds that its tile cannot hold the part: one operation becomes a pass, what has more is
 * refused. */
epi_status epi_steps_refuse(epi_arena *arena, epi_steps *steps, const char *reason, epi_error *err);

/* The kind of kernel that the steps are; a pass where there are none. */
static inline const epi_kind_row *epi_steps_kind(const epi_steps *steps) {
    return &epi_kinds[steps->count ? steps->plan.kind : EPI_KIND_PASS];
}

/* May the output be stored over the input, which has the same axes and type? Where only rows read it, element
 * by element: these store an element after the last load of it. Where a product's tile reads it once, for
 * that output. And where the output is an update of it: then only the new elements are stored. */
bool epi_steps_in_place(const epi_steps *steps, int output, int input);

/* describe.c: the operations of a program, and the bytes that it moves with each of them a pass of its own.
 */
void epi_spec_count(const epi_spec *spec, epi_kernel_info *out);
/* The same, and the bytes that its steps move; and how it goes, in words. */
void epi_steps_count(const epi_steps *steps, double partial_bytes, epi_kernel_info *out);
bool epi_steps_describe_pass(const epi_steps *steps, epi_text *out); /* false: it is another mainloop */
/* Of a scan of products: all steps, columns and rows. */
void epi_steps_describe_recurrence(const epi_steps *steps, epi_kernel_info *out);
void epi_steps_describe_shape(const epi_steps *steps, epi_text *out);
void epi_steps_describe_stages(const epi_steps *steps, int64_t row_partials, int64_t col_partials,
                               epi_text *out);

#endif
