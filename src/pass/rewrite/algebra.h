/* algebra.h: one law, applied to whole programs: a sum over products of factors can be computed in any
 * order, and factors that lack an axis move out of the sum over it. */
#ifndef EPI_PASS_ALGEBRA_H
#define EPI_PASS_ALGEBRA_H

#include "ir/spec.h"
#include "pass/rewrite/normal.h"

typedef enum epi_algebra_rule {
    EPI_RULE_DELAY,
    EPI_RULE_RELOCATE,
    EPI_RULE_REORDER,
    EPI_RULE_REUSE,
    EPI_RULE_UNIFY,
    EPI_RULE_COUNT
} epi_algebra_rule;

const char *epi_rule_name(epi_algebra_rule rule);

/* What was done to a program, for those who want to read it. */
typedef struct epi_algebra_log {
    int applied[EPI_RULE_COUNT];
} epi_algebra_log;

/* What is left to choose. */
typedef struct epi_algebra_choice {
    unsigned without; /* rules that are not applied, as bits */
    bool near;        /* what is made of no product is multiplied where it was written */
    bool *pinned;     /* by input: a vector that stays where it was written; NULL: none does */
    bool *folds;      /* by input: a param that is multiplied into weights that are params; NULL: none is */
} epi_algebra_choice;

/* Rewrites the spec's program into *out, whose arena is set. Inputs and outputs are the same tensors. Nothing
 * is decided by the sizes of row axes. */
void epi_algebra_rewrite(const epi_spec *spec, const epi_algebra_choice *choice, epi_graph *out,
                         epi_algebra_log *log);

/* The rules: each notes by node what stands for it, where nothing does before, and returns how often.
 *
 * reorder.c: (x @ a) @ b with a and b of weights is x @ (a @ b) where that is less work. */
int epi_reorder(epi_facts *facts, int *found);
/* reuse.c: sum(u*z) is sum(u*(r*z))/r where r*z is stored anyway. */
int epi_reuse(epi_facts *facts, int *found);
/* unify.c: operand[x] is what stands for x in products, and by which vectors it differs: those that one may
 * divide by, and inputs that cancel. */
int epi_unify(epi_facts *facts, const bool *cancels, epi_stand_in *operand);

/* silu(x) beside sigmoid(x) is x times it: one exponential for both. Notes by node what stands for it, of a
 * graph that had so many nodes when it was finished. */
bool epi_find_silu(epi_graph *g, int count, int *found);

/* relocate.c: statistics that wait for a product, sum(u*(p @ q), X) with X an axis of q, are the sum of p
 * times sum(u*q, X), where that is a product that is at hand. Nodes are added to the graph of the facts,
 * which was finished before; found[s] is what stands for the statistic s, or EPI_NO_NODE. Both lists are by
 * node as they were before: which sums may be replaced, and which products are at hand. Returns how many it
 * found. */
int epi_relocate(epi_facts *facts, const bool *may, const bool *at_hand, int *found);

/* order.c: the same graph, with what waits for nothing first; it was finished with so many nodes. */
void epi_order(const epi_graph *in, int count, epi_graph *out);

/* Copies a graph that nodes were added to, with found[n], where it is a node, instead of n. With `cancels`
 * products that have it as a factor are multiplied out, so that what is above and below a line cancels. */
void epi_replace(const epi_graph *in, int count, const int *found, bool cancels, epi_graph *out);

#endif
