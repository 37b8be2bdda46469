// tiles.cuh: staged tiles that the copy engine cannot move, because their rows in memory are no multiple of 16 bytes:
// the lanes of a warp do, a word each: of one that moves tiles, or, where the warps that compute would wait for that, of each of
// those, its own 16 rows.
//
// A panel has 64 rows of WIDTH bytes. Where a row of 16-bit elements starts in the middle of a word of memory, the words
// of memory and those of the panel are half a word apart, and lanes pass halves on.

// Row y + r of a tensor, from column x on; `bytes` of it are there, counted to the end of the panel.
template <int WIDTH, int SIZE> struct PanelRows {
  const u8 *first;
  i64 apart;
  int rows, bytes;
  DEV PanelRows(const void *p, int y, int x, int height, int width, i64 stride) {
    first = (const u8 *)p + ((i64)y * stride + x) * SIZE;
    apart = stride * SIZE;
    rows = min(height - y, 64);
    bytes = min(width - x, WIDTH / SIZE) * SIZE;
  }
  DEV const u8 *operator()(int r) const { return first + r * apart; }
};
DEV bool is_between(const u8 *p) { return (u64)p & 2; }

// COUNT rows are read at once: shared memory is slow to answer beside tensor cores. An element that has a word of memory
// to itself, at either end of a row, is stored in a turn of its own, a row a lane. ROWS of them from `begin` on.
template <int WIDTH, int SIZE, int COUNT, int ROWS> DEV void panel_store(u32 panel, void *p, int y, int x, int height, int width, i64 stride, int lane, int begin) {
  const PanelRows<WIDTH, SIZE> at(p, y, x, height, width, stride);
  const int WORDS = WIDTH / 4, TURN = 32 / WORDS, own = lane % WORDS, mine = lane / WORDS;
#pragma unroll 1
  for (int r0 = begin + mine; r0 < begin + ROWS; r0 += COUNT * TURN) {
    u32 w[COUNT];
#pragma unroll
    for (int u = 0; u < COUNT; u++) w[u] = lds32(panel + swizzled<WIDTH>(r0 + u * TURN, 4 * own));
#pragma unroll
    for (int u = 0; u < COUNT; u++) {
      const int r = r0 + u * TURN;
      u8 *row = (u8 *)at(r) + 4 * own;
      const u32 next = SIZE == 2 ? __shfl_down_sync(~0u, w[u], 1) : 0;
      const bool between = SIZE == 2 && is_between(row);
      const int half = between ? 2 : 0;
      write4_if(r < at.rows && 4 * own + half + 4 <= at.bytes, row + half, between ? __byte_perm(w[u], next, 0x5432) : w[u]);
    }
  }
  if (SIZE == 4 || !(((u64)at.first | at.apart | at.bytes) & 2)) return;   // whole words
#pragma unroll 1
  for (int r = begin + lane; r < begin + ROWS; r += 32) {
    u8 *row = (u8 *)at(r);
    const bool between = is_between(row), odd = at.bytes & 2, there = r < at.rows && at.bytes > 0;
    const int last = max(at.bytes, 2) - 2;
    const u32 first = lds16(panel + swizzled<WIDTH>(r, 0)), end = lds16(panel + swizzled<WIDTH>(r, last));
    write2_if(there && between, row, first);
    write2_if(there && between != odd, row + last, end);
  }
}

template <int WIDTH, int SIZE> DEV void panel_prefetch(const void *p, int y, int x, int height, int width, i64 stride, int lane) {
  const PanelRows<WIDTH, SIZE> at(p, y, x, height, width, stride);
  for (int r = lane; r < at.rows && at.bytes > 0; r += 32) {
    prefetch(at(r));
    prefetch(at(r) + at.bytes - SIZE);
  }
}

// COUNT rows are on their way at once. Rows and columns that are not there become anything.
template <int WIDTH, int SIZE, int COUNT> DEV void panel_load(u32 panel, const void *p, int y, int x, int height, int width, i64 stride, int lane) {
  const PanelRows<WIDTH, SIZE> at(p, y, x, height, width, stride);
  const int WORDS = WIDTH / 4, TURN = 32 / WORDS, own = lane % WORDS, mine = lane / WORDS;
  if (at.rows <= 0) return;
  panel_prefetch<WIDTH, SIZE>(p, y, x, height, width, stride, lane);
#pragma unroll 1
  for (int r0 = 0; r0 < 64; r0 += COUNT * TURN) {
    u32 w[COUNT], end = 0;   // the last half of row r0 + lane, where it stands in a word of its own
    const u8 *ending = at(min(r0 + lane % (COUNT * TURN), at.rows - 1));
    if (SIZE == 2 && is_between(ending) && WIDTH <= at.bytes) stream2(&end, ending + WIDTH - 2);
#pragma unroll
    for (int u = 0; u < COUNT; u++) {
      const u8 *row = at(min(r0 + u * TURN + mine, at.rows - 1));
      const int b = 4 * own - (SIZE == 2 && is_between(row) ? 2 : 0);
      w[u] = 0;
      if (b + 4 <= at.bytes) stream4(&w[u], row + b);
      else if (SIZE == 2 && b + 2 <= at.bytes) stream2(&w[u], row + b);
    }
#pragma unroll
    for (int u = 0; u < COUNT; u++) {
      const int r = r0 + u * TURN + mine;
      const u32 down = __shfl_down_sync(~0u, w[u], 1), last = __shfl_sync(~0u, end, u * TURN + mine);
      const u32 next = own == WORDS - 1 ? last : down;
      const bool between = SIZE == 2 && is_between(at(min(r, at.rows - 1)));
      sts32(panel + swizzled<WIDTH>(r, 4 * own), between ? __byte_perm(w[u], next, 0x5432) : w[u]);
    }
  }
}
