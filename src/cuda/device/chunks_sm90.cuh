// chunks_sm90.cuh: the products of chunks.cuh by wgmma. A block is one warpgroup, and two of them share a multiprocessor: what one waits for, the
// other has time for. Scores are on their way while decays are multiplied, what comes to the state while y is stored.
//
// All 64 steps are in every product, with zeros where a step is not before.
//
// What the emitted part defines, all of 64 rows, 16 deep and 64 columns but for the last one's COLUMNS:
//   wgmma_score   both operands deep along their rows       wgmma_value   the first in registers, the second deep down its columns
//   wgmma_state   the second deep down its columns          wgmma_rows    as wgmma_value
template <class S> struct Chunks : ChunkTiles<S, Tiles<S::ROWS, S::COLUMNS, 4, 1, true>> {
  typedef Tiles<S::ROWS, S::COLUMNS, 4, 1, true> T;
  typedef ChunkTiles<S, T> C;
  typedef float Scores[32];
  static constexpr int ROWS = S::ROWS, SLABS = T::SLABS, HALVES = S::COLUMNS / 64, PANEL = 64 * 128;
  static_assert(ROWS % 64 == 0 && S::COLUMNS % 64 == 0, "");

  // What threads have written is there for wgmma, too.
  DEV static void publish() { fence_async(); }

  // Where 16 of the depth are, of panels along it and of one down it.
  DEV static int along(int k) { return k / 4 * (PANEL >> 4) + k % 4 * 2; }
  DEV static int down(int k) { return k * (2048 >> 4); }

  DEV static void ask_scores(Scores &score, u32 stage) {
    if (!S::SUMS) return;
    const u64 q = operand_k(stage + C::Q), k = operand_k(stage + C::K);
    hold(score);
    wg_fence();
#pragma unroll
    for (int n = 0; n < ROWS / 16; n++) wgmma_score(score, q + along(n), k + along(n), n);
    wg_commit();
  }
  // q s, of 64 columns.
  DEV static void ask_far(float (&far)[32], u32 stage, u32 state) {
    const u64 q = operand_k(stage + C::Q), s = operand_mn<ROWS>(state);
    hold(far);
    wg_fence();
#pragma unroll
    for (int n = 0; n < ROWS / 16; n++) wgmma_state(far, q + along(n), s + down(n), n);
    wg_commit();
  }
  DEV static void ask_near(float (&y)[32], u32 (&p)[4][4], u32 columns) {
    const u64 v = operand_mn<64>(columns);
    hold(y);
#pragma unroll
    for (int j = 0; j < 4; j++) hold(p[j]);
    wg_fence();
#pragma unroll
    for (int j = 0; j < 4; j++) wgmma_value(y, p[j][0], p[j][1], p[j][2], p[j][3], v + down(j), j);
    wg_commit();
  }
  // all * state + the chunk's products.
  DEV static void ask_state(typename T::State &state, u32 stage, const Decays &d) {
    const u64 v = operand_mn<64>(stage + C::V);
    const float all = d.whole(0, 4);
    u32 a[4][SLABS][4];
#pragma unroll
    for (int j = 0; j < 4; j++) T::read_rows(a[j], stage + C::K, 16 * j, [&](int n) { return d.after(n); });
    T::for_all(state, [&](float &x, int, int) { x *= all; });
#pragma unroll
    for (int i = 0; i < SLABS; i++) {
      hold(state[i]);
#pragma unroll
      for (int j = 0; j < 4; j++) hold(a[j][i]);
    }
    wg_fence();
#pragma unroll
    for (int i = 0; i < SLABS; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) wgmma_rows(state[i], a[j][i][0], a[j][i][1], a[j][i][2], a[j][i][3], v + down(j), 1);
    wg_commit();
  }

  template <class Out> DEV static void add(typename T::State &state, Scores &score, u32 stage, u32 before, const Decays &d, bool history, const Out &out) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    u32 p[4][4];
    if (!S::SUMS) ask_state(state, stage, d);
#pragma unroll
    for (int h = 0; S::SUMS && h < HALVES; h++) {
      float y[32], far[32];
      ask_far(far, stage, before + h * (ROWS * 128));
      if (h == 0) {
        wg_wait<1>();
        hold(score);
        d.weigh(p, score, warp, lane);
      }
      ask_near(y, p, stage + C::V + h * PANEL);
      if (h + 1 < HALVES) {
        wg_wait<0>();
      } else {
        ask_state(state, stage, d);
        wg_wait<1>();
      }
      hold(y);
      hold(far);
      if (C::any_odd(y)) {
        float sum[32] = {};
#pragma unroll
        for (int j = 0; j < 4; j++)
          if (j <= warp) C::add_alone(sum, p[j], stage, 8 * h, j, warp, lane);
        C::replace_odd(y, sum);
      }
      if (history) C::add_far(y, far, d, warp, lane);
      out(y, 8 * h);
    }
    wg_wait<0>();
#pragma unroll
    for (int i = 0; i < SLABS; i++) hold(state[i]);
  }
};
