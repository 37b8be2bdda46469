/* gemm.c: the loops around the micro-kernel.
 *
 * Both operands are packed tile by tile, and within a tile sweep by sweep: a sweep is `kc` of the depth, and
 * the panels of one sweep lie together. Invariants of the loops over tiles and sweeps:
 *   - Packed tiles are written before the threads that read them start, and only read then. A tile of A
 *     that a thread packs for itself (`own_a`) is its own, like its accumulator and its epilogue's memory.
 *   - A tile of the product belongs to one thread, from its first sweep to the end of its epilogue. It is
 *     accumulated in the thread's buffer, which stays in the second-level cache.
 *   - If products are added up, the sweeps of one follow the sweeps of the other: no sweep contains depth of
 *     both.
 *   - Each sum of a tile is added up over the depth of a sweep in registers, in the order of the depth.
 *     Sweeps are added up in the buffer; every EPI_SUM_TERMS of them are then added to a sum with
 *     compensation. The order depends on the micro-kernel alone, so tiles, threads and neighbouring rows
 *     never change a result's bits.
 *   - While a sweep is computed, the panels of the next one are prefetched.
 *   - If rows are in groups, a thread packs the tile of B that it works on for itself. A tile of B has a
 *     number among the tiles of all groups. No tile has rows of two groups. */
#include "cpu/product/gemm_internal.h"

#include <string.h>

#include "base/parallel.h"

/* The operands and their types as the micro-kernel has them. Have all of one side the same type? */
static bool find_operands(epi_gemm *g, const epi_spec *spec, const epi_plan *plan, epi_dtype *types) {
    bool alike = true;
    g->products = plan->pair == EPI_NO_NODE ? 1 : 2;
    g->terms = 1 + plan->added_count;
    g->operands = epi_plan_operands(plan);
    for (int side = 0; side < g->operands; side++) {
        const epi_node *n = &spec->graph->nodes[epi_plan_operand(spec->graph, plan, side)];
        g->operand[side] = epi_plan_source(spec->graph, plan, side);
        g->on_load[side] = plan->placement[n - spec->graph->nodes].on_load &&
                           epi_dequant_find(spec->graph, (int)(n - spec->graph->nodes), &g->dequant[side]);
        if (plan->placement[n - spec->graph->nodes].paged)
            g->taken[side] = n->over;
    }
    g->integers = epi_gemm_takes_integers(g, spec, types);
    for (int side = 0; side < g->operands; side++) {
        types[side] = g->on_load[side] ? EPI_F32 : types[side];
        alike &= side < 2 || types[side] == types[g->terms > 1 ? side % 2 : 1];
    }
    return alike;
}

/* How many tiles of either operand are packed at a time, and whether rows are so few that none are. */
static void choose_batches(epi_gemm *g, const epi_spec *spec, const int64_t *tile) {
    bool row_groups = has_row_groups(g), groups = g->plan.group != EPI_GROUP_NONE;
    int64_t row_tiles = g->epilogue.row_tiles / g->epilogue.batches;
    if (row_groups) /* each ends with a panel that is not full */
        row_tiles += epi_ceil_div(epi_axis_size(g->plan.group_axis, spec->sizes) * g->micro->mr, EPI_TILE_M);
    g->own_a = tile[0] <= g->micro->own && row_tiles >= 2 * g->threads && !row_groups;
    g->few = g->integers || (g->m / g->epilogue.batches <= EPI_MICRO_FEW && !groups);
    int64_t few = row_groups ? EPI_MICRO_FEW : g->few ? g->m / g->epilogue.batches : 0;
    for (int i = 0; i < 3 && g->direct_rows < few; i++)
        g->direct_rows = g->micro->direct.rows[i];
    if (g->integers && g->direct_rows < few)
        g->direct_rows = (int)epi_min64(EPI_TILE_M, epi_round_up(few, EPI_MICRO_FEW));
    g->row_batch = g->own_a ? epi_max64(1, row_tiles)
                            : epi_max64(1, epi_min64(row_tiles, PACK_LIMIT / epi_max64(1, tile[0])));
    g->col_batch = epi_max64(1, epi_min64(g->epilogue.col_tiles, PACK_LIMIT / epi_max64(1, tile[1])));
    if (g->few || row_groups)
        g->col_batch = epi_max64(1, g->epilogue.col_tiles);
}

