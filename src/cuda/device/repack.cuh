// repack.cuh: copies operands that TMA cannot read, because their rows are not a multiple of 16 bytes, to
// rows that are, before the product.

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
