/* ab.c: times two builds of the library against each other in one process.
 *
 *     ab OLD.so NEW.so [--gpu] [--rows] [--type f32|bf16|f16] [--rounding packed|exact] [--threads N]
 *        [--rounds N] [--size N | --dims T=8192,D=4096] [--out FILE.json] [--old-commit NAME]
 *        [--new-commit NAME] [PROGRAM...]
 *
 * Without names: the kernels of `epilog bench` at --size, or with --rows programs without a product. A name
 * is a program of the folder programs (or of EPILOG_PROGRAMS), or FILE.epi:PROGRAM; --dims sets sizes by
 * name, and a program takes those of its own axes.
 *
 * Both libraries get the same inputs. Their outputs are compared first: they may differ by what rounding and
 * another order of sums explain. Then the old and the new kernel run in turn, in alternating order, so that
 * whatever slows the machine down for a while meets both. The ratio is the median over the pairs. On a GPU
 * the time is that between two events, and L2 is flushed before each run. It uses the public interface alone.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "epilog.h"

enum { MAX_TENSORS = 32, MAX_DIMS = 32, MAX_NAMES = 64, MAX_ROUNDS = 10000, WARM_UP = 3, HEAD = 128 };
enum { OLD, NEW, SIDES };
static const size_t FLUSH_BYTES = (size_t)256 << 20; /* several times the L2 of any GPU */

/* What is measured without names. A dim without a number takes the size; HEADS is the size in heads of HEAD.
 */
typedef struct entry {
    const char *program, *dims;
} entry;

static const entry products[] = {
    {"matmul", "M,N,K"},
    {"rope", "B=1,S,E,H=HEADS,D=128"},
    {"swiglu", "T,D,F"},
    {"cross_entropy", "T,D,V"},
    {"residual_rms", "T,K,D"},
    {"norm_linear", "T,D,F"},
    {"norm_swiglu", "T,D,F"},
    {"norm_rope", "B=1,S,E,H=HEADS,D=128"},
    {"norm_cross_entropy", "T,D,V"},
    {"rmsnorm_backward", "T,F,D"},
    {"swiglu_backward", "T,D,F"},
};

static const entry rows[] = {
    {"rmsnorm", "T=8192,D=4096"},
    {"add_rmsnorm", "T=8192,D=4096"},
    {"rmsnorm_grad", "T=8192,D=4096"},
    {"layernorm", "T=8192,D=4096"},
    {"layernorm_grad", "T=8192,D=4096"},
    {"softmax", "T=8192,D=4096"},
    {"softmax_grad", "T=8192,D=4096"},
    {"log_softmax", "T=8192,D=4096"},
    {"token_loss", "T=2048,V=32000"},
    {"token_loss_grad", "T=2048,V=32000"},
    {"swiglu_gate", "T=8192,F=4096"},
    {"swiglu_gate_grad", "T=8192,F=4096"},
    {"swiglu_gate_pairs", "T=8192,F=4096"},
    {"geglu_gate", "T=8192,F=4096"},
    {"rotary_halves", "B=1,S=8192,H=32,D=128"},
    {"rotary_pairs", "B=1,S=8192,H=32,D=128"},
    {"embedding", "V=32000,T=8192,D=4096"},
    {"embedding_grad", "V=32000,T=8192,D=1024"},
    {"dropout_add", "T=8192,D=4096"},
    {"adamw", "N=16777216"},
    {"transpose", "M=8192,N=4096"},
};

typedef struct arguments {
    const char *path[SIDES], *commit[SIDES], *out, *dims;
    const char *names[MAX_NAMES];
    int name_count, threads, rounds;
    long long size;
    bool gpu, rows;
    epi_dtype type;
    epi_rounding rounding;
} arguments;

