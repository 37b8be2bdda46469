// random.cuh: Philox4x32-10; the same numbers as src/base/philox.h.
DEV void philox(u64 counter, u32 seed, u32 (&c)[4]) {
  u32 key0 = seed, key1 = 0;
  c[0] = (u32)counter;
  c[1] = (u32)(counter >> 32);
  c[2] = c[3] = 0;
#pragma unroll
  for (int round = 0; round < 10; round++, key0 += 0x9e3779b9u, key1 += 0xbb67ae85u) {
    const u64 a = (u64)0xd2511f53u * c[0], b = (u64)0xcd9e8d57u * c[2];
    c[0] = (u32)(b >> 32) ^ c[1] ^ key0;
    c[2] = (u32)(a >> 32) ^ c[3] ^ key1;
    c[1] = (u32)b;
    c[3] = (u32)a;
  }
}
DEV float uniform(u32 word) { return (float)(int)(word >> 8) * 5.9604644775390625e-8f; }   // 2^-24

// N neighbouring numbers; where they start at a multiple of four, so does every counter's share.
template <int N, bool WHOLE> DEV void uniform_n(float (&v)[N], u32 seed, u64 at) {
  u32 word[4];
#pragma unroll
  for (int e = 0; e < N; e++) {
    if (!WHOLE || e % 4 == 0) philox((at + e) / 4, seed, word);
    const int w = WHOLE ? e % 4 : (int)((at + e) % 4);
    v[e] = uniform(w == 0 ? word[0] : w == 1 ? word[1] : w == 2 ? word[2] : word[3]);
  }
}
