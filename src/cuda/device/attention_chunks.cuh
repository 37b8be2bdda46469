// attention_chunks.cuh: the chunks of columns of an online softmax on Hopper, and how they are combined.
//
// Chunk c has the columns from c * CHUNK on, counted from stream_origin(). Its tiles are processed from the
// last to the first, with a reference, sums of weights and sums of values of its own. Chunks are combined
// one after another, from the last to the first. One block may process all of them (attention_forward.cuh),
// or each may be an item of work (attention_split.cuh, attention_fold.cuh): the bits are the same. If a row
// sees nothing of a chunk, the reference is -INF, and the chunk changes no bit of the row.

// The references are exponents of 2. What was folded is multiplied by `old`, what comes in by `own`; the new reference is the larger one.
DEV float fold_factors(float folded, float chunk, float &old, float &own) {
  const float reference = fmaxf(folded, chunk);
  old = folded == reference ? 1.f : ex2(folded - reference);
  own = chunk == reference ? 1.f : ex2(chunk - reference);
  return reference;
}
DEV float fold(float folded, float chunk, float old, float own) { return __fmaf_rn(chunk, own, folded * old); }
// From the last reference to the largest score. Sums of a row that has seen nothing are `none`, 0 or not a number, times what they were, which is 0.
DEV float fold_end(float most, float reference, float none) { return most == -INF ? none : LAZY ? ex2(__fmaf_rn(most, -POST, reference)) : 1.f; }

#if FEW
#define CHUNKS ((COLUMNS + CHUNK - 1) / CHUNK)
// Those of which a batch's rows see any column: so many from the first on, perhaps none.
DEV void chunks_seen(const Params &P, int batch, int &first, int &count) {
  const int origin = stream_origin(P, batch);
  int from = 0, to = COLUMNS;
  columns_seen(P, batch, 0, BATCH_ROWS - 1, from, to);
  from = max(from - origin, 0);
  to = min(to, COLUMNS) - origin;
  first = to > from ? from / CHUNK : 0;
  count = to > from ? (to + CHUNK - 1) / CHUNK - first : 0;
}
#endif
