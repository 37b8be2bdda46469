// attention_forward.cuh: attention on Hopper with its softmax: o = sum over columns of exp(s - top) * v, where s comes from a
// product of rows and columns and top is the largest of a row.
//
// A block is 128 * (GROUPS + 1) threads. The thread that feeds loads the rows of a tile (queries) in QUERIES
// buffers, and tiles of STREAM columns of both operands (keys and values) into one ring of SLOTS slots, in
// the order of use: K0 K1 V0 K2 V1 ... V(n-1). Columns are processed from the last tile to the first. Their
// positions alone decide which tiles exist, counted from the first column of the sequence or of each
// document.
//
// What a warpgroup does with its columns is in attention_online.cuh.
//
// The emitted part defines, besides the macros:
//   score::Rows, score::rows_load(R, P, row)               what a thread keeps of its rows `row` and `row + 8`
//   score::first<CUT>(s, R, P, row, 0, col, t, 0)          scores from products, in place; -INF where a row does not see a column
//   FACTOR, score::second<CUT>(s, R, P, ...)               the weights times what their sum does not have (dropout)
//   POST, SCALE                                            exp2(POST * s) is the weight of a score; SCALE * s is the program's score
//   GUARDED                                                a row that sees nothing has sums of 0; else they are no numbers
//   columns_seen(P, batch, first, last, from, to), columns_whole: the columns that some, and that all rows of a range see
//   stream_origin(P, batch)                                the column that tiles and chunks are counted from
//   TOTALS(R)                                              `R,` where elements are summed along the columns beside the products, in R; else nothing
//   out::Rows, out::rows_load(R, P, row, top, sum, q)      the same for the epilogue, from the largest score and the sum of weights;
//                                                          lane q 0 of a row stores what there is one of a row
//   out::Sums, out::epilogue_subtile                       the epilogue
//   PLAIN, out::plain(R, h, x)                             or it is this of each element, then stored by TMA
//   wgmma_score, wgmma_value
//   MORE_DEPTH          of the scores' features those of a second product that is added (0: none): they lie behind the first one's,
//                       which are filled up with zeros to a multiple of 64, and have maps of their own
// Maps: 0 rows, 1 columns of the scores, 2 columns of the values, 3 the result where it is PLAIN; MORE_MAP rows and columns of the
// second product.

// The i-th stretch of the rows of a tile, of which a warpgroup's begin at `first`; false: there are no more.
DEV bool stretch_at(const Params &P, const Place &at, int first, int i, Stretch &x) {
#if STRETCHED   // see attention_stretches.cuh; rows that see nothing have one, too
  if (i && x.last) return false;
  const uint4 record = stretch_record(P, at.batch, at.row + i);
  const bool none = (int)record.x < 0;
  x.last = none || record.y & LAST_STRETCH;
  int from = 0, to = COLUMNS;
  if (!none) columns_seen(P, at.batch, (int)record.z, (int)record.w, from, to);
  x.origin = none ? 0 : (int)record.x;
  x.lo = max(from - x.origin, 0) / STREAM;
  x.hi = (min(min(to, COLUMNS), (int)(record.y & ~LAST_STRETCH)) - x.origin + STREAM - 1) / STREAM;
  if (x.hi <= x.lo) x.lo = 0, x.hi = 1;
  const uint2 run = run_record(P, at.batch, first);
  from = 0, to = (int)run.y;
  columns_whole(P, at.batch, first, min(first + 64, BATCH_ROWS) - 1, from, to);
  x.from = (max(from - x.origin, 0) + STREAM - 1) / STREAM;
  x.to = (int)run.x == x.origin ? max(min(to, COLUMNS) - x.origin, 0) / STREAM : 0;
  return true;
#else
  if (i) return false;
  x.origin = stream_origin(P, at.batch);
  tiles_seen(P, at.batch, at.row, TILE_M, x.lo, x.hi);
  tiles_whole(P, at.batch, first, 64, x.from, x.to);
  return true;
#endif
}

#define BUFFER (PANELS_BYTES(SCORE_DEPTH > VALUE_WIDTH ? SCORE_DEPTH : VALUE_WIDTH, 64))   // a warpgroup's rows, or its results
#define ROWS_BYTES PANELS_BYTES(SCORE_DEPTH, 64)
#define RING (QUERIES * GROUPS * BUFFER)
// Shared memory: the rows' buffers, the ring, and the mbarriers. A slot belongs to TMA from `empty` (an arrival of every warpgroup)
// to `full` (the bytes); a buffer from row_empty to row_full, one pair for each buffer of each warpgroup, which puts its results
// there, too: it is given back when the next tile's first product is on its way and the stores have been read.
#if CHUNK_TILES   // what was folded, beside it; results are staged there, so rows are given back when their scores are made
#define RUNNING (RING + SLOTS * SLOT)
#define RUNNING_STATS (RUNNING + GROUPS * RUNNING_BYTES)
#define BARRIERS (RUNNING_STATS + GROUPS * 1024)
#else
#define RUNNING 0
#define RUNNING_STATS 0
#define BARRIERS (RING + SLOTS * SLOT)
#endif

