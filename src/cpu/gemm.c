/* gemm.c: the loops around the micro-kernel.
 *
 * Both operands are packed into panels of full depth. A tile of the product belongs to one thread:
 * it is accumulated in a private buffer that stays in the second-level cache, sweep by sweep along
 * the depth, and then handed to the epilogue. The order of additions follows from the micro-kernel
 * alone, so tiles, threads and neighbouring rows never change a result's bits. */
#include "cpu/gemm.h"

#include <string.h>

#include "cpu/parallel.h"

enum { PACK_LIMIT = 64 << 20 }; /* bytes of one packed operand at a time */

typedef struct gemm_run {
    const epi_gemm *g;
    epi_tile_run tiles;
    epi_ref ref[2];
    epi_walk rows;     /* of operand 0 along M */
    epi_columns cols;  /* of operand 1 along N */
    epi_walk depth[2];
    int64_t *koff[2];  /* element offsets along K where it is no single run, else NULL */
    unsigned char *scratch;
    int64_t row0, col0; /* first tile of the packed blocks */
    int64_t col_tiles;  /* tiles of the packed block of B */
} gemm_run;

static int64_t panels(int64_t rows, int panel) { return epi_ceil_div(rows, panel); }

static int tile_size(const epi_gemm *g, int side) { return side == EPI_SIDE_A ? EPI_TILE_M : g->epilogue.tile_n; }

/* Bytes of one packed tile of an operand. */
static int64_t packed_tile(const epi_gemm *g, int side) {
    int panel = side == EPI_SIDE_A ? g->micro->mr : g->micro->nr;
    return panels(tile_size(g, side), panel) * panel * g->packed_k * (int64_t)epi_dtype_size(g->micro->type);
}

/* Reserves bytes of scratch; the first overflow sticks as -1. */
static int64_t reserve(int64_t *total, int64_t count, int64_t size) {
    int64_t at = *total, bytes;
    if (at < 0 || !epi_mul_size(count, size, &bytes) || !epi_add_size(at, bytes, total) || !epi_add_size(*total, 63, total))
        return *total = -1;
    *total -= *total % 64;
    return at;
}

epi_status epi_gemm_build(epi_arena *arena, const epi_spec *spec, const epi_plan *plan, const epi_strips *strips,
                          const epi_dtype *types, const epi_tile_root *roots, int root_count, epi_gemm *g, epi_error *err) {
    *g = (epi_gemm){.plan = *plan, .threads = spec->threads};
    const epi_node *n = &spec->graph->nodes[plan->product];
    g->operand[0] = n->arg[plan->row_arg];
    g->operand[1] = n->arg[!plan->row_arg];
    g->micro = epi_micro_choose(types[0], types[1], spec->micro);
    if (!g->micro)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "there is no micro-kernel '%s' here for %s x %s operands",
                        spec->micro ? spec->micro : "", epi_dtype_name(types[0]), epi_dtype_name(types[1]));
    epi_status status = epi_epilogue_build(arena, spec, &g->plan, strips, roots, root_count, &g->epilogue, err);
    if (status != EPI_OK)
        return status;
    g->m = g->epilogue.m;
    g->n = g->epilogue.n;
    g->k = epi_axes_size(&plan->depth, spec->sizes);
    g->packed_k = epi_round_up(g->k, g->micro->depth);
    int64_t total = 0, tile[2] = {packed_tile(g, EPI_SIDE_A), packed_tile(g, EPI_SIDE_B)};
    g->row_block = epi_max64(1, epi_min64(g->epilogue.row_tiles, PACK_LIMIT / epi_max64(1, tile[0])));
    g->col_block = epi_max64(1, epi_min64(g->epilogue.col_tiles, PACK_LIMIT / epi_max64(1, tile[1])));
    g->packed[0] = reserve(&total, g->row_block, tile[0]);
    g->packed[1] = reserve(&total, g->col_block, tile[1]);
    for (int side = 0; side < 2; side++)
        g->depth[side] = reserve(&total, plan->depth.count > 1 ? g->k : 0, sizeof(int64_t));
    g->shared = reserve(&total, 1, epi_epilogue_shared(&g->epilogue));
    g->partials = reserve(&total, g->epilogue.partials, sizeof(float));
    g->thread_bytes = (int64_t)sizeof(float) * EPI_TILE_M * EPI_TILE_N + epi_epilogue_private(&g->epilogue);
    g->per_thread = reserve(&total, g->threads, g->thread_bytes);
    g->scratch = total;
    if (total < 0)
        return epi_fail(err, EPI_ERR_MEMORY, "the workspace of this product overflows 64 bits");
    return EPI_OK;
}

/* ---- packing ---- */

