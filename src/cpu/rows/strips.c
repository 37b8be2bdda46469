/* strips.c: the strips for one instruction set; compiled once for each.
 *
 * The compiler flags choose the instruction set, and EPI_STRIPS_ISA names it and the table of this file:
 * epi_strips_avx512 with -DEPI_STRIPS_ISA=avx512. Each map row of ops.def becomes a function of one element
 * and the strip over it.
 */
#include "cpu/rows/strips.h"

#include "cpu/rows/strip_recur.h"
#include "cpu/rows/strip_reduce.h"
#include "cpu/rows/strip_scan.h"

#ifndef EPI_STRIPS_ISA
#error "EPI_STRIPS_ISA must name the instruction set this is compiled for"
#endif

/* ---- maps ---------------------------------------------------------------------------------- */

static ALWAYS_INLINE void map1(epi_op op, float (*f)(float), float *dst, ptrdiff_t ld, epi_view a, int rows,
                               int n) {
    for (int i = 0; i < rows; i++) {
        const float *x = a.p + i * a.row;
        float *y = dst + i * ld;
        if (wide_has(op)) {
            wide_row(op, y, x, 0, a.col ? n : n > 0);
            if (!a.col && n > 0)
                fill(y, *y, n);
        } else if (a.col) {
            VECTOR_LOOP
            for (int j = 0; j < n; j++)
                y[j] = f(x[j]);
        } else {
            fill(y, f(*x), n);
        }
    }
}

/* A row's scalar is read before the first element is written: it may lie in the destination. */
static ALWAYS_INLINE void map2(float (*f)(float, float), float *dst, ptrdiff_t ld, epi_view a, epi_view b,
                               int rows, int n) {
    for (int i = 0; i < rows; i++) {
        const float *x = a.p + i * a.row, *y = b.p + i * b.row;
        float *z = dst + i * ld;
        if (a.col && b.col) {
            VECTOR_LOOP
            for (int j = 0; j < n; j++)
                z[j] = f(x[j], y[j]);
        } else if (a.col) {
            const float scalar = *y;
            VECTOR_LOOP
            for (int j = 0; j < n; j++)
                z[j] = f(x[j], scalar);
        } else if (b.col) {
            const float scalar = *x;
            VECTOR_LOOP
            for (int j = 0; j < n; j++)
                z[j] = f(scalar, y[j]);
        } else {
            fill(z, f(*x, *y), n);
        }
    }
}

/* The same with scalars spread out into vectors, for an operation that decides much by one operand:
 * compilers refuse a loop in which some of the decisions never change. */
static ALWAYS_INLINE void map2_spread(float (*f)(float, float), float *dst, ptrdiff_t ld, epi_view a,
                                      epi_view b, int rows, int n) {
    float bufs[2][STRETCH];
    for (int i = 0; i < rows; i++) {
        const float *x = row_spread(a, i, bufs[0], n), *y = row_spread(b, i, bufs[1], n);
        for (int j = 0; j < n; j += STRETCH) {
            const float *xj = x + j * a.col, *yj = y + j * b.col;
            float *z = dst + i * ld + j;
            int m = stretch_length(n, j);
            VECTOR_LOOP
            for (int k = 0; k < m; k++)
                z[k] = f(xj[k], yj[k]);
        }
    }
}

/* Eight mixes of vectors and scalars: the scalars are spread out, and one loop serves. */
static ALWAYS_INLINE void map3(float (*f)(float, float, float), float *dst, ptrdiff_t ld, epi_view a,
                               epi_view b, epi_view c, int rows, int n) {
    float bufs[3][STRETCH];
    for (int i = 0; i < rows; i++) {
        const float *x = row_spread(a, i, bufs[0], n), *y = row_spread(b, i, bufs[1], n),
                    *z = row_spread(c, i, bufs[2], n);
        for (int j = 0; j < n; j += STRETCH) {
            const float *xj = x + j * a.col, *yj = y + j * b.col, *zj = z + j * c.col;
            float *w = dst + i * ld + j;
            int m = stretch_length(n, j);
            VECTOR_LOOP
            for (int k = 0; k < m; k++)
                w[k] = f(xj[k], yj[k], zj[k]);
        }
    }
}

/* Multiplying by a sign is exact, so one loop serves the three forms a*b + c, a*b - c and c - a*b. */
static void muladd(float *dst, ptrdiff_t ld, const epi_view *v, float sign, float other, int rows, int n) {
    float bufs[3][STRETCH];
    for (int i = 0; i < rows; i++) {
        const float *x = row_spread(v[0], i, bufs[0], n), *y = row_spread(v[1], i, bufs[1], n),
                    *z = row_spread(v[2], i, bufs[2], n);
        for (int j = 0; j < n; j += STRETCH) {
            const float *xj = x + j * v[0].col, *yj = y + j * v[1].col, *zj = z + j * v[2].col;
            float *w = dst + i * ld + j;
            int m = stretch_length(n, j);
            VECTOR_LOOP
            for (int k = 0; k < m; k++)
                w[k] = fmadd(sign * xj[k], yj[k], other * zj[k]);
        }
    }
}

