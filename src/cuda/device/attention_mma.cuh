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
// Keys or values of 8 bits (NARROW_KEYS, NARROW_VALUES) have 128 elements in a line of a panel. ldmatrix takes two of
// them for one of 16 bits, and they are converted in registers. The order of a key's 16 features does not matter if rows
// have the same one; the sums of values are put in order at the end.
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
template <int FEATURES, int ROWS, class T> DEV void load_tile(u32 to, const T *from, i64 apart, int first, int count) {
  constexpr int UNIT = 16 / sizeof(T), LINE = 8 * UNIT;
  const int t = anew(threadIdx.x), x = t % 8;
#pragma unroll
  for (int i = 0; i < (ROWS * 8 + THREADS - 1) / THREADS; i++) {
    const int r = t / 8 + i * (THREADS / 8);
    const bool there = first + r < count;
    const T *row = from + (there ? (first + r) * apart : 0);
#pragma unroll
    for (int p = 0; p < (FEATURES + LINE - 1) / LINE; p++)
      if (LINE * p + UNIT * x < 16 * SIXTEENS(FEATURES) && (ROWS * 8 % THREADS == 0 || r < ROWS)) {
        const bool in = LINE * p + UNIT * x < FEATURES;
        const int bytes = FEATURES % UNIT ? min(16, (FEATURES - LINE * p - UNIT * x) * (int)sizeof(T)) : 16;
        cp_async<16>(to + p * ROWS * 128 + swizzled<128>(r, 16 * x), row + (in ? LINE * p + UNIT * x : 0), there && in ? bytes : 0);
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

#if NARROW_KEYS
// The same of keys that are bytes: of 16 features a thread has 4q to 4q + 3, which decode leaves as 4q, 4q + 2 and 4q + 1, 4q + 3.
template <int DEPTH> DEV void narrow_product(float (&s)[BANDS][STREAM / 2], u32 rows, u32 columns) {
  constexpr int STEPS = SIXTEENS(DEPTH);
  const int lane = threadIdx.x & 31, first = (threadIdx.x >> 5) * 16 * BANDS + (lane >> 2);
#pragma unroll
  for (int h = 0; h < BANDS; h++)
#pragma unroll
    for (int i = 0; i < STREAM / 2; i++) s[h][i] = 0.f;
#pragma unroll
  for (int k = 0; k < STEPS; k += 2) {
    u32 a[2][BANDS][4];
#pragma unroll
    for (int i = 0; i < 2 && k + i < STEPS; i++)
#pragma unroll
      for (int h = 0; h < BANDS; h++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const uint2 w = lds64(rows + (k + i) / 4 * (TILE_M * 128) + swizzled<128>(first + 16 * h + 8 * r, (k + i) % 4 * 32 + 8 * (lane & 3)));
          a[i][h][r] = __byte_perm(w.x, w.y, 0x5410);
          a[i][h][2 + r] = __byte_perm(w.x, w.y, 0x7632);
        }
#pragma unroll
    for (int j = 0; j < STREAM / 16; j++) {
      u32 w[4], b[2];
      ldm<false>(columns + k / 8 * (STREAM * 128) + j * 2048 + swizzled<128>(lane & 15, k % 8 * 16 + (lane & 16)), w);
#pragma unroll
      for (int i = 0; i < 4 && k + i / 2 < STEPS; i++) {
        decode<KEYS_TYPE>(w[i], b);
#pragma unroll
        for (int h = 0; h < BANDS; h++) mma(&s[h][8 * j + 4 * (i & 1)], a[i / 2][h], b[0], b[1]);
      }
    }
  }
}
#endif

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

#if NARROW_VALUES
// The same of values that are bytes. Turned, a word has features 2g and 2g + 1 of two keys: of 16 features a thread's sums are those of 4q, 4q + 2
// and of 4q + 1, 4q + 3 instead of 2q, 2q + 1 and of these 8 further on.
template <int WIDTH> DEV void narrow_values(float (&d)[BANDS][8 * SIXTEENS(WIDTH)], const float (&s)[BANDS][STREAM / 2], u32 columns) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int k = 0; k < STREAM / 16; k++) {
    u32 a[BANDS][4];
#pragma unroll
    for (int h = 0; h < BANDS; h++)
#pragma unroll
      for (int i = 0; i < 4; i++) a[h][i] = pack<HALF>(s[h][8 * k + 2 * i], s[h][8 * k + 2 * i + 1]);
#pragma unroll
    for (int j = 0; j < SIXTEENS(WIDTH); j += 2) {
      u32 w[4], b[2][2];
      ldm<true>(columns + j / 8 * (STREAM * 128) + k * 2048 + swizzled<128>(lane & 15, j % 8 * 16 + (lane & 16)), w);
#pragma unroll
      for (int i = 0; i < 2 && j + i < SIXTEENS(WIDTH); i++) {
        decode<VALUES_TYPE>(w[2 * i], b[0]);
        decode<VALUES_TYPE>(w[2 * i + 1], b[1]);
#pragma unroll
        for (int h = 0; h < BANDS; h++) {
          mma(&d[h][8 * (j + i)], a[h], b[0][0], b[1][0]);
          mma(&d[h][8 * (j + i) + 4], a[h], b[0][1], b[1][1]);
        }
      }
    }
  }
}
// In the order of all others.
template <int N> DEV void order_features(float (&d)[N]) {
  const int lane = threadIdx.x & 31, from = (lane & ~3) + ((lane & 3) >> 1);
#pragma unroll
  for (int j = 0; j < N / 8; j++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float *const x = &d[8 * j + 2 * r];
      const u32 mine[4] = {__float_as_uint(x[0]), __float_as_uint(x[4]), __float_as_uint(x[1]), __float_as_uint(x[5])};
#pragma unroll
      for (int i = 0; i < 4; i++) {   // element i & 1 of half i >> 1
        const u32 even = __shfl_sync(~0u, mine[i & 1], from + (i & 2)), odd = __shfl_sync(~0u, mine[2 + (i & 1)], from + (i & 2));
        x[4 * (i >> 1) + (i & 1)] = __uint_as_float(lane & 1 ? odd : even);
      }
    }
}
#endif
