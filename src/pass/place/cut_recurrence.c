/* cut_recurrence.c: which values of a program become parts that are scans of products.
 *
 * The states of such a scan are never in memory, so every user of them must be such a part, which computes
 * the steps itself. Candidates (recurrence.c) that break this are dropped until the rest agree. */
#include <string.h>

#include "pass/place/placer.h"

/* Is every value of the state's shape needed by such parts alone? */
static bool agrees(const epi_placer *s, const epi_recurrence *r) {
    bool all = true;
    for (int i = 0; i < r->inner.count && all; i++) {
        epi_use_list uses = epi_graph_uses(s->g, r->inner.at[i]);
        for (int u = 0; u < uses.count && all; u++) {
            int user = uses.at[u].node;
            all = user != EPI_NO_NODE && (s->stepped[user] || s->recurrence_of[user]);
        }
    }
    return all;
}

/* Are its results of one direction? */
static bool has_one_direction(const epi_placer *s, const epi_recurrence *r) {
    bool one = true;
    int first = epi_recurrence_result(r);
    for (int t = 0; t < EPI_TAKE_COUNT; t++)
        one &= r->out[t] == EPI_NO_NODE || s->forward[r->out[t]] == s->forward[first];
    return one;
}

/* Marks what nobody makes, and whose each result is. */
static void claim(epi_placer *s) {
    memset(s->stepped, 0, (size_t)s->g->node_count);
    memset(s->recurrence_of, 0, (size_t)s->g->node_count * sizeof *s->recurrence_of);
    for (int k = 0; k < s->recurrences.count; k++) {
        const epi_recurrence *r = &s->recurrences.at[k];
        for (int i = 0; i < r->inner.count && !r->dropped; i++)
            s->stepped[r->inner.at[i]] = true;
        for (int t = 0; t < EPI_TAKE_COUNT && !r->dropped; t++)
            if (r->out[t] != EPI_NO_NODE)
                s->recurrence_of[r->out[t]] = k + 1;
    }
}

static bool is_open(const epi_placer *s, const epi_axes *axes) {
    bool open = false;
    for (int i = 0; i < axes->count; i++)
        open |= epi_open_has(s->spec->open, axes->at[i].dim);
    return open;
}

/* May a kernel have its state? The number of rows is a limit of that, also where they count rows of the program. */
static bool fits(const epi_placer *s, const epi_recurrence *r) {
    int64_t rows = epi_axes_size(&r->rows, s->spec->sizes), cols = epi_axes_size(&r->cols, s->spec->sizes),
            held = 32;
    while (held < rows)
        held *= 2;
    bool fits = !is_open(s, &r->rows) && rows <= s->limits->recurrence_most;
    if (r->other && !s->limits->recurrence_sums)
        fits &= r->over_rows &&
                (!r->over_cols || (!is_open(s, &r->cols) && held * cols <= s->limits->recurrence_product));
    return fits;
}

bool epi_placer_find_recurrences(epi_arena *arena, epi_placer *s) {
    size_t nodes = (size_t)s->g->node_count + 1;
    s->recurrence_of = epi_arena_alloc(arena, nodes * sizeof *s->recurrence_of);
    s->stepped = epi_arena_alloc(arena, nodes);
    if (!s->recurrence_of || !s->stepped ||
        (s->limits->recurrence_most &&
         !epi_recurrences_find(arena, s->spec, s->limits->recurrence_sums, &s->recurrences)))
        return false;
    for (int k = 0; k < s->recurrences.count; k++) {
        epi_recurrence *r = &s->recurrences.at[k];
        r->dropped = !has_one_direction(s, r) || !fits(s, r);
    }
    return true;
}

void epi_placer_agree_recurrences(epi_placer *s) {
    for (bool again = true; again;) {
        again = false;
        claim(s);
        for (int k = 0; k < s->recurrences.count; k++)
            if (!s->recurrences.at[k].dropped && !agrees(s, &s->recurrences.at[k]))
                s->recurrences.at[k].dropped = again = true;
    }
    for (int i = 0; i < s->g->node_count; i++)
        if (s->stepped[i]) {
            s->inner[i] = s->placed[i] = true;
            s->placement[i] = (epi_cut_placement){EPI_PLACED_SCORE, -1};
        }
}

bool epi_placer_drop_recurrence(epi_placer *s) {
    for (int k = 0; k < s->recurrences.count; k++) {
        epi_recurrence *r = &s->recurrences.at[k];
        bool waits = !r->dropped;
        for (int t = 0; t < EPI_TAKE_COUNT; t++)
            waits &= r->out[t] == EPI_NO_NODE || !s->placed[r->out[t]];
        r->dropped |= waits;
        if (waits)
            return true;
    }
    return false;
}

bool epi_placer_recurrence_ready(const epi_placer *s, const epi_recurrence *r) {
    int operands[EPI_RECURRENCE_OPERANDS], count = epi_recurrence_operands(r, operands);
    bool ready = true;
    for (int i = 0; i < count; i++)
        ready &= s->placed[operands[i]];
    return ready;
}

void epi_placer_place_recurrence(epi_placer *s, const epi_recurrence *r, int part) {
    epi_placer_part *p = &s->parts[part];
    p->recurrence = r;
    p->kind = EPI_KIND_RECURRENCE;
    for (int t = 0; t < EPI_TAKE_COUNT; t++)
        if (r->out[t] != EPI_NO_NODE) {
            s->placement[r->out[t]] = (epi_cut_placement){EPI_PLACED_AFTER, part};
            s->placed[r->out[t]] = true;
        }
}
