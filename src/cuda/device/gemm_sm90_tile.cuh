// gemm_sm90_tile.cuh: the tile of gemm_sm90.cuh: the ring and the staging in shared memory, and the epilogue by subtiles.

#define LINE 128                     // bytes of the depth in a row of a stage, as far as TMA's swizzle goes
#define BK (LINE / (SCALED ? 1 : 2))   // elements
#define STAGE_A (TILE_M * LINE)
#define STAGE_B (TILE_N * LINE)
#define STAGE (STAGE_A + STAGE_B)
#define NARROW_B (NARROW * LINE)
#define KT ((K_SIZE + BK - 1) / BK)
#define TILE_STAGES(narrow) (NARROW && (narrow) ? (KT + NARROW_DEEP - 1) / NARROW_DEEP : KT / PANELS)   // that a tile takes
#if ROW_GROUPS   // is there a tile before whose epilogue is to run
#define HAD(j) (e.row.row >= 0)
#else
#define HAD(j) ((j) != 0)
#endif
#if DEPTH_GROUPS   // the tile with row m: where its depth begins, and how deep it is
#define DEPTH_FROM(m) group_begin(P, batch_of(P, m))
#define DEPTH_SIZE(m) group_size(P, batch_of(P, m))
// A box of `most` of its depth ends with the group, and the rest comes as zeros (epi_map_clip): so many of it are there.
#define THERE(deep, most) max(0, min(most, until - (deep)))
#define DEPTH_AT(which, m, deep, most) CLIP - THERE(deep, most), min((deep) + (most), until), CLIP
#define IS_WHOLE(deep, most) (until - (deep) >= (most))   // then the box is one of two axes, which TMA finds sooner: its map is WHOLE_MAPS further on
#else
#define DEPTH_FROM(m) 0
#define DEPTH_SIZE(m) K_SIZE
#define DEPTH_AT(which, m, deep, most) deep BATCH_AT(which, m)
#endif
#define WARPS (FOLDS || LANES)   // does a mover need all its lanes, not only one that orders TMA's copies
#define MOVER_REGISTERS (GATHERED ? (DEPTH_GROUPS ? 56 : 40) : LANES && (!HEAVY || TILE_N < (KEEP_F32 ? 192 : 256)) ? 72 : (NARROW && !HEAVY) || (LANES && TILE_N < 256) ? 56 : 40)
#if !JOINED
#define LOADED_BYTES(P, m) (CLAMPED ? LOAD_BYTES / 64 * rows_left(P, m, 64) : LOAD_BYTES)
#define MAPS(row) P.map
#define PRODUCTS_OF(row) PRODUCTS
#define LAST_OF(row) A_LAST
#endif
#define COLS_OF(row) (TILE_N / PRODUCTS_OF(row))
#define SUBTILES_OF(row) (COLS_OF(row) / SUBTILE)
#if NARROW
#define NARROW_COL (N_SIZE / TILE_N * TILE_N)
#else
#define NARROW_COL -1
#endif
// Is what lanes store of subtile c, of so many, stored at once by the warps that compute? It is at a tile's end, but for the last
// subtiles: they stay in the staging while the next tile begins.
#define AT_ONCE(c, subtiles) (!DEFERRED && (c) < (subtiles) - STAGING_SLOTS)
// Are a tile's first subtiles loaded while it is multiplied, as many as there are slots? At its end all would wait for each.
#define LOADS_AHEAD (LOADS && SCALED)
// Does the last tile's epilogue have the ring as its staging?
#define LAST_IN_RING (DEFERRED && !GATHERED && 2 * SUBTILES * SUBTILE_BYTES <= RING_BYTES)

