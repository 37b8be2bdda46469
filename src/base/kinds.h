/* kinds.h: the kinds of kernels: what each is called, and what all ask of it. */
#ifndef EPI_BASE_KINDS_H
#define EPI_BASE_KINDS_H

#include <stdbool.h>

/* Which mainloop a kernel has. */
typedef enum epi_kind {
    EPI_KIND_GEMM,       /* tiles of one product, or of two side by side */
    EPI_KIND_ROWS,       /* whole rows; there is no product */
    EPI_KIND_ATTENTION,  /* score tiles, and products that sum over what is made of them */
    EPI_KIND_RECURRENCE, /* a scan of products, whose state is kept and stepped (recurrence.h) */
    EPI_KIND_PASS,       /* one operation, a copy, or orders of an index, over whole tensors in memory */
    EPI_KIND_COUNT
} epi_kind;

/* Where it may store a result of all its rows and columns: in new memory alone; over what it updates; over an input that
 * is read once, for that result; or over any that is read element by element. */
typedef enum epi_covers { EPI_COVERS_NOTHING, EPI_COVERS_UPDATED, EPI_COVERS_ONE, EPI_COVERS_ANY } epi_covers;

typedef struct epi_kind_row {
    const char *name; /* as information, JSON and the command say it */
    epi_covers covers;
    bool multiplies;  /* matrices: it has a depth */
    const char *unit; /* what holds the values that it has on chip; and how the list of these begins, */
    const char *before, *on, *after; /* and that of what is made before it and after it */
    const char *what;                /* it is, in a sentence */
} epi_kind_row;
extern const epi_kind_row epi_kinds[EPI_KIND_COUNT];

/* The row of this name; NULL: no kind has it. */
const epi_kind_row *epi_kind_named(const char *name);

#endif
