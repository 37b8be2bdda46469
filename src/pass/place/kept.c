/* kept.c: cached plans of parts, verdicts on them, and what the backend said of them, by a hash of their contents. */
#include "pass/place/kept.h"

#include <stdlib.h>
#include <string.h>

#include "ir/content.h"
#include "pass/place/cut.h"
#include "pass/place/placer.h"

/* Plans by the hash of their part: a slot is empty where both words are zero. The slots are a power of two. */
struct epi_kept {
    epi_arena arena; /* its own: a kernel is also planned in arenas that are thrown away */
    struct slot {
        epi_hash of;
        epi_verdict verdict;
        const epi_plan *plan;
        bool asked, refused; /* was the backend asked, and did it refuse? */
    } * slots;
    size_t count, room;
};

epi_kept *epi_kept_make(const epi_kept *from) {
    epi_kept *k = calloc(1, sizeof *k);
    if (!k || !from)
        return k;
    k->slots = epi_arena_alloc(&k->arena, from->room * sizeof *k->slots);
    if (k->slots) {
        memcpy(k->slots, from->slots, from->room * sizeof *k->slots);
        k->count = from->count;
        k->room = from->room;
    }
    return k;
}

void epi_kept_free(epi_kept *kept) {
    if (kept)
        epi_arena_free(&kept->arena);
    free(kept);
}

bool epi_kept_is_whole(const epi_kept *kept) {
    return !kept->arena.failed;
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

/* What the cut took for granted of a part with this plan, as bits of epi_refusal. */
static unsigned granted(const epi_graph *g, const epi_plan *plan) {
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

/* Plans the part. NULL: no memory. */
static epi_plan *judge(epi_arena *arena, const epi_spec *spec, epi_verdict *v) {
    epi_plan *plan = epi_arena_alloc(arena, sizeof *plan);
    *v = (epi_verdict){0};
    if (!plan || epi_plan_make(arena, spec, plan, NULL) != EPI_OK)
        return NULL;
    *v = (epi_verdict){.fused = plan->fused,
                       .plain = plan->fused && is_plain(spec->graph, plan),
                       .granted = granted(spec->graph, plan),
                       .launches = plan->fused ? extra_launches(spec->graph, plan) : 0};
    return plan;
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

/* The slot of the part, with its plan; NULL: nothing can be kept. */
static struct slot *find_slot(const epi_spec *spec) {
    epi_kept *k = spec->kept;
    if (!k || !make_room(k))
        return NULL;
    epi_hash of = epi_spec_content(spec);
    struct slot *s = slot_of(k->slots, k->room, of);
    if (!is_free(s))
        return s;
    epi_verdict v;
    const epi_plan *plan = judge(&k->arena, spec, &v);
    if (!plan)
        return NULL;
    *s = (struct slot){.of = of, .verdict = v, .plan = plan};
    k->count++;
    return s;
}

epi_verdict epi_verdict_of(const epi_spec *spec) {
    const struct slot *s = find_slot(spec);
    if (s)
        return s->verdict;
    epi_arena scratch = {0};
    epi_verdict v;
    judge(&scratch, spec, &v);
    epi_arena_free(&scratch);
    return v;
}

const epi_plan *epi_kept_plan(const epi_spec *spec) {
    const epi_kept *k = spec->kept;
    return k && k->room ? slot_of(k->slots, k->room, epi_spec_content(spec))->plan : NULL;
}

/* ---- what the backend says ---- */

/* The slot of the part with the largest sizes: one cut serves all sizes of an open axis. */
static struct slot *find_largest(epi_spec *most, const epi_spec *spec) {
    *most = *spec;
    memcpy(most->sizes, epi_largest_sizes(spec), sizeof most->sizes);
    return find_slot(most);
}

unsigned epi_refused_of(const epi_spec *spec) {
    epi_spec most;
    struct slot *s = find_largest(&most, spec);
    if (!s) /* it is refused when it is compiled */
        return 0;
    if (s->verdict.fused && !s->asked && spec->backend)
        s->refused = !spec->backend->accept(spec->backend->state, &most);
    s->asked = true;
    return s->refused || !s->verdict.fused ? s->verdict.granted : 0;
}

bool epi_kept_refuse(const epi_spec *spec) {
    epi_spec most;
    struct slot *s = find_largest(&most, spec);
    bool fresh = s && !s->refused;
    if (fresh)
        s->asked = s->refused = true;
    return fresh;
}
