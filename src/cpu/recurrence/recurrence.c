/* recurrence.c: scans of products (pass/analyse/recurrence.h), some steps at a time.
 *
 * An item of work is a batch and a block of columns, or all columns if a sum runs along them. It keeps the
 * state of these in its scratch memory in f32, walks along T, and computes the results of each step from the
 * state. Blocks have a fixed number of columns, and sums a fixed order. So bits do not depend on threads, on
 * batches, or on where a walk began with the state of another one.
 *
 * Some products need the states of a scan in the other direction. A walk of its own stores some of these
 * states, one for each long piece of steps. Then, from the last piece to the first, one state for every few
 * steps is recomputed from there, and the mainloop recomputes the states between two of these as it needs
 * them. */
#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "cpu/cpu.h"

enum { COLUMNS = 64, ALIGN = 16, VECTORS = 9, STEPS = EPI_RECUR_STEPS, LEAST_STRETCH = 32 * STEPS };

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
    int64_t stretch;                /* so many steps of it are gone through at a time */
} recurrence;

/* Buffers of an item, in its scratch: states, and vectors of some steps, `step` elements apart. */
typedef struct item {
    const recurrence *q;
    int64_t batch, start, n, step;
    float *state, *added, *k, *v, *decay, *by_row, *down, *by_column, *along, *product, *tmp;
} item;

static bool has(const epi_recurrence *r, epi_take take) {
    return r->out[take] != EPI_NO_NODE;
}

static int64_t block_of(const epi_spec *spec, const epi_recurrence *r) {
    int64_t cols = epi_axes_size(&r->cols, spec->sizes);
    bool all = has(r, EPI_TAKE_ALONG) || (has(r, EPI_TAKE_PRODUCT) && r->over_cols);
    return all ? cols : epi_min64(cols, COLUMNS);
}

/* Of n steps about as many states are kept as are made in a stretch; more are in one where all are few. */
static int64_t stretch_of(const epi_spec *spec, const epi_recurrence *r) {
    int64_t steps = epi_axis_size(r->time, spec->sizes);
    return epi_max64(LEAST_STRETCH, epi_round_up((int64_t)sqrt((double)steps * STEPS), STEPS));
}

static int64_t state_floats(int64_t rows, int64_t block) {
    return rows * epi_round_up(block, ALIGN);
}

static int64_t step_floats(int64_t rows, int64_t block) {
    return epi_round_up(epi_max64(rows, block), ALIGN);
}

/* Floats of an item: its states, then vectors of rows or of a block for each of some steps. */
static int64_t item_floats(const epi_recurrence *r, int64_t steps, int64_t rows, int64_t block) {
    return (1 + (r->added != EPI_NO_NODE)) * state_floats(rows, block) +
           VECTORS * epi_min64(steps, STEPS) * step_floats(rows, block);
}

/* The same with what another scan needs: an item of its own, and states that are kept. */
static int64_t all_floats(const epi_spec *spec, const epi_recurrence *r) {
    int64_t steps = epi_axis_size(r->time, spec->sizes), rows = epi_axes_size(&r->rows, spec->sizes),
            block = block_of(spec, r), stretch = stretch_of(spec, r),
            floats = item_floats(r, steps, rows, block);
    int64_t kept = epi_ceil_div(steps, stretch) + epi_ceil_div(epi_min64(steps, stretch), STEPS);
    return r->other ? floats + item_floats(r->other, steps, rows, block) + kept * state_floats(rows, block)
                    : floats;
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

/* Where step i of the walk is along T. */
static int64_t time_of(const recurrence *q, int64_t i) {
    return q->r->back ? q->steps - 1 - i : i;
}

/* A step's elements lie together, but far from those of the step before: no CPU sees them coming. */
static void prefetch(const unsigned char *p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += EPI_LINE)
        __builtin_prefetch(p + i);
}

static void fill(float *to, float value, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] = value;
}

/* Of some steps of the walk, from the i-th one on, a vector each: of rows, or of the item's columns. Each is that of
 * so many positions further on, and is left out where there is no such position. */
