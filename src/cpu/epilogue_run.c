/* epilogue_run.c: carries the strips of a tile out, and folds the partials that leave it. */
#include <string.h>

#include "cpu/epilogue.h"
#include "cpu/parallel.h"

/* Where a value is during one tile. */
typedef struct place {
    float *p;
    ptrdiff_t ld;   /* between rows */
    ptrdiff_t walk; /* between blocks of rows: 0 for slots, which every block uses anew */
} place;

typedef struct tile {
    const epi_tile_run *r;
    place *at; /* by value */
    float *tmp;
    int64_t m0;
    int rows;
    int64_t first[EPI_SCALE_COUNT]; /* columns of the tile, by scale: the first, */
    int columns[EPI_SCALE_COUNT];   /* and how many */
    int64_t number;                 /* the tile's place along the columns */
    int row, block, block_rows;     /* the block of rows in hand */
} tile;

static int64_t align64(int64_t bytes) {
    return epi_round_up(bytes, 64);
}

static int64_t full_slot(const epi_epilogue *e) {
    return (int64_t)e->block * e->tile.width[EPI_SCALE_FINE];
}
static int64_t short_slot(const epi_epilogue *e) {
    return epi_round_up(epi_max64(EPI_TILE_M, e->tile.width[EPI_SCALE_FINE]), 16);
}

int64_t epi_epilogue_shared(const epi_epilogue *e) {
    return align64(e->tile.step_count * (int64_t)sizeof(epi_tile_access));
}

int64_t epi_epilogue_private(const epi_epilogue *e) {
    int64_t floats = e->slot_count * full_slot(e) + (e->short_count + 1) * short_slot(e);
    return align64(e->tile.value_count * (int64_t)sizeof(place)) + align64(floats * (int64_t)sizeof(float));
}

/* ---- once per run ---- */

void epi_epilogue_begin(epi_tile_run *r, const epi_epilogue *e, const epi_ref *homes, const epi_ref *tensors,
                        void *shared, float *partials) {
    *r = (epi_tile_run){.e = e, .access = shared, .partials = partials};
    const int64_t *sizes = e->tile.spec->sizes;
    for (int i = 0; i < e->tile.step_count; i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        epi_tile_access *a = &r->access[i];
        if (s->kind != EPI_TILE_LOAD && s->kind != EPI_TILE_STORE && s->kind != EPI_TILE_INDEX)
            continue;
        const epi_tile_value *v = &e->tile.values[s->kind == EPI_TILE_STORE ? s->arg[0] : s->dst];
        if (s->kind == EPI_TILE_INDEX) /* an index is the offset in a tensor of that one axis */
            a->ref = (epi_ref){.axes = e->tile.spec->graph->nodes[s->node].axes, .strides = {1}};
        else
            a->ref = s->tensor >= 0 ? tensors[s->tensor] : homes[s->node];
        a->rows = epi_walk_axes(&a->ref, &e->tile.plan->rows, sizes);
        a->cols = epi_columns_of(e->tile.plan, &a->ref, sizes, v->scale);
        a->direct = a->ref.type == EPI_F32 && a->rows.count <= 1 && !a->cols.two && a->cols.walk.count <= 1 &&
                    (a->cols.walk.count == 0 || a->cols.walk.step[0] == 1) && s->kind != EPI_TILE_INDEX;
    }
}

/* ---- one tile ---- */

static tile tile_at(const epi_tile_run *r, int64_t m0, int64_t n0) {
    const epi_epilogue *e = r->e;
    tile t = {
        .r = r, .m0 = m0, .number = n0 / e->tile.tile_n, .rows = (int)epi_min64(EPI_TILE_M, e->tile.m - m0)};
    int64_t columns = epi_min64(e->tile.tile_n, e->tile.n - n0);
    t.columns[EPI_SCALE_NONE] = 1;
    for (int s = EPI_SCALE_COARSE; s <= EPI_SCALE_FINE; s++) {
        t.first[s] = n0 * e->tile.width[s] / e->tile.tile_n;
        t.columns[s] = (int)(columns * e->tile.width[s] / e->tile.tile_n);
    }
    return t;
}

static bool is_full(const epi_tile_value *v) {
    return v->rows && v->scale != EPI_SCALE_NONE;
}

/* A value as an operand: of a step on elements, or of one on a whole short vector. */
static inline epi_view view_of(const tile *t, int value, bool full) {
    const epi_tile_value *v = &t->r->e->tile.values[value];
    const place *at = &t->at[value];
    if (is_full(v))
        return (epi_view){at->p + t->block * at->walk, at->ld, 1};
    if (v->rows)
        return full ? (epi_view){at->p + t->row, 1, 0} : (epi_view){at->p, 0, 1};
    return (epi_view){at->p, 0, v->scale != EPI_SCALE_NONE};
}

