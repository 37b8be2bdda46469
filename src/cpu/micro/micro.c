/* micro.c: which micro-kernels there are, and which of them this machine can run. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* syscall */
#endif
#include "cpu/micro/micro_internal.h"

#include <string.h>

#include "base/nearest.h"

bool epi_has_plain(void) {
    return true;
}

#if defined(__x86_64__)
#include <cpuid.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* __builtin_cpu_supports asks the system too: it is false where the registers are not saved. Not every
 * compiler's knows f16c; the others imply the system's support. */
bool epi_has_avx2(void) {
    unsigned a, b, c, d;
    const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool epi_has_avx512(void) {
    return epi_has_avx2() && __builtin_cpu_supports("avx512f");
}

bool epi_has_avx512vnni(void) {
    return epi_has_avx512() && __builtin_cpu_supports("avx512vnni");
}

bool epi_has_avx512bf16(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
}

/* Intel's processors take four times as long for a vector of pairs as for one of f32, AMD's as long. */
bool epi_worth_avx512bf16(void) {
    return !__builtin_cpu_is("intel");
}

/* The tile registers are large, and Linux gives them only to a process that asks. Asking again is
 * harmless. */
static bool request_tiles(void) {
#if defined(__linux__)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

bool epi_has_amx(void) {
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
    const unsigned both = AMX_BF16 | AMX_TILE;
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & both) == both && request_tiles();
}
#endif

#if defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
#endif

bool epi_has_neon(void) {
    return true;
}

bool epi_has_bf16mm(void) {
#if defined(__linux__)
    enum { BF16 = 1 << 14 };
    return (getauxval(AT_HWCAP2) & BF16) != 0;
#else
    return false;
#endif
}
#endif

/* The best first. */
static const epi_micro *const table[] = {
#if defined(__x86_64__)
    &epi_micro_amx,    &epi_micro_avx512bf16, &epi_micro_avx512, &epi_micro_avx2,
#endif
#if defined(__aarch64__)
    &epi_micro_bf16mm, &epi_micro_neon,
#endif
    &epi_micro_plain,
};

enum { COUNT = sizeof table / sizeof table[0] };

const epi_micro *epi_micro_at(int i) {
    return i >= 0 && i < COUNT ? table[i] : NULL;
}

static bool takes(const epi_micro *micro, epi_dtype type) {
    if (micro->type == EPI_F32)
        return epi_dtype_is_operand(type);
    return type == micro->type;
}

epi_status epi_micro_none(epi_dtype a, epi_dtype b, const char *name, epi_error *err) {
    epi_nearest near = {.wanted = name ? name : ""};
    for (int i = 0; i < COUNT; i++)
        if (takes(table[i], a) && takes(table[i], b) && table[i]->usable())
            epi_nearest_offer(&near, table[i]->name);
    return epi_fail(err, EPI_ERR_UNSUPPORTED, "there is no micro-kernel '%.60s' here for %s x %s operands%s",
                    near.wanted, epi_dtype_name(a), epi_dtype_name(b), epi_nearest_hint(&near, "there are"));
}

const epi_micro *epi_micro_choose(epi_dtype a, epi_dtype b, const char *name) {
    for (int i = 0; i < COUNT; i++) {
        const epi_micro *micro = table[i];
        const bool wanted = name ? strcmp(micro->name, name) == 0 : !micro->worth || micro->worth();
        if (wanted && takes(micro, a) && takes(micro, b) && micro->usable())
            return micro;
    }
    return NULL;
}
