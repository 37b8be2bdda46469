/* jit.c: compiles CUDA source to a cubin by NVRTC, or loads it from the cache.
 *
 * NVRTC is opened only when something must be compiled, because opening it takes longer than loading all
 * kernels of a model from the cache. So the key of a cubin must not need NVRTC: the library's path, size and
 * time of change stand for the compiler's version. */
#define _POSIX_C_SOURCE 200809L
#include "cuda/jit.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/parallel.h"

/* Goes into every key: raise it when the text around a kernel or the layout of an entry changes meaning. */
#define FORMAT "epilog cubin 3"

enum { NVRTC_OK = 0, NVRTC_COMPILATION = 6 };

typedef struct nvrtc_program *nvrtc_program;

/* ---- NVRTC ---- */

/* One row per function: what it returns, what it is called here and in NVRTC, and its parameters. */
#define CALLS(X) \
    X(int, version, "nvrtcVersion", (int *major, int *minor)) \
    X(int, create, "nvrtcCreateProgram", \
      (nvrtc_program * out, const char *source, const char *name, int headers, const char *const *texts, \
       const char *const *names)) \
    X(int, destroy, "nvrtcDestroyProgram", (nvrtc_program * program)) \
    X(int, compile, "nvrtcCompileProgram", (nvrtc_program program, int count, const char *const *options)) \
    X(int, cubin_size, "nvrtcGetCUBINSize", (nvrtc_program program, size_t * size)) \
    X(int, cubin, "nvrtcGetCUBIN", (nvrtc_program program, char *to)) \
    X(int, log_size, "nvrtcGetProgramLogSize", (nvrtc_program program, size_t * size)) \
    X(int, log, "nvrtcGetProgramLog", (nvrtc_program program, char *to)) \
    X(const char *, error_text, "nvrtcGetErrorString", (int code))

#define DECLARE(type, name, text, parameters) type(*name) parameters;
#define PLACE(type, name, text, parameters) {text, offsetof(struct nvrtc, name)},

/* The one thing of the library that belongs to the process and not to a context: the handle of a shared
 * library, which the loader itself keeps once per process. Each half is filled once and then only read. */
static struct nvrtc {
    pthread_once_t found_once, opened_once;
    bool found, opened;
    char path[1024];  /* what to give to dlopen; "" where the loader found it */
    char stamp[1152]; /* stands for the compiler in the key */
    char why[768];    /* where it could not be opened */
    void *library;
    CALLS(DECLARE)
} nvrtc = {.found_once = PTHREAD_ONCE_INIT, .opened_once = PTHREAD_ONCE_INIT};

static const struct {
    const char *name;
    size_t offset;
} functions[] = {CALLS(PLACE)};

static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
static const char *const folders[] = {
    "/usr/local/cuda/lib64",
    "/usr/local/cuda-13.0/lib64",
    "/opt/cuda/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/lib",
};
enum {
    FUNCTION_COUNT = sizeof functions / sizeof *functions,
    NAME_COUNT = sizeof names / sizeof *names,
    FOLDER_COUNT = sizeof folders / sizeof *folders
};

/* Takes the file as the compiler if it is there. */
static bool take_file(const char *folder, int length, const char *name) {
    struct stat info;
    int n = snprintf(nvrtc.path, sizeof nvrtc.path, "%.*s%s%s", length, folder, length ? "/" : "", name);
    if (n < 0 || (size_t)n >= sizeof nvrtc.path || stat(nvrtc.path, &info) != 0 || !S_ISREG(info.st_mode))
        return false;
    snprintf(nvrtc.stamp, sizeof nvrtc.stamp, "%s %" PRId64 " %" PRId64 ".%09ld", nvrtc.path,
             (int64_t)info.st_size, (int64_t)info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
    return true;
}

/* In one of the folders of a list separated by colons; an empty one is passed over. */
static bool take_from_list(const char *list, const char *name) {
    for (const char *at = list; at && *at;) {
        size_t length = strcspn(at, ":");
        if (length > 0 && take_file(at, (int)length, name))
            return true;
        at += length + (at[length] == ':');
    }
    return false;
}

static bool take_any(void) {
    const char *list = getenv("LD_LIBRARY_PATH");
    for (int i = 0; i < NAME_COUNT; i++) {
        if (take_from_list(list, names[i]))
            return true;
        for (int f = 0; f < FOLDER_COUNT; f++)
            if (take_file(folders[f], (int)strlen(folders[f]), names[i]))
                return true;
    }
    return false;
}

/* Keeps why; returns false. */
#define REFUSE(...) \
    (snprintf(nvrtc.why, sizeof nvrtc.why, "NVRTC, CUDA's compiler, cannot be used: " __VA_ARGS__), false)

static bool look_up_functions(void) {
    for (int i = 0; i < FUNCTION_COUNT; i++) {
        void *function = dlsym(nvrtc.library, functions[i].name);
        if (!function)
            return REFUSE("it has no %s; CUDA 12.0 or newer is needed", functions[i].name);
        memcpy((char *)&nvrtc + functions[i].offset, &function, sizeof function);
    }
    return true;
}

/* Where only the loader knows the folder, the library must be opened to be known: slow, but right. The
 * loader does not say which file it took, so its version stands for it. */
static bool take_by_loader(void) {
    *nvrtc.path = 0;
    for (int i = 0; i < NAME_COUNT && !nvrtc.library; i++)
        nvrtc.library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!nvrtc.library)
        return REFUSE("it was not found. Install CUDA 12.0 or newer, or set EPILOG_NVRTC to the path of "
                      "libnvrtc.so");
    if (!look_up_functions())
        return false;
    int major = 0, minor = 0;
    nvrtc.version(&major, &minor);
    snprintf(nvrtc.stamp, sizeof nvrtc.stamp, "NVRTC %d.%d", major, minor);
    return true;
}

