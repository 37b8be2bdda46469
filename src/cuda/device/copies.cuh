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
// A piece is 8 rows of an operand, as deep as a part; 16 pieces are a part, with a mark for every two, and whoever feeds the ring
// looks at them before it asks for the part. Parts are numbered in about the order in which tiles want them. A warp begins with
// the job of its own number and takes the others as they come. What the first two tiles read is copied early, by all warps; the
// rest by those that the epilogue leaves alone. One warp copies nothing: it sees to jobs of blocks that are not running yet, and
// takes the marks away when nobody looks at them any more.
//
// The emitted part says: M_SIZE; BLOCKS: how many there are; COPY_ROOM: bytes of staging; PART_ROWS, PART_DEEP: of a part; COPY_A,
// COPY_B: parts that stand one below the other in an operand that is copied, else 0; A_FIRST, B_FIRST: how many of them the first
// tiles read; ACROSS: whether the next ones read more of A; copied(P, side): where an operand lies, at a multiple of 16 bytes, and its copy.
#define APART (2 * K_SIZE)
#define COPY_PITCH ((APART + 127) / 128 * 128)
#define PIECE_ROWS 8
#define PART_BYTES (2 * PART_DEEP)
#define PIECE_PITCH (PART_BYTES + 16)
#define PIECE_BYTES (PIECE_ROWS * PIECE_PITCH)
#define COPY_COUNT 2   // rows that a warp reads from shared memory before it stores the first
#define PIECES (PART_ROWS / PIECE_ROWS)
#define SLABS ((K_SIZE + PART_DEEP - 1) / PART_DEEP)
#define COPIERS (3 * BLOCKS - 1)   // warps
#define ALL_PARTS ((COPY_A + COPY_B) * SLABS)
#define A_NEXT min(A_FIRST, COPY_A - A_FIRST)
#define B_NEXT min(B_FIRST, COPY_B - B_FIRST)
// A warp's room: that of the last is behind the epilogue's staging, where there is so much.
#define WARP_ROOM (COPY_ROOM / 3)
#define LAST_ROOM (STAGING_BYTES - WARP_ROOM)
// Is it, and are tiles long enough for one warp? Else nothing is late.
#define LATE_APART (BLOCKS > 1 && TILE_N >= 192 && 2 * STAGE_SLOTS * STAGE_BYTES <= LAST_ROOM)
#define TWO_TILES (SLABS * (A_FIRST + B_FIRST + (ACROSS ? (A_NEXT ? A_NEXT : B_NEXT) : B_NEXT ? B_NEXT : A_NEXT)))
#define EARLY_PARTS (LATE_APART ? TWO_TILES : ALL_PARTS)
// A warp takes 2 pieces at once of the first slab, 4 of the next, then 8: the first are waited for. And of the last early parts 4
// and then 2 again, so that all warps end at about the same time. Late ones are 4.
#define SLABS_4 3
#define PARTS_2 (A_FIRST + B_FIRST)
#define PARTS_4 (min(SLABS - 1, SLABS_4) * (A_FIRST + B_FIRST))
#define LAST_2 min(COPIERS / 8, (EARLY_PARTS - PARTS_2 - PARTS_4) / 4)
#define LAST_4 min(COPIERS / 4, (EARLY_PARTS - PARTS_2 - PARTS_4) / 2)
#define PARTS_8 (EARLY_PARTS - PARTS_2 - PARTS_4 - LAST_4 - LAST_2)
// Jobs up to here of 2, 4, 8, 4 and 2 pieces; and late ones.
#define UNTIL_2 (PARTS_2 * (PIECES / 2))
#define UNTIL_4 (UNTIL_2 + PARTS_4 * (PIECES / 4))
#define UNTIL_8 (UNTIL_4 + PARTS_8 * (PIECES / 8))
#define UNTIL_LAST_4 (UNTIL_8 + LAST_4 * (PIECES / 4))
#define EARLY (UNTIL_LAST_4 + LAST_2 * (PIECES / 2))
#define LATE ((ALL_PARTS - EARLY_PARTS) * (PIECES / 4))
#define PATIENCE 100000   // ns until other blocks' first jobs are done for them

static_assert(COPY_ROOM == 6 * PIECE_BYTES, "two pieces for each of three warps");
static_assert(PART_WORDS == PIECES / 2, "a mark for every two pieces");

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
  DEV int marks() const { return PARTS + (((side() ? COPY_A : 0) + row() / PART_ROWS) * SLABS + slab()) * (PIECES / 2); }   // its part's
  DEV int mark() const { return marks() + row() % PART_ROWS / (2 * PIECE_ROWS); }   // a job's first
  // May all of its vectors be read? What lies behind a row is the next one.
  DEV bool whole() const { return rows() + ((slab() + 1) * PART_BYTES + 16 <= APART) > PIECE_ROWS && APART >= PIECE_PITCH; }
};

