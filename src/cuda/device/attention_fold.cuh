// attention_fold.cuh: folds the partials of attention_split.cuh, and runs the epilogue. A block has the rows of one batch.
//
// Which chunks there are follows from the same bounds as there; the others' partials were never written. First a warp takes a row:
// its largest score, the factor of each chunk, and its sum of weights. Then a thread takes four columns of a row, and every eighth
// chunk, four such at once, as it waits for memory: eight lanes with the same columns add up what they have, in one order. So a row's result depends on its own chunks alone.
// At last four warps see the sums as the accumulators of 64 rows, and run what the program does with them.
//
// Of the emitted part see attention_forward.cuh: out::Rows, out::rows_load, out::Sums and out::epilogue_subtile.

#define FACTORS (BATCH_ROWS * VALUE_WIDTH)        // shared memory: the sums, the factors of all chunks, each row's statistics
#define ROW_STATS (FACTORS + BATCH_ROWS * MOST_CHUNKS)
#define AT_ONCE 4

// The sums as accumulators; rows that are not there are like the last.
struct Folded {
  const float *sums;
  int row, last, col;
  DEV float operator()(int j, int i, int e) const {
    const int r = min(row + 8 * (i & 1), last), c = col + 16 * j + 8 * (i >> 1) + e;
    return VALUE_WIDTH % 16 == 0 || c < VALUE_WIDTH ? sums[r * VALUE_WIDTH + c] : 0.f;
  }
};

extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ Params P) {
  extern __shared__ __align__(1024) u8 memory[];
  float *const room = (float *)memory;
  const int batch = blockIdx.x, t = threadIdx.x, lane = t & 31, warp = t >> 5;
  dependency_start();
  dependency_wait();
  int first, count;
  chunks_seen(P, batch, first, count);
  const i64 before = (i64)batch * CHUNKS;
#pragma unroll 1
  for (int r = warp; r < BATCH_ROWS; r += 8) {
    const float2 *const stats = (const float2 *)P.ptr[STATS_PTR] + before * BATCH_ROWS + r;
    float most = -INF, sum = 0.f;
    for (int c = first + lane; c < first + count; c += 32) most = fmaxf(most, stats[(i64)c * BATCH_ROWS].x);
#pragma unroll
    for (int d = 1; d < 32; d *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    const float base = most == -INF ? 0.f : most * POST;
    // A lane's chunks are those that are equal to it by 32, wherever the first is.
    for (int c = first / 32 * 32 + lane; c < first + count; c += 32) {
      if (c < first) continue;
      const float2 x = stats[(i64)c * BATCH_ROWS];
      const float f = most == -INF ? 0.f : ex2(__fmaf_rn(x.x, POST, -base));   // not a number stays one, by the sums
      room[FACTORS + r * MOST_CHUNKS + c] = f;
      sum += x.y * f;
    }
#pragma unroll
    for (int d = 1; d < 32; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (lane == 0) {
      if (!GUARDED && most == -INF) sum = INF - INF;
      room[ROW_STATS + 2 * r] = most * SCALE;
      room[ROW_STATS + 2 * r + 1] = sum;
    }
  }
  __syncthreads();
  const int part = lane >> 2;
  const int all = BATCH_ROWS * (VALUE_WIDTH / 4);
#pragma unroll 1
  for (int i = warp * 4; i < all; i += 32 * AT_ONCE) {   // VALUE_WIDTH / 4 is even, so four may be of two rows
    int mine[AT_ONCE];
    float4 sum[AT_ONCE];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      mine[u] = min(i + 32 * u + (lane & 3), all - 1);
      const float none = !GUARDED && room[ROW_STATS + 2 * (mine[u] / (VALUE_WIDTH / 4))] == -INF ? INF - INF : 0.f;
      sum[u] = make_float4(none, none, none, none);
    }
#pragma unroll 4
    for (int c = first / 8 * 8 + part; c < first + count; c += 8) {
      const bool there = c >= first;
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) {
        const int r = mine[u] / (VALUE_WIDTH / 4), x = mine[u] % (VALUE_WIDTH / 4);
        const float f = there ? room[FACTORS + r * MOST_CHUNKS + c] : 0.f;
        const float4 v = there ? *((const float4 *)P.ptr[SUMS_PTR] + ((before + c) * BATCH_ROWS + r) * (VALUE_WIDTH / 4) + x) : make_float4(0.f, 0.f, 0.f, 0.f);
        sum[u].x = __fmaf_rn(v.x, f, sum[u].x);
        sum[u].y = __fmaf_rn(v.y, f, sum[u].y);
        sum[u].z = __fmaf_rn(v.z, f, sum[u].z);
        sum[u].w = __fmaf_rn(v.w, f, sum[u].w);
      }
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
#pragma unroll
      for (int d = 4; d < 32; d *= 2) {
        sum[u].x += __shfl_xor_sync(~0u, sum[u].x, d);
        sum[u].y += __shfl_xor_sync(~0u, sum[u].y, d);
        sum[u].z += __shfl_xor_sync(~0u, sum[u].z, d);
        sum[u].w += __shfl_xor_sync(~0u, sum[u].w, d);
      }
      if (part == 0) *((float4 *)room + mine[u]) = sum[u];
    }
  }
  __syncthreads();
  if (warp < 4) {
    const int in = warp * 16 + (lane >> 2), row = batch * BATCH_PAD + in;
    float top[2], sum[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int r = min(in + 8 * h, BATCH_ROWS - 1);
      top[h] = room[ROW_STATS + 2 * r];
      sum[h] = room[ROW_STATS + 2 * r + 1];
    }
    out::Rows O;
    out::Sums S;
    out::rows_load(O, P, row, top, sum, lane & 3);
    out::epilogue_subtile<0>(Folded{room, in, BATCH_ROWS - 1, 2 * (lane & 3)}, O, S, P, 0, row, 0, t);
  }
}
