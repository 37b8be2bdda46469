/* attention_run.c: the loops of attention.
 *
 * Invariants:
 *   - A tile of rows belongs to one thread, from its first score to what its output programs store, unless
 *     the chunks of its stream are shared out (`split`). All its memory is the thread's own, except packed
 *     tiles of streamed operands. These are written before the threads that read them start, or (not
 *     `shared`) packed by the thread itself.
 *   - Stream tiles are counted from where a row's reach of the stream begins, and are processed in order,
 *     each whole. So the order in which a row's sums are added up depends only on the distance of a column
 *     from there, not on the length of the stream, on what comes before, or on other rows. A tile of rows
 *     goes through the tiles of each of its reaches in turn. It skips tiles that none of its rows sees. In a
 *     tile that it sees, columns that a row does not see have weight 0, which changes no bit. The end of a
 *     sum is padded with zeros, so that a longer sum has the same order of additions.
 *   - A product that sums over the rows adds each score tile to the sums of its chunk of rows. One thread
 *     processes the tiles of a chunk in order. The sums of the chunks are combined in order when all are
 *     complete.
 *   - Online: `row_max` is each row's maximum so far. Output tiles and `sum` are sums of exp(s - shift),
 *     where shift is row_max, or 0 if that is -inf. When it grows, they are scaled by exp(old - new).
 *   - Online, a reach is processed in chunks of EPI_STREAM_CHUNK columns. Each has a maximum and sums of its
 *     own. These are combined in order, by the same thread or another one, with bitwise the same result. */
#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "cpu/attention/attention_internal.h"

/* ---- packing ---- */

static void pack_stream(const epi_attention_state *r, int which, int64_t batch, epi_stream_tile tile,
                        void *to) {
    const epi_attention_loop *l = r->l;
    const epi_streamed *s = &l->streams[which];
    const int64_t *sizes = l->spec->sizes;
    const epi_ref *ref = &r->homes[s->node];
    epi_axes batches = epi_plan_batch(l->plan);
    epi_walk of_batch = epi_walk_axes(ref, &batches, sizes),
             stream = epi_walk_axes(ref, &l->a->stream, sizes);
    epi_packing p = {.ref = ref, .base = epi_walk_offset(&of_batch, batch)};
    if (s->by_value) {
        const epi_tile_program *out = &l->out[which - l->a->term_count].tile;
        p.rows = epi_columns_of(out->plan, ref, sizes, out->acc_scale);
        p.depth = stream;
    } else {
        p.rows.walk = stream;
        p.depth = epi_walk_axes(ref, &s->features, sizes);
    }
    p.row = s->by_value ? 0 : tile.first;
    p.row_count = s->by_value ? s->feature_count : tile.columns;
    p.k = s->by_value ? tile.first : 0;
    p.k_count = s->by_value ? tile.columns : s->feature_count;
    epi_attention_pack(l->strips, s->micro, EPI_SIDE_B, &p, to);
}

static unsigned char *shared_tile(const epi_attention_state *r, int which, int64_t batch, int64_t tile) {
    const epi_streamed *s = &r->l->streams[which];
    return r->scratch + s->packed + ((batch - r->first_batch) * r->l->stream_tiles + tile) * s->tile_bytes;
}

/* Item: a batch, a stream tile and an operand. */
static void pack_item(void *ctx, int64_t item, int thread) {
    (void)thread;
    const epi_attention_state *r = ctx;
    int which = (int)(item % r->l->stream_count);
    int64_t number = item / r->l->stream_count % r->l->stream_tiles,
            batch = r->first_batch + item / r->l->stream_count / r->l->stream_tiles;
    epi_stream_tile tile = stream_tile(epi_stream_origin(r->l, r->homes, batch), r->l->n, number);
    if (tile.columns > 0)
        pack_stream(r, which, batch, tile, shared_tile(r, which, batch, number));
}

