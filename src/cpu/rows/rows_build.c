/* rows_build.c: decides the size of a band, the contents of a phase, and where values are kept. */
#include <string.h>

#include "cpu/rows/rows.h"

enum {
    STRETCH = 4096,  /* columns of a stretch at most, */
    LONG = 16384,    /* and where all is tapes that need no memory for a row */
    ELEMENTS = 2048, /* of a band at most, about */
    ROWS = 64,       /* rows of a band at most */
    PIECES = 256,    /* about as many for the threads to share, */
    PIECE = 1 << 15, /* of so many elements at least, */
    PIECE_MOST = 1 << 20,
    FOLDS = 64,     /* pieces at most where a reduction goes down the rows */
    KEPT = 1 << 16, /* floats of a thread's row buffers at most */
    TAPED = 512,    /* columns of a stretch at least where there are tapes */
    STRIPE = 256,   /* columns at least that a thread takes through a recurrence */
    STRIPES = 4,    /* pieces for each of several threads, about */
    SCANNED = 256,  /* columns of a stretch at most that is gone through along a row */
    WORTH = 6,      /* a value that costs as much is kept for the phases after, in simple operations */
};

/* ---- phases ---- */

static int cost_of(const epi_instr *s) {
    if (epi_ops[s->op].expensive)
        return WORTH;
    return s->kind == EPI_INSTR_LOAD || s->kind == EPI_INSTR_CONST ? 0 : 1;
}

/* Leaves out what nothing of the phase needs any more; needed[] is scratch, by instruction. */
static void prune(const epi_tile_program *t, bool *run, bool *needed, int without) {
    run[without] = false;
    for (int i = 0; i < without; i++)
        needed[i] = false;
    for (int i = t->instr_count - 1; i >= 0; i--) {
        run[i] &= i > without || epi_instr_ends(&t->instrs[i]) || needed[i];
        for (int a = 0; a < 3 && run[i]; a++)
            if (t->instrs[i].arg[a] >= 0 && t->values[t->instrs[i].arg[a]].made >= 0)
                needed[t->values[t->instrs[i].arg[a]].made] = true;
    }
}

/* Keeps the value that instruction `i` makes in a row buffer if it is expensive, wanted again and there is room.
 */
static void keep_value(epi_rows *k, bool *run, bool *needed, const int *cost, int i) {
    const epi_tile_program *t = &k->tile;
    const epi_instr *s = &t->instrs[i];
    if (!s->full || s->dst < 0 || s->kind == EPI_INSTR_REDUCE_ROW || cost[s->dst] < WORTH ||
        (k->keep_count + 1) * epi_rows_keep(k) > KEPT)
        return;
    int first = 0, times = 0;
    for (int p = t->phases - 1; p >= 0; p--)
        if (run[p * t->instr_count + i]) {
            first = p;
            times++;
        }
    if (times < 2)
        return;
    k->keep[s->dst] = k->keep_count++;
    for (int p = first + 1; p < t->phases; p++)
        prune(t, run + p * t->instr_count, needed, i);
}

static bool list_phases(epi_arena *arena, epi_rows *k) {
    const epi_tile_program *t = &k->tile;
    size_t instrs = (size_t)t->instr_count, phases = (size_t)t->phases;
    bool *run = epi_arena_alloc(arena, phases * instrs + 1), *needed = epi_arena_alloc(arena, instrs + 1);
    int *cost = epi_arena_alloc(arena, ((size_t)t->value_count + 1) * sizeof *cost);
    k->list = epi_arena_alloc(arena, (phases * instrs + 1) * sizeof *k->list);
    k->list_start = epi_arena_alloc(arena, (phases + 1) * sizeof *k->list_start);
    if (arena->failed)
        return false;
    k->keep_count = 0;
    for (int v = 0; v < t->value_count; v++)
        k->keep[v] = -1;
    for (int i = 0; i < t->instr_count; i++) {
        const epi_instr *s = &t->instrs[i];
        if (!s->full || s->dst < 0 || s->kind == EPI_INSTR_REDUCE_ROW)
            continue;
        cost[s->dst] = cost_of(s);
        for (int a = 0; a < 3; a++)
            if (s->arg[a] >= 0)
                cost[s->dst] += cost[s->arg[a]];
        cost[s->dst] = (int)epi_min64(cost[s->dst], WORTH);
    }
    for (int p = 0; p < t->phases; p++)
        epi_tile_program_phase(t, p, run + p * t->instr_count);
    for (int i = t->instr_count - 1; i >= 0; i--)
        keep_value(k, run, needed, cost, i);
    int count = 0;
    for (int p = 0; p < t->phases; p++) {
        for (int i = 0; i < t->instr_count; i++)
            if (run[p * t->instr_count + i])
                k->list[count++] = i;
        k->list_start[p + 1] = count;
    }
    return true;
}

