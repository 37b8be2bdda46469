/* cut.h: a program as a list of parts: ordinary programs with one mainloop each, run one after the other.
 *
 * A part's inputs are the program's inputs or values that earlier parts stored; its outputs are the program's
 * outputs or values that later parts load. The dims of a part's graph are those of the whole, by number.
 * A part is forward or backward as a whole (direction.h), so its inputs are not marked as cotangents. */
#ifndef EPI_PASS_CUT_H
#define EPI_PASS_CUT_H

#include "ir/spec.h"
#include "pass/analyse/limits.h"
#include "pass/place/plan.h"

/* A value that goes from part to part through the workspace. */
typedef struct epi_cut_value {
    int node; /* of the whole; EPI_NO_NODE: a sum over slabs, or a value inside a part that was split */
    epi_axes axes;
    epi_dtype type;
    int64_t bytes, offset;
    int first, last; /* the parts from which to which it is alive */
    int part;        /* that stores it */
    bool slab;       /* no more than a slab of it is in memory */
    bool prepared;   /* it is not in the workspace, but in what epi_kernel_prepare fills */
    int over;        /* 0, or one more than the input of the program in whose place it lies (run/spent.c) */
} epi_cut_value;

/* Where a tensor of a part lies: it is a tensor of the program, or a value of the cut. */
typedef struct epi_part_tensor {
    int tensor; /* >= 0 */
    int value;  /* else */
} epi_part_tensor;

enum { EPI_PART_SLICES = 64 }; /* inputs of a part that are slices, at most */

typedef struct epi_part {
    epi_graph graph;
    epi_part_tensor *tensors; /* by tensor of the graph */
    epi_slice *slices;        /* likewise: inputs that are slices of what they lie in */
    epi_dtype *types;
    int loop; /* that it is in, or -1 */
    /* What the placer put together, or NULL: of a copy, and of what was written of other parts. */
    const struct epi_placer_part *placed;
} epi_part;

/* Parts from first to last that are carried out for the first slab of rows, then for the second, and so on
 * (slabs.c). */
typedef struct epi_loop {
    int first, last;
} epi_loop;

/* A sum over slabs, 0 when the loop begins. */
typedef struct epi_cut_sum {
    epi_part_tensor at;
    epi_axes axes;
    int loop;
} epi_cut_sum;

typedef struct epi_cut {
    epi_part *parts;
    int part_count;
    epi_cut_value *values;
    int value_count;
    int64_t bytes;  /* of the workspace that the values take */
    int64_t lowest; /* the most bytes that are alive at once: no order of the values takes less */
    epi_loop *loops;
    int loop_count;
    int slab_dim;      /* where there are loops: the row axis that they go along, */
    int64_t slab_rows; /* and how much of it they take at a time */
    epi_cut_sum *sums;
    int sum_count;
    int prepared_parts;     /* the first ones, which no run goes through: they make what is prepared, */
    int prepared_values;    /* the last of the values, */
    int64_t prepared_bytes; /* which take so many bytes (prepare.c) */
    unsigned without;  /* bits of epi_refusal: what some part does without, as no kernel has room for it */
    epi_error refused; /* a limit that was in the way: there are no parts then */
} epi_cut;

/* Cuts the program. What is cut follows from the graph, the types and the sizes of all axes but row axes,
 * which count at a nominal size. */
epi_status epi_cut_make(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                        epi_cut *out, epi_error *err);

/* How a value between parts lies: as a tensor of the program with all its axes does, so that what is read
 * beside it lies alike, and heads and positions are in one order everywhere; where there is none, row axes
 * first. */
epi_axes epi_cut_layout(const epi_spec *spec, int node);

/* What a run of the cut costs: of each kernel the bytes of its tensors, a launch and its products. */
double epi_cut_cost(const epi_spec *spec, const epi_cut *cut);

/* A part as what a plan is made of. */
static inline epi_spec epi_part_spec(const epi_spec *whole, const epi_part *part) {
    epi_spec spec = *whole;
    spec.graph = &part->graph;
    spec.types = part->types;
    spec.slices = part->slices;
    return spec;
}

/* cut_order.c: brings the parts into another order where less memory is alive at once in it. Those from
 * `backward` on stay behind the others. False: no memory. */
bool epi_cut_order(epi_arena *arena, const epi_spec *spec, epi_cut *cut, int backward);

/* cut_parts.c: finds when each value is alive: one that is whole for as long as a loop takes that touches it.
 */
void epi_cut_lives(epi_cut *cut);
/* Gives the values their places in the workspace. */
epi_status epi_cut_lay_out(epi_arena *arena, epi_cut *cut, epi_error *err);

/* slabs.c: the same cut with loops over slabs of a row axis. It has no loop where no value would become
 * smaller by it. */
typedef struct epi_slab_plan {
    int dim;
    int64_t rows; /* of a slab: a multiple of the grain */
    int64_t grain;
    int aligned;        /* slabs of tensors begin at a multiple of so many bytes */
    bool separate_sums; /* sums over slabs are added up by parts of their own: products cannot in place */
} epi_slab_plan;
epi_status epi_cut_slabs(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                         const epi_cut *from, const epi_slab_plan *plan, epi_cut *out, epi_error *err);

/* equal.c: a number that equal parts have in common. */
uint64_t epi_part_hash(epi_arena *arena, const epi_part *part, const int64_t *sizes);
/* By dim: the largest sizes, the same for all kernels of an open axis. */
const int64_t *epi_largest_sizes(const epi_spec *spec);
/* Are two parts the same up to names? Then to[t] is what a's tensor t is to b. What they need while they look
 * is left in the arena. */
bool epi_parts_equal(epi_arena *arena, const epi_part *a, const epi_part *b, const int64_t *sizes, int *to);

#endif
