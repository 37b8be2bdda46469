/* run.c: runs a program once and compares its outputs with f64. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"

enum { GPU_RUNS = 5 }; /* of which the best is reported, after one to warm up */

/* How long it took, where, and by what. */
typedef struct outcome {
    double seconds;
    epi_device_info device;
    epi_kernel_info info;
} outcome;

static void print_outcome(const outcome *got) {
    printf("%.3f ms", 1e3 * got->seconds);
    if (got->device.is_gpu)
        printf(" (best of %d) on %s, %s%s%s", GPU_RUNS, got->device.name, got->device.model,
               *got->info.micro ? ", " : "", got->info.micro);
    printf("\n");
}

static int report(const cli_data *d, const cli_error_row *rows, const outcome *got, const epi_kernel *kernel,
                  const cli_options *o) {
    epi_text out = {0};
    epi_json_writer w = {.text = &out};
    epi_json_put_open(&w, '{');
    cli_put_text(&w, "device", got->device.name);
    cli_put_text(&w, "model", got->device.model);
    cli_put_text(&w, "micro", got->info.micro);
    cli_put_number(&w, "ms", 1e3 * got->seconds);
    int status = cli_report_outputs(d, rows, o, &w);
    char *warnings = cli_kernel_text(epi_kernel_warnings, kernel);
    cli_put_text(&w, "warnings", warnings);
    epi_json_put_close(&w, '}');
    if (!o->json) {
        print_outcome(got);
        cli_print_slow(warnings);
    }
    free(warnings);
    return cli_print_json(o, &out, status);
}

/* On the CPU a run is a run; a GPU is warmed up first and the best of a few counts. */
static epi_status run_kernel(const cli_runner *r, cli_data *d, double *seconds, epi_error *err) {
    cli_place p;
    double one;
    epi_status status = cli_place_make(&p, r->ctx, r->device, d, err);
    if (status == EPI_OK)
        status = cli_burst(r, &p, 1, seconds, err);
    for (int i = 0; i < GPU_RUNS && r->device && status == EPI_OK; i++) {
        status = cli_burst(r, &p, 1, &one, err);
        if (i == 0 || one < *seconds)
            *seconds = one;
    }
    if (status == EPI_OK)
        status = cli_place_fetch(&p, d, err);
    cli_place_free(&p);
    return status;
}

/* Tensors of the sizes of this run, which are those of the kernel unless some of its axes are open. */
static epi_status make_data(const cli_source *s, const cli_options *o, const cli_runner *r, cli_data *d,
                            epi_error *err) {
    epi_options options = cli_compile_options(o);
    epi_kernel *shapes = NULL;
    options.device = 0;
    options.path = EPI_PATH_REFERENCE;
    options.memory = 0;
    options.config = NULL;
    epi_status status = r->sizes ? epi_kernel_compile(s->program, &options, &shapes, err) : EPI_OK;
    if (status == EPI_OK)
        status = cli_data_make(d, s->program, shapes ? shapes : r->kernel, err);
    epi_kernel_free(shapes);
    return status;
}

static epi_status run_program(const cli_source *s, const cli_options *o, const cli_inputs *in,
                              const epi_options *options, cli_runner *r, cli_data *d, cli_error_row *rows,
                              outcome *got, epi_error *err) {
    if (o->device)
        cli_progress("compiling %s", epi_program_name(s->program));
    epi_status status = cli_runner_make(r, s, options, err);
    if (status == EPI_OK)
        status = make_data(s, o, r, d, err);
    if (status != EPI_OK)
        return status;
    epi_device_get(s->ctx, o->device, &got->device);
    epi_kernel_get_info(r->kernel, &got->info);
    cli_data_random(d, o->seed);
    status = cli_data_set(d, o, err);
    if (status == EPI_OK && o->in)
        status = cli_data_read(d, in, err);
    if (status != EPI_OK)
        return status;
    cli_progress("running %s", epi_program_name(s->program));
    status = run_kernel(r, d, &got->seconds, err);
    if (!o->no_check)
        cli_progress("computing the f64 reference of %s", epi_program_name(s->program));
    if (status == EPI_OK)
        status = cli_errors(s, o, d, &got->info, rows, err);
    cli_progress_end();
    return status;
}

int cmd_run(cli_options *given) {
    cli_options o = *given;
    cli_source s;
    epi_error err;
    if (o.name_count && o.in && !strcmp(o.in, "-") && o.names[0][0] == '-')
        return cli_complain(EXIT_USAGE, "standard input cannot be both the program and --in");
    if (cli_print_aside(&o) != EXIT_OK)
        return EXIT_FAILED;
    if (cli_check_distinct(o.out, "--in", o.in) != EXIT_OK)
        return EXIT_USAGE;
    if (!cli_may_write(o.out, &err)) /* found out before the work */
        return cli_fail(&err);
    int opened = cli_only_program(&s, &o);
    if (opened != EXIT_OK)
        return opened;
    cli_runner r = {0};
    cli_data d = {0};
    cli_error_row rows[CLI_MAX_TENSORS];
    outcome got = {0};
    cli_inputs in = {0};
    int status = cli_check_distinct(o.out, "the program", s.path);
    if (status == EXIT_OK)
        status = cli_device_choose(s.ctx, &o);
    if (status == EXIT_OK && o.in && cli_inputs_open(&in, o.in, &err) != EPI_OK)
        status = cli_fail(&err);
    if (status == EXIT_OK && o.in && cli_inputs_check(&in, s.program, &o, &err) != EPI_OK)
        status = cli_fail(&err);
    if (status == EXIT_OK && o.in)
        cli_inputs_dims(&in, s.program, &o);
    cli_open open = {0};
    epi_options options;
    if (status == EXIT_OK)
        status = cli_open_options(&o, s.program, &open, &options);
    if (open.count) {
        r.sizes = open.sizes;
        r.size_count = open.count;
    }
    bool ran = status == EXIT_OK && run_program(&s, &o, &in, &options, &r, &d, rows, &got, &err) == EPI_OK;
    bool wrote = ran && (!o.out || cli_data_write(&d, o.out, &err) == EPI_OK);
    if (ran) /* of what could not be written, too */
        status = report(&d, rows, &got, r.kernel, &o);
    if (status == EXIT_OK && !wrote)
        status = cli_fail(&err);
    cli_inputs_close(&in);
    cli_data_free(&d);
    cli_runner_free(&r);
    cli_source_close(&s);
    return status;
}
