// attention_split.cuh: attention of few rows on Hopper, its columns in chunks: one query of each sequence over a long cache.
//
// A batch has up to 64 rows (the heads of a group, a few tokens), so it is one tile. Its columns are split
// into chunks of CHUNK by their positions: chunk c has the columns from c * CHUNK on, counted from the first
// of the sequence. A chunk of which no row sees anything is no item of work. The results of an item are
// partials: for each row a reference, the sum of weights and the sums of weighted values, both relative to
// the reference, and the largest score. attention_fold.cuh combines them. If there can be only one chunk
// (ALONE), every batch is an item, and its results are those of the program. The result of a row does not
// depend on the number of blocks, nor on which block processes what.
//
// A block is 256 threads: a warpgroup that computes, and one with the warp that feeds it by TMA. Memory is
// the bottleneck. So the ring has all of shared memory except the rows, and the warp that feeds goes on to
// the next item while the warpgroup still computes. A slot belongs to TMA from `empty` (one arrival) to
// `full` (the bytes); slots are used in the order K0 K1 V0 K2 V1 ... V(n-1). The rows' operand is brought by
// the threads that compute, between two barriers of their own.
//
// Of the step see attention_online.cuh or, of at most 16 rows (TURNED), attention_turned.cuh; of what the emitted part defines attention_forward.cuh; besides that:
//   row_at(P, r)                        where row r of all batches starts, in elements of 16 bits; P.ptr[ROWS_PTR] is the tensor
//   keys_page(P, batch, n), values_page PAGE > 0: the page that has the n-th PAGE columns of a batch, -1 where there is none
// Maps: 0 columns of the scores, 1 columns of the values. P.ptr[SUMS_PTR] is the partials' sums of values, P.ptr[STATS_PTR] the
// reference, the sum of weights and the largest score of each row.

#define ROW_LINES (TURNED ? TURNED : 64)
#if !TURNED
#define RELEASES 1
#define ROWS_BYTES PANELS_BYTES(SCORE_DEPTH, 64)
#define BARRIERS (ROWS_BYTES + SLOTS * SLOT)
#endif
#define BOX (PAGE && PAGE < STREAM ? PAGE : STREAM)   // columns that one instruction of TMA brings

// The items of a block: of all batches' chunks that some row sees, one after another, every gridDim.x-th. A lane has one of 32
// batches at a time: its chunks, and how many those before it and it have together. All lanes ask together.
struct Items {
  int batches, first, start, sum, number;   // batches in all; the first of these 32; items before them; theirs; this block's next one
  int lane, lo, count, end;
  DEV Items(const Params &P, int at) : batches((int)P.M / BATCH_ROWS), first(-32), start(0), sum(0), number((int)blockIdx.x), lane(at) {}
  DEV bool next(const Params &P, int &batch, int &chunk) {
#if ALONE
    batch = number;
    chunk = 0;
    number += (int)gridDim.x;
    return batch < batches;
#else
    while (number >= start + sum) {
      start += sum;
      first += 32;
      if (first >= batches) return false;
      lo = 0;
      count = 0;
      if (first + lane < batches) chunks_seen(P, first + lane, lo, count);
      end = count;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int before = (int)__shfl_sync(~0u, (u32)end, lane - d & 31);
        if (lane >= d) end += before;
      }
      sum = (int)__shfl_sync(~0u, (u32)end, 31);
    }
    const int at = __popc(__ballot_sync(~0u, start + end <= number));
    batch = first + at;
    chunk = (int)__shfl_sync(~0u, (u32)(lo + count - end), at) + number - start;
    number += (int)gridDim.x;
    return true;
#endif
  }
};

// Tiles of a chunk that the rows see any of.
DEV void tiles_of(const Params &P, int batch, int origin, int chunk, int &lo, int &hi) {
  int from = 0, to = COLUMNS;
  columns_seen(P, batch, 0, BATCH_ROWS - 1, from, to);
  lo = max(max(from - origin, 0) / STREAM, chunk * (CHUNK / STREAM));
  hi = min((min(to, COLUMNS) - origin + STREAM - 1) / STREAM, (chunk + 1) * (CHUNK / STREAM));
  if (ALONE && hi <= lo) lo = 0, hi = 1;   // rows that see nothing have results, too
}

