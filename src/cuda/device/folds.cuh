// folds.cuh: reductions that leave a tile. A fold is a running value. Partials have a fixed extent and are
// combined in a fixed order, so a result is bitwise the same for any tile, run or batch.
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
  DEV void load(const float *p, i64) { v = *p; }
  DEV float end(float scale) const { return v * scale; }
};
struct AddOf { static DEV float none() { return 0.f; } static DEV float of(float a, float b) { return a + b; } };
struct MaxOf { static DEV float none() { return -INF; } static DEV float of(float a, float b) { return f_max(a, b); } };
struct MinOf { static DEV float none() { return INF; } static DEV float of(float a, float b) { return f_min(a, b); } };
typedef Fold<AddOf> Total;
typedef Fold<MaxOf> Most;
typedef Fold<MinOf> Least;

// A sum of many terms. What an addition loses by rounding (Knuth's two-sum) goes to the next one, so the sum does not
// drift. Two lanes that merge with each other end with the same bits.
struct Long {
  float v, lost;
  DEV void clear() { v = lost = 0.f; }
  DEV void add(float x, float more) {
    const float s = v + x, of_x = s - v, of_v = s - of_x;
    lost = s - s == 0.f ? (v - of_v) + (x - of_x) + more : 0.f;   // of an infinite sum NaN would be lost
    v = s;
  }
  DEV void take(float x) { add(x + lost, 0.f); }
  DEV void merge(const Long &b) { add(b.v, lost + b.lost); }
  DEV void across(int mask) {
    Long b;
    b.v = __shfl_xor_sync(~0u, v, mask);
    b.lost = __shfl_xor_sync(~0u, lost, mask);
    merge(b);
  }
  DEV float end(float scale) const { return (v + lost) * scale; }
};

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
  DEV void load(const float *p, i64 second) { m = *p; s = p[second]; }
  DEV float end(float) const { return lse_end(m, s); }
  // The sum of exponentials of distances from the largest; or from zero where that is -inf.
  DEV float sum() const { return s + (m - m); }
  DEV float safe_sum() const { return m == -INF ? s : sum(); }
};

// The number of elements, their mean, and the sum of their squared distances from it: merged, nothing cancels. Means are weighted,
// not moved by a share of their distance: that of an infinite one is NaN.
struct Moments {
  float n, mean, m2;
  DEV void clear() { n = mean = m2 = 0.f; }
  DEV void merge(const Moments &b) {
    const float all = n + b.n, inverse = all > 0.f ? __fdiv_rn(1.f, all) : 0.f, apart = b.mean - mean;
    m2 += b.m2 + apart * (n * (b.n * inverse)) * apart;
    mean = mean * (n * inverse) + b.mean * (b.n * inverse);
    n = all;
  }
  DEV void take(float x) {
    Moments one;
    one.n = 1.f;
    one.mean = x;
    one.m2 = 0.f;
    merge(one);
  }
  DEV void across(int mask) {
    Moments b;
    b.n = __shfl_xor_sync(~0u, n, mask);
    b.mean = __shfl_xor_sync(~0u, mean, mask);
    b.m2 = __shfl_xor_sync(~0u, m2, mask);
    merge(b);
  }
  DEV void across_columns() { across(1); across(2); }
  DEV void leave(float *p, i64 at, i64 second) const { p[at] = n; p[at + second] = mean; p[at + 2 * second] = m2; }
  DEV void load(const float *p, i64 second) { n = *p; mean = p[second]; m2 = p[2 * second]; }
  DEV float end(float scale) const { return m2 * scale; }
};

