// recurrence.cuh: a scan of products, step by step, with the state in registers.
//
// A block has the state of one batch and COLUMNS of its columns. LANES neighbouring lanes share four
// columns: each has HELD rows of these, by fours, so that k and q of a step come from shared memory four at
// a time. A step is s = d*s + k*v and y += q*s, three instructions per element. Then the lanes add up their
// parts of the four sums, which needs no barrier. Rows after the last are 0.
//
// Steps come by chunks of CHUNK through two buffers: while one is worked on, the next one's elements are on their way to registers,
// from where they go to the other buffer. One barrier a chunk: behind it a buffer is whole, and nobody reads the other one any more.
// Products with the states of a scan the other way (recurrence_product): that one is walked first, and keeps every STRETCH-th state
// in the workspace; then a stretch of its states at a time is made anew from there, the last stretch first, and this scan walks along
// it. A block has all columns where it sums over them.
//
// The order of sums depends on ROWS alone: bits are the same in every batch, and wherever a walk began.
//
// S has all sizes, and the places of operands and results: see epi_emit_recurrence.
template <class S> struct Recurrence {
  static constexpr int THREADS = S::THREADS, CHUNK = S::ROWS <= 128 ? 8 : S::ROWS <= 256 ? 4 : 2, LANES = S::ROWS <= 32 ? 4 : S::ROWS <= 64 ? 8 : S::ROWS <= 128 ? 16 : 32;
  static constexpr int FOURS = (S::ROWS + 4 * LANES - 1) / (4 * LANES), HELD = 4 * FOURS, ROWS = HELD * LANES, COLUMNS = THREADS / LANES * 4;
  static constexpr int DECAYS = S::DECAY == 1 ? ROWS : S::DECAY == 2 ? COLUMNS : 1;
  struct Buffer {
    float k[CHUNK][ROWS], q[CHUNK][ROWS], v[CHUNK][COLUMNS], d[CHUNK][DECAYS < 4 ? 4 : DECAYS];
  };
  // Elements of a chunk that a thread brings: of a row of WIDTH each step.
  template <int WIDTH> static constexpr int share() { return (CHUNK * WIDTH + THREADS - 1) / THREADS; }
  float k[share<ROWS>()], q[share<ROWS>()], v[share<COLUMNS>()], d[share<DECAYS>()];

  // The position of a step, in the order of the walk.
  DEV static i64 time(const S &s, i64 n) { return S::BACK ? s.steps() - 1 - n : n; }

  template <int WIDTH, int N, class At> DEV static void ask(float (&to)[N], const S &s, i64 first, const At &at) {
#pragma unroll
    for (int e = 0; e < N; e++) {
      const int i = e * THREADS + threadIdx.x, n = i / WIDTH;
      to[e] = n < CHUNK && first + n < s.steps() ? at(first + n, i % WIDTH) : 0.f;
    }
  }
  template <int WIDTH, int N, int LD> DEV static void put(float (&to)[CHUNK][LD], const float (&from)[N]) {
#pragma unroll
    for (int e = 0; e < N; e++) {
      const int i = e * THREADS + threadIdx.x;
      if (i < CHUNK * WIDTH) to[i / WIDTH][i % WIDTH] = from[e];
    }
  }
  // At the first step there is no history, unless a state is given: the decay may be anything there.
  DEV void fetch_chunk(const S &s, i64 b, int c0, i64 first) {
    ask<ROWS>(k, s, first, [&](i64 n, int r) { return r < S::ROWS ? s.k(b, time(s, n), r) : 0.f; });
    if (S::SUMS) ask<ROWS>(q, s, first, [&](i64 n, int r) { return r < S::ROWS ? s.q(b, time(s, n), r) : 0.f; });
    ask<COLUMNS>(v, s, first, [&](i64 n, int c) { return c0 + c < s.cols() ? s.v(b, time(s, n), c0 + c) : 0.f; });
    ask<DECAYS>(d, s, first, [&](i64 n, int i) {
      const int at = S::DECAY == 2 ? c0 + i : i;
      const bool is = (n > 0 || S::FIRST) && (S::DECAY == 0 || (S::DECAY == 1 ? i < S::ROWS : at < s.cols()));
      return is ? s.decay(b, time(s, n) + S::AHEAD, at) : 0.f;
    });
  }
  DEV void put_chunk(Buffer &to) const {
    put<ROWS>(to.k, k);
    if (S::SUMS) put<ROWS>(to.q, q);
    put<COLUMNS>(to.v, v);
    put<DECAYS>(to.d, d);
  }
};

