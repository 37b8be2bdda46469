/* rows_run.c: walks over the rows of a program without a product. */
#include "base/parallel.h"
#include "cpu/rows_begin.h"

/* What is read from memory next, and during how much work it is fetched. */
typedef struct ahead {
    epi_fetch streams;
    int64_t work;
} ahead;

/* A thread at work. */
typedef struct worker {
    epi_block b;
    const epi_rows_begun *r;
    float *kept, *shorts;
    int64_t row_piece, col_piece;
    ahead next;
    epi_ready *ready, *next_ready; /* where all is regular: the chains of a row, and the next of them */
    struct worker *other;          /* where rows lag: at work on the rows before and after this one's, */
    const epi_chain *waiting; /* and the last chain of this one's row, if it is still to be carried out */
} worker;

static worker worker_of(const epi_rows_begun *r, int thread, int which) {
    const epi_rows *k = r->k;
    const epi_tile_program *t = &k->tile;
    unsigned char *mine =
        r->scratch + k->per_thread + (thread * epi_rows_workers(k) + which) * k->thread_bytes;
    worker w = {
        .r = r,
        .b = {.tile = t, .strips = k->strips, .access = r->access, .at = (void *)mine, .keep = k->keep}};
    mine += epi_round_up(t->value_count * (int64_t)sizeof(epi_spot), 64);
    w.ready = (void *)mine;
    float *slots = (float *)(void *)(mine + epi_round_up(k->chain_count * (int64_t)sizeof(epi_ready), 64));
    w.b.step[t->plan->flat] = t->plan->flat ? k->chunk : k->block * epi_rows_workers(k);
    w.b.tmp = slots + k->slot_count * epi_rows_slot(k);
    w.kept = w.b.tmp + epi_rows_slot(k);
    w.shorts = w.kept + k->keep_count * epi_rows_keep(k);
    w.b.columns[EPI_SCALE_NONE] = 1;
    for (int v = 0; v < t->value_count; v++) {
        const epi_tile_value *value = &t->values[v];
        if (!value->rows)
            w.b.at[v] = (epi_spot){r->columns + k->column[v], 0, 0};
        else if (value->scale == EPI_SCALE_NONE)
            w.b.at[v] = (epi_spot){w.shorts + value->slot * epi_rows_short(k), 0, 0};
        else
            w.b.at[v] = (epi_spot){slots + value->slot * epi_rows_slot(k),
                                   value->scale == EPI_SCALE_COARSE ? k->chunk / 2 : k->chunk, 0};
    }
    return w;
}

/* Moves on to a chunk of columns: values that lie in longer rows are looked for there. */
static void move_to(worker *w, int64_t column, int64_t end) {
    const epi_rows_begun *r = w->r;
    const epi_rows *k = r->k;
    epi_block *b = &w->b;
    int64_t n = epi_min64(k->chunk, end - column);
    b->first[EPI_SCALE_FINE] = column;
    b->first[EPI_SCALE_COARSE] = column / 2;
    b->columns[EPI_SCALE_FINE] = (int)n;
    b->columns[EPI_SCALE_COARSE] = (int)(n / 2);
    for (int i = 0; i < r->moves; i++) {
        int v = r->moving[i], source = r->source[v];
        epi_scale scale = k->tile.values[v].scale;
        if (source >= 0)
            b->at[v] = (epi_spot){(float *)(void *)epi_block_address(b, &r->access[source], scale),
                                  epi_tile_access_ld(&r->access[source]),
                                  b->step[0] * epi_tile_access_ld(&r->access[source]) +
                                      (b->step[1] >> (scale == EPI_SCALE_COARSE))};
        else if (source == EPI_IN_ROW_BUFFER)
            b->at[v] = (epi_spot){w->kept + k->keep[v] * epi_rows_keep(k) + b->first[scale],
                                  epi_rows_width(k, scale), 0};
        else
            b->at[v].p = r->columns + k->column[v] + b->first[scale];
    }
}

/* ---- values that do not depend on the row ---- */

static void run_short(worker *w, int i) {
    const epi_instr *s = &w->b.tile->instrs[i];
    if (s->kind != EPI_INSTR_LOAD || w->r->source[s->dst] < 0) /* what lies well is used where it is */
        epi_block_step(&w->b, i);
}

