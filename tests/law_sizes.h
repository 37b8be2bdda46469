/* law_sizes.h: sizes of a text's axes, by name. */
#ifndef EPI_TESTS_LAW_SIZES_H
#define EPI_TESTS_LAW_SIZES_H

#include "harness.h"

enum { MAX_LAW_DIMS = 24 };

typedef struct law_sizes {
    int count;
    char name[MAX_LAW_DIMS][24];
    int64_t size[MAX_LAW_DIMS];
} law_sizes;

static int64_t law_size(const law_sizes *s, const char *name) {
    for (int i = 0; i < s->count; i++)
        if (!strcmp(s->name[i], name))
            return s->size[i];
    return 4;
}

#endif