#define EPI_MAP1(id, text, is, reference, strip, ...) \
    static ALWAYS_INLINE float f_##id(float a) { \
        return strip; \
    } \
    static void map_##id(float *dst, ptrdiff_t ld, const epi_view *v, int rows, int n) { \
        map1(EPI_OP_##id, f_##id, dst, ld, v[0], rows, n); \
    }
#define EPI_MAP2(id, text, is, reference, strip, ...) \
    static ALWAYS_INLINE float f_##id(float a, float b) { \
        return strip; \
    } \
    static void map_##id(float *dst, ptrdiff_t ld, const epi_view *v, int rows, int n) { \
        (EPI_OP_##id == EPI_OP_POW ? map2_spread : map2)(f_##id, dst, ld, v[0], v[1], rows, n); \
    }
#define EPI_MAP3(id, text, is, reference, strip, ...) \
    static ALWAYS_INLINE float f_##id(float a, float b, float c) { \
        return strip; \
    } \
    static void map_##id(float *dst, ptrdiff_t ld, const epi_view *v, int rows, int n) { \
        map3(f_##id, dst, ld, v[0], v[1], v[2], rows, n); \
    }
#include "ir/ops.def"

#include "cpu/rows/strip_tape.h"

/* Of rows of elements, as all strips of two operands are whose second is one number for a row. */
static void divide_over(float *dst, ptrdiff_t ld, const epi_view *v, int rows, int n) {
    for (int i = 0; i < rows; i++) {
        const float *x = v[0].p + i * v[0].row;
        float *y = dst + i * ld, factor[2];
        factors_of(v[1].p[i * v[1].row], factor);
        VECTOR_LOOP
        for (int j = 0; j < n; j++)
            y[j] = x[j] * factor[0] * factor[1];
    }
}

/* ---- pairs --------------------------------------------------------------------------------- */

static void interleave(float *dst, ptrdiff_t ld, epi_view a, epi_view b, int rows, int n) {
    float bufs[2][STRETCH];
    for (int i = 0; i < rows; i++) {
        const float *x = row_spread(a, i, bufs[0], n), *y = row_spread(b, i, bufs[1], n);
        for (int j = 0; j < n; j += STRETCH) {
            const float *xj = x + j * a.col, *yj = y + j * b.col;
            float *z = dst + i * ld + 2 * (ptrdiff_t)j;
            int m = stretch_length(n, j);
            VECTOR_LOOP
            for (int k = 0; k < m; k++) {
                z[2 * k] = xj[k];
                z[2 * k + 1] = yj[k];
            }
        }
    }
}

static void deinterleave(float *dst, ptrdiff_t ld, epi_view a, int odd, int rows, int n) {
    for (int i = 0; i < rows; i++) {
        const float *x = a.p + i * a.row + odd * a.col;
        float *y = dst + i * ld;
        if (a.col) {
            VECTOR_LOOP
            for (int j = 0; j < n; j++)
                y[j] = x[2 * j];
        } else {
            fill(y, *x, n);
        }
    }
}

/* ---- the table ----------------------------------------------------------------------------- */

#define TEXT_OF(x) #x
#define NAME_TEXT(isa) TEXT_OF(isa)
#define JOINED(a, b) a##b
#define TABLE_OF(isa) JOINED(epi_strips_, isa)

extern const epi_strips TABLE_OF(EPI_STRIPS_ISA);

const epi_strips TABLE_OF(EPI_STRIPS_ISA) = {
    .name = NAME_TEXT(EPI_STRIPS_ISA),
    .map =
        {
#define EPI_MAP1(id, ...) [EPI_OP_##id] = map_##id,
#define EPI_MAP2(id, ...) [EPI_OP_##id] = map_##id,
#define EPI_MAP3(id, ...) [EPI_OP_##id] = map_##id,
#include "ir/ops.def"
        },
    .muladd = muladd,
    .over = divide_over,
    .reduce_rows = reduce_rows,
    .reduce_cols = reduce_cols,
    .combine = combine,
    .combine_var = combine_var,
    .finish = finish,
    .reduce_groups = reduce_groups,
    .scan_step = scan_step,
    .scan_rows = scan_rows,
    .tape = tape,
    .ready = ready,
    .prefetches = TAPE_PREFETCHES,
    .nontemporal = NONTEMPORAL,
    .takes = takes,
    .recur = recur,
    .interleave = interleave,
    .deinterleave = deinterleave,
    .load = load,
    .store = store,
    .store_nontemporal = store_nontemporal,
    .settle = settle,
};
