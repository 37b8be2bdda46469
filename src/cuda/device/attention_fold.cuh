// attention_fold.cuh: combines the partials of attention_split.cuh, and runs the epilogue. A block has the
// rows of one batch.
//
// The same bounds as there decide which chunks exist; partials of other chunks were never written. Chunks
// are processed from the last to the first, as attention_chunks.cuh says, SEGMENT = PART * PARTS of them at
// a time. A thread loads two columns of a row, of PART chunks, and PARTS threads combine theirs in turn. At
// the end four warps hold the sums as the accumulators of 64 rows, and run the program's epilogue on them
// (attention_folded.cuh).

#define FACTORS (BATCH_ROWS * VALUE_WIDTH)        // shared memory: the sums, the factors of a segment's chunks, each row's statistics
#define PART 16
#define SEGMENT (PART * PARTS)
#define ITEMS (BATCH_ROWS * (VALUE_WIDTH / 2))
#define ROW_STATS (FACTORS + BATCH_ROWS * 2 * SEGMENT)

DEV float from_lane(float x, int lane) { return __uint_as_float(__shfl_sync(~0u, __float_as_uint(x), lane)); }

// The factors of a segment's chunks, of every row, and the rows' statistics. A warp takes a row, a lane a chunk.
DEV void find_factors(const Params &P, float *room, int batch, int end, int n, int lane, int warp) {
#pragma unroll 1
  for (int r = warp; r < BATCH_ROWS; r += 8 * PARTS) {
    const float4 *const stats = (const float4 *)P.ptr[STATS_PTR] + (i64)batch * CHUNKS * BATCH_ROWS + r;
    float *const state = room + ROW_STATS + 3 * r;
    float reference = state[0], sum = state[1], most = state[2];
#pragma unroll 1
    for (int from = 0; from < n; from += 32) {
      const int i = from + lane, there = min(32, n - from);
      const float4 x = i < n ? stats[(i64)(end - 1 - i) * BATCH_ROWS] : make_float4(-INF, 0.f, -INF, 0.f);
      float top = x.x, high = x.z, old, own;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const float other = from_lane(top, lane - d & 31);
        if (lane >= d) top = fmaxf(top, other);
        high = fmaxf(high, __shfl_xor_sync(~0u, high, d));
      }
      top = fmaxf(top, reference);
      const float last = from_lane(top, lane - 1 & 31);
      fold_factors(lane ? last : reference, x.x, old, own);
      if (i < n) *((float2 *)(room + FACTORS) + r * SEGMENT + i) = make_float2(old, own);
#pragma unroll 2
      for (int j = 0; j < there; j++) sum = fold(sum, from_lane(x.y, j), from_lane(old, j), from_lane(own, j));
      reference = from_lane(top, 31);
      most = fmaxf(most, high);
    }
    __syncwarp();
    if (lane == 0) state[0] = reference, state[1] = sum, state[2] = most;
  }
}

extern "C" __global__ void __launch_bounds__(256 * PARTS, 1) NAME(const __grid_constant__ Params P) {
  extern __shared__ __align__(1024) u8 memory[];
  float *const room = (float *)memory;
  const int batch = blockIdx.x, t = threadIdx.x, lane = t & 31, warp = t >> 5, part = t / 256;
  dependency_start();
  for (int i = t; i < BATCH_ROWS * VALUE_WIDTH; i += 256 * PARTS) room[i] = 0.f;
  for (int r = t; r < BATCH_ROWS; r += 256 * PARTS) room[ROW_STATS + 3 * r] = room[ROW_STATS + 3 * r + 2] = -INF, room[ROW_STATS + 3 * r + 1] = 0.f;
  dependency_wait();
  int first, count;
  chunks_seen(P, batch, first, count);
  const i64 before = (i64)batch * CHUNKS;
  __syncthreads();
#pragma unroll 1
  for (int end = first + count; end > first; end -= SEGMENT) {
    const int n = min(SEGMENT, end - first);
#pragma unroll 1
    for (int i = t % 256; i - t % 256 < ITEMS; i += 256) {
      const int mine = min(i, ITEMS - 1), r = mine / (VALUE_WIDTH / 2), x = mine % (VALUE_WIDTH / 2);
      const float2 *const sums = (const float2 *)P.ptr[SUMS_PTR] + ((before + end - 1) * BATCH_ROWS + r) * (VALUE_WIDTH / 2) + x;
      float2 v[PART];
#pragma unroll
      for (int k = 0; k < PART; k++) v[k] = part * PART + k < n ? sums[-(i64)(part * PART + k) * ITEMS] : make_float2(0.f, 0.f);
      if (i < 256) {   // while these are on their way
        find_factors(P, room, batch, end, n, lane, warp);
        __syncthreads();
      }
#pragma unroll 1
      for (int turn = 0; turn * PART < n; turn++) {
        if (turn == part && i < ITEMS) {
          const float2 *const factors = (const float2 *)(room + FACTORS) + r * SEGMENT + part * PART;
          float2 sum = *((const float2 *)room + i);
#pragma unroll
          for (int k = 0; k < PART; k++) {
            if (part * PART + k >= n) break;
            const float2 f = factors[k];
            sum.x = fold(sum.x, v[k].x, f.x, f.y);
            sum.y = fold(sum.y, v[k].y, f.x, f.y);
          }
          *((float2 *)room + i) = sum;
        }
        __syncthreads();
      }
    }
  }
  if (warp < 4) finish_rows(P, room, room + ROW_STATS, batch, warp * 16 + (lane >> 2), t);
}
