/* bench.c: times programs fused, unfused and beside a raw product, interleaved, on checked results. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "blas.h"
#include "cli.h"

#ifndef EPI_COMMIT
#define EPI_COMMIT "unknown"
#endif

enum { MAX_REPEAT = 1000, HEAD = 128 };

/* The standard set: dims in units of the size, but for the heads of rotary embedding. */
static const struct {
    const char *name, *dims; /* every axis listed has the size; "H,D" makes the size as heads of HEAD */
} standard[] = {
    {"matmul:matmul", "M N K"},    {"rope:rope", "S E H,D"},           {"swiglu:swiglu", "T D F"},
    {"cross_entropy", "T D V"},    {"residual_rms", "T K D"},          {"norm_linear", "T D F"},
    {"norm_swiglu", "T D F"},      {"norm_rope:norm_rope", "S E H,D"}, {"norm_cross_entropy", "T D V"},
    {"rmsnorm_backward", "T F D"}, {"swiglu_backward", "T D F"},
};

typedef struct row {
    char name[128], error_text[160];
    int64_t m, n, k;
    double flops, fused, unfused, raw; /* seconds; raw 0 where there is no BLAS */
    double error, naive;               /* worst output, relative to its largest value */
    bool ok;
} row;

/* ---- one program ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

static double time_kernel(const cli_runner *r, const cli_data *d) {
    double start = cli_seconds();
    epi_kernel_run(r->kernel, d->tensors, d->count, r->work, NULL);
    return cli_seconds() - start;
}

/* Random operands of the raw product; NULL where there is no memory. */
static float *random_floats(int64_t count) {
    float *x = malloc((size_t)(count > 0 ? count : 1) * sizeof *x);
    uint32_t s = 1;
    for (int64_t i = 0; x && i < count; i++)
        x[i] = (float)((s = s * 1664525u + 1013904223u) >> 8) * 0x1p-24f - 0.5f;
    return x;
}

static void measure(row *out, const cli_runner *fused, const cli_runner *unfused, const cli_data *d,
                    const blas *b, int repeat) {
    double t[3][MAX_REPEAT];
    float *x = NULL, *y = NULL, *c = NULL;
    if (b->sgemm && out->m * out->n * out->k > 0) {
        x = random_floats(out->m * out->k);
        y = random_floats(out->n * out->k);
        c = random_floats(out->m * out->n);
    }
    bool raw = x && y && c;
    int n = 0;
    double start = cli_seconds();
    for (int i = -2;
         i < MAX_REPEAT && (repeat ? i < repeat : i < 9 || (i < 200 && cli_seconds() - start < 3)); i++) {
        double f = time_kernel(fused, d), u = time_kernel(unfused, d), s = cli_seconds();
        if (raw)
            blas_product(b, out->m, out->n, out->k, x, y, c);
        s = cli_seconds() - s;
        if (i < 0) /* warm-up */
            continue;
        t[0][n] = f;
        t[1][n] = u;
        t[2][n++] = s;
    }
    out->fused = median(t[0], n);
    out->unfused = median(t[1], n);
    out->raw = raw ? median(t[2], n) : 0;
    free(x);
    free(y);
    free(c);
}

static epi_status bench_program(const epi_program *program, const cli_options *o, const blas *b, row *out,
                                epi_error *err) {
    cli_runner fused = {0}, unfused = {0};
    cli_data d = {0};
    epi_options options = cli_compile_options(o);
    epi_status status = cli_runner_make(&fused, program, &options, err);
    options.path = EPI_PATH_UNFUSED;
    if (status == EPI_OK)
        status = cli_runner_make(&unfused, program, &options, err);
    if (status == EPI_OK)
        status = cli_data_make(&d, program, fused.kernel, err);
    if (status == EPI_OK) {
        epi_kernel_info info;
        epi_kernel_get_info(fused.kernel, &info);
        out->m = info.m;
        out->n = info.n;
        out->k = info.k;
        out->flops = info.flops;
        cli_data_random(&d, o->seed);
        measure(out, &fused, &unfused, &d, b, o->repeat > MAX_REPEAT ? MAX_REPEAT : o->repeat);
        cli_error_row errors[CLI_MAX_TENSORS];
        status = epi_kernel_run(fused.kernel, d.tensors, d.count, fused.work, err);
        if (status == EPI_OK)
            status = cli_errors(program, o, &d, out->k, errors, err);
        out->ok = status == EPI_OK;
        for (int t = d.input_count; t < d.count && status == EPI_OK; t++) {
            const cli_error_row *e = &errors[t - d.input_count];
            double scale = e->scale > 0 ? e->scale : 1;
            out->error = e->fused / scale > out->error ? e->fused / scale : out->error;
            out->naive = e->naive / scale > out->naive ? e->naive / scale : out->naive;
            out->ok &= e->ok;
        }
    }
    cli_data_free(&d);
    cli_runner_free(&fused);
    cli_runner_free(&unfused);
    return status;
}

