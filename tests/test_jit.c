/* test_jit.c: the cache on disk, NVRTC and the driver: what is damaged is found and made again, what is
 * missing is said in words. Compiling is skipped where NVRTC is missing, running where there is no GPU. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/driver.h"
#include "cuda/jit.h"
#include "harness.h"

static char folder[256];

/* ---- files ---- */

static void path_of(epi_cache_key key, char *path, size_t size) {
    snprintf(path, size, "%s/%s.bin", folder, key.text);
}

static size_t slurp(const char *path, unsigned char *to, size_t size) {
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(to, 1, size, f) : 0;
    if (f)
        fclose(f);
    return n;
}

static void spill(const char *path, const unsigned char *from, size_t size) {
    FILE *f = fopen(path, "wb");
    if (!check(f && fwrite(from, 1, size, f) == size, "cannot write %s", path))
        exit(1);
    fclose(f);
}

/* Calls a function with each file of the folder, and counts them. */
static int each_file(int (*with)(const char *path)) {
    DIR *dir = opendir(folder);
    int count = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char file[1024];
        snprintf(file, sizeof file, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.' && ++count && with)
            with(file);
    }
    if (dir)
        closedir(dir);
    return count;
}

static int shorten(const char *path) {
    return !check(truncate(path, 700) == 0, "truncate %s", path);
}

static epi_cache_key key_of(const char *text) {
    return epi_cache_key_make(&text, 1);
}

/* ---- the cache ---- */

static char note[256]; /* of what the cache did last */

static void write_entry(epi_cache_key key, const void *data, size_t size) {
    epi_cache_write(key, data, size, note, sizeof note);
}

static bool reads_back(epi_cache_key key, const void *expected, size_t expected_size) {
    void *data;
    size_t n;
    bool ok =
        epi_cache_read(key, &data, &n, note, sizeof note) && n == expected_size && !memcmp(data, expected, n);
    free(data);
    return ok;
}

static void round_trip(void) {
    unsigned char data[5000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 7 + i / 256);
    epi_cache_key key = key_of("round trip");
    check(!reads_back(key, data, 0) && !note[0], "absent entry: %s", note);
    for (size_t n = 0; n < sizeof data; n += n < 20 ? 1 : 331) {
        write_entry(key, data, n);
        check(!note[0], "write of %zu bytes: %s", n, note);
        check(reads_back(key, data, n) && !note[0], "read of %zu bytes: %s", n, note);
    }
    check(each_file(NULL) == 1, "one entry and no temporary files");
    struct stat info;
    check(stat(folder, &info) == 0 && (info.st_mode & 0777) == 0700, "the folder is its owner's alone");
    epi_cache_write(key, data, 10, NULL, 0);
    void *back = NULL;
    size_t n;
    check(epi_cache_read(key, &back, &n, NULL, 0) && n == 10 && !memcmp(back, data, 10), "no note wanted");
    free(back);
}

/* A damaged file is not read, removed, and named in the note. */
static void expect_damage(epi_cache_key key, const char *path, const char *what, size_t at) {
    bool read = reads_back(key, "", 0);
    check(!read && strstr(note, "damaged"), "%s at %zu: %s", what, at, read ? "was read" : note);
    check(access(path, F_OK) != 0, "%s at %zu: the entry is still there", what, at);
}

static void damage(void) {
    enum { BYTES = 333 };
    char path[512];
    unsigned char data[BYTES], entry[1024];
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (unsigned char)(i * i);
    epi_cache_key key = key_of("damage");
    path_of(key, path, sizeof path);
    write_entry(key, data, BYTES);
    size_t size = slurp(path, entry, sizeof entry);
    check(size > BYTES && size < sizeof entry, "the entry has %zu bytes", size);
    for (size_t n = 0; n < size; n += 3) {
        spill(path, entry, n);
        expect_damage(key, path, "cut", n);
    }
    for (size_t bit = 0; bit < 8 * size; bit += 5) {
        entry[bit / 8] ^= (unsigned char)(1u << bit % 8);
        spill(path, entry, size);
        entry[bit / 8] ^= (unsigned char)(1u << bit % 8);
        expect_damage(key, path, "flipped bit", bit);
    }
    spill(path, entry, size);
    check(truncate(path, (off_t)size + 1) == 0, "truncate");
    expect_damage(key, path, "one byte more", size);
    epi_cache_key other = key_of("another");
    path_of(other, path, sizeof path);
    spill(path, entry, size);
    expect_damage(other, path, "entry under another's name", 0);
}