// Shared memory, from a multiple of 1024: the ring, the staging and the mbarriers. Who owns what, and which mbarrier says so:
//
//   A stage of the ring belongs to TMA from `empty` to `full`, then to the warps that compute until `empty`.
//     full    1 arrival (and, GATHERED, one of each lane that gathers A's rows; SCALED, one of the warp that brings scales), of the thread that feeds the ring, with the stage's bytes: A's rows from this block, B's from all blocks
//             of the cluster. Of A only the rows that are there come; what lies behind them is of no row. Waited for by the warps that compute; pass p over the ring has parity p & 1.
//     empty   GROUPS * CLUSTER arrivals: the warpgroups that compute of every block (SCALED: their warps), as each block writes its share of B into all of them. Waited
//             for by the thread that feeds the ring, with the other parity: the first pass over the ring does not wait.
//   A slot of the staging belongs to one warpgroup and its mover. Its subtiles are numbered over all tiles; subtile n is in slot
//   n % STAGING_SLOTS, and its phase has the parity n / STAGING_SLOTS & 1.
//     loaded  1 arrival with LOADED_BYTES: what the subtile loads is there. From here the warpgroup owns the slot.
//     done    128 arrivals, one a thread: what it stores is there, or left to be folded. From here the mover owns the slot.
//     spare   1 arrival: the mover has stored all of it. Where nothing is loaded, this makes the slot the warpgroup's again.
//   last_done, last_loaded are done and loaded for each subtile of the last tile where the ring is its staging, once.
//     tail    256 arrivals: nobody who computes reads the ring any more, so movers may load the last tile's subtiles into it.
//   The queue has four of its own (order.cuh).
#define STAGING RING_BYTES
#define SCALES (STAGING + STAGING_BYTES)   // a stage's, as its operands
#if SCALED
#define BARRIERS (SCALES + STAGES * SCALE_BYTES)
#else
#define BARRIERS SCALES
#endif

// How the ring is shared out: bytes of a panel of A and of a stage, and stages. Numbers that the text has, unless FEW.
struct Ring {
  u32 panel_a, stage, stages;
  DEV Ring(const Launch &P) {
    const int rows = ROW_GROUPS ? min(TILE_M, ((int)P.M + 7) / 8 * 8) : rows_left(P, 0, TILE_M);   // of a tile at most
    panel_a = FEW ? (A_MN ? (rows + 63) / 64 * 64 : rows) * LINE : STAGE_A;
    stage = PANELS * (panel_a + STAGE_B);
    stages = FEW ? min(STAGES, (int)(RING_BYTES / stage)) : STAGES;
  }
};

// A subtile's accumulators: fragment j, cell i (row + 8*(i & 1), columns + 8*(i >> 1)), element e.
template <int C> struct Kept {
#if !KEEP_F32
  const u32 (&w)[TILE_N / 4];
  DEV float operator()(int j, int i, int e) const { const u32 x = w[(C * (SUBTILE / 16) + j) * 4 + i]; return e ? high<HALF>(x) : low<HALF>(x); }
  DEV u32 word(int j, int i) const { return w[(C * (SUBTILE / 16) + j) * 4 + i]; }
#else
  float (&d)[TILE_N / 2];
  // Leaves what is made of a cell's results in the first one's place.
  DEV void leave(int j, int i, float x0, float x1) const { const int at = (C * (SUBTILE / 16) + j) * 8 + (i >> 1) * 4 + (i & 1) * 2; d[at] = x0; d[at + 1] = x1; }
  DEV float operator()(int j, int i, int e) const { return d[(C * (SUBTILE / 16) + j) * 8 + (i >> 1) * 4 + (i & 1) * 2 + e]; }
#endif
};

// f.subtile<C>() for every subtile, in order.
template <int C> struct EachSubtile {
  template <class F> static DEV void run(F &f) { EachSubtile<C - 1>::run(f); f.template subtile<C - 1>(); }
};
template <> struct EachSubtile<0> { template <class F> static DEV void run(F &) {} };

#if !JOINED
// What is kept of accumulators 2i and 2i + 1: the second product's come after the first one's.
DEV u32 keep_of(const Rows &R, const int i, const float a0, const float a1) {
#if PRODUCTS > 1
  if (i >= TILE_N / 8) return keep_pair(R, i, a0, a1);
#endif
  return keep(R, i, a0, a1);
}
DEV void keep_tile(const Rows &R, RowAt, u32 (&kept)[TILE_N / 4], const float (&d)[TILE_N / 2], bool some = true) {
#pragma unroll
  for (int i = 0; i < TILE_N / 4; i++) kept[i] = keep_of(R, i, some ? d[2 * i] : 0.f, some ? d[2 * i + 1] : 0.f);
}
#endif

