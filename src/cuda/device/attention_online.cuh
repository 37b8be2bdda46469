// attention_online.cuh: on Hopper, a warpgroup's rows and the columns that they see: o = sum over columns of exp(s - top) * v, with the
// online softmax of attention_softmax.cuh. What the emitted part defines is in attention_forward.cuh.

#define VALUES_BYTES PANELS_BYTES(VALUE_WIDTH, STREAM)
#define SLOT (KEYS_BYTES > VALUES_BYTES ? KEYS_BYTES : VALUES_BYTES)

// A step: s = q k(j+1) and o += p v(j) are on their way together; while the second still runs, the softmax of the first is worked
// out. Tiles of which a row may not see every column are cut, and evaluate the program's conditions, or, where its mask has
// equalities (MATCHES of them), have a bit for each element (`seen`, of the first tile); others do neither.
//
// The rows' operand is at `rows`. Slots of the ring come in the order K0 K1 V0 K2 V1 ... V(n-1), from slot st in phase ph on, and are given
// back when they are read, but for the last, whose product is still on its way at the end. Products are issued between my_turn() and
// your_turn(); begun() is called when the first is on its way.
template <class My, class Your, class Begun>
DEV void weigh_columns(const Params &P, const score::Rows &R, u32 rows, u32 ring, u32 full, u32 empty, u32 &st, u32 &ph, int row, int t, int lo, int hi, int from, int to,
                       const Seen<(MATCHES > 0)> &seen, float (&o)[ACCUMULATORS], Softmax &softmax, const My &my_turn, const Your &your_turn, const Begun &begun) {
  float s[STREAM / 2], alpha[2];
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
  score::first<!MATCHES>(s, R, P, row, 0, (hi - 1) * STREAM, t, 0);
  seen.keep(s, -INF);
  softmax.template step<1>(s, alpha, grow);
#if FACTOR
  score::second<1>(s, R, P, row, 0, (hi - 1) * STREAM, t, 0);
#endif
  to_halves(p, s);
  int add = 0;
  // Weights of tile n + 1 are in p. All that is issued here is waited for here: wgmma in flight over the loop's back edge would
  // be serialised by the compiler.
  auto step = [&](auto cut, int n) {
    constexpr int CUT = decltype(cut)::value;
    Seen<(CUT && MATCHES > 0)> seen;
    seen.find(P, row, n * STREAM, t);   // before the products, while registers are free
    const u32 ks = st;
    mbar_wait(full + 8 * st, ph);
    ADVANCE(st, ph)
    const u32 vs = st;
    my_turn();
    score_product<SCORE_DEPTH>(s, rows, ring + ks * SLOT);
    mbar_wait(full + 8 * st, ph);
    ADVANCE(st, ph)
    value_product(o, p, ring + vs * SLOT, add);
    add = 1;
    your_turn();
    wg_wait<1>();
    hold(s);
    release(ks);
    score::first<CUT && !MATCHES>(s, R, P, row, 0, n * STREAM, t, 0);
    seen.keep(s, -INF);
    softmax.template step<0>(s, alpha, grow);
#if FACTOR
    score::second<CUT>(s, R, P, row, 0, n * STREAM, t, 0);
#endif
    wg_wait<0>();
    hold(o);
    hold(p);
    release(vs);
    to_halves(p, s);
    if (!LAZY || grow) {
#pragma unroll
      for (int i = 0; i < ACCUMULATORS; i++) o[i] *= alpha[i >> 1 & 1];
    }
  };
  walk_tiles(step, hi - 2, lo, from, to);
  mbar_wait(full + 8 * st, ph);
  my_turn();
  value_product(o, p, ring + st * SLOT, add);
  your_turn();
}
