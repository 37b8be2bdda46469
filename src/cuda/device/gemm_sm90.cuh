// gemm_sm90.cuh: the product on Hopper: persistent blocks, TMA, wgmma, warp-specialised, with an emitted epilogue.
//
// A block is 384 threads and owns tiles of 128 x TILE_N. Warpgroups 0 and 1 compute, 64 rows of a tile each; in
// warpgroup 2, warp 0 feeds the ring of operand slots and warps 1 and 2 move the epilogue's tiles for one warpgroup
// each, and fold what its warps have left of reductions down the rows; the first block's warp 3 queues for tiles. Where
// there are COPIES, warps 1 to 3 copy operands first, but for the last block's warp 3 of the first cluster, which looks after them.
// CLUSTER blocks stand one above the other in M and share each column operand by multicast.
//
// NARROW: the last column of tiles has so few columns that it is computed only this wide, and comes after all others; its slots
// are NARROW_DEEP times as deep.
//
// DEFERRED: at a tile's end a warpgroup only keeps its result in registers (rounded to 16 bits, or as f32 with
// KEEP_F32) and starts the next tile at once; the epilogue runs in STEPS steps of STEP columns spread over the next tile's main
// loop, under asynchronous wgmma. After the last tile it runs by itself, with the idle ring as staging.
// IN_TURN: the warpgroups take the cluster's tiles in turn, each all 128 rows of one, as two blocks of 64; the epilogue runs at
// the tile's end, while the other one has the tensor cores. A warpgroup begins with a tile when the other has seen all slots of
// the one before: a barrier's parity tells only neighbouring phases apart, and would let it through rounds too early.
// Otherwise the epilogue runs at the tile's end, straight from the accumulators.
//
// The emitted part defines:
//   struct Params { TMap map[]; ...; M, group, queue, words } the operands are maps 0 and 1, and 2 a narrow tile's columns unless
//   B_MN; N_SIZE and K_SIZE are constants
//   struct Rows, rows_load(R, P, row)                     what a thread keeps of its rows `row` and `row + 8`
//   keep(R, i, a0, a1)                                    the result up to the packing point, as one word
//   struct Sums, epilogue_step<C>(acc, R, S, P, stage, row, col, thread)
//   step_load(P, stage, bar, m, n, lane), step_store(P, stage, m, n, lane, lanes), step_prefetch(P, m, n, lane)
//   OWN and, where it is 1, step_store_own(P, stage, m, n, lane, warp): what lanes store, of a computing warp's own rows
//   STAGE_BYTES of staging for a step, LOAD_BYTES of it loaded by the copy engine; STAGING_BYTES of it in all; LOADS where
//   anything is loaded, LANES where all lanes of a warp have to move something
//   FOLDS and, where it is 1, step_fold<T>(P, stage, m, n, t): what the warps have left in the staging of a step
//   wgmma(d, a, b, add), and wgmma_narrow where there are NARROW columns
//   COPIES: operands are copied by the product, see copies.cuh
//   HEAVY: the epilogue holds much at once, and the warps that compute have no registers to spare

#define TILE_M 128
#define BK 64
#define SLOT_A (TILE_M * BK * 2)
#define SLOT_B (TILE_N * BK * 2)
#define SLOT (SLOT_A + SLOT_B)
#define NARROW_B (NARROW * BK * 2)
#define NARROW_SLOT (NARROW_DEEP * (SLOT_A + NARROW_B))
#define KT ((K_SIZE + BK - 1) / BK)
#define SLOTS(narrow) (NARROW && (narrow) ? (KT + NARROW_DEEP - 1) / NARROW_DEEP : KT)   // of a tile
#define WARPS (FOLDS || LANES)
#define MOVER_REGISTERS (LANES && (!HEAVY || TILE_N < (KEEP_F32 ? 192 : 256)) ? 72 : COPIES || (NARROW && !HEAVY) || (LANES && TILE_N < 256) ? 56 : 40)
#if !COPIES
#define LATE_APART false
#endif
// Does warp 3 go on copying, alone, while the others serve the epilogue? Not where it has tiles to queue for.
#define LATE_ALONE(P) (LATE_APART && !P.queue)
// Steps from here on are left out of a narrow tile: NARROW is a multiple of what a partial covers, so they leave nothing.
#define NARROW_STEPS (NARROW / STEP)
#define NARROW_COL (N_SIZE / TILE_N * TILE_N)
// Is what lanes store of step c, of so many, stored at once by the warps that compute? It is at a tile's end, but for the last
// steps: they stay in the staging while the next tile begins.
#define AT_ONCE(c, steps) (IN_TURN || (!DEFERRED && (c) < (steps) - STAGE_SLOTS))
#define LAST_IN_RING (DEFERRED && 2 * STEPS * STAGE_BYTES <= STAGES * SLOT)

