/* rows_begin.h: what a run of rows finds out about its tensors before the first row. */
#ifndef EPI_CPU_ROWS_BEGIN_H
#define EPI_CPU_ROWS_BEGIN_H

#include "cpu/rows.h"

/* Where a value is found, if not in the tensor of the step of that number. */
enum { EPI_IN_SLOT = -1, EPI_IN_ROW_BUFFER = -2, EPI_IN_COLUMNS = -3 };

typedef struct epi_rows_begun {
    const epi_rows *k;
    epi_tile_access *access; /* by step */
    int *source;             /* by value */
    int *moving, moves;      /* the values that are somewhere else in every chunk */
    float *columns;          /* values that do not depend on the row */
    float *partials;
    unsigned char *scratch;
    bool streams;  /* some output goes past the caches */
    bool in_place; /* some output is stored over an input */
    bool regular;  /* nothing but chains, which differ from row to row, or chunk to chunk, by a step alone */
} epi_rows_begun;

/* Fills in all but the pointers, which are set. */
void epi_rows_begin(epi_rows_begun *r, const epi_ref *homes, const epi_ref *tensors);

#endif
