/* strips_choose.c: the strips' tables in rising order, and which of them this CPU can run. */
#include "cpu/strips.h"

extern const epi_strips epi_strips_baseline;

static bool always(void) {
    return true;
}

#if defined(__x86_64__)
#include <cpuid.h>

extern const epi_strips epi_strips_avx2, epi_strips_avx512;

/* Not every compiler's __builtin_cpu_supports knows f16c; the others imply the system's support. */
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

static const struct {
    const epi_strips *table;
    bool (*usable)(void);
} tables[] = {
    {&epi_strips_baseline, always},
#if defined(__x86_64__)
    {&epi_strips_avx2, has_avx2},
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