#if SCALED
#define WAVE 128                            // columns that are summed up at a time: they have one scale
#define WAVES (TILE_N / WAVE)
#define SCALE_BYTES (4 * (TILE_M + 4))      // of a stage: its rows' scales, then one for each wave
#if TERMS > 1   // of products that are added up it is known which rows and columns; else where their scales lie
#define SCALE_ROW(which, term, at) which##_scale_row(P, term, at)
#else
#define SCALE_ROW(which, term, at) (at)
#endif
#define NO_SCALE 0xffffffffu
// What a warp brings for each stage: a lane has every 32nd row, the first lanes a wave's columns each.
struct Scales {
  const Launch &P;
  int lane, row[TILE_M / 32], col;
  float a[TILE_M / 32], b;
  DEV bool second() const { return PRODUCTS > 1 && lane & 1; }   // product
  DEV void load(int k) {
    const int term = TERM_OF(k), deep = (k - TERM_BEGIN(term)) * BK;
#pragma unroll
    for (int i = 0; i < TILE_M / 32; i++) a[i] = A_scale(P, term, SCALE_ROW(A, term, row[i]) + A_scale_depth(P, term, deep));
#if PRODUCTS > 1
    if (second()) b = C_scale(P, term, col + C_scale_depth(P, term, deep));
    else
#endif
      b = B_scale(P, term, SCALE_ROW(B, term, col) + B_scale_depth(P, term, deep));
  }
  DEV void begin(int m, int n) {   // a tile, and its first stage
#pragma unroll
    for (int i = 0; i < TILE_M / 32; i++) row[i] = row_near(P, m + lane + 32 * i);
    col = PRODUCTS > 1 ? n : min(n + lane % WAVES * WAVE, N_SIZE - 1);
#if TERMS == 1
#pragma unroll
    for (int i = 0; i < TILE_M / 32; i++) row[i] = A_scale_row(P, 0, row[i]);
#if PRODUCTS > 1
    col = second() ? C_scale_row(P, 0, col) : B_scale_row(P, 0, col);
#else
    col = B_scale_row(P, 0, col);
#endif
#endif
    load(0);
  }
  DEV static u32 word(float x) { return x != x ? 0x7fffffffu : __float_as_uint(x); }   // none is NO_SCALE
  DEV void put(u32 to) const {
#pragma unroll
    for (int i = 0; i < TILE_M / 32; i++) sts32(to + 4 * (lane + 32 * i), word(a[i]));
    if (lane < WAVES) sts32(to + 4 * (TILE_M + lane), word(b));
  }
};
// Accumulators of the wave's columns: cells of the first row and of the second one in turn.
template <int W> DEV void promote(float (&d)[TILE_N / 2], const float (&p)[WAVE / 2], const float c0, const float c1) {
#pragma unroll
  for (int i = 0; i < WAVE / 2; i++) d[W * (WAVE / 2) + i] = __fmaf_rn(i & 2 ? c1 : c0, p[i], d[W * (WAVE / 2) + i]);
}
#endif

// The first of a thread's two rows in its warpgroup's 64.
DEV int row_of(int t) { return (t >> 5) * 16 + ((t & 31) >> 2); }

// Staging of subtile number n (counted over all tiles), or of subtile c of the last tile.
#define STAGING_AT(v, n) (base + STAGING + ((v) * STAGING_SLOTS + (n) % STAGING_SLOTS) * SUBTILE_BYTES)
#define LAST_AT(v, c) (base + ((v) * SUBTILES + (c)) * SUBTILE_BYTES)

