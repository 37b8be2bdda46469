// gemm_any.cuh: the product for operands that tensor cores do not support: f32, two types, rows of odd
// lengths, any strides. Blocks of 128 threads compute tiles of 64 x 64 with plain multiply-adds. The
// accumulators are distributed over the threads as wgmma does it, so the epilogue is the same.
#define KB 32

struct Plain {
  const float (&d)[32];
  DEV float operator()(int j, int i, int e) const { return d[j * 8 + (i >> 1) * 4 + (i & 1) * 2 + e]; }
};

// An element by its offsets along its axes; one that an index finds nowhere, at a negative one, is zero.
template <int T> DEV float load_there(const void *p, i64 batch, i64 row, i64 deep) {
  return (A_GATHERED || B_GATHERED) && (row < 0 || deep < 0) ? 0.f : load<T>(p, batch + row + deep);
}

extern "C" __global__ void __launch_bounds__(128) NAME(const __grid_constant__ Params P) {
  __shared__ float a[KB][TILE_M + 4], b[KB][64 + 4];
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5, q = lane & 3;
  dependency_wait();
#if FOLDS
  extern __shared__ __align__(1024) u8 memory[];
  const u32 folds = smem_u32(memory);
#else
  const u32 folds = 0;
#endif
  const int tn = (N_SIZE + 63) / 64;
#pragma unroll 1
  for (i64 w = blockIdx.x; w < (i64)tiles_down(P) * tn; w += gridDim.x) {
    const int m0 = tile_row(P, (int)(w / tn)), first = operand_row(P, m0), rows = operand_rows(P, m0), batch = batch_of(P, m0);
    if (ROW_GROUPS && !row_there(P, m0)) continue;
#if DEPTH_GROUPS
    const int k_begin = group_begin(P, batch), k_end = group_begin(P, batch + 1);
#else
    const int k_begin = 0, k_end = K_SIZE;
#endif
    const int n0 = (int)(w % tn) * 64, row = m0 + warp * 16 + (lane >> 2);
    // 32 deep of both operands lie in shared memory at a time, as f32, depth by depth, zeros beyond the matrices. The first barrier:
    // nobody reads what lay there before; the second: all of it is there. A thread adds up its 32 accumulators along the depth one by
    // one, so the order of sums is that of the depth.
    float d[32];
#pragma unroll
    for (int i = 0; i < 32; i++) d[i] = 0.f;
#pragma unroll 1
    for (int k0 = k_begin; k0 < k_end; k0 += KB) {
      __syncthreads();
      // neighbouring threads take neighbours in memory
#pragma unroll 1
      for (int x = t; x < TILE_M * KB; x += 128) {
        const int r = A_MN ? x % TILE_M : x / KB, k = A_MN ? x / TILE_M : x % KB;
        a[k][r] = A_there(P, batch) && first + r < rows && k0 + k < k_end ? load_there<A_TYPE>(P.ptr[A_PTR], A_batch(P, batch), A_row(P, first + r), A_depth(P, k0 + k)) : 0.f;
      }
#pragma unroll 1
      for (int x = t; x < 64 * KB; x += 128) {
        const int r = B_MN ? x % 64 : x / KB, k = B_MN ? x / 64 : x % KB;
        b[k][r] = B_there(P, batch) && n0 + r < N_SIZE && k0 + k < k_end ? load_there<B_TYPE>(P.ptr[B_PTR], B_batch(P, batch), B_row(P, n0 + r), B_depth(P, k0 + k)) : 0.f;
      }
      __syncthreads();
#pragma unroll 4
      for (int k = 0; k < KB; k++) {
        const float a0 = a[k][warp * 16 + (lane >> 2)], a1 = a[k][warp * 16 + (lane >> 2) + 8];
#pragma unroll
        for (int c = 0; c < 8; c++) {
          const float2 y = *(const float2 *)&b[k][8 * c + 2 * q];
          d[4 * c] = __fmaf_rn(a0, y.x, d[4 * c]);
          d[4 * c + 1] = __fmaf_rn(a0, y.y, d[4 * c + 1]);
          d[4 * c + 2] = __fmaf_rn(a1, y.x, d[4 * c + 2]);
          d[4 * c + 3] = __fmaf_rn(a1, y.y, d[4 * c + 3]);
        }
      }
    }
    Rows R;
    Sums S;
    rows_load(R, P, row);
#if PACKED
#pragma unroll
    for (int i = 0; i < 16; i++) {
      before_packing(R, i, d[2 * i], d[2 * i + 1]);
      d[2 * i] = rounded<HALF>(d[2 * i]);
      d[2 * i + 1] = rounded<HALF>(d[2 * i + 1]);
    }
#endif
    epilogue_subtile<0>(Plain{d}, R, S, P, folds, row, n0, t);
#if FOLDS
    __syncthreads();
    subtile_fold<128>(P, folds, m0, n0, t);
    __syncthreads();
#endif
  }
}
