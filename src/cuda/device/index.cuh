// index.cuh: scatter, and the stores of update.

// A number, rounded to the type; or an integer as it is.
template <int T> DEV void put(void *p, i64 at, float v) { store<T>(p, at, v); }
template <int T> DEV void put(void *p, i64 at, i64 v) {
  if (T == I32) ((int *)p)[at] = (int)v;
  else ((i64 *)p)[at] = v;
}

// Adds up what an index sends to each position, in the order of the index and without atomics: a block owns ROWS
// positions and COLS of their elements, and keeps their sums in shared memory until it is through, each with what its
// additions lose by rounding; so a long sum does not drift. It reads the whole index, LOOK elements at a time: most have
// nothing for this block. Where one has, it goes through these 256 by 256 and lists those that name one of its
// positions, in order; a full list is worked off, and the list starts anew. The index is read once for every ROWS
// positions (from L2, mostly), each row that is added once.
//
// In the loop over the index: `count` is the same in all threads and counts the entries of the list, whose order is that of
// the index. A sum belongs to one thread, by its position and column, so sums need no barrier of their own. A first barrier
// stands between the votes and who reads them, a second between the list and who works it off, a third before it is filled again.
//
// By batch each element of the axes that are kept has positions of its own, and elements of the index that lie together
// in s.at: a block goes through those of one.
//
// S tells how many positions, elements and rows there are, and where they lie: see epi_emit_scatter.
enum { LIST = 1024, LOOK = 1024 };
template <class S> DEV void scatter(const S &s, const void *from, const void *index, void *to, i64 items) {
  __shared__ Long sum[S::ROWS * S::COLS];
  __shared__ i64 named[LIST];
  __shared__ int place[LIST], votes_of[8];
  const int t = threadIdx.x, lane = t & 31, warp = t / 32, group = t / S::WIDTH;
  const i64 stretches = (s.inner() + S::COLS - 1) / S::COLS;   // blocks side by side along the elements of a position
  const i64 blocks = (s.size() + S::ROWS - 1) / S::ROWS;       // and along the positions of one kept element
  for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
    const i64 block = item / stretches, kept = S::BY_BATCH ? block / blocks : 0, begin = kept * s.count(), end = begin + s.count();
    const i64 first = (block - kept * blocks) * S::ROWS, start = item % stretches * S::COLS;
    for (int i = t; i < S::ROWS * S::COLS; i += 256) sum[i].clear();
    int count = 0;
    const auto work_off = [&] {
      for (int e = 0; e < count; e++) {
        const int row = place[e];
        if (row % S::GROUPS != group) continue;
        const i64 at = s.outer(named[e]);
        for (int c = t % S::WIDTH; c < S::COLS && start + c < s.inner(); c += S::WIDTH)
          sum[row * S::COLS + c].take(s.value(from, at, start + c));
      }
      count = 0;
      __syncthreads();
    };
    const auto place_of = [&](i64 q) { return (q < end ? s.at(index, q) : -1) - first; };
    for (i64 look = begin; look < end; look += LOOK) {
      bool any = false;
#pragma unroll
      for (int k = 0; k < LOOK; k += 256) {
        const i64 v = place_of(look + k + t);
        any |= v >= 0 && v < S::ROWS;
      }
      if (!__syncthreads_or(any)) continue;
      for (i64 q0 = look; q0 < look + LOOK; q0 += 256) {
        const i64 q = q0 + t, v = place_of(q);
        const bool mine = v >= 0 && v < S::ROWS;
        const u32 votes = __ballot_sync(~0u, mine);
        if (lane == 0) votes_of[warp] = __popc(votes);
        __syncthreads();
        int mine_at = count + __popc(votes & ((1u << lane) - 1));
        for (int w = 0; w < 8; w++) {
          if (w < warp) mine_at += votes_of[w];
          count += votes_of[w];
        }
        if (mine) {
          named[mine_at] = q;
          place[mine_at] = (int)v;
        }
        __syncthreads();
        if (count > LIST - 256) work_off();
      }
    }
    work_off();
    for (int i = t; i < S::ROWS * S::COLS; i += 256) {
      const i64 v = first + i / S::COLS, c = start + i % S::COLS;
      if (v < s.size() && c < s.inner()) s.put(to, kept, v, c, sum[i].end(1.f));
    }
    __syncthreads();
  }
}

// The same where the positions of a sum follow each other, from S::begin of its group to that of the next: a block adds up 64
// elements of one group. Warps take turns at positions, 8 at a time, and each sums up what it has; then those of all are added,
// in their order. So a group's bits depend on its own positions alone.
template <class S> DEV void scatter_groups(const S &s, const void *from, const void *offsets, void *to, i64 items) {
  enum { WARPS = 8, AHEAD_ROWS = 8, COLS = 64 };
  __shared__ Long part[WARPS][COLS];
  const int t = threadIdx.x, lane = t & 31, warp = t / 32;
  const i64 stretches = (s.inner() + COLS - 1) / COLS;
  for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
    const i64 v = item / stretches, start = item % stretches * COLS, end = s.begin(offsets, v + 1);
    Long sum[2];
    sum[0].clear();
    sum[1].clear();
    for (i64 q0 = s.begin(offsets, v) + warp; q0 < end; q0 += WARPS * AHEAD_ROWS) {
      float run[2] = {0.f, 0.f};
#pragma unroll
      for (int k = 0; k < AHEAD_ROWS; k++) {
        const i64 q = q0 + k * WARPS, at = s.outer(q < end ? q : end - 1);
#pragma unroll
        for (int c = 0; c < 2; c++) {
          const i64 x = start + lane + 32 * c;
          const float term = s.value(from, at, x < s.inner() ? x : 0);
          run[c] += q < end ? term : 0.f;
        }
      }
      sum[0].take(run[0]);
      sum[1].take(run[1]);
    }
    part[warp][lane] = sum[0];
    part[warp][lane + 32] = sum[1];
    __syncthreads();
    if (t < COLS && start + t < s.inner()) {
      Long all = part[0][t];
      for (int w = 1; w < WARPS; w++) all.merge(part[w][t]);
      s.put(to, 0, v, start + t, all.end(1.f));
    }
    __syncthreads();
  }
}
