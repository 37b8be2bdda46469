/* access.h: the elements of a walk, from memory to f32 strips and back. */
#ifndef EPI_CPU_ACCESS_H
#define EPI_CPU_ACCESS_H

#include "cpu/rows/strips.h"
#include "pass/schedule/walk.h"

/* Elements [start, start + n) of the walk, from memory to f32 and back. `base` in elements. */
void epi_walk_load(const epi_strips *s, float *dst, const epi_ref *ref, int64_t base, const epi_walk *w,
                   int64_t start, int64_t n);
void epi_walk_store(const epi_strips *s, const epi_ref *ref, int64_t base, const epi_walk *w, int64_t start,
                    const float *src, int64_t n);

/* `tmp` has room for n floats. */
void epi_columns_load(const epi_strips *s, float *dst, const epi_ref *ref, int64_t base, const epi_columns *c,
                      int64_t start, int64_t n, float *tmp);
void epi_columns_store(const epi_strips *s, const epi_ref *ref, int64_t base, const epi_columns *c,
                       int64_t start, const float *src, int64_t n, float *tmp);

/* One element of an integer type. */
int64_t epi_integer_load(const unsigned char *p, epi_dtype type);
/* The position that an index means: an integer as it is, another number rounded to the nearest; -1 outside
 * the axis of that size. */
int64_t epi_position(double index, int64_t size);
int64_t epi_position_load(const epi_strips *s, const epi_ref *index, int64_t offset, int64_t size);
/* The seed of random numbers: of an integer the low 32 bits. */
int32_t epi_seed_load(const epi_strips *s, const epi_ref *ref);

#endif