static bool same_key(const char *const *a, int m, const char *const *b, int n) {
    return strcmp(epi_cache_key_make(a, m).text, epi_cache_key_make(b, n).text) == 0;
}

static void keys(void) {
    const char *base[] = {"source", "name", "sm_90a", "-v", "13.0"};
    check(same_key(base, 5, base, 5) && strlen(key_of("x").text) == 32, "a key is a function of its parts");
    check(strspn(key_of("").text, "0123456789abcdef") == 32, "a key is hexadecimal");
    for (int i = 0; i < 5; i++) {
        const char *changed[5];
        memcpy(changed, base, sizeof base);
        changed[i] = "other";
        check(!same_key(base, 5, changed, 5), "part %d counts", i);
    }
    const char *lists[][3] = {{"ab", "c", ""}, {"a", "bc", ""}, {"abc", "", ""}, {"", "abc", ""},
                              {"", "", "abc"}, {"a", "b", "c"}, {"ab", "", "c"}};
    enum { LISTS = sizeof lists / sizeof *lists };
    for (int i = 0; i < LISTS; i++)
        for (int j = 0; j < i; j++)
            check(!same_key(lists[i], 3, lists[j], 3), "lists %d and %d are confused", i, j);
    check(!same_key(lists[0], 2, lists[0], 3), "an empty part at the end counts");
    const char *lengths[] = {"12345678", "1234567", "123456789", "12345678\1"}; /* around a whole word */
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            check(!same_key(&lengths[i], 1, &lengths[j], 1), "lengths %d and %d are confused", i, j);
}

/* No two of many similar texts share even half a key. */
static int compare_keys(const void *a, const void *b) {
    return memcmp(a, b, 16);
}

static void keys_spread(void) {
    enum { COUNT = 20000 };
    char(*halves)[16] = malloc(2 * COUNT * sizeof *halves);
    for (int i = 0; i < COUNT && halves; i++) {
        char text[64];
        snprintf(text, sizeof text, "kernel with tile %d", i);
        epi_cache_key key = key_of(text);
        memcpy(halves[i], key.text, 16);
        memcpy(halves[COUNT + i], key.text + 16, 16);
    }
    if (!check(halves != NULL, "memory"))
        return;
    qsort(halves, 2 * COUNT, sizeof *halves, compare_keys);
    int same = 0;
    for (int i = 1; i < 2 * COUNT; i++)
        same += memcmp(halves[i], halves[i - 1], 16) == 0;
    check(same == 0, "%d halves of keys are the same", same);
    free(halves);
}

/* Nothing is stored under such a setting, and nothing goes wrong. */
static void no_cache(const char *setting, bool expect_note) {
    epi_cache_key key = key_of("nowhere");
    setenv("EPILOG_CACHE", setting, 1);
    check(!reads_back(key, "x", 1) && !note[0], "%s: read: %s", setting, note);
    write_entry(key, "x", 1);
    check(expect_note == (note[0] != 0), "%s: write: \"%s\"", setting, note);
    check(!reads_back(key, "x", 1), "%s: nothing was stored", setting);
    setenv("EPILOG_CACHE", folder, 1);
}

static void bad_folders(void) {
    char path[512], below[520];
    snprintf(path, sizeof path, "%s/a-file", folder);
    snprintf(below, sizeof below, "%s/below", path);
    spill(path, (const unsigned char *)"x", 1);
    no_cache(path, true);
    no_cache(below, true);
    no_cache("/proc/epilog-test", true);
    no_cache("/dev/null", true);
    no_cache("off", false);
    unlink(path);
    snprintf(path, sizeof path, "%s-locked", folder);
    mkdir(path, 0500);
    if (access(path, W_OK) != 0) /* root may write everywhere */
        no_cache(path, true);
    rmdir(path);
}