static int64_t row_offset(const epi_tile_access *a, int64_t row) {
    return epi_walk_offset(&a->rows, row);
}

static void *direct_address(const tile *t, const epi_tile_access *a, epi_scale scale) {
    return a->ref.data +
           (row_offset(a, t->m0) + epi_columns_offset(&a->cols, t->first[scale])) * (int64_t)sizeof(float);
}

static ptrdiff_t direct_ld(const epi_tile_access *a) {
    return a->rows.count ? (ptrdiff_t)a->rows.step[0] : 0;
}

/* Says where every value of the tile will be: its slot; the tensor itself where strips can work in
 * place; the accumulator. */
static void settle(tile *t, float *acc, float *slots, float *shorts) {
    const epi_epilogue *e = t->r->e;
    for (int i = 0; i < e->tile.value_count; i++) {
        const epi_tile_value *v = &e->tile.values[i];
        if (!is_full(v))
            t->at[i] = (place){shorts + v->slot * short_slot(e), 0, 0};
        else if (v->slot >= 0)
            t->at[i] = (place){slots + v->slot * full_slot(e), e->tile.width[v->scale], 0};
        else
            t->at[i] = (place){acc, EPI_TILE_N, (ptrdiff_t)e->block * EPI_TILE_N};
    }
    for (int i = 0; i < e->tile.step_count; i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        const epi_tile_access *a = &t->r->access[i];
        if (!s->full)
            continue;
        if (s->kind == EPI_TILE_STORE) {
            const epi_tile_value *v = &e->tile.values[s->arg[0]];
            if (a->direct && v->store == i)
                t->at[s->arg[0]] =
                    (place){direct_address(t, a, v->scale), direct_ld(a), e->block * direct_ld(a)};
        } else if (s->kind == EPI_TILE_LOAD && a->direct) {
            t->at[s->dst] = (place){direct_address(t, a, e->tile.values[s->dst].scale), direct_ld(a),
                                    e->block * direct_ld(a)};
        }
    }
}

static void load_step(const tile *t, const epi_tile_step *s, const epi_tile_access *a) {
    const epi_epilogue *e = t->r->e;
    const epi_tile_value *v = &e->tile.values[s->dst];
    float *dst = t->at[s->dst].p;
    int64_t c0 = t->first[v->scale];
    int n = t->columns[v->scale];
    if (!s->full) {
        if (v->rows)
            epi_walk_load(e->strips, dst, &a->ref, 0, &a->rows, t->m0, t->rows);
        else
            epi_columns_load(e->strips, dst, &a->ref, 0, &a->cols, c0, n, t->tmp);
    } else if (!a->direct) {
        int rows = t->block_rows;
        for (int i = 0; i < rows; i++)
            epi_columns_load(e->strips, dst + i * t->at[s->dst].ld, &a->ref,
                             row_offset(a, t->m0 + t->row + i), &a->cols, c0, n, t->tmp);
    }
}

static void index_step(const tile *t, const epi_tile_step *s, const epi_tile_access *a) {
    const epi_tile_value *v = &t->r->e->tile.values[s->dst];
    int rows = s->full ? t->block_rows : v->rows ? t->rows : 1;
    int n = t->columns[v->scale];
    int64_t c0 = t->first[v->scale], r0 = t->m0 + (s->full ? t->row : 0);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n; j++) {
            int64_t at = (v->rows ? row_offset(a, r0 + i) : 0) +
                         (v->scale != EPI_SCALE_NONE ? epi_columns_offset(&a->cols, c0 + j) : 0);
            t->at[s->dst].p[s->full ? i * t->at[s->dst].ld + j : i + j] = (float)at;
        }
}

static void store_step(const tile *t, const epi_tile_step *s, const epi_tile_access *a) {
    const epi_epilogue *e = t->r->e;
    const epi_tile_value *v = &e->tile.values[s->arg[0]];
    epi_view src = view_of(t, s->arg[0], true);
    int64_t c0 = t->first[v->scale];
    int rows = t->block_rows, n = t->columns[v->scale];
    if (a->direct && src.p == (float *)direct_address(t, a, v->scale) + t->row * direct_ld(a))
        return; /* made in place */
    for (int i = 0; i < rows; i++)
        epi_columns_store(e->strips, &a->ref, row_offset(a, t->m0 + t->row + i), &a->cols, c0,
                          src.p + i * src.row, n, t->tmp);
}

