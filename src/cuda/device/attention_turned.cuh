// attention_turned.cuh: on Hopper, at most TURNED = 8 or 16 rows and the columns of a chunk that they see, for attention_split.cuh.
//
// The columns are the rows of wgmma, and the rows its columns: 64 keys times TURNED queries, 64 features of
// values times TURNED rows of weights. So almost no work is spent on rows that do not exist. Results are
// bitwise those of attention_online.cuh: every score, every sum of values and every sum of weights adds up
// the same numbers in the same order.
//
// A warp has 16 columns of either half of a tile. It transposes the results of wgmma through shared memory.
// Then a thread has columns of row lane / 4, and of row lane / 4 + 8, as the emitted functions of scores
// need them (SHARE columns at a time). Weights go to shared memory twice: as an operand, and as f32, where a
// thread for every row, lane of a quad and parity of 8 columns adds up what one accumulator of
// attention_softmax.cuh would.
//
// Shared memory: the rows, the ring, weights of two tiles as operands, scores and then weights of two tiles, the warps' largest scores,
// and the factors that sums grow by.

#define VALUES_BYTES PANELS_BYTES(VALUE_WIDTH, STREAM)
#define SLOT (KEYS_BYTES > VALUES_BYTES ? KEYS_BYTES : VALUES_BYTES)
#define ROWS_BYTES PANELS_BYTES(SCORE_DEPTH, TURNED)
#define WEIGHTS (ROWS_BYTES + SLOTS * SLOT)
#define WEIGHTS_BYTES PANELS_BYTES(STREAM, TURNED)
#define SCORES (WEIGHTS + 2 * WEIGHTS_BYTES)
#define PITCH (STREAM + 4)   // floats of a row of scores: a warp's words are in 32 banks
#define TOPS (SCORES + 2 * 4 * TURNED * PITCH)
#define GROWTH (TOPS + 4 * 4 * TURNED)
#define BARRIERS (GROWTH + 4 * TURNED)
#define BANDS (TURNED / 8)   // rows of a thread
#define FEATURES PANELS(VALUE_WIDTH)

// Scores of both halves of a tile; and the sums of values.
DEV void keys_product(float (&s)[2][TURNED / 2], u32 keys, u32 rows) {
  hold_all(s);
  wg_fence();
#pragma unroll
  for (int k = 0; k < (SCORE_DEPTH + 15) / 16; k++)
#pragma unroll
    for (int h = 0; h < 2; h++)
      wgmma_keys(s[h], operand_k(keys + h * 8192) + k / 4 * (STREAM * 128 >> 4) + k % 4 * 2, operand_k(rows) + k / 4 * (TURNED * 128 >> 4) + k % 4 * 2, k);
  wg_commit();
}
DEV void values_product(float (&o)[FEATURES][TURNED / 2], u32 values, u32 weights, int add) {
  hold_all(o);
  wg_fence();
#pragma unroll
  for (int k = 0; k < STREAM / 16; k++)
#pragma unroll
    for (int f = 0; f < FEATURES; f++)
      wgmma_values(o[f], operand_mn<STREAM>(values + f * STREAM * 128) + k * (2048 >> 4), operand_k(weights) + k / 4 * (TURNED * 128 >> 4) + k % 4 * 2, k | add);
  wg_commit();
}