// Adds up what LANES lanes have of four sums each. The lane whose number ends in two bits has the sum of that number, in all
// groups of four lanes.
template <int LANES> DEV float add_four(const float (&y)[4], int lane) {
  const bool odd = lane & 1, second = lane & 2;
  const float a = (odd ? y[1] : y[0]) + __shfl_xor_sync(~0u, odd ? y[0] : y[1], 1);
  const float b = (odd ? y[3] : y[2]) + __shfl_xor_sync(~0u, odd ? y[2] : y[3], 1);
  float sum = (second ? b : a) + __shfl_xor_sync(~0u, second ? a : b, 2);
#pragma unroll
  for (int m = 4; m < LANES; m *= 2) sum += __shfl_xor_sync(~0u, sum, m);
  return sum;
}

// Steps [from, to) of a walk; `each` is called behind every step with its number and, where there are such, the lane's parts of the
// sums.
template <class S, class Each> DEV void walk(const S &s, i64 b, int c0, float (&state)[Recurrence<S>::HELD][4], i64 from, i64 to, typename Recurrence<S>::Buffer *buffer, const Each &each) {
  typedef Recurrence<S> R;
  const int mine = threadIdx.x % R::LANES, group = threadIdx.x / R::LANES;
  R next;
  next.fetch_chunk(s, b, c0, from);
  int turn = 0;
  for (i64 first = from; first < to; first += R::CHUNK, turn ^= 1) {
    typename R::Buffer &now = buffer[turn];
    next.put_chunk(now);
    __syncthreads();
    if (first + R::CHUNK < to) next.fetch_chunk(s, b, c0, first + R::CHUNK);
#pragma unroll 1
    for (int n = 0; n < R::CHUNK && first + n < to; n++) {
      float y[4] = {0.f, 0.f, 0.f, 0.f};
      const float4 v4 = *(const float4 *)&now.v[n][group * 4];
      const float4 dc = *(const float4 *)&now.d[n][S::DECAY == 2 ? group * 4 : 0];
      const float v[4] = {v4.x, v4.y, v4.z, v4.w}, d_col[4] = {dc.x, dc.y, dc.z, dc.w};
#pragma unroll
      for (int f = 0; f < R::FOURS; f++) {
        const int row = f * (4 * R::LANES) + mine * 4;
        const float4 k4 = *(const float4 *)&now.k[n][row], q4 = *(const float4 *)&now.q[n][S::SUMS ? row : 0];
        const float4 dr = *(const float4 *)&now.d[n][S::DECAY == 1 ? row : 0];
        const float k[4] = {k4.x, k4.y, k4.z, k4.w}, q[4] = {q4.x, q4.y, q4.z, q4.w}, d_row[4] = {dr.x, dr.y, dr.z, dr.w};
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
          for (int c = 0; c < 4; c++) {
            float &x = state[4 * f + e][c];
            const float d = S::DECAY == 1 ? d_row[e] : S::DECAY == 2 ? d_col[c] : dc.x;
            x = fmaf(k[e], v[c], d * x);
            if (R::ROWS != S::ROWS && row + e >= S::ROWS) x = 0.f;   // not even where v is infinite
            if (S::ADDED && first + n == 0 && row + e < S::ROWS && c0 + group * 4 + c < s.cols()) x += s.added(b, row + e, c0 + group * 4 + c);
            if (S::SUMS) y[c] = fmaf(q[e], x, y[c]);
          }
      }
      each(first + n, y);
    }
  }
  __syncthreads();   // the buffers may be used again
}

// The state before the first step.
template <class S> DEV void begin(const S &s, i64 b, int c0, float (&state)[Recurrence<S>::HELD][4]) {
  typedef Recurrence<S> R;
  const int mine = threadIdx.x % R::LANES, group = threadIdx.x / R::LANES;
#pragma unroll
  for (int i = 0; i < R::HELD; i++)
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const int row = i / 4 * (4 * R::LANES) + mine * 4 + i % 4, column = c0 + group * 4 + c;
      state[i][c] = S::FIRST && row < S::ROWS && column < s.cols() ? s.first(b, row, column) : 0.f;
    }
}

template <class S> DEV void recurrence(const S &s, i64 items) {
  typedef Recurrence<S> R;
  __shared__ __align__(16) typename R::Buffer buffer[2];
  const int lane = threadIdx.x & 31, mine = threadIdx.x % R::LANES, group = threadIdx.x / R::LANES;
  const i64 blocks = (s.cols() + R::COLUMNS - 1) / R::COLUMNS;
  for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
    const i64 b = item / blocks;
    const int c0 = (int)(item % blocks) * R::COLUMNS;
    float state[R::HELD][4];
    begin(s, b, c0, state);
    walk(s, b, c0, state, 0, s.steps(), buffer, [&](i64 n, const float (&y)[4]) {
      if (!S::SUMS) return;
      const float sum = add_four<R::LANES>(y, lane);
      const int c = c0 + group * 4 + (lane & 3);
      if (mine < 4 && c < s.cols()) s.out(b, R::time(s, n), c, sum);
    });
    if (S::LAST)
#pragma unroll
      for (int i = 0; i < R::HELD; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
          const int row = i / 4 * (4 * R::LANES) + mine * 4 + i % 4, column = c0 + group * 4 + c;
          if (row < S::ROWS && column < s.cols()) s.last(b, row, column, state[i][c]);
        }
  }
}

