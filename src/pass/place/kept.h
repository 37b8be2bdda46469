/* kept.h: what a plan says about a part is kept while a kernel is compiled, so that an equal part is not
 * planned again. Parts that cannot be one kernel are kept too. */
#ifndef EPI_PASS_KEPT_H
#define EPI_PASS_KEPT_H

#include "pass/place/plan.h"

/* What whoever cuts asks of a part: */
typedef struct epi_verdict {
    bool planned;     /* it has a plan at all: there was memory */
    bool fused;       /* it is one kernel, as far as its plan knows */
    bool plain;       /* and one of rows or a product, with nothing that a backend's tile may not hold */
    unsigned refused; /* what the cut took for granted (epi_plan_refused) */
    int launches;     /* besides that of its mainloop: passes before it, and those that fold its partials */
} epi_verdict;

/* An empty table; NULL: no memory. */
epi_kept *epi_kept_make(void);
void epi_kept_free(epi_kept *kept);
/* The verdict on a part: its graph, types and slices are in the spec. It comes from what the spec has kept, if equal
 * parts were asked for before. */
epi_verdict epi_verdict_of(const epi_spec *spec);

#endif
