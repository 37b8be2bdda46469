/* device.h: enough of CUDA C++ for the emitted texts to compile for the host. Comes before the texts.
 *
 * The threads of a block are contexts that run in turn and change over where they wait: at a barrier, or for
 * the other lanes of their warp. Clusters run one after the other, or all at once, where blocks wait for each
 * other; the blocks that run take turns, and whoever's turn it is has his shared memory put in place. */
#include <link.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "host.h"

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define __device__
#define __noinline__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n)
#define __shared__ thread_local /* one thread runs all; what a library has of these lies together */

/* ---- what went wrong ---- */

static emu_host *host;

static void wrong(const char *what, i64 number) {
    if (!host->wrong++)
        snprintf(host->first, sizeof host->first, "%s: %lld", what, number);
}

static void check_access(const void *p, size_t bytes, size_t alignment) {
    const char *at = (const char *)p;
    if ((size_t)p % alignment)
        wrong("an access that is not aligned to", (i64)alignment);
    for (int i = 0; i < host->range_count; i++)
        if (at >= host->ranges[i].from && at + bytes <= host->ranges[i].from + host->ranges[i].bytes)
            return;
    if (bytes)
        wrong("an access outside all tensors, of bytes", (i64)bytes);
}

/* What is stored once only lies over ones. */
static void check_once(const void *p, size_t bytes) {
    const u8 *at = (const u8 *)p;
    bool ones = true;
    for (size_t i = 0; i < bytes; i++)
        ones &= at[i] == 0xff;
    for (int i = 0; i < host->range_count && !ones; i++)
        if (host->ranges[i].once && (const char *)at >= host->ranges[i].from &&
            (const char *)at < host->ranges[i].from + host->ranges[i].bytes)
            wrong("stored twice, at byte", (const char *)at - host->ranges[i].from);
}

/* ---- threads ---- */

struct Index {
    unsigned x;
};

struct Copy { /* on its way into shared memory; the rest of `size` becomes zero */
    u32 to;
    const void *from;
    int bytes, size;
};

struct Stored { /* a box on its way to memory */
    const emu_box *map;
    u32 from;
    int x, y, z, w;
};

struct Product { /* of one warpgroup, on its way: d = a * b, of n columns, or that added to it */
    float *d;
    u64 a, b; /* in shared memory, */
    bool a_mn, b_mn, add;
    int n;
    bool bf16;    /* or f16 */
    bool bytes;   /* or those of 8 bits, 32 deep, without a_mn and b_mn, */
    bool e5m2[2]; /* which are e4m3 or this */
    bool words;   /* or the first in words of registers: those of this thread's rows, 16 deep, */
    u32 of[2][8]; /* gathered from the lanes that have them */
};

enum { MOST_COPIES = 256, MOST_PRODUCTS = 64, STACK_BYTES = 3 << 15, MOST_BLOCKS = 8, WARPGROUP = 128 };

/* What a thread has on its way: at once, or where all is late, when its group is waited for. */
template <class T, int MOST> struct Underway {
    T at[MOST]; /* a queue; ends[] are the sizes of the committed groups, oldest first */
    int count, groups, ends[64];
    template <class F> void add(const T &x, F land) {
        if (!host->late)
            land(x);
        else if (count < MOST)
            at[count++] = x;
        else
            wrong("more on their way than", MOST);
    }
    void commit() {
        if (groups < 64)
            ends[groups++] = count;
        else
            wrong("more groups on their way than", 64);
    }
    template <class F> void wait(int left, F land) {
        const int over = groups - left, landed = over > 0 ? ends[over - 1] : 0;
        if (over <= 0)
            return;
        for (int i = 0; i < landed; i++)
            land(at[i]);
        count -= landed;
        groups = left;
        memmove(at, at + landed, (size_t)count * sizeof *at);
        for (int i = 0; i < left; i++)
            ends[i] = ends[i + over] - landed;
    }
};

struct Thread {
    jmp_buf at;
    ucontext_t start;
    bool started, done;
    Index index;
    char *stack;
    Underway<Copy, MOST_COPIES> copies;
    Underway<Stored, MOST_COPIES> stores;
    Underway<Product, MOST_PRODUCTS> products;
    int meeting; /* of the cluster, that it has arrived for */
};

struct Barrier {
    int waiting, number, threads;
};

/* All lanes of a warp hand in words; the last makes everyone's result. */
struct Warp {
    int waiting, number, lanes;
    u32 in[32][10], out[32][16];
};

