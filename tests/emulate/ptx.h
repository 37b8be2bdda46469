/* ptx.h: the functions that a text writes in PTX, as C++: the test leaves those out of the text. What no
 * function here is for does not compile, and so is seen. Fences do nothing: all sees everything at once. */

/* ---- base.cuh ---- */

static inline float f16_f32(u16 x) {
    const u32 digits = x & 0x7fff;
    const float v = digits < 0x7c00    ? __uint_as_float(digits << 13) * 0x1p112f
                    : digits == 0x7c00 ? INFINITY
                                       : NAN;
    return x >> 15 ? -v : v;
}
static u16 f32_f16(float x) {
    const float a = fabsf(x);
    const u32 sign = __float_as_uint(x) >> 16 & 0x8000, bits = __float_as_uint(a);
    return (u16)(x != x         ? 0x7fff
                 : a >= 65520.f ? sign | 0x7c00
                 : a < 0x1p-14f ? sign | (u32)lrintf(a * 0x1p24f)
                                : sign | (bits + 0xfff + (bits >> 13 & 1) - (112u << 23)) >> 13);
}
static u16 f32_bf16(float x) {
    const u32 bits = __float_as_uint(x);
    return (u16)(x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
template <int T> static u32 pack(float lo, float hi) { /* 1 is BF16 */
    return T == 1 ? f32_bf16(lo) | (u32)f32_bf16(hi) << 16 : f32_f16(lo) | (u32)f32_f16(hi) << 16;
}
static float ex2(float x) {
    return exp2f(x);
}
static float rcp(float x) { /* which may be off by its last bit */
    const float y = 1 / x;
    return isnormal(y) ? nextafterf(y, 0) : y;
}
static float lg2(float x) {
    return log2f(x);
}
static float f_min(float a, float b) {
    return a < b || a != a ? a : b;
}
static float f_max(float a, float b) {
    return a > b || a != a ? a : b;
}

/* ---- gemm_few.cuh ---- */

template <int T> static u32 halves_fma_of(u32 a, u32 b, u32 c) {
    const auto at = [](u32 x) { return T == 1 ? __uint_as_float(x << 16) : f16_f32((u16)x); };
    return pack<T>(at(a & 0xffff) * at(b & 0xffff) + at(c & 0xffff), at(a >> 16) * at(b >> 16) + at(c >> 16));
}
#define halves_fma(a, b, c) halves_fma_of<HALF>(a, b, c)
static u32 masked_on(u32 w, u32 mask, u32 on) {
    return (w & mask) ^ on;
}

/* ---- ptx.cuh ---- */

template <class T> static inline T read_shared(u32 at) {
    T x;
    memcpy(&x, shared_at(at, sizeof x), sizeof x);
    return x;
}
static u32 lds16(u32 at) {
    return read_shared<u16>(at);
}
static u32 lds32(u32 at) {
    return read_shared<u32>(at);
}
static uint2 lds64(u32 at) {
    return read_shared<uint2>(at);
}
static uint4 lds128(u32 at) {
    return read_shared<uint4>(at);
}
static void sts32(u32 at, u32 x) {
    memcpy(shared_at(at, 4), &x, 4);
}
static void sts64(u32 at, u32 x, u32 y) {
    const u32 words[2] = {x, y};
    memcpy(shared_at(at, 8), words, 8);
}
static void sts128(u32 at, u32 x, u32 y, u32 z, u32 w) {
    const u32 words[4] = {x, y, z, w};
    memcpy(shared_at(at, 16), words, 16);
}

/* ldmatrix: four matrices of 8 x 8; lane 8m + r says where row r of matrix m lies. */
template <bool TURNED> static void ldm(u32 at, u32 (&words)[4]) {
    shared_at(at, 16);
    const u32 *out = together(&at, 1, [](Warp &w) {
        for (int l = 0; l < 32; l++)
            for (int m = 0; m < 4; m++) {
                u16 x[2];
                for (int e = 0; e < 2; e++) {
                    const int r = TURNED ? l % 4 * 2 + e : l / 4, c = TURNED ? l / 4 : l % 4 * 2 + e;
                    memcpy(&x[e], shared_at(w.in[8 * m + r][0], 16) + 2 * c, 2);
                }
                w.out[l][m] = x[0] | (u32)x[1] << 16;
            }
    });
    memcpy(words, out, 16);
}
static void ldm4(u32 at, u32 (&words)[4]) {
    ldm<false>(at, words);
}
static void stm4(u32 at, const u32 (&words)[4]) {
    shared_at(at, 16);
    const u32 in[5] = {at, words[0], words[1], words[2], words[3]};
    together(in, 5, [](Warp &w) {
        for (int l = 0; l < 32; l++)
            for (int m = 0; m < 4; m++)
                memcpy(shared_at(w.in[8 * m + l / 4][0], 16) + 4 * (l % 4), &w.in[l][1 + m], 4);
    });
}

static void stm4_turned(u32 at, const u32 (&words)[4]) {
    shared_at(at, 16);
    const u32 in[5] = {at, words[0], words[1], words[2], words[3]};
    together(in, 5, [](Warp &w) {
        for (int l = 0; l < 32; l++)
            for (int m = 0; m < 4; m++)
                for (int e = 0; e < 2; e++) {
                    const u16 x = (u16)(w.in[l][1 + m] >> 16 * e);
                    memcpy(shared_at(w.in[8 * m + l % 4 * 2 + e][0], 16) + 2 * (l / 4), &x, 2);
                }
    });
}

static void stream(u32 *words, const void *from, size_t bytes) {
    check_access(from, bytes, bytes);
    words[0] = 0;
    memcpy(words, from, bytes);
}
static void stream16(u32 *words, const void *from) {
    stream(words, from, 16);
}
static void once16(u32 *words, const void *from) {
    stream(words, from, 16);
}
static void stream8(u32 *words, const void *from) {
    stream(words, from, 8);
}
static void stream4(u32 *words, const void *from) {
    stream(words, from, 4);
}
static void stream2(u32 *words, const void *from) {
    stream(words, from, 2);
}
static void write(void *to, const u32 *words, size_t bytes) {
    check_access(to, bytes, bytes);
    check_once(to, bytes);
    memcpy(to, words, bytes);
}
static void write16(void *to, const u32 *words) {
    write(to, words, 16);
}
static void write8(void *to, const u32 *words) {
    write(to, words, 8);
}
static void write4(void *to, const u32 *words) {
    write(to, words, 4);
}
static void write2(void *to, const u32 *words) {
    write(to, words, 2);
}
static void write4_if(bool yes, void *to, u32 word) {
    if (yes)
        write4(to, &word);
}
static void write2_if(bool yes, void *to, u32 word) {
    if (yes)
        write2(to, &word);
}
static u32 take_number(u32 *word) {
    check_access(word, 4, 4);
    progress++;
    return (*word)++;
}
static u64 word_seen(const u64 *word) {
    check_access(word, 8, 8);
    return *word;
}
static void word_swap(u64 *word, u64 from, u64 to) {
    check_access(word, 8, 8);
    if (*word == from)
        *word = to;
    progress++;
}
static void bulk_prefetch(const void *from, u32 bytes) {
    check_access(from, bytes, 16);
}
static void prefetch(const void *from) {
    check_access(from, 1, 1);
}

static void bar_sync(u32 id, u32 threads) {
    if (id > 15 || threads % 32 || !threads || threads > (u32)block_threads)
        wrong("a barrier of threads", threads);
    else
        meet(block->barriers[id], (int)threads);
}

static void bar_arrive(u32 id, u32 threads) {
    if (id > 15 || threads % 32 || !threads || threads > (u32)block_threads)
        wrong("a barrier of threads", threads);
    else
        arrive(block->barriers[id], (int)threads);
}
template <class T, int N> static void hold(T (&)[N]) {}

/* ---- barriers in memory, and what TMA brings ---- */

struct MemoryBarrier { /* memory starts as ones: no barrier has that mark */
    u32 phase : 1, mark : 7, count : 12, left : 12;
    int bytes; /* that are announced and have not come, or the other way round */
};
enum { MARK = 0x2a };

static void mbar_init(u32 at, u32 count) {
    const MemoryBarrier b = {0, MARK, count, count, 0};
    memcpy(shared_at(at, 8), &b, 8);
}
static MemoryBarrier *memory_barrier(u32 at) {
    static MemoryBarrier none;
    MemoryBarrier *b = (MemoryBarrier *)shared_at(at, 8);
    if (b->mark == MARK)
        return b;
    wrong("no barrier was made at", at);
    none = {0, MARK, 1, 1, 0};
    return &none;
}
static void barrier_changed(MemoryBarrier *b) {
    progress++;
    if (b->left || b->bytes)
        return;
    b->phase ^= 1;
    b->left = b->count;
}
static void mbar_expect(u32 at, u32 bytes) {
    MemoryBarrier *b = memory_barrier(at);
    if (!b->left)
        wrong("more arrivals than a barrier has, at", at);
    b->left -= b->left > 0;
    b->bytes += (int)bytes;
    barrier_changed(b);
}
static void mbar_arrive(u32 at) {
    mbar_expect(at, 0);
}
static void mbar_fence() {}

static void fill_box(const Arriving &a);
static void arrive_from_memory(const Arriving &a) {
    MemoryBarrier *b = memory_barrier(a.barrier);
    if (!a.from)
        fill_box(a);
    else
        memcpy(shared_place(a.to, a.bytes, 16), a.from, a.bytes);
    b->bytes -= (int)a.bytes;
    barrier_changed(b);
}
static void come(const Arriving &a, u32 alignment) {
    if (!a.bytes || a.bytes % 16 || a.bytes > MOST_MEMORY) {
        wrong("TMA is asked for bytes", (int)a.bytes);
        return;
    }
    memory_barrier(a.barrier);
    memset(shared_place(a.to, a.bytes, alignment), host->fill,
           a.bytes); /* nobody may still want what was there */
    if (!host->late)
        arrive_from_memory(a);
    else if (block->arriving_count < MOST_COPIES)
        block->arriving[block->arriving_count++] = a;
    else
        wrong("more copies on their way than", MOST_COPIES);
}
static void bulk_load(u32 to, const void *from, u32 bytes, u32 barrier) {
    check_access(from, bytes, 16);
    come(Arriving{to, bytes, barrier, from}, 16);
}
/* Late is: when somebody waits. */
static void mbar_wait(u32 at, u32 parity) {
    while (memory_barrier(at)->phase == parity) {
        int left = 0;
        for (int i = 0; i < block->arriving_count; i++)
            if (block->arriving[i].barrier == at)
                arrive_from_memory(block->arriving[i]);
            else
                block->arriving[left++] = block->arriving[i];
        block->arriving_count = left;
        if (memory_barrier(at)->phase == parity)
            change_over();
    }
}

/* ---- clusters ---- */

static int cluster_blocks, running_count;
static Block *running[MOST_BLOCKS];
static Barrier cluster_barriers[MOST_BLOCKS];

static u32 cluster_id() {
    return blockIdx.x / (unsigned)cluster_blocks;
}
static u32 cluster_rank() {
    return blockIdx.x % (unsigned)cluster_blocks;
}
/* The cluster's place among those that run. */
static int cluster_place() {
    return (int)cluster_id() % (running_count / cluster_blocks);
}
static void cluster_arrive() {
    current->meeting = arrive(cluster_barriers[cluster_place()], cluster_blocks * block_threads);
}
static void cluster_wait() {
    wait_for(cluster_barriers[cluster_place()], current->meeting);
}
static void cluster_leave() {
    cluster_arrive();
    cluster_wait();
}

/* While it lives, shared memory is that of another block of the cluster. */
struct Elsewhere {
    Block *const here;
    u8 *const mine;
    Elsewhere(u32 rank) : here(block), mine(declared) {
        if (rank >= (u32)cluster_blocks) {
            wrong("no such block in the cluster", rank);
            return;
        }
        block = running[cluster_place() * cluster_blocks + (int)rank];
        declared = block == here ? mine : block->rest;
        if (!block->left)
            wrong("a block that has ended is asked, of rank", rank);
    }
    ~Elsewhere() {
        block = here;
        declared = mine;
    }
};
static void mbar_arrive_at(u32 at, u32 rank) {
    Elsewhere there(rank);
    mbar_arrive(at);
}
static u32 cluster_at(u32 at, u32 rank) {
    return at | rank << 28;
}
static void mbar_arrive_there(u32 at) {
    mbar_arrive_at(at & 0x0fffffff, at >> 28);
}
static void send_word(u32 at, u32 barrier, u32 rank, u32 word) {
    Elsewhere there(rank);
    MemoryBarrier *b = memory_barrier(barrier);
    sts32(at, word);
    b->bytes -= (int)sizeof word;
    barrier_changed(b);
}

/* ---- boxes of TMA ---- */

static inline u32 turned(u32 at, int swizzle) {
    return at ^ (at >> 7 & (u32)(swizzle / 16 - 1)) << 4;
}
/* f(place in memory, or NULL where the tensor ends, and in shared memory, bytes), for all of the box: 16
 * bytes at a time, which no swizzle parts, or one element where some of these are beyond the tensor's end. */
template <class F>
static void each_place(const emu_box &m, u32 shared, int x, int y, int z, int w, int v, F f) {
    const u32 size = (u32)m.size, unit = 16 / size;
    check_access(m.base, 1, 16); /* the hardware faults where a map begins in memory that is not mapped */
    for (u32 r = 0; r < m.box[1] * m.box[2] * m.box[3]; r++) {
        const i64 at_y = y + (i64)(r % m.box[1]), at_z = z + (i64)(r / m.box[1] % m.box[2]),
                  at_w = w + (i64)(r / m.box[1] / m.box[2]);
        const bool row = at_y >= 0 && at_y < (i64)m.sizes[1] && at_z >= 0 && at_z < (i64)m.sizes[2] &&
                         at_w >= 0 && at_w < (i64)m.sizes[3] && v >= 0 && v < (i64)m.sizes[4];
        const i64 begin = (i64)((u64)at_y * m.strides[1] + (u64)at_z * m.strides[2] +
                                (u64)at_w * m.strides[3] + (u64)v * m.strides[4]);
        for (u32 c = 0, count; c < m.box[0]; c += count) {
            const i64 at_x = x + (i64)c;
            count = row && (at_x < 0 || at_x + unit > (i64)m.sizes[0]) ? 1 : unit;
            u8 *memory = row && at_x >= 0 && at_x < (i64)m.sizes[0] ? m.base + begin + at_x * (i64)size : 0;
            if (memory)
                check_access(memory, count * size, size);
            f(memory,
              shared_place(turned(shared + (r * m.box[0] + c) * size, m.swizzle), count * size, count * size),
              count * size);
        }
    }
}
static void fill_box(const Arriving &a) {
    each_place(a.map, a.to, a.x, a.y, a.z, a.w, a.v, [](const u8 *memory, u8 *shared, u32 size) {
        memory ? (void)memcpy(shared, memory, size) : (void)memset(shared, 0, size);
    });
}
/* A box by more or fewer coordinates than the map has axes is an illegal instruction. */
static void check_rank(const void *map, int coordinates) {
    if (((const emu_box *)map)->rank != coordinates)
        wrong("a box of another number of axes than its map's", coordinates);
}
static void load_box(u32 to, const void *map, u32 barrier, int x, int y, int z, int w, int v) {
    const emu_box &m = *(const emu_box *)map;
    const u32 bytes = m.box[0] * m.box[1] * m.box[2] * m.box[3] * (u32)m.size;
    come(Arriving{to, bytes, barrier, 0, m, x, y, z, w, v}, 128);
}
static void tma_load(u32 to, const void *map, u32 barrier, int x, int y) {
    check_rank(map, 2);
    load_box(to, map, barrier, x, y, 0, 0, 0);
}
static void tma_load(u32 to, const void *map, u32 barrier, int x, int y, int z, int w) {
    check_rank(map, 4);
    load_box(to, map, barrier, x, y, z, w, 0);
}
static void tma_load(u32 to, const void *map, u32 barrier, int x, int y, int z, int w, int v) {
    check_rank(map, 5);
    load_box(to, map, barrier, x, y, z, w, v);
}
static void tma_load_for(u32 to, const void *map, u32 barrier, int x, int y, u64) {
    tma_load(to, map, barrier, x, y);
}
static void tma_load_for(u32 to, const void *map, u32 barrier, int x, int y, int z, int w, u64) {
    tma_load(to, map, barrier, x, y, z, w);
}
static void tma_load_all(u32 to, const void *map, u32 barrier, int x, int y, int z, int w, u16 mask) {
    for (u32 rank = 0; rank < 16; rank++)
        if (mask >> rank & 1) {
            Elsewhere there(rank);
            tma_load(to, map, barrier, x, y, z, w);
        }
}
static void tma_load_all(u32 to, const void *map, u32 barrier, int x, int y, u16 mask) {
    for (u32 rank = 0; rank < 16; rank++)
        if (mask >> rank & 1) {
            Elsewhere there(rank);
            tma_load(to, map, barrier, x, y);
        }
}
static void tma_prefetch(const void *map, int, int) {
    check_rank(map, 2);
}
static void tma_prefetch(const void *map, int, int, int, int) {
    check_rank(map, 4);
}
static void store_box(const Stored &s) {
    each_place(*s.map, s.from, s.x, s.y, s.z, s.w, 0, [](u8 *memory, const u8 *shared, u32 size) {
        if (memory) {
            check_once(memory, size);
            memcpy(memory, shared, size);
        }
    });
}
static void tma_store(const void *map, u32 from, int x, int y) {
    check_rank(map, 2);
    current->stores.add(Stored{(const emu_box *)map, from, x, y, 0, 0}, store_box);
}
static void tma_store(const void *map, u32 from, int x, int y, int z, int w) {
    check_rank(map, 4);
    current->stores.add(Stored{(const emu_box *)map, from, x, y, z, w}, store_box);
}
static void bulk_commit() {
    current->stores.commit();
}
template <int LEFT> static void bulk_wait_read() {
    current->stores.wait(LEFT, store_box);
}
template <int LEFT> static void bulk_wait() {
    bulk_wait_read<LEFT>();
}
static void fence_async() {}

/* ---- tensor cores ---- */

static inline float number_of(u16 x, bool bf16) {
    return bf16 ? __uint_as_float((u32)x << 16) : f16_f32(x);
}
/* Where row (or column) r of an operand in shared memory lies, k deep, by its descriptor. Without `mn` eight
 * elements of the depth are neighbours, with it eight rows. */
static inline u32 operand_at(u64 descriptor, bool mn, int r, int k) {
    const u32 start = (u32)(descriptor & 0x3fff) << 4, slab = (u32)(descriptor >> 16 & 0x3fff) << 4,
              eight = (u32)(descriptor >> 32 & 0x3fff) << 4;
    const int at = mn ? r / 64 * (int)slab + k / 8 * (int)eight + k % 8 * 128 + r % 64 * 2
                      : r / 8 * (int)eight + r % 8 * 128 + k * 2;
    return ASKED_FOR + turned(start + (u32)at, 128);
}
/* Two columns that are neighbours, 16 deep. */
typedef double Pair __attribute__((vector_size(16)));
static inline void operand_pair(u64 descriptor, bool mn, int r, bool bf16, Pair (&to)[16]) {
    if (mn)
        for (int k = 0; k < 16; k++) {
            const u32 both = read_shared<u32>(operand_at(descriptor, true, r, k));
            to[k] = Pair{number_of((u16)both, bf16), number_of((u16)(both >> 16), bf16)};
        }
    else
        for (int k = 0; k < 16; k += 8) {
            u16 x[2][8];
            memcpy(x[0], shared_at(operand_at(descriptor, false, r, k), 16), 16);
            memcpy(x[1], shared_at(operand_at(descriptor, false, r + 1, k), 16), 16);
            for (int i = 0; i < 8; i++)
                to[k + i] = Pair{number_of(x[0][i], bf16), number_of(x[1][i], bf16)};
        }
}
/* e4m3 has the digits of an f16 of 2^-8 times its value. */
static inline float e4m3_number(u8 x) {
    return (x & 0x7f) == 0x7f ? NAN : f16_f32((u16)((x & 0x80) << 8 | (x & 0x7f) << 7)) * 256.f;
}
/* Row (or column) r of bytes, 32 deep. */
static inline void operand_bytes(u64 descriptor, int r, bool e5m2, double (&to)[32]) {
    for (int k = 0; k < 32; k++) {
        const u8 x = read_shared<u8>(operand_at(descriptor, false, r, k / 2) + k % 2);
        to[k] = e5m2 ? f16_f32((u16)(x << 8)) : e4m3_number(x);
    }
}
static void multiply_bytes(const Product &p) {
    const int t = (int)threadIdx.x % WARPGROUP, row = t / 32 * 16 + t % 32 / 4, q = t % 4;
    double a[2][32], b[32];
    for (int h = 0; h < 2; h++)
        operand_bytes(p.a, row + 8 * h, p.e5m2[0], a[h]);
    for (int i = 0; i < p.n / 4; i++) {
        operand_bytes(p.b, i / 2 * 8 + 2 * q + i % 2, p.e5m2[1], b);
        for (int h = 0; h < 2; h++) {
            float *d = p.d + i / 2 * 4 + 2 * h + i % 2;
            double sum = p.add ? *d : 0;
            for (int k = 0; k < 32; k++)
                sum += a[h][k] * b[k];
            *d = (float)sum;
        }
    }
}
/* This thread's share: of every eight columns two neighbours, of two rows. */
static void multiply(const Product &p) {
    if (p.bytes) {
        multiply_bytes(p);
        return;
    }
    const int t = (int)threadIdx.x % WARPGROUP, row = t / 32 * 16 + t % 32 / 4, q = t % 4;
    double a[2][16];
    Pair b[16];
    for (int i = 0; i < 32; i++) {
        const u16 x = p.words ? (u16)(p.of[i / 16][i % 16 / 2] >> 16 * (i % 2))
                              : read_shared<u16>(operand_at(p.a, p.a_mn, row + i / 16 * 8, i % 16));
        a[i / 16][i % 16] = number_of(x, p.bf16);
    }
    for (int c = 0; c < p.n / 8; c++) {
        float *d = p.d + 4 * c;
        operand_pair(p.b, p.b_mn, 8 * c + 2 * q, p.bf16, b);
        for (int h = 0; h < 2; h++) {
            Pair sum = {p.add ? d[2 * h] : 0, p.add ? d[2 * h + 1] : 0};
            for (int k = 0; k < 16; k++)
                sum += a[h][k] * b[k];
            d[2 * h] = (float)sum[0];
            d[2 * h + 1] = (float)sum[1];
        }
    }
}
static void product(const Product &p) {
    current->products.add(p, multiply);
}
/* The first operand in registers: a lane has two neighbours of two rows, and the same 8 deeper. */
static void product_of_words(Product p, const u32 (&words)[4]) {
    const u32 *all = together(words, 4, [](Warp &w) {
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 16; i++) /* row i / 8, word i % 8 of its depth */
                w.out[l][i] = w.in[l / 4 * 4 + i % 4][i / 8 + i % 8 / 4 * 2];
    });
    p.words = true;
    memcpy(p.of, all, sizeof p.of);
    product(p);
}
static void wg_fence() {}
static void wg_commit() {
    current->products.commit();
}
/* The four warps go on together: a slot that one gives back all have read. */
template <int LEFT> static void wg_wait() {
    current->products.wait(LEFT, multiply);
    meet(block->groups[threadIdx.x / WARPGROUP], WARPGROUP);
}
template <int> static void fewer_registers() {}
template <int> static void more_registers() {}

/* ---- asynchronous copies ---- */

static void land(const Copy &c) {
    check_access(c.from, (size_t)c.bytes, (size_t)c.size);
    u8 *to = shared_at(c.to, (u32)c.size);
    memcpy(to, c.from, (size_t)c.bytes);
    memset(to + c.bytes, 0, (size_t)(c.size - c.bytes));
}
template <int BYTES> static void cp_async(u32 to, const void *from, int bytes) {
    if (bytes < 0 || bytes > BYTES)
        wrong("an asynchronous copy of bytes", bytes);
    else
        current->copies.add(Copy{to, from, bytes, BYTES}, land);
}
static void cp_commit() {
    current->copies.commit();
}
template <int LEFT> static void cp_wait() {
    current->copies.wait(LEFT, land);
}
static void copies_arrive(u32 bar) {
    current->copies.commit();
    current->copies.wait(0, land);
    mbar_arrive(bar);
}
static const u8 *row_at(const u8 *from, u32 place) {
    return from + (size_t)place * 16;
}
static int held(int x) {
    return x;
}
static const u8 *held(const u8 *p) {
    return p;
}
