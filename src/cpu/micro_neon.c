/* micro_neon.c: f32 with NEON: 12 rows of A, lane by lane, against two vectors of B. */
#include "cpu/micro_parts.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#include <string.h>

enum { MR = 12, NR = 8, VECTOR = 4 };
enum { AHEAD = 32 }; /* A comes from the second-level cache: prefetched this many iterations early */

/* Row i of C takes a lane, which must be written as a constant. */
#define ROW(i, x, lane) \
    sum[i][0] = vfmaq_laneq_f32(sum[i][0], b0, x, lane); \
    sum[i][1] = vfmaq_laneq_f32(sum[i][1], b1, x, lane)
#define FOUR_ROWS(i, x) \
    ROW(i, x, 0); \
    ROW(i + 1, x, 1); \
    ROW(i + 2, x, 2); \
    ROW(i + 3, x, 3)

static inline __attribute__((always_inline)) void run_some(const int rows, int64_t k, const void *pa,
                                                           const void *pb, float *c, int64_t ldc, bool add,
                                                           epi_soon *soon) {
    const float *a = pa, *b = pb;
    epi_soon next = *soon;
    float32x4_t sum[MR][2];
    epi_prefetch_c(c, ldc, rows, NR);
    EPI_UNROLL for (int i = 0; i < rows; i++) sum[i][0] = sum[i][1] = vdupq_n_f32(0);
    for (; k > 0; k--, a += MR, b += NR) {
        const float32x4_t b0 = vld1q_f32(b), b1 = vld1q_f32(b + VECTOR);
        if (rows == 1) {
            const float32x4_t a0 = vld1q_dup_f32(a);
            ROW(0, a0, 0);
            continue;
        }
        const float32x4_t a0 = vld1q_f32(a), a1 = vld1q_f32(a + VECTOR), a2 = vld1q_f32(a + 2 * VECTOR);
        __builtin_prefetch(a + MR * AHEAD);
        epi_soon_ask(&next, 1);
        FOUR_ROWS(0, a0);
        if (rows > 4) {
            FOUR_ROWS(4, a1);
        }
        if (rows > 8) {
            FOUR_ROWS(8, a2);
        }
    }
    EPI_UNROLL for (int i = 0; i < rows; i++, c += ldc) {
        if (add) {
            sum[i][0] = vaddq_f32(sum[i][0], vld1q_f32(c));
            sum[i][1] = vaddq_f32(sum[i][1], vld1q_f32(c + VECTOR));
        }
        vst1q_f32(c, sum[i][0]);
        vst1q_f32(c + VECTOR, sum[i][1]);
    }
    *soon = next;
}

static void widen_f16(float *dst, const uint16_t *src, int64_t n) {
    int64_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR)
        vst1q_f32(dst + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(src + i))));
    for (; i < n; i++)
        dst[i] = vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(src[i]))), 0);
}

EPI_MICRO_RUNS(EPI_MICRO_CASE(1) EPI_MICRO_CASE(4) EPI_MICRO_CASE(8))

/* ---- B as it lies in memory ---- */

/* Bytes of a row of B that are copied at a time, how far apart the copies lie, and how early they are asked
 * for. */
enum { COLS = EPI_MICRO_DIRECT, BLOCK = 512, BLOCK_ROW = BLOCK + 64, EARLY = 512 };

static inline void copy_block(uint8_t *to, const uint8_t *from, int64_t bytes) {
    int64_t x = 0;
    for (; x + 64 <= bytes; x += 64) {
        const uint8x16_t x0 = vld1q_u8(from + x), x1 = vld1q_u8(from + x + 16);
        const uint8x16_t x2 = vld1q_u8(from + x + 32), x3 = vld1q_u8(from + x + 48);
        __builtin_prefetch(from + x + EARLY, 0, 2);
        vst1q_u8(to + x, x0);
        vst1q_u8(to + x + 16, x1);
        vst1q_u8(to + x + 32, x2);
        vst1q_u8(to + x + 48, x3);
    }
    for (; x < bytes; x += 16)
        vst1q_u8(to + x, vld1q_u8(from + x));
}