// The same while a thread goes through the few columns that it has of a partial. Until settle() `mean` is the first element, from
// which the others are counted: a sum of distances, and one of their squares. As that element is one of them, the squares are never
// less than n/(n - 1) times the square of the sum over n, which settle() takes from them: little is lost, whatever the elements.
struct RunningMoments : Moments {
  float sum;
  DEV void clear() { Moments::clear(); sum = 0.f; }
  DEV void begin(float x) { if (n == 0.f) mean = fabsf(x) < INF ? x : 0.f; }
  DEV void add(float x) {
    const float d = x - mean;
    sum += d;
    m2 = __fmaf_rn(d, d, m2);
  }
  DEV void take(float x) { begin(x); add(x); n += 1.f; }
  template <int E> DEV void take(const float (&a)[E], const float (&b)[E]) {
    begin(a[0]);
#pragma unroll
    for (int e = 0; e < E; e++) add(a[e]);
#pragma unroll
    for (int e = 0; e < E; e++) add(b[e]);
    n += 2 * E;
  }
  DEV void settle() {
    const float t = n > 0.f ? __fdiv_rn(sum, n) : 0.f;
    m2 = m2 < INF ? __fmaf_rn(-sum, t, m2) : m2 + (sum - sum);   // of finite elements it may be infinite
    mean += t;
  }
};

// ---- down the rows, inside a tile: lanes, then warps

// Folds V columns over the eight lanes that hold them, each lane ending with one column or none: `at` is its number
// among the fragment's 16 (times V/4), or -1. V is 2, 4 or 8.
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

// A column's four folds of 16 rows, one warp's each, that lie `apart` bytes from each other in shared memory.
template <class T> DEV float down_warps(u32 from, u32 apart) {
  T f, next;
  f.v = __uint_as_float(lds32(from));
#pragma unroll
  for (int w = 1; w < 4; w++) {
    next.v = __uint_as_float(lds32(from + w * apart));
    f.merge(next);
  }
  return f.v;
}

// ---- partials: a block has 32 results, and each of its SEGMENTS warps an equal part of their COUNT partials

// From `begin` to `end`, `apart` elements from each other, in order; eight at a time are on their way. A running value takes
// RUN of them where there may be more (LONG): a sum of all would drift. WHOLE: their number is a multiple of eight.
enum { RUN = 64 };
template <class T, bool WHOLE, bool LONG> DEV T fold_partials(const float *p, int begin, int end, i64 apart, i64 second) {
  T f, all;
  f.clear();
  all.clear();
#pragma unroll 1
  for (int b = begin; b < end; b += 8) {
    T next[8];
#pragma unroll
    for (int u = 0; u < 8; u++)
      if (WHOLE || b + u < end) next[u].load(p + (b + u) * apart, second);
    if (LONG && b > begin && (b - begin) % RUN == 0) {
      all.merge(f);
      f.clear();
    }
#pragma unroll
    for (int u = 0; u < 8; u++)
      if (WHOLE || b + u < end) f.merge(next[u]);
  }
  if (LONG) f.merge(all);
  return f;
}

// The part of warp `segment`.
template <class T, int COUNT, int SEGMENTS> DEV T fold_segment(const float *p, int segment, i64 apart, i64 second) {
  constexpr int LENGTH = (COUNT + SEGMENTS - 1) / SEGMENTS;
  const int begin = segment * LENGTH;
  return fold_partials<T, COUNT % (8 * SEGMENTS) == 0, (LENGTH > RUN)>(p, begin, min(begin + LENGTH, COUNT), apart, second);
}

// The same of a number of partials that is known at the launch alone. They are taken in the segments that fold_segment would be
// given for that number (count_segments in emit_finish.c), so that the bits are the same; warps beyond those have none.
template <class T> DEV T fold_some(int count, const float *p, int segment, i64 apart, i64 second) {
  int segments = 4;
  while (segments < 32 && 8 * segments < count) segments *= 2;
  const int length = (count + segments - 1) / segments, end = segment < segments ? min((segment + 1) * length, count) : 0;
  return fold_partials<T, false, true>(p, segment * length, end, apart, second);
}

// All parts of result threadIdx.x / SEGMENTS. Calls take turns with two rooms, so that one barrier each is enough.
template <int SEGMENTS, class T, int ROOM> DEV T fold_segments(T f, float (&room)[ROOM]) {
  T(*all)[32 + 32 / SEGMENTS] = (T(*)[32 + 32 / SEGMENTS])room;   // a warp's lanes find their parts in all the banks
  all[threadIdx.x / 32][threadIdx.x % 32] = f;
  __syncthreads();
  f = all[threadIdx.x % SEGMENTS][threadIdx.x / SEGMENTS];
#pragma unroll
  for (int m = 1; m < SEGMENTS; m <<= 1) f.across(m);
  return f;
}