// The rows of a chunk, as a thread knows them: of its own rows the reference, POST times it (or 0) and the largest score; and its share
// of one row's sum of weights.
struct Turned {
  u32 base;
  int t, lane, warp;
  float top[BANDS], by[BANDS], most[BANDS], sum;
  DEV Turned(u32 at, int thread) : base(at), t(thread), lane(thread & 31), warp(thread >> 5) {}
  DEV void begin() {
#pragma unroll
    for (int r = 0; r < BANDS; r++) top[r] = most[r] = -INF, by[r] = 0.f;
    sum = 0.f;
  }
  DEV u32 weights(int n) const { return base + WEIGHTS + (n & 1) * WEIGHTS_BYTES; }
  DEV u32 score_at(int n, int row, int col) const { return base + SCORES + 4 * (((n & 1) * TURNED + row) * PITCH + col); }
  // From accumulators to rows: x[h] has 16 columns of half h.
  DEV void turn(const float (&s)[2][TURNED / 2], float (&x)[2][8], int n) const {
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int i = 0; i < TURNED / 2; i++)
        sts32(score_at(n, i / 4 * 8 + 2 * (lane & 3) + (i & 1), 64 * h + 16 * warp + (lane >> 2) + 8 * (i >> 1 & 1)), __float_as_uint(s[h][i]));
    __syncwarp();
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int r = i & 1;
        uint2 w = make_uint2(0, 0);
        if (r < BANDS) w = lds64(score_at(n, (lane >> 2) + 8 * r, 64 * h + 16 * warp + 8 * (i >> 1) + 2 * (lane & 3)));
        x[h][4 * (i >> 1) + 2 * r] = __uint_as_float(w.x);
        x[h][4 * (i >> 1) + 2 * r + 1] = __uint_as_float(w.y);
      }
  }
  // The rows' references, from what the warps have of their largest scores; `growth` is what sums so far have to be multiplied by.
  DEV void refer(const float (&x)[2][8]) {
#pragma unroll
    for (int r = 0; r < BANDS; r++) {
      float m = x[0][2 * r];
#pragma unroll
      for (int i = 0; i < 8; i++) m = fmaxf(m, x[i >> 2][(i >> 1 & 1) * 4 + 2 * r + (i & 1)]);
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
      if ((lane & 3) == 0) sts32(base + TOPS + 4 * (warp * TURNED + (lane >> 2) + 8 * r), __float_as_uint(m));
    }
    bar_sync(1, 128);
#pragma unroll
    for (int r = 0; r < BANDS; r++) {
      const int row = (lane >> 2) + 8 * r;
      const float old = top[r];
      float m = -INF;
#pragma unroll
      for (int w = 0; w < 4; w++) m = fmaxf(m, __uint_as_float(lds32(base + TOPS + 4 * (w * TURNED + row))));
      most[r] = fmaxf(most[r], m);
      m = fmaxf(m, old);
      if (LAZY && !((m - old) * POST > (float)LAZY)) m = old;
      by[r] = m == -INF ? 0.f : m * POST;
      top[r] = m;
      if (warp == 0 && (lane & 3) == 0) sts32(base + GROWTH + 4 * row, __float_as_uint(old == m ? 1.f : ex2(__fmaf_rn(old, POST, -by[r]))));
    }
  }
  // From scores to weights of tile n.
  DEV void weigh(float (&x)[2][8], int n) const {
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int r = i & 1, at = 4 * (i >> 1) + 2 * r;
        if (r >= BANDS) continue;
        const int row = (lane >> 2) + 8 * r, col = 16 * warp + 8 * (i >> 1) + 2 * (lane & 3);
        const float w0 = ex2(__fmaf_rn(x[h][at], POST, -by[r])), w1 = ex2(__fmaf_rn(x[h][at + 1], POST, -by[r]));
        sts64(score_at(n, row, 64 * h + col), __float_as_uint(w0), __float_as_uint(w1));
        sts32(weights(n) + h * (TURNED * 128) + swizzled<128>(row, 2 * col), pack<HALF>(w0, w1));
      }
    fence_async();
    bar_sync(1, 128);
  }
  // A tile's scores, which are in s: their weights are there then.
  template <int CUT> DEV void take(const Params &P, const score::Rows &R, int row, int origin, int n, const float (&s)[2][TURNED / 2]) {
    float x[2][8];
    turn(s, x, n);
#pragma unroll
    for (int h = 0; h < 2; h++) score::first<CUT>(x[h], R, P, row, 0, origin + n * STREAM + 64 * h + 16 * warp, t, 0);
    refer(x);
    weigh(x, n);
  }
  // Its weights to the sums: of row t / 8.
  DEV void add_up(int n) {
    if (t / 8 >= TURNED) return;
    float add = 0.f;
#pragma unroll
    for (int m = 0; m < STREAM / 16; m++) {
      const uint2 w = lds64(score_at(n, t / 8, 16 * m + 8 * (t & 1) + (t & 6)));
      add += __uint_as_float(w.x);
      add += __uint_as_float(w.y);
    }
    sum *= __uint_as_float(lds32(base + GROWTH + 4 * (t / 8)));
    sum += add + __shfl_xor_sync(~0u, add, 1);
  }
  DEV void grow(float (&o)[FEATURES][TURNED / 2]) const {
#pragma unroll
    for (int i = 0; i < TURNED / 2; i++) {
      const float by = __uint_as_float(lds32(base + GROWTH + 4 * (i / 4 * 8 + 2 * (lane & 3) + (i & 1))));
#pragma unroll
      for (int f = 0; f < FEATURES; f++) o[f][i] *= by;
    }
  }
  // Sums of values to where each row has VALUE_WIDTH of them.
  DEV void store(const Params &P, const float (&o)[FEATURES][TURNED / 2], float *to) const {
#pragma unroll
    for (int f = 0; f < FEATURES; f++)
#pragma unroll
      for (int i = 0; i < TURNED / 2; i++) {
        const int row = i / 4 * 8 + 2 * (lane & 3) + (i & 1), feature = 64 * f + 16 * warp + (lane >> 2) + 8 * (i >> 1 & 1);
        if (row < BATCH_ROWS && feature < VALUE_WIDTH) to[row * VALUE_WIDTH + feature] = o[f][i];
      }
  }
  // At the chunk's end: a row's statistics, in one thread of eight.
  DEV float4 end() {
    if (warp == 0 && (lane & 3) == 0)
#pragma unroll
      for (int r = 0; r < BANDS; r++) {
        sts32(base + TOPS + 8 * ((lane >> 2) + 8 * r), __float_as_uint(top[r] == -INF ? -INF : by[r]));
        sts32(base + TOPS + 8 * ((lane >> 2) + 8 * r) + 4, __float_as_uint(most[r]));
      }
    bar_sync(1, 128);
    const uint2 w = t / 8 < TURNED ? lds64(base + TOPS + 8 * (t / 8)) : make_uint2(0, 0);
    float s = sum;
    s += __shfl_xor_sync(~0u, s, 2);
    s += __shfl_xor_sync(~0u, s, 4);
    return make_float4(__uint_as_float(w.x), s, __uint_as_float(w.y), 0.f);
  }
};

