/* access.h: the elements of a walk, from memory to f32 strips and back. */
#ifndef EPI_CPU_ACCESS_H
#define EPI_CPU_ACCESS_H

#include "cpu/strips.h"
#include "pass/walk.h"

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

#endif