// shared memory, from a multiple of 1024
#define STAGING (STAGES * SLOT)
#define BARRIERS (STAGING + STAGING_BYTES)

// The order of tiles: groups of `group` rows of clusters, in a group down the rows first, so that a wave of blocks shares
// both operands in the L2 cache; or, where it is negative, groups of columns, and across them first. Narrow tiles are shared by
// those clusters that have one full tile less than the others, or, where there is a queue, as they come.
struct Order {
  int tm, tn, group, total;
  bool queue;
  DEV Order(const Params &P, int cid) {
    tm = ((int)P.M + TILE_M * CLUSTER - 1) / (TILE_M * CLUSTER);
    tn = NARROW ? N_SIZE / TILE_N : (N_SIZE + TILE_N - 1) / TILE_N;
    group = P.group;
    total = tm * tn;
    queue = P.queue;
    if (NARROW && queue) total += tm;
    else if (NARROW) {
      const int all = gridDim.x / CLUSTER, more = total % all, first = cid - more;
      if (first >= 0 && first < tm) total += first + (tm - 1 - first) / (all - more) * all + 1;
    }
  }
  DEV bool narrow(int n) const { return NARROW && n == tn; }
  DEV int steps(int n) const { return narrow(n) ? NARROW_STEPS : STEPS; }
  DEV void at(int t, int &m, int &n) const {
    if (NARROW && t >= tm * tn) {
      const int all = gridDim.x / CLUSTER, more = tm * tn % all;
      t -= tm * tn;
      m = queue ? t : t / all * (all - more) + t % all;
      n = tn;
      return;
    }
    const bool across = group < 0;
    const int wide = across ? -group : group, size = across ? tn : tm;
    const int per = wide * (across ? tm : tn), g = t / per, r = t - g * per, first = g * wide;
    const int h = size - first < wide ? size - first : wide, far = r / h, near = first + (r - far * h);
    m = across ? far : near;
    n = across ? near : far;
  }
};

// The tiles of a cluster: the first has the cluster's number; those after it by number, too, or, where there is a queue, as
// they come: then fast clusters take more of them, and those that share an operand stay close to each other in time. A number
// is drawn while the tile before it is worked on; whoever works on tiles looks at it and gives it back. Two have a place.
#define TAKERS (CLUSTER * (9 + (STAGE_BYTES ? 2 : 0)))   // the warps that compute, that feed the ring and that move tiles
struct Queue {
  bool counts;
  Counter counter;
  int first, stride, total;
  u32 given, taken, number;   // barriers and words for two, in 40 bytes
  DEV Queue(const Params &P, int cid, u32 room) : counts(P.queue), counter{(u64 *)P.words + TILES}, first(cid), stride(gridDim.x / CLUSTER), total(Order(P, cid).total) {
    given = room;
    taken = given + 16;
    number = taken + 16;
  }
  DEV void begin() const {
    for (int i = 0; i < 2; i++) { mbar_init(given + 8 * i, 1); mbar_init(taken + 8 * i, TAKERS); expect(i); }
  }
  DEV void expect(u32 j) const { mbar_expect(given + 8 * (j % 2), 4); }
  // Tile j + 1 of the cluster; what lies beyond the total is none.
  DEV int at(u32 j) const {
    if (counts) mbar_wait(given + 8 * (j % 2), j / 2 & 1);
    return again(j);
  }
  DEV int again(u32 j) const { return counts ? (int)lds32(number + 4 * (j % 2)) : first + (int)(j + 1) * stride; }
  DEV void give_back(u32 j) const { if (counts) mbar_arrive_at(taken + 8 * (j % 2), 0); }
  // Numbers j to stop - 1; one thread of the cluster. Two can be drawn at once, and the rest later.
  DEV void draw(u32 j, u32 stop) const {
    int w = 0;
    if (j == 0) counter.begin(total);
    for (u32 i = 0; i < j && w < total; i++) w = at(i);
    for (; w < total && j < stop; j++) {
      if (j >= 2) mbar_wait(taken + 8 * (j % 2), (j / 2 & 1) ^ 1);
      const int n = (int)counter.take();
      if (n == total - 1) counter.end();   // all tiles have taken a number, those of the start at the end of their clusters
      w = stride + n;
      for (u32 r = 0; r < CLUSTER; r++) send_word(number + 4 * (j % 2), given + 8 * (j % 2), r, w);
    }
  }
};

