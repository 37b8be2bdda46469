/* inputs.c: reads the file of --in: the sizes that it gives, and its tensors as a kernel needs them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base.h"
#include "cli.h"
#include "io/safetensors_header.h"

/* Can it be a file of tensors? It begins with the length of its header. */
static bool is_tensors(const char *bytes, size_t length) {
    uint64_t header;
    if (length < sizeof header)
        return true;
    memcpy(&header, bytes, sizeof header);
    return header >= 2 && header <= EPI_SAFETENSORS_MAX_HEADER;
}

epi_status cli_inputs_open(cli_inputs *in, const char *path, epi_error *err) {
    struct stat info;
    size_t size;
    *in = (cli_inputs){.path = path};
    bool piped =
        !strcmp(path, "-") || (stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode));
    if (!piped)
        return epi_safetensors_open(path, &in->file, err);
    in->bytes = cli_read_text(path, is_tensors, &size, err);
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
            if (size < 0 || cli_find_dim(o, info.axes[i].dim) >= 0 || o->dim_count == CLI_MAX_BINDINGS)
                continue;
            o->dims[o->dim_count++] = (epi_dim_binding){info.axes[i].dim, size};
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

static void add_axis(epi_text *out, const epi_tensor_info *info, int i) {
    int shift = info->axes[i].shift;
    if (shift > 0)
        epi_text_add(out, "%d*", 1 << shift);
    epi_text_add(out, "%s", info->axes[i].dim);
    if (shift < 0)
        epi_text_add(out, "/%d", 1 << -shift);
}

/* "[3,4], and x[T,D]": what the file has, and the program wants. */
static void add_both(epi_text *say, const epi_safetensor *st, const epi_tensor_info *info) {
    for (int i = 0; i < st->rank; i++)
        epi_text_add(say, "%s%ld", i ? "," : "[", (long)st->shape[i]);
    epi_text_add(say, "%s], and %s", st->rank ? "" : "[", info->name);
    for (int i = 0; i < info->rank; i++) {
        epi_text_add(say, i ? "," : "[");
        add_axis(say, info, i);
    }
    epi_text_add(say, info->rank ? "]" : " is a scalar");
}

/* Has a tensor as many axes as its input? What of it are sizes is not known before. */
static epi_status check_rank(const cli_inputs *in, const epi_tensor_info *info, epi_error *err) {
    const epi_safetensor *st = epi_safetensors_find(in->file, info->name);
    if (!st || st->rank == info->rank || !info->rank)
        return EPI_OK;
    epi_text say = {0};
    add_both(&say, st, info);
    epi_status status = epi_fail(err, EPI_ERR_FILE, "%s: '%s' is %s has %d ax%s", in->path, st->name,
                                 say.data ? say.data : "", info->rank, info->rank == 1 ? "is" : "es");
    epi_text_free(&say);
    return status;
}

/* Who says how long an axis is: an input of the file before this one, or --dims. */
static const char *source_of(const cli_inputs *in, const cli_data *d, int t, const char *dim) {
    for (int u = 0; u < t; u++)
        for (int i = 0; i < d->infos[u].rank; i++)
            if (!strcmp(d->infos[u].axes[i].dim, dim) && epi_safetensors_find(in->file, d->infos[u].name))
                return d->infos[u].name;
    return "--dims";
}

