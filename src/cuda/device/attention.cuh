// attention.cuh: what the attention mainloops of Hopper share: the numbers of their tiles, operands of wgmma, the way in and the way out.
//
// A block has TILE_M = 64 * GROUPS rows of one batch (a head of one sequence), 64 for each of GROUPS
// warpgroups that compute; one more warpgroup has the thread that feeds them by TMA. The rows' operands stay
// in shared memory while tiles of STREAM columns go through a ring. Rows are counted as batch.cuh says.
//
// Operands lie in panels of 64 elements of 16 bits, 128 bytes a row, swizzled. If a head's features are not
// a multiple of 64, TMA fills the last panel with zeros, and also rows and columns that do not exist.

DEV void bar_arrive(u32 id, u32 n) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory"); }

// ---- tiles

// The numbers of a block's tiles: the first is the block's own, the others are drawn from a counter, one tile ahead, by the thread
// that feeds the ring. Number j has place j % 2, with two mbarriers: `given`, and `taken`, with an arrival of every warp that takes numbers.
struct Numbers {
  u32 given, taken, number;
  DEV Numbers(u32 room) : given(room), taken(room + 16), number(room + 32) {}
  DEV void begin(u32 takers) const {
    for (int i = 0; i < 2; i++) { mbar_init(given + 8 * i, 1); mbar_init(taken + 8 * i, takers); }
  }
  DEV void give(u32 j, int w) const {
    mbar_wait(taken + 8 * (j & 1), (j >> 1 & 1) ^ 1);
    sts32(number + 4 * (j & 1), w);
    mbar_arrive(given + 8 * (j & 1));
  }
  DEV int take(u32 j, int lane) const {
    mbar_wait(given + 8 * (j & 1), j >> 1 & 1);
    const int w = __shfl_sync(~0u, lds32(number + 4 * (j & 1)), 0);
    __syncwarp();
    if (lane == 0) mbar_arrive(taken + 8 * (j & 1));
    return w;
  }
};
#define NUMBERS_BYTES 40

// ---- products

#if !TURNED
// d = rows * columns^T: 64 rows and STREAM columns, DEPTH features deep.
template <int DEPTH> DEV void score_product(float (&d)[STREAM / 2], u32 rows, u32 columns) {
  const u64 a = operand_k(rows), b = operand_k(columns);
  hold(d);
  wg_fence();
#pragma unroll
  for (int k = 0; k < (DEPTH + 15) / 16; k++)
    wgmma_score(d, a + k / 4 * (64 * 128 >> 4) + k % 4 * 2, b + k / 4 * (STREAM * 128 >> 4) + k % 4 * 2, k);
  wg_commit();
}
// Two neighbouring columns of a row are a word of the first operand as they lie in accumulators.
DEV void to_halves(u32 (&p)[STREAM / 4], const float (&s)[STREAM / 2]) {
#pragma unroll
  for (int i = 0; i < STREAM / 4; i++) p[i] = pack<HALF>(s[2 * i], s[2 * i + 1]);
}
#define VALUE_PRODUCT(name, wgmma, features) \
  DEV void name(float (&d)[((features) + 15) / 16 * 8], u32 (&p)[STREAM / 4], u32 columns, int add) { \
    const u64 b = operand_mn<STREAM>(columns); \
    hold(d); \
    hold(p); \
    wg_fence(); \
    _Pragma("unroll") for (int k = 0; k < STREAM / 16; k++) wgmma(d, p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3], b + k * (2048 >> 4), k | add); \
    wg_commit(); \
  }

// The sum over a tile's columns.
#define ACCUMULATORS ((VALUE_WIDTH + 15) / 16 * 8)
VALUE_PRODUCT(value_product, wgmma_value, VALUE_WIDTH)
#endif

// ---- the way in

#if NARROW_KEYS
#define KEYS_BYTES BYTE_PANELS(SCORE_DEPTH, STREAM)
#else
#define KEYS_BYTES PANELS_BYTES(SCORE_DEPTH, STREAM)
#endif
#define ADVANCE(s, ph) { if (++s == SLOTS) { s = 0; ph ^= 1; } }   // to the next slot of a ring

// A box of ROWS rows of all panels of a tensor, from these coordinates on: its row, the group of rows or the page where it has those,
// and its batch.
template <int FEATURES, int ROWS, int NARROW = 0, class... At> DEV void load_panels(u32 to, const TMap *map, u32 bar, At... at) {
  constexpr int PANEL = NARROW ? 128 : 64;
#pragma unroll
  for (int p = 0; p < (FEATURES + PANEL - 1) / PANEL; p++) tma_load(to + p * ROWS * 128, map, bar, PANEL * p, at...);
}
#if !FEW   // few rows come by threads, and their scores are of one product
// A warpgroup's rows of the first product, and a tile of its columns: those of its second term lie behind the first one's.
DEV void load_rows(const Params &P, u32 to, u32 bar, int row, int batch) {
  load_panels<SCORE_DEPTH - MORE_DEPTH, 64>(to, &P.map[0], bar, row, rows_batch0(P, batch), rows_batch1(P, batch));
#if MORE_DEPTH
  load_panels<MORE_DEPTH, 64>(to + PANELS_BYTES(SCORE_DEPTH, 64) - PANELS_BYTES(MORE_DEPTH, 64), &P.map[MORE_MAP], bar, row, more_rows_batch0(P, batch), more_rows_batch1(P, batch));
#endif
}
template <class... At> DEV void load_keys(const Params &P, u32 to, u32 bar, int batch, int z, int w, At... at) {
  load_panels<SCORE_DEPTH - MORE_DEPTH, STREAM>(to, &P.map[1], bar, at..., z, w);
#if MORE_DEPTH
  load_panels<MORE_DEPTH, STREAM>(to + KEYS_BYTES - PANELS_BYTES(MORE_DEPTH, STREAM), &P.map[MORE_MAP + 1], bar, at..., more_keys_batch0(P, batch), more_keys_batch1(P, batch));
#endif
}
#endif

// ---- the way out

// A warpgroup's accumulators as 16 bits, in panels of 64 rows.
template <int N> DEV void stage_panels(u32 to, const float (&d)[N], int t) {
  const u32 lane = t & 31, row = 16 * (t >> 5) + (lane & 15);
#pragma unroll
  for (int i = 0; i < N / 8; i++) {
    const u32 w[4] = {pack<HALF>(d[8 * i], d[8 * i + 1]), pack<HALF>(d[8 * i + 2], d[8 * i + 3]),
                      pack<HALF>(d[8 * i + 4], d[8 * i + 5]), pack<HALF>(d[8 * i + 6], d[8 * i + 7])};
    stm4(to + i / 4 * 8192 + swizzled<128>(row, (i % 4 * 2 + (lane >> 4)) << 4), w);
  }
}
template <int FEATURES> DEV void store_panels(const TMap *map, u32 from, int row, int z, int w) {
#pragma unroll
  for (int p = 0; p < PANELS(FEATURES); p++) tma_store(map, from + p * 8192, 64 * p, row, z, w);
}
