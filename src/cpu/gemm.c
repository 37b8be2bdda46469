/* gemm.c: the loops around the micro-kernel.
 *
 * Both operands are packed tile by tile, and within a tile sweep by sweep: a sweep is `kc` of the
 * depth, and the panels of one sweep lie together. What holds in the loops over tiles and sweeps:
 *   - Packed tiles are written before the threads that read them start, and only read then. A tile of A
 *     that a thread packs for itself (`own_a`) is its own, like its accumulator and its epilogue's memory.
 *   - A tile of the product belongs to one thread, from its first sweep to the end of its epilogue. It is
 *     accumulated in the thread's buffer, which stays in the second-level cache.
 *   - Where products are added up, the sweeps of one follow those of the other: no sweep has depth of two.
 *   - Each of a tile's sums is added up over the depth of a sweep in registers, in the order of the depth,
 *     then sweep by sweep in the buffer, EPI_SUM_TERMS of them before that is added to a sum that keeps what
 *     rounding loses. That order follows from the micro-kernel alone, so tiles, threads
 *     and neighbouring rows never change a result's bits.
 *   - While a sweep is computed, the panels of the next one are prefetched.
 *   - Of few rows (`few`) a tile of B is read once, and goes to memory in no other form. Where its depth is
 *     contiguous the micro-kernel takes it as it lies there (DIRECT), all sweeps of some columns before the
 *     next columns. Where its columns are neighbours it takes a little of the depth of several tiles' columns
 *     at a time (ACROSS), so that it reads long stretches of B's rows; the tiles of such a group follow each
 *     other in the accumulator, each with the rows of a panel. Else (STAGED) the thread brings a little of
 *     the depth of all its columns to the first-level cache at a time. Sums are added up in one order. */
#include "cpu/gemm.h"

#include <stdatomic.h>
#include <string.h>

#include "base/parallel.h"
#include "cpu/groups.h"

enum {
    PACK_LIMIT = 64 << 20, /* bytes of one packed operand at a time */
    TILE_BYTES = EPI_TILE_M * EPI_TILE_N * sizeof(float),
    FEW_DEPTH = 32,                     /* of few rows, at a time: a multiple of every micro-kernel's */
    GROUP = EPI_TILE_M / EPI_MICRO_FEW, /* tiles of few rows that one accumulator has room for */
};

/* How the micro-kernel gets B of few rows. */
typedef enum few_variant { STAGED, DIRECT, ACROSS } few_variant;

/* Tiles that a thread takes one after the other; the others take from them once they have none left. */
typedef struct range {
    _Alignas(64) _Atomic int64_t next;
    int64_t end;
    int64_t packed; /* the tile of A, or of B, that the thread has packed for itself, or -1 */
} range;

typedef struct gemm_run {
    const epi_gemm *g;
    epi_tile_run tiles;
    epi_ref ref[EPI_MAX_OPERANDS];
    epi_walk rows[EPI_MAX_OPERANDS];    /* of operands with rows along M */
    epi_columns cols[EPI_MAX_OPERANDS]; /* of operands with columns along N */
    epi_walk depth[EPI_MAX_OPERANDS];
    int64_t apart[EPI_MAX_OPERANDS]; /* elements from a group's matrix to the next; 0: all have the same */
    epi_groups groups;
    const int64_t *index;            /* by position, and -1 where it names nothing, or NULL */
    bool gaps;                       /* there are such */
    int64_t *koff[EPI_MAX_OPERANDS]; /* element offsets along K where it is no single run, else NULL */
    few_variant variant;             /* of few rows */
    int64_t group;                   /* tiles of columns that a thread takes at a time: 1 unless ACROSS */
    unsigned char *scratch;
    range *ranges;
    int64_t row0, col0;           /* the first tiles that are packed */
    int64_t row_tiles, col_tiles; /* how many are packed */
} gemm_run;

/* The most rows of a tile. */
static int64_t tile_size(const epi_gemm *g, int side) {
    return side == EPI_SIDE_A ? EPI_TILE_M : g->epilogue.tile.tile_n;
}

/* A tile of B is known by its number among those of all groups. */
static int64_t column_tile(const gemm_run *r, int64_t tile) {
    return tile % epi_max64(1, r->g->epilogue.col_tiles);
}

