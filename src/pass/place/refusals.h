/* refusals.h: what a backend refused in a program. */
#ifndef EPI_PASS_REFUSALS_H
#define EPI_PASS_REFUSALS_H

#include "pass/place/cut.h"

/* What the cut took for granted of a part with this plan, as bits of epi_refusal: it is given up where the
 * part is refused. */
unsigned epi_plan_refused(const epi_graph *g, const epi_plan *plan);
/* Was a part with this number refused, and what of it? And was this refused of any part? */
bool epi_is_refused(const epi_backend_limits *limits, uint64_t part, unsigned *what);
bool epi_refusals_have(const epi_backend_limits *limits, unsigned what);
/* Notes it, one thing at a time, so that a part loses no more than it must: that thing, or 0 where there is
 * nothing that was not known. */
unsigned epi_refusals_note(epi_refusals *r, uint64_t part, unsigned what);
/* And the input of the program whose few bits it loaded; of any other value, -1, there is none to name. */
void epi_refusals_note_load(epi_refusals *r, int tensor);
bool epi_is_load_refused(const epi_backend_limits *limits, int tensor);
/* The whole program does without one of these things. False: it does already. */
bool epi_limits_give_up(epi_backend_limits *limits, unsigned what);

#endif