static bool list_between(epi_arena *arena, epi_rows *k) {
    const epi_tile_program *t = &k->tile;
    k->between = epi_arena_alloc(arena, ((size_t)t->instr_count + 1) * sizeof *k->between);
    k->between_start = epi_arena_alloc(arena, ((size_t)t->phases + 2) * sizeof *k->between_start);
    for (int p = 0, count = 0; p <= t->phases && !arena->failed; p++) {
        for (int i = 0; i < t->instr_count; i++) {
            const epi_instr *s = &t->instrs[i];
            if (!s->full && s->phase == p && t->values[s->dst >= 0 ? s->dst : s->arg[0]].rows)
                k->between[count++] = i;
        }
        k->between_start[p + 1] = count;
    }
    return !arena->failed;
}

/* What the items fold, and what they cost. */
static bool list_folds(epi_arena *arena, epi_rows *k) {
    const epi_tile_program *t = &k->tile;
    size_t items = (size_t)k->item_start[t->phases] + 1;
    k->fold = epi_arena_alloc(arena, ((size_t)k->list_start[t->phases] + 1) * sizeof *k->fold);
    k->fold_start = epi_arena_alloc(arena, items * sizeof *k->fold_start);
    k->work = epi_arena_alloc(arena, items * sizeof *k->work);
    for (int p = 0, n = 0, count = 0; p < t->phases && !arena->failed; p++)
        for (int i = 0; i < k->tapes[p].item_count; i++, n++) {
            const epi_tape_item *item = &k->tapes[p].items[i];
            k->work[n + 1] = k->work[n];
            for (int at = item->first; at < item->first + item->count; at++) {
                const epi_instr *s = &t->instrs[k->tapes[p].order[at]];
                k->work[n + 1] += cost_of(s);
                if (epi_instr_folds_row(s))
                    k->fold[count++] = k->tapes[p].order[at];
            }
            k->fold_start[n + 1] = count;
        }
    return !arena->failed;
}

/* Cuts every phase up into items; *memory says whether something goes through memory in between: items that
 * are no tapes, but for what tapes load, or values that a tape reads again. */
static bool make_items(epi_arena *arena, epi_rows *k, bool *memory) {
    const epi_tile_program *t = &k->tile;
    int items = 0, links = 0;
    *memory = false;
    k->state_count = 0;
    for (int p = 0; p < t->phases; p++) {
        epi_tapes *tapes = &k->tapes[p];
        epi_tape_list list = {.tile = t,
                              .instrs = k->list + k->list_start[p],
                              .count = k->list_start[p + 1] - k->list_start[p],
                              .kept = k->keep,
                              .strips = !t->plan->flat &&
                                        k->stretch < TAPED}; /* a flat row is as long as the batch */
        if (epi_tapes_build(arena, k->strips, &list, tapes) != EPI_OK)
            return false;
        k->item_start[p] = items;
        k->link_start[p] = links;
        items += tapes->item_count;
        links += tapes->link_count;
        k->state_count = (int)epi_max64(k->state_count, tapes->state_count);
        for (int i = 0; i < tapes->item_count; i++) {
            const epi_tape_item *item = &tapes->items[i];
            const epi_instr *only = &t->instrs[tapes->order[item->first]];
            *memory |= !item->link_count && (only->kind != EPI_INSTR_LOAD || tapes->load[only->dst] < 0);
        }
        for (int v = 0; v < t->value_count; v++)
            *memory |= tapes->local[v] && tapes->start[v] >= 0;
    }
    k->item_start[t->phases] = items;
    k->link_start[t->phases] = links;
    return list_folds(arena, k);
}

/* ---- sizes ---- */

/* Does the program reduce over columns, so that a thread takes whole rows? */
static bool folds_rows(const epi_tile_program *t) {
    bool folds = false;
    for (int i = 0; i < t->instr_count; i++)
        folds |= epi_instr_folds_row(&t->instrs[i]) || t->instrs[i].kind == EPI_INSTR_REDUCE_GROUP;
    return folds;
}