/* Where everything lies in the workspace: what threads share, then each thread's own. */
static void lay_out(epi_gemm *g, const epi_spec *spec, const int64_t *tile) {
    bool row_groups = has_row_groups(g), groups = g->plan.group != EPI_GROUP_NONE;
    int64_t total = 0;
    if (!g->own_a)
        g->packed[0] = epi_reserve(&total, g->row_batch, tile[0]);
    if (!g->few && !row_groups)
        g->packed[1] = epi_reserve(&total, g->col_batch, tile[1]);
    if (groups)
        g->groups = epi_reserve(&total, 1, epi_groups_bytes(spec, &g->plan, g->micro->mr));
    g->dequants = epi_reserve(&total, epi_gemm_parts(g), sizeof(lowbit_part));
    if (g->plan.row_index != EPI_NO_NODE)
        g->index = epi_reserve(&total,
                               row_groups ? g->m
                               : groups   ? g->k[0]
                                          : g->epilogue.batches,
                               sizeof(int64_t));
    for (int side = 0; side < g->operands; side++) {
        bool table =
            depth_of(g, side)->count > 1 || g->on_load[side] || (g->taken[side].count && takes_depth(g));
        g->depth[side] = epi_reserve(&total, table ? g->k[term_of(g, side)] : 0, sizeof(int64_t));
    }
    g->shared = epi_reserve(&total, 1, g->epilogue.shared_bytes);
    g->partials = epi_reserve(&total, g->epilogue.partials, sizeof(float));
    g->ranges = epi_reserve(&total, g->threads, sizeof(range));
    g->thread_bytes = TILE_BYTES + g->epilogue.private_bytes;
    if (g->own_a)
        g->packed[0] = epi_reserve(&g->thread_bytes, 1, tile[0]);
    if (g->few || row_groups) {
        int64_t staged = EPI_TILE_N * FEW_DEPTH * (int64_t)epi_dtype_size(g->micro->type);
        g->packed[1] = epi_reserve(&g->thread_bytes, 1, row_groups ? epi_max64(staged, tile[1]) : staged);
        g->sweep_sums = epi_reserve(&g->thread_bytes, 1, TILE_BYTES);
    }
    if (sweeps(g) > EPI_SUM_TERMS)
        g->sums = epi_reserve(&g->thread_bytes, 2, TILE_BYTES);
    g->per_thread = epi_reserve(&total, g->threads, g->thread_bytes);
    g->scratch = total;
}

epi_status epi_gemm_build(epi_arena *arena, const epi_spec *spec, const epi_plan *plan,
                          const epi_strips *strips, epi_dtype *types, const epi_root *roots, int root_count,
                          epi_gemm *g, epi_error *err) {
    *g = (epi_gemm){.plan = *plan, .threads = spec->threads};
    bool alike = find_operands(g, spec, plan, types);
    g->micro = epi_micro_choose(types[0], alike ? types[1] : EPI_F32, spec->micro);
    if (!g->micro)
        return epi_micro_none(types[0], types[1], spec->micro, err);
    g->integers &= g->micro->direct.integers && g->micro->direct.has_integers();
    EPI_TRY(epi_epilogue_build(arena, spec, &g->plan, strips, g->micro->mr, g->micro->own > 0,
                               g->products == 1 ? EPI_TILE_N : EPI_TILE_PAIR, roots, root_count, &g->epilogue,
                               err));
    g->m = g->epilogue.tile.m;
    g->n = g->epilogue.tile.n;
    for (int t = 0; t < g->terms; t++) {
        g->k[t] = epi_axes_size(t ? &plan->added_depth[t - 1] : &plan->depth, spec->sizes);
        g->packed_k[t] = epi_round_up(g->k[t], g->micro->depth);
    }
    int64_t tile[2] = {packed_tile(g, EPI_SIDE_A), packed_tile(g, EPI_SIDE_B)};
    choose_batches(g, spec, tile);
    lay_out(g, spec, tile);
    return g->scratch >= 0 ? EPI_OK
                           : epi_fail(err, EPI_ERR_MEMORY, "the workspace of this product overflows 64 bits");
}

