/* dequant.h: operands of products that are stored in few bits: s*q, s*(q - z) and s*q + m. */
#ifndef EPI_PASS_DEQUANT_H
#define EPI_PASS_DEQUANT_H

#include "ir/graph.h"

/* What such an operand is made of: `bytes` has an element of 8 bits each, or two of 4 bits along its last axis
 * (lang/packed.c). The others lack axes of the operand; EPI_NO_NODE: there is none. */
typedef struct epi_dequant {
    int bytes, scale, zero, offset;
    int bits;       /* 8 or 4 */
    bool is_signed; /* of 4 bits: two's complement */
} epi_dequant;

/* Is the value, by its form, such an operand? What is in `bytes` is for the caller to look at. */
bool epi_dequant_find(const epi_graph *g, int node, epi_dequant *out);

/* What the elements of a value are, where nobody computes others of them: those of an input, or of a conversion, in
 * any order. */
int epi_elements_source(const epi_graph *g, int node);

#endif
