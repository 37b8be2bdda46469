/* tune.c: measures every configuration of a GPU kernel and writes down the fastest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "tuning.h"

enum { ROUNDS = 7, MAX_ROUNDS = 101, MAX_CANDIDATES = 64 };
static const double burst_seconds = 0.010;
static const double worth = 0.995; /* of the model's time: what is no faster than this is noise */

typedef struct candidate {
    const char *name;
    cli_runner runner;
    int runs; /* of a burst */
    double times[MAX_ROUNDS], ms;
    char reason[300]; /* why it is out, or "" */
} candidate;

typedef struct race {
    candidate all[MAX_CANDIDATES];
    int count, model, winner; /* indices of `all` */
    cli_data data, first;     /* the tensors, and the outputs of the model's choice */
    cli_place place;
    tuning_entry entry;
} race;

/* ---- candidates ---- */

/* Compiles one; a configuration that does not take the program as one kernel is out. */
static epi_status add_candidate(race *r, const cli_source *s, const cli_options *o, const char *name,
                                const char *mainloop, epi_error *err) {
    candidate *c = &r->all[r->count];
    *c = (candidate){.name = name};
    epi_kernel_info info;
    epi_options options = cli_compile_options(o);
    options.config = name;
    cli_progress("compiling %s for %s", epi_program_name(s->program), name);
    epi_status status = cli_runner_make(&c->runner, s, &options, err);
    if (status != EPI_OK && status != EPI_ERR_UNSUPPORTED)
        return status;
    r->count++;
    if (status == EPI_OK)
        epi_kernel_get_info(c->runner.kernel, &info);
    if (status == EPI_ERR_UNSUPPORTED)
        snprintf(c->reason, sizeof c->reason, "%.*s", (int)strcspn(err->message, "\n"), err->message);
    else if (strcmp(info.mainloop, mainloop) != 0 || strcmp(info.micro, name) != 0)
        snprintf(c->reason, sizeof c->reason, "the program does not fit it as one kernel");
    if (c->reason[0])
        cli_runner_free(&c->runner);
    return EPI_OK;
}

static epi_status add_candidates(race *r, const cli_source *s, const cli_options *o, epi_error *err) {
    cli_runner model = {0};
    epi_kernel_info info;
    epi_options options = cli_compile_options(o);
    cli_progress("compiling %s", epi_program_name(s->program));
    epi_status status = cli_runner_make(&model, s, &options, err);
    if (status != EPI_OK)
        return status;
    epi_kernel_get_info(model.kernel, &info);
    r->model = -1;
    if (!*info.micro)
        status = epi_fail(err, EPI_ERR_UNSUPPORTED, "%s has no product, and so no configuration to choose",
                          epi_program_name(s->program));
    bool attention = !strncmp(info.micro, "attention_", 10);
    for (int i = 0; i < epi_gpu_config_count() && r->count < MAX_CANDIDATES && status == EPI_OK; i++) {
        if (!strncmp(epi_gpu_config_name(i), "attention_", 10) != attention)
            continue; /* of another mainloop */
        status = add_candidate(r, s, o, epi_gpu_config_name(i), info.mainloop, err);
        if (status == EPI_OK && !strcmp(epi_gpu_config_name(i), info.micro) &&
            !r->all[r->count - 1].reason[0])
            r->model = r->count - 1;
    }
    if (status == EPI_OK && r->model < 0)
        status = epi_fail(
            err, EPI_ERR_UNSUPPORTED,
            "the model's choice, %s, cannot be asked for by name: this is a mistake of Epilog's", info.micro);
    if (status == EPI_OK)
        status = cli_data_make(&r->data, s->program, model.kernel, err);
    if (status == EPI_OK)
        status = cli_data_make(&r->first, s->program, model.kernel, err);
    cli_runner_free(&model);
    return status;
}

/* ---- measuring ---- */

static bool same_outputs(const cli_data *a, const cli_data *b) {
    for (int t = a->input_count; t < a->count; t++)
        if (memcmp(a->tensors[t].data, b->tensors[t].data,
                   (size_t)a->shapes[t].count * epi_dtype_size(a->shapes[t].type)))
            return false;
    return true;
}

