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
// Keys or values of 8 bits (NARROW_KEYS, NARROW_VALUES) come to registers, as words that ldmatrix takes for two 16-bit
// elements each, and are converted there: wgmma takes its first operand from registers, too. The order of a key's
// features does not matter if rows have the same one (feature_order), and that of the features of values is known
// where sums are stored (feature_of). STAGED values of columns (scales) come with a tile: other warps bring them.
//
// Shared memory: the rows, the ring, weights of two tiles as operands, scores and then weights of two tiles, the warps' largest scores,
// the factors that sums grow by, the barriers, and what comes with tiles.

#if NARROW_VALUES
#define VALUES_BYTES BYTE_PANELS(VALUE_WIDTH, STREAM)
#else
#define VALUES_BYTES PANELS_BYTES(VALUE_WIDTH, STREAM)
#endif
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
#define RELEASES (NARROW_KEYS || NARROW_VALUES ? 4 : 1)   // arrivals that give a slot back: one a warp, or one
#define STAGES 4     // of what comes with a tile: from `stage_full` (the warp that brought it) to `stage_empty` it belongs to those who compute
#define STAGERS 3    // warps that bring it, in turn
#define STAGE_BARRIERS (BARRIERS + 16 * SLOTS)
#define STAGED_AT (STAGE_BARRIERS + 16 * STAGES)

// Scores of both halves of a tile; and the sums of values.
#if NARROW_KEYS
#define KEY_STEPS ((SCORE_DEPTH + 15) / 16)
typedef u32 KeyWords[2][KEY_STEPS][4];
// Keys of the halves as wgmma's operand. Of 16 features a thread has 4q to 4q + 3, which decode leaves as 4q, 4q + 2 and 4q + 1, 4q + 3.
DEV void load_keys_words(KeyWords &a, u32 keys, int t) {
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int k = 0; k < KEY_STEPS; k += 2) {
      u32 w[4], to[4][2];
      ldm<false>(keys + swizzled<128>(64 * h + 16 * (t >> 5) + (t & 15), 16 * k + (t & 16)), w);
#pragma unroll
      for (int i = 0; i < 4; i++) decode<KEYS_TYPE>(w[i], to[i]);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        a[h][k][i] = to[i & 1][i >> 1];
        if (k + 1 < KEY_STEPS) a[h][(k + 1) % KEY_STEPS][i] = to[2 + (i & 1)][i >> 1];
      }
    }
}
DEV void keys_product(float (&s)[2][TURNED / 2], KeyWords &a, u32 rows) {
  hold_all(s);
  hold_all(a[0]);
  hold_all(a[1]);
  wg_fence();
#pragma unroll
  for (int k = 0; k < KEY_STEPS; k++)
#pragma unroll
    for (int h = 0; h < 2; h++)
      wgmma_keys(s[h], a[h][k][0], a[h][k][1], a[h][k][2], a[h][k][3], operand_k(rows) + k / 4 * (TURNED * 128 >> 4) + k % 4 * 2, k);
  wg_commit();
}
// 16 features of a row, in words, in that order.
DEV void feature_order(u32 (&to)[8], const u32 (&w)[8]) {
#pragma unroll
  for (int q = 0; q < 4; q++) {
    to[q] = __byte_perm(w[2 * q], w[2 * q + 1], 0x5410);
    to[4 + q] = __byte_perm(w[2 * q], w[2 * q + 1], 0x7632);
  }
}
#else
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
#endif
#if NARROW_VALUES
typedef u32 ValueWords[STREAM / 16][FEATURES][4];
// Values as wgmma's operand. Turned, a word has two features 2g and 2g + 1 of two keys: the features of rows g and g + 8.
DEV void load_values_words(ValueWords &a, u32 values, int t) {
#pragma unroll
  for (int p = 0; p < STREAM / 16 * FEATURES; p += 2) {   // two of the operand's tiles: features, or keys
    u32 w[4], to[4][2];
    const int more = t >> 4 & 1, k = p / FEATURES + (FEATURES == 1 ? more : 0), f = FEATURES == 1 ? 0 : more;
    ldm<true>(values + swizzled<128>(16 * k + (t & 15), 64 * f + 16 * (t >> 5)), w);
#pragma unroll
    for (int i = 0; i < 4; i++) decode<VALUES_TYPE>(w[i], to[i]);
#pragma unroll
    for (int i = 0; i < 8; i++) a[(p + i / 4) / FEATURES][(p + i / 4) % FEATURES][i % 4] = to[i / 4 * 2 + i % 4 / 2][i & 1];
  }
}
DEV int feature_of(int row) { return row / 16 * 16 + row % 8 * 2 + (row >> 3 & 1); }
DEV void values_product(float (&o)[FEATURES][TURNED / 2], ValueWords &a, u32 weights, int add) {
  hold_all(o);
#pragma unroll
  for (int k = 0; k < STREAM / 16; k++) hold_all(a[k]);
  wg_fence();
#pragma unroll
  for (int k = 0; k < STREAM / 16; k++)
#pragma unroll
    for (int f = 0; f < FEATURES; f++)
      wgmma_values(o[f], a[k][f][0], a[k][f][1], a[k][f][2], a[k][f][3], operand_k(weights) + k / 4 * (TURNED * 128 >> 4) + k % 4 * 2, k | add);
  wg_commit();
}
#else
DEV int feature_of(int row) { return row; }
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
#endif

