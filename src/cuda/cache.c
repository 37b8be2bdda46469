/* cache.c: compiled kernels on disk, one file per key, each whole or not there at all.
 *
 * An entry is one line of text that signs it, and the data:
 *     epilog-cache 1 <bytes of data, 16 hex digits> <checksum, 32 hex digits>\n
 * The checksum covers the key too, so an entry under another name is invalid. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "cuda/jit.h"

enum { SIGNATURE = 15 + 16 + 1 + 32 + 1, KEY_DIGITS = 32 };
#define SIGNATURE_FORMAT "epilog-cache 1 %016" PRIx64 " %016" PRIx64 "%016" PRIx64 "\n"

/* ---- the hash ---- */

epi_cache_key epi_cache_key_make(const char *const *texts, int count) {
    epi_hash h = epi_hash_texts(texts, count);
    epi_cache_key key;
    snprintf(key.text, sizeof key.text, "%016" PRIx64 "%016" PRIx64, h.a, h.b);
    return key;
}

static void sign(epi_cache_key key, const void *data, size_t size, char signature[SIGNATURE + 1]) {
    epi_hash h = {3, 4};
    epi_hash_add(&h, key.text, KEY_DIGITS);
    epi_hash_add(&h, data, size);
    snprintf(signature, SIGNATURE + 1, SIGNATURE_FORMAT, (uint64_t)size, h.a, h.b);
}

/* ---- where it is ---- */

/* The file of an entry; NULL where there is no folder for it. The caller frees it. */
static char *entry_path(epi_cache_key key) {
    const char *own = getenv("EPILOG_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    epi_text path = {0};
    if (own && *own && strcmp(own, "off") != 0)
        epi_text_add(&path, "%s/%s.bin", own, key.text);
    else if (own && *own)
        return NULL;
    else if (xdg && *xdg == '/') /* the standard says to ignore a relative one */
        epi_text_add(&path, "%s/epilog/%s.bin", xdg, key.text);
    else if (home && *home)
        epi_text_add(&path, "%s/.cache/epilog/%s.bin", home, key.text);
    if (path.failed)
        epi_text_free(&path);
    return path.data;
}

/* Makes every folder above the file. What fails here fails again, with a reason, when the file is made. */
static void make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
}

/* ---- reading ---- */

/* Reads an open entry. Where it is damaged `why` says so; where memory is short it is only not there. */
static bool read_entry(FILE *f, epi_cache_key key, void **data, size_t *size, const char **why) {
    struct stat info;
    if (fstat(fileno(f), &info) != 0 || !S_ISREG(info.st_mode))
        return *why = "it is no file", false;
    if (info.st_size < SIGNATURE)
        return *why = "it is cut short", false;
    size_t length = (size_t)info.st_size - SIGNATURE;
    char found[SIGNATURE], signature[SIGNATURE + 1];
    unsigned char *copy = malloc(length ? length : 1);
    if (!copy)
        return false;
    bool whole = fread(found, 1, sizeof found, f) == sizeof found && fread(copy, 1, length, f) == length;
    if (whole) {
        sign(key, copy, length, signature);
        whole = memcmp(found, signature, SIGNATURE) == 0;
    }
    if (!whole) {
        free(copy);
        return *why = "its checksum is wrong", false;
    }
    *data = copy;
    *size = length;
    return true;
}

bool epi_cache_read(epi_cache_key key, void **data, size_t *size, char *note, size_t note_size) {
    *data = NULL;
    *size = 0;
    if (note_size)
        note[0] = 0;
    char *path = entry_path(key);
    FILE *f = path ? fopen(path, "rbe") : NULL;
    if (!f) {
        free(path);
        return false;
    }
    const char *why = NULL;
    bool found = read_entry(f, key, data, size, &why);
    fclose(f);
    if (why && unlink(path) == 0)
        snprintf(note, note_size, "a damaged cache entry was removed (%s): %s", why, path);
    else if (why)
        snprintf(note, note_size, "a damaged cache entry cannot be removed (%s; %s): %s", why,
                 strerror(errno), path);
    free(path);
    return found;
}

/* ---- writing ---- */

/* Returns 0, or the errno of the first thing that failed. Whoever renames last wins; both wrote the same. */
static int publish(char *path, epi_cache_key key, const void *data, size_t size) {
    char signature[SIGNATURE + 1];
    epi_file f;
    sign(key, data, size, signature);
    epi_file_open(&f, path);
    if (f.reason == ENOENT) {
        epi_file_close(&f);
        make_folders(path);
        epi_file_open(&f, path);
    }
    epi_file_write(&f, signature, SIGNATURE);
    epi_file_write(&f, data, size);
    return epi_file_close(&f);
}

void epi_cache_write(epi_cache_key key, const void *data, size_t size, char *note, size_t note_size) {
    if (note_size)
        note[0] = 0;
    char *path = entry_path(key);
    if (!path)
        return;
    int reason = publish(path, key, data, size);
    if (reason)
        snprintf(note, note_size, "the cache cannot be written (%s): %s", strerror(reason), path);
    free(path);
}
