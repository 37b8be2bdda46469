/* band.c: runs the instructions of a tile's program on a band of elements, and on the short vectors next to
 * it. */
#include "cpu/attention/band.h"

#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "base/philox.h"
#include "ir/index.h"

/* ---- once ---- */

void epi_first_stores(const epi_tile_program *t, int *store) {
    for (int v = 0; v < t->value_count; v++)
        store[v] = -1;
    for (int i = 0; i < t->instr_count; i++) {
        const epi_instr *s = &t->instrs[i];
        int made = s->kind == EPI_INSTR_STORE ? t->values[s->arg[0]].made : -1;
        bool computed = made >= 0 && t->instrs[made].kind != EPI_INSTR_LOAD;
        if (computed && s->full && store[s->arg[0]] < 0)
            store[s->arg[0]] = i;
    }
}

static void find_shift(const epi_tile_program *t, const epi_node *n, const epi_ref *homes,
                       epi_tile_access *out) {
    const int64_t *sizes = t->spec->sizes;
    epi_ref places = epi_ref_of_axes(&n->over, sizes);
    out->ref = homes[n->arg[0]];
    out->size = epi_axes_size(&n->over, sizes);
    out->by = epi_shift_by(n);
    out->back = out->by * epi_ref_stride(&out->ref, n->over.at[0]);
    out->across = epi_axes_find(&t->plan->rows, n->over.at[0]) < 0;
    out->which = epi_walk_axes(&places, &t->plan->rows, sizes);
}

void epi_tile_access_find(const epi_tile_program *t, int instr, const epi_ref *homes, const epi_ref *tensors,
                          epi_tile_access *out) {
    const epi_instr *s = &t->instrs[instr];
    *out = (epi_tile_access){0};
    const epi_node *n = &t->spec->graph->nodes[s->node];
    bool counts = s->kind == EPI_INSTR_INDEX || s->kind == EPI_INSTR_RANDOM,
         stores = s->kind == EPI_INSTR_STORE || s->kind == EPI_INSTR_LAST,
         moves = s->kind == EPI_INSTR_LOAD || stores;
    bool shifts = s->kind == EPI_INSTR_SHIFT;
    if ((!moves && s->kind != EPI_INSTR_TAKE && !shifts && !counts) || s->tensor == EPI_ROOT_KEPT)
        return;
    const epi_tile_value *v = &t->values[stores ? s->arg[0] : s->dst];
    if (counts) /* an index, and a random number's place, is the offset in a tensor of these axes */
        out->ref = epi_ref_of_axes(&n->axes, t->spec->sizes);
    if (s->kind == EPI_INSTR_RANDOM)
        out->index = homes[n->arg[0]];
    if (s->kind == EPI_INSTR_TAKE) {
        out->ref = homes[n->arg[0]];
        out->along = epi_ref_along(&out->ref, &n->over, t->spec->sizes);
        out->size = epi_axes_size(&n->over, t->spec->sizes);
    }
    if (shifts)
        find_shift(t, n, homes, out);
    if (s->kind == EPI_INSTR_TAKE && t->plan->group == EPI_GROUP_NONE) {
        epi_index_source from = epi_index_find(t->spec->graph, n);
        const epi_node *index = &t->spec->graph->nodes[from.node];
        out->index =
            index->op == EPI_OP_INDEX ? epi_ref_of_axes(&index->axes, t->spec->sizes) : homes[from.node];
        if (index->op == EPI_OP_CONST) {
            out->index = (epi_ref){0};
            out->number = epi_position(index->value, out->size);
        }
        if (from.sliced)
            out->index.data +=
                from.at * epi_ref_drop(&out->index, from.axis) * (int64_t)epi_dtype_size(out->index.type);
        out->which = epi_walk_axes(&out->index, &t->plan->rows, t->spec->sizes);
    } else if (moves)
        out->ref = s->tensor >= 0 ? tensors[s->tensor] : homes[s->node];
    out->rows = epi_walk_axes(&out->ref, &t->plan->rows, t->spec->sizes);
    out->cols = epi_columns_of(t->plan, &out->ref, t->spec->sizes, v->scale);
    const epi_walk *cols = &out->cols.walk;
    out->plain = s->kind != EPI_INSTR_INDEX && !out->cols.two && cols->count <= 1 &&
                 (cols->count == 0 || cols->stride[0] == 1);
    out->direct = moves && out->plain && out->ref.type == EPI_F32 && out->rows.count <= 1;
}

