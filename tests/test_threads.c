/* test_threads.c: the pool of threads: children of fork, callers side by side, a system that gives no more
 * threads, and a library that is unloaded.
 *
 *     test_threads LIBRARY.so
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/parallel.h"
#include "harness.h"

enum {
    THREADS = 4,
    ITEMS = 1000,
    PATIENCE = 30,           /* seconds of a processor */
    AT_MOST = 20 * PATIENCE, /* and of the clock, for what sleeps: other programs may have the processors */
    CALLERS = 4,
    LOOPS = 2000,
    FORKS = 50,
    DEPTH = 64,
    ROWS = 512
};

/* ---- the loop itself ---- */

typedef struct tally {
    _Atomic int items[ITEMS];
    _Atomic int threads[THREADS];
} tally;

static void count_item(void *ctx, int64_t item, int thread) {
    tally *t = ctx;
    atomic_fetch_add(&t->items[item], 1);
    if (thread >= 0 && thread < THREADS)
        atomic_fetch_add(&t->threads[thread], 1);
}

/* Every item is done once, by threads whose numbers are below the number asked for. */
static bool loop_is_whole(int threads, int64_t count) {
    static _Thread_local tally t;
    memset(&t, 0, sizeof t);
    epi_parallel_for(threads, count, count_item, &t);
    int items = 0, numbered = 0;
    for (int i = 0; i < ITEMS; i++)
        items += i < count ? t.items[i] == 1 : t.items[i] == 0;
    for (int i = 0; i < threads; i++)
        numbered += t.threads[i];
    return items == ITEMS && numbered == count;
}

static void test_loop(void) {
    static const int64_t counts[] = {0, 1, 2, 3, 4, 5, 100, ITEMS};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int threads = 1; threads <= THREADS; threads++)
            check(loop_is_whole(threads, counts[i]), "%d items on %d threads", (int)counts[i], threads);
}

typedef struct meeting {
    _Atomic int arrived;
    _Atomic bool failed;
} meeting;

/* Waits until as many threads are in the loop as were asked for. */
static void meet(void *ctx, int64_t item, int thread) {
    meeting *m = ctx;
    (void)item, (void)thread;
    atomic_fetch_add(&m->arrived, 1);
    for (int ms = 0; atomic_load(&m->arrived) < THREADS && !atomic_load(&m->failed); ms++) {
        usleep(1000);
        if (ms == AT_MOST * 1000)
            atomic_store(&m->failed, true);
    }
}

static void test_meeting(void) {
    meeting m = {0};
    epi_parallel_for(THREADS, THREADS, meet, &m);
    check(!atomic_load(&m.failed), "%d threads are in a loop at once", THREADS);
}

static _Atomic bool stop;
static int loops_of_caller;

static void *call_loops(void *arg) {
    int *wrong = arg;
    for (int i = 0; i < loops_of_caller || !atomic_load(&stop); i++)
        *wrong += !loop_is_whole(2 + i % (THREADS - 1), 1 + i % 50);
    return NULL;
}

/* ---- children ---- */

/* Does a child that calls `body` return true in time? */
static bool child_is_well(bool (*body)(void)) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = PATIENCE}, NULL);
        alarm(AT_MOST);
        _exit(body() ? 0 : 1);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool loops(void) {
    bool ok = true;
    for (int i = 0; i < 20; i++)
        ok &= loop_is_whole(THREADS, ITEMS);
    return ok;
}

static bool grandchild(void) {
    return loops() && child_is_well(loops) && loops();
}

/* No thread can be made where its stack would be larger than the address space. */
static bool loops_without_threads(void) {
    pthread_attr_t attr;
    pthread_t id;
    if (pthread_attr_init(&attr) != 0 || pthread_attr_setstacksize(&attr, (size_t)1 << 60) != 0 ||
        pthread_setattr_default_np(&attr) != 0 || pthread_create(&id, NULL, call_loops, NULL) == 0)
        return false; /* it would test nothing */
    return loops();
}

