/* profile_report.c: the table of a profile, and its JSON. */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "profile.h"

/* "2", "2 to 4" for parts in one launch, and "2, 5, 8, 11 and 28 more" for equal ones. */
static void name_parts(const profile_row *r, char *to, size_t size) {
    int n = snprintf(to, size, "%d", r->part + 1);
    if (r->last > r->part)
        n += snprintf(to + n, size - (size_t)n, " to %d", r->last + 1);
    for (int i = 0; i < r->count - 1 && i < PROFILE_EQUAL; i++)
        n += snprintf(to + n, size - (size_t)n, ", %d", r->equal[i] + 1);
    if (r->count - 1 > PROFILE_EQUAL)
        snprintf(to + n, size - (size_t)n, " and %d more", r->count - 1 - PROFILE_EQUAL);
}

static double ratio(double a, double b) {
    return b > 0 ? a / b : 0;
}

/* A share, or a dash where it is not known. */
static void print_share(double share) {
    if (share > 0)
        printf(" %7.3f", share);
    else
        printf(" %7s", "-");
}

/* How wide the two columns of words are. */
typedef struct widths {
    int parts, micro;
} widths;

static widths widths_of(const profile *p) {
    widths w = {4, 0};
    for (int i = 0; i < p->row_count; i++) {
        char parts[80];
        name_parts(&p->rows[i], parts, sizeof parts);
        int n = (int)strlen(parts), micro = (int)strlen(p->rows[i].info.micro);
        w.parts = n > w.parts ? n : w.parts;
        w.micro = micro > w.micro ? micro : w.micro;
    }
    return w;
}

static void print_row(const profile *p, const profile_row *r, widths w) {
    char parts[80];
    bool gpu = p->device.is_gpu;
    name_parts(r, parts, sizeof parts);
    printf("%-*s %-10s %10.4f %5.1f %% %10.3f %8.1f", w.parts, parts, r->info.mainloop, 1e3 * r->seconds,
           100 * ratio(r->seconds, p->parts), r->bytes / 1e6, ratio(r->bytes, r->seconds) / 1e9);
    print_share(ratio(r->copy, r->seconds));
    if (r->product)
        printf(" %9.1f", ratio(r->flops, r->seconds) / (gpu ? 1e12 : 1e9));
    else
        printf(" %9s", "-");
    print_share(r->product ? ratio(ratio(r->flops, r->seconds), p->rate) : 0);
    if (gpu && r->sectors > 0)
        printf(" %5.1f %%", 100 * r->hits / r->sectors);
    else if (gpu)
        printf(" %7s", "-");
    cli_print("  %-*s  %s\n", w.micro, r->info.micro, r->gives);
}

static void print_head(const profile *p, widths w) {
    bool gpu = p->device.is_gpu;
    printf("%-*s %-10s %10s %7s %10s %8s %7s %9s %7s", w.parts, "part", "mainloop", "ms", "share", "MB",
           "GB/s", "of copy", gpu ? "TFLOP/s" : "GFLOP/s", gpu ? "of prod" : "of FMA");
    printf("%s  %-*s  computes\n", gpu ? "  L2 hit" : "", w.micro, "");
}

/* What the shares are of. */
static void print_yardsticks(const profile *p) {
    bool products = false;
    for (int i = 0; i < p->row_count; i++)
        products |= p->rows[i].product;
    if (p->device.is_gpu) {
        printf("of copy: a copy on the GPU, %.1f GB/s read and written\n", p->copy_rate / 1e9);
        if (p->rate > 0 && products)
            printf("of prod: a plain product of %d x %d x %d, %.1f TFLOP/s\n", p->rate_size, p->rate_size,
                   p->rate_size, p->rate / 1e12);
        if (*p->l2)
            cli_print("L2 hit: not known: %s\n", p->l2);
        return;
    }
    printf("of copy: the time of a copy of as many bytes, divided by the kernel's time\n");
    if (p->rate > 0 && products)
        printf("of FMA: multiply-adds in f32 on registers, %.1f GFLOP/s\n", p->rate / 1e9);
}

void profile_print(const profile *p) {
    if (p->device.is_gpu)
        cli_print("%s: %s\n", p->device.name, p->device.model);
    else
        cli_print("%s, %d thread%s\n", p->device.model, p->info.threads, p->info.threads == 1 ? "" : "s");
    widths w = widths_of(p);
    print_head(p, w);
    for (int i = 0; i < p->row_count; i++)
        print_row(p, &p->rows[i], w);
    printf("one by one the kernels take %.4f ms; a run takes %.4f ms (medians of %d)\n", 1e3 * p->parts,
           1e3 * p->whole, p->rounds);
    if (p->info.prepared)
        printf("%d part%s params, once and not at every run, and %s not timed\n", p->info.prepared,
               p->info.prepared == 1 ? " prepares" : "s prepare", p->info.prepared == 1 ? "is" : "are");
    print_yardsticks(p);
    printf("\n");
}

static void put_row(const profile *p, const profile_row *r, epi_json_writer *w) {
    epi_json_put_open(w, '{');
    cli_put_integer(w, "part", r->part + 1);
    cli_put_integer(w, "last", r->last + 1);
    cli_put_integer(w, "equal", r->count);
    cli_put_text(w, "mainloop", r->info.mainloop);
    cli_put_text(w, "micro", r->info.micro);
    cli_put_text(w, "computes", r->gives);
    cli_put_integer(w, "runs", r->runs);
    if (p->device.is_gpu)
        cli_put_integer(w, "launches", r->launches);
    cli_put_number(w, "ms", 1e3 * r->seconds);
    cli_put_number(w, "share", ratio(r->seconds, p->parts));
    cli_put_number(w, "bytes", r->bytes);
    cli_put_number(w, "gb_per_s", ratio(r->bytes, r->seconds) / 1e9);
    if (r->copy > 0)
        cli_put_number(w, "of_copy", ratio(r->copy, r->seconds));
    if (r->product) {
        cli_put_number(w, "flops", r->flops);
        cli_put_number(w, "gflops", ratio(r->flops, r->seconds) / 1e9);
    }
    if (r->product && p->rate > 0)
        cli_put_number(w, p->device.is_gpu ? "of_product" : "of_fma",
                       ratio(ratio(r->flops, r->seconds), p->rate));
    if (r->sectors > 0)
        cli_put_number(w, "l2_hit_percent", 100 * r->hits / r->sectors);
    epi_json_put_close(w, '}');
}

void profile_put(const profile *p, epi_json_writer *w) {
    cli_put_text(w, "device", p->device.name);
    cli_put_text(w, "model", p->device.model);
    cli_put_integer(w, "threads", p->info.threads);
    cli_put_integer(w, "rounds", p->rounds);
    cli_put_number(w, "ms", 1e3 * p->whole);
    cli_put_number(w, "kernels_ms", 1e3 * p->parts);
    if (p->copy_rate > 0)
        cli_put_number(w, "copy_gb_per_s", p->copy_rate / 1e9);
    if (p->rate > 0)
        cli_put_number(w, p->device.is_gpu ? "product_gflops" : "fma_gflops", p->rate / 1e9);
    if (p->rate_size)
        cli_put_integer(w, "product_size", p->rate_size);
    if (*p->l2)
        cli_put_text(w, "l2_unknown", p->l2);
    epi_json_put_key(w, "kernels");
    epi_json_put_open(w, '[');
    for (int i = 0; i < p->row_count; i++)
        put_row(p, &p->rows[i], w);
    epi_json_put_close(w, ']');
}
