/* micro_avx512bf16.c: bf16 with the pairwise dot product of AVX-512: as the f32 kernel, each iteration
 * taking two elements of depth. */
#include "cpu/micro_parts.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { MR = 12, NR = 32, VECTOR = 16, PAIR = 2 };
enum { AHEAD = 16 }; /* A comes from the second-level cache: prefetched this many iterations early */

static inline __attribute__((always_inline)) void run_some(const int rows, int64_t k, const void *pa,
                                                           const void *pb, int64_t ldb, float *c, int64_t ldc,
                                                           bool add, bool go_on, epi_soon *soon) {
    const int *a = pa, *b = pb; /* pairs */
    epi_soon next = *soon;
    __m512 sum[MR][2];
    epi_prefetch_c(c, ldc, rows, NR);
    EPI_UNROLL for (int i = 0; i < rows; i++) {
        sum[i][0] = go_on ? _mm512_loadu_ps(c + i * ldc) : _mm512_setzero_ps();
        sum[i][1] = go_on ? _mm512_loadu_ps(c + i * ldc + VECTOR) : _mm512_setzero_ps();
    }
    for (; k > 0; k -= PAIR, a += MR, b += ldb / PAIR) {
        const __m512bh b0 = (__m512bh)_mm512_load_si512(b), b1 = (__m512bh)_mm512_load_si512(b + VECTOR);
        __builtin_prefetch(a + MR * AHEAD);
        epi_soon_ask(&next, PAIR);
        EPI_UNROLL for (int i = 0; i < rows; i++) {
            const __m512bh x = (__m512bh)_mm512_set1_epi32(a[i]);
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], x, b0);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, b1);
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

EPI_MICRO_RUNS(PAIR, EPI_MICRO_CASE(1) EPI_MICRO_CASE(2) EPI_MICRO_CASE(4) EPI_MICRO_CASE(8))

const epi_micro epi_micro_avx512bf16 = {
    .name = "avx512bf16",
    .type = EPI_BF16,
    .mr = MR,
    .nr = NR,
    .ka = PAIR,
    .kb = PAIR,
    .depth = PAIR,
    .kc = 768,
    .usable = epi_has_avx512bf16,
    .worth = epi_worth_avx512bf16,
    .run = run,
    .run_rows = run_rows,
};
#endif