/* A tile, packed, and so many columns of it: where it is shared, those up to the stream's end. */
static const unsigned char *streamed(const epi_row_tile *t, int which, epi_stream_tile *tile) {
    const epi_attention_loop *l = t->r->l;
    int64_t before = tile->first - t->origin, number = before / EPI_STREAM_TILE;
    if (l->shared && before == number * EPI_STREAM_TILE) {
        *tile = stream_tile(t->origin, l->n, number);
        return shared_tile(t->r, which, t->batch, number);
    }
    unsigned char *to = t->memory + l->streams[which].own;
    pack_stream(t->r, which, t->batch, *tile, to);
    return to;
}

static void pack_rows(const epi_row_tile *t) {
    const epi_attention_loop *l = t->r->l;
    for (int i = 0; i < l->a->term_count; i++) {
        const epi_axes *over = &l->spec->graph->nodes[l->a->terms[i].product].over;
        epi_packing p = {.ref = &t->r->homes[l->a->terms[i].rows], .row = t->m0, .row_count = t->rows};
        p.rows.walk = epi_walk_axes(p.ref, &l->plan->rows, l->spec->sizes);
        p.depth = epi_walk_axes(p.ref, over, l->spec->sizes);
        p.k_count = epi_axes_size(over, l->spec->sizes);
        epi_attention_pack(l->strips, l->streams[i].micro, EPI_SIDE_A, &p, t->memory + l->rows[i]);
    }
}

/* ---- products ---- */

/* Scores of columns that no row sees are 0 before the score program hides them. */
static void make_scores(const epi_row_tile *t, epi_stream_tile tile, epi_span span) {
    const epi_attention_loop *l = t->r->l;
    const int64_t columns = tile.columns;
    for (int i = 0; i < l->a->term_count; i++) {
        const epi_streamed *s = &l->streams[i];
        float *c = floats(t, l->acc) + l->a->terms[i].score * EPI_TILE_PAIR;
        bool more = i > 0 && l->a->terms[i].score == l->a->terms[i - 1].score;
        const unsigned char *b = streamed(t, i, &tile);
        int64_t depth = s->feature_count,
                row = epi_round_up(depth, s->micro->depth) * (int64_t)epi_dtype_size(s->micro->type);
        epi_attention_multiply(s->micro,
                               (epi_panels){t->memory + l->rows[i] + t->low * row, t->high - t->low, depth},
                               (epi_panels){b + span.from * row, span.to - span.from, depth}, 0, depth,
                               c + t->low * EPI_TILE_N + span.from, EPI_TILE_N, more);
        for (int r = t->low; r < t->high && (span.from > 0 || span.to < columns); r++) {
            memset(c + r * EPI_TILE_N, 0, (size_t)span.from * sizeof *c);
            memset(c + r * EPI_TILE_N + span.to, 0, (size_t)(columns - span.to) * sizeof *c);
        }
    }
}

/* Adds the weights times what they weigh. */
static void add_values(const epi_row_tile *t, int v, float *to, const float *weight, epi_stream_tile tile,
                       epi_span span) {
    const epi_attention_loop *l = t->r->l;
    int which = l->a->term_count + v;
    const epi_streamed *s = &l->streams[which];
    int64_t count = span.to - span.from;
    epi_ref ref = epi_attention_weights(t, s->micro, weight, span.from, count);
    epi_packing p = {.ref = &ref, .row = t->low, .row_count = t->high - t->low, .k_count = count};
    epi_walk_add(&p.rows.walk, EPI_TILE_M, EPI_TILE_N);
    epi_walk_add(&p.depth, EPI_STREAM_TILE, 1);
    epi_attention_pack(l->strips, s->micro, EPI_SIDE_A, &p, t->memory + l->weights);
    const unsigned char *values = streamed(t, which, &tile);
    epi_attention_multiply(s->micro, (epi_panels){t->memory + l->weights, t->high - t->low, count},
                           (epi_panels){values, s->feature_count, tile.columns}, span.from, count,
                           to + t->low * EPI_TILE_N, EPI_TILE_N, true);
}

/* ---- online softmax ---- */

static void take_all_rows(epi_row_tile *t) {
    t->low = 0;
    t->high = t->rows;
}

