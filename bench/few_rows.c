/* few_rows.c: products of few rows on the CPU beside a loop that only reads their weights.
 *
 *     few_rows [--threads N] [--rounds N] [--columns N] [--depth K] [--out FILE] [ROWS...]
 *
 * c = a @ b, 4096 x 4096 unless told otherwise, in f32, bf16 and f16, with b[N,K], whose depth is contiguous,
 * and with b[K,N]. There are as many copies of b as are four times the last-level cache together, and every
 * call takes the next, so that it comes from memory. The loop and the product take turns, copy by copy, and
 * have as many threads; a figure is the median over the rounds, by the clock on the wall: the machine should
 * have nothing else to do. A result file (--out) is for bench/table.c. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "epilog.h"
#include "io/json.h"

#ifndef EPI_COMMIT
#define EPI_COMMIT "unknown"
#endif

enum { MOST_COPIES = 64, MOST_ROUNDS = 99, MOST_THREADS = 256, LAST_LEVEL = 32 << 20 };

static const char *const programs[] = {"p(a[M,K], b[N,K]) -> c[M,N] { c = a @ b }",
                                       "p(a[M,K], b[K,N]) -> c[M,N] { c = a @ b }"};
static const char *const layouts[] = {"[N,K]", "[K,N]"};

/* What is measured, and where it is written to. */
typedef struct bench {
    epi_context *ctx;
    epi_json_writer *out;
    int64_t columns, depth;
    int threads, rounds;
} bench;

typedef struct part {
    const unsigned char *from;
    size_t bytes;
    uint64_t sum;
    pthread_t thread;
} part;

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *read_part(void *at) {
    typedef uint64_t vector __attribute__((vector_size(32)));
    part *p = at;
    vector sum[4] = {{0}};
    for (size_t i = 0; i + sizeof sum <= p->bytes; i += sizeof sum)
        for (int j = 0; j < 4; j++)
            sum[j] ^= *(const vector *)(const void *)(p->from + i + (size_t)j * sizeof *sum);
    sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
    p->sum = sum[0][0] ^ sum[0][1] ^ sum[0][2] ^ sum[0][3];
    return NULL;
}

/* All of it, shared by the threads. */
static uint64_t read_all(const unsigned char *from, size_t bytes, int threads) {
    static part parts[MOST_THREADS];
    uint64_t sum = 0;
    size_t each = bytes / (size_t)threads / 128 * 128;
    int started = 0;
    for (int t = 0; t < threads; t++)
        parts[t] = (part){.from = from + (size_t)t * each, .bytes = each};
    while (started < threads - 1 &&
           pthread_create(&parts[started + 1].thread, NULL, read_part, &parts[started + 1]) == 0)
        started++;
    read_part(&parts[0]);
    for (int t = 1; t < threads; t++) {
        if (t <= started)
            pthread_join(parts[t].thread, NULL);
        else
            read_part(&parts[t]);
        sum ^= parts[t].sum;
    }
    return sum ^ parts[0].sum;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int count) {
    qsort(v, (size_t)count, sizeof *v, compare);
    return v[count / 2];
}

static int fail(const char *what) {
    fprintf(stderr, "few_rows: %s\n", what);
    return 1;
}

static size_t last_level(void) {
#ifdef _SC_LEVEL3_CACHE_SIZE
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (bytes > LAST_LEVEL)
        return (size_t)bytes;
#endif
    return LAST_LEVEL;
}

static void put(const bench *x, const char *type, int64_t rows, int layout, double loop, double product) {
    printf("%-4s %3ld rows, b%s, %ld x %ld, %d threads: the loop %.2f GB/s, the product %.2f GB/s, %.0f %%\n",
           type, (long)rows, layouts[layout], (long)x->columns, (long)x->depth, x->threads, loop, product,
           100 * product / loop);
    fflush(stdout);
    epi_json_put_open(x->out, '{');
    epi_json_put_key(x->out, "type");
    epi_json_put_text(x->out, type);
    epi_json_put_key(x->out, "layout");
    epi_json_put_text(x->out, layouts[layout]);
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"m", rows}, {"n", x->columns}, {"k", x->depth}};
    for (int i = 0; i < 3; i++) {
        epi_json_put_key(x->out, sizes[i].name);
        epi_json_put_integer(x->out, sizes[i].value);
    }
    epi_json_put_key(x->out, "loop_gb_per_s");
    epi_json_put_number(x->out, loop);
    epi_json_put_key(x->out, "gb_per_s");
    epi_json_put_number(x->out, product);
    epi_json_put_close(x->out, '}');
}

/* Numbers from 0.5 to 1, of both signs. */
static void fill(unsigned char *to, size_t count, epi_dtype type) {
    uint64_t s = 1;
    for (size_t i = 0; i < count; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        uint32_t x = (uint32_t)(s >> 32), bits = (x & 0x807fffff) | 0x3f000000;
        uint16_t half = (uint16_t)(type == EPI_F16 ? (x & 0x83ff) | 0x3800 : bits >> 16);
        if (type == EPI_F32)
            memcpy(to + 4 * i, &bits, 4);
        else
            memcpy(to + 2 * i, &half, 2);
    }
}

