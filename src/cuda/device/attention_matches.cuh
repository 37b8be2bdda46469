// attention_matches.cuh: computes, before attention runs, which columns the equalities of a mask (documents)
// leave for every 64 rows.
//
// For each side of an equality, every 64 rows and every tile of STREAM columns have a minimum and a maximum.
// If the two ranges do not overlap, no row sees any column. If both ranges are the same single number, all
// rows see all columns. Both are true for any values, in any order. The result for 64 rows is a record: the
// columns from the first to the last tile in which something may be visible, and the longest run of tiles in
// which everything is. So attention itself works with intervals, as for the other bounds of a mask.
//
// A block is 8 warps, each with 64 rows of one batch; the ranges of up to TILES_AT_ONCE tiles are made by
// all of them together. Batches come from the axes of the values. RECORDS is the number of records of each,
// BLOCKS its number of blocks.
//
// P.ptr[RECORDS_PTR] has the records: from, to, from where and to where all is seen, in columns.

extern "C" __global__ void __launch_bounds__(256) attention_matches(const __grid_constant__ Params P) {
  __shared__ Range tiles[MATCHES][TILES_AT_ONCE];
  const int batch = blockIdx.x / BLOCKS, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int record = blockIdx.x % BLOCKS * 8 + warp;
  dependency_start();
  dependency_wait();
  Range rows[MATCHES];
  each_match<0>([&](auto m) {
    constexpr int M = decltype(m)::value;
    rows[M] = range_of([&](int n) { return row_value<M>(P, batch, n); }, record * 64, min(64, BATCH_ROWS - record * 64), lane);
  });
  int from = TILES, to = 0;           // of this lane's tiles those that may be seen
  int run = 0, longest = 0, end = 0;  // tiles of which all is seen, one after another: up to here; the most; and where those end
#pragma unroll 1
  for (int first = 0; first < TILES; first += TILES_AT_ONCE) {
    const int count = min(TILES - first, TILES_AT_ONCE);
    find_ranges(P, tiles, batch, first, count);
#pragma unroll 1
    for (int i = 0; i < count; i += 32) {
      bool meet = i + lane < count, whole = meet;
      for (int m = 0; m < MATCHES && meet; m++) {
        const Range r = rows[m], c = tiles[m][i + lane];
        meet = r.least <= c.most && c.least <= r.most;
        whole &= meet && r.least == r.most && c.least == c.most;
      }
      if (meet) {
        from = min(from, first + i + lane);
        to = first + i + lane + 1;
      }
      const u32 all = __ballot_sync(~0u, whole);
      for (int b = 0; b < 32; b++) {
        run = all >> b & 1 ? run + 1 : 0;
        end = run > longest ? first + i + b + 1 : end;
        longest = max(longest, run);
      }
    }
  }
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    from = min(from, __shfl_xor_sync(~0u, from, d));
    to = max(to, __shfl_xor_sync(~0u, to, d));
  }
  if (lane == 0 && record < RECORDS)
    ((uint4 *)P.ptr[RECORDS_PTR])[batch * RECORDS + record] = make_uint4(from * STREAM, to * STREAM, (end - longest) * STREAM, end * STREAM);
}
