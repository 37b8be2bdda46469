/* micro_avx512.c: f32 with AVX-512: 12 rows of A against two vectors of B, 24 sums in registers. */
#include "cpu/micro_parts.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { MR = 12, NR = 32, VECTOR = 16, KC = 256 };
enum { AHEAD = 16 }; /* A comes from the second-level cache: prefetched this many iterations early */

static inline __attribute__((always_inline)) void run_some(const int rows, int64_t k, const void *pa,
                                                           const void *pb, int64_t ldb, float *c, int64_t ldc,
                                                           bool add, bool go_on, epi_soon *soon) {
    const float *a = pa, *b = pb;
    epi_soon next = *soon;
    __m512 sum[MR][2];
    epi_prefetch_c(c, ldc, rows, NR);
    EPI_UNROLL for (int i = 0; i < rows; i++) {
        sum[i][0] = go_on ? _mm512_loadu_ps(c + i * ldc) : _mm512_setzero_ps();
        sum[i][1] = go_on ? _mm512_loadu_ps(c + i * ldc + VECTOR) : _mm512_setzero_ps();
    }
    for (; k > 0; k--, a += MR, b += ldb) {
        const __m512 b0 = _mm512_load_ps(b), b1 = _mm512_load_ps(b + VECTOR);
        __builtin_prefetch(a + MR * AHEAD);
        epi_soon_ask(&next, 1);
        EPI_UNROLL for (int i = 0; i < rows; i++) {
            const __m512 x = _mm512_set1_ps(a[i]);
            sum[i][0] = _mm512_fmadd_ps(x, b0, sum[i][0]);
            sum[i][1] = _mm512_fmadd_ps(x, b1, sum[i][1]);
        }
    }
    EPI_UNROLL for (int i = 0; i < rows; i++, c += ldc) {
        if (add) {
            sum[i][0] = _mm512_add_ps(sum[i][0], _mm512_loadu_ps(c));
            sum[i][1] = _mm512_add_ps(sum[i][1], _mm512_loadu_ps(c + VECTOR));
        }
        _mm512_storeu_ps(c, sum[i][0]);
        _mm512_storeu_ps(c + VECTOR, sum[i][1]);
    }
    *soon = next;
}

EPI_MICRO_RUNS(1, EPI_MICRO_CASE(1) EPI_MICRO_CASE(2) EPI_MICRO_CASE(4) EPI_MICRO_CASE(8))

#include "cpu/micro_lanes.h"

const epi_micro epi_micro_avx512 = {
    .name = "avx512",
    .type = EPI_F32,
    .mr = MR,
    .nr = NR,
    .ka = 1,
    .kb = 1,
    .depth = 1,
    .kc = KC,
    .own = 1 << 20,
    .usable = epi_has_avx512,
    .run = run,
    .run_rows = run_rows,
    .direct = {.rows = {8}, .ka = 1, .run = run_direct},
    .widen_f16 = epi_widen_f16c,
};
#endif
