// copies.cuh: operands that the copy engine cannot take, because their rows are no multiple of 16 bytes: copied to where it
// can, ahead of the product, or by the product itself while it is at work.

// The 16 bytes from byte `off`, even, of 32; they are in the first four words, too.
DEV uint4 turned(u32 (&w)[8], int off) {
#pragma unroll
  for (int i = 0; i < 6; i++) w[i] = off & 8 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; i++) w[i] = off & 4 ? w[i + 1] : w[i];
#pragma unroll
  for (int i = 0; i < 4; i++) w[i] = off & 2 ? __byte_perm(w[i], w[i + 1], 0x5432) : w[i];
  return make_uint4(w[0], w[1], w[2], w[3]);
}

// Eight neighbours from element `at` of a tensor of `total`, all zero from number `count` on: two aligned vectors, turned
// to where the elements start.
DEV uint4 eight_from(const u16 *tensor, i64 at, i64 total, int count) {
  const u8 *p = (const u8 *)(tensor + at), *from = p - ((u64)p & 15);
  const int off = (int)((u64)p & 15);
  u32 w[8];
  if (count >= 8 && from >= (const u8 *)tensor && from + 32 <= (const u8 *)(tensor + total)) {
    once16(w, from);
    if (off) once16(w + 4, from + 16);
    return turned(w, off);
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
    w[i] = (2 * i < count ? tensor[at + 2 * i] : 0u) | (2 * i + 1 < count ? (u32)tensor[at + 2 * i + 1] << 16 : 0u);
  return make_uint4(w[0], w[1], w[2], w[3]);
}

#if COPIES
// By the product: three warps have little to do during a block's first tile, and copy through the staging of an epilogue that
// has not begun.
//
// A piece is 8 rows of an operand, as deep as a part; 16 pieces are a part, which has a counter, and whoever feeds the ring
// looks at it before it asks for the part. Parts are numbered in about the order in which tiles want them, and taken as warps
// come: a block that is not running yet is not waited for.
//
// The emitted part says: M_SIZE; COPY_ROOM: bytes of staging; PART_ROWS, PART_DEEP: of a part; COPY_A, COPY_B: parts that stand
// one below the other in an operand that is copied, else 0; A_FIRST, B_FIRST: how many of them the first tiles read; ACROSS:
// whether the next ones read more of A; copied(P, side): where an operand lies, at a multiple of 16 bytes, and its copy;
// words(P): see Word.
#define APART (2 * K_SIZE)
#define COPY_PITCH ((APART + 127) / 128 * 128)
#define PIECE_ROWS 8
#define PART_BYTES (2 * PART_DEEP)
#define PIECE_PITCH (PART_BYTES + 16)
#define PIECE_BYTES (PIECE_ROWS * PIECE_PITCH)
#define COPY_COUNT 2   // rows that a warp reads from shared memory before it stores the first
#define PIECES (PART_ROWS / PIECE_ROWS)
#define SLABS ((K_SIZE + PART_DEEP - 1) / PART_DEEP)
#define ALL_PARTS ((COPY_A + COPY_B) * SLABS)
// A warp takes 2 pieces at once of the first slabs, 4 of the next, then 8: the first are waited for.
#define SLABS_2 1
#define SLABS_4 3
#define JOBS_2 (min(SLABS, SLABS_2) * (A_FIRST + B_FIRST) * (PIECES / 2))
#define JOBS_4 (min(max(SLABS - SLABS_2, 0), SLABS_4) * (A_FIRST + B_FIRST) * (PIECES / 4))
#define JOBS (JOBS_2 + JOBS_4 + (ALL_PARTS * PIECES - 2 * JOBS_2 - 4 * JOBS_4) / 8)

static_assert(COPY_ROOM == 6 * PIECE_BYTES, "two pieces for each of three warps");

enum Word { TAKEN, DONE, PARTS };   // jobs that are taken, warps that are through, and pieces that are there of every part

struct Piece {
  u32 place;   // one word: registers are few
  DEV Piece(int side, int row, int slab) { place = (u32)row / PIECE_ROWS << 13 | slab << 1 | side; }
  DEV int side() const { return place & 1; }
  DEV int slab() const { return place >> 1 & 1023; }
  DEV int row() const { return (place >> 13) * PIECE_ROWS; }
  DEV Piece below(int n) const { Piece p = *this; p.place += n << 13; return p; }
  DEV int count() const { return 1 << (place >> 11 & 3); }   // of a job that starts with it
  DEV int rows() const { return (side() ? N_SIZE : M_SIZE) - row(); }   // from here to the operand's end
  DEV int at(int lane) const { return slab() * PART_BYTES + 16 * lane; }
  DEV int part() const { return PARTS + ((side() ? COPY_A : 0) + row() / PART_ROWS) * SLABS + slab(); }   // its word
  // May all of its vectors be read? What lies behind a row is the next one.
  DEV bool whole() const { return rows() > PIECE_ROWS && APART >= PIECE_PITCH; }
};

struct Copies {
  const Params &P;

  // Part number u: what the first tiles read, slab by slab of the depth; then the rest of the operand that the next ones have
  // more of; then the rest of the other. In either, as much at a time as the first tiles had.
  template <int FIRST, int BLOCKS> static DEV void at_later(int u, int &block, int &slab) {
    const int done = FIRST + u / max(FIRST * SLABS, 1) * FIRST, left = min(FIRST, BLOCKS - done);
    u %= max(FIRST * SLABS, 1);
    slab = left == FIRST ? u / max(FIRST, 1) : u / left;
    block = done + u - slab * left;
  }
  static DEV Piece piece(int u, int row) {
    const int rest_a = SLABS * (COPY_A - A_FIRST), rest_b = SLABS * (COPY_B - B_FIRST), later = u - SLABS * (A_FIRST + B_FIRST);
    int side, block, slab;
    if (later < 0) {
      slab = u / (A_FIRST + B_FIRST);
      block = u % (A_FIRST + B_FIRST);
      side = block >= A_FIRST;
      block -= side ? A_FIRST : 0;
    } else {
      side = ACROSS ? later >= rest_a : later < rest_b;
      if (side) at_later<B_FIRST, COPY_B>(ACROSS ? later - rest_a : later, block, slab);
      else at_later<A_FIRST, COPY_A>(ACROSS ? later : later - rest_b, block, slab);
    }
    return Piece(side, block * PART_ROWS + row, slab);
  }
  DEV const u8 *from(const Piece &p, int lane) const { return copied(P, p.side()).from + ((i64)p.row() * APART + p.at(lane)); }
  DEV u8 *to(const Piece &p, int lane) const { return copied(P, p.side()).to + ((i64)p.row() * COPY_PITCH + p.at(lane)); }
  // The last rows of an operand.
  DEV void slowly(const Piece &p, int lane) const {
    const u16 *tensor = (const u16 *)copied(P, p.side()).from;
    u8 *dst = to(p, lane);
    const int at = p.at(lane) / 2;
#pragma unroll 1
    for (int r = 0; r < PIECE_ROWS && r < p.rows() && at < K_SIZE; r++)
      *(uint4 *)(dst + r * COPY_PITCH) = eight_from(tensor, (i64)(p.row() + r) * K_SIZE + at, (i64)(p.side() ? N_SIZE : M_SIZE) * K_SIZE, min(K_SIZE - at, 8));
  }
  // What this warp has copied is there for whoever sees the number. The fence is dear, and not only for this warp.
  DEV void count(int word, int n, int lane) const {
    __syncwarp();
    if (lane == 0) count_up(words(P) + word, n);
  }

  // Brings a piece: of each row the 33 vectors that it touches.
  DEV void fetch(u32 room, const Piece &p, int lane) const {
    if (p.whole()) {
      const u8 *src = from(p, lane);
#pragma unroll
      for (int r = 0; r < PIECE_ROWS; r++) cp_async_once(room + r * PIECE_PITCH + 16 * lane, src + (r * APART - (r * APART & 15)));
      if (lane < PIECE_ROWS) {
        const int x = lane * APART;
        cp_async_once(room + lane * PIECE_PITCH + PART_BYTES, src + (PART_BYTES - 16 * lane + x - (x & 15)));
      }
    }
    cp_commit();
  }
  DEV void store(u32 room, const Piece &p, int lane) const {
    __syncwarp();
    if (p.whole()) {
      u8 *dst = to(p, lane);
#pragma unroll
      for (int u = 0; u < PIECE_ROWS; u += COPY_COUNT) {
        uint4 v[COPY_COUNT][2];
#pragma unroll
        for (int c = 0; c < COPY_COUNT; c++) {
          v[c][0] = lds128(room + (u + c) * PIECE_PITCH + 16 * lane);
          if ((u + c) * APART & 15) v[c][1] = lds128(room + (u + c) * PIECE_PITCH + 16 * lane + 16);
        }
        __syncwarp();   // else the compiler reads them one by one
#pragma unroll
        for (int c = 0; c < COPY_COUNT; c++) {
          u32 w[8] = {v[c][0].x, v[c][0].y, v[c][0].z, v[c][0].w, v[c][1].x, v[c][1].y, v[c][1].z, v[c][1].w};
          turned(w, (u + c) * APART & 15);
          if (COPY_PITCH % PART_BYTES == 0 || p.at(lane) < COPY_PITCH) write16(dst + (u + c) * COPY_PITCH, w);
        }
      }
    } else slowly(p, lane);
    __syncwarp();
  }
  DEV int take(int lane) const { return lane ? 0 : take_number(words(P) + TAKEN); }
  static DEV Piece job(int n) {
    n = min(n, JOBS - 1);
    const int many = n < JOBS_2 ? 1 : n < JOBS_2 + JOBS_4 ? 2 : 3;
    const int u = many == 1 ? 2 * n : many == 2 ? 2 * JOBS_2 + 4 * (n - JOBS_2) : 2 * JOBS_2 + 4 * JOBS_4 + 8 * (n - JOBS_2 - JOBS_4);
    Piece p = piece(u / PIECES, u % PIECES * PIECE_ROWS);
    p.place |= many << 11;
    return p;
  }
  // By one warp, job after job, through `room` for two pieces: while one is turned and stored, the other is on its way.
  DEV void copy(u32 room, int lane) const {
    int n = __shfl_sync(~0u, take(lane), 0);
    Piece p = job(n);
    if (n < JOBS) {
      fetch(room, p, lane);
      fetch(room + PIECE_BYTES, p.below(1), lane);
    }
#pragma unroll 1
    while (n < JOBS) {
      const int drawn = take(lane);
      Piece next = p;
#pragma unroll 1
      for (int h = 0; h < p.count(); h++) {
        const u32 at = room + h % 2 * PIECE_BYTES;
        cp_wait<1>();
        store(at, p.below(h), lane);
        const int over = h + 2 - p.count();   // a piece of the next job comes to its place; or one of this
        if (over == 0) {
          n = __shfl_sync(~0u, drawn, 0);
          next = job(n);
        }
        if (over < 0) fetch(at, p.below(h + 2), lane);
        else if (n < JOBS) fetch(at, next.below(over), lane);
        else cp_commit();
      }
      count(p.part(), p.count(), lane);
      p = next;
    }
    count(DONE, 1, lane);
  }

  // Whoever knows that copies are there may have the copy engine read them: all of them; or, when wait() is through, a tile's
  // share of a slab.
  DEV bool all() const {
    const bool yes = count_seen(words(P) + DONE) == 3 * gridDim.x;
    fence_copies();
    return yes;
  }
  DEV void wait(int m0, int n0, int slab) const {
    if (COPY_A) wait(0, m0, PART_ROWS, slab);
    if (COPY_B) wait(1, n0, TILE_N / CLUSTER, slab);
    fence_copies();
  }
  DEV void wait(int side, int r0, int rows, int slab) const {
#pragma unroll 1
    for (int b = r0 / PART_ROWS; b <= (r0 + rows - 1) / PART_ROWS && b < (side ? COPY_B : COPY_A); b++) {
      const u32 *part = words(P) + Piece(side, b * PART_ROWS, slab).part();
      while (count_seen(part) != PIECES) {}
    }
  }
};
#endif