/* ---- operands ---- */

/* A value as an operand: of an instruction on elements, or of one on a whole short vector. */
static inline epi_view view_of(const epi_band *t, int value, bool full) {
    const epi_tile_value *v = &t->tile->values[value];
    const epi_spot *at = &t->at[value];
    if (epi_value_is_full(v))
        return (epi_view){at->p + (at->down ? t->row * at->ld : 0), at->ld, 1};
    if (v->rows)
        return full ? (epi_view){at->p + t->row, 1, 0} : (epi_view){at->p, 0, 1};
    return (epi_view){at->p, 0, v->scale != EPI_SCALE_NONE};
}

/* Where the instruction's result begins. */
static float *result_of(const epi_band *t, const epi_instr *s) {
    const epi_spot *at = &t->at[s->dst];
    return at->p + (s->full && at->down ? t->row * at->ld : 0);
}

static int64_t row_offset(const epi_tile_access *a, int64_t row) {
    return epi_walk_offset(&a->rows, row);
}

unsigned char *epi_band_address(const epi_band *t, const epi_tile_access *a, epi_scale scale) {
    return a->ref.data + (row_offset(a, t->m0) + epi_columns_offset(&a->cols, t->first[scale]) - a->back) *
                             (int64_t)epi_dtype_size(a->ref.type);
}

/* ---- instructions ---- */

static void run_load(const epi_band *t, const epi_instr *s, const epi_tile_access *a) {
    const epi_tile_value *v = &t->tile->values[s->dst];
    float *dst = result_of(t, s);
    int64_t c0 = t->first[v->scale];
    int n = t->columns[v->scale];
    if (!s->full) {
        if (v->rows)
            epi_walk_load(t->strips, dst, &a->ref, 0, &a->rows, t->m0, t->rows);
        else /* of the tile's batch, if it has one */
            epi_columns_load(t->strips, dst, &a->ref, row_offset(a, t->m0), &a->cols, c0, n, t->tmp);
    } else if (!a->direct) {
        int rows = t->band_rows;
        for (int i = 0; i < rows; i++)
            epi_columns_load(t->strips, dst + i * t->at[s->dst].ld, &a->ref,
                             row_offset(a, t->m0 + t->row + i), &a->cols, c0, n, t->tmp);
    }
}

/* Positions along the columns of a row that starts at `base`. */
static void index_columns(float *dst, const epi_columns *c, int64_t base, int64_t start, int n) {
    if (!c->two && c->walk.count <= 1) {
        int64_t stride = c->walk.count ? c->walk.stride[0] : 0;
        for (int j = 0; j < n; j++)
            dst[j] = (float)(base + (start + j) * stride);
        return;
    }
    for (int j = 0; j < n; j++)
        dst[j] = (float)(base + epi_columns_offset(c, start + j));
}

static void run_index(const epi_band *t, const epi_instr *s, const epi_tile_access *a) {
    const epi_tile_value *v = &t->tile->values[s->dst];
    float *dst = result_of(t, s);
    if (v->scale == EPI_SCALE_NONE) {
        for (int i = 0; i < (v->rows ? t->rows : 1); i++)
            dst[i] = (float)row_offset(a, t->m0 + i);
        return;
    }
    for (int i = 0; i < (s->full ? t->band_rows : 1); i++)
        index_columns(dst + i * t->at[s->dst].ld, &a->cols, row_offset(a, t->m0 + (s->full ? t->row + i : 0)),
                      t->first[v->scale], t->columns[v->scale]);
}

