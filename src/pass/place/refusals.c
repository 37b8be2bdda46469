/* refusals.c: what a backend refused in a program, and what is given up for it: in the refused part if
 * possible, else in all parts. */
#include "pass/place/refusals.h"

unsigned epi_plan_refused(const epi_graph *g, const epi_plan *plan) {
    unsigned what = EPI_REFUSED_KERNEL;
    bool loads = false;
    for (int n = 0; n < g->node_count && plan->attention; n++) {
        what |= plan->placement[n].paged ? EPI_REFUSED_PAGES : 0;
        loads |= plan->placement[n].on_load;
    }
    if (loads) /* of keys and values that are converted before it is attention all the same */
        return what | EPI_REFUSED_LOAD;
    what |= plan->attention ? EPI_REFUSED_ATTENTION : 0;
    /* reductions inside the tile of two products, or of one with scales, go first */
    bool scaled = epi_plan_operands(plan) && g->nodes[plan->product].scaled && !plan->local_axes,
         pair = plan->pair != EPI_NO_NODE && !plan->local_axes;
    what |= scaled ? EPI_REFUSED_SCALED : 0;
    what |= pair || plan->added_count ? EPI_REFUSED_PAIR : 0;
    what |= epi_plan_makes(g, plan) ? EPI_REFUSED_LOAD : 0;
    if (plan->local_axes)
        what |= epi_plan_has_full_rows(plan) ? EPI_REFUSED_FULL_ROW : EPI_REFUSED_LOCAL;
    else if (plan->tried_local)
        what |= EPI_REFUSED_LOCAL;
    return what;
}

bool epi_refusals_have(const epi_backend_limits *limits, unsigned what) {
    bool have = false;
    for (int i = 0; limits->refused && i < limits->refused->count; i++)
        have |= (limits->refused->at[i].what & what) != 0;
    return have;
}

bool epi_is_refused(const epi_backend_limits *limits, uint64_t part, unsigned *what) {
    *what = 0;
    bool found = false;
    for (int i = 0; limits->refused && i < limits->refused->count; i++)
        if (limits->refused->at[i].part == part) {
            *what |= limits->refused->at[i].what;
            found = true;
        }
    return found;
}

unsigned epi_refusals_note(epi_refusals *r, uint64_t part, unsigned what) {
    unsigned known;
    const epi_backend_limits all = {.refused = r};
    epi_is_refused(&all, part, &known);
    what &= ~known;
    what &= -what; /* the first of them */
    if (!what || r->count == EPI_MOST_REFUSED)
        return 0;
    r->at[r->count].part = part;
    r->at[r->count++].what = what;
    return what;
}

static bool has_load(const epi_refusals *r, int tensor) {
    bool has = r->all_loads;
    for (int i = 0; i < r->load_count; i++)
        has |= r->loads[i] == tensor;
    return has;
}

void epi_refusals_note_load(epi_refusals *r, int tensor) {
    if (has_load(r, tensor))
        return;
    r->all_loads |= tensor < 0 || r->load_count == EPI_MOST_REFUSED;
    if (!r->all_loads)
        r->loads[r->load_count++] = tensor;
}

bool epi_is_load_refused(const epi_backend_limits *limits, int tensor) {
    return limits->refused && has_load(limits->refused, tensor);
}

bool epi_limits_give_up(epi_backend_limits *limits, unsigned what) {
    if (limits->pages && what & EPI_REFUSED_PAGES)
        limits->pages = false;
    else if (limits->attention_most && what & EPI_REFUSED_ATTENTION)
        limits->attention_most = 0;
    else if (limits->pairs && what & EPI_REFUSED_PAIR)
        limits->pairs = false;
    else if (limits->full_row_most && what & EPI_REFUSED_FULL_ROW)
        limits->full_row_most = 0;
    else if (limits->local_most && what & EPI_REFUSED_LOCAL)
        limits->local_most = 0;
    else if (limits->scaled && what & EPI_REFUSED_SCALED)
        limits->scaled = 0;
    else if (limits->dequants && what & EPI_REFUSED_LOAD)
        limits->dequants = false;
    else if (!limits->apart && what & EPI_REFUSED_KERNEL)
        limits->apart = true;
    else
        return false;
    return true;
}
