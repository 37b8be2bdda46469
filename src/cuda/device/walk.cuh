// walk.cuh: shared by kernels that walk along an axis, a chunk of steps at a time (scan.cuh, window.cuh).
// DOWN: steps are rows, and LANES threads have VEC neighbouring columns each; a team of them has rows of its
// own. Else steps are columns, and a team has a row.
#define THREADS (LANES * TEAMS)
#if DOWN
#define LINES (LANES * VEC)
#else
#define LINES TEAMS
#endif

// To the ring, where a thread reads it itself: zeros where there is nothing.
template <int BYTES> DEV void copy(u32 to, const void *from, bool there = true) {
#pragma unroll
  for (int k = 0; k < BYTES; k += 16) cp_async<(BYTES < 16 ? BYTES : 16)>(to + k, (const char *)from + k, there ? BYTES < 16 ? BYTES : 16 : 0);
}

#if DOWN
// A sum of each column over all steps leaves the block, to the line of its batch: those of the teams are folded, from the first on.
DEV float value_of(const Long &f) { return f.v + f.lost; }
template <class F> DEV float value_of(const Fold<F> &f) { return f.v; }
template <class F> DEV void leave_sums(const F (&sum)[VEC], float *line, i64 first, i64 columns, float *room) {
  __syncthreads();
  EACH(VEC) room[threadIdx.x / LANES * LINES + threadIdx.x % LANES * VEC + e] = value_of(sum[e]);
  __syncthreads();
  for (int at = threadIdx.x; at < LINES && first + at < columns; at += THREADS) {
    F f;
    f.clear();
    for (int team = 0; team < TEAMS; team++) f.take(room[team * LINES + at]);
    line[first + at] = value_of(f);
  }
}
#endif
