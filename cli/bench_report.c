/* bench_report.c: the benchmark's table and its result file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

enum { DOUBT = 400 }; /* bytes of what is said against the BLAS */

static void print_end(const bench_row *r) {
    if (r->nan)
        printf("  %ld NaN", (long)r->nan);
    if (!r->ok)
        printf("  %sTOO FAR%s", cli_styled(stdout, CLI_RED), cli_styled(stdout, CLI_PLAIN));
    printf("\n");
    fflush(stdout);
}

static void print_rows_head(void) {
    printf("%-20s %-18s %10s %10s %9s %9s %9s %9s %8s %10s %10s\n", "kernel", "rows x cols", "fused ms",
           "unfused ms", "speed-up", "MB", "GB/s", "copy GB/s", "of copy", "rel. error", "naive path");
}

/* A kernel without a product moves memory: it is held against a copy of as many bytes. */
static void print_rows(const bench_row *r) {
    char shape[64];
    snprintf(shape, sizeof shape, "%ldx%ld", (long)r->m, (long)r->n);
    printf("%-20s %-18s %10.4f %10.4f %8.2fx %9.1f %9.1f", r->name, shape, 1e3 * r->fused, 1e3 * r->unfused,
           r->unfused / r->fused, r->bytes / 1e6, r->bytes / r->fused / 1e9);
    if (r->copy > 0)
        printf(" %9.1f %8.3f", r->bytes / r->copy / 1e9, r->copy / r->fused);
    else
        printf(" %9s %8s", "-", "-");
    printf(" %10.2e %10.2e", r->error, r->naive);
    print_end(r);
}

static void print_head(const bench_report *p) {
    printf("%-20s %-18s %10s %10s %9s %9s", "kernel", "rows x cols x depth", "fused ms", "unfused ms",
           "speed-up", p->gpu ? "TFLOP/s" : "GFLOP/s");
    if (p->raw)
        printf(" %9s %7s", "sgemm ms", "of raw");
    if (p->gpu)
        printf(" %10s %10s %10s  %s\n", "cut error", "cut naive", "vs plain", "configuration");
    else
        printf(" %10s %10s\n", "rel. error", "naive path");
}

static void print_row(const bench_report *p, const bench_row *r) {
    char shape[64];
    if (r->kernels > 1)
        snprintf(shape, sizeof shape, "%d kernels", r->kernels);
    else if (!r->m && !r->n && !r->k)
        snprintf(shape, sizeof shape, "pass"); /* one operation over memory */
    else
        snprintf(shape, sizeof shape, "%ldx%ldx%ld", (long)r->m, (long)r->n, (long)r->k);
    printf("%-20s %-18s %10.*f %10.*f %8.2fx %9.1f", r->name, shape, p->gpu ? 4 : 3, 1e3 * r->fused,
           p->gpu ? 4 : 3, 1e3 * r->unfused, r->unfused / r->fused,
           r->flops / r->fused / (p->gpu ? 1e12 : 1e9));
    if (p->raw && r->raw > 0)
        printf(" %9.3f %7.3f", 1e3 * r->raw, r->fused / r->raw);
    else if (p->raw)
        printf(" %9s %7s", "-", "-");
    printf(" %10.2e %10.2e", r->error, r->naive);
    if (p->gpu && r->has_plain)
        printf(" %10.2e", r->plain);
    else if (p->gpu)
        printf(" %10s", "-");
    if (p->gpu)
        printf("  %s", r->config);
    print_end(r);
}