/* ---- output ---- */

static void print_head(bool raw) {
    printf("%-28s %-18s %10s %10s %9s %9s", "kernel", "rows x cols x depth", "fused ms", "unfused ms",
           "speed-up", "GFLOP/s");
    if (raw)
        printf(" %9s %7s", "sgemm ms", "of raw");
    printf(" %10s %10s\n", "rel. error", "naive path");
}

static void print_row(const row *r, bool raw) {
    char shape[64];
    snprintf(shape, sizeof shape, "%ldx%ldx%ld", (long)r->m, (long)r->n, (long)r->k);
    printf("%-28s %-18s %10.3f %10.3f %8.2fx %9.1f", r->name, shape, 1e3 * r->fused, 1e3 * r->unfused,
           r->unfused / r->fused, r->flops / r->fused / 1e9);
    if (raw)
        printf(" %9.3f %7.3f", 1e3 * r->raw, r->raw > 0 ? r->fused / r->raw : 0);
    printf(" %10.2e %10.2e%s\n", r->error, r->naive, r->ok ? "" : "  TOO FAR");
    fflush(stdout);
}

static void put_number(epi_json_writer *w, const char *key, double value) {
    epi_json_put_key(w, key);
    epi_json_put_number(w, value);
}

static void put_text(epi_json_writer *w, const char *key, const char *value) {
    epi_json_put_key(w, key);
    epi_json_put_text(w, value);
}

static void put_row(epi_json_writer *w, const row *r) {
    epi_json_put_open(w, '{');
    put_text(w, "kernel", r->name);
    epi_json_put_key(w, "m"), epi_json_put_integer(w, r->m);
    epi_json_put_key(w, "n"), epi_json_put_integer(w, r->n);
    epi_json_put_key(w, "k"), epi_json_put_integer(w, r->k);
    put_number(w, "fused_ms", 1e3 * r->fused);
    put_number(w, "unfused_ms", 1e3 * r->unfused);
    if (r->raw > 0) {
        put_number(w, "sgemm_ms", 1e3 * r->raw);
        put_number(w, "of_raw", r->fused / r->raw);
    }
    put_number(w, "gflops", r->flops / r->fused / 1e9);
    put_number(w, "error", r->error);
    put_number(w, "naive_error", r->naive);
    epi_json_put_key(w, "ok");
    epi_json_put_bool(w, r->ok);
    epi_json_put_close(w, '}');
}

static void put_machine(epi_json_writer *w, const cli_options *o, const blas *b) {
    epi_context *ctx;
    char date[40];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    put_text(w, "version", epi_version());
    put_text(w, "commit", EPI_COMMIT);
    put_text(w, "date", date);
    put_text(w, "type", epi_dtype_name(o->type));
    put_text(w, "blas", b->name);
    if (epi_context_open(&ctx, NULL) != EPI_OK)
        return;
    epi_device_info d;
    epi_device_get(ctx, 0, &d);
    put_text(w, "cpu", d.model);
    put_text(w, "micro_kernels", d.features);
    epi_json_put_key(w, "threads");
    epi_json_put_integer(w, o->threads ? o->threads : d.threads);
    epi_context_close(ctx);
}

