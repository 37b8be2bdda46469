/* texts.h: CUDA texts compiled for the host, many by one compiler, each once; what was compiled before is there (kept.h). */
#ifndef EPI_TESTS_EMULATE_TEXTS_H
#define EPI_TESTS_EMULATE_TEXTS_H

#include <pthread.h>

#include "cuda/cuda.h"
#include "emulate/host.h"
#include "emulate/jobs.h"
#include "emulate/kept.h"

typedef struct text {
    char *source, name[64];
    epi_hash hash;
    emu_run_function *run;
} text;

/* A fifth of a second goes into the emulator's own functions, whatever else is compiled with them: a compiler
 * is given as many texts as make a long one. */
typedef struct batch {
    int first, count; /* of those that are missing */
} batch;

enum { MOST_TEXTS = 4096, LONG_TEXT = 1500000 };
static text texts[MOST_TEXTS];
static int missing[MOST_TEXTS];
static batch batches[MOST_TEXTS];
static int text_count, missing_count, batch_count;
static atomic_int next_batch;

/* Is something divided by a number of 64 bits that comes with the launch, without a look at whether it is small? */
static bool divides_by_open(const char *source) {
    for (const char *p = source; (p = strstr(p, "P.open[")); p++) {
        const char *before = p;
        while (before > source && strchr("0123456789L* (", before[-1]))
            before--;
        if (before > source && strchr("/%", before[-1]))
            return true;
    }
    return false;
}

static int add_text(const epi_kernel_text *t) {
    int at = 0;
    const char *source = t->source.data;
    epi_hash hash = epi_hash_texts(&source, 1);
    while (at < text_count && (texts[at].hash.a != hash.a || texts[at].hash.b != hash.b))
        at++;
    if (at == text_count && check(at < MOST_TEXTS, "more texts than expected")) {
        check(!divides_by_open(source), "%s divides by an open size of 64 bits", t->name);
        texts[at].source = strdup(source);
        texts[at].hash = hash;
        snprintf(texts[at].name, sizeof texts[at].name, "%s", t->name);
        text_count++;
    }
    return at;
}

/* Where the function that starts here ends: behind the brace that closes it. */
static const char *function_end(const char *from) {
    int depth = 0;
    for (const char *p = from; *p; p++)
        if (*p == '{')
            depth++;
        else if (*p == '}' && --depth == 0)
            return p + 1;
    return from + strlen(from);
}

/* An array in shared memory as large as a launch asks for is where its block has it; names are the text's
 * own.
 */
static void write_piece(FILE *f, const char *from, const char *end) {
    static const char array[] = "extern __shared__ ", entry[] = "extern \"C\" ";
    if (!strncmp(from, entry, sizeof entry - 1))
        from += sizeof entry - 1;
    for (const char *at; (at = memmem(from, (size_t)(end - from), array, sizeof array - 1));) {
        const char *type = strstr(at, "u8 "), *after = strstr(at, "[];");
        fprintf(f, "%.*su8 *const %.*s = block->memory;", (int)(at - from), from, (int)(after - type) - 3,
                type + 3);
        from = after + 3;
    }
    fwrite(from, 1, (size_t)(end - from), f);
}

/* The text without the functions that are written in PTX; an empty asm only stands in the optimizer's way. */
static void write_without_ptx(FILE *f, const char *source) {
    for (const char *line = source; *line;) {
        const char *end = line + strcspn(line, "\n");
        bool function = !strncmp(line, "DEV ", 4) || !strncmp(line, "template <", 10);
        if (function && !memmem(line, (size_t)(end - line), "struct", 6)) {
            end = function_end(line);
            const char *ptx = memmem(line, (size_t)(end - line), "asm", 3);
            if (ptx && (ptx[3] == '(' || ptx[3] == ' ') && strncmp(ptx, "asm volatile(\"\"", 15) != 0)
                line = end;
        }
        write_piece(f, line, end);
        line = end;
        if (*line == '\n')
            fputc(*line++, f);
    }
}

/* A text in a namespace of its own; what it defines for the preprocessor ends with it. It is not optimized:
 * that takes longer than it saves, as what takes time is in the emulator's own functions, which are. */
