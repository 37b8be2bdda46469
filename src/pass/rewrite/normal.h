/* normal.h: a graph in the normal form of the algebra: every value a product of factors in one order, every
 * sum of terms in one order, and of every sum over axes what lacks the axes taken out, as far as that helps.
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

typedef struct epi_normal_request {
    const epi_graph *in;         /* was finished; nodes may have been added since */
    int count;                   /* of nodes before that */
    const int *found;            /* by node: what stands for it, or EPI_NO_NODE; or NULL */
    const epi_stand_in *operand; /* by node; or NULL */
    epi_facts known;             /* of inputs and sizes */
} epi_normal_request;

/* Rewrites into *out, whose arena is set, and finishes it. An error is in out->error. The facts are those of
 * *out. */
void epi_normal(const epi_normal_request *request, epi_graph *out, epi_facts *facts);

/* order.c: lists the live nodes below `count`, the inputs and what they need, each behind all that it needs.
 * `needs` tells that of one node, and how many they are. NULL: no memory, or they need each other in a
 * circle.
 */
enum { EPI_MOST_NEEDED = 3 + 2 * (1 + EPI_MOST_FACTORS) };
typedef int epi_needs(const void *ctx, int node, int *out);
int *epi_list_needed(epi_arena *arena, const epi_graph *in, int count, epi_needs *needs, const void *ctx,
                     int *listed);

/* The sum of a product over axes in the normal form. */
epi_monomial epi_normal_sum(epi_facts *facts, const epi_monomial *f, const epi_axes *over);

#endif