static int write_file(const char *path, const epi_text *text) {
    char temporary[1100];
    bool fits = (size_t)snprintf(temporary, sizeof temporary, "%s.tmp", path) < sizeof temporary;
    FILE *f = fits ? fopen(temporary, "w") : NULL;
    if (!f)
        return cli_complain(EXIT_FAILED, "%s: cannot be written", path);
    bool ok = fwrite(text->data, 1, text->length, f) == text->length && fputc('\n', f) != EOF;
    ok &= fclose(f) == 0;
    if (ok && rename(temporary, path) == 0)
        return EXIT_OK;
    remove(temporary);
    return cli_complain(EXIT_FAILED, "%s: cannot be written", path);
}

/* ---- the command ---- */

/* The dims of a standard entry at a size. */
static void standard_dims(cli_options *o, const char *dims, int64_t size) {
    static const char *const single[] = {"M", "N", "K", "T", "D", "F", "V", "S", "E"};
    o->dim_count = 0;
    bool heads = strstr(dims, "H,D") != NULL;
    if (heads) {
        o->dims[o->dim_count++] = (epi_dim_binding){"B", 1};
        o->dims[o->dim_count++] = (epi_dim_binding){"H", size / HEAD};
        o->dims[o->dim_count++] = (epi_dim_binding){"D", HEAD};
    }
    for (size_t i = 0; i < sizeof single / sizeof *single; i++)
        if (strstr(dims, single[i]) && !(heads && single[i][0] == 'D'))
            o->dims[o->dim_count++] = (epi_dim_binding){single[i], size};
}

static int bench_one(const char *name, const cli_options *o, const blas *b, epi_json_writer *w, bool *head) {
    cli_source s;
    epi_error err;
    row r = {0};
    if (cli_program_open(&s, name, &err) != EPI_OK)
        return cli_fail(&err);
    snprintf(r.name, sizeof r.name, "%s", epi_program_name(s.program));
    cli_progress("measuring %s", r.name);
    epi_status status = bench_program(s.program, o, b, &r, &err);
    cli_progress_end();
    cli_source_close(&s);
    if (status != EPI_OK)
        return cli_fail(&err);
    if (!o->json && !*head)
        print_head(b->sgemm != NULL);
    *head = true;
    if (!o->json)
        print_row(&r, b->sgemm != NULL);
    put_row(w, &r);
    return r.ok ? EXIT_OK : EXIT_FAILED;
}

int cmd_bench(const cli_options *given) {
    cli_options o = *given;
    int status = EXIT_OK, one;
    bool head = false;
    blas b;
    epi_text out = {0};
    epi_json_writer w = {.text = &out};
    if (o.name_count && !o.dim_count)
        return cli_complain(EXIT_USAGE, "bench of a named program wants --dims; see 'epilog help bench'");
    int threads = o.threads;
    epi_context *ctx;
    if (!threads && epi_context_open(&ctx, NULL) == EPI_OK) {
        epi_device_info d;
        epi_device_get(ctx, 0, &d);
        threads = d.threads;
        epi_context_close(ctx);
    }
    blas_open(&b, threads);
    epi_json_put_open(&w, '{');
    put_machine(&w, &o, &b);
    epi_json_put_key(&w, "rows");
    epi_json_put_open(&w, '[');
    if (!o.size_count)
        o.sizes[o.size_count++] = 1024;
    for (int i = 0; i < o.name_count; i++)
        if ((one = bench_one(o.names[i], &o, &b, &w, &head)) != EXIT_OK)
            status = one;
    for (int s = 0; s < o.size_count && !o.name_count; s++)
        for (size_t i = 0; i < sizeof standard / sizeof *standard; i++) {
            standard_dims(&o, standard[i].dims, o.sizes[s]);
            if ((one = bench_one(standard[i].name, &o, &b, &w, &head)) != EXIT_OK)
                status = one;
        }
    epi_json_put_close(&w, ']');
    epi_json_put_close(&w, '}');
    if (o.out && status == EXIT_OK &&
        (one = write_file(o.out, &out)) != EXIT_OK) /* a failed run replaces nothing */
        status = one;
    if (o.json && cli_print_json(&out) != EXIT_OK)
        status = EXIT_FAILED;
    epi_text_free(&out);
    blas_close(&b);
    return status;
}
