/* fuzz_main.c: runs a fuzz target where libFuzzer is missing: the corpus as it is, then mutants of it.
 *
 *     prog [--seconds N] [--seed S] corpus_dir...
 *
 * There is no feedback from coverage; the mutants are those of the corpus alone, and their order
 * follows from the seed. A death leaves the input behind as ./crash-<seed>-<run>.
 */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
/* Called by the sanitizers, where one is linked, before they end the program. */
void __sanitizer_set_death_callback(void (*call)(void)) __attribute__((weak));

enum { LONGEST = 1 << 16 };

typedef struct input {
    uint8_t *bytes;
    size_t size;
} input;

static input *corpus;
static size_t corpus_size;

/* ---- the corpus ---------------------------------------------------------------------------- */

static void *must(void *memory) {
    if (!memory) {
        fputs("fuzz: no memory\n", stderr);
        exit(2);
    }
    return memory;
}

static void load_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        exit(2);
    }
    input in = {must(malloc(LONGEST)), 0};
    in.size = fread(in.bytes, 1, LONGEST, f);
    fclose(f);
    corpus = must(realloc(corpus, (corpus_size + 1) * sizeof *corpus));
    corpus[corpus_size++] = in;
}

/* In the order of the names, so that a seed means the same on every file system. */
static void load_dir(const char *path) {
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, alphasort);
    if (n < 0) {
        perror(path);
        exit(2);
    }
    for (int i = 0; i < n; i++) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.')
            load_file(file);
        free(entries[i]);
    }
    free(entries);
}

/* ---- one run ------------------------------------------------------------------------------- */

static const uint8_t *current; /* what the target is looking at */
static size_t current_size;
static uint64_t seed = 1, runs;

static void keep_current(void) {
    char name[64];
    snprintf(name, sizeof name, "crash-%llu-%llu", (unsigned long long)seed, (unsigned long long)runs);
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd >= 0 && write(fd, current, current_size) == (ssize_t)current_size)
        fprintf(stderr, "fuzz: the input is in %s\n", name);
}

static void on_signal(int number) {
    keep_current();
    signal(number, SIG_DFL);
    raise(number);
}

/* The target gets a copy of exactly the size, so that a read past its end is seen. */
static void run(const uint8_t *bytes, size_t size) {
    uint8_t *copy = must(malloc(size ? size : 1));
    if (size)
        memcpy(copy, bytes, size);
    current = copy;
    current_size = size;
    runs++;
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

/* ---- mutants ------------------------------------------------------------------------------- */

static uint64_t state;

/* xorshift64*; a number below n (n > 0). */
static size_t below(size_t n) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (size_t)((state * 0x2545F4914F6CDD1Dull) >> 11) % n;
}

/* Makes room for n bytes at `at`; returns how many fit. */
static size_t open_gap(input *in, size_t at, size_t n) {
    if (n > LONGEST - in->size)
        n = LONGEST - in->size;
    memmove(in->bytes + at + n, in->bytes + at, in->size - at);
    in->size += n;
    return n;
}

static void remove_bytes(input *in, size_t at, size_t n) {
    memmove(in->bytes + at, in->bytes + at + n, in->size - at - n);
    in->size -= n;
}

/* A number at the edge of some type, as bytes or as digits. */
static void put_magic(input *in, size_t at) {
    static const uint64_t magic[] = {0,          1,          7,           8,          127,
                                     128,        255,        256,         32767,      65535,
                                     100000000,  0x7FFFFFFF, 0x80000000u, 0xFFFFFFFF, 1ull << 32,
                                     1ull << 60, INT64_MAX,  1ull << 63,  UINT64_MAX};
    uint64_t value = magic[below(sizeof magic / sizeof *magic)];
    char text[24];
    size_t n = (size_t)1 << below(4);
    if (below(2)) {
        n = (size_t)snprintf(text, sizeof text, "%llu", (unsigned long long)value);
        n = open_gap(in, at, n);
    } else {
        memcpy(text, &value, sizeof value);
        n = n < in->size - at ? n : in->size - at;
    }
    memcpy(in->bytes + at, text, n);
}

/* Copies a chunk of another input (or of this one) into this one. */
static void put_chunk(input *in, const input *from, size_t at) {
    if (from->size == 0)
        return;
    static uint8_t chunk[LONGEST];
    size_t start = below(from->size), n = 1 + below(from->size - start);
    memcpy(chunk, from->bytes + start, n);
    if (below(2))
        n = open_gap(in, at, n);
    else
        n = n < in->size - at ? n : in->size - at;
    memcpy(in->bytes + at, chunk, n);
}

static void mutate(input *in) {
    size_t at = in->size ? below(in->size) : 0;
    switch (below(8)) {
    case 0: /* flip a bit */
        if (in->size)
            in->bytes[at] ^= (uint8_t)(1u << below(8));
        break;
    case 1: /* change a byte */
        if (in->size)
            in->bytes[at] = (uint8_t)below(256);
        break;
    case 2: /* insert a byte */
        if (open_gap(in, at, 1))
            in->bytes[at] = (uint8_t)below(256);
        break;
    case 3: remove_bytes(in, at, in->size ? 1 + below(in->size - at) : 0); break;
    case 4: in->size = at; break;
    case 5: put_magic(in, at); break;
    case 6: put_chunk(in, in, at); break;
    case 7: put_chunk(in, &corpus[below(corpus_size)], at); break;
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    double seconds = 10;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--seconds") && i + 1 < argc)
            seconds = atof(argv[++i]);
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 10);
        else
            load_dir(argv[i]);
    }
    if (corpus_size == 0) {
        fprintf(stderr, "usage: %s [--seconds N] [--seed S] corpus_dir...\n", argv[0]);
        return 2;
    }
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(keep_current);
    else
        signal(SIGSEGV, on_signal);
    signal(SIGABRT, on_signal);

    for (size_t i = 0; i < corpus_size; i++)
        run(corpus[i].bytes, corpus[i].size);
    state = seed * 0x9E3779B97F4A7C15ull + 1; /* never 0 for the seeds people use */
    input in = {must(malloc(LONGEST)), 0};
    for (double end = now() + seconds; now() < end;) {
        const input *from = &corpus[below(corpus_size)];
        in.size = from->size;
        memcpy(in.bytes, from->bytes, from->size);
        for (size_t n = 1 + below(4); n > 0; n--)
            mutate(&in);
        run(in.bytes, in.size);
    }
    printf("fuzz: %zu inputs, %llu runs, seed %llu, %.0f seconds\n", corpus_size, (unsigned long long)runs,
           (unsigned long long)seed, seconds);
    free(in.bytes);
    for (size_t i = 0; i < corpus_size; i++)
        free(corpus[i].bytes);
    free(corpus);
    return 0;
}
