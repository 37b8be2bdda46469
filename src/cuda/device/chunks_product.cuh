// chunks_product.cuh: the gradient of a decay, by chunks on tensor cores: at each step the sum of a state of
// a scan times the previous state of a scan in the other direction. Both scans have that decay, so no state
// has to be computed for each step.
//
// Steps are counted as the other scan goes, whose state is s, made of products x_j^T z_j (x along rows, z along columns); g, which comes from
// the end, is made of u_i^T w_i. With s0 the state before a chunk, e what comes to g at its last step, and M as in chunks_sums.cuh,
//
//     d_t = sum over i >= t > j of M[i][t] * Z[i][j] * M[t - 1][j]       Z[i][j] = (u_i x_j) (w_i z_j), the same sum as that of a product of both,
//
// where s0 is one more j, with Z[i] = u_i s0 w_i, and e one more i, with Z[j] = x_j e z_j, and of both
// sum(e*s0). Nothing is divided by a decay. Sums over i are running ones, R[t][j] = Z[t][j] + a[t + 1] R[t +
// 1][j], along 16 steps: what is behind these comes as the value that R begins with, what is before them is
// one more column j. Both have been added up by whole 16s.
//
// A block has all of the state. It first walks along the other scan, and keeps the states before chunks in `kept`, in 16 bits; then from the
// end along g. Four barriers a chunk: behind the first its tiles are there, behind the second decays, e and s0 of 16 bits, behind the third
// everything that sums are made of, and the tiles are free; behind the fourth all that is summed up for each step. ChunksProduct makes the
// products: by mma.sync (chunks_product_mma.cuh) or by wgmma (chunks_product_sm90.cuh).
template <class S, class T> struct ProductTiles : T {
  static constexpr int ROWS = S::ROWS, COLUMNS = S::COLS, WARPS = S::WARPS, HALVES = WARPS / 4;
  static constexpr int STEPS = T::STEPS, THREADS = T::THREADS, ROW_BYTES = T::ROW_BYTES, COLUMN_BYTES = T::COLUMN_BYTES;
  static constexpr int ROW_TILE = STEPS * ROW_BYTES, COLUMN_TILE = STEPS * COLUMN_BYTES, IMAGE = ROWS * COLUMN_BYTES;
  static constexpr int X = 0, Z = X + ROW_TILE, U = Z + COLUMN_TILE, W = U + ROW_TILE, STAGE = W + COLUMN_TILE;   // the first two again from U on
  static constexpr int S0 = STAGE, E = S0 + IMAGE, FLOATS = E + IMAGE;
  struct Sums {
    float of_x[64], of_u[64];                    // factors of steps
    float ends[HALVES][64], starts[HALVES][64];   // x_j e z_j, and u_i s0 w_i
    float end[HALVES][4], start[HALVES][4];       // the same of 16 steps
    float rows[4][4][16], columns[4][4][16], both[4][4];   // Z of 16 i and 16 j, added up over j, over i, over both
    float inner[4][16][17];                      // Z of the same 16, then what is summed up; the last is what is before
    float crossed[WARPS];                        // parts of sum(e*s0)
  };
  struct Memory {
    Decays d;
    Sums s;
  };

  DEV static i64 time(const S &s, i64 n) { return S::BACK ? s.steps() - 1 - n : n; }

  DEV static void fetch_other(u32 to, const S &s, i64 b, i64 first) {
    T::template fetch_tile<ROW_BYTES, ROWS>(to + X, first, s.steps(), S::BACK, ROWS, [&](i64 t) { return s.x(b, t); });
    T::template fetch_tile<COLUMN_BYTES, COLUMNS>(to + Z, first, s.steps(), S::BACK, COLUMNS, [&](i64 t) { return s.z(b, t); });
  }
  DEV static void fetch_own(u32 to, const S &s, i64 b, i64 first) {
    T::template fetch_tile<ROW_BYTES, ROWS>(to + U, first, s.steps(), S::BACK, ROWS, [&](i64 t) { return s.u(b, t); });
    T::template fetch_tile<COLUMN_BYTES, COLUMNS>(to + W, first, s.steps(), S::BACK, COLUMNS, [&](i64 t) { return s.w(b, t); });
  }
  DEV static void prefetch_row(const u16 *row, int length, int i) {
    if (i * 64 < length) prefetch(row + i * 64);
  }
  // What fetch_all will ask for comes into the L2 cache.
  DEV static void prefetch_all(const S &s, i64 b, i64 first, const u8 *kept) {
    const int n = threadIdx.x % STEPS, part = threadIdx.x / STEPS;
    const i64 t = time(s, first + n);
#pragma unroll
    for (int i = part; i * 64 < (ROWS > COLUMNS ? ROWS : COLUMNS); i += THREADS / STEPS) {
      prefetch_row(s.x(b, t), ROWS, i);
      prefetch_row(s.z(b, t), COLUMNS, i);
      prefetch_row(s.u(b, t), ROWS, i);
      prefetch_row(s.w(b, t), COLUMNS, i);
    }
    for (int i = 128 * threadIdx.x; i < IMAGE; i += 128 * THREADS) prefetch(kept + i);
  }
  // A state of 16 bits, as it lies in shared memory.
  DEV static void keep(u8 *to, u32 from) {
    for (int i = 16 * threadIdx.x; i < IMAGE; i += 16 * THREADS) {
      const uint4 w = lds128(from + i);
      const u32 words[4] = {w.x, w.y, w.z, w.w};
      write16(to + i, words);
    }
  }
  DEV static void fetch_kept(u32 to, const u8 *from) {
    for (int i = 16 * threadIdx.x; i < IMAGE; i += 16 * THREADS) cp_async<16>(to + i, from + i, 16);
  }

  DEV static float over_quad(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
  }
  DEV static float over_groups(float x) {
    x += __shfl_xor_sync(~0u, x, 4);
    x += __shfl_xor_sync(~0u, x, 8);
    return x + __shfl_xor_sync(~0u, x, 16);
  }

  // Rows times a state, columns from 8 * first on, times their columns: of a warp's 16 steps.
  template <int N> DEV static void add_columns(float (&sum)[2], const float (&y)[N], u32 columns, int slab, int first) {
    const int lane = threadIdx.x & 31, g = lane / 4, t = lane % 4 * 2;
#pragma unroll
    for (int x = 0; x < N / 4; x++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const u32 w = lds32(columns + T::template at<COLUMN_BYTES>(16 * slab + g + 8 * r, 2 * (8 * (first + x) + t)));
        sum[r] = fmaf(y[4 * x + 2 * r], low<HALF>(w), sum[r]);
        sum[r] = fmaf(y[4 * x + 2 * r + 1], high<HALF>(w), sum[r]);
      }
  }
  // The sums of 16 steps; and all of these times products of decays.
  DEV static void put_sums(float *each, float &all, const float (&sum)[2], const float *factor, const float *decays, int slab) {
    const int lane = threadIdx.x & 31, g = lane / 4;
    float total = 0.f;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int n = 16 * slab + g + 8 * r;
      const float x = over_quad(sum[r]) * factor[n];
      if (lane % 4 == 0) each[n] = x;
      total = fmaf(decays[n], x, total);
    }
    total = over_groups(total);
    if (lane == 0) all = total;
  }

  // Z of steps j of one 16 and i of another, or of the same, from its two factors.
  DEV static void put_products(Memory &m, const float *p, const float *q, int j, int i) {
    const int lane = threadIdx.x & 31, g = lane / 4, t = lane % 4 * 2;
    const float fx[2] = {m.s.of_x[16 * j + g], m.s.of_x[16 * j + g + 8]}, tail[2] = {m.d.tail[16 * j + g], m.d.tail[16 * j + g + 8]};
    float z[2][4], head[4];   // of steps j and j + 8, four steps i
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int at = k / 2 * 4 + k % 2, n = k / 2 * 8 + t + k % 2;
      const float fu = m.s.of_u[16 * i + n];
      head[k] = m.d.head[16 * i + n];
#pragma unroll
      for (int r = 0; r < 2; r++) z[r][k] = p[at + 2 * r] * q[at + 2 * r] * (fx[r] * fu);
    }
    if (i == j) {
#pragma unroll
      for (int k = 0; k < 4; k++)
#pragma unroll
        for (int r = 0; r < 2; r++) m.s.inner[j][k / 2 * 8 + t + k % 2][g + 8 * r] = z[r][k];
      return;
    }
    float over_i[2] = {0.f, 0.f}, over_j[4], total = 0.f;
