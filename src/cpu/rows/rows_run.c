/* rows_run.c: walks over the rows of a program without a product.
 *
 * Invariants of the loops over pieces, bands, phases, stretches and items:
 *   - A piece belongs to one thread, and so do its slots, row buffers, short vectors, states and links.
 *     Threads share only read-only data: where tensors are, and values that do not depend on the row.
 *   - When phase p begins, the reductions of earlier phases are complete for every row of the band.
 *   - Elements are stored only in the last phase. If an output is stored over an input, the elements of a
 *     stretch are stored after all its items, when nothing of the stretch is read any more.
 *   - A row is reduced stretch by stretch, from left to right; its length decides the stretches. Partials of
 *     pieces are combined in the order of the pieces, which the sizes decide. So no bit depends on the
 *     threads.
 */
#include <string.h>

#include "base/parallel.h"
#include "cpu/rows/rows_begin.h"

/* A thread at work on a piece. */
typedef struct worker {
    epi_band b;
    const epi_rows_begun *r;
    epi_link *links;              /* of all phases */
    epi_rows_position *positions; /* of all items */
    float *kept, *shorts, *state;
    float *sums;    /* down the rows of a piece, see epi_rows */
    float *results; /* by instruction: what a tape folded a stretch of the row to */
    double *scans;  /* states of recurrences, and room for one more */
    int phase;      /* that is walked over */
    int64_t row_piece, col_piece;
    int64_t start, end; /* of the piece's columns */
    bool once;          /* a stretch is all of a row */
} worker;

static worker worker_of(const epi_rows_begun *r, int thread) {
    const epi_rows *k = r->k;
    const epi_tile_program *t = &k->tile;
    unsigned char *mine = r->scratch + k->per_thread + thread * k->room.bytes;
    float *slots = (float *)(void *)(mine + k->room.slots);
    EPI_UNWRITTEN(mine, k->room.bytes); /* by pieces before it */
    worker w = {.r = r,
                .b = {.tile = t,
                      .strips = k->strips,
                      .access = r->access,
                      .at = (void *)(mine + k->room.at),
                      .tmp = slots + k->slot_count * epi_rows_slot(k),
                      .columns = {[EPI_SCALE_NONE] = 1}},
                .links = (void *)(mine + k->room.links),
                .positions = (void *)(mine + k->room.positions),
                .kept = (void *)(mine + k->room.kept),
                .shorts = (void *)(mine + k->room.shorts),
                .state = (void *)(mine + k->room.state),
                .sums = (void *)(mine + k->room.sums),
                .results = (void *)(mine + k->room.results),
                .scans = (void *)(mine + k->room.scans),
                .end = t->n};
    for (int v = 0; v < t->value_count; v++) {
        const epi_tile_value *value = &t->values[v];
        if (!value->rows)
            w.b.at[v] = (epi_spot){r->columns + k->column[v], 0, false, true};
        else if (value->scale == EPI_SCALE_NONE)
            w.b.at[v] = (epi_spot){w.shorts + k->slot[v] * epi_rows_short(k), 0, false, false};
        else
            w.b.at[v] =
                (epi_spot){slots + epi_max64(0, k->slot[v]) * epi_rows_slot(k),
                           value->scale == EPI_SCALE_COARSE ? k->stretch / 2 : k->stretch, false, false};
    }
    for (int i = 0; i < k->item_start[t->phases]; i++)
        w.positions[i].set = false;
    return w;
}

/* Moves on to a stretch of columns, */
static void move_to(worker *w, int64_t column) {
    int64_t n = epi_min64(w->r->k->stretch, w->end - column);
    w->b.first[EPI_SCALE_FINE] = column;
    w->b.first[EPI_SCALE_COARSE] = column / 2;
    w->b.columns[EPI_SCALE_FINE] = (int)n;
    w->b.columns[EPI_SCALE_COARSE] = (int)(n / 2);
}

