// attention_rows.cuh: on Hopper, one sum over columns whose weights come from one or two products of rows and columns, without a
// softmax: the gradient of queries, dq = sum of ds * k, with s = q k, dp = d_o v and ds made of both.
//
// A block is 128 * (GROUPS + 1) threads; a tile's rows of both products stay, while tiles of STREAM columns
// go through two rings of SLOTS each: one for the first product, which the sum reads again, and one for the
// second.
//
// A step of a warpgroup has the first product of tile n, the sum over tile n + 1 and the second product of
// tile n in flight together. Values that need only the first product are computed during the other two.
//
// The emitted part defines, besides the macros:
//   score::Rows, score::rows_load(R, P, row)                        what a thread keeps of its rows `row` and `row + 8`
//   score::first<CUT>(s, R, P, row, group, col, t, staged)          what follows from the first product alone, in place
//   score::second<CUT>(s, dp, R, P, row, group, col, t, staged)     the weights, into dp
//   SCALE                                                           what the weights lack, as a factor
//   columns_seen, columns_whole, MATCHES                            as in attention_forward.cuh
//   out::Rows, out::rows_load(R, P, row, q), out::Sums, out::epilogue_subtile   the epilogue
//   EXACT                                                           columns_seen of one row, and equalities, say exactly which columns it sees,
//                                                                   and nothing is summed but the columns
//   TOTALS(R)                                                       as in attention_forward.cuh
//   PLAIN, out::plain(R, h, x): or it is this of each element, then stored by TMA
//   MORE_DEPTH                                                      as in attention_forward.cuh, of the first product
//   SUM_AT, VALUE_WIDTH, OUT_MORE   of its columns the features that the sum is over; the last OUT_MORE of those are a result of their
//                                   own (0: all are one), with an epilogue out_more
// Maps: 0, 1 rows and columns of the first product, 2, 3 of the second, 4 the result where it is PLAIN; MORE_MAP rows and columns of
// what is added, and the other result.

#define BARRIERS (VALUES + SLOTS * VALUES_BYTES)