/* A thread takes all steps of some recurrences: of all columns of a batch, or of a stripe of these. */
static void choose_stripes(epi_rows *k) {
    const epi_tile_program *t = &k->tile;
    int64_t steps = epi_max64(1, epi_axis_size(t->plan->scan, t->spec->sizes)), n = epi_max64(1, t->n),
            batches = epi_max64(1, t->m / steps),
            stripes = k->threads > 1 ? epi_ceil_div(STRIPES * k->threads, batches) : 1;
    k->piece_cols = n;
    if (!folds_rows(t)) {
        k->piece_cols = epi_min64(n, epi_round_up(epi_max64(STRIPE, n / stripes), 64));
        k->stretch = epi_min64(epi_round_up(k->piece_cols, 2), TAPED);
        k->piece_cols = epi_round_up(k->piece_cols, k->stretch);
    }
    k->band = (int)epi_min64(t->m, k->stretch >= TAPED ? 1 : epi_min64(ROWS, ELEMENTS / k->stretch));
    k->piece_rows = epi_min64(batches, epi_max64(1, PIECE / (steps * k->piece_cols))) * steps;
    k->row_pieces = epi_ceil_div(t->m, k->piece_rows);
    k->col_pieces = epi_ceil_div(t->n, k->piece_cols);
}

/* They follow from the program's sizes alone, and those that say in which order a row is added up from its
 * length. */
static void choose_sizes(epi_rows *k, int64_t most) {
    const epi_tile_program *t = &k->tile;
    bool down = false;
    for (int i = 0; i < t->instr_count; i++)
        down |= t->instrs[i].kind == EPI_INSTR_PARTIAL_COLS;
    if (t->plan->scan_count && t->plan->scan_inner)
        most = SCANNED;
    int64_t n = epi_max64(1, t->n), stretches = epi_ceil_div(n, t->plan->flat ? STRETCH : most),
            group = t->group[EPI_SCALE_FINE]; /* which no stretch cuts */
    k->stretch = stretches > 1 ? epi_round_up(epi_ceil_div(n, stretches), 64 % group ? 64 * group : 64)
                               : epi_round_up(n, 2);
    int64_t rows =
        k->stretch >= TAPED ? 1 : epi_min64(ROWS, ELEMENTS / k->stretch); /* a tape works on one row */
    k->band = (int)epi_max64(1, epi_min64(rows, t->m));
    int64_t piece = epi_min64(PIECE_MOST, epi_max64(PIECE, t->m * n / PIECES));
    k->piece_cols = t->plan->flat ? epi_round_up(piece, k->stretch) : n;
    k->piece_rows = down ? epi_ceil_div(t->m, FOLDS) : piece / n;
    k->piece_rows = epi_round_up(epi_max64(1, k->piece_rows), k->band);
    k->row_pieces = epi_ceil_div(t->m, k->piece_rows);
    k->col_pieces = t->plan->flat ? epi_ceil_div(t->n, k->piece_cols) : 1;
    if (t->plan->scan_count && !t->plan->scan_inner)
        choose_stripes(k);
}

/* Sizes, phases and items, with stretches of at most so many columns. */
static bool cut_up(epi_arena *arena, epi_rows *k, int64_t most, bool *memory) {
    choose_sizes(k, most);
    return list_phases(arena, k) && list_between(arena, k) && make_items(arena, k, memory);
}

/* Numbers the recurrences. */
static void assign_scans(epi_rows *k) {
    int count = 0;
    for (int i = 0; i < k->tile.instr_count; i++)
        k->scan[i] = k->tile.instrs[i].kind == EPI_INSTR_SCAN ? count++ : -1;
    for (int p = 0; p < k->tile.phases; p++)
        for (int at = k->list_start[p]; at < k->list_start[p + 1]; at++)
            k->scan_phase[k->list[at]] = p;
}

static void assign_states(epi_rows *k) {
    for (int i = 0; i < k->tile.instr_count; i++) {
        const epi_instr *s = &k->tile.instrs[i];
        bool two = s->op == EPI_OP_LOGSUMEXP, sums = epi_instr_sums(s);
        if (s->kind == EPI_INSTR_REDUCE_ROW && (two || sums))
            k->states[i].second = k->short_count++;
        if (!epi_instr_is_partial(s))
            continue;
        int64_t count = s->kind == EPI_INSTR_PARTIAL_ROWS
                            ? k->col_pieces * k->tile.m
                            : k->row_pieces * epi_rows_width(k, k->tile.values[s->arg[0]].scale);
        k->states[i] = (epi_states){k->partial_count, k->partial_count + count};
        k->partial_count += two ? 2 * count : count;
        if (sums && s->kind == EPI_INSTR_PARTIAL_ROWS) {
            k->states[i].second = k->short_count++;
        } else if (sums && k->piece_rows > EPI_SUM_TERMS) {
            k->states[i].second = k->sum_count;
            k->sum_count += 2 * count / k->row_pieces;
        }
    }
}

