/* epilogue_run.c: runs the tapes and strips of a tile, and combines the partials of its reductions. */
#include "cpu/product/epilogue.h"

typedef struct tile {
    epi_band b;
    const epi_tile_run *r;
    int64_t place[2]; /* along rows and columns */
} tile;

/* ---- once per run ---- */

void epi_epilogue_begin(epi_tile_run *r, const epi_epilogue *e, const epi_ref *homes, const epi_ref *tensors,
                        void *shared, float *partials) {
    *r = (epi_tile_run){.e = e, .access = shared, .partials = partials};
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        epi_tile_access_find(&e->tile, i, homes, tensors, &r->access[i]);
        if (s->kind == EPI_INSTR_LOAD && e->kept[s->dst] >= 0)
            r->access[i].direct = false; /* it is copied to where it is kept */
    }
}

/* ---- one tile ---- */

static tile tile_at(const epi_tile_run *r, const int64_t place[2]) {
    const epi_epilogue *e = r->e;
    int64_t m0 = epi_run_row(r, place[0]), n0 = r->column + place[1] * e->tile.tile_n;
    tile t = {.b = {.tile = &e->tile,
                    .strips = e->strips,
                    .access = r->access,
                    .m0 = m0,
                    .group = r->groups ? r->groups[place[0]] : 0,
                    .rows = (int)(epi_run_row(r, place[0] + 1) - m0)},
              .r = r,
              .place = {place[0], place[1]}};
    int64_t columns = r->columns ? r->columns : epi_min64(e->tile.tile_n, e->tile.n - n0);
    t.b.columns[EPI_SCALE_NONE] = 1;
    for (int s = EPI_SCALE_COARSE; s <= EPI_SCALE_FINE; s++) {
        t.b.first[s] = n0 * e->tile.width[s] / e->tile.tile_n;
        t.b.columns[s] = (int)(columns * e->tile.width[s] / e->tile.tile_n);
    }
    return t;
}

/* A value that is worked on in its tensor. */
static epi_spot in_tensor(const tile *t, const epi_tile_access *a, epi_scale scale) {
    return (epi_spot){(float *)(void *)epi_band_address(&t->b, a, scale), epi_access_ld(a), true, true};
}

static bool is_kept(const epi_instr *s) {
    return s->kind == EPI_INSTR_STORE && s->tensor == EPI_ROOT_KEPT;
}

static bool is_product(const epi_epilogue *e, int value) {
    return value == 0 || (value == 1 && e->tile.plan->pair != EPI_NO_NODE);
}

const float *epi_epilogue_kept(const epi_tile_run *r, const float *acc, int value) {
    return is_product(r->e, value) ? acc + value * EPI_TILE_PAIR : r->kept[r->e->kept[value]];
}

/* Says where every value of the tile will be: its slot; the tensor itself where strips can work in
 * place; the accumulator. */
static void settle(tile *t, float *acc, unsigned char *memory) {
    const epi_epilogue *e = t->r->e;
    float *slots = (float *)(void *)(memory + e->slots), *shorts = (float *)(void *)(memory + e->shorts);
    t->b.at = (epi_spot *)(void *)(memory + e->at);
    t->b.tmp = shorts + e->short_count * e->short_slot;
    for (int i = 0; i < e->tile.value_count; i++) {
        const epi_tile_value *v = &e->tile.values[i];
        if (!epi_value_is_full(v))
            t->b.at[i] = (epi_spot){shorts + e->slot[i] * e->short_slot, 0, v->rows, false};
        else if (e->slot[i] >= 0)
            t->b.at[i] = (epi_spot){slots + e->slot[i] * e->full_slot,
                                    e->tapes.local[i] ? 0 : e->tile.width[v->scale], false, false};
        else if (is_product(e, i))
            t->b.at[i] = (epi_spot){acc + i * EPI_TILE_PAIR, EPI_TILE_N, true, true};
        else
            t->b.at[i] = (epi_spot){0}; /* in registers only */
    }
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        const epi_tile_access *a = &t->r->access[i];
        if (is_kept(s) && !is_product(e, s->arg[0])) {
            bool full = epi_value_is_full(&e->tile.values[s->arg[0]]); /* else one row is for all */
            t->b.at[s->arg[0]] =
                (epi_spot){t->r->kept[e->kept[s->arg[0]]], full ? EPI_TILE_N : 0, full, full};
        }
        if (!s->full || !a->direct)
            continue;
        if (s->kind == EPI_INSTR_LOAD)
            t->b.at[s->dst] = in_tensor(t, a, e->tile.values[s->dst].scale);
        else if (s->kind == EPI_INSTR_STORE && e->store[s->arg[0]] == i)
            t->b.at[s->arg[0]] = in_tensor(t, a, e->tile.values[s->arg[0]].scale);
    }
}

/* The partials of this tile: rows of the result, or columns. */
static float *partials_of(const tile *t, int instr, int64_t state) {
    const epi_epilogue *e = t->r->e;
    const epi_instr *s = &e->tile.instrs[instr];
    float *p = t->r->partials + state;
    if (e->own)
        return p;
    if (s->kind == EPI_INSTR_PARTIAL_ROWS)
        return p + t->place[1] * e->tile.m + t->b.m0;
    epi_scale scale = e->tile.values[s->arg[0]].scale;
    return p + t->place[0] * (e->tile.n * e->tile.width[scale] / e->tile.tile_n) + t->b.first[scale];
}