static int64_t first_row(const gemm_run *r, int side, int64_t tile) {
    return side == EPI_SIDE_A ? epi_run_row(&r->tiles, tile)
                              : column_tile(r, tile) * r->g->epilogue.tile.tile_n;
}

static int64_t tile_rows(const gemm_run *r, int side, int64_t tile) {
    int64_t first = first_row(r, side, tile);
    return side == EPI_SIDE_A ? epi_run_row(&r->tiles, tile + 1) - first
                              : epi_min64(r->g->n - first, r->g->epilogue.tile.tile_n);
}

static bool has_row_groups(const epi_gemm *g) {
    return g->plan.group == EPI_GROUP_ROWS;
}

/* Is the tile one of few rows, and is it packed for the micro-kernel that reads B as it lies? */
static bool is_few(const gemm_run *r, int64_t tile) {
    return r->g->few || (has_row_groups(r->g) && tile_rows(r, EPI_SIDE_A, tile) <= EPI_MICRO_FEW);
}

static bool is_direct(const gemm_run *r, int64_t tile) {
    return r->variant != STAGED && is_few(r, tile);
}

/* Where an operand is that a tile of B is taken of. */
static const unsigned char *matrix_of(const gemm_run *r, int from, int64_t tile) {
    int64_t group = tile / epi_max64(1, r->g->epilogue.col_tiles);
    return r->ref[from].data + group * r->apart[from] * (int64_t)epi_dtype_size(r->ref[from].type);
}

static int64_t panel_size(const epi_gemm *g, int side) {
    return side == EPI_SIDE_A ? g->micro->mr : g->micro->nr;
}

/* Bytes of one packed row of an operand, of all terms, and of one packed tile. */
static int64_t packed_row(const epi_gemm *g) {
    int64_t depth = 0;
    for (int t = 0; t < g->terms; t++)
        depth += g->packed_k[t];
    return depth * (int64_t)epi_dtype_size(g->micro->type);
}

static int64_t packed_tile(const epi_gemm *g, int side) {
    return epi_round_up(tile_size(g, side), panel_size(g, side)) * (side == EPI_SIDE_B ? g->products : 1) *
           packed_row(g);
}

static int64_t sweeps(const epi_gemm *g) {
    int64_t all = 0;
    for (int t = 0; t < g->terms; t++)
        all += epi_ceil_div(g->packed_k[t], g->micro->kc);
    return all;
}

/* A sweep's term, where in that term's depth it begins, and how much packed depth is before it in all. */
typedef struct sweep_place {
    int term;
    int64_t k0, before;
} sweep_place;

static sweep_place place_of(const epi_gemm *g, int64_t sweep) {
    sweep_place at = {0};
    for (; at.term < g->terms - 1; at.term++) {
        int64_t own = epi_ceil_div(g->packed_k[at.term], g->micro->kc);
        if (sweep < own)
            break;
        sweep -= own;
        at.before += g->packed_k[at.term];
    }
    at.k0 = sweep * g->micro->kc;
    at.before += at.k0;
    return at;
}

/* The rows of a tile, with those that fill its last panel. */
static int64_t padded_rows(const gemm_run *r, int side, int64_t tile) {
    if (side == EPI_SIDE_A && is_direct(r, tile))
        return r->g->direct_rows;
    return epi_round_up(tile_rows(r, side, tile), panel_size(r->g, side));
}

/* One sweep of one packed tile. */
typedef struct packed_sweep {
    unsigned char *data;
    int64_t depth, bytes;
} packed_sweep;

static unsigned char *own_memory(const gemm_run *r, int thread) {
    return r->scratch + r->g->per_thread + thread * r->g->thread_bytes;
}

/* Where a tile is packed, or will be. */
static unsigned char *tile_at(const gemm_run *r, int side, int64_t tile, int thread) {
    const epi_gemm *g = r->g;
    if (side == EPI_SIDE_A ? g->own_a : has_row_groups(g))
        return own_memory(r, thread) + g->packed[side];
    if (has_row_groups(g))
        return r->scratch + g->packed[side] +
               (r->groups.packed[tile] - r->groups.packed[r->row0]) * packed_row(g);
    return r->scratch + g->packed[side] +
           (tile - (side == EPI_SIDE_A ? r->row0 : r->col0)) * packed_tile(g, side);
}