/* Where the entry goes without EPILOG_CACHE. */
static void standard_folders(void) {
    char path[512];
    epi_cache_key key = key_of("standard");
    unsetenv("EPILOG_CACHE");
    char *home = getenv("HOME"), *saved = home ? strdup(home) : NULL;
    setenv("XDG_CACHE_HOME", folder, 1);
    write_entry(key, "x", 1);
    snprintf(path, sizeof path, "%s/epilog/%s.bin", folder, key.text);
    check(unlink(path) == 0, "XDG_CACHE_HOME: %s", note);
    snprintf(path, sizeof path, "%s/epilog", folder);
    rmdir(path);
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", folder, 1);
    write_entry(key, "x", 1);
    snprintf(path, sizeof path, "%s/.cache/epilog/%s.bin", folder, key.text);
    check(unlink(path) == 0, "HOME, and a relative XDG_CACHE_HOME: %s", note);
    for (int i = 0; i < 2; i++) {
        *strrchr(path, '/') = 0;
        rmdir(path);
    }
    unsetenv("HOME");
    unsetenv("XDG_CACHE_HOME");
    write_entry(key, "x", 1);
    check(!reads_back(key, "x", 1), "no folder at all");
    if (saved)
        setenv("HOME", saved, 1);
    free(saved);
    setenv("EPILOG_CACHE", folder, 1);
}

/* Writes and reads one key over and over; returns 0 if it never saw half an entry. */
static int race(epi_cache_key key, const unsigned char *data, size_t size) {
    for (int i = 0; i < 100; i++) {
        write_entry(key, data, size);
        if (note[0] || !reads_back(key, data, size) || note[0])
            return 1;
    }
    return 0;
}

static void races(void) {
    static unsigned char data[100000];
    memset(data, 7, sizeof data);
    epi_cache_key key = key_of("race");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(race(key, data, sizeof data));
    int status = 1;
    check(race(key, data, sizeof data) == 0, "the parent lost the race");
    waitpid(child, &status, 0);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child lost the race");
}

/* ---- compiling ---- */

static void in_child(int (*body)(void), const char *what) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(body());
    int status = 1;
    waitpid(child, &status, 0);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s", what);
}

static const char plain[] = "extern \"C\" __global__ void add_one(float *p) { p[threadIdx.x] += 1; }\n";
/* An array indexed with a number known at run time has to live in memory. */
static const char framed[] = "extern \"C\" __global__ void framed(int *p, int n) {\n"
                             "    int a[200];\n"
                             "    for (int i = 0; i < n; i++) a[p[i]] = i;\n"
                             "    p[0] = a[p[n]] + a[p[n + 1]];\n"
                             "}\n";
/* Eighty values in use at once, where the launch bounds leave 32 registers. */
static const char spilled[] =
    "extern \"C\" __global__ void __launch_bounds__(1024, 2) spilled(float *p) {\n"
    "    float a[80];\n"
    "    _Pragma(\"unroll\") for (int i = 0; i < 80; i++) a[i] = p[threadIdx.x + 1024 * i];\n"
    "    __syncthreads();\n"
    "    _Pragma(\"unroll\") for (int i = 0; i < 80; i++) p[threadIdx.x * 80 + i] = a[79 - i] * a[(i * 7) % "
    "80];\n"
    "}\n";
/* The assembler says C7508 to a setmaxnreg in a kernel of unknown register count. */
static const char warned[] = "extern \"C\" __global__ void warned(int *p) {\n"
                             "    asm volatile(\"setmaxnreg.inc.sync.aligned.u32 232;\");\n"
                             "    p[0] = 1;\n"
                             "}\n";

