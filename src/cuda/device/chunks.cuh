// chunks.cuh: the building blocks of scans of products by chunks on tensor cores: 16-bit tiles in shared
// memory, a state in accumulators, and products of decays.

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
  // By mma.sync what threads write needs no more than a barrier, and products are there at once; WideTiles has its own of these three.
  DEV static void publish() {}
  DEV static void wait_chunk(State &) {}
  // all * state + the chunk's products, where by(j) is what multiplies steps j and j + 1.
  template <class By> DEV static void ask_chunk(State &state, u32 rows, u32 columns, float all, const By &by) {
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