/* "a.safetensors: 'w' is [5,3], and w[F,D] wants D to be 5, as x has it; is it transposed?" */
static epi_status wrong_shape(const cli_inputs *in, const cli_data *d, int t, const epi_safetensor *st,
                              epi_error *err) {
    epi_text say = {0};
    const epi_tensor_info *info = &d->infos[t];
    const epi_tensor_shape *want = &d->shapes[t];
    int at = 0;
    add_both(&say, st, info);
    while (at < want->rank && at < st->rank && st->shape[at] == want->sizes[at])
        at++;
    if (want->rank) {
        bool transposed = false;
        for (int i = 0; i < st->rank; i++)
            transposed |= i != at && st->shape[i] == want->sizes[at];
        epi_text_add(&say, " needs ");
        add_axis(&say, info, at);
        epi_text_add(&say, " to be %ld, as in %s%s", (long)want->sizes[at],
                     source_of(in, d, t, info->axes[at].dim), transposed ? "; is it transposed?" : "");
    }
    epi_status status =
        epi_fail(err, EPI_ERR_FILE, "%s: '%s' is %s", in->path, st->name, say.data ? say.data : "");
    epi_text_free(&say);
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

bool cli_store_integer(epi_dtype type, double value, void *to) {
    int64_t whole = fabs(value) < 0x1p63 ? (int64_t)value : 0, back;
    epi_convert(to, type, &whole, EPI_I64, 1);
    epi_convert(&back, EPI_I64, to, type, 1);
    return (double)whole == value && back == whole;
}

/* To an integer only what is a whole number and fits; to other types as a kernel would round. */
static epi_status convert_elements(const cli_inputs *in, const epi_safetensor *st, void *to,
                                   const epi_tensor_shape *want, epi_error *err) {
    for (int64_t i = 0; i < want->count && epi_dtype_is_whole(want->type); i++) {
        double value = element_of(st, i);
        if (!cli_store_integer(want->type, value, (char *)to + (size_t)i * epi_dtype_size(want->type)))
            return epi_fail(err, EPI_ERR_FILE, "%s: element %ld of '%s' is %s, which is not a value of %s",
                            in->path, (long)i, st->name, epi_number_write(value).text,
                            epi_dtype_name(want->type));
    }
    if (!epi_dtype_is_whole(want->type))
        epi_convert(to, want->type, st->data, st->type, want->count);
    return EPI_OK;
}

/* How many elements are NaN or infinite. */
static int64_t count_no_numbers(const char *data, epi_dtype type, int64_t count) {
    enum { BLOCK = 4096 };
    double x[BLOCK];
    int64_t found = 0;
    for (int64_t at = 0, n; at < count && !epi_dtype_is_whole(type); at += n) {
        n = epi_min64(BLOCK, count - at);
        epi_convert(x, EPI_F64, data + (size_t)at * epi_dtype_size(type), type, n);
        for (int64_t i = 0; i < n; i++)
            found += !isfinite(x[i]);
    }
    return found;
}

/* Says of a tensor how many of its elements are no numbers, and how many became so in another type. */
static void note_no_numbers(const cli_inputs *in, const epi_safetensor *st, const cli_data *d, int t) {
    const epi_tensor_shape *want = &d->shapes[t];
    int64_t given = 0, made = count_no_numbers(d->tensors[t].data, want->type, want->count);
    for (int64_t i = 0; i < want->count && made; i++)
        given += !isfinite(element_of(st, i));
    made -= given;
    if (given)
        cli_complain(EXIT_OK, "note: %s: %ld of %ld elements of '%s' are NaN or infinite", in->path,
                     (long)given, (long)want->count, st->name);
    if (made > 0)
        cli_complain(EXIT_OK,
                     "note: %s: %ld of %ld elements of '%s' are too large for %s and became infinite",
                     in->path, (long)made, (long)want->count, st->name, epi_dtype_name(want->type));
}

static epi_status read_tensor(const cli_inputs *in, cli_data *d, int t, epi_error *err) {
    const epi_safetensor *st = epi_safetensors_find(in->file, d->infos[t].name);
    const epi_tensor_shape *want = &d->shapes[t];
    EPI_TRY(epi_safetensors_get(in->file, d->infos[t].name, &st, err));
    if (!same_shape(st, want))
        return wrong_shape(in, d, t, st, err);
    if (st->type == want->type) {
        memcpy(d->tensors[t].data, st->data, st->bytes);
        note_no_numbers(in, st, d, t);
        return EPI_OK;
    }
    epi_status status = convert_elements(in, st, d->tensors[t].data, want, err);
    if (status == EPI_OK)
        cli_complain(EXIT_OK, "note: %s: '%s' is %s, converted to %s", in->path, st->name, st->type_name,
                     epi_dtype_name(want->type));
    if (status == EPI_OK)
        note_no_numbers(in, st, d, t);
    return status;
}

/* ---- the inputs of a kernel ---- */

static bool is_set(const cli_options *o, const char *name) {
    for (int i = 0; i < o->scalar_count; i++)
        if (!strcmp(o->scalars[i].name, name))
            return true;
    return false;
}

/* The first few tensors of a file that no input is called after: one of them may be what was meant. */
static void other_tensors(const epi_program *program, const epi_safetensors *file, epi_text *out) {
    enum { MOST = 4 };
    int others = 0;
    for (size_t i = 0; i < epi_safetensors_count(file); i++) {
        const char *name = epi_safetensors_at(file, i)->name;
        if (cli_role_of(program, name) != CLI_INPUT && others++ < MOST)
            epi_text_add(out, "%s'%s'", others > 1 ? ", " : "; it has ", name);
    }
    if (others > MOST)
        epi_text_add(out, " and %d more", others - MOST);
}

epi_status cli_inputs_check(const cli_inputs *in, const epi_program *program, const cli_options *o,
                            epi_error *err) {
    int found = 0, count = 0;
    epi_status status = EPI_OK;
    epi_text missing = {0}, others = {0};
    epi_tensor_info info;
    for (; epi_program_tensor(program, count, &info) == EPI_OK && !info.is_output; count++) {
        bool has = epi_safetensors_find(in->file, info.name) != NULL;
        found += has;
        if (status == EPI_OK && !is_set(o, info.name))
            status = check_rank(in, &info, err);
        if (!has && !is_set(o, info.name))
            epi_text_add(&missing, "%s'%s'", missing.length ? ", " : "", info.name);
    }
    other_tensors(program, in->file, &others);
    const char *hint = others.data ? others.data : "";
    bool ranks = status == EPI_OK;
    if (ranks && !found && count)
        status = epi_fail(err, EPI_ERR_FILE, "%s has none of the program's inputs: %s%s", in->path,
                          missing.data ? missing.data : "--set gives all of them", hint);
    else if (ranks && missing.length && !o->random)
        status =
            epi_fail(err, EPI_ERR_FILE,
                     "%s has no %s%s; use --set for a scalar, or --random for everything that is missing",
                     in->path, missing.data, hint);
    else if (ranks && missing.length)
        cli_complain(EXIT_OK, "note: %s has no %s%s; filled with random numbers", in->path, missing.data,
                     hint);
    epi_text_free(&missing);
    epi_text_free(&others);
    return status;
}

epi_status cli_data_read(cli_data *d, const cli_inputs *in, epi_error *err) {
    epi_status status = EPI_OK;
    for (int t = 0; t < d->input_count && status == EPI_OK; t++)
        if (!d->given[t] && epi_safetensors_find(in->file, d->infos[t].name)) {
            status = read_tensor(in, d, t, err);
            d->given[t] = true;
        }
    return status;
}
