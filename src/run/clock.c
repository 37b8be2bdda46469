/* clock.c: a run whose parts are timed.
 *
 * On the CPU the clock is read before and after a part. On a GPU events are recorded around it in the
 * stream, and read once the stream has passed them, so the host does not wait between parts. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/cuda.h"
#include "run/run.h"

struct epi_part_clock {
    double *seconds;      /* by part, as the others: all of its runs together, */
    int *runs, *launches; /* how many these are, and their launches on a GPU; either may be NULL */
    double began;
    const epi_cuda *cuda; /* NULL: the CPU */
    void *stream;
    int *parts; /* on a GPU: by run of a part, which part, and two events */
    epi_cu_event *events;
    int count, at; /* runs there is room for, and those so far */
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

epi_status epi_part_clock_begin(epi_part_clock *c, int part, epi_error *err) {
    c->began = now();
    if (!c->cuda)
        return EPI_OK;
    if (c->at == c->count)
        return EPI_INTERNAL(err, (epi_place){0}, "more parts are run than there are");
    c->parts[c->at] = part;
    return epi_cuda_event_record(c->cuda, c->events[2 * c->at], c->stream, err);
}

epi_status epi_part_clock_end(epi_part_clock *c, int part, int launches, epi_error *err) {
    if (c->runs)
        c->runs[part]++;
    if (c->launches)
        c->launches[part] += launches;
    if (!c->cuda)
        c->seconds[part] += now() - c->began;
    return c->cuda ? epi_cuda_event_record(c->cuda, c->events[2 * c->at++ + 1], c->stream, err) : EPI_OK;
}

/* Runs of all parts: of those in a loop, slab by slab. */
static int64_t part_runs(const epi_kernel *k) {
    int64_t runs = 0;
    for (int i = 0; i < k->part_count; i++)
        runs += k->parts[i].part && k->parts[i].part->loop >= 0 ? epi_slab_count(k) : 1;
    return runs;
}

/* Events for a run on a GPU. */
static epi_status make_events(epi_part_clock *c, const epi_kernel *k, epi_error *err) {
    const epi_cuda_kernel *first = k->parts[0].full.cuda;
    int64_t runs = part_runs(k);
    if (!first->cuda)
        return epi_fail(err, EPI_ERR_ARGUMENT, "this kernel was compiled without a device: it can be read, but not run");
    if (runs > 1 << 20)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "%ld runs of parts are too many to time", (long)runs);
    EPI_TRY(epi_cuda_use(first->cuda, first->device, err));
    c->cuda = first->cuda;
    c->parts = calloc((size_t)runs, sizeof *c->parts);
    c->events = calloc((size_t)runs, 2 * sizeof(epi_cu_event));
    EPI_TRY(epi_has_memory(c->parts && c->events, err));
    c->count = (int)runs;
    for (int i = 0; i < 2 * c->count; i++)
        EPI_TRY(epi_cuda_event_make(c->cuda, &c->events[i], err));
    return EPI_OK;
}

/* Waits for the stream and adds up the times between its events. */
static epi_status read_events(epi_part_clock *c, epi_error *err) {
    EPI_TRY(epi_cuda_stream_wait(c->cuda, c->stream, err));
    for (int i = 0; i < c->at; i++) {
        double seconds;
        EPI_TRY(epi_cuda_event_seconds(c->cuda, c->events[2 * i], c->events[2 * i + 1], &seconds, err));
        c->seconds[c->parts[i]] += seconds;
    }
    return EPI_OK;
}

static void free_events(epi_part_clock *c) {
    for (int i = 0; i < 2 * c->count; i++)
        epi_cuda_event_free(c->cuda, c->events[i]);
    free(c->events);
    free(c->parts);
}

epi_status epi_kernel_time_parts(const epi_kernel *kernel, const epi_call *given, double *seconds, int *runs,
                                 int *launches, int count, epi_error *err) {
    epi_call call;
    epi_error_clear(err);
    if (!kernel || !given || !seconds)
        return epi_fail(err, EPI_ERR_ARGUMENT,
                        "epi_kernel_time_parts: kernel, call and seconds may not be NULL");
    EPI_TRY(epi_struct_take(&call, sizeof call, given, "call", "EPI_CALL", err));
    if (count != kernel->part_count)
        return epi_fail(err, EPI_ERR_ARGUMENT, "the kernel has %d parts; room for %d was given",
                        kernel->part_count, count);
    if (call.sizes || call.size_count)
        return epi_fail(err, EPI_ERR_UNSUPPORTED,
                        "parts are timed at the largest sizes; compile for the sizes that you want to time");
    epi_part_clock clock = {.seconds = seconds, .runs = runs, .launches = launches, .stream = call.stream};
    memset(seconds, 0, (size_t)count * sizeof *seconds);
    if (runs)
        memset(runs, 0, (size_t)count * sizeof *runs);
    if (launches)
        memset(launches, 0, (size_t)count * sizeof *launches);
    epi_status status = kernel->gpu ? make_events(&clock, kernel, err) : EPI_OK;
    if (status == EPI_OK)
        status = epi_kernel_carry_out(kernel, &call, &clock, err);
    if (status == EPI_OK && kernel->gpu)
        status = read_events(&clock, err);
    free_events(&clock);
    return status;
}