/* The partials of this tile: rows of the result, or columns. */
static float *partials_of(const tile *t, const epi_tile_step *s, int64_t state) {
    const epi_epilogue *e = t->r->e;
    float *p = t->r->partials + state;
    if (s->kind == EPI_TILE_REDUCE_ROWS)
        return p + t->number * e->tile.m + t->m0;
    epi_scale scale = e->tile.values[s->arg[0]].scale;
    return p + t->m0 / EPI_TILE_M * (e->tile.n * e->tile.width[scale] / e->tile.tile_n) + t->first[scale];
}

static void reduce_step(const tile *t, const epi_tile_step *s) {
    const epi_epilogue *e = t->r->e;
    epi_view v = view_of(t, s->arg[0], true);
    int rows = t->block_rows, n = t->columns[e->tile.values[s->arg[0]].scale];
    float *p = partials_of(t, s, s->state), *p2 = partials_of(t, s, s->state2);
    if (s->kind == EPI_TILE_REDUCE_ROWS)
        e->strips->reduce_rows(s->op, p + t->row, p2 + t->row, v, rows, n);
    else
        e->strips->reduce_cols(s->op, p, p2, v, rows, n);
}

static void run_step(const tile *t, int i) {
    const epi_epilogue *e = t->r->e;
    const epi_tile_step *s = &e->tile.steps[i];
    if (s->kind == EPI_TILE_LOAD) {
        load_step(t, s, &t->r->access[i]);
        return;
    }
    if (s->kind == EPI_TILE_STORE) {
        store_step(t, s, &t->r->access[i]);
        return;
    }
    if (s->kind == EPI_TILE_INDEX) {
        index_step(t, s, &t->r->access[i]);
        return;
    }
    if (s->kind == EPI_TILE_REDUCE_ROWS || s->kind == EPI_TILE_REDUCE_COLS) {
        reduce_step(t, s);
        return;
    }
    const epi_tile_value *v = &e->tile.values[s->dst];
    float *dst = t->at[s->dst].p + t->block * t->at[s->dst].walk;
    ptrdiff_t ld = t->at[s->dst].ld;
    int rows = s->full ? t->block_rows : 1;
    int n = v->scale != EPI_SCALE_NONE ? t->columns[v->scale] : v->rows ? t->rows : 1;
    switch (s->kind) {
    case EPI_TILE_CONST:
        dst[0] = (float)(s->op == EPI_OP_CONST
                             ? e->tile.spec->graph->nodes[s->node].value
                             : (double)epi_axis_size(e->tile.spec->graph->nodes[s->node].over.at[0],
                                                     e->tile.spec->sizes));
        for (int k = 0; k < rows && s->full; k++)
            for (int j = 0; j < n; j++)
                dst[k * ld + j] = dst[0];
        break;
    case EPI_TILE_MAP:
    case EPI_TILE_MULADD: {
        epi_view arg[3];
        for (int a = 0; a < 3 && s->arg[a] >= 0; a++)
            arg[a] = view_of(t, s->arg[a], s->full);
        if (s->kind == EPI_TILE_MAP)
            e->strips->map[s->op](dst, ld, arg, rows, n);
        else
            e->strips->muladd(dst, ld, arg, s->sign, s->other, rows, n);
        break;
    }
    case EPI_TILE_PART:
        e->strips->deinterleave(dst, ld, view_of(t, s->arg[0], s->full), s->odd, rows, n);
        break;
    case EPI_TILE_JOIN:
        e->strips->interleave(dst, ld, view_of(t, s->arg[0], s->full), view_of(t, s->arg[1], s->full), rows,
                              n / 2);
        break;
    case EPI_TILE_GROUP:
        e->strips->reduce_groups(s->op, dst, ld, view_of(t, s->arg[0], s->full), rows, n,
                                 e->tile.group[v->scale]);
        break;
    default: EPI_NEVER("no step of a tile");
    }
}

static void clear_column_partials(const tile *t) {
    const epi_epilogue *e = t->r->e;
    for (int i = 0; i < e->tile.step_count; i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        if (s->kind != EPI_TILE_REDUCE_COLS)
            continue;
        float *p = partials_of(t, s, s->state), *p2 = partials_of(t, s, s->state2);
        for (int j = 0, n = t->columns[e->tile.values[s->arg[0]].scale]; j < n; j++) {
            p[j] = epi_reduce_identity(s->op);
            if (s->op == EPI_OP_LOGSUMEXP)
                p2[j] = 0;
        }
    }
}

