/* ptx.h: the functions that a text writes in PTX, as C++: the test leaves those out of the text. What no
 * function here is for (tensor maps, wgmma) does not compile, and so is seen. */

/* ---- base.cuh ---- */

static float f16_f32(u16 x) {
    const int e = x >> 10 & 31, m = x & 1023;
    const float v = e == 31 ? (m ? NAN : INFINITY)
                    : e     ? ldexpf((float)(1024 + m), e - 25)
                            : ldexpf((float)m, -24);
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
static float rcp(float x) {
    return 1 / x;
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

/* ---- ptx.cuh ---- */

template <class T> static T read_shared(u32 at) {
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
static u64 word_seen(const u64 *word) { /* who looks again and again, while nothing goes on, waits for others */
    static const Thread *who;
    static i64 before;
    static int times;
    check_access(word, 8, 8);
    times = who == current && progress == before ? times + 1 : 0;
    who = current;
    before = progress;
    if (times > 300)
        change_over();
    return *word;
}
static void word_leave(u64 *word, u64 number) {
    check_access(word, 8, 8);
    *word = number;
    progress++;
}
static void word_swap(u64 *word, u64 from, u64 to) {
    check_access(word, 8, 8);
    if (*word == from)
        *word = to;
    progress++;
}
static void fence_copies() {}
static void __threadfence() {}
static u64 time_now() {
    static u64 now;
    return now += 1000;
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

/* ---- barriers in memory, and what the copy engine brings ---- */

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

static void arrive_from_memory(const Arriving &a) {
    MemoryBarrier *b = memory_barrier(a.barrier);
    memcpy(shared_place(a.to, a.bytes, 16), a.from, a.bytes);
    b->bytes -= (int)a.bytes;
    barrier_changed(b);
}
static void bulk_load(u32 to, const void *from, u32 bytes, u32 barrier) {
    const Arriving a = {to, bytes, barrier, from};
    if (!bytes || bytes % 16 || bytes > MOST_MEMORY) {
        wrong("the copy engine is asked for bytes", (int)bytes);
        return;
    }
    check_access(from, bytes, 16);
    memory_barrier(barrier);
    memset(shared_place(to, bytes, 16), 0xff, bytes); /* nobody may still want what was there */
    if (!host->late)
        arrive_from_memory(a);
    else if (block->arriving_count < MOST_COPIES)
        block->arriving[block->arriving_count++] = a;
    else
        wrong("more copies on their way than", MOST_COPIES);
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

static int cluster_blocks;
static Block *cluster[MOST_CLUSTER];
static Barrier cluster_barrier;

static u32 cluster_rank() {
    return blockIdx.x % (unsigned)cluster_blocks;
}
static void cluster_arrive() {
    current->meeting = arrive(cluster_barrier, cluster_blocks * block_threads);
}
static void cluster_wait() {
    wait_for(cluster_barrier, current->meeting);
}
static void send_word(u32 at, u32 barrier, u32 to, u32 word) {
    if (to >= (u32)cluster_blocks || at + sizeof word > declared_bytes || barrier + 8 > declared_bytes ||
        !cluster[to]->left) {
        wrong("nobody to send to in block", to);
        return;
    }
    u8 *there = cluster[to] == block ? declared : cluster[to]->rest;
    MemoryBarrier *b = (MemoryBarrier *)(there + barrier);
    if (b->mark != MARK)
        wrong("no barrier was made in another block at", barrier);
    memcpy(there + at, &word, sizeof word);
    b->bytes -= (int)sizeof word;
    barrier_changed(b);
}

/* ---- asynchronous copies ---- */

static void land(const Copy &c) {
    check_access(c.from, (size_t)c.bytes, (size_t)c.size);
    u8 *to = shared_at(c.to, (u32)c.size);
    memcpy(to, c.from, (size_t)c.bytes);
    memset(to + c.bytes, 0, (size_t)(c.size - c.bytes));
}
template <int BYTES> static void cp_async(u32 to, const void *from, int bytes) {
    Thread &t = *current;
    const Copy copy = {to, from, bytes, BYTES};
    if (bytes < 0 || bytes > BYTES)
        wrong("an asynchronous copy of bytes", bytes);
    else if (!host->late)
        land(copy);
    else if (t.copy_count < MOST_COPIES)
        t.copies[t.copy_count++] = copy;
    else
        wrong("more copies on their way than", MOST_COPIES);
}
static void cp_async_once(u32 to, const void *from) {
    cp_async<16>(to, from, 16);
}
static void cp_commit() {
    Thread &t = *current;
    if (t.group_count < 16)
        t.ends[t.group_count++] = t.copy_count;
    else
        wrong("more groups of copies than", 16);
}
template <int LEFT> static void cp_wait() {
    Thread &t = *current;
    const int groups = t.group_count - LEFT, count = groups > 0 ? t.ends[groups - 1] : 0;
    if (groups <= 0)
        return;
    for (int i = 0; i < count; i++)
        land(t.copies[i]);
    t.copy_count -= count;
    t.group_count = LEFT;
    memmove(t.copies, t.copies + count, (size_t)t.copy_count * sizeof *t.copies);
    for (int i = 0; i < LEFT; i++)
        t.ends[i] = t.ends[i + groups] - count;
}
