/* stretch.h: gathers that take a contiguous slice of an axis, x[3:7] in other languages. */
#ifndef EPI_IR_STRETCH_H
#define EPI_IR_STRETCH_H

#include "ir/spec.h"

/* A part of a value along one of its axes: what is seen there instead of that axis are others, none of them
 * where it is one element. */
typedef struct epi_stretch {
    epi_axis of;
    int64_t begin; /* the place along that axis where the part begins */
    epi_axes axes;
    int64_t step[EPI_MAX_AXES]; /* by axis: so many places from one element to the next */
} epi_stretch;

/* Of a gather, or of a scatter, which puts it there. Is it gather(x, 2, C), or gather(x, index(A)*size(B) + index(B) + 3, C), all of which is inside of C? Or a half of its
 * operand? Where an axis counts rows, whose number decides nothing, it is none. */
bool epi_stretch_find(const epi_spec *spec, int node, epi_stretch *out);

#endif