// Slots come in the order of attention_online.cuh, and all of them are given back.
DEV void weigh_turned(const Params &P, const score::Rows &R, u32 ring, u32 full, u32 empty, u32 &st, u32 &ph, int row, const Stretch &x,
                      float (&o)[FEATURES][TURNED / 2], Turned &rows) {
  float s[2][TURNED / 2] UNREAD;
  const int t = rows.t;
  auto release = [&](u32 slot) { if (t == 0) mbar_arrive(empty + 8 * slot); };
  mbar_wait(full + 8 * st, ph);
  keys_product(s, ring + st * SLOT, rows.base);
  wg_wait<0>();
  hold_all(s);
  release(st);
  ADVANCE(st, ph)
  rows.begin();
  rows.take<1>(P, R, row, x.origin, x.hi - 1, s);
  int add = 0;
  auto step = [&](auto cut, int n) {   // weights of tile n + 1 are there, and not added up yet
    const u32 ks = st;
    mbar_wait(full + 8 * st, ph);
    ADVANCE(st, ph)
    const u32 vs = st;
    keys_product(s, ring + ks * SLOT, rows.base);
    mbar_wait(full + 8 * st, ph);
    ADVANCE(st, ph)
    values_product(o, ring + vs * SLOT, rows.weights(n + 1), add);
    add = 1;
    rows.add_up(n + 1);   // while these are on their way
    wg_wait<1>();
    hold_all(s);
    release(ks);
    rows.take<decltype(cut)::value>(P, R, row, x.origin, n, s);
    wg_wait<0>();
    hold_all(o);
    release(vs);
    rows.grow(o);
  };
  walk_tiles(step, x.hi - 2, x.lo, x.from, x.to);
  mbar_wait(full + 8 * st, ph);
  values_product(o, ring + st * SLOT, rows.weights(x.lo), add);
  rows.add_up(x.lo);
  wg_wait<0>();
  hold_all(o);
  release(st);
  ADVANCE(st, ph)
}