/* The row of a table that the tile's group has; else rows by number, and zeros where a number names none. */
static void run_take(const epi_band *t, const epi_instr *s, const epi_tile_access *a) {
    const epi_tile_value *v = &t->tile->values[s->dst];
    if (t->tile->plan->group != EPI_GROUP_NONE) {
        epi_columns_load(t->strips, result_of(t, s), &a->ref, epi_walk_offset(&a->along, t->group), &a->cols,
                         t->first[v->scale], t->columns[v->scale], t->tmp);
        return;
    }
    bool columns = v->scale != EPI_SCALE_NONE;
    int64_t first = t->m0 + (s->full ? t->row : 0);
    int n = columns ? t->columns[v->scale] : 1, rows = s->full ? t->band_rows : v->rows ? t->rows : 1;
    ptrdiff_t ld = s->full ? t->at[s->dst].ld : 1;
    for (int i = 0; i < rows; i++) {
        float *dst = result_of(t, s) + i * ld;
        int64_t at = a->number + epi_walk_offset(&a->which, first + i);
        at = a->index.data ? epi_position_load(t->strips, &a->index, at, a->size) : at < a->size ? at : -1;
        if (at >= 0)
            epi_columns_load(t->strips, dst, &a->ref,
                             row_offset(a, first + i) + epi_walk_offset(&a->along, at), &a->cols,
                             columns ? t->first[v->scale] : 0, n, t->tmp);
        for (int j = 0; j < n && at < 0; j++)
            dst[j] = 0;
    }
}

/* The places that a shift takes for the columns in hand: those from *first on, so many, are inside. A row's are the
 * same for all its columns. */
static int64_t places_inside(const epi_tile_access *a, int64_t row, int64_t column, int n, int64_t *first) {
    int64_t at = a->across ? column - a->by : epi_walk_offset(&a->which, row) - a->by, end = at + n;
    *first = a->across ? epi_max64(0, -at) : 0;
    if (!a->across)
        return at >= 0 && at < a->size ? n : 0;
    return epi_max64(0, epi_min64(end, a->size) - epi_max64(at, 0));
}

bool epi_band_is_inside(const epi_band *t, int instr) {
    const epi_tile_value *v = &t->tile->values[t->tile->instrs[instr].dst];
    const epi_tile_access *a = &t->access[instr];
    bool inside = true;
    int64_t first;
    for (int i = 0; i < t->rows && inside; i++)
        inside = places_inside(a, t->m0 + i, t->first[v->scale], t->columns[v->scale], &first) ==
                 t->columns[v->scale];
    return inside;
}

static void run_shift(const epi_band *t, const epi_instr *s, const epi_tile_access *a) {
    const epi_tile_value *v = &t->tile->values[s->dst];
    bool columns = v->scale != EPI_SCALE_NONE;
    int64_t row = t->m0 + (s->full ? t->row : 0), c0 = columns ? t->first[v->scale] : 0, first;
    int n = columns ? t->columns[v->scale] : 1, rows = s->full ? t->band_rows : v->rows ? t->rows : 1;
    ptrdiff_t ld = s->full ? t->at[s->dst].ld : 1;
    for (int i = 0; i < rows; i++, row++) {
        float *dst = result_of(t, s) + i * ld;
        int64_t inside = places_inside(a, row, c0, n, &first);
        if (inside < n)
            memset(dst, 0, (size_t)n * sizeof *dst);
        if (inside)
            epi_columns_load(t->strips, dst + first, &a->ref, row_offset(a, row) - a->back, &a->cols,
                             c0 + first, (int)inside, t->tmp);
    }
}

