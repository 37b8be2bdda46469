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

// The numbers of a fragment's four cells, two each, at the places at(i, e). Any places:
template <class At> DEV void uniform_any(float (&u)[8], u32 seed, const At &at) {
#pragma unroll
  for (int k = 0; k < 8; k++) {
    u32 word[4];
    const u64 x = at(k >> 1, k & 1);
    philox(x / 4, seed, word);
    u[k] = uniform((x & 3) == 0 ? word[0] : (x & 3) == 1 ? word[1] : (x & 3) == 2 ? word[2] : word[3]);
  }
}
// Columns are neighbours, and rows begin at multiples of four: two lanes of a row share a counter. The even one draws for its
// first row, the other one for its second.
template <class At> DEV void uniform_along(float (&u)[8], u32 seed, const At &at, u32 lane) {
  const bool odd = lane & 1;
#pragma unroll
  for (int c = 0; c < 2; c++) {
    u32 word[4];
    philox((odd ? at(2 * c + 1, 0) : at(2 * c, 0)) / 4, seed, word);
    const u32 x = __shfl_xor_sync(~0u, odd ? word[0] : word[2], 1), y = __shfl_xor_sync(~0u, odd ? word[1] : word[3], 1);
    u[4 * c] = uniform(odd ? x : word[0]);
    u[4 * c + 1] = uniform(odd ? y : word[1]);
    u[4 * c + 2] = uniform(odd ? word[2] : x);
    u[4 * c + 3] = uniform(odd ? word[3] : y);
  }
}
// Rows are neighbours, and columns begin at multiples of four: the four lanes of rows next to each other share counters. Each draws
// for one of four elements, and what they drew is turned: word k of a lane becomes what lane k drew for it.
template <class At> DEV void uniform_down(float (&u)[8], u32 seed, const At &at, u32 lane) {
  const u32 w = lane >> 2 & 3;
#pragma unroll
  for (int c = 0; c < 2; c++) {
    u32 word[4];
    philox((w & 2 ? w & 1 ? at(2 * c + 1, 1) : at(2 * c + 1, 0) : w & 1 ? at(2 * c, 1) : at(2 * c, 0)) / 4, seed, word);
#pragma unroll
    for (int x = 0; x < 4; x += 2) {
      const u32 got = __shfl_xor_sync(~0u, w & 1 ? word[x] : word[x + 1], 4);
      word[x] = w & 1 ? got : word[x];
      word[x + 1] = w & 1 ? word[x + 1] : got;
    }
#pragma unroll
    for (int x = 0; x < 2; x++) {
      const u32 got = __shfl_xor_sync(~0u, w & 2 ? word[x] : word[x + 2], 8);
      word[x] = w & 2 ? got : word[x];
      word[x + 2] = w & 2 ? word[x + 2] : got;
    }
#pragma unroll
    for (int k = 0; k < 4; k++) u[4 * c + k] = uniform(word[k]);
  }
}
