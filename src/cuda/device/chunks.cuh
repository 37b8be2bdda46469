// chunks.cuh: a scan of products by chunks of STEPS steps, on tensor cores: operands of 16 bits, one decay for all of the state.
//
// A block of WARPS warps has the state of one batch and COLUMNS of its columns, in accumulators of f32, and walks along the chunks in
// order. Of a chunk it has tiles q, k (STEPS x ROWS) and v (STEPS x COLUMNS) in shared memory, the next ones are on their way to the
// other stage. With M[i][j] the product of the decays of steps j + 1 to i, and p_i that of all up to i,
//
//     y = (q k^T * M) v + p * (q s)          M[i][j] = 0 for j > i
//     s = p_last * s + (k * M[last])^T v
//
// Warp w of four has steps [16w, 16w + 16) of y, and slabs w, w + 4, … of 16 rows of s. The products are made by Products: by mma.sync
// (chunks_mma.cuh) or by wgmma (chunks_sm90.cuh). What is rounded to 16 bits: q k^T * M, s where q multiplies it, k * M[last]. Decays are multiplied in the order of steps: inside of 16 steps by a running product for each j
// (`diagonal`), elsewhere as what follows j in its 16 (`tail`) times whole 16s times what precedes i (`head`): no number is divided
// by, so a decay may be 0. Factors that are numbers of a step are in its tail.
//
// Two barriers a chunk: behind the first its tiles are there and nobody reads those before, behind the second the decays and the
// state of 16 bits. The order of every sum depends on ROWS alone: bits are the same in every batch, whatever COLUMNS is.
//
// A v that is not finite must not meet the zeros of M above its diagonal: where a sum is not finite, it is added up by itself, without them.
//
// S tells how large everything is, and where operands and results lie: see epi_emit_recurrence.
template <int T> DEV void store_pair(void *p, i64 at, float x, float y) {
  const u32 w[2] = {T == F32 ? __float_as_uint(x) : pack<T>(x, y), __float_as_uint(y)};
  if (T == F32) write8((float *)p + at, w);
  else write4((u16 *)p + at, w);
}

// Tiles of a chunk, and a state of ROWS x COLUMNS in the accumulators of WARPS warps: the columns in SHARES, and of each share warp w of its
// DOWN has slabs w, w + DOWN, … of 16 rows. With PANELS tiles lie as wgmma wants them: 64 columns, 128 bytes, of all rows, then the next 64.
template <int ROWS, int COLUMNS, int WARPS, int SHARES = 1, bool PANELS = false> struct Tiles {
  static constexpr int STEPS = 64, THREADS = 32 * WARPS;
  static constexpr int ROW_BYTES = (2 * ROWS + 127) / 128 * 128, COLUMN_BYTES = (2 * COLUMNS + 127) / 128 * 128;
  static constexpr int DOWN = WARPS / SHARES, SLABS = (ROWS / 16 + DOWN - 1) / DOWN;
  static constexpr int WIDE = COLUMNS / 8, OWN = WIDE / SHARES, PART = WIDE % 4 || SHARES > 1 ? 2 : 4;   // a part of the columns at a time
  typedef float State[SLABS][4 * OWN];

  DEV static int slab(int i) { return 16 * (DOWN * i + threadIdx.x / 32 % DOWN); }   // its first row
  DEV static int own() { return SHARES == 1 ? 0 : threadIdx.x / 32 / DOWN * (8 * OWN); }   // the first of a warp's columns

  // Where byte x of row r is, in a tile of HIGH rows of WIDTH bytes.
  template <int WIDTH, int HIGH = STEPS> DEV static u32 at(int r, int x) {
    const int turn = (r & 7) << 4;
    return PANELS ? x / 128 * (HIGH * 128) + r * 128 + (x % 128 ^ turn) : r * WIDTH + (x ^ turn);
  }
  // Where a lane's row of four matrices is: the second one 8 rows on, the third one 8 columns; or the other way.
  template <int WIDTH> DEV static u32 down_first(u32 tile, int r, int c, int lane) { return tile + at<WIDTH>(r + (lane & 15), 2 * c + (lane & 16)); }
  template <int WIDTH> DEV static u32 along_first(u32 tile, int r, int c, int lane) { return tile + at<WIDTH>(r + (lane & 7) + (lane & 16) / 2, 2 * c + 2 * (lane & 8)); }

  // The rows of a tile, of so many steps from `first` on, 16 bytes at a time; those behind the last step, and columns behind `length`, are 0.
  template <int WIDTH, int LENGTH, class Row> DEV static void fetch_tile(u32 to, int first, int steps, bool back, int length, const Row &row) {
    constexpr int EACH = LENGTH / 8, BY = THREADS / EACH;
    if (THREADS % EACH == 0 && STEPS % BY == 0) {   // a thread has a column, and every BY-th row
      const int n = threadIdx.x / EACH, x = threadIdx.x % EACH * 8;
      const u16 *begin = row(0), *from = row(back ? steps - 1 - (first + n) : first + n) + x;
      const i64 on = back ? begin - row(BY) : row(BY) - begin;
#pragma unroll
      for (int e = 0; e < STEPS / BY; e++) {
        const bool is = first + n + BY * e < steps && x < length;
        cp_async<16>(to + at<WIDTH>(n + BY * e, 2 * x), is ? from + on * e : begin, is ? 16 : 0);
      }
      return;
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < STEPS * EACH; i += THREADS) {
      const int n = i / EACH, x = i % EACH * 8;
      const bool is = first + n < steps && x < length;
      const u16 *from = row(!is ? 0 : back ? steps - 1 - (first + n) : first + n);
      cp_async<16>(to + at<WIDTH>(n, 2 * x), from + (is ? x : 0), is ? 16 : 0);
    }
  }
  // What a thread has of a state: `each` is told the place of every element.
  template <class Each> DEV static void for_all(State &state, const Each &each) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < SLABS; i++)