/* From the first to behind the last row of a reach; a micro-kernel's panels begin at multiples of their height. */
static void take_rows_of(epi_row_tile *t, int reach) {
    const epi_streamed *s = t->r->l->streams;
    const int panel = s->micro->mr == s[t->r->l->a->term_count].micro->mr ? s->micro->mr : EPI_TILE_M;
    take_all_rows(t);
    while (t->low < t->high && t->reach_of[t->low] != reach)
        t->low++;
    while (t->low < t->high && t->reach_of[t->high - 1] != reach)
        t->high--;
    t->low -= t->low % panel;
}

/* The new maximum of each row, and what its sums so far are scaled by. Are all factors 1? */
static bool raise_row_max(const epi_row_tile *t, const float *part) {
    bool same = true;
    for (int i = t->low; i < t->high; i++) {
        float old = t->sums.row_max[i], now = old > part[i] || old != old ? old : part[i];
        t->sums.row_max[i] = now;
        t->shift[i] = now == -INFINITY ? 0 : now;
        t->grown[i] = old == now || old == -INFINITY ? 0 : old - now;
        same &= t->grown[i] == 0;
    }
    return same;
}

/* Sums times exp(grown). */
static void scale_sums(const epi_row_tile *t, epi_sums s) {
    const epi_attention_loop *l = t->r->l;
    const int count = t->high - t->low;
    float *sum = s.sum + t->low, *out = s.out + t->low * EPI_TILE_N, *factor = t->factor + t->low;
    l->strips->map[EPI_OP_EXP](factor, 0, &(epi_view){t->grown + t->low, 0, 1}, 1, count);
    epi_view sums[] = {{sum, 0, 1}, {factor, 0, 1}}, outs[] = {{out, EPI_TILE_N, 1}, {factor, 1, 0}};
    l->strips->map[EPI_OP_MUL](sum, 0, sums, 1, count);
    l->strips->map[EPI_OP_MUL](out, EPI_TILE_N, outs, count, (int)l->features[0]);
}

/* Takes the sums of a later chunk into those in hand. One of which no row saw anything adds nothing. */
static void fold_chunk(epi_row_tile *t, epi_sums from) {
    const epi_attention_loop *l = t->r->l;
    bool seen = false;
    take_all_rows(t);
    for (int i = 0; i < t->rows; i++)
        seen |= from.row_max[i] != -INFINITY;
    if (!seen)
        return;
    if (!raise_row_max(t, from.row_max))
        scale_sums(t, t->sums);
    for (int i = 0; i < t->rows; i++) {
        float old = from.row_max[i], now = t->sums.row_max[i];
        t->grown[i] = old == now || old == -INFINITY ? 0 : old - now;
    }
    scale_sums(t, from);
    epi_view sums[] = {{t->sums.sum, 0, 1}, {from.sum, 0, 1}},
             outs[] = {{t->sums.out, EPI_TILE_N, 1}, {from.out, EPI_TILE_N, 1}};
    l->strips->map[EPI_OP_ADD](t->sums.sum, 0, sums, 1, t->rows);
    l->strips->map[EPI_OP_ADD](t->sums.out, EPI_TILE_N, outs, t->rows, (int)l->features[0]);
}

/* exp(s - shift) in place, and the sums of its rows. */
static void make_weights(const epi_row_tile *t, float *s, int columns) {
    const epi_strips *strips = t->r->l->strips;
    const ptrdiff_t size = sizeof(float), ld = EPI_TILE_N * size;
    if (strips->takes(EPI_OP_EXP)) {
        float state[EPI_STATE_MOST];
        const epi_link_operand at = {s + t->low * EPI_TILE_N, EPI_F32, 1, ld, ld, size},
                               shift = {t->shift + t->low, EPI_F32, 0, size, size, 0},
                               sum = {t->part + t->low, EPI_F32, 0, size, size, 0};
        epi_link links[3] = {{.kind = EPI_LINK_SUB, .from = at, .a = shift},
                             {.kind = EPI_LINK_MAP + EPI_OP_EXP,
                              .folds = true,
                              .op = EPI_OP_SUM,
                              .b = sum,
                              .state = state,
                              .to = at}};
        strips->ready(links);
        strips->tape(links, t->high - t->low, columns);
        return;
    }
    for (int i = t->low; i < t->high; i += EPI_TILE_BAND) {
        int rows = (int)epi_min64(EPI_TILE_BAND, t->high - i);
        float *band = s + i * EPI_TILE_N;
        epi_view less[] = {{band, EPI_TILE_N, 1}, {t->shift + i, 1, 0}};
        strips->map[EPI_OP_SUB](band, EPI_TILE_N, less, rows, columns);
        strips->map[EPI_OP_EXP](band, EPI_TILE_N, less, rows, columns);
        strips->reduce_rows(EPI_OP_SUM, t->part + i, NULL, less[0], rows, columns);
    }
}

