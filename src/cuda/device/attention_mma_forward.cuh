// attention_mma_forward.cuh: attention with its softmax by mma.sync: o = sum over columns of exp(s - top) * v, where s comes from a
// product of rows and columns and top is the largest of a row.
//
// A block is THREADS threads and has one tile of rows, which stay. Tiles of STREAM columns of both operands
// (keys and values) go through one ring of SLOTS slots, in the order of use: K0 V0 K1 V1 ..., from the last
// columns to the first. Their positions alone decide which tiles exist. If several blocks share a
// multiprocessor, the softmax of one runs during the products of another.
//
// What the emitted part defines is in attention_forward.cuh, less PLAIN and wgmma, and in attention_mma.cuh.

#define KEYS_BYTES (NARROW_KEYS ? BYTE_PANELS(SCORE_DEPTH, STREAM) : PANELS_BYTES(SCORE_DEPTH, STREAM))
#define VALUES_BYTES (NARROW_VALUES ? BYTE_PANELS(VALUE_WIDTH, STREAM) : PANELS_BYTES(VALUE_WIDTH, STREAM))
#define SLOT (KEYS_BYTES > VALUES_BYTES ? KEYS_BYTES : VALUES_BYTES)
#define RING PANELS_BYTES(SCORE_DEPTH, TILE_M)   // behind the rows
#define ACCUMULATORS (8 * SIXTEENS(VALUE_WIDTH))

// What a row's columns came to: its largest score, its sum of weights relative to that, and the factor that does the same to other
// sums. Those of a row that has seen nothing are `none`, 0 or not a number, times what they were, which is 0.
DEV float softmax_end(const Softmax &x, int r, float none, float &most, float &sum) {
  float m = x.most[r], s = x.sum[r];
  s += __shfl_xor_sync(~0u, s, 1);
  s += __shfl_xor_sync(~0u, s, 2);
  m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
  m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
  const float factor = m == -INF ? none : LAZY ? ex2(__fmaf_rn(m, -POST, x.base[r])) : 1.f;
  most = m;
  sum = s * factor;
  return factor;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) NAME(const __grid_constant__ Params P) {
  extern __shared__ __align__(1024) u8 memory[];
  const u32 base = smem_u32(memory);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  dependency_wait();
  const Place at = Order(P).at(blockIdx.x);
  const int first = at.batch * BATCH_PAD + at.row + 16 * BANDS * warp;   // of this warp's rows, as tiles count them
  const int origin = stream_origin(P, at.batch);
  int lo, hi, from, to;
  tiles_seen(P, at.batch, at.row, TILE_M, lo, hi);
  tiles_whole(P, at.batch, at.row, TILE_M, from, to);

  // A thread's copies are committed as one group a slot, empty ones too, so that cp_wait<SLOTS - 2> always means the slot that is
  // read next. The barrier after it says two things: what all threads copied into that slot is there, and all warps have read the
  // slot before it, which is the one that is filled next.
  u32 slot = 0;   // that is read next
  auto load = [&](auto values, u32 into, int n) {
    if (n >= lo) {
      const int batch = anew(at.batch);
      if (decltype(values)::value) load_tile<VALUE_WIDTH, STREAM>(base + RING + into * SLOT, values_from(P, batch, 0), values_apart(P), origin + n * STREAM, COLUMNS);
      else load_tile<SCORE_DEPTH, STREAM>(base + RING + into * SLOT, keys_from(P, batch, 0), keys_apart(P), origin + n * STREAM, COLUMNS);
    }
    cp_commit();
  };
  // Waits for the keys (values) of tile n; meanwhile what comes SLOTS - 1 slots later is asked for.
  auto next = [&](auto values, int n) {
    constexpr int LATER = decltype(values)::value + SLOTS - 1;
    cp_wait<SLOTS - 2>();
    __syncthreads();
    load(Is<LATER % 2>{}, slot == 0 ? SLOTS - 1 : slot - 1, n - LATER / 2);
    const u32 here = base + RING + slot * SLOT;
    slot = slot + 1 == SLOTS ? 0 : slot + 1;
    return here;
  };
  load_tile<SCORE_DEPTH, TILE_M>(base, rows_from(P, at.batch, 0), rows_apart(P), at.row, BATCH_ROWS);
  load(Is<0>{}, 0, hi - 1);   // one group with the rows
#if SLOTS > 2
  load(Is<1>{}, 1, hi - 1);
#endif
#if SLOTS > 3
  load(Is<0>{}, 2, hi - 2);
#endif
  static_assert(SLOTS >= 2 && SLOTS <= 4, "so many are asked for above");

  score::Rows R[BANDS];
  Softmax softmax[BANDS];
  float o[BANDS][ACCUMULATORS], s[BANDS][STREAM / 2];
#pragma unroll
  for (int h = 0; h < BANDS; h++) {
    score::rows_load(R[h], P, first + 16 * h + (lane >> 2));
    softmax[h].begin();
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; i++) o[h][i] = 0.f;
  }
  auto step = [&](auto cut, int n) {
    constexpr int CUT = decltype(cut)::value;
    const int t = anew(threadIdx.x), row = anew(at.batch) * BATCH_PAD + at.row + 16 * BANDS * (t >> 5) + (t >> 2 & 7);
    Seen<(CUT && MATCHES > 0)> seen[BANDS];
#pragma unroll
    for (int h = 0; h < BANDS; h++) seen[h].find(P, row + 16 * h, origin + n * STREAM, t);
    const u32 keys = next(Is<0>{}, n);
#if NARROW_KEYS
    narrow_product<SCORE_DEPTH>(s, base, keys);
#else
    score_product<SCORE_DEPTH>(s, base, keys);
#endif
#pragma unroll
    for (int h = 0; h < BANDS; h++) {
      float alpha[2];
      bool grow;
      score::first<CUT && !MATCHES>(s[h], R[h], P, row + 16 * h, 0, origin + n * STREAM, t, 0);
      seen[h].keep(s[h], -INF);
      softmax[h].template step<0>(s[h], alpha, grow);
#if FACTOR
      score::second<CUT>(s[h], R[h], P, row + 16 * h, 0, origin + n * STREAM, t, 0);
#endif
      if (!LAZY || grow) {
#pragma unroll
        for (int i = 0; i < ACCUMULATORS; i++) o[h][i] *= alpha[i >> 1 & 1];
      }
    }
    const u32 values = next(Is<1>{}, n);
#if NARROW_VALUES
    narrow_values<VALUE_WIDTH>(o, s, values);
#else
    value_product<VALUE_WIDTH>(o, s, values);
#endif
  };
  step(Is<1>{}, hi - 1);
  walk_tiles(step, hi - 2, lo, from, to);
  dependency_start();

#pragma unroll
  for (int h = 0; h < BANDS; h++) {
    const int row = first + 16 * h + (lane >> 2);
    float top[2], sum[2], factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {   // from the reference to the largest score, as the program has it
      factor[r] = softmax_end(softmax[h], r, GUARDED ? 1.f : INF - INF, top[r], sum[r]);
      top[r] *= SCALE;
    }
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; i++) o[h][i] *= factor[i >> 1 & 1];
#if NARROW_VALUES
    order_features(o[h]);
#endif
    out::Rows O;
    out::Sums S;
    out::rows_load(O, P, row, top, sum, TOTALS(R[h]) lane & 3);
    if (row_there(P, first + 16 * h)) out::epilogue_subtile<0>(Kept<ACCUMULATORS>{o[h]}, O, S, P, 0, row, 0, threadIdx.x);
  }
}
