/* outputs.c: reports how far each output is from f64, to people and as JSON. */
#include <stdio.h>

#include "base/base.h"
#include "cli.h"

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

int cli_report_outputs(const cli_data *d, const cli_error_row *rows, const cli_options *o,
                       epi_json_writer *w) {
    int status = EXIT_OK;
    cli_put_bool(w, "checked", !o->no_check);
    epi_json_put_key(w, "random");
    epi_json_put_open(w, '[');
    for (int t = 0; t < d->input_count; t++)
        if (!d->given[t])
            epi_json_put_text(w, d->infos[t].name);
    epi_json_put_close(w, ']');
    epi_json_put_key(w, "outputs");
    epi_json_put_open(w, '[');
    if (!o->json)
        print_head(!o->no_check);
    for (int t = d->input_count; t < d->count; t++) {
        const cli_error_row *r = &rows[t - d->input_count];
        put_output(w, d, t, r, !o->no_check);
        if (!o->json)
            print_output(d, t, r, !o->no_check);
        if (r->verdict == CLI_TOO_FAR)
            status = EXIT_FAILED;
    }
    epi_json_put_close(w, ']');
    if (!o->json && status != EXIT_OK)
        hint_at_scalars(d);
    note_nothing(d);
    return status;
}
