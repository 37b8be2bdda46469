/* profile.c: runs a program and times each of its kernels. */
#include "profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/kinds.h"

enum { GPU_ROUNDS = 15, LEAST_ROUNDS = 9, MOST_AHEAD = 64 };
static const double CPU_SECONDS = 1,
                    AHEAD = 2e-3; /* of work that a GPU has before it comes to what is timed */

/* ---- which kernels there are ---- */

/* What the part gives: the end of the first line of its text. */
static void name_results(const epi_kernel *k, int part, char *to, size_t size) {
    char *text = cli_part_text(epi_kernel_part_print, k, part);
    const char *from = text ? strstr(text, "-> ") : NULL, *end = from ? strstr(from, " {") : NULL;
    size_t length = end ? (size_t)(end - from) - 3 : 0;
    bool cut = length >= size;
    snprintf(to, size, "%.*s%s", (int)(cut ? size - 4 : length), from ? from + 3 : "", cut ? "…" : "");
    free(text);
}

static bool is_product(const char *mainloop) {
    const epi_kind_row *kind = epi_kind_named(mainloop);
    return kind && kind->multiplies;
}

/* The row of the part, or of those that it is equal to. */
static profile_row *row_for(profile *p, const epi_kernel *k, int part, const epi_part_info *info) {
    for (int i = 0; i < p->row_count; i++)
        if (p->rows[i].first == info->first) {
            profile_row *r = &p->rows[i];
            if (r->count++ <= PROFILE_EQUAL)
                r->equal[r->count - 2] = part;
            return r;
        }
    profile_row *r = &p->rows[p->row_count++];
    *r = (profile_row){.part = part, .last = part, .count = 1, .first = info->first, .info = info->info};
    r->product = is_product(info->info.mainloop);
    name_results(k, part, r->gives, sizeof r->gives);
    return r;
}

/* The part is launched with the first one of the row. */
static void join(profile_row *r, const epi_kernel *k, int part) {
    size_t n = strlen(r->gives);
    r->last = part;
    if (n + 12 > sizeof r->gives)
        return;
    memcpy(r->gives + n, ", ", 3);
    name_results(k, part, r->gives + n + 2, sizeof r->gives - n - 2);
}

/* Makes rows of the parts. One that did not run by itself was launched with the one before it. */
static void add_rows(profile *p, const epi_kernel *k, const double *seconds, const int *runs) {
    profile_row *r = NULL;
    for (int i = p->info.prepared, leader = i; i < p->info.parts; i++) {
        epi_part_info info;
        epi_kernel_part(k, i, &info);
        if (runs[i] || !r)
            r = row_for(p, k, leader = i, &info);
        else if (leader == r->part)
            join(r, k, i);
        p->row_of[i] = (int)(r - p->rows);
        r->runs += runs[i];
        r->launches += p->launches[i];
        r->seconds += seconds[i];
        r->flops += runs[leader] * info.info.flops;
        r->bytes += runs[leader] * info.info.bytes_fused;
        p->parts += seconds[i];
    }
}

/* ---- time ---- */

typedef struct rounds {
    double *seconds; /* by part, PROFILE_ROUNDS of each */
    double whole[PROFILE_ROUNDS];
    int *runs, count;
} rounds;

static bool go_on(int round, int repeat, bool gpu, double start) {
    if (round >= PROFILE_ROUNDS)
        return false;
    if (repeat || gpu)
        return round < (repeat ? repeat : GPU_ROUNDS);
    return round < LEAST_ROUNDS || cli_seconds() - start < CPU_SECONDS;
}

/* A GPU has runs to do ahead of the one that is timed: then it does not wait for the host between the parts of that
 * one. */
