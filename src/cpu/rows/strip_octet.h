/* strip_octet.h: octets, the eight vectors that the links of a tape work on in registers.
 *
 * Only strips.c includes this. Eight vectors are enough to hide the latency of an instruction, and both
 * calling conventions can pass that many from one function to the next.
 */
#ifndef EPI_CPU_STRIP_OCTET_H
#define EPI_CPU_STRIP_OCTET_H

#include "cpu/rows/strip_reduce.h"
#include "cpu/rows/strip_wide.h"

enum { OCTET = 8 * WIDE };
_Static_assert((int)OCTET <= (int)EPI_OCTET_MOST && 2 * (int)WIDE <= (int)EPI_STATE_MOST,
               "whoever makes a tape gives its links room for an octet, and for a state");

typedef struct octet {
    wide v[8];
} octet;

/* The statement for every vector i. Not a loop: compilers unroll those after they have decided what lies in
 * registers. */
#define AT_VECTOR(number, ...) \
    { \
        enum { i = number }; \
        __VA_ARGS__; \
    }
#define EACH(...) \
    do { \
        AT_VECTOR(0, __VA_ARGS__) \
        AT_VECTOR(1, __VA_ARGS__) \
        AT_VECTOR(2, __VA_ARGS__) \
        AT_VECTOR(3, __VA_ARGS__) \
        AT_VECTOR(4, __VA_ARGS__) \
        AT_VECTOR(5, __VA_ARGS__) \
        AT_VECTOR(6, __VA_ARGS__) \
        AT_VECTOR(7, __VA_ARGS__) \
    } while (0)

static ALWAYS_INLINE void octet_get(octet *x, const float *p) {
    EACH(x->v[i] = wide_get(p + i * WIDE));
}
static ALWAYS_INLINE void octet_put(float *p, const octet *x) {
    EACH(wide_put(p + i * WIDE, x->v[i]));
}
static ALWAYS_INLINE void octet_fill(octet *x, float s) {
    EACH(x->v[i] = wide_of(s));
}
/* By 1 most of the time. */
static ALWAYS_INLINE void octet_scale(octet *x, float s) {
    if (s != 1)
        EACH(x->v[i] *= s);
}
static ALWAYS_INLINE void octet_get_bf16(octet *x, const uint16_t *p) {
    EACH(if (i % 2 == 0) wide_get_bf16_two(p + i * WIDE, &x->v[i], &x->v[i | 1]));
}
static ALWAYS_INLINE void octet_put_bf16(uint16_t *p, const octet *x) {
    EACH(if (i % 2 == 0) wide_put_bf16_two(p + i * WIDE, x->v[i], x->v[i | 1]));
}

/* ---- any type ---- */

/* Other types than f32 and bf16 go through memory, which stays out of the loops that call this. */
static __attribute__((noinline)) void convert_get(float *x, const void *p, epi_dtype type, int n) {
    load(x, p, type, 1, n);
}
static __attribute__((noinline)) void convert_put(unsigned char *p, epi_dtype type, const float *x, int n) {
    store(p, type, 1, x, n);
}

static ALWAYS_INLINE void octet_get_any(octet *x, const void *p, epi_dtype type) {
    float y[OCTET];
    if (type == EPI_F32) {
        octet_get(x, p);
    } else if (type == EPI_BF16) {
        octet_get_bf16(x, p);
    } else {
        convert_get(y, p, type, OCTET);
        octet_get(x, y);
    }
}
static ALWAYS_INLINE void octet_put_any(unsigned char *p, epi_dtype type, const octet *x) {
    float y[OCTET];
    if (type == EPI_F32) {
        octet_put((float *)(void *)p, x);
    } else if (type == EPI_BF16) {
        octet_put_bf16((uint16_t *)(void *)p, x);
    } else {
        octet_put(y, x);
        convert_put(p, type, y, OCTET);
    }
}

/* By non-temporal stores, which write whole lines: p is where one begins, else the stores are plain. */
static ALWAYS_INLINE void octet_nontemporal_bf16(unsigned char *p, const octet *x) {
#if defined(__AVX512F__)
    EACH(if (i % 2 == 0) _mm512_stream_si512(
        (void *)(p + 2 * i * WIDE),
        _mm512_inserti64x4(_mm512_castsi256_si512(wide_bf16(x->v[i])), wide_bf16(x->v[i | 1]), 1)));
#else
    _Alignas(LINE) uint16_t raw[OCTET];
    octet_put_bf16(raw, x);
    nontemporal_lines(p, (const unsigned char *)raw, sizeof raw);
#endif
}
static ALWAYS_INLINE void octet_nontemporal(unsigned char *p, epi_dtype type, const octet *x) {
    _Alignas(LINE) double raw[OCTET];
    if (!NONTEMPORAL || (uintptr_t)p % LINE || OCTET * epi_dtype_size(type) % LINE) {
        octet_put_any(p, type, x);
    } else if (type == EPI_F32) {
        EACH(wide_nontemporal((float *)(void *)p + i * WIDE, x->v[i]));
    } else if (type == EPI_BF16) {
        octet_nontemporal_bf16(p, x);
    } else {
        octet_put_any((unsigned char *)raw, type, x);
        nontemporal_lines(p, (const unsigned char *)raw, OCTET * (int64_t)epi_dtype_size(type));
    }
}

