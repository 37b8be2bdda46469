/* micro_amx.c: bf16 with AMX: two tiles of A against two tiles of B, four tiles of sums.
 *
 * A tile is 16 rows of 64 bytes. A tile of A is 16 rows of 32 elements of depth, as they lie in a
 * panel of interleave 32; a tile of B is 16 pairs of depth of 16 columns, interleave 2; a tile of
 * sums is 16 x 16 floats. */
#include "cpu/micro/micro_internal.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

enum { SIDE = 16, MR = 2 * SIDE, NR = 2 * SIDE, DEPTH = 32, PAIR = 2, ROW_BYTES = 64, TILES = 8 };

/* The operand of LDTILECFG. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* Constant, so that no compiler can think its bytes unread: the intrinsic names only the first few. */
static const tile_config config = {
    .palette = 1,
    .row_bytes = {ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES},
    .rows = {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE},
};

static void enter(void) {
    _tile_loadconfig(&config);
}

static void leave(void) {
    _tile_release();
}

static void run(int64_t k, const void *pa, const void *pb, float *c, int64_t ldc, bool add,
                epi_prefetch_cursor *cursor) {
    const uint16_t *a = pa, *b = pb;
    const int64_t c_bytes = ldc * (int64_t)sizeof(float), b_bytes = NR * PAIR * (int64_t)sizeof(uint16_t);
    epi_prefetch_cursor next = *cursor;
    float *c1 = c + SIDE * ldc;
    if (add) {
        _tile_loadd(0, c, c_bytes);
        _tile_loadd(1, c + SIDE, c_bytes);
        _tile_loadd(2, c1, c_bytes);
        _tile_loadd(3, c1 + SIDE, c_bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (; k > 0; k -= DEPTH, a += MR * DEPTH, b += NR * DEPTH) {
        epi_prefetch_step(&next, DEPTH);
        _tile_loadd(6, b, b_bytes);
        _tile_loadd(4, a, ROW_BYTES);
        _tile_loadd(7, b + SIDE * PAIR, b_bytes);
        _tile_loadd(5, a + SIDE * DEPTH, ROW_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_bytes);
    _tile_stored(1, c + SIDE, c_bytes);
    _tile_stored(2, c1, c_bytes);
    _tile_stored(3, c1 + SIDE, c_bytes);
    for (int i = 0; i < MR; i++)
        EPI_WRITTEN(c + i * ldc, NR * sizeof(float));
    *cursor = next;
}

/* ---- few rows against B as it lies in memory ---- */

/* Are sixteen columns equally far apart? Then their depth is a tile as it lies in memory. */
static bool is_even(const void *const b[], int cols) {
    bool even = cols == SIDE;
    for (int j = 2; j < SIDE && even; j++)
        even = (const char *)b[j] - (const char *)b[j - 1] == (const char *)b[1] - (const char *)b[0];
    return even;
}

/* Else, and where the depth ends, it is copied, with zeros behind it. */
static void copy_tile(const void *const b[], int cols, int64_t k, int64_t left, uint16_t copy[SIDE][DEPTH]) {
    memset(copy, 0, sizeof(uint16_t[SIDE][DEPTH]));
    for (int j = 0; j < cols; j++)
        memcpy(copy[j], (const uint16_t *)b[j] + k, (size_t)(left < DEPTH ? left : DEPTH) * sizeof **copy);
    __asm__ volatile("" ::: "memory"); /* it is whole before the tile is loaded */
}

/* Sixteen columns' next 32 of the depth, from k on, as a tile is loaded from. */
typedef struct depth_tile {
    const void *data;
    int64_t step;
} depth_tile;

static depth_tile tile_of(const void *const b[], int cols, bool even, int64_t k, int64_t left,
                          uint16_t copy[SIDE][DEPTH]) {
    if (even && left >= DEPTH)
        return (depth_tile){(const uint16_t *)b[0] + k, (const char *)b[1] - (const char *)b[0]};
    copy_tile(b, cols, k, left, copy);
    return (depth_tile){copy, ROW_BYTES};
}

/* The product is turned around: columns of B are the rows of its first operand, which takes its depth as it
 * lies, and the rows of A, in pairs of the depth, are the second's columns: all 16 of a tile, of which those behind the
 * panel's rows are what comes next there, and nobody reads the sums. Every sum is made of the same products in the same
 * order. Two tiles of columns are at work at once, as a sum waits for itself. */
static void run_direct(int rows, int cols, int64_t k, const void *a, const void *const b[], epi_dtype type,
                       float *c, int64_t ldc, bool add) {
    (void)type;
    _Alignas(64) uint16_t copy[2][SIDE][DEPTH];
    _Alignas(64) float sum[2 * SIDE][SIDE] = {{0}};
    const int64_t row_bytes = rows * PAIR * (int64_t)sizeof(uint16_t);
    for (int j = 0; j < cols; j += 2 * SIDE) {
        const int all = cols - j < 2 * SIDE ? cols - j : 2 * SIDE, here = all < SIDE ? all : SIDE,
                  there = all - here;
        for (int x = 0; x < 2 * SIDE; x++)
            for (int i = 0; i < rows; i++)
                sum[x][i] = add ? c[i * ldc + j + x] : 0;
        _tile_loadd(0, sum, ROW_BYTES);
        _tile_loadd(1, sum[SIDE], ROW_BYTES);
        const bool even[2] = {is_even(b + j, here), is_even(b + j + SIDE, there)};
        const int64_t next = cols > 1 ? 2 * SIDE * ((const char *)b[1] - (const char *)b[0]) : 0;
        for (int64_t k0 = 0; k0 < k; k0 += DEPTH) {
            for (int i = 0; i < all; i++) /* what comes next, of the next columns */
                __builtin_prefetch((const char *)((const uint16_t *)b[j + i] + k0) + next, 0, 2);
            const depth_tile first = tile_of(b + j, here, even[0], k0, k - k0, copy[0]),
                             second = tile_of(b + j + SIDE, there, even[1], k0, k - k0, copy[1]);
            _tile_loadd(6, (const uint16_t *)a + k0 * rows, row_bytes);
            _tile_loadd(4, first.data, first.step);
            _tile_loadd(5, second.data, second.step);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 5, 6);
        }
        _tile_stored(0, sum, ROW_BYTES);
        _tile_stored(1, sum[SIDE], ROW_BYTES);
        EPI_WRITTEN(sum, sizeof sum);
        for (int i = 0; i < rows; i++)
            for (int x = 0; x < 2 * SIDE; x++)
                c[i * ldc + j + x] = sum[x][i];
    }
}

const epi_micro epi_micro_amx = {
    .name = "amx",
    .type = EPI_BF16,
    .mr = MR,
    .nr = NR,
    .ka = DEPTH,
    .kb = PAIR,
    .depth = DEPTH,
    .kc = 1024,
    .usable = epi_has_amx,
    .enter = enter,
    .leave = leave,
    .run = run,
    .direct = {.rows = {1, 4, SIDE}, .ka = PAIR, .run = run_direct},
};
#endif