static epi_status measure(profile *p, const cli_runner *r, const cli_place *place, int repeat, rounds *t,
                          epi_error *err) {
    int parts = p->info.parts, ahead = 0;
    double *now = &t->seconds[(size_t)parts * PROFILE_ROUNDS], one = 0;
    epi_status status = cli_burst(r, place, 1, &one, err); /* the first run is no measure */
    if (status == EPI_OK)
        status = cli_burst(r, place, 1, &one, err);
    if (r->device)
        ahead = (int)epi_min64(MOST_AHEAD, 1 + (int64_t)(AHEAD / (one > 1e-6 ? one : 1e-6)));
    double start = cli_seconds();
    for (int i = -1; status == EPI_OK && go_on(i, repeat, r->device > 0, start); i++) {
        status = cli_burst(r, place, 1 + ahead, &one, err);
        if (status == EPI_OK)
            status = cli_time_parts(r, place, ahead, now, t->runs, p->launches, parts, err);
        if (i < 0 || status != EPI_OK)
            continue;
        t->whole[t->count] = one;
        for (int k = 0; k < parts; k++)
            t->seconds[k * PROFILE_ROUNDS + t->count] = now[k];
        t->count++;
    }
    return status;
}

static epi_status time_kernel(profile *p, const cli_runner *r, const cli_place *place, int repeat,
                              epi_error *err) {
    size_t parts = (size_t)p->info.parts;
    rounds t = {.seconds = calloc(parts * (PROFILE_ROUNDS + 1), sizeof(double)),
                .runs = calloc(parts, sizeof(int))};
    p->rows = calloc(parts, sizeof *p->rows);
    p->row_of = calloc(parts, sizeof *p->row_of);
    p->launches = calloc(parts, sizeof *p->launches);
    bool room = t.seconds && t.runs && p->rows && p->row_of && p->launches;
    epi_status status =
        room ? measure(p, r, place, repeat, &t, err) : epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    if (status == EPI_OK) {
        for (size_t k = 0; k < parts; k++) /* over what is read already */
            t.seconds[k] = cli_median(&t.seconds[k * PROFILE_ROUNDS], t.count);
        p->rounds = t.count;
        p->whole = cli_median(t.whole, t.count);
        add_rows(p, r->kernel, t.seconds, t.runs);
    }
    free(t.seconds);
    free(t.runs);
    return status;
}

/* ---- the cache of a GPU ---- */

/* The last launches that ncu saw are those of a run. */
static void ask_ncu(profile *p, const cli_options *o) {
    ncu_report l2 = {.why = ""};
    int launches = 0, at;
    bool slabs = p->info.slabs > 1, piped = o->names[0][0] == '-' || (o->in && !strcmp(o->in, "-"));
    for (int i = 0; i < p->info.parts; i++)
        launches += p->launches[i];
    if (slabs || piped)
        snprintf(p->l2, sizeof p->l2, "%s",
                 slabs ? "with --memory, the launches of parts alternate"
                       : "standard input can be read only once");
    else
        ncu_run(o, &l2);
    if (*l2.why)
        snprintf(p->l2, sizeof p->l2, "%s", l2.why);
    else if (!*p->l2 && l2.count < launches)
        snprintf(p->l2, sizeof p->l2, "ncu saw %d launches, but a run has %d", l2.count, launches);
    at = l2.count - launches;
    for (int i = 0; i < p->info.parts && !*p->l2; at += p->launches[i++]) {
        profile_row *r = &p->rows[p->row_of[i]];
        if (p->launches[i] && !ncu_add(&l2, at, p->launches[i], &r->sectors, &r->hits))
            snprintf(p->l2, sizeof p->l2, "ncu did not count the requests of part %d", i + 1);
    }
    ncu_free(&l2);
}

/* ---- the command ---- */

/* What is run, and with what. */
typedef struct job {
    cli_source source;
    cli_inputs in;
    cli_runner runner;
    cli_data data;
    cli_place place;
} job;