static void pack_sweep(const gemm_run *r, int side, int64_t tile, int64_t sweep, int thread) {
    epi_gemm_pack_sweep(r, side, tile, sweep, sweep_at(r, side, tile, sweep, thread));
}

/* Item: a tile and a sweep of it. */
static void pack_a(void *ctx, int64_t item, int thread) {
    const gemm_run *r = ctx;
    pack_sweep(r, EPI_SIDE_A, r->row0 + item / sweeps(r->g), item % sweeps(r->g), thread);
}

static void pack_b(void *ctx, int64_t item, int thread) {
    const gemm_run *r = ctx;
    pack_sweep(r, EPI_SIDE_B, r->col0 + item / sweeps(r->g), item % sweeps(r->g), thread);
}

/* ---- tiles ---- */

enum { REGIONS = 8 };

/* What to prefetch while a sweep is computed, a line at a time, spread evenly over its calls. */
typedef struct prefetch {
    epi_prefetch_cursor cursor[REGIONS];
    int64_t lines[REGIONS]; /* still to be asked for */
    int count, at;
    int64_t total, every;
} prefetch;

static void add_region(prefetch *f, const epi_region *r) {
    int64_t per_row = epi_ceil_div(r->row_bytes, LINE);
    if (f->count == REGIONS || per_row * r->rows == 0)
        return;
    f->cursor[f->count] = (epi_prefetch_cursor){.line = (const char *)r->data,
                                                .stride = LINE,
                                                .row_left = per_row,
                                                .row = per_row,
                                                .skip = r->stride - per_row * LINE,
                                                .write = r->write};
    f->lines[f->count++] = per_row * r->rows;
    f->total += per_row * r->rows;
}

static void add_sweep(prefetch *f, packed_sweep b) {
    add_region(f, &(epi_region){b.data, b.bytes, b.bytes, 1, false});
}

/* How often to ask, so that all is asked for by the end of `calls` calls of this depth. */
static void set_pace(prefetch *f, int64_t calls, int64_t depth) {
    int64_t per_call = f->total / epi_max64(1, calls) + 1;
    f->every = epi_max64(1, depth / per_call);
    for (int i = 0; i < f->count; i++)
        f->cursor[i].every = f->cursor[i].left = f->every;
}

/* What the next call asks for. */
static epi_prefetch_cursor *next_lines(prefetch *f, int64_t depth, epi_prefetch_cursor *nothing) {
    if (f->at == f->count) {
        *nothing = (epi_prefetch_cursor){.every = depth + 1, .left = depth + 1};
        return nothing;
    }
    epi_prefetch_cursor *cursor = &f->cursor[f->at];
    f->lines[f->at] -= depth / f->every;
    f->at += f->lines[f->at] <= 0;
    return cursor;
}

/* The rows of A that a tile is packed from, where they are a regular stretch. */
static void add_rows(prefetch *f, const gemm_run *r, int64_t tile) {
    const epi_gemm *g = r->g;
    const epi_walk *depth = &r->depth[EPI_SIDE_A];
    int64_t first = first_row(r, EPI_SIDE_A, tile), rows = tile_rows(r, EPI_SIDE_A, tile),
            size = (int64_t)epi_dtype_size(r->ref[EPI_SIDE_A].type);
    if (r->rows[0].count != 1 || depth->count != 1 || depth->stride[0] != 1)
        return;
    add_region(f, &(epi_region){r->ref[EPI_SIDE_A].data + epi_walk_offset(&r->rows[0], first) * size,
                                g->k[0] * size, r->rows[0].stride[0] * size, rows, false});
}

