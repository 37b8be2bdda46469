/* texts.h: CUDA texts compiled for the host, many by one compiler, each once. */
#ifndef EPI_TESTS_EMULATE_TEXTS_H
#define EPI_TESTS_EMULATE_TEXTS_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/hash.h"
#include "cuda/cuda.h"
#include "emulate/host.h"
#include "harness.h"

static const char *folder; /* for what is compiled */

typedef struct text {
    char *source, name[64];
    epi_hash hash;
    emu_run_function *run;
} text;

/* A fifth of a second goes into the emulator's own functions, whatever else is compiled with them: a compiler
 * is given as many texts as make a long one. */
typedef struct batch {
    int first, count;
    bool compiled;
    void *library;
} batch;

enum { MOST_TEXTS = 4096, JOBS = 2, LONG_TEXT = 1500000 };
static text texts[MOST_TEXTS];
static batch batches[MOST_TEXTS];
static int text_count, batch_count;
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
    fprintf(f,
            "namespace text%d {\n#line 1 \"text%d\"\n"
            "static void mma(float *d, const u32 (&a)[4], u32 b0, u32 b1);\n"
            "template <int R> static void wgmma(float (&d)[R], u64 a, u64 b, int add);\n"
            "template <int R> static void wgmma_narrow(float (&d)[R], u64 a, u64 b, int add);\n"
            "template <int R> static void wgmma_score(float (&d)[R], u64 a, u64 b, int add);\n"
            "template <int R> static void wgmma_value(float (&d)[R], u32, u32, u32, u32, u64 b, int add);\n"
            "template <int R> static void wgmma_keys(float (&d)[R], u64 a, u64 b, int add);\n"
            "template <int R> static void wgmma_values(float (&d)[R], u64 a, u64 b, int add);\n"
            "template <int R> static void wgmma_value2(float (&d)[R], u32, u32, u32, u32, u64 b, int add);\n"
            "template <int R> static void wgmma_rows(float (&d)[R], u32, u32, u32, u32, u64 b, int add);\n"
            "template <int R> static void wgmma_state(float (&d)[R], u64 a, u64 b, int add);\n",
            at, at);
    fputs("#pragma GCC push_options\n#pragma GCC optimize(\"O0\")\n", f);
    write_without_ptx(f, t->source);
    fprintf(f,
            "\n#pragma GCC pop_options\n#define NAME_OF_KERNEL %s\n#define NAME_OF_RUN emu_run_%d\n#include "
            "\"entry.h\"\n}\n",
            t->name, at);
    for (const char *p = t->source; p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
        if (!strncmp(p, define, sizeof define - 1))
            fprintf(f, "#undef %.*s\n", (int)strcspn(p + sizeof define - 1, " (\n"), p + sizeof define - 1);
}

static void compile_batch(int at) {
    batch *b = &batches[at];
    char path[1024], command[4096];
    snprintf(path, sizeof path, "%s/batch%d.cc", folder, at);
    FILE *f = fopen(path, "w");
    if (!f)
        return;
    fprintf(f, "#include \"device.h\"\n#include \"ptx.h\"\n#include \"run.h\"\n");
    for (int i = 0; i < b->count; i++)
        write_text(f, b->first + i);
    bool written = !ferror(f);
    written &= fclose(f) == 0;
    snprintf(command, sizeof command,
             "${CXX:-c++} -std=c++17 -nostdinc++ -O1 -U_FORTIFY_SOURCE -w -Wno-psabi -fPIC -shared "
             "-fvisibility=hidden "
             "-ffp-contract=off -fno-strict-aliasing -Itests/emulate '%s' -o '%s/batch%d.so'",
             path, folder, at);
    b->compiled = written && system(command) == 0;
}

static void *compile_some(void *unused) {
    for (int i; (i = atomic_fetch_add(&next_batch, 1)) < batch_count;)
        compile_batch(i);
    return unused;
}

static void make_batches(void) {
    for (int i = 0, length = LONG_TEXT; i < text_count; i++) {
        int own = (int)strlen(texts[i].source);
        if (length + own > LONG_TEXT) {
            batches[batch_count++].first = i;
            length = 0;
        }
        batches[batch_count - 1].count++;
        length += own;
    }
}

static void open_batch(int at) {
    batch *b = &batches[at];
    char name[1024];
    snprintf(name, sizeof name, "%s/batch%d.so", folder, at);
    b->library = b->compiled ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : NULL;
    for (int i = b->first; i < b->first + b->count; i++) {
        snprintf(name, sizeof name, "emu_run_%d", i);
        void *run = b->library ? dlsym(b->library, name) : NULL;
        memcpy(&texts[i].run, &run, sizeof run);
        check(run != NULL, "text%d in %s/batch%d.cc compiles for the host", i, folder, at);
    }
}

static void compile_texts(void) {
    pthread_t threads[JOBS];
    int started = 0;
    make_batches();
    while (started < JOBS && pthread_create(&threads[started], NULL, compile_some, NULL) == 0)
        started++;
    if (!started)
        compile_some(NULL);
    while (started--)
        pthread_join(threads[started], NULL);
    for (int i = 0; i < batch_count; i++)
        open_batch(i);
}

static void free_texts(void) {
    for (int i = 0; i < text_count; i++)
        free(texts[i].source);
    for (int i = 0; i < batch_count; i++)
        if (batches[i].library)
            dlclose(batches[i].library);
}

#endif
