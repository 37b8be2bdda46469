/* inputs.c: the file of --in: what it says of a program's sizes, and its tensors as a kernel wants them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base.h"
#include "cli.h"

epi_status cli_inputs_open(cli_inputs *in, const char *path, epi_error *err) {
    struct stat info;
    size_t size;
    *in = (cli_inputs){.path = path};
    bool piped =
        !strcmp(path, "-") || (stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode));
    if (!piped)
        return epi_safetensors_open(path, &in->file, err);
    in->bytes = cli_read_text(path, &size, err);
    epi_status status =
        in->bytes ? epi_safetensors_parse(in->bytes, size, path, &in->file, err) : EPI_ERR_FILE;
    if (status != EPI_OK)
        cli_inputs_close(in);
    return status;
}

void cli_inputs_close(cli_inputs *in) {
    epi_safetensors_close(in->file);
    free(in->bytes);
    *in = (cli_inputs){0};
}

/* ---- sizes ---- */

static bool is_bound(const cli_options *o, const char *dim) {
    for (int i = 0; i < o->dim_count; i++)
        if (!strcmp(o->dims[i].name, dim))
            return true;
    return false;
}

/* The size of a dim of which an axis has size(dim) * 2^shift elements, or -1. */
static int64_t dim_of_axis(int64_t elements, int shift) {
    int64_t scale = (int64_t)1 << abs(shift), size;
    if (shift > 0)
        return elements % scale ? -1 : elements / scale;
    return epi_mul_size(elements, scale, &size) ? size : -1;
}

void cli_inputs_dims(cli_inputs *in, const epi_program *program, cli_options *o) {
    epi_tensor_info info;
    for (int t = 0; epi_program_tensor(program, t, &info) == EPI_OK && !info.is_output; t++) {
        const epi_safetensor *st = epi_safetensors_find(in->file, info.name);
        for (int i = 0; st && st->rank == info.rank && i < info.rank; i++) {
            int64_t size = dim_of_axis(st->shape[i], info.axes[i].shift);
            if (size < 0 || is_bound(o, info.axes[i].dim) || o->dim_count == CLI_MAX_BINDINGS)
                continue;
            o->dims[o->dim_count++] = (epi_dim_binding){info.axes[i].dim, size};
            in->sizes = true;
        }
    }
}

/* ---- elements ---- */

/* A scalar may be a tensor of one element. */
static bool same_shape(const epi_safetensor *st, const epi_tensor_shape *want) {
    bool same = st->rank == want->rank || !want->rank;
    for (int i = 0; same && i < st->rank; i++)
        same = st->shape[i] == (want->rank ? want->sizes[i] : 1);
    return same;
}

static epi_status wrong_shape(const cli_inputs *in, const epi_safetensor *st, const epi_tensor_shape *want,
                              epi_error *err) {
    epi_text have = {0}, ask = {0};
    for (int i = 0; i < st->rank; i++)
        epi_text_add(&have, "%s%ld", i ? "," : "", (long)st->shape[i]);
    for (int i = 0; i < want->rank; i++)
        epi_text_add(&ask, "%s%ld", i ? "," : "", (long)want->sizes[i]);
    epi_status status =
        epi_fail(err, EPI_ERR_FILE, "%s: the shape of '%s' is [%s], the program and %s want [%s]", in->path,
                 st->name, have.data ? have.data : "", in->sizes ? "the sizes of its other inputs" : "--dims",
                 ask.data ? ask.data : "");
    epi_text_free(&have);
    epi_text_free(&ask);
    return status;
}

/* One element, exactly but for an I64 beyond 2^53. */
static double element_of(const epi_safetensor *st, int64_t i) {
    double wide;
    float value;
    int64_t whole;
    size_t size = epi_dtype_size(st->type);
    const char *at = (const char *)st->data + (size_t)i * size;
    if (st->type == EPI_F64)
        return memcpy(&wide, at, sizeof wide), wide;
    if (epi_dtype_is_integer(st->type))
        return epi_convert(&whole, EPI_I64, at, st->type, 1), (double)whole;
    epi_convert(&value, EPI_F32, at, st->type, 1);
    return (double)value;
}

