/* copy.h: a copy of as many bytes as a kernel moves, half of them read and half written. */
#ifndef EPI_CLI_COPY_H
#define EPI_CLI_COPY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct copy_bench {
    float *from, *to;
    int64_t count; /* floats */
    int threads;
} copy_bench;

/* False where there is no memory; to be closed either way. */
bool copy_open(copy_bench *c, double bytes, int threads);
/* As the C library copies, or by non-temporal stores, which bypass the caches. */
void copy_run(const copy_bench *c, bool non_temporal);
void copy_close(copy_bench *c);

#endif
