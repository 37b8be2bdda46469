// attention_pair.cuh: on Hopper, two sums over columns, each of the columns of one of two products times weights made of these
// products, without a softmax: the gradients of keys and values, dk = sum of ds * q and dv = sum of p * d_o, with s = k q,
// dp = v d_o, p made of s, and ds of both.
//
// A block is 384 threads; 64 rows of both products stay for each of two warpgroups, while tiles of STREAM
// columns of both go through a ring of SLOTS. Columns are those of COLUMN_GROUPS groups (the query heads of
// a key's head) of COLUMNS each: all groups of a tile of columns, then the next tile, from the last to the
// first.
//
// A step of a warpgroup has the first product of a tile, the first sum over the tile before it, and the
// second product in flight together; then comes the second sum.
//
// The emitted part defines what attention_rows.cuh lists, except OUT_MORE, and:
//   score::first<CUT>   makes the second sum's weights, unless everything is made by score::second (SPLIT 0)
//   score::second<CUT>(s, dp, ...)   the first sum's weights, into dp, from s as `first` left it (SPLIT 0: and the second sum's, into s)
//   STAGED vectors of f32, one value a column, that come with a tile: staged_make(P, v, batch, group, n)
//   out::, out2::       the epilogues of the first and of the second sum
// Maps: 0, 1 rows and columns of the first product, 2, 3 of the second, 4, 5 the results where they are PLAIN; MORE_MAP rows and
// columns of what is added to the first product.

#define STAGED_AT (VALUES + SLOTS * VALUES_BYTES)   // what comes with the columns of the first product
#define BARRIERS (STAGED_AT + SLOTS * 4 * STAGED * STREAM)
#define STAGERS (STAGED ? (STREAM + 31) / 32 : 0)   // warps that make it, a thread a column
#define ACCUMULATORS2 ((SECOND_DEPTH + 15) / 16 * 8)

VALUE_PRODUCT(value_product2, wgmma_value2, SECOND_DEPTH)

extern "C" __global__ void __launch_bounds__(128 * GROUPS + 128, 1) NAME(const __grid_constant__ Params P) {
  extern __shared__ __align__(1024) u8 memory[];
  const u32 base = smem_u32(memory);
  const u32 k_full = base + BARRIERS, k_empty = k_full + 8 * SLOTS, v_full = k_empty + 8 * SLOTS, v_empty = v_full + 8 * SLOTS;
  const u32 row_full = v_empty + 8 * SLOTS, row_empty = row_full + 8 * GROUPS;
  const Numbers numbers(row_empty + 8 * GROUPS);
  const int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), t = threadIdx.x & 127;
  if (threadIdx.x == 0) {
    for (int i = 0; i < SLOTS; i++) { mbar_init(k_full + 8 * i, 1 + STAGERS); mbar_init(k_empty + 8 * i, GROUPS); mbar_init(v_full + 8 * i, 1); mbar_init(v_empty + 8 * i, GROUPS); }
    for (int i = 0; i < GROUPS; i++) { mbar_init(row_full + 8 * i, 1); mbar_init(row_empty + 8 * i, 1); }
    numbers.begin(4 * GROUPS + STAGERS);
    mbar_fence();
  }
  __syncthreads();
  dependency_wait();
