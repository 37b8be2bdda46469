// chunks_sums_mma.cuh: the products of chunks_sums.cuh by mma.sync. Eight warps are two sets of four, each
// with half of the columns. Both sets compute the scores, which takes less time than waiting for each other.
template <class S> struct Chunks : ChunkTiles<S, Tiles<S::ROWS, S::COLUMNS, S::WARPS, S::WARPS / 4>> {
  typedef Tiles<S::ROWS, S::COLUMNS, S::WARPS, S::WARPS / 4> T;
  typedef ChunkTiles<S, T> C;
  typedef float Scores[32];
  static constexpr int ROWS = S::ROWS, ROW_BYTES = T::ROW_BYTES, COLUMN_BYTES = T::COLUMN_BYTES, OWN = T::OWN, PART = T::PART;

  DEV static void ask_scores(Scores &, u32) {}

  // q k^T of a warp's 16 steps and those up to them.
  DEV static void make_scores(Scores &score, u32 stage, int warp, int lane) {
#pragma unroll
    for (int i = 0; i < 32; i++) score[i] = 0.f;
#pragma unroll 2
    for (int k = 0; k < ROWS; k += 16) {
      u32 a[4];
      ldm<false>(T::template down_first<ROW_BYTES>(stage + C::Q, 16 * warp, k, lane), a);
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (j <= warp) {
          u32 w[4];
          ldm<false>(T::template along_first<ROW_BYTES>(stage + C::K, 16 * j, k, lane), w);
          mma(&score[8 * j], a, w[0], w[1]);
          mma(&score[8 * j + 4], a, w[2], w[3]);
        }
    }
  }
  // A part of the columns of y, from column 8 * first on.
  DEV static void make_part(float (&y)[4 * PART], const u32 (&p)[4][4], u32 stage, u32 state, const Decays &d, int first, bool history, int warp, int lane) {
#pragma unroll
    for (int i = 0; i < 4 * PART; i++) y[i] = 0.f;
#pragma unroll
    for (int j = 3; j >= 0; j--)   // its own steps first: zeros are there alone
      if (j <= warp) {
#pragma unroll
        for (int x = 0; x < PART; x += 2) {
          u32 w[4];
          ldm<true>(T::template down_first<COLUMN_BYTES>(stage + C::V, 16 * j, 8 * (first + x), lane), w);
          mma(&y[4 * x], p[j], w[0], w[1]);
          mma(&y[4 * x + 4], p[j], w[2], w[3]);
        }
        if (j == warp && C::any_odd(y)) {
          float sum[4 * PART] = {};
          C::add_alone(sum, p[j], stage, first, j, warp, lane);
          C::replace_odd(y, sum);
        }
      }
    if (!history) return;
    float far[4 * PART] = {};
    T::times_state(far, stage + C::Q, 16 * warp, state, first);
    C::add_far(y, far, d, warp, lane);
  }

  template <class Out> DEV static void add(typename T::State &state, Scores &score, u32 stage, u32 before, const Decays &d, bool history, const Out &out) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32 % 4, share = threadIdx.x / 128;
    if (S::SUMS) {
      u32 p[4][4];
      make_scores(score, stage, warp, lane);
      d.weigh(p, score, warp, lane);
#pragma unroll 1
      for (int x0 = share * OWN; x0 < (share + 1) * OWN; x0 += PART) {
        float y[4 * PART];
        make_part(y, p, stage, before, d, x0, history, warp, lane);
        out(y, x0);
      }
    }
    T::ask_chunk(state, stage + C::K, stage + C::V, d.whole(0, 4), [&](int j) { return d.after(j); });
  }
};