// A step's accumulators: group j of 16 columns, cell i (row + 8*(i & 1), columns + 8*(i >> 1)), element e.
template <int C> struct Kept {
#if !KEEP_F32
  const u32 (&w)[TILE_N / 4];
  DEV float operator()(int j, int i, int e) const { const u32 x = w[(C * (STEP / 16) + j) * 4 + i]; return e ? high<HALF>(x) : low<HALF>(x); }
  DEV u32 word(int j, int i) const { return w[(C * (STEP / 16) + j) * 4 + i]; }
#else
  const float (&d)[TILE_N / 2];
  DEV float operator()(int j, int i, int e) const { return d[(C * (STEP / 16) + j) * 8 + (i >> 1) * 4 + (i & 1) * 2 + e]; }
#endif
};

// f.step<C>() for every step, in order.
template <int C> struct EachStep {
  template <class F> static DEV void run(F &f) { EachStep<C - 1>::run(f); f.template step<C - 1>(); }
};
template <> struct EachStep<0> { template <class F> static DEV void run(F &) {} };

// The first of a thread's two rows in its warpgroup's 64.
DEV int row_of(int t) { return (t >> 5) * 16 + ((t & 31) >> 2); }

// Staging of step number n (counted over all tiles), or of step c of the last tile.
#define STAGE_AT(v, n) (base + STAGING + ((v) * STAGE_SLOTS + (n) % STAGE_SLOTS) * STAGE_BYTES)
#define LAST_AT(v, c) (base + ((v) * STEPS + (c)) * STAGE_BYTES)

// The tile whose epilogue runs, and the steps of it.
struct Emitter {
  const Params &P;
  u32 base, done, loaded, spare, last_done, last_loaded, copied, n;
  int wg, thread, row, col;
  bool last;
  Rows R;
  Sums S;
#if !KEEP_F32
  u32 kept[TILE_N / 4];
#elif DEFERRED
  float kept[TILE_N / 2];
#endif
  DEV void store_own(u32 stage, int n, int t) const {
    __syncwarp();
    step_store_own(P, stage, row, n, t & 31, t >> 5);
  }
  template <int C, class A> DEV void step(const A &acc) {
    if (NARROW && C >= NARROW_STEPS && col == NARROW_COL) return;
    const bool ring = LAST_IN_RING && last;
    const u32 slot = wg * STAGE_SLOTS + n % STAGE_SLOTS, par = n / STAGE_SLOTS & 1;
    u32 stage = ring ? LAST_AT(wg, C) : STAGE_AT(wg, n);
    if (LOADS) mbar_wait(ring ? last_loaded + 8 * (wg * STEPS + C) : loaded + 8 * slot, ring ? 0 : par);
    else if (STAGE_BYTES && !ring) {
      if (COPIES) mbar_wait(copied, 0);
      mbar_wait(spare + 8 * slot, par ^ 1);
    }
    // Opaque copies: what is derived from them is worked out here, not held in registers over the main loop.
    int t = thread;
    asm volatile("" : "+r"(stage), "+r"(t));
    epilogue_step<C>(acc, R, S, P, stage, row + row_of(t), col + C * STEP, t);
    if (OWN && AT_ONCE(C, NARROW && col == NARROW_COL ? NARROW_STEPS : STEPS)) store_own(stage, col + C * STEP, t);
    if (STAGE_BYTES) {
      fence_async();
      mbar_arrive(ring ? last_done + 8 * (wg * STEPS + C) : done + 8 * slot);
    }
    n++;
  }
};