/* ---- a tile of rows ---- */

/* Which rows they are, and what these see. */
static void set_rows(epi_row_tile *t, int64_t place) {
    const epi_attention_loop *l = t->r->l;
    EPI_UNWRITTEN(t->memory, l->thread_bytes); /* by tiles before it */
    float **vectors[] = {&t->shift, &t->grown, &t->factor, &t->part};
    for (int i = 0; i < (int)(sizeof vectors / sizeof *vectors); i++)
        *vectors[i] = floats(t, l->vectors) + i * EPI_TILE_M;
    t->place = place;
    t->m0 = epi_tile_row(&l->score[0], place);
    t->rows = (int)(epi_tile_row(&l->score[0], place + 1) - t->m0);
    epi_limits_find(l, t->r->homes, t->m0, t->rows, t->limits);
    t->origin = epi_stream_origin(l, t->r->homes, t->batch);
    t->reach_count =
        epi_reaches_find(l, t->r->homes, t->batch, t->origin, t->m0, t->rows, t->reaches, t->reach_of);
}

static void clear_out(const epi_row_tile *t, int v, float *out) {
    const epi_attention_loop *l = t->r->l;
    const epi_micro *micro = l->streams[l->a->term_count + v].micro;
    int64_t rows = epi_round_up(t->rows, micro->mr), columns = epi_round_up(l->features[v], micro->nr);
    for (int64_t i = 0; i < rows; i++)
        memset(out + i * EPI_TILE_N, 0, (size_t)columns * sizeof *out);
}

static void begin(const epi_row_tile *t) {
    const epi_attention_loop *l = t->r->l;
    const bool online = l->a->row_max != EPI_NO_NODE;
    for (int k = 0; k < l->reduction_count && !online; k++)
        for (int i = 0; i < t->rows; i++) {
            float *state = floats(t, l->states) + (int64_t)(2 * k) * EPI_TILE_M;
            state[i] = epi_reduce_identity(l->spec->graph->nodes[l->reductions[k].node].op);
            state[EPI_TILE_M + i] = 0;
        }
    for (int v = 0; v < epi_attention_outs(l->a) && !online; v++)
        clear_out(t, v, floats(t, l->outs[v]));
    pack_rows(t);
    if (l->row_sum.chunks)
        epi_row_sum_begin(t);
}

/* Cross-tile reductions take in what they are of this tile. */
static void fold_reductions(const epi_row_tile *t, int program, const float *partials) {
    const epi_attention_loop *l = t->r->l;
    for (int k = 0; k < l->reduction_count; k++) {
        float *state = floats(t, l->states) + (int64_t)(2 * k) * EPI_TILE_M;
        const epi_states *at = &l->score[program].states[l->reductions[k].instr[program]];
        epi_op op = l->spec->graph->nodes[l->reductions[k].node].op;
        l->strips->combine(op, state, state + EPI_TILE_M, partials + at->first,
                           op == EPI_OP_LOGSUMEXP ? partials + at->second : NULL, t->rows);
    }
}

static const float *kept_value(const epi_row_tile *t, const epi_tile_run *run, int node) {
    const epi_tile_program *p = &run->e->tile;
    for (int i = 0;;
         i++) /* every kept root is there; of an open tile it is what its condition lets through */
        if (p->instrs[i].kind == EPI_INSTR_STORE && p->instrs[i].node == node)
            return epi_epilogue_kept(run, floats(t, t->r->l->acc), p->instrs[i].arg[0]);
}