static bool compiles(const char *source, const char *name, const char *arch, bool keep_slow, epi_cubin *cubin,
                     epi_error *err) {
    epi_jit_item item = {.source = source, .name = name, .arch = arch, .keep_slow = keep_slow};
    epi_status status = epi_jit_compile(&item);
    *cubin = item.cubin;
    *err = item.error;
    check(status == err->status && status == item.status, "%s: the status is in the error", name);
    check((status == EPI_OK) == (cubin->data != NULL), "%s: a cubin or an error", name);
    return status == EPI_OK;
}

static void compile_and_reload(const char *arch) {
    epi_cubin first, again;
    epi_error err;
    bool ok = compiles(plain, "add_one", arch, false, &first, &err);
    if (!check(ok, "%s: %s", arch, err.message))
        return;
    check(!first.cached && first.registers > 0 && first.size > 100 && !first.note[0], "%s: %d registers, %s",
          arch, first.registers, first.note);
    check(memcmp(first.data, "\177ELF", 4) == 0, "%s: a cubin is an ELF file", arch);
    double least = 1;
    for (int i = 0; i < 5; i++) { /* the least of five: another process may be in the way of one */
        ok = compiles(plain, "add_one", arch, false, &again, &err);
        check(ok && again.cached && again.size == first.size && again.registers == first.registers &&
                  memcmp(again.data, first.data, first.size) == 0,
              "%s: from the cache: %s", arch, err.message);
        least = again.seconds < least ? again.seconds : least;
        epi_cubin_free(&again);
    }
    check(least < 5e-3, "%s: from the cache it takes %.1f ms", arch, 1e3 * least);
    printf("%s: compiled in %.1f ms, from the cache in %.3f ms\n", arch, 1e3 * first.seconds, 1e3 * least);
    epi_cubin_free(&first);
}

/* A damaged entry is compiled again, and the note says so. */
static void compile_over_damage(void) {
    epi_cubin cubin;
    epi_error err;
    each_file(unlink);
    compiles(plain, "add_one", "sm_90a", false, &cubin, &err);
    epi_cubin_free(&cubin);
    each_file(shorten);
    static const struct {
        bool cached;
        const char *note; /* it has */
    } runs[] = {{false, "damaged"}, {true, ""}, {false, "cannot be written"}};
    for (int i = 0; i < 3; i++) { /* compiled again, and stored again; and without a cache */
        setenv("EPILOG_CACHE", i < 2 ? folder : "/proc/epilog-test", 1);
        bool ok = compiles(plain, "add_one", "sm_90a", false, &cubin, &err);
        check(ok && cubin.cached == runs[i].cached && strstr(cubin.note, runs[i].note) &&
                  !cubin.note[0] == !runs[i].note[0],
              "compiled over damage, %d: %s", i, cubin.note);
        epi_cubin_free(&cubin);
    }
    setenv("EPILOG_CACHE", folder, 1);
}