static void fail(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
static void fail(const char *fmt, ...) {
    va_list args;
    fflush(stdout);
    fprintf(stderr, "ab: ");
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fprintf(stderr, "\n");
    exit(1);
}

static void *need(void *memory) {
    if (!memory)
        fail("out of memory");
    return memory;
}

/* ---- a library ---- */

/* What is called of the public interface, without the prefix. */
/* clang-format off */
#define CALLS(X) \
    X(context_open) X(context_close) X(error_format) X(dtype_size) \
    X(device_find) X(device_why_no_gpu) X(device_get_sized) X(device_alloc) X(device_free) X(device_copy) \
    X(module_parse) X(module_free) X(module_find) \
    X(program_dim_count) X(program_dim) X(program_tensor_count) X(program_tensor) \
    X(kernel_compile) X(kernel_free) X(kernel_workspace) X(kernel_start) X(kernel_tensor) X(kernel_get_info_sized)
/* clang-format on */

typedef struct library {
    const char *path;
    epi_context *ctx;
    int device;
    bool sized; /* its options begin with their size; those of older libraries with what follows it */
#define MEMBER(name) __typeof__(epi_##name) *name;
    CALLS(MEMBER)
#undef MEMBER
} library;

static void check(const library *lib, epi_status status, const epi_error *err, const char *what) {
    char text[2048];
    if (status == EPI_OK)
        return;
    lib->error_format(err, text, sizeof text);
    fail("%s: %s: %s", lib->path, what, text);
}

/* A library from before these functions were told a size has them without `_sized`, and does not look at it.
 */
static void *symbol(void *handle, const char *path, const char *name) {
    void *found = dlsym(handle, name);
    char before[64];
    const char *sized = strstr(name, "_sized");
    if (!found && sized) {
        snprintf(before, sizeof before, "%.*s", (int)(sized - name), name);
        found = dlsym(handle, before);
    }
    if (!found)
        fail("%s has no %s", path, name);
    return found;
}

static void open_library(library *lib, const char *path, bool gpu) {
    epi_error err;
    char full[4096];
    lib->path = path;
    void *handle = dlopen(realpath(path, full) ? full : path, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        fail("%s", dlerror());
#define FIND(name) *(void **)&lib->name = symbol(handle, path, "epi_" #name);
    CALLS(FIND)
#undef FIND
    lib->sized = dlsym(handle, "epi_describe_abi") != NULL;
    check(lib, lib->context_open(&lib->ctx, &err), &err, "context");
    lib->device = gpu ? lib->device_find(lib->ctx, "gpu") : 0;
    if (lib->device < 0)
        fail("%s: no GPU: %s", path, lib->device_why_no_gpu(lib->ctx));
}

/* ---- time ---- */

/* The few functions of the CUDA driver that measure time. */
typedef struct driver {
    int (*stream_create)(void **, unsigned);
    int (*event_create)(void **, unsigned);
    int (*event_record)(void *, void *);
    int (*event_wait)(void *);
    int (*event_elapsed)(float *, void *, void *);
    int (*memset_async)(unsigned long long, unsigned char, size_t, void *);
    void *stream, *start, *stop, *flush;
} driver;

static void must(int status, const char *what) {
    if (status)
        fail("%s: CUDA error %d", what, status);
}

/* The library has made the GPU's primary context current before this: it allocates the memory of the flush.
 */
static void open_driver(driver *d, const library *lib) {
    epi_error err;
    check(lib, lib->device_alloc(lib->ctx, lib->device, FLUSH_BYTES, &d->flush, &err), &err, "memory");
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        fail("%s", dlerror());
    int (*retain)(void **, int), (*make_current)(void *);
    void *primary;
    *(void **)&retain = symbol(handle, "libcuda", "cuDevicePrimaryCtxRetain");
    *(void **)&make_current = symbol(handle, "libcuda", "cuCtxSetCurrent");
    *(void **)&d->stream_create = symbol(handle, "libcuda", "cuStreamCreate");
    *(void **)&d->event_create = symbol(handle, "libcuda", "cuEventCreate");
    *(void **)&d->event_record = symbol(handle, "libcuda", "cuEventRecord");
    *(void **)&d->event_wait = symbol(handle, "libcuda", "cuEventSynchronize");
    *(void **)&d->event_elapsed = symbol(handle, "libcuda", "cuEventElapsedTime");
    *(void **)&d->memset_async = symbol(handle, "libcuda", "cuMemsetD8Async");
    must(retain(&primary, 0), "cuDevicePrimaryCtxRetain");
    must(make_current(primary), "cuCtxSetCurrent");
    must(d->stream_create(&d->stream, 1), "cuStreamCreate");
    must(d->event_create(&d->start, 0), "cuEventCreate");
    must(d->event_create(&d->stop, 0), "cuEventCreate");
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int count) {
    static double sorted[MAX_ROUNDS];
    memcpy(sorted, values, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, ascending);
    return 0.5 * (sorted[(count - 1) / 2] + sorted[count / 2]);
}

/* ---- elements ---- */

static double random_unit(uint64_t *s) {
    uint64_t z = *s += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* Finite values between 2^-14 and 65504 in magnitude, or zero: what inputs are filled with. */
static uint16_t half_of(double x) {
    int e;
    double m = frexp(fabs(x), &e);
    if (e < -13)
        return 0;
    return (uint16_t)((x < 0 ? 0x8000 : 0) | (((e + 13) << 10) + (int)nearbyint(ldexp(m, 11))));
}

static double half_value(uint16_t h) {
    int e = (h >> 10) & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h >> 15 ? -v : v;
}

static void put_element(void *base, epi_dtype type, int64_t at, double value) {
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    switch (type) {
    case EPI_F64: ((double *)base)[at] = value; break;
    case EPI_I32: ((int32_t *)base)[at] = (int32_t)value; break;
    case EPI_I64: ((int64_t *)base)[at] = (int64_t)value; break;
    case EPI_BF16: ((uint16_t *)base)[at] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16); break;
    case EPI_F16: ((uint16_t *)base)[at] = half_of(value); break;
    default: ((float *)base)[at] = f;
    }
}

static double get_element(const void *base, epi_dtype type, int64_t at) {
    uint32_t bits;
    float f;
    switch (type) {
    case EPI_F64: return ((const double *)base)[at];
    case EPI_I32: return ((const int32_t *)base)[at];
    case EPI_I64: return (double)((const int64_t *)base)[at];
    case EPI_F16: return half_value(((const uint16_t *)base)[at]);
    case EPI_BF16:
        bits = (uint32_t)((const uint16_t *)base)[at] << 16;
        memcpy(&f, &bits, 4);
        return (double)f;
    default: return (double)((const float *)base)[at];
    }
}

/* Half the distance of 1 to the next element of the type. */
static double unit_of(epi_dtype type) {
    return type == EPI_BF16 ? 0x1p-8 : type == EPI_F16 ? 0x1p-11 : 0x1p-24;
}

/* Scalars are small (an epsilon), vectors near one, matrices such that products of them are near one. */
static void fill(void *data, const epi_tensor_shape *t, int64_t largest, uint64_t seed) {
    int64_t inner = t->rank ? t->sizes[t->rank - 1] : 1,
            below = t->index_below > 0 ? t->index_below : largest;
    double scale = t->rank > 1 ? 1.7 * pow((double)(inner ? inner : 1), -0.25) : 1;
    for (int64_t i = 0; i < t->count; i++) {
        double u = random_unit(&seed);
        put_element(data, t->type, i,
                    t->type == EPI_I32 || t->type == EPI_I64 ? floor(u * (double)below)
                    : t->rank == 0                           ? 1e-3 * u
                    : t->rank == 1                           ? 0.5 + u
                                                             : scale * (2 * u - 1));
    }
}

/* The largest difference, over the largest value. */
static double difference(const void *a, const void *b, const epi_tensor_shape *t) {
    double most = 0, scale = 0;
    for (int64_t i = 0; i < t->count; i++) {
        double x = get_element(a, t->type, i), y = get_element(b, t->type, i);
        bool same = x == y || (isnan(x) && isnan(y));
        most = same ? most : isfinite(x - y) ? fmax(most, fabs(x - y)) : INFINITY;
        scale = isfinite(x) ? fmax(scale, fabs(x)) : scale;
    }
    return most == 0 ? 0 : scale == 0 ? INFINITY : most / scale;
}

/* ---- a program in both libraries ---- */

/* One side: the kernel, and its tensors: inputs and workspace are those of the other side too. */
typedef struct side {
    const library *lib;
    epi_module *module;
    epi_kernel *kernel;
    epi_tensor tensors[MAX_TENSORS];
    void *workspace;
} side;

typedef struct result {
    char program[64], dims[256], worst_tensor[64];
    double ms[SIDES], best[SIDES], ratio, difference, allowed;
    char config[SIDES][64];
    int pairs;
    bool agrees;
} result;

static const char *program_folder(void) {
    const char *set = getenv("EPILOG_PROGRAMS");
    return set && *set ? set : "programs";
}

static char *read_text(const char *path, size_t *length) {
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    char *text = need(malloc(1 << 20));
    *length = fread(text, 1, 1 << 20, f);
    fclose(f);
    return text;
}

/* Parses a text and finds the program in it; NULL, with nothing kept, where it is not there. */
static const epi_program *parse(side *s, const char *path, const char *program) {
    size_t length;
    epi_error err;
    char *text = read_text(path, &length);
    if (!text)
        return NULL;
    check(s->lib, s->lib->module_parse(s->lib->ctx, text, length, path, &s->module, &err), &err, "parse");
    free(text);
    const epi_program *found = s->lib->module_find(s->module, program);
    if (!found) {
        s->lib->module_free(s->module);
        s->module = NULL;
    }
    return found;
}

/* The program called `name`, in FILE.epi:NAME or in any text of the folder. */
static const epi_program *find_program(side *s, const char *name) {
    char path[4096];
    const epi_program *found = NULL;
    const char *colon = strrchr(name, ':');
    if (colon) {
        snprintf(path, sizeof path, "%.*s", (int)(colon - name), name);
        found = parse(s, path, colon + 1);
    }
    DIR *folder = colon ? NULL : opendir(program_folder());
    for (struct dirent *e; !found && folder && (e = readdir(folder));) {
        size_t n = strlen(e->d_name);
        if (n < 4 || strcmp(e->d_name + n - 4, ".epi"))
            continue;
        snprintf(path, sizeof path, "%s/%s", program_folder(), e->d_name);
        found = parse(s, path, name);
    }
    if (folder)
        closedir(folder);
    if (!found)
        fail("there is no program %s (looked in %s)", name, colon ? path : program_folder());
    return found;
}

/* The size of a dim in "T=8192,D,H=HEADS"; -1 where it is not named. */
static int64_t size_in(const char *dims, const char *dim, long long size) {
    size_t n = strlen(dim);
    for (const char *c = dims; c && *c; c += strcspn(c, ","), c += *c == ',') {
        if (strncmp(c, dim, n) || (c[n] && !strchr("=,", c[n])))
            continue;
        return c[n] != '=' ? size : !strncmp(c + n, "=HEADS", 6) ? size / HEAD : strtoll(c + n + 1, NULL, 10);
    }
    return -1;
}

static int bind_dims(const library *lib, const epi_program *program, const arguments *a, const char *dims,
                     epi_dim_binding *out, result *r) {
    int count = lib->program_dim_count(program);
    size_t used = 0;
    if (count > MAX_DIMS)
        fail("%s has too many dims", r->program);
    for (int i = 0; i < count; i++) {
        const char *name = lib->program_dim(program, i);
        int64_t size = size_in(a->dims, name, a->size);
        size = size < 0 ? size_in(dims, name, a->size) : size;
        if (size < 0)
            fail("%s: --dims says nothing of %s", r->program, name);
        out[i] = (epi_dim_binding){name, size};
        if (used < sizeof r->dims)
            used += (size_t)snprintf(r->dims + used, sizeof r->dims - used, "%s%s=%lld", i ? "," : "", name,
                                     (long long)size);
    }
    return count;
}

static void compile(side *s, const char *name, const char *dims, const arguments *a, result *r) {
    epi_error err;
    epi_dim_binding bindings[MAX_DIMS];
    const epi_program *program = find_program(s, name);
    epi_options o = EPI_OPTIONS(.dims = bindings, .type = a->type, .device = s->lib->device,
                                .threads = a->threads, .rounding = a->rounding);
    o.dim_count = bind_dims(s->lib, program, a, dims, bindings, r);
    const void *given = s->lib->sized ? (const void *)&o : (const void *)&o.dims;
    check(s->lib, s->lib->kernel_compile(program, given, &s->kernel, &err), &err, name);
}

/* ---- memory ---- */

static void *allocate(const library *lib, size_t bytes) {
    epi_error err;
    void *memory;
    if (!lib->device)
        return need(aligned_alloc(64, (bytes + 63) / 64 * 64 + 64));
    check(lib, lib->device_alloc(lib->ctx, lib->device, bytes + 64, &memory, &err), &err, "memory");
    return memory;
}

static void release(const library *lib, void *memory) {
    epi_error err;
    if (!lib->device)
        free(memory);
    else
        check(lib, lib->device_free(lib->ctx, lib->device, memory, &err), &err, "memory");
}

static void copy(const library *lib, void *to, const void *from, size_t bytes) {
    epi_error err;
    if (!lib->device)
        memcpy(to, from, bytes);
    else
        check(lib, lib->device_copy(lib->ctx, lib->device, to, from, bytes, &err), &err, "copy");
}

/* The tensors of both sides: inputs are filled once and shared, outputs are each side's own as long as they
 * are compared. Returns how many of the tensors are inputs. */
static int make_tensors(side *sides, const epi_program *program, epi_tensor_shape *shapes, int count) {
    const library *lib = sides[OLD].lib;
    epi_error err = {0};
    epi_tensor_info info;
    int64_t largest = 1;
    int inputs = 0;
    for (int i = 0; i < count; i++) {
        check(lib, lib->kernel_tensor(sides[OLD].kernel, i, &shapes[i]), &err, "tensor");
        check(lib, lib->program_tensor(program, i, &info), &err, "tensor");
        inputs += !info.is_output;
        for (int x = 0; x < shapes[i].rank; x++)
            largest = shapes[i].sizes[x] > largest ? shapes[i].sizes[x] : largest;
    }
    for (int i = 0; i < count; i++) {
        size_t bytes = (size_t)shapes[i].count * lib->dtype_size(shapes[i].type);
        char *host = need(malloc(bytes + 1));
        if (i < inputs)
            fill(host, &shapes[i], largest, 1000003u * (uint64_t)(i + 1));
        else
            memset(host, 0xff, bytes); /* NaN: an element that is not written does not go unseen */
        for (int s = 0; s < SIDES; s++) {
            bool shared = i < inputs && s == NEW;
            sides[s].tensors[i].data = shared ? sides[OLD].tensors[i].data : allocate(lib, bytes);
            if (!shared)
                copy(lib, sides[s].tensors[i].data, host, bytes);
        }
        free(host);
    }
    return inputs;
}

/* ---- comparing and timing ---- */

/* One run, in milliseconds. */
static double run(const side *s, int count, const driver *d) {
    const library *lib = s->lib;
    epi_error err;
    float ms;
    if (!lib->device) {
        double start = now();
        check(lib, lib->kernel_start(s->kernel, s->tensors, count, s->workspace, NULL, &err), &err, "run");
        return 1e3 * (now() - start);
    }
    must(d->memset_async((unsigned long long)(uintptr_t)d->flush, 0, FLUSH_BYTES, d->stream), "flush");
    must(d->event_record(d->start, d->stream), "cuEventRecord");
    check(lib, lib->kernel_start(s->kernel, s->tensors, count, s->workspace, d->stream, &err), &err, "run");
    must(d->event_record(d->stop, d->stream), "cuEventRecord");
    must(d->event_wait(d->stop), "cuEventSynchronize");
    must(d->event_elapsed(&ms, d->start, d->stop), "cuEventElapsedTime");
    return (double)ms;
}

/* Holds the outputs of both sides against each other. A sum of k terms in another order moves by about
 * sqrt(k) roundings of f32, and a value stored in between (or rounded in a tile) by roundings of the storage
 * type. */
static void compare(result *r, const side *sides, const epi_tensor_shape *shapes, int inputs, int count,
                    const arguments *a) {
    const library *lib = sides[OLD].lib;
    r->agrees = true;
    for (int i = inputs; i < count; i++) {
        size_t bytes = (size_t)shapes[i].count * lib->dtype_size(shapes[i].type);
        void *got[SIDES];
        double depth = 1;
        for (int s = 0; s < SIDES; s++) {
            got[s] = need(malloc(bytes + 1));
            copy(lib, got[s], sides[s].tensors[i].data, bytes);
        }
        for (int t = 0; t < inputs; t++)
            for (int x = 0; x < shapes[t].rank; x++)
                depth = fmax(depth, (double)shapes[t].sizes[x]);
        double between = fmax(unit_of(shapes[i].type), a->type == EPI_F32 ? 0 : unit_of(a->type));
        double allowed = 4 * between + 4 * sqrt(depth) * 0x1p-24,
               d = difference(got[OLD], got[NEW], &shapes[i]);
        if (d > allowed || d >= r->difference) {
            r->difference = d;
            r->allowed = allowed;
            snprintf(r->worst_tensor, sizeof r->worst_tensor, "%d", i);
        }
        r->agrees &= d <= allowed;
        free(got[OLD]);
        free(got[NEW]);
    }
}

/* Runs both in turn; which is first changes from pair to pair. */
static void measure(result *r, const side *sides, int count, const arguments *a, const driver *d) {
    static double ms[SIDES][MAX_ROUNDS], ratio[MAX_ROUNDS];
    for (int i = -WARM_UP; i < a->rounds; i++) {
        double t[SIDES];
        int first = i & 1 ? NEW : OLD;
        t[first] = run(&sides[first], count, d);
        t[!first] = run(&sides[!first], count, d);
        if (i < 0)
            continue;
        ms[OLD][i] = t[OLD];
        ms[NEW][i] = t[NEW];
        ratio[i] = t[NEW] / t[OLD];
    }
    r->pairs = a->rounds;
    r->ratio = median(ratio, a->rounds);
    for (int s = 0; s < SIDES; s++) {
        r->ms[s] = median(ms[s], a->rounds);
        r->best[s] = ms[s][0];
        for (int i = 1; i < a->rounds; i++)
            r->best[s] = fmin(r->best[s], ms[s][i]);
    }
}

static void bench(result *r, const char *name, const char *dims, const library *libs, const arguments *a,
                  const driver *d) {
    side sides[SIDES] = {{.lib = &libs[OLD]}, {.lib = &libs[NEW]}};
    epi_tensor_shape shapes[MAX_TENSORS];
    const char *plain = strrchr(name, ':') ? strrchr(name, ':') + 1 : name;
    size_t workspace = 0;
    *r = (result){0};
    snprintf(r->program, sizeof r->program, "%s", plain);
    for (int s = 0; s < SIDES; s++) {
        epi_kernel_info info;
        compile(&sides[s], name, dims, a, r);
        libs[s].kernel_get_info_sized(sides[s].kernel, &info, sizeof info);
        snprintf(r->config[s], sizeof r->config[s], "%s", info.micro);
        size_t bytes = libs[s].kernel_workspace(sides[s].kernel);
        workspace = bytes > workspace ? bytes : workspace;
    }
    sides[OLD].workspace = sides[NEW].workspace = allocate(&libs[OLD], workspace);
    const epi_program *program = libs[OLD].module_find(sides[OLD].module, plain);
    int count = libs[OLD].program_tensor_count(program);
    if (count > MAX_TENSORS)
        fail("%s has too many tensors", plain);
    int inputs = make_tensors(sides, program, shapes, count);
    run(&sides[OLD], count, d);
    run(&sides[NEW], count, d);
    compare(r, sides, shapes, inputs, count, a);
    for (int i = inputs; i < count;
         i++) { /* both are timed on the same memory: where it lies has an effect */
        release(&libs[OLD], sides[NEW].tensors[i].data);
        sides[NEW].tensors[i] = sides[OLD].tensors[i];
    }
    if (r->agrees)
        measure(r, sides, count, a, d);
    for (int i = 0; i < count; i++)
        release(&libs[OLD], sides[OLD].tensors[i].data);
    release(&libs[OLD], sides[OLD].workspace);
    for (int s = 0; s < SIDES; s++) {
        libs[s].kernel_free(sides[s].kernel);
        libs[s].module_free(sides[s].module);
    }
}

/* ---- the report ---- */

static void print_row(const result *r) {
    printf("%-20s %-28s ", r->program, r->dims);
    if (r->agrees)
        printf("%9.4f %9.4f %8.4f %8.4f %8.1e\n", r->ms[OLD], r->ms[NEW], r->ratio,
               r->best[NEW] / r->best[OLD], r->difference);
    else
        printf("DIFFERENT: tensor %s by %.2e of its largest value, %.2e is explained\n", r->worst_tensor,
               r->difference, r->allowed);
    fflush(stdout);
}

static void put_row(FILE *f, const result *r, bool last) {
    fprintf(f,
            "  {\"program\": \"%s\", \"dims\": \"%s\", \"old_ms\": %.6g, \"new_ms\": %.6g, \"ratio\": %.5f, "
            "\"old_best_ms\": %.6g, \"new_best_ms\": %.6g, \"old_config\": \"%s\", \"new_config\": \"%s\", "
            "\"difference\": %.3g, \"allowed\": %.3g, \"pairs\": %d}%s\n",
            r->program, r->dims, r->ms[OLD], r->ms[NEW], r->ratio, r->best[OLD], r->best[NEW], r->config[OLD],
            r->config[NEW], r->difference, r->allowed, r->pairs, last ? "" : ",");
}

static void write_report(const arguments *a, const library *lib, const result *all, int count, double mean,
                         double worst) {
    char date[32];
    time_t t = time(NULL);
    epi_device_info device;
    epi_error err = {0};
    strftime(date, sizeof date, "%Y-%m-%d", localtime(&t));
    check(lib, lib->device_get_sized(lib->ctx, lib->device, &device, sizeof device), &err, "device");
    FILE *f = fopen(a->out, "w");
    if (!f)
        fail("%s cannot be written", a->out);
    fprintf(f, "{\"old\": \"%s\", \"new\": \"%s\", \"date\": \"%s\", \"device\": \"%s\", \"type\": \"%s\",\n",
            a->commit[OLD], a->commit[NEW], date, device.model,
            a->type == EPI_F32    ? "f32"
            : a->type == EPI_BF16 ? "bf16"
                                  : "f16");
    fprintf(
        f,
        " \"rounding\": \"%s\", \"threads\": %d, \"geometric_mean\": %.5f, \"worst\": %.5f,\n \"rows\": [\n",
        a->rounding == EPI_ROUND_EXACT ? "exact" : "packed", a->threads ? a->threads : device.threads, mean,
        worst);
    for (int i = 0; i < count; i++)
        put_row(f, &all[i], i == count - 1);
    fprintf(f, " ]}\n");
    if (fclose(f))
        fail("%s cannot be written", a->out);
}

/* ---- the command ---- */

static void take_option(arguments *a, const char *name, const char *value) {
    if (!value)
        fail("%s wants a value", name);
    if (!strcmp(name, "--type"))
        a->type = !strcmp(value, "f32")    ? EPI_F32
                  : !strcmp(value, "bf16") ? EPI_BF16
                  : !strcmp(value, "f16")  ? EPI_F16
                                           : EPI_DTYPE_COUNT;
    else if (!strcmp(name, "--rounding"))
        a->rounding = !strcmp(value, "exact") ? EPI_ROUND_EXACT : EPI_ROUND_PACKED;
    else if (!strcmp(name, "--threads"))
        a->threads = atoi(value);
    else if (!strcmp(name, "--rounds"))
        a->rounds = atoi(value);
    else if (!strcmp(name, "--size"))
        a->size = atoll(value);
    else if (!strcmp(name, "--dims"))
        a->dims = value;
    else if (!strcmp(name, "--out"))
        a->out = value;
    else if (!strcmp(name, "--old-commit"))
        a->commit[OLD] = value;
    else if (!strcmp(name, "--new-commit"))
        a->commit[NEW] = value;
    else
        fail("there is no option %s", name);
}

static void take_arguments(arguments *a, int argc, char **argv) {
    int paths = 0;
    *a = (arguments){.commit = {"unknown", "unknown"}};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--gpu"))
            a->gpu = true;
        else if (!strcmp(argv[i], "--rows"))
            a->rows = true;
        else if (!strncmp(argv[i], "--", 2)) {
            take_option(a, argv[i], argv[i + 1]);
            i++;
        } else if (paths < SIDES)
            a->path[paths++] = argv[i];
        else if (a->name_count < MAX_NAMES)
            a->names[a->name_count++] = argv[i];
        else
            fail("too many programs");
    }
    if (paths < SIDES || a->type == EPI_DTYPE_COUNT)
        fail("usage: ab OLD.so NEW.so [--gpu] [--rows] [--type f32|bf16|f16] [--rounding packed|exact] "
             "[--threads N] [--rounds N] [--size N | --dims T=8192,D=4096] [--out FILE.json] "
             "[--old-commit NAME] [--new-commit NAME] [PROGRAM...]");
    if (a->rounds <= 0)
        a->rounds = a->gpu ? 60 : 21;
    if (a->rounds > MAX_ROUNDS)
        a->rounds = MAX_ROUNDS;
    if (a->size <= 0)
        a->size = a->gpu ? 4096 : 1024;
}

int main(int argc, char **argv) {
    static result all[MAX_NAMES];
    arguments a;
    library libs[SIDES];
    driver d = {0};
    take_arguments(&a, argc, argv);
    for (int s = 0; s < SIDES; s++)
        open_library(&libs[s], a.path[s], a.gpu);
    if (a.gpu)
        open_driver(&d, &libs[OLD]);
    const entry *set = a.rows ? rows : products;
    int count = a.name_count ? a.name_count
                : a.rows     ? (int)(sizeof rows / sizeof *rows)
                             : (int)(sizeof products / sizeof *products);
    bool agree = true;
    double logs = 0, worst = 0;
    printf("%-20s %-28s %9s %9s %8s %8s %8s\n", "program", "dims", "old ms", "new ms", "new/old", "best",
           "differs");
    for (int i = 0; i < count; i++) {
        bench(&all[i], a.name_count ? a.names[i] : set[i].program, a.name_count ? NULL : set[i].dims, libs,
              &a, &d);
        print_row(&all[i]);
        agree &= all[i].agrees;
        logs += all[i].agrees ? log(all[i].ratio) : 0;
        worst = fmax(worst, all[i].ratio);
    }
    double mean = exp(logs / count);
    if (agree)
        printf("geometric mean %.4f, worst %.4f\n", mean, worst);
    if (agree && a.out)
        write_report(&a, &libs[OLD], all, count, mean, worst);
    if (a.gpu)
        release(&libs[OLD], d.flush);
    for (int s = 0; s < SIDES; s++)
        libs[s].context_close(libs[s].ctx);
    return agree ? 0 : 1;
}
