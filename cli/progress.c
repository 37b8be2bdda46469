/* progress.c: the line that says what is going on, for people who wait at a terminal.
 *
 * Long work does not return to report progress, so a separate thread watches the clock. The first call
 * starts it. It waits while nothing is going on, and ends with the process. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

static const double patience = 2; /* seconds without a line */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool watched, shown; /* is there a thread; is there a line */
    double since;        /* when the work began */
    char text[200];      /* what is going on; "": nothing */
} now = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* With the lock held. */
static void show(void) {
    double waited = cli_seconds() - now.since;
    if (!now.text[0] || waited < patience)
        return;
    fprintf(stderr, "\r\033[K%s, %.0f s", now.text, waited);
    fflush(stderr);
    now.shown = true;
}

static void *watch(void *unused) {
    pthread_mutex_lock(&now.lock);
    for (;;) {
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_sec++;
        if (now.text[0])
            pthread_cond_timedwait(&now.changed, &now.lock, &soon);
        else
            pthread_cond_wait(&now.changed, &now.lock);
        show();
    }
    return unused;
}

void cli_progress(const char *fmt, ...) {
    if (!isatty(STDERR_FILENO))
        return;
    va_list args;
    pthread_mutex_lock(&now.lock);
    if (!now.text[0])
        now.since = cli_seconds();
    va_start(args, fmt);
    vsnprintf(now.text, sizeof now.text, fmt, args);
    va_end(args);
    pthread_t thread;
    if (!now.watched && pthread_create(&thread, NULL, watch, NULL) == 0) {
        now.watched = true;
        pthread_detach(thread);
    }
    show();
    pthread_cond_signal(&now.changed);
    pthread_mutex_unlock(&now.lock);
}

void cli_progress_end(void) {
    pthread_mutex_lock(&now.lock);
    now.text[0] = 0;
    if (now.shown)
        fputs("\r\033[K", stderr);
    now.shown = false;
    pthread_mutex_unlock(&now.lock);
}
