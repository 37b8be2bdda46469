/* bench_chart.c: draws the times of a benchmark as a chart and as bars. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "bench.h"
#include "chart.h"

#define SAY(to, ...) snprintf(to, sizeof to, __VA_ARGS__)

/* What the times are held against: something that every row has. */
static const struct base {
    const char *axis, *subtitle;
    size_t at; /* in bench_row */
} bases[] = {
    {"time relative to the BLAS's product alone; lower is faster",
     "Products and the operations around them. 1 is the BLAS's time for the product alone.",
     offsetof(bench_row, raw)},
    {"time relative to a copy; lower is faster", "1 is the time of a copy of as many bytes.",
     offsetof(bench_row, copy)},
    {"time relative to the unfused path; lower is faster", "1 is the time of one operation at a time.",
     offsetof(bench_row, unfused)},
};
enum { BASES = sizeof bases / sizeof *bases };

static double base_of(const bench_row *r, const struct base *b) {
    return *(const double *)(const void *)((const char *)r + b->at);
}

static const struct base *choose_base(const bench_report *p) {
    for (int b = 0; b < BASES - 1; b++) {
        bool all = true;
        for (int i = 0; i < p->kept_count; i++)
            all &= base_of(&p->kept[i], &bases[b]) > 0;
        if (all)
            return &bases[b];
    }
    return &bases[BASES - 1];
}

static void fill(epi_chart *c, const bench_report *p, const epi_context *ctx, const cli_options *o) {
    const struct base *base = choose_base(p);
    epi_device_info d;
    epi_device_get(ctx, o->device, &d);
    c->series[0] = "fused";
    c->series[1] = "unfused";
    c->series_count = base == &bases[BASES - 1] ? 1 : 2;
    SAY(c->title, "Epilog on this machine: %.100s", d.model);
    SAY(c->subtitle, "%s", base->subtitle);
    SAY(c->axis, "%s", base->axis);
    SAY(c->notes[0],
        "Stored as %s%s; medians, fused and unfused in turn, checked against f64 in the same run",
        epi_dtype_name(o->type), o->device ? ", in bursts" : "");
    SAY(c->notes[1], "epilog %s, 'epilog bench%s'", epi_version(), o->name_count ? " NAME" : "");
    for (int i = 0; i < p->kept_count; i++) {
        const bench_row *r = &p->kept[i];
        epi_chart_row *row = epi_chart_add(c);
        if (!row)
            break;
        if (r->kernels > 1)
            SAY(row->name, "%.36s", r->name);
        else
            SAY(row->name, "%.36s %ld", r->name, (long)r->m);
        row->values[0] = r->fused / base_of(r, base);
        if (c->series_count > 1)
            row->values[1] = r->unfused / base_of(r, base);
    }
}

static int terminal_width(void) {
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 40 ? size.ws_col : 80;
}

int bench_chart(const bench_report *p, const epi_context *ctx, const cli_options *o) {
    bool bars = !o->json && isatty(STDOUT_FILENO);
    epi_chart *c = calloc(1, sizeof *c);
    epi_text out = {0};
    epi_error err;
    int status = EXIT_OK;
    if (!c)
        return cli_complain(EXIT_FAILED, "out of memory");
    fill(c, p, ctx, o);
    if (o->plot) {
        epi_chart_svg(c, &out);
        if (cli_write_text(o->plot, &out, &err) != EPI_OK)
            status = cli_fail(&err);
        epi_text_free(&out);
    }
    if (bars) {
        const char *const colours[] = {cli_styled(stdout, CLI_BLUE), cli_styled(stdout, CLI_GREEN), "",
                                       cli_styled(stdout, CLI_PLAIN)};
        epi_chart_bars(c, terminal_width(), colours, &out);
        if (out.data)
            printf("\n%s", out.data);
        epi_text_free(&out);
    }
    free(c);
    return status;
}
