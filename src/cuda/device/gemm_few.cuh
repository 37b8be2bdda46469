// gemm_few.cuh: the product of few rows with few-bit weights, which are converted as they are loaded: bytes
// become operands of mma.sync in registers, and the scales multiply the sum of a group.
//
// A block has TILE_N columns, TILE_COLS of each product, and up to TILE_M rows; its warps share the depth, a
// step each in turn, and add up their sums at the end. Weights are mma's first operand, 16 columns of the
// product at a time, and the rows are its second, 8 at a time: lane 4g + q has columns g and g + 8, and row
// g. An mma may multiply any part of the depth, as long as both operands agree. The four lanes of a column
// have B_LOADED bytes each of a step, in one run of neighbours for each of the step's STEP_GROUPS groups. So
// an mma belongs to one group.
//
// All few-bit numbers are exact in HALF, so the tensor cores' products are exact, and the sums of a group
// are f32:
//   d += scale * (sum of x*q - zero * sum of x) + offset * sum of x
//
// The emitted part defines, besides what gemm_sm90.cuh lists for an epilogue without staged tiles, of one subtile:
//   A_row(P, r), A_PTR                      where a row begins; its depth is one run of neighbours
//   B_TYPE, B_BITS, B_LOADED, STEP_GROUPS   what weights are
//   weights_at(P, product, n)               where those of a column begin, likewise
//   ROWS_SHARED                             is there room for all rows in shared memory, behind the stages
//   WARPS, TEAMS                            that share a tile, and such teams of a block: where tiles are many, two on a multiprocessor have as many
//                                           as two on another, which two blocks that came when there was room would not
//   RESIDENT                                blocks on a multiprocessor
//   SCALES, ZEROS, OFFSETS                  are there such, and scale_at(P, product, n): where those of a column begin;
//                                           scale_byte: its last two bits; scale_deep(P, product, k): how far on, in bytes; SCALE_TYPE; of zero and offset likewise

#define RUN_BYTES (B_LOADED / STEP_GROUPS)      // of a lane: what it has of a group and a column,
#define RUN (RUN_BYTES * 8 / B_BITS)
#define GROUP (4 * RUN)                         // and its four lanes
#define STEP (STEP_GROUPS * GROUP)
#define STEPS (K_SIZE / STEP)
#define PAIRS (RUN / 2)                         // words of two operands
#define MT (TILE_N / 16)
#define NT (TILE_M / 8)
#define SUMS_X (ZEROS || OFFSETS)               // are the sums of x wanted
#define APART (SCALES || SUMS_X)                // are sums of a group by themselves
static_assert(PAIRS % 2 == 0 && TILE_M % 8 == 0 && TILE_COLS % 16 == 0, "whole tiles of mma.sync");
#define BESIDE_LAST 2                           // of P.queue, as in order.cuh
#define BESIDE_NEXT 4
#define WEIGHTS_THERE 16                        // no launch that may still run makes them

// ---- rows in the order of few_bits.cuh

// A row's operands in the order in which decode leaves those of the weights.
template <int T, int N> DEV void turned_alike(u32 (&x)[N]) {
  const int apart = T == I4 || T == U4 ? 2 : T < E4M3 ? 0 : 1;   // words between neighbours
#pragma unroll
  for (int i = 0; i < N && apart; i += 2 * apart) {
    u32 of[4];
#pragma unroll
    for (int j = 0; j < 2 * apart; j++) of[j] = x[(i + j) % N];
#pragma unroll
    for (int j = 0; j < apart; j++) {
      x[(i + 2 * j) % N] = __byte_perm(of[j], of[j + apart], 0x5410);
      x[(i + 2 * j + 1) % N] = __byte_perm(of[j], of[j + apart], 0x7632);
    }
  }
}

// So many neighbouring words.
template <int N> DEV void load_words(u32 (&w)[N], const void *from) {
  if (N == 1) w[0] = fetch((const u32 *)from);
  if (N == 2) {
    const uint2 v = fetch((const uint2 *)from);
    w[0] = v.x; w[1 % N] = v.y;
  }
#pragma unroll
  for (int i = 0; i + 4 <= N; i += 4) {
    const uint4 v = fetch((const uint4 *)from + i / 4);
    w[i] = v.x; w[(i + 1) % N] = v.y; w[(i + 2) % N] = v.z; w[(i + 3) % N] = v.w;
  }
}

