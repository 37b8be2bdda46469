/* algebra.h: one law, applied to whole programs: a sum over products of factors can be taken in any order,
 * and factors that lack an axis move past its sum. */
#ifndef EPI_PASS_ALGEBRA_H
#define EPI_PASS_ALGEBRA_H

#include "pass/facts.h"

/* relocate.c: statistics that wait for a product, sum(u*(p @ q), X) with X an axis of q, are the sum of p
 * times sum(u*q, X), where that is a product that is at hand. Nodes are added to the graph of the facts,
 * which was finished before; found[s] is what stands for the statistic s, or EPI_NO_NODE. Both lists are by
 * node as they were before: which sums may be replaced, and which products are at hand. Answers how many it
 * found. */
int epi_relocate(epi_facts *facts, const bool *may, const bool *at_hand, int *found);

/* Copies a graph that nodes were added to, with found[n], where it is a node, instead of n. */
void epi_replace(const epi_graph *in, int count, const int *found, epi_graph *out);

#endif