static void load(const item *it, const along *a, int64_t i, int64_t count, int64_t ahead, bool rows,
                 float *to) {
    const recurrence *q = it->q;
    const epi_walk *w = rows ? &a->rows : &a->cols;
    int64_t n = rows ? q->rows : it->n, start = rows ? 0 : it->start;
    bool together = w->count == 1 && w->stride[0] == 1;
    int64_t size = a->number ? 0 : (int64_t)epi_dtype_size(a->ref.type),
            next = (q->r->back ? -STEPS : STEPS) * a->time * size, first = a->number ? 0 : base_of(it, a, 0);
    for (int64_t s = 0; s < count; s++, to += it->step) {
        int64_t t = time_of(q, i + s) + ahead, base = first + t * a->time;
        if (t < 0 || t >= q->steps)
            continue;
        if (a->number) {
            fill(to, a->value, n);
        } else if (together) {
            const unsigned char *p = a->ref.data + (base + start) * size;
            if (next && i + s + STEPS < q->steps)
                prefetch(p + next, n * size);
            q->k->strips->load(to, p, a->ref.type, 1, n);
        } else {
            epi_walk_load(q->k->strips, to, &a->ref, base, w, start, n);
        }
    }
}

/* One number of each. */
static void load_numbers(const item *it, const along *a, int64_t i, int64_t count, int64_t ahead, float *to) {
    const recurrence *q = it->q;
    int64_t size = a->number ? 0 : (int64_t)epi_dtype_size(a->ref.type),
            first = a->number ? 0 : base_of(it, a, 0);
    for (int64_t s = 0; s < count; s++, to += it->step) {
        int64_t t = time_of(q, i + s) + ahead;
        if (a->number)
            *to = a->value;
        else if (t >= 0 && t < q->steps)
            q->k->strips->load(to, a->ref.data + (first + t * a->time) * size, a->ref.type, 1, 1);
    }
}

/* The products, along rows or columns, of those factors of which `which` says `with`. */
static void load_factors(const item *it, const factors *f, int64_t i, int64_t count, bool rows,
                         const bool *which, bool with, float *to) {
    int64_t n = rows ? it->q->rows : it->n;
    bool begun = false;
    for (int e = 0; e < f->count; e++) {
        if (which[e] != with)
            continue;
        load(it, &f->at[e], i, count, 0, rows, begun ? it->tmp : to);
        for (int64_t s = 0; s < count && begun; s++)
            for (int64_t j = s * it->step; j < s * it->step + n; j++)
                to[j] *= it->tmp[j];
        begun = true;
    }
    for (int64_t s = 0; s < count && !begun; s++)
        fill(to + s * it->step, 1, n);
}

/* ---- the state ---- */

static int64_t ld_of(const item *it) {
    return epi_round_up(it->q->block, ALIGN);
}

/* Row i of a value of the state's shape. */
static int64_t row_base(const item *it, const along *a, int64_t t, int64_t row) {
    return base_of(it, a, t) + epi_walk_offset(&a->rows, row);
}

static void load_state(const item *it, const along *a, float *to) {
    for (int64_t i = 0; i < it->q->rows; i++, to += ld_of(it))
        if (a->number)
            fill(to, a->value, it->n);
        else
            epi_walk_load(it->q->k->strips, to, &a->ref, row_base(it, a, 0, i), &a->cols, it->start, it->n);
}

static void store_state(const item *it) {
    const along *a = &it->q->out[EPI_TAKE_LAST];
    for (int64_t i = 0; i < it->q->rows; i++)
        epi_walk_store(it->q->k->strips, &a->ref, row_base(it, a, 0, i), &a->cols, it->start,
                       it->state + i * ld_of(it), it->n);
}

/* ---- steps ---- */

