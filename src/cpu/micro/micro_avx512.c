/* micro_avx512.c: f32 with AVX-512: 12 rows of A against two vectors of B, 24 sums in registers. */
#include "cpu/micro/micro_internal.h"

#if defined(__x86_64__)
#include "cpu/micro/micro_zmm.h"

enum { MR = 12, NR = 32, STEP = 1, AHEAD = 16 };

typedef __m512 sums, lanes;
typedef float lane;

#include "cpu/micro/micro_pair.h"

EPI_MICRO_RUNS(1, EPI_MICRO_CASE(1) EPI_MICRO_CASE(2) EPI_MICRO_CASE(4) EPI_MICRO_CASE(8))

/* ---- few rows against B as it lies in memory ---- */

#include "cpu/micro/micro_turned.h"

#include "cpu/micro/micro_across.h"

const epi_micro epi_micro_avx512 = {
    .name = "avx512",
    EPI_MICRO_F32,
    .own = 1 << 20,
    .usable = epi_has_avx512,
    .direct = {.rows = {1, 4, 8},
               .ka = 1,
               .run = run_direct,
               .bits = run_bits,
               .across = run_across,
               .integers = epi_integers_avx512vnni,
               .has_integers = epi_has_avx512vnni},
    .widen_f16 = epi_widen_f16c,
};
#endif
