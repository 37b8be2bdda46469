/* recurrence.c: scans of products (pass/analyse/recurrence.h), step by step.
 *
 * An item is a batch and a block of columns; all columns where a sum goes along them. It has the state of these in its
 * scratch, of f32, walks along T, and makes of the state what leaves at each step. Blocks have a fixed number of
 * columns, and sums a fixed order: bits depend neither on threads nor on batches, nor on where a walk was begun with
 * the state of another one.
 *
 * Products with the states of a scan the other way: these are made first, of which every so many-th is kept, about the
 * square root of their number; then a stretch of them at a time is made anew from there, the last stretch first. */
#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "cpu/cpu.h"

enum { COLUMNS = 32, ALIGN = 16, VECTORS = 8, AHEAD = 2 };

/* An operand, or a result: where it is along batches, T, rows and columns. */
typedef struct along {
    epi_ref ref;
    bool number; /* it is no tensor but this: */
    float value;
    int64_t time;
    epi_walk batch, rows, cols;
} along;

typedef struct factors {
    int count;
    along at[EPI_RECURRENCE_FACTORS];
    bool rows[EPI_RECURRENCE_FACTORS], cols[EPI_RECURRENCE_FACTORS]; /* has it these? */
} factors;

typedef struct recurrence {
    const epi_cpu_kernel *k;
    const epi_recurrence *r;
    int64_t batches, steps, rows, cols, block, blocks;
    along decay, first, added, out[EPI_TAKE_COUNT];
    factors of, by[EPI_TAKE_COUNT];
    epi_decay decay_of;
    float *scratch;
    int64_t scratch_floats;
    const struct recurrence *other; /* the scan the other way, or NULL; */
    int64_t stretch;                /* so many states of it are made at a time */
} recurrence;

/* Buffers of an item, in its scratch. */
typedef struct item {
    const recurrence *q;
    int64_t batch, start, n;
    float *state, *k, *v, *decay, *by_row, *down, *by_column, *along, *tmp;
} item;

static bool has(const epi_recurrence *r, epi_take take) {
    return r->out[take] != EPI_NO_NODE;
}

static int64_t block_of(const epi_spec *spec, const epi_recurrence *r) {
    int64_t cols = epi_axes_size(&r->cols, spec->sizes);
    bool all = has(r, EPI_TAKE_ALONG) || (has(r, EPI_TAKE_PRODUCT) && r->over_cols);
    return all ? cols : epi_min64(cols, COLUMNS);
}

static int64_t stretch_of(const epi_spec *spec, const epi_recurrence *r) {
    int64_t steps = epi_axis_size(r->time, spec->sizes), stretch = (int64_t)sqrt((double)steps);
    return epi_max64(1, stretch);
}

static int64_t state_floats(int64_t rows, int64_t block) {
    return rows * epi_round_up(block, ALIGN);
}

/* Floats of an item: the state, then vectors of rows or of a block. */
static int64_t item_floats(int64_t rows, int64_t block) {
    return state_floats(rows, block) + VECTORS * epi_round_up(epi_max64(rows, block), ALIGN);
}

/* The same with what another scan needs: an item of its own, states that are kept, and those of a stretch. */
static int64_t all_floats(const epi_spec *spec, const epi_recurrence *r) {
    int64_t rows = epi_axes_size(&r->rows, spec->sizes), block = block_of(spec, r),
            stretch = stretch_of(spec, r);
    int64_t kept = epi_ceil_div(epi_axis_size(r->time, spec->sizes), stretch);
    return r->other ? 2 * item_floats(rows, block) + (kept + stretch) * state_floats(rows, block)
                    : item_floats(rows, block);
}

int64_t epi_recurrence_scratch(const epi_spec *spec, const epi_recurrence *r) {
    return (int64_t)spec->threads * (int64_t)sizeof(float) * all_floats(spec, r);
}

/* ---- operands ---- */

static along along_of(const recurrence *q, int node, const epi_ref *refs) {
    const int64_t *sizes = q->k->spec.sizes;
    const epi_node *n = &q->k->spec.graph->nodes[node];
    if (n->op == EPI_OP_CONST || n->op == EPI_OP_SIZE)
        return (along){.number = true,
                       .value = n->op == EPI_OP_CONST ? (float)n->value
                                                      : (float)epi_axis_size(n->over.at[0], sizes)};
    return (along){.ref = refs[node],
                   .time = epi_ref_stride(&refs[node], q->r->time),
                   .batch = epi_walk_axes(&refs[node], &q->r->batch, sizes),
                   .rows = epi_walk_axes(&refs[node], &q->r->rows, sizes),
                   .cols = epi_walk_axes(&refs[node], &q->r->cols, sizes)};
}

