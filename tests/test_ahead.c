/* test_ahead.c: which configuration becomes of a part when CUDA's compiler finds some slow, with a compiler and a
 * driver made up here: the first that is not, each text compiled once, the next ones side by side. */
#include <pthread.h>
#include <unistd.h>

#include "base/parallel.h"
#include "ran.h"

/* ---- a compiler ---- */

typedef struct text {
    const char *source;
    char log[160];
} text;

enum { MOST_TEXTS = 256 };
static struct {
    pthread_mutex_t lock;
    char *texts[MOST_TEXTS];
    int count, twice, running, most_running;
    const char *slow; /* texts with this are */
} compiler = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void begin(const char *slow) {
    for (int i = 0; i < compiler.count; i++)
        free(compiler.texts[i]);
    compiler.count = compiler.twice = compiler.most_running = 0;
    compiler.slow = slow;
}

static void note_text(const char *source) {
    pthread_mutex_lock(&compiler.lock);
    for (int i = 0; i < compiler.count; i++)
        compiler.twice += !strcmp(compiler.texts[i], source);
    if (compiler.count < MOST_TEXTS)
        compiler.texts[compiler.count++] = strdup(source);
    if (++compiler.running > compiler.most_running)
        compiler.most_running = compiler.running;
    pthread_mutex_unlock(&compiler.lock);
    usleep(20000); /* so that others can begin meanwhile */
    pthread_mutex_lock(&compiler.lock);
    compiler.running--;
    pthread_mutex_unlock(&compiler.lock);
}

static int nvrtc_version(int *major, int *minor) {
    *major = 13;
    return *minor = 0;
}
static int nvrtc_create(text **out, const char *source) {
    *out = calloc(1, sizeof **out);
    (*out)->source = source;
    return 0;
}
static int nvrtc_destroy(text **program) {
    free(*program);
    return 0;
}
static int nvrtc_compile(text *t) {
    bool slow = compiler.slow && strstr(t->source, compiler.slow);
    note_text(t->source);
    snprintf(t->log, sizeof t->log,
             "ptxas info: Used 168 registers\n %d bytes stack frame, %d bytes spill stores, %d bytes spill "
             "loads\n",
             slow * 64, slow * 64, slow * 64);
    return 0;
}
static int nvrtc_size(text *t, size_t *size) {
    (void)t;
    *size = 1;
    return 0;
}
static int nvrtc_cubin(text *t, char *to) {
    (void)t;
    return *to = 0;
}
static int nvrtc_log_size(text *t, size_t *size) {
    *size = strlen(t->log);
    return 0;
}
static int nvrtc_log(text *t, char *to) {
    memcpy(to, t->log, strlen(t->log));
    return 0;
}
static const char *nvrtc_error(int code) {
    (void)code;
    return "an error";
}

/* ---- a driver ---- */

static int answer_ok(void) {
    return 0;
}
static int driver_version(int *version) {
    *version = 13000;
    return 0;
}
static int one(int *count) {
    *count = 1;
    return 0;
}
static int device_get(int *device, int ordinal) {
    *device = ordinal;
    return 0;
}
static int device_name(char *name, int size, int device) {
    (void)device;
    snprintf(name, (size_t)size, "none");
    return 0;
}
/* An H100's: capability 9.0, 132 multiprocessors. */
static int device_attribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 16 ? 132 : attribute == 75 ? 9 : attribute == 76 ? 0 : 1;
    return 0;
}
static int total_memory(size_t *bytes, int device) {
    (void)device;
    *bytes = (size_t)80 << 30;
    return 0;
}
/* A handle: of a context, a library, a kernel or a function. */
static int give_handle(void **out) {
    static char handle;
    *out = &handle;
    return 0;
}

/* ---- libraries ---- */

#define ENTRY(name, f) \
    { name, (uintptr_t)(f) }
static const struct {
    const char *name;
    uintptr_t address;
} entries[] = {
    ENTRY("nvrtcVersion", nvrtc_version),
    ENTRY("nvrtcCreateProgram", nvrtc_create),
    ENTRY("nvrtcDestroyProgram", nvrtc_destroy),
    ENTRY("nvrtcCompileProgram", nvrtc_compile),
    ENTRY("nvrtcGetCUBINSize", nvrtc_size),
    ENTRY("nvrtcGetCUBIN", nvrtc_cubin),
    ENTRY("nvrtcGetProgramLogSize", nvrtc_log_size),
    ENTRY("nvrtcGetProgramLog", nvrtc_log),
    ENTRY("nvrtcGetErrorString", nvrtc_error),
    ENTRY("cuDriverGetVersion", driver_version),
    ENTRY("cuDeviceGetCount", one),
    ENTRY("cuDeviceGet", device_get),
    ENTRY("cuDeviceGetName", device_name),
    ENTRY("cuDeviceGetAttribute", device_attribute),
    ENTRY("cuDeviceTotalMem_v2", total_memory),
    ENTRY("cuDevicePrimaryCtxRetain", give_handle),
    ENTRY("cuCtxGetCurrent", give_handle),
    ENTRY("cuLibraryLoadData", give_handle),
    ENTRY("cuLibraryGetKernel", give_handle),
    ENTRY("cuKernelGetFunction", give_handle),
};

