// tiles.cuh: staged tiles that TMA cannot move, because their rows in memory are not a multiple of 16 bytes.
// The lanes of a warp move them, a word each. It is a mover's warp or, if the computing warps would wait for
// it, each of these moves its own 16 rows.
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

// Rows whose numbers differ by a multiple of 8 lie alike: at the same place in a word of memory, and turned the same way in the
// panel. So what is worked out for one of them goes for LIKE of them, and each costs little but a load and a store at constant
// offsets: instructions of these warps are not free for those that compute. COUNT rows are read at once: shared memory is slow to
// answer beside tensor cores.
template <int WIDTH, int SIZE, int COUNT, int ROWS, bool HALVES> DEV void panel_rows_store(u32 panel, const PanelRows<WIDTH, SIZE> &at, int lane, int begin) {
  const int WORDS = WIDTH / 4, TURN = 32 / WORDS, LIKE = COUNT < ROWS / 8 ? COUNT : ROWS / 8, KINDS = COUNT / LIKE;
  static_assert(KINDS * TURN <= 8, "more rows at once than there are");
  const int own = lane % WORDS, mine = lane / WORDS;
#pragma unroll 1
  for (int r0 = begin; r0 < begin + 8; r0 += KINDS * TURN)
#pragma unroll 1
    for (int r1 = r0; r1 < r0 + ROWS; r1 += 8 * LIKE) {
      u32 w[KINDS][LIKE];
#pragma unroll
      for (int k = 0; k < KINDS; k++) {
        const u32 from = panel + swizzled<WIDTH>(r1 + k * TURN + mine, 4 * own);
#pragma unroll
        for (int u = 0; u < LIKE; u++) w[k][u] = lds32(from + u * 8 * WIDTH);
      }
#pragma unroll
      for (int k = 0; k < KINDS; k++) {
        const int r = r1 + k * TURN + mine;
        const u8 *row = at(r) + 4 * own;
        const int half = HALVES && is_between(row) ? 2 : 0, rows = 4 * own + half + 4 <= at.bytes ? at.rows - r : 0;
#pragma unroll
        for (int u = 0; u < LIKE; u++) {
          const u32 x = HALVES ? __byte_perm(w[k][u], __shfl_down_sync(~0u, w[k][u], 1), half ? 0x5432 : 0x3210) : w[k][u];
          write4_if(8 * u < rows, (u8 *)row + half + u * 8 * at.apart, x);
        }
      }
    }
}

// An element that has a word of memory to itself, at either end of a row, is stored in a turn of its own, a row a lane. ROWS of
// them from `begin` on.
template <int WIDTH, int SIZE, int COUNT, int ROWS> DEV void panel_store(u32 panel, void *p, int y, int x, int height, int width, i64 stride, int lane, int begin) {
  const PanelRows<WIDTH, SIZE> at(p, y, x, height, width, stride);
  if (SIZE == 4 || !(((u64)at.first | at.apart | at.bytes) & 2)) {   // whole words
    panel_rows_store<WIDTH, SIZE, COUNT, ROWS, false>(panel, at, lane, begin);
    return;
  }
  panel_rows_store<WIDTH, SIZE, COUNT, ROWS, true>(panel, at, lane, begin);
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
