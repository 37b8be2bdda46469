/* device.c: chooses the device of a command, allocates its memory, and measures time on it. */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"

/* ---- which ---- */

static int no_device(const epi_context *ctx, const char *name) {
    epi_text have = {0};
    for (int i = 0; i < epi_device_count(ctx); i++) {
        epi_device_info d;
        epi_device_get(ctx, i, &d);
        epi_text_add(&have, "%s%s", i ? ", " : "", d.name);
    }
    const char *why = epi_device_why_no_gpu(ctx);
    int status = cli_complain(EXIT_FAILED, "there is no device '%s': this machine has %s%s%s", name,
                              have.data ? have.data : "", *why ? "; no GPU: " : "", why);
    epi_text_free(&have);
    return status;
}

int cli_device_choose(const epi_context *ctx, cli_options *o) {
    const char *name = o->device_name ? o->device_name : "cpu";
    if (o->arch && o->device_name)
        return cli_complain(EXIT_USAGE, "--arch needs no device: use either --arch or --device");
    o->device = o->arch ? o->arch : epi_device_find(ctx, name);
    if (!o->arch && o->device < 0)
        return no_device(ctx, name);
    if (!o->device && (o->config || cli_is_given(o, "--rounding")))
        return cli_complain(EXIT_USAGE, "%s is for GPU kernels, but this kernel is for the CPU; see --device",
                            o->config ? "--config" : "--rounding");
    if (o->device && o->micro)
        return cli_complain(EXIT_USAGE, "--micro is for CPU kernels; use --config for a GPU kernel");
    if (!cli_is_given(o, "--type"))
        o->type = o->device ? EPI_BF16 : EPI_F32;
    return EXIT_OK;
}

/* ---- kernels and tensors there ---- */

epi_status cli_runner_make(cli_runner *r, const cli_source *s, const epi_options *o, epi_error *err) {
    *r = (cli_runner){.ctx = s->ctx, .device = o->device, .sizes = r->sizes, .size_count = r->size_count};
    epi_status status = epi_kernel_compile(s->program, o, &r->kernel, err);
    if (status != EPI_OK)
        return status;
    size_t bytes = epi_kernel_workspace(r->kernel);
    if (r->size_count)
        status = epi_kernel_workspace_at(r->kernel, r->sizes, r->size_count, &bytes, err);
    r->bytes = bytes;
    if (status == EPI_OK)
        status = epi_device_alloc(r->ctx, r->device, bytes, &r->work, err);
    if (status == EPI_ERR_MEMORY)
        epi_fail(err, status, "not enough memory for a workspace of %zu bytes", bytes);
    size_t prepared = epi_kernel_prepare_size(r->kernel);
    if (status == EPI_OK && prepared) {
        status = epi_device_alloc(r->ctx, r->device, prepared, &r->prepared, err);
        if (status == EPI_ERR_MEMORY)
            epi_fail(err, status, "not enough memory for %zu bytes of precomputed values", prepared);
    }
    if (status != EPI_OK)
        cli_runner_free(r);
    return status;
}

void cli_runner_free(cli_runner *r) {
    epi_kernel_free(r->kernel);
    if (r->work)
        epi_device_free(r->ctx, r->device, r->work, NULL);
    if (r->prepared)
        epi_device_free(r->ctx, r->device, r->prepared, NULL);
    *r = (cli_runner){0};
}

epi_status cli_place_make(cli_place *p, epi_context *ctx, int device, const cli_data *d, epi_error *err) {
    *p = (cli_place){.ctx = ctx, .device = device, .count = d->count, .input_count = d->input_count};
    for (int t = 0; t < d->count; t++) {
        epi_status status = EPI_OK;
        p->bytes[t] = (size_t)d->shapes[t].count * epi_dtype_size(d->shapes[t].type);
        if (!device)
            p->tensors[t].data = d->tensors[t].data;
        else
            status = epi_device_alloc(ctx, device, p->bytes[t], &p->tensors[t].data, err);
        if (status == EPI_OK && device)
            status = epi_device_copy(ctx, device, p->tensors[t].data, d->tensors[t].data, p->bytes[t], err);
        if (status != EPI_OK) {
            cli_place_free(p);
            return status;
        }
    }
    return EPI_OK;
}