static void run_random(const epi_band *t, const epi_instr *s, const epi_tile_access *a) {
    const epi_tile_value *v = &t->tile->values[s->dst];
    int32_t seed = epi_seed_load(t->strips, &a->index);
    int64_t first = t->m0 + (s->full ? t->row : 0), c0 = s->full ? t->first[v->scale] : 0;
    int n = s->full ? t->columns[v->scale] : 1;
    ptrdiff_t ld = s->full ? t->at[s->dst].ld : 1;
    for (int i = 0; i < (s->full ? t->band_rows : t->rows); i++) {
        float *dst = result_of(t, s) + i * ld;
        if (a->plain)
            epi_philox_uniform(dst, seed, row_offset(a, first + i) + c0, n);
        for (int j = 0; j < n && !a->plain; j++)
            epi_philox_uniform(dst + j, seed, row_offset(a, first + i) + epi_columns_offset(&a->cols, c0 + j),
                               1);
    }
}

static void run_store(const epi_band *t, const epi_instr *s, const epi_tile_access *a) {
    const epi_tile_value *v = &t->tile->values[s->arg[0]];
    epi_view src = view_of(t, s->arg[0], s->full);
    if (!s->full) {
        epi_walk_store(t->strips, &a->ref, 0, &a->rows, t->m0, src.p, t->rows);
        return;
    }
    int64_t c0 = t->first[v->scale];
    int rows = t->band_rows, n = t->columns[v->scale];
    if (a->direct && src.p == (float *)(void *)epi_band_address(t, a, v->scale) + t->row * epi_access_ld(a))
        return; /* made in place */
    for (int i = 0; i < rows && a->nontemporal; i++)
        t->strips->store_nontemporal(a->ref.data + (row_offset(a, t->m0 + t->row + i) + c0) *
                                                       (int64_t)epi_dtype_size(a->ref.type),
                                     a->ref.type, src.p + i * src.row, n);
    for (int i = 0; i < rows && !a->nontemporal; i++)
        epi_columns_store(t->strips, &a->ref, row_offset(a, t->m0 + t->row + i), &a->cols, c0,
                          src.p + i * src.row, n, t->tmp);
}

/* Of rows that are steps those that are the last of their recurrence; of rows that are recurrences their last element. */
static void run_last(const epi_band *t, const epi_instr *s, const epi_tile_access *a) {
    const epi_plan *plan = t->tile->plan;
    epi_scale scale = t->tile->values[s->arg[0]].scale;
    epi_view src = view_of(t, s->arg[0], true);
    int64_t steps = epi_axis_size(plan->scan, t->tile->spec->sizes), last = plan->scan_back ? 0 : steps - 1,
            first = t->first[scale];
    int n = t->columns[scale];
    for (int i = 0; i < t->band_rows; i++) {
        int64_t row = t->m0 + t->row + i;
        const float *from = src.p + i * src.row;
        if (!plan->scan_inner && row % steps == last)
            epi_columns_store(t->strips, &a->ref, row_offset(a, row), &a->cols, first, from, n, t->tmp);
        if (plan->scan_inner && last >= first && last < first + n)
            t->strips->store(a->ref.data + row_offset(a, row) * (int64_t)epi_dtype_size(a->ref.type),
                             a->ref.type, 1, from + last - first, 1);
    }
}

void epi_band_reduce(const epi_band *t, const epi_instr *s, float *p, float *p2) {
    epi_view v = view_of(t, s->arg[0], true);
    int n = t->columns[t->tile->values[s->arg[0]].scale];
    if (s->kind == EPI_INSTR_PARTIAL_COLS)
        t->strips->reduce_cols(s->op, p, p2, v, t->band_rows, n);
    else
        t->strips->reduce_rows(s->op, p, p2, v, t->band_rows, n);
}