static bool is_number(const epi_tile_program *t, int v) {
    return v >= 0 && !t->values[v].rows && t->values[v].scale == EPI_SCALE_NONE;
}

static bool is_column(const epi_tile_program *t, int v) {
    return v >= 0 && !t->values[v].rows && t->values[v].scale != EPI_SCALE_NONE;
}

static void column_chunk(void *ctx, int64_t item, int thread) {
    const epi_rows_begun *r = ctx;
    const epi_tile_program *t = &r->k->tile;
    worker w = worker_of(r, thread, 0);
    move_to(&w, item * r->k->chunk, t->n);
    for (int i = 0; i < t->instr_count; i++)
        if (is_column(t, t->instrs[i].dst))
            run_short(&w, i);
}

static void make_columns(epi_rows_begun *r) {
    const epi_tile_program *t = &r->k->tile;
    worker w = worker_of(r, 0, 0);
    bool any = false;
    for (int i = 0; i < t->instr_count; i++) {
        any |= is_column(t, t->instrs[i].dst);
        if (is_number(t, t->instrs[i].dst))
            run_short(&w, i);
    }
    if (any)
        epi_parallel_for(r->k->threads, epi_ceil_div(t->n, r->k->chunk), column_chunk, r);
}

/* ---- folds and partials ---- */

static void set_identity(epi_op op, float *p, float *p2, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        p[i] = epi_reduce_identity(op);
    for (int64_t i = 0; i < n && op == EPI_OP_LOGSUMEXP; i++)
        p2[i] = 0;
}

static float *short_at(const worker *w, int64_t slot) {
    return w->shorts + slot * epi_rows_short(w->r->k);
}

/* The running state of a step that reduces: of a fold per row of the block, of partials in their place. */
typedef struct state {
    float *p, *p2;
    int64_t n;
} state;

static state state_of(const worker *w, const epi_instr *s) {
    const epi_rows *k = w->r->k;
    float *partials = w->r->partials;
    if (s->kind == EPI_INSTR_REDUCE_ROW)
        return (state){w->b.at[s->dst].p, short_at(w, s->state2), w->b.rows};
    if (s->kind == EPI_INSTR_PARTIAL_ROWS) {
        int64_t at = w->col_piece * k->tile.m + w->b.m0;
        return (state){partials + s->state + at, partials + s->state2 + at, w->b.rows};
    }
    int64_t width = epi_rows_width(k, k->tile.values[s->arg[0]].scale), at = w->row_piece * width;
    return (state){partials + s->state + at, partials + s->state2 + at, width};
}

static bool reduces(const epi_instr *s) {
    return s->kind == EPI_INSTR_REDUCE_ROW || s->kind == EPI_INSTR_PARTIAL_ROWS ||
           s->kind == EPI_INSTR_PARTIAL_COLS;
}

static void reduce_step(const worker *w, const epi_instr *s) {
    const epi_block *b = &w->b;
    state to = state_of(w, s);
    if (s->kind == EPI_INSTR_PARTIAL_COLS) {
        int64_t first = b->first[b->tile->values[s->arg[0]].scale];
        epi_block_reduce(b, s, to.p + first, to.p2 + first);
        return;
    }
    float *x = short_at(w, w->r->k->short_count), *x2 = short_at(w, w->r->k->short_count + 1);
    epi_block_reduce(b, s, x, x2);
    b->strips->combine(s->op, to.p, to.p2, x, x2, b->rows);
}

static void chain_steps(const worker *w, const int *steps, int count, const epi_fetch *next) {
    const epi_block *b = &w->b;
    const epi_instr *s = &b->tile->instrs[steps[count - 1]];
    float *x = short_at(w, w->r->k->short_count);
    epi_chain_run(b, steps, count, w->r->in_place, x, next);
    if (epi_chain_folds(s)) {
        state to = state_of(w, s);
        b->strips->combine(s->op, to.p, to.p2, x, x, b->rows);
    }
}

/* ---- fetching ---- */

