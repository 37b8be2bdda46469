/* monomial.h: a value as a number times powers of other values, which is how the algebra sees it. */
#ifndef EPI_PASS_MONOMIAL_H
#define EPI_PASS_MONOMIAL_H

#include "ir/graph.h"

enum { EPI_MOST_FACTORS = 24 };
/* Of a factor, at most: it is written as multiplications, so a product of many equal factors is a product of
 * such powers, each of them one factor. */
enum { EPI_MOST_POWER = 8 };

typedef struct epi_monomial_factor {
    int node, power; /* a node of the new graph; the power is not 0 */
} epi_monomial_factor;

typedef struct epi_monomial {
    double number;
    int count;
    epi_monomial_factor at[EPI_MOST_FACTORS];
} epi_monomial;

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
epi_monomial epi_monomial_of(const epi_graph *g, int node, int power);
/* *f times another, or with sign -1 over it; false where there is no room. */
bool epi_monomial_multiply(const epi_graph *g, epi_monomial *f, const epi_monomial *by, int sign);
/* Which factor is this node with a power of this sign, or -1; and which is this one, with the same power. */
int epi_monomial_find(const epi_monomial *f, int node, int sign);
int epi_monomial_find_factor(const epi_monomial *f, epi_monomial_factor factor);
void epi_monomial_drop(epi_monomial *f, int factor);
/* Do both have the same factors with the same powers? */
bool epi_monomials_match(const epi_monomial *a, const epi_monomial *b);
/* The factors that have some of these axes; *others are the rest, with the number. */
epi_monomial epi_monomial_having(const epi_graph *g, const epi_monomial *f, const epi_axes *axes,
                                 epi_monomial *others);
/* Are both joins of the same halves, and nothing else? Then their sum is a join of sums. */
bool epi_monomials_join(const epi_graph *g, const epi_monomial *a, const epi_monomial *b);

/* The monomial as nodes: factors of few axes are multiplied with each other first. */
int epi_monomial_build(epi_graph *g, const epi_monomial *f);
int epi_monomial_build_positive(epi_graph *g, const epi_monomial *f); /* without its sign */

#endif
