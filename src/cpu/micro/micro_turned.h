/* micro_turned.h: few rows times B from memory, for the f32 kernels of x86-64: the lanes of a vector are
 * columns. 16 bytes of the depth of each column are transposed, so that a vector has one element of each.
 * The vector is converted and multiplied with the same depth of every row. Each sum is added up in the order
 * of the depth.
 *
 * The files of these kernels include it. They define what micro_columns.h needs and, for micro_across.h,
 * SUMS and load_f16(p), a vector from f16. */
#ifndef EPI_CPU_MICRO_TURNED_H
#define EPI_CPU_MICRO_TURNED_H

#include "cpu/micro/micro_columns.h"

/* The sums of some vectors of columns, and the parts of their group. */
typedef struct turned_sums {
    vector sum[EPI_MICRO_FEW][TURNED];
    turned_parts part;
} turned_sums;

/* All elements of a word of each column, against as many depths of the rows from a on. */
INLINE void add_word(const kind of, const bool scaled, const bool moved, const int rows, const int vectors,
                     const turned_run *t, const words w[], const float *a, turned_sums *s) {
    EPI_UNROLL for (int e = 0; e < per_word(of); e++) {
        EPI_UNROLL for (int v = 0; v < vectors; v++) {
            vector x = element_of(of, w[v], e, t ? t->table : NULL);
            if (moved)
                x = x - s->part.zero[v];
            if (scaled)
                x = x * s->part.scale[v];
            if (moved)
                x = x + s->part.offset[v];
            EPI_UNROLL for (int i = 0; i < rows; i++) {
                s->sum[i][v] = multiply_add(s->sum[i][v], a[e * rows + i], x);
            }
        }
    }
}

/* The depth that is less than 16 bytes of f32 and 16 bits. */
INLINE void add_rest(const kind of, const int rows, const int vectors, const char *const column[], int64_t k,
                     int64_t depth, const float *a, turned_sums *s) {
    const epi_dtype type = of == KIND_F32 ? EPI_F32 : of == KIND_BF16 ? EPI_BF16 : EPI_F16;
    for (; k < depth; k++) {
        float one[COLUMNS];
        words w[TURNED];
        for (int j = 0; j < vectors * VECTOR; j++)
            one[j] = epi_element(type, column[j], k, epi_widen_f16c);
        memcpy(w, one, sizeof w);
        add_word(KIND_F32, false, false, rows, vectors, NULL, w, a + k * rows, s);
    }
}

/* One sweep of `vectors` vectors of columns, from column j on, against `rows` rows; of few bits the depth is a multiple
 * of what 16 bytes hold. What comes next of these columns is asked for on the way. */
INLINE void turned(const kind of, const bool scaled, const bool moved, const int rows, const int vectors,
                   const turned_run *t, int j, int64_t depth, const float *a, float *c, int64_t ldc,
                   bool add) {
    const int each = per_word(of), block = 4 * each;
    const char *const *column = t->column + j;
    turned_sums s;
    EPI_UNROLL for (int i = 0; i < rows; i++) {
        EPI_UNROLL for (int v = 0; v < vectors; v++) s.sum[i][v] = (vector){0};
    }
    int64_t k = 0;
    for (int64_t left = 0, g = j; k + block <= depth; k += block, left -= block) {
        words w[4][TURNED];
        const int64_t at = k / block * BLOCK;
        EPI_UNROLL for (int i = 0; i < vectors * VECTOR / 4; i++) {
            const char *p = column[at / BLOCK % 4 * (vectors * VECTOR / 4) + i];
            __builtin_prefetch(p + t->next + at / LINE * LINE, 0, 2);
        }
        if (scaled && left == 0) {
            load_parts(moved, vectors, t, g, &s.part);
            g += COLUMNS;
            left = t->group;
        }
        EPI_UNROLL for (int v = 0; v < vectors; v++) {
            raw x[4];
            turn(column + v * VECTOR, at, x);
            EPI_UNROLL for (int q = 0; q < 4; q++) w[q][v] = (words)x[q];
        }
        if (each < 4)
            EPI_UNROLL for (int q = 0; q < 4; q++)
                add_word(of, scaled, moved, rows, vectors, t, w[q], a + (k + q * each) * rows, &s);
        else
            for (int q = 0; q < 4; q++)
                add_word(of, scaled, moved, rows, vectors, t, w[q], a + (k + q * each) * rows, &s);
    }
    add_rest(of, rows, vectors, column, k, depth, a, &s);
    EPI_UNROLL for (int i = 0; i < rows; i++) {
        EPI_UNROLL for (int v = 0; v < vectors; v++) {
            float *to = c + i * ldc + j + v * VECTOR;
            if (add)
                s.sum[i][v] = s.sum[i][v] + load_floats(to);
            memcpy(to, &s.sum[i][v], sizeof s.sum[i][v]);
        }
    }
}

