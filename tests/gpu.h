/* gpu.h: what test_gpu.c stands on: a watchdog, kernels that are compiled ahead of time, problems in guarded
 * device memory, and results compared bit for bit. */
#ifndef EPI_TESTS_GPU_H
#define EPI_TESTS_GPU_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "case_text.h"

static int device = 1;
static enum { QUICK, SAMPLE, FULL, SANITIZE, ON_CPU, SCHEDULES, ATTENTION } mode;
static int refused, slow; /* forced configurations that were skipped: by the emitter, by the compiler */
static bool broken;       /* the device does not answer any more */

/* ---- a watchdog: a kernel that never ends says which it was ---- */

static char running[256];

static inline void on_alarm(int signal) {
    (void)signal;
    static const char text[] = "FAILED, it does not end: ";
    if (write(2, text, sizeof text - 1) < 0 || write(2, running, strlen(running)) < 0 ||
        write(2, "\n", 1) < 0)
        _exit(2);
    _exit(1);
}

static inline void watch(const char *what) {
    snprintf(running, sizeof running, "%s", what);
    alarm(mode == SANITIZE ? 400 : 60);
}

/* ---- tasks and the threads that do them ahead of time ---- */

typedef struct task {
    const loaded *l;
    epi_options o;
    oracles *oracle; /* make the oracles of o.type; else compile a kernel: */
    epi_kernel *kernel;
    epi_status status;
    epi_error err;
    bool done;
} task;

enum { WORKERS = 12, MOST_TASKS = 8192, STACK = 16 << 20 };

typedef struct pool {
    task *tasks;
    int count;
    atomic_int next;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t threads[WORKERS];
    int started;
} pool;

static inline void *pool_work(void *arg) {
    pool *p = arg;
    for (int i; (i = atomic_fetch_add(&p->next, 1)) < p->count;) {
        task *t = &p->tasks[i];
        if (t->oracle)
            oracles_make(t->l, t->o.type, t->oracle);
        else
            t->status = epi_kernel_compile(t->l->program, &t->o, &t->kernel, &t->err);
        pthread_mutex_lock(&p->lock);
        t->done = true;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
    }
    return NULL;
}

static inline void pool_start(pool *p, task *tasks, int count) {
    pthread_attr_t large; /* compilers recurse */
    *p = (pool){.tasks = tasks, .count = count};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    pthread_attr_init(&large);
    pthread_attr_setstacksize(&large, STACK);
    while (p->started < WORKERS && p->started < count &&
           pthread_create(&p->threads[p->started], &large, pool_work, p) == 0)
        p->started++;
    pthread_attr_destroy(&large);
    if (!p->started)
        pool_work(p);
}

