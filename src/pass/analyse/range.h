/* range.h: between which numbers a value lies, whatever finite numbers the inputs are. */
#ifndef EPI_PASS_RANGE_H
#define EPI_PASS_RANGE_H

#include "ir/graph.h"

typedef struct epi_range {
    double low, high;
    bool nan; /* it may be NaN */
} epi_range;

/* From those of its operands, by node of the same graph. chooses: by input, whether a choice depends on it. */
epi_range epi_range_of(const epi_graph *g, const epi_node *n, const epi_range *at, const bool *chooses);
/* Of what is finite, and nothing else is known of it. */
epi_range epi_range_finite(void);
bool epi_is_finite(const epi_range *r);
/* Is the node a quotient by a scale of its dividend: by its largest element over a number from 4 to 2^20, but by 2^-100 at
 * least? */
bool epi_is_scaled(const epi_graph *g, int node);
/* By 2^-64 at least, and is a number of e4m3 or of e5m2 all that becomes of it? */
bool epi_is_scaled_byte(const epi_graph *g, int node);

#endif
