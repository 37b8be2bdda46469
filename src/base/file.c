/* file.c: writes regular files by rename, and everything else directly. */
#define _POSIX_C_SOURCE 200809L
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LONGEST = 4096, MOST_LINKS = 40 };

/* ---- temporary files that a signal may leave behind ---- */

/* A handler may read an entry at any time: its name is complete whenever `state` says so. */
enum { FREE, TAKEN, COMPLETE };
static struct {
    atomic_int state;
    char path[LONGEST];
} unfinished[4];
enum { UNFINISHED = sizeof unfinished / sizeof *unfinished };

static int add_unfinished(const char *path) {
    for (int i = 0; i < UNFINISHED && strlen(path) < LONGEST; i++) {
        int expected = FREE;
        if (atomic_compare_exchange_strong(&unfinished[i].state, &expected, TAKEN)) {
            memcpy(unfinished[i].path, path, strlen(path) + 1);
            atomic_store(&unfinished[i].state, COMPLETE);
            return i;
        }
    }
    return -1;
}

static void drop_unfinished(epi_file *f) {
    if (f->unfinished >= 0)
        atomic_store(&unfinished[f->unfinished].state, FREE);
    f->unfinished = -1;
}

void epi_file_remove_unfinished(void) {
    for (int i = 0; i < UNFINISHED; i++)
        if (atomic_load(&unfinished[i].state) == COMPLETE)
            unlink(unfinished[i].path);
}

/* ---- where a path leads ---- */

typedef struct place {
    char path[LONGEST]; /* no symbolic link, but it need not exist */
    int descriptor;     /* of this process, which the path names; or -1 */
    bool exists;
    struct stat info; /* if so */
} place;

/* The descriptor that a path names, or -1. Opening such a path anew would start at the file's beginning. */
static int descriptor_of(const char *path) {
    static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
    if (!strcmp(path, "/dev/stdout"))
        return STDOUT_FILENO;
    if (!strcmp(path, "/dev/stderr"))
        return STDERR_FILENO;
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(folders[i]);
        if (strncmp(path, folders[i], n) != 0)
            continue;
        size_t digits = strspn(path + n, "0123456789");
        if (digits > 0 && digits < 7 && !path[n + digits])
            return atoi(path + n);
    }
    return -1;
}

/* Replaces a link's path by what it says, which counts from the link's folder. */
static int follow(char *path) {
    char link[LONGEST];
    ssize_t n = readlink(path, link, sizeof link - 1);
    if (n < 0)
        return errno;
    link[n] = 0;
    char *slash = strrchr(path, '/'), *at = *link == '/' || !slash ? path : slash + 1;
    if ((size_t)(at - path) + (size_t)n >= LONGEST)
        return ENAMETOOLONG;
    memcpy(at, link, (size_t)n + 1);
    return 0;
}

static int find_place(const char *path, place *p) {
    p->exists = false;
    if (strlen(path) >= LONGEST)
        return ENAMETOOLONG;
    strcpy(p->path, path);
    for (int links = 0; links < MOST_LINKS; links++) {
        if ((p->descriptor = descriptor_of(p->path)) >= 0)
            return 0;
        if (lstat(p->path, &p->info) != 0)
            return errno == ENOENT ? 0 : errno;
        p->exists = !S_ISLNK(p->info.st_mode);
        if (p->exists)
            return S_ISDIR(p->info.st_mode) ? EISDIR : 0;
        int reason = follow(p->path);
        if (reason)
            return reason;
    }
    return ELOOP;
}

/* The length of the folder of a path, with its slash. */
static int folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (int)(slash - path) + 1 : 0;
}

int epi_file_check(const char *path) {
    place p;
    int reason = find_place(path, &p);
    if (reason || p.descriptor >= 0)
        return reason;
    if (p.exists && !S_ISREG(p.info.st_mode))
        return access(p.path, W_OK) == 0 ? 0 : errno;
    p.path[folder_length(p.path)] = 0;
    return access(*p.path ? p.path : ".", W_OK | X_OK) == 0 ? 0 : errno;
}

epi_status epi_file_status(const char *path, int reason, epi_error *err) {
    return reason ? epi_fail(err, reason == ENOMEM ? EPI_ERR_MEMORY : EPI_ERR_FILE,
                             "%.300s: cannot be written: %s", path, strerror(reason))
                  : EPI_OK;
}

/* ---- writing ---- */

static uint64_t random_word(void) {
    uint64_t word;
    if (getrandom(&word, sizeof word, 0) == (ssize_t)sizeof word)
        return word;
    struct timespec now; /* the name must still be new, and is tried again */
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_nsec << 32 ^ (uint64_t)now.tv_sec << 16 ^ (uint64_t)getpid();
}

/* A new file in the folder of the target, as a rename must not cross file systems. While it is written,
 * nobody may read it who may not read the one that it replaces. Its name is listed before it is there: a
 * signal may come right after. */
static int create_temporary(epi_file *f, const place *p) {
    size_t size = strlen(p->path) + 40;
    f->target = malloc(size);
    f->temporary = malloc(size);
    if (!f->target || !f->temporary)
        return ENOMEM;
    strcpy(f->target, p->path);
    do {
        snprintf(f->temporary, size, "%.*s.epilog-%016" PRIx64 ".tmp", folder_length(p->path), p->path,
                 random_word());
        drop_unfinished(f);
        f->unfinished = add_unfinished(f->temporary);
        f->fd = open(f->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, p->exists ? 0600 : 0666);
    } while (f->fd < 0 && errno == EEXIST);
    if (f->fd < 0) {
        int reason = errno;
        drop_unfinished(f);
        return reason;
    }
    if (!p->exists)
        return 0;
    if (fchown(f->fd, p->info.st_uid, p->info.st_gid) != 0)
        errno = 0; /* it is ours, then */
    return fchmod(f->fd, p->info.st_mode & 0777) == 0 ? 0 : errno;
}

void epi_file_open(epi_file *f, const char *path) {
    place p;
    *f = (epi_file){.fd = -1, .unfinished = -1, .reason = find_place(path, &p)};
    if (f->reason)
        return;
    if (p.descriptor < 0 && (!p.exists || S_ISREG(p.info.st_mode))) {
        f->reason = create_temporary(f, &p);
        return;
    }
    fflush(stdout); /* what was printed before comes before */
    f->fd = p.descriptor < 0 ? open(p.path, O_WRONLY | O_CLOEXEC | O_NOCTTY)
                             : fcntl(p.descriptor, F_DUPFD_CLOEXEC, 0);
    f->reason = f->fd < 0 ? errno : 0;
}

void epi_file_write(epi_file *f, const void *data, size_t size) {
    for (const char *at = data; size > 0 && !f->reason;) {
        ssize_t n = write(f->fd, at, size);
        if (n == 0 || (n < 0 && errno != EINTR))
            f->reason = n ? errno : EIO;
        if (n > 0) {
            at += n;
            size -= (size_t)n;
        }
    }
}

int epi_file_close(epi_file *f) {
    if (!f->reason && f->target && fsync(f->fd) != 0)
        f->reason = errno;
    if (f->fd >= 0 && close(f->fd) != 0 && !f->reason)
        f->reason = errno;
    if (!f->reason && f->target && rename(f->temporary, f->target) != 0)
        f->reason = errno;
    if (f->reason && f->fd >= 0 && f->target)
        unlink(f->temporary);
    drop_unfinished(f);
    free(f->target);
    free(f->temporary);
    int reason = f->reason;
    *f = (epi_file){.fd = -1, .unfinished = -1};
    return reason;
}