#if DEFERRED
template <class K> struct Spread {   // a step of the tile before, after its share of this tile's main loop
  Emitter &e;
  K &k_step;
  int k, kn;
  bool emit;
  template <int C> DEV void step() {
    const int share = (NARROW ? kn : KT) / (STEPS + 1), stop = emit && kn ? (C + 1) * share - e.wg * (share >> 1) : 0;   // the warpgroups take turns
#pragma unroll 1
    for (; k < stop; k++) k_step(k);
    if (emit) e.template step<C>(Kept<C>{e.kept});
  }
};
#else
struct AtEnd {
  Emitter &e;
  const float (&d)[TILE_N / 2];
#if KEEP_F32
  template <int C> DEV void step() { e.template step<C>(Kept<C>{d}); }
#else
  template <int C> DEV void step() { e.template step<C>(Kept<C>{e.kept}); }
#endif
};
DEV void at_end(Emitter &e, const float (&d)[TILE_N / 2]) {   // all steps of 64 rows
#if !KEEP_F32
#pragma unroll
  for (int i = 0; i < TILE_N / 4; i++) e.kept[i] = keep(e.R, i, d[2 * i], d[2 * i + 1]);
#endif
  AtEnd end{e, d};
  EachStep<STEPS>::run(end);
}
#endif

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(384, 1) NAME(const __grid_constant__ Params P) {
  extern __shared__ __align__(1024) u8 memory[];
  const u32 base = smem_u32(memory);
  const u32 full = base + BARRIERS, empty = full + 8 * STAGES, done = empty + 8 * STAGES;   // per slot of the ring
  const u32 loaded = done + 16 * STAGE_SLOTS, spare = loaded + 16 * STAGE_SLOTS;            // per warpgroup and staging slot
  const u32 last_done = spare + 16 * STAGE_SLOTS, last_loaded = last_done + 16 * STEPS, tail = last_loaded + 16 * STEPS;
  const u32 turn = last_done;   // per warpgroup
  const u32 copied = tail + 48;   // the warps that copy are through with the staging
  const int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0);   // shuffled, like rank and cid below: then it is kept in a uniform register
  const int t = threadIdx.x & 127;
  u32 rank = 0, cid = blockIdx.x;
  if (CLUSTER > 1) {
    rank = __shfl_sync(~0u, cluster_rank(), 0);
    cid = __shfl_sync(~0u, cluster_id(), 0);
  }

  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) { mbar_init(full + 8 * i, 1); mbar_init(empty + 8 * i, (IN_TURN ? 1 : 2) * CLUSTER); }
    for (int i = 0; i < 2 * STAGE_SLOTS; i++) { mbar_init(done + 8 * i, 128); mbar_init(loaded + 8 * i, 1); mbar_init(spare + 8 * i, 1); }
    if (IN_TURN) { mbar_init(turn, 4); mbar_init(turn + 8, 4); }
    else for (int i = 0; i < 2 * STEPS; i++) { mbar_init(last_done + 8 * i, 128); mbar_init(last_loaded + 8 * i, 1); }
    Queue(P, cid, tail + 8).begin();
    mbar_init(tail, 256);
    if (COPIES) mbar_init(copied, LATE_ALONE(P) ? 2 : 3);
    mbar_fence();
  }
  if (CLUSTER > 1) { cluster_arrive(); cluster_wait(); }
  else __syncthreads();
  dependency_wait();

  // What a role needs is worked out by it: registers are few.