// The same in shared memory.
template <int N> DEV void lds_words(u32 (&w)[N], u32 from) {
  if (N == 1) w[0] = lds32(from);
  if (N == 2) {
    const uint2 v = lds64(from);
    w[0] = v.x; w[1 % N] = v.y;
  }
#pragma unroll
  for (int i = 0; i + 4 <= N; i += 4) {
    const uint4 v = lds128(from + 4 * i);
    w[i] = v.x; w[(i + 1) % N] = v.y; w[(i + 2) % N] = v.z; w[(i + 3) % N] = v.w;
  }
}

// ---- a step

struct Tile {
  int m, n;   // its first row, and its first column of each product
  DEV Tile(int number, int down) {   // tiles of the same columns follow each other
    m = number % down * TILE_M;
    n = number / down * TILE_COLS;
  }
  // Of the tile's columns number c, one that is there: no result comes of the others.
  static DEV int product(int c) { return c / TILE_COLS; }
  DEV int column(int c) const { return min(n + c % TILE_COLS, N_SIZE - 1); }
};

DEV int lane_depth(int step, int group) { return step * STEP + group * GROUP + (threadIdx.x & 3) * RUN; }   // where a lane's run begins

// A lane's of the rows, zeros where there is none: from shared memory, where there is room for all rows (ROWS_SHARED); else from memory.
struct RowStep {
  u32 x[NT][STEP_GROUPS][PAIRS];
  DEV void load(const Params &P, const Tile &tile, int step, u32 room) {
#pragma unroll
    for (int j = 0; j < NT; j++) {
      const int row = tile.m + 8 * j + (threadIdx.x >> 2 & 7);
#pragma unroll
      for (int i = 0; i < STEP_GROUPS * PAIRS; i++) x[j][i / PAIRS][i % PAIRS] = 0;
      if (row >= (int)P.M) continue;
#pragma unroll
      for (int i = 0; i < STEP_GROUPS; i++)
        if (ROWS_SHARED) lds_words(x[j][i], room + 2 * (row * K_SIZE + lane_depth(step, i)));
        else load_words(x[j][i], (const u16 *)P.ptr[A_PTR] + A_row(P, row) + lane_depth(step, i));
    }
  }
};

// And of the weights, on their way from memory to registers through a stage in shared memory, so that many steps can be: there a column's bytes
// lie as in memory. The four lanes of a column copy 16 bytes each, whichever they have later. Parts are the same for them: each copies those of every
// fourth, 4 bytes that have the element.
#define COLUMNS (2 * MT)   // that a lane has
#define PARTS (SCALES + ZEROS + OFFSETS)
#define PART_BYTES (STEP_GROUPS * 8 * COLUMNS * 4)
#define STEP_BYTES (COLUMNS * 32 * B_LOADED + PARTS * PART_BYTES)

// DO(number, name, TYPE) of each part there is.
#if SCALES
#define EACH_SCALE(DO) DO(0, scale, SCALE_TYPE)
#else
#define EACH_SCALE(DO)
#endif
#if ZEROS
#define EACH_ZERO(DO) DO(SCALES, zero, ZERO_TYPE)
#else
#define EACH_ZERO(DO)
#endif
#if OFFSETS
#define EACH_OFFSET(DO) DO(SCALES + ZEROS, offset, OFFSET_TYPE)
#else
#define EACH_OFFSET(DO)
#endif
#define EACH_PART(DO) EACH_SCALE(DO) EACH_ZERO(DO) EACH_OFFSET(DO)

template <int T> DEV constexpr int size_of_type() { return T == F32 || T == I32 ? 4 : T >= E4M3 ? 1 : 2; }
// The element that begins at this byte of a word.
template <int T> DEV float element(u32 w, u32 byte) {
  const u32 x = size_of_type<T>() == 4 ? w : w >> 8 * (byte & 3);
  if (T == F32) return __uint_as_float(x);
  if (T == I32) return (float)(int)x;
  return T >= E4M3 ? byte_low<T>(x) : low<T>(x);
}