/* Warms a candidate up and holds its outputs against the first's: within a contract the bits are the same. */
static epi_status prepare(race *r, candidate *c, cli_data *out, epi_error *err) {
    epi_status status = cli_place_reset(&r->place, out, err);
    if (status == EPI_OK)
        status = cli_burst_size(&c->runner, &r->place, burst_seconds, &c->runs, err);
    if (status == EPI_OK)
        status = cli_place_fetch(&r->place, out, err);
    if (status == EPI_OK && out != &r->first && !same_outputs(out, &r->first)) {
        snprintf(c->reason, sizeof c->reason, "its results are not those of the model's choice");
        cli_runner_free(&c->runner);
    }
    return status;
}

/* All candidates in turn, so that whatever the machine does meanwhile happens to all. */
static epi_status measure(race *r, int rounds, epi_error *err) {
    epi_status status = prepare(r, &r->all[r->model], &r->first, err);
    for (int i = 0; i < r->count && status == EPI_OK; i++)
        if (i != r->model && !r->all[i].reason[0])
            status = prepare(r, &r->all[i], &r->data, err);
    for (int k = 0; k < rounds && status == EPI_OK; k++) {
        cli_progress("measuring, round %d of %d", k + 1, rounds);
        for (int i = 0; i < r->count && status == EPI_OK; i++)
            if (!r->all[i].reason[0])
                status = cli_burst(&r->all[i].runner, &r->place, r->all[i].runs, &r->all[i].times[k], err);
    }
    r->winner = r->model;
    for (int i = 0; i < r->count && status == EPI_OK; i++)
        if (!r->all[i].reason[0])
            r->all[i].ms = 1e3 * cli_median(r->all[i].times, rounds);
    for (int i = 0; i < r->count && status == EPI_OK; i++)
        if (!r->all[i].reason[0] && r->all[i].ms < r->all[r->winner].ms &&
            r->all[i].ms <= worth * r->all[r->model].ms)
            r->winner = i;
    return status;
}

static epi_status run_race(race *r, const cli_source *s, const cli_options *o, epi_error *err) {
    int rounds = o->repeat ? (int)epi_min64(o->repeat, MAX_ROUNDS) : ROUNDS;
    epi_status status = add_candidates(r, s, o, err);
    if (status == EPI_OK) {
        cli_data_random(&r->data, o->seed);
        status = cli_data_set(&r->data, o, err);
    }
    if (status == EPI_OK)
        status = cli_place_make(&r->place, s->ctx, o->device, &r->data, err);
    if (status == EPI_OK)
        status = measure(r, rounds, err);
    cli_progress_end();
    if (status == EPI_OK)
        status = tuning_entry_of(s->program, o, &r->entry, err);
    if (status == EPI_OK) {
        snprintf(r->entry.config, sizeof r->entry.config, "%s", r->all[r->winner].name);
        r->entry.ms = r->all[r->winner].ms;
        r->entry.model_ms = r->all[r->model].ms;
    }
    return status;
}

static void free_race(race *r) {
    for (int i = 0; i < r->count; i++)
        cli_runner_free(&r->all[i].runner);
    cli_place_free(&r->place);
    cli_data_free(&r->data);
    cli_data_free(&r->first);
    free(r);
}

/* ---- output ---- */

static void print_race(const race *r, const epi_device_info *d, const char *path) {
    const tuning_entry *e = &r->entry;
    double model = r->all[r->model].ms;
    printf("%s, %s, %s, %s, on %s, %s\n", e->program, e->dims, e->type, e->rounding, d->name, d->model);
    printf("%-24s %10s %10s\n", "configuration", "ms", "of model's");
    for (int i = 0; i < r->count; i++) {
        const candidate *c = &r->all[i];
        if (c->reason[0])
            printf("%-24s %10s %10s  %s\n", c->name, "-", "-", c->reason);
        else
            printf("%-24s %10.4f %10.3f%s%s\n", c->name, c->ms, c->ms / model,
                   i == r->model ? "  the model's choice" : "", i == r->winner ? "  winner" : "");
    }
    printf("%s goes into %s\n", e->config, path);
}