static void write_text(FILE *f, int at) {
    static const char define[] = "#define ";
    const text *t = &texts[at];
    char key[KEY_ROOM];
    key_of(t->hash, key);
    fprintf(f,
            "namespace text%d {\n#line 1 \"text%d\"\n"
            "static void mma(float *d, const u32 (&a)[4], u32 b0, u32 b1);\n"
            "template <int R> static void wgmma(float (&d)[R], u64 a, u64 b, int add);\n"
            "template <int R> static void wgmma_narrow(float (&d)[R], u64 a, u64 b, int add);\n"
            "template <int R> static void wgmma_score(float (&d)[R], u64 a, u64 b, int add);\n"
            "template <int R> static void wgmma_value(float (&d)[R], u32, u32, u32, u32, u64 b, int add);\n"
            "template <int R> static void wgmma_keys(float (&d)[R], u64 a, u64 b, int add);\n"
            "template <int R> static void wgmma_values(float (&d)[R], u64 a, u64 b, int add);\n"
            "template <int R> static void wgmma_keys(float (&d)[R], u32, u32, u32, u32, u64 b, int add);\n"
            "template <int R> static void wgmma_values(float (&d)[R], u32, u32, u32, u32, u64 b, int add);\n"
            "template <int R> static void wgmma_value2(float (&d)[R], u32, u32, u32, u32, u64 b, int add);\n"
            "template <int R> static void wgmma_rows(float (&d)[R], u32, u32, u32, u32, u64 b, int add);\n"
            "template <int R> static void wgmma_state(float (&d)[R], u64 a, u64 b, int add);\n",
            at, at);
    fputs("#pragma GCC push_options\n#pragma GCC optimize(\"O0\")\n", f);
    write_without_ptx(f, t->source);
    fprintf(f,
            "\n#pragma GCC pop_options\n#define NAME_OF_KERNEL %s\n#define NAME_OF_RUN emu_run_%s\n#include "
            "\"entry.h\"\n}\n",
            t->name, key);
    for (const char *p = t->source; p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
        if (!strncmp(p, define, sizeof define - 1))
            fprintf(f, "#undef %.*s\n", (int)strcspn(p + sizeof define - 1, " (\n"), p + sizeof define - 1);
}

/* The library is made under another name; whoever else makes the same, the last to rename has it. */
static void compile_batch(const batch *b) {
    char name[900], from[1000], to[1000], command[4096];
    snprintf(name, sizeof name, "%s/%d.%d", folder, (int)getpid(), b->first);
    snprintf(from, sizeof from, "%s.cc", name);
    snprintf(to, sizeof to, "%s.tmp", name);
    FILE *f = fopen(from, "w");
    if (!f)
        return;
    fprintf(f, "#include \"device.h\"\n#include \"ptx.h\"\n#include \"run.h\"\n");
    for (int i = 0; i < b->count; i++)
        write_text(f, missing[b->first + i]);
    bool written = !ferror(f);
    written &= fclose(f) == 0;
    snprintf(command, sizeof command, EMULATE_CXX " '%s' -o '%s'", from, to);
    if (written && system(command) == 0 && seal(to)) {
        for (int i = 0; i < b->count; i++)
            keep(to, texts[missing[b->first + i]].hash);
        unlink(from); /* of what does not compile it stays */
    }
    unlink(to);
}

static void *compile_some(void *unused) {
    for (int i; (i = atomic_fetch_add(&next_batch, 1)) < batch_count;)
        compile_batch(&batches[i]);
    return unused;
}

/* Those of one mainloop together: they change together. */
static int by_mainloop(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b, differ = strcmp(texts[x].name, texts[y].name);
    return differ ? differ : (x > y) - (x < y);
}

static void make_batches(void) {
    qsort(missing, (size_t)missing_count, sizeof *missing, by_mainloop);
    for (int i = 0, length = LONG_TEXT; i < missing_count; i++) {
        int own = (int)strlen(texts[missing[i]].source);
        if (length + own > LONG_TEXT) {
            batches[batch_count++].first = i;
            length = 0;
        }
        batches[batch_count - 1].count++;
        length += own;
    }
}

static void find_text(text *t) {
    void *run = kept(t->hash);
    memcpy(&t->run, &run, sizeof run);
}

static void compile_texts(void) {
    pthread_t threads[MOST_WORKERS];
    int started = 0;
    for (int i = 0; i < text_count; i++) {
        find_text(&texts[i]);
        if (!texts[i].run)
            missing[missing_count++] = i;
    }
    make_batches();
    while (started < workers() && started < batch_count &&
           pthread_create(&threads[started], NULL, compile_some, NULL) == 0)
        started++;
    if (!started)
        compile_some(NULL);
    while (started--)
        pthread_join(threads[started], NULL);
    for (int i = 0; i < missing_count; i++)
        find_text(&texts[missing[i]]);
    for (int i = 0; i < text_count; i++)
        check(texts[i].run != NULL, "text%d of %s, in %s/%d.*.cc, compiles for the host", i, texts[i].name,
              folder, (int)getpid());
    if (missing_count)
        tidy();
}

static void free_texts(void) {
    for (int i = 0; i < text_count; i++)
        free(texts[i].source);
}

#endif