epi_status cli_place_reset(const cli_place *p, cli_data *d, epi_error *err) {
    epi_status status = EPI_OK;
    for (int t = p->input_count; t < p->count && status == EPI_OK; t++) {
        memset(d->tensors[t].data, 0xff, p->bytes[t]);
        if (p->device)
            status =
                epi_device_copy(p->ctx, p->device, p->tensors[t].data, d->tensors[t].data, p->bytes[t], err);
    }
    return status;
}

epi_status cli_place_fetch(const cli_place *p, cli_data *d, epi_error *err) {
    epi_status status = EPI_OK;
    for (int t = p->input_count; t < p->count && p->device && status == EPI_OK; t++)
        status = epi_device_copy(p->ctx, p->device, d->tensors[t].data, p->tensors[t].data, p->bytes[t], err);
    return status;
}

void cli_place_free(cli_place *p) {
    for (int t = 0; t < p->count && p->device; t++)
        epi_device_free(p->ctx, p->device, p->tensors[t].data, NULL);
    *p = (cli_place){0};
}

/* ---- time ---- */

/* Makes what runs need of params. That takes the workspace of the largest sizes. */
static epi_status prepare(const cli_runner *r, const cli_place *p, epi_error *err) {
    void *work = NULL;
    epi_status status = epi_device_alloc(r->ctx, r->device, epi_kernel_workspace(r->kernel), &work, err);
    const epi_call call = EPI_CALL(.tensors = p->tensors, .count = p->count, .workspace = work);
    if (status == EPI_OK)
        status = epi_kernel_prepare(r->kernel, &call, r->prepared, err);
    if (status == EPI_OK)
        status = epi_device_wait(r->ctx, r->device, err);
    if (work)
        epi_device_free(r->ctx, r->device, work, NULL);
    return status;
}

static epi_call call_of(const cli_runner *r, const cli_place *p) {
    return (epi_call)EPI_CALL(.tensors = p->tensors, .count = p->count, .workspace = r->work,
                              .workspace_bytes = r->bytes, .sizes = r->sizes, .size_count = r->size_count,
                              .prepared = r->prepared);
}

epi_status cli_burst(const cli_runner *r, const cli_place *p, int runs, double *seconds, epi_error *err) {
    epi_status status = EPI_OK;
    const epi_call call = call_of(r, p);
    if (r->prepared) /* which is no part of a run */
        status = prepare(r, p, err);
    double start = cli_seconds();
    for (int i = 0; i < runs && status == EPI_OK; i++)
        status = epi_kernel_call(r->kernel, &call, err);
    if (status == EPI_OK)
        status = epi_device_wait(r->ctx, r->device, err);
    *seconds = (cli_seconds() - start) / runs;
    return status;
}

epi_status cli_time_parts(const cli_runner *r, const cli_place *p, int ahead, double *seconds, int *runs,
                          int *launches, int count, epi_error *err) {
    const epi_call call = call_of(r, p);
    epi_status status = r->prepared ? prepare(r, p, err) : EPI_OK;
    for (int i = 0; i < ahead && status == EPI_OK; i++)
        status = epi_kernel_call(r->kernel, &call, err);
    return status == EPI_OK ? epi_kernel_time_parts(r->kernel, &call, seconds, runs, launches, count, err)
                            : status;
}

epi_status cli_burst_size(const cli_runner *r, const cli_place *p, double seconds, int *runs,
                          epi_error *err) {
    enum { MOST = 100000 };
    double one = 0;
    epi_status status = cli_burst(r, p, 1, &one, err); /* the first run is no measure */
    for (*runs = 1; status == EPI_OK;) {
        status = cli_burst(r, p, *runs, &one, err);
        if (one * *runs >= seconds || *runs >= MOST)
            break;
        double wanted = one > 0 ? 1.1 * seconds / one : MOST;
        *runs = (int)epi_min64(MOST, epi_max64(2 * *runs, wanted < MOST ? (int64_t)wanted : MOST));
    }
    return status;
}
