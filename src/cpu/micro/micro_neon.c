/* micro_neon.c: f32 with NEON: 12 rows of A, lane by lane, against two vectors of B. */
#include "cpu/micro/micro_internal.h"
#include "cpu/product/pack_move.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#include <string.h>

enum { MR = 12, NR = 8, VECTOR = 4, KC = 384 };
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
                                                           const void *pb, int64_t ldb, float *c, int64_t ldc,
                                                           bool add, bool go_on,
                                                           epi_prefetch_cursor *cursor) {
    const float *a = pa, *b = pb;
    epi_prefetch_cursor next = *cursor;
    float32x4_t sum[MR][2];
    epi_prefetch_c(c, ldc, rows, NR);
    EPI_UNROLL for (int i = 0; i < rows; i++) {
        sum[i][0] = go_on ? vld1q_f32(c + i * ldc) : vdupq_n_f32(0);
        sum[i][1] = go_on ? vld1q_f32(c + i * ldc + VECTOR) : vdupq_n_f32(0);
    }
    for (; k > 0; k--, a += MR, b += ldb) {
        const float32x4_t b0 = vld1q_f32(b), b1 = vld1q_f32(b + VECTOR);
        if (rows == 1) {
            const float32x4_t a0 = vld1q_dup_f32(a);
            ROW(0, a0, 0);
            continue;
        }
        const float32x4_t a0 = vld1q_f32(a), a1 = vld1q_f32(a + VECTOR), a2 = vld1q_f32(a + 2 * VECTOR);
        __builtin_prefetch(a + MR * AHEAD);
        epi_prefetch_step(&next, 1);
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
    *cursor = next;
}

static void widen_f16(float *dst, const uint16_t *src, int64_t n) {
    int64_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR)
        vst1q_f32(dst + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(src + i))));
    for (; i < n; i++)
        dst[i] = vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(src[i]))), 0);
}

EPI_MICRO_RUNS(1, EPI_MICRO_CASE(1) EPI_MICRO_CASE(4) EPI_MICRO_CASE(8))

/* ---- few rows against B as it lies in memory ---- */

/* Columns that are taken together, and bytes of each at a time: rows that are a power of two long share a set
 * of the first-level cache, which has room for no more than four lines. */
enum { COLS = 4, LINE = 64 };
/* Bytes that a column is asked for ahead, into the first-level and the second-level cache. */
enum { SOON = 192, EARLY = 1024 };

/* Four columns at each of four depths, from four depths of each of four columns; and back. */
static inline __attribute__((always_inline)) void turn(float32x4_t x[4]) {
    const float64x2_t lo01 = vreinterpretq_f64_f32(vzip1q_f32(x[0], x[1]));
    const float64x2_t hi01 = vreinterpretq_f64_f32(vzip2q_f32(x[0], x[1]));
    const float64x2_t lo23 = vreinterpretq_f64_f32(vzip1q_f32(x[2], x[3]));
    const float64x2_t hi23 = vreinterpretq_f64_f32(vzip2q_f32(x[2], x[3]));
    x[0] = vreinterpretq_f32_f64(vzip1q_f64(lo01, lo23));
    x[1] = vreinterpretq_f32_f64(vzip2q_f64(lo01, lo23));
    x[2] = vreinterpretq_f32_f64(vzip1q_f64(hi01, hi23));
    x[3] = vreinterpretq_f32_f64(vzip2q_f64(hi01, hi23));
}

static inline __attribute__((always_inline)) void ask(const void *p) {
    __builtin_prefetch((const char *)p + SOON, 0, 3);
    __builtin_prefetch((const char *)p + EARLY, 0, 2);
}

/* Elements k and after of a column, as many as make 16 bytes or 8 of the depth. */
static inline __attribute__((always_inline)) void load_eight(const epi_dtype type, const void *column,
                                                             int64_t k, float32x4_t x[2]) {
    if (type == EPI_F32) {
        x[0] = vld1q_f32((const float *)column + k);
        x[1] = vld1q_f32((const float *)column + k + VECTOR);
        return;
    }
    const uint16x8_t half = vld1q_u16((const uint16_t *)column + k), zero = vdupq_n_u16(0);
    if (type == EPI_BF16) {
        x[0] = vreinterpretq_f32_u16(vzip1q_u16(zero, half));
        x[1] = vreinterpretq_f32_u16(vzip2q_u16(zero, half));
    } else {
        x[0] = vcvt_f32_f16(vget_low_f16(vreinterpretq_f16_u16(half)));
        x[1] = vcvt_high_f32_f16(vreinterpretq_f16_u16(half));
    }
}

/* One lane of each column's vector against that depth of the rows. */
#define LANE(q, lane) \
    EPI_UNROLL for (int v = 0; v < vectors; v++) { \
        const float32x4_t x = vld1q_f32(a + ((k + 4 * (q) + (lane)) * vectors + v) * VECTOR); \
        EPI_UNROLL for (int j = 0; j < COLS; j++) sum[j][v] = vfmaq_laneq_f32(sum[j][v], x, w[j][q], lane); \
    }