/* and says where values that lie in longer rows are there. */
static void find_values(worker *w) {
    const epi_rows_begun *r = w->r;
    const epi_rows *k = r->k;
    epi_band *b = &w->b;
    for (int i = 0; i < r->moves; i++) {
        int v = r->moving[i], source = r->source[v];
        epi_scale scale = k->tile.values[v].scale;
        if (source >= 0)
            b->at[v] = (epi_spot){(float *)(void *)epi_band_address(b, &r->access[source], scale),
                                  epi_access_ld(&r->access[source]), true, true};
        else if (source == EPI_IN_ROW_BUFFER)
            b->at[v] = (epi_spot){w->kept + k->keep[v] * epi_rows_keep(k) + b->first[scale],
                                  epi_rows_width(k, scale), false, true};
        else
            b->at[v].p = r->columns + k->column[v] + b->first[scale];
    }
}

/* ---- values that do not depend on the row ---- */

static void run_short(worker *w, int i) {
    const epi_instr *s = &w->b.tile->instrs[i];
    if (s->kind != EPI_INSTR_LOAD || w->r->source[s->dst] < 0) /* what lies well is used where it is */
        epi_band_run(&w->b, i);
}

static bool is_number(const epi_tile_program *t, int v) {
    return v >= 0 && !t->values[v].rows && t->values[v].scale == EPI_SCALE_NONE;
}

static bool is_column(const epi_tile_program *t, int v) {
    return v >= 0 && !t->values[v].rows && t->values[v].scale != EPI_SCALE_NONE;
}

static void column_stretch(void *ctx, int64_t item, int thread) {
    const epi_rows_begun *r = ctx;
    const epi_tile_program *t = &r->k->tile;
    worker w = worker_of(r, thread);
    move_to(&w, item * r->k->stretch);
    find_values(&w);
    for (int i = 0; i < t->instr_count; i++)
        if (is_column(t, t->instrs[i].dst))
            run_short(&w, i);
}

static void make_columns(epi_rows_begun *r) {
    const epi_tile_program *t = &r->k->tile;
    worker w = worker_of(r, 0);
    bool any = false;
    for (int i = 0; i < t->instr_count; i++) {
        any |= is_column(t, t->instrs[i].dst);
        if (is_number(t, t->instrs[i].dst))
            run_short(&w, i);
    }
    if (any)
        epi_parallel_for(r->k->threads, epi_ceil_div(t->n, r->k->stretch), column_stretch, r);
}

/* ---- folds and partials ---- */

static void set_identity(epi_op op, float *p, float *p2, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        p[i] = epi_reduce_identity(op);
    for (int64_t i = 0; i < n && p2; i++)
        p2[i] = 0;
}

static float *short_at(const worker *w, int64_t slot) {
    return w->shorts + slot * epi_rows_short(w->r->k);
}

/* The running state of a reduction: of a fold per row of the band, of partials in their place. p2 is NULL
 * where there is no second word. */
typedef struct state {
    float *p, *p2;
    int64_t n;
} state;

static state state_of(const worker *w, int instr) {
    const epi_rows *k = w->r->k;
    const epi_instr *s = &k->tile.instrs[instr];
    const epi_states *at = &k->states[instr];
    bool two = s->op == EPI_OP_LOGSUMEXP;
    if (s->kind == EPI_INSTR_REDUCE_ROW)
        return (state){w->b.at[s->dst].p, two || epi_instr_sums(s) ? short_at(w, at->second) : NULL,
                       w->b.rows};
    int64_t width = epi_rows_width(k, k->tile.values[s->arg[0]].scale);
    bool rows = s->kind == EPI_INSTR_PARTIAL_ROWS;
    int64_t first = rows ? w->col_piece * k->tile.m + w->b.m0 : w->row_piece * width;
    float *p2 = two                         ? w->r->partials + at->second + first
                : rows && epi_instr_sums(s) ? short_at(w, at->second)
                                            : NULL;
    return (state){w->r->partials + at->first + first, p2, rows ? w->b.rows : width};
}

/* Sums down the rows, every EPI_SUM_TERMS rows of a long piece: they go to sums that keep what rounding
 * loses, and start again; at the end of the piece these are its partials. */
