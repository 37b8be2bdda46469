// attention_stretches.cuh: computes, before attention's forward runs, which columns the equalities of a mask
// (documents) leave for its rows.
//
// A row's origin is the first column, from stream_origin() on, with the same values as the row: the first of
// its document. Tiles and chunks of columns are counted from there. So a document gets bitwise the same
// result as alone, wherever it is. In a tile of TILE_M rows, the rows with one origin are a stretch.
// Attention processes the columns of each stretch in turn, and hides them from all other rows.
//
// A block is 8 warps, each with a tile of rows of one batch. Consecutive rows with the same values are
// searched together, by the first of them (the head). Ranges give the tiles of columns that may have these
// values; then columns are compared one by one. Batches are those of the axes that the values have; each has
// PAD rows, BLOCKS blocks.
//
// What is left: P.ptr[STRETCHES_PTR], a list for every tile of rows: origin, behind the last tile of columns that may be seen (with
// LAST_STRETCH in the last of them), first and last row; an origin of -1 where there is none. P.ptr[RUNS_PTR], of every 64 rows: their origin, if they have one, else -1, and behind the
// columns from there on that have their values without a gap. P.ptr[ORIGINS_PTR], every row's origin; -1: it sees nothing.
// The emitted part defines stream_origin(P, batch), too.

struct Head { int row, origin, run, end; };   // -1: none was found yet

// Goes on with a head's columns: of `count` tiles from number `first` on.
DEV void search(const Params &P, Head &head, const Range (&tiles)[MATCHES][TILES_AT_ONCE], int batch, int start, int first, int count, int lane) {
  float own[MATCHES];
  each_match<0>([&](auto m) { own[decltype(m)::value] = row_value<decltype(m)::value>(P, batch, head.row); });
  // The first column of a tile, from `col` on, that has the values, or that has not; or -1.
  auto find = [&](int tile, int col, bool wanted) {
    const int stop = min((tile + 1) * STREAM, COLUMNS);
#pragma unroll 1
    for (; col < stop; col += 32) {
      bool same = true;
      each_match<0>([&](auto m) { same &= column_value<decltype(m)::value>(P, batch, min(col + lane, COLUMNS - 1)) == own[decltype(m)::value]; });
      const u32 found = __ballot_sync(~0u, col + lane < stop && same == wanted);
      if (found) return col + __ffs(found) - 1;
    }
    return -1;
  };
#pragma unroll 1
  for (int i = 0; i < count; i += 32) {
    bool meet = i + lane < count, whole = true;
    for (int m = 0; m < MATCHES && meet; m++) {
      const Range c = tiles[m][i + lane];
      meet = c.least <= own[m] && own[m] <= c.most;
      whole &= meet && c.least == c.most;
    }
    u32 meets = __ballot_sync(~0u, meet), broken = __ballot_sync(~0u, i + lane < count && !(meet && whole));
    if (meets) head.end = (first + i + 32 - __clz(meets)) * STREAM;
    while (head.origin < 0 && meets) {
      const int b = __ffs(meets) - 1, tile = first + i + b;
      head.origin = find(tile, max(tile * STREAM, start), true);
      if (head.origin >= 0) {
        head.run = find(tile, head.origin, false);
        broken &= ~1u << b;   // those behind it
      }
      meets &= meets - 1;
    }
    if (head.origin >= 0 && head.run < 0 && broken) {
      const int tile = first + i + __ffs(broken) - 1;
      head.run = find(tile, tile * STREAM, false);
      if (head.run < 0) head.run = min((tile + 1) * STREAM, COLUMNS);
    }
  }
}

extern "C" __global__ void __launch_bounds__(256, 1) attention_matches(const __grid_constant__ Params P) {
  __shared__ Range tiles[MATCHES][TILES_AT_ONCE];
  __shared__ Head all[8][TILE_M];
  const int batch = blockIdx.x / BLOCKS, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int tile = blockIdx.x % BLOCKS * 8 + warp, base = tile * TILE_M, last = min(base + TILE_M, BATCH_ROWS) - 1;
  Head *const heads = all[warp];
  dependency_start();
  dependency_wait();
  const int start = stream_origin(P, batch);
  u32 begins[TILE_M / 32];   // a bit for each row that is a head
  int count = 0;
#pragma unroll
  for (int g = 0; g < TILE_M / 32; g++) {
    const int row = base + 32 * g + lane;
    bool begin = row <= last && row == base;
    if (row <= last && row > base)
      each_match<0>([&](auto m) { begin |= row_value<decltype(m)::value>(P, batch, row) != row_value<decltype(m)::value>(P, batch, row - 1); });
    begins[g] = __ballot_sync(~0u, begin);
    if (begin) heads[count + __popc(begins[g] & (1u << lane) - 1)] = Head{row, -1, -1, 0};
    count += __popc(begins[g]);
  }
#pragma unroll 1
  for (int first = 0; first < TILES; first += TILES_AT_ONCE) {
    find_ranges(P, tiles, batch, first, min(TILES - first, TILES_AT_ONCE));
#pragma unroll 1
    for (int h = 0; h < count; h++) {
      Head head = heads[h];
      __syncwarp();
      search(P, head, tiles, batch, start, first, min(TILES - first, TILES_AT_ONCE), lane);
      if (lane == 0) heads[h] = head;
      __syncwarp();
    }
  }
  if (tile >= RECORDS) return;
  uint4 *const list = (uint4 *)P.ptr[STRETCHES_PTR] + (i64)batch * PAD + base;
  int stretches = 0;
#pragma unroll 1
  for (int h = 0; h < count; h++) {
    const Head head = heads[h];
    const int to = h + 1 < count ? heads[h + 1].row - 1 : last;
    int at = head.origin < 0 ? 0 : -1;
    for (int i = 0; i < stretches && at < 0; i += 32) {
      const u32 same = __ballot_sync(~0u, i + lane < stretches && (int)list[min(i + lane, stretches - 1)].x == head.origin);
      if (same) at = i + __ffs(same) - 1;
    }
    if (lane == 0 && head.origin >= 0) {
      if (at < 0) list[stretches] = make_uint4(head.origin, head.end, head.row, to);
      else list[at].w = to;
    }
    stretches += at < 0;
    __syncwarp();
  }
  if (lane == 0 && stretches) list[stretches - 1].y |= LAST_STRETCH;
  if (lane == 0 && !stretches) list[0] = make_uint4(~0u, 0, 0, 0);
  int before = 0;
#pragma unroll
  for (int g = 0; g < TILE_M / 32; g += 2) {
    int origin[2], run = 0, same;
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int row = base + 32 * (g + k) + lane, at = before + __popc(begins[g + k] & ~0u >> 31 - lane) - 1;
      origin[k] = row <= last ? heads[at].origin : -1;
      if (k == 0) {
        run = row <= last ? heads[at].run : 0;
        same = __shfl_sync(~0u, origin[0], 0);
      }
      ((int *)P.ptr[ORIGINS_PTR])[(i64)batch * PAD + row] = origin[k];
      if (__any_sync(~0u, row <= last && origin[k] != same)) same = -1;
      before += __popc(begins[g + k]);
    }
    if (lane == 0) ((uint2 *)P.ptr[RUNS_PTR])[((i64)batch * PAD + base) / 64 + g / 2] = make_uint2(same, run < 0 ? COLUMNS : run);
  }
}
