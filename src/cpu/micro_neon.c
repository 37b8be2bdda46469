/* micro_neon.c: f32 with NEON: 12 rows of A, lane by lane, against two vectors of B. */
#include "cpu/micro_parts.h"

#if defined(__aarch64__)
#include <arm_neon.h>

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

static void run(int64_t k, const void *pa, const void *pb, float *c, int64_t ldc, bool add, epi_soon *soon) {
    const float *a = pa, *b = pb;
    epi_soon next = *soon;
    float32x4_t sum[MR][2];
    epi_prefetch_c(c, ldc, MR, NR);
    EPI_UNROLL for (int i = 0; i < MR; i++) sum[i][0] = sum[i][1] = vdupq_n_f32(0);
    for (; k > 0; k--, a += MR, b += NR) {
        const float32x4_t b0 = vld1q_f32(b), b1 = vld1q_f32(b + VECTOR);
        const float32x4_t a0 = vld1q_f32(a), a1 = vld1q_f32(a + VECTOR), a2 = vld1q_f32(a + 2 * VECTOR);
        __builtin_prefetch(a + MR * AHEAD);
        epi_soon_ask(&next, 1);
        FOUR_ROWS(0, a0);
        FOUR_ROWS(4, a1);
        FOUR_ROWS(8, a2);
    }
    EPI_UNROLL for (int i = 0; i < MR; i++, c += ldc) {
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
    .widen_f16 = widen_f16,
};
#endif