// The rows of a chunk, as a thread knows them: of its own rows the reference, POST times it (or 0) and the largest score; and its share
// of one row's sum of weights.
struct Turned {
  u32 base;
  int t, lane, warp;
  u32 tile = 0;   // tiles so far, of all items
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
  // From scores to weights of tile n; `other` multiplies them by what their sum does not have.
  template <class Other> DEV void weigh(float (&x)[2][8], int n, const Other &other) const {
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int r = i & 1, at = 4 * (i >> 1) + 2 * r;
        if (r >= BANDS) continue;
        const int row = (lane >> 2) + 8 * r, col = 16 * warp + 8 * (i >> 1) + 2 * (lane & 3);
        x[h][at] = ex2(__fmaf_rn(x[h][at], POST, -by[r]));
        x[h][at + 1] = ex2(__fmaf_rn(x[h][at + 1], POST, -by[r]));
        sts64(score_at(n, row, 64 * h + col), __float_as_uint(x[h][at]), __float_as_uint(x[h][at + 1]));
      }
      other(x[h], h);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int r = i & 1, at = 4 * (i >> 1) + 2 * r;
        if (r < BANDS) sts32(weights(n) + h * (TURNED * 128) + swizzled<128>((lane >> 2) + 8 * r, 2 * (16 * warp + 8 * (i >> 1) + 2 * (lane & 3))), pack<HALF>(x[h][at], x[h][at + 1]));
      }
    }
    fence_async();
    bar_sync(1, 128);
  }
  // A tile's scores, which are in s: their weights are there then.
  template <int CUT> DEV void take(const Params &P, const score::Rows &R, int row, int origin, int n, const float (&s)[2][TURNED / 2]) {
    float x[2][8];
    turn(s, x, n);
#if STAGED
    const u32 at = tile % STAGES, full = base + STAGE_BARRIERS + 8 * at, staged = base + STAGED_AT + at * 4 * STAGED * STREAM;
    mbar_wait(full, tile / STAGES & 1);
#else
    const u32 staged = 0;
#endif
    auto columns = [&](int h) { return 64 * h + 16 * warp; };
#pragma unroll
    for (int h = 0; h < 2; h++) score::first<CUT>(x[h], R, P, row, 0, origin + n * STREAM + columns(h), t, staged + 4 * columns(h));
    refer(x);
    weigh(x, n, [&](float (&w)[8], int h) {
#if FACTOR
      score::second<CUT>(w, R, P, row, 0, origin + n * STREAM + columns(h), t, staged + 4 * columns(h));
#endif
    });
#if STAGED
    if (t == 0) mbar_arrive(full + 8 * STAGES);   // behind the barrier of all who read it
#endif
    tile++;
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
        const int row = i / 4 * 8 + 2 * (lane & 3) + (i & 1), feature = feature_of(64 * f + 16 * warp + (lane >> 2) + 8 * (i >> 1 & 1));
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
  auto release = [&](u32 slot) {
    if (RELEASES == 4) {
      __syncwarp();
      if ((t & 31) == 0) mbar_arrive(empty + 8 * slot);
    } else if (t == 0) mbar_arrive(empty + 8 * slot);
  };
  // Each product in two: up to where it is on its way, and when it is complete. A slot whose bytes are in registers is free at once.
#if NARROW_KEYS
  KeyWords keys;
  auto begin_scores = [&](u32 slot) {
    load_keys_words(keys, ring + slot * SLOT, t);
    release(slot);
    keys_product(s, keys, rows.base);
  };
  auto end_scores = [&](u32) {
    hold_all(s);
    hold_all(keys[0]);
    hold_all(keys[1]);
  };
#else
  auto begin_scores = [&](u32 slot) { keys_product(s, ring + slot * SLOT, rows.base); };
  auto end_scores = [&](u32 slot) {
    hold_all(s);
    release(slot);
  };
#endif
#if NARROW_VALUES
  ValueWords values;
  auto begin_sums = [&](u32 slot, int n, int add) {
    load_values_words(values, ring + slot * SLOT, t);
    release(slot);
    values_product(o, values, rows.weights(n), add);
  };
  auto end_sums = [&](u32) {
    hold_all(o);
#pragma unroll
    for (int k = 0; k < STREAM / 16; k++) hold_all(values[k]);
  };
#else
  auto begin_sums = [&](u32 slot, int n, int add) { values_product(o, ring + slot * SLOT, rows.weights(n), add); };
  auto end_sums = [&](u32 slot) {
    hold_all(o);
    release(slot);
  };
#endif
  mbar_wait(full + 8 * st, ph);
  begin_scores(st);
  wg_wait<0>();
  end_scores(st);
  ADVANCE(st, ph)
  rows.begin();
  rows.take<1>(P, R, row, x.origin, x.hi - 1, s);
  int add = 0;
  auto step = [&](auto cut, int n) {   // weights of tile n + 1 are there, and not added up yet
    const u32 ks = st;
    mbar_wait(full + 8 * st, ph);
    ADVANCE(st, ph)
    const u32 vs = st;
    begin_scores(ks);
    mbar_wait(full + 8 * st, ph);
    ADVANCE(st, ph)
    begin_sums(vs, n + 1, add);
    add = 1;
    rows.add_up(n + 1);   // while these are on their way
    wg_wait<1>();
    end_scores(ks);
    rows.take<decltype(cut)::value>(P, R, row, x.origin, n, s);
    wg_wait<0>();
    end_sums(vs);
    rows.grow(o);
  };
  walk_tiles(step, x.hi - 2, x.lo, x.from, x.to);
  mbar_wait(full + 8 * st, ph);
  begin_sums(st, x.lo, add);
  rows.add_up(x.lo);
  wg_wait<0>();
  end_sums(st);
  ADVANCE(st, ph)
}
