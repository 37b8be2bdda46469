// attention_mma.cuh: what the attention mainloops for every GPU from Ampere on share: tiles loaded by
// cp.async, and their products by ldmatrix and mma.sync.
//
// A block has TILE_M = 64 * GROUPS rows of one batch, and a warp BANDS bands of 16 of these. The rows'
// operands stay in shared memory while tiles of STREAM columns go through a ring. A block has one tile.
// attention_tiles.cuh gives the order of blocks.
//
// Operands lie in panels of 64 elements of 16 bits, 128 bytes a row, swizzled. If a head's features are not
// a multiple of 16, the last 8 of the last 16 are zeros. Rows and columns that do not exist are zeros too.
//
// The emitted part defines, of each operand (rows, keys, values; rows2):
//   keys_from(P, batch, group)   where its first row (column) of a batch, and of a group of columns, lies
//   keys_apart(P)                elements from one row to the next

#define WARPS (4 * GROUPS / BANDS)
#define THREADS (32 * WARPS)
#define SIXTEENS(n) (((n) + 15) / 16)

// The same number, of which the compiler does not know that: what follows from it is worked out where it is used, not kept in
// registers from tile to tile.
DEV int anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Asks for ROWS rows of a tensor, `first` and those after it, of `count` in all.
template <int FEATURES, int ROWS> DEV void load_tile(u32 to, const u16 *from, i64 apart, int first, int count) {
  const int t = anew(threadIdx.x), x = t % 8;
#pragma unroll
  for (int i = 0; i < (ROWS * 8 + THREADS - 1) / THREADS; i++) {
    const int r = t / 8 + i * (THREADS / 8);
    const bool there = first + r < count;
    const u16 *row = from + (there ? (first + r) * apart : 0);
#pragma unroll
    for (int p = 0; p < PANELS(FEATURES); p++)
      if (64 * p + 8 * x < 16 * SIXTEENS(FEATURES) && (ROWS * 8 % THREADS == 0 || r < ROWS)) {
        const bool in = 64 * p + 8 * x < FEATURES;
        cp_async<16>(to + p * ROWS * 128 + swizzled<128>(r, 16 * x), row + (in ? 64 * p + 8 * x : 0), there && in ? 16 : 0);
      }
  }
}

// s = rows * columns^T: a warp's rows and STREAM columns, DEPTH features deep. Every element adds up the depth in order, 16 at a time.
template <int DEPTH> DEV void score_product(float (&s)[BANDS][STREAM / 2], u32 rows, u32 columns) {
  const int lane = threadIdx.x & 31;
  const u32 at_a = rows + swizzled<128>((threadIdx.x >> 5) * 16 * BANDS + (lane & 15), lane & 16);
  const u32 at_b = columns + swizzled<128>((lane & 7) + (lane >> 4) * 8, (lane & 8) * 2);
#pragma unroll
  for (int h = 0; h < BANDS; h++)
#pragma unroll
    for (int i = 0; i < STREAM / 2; i++) s[h][i] = 0.f;
#pragma unroll
  for (int k = 0; k < SIXTEENS(DEPTH); k++) {
    u32 a[BANDS][4], b[4];
#pragma unroll
    for (int h = 0; h < BANDS; h++) ldm<false>((at_a ^ k % 4 << 5) + k / 4 * (TILE_M * 128) + h * 2048, a[h]);
#pragma unroll
    for (int j = 0; j < STREAM / 16; j++) {
      ldm<false>((at_b ^ k % 4 << 5) + k / 4 * (STREAM * 128) + j * 2048, b);
#pragma unroll
      for (int h = 0; h < BANDS; h++) {
        mma(&s[h][8 * j], a[h], b[0], b[1]);
        mma(&s[h][8 * j + 4], a[h], b[2], b[3]);
      }
    }
  }
}

// d += weights * columns: sums over STREAM columns, WIDTH features wide. Two neighbouring columns of a row are a word of the first
// operand as they lie in accumulators.
template <int WIDTH> DEV void value_product(float (&d)[BANDS][8 * SIXTEENS(WIDTH)], const float (&s)[BANDS][STREAM / 2], u32 columns) {
  const int lane = threadIdx.x & 31;
  const u32 at = columns + swizzled<128>(lane & 15, lane & 16);
#pragma unroll
  for (int k = 0; k < STREAM / 16; k++) {
    u32 a[BANDS][4], b[4];
#pragma unroll
    for (int h = 0; h < BANDS; h++)
#pragma unroll
      for (int i = 0; i < 4; i++) a[h][i] = pack<HALF>(s[h][8 * k + 2 * i], s[h][8 * k + 2 * i + 1]);
#pragma unroll
    for (int j = 0; j < SIXTEENS(WIDTH); j++) {
      ldm<true>((at ^ j % 4 << 5) + j / 4 * (STREAM * 128) + k * 2048, b);
#pragma unroll
      for (int h = 0; h < BANDS; h++) {
        mma(&d[h][8 * j], a[h], b[0], b[1]);
        mma(&d[h][8 * j + 4], a[h], b[2], b[3]);
      }
    }
  }
}