// Where a lane reads of a tile: column c of its own is 8c + g of the tile. Its parts are those of columns QUARTER apart.
#define QUARTER ((COLUMNS + 3) / 4)
struct Sources {
  const u8 *w[COLUMNS], *part[PARTS + 1][QUARTER];
  static DEV int part_column(int u) { return (4 * u + (threadIdx.x & 3)) % COLUMNS; }
  DEV void aim(const Params &P, const Tile &tile) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
      w[c] = weights_at(P, Tile::product(8 * c), tile.column(8 * c + (lane >> 2))) + (lane & 3) * B_LOADED;
#pragma unroll
    for (int u = 0; u < QUARTER; u++) {
      const int of = 8 * part_column(u), product = Tile::product(of), n = tile.column(of + (lane >> 2));
      (void)product; (void)n;
#define AIM_PART(number, name, TYPE) part[number][u] = name##_at(P, product, n);
      EACH_PART(AIM_PART)
    }
  }
  DEV void start(const Params &P, int step, u32 place) const {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) cp_async<B_LOADED>(place + (c * 32 + lane) * B_LOADED, w[c] + (u32)(step * (4 * B_LOADED)), B_LOADED);
#pragma unroll
    for (int u = 0; u < (STEP_GROUPS * COLUMNS + 3) / 4; u++) {
      const int at = 4 * u + (lane & 3), group = at / COLUMNS, product = Tile::product(8 * part_column(u));
      const u32 to = place + COLUMNS * 32 * B_LOADED + ((lane >> 2) * (STEP_GROUPS * COLUMNS) + at) * 4;
      (void)group; (void)product; (void)to;
#define COPY_PART(number, name, TYPE) { \
        const u8 *from = part[number][u % QUARTER] + name##_deep(P, product, step * STEP + group * GROUP); \
        const int off = (int)((u64)from & 3); \
        if (at < STEP_GROUPS * COLUMNS) cp_async<4>(to + (number) * PART_BYTES, from - off, off + size_of_type<TYPE>()); \
      }
      EACH_PART(COPY_PART)
    }
  }
};

// A lane's of a group of a step.
struct Step {
  u32 w[MT][2][RUN_BYTES / 4];
  float scale[MT][2], zero[MT][2], offset[MT][2];
  DEV Step(const Params &P, const Tile &tile, int step, int group, u32 place) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
      lds_words(w[c / 2][c % 2], place + (c * 8 + (lane >> 2)) * (4 * B_LOADED) + (group * 4 + (lane & 3)) * RUN_BYTES);
      const int product = Tile::product(8 * c), n = tile.column(8 * c + (lane >> 2));
      (void)product; (void)n;
#define TAKE_PART(number, name, TYPE) \
      name[c / 2][c % 2] = element<TYPE>(lds32(place + COLUMNS * 32 * B_LOADED + (number) * PART_BYTES + (((lane >> 2) * STEP_GROUPS + group) * COLUMNS + c) * 4), \
                                         name##_byte(P, product, n) + (u32)name##_deep(P, product, step * STEP + group * GROUP));
      EACH_PART(TAKE_PART)
    }
  }
  DEV void multiply(float (&d)[MT][NT][4], RowStep &rows, int group) const {
    float sums[NT][4];
    (void)sums;
#pragma unroll
    for (int j = 0; j < NT; j++) {
      u32 (&x)[PAIRS] = rows.x[j][group];
      if (!ROWS_SHARED) turned_alike<B_TYPE>(x);   // else they lie so
      if (SUMS_X) {
        const u32 one = HALF == BF16 ? 0x3f803f80u : 0x3c003c00u, ones[4] = {one, one, one, one};
#pragma unroll
        for (int e = 0; e < 4; e++) sums[j][e] = 0.f;
#pragma unroll
        for (int i = 0; i < PAIRS; i += 2) mma(sums[j], ones, x[i], x[i + 1]);
      }
    }
#pragma unroll
    for (int i = 0; i < MT; i++) {
      u32 made[2][PAIRS];
      const int each = PAIRS * 4 / RUN_BYTES;   // words made of one
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int c = 0; c < RUN_BYTES / 4; c++) decode<B_TYPE>(w[i][h][c], made[h] + c * each);
#pragma unroll
      for (int j = 0; j < NT; j++) {
        const u32 (&x)[PAIRS] = rows.x[j][group];
        float part[4] = {0.f, 0.f, 0.f, 0.f}, other[4] = {0.f, 0.f, 0.f, 0.f};   // two, that do not wait for each other
#pragma unroll
        for (int c = 0; c < PAIRS; c += 2) {
          const u32 a[4] = {made[0][c], made[1][c], made[0][c + 1], made[1][c + 1]};
          mma(c & 2 ? other : APART ? part : d[i][j], a, x[c], x[c + 1]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
          float v = part[e] + other[e];
          if (ZEROS) v = __fmaf_rn(-zero[i][e >> 1], sums[j][e], v);
          d[i][j][e] = SCALES ? __fmaf_rn(scale[i][e >> 1], v, d[i][j][e]) : d[i][j][e] + v;
          if (OFFSETS) d[i][j][e] = __fmaf_rn(offset[i][e >> 1], sums[j][e], d[i][j][e]);
        }
      }
    }
  }
};