static packed_sweep sweep_at(const gemm_run *r, int side, int64_t tile, int64_t sweep, int thread) {
    const epi_gemm *g = r->g;
    int64_t rows = padded_rows(r, side, tile) * (side == EPI_SIDE_B ? g->products : 1),
            size = (int64_t)epi_dtype_size(g->micro->type);
    sweep_place at = place_of(g, sweep);
    int64_t depth = epi_min64(g->micro->kc, g->packed_k[at.term] - at.k0);
    return (packed_sweep){tile_at(r, side, tile, thread) + at.before * rows * size, depth,
                          rows * depth * size};
}

/* Which of the products that are added up an operand belongs to, and the axes of its depth. */
static int term_of(const epi_gemm *g, int operand) {
    return g->terms > 1 ? operand / 2 : 0;
}

static const epi_axes *depth_of(const epi_gemm *g, int operand) {
    int term = term_of(g, operand);
    return term ? &g->plan.added_depth[term - 1] : &g->plan.depth;
}

epi_status epi_gemm_build(epi_arena *arena, const epi_spec *spec, const epi_plan *plan,
                          const epi_strips *strips, const epi_dtype *types, const epi_root *roots,
                          int root_count, epi_gemm *g, epi_error *err) {
    *g = (epi_gemm){.plan = *plan, .threads = spec->threads};
    g->products = plan->pair == EPI_NO_NODE ? 1 : 2;
    g->terms = 1 + plan->added_count;
    g->operands = epi_plan_operands(plan);
    bool alike = true;
    for (int side = 0; side < g->operands; side++) {
        const epi_node *n = &spec->graph->nodes[epi_plan_operand(spec->graph, plan, side)];
        g->operand[side] = epi_plan_source(spec->graph, plan, side);
        if (plan->placement[n - spec->graph->nodes].paged)
            g->taken[side] = n->over;
        alike &= side < 2 || types[side] == types[g->terms > 1 ? side % 2 : 1];
    }
    g->micro = epi_micro_choose(types[0], alike ? types[1] : EPI_F32, spec->micro);
    if (!g->micro)
        return epi_micro_none(types[0], types[1], spec->micro, err);
    EPI_TRY(epi_epilogue_build(arena, spec, &g->plan, strips, g->micro->mr, g->micro->own > 0,
                               g->products == 1 ? EPI_TILE_N : EPI_TILE_PAIR, roots, root_count, &g->epilogue,
                               err));
    g->m = g->epilogue.tile.m;
    g->n = g->epilogue.tile.n;
    for (int t = 0; t < g->terms; t++) {
        g->k[t] = epi_axes_size(t ? &plan->added_depth[t - 1] : &plan->depth, spec->sizes);
        g->packed_k[t] = epi_round_up(g->k[t], g->micro->depth);
    }
    int64_t total = 0, tile[2] = {packed_tile(g, EPI_SIDE_A), packed_tile(g, EPI_SIDE_B)};
    bool row_groups = has_row_groups(g), groups = g->plan.group != EPI_GROUP_NONE;
    int64_t row_tiles = g->epilogue.row_tiles / g->epilogue.batches;
    if (row_groups) /* each ends with a panel that is not full */
        row_tiles += epi_ceil_div(epi_axis_size(plan->group_axis, spec->sizes) * g->micro->mr, EPI_TILE_M);
    g->own_a = tile[0] <= g->micro->own && row_tiles >= 2 * g->threads && !row_groups;
    g->few = g->m / g->epilogue.batches <= EPI_MICRO_FEW && !groups;
    int64_t few = row_groups ? EPI_MICRO_FEW : g->few ? g->m / g->epilogue.batches : 0;
    for (int i = 0; i < 3 && g->direct_rows < few; i++)
        g->direct_rows = g->micro->direct.rows[i];
    g->row_batch = g->own_a ? epi_max64(1, row_tiles)
                            : epi_max64(1, epi_min64(row_tiles, PACK_LIMIT / epi_max64(1, tile[0])));
    g->col_batch = epi_max64(1, epi_min64(g->epilogue.col_tiles, PACK_LIMIT / epi_max64(1, tile[1])));
    if (!g->own_a)
        g->packed[0] = epi_reserve(&total, g->row_batch, tile[0]);
    if (g->few || row_groups)
        g->col_batch = epi_max64(1, g->epilogue.col_tiles);
    else
        g->packed[1] = epi_reserve(&total, g->col_batch, tile[1]);
    if (groups)
        g->groups = epi_reserve(&total, 1, epi_groups_bytes(spec, plan, g->micro->mr));
    if (plan->row_index != EPI_NO_NODE)
        g->index = epi_reserve(&total, row_groups ? g->m : g->k[0], sizeof(int64_t));
    for (int side = 0; side < g->operands; side++) {
        bool table = depth_of(g, side)->count > 1 || (g->taken[side].count && !row_groups);
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
    if (total < 0)
        return epi_fail(err, EPI_ERR_MEMORY, "the workspace of this product overflows 64 bits");
    return EPI_OK;
}

/* ---- packing ---- */

/* Zeros in the place of rows, or of depths, that the index names nothing for: `first` is the first position. */
static void clear_gaps(const gemm_run *r, const epi_pack_source *src, int64_t first, bool rows, int panel,
                       int q, unsigned char *to) {
    const int64_t depth = epi_round_up(src->k, r->g->micro->depth),
                  size = (int64_t)epi_dtype_size(r->g->micro->type);
    for (int64_t i = 0; i < src->rows; i++)
        for (int64_t k = 0; k < src->k; k++) {
            if (r->index[first + (rows ? i : k)] >= 0)
                continue;
            int64_t at = i / panel * panel * depth + k / q * panel * q + i % panel * q + k % q;
            memset(to + at * size, 0, (size_t)size);
        }
}

/* Packs what operand `from` has of a tile, from depth k0 on, `depth_most` of it or what there is. */
static void pack_rows(const gemm_run *r, int side, int from, int64_t tile, int64_t k0, int64_t depth_most,
                      unsigned char *to) {
    const epi_gemm *g = r->g;
    const int64_t first = first_row(r, side, tile), rows = tile_rows(r, side, tile);
    int64_t row[EPI_TILE_N];
    const epi_walk *depth = &r->depth[from];
    int64_t stride = depth->count ? depth->stride[depth->count - 1] : 1;
    const bool taken = g->taken[from].count && has_row_groups(g);
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = taken ? epi_max64(0, r->index[first + i]) : first + i;
        row[i] =
            side == EPI_SIDE_A ? epi_walk_offset(&r->rows[from], at) : epi_columns_offset(&r->cols[from], at);
        row[i] += r->koff[from] ? 0 : k0 * stride;
    }
    epi_pack_source src = {.data = side == EPI_SIDE_A ? r->ref[from].data : matrix_of(r, from, tile),
                           .type = r->ref[from].type,
                           .row = row,
                           .rows = rows,
                           .kstride = stride,
                           .koff = r->koff[from] ? r->koff[from] + k0 : NULL,
                           .k = epi_min64(depth_most, g->k[term_of(g, from)] - k0)};
    const bool direct = side == EPI_SIDE_A && is_direct(r, tile);
    const int panel = direct ? g->direct_rows : (int)panel_size(g, side),
              together = direct               ? g->micro->direct.ka
                         : side == EPI_SIDE_A ? g->micro->ka
                                              : g->micro->kb;
    epi_pack_panels(g->micro, panel, together, &src, to);
    if (r->gaps && g->taken[from].count)
        clear_gaps(r, &src, taken ? first : k0, taken, panel, together, to);
}

