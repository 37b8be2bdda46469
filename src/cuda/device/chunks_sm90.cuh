// chunks_sm90.cuh: tiles of chunks as operands of wgmma.
//
// What the emitted part defines, all of 64 rows and 16 deep:
//   wgmma_score   64 columns, or 32; both operands deep along their rows    wgmma_value   64 columns; the first in registers, the second deep down
//   wgmma_state   64 columns; the second deep down its columns              wgmma_rows    COLUMNS, as wgmma_value
template <int ROWS, int COLUMNS, int WARPS> struct WideTiles : Tiles<ROWS, COLUMNS, WARPS, 1, true> {
  typedef Tiles<ROWS, COLUMNS, WARPS, 1, true> T;
  static constexpr int SLABS = T::SLABS, PANEL = 64 * 128;
  static_assert(ROWS % (16 * WARPS) == 0 && COLUMNS % 64 == 0, "");

  // What threads have written is there for wgmma, too.
  DEV static void publish() { fence_async(); }

  // Where 16 of the depth are, of panels along it and of one down it.
  DEV static int along(int k) { return k / 4 * (PANEL >> 4) + k % 4 * 2; }
  DEV static int down(int k) { return k * (2048 >> 4); }

  // A tile of DEPTH columns times another one, or half of one, turned.
  template <int DEPTH, int N> DEV static void times_rows(float (&d)[N], u32 rows, u32 columns) {
    const u64 a = operand_k(rows), b = operand_k(columns);
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) wgmma_score(d, a + along(k), b + along(k), k);
  }
  // A tile of ROWS columns times 64 columns of the state of 16 bits.
  DEV static void times_panel(float (&d)[32], u32 rows, u32 panel) {
    const u64 a = operand_k(rows), b = operand_mn<ROWS>(panel);
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++) wgmma_state(d, a + along(k), b + down(k), k);
  }
  // all * state + the chunk's products, as Tiles::ask_chunk; to be waited for.
  template <class By> DEV static void ask_chunk(typename T::State &state, u32 rows, u32 columns, float all, const By &by) {
    const u64 v = operand_mn<64>(columns);
    u32 a[4][SLABS][4];
#pragma unroll
    for (int j = 0; j < 4; j++) T::read_rows(a[j], rows, 16 * j, by);
    T::for_all(state, [&](float &x, int, int) { x *= all; });
    hold_all(state);
#pragma unroll
    for (int j = 0; j < 4; j++) hold_all(a[j]);
    wg_fence();
#pragma unroll
    for (int i = 0; i < SLABS; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) wgmma_rows(state[i], a[j][i][0], a[j][i][1], a[j][i][2], a[j][i][3], v + down(j), 1);
    wg_commit();
  }
  DEV static void wait_chunk(typename T::State &state) {
    wg_wait<0>();
    hold_all(state);
  }
};