#pragma unroll
      for (int x = 0; x < OWN; x++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int r = slab(i) + lane / 4 + e / 2 * 8, c = own() + 8 * x + lane % 4 * 2 + e % 2;
          each(state[i][4 * x + e], r, c);
        }
  }
  // The state of 16 bits, as a tile.
  DEV static void put_state(u32 to, const State &state) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < SLABS; i++)
#pragma unroll
      for (int x = 0; x < OWN; x++) {
        const int r = slab(i) + lane / 4, c = own() + 8 * x + lane % 4 * 2;
        if (r >= ROWS) continue;
        sts32(to + at<COLUMN_BYTES, ROWS>(r, 2 * c), pack<HALF>(state[i][4 * x], state[i][4 * x + 1]));
        sts32(to + at<COLUMN_BYTES, ROWS>(r + 8, 2 * c), pack<HALF>(state[i][4 * x + 2], state[i][4 * x + 3]));
      }
  }
  // Of 16 steps from j on the slabs of the tile of rows, turned and times by(j): the first operand of what comes to the state.
  template <class By> DEV static void read_rows(u32 (&a)[SLABS][4], u32 rows, int j, const By &by) {
    const int lane = threadIdx.x & 31;
    const float2 f[2] = {by(j + lane % 4 * 2), by(j + lane % 4 * 2 + 8)};
#pragma unroll
    for (int i = 0; i < SLABS; i++) {
      if (slab(i) >= ROWS) continue;
      ldm<true>(along_first<ROW_BYTES>(rows, j, slab(i), lane), a[i]);
#pragma unroll
      for (int e = 0; e < 4; e++) a[i][e] = pack<HALF>(f[e / 2].x * low<HALF>(a[i][e]), f[e / 2].y * high<HALF>(a[i][e]));
    }
  }
  // all * state + the chunk's products, where by(j) is what multiplies steps j and j + 1.
  template <class By> DEV static void add_chunk(State &state, u32 rows, u32 columns, float all, const By &by) {
    const int lane = threadIdx.x & 31;
    for_all(state, [&](float &x, int, int) { x *= all; });
#pragma unroll 1
    for (int j = 0; j < STEPS; j += 16) {
      u32 a[SLABS][4];
      read_rows(a, rows, j, by);
#pragma unroll
      for (int x = 0; x < OWN; x += 2) {
        u32 w[4];
        ldm<true>(down_first<COLUMN_BYTES>(columns, j, own() + 8 * x, lane), w);
#pragma unroll
        for (int i = 0; i < SLABS; i++)
          if (slab(i) < ROWS) {
            mma(&state[i][4 * x], a[i], w[0], w[1]);
            mma(&state[i][4 * x + 4], a[i], w[2], w[3]);
          }
      }
    }
  }
  // Columns [8 * first, …) of a part of 16 rows of a tile times the state of 16 bits.
  DEV static void times_state(float (&y)[4 * PART], u32 rows, int row, u32 state, int first) {
    const int lane = threadIdx.x & 31;
#pragma unroll 4
    for (int k = 0; k < ROWS; k += 16) {
      u32 a[4];
      ldm<false>(down_first<ROW_BYTES>(rows, row, k, lane), a);
#pragma unroll
      for (int x = 0; x < PART; x += 2) {
        u32 w[4];
        ldm<true>(down_first<COLUMN_BYTES>(state, k, 8 * (first + x), lane), w);
        mma(&y[4 * x], a, w[0], w[1]);
        mma(&y[4 * x + 4], a, w[2], w[3]);
      }
    }
  }
};