/* What a thread will pack of the next tile of B, in the place of this sweep, where it lies in regular stretches: along
 * the depth, or along the columns. */
static void add_matrices(prefetch *f, const gemm_run *r, int64_t tile, int64_t sweep) {
    const epi_gemm *g = r->g;
    const sweep_place at = place_of(g, sweep);
    const int64_t depth = epi_min64(g->micro->kc, g->k[at.term] - at.k0),
                  rows = tile_rows(r, EPI_SIDE_B, tile);
    for (int from = 2 * at.term + 1; from < 2 * at.term + 1 + g->products; from++) {
        const epi_walk *k = &r->depth[from], *n = &r->cols[from].walk;
        const int64_t size = (int64_t)epi_dtype_size(r->ref[from].type);
        if (k->count != 1 || n->count != 1 || r->cols[from].two)
            continue;
        const unsigned char *data =
            matrix_of(r, from, tile) +
            (epi_columns_offset(&r->cols[from], first_row(r, EPI_SIDE_B, tile)) + at.k0 * k->stride[0]) *
                size;
        if (k->stride[0] == 1)
            add_region(f, &(epi_region){data, depth * size, n->stride[0] * size, rows, false});
        else if (n->stride[0] == 1)
            add_region(f, &(epi_region){data, rows * size, k->stride[0] * size, depth, false});
    }
}

/* Of groups of rows: is it the only tile of its group? Then a sweep of B is packed when it is wanted, and stays in the
 * second-level cache. */
static bool is_only_tile(const gemm_run *r, int64_t tile) {
    int64_t group = r->groups.of[tile];
    return r->groups.first_tile[group + 1] - r->groups.first_tile[group] == 1;
}

/* Accumulates one tile: for each sweep, every panel of B against every panel of A, while the next
 * sweep's panels are prefetched; in the last one, what the epilogue will touch, and the first panels
 * of `then`, a tile this thread may get next. The first sweep of EPI_SUM_TERMS stores into acc, the others
 * add to it. */