/* The columns of a pair are packed one product after the other. */
static void pack_sweep_at(const gemm_run *r, int side, int64_t tile, int64_t sweep, packed_sweep to) {
    sweep_place at = place_of(r->g, sweep);
    if (side == EPI_SIDE_A)
        pack_rows(r, side, 2 * at.term, tile, at.k0, r->g->micro->kc, to.data);
    for (int p = 0; p < r->g->products && side == EPI_SIDE_B; p++)
        pack_rows(r, side, 2 * at.term + 1 + p, tile, at.k0, r->g->micro->kc,
                  to.data + p * (to.bytes / r->g->products));
}

static void pack_sweep(const gemm_run *r, int side, int64_t tile, int64_t sweep, int thread) {
    pack_sweep_at(r, side, tile, sweep, sweep_at(r, side, tile, sweep, thread));
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

enum { LINE = 64, REGIONS = 8 };

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

/* The tile of some sweeps, at acc in the thread's memory, goes to sums that keep what rounding loses; after
 * the last ones these are the tile. */
static void add_sweeps(const gemm_run *r, float *acc, int64_t rows, int64_t cols, int thread, bool first,
                       bool last) {
    const epi_strips *strips = r->g->epilogue.strips;
    unsigned char *mine = own_memory(r, thread);
    float *sum = (float *)(void *)(mine + r->g->sums) + (acc - (float *)(void *)mine),
          *lost = sum + EPI_TILE_M * EPI_TILE_N;
    for (int64_t i = 0; i < rows * EPI_TILE_N; i += EPI_TILE_N) {
        if (first) {
            memset(sum + i, 0, (size_t)cols * sizeof *sum);
            memset(lost + i, 0, (size_t)cols * sizeof *lost);
        }
        strips->combine(EPI_OP_SUM, sum + i, lost + i, acc + i, NULL, cols);
        if (last) {
            memcpy(acc + i, sum + i, (size_t)cols * sizeof *acc);
            strips->finish(EPI_OP_SUM, acc + i, lost + i, cols, 1);
        }
    }
}

/* A sweep's sums, ld apart, go to the tile. */
static void add_sums(float *acc, const float *sum, int64_t ld, int64_t rows, int64_t cols, bool add) {
    for (int64_t i = 0; i < rows; i++, acc += EPI_TILE_N, sum += ld)
        for (int64_t j = 0; j < cols; j++)
            acc[j] = add ? sum[j] + acc[j] : sum[j];
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
            pack_sweep_at(r, EPI_SIDE_B, tile[1], s, b);
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
            add_sweeps(r, acc, rows, g->products > 1 ? EPI_TILE_PAIR + cols : cols, thread, s < EPI_SUM_TERMS,
                       last);
    }
}

