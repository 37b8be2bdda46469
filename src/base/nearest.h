/* nearest.h: the known name that is closest to one that is not known. */
#ifndef EPI_BASE_NEAREST_H
#define EPI_BASE_NEAREST_H

#include "base/base.h"

typedef struct epi_nearest {
    const char *wanted;
    char best[64]; /* empty where nothing is close */
    int distance;
} epi_nearest;

void epi_nearest_offer(epi_nearest *n, const char *name);

#endif
