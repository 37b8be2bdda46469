// integers.cuh: operations on integers that f32 cannot hold, in 64 bits for any storage type.
//
// Sums and products wrap around, so they are the same in any order, and threads can share them in any way.

template <int T> DEV i64 whole(const void *p, i64 at) { return T == I32 || T == I64 ? integer<T>(p, at) : f32_i64(load<T>(p, at)); }

// An f32 that rounds to fewer digits as x does: what is cut off of x is kept in its last bit.
DEV float odd_float(i64 x) {
  const float f = __ll2float_rz(x);
  return f < 9.2e18f && f > -9.2e18f && (i64)f == x ? f : __uint_as_float(__float_as_uint(f) | 1u);
}
template <int T> DEV void put_whole(void *p, i64 at, i64 x) {
  if (T == I64) ((i64 *)p)[at] = x;
  else if (T == I32) ((int *)p)[at] = (int)(x > 2147483647ll ? 2147483647ll : x < -2147483648ll ? -2147483648ll : x);
  else store<T>(p, at, T == F32 ? (float)x : odd_float(x));
}

DEV i64 i_add(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
DEV i64 i_mul(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
DEV i64 i_neg(i64 a) { return (i64)(0 - (u64)a); }
DEV i64 i_min(i64 a, i64 b) { return a < b ? a : b; }
DEV i64 i_max(i64 a, i64 b) { return a > b ? a : b; }
// Toward minus infinity; 0 where b is 0.
DEV i64 i_quotient(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? i_neg(a) : a / b - (a % b != 0 && (a < 0) != (b < 0)); }
DEV i64 i_rest(i64 a, i64 b) { return b == 0 || b == -1 ? 0 : i_add(a, i_neg(i_mul(b, i_quotient(a, b)))); }

// What all threads of the block have, as one: S tells how two become one.
template <class S> DEV i64 of_block(const S &s, i64 mine) {
  __shared__ i64 all[256];
  __syncthreads();
  all[threadIdx.x] = mine;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half) all[threadIdx.x] = s.combine(all[threadIdx.x], all[threadIdx.x + half]);
    __syncthreads();
  }
  return all[0];
}

// A block folds the elements of a result.
template <class S> DEV void fold_integers(const S &s, i64 results) {
  for (i64 x = blockIdx.x; x < results; x += gridDim.x) {
    i64 mine = s.begin();
#pragma unroll 8
    for (i64 y = threadIdx.x; y < s.length(); y += 256) mine = s.combine(mine, s.value(x, y));
    const i64 all = of_block(s, mine);
    if (threadIdx.x == 0) s.put(x, all);
  }
}

// a*h + b along a line, which a block shares: each thread has a stretch of it. Where a stretch leads to from h is scale*h + sum,
// for any h; so the first stretches tell with which h the next begin.
template <class S> DEV void scan_integers(const S &s, i64 lines) {
  __shared__ i64 scale[256], sum[256];
  const i64 each = (s.length() + 255) / 256, first = threadIdx.x * each, last = i_min(first + each, s.length());
  for (i64 x = blockIdx.x; x < lines; x += gridDim.x) {
    i64 a = 1, b = 0;
    for (i64 k = first; k < last; k++) {
      const i64 by = k ? s.scale(x, k) : 0;
      a = i_mul(by, a);
      b = i_add(i_mul(by, b), s.value(x, k));
    }
    __syncthreads();
    scale[threadIdx.x] = a;
    sum[threadIdx.x] = b;
    __syncthreads();
    i64 h = 0;
    for (int t = 0; t < threadIdx.x; t++) h = i_add(i_mul(scale[t], h), sum[t]);
    for (i64 k = first; k < last; k++) {
      h = k ? i_add(i_mul(s.scale(x, k), h), s.value(x, k)) : s.value(x, k);
      s.put(x, k, h);
    }
  }
}

// A place among those of one kept element; so many are ahead of them.
DEV i64 in_batch(i64 at, i64 ahead) { return at < 0 ? at : at + ahead; }

// Adds up what an index sends to each place: a block has ROOM sums of so many places, and reads all of the index.
enum { ROOM = 4096 };
template <class S> DEV void scatter_integers(const S &s, i64 items) {
  __shared__ u64 sum[ROOM];
  const i64 all = s.size() * s.inner();
  for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
    const i64 first = item * ROOM, last = i_min(first + ROOM, all);
    for (int i = threadIdx.x; i < ROOM; i += 256) sum[i] = 0;
    __syncthreads();
    for (i64 q = threadIdx.x; q < s.count(); q += 256) {
      const i64 at = s.at(q);
      if (at < 0 || (at + 1) * s.inner() <= first || at * s.inner() >= last) continue;
      for (i64 c = i_max(0, first - at * s.inner()); c < s.inner() && at * s.inner() + c < last; c++)
        atomicAdd(&sum[at * s.inner() + c - first], (u64)s.value(q, c));
    }
    __syncthreads();
    for (i64 i = first + threadIdx.x; i < last; i += 256) s.put(i / s.inner(), i % s.inner(), (i64)sum[i - first]);
    __syncthreads();
  }
}

// The places of the largest elements of a row, the largest first, of equal ones the first: each time the first of those behind the
// last one, in the order of the result.
template <class S> DEV void topk_integers(const S &s, i64 rows) {
  __shared__ i64 value[256], place[256];
  for (i64 x = blockIdx.x; x < rows; x += gridDim.x) {
    i64 top = 0, at = -1;
    for (i64 k = 0; k < s.count(); k++) {
      i64 best = 0, mine = -1;
      for (i64 y = threadIdx.x; y < s.length(); y += 256) {
        const i64 v = s.value(x, y);
        const bool behind = at < 0 || v < top || (v == top && y > at);
        if (behind && (mine < 0 || v > best)) {
          best = v;
          mine = y;
        }
      }
      __syncthreads();
      value[threadIdx.x] = best;
      place[threadIdx.x] = mine;
      __syncthreads();
      for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) {
          const int o = threadIdx.x + half, t = threadIdx.x;
          if (place[o] >= 0 && (place[t] < 0 || value[o] > value[t] || (value[o] == value[t] && place[o] < place[t]))) {
            value[t] = value[o];
            place[t] = place[o];
          }
        }
        __syncthreads();
      }
      top = value[0];
      at = place[0];
      if (threadIdx.x == 0) s.put(x, k, at);
      __syncthreads();
    }
  }
}
