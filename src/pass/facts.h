/* facts.h: what the rules of the algebra ask of a value, kept by node, of a graph that may still grow. */
#ifndef EPI_PASS_FACTS_H
#define EPI_PASS_FACTS_H

#include "pass/form.h"

typedef struct epi_fact {
    int depth;      /* how many products lie on the longest way to it: it stands for when it is complete */
    bool weights;   /* it depends on weights alone: inputs that have no row axis */
    bool positive;  /* neither 0 nor negative, so one over it cancels against it */
    bool divides;   /* positive, and not as small as numbers get: one may divide by it */
    epi_form *form; /* it as a product, or NULL: nobody has asked */
} epi_fact;

typedef struct epi_facts {
    epi_graph *g;
    const bool *is_weight; /* by input, or NULL: none is a weight */
    int count, capacity;
    epi_fact *at; /* by node */
} epi_facts;

/* Of a node, or NULL after an error, which the graph tells. */
const epi_fact *epi_fact_of(epi_facts *facts, int node);

/* The value as a number times powers of values that are no products: products, quotients and signs are taken
 * apart all the way down. Where there is no room it is one factor. */
epi_form epi_flat_form(epi_facts *facts, int node);

/* *f times another, or over it with sign -1; a positive factor cancels against one over itself. False where
 * there is no room. */
bool epi_flat_multiply(epi_facts *facts, epi_form *f, const epi_form *by, int sign);

/* The sum of products as one: equal ones are added up, and factors that all have go out of it. Changes the
 * list. */
epi_form epi_flat_add(epi_facts *facts, epi_form *terms, int count);

/* The factors that have some of these axes; *others are the rest, with the number. */
epi_form epi_form_having(const epi_graph *g, const epi_form *f, const epi_axes *axes, epi_form *others);

/* Do both have the same factors with the same powers? */
bool epi_forms_match(const epi_form *a, const epi_form *b);

#endif