/* To an integer only what is a whole number and fits; to other types as a kernel would round. */
static epi_status convert_elements(const cli_inputs *in, const epi_safetensor *st, void *to,
                                   const epi_tensor_shape *want, epi_error *err) {
    double least = want->type == EPI_I32 ? -0x1p31 : -0x1p63;
    for (int64_t i = 0; i < want->count && epi_dtype_is_integer(want->type); i++) {
        double value = element_of(st, i);
        if (!(value >= least && value < -least && value == floor(value)))
            return epi_fail(err, EPI_ERR_FILE, "%s: element %ld of '%s' is %s, which is no %s", in->path,
                            (long)i, st->name, epi_number_write(value).text, epi_dtype_name(want->type));
        int64_t whole = (int64_t)value;
        epi_convert((char *)to + (size_t)i * epi_dtype_size(want->type), want->type, &whole, EPI_I64, 1);
    }
    if (!epi_dtype_is_integer(want->type))
        epi_convert(to, want->type, st->data, st->type, want->count);
    return EPI_OK;
}

static epi_status read_tensor(const cli_inputs *in, cli_data *d, int t, epi_error *err) {
    const epi_safetensor *st = epi_safetensors_find(in->file, d->infos[t].name);
    const epi_tensor_shape *want = &d->shapes[t];
    epi_status status = epi_safetensors_get(in->file, d->infos[t].name, &st, err);
    if (status != EPI_OK)
        return status;
    if (!same_shape(st, want))
        return wrong_shape(in, st, want, err);
    if (st->type == want->type) {
        memcpy(d->tensors[t].data, st->data, st->bytes);
        return EPI_OK;
    }
    status = convert_elements(in, st, d->tensors[t].data, want, err);
    if (status == EPI_OK)
        cli_complain(EXIT_OK, "note: %s: '%s' is %s, converted to %s", in->path, st->name, st->type_name,
                     epi_dtype_name(want->type));
    return status;
}

/* ---- the inputs of a kernel ---- */

/* The first few tensors of a file that no input is called after: one of them may be what was meant. */
static void other_tensors(const cli_data *d, const epi_safetensors *file, epi_text *out) {
    enum { MOST = 4 };
    int others = 0;
    for (size_t i = 0; i < epi_safetensors_count(file); i++) {
        const char *name = epi_safetensors_at(file, i)->name;
        bool ours = false;
        for (int t = 0; t < d->input_count; t++)
            ours |= !strcmp(d->infos[t].name, name);
        if (!ours && others++ < MOST)
            epi_text_add(out, "%s'%s'", others > 1 ? ", " : "; it has ", name);
    }
    if (others > MOST)
        epi_text_add(out, " and %d more", others - MOST);
}

epi_status cli_data_read(cli_data *d, const cli_inputs *in, bool random, epi_error *err) {
    int found = 0;
    epi_status status = EPI_OK;
    epi_text missing = {0}, others = {0};
    for (int t = 0; t < d->input_count && status == EPI_OK; t++) {
        bool has = epi_safetensors_find(in->file, d->infos[t].name) != NULL;
        found += has;
        if (d->given[t])
            continue;
        if (has)
            status = read_tensor(in, d, t, err);
        else
            epi_text_add(&missing, "%s'%s'", missing.length ? ", " : "", d->infos[t].name);
        d->given[t] = has;
    }
    other_tensors(d, in->file, &others);
    const char *hint = others.data ? others.data : "";
    if (status == EPI_OK && !found && d->input_count)
        status = epi_fail(err, EPI_ERR_FILE, "%s has none of the program's inputs%s", in->path, hint);
    else if (status == EPI_OK && missing.length && !random)
        status =
            epi_fail(err, EPI_ERR_FILE, "%s has no %s%s; --set gives a scalar, --random all that is missing",
                     in->path, missing.data, hint);
    else if (status == EPI_OK && missing.length)
        cli_complain(EXIT_OK, "note: %s has no %s%s; random", in->path, missing.data, hint);
    epi_text_free(&missing);
    epi_text_free(&others);
    return status;
}
