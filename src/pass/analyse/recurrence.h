/* recurrence.h: scans of products, whose states are never stored for each step.
 *
 *     s = scan(a, k*v, T)        a state of rows (the axes of k) by columns (those of v), for each batch
 *     y = sum(q*s, rows)         a sum down the rows of the state, at each step
 *     z = sum(u*s, columns)      one along them
 *     l = gather(s, size(T) - 1, T)
 *
 * Linear attention, its gated kinds, RetNet and Mamba-2 have this form, and so do their gradients with
 * respect to q, k and v. The axes alone decide: rows are the axes that the first sum removes; columns are
 * axes that neither the decay nor a factor with rows has. The decay has all rows, or all columns, or
 * neither. A mainloop keeps the state on chip and walks along T. Its operands are in memory: the decay, the
 * factors of the product and of the sums, and the first state. */
#ifndef EPI_PASS_RECURRENCE_H
#define EPI_PASS_RECURRENCE_H

#include "ir/spec.h"

/* What leaves: a sum down the rows or along the columns at each step, of the state times factors; a sum of the state
 * times the one before of a scan the other way, which is the gradient to the decay; the last state. */
typedef enum epi_take {
    EPI_TAKE_DOWN,
    EPI_TAKE_ALONG,
    EPI_TAKE_PRODUCT,
    EPI_TAKE_LAST,
    EPI_TAKE_COUNT
} epi_take;

enum {
    EPI_RECURRENCE_FACTORS = 6,
    EPI_RECURRENCE_OPERANDS = 2 * (3 + EPI_RECURRENCE_FACTORS) + 2 * EPI_RECURRENCE_FACTORS
};

typedef struct epi_factors {
    int count, at[EPI_RECURRENCE_FACTORS];
} epi_factors;

typedef struct epi_recurrence {
    int scan;
    bool back; /* from the end */
    epi_axis time;
    epi_axes batch, rows, cols;
    int decay;       /* a value in memory, or a number; at a step it is that of */
    int decay_ahead; /* so many positions further on, as the gradient shifts it */
    epi_factors of; /* what is added to the state at each step: their product; nothing where there are none */
    int first;      /* the state before the first step, which decays; or EPI_NO_NODE */
    int added;      /* what is added to the state at the first step; or EPI_NO_NODE */
    int out[EPI_TAKE_COUNT]; /* values, or EPI_NO_NODE */
    epi_factors by[EPI_TAKE_COUNT];
    struct epi_recurrence *other; /* of PRODUCT: the scan the other way, of the same rows and columns, */
    bool over_rows, over_cols;    /* and what is summed over */
    bool dropped;                 /* it cannot be one part */
    epi_node_list inner; /* values of the state's shape, which nobody makes: the scan, products, sums */
} epi_recurrence;

typedef struct epi_recurrences {
    epi_recurrence *at;
    int count;
} epi_recurrences;

/* All of a program: scans of which nothing else is wanted. A scan may have several, each with other sums; with `sums`, one
 * has sums of several kinds where it can. False: no memory. */
bool epi_recurrences_find(epi_arena *arena, const epi_spec *spec, bool sums, epi_recurrences *out);
/* The first of its results. */
int epi_recurrence_result(const epi_recurrence *r);
/* Of a sum of a scan's states, or of a product of two scans' states: is it over more than axes of the state? Then the
 * sum over *inner can be of a recurrence. */
bool epi_recurrence_split(const epi_spec *spec, const epi_graph *g, int sum, epi_axes *inner);
/* The scan whose states a sum is of, or EPI_NO_NODE. */
int epi_recurrence_scan(const epi_graph *g, int sum);
/* What must lie in memory. Returns how many. */
int epi_recurrence_operands(const epi_recurrence *r, int out[EPI_RECURRENCE_OPERANDS]);
/* Has the factor some of these axes? */
bool epi_factor_has(const epi_graph *g, int node, const epi_axes *axes);

#endif