/* During so much work the rows from `row` on are fetched, in the columns from `start` to `end`. */
static void look_ahead(worker *w, int64_t row, int64_t rows_end, int64_t start, int64_t end, int64_t work) {
    const epi_rows *k = w->r->k;
    const epi_tile_program *t = &k->tile;
    epi_fetch *f = &w->next.streams;
    int64_t rows = epi_min64(k->block, rows_end - row);
    f->count = 0;
    w->next.work = work;
    for (int i = 0; i < t->instr_count && f->count < EPI_STREAMS && rows > 0; i++) {
        const epi_instr *s = &t->instrs[i];
        const epi_tile_access *a = &w->r->access[i];
        if (!s->full || s->kind != EPI_INSTR_LOAD || !a->plain)
            continue;
        bool coarse = t->values[s->dst].scale == EPI_SCALE_COARSE;
        int64_t size = (int64_t)epi_dtype_size(a->ref.type), ld = epi_tile_access_ld(a);
        int64_t n = (end - start) >> coarse;
        if (rows > 1 && (ld < n || ld > 2 * n))
            continue;
        int64_t offset = epi_walk_offset(&a->rows, row) + epi_columns_offset(&a->cols, start >> coarse);
        int64_t lines = epi_ceil_div(epi_ceil_div(((rows - 1) * ld + n) * size, EPI_LINE), EPI_WAYS);
        f->stream[f->count].at = a->ref.data + offset * size;
        f->stream[f->count].lines = lines;
        f->stream[f->count].apart = lines * EPI_LINE;
        f->stream[f->count++].step = (w->b.step[0] * ld + (w->b.step[1] >> coarse)) * size;
    }
}

/* What of it falls to some of that. */
static epi_fetch take_ahead(ahead *a, int64_t work) {
    epi_fetch now = a->streams;
    for (int i = 0; i < now.count; i++) {
        int64_t all = now.stream[i].lines, lines = epi_ceil_div(all * work, epi_max64(1, a->work));
        now.stream[i].lines = lines = epi_min64(all, lines);
        a->streams.stream[i].at += lines * EPI_LINE;
        a->streams.stream[i].lines -= lines;
    }
    a->work -= work;
    return now;
}

static void fetch(const epi_fetch *f) {
    for (int i = 0; i < f->count; i++)
        for (int64_t j = 0; j < f->stream[i].lines; j++)
            for (int way = 0; way < EPI_WAYS; way++)
                __builtin_prefetch(f->stream[i].at + j * EPI_LINE + way * f->stream[i].apart, 0, 3);
}

/* ---- rows ---- */

/* Folds are those of all a row, or of a stretch of a flat one, which `goes_on` after the first. Where rows
 * lag the last chain waits for the next row's last fold. */
static void run_ready(worker *w, epi_ready *q, int64_t n, bool goes_on) {
    const epi_strips *strips = w->b.strips;
    const epi_instr *s = q->end;
    int phases = w->b.tile->phases;
    if (w->other && q->phase == phases - 1) {
        w->waiting = &q->chain;
        return;
    }
    q->chain.beside = NULL;
    if (w->other && q->phase == phases - 2) {
        q->chain.beside = w->other->waiting;
        w->other->waiting = NULL;
    }
    float x = strips->chain(&q->chain, (int)(q->scale == EPI_SCALE_COARSE ? n / 2 : n));
    if (!epi_chain_folds(s))
        return;
    state to = state_of(w, s);
    if (goes_on)
        strips->combine(s->op, to.p, to.p2, &x, &x, 1);
    else
        *to.p = x;
    if (s->kind == EPI_INSTR_REDUCE_ROW)
        strips->finish(s->op, to.p, to.p2, 1,
                       (double)epi_rows_width(w->r->k, w->b.tile->values[s->arg[0]].scale));
}

/* The chains of a phase on the first row of a piece, or its first chunk, */
static void first_chains(worker *w, int p, int64_t start, int64_t end) {
    const epi_rows *k = w->r->k;
    const int *list = k->list + k->list_start[p], *last = k->last + k->list_start[p],
              *work = k->work + k->list_start[p];
    int count = k->list_start[p + 1] - k->list_start[p];
    bool rest = w->other && p == k->tile.phases - 2; /* the last phase is part of this one */
    move_to(w, start, end);
    for (int i = 0; i < count; i = last[i] + 1) {
        epi_ready *q = w->next_ready++;
        int steps = last[i] + 1 - i;
        q->scale = epi_chain_set(&q->chain, &w->b, list + i, steps, 0, false);
        q->end = &k->tile.instrs[list[last[i]]];
        q->phase = p;
        q->fetch = take_ahead(&w->next, rest ? w->next.work : work[i + steps] - work[i]);
        q->chain.ahead = &q->fetch;
        run_ready(w, q, w->b.columns[EPI_SCALE_FINE], false);
    }
}