static factors factors_of(const recurrence *q, const epi_factors *of, const epi_ref *refs) {
    factors f = {.count = of->count};
    for (int i = 0; i < of->count; i++) {
        f.at[i] = along_of(q, of->at[i], refs);
        f.rows[i] = epi_factor_has(q->k->spec.graph, of->at[i], &q->r->rows);
        f.cols[i] = epi_factor_has(q->k->spec.graph, of->at[i], &q->r->cols);
    }
    return f;
}

/* Where the tensor's elements of a batch at a position begin. */
static int64_t base_of(const item *it, const along *a, int64_t t) {
    return epi_walk_offset(&a->batch, it->batch) + t * a->time;
}

/* A step's elements lie together, but far from those of the step before: no CPU sees them coming. */
static void prefetch(const item *it, const along *a, int64_t t, int64_t start, int64_t n) {
    const recurrence *q = it->q;
    int64_t size = (int64_t)epi_dtype_size(a->ref.type), at = t + (q->r->back ? -AHEAD : AHEAD);
    if (a->time == 0 || at < 0 || at >= q->steps)
        return;
    const unsigned char *p = a->ref.data + (base_of(it, a, at) + start) * size;
    for (int64_t i = 0; i < n * size; i += EPI_LINE)
        __builtin_prefetch(p + i);
}

/* A vector of rows, or of the item's columns. */
static void load(const item *it, const along *a, int64_t t, bool rows, float *to) {
    int64_t n = rows ? it->q->rows : it->n;
    if (a->number) {
        for (int64_t i = 0; i < n; i++)
            to[i] = a->value;
        return;
    }
    const epi_walk *w = rows ? &a->rows : &a->cols;
    if (w->count == 1 && w->stride[0] == 1)
        prefetch(it, a, t, rows ? 0 : it->start, n);
    epi_walk_load(it->q->k->strips, to, &a->ref, base_of(it, a, t), w, rows ? 0 : it->start, n);
}

static float load_one(const item *it, const along *a, int64_t t) {
    float x = a->value;
    if (!a->number)
        it->q->k->strips->load(&x, a->ref.data + base_of(it, a, t) * (int64_t)epi_dtype_size(a->ref.type),
                               a->ref.type, 1, 1);
    return x;
}

/* The product, along rows or columns, of those factors of which `which` says `with`. */
static void load_factors(const item *it, const factors *f, int64_t t, bool rows, const bool *which, bool with,
                         float *to) {
    int64_t n = rows ? it->q->rows : it->n;
    bool begun = false;
    for (int i = 0; i < f->count; i++) {
        if (which[i] != with)
            continue;
        load(it, &f->at[i], t, rows, begun ? it->tmp : to);
        for (int64_t j = 0; j < n && begun; j++)
            to[j] *= it->tmp[j];
        begun = true;
    }
    for (int64_t j = 0; j < n && !begun; j++)
        to[j] = 1;
}

/* ---- the state ---- */

static int64_t ld_of(const item *it) {
    return epi_round_up(it->q->block, ALIGN);
}

/* Row i of a value of the state's shape. */
static int64_t row_base(const item *it, const along *a, int64_t t, int64_t row) {
    return base_of(it, a, t) + epi_walk_offset(&a->rows, row);
}

static void load_state(const item *it, const along *a, float *to, int64_t row) {
    if (a->number)
        load(it, a, 0, false, to);
    else
        epi_walk_load(it->q->k->strips, to, &a->ref, row_base(it, a, 0, row), &a->cols, it->start, it->n);
}

static void begin_state(const item *it) {
    for (int64_t i = 0; i < it->q->rows && it->q->r->first != EPI_NO_NODE; i++)
        load_state(it, &it->q->first, it->state + i * ld_of(it), i);
}

/* What comes to the state at the first step alone. */
static void add_to_state(const item *it) {
    for (int64_t i = 0; i < it->q->rows; i++) {
        float *s = it->state + i * ld_of(it);
        load_state(it, &it->q->added, it->tmp, i);
        for (int64_t j = 0; j < it->n; j++)
            s[j] += it->tmp[j];
    }
}

static void store_state(const item *it) {
    const along *a = &it->q->out[EPI_TAKE_LAST];
    for (int64_t i = 0; i < it->q->rows; i++)
        epi_walk_store(it->q->k->strips, &a->ref, row_base(it, a, 0, i), &a->cols, it->start,
                       it->state + i * ld_of(it), it->n);
}

/* ---- steps ---- */

