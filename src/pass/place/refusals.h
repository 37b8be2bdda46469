/* refusals.h: what a backend refused of a program. */
#ifndef EPI_PASS_REFUSALS_H
#define EPI_PASS_REFUSALS_H

#include "pass/place/cut.h"

/* What the cut took for granted of a part with this plan, as bits of epi_refusal: it is given up where the
 * part is refused. */
unsigned epi_plan_refused(const epi_graph *g, const epi_plan *plan);
/* Was a part with this number refused, and what of it? And was this refused of any part? */
bool epi_is_refused(const epi_backend_limits *limits, uint64_t part, unsigned *what);
bool epi_refusals_have(const epi_backend_limits *limits, unsigned what);
/* Notes it, one thing at a time, so that a part loses no more than it must. False: there is nothing that was
 * not known. */
bool epi_refusals_note(epi_refusals *r, uint64_t part, unsigned what);
/* The whole program does without one of these things. False: it does already. */
bool epi_limits_give_up(epi_backend_limits *limits, unsigned what);

#endif