static int64_t room_for_thread(epi_rows_room *r, const epi_rows *k) {
    const int64_t size = sizeof(float);
    int64_t *total = &r->bytes;
    *total = 0;
    r->at = epi_reserve(total, k->tile.value_count, sizeof(epi_spot));
    r->links = epi_reserve(total, k->link_start[k->tile.phases], sizeof(epi_link));
    r->positions = epi_reserve(total, k->item_start[k->tile.phases], sizeof(epi_rows_position));
    r->slots = epi_reserve(total, k->slot_count + 1, epi_rows_slot(k) * size);
    r->kept = epi_reserve(total, k->keep_count, epi_rows_keep(k) * size);
    r->shorts = epi_reserve(total, k->short_count + 2, epi_rows_short(k) * size);
    r->results = epi_reserve(total, k->tile.instr_count, size);
    r->sums = epi_reserve(total, k->sum_count, size);
    r->state = epi_reserve(total, k->state_count, EPI_STATE_MOST * size);
    /* of each, and room for one that goes through its steps once more */
    int64_t scans = k->tile.plan->scan_count ? k->tile.plan->scan_count + 1 : 0;
    r->scans = epi_reserve(total, scans, epi_rows_scan(k) * (int64_t)sizeof(double));
    return *total;
}

static epi_status lay_out(epi_rows *k, epi_error *err) {
    const epi_tile_program *t = &k->tile;
    int64_t total = 0, columns = 0;
    for (int v = 0; v < t->value_count; v++) {
        if (t->values[v].rows)
            continue;
        k->column[v] = columns;
        columns += epi_round_up(epi_rows_width(k, t->values[v].scale), 16);
    }
    int64_t mine = room_for_thread(&k->room, k);
    k->access = epi_reserve(&total, t->instr_count, sizeof(epi_tile_access));
    k->source = epi_reserve(&total, 2 * (int64_t)t->value_count, sizeof(int));
    k->regular = epi_reserve(&total, k->item_start[t->phases], sizeof(bool));
    k->columns = epi_reserve(&total, columns, sizeof(float));
    k->partials = epi_reserve(&total, k->partial_count, sizeof(float));
    k->per_thread = epi_reserve(&total, k->threads, mine);
    k->scratch = total;
    return total < 0 || mine < 0
               ? epi_fail(err, EPI_ERR_MEMORY, "the workspace of these rows overflows 64 bits")
               : EPI_OK;
}

epi_status epi_rows_build(epi_arena *arena, const epi_spec *spec, const epi_plan *plan,
                          const epi_strips *strips, const epi_root *roots, int root_count, epi_rows *out,
                          epi_error *err) {
    *out = (epi_rows){.strips = strips, .threads = spec->threads};
    epi_tile_program *t = &out->tile;
    EPI_TRY(epi_tile_program_rows(arena, spec, plan, roots, root_count, t, err));
    size_t values = (size_t)t->value_count + 1, instrs = (size_t)t->instr_count + 1,
           phases = (size_t)t->phases + 1;
    out->column = epi_arena_alloc(arena, values * sizeof *out->column);
    out->keep = epi_arena_alloc(arena, values * sizeof *out->keep);
    out->slot = epi_arena_alloc(arena, values * sizeof *out->slot);
    out->store = epi_arena_alloc(arena, values * sizeof *out->store);
    out->states = epi_arena_alloc(arena, instrs * sizeof *out->states);
    out->scan = epi_arena_alloc(arena, instrs * sizeof *out->scan);
    out->scan_phase = epi_arena_alloc(arena, instrs * sizeof *out->scan_phase);
    out->tapes = epi_arena_alloc(arena, phases * sizeof *out->tapes);
    out->item_start = epi_arena_alloc(arena, phases * sizeof *out->item_start);
    out->link_start = epi_arena_alloc(arena, phases * sizeof *out->link_start);
    bool memory, ok = !arena->failed && cut_up(arena, out, LONG, &memory);
    if (ok && memory && out->stretch > STRETCH)
        ok = cut_up(arena, out, STRETCH, &memory);
    if (!ok)
        return arena->failed ? epi_fail(err, EPI_ERR_MEMORY, "out of memory")
                             : EPI_INTERNAL(err, (epi_place){0}, "steps of a row wait for each other");
    out->slot_count = epi_tape_slots(arena, out->tapes, t->phases, t, out->slot, &out->short_count);
    if (out->slot_count < 0)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    epi_first_stores(t, out->store);
    assign_states(out);
    assign_scans(out);
    return lay_out(out, err);
}
