/* micro_internal.h: what the files of the micro-kernels share with micro.c and with each other.
 *
 * The file of an instruction set is compiled with flags that let the compiler use it everywhere in that
 * file. So nothing in it may run before the instruction set is known to exist: the detection is in micro.c,
 * and the facts about a kernel are data.
 */
#ifndef EPI_CPU_MICRO_INTERNAL_H
#define EPI_CPU_MICRO_INTERNAL_H

#include "cpu/micro/micro.h"
#include "cpu/product/pack_move.h"

/* Unrolls a loop of constant length fully, so that arrays of sums become registers. */
#if defined(__clang__)
#define EPI_UNROLL _Pragma("unroll")
#else
#define EPI_UNROLL _Pragma("GCC unroll 64")
#endif

/* Asks for the lines that fall due within `depth` more. */
static inline void epi_prefetch_step(epi_prefetch_cursor *cursor, int64_t depth) {
    for (cursor->left -= depth; cursor->left <= 0; cursor->left += cursor->every) {
        if (cursor->write)
            __builtin_prefetch(cursor->line, 1, 2);
        else
            __builtin_prefetch(cursor->line, 0, 2);
        cursor->line += cursor->stride;
        if (--cursor->row_left == 0) {
            cursor->row_left = cursor->row;
            cursor->line += cursor->skip;
        }
    }
}

/* Prefetches the elements of C for writing. Not unrolled: the compiler would keep the rows' addresses, in
 * vector registers that the sums need, until they are stored. */
static inline void epi_prefetch_c(const float *c, int64_t ldc, int rows, int cols) {
    for (int i = 0; i < rows; i++, c += ldc)
        for (int j = 0; j < cols; j += 64 / (int)sizeof *c)
            __builtin_prefetch(c + j, 1);
}

extern const epi_micro epi_micro_plain;
bool epi_has_plain(void);

#if defined(__x86_64__)
extern const epi_micro epi_micro_avx2, epi_micro_avx512, epi_micro_avx512bf16, epi_micro_amx;
bool epi_has_avx2(void); /* with FMA and F16C */
bool epi_has_avx512(void);
bool epi_has_avx512vnni(void);
void epi_integers_avx512vnni(int rows, int cols, int64_t k, const void *a, const void *const b[],
                             const epi_micro_bits *f, float *c, int64_t ldc, bool add);
bool epi_has_avx512bf16(void);
bool epi_worth_avx512bf16(void);
bool epi_has_amx(void);
void epi_widen_f16c(float *dst, const uint16_t *src, int64_t n);
#endif

#if defined(__aarch64__)
extern const epi_micro epi_micro_neon, epi_micro_bf16mm;
bool epi_has_neon(void);
bool epi_has_bf16mm(void);
#endif

/* `run` and `run_rows` of a micro-kernel from its run_some(rows, ...), which is inlined for each number of
 * rows that has a case, in ascending order, and for all MR of them. KB is the interleave of B. */
#define EPI_MICRO_CASE(most) \
    if (rows <= (most)) { \
        run_some(most, k, pa, pb, ldb, c, ldc, false, go_on, cursor); \
        return; \
    }
#define EPI_MICRO_RUNS(KB, CASES) \
    static void run(int64_t k, const void *pa, const void *pb, float *c, int64_t ldc, bool add, \
                    epi_prefetch_cursor *cursor) { \
        run_some(MR, k, pa, pb, NR *(KB), c, ldc, add, false, cursor); \
    } \
    static void run_rows(int rows, int64_t k, const void *pa, const void *pb, int64_t ldb, float *c, \
                         int64_t ldc, bool go_on, epi_prefetch_cursor *cursor) { \
        CASES run_some(MR, k, pa, pb, ldb, c, ldc, false, go_on, cursor); \
    }

/* What the kernels of f32 say alike. */
#define EPI_MICRO_F32 \
    .type = EPI_F32, .mr = MR, .nr = NR, .ka = 1, .kb = 1, .depth = 1, .kc = KC, .run = run, \
    .run_rows = run_rows

/* Element k of a row or column of B, of any type, as f32; `widen_f16` is the kernel's own. */
static inline __attribute__((always_inline)) float
epi_element(const epi_dtype type, const void *p, int64_t k,
            void (*widen_f16)(float *dst, const uint16_t *src, int64_t n)) {
    float x;
    if (type == EPI_F32)
        return ((const float *)p)[k];
    if (type == EPI_BF16)
        epi_widen_bf16(&x, (const uint16_t *)p + k, 1);
    else
        widen_f16(&x, (const uint16_t *)p + k, 1);
    return x;
}

#endif