// The decays of a chunk, and their products.
struct Decays {
  float a[64], head[64], tail[64], diagonal[4][16][16];

  // One thread for each j, whose factor comes with it, one for each i.
  DEV void multiply(float factor) {
    const int n = threadIdx.x % 64, block = n / 16, inside = n % 16;
    if (threadIdx.x >= 128) return;
    float d[16];
#pragma unroll
    for (int i = 0; i < 16; i += 4) {   // all loads at once
      const float4 four = *(const float4 *)&a[16 * block + i];
      d[i] = four.x;
      d[i + 1] = four.y;
      d[i + 2] = four.z;
      d[i + 3] = four.w;
    }
    if (threadIdx.x < 64) {
      float x = factor;
#pragma unroll
      for (int i = 0; i < 16; i++) {
        x *= i > inside ? d[i] : 1.f;
        if (i >= inside) diagonal[block][i][inside] = x;
      }
      tail[n] = x;
    } else {
      float x = d[0];
#pragma unroll
      for (int i = 1; i < 16; i++) x *= i <= inside ? d[i] : 1.f;
      head[n] = x;
    }
  }
  // Of all steps of 16s [from, to).
  DEV float whole(int from, int to) const {
    float x = 1.f;
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (i >= from && i < to) x *= head[16 * i + 15];
    return x;
  }
  // What comes from before the chunk decays to step n by this much; what step n adds, to the chunk's end, by that (of steps j and j + 1).
  DEV float before(int n) const { return whole(0, n / 16) * head[n]; }
  DEV float2 after(int j) const {
    const float x = whole(j / 16 + 1, 4);
    const float2 near = *(const float2 *)&tail[j];
    return make_float2(x * near.x, x * near.y);
  }
  // The scores of a warp's 16 steps times M, as operands of the next product: p[j] for steps [16j, 16j + 16). Those that are not before are 0.
  DEV void weigh(u32 (&p)[4][4], const float (&score)[32], int warp, int lane) const {
    const int g = lane / 4, t = lane % 4 * 2;
    const float mine[2] = {head[16 * warp + g], head[16 * warp + g + 8]};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float *of = &score[8 * j];
      if (j < warp) {
        const float between = whole(j + 1, warp);
        const float2 far[2] = {*(const float2 *)&tail[16 * j + t], *(const float2 *)&tail[16 * j + 8 + t]};
#pragma unroll
        for (int i = 0; i < 4; i++)
          p[j][i] = pack<HALF>(of[2 * i] * (mine[i % 2] * (between * far[i / 2].x)), of[2 * i + 1] * (mine[i % 2] * (between * far[i / 2].y)));
      } else if (j == warp) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int row = g + i % 2 * 8, col = i / 2 * 8 + t;
          const float2 near = *(const float2 *)&diagonal[j][row][col];
          p[j][i] = pack<HALF>(col <= row ? of[2 * i] * near.x : 0.f, col + 1 <= row ? of[2 * i + 1] * near.y : 0.f);
        }
      } else {
#pragma unroll
        for (int i = 0; i < 4; i++) p[j][i] = 0;
      }
    }
  }
};

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
      if (first + C::STEPS < steps) {
        C::fetch_chunk(stage ^ shared ^ (shared + C::STAGE), s, b, c0, first + C::STEPS);
        fetch_decays(first + C::STEPS);
      }
      d.multiply(now);
      if (S::SUMS) C::put_state(shared + C::STATE, state);
      C::publish();
      __syncthreads();
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
