/* micro_bf16mm.c: bf16 with BFMMLA, which multiplies two rows of A by two rows of B over a depth of
 * four: 6 x 4 vectors of sums, each of 2 x 2 elements. */
#include "cpu/micro/micro_internal.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#include <string.h>

enum { MR = 12, NR = 8, DEPTH = 4, PAIRS_A = MR / 2, PAIRS_B = NR / 2, VECTOR = 8, KC = 768 };
enum { AHEAD = 8 }; /* A comes from the second-level cache: prefetched this many iterations early */

/* No load through p moves above this. A compiler that loads all of A's rows first has too few registers left
 * for the sums, and a sum that waits for its store and load again in every iteration makes the kernel twice
 * as slow. */
#define LATER(p) __asm__ volatile("" : "+r"(p))

/* Four sums of one row, from two neighbouring vectors; `row` is 0 or 1. */
static inline float32x4_t join(float32x4_t left, float32x4_t right, bool row) {
    return row ? vcombine_f32(vget_high_f32(left), vget_high_f32(right))
               : vcombine_f32(vget_low_f32(left), vget_low_f32(right));
}

static inline void put(float *c, float32x4_t sum, bool add) {
    vst1q_f32(c, add ? vaddq_f32(sum, vld1q_f32(c)) : sum);
}

static inline __attribute__((always_inline)) void run_some(const int rows, int64_t k, const void *pa,
                                                           const void *pb, int64_t ldb, float *c, int64_t ldc,
                                                           bool add, bool go_on,
                                                           epi_prefetch_cursor *cursor) {
    const bfloat16_t *a = pa, *b = pb;
    epi_prefetch_cursor next = *cursor;
    float32x4_t sum[PAIRS_A][PAIRS_B];
    EPI_UNROLL for (int i = 0; i < rows / 2; i++) {
        EPI_UNROLL for (int j = 0; j < PAIRS_B; j++) {
            const float *first = c + 2 * i * ldc + 2 * j;
            sum[i][j] = go_on ? vcombine_f32(vld1_f32(first), vld1_f32(first + ldc)) : vdupq_n_f32(0);
        }
    }
    for (; k > 0; k -= DEPTH, a += MR * DEPTH, b += ldb) {
        const bfloat16x8_t b0 = vld1q_bf16(b), b1 = vld1q_bf16(b + VECTOR);
        const bfloat16x8_t b2 = vld1q_bf16(b + 2 * VECTOR), b3 = vld1q_bf16(b + 3 * VECTOR);
        __builtin_prefetch(a + MR * DEPTH * AHEAD);
        epi_prefetch_step(&next, DEPTH);
        EPI_UNROLL for (int i = 0; i < rows / 2; i++) {
            const bfloat16x8_t x = vld1q_bf16(a + i * VECTOR);
            LATER(a);
            sum[i][0] = vbfmmlaq_f32(sum[i][0], x, b0);
            sum[i][1] = vbfmmlaq_f32(sum[i][1], x, b1);
            sum[i][2] = vbfmmlaq_f32(sum[i][2], x, b2);
            sum[i][3] = vbfmmlaq_f32(sum[i][3], x, b3);
        }
    }
    EPI_UNROLL for (int i = 0; i < rows; i++, c += ldc) {
        put(c, join(sum[i / 2][0], sum[i / 2][1], i % 2), add);
        put(c + NR / 2, join(sum[i / 2][2], sum[i / 2][3], i % 2), add);
    }
    *cursor = next;
}

EPI_MICRO_RUNS(DEPTH, EPI_MICRO_CASE(2) EPI_MICRO_CASE(4) EPI_MICRO_CASE(8))

/* ---- few rows against B as it lies in memory ---- */

/* Columns that are taken together, and bytes that a column is asked for ahead. */
enum { COLS = 4, EARLY = 1024 };

/* Two columns' first four of the depth, or the four after them, side by side. */
static inline bfloat16x8_t side_by_side(bfloat16x8_t left, bfloat16x8_t right, bool after) {
    const uint64x2_t x = vreinterpretq_u64_bf16(left), y = vreinterpretq_u64_bf16(right);
    return vreinterpretq_bf16_u64(after ? vzip2q_u64(x, y) : vzip1q_u64(x, y));
}

/* One sweep of four columns against `rows` rows. What the columns lack of eight is zero. */
static inline __attribute__((always_inline)) void direct(const int rows, int64_t depth, const bfloat16_t *a,
                                                         const bfloat16_t *const b[], float *c, int64_t ldc,
                                                         bool add) {
    float32x4_t sum[EPI_MICRO_FEW / 2][2];
    EPI_UNROLL for (int i = 0; i < rows / 2; i++) sum[i][0] = sum[i][1] = vdupq_n_f32(0);
    for (int64_t k = 0; k < depth; k += VECTOR) {
        bfloat16x8_t w[COLS];
        EPI_UNROLL for (int j = 0; j < COLS; j++) {
            __builtin_prefetch((const char *)(b[j] + k) + EARLY, 0, 2);
            if (k + VECTOR <= depth) {
                w[j] = vld1q_bf16(b[j] + k);
            } else {
                bfloat16_t end[VECTOR];
                memset(end, 0, sizeof end);
                memcpy(end, b[j] + k, (size_t)(depth - k) * sizeof *end);
                w[j] = vld1q_bf16(end);
            }
        }
        EPI_UNROLL for (int after = 0; after < 2; after++) {
            if (k + after * DEPTH >= depth)
                break;
            const bfloat16x8_t b0 = side_by_side(w[0], w[1], after), b1 = side_by_side(w[2], w[3], after);
            EPI_UNROLL for (int i = 0; i < rows / 2; i++) {
                const bfloat16x8_t x = vld1q_bf16(a + (k + after * DEPTH) * rows + i * VECTOR);
                sum[i][0] = vbfmmlaq_f32(sum[i][0], x, b0);
                sum[i][1] = vbfmmlaq_f32(sum[i][1], x, b1);
            }
        }
    }
    EPI_UNROLL for (int i = 0; i < rows; i++)
        put(c + i * ldc, join(sum[i / 2][0], sum[i / 2][1], i % 2), add);
}

static void run_direct(int rows, int cols, int64_t k, const void *a, const void *const b[], epi_dtype type,
                       float *c, int64_t ldc, bool add) {
    (void)type;
    for (int j = 0; j < cols; j += COLS)
        for (int64_t k0 = 0; k0 < k; k0 += KC) {
            const int64_t depth = k - k0 < KC ? k - k0 : KC;
            const bfloat16_t *column[COLS], *x = (const bfloat16_t *)a + k0 * rows;
            for (int i = 0; i < COLS; i++) /* beyond the last column the first one again: unread */
                column[i] = (const bfloat16_t *)b[j + i < cols ? j + i : j] + k0;
            if (rows == 2)
                direct(2, depth, x, column, c + j, ldc, add || k0 > 0);
            else if (rows == 4)
                direct(4, depth, x, column, c + j, ldc, add || k0 > 0);
            else
                direct(8, depth, x, column, c + j, ldc, add || k0 > 0);
        }
}

const epi_micro epi_micro_bf16mm = {
    .name = "bf16mm",
    .type = EPI_BF16,
    .mr = MR,
    .nr = NR,
    .ka = DEPTH,
    .kb = DEPTH,
    .depth = DEPTH,
    .kc = KC,
    .usable = epi_has_bf16mm,
    .run = run,
    .run_rows = run_rows,
    .direct = {.rows = {2, 4, 8}, .ka = DEPTH, .run = run_direct},
};
#endif