/* Four columns at each of four depths, from four depths of each of four columns. */
static inline __attribute__((always_inline)) void turn(uint32x4_t x[4]) {
    const uint32x4_t lo01 = vzip1q_u32(x[0], x[1]), hi01 = vzip2q_u32(x[0], x[1]);
    const uint32x4_t lo23 = vzip1q_u32(x[2], x[3]), hi23 = vzip2q_u32(x[2], x[3]);
    x[0] = vreinterpretq_u32_u64(vzip1q_u64(vreinterpretq_u64_u32(lo01), vreinterpretq_u64_u32(lo23)));
    x[1] = vreinterpretq_u32_u64(vzip2q_u64(vreinterpretq_u64_u32(lo01), vreinterpretq_u64_u32(lo23)));
    x[2] = vreinterpretq_u32_u64(vzip1q_u64(vreinterpretq_u64_u32(hi01), vreinterpretq_u64_u32(hi23)));
    x[3] = vreinterpretq_u32_u64(vzip2q_u64(vreinterpretq_u64_u32(hi01), vreinterpretq_u64_u32(hi23)));
}

/* One depth of four columns against the rows. */
static inline __attribute__((always_inline)) void add_depth(const int rows, float32x4_t sum[], const float *a,
                                                            float32x4_t b) {
    if (rows == 1) {
        sum[0] = vfmaq_f32(sum[0], b, vld1q_dup_f32(a));
        return;
    }
    const float32x4_t x = vld1q_f32(a);
    sum[0] = vfmaq_laneq_f32(sum[0], b, x, 0);
    sum[1] = vfmaq_laneq_f32(sum[1], b, x, 1);
    if (rows > 2) {
        sum[2] = vfmaq_laneq_f32(sum[2], b, x, 2);
        sum[3] = vfmaq_laneq_f32(sum[3], b, x, 3);
    }
    if (rows > 4) {
        const float32x4_t y = vld1q_f32(a + VECTOR);
        sum[4] = vfmaq_laneq_f32(sum[4], b, y, 0);
        sum[5] = vfmaq_laneq_f32(sum[5], b, y, 1);
        sum[6] = vfmaq_laneq_f32(sum[6], b, y, 2);
        sum[7] = vfmaq_laneq_f32(sum[7], b, y, 3);
    }
}

/* 16 bytes of the depth of some groups of four columns, in turn: a sum waits for the one before it. */
static inline __attribute__((always_inline)) void add_groups(const int rows, const int groups,
                                                             const bool half,
                                                             float32x4_t sum[][EPI_MICRO_FEW], const float *a,
                                                             const uint8_t *b) {
    uint32x4_t x[COLS / VECTOR][4];
    EPI_UNROLL for (int g = 0; g < groups; g++) {
        EPI_UNROLL for (int j = 0; j < 4; j++) {
            x[g][j] = vreinterpretq_u32_u8(vld1q_u8(b + (VECTOR * g + j) * BLOCK_ROW));
        }
        turn(x[g]);
    }
    EPI_UNROLL for (int d = 0; d < 4; d++) {
        EPI_UNROLL for (int g = 0; g < groups; g++) { /* of bf16 a word has two, the first one below */
            const uint32x4_t first = half ? vshlq_n_u32(x[g][d], 16) : x[g][d];
            add_depth(rows, sum[g], a + (half ? 2 * d : d) * MR, vreinterpretq_f32_u32(first));
        }
        EPI_UNROLL for (int g = 0; g < groups && half; g++) {
            const uint32x4_t second = vandq_u32(x[g][d], vdupq_n_u32(0xffff0000));
            add_depth(rows, sum[g], a + (2 * d + 1) * MR, vreinterpretq_f32_u32(second));
        }
    }
}

