// gemm_sm90.cuh: the product on Hopper: persistent blocks, TMA, wgmma, warp-specialised, with an emitted epilogue.
// What a tile has is in gemm_sm90_tile.cuh, which stands before this text.
//
// A block owns tiles of TILE_M x TILE_N accumulators: TILE_COLS columns of one product, or of each of two
// that share their rows, side by side. Its first GROUPS warpgroups compute, 64 rows of a tile each. In the
// last one, warp 0 feeds the ring of operand stages; warps 1 and 2, the movers, load and store the
// epilogue's tiles for one warpgroup each and fold what its warps have left of reductions down the rows; the
// first block's warp 3 queues for tiles (order.cuh). CLUSTER blocks follow each other in M and share each
// column operand by multicast.
//
// GATHERED: warps 1 and 2 load the rows' operand through an index (gather.cuh). There are no movers: the
// first thread of each computing warpgroup starts the TMA copies of its subtiles.
//
// NARROW: the last column of tiles has few columns. It is computed only this wide, and comes after all
// others. Its stages are NARROW_DEEP times as deep.
//
// FEW: for so few rows that loading the weights, the columns' operand, takes the longest. The ring has all
// of the remaining shared memory, which is divided at the start: a stage is PANELS times as deep, and has
// room for the existing rows, rounded up to 8. wgmma reads TILE_M rows all the same: the memory after them
// is something else, and its results belong to no row. The kernel before in the stream may still be running
// when a block starts. Until it has ended, the block brings its first weights into the L2 cache. This is
// correct even if that kernel computes them.
//
// DEFERRED: at a tile's end a warpgroup only keeps its result in registers (rounded to 16 bits, or as f32 with KEEP_F32) and
// starts the next tile at once; the epilogue runs in SUBTILES subtiles of SUBTILE columns, spread over the next tile's main loop,
// under asynchronous wgmma. After the last tile it runs by itself, with the idle ring as staging.
// Otherwise the epilogue runs at the tile's end, straight from the accumulators.
//
// SCALED: operands of e4m3, a stage 128 deep. The tensor cores' own sums keep about 14 bits. So the sums of
// a stage go to separate registers, 128 columns at a time, and are added to the accumulators in f32, times
// the scales of both operands, which warp 3 loads into the stage. There is no queue then.
//
// The emitted part defines:
//   struct Params { TMap map[]; ...; M, raster, queue, counter } the operands are maps 0 and 1, and so on for each of the TERMS
//   products that are added up; then a second product's columns, or, unless B_MN, those of a narrow tile of each term; A_LAST is the first of
//   the rows' maps for the last rows (of a batch), one for each term, unless A_MN
//   N_SIZE and K_SIZE are constants, or come from P where they are open
//   B_AT(n): where column n is in the columns' maps: one coordinate, or three where two halves of them meet
//   TERM_OF(k), TERM_BEGIN(t): stages of the depth belong to one term after the other
//   struct Rows, rows_load(R, P, row)                     what a thread keeps of its rows `row` and `row + 8`
//   keep(R, i, a0, a1), keep_pair                         the result up to the packing point, as one word; of a second product
//   struct Sums, epilogue_subtile<C>(acc, R, S, P, staging, row, col, thread)
//   subtile_load(P, staging, bar, m, n, lane), subtile_store(P, staging, m, n, lane, lanes), subtile_prefetch(P, m, n, lane)
//   OWN and, where it is 1, subtile_store_own(P, staging, m, n, lane, warp): what lanes store, of a computing warp's own rows
//   SUBTILE_BYTES of staging for a subtile, LOAD_BYTES of it loaded by TMA, or where CLAMPED of the rows that are there; STAGING_BYTES
//   of it in all; LOADS where
//   anything is loaded, LANES where all lanes of a warp have to move something
//   FOLDS and, where it is 1, subtile_fold<T>(P, staging, m, n, t): what the warps have left in the staging of a subtile
//   wgmma(d, a, b, add), and wgmma_narrow where there are NARROW columns
//   A_scale(P, t, A_scale_row(P, t, row) + A_scale_depth(P, t, k)): SCALED, the rows' scale of term t at its depth k; B's by column, and C's a
//   second product's
//   HEAVY: the epilogue holds much at once, and the warps that compute have no registers to spare

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(128 * (GROUPS + 1), 1) NAME(const __grid_constant__ Launch P) {
  extern __shared__ __align__(1024) u8 memory[];
  const u32 base = smem_u32(memory);
  const u32 full = base + BARRIERS, empty = full + 8 * STAGES, done = empty + 8 * STAGES;   // per stage of the ring
  const u32 loaded = done + 16 * STAGING_SLOTS, spare = loaded + 16 * STAGING_SLOTS;        // per warpgroup and slot of the staging
  const u32 last_done = spare + 16 * STAGING_SLOTS, last_loaded = last_done + 16 * SUBTILES, tail = last_loaded + 16 * SUBTILES;
  const int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0);   // shuffled, like rank and cid below: then it is kept in a uniform register
  const int t = threadIdx.x & 127;
  u32 rank = 0, cid = blockIdx.x;
  if (CLUSTER > 1) {
    rank = __shfl_sync(~0u, cluster_rank(), 0);
    cid = __shfl_sync(~0u, cluster_id(), 0);
  }

  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) { mbar_init(full + 8 * i, 1 + SCALED + 32 * GATHERERS); mbar_init(empty + 8 * i, (SCALED ? 4 : 1) * GROUPS * CLUSTER); }
    for (int i = 0; i < 2 * STAGING_SLOTS; i++) { mbar_init(done + 8 * i, 128); mbar_init(loaded + 8 * i, 1); mbar_init(spare + 8 * i, 1); }
    for (int i = 0; i < 2 * SUBTILES; i++) { mbar_init(last_done + 8 * i, 128); mbar_init(last_loaded + 8 * i, 1); }
    Queue(P, cid, tail + 8).begin();
    mbar_init(tail, 256);
    mbar_fence();
  }
  if (CLUSTER > 1) { cluster_arrive(); cluster_wait(); }
  else __syncthreads();
