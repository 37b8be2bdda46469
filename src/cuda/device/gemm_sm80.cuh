// gemm_sm80.cuh: the product on Ampere, Ada and the consumer's Blackwell: cp.async, ldmatrix and mma.sync, with an
// emitted epilogue.
//
// A block is 256 threads and owns tiles of 128 x 128: eight warps, four down and two across, of 32 x 64
// each. A ring of STAGES stages, BK deep each, is filled STAGES - 1 ahead; it continues across tiles, so the
// next tile's first stages arrive during the epilogue. Two blocks share a multiprocessor: the tensor cores
// work for one during the other's epilogue.
//
// An operand is moved in vectors of 8 elements that are neighbours along the depth or, with A_MN or B_MN,
// along the rows (columns). A_VEC and B_VEC say how many elements start at a multiple of their own size in
// memory. Runs of 8, 4 and 2 are copied whole; with 1, every element is addressed by itself. Elements that
// do not exist arrive as zero.
//
// The emitted part defines, besides what gemm_sm90.cuh lists for an epilogue without staged tiles:
//   A_row(P, r), A_depth(P, k), A_PTR, A_MN, A_VEC, and the same of B     where an element lies: the sum of the two offsets
//   A_GATHERED, B_GATHERED                                                rows (or depths, where they are MN) are named by an index: one that
//                                                                         is negative is nowhere, and all of it zero

#define STAGE_A (TILE_M * BK * 2)
#define STAGE (STAGE_A + TILE_N * BK * 2)
#define KT ((K_TILE + BK - 1) / BK)
#define VECTORS (BK / 16)   // that a thread moves of an operand's stage
#define RESIDENT (A_VEC > 1 && B_VEC > 1 ? 2 : 1)   // elements found one by one take more registers
static_assert(TILE_M == 128 && TILE_N == 128 && SUBTILE == 64 && (BK == 32 || BK == 64) && STAGES >= 2, "warps stand four by two");

// ---- the operands' way into the ring

// Where a vector lies in an operand's share of a stage. Depth innermost: rows of BK, and the vector's number along the depth.
// Else: one row of TILE for each depth, and its number along that. Turned so that 8 rows' vectors lie in all 32 banks.
template <bool MN, int TILE> DEV u32 vector_at(int row, int c) {
  return MN ? row * (2 * TILE) + ((c ^ (row & 7)) << 4) : swizzled<2 * BK>(row, c << 4);
}

struct SideA {
  static constexpr bool MN = A_MN;
  static constexpr int VEC = A_VEC, TILE = TILE_M;
  static constexpr bool NAMED = A_GATHERED;
  static DEV i64 row(const Params &P, int r) { return A_row(P, r); }
  static DEV i64 depth(const Params &P, int k) { return A_depth(P, k); }
};
struct SideB {
  static constexpr bool MN = B_MN;
  static constexpr int VEC = B_VEC, TILE = TILE_N;
  static constexpr bool NAMED = B_GATHERED;
  static DEV i64 row(const Params &P, int r) { return B_row(P, r); }
  static DEV i64 depth(const Params &P, int k) { return B_depth(P, k); }
};

// What a tile sums over: all of the depth, or its group's share.
struct Depth {
#if DEPTH_GROUPS
#define K_TILE depth.size
  int from, size;
  DEV void aim(const Params &P, int group) {
    from = group_begin(P, group);
    size = max(0, group_begin(P, group + 1) - from);
  }
#else
#define K_TILE K_SIZE
  static constexpr int from = 0;
  DEV void aim(const Params &, int) {}
#endif
};
#define RAGGED (DEPTH_GROUPS || K_SIZE % BK)   // does the depth end within a stage

