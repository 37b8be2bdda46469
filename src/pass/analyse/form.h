/* form.h: a value as a number times powers of other values, which is how simplify.c sees it. */
#ifndef EPI_PASS_FORM_H
#define EPI_PASS_FORM_H

#include "ir/graph.h"

enum { EPI_MOST_FACTORS = 24 };
/* Of a factor, at most: it is written as multiplications, so a product of many equal factors is a product of
 * such powers, each of them one factor. */
enum { EPI_MOST_POWER = 8 };

typedef struct epi_form_factor {
    int node, power; /* a node of the new graph; the power is not 0 */
} epi_form_factor;

typedef struct epi_form {
    double number;
    int count;
    epi_form_factor at[EPI_MOST_FACTORS];
} epi_form;

/* A constant, or one with minuses. */
bool epi_is_number(const epi_graph *g, int node, double *number);
bool epi_is_constant(const epi_graph *g, int node, double value); /* is it this number? */
static inline bool epi_is_zero(const epi_graph *g, int node) {
    return epi_is_constant(g, node, 0);
}
/* Which operand x is of where(c, x, 0) or where(c, 0, x); 0: it is none of these. */
int epi_choice_of(const epi_graph *g, int node);
/* Is it max(x, 1) or the like: never below a number that is positive? */
bool epi_is_clamped(const epi_graph *g, const epi_node *n);
/* Is it 0*index(X), by which epi_graph_complete gives a value an axis? */
bool epi_is_zeros(const epi_graph *g, int node);
epi_form epi_form_of(const epi_graph *g, int node, int power);
/* *f times another, or with sign -1 over it; false where there is no room. */
bool epi_form_multiply(const epi_graph *g, epi_form *f, const epi_form *by, int sign);
/* Which factor is this node with a power of this sign, or -1; and which is this one, with the same power. */
int epi_form_find(const epi_form *f, int node, int sign);
int epi_form_find_factor(const epi_form *f, epi_form_factor factor);
void epi_form_drop(epi_form *f, int factor);
/* Do both have the same factors with the same powers? */
bool epi_forms_match(const epi_form *a, const epi_form *b);
/* The factors that have some of these axes; *others are the rest, with the number. */
epi_form epi_form_having(const epi_graph *g, const epi_form *f, const epi_axes *axes, epi_form *others);
/* Are both joins of the same halves, and nothing else? Then their sum is a join of sums. */
bool epi_forms_join(const epi_graph *g, const epi_form *a, const epi_form *b);

/* The form as nodes: factors of few axes are multiplied with each other first. */
int epi_form_build(epi_graph *g, const epi_form *f);
int epi_form_build_positive(epi_graph *g, const epi_form *f); /* without its sign */

/* Its sum over these axes: factors that lack them go out of it, an axis that none has is a multiplication by
 * its size, and what stays is a product of two operands where it is one. */
epi_form epi_form_sum(epi_graph *g, const epi_form *f, const epi_axes *along);

#endif
