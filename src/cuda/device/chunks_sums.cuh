// chunks_sums.cuh: a scan of products by chunks of STEPS steps, on tensor cores: operands of 16 bits, one decay for all of the state.
//
// A block of WARPS warps has the state of one batch and COLUMNS of its columns, in accumulators of f32, and
// walks along the chunks in order. The tiles q, k (STEPS x ROWS) and v (STEPS x COLUMNS) of a chunk are in
// shared memory, and the next ones are loading into the other stage. Let M[i][j] be the product of the
// decays of steps j + 1 to i, and p_i the product of all up to i:
//
//     y = (q k^T * M) v + p * (q s)          M[i][j] = 0 for j > i
//     s = p_last * s + (k * M[last])^T v
//
// Warp w of four has steps [16w, 16w + 16) of y, and slabs w, w + 4, … of 16 rows of s. Chunks makes the products: by mma.sync
// (chunks_sums_mma.cuh) or by wgmma (chunks_sums_sm90.cuh). What is rounded to 16 bits: q k^T * M, s where q multiplies it,
// k * M[last]. Decays are multiplied in the order of steps: inside of 16 steps by a running product for each j (`diagonal`),
// elsewhere as what follows j in its 16 (`tail`) times whole 16s times what precedes i (`head`): no number is divided by, so a
// decay may be 0. Factors that are numbers of a step are in its tail.
//
// Two barriers a chunk: behind the first its tiles are there and nobody reads those before, behind the second the decays and the
// state of 16 bits. The order of every sum depends on ROWS alone: bits are the same in every batch, whatever COLUMNS is.
//
// A v that is not finite must not meet the zeros of M above its diagonal. So a sum that is not finite is
// added up separately, without them.
//
// S has all sizes, and the places of operands and results: see epi_emit_recurrence.
template <int T> DEV void store_pair(void *p, i64 at, float x, float y) {
  const u32 w[2] = {T == F32 ? __float_as_uint(x) : pack<T>(x, y), __float_as_uint(y)};
  if (T == F32) write8((float *)p + at, w);
  else write4((u16 *)p + at, w);
}

// A walk's tiles in shared memory: two stages, the state of 16 bits, decays.
template <class S, class T> struct ChunkTiles : T {
  static constexpr int STEPS = T::STEPS, ROW_BYTES = T::ROW_BYTES, COLUMN_BYTES = T::COLUMN_BYTES;
  static constexpr int Q = 0, K = Q + STEPS * ROW_BYTES, V = K + STEPS * ROW_BYTES, STAGE = V + STEPS * COLUMN_BYTES;
  static constexpr int STATE = 2 * STAGE, FLOATS = STATE + S::ROWS * COLUMN_BYTES;

  // The position of a step, in the order of the walk.
  DEV static int time(const S &s, int n) { return S::BACK ? (int)s.steps() - 1 - n : n; }

  DEV static void fetch_chunk(u32 to, const S &s, int b, int c0, int first) {
    const int steps = (int)s.steps();
    if (S::SUMS) T::template fetch_tile<ROW_BYTES, S::ROWS>(to + Q, first, steps, S::BACK, S::ROWS, [&](int t) { return s.q(b, t); });
    T::template fetch_tile<ROW_BYTES, S::ROWS>(to + K, first, steps, S::BACK, S::ROWS, [&](int t) { return s.k(b, t); });
    T::template fetch_tile<COLUMN_BYTES, S::COLUMNS>(to + V, first, steps, S::BACK, S::COLS - c0, [&](int t) { return s.v(b, t) + c0; });
    cp_commit();
  }

  // Adds to sums of a warp's steps, N columns from 8 * first on, what 16 steps of `block` have for them, less those that are not before.
  template <int N> DEV static void add_alone(float (&sum)[N], const u32 (&p)[4], u32 stage, int first, int block, int warp, int lane) {
    const int g = lane / 4, t = lane % 4 * 2;
#pragma unroll 1
    for (int j = 0; j < 16; j++) {
      float by[2];   // of rows g and g + 8, from the lane that has them
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const u32 pair = __shfl_sync(~0u, j < 8 ? p[r] : p[2 + r], (lane & 28) + j % 8 / 2);
        by[r] = j % 2 ? high<HALF>(pair) : low<HALF>(pair);
      }
#pragma unroll
      for (int x = 0; x < N / 4; x++) {
        const u32 v = lds32(stage + V + T::template at<COLUMN_BYTES>(16 * block + j, 2 * (8 * (first + x) + t)));
#pragma unroll
        for (int r = 0; r < 2; r++)
          if (block < warp || j <= g + 8 * r) {
            sum[4 * x + 2 * r] = fmaf(by[r], low<HALF>(v), sum[4 * x + 2 * r]);
            sum[4 * x + 2 * r + 1] = fmaf(by[r], high<HALF>(v), sum[4 * x + 2 * r + 1]);
          }
      }
    }
  }
  // Is one of a warp's sums not finite?
  template <int N> DEV static bool any_odd(const float (&y)[N]) {
    float odd = 0.f;
#pragma unroll
    for (int i = 0; i < N; i++) odd = fmaf(0.f, y[i], odd);
    return __any_sync(~0u, !(odd == 0.f));
  }
  template <int N> DEV static void replace_odd(float (&y)[N], const float (&sum)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) y[i] = fabsf(y[i]) < INF ? y[i] : sum[i];
  }
  // What is before the chunk comes to the sums.
  template <int N> DEV static void add_far(float (&y)[N], const float (&far)[N], const Decays &d, int warp, int lane) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float by = d.before(16 * warp + lane / 4 + 8 * r);