static inline float element(const void *row, int64_t k, bool half) {
    uint32_t bits;
    if (half)
        bits = (uint32_t)((const uint16_t *)row)[k] << 16;
    else
        return ((const float *)row)[k];
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Rows of B in groups of four. A block of each row is copied first: rows that are a power of two long share a
 * set of the first-level cache, which has no room for all of them, and memory likes to be read in stretches.
 * Every sum takes its products in the order of the depth, one at a time, as run's do. */
static inline __attribute__((always_inline)) void direct(const int rows, const int groups, const bool half,
                                                         int64_t k, const float *a, const void *const b[],
                                                         float *c, int64_t ldc, bool add) {
    const int64_t size = half ? 2 : 4, step = 16 / size;
    const int turns = rows > 1 ? 2 : 4, together = groups < turns ? groups : turns;
    _Alignas(64) uint8_t block[COLS * BLOCK_ROW];
    float32x4_t sum[COLS / VECTOR][EPI_MICRO_FEW];
    EPI_UNROLL for (int g = 0; g < groups; g++) {
        EPI_UNROLL for (int i = 0; i < rows; i++) sum[g][i] = vdupq_n_f32(0);
    }
    int64_t at = 0;
    while (at + step <= k) {
        int64_t left = (k - at) * size / 16 * 16, bytes = left < BLOCK ? left : BLOCK;
        for (int j = 0; j < VECTOR * groups; j++)
            copy_block(block + j * BLOCK_ROW, (const uint8_t *)b[j] + at * size, bytes);
        for (int64_t x = 0; x < bytes; x += 16, at += step) {
            EPI_UNROLL for (int g = 0; g < groups; g += together) {
                add_groups(rows, together, half, sum + g, a + at * MR, block + VECTOR * g * BLOCK_ROW + x);
            }
        }
    }
    for (; at < k; at++)
        EPI_UNROLL for (int g = 0; g < groups; g++) {
            const float x[4] = {element(b[VECTOR * g], at, half), element(b[VECTOR * g + 1], at, half),
                                element(b[VECTOR * g + 2], at, half), element(b[VECTOR * g + 3], at, half)};
            add_depth(rows, sum[g], a + at * MR, vld1q_f32(x));
        }
    EPI_UNROLL for (int i = 0; i < rows; i++, c += ldc) {
        EPI_UNROLL for (int g = 0; g < groups; g++) {
            vst1q_f32(c + VECTOR * g, add ? vaddq_f32(sum[g][i], vld1q_f32(c + VECTOR * g)) : sum[g][i]);
        }
    }
}

static void run_direct(int rows, int cols, int64_t k, const void *a, const void *const b[], epi_dtype type,
                       float *c, int64_t ldc, bool add) {
    const void *all[COLS]; /* what is missing of a panel is one that is there: nobody reads the results */
    const bool half = type == EPI_BF16;
    for (int j = 0; j < COLS; j++)
        all[j] = b[j < cols ? j : 0];
    if (rows > 4) /* then two panels have more sums than there are registers */
        for (int j = 0; j < cols; j += NR)
            half ? direct(8, 2, true, k, a, all + j, c + j, ldc, add)
                 : direct(8, 2, false, k, a, all + j, c + j, ldc, add);
    else if (cols <= NR)
        half ? direct(4, 2, true, k, a, all, c, ldc, add) : direct(4, 2, false, k, a, all, c, ldc, add);
    else if (rows > 2)
        half ? direct(4, 4, true, k, a, all, c, ldc, add) : direct(4, 4, false, k, a, all, c, ldc, add);
    else if (rows == 2)
        half ? direct(2, 4, true, k, a, all, c, ldc, add) : direct(2, 4, false, k, a, all, c, ldc, add);
    else
        half ? direct(1, 4, true, k, a, all, c, ldc, add) : direct(1, 4, false, k, a, all, c, ldc, add);
}

const epi_micro epi_micro_neon = {
    .name = "neon",
    .type = EPI_F32,
    .mr = MR,
    .nr = NR,
    .ka = 1,
    .kb = 1,
    .depth = 1,
    .kc = 384,
    .usable = epi_has_neon,
    .run = run,
    .run_rows = run_rows,
    .run_direct = run_direct,
    .widen_f16 = widen_f16,
};
#endif
