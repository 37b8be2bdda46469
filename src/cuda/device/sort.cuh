// sort.cuh: the order of an index by its values: a counting sort, or, of more values than shared memory counts, by comparisons.
//
// A block owns a stretch of the index, and each of its warps OWN elements of that, one after the other. It
// counts all elements by their value, and separately those before its stretch. So it knows where its own
// elements of each value begin. Each warp counts its own, and from the counts of the warps before it knows
// where these begin. Counts are integers: the order in which they are added up does not matter. Elements
// that name no value come last, as one more value.
//
// S has the numbers of elements and values and the value of an element, and stores where a value begins and
// the place of an element: see epi_emit_sort.
enum { OWN = 128 };   // what a warp may count fits 16 bits

template <class S> struct Order {
  static constexpr int COUNTS = S::VALUES + 1, THREADS = 32 * S::WARPS;
  int ahead[COUNTS], others[COUNTS];   // elements of each value ahead of the stretch, and all others; then where the stretch's begin
  unsigned short own[S::WARPS][COUNTS];   // of each warp in its part of the stretch, then of those before it
  int sums[S::WARPS];
};

// The value of an element; an element beyond the last has one of its own.
template <class S> DEV int value_of(const S &s, i64 q) {
  if (q >= s.count()) return S::VALUES + 1;
  const i64 at = s.at(q);
  return at < 0 ? S::VALUES : (int)at;
}

// Adds to each thread's number those of the threads before it.
template <class S> DEV int sum_before(Order<S> &o, int mine) {
  const int t = threadIdx.x, lane = t & 31, warp = t / 32;
  int sum = mine;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = (int)__shfl_sync(~0u, (u32)sum, lane >= d ? lane - d : lane);
    if (lane >= d) sum += other;
  }
  if (lane == 31) o.sums[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; w++) sum += o.sums[w];
  __syncthreads();
  return sum - mine;
}

template <class S> DEV void sort(const S &s, i64 items) {
  typedef Order<S> O;
  __shared__ O o;
  const int t = threadIdx.x, lane = t & 31, warp = t / 32;
  for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
    const i64 first = item * (S::WARPS * OWN), mine = first + warp * OWN;
    for (int v = t; v < O::COUNTS; v += O::THREADS) o.ahead[v] = o.others[v] = 0;
    for (int v = lane; v < O::COUNTS; v += 32) o.own[warp][v] = 0;
    __syncthreads();
#pragma unroll 4
    for (int q = t; q < (int)s.count(); q += O::THREADS) atomicAdd(&(q < first ? o.ahead : o.others)[value_of(s, q)], 1);
    __syncthreads();
    int before = 0;
    for (int v0 = 0; v0 < O::COUNTS; v0 += O::THREADS) {
      const int v = v0 + t, all = v < O::COUNTS ? o.ahead[v] + o.others[v] : 0, begin = before + sum_before(o, all);
      if (item == 0 && v < S::VALUES && v < s.size()) s.offset(v, begin);
      if (v < O::COUNTS) {
        o.others[v] = begin + o.ahead[v];
        if (t == O::THREADS - 1) o.sums[0] = begin + all;
      }
      __syncthreads();
      if (v0 + O::THREADS < O::COUNTS) before = o.sums[0];
      __syncthreads();
    }
    if (!S::PLACES) continue;
    int value[OWN / 32];
#pragma unroll
    for (int i = 0; i < OWN / 32; i++) {
      value[i] = value_of(s, mine + 32 * i + lane);
      const u32 same = __match_any_sync(~0u, value[i]);
      if (value[i] < O::COUNTS && __ffs(same) - 1 == lane) o.own[warp][value[i]] += (unsigned short)__popc(same);
      __syncwarp();
    }
    __syncthreads();
    for (int v = t; v < O::COUNTS; v += O::THREADS) {
      int sum = 0;
      for (int w = 0; w < S::WARPS; w++) {
        const int count = o.own[w][v];
        o.own[w][v] = (unsigned short)sum;
        sum += count;
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < OWN / 32; i++) {
      const i64 q = mine + 32 * i + lane;
      const u32 same = __match_any_sync(~0u, value[i]);
      const bool there = value[i] < O::COUNTS;
      const i64 place = there ? o.others[value[i]] + o.own[warp][value[i]] + __popc(same & ((1u << lane) - 1)) : 0;
      __syncwarp();
      if (there && __ffs(same) - 1 == lane) o.own[warp][value[i]] += (unsigned short)__popc(same);
      __syncwarp();
      if (there) s.put(q, place);
    }
    __syncthreads();
  }
}

// Each thread goes through all of the index, and counts what comes before its element, and what is less than its value. That takes the
// square of the elements.
template <class S> DEV void sort_compared(const S &s, i64 items) {
  enum { THREADS = 32 * S::WARPS };
  __shared__ int values[THREADS];
  for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
    const i64 mine = item * THREADS + threadIdx.x;
    const int value = value_of(s, mine);
    int before = 0, less = 0;
    for (i64 first = 0; first < s.count(); first += THREADS) {
      __syncthreads();
      values[threadIdx.x] = value_of(s, first + threadIdx.x);   // those beyond the last are larger than all others
      __syncthreads();
#pragma unroll 8
      for (int i = 0; i < THREADS; i++) {
        before += values[i] < value || (values[i] == value && first + i < mine);
        less += values[i] < mine;
      }
    }
    if (mine < s.size()) s.offset(mine, less);
    if (mine < s.count()) s.put(mine, before);
  }
}