struct Arriving { /* brought by TMA, late: neighbouring bytes, or a box */
    u32 to, bytes, barrier;
    const void *from; /* NULL for a box */
    emu_box map;      /* a copy: whoever asked for it may have ended */
    int x, y, z, w, v;
};

struct Block {
    Index index;
    Thread threads[1024];
    int left;                         /* threads that have not ended */
    Barrier barriers[16];             /* the first is that of __syncthreads() */
    Barrier groups[1024 / WARPGROUP]; /* warpgroups meet where they wait for tensor cores */
    Warp warps[32];
    Arriving arriving[MOST_COPIES];
    int arriving_count;
    bool any;          /* of the threads that meet in __syncthreads_or() */
    u8 *memory, *rest; /* what the launch asked for; the other shared memory while others have their turn */
};

static Thread *current;
static Block *block;
static jmp_buf scheduler;
static Index gridDim;
static i64 progress; /* barriers passed and threads ended */
#define threadIdx (current->index)
#define blockIdx (block->index)

static void change_over() {
    if (!_setjmp(current->at))
        _longjmp(scheduler, 1);
}

static int arrive(Barrier &b, int threads) {
    const int mine = b.number;
    if (b.waiting && b.threads != threads)
        wrong("a barrier of different numbers of threads", threads);
    b.threads = threads;
    if (++b.waiting == threads) {
        b.waiting = 0;
        b.number++;
        progress++;
    }
    return mine;
}
static void wait_for(const Barrier &b, int number) {
    while (b.number == number)
        change_over();
}
static void meet(Barrier &b, int threads) {
    wait_for(b, arrive(b, threads));
}

static int block_threads;
static void __syncthreads() {
    meet(block->barriers[0], block_threads);
}
static bool __syncthreads_or(bool mine) {
    block->any |= mine;
    __syncthreads();
    const bool any = block->any;
    __syncthreads();
    block->any = false;
    __syncthreads();
    return any;
}

template <class F> static const u32 *together(const u32 *in, int count, F make) {
    Warp &w = block->warps[threadIdx.x / 32];
    const int lane = threadIdx.x % 32, mine = w.number;
    memcpy(w.in[lane], in, 4 * (size_t)count);
    if (++w.waiting == w.lanes) {
        make(w);
        w.waiting = 0;
        w.number++;
        progress++;
    }
    while (w.number == mine)
        change_over();
    return w.out[lane];
}

static void __syncwarp() {
    const u32 none = 0;
    together(&none, 1, [](Warp &) {});
}

static bool __any_sync(u32, bool mine) {
    const u32 in = mine;
    return *together(&in, 1, [](Warp &w) {
        u32 any = 0;
        for (int l = 0; l < 32; l++)
            any |= w.in[l][0];
        for (int l = 0; l < 32; l++)
            w.out[l][0] = any;
    });
}
template <class T> static T __shfl_xor_sync(u32, T value, int mask) {
    static_assert(sizeof(T) == 4, "a word a lane");
    u32 in[2] = {0, (u32)mask};
    memcpy(in, &value, 4);
    const u32 *out = together(in, 2, [](Warp &w) {
        for (int l = 0; l < w.lanes; l++) {
            const int from = (l ^ (int)w.in[l][1]) & 31;
            if (w.in[l][1] != w.in[0][1])
                wrong("lanes that shuffle by different masks", l);
            if (from >= w.lanes)
                wrong("a shuffle from a lane that is not there", from);
            w.out[l][0] = w.in[from][0];
        }
    });
    memcpy(&value, out, 4);
    return value;
}

