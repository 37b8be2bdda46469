/* parallel.c: the loop over threads, by a pool of POSIX threads.
 *
 * Workers are started when a loop first needs them. After a loop they wait for the next one. A loop takes
 * idle workers from a list and returns them at its end, so loops of several callers run at the same time,
 * each with its own workers. Callers need not care about two things:
 *   - fork: a child has none of its parent's workers. Its list is emptied and fills again.
 *   - a system that gives no more threads: the existing ones do the work, or the caller alone.
 *
 * The `job` of a worker is its state. Only these changes happen:
 *     NULL -> a loop     by the caller, which owns the worker from the list on: there is work
 *     a loop -> TAKEN    by the worker: it works on the loop until no item is left
 *     a loop -> NULL     by the caller: everything is done, and the worker had not begun
 *     TAKEN -> NULL      by the worker: it will not touch the loop again
 */
#define _GNU_SOURCE
#include "base/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* How long a thread looks for a change before it sleeps: about as long as waking one takes. */
enum { SPIN_NS = 100000, LOOKS = 64 };
/* Compilers run on workers, too, and recurse: the system's own stack may be small. */
enum { STACK_BYTES = 16 << 20 };

typedef struct loop {
    epi_parallel_body *body;
    void *ctx;
    int64_t count;
    _Atomic int64_t next;
} loop;

typedef struct worker {
    _Atomic(loop *) job;
    int thread; /* its number in the loop; set before the job */
    pthread_t id;
    struct worker *next;  /* in the list of idle workers, or of those of a loop */
    pthread_mutex_t lock; /* for whoever sleeps until the job changes */
    pthread_cond_t changed;
    _Atomic int sleepers;
} worker;

static loop taken_mark, end_mark;
static loop *const TAKEN = &taken_mark;
static loop *const END = &end_mark; /* the job of a worker that is to end */

static struct {
    pthread_mutex_t lock;
    worker *idle;
    _Atomic int workers; /* there are, idle or not */
    int processors;
    pthread_once_t once;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

/* ---- waiting ---- */

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

static void change(worker *w, loop *job) {
    atomic_store(&w->job, job);
    if (atomic_load(&w->sleepers) == 0)
        return; /* whoever is about to sleep counts itself first and then looks at the job once more */
    pthread_mutex_lock(&w->lock);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* Waits until the worker is idle, or until it is not; returns its job. */
static loop *await(worker *w, bool idle) {
    loop *job;
    /* looking helps only where the one that will make the change runs on another processor */
    if (atomic_load(&pool.workers) < pool.processors)
        for (int64_t end = now() + SPIN_NS; now() < end;)
            for (int i = 0; i < LOOKS; i++, relax())
                if (((job = atomic_load(&w->job)) == NULL) == idle)
                    return job;
    pthread_mutex_lock(&w->lock);
    atomic_fetch_add(&w->sleepers, 1);
    while (((job = atomic_load(&w->job)) == NULL) != idle)
        pthread_cond_wait(&w->changed, &w->lock);
    atomic_fetch_sub(&w->sleepers, 1);
    pthread_mutex_unlock(&w->lock);
    return job;
}

/* ---- workers ---- */

static void work(loop *l, int thread) {
    for (int64_t i; (i = atomic_fetch_add(&l->next, 1)) < l->count;)
        l->body(l->ctx, i, thread);
}

static void *run_worker(void *arg) {
    worker *w = arg;
    for (loop *l; (l = await(w, false)) != END;)
        if (atomic_compare_exchange_strong(&w->job, &l, TAKEN)) {
            work(l, w->thread);
            change(w, NULL);
        }
    return NULL;
}

static void free_worker(worker *w) {
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* NULL where there is no memory, or the system gives no thread. Signals are for the caller's threads. */
static worker *make_worker(void) {
    worker *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    pthread_attr_t large;
    pthread_attr_init(&large);
    pthread_attr_setstacksize(&large, STACK_BYTES);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool made = pthread_create(&w->id, &large, run_worker, w) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&large);
    if (!made) {
        free_worker(w);
        return NULL;
    }
    atomic_fetch_add(&pool.workers, 1);
    return w;
}

/* ---- the pool ---- */

static void before_fork(void) {
    pthread_mutex_lock(&pool.lock);
}

static void after_fork(void) {
    pthread_mutex_unlock(&pool.lock);
}

/* The child's only thread is the one that forked. What the workers were is left to its memory: another thread
 * of the parent may have been in the midst of a loop. */
static void in_child(void) {
    pool.idle = NULL;
    atomic_store(&pool.workers, 0);
    pthread_mutex_unlock(&pool.lock);
}

static void start_pool(void) {
    cpu_set_t set;
    pool.processors =
        sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    pthread_atfork(before_fork, after_fork, in_child);
}

/* When the library is unloaded, idle workers end: they wait in its code. */
__attribute__((destructor)) static void end_pool(void) {
    pthread_mutex_lock(&pool.lock);
    worker *w = pool.idle;
    pool.idle = NULL;
    pthread_mutex_unlock(&pool.lock);
    for (worker *next; w; w = next) {
        next = w->next;
        change(w, END);
        pthread_join(w->id, NULL);
        free_worker(w);
    }
}

/* A list of up to `count` idle workers, some of them new. */
static worker *take_workers(int64_t count) {
    worker *list = NULL;
    pthread_mutex_lock(&pool.lock);
    for (; count > 0 && pool.idle; count--) {
        worker *w = pool.idle;
        pool.idle = w->next;
        w->next = list;
        list = w;
    }
    pthread_mutex_unlock(&pool.lock);
    for (worker *w; count > 0 && (w = make_worker()); count--) {
        w->next = list;
        list = w;
    }
    return list;
}

static void give_back(worker *list) {
    worker *last = list;
    while (last->next)
        last = last->next;
    pthread_mutex_lock(&pool.lock);
    last->next = pool.idle;
    pool.idle = list;
    pthread_mutex_unlock(&pool.lock);
}

/* ---- the loop ---- */

static int within_limits(long threads) {
    return threads < 1 ? 1 : threads > EPI_MAX_THREADS ? EPI_MAX_THREADS : (int)threads;
}

int epi_parallel_processors(void) {
    pthread_once(&pool.once, start_pool);
    return within_limits(pool.processors);
}

int epi_parallel_default(void) {
    const char *asked = getenv("OMP_NUM_THREADS"); /* "4", or a list of which the first counts */
    long n = asked ? strtol(asked, NULL, 10) : 0;
    return n < 1 ? epi_parallel_processors() : within_limits(n);
}

void epi_parallel_for(int threads, int64_t count, epi_parallel_body *body, void *ctx) {
    loop l = {.body = body, .ctx = ctx, .count = count};
    worker *list = NULL;
    if (threads > 1 && count > 1) {
        pthread_once(&pool.once, start_pool);
        list = take_workers((threads < count ? threads : count) - 1);
    }
    int thread = 0;
    for (worker *w = list; w; w = w->next) {
        w->thread = ++thread;
        change(w, &l);
    }
    work(&l, 0);
    for (worker *w = list; w; w = w->next) {
        loop *offered = &l;
        if (!atomic_compare_exchange_strong(&w->job, &offered, NULL) && offered)
            await(w, true);
    }
    if (list)
        give_back(list);
}
