/* kept.h: the plan of a part is kept while a kernel is compiled, and what the backend says of it, so that an equal
 * part is not planned again. Parts that cannot be one kernel are kept too. */
#ifndef EPI_PASS_KEPT_H
#define EPI_PASS_KEPT_H

#include "pass/place/plan.h"

/* What whoever cuts asks of a part: */
typedef struct epi_verdict {
    bool fused;       /* it is one kernel, as far as its plan knows; not where there was no memory for one */
    bool plain;       /* and one of rows or a product, with nothing that a backend's tile may not hold */
    unsigned granted; /* what the cut took for granted of it, as bits of epi_refusal */
    int launches;     /* besides that of its mainloop: passes before it, and those that fold its partials */
} epi_verdict;

/* A table with what `from` has, which outlives it, or an empty one; NULL: no memory. */
epi_kept *epi_kept_make(const epi_kept *from);
void epi_kept_free(epi_kept *kept);
/* Was there memory for all that was to be kept? */
bool epi_kept_is_whole(const epi_kept *kept);
/* The verdict on a part: its graph, types and slices are in the spec. It comes from what the spec has kept, if equal
 * parts were asked for before. */
epi_verdict epi_verdict_of(const epi_spec *spec);
/* Its plan, if it is kept; else NULL. It lives as long as the table. */
const epi_plan *epi_kept_plan(const epi_spec *spec);
/* 0: the backend takes it as one kernel, as far as is known; else what was taken for granted of it. */
unsigned epi_refused_of(const epi_spec *spec);
/* The backend refuses it, as is found only when it is compiled. False: that was known, or cannot be kept. */
bool epi_kept_refuse(const epi_spec *spec);

#endif
