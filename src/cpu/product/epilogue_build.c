/* epilogue_build.c: splits a tile's program into items, and decides where its values are kept. */
#include "cpu/product/epilogue.h"

/* Gives the cross-tile reductions room for their partials. */
static void assign_partials(epi_epilogue *e) {
    const epi_tile_program *t = &e->tile;
    for (int i = 0; i < t->instr_count; i++) {
        const epi_instr *s = &t->instrs[i];
        if (!epi_instr_is_partial(s))
            continue;
        int64_t columns = t->n * t->width[t->values[s->arg[0]].scale] / t->tile_n;
        int64_t count = e->own                              ? EPI_TILE_M
                        : s->kind == EPI_INSTR_PARTIAL_ROWS ? e->col_tiles * t->m
                                                            : e->row_tiles * columns;
        e->states[i] = (epi_states){e->partials, e->partials + count};
        e->partials += epi_ops[s->op].two ? 2 * count : count;
    }
}

static void assign_kept(epi_epilogue *e) {
    const epi_tile_program *t = &e->tile;
    int count = 0;
    for (int v = 0; v < t->value_count; v++)
        e->kept[v] = -1;
    for (int i = 0; i < t->instr_count; i++)
        if (t->instrs[i].kind == EPI_INSTR_STORE && t->instrs[i].tensor == EPI_ROOT_KEPT)
            e->kept[t->instrs[i].arg[0]] = count++;
}

/* A thread's own memory. */
static void lay_out(epi_epilogue *e) {
    const int64_t size = sizeof(float), fine = e->tile.width[EPI_SCALE_FINE];
    e->full_slot = EPI_TILE_BAND * fine;
    e->short_slot = epi_round_up(epi_max64(EPI_TILE_M, fine), 16);
    int64_t *total = &e->private_bytes;
    e->at = epi_reserve(total, e->tile.value_count, sizeof(epi_spot));
    e->links = epi_reserve(total, e->tapes.link_count, sizeof(epi_link));
    e->slots = epi_reserve(total, e->slot_count, e->full_slot * size);
    e->shorts = epi_reserve(total, e->short_count + 1, e->short_slot * size);
    e->state = epi_reserve(total, e->tapes.state_count, EPI_STATE_MOST * size);
    epi_reserve(&e->shared_bytes, e->tile.instr_count, sizeof(epi_tile_access));
}

epi_status epi_epilogue_build(epi_arena *arena, const epi_spec *spec, const epi_plan *plan,
                              const epi_strips *strips, int panel, bool even, int most, const epi_root *roots,
                              int root_count, epi_epilogue *out, epi_error *err) {
    *out = (epi_epilogue){.strips = strips, .panel = panel, .own = plan->kind == EPI_KIND_ATTENTION};
    epi_tile_program *t = &out->tile;
    EPI_TRY(epi_tile_program_gemm(arena, spec, plan, most, roots, root_count, t, err));
    /* panels are dealt out, so no tile has more than its share of them rounded up */
    epi_axes batch = epi_plan_batch(plan);
    out->batches = epi_max64(1, epi_axes_size(&batch, spec->sizes));
    out->row_tiles = epi_ceil_div(epi_ceil_div(t->m / out->batches, panel), EPI_TILE_M / panel);
    if (even && out->row_tiles > 2)
        out->row_tiles = epi_round_up(out->row_tiles, 2);
    out->row_tiles *= out->batches;
    out->col_tiles = epi_ceil_div(t->n, t->tile_n);
    size_t instrs = (size_t)t->instr_count + 1, values = (size_t)t->value_count + 1;
    int *list = epi_arena_alloc(arena, instrs * sizeof *list), count = 0;
    out->states = epi_arena_alloc(arena, instrs * sizeof *out->states);
    out->slot = epi_arena_alloc(arena, values * sizeof *out->slot);
    out->store = epi_arena_alloc(arena, values * sizeof *out->store);
    out->kept = epi_arena_alloc(arena, values * sizeof *out->kept);
    for (int i = 0; i < t->instr_count && list; i++)
        if (t->instrs[i].full)
            list[count++] = i;
    epi_tape_list full = {.tile = t, .instrs = list, .count = count};
    epi_status status = arena->failed ? EPI_ERR_MEMORY : epi_tapes_build(arena, strips, &full, &out->tapes);
    if (status != EPI_OK)
        return arena->failed ? epi_fail(err, EPI_ERR_MEMORY, "out of memory")
                             : EPI_INTERNAL(err, (epi_place){0}, "steps of a tile wait for each other");
    out->slot_count = epi_tape_slots(arena, &out->tapes, 1, t, out->slot, &out->short_count);
    if (out->slot_count < 0)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    epi_first_stores(t, out->store);
    assign_kept(out);
    lay_out(out);
    assign_partials(out);
    return EPI_OK;
}
