/* pack_f16c.c: f16 to f32 with the conversion instruction of x86. */
#include "cpu/micro/micro_internal.h"

#if defined(__x86_64__)
#include <immintrin.h>

void epi_widen_f16c(float *dst, const uint16_t *src, int64_t n) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        _mm_storeu_ps(dst + i, _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(const void *)(src + i))));
    for (; i < n; i++)
        dst[i] = _cvtsh_ss(src[i]);
}
#endif