void epi_epilogue_tile(const epi_tile_run *r, float *acc, int64_t m0, int64_t n0, void *private_memory) {
    const epi_epilogue *e = r->e;
    tile t = tile_at(r, m0, n0);
    t.at = private_memory;
    unsigned char *floats =
        (unsigned char *)private_memory + align64(e->tile.value_count * (int64_t)sizeof(place));
    float *slots = (float *)(void *)floats, *shorts = slots + e->slot_count * full_slot(e);
    t.tmp = shorts + e->short_count * short_slot(e);
    settle(&t, acc, slots, shorts);
    clear_column_partials(&t);
    for (int i = 0; i < e->tile.step_count; i++)
        if (!e->tile.steps[i].full)
            run_step(&t, i);
    for (t.row = 0; t.row < t.rows; t.row += e->block, t.block++) {
        t.block_rows = (int)epi_min64(e->block, t.rows - t.row);
        for (int i = 0; i < e->tile.step_count; i++)
            if (e->tile.steps[i].full)
                run_step(&t, i);
    }
}

int epi_epilogue_regions(const epi_tile_run *r, int64_t m0, int64_t n0, epi_region *out, int most) {
    const epi_epilogue *e = r->e;
    tile t = tile_at(r, m0, n0);
    int count = 0;
    for (int i = 0; i < e->tile.step_count && count < most; i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        const epi_tile_access *a = &r->access[i];
        if (!s->full || (s->kind != EPI_TILE_LOAD && s->kind != EPI_TILE_STORE))
            continue;
        epi_scale scale = e->tile.values[s->kind == EPI_TILE_LOAD ? s->dst : s->arg[0]].scale;
        const epi_walk *cols = &a->cols.walk;
        if (a->rows.count > 1 || a->cols.two || cols->count != 1 || cols->step[0] != 1)
            continue;
        int64_t size = (int64_t)epi_dtype_size(a->ref.type);
        out[count++] =
            (epi_region){a->ref.data + (row_offset(a, m0) + t.first[scale]) * size, t.columns[scale] * size,
                         direct_ld(a) * size, t.rows, s->kind == EPI_TILE_STORE};
    }
    return count;
}

/* ---- folding ---- */

enum { FOLD = 256 };

typedef struct fold {
    const epi_tile_run *r;
    const epi_tile_step *s;
    epi_ref home;
    epi_walk rows;
    epi_columns cols;
    int64_t length, tiles; /* results, partials of each */
    double count;          /* elements behind one result */
} fold;

static void fold_chunk(void *ctx, int64_t item, int thread) {
    (void)thread;
    const fold *f = ctx;
    const epi_epilogue *e = f->r->e;
    int64_t start = item * FOLD;
    int n = (int)epi_min64(FOLD, f->length - start);
    float acc[FOLD], acc2[FOLD], tmp[FOLD];
    for (int j = 0; j < n; j++) {
        acc[j] = epi_reduce_identity(f->s->op);
        acc2[j] = 0;
    }
    for (int64_t t = 0; t < f->tiles; t++)
        e->strips->combine(f->s->op, acc, acc2, f->r->partials + f->s->state + t * f->length + start,
                           f->r->partials + f->s->state2 + t * f->length + start, n);
    e->strips->finish(f->s->op, acc, acc2, n, f->count);
    if (f->s->kind == EPI_TILE_REDUCE_ROWS)
        epi_walk_store(e->strips, &f->home, 0, &f->rows, start, acc, n);
    else
        epi_columns_store(e->strips, &f->home, 0, &f->cols, start, acc, n, tmp);
}

void epi_epilogue_end(const epi_tile_run *r, const epi_ref *homes, int threads) {
    const epi_epilogue *e = r->e;
    const int64_t *sizes = e->tile.spec->sizes;
    for (int i = 0; i < e->tile.step_count; i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        bool rows = s->kind == EPI_TILE_REDUCE_ROWS;
        if (!rows && s->kind != EPI_TILE_REDUCE_COLS)
            continue;
        epi_scale scale = e->tile.values[s->arg[0]].scale;
        fold f = {.r = r, .s = s, .home = homes[s->node]};
        f.rows = epi_walk_axes(&f.home, &e->tile.plan->rows, sizes);
        f.cols = epi_columns_of(e->tile.plan, &f.home, sizes, scale);
        f.length = rows ? e->tile.m : e->tile.n * e->tile.width[scale] / e->tile.tile_n;
        f.tiles = rows ? e->col_tiles : e->row_tiles;
        f.count = (double)epi_axes_size(&e->tile.spec->graph->nodes[s->node].over, sizes);
        epi_parallel_for(threads, epi_ceil_div(f.length, FOLD), fold_chunk, &f);
    }
}