static int measure(const bench *x, epi_dtype type, int64_t rows, int layout) {
    epi_module *module = NULL;
    epi_kernel *kernel = NULL;
    epi_error err;
    epi_dim_binding dims[] = {{"M", rows}, {"N", x->columns}, {"K", x->depth}};
    epi_options options = EPI_OPTIONS(.dims = dims, .dim_count = 3, .type = type, .threads = x->threads);
    const char *program = programs[layout];
    if (epi_module_parse(x->ctx, program, strlen(program), "few_rows", &module, &err) != EPI_OK ||
        epi_kernel_compile(epi_module_find(module, "p"), &options, &kernel, &err) != EPI_OK)
        return fail(err.message);
    size_t size = type == EPI_F32 ? 4 : 2, bytes = (size_t)(x->columns * x->depth) * size;
    int copies = (int)(4 * last_level() / bytes) + 1;
    copies = copies > MOST_COPIES ? MOST_COPIES : copies;
    size_t a_bytes = (size_t)(rows * x->depth) * size, c_bytes = (size_t)(rows * x->columns) * size;
    unsigned char *b = aligned_alloc(4096, (bytes * (size_t)copies + 4095) / 4096 * 4096),
                  *a = aligned_alloc(64, (a_bytes + 63) / 64 * 64),
                  *c = aligned_alloc(64, (c_bytes + 63) / 64 * 64);
    void *workspace = aligned_alloc(64, (epi_kernel_workspace(kernel) + 64) / 64 * 64);
    if (!a || !b || !c || !workspace)
        return fail("out of memory");
    fill(b, bytes / size * (size_t)copies, type);
    fill(a, a_bytes / size, type);
    double loop[MOST_ROUNDS], ours[MOST_ROUNDS];
    volatile uint64_t sum = 0;
    for (int r = -1; r < x->rounds; r++) {
        double read = 0, run = 0;
        for (int i = 0; i < copies; i++) {
            epi_tensor t[] = {{a, NULL}, {b + bytes * (size_t)((i + copies / 2) % copies), NULL}, {c, NULL}};
            double begin = seconds();
            sum = sum ^ read_all(b + bytes * (size_t)i, bytes, x->threads);
            double middle = seconds();
            if (epi_kernel_run(kernel, t, 3, workspace, &err) != EPI_OK)
                return fail(err.message);
            read += middle - begin;
            run += seconds() - middle;
        }
        if (r >= 0)
            loop[r] = read, ours[r] = run;
    }
    double gb = (double)bytes * copies * 1e-9;
    put(x, epi_dtype_name(type), rows, layout, gb / median(loop, x->rounds), gb / median(ours, x->rounds));
    free(a);
    free(b);
    free(c);
    free(workspace);
    epi_kernel_free(kernel);
    epi_module_free(module);
    return 0;
}

/* What is said of all rows. */
static void put_head(const bench *x) {
    epi_device_info d;
    char date[40];
    time_t now = time(NULL);
    epi_device_get(x->ctx, 0, &d);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    const char *const texts[][2] = {
        {"date", date}, {"commit", EPI_COMMIT}, {"cpu", d.model}, {"micro_kernels", d.features}};
    for (int i = 0; i < 4; i++) {
        epi_json_put_key(x->out, texts[i][0]);
        epi_json_put_text(x->out, texts[i][1]);
    }
    epi_json_put_key(x->out, "threads");
    epi_json_put_integer(x->out, x->threads);
    epi_json_put_key(x->out, "rounds");
    epi_json_put_integer(x->out, x->rounds);
}

int main(int argc, char **argv) {
    epi_text text = {0};
    epi_json_writer writer = {.text = &text};
    bench x = {.out = &writer, .columns = 4096, .depth = 4096, .rounds = 9};
    int64_t rows[16] = {1, 2, 4, 8};
    const char *path = NULL;
    int count = 0, failed = 0;
    x.threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        int64_t n = strtoll(argv[i][0] == '-' ? next : argv[i], NULL, 10);
        if (!strcmp(argv[i], "--out")) {
            path = next;
            i++;
            continue;
        }
        if (n < 1 || count == 16)
            return fail("a number is missing: see the file's first lines");
        if (argv[i][0] != '-') {
            rows[count++] = n;
            continue;
        }
        i++;
        if (!strcmp(argv[i - 1], "--threads"))
            x.threads = n > MOST_THREADS ? MOST_THREADS : (int)n;
        else if (!strcmp(argv[i - 1], "--rounds"))
            x.rounds = n > MOST_ROUNDS ? MOST_ROUNDS : (int)n;
        else if (!strcmp(argv[i - 1], "--columns"))
            x.columns = n;
        else if (!strcmp(argv[i - 1], "--depth"))
            x.depth = n;
        else
            return fail("no such option: see the file's first lines");
    }
    if (epi_context_open(&x.ctx, NULL) != EPI_OK)
        return fail("no context");
    epi_json_put_open(&writer, '{');
    put_head(&x);
    epi_json_put_key(&writer, "rows");
    epi_json_put_open(&writer, '[');
    static const epi_dtype types[] = {EPI_F32, EPI_BF16, EPI_F16};
    for (int layout = 0; layout < 2; layout++)
        for (int t = 0; t < 3; t++)
            for (int i = 0; i < (count ? count : 4); i++)
                failed |= measure(&x, types[t], rows[i], layout);
    epi_json_put_close(&writer, ']');
    epi_json_put_close(&writer, '}');
    FILE *f = path && !failed ? fopen(path, "w") : NULL;
    if (path && !failed && (!f || fprintf(f, "%s\n", text.data) < 0 || fclose(f) != 0))
        failed = fail("the result file cannot be written");
    epi_text_free(&text);
    epi_context_close(x.ctx);
    return failed;
}
