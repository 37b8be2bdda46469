/* jobs.h: what is run, in as many processes as there are processors: each takes the next of a list. What they say is
 * shown in the list's order, what they count is added up. */
#ifndef EPI_TESTS_EMULATE_JOBS_H
#define EPI_TESTS_EMULATE_JOBS_H

#include <limits.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

/* Calls `run` with a number, of a kernel or of a row of a table. */
typedef struct job {
    void (*run)(int at);
    int at;
} job;

typedef struct job_result { /* in memory that all processes share */
    int passed, failed;
    int worker;     /* who began it, from 1 on; 0: nobody */
    bool ended;     /* it came to its end */
    long from, to;  /* of what its worker wrote */
    char name[400]; /* of the case that it was at */
} job_result;

enum { MOST_JOBS = 8192, MOST_WORKERS = 64 };
static job all_jobs[MOST_JOBS];
static int job_count;

/* How many processes, or compilers, there are at once: as many as processors, or JOBS says. */
static inline int workers(void) {
    const char *own = getenv("JOBS");
    long most = own ? atol(own) : sysconf(_SC_NPROCESSORS_ONLN);
    return most < 1 ? 1 : most > MOST_WORKERS ? MOST_WORKERS : (int)most;
}

static inline void add_job(void (*run)(int at), int at) {
    if (job_count < MOST_JOBS)
        all_jobs[job_count++] = (job){run, at};
    else
        check(false, "more to run than expected");
}

static job_result *mine; /* in a worker: the result of its job */

/* What is checked from here on is of this case. */
static inline void begin_case(const char *name) {
    the_case(name);
    if (mine)
        snprintf(mine->name, sizeof mine->name, "%s", name);
}

static inline void work(int worker, FILE *said, job_result *results, atomic_int *next) {
    dup2(fileno(said), 1);
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* nothing is lost where it crashes */
    for (int i; (i = atomic_fetch_add(next, 1)) < job_count;) {
        job_result *r = mine = &results[i];
        passed = failed_count = 0;
        r->worker = worker;
        r->from = r->to = lseek(1, 0, SEEK_CUR);
        all_jobs[i].run(all_jobs[i].at);
        no_case();
        fflush(stdout);
        r->to = lseek(1, 0, SEEK_CUR);
        r->passed = passed;
        r->failed = failed_count;
        r->ended = true;
    }
    fflush(stdout);
    _exit(0);
}

static inline void show(FILE *said, long from, long to) {
    fseek(said, from, SEEK_SET);
    for (int c; from < to && (c = getc(said)) != EOF; from++)
        putchar(c);
}

static inline void run_jobs(void) {
    size_t bytes = sizeof(atomic_int) + MOST_JOBS * sizeof(job_result);
    job_result *results = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    atomic_int *next = results == MAP_FAILED ? NULL : (atomic_int *)(results + MOST_JOBS);
    FILE *said[MOST_WORKERS + 1] = {0};
    pid_t pids[MOST_WORKERS + 1];
    int count = 0, left = 0, ends[MOST_WORKERS + 1] = {0};
    fflush(stdout);
    while (next && count < workers() && count < job_count && (said[count + 1] = tmpfile())) {
        count++;
        if ((pids[count] = fork()) == 0)
            work(count, said[count], results, next);
    }
    for (int w = 1; w <= count; w++)
        waitpid(pids[w], &ends[w], 0);
    for (int i = 0; next && i < job_count; i++) {
        const job_result *r = &results[i];
        if (r->worker)
            show(said[r->worker], r->from, r->ended ? r->to : LONG_MAX);
        the_case(r->name);
        if (r->worker && !r->ended)
            check(false, "%s came to no end, signal %d", r->name, WTERMSIG(ends[r->worker]));
        no_case();
        left += !r->worker;
        passed += r->passed;
        failed_count += r->failed;
    }
    if (left || !next)
        check(false, "%d of %d are not begun", left, job_count);
    for (int w = 1; w <= count; w++)
        fclose(said[w]);
    munmap(results, bytes);
}

#endif
