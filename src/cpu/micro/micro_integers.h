/* micro_integers.h: 8-bit rows times 8- or 4-bit columns in memory, for the kernels of x86-64: the lanes of
 * a vector are columns, and a word of each has four elements of the depth.
 *
 * The files of these kernels include it. They define what micro_columns.h needs, and
 *     SIGNED                                  can dot_bytes take B's bytes with their signs? Else they get 128 added.
 *     dot_bytes(sum, w, a, is_signed)         adds the products of four bytes of w, and of a, which have signs
 *     dot_halves(sum, w, a)                   the same where the bytes of w are less than 16 */
#ifndef EPI_CPU_MICRO_INTEGERS_H
#define EPI_CPU_MICRO_INTEGERS_H

#include "cpu/micro/micro_columns.h"

/* What bytes of B, or halves of them, have more than they mean. */
INLINE int bias_of(const kind of, bool is_signed) {
    return !is_signed ? 0 : of == KIND_4 ? 8 : SIGNED ? 0 : 128;
}

/* Four bytes of A's depth, in all lanes. */
INLINE raw four_of(const int8_t *q) {
    int32_t x;
    memcpy(&x, q, sizeof x);
    return (raw)((integers){0} + x);
}

/* 16 bytes of the depth of each column, word by word, against as much of the rows from a on, `first` bytes into these. */
INLINE void add_block(const kind of, const bool is_signed, const int rows, const int vectors,
                      const char *const column[], int64_t at, const epi_micro_integers *a, int first,
                      integers sum[][TURNED]) {
    raw w[TURNED][4];
    EPI_UNROLL for (int v = 0; v < vectors; v++) turn(column + v * VECTOR, at, w[v]);
    EPI_UNROLL for (int q = 0; q < 4; q++) {
        EPI_UNROLL for (int v = 0; v < vectors; v++) {
            const words x = (words)w[v][q];
            const words turned = is_signed ? (of == KIND_4 ? 0x88888888u : SIGNED ? 0 : 0x80808080u) ^ x : x;
            EPI_UNROLL for (int i = 0; i < rows; i++) {
                const int8_t *from = a[i].q + first + 4 * q * (of == KIND_4 ? 2 : 1);
                if (of != KIND_4) {
                    sum[i][v] = (integers)dot_bytes((raw)sum[i][v], (raw)turned, four_of(from), is_signed);
                    continue;
                }
                sum[i][v] = (integers)dot_halves((raw)sum[i][v], (raw)(turned & 0x0f0f0f0fu), four_of(from));
                sum[i][v] =
                    (integers)dot_halves((raw)sum[i][v], (raw)(turned >> 4 & 0x0f0f0f0fu), four_of(from + 4));
            }
        }
    }
}

/* One sweep of `vectors` vectors of columns, from column j on, against `rows` rows, of which a group of A has `all`. */
INLINE void add_integers(const kind of, const bool is_signed, const bool moved, const int rows,
                         const int vectors, const turned_run *t, int j, int64_t depth,
                         const epi_micro_integers *a, int all, float *c, int64_t ldc, bool add) {
    const int bytes = of == KIND_4 ? EPI_MICRO_GROUP / 2 : EPI_MICRO_GROUP;
    const char *const *column = t->column + j;
    vector sum[EPI_MICRO_FEW][TURNED];
    turned_parts part;
    EPI_UNROLL for (int i = 0; i < rows; i++) {
        EPI_UNROLL for (int v = 0; v < vectors; v++) sum[i][v] = (vector){0};
    }
    int64_t left = 0, g = j, at = 0;
    for (int64_t k = 0; k < depth; k += EPI_MICRO_GROUP, left -= EPI_MICRO_GROUP, a += all, at += bytes) {
        integers exact[EPI_MICRO_FEW][TURNED];
        EPI_UNROLL for (int i = 0; i < vectors * VECTOR * bytes / LINE; i++) {
            const int each = VECTOR * vectors * bytes / LINE, turn_of = (int)(at / bytes) % (LINE / bytes);
            __builtin_prefetch(column[turn_of * each + i] + t->next + at / LINE * LINE, 0, 2);
        }
        if (left == 0) {
            load_parts(moved, vectors, t, g, &part);
            g += COLUMNS;
            left = t->group;
        }
        EPI_UNROLL for (int i = 0; i < rows; i++) {
            EPI_UNROLL for (int v = 0; v < vectors; v++) {
                exact[i][v] = (integers){0} - bias_of(of, is_signed) * a[i].sum;
            }
        }
        EPI_UNROLL for (int b = 0; b < bytes; b += BLOCK)
            add_block(of, is_signed, rows, vectors, column, at + b, a, b, exact);
        EPI_UNROLL for (int i = 0; i < rows; i++) {
            EPI_UNROLL for (int v = 0; v < vectors; v++) {
                const vector of_q = (vector){0} + (float)a[i].sum;
                vector x = __builtin_convertvector(exact[i][v], vector);
                if (moved) {
                    const vector zero = part.zero[v] * of_q;
                    x = x - zero;
                }
                x = x * part.scale[v];
                if (moved) {
                    const vector offset = part.offset[v] * of_q;
                    x = x + offset;
                }
                sum[i][v] = multiply_add(sum[i][v], a[i].scale, x);
            }
        }
    }
    EPI_UNROLL for (int i = 0; i < rows; i++) {
        EPI_UNROLL for (int v = 0; v < vectors; v++) {
            float *to = c + i * ldc + j + v * VECTOR;
            if (add)
                sum[i][v] = sum[i][v] + load_floats(to);
            memcpy(to, &sum[i][v], sizeof sum[i][v]);
        }
    }
}