static epi_status make(job *j, const cli_options *o, epi_error *err) {
    epi_options options = cli_compile_options(o);
    if (o->device)
        cli_progress("compiling %s", epi_program_name(j->source.program));
    epi_status status = cli_runner_make(&j->runner, &j->source, &options, err);
    if (status == EPI_OK)
        status = cli_data_make(&j->data, j->source.program, j->runner.kernel, err);
    if (status != EPI_OK)
        return status;
    cli_data_random(&j->data, o->seed);
    status = cli_data_set(&j->data, o, err);
    if (status == EPI_OK && o->in)
        status = cli_data_read(&j->data, &j->in, err);
    return status == EPI_OK ? cli_place_make(&j->place, j->source.ctx, o->device, &j->data, err) : status;
}

/* The results that are checked are those of the last run that was timed. */
static epi_status run_job(job *j, const cli_options *o, profile *p, cli_error_row *errors, epi_error *err) {
    const char *name = epi_program_name(j->source.program);
    epi_status status = make(j, o, err);
    if (status != EPI_OK)
        return status;
    epi_device_get(j->source.ctx, o->device, &p->device);
    epi_kernel_get_info(j->runner.kernel, &p->info);
    cli_progress("timing the kernels of %s", name);
    status = cli_place_reset(&j->place, &j->data, err);
    if (status == EPI_OK)
        status = time_kernel(p, &j->runner, &j->place, o->repeat, err);
    if (status == EPI_OK)
        status = cli_place_fetch(&j->place, &j->data, err);
    cli_progress("timing copies and products of this machine");
    if (status == EPI_OK)
        status = profile_rates(p, j->source.ctx, o, err);
    if (!o->no_check)
        cli_progress("computing the f64 reference of %s", name);
    if (status == EPI_OK)
        status = cli_errors(&j->source, o, &j->data, &p->info, errors, err);
    if (status == EPI_OK && o->device)
        cli_progress("running %s under ncu", name);
    if (status == EPI_OK && o->device)
        ask_ncu(p, o);
    cli_progress_end();
    return status;
}

static int report(const profile *p, const job *j, const cli_options *o, const cli_error_row *errors) {
    epi_text out = {0};
    epi_json_writer w = {.text = &out};
    epi_json_put_open(&w, '{');
    profile_put(p, &w);
    if (!o->json)
        profile_print(p);
    int status = cli_report_outputs(&j->data, errors, o, &w);
    epi_json_put_close(&w, '}');
    return cli_print_json(o, &out, status);
}

static int open_inputs(job *j, cli_options *o) {
    epi_error err;
    if (o->in && cli_inputs_open(&j->in, o->in, &err) != EPI_OK)
        return cli_fail(&err);
    if (o->in && cli_inputs_check(&j->in, j->source.program, o, &err) != EPI_OK)
        return cli_fail(&err);
    if (o->in)
        cli_inputs_dims(&j->in, j->source.program, o);
    return EXIT_OK;
}

int cmd_profile(cli_options *given) {
    cli_options o = *given;
    epi_error err;
    profile p = {.rate_size = 0};
    cli_error_row errors[CLI_MAX_TENSORS];
    if (o.name_count && o.in && !strcmp(o.in, "-") && o.names[0][0] == '-')
        return cli_complain(EXIT_USAGE, "standard input cannot be both the program and --in");
    job *j = calloc(1, sizeof *j);
    if (!j)
        return cli_complain(EXIT_FAILED, "out of memory");
    int status = cli_only_program(&j->source, &o);
    if (status != EXIT_OK) {
        free(j);
        return status;
    }
    status = cli_device_choose(j->source.ctx, &o);
    if (status == EXIT_OK)
        status = open_inputs(j, &o);
    if (status == EXIT_OK && run_job(j, &o, &p, errors, &err) == EPI_OK)
        status = report(&p, j, &o, errors);
    else if (status == EXIT_OK)
        status = cli_fail(&err);
    free(p.rows);
    free(p.row_of);
    free(p.launches);
    cli_place_free(&j->place);
    cli_inputs_close(&j->in);
    cli_data_free(&j->data);
    cli_runner_free(&j->runner);
    cli_source_close(&j->source);
    free(j);
    return status;
}
