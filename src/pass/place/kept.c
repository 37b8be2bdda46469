/* kept.c: cached verdicts on parts, by a hash of their contents. */
#include "pass/place/kept.h"

#include <stdlib.h>

#include "ir/content.h"
#include "pass/place/placer.h"
#include "pass/place/refusals.h"

/* Verdicts by the hash of their part: a slot is empty where both words are zero. The slots are a power of two. */
struct epi_kept {
    epi_arena arena; /* its own: a kernel is also planned in arenas that are thrown away */
    struct slot {
        epi_hash of;
        epi_verdict verdict;
    } * slots;
    size_t count, room;
};

epi_kept *epi_kept_make(void) {
    return calloc(1, sizeof(epi_kept));
}

void epi_kept_free(epi_kept *kept) {
    if (kept)
        epi_arena_free(&kept->arena);
    free(kept);
}

/* ---- verdicts ---- */

/* Is it one kernel of rows or of a product, with nothing before and after its mainloop, and nothing that a backend's
 * tile may not hold: a second product, an update, or reductions inside? */
static bool is_plain(const epi_graph *g, const epi_plan *plan) {
    int folds = 0;
    bool is = plan->kind == EPI_KIND_ROWS || (plan->kind == EPI_KIND_GEMM && !plan->local_axes &&
                                              !plan->added_count && plan->pair == EPI_NO_NODE);
    for (int i = 0; i < g->node_count && is; i++) {
        const epi_placement *p = &plan->placement[i];
        folds += p->reduction == EPI_REDUCE_LOCAL;
        is = !p->before && !p->after && !p->moved && folds <= EPI_MOST_FOLDS;
    }
    return is;
}

/* Passes before the mainloop, and those that fold its partials along the rows, and down them. */
static int extra_launches(const epi_graph *g, const epi_plan *plan) {
    int passes = 0;
    bool folds[2] = {false};
    for (int i = 0; i < g->node_count; i++) {
        const epi_placement *at = &plan->placement[i];
        passes += at->before && !epi_op_is_leaf(g->nodes[i].op);
        if (at->reduction > EPI_REDUCE_LOCAL)
            folds[at->reduction == EPI_REDUCE_COLS] = true;
    }
    return passes + folds[0] + folds[1];
}

static epi_verdict judge(const epi_spec *spec) {
    epi_arena scratch = {0};
    epi_plan plan;
    epi_verdict v = {.planned = epi_plan_make(&scratch, spec, &plan, NULL) == EPI_OK};
    v.fused = v.planned && plan.fused;
    if (v.planned && !v.fused)
        v.refused = epi_plan_refused(spec->graph, &plan);
    if (v.fused) {
        v.plain = is_plain(spec->graph, &plan);
        v.launches = extra_launches(spec->graph, &plan);
    }
    epi_arena_free(&scratch);
    return v;
}

static bool is_free(const struct slot *s) {
    return !s->of.a && !s->of.b;
}

static struct slot *slot_of(struct slot *slots, size_t room, epi_hash of) {
    size_t at = of.a & (room - 1);
    while (!is_free(&slots[at]) && !epi_hash_equal(slots[at].of, of))
        at = (at + 1) & (room - 1);
    return &slots[at];
}

/* Makes room for one more. The table is at most half full. False: no memory. */
static bool make_room(epi_kept *k) {
    if (2 * k->count < k->room)
        return true;
    size_t room = k->room ? 2 * k->room : 64;
    struct slot *slots = epi_arena_alloc(&k->arena, room * sizeof *slots);
    for (size_t i = 0; i < k->room && slots; i++)
        if (!is_free(&k->slots[i]))
            *slot_of(slots, room, k->slots[i].of) = k->slots[i];
    if (slots) {
        k->slots = slots;
        k->room = room;
    }
    return slots != NULL;
}

epi_verdict epi_verdict_of(const epi_spec *spec) {
    epi_kept *k = spec->kept;
    if (!k || !make_room(k))
        return judge(spec);
    epi_hash of = epi_spec_content(spec);
    struct slot *s = slot_of(k->slots, k->room, of);
    if (!is_free(s))
        return s->verdict;
    epi_verdict v = judge(spec);
    if (v.planned) {
        *s = (struct slot){of, v};
        k->count++;
    }
    return v;
}