static void multiply(const gemm_run *r, const int64_t tile[2], const int64_t then[2], float *acc,
                     int thread) {
    const epi_gemm *g = r->g;
    const epi_micro *u = g->micro;
    const bool groups = has_row_groups(g), once = groups && is_only_tile(r, tile[0]);
    int64_t size = (int64_t)epi_dtype_size(u->type), rows = padded_rows(r, 0, tile[0]),
            cols = padded_rows(r, 1, tile[1]), valid = tile_rows(r, EPI_SIDE_A, tile[0]),
            whole = groups && u->run_rows ? valid - valid % u->mr : rows;
    float *sum = (float *)(void *)(own_memory(r, thread) + g->sweep_sums);
    if (sweeps(g) == 0)
        memset(acc, 0, TILE_BYTES);
    for (int64_t s = 0; s < sweeps(g); s++) {
        packed_sweep a = sweep_at(r, EPI_SIDE_A, tile[0], s, thread),
                     b = sweep_at(r, EPI_SIDE_B, tile[1], s, thread);
        bool last = s + 1 == sweeps(g);
        if (once) {
            b.data = tile_at(r, EPI_SIDE_B, tile[1], thread);
            epi_gemm_pack_sweep(r, EPI_SIDE_B, tile[1], s, b);
        }
        prefetch f = {0};
        epi_prefetch_cursor nothing;
        if (last) {
            epi_region regions[REGIONS];
            int64_t place[2] = {tile[0], column_tile(r, tile[1])};
            int count = epi_epilogue_regions(&r->tiles, place, regions, REGIONS - 2);
            for (int i = 0; i < count; i++)
                add_region(&f, &regions[i]);
        }
        if (!g->own_a)
            add_sweep(&f, sweep_at(r, EPI_SIDE_A, last ? then[0] : tile[0], last ? 0 : s + 1, thread));
        else if (last && then[0] != tile[0])
            add_rows(&f, r, then[0]);
        if (!has_row_groups(g))
            add_sweep(&f, sweep_at(r, EPI_SIDE_B, last ? then[1] : tile[1], last ? 0 : s + 1, thread));
        else if (once)
            add_matrices(&f, r, last ? then[1] : tile[1], last ? 0 : s + 1);
        set_pace(&f, rows / u->mr * (g->products * cols / u->nr), a.depth);
        for (int64_t j = 0; j < g->products * cols; j += u->nr) {
            const unsigned char *panel = b.data + j * a.depth * size;
            float *c = acc + (j < cols ? j : EPI_TILE_PAIR + j - cols);
            for (int64_t i = 0; i < whole; i += u->mr)
                u->run(a.depth, a.data + i * a.depth * size, panel, c + i * EPI_TILE_N, EPI_TILE_N,
                       s % EPI_SUM_TERMS > 0, next_lines(&f, a.depth, &nothing));
            if (whole < rows) {
                u->run_rows((int)(valid - whole), a.depth, a.data + whole * a.depth * size, panel,
                            (int64_t)u->nr * u->kb, sum, u->nr, false, next_lines(&f, a.depth, &nothing));
                add_sums(c + whole * EPI_TILE_N, sum, u->nr, valid - whole, u->nr, s % EPI_SUM_TERMS > 0);
            }
        }
        if (sweeps(g) > EPI_SUM_TERMS && (last || (s + 1) % EPI_SUM_TERMS == 0))
            epi_gemm_add_sweeps(r, acc, rows, g->products > 1 ? EPI_TILE_PAIR + cols : cols, thread,
                                s < EPI_SUM_TERMS, last);
    }
}

/* What threads take: the tiles in hand, or groups of them. */
static int64_t items(const gemm_run *r) {
    return r->row_tiles * epi_ceil_div(r->col_tiles, r->group);
}

/* Splits the tiles in hand among the threads, each one's neighbours. */
static void share_out(gemm_run *r) {
    const int64_t count = items(r);
    for (int t = 0; t < r->g->threads; t++) {
        atomic_init(&r->ranges[t].next, count * t / r->g->threads);
        r->ranges[t].end = count * (t + 1) / r->g->threads;
        r->ranges[t].packed = -1;
    }
}

/* Of groups of rows: those of one group follow each other, and among them those of one tile of B. A group that
 * begins with the chunk's tile t has t - row0 tiles before it, and so many times that of items. */
static void find_group_tile(const gemm_run *r, int64_t item, int64_t tile[2]) {
    const epi_groups *of = &r->groups;
    int64_t columns = r->g->epilogue.col_tiles, group = of->of[r->row0 + item / columns];
    int64_t first = epi_max64(r->row0, of->first_tile[group]),
            count = epi_min64(r->row0 + r->row_tiles, of->first_tile[group + 1]) - first;
    item -= (first - r->row0) * columns;
    tile[0] = first + item % count;
    tile[1] = group * columns + item / count;
}

/* Neighbours among the items share the tile that a thread keeps in its second-level cache: the one of A that
 * it packed, or else the one of B. */
static void find_tile(const gemm_run *r, int64_t item, int64_t tile[2]) {
    if (has_row_groups(r->g)) {
        find_group_tile(r, item, tile);
        return;
    }
    bool by_rows = r->g->own_a;
    tile[0] = r->row0 + (by_rows ? item / r->col_tiles : item % r->row_tiles);
    tile[1] = r->col0 + (by_rows ? item % r->col_tiles : item / r->row_tiles * r->group);
}