#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
      for (int r = 0; r < 2; r++) over_i[r] = fmaf(head[k], z[r][k], over_i[r]);
      over_j[k] = over_groups(fmaf(tail[0], z[0][k], tail[1] * z[1][k]));
      total = fmaf(head[k], over_j[k], total);
    }
    over_i[0] = over_quad(over_i[0]);
    over_i[1] = over_quad(over_i[1]);
    total = over_quad(total);
#pragma unroll
    for (int k = 0; k < 4; k++)
      if (g == 0) m.s.rows[i][j][k / 2 * 8 + t + k % 2] = over_j[k];
    if (t == 0) {
      m.s.columns[i][j][g] = over_i[0];
      m.s.columns[i][j][g + 8] = over_i[1];
    }
    if (lane == 0) m.s.both[i][j] = total;
  }

  template <int N> DEV static float halves(const float (&of)[HALVES][N], int n) { return HALVES == 1 ? of[0][n] : of[0][n] + of[HALVES - 1][n]; }

  // What each of 16 steps sums up, for one j in a thread's charge; the last column by one thread of the next two warps. All loads come first.
  DEV static void sum_steps(Memory &m) {
    const int n = threadIdx.x % 64, block = n / 16, inside = n % 16;
    const Decays &d = m.d;
    const auto whole = [&](int i) { return d.head[16 * i + 15]; };
    float a[16], z[16], by[16];
    if (threadIdx.x < 64) {
      float r = halves(m.s.ends, n);
#pragma unroll
      for (int i = 3; i > 0; i--)
        if (i > block) r = fmaf(r, whole(i), m.s.columns[i][block][inside]);
#pragma unroll
      for (int t = 1; t < 16; t++) {
        a[t] = d.a[16 * block + t];
        z[t] = m.s.inner[block][t][inside];
        by[t] = d.diagonal[block][t - 1][inside];
      }
#pragma unroll
      for (int t = 15; t > 0; t--)
        if (t > inside) {
          r += z[t];
          m.s.inner[block][t][inside] = by[t] * r;
          r *= a[t];
        }
    } else if (threadIdx.x < 128) {
      float x = halves(m.s.starts, n);
#pragma unroll
      for (int j = 0; j < 3; j++)
        if (j < block) x = fmaf(x, whole(j), m.s.rows[block][j][inside]);
      m.s.inner[block][inside][16] = x;
      __syncwarp();
      if (inside) return;
      float r = 0.f;
#pragma unroll
      for (int w = 0; w < WARPS; w++) r += m.s.crossed[w];
#pragma unroll
      for (int j = 0; j < 3; j++)
        if (j < block) r = fmaf(r, whole(j), halves(m.s.end, j));
#pragma unroll
      for (int i = 3; i > 0; i--) {
        float y = halves(m.s.start, i);
#pragma unroll
        for (int j = 0; j < 3; j++)
          if (j < block) y = fmaf(y, whole(j), m.s.both[i][j]);
        if (i > block) r = fmaf(r, whole(i), y);
      }
#pragma unroll
      for (int t = 0; t < 16; t++) {
        a[t] = d.a[16 * block + t];
        z[t] = m.s.inner[block][t][16];
        by[t] = t ? d.head[16 * block + t - 1] : 1.f;
      }
#pragma unroll
      for (int t = 15; t >= 0; t--) {
        r += z[t];
        m.s.inner[block][t][16] = by[t] * r;
        r *= a[t];
      }
    }
  }
  // All of a step's: `n` of the chunk.
  DEV static float sum_step(const Memory &m, int n) {
    const float *of = m.s.inner[n / 16][n % 16];
    float sum = of[16];
#pragma unroll
    for (int j = 0; j < 15; j++) {
      const float x = of[j];
      sum += j < n % 16 ? x : 0.f;
    }
    return sum;
  }
};

