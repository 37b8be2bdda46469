// attention_ranges.cuh: the minimum and maximum of the values on both sides of a mask's equalities, for the
// kernels that compute, before attention runs, which columns these leave for its rows.
//
// The emitted part defines, besides the macros:
//   row_value<M>(P, batch, row), column_value<M>(P, batch, col)   the two sides of equality M, of MATCHES

#define TILES ((COLUMNS + STREAM - 1) / STREAM)
#define TILES_AT_ONCE 256

struct Range { float least, most; };

// Of `count` values from `first` on, by a warp. What is no number equals nothing: among others, nothing is known of the range.
template <class Value> DEV Range range_of(const Value &value, int first, int count, int lane) {
  Range r = {INF, -INF};
  bool mixed = false;
  for (int i = lane; i < count; i += 32) {
    const float x = value(first + i);
    r.least = fminf(r.least, x);
    r.most = fmaxf(r.most, x);
    mixed |= x != x;
  }
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    r.least = fminf(r.least, __shfl_xor_sync(~0u, r.least, d));
    r.most = fmaxf(r.most, __shfl_xor_sync(~0u, r.most, d));
  }
  if (__any_sync(~0u, mixed) && r.least <= r.most) r = Range{-INF, INF};
  return r;
}

// f(Is<0>), f(Is<1>), ...: one call for each equality.
template <int V> struct Is { static constexpr int value = V; };
template <int M, class F> DEV void each_match(const F &f) {
  f(Is<M>{});
  if constexpr (M + 1 < MATCHES) each_match<M + 1>(f);
}

// Of `count` tiles of columns from number `first` on, at most TILES_AT_ONCE, by all warps of a block.
DEV void find_ranges(const Params &P, Range (&tiles)[MATCHES][TILES_AT_ONCE], int batch, int first, int count) {
  const int lane = threadIdx.x & 31;
  __syncthreads();
  for (int i = threadIdx.x >> 5; i < count; i += 8) {
    const int col = (first + i) * STREAM;
    each_match<0>([&](auto m) {
      constexpr int M = decltype(m)::value;
      const Range r = range_of([&](int n) { return column_value<M>(P, batch, n); }, col, min(STREAM, COLUMNS - col), lane);
      if (lane == 0) tiles[M][i] = r;
    });
  }
  __syncthreads();
}