/* What the micro-kernel can do with all of B as it lies in memory. */
static few_variant variant_of(const gemm_run *r) {
    const epi_gemm *g = r->g;
    const int step = g->terms > 1 ? 2 : 1;
    bool direct = g->direct_rows > 0, across = direct && g->micro->direct.across;
    for (int i = 1; i < g->operands; i += step) {
        const epi_walk *depth = &r->depth[i], *cols = &r->cols[i].walk;
        direct &= depth->count == 1 && depth->stride[0] == 1;
        across &= !r->cols[i].two && cols->count == 1 && cols->stride[0] == 1;
    }
    return direct ? DIRECT : across ? ACROSS : STAGED;
}

/* The tile's columns of a product, one or the second of a pair, by sweeps from `s` on: all of one term, up to
 * `end`. How many they are. */
static int64_t multiply_direct(const gemm_run *r, const int64_t tile[2], float *acc, int pair, int64_t s,
                               int64_t end, int thread) {
    const epi_gemm *g = r->g;
    sweep_place at = place_of(g, s);
    int from = 2 * at.term + 1 + pair;
    int64_t depth = epi_min64((end - s) * g->micro->kc, g->k[at.term] - at.k0);
    int64_t first = first_row(r, EPI_SIDE_B, tile[1]), cols = tile_rows(r, EPI_SIDE_B, tile[1]),
            size = (int64_t)epi_dtype_size(r->ref[from].type);
    const unsigned char *matrix = matrix_of(r, from, tile[1]);
    const void *column[EPI_TILE_N];
    for (int64_t j = 0; j < cols; j++)
        column[j] = matrix + (epi_columns_offset(&r->cols[from], first + j) + at.k0) * size;
    g->micro->direct.run(g->direct_rows, (int)cols, depth, sweep_at(r, EPI_SIDE_A, tile[0], s, thread).data,
                         column, r->ref[from].type, acc + pair * EPI_TILE_PAIR, EPI_TILE_N,
                         s % EPI_SUM_TERMS > 0);
    return epi_ceil_div(depth, g->micro->kc);
}

/* Some of the depth of the tile's columns, from k on, to `to`: as f32, a row for each depth, or in panels
 * where a micro-kernel wants more of the depth side by side. Returns the micro-kernel's ldb. Where columns
 * are neighbours in memory, it is read in stretches as long as the tile is wide, which are asked for early.
 */
