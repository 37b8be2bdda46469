// attention_folded.cuh: the program's epilogue for the rows of a batch, once all chunks of its columns are
// combined: by attention_fold.cuh or, if there is one chunk, by attention_split.cuh itself.
// attention_forward.cuh describes the emitted part: out::Rows, out::rows_load, out::Sums and
// out::epilogue_subtile.

// The sums as accumulators; rows that are not there are like the last.
struct Folded {
  const float *sums;
  int row, last, col;
  float factor[2];
  DEV float operator()(int j, int i, int e) const {
    const int r = min(row + 8 * (i & 1), last), c = col + 16 * j + 8 * (i >> 1) + e;
    return VALUE_WIDTH % 16 == 0 || c < VALUE_WIDTH ? __fmaf_rn(sums[r * VALUE_WIDTH + c], factor[i & 1], 0.f) : 0.f;
  }
};
// Of rows `in` and in + 8. Each row has VALUE_WIDTH sums, and its reference, sum of weights and largest score.
DEV void finish_rows(const Params &P, const float *sums, const float *stats, int batch, int in, int t) {
  const int lane = t & 31, row = batch * BATCH_PAD + in;
  Folded folded{sums, in, BATCH_ROWS - 1, 2 * (lane & 3), {0.f, 0.f}};
  float top[2], sum[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float *const state = stats + 3 * min(in + 8 * h, BATCH_ROWS - 1);
    folded.factor[h] = fold_end(state[2], state[0], GUARDED ? 1.f : INF - INF);
    top[h] = state[2] * SCALE;
    sum[h] = state[1] * folded.factor[h];
  }
  out::Rows O;
  out::Sums S;
  out::rows_load(O, P, row, top, sum, lane & 3);
  out::epilogue_subtile<0>(folded, O, S, P, 0, row, 0, t);
}