/* A file the user names is used or refused; nothing else is tried in its place. */
static void find_nvrtc(void) {
    const char *own = getenv("EPILOG_NVRTC");
    if (own && *own)
        nvrtc.found = take_file(".", strchr(own, '/') ? 0 : 1, own) ||
                      REFUSE("EPILOG_NVRTC names %s, which is not a file", own);
    else
        nvrtc.found = take_any() || take_by_loader();
}

/* NVRTC asks the loader for its second library by name alone, which fails where the folder is not one of
 * the loader's own. One that is open already is found. */
static void open_builtins(void) {
    char path[sizeof nvrtc.path + 64];
    int major = 0, minor = 0, folder = (int)(strrchr(nvrtc.path, '/') - nvrtc.path);
    nvrtc.version(&major, &minor);
    snprintf(path, sizeof path, "%.*s/libnvrtc-builtins.so.%d.%d", folder, nvrtc.path, major, minor);
    dlopen(path, RTLD_NOW | RTLD_LOCAL); /* NVRTC itself says so where it is not there */
}

static void open_nvrtc(void) {
    if (nvrtc.library) { /* the loader found it */
        nvrtc.opened = true;
        return;
    }
    nvrtc.library = dlopen(nvrtc.path, RTLD_NOW | RTLD_LOCAL);
    const char *reason = nvrtc.library ? NULL : dlerror();
    nvrtc.opened = nvrtc.library ? look_up_functions() : REFUSE("%.600s", reason ? reason : nvrtc.path);
    if (nvrtc.opened)
        open_builtins();
}

bool epi_jit_available(char *why, size_t size) {
    pthread_once(&nvrtc.found_once, find_nvrtc);
    snprintf(why, size, "%s", nvrtc.found ? "" : nvrtc.why);
    return nvrtc.found;
}

void epi_jit_name(char *name, size_t size) {
    snprintf(name, size, "%s", *nvrtc.path ? nvrtc.path : nvrtc.stamp);
}

/* ---- the log ---- */

/* What a compilation gives, and what an entry of the cache holds in front of the cubin. */
typedef struct report {
    int32_t registers;
    char slow[252]; /* why the code would be slow; "" where it would not */
} report;

static int line_length(const char *line) {
    return (int)strcspn(line, "\n");
}

static const char *next_line(const char *line) {
    line += line_length(line);
    return *line ? line + 1 : NULL;
}

static const char *find_in_line(const char *line, const char *what) {
    const char *at = strstr(line, what);
    return at && at < line + line_length(line) ? at : NULL;
}

#define SPILLED "registers are spilled (%d bytes stored, %d bytes loaded)"

/* The first reason is kept: the ones after it mostly follow from it. */
#define NOTE_SLOW(r, ...) (void)((r)->slow[0] || snprintf((r)->slow, sizeof(r)->slow, __VA_ARGS__))

