// attention_mma_sums.cuh: by mma.sync, one or two sums over columns, each of the columns of one of two products of rows and columns
// times weights made of these products, without a softmax. One (SUMS 1) is the gradient of queries: dq = sum of ds * k, with s = q k,
// dp = d_o v and ds made of both. Two are those of keys and values: dk = sum of ds * q and dv = sum of p * d_o, with s = k q,
// dp = v d_o, p made of s, and ds of both.
//
// A block is THREADS threads and has one tile of rows of both products, which stay. Tiles of STREAM columns
// of both go through a ring of SLOTS slots. Columns are those of COLUMN_GROUPS groups (the query heads of a
// key's head) of COLUMNS each: all groups of a tile of columns, then the next tile, from the last to the
// first. One warp computes every sum, in that order: there are no atomics.
//
// What the emitted part defines is in attention_rows.cuh and attention_pair.cuh, less PLAIN and wgmma, and in attention_mma.cuh.

#define SECOND_ROWS PANELS_BYTES(SCORE_DEPTH, TILE_M)   // behind those of the first product
#define RING (SECOND_ROWS + PANELS_BYTES(SECOND_DEPTH, TILE_M))
#define KEYS_BYTES PANELS_BYTES(SCORE_DEPTH, STREAM)
#define SLOT (KEYS_BYTES + PANELS_BYTES(SECOND_DEPTH, STREAM))
#define STAGED_AT (RING + SLOTS * SLOT)   // what comes with the columns of each slot
#define ACCUMULATORS (8 * SIXTEENS(SCORE_DEPTH))
#define ACCUMULATORS2 (8 * SIXTEENS(SECOND_DEPTH))
// Steps are counted downwards over all tiles and groups.
#define TILE_OF(left) (((left) - 1) / COLUMN_GROUPS)
#define GROUP_OF(left) (COLUMN_GROUPS - 1 - ((left) - 1) % COLUMN_GROUPS)

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) NAME(const __grid_constant__ Params P) {
  extern __shared__ __align__(1024) u8 memory[];
  const u32 base = smem_u32(memory);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  dependency_wait();
  const Place at = Order(P).at(blockIdx.x);
  const int first = at.batch * BATCH_PAD + at.row + 16 * BANDS * warp;   // of this warp's rows, as tiles count them
  int lo, hi, from, to;
  tiles_seen(P, at.batch, at.row, TILE_M, lo, hi);
  tiles_whole(P, at.batch, at.row, TILE_M, from, to);

  // Copies are committed and waited for as in attention_mma_forward.cuh. What comes with the columns is written by the threads of
  // one warp, each time another, when the slot is filled: it is read after the next barrier at the earliest.
  u32 slot = 0;                    // that is read next
  int left = hi * COLUMN_GROUPS;   // the step that is taken next
  auto load = [&](u32 into, int left) {
    if (left > lo * COLUMN_GROUPS) {
      const int col = TILE_OF(left) * STREAM, group = GROUP_OF(left);
      const int batch = anew(at.batch);
      const u32 to = base + RING + into * SLOT;
      load_tile<SCORE_DEPTH, STREAM>(to, keys_from(P, batch, group), keys_apart(P), col, COLUMNS);
      load_tile<SECOND_DEPTH, STREAM>(to + KEYS_BYTES, values_from(P, batch, group), values_apart(P), col, COLUMNS);
#if STAGED
      for (int c = lane; c < STREAM && warp == left % WARPS; c += 32) {
        float v[STAGED];
        staged_make(P, v, batch, group, min(col + c, COLUMNS - 1));
        staged_store(base + STAGED_AT + into * 4 * STAGED * STREAM, v, c);
      }
#endif
    }
    cp_commit();
  };
  load_tile<SCORE_DEPTH, TILE_M>(base, rows_from(P, at.batch, 0), rows_apart(P), at.row, BATCH_ROWS);
  load_tile<SECOND_DEPTH, TILE_M>(base + SECOND_ROWS, rows2_from(P, at.batch, 0), rows2_apart(P), at.row, BATCH_ROWS);
#pragma unroll
  for (int i = 0; i < SLOTS - 1; i++) load(i, left - i);   // the first in one group with the rows

  score::Rows R[BANDS];
  float sum[BANDS][ACCUMULATORS], s[BANDS][STREAM / 2], dp[BANDS][STREAM / 2];
#if SUMS == 2
  float sum2[BANDS][ACCUMULATORS2];
#endif
#pragma unroll
  for (int h = 0; h < BANDS; h++) {
    score::rows_load(R[h], P, first + 16 * h + (lane >> 2));
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; i++) sum[h][i] = 0.f;
#if SUMS == 2
#pragma unroll
    for (int i = 0; i < ACCUMULATORS2; i++) sum2[h][i] = 0.f;
#endif
  }
  auto step = [&](auto cut) {
    constexpr int CUT = decltype(cut)::value;
    cp_wait<SLOTS - 2>();
    __syncthreads();
    load(slot == 0 ? SLOTS - 1 : slot - 1, left - (SLOTS - 1));
    const u32 keys = base + RING + slot * SLOT, values = keys + KEYS_BYTES, staged = base + STAGED_AT + slot * 4 * STAGED * STREAM;
    const int t = anew(threadIdx.x), col = TILE_OF(left) * STREAM, group = GROUP_OF(left), row = anew(at.batch) * BATCH_PAD + at.row + 16 * BANDS * (t >> 5) + (t >> 2 & 7);
    slot = slot + 1 == SLOTS ? 0 : slot + 1;
    constexpr int EVALUATE = CUT && !MATCHES;   // the program's conditions; else a cut tile is a whole one, of which bits say what is seen
    Seen<(CUT && MATCHES > 0)> seen[BANDS];
#pragma unroll
    for (int h = 0; h < BANDS; h++) seen[h].find(P, row + 16 * h, col, t);
    score_product<SCORE_DEPTH>(s, base, keys);
#if SPLIT
#pragma unroll
    for (int h = 0; h < BANDS; h++) {
      score::first<EVALUATE>(s[h], R[h], P, row + 16 * h, group, col, t, staged);
      seen[h].keep(s[h], 0.f);
    }
#endif
#if SPLIT && SUMS == 2
    value_product<SECOND_DEPTH>(sum2, s, values);
#endif
    score_product<SECOND_DEPTH>(dp, base + SECOND_ROWS, values);
#pragma unroll
    for (int h = 0; h < BANDS; h++) {
      score::second<EVALUATE>(s[h], dp[h], R[h], P, row + 16 * h, group, col, t, staged);
      if (!SPLIT) seen[h].keep(s[h], 0.f);
      seen[h].keep(dp[h], 0.f);
    }
#if !SPLIT && SUMS == 2
    value_product<SECOND_DEPTH>(sum2, s, values);
#endif
    value_product<SCORE_DEPTH>(sum, dp, keys);
  };
  // Down to tile `until`: cut tiles at the end, whole ones, and cut ones at the beginning.
  auto walk = [&](auto cut, int until) {
#pragma unroll 1
    for (; left > until * COLUMN_GROUPS; left--) step(cut);
  };
  walk(Is<1>{}, max(CUT_END ? to : hi - 1, lo));
#if CUT_BEGIN
  walk(Is<0>{}, max(from, lo));
  walk(Is<1>{}, lo);
#else
  walk(Is<0>{}, lo);
#endif
  dependency_start();

#pragma unroll
  for (int h = 0; h < BANDS; h++) {
    const int row = first + 16 * h + (lane >> 2);
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; i++) sum[h][i] *= SCALE;
    out::Rows O;
    out::Sums S;
    out::rows_load(O, P, row, TOTALS(R[h]) lane & 3);
    if (row_there(P, first + 16 * h)) out::epilogue_subtile<0>(Kept<ACCUMULATORS>{sum[h]}, O, S, P, 0, row, 0, threadIdx.x);
#if SUMS == 2
    out2::Rows O2;
    out2::Sums S2;
    out2::rows_load(O2, P, row, TOTALS(R[h]) lane & 3);
    if (row_there(P, first + 16 * h)) out2::epilogue_subtile<0>(Kept<ACCUMULATORS2>{sum2[h]}, O2, S2, P, 0, row, 0, threadIdx.x);
#endif
  }
}