static int put_race(const race *r, const epi_device_info *d, const char *path) {
    epi_text out = {0};
    epi_json_writer w = {.text = &out};
    epi_json_put_open(&w, '{');
    cli_put_text(&w, "device", d->name);
    cli_put_text(&w, "model", d->model);
    cli_put_text(&w, "program", r->entry.program);
    cli_put_text(&w, "dims", r->entry.dims);
    cli_put_text(&w, "type", r->entry.type);
    cli_put_text(&w, "rounding", r->entry.rounding);
    epi_json_put_key(&w, "candidates");
    epi_json_put_open(&w, '[');
    for (int i = 0; i < r->count; i++) {
        const candidate *c = &r->all[i];
        epi_json_put_open(&w, '{');
        cli_put_text(&w, "config", c->name);
        if (c->reason[0]) {
            cli_put_text(&w, "skipped", c->reason);
        } else {
            cli_put_number(&w, "ms", c->ms);
            cli_put_number(&w, "of_model", c->ms / r->all[r->model].ms);
            cli_put_bool(&w, "model", i == r->model);
            cli_put_bool(&w, "winner", i == r->winner);
        }
        epi_json_put_close(&w, '}');
    }
    epi_json_put_close(&w, ']');
    cli_put_text(&w, "config", r->entry.config);
    cli_put_number(&w, "ms", r->entry.ms);
    cli_put_number(&w, "model_ms", r->entry.model_ms);
    cli_put_text(&w, "file", path);
    epi_json_put_close(&w, '}');
    return cli_print_json(&out);
}

/* ---- the command ---- */

/* Reads the file again before it is written: a race takes minutes, and others may have put theirs in. */
static epi_status record(const tuning_entry *e, const epi_device_info *d, const char *path, epi_error *err) {
    tuning t;
    epi_status status = tuning_read(&t, path, true, err);
    if (status == EPI_OK)
        status = tuning_put(&t, d, e, err);
    if (status == EPI_OK)
        status = tuning_write(&t, path, err);
    tuning_free(&t);
    return status;
}

static int tune(const cli_source *s, const cli_options *o) {
    char path[1100];
    epi_error err;
    epi_device_info d;
    tuning t = {0};
    epi_device_get(s->ctx, o->device, &d);
    /* a file that cannot be updated is found out before the work */
    if (tuning_path(o->out, path, sizeof path, &err) != EPI_OK || tuning_read(&t, path, true, &err) != EPI_OK)
        return cli_fail(&err);
    tuning_free(&t);
    race *r = calloc(1, sizeof *r);
    if (!r)
        return cli_complain(EXIT_FAILED, "out of memory");
    int status = EXIT_OK;
    if (run_race(r, s, o, &err) != EPI_OK || record(&r->entry, &d, path, &err) != EPI_OK)
        status = cli_fail(&err);
    else if (o->json)
        status = put_race(r, &d, path);
    else
        print_race(r, &d, path);
    free_race(r);
    return status;
}

int cmd_tune(const cli_options *given) {
    cli_options o = *given;
    cli_source s;
    epi_error err;
    if (o.name_count != 1)
        return cli_complain(EXIT_USAGE, "tune wants one FILE:NAME; see 'epilog help tune'");
    if (o.out && !strcmp(o.out, "-"))
        return cli_complain(EXIT_USAGE, "tune keeps what a file has: --out wants one, not -");
    if (cli_program_open(&s, o.names[0], &err) != EPI_OK)
        return cli_fail(&err);
    int status = cli_keep_apart(o.out, "the program's text", s.path);
    if (status == EXIT_OK)
        status = cli_device_choose(s.ctx, &o, "gpu");
    if (status == EXIT_OK && !o.device)
        status = cli_complain(EXIT_USAGE, "there is nothing to tune on the CPU: give --device gpu");
    if (status == EXIT_OK)
        status = tune(&s, &o);
    cli_source_close(&s);
    return status;
}
