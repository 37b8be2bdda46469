/* micro_columns.h: reads columns of B from memory as the lanes of vectors, for the kernels of x86-64: it
 * transposes 16 bytes of the depth of each column, so that a vector has one word of each.
 *
 * The files of these kernels include it. They define KC, the depth of a sweep; `vector` of VECTOR floats;
 * multiply_add; and
 *     raw                     a vector of bits
 *     turn(column, at, w)     four vectors of 32-bit words: word i of the 16 bytes of each column at `at`
 *     look_up(table, x)       of 16 numbers that which the low four bits of each word name
 *     widen_halves(x)         f16, in the low half of each word, as f32
 *     TURNED                  vectors of columns that are at work at once: their sums wait for themselves */
#ifndef EPI_CPU_MICRO_COLUMNS_H
#define EPI_CPU_MICRO_COLUMNS_H

#include <immintrin.h>
#include <string.h>

#include "cpu/micro/micro_internal.h"
#include "cpu/product/pack_move.h"

#define INLINE static inline __attribute__((always_inline))

typedef uint32_t words __attribute__((vector_size(sizeof(vector))));
typedef int32_t integers __attribute__((vector_size(sizeof(vector))));

enum { BLOCK = 16, LINE = 64, COLUMNS = TURNED * VECTOR };

/* What elements are. */
typedef enum kind { KIND_F32, KIND_BF16, KIND_F16, KIND_I8, KIND_U8, KIND_4 } kind;

/* How many elements of a column a word has. */
INLINE int per_word(const kind of) {
    return of == KIND_F32 ? 1 : of == KIND_BF16 || of == KIND_F16 ? 2 : of == KIND_4 ? 8 : 4;
}

/* Element e of each column's word, as f32. */
INLINE vector element_of(const kind of, const words w, const int e, const vector table[]) {
    if (of == KIND_F32)
        return (vector)w;
    if (of == KIND_BF16)
        return (vector)(e ? w & 0xffff0000u : w << 16);
    if (of == KIND_F16)
        return widen_halves((raw)(w >> 16 * e & 0xffff));
    if (of == KIND_4)
        return look_up(table, (raw)(w >> 4 * e));
    if (of == KIND_I8)
        return __builtin_convertvector((integers)(w << (24 - 8 * e)) >> 24, vector);
    return __builtin_convertvector((integers)(w >> 8 * e & 255), vector);
}

INLINE vector load_floats(const float *p) {
    vector x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* What stays the same in a sweep of some columns. The parts of few bits are vectors of columns by group. */
typedef struct turned_run {
    const char *column[COLUMNS];
    int64_t next;  /* bytes from a column to one that is wanted soon */
    int64_t group; /* depth that has the parts in common */
    const float *scale, *zero, *offset;
    vector table[16 / VECTOR];
} turned_run;

/* The parts of a group of the depth of some vectors of columns. */
typedef struct turned_parts {
    vector scale[TURNED], zero[TURNED], offset[TURNED];
} turned_parts;

INLINE void load_parts(const bool moved, const int vectors, const turned_run *t, int64_t at,
                       turned_parts *s) {
    EPI_UNROLL for (int v = 0; v < vectors; v++) {
        s->scale[v] = load_floats(t->scale + at + v * VECTOR);
        if (moved) {
            s->zero[v] = load_floats(t->zero + at + v * VECTOR);
            s->offset[v] = load_floats(t->offset + at + v * VECTOR);
        }
    }
}

/* The columns from `first` on: beyond the last one that one again, which nobody reads. */
static inline void set_columns(turned_run *t, const void *const b[], int first, int cols, int64_t at) {
    for (int j = 0; j < COLUMNS; j++)
        t->column[j] = (const char *)b[first + j < cols ? first + j : cols - 1] + at;
    t->next = first + COLUMNS < cols ? (const char *)b[first + COLUMNS] - (const char *)b[first]
              : first >= COLUMNS     ? (const char *)b[first] - (const char *)b[first - COLUMNS]
                                     : 0;
}

/* ---- parts of few bits ---- */

/* Groups 0 to n of a part, of which `before` more lie before these. Where fewer are left than 16 bytes hold, the last
 * ones are turned again with them; or copied: nothing is read behind the last group. */
INLINE void turn_part_of(const kind of, const char *column[], int64_t before, int64_t n, float *to) {
    const int each = per_word(of), block = 4 * each, size = 4 / each;
    char tail[COLUMNS][BLOCK];
    const char *tails[COLUMNS];
    for (int64_t g = 0; g < n; g += block) {
        const int64_t count = n - g < block ? n - g : block, again = block - count;
        const bool copied = again > before + g;
        for (int j = 0; j < COLUMNS && copied; j++) {
            memcpy(tail[j] + again * size, column[j] + g * size, (size_t)(count * size));
            tails[j] = tail[j] - (g - again) * size;
        }
        for (int v = 0; v < TURNED; v++) {
            raw w[4];
            turn((copied ? tails : column) + v * VECTOR, (g - again) * size, w);
            EPI_UNROLL for (int i = 0; i < block; i++) {
                const vector x = element_of(of, (words)w[i / each], i % each, NULL);
                if (i >= again)
                    memcpy(to + (g - again + i) * COLUMNS + v * VECTOR, &x, sizeof x);
            }
        }
    }
}

/* Groups `index` to index + n of a part, of the columns from `first` on, as vectors of columns; without a part `number`. */
static void turn_part(const epi_micro_bits *f, int part, int first, int cols, int64_t index, int64_t n,
                      float number, float *to) {
    const char *column[COLUMNS];
    const epi_dtype type = f->type[part];
    const int64_t size = type == EPI_F32 ? 4 : type == EPI_F16 || type == EPI_BF16 ? 2 : 1;
    for (int j = 0; j < COLUMNS && f->part[part]; j++)
        column[j] = (const char *)f->part[part][first + j < cols ? first + j : cols - 1] + index * size;
    for (int j = first + COLUMNS; j < first + 2 * COLUMNS && j < cols && f->part[part];
         j++) /* those of the next columns */
        __builtin_prefetch((const char *)f->part[part][j] + index * size, 0, 2);
    if (!f->part[part])
        for (int64_t i = 0; i < n * COLUMNS; i++)
            to[i] = number;
    else if (type == EPI_F32)
        turn_part_of(KIND_F32, column, index, n, to);
    else if (type == EPI_F16)
        turn_part_of(KIND_F16, column, index, n, to);
    else if (type == EPI_BF16)
        turn_part_of(KIND_BF16, column, index, n, to);
    else if (type == EPI_I8)
        turn_part_of(KIND_I8, column, index, n, to);
    else
        turn_part_of(KIND_U8, column, index, n, to);
}

/* All parts of the groups `index` to index + n. */
INLINE void turn_parts(const epi_micro_bits *f, bool moved, int first, int cols, int64_t index, int64_t n,
                       float *const to[EPI_MICRO_PARTS]) {
    for (int p = 0; p < (moved ? EPI_MICRO_PARTS : 1); p++)
        turn_part(f, p, first, cols, index, n, p ? 0.0f : 1.0f, to[p]);
}

#endif
