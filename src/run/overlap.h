/* overlap.h: whether two tensors of a call share memory. */
#ifndef EPI_RUN_OVERLAP_H
#define EPI_RUN_OVERLAP_H

#include "base/base.h"

/* A tensor as its bytes lie. */
typedef struct epi_extent {
    uintptr_t data;
    int64_t size; /* of an element */
    int rank;
    int64_t counts[EPI_MAX_AXES], strides[EPI_MAX_AXES]; /* per axis; strides in bytes */
} epi_extent;

/* The bytes from the first to behind the last element, and where they begin; 0 where there is no element. */
uint64_t epi_extent_stretch(const epi_extent *e, uintptr_t *low);
/* False only where no byte is in both: where their stretches of memory are apart, or where one lies in the
 * gaps of the other, as two slices of a matrix do. */
bool epi_extents_overlap(const epi_extent *a, const epi_extent *b);
/* The very same elements in the very same order? */
bool epi_extents_same(const epi_extent *a, const epi_extent *b);

#endif