/* Of the scores and their maxima, rows of other reaches see nothing. What is behind the tile's last column
 * has no weight: sums of a row are those of a longer one (EPI_SPAN_STEP is a multiple of what is added up side
 * by side). */
static int hide_others(const epi_row_tile *t, int reach, float *s, float *row_max, int columns) {
    int all = (int)epi_round_up(columns, EPI_SPAN_STEP);
    for (int i = t->low; i < t->high; i++) {
        bool other = t->reach_of[i] != reach;
        for (int j = other ? 0 : columns; j < all; j++)
            s[i * EPI_TILE_N + j] = -INFINITY;
        if (other)
            row_max[i] = -INFINITY;
    }
    return all;
}

static void run_stream_tile(const epi_row_tile *t, int reach, epi_stream_tile tile, epi_span span,
                            int program) {
    const epi_attention_loop *l = t->r->l;
    const epi_attention *a = l->a;
    const int64_t place[2] = {t->place, 0};
    epi_tile_run run = t->r->score[program];
    run.partials = floats(t, l->partials);
    run.column = tile.first;
    run.columns = tile.columns;
    run.low = t->low;
    run.high = t->high;
    for (int i = 0; i < 3; i++)
        run.kept[i] = floats(t, l->kept[i]);
    make_scores(t, tile, span);
    epi_epilogue_tile(&run, floats(t, l->acc), place, t->memory + l->private_memory);
    if (a->row_max == EPI_NO_NODE) {
        fold_reductions(t, program, run.partials);
        for (int v = 0; v < a->sum_count; v++) {
            const float *weight = kept_value(t, &run, a->sums[v].weight);
            if (a->sums[v].over == EPI_OVER_ROWS)
                epi_row_sum_add(t, weight, tile, span);
            else
                add_values(t, v, floats(t, l->outs[v]), weight, tile, span);
        }
        return;
    }
    float *s = (float *)(uintptr_t)kept_value(t, &run, a->score);
    float *row_max = run.partials + l->score[program].states[l->reductions[0].instr[program]].first;
    int columns = hide_others(t, reach, s, row_max, (int)tile.columns);
    if (!raise_row_max(t, row_max))
        scale_sums(t, t->sums);
    make_weights(t, s, columns);
    for (int i = t->low; i < t->high; i++)
        t->sums.sum[i] += t->part[i];
    if (a->factor != EPI_NO_NODE) {
        const int first = t->low * EPI_TILE_N, ld = l->factor_has_rows ? EPI_TILE_N : 0;
        epi_view both[] = {{s + first, EPI_TILE_N, 1}, {kept_value(t, &run, a->factor) + t->low * ld, ld, 1}};
        l->strips->map[EPI_OP_MUL](s + first, EPI_TILE_N, both, t->high - t->low, (int)tile.columns);
    }
    add_values(t, 0, t->sums.out, s, tile, span);
}

static void store_rows(const epi_row_tile *t, int node, const float *values) {
    const epi_attention_loop *l = t->r->l;
    const epi_ref *home = &t->r->homes[node];
    epi_walk walk = epi_walk_axes(home, &l->plan->rows, l->spec->sizes);
    epi_walk_store(l->strips, home, 0, &walk, t->m0, values, t->rows);
}

/* What leaves goes where the output programs load it. */
static void finish(const epi_row_tile *t) {
    const epi_attention_loop *l = t->r->l;
    const epi_attention *a = l->a;
    if (a->row_max != EPI_NO_NODE) {
        for (int i = 0; i < t->rows && !a->guarded; i++) /* -inf less itself is no number */
            if (t->sums.row_max[i] == -INFINITY) {
                t->sums.sum[i] = NAN;
                for (int64_t j = 0; j < l->features[0]; j++)
                    t->sums.out[i * EPI_TILE_N + j] = NAN;
            }
        store_rows(t, a->row_max, t->sums.row_max);
        if (a->denominator != EPI_NO_NODE)
            store_rows(t, a->denominator, t->sums.sum);
    }
    for (int k = 0; k < l->reduction_count && a->row_max == EPI_NO_NODE; k++) {
        const epi_node *n = &l->spec->graph->nodes[l->reductions[k].node];
        float *state = floats(t, l->states) + (int64_t)(2 * k) * EPI_TILE_M;
        l->strips->finish(n->op, state, state + EPI_TILE_M, t->rows, (double)l->n);
        store_rows(t, l->reductions[k].node, state);
    }
    for (int v = 0; v < epi_attention_outs(a); v++) {
        const int64_t place[2] = {t->place, 0};
        float *out = a->row_max != EPI_NO_NODE ? t->sums.out : floats(t, l->outs[v]);
        epi_epilogue_tile(&t->r->out[v], out, place, t->memory + l->private_memory);
    }
}

