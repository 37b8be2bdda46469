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

typedef struct epi_kind_row {
    const char *name;      /* as information, JSON and the command say it */
    const char *what;      /* it is, in a sentence */
    bool multiplies;       /* matrices: it has a depth */
    const char *unit;      /* what holds the values that it has on chip */
    const char *stages[3]; /* what is listed before it, of it, and after it, begins so */
} epi_kind_row;
extern const epi_kind_row epi_kinds[EPI_KIND_COUNT];

/* The row of this name; NULL: no kind has it. */
const epi_kind_row *epi_kind_named(const char *name);

#endif
