// chunks_sums_sm90.cuh: the products of chunks_sums.cuh by wgmma. A block is one warpgroup, and two blocks
// share a multiprocessor: one computes while the other waits. Scores are in flight while decays are
// multiplied, and updates of the state while y is stored.
//
// Every product has all 64 steps, with zeros for steps that do not come before.
template <class S> struct Chunks : ChunkTiles<S, WideTiles<S::ROWS, S::COLUMNS, 4>> {
  typedef WideTiles<S::ROWS, S::COLUMNS, 4> T;
  typedef ChunkTiles<S, T> C;
  typedef float Scores[32];
  static constexpr int ROWS = S::ROWS, HALVES = S::COLUMNS / 64, PANEL = T::PANEL;

  DEV static void ask_scores(Scores &score, u32 stage) {
    if (!S::SUMS) return;
    hold(score);
    wg_fence();
    T::template times_rows<ROWS>(score, stage + C::Q, stage + C::K);
    wg_commit();
  }
  DEV static void ask_near(float (&y)[32], u32 (&p)[4][4], u32 columns) {
    const u64 v = operand_mn<64>(columns);
    hold(y);
    hold_all(p);
    wg_fence();
#pragma unroll
    for (int j = 0; j < 4; j++) wgmma_value(y, p[j][0], p[j][1], p[j][2], p[j][3], v + T::down(j), j);
    wg_commit();
  }
  template <class Out> DEV static void add(typename T::State &state, Scores &score, u32 stage, u32 before, const Decays &d, bool history, const Out &out) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    u32 p[4][4];
    const auto after = [&](int j) { return d.after(j); };
    if (!S::SUMS) T::ask_chunk(state, stage + C::K, stage + C::V, d.whole(0, 4), after);
#pragma unroll
    for (int h = 0; S::SUMS && h < HALVES; h++) {
      float y[32], far[32];
      hold(far);
      wg_fence();
      T::times_panel(far, stage + C::Q, before + h * (ROWS * 128));
      wg_commit();
      if (h == 0) {
        wg_wait<1>();
        hold(score);
        d.weigh(p, score, warp, lane);
      }
      ask_near(y, p, stage + C::V + h * PANEL);
      if (h + 1 < HALVES) {
        wg_wait<0>();
      } else {
        T::ask_chunk(state, stage + C::K, stage + C::V, d.whole(0, 4), after);
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
    T::wait_chunk(state);
  }
};