/* and those on all others. */
static void next_chains(worker *w, int p, int64_t n, bool goes_on, bool more) {
    static const epi_fetch none = {.count = 0};
    const epi_ready *end = w->ready + w->r->k->chain_count;
    for (; w->next_ready < end && w->next_ready->phase == p; w->next_ready++) {
        epi_ready *q = w->next_ready;
        epi_chain_next(&q->chain);
        for (int f = 0; f < q->fetch.count; f++)
            q->fetch.stream[f].at += q->fetch.stream[f].step;
        q->chain.ahead = more ? &q->fetch : &none;
        run_ready(w, q, n, goes_on);
    }
}

static void run_phase(worker *w, int p, int64_t start, int64_t end, int64_t rows_end) {
    const epi_rows *k = w->r->k;
    const epi_tile_program *t = &k->tile;
    const int *first = k->list + k->list_start[p], *last = k->list + k->list_start[p + 1],
              *ends = k->last + k->list_start[p], *work = k->work + k->list_start[p];
    for (const int *i = first; i < last; i++) {
        const epi_instr *s = &t->instrs[*i];
        if (s->kind == EPI_INSTR_REDUCE_ROW || s->kind == EPI_INSTR_PARTIAL_ROWS) {
            state to = state_of(w, s);
            set_identity(s->op, to.p, to.p2, to.n);
        }
    }
    for (int64_t column = start; column < end; column += k->chunk) {
        move_to(w, column, end);
        if (t->phases == 1 && column + k->chunk < end)
            look_ahead(w, w->b.m0, rows_end, column + k->chunk, epi_min64(column + 2 * k->chunk, end),
                       work[last - first] - work[0]);
        else if (t->phases == 1)
            look_ahead(w, w->b.m0 + k->block, rows_end, start, epi_min64(start + k->chunk, end),
                       work[last - first] - work[0]);
        for (int i = 0, end; i < last - first; i = end) {
            end = ends[i] + 1;
            epi_fetch next = take_ahead(&w->next, work[end] - work[i]);
            if (end - i > 1) {
                chain_steps(w, first + i, end - i, &next);
                continue;
            }
            fetch(&next);
            if (reduces(&t->instrs[first[i]]))
                reduce_step(w, &t->instrs[first[i]]);
            else if (!w->r->in_place || t->instrs[first[i]].kind != EPI_INSTR_STORE)
                epi_block_step(&w->b, first[i]);
        }
        for (const int *i = first; i < last && w->r->in_place; i++)
            if (t->instrs[*i].kind == EPI_INSTR_STORE)
                epi_block_step(&w->b, *i);
    }
    for (const int *i = first; i < last; i++) {
        const epi_instr *s = &t->instrs[*i];
        if (s->kind == EPI_INSTR_REDUCE_ROW) {
            state to = state_of(w, s);
            k->strips->finish(s->op, to.p, to.p2, to.n,
                              (double)epi_rows_width(k, t->values[s->arg[0]].scale));
        }
    }
}

static void run_block(worker *w, int64_t row, int64_t rows_end, int64_t start, int64_t end) {
    const epi_rows *k = w->r->k;
    const epi_tile_program *t = &k->tile;
    epi_block *b = &w->b;
    b->m0 = row;
    b->rows = b->block_rows = (int)epi_min64(k->block, rows_end - row);
    if (t->phases > 1) /* the next rows, a part in every phase */
        look_ahead(w, row + k->block, rows_end, start, end,
                   k->work[k->list_start[t->phases]] * epi_ceil_div(end - start, k->chunk));
    for (int p = 0; p <= t->phases; p++) {
        for (int i = k->between_start[p]; i < k->between_start[p + 1]; i++)
            epi_block_step(b, k->between[i]);
        if (p < t->phases)
            run_phase(w, p, start, end, rows_end);
    }
}

