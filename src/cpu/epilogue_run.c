/* epilogue_run.c: carries the strips of a tile out, and folds the partials that leave it. */
#include "cpu/epilogue.h"

typedef struct tile {
    epi_block b;
    const epi_tile_run *r;
    int64_t place[2]; /* along rows and columns */
} tile;

/* ---- once per run ---- */

void epi_epilogue_begin(epi_tile_run *r, const epi_epilogue *e, const epi_ref *homes, const epi_ref *tensors,
                        void *shared, float *partials) {
    *r = (epi_tile_run){.e = e, .access = shared, .partials = partials};
    for (int i = 0; i < e->tile.instr_count; i++)
        epi_tile_access_find(&e->tile, i, homes, tensors, &r->access[i]);
}

/* ---- one tile ---- */

static tile tile_at(const epi_tile_run *r, const int64_t place[2]) {
    const epi_epilogue *e = r->e;
    int64_t m0 = epi_tile_row(e, place[0]), n0 = place[1] * e->tile.tile_n;
    tile t = {.b = {.tile = &e->tile,
                    .strips = e->strips,
                    .access = r->access,
                    .m0 = m0,
                    .rows = (int)(epi_tile_row(e, place[0] + 1) - m0)},
              .r = r,
              .place = {place[0], place[1]}};
    int64_t columns = epi_min64(e->tile.tile_n, e->tile.n - n0);
    t.b.columns[EPI_SCALE_NONE] = 1;
    for (int s = EPI_SCALE_COARSE; s <= EPI_SCALE_FINE; s++) {
        t.b.first[s] = n0 * e->tile.width[s] / e->tile.tile_n;
        t.b.columns[s] = (int)(columns * e->tile.width[s] / e->tile.tile_n);
    }
    return t;
}

/* A value that is worked on in its tensor. */
static epi_spot in_tensor(const tile *t, const epi_tile_access *a, epi_scale scale) {
    ptrdiff_t ld = epi_tile_access_ld(a);
    return (epi_spot){(float *)(void *)epi_block_address(&t->b, a, scale), ld, t->r->e->block * ld};
}

/* Says where every value of the tile will be: its slot; the tensor itself where strips can work in
 * place; the accumulator. */
static void settle(tile *t, float *acc, unsigned char *memory) {
    const epi_epilogue *e = t->r->e;
    float *slots = (float *)(void *)(memory + e->slots), *shorts = (float *)(void *)(memory + e->shorts),
          *own = (float *)(void *)(memory + e->own);
    t->b.at = (epi_spot *)(void *)(memory + e->at);
    t->b.tmp = shorts + e->short_count * e->short_slot;
    for (int i = 0; i < e->tile.value_count; i++) {
        const epi_tile_value *v = &e->tile.values[i];
        if (!epi_tile_is_full(v))
            t->b.at[i] = (epi_spot){shorts + v->slot * e->short_slot, 0, 0};
        else if (e->tapes.own[i] >= 0)
            t->b.at[i] = (epi_spot){own + e->tapes.own[i] * e->own_slot, 0, 0};
        else if (v->slot >= 0)
            t->b.at[i] = (epi_spot){slots + v->slot * e->full_slot, e->tile.width[v->scale], 0};
        else if (i == 0)
            t->b.at[i] = (epi_spot){acc, EPI_TILE_N, (ptrdiff_t)e->block * EPI_TILE_N};
        else
            t->b.at[i] = (epi_spot){0}; /* in registers only */
    }
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        const epi_tile_access *a = &t->r->access[i];
        if (!s->full)
            continue;
        if (s->kind == EPI_INSTR_STORE && a->direct && e->tile.values[s->arg[0]].store == i)
            t->b.at[s->arg[0]] = in_tensor(t, a, e->tile.values[s->arg[0]].scale);
        else if (s->kind == EPI_INSTR_LOAD && a->direct)
            t->b.at[s->dst] = in_tensor(t, a, e->tile.values[s->dst].scale);
    }
}

/* The partials of this tile: rows of the result, or columns. */
static float *partials_of(const tile *t, const epi_instr *s, int64_t state) {
    const epi_epilogue *e = t->r->e;
    float *p = t->r->partials + state;
    if (s->kind == EPI_INSTR_PARTIAL_ROWS)
        return p + t->place[1] * e->tile.m + t->b.m0;
    epi_scale scale = e->tile.values[s->arg[0]].scale;
    return p + t->place[0] * (e->tile.n * e->tile.width[scale] / e->tile.tile_n) + t->b.first[scale];
}

static float *first_partials(const void *ctx, const epi_instr *s) {
    return partials_of(ctx, s, s->state);
}

