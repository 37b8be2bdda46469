// folds.cuh: reductions that leave a tile. A fold is a running value; partials of fixed extent are folded in a fixed
// order, so a result has the same bits whatever the tile, the run or the batch.
template <class F> struct Fold {
  float v;
  static DEV float none() { return F::none(); }
  DEV void clear() { v = F::none(); }
  DEV void take(float x) { v = F::of(v, x); }
  DEV void fold_row(int h, float x) { v = h ? F::of(v, x) : x; }
  DEV void across(int mask) { v = F::of(v, __shfl_xor_sync(~0u, v, mask)); }
  DEV void across_columns() { across(1); across(2); }
  DEV void merge(const Fold &b) { v = F::of(v, b.v); }
  DEV void leave(float *p, i64 at, i64) const { p[at] = v; }
  DEV void take_partial(const float *p, i64 at, i64) { v = F::of(v, p[at]); }
  DEV float end(float scale) const { return v * scale; }
};
struct AddOf { static DEV float none() { return 0.f; } static DEV float of(float a, float b) { return a + b; } };
struct MaxOf { static DEV float none() { return -INF; } static DEV float of(float a, float b) { return f_max(a, b); } };
struct MinOf { static DEV float none() { return INF; } static DEV float of(float a, float b) { return f_min(a, b); } };
typedef Fold<AddOf> Total;
typedef Fold<MaxOf> Most;
typedef Fold<MinOf> Least;

// The largest element and the sum of exponentials relative to it.
struct LogSumExp {
  float m, s;
  static DEV float none() { return -INF; }
  DEV void clear() { m = -INF; s = 0.f; }
  // Two cells of one row: one rescaling for all their elements.
  template <int E> DEV void take(const float (&a)[E], const float (&b)[E]) {
    float top = m;
#pragma unroll
    for (int e = 0; e < E; e++) top = f_max(f_max(top, a[e]), b[e]);
    const float ref = top == -INF || top == INF ? 0.f : top * LOG2E;
    s *= ex2(__fmaf_rn(m, LOG2E, -ref));
#pragma unroll
    for (int e = 0; e < E; e++) s += ex2(__fmaf_rn(a[e], LOG2E, -ref)) + ex2(__fmaf_rn(b[e], LOG2E, -ref));
    m = top;
  }
  DEV void take(float x) { lse_add(m, s, x, 1.f); }
  DEV void across(int mask) {
    const float m2 = __shfl_xor_sync(~0u, m, mask), s2 = __shfl_xor_sync(~0u, s, mask);
    lse_add(m, s, m2, s2);
  }
  DEV void across_columns() { across(1); across(2); }
  DEV void merge(const LogSumExp &b) { lse_add(m, s, b.m, b.s); }
  DEV void leave(float *p, i64 at, i64 second) const { p[at] = m; p[at + second] = s; }
  DEV void take_partial(const float *p, i64 at, i64 second) { lse_add(m, s, p[at], p[at + second]); }
  DEV float end(float) const { return lse_end(m, s); }
};

// Folds V columns over the eight lanes that hold them, each lane ending with one column or none: `at` is its number
// among the group's 16 (times V/4), or -1. V is 2, 4 or 8.
template <class F, int V> DEV float down_rows(Fold<F> (&c)[V], int lane, int &at) {
  int first = 0, left = V, bit = 16;
#pragma unroll
  for (int step = 0; step < 3; step++, bit >>= 1) {
    const bool up = lane & bit;
    if (left > 1) {
      const int half = left / 2;
#pragma unroll
      for (int i = 0; i < V / 2; i++)
        if (i < half) {
          const float give = up ? c[i].v : c[i + half].v, own = up ? c[i + half].v : c[i].v;
          c[i].v = F::of(own, __shfl_xor_sync(~0u, give, bit));
        }
      first += up ? half : 0;
      left = half;
    } else {
      c[0].v = F::of(c[0].v, __shfl_xor_sync(~0u, c[0].v, bit));
      if (up) first = -100;
    }
  }
  const int E = V / 2, q = lane & 3;
  at = first < 0 ? -1 : first / E * (4 * E) + q * E + first % E;
  return c[0].v;
}
