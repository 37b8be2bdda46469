/* normal.h: a graph in the normal form of the algebra. Every value is a product of factors in one order,
 * every sum has its terms in one order, and factors that lack the axes of a sum move out of it, as far as
 * that helps.
 */
#ifndef EPI_PASS_NORMAL_H
#define EPI_PASS_NORMAL_H

#include "pass/analyse/facts.h"

/* Instead of an operand of products: another value that is this one times a product of vectors. None of these
 * may depend on such a product. */
typedef struct epi_stand_in {
    int node; /* EPI_NO_NODE: there is none */
    epi_monomial by;
    bool sums; /* also where a product with the operand is summed otherwise: sum(u*x, X) */
} epi_stand_in;

/* A strict walk: nothing is left out that is not the same for infinity and NaN, and all stays in the order that
 * it is written in. */
typedef struct epi_normal_walk epi_normal_walk;
typedef struct epi_strict {
    int first; /* nodes before it stay as they are: what a text says in this order has its bits from it */
    /* Rules beside those of the normal form; false: it is none of theirs. */
    bool (*rule)(epi_normal_walk *w, const epi_node *n, epi_monomial *out);
    int (*last)(epi_graph *g, int first, int value); /* of a result that is made from node `first` on */
    const void *ctx;                                 /* the rules' own */
} epi_strict;

typedef struct epi_normal_request {
    const epi_graph *in;         /* was finished; nodes may have been added since */
    int count;                   /* of nodes before that */
    const int *found;            /* by node: what stands for it, or EPI_NO_NODE; or NULL */
    const epi_stand_in *operand; /* by node; or NULL */
    const epi_strict *strict;    /* or NULL: it is free */
    epi_facts known;             /* of inputs and sizes */
} epi_normal_request;

/* Rewrites into *out, whose arena is set, and finishes it. An error is in out->error. The facts are those of
 * *out. Returns how many nodes of *out are those that a strict walk left as they are. */
int epi_normal(const epi_normal_request *request, epi_graph *out, epi_facts *facts);

/* What rules see of a walk, by nodes of the graph that comes in. */
struct epi_normal_walk {
    const epi_normal_request *request;
    const epi_graph *in;
    epi_graph *g;
    epi_facts *facts;
    int *memo;               /* the value, or EPI_NO_NODE: it is not written yet, */
    epi_monomial *monomials; /* and is this, in a strict walk */
    int copied;              /* nodes that were left as they are */
};
int epi_normal_value(epi_normal_walk *w, int node);             /* in the new graph */
epi_monomial epi_normal_monomial(epi_normal_walk *w, int node); /* all of it, or itself */
int epi_normal_operand(epi_normal_walk *w, const epi_node *n,
                       int a); /* with all axes it had, or EPI_NO_NODE */
epi_monomial epi_normal_rebuild(epi_normal_walk *w, const epi_node *n); /* the same operation */
/* The terms of a sum or difference, in a list of twice EPI_MOST_TERMS; 0: there are more than EPI_MOST_TERMS. */
int epi_normal_terms(epi_normal_walk *w, const epi_node *n, double sign, epi_monomial *terms);

/* order.c: lists the live nodes below `count`, the inputs and what they need, each behind all that it needs.
 * `needs` tells that of one node, and how many they are. NULL: no memory, or they need each other in a
 * circle.
 */
enum { EPI_MOST_NEEDED = 3 + 2 * (1 + EPI_MOST_FACTORS) };
typedef int epi_needs(const void *ctx, int node, int *out);
int *epi_list_needed(epi_arena *arena, const epi_graph *in, int count, epi_needs *needs, const void *ctx,
                     int *listed);

/* Two monomials that a product was written with. */
typedef struct epi_written {
    epi_monomial side[2];
} epi_written;

/* normal_sum.c: the sum of a product over axes in the normal form; `origin` is how it was written, or NULL. */
epi_monomial epi_normal_sum(epi_facts *facts, const epi_monomial *f, const epi_axes *over,
                            const epi_written *origin);

#endif