static void load_decay(const item *it, int64_t t) {
    const recurrence *q = it->q;
    int64_t at = t + q->r->decay_ahead;
    if (at < 0 || at >= q->steps) /* at the first step, where nobody asks */
        return;
    if (q->decay_of == EPI_DECAY_NUMBER)
        *it->decay = load_one(it, &q->decay, at);
    else
        load(it, &q->decay, at, q->decay_of == EPI_DECAY_ROW, it->decay);
}

/* A sum, times the factors that lack what it is over, to its place. */
static void store_sum(const item *it, epi_take take, int64_t t, float *sum, float *scale) {
    const recurrence *q = it->q;
    bool rows = take == EPI_TAKE_ALONG;
    const factors *by = &q->by[take];
    const bool *over = rows ? by->cols : by->rows;
    int64_t n = rows ? q->rows : it->n;
    int scales = 0;
    for (int i = 0; i < by->count; i++)
        scales += !over[i];
    if (scales)
        load_factors(it, by, t, rows, over, false, scale);
    for (int64_t i = 0; i < n && scales; i++)
        sum[i] *= scale[i];
    const along *a = &q->out[take];
    epi_walk_store(q->k->strips, &a->ref, base_of(it, a, t), rows ? &a->rows : &a->cols, rows ? 0 : it->start,
                   sum, n);
}

/* The sum of products with a state of the other scan. */
static void store_product(const item *it, const float *other, int64_t t) {
    const recurrence *q = it->q;
    const along *a = &q->out[EPI_TAKE_PRODUCT];
    const epi_strips *s = q->k->strips;
    bool rows = q->r->over_rows, cols = q->r->over_cols;
    s->recur_product(it->state, other, ld_of(it), (int)q->rows, (int)it->n, cols ? NULL : it->down,
                     cols ? it->along : NULL);
    if (rows && cols) {
        float lost;
        s->reduce_rows(EPI_OP_SUM, it->tmp, &lost, (epi_view){it->along, 0, 1}, 1, (int)q->rows);
        s->store(a->ref.data + base_of(it, a, t) * (int64_t)epi_dtype_size(a->ref.type), a->ref.type, 1,
                 it->tmp, 1);
    } else {
        epi_walk_store(s, &a->ref, base_of(it, a, t), cols ? &a->rows : &a->cols, cols ? 0 : it->start,
                       cols ? it->along : it->down, cols ? q->rows : it->n);
    }
}

/* Step i of the walk. */
static void step(const item *it, int64_t i) {
    const recurrence *q = it->q;
    const epi_recurrence *r = q->r;
    int64_t t = r->back ? q->steps - 1 - i : i;
    bool first = i == 0, down = has(r, EPI_TAKE_DOWN), along = has(r, EPI_TAKE_ALONG);
    bool adds = first && r->added != EPI_NO_NODE;
    const factors *by_down = &q->by[EPI_TAKE_DOWN], *by_along = &q->by[EPI_TAKE_ALONG];
    epi_recur s = {.state = it->state,
                   .ld = ld_of(it),
                   .rows = (int)q->rows,
                   .n = (int)it->n,
                   .fresh = first && r->first == EPI_NO_NODE,
                   .decay_of = q->decay_of,
                   .decay = it->decay,
                   .k = it->k,
                   .v = it->v,
                   .by_row = down && !adds ? it->by_row : NULL,
                   .down = it->down,
                   .by_column = along && !adds ? it->by_column : NULL,
                   .along = it->along};
    load_decay(it, t);
    load_factors(it, &q->of, t, true, q->of.rows, true, it->k);
    load_factors(it, &q->of, t, false, q->of.rows, false, it->v);
    if (!r->of.count) /* the state does nothing but decay */
        memset(it->k, 0, (size_t)q->rows * sizeof *it->k);
    if (down)
        load_factors(it, by_down, t, true, by_down->rows, true, it->by_row);
    if (along)
        load_factors(it, by_along, t, false, by_along->cols, true, it->by_column);
    q->k->strips->recur(&s);
    if (adds) {
        add_to_state(it);
        s.by_row = down ? it->by_row : NULL;
        s.by_column = along ? it->by_column : NULL;
        s.still = true;
        q->k->strips->recur(&s);
    }
    if (down)
        store_sum(it, EPI_TAKE_DOWN, t, it->down, it->v);
    if (along)
        store_sum(it, EPI_TAKE_ALONG, t, it->along, it->k);
}

