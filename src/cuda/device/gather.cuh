// gather.cuh: loads the rows of an operand that an index names into the ring of Hopper's product: by
// cp.async, in GATHERERS warps that do nothing else.
//
// The rows of a stage are copied eight at a time, 64 bytes of each by four lanes, so that there are few
// addresses: the time goes into instructions of these warps, which compete with the tensor cores. The groups
// of eight are dealt out to the warps; this is warp g. For rows that do not exist, another row is loaded,
// and its result is not used. A row whose index is outside the axis is zero.
//
// DEPTH_GROUPS: the index names elements of the depth, and a stage has 256 bytes for each of its 64, as two
// slabs. The index is read a stage ahead. Elements after the group's end are zero.
#define DEEP 64        // of a stage
#define AHEAD_ROWS 4   // addresses of rows
#define EIGHTS(n) (((n) + GATHERERS - 1) / GATHERERS)                                        // that a warp has of n
#define HAS_EIGHT(i, g, n) (GATHERERS * ((i) + 1) <= (n) || GATHERERS * (i) + (g) < (n))   // is its eight i one of them
#if DEPTH_GROUPS
struct Gather {
  u32 place[EIGHTS(DEEP / 8)];      // where what is named begins, in 16 bytes
  A_Name next[EIGHTS(DEEP / 8)];    // the names of the next stage
  int begin, size, left;            // the group, and columns from the tile's first on
  bool found;                       // all of a stage, in all lanes
  const u8 *first;
  DEV void read(const Params &P, int k, int g, int lane) {
    const int own = held(k * DEEP + 8 * g + (lane >> 2));
#pragma unroll
    for (int i = 0; i < EIGHTS(DEEP / 8); i++) next[i] = A_name(P, begin + min(own + 8 * GATHERERS * i, size - 1));
  }
  DEV Gather(const Params &P, int m, int g, int lane) {
    begin = group_begin(P, batch_of(P, m));
    size = group_size(P, batch_of(P, m));
    left = BATCH_ROWS - row_in_batch(P, m);
    first = (const u8 *)P.ptr[A_PTR] + A_row(P, row_in_batch(P, m)) * 2 + (lane & 3) * 16;
    if (size) read(P, 0, g, lane);
  }
  DEV void ahead(const Params &P, int k, int g, int lane) {
    bool here = (k + 1) * DEEP <= size && left >= TILE_M;
#pragma unroll
    for (int i = 0; i < EIGHTS(DEEP / 8); i++) {
      place[i] = A_place(P, next[i]);
      here &= place[i] != NOWHERE;
    }
    found = !__any_sync(~0u, !here);
    read(P, k + 1, g, lane);
  }
  DEV void copy(const Params &, u32 a, int k, int g, int lane) const {
    const u8 *from = held(first);
    const int in = lane >> 2, bytes = left * 2 - (lane & 3) * 16, deep = size - k * DEEP - 8 * g - in;
    const u32 to = a + (8 * g + in) * 128 + (((lane & 3) ^ in) << 4), across = to ^ 64;
    auto each = [&](auto &&one) {
      const u8 *at[EIGHTS(DEEP / 8)];   // ahead of the copies: a register is not free before its copy has left
#pragma unroll
      for (int i = 0; i < EIGHTS(DEEP / 8); i++) at[i] = row_at(from, place[i]);
#pragma unroll
      for (int i = 0; i < EIGHTS(DEEP / 8); i++)
        if (HAS_EIGHT(i, g, DEEP / 8))
#pragma unroll
          for (int q = 0; q < TILE_M / 32; q++) one((q & 1 ? across : to) + i * (GATHERERS * 1024) + (q >> 1) * 8192, at[i] + q * 64, q * 64, i);
    };
    if (found) each([&](u32 dst, const u8 *src, int, int) { cp_async<16>(dst, src, 16); });
    else each([&](u32 dst, const u8 *src, int x, int i) {
      const int n = place[i] == NOWHERE || 8 * GATHERERS * i >= deep ? 0 : max(0, min(bytes - x, 16));
      cp_async<16>(dst, n ? src : from, n);
    });
  }
};
#else
struct Gather {
  u32 place[EIGHTS(TILE_M / 8)];   // where the rows begin, in 16 bytes
  bool whole;                      // all rows are there, and found; shuffled, so that all lanes are known to go one way
  int eights;                      // of rows that are there, from its first one on; a whole tile's or half of them, unless FEW
  template <class Row> DEV Gather(const Params &P, Row m, int g, int lane) {
    const int first = operand_row(P, m), last = operand_rows(P, m) - 1, own = held(first + 8 * g + (lane >> 2));
    A_Name name[EIGHTS(TILE_M / 8)];
    bool here = true;
#pragma unroll
    for (int i = 0; i < EIGHTS(TILE_M / 8); i++) name[i] = A_name(P, min(own + 8 * GATHERERS * i, last));
#pragma unroll
    for (int i = 0; i < EIGHTS(TILE_M / 8); i++) {
      place[i] = A_place(P, name[i]);
      here &= place[i] != NOWHERE;
    }
    const int rows = FEW ? min(TILE_M / 8, (last - first + 8) / 8) : last - first >= 64 ? TILE_M / 8 : 8;
    eights = rows - g;
    whole = __shfl_sync(~0u, (int)(!__any_sync(~0u, !here) && rows == TILE_M / 8), 0);
  }
  DEV void ahead(const Params &, int, int, int) const {}
  DEV void copy(const Params &P, u32 a, int k, int g, int lane) const {
    const u8 *from = held((const u8 *)P.ptr[A_PTR] + k * (DEEP * 2) + (lane & 3) * 16);
    const int in = lane >> 2, left = (K_SIZE - k * DEEP) * 2 - (lane & 3) * 16;   // bytes of a row from here on
    const u32 to = a + (8 * g + in) * 128 + (((lane & 3) ^ in) << 4), across = to ^ 64;
    auto each = [&](const bool all, auto &&one) {
      const u8 *at[EIGHTS(TILE_M / 8)];
#pragma unroll
      for (int i = 0; i < EIGHTS(TILE_M / 8); i++) {
        if (i % AHEAD_ROWS == 0)   // some of them, likewise
#pragma unroll
          for (int n = i; n < i + AHEAD_ROWS && n < EIGHTS(TILE_M / 8); n++) at[n] = row_at(from, place[n]);
        if (all || (!FEW && GATHERERS * (i + 1) <= 8) || GATHERERS * i < eights) {
          one(to + i * (GATHERERS * 1024), at[i], 0, i);
          one(across + i * (GATHERERS * 1024), at[i] + 64, 64, i);
        }
      }
    };
    if (whole && k < K_SIZE / DEEP) each(true, [&](u32 dst, const u8 *src, int, int) { cp_async<16>(dst, src, 16); });
    else each(false, [&](u32 dst, const u8 *src, int bytes, int i) {
      const int n = held((int)place[i]) == (int)NOWHERE ? 0 : max(0, min(left - bytes, 16));   // not kept over stages
      cp_async<16>(dst, n ? src : from, n);
    });
  }
};
#endif
