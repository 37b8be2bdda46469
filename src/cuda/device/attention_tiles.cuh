// attention_tiles.cuh: what all attention mainloops share: which tiles exist, in which order they are
// processed, and what the epilogue sees of them. Rows are counted as batch.cuh says; a tile has TILE_M of
// one batch, and passes over tiles of STREAM columns.

template <int V> struct Is { static constexpr int value = V; };

#define PANELS(features) (((features) + 63) / 64)
#define PANELS_BYTES(features, rows) (PANELS(features) * (rows) * 128)
#define BYTE_PANELS(features, rows) (((features) + 127) / 128 * (rows) * 128)   // of bytes a panel has 128 elements

// ---- tiles

// A tile's place: its batch, and the first of its rows there.
struct Place { int batch, row; };

// Batches in sections of P.raster, whose columns stay in the L2 cache; in a section all batches' tiles of the same rows come
// together, those with the most columns first.
struct Order {
  int heights, batches, section, total;
  DEV Order(const Params &P) {
    heights = BATCH_PAD / TILE_M;
    batches = (int)P.M / BATCH_ROWS;
    section = (int)P.raster;
    total = heights * batches;
  }
  DEV Place at(int w) const {
    const int per = section * heights, s = w / per, r = w - s * per, first = s * section, left = batches - first;
    const int n = left < section ? left : section, m = r / n;
    return Place{first + (r - m * n), (LAST_FIRST ? heights - 1 - m : m) * TILE_M};
  }
};

// Tiles of STREAM columns that a tile's rows see any of, [lo, hi): never none, so that every tile has a step. They are counted from
// stream_origin(P, batch): the first column of the batch's sequence where the mask tells it, else 0.
DEV void tiles_seen(const Params &P, int batch, int row, int rows, int &lo, int &hi) {
  const int origin = stream_origin(P, batch);
  int from = 0, to = COLUMNS;
  columns_seen(P, batch, row, min(row + rows, BATCH_ROWS) - 1, from, to);
  lo = max(from - origin, 0) / STREAM;
  hi = (min(to, COLUMNS) - origin + STREAM - 1) / STREAM;
  if (hi <= lo) lo = 0, hi = 1;
}
// Of those the ones of which all of these rows see all columns, [lo, hi); none where lo >= hi.
DEV void tiles_whole(const Params &P, int batch, int row, int rows, int &lo, int &hi) {
  const int origin = stream_origin(P, batch);
  int from = 0, to = COLUMNS;
  columns_whole(P, batch, row, min(row + rows, BATCH_ROWS) - 1, from, to);
  lo = (max(from - origin, 0) + STREAM - 1) / STREAM;
  hi = max(min(to, COLUMNS) - origin, 0) / STREAM;
}

// Columns that a tile's rows walk over: tiles [lo, hi), counted from `origin`, of which [from, to) are seen whole by the 64 rows of a
// warpgroup. Where documents are in a tile of rows (STRETCHED), it has a stretch for each; else one.
struct Stretch {
  int origin, lo, hi, from, to;
  bool last;
};

// ---- what comes with a tile of columns

#if STAGED   // the values of column c, each to its vector
DEV void staged_store(u32 to, const float (&v)[STAGED], int c) {
#pragma unroll
  for (int i = 0; i < STAGED; i++)
    if (c < STREAM) sts32(to + 4 * (i * STREAM + c), __float_as_uint(v[i]));
}
#endif

// ---- what is seen of a cut tile

// A bit for each of a thread's elements of a tile: does its row see it, by columns_seen of the row, by the equalities of the mask
// (MATCHES of them), and, STRETCHED, by its origin? Where bits say so, a cut tile's scores are made as a whole one's are.
template <int ON> struct Seen {
  u32 bits[(STREAM + 63) / 64];
  // Of 64 columns, elements before column `end`: element 4k + e of a row is of column 8k + e, counted from the thread's first.
  static DEV u32 before(int end) { return end >= 64 ? ~0u : (1u << 4 * (max(end, 0) >> 3) + min(max(end, 0) & 7, 2)) - 1; }
  DEV void find(const Params &P, int row, int col, int t, int origin = 0) {
#pragma unroll
    for (int w = 0; w < (STREAM + 63) / 64; w++) bits[w] = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int from = 0, to = COLUMNS;
      columns_seen(P, batch_of(P, row), row_in_batch(P, row) + 8 * h, row_in_batch(P, row) + 8 * h, from, to);
#if STRETCHED   // they are not this row's
      if (row_origin(P, batch_of(P, row), row_in_batch(P, row) + 8 * h) != origin) to = 0;
#endif
      from -= col + 2 * (t & 3);
      to -= col + 2 * (t & 3);
#pragma unroll
      for (int w = 0; w < (STREAM + 63) / 64; w++) bits[w] |= (before(to - 64 * w) & ~before(from - 64 * w) & 0x33333333) << 2 * h;
    }
#if MATCHES
#pragma unroll
    for (int w = 0; w < (STREAM + 63) / 64; w++) bits[w] &= matching(P, batch_of(P, row), row_in_batch(P, row), col + 64 * w, t);
#endif
#pragma unroll
    for (int w = 0; w < (STREAM + 63) / 64; w++) asm volatile("" : "+r"(bits[w]));
  }
  DEV void keep(float (&x)[STREAM / 2], float hidden) const {
    u32 seen[(STREAM + 63) / 64];
#pragma unroll
    for (int w = 0; w < (STREAM + 63) / 64; w++) {
      seen[w] = bits[w];
      asm volatile("" : "+r"(seen[w]));   // else its bits are kept apart from one use to the next
    }
#pragma unroll
    for (int i = 0; i < STREAM / 2; i++) x[i] = seen[i / 32] >> i % 32 & 1 ? x[i] : hidden;
  }
};
template <> struct Seen<0> {
  DEV void find(const Params &, int, int, int, int = 0) {}
  DEV void keep(float (&)[STREAM / 2], float) const {}
};

// The accumulators of a warp's 16 rows, from number AT on, as an epilogue sees them: fragment j, cell i (row + 8*(i & 1), columns + 8*(i >> 1)), element e.
template <int N, int AT = 0> struct Kept {
  const float (&d)[N];
  DEV float operator()(int j, int i, int e) const { return d[AT + j * 8 + (i >> 1) * 4 + (i & 1) * 2 + e]; }
};
// Takes the step of every tile from n down to lo: cut tiles at the end, whole ones, and cut ones at the beginning.
template <class Step> DEV void walk_tiles(Step &step, int n, int lo, int from, int to) {
#if CUT_END
#pragma unroll 1
  for (const int end = max(lo, to); n >= end; n--) step(Is<1>{}, n);
#endif
#if CUT_BEGIN
#pragma unroll 1
  for (const int end = max(lo, from); n >= end; n--) step(Is<0>{}, n);
#pragma unroll 1
  for (; n >= lo; n--) step(Is<1>{}, n);
#else
#pragma unroll 1
  for (; n >= lo; n--) step(Is<0>{}, n);
#endif
}