extern "C" __global__ void __launch_bounds__(256, 1) NAME(const __grid_constant__ Params P) {
  extern __shared__ __align__(1024) u8 memory[];
  const u32 base = smem_u32(memory), ring = base + ROWS_BYTES, full = base + BARRIERS, empty = full + 8 * SLOTS;
  const int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), t = threadIdx.x & 127, lane = t & 31;
  if (threadIdx.x == 0) {
    for (int i = 0; i < SLOTS; i++) { mbar_init(full + 8 * i, 1); mbar_init(empty + 8 * i, RELEASES); }
#if STAGED
    for (int i = 0; i < 2 * STAGES; i++) mbar_init(base + STAGE_BARRIERS + 8 * i, 1);
#endif
    mbar_fence();
  }
  // Rows that are not there are zeros, once and for all.
  for (int i = threadIdx.x; i < ROWS_BYTES / 16; i += 256)
    if (i / 8 % ROW_LINES >= BATCH_ROWS || i % 8 * 8 + i / 8 / ROW_LINES * 64 >= SCORE_DEPTH)
      sts128(base + i / 8 / ROW_LINES * (ROW_LINES * 128) + swizzled<128>(i / 8 % ROW_LINES, i % 8 * 16), 0, 0, 0, 0);
  __syncthreads();
  dependency_start();   // what comes after the fold may ask for its weights while this waits for keys and values
  dependency_wait();

  Items items(P, lane);
  int batch, chunk;
  if (wg == 1) {   // ---- the warp that feeds
    if (t < 32) {
      u32 s = 0, ph = 1;   // the first pass over the ring does not wait
#pragma unroll 1
      while (items.next(P, batch, chunk)) {
        const int origin = stream_origin(P, batch);
        int lo, hi;
        tiles_of(P, batch, origin, chunk, lo, hi);
        const int kz = keys_batch0(P, batch), kw = keys_batch1(P, batch), vz = values_batch0(P, batch), vw = values_batch1(P, batch);
        // One tile of keys or of values, `width` features wide, into the next slot.
        auto load = [&](auto width, auto narrow, int n, const TMap *map, u32 bytes, int page, int z, int w) {
          if (lane == 0) {
            mbar_wait(empty + 8 * s, ph);
            mbar_expect(full + 8 * s, bytes);
          }
          __syncwarp();
#if PAGE   // a box of columns of one page; there is none before the first, so that all of it becomes zero
          if (lane < STREAM / BOX) load_panels<decltype(width)::value, STREAM, decltype(narrow)::value>(ring + s * SLOT + lane * BOX * 128, map, full + 8 * s, (n * STREAM + lane * BOX) % PAGE, page, z, w);
#else
          if (lane == 0) load_panels<decltype(width)::value, STREAM, decltype(narrow)::value>(ring + s * SLOT, map, full + 8 * s, origin + n * STREAM, z, w);
#endif
          ADVANCE(s, ph)
        };
#if PAGE
#define PAGE_OF(which, n) (lane < STREAM / BOX ? which##_page(P, batch, (n * STREAM + lane * BOX) / PAGE) : 0)
#else
#define PAGE_OF(which, n) 0
#endif
        auto keys = [&](int n) { load(Is<SCORE_DEPTH>{}, Is<NARROW_KEYS>{}, n, &P.map[0], KEYS_BYTES, PAGE_OF(keys, n), kz, kw); };
        auto values = [&](int n) { load(Is<VALUE_WIDTH>{}, Is<NARROW_VALUES>{}, n, &P.map[1], VALUES_BYTES, PAGE_OF(values, n), vz, vw); };
        keys(hi - 1);
#pragma unroll 1
        for (int n = hi - 2; n >= lo; n--) { keys(n); values(n + 1); }
        values(lo);
      }
    }
#if STAGED   // ---- and those that bring what comes with a tile: they ask for it before its place is free
    else {
      u32 tile = 0;
#pragma unroll 1
      while (items.next(P, batch, chunk)) {
        const int origin = stream_origin(P, batch);
        int lo, hi;
        tiles_of(P, batch, origin, chunk, lo, hi);
#pragma unroll 1
        for (int n = hi - 1; n >= lo; n--, tile++) {
          if (tile % STAGERS != (t >> 5) - 1) continue;
          const u32 at = tile % STAGES, bar = base + STAGE_BARRIERS + 8 * at;
          float v[STREAM / 32][STAGED];
#pragma unroll
          for (int i = 0; i < STREAM / 32; i++) staged_make(P, v[i], batch, 0, min(origin + n * STREAM + lane + 32 * i, COLUMNS - 1));
          if (lane == 0) mbar_wait(bar + 8 * STAGES, (tile / STAGES & 1) ^ 1);
          __syncwarp();
#pragma unroll
          for (int i = 0; i < STREAM / 32; i++) staged_store(base + STAGED_AT + at * 4 * STAGED * STREAM, v[i], lane + 32 * i);
          __syncwarp();
          if (lane == 0) mbar_arrive(bar);
        }
      }
    }
#endif
  } else {   // ---- the warpgroup that computes
#if TURNED
    float o[FEATURES][TURNED / 2] UNREAD;
    Turned rows(base, t);
#else
    float o[ACCUMULATORS] UNREAD;
    Softmax softmax;
    Running running(0, 0, t);
    auto release = [&](u32 slot) { if (t == 0) mbar_arrive(empty + 8 * slot); };
#endif
    u32 st = 0, ph = 0;
#pragma unroll 1
    while (items.next(P, batch, chunk)) {
      const int row = batch * BATCH_PAD + (TURNED ? 0 : (t >> 5) * 16) + (lane >> 2);   // this thread's, as tiles count them
      Stretch x;
      x.origin = stream_origin(P, batch);
      tiles_of(P, batch, x.origin, chunk, x.lo, x.hi);
      tiles_whole(P, batch, 0, 64, x.from, x.to);
      bar_sync(1, 128);   // the last item's rows are not needed any more
#if NARROW_KEYS
      for (int i = t; i < BATCH_ROWS * KEY_STEPS; i += 128) {
        const int r = i / KEY_STEPS, x = i % KEY_STEPS;
        const uint4 *const from = (const uint4 *)((const u16 *)P.ptr[ROWS_PTR] + row_at(P, batch * BATCH_ROWS + r) + 16 * x);
        uint4 w = fetch(from), v = make_uint4(0, 0, 0, 0);
        if (16 * x + 8 < SCORE_DEPTH) v = fetch(from + 1);
        const u32 all[8] = {w.x, w.y, w.z, w.w, v.x, v.y, v.z, v.w};
        u32 to[8];
        feature_order(to, all);
        sts128(base + x / 4 * (ROW_LINES * 128) + swizzled<128>(r, x % 4 * 32), to[0], to[1], to[2], to[3]);
        sts128(base + x / 4 * (ROW_LINES * 128) + swizzled<128>(r, x % 4 * 32 + 16), to[4], to[5], to[6], to[7]);
      }
#else
      for (int i = t; i < BATCH_ROWS * (SCORE_DEPTH / 8); i += 128) {
        const int r = i / (SCORE_DEPTH / 8), x = i % (SCORE_DEPTH / 8);
        const uint4 w = fetch((const uint4 *)((const u16 *)P.ptr[ROWS_PTR] + row_at(P, batch * BATCH_ROWS + r) + 8 * x));
        sts128(base + x / 8 * (ROW_LINES * 128) + swizzled<128>(r, x % 8 * 16), w.x, w.y, w.z, w.w);
      }
#endif
      fence_async();
      bar_sync(1, 128);
      score::Rows R;
      score::rows_load(R, P, row);
#if TURNED
      weigh_turned(P, R, ring, full, empty, st, ph, row, x, o, rows);
      const float4 stats = rows.end();
#if ALONE   // where scores were
      float *const sums = (float *)(memory + SCORES), *const state = sums + TURNED * VALUE_WIDTH;
      if (t % 8 == 0 && t / 8 < BATCH_ROWS) state[3 * (t / 8)] = stats.x, state[3 * (t / 8) + 1] = stats.y, state[3 * (t / 8) + 2] = stats.z;
      rows.store(P, o, sums);
      bar_sync(1, 128);
      if (t < 32) finish_rows(P, sums, state, batch, lane >> 2, t);
#else
      const i64 at = ((i64)batch * CHUNKS + chunk) * BATCH_ROWS;
      if (t % 8 == 0 && t / 8 < BATCH_ROWS) *((float4 *)P.ptr[STATS_PTR] + at + t / 8) = stats;
      rows.store(P, o, (float *)P.ptr[SUMS_PTR] + at * VALUE_WIDTH);
#endif
#else
      weigh_columns(P, R, base, ring, full, empty, st, ph, row, t, x, Seen<0>{}, o, softmax, running, [] {}, [] {}, [](int) { return false; }, [] {}, [] {});
      float most[2], sum[2], reference[2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        reference[r] = chunk_end(softmax, r, sum[r]);
        most[r] = most_of(softmax, r);
      }
      wg_wait<0>();
      hold(o);
      release(st);
      ADVANCE(st, ph)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int in = (t >> 5) * 16 + (lane >> 2) + 8 * r;
        if (in >= BATCH_ROWS) continue;
        const i64 at = ((i64)batch * CHUNKS + chunk) * BATCH_ROWS + in;
        if ((lane & 3) == 0) *((float4 *)P.ptr[STATS_PTR] + at) = make_float4(reference[r], sum[r], most[r], 0.f);
        float2 *const to = (float2 *)P.ptr[SUMS_PTR] + at * (VALUE_WIDTH / 2) + (lane & 3);
#pragma unroll
        for (int i = 0; i < ACCUMULATORS / 4; i++)
          if (VALUE_WIDTH % 16 == 0 || 8 * i < VALUE_WIDTH) to[4 * i] = make_float2(o[4 * i + 2 * r], o[4 * i + 2 * r + 1]);
      }
#endif
    }
  }
}