static void compile_errors(void) {
    static const char broken[] = "extern \"C\" __global__ void k(float *p) {\n    p[0] = nothing;\n}\n",
                      instruction[] =
                          "extern \"C\" __global__ void k(float *p) { asm volatile(\"foo.bar;\"); }";
    static const char *const cases[][4] = {
        /* a text, an architecture, and what is said */
        {broken, "sm_90a", "does not compile: k.cu(2): error: identifier \"nothing\" is undefined", ""},
        {instruction, "sm_90a", "ptxas", "line"},
        {plain, "sm_1", "sm_1", "gpu-architecture"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        epi_cubin cubin;
        epi_error err;
        check(!compiles(cases[i][0], "k", cases[i][1], false, &cubin, &err) &&
                  err.status == EPI_ERR_UNSUPPORTED && strstr(err.message, cases[i][2]) &&
                  strstr(err.message, cases[i][3]),
              "%s for %s: %s", cases[i][0], cases[i][1], err.message);
    }
}

/* Refused unless slow code is wanted, whether it was compiled now or found in the cache. */
static void compile_slow(const char *source, const char *name, const char *reason) {
    epi_cubin cubin;
    epi_error err;
    for (int i = 0; i < 2; i++) {
        check(!compiles(source, name, "sm_90a", false, &cubin, &err) && err.status == EPI_ERR_UNSUPPORTED &&
                  strstr(err.message, reason) && cubin.cached == (i > 0),
              "%s refused: %s", name, err.message);
        check(compiles(source, name, "sm_90a", true, &cubin, &err) && cubin.cached && cubin.registers > 0,
              "%s wanted: %s", name, err.message);
        epi_cubin_free(&cubin);
    }
}

static void compile_many(void) {
    epi_jit_item items[] = {{.source = plain, .name = "add_one", .arch = "sm_89"},
                            {.source = framed, .name = "framed", .arch = "sm_80", .keep_slow = true},
                            {.source = framed, .name = "framed", .arch = "sm_86"},
                            {.source = "what?", .name = "nothing", .arch = "sm_80"},
                            {.source = plain, .name = "add_one", .arch = "sm_86"},
                            {.source = plain, .name = "add_one", .arch = "sm_90"}};
    enum { COUNT = sizeof items / sizeof *items };
    epi_jit_compile_all(items, COUNT);
    for (int i = 0; i < COUNT; i++) {
        bool expected = i != 2 && i != 3;
        check((items[i].status == EPI_OK) == expected && (items[i].cubin.data != NULL) == expected &&
                  (items[i].error.message[0] == 0) == expected,
              "item %d of many: %s", i, items[i].error.message);
        epi_cubin_free(&items[i].cubin);
    }
    epi_jit_compile_all(NULL, 0);
}

static int compile_first(void) {
    epi_cubin cubin;
    epi_error err;
    return !compiles(plain, "add_one", "sm_90a", false, &cubin, &err) || cubin.cached;
}

static bool nvrtc_is_open(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    bool found = false;
    for (char line[1024]; maps && fgets(line, sizeof line, maps);)
        found |= strstr(line, "libnvrtc") != NULL;
    if (maps)
        fclose(maps);
    return found;
}

/* What one process compiled another loads, without opening NVRTC, which would take longer than all else. */
static void second_process(void) {
    in_child(compile_first, "a process that compiles");
    if (nvrtc_is_open()) /* only the loader knew where it is */
        return;
    epi_cubin cubin;
    epi_error err;
    check(compiles(plain, "add_one", "sm_90a", false, &cubin, &err) && cubin.cached, "another: %s",
          err.message);
    check(cubin.seconds < 5e-3, "loaded in %.3f ms", 1e3 * cubin.seconds);
    check(!nvrtc_is_open(), "NVRTC was opened for an entry of the cache");
    epi_cubin_free(&cubin);
    each_file(unlink);
}

static void compiling(void) {
    second_process();
    compile_and_reload("sm_90a");
    compile_and_reload("sm_80");
    compile_over_damage();
    compile_errors();
    compile_slow(framed, "framed", "stack frame of");
    compile_slow(spilled, "spilled", "registers are spilled");
    compile_slow(warned, "warned", "(C7508)");
    compile_many();
}

/* A missing NVRTC, each time in a process of its own: the library is looked for once per process. */
static int expect_absent(void) {
    char why[300];
    epi_jit_item item = {.source = plain, .name = "add_one", .arch = "sm_90a"};
    setenv("EPILOG_NVRTC", "/nonexistent/libnvrtc.so", 1);
    bool there = epi_jit_available(why, sizeof why);
    epi_status status = epi_jit_compile(&item);
    return there || !strstr(why, "/nonexistent/libnvrtc.so") || status != EPI_ERR_UNSUPPORTED ||
           strcmp(item.error.message, why) != 0 || item.cubin.data;
}

static int expect_unusable(void) {
    char path[512];
    epi_jit_item item = {.source = plain, .name = "add_one", .arch = "sm_90a"};
    snprintf(path, sizeof path, "%s/libnvrtc.so", folder);
    spill(path, (const unsigned char *)"no library", 10);
    setenv("EPILOG_NVRTC", path, 1);
    epi_status status = epi_jit_compile(&item);
    unlink(path);
    return status != EPI_ERR_UNSUPPORTED || !strstr(item.error.message, "cannot be used") || item.cubin.data;
}

/* ---- the driver ---- */

static void without_device(void) {
    epi_cuda none = {.why = "a test"};
    epi_cuda_launch launch = {.grid = 1, .block = 32};
    epi_tensor_map map;
    epi_cu_library_handle library;
    epi_cu_function_handle function;
    epi_error err = {0};
    void *p = &err;
    uint64_t sizes[] = {64};
    uint32_t box[] = {64};
    refused_as(epi_cuda_use(&none, 0, &err), EPI_ERR_UNSUPPORTED, &err, "a test");
    check(epi_cuda_alloc(&none, 16, &p, &err) != EPI_OK && !p, "alloc");
    check(epi_cuda_free(&none, &err, &err) != EPI_OK && epi_cuda_free(&none, NULL, &err) == EPI_OK, "free");
    check(epi_cuda_copy(&none, &launch, &launch, 0, &err) != EPI_OK, "copy");
    check(epi_cuda_fill(&none, &launch, 0, 1, &err) != EPI_OK, "fill");
    check(epi_cuda_wait(&none, NULL) != EPI_OK, "wait");
    check(epi_cuda_load(&none, "", "k", 0, &library, &function, &err) != EPI_OK && !library && !function,
          "load");
    epi_cuda_unload(&none, library);
    check(epi_cuda_start(&none, &launch, &err, NULL, &err) != EPI_OK, "start");
    check(epi_cuda_map(&none, &map, EPI_F32, 1, &err, sizes, NULL, box, 0, &err) != EPI_OK, "map");
    check(epi_cuda_event_record(&none, NULL, NULL, &err) != EPI_OK, "record");
    epi_cuda_close(&none);
    epi_cuda_close(&none);
}

/* A kernel that has all that a launch can say: clusters, overlap, shared memory, one struct of arguments. */
static const char block_sums[] =
    "struct arguments { const float *x; float *sums; int n; };\n"
    "extern \"C\" __global__ void block_sums(const __grid_constant__ arguments a) {\n"
    "    extern __shared__ float s[];\n"
    "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    unsigned size = 1;\n"
    "#if __CUDA_ARCH__ >= 900\n"
    "    asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");\n"
    "    asm(\"mov.u32 %0, %%cluster_nctaid.x;\" : \"=r\"(size));\n"
    "#endif\n"
    "    s[threadIdx.x] = i < a.n ? a.x[i] : 0;\n"
    "    __syncthreads();\n"
    "    for (int h = blockDim.x / 2; h > 0; h /= 2) {\n"
    "        if (threadIdx.x < h) s[threadIdx.x] += s[threadIdx.x + h];\n"
    "        __syncthreads();\n"
    "    }\n"
    "    if (threadIdx.x == 0) { a.sums[2 * blockIdx.x] = s[0]; a.sums[2 * blockIdx.x + 1] = (float)size; }\n"
    "}\n";

