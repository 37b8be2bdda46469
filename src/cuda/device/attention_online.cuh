// attention_online.cuh: on Hopper, a warpgroup's rows and the columns that they see: o = sum over columns of exp(s - top) * v, with the
// online softmax of attention_softmax.cuh. What the emitted part defines is in attention_forward.cuh.

#define VALUES_BYTES PANELS_BYTES(VALUE_WIDTH, STREAM)
#define SLOT (KEYS_BYTES > VALUES_BYTES ? KEYS_BYTES : VALUES_BYTES)

// What a row's columns of a chunk came to: the reference as an exponent of 2, -INF where it saw none, and the sum of weights.
DEV float chunk_end(const Softmax &x, int r, float &sum) {
  float s = x.sum[r];
  s += __shfl_xor_sync(~0u, s, 1);
  s += __shfl_xor_sync(~0u, s, 2);
  sum = s;
  return x.top[r] == -INF ? -INF : x.base[r];
}
DEV float most_of(const Softmax &x, int r) {
  float m = x.most[r];
  m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
  return fmaxf(m, __shfl_xor_sync(~0u, m, 2));
}

// A step: s = q k(j+1) and o += p v(j) are on their way together; while the second still runs, the softmax of the first is worked
// out. Tiles of which a row may not see every column are cut, and evaluate the program's conditions, or, where its mask has
// equalities (MATCHES of them), have a bit for each element (`seen`, of the first tile); others do neither.
//
// The rows' operand is at `rows`. Slots of the ring come in the order K0 K1 V0 K2 V1 ... V(n-1), from slot st in phase ph on, and are given
// back when they are read, but for the last, whose product is still on its way at the end. Products are issued between my_turn() and
// your_turn(); begun() is called when the first is on its way, scored() when the last of the scores is made. `x` is
// the first stretch, more(i) makes it the i-th; another one's last tile may end a chunk of the one before: rows have columns in one of
// them alone. Returns whether there was one chunk.
//
// CHUNK_TILES > 0: so many tiles are a chunk (attention_chunks.cuh). Where one ends, and another one follows, it is folded into what
// is in shared memory at `running`: of each row the reference, the sum of weights and the last factors, and the sums of values, as
// each thread has them. A row's four threads have the same statistics, and each stores them. The last chunk is the caller's.
// LATE: that is done while the next tile's scores are on their way, where there are registers for it.
// HELD of the sums, the last, are in registers instead.
#define HELD (HELD_SUMS < ACCUMULATORS ? HELD_SUMS : 0)
#define SUMS_BYTES (((ACCUMULATORS - HELD) / 4 + 3) / 4 * 8192)                                                               // of a warpgroup,
#define RUNNING_BYTES (SUMS_BYTES > PANELS_BYTES(VALUE_WIDTH, 64) ? SUMS_BYTES : PANELS_BYTES(VALUE_WIDTH, 64))   // or its results
#if CHUNK_TILES
struct Running {
  u32 stats, sums;
  float held[HELD + 1];
  DEV Running(u32 stats_at, u32 sums_at, int t) : stats(stats_at + (t >> 5) * 256 + (t >> 2 & 7) * 16), sums(sums_at + (t >> 5) * 2048 + (t & 31) * 16) {}
  // Both rows' statistics; factors are kept for fold_sums() and keep_sums().
  DEV void fold_stats(const Softmax &x, bool first, float (&reference)[2], float (&sum)[2], float (&old)[2], float (&own)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float s, chunk = chunk_end(x, r, s), before = -INF, folded = 0.f;
      if (!first) {
        const uint4 w = lds128(stats + 128 * r);
        before = __uint_as_float(w.x);
        folded = __uint_as_float(w.y);
      }
      reference[r] = fold_factors(before, chunk, old[r], own[r]);
      sum[r] = fold(folded, s, old[r], own[r]);
    }
  }
  DEV void keep_stats(const Softmax &x, bool first) const {
    float reference[2], sum[2], old[2], own[2];
    fold_stats(x, first, reference, sum, old, own);
    __syncwarp();   // the four lanes of a row have read what they all write
#pragma unroll
    for (int r = 0; r < 2; r++)
      sts128(stats + 128 * r, __float_as_uint(reference[r]), __float_as_uint(sum[r]), __float_as_uint(old[r]), __float_as_uint(own[r]));
  }
  static constexpr int AT_ONCE = (ACCUMULATORS - HELD) / 4 % 4 ? 2 : 4;
  DEV u32 at(int i) const { return sums + i / 4 * 8192 + i % 4 * 512; }
  DEV static float4 fold_four(const float *o, uint4 w, const float (&old)[2], const float (&own)[2]) {
    return make_float4(fold(__uint_as_float(w.x), o[0], old[0], own[0]), fold(__uint_as_float(w.y), o[1], old[0], own[0]),
                       fold(__uint_as_float(w.z), o[2], old[1], own[1]), fold(__uint_as_float(w.w), o[3], old[1], own[1]));
  }
  DEV void fold_sums(float (&o)[ACCUMULATORS], const float (&old)[2], const float (&own)[2]) const {
#pragma unroll
    for (int i = 0; i < HELD; i++) o[ACCUMULATORS - HELD + i] = fold(held[i], o[ACCUMULATORS - HELD + i], old[i >> 1 & 1], own[i >> 1 & 1]);
#pragma unroll
    for (int i = 0; i < (ACCUMULATORS - HELD) / 4; i++) {
      const float4 x = fold_four(&o[4 * i], lds128(at(i)), old, own);
      o[4 * i] = x.x;
      o[4 * i + 1] = x.y;
      o[4 * i + 2] = x.z;
      o[4 * i + 3] = x.w;
    }
  }
  DEV void keep_sums(const float (&o)[ACCUMULATORS], bool first) {
    float old[2], own[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const uint4 w = lds128(stats + 128 * r);
      old[r] = __uint_as_float(w.z);
      own[r] = __uint_as_float(w.w);
    }
#pragma unroll
    for (int i = 0; i < HELD; i++) held[i] = fold(first ? 0.f : held[i], o[ACCUMULATORS - HELD + i], old[i >> 1 & 1], own[i >> 1 & 1]);
#pragma unroll
    for (int i = 0; i < (ACCUMULATORS - HELD) / 4; i += AT_ONCE) {   // more at once would take registers that there are not
      uint4 w[AT_ONCE];
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) w[u] = first ? make_uint4(0, 0, 0, 0) : lds128(at(i + u));
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) {
        const float4 x = fold_four(&o[4 * (i + u)], w[u], old, own);   // o stays as it is: that takes fewer registers
        sts128(at(i + u), __float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z), __float_as_uint(x.w));
      }
    }
  }
};
#else
struct Running { DEV Running(u32, u32, int) {} };
#endif
template <class My, class Your, class More, class Begun, class Scored>
DEV bool weigh_columns(const Params &P, const score::Rows &R, u32 rows, u32 ring, u32 full, u32 empty, u32 &st, u32 &ph, int row, int t, Stretch &x,
                       const Seen<(MATCHES > 0)> &seen, float (&o)[ACCUMULATORS], Softmax &softmax, Running &running, const My &my_turn, const Your &your_turn, const More &more, const Begun &begun,
                       const Scored &scored) {
  float s[STREAM / 2] UNREAD, alpha[2];
  u32 p[STREAM / 4];
  bool grow;
  auto release = [&](u32 slot) { if (t == 0) mbar_arrive(empty + 8 * slot); };
  mbar_wait(full + 8 * st, ph);
  my_turn();
  score_product<SCORE_DEPTH>(s, rows, ring + st * SLOT);
  your_turn();
  begun();
  wg_wait<0>();
  hold(s);
  release(st);
  ADVANCE(st, ph)
  score::first<!MATCHES>(s, R, P, row, 0, x.origin + (x.hi - 1) * STREAM, t, 0);
  seen.keep(s, -INF);
  softmax.template step<1>(s, alpha, grow);
#if FACTOR
  score::second<1>(s, R, P, row, 0, x.origin + (x.hi - 1) * STREAM, t, 0);
#endif
  to_halves(p, s);
  const int high = x.hi;
  bool none = true;       // no chunk was folded yet
  int add = 0, due = 0;   // due: a chunk's sums are complete in o, and are to be folded: the first one's (1), or another one's (2)
  // Weights of tile n + 1 are in p. All that is issued here is waited for here: wgmma in flight over the loop's back edge would
  // be serialised by the compiler.
  auto step = [&](auto cut, int n) {
    constexpr int CUT = decltype(cut)::value;
    Seen<(CUT && MATCHES > 0)> seen;
    seen.find(P, row, x.origin + n * STREAM, t, x.origin);   // before the products, while registers are free
    const u32 ks = st;
    mbar_wait(full + 8 * st, ph);
    ADVANCE(st, ph)
    const u32 vs = st;
    my_turn();
    score_product<SCORE_DEPTH>(s, rows, ring + ks * SLOT);
#if CHUNK_TILES && LATE
    if (due) {   // while the scores are on their way
      running.keep_sums(o, due == 1);
      due = 0;
    }
#endif
    mbar_wait(full + 8 * st, ph);
    ADVANCE(st, ph)
    value_product(o, p, ring + vs * SLOT, add);
    add = 1;
    your_turn();
    wg_wait<1>();
    hold(s);
    release(ks);
    score::first<CUT && !MATCHES>(s, R, P, row, 0, x.origin + n * STREAM, t, 0);
    seen.keep(s, -INF);
#if CHUNK_TILES
    const bool ended = n % CHUNK_TILES == CHUNK_TILES - 1;   // a chunk, or that of a stretch before
    const bool first = STRETCHED ? none : (high - 1) / CHUNK_TILES == n / CHUNK_TILES + 1;
    if (ended) {
      none = false;
      running.keep_stats(softmax, first);
      softmax.begin_chunk();
    }
#else
    constexpr bool ended = false;
#endif
    softmax.template step<0>(s, alpha, grow);
#if FACTOR
    score::second<CUT>(s, R, P, row, 0, x.origin + n * STREAM, t, 0);
#endif
    wg_wait<0>();
    hold(o);
    hold(p);
    release(vs);
    to_halves(p, s);
#if CHUNK_TILES
    if (ended) {
      if (LATE) due = first ? 1 : 2;
      else running.keep_sums(o, first);
      add = 0;
    }
#endif
    if (!ended && (!LAZY || grow)) {
#pragma unroll
      for (int i = 0; i < ACCUMULATORS; i++) o[i] *= alpha[i >> 1 & 1];
    }
  };
#pragma unroll 1
  for (int i = 1, n = x.hi - 2;; i++, n = x.hi - 1) {
    walk_tiles(step, n, x.lo, x.from, x.to);
    if (!more(i)) break;
  }
  scored();
#if CHUNK_TILES && LATE
  if (due) running.keep_sums(o, due == 1);
#endif
  mbar_wait(full + 8 * st, ph);
  my_turn();
  value_product(o, p, ring + st * SLOT, add);
  your_turn();
#if CHUNK_TILES
  return STRETCHED ? none : (high - 1) / CHUNK_TILES == x.lo / CHUNK_TILES;
#else
  return true;
#endif
}
