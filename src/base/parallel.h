/* parallel.h: one loop over threads, the only place that knows how threads are made. */
#ifndef EPI_BASE_PARALLEL_H
#define EPI_BASE_PARALLEL_H

#include "base/base.h"

enum { EPI_MAX_THREADS = 1024 };

/* Calls body(ctx, item, thread) once for every item in [0, count), on up to `threads` threads
 * numbered from 0, in no particular order. They are fewer where the system gives no more. */
typedef void epi_parallel_body(void *ctx, int64_t item, int thread);
void epi_parallel_for(int threads, int64_t count, epi_parallel_body *body, void *ctx);

/* The number of threads a kernel gets by default: of processors, or as OMP_NUM_THREADS says. */
int epi_parallel_default(void);

/* Processors that the process may use. As many compile at once: whoever starts a process for each GPU asks for one
 * thread in OMP_NUM_THREADS, and means those that compute. */
int epi_parallel_processors(void);

#endif