extern "C" __global__ void __launch_bounds__(128 * GROUPS + 128, 1) NAME(const __grid_constant__ Params P) {
  extern __shared__ __align__(1024) u8 memory[];
  const u32 base = smem_u32(memory);
  const u32 k_full = base + BARRIERS, k_empty = k_full + 8 * SLOTS, v_full = k_empty + 8 * SLOTS, v_empty = v_full + 8 * SLOTS;
  const u32 row_full = v_empty + 8 * SLOTS, row_empty = row_full + 8 * GROUPS;
  const Numbers numbers(row_empty + 8 * GROUPS);
  const int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), t = threadIdx.x & 127;
  if (threadIdx.x == 0) {
    for (int i = 0; i < SLOTS; i++) { mbar_init(k_full + 8 * i, 1); mbar_init(k_empty + 8 * i, GROUPS); }
    for (int i = 0; i < SLOTS; i++) { mbar_init(v_full + 8 * i, 1); mbar_init(v_empty + 8 * i, GROUPS); }
    for (int i = 0; i < GROUPS; i++) { mbar_init(row_full + 8 * i, 1); mbar_init(row_empty + 8 * i, 1); }
    numbers.begin(4 * GROUPS);
    mbar_fence();
  }
  __syncthreads();
  dependency_wait();

  if (wg == GROUPS) {   // ---- the thread that feeds
    fewer_registers<FEW_REGISTERS>();
    if (t == 0) {
      const Counter counter{(u64 *)P.counter};
      counter.begin(Order(P).total);
      u32 ks = 0, kp = 1, vs = 0, vp = 1;
      int w = blockIdx.x;
#pragma unroll 1
      for (u32 j = 0; w < Order(P).total; j++) {
        const u32 drawn = counter.take();
        const Place at = Order(P).at(w);   // anew: registers are few
        int lo, hi;
        tiles_seen(P, at.batch, at.row, TILE_M, lo, hi);
        feed_rows(P, base, row_full, row_empty, at, j);
        const int kz = keys_batch0(P, at.batch), kw = keys_batch1(P, at.batch), vz = values_batch0(P, at.batch), vw = values_batch1(P, at.batch);
#pragma unroll 1
        for (int n = hi - 1; n >= lo; n--) {
          mbar_wait(k_empty + 8 * ks, kp);
          mbar_expect(k_full + 8 * ks, KEYS_BYTES);
          load_keys(P, base + KEYS + ks * KEYS_BYTES, k_full + 8 * ks, at.batch, kz, kw, n * STREAM);
          ADVANCE(ks, kp)
          mbar_wait(v_empty + 8 * vs, vp);
          mbar_expect(v_full + 8 * vs, VALUES_BYTES);
          load_panels<SECOND_DEPTH, STREAM>(base + VALUES + vs * VALUES_BYTES, &P.map[3], v_full + 8 * vs, n * STREAM, vz, vw);
          ADVANCE(vs, vp)
        }
        w = (int)drawn + (int)gridDim.x;
        if (drawn == (u32)Order(P).total - 1) counter.end();
        numbers.give(j, w);
      }
      dependency_start();
    }
  } else {   // ---- the warpgroups that compute
    more_registers<MANY_REGISTERS>();
    const int lane = t & 31;
    const Order order(P);
    float dq[ACCUMULATORS] UNREAD, s[STREAM / 2] UNREAD, dp[STREAM / 2] UNREAD;
    u32 ds[STREAM / 4];
    u32 ks = 0, kp = 0, vs = 0, vp = 0;
    int w = blockIdx.x;
    if (wg == GROUPS - 1) bar_arrive(1, 256);
    auto my_turn = [&] { bar_sync(1 + wg, 256); };
    auto your_turn = [&] { bar_arrive(1 + (wg + 1 == GROUPS ? 0 : wg + 1), 256); };
    auto release = [&](u32 bar) { if (t == 0) mbar_arrive(bar); };
    const u32 rows = base + wg * BUFFER, rows2 = rows + FIRST_BYTES;
#pragma unroll 1
    for (u32 j = 0; w < order.total; j++) {
      const Place at = order.at(w);
      const int first = at.row + 64 * wg;                                              // of this warpgroup's rows in the batch
      const int row = at.batch * BATCH_PAD + first + (t >> 5) * 16 + (lane >> 2);      // this thread's, as tiles count them
      int lo, hi, from, to;
      tiles_seen(P, at.batch, at.row, TILE_M, lo, hi);
      tiles_whole(P, at.batch, first, 64, from, to);
      score::Rows R;
      score::rows_load(R, P, row);
      // What is seen is worked out under the products; with equalities before them, while there are registers for it.
      Seen<EXACT> seen;
      if (MATCHES) seen.find(P, row, (hi - 1) * STREAM, t);
      mbar_wait(row_full + 8 * wg, j & 1);
      mbar_wait(k_full + 8 * ks, kp);
      my_turn();
      score_product<SCORE_DEPTH>(s, rows, base + KEYS + ks * KEYS_BYTES);
      mbar_wait(v_full + 8 * vs, vp);
      score_product<SECOND_DEPTH>(dp, rows2, base + VALUES + vs * VALUES_BYTES);
      your_turn();
      if (!MATCHES) seen.find(P, row, (hi - 1) * STREAM, t);
      wg_wait<1>();
      hold(s);
      score::first<!EXACT>(s, R, P, row, 0, (hi - 1) * STREAM, t, 0);
      hold(s);
      wg_wait<0>();
      hold(dp);
      release(v_empty + 8 * vs);
      score::second<!EXACT>(s, dp, R, P, row, 0, (hi - 1) * STREAM, t, 0);
      seen.keep(dp, 0.f);
      to_halves(ds, dp);
      u32 before = ks;   // the slot of the tile that ds belongs to
      ADVANCE(ks, kp)
      ADVANCE(vs, vp)
      int add = 0;
      auto step = [&](auto cut, int n) {
        constexpr int CUT = decltype(cut)::value, EVALUATE = CUT && !EXACT;   // as in attention_pair.cuh
        Seen<(CUT && EXACT)> seen;
        if (MATCHES) seen.find(P, row, n * STREAM, t);
        mbar_wait(k_full + 8 * ks, kp);
        my_turn();
        score_product<SCORE_DEPTH>(s, rows, base + KEYS + ks * KEYS_BYTES);
        value_product(dq, ds, base + SUMMED + before * KEYS_BYTES, add);
        add = 1;
        mbar_wait(v_full + 8 * vs, vp);
        score_product<SECOND_DEPTH>(dp, rows2, base + VALUES + vs * VALUES_BYTES);
        your_turn();
        if (!MATCHES) seen.find(P, row, n * STREAM, t);
        wg_wait<2>();
        hold(s);
        score::first<EVALUATE>(s, R, P, row, 0, n * STREAM, t, 0);
        wg_wait<1>();
        hold(dq);
        hold(ds);
        release(k_empty + 8 * before);
        wg_wait<0>();
        hold(dp);
        release(v_empty + 8 * vs);
        score::second<EVALUATE>(s, dp, R, P, row, 0, n * STREAM, t, 0);
        seen.keep(dp, 0.f);
        to_halves(ds, dp);
        before = ks;
        ADVANCE(ks, kp)
        ADVANCE(vs, vp)
      };
      walk_tiles(step, hi - 2, lo, from, to);
      my_turn();
      value_product(dq, ds, base + SUMMED + before * KEYS_BYTES, add);
      your_turn();
      wg_wait<0>();
      hold(dq);
      release(k_empty + 8 * before);
#pragma unroll
      for (int i = 0; i < ACCUMULATORS; i++) dq[i] *= SCALE;
      out::Rows O;
      out::rows_load(O, P, row, TOTALS(R) lane & 3);
#if OUT_MORE
      out_more::Rows O_more;
      out_more::rows_load(O_more, P, row, TOTALS(R) lane & 3);
#endif
#if PLAIN
#pragma unroll
      for (int i = 0; i < (VALUE_WIDTH - OUT_MORE + 15) / 16 * 8; i++) dq[i] = out::plain(O, i >> 1 & 1, dq[i]);
#if OUT_MORE
#pragma unroll
      for (int i = (VALUE_WIDTH - OUT_MORE) / 2; i < ACCUMULATORS; i++) dq[i] = out_more::plain(O_more, i >> 1 & 1, dq[i]);
#endif
      stage_panels(rows, dq, t);
      fence_async();
      bar_sync(1 + GROUPS + wg, 128);
      if (t == 0) {
        store_panels<VALUE_WIDTH - OUT_MORE>(&P.map[4], rows, first, out_batch0(P, at.batch), out_batch1(P, at.batch));
#if OUT_MORE
        store_panels<OUT_MORE>(&P.map[MORE_MAP + 2], rows + PANELS_BYTES(VALUE_WIDTH - OUT_MORE, 64), first, out_more_batch0(P, at.batch), out_more_batch1(P, at.batch));
#endif
        bulk_commit();
        bulk_wait_read<0>();
        mbar_arrive(row_empty + 8 * wg);
      }
#else
      out::Sums S;
      release(row_empty + 8 * wg);
      if (row_there(P, at.batch * BATCH_PAD + first)) out::epilogue_subtile<0>(Kept<ACCUMULATORS>{dq}, O, S, P, 0, row, 0, t);
#if OUT_MORE
      out_more::Sums S_more;
      if (row_there(P, at.batch * BATCH_PAD + first)) out_more::epilogue_subtile<0>(Kept<ACCUMULATORS, (VALUE_WIDTH - OUT_MORE) / 2>{dq}, O_more, S_more, P, 0, row, 0, t);
#endif
#endif
      w = numbers.take(j, lane);
    }
    if (wg == 0) bar_sync(1, 256);   // the turn that nobody takes
    if (t == 0) bulk_wait<0>();
  }
}
