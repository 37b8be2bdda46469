/* gemm_few.c: tiles of few rows.
 *
 * With few rows (`few`) a tile of B is read once, and never stored in another form. There are three ways.
 *   - DIRECT: its depth is contiguous. The micro-kernel reads it in place, all sweeps of some columns before
 *     the next columns.
 *   - ACROSS: its columns are neighbours. The micro-kernel reads a little of the depth of the columns of
 *     several tiles at a time, so that it reads long pieces of B's rows. The tiles of such a group follow
 *     each other in the accumulator, each with the rows of a panel.
 *   - STAGED: all else. The thread copies a little of the depth of all its columns to the first-level cache
 *     at a time.
 * Sums are added up in one order. */
#include "cpu/product/gemm_internal.h"

#include <string.h>

/* The tile of some sweeps, at acc in the thread's memory, goes to sums that keep what rounding loses; after
 * the last ones these are the tile. */
void epi_gemm_add_sweeps(const gemm_run *r, float *acc, int64_t rows, int64_t cols, int thread, bool first,
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

/* What the micro-kernel can do with all of B as it lies in memory. */
few_variant epi_gemm_variant(const gemm_run *r) {
    const epi_gemm *g = r->g;
    const int step = g->terms > 1 ? 2 : 1;
    bool direct = g->direct_rows > 0, across = direct && g->micro->direct.across;
    for (int i = 1; i < g->operands; i += step) {
        const epi_walk *depth = &r->depth[i], *cols = &r->cols[i].walk;
        direct &= r->g->on_load[i] || (depth->count == 1 && depth->stride[0] == 1);
        across &= !r->g->on_load[i] && !r->cols[i].two && cols->count == 1 && cols->stride[0] == 1;
    }
    return direct ? DIRECT : across ? ACROSS : STAGED;
}

/* One sweep of operands of few bits: some columns at a time become f32 in the first-level cache. */
static int64_t multiply_widened(const gemm_run *r, const int64_t tile[2], float *acc, int from, int64_t s,
                                int thread) {
    const epi_gemm *g = r->g;
    enum { MOST = 384 }; /* the longest sweep of a kernel of f32 */
    sweep_place at = place_of(g, s);
    packed_sweep a = sweep_at(r, EPI_SIDE_A, tile[0], s, thread);
    const int64_t first = first_row(r, EPI_SIDE_B, tile[1]), cols = tile_rows(r, EPI_SIDE_B, tile[1]);
    if (g->integers) {
        epi_gemm_multiply_integers(r, from, tile, at.k0, a.depth, a.data, acc, s % EPI_SUM_TERMS > 0);
        return 1;
    }
    float wide[EPI_MICRO_DIRECT][MOST];
    const void *column[EPI_MICRO_DIRECT];
    for (int64_t j = 0; j < cols; j += EPI_MICRO_DIRECT) {
        const int64_t count = epi_min64(EPI_MICRO_DIRECT, cols - j);
        for (int64_t i = 0; i < count; i++) {
            column[i] = wide[i];
            epi_gemm_dequantise(r, EPI_SIDE_B, from, first + j + i, at.k0, a.depth, wide[i]);
        }
        g->micro->direct.run(g->direct_rows, (int)count, a.depth, a.data, column, EPI_F32, acc + j,
                             EPI_TILE_N, s % EPI_SUM_TERMS > 0);
    }
    return 1;
}

/* Bytes of so many elements of an operand. */
static int64_t element_bytes(const epi_gemm *g, int from, int64_t count, int64_t size) {
    return g->on_load[from] && g->dequant[from].bits == 4 ? count / 2 : count * size;
}

/* The tile's columns of a product, one or the second of a pair, by sweeps from `s` on: all of one term, up to
 * `end`. How many they are. */
static int64_t multiply_direct(const gemm_run *r, const int64_t tile[2], float *acc, int pair, int64_t s,
                               int64_t end, int thread) {
    const epi_gemm *g = r->g;
    sweep_place at = place_of(g, s);
    int from = 2 * at.term + 1 + pair;
    if (g->on_load[from] && !r->bits[from].group)
        return multiply_widened(r, tile, acc + pair * EPI_TILE_PAIR, from, s, thread);
    int64_t depth = epi_min64((end - s) * g->micro->kc, g->k[at.term] - at.k0);
    int64_t first = first_row(r, EPI_SIDE_B, tile[1]), cols = tile_rows(r, EPI_SIDE_B, tile[1]),
            size = (int64_t)epi_dtype_size(r->ref[from].type);
    const unsigned char *matrix = matrix_of(r, from, tile[1]);
    const void *column[EPI_TILE_N];
    int64_t offset[EPI_TILE_N];
    epi_gemm_offsets(&r->cols[from], first, cols, offset);
    for (int64_t j = 0; j < cols; j++)
        column[j] = matrix + element_bytes(g, from, offset[j] + at.k0, size);
    if (g->on_load[from]) {
        const void *parts[PARTS][EPI_TILE_N];
        epi_micro_bits bits = epi_gemm_bits(r, from, tile[1], at.k0, parts);
        (g->integers ? g->micro->direct.integers : g->micro->direct.bits)(
            g->direct_rows, (int)cols, depth, sweep_at(r, EPI_SIDE_A, tile[0], s, thread).data, column, &bits,
            acc + pair * EPI_TILE_PAIR, EPI_TILE_N, s % EPI_SUM_TERMS > 0);
        return epi_ceil_div(depth, g->micro->kc);
    }
    g->micro->direct.run(g->direct_rows, (int)cols, depth, sweep_at(r, EPI_SIDE_A, tile[0], s, thread).data,
                         column, r->ref[from].type, acc + pair * EPI_TILE_PAIR, EPI_TILE_N,
                         s % EPI_SUM_TERMS > 0);
    return epi_ceil_div(depth, g->micro->kc);
}

/* Of few bits a column's depth is a run. */
static int64_t stage_on_load(const gemm_run *r, int from, int64_t tile, int64_t k, int64_t depth, float *to) {
    const int64_t first = first_row(r, EPI_SIDE_B, tile), cols = tile_rows(r, EPI_SIDE_B, tile);
    float run[FEW_DEPTH];
    for (int64_t j = 0; j < cols; j++) {
        epi_gemm_dequantise(r, EPI_SIDE_B, from, first + j, k, depth, run);
        for (int64_t i = 0; i < depth; i++)
            to[i * EPI_TILE_N + j] = run[i];
    }
    return EPI_TILE_N;
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
    if (g->on_load[from])
        return stage_on_load(r, from, tile, k, depth, (float *)(void *)to);
    int64_t first = first_row(r, EPI_SIDE_B, tile), cols = tile_rows(r, EPI_SIDE_B, tile),
            size = (int64_t)epi_dtype_size(ref->type), at = epi_columns_offset(&r->cols[from], first);
    float tmp[EPI_TILE_N];
    if (g->micro->kb > 1) {
        epi_gemm_pack_rows(r, EPI_SIDE_B, from, tile, k, depth, to);
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
void epi_gemm_few(const gemm_run *r, const int64_t tile[2], int64_t count, float *acc, int thread) {
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
            epi_gemm_add_sweeps(r, acc + t * g->direct_rows * EPI_TILE_N, tile_rows(r, EPI_SIDE_A, tile[0]),
                                g->products > 1 ? EPI_TILE_PAIR + cols : cols, thread, s == 0, end == all);
        }
    }
}
