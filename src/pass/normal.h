/* normal.h: a graph in the normal form of the algebra: every value a product of factors in one order, every
 * sum of terms in one order, and of every sum over axes what lacks the axes taken out, as far as that helps.
 */
#ifndef EPI_PASS_NORMAL_H
#define EPI_PASS_NORMAL_H

#include "pass/facts.h"

/* Instead of an operand of products: another value that is this one times a product of vectors. None of these
 * may depend on such a product. */
typedef struct epi_operand {
    int node; /* EPI_NO_NODE: there is none */
    epi_form by;
    bool sums; /* also where a product with the operand is summed otherwise: sum(u*x, X) */
} epi_operand;

typedef struct epi_normal_ask {
    const epi_graph *in;        /* was finished; nodes may have been added since */
    int count;                  /* of nodes before that */
    const int *found;           /* by node: what stands for it, or EPI_NO_NODE; or NULL */
    const epi_operand *operand; /* by node; or NULL */
    const bool *is_weight;      /* by input */
    const bool *is_foreign;     /* by input */
    const int64_t *sizes;       /* by dim, rows at their nominal number */
    bool no_delay;              /* nothing goes past a product */
    const bool *stays;          /* by input: a vector that stays where it was written; or NULL */
    const bool *folds;          /* by input: a param that goes to an operand of params; or NULL */
    const bool *cancels;        /* by input: one over it cancels against it; or NULL */
} epi_normal_ask;

/* Rewrites into *out, whose arena is set, and finishes it. An error is in out->error. The facts are those of
 * *out. */
void epi_normal(const epi_normal_ask *ask, epi_graph *out, epi_facts *facts);

/* The sum of a product over axes in the normal form. */
epi_form epi_normal_sum(epi_facts *facts, const epi_form *f, const epi_axes *over);

/* A product as a node, its factors in one order. */
int epi_normal_build(epi_facts *facts, const epi_form *f);

/* One half of an axis, and two halves put together, in the normal form. EPI_NO_NODE after an error. */
int epi_normal_half(epi_facts *facts, epi_op op, int node, epi_axis axis);
int epi_normal_join(epi_facts *facts, epi_op op, int a, int b, epi_axis axis);

#endif
