// chunks_product_mma.cuh: the products of chunks_product.cuh by mma.sync.
template <class S> struct ChunksProduct : ProductTiles<S, Tiles<S::ROWS, S::COLS, S::WARPS>> {
  typedef Tiles<S::ROWS, S::COLS, S::WARPS> T;
  typedef ProductTiles<S, T> C;
  struct Products {};
  static constexpr int ROWS = S::ROWS, COLUMNS = S::COLS, HALVES = C::HALVES, PART = T::PART, ROW_BYTES = T::ROW_BYTES, COLUMN_BYTES = T::COLUMN_BYTES;

  DEV static void ask_products(Products &, u32) {}

  // Rows times a state times columns, of a warp's 16 steps.
  DEV static void sum_state(float (&sum)[2], u32 rows, u32 columns, u32 state, int slab, int half) {
#pragma unroll 1
    for (int first = half * (T::WIDE / HALVES); first < (half + 1) * (T::WIDE / HALVES); first += PART) {
      float y[4 * PART] = {};
      T::times_state(y, rows, 16 * slab, state, first);
      C::add_columns(sum, y, columns, slab, first);
    }
  }
  // 16 rows of one tile times 16 of another, turned.
  template <int WIDTH, int DEPTH> DEV static void times_rows(float (&d)[8], u32 a, int j, u32 b, int i) {
    const int lane = threadIdx.x & 31;
#pragma unroll 2
    for (int k = 0; k < DEPTH; k += 16) {
      u32 v[4], w[4];
      ldm<false>(T::template down_first<WIDTH>(a, 16 * j, k, lane), v);
      ldm<false>(T::template along_first<WIDTH>(b, 16 * i, k, lane), w);
      mma(&d[0], v, w[0], w[1]);
      mma(&d[4], v, w[2], w[3]);
    }
  }
  template <class By> DEV static void add(typename T::State &state, Products &, typename C::Memory &m, u32 shared, bool more, const By &by) {
    const int warp = threadIdx.x / 32, slab = warp % 4, half = warp / 4;
    float ends[2] = {0.f, 0.f}, starts[2] = {0.f, 0.f};
    sum_state(ends, shared + C::X, shared + C::Z, shared + C::E, slab, half);
    C::put_sums(m.s.ends[half], m.s.end[half][slab], ends, m.s.of_x, m.d.tail, slab);
    sum_state(starts, shared + C::U, shared + C::W, shared + C::S0, slab, half);
    C::put_sums(m.s.starts[half], m.s.start[half][slab], starts, m.s.of_u, m.d.head, slab);
#pragma unroll 1
    for (int i = slab + half; i < 4; i += HALVES) {
      float p[8] = {}, q[8] = {};
      times_rows<ROW_BYTES, ROWS>(p, shared + C::X, slab, shared + C::U, i);
      times_rows<COLUMN_BYTES, COLUMNS>(q, shared + C::Z, slab, shared + C::W, i);
      C::put_products(m, p, q, slab, i);
    }
    if (more) T::ask_chunk(state, shared + C::U, shared + C::W, m.d.whole(0, 4), by);
  }
};
