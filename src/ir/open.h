/* open.h: open axes, whose size is given at each run.
 *
 * The source of a kernel is written once for all sizes of such an axis. It uses a *stand-in* instead of the
 * size: a prime that divides no other size, times two for every time that the program halves the axis. So
 * nothing in the source can depend on the actual size by accident: no stride is a multiple of 16 bytes, no
 * digit of a walk disappears, and no two axes look alike, unless that holds for every size. And a number
 * that is computed from sizes shows whether it grows with an open size: then the prime divides it. */
#ifndef EPI_IR_OPEN_H
#define EPI_IR_OPEN_H

#include "ir/graph.h"

enum { EPI_MAX_OPEN = 4 };

typedef struct epi_open {
    int count;
    int dim[EPI_MAX_OPEN];
    int64_t prime[EPI_MAX_OPEN];
    int halved[EPI_MAX_OPEN]; /* the stand-in is the prime times two to this power */
    /* In units of two to that power, which the text counts by: the size in this kernel, and the largest. */
    int64_t units[EPI_MAX_OPEN], most[EPI_MAX_OPEN];
    int64_t sizes[EPI_MAX_DIMS];   /* by dim: with stand-ins */
    int64_t largest[EPI_MAX_DIMS]; /* by dim: with the largest sizes */
} epi_open;

/* Chooses stand-ins for the dims marked in `is_open`, of a graph whose sizes, and largest sizes, these are.
 * False where there are more than EPI_MAX_OPEN. */
bool epi_open_make(const epi_graph *g, const bool *is_open, const int64_t *sizes, const int64_t *largest,
                   epi_open *out);

/* Is the size of this dim given at each run? NULL: there are none such. */
bool epi_open_has(const epi_open *open, int dim);
/* How often open axis `i` is a factor of a number made of sizes; *rest is what remains, if not NULL. */
int epi_open_power(const epi_open *open, int i, int64_t number, int64_t *rest);
/* Does the number grow with an open size? NULL: there are none. */
bool epi_open_grows(const epi_open *open, int64_t number);
/* The number with stand-ins replaced: by the sizes of this kernel, or by the largest. NULL: as it is. */
int64_t epi_open_now(const epi_open *open, int64_t number);
int64_t epi_open_most(const epi_open *open, int64_t number);

#endif