#define ADVANCE(s, ph) { if (++s == STAGES) { s = 0; ph ^= 1; } }

  if (wg == 2) {
    fewer_registers<MOVER_REGISTERS>();
#if COPIES
#define SLAB (PART_DEEP / BK)   // slots
#define LOOK (SLAB / 2)         // after so many the next slab's marks are asked for
    const Copies copies{P};
    if (t >= 32) {   // ---- copies of operands
      if (t == 96 && P.queue && rank == 0) Queue(P, cid, tail + 8).draw(0, 2);
      __syncwarp();
      if (t >= 96 && blockIdx.x == CLUSTER - 1) {
        if (t == 96 && !LATE_ALONE(P)) mbar_arrive(copied);
        copies.look_after(t & 31);
      } else {
        const int warp = (t >> 5) - 1, n = warp * BLOCKS + (int)blockIdx.x;
        const int late_warps = !LATE_ALONE(P) ? COPIERS : warp == 2 ? BLOCKS - 1 : 0;
        copies.copy(base + STAGING + (warp == 2 ? LAST_ROOM : warp * WARP_ROOM), n - (n >= 2 * BLOCKS + CLUSTER), t & 31, late_warps);
        fence_async();
        __syncwarp();
        if ((t & 31) == 0 && (t < 96 || !LATE_ALONE(P))) mbar_arrive(copied);
      }
      mbar_wait(copied, 0);
    }
    bool all = false;   // copies are there
#endif
    const Order order(P, cid);
    const Queue queue(P, cid, tail + 8);
    if (COPIES ? t < 32 : t == 0) {   // ---- the operands
      auto load_a = [&](const u32 a, const u32 bar, const int m, const int k) {
#if A_MN
        tma_load(a, &P.map[0], bar, m, k * BK);
        tma_load(a + 8192, &P.map[0], bar, m + 64, k * BK);
#else
        tma_load(a, &P.map[0], bar, k * BK, m);
#endif
      };
      // A box of the column operand, for all blocks of the cluster.
      auto load_all = [&](const u32 b, const TMap *map, const u32 bar, const int x, const int y) {
        if (CLUSTER > 1) tma_load_all(b, map, bar, x, y, (u16)((1 << CLUSTER) - 1));
        else tma_load(b, map, bar, x, y);
      };
#if B_MN
      auto load_slabs = [&](const u32 b, const u32 bar, const int n, const int k, const int width) {   // each block some of the depth
#pragma unroll
        for (int i = 0; i < width / 64; i++) load_all(b + i * 8192 + rank * (8192 / CLUSTER), &P.map[1], bar, n + i * 64, k * BK + rank * (BK / CLUSTER));
      };
      auto load_b = [&](const u32 b, const u32 bar, const int n, const int k) { load_slabs(b, bar, n, k, TILE_N); };
      auto load_narrow = [&](const u32 b, const u32 bar, const int n, const int k, const u32) { load_slabs(b, bar, n, k, NARROW); };
#else
      auto load_b = [&](const u32 b, const u32 bar, const int n, const int k) {   // each block some of the columns
        load_all(b + rank * (SLOT_B / CLUSTER), &P.map[1], bar, k * BK, n + rank * (TILE_N / CLUSTER));
      };
      auto load_narrow = [&](const u32 b, const u32 bar, const int n, const int k, const u32 i) {   // or all of them, in turn
        if (rank == i % CLUSTER) load_all(b, &P.map[2], bar, k * BK, n);
      };
#endif
      (void)load_narrow;
      u32 s = 0, ph = 1;   // the first pass over the ring does not wait
      int w = cid;
#if COPIES
      if (t == 0) copies.begin();
      __syncwarp();
#endif
#pragma unroll 1
      for (u32 j = 0; w < order.total; j++) {
        int tm, tn;
        order.at(w, tm, tn);
        const int m0 = (tm * CLUSTER + rank) * TILE_M, n0 = tn * TILE_N;
        const bool narrow = order.narrow(tn);
#if COPIES
        const int b0 = n0 + (narrow ? 0 : rank * (TILE_N / CLUSTER));
        u64 seen = 0;
#endif
#pragma unroll 1
        for (int k = 0; k < KT; k += narrow ? NARROW_DEEP : 1) {
#if COPIES
          if (!all && k % SLAB == 0) {
            all = copies.wait(seen, m0, b0, k / SLAB, t);
            if (all && t == 0) copies.end();
          }
          if (!all && k % SLAB == LOOK && k + SLAB - LOOK < KT) seen = copies.look(m0, b0, k / SLAB + 1, t);   // it comes while slots are waited for
          if (t == 0) {
#endif
          const u32 a = base + s * SLOT, f = full + 8 * s;
          mbar_wait(empty + 8 * s, ph);
          mbar_expect(f, narrow ? NARROW_SLOT : SLOT);
#if NARROW
          if (narrow)
#pragma unroll
            for (int i = 0; i < NARROW_DEEP; i++) {
              load_a(a + i * SLOT_A, f, m0, k + i);
              load_narrow(a + NARROW_DEEP * SLOT_A + i * NARROW_B, f, n0, k + i, i);
            }
          else
#endif
          {
            load_a(a, f, m0, k);
            load_b(a + SLOT_A, f, n0, k);
          }
#if COPIES
          }
          __syncwarp();
#endif
          ADVANCE(s, ph)
        }
        w = queue.at(j);
        if (COPIES) __syncwarp();
        if (t == 0) {
          if (queue.counts) queue.expect(j + 2);
          queue.give_back(j);
        }
      }
#if COPIES
      if (t == 0 && !all) copies.end();
#endif
      if (t == 0) dependency_start();
    } else if (t == 96) {   // ---- the tiles
      if (queue.counts && rank == 0) queue.draw(COPIES ? 2 : 0, ~0u);
    } else if ((WARPS ? t >= 32 && t < 96 : t == 32 || t == 64) && STAGE_BYTES) {   // ---- the epilogue's tiles, of warpgroup v
      const int v = (t >> 5) - 1, lane = WARPS ? t & 31 : 0;   // the first lane orders copies, all of them fold and move
      u32 n = 0;
      // What the lanes load is there when the copy engine's bytes are announced.
      auto load = [&](const u32 at, const u32 bar, const int m, const int n) {
        step_load(P, at, bar, m, n, lane);
        if (LANES) __syncwarp();
        if (lane == 0) mbar_expect(bar, LOAD_BYTES);
      };
      auto store = [&](const u32 at, const int m, const int n, const bool lanes) {
        step_store(P, at, m, n, lane, lanes);
        if (lane == 0) bulk_commit();
#if FOLDS
        step_fold<32>(P, at, m, n, lane);
#endif
        if (WARPS) __syncwarp();
      };
      // Step number n, from its loads to its stores.
      auto through = [&](const u32 n, const int m, const int col, const bool lanes) {
        const u32 slot = v * STAGE_SLOTS + n % STAGE_SLOTS, at = STAGE_AT(v, n);
        if (LOADS) load(at, loaded + 8 * slot, m, col);
        mbar_wait(done + 8 * slot, n / STAGE_SLOTS & 1);
        store(at, m, col, lanes);
        if (lane == 0) {
          bulk_wait_read<0>();
          mbar_arrive(spare + 8 * slot);
        }
        if (LANES) __syncwarp();
      };
#if IN_TURN
#pragma unroll 1
      for (int w = cid + v * queue.stride; w < order.total; w += 2 * queue.stride) {
        int tm, tn;
        order.at(w, tm, tn);
        const int m0 = (tm * CLUSTER + rank) * TILE_M, n0 = tn * TILE_N;
#pragma unroll 1
        for (int c = 0; LOADS && c < 2 * STEPS; c++) step_prefetch(P, m0 + c / STEPS * 64, n0 + c % STEPS * STEP, lane);
#pragma unroll 1
        for (int c = 0; c < 2 * STEPS; c++, n++) through(n, m0 + c / STEPS * 64, n0 + c % STEPS * STEP, false);
      }
#else
      int w = cid;
#pragma unroll 1
      for (u32 j = 0; w < order.total; j++) {
        int tm, tn;
        order.at(w, tm, tn);
        const int m0 = (tm * CLUSTER + rank) * TILE_M + v * 64, n0 = tn * TILE_N, steps = order.steps(tn);
        w = queue.at(j);
        if (WARPS) __syncwarp();
        if (lane == 0) queue.give_back(j);
        if (LAST_IN_RING && w >= order.total) {
          if (LOADS) {
#pragma unroll 1
            for (int c = 0; c < steps; c++) step_prefetch(P, m0, n0 + c * STEP, lane);
            mbar_wait(tail, 0);
#pragma unroll 1
            for (int c = 0; c < steps; c++) load(LAST_AT(v, c), last_loaded + 8 * (v * STEPS + c), m0, n0 + c * STEP);
          }
#pragma unroll 1
          for (int c = 0; c < steps; c++) {
            mbar_wait(last_done + 8 * (v * STEPS + c), 0);
            store(LAST_AT(v, c), m0, n0 + c * STEP, false);
          }
        } else {
#pragma unroll 1
          for (int c = 0; c < steps; c++, n++) through(n, m0, n0 + c * STEP, !AT_ONCE(c, steps));
        }
      }
#endif
      bulk_wait<0>();
    }
  } else {   // ---- the product
    more_registers<252 - MOVER_REGISTERS / 2>();
    const Order order(P, cid);
    const Queue queue(P, cid, tail + 8);
    bool narrow = false;   // this tile
    (void)narrow;
    float d[IN_TURN ? 2 : 1][TILE_N / 2];
    u32 s = 0, ph = 0, prev = 0;
    // One slot: four wgmma, then give back the slot before, whose wgmma are done. Either width has a fence and a wait of its own:
    // where they are shared the compiler puts in more of them (C7519).
    auto kstep = [&](const int k) {
      mbar_wait(full + 8 * s, ph);
      const u32 a = base + s * SLOT + (IN_TURN ? 0 : wg * 8192);
      const u64 da = A_MN ? operand_mn<BK>(a) : operand_k(a);
      auto operand_b = [](const u32 b) { return B_MN ? operand_mn<BK>(b) : operand_k(b); };
#if NARROW
      if (narrow) {
        const u64 db = operand_b(base + s * SLOT + NARROW_DEEP * SLOT_A);
        wg_fence();
#pragma unroll
        for (int i = 0; i < NARROW_DEEP; i++)
#pragma unroll
          for (int kk = 0; kk < 4; kk++)
            wgmma_narrow(d[0], da + i * (SLOT_A >> 4) + (A_MN ? 128 : 2) * kk, db + i * (NARROW_B >> 4) + (B_MN ? 128 : 2) * kk, k | i | kk);
        wg_commit();
        wg_wait<1>();
      } else
#endif
      {
        const u64 db = operand_b(base + s * SLOT + SLOT_A);
        wg_fence();
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
#pragma unroll
          for (int b = 0; b < (IN_TURN ? 2 : 1); b++)   // blocks of 64 rows lie 8192 bytes apart
            wgmma(d[b], da + 512 * b + (A_MN ? 128 : 2) * kk, db + (B_MN ? 128 : 2) * kk, k | kk);
        wg_commit();
        wg_wait<1>();
      }
      if (k && t < CLUSTER) mbar_arrive_at(empty + 8 * prev, t);
      prev = s;
      ADVANCE(s, ph)
    };

    Emitter e{P, base, done, loaded, spare, last_done, last_loaded, copied, 0, wg, t, 0, 0, false};
    int tm, tn;
#if DEFERRED
    Rows next;
#pragma unroll 1
    for (u32 j = 0;; j++) {
      const int w = j ? queue.at(j - 1) : cid;
      const bool has = w < order.total;
      if (has) {
        order.at(w, tm, tn);
        narrow = order.narrow(tn);
        rows_load(next, P, (tm * CLUSTER + rank) * TILE_M + wg * 64 + row_of(t));
      }
      if (j) rows_load(e.R, P, e.row + row_of(t));   // again, for the tile before: cheaper than registers over a tile
      if (!has && j && LAST_IN_RING) {
        if (LOADS) mbar_arrive(tail);
        bar_sync(1, 256);   // both warpgroups are done with the ring
      }
      e.last = !has;
      Spread<decltype(kstep)> spread{e, kstep, 0, has ? SLOTS(narrow) : 0, j != 0};
      EachStep<STEPS>::run(spread);
#pragma unroll 1
      for (int k = spread.k; k < spread.kn; k++) kstep(k);
      wg_wait<0>();   // before the way out, too: the compiler does not know that nothing is in flight there
      if (!has) {   // nobody else has to do anything now: what lanes store of the last tile, these do
#pragma unroll 1
        for (int c = 0; OWN && LAST_IN_RING && j && c < order.steps(e.col / TILE_N); c++) e.store_own(LAST_AT(wg, c), e.col + c * STEP, t);
        break;
      }
      if (t < CLUSTER) mbar_arrive_at(empty + 8 * prev, t);
#pragma unroll
      for (int i = 0; i < TILE_N / (KEEP_F32 ? 2 : 4); i++) {
#if KEEP_F32
        e.kept[i] = d[0][i];
#else
        e.kept[i] = keep(next, i, d[0][2 * i], d[0][2 * i + 1]);
#endif
      }
      // Where the tile stands is worked out again: registers over the main loop are dearer.
      order.at(j ? queue.again(j - 1) : cid, tm, tn);
      __syncwarp();
      if (j && t % 32 == 0) queue.give_back(j - 1);
      e.row = (tm * CLUSTER + rank) * TILE_M + wg * 64;
      e.col = tn * TILE_N;
    }
#elif IN_TURN
    auto other = [&] {   // the slots of a tile of the other warpgroup
      s += KT % STAGES;
      ph ^= (KT / STAGES & 1) ^ (s >= STAGES);
      if (s >= STAGES) s -= STAGES;
    };
    if (wg) other();
    u32 turns = 0;   // of the other warpgroup, that this one has waited for
#pragma unroll 1
    for (int w = cid + wg * queue.stride; w < order.total; w += 2 * queue.stride) {
      if (w != (int)cid) mbar_wait(turn + 8 * wg, turns++ & 1);
#pragma unroll 1
      for (int k = 0; k < KT; k++) kstep(k);
      if (t % 32 == 0) mbar_arrive(turn + 8 * (1 - wg));
      wg_wait<0>();
      if (t < CLUSTER) mbar_arrive_at(empty + 8 * prev, t);
      other();
      order.at(w, tm, tn);
      e.col = tn * TILE_N;
#pragma unroll
      for (int b = 0; b < 2; b++) {
        e.row = (tm * CLUSTER + rank) * TILE_M + b * 64;
        rows_load(e.R, P, e.row + row_of(t));
        at_end(e, d[b]);
      }
    }
#else
    int w = cid;
#pragma unroll 1
    for (u32 j = 0; w < order.total; j++) {
      order.at(w, tm, tn);
      e.row = (tm * CLUSTER + rank) * TILE_M + wg * 64;
      e.col = tn * TILE_N;
      narrow = order.narrow(tn);
      rows_load(e.R, P, e.row + row_of(t));
#pragma unroll 1
      for (int k = 0; k < SLOTS(narrow); k++) kstep(k);
      wg_wait<0>();
      if (t < CLUSTER) mbar_arrive_at(empty + 8 * prev, t);
      at_end(e, d[0]);
      w = queue.at(j);
      __syncwarp();
      if (t % 32 == 0) queue.give_back(j);
    }
#endif
  }
  if (CLUSTER > 1) cluster_leave();
}
