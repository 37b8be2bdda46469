/* rows_build.c: the sizes of a block, which steps a phase takes, and where values are kept. */
#include <string.h>

#include "cpu/rows.h"

enum {
    CHUNK = 4096,    /* columns of a chunk at most, */
    LONG = 16384,    /* and where all is chains, which need no slots */
    ELEMENTS = 2048, /* of a block at most, about */
    ROWS = 64,       /* rows of a block at most */
    PIECES = 256,    /* about as many for the threads to share, */
    PIECE = 1 << 15, /* of so many elements at least, */
    PIECE_MOST = 1 << 20,
    FOLDS = 64,     /* pieces at most where a reduction goes down the rows */
    KEPT = 1 << 16, /* floats of a thread's row buffers at most */
    CHAINED = 512,  /* columns of a chunk at least where steps become chains */
    WORTH = 6,      /* a value that costs as much is kept for the phases after, in simple operations */
};

/* ---- phases ---- */

static int cost_of(const epi_instr *s) {
    if (epi_step_is_dear(s))
        return WORTH;
    return s->kind == EPI_INSTR_LOAD || s->kind == EPI_INSTR_CONST ? 0 : 1;
}

/* Leaves out what nothing of the phase needs any more. */
static void prune(const epi_tile_program *t, bool *run, int without) {
    run[without] = false;
    for (int i = without - 1; i >= 0; i--) {
        const epi_instr *s = &t->instrs[i];
        bool ends = s->dst < 0 || s->kind == EPI_INSTR_REDUCE_ROW, needed = ends;
        for (int j = i + 1; j < t->instr_count && run[i] && !needed; j++)
            for (int a = 0; a < 3; a++)
                needed |= run[j] && t->instrs[j].arg[a] == s->dst;
        run[i] &= needed;
    }
}

/* Keeps the value that step `i` makes in a row buffer if it is dear, wanted again and there is room. */
static void keep_value(epi_rows *k, bool *run, const int *cost, int i) {
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
        prune(t, run + p * t->instr_count, i);
}

