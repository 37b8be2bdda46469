/* rows_begin.h: what a run of rows finds out about its tensors before the first row. */
#ifndef EPI_CPU_ROWS_BEGIN_H
#define EPI_CPU_ROWS_BEGIN_H

#include "cpu/rows/rows.h"

/* Where a value is found, if not in the tensor of the instruction of that number. */
enum { EPI_IN_SLOT = -1, EPI_IN_ROW_BUFFER = -2, EPI_IN_COLUMNS = -3 };

typedef struct epi_rows_begun {
    const epi_rows *k;
    epi_tile_access *access; /* by instruction */
    int *source;             /* by value */
    int *moving, moves;      /* the values that are somewhere else in every stretch */
    bool *regular;           /* by item of all phases: its tape can be moved on from row to row */
    float *columns;          /* values that do not depend on the row */
    float *partials;
    unsigned char *scratch;
    bool settles;      /* some output goes to memory by non-temporal stores */
    bool in_place;     /* some output is stored over an input */
    bool shifts;       /* some value is loaded from other places */
    bool nothing_else; /* all items are regular tapes, and what they alone load: only they have to be moved */
} epi_rows_begun;

/* Fills in all but the pointers, which are set. */
void epi_rows_begin(epi_rows_begun *r, const epi_ref *homes, const epi_ref *tensors);

#endif