static int64_t stage(const gemm_run *r, int from, int64_t tile, int64_t k, int64_t depth, unsigned char *to) {
    enum { EARLY = 8 };
    const epi_gemm *g = r->g;
    epi_ref matrix = r->ref[from], *ref = &matrix;
    matrix.data = (unsigned char *)(uintptr_t)matrix_of(r, from, tile);
    const epi_walk *walk = &r->depth[from];
    int64_t first = first_row(r, EPI_SIDE_B, tile), cols = tile_rows(r, EPI_SIDE_B, tile),
            size = (int64_t)epi_dtype_size(ref->type), at = epi_columns_offset(&r->cols[from], first);
    float tmp[EPI_TILE_N];
    if (g->micro->kb > 1) {
        pack_rows(r, EPI_SIDE_B, from, tile, k, depth, to);
        return (int64_t)g->micro->nr * g->micro->kb;
    }
    for (int64_t i = 0; i < depth; i++) {
        int64_t early = epi_min64(k + i + EARLY, g->k[term_of(g, from)] - 1);
        const unsigned char *line = ref->data + (at + epi_walk_offset(walk, early)) * size;
        for (int64_t x = 0; x < cols * size; x += LINE)
            __builtin_prefetch(line + x, 0, 2);
        epi_columns_load(g->epilogue.strips, (float *)(void *)to + i * EPI_TILE_N, ref,
                         epi_walk_offset(walk, k + i), &r->cols[from], first, cols, tmp);
    }
    return EPI_TILE_N;
}

/* The same by a little of the depth at a time. */
static void multiply_staged(const gemm_run *r, const int64_t tile[2], float *acc, int pair, int64_t s,
                            int thread) {
    const epi_gemm *g = r->g;
    const epi_micro *u = g->micro;
    int64_t size = (int64_t)epi_dtype_size(u->type), rows = tile_rows(r, EPI_SIDE_A, tile[0]),
            cols = tile_rows(r, EPI_SIDE_B, tile[1]);
    unsigned char *b = own_memory(r, thread) + g->packed[EPI_SIDE_B];
    float *sum = (float *)(void *)(own_memory(r, thread) + g->sweep_sums);
    packed_sweep a = sweep_at(r, EPI_SIDE_A, tile[0], s, thread);
    sweep_place at = place_of(g, s);
    bool add = s % EPI_SUM_TERMS > 0;
    acc += pair * EPI_TILE_PAIR;
    for (int64_t k = 0; k < a.depth; k += FEW_DEPTH) {
        int64_t depth = epi_min64(FEW_DEPTH, a.depth - k),
                ldb = stage(r, 2 * at.term + 1 + pair, tile[1], at.k0 + k, depth, b);
        epi_prefetch_cursor nothing = {.every = depth + 1, .left = depth + 1};
        for (int64_t j = 0; j < cols; j += u->nr)
            for (int64_t i = 0; i < rows; i += u->mr) {
                const unsigned char *x = a.data + (i * a.depth + k * u->mr) * size,
                                    *y = b + j * (u->kb > 1 ? depth : 1) * size;
                if (u->run_rows)
                    u->run_rows((int)epi_min64(u->mr, rows - i), depth, x, y, ldb, sum + i * EPI_TILE_N + j,
                                EPI_TILE_N, k > 0, &nothing);
                else
                    u->run(depth, x, y, acc + i * EPI_TILE_N + j, EPI_TILE_N, add || k > 0, &nothing);
            }
    }
    if (u->run_rows)
        add_sums(acc, sum, EPI_TILE_N, rows, cols, add);
}