static float *first_partials(const void *ctx, int instr) {
    const tile *t = ctx;
    return partials_of(t, instr, t->r->e->states[instr].first);
}

static void run_instr(const void *ctx, int i) {
    const tile *t = ctx;
    const epi_instr *s = &t->b.tile->instrs[i];
    const epi_states *at = &t->r->e->states[i];
    if (epi_instr_is_partial(s)) {
        int row = s->kind == EPI_INSTR_PARTIAL_ROWS ? t->b.row : 0;
        epi_band_reduce(&t->b, s, partials_of(t, i, at->first) + row, partials_of(t, i, at->second) + row);
    } else if (!is_kept(s)) { /* that is where it belongs */
        epi_band_run(&t->b, i);
    }
}

static void clear_column_partials(const tile *t) {
    const epi_epilogue *e = t->r->e;
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        if (s->kind != EPI_INSTR_PARTIAL_COLS)
            continue;
        float *p = partials_of(t, i, e->states[i].first), *p2 = partials_of(t, i, e->states[i].second);
        for (int j = 0, n = t->b.columns[e->tile.values[s->arg[0]].scale]; j < n; j++) {
            p[j] = epi_reduce_identity(s->op);
            if (s->op == EPI_OP_LOGSUMEXP)
                p2[j] = 0;
        }
    }
}

/* While a tape works on a row, the one two rows on comes from the second-level cache: that of every operand
 * that lies in the tile's own memory or in a tensor. */
static void add_prefetches(epi_link *link, epi_link **end, int n) {
    enum { ROWS_AHEAD = 2 };
    static const int64_t all_of_it[] = {0, 1, 1};
    epi_link *last = *end;
    for (const epi_link *k = link; k < last; k++) {
        const epi_link_operand *const used[] = {&k->from, &k->a, &k->b, &k->to};
        for (int i = 0; i < 4 && *end < last + EPI_TAPE_PREFETCHES; i++) {
            epi_link_operand a = *used[i];
            if (!a.col || !a.down)
                continue;
            a.p = (const unsigned char *)a.p + ROWS_AHEAD * a.row;
            const epi_link *same = last;
            while (same < *end && same->a.p != a.p)
                same++;
            if (same == *end)
                epi_tape_prefetch(end, &a, n * a.along, n, all_of_it);
        }
    }
}

static void set_tapes(const tile *t, const epi_tape_place *where, epi_link *links) {
    for (int k = 0; k < where->tapes->item_count; k++) {
        const epi_tape_item *item = &where->tapes->items[k];
        if (!item->link_count)
            continue;
        epi_link *first = links + item->link, *end = epi_tape_set(where, item, links);
        if (t->b.strips->prefetches)
            add_prefetches(first, &end, t->b.columns[item->scale]);
        epi_tape_end(t->b.strips, first, end);
    }
}

/* On the band in hand; afterwards its tapes are where the next band begins. */
static void run_band(const tile *t, const epi_tape_place *where, epi_link *links) {
    for (int k = 0; k < where->tapes->item_count; k++) {
        const epi_tape_item *item = &where->tapes->items[k];
        if (!item->link_count) {
            epi_tape_strip(where, item);
            continue;
        }
        t->b.strips->tape(links + item->link, t->b.band_rows, t->b.columns[item->scale]);
        epi_tape_move(links + item->link, t->b.band_rows, 0);
    }
    epi_tape_stores(where);
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
            run_instr(&t, i);
    epi_tape_place where = {.tapes = &e->tapes,
                            .band = &t.b,
                            .fold_at = first_partials,
                            .strip = run_instr,
                            .ctx = &t,
                            .state = (float *)(void *)(memory + e->state)};
    set_tapes(&t, &where, links);
    for (int k = 0; k < e->tapes.item_count && r->low; k++)
        if (e->tapes.items[k].link_count)
            epi_tape_move(links + e->tapes.items[k].link, r->low, 0);
    const int high = r->high ? r->high : t.b.rows;
    for (t.b.row = r->low; t.b.row < high; t.b.row += t.b.band_rows) {
        t.b.band_rows = (int)epi_min64(EPI_TILE_BAND, high - t.b.row);
        run_band(&t, &where, links);
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
            t.b.columns[scale] * size, epi_access_ld(a) * size, t.b.rows, s->kind == EPI_INSTR_STORE};
    }
    return count;
}

void epi_epilogue_end(const epi_tile_run *r, const epi_ref *homes, int threads) {
    const epi_epilogue *e = r->e;
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        bool rows = s->kind == EPI_INSTR_PARTIAL_ROWS;
        if (!epi_instr_is_partial(s))
            continue;
        epi_scale scale = e->tile.values[s->arg[0]].scale;
        epi_partials_fold(&e->tile, e->strips, i, &e->states[i], homes, r->partials,
                          rows ? e->tile.m : e->tile.n * e->tile.width[scale] / e->tile.tile_n,
                          rows ? e->col_tiles : e->row_tiles, threads);
    }
}
