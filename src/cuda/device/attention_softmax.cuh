// attention_softmax.cuh: the online softmax of a thread's two rows, for the mainloops that walk over the stream once.
//
// LAZY: the reference of a row's exponents is replaced only when the row's largest score has grown by more
// than a factor of 2^LAZY. A warp votes on which rows do so, but the result of a row depends on that row
// alone.

// What is known of a thread's two rows: the reference, POST times it (or 0), the sum of its columns' weights, and its columns'
// largest score.
struct Softmax {
  float top[2], base[2], sum[2], most[2];
  // Of a row that has seen nothing yet; who begins with step<1> needs it not.
  DEV void begin() {
#pragma unroll
    for (int r = 0; r < 2; r++) top[r] = most[r] = -INF, base[r] = sum[r] = 0.f;
  }
  // The next columns are another chunk's; the largest score goes on.
  DEV void begin_chunk() {
#pragma unroll
    for (int r = 0; r < 2; r++) top[r] = -INF, base[r] = sum[r] = 0.f;
  }
  // From scores to weights. `grow` says whether accumulators have to be multiplied by alpha.
  template <int FIRST> DEV void step(float (&s)[STREAM / 2], float (&alpha)[2], bool &grow) {
    float part[2][2], mine[2];
#pragma unroll
    for (int i = 0; i < 4; i++) part[i & 1][i >> 1] = s[2 * (i & 1) + 4 * (i >> 1)];
#pragma unroll
    for (int i = 0; i < STREAM / 2; i++) { const int r = i >> 1 & 1, u = i >> 2 & 1; part[r][u] = fmaxf(part[r][u], s[i]); }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      mine[r] = fmaxf(part[r][0], part[r][1]);
      most[r] = FIRST ? mine[r] : fmaxf(most[r], mine[r]);
    }
    grow = true;
    if (!FIRST && LAZY) grow = __any_sync(~0u, (mine[0] - top[0]) * POST > (float)LAZY || (mine[1] - top[1]) * POST > (float)LAZY);
    if (grow) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float x = mine[r];
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
        if (FIRST) {
          base[r] = x == -INF ? 0.f : x * POST;
        } else {
          const float old = top[r];
          x = fmaxf(x, old);
          if (LAZY && !((x - old) * POST > (float)LAZY)) x = old;
          base[r] = x == -INF ? 0.f : x * POST;
          alpha[r] = old == x ? 1.f : ex2(__fmaf_rn(old, POST, -base[r]));
          sum[r] *= alpha[r];
        }
        top[r] = x;
      }
    }
    float add[2][2] = {{0.f, 0.f}, {0.f, 0.f}};
#pragma unroll
    for (int i = 0; i < STREAM / 2; i++) {
      const int r = i >> 1 & 1, u = i >> 2 & 1;
      s[i] = ex2(__fmaf_rn(s[i], POST, -base[r]));
      add[r][u] += s[i];
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float x = add[r][0] + add[r][1];
      sum[r] = FIRST ? x : sum[r] + x;
    }
  }
};