// A thread's vectors of one operand, each 4096 bytes after the one before in the stage.
template <class O> struct Feed {
  static constexpr int LINE = O::MN ? O::TILE / 8 : BK / 8;   // vectors of a row of the stage
  static constexpr int APART = 256 / LINE;                    // rows between a thread's vectors
  const u16 *at[O::MN ? 1 : VECTORS];  // the vector's row or, MN, its columns; with the offset along the depth it is whole
  int left;                            // rows from the first vector's on or, MN, columns
  int first;                           // of them, for VEC 1
  u32 w[VECTORS][4];                   // on its way, for VEC 1

  static DEV u32 place() { return vector_at<O::MN, O::TILE>(threadIdx.x / LINE, threadIdx.x % LINE); }
  DEV void aim(const Params &P, const void *from, int origin, int size) {
    first = origin + (O::MN ? threadIdx.x % LINE * 8 : threadIdx.x / LINE);
    left = size - first;
#pragma unroll
    for (int i = 0; i < (O::MN ? 1 : VECTORS); i++) {
      const i64 row = (O::MN && O::VEC == 1) || i * APART >= left ? 0 : O::row(P, first + i * APART);
      at[i] = O::NAMED && !O::MN && row < 0 ? 0 : (const u16 *)from + row;
    }
  }
  DEV void start(const Params &P, u32 stage, int k0, const Depth &depth) {
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
      const u16 *p = at[O::MN ? 0 : i];
      const int k = k0 + (O::MN ? threadIdx.x / LINE + i * APART : threadIdx.x % LINE * 8);
      int n = O::MN ? left : i * APART >= left ? 0 : RAGGED ? K_TILE - k : 8;   // elements that are there
      if (RAGGED && k >= K_TILE) n = 0;
      if (O::NAMED && !O::MN && !p) n = 0;
      if (O::VEC > 1) {
        const i64 deep = RAGGED && k >= K_TILE ? 0 : O::depth(P, depth.from + k);
        if (O::NAMED && O::MN && deep < 0) n = 0;
        p += O::NAMED && n <= 0 ? 0 : deep;
#pragma unroll
        for (int u = 0; u < 8; u += O::VEC)
          cp_async<2 * O::VEC>(stage + place() + i * 4096 + 2 * u, p + u, 2 * max(0, min(n - u, O::VEC)));
      } else {
#pragma unroll
        for (int e = 0; e < 8; e++) {
          const i64 deep = e < n ? O::depth(P, depth.from + (O::MN ? k : k + e)) : 0;
          const u32 x = e < n && !(O::NAMED && deep < 0) ? fetch(p + (O::MN ? O::row(P, first + e) + deep : deep)) : 0;
          w[i][e / 2] = e & 1 ? w[i][e / 2] | x << 16 : x;
        }
      }
    }
  }
  DEV void finish(u32 stage) {
    if (O::VEC > 1) return;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) sts128(stage + place() + i * 4096, w[i][0], w[i][1], w[i][2], w[i][3]);
  }
};

// ---- tiles

// Where a row of tiles begins. A group's is searched for, by a call: inlined, the loop keeps the compiler from unrolling those that index
// accumulators.
#if ROW_GROUPS
__device__ __noinline__ int find_row(const Params &P, int number) { return tile_row(P, number); }
#else
DEV int find_row(const Params &P, int number) { return tile_row(P, number); }
#endif

// The order of tiles: raster groups of P.raster rows of tiles; in a group down the rows first, so that a wave of blocks shares
// both operands in the L2 cache. Found anew for every use: registers are scarcer than time between tiles.
struct Tile {
  int m, n;   // its corner
  bool exists;
  DEV Tile(const Params &P, int t) {
    asm volatile("" : "+r"(t));
    const int tm = tiles_down(P), tn = (N_SIZE + TILE_N - 1) / TILE_N, raster = (int)P.raster;
    const int per = raster * tn, g = t / per, r = t - g * per, h = max(1, min(tm - g * raster, raster));
    exists = t < tm * tn;
    n = r / h * TILE_N;
    m = find_row(P, g * raster + r % h);
  }
};