static inline void pool_wait(pool *p, const task *t) {
    pthread_mutex_lock(&p->lock);
    while (!t->done)
        pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* Nothing new is begun; what was made and not used is freed. */
static inline void pool_end(pool *p) {
    atomic_store(&p->next, p->count);
    for (int i = 0; i < p->started; i++)
        pthread_join(p->threads[i], NULL);
    for (int i = 0; i < p->count; i++) {
        epi_kernel_free(p->tasks[i].kernel);
        if (p->tasks[i].oracle) {
            oracles_free(p->tasks[i].oracle);
            free(p->tasks[i].oracle);
        }
    }
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
}

static inline task compile_task(const loaded *l, epi_dtype type, epi_path path, epi_rounding rounding,
                                const char *config) {
    task t = {.l = l, .o = case_options(l, type, path)};
    t.o.device = device;
    t.o.rounding = rounding;
    t.o.config = config;
    return t;
}

static inline void describe_task(const task *t, char *out, size_t size) {
    snprintf(out, size, "%s %s %s %s", epi_dtype_name(t->o.type),
             t->o.path == EPI_PATH_FUSED ? "fused" : "unfused",
             t->o.rounding == EPI_ROUND_EXACT ? "exact" : "packed", t->o.config ? t->o.config : "chosen");
}

/* A configuration that was forced may be refused: that is counted. The model's choice must compile. */
static inline bool task_compiled(const task *t, const char *what) {
    if (t->status == EPI_ERR_UNSUPPORTED && t->o.config) {
        strstr(t->err.message, "would be slow") ? slow++ : refused++;
        return false;
    }
    return check(t->status == EPI_OK, "%s:%s %s %s compiles: %s", t->l->from->file, t->l->from->program,
                 t->l->from->dims, what, t->status ? t->err.message : "");
}

/* ---- a problem on the device ---- */

/* Tensors lie where the interface just allows it, 16 bytes past a good boundary and the workspace 64, between
 * guards; under the sanitizer nothing lies around them. */
enum { ZONE = 256 };

typedef struct buffer {
    unsigned char *image; /* what was copied there, on the host */
    void *memory;
    size_t front, bytes, total;
} buffer;

typedef struct on_device {
    problem host;
    buffer b[MAX_TENSORS + 1]; /* the last is the workspace */
    epi_tensor args[MAX_TENSORS];
    void *workspace;
} on_device;

static inline bool buffer_make(buffer *b, size_t bytes, size_t past) {
    epi_error err;
    bool guarded = mode != SANITIZE;
    b->bytes = bytes;
    b->front = guarded ? ZONE + past : 0;
    b->total = b->front + bytes + (guarded ? ZONE : 0);
    b->image = malloc(b->total + 1);
    return b->image && epi_device_alloc(ctx, device, b->total, &b->memory, &err) == EPI_OK;
}

static inline void on_device_free(on_device *d) {
    for (int i = 0; i <= MAX_TENSORS; i++) {
        epi_device_free(ctx, device, d->b[i].memory, NULL);
        free(d->b[i].image);
    }
    problem_free(&d->host);
    *d = (on_device){0};
}

/* With random inputs. */
static inline bool on_device_make(on_device *d, const epi_program *program, const epi_kernel *k) {
    *d = (on_device){0};
    bool ok = problem_make(&d->host, program, k, LAYOUT_PLAIN);
    if (ok)
        problem_fill(&d->host, CASE_SEED);
    for (int i = 0; i < d->host.count && ok; i++) {
        const tensor *t = &d->host.t[i];
        ok = buffer_make(&d->b[i], (size_t)t->span * epi_dtype_size(t->shape.type), 16);
        if (ok)
            d->args[i].data = (unsigned char *)d->b[i].memory + d->b[i].front;
    }
    buffer *w = &d->b[MAX_TENSORS];
    ok = ok && buffer_make(w, epi_kernel_workspace(k), 64);
    if (ok)
        d->workspace = (unsigned char *)w->memory + w->front;
    if (!check(ok, "memory on the device"))
        on_device_free(d);
    return ok;
}

/* Inputs, and poison where results and scratch will be. The wait is for streams that do not wait for copies.
 */
static inline bool upload(on_device *d, epi_error *err) {
    for (int i = 0; i <= MAX_TENSORS; i++) {
        buffer *b = &d->b[i];
        if (!b->memory)
            continue;
        memset(b->image, SENTINEL, b->total);
        if (i < d->host.inputs)
            memcpy(b->image + b->front, d->host.t[i].data, b->bytes);
        else
            memset(b->image + b->front, POISON, b->bytes);
        if (epi_device_copy(ctx, device, b->memory, b->image, b->total, err) != EPI_OK)
            return false;
    }
    return epi_device_wait(ctx, device, err) == EPI_OK;
}

/* Results go to the host's problem; inputs and guards must be as they were. */
static inline bool download(on_device *d, bool *intact, epi_error *err) {
    *intact = true;
    for (int i = 0; i <= MAX_TENSORS; i++) {
        buffer *b = &d->b[i];
        if (!b->memory)
            continue;
        if (epi_device_copy(ctx, device, b->image, b->memory, b->total, err) != EPI_OK)
            return false;
        for (size_t at = 0; at < b->front; at++)
            *intact &= b->image[at] == SENTINEL;
        for (size_t at = b->front + b->bytes; at < b->total; at++)
            *intact &= b->image[at] == SENTINEL;
        if (i < d->host.inputs)
            *intact &= !memcmp(b->image + b->front, d->host.t[i].data, b->bytes);
        else if (i < d->host.count)
            memcpy(d->host.t[i].data, b->image + b->front, b->bytes);
    }
    return true;
}

/* One run from poison to results; false where there are none. */
static inline bool run_once(const epi_kernel *k, on_device *d, const char *what) {
    epi_error err = {0};
    bool intact = true, ok = !broken;
    watch(what);
    if (ok && !upload(d, &err))
        broken = true;
    else if (ok && epi_kernel_start(k, d->args, d->host.count, d->workspace, NULL, &err) != EPI_OK)
        ok = false;
    else if (ok)
        broken = epi_device_wait(ctx, device, &err) != EPI_OK || !download(d, &intact, &err);
    alarm(0);
    check(intact, "%s: nothing but the results is touched", what);
    return check(ok && !broken, "%s runs: %s", what, err.message) && intact;
}

/* The same in a workspace of its own, by a kernel with an open axis that has so many elements; NULL: it has
 * none. */
static inline bool run_sized(const epi_kernel *k, on_device *d, const int64_t *rows, const char *what) {
    epi_error err = {0};
    bool intact = true, ok = !broken;
    size_t bytes = 0;
    void *work = NULL;
    if (!rows)
        bytes = epi_kernel_workspace(k);
    ok = ok && (!rows || epi_kernel_workspace_at(k, rows, 1, &bytes, &err) == EPI_OK) &&
         epi_device_alloc(ctx, device, bytes, &work, &err) == EPI_OK && upload(d, &err);
    const epi_call call = EPI_CALL(.tensors = d->args, .count = d->host.count, .workspace = work,
                                   .workspace_bytes = bytes, .sizes = rows, .size_count = rows != NULL);
    watch(what);
    ok = ok && epi_kernel_call(k, &call, &err) == EPI_OK;
    broken |= ok && epi_device_wait(ctx, device, &err) != EPI_OK;
    ok = ok && !broken && download(d, &intact, &err) && intact;
    alarm(0);
    epi_device_free(ctx, device, work, NULL);
    return check(ok, "%s runs: %s", what, err.message);
}

/* ---- bits ---- */

typedef struct bits {
    unsigned char *data;
    size_t size;
} bits;

/* All outputs, one after the other. */
static inline bits bits_of(const problem *p) {
    bits out = {0};
    for (int pass = 0; pass < 2; pass++) {
        out.size = 0;
        for (int i = p->inputs; i < p->count; i++) {
            size_t n = (size_t)p->t[i].span * epi_dtype_size(p->t[i].shape.type);
            if (out.data)
                memcpy(out.data + out.size, p->t[i].data, n);
            out.size += n;
        }
        if (!pass)
            out.data = malloc(out.size + 1);
        if (!out.data)
            break;
    }
    return out;
}

/* Holds results against earlier ones; the first time it keeps them. */
static inline bool bits_agree(bits *first, const problem *p) {
    bits now = bits_of(p);
    if (!first->data) {
        *first = now;
        return now.data != NULL;
    }
    bool same = now.data && now.size == first->size && !memcmp(now.data, first->data, now.size);
    free(now.data);
    return same;
}

static inline void bits_free(bits *b) {
    free(b->data);
    *b = (bits){0};
}

#endif