/* The next tile for the thread; there is one. */
static int64_t take(const gemm_run *r, int thread) {
    for (int t = thread;; t = (t + 1) % r->g->threads) {
        int64_t item = atomic_fetch_add_explicit(&r->ranges[t].next, 1, memory_order_relaxed);
        if (item < r->ranges[t].end)
            return item;
    }
}

/* The thread packs what it packs for itself, unless it has it; tiles of few rows take its place. */
static void pack_own(gemm_run *r, const int64_t tile[2], bool few, int thread) {
    bool groups = has_row_groups(r->g);
    int side = groups ? EPI_SIDE_B : EPI_SIDE_A;
    int64_t *packed = &r->ranges[thread].packed;
    bool whole = groups ? !few && !is_only_tile(r, tile[0]) : r->g->own_a;
    if (groups && !whole)
        *packed = -1;
    if (!whole || *packed == tile[side])
        return;
    for (int64_t s = 0; s < sweeps(r->g); s++)
        pack_sweep(r, side, tile[side], s, thread);
    *packed = tile[side];
}

static void run_tile(void *ctx, int64_t any, int thread) {
    (void)any;
    gemm_run *r = ctx;
    const epi_gemm *g = r->g;
    int64_t item = take(r, thread), tile[2], then[2];
    find_tile(r, item, tile);
    find_tile(r, epi_min64(item + 1, items(r) - 1), then);
    int64_t count = has_row_groups(g) ? 1 : epi_min64(r->group, r->col0 + r->col_tiles - tile[1]);
    bool few = is_few(r, tile[0]);
    pack_own(r, tile, few, thread);
    unsigned char *mine = own_memory(r, thread);
    float *acc = (float *)(void *)mine;
    EPI_UNWRITTEN(mine, TILE_BYTES + g->epilogue.private_bytes); /* by tiles before it */
    if (g->micro->enter)
        g->micro->enter();
    if (few)
        epi_gemm_few(r, tile, count, acc, thread);
    else
        multiply(r, tile, then, acc, thread);
    if (g->micro->leave)
        g->micro->leave();
    int64_t place[2] = {tile[0], column_tile(r, tile[1])};
    for (; count > 0; count--, place[1]++, acc += g->direct_rows * EPI_TILE_N)
        epi_epilogue_tile(&r->tiles, acc, place, mine + TILE_BYTES);
}

/* The rows' tiles from `begin` to `end`, which are those of one batch, with all columns. */
static void run_batch(gemm_run *r, int64_t begin, int64_t end) {
    const epi_gemm *g = r->g;
    const int64_t col_tiles = g->epilogue.col_tiles;
    for (r->col0 = 0; r->col0 < col_tiles; r->col0 += g->col_batch) {
        r->col_tiles = epi_min64(g->col_batch, col_tiles - r->col0);
        if (!g->few)
            epi_parallel_for(g->threads, r->col_tiles * sweeps(g), pack_b, r);
        for (r->row0 = begin; r->row0 < end; r->row0 += g->row_batch) {
            r->row_tiles = epi_min64(g->row_batch, end - r->row0);
            if (!g->own_a)
                epi_parallel_for(g->threads, r->row_tiles * sweeps(g), pack_a, r);
            share_out(r);
            epi_parallel_for(g->threads, items(r), run_tile, r);
        }
    }
}

/* Where an operand's matrix of a batch is. The rows' own walk goes through the batches; what an index names is beside. */
static unsigned char *matrix_of_batch(const gemm_run *r, const epi_ref *home, int side, int64_t b) {
    epi_axes axes = epi_plan_batch(&r->g->plan);
    epi_walk batch = epi_walk_axes(home, &axes, r->g->epilogue.tile.spec->sizes);
    const epi_axes *taken = &r->g->taken[side];
    int64_t at = side == EPI_SIDE_B ? epi_walk_offset(&batch, b) : 0;
    if (taken->count)
        at += epi_max64(0, r->index[b]) * epi_ref_stride(home, taken->at[0]);
    return home->data + at * (int64_t)epi_dtype_size(home->type);
}

