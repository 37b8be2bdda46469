/* strips_choose.c: the strips' tables in ascending order, and which of them this CPU can run. */
#include "cpu/micro/micro_internal.h"
#include "cpu/rows/strips.h"

extern const epi_strips epi_strips_baseline;

#if defined(__x86_64__) && !EPI_STRIPS_BASELINE /* which sanitizers follow best */
extern const epi_strips epi_strips_avx2, epi_strips_avx512;

static bool has_avx512(void) {
    return epi_has_avx512() && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
}
#endif

static const struct {
    const epi_strips *table;
    bool (*usable)(void);
} tables[] = {
    {&epi_strips_baseline, epi_has_plain},
#if defined(__x86_64__) && !EPI_STRIPS_BASELINE
    {&epi_strips_avx2, epi_has_avx2},
    {&epi_strips_avx512, has_avx512},
#endif
};

const epi_strips *epi_strips_at(int i) {
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++)
        if (tables[t].usable() && i-- == 0)
            return tables[t].table;
    return NULL;
}

const epi_strips *epi_strips_choose(void) {
    const epi_strips *best = NULL;
    for (int i = 0; epi_strips_at(i); i++)
        best = epi_strips_at(i);
    return best;
}

float epi_reduce_identity(epi_op op) {
    return (float)epi_op_identity(op);
}