#define FOUR_LANES(q) \
    LANE(q, 0) \
    LANE(q, 1) \
    LANE(q, 2) \
    LANE(q, 3)

/* The lanes of a vector are rows, `vectors` of them, so an element of B needs no more than one instruction,
 * and stays where it was loaded. */
static inline __attribute__((always_inline)) void lanes(const int vectors, const epi_dtype type,
                                                        int64_t depth, const float *a, const void *const b[],
                                                        float *c, int64_t ldc, bool add) {
    const int64_t line = type == EPI_F32 ? LINE / 4 : LINE / 2, size = type == EPI_F32 ? 4 : 2;
    float32x4_t sum[COLS][2], w[COLS][2];
    const void *column[COLS] = {b[0], b[1], b[2], b[3]};
    EPI_UNROLL for (int j = 0; j < COLS; j++) sum[j][0] = sum[j][1] = vdupq_n_f32(0);
    int64_t k = 0;
    for (int64_t end = line; end <= depth; end += line) {
        EPI_UNROLL for (int j = 0; j < COLS; j++) ask((const char *)column[j] + k * size);
        EPI_UNROLL for (int step = 0; step < line; step += 8, k += 8) {
            EPI_UNROLL for (int j = 0; j < COLS; j++) load_eight(type, column[j], k, w[j]);
            FOUR_LANES(0)
            FOUR_LANES(1)
        }
    }
    for (; k < depth; k++)
        EPI_UNROLL for (int v = 0; v < vectors; v++) {
            EPI_UNROLL for (int j = 0; j < COLS; j++) sum[j][v] =
                vfmaq_n_f32(sum[j][v], vld1q_f32(a + (k * vectors + v) * VECTOR),
                            epi_element(type, column[j], k, widen_f16));
        }
    EPI_UNROLL for (int v = 0; v < vectors; v++) {
        float32x4_t row[4] = {sum[0][v], sum[1][v], sum[2][v], sum[3][v]};
        turn(row);
        EPI_UNROLL for (int i = 0; i < 4; i++, c += ldc)
            vst1q_f32(c, add ? vaddq_f32(row[i], vld1q_f32(c)) : row[i]);
    }
}

/* Of a word of two bf16, the first of which is below. */
static inline float32x4_t first(float32x4_t x) {
    return vreinterpretq_f32_u16(vtrn1q_u16(vdupq_n_u16(0), vreinterpretq_u16_f32(x)));
}

static inline float32x4_t second(float32x4_t x) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0xffff0000)));
}

/* Four columns at each depth that 16 bytes of them hold. Of bf16 words are turned, pairs of the depth. */
static inline __attribute__((always_inline)) void
load_turned(const epi_dtype type, const void *const column[], int64_t k, float32x4_t w[8]) {
    float32x4_t x[2];
    EPI_UNROLL for (int j = 0; j < COLS; j++) {
        if (type == EPI_F32)
            w[j] = vld1q_f32((const float *)column[j] + k);
        else if (type == EPI_BF16)
            w[j] = vreinterpretq_f32_u16(vld1q_u16((const uint16_t *)column[j] + k));
        else {
            load_eight(type, column[j], k, x);
            w[j] = x[0];
            w[j + 4] = x[1];
        }
    }
    turn(w);
    if (type == EPI_F16)
        turn(w + 4);
    EPI_UNROLL for (int j = 3; j >= 0 && type == EPI_BF16; j--) {
        w[2 * j + 1] = second(w[j]);
        w[2 * j] = first(w[j]);
    }
}

#define FOUR_DEPTHS(x, w) \
    sum[g] = vfmaq_laneq_f32(sum[g], (w)[0], x, 0); \
    sum[g] = vfmaq_laneq_f32(sum[g], (w)[1], x, 1); \
    sum[g] = vfmaq_laneq_f32(sum[g], (w)[2], x, 2); \
    sum[g] = vfmaq_laneq_f32(sum[g], (w)[3], x, 3)

/* A single row leaves lanes empty. There it is less work to turn the depth into columns: eight shuffles and
 * four instructions that multiply instead of sixteen of these. */