/* Rows are the steps of all columns; those of one recurrence come one after the other. */
static void scan_down(const epi_band *t, const epi_instr *s, const epi_view *v, double *state) {
    const epi_plan *plan = t->tile->plan;
    int64_t steps = epi_axis_size(plan->scan, t->tile->spec->sizes), begins = plan->scan_back ? steps - 1 : 0;
    int n = t->columns[t->tile->values[s->dst].scale];
    for (int k = 0; k < t->band_rows; k++) {
        int i = plan->scan_back ? t->band_rows - 1 - k : k;
        epi_view row[2] = {{v[0].p + i * v[0].row, 0, v[0].col}, {v[1].p + i * v[1].row, 0, v[1].col}};
        bool first = (t->m0 + t->row + i) % steps == begins;
        t->strips->scan_step(state, result_of(t, s) + i * t->at[s->dst].ld, row, first, n);
    }
}

void epi_band_scan(const epi_band *t, const epi_instr *s, double *state) {
    const epi_plan *plan = t->tile->plan;
    epi_view v[2] = {view_of(t, s->arg[0], true), view_of(t, s->arg[1], true)};
    epi_scale scale = t->tile->values[s->dst].scale;
    int n = t->columns[scale];
    if (!plan->scan_inner) {
        scan_down(t, s, v, state);
        return;
    }
    bool first = plan->scan_back ? t->first[scale] + n == t->tile->n : t->first[scale] == 0;
    t->strips->scan_rows(state, result_of(t, s), t->at[s->dst].ld, v, first, plan->scan_back, t->band_rows,
                         n);
}

/* Are elements divided by one number for a row? A tape does that by factors, so a strip does, too: which of
 * them it is follows from sizes. */
static bool divides_row(const epi_band *t, const epi_instr *s) {
    return s->full && s->inverse && t->tile->values[s->arg[1]].scale == EPI_SCALE_NONE;
}

void epi_band_run(const epi_band *t, int i) {
    const epi_instr *s = &t->tile->instrs[i];
    switch (s->kind) {
    case EPI_INSTR_LOAD: run_load(t, s, &t->access[i]); return;
    case EPI_INSTR_STORE: run_store(t, s, &t->access[i]); return;
    case EPI_INSTR_LAST: run_last(t, s, &t->access[i]); return;
    case EPI_INSTR_INDEX: run_index(t, s, &t->access[i]); return;
    case EPI_INSTR_TAKE: run_take(t, s, &t->access[i]); return;
    case EPI_INSTR_SHIFT: run_shift(t, s, &t->access[i]); return;
    case EPI_INSTR_RANDOM: run_random(t, s, &t->access[i]); return;
    default: break;
    }
    const epi_tile_value *v = &t->tile->values[s->dst];
    float *dst = result_of(t, s);
    ptrdiff_t ld = t->at[s->dst].ld;
    int rows = s->full ? t->band_rows : 1;
    int n = v->scale != EPI_SCALE_NONE ? t->columns[v->scale] : v->rows ? t->rows : 1;
    switch (s->kind) {
    case EPI_INSTR_CONST:
        dst[0] = (float)(s->op == EPI_OP_CONST
                             ? t->tile->spec->graph->nodes[s->node].value
                             : (double)epi_axis_size(t->tile->spec->graph->nodes[s->node].over.at[0],
                                                     t->tile->spec->sizes));
        for (int k = 0; k < rows && s->full; k++)
            for (int j = 0; j < n; j++)
                dst[k * ld + j] = dst[0];
        break;
    case EPI_INSTR_MAP:
    case EPI_INSTR_MULADD: {
        epi_view arg[3];
        for (int a = 0; a < 3 && s->arg[a] >= 0; a++)
            arg[a] = view_of(t, s->arg[a], s->full);
        if (s->kind == EPI_INSTR_MAP && divides_row(t, s))
            t->strips->over(dst, ld, arg, rows, n);
        else if (s->kind == EPI_INSTR_MAP)
            t->strips->map[s->op](dst, ld, arg, rows, n);
        else
            t->strips->muladd(dst, ld, arg, s->sign, s->other, rows, n);
        break;
    }
    case EPI_INSTR_SPLIT:
        t->strips->deinterleave(dst, ld, view_of(t, s->arg[0], s->full), s->odd, rows, n);
        break;
    case EPI_INSTR_JOIN:
        t->strips->interleave(dst, ld, view_of(t, s->arg[0], s->full), view_of(t, s->arg[1], s->full), rows,
                              n / 2);
        break;
    case EPI_INSTR_REDUCE_GROUP:
        t->strips->reduce_groups(s->op, dst, ld, view_of(t, s->arg[0], s->full), rows, n,
                                 t->tile->group[v->scale]);
        break;
    default: break; /* that is all of a band: cross-tile reductions are epi_band_reduce's */
    }
}

