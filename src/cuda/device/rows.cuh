// rows.cuh: the mainloop over rows. LANES threads of each of CLUSTER blocks pass over a row, VEC
// neighbouring columns at a time, NV times. A block works on ROWS rows at once. A team is the threads of one
// row, or a whole warp if a row has fewer. The source that is written for the program loops over the rows of
// its team, and processes the columns.
//
// In that loop:
// - All threads of a team take up the same rows, so all of them reach every fold; what a row lacks is masked (`on`).
// - Elements are stored in a row's last phase only, and after all loads of what they may be stored over.
// - A row's sums are taken in this order: the columns of a vector by halves, the vectors of a thread from the first on, the
//   lanes of a warp by pairs at distances 1, 2, 4, 8, 16, then warps by number, then blocks by rank. It follows from LANES,
//   VEC, NV and CLUSTER alone, and these from the columns and the program: the same bits whatever the other rows are.

#define UNROLL _Pragma("unroll")
#define UNROLL_TWO _Pragma("unroll 2")
#define UNROLL_FOUR _Pragma("unroll 4")
#define EACH(n) _Pragma("unroll") for (int e = 0; e < (n); e++)

// ---- N neighbours as they lie in memory

template <int T, int N> struct Raw {
  enum { BYTES = N * (T == I64 ? 8 : T == F32 || T == I32 ? 4 : T >= E4M3 ? 1 : 2), WORDS = BYTES < 4 ? 1 : BYTES / 4 };
  u32 w[WORDS];
  // From memory that is read once: it takes no place in the first-level cache. In order with stores, which may be to the same memory.
  DEV void stream(const void *p, i64 at) {
    const char *a = (const char *)p + at * (BYTES / N);
    if (BYTES >= 16) {
#pragma unroll
      for (int k = 0; k < WORDS / 4; k++) stream16(w + 4 * k, a + 16 * k);
    } else if (BYTES == 8) stream8(w, a);
    else if (BYTES == 4) stream4(w, a);
    else if (BYTES == 2) stream2(w, a);
    else w[0] = *(const volatile u8 *)a;
  }
  // From memory that several rows read.
  DEV void cached(const void *p, i64 at) {
    const char *a = (const char *)p + at * (BYTES / N);
    if (BYTES >= 16) {
#pragma unroll
      for (int k = 0; k < WORDS / 4; k++) {
        const uint4 x = fetch((const uint4 *)(a + 16 * k));
        w[4 * k] = x.x; w[(4 * k + 1) % WORDS] = x.y; w[(4 * k + 2) % WORDS] = x.z; w[(4 * k + 3) % WORDS] = x.w;
      }
    } else if (BYTES == 8) {
      const uint2 x = fetch((const uint2 *)a);
      w[0] = x.x; w[1 % WORDS] = x.y;
    } else if (BYTES == 4) w[0] = fetch((const u32 *)a);
    else if (BYTES == 2) w[0] = fetch((const u16 *)a);
    else w[0] = fetch((const u8 *)a);
  }
  // From shared memory.
  DEV void staged(u32 a) {
    if (BYTES >= 16) {
#pragma unroll
      for (int k = 0; k < WORDS / 4; k++) {
        const uint4 x = lds128(a + 16 * k);
        w[4 * k] = x.x; w[(4 * k + 1) % WORDS] = x.y; w[(4 * k + 2) % WORDS] = x.z; w[(4 * k + 3) % WORDS] = x.w;
      }
    } else if (BYTES == 8) {
      const uint2 x = lds64(a);
      w[0] = x.x; w[1 % WORDS] = x.y;
    } else if (BYTES == 4) w[0] = lds32(a);
    else if (BYTES == 2) w[0] = lds16(a);
    else w[0] = lds16(a & ~1u) >> 8 * (a & 1);
  }
  DEV void clear() {
#pragma unroll
    for (int k = 0; k < WORDS; k++) w[k] = 0;
  }
  // Keeps the compiler from unpacking the words earlier: as numbers they would take twice the registers.
  DEV Raw &held() {
#pragma unroll
    for (int k = 0; k < WORDS; k++) asm volatile("" : "+r"(w[k]));
    return *this;
  }
  // An element of eight bytes is two words.
  DEV void set(int e, i64 x) {
    w[2 * e % WORDS] = (u32)x;
    w[(2 * e + 1) % WORDS] = (u32)((u64)x >> 32);
  }
  DEV i64 whole(int e) const { return (i64)((u64)w[(2 * e + 1) % WORDS] << 32 | w[2 * e % WORDS]); }
  // The first `left` of them, one by one: the end of a tensor.
  DEV void some(const void *p, i64 at, i64 left) {
    clear();
#pragma unroll
    for (int e = 0; e < N; e++)
      if (e < left) {
        if (BYTES / N == 8) set(e, ((const i64 *)p)[at + e]);
        else if (BYTES / N == 4) w[e % WORDS] = ((const u32 *)p)[at + e];
        else if (BYTES / N == 2) w[e / 2 % WORDS] |= (u32)((const u16 *)p)[at + e] << 16 * (e & 1);
        else w[e / 4 % WORDS] |= (u32)((const u8 *)p)[at + e] << 8 * (e & 3);
      }
  }
  DEV float one(int e) const {
    if (T == F32) return __uint_as_float(w[e % WORDS]);
    if (T == I32) return (float)(int)w[e % WORDS];
    if (T == I64) return (float)whole(e);
    if (T >= E4M3) return e & 1 ? byte_high<T>(w[e / 4 % WORDS] >> 16 * (e >> 1 & 1)) : byte_low<T>(w[e / 4 % WORDS] >> 16 * (e >> 1 & 1));
    return e & 1 ? high<T>(w[e / 2 % WORDS]) : low<T>(w[e / 2 % WORDS]);
  }
  template <int V> DEV void get(float (&v)[V]) const {
#pragma unroll
    for (int e = 0; e < V; e++) v[e] = one(e);
  }
  // One split of a vector: every other column of it.
  template <int V> DEV void get_split(float (&v)[V], int split) const {
#pragma unroll
    for (int e = 0; e < V / 2; e++) v[2 * e + split] = one(e);
  }
  // Split number `split` of `splits`.
  template <int V> DEV void put_split(const float (&v)[V], int split, int splits) {
#pragma unroll
    for (int e = 0; e < N; e++) {
      const float x = v[(split + e * splits) % V];
      if (T == F32) w[e % WORDS] = __float_as_uint(x);
      else if (T == I32) w[e % WORDS] = (u32)__float2int_rn(x);
      else if (T == I64) set(e, f32_i64(x));
    }
    if (BYTES / N == 2) {
#pragma unroll
      for (int k = 0; k < WORDS; k++)
        w[k] = N == 1 ? (T == BF16 ? f32_bf16(v[split % V]) : f32_f16(v[split % V]))
                      : pack<T>(v[(split + 2 * k * splits) % V], v[(split + (2 * k + 1) * splits) % V]);
    }
    if (BYTES == N) {
      clear();
#pragma unroll
      for (int e = 0; e < N; e += 2)
        w[e / 4 % WORDS] |= byte_pair<T>(v[(split + e * splits) % V], e + 1 < N ? v[(split + (e + 1) * splits) % V] : 0.f) << 16 * (e >> 1 & 1);
    }
  }
  DEV void write(void *p, i64 at) const {
    char *a = (char *)p + at * (BYTES / N);
    if (BYTES >= 16) {
#pragma unroll
      for (int k = 0; k < WORDS / 4; k++) write16(a + 16 * k, w + 4 * k);
    } else if (BYTES == 8) write8(a, w);
    else if (BYTES == 4) write4(a, w);
    else if (BYTES == 2) write2(a, w);
    else *a = (char)w[0];
  }
  DEV void write_some(void *p, i64 at, i64 left) const {
#pragma unroll
    for (int e = 0; e < N; e++)
      if (e < left) {
        if (BYTES / N == 8) ((i64 *)p)[at + e] = whole(e);
        else if (BYTES / N == 4) ((u32 *)p)[at + e] = w[e % WORDS];
        else if (BYTES / N == 2) ((u16 *)p)[at + e] = (u16)(w[e / 2 % WORDS] >> 16 * (e & 1));
        else ((u8 *)p)[at + e] = (u8)(w[e / 4 % WORDS] >> 8 * (e & 3));
      }
  }
};