static u32 __shfl_sync(u32, u32 value, int from) {
    const u32 in[2] = {value, (u32)from & 31};
    return *together(in, 2, [](Warp &w) {
        for (int l = 0; l < w.lanes; l++) {
            if ((int)w.in[l][1] >= w.lanes)
                wrong("a shuffle from a lane that is not there", w.in[l][1]);
            w.out[l][0] = w.in[w.in[l][1]][0];
        }
    });
}
static u32 __shfl_down_sync(u32 all, u32 value, int by) { /* the last lanes keep their own */
    const int lane = (int)(threadIdx.x % 32);
    return __shfl_sync(all, value, lane + by < 32 ? lane + by : lane);
}
static int __ffs(u32 x) {
    return __builtin_ffs((int)x);
}
static int __clz(u32 x) {
    return x ? __builtin_clz(x) : 32;
}
static u32 __byte_perm(u32 x, u32 y, u32 selector) {
    const u64 bytes = (u64)y << 32 | x;
    u32 out = 0;
    for (int i = 0; i < 4; i++)
        out |= (u32)(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return out;
}

static u32 __ballot_sync(u32, bool vote) {
    const u32 in = vote;
    return *together(&in, 1, [](Warp &w) {
        u32 all = 0;
        for (int l = 0; l < w.lanes; l++)
            all |= w.in[l][0] << l;
        for (int l = 0; l < 32; l++)
            w.out[l][0] = all;
    });
}

static u32 __match_any_sync(u32, int value) {
    const u32 in = (u32)value;
    return *together(&in, 1, [](Warp &w) {
        for (int l = 0; l < w.lanes; l++) {
            w.out[l][0] = 0;
            for (int k = 0; k < w.lanes; k++)
                w.out[l][0] |= (u32)(w.in[k][0] == w.in[l][0]) << k;
        }
    });
}
static u64 atomicAdd(u64 *to, u64 more) {
    u64 was = *to;
    *to += more;
    return was;
}
static int atomicAdd(int *to, int more) {
    const int was = *to;
    *to += more;
    return was;
}

/* ---- intrinsics ---- */

static int __popc(u32 x) {
    return __builtin_popcount(x);
}

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    u32 x, y;
};
struct alignas(16) uint4 {
    u32 x, y, z, w;
};
static float2 make_float2(float x, float y) {
    return {x, y};
}
static float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
static uint2 make_uint2(u32 x, u32 y) {
    return {x, y};
}
static uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) {
    return {x, y, z, w};
}

static inline float __uint_as_float(u32 u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static float __int_as_float(int i) {
    return __uint_as_float((u32)i);
}
static inline u32 __float_as_uint(float f) {
    u32 u;
    memcpy(&u, &f, 4);
    return u;
}
static float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
static double __fma_rn(double a, double b, double c) {
    return fma(a, b, c);
}
static float __fdiv_rn(float a, float b) {
    return a / b;
}
static float __fsqrt_rn(float a) {
    return sqrtf(a);
}
static float rsqrtf(float a) {
    return 1 / sqrtf(a);
}
static int __float2int_rd(float a) {
    return a != a ? 0 : a >= 0x1p31f ? 0x7fffffff : a < -0x1p31f ? -0x7fffffff - 1 : (int)floorf(a);
}
static int __float2int_ru(float a) {
    return a != a ? 0 : a > 0x1.fffffep30f ? 0x7fffffff : a < -0x1p31f ? -0x7fffffff - 1 : (int)ceilf(a);
}
static int __float2int_rn(float a) {
    return (int)lrintf(a);
}
/* Toward 0. */
static float __ll2float_rz(i64 a) {
    float f = (float)a;
    const bool away = f >= 9.2233720e18f || (a < 0 ? (i64)f < a : (i64)f > a);
    return away ? nextafterf(f, 0.f) : f;
}
static i64 __float2ll_rn(float a) {
    return llrintf(a);
}
#define FETCH
template <class T> static T fetch(const T *p) {
    T value;
    check_access(p, sizeof(T), sizeof(T));
    memcpy(&value, p, sizeof(T));
    return value;
}
static int min(int a, int b) {
    return a < b ? a : b;
}
static int max(int a, int b) {
    return a > b ? a : b;
}
static i64 min(i64 a, i64 b) {
    return a < b ? a : b;
}
static i64 max(i64 a, i64 b) {
    return a > b ? a : b;
}

/* ---- shared memory ---- */

/* What the texts declare comes first among the addresses, and from ASKED_FOR on what a launch asks for. */
enum { ASKED_FOR = 1 << 20, MOST_MEMORY = 256 << 10 };
static u8 *declared;
static u32 declared_bytes, memory_bytes;
static __shared__ u64 first_declared;

static u64 __cvta_generic_to_shared(const void *p) {
    const u8 *at = (const u8 *)p;
    return at >= declared && at < declared + declared_bytes ? (u64)(at - declared)
                                                            : ASKED_FOR + (u64)(at - block->memory);
}

/* The place of `bytes` bytes, which start at a multiple of `alignment`. */
static inline u8 *shared_place(u32 address, u32 bytes, u32 alignment) {
    const bool asked = address >= ASKED_FOR;
    const u32 at = asked ? address - ASKED_FOR : address, end = asked ? memory_bytes : declared_bytes;
    if (address % alignment || bytes > end || at > end - bytes) {
        wrong("shared memory, misplaced at", address);
        return block->memory;
    }
    return (asked ? block->memory : declared) + at;
}
static inline u8 *shared_at(u32 address, u32 bytes) {
    return shared_place(address, bytes, bytes);
}