/* As many columns at a time as have room for their sums, those of integers and the others. */
#define INTEGERS_CASE(n) \
    if (all == (n) || (n) == EPI_MICRO_FEW) { \
        const int some = SUMS / 2 / (n), vectors = some < 1 ? 1 : some < TURNED ? some : TURNED; \
        for (int i = 0; i < all; i += (n)) \
            for (int j = 0; j < COLUMNS; j += vectors * VECTOR) \
                add_integers(of, is_signed, moved, n, vectors, t, j, depth, a + i, all, c + i * ldc, ldc, \
                             add); \
        return; \
    }

INLINE void integer_rows(const kind of, const bool is_signed, const bool moved, int all, const turned_run *t,
                         int64_t depth, const epi_micro_integers *a, float *c, int64_t ldc,
                         bool add){INTEGERS_CASE(1) INTEGERS_CASE(4) INTEGERS_CASE(8)}

INLINE void integer_bits(const kind of, const bool is_signed, bool moved, int rows, const turned_run *t,
                         int64_t depth, const epi_micro_integers *a, float *c, int64_t ldc, bool add) {
    if (moved)
        integer_rows(of, is_signed, true, rows, t, depth, a, c, ldc, add);
    else
        integer_rows(of, is_signed, false, rows, t, depth, a, c, ldc, add);
}

static void run_integers(int rows, int cols, int64_t k, const void *a, const void *const b[],
                         const epi_micro_bits *f, float *c, int64_t ldc, bool add) {
    enum { MOST = KC / EPI_MICRO_GROUP };
    float part[EPI_MICRO_PARTS][MOST * COLUMNS];
    turned_run t = {.group = f->group, .scale = part[0], .zero = part[1], .offset = part[2]};
    const bool moved = f->part[1] || f->part[2];
    for (int j = 0; j < cols; j += COLUMNS)
        for (int64_t k0 = 0; k0 < k; k0 += KC) {
            const int64_t depth = k - k0 < KC ? k - k0 : KC, index = (f->first + k0) / f->group,
                          groups = (depth + f->group - 1) / f->group;
            const epi_micro_integers *x =
                (const epi_micro_integers *)(const void *)((const float *)a + k0 * rows);
            set_columns(&t, b, j, cols, k0 * f->bits / 8);
            turn_parts(f, moved, j, cols, index, groups, (float *[]){part[0], part[1], part[2]});
            if (f->bits == 4 && f->is_signed)
                integer_bits(KIND_4, true, moved, rows, &t, depth, x, c + j, ldc, add || k0 > 0);
            else if (f->bits == 4)
                integer_bits(KIND_4, false, moved, rows, &t, depth, x, c + j, ldc, add || k0 > 0);
            else if (f->is_signed)
                integer_bits(KIND_I8, true, moved, rows, &t, depth, x, c + j, ldc, add || k0 > 0);
            else
                integer_bits(KIND_U8, false, moved, rows, &t, depth, x, c + j, ldc, add || k0 > 0);
        }
}

#endif