/* The assembler's words on speed are numbered C75xx: "(C7510) Potential Performance Loss: wgmma...". */
static void read_line(const char *line, report *r) {
    int registers = 0, frame = 0, stores = 0, loads = 0;
    const char *warning = find_in_line(line, "(C75"), *used = find_in_line(line, "Used ");
    const char *number = line + strcspn(line, "0123456789\n");
    if (warning)
        NOTE_SLOW(r, "%.*s", line_length(warning), warning);
    if (used && sscanf(used, "Used %d registers", &registers) == 1 && registers > r->registers)
        r->registers = registers;
    if (sscanf(number, "%d bytes stack frame, %d bytes spill stores, %d bytes spill loads", &frame, &stores,
               &loads) != 3)
        return;
    if (stores || loads)
        NOTE_SLOW(r, SPILLED, stores, loads);
    else if (frame)
        NOTE_SLOW(r, "it has a stack frame of %d bytes", frame);
}

static void read_log(const char *log, report *r) {
    for (const char *line = log; line; line = next_line(line))
        read_line(line, r);
}

/* The line that says what is wrong: the front end's, the assembler's, or simply the first. */
static const char *first_error(const char *log) {
    static const char *const marks[] = {"error:", "error   :", "fatal   :"};
    for (const char *line = log; line; line = next_line(line))
        for (int i = 0; i < 3; i++)
            if (find_in_line(line, marks[i]))
                return line;
    return log;
}

/* ---- compiling ---- */

enum { OPTION_COUNT = 6 };

typedef struct job {
    epi_jit_item *item;
    char target[64];
    const char *options[OPTION_COUNT];
    report report;
} job;

/* Every option goes into the key. -v makes the assembler report registers and spills; NVRTC's own cache, which
 * has no such report, is not used. */
static void set_options(job *j) {
    snprintf(j->target, sizeof j->target, "--gpu-architecture=%s", j->item->arch);
    j->options[0] = j->target;
    j->options[1] = "-default-device";
    j->options[2] = "--std=c++17";
    j->options[3] = "--ptxas-options=-v";
    j->options[4] =
        "--fmad=false"; /* texts say where they fuse, so that every configuration has the same bits */
    j->options[5] = "--no-cache";
}

/* NVRTC has a cache, and the option to leave it alone, since 12.9. */
static int option_count(void) {
    int major = 0, minor = 0;
    nvrtc.version(&major, &minor);
    return OPTION_COUNT - (major * 100 + minor < 1209);
}

/* Layers of two kinds have most texts in common but for the names of values. */
static epi_cache_key make_key(const job *j) {
    char *plain = epi_plain_text(j->item->source);
    const char *texts[5 + OPTION_COUNT] = {FORMAT, plain ? plain : j->item->source, j->item->name,
                                           j->item->arch, nvrtc.stamp};
    for (int i = 0; i < OPTION_COUNT; i++)
        texts[5 + i] = j->options[i];
    epi_cache_key key = epi_cache_key_make(texts, 5 + OPTION_COUNT);
    free(plain);
    return key;
}

/* The caller frees it; NULL where there is no memory. */
static char *copy_log(nvrtc_program program) {
    size_t size = 0;
    if (nvrtc.log_size(program, &size) != NVRTC_OK)
        size = 0;
    char *log = calloc(size + 1, 1);
    if (log && size > 0)
        nvrtc.log(program, log);
    return log;
}

static epi_status judge(const job *j, int code, const char *log) {
    const char *line = first_error(log);
    if (code == NVRTC_OK)
        return EPI_OK;
    if (code == NVRTC_COMPILATION)
        return epi_fail(&j->item->error, EPI_ERR_UNSUPPORTED,
                        "the generated CUDA source does not compile: %.*s", line_length(line), line);
    return epi_fail(&j->item->error, EPI_ERR_UNSUPPORTED, "NVRTC, CUDA's compiler, failed for %s: %s%s%.*s",
                    j->item->arch, nvrtc.error_text(code), *line ? ": " : "", line_length(line), line);
}

static epi_status take_cubin(const job *j, nvrtc_program program) {
    size_t size = 0;
    if (nvrtc.cubin_size(program, &size) != NVRTC_OK || size == 0)
        return epi_fail(&j->item->error, EPI_ERR_UNSUPPORTED,
                        "NVRTC, CUDA's compiler, gave no machine code for %s", j->item->arch);
    void *data = malloc(size);
    if (!data)
        return epi_fail(&j->item->error, EPI_ERR_MEMORY, "not enough memory for a cubin of %zu bytes", size);
    nvrtc.cubin(program, data);
    j->item->cubin.data = data;
    j->item->cubin.size = size;
    return EPI_OK;
}