static void settle_columns(const worker *w, bool ends) {
    const epi_rows *k = w->r->k;
    for (int i = 0; i < k->tile.instr_count; i++) {
        if (k->tile.instrs[i].kind != EPI_INSTR_PARTIAL_COLS || !epi_instr_sums(&k->tile.instrs[i]))
            continue;
        state run = state_of(w, i);
        float *sum = w->sums + k->states[i].second, *lost = sum + run.n;
        k->strips->combine(EPI_OP_SUM, sum, lost, run.p, NULL, run.n);
        if (ends) {
            memcpy(run.p, sum, (size_t)run.n * sizeof *sum);
            k->strips->finish(EPI_OP_SUM, run.p, lost, run.n, 1);
        } else {
            set_identity(EPI_OP_SUM, run.p, NULL, run.n);
        }
    }
}

static void reduce(const worker *w, int instr) {
    const epi_band *b = &w->b;
    const epi_instr *s = &b->tile->instrs[instr];
    state to = state_of(w, instr);
    if (s->kind == EPI_INSTR_PARTIAL_COLS) {
        int64_t first = b->first[b->tile->values[s->arg[0]].scale];
        epi_band_reduce(b, s, to.p + first, to.p2 ? to.p2 + first : NULL);
        return;
    }
    float *x = short_at(w, w->r->k->short_count), *x2 = short_at(w, w->r->k->short_count + 1);
    epi_band_reduce(b, s, x, x2);
    b->strips->combine(s->op, to.p, to.p2, x, x2, b->rows);
}

/* Is what a tape folds a stretch to the row's state? */
static bool is_state(const worker *w, const epi_instr *s) {
    return w->once && s->kind == EPI_INSTR_REDUCE_ROW;
}

/* Where a tape folds to: a row to its state, or to a result that is combined with those of other stretches;
 * columns in place. */
static float *fold_at(const void *ctx, int instr) {
    const worker *w = ctx;
    const epi_instr *s = &w->b.tile->instrs[instr];
    if (s->kind == EPI_INSTR_PARTIAL_COLS)
        return state_of(w, instr).p + w->b.first[w->b.tile->values[s->arg[0]].scale];
    return is_state(w, s) ? state_of(w, instr).p : w->results + instr;
}

/* ---- tapes ---- */

/* While a band is worked on, the next one comes into the first-level cache, or of a flat row the next
 * stretch: every item prefetches as much of it as it has of the work. */
static void add_prefetches(const worker *w, const epi_tape_item *item, int number, epi_link **end) {
    const epi_rows *k = w->r->k;
    const epi_tile_program *t = &k->tile;
    const epi_link *last = *end;
    bool flat = t->plan->flat;
    int64_t share[] = {k->work[number], k->work[number + 1], k->work[k->item_start[t->phases]]};
    for (int i = 0; i < t->instr_count && *end < last + EPI_TAPE_PREFETCHES; i++) {
        const epi_instr *s = &t->instrs[i];
        const epi_tile_access *a = &w->r->access[i];
        if (!s->full || s->kind != EPI_INSTR_LOAD || !epi_access_is_regular(a))
            continue;
        epi_scale scale = t->values[s->dst].scale;
        ptrdiff_t size = (ptrdiff_t)epi_dtype_size(a->ref.type), row = epi_access_ld(a) * size,
                  along = scale == item->scale      ? size
                          : scale == EPI_SCALE_FINE ? 2 * size
                                                    : size / 2;
        int64_t ahead = flat ? k->stretch * size >> (scale == EPI_SCALE_COARSE) : row;
        epi_link_operand o = {epi_band_address(&w->b, a, scale) + ahead, a->ref.type, 1, row, row, along};
        epi_tape_prefetch(end, &o, w->b.columns[scale] * size, w->b.columns[item->scale], share);
    }
}

static bool is_at_edge(const worker *w) {
    const epi_tile_program *t = &w->r->k->tile;
    bool edge = false;
    for (int i = 0; i < t->instr_count && w->r->shifts && !edge; i++)
        edge = t->instrs[i].kind == EPI_INSTR_SHIFT && t->instrs[i].full && !epi_band_is_inside(&w->b, i);
    return edge;
}