enum { BLOCKS = 16, THREADS = 128, ELEMENTS = BLOCKS * THREADS - 5, SHARED = 96 * 1024 };

typedef struct arguments {
    const float *x;
    float *sums;
    int n;
} arguments;

static void run_sums(epi_cuda *cuda, epi_cu_function_handle function, unsigned cluster, bool overlap) {
    epi_error err = {0};
    epi_cuda_launch launch = {function, BLOCKS, THREADS, cluster, SHARED, overlap};
    float host[2 * BLOCKS], in[ELEMENTS];
    void *x = NULL, *sums = NULL;
    for (int i = 0; i < ELEMENTS; i++)
        in[i] = (float)(i % 7);
    bool ok = epi_cuda_alloc(cuda, sizeof in, &x, &err) == EPI_OK &&
              epi_cuda_alloc(cuda, sizeof host, &sums, &err) == EPI_OK &&
              epi_cuda_fill(cuda, sums, 0xff, sizeof host, &err) == EPI_OK &&
              epi_cuda_copy(cuda, x, in, sizeof in, &err) == EPI_OK &&
              epi_cuda_start(cuda, &launch, &(arguments){x, sums, ELEMENTS}, NULL, &err) == EPI_OK &&
              epi_cuda_wait(cuda, &err) == EPI_OK &&
              epi_cuda_copy(cuda, host, sums, sizeof host, &err) == EPI_OK;
    check(ok, "a kernel in clusters of %u: %s", cluster, err.message);
    for (int b = 0; b < BLOCKS && ok; b++) {
        float sum = 0;
        for (int i = b * THREADS; i < (b + 1) * THREADS && i < ELEMENTS; i++)
            sum += in[i];
        check(host[2 * b] == sum && host[2 * b + 1] == (float)(cluster > 1 ? cluster : 1),
              "block %d: %g in %g", b, (double)host[2 * b], (double)host[2 * b + 1]);
    }
    check(epi_cuda_free(cuda, x, &err) == EPI_OK && epi_cuda_free(cuda, sums, &err) == EPI_OK, "%s",
          err.message);
}

