// topk.cuh: the positions of the largest elements of a row, the largest first.
//
// A team of TEAM threads, a warp or the block, has a row. An element is a key, its number above and its
// position below: the larger number, and of equal ones the first, is the larger key, and no two are equal.
// So the next one is the largest key below the last one, and nothing has to be marked. Rows of up to HELD
// elements a thread wait in registers, others are read again.
//
// S has the length of a row, loads its numbers and stores a position: see epi_emit_topk.

// A number as an integer in the same order; NaN is larger than all, and the zeros are equal.
DEV u32 ordered(float x) {
  if (x != x) return ~1u;   // less than all bits, which no key has
  const u32 bits = __float_as_uint(x == 0.f ? 0.f : x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

DEV u64 larger(u64 a, u64 b) { return a > b ? a : b; }

// The largest of all threads' keys.
template <class S> DEV u64 largest(u64 key) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int m = 16; m > 0; m /= 2) {
    const u32 low = __shfl_xor_sync(~0u, (u32)key, m), high = __shfl_xor_sync(~0u, (u32)(key >> 32), m);
    key = larger(key, (u64)high << 32 | low);
  }
  if (S::TEAM == 32) return key;
  __shared__ u64 keys[S::TEAM / 32];
  __syncthreads();
  if (lane == 0) keys[threadIdx.x / 32] = key;
  __syncthreads();
  for (int w = 0; w < S::TEAM / 32; w++) key = larger(key, keys[w]);
  return key;
}

template <class S> DEV void topk(const S &s, const void *from, void *to, i64 row) {
  const int t = threadIdx.x % S::TEAM;
  const i64 at = s.row(row);
  u32 held[S::HELD ? S::HELD : 1];
#pragma unroll
  for (int i = 0; i < S::HELD; i++) {
    const i64 e = t + (i64)i * S::TEAM;
    held[i] = e < s.size() ? ordered(s.value(from, at, e)) : 0;
  }
  const auto key = [&](u32 number, i64 e) { return (u64)number << 32 | (u32)~(u32)e; };
  u64 last = ~(u64)0;
  for (i64 k = 0; k < s.count(); k++) {
    u64 best = 0;
    if (S::HELD) {
#pragma unroll
      for (int i = 0; i < S::HELD; i++) {
        const i64 e = t + (i64)i * S::TEAM;
        const u64 mine = key(held[i], e);
        if (e < s.size() && mine < last) best = larger(best, mine);
      }
    } else {
#pragma unroll 8
      for (i64 e = t; e < s.size(); e += S::TEAM) {
        const u64 mine = key(ordered(s.value(from, at, e)), e);
        if (mine < last) best = larger(best, mine);
      }
    }
    last = largest<S>(best);
    if (t == 0) s.put(to, row, k, (i64)(u32)~(u32)last);
  }
}
