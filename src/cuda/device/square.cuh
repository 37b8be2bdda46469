// square.cuh: a tile of SIDE x SIDE elements, walked over as a row: its columns are first the tile's rows. A
// thread has VEC neighbouring columns of NV neighbouring rows of the tile, 16 threads the whole of these
// rows, so extremes along them stay in half a warp. Values that are stored down the columns are transposed
// through shared memory: the eight rows of a thread are neighbours there.
//
// Each function begins with a barrier, after which nobody reads the old contents of the shared memory.

// Extremes along each row of the tile: eight rows are folded in half a warp, so that lane l has row l % NV of these. And what
// that lane has, for row i.
template <class F> DEV Fold<F> fold_along(Fold<F> (&f)[NV]) {
#pragma unroll
  for (int m = NV / 2; m > 0; m >>= 1)
#pragma unroll
    for (int k = 0; k < m; k++) {
      const bool upper = threadIdx.x & m;
      const float kept = upper ? f[k + m].v : f[k].v, sent = upper ? f[k].v : f[k + m].v;
      f[k].v = F::of(kept, __shfl_xor_sync(~0u, sent, m));
    }
  f[0].across(NV);
  return f[0];
}
DEV float of_line(float own, int i) { return __uint_as_float(__shfl_sync(~0u, __float_as_uint(own), (int)(threadIdx.x & 16) | i)); }
DEV Scale of_line(const Scale &own, int i) { return {of_line(own.by, i), of_line(own.inverse, i)}; }

// Extremes down each column of the tile; every thread ends with those of its own.
template <class F> DEV void fold_down(Fold<F> (&f)[VEC], void *shared) {
  float *const room = (float *)shared;
  const int lane = threadIdx.x, c = lane % 16 * VEC;
  EACH(VEC) f[e].across(16);
  __syncthreads();
  if (lane % 32 < 16)
    EACH(VEC) room[lane / 32 * SIDE + c + e] = f[e].v;
  __syncthreads();
  if (lane < SIDE) {
    Fold<F> all;
    all.v = room[lane];
#pragma unroll
    for (int w = 1; w < LANES / 32; w++) all.take(room[w * SIDE + lane]);
    room[lane] = all.v;
  }
  __syncthreads();
  EACH(VEC) f[e].v = room[c + e];
}

// Elements of one or two bytes that are stored with the tile's rows as neighbours.
template <int T> struct Turned {
  enum { SIZE = Raw<T, VEC>::BYTES / VEC, BYTES = NV * SIZE, WORDS = BYTES / 4 };
  u32 w[NV][VEC * SIZE / 4];
  DEV void take(int i, const float (&v)[VEC]) {
    Raw<T, VEC> r;
    r.put_split(v, 0, 1);
#pragma unroll
    for (int k = 0; k < VEC * SIZE / 4; k++) w[i][k] = r.w[k];
  }
  // Word k of the rows' elements of column e.
  DEV u32 word(int e, int k) const {
    if (SIZE == 2) return __byte_perm(w[2 * k % NV][e / 2 % WORDS], w[(2 * k + 1) % NV][e / 2 % WORDS], e & 1 ? 0x7632 : 0x5410);
    const int from = e & 3 | (4 + (e & 3)) << 4, at = e / 4;
    return __byte_perm(__byte_perm(w[4 * k % NV][at], w[(4 * k + 1) % NV][at], from), __byte_perm(w[(4 * k + 2) % NV][at], w[(4 * k + 3) % NV][at], from),
                       0x5410);
  }
  // Columns of the tile lie `apart` from each other, from `at` on. Where a thread's rows lie among those of a column changes with the
  // column, so that no bank is written twice.
  DEV void leave(void *p, i64 at, i64 apart, u8 *room) const {
    const int own = threadIdx.x % 16, first = threadIdx.x / 16;
    __syncthreads();
    EACH(VEC) {
      u8 *const to = room + ((own * VEC + e) * 16 + (first ^ own)) * BYTES;
      if (SIZE == 1) *(uint2 *)to = make_uint2(word(e, 0), word(e, 1));
      else *(uint4 *)to = make_uint4(word(e, 0), word(e, 1), word(e, 2), word(e, 3));
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < SIDE / 16; k++) {
      const int c = k * 16 + first;
      u8 *const to = (u8 *)p + (at + c * apart + own * NV) * SIZE;
      const u8 *const from = room + (c * 16 + (own ^ c / VEC)) * BYTES;
      if (SIZE == 1) *(uint2 *)to = *(const uint2 *)from;
      else *(uint4 *)to = *(const uint4 *)from;
    }
  }
};