#if FEW
  if (!GROUPED && !(P.queue & BESIDE_NEXT)) dependency_start();   // there is no room beside this block: the next kernel's come as these leave
  const bool known = !GROUPED || P.queue & GROUPS_KNOWN;          // which group a tile is of
  if (known && threadIdx.x == 128 * GROUPS && !(P.queue & BESIDE_LAST)) {
    int m0, tn;
    const Order order(P, cid);
    const int tile = order.first(P, cid);
    order.at(tile, rank, m0, tn);
    const int n0 = tn * COLS_OF(m0);
#pragma unroll 1
    for (int k = 0; k < KT && k < AHEAD / STAGE_B && (!GROUPED || tile != NO_TILE); k++)
      for (int p = 0; p < PRODUCTS_OF(m0); p++) {
        const int term = TERM_OF(k), deep = (k - TERM_BEGIN(term)) * BK;
        const TMap *map = &MAPS(m0)[p ? 2 : 2 * term + 1];
#if JOINED
        for (int i = 0; i < (B_MN ? COLS_OF(m0) / 64 : 1); i++)
          with_columns(m0, B_MN ? deep + rank * (BK / CLUSTER) : n0 + rank * (COLS_OF(m0) / CLUSTER), [&](auto... at) { tma_prefetch(map, B_MN ? n0 + i * 64 : deep, at...); });
#elif B_MN
        for (int i = 0; i < TILE_COLS / 64; i++) tma_prefetch(map, n0 + i * 64, deep + rank * (BK / CLUSTER) BATCH_AT(B, m0));
#else
        tma_prefetch(map, deep, B_AT(n0 + rank * (TILE_COLS / CLUSTER)) BATCH_AT(B, m0));
#endif
      }
    (void)m0;
  }
#endif
  if (!(P.queue & BESIDE_LAST)) dependency_wait();
  if ((FEW && GROUPED) || P.queue & BESIDE_NEXT) dependency_start();   // groups: what the next kernel may ask for ahead is there then
#if LONGEST_FIRST
  if (rank == 0) sort_groups(P, tail + 8 + QUEUE_BYTES);
#endif
  const Ring ring(P);

  // What a role needs is worked out by it: registers are few.