// The V elements of a row of n that are BY places before those from column c on, zeros where there are none; the row begins at
// `at`. All three are multiples of V: the elements lie in one vector or two.
template <int T, int V, int BY> DEV void beside(float (&v)[V], const void *p, i64 at, i64 c, i64 n) {
  const int FIRST = BY > 0 ? -((BY + V - 1) / V) : -BY / V, SKIP = -BY - FIRST * V;
  const i64 first = c + (i64)FIRST * V;
  Raw<T, V> a, b;
  a.clear();
  b.clear();
  if (first >= 0 && first < n) a.cached(p, at + first);
  if (SKIP && first + V >= 0 && first + V < n) b.cached(p, at + first + V);
#pragma unroll
  for (int e = 0; e < V; e++) v[e] = e + SKIP < V ? a.one((e + SKIP) % V) : b.one((e + SKIP) % V);
}

// Division of many numbers by one: a multiplication by its inverse. A power of two scales the divisor to near one first, so that
// the inverse neither overflows nor vanishes.
struct Over {
  float scale, inverse;
  DEV Over(float b) {
    const int e = (int)(__float_as_uint(b) >> 23 & 255);
    scale = __uint_as_float((u32)min(max(254 - e, 1), 254) << 23);
    inverse = __fdiv_rn(1.f, b * scale);
  }
  DEV float of(float a) const { return a * inverse * scale; }
};