static void run_maps(epi_cuda *cuda) {
    epi_error err = {0};
    epi_tensor_map map;
    void *data;
    uint64_t sizes[] = {256, 100}, strides[] = {512};
    uint32_t box[] = {64, 64};
    check(epi_cuda_alloc(cuda, 256 * 100 * 2, &data, &err) == EPI_OK, "%s", err.message);
    check(epi_cuda_map(cuda, &map, EPI_BF16, 2, data, sizes, strides, box, 128, &err) == EPI_OK, "%s",
          err.message);
    strides[0] = 500; /* no multiple of 16 */
    check(epi_cuda_map(cuda, &map, EPI_BF16, 2, data, sizes, strides, box, 128, &err) != EPI_OK &&
              strstr(err.message, "refused a tensor map: CUDA_ERROR"),
          "%s", err.message);
    check(epi_cuda_map(cuda, &map, EPI_BF16, 9, data, sizes, strides, box, 128, &err) == EPI_ERR_ARGUMENT,
          "rank 9");
    check(epi_cuda_map(cuda, &map, EPI_BF16, 2, data, sizes, strides, box, 100, &err) == EPI_ERR_ARGUMENT,
          "a swizzle of 100 bytes");
    epi_cuda_free(cuda, data, &err);
}

static void run_kernel(epi_cuda *cuda, const epi_cuda_device *d) {
    epi_error err = {0};
    epi_cubin cubin;
    epi_cu_library_handle library;
    epi_cu_function_handle function;
    char arch[16];
    snprintf(arch, sizeof arch, "sm_%d%d", d->major, d->minor);
    bool ok = compiles(block_sums, "block_sums", arch, false, &cubin, &err);
    if (!check(ok, "%s", err.message))
        return;
    check(epi_cuda_load(cuda, cubin.data, "another", 0, &library, &function, &err) != EPI_OK && !library,
          "a kernel that is not there: %s", err.message);
    ok = epi_cuda_load(cuda, cubin.data, "block_sums", SHARED, &library, &function, &err) == EPI_OK;
    epi_cubin_free(&cubin);
    if (!check(ok, "%s", err.message))
        return;
    run_sums(cuda, function, 0, false);
    if (d->major >= 9) {
        run_sums(cuda, function, 1, true);
        run_sums(cuda, function, 2, false);
        run_sums(cuda, function, 4, true);
        run_maps(cuda);
    }
    epi_cuda_unload(cuda, library);
}

static void *use_device(void *cuda) {
    epi_error err;
    for (int i = 0; i < 1000; i++)
        if (epi_cuda_use(cuda, i % ((epi_cuda *)cuda)->count, &err) != EPI_OK)
            return cuda;
    return NULL;
}

static void with_devices(epi_cuda *cuda) {
    pthread_t threads[4];
    epi_error err;
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, use_device, cuda);
    for (int i = 0; i < 4; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        check(!wrong, "threads that use the devices at once");
    }
    char why[300];
    for (int i = 0; i < cuda->count; i++) {
        const epi_cuda_device *d = &cuda->devices[i];
        printf("%s: %s, %s\n", d->name, d->model, d->features);
        check(d->major > 0 && d->multiprocessors > 0 && d->memory > 0, "%s", d->features);
        check(epi_cuda_use(cuda, i, &err) == EPI_OK, "use: %s", err.message);
        if (epi_jit_available(why, sizeof why) && d->major >= 8)
            run_kernel(cuda, d);
    }
}