static bool sees_chunk(const epi_row_tile *t, int64_t chunk) {
    bool sees = false;
    for (int k = 0; k < t->reach_count; k++) {
        const epi_reach *s = &t->reaches[k];
        int64_t first = s->from + chunk * EPI_STREAM_CHUNK,
                columns = epi_min64(EPI_STREAM_CHUNK, s->to - first);
        sees |=
            columns > 0 && epi_limits_sight(t->limits, t->r->l->bound_count, first, columns) != EPI_SEES_NONE;
    }
    return sees;
}

/* What the rows see of a tile. Those of other reaches see nothing of it. */
static epi_sight sight_of(const epi_row_tile *t, const epi_reach *s, epi_stream_tile tile) {
    const epi_attention_loop *l = t->r->l;
    epi_sight sight = epi_limits_sight(t->limits, l->bound_count, tile.first, tile.columns);
    if (sight == EPI_SEES_NONE || !l->match_count)
        return sight;
    epi_sight matched = epi_matches_sight(l, t->r->homes, s->ranges, t->batch, tile.first, tile.columns);
    return matched < sight ? matched : sight;
}

/* Tiles of every reach, by their numbers. */
static void run_tiles(epi_row_tile *t, int64_t from, int64_t to) {
    const epi_attention_loop *l = t->r->l;
    for (int k = 0; k < t->reach_count; k++) {
        take_rows_of(t, k);
        for (int64_t number = from; number < to; number++) {
            const epi_reach *s = &t->reaches[k];
            epi_stream_tile tile = stream_tile(s->from, s->to, number);
            if (tile.columns <= 0)
                break;
            epi_sight sight = sight_of(t, s, tile);
            if (sight != EPI_SEES_NONE)
                run_stream_tile(t, k, tile,
                                epi_limits_span(t->limits, l->bound_count, tile.first, tile.columns),
                                l->programs == 2 && sight == EPI_SEES_ALL);
        }
    }
}

/* Online: the sums of one chunk of the stream. */
static void run_chunk(epi_row_tile *t, int64_t chunk, epi_sums to) {
    const int64_t tiles = EPI_STREAM_CHUNK / EPI_STREAM_TILE;
    t->sums = to;
    for (int i = 0; i < t->rows; i++) {
        to.row_max[i] = -INFINITY;
        to.sum[i] = 0;
    }
    clear_out(t, 0, to.out);
    run_tiles(t, chunk * tiles, epi_min64((chunk + 1) * tiles, t->r->l->stream_tiles));
}

static void run_row_tile(epi_row_tile *t, int64_t place) {
    const epi_attention_loop *l = t->r->l;
    set_rows(t, place);
    begin(t);
    if (l->a->row_max == EPI_NO_NODE)
        run_tiles(t, 0, l->stream_tiles);
    else {
        epi_sums all = sums_at(floats(t, l->outs[0])), later = sums_at(floats(t, l->outs[1]));
        run_chunk(t, 0, all);
        for (int64_t chunk = 1; chunk < l->chunks; chunk++) {
            if (!sees_chunk(t, chunk))
                continue;
            run_chunk(t, chunk, later);
            t->sums = all;
            fold_chunk(t, later);
        }
    }
    finish(t);
}

/* ---- chunks of the stream, shared out ---- */