// ---- folds of a row

template <class F, int V> DEV float fold_vector(const float (&v)[V]) {
  float t[V];
#pragma unroll
  for (int e = 0; e < V; e++) t[e] = v[e];
#pragma unroll
  for (int half = V / 2; half > 0; half >>= 1)
#pragma unroll
    for (int e = 0; e < V / 2; e++)
      if (e < half) t[e] = F::of(t[e], t[e + half]);
  return t[0];
}
template <class F, int V> DEV void take_all(Fold<F> &f, const float (&v)[V]) { f.take(fold_vector<F>(v)); }
template <int V> DEV void take_all(Long &f, const float (&v)[V]) { f.take(fold_vector<AddOf>(v)); }
template <int V> DEV void take_all(LogSumExp &f, const float (&v)[V]) {
  float top = f.m;
#pragma unroll
  for (int e = 0; e < V; e++) top = f_max(top, v[e]);
  const float ref = top == -INF || top == INF ? 0.f : top;   // subtracted first: the sum may be wanted by itself
  f.s *= ex2((f.m - ref) * LOG2E);
#pragma unroll
  for (int e = 0; e < V; e++) f.s += ex2((v[e] - ref) * LOG2E);
  f.m = top;
}
template <class F, int V> DEV void take_some(F &f, const float (&v)[V], i64 left) {
#pragma unroll
  for (int e = 0; e < V; e++)
    if (e < left) f.take(v[e]);
}