/* Sums of some steps, times the factors that lack what these are over, to their place. */
static void store_sums(const item *it, epi_take take, int64_t i, int64_t count, float *sum, float *scale) {
    const recurrence *q = it->q;
    bool rows = take == EPI_TAKE_ALONG;
    const factors *by = &q->by[take];
    const bool *over = rows ? by->cols : by->rows;
    const along *a = &q->out[take];
    const epi_walk *w = rows ? &a->rows : &a->cols;
    int64_t n = rows ? q->rows : it->n, first = base_of(it, a, 0);
    int scales = 0;
    for (int e = 0; e < by->count; e++)
        scales += !over[e];
    if (scales)
        load_factors(it, by, i, count, rows, over, false, scale);
    for (int64_t s = 0; s < count; s++, sum += it->step, scale += it->step) {
        for (int64_t j = 0; j < n && scales; j++)
            sum[j] *= scale[j];
        epi_walk_store(q->k->strips, &a->ref, first + time_of(q, i + s) * a->time, w, rows ? 0 : it->start,
                       sum, n);
    }
}

/* The sums of products with a state of the other scan, to their place. */
static void store_product(const item *it, int64_t t, float *sum) {
    const recurrence *q = it->q;
    const along *a = &q->out[EPI_TAKE_PRODUCT];
    const epi_strips *s = q->k->strips;
    bool rows = q->r->over_rows, cols = q->r->over_cols;
    if (rows && cols) {
        float lost;
        int sums = (int)(q->rows / EPI_RECUR_ROWS + q->rows % EPI_RECUR_ROWS);
        s->reduce_rows(EPI_OP_SUM, it->tmp, &lost, (epi_view){sum, 0, 1}, 1, sums);
        s->store(a->ref.data + base_of(it, a, t) * (int64_t)epi_dtype_size(a->ref.type), a->ref.type, 1,
                 it->tmp, 1);
    } else {
        epi_walk_store(s, &a->ref, base_of(it, a, t), cols ? &a->rows : &a->cols, cols ? 0 : it->start, sum,
                       cols ? q->rows : it->n);
    }
}

/* Steps of the walk, from the i-th one on, with what they need in memory, from one state to another. */
static epi_recur load_steps(const item *it, int64_t i, int64_t count, const float *before, float *after) {
    const recurrence *q = it->q;
    const epi_recurrence *r = q->r;
    bool down = has(r, EPI_TAKE_DOWN), along = has(r, EPI_TAKE_ALONG);
    const factors *by_down = &q->by[EPI_TAKE_DOWN], *by_along = &q->by[EPI_TAKE_ALONG];
    if (q->decay_of == EPI_DECAY_NUMBER)
        load_numbers(it, &q->decay, i, count, r->decay_ahead, it->decay);
    else
        load(it, &q->decay, i, count, r->decay_ahead, q->decay_of == EPI_DECAY_ROW, it->decay);
    load_factors(it, &q->of, i, count, true, q->of.rows, true, it->k);
    load_factors(it, &q->of, i, count, false, q->of.rows, false, it->v);
    for (int64_t s = 0; s < count && !r->of.count; s++) /* the state does nothing but decay */
        fill(it->k + s * it->step, 0, q->rows);
    if (down)
        load_factors(it, by_down, i, count, true, by_down->rows, true, it->by_row);
    if (along)
        load_factors(it, by_along, i, count, false, by_along->cols, true, it->by_column);
    return (epi_recur){.rows = (int)q->rows,
                       .n = (int)it->n,
                       .steps = (int)count,
                       .before = i == 0 && r->first == EPI_NO_NODE ? NULL : before,
                       .after = after,
                       .ld = ld_of(it),
                       .step = it->step,
                       .decay_of = q->decay_of,
                       .decay = it->decay,
                       .k = it->k,
                       .v = it->v,
                       .added = i == 0 && r->added != EPI_NO_NODE ? it->added : NULL,
                       .by_row = down ? it->by_row : NULL,
                       .down = it->down,
                       .by_column = along ? it->by_column : NULL,
                       .along = it->along,
                       .over_rows = r->over_rows,
                       .over_cols = r->over_cols,
                       .product = it->product};
}