/* ---- both splits of an axis ---- */

/* Of the next 2*OCTET elements those with even places; those with odd ones go to memory. */
static ALWAYS_INLINE void split_get(octet *even, const float *p, float *odd) {
    EACH(wide low = wide_get(p + 2 * i * WIDE), high = wide_get(p + (2 * i + 1) * WIDE);
         even->v[i] = wide_even(low, high); wide_put(odd + i * WIDE, wide_odd(low, high)));
}
static ALWAYS_INLINE void split_get_bf16(octet *even, const uint16_t *p, float *odd) {
    EACH(wide low, high; wide_get_bf16_two(p + 2 * i * WIDE, &low, &high); even->v[i] = wide_even(low, high);
         wide_put(odd + i * WIDE, wide_odd(low, high)));
}
static ALWAYS_INLINE void split_get_any(octet *even, const void *p, epi_dtype type, float *odd) {
    float x[2 * OCTET];
    if (type == EPI_F32) {
        split_get(even, p, odd);
    } else if (type == EPI_BF16) {
        split_get_bf16(even, p, odd);
    } else {
        convert_get(x, p, type, 2 * OCTET);
        split_get(even, x, odd);
    }
}

static ALWAYS_INLINE void join_put(float *p, const octet *even, const octet *odd) {
    EACH(wide_put(p + 2 * i * WIDE, wide_low(even->v[i], odd->v[i]));
         wide_put(p + (2 * i + 1) * WIDE, wide_high(even->v[i], odd->v[i])));
}
static ALWAYS_INLINE void join_put_bf16(uint16_t *p, const octet *even, const octet *odd) {
    EACH(wide_put_bf16_two(p + 2 * i * WIDE, wide_low(even->v[i], odd->v[i]),
                           wide_high(even->v[i], odd->v[i])));
}
static ALWAYS_INLINE void join_put_any(void *p, epi_dtype type, const octet *even, const octet *odd) {
    float x[2 * OCTET];
    if (type == EPI_F32) {
        join_put(p, even, odd);
    } else if (type == EPI_BF16) {
        join_put_bf16(p, even, odd);
    } else {
        join_put(x, even, odd);
        convert_put(p, type, x, 2 * OCTET);
    }
}

/* ---- folds ---- */

static ALWAYS_INLINE wide wide_fold(epi_op op, wide a, wide b) {
    if (op == EPI_OP_RMAX)
        return wide_max(a, b);
    return op == EPI_OP_RMIN ? wide_min(a, b) : (wide)(a + b);
}

/* The eight vectors as one, by a tree. */
static ALWAYS_INLINE wide octet_folded(epi_op op, const octet *x) {
    wide a = wide_fold(op, wide_fold(op, x->v[0], x->v[4]), wide_fold(op, x->v[2], x->v[6])),
         b = wide_fold(op, wide_fold(op, x->v[1], x->v[5]), wide_fold(op, x->v[3], x->v[7]));
    return wide_fold(op, a, b);
}

/* The elements of a vector as one, by a tree. */
static ALWAYS_INLINE float wide_folded(epi_op op, wide x) {
    float lane[WIDE];
    wide_put(lane, x);
    fold *f = op == EPI_OP_RMAX ? fold_max : op == EPI_OP_RMIN ? fold_min : fold_add;
    if (WIDE > 8)
        lanes_halve(f, lane, 8);
    if (WIDE > 4)
        lanes_halve(f, lane, 4);
    lanes_halve(f, lane, 2);
    return f(lane[0], lane[1]);
}

/* ---- functions ---- */

/* A function that has no vectors of its own, of each element. */
static __attribute__((noinline)) void map_elements(epi_op op, float *x) {
    switch (op) {
#define EPI_MAP1(id, ...) \
    case EPI_OP_##id: \
        for (int l = 0; l < OCTET; l++) \
            x[l] = f_##id(x[l]); \
        break;
#include "ir/ops.def"
    default: break;
    }
}

/* All that comes before is computed before what comes after. Of a long function of eight vectors GCC takes
 * the steps of all in turn, and the registers do not suffice for that. So it takes four, of gelu two. */
#define DONE_IN(x, where) \
    __asm__ volatile("" \
                     : "+" where((x)->v[0]), "+" where((x)->v[1]), "+" where((x)->v[2]), \
                       "+" where((x)->v[3]), "+" where((x)->v[4]), "+" where((x)->v[5]), \
                       "+" where((x)->v[6]), "+" where((x)->v[7]))
#if defined(__aarch64__)
#define DONE_SO_FAR(x) DONE_IN(x, "w")
#elif defined(__AVX512F__)
#define DONE_SO_FAR(x) DONE_IN(x, "v")
#else
#define DONE_SO_FAR(x) (void)0
#endif

static ALWAYS_INLINE void octet_map(epi_op op, octet *x) {
    float y[OCTET];
    if (wide_has(op)) {
        const int group = op == EPI_OP_GELU ? 2 : 4;
        EACH(x->v[i] = wide_map(op, x->v[i]); if ((i + 1) % group == 0) DONE_SO_FAR(x));
        return;
    }
    octet_put(y, x);
    map_elements(op, y);
    octet_get(x, y);
}

#endif