static void run_batches(gemm_run *r, const epi_ref *homes) {
    const epi_gemm *g = r->g;
    const epi_epilogue *e = &g->epilogue;
    epi_axes axes = epi_plan_batch(&g->plan);
    for (int64_t b = 0; b < e->batches; b++) {
        for (int side = 0; side < 2; side++) /* strides of a home count bytes where two elements share one */
            r->ref[side].data = matrix_of_batch(r, &homes[g->operand[side]], side, b);
        epi_gemm_move_parts(r, homes, &axes, b);
        run_batch(r, b * (e->row_tiles / e->batches), (b + 1) * (e->row_tiles / e->batches));
    }
}

/* The tiles of all groups of rows, as many at a time as are packed of A. */
static void run_row_groups(gemm_run *r) {
    const epi_gemm *g = r->g;
    const epi_groups *of = &r->groups;
    const int64_t most = g->row_batch * epi_round_up(EPI_TILE_M, g->micro->mr);
    r->col_tiles = g->epilogue.col_tiles;
    for (r->row0 = 0; r->row0 < of->tiles; r->row0 += r->row_tiles) {
        for (r->row_tiles = 1; r->row0 + r->row_tiles < of->tiles; r->row_tiles++)
            if (of->packed[r->row0 + r->row_tiles + 1] - of->packed[r->row0] > most)
                break;
        epi_parallel_for(g->threads, r->row_tiles * sweeps(g), pack_a, r);
        share_out(r);
        epi_parallel_for(g->threads, items(r), run_tile, r);
    }
}

/* How many tiles of a group are packed at a time: as much memory as those of the whole have, at least one. */
static int64_t batch_of_group(const epi_gemm *all, const epi_gemm *one, int side, int64_t tiles) {
    int64_t batch = side == 0 ? all->row_batch : all->col_batch;
    batch = batch * packed_tile(all, side) / epi_max64(1, packed_tile(one, side));
    return epi_max64(1, epi_min64(tiles, batch));
}

/* Groups of the depth are batches, each with the positions of its own. */
static void run_depth_groups(gemm_run *r) {
    const epi_gemm *all = r->g;
    const int64_t tiles = all->epilogue.row_tiles / all->epilogue.batches;
    epi_gemm one = *all;
    const gemm_run whole = *r;
    r->g = &one;
    for (int64_t e = 0; e < r->groups.count; e++) {
        const int64_t first = r->groups.first[e];
        r->index = whole.index ? whole.index + first : NULL;
        one.k[0] = r->groups.first[e + 1] - first;
        one.packed_k[0] = epi_round_up(one.k[0], one.micro->depth);
        for (int side = 0; side < 2; side++) {
            const epi_walk *depth = &r->depth[side];
            int64_t stride = depth->count ? depth->stride[depth->count - 1] : 1;
            if (whole.koff[side])
                r->koff[side] = whole.koff[side] + first;
            else
                r->ref[side].data =
                    whole.ref[side].data + first * stride * (int64_t)epi_dtype_size(r->ref[side].type);
        }
        one.row_batch = batch_of_group(all, &one, 0, tiles);
        one.col_batch = batch_of_group(all, &one, 1, one.epilogue.col_tiles);
        run_batch(r, e * tiles, (e + 1) * tiles);
    }
    *r = whole;
}