// Shared memory that folds are exchanged through: between the warps of a row, and between the blocks of a cluster. Fold
// number `turn` uses the room turn & 1. One barrier a fold is enough: who writes a room again, two folds later, has passed the
// barrier of the fold between, and all others came to that one after they had read this room.
struct Rooms {
  float2 warp[2][ROWS][LANES > 32 ? LANES / 32 : 1], block[2][CLUSTER];
  u64 bars[2];
};
DEV void begin_rooms(Rooms *rooms) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; i++) mbar_init(smem_u32(rooms->bars + i), 1);
    mbar_fence();
  }
  cluster_arrive();
}
// Each block sends its fold to all blocks of the cluster, its own too, by st.async: the bytes that come count on the room's
// mbarrier, whose phase turn >> 1 this is. A block sends fold turn + 2 only after it has all of fold turn + 1, which the others
// sent after they had read this room.
template <class F> DEV const float2 *share(const F &f, Rooms *rooms, int turn) {
  float2 *room = rooms->block[turn & 1];
  const u32 bar = smem_u32(rooms->bars + (turn & 1));
  if (threadIdx.x == 0) mbar_expect(bar, CLUSTER * sizeof(F));
  if (threadIdx.x < CLUSTER) send(room + cluster_rank(), bar, threadIdx.x, f);
  mbar_wait(bar, turn >> 1 & 1);
  return room;
}
// Over the lanes of one row of this block, then over the blocks of the cluster; all threads end with the result.
template <class F> DEV F fold_row(F f, Rooms *rooms, int &turn) {
#pragma unroll
  for (int m = 1; m < (LANES < 32 ? LANES : 32); m <<= 1) f.across(m);
  if (LANES > 32) {
    const int sub = threadIdx.x / LANES;   // a team is one row's
    float2 *room = rooms->warp[turn & 1][sub];
    if (threadIdx.x % 32 == 0) *(F *)(room + threadIdx.x % LANES / 32) = f;
    if (ROWS == 1) __syncthreads();
    else bar_sync(1 + sub, LANES);
    f = *(const F *)room;
#pragma unroll
    for (int w = 1; w < LANES / 32; w++) f.merge(*(const F *)(room + w));
  }
  if (CLUSTER > 1) {
    const float2 *block = share(f, rooms, turn);
    f = *(const F *)block;
#pragma unroll
    for (int b = 1; b < CLUSTER; b++) f.merge(*(const F *)(block + b));
  }
  turn++;
  return f;
}

// A sum and those of other rows, from the first on, that lie `apart` from each other. Of many a running sum takes 32.
template <class F> DEV void take_rows(Fold<F> &sum, const float *from, int apart, int rows) {
  for (int first = 0; first < rows; first += 32) {
    Fold<F> run;
    run.clear();
    for (int r = first; r < min(first + 32, rows); r++) run.take(from[r * apart]);
    sum.merge(run);
  }
}

// A sum per column leaves the block: it is folded over the block's rows, from the first on, and stored to the block's line of
// the partials. `scale` columns of the row are one of the sum. For each vector the rows but the first write to the room, and the
// first one's threads add that up; the barriers keep the room of a vector apart from those before and after.
template <int V, class F> DEV void leave_columns(Fold<F> (&sum)[NV][V], float *line, i64 columns, int scale, float *room) {
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
#pragma unroll
  for (int i = 0; i < NV; i++) {
    if (ROWS > 1) {
      __syncthreads();
      if (sub > 0)
        EACH(V) room[((sub - 1) * V + e) * LANES + lane] = sum[i][e].v;
      __syncthreads();
      if (sub == 0)
        EACH(V) take_rows(sum[i][e], room + e * LANES + lane, V * LANES, ROWS - 1);
    }
    const int c = (((CLUSTER > 1 ? (int)cluster_rank() * NV : 0) + i) * LANES + lane) * VEC;
    if (sub == 0 && c < columns)
      EACH(V) line[c / scale + e] = sum[i][e].v;
  }
}

// The same where there is room for all vectors of all rows, in the ring: nothing is on its way to that any more, and after the
// first barrier nobody reads it as a ring. All threads add up.
template <int V, class F> DEV void leave_together(Fold<F> (&sum)[NV][V], float *line, i64 columns, int scale, float *room) {
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES, most = LANES * NV * V;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < NV; i++)
    EACH(V) room[sub * most + (i * LANES + lane) * V + e] = sum[i][e].v;
  __syncthreads();
  const i64 first = (i64)(CLUSTER > 1 ? cluster_rank() : 0) * most, left = columns / scale - first;
  for (int c = threadIdx.x; c < most && c < left; c += LANES * ROWS) {
    Fold<F> f;
    f.v = room[c];
    take_rows(f, room + most + c, most, ROWS - 1);
    line[first + c] = f.v;
  }
}