// A thread's part of a state, in the workspace and back.
template <int THREADS, int HELD> DEV void keep(float *to, const float (&state)[HELD][4]) {
#pragma unroll
  for (int i = 0; i < HELD; i++)
#pragma unroll
    for (int c = 0; c < 4; c++) to[(i * 4 + c) * THREADS + threadIdx.x] = state[i][c];
}
template <int THREADS, int HELD> DEV void take_back(float (&state)[HELD][4], const float *from) {
#pragma unroll
  for (int i = 0; i < HELD; i++)
#pragma unroll
    for (int c = 0; c < 4; c++) state[i][c] = from[(i * 4 + c) * THREADS + threadIdx.x];
}

// At each step of S the sum of its state times that of O one step before it, over rows, or over all. Step n of one is step
// steps - 1 - n of the other. Before the first step of O there is none: that is 0. `room` has all states that are kept, then a stretch.
template <class S, class O> DEV void recurrence_product(const S &s, const O &o, float *workspace, i64 items) {
  typedef Recurrence<S> R;
  typedef Recurrence<O> Q;
  constexpr int STATE = R::HELD * 4 * R::THREADS, STRETCH = S::STRETCH, WARPS = R::THREADS / 32;
  constexpr int LARGER = sizeof(typename R::Buffer) > sizeof(typename Q::Buffer) ? sizeof(typename R::Buffer) : sizeof(typename Q::Buffer);
  __shared__ __align__(16) char buffers[2 * LARGER];
  __shared__ float sums[S::ALL ? STRETCH : 1][WARPS];
  typename R::Buffer *mine_of_s = (typename R::Buffer *)buffers;
  typename Q::Buffer *mine_of_o = (typename Q::Buffer *)buffers;
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, mine = threadIdx.x % R::LANES, group = threadIdx.x / R::LANES;
  const i64 blocks = (s.cols() + R::COLUMNS - 1) / R::COLUMNS, steps = s.steps(), stretches = (steps + STRETCH - 1) / STRETCH;
  for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
    const i64 b = item / blocks;
    const int c0 = (int)(item % blocks) * R::COLUMNS;
    float *kept = workspace + item * (stretches + STRETCH) * STATE, *made = kept + stretches * STATE;
    float state[R::HELD][4], other[Q::HELD][4];
    begin(o, b, c0, other);
    for (i64 p = 0; p < stretches; p++) {
      keep<R::THREADS>(kept + p * STATE, other);
      walk(o, b, c0, other, p * STRETCH, min((p + 1) * STRETCH, steps), mine_of_o, [](i64, const float (&)[4]) {});
    }
    begin(s, b, c0, state);
    for (i64 p = stretches - 1; p >= 0; p--) {
      const i64 from = p * STRETCH, to = min(from + STRETCH, steps);
      take_back<R::THREADS>(other, kept + p * STATE);
      walk(o, b, c0, other, from, to - 1, mine_of_o, [&](i64 n, const float (&)[4]) { keep<R::THREADS>(made + (n + 1 - from) * STATE, other); });
      walk(s, b, c0, state, steps - to, steps - from, mine_of_s, [&](i64 n, const float (&)[4]) {
        const i64 m = steps - 1 - n;
        const float *at = m == from ? kept + p * STATE : made + (m - from) * STATE;
        float y[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int i = 0; i < R::HELD; i++)
#pragma unroll
          for (int c = 0; c < 4; c++) y[c] = fmaf(state[i][c], m > 0 ? at[(i * 4 + c) * R::THREADS + threadIdx.x] : 0.f, y[c]);
        if (S::ALL) {
          float sum = (y[0] + y[1]) + (y[2] + y[3]);
#pragma unroll
          for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
          if (lane == 0) sums[m - from][warp] = sum;
        } else {
          const float sum = add_four<R::LANES>(y, lane);
          const int c = c0 + group * 4 + (lane & 3);
          if (mine < 4 && c < s.cols()) s.out(b, R::time(s, n), c, sum);
        }
      });
      for (int i = threadIdx.x; S::ALL && i < (int)(to - from); i += R::THREADS) {   // behind the walk's last barrier
        float sum = 0.f;
        for (int w = 0; w < WARPS; w++) sum += sums[i][w];
        s.out(b, R::time(s, steps - 1 - (from + i)), 0, sum);
      }
    }
  }
}
