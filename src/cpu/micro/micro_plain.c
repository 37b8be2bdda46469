/* micro_plain.c: f32 in portable vectors of four: the reference for every other kernel, which always exists.
 * 12 sums, two vectors of B and one element of A fill the 16 registers of the smallest machines. */
#include "cpu/micro/micro_internal.h"
#include "cpu/product/pack_move.h"

enum { MR = 6, NR = 8, VECTOR = 4, STEP = 1, AHEAD = 32, KC = 256 };

typedef float sums __attribute__((vector_size(16)));
typedef sums lanes;
typedef float lane;

static inline __attribute__((always_inline)) sums multiply_add(sums sum, lane x, lanes b) {
    return sum + x * b;
}

#include "cpu/micro/micro_pair.h"

EPI_MICRO_RUNS(1, EPI_MICRO_CASE(1) EPI_MICRO_CASE(2) EPI_MICRO_CASE(4))

const epi_micro epi_micro_plain = {
    .name = "plain",
    EPI_MICRO_F32,
    .own = 1 << 20,
    .usable = epi_has_plain,
    .widen_f16 = epi_widen_f16,
};
