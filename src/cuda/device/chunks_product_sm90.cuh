// chunks_product_sm90.cuh: the products of chunks_product.cuh by wgmma. Of two warpgroups each has half of the columns.
template <class S> struct ChunksProduct : ProductTiles<S, WideTiles<S::ROWS, S::COLS, S::WARPS>> {
  typedef WideTiles<S::ROWS, S::COLS, S::WARPS> T;
  typedef ProductTiles<S, T> C;
  static constexpr int ROWS = S::ROWS, COLUMNS = S::COLS, OWN = 64 / C::HALVES, PANELS = COLUMNS / 64 / C::HALVES;
  // x_j u_i and z_j w_i, for all j and a warpgroup's i.
  struct Products {
    float p[OWN / 2], q[OWN / 2];
  };

  DEV static void ask_products(Products &of, u32 shared) {
    const int mine = threadIdx.x / 128 * (OWN * 128);
    hold(of.p);
    hold(of.q);
    wg_fence();
    T::template times_rows<ROWS>(of.p, shared + C::X, shared + C::U + mine);
    T::template times_rows<COLUMNS>(of.q, shared + C::Z, shared + C::W + mine);
    wg_commit();
  }
  template <class By> DEV static void add(typename T::State &state, Products &of, typename C::Memory &m, u32 shared, bool more, const By &by) {
    const int warp = threadIdx.x / 32, slab = warp % 4, half = warp / 4;
    wg_wait<0>();
    hold(of.p);
    hold(of.q);
    if (more) T::ask_chunk(state, shared + C::U, shared + C::W, m.d.whole(0, 4), by);
#pragma unroll
    for (int b = 0; b < OWN / 16; b++)
      if (half * (OWN / 16) + b >= slab) C::put_products(m, of.p + 8 * b, of.q + 8 * b, slab, half * (OWN / 16) + b);
    float sum_ends[2] = {0.f, 0.f}, sum_starts[2] = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < PANELS; i++) {
      const int panel = half * PANELS + i;
      float ends[32], starts[32];
      hold(ends);
      hold(starts);
      wg_fence();
      T::times_panel(ends, shared + C::X, shared + C::E + panel * (ROWS * 128));
      T::times_panel(starts, shared + C::U, shared + C::S0 + panel * (ROWS * 128));
      wg_commit();
      T::wait_chunk(state);
      hold(ends);
      hold(starts);
      C::add_columns(sum_ends, ends, shared + C::Z, slab, 8 * panel);
      C::add_columns(sum_starts, starts, shared + C::W, slab, 8 * panel);
    }
    C::put_sums(m.s.ends[half], m.s.end[half][slab], sum_ends, m.s.of_x, m.d.tail, slab);
    C::put_sums(m.s.starts[half], m.s.start[half][slab], sum_starts, m.s.of_u, m.d.head, slab);
  }
};
