/* glibc.c: lets the wheel's libraries run with every glibc from 2.28 on.
 *
 * A linker takes the newest version of each symbol, so a library that is linked with glibc 2.36 asks for
 * 2.34. The functions below have a version above 2.28. Each is defined here, hidden, and calls the first
 * version that its architecture has. The wheel links this file with the objects of make's library, so both
 * run the same code. The versions differ in two ways. exp, log and pow: the old ones set errno in another
 * way. Threads and dlopen: they moved into libc with 2.34.
 *
 * tests/test_wheel.sh holds the versions; python/tests/bits.c holds the results against libm's. */
#define _POSIX_C_SOURCE 200809L
#include <limits.h> /* tells whether this is glibc */

#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

#if defined(__x86_64__)
#define FIRST "GLIBC_2.2.5"
enum { STAT_VERSION = 1 };
#else
#define FIRST "GLIBC_2.17"
enum { STAT_VERSION = 0 };
#endif

/* Declares old_NAME, the first version of a function. */
#define FIRST_OF(type, name, parameters) \
    extern type old_##name parameters; \
    __asm__(".symver old_" #name "," #name "@" FIRST);

/* A function that is its first version. */
#define OLD(type, name, parameters, arguments) \
    FIRST_OF(type, name, parameters) \
    __attribute__((visibility("hidden"))) type name parameters { \
        return old_##name arguments; \
    }

OLD(double, exp, (double x), (x))
OLD(double, exp2, (double x), (x))
OLD(double, log, (double x), (x))
OLD(double, log2, (double x), (x))
OLD(double, pow, (double x, double y), (x, y))

OLD(int, dlclose, (void *library), (library))
OLD(char *, dlerror, (void), ())
OLD(void *, dlopen, (const char *path, int mode), (path, mode))
OLD(int, pthread_attr_setstacksize, (pthread_attr_t * attributes, size_t size), (attributes, size))
OLD(int, pthread_create,
    (pthread_t * thread, const pthread_attr_t *attributes, void *(*work)(void *), void *argument),
    (thread, attributes, work, argument))
OLD(int, pthread_detach, (pthread_t thread), (thread))
OLD(int, pthread_join, (pthread_t thread, void **result), (thread, result))
OLD(int, pthread_once, (pthread_once_t * once, void (*work)(void)), (once, work))
OLD(int, pthread_sigmask, (int how, const sigset_t *set, sigset_t *old), (how, set, old))

/* RTLD_NEXT alone asks who calls. */
OLD(void *, dlsym, (void *library, const char *name), (library, name))

/* Before 2.33 these were written into each program, by way of functions that take the struct's version. */
FIRST_OF(int, __xstat, (int version, const char *path, struct stat *info))
FIRST_OF(int, __lxstat, (int version, const char *path, struct stat *info))
FIRST_OF(int, __fxstat, (int version, int file, struct stat *info))
#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN int stat(const char *path, struct stat *info) {
    return old___xstat(STAT_VERSION, path, info);
}
HIDDEN int lstat(const char *path, struct stat *info) {
    return old___lxstat(STAT_VERSION, path, info);
}
HIDDEN int fstat(int file, struct stat *info) {
    return old___fxstat(STAT_VERSION, file, info);
}
#endif
