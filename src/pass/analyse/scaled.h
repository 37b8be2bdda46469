/* scaled.h: products of 8-bit operands with scales, which a mainloop may read without conversion. */
#ifndef EPI_PASS_SCALED_H
#define EPI_PASS_SCALED_H

#include "ir/spec.h"

/* An operand s*q: its bits, and what these are multiplied by. */
enum { EPI_SCALED_FACTORS = 4 };
typedef struct epi_scaled_operand {
    int bits;
    epi_dtype type;
    bool turned; /* which lie in another order than the product wants */
    int factors[EPI_SCALED_FACTORS], factor_count;
} epi_scaled_operand;

/* Is it such a product, of a mainloop that wants scales to be the same for so many neighbours? 0: there is none. */
bool epi_scaled_find(const epi_spec *spec, const epi_node *product, int same, epi_scaled_operand out[2]);
/* Of a product that is marked as one: is this operand's scale the same for as many neighbours beside the depth, too? So
 * is that of the columns. */
bool epi_scaled_has_blocks(const epi_spec *spec, const epi_node *product, int operand, int same);

#endif
