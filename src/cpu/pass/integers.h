/* integers.h: operations on integers that f32 cannot hold, as passes over memory. */
#ifndef EPI_CPU_INTEGERS_H
#define EPI_CPU_INTEGERS_H

#include "cpu/rows/strips.h"
#include "pass/schedule/walk.h"

/* Element `at` as an integer, and back: the nearest number that its type has. */
int64_t epi_whole_load(const epi_strips *s, const epi_ref *ref, int64_t at);
void epi_whole_store(const epi_strips *s, const epi_ref *ref, int64_t at, int64_t x);

/* Computes one node in 64 bits, where sums and products wrap around, of operands in any type; numbers and positions
 * need be nowhere. An extreme of nothing is the number that the others start from. A scatter wants `room` for its
 * index, sorted: as many numbers as it has elements, and as it has places, and one more. */
void epi_integers_run(const epi_spec *spec, const epi_strips *s, int node, const epi_ref *to,
                      const epi_ref *const from[3], int64_t *room);

#endif