static void run_tape(worker *w, const epi_tape_place *where, int p, int i) {
    const epi_rows *k = w->r->k;
    const epi_tape_item *item = &where->tapes->items[i];
    epi_link *links = w->links + k->link_start[p], *first = links + item->link;
    int number = k->item_start[p] + i;
    epi_rows_position *at = &w->positions[number],
                      now = {w->b.m0, w->b.first[item->scale], true, is_at_edge(w)};
    if (at->set && w->r->regular[number] && !at->edge && !now.edge) {
        epi_tape_move(first, now.row - at->row, now.column - at->column);
    } else {
        epi_link *end = epi_tape_set(where, item, links);
        if (k->strips->prefetches)
            add_prefetches(w, item, number, &end);
        epi_tape_end(k->strips, first, end);
    }
    *at = now;
    k->strips->tape(first, w->b.band_rows, w->b.columns[item->scale]);
    for (int f = k->fold_start[number]; f < k->fold_start[number + 1]; f++) {
        const epi_instr *s = &k->tile.instrs[k->fold[f]];
        if (is_state(w, s))
            continue;
        state to = state_of(w, k->fold[f]);
        k->strips->combine(s->op, to.p, to.p2, w->results + k->fold[f], NULL, 1);
    }
}

/* ---- rows ---- */

/* Goes through steps of a recurrence. Rows that are walked over once more are so from the same state: it moves on in the
 * last phase. */
static void scan(const worker *w, int instr) {
    const epi_rows *k = w->r->k;
    const epi_instr *s = &k->tile.instrs[instr];
    const epi_scale scale = k->tile.values[s->dst].scale;
    int64_t width = epi_rows_scan(k);
    double *state = w->scans + k->scan[instr] * width, *spare = w->scans + k->tile.plan->scan_count * width;
    if (!k->tile.plan->scan_inner)
        state += w->b.first[scale] - (scale == EPI_SCALE_COARSE ? w->start / 2 : w->start);
    bool moves_on = k->tile.plan->scan_inner || w->phase == k->scan_phase[instr];
    if (!moves_on)
        memcpy(spare, state, (size_t)w->b.columns[scale] * sizeof *state);
    epi_band_scan(&w->b, s, moves_on ? state : spare);
}

static void run_strip(const void *ctx, int instr) {
    const worker *w = ctx;
    const epi_instr *s = &w->b.tile->instrs[instr];
    if (s->kind == EPI_INSTR_SCAN)
        scan(w, instr);
    else if (epi_instr_folds_row(s) || s->kind == EPI_INSTR_PARTIAL_COLS)
        reduce(w, instr);
    else
        epi_band_run(&w->b, instr);
}

static void run_stretch(worker *w, const epi_tape_place *where, int p) {
    for (int i = 0; i < where->tapes->item_count; i++)
        if (where->tapes->items[i].link_count)
            run_tape(w, where, p, i);
        else if (!w->r->nothing_else)
            epi_tape_strip(where, &where->tapes->items[i]);
    if (!w->r->nothing_else)
        epi_tape_stores(where);
}

static void run_phase(worker *w, int p, int64_t start, bool first) {
    const epi_rows *k = w->r->k;
    const epi_tile_program *t = &k->tile;
    const epi_tapes *tapes = &k->tapes[p];
    epi_tape_place where = {.tapes = tapes,
                            .band = &w->b,
                            .alone = k->band == 1,
                            .held = w->r->in_place,
                            .fold_at = fold_at,
                            .strip = run_strip,
                            .ctx = w,
                            .state = w->state};
    int folds = k->fold_start[k->item_start[p]], folds_end = k->fold_start[k->item_start[p + 1]];
    for (int f = folds; f < folds_end; f++) {
        state to = state_of(w, k->fold[f]);
        set_identity(t->instrs[k->fold[f]].op, to.p, to.p2, to.n);
    }
    bool back = t->plan->scan_count && t->plan->scan_inner && t->plan->scan_back;
    w->phase = p;
    for (int64_t i = 0, count = epi_ceil_div(w->end - start, k->stretch); i < count; i++) {
        move_to(w, start + (back ? count - 1 - i : i) * k->stretch);
        if (first || !w->r->nothing_else)
            find_values(w);
        run_stretch(w, &where, p);
    }
    for (int f = folds; f < folds_end; f++) {
        const epi_instr *s = &t->instrs[k->fold[f]];
        state to = state_of(w, k->fold[f]);
        if (s->kind == EPI_INSTR_REDUCE_ROW)
            k->strips->finish(s->op, to.p, to.p2, to.n,
                              (double)epi_rows_width(k, t->values[s->arg[0]].scale));
        else if (epi_instr_sums(s)) /* a partial has one word */
            k->strips->finish(EPI_OP_SUM, to.p, to.p2, to.n, 1);
    }
}

