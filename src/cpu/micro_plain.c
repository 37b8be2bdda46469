/* micro_plain.c: f32 in portable vectors of four: the twin of every other kernel, always there.
 * 12 sums, two vectors of B and one element of A fill the 16 registers of the smallest machines. */
#include "cpu/micro_parts.h"
#include "cpu/pack_move.h"

#include <string.h>

enum { MR = 6, NR = 8, VECTOR = 4 };

typedef float v4f32 __attribute__((vector_size(16)));

static inline v4f32 load(const float *p) {
    v4f32 x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline void store(float *p, v4f32 x) {
    memcpy(p, &x, sizeof x);
}

static inline __attribute__((always_inline)) void run_some(const int rows, int64_t k, const void *pa,
                                                           const void *pb, int64_t ldb, float *c, int64_t ldc,
                                                           bool add, bool go_on, epi_soon *soon) {
    const float *a = pa, *b = pb;
    v4f32 sum[MR][2];
    EPI_UNROLL for (int i = 0; i < rows; i++) {
        sum[i][0] = go_on ? load(c + i * ldc) : (v4f32){0};
        sum[i][1] = go_on ? load(c + i * ldc + VECTOR) : (v4f32){0};
    }
    epi_soon next = *soon;
    for (; k > 0; k--, a += MR, b += ldb) {
        const v4f32 b0 = load(b), b1 = load(b + VECTOR);
        epi_soon_ask(&next, 1);
        EPI_UNROLL for (int i = 0; i < rows; i++) {
            sum[i][0] += a[i] * b0;
            sum[i][1] += a[i] * b1;
        }
    }
    EPI_UNROLL for (int i = 0; i < rows; i++, c += ldc) {
        if (add) {
            sum[i][0] += load(c);
            sum[i][1] += load(c + VECTOR);
        }
        store(c, sum[i][0]);
        store(c + VECTOR, sum[i][1]);
    }
    *soon = next;
}

EPI_MICRO_RUNS(1, EPI_MICRO_CASE(1) EPI_MICRO_CASE(2) EPI_MICRO_CASE(4))

const epi_micro epi_micro_plain = {
    .name = "plain",
    .type = EPI_F32,
    .mr = MR,
    .nr = NR,
    .ka = 1,
    .kb = 1,
    .depth = 1,
    .kc = 256,
    .own = 1 << 20,
    .usable = epi_has_plain,
    .run = run,
    .run_rows = run_rows,
    .widen_f16 = epi_widen_f16,
};
