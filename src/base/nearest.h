/* nearest.h: the hint in an error about an unknown name: the closest known name, or a list of the known
 * ones. */
#ifndef EPI_BASE_NEAREST_H
#define EPI_BASE_NEAREST_H

#include "base/base.h"

typedef struct epi_nearest {
    const char *wanted;
    char best[64]; /* empty where nothing is close */
    int distance;
    char all[160]; /* the first of the names, with commas between */
    int more;      /* names that are not among these */
    char hint[240];
} epi_nearest;

void epi_nearest_offer(epi_nearest *n, const char *name);

/* "; did you mean x?", or where nothing is close "; it has x, y and 3 more" with such words before the names.
 * It is empty where none was offered, and points into *n. */
const char *epi_nearest_hint(epi_nearest *n, const char *has);

#endif