static void run_piece(void *ctx, int64_t item, int thread) {
    const epi_rows_begun *r = ctx;
    const epi_rows *k = r->k;
    const epi_tile_program *t = &k->tile;
    worker w = worker_of(r, thread);
    w.row_piece = item / k->col_pieces;
    w.col_piece = item % k->col_pieces;
    int64_t first = w.row_piece * k->piece_rows, rows_end = epi_min64(t->m, first + k->piece_rows);
    int64_t start = w.col_piece * k->piece_cols;
    w.start = start;
    w.end = epi_min64(t->n, start + k->piece_cols);
    w.once = w.end - start <= k->stretch;
    for (int i = 0; i < t->instr_count; i++)
        if (t->instrs[i].kind == EPI_INSTR_PARTIAL_COLS) {
            state to = state_of(&w, i);
            set_identity(t->instrs[i].op, to.p, to.p2, to.n);
        }
    memset(w.sums, 0, (size_t)k->sum_count * sizeof *w.sums);
    int summed = 0; /* rows, since the columns' sums were settled */
    bool back = t->plan->scan_count && !t->plan->scan_inner && t->plan->scan_back;
    for (int64_t done = 0, bands = epi_ceil_div(rows_end - first, k->band); done < bands; done++) {
        int64_t row = first + (back ? bands - 1 - done : done) * k->band;
        w.b.m0 = row;
        w.b.rows = w.b.band_rows = (int)epi_min64(k->band, rows_end - row);
        for (int p = 0; p <= t->phases; p++) {
            for (int i = k->between_start[p]; i < k->between_start[p + 1]; i++)
                epi_band_run(&w.b, k->between[i]);
            if (p < t->phases)
                run_phase(&w, p, start, done == 0);
        }
        summed += w.b.rows;
        bool ends = done + 1 == bands;
        if (k->sum_count && (ends || summed + k->band > EPI_SUM_TERMS)) {
            settle_columns(&w, ends);
            summed = 0;
        }
    }
    if (r->settles)
        k->strips->settle();
}

void epi_rows_run(const epi_rows *k, const epi_ref *homes, const epi_ref *tensors, unsigned char *scratch) {
    const epi_tile_program *t = &k->tile;
    epi_rows_begun r = {.k = k,
                        .access = (void *)(scratch + k->access),
                        .source = (void *)(scratch + k->source),
                        .moving = (int *)(void *)(scratch + k->source) + t->value_count,
                        .regular = (void *)(scratch + k->regular),
                        .columns = (void *)(scratch + k->columns),
                        .partials = (void *)(scratch + k->partials),
                        .scratch = scratch};
    epi_rows_begin(&r, homes, tensors);
    make_columns(&r);
    epi_parallel_for(k->threads, k->row_pieces * k->col_pieces, run_piece, &r);
    for (int i = 0; i < t->instr_count; i++) {
        const epi_instr *s = &t->instrs[i];
        bool rows = s->kind == EPI_INSTR_PARTIAL_ROWS;
        if (rows || s->kind == EPI_INSTR_PARTIAL_COLS)
            epi_partials_fold(t, k->strips, i, &k->states[i], homes, r.partials,
                              rows ? t->m : epi_rows_width(k, t->values[s->arg[0]].scale),
                              rows ? k->col_pieces : k->row_pieces, k->threads);
    }
}
