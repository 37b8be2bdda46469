/* epilogue_build.c: where the strips keep the values of a tile. */
#include "cpu/epilogue.h"

/* Gives the reductions that leave the tile room for their partials. */
static void assign_partials(epi_epilogue *e) {
    epi_tile_program *t = &e->tile;
    for (int i = 0; i < t->instr_count; i++) {
        epi_instr *s = &t->instrs[i];
        if (s->kind != EPI_INSTR_PARTIAL_ROWS && s->kind != EPI_INSTR_PARTIAL_COLS)
            continue;
        int64_t columns = t->n * t->width[t->values[s->arg[0]].scale] / t->tile_n;
        int64_t count = s->kind == EPI_INSTR_PARTIAL_ROWS ? e->col_tiles * t->m : e->row_tiles * columns;
        s->state = e->partials;
        e->partials += count;
        s->state2 = e->partials;
        if (s->op == EPI_OP_LOGSUMEXP)
            e->partials += count;
    }
}

/* Values whose slots steps of one item share live until its end. */
static void assign_slots(epi_epilogue *e, int *until, bool *busy) {
    for (int i = 0; i < e->tile.instr_count; i++)
        until[i] = i;
    for (int k = 0; k < e->tapes.item_count; k++) {
        const epi_tape_item *item = &e->tapes.items[k];
        for (int i = item->first; i < item->first + item->count; i++)
            until[i] = item->first + item->count - 1;
    }
    epi_block_slots(&e->tile, until, e->tapes.local, busy, &e->slot_count, &e->short_count);
}

/* A thread's own memory. */
static void assign_room(epi_epilogue *e) {
    const int64_t size = sizeof(float), fine = e->tile.width[EPI_SCALE_FINE];
    e->full_slot = e->block * fine;
    e->short_slot = epi_round_up(epi_max64(EPI_TILE_M, fine), 16);
    e->own_slot = epi_round_up(fine, 16);
    int64_t *total = &e->private_bytes;
    e->at = epi_reserve(total, e->tile.value_count, sizeof(epi_spot));
    e->links = epi_reserve(total, e->tapes.link_count, sizeof(epi_link));
    e->slots = epi_reserve(total, e->slot_count, e->full_slot * size);
    e->shorts = epi_reserve(total, e->short_count + 1, e->short_slot * size);
    e->own = epi_reserve(total, e->tapes.own_count, e->own_slot * size);
    e->state = epi_reserve(total, e->tapes.fold_count, EPI_BLOCK_MOST * size);
    epi_reserve(&e->shared_bytes, e->tile.instr_count, sizeof(epi_tile_access));
}

epi_status epi_epilogue_build(epi_arena *arena, const epi_spec *spec, const epi_plan *plan,
                              const epi_strips *strips, int panel, bool even, const epi_root *roots,
                              int root_count, epi_epilogue *out, epi_error *err) {
    *out = (epi_epilogue){.strips = strips, .block = EPI_TILE_BLOCK, .panel = panel};
    epi_tile_program *t = &out->tile;
    epi_status status = epi_tile_program_gemm(arena, spec, plan, EPI_TILE_N, roots, root_count, t, err);
    if (status != EPI_OK)
        return status;
    /* panels are dealt out, so no tile has more than its share of them rounded up */
    out->row_tiles = epi_ceil_div(epi_ceil_div(t->m, panel), EPI_TILE_M / panel);
    if (even && out->row_tiles > 2)
        out->row_tiles = epi_round_up(out->row_tiles, 2);
    out->col_tiles = epi_ceil_div(t->n, t->tile_n);
    bool *busy = epi_arena_alloc(arena, (size_t)t->value_count + 1);
    int *until = epi_arena_alloc(arena, ((size_t)t->instr_count + 1) * sizeof *until);
    if (arena->failed || epi_tapes_build(arena, strips, t, &out->tapes) != EPI_OK)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    assign_slots(out, until, busy);
    assign_room(out);
    assign_partials(out);
    return EPI_OK;
}