static inline __attribute__((always_inline)) void single(const int groups, const epi_dtype type,
                                                         int64_t depth, const float *a, const void *const b[],
                                                         float *c, bool add) {
    const int64_t size = type == EPI_F32 ? 4 : 2, line = LINE / size, step = 16 / size;
    const void *column[2 * COLS];
    float32x4_t sum[2], w[8];
    EPI_UNROLL for (int j = 0; j < COLS * groups; j++) column[j] = b[j];
    EPI_UNROLL for (int g = 0; g < groups; g++) sum[g] = vdupq_n_f32(0);
    int64_t k = 0;
    for (int64_t end = line; end <= depth; end += line)
        EPI_UNROLL for (int q = 0; q < 4; q++, k += step) {
            EPI_UNROLL for (int g = 0; g < groups; g++) {
                ask((const char *)column[COLS * g + q] + k * size);
                load_turned(type, column + COLS * g, k, w);
                const float32x4_t x = vld1q_f32(a + k);
                FOUR_DEPTHS(x, w);
                if (type != EPI_F32) {
                    const float32x4_t y = vld1q_f32(a + k + VECTOR);
                    FOUR_DEPTHS(y, w + 4);
                }
            }
        }
    for (; k < depth; k++)
        EPI_UNROLL for (int g = 0; g < groups; g++) {
            float one[COLS];
            for (int j = 0; j < COLS; j++)
                one[j] = epi_element(type, column[COLS * g + j], k, widen_f16);
            sum[g] = vfmaq_n_f32(sum[g], vld1q_f32(one), a[k]);
        }
    EPI_UNROLL for (int g = 0; g < groups; g++, c += COLS) {
        vst1q_f32(c, add ? vaddq_f32(sum[g], vld1q_f32(c)) : sum[g]);
    }
}

/* One sweep of some columns. */
static inline __attribute__((always_inline)) void sweep(const epi_dtype type, int rows, int64_t k,
                                                        const float *a, const void *const b[], float *c,
                                                        int64_t ldc, bool add) {
    if (rows > VECTOR)
        lanes(2, type, k, a, b, c, ldc, add);
    else if (rows > 1)
        lanes(1, type, k, a, b, c, ldc, add);
    else
        single(type == EPI_BF16 ? 2 : 1, type, k, a, b, c, add);
}

static void run_direct(int rows, int cols, int64_t k, const void *a, const void *const b[], epi_dtype type,
                       float *c, int64_t ldc, bool add) {
    const int64_t size = type == EPI_F32 ? 4 : 2;
    const int step = rows == 1 && type == EPI_BF16 ? 2 * COLS : COLS;
    for (int j = 0; j < cols; j += step) {
        /* Beyond the last column the first one again: nobody reads the results. */
        const void *column[2 * COLS];
        for (int64_t k0 = 0; k0 < k; k0 += KC) {
            const int64_t depth = k - k0 < KC ? k - k0 : KC;
            for (int i = 0; i < step; i++)
                column[i] = (const char *)b[j + i < cols ? j + i : j] + k0 * size;
            const float *x = (const float *)a + k0 * rows;
            if (type == EPI_F32)
                sweep(EPI_F32, rows, depth, x, column, c + j, ldc, add || k0 > 0);
            else if (type == EPI_BF16)
                sweep(EPI_BF16, rows, depth, x, column, c + j, ldc, add || k0 > 0);
            else
                sweep(EPI_F16, rows, depth, x, column, c + j, ldc, add || k0 > 0);
        }
    }
}

/* ---- few rows against B whose columns are neighbours in memory ---- */

typedef float32x4_t vector;
enum { SUMS = 16 };

static inline __attribute__((always_inline)) void load_columns(const int vectors, const epi_dtype type,
                                                               const void *p, vector w[]) {
    if (type == EPI_F32)
        EPI_UNROLL for (int v = 0; v < vectors; v++) w[v] = vld1q_f32((const float *)p + v * VECTOR);
    else
        EPI_UNROLL for (int v = 0; v < vectors; v += 2) load_eight(type, p, v * VECTOR, w + v);
}

/* Row i of a vector of rows, whose lane must be written as a constant. */
#define ROW_OF(i, x, lane) \
    EPI_UNROLL for (int v = 0; v < vectors; v++) sum[i][v] = vfmaq_laneq_f32(sum[i][v], w[v], x, lane)

static inline __attribute__((always_inline)) void add_rows(const int rows, const int vectors, const float *a,
                                                           const vector w[], vector sum[][SUMS]) {
    const vector x = rows == 1   ? vld1q_dup_f32(a)
                     : rows == 2 ? vcombine_f32(vld1_f32(a), vdup_n_f32(0))
                                 : vld1q_f32(a);
    ROW_OF(0, x, 0);
    if (rows > 1)
        ROW_OF(1, x, 1);
    if (rows > 2) {
        ROW_OF(2, x, 2);
        ROW_OF(3, x, 3);
    }
    if (rows > 4) {
        const vector y = vld1q_f32(a + VECTOR);
        ROW_OF(4, y, 0);
        ROW_OF(5, y, 1);
        ROW_OF(6, y, 2);
        ROW_OF(7, y, 3);
    }
}

#include "cpu/micro/micro_across.h"

const epi_micro epi_micro_neon = {
    .name = "neon",
    EPI_MICRO_F32,
    .usable = epi_has_neon,
    .direct = {.rows = {1, 4, 8}, .ka = 1, .run = run_direct, .across = run_across},
    .widen_f16 = widen_f16,
};
#endif
