/* micro_amx.c: bf16 with AMX: two tiles of A against two tiles of B, four tiles of sums.
 *
 * A tile is 16 rows of 64 bytes. A tile of A is 16 rows of 32 elements of depth, as they lie in a
 * panel of interleave 32; a tile of B is 16 pairs of depth of 16 columns, interleave 2; a tile of
 * sums is 16 x 16 floats. */
#include "cpu/micro_parts.h"

#if defined(__x86_64__)
#include <immintrin.h>

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

static void run(int64_t k, const void *pa, const void *pb, float *c, int64_t ldc, bool add, epi_soon *soon) {
    const uint16_t *a = pa, *b = pb;
    const int64_t c_bytes = ldc * (int64_t)sizeof(float), b_bytes = NR * PAIR * (int64_t)sizeof(uint16_t);
    epi_soon next = *soon;
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
        epi_soon_ask(&next, DEPTH);
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
    *soon = next;
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
};
#endif