#pragma unroll
      for (int i = 0; i < N; i++)
        if (i / 2 % 2 == r) y[i] = fmaf(by, far[i], y[i]);
    }
  }
};

template <class S, class C> DEV void walk_chunks(const S &s, i64 items, u8 *memory) {
  Decays &d = *(Decays *)(memory + C::FLOATS);
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32 % 4, step = threadIdx.x;
  const u32 shared = smem_u32(memory);
  const int blocks = (S::COLS + S::COLUMNS - 1) / S::COLUMNS, steps = (int)s.steps();
  for (int item = blockIdx.x; item < (int)items; item += gridDim.x) {
    const int b = item / blocks, c0 = item % blocks * S::COLUMNS;
    typename C::State state;
    // What is before the first step decays with it, so that the rest of the walk knows no decay there.
    const float once = S::FIRST && steps > 0 ? s.decay(b, C::time(s, 0) + S::AHEAD) : 1.f;
    C::for_all(state, [&](float &x, int r, int c) {
      const bool is = r < S::ROWS && c0 + c < S::COLS;
      x = S::FIRST && is ? once * s.first(b, r, c0 + c) : 0.f;
      if (S::ADDED && is && steps > 0) x += s.added(b, r, c0 + c);
    });
    float decay = 1.f, factor = 0.f;
    const auto fetch_decays = [&](int first) {
      const int n = first + step;
      if (step >= C::STEPS) return;
      decay = n < steps && n > 0 ? s.decay(b, C::time(s, n) + S::AHEAD) : 1.f;
      factor = n < steps ? s.factor(b, C::time(s, n)) : 0.f;
    };
    C::fetch_chunk(shared, s, b, c0, 0);
    fetch_decays(0);
    u32 stage = shared;
    for (int first = 0; first < steps; first += C::STEPS, stage ^= shared ^ (shared + C::STAGE)) {
      if (step < C::STEPS) d.a[step] = decay;
      const float now = factor;
      cp_wait<0>();
      C::publish();
      __syncthreads();
      typename C::Scores score;
      C::ask_scores(score, stage);
      d.multiply(now);
      if (S::SUMS) C::put_state(shared + C::STATE, state);
      C::publish();
      __syncthreads();
      if (first + C::STEPS < steps) {
        C::fetch_chunk(stage ^ shared ^ (shared + C::STAGE), s, b, c0, first + C::STEPS);
        fetch_decays(first + C::STEPS);
      }
      const int n = first + 16 * warp + lane / 4;
      float scale[2] = {1.f, 1.f};
#pragma unroll
      for (int r = 0; r < 2; r++)
        if (S::SUMS && n + 8 * r < steps) scale[r] = s.scale(b, C::time(s, n + 8 * r));
      // Before the first chunk there is nothing that decays, unless it is given.
      C::add(state, score, stage, shared + C::STATE, d, first > 0 || S::FIRST || S::ADDED, [&](const auto &y, int x0) {
        constexpr int N = sizeof y / sizeof(float) / 4;
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
          for (int x = 0; x < N; x++) {
            const int c = c0 + 8 * (x0 + x) + lane % 4 * 2;
            if (n + 8 * r < steps && c < S::COLS) s.out(b, C::time(s, n + 8 * r), c, scale[r] * y[4 * x + 2 * r], scale[r] * y[4 * x + 2 * r + 1]);
          }
      });
    }
    __syncthreads();   // the buffers may be used again
    if (S::LAST)
      C::for_all(state, [&](float &x, int r, int c) {
        if (r < S::ROWS && c0 + c < S::COLS) s.last(b, r, c0 + c, x);
      });
  }
}
