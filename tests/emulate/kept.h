/* kept.h: what texts were compiled to, kept by content from run to run.
 *
 * An entry of the folder is `KEY.so`: KEY is the hash of a text, of the compiler and its flags, and of the emulator's own
 * headers. A compiler makes one library of many texts, and each of them is a name (a hard link) of it. Behind the library
 * stands a hash of its bytes: what does not agree is made anew. Entries are written elsewhere and renamed, so that
 * processes may share the folder; the oldest go where there are too many. */
#ifndef EPI_TESTS_EMULATE_KEPT_H
#define EPI_TESTS_EMULATE_KEPT_H

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "harness.h"

#define EMULATE_CXX \
    "${CXX:-c++} -std=c++17 -nostdinc++ -O1 -U_FORTIFY_SOURCE -w -Wno-psabi -fPIC -shared " \
    "-fvisibility=hidden " \
    "-fno-exceptions -fno-rtti -ffp-contract=off -fno-strict-aliasing -Itests/emulate"

static const char *folder; /* for what is compiled */
static epi_hash made_by;   /* of the compiler, its flags and the headers */

enum { KEPT_BYTES = 512 << 20, KEY_ROOM = 48 };

static void key_of(epi_hash text, char key[KEY_ROOM]) {
    epi_hash h = made_by;
    epi_hash_word(&h, text.a);
    epi_hash_word(&h, text.b);
    snprintf(key, KEY_ROOM, "%016lx%016lx", h.a, h.b);
}

/* False where there is no compiler. */
static bool find_compiler(void) {
    static const char *const parts[] = {"device.h", "ptx.h",   "run.h", "entry.h",
                                        "host.h",   "texts.h", "kept.h"};
    char said[8192];
    FILE *f = popen("${CXX:-c++} -v 2>&1", "r");
    size_t length = f ? fread(said, 1, sizeof said, f) : 0;
    made_by = (epi_hash){3, 4};
    epi_hash_add(&made_by, said, length);
    epi_hash_add(&made_by, EMULATE_CXX, sizeof EMULATE_CXX);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char path[100];
        snprintf(path, sizeof path, "tests/emulate/%s", parts[i]);
        char *header = read_whole(path, &length);
        if (header)
            epi_hash_add(&made_by, header, length);
        free(header);
    }
    return f && pclose(f) == 0;
}

static epi_hash hash_of_bytes(const void *bytes, size_t size) {
    epi_hash h = {5, 6};
    epi_hash_add(&h, bytes, size);
    return h;
}

/* Puts the hash of a library behind it. */
static bool seal(const char *path) {
    struct stat about;
    int fd = open(path, O_RDWR | O_APPEND);
    bool ok = fd >= 0 && fstat(fd, &about) == 0 && about.st_size > 0;
    void *bytes = ok ? mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (bytes != MAP_FAILED) {
        epi_hash h = hash_of_bytes(bytes, (size_t)about.st_size);
        munmap(bytes, (size_t)about.st_size);
        ok = write(fd, &h, sizeof h) == sizeof h;
    }
    if (fd >= 0)
        ok &= close(fd) == 0;
    return ok && bytes != MAP_FAILED;
}

/* Is this library as it was written? Of several names one is looked at. */
static bool is_sealed(const char *path) {
    enum { MOST_SEEN = 1024 };
    static struct {
        dev_t device;
        ino_t file;
    } seen[MOST_SEEN];
    static int count;
    struct stat about = {0};
    bool sealed = false;
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return false;
    size_t size = fstat(fd, &about) == 0 ? (size_t)about.st_size : 0, tail = sizeof(epi_hash);
    for (int i = 0; i < count; i++)
        sealed |= seen[i].device == about.st_dev && seen[i].file == about.st_ino;
    char *bytes = size > tail && !sealed ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (bytes != MAP_FAILED) {
        epi_hash h = hash_of_bytes(bytes, size - tail);
        sealed = !memcmp(&h, bytes + size - tail, tail);
        munmap(bytes, size);
        futimens(fd, NULL); /* it is used */
        if (sealed && count < MOST_SEEN) {
            seen[count].device = about.st_dev;
            seen[count++].file = about.st_ino;
        }
    }
    close(fd);
    return sealed;
}

/* The function of a text that was compiled before; NULL where it was not. */
static void *kept(epi_hash text) {
    char key[KEY_ROOM], path[1024], name[KEY_ROOM + 16];
    key_of(text, key);
    snprintf(path, sizeof path, "%s/%s.so", folder, key);
    snprintf(name, sizeof name, "emu_run_%s", key);
    void *library =
        is_sealed(path) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL; /* stays, as the process does not */
    return library ? dlsym(library, name) : NULL;
}

/* Gives a library the name of one of its texts, whatever had it before. */
static void keep(const char *library, epi_hash text) {
    char key[KEY_ROOM], path[1024], name[1100];
    key_of(text, key);
    snprintf(path, sizeof path, "%s/%s.so", folder, key);
    snprintf(name, sizeof name, "%s.%s", library, key);
    if (link(library, name) == 0 && rename(name, path) != 0)
        unlink(name);
}

/* ---- how much is kept ---- */

typedef struct kept_file {
    char path[1024];
    time_t used;
    double bytes; /* its share, where a library has several names */
} kept_file;

static int by_use(const void *a, const void *b) {
    const kept_file *x = a, *y = b;
    return (x->used > y->used) - (x->used < y->used);
}

/* Leaves half of what may be kept where there is more: what was used last. */
static void tidy(void) {
    enum { MOST_FILES = 20000 };
    kept_file *files = malloc(MOST_FILES * sizeof *files);
    DIR *dir = opendir(folder);
    int count = 0;
    double bytes = 0;
    for (struct dirent *e; files && dir && count < MOST_FILES && (e = readdir(dir));) {
        kept_file *f = &files[count];
        struct stat about;
        snprintf(f->path, sizeof f->path, "%s/%s", folder, e->d_name);
        if (stat(f->path, &about) != 0 || !S_ISREG(about.st_mode))
            continue;
        f->used = about.st_mtime;
        bytes += f->bytes = (double)about.st_size / (double)about.st_nlink;
        count++;
    }
    if (dir)
        closedir(dir);
    if (bytes > KEPT_BYTES || count == MOST_FILES) {
        qsort(files, (size_t)count, sizeof *files, by_use);
        for (int i = 0; i < count && (bytes > KEPT_BYTES / 2 || i < count - MOST_FILES / 2); i++) {
            unlink(files[i].path);
            bytes -= files[i].bytes;
        }
    }
    free(files);
}

#endif