static void test_children(void) {
    check(child_is_well(loops_without_threads), "without threads the caller does the work");
    check(loops() && child_is_well(loops), "a child loops after its parent");
    check(child_is_well(grandchild), "so does a child of a child");
    pthread_t id[CALLERS];
    int wrong[CALLERS] = {0}, well = 0, forks = share_of(FORKS);
    loops_of_caller = share_of(LOOPS);
    for (int i = 0; i < CALLERS; i++)
        pthread_create(&id[i], NULL, call_loops, &wrong[i]);
    for (int i = 0; i < forks; i++)
        well += child_is_well(loops);
    atomic_store(&stop, true);
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(id[i], NULL);
        check(wrong[i] == 0, "%d loops of caller %d were not whole", wrong[i], i);
    }
    check(well == forks, "%d of %d children made in the midst of loops were well", well, forks);
}

/* ---- kernels, of the library that is linked or of one that was loaded ---- */

#define FUNCTIONS(X) \
    X(context_open) \
    X(context_close) X(module_parse) X(module_program) X(module_free) X(kernel_compile) X(kernel_workspace) \
        X(kernel_run) X(kernel_free)

typedef struct library {
#define MEMBER(name) __typeof__(epi_##name) *name;
    FUNCTIONS(MEMBER)
} library;

#define LINKED(name) .name = epi_##name,
static const library linked = {FUNCTIONS(LINKED)};

/* A product with two threads, all of whose elements are DEPTH. */
static bool product_is_right(const library *l) {
    static const char text[] = "p(x[M,K], w[N,K]) -> y[M,N] { y = x @ w }";
    static float x[ROWS * DEPTH], w[ROWS * DEPTH], y[ROWS * ROWS];
    epi_dim_binding dims[] = {{"M", ROWS}, {"N", ROWS}, {"K", DEPTH}};
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = 3, .threads = 2);
    epi_context *ctx = NULL;
    epi_module *m = NULL;
    epi_kernel *k = NULL;
    for (int i = 0; i < ROWS * DEPTH; i++)
        x[i] = w[i] = 1;
    memset(y, 0, sizeof y);
    bool ok = l->context_open(&ctx, NULL) == EPI_OK &&
              l->module_parse(ctx, text, strlen(text), "t", &m, NULL) == EPI_OK &&
              l->kernel_compile(l->module_program(m, 0), &o, &k, NULL) == EPI_OK;
    void *work = ok ? aligned_alloc(64, l->kernel_workspace(k)) : NULL;
    ok = work && l->kernel_run(k, (epi_tensor[]){{x, NULL}, {w, NULL}, {y, NULL}}, 3, work, NULL) == EPI_OK;
    for (int i = 0; i < ROWS * ROWS; i++)
        ok &= y[i] == DEPTH;
    free(work);
    l->kernel_free(k);
    l->module_free(m);
    l->context_close(ctx);
    return ok;
}

static bool product_of_linked(void) {
    return product_is_right(&linked);
}

static int thread_count(void) {
    int n = 0;
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        sscanf(line, "Threads: %d", &n);
    if (f)
        fclose(f);
    return n;
}

static void test_unloading(const char *path) {
    int before = thread_count();
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!check(handle != NULL, "%s: %s", path, handle ? "" : dlerror()))
        return;
    library l;
#define FIND(name) *(void **)&l.name = dlsym(handle, "epi_" #name);
    FUNCTIONS(FIND)
    check(product_is_right(&l), "a product of the loaded library");
    check(thread_count() > before, "has made a thread");
    dlclose(handle);
    int after = 0;
    for (int ms = 0; ms < AT_MOST * 1000 && (after = thread_count()) > before; ms++)
        usleep(1000); /* a thread that was joined may be counted for a moment */
    check(after == before, "%d threads outlive the library", after - before);
}

int main(int argc, char **argv) {
    test_children(); /* first: in a process without workers */
    test_loop();
    test_meeting();
    check(product_of_linked(), "a product");
    check(child_is_well(product_of_linked), "a product after a fork");
    if (argc > 1)
        test_unloading(argv[1]);
    return finish();
}