// The block's next tile, from number t on: one of a group's may be empty.
DEV int next_tile(const Params &P, int t) {
#if ROW_GROUPS
  for (Tile tile(P, t); tile.exists && !row_there(P, tile.m); tile = Tile(P, t)) t += gridDim.x;
#endif
  return t;
}

// The accumulators of 16 rows: fragment j, cell i (row + 8*(i & 1), columns + 8*(i >> 1)), element e. Every other
// fragment holds back the loads of the ones after it, or the assembler brings forward more than it has registers for.
struct Kept {
#if PACKED
  const u32 (&w)[16];
#else
  const float (&d)[32];
#endif
  DEV float operator()(int j, int i, int e) const {
    if (j % 2 == 0 && i == 0 && e == 0) __syncwarp();
#if PACKED
    return e ? high<HALF>(w[j * 4 + i]) : low<HALF>(w[j * 4 + i]);
#else
    return d[j * 8 + (i >> 1) * 4 + (i & 1) * 2 + e];
#endif
  }
};

extern "C" __global__ void __launch_bounds__(256, RESIDENT) NAME(const __grid_constant__ Params P) {
  extern __shared__ __align__(1024) u8 memory[];
  const u32 base = smem_u32(memory);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, wm = warp >> 1, wn = warp & 1;
  // What a lane asks ldmatrix for in a stage: 16 x 16 of an operand, in the order in which mma.sync takes them.
  const u32 at_a = A_MN ? vector_at<true, TILE_M>((lane & 7) + (lane >> 4) * 8, wm * 4 + (lane >> 3 & 1))
                        : vector_at<false, TILE_M>(wm * 32 + (lane & 15), lane >> 4);
  const u32 at_b = STAGE_A + (B_MN ? vector_at<true, TILE_N>(lane & 15, wn * 8 + (lane >> 4))
                                  : vector_at<false, TILE_N>(wn * 64 + (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1));
  auto load_a = [&](u32 stage, int kk, int h, u32 (&a)[4]) {
    ldm<A_MN>(stage + (at_a ^ (A_MN ? h : kk) << 5) + (A_MN ? kk * (32 * TILE_M) : h * (32 * BK)), a);
  };
  auto load_b = [&](u32 stage, int kk, int j, u32 (&b)[4]) {
    ldm<B_MN>(stage + (at_b ^ (B_MN ? j : kk) << 5) + (B_MN ? kk * (32 * TILE_N) : j * (32 * BK)), b);
  };
  dependency_wait();

  Feed<SideA> feed_a;
  Feed<SideB> feed_b;
  Depth depth;
  auto aim = [&](const Tile &tile) {
    const int batch = batch_of(P, tile.m);
    feed_a.aim(P, (const u16 *)P.ptr[A_PTR] + A_batch(P, batch), operand_row(P, tile.m), A_there(P, batch) ? operand_rows(P, tile.m) : 0);
    feed_b.aim(P, (const u16 *)P.ptr[B_PTR] + B_batch(P, batch), tile.n, B_there(P, batch) ? N_SIZE : 0);
    depth.aim(P, batch);
  };
  // The first stages of the tile aimed at, from stage s on. Only the one before s may still be read by a warp.
  auto fill = [&](u32 s) {
#pragma unroll 1
    for (int k = 0; k < STAGES - 1; k++) {
      const u32 stage = base + s * STAGE;
      if (k < KT) {
        feed_a.start(P, stage, k * BK, depth);
        feed_b.start(P, stage + STAGE_A, k * BK, depth);
        feed_a.finish(stage);
        feed_b.finish(stage + STAGE_A);
      }
      cp_commit();
      s = s + 1 == STAGES ? 0 : s + 1;
    }
  };

  // All warps read stage s together while STAGES - 2 stages after it are on their way. A thread's copies are committed as one group
  // a stage, empty ones too, so that cp_wait<STAGES - 2> always means stage s. The barrier after it says two things: what all threads
  // copied into stage s is there, and all warps have read the stage before it, which is the one that is filled next. (Elements found
  // one by one are loaded into registers there and stored at the end of the turn: the next barrier publishes those.) Sums: every
  // accumulator adds up the depth in order, 16 at a time by one mma.sync, so bits do not depend on the ring.
  u32 s = 0;   // the stage that is read next
  int w = next_tile(P, blockIdx.x);
  if (Tile(P, w).exists) {
    aim(Tile(P, w));
    fill(s);
  }
#pragma unroll 1
  for (int next; Tile(P, w).exists; w = next) {
    aim(Tile(P, w));   // again, rather than keep it all over the epilogue
    float d[2][32];
#pragma unroll
    for (int i = 0; i < 32; i++) d[0][i] = d[1][i] = 0.f;
#pragma unroll 1
    for (int k = 0; k < KT; k++) {
      const u32 stage = base + s * STAGE, ahead = base + (s == 0 ? STAGES - 1 : s - 1) * STAGE;
      const bool more = k + STAGES - 1 < KT;
      cp_wait<STAGES - 2>();
      __syncthreads();   // the stage is there for all, and the one before it is read
      if (more) {
        feed_a.start(P, ahead, (k + STAGES - 1) * BK, depth);
        feed_b.start(P, ahead + STAGE_A, (k + STAGES - 1) * BK, depth);
      }
      cp_commit();
#pragma unroll
      for (int kk = 0; kk < BK / 16; kk++) {
        u32 a[2][4], b[4];
        load_a(stage, kk, 0, a[0]);
        load_a(stage, kk, 1, a[1]);
#pragma unroll
        for (int j = 0; j < 4; j++) {
          load_b(stage, kk, j, b);
#pragma unroll
          for (int h = 0; h < 2; h++) {
            mma(&d[h][8 * j], a[h], b[0], b[1]);
            mma(&d[h][8 * j + 4], a[h], b[2], b[3]);
          }
        }
      }
      if (more) {
        feed_a.finish(ahead);
        feed_b.finish(ahead + STAGE_A);
      }
      s = s + 1 == STAGES ? 0 : s + 1;
    }

    next = next_tile(P, w + gridDim.x);
    if (Tile(P, next).exists) {
      aim(Tile(P, next));
      fill(s);
    } else {
      dependency_start();
    }
    const Tile tile(P, w);
    const int row0 = tile.m + wm * 32, col = tile.n + wn * 64;
#if FOLDS
    // The stage that was read last is idle until the next tile's main loop: there warps leave what is folded over 64 rows.
    const u32 folds = base + (4 * SUBTILE_BYTES > STAGE ? STAGES : s == 0 ? STAGES - 1 : s - 1) * STAGE;
    const u32 staging = folds + ((wm >> 1) * 2 + wn) * SUBTILE_BYTES;
    __syncthreads();
#else
    const u32 staging = 0;
#endif
#pragma unroll
    for (int h = 0; h < 2; h++)
      if (row_there(P, FOLDS ? row0 & ~63 : row0 + 16 * h) && col < N_SIZE) {
        const int thread = (wm & 1) * 64 + h * 32 + lane;   // as of four warps that have 16 rows each
        const int row = row0 + 16 * h + (lane >> 2);
        Rows R;
        Sums S;
        rows_load(R, P, row);
#if PACKED
        u32 kept[16];
#pragma unroll
        for (int i = 0; i < 16; i++) kept[i] = keep(R, i, d[h][2 * i], d[h][2 * i + 1]);
        epilogue_subtile<0>(Kept{kept}, R, S, P, staging, row, col, thread);
#else
        epilogue_subtile<0>(Kept{d[h]}, R, S, P, staging, row, col, thread);
#endif
      }
#if FOLDS
    const int quarter = threadIdx.x >> 6;   // 64 x 64 of the tile
    __syncthreads();
    subtile_fold<64>(P, folds + quarter * SUBTILE_BYTES, tile.m + (quarter >> 1) * 64, tile.n + (quarter & 1) * 64, threadIdx.x & 63);
#endif
  }
}
