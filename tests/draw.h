/* draw.h: which cases of a test program run, and how one that fails is repeated.
 *
 *     EPILOG_DRAW=1/20      one case of twenty, drawn by EPILOG_SEED; of random programs as many fewer, new ones
 *     EPILOG_CASE='*bf16'   the cases whose name matches, as file names do in a shell
 *     EPILOG_LIST=1         no case: their names are printed
 *
 * Twenty seeds, one after the other, have every case once. Where a draw has no case at all, the program runs once
 * more with one of them. */
#ifndef EPI_TESTS_DRAW_H
#define EPI_TESTS_DRAW_H

#include <fnmatch.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    bool read, list;
    const char *only;
    uint64_t of, seed; /* one case of so many */
    uint64_t hash;     /* of the last case's name */
    long nth;          /* not negative: this case alone */
    long seen, run;
    bool told; /* how the case is repeated was said */
    char name[400];
} draw = {.nth = -1};

static inline void read_draw(void) {
    const char *share = getenv("EPILOG_DRAW"), *seed = getenv("EPILOG_SEED"), *nth = getenv("EPILOG_NTH");
    if (draw.read)
        return;
    const char *slash = share ? strchr(share, '/') : NULL;
    draw.read = true;
    draw.only = getenv("EPILOG_CASE");
    draw.list = getenv("EPILOG_LIST") != NULL;
    draw.of = slash && !draw.only ? strtoull(slash + 1, NULL, 10) : 1;
    draw.of += !draw.of;
    draw.seed = seed ? strtoull(seed, NULL, 10) : 1;
    draw.nth = nth ? strtol(nth, NULL, 10) : -1;
}

/* The case that follows has this name: does it run? */
static inline bool wanted(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static inline bool wanted(const char *fmt, ...) {
    va_list args;
    read_draw();
    va_start(args, fmt);
    vsnprintf(draw.name, sizeof draw.name, fmt, args);
    va_end(args);
    for (char *c = draw.name; (c = strchr(c, '\n'));) /* of a text: it goes on one line */
        *c = ' ';
    draw.told = false;
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *c = draw.name; *c; c++)
        h = (h ^ (unsigned char)*c) * 0x100000001b3u;
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
    h ^= h >> 27;
    draw.hash = h;
    bool runs = draw.list       ? (printf("%s\n", draw.name), false)
                : draw.nth >= 0 ? draw.seen == draw.nth
                : draw.only     ? !strcmp(draw.only, draw.name) || !fnmatch(draw.only, draw.name, 0)
                                : (h % draw.of + draw.seed) % draw.of == 0;
    draw.seen++;
    draw.run += runs;
    return runs;
}

/* Would the last case run if so many times fewer were drawn? For what is dearer than the rest of a case. */
static inline bool wanted_of(uint64_t fewer) {
    uint64_t of = draw.of > 1 ? draw.of * fewer : 1;
    return (draw.hash % of + draw.seed) % of == 0;
}

/* What is checked next belongs to this case, which was drawn before; or to none. */
static inline void the_case(const char *name) {
    if (name != draw.name)
        snprintf(draw.name, sizeof draw.name, "%s", name);
    draw.told = false;
}

static inline void no_case(void) {
    the_case("");
}

/* Nothing is left out. */
static inline bool all_run(void) {
    read_draw();
    return draw.of == 1 && !draw.only && !draw.list && draw.nth < 0;
}

/* Of a number of things the share that is drawn, at least one; the first to take, where they are counted. */
static inline int share_of(int count) {
    read_draw();
    return count > 0 && (uint64_t)count > draw.of ? (int)((uint64_t)count / draw.of) : count > 0;
}

/* Random cases: `count` of them from 1 on, or new ones where there is a draw; "random 17" is one alone.
 *
 *     for (rounds r = rounds_of(400); next_round(&r);)
 *         check_program(r.seed); */
typedef struct rounds {
    uint64_t seed, last;
} rounds;

static inline rounds rounds_of(int count) {
    read_draw();
    uint64_t first = draw.of > 1 ? 1000 + draw.seed % 1000000 * 1000 : 0, one = 0;
    if (draw.list || (draw.only && sscanf(draw.only, "random %lu", &one) != 1))
        return (rounds){1, 0};
    return one ? (rounds){one - 1, one} : (rounds){first, first + (uint64_t)share_of(count)};
}

static inline bool next_round(rounds *r) {
    no_case();
    if (r->seed >= r->last)
        return false;
    snprintf(draw.name, sizeof draw.name, "random %lu", ++r->seed);
    draw.told = false;
    draw.seen++;
    draw.run++;
    return true;
}

/* The command of this process, a word behind the other. */
static inline void print_command(void) {
    char words[4000];
    FILE *f = fopen("/proc/self/cmdline", "rb");
    size_t length = f ? fread(words, 1, sizeof words - 1, f) : 0;
    if (f)
        fclose(f);
    for (size_t i = 0; i < length; i++)
        putchar(words[i] ? words[i] : ' ');
    putchar('\n');
}

/* How what failed is repeated, once a case. */
static inline void print_again(void) {
    const char *share = getenv("EPILOG_DRAW");
    read_draw();
    if (draw.told)
        return;
    draw.told = true;
    printf("       again: ");
    if (draw.name[0])
        printf("EPILOG_CASE='%s' ", draw.name);
    else if (share)
        printf("EPILOG_DRAW=%s EPILOG_SEED=%lu ", share, draw.seed);
    print_command();
}

/* A draw of no case: the program runs once more, with one of its cases. */
static inline void draw_one(void) {
    static char words[4000], nth[24];
    static char *argv[sizeof words];
    if (draw.run || !draw.seen || draw.of < 2 || draw.only || draw.list || draw.nth >= 0)
        return;
    FILE *f = fopen("/proc/self/cmdline", "rb");
    size_t length = f ? fread(words, 1, sizeof words - 1, f) : 0;
    int count = 0;
    for (size_t i = 0; i < length; i += strlen(words + i) + 1)
        argv[count++] = words + i;
    if (f)
        fclose(f);
    snprintf(nth, sizeof nth, "%lu", draw.seed % (uint64_t)draw.seen);
    setenv("EPILOG_NTH", nth, 1);
    fflush(stdout);
    if (count)
        execv("/proc/self/exe", argv);
}

#endif