/* The rows of a piece, or the chunks of its stretch of a flat row, by workers that take turns. There is room
 * for two, and the first is there. */
static void run_regular(worker *w, int thread, int64_t row, int64_t rows_end, int64_t column, int64_t end) {
    const epi_rows *k = w->r->k;
    const epi_tile_program *t = &k->tile;
    bool flat = t->plan->flat, more;
    if (k->lags) {
        w[1] = worker_of(w->r, thread, 1);
        w[1].row_piece = w->row_piece;
        w[1].col_piece = w->col_piece;
        w[1].kept = w->kept; /* a block is taken from there before the next row's is put in its place */
        w[1].other = w;
        w->other = w + 1;
    }
    for (int turn = 0; row < rows_end && column < end; turn++) {
        bool first = turn < epi_rows_workers(k);
        w->b.m0 = row;
        w->b.rows = w->b.block_rows = 1;
        w->next_ready = w->ready;
        more = flat ? column + k->chunk < end : row + 1 < rows_end;
        if (first && more)
            look_ahead(w, row + !flat, rows_end, flat ? column + k->chunk : 0,
                       flat ? epi_min64(column + 2 * k->chunk, end) : end, k->work[k->list_start[t->phases]]);
        for (int p = 0; p <= t->phases; p++) {
            for (int i = k->between_start[p]; i < k->between_start[p + 1]; i++)
                epi_block_step(&w->b, k->between[i]);
            if (p < t->phases && first)
                first_chains(w, p, column, end);
            else if (p < t->phases)
                next_chains(w, p, epi_min64(k->chunk, end - column), flat, more);
        }
        row += !flat;
        column += flat ? k->chunk : 0;
        w = w->other ? w->other : w;
    }
    if (w->other && w->other->waiting)
        w->b.strips->chain(w->other->waiting, (int)t->n);
}

static void run_piece(void *ctx, int64_t item, int thread) {
    const epi_rows_begun *r = ctx;
    const epi_rows *k = r->k;
    worker both[2] = {worker_of(r, thread, 0)}, *w = both;
    w->row_piece = item / k->col_pieces;
    w->col_piece = item % k->col_pieces;
    int64_t row = w->row_piece * k->piece_rows, rows_end = epi_min64(k->tile.m, row + k->piece_rows);
    int64_t start = w->col_piece * k->piece_cols, end = epi_min64(k->tile.n, start + k->piece_cols);
    for (int i = 0; i < k->tile.instr_count; i++) {
        const epi_instr *s = &k->tile.instrs[i];
        if (s->kind == EPI_INSTR_PARTIAL_COLS) {
            state to = state_of(w, s);
            set_identity(s->op, to.p, to.p2, to.n);
        }
    }
    if (r->regular)
        run_regular(w, thread, row, rows_end, start, end);
    for (; row < rows_end && !r->regular; row += k->block)
        run_block(w, row, rows_end, start, end);
    if (r->streams)
        k->strips->settle();
}

void epi_rows_run(const epi_rows *k, const epi_ref *homes, const epi_ref *tensors, unsigned char *scratch) {
    const epi_tile_program *t = &k->tile;
    epi_rows_begun r = {.k = k,
                        .access = (void *)(scratch + k->access),
                        .source = (void *)(scratch + k->source),
                        .moving = (int *)(void *)(scratch + k->source) + t->value_count,
                        .columns = (void *)(scratch + k->columns),
                        .partials = (void *)(scratch + k->partials),
                        .scratch = scratch};
    epi_rows_begin(&r, homes, tensors);
    make_columns(&r);
    epi_parallel_for(k->threads, k->row_pieces * k->col_pieces, run_piece, &r);
    for (int i = 0; i < t->instr_count; i++) {
        const epi_instr *s = &t->instrs[i];
        if (s->kind == EPI_INSTR_PARTIAL_ROWS)
            epi_partials_fold(t, k->strips, s, &homes[s->node], r.partials, t->m, k->col_pieces, k->threads);
        else if (s->kind == EPI_INSTR_PARTIAL_COLS)
            epi_partials_fold(t, k->strips, s, &homes[s->node], r.partials,
                              epi_rows_width(k, t->values[s->arg[0]].scale), k->row_pieces, k->threads);
    }
}