static bool list_phases(epi_arena *arena, epi_rows *k) {
    const epi_tile_program *t = &k->tile;
    size_t steps = (size_t)t->instr_count, phases = (size_t)t->phases;
    bool *run = epi_arena_alloc(arena, phases * steps + 1);
    int *cost = epi_arena_alloc(arena, ((size_t)t->value_count + 1) * sizeof *cost);
    k->keep = epi_arena_alloc(arena, ((size_t)t->value_count + 1) * sizeof *k->keep);
    k->list = epi_arena_alloc(arena, (phases * steps + 1) * sizeof *k->list);
    k->list_start = epi_arena_alloc(arena, (phases + 1) * sizeof *k->list_start);
    k->last = epi_arena_alloc(arena, (phases * steps + 1) * sizeof *k->last);
    k->work = epi_arena_alloc(arena, (phases * steps + 1) * sizeof *k->work);
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
        keep_value(k, run, cost, i);
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

/* Makes chains of the steps where they pay; until[i] says at which one step i is carried out, *single counts
 * those that stay by themselves. */
static bool make_chains(epi_arena *arena, epi_rows *k, int *until, int *single) {
    k->chain_count = *single = 0;
    for (int i = 0; i < k->tile.instr_count; i++)
        until[i] = i;
    for (int p = 0; p < k->tile.phases; p++) {
        int first = k->list_start[p], count = k->list_start[p + 1] - first;
        int *list = k->list + first, *last = k->last + first;
        for (int i = 0; i < count; i++)
            last[i] = i;
        bool chains = k->tile.plan->flat || k->chunk >= CHAINED; /* a flat row is as long as the batch */
        if (chains && epi_chains_find(arena, &k->tile, list, last, count, k->keep) != EPI_OK)
            return false;
        for (int i = 0; i < count; i = last[i] + 1)
            ++*(last[i] > i ? &k->chain_count : single);
        for (int i = 0; i < count; i++)
            k->work[first + i + 1] = k->work[first + i] + cost_of(&k->tile.instrs[list[i]]);
        for (int i = 0; i < count; i++)
            until[list[i]] = (int)epi_max64(until[list[i]], list[last[i]]);
    }
    return true;
}

/* The one chain that a phase consists of: its last step, or NULL. */
static const epi_instr *only_chain(const epi_rows *k, int p) {
    int first = k->list_start[p], count = k->list_start[p + 1] - first;
    return count > 1 && k->last[first] == count - 1 ? &k->tile.instrs[k->list[first + count - 1]] : NULL;
}

/* Stores past the caches wait for memory, and functions of the next row can be computed meanwhile. Row
 * buffers are shared by both rows, so nothing may be put there before. */
static bool may_lag(const epi_rows *k) {
    const epi_tile_program *t = &k->tile;
    int p = t->phases - 2;
    if (p < 1 || t->plan->flat || k->block > 1)
        return false;
    const epi_instr *fold = only_chain(k, p), *store = only_chain(k, p + 1);
    bool lags = fold && store && fold->kind == EPI_INSTR_REDUCE_ROW && store->kind == EPI_INSTR_STORE &&
                t->values[fold->arg[0]].scale == EPI_SCALE_FINE &&
                t->values[store->arg[0]].scale == EPI_SCALE_FINE &&
                k->work[k->list_start[p + 1]] - k->work[k->list_start[p]] >= WORTH;
    for (int i = 0; i < k->list_start[p]; i++) {
        int v = t->instrs[k->list[i]].dst;
        lags &= v < 0 || k->keep[v] < 0;
    }
    return lags;
}

/* Elements are stored after everything else, so that an output may lie over an input. */
static bool stores_last(epi_arena *arena, epi_tile_program *t) {
    epi_instr *steps = epi_arena_alloc(arena, ((size_t)t->instr_count + 1) * sizeof *steps);
    if (!steps)
        return false;
    int count = 0;
    for (int last = 0; last < 2; last++)
        for (int i = 0; i < t->instr_count; i++)
            if ((t->instrs[i].full && t->instrs[i].kind == EPI_INSTR_STORE) == last)
                steps[count++] = t->instrs[i];
    t->instrs = steps;
    return true;
}

/* ---- sizes ---- */

/* They follow from the program's sizes alone, and those that say in which order a row is added up from its
 * length. */
static void choose_sizes(epi_rows *k, int64_t most) {
    const epi_tile_program *t = &k->tile;
    bool down = false;
    for (int i = 0; i < t->instr_count; i++)
        down |= t->instrs[i].kind == EPI_INSTR_PARTIAL_COLS;
    int64_t n = epi_max64(1, t->n), chunks = epi_ceil_div(n, t->plan->flat ? CHUNK : most);
    k->chunk = chunks > 1 ? epi_round_up(epi_ceil_div(n, chunks), 64) : epi_round_up(n, 2);
    int64_t rows =
        k->chunk >= CHAINED ? 1 : epi_min64(ROWS, ELEMENTS / k->chunk); /* chains are set up once */
    k->block = (int)epi_max64(1, epi_min64(rows, t->m));
    int64_t piece = epi_min64(PIECE_MOST, epi_max64(PIECE, t->m * n / PIECES));
    k->piece_cols = t->plan->flat ? epi_round_up(piece, k->chunk) : n;
    k->piece_rows = down ? epi_ceil_div(t->m, FOLDS) : piece / n;
    k->piece_rows = epi_round_up(epi_max64(1, k->piece_rows), k->block);
    k->row_pieces = epi_ceil_div(t->m, k->piece_rows);
    k->col_pieces = t->plan->flat ? epi_ceil_div(t->n, k->piece_cols) : 1;
}

/* Sizes, phases and chains, with chunks of at most so many columns. */
static bool cut_up(epi_arena *arena, epi_rows *k, int64_t most, int *until, int *single) {
    choose_sizes(k, most);
    return list_phases(arena, k) && list_between(arena, k) && make_chains(arena, k, until, single);
}

static void assign_partials(epi_rows *k) {
    for (int i = 0; i < k->tile.instr_count; i++) {
        epi_instr *s = &k->tile.instrs[i];
        if (s->kind == EPI_INSTR_REDUCE_ROW && s->op == EPI_OP_LOGSUMEXP)
            s->state2 = k->short_count++;
        if (s->kind != EPI_INSTR_PARTIAL_ROWS && s->kind != EPI_INSTR_PARTIAL_COLS)
            continue;
        int64_t count = s->kind == EPI_INSTR_PARTIAL_ROWS
                            ? k->col_pieces * k->tile.m
                            : k->row_pieces * epi_rows_width(k, k->tile.values[s->arg[0]].scale);
        s->state = k->partial_count;
        k->partial_count += count;
        s->state2 = k->partial_count;
        if (s->op == EPI_OP_LOGSUMEXP)
            k->partial_count += count;
    }
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
    k->access = epi_reserve(&total, t->instr_count, sizeof(epi_tile_access));
    k->source = epi_reserve(&total, 2 * (int64_t)t->value_count, sizeof(int));
    k->columns = epi_reserve(&total, columns, sizeof(float));
    k->partials = epi_reserve(&total, k->partial_count, sizeof(float));
    int64_t own = 0;
    epi_reserve(&own, t->value_count, sizeof(epi_spot));
    epi_reserve(&own, k->chain_count, sizeof(epi_ready));
    epi_reserve(&own, k->slot_count + 1, epi_rows_slot(k) * (int64_t)sizeof(float));
    epi_reserve(&own, k->keep_count, epi_rows_keep(k) * (int64_t)sizeof(float));
    epi_reserve(&own, k->short_count + 2, epi_rows_short(k) * (int64_t)sizeof(float));
    k->thread_bytes = own;
    k->per_thread = epi_reserve(&total, k->threads * (int64_t)epi_rows_workers(k), own);
    k->scratch = total;
    return total < 0 || own < 0
               ? epi_fail(err, EPI_ERR_MEMORY, "the workspace of these rows overflows 64 bits")
               : EPI_OK;
}

epi_status epi_rows_build(epi_arena *arena, const epi_spec *spec, const epi_plan *plan,
                          const epi_strips *strips, const epi_root *roots, int root_count, epi_rows *out,
                          epi_error *err) {
    *out = (epi_rows){.strips = strips, .threads = spec->threads};
    epi_tile_program *t = &out->tile;
    epi_status status = epi_tile_program_rows(arena, spec, plan, roots, root_count, t, err);
    if (status != EPI_OK)
        return status;
    bool *busy = epi_arena_alloc(arena, (size_t)t->value_count + 1);
    out->column = epi_arena_alloc(arena, ((size_t)t->value_count + 1) * sizeof *out->column);
    int *until = epi_arena_alloc(arena, ((size_t)t->instr_count + 1) * sizeof *until);
    if (!stores_last(arena, t) || arena->failed)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    int single;
    bool ok = cut_up(arena, out, LONG, until, &single);
    if (ok && single && out->chunk > CHUNK)
        ok = cut_up(arena, out, CHUNK, until, &single);
    if (!ok)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    epi_block_slots(t, until, NULL, busy, &out->slot_count, &out->short_count);
    assign_partials(out);
    out->lags = may_lag(out);
    return lay_out(out, err);
}
