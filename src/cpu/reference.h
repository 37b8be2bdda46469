/* reference.h: what the files of the reference share: the values of a program while it is evaluated. */
#ifndef EPI_CPU_REFERENCE_H
#define EPI_CPU_REFERENCE_H

#include "cpu/cpu.h"

typedef struct epi_reference {
    const epi_cpu_kernel *k;
    const epi_ref *tensors;
    double **value;    /* by node, contiguous in the node's own axis order */
    int64_t **integer; /* by node: what f64 does not hold, or NULL; its value is the nearest */
    int64_t *room;     /* for a scatter of such */
    bool *computed;    /* by node: made of inputs that are no integers, so that f32 may round it */
    bool naive;
} epi_reference;

/* reference_values.c: an element of a tensor. */
double epi_reference_load(const epi_strips *s, const epi_ref *ref, int64_t offset);
void epi_reference_store(const epi_strips *s, const epi_ref *ref, int64_t offset, double x);
/* What storing a value of a node and reading it back gives. */
double epi_reference_rounded(const epi_reference *e, int node, double x);
/* A node's value as a tensor, to walk it; and the same of an integer, as it is. */
epi_ref epi_reference_ref(const epi_reference *e, int node);
epi_ref epi_reference_integer(const epi_reference *e, int node);

/* Is a sum rounded as it grows? Of integers none is. */
static inline bool epi_reference_rounds_sums(const epi_reference *e, int node) {
    return e->naive && !e->k->integers[node].is;
}

static inline int64_t epi_reference_count(const epi_reference *e, const epi_axes *axes) {
    return epi_axes_size(axes, e->k->spec.sizes);
}

/* reference_moves.c: a node by its operation. */
void epi_reference_split(const epi_reference *e, int node);
void epi_reference_view(const epi_reference *e, int node);
void epi_reference_gather(const epi_reference *e, int node);
void epi_reference_shift(const epi_reference *e, int node);
void epi_reference_scatter(const epi_reference *e, int node);
void epi_reference_update(const epi_reference *e, int node);
void epi_reference_order(const epi_reference *e, int node);
void epi_reference_segments(const epi_reference *e, int node);
void epi_reference_largest(const epi_reference *e, int node);
void epi_reference_scan(const epi_reference *e, int node);
void epi_reference_random(const epi_reference *e, int node);

#endif