// ---- tiles

// The sums of a tile in shared memory, as the epilogue counts them: fragment f, cell i (row + 8*(i & 1), columns + 8*(i >> 1)), element e.
struct Summed {
  float d[PRODUCTS * TILE_COLS / 2];
  DEV float operator()(int f, int i, int e) const { return d[f * 8 + (i >> 1) * 4 + (i & 1) * 2 + e]; }
};

DEV void before_packing_of(const Rows &R, int i, float &a, float &b) {
#if PRODUCTS > 1
  if (i >= TILE_COLS / 4) {
    before_packing_pair(R, i, a, b);
    return;
  }
#endif
  before_packing(R, i, a, b);
}

// A warp's: 16 rows and all columns.
DEV void finish(const Params &P, const Tile &tile, Rows &R, const float (&total)[TILE_N][TILE_M + 1]) {
  const int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
  Summed t;
  Sums S;
#pragma unroll
  for (int f = 0; f < TILE_N / 16; f++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int at = f * 8 + (i >> 1) * 4 + (i & 1) * 2, c = 16 * f + 8 * (i >> 1) + 2 * q, r = g + 8 * (i & 1);
      float a = r < TILE_M ? total[c][r % TILE_M] : 0.f, b = r < TILE_M ? total[c + 1][r % TILE_M] : 0.f;
#if PACKED
      before_packing_of(R, at / 2, a, b);
      a = rounded<HALF>(a);
      b = rounded<HALF>(b);
#endif
      t.d[at] = a;
      t.d[at + 1] = b;
    }
  epilogue_subtile<0>(t, R, S, P, 0, tile.m + g, tile.n, lane);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS * TEAMS, RESIDENT) NAME(const __grid_constant__ Params P) {
  __shared__ float parts[TEAMS][WARPS][MT * NT * 4][32], total[TEAMS][TILE_N][TILE_M + 1];
  const int thread = threadIdx.x % (32 * WARPS), team = threadIdx.x / (32 * WARPS), lane = thread & 31, warp = thread >> 5;
  const int down = ((int)P.M + TILE_M - 1) / TILE_M, tiles = down * ((N_SIZE + TILE_COLS - 1) / TILE_COLS);
  if (!(P.queue & BESIDE_NEXT)) dependency_start();
  // A warp's steps of a tile are warp, warp + WARPS and so on: STAGES - 1 of them, of this tile and the next, are on their way while one is
  // multiplied. A lane's copies are committed as one group a step, empty ones too, so that cp_wait<STAGES - 2> always means the step that comes
  // next. Rows come from shared memory, or from caches one step ahead.
  extern __shared__ __align__(1024) u8 memory[];
  const u32 stride = TEAMS * WARPS * STEP_BYTES, ring = smem_u32(memory) + (threadIdx.x >> 5) * STEP_BYTES;
  const u32 room = smem_u32(memory) + STAGES * stride;   // the rows'
  int stage = 0;   // that is read next
  RowStep rows;
  Sources from;
  int next = blockIdx.x + team * gridDim.x, ahead = warp;   // the tile and the step that are asked for next
  auto start = [&](int at) {
    if (next < tiles && ahead < STEPS) {
      if (ahead == warp) from.aim(P, Tile(next, down));
      from.start(P, ahead, ring + (at < STAGES ? at : at - STAGES) * stride);
      ahead += WARPS;
      if (ahead >= STEPS) {
        next += TEAMS * gridDim.x;
        ahead = warp;
      }
    }
    cp_commit();
  };
  auto fill = [&] {
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) start(s);
  };
  // The kernel ahead may still be at work: until it has ended, first weights come to the ring, where they are there; else to the L2 cache, which is
  // right even where that kernel makes them.
  int w = next;
  const bool early = P.queue & (BESIDE_LAST | WEIGHTS_THERE);
  if (early) fill();
  for (int u = thread; u < TILE_N * AHEAD_LINES && w < tiles && !early; u += 32 * WARPS) {
    const Tile tile(w, down);
    const int c = u / AHEAD_LINES;
    prefetch(weights_at(P, Tile::product(c), tile.column(c)) + u % AHEAD_LINES * 128);
  }
  if (!(P.queue & BESIDE_LAST)) dependency_wait();
  if (P.queue & BESIDE_NEXT) dependency_start();
  if (!early) fill();