/* ---- partials ---- */

enum { FOLD = 256 };

typedef struct fold {
    const epi_strips *strips;
    const epi_instr *s;
    epi_states at;
    const float *partials;
    epi_ref home, mean; /* no data: there is no mean beside it */
    epi_walk rows, mean_rows;
    epi_columns cols;
    int64_t length, partial_count; /* results, partials of each */
    int64_t covered, count;        /* elements behind a partial, but for the last, and behind one result */
} fold;

static void fold_stretch(void *ctx, int64_t item, int thread) {
    (void)thread;
    const fold *f = ctx;
    int64_t start = item * FOLD;
    int n = (int)epi_min64(FOLD, f->length - start);
    float acc[FOLD], acc2[FOLD], tmp[FOLD];
    for (int j = 0; j < n; j++) {
        acc[j] = epi_reduce_identity(f->s->op);
        acc2[j] = 0;
    }
    for (int64_t t = 0; t < f->partial_count; t++) {
        const float *p = f->partials + f->at.first + t * f->length + start,
                    *p2 = f->partials + f->at.second + t * f->length + start;
        int64_t have = t * f->covered, more = epi_min64(f->covered, f->count - have);
        if (f->s->op == EPI_OP_VAR)
            f->strips->combine_var(acc, acc2, p, p2, n, (double)have, (double)more);
        else
            f->strips->combine(f->s->op, acc, acc2, p, epi_ops[f->s->op].two ? p2 : NULL, n);
    }
    for (int j = 0; j < n && f->mean.data && !f->count; j++)
        acc[j] = NAN; /* the mean of no elements */
    if (f->mean.data)
        epi_walk_store(f->strips, &f->mean, 0, &f->mean_rows, start, acc, n);
    f->strips->finish(f->s->op, acc, acc2, n, (double)f->count);
    if (f->s->kind == EPI_INSTR_PARTIAL_ROWS)
        epi_walk_store(f->strips, &f->home, 0, &f->rows, start, acc, n);
    else
        epi_columns_store(f->strips, &f->home, 0, &f->cols, start, acc, n, tmp);
}

void epi_partials_fold(const epi_tile_program *t, const epi_strips *strips, int instr, const epi_states *at,
                       const epi_ref *homes, const float *partials, int64_t length, int64_t count,
                       int threads) {
    const epi_instr *s = &t->instrs[instr];
    const int64_t *sizes = t->spec->sizes;
    epi_scale scale = t->values[s->arg[0]].scale;
    fold f = {.strips = strips, .s = s, .at = *at, .partials = partials, .home = homes[s->node]};
    f.rows = epi_walk_axes(&f.home, &t->plan->rows, sizes);
    f.cols = epi_columns_of(t->plan, &f.home, sizes, scale);
    f.length = length;
    f.partial_count = count;
    f.covered = t->width[scale];
    f.count = epi_axes_size(&t->spec->graph->nodes[s->node].over, sizes);
    if (s->mean != EPI_NO_NODE) {
        f.mean = homes[s->mean];
        f.mean_rows = epi_walk_axes(&f.mean, &t->plan->rows, sizes);
    }
    epi_parallel_for(threads, epi_ceil_div(f.length, FOLD), fold_stretch, &f);
}
