/* blas_core.c: finds whether a BLAS uses the right kernels for this processor.
 *
 * OpenBLAS looks at the processor and uses the kernels of a core that it knows by name. A variable may name
 * another core, and a version older than the processor uses the kernels of an older core. Either may double
 * the time of its product, so a comparison with it says little. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blas.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_SVE
#define HWCAP_SVE (1 << 22)
#endif
#endif

/* What kernels are made for, by what it does to a product in f32: a later one does more at a time. */
typedef enum level { SSE, AVX, AVX2, AVX512, NEON, SVE, UNKNOWN } level;
static const char *const level_names[] = {"SSE", "AVX", "AVX2", "AVX-512", "NEON", "SVE"};

/* The cores of each, by OpenBLAS's names and MKL's, each between blanks. */
static const char *const cores[] = {
    [SSE] =
        " Katmai Coppermine Northwood Prescott Banias Atom Core2 Penryn Dunnington Nehalem Athlon Opteron "
        "Opteron_SSE3 Barcelona Bobcat Nano SSE2 SSE3 SSSE3 SSE4.1 SSE4.2 ",
    [AVX] = " Sandybridge Bulldozer Piledriver Steamroller AVX ",
    [AVX2] = " Haswell Zen Excavator AVX2 ",
    [AVX512] = " SkylakeX Cooperlake Sapphirerapids AVX-512 ",
    [NEON] =
        " armv8 cortexa53 cortexa55 cortexa57 cortexa72 cortexa73 cortexa76 falkor thunderx thunderx2t99 "
        "thunderx3t110 tsv110 emag8180 neoversen1 ",
    [SVE] = " armv8sve armv9sme neoversev1 neoversev2 neoversen2 a64fx ",
};

static level level_of(const char *core) {
    char wanted[80];
    snprintf(wanted, sizeof wanted, " %s ", core);
    for (int l = SSE; l < UNKNOWN && *core; l++)
        if (strcasestr(cores[l], wanted))
            return (level)l;
    return UNKNOWN;
}

/* What this processor has. */
static level level_here(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512vl") ? AVX512
           : __builtin_cpu_supports("avx2")   ? AVX2
           : __builtin_cpu_supports("avx")    ? AVX
                                              : SSE;
#elif defined(__aarch64__)
    return getauxval(AT_HWCAP) & HWCAP_SVE ? SVE : NEON;
#else
    return UNKNOWN;
#endif
}

void blas_doubt(const blas *b, char *buf, size_t size) {
    const char *variable = b->maker[0] == 'M' ? "MKL_ENABLE_INSTRUCTIONS" : "OPENBLAS_CORETYPE";
    const char *set = b->sgemm ? getenv(variable) : NULL;
    level has = level_here(), takes = level_of(b->core);
    int n = 0;
    if (size)
        *buf = 0;
    if (set && *set)
        n = snprintf(buf, size, "%s=%s is set, so %s does not choose its kernels itself; unset it to compare",
                     variable, set, b->maker);
    if (b->sgemm && takes < has && has != UNKNOWN && n >= 0 && (size_t)n < size)
        snprintf(buf + n, size - (size_t)n,
                 "%s%s takes kernels for %s (%s), and this CPU has %s: it may be much slower "
                 "than it could be",
                 n ? ". " : "", b->maker, b->core, level_names[takes], level_names[has]);
}
