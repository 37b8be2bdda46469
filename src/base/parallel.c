/* parallel.c: the loop over threads, by OpenMP; by POSIX threads where the compiler has none (and
 * under ThreadSanitizer, which cannot see into OpenMP's runtime). */
#define _POSIX_C_SOURCE 200809L
#include "base/parallel.h"

#if defined(_OPENMP)
#include <omp.h>

int epi_parallel_default(void) {
    return omp_get_max_threads();
}

void epi_parallel_for(int threads, int64_t count, epi_parallel_body *body, void *ctx) {
    if (threads <= 1 || count <= 1) {
        for (int64_t i = 0; i < count; i++)
            body(ctx, i, 0);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < count; i++)
        body(ctx, i, omp_get_thread_num());
}

#else
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { MAX_THREADS = 256 };

typedef struct team {
    epi_parallel_body *body;
    void *ctx;
    int64_t count;
    _Atomic int64_t next;
} team;

typedef struct member {
    team *team;
    int thread;
} member;

static void *work(void *arg) {
    member *m = arg;
    for (int64_t i; (i = atomic_fetch_add(&m->team->next, 1)) < m->team->count;)
        m->team->body(m->team->ctx, i, m->thread);
    return NULL;
}

int epi_parallel_default(void) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (int)n;
}

void epi_parallel_for(int threads, int64_t count, epi_parallel_body *body, void *ctx) {
    team t = {.body = body, .ctx = ctx, .count = count};
    pthread_t id[MAX_THREADS];
    member m[MAX_THREADS];
    int started = 1;
    m[0] = (member){&t, 0};
    for (; started < threads && started < MAX_THREADS && started < count; started++) {
        m[started] = (member){&t, started};
        if (pthread_create(&id[started], NULL, work, &m[started]) != 0)
            break; /* fewer threads do the same work */
    }
    work(&m[0]);
    for (int i = 1; i < started; i++)
        pthread_join(id[i], NULL);
}
#endif