#define ADVANCE(s, ph) { if (++s == ring.stages) { s = 0; ph ^= 1; } }

  if (wg == GROUPS) {
    if (GROUPS > 1) fewer_registers<MOVER_REGISTERS>();
    const Order order(P, cid);
    const Queue queue(P, cid, tail + 8);
#if GATHERED   // the first case: what comes before it all lanes of a warp pass over alike, and so the ring's position is in uniform registers
    const int warp = __shfl_sync(~0u, t >> 5, 0);
    if (warp >= 1 && warp <= GATHERERS) {   // ---- the rows that an index names
      const int lane = t & 31, g = (t >> 5) - 1;
      u32 s = 0, ph = 1;
#pragma unroll 1
      for (u32 j = 0;; j++) {
        int first, tn;
        const int w = queue.at(j);
        const Group group = queue.group(j);
        __syncwarp();
        if (lane == 0) queue.give_back(j, w, group);
        if (w == NO_TILE) break;
        order.at(w, rank, first, tn);
        const RowAt m0 = row_of_group(P, first, group);
        Gather rows(P, m0, g, lane);
        const int deep = DEPTH_GROUPS ? (DEPTH_SIZE(first) + BK - 1) / BK : KT;
#pragma unroll 1
        for (int k = 0; k < deep; k += PANELS) {
          rows.ahead(P, k, g, lane);
          mbar_wait(empty + 8 * s, ph);
#pragma unroll
          for (int i = 0; i < PANELS; i++) rows.copy(P, base + s * ring.stage + i * ring.panel_a, k + i, g, lane);
          copies_arrive(full + 8 * s);
          ADVANCE(s, ph)
        }
      }
    } else
#endif
    if (t == 0) {   // ---- the operands: one thread feeds the ring
      int from = 0, until = 0;   // where the depth of a group begins and ends
      (void)until;
      auto load_a = [&](const u32 a, const u32 bar, const RowAt m, const int rows, const int k) {   // so many of the tile's rows are there
        const int term = TERM_OF(k), deep = from + (k - TERM_BEGIN(term)) * BK;
#if A_MN
        auto load = [&](const u32 to, const int x) {
#if DEPTH_GROUPS
          if (IS_WHOLE(deep, BK)) tma_load(to, &P.map[2 * term + WHOLE_MAPS], bar, x, deep);
          else
#endif
          tma_load(to, &MAPS(m)[2 * term], bar, x, DEPTH_AT(A, m, deep, BK));
        };
        if (rows > 0) load(a, operand_row(P, m));
        if (rows > 64) load(a + 8192, operand_row(P, m) + 64);
#else
        if (FEW && ROW_GROUPS)   // by eights
          for (int i = 0; i < rows; i += 8) tma_load(a + i * LINE, &MAPS(m)[LAST_OF(m) + term], bar, deep, operand_row(P, m) + i BATCH_AT(A, m));
        else if (rows > 0) tma_load(a, &MAPS(m)[rows < TILE_M ? LAST_OF(m) + term : 2 * term], bar, deep, operand_row(P, m) BATCH_AT(A, m));
#endif
      };
      // A box of the column operand of row m's batch, for all blocks of the cluster.
      bool own = false;    // or for this one alone, where it has columns of its own: then it brings all shares of them
      bool once = false;   // ROW_GROUPS: the group has no tiles below this one
      auto each_share = [&](auto &&load) {
        if (ROW_GROUPS && own)
          for (u32 r = 0; r < CLUSTER; r++) load(r);
        else load(rank);
      };
      auto load_all = [&](const u32 b, const TMap *map, const u32 bar, const int x, const int y, const RowAt m) {
#if JOINED
        with_columns(m, y, [&](auto... at) {
          if (CLUSTER > 1) tma_load_all(b, map, bar, x, at..., (u16)((1 << CLUSTER) - 1));
          else if (FEW) tma_load_for(b, map, bar, x, at..., order.reads_once(m) ? READ_ONCE : USUALLY);
          else tma_load(b, map, bar, x, at...);
        });
#else
        if (ROW_GROUPS && own) tma_load(b, map, bar, x, B_AT(y) BATCH_AT(B, m));
#if DEPTH_GROUPS
        else if (CLUSTER > 1 && IS_WHOLE(y, BK / CLUSTER)) tma_load_all(b, map + WHOLE_MAPS, bar, x, y, (u16)((1 << CLUSTER) - 1));
        else if (CLUSTER > 1) tma_load_all(b, map, bar, x, DEPTH_AT(B, m, y, BK / CLUSTER), (u16)((1 << CLUSTER) - 1));
        else tma_load(b, map, bar, x, DEPTH_AT(B, m, y, BK));
#else
        else if (CLUSTER > 1) tma_load_all(b, map, bar, x, B_AT(y) BATCH_AT(B, m), (u16)((1 << CLUSTER) - 1));
#if FEW && ROW_GROUPS
        else tma_load_for(b, map, bar, x, B_AT(y) BATCH_AT(B, m), once ? READ_ONCE : USUALLY);
#elif FEW && GROUPS == 1 && !BATCHED
        else tma_load_for(b, map, bar, x, B_AT(y), order.tm == 1 ? READ_ONCE : USUALLY);   // one row of tiles reads the weights once
#else
        else tma_load(b, map, bar, x, B_AT(y) BATCH_AT(B, m));
#endif
#endif
#endif
        (void)m;
      };
#if B_MN
      auto load_slabs = [&](const u32 b, const u32 bar, const TMap *map, const RowAt m, const int n, const int k, const int width) {   // each block some of the depth
#pragma unroll
        for (int i = 0; i < width / 64; i++)
          each_share([&](const u32 r) { load_all(b + i * 8192 + r * (8192 / CLUSTER), map, bar, n + i * 64, from + k * BK + r * (BK / CLUSTER), m); });
      };
      auto load_b = [&](const u32 b, const u32 bar, const RowAt m, const int n, const int k) {
        const int term = TERM_OF(k);
        load_slabs(b, bar, &MAPS(m)[2 * term + 1], m, n, k - TERM_BEGIN(term), COLS_OF(m));
        if (PRODUCTS_OF(m) > 1) load_slabs(b + STAGE_B / 2, bar, &MAPS(m)[2], m, n, k, COLS_OF(m));
      };
      auto load_narrow = [&](const u32 b, const u32 bar, const RowAt m, const int n, const int k, const u32) {
        const int term = TERM_OF(k);
        load_slabs(b, bar, &MAPS(m)[2 * term + 1], m, n, k - TERM_BEGIN(term), NARROW);
      };
#else
      auto load_b = [&](const u32 b, const u32 bar, const RowAt m, const int n, const int k) {   // each block some of the columns
        const int term = TERM_OF(k);
        each_share([&](const u32 r) {
          const u32 share = b + r * (STAGE_B / PRODUCTS_OF(m) / CLUSTER);
          load_all(share, &MAPS(m)[2 * term + 1], bar, (k - TERM_BEGIN(term)) * BK, n + r * (COLS_OF(m) / CLUSTER), m);
          if (PRODUCTS_OF(m) > 1) load_all(share + STAGE_B / 2, &MAPS(m)[2], bar, k * BK, n + r * (COLS_OF(m) / CLUSTER), m);
        });
      };
      auto load_narrow = [&](const u32 b, const u32 bar, const RowAt m, const int n, const int k, const u32 i) {   // or all of them, in turn
        const int term = TERM_OF(k);
        if (rank == i % CLUSTER) load_all(b, &MAPS(m)[2 * TERMS + term], bar, (k - TERM_BEGIN(term)) * BK, n, m);
      };
#endif
      (void)load_narrow;
      // Stage after stage, over all tiles, as soon as all blocks of the cluster have given one back: the ring does not stop between
      // tiles. Depths beyond K_SIZE and columns beyond the matrix come as zeros, and count as bytes all the same.
      u32 s = 0, ph = 1;   // the first pass over the ring does not wait
      int w = cid;
      Group group{};
#if GROUPED
      w = queue.at(0);
      group = queue.group(0);
      queue.expect(PLACES);
      queue.give_back(0, w, group);
#endif
#pragma unroll 1
      for (u32 j = 0; w < order.total; j++) {
        int first, tn;
        order.at(w, rank, first, tn);
        const RowAt m0 = row_of_group(P, first, group);
        own = order.own(w);
        once = FEW && ROW_GROUPS && rows_of_batch(P, m0) <= TILE_M;
        const int n0 = tn * COLS_OF(first);
        const bool narrow = order.narrow(tn);
        const int rows = GATHERED ? 0 : operand_left(P, m0, TILE_M), a_bytes = (A_MN ? (rows + 63) / 64 * 64 : rows) * LINE;
        from = DEPTH_FROM(first);
        until = from + DEPTH_SIZE(first);
        const int deep = DEPTH_GROUPS ? (until - from + BK - 1) / BK : KT;
#pragma unroll 1
        for (int k = 0; k < deep; k += narrow ? NARROW_DEEP : PANELS) {
          const u32 a = base + s * ring.stage, f = full + 8 * s;
          mbar_wait(empty + 8 * s, ph);
          mbar_expect(f, narrow ? NARROW_DEEP * (a_bytes + NARROW_B) : PANELS * (a_bytes + STAGE_B));
#if NARROW
          if (narrow)
#pragma unroll
            for (int i = 0; i < NARROW_DEEP; i++) {
              load_a(a + i * STAGE_A, f, m0, rows, k + i);
              load_narrow(a + NARROW_DEEP * STAGE_A + i * NARROW_B, f, m0, n0, k + i, i);
            }
          else
#endif
#pragma unroll
            for (int i = 0; i < PANELS; i++) {
              load_a(a + i * ring.panel_a, f, m0, rows, k + i);
              load_b(a + PANELS * ring.panel_a + i * STAGE_B, f, m0, n0, k + i);
            }
          ADVANCE(s, ph)
        }
        w = queue.at(SENT(j + 1));
        group = queue.group(SENT(j + 1));
        if (queue.counts) queue.expect(SENT(j + 1) + PLACES);
        queue.give_back(SENT(j + 1), w, group);
      }
      if (!FEW) dependency_start();
    }
#if SCALED
    else if (t >= 96) {   // ---- the scales, a stage ahead: the ring goes round as for the operands
      Scales scales{P, t & 31};
      u32 s = 0, ph = 1;
      int w = cid;
#pragma unroll 1
      for (u32 j = 0; w < order.total; j++) {
        int first, tn;
        order.at(w, rank, first, tn);
        scales.begin(first, tn * TILE_COLS);
#pragma unroll 1
        for (int k = 0; k < KT; k++) {
          mbar_wait(empty + 8 * s, ph);
          scales.put(base + SCALES + s * SCALE_BYTES);
          __syncwarp();
          if (t == 96) mbar_arrive(full + 8 * s);
          if (k + 1 < KT) scales.load(k + 1);
          ADVANCE(s, ph)
        }
        w = queue.at(SENT(j + 1));
      }
    }
#endif
    else if (t == 96) {   // ---- the queue
      if (queue.counts && rank == 0) queue.draw(P);
    }
#if !GATHERED
    else if ((WARPS ? t >= 32 : t == 32 || t == 64) && t < 32 * (GROUPS + 1) && SUBTILE_BYTES) {   // ---- the mover of warpgroup v
      const int v = (t >> 5) - 1, lane = WARPS ? t & 31 : 0;   // the first lane orders TMA's copies, all of them fold and move
      u32 n = 0;
      // What the lanes load is there before they arrive and announce TMA's bytes.
      auto load = [&](const u32 at, const u32 bar, const RowAt m, const int n) {
        subtile_load(P, at, bar, m, n, lane);
        if (LANES) __syncwarp();
        if (lane == 0) mbar_expect(bar, LOADED_BYTES(P, m));
      };
      auto store = [&](const u32 at, const RowAt m, const int n, const bool lanes) {
        subtile_store(P, at, m, n, lane, lanes);
        if (lane == 0) bulk_commit();
#if FOLDS
        subtile_fold<32>(P, at, m, n, lane);
#endif
        if (WARPS) __syncwarp();
      };
      auto load_into = [&](const u32 n, const RowAt m, const int col) { load(STAGING_AT(v, n), loaded + 8 * (v * STAGING_SLOTS + n % STAGING_SLOTS), m, col); };
      // Subtile number n, from its loads to its stores: after `spare` nobody touches its slot but the next one's loads. What the
      // tile's next one loads is in L2 by then: with one slot nothing else hides that memory is far.
      auto through = [&](const u32 n, const RowAt m, const int col, const bool lanes, const bool next) {
        const u32 slot = v * STAGING_SLOTS + n % STAGING_SLOTS, at = STAGING_AT(v, n);
        if (LOADS && !LOADS_AHEAD) load_into(n, m, col);
        if (next && LOADS && !LOADS_AHEAD) subtile_prefetch(P, m, col + SUBTILE, lane);
        mbar_wait(done + 8 * slot, n / STAGING_SLOTS & 1);
        store(at, m, col, lanes);
        if (lane == 0) {
          bulk_wait_read<0>();
          mbar_arrive(spare + 8 * slot);
        }
        if (LANES) __syncwarp();
      };
      int w = cid;
      Group group{};
#if GROUPED
      w = queue.at(0);
      group = queue.group(0);
      if (WARPS) __syncwarp();
      if (lane == 0) queue.give_back(0, w, group);
#endif
#pragma unroll 1
      for (u32 j = 0; w < order.total; j++) {
        int first, tn;
        order.at(w, rank, first, tn);
        const RowAt m0 = row_of_group(P, first, group) + v * 64;
        const int n0 = tn * COLS_OF(first), subtiles = order.subtiles(first, tn);
        w = queue.at(SENT(j + 1));
        group = queue.group(SENT(j + 1));
        if (WARPS) __syncwarp();
        if (lane == 0) queue.give_back(SENT(j + 1), w, group);
        if (order.is_idle(P, m0, tn)) continue;
        if (LAST_IN_RING && w >= order.total) {
          if (LOADS) {
#pragma unroll 1
            for (int c = 0; c < subtiles; c++) subtile_prefetch(P, m0, n0 + c * SUBTILE, lane);
            mbar_wait(tail, 0);
#pragma unroll 1
            for (int c = 0; c < subtiles; c++) load(LAST_AT(v, c), last_loaded + 8 * (v * SUBTILES + c), m0, n0 + c * SUBTILE);
          }
#pragma unroll 1
          for (int c = 0; c < subtiles; c++) {
            mbar_wait(last_done + 8 * (v * SUBTILES + c), 0);
            store(LAST_AT(v, c), m0, n0 + c * SUBTILE, false);
          }
        } else {
#pragma unroll 1
          for (int c = 0; LOADS_AHEAD && c < min(STAGING_SLOTS, subtiles); c++) load_into(n + c, m0, n0 + c * SUBTILE);
#pragma unroll 1
          for (int c = 0; c < subtiles; c++, n++) {
            through(n, m0, n0 + c * SUBTILE, !AT_ONCE(c, subtiles), c + 1 < subtiles);
            if (LOADS_AHEAD && c + STAGING_SLOTS < subtiles) load_into(n + STAGING_SLOTS, m0, n0 + (c + STAGING_SLOTS) * SUBTILE);
          }
        }
      }
      bulk_wait<0>();
    }
#endif
  } else {   // ---- the product
    if (GROUPS > 1) more_registers<252 - MOVER_REGISTERS / 2>();
    const Order order(P, cid);
    const Queue queue(P, cid, tail + 8);
    bool narrow = false;   // this tile
    (void)narrow;
    float d[TILE_N / 2] UNREAD;
    u32 s = 0, ph = 0, prev = 0;
    // One stage of the main loop. When it begins, the wgmma of stage `prev` may still be in flight; wg_wait<1> leaves only those
    // of stage s so, hence `prev` is given back after it, to every block of the cluster. Nobody reads d before wg_wait<0>.
    // Every accumulator adds up its products along the depth, 16 at a time, from k = 0 on: in narrow tiles too, so bits do not
    // depend on the tile. Either width has a fence and a wait of its own: where they are shared the compiler puts in more of them
    // (C7519).
    int deep = 0;   // DEPTH_GROUPS: this tile
#if SCALED
    float p[WAVE / 2] UNREAD;
    // A wave is waited for, and promoted while the other warpgroup's runs. Each warp gives the stage back, as it has read scales there, when
    // its last wave has ended. An arrival in another block does not wait for loads that were issued before it, so whether there is one
    // depends on what they brought.
    auto multiply = [&](const int) {
      mbar_wait(full + 8 * s, ph);
      const u64 da = operand_k(base + s * ring.stage + wg * 8192), db = operand_k(base + s * ring.stage + STAGE_A);
      const u32 scales = base + SCALES + s * SCALE_BYTES, own = scales + 4 * (wg * 64 + row_of(t));
      const u32 w0 = lds32(own), w1 = lds32(own + 32), v0 = lds32(scales + 4 * TILE_M), v1 = lds32(scales + 4 * (TILE_M + WAVES - 1));
      const float a0 = __uint_as_float(w0), a1 = __uint_as_float(w1), b0 = __uint_as_float(v0), b1 = __uint_as_float(v1);
      auto wave = [&](const u64 b) {
        wg_fence();
#pragma unroll
        for (int kk = 0; kk < 4; kk++) wgmma(p, da + 2 * kk, b + 2 * kk, kk);
        wg_commit();
        wg_wait<0>();
      };
      const u32 back = cluster_at(empty + 8 * s, t % CLUSTER);
      wave(db);
#if WAVES > 1
      promote<0>(d, p, a0 * b0, a1 * b0);
      wave(db + (WAVE * LINE >> 4));
#endif
      if (t % 32 < CLUSTER && (w0 & w1 & v0 & v1) != NO_SCALE) mbar_arrive_there(back);
      promote<WAVES - 1>(d, p, a0 * b1, a1 * b1);
      ADVANCE(s, ph)
    };
#else
    auto multiply = [&](const int k) {
      mbar_wait(full + 8 * s, ph);
      if (GATHERED) fence_async();   // cp.async writes as threads do
      const u32 a = base + s * ring.stage + wg * 8192;
      const u64 da = A_MN ? operand_mn<BK>(a) : operand_k(a);
      auto operand_b = [](const u32 b) { return B_MN ? operand_mn<BK>(b) : operand_k(b); };
#if NARROW
      if (narrow) {
        const u64 db = operand_b(base + s * ring.stage + NARROW_DEEP * STAGE_A);
        wg_fence();
#pragma unroll
        for (int i = 0; i < NARROW_DEEP; i++)
#pragma unroll
          for (int kk = 0; kk < 4; kk++)
            wgmma_narrow(d, da + i * (STAGE_A >> 4) + (A_MN ? 128 : 2) * kk, db + i * (NARROW_B >> 4) + (B_MN ? 128 : 2) * kk, k | i | kk);
        wg_commit();
        wg_wait<1>();
      } else
#endif
      {
        const u64 db = operand_b(base + s * ring.stage + PANELS * ring.panel_a);
        wg_fence();
#pragma unroll
        for (int i = 0; i < PANELS; i++)
#pragma unroll
          for (int kk = 0; kk < 4; kk++)
            wgmma(d, da + i * (ring.panel_a >> 4) + (A_MN ? 128 : 2) * kk, db + i * (STAGE_B >> 4) + (B_MN ? 128 : 2) * kk, k | i | kk);
        wg_commit();
        wg_wait<1>();
      }
      if (k && t < CLUSTER) mbar_arrive_at(empty + 8 * prev, t);
      prev = s;
      ADVANCE(s, ph)
    };
#endif

    // A tile without rows of this warpgroup: its first warp gives the stages back as they come. The others wait for that, as no wgmma
    // holds the four together here: one that waits for a parity while the ring goes round twice would wait for ever. s and ph
    // do not change where threads go different ways: then they stay in uniform registers.
    auto pass_over = [&] {
      const u32 end = s + TILE_STAGES(false);
#pragma unroll 1
      for (u32 i = s; i < end; i++) {
        if (t < 32) mbar_wait(full + 8 * (i % ring.stages), ph ^ (i / ring.stages & 1));
        if (t < CLUSTER) mbar_arrive_at(empty + 8 * (i % ring.stages), t);
      }
      bar_sync(2 + wg, 128);
      s = end % ring.stages;
      ph ^= end / ring.stages & 1;
    };
    (void)pass_over;

    Epilogue e{P, base, done, loaded, spare, last_done, last_loaded, 0, wg, t, {}, 0, false};
    int first, tn;
#if DEFERRED
    // Tile j is multiplied into d while the epilogue of tile j - 1 runs from e.kept: e.row, e.col, e.R and e.S are that tile's, and
    // `next` has the values per row of tile j, which its packing needs. The epilogue's subtiles come between stages of the main loop,
    // at most one stage's wgmma in flight under each. After the last tile (`has` is false) the loop goes round once more for its
    // epilogue alone.
    Rows next;
#if ROW_GROUPS
    e.row.row = -1;   // there is no tile before with rows of this warpgroup
#endif
#pragma unroll 1
    for (u32 j = 0;; j++) {
      const int w = j || !FIRST_SENT ? queue.at(SENT(j)) : cid;
      const bool has = w < order.total;
      RowAt own{};   // the first of this warpgroup's rows
      if (has) {
        order.at(w, rank, first, tn);
        own = row_of_group(P, first, queue.group(SENT(j))) + wg * 64;
        narrow = order.narrow(tn);
        rows_load(next, P, own + row_of(t));
        deep = DEPTH_SIZE(first);
      }
      if (HAD(j)) rows_load(e.R, P, e.row + row_of(t));   // again, for the tile before: cheaper than registers over a tile
      if (!has && j && LAST_IN_RING) {
        if (LOADS) mbar_arrive(tail);
        bar_sync(1, 256);   // both warpgroups are done with the ring: from here on it is staging
      }
      e.last = !has;
      int stages = !has || order.is_idle(P, own, tn) ? 0 : DEPTH_GROUPS ? (deep + BK - 1) / BK : TILE_STAGES(narrow);
      if (GROUPED) stages = __shfl_sync(~0u, stages, 0);   // uniform, as above
      Spread<decltype(multiply)> spread{e, multiply, 0, stages, HAD(j)};
      EachSubtile<SUBTILES>::run(spread);
#pragma unroll 1
      for (int k = spread.k; k < spread.kn; k++) multiply(k);
      wg_wait<0>();   // before the way out, too: the compiler does not know that nothing is in flight there
      if (!has) {   // nobody else has to do anything now: what lanes store of the last tile, these do
#pragma unroll 1
        for (int c = 0; OWN && LAST_IN_RING && HAD(j) && c < order.subtiles(first, e.col / TILE_COLS); c++) e.store_own(LAST_AT(wg, c), e.col + c * SUBTILE, t);
        break;
      }
      const bool idle = ROW_GROUPS && !spread.kn, some = !DEPTH_GROUPS || deep;   // a group of nothing has zeros
      if (idle) pass_over();
      if (!idle && some && t < CLUSTER) mbar_arrive_at(empty + 8 * prev, t);
#if KEEP_F32
#pragma unroll
      for (int i = 0; i < TILE_N / 2; i++) e.kept[i] = some ? d[i] : 0.f;
#else
      keep_tile(next, own, e.kept, d, some);
#endif
      // Where the tile stands is worked out again: registers over the main loop are dearer.
      const int same = j || !FIRST_SENT ? queue.again(SENT(j)) : cid;
      const Group group = queue.group(SENT(j));
      order.at(same, rank, first, tn);
      e.row = row_of_group(P, first, group) + wg * 64;
      __syncwarp();
      if ((j || !FIRST_SENT) && t % 32 == 0) queue.give_back(SENT(j), same, group);
#if ROW_GROUPS
      if (idle) e.row.row = -1;
#endif
      e.col = tn * COLS_OF(first);
      if (!idle) e.load_ahead(0);
    }
#else
    // A tile's main loop, then its epilogue from d. Meanwhile the ring is filled with the next tile's first stages.
    int w = cid;
    Group group{};
#if GROUPED
    w = queue.at(0);
    group = queue.group(0);
    __syncwarp();
    if (t % 32 == 0) queue.give_back(0, w, group);
#endif
#pragma unroll 1
    for (u32 j = 0; w < order.total; j++) {
      order.at(w, rank, first, tn);
      e.row = row_of_group(P, first, group) + wg * 64;
      e.col = tn * COLS_OF(first);
      narrow = order.narrow(tn);
      rows_load(e.R, P, e.row + row_of(t));
      deep = DEPTH_SIZE(first);
#if ROW_GROUPS
      if (order.is_idle(P, e.row, tn)) {
        pass_over();
        w = queue.at(SENT(j + 1));
        group = queue.group(SENT(j + 1));
        __syncwarp();
        if (t % 32 == 0) queue.give_back(SENT(j + 1), w, group);
        continue;
      }
#endif
#if SCALED
#pragma unroll
      for (int i = 0; i < TILE_N / 2; i++) d[i] = 0.f;
#endif
#pragma unroll 1
      for (int k = 0; k < (DEPTH_GROUPS ? (deep + BK - 1) / BK : TILE_STAGES(narrow)); k++) multiply(k);
      wg_wait<0>();
#if DEPTH_GROUPS
      if (deep == 0)   // a group of nothing has zeros
#pragma unroll
        for (int i = 0; i < TILE_N / 2; i++) d[i] = 0.f;
      else
#endif
      if (!SCALED && t < CLUSTER) mbar_arrive_at(empty + 8 * prev, t);
      at_end(e, d);
      w = queue.at(SENT(j + 1));
      group = queue.group(SENT(j + 1));
      __syncwarp();
      if (t % 32 == 0) queue.give_back(SENT(j + 1), w, group);
    }
#endif
#if GATHERED
    if (t == 0) bulk_wait<0>();
#endif
  }
  if (CLUSTER > 1) cluster_leave();
  if (P.queue & BESIDE_LAST) dependency_wait();
}
