/* epilogue_build.c: where the strips keep the values of a tile. */
#include "cpu/epilogue.h"

/* Gives the reductions that leave the tile room for their partials. */
static void assign_partials(epi_epilogue *e) {
    epi_tile *t = &e->tile;
    for (int i = 0; i < t->step_count; i++) {
        epi_tile_step *s = &t->steps[i];
        if (s->kind != EPI_TILE_REDUCE_ROWS && s->kind != EPI_TILE_REDUCE_COLS)
            continue;
        int64_t columns = t->n * t->width[t->values[s->arg[0]].scale] / t->tile_n;
        int64_t count = s->kind == EPI_TILE_REDUCE_ROWS ? e->col_tiles * t->m : e->row_tiles * columns;
        s->state = e->partials;
        e->partials += count;
        s->state2 = e->partials;
        if (s->op == EPI_OP_LOGSUMEXP)
            e->partials += count;
    }
}

epi_status epi_epilogue_build(epi_arena *arena, const epi_spec *spec, const epi_plan *plan,
                              const epi_strips *strips, const epi_root *roots, int root_count,
                              epi_epilogue *out, epi_error *err) {
    *out = (epi_epilogue){.strips = strips, .block = EPI_TILE_BLOCK};
    epi_tile *t = &out->tile;
    epi_status status = epi_tile_build(arena, spec, plan, EPI_TILE_N, roots, root_count, t, err);
    if (status != EPI_OK)
        return status;
    out->row_tiles = epi_ceil_div(t->m, EPI_TILE_M);
    out->col_tiles = epi_ceil_div(t->n, t->tile_n);
    bool *busy = epi_arena_alloc(arena, (size_t)t->value_count + 1);
    if (arena->failed)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    epi_block_slots(t, NULL, busy, &out->slot_count, &out->short_count);
    assign_partials(out);
    return EPI_OK;
}