// The tile whose epilogue runs, as one warpgroup sees it, and one subtile of it.
struct Epilogue {
  const Launch &P;
  u32 base, done, loaded, spare, last_done, last_loaded, n;
  int wg, thread;
  RowAt row;
  int col;
  bool last;
  Rows R;
  Sums S;
#if !KEEP_F32
  u32 kept[TILE_N / 4];
#elif DEFERRED
  float kept[TILE_N / 2];
#endif
#if GATHERED   // there is no mover: the warpgroup's first thread orders what TMA moves
  // Loads ahead of subtile c, into slots that nothing is stored from any more: at a tile's start as many as there are slots, then one more.
  DEV void load_ahead(int c) const {
    if (!LOADS || thread) return;
    bulk_wait_read<0>();
    for (int i = c ? STAGING_SLOTS - 1 : 0; i < STAGING_SLOTS && c + i < SUBTILES; i++) {
      const u32 bar = loaded + 8 * (wg * STAGING_SLOTS + (n + i) % STAGING_SLOTS);
      mbar_expect(bar, LOAD_BYTES);
      subtile_load(P, STAGING_AT(wg, n + i), bar, row, col + (c + i) * SUBTILE, 0);
    }
  }
  DEV void store(u32 staging, int x) const {
    bar_sync(2 + wg, 128);
    if (thread) return;
    subtile_store(P, staging, row, x, 0, false);
    bulk_commit();
  }
  DEV void wait_for_slot() const {
    if (!thread) bulk_wait_read<STAGING_SLOTS - 1>();
    bar_sync(2 + wg, 128);
  }
#else
  DEV void load_ahead(int) const {}
#endif
  DEV void store_own(u32 staging, int n, int t) const {
    __syncwarp();
    subtile_store_own(P, staging, row, n, t & 31, t >> 5);
  }
  template <int C, class A> DEV void subtile(const A &acc) {
    if (NARROW && C >= NARROW_SUBTILES && col == NARROW_COL) return;
    if (JOINED && C >= SUBTILES_OF(row)) return;
    const bool ring = LAST_IN_RING && last;
    const u32 slot = wg * STAGING_SLOTS + n % STAGING_SLOTS, par = n / STAGING_SLOTS & 1;
    u32 staging = ring ? LAST_AT(wg, C) : STAGING_AT(wg, n);
    if (LOADS) mbar_wait(ring ? last_loaded + 8 * (wg * SUBTILES + C) : loaded + 8 * slot, ring ? 0 : par);
#if GATHERED
    else if (SUBTILE_BYTES) wait_for_slot();
#else
    else if (SUBTILE_BYTES && !ring) mbar_wait(spare + 8 * slot, par ^ 1);
#endif
    // Opaque copies: what is derived from them is worked out here, not held in registers over the main loop.
    int t = thread;
    asm volatile("" : "+r"(staging), "+r"(t));
    epilogue_subtile<C>(acc, R, S, P, staging, row + row_of(t), col + C * SUBTILE, t);
    if (OWN && AT_ONCE(C, NARROW && col == NARROW_COL ? NARROW_SUBTILES : SUBTILES_OF(row))) store_own(staging, col + C * SUBTILE, t);
    if (SUBTILE_BYTES) {
      fence_async();
#if GATHERED
      store(staging, col + C * SUBTILE);
#else
      mbar_arrive(ring ? last_done + 8 * (wg * SUBTILES + C) : done + 8 * slot);
#endif
    }
    n++;
  }
};

#if DEFERRED
template <class K> struct Spread {   // a subtile of the tile before, after its share of this tile's main loop
  Epilogue &e;
  K &multiply;
  int k, kn;
  bool emit;
  template <int C> DEV void subtile() {
    const Launch &P = e.P;
    (void)P;
    const int share = (NARROW || DEPTH_GROUPS ? kn : KT) / (SUBTILES + 1), stop = emit && kn ? (C + 1) * share - e.wg * (share >> 1) : 0;   // the warpgroups at different times
#if GATHERED && LOADS
    if (C && k < stop) multiply(k++);
    if (C && emit) e.load_ahead(C);
#endif
#pragma unroll 1
    for (; k < stop; k++) multiply(k);
    if (emit) e.template subtile<C>(Kept<C>{e.kept});
  }
};
#else
struct AtEnd {
  Epilogue &e;
  float (&d)[TILE_N / 2];
  template <int C> DEV void subtile() {
    e.load_ahead(C);
#if KEEP_F32
    e.template subtile<C>(Kept<C>{d});
#else
    e.template subtile<C>(Kept<C>{e.kept});
#endif
  }
};
DEV void at_end(Epilogue &e, float (&d)[TILE_N / 2]) {   // all subtiles of 64 rows
#if !KEEP_F32
  keep_tile(e.R, e.row, e.kept, d);
#endif
  AtEnd end{e, d};
  EachSubtile<SUBTILES>::run(end);
}
#endif

