/* micro_avx512vnni.c: rows of 8 bits with AVX-512's dot products of four bytes, which read one side as
 * unsigned. */
#include "cpu/micro/micro_internal.h"

#if defined(__x86_64__)
#include "cpu/micro/micro_zmm.h"

enum { SIGNED = 0 };

static inline __attribute__((always_inline)) __m512i dot_bytes(__m512i sum, __m512i w, __m512i a,
                                                               bool is_signed) {
    (void)is_signed;
    return _mm512_dpbusd_epi32(sum, w, a);
}

static inline __attribute__((always_inline)) __m512i dot_halves(__m512i sum, __m512i w, __m512i a) {
    return _mm512_dpbusd_epi32(sum, w, a);
}

#include "cpu/micro/micro_integers.h"

void epi_integers_avx512vnni(int rows, int cols, int64_t k, const void *a, const void *const b[],
                             const epi_micro_bits *f, float *c, int64_t ldc, bool add) {
    run_integers(rows, cols, k, a, b, f, c, ldc, add);
}
#endif
