/* copy.c: how fast this machine copies memory, to compare with kernels that do little else. */
#include "copy.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "base/base.h"
#include "base/parallel.h"

enum { LINE = 16 }; /* floats of a cache line, which every share is a multiple of */

/* A run, and in which of the two ways. */
typedef struct copying {
    const copy_bench *c;
    bool non_temporal;
} copying;

/* By non-temporal stores where there are any, else as the C library does it. `to` lies at a line's start. */
static void copy_non_temporal(float *to, const float *from, int64_t count) {
    int64_t i = 0;
#if defined(__x86_64__)
    for (; i + LINE <= count; i += LINE)
        for (int j = 0; j < LINE; j += 4)
            _mm_stream_ps(to + i + j, _mm_loadu_ps(from + i + j));
    _mm_sfence(); /* nobody else may look before they have arrived */
#endif
    memcpy(to + i, from + i, (size_t)(count - i) * sizeof *to);
}

static void copy_share(void *ctx, int64_t item, int thread) {
    const copying *run = ctx;
    const copy_bench *c = run->c;
    (void)thread;
    int64_t each = epi_round_up(epi_ceil_div(c->count, c->threads), LINE), start = item * each;
    int64_t n = epi_min64(each, c->count - start);
    if (n <= 0)
        return;
    if (run->non_temporal)
        copy_non_temporal(c->to + start, c->from + start, n);
    else
        memcpy(c->to + start, c->from + start, (size_t)n * sizeof(float));
}

bool copy_open(copy_bench *c, double bytes, int threads) {
    *c = (copy_bench){.count = (int64_t)(bytes / 2 / sizeof(float)), .threads = threads};
    size_t size = (size_t)epi_round_up(epi_max64(1, c->count), LINE) * sizeof(float);
    c->from = aligned_alloc(64, size);
    c->to = aligned_alloc(64, size);
    if (!c->from || !c->to)
        return false;
    memset(c->from, 1, size);
    memset(c->to, 1, size);
    return true;
}

void copy_run(const copy_bench *c, bool non_temporal) {
    copying run = {c, non_temporal};
    epi_parallel_for(c->threads, c->threads, copy_share, &run);
}

void copy_close(copy_bench *c) {
    free(c->from);
    free(c->to);
    *c = (copy_bench){0};
}