static epi_status compile(job *j) {
    pthread_once(&nvrtc.opened_once, open_nvrtc);
    if (!nvrtc.opened)
        return epi_fail(&j->item->error, EPI_ERR_UNSUPPORTED, "%s", nvrtc.why);
    char file[128];
    snprintf(file, sizeof file, "%.100s.cu", j->item->name);
    nvrtc_program program = NULL;
    int code = nvrtc.create(&program, j->item->source, file, 0, NULL, NULL);
    if (code != NVRTC_OK)
        return judge(j, code, "");
    code = nvrtc.compile(program, option_count(), j->options);
    char *log = copy_log(program);
    epi_status status =
        log ? judge(j, code, log)
            : epi_fail(&j->item->error, EPI_ERR_MEMORY, "not enough memory for the log of a compilation");
    if (status == EPI_OK) {
        read_log(log, &j->report);
        status = take_cubin(j, program);
    }
    free(log);
    nvrtc.destroy(&program);
    return status;
}

/* ---- the cache ---- */

static bool load(job *j, epi_cache_key key) {
    void *entry = NULL;
    size_t size = 0;
    if (!epi_cache_read(key, &entry, &size, j->item->cubin.note, sizeof j->item->cubin.note))
        return false;
    if (size <= sizeof j->report) {
        free(entry);
        return false;
    }
    memcpy(&j->report, entry, sizeof j->report);
    j->report.slow[sizeof j->report.slow - 1] = 0;
    j->item->cubin.size = size - sizeof j->report;
    j->item->cubin.data = memmove(entry, (char *)entry + sizeof j->report, j->item->cubin.size);
    return j->item->cubin.cached = true;
}

static void store(const job *j, epi_cache_key key, char *note, size_t note_size) {
    size_t size = sizeof j->report + j->item->cubin.size;
    char *entry = malloc(size);
    if (!entry)
        return;
    memcpy(entry, &j->report, sizeof j->report);
    memcpy(entry + sizeof j->report, j->item->cubin.data, j->item->cubin.size);
    epi_cache_write(key, entry, size, note, note_size);
    free(entry);
}

/* Slow code is stored like any other, with the reason: who meets it again is refused at once. */
static epi_status load_or_compile(job *j) {
    epi_cache_key key = make_key(j);
    char note[sizeof j->item->cubin.note] = "";
    if (load(j, key))
        return EPI_OK;
    epi_status status = compile(j);
    if (status == EPI_OK)
        store(j, key, note, sizeof note);
    size_t used = strlen(j->item->cubin.note);
    snprintf(j->item->cubin.note + used, sizeof note - used, "%s%s", used && *note ? "; " : "", note);
    return status;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Is it slow for more than so many bytes that are loaded of spilled registers? */
static bool is_slow(const report *r, int spills) {
    int stores = 0, loads = 0;
    return r->slow[0] && !(sscanf(r->slow, SPILLED, &stores, &loads) == 2 && loads <= spills);
}

epi_status epi_jit_compile(epi_jit_item *t) {
    double begin = now();
    job j = {.item = t};
    t->cubin = (epi_cubin){0};
    epi_error_clear(&t->error);
    pthread_once(&nvrtc.found_once, find_nvrtc);
    if (!nvrtc.found)
        return t->status = epi_fail(&t->error, EPI_ERR_UNSUPPORTED, "%s", nvrtc.why);
    set_options(&j);
    t->status = load_or_compile(&j);
    bool slow = is_slow(&j.report, t->spills);
    if (t->status == EPI_OK && slow && !t->keep_slow)
        t->status = epi_fail(&t->error, EPI_ERR_UNSUPPORTED, "the kernel %s would be slow on %s: %s", t->name,
                             t->arch, j.report.slow);
    if (t->status != EPI_OK)
        epi_cubin_free(&t->cubin);
    t->cubin.registers = j.report.registers;
    t->cubin.slow = slow;
    t->cubin.seconds = now() - begin;
    return t->status;
}

void epi_cubin_free(epi_cubin *cubin) {
    free(cubin->data);
    cubin->data = NULL;
    cubin->size = 0;
}

/* ---- several at once ---- */

static void compile_item(void *items, int64_t i, int thread) {
    epi_jit_item *t = (epi_jit_item *)items + i;
    (void)thread;
    if (t->source)
        epi_jit_compile(t);
}

void epi_jit_compile_all(epi_jit_item *items, int count) {
    epi_parallel_for(epi_parallel_processors(), count, compile_item, items);
}