#if ROWS_SHARED
  const int all = (int)P.M * (K_SIZE / 8), at_once = 4, threads = 32 * WARPS * TEAMS;   // loads that wait for memory together
  for (int first = threadIdx.x; first < all; first += at_once * threads) {
    u32 v[at_once][4];
#pragma unroll
    for (int i = 0; i < at_once; i++) {
      const int u = min(first + i * threads, all - 1);
      load_words(v[i], (const u16 *)P.ptr[A_PTR] + A_row(P, u / (K_SIZE / 8)) + u % (K_SIZE / 8) * 8);
    }
#pragma unroll
    for (int i = 0; i < at_once; i++) {
      const int u = first + i * threads;
      turned_alike<B_TYPE>(v[i]);
      if (u < all) sts128(room + 16 * u, v[i][0], v[i][1], v[i][2], v[i][3]);
    }
  }
  __syncthreads();
#endif
#pragma unroll 1
  for (; w < tiles; w += TEAMS * gridDim.x) {
    const Tile tile(w, down);
    Rows R;   // of the warp that finishes: loaded while it multiplies
    if (warp == 0) rows_load(R, P, tile.m + (lane >> 2));
    if (warp < STEPS && !ROWS_SHARED) rows.load(P, tile, warp, room);
    float d[MT][NT][4];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
      for (int j = 0; j < NT; j++) d[i][j][0] = d[i][j][1] = d[i][j][2] = d[i][j][3] = 0.f;
#pragma unroll 1
    for (int step = warp; step < STEPS; step += WARPS) {
      cp_wait<STAGES - 2>();
      __syncwarp();   // lanes have each other's parts, and have read those of the stage before, which is filled next
      start(stage + STAGES - 1);
      if (ROWS_SHARED) rows.load(P, tile, step, room);
      RowStep of = rows;
      if (step + WARPS < STEPS && !ROWS_SHARED) rows.load(P, tile, step + WARPS, room);
#pragma unroll
      for (int group = 0; group < STEP_GROUPS; group++) Step(P, tile, step, group, ring + stage * stride).multiply(d, of, group);
      stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    // Warps leave what they have; a thread adds up the same element of all of them, in their order. Who reads `total`, the first warp, is past
    // it when it comes to the first of the next tile's barriers.
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
      for (int j = 0; j < NT; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) parts[team][warp][(i * NT + j) * 4 + e][lane] = d[i][j][e];
    bar_sync(1 + team, 32 * WARPS);
    for (int u = thread; u < MT * NT * 4 * 32; u += 32 * WARPS) {
      float sum = 0.f;
#pragma unroll
      for (int v = 0; v < WARPS; v++) sum += parts[team][v][u / 32][u % 32];
      const int of = u % 32, e = u / 32 % 4, j = u / 128 % NT, i = u / 128 / NT;
      total[team][16 * i + 8 * (e >> 1) + (of >> 2)][8 * j + 2 * (of & 3) + (e & 1)] = sum;
    }
    bar_sync(1 + team, 32 * WARPS);
    if (warp == 0) finish(P, tile, R, total[team]);
  }
  if (P.queue & BESIDE_LAST) dependency_wait();
}