template <class S, class C> DEV void walk_chunks_product(const S &s, i64 items, u8 *kept, u8 *memory) {
  typename C::Memory &m = *(typename C::Memory *)(memory + C::FLOATS);
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, step = threadIdx.x;
  const u32 shared = smem_u32(memory);
  const i64 steps = s.steps(), chunks = (steps + C::STEPS - 1) / C::STEPS;
  for (i64 b = blockIdx.x; b < items; b += gridDim.x) {
    typename C::State state;
    u8 *mine = kept + b * chunks * C::IMAGE;
    float decay = 1.f, of_x = 0.f, of_u = 0.f;
    const auto fetch_decays = [&](i64 first) {
      const i64 n = first + step;
      if (step >= C::STEPS) return;
      decay = n < steps && n > 0 ? s.decay(b, C::time(s, n) + S::AHEAD) : 1.f;
      of_x = n < steps ? s.factor(b, C::time(s, n)) : 0.f;
      of_u = n < steps ? s.factor_own(b, C::time(s, n)) : 0.f;
    };
    // The other scan: what is before its first step decays with it, as in walk_chunks.
    const float once = S::FIRST && steps > 0 ? s.decay(b, C::time(s, 0) + S::AHEAD) : 1.f;
    C::for_all(state, [&](float &x, int r, int c) {
      x = S::FIRST && r < C::ROWS ? once * s.first(b, r, c) : 0.f;
      if (S::ADDED && r < C::ROWS && steps > 0) x += s.added(b, r, c);
    });
    C::fetch_other(shared, s, b, 0);
    cp_commit();
    fetch_decays(0);
    u32 stage = shared;
    for (i64 n = 0; n < chunks; n++, stage ^= shared ^ (shared + C::U)) {
      if (step < C::STEPS) m.d.a[step] = decay;
      const float now = of_x;
      cp_wait<0>();
      C::publish();
      __syncthreads();
      m.d.multiply(now);
      C::put_state(shared + C::S0, state);
      C::publish();
      __syncthreads();
      if (n + 1 < chunks) {
        C::fetch_other(stage ^ shared ^ (shared + C::U), s, b, (n + 1) * C::STEPS);
        cp_commit();
        fetch_decays((n + 1) * C::STEPS);
        C::ask_chunk(state, stage + C::X, stage + C::Z, m.d.whole(0, 4), [&](int j) { return m.d.after(j); });
      }
      C::keep(mine + n * C::IMAGE, shared + C::S0);
      C::wait_chunk(state);
    }
    // From the end.
    C::for_all(state, [&](float &x, int r, int c) { x = S::LATE && r < C::ROWS ? s.late(b, r, c) : 0.f; });
    __syncthreads();
    const auto fetch_all = [&](i64 n) {
      C::fetch_other(shared, s, b, n * C::STEPS);
      C::fetch_own(shared, s, b, n * C::STEPS);
      C::fetch_kept(shared + C::S0, mine + n * C::IMAGE);
      cp_commit();
      fetch_decays(n * C::STEPS);
    };
    if (chunks) fetch_all(chunks - 1);
    for (i64 n = chunks - 1; n >= 0; n--) {
      if (step < C::STEPS) {
        m.d.a[step] = decay;
        m.s.of_x[step] = of_x;
        m.s.of_u[step] = of_u;
      }
      cp_wait<0>();
      C::publish();
      __syncthreads();
      typename C::Products products;
      C::ask_products(products, shared);
      if (n > 1) C::prefetch_all(s, b, (n - 1) * C::STEPS, mine + (n - 1) * C::IMAGE);
      m.d.multiply(1.f);
      C::put_state(shared + C::E, state);
      float crossed = 0.f;
      C::for_all(state, [&](float &x, int r, int c) {
        if (r >= C::ROWS || c & 1) return;
        const u32 w = lds32(shared + C::S0 + C::template at<C::COLUMN_BYTES, C::ROWS>(r, 2 * c));
        crossed = fmaf(x, low<HALF>(w), crossed);
        crossed = fmaf((&x)[1], high<HALF>(w), crossed);
      });
      crossed = C::over_groups(C::over_quad(crossed));
      if (lane == 0) m.s.crossed[warp] = crossed;
      C::publish();
      __syncthreads();
      C::add(state, products, m, shared, n > 0, [&](int i) {
        const float before = m.d.whole(0, i / 16);
        const float2 head = *(const float2 *)&m.d.head[i], f = *(const float2 *)&m.s.of_u[i];
        return make_float2(before * head.x * f.x, before * head.y * f.y);
      });
      __syncthreads();
      if (n) fetch_all(n - 1);
      C::sum_steps(m);
      __syncthreads();
      const i64 at = n * C::STEPS + step;
      if (step < C::STEPS && at < steps) s.out(b, C::time(s, at), at ? C::sum_step(m, step) : 0.f);   // before the first step there is none
    }
    __syncthreads();   // the buffers may be used again
  }
}