/* What the library opens is this file itself. */
void *__wrap_dlopen(const char *path, int flags);
void *__wrap_dlsym(void *library, const char *name);
int __wrap_dlclose(void *library);
void *__wrap_dlopen(const char *path, int flags) {
    (void)path, (void)flags;
    return &compiler;
}
void *__wrap_dlsym(void *library, const char *name) {
    (void)library;
    uintptr_t found = (uintptr_t)answer_ok;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (!strcmp(entries[i].name, name))
            found = entries[i].address;
    return (void *)found;
}
int __wrap_dlclose(void *library) {
    (void)library;
    return 0;
}

/* ---- kernels ---- */

static const char programs[] =
    "product(x[T,D], w[F,D]) -> y[T,F] { y = x @ w }"
    "norm(x[T,D], w[F,B,D]) -> y[T,F,B] { h = x @ w y = h*rsqrt(mean(h*h, B) + 1) }"
    "turned(x[T,D], w[F,B,D], c[T,B], s[T,B]) -> y[T,F,B] {"
    "    h = x @ w"
    "    n = h*rsqrt(mean(h*h, B) + 1)"
    "    a, b = halves(n, B)"
    "    y = n*c + concat(-b, a, B)*s"
    "}";

static epi_kernel *compile(epi_context *context, const char *name, const char *dims, const char *open) {
    epi_module *module = parsed(context, programs);
    epi_kernel *kernel =
        kernel_of(epi_module_find(module, name), dims, (way){.type = EPI_BF16, .device = 1, .open = open});
    epi_module_free(module);
    return kernel;
}

/* Programs and what becomes of them where texts are slow that have `slow` in them. */
static const struct row {
    const char *slow, *name, *dims, *becomes;
    int texts;   /* that are compiled, or 0 */
    bool beside; /* more than one at once, where there are processors */
} rows[] = {
    {NULL, "product", "T=8192,D=2560,F=2048", "sm90_128x256", 1, false},
    {"m64n256k16", "product", "T=8192,D=2560,F=2048", "sm90_128x128", 0, true},
    {"m64n256k16", "norm", "T=8192,D=2560,F=32,B=64", "sm90_128x128", 0, true},
    {"wgmma", "norm", "T=8192,D=2560,F=32,B=64", "sm80_128x128", 0, false},
    {NULL, "turned", "T=8192,D=2560,F=8,B=256", "", 2, false}, /* what is known to be slow is not tried */
};

static void test_row(epi_context *context, const struct row *r, bool side_by_side) {
    char text[8192] = "";
    begin(r->slow);
    epi_kernel *kernel = compile(context, r->name, r->dims, NULL);
    epi_kernel_describe(kernel, text, sizeof text);
    check(kernel && strstr(text, r->becomes), "%s where %s is slow:\n%s", r->name,
          r->slow ? r->slow : "nothing", text);
    check(!compiler.twice && (!r->texts || compiler.count == r->texts) &&
              (!r->beside || (compiler.most_running > 1) == side_by_side),
          "%s: %d texts, %d twice, %d at once", r->name, compiler.count, compiler.twice,
          compiler.most_running);
    epi_kernel_free(kernel);
}

/* Forms for fewer rows are compiled when a call has fewer, and once. */
static void forms(epi_context *context) {
    epi_error err = {0};
    epi_kernel_info info = {0};
    const int64_t rows_of_calls[] = {8192, 100, 3000};
    int texts[3] = {0};
    size_t bytes;
    begin(NULL);
    epi_kernel *kernel = compile(context, "product", "T=8192,D=2560,F=2048", "T");
    for (int i = 0; i < 3 && kernel; i++) {
        check(epi_kernel_workspace_at(kernel, &rows_of_calls[i], 1, &bytes, &err) == EPI_OK, "%s",
              err.message);
        texts[i] = compiler.count;
    }
    epi_kernel_get_info(kernel, &info);
    check(texts[0] == 1 && texts[1] > 1 && texts[2] == texts[1] && info.forms == texts[1] && !compiler.twice,
          "%d texts of all rows, %d of fewer, %d of others; %d forms", texts[0], texts[1], texts[2],
          info.forms);
    epi_kernel_free(kernel);
}

int main(int count, char **arguments) {
    (void)count;
    setenv("EPILOG_NVRTC", arguments[0], 1); /* a file that is there */
    setenv("EPILOG_CACHE", "off", 1);
    epi_context *context = NULL;
    epi_error err = {0};
    setenv("OMP_NUM_THREADS", "1", 1); /* which is no word on how many compile */
    bool side_by_side = epi_parallel_processors() > 1;
    if (!check(epi_context_open(&context, &err) == EPI_OK && epi_device_count(context) == 2, "%s",
               err.message))
        return finish();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        test_row(context, &rows[i], side_by_side);
    forms(context);
    begin(NULL);
    epi_context_close(context);
    return finish();
}
