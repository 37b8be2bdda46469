/* bench.h: a row of the benchmark and how it is reported. */
#ifndef EPI_CLI_BENCH_H
#define EPI_CLI_BENCH_H

#include "blas.h"
#include "cli.h"

typedef struct bench_row {
    char name[128], file[2048];        /* of the program, and where its text is */
    char config[64];                   /* the GPU configuration or the CPU micro-kernel */
    int64_t m, n, k;                   /* of the one kernel; all 0 where it is of several */
    int kernels;                       /* that a run goes through */
    double flops, fused, unfused, raw; /* seconds; raw 0 where there is no BLAS */
    bool rows;                         /* no product: what counts is memory, */
    double bytes, copy;                /* what it moves, and how long a copy of as much takes, or 0 */
    double error, naive;               /* worst output, relative to its largest value */
    int64_t checked[3];                /* the m, n, k at which those two were taken, */
    int64_t nan;                       /* and elements that are NaN there */
    double plain;                      /* of a GPU: worst distance, at full size, from the plain mainloop */
    bool has_plain, ok;
} bench_row;

typedef struct bench_report {
    epi_json_writer *w;
    bool gpu, raw, json;
    int begun, all;  /* programs */
    int rows;        /* so far */
    bool last_kind;  /* was the last one without a product? */
    bench_row *kept; /* all of them, for the chart */
    int kept_count;
} bench_report;

/* Whatever says where and with what it was measured; the second to people, with a doubt in the BLAS if there is one. */
void bench_put_machine(epi_json_writer *w, const epi_context *ctx, const cli_options *o, const blas *b);
void bench_say_machine(const epi_context *ctx, const cli_options *o, const blas *b);
void bench_add_row(bench_report *report, const bench_row *r);
/* bench_chart.c: the rows as a picture, --plot, and as bars on a terminal. */
int bench_chart(const bench_report *report, const epi_context *ctx, const cli_options *o);
/* What the columns of a GPU's table mean. */
void bench_end(const bench_report *report);

#endif