// Steps are counted downwards over all tiles and groups.
#define TILE_OF(left) (((left) - 1) / COLUMN_GROUPS)
#define GROUP_OF(left) (COLUMN_GROUPS - 1 - ((left) - 1) % COLUMN_GROUPS)

  if (wg == GROUPS) {   // ---- the thread that feeds
    fewer_registers<FEW_REGISTERS>();
    if (t == 0) {
      Counter{(u64 *)P.counter}.begin(Order(P).total);
      u32 s = 0, ph = 1;
      int w = blockIdx.x;
#pragma unroll 1
      for (u32 j = 0; w < Order(P).total; j++) {
        const Place at = Order(P).at(w);
        int lo, hi;
        tiles_seen(P, at.batch, at.row, TILE_M, lo, hi);
        feed_rows(P, base, row_full, row_empty, at, j);
        // Groups inside, tiles outside: blocks that started together stay at the same columns and find them in the L2 cache.
#pragma unroll 1
        for (int left = hi * COLUMN_GROUPS; left > lo * COLUMN_GROUPS; left--) {
          const int n = TILE_OF(left), g = GROUP_OF(left);
          const u32 bar = k_full + 8 * s;
          int batch = at.batch;
          asm volatile("" : "+r"(batch));   // what follows from it is worked out here: registers are few
          mbar_wait(bar + 8 * SLOTS, ph);
          mbar_expect(bar, KEYS_BYTES);
          load_keys(P, base + KEYS + s * KEYS_BYTES, bar, batch, keys_batch0(P, batch), keys_batch1(P, batch), n * STREAM, g);
          mbar_wait(bar + 24 * SLOTS, ph);
          mbar_expect(bar + 16 * SLOTS, VALUES_BYTES);
          load_panels<SECOND_DEPTH, STREAM>(base + VALUES + s * VALUES_BYTES, &P.map[3], bar + 16 * SLOTS, n * STREAM, g, values_batch0(P, batch), values_batch1(P, batch));
          ADVANCE(s, ph)
        }
        const u32 drawn = Counter{(u64 *)P.counter}.take();   // no sooner: registers are few
        w = (int)drawn + (int)gridDim.x;
        if (drawn == (u32)Order(P).total - 1) Counter{(u64 *)P.counter}.end();
        numbers.give(j, w);
      }
      dependency_start();
#if STAGED
    } else if (t >= 32 && t < 32 + 32 * STAGERS) {   // ---- the warps that make what comes with the columns
      u32 s = 0, ph = 1;
      int w = blockIdx.x;
#pragma unroll 1
      for (u32 j = 0; w < Order(P).total; j++) {
        const Place at = Order(P).at(w);
        int lo, hi;
        tiles_seen(P, at.batch, at.row, TILE_M, lo, hi);
#pragma unroll 1
        for (int left = hi * COLUMN_GROUPS; left > lo * COLUMN_GROUPS; left--) {
          float v[STAGED];   // loaded while the slot is waited for
          staged_make(P, v, at.batch, GROUP_OF(left), min(TILE_OF(left) * STREAM + t - 32, COLUMNS - 1));
          mbar_wait(k_empty + 8 * s, ph);
          staged_store(base + STAGED_AT + s * 4 * STAGED * STREAM, v, t - 32);
          __syncwarp();
          if ((t & 31) == 0) mbar_arrive(k_full + 8 * s);
          ADVANCE(s, ph)
        }
        w = numbers.take(j, t & 31);
      }
#endif
    }
  } else {   // ---- the warpgroups that compute
    more_registers<MANY_REGISTERS>();
    float dk[ACCUMULATORS] UNREAD, dv[ACCUMULATORS2] UNREAD, s[STREAM / 2] UNREAD, dp[STREAM / 2] UNREAD;
    u32 pp[STREAM / 4], ds[STREAM / 4];
    u32 st = 0, ph = 0;
    int w = blockIdx.x;
    if (wg == GROUPS - 1) bar_arrive(1, 256);
    auto my_turn = [&] { bar_sync(1 + wg, 256); };
    auto your_turn = [&] { bar_arrive(1 + (wg + 1 == GROUPS ? 0 : wg + 1), 256); };
    auto release = [&](u32 bar) { if (t == 0) mbar_arrive(bar); };
    const u32 rows = base + wg * BUFFER, rows2 = rows + FIRST_BYTES;
#pragma unroll 1
    for (u32 j = 0; w < Order(P).total; j++) {
      // Registers are few: where the tile stands and what its rows see, this thread's number, and its row as tiles count them, are
      // worked out anew wherever they are used.
      auto seen_now = [&](int &lo, int &hi, int &from, int &to) {
        int again = w;
        asm volatile("" : "+r"(again));
        const Place at = Order(P).at(again);
        tiles_seen(P, at.batch, at.row, TILE_M, lo, hi);
        tiles_whole(P, at.batch, at.row + 64 * wg, 64, from, to);
      };
      auto thread_now = [&] {
        u32 tid = threadIdx.x;
        asm volatile("" : "+r"(tid));
        return (int)(tid & 127);
      };
      auto row_now = [&] {
        int again = w, t = thread_now();
        asm volatile("" : "+r"(again));
        const Place at = Order(P).at(again);
        return at.batch * BATCH_PAD + at.row + 64 * wg + (t >> 5) * 16 + (t >> 2 & 7);
      };
      score::Rows R;
      score::rows_load(R, P, row_now());
      mbar_wait(row_full + 8 * wg, j & 1);
#pragma unroll
      for (int i = 0; i < ACCUMULATORS; i++) dk[i] = 0.f;
      int lo, hi, from, to;
      seen_now(lo, hi, from, to);
      int left = hi * COLUMN_GROUPS;
      // One tile of columns. All that is on its way is there at the end.
      auto step = [&](auto cut, auto start) {
        constexpr int FIRST = decltype(start)::value, CUT = decltype(cut)::value;
        constexpr int EVALUATE = CUT && !EXACT;   // the program's conditions; else a cut tile is a whole one, of which bits say what is seen
        Seen<CUT && EXACT> seen;
        if constexpr (CUT && EXACT) seen.find(P, row_now(), TILE_OF(left) * STREAM, thread_now());   // before the products, while registers are free
        const u32 keys = base + KEYS + st * KEYS_BYTES, values = base + VALUES + st * VALUES_BYTES, last = st ? st - 1 : SLOTS - 1, staged = base + STAGED_AT + st * 4 * STAGED * STREAM;
        mbar_wait(k_full + 8 * st, ph);
        my_turn();
        score_product<SCORE_DEPTH>(s, rows, keys);
        if (!FIRST) value_product(dk, ds, base + SUMMED + last * KEYS_BYTES, 1);
        mbar_wait(v_full + 8 * st, ph);
        score_product<SECOND_DEPTH>(dp, rows2, values);
        your_turn();
        if (FIRST) wg_wait<1>();
        else wg_wait<2>();
        hold(s);
#if SPLIT
        score::first<EVALUATE>(s, R, P, row_now(), GROUP_OF(left), TILE_OF(left) * STREAM, thread_now(), staged);
        seen.keep(s, 0.f);
#endif
        if (!FIRST) {
          wg_wait<1>();
          hold(dk);
          hold(ds);
          release(k_empty + 8 * last);
        }
#if SPLIT
        to_halves(pp, s);
        value_product2(dv, pp, values, FIRST ? 0 : 1);
        wg_wait<1>();
        hold(dp);
        score::second<EVALUATE>(s, dp, R, P, row_now(), GROUP_OF(left), TILE_OF(left) * STREAM, thread_now(), staged);
        seen.keep(dp, 0.f);
        to_halves(ds, dp);
        hold(ds);
#else
        wg_wait<0>();
        hold(dp);
        score::second<EVALUATE>(s, dp, R, P, row_now(), GROUP_OF(left), TILE_OF(left) * STREAM, thread_now(), staged);
        seen.keep(s, 0.f);
        seen.keep(dp, 0.f);
        to_halves(pp, s);
        value_product2(dv, pp, values, FIRST ? 0 : 1);
        to_halves(ds, dp);
#endif
        wg_wait<0>();
        hold(dv);
        hold(pp);
        release(v_empty + 8 * st);
        ADVANCE(st, ph)
      };
      // Down to tile `until`, or the first that is seen.
      auto walk = [&](auto cut, int until) {
#pragma unroll 1
        for (; left > until; left--) step(cut, Is<0>{});
      };
      step(Is<1>{}, Is<1>{});
      left--;
      walk(Is<1>{}, max(CUT_END ? to : hi - 1, lo) * COLUMN_GROUPS);   // tiles that are cut at the end, or the last one's other groups
#if CUT_BEGIN
      seen_now(lo, hi, from, to);
      walk(Is<0>{}, max(from, lo) * COLUMN_GROUPS);
      seen_now(lo, hi, from, to);
      walk(Is<1>{}, lo * COLUMN_GROUPS);
#else
      seen_now(lo, hi, from, to);
      walk(Is<0>{}, lo * COLUMN_GROUPS);
#endif
      const u32 last = st ? st - 1 : SLOTS - 1;
      my_turn();
      value_product(dk, ds, base + SUMMED + last * KEYS_BYTES, 1);
      your_turn();
      wg_wait<0>();
      hold(dk);
      release(k_empty + 8 * last);
#pragma unroll
      for (int i = 0; i < ACCUMULATORS; i++) dk[i] *= SCALE;
      out::Rows O;
      out2::Rows O2;
      out::rows_load(O, P, row_now(), TOTALS(R) t & 3);
      out2::rows_load(O2, P, row_now(), TOTALS(R) t & 3);
#if PLAIN
#pragma unroll
      for (int i = 0; i < ACCUMULATORS; i++) dk[i] = out::plain(O, i >> 1 & 1, dk[i]);
#pragma unroll
      for (int i = 0; i < ACCUMULATORS2; i++) dv[i] = out2::plain(O2, i >> 1 & 1, dv[i]);
      stage_panels(rows, dk, t);
      stage_panels(rows2, dv, t);
      fence_async();
      bar_sync(1 + GROUPS + wg, 128);
      if (t == 0) {
        int again = w;
        asm volatile("" : "+r"(again));
        const Place at = Order(P).at(again);
        store_panels<VALUE_WIDTH>(&P.map[4], rows, at.row + 64 * wg, out_batch0(P, at.batch), out_batch1(P, at.batch));
        store_panels<SECOND_DEPTH>(&P.map[5], rows2, at.row + 64 * wg, out2_batch0(P, at.batch), out2_batch1(P, at.batch));
        bulk_commit();
        bulk_wait_read<0>();
        mbar_arrive(row_empty + 8 * wg);
      }
#else
      release(row_empty + 8 * wg);
      if (row_there(P, row_now() / 64 * 64)) {
        out::Sums S;
        out2::Sums S2;
        out::epilogue_subtile<0>(Kept<ACCUMULATORS>{dk}, O, S, P, 0, row_now(), 0, t);
        out2::epilogue_subtile<0>(Kept<ACCUMULATORS2>{dv}, O2, S2, P, 0, row_now(), 0, t);
      }
#endif
      w = numbers.take(j, t & 31);
    }
    if (wg == 0) bar_sync(1, 256);   // the turn that nobody takes
    if (t == 0) bulk_wait<0>();
  }
}