static void run_step(const tile *t, int i) {
    const epi_instr *s = &t->b.tile->instrs[i];
    if (s->kind == EPI_INSTR_PARTIAL_ROWS || s->kind == EPI_INSTR_PARTIAL_COLS) {
        int row = s->kind == EPI_INSTR_PARTIAL_ROWS ? t->b.row : 0;
        epi_block_reduce(&t->b, s, partials_of(t, s, s->state) + row, partials_of(t, s, s->state2) + row);
    } else {
        epi_block_step(&t->b, i);
    }
}

/* Does a tape load or store it, where it lies? */
static bool is_done_by_tape(const tile *t, int i) {
    const epi_instr *s = &t->b.tile->instrs[i];
    return epi_access_is_regular(&t->r->access[i]) &&
           (s->kind == EPI_INSTR_STORE || (s->kind == EPI_INSTR_LOAD && t->r->e->tapes.load[s->dst] == i));
}

/* On the block in hand. */
static void run_item(const tile *t, const epi_tape_item *item, epi_link *links) {
    if (!item->link_count) {
        if (t->b.tile->instrs[item->first].kind != EPI_INSTR_LOAD || !is_done_by_tape(t, item->first))
            run_step(t, item->first);
        return;
    }
    t->b.strips->tape(links + item->link, t->b.block_rows, t->b.columns[item->scale]);
    epi_tape_walk(links + item->link);
    for (int i = item->first; i < item->first + item->count; i++)
        if (t->b.tile->instrs[i].kind == EPI_INSTR_STORE && !is_done_by_tape(t, i))
            run_step(t, i);
}

static void clear_column_partials(const tile *t) {
    const epi_epilogue *e = t->r->e;
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        if (s->kind != EPI_INSTR_PARTIAL_COLS)
            continue;
        float *p = partials_of(t, s, s->state), *p2 = partials_of(t, s, s->state2);
        for (int j = 0, n = t->b.columns[e->tile.values[s->arg[0]].scale]; j < n; j++) {
            p[j] = epi_reduce_identity(s->op);
            if (s->op == EPI_OP_LOGSUMEXP)
                p2[j] = 0;
        }
    }
}

void epi_epilogue_tile(const epi_tile_run *r, float *acc, const int64_t place[2], void *private_memory) {
    const epi_epilogue *e = r->e;
    unsigned char *memory = private_memory;
    epi_link *links = (epi_link *)(void *)(memory + e->links);
    tile t = tile_at(r, place);
    settle(&t, acc, memory);
    clear_column_partials(&t);
    for (int i = 0; i < e->tile.instr_count; i++)
        if (!e->tile.instrs[i].full)
            run_step(&t, i);
    epi_tape_place where = {.tapes = &e->tapes,
                            .block = &t.b,
                            .rows = e->block,
                            .partials = first_partials,
                            .ctx = &t,
                            .state = (float *)(void *)(memory + e->state)};
    for (int k = 0; k < e->tapes.item_count; k++)
        if (e->tapes.items[k].link_count)
            epi_tape_set(&where, &e->tapes.items[k], links);
    for (t.b.row = 0; t.b.row < t.b.rows; t.b.row += e->block, t.b.number++) {
        t.b.block_rows = (int)epi_min64(e->block, t.b.rows - t.b.row);
        for (int k = 0; k < e->tapes.item_count; k++)
            run_item(&t, &e->tapes.items[k], links);
    }
}

int epi_epilogue_regions(const epi_tile_run *r, const int64_t place[2], epi_region *out, int most) {
    const epi_epilogue *e = r->e;
    tile t = tile_at(r, place);
    int count = 0;
    for (int i = 0; i < e->tile.instr_count && count < most; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        const epi_tile_access *a = &r->access[i];
        if (!s->full || (s->kind != EPI_INSTR_LOAD && s->kind != EPI_INSTR_STORE))
            continue;
        epi_scale scale = e->tile.values[s->kind == EPI_INSTR_LOAD ? s->dst : s->arg[0]].scale;
        if (a->rows.count > 1 || !a->plain || !a->cols.walk.count)
            continue;
        int64_t size = (int64_t)epi_dtype_size(a->ref.type);
        out[count++] = (epi_region){
            a->ref.data + (epi_walk_offset(&a->rows, t.b.m0) + t.b.first[scale]) * size,
            t.b.columns[scale] * size, epi_tile_access_ld(a) * size, t.b.rows, s->kind == EPI_INSTR_STORE};
    }
    return count;
}

void epi_epilogue_end(const epi_tile_run *r, const epi_ref *homes, int threads) {
    const epi_epilogue *e = r->e;
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        bool rows = s->kind == EPI_INSTR_PARTIAL_ROWS;
        if (!rows && s->kind != EPI_INSTR_PARTIAL_COLS)
            continue;
        epi_scale scale = e->tile.values[s->arg[0]].scale;
        epi_partials_fold(&e->tile, e->strips, s, &homes[s->node], r->partials,
                          rows ? e->tile.m : e->tile.n * e->tile.width[scale] / e->tile.tile_n,
                          rows ? e->col_tiles : e->row_tiles, threads);
    }
}
