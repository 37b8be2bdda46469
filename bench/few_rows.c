/* few_rows.c: products of few rows on the CPU beside a loop that only reads their weights.
 *
 *     few_rows [--threads N] [--rounds N] [--columns N] [--depth K] [ROWS...]
 *
 * c = a @ b with b[N,K], 4096 x 4096 unless told otherwise, in f32 and bf16. There are as many copies of b as
 * are four times the last-level cache together, and every call takes the next, so that it comes from memory.
 * In each round the loop and the product go once over all copies, in turn; the figures are medians over the
 * rounds. The loop has as many threads as the product. It uses the public interface alone. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "epilog.h"

enum { MOST_COPIES = 64, MOST_ROUNDS = 99, MOST_THREADS = 256, LAST_LEVEL = 32 << 20 };

static const char program[] = "p(a[M,K], b[N,K]) -> c[M,N] { c = a @ b }";

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

static int measure(epi_context *ctx, epi_dtype type, int64_t rows, int64_t columns, int64_t depth,
                   int threads, int rounds) {
    epi_module *module = NULL;
    epi_kernel *kernel = NULL;
    epi_error err;
    epi_dim_binding dims[] = {{"M", rows}, {"N", columns}, {"K", depth}};
    epi_options options = EPI_OPTIONS(.dims = dims, .dim_count = 3, .type = type, .threads = threads);
    if (epi_module_parse(ctx, program, strlen(program), "few_rows", &module, &err) != EPI_OK ||
        epi_kernel_compile(epi_module_find(module, "p"), &options, &kernel, &err) != EPI_OK)
        return fail(err.message);
    size_t size = type == EPI_F32 ? 4 : 2, bytes = (size_t)(columns * depth) * size;
    int copies = (int)(4 * last_level() / bytes) + 1;
    copies = copies > MOST_COPIES ? MOST_COPIES : copies;
    size_t a_bytes = (size_t)(rows * depth) * size, c_bytes = (size_t)(rows * columns) * size;
    unsigned char *b = aligned_alloc(4096, (bytes * (size_t)copies + 4095) / 4096 * 4096),
                  *a = aligned_alloc(64, (a_bytes + 63) / 64 * 64),
                  *c = aligned_alloc(64, (c_bytes + 63) / 64 * 64);
    void *workspace = aligned_alloc(64, (epi_kernel_workspace(kernel) + 64) / 64 * 64);
    if (!a || !b || !c || !workspace)
        return fail("out of memory");
    uint64_t s = 1;
    for (size_t i = 0; i < bytes * (size_t)copies / size; i++) { /* normal numbers of both signs */
        s = s * 6364136223846793005u + 1442695040888963407u;
        uint32_t x = (uint32_t)(s >> 32), bits = (x & 0x807fffff) | 0x3f000000;
        memcpy(b + i * size, (const unsigned char *)&bits + (4 - size), size);
        if (i * size < a_bytes)
            memcpy(a + i * size, (const unsigned char *)&bits + (4 - size), size);
    }
    double loop[MOST_ROUNDS], ours[MOST_ROUNDS];
    uint64_t sum = 0;
    for (int r = -1; r < rounds; r++) {
        double begin = seconds();
        for (int i = 0; i < copies; i++)
            sum ^= read_all(b + bytes * (size_t)i, bytes, threads);
        double middle = seconds();
        for (int i = 0; i < copies; i++) {
            epi_tensor t[] = {{a, NULL}, {b + bytes * (size_t)i, NULL}, {c, NULL}};
            if (epi_kernel_run(kernel, t, 3, workspace, &err) != EPI_OK)
                return fail(err.message);
        }
        if (r >= 0) {
            loop[r] = middle - begin;
            ours[r] = seconds() - middle;
        }
    }
    double gb = (double)bytes * copies * 1e-9, l = median(loop, rounds), o = median(ours, rounds);
    printf("%-4s %3ld rows, %ld x %ld, %d threads: the loop %.2f GB/s, the product %.2f GB/s, %.0f %%%s\n",
           type == EPI_F32 ? "f32" : "bf16", (long)rows, (long)columns, (long)depth, threads, gb / l, gb / o,
           100 * l / o, sum == 1 ? " " : "");
    free(a);
    free(b);
    free(c);
    free(workspace);
    epi_kernel_free(kernel);
    epi_module_free(module);
    return 0;
}

int main(int argc, char **argv) {
    int64_t rows[16] = {1, 4}, columns = 4096, depth = 4096;
    int count = 0, threads = (int)sysconf(_SC_NPROCESSORS_ONLN), rounds = 9, failed = 0;
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        int64_t n = strtoll(argv[i][0] == '-' ? next : argv[i], NULL, 10);
        if (n < 1 || count == 16)
            return fail("a number is missing: see the file's first lines");
        if (argv[i][0] != '-') {
            rows[count++] = n;
            continue;
        }
        i++;
        if (!strcmp(argv[i - 1], "--threads"))
            threads = n > MOST_THREADS ? MOST_THREADS : (int)n;
        else if (!strcmp(argv[i - 1], "--rounds"))
            rounds = n > MOST_ROUNDS ? MOST_ROUNDS : (int)n;
        else if (!strcmp(argv[i - 1], "--columns"))
            columns = n;
        else if (!strcmp(argv[i - 1], "--depth"))
            depth = n;
        else
            return fail("no such option: see the file's first lines");
    }
    epi_context *ctx = NULL;
    if (epi_context_open(&ctx, NULL) != EPI_OK)
        return fail("no context");
    static const epi_dtype types[] = {EPI_F32, EPI_BF16};
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < (count ? count : 2); i++)
            failed |= measure(ctx, types[t], rows[i], columns, depth, threads, rounds);
    epi_context_close(ctx);
    return failed;
}