/* An item's buffers, from `next` on. Returns what is behind them. */
static float *lay_out(item *it, float *next) {
    const recurrence *q = it->q;
    int64_t longest = epi_round_up(epi_max64(q->rows, q->block), ALIGN);
    float **vectors[VECTORS] = {&it->k,    &it->v,         &it->decay, &it->by_row,
                                &it->down, &it->by_column, &it->along, &it->tmp};
    it->state = next;
    next += state_floats(q->rows, q->block);
    for (int i = 0; i < VECTORS; i++, next += longest)
        *vectors[i] = next;
    return next;
}

/* The walk of an item, and another one's the other way: step i of one is step steps - 1 - i of the other, which has
 * the state before it. Before its first step there is none: that is 0. */
static void walk_both(const item *it, const item *other, float *kept, float *stretch) {
    const recurrence *q = it->q;
    int64_t floats = state_floats(q->rows, q->block), stretches = epi_ceil_div(q->steps, q->stretch);
    size_t bytes = (size_t)floats * sizeof(float);
    begin_state(other);
    for (int64_t i = 0; i < q->steps; i++) {
        if (i % q->stretch == 0)
            memcpy(kept + i / q->stretch * floats, other->state, bytes);
        step(other, i);
    }
    for (int64_t p = stretches - 1; p >= 0; p--) {
        int64_t from = p * q->stretch, to = epi_min64(q->steps, from + q->stretch);
        memcpy(other->state, kept + p * floats, bytes);
        for (int64_t i = from; i < to; i++) {
            if (i == 0)
                memset(stretch, 0, bytes);
            else
                memcpy(stretch + (i - from) * floats, other->state, bytes);
            if (i + 1 < to)
                step(other, i);
        }
        for (int64_t i = to - 1; i >= from; i--) {
            step(it, q->steps - 1 - i);
            store_product(it, stretch + (i - from) * floats, q->r->back ? i : q->steps - 1 - i);
        }
    }
}

static void run_item(void *ctx, int64_t at, int thread) {
    const recurrence *q = ctx;
    item it = {.q = q, .batch = at / q->blocks, .start = at % q->blocks * q->block};
    it.n = epi_min64(q->block, q->cols - it.start);
    float *next = lay_out(&it, q->scratch + thread * q->scratch_floats);
    begin_state(&it);
    if (q->other) {
        item other = it;
        other.q = q->other;
        float *kept = lay_out(&other, next);
        walk_both(&it, &other, kept,
                  kept + epi_ceil_div(q->steps, q->stretch) * state_floats(q->rows, q->block));
    }
    for (int64_t i = 0; i < q->steps && !q->other; i++)
        step(&it, i);
    if (has(q->r, EPI_TAKE_LAST))
        store_state(&it);
}

static recurrence begin(const epi_cpu_kernel *k, const epi_recurrence *r, int64_t block, const epi_ref *refs,
                        unsigned char *scratch) {
    const epi_graph *g = k->spec.graph;
    const int64_t *sizes = k->spec.sizes;
    recurrence q = {.k = k,
                    .r = r,
                    .batches = epi_axes_size(&r->batch, sizes),
                    .steps = epi_axis_size(r->time, sizes),
                    .rows = epi_axes_size(&r->rows, sizes),
                    .cols = epi_axes_size(&r->cols, sizes),
                    .block = block,
                    .stretch = stretch_of(&k->spec, r),
                    .scratch = (float *)(void *)scratch};
    q.blocks = epi_ceil_div(q.cols, q.block);
    q.decay_of = epi_factor_has(g, r->decay, &r->rows)   ? EPI_DECAY_ROW
                 : epi_factor_has(g, r->decay, &r->cols) ? EPI_DECAY_COLUMN
                                                         : EPI_DECAY_NUMBER;
    q.decay = along_of(&q, r->decay, refs);
    if (r->first != EPI_NO_NODE)
        q.first = along_of(&q, r->first, refs);
    if (r->added != EPI_NO_NODE)
        q.added = along_of(&q, r->added, refs);
    q.of = factors_of(&q, &r->of, refs);
    for (int t = 0; t < EPI_TAKE_COUNT; t++)
        if (has(r, t)) {
            q.out[t] = along_of(&q, r->out[t], refs);
            q.by[t] = factors_of(&q, &r->by[t], refs);
        }
    return q;
}

void epi_recurrence_run(const epi_cpu_kernel *k, const epi_recurrence *r, const epi_ref *refs,
                        unsigned char *scratch) {
    int64_t block = block_of(&k->spec, r);
    recurrence q = begin(k, r, block, refs, scratch), other;
    q.scratch_floats = all_floats(&k->spec, r);
    if (r->other) {
        other = begin(k, r->other, block, refs, scratch);
        q.other = &other;
    }
    epi_parallel_for(k->spec.threads, q.batches * q.blocks, run_item, &q);
}
