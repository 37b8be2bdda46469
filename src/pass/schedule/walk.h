/* walk.h: where the elements of a tensor are in memory when its axes are walked in another order.
 *
 * A walk is a list of digits, the last one running fastest; each has a size and a step in memory. Adjacent
 * digits are merged, so a contiguous tensor is one digit of step 1. */
#ifndef EPI_PASS_WALK_H
#define EPI_PASS_WALK_H

#include "ir/spec.h"
#include "pass/place/plan.h"

/* A tensor at run time: a program's, or a buffer in the workspace. */
typedef struct epi_ref {
    unsigned char *data;
    epi_dtype type;
    epi_axes axes;
    int64_t strides[EPI_MAX_AXES];
} epi_ref;

typedef struct epi_walk {
    int count; /* digits; 0: one element */
    int64_t size[EPI_MAX_AXES + 1], stride[EPI_MAX_AXES + 1];
} epi_walk;

/* Strides of a contiguous tensor of these axes. */
void epi_ref_contiguous(epi_ref *ref, const int64_t *sizes);
/* Such a tensor that lies nowhere: a walk over it counts its elements. */
epi_ref epi_ref_of_axes(const epi_axes *axes, const int64_t *sizes);
/* The step along an axis; 0 where the tensor lacks it (broadcast). */
int64_t epi_ref_stride(const epi_ref *ref, epi_axis axis);

/* Sees the whole of an axis that `n` takes apart or puts together as one of its parts: half as long, twice
 * the step or further on. Returns where the part starts, in elements. */
int64_t epi_ref_half(epi_ref *whole, const epi_node *n, int part, const int64_t *sizes);

/* Takes an axis out of a tensor's; returns the step along it. */
int64_t epi_ref_drop(epi_ref *ref, epi_axis axis);

/* Gives the tensor its strides: a contiguous one's, or a slice's of memory with these strides (NULL:
 * contiguous memory). Returns where the slice begins, in elements. */
int64_t epi_ref_lay_out(epi_ref *ref, const epi_slice *slice, const int64_t *strides, const int64_t *sizes);

void epi_walk_add(epi_walk *w, int64_t size, int64_t step);
/* Takes these axes out of a tensor's, and walks along them: where the elements are that a flat index names. */
epi_walk epi_ref_along(epi_ref *ref, const epi_axes *along, const int64_t *sizes);
epi_walk epi_walk_axes(const epi_ref *ref, const epi_axes *axes, const int64_t *sizes);
int64_t epi_walk_offset(const epi_walk *w, int64_t index);

/* ---- columns of a tile ---- */

/* Columns are walked at one of two scales when an axis is taken apart: *fine* has both parts, the
 * part being the fastest digit, and *coarse* has one. Otherwise everything is fine. */
typedef enum epi_scale { EPI_SCALE_NONE, EPI_SCALE_COARSE, EPI_SCALE_FINE, EPI_SCALE_COUNT } epi_scale;

typedef struct epi_columns {
    epi_walk walk;
    bool two;     /* fine columns whose two parts are not neighbours in memory: walk is coarse, */
    int64_t part; /* and the second part lies this far on */
} epi_columns;

epi_columns epi_columns_of(const epi_plan *plan, const epi_ref *ref, const int64_t *sizes, epi_scale scale);
int64_t epi_columns_offset(const epi_columns *c, int64_t column);

#endif