/* Takes them, beside those of another scan or NULL, and stores what leaves. */
static void take_steps(const item *it, int64_t i, int64_t count, const epi_recur *other, bool begins) {
    const recurrence *q = it->q;
    epi_recur steps = load_steps(it, i, count, it->state, it->state);
    steps.other = other;
    steps.begins = begins;
    q->k->strips->recur(&steps);
    if (has(q->r, EPI_TAKE_DOWN))
        store_sums(it, EPI_TAKE_DOWN, i, count, it->down, it->v);
    if (has(q->r, EPI_TAKE_ALONG))
        store_sums(it, EPI_TAKE_ALONG, i, count, it->along, it->k);
    for (int64_t s = 0; s < count && other; s++)
        store_product(it, time_of(q, i + s), it->product + s * it->step);
}

/* An item's buffers, from `next` on. Returns what is behind them. */
static float *lay_out(item *it, float *next) {
    const recurrence *q = it->q;
    float **vectors[VECTORS] = {&it->k,         &it->v,     &it->decay,   &it->by_row, &it->down,
                                &it->by_column, &it->along, &it->product, &it->tmp};
    it->step = step_floats(q->rows, q->block);
    it->state = next;
    next += state_floats(q->rows, q->block);
    it->added = next;
    next += q->r->added != EPI_NO_NODE ? state_floats(q->rows, q->block) : 0;
    for (int i = 0; i < VECTORS; i++, next += epi_min64(q->steps, STEPS) * it->step)
        *vectors[i] = next;
    return next;
}

/* What the walk begins with. */
static void begin_item(const item *it) {
    if (it->q->r->first != EPI_NO_NODE)
        load_state(it, &it->q->first, it->state);
    if (it->q->r->added != EPI_NO_NODE)
        load_state(it, &it->q->added, it->added);
}

/* The other scan's state after some steps, from one before them. */
static void move(const item *other, int64_t from, int64_t to, const float *before, float *after) {
    for (int64_t i = from; i < to; i += STEPS) {
        epi_recur steps = load_steps(other, i, epi_min64(STEPS, to - i), i == from ? before : after, after);
        other->q->k->strips->recur(&steps);
    }
}

/* The walk of an item, and another one's the other way: step i of one is step steps - 1 - i of the other. The item's
 * own steps begin where a few of the other's end. `kept` has the other's state before each stretch, `made` the one
 * before every few steps of a stretch but its first. */
static void walk_both(const item *it, const item *other, float *kept, float *made) {
    const recurrence *q = it->q;
    int64_t floats = state_floats(q->rows, q->block), stretches = epi_ceil_div(q->steps, q->stretch);
    memcpy(kept, other->state, (size_t)floats * sizeof *kept);
    for (int64_t p = 0; p + 1 < stretches; p++)
        move(other, p * q->stretch, (p + 1) * q->stretch, kept + p * floats, kept + (p + 1) * floats);
    for (int64_t p = stretches - 1; p >= 0; p--) {
        int64_t from = p * q->stretch, to = epi_min64(q->steps, from + q->stretch), last = from;
        float *state = kept + p * floats, *next = made;
        for (; last + STEPS < to; last += STEPS, state = next, next += floats)
            move(other, last, last + STEPS, state, next);
        for (int64_t i = last; i >= from; i -= STEPS) {
            int64_t count = epi_min64(STEPS, to - i);
            const float *before = i == from ? kept + p * floats : made + ((i - from) / STEPS - 1) * floats;
            epi_recur steps = load_steps(other, i, count, before, NULL);
            take_steps(it, q->steps - i - count, count, &steps, i == 0);
        }
    }
}

static void run_item(void *ctx, int64_t at, int thread) {
    const recurrence *q = ctx;
    item it = {.q = q, .batch = at / q->blocks, .start = at % q->blocks * q->block};
    it.n = epi_min64(q->block, q->cols - it.start);
    float *next = lay_out(&it, q->scratch + thread * q->scratch_floats);
    begin_item(&it);
    if (q->other) {
        item other = it;
        other.q = q->other;
        float *kept = lay_out(&other, next);
        begin_item(&other);
        walk_both(&it, &other, kept,
                  kept + epi_ceil_div(q->steps, q->stretch) * state_floats(q->rows, q->block));
    }
    for (int64_t i = 0; i < q->steps && !q->other; i += STEPS)
        take_steps(&it, i, epi_min64(STEPS, q->steps - i), NULL, false);
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
        if (has(r, (epi_take)t)) {
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