struct Copies {
  const Params &P;
  DEV u64 *word(int n) const { return (u64 *)P.words + n; }
  DEV Counter counter(int n) const { return Counter{word(n)}; }

  // Part number u: what the first tiles read, slab by slab of the depth; then the rest of the operand that the next ones have
  // more of; then the rest of the other. In either, as much at a time as the first tiles had.
  template <int FIRST, int COUNT> static DEV void at_later(int u, int &block, int &slab) {
    const int done = FIRST + u / max(FIRST * SLABS, 1) * FIRST, left = min(FIRST, COUNT - done);
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
  // What nobody else copies.
  DEV void slowly(const Piece &p, int lane) const {
    const u16 *tensor = (const u16 *)copied(P, p.side()).from;
    u8 *dst = to(p, lane);
    const int at = p.at(lane) / 2;
#pragma unroll 1
    for (int r = 0; r < PIECE_ROWS && r < p.rows() && at < K_SIZE; r++)
      *(uint4 *)(dst + r * COPY_PITCH) = eight_from(tensor, (i64)(p.row() + r) * K_SIZE + at, (i64)(p.side() ? N_SIZE : M_SIZE) * K_SIZE, min(K_SIZE - at, 8));
  }
  // What this warp has copied is there for whoever sees the marks. The fence is dear, and not only for this warp.
  DEV void mark(const Piece &p, int lane) const {
    __syncwarp();
    if (lane < p.count() / 2) word_leave(word(p.mark() + lane), THERE);
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
    } else {   // as far as the operand goes
#pragma unroll 1
      for (int r = 0; r < PIECE_ROWS; r++)
#pragma unroll 1
        for (int v = lane; v < PIECE_PITCH / 16; v += 32) {
          const i64 x = p.rows() * (i64)APART, at = r * APART / 16 * 16 + p.at(v);   // from the piece's first row
          const int there = (int)max(min(x - at, (i64)16), (i64)0);
          cp_async<16>(room + r * PIECE_PITCH + 16 * v, from(p, 0) + (there ? at - p.at(0) : 0), there);
        }
    }
    cp_commit();
  }
  DEV void store(u32 room, const Piece &p, int lane) const {
    __syncwarp();
    u8 *dst = to(p, lane);
    const int rows = COPY_PITCH % PART_BYTES == 0 || p.at(lane) < COPY_PITCH ? p.rows() : 0;
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
        if (u + c < rows) write16(dst + (u + c) * COPY_PITCH, w);
      }
    }
    __syncwarp();
  }
  DEV int take(bool late, int lane) const { return lane ? 0 : counter(late ? LATE_TAKEN : JOBS_TAKEN).take(); }
  static DEV Piece job(int n) {
    n = min(n, EARLY + LATE - 1);
    int many = 1, parts = 0;
    if (n >= EARLY) n -= EARLY, parts = EARLY_PARTS, many = 2;
    else if (n >= UNTIL_LAST_4) n -= UNTIL_LAST_4, parts = EARLY_PARTS - LAST_2;
    else if (n >= UNTIL_8) n -= UNTIL_8, parts = EARLY_PARTS - LAST_2 - LAST_4, many = 2;
    else if (n >= UNTIL_4) n -= UNTIL_4, parts = PARTS_2 + PARTS_4, many = 3;
    else if (n >= UNTIL_2) n -= UNTIL_2, parts = PARTS_2, many = 2;
    const int u = n << many;
    Piece p = piece(parts + u / PIECES, u % PIECES * PIECE_ROWS);
    p.place |= many << 11;
    return p;
  }
  // By warp number n of those that copy, job after job, through `room` for two pieces: while one is turned and stored, the other
  // is on its way. `late_warps` do late jobs, too; where it is 0, this one does not.
  DEV void copy(u32 room, int n, int lane, int late_warps) const {
    bool late = false, fresh = true;   // nothing of the job is on its way
    Piece p = job(n);
    auto number = [&](int drawn) {   // after every job one is taken, and one more for a warp's first late job
      n = (late ? EARLY : COPIERS) + __shfl_sync(~0u, drawn, 0);
      if (lane == 0 && n == (late ? EARLY + LATE + late_warps : COPIERS + EARLY) - 1) counter(late ? LATE_TAKEN : JOBS_TAKEN).end();
    };
#pragma unroll 1
    for (;;) {
      if (n >= (late ? EARLY + LATE : EARLY)) {
        if (late || !LATE || !late_warps) break;
        late = fresh = true;
        if (lane == 0) counter(LATE_TAKEN).begin(LATE + late_warps);
        __syncwarp();
        number(take(late, lane));
        p = job(n);
        continue;
      }
      if (fresh) {
#pragma unroll 1
        for (int h = 0; h < 2; h++) fetch(room + h * PIECE_BYTES, p.below(h), lane);
        if (lane == 0 && !late) counter(JOBS_TAKEN).begin(EARLY);
        __syncwarp();
        fresh = false;
      }
      const int drawn = take(late, lane);
      Piece next = p;
#pragma unroll 1
      for (int h = 0; h < p.count(); h++) {
        const u32 at = room + h % 2 * PIECE_BYTES;
        cp_wait<1>();
        store(at, p.below(h), lane);
        const int over = h + 2 - p.count();   // a piece of the next job comes to its place; or one of this
        if (over == 0) {
          number(drawn);
          next = job(n);
        }
        if (over < 0) fetch(at, p.below(h + 2), lane);
        else if (n < (late ? EARLY + LATE : EARLY)) fetch(at, next.below(over), lane);
        else cp_commit();
      }
      mark(p, lane);
      p = next;
    }
    __syncwarp();
    if (lane == 0) {
      __threadfence();   // this warp's marks are there before it counts: whoever takes them away comes after all of them
      const Counter done = counter(WARPS_DONE);
      done.begin(COPIERS);
      if (done.take() == COPIERS - 1) {
        done.end();
        word_leave(word(ALL_THERE), THERE);
      }
    }
    __syncwarp();
  }
  DEV bool all_there() const { return word_seen(word(ALL_THERE)) == THERE; }
  // By the warp that does not copy.
  DEV void look_after(int lane) const {
    bool late = false;
    if (lane == 0)
      for (const u64 begin = time_now(); !all_there() && !late;) late = time_now() - begin > PATIENCE;
    if (__shfl_sync(~0u, late, 0)) for_others(lane);
    if (lane == 0)
      while (!all_there() || !counter(BLOCKS_DONE).has(BLOCKS)) {}
    __syncwarp();
    for (int i = lane; i < ALL_PARTS * (PIECES / 2); i += 32) *word(PARTS + i) = 0;
    if (lane == 0) {
      *word(ALL_THERE) = 0;
      counter(BLOCKS_DONE).end();
    }
  }
  // The first jobs of blocks that are not running; one that is done twice is no harm. A mark a lane: the launch ends no sooner
  // than this, and late jobs take longer than patience lasts.
  DEV void for_others(int lane) const {
#pragma unroll 1
    for (int n = 0; n < COPIERS && n < EARLY; n += 32) {
      const bool missing = n + lane < COPIERS && n + lane < EARLY && word_seen(word(job(n + lane).mark())) != THERE;
#pragma unroll 1
      for (u32 them = __ballot_sync(~0u, missing); them; them &= them - 1) {
        const Piece p = job(n + __ffs(them) - 1);
#pragma unroll 1
        for (int h = 0; h < p.count(); h++) slowly(p.below(h), lane);
        mark(p, lane);
      }
    }
  }

  // By the warp that asks for operands. After wait() it may have the copy engine read a tile's share of a slab, or all of them.
  // No fence of the GPU comes between a mark and that: it would wait for what this multiprocessor is storing. The copy engine
  // reads the L2 cache, and there everything is that was written before the mark.
  //
  // Of each lane one mark: eight for a part's, of A and of one or two of B; and that of everything.
  DEV u64 look(int m0, int n0, int slab, int lane) const {
    const int side = lane >= 8, b = (side ? n0 : m0) / PART_ROWS + (lane >= 16);
    const bool none = lane >= 24 || b >= (side ? COPY_B : COPY_A) || (lane >= 16 && b > (n0 + TILE_N / CLUSTER - 1) / PART_ROWS);
    return lane < 31 && none ? THERE : word_seen(word(lane < 31 ? Piece(side, b * PART_ROWS, slab).marks() + lane % 8 : ALL_THERE));
  }
  // Answers whether everything is there.
  DEV bool wait(u64 seen, int m0, int n0, int slab, int lane) const {
#pragma unroll 1
    for (;; seen = look(m0, n0, slab, lane)) {
      const u32 missing = __ballot_sync(~0u, seen != THERE);
      if (missing << 1 && missing >> 31) continue;
      fence_copies();
      return !(missing >> 31);
    }
  }
  DEV void begin() const { counter(BLOCKS_DONE).begin(BLOCKS); }
  DEV void end() const { counter(BLOCKS_DONE).take(); }   // it looks at marks no more
};
#endif