static void driver(void) {
    without_device();
    static epi_cuda cuda;
    epi_error err = {0};
    for (int i = 0; i < 2; i++) { /* opened again, it works again */
        epi_cuda_open(&cuda);
        check((cuda.count > 0) == (cuda.why[0] == 0), "%d devices and \"%s\"", cuda.count, cuda.why);
        check(epi_cuda_use(&cuda, cuda.count, &err) != EPI_OK && err.message[0], "a device too many");
        check(epi_cuda_use(&cuda, -1, &err) != EPI_OK, "device -1");
        if (cuda.count > 0)
            with_devices(&cuda);
        else
            printf("no GPU, kernels are not run: %s\n", cuda.why);
        epi_cuda_close(&cuda);
    }
}

/* ---- plain texts ---- */

static bool same_plain(const char *a, const char *b) {
    char *x = epi_plain_text(a), *y = epi_plain_text(b);
    bool same = x && y && !strcmp(x, y);
    free(x);
    free(y);
    return same;
}

/* Names of values and comments do not count; which value is used where does. */
static void plain_texts(void) {
    static const struct {
        const char *a, *b;
        bool same;
    } rows[] = {
        {"h_v0_0 = g_v12 + h_v0_0; // line 3", "gate_v0_0 = t7_v12 + gate_v0_0; // line 12", true},
        {"d_v51_v7 = d_v50_v6;", "d_v49_v7 = x_v6;", true},
        {"S.t5_v1_g[h] = 1;\nx", "S.mean_v1_g[h] = 1;\nx", true},
        {"a_v0 = b_v0 + a_v0;", "a_v0 = b_v0 + b_v0;", false},
        {"a_v0 = b_v0 + a_v0;", "x_v0 = x_v0 + x_v0;", false},
        {"a_v0 = b_v1;", "a_v0 = b_v2;", false},
        {"a_v0_0", "a_v0_1", false},
        {"n0_v0 + a_v0", "n1_v0 + n0_v0", true},
        {"n1_v0 + n0_v0 + n1_v0", "n0_v0 + n1_v0 + n1_v0", false},
        {"_v0 = a;", "_v0 = b;", false},
        {"first", "second", false},
        {"0x1_v0", "0x2_v0", false},
        {"\"a_v0 // b\" x", "\"c_v0 // b\" x", false},
        {"\"a\\\" // b\"", "\"a\\\" // c\"", false},
        {"\"open // a", "\"open // b", false},
        {"a / b // c", "a / b ", true},
        {"", "// all of it", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check(same_plain(rows[i].a, rows[i].b) == rows[i].same, "plain texts of %s and %s", rows[i].a,
              rows[i].b);
    char many[40 * 1000], *to = many;
    for (int i = 0; i < 1000; i++)
        to += sprintf(to, "w%d_v%d=w%d_v0;", i, i, 999 - i);
    char *plain = epi_plain_text(many);
    check(plain && strstr(plain, "n999_v0"), "names of a thousand words");
    free(plain);
}

int main(void) {
    char parent[] = "/tmp/epilog-test-XXXXXX", why[300];
    if (!mkdtemp(parent))
        return 1;
    snprintf(folder, sizeof folder, "%s/made/on/demand", parent);
    setenv("EPILOG_CACHE", folder, 1);
    round_trip();
    damage();
    keys();
    keys_spread();
    plain_texts();
    bad_folders();
    standard_folders();
    races();
    in_child(expect_absent, "a missing NVRTC");
    in_child(expect_unusable, "a file that is no library");
    if (epi_jit_available(why, sizeof why))
        compiling();
    else
        printf("kernels are not compiled: %s\n", why);
    driver();
    each_file(unlink);
    for (char *end; strcmp(folder, "/tmp") != 0 && rmdir(folder) == 0; *end = 0)
        end = strrchr(folder, '/');
    return finish();
}
