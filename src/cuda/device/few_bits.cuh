// few_bits.cuh: numbers of 8 and 4 bits as operands of tensor cores, of the 16-bit type HALF, which has all of them.

enum { I4 = U8 + 1, U4 };   // two to a byte

// a*b + c of both halves of words.
DEV u32 halves_fma(u32 a, u32 b, u32 c) {
  u32 r;
  if (HALF == BF16) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  else asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
// What is under the mask, and beside it what `on` has: one instruction, of which the compiler made two.
DEV u32 masked_on(u32 w, u32 mask, u32 on) { u32 r; asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(r) : "r"(w), "r"(mask), "r"(on)); return r; }

// The operands in a word of memory, two in a word: neighbours that are two apart, of 4 bits four: see turned_alike. Integers are digits of
// 128 (bf16) or 1024 (f16) and what is added to them.
template <int T> DEV void decode(u32 w, u32 *to) {
  const u32 one = HALF == BF16 ? 0x3f803f80u : 0x3c003c00u, base = HALF == BF16 ? 0x43004300u : 0x64006400u, minus = 0x80008000u;
  if (T == I4 || T == U4) {
    const u32 less = base | (T == I4 ? 0x00080008u : 0);   // those of i4 are 8 more than the number, with the highest bit turned
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = halves_fma(masked_on(w >> 4 * i, 0x000f000fu, less), one, less ^ minus);
  } else if (T == I8) {   // the lower 7 bits, less the highest: 128 more than 128 is 256, which is 128's next exponent
#pragma unroll
    for (int i = 0; i < 2; i++) to[i] = halves_fma(masked_on(w >> 8 * i, 0x00800080u, base), one ^ minus, masked_on(w >> 8 * i, 0x007f007fu, base));
  } else if (T == U8 || T == E4M3 || T == E5M2) {
    to[0] = pack<HALF>(byte_low<T>(w), byte_low<T>(w >> 16));
    to[1] = pack<HALF>(byte_high<T>(w), byte_high<T>(w >> 16));
  } else {
    to[0] = w;
  }
}
