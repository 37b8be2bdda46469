// gather.cuh: rows of an operand that an index names, on their way into the ring of Hopper's product: by cp.async, of a warp that does
// nothing else.
//
// A stage's rows are copied eight at a time, 64 bytes of each by four lanes, so that there are few addresses: instructions of a warp
// beside the tensor cores are what takes its time. In the place of rows that are not there another comes, and nobody wants what becomes
// of it. A row that the index finds nowhere is zero.
//
// DEPTH_GROUPS: what is named is the depth, and a stage has 256 bytes of each of its 64, as two slabs. The index is read a stage ahead;
// what lies behind the group's end is zero.
#define NOWHERE 0xffffffffu
#define DEEP 64   // of a stage
#if DEPTH_GROUPS
struct Gather {
  u32 place[DEEP / 8], next[DEEP / 32];  // where what is named begins, in 16 bytes; of the next stage, each by one lane
  int begin, end, left;                  // the group, and columns from the tile's first on
  bool found, all;                       // all of a stage, in all lanes
  const u8 *first;
  DEV void read(const Params &P, int k, int lane) {
    bool here = begin + (k + 1) * DEEP <= end && left >= TILE_M;
#pragma unroll
    for (int i = 0; i < DEEP / 32; i++) {
      const int slot = begin + k * DEEP + 32 * i + lane;
      const i64 at = slot < end ? A_depth(P, slot) : -1;
      next[i] = at < 0 ? NOWHERE : (u32)(at >> 3);
      here &= at >= 0;
    }
    all = !__any_sync(~0u, !here);
  }
  DEV Gather(const Params &P, int m, int lane) {
    begin = group_begin(P, batch_of(P, m));
    end = begin + group_size(P, batch_of(P, m));
    left = BATCH_ROWS - row_in_batch(P, m);
    first = (const u8 *)P.ptr[A_PTR] + A_row(P, row_in_batch(P, m)) * 2 + (lane & 3) * 16;
    read(P, 0, lane);
  }
  DEV void ahead(const Params &P, int k, int lane) {
#pragma unroll
    for (int i = 0; i < DEEP / 8; i++) place[i] = __shfl_sync(~0u, next[i / 4], (8 * i + (lane >> 2)) & 31);
    found = all;
    read(P, k + 1, lane);
  }
  DEV void copy(const Params &P, u32 a, u32 bar, int k, int lane) const {
    const u8 *from = held(first);
    const int in = lane >> 2, bytes = left * 2 - (lane & 3) * 16;
    const u32 to = a + in * 128 + (((lane & 3) ^ in) << 4), across = to ^ 64;
    auto each = [&](auto &&one) {
#pragma unroll
      for (int i = 0; i < DEEP / 8; i++) {
        const u8 *at = row_at(from, place[i]);
#pragma unroll
        for (int q = 0; q < TILE_M / 32; q++) one((q & 1 ? across : to) + i * 1024 + (q >> 1) * 8192, at + q * 64, q * 64, i);
      }
    };
    if (found) each([&](u32 dst, const u8 *src, int, int) { cp_async<16>(dst, src, 16); });
    else each([&](u32 dst, const u8 *src, int x, int i) {
      const int n = place[i] == NOWHERE ? 0 : max(0, min(bytes - x, 16));
      cp_async<16>(dst, n ? src : from, n);
    });
    copies_arrive(bar);
  }
};
#else
struct Gather {
  u32 place[TILE_M / 8];   // where the rows begin, in 16 bytes
  bool found;              // all of them are there, in all lanes
  int eights;              // of rows that are there
  DEV Gather(const Params &P, int m, int lane) {
    const int first = operand_row(P, m), last = operand_rows(P, m) - 1;
    eights = max(0, min(TILE_M / 8, (last - first + 8) / 8));
    bool here = eights == TILE_M / 8;
    u32 found_by[TILE_M / 32];   // each by one lane: the index takes many instructions
#pragma unroll
    for (int i = 0; i < TILE_M / 32; i++) {
      const i64 at = A_row(P, min(first + 32 * i + lane, last));
      found_by[i] = at < 0 ? NOWHERE : (u32)(at >> 3);
      here &= at >= 0;
    }
#pragma unroll
    for (int i = 0; i < TILE_M / 8; i++) place[i] = __shfl_sync(~0u, found_by[i / 4], (8 * i + (lane >> 2)) & 31);
    found = !__any_sync(~0u, !here);
  }
  DEV void ahead(const Params &, int, int) const {}
  // Stage k of the depth, whose mbarrier hears of it when it is there.
  DEV void copy(const Params &P, u32 a, u32 bar, int k, int lane) const {
    const u8 *from = held((const u8 *)P.ptr[A_PTR] + k * (DEEP * 2) + (lane & 3) * 16);
    const int in = lane >> 2, left = (K_SIZE - k * DEEP) * 2 - (lane & 3) * 16;   // bytes of a row from here on
    const u32 to = a + in * 128 + (((lane & 3) ^ in) << 4), across = to ^ 64;
    auto rows = [&](int count, auto &&one) {
#pragma unroll
      for (int i = 0; i < TILE_M / 8; i++)
        if (i < count) {
          const u8 *at = row_at(from, place[i]);
          one(to + i * 1024, at, 0, i);
          one(across + i * 1024, at + 64, 64, i);
        }
    };
    if (found && k < K_SIZE / DEEP) rows(TILE_M / 8, [&](u32 dst, const u8 *src, int, int) { cp_async<16>(dst, src, 16); });
    else rows(eights, [&](u32 dst, const u8 *src, int bytes, int i) {
      const int n = place[i] == NOWHERE ? 0 : max(0, min(left - bytes, 16));
      cp_async<16>(dst, n ? src : from, n);
    });
    copies_arrive(bar);
  }
};
#endif