static void put_row(epi_json_writer *w, const bench_report *p, const bench_row *r) {
    epi_json_put_open(w, '{');
    cli_put_text(w, "kernel", r->name);
    cli_put_text(w, "file", r->file);
    cli_put_integer(w, "m", r->m);
    cli_put_integer(w, "n", r->n);
    cli_put_integer(w, "k", r->k);
    cli_put_number(w, "fused_ms", 1e3 * r->fused);
    cli_put_number(w, "unfused_ms", 1e3 * r->unfused);
    if (r->raw > 0) {
        cli_put_number(w, "sgemm_ms", 1e3 * r->raw);
        cli_put_number(w, "of_raw", r->fused / r->raw);
    }
    cli_put_number(w, "gflops", r->flops / r->fused / 1e9);
    if (r->rows) {
        cli_put_number(w, "bytes", r->bytes);
        cli_put_number(w, "gb_per_s", r->bytes / r->fused / 1e9);
    }
    if (r->copy > 0) {
        cli_put_number(w, "copy_gb_per_s", r->bytes / r->copy / 1e9);
        cli_put_number(w, "of_copy", r->copy / r->fused);
    }
    if (p->gpu) {
        cli_put_text(w, "config", r->config);
        cli_put_integer(w, "error_at_m", r->checked[0]);
        cli_put_integer(w, "error_at_n", r->checked[1]);
        cli_put_integer(w, "error_at_k", r->checked[2]);
    }
    cli_put_number(w, "error", r->error);
    cli_put_number(w, "naive_error", r->naive);
    cli_put_integer(w, "nan", r->nan);
    if (r->has_plain)
        cli_put_number(w, "distance_from_plain", r->plain);
    cli_put_bool(w, "ok", r->ok);
    epi_json_put_close(w, '}');
}

void bench_add_row(bench_report *p, const bench_row *r) {
    if (!p->json) {
        if (!p->rows++ || p->last_kind != r->rows)
            r->rows ? print_rows_head() : print_head(p);
        p->last_kind = r->rows;
        r->rows ? print_rows(r) : print_row(p, r);
    }
    put_row(p->w, p, r);
    bench_row *more = realloc(p->kept, (size_t)(p->kept_count + 1) * sizeof *more);
    if (more) { /* without memory the chart has fewer */
        p->kept = more;
        p->kept[p->kept_count++] = *r;
    }
}

void bench_end(const bench_report *p) {
    if (p->gpu && p->rows)
        printf("cut error: the largest distance of the timed configuration from f64, with axes cut to about "
               "256.\n"
               "cut naive: the same for the naive path. vs plain: the distance at full size from the unfused "
               "path on\n"
               "this GPU's plain mainloop. All are relative to the largest value.\n");
}

void bench_put_machine(epi_json_writer *w, const epi_context *ctx, const cli_options *o, const blas *b) {
    epi_device_info d;
    char date[40], doubt[DOUBT];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    cli_put_text(w, "date", date);
    cli_put_text(w, "type", epi_dtype_name(o->type));
    blas_doubt(b, doubt, sizeof doubt);
    cli_put_text(w, "blas", b->name);
    cli_put_text(w, "blas_core", b->core);
    if (*doubt)
        cli_put_text(w, "blas_doubt", doubt);
    if (o->device) {
        epi_device_get(ctx, o->device, &d);
        cli_put_text(w, "device", d.name);
        cli_put_text(w, "gpu", d.model);
        cli_put_text(w, "gpu_features", d.features);
        cli_put_text(w, "rounding", o->rounding == EPI_ROUND_EXACT ? "exact" : "packed");
    }
    epi_device_get(ctx, 0, &d);
    cli_put_text(w, "cpu", d.model);
    cli_put_text(w, "micro_kernels", d.features);
    cli_put_integer(w, "threads", o->threads ? o->threads : d.threads);
}

void bench_say_machine(const epi_context *ctx, const cli_options *o, const blas *b) {
    epi_device_info d;
    char doubt[DOUBT];
    epi_device_get(ctx, o->device, &d);
    int threads = o->threads ? o->threads : d.threads;
    if (o->device)
        printf("%s: %s\n", d.name, d.model);
    else
        printf("%s, %d thread%s, micro-kernels %s\n", d.model, threads, threads == 1 ? "" : "s", d.features);
    if (b->sgemm)
        printf("raw product: %s%s%s\n", *b->name ? b->name : b->maker, *b->core ? ", core " : "", b->core);
    else if (!o->device)
        printf("raw product: none, as neither OpenBLAS nor MKL was found\n");
    blas_doubt(b, doubt, sizeof doubt);
    if (*doubt)
        cli_complain(EXIT_OK, "note: %s", doubt);
    fflush(stdout);
}
