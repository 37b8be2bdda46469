/* run.c: runs a program once and holds its outputs against f64. */
#include <stdio.h>
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

static void put_output(epi_json_writer *w, const cli_data *d, int t, const cli_error_row *r, bool checked) {
    char worst[400];
    epi_json_put_open(w, '{');
    cli_put_text(w, "name", d->infos[t].name);
    cli_put_text(w, "verdict", cli_verdict_name(r->verdict));
    cli_put_number(w, "scale", r->scale);
    if (checked) {
        cli_put_integer(w, "elements", d->shapes[t].count);
        cli_put_integer(w, "compared", r->compared);
        cli_put_bool(w, "whole", r->whole && r->compared);
        cli_put_integer(w, "differ", r->whole ? r->differ : 0);
        cli_put_number(w, "error", r->fused);
        cli_put_number(w, "naive_error", r->naive);
        cli_put_number(w, "relative_error", cli_relative(r->fused, r));
        cli_put_number(w, "naive_relative_error", cli_relative(r->naive, r));
        cli_put_number(w, "allowed_relative_error", cli_relative(r->allowed, r));
    }
    if (r->worst >= 0) {
        cli_name_element(d, t, r->worst, worst, sizeof worst);
        cli_put_text(w, "worst", worst);
        cli_put_number(w, "got", r->got);
        cli_put_number(w, "want", r->want);
    }
    cli_put_integer(w, "nan", r->nan);
    cli_put_integer(w, "infinite", r->infinite);
    if (checked)
        cli_put_bool(w, "ok", r->verdict == CLI_OK);
    epi_json_put_close(w, '}');
}

static void print_head(bool checked) {
    printf("%-12s %-5s %12s", "output", "type", checked ? "max|f64|" : "max|output|");
    if (checked)
        printf(" %12s %12s %12s", "rel. error", "allowed", "naive path");
    printf("  verdict\n");
}

/* Why a verdict is as it is, where that is not plain. */
static void print_reasons(const cli_error_row *r, const epi_tensor_shape *shape) {
    int64_t count = shape->count;
    const char *type = epi_dtype_name(shape->type);
    int64_t by_rounding = r->whole ? r->differ - r->wrong : 0;
    if (r->verdict == CLI_NOT_COMPARED && !count)
        printf(": it has no elements");
    else if (r->verdict == CLI_NOT_COMPARED)
        printf(": no f64 result there fits %s", type);
    else if (r->whole && r->wrong)
        printf(": %ld of %ld whole numbers are not equal", (long)r->wrong, (long)r->compared);
    else if (r->compared < count)
        printf(", %ld of %ld compared: the other f64 results do not fit %s", (long)r->compared, (long)count,
               type);
    if (by_rounding)
        printf("; %ld others differ within rounding", (long)by_rounding);
}

/* The element that is furthest off. */
static void print_worst(const cli_data *d, int t, const cli_error_row *r) {
    char name[400];
    cli_name_element(d, t, r->worst, name, sizeof name);
    cli_print("    %s is %s, but %s in f64\n", name, cli_number_of(r->got).text, cli_number_of(r->want).text);
}

static void print_output(const cli_data *d, int t, const cli_error_row *r, bool checked) {
    const epi_tensor_shape *shape = &d->shapes[t];
    bool far = r->verdict == CLI_TOO_FAR;
    printf("%-12s %-5s %12.4g", d->infos[t].name, epi_dtype_name(shape->type), r->scale);
    if (checked && r->verdict == CLI_NOT_COMPARED)
        printf(" %12s %12s %12s", "-", "-", "-");
    else if (checked && r->whole)
        printf(" %12.3e %12s %12.3e", cli_relative(r->fused, r), "equal", cli_relative(r->naive, r));
    else if (checked)
        printf(" %12.3e %12.3e %12.3e", cli_relative(r->fused, r), cli_relative(r->allowed, r),
               cli_relative(r->naive, r));
    printf("  %s%s%s", far ? cli_styled(stdout, CLI_RED) : "", cli_verdict_name(r->verdict),
           far ? cli_styled(stdout, CLI_PLAIN) : "");
    if (checked)
        print_reasons(r, shape);
    if (r->nan)
        printf("   %ld of %ld are NaN", (long)r->nan, (long)shape->count);
    if (r->infinite)
        printf("   %ld of %ld are infinite", (long)r->infinite, (long)shape->count);
    printf("\n");
    if (far)
        print_worst(d, t, r);
}

static void note_nothing(const cli_data *d) {
    int64_t elements = 0;
    for (int t = d->input_count; t < d->count; t++)
        elements += d->shapes[t].count;
    if (!elements)
        cli_complain(EXIT_OK, "note: at these sizes no output has elements; nothing was computed");
}

/* A number below 0.001 may be far from what the program was written for. */
static void hint_at_scalars(const cli_data *d) {
    for (int t = 0; t < d->input_count; t++)
        if (!d->shapes[t].rank && !d->given[t])
            printf("%s was a random number below 0.001; --set %s=V sets it\n", d->infos[t].name,
                   d->infos[t].name);
}

static void print_outcome(const outcome *got) {
    printf("%.3f ms", 1e3 * got->seconds);
    if (got->device.is_gpu)
        printf(" (best of %d) on %s, %s%s%s", GPU_RUNS, got->device.name, got->device.model,
               *got->info.micro ? ", " : "", got->info.micro);
    printf("\n");
}

static int report(const cli_data *d, const cli_error_row *rows, const outcome *got, const cli_options *o) {
    int status = EXIT_OK;
    epi_text out = {0};
    epi_json_writer w = {.text = &out};
    epi_json_put_open(&w, '{');
    cli_put_text(&w, "device", got->device.name);
    cli_put_text(&w, "model", got->device.model);
    cli_put_text(&w, "micro", got->info.micro);
    cli_put_number(&w, "ms", 1e3 * got->seconds);
    cli_put_bool(&w, "checked", !o->no_check);
    epi_json_put_key(&w, "random");
    epi_json_put_open(&w, '[');
    for (int t = 0; t < d->input_count; t++)
        if (!d->given[t])
            epi_json_put_text(&w, d->infos[t].name);
    epi_json_put_close(&w, ']');
    epi_json_put_key(&w, "outputs");
    epi_json_put_open(&w, '[');
    if (!o->json)
        print_head(!o->no_check);
    for (int t = d->input_count; t < d->count; t++) {
        const cli_error_row *r = &rows[t - d->input_count];
        put_output(&w, d, t, r, !o->no_check);
        if (!o->json)
            print_output(d, t, r, !o->no_check);
        if (r->verdict == CLI_TOO_FAR)
            status = EXIT_FAILED;
    }
    epi_json_put_close(&w, ']');
    epi_json_put_close(&w, '}');
    if (!o->json && status != EXIT_OK)
        hint_at_scalars(d);
    if (!o->json)
        print_outcome(got);
    note_nothing(d);
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
        status = report(&d, rows, &got, &o);
    if (status == EXIT_OK && !wrote)
        status = cli_fail(&err);
    cli_inputs_close(&in);
    cli_data_free(&d);
    cli_runner_free(&r);
    cli_source_close(&s);
    return status;
}