/* The index through which operands are read, by position, or by batch: that has been looked through. */
static void load_index(gemm_run *r, const epi_ref *ref) {
    const epi_gemm *g = r->g;
    const int64_t *sizes = g->epilogue.tile.spec->sizes;
    const epi_axes batch = epi_plan_batch(&g->plan), *positions = has_row_groups(g) ? &g->plan.rows
                                                                  : takes_depth(g)  ? &g->plan.depth
                                                                                    : &batch;
    int64_t *index = (int64_t *)(void *)(r->scratch + g->index), size = 1;
    for (int side = 0; side < g->operands; side++)
        if (g->taken[side].count)
            size = epi_axes_size(&g->taken[side], sizes);
    epi_walk walk = epi_walk_axes(ref, positions, sizes);
    for (int64_t i = 0, count = epi_axes_size(positions, sizes); i < count; i++) {
        index[i] = epi_position_load(g->epilogue.strips, ref, epi_walk_offset(&walk, i), size);
        r->gaps |= index[i] < 0;
    }
    r->index = index;
}

void epi_gemm_run(const epi_gemm *g, const epi_ref *homes, const epi_ref *tensors, unsigned char *scratch) {
    const epi_epilogue *e = &g->epilogue;
    const int64_t *sizes = e->tile.spec->sizes;
    gemm_run r = {.g = g, .scratch = scratch, .ranges = (range *)(void *)(scratch + g->ranges)};
    if (g->plan.row_index != EPI_NO_NODE)
        load_index(&r, &homes[g->plan.row_index]);
    for (int side = 0; side < g->operands; side++) {
        r.ref[side] = homes[g->operand[side]];
        bool halves = g->on_load[side] && g->dequant[side].bits == 4;
        if (halves)
            epi_gemm_count_halves(&r.ref[side]);
        bool taken = g->taken[side].count > 0, of_rows = taken && has_row_groups(g),
             of_depth = taken && takes_depth(g);
        r.depth[side] = epi_walk_axes(&r.ref[side], of_depth ? &g->taken[side] : depth_of(g, side), sizes);
        if (halves)
            r.depth[side] = epi_gemm_depth_of_halves(&r.ref[side], depth_of(g, side), sizes);
        if (r.depth[side].count > 1 || of_depth) {
            r.koff[side] = (int64_t *)(void *)(scratch + g->depth[side]);
            for (int64_t k = 0; k < g->k[term_of(g, side)]; k++)
                r.koff[side][k] = epi_walk_offset(&r.depth[side], of_depth ? epi_max64(0, r.index[k]) : k);
        }
        r.rows[side] = epi_walk_axes(&r.ref[side], of_rows ? &g->taken[side] : &g->plan.rows, sizes);
        r.cols[side] = epi_columns_of(&g->plan, &r.ref[side], sizes, e->tile.acc_scale);
    }
    for (int side = 1; side < g->operands && has_row_groups(g); side++)
        r.apart[side] = epi_ref_stride(&r.ref[side], g->plan.group_axis);
    epi_gemm_find_parts(&r, homes);
    r.variant = g->few || has_row_groups(g) ? epi_gemm_variant(&r) : STAGED;
    bool across = r.variant == ACROSS && g->few;
    r.group = across ? epi_max64(1, epi_min64(GROUP, epi_ceil_div(e->col_tiles, g->threads))) : 1;
    epi_epilogue_begin(&r.tiles, e, homes, tensors, scratch + g->shared,
                       (float *)(void *)(scratch + g->partials));
    if (g->plan.group != EPI_GROUP_NONE)
        epi_groups_find(e->tile.spec, &g->plan, e->strips, &homes[g->plan.offsets], g->micro->mr,
                        scratch + g->groups, &r.groups);
    if (has_row_groups(g)) {
        epi_groups_tile(&r.groups, g->micro->mr, r.variant == STAGED ? 0 : EPI_MICRO_FEW, g->direct_rows);
        r.tiles.starts = r.groups.starts;
        r.tiles.groups = r.groups.of;
        run_row_groups(&r);
    } else if (g->plan.group == EPI_GROUP_DEPTH) {
        run_depth_groups(&r);
    } else {
        run_batches(&r, homes);
    }
    epi_epilogue_end(&r.tiles, homes, g->threads);
}