extern "C" __global__ void __launch_bounds__(128 * GROUPS + 128, 1) NAME(const __grid_constant__ Params P) {
  extern __shared__ __align__(1024) u8 memory[];
  const u32 base = smem_u32(memory);
  const u32 full = base + BARRIERS, empty = full + 8 * SLOTS, row_full = empty + 8 * SLOTS, row_empty = row_full + 8 * QUERIES * GROUPS;
  const Numbers numbers(row_empty + 8 * QUERIES * GROUPS);
  const int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), t = threadIdx.x & 127;
  if (threadIdx.x == 0) {
    for (int i = 0; i < SLOTS; i++) { mbar_init(full + 8 * i, 1); mbar_init(empty + 8 * i, GROUPS); }
    for (int i = 0; i < QUERIES * GROUPS; i++) { mbar_init(row_full + 8 * i, 1); mbar_init(row_empty + 8 * i, 1); }
    numbers.begin(4 * GROUPS);
    mbar_fence();
  }
  __syncthreads();
  dependency_wait();

  if (wg == GROUPS) {   // ---- the thread that feeds
    fewer_registers<FEW_REGISTERS>();
    if (t == 0) {
      const Order order(P);
      const Counter counter{(u64 *)P.counter};
      counter.begin(order.total);
      u32 s = 0, ph = 1;   // the first pass over the ring does not wait
      int w = blockIdx.x;
#pragma unroll 1
      for (u32 j = 0; w < order.total; j++) {
        const u32 drawn = counter.take();
        const Place at = order.at(w);
        const int kz = keys_batch0(P, at.batch), kw = keys_batch1(P, at.batch), vz = values_batch0(P, at.batch), vw = values_batch1(P, at.batch);
        auto keys = [&](int col) {
          mbar_wait(empty + 8 * s, ph);
          mbar_expect(full + 8 * s, KEYS_BYTES);
          load_keys(P, base + RING + s * SLOT, full + 8 * s, at.batch, kz, kw, col);
          ADVANCE(s, ph)
        };
        auto values = [&](int col) {
          mbar_wait(empty + 8 * s, ph);
          mbar_expect(full + 8 * s, VALUES_BYTES);
          load_panels<VALUE_WIDTH, STREAM>(base + RING + s * SLOT, &P.map[2], full + 8 * s, col, vz, vw);
          ADVANCE(s, ph)
        };
        auto rows = [&] {
#pragma unroll 1
          for (int i = 0; i < GROUPS; i++) {
            const u32 b = j % QUERIES * GROUPS + i, bar = row_full + 8 * b;
            mbar_wait(row_empty + 8 * b, (j / QUERIES & 1) ^ 1);
            mbar_expect(bar, ROWS_BYTES);
            load_rows(P, base + b * BUFFER, bar, at.row + 64 * i, at.batch);
          }
        };
        if (QUERIES > 1) rows();
        Stretch x;
        stretch_at(P, at, at.row, 0, x);
        int col = x.origin + (x.hi - 1) * STREAM;
        keys(col);
        if (QUERIES == 1) rows();
#pragma unroll 1
        for (int i = 1, n = x.hi - 2;; i++, n = x.hi - 1) {
#pragma unroll 1
          for (; n >= x.lo; n--) {
            keys(x.origin + n * STREAM);
            values(col);
            col = x.origin + n * STREAM;
          }
          if (!stretch_at(P, at, at.row, i, x)) break;
        }
        values(col);
        w = (int)drawn + (int)gridDim.x;
        if (drawn == (u32)order.total - 1) counter.end();
        numbers.give(j, w);
      }
      dependency_start();
    }
  } else {   // ---- the warpgroups that compute
    more_registers<MANY_REGISTERS>();
    const int lane = t & 31;
    const Order order(P);
    Running running(base + RUNNING_STATS + wg * 1024, base + RUNNING + wg * RUNNING_BYTES, t);
    float o[ACCUMULATORS] UNREAD;
    Softmax softmax;
    u32 st = 0, ph = 0;
    int pending = -1;   // the buffer whose stores have to be read yet
    int w = blockIdx.x;
    // The warpgroups in turn issue their products, so that the softmax of one runs under the products of the others.
    if (PING_PONG && wg == GROUPS - 1) bar_arrive(1, 256);
    auto my_turn = [&] { if (PING_PONG) bar_sync(1 + wg, 256); };
    auto your_turn = [&] { if (PING_PONG) bar_arrive(1 + (wg + 1 == GROUPS ? 0 : wg + 1), 256); };
    auto release = [&](u32 slot) { if (t == 0) mbar_arrive(empty + 8 * slot); };
#pragma unroll 1
    for (u32 j = 0; w < order.total; j++) {
      const Place at = order.at(w);
      const int first = at.row + 64 * wg;                                                   // of this warpgroup's rows in the batch
      const int row = at.batch * BATCH_PAD + first + (t >> 5) * 16 + (lane >> 2);           // this thread's, as tiles count them
      Stretch x;
      stretch_at(P, at, first, 0, x);
      const u32 buffer = j % QUERIES * GROUPS + wg, rows = base + buffer * BUFFER;
      score::Rows R;
      score::rows_load(R, P, row);
      Seen<(MATCHES > 0)> seen;
      seen.find(P, row, x.origin + (x.hi - 1) * STREAM, t, x.origin);
      mbar_wait(row_full + 8 * buffer, j / QUERIES & 1);
      const bool alone = weigh_columns(P, R, rows, base + RING, full, empty, st, ph, row, t, x, seen, o, softmax, running, my_turn, your_turn, [&](int i) { return stretch_at(P, at, first, i, x); }, [&] {
        if (CHUNK_TILES && PLAIN && pending >= 0) {
          if (t == 0) bulk_wait_read<0>();
          bar_sync(1 + GROUPS + wg, 128);
        }
        if (!CHUNK_TILES && QUERIES > 1 && pending >= 0 && t == 0) { bulk_wait_read<0>(); mbar_arrive(row_empty + 8 * pending); }
      }, [&] {
        if (CHUNK_TILES && t == 0) mbar_arrive(row_empty + 8 * buffer);
      });
      // From the reference to the largest score, as the program has it.
      float top[2], sum[2], factor[2], reference[2];
#if CHUNK_TILES
      float old[2], own[2];
      running.fold_stats(softmax, alone, reference, sum, old, own);
#else
#pragma unroll
      for (int r = 0; r < 2; r++) reference[r] = chunk_end(softmax, r, sum[r]);
#endif
#pragma unroll
      for (int r = 0; r < 2; r++) {
        top[r] = most_of(softmax, r);
        factor[r] = fold_end(top[r], reference[r], GUARDED ? 1.f : INF - INF);
        sum[r] *= factor[r];
        top[r] *= SCALE;
      }
      out::Rows O;
      out::rows_load(O, P, row, top, sum, TOTALS(R) lane & 3);
      wg_wait<0>();
      hold(o);
      release(st);
      ADVANCE(st, ph)
#if CHUNK_TILES
      if (!alone) running.fold_sums(o, old, own);
#endif
#pragma unroll
      for (int i = 0; i < ACCUMULATORS; i++) o[i] = __fmaf_rn(o[i], factor[i >> 1 & 1], 0.f);   // as a fold, it has no zero below 0
#if PLAIN
#pragma unroll
      for (int i = 0; i < ACCUMULATORS; i++) o[i] = out::plain(O, i >> 1 & 1, o[i]);
      const u32 staged = CHUNK_TILES ? base + RUNNING + wg * RUNNING_BYTES : rows;
      __syncwarp();   // the lanes of a warp put them where their sums were
      stage_panels(staged, o, t);
      fence_async();
      bar_sync(1 + GROUPS + wg, 128);
      if (t == 0) {
        store_panels<VALUE_WIDTH>(&P.map[3], staged, first, out_batch0(P, at.batch), out_batch1(P, at.batch));
        bulk_commit();
      }
#else
      out::Sums S;
      if (row_there(P, at.batch * BATCH_PAD + first)) out::epilogue_subtile<0>(Kept<ACCUMULATORS>{o}, O, S, P, 0, row, 0, t);
#endif
      if (!CHUNK_TILES && QUERIES == 1 && t == 0) { bulk_wait_read<0>(); mbar_arrive(row_empty + 8 * buffer); }
      pending = (int)buffer;
      w = numbers.take(j, lane);
    }
    if (PING_PONG && wg == 0) bar_sync(1, 256);   // the turn that nobody takes
    if (t == 0) bulk_wait<0>();
  }
}
