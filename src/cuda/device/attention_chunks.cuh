// attention_chunks.cuh: the chunks of CHUNK columns that attention of few rows is taken in, by position.

#define CHUNKS ((COLUMNS + CHUNK - 1) / CHUNK)
// Those of which a batch's rows see any column: so many from the first on, perhaps none.
DEV void chunks_seen(const Params &P, int batch, int &first, int &count) {
  int from = 0, to = COLUMNS;
  columns_seen(P, batch, 0, BATCH_ROWS - 1, from, to);
  from = max(from, 0);
  to = min(to, COLUMNS);
  first = to > from ? from / CHUNK : 0;
  count = to > from ? (to + CHUNK - 1) / CHUNK - first : 0;
}