static void pack_tile(gemm_run *r, int side, int64_t tile, int64_t slot) {
    const epi_gemm *g = r->g;
    int size = tile_size(g, side);
    int64_t first = tile * size, row[EPI_TILE_N];
    int64_t count = epi_min64(size, (side == EPI_SIDE_A ? g->m : g->n) - first);
    for (int64_t i = 0; i < count; i++)
        row[i] = side == EPI_SIDE_A ? epi_walk_offset(&r->rows, first + i) : epi_columns_offset(&r->cols, first + i);
    epi_pack_source src = {.data = r->ref[side].data, .type = r->ref[side].type, .row = row, .rows = count, .k = g->k,
                           .kstride = r->depth[side].count ? r->depth[side].step[r->depth[side].count - 1] : 1,
                           .koff = r->koff[side]};
    epi_pack(g->micro, side, &src, r->scratch + g->packed[side] + slot * packed_tile(g, side));
}

static void pack_a(void *ctx, int64_t item, int thread) {
    (void)thread;
    gemm_run *r = ctx;
    pack_tile(r, EPI_SIDE_A, r->row0 + item, item);
}

static void pack_b(void *ctx, int64_t item, int thread) {
    (void)thread;
    gemm_run *r = ctx;
    pack_tile(r, EPI_SIDE_B, r->col0 + item, item);
}

/* ---- tiles ---- */

/* Accumulates one tile: for each sweep along the depth, every panel of B against every panel of A. */
static void multiply(const epi_gemm *g, const unsigned char *a, const unsigned char *b, float *acc, int rows, int cols) {
    const epi_micro *u = g->micro;
    int64_t size = (int64_t)epi_dtype_size(u->type);
    int64_t a_panel = u->mr * g->packed_k * size, b_panel = u->nr * g->packed_k * size;
    if (g->packed_k == 0)
        memset(acc, 0, sizeof(float) * EPI_TILE_M * EPI_TILE_N);
    for (int64_t k0 = 0; k0 < g->packed_k; k0 += u->kc) {
        int64_t depth = epi_min64(u->kc, g->packed_k - k0);
        for (int64_t j = 0; j < panels(cols, u->nr); j++)
            for (int64_t i = 0; i < panels(rows, u->mr); i++)
                u->run(depth, a + i * a_panel + k0 * u->mr * size, b + j * b_panel + k0 * u->nr * size,
                       acc + i * u->mr * EPI_TILE_N + j * u->nr, EPI_TILE_N, k0 > 0);
    }
}

static void run_tile(void *ctx, int64_t item, int thread) {
    gemm_run *r = ctx;
    const epi_gemm *g = r->g;
    int64_t ti = item / r->col_tiles, tj = item % r->col_tiles;
    int64_t m0 = (r->row0 + ti) * EPI_TILE_M, n0 = (r->col0 + tj) * g->epilogue.tile_n;
    int rows = (int)epi_min64(EPI_TILE_M, g->m - m0), cols = (int)epi_min64(g->epilogue.tile_n, g->n - n0);
    unsigned char *mine = r->scratch + g->per_thread + thread * g->thread_bytes;
    float *acc = (float *)(void *)mine;
    if (g->micro->enter)
        g->micro->enter();
    multiply(g, r->scratch + g->packed[0] + ti * packed_tile(g, EPI_SIDE_A),
             r->scratch + g->packed[1] + tj * packed_tile(g, EPI_SIDE_B), acc, rows, cols);
    if (g->micro->leave)
        g->micro->leave();
    epi_epilogue_tile(&r->tiles, acc, m0, rows, n0, cols, mine + sizeof(float) * EPI_TILE_M * EPI_TILE_N);
}

void epi_gemm_run(const epi_gemm *g, const epi_ref *homes, const epi_ref *tensors, unsigned char *scratch) {
    const epi_epilogue *e = &g->epilogue;
    const int64_t *sizes = e->spec->sizes;
    gemm_run r = {.g = g, .scratch = scratch};
    for (int side = 0; side < 2; side++) {
        r.ref[side] = homes[g->operand[side]];
        r.depth[side] = epi_walk_axes(&r.ref[side], &g->plan.depth, sizes);
        if (r.depth[side].count > 1) {
            r.koff[side] = (int64_t *)(void *)(scratch + g->depth[side]);
            for (int64_t k = 0; k < g->k; k++)
                r.koff[side][k] = epi_walk_offset(&r.depth[side], k);
        }
    }
    r.rows = epi_walk_axes(&r.ref[0], &g->plan.rows, sizes);
    r.cols = epi_columns_of(&g->plan, &r.ref[1], sizes, e->acc_scale);
    epi_epilogue_begin(&r.tiles, e, homes, tensors, scratch + g->shared, (float *)(void *)(scratch + g->partials));
    for (r.col0 = 0; r.col0 < e->col_tiles; r.col0 += g->col_block) {
        r.col_tiles = epi_min64(g->col_block, e->col_tiles - r.col0);
        epi_parallel_for(g->threads, r.col_tiles, pack_b, &r);
        for (r.row0 = 0; r.row0 < e->row_tiles; r.row0 += g->row_block) {
            int64_t row_tiles = epi_min64(g->row_block, e->row_tiles - r.row0);
            epi_parallel_for(g->threads, row_tiles, pack_a, &r);
            epi_parallel_for(g->threads, row_tiles * r.col_tiles, run_tile, &r);
        }
    }
    epi_epilogue_end(&r.tiles, homes, g->threads);
}
