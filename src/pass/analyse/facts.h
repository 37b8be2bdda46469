/* facts.h: what the rules of the algebra ask about a value, cached by node, for a graph that may still grow.
 */
#ifndef EPI_PASS_FACTS_H
#define EPI_PASS_FACTS_H

#include "pass/analyse/monomial.h"
#include "pass/analyse/range.h"

typedef struct epi_fact {
    int depth;     /* how many products lie on the longest way to it: it stands for when it is complete */
    bool weights;  /* it depends on weights alone: inputs that have no row axis */
    bool params;   /* it depends on such weights alone as are marked as params, */
    bool marked;   /* and on one at least */
    bool folds;    /* some of its inputs are to be multiplied into other params */
    bool positive; /* neither 0 nor negative, so one over it cancels against it where it is finite */
    bool divides;  /* positive, and not as small as numbers get: one may divide by it */
    bool keep;     /* a sum that several values use: it stays one value */
    epi_monomial *monomial; /* it as a product, or NULL: nobody has asked */
} epi_fact;

typedef struct epi_facts {
    epi_graph *g;
    int finished; /* nodes that it had when it was finished: rules look at these, and may add others */
    const bool *is_weight;  /* by input, or NULL: none is a weight */
    const bool *is_foreign; /* by input, or NULL: of a type that no product takes */
    const bool *pinned;     /* by input, or NULL: a vector that stays where it was written */
    const bool *folds;      /* by input, or NULL: a param that goes to an operand of params */
    const bool *cancels;    /* by input, or NULL: one over it cancels against it, whatever is known of it */
    const int64_t *sizes;   /* by dim, rows at their nominal number; or NULL */
    bool no_delay;          /* nothing goes past a product */
    bool near;              /* nor does what is made of none, unless it is of weights */
    int delayed;            /* factors that went past one */
    bool strict; /* nothing is left out that is not the same for infinity and NaN, and factors stay in the
                    order that they are written in; else x - x is 0, and a mean is a sum over a size */
    int count, capacity;
    epi_fact *at;      /* by node */
    epi_ranges ranges; /* of those that might cancel */
    epi_visits visits; /* of epi_reaches, with room for so many nodes: */
    int visits_capacity;
    int *todo, todo_capacity; /* of epi_flat_monomial: nodes, each wanted by the one before it */
} epi_facts;

/* Of a node, or NULL after an error, which the graph tells. */
const epi_fact *epi_fact_of(epi_facts *facts, int node);

/* The value as a number times powers of values that are no products: products, quotients and signs are taken
 * apart all the way down. Where there is no room it is one factor. */
epi_monomial epi_flat_monomial(epi_facts *facts, int node);

/* *f times another, or over it with sign -1; a positive, finite factor cancels against one over itself. False
 * where there is no room. */
bool epi_flat_multiply(epi_facts *facts, epi_monomial *f, const epi_monomial *by, int sign);

/* *f over the number of elements along these axes, as a mean is over its sum; false where there is no room.
 */
bool epi_flat_over_sizes(epi_facts *facts, epi_monomial *f, const epi_axes *axes);

/* A product as a node, its factors in one order. */
int epi_flat_build(epi_facts *facts, const epi_monomial *f);

/* A number of a factor; sums of these are the same in any order. */
uint64_t epi_factor_hash(epi_monomial_factor factor);

/* Has a long value a power above 2? It is not multiplied out then: of (r*x)**3 the cube of x may be too large
 * for f32 where that of r*x is not; its square is not where the norm of the row is a number. */
bool epi_flat_is_steep(const epi_graph *g, const epi_monomial *f);

/* polynomial.c: the terms that a value is the sum of, itself where it is none. Where a sum that is to stay one value stands
 * inside it, that is a term. Returns how many, or 0: there are more than fit. */
enum { EPI_MOST_TERMS = 32 };
int epi_flat_terms(epi_facts *facts, int node, epi_monomial *terms);

/* The sum of products as one: equal ones are added up, and factors that all have go out of it. Changes the
 * list. */
epi_monomial epi_flat_add(epi_facts *facts, epi_monomial *terms, int count);

/* join(a, b) + join(c, d) is join(a + c, b + d). Returns how many terms are left. */
int epi_flat_join(epi_facts *facts, epi_monomial *terms, int count);

/* Does a value depend on a node, with found[n], where it is a node, instead of n for n below `count`? Two
 * values that are one number would otherwise be replaced by each other. */
bool epi_reaches(epi_facts *facts, int value, int node, const int *found, int count);

#endif
