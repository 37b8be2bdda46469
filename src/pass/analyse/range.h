/* range.h: between which numbers a value lies, for all finite inputs. */
#ifndef EPI_PASS_RANGE_H
#define EPI_PASS_RANGE_H

#include "ir/graph.h"

typedef struct epi_range {
    double low, high;
    bool nan; /* it may be NaN */
} epi_range;

/* Of the nodes of a graph that may still grow. */
typedef struct epi_ranges {
    const bool *chooses; /* by input: a choice depends on it; or NULL: none does */
    bool
        makes; /* infinities are made of finite numbers, too: 1/0, exp(100); else they are those that the text writes */
    epi_range *at;
    int count, capacity;
} epi_ranges;

/* Of a node, or NULL after an error, which the graph tells. */
const epi_range *epi_range_of(epi_ranges *r, epi_graph *g, int node);
/* Of what is finite, and nothing else is known of it. */
epi_range epi_range_finite(void);
bool epi_is_finite(const epi_range *r);
/* Is the node a quotient by a scale of its dividend: by its largest element over a number from 4 to 2^20, but by 2^-100 at
 * least? */
bool epi_is_scaled(const epi_graph *g, int node);
/* By 2^-64 at least, and is a number of e4m3 or of e5m2 all that becomes of it? */
bool epi_is_scaled_byte(const epi_graph *g, int node);

#endif
