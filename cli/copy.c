/* copy.c: how fast this machine copies memory, the yardstick of kernels that do little else. */
#include "copy.h"

#include <stdlib.h>
#include <string.h>

#include "base/parallel.h"
#include "cpu/strips.h"

typedef struct part {
    const copy_bench *c;
    const epi_strips *strips; /* past the caches; NULL: as the C library does it */
} part;

static void copy_part(void *ctx, int64_t item, int thread) {
    const part *p = ctx;
    (void)thread;
    int64_t each = epi_round_up(epi_ceil_div(p->c->count, p->c->threads), 16), start = item * each;
    int64_t n = epi_min64(each, p->c->count - start);
    if (n <= 0)
        return;
    if (p->strips) {
        p->strips->stream(p->c->to + start, EPI_F32, p->c->from + start, n);
        p->strips->settle();
    } else {
        memcpy(p->c->to + start, p->c->from + start, (size_t)n * sizeof(float));
    }
}

bool copy_open(copy_bench *c, double bytes, int threads) {
    *c = (copy_bench){.count = (int64_t)(bytes / 2 / sizeof(float)), .threads = threads};
    size_t size = (size_t)epi_round_up(epi_max64(1, c->count), 16) * sizeof(float);
    c->from = aligned_alloc(64, size);
    c->to = aligned_alloc(64, size);
    if (!c->from || !c->to)
        return false;
    memset(c->from, 1, size);
    memset(c->to, 1, size);
    return true;
}

void copy_run(const copy_bench *c, bool past_caches) {
    part p = {c, past_caches ? epi_strips_choose() : NULL};
    epi_parallel_for(c->threads, c->threads, copy_part, &p);
}

void copy_close(copy_bench *c) {
    free(c->from);
    free(c->to);
    *c = (copy_bench){0};
}