/* All COLUMNS of them, as many at a time as have room for their sums. */
#define TURNED_CASE(n) \
    if (rows == (n)) { \
        const int vectors = SUMS / (n) < TURNED ? SUMS / (n) : TURNED; \
        for (int j = 0; j < COLUMNS; j += vectors * VECTOR) \
            turned(of, scaled, moved, n, vectors, t, j, depth, a, c, ldc, add); \
    }

INLINE void turned_rows(const kind of, const bool scaled, const bool moved, int rows, const turned_run *t,
                        int64_t depth, const float *a, float *c, int64_t ldc, bool add) {
    TURNED_CASE(1)
    TURNED_CASE(4)
    TURNED_CASE(8)
}

static void run_direct(int rows, int cols, int64_t k, const void *a, const void *const b[], epi_dtype type,
                       float *c, int64_t ldc, bool add) {
    const int64_t size = type == EPI_F32 ? 4 : 2;
    turned_run t = {0};
    for (int j = 0; j < cols; j += COLUMNS)
        for (int64_t k0 = 0; k0 < k; k0 += KC) {
            const int64_t depth = k - k0 < KC ? k - k0 : KC;
            const float *x = (const float *)a + k0 * rows;
            set_columns(&t, b, j, cols, k0 * size);
            if (type == EPI_F32)
                turned_rows(KIND_F32, false, false, rows, &t, depth, x, c + j, ldc, add || k0 > 0);
            else if (type == EPI_BF16)
                turned_rows(KIND_BF16, false, false, rows, &t, depth, x, c + j, ldc, add || k0 > 0);
            else
                turned_rows(KIND_F16, false, false, rows, &t, depth, x, c + j, ldc, add || k0 > 0);
        }
}

/* ---- few bits ---- */

INLINE void turned_bits(const kind of, bool moved, int rows, const turned_run *t, int64_t depth,
                        const float *a, float *c, int64_t ldc, bool add) {
    if (moved)
        turned_rows(of, true, true, rows, t, depth, a, c, ldc, add);
    else
        turned_rows(of, true, false, rows, t, depth, a, c, ldc, add);
}

static void run_bits(int rows, int cols, int64_t k, const void *a, const void *const b[],
                     const epi_micro_bits *f, float *c, int64_t ldc, bool add) {
    enum { MOST = KC / EPI_MICRO_GROUP };
    float part[EPI_MICRO_PARTS][MOST * COLUMNS];
    turned_run t = {.group = f->group, .scale = part[0], .zero = part[1], .offset = part[2]};
    const bool moved = f->part[1] || f->part[2];
    for (int i = 0; i < 16; i++) {
        const float x = (float)(f->is_signed ? (i ^ 8) - 8 : i);
        memcpy((char *)t.table + i * (int)sizeof x, &x, sizeof x);
    }
    for (int j = 0; j < cols; j += COLUMNS)
        for (int64_t k0 = 0; k0 < k; k0 += KC) {
            const int64_t depth = k - k0 < KC ? k - k0 : KC, index = (f->first + k0) / f->group,
                          groups = (depth + f->group - 1) / f->group;
            const float *x = (const float *)a + k0 * rows;
            set_columns(&t, b, j, cols, k0 * f->bits / 8);
            turn_parts(f, moved, j, cols, index, groups, (float *[]){part[0], part[1], part[2]});
            if (f->bits == 4)
                turned_bits(KIND_4, moved, rows, &t, depth, x, c + j, ldc, add || k0 > 0);
            else if (f->is_signed)
                turned_bits(KIND_I8, moved, rows, &t, depth, x, c + j, ldc, add || k0 > 0);
            else
                turned_bits(KIND_U8, moved, rows, &t, depth, x, c + j, ldc, add || k0 > 0);
        }
}

static inline void widen_f16(float *dst, const uint16_t *src, int64_t n) {
    epi_widen_f16c(dst, src, n);
}

/* ---- for micro_across.h ---- */

static inline __attribute__((always_inline)) void load_columns(const int vectors, const epi_dtype type,
                                                               const void *p, vector w[]) {
    typedef uint16_t halves __attribute__((vector_size(VECTOR * sizeof(uint16_t)), aligned(2), may_alias));
    typedef uint32_t words __attribute__((vector_size(sizeof(vector))));
    typedef vector vector_at __attribute__((aligned(4), may_alias));
    EPI_UNROLL for (int v = 0; v < vectors; v++) {
        if (type == EPI_F32)
            w[v] = ((const vector_at *)p)[v];
        else if (type == EPI_BF16)
            w[v] = (vector)(__builtin_convertvector(((const halves *)p)[v], words) << 16);
        else
            w[v] = load_f16((const uint16_t *)p + v * VECTOR);
    }
}

static inline __attribute__((always_inline)) void add_rows(const int rows, const int vectors, const float *a,
                                                           const vector w[], vector sum[][SUMS]) {
    EPI_UNROLL for (int i = 0; i < rows; i++) {
        EPI_UNROLL for (int v = 0; v < vectors; v++) {
            sum[i][v] = multiply_add(sum[i][v], a[i], w[v]);
        }
    }
}

#endif