static epi_sums split_sums(const epi_attention_state *r, int64_t batch, int64_t chunk) {
    int64_t at = (batch - r->first_batch) * r->l->chunks + chunk;
    return sums_at((float *)(void *)(r->scratch + r->l->split_sums) + at * r->l->split_floats);
}

/* Item: a chunk of the stream of one of the batches in hand. */
static void run_split(void *ctx, int64_t item, int thread) {
    const epi_attention_state *r = ctx;
    const epi_attention_loop *l = r->l;
    epi_row_tile t = {.r = r, .batch = r->first_batch + item / l->chunks};
    int64_t chunk = item % l->chunks;
    epi_sums to = split_sums(r, t.batch, chunk);
    t.memory = r->scratch + l->per_thread + thread * l->thread_bytes;
    set_rows(&t, t.batch);
    if (chunk == 0 || sees_chunk(&t, chunk)) {
        begin(&t);
        run_chunk(&t, chunk, to);
    } else
        for (int i = 0; i < t.rows; i++)
            to.row_max[i] = -INFINITY;
}

/* Item: one of the batches in hand. */
static void fold_split(void *ctx, int64_t item, int thread) {
    const epi_attention_state *r = ctx;
    const epi_attention_loop *l = r->l;
    epi_row_tile t = {.r = r, .batch = r->first_batch + item};
    t.memory = r->scratch + l->per_thread + thread * l->thread_bytes;
    set_rows(&t, t.batch);
    t.sums = split_sums(r, t.batch, 0);
    for (int64_t chunk = 1; chunk < l->chunks; chunk++)
        fold_chunk(&t, split_sums(r, t.batch, chunk));
    finish(&t);
}

/* ---- all rows ---- */

/* Item: a chunk of the rows of one of the batches in hand, the last first: under a mask these see the most. A
 * chunk is a tile of rows, unless something is summed over them. */
static void run_rows(void *ctx, int64_t item, int thread) {
    const epi_attention_state *r = ctx;
    const epi_attention_loop *l = r->l;
    int64_t tiles = l->row_tiles / l->batches, count = epi_min64(l->batch_group, l->batches - r->first_batch),
            chunks = l->row_sum.chunks ? l->row_sum.chunks : tiles, chunk = chunks - 1 - item / count;
    epi_row_tile t = {.r = r, .batch = r->first_batch + item % count, .chunk = chunk};
    t.memory = r->scratch + l->per_thread + thread * l->thread_bytes;
    for (int64_t tile = tiles * chunk / chunks; tile < tiles * (chunk + 1) / chunks; tile++)
        run_row_tile(&t, t.batch * tiles + tile);
}

void epi_attention_run(const epi_attention_loop *l, const epi_ref *homes, const epi_ref *tensors,
                       unsigned char *scratch) {
    epi_attention_state r = {.l = l, .homes = homes, .tensors = tensors, .scratch = scratch};
    int64_t tiles = l->row_tiles / epi_max64(1, l->batches);
    for (int i = 0; i < l->programs; i++)
        epi_epilogue_begin(&r.score[i], &l->score[i], homes, tensors, scratch + l->access[i], NULL);
    for (int v = 0; v < epi_attention_outs(l->a); v++)
        epi_epilogue_begin(&r.out[v], &l->out[v], homes, tensors, scratch + l->access[2 + v], NULL);
    for (; r.first_batch < l->batches; r.first_batch += l->batch_group) {
        int64_t count = epi_min64(l->batch_group, l->batches - r.first_batch);
        if (l->split) {
            epi_parallel_for(l->threads, count * l->chunks, run_split, &r);
            epi_parallel_for(l->threads, count, fold_split, &r);
            continue;
        }
        if (l->shared)
            epi_parallel_for(l->threads, count * l->stream_tiles * l->stream_count, pack_item, &r);
        if (l->row_sum.chunks)
            memset(scratch + l->row_sum.seen, 0, (size_t)(count * l->row_sum.chunks * l->stream_tiles));
        epi_parallel_for(l->threads, count * (l->row_sum.chunks && tiles ? l->row_sum.chunks : tiles),
                         run_rows, &r);
        if (l->row_sum.chunks)
            epi_row_sum_finish(&r, count);
    }
}
