/* fma.c: measures the rate of multiply-adds in f32.
 *
 * It runs a loop of multiply-adds on registers alone, with the widest vectors of the processor. It has
 * enough chains to hide the latency of one, because a chain waits only for its own last result. The chains
 * begin with different numbers, or the compiler would see that they are equal. */
#include "fma.h"

#include <stdbool.h>
#include <stdint.h>

#include "base/parallel.h"
#include "cli.h"

enum { ROUNDS = 1 << 18, TRIES = 100 };

/* Sixteen are too many for the registers of x86, or of what compilers make of them. */
#define TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define SIXTEEN(X) TWELVE(X) X(12) X(13) X(14) X(15)

/* What the chains begin with, and what a thread leaves: no compiler knows the one or drops the other. */
static volatile float factor = 0.999F, addend = 0.001F;
static volatile float left[EPI_MAX_THREADS];

typedef struct probe {
    epi_parallel_body *body;
    int operations; /* of a thread */
} probe;

/* clang-format off */
#if defined(__x86_64__)
#include <immintrin.h>

#define BEGIN(i) __m512 s##i = _mm512_set1_ps(addend*(i + 1));
#define STEP(i) s##i = _mm512_fmadd_ps(s##i, x, y);
#define ADD(i) y = _mm512_add_ps(y, s##i);
__attribute__((target("avx512f"))) static void probe_avx512(void *ctx, int64_t item, int thread) {
    (void)ctx, (void)item;
    __m512 x = _mm512_set1_ps(factor), y = _mm512_set1_ps(addend);
    TWELVE(BEGIN)
    for (int r = 0; r < ROUNDS; r++) {
        TWELVE(STEP)
    }
    TWELVE(ADD)
    left[thread] = _mm512_cvtss_f32(y);
}
#undef BEGIN
#undef STEP
#undef ADD

#define BEGIN(i) __m256 s##i = _mm256_set1_ps(addend*(i + 1));
#define STEP(i) s##i = _mm256_fmadd_ps(s##i, x, y);
#define ADD(i) y = _mm256_add_ps(y, s##i);
__attribute__((target("avx2,fma"))) static void probe_avx2(void *ctx, int64_t item, int thread) {
    (void)ctx, (void)item;
    __m256 x = _mm256_set1_ps(factor), y = _mm256_set1_ps(addend);
    TWELVE(BEGIN)
    for (int r = 0; r < ROUNDS; r++) {
        TWELVE(STEP)
    }
    TWELVE(ADD)
    left[thread] = _mm256_cvtss_f32(y);
}

static probe find_probe(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        return (probe){probe_avx512, 2 * 16 * 12 * ROUNDS};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return (probe){probe_avx2, 2 * 8 * 12 * ROUNDS};
    return (probe){NULL, 0};
}

#elif defined(__aarch64__)
#include <arm_neon.h>

#define BEGIN(i) float32x4_t s##i = vdupq_n_f32(addend*(i + 1));
#define STEP(i) s##i = vfmaq_f32(y, s##i, x);
#define ADD(i) y = vaddq_f32(y, s##i);
static void probe_neon(void *ctx, int64_t item, int thread) {
    (void)ctx, (void)item;
    float32x4_t x = vdupq_n_f32(factor), y = vdupq_n_f32(addend);
    SIXTEEN(BEGIN)
    for (int r = 0; r < ROUNDS; r++) {
        SIXTEEN(STEP)
    }
    SIXTEEN(ADD)
    left[thread] = vgetq_lane_f32(y, 0);
}

static probe find_probe(void) {
    return (probe){probe_neon, 2 * 4 * 16 * ROUNDS};
}

#else
static probe find_probe(void) {
    return (probe){NULL, 0};
}
#endif
/* clang-format on */

double fma_rate(int threads) {
    probe p = find_probe();
    double best = 0;
    threads = threads < EPI_MAX_THREADS ? threads : EPI_MAX_THREADS;
    for (int i = 0; i < TRIES && p.body; i++) {
        double start = cli_seconds();
        epi_parallel_for(threads, threads, p.body, NULL);
        double seconds = cli_seconds() - start;
        best = seconds > 0 && (best == 0 || seconds < best) ? seconds : best;
    }
    return best > 0 ? (double)p.operations * threads / best : 0;
}