/* The same of `count` tiles of neighbouring columns, a few of B's rows at a time along all these tiles. */
static void multiply_across(const gemm_run *r, const int64_t tile[2], int64_t count, float *acc, int pair,
                            int64_t s, int thread) {
    const epi_gemm *g = r->g;
    packed_sweep a = sweep_at(r, EPI_SIDE_A, tile[0], s, thread);
    sweep_place at = place_of(g, s);
    int from = 2 * at.term + 1 + pair;
    const epi_ref *ref = &r->ref[from];
    const unsigned char *matrix = matrix_of(r, from, tile[1]);
    const int64_t lda = g->direct_rows, ldc = count * EPI_TILE_N, rows = tile_rows(r, EPI_SIDE_A, tile[0]),
                  size = (int64_t)epi_dtype_size(ref->type), first = first_row(r, EPI_SIDE_B, tile[1]),
                  cols = epi_min64(g->n - first, count * g->epilogue.tile.tile_n),
                  start = epi_columns_offset(&r->cols[from], first);
    float *sum = (float *)(void *)(own_memory(r, thread) + g->sweep_sums);
    for (int64_t k = 0, depth; k < a.depth; k += depth) {
        const void *row[EPI_MICRO_ACROSS];
        depth = epi_min64(EPI_MICRO_ACROSS / size, a.depth - k);
        for (int64_t d = 0; d < 2 * depth; d++) {
            int64_t place = epi_min64(at.k0 + k + d, g->k[at.term] - 1);
            row[d] = matrix + (start + epi_walk_offset(&r->depth[from], place)) * size;
        }
        g->micro->direct.across((int)rows, (int)depth, cols, (const float *)(void *)a.data + k * lda, lda,
                                row, ref->type, sum, ldc, k > 0);
    }
    acc += pair * EPI_TILE_PAIR;
    for (int64_t t = 0; t < count; t++, acc += lda * EPI_TILE_N) {
        int64_t width = tile_rows(r, EPI_SIDE_B, tile[1] + t);
        add_sums(acc, sum, ldc, rows, width, s % EPI_SUM_TERMS > 0);
        sum += width;
    }
}

/* The same as multiply() for few rows, of `count` tiles of columns, each g->direct_rows rows behind the one
 * before. */
static void multiply_few(const gemm_run *r, const int64_t tile[2], int64_t count, float *acc, int thread) {
    const epi_gemm *g = r->g;
    int64_t all = sweeps(g);
    if (all == 0)
        memset(acc, 0, TILE_BYTES);
    for (int64_t s = 0; s < all; s += EPI_SUM_TERMS) {
        int64_t end = epi_min64(s + EPI_SUM_TERMS, all);
        for (int pair = 0; pair < g->products; pair++)
            for (int64_t i = s; i < end;)
                if (r->variant == DIRECT)
                    i += multiply_direct(r, tile, acc, pair, i, end, thread);
                else if (r->variant == ACROSS)
                    multiply_across(r, tile, count, acc, pair, i++, thread);
                else
                    multiply_staged(r, tile, acc, pair, i++, thread);
        for (int64_t t = 0; t < count && all > EPI_SUM_TERMS; t++) {
            int64_t cols = tile_rows(r, EPI_SIDE_B, tile[1] + t);
            add_sweeps(r, acc + t * g->direct_rows * EPI_TILE_N, tile_rows(r, EPI_SIDE_A, tile[0]),
                       g->products > 1 ? EPI_TILE_PAIR + cols : cols, thread, s == 0, end == all);
        }
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
        multiply_few(r, tile, count, acc, thread);
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

static void run_batches(gemm_run *r, const epi_ref *homes) {
    const epi_gemm *g = r->g;
    const epi_epilogue *e = &g->epilogue;
    epi_axes axes = epi_plan_batch(&g->plan);
    epi_walk batch = epi_walk_axes(&r->ref[1], &axes, e->tile.spec->sizes);
    for (int64_t b = 0; b < e->batches; b++) {
        r->ref[1].data =
            homes[g->operand[1]].data + epi_walk_offset(&batch, b) * (int64_t)epi_dtype_size(r->ref[1].type);
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

/* The index through which operands are read, by position. */
static void load_index(gemm_run *r, const epi_ref *ref) {
    const epi_gemm *g = r->g;
    const int64_t *sizes = g->epilogue.tile.spec->sizes;
    const epi_axes *positions = has_row_groups(g) ? &g->plan.rows : &g->plan.depth;
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
        bool taken = g->taken[side].count > 0, of_rows = taken && has_row_groups(g),
             of_depth = taken && !of_rows;
        r.depth[side] = epi_walk_axes(&r.ref[side], of_depth ? &g->taken[side] : depth_of(g, side), sizes);
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
    r.variant = g->few || has_row_groups(g) ? variant_of(&r) : STAGED;
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
        run_row_groups(&r);
    } else if (g->plan.group == EPI_GROUP_DEPTH) {
        run_depth_groups(&r);
    } else {
        run_batches(&r, homes);
    }
    epi_epilogue_end(&r.tiles, homes, g->threads);
}
