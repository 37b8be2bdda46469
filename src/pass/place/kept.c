/* kept.c: cached verdicts on parts, by a hash of their contents. */
#include "pass/place/kept.h"

#include "ir/content.h"
#include "pass/place/placer.h"
#include "pass/place/refusals.h"

/* Verdicts by the hash of their part: a slot is empty where both words are zero. The slots are a power of two. */
struct epi_kept {
    epi_arena *arena;
    struct slot {
        epi_hash of;
        epi_verdict verdict;
    } * slots;
    size_t count, room;
};

epi_kept *epi_kept_make(epi_arena *arena) {
    epi_kept *k = epi_arena_alloc(arena, sizeof *k);
    if (k)
        *k = (epi_kept){.arena = arena};
    return k;
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
        passes += at->before && epi_ops[g->nodes[i].op].cls != EPI_CLASS_LEAF;
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

static struct slot *slot_of(const struct epi_kept *k, epi_hash of) {
    size_t at = of.a & (k->room - 1);
    while ((k->slots[at].of.a || k->slots[at].of.b) &&
           (k->slots[at].of.a != of.a || k->slots[at].of.b != of.b))
        at = (at + 1) & (k->room - 1);
    return &k->slots[at];
}

/* Room for one more; false: no memory. The table is at most half full. */
static bool make_room(epi_kept *k) {
    if (2 * k->count < k->room)
        return true;
    epi_kept more = {k->arena, NULL, k->count, k->room ? 2 * k->room : 64};
    more.slots = epi_arena_alloc(k->arena, more.room * sizeof *more.slots);
    for (size_t i = 0; i < k->room && more.slots; i++)
        if (k->slots[i].of.a || k->slots[i].of.b)
            *slot_of(&more, k->slots[i].of) = k->slots[i];
    if (more.slots)
        *k = more;
    return more.slots != NULL;
}

epi_verdict epi_verdict_of(const epi_spec *spec) {
    epi_kept *k = spec->kept;
    if (!k || !make_room(k))
        return judge(spec);
    epi_hash of = epi_spec_content(spec);
    struct slot *s = slot_of(k, of);
    if (s->of.a || s->of.b)
        return s->verdict;
    epi_verdict v = judge(spec);
    if (v.planned) {
        *s = (struct slot){of, v};
        k->count++;
    }
    return v;
}
