/* data.c: the tensors of a kernel: allocated, filled, written, and named. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/nearest.h"
#include "base/parallel.h"
#include "cli.h"

static void *allocate(size_t bytes) {
    return aligned_alloc(64, (bytes + 64) / 64 * 64);
}

size_t cli_bytes_of(const epi_tensor_shape *s) {
    return (size_t)s->count * epi_dtype_size(s->type);
}

void cli_name_element(const cli_data *d, int t, int64_t element, char *out, size_t size) {
    const epi_tensor_shape *shape = &d->shapes[t];
    int64_t at[EPI_MAX_AXES], rest = element;
    for (int i = shape->rank - 1; i >= 0; rest /= shape->sizes[i--])
        at[i] = rest % shape->sizes[i];
    size_t n = (size_t)snprintf(out, size, "%s", d->infos[t].name);
    for (int i = 0; i < shape->rank && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%ld", i ? "," : "[", (long)at[i]);
    if (shape->rank && n < size)
        snprintf(out + n, size - n, "]");
}

epi_status cli_data_make(cli_data *d, const epi_program *program, const epi_kernel *kernel, epi_error *err) {
    size_t room = (size_t)epi_program_tensor_count(program) + 1;
    *d = (cli_data){.tensors = calloc(room, sizeof *d->tensors),
                    .shapes = calloc(room, sizeof *d->shapes),
                    .infos = calloc(room, sizeof *d->infos),
                    .given = calloc(room, sizeof *d->given)};
    if (!d->tensors || !d->shapes || !d->infos || !d->given) {
        cli_data_free(d);
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    }
    d->count = epi_program_tensor_count(program);
    for (int t = 0; t < d->count; t++) {
        epi_program_tensor(program, t, &d->infos[t]);
        epi_kernel_tensor(kernel, t, &d->shapes[t]);
        d->input_count += !d->infos[t].is_output;
        d->tensors[t].data = allocate(cli_bytes_of(&d->shapes[t]));
        if (!d->tensors[t].data) {
            epi_status status = epi_fail(err, EPI_ERR_MEMORY, "not enough memory for '%s' (%zu bytes)",
                                         d->infos[t].name, cli_bytes_of(&d->shapes[t]));
            cli_data_free(d);
            return status;
        }
        /* NaN in every type: what is not written shows */
        memset(d->tensors[t].data, 0xff, cli_bytes_of(&d->shapes[t]));
    }
    return EPI_OK;
}

void cli_data_free(cli_data *d) {
    for (int t = 0; t < d->count; t++)
        free(d->tensors[t].data);
    free(d->tensors);
    free(d->shapes);
    free(d->infos);
    free(d->given);
    *d = (cli_data){0};
}

/* ---- random inputs ---- */

#define GAMMA 0x9e3779b97f4a7c15u

static uint64_t next_random(uint64_t *state) { /* splitmix64: the state counts, so any element can be next */
    uint64_t z = *state += GAMMA;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double uniform(uint64_t *state) {
    return ((double)(next_random(state) >> 11) + 0.5) * 0x1p-53;
}

static double normal(uint64_t *state) {
    return sqrt(-2 * log(uniform(state))) * cos(6.283185307179586 * uniform(state));
}

enum { BLOCK = 4096 }; /* elements that a thread fills at a time */

typedef struct filling {
    const epi_tensor_shape *shape;
    char *data;
    uint64_t start;
    double range, scale;
} filling;

static void fill_block(void *ctx, int64_t item, int thread) {
    (void)thread;
    const filling *f = ctx;
    epi_dtype type = f->shape->type;
    bool integer = epi_dtype_is_integer(type), whole = epi_dtype_is_whole(type),
         matrix = f->shape->rank > 1 && !whole;
    float x[BLOCK];
    int64_t first = item * BLOCK, n = epi_min64(BLOCK, f->shape->count - first);
    uint64_t state = f->start + (uint64_t)first * (matrix ? 2 : 1) * GAMMA;
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(integer               ? floor(uniform(&state) * f->range)
                       : whole               ? floor(uniform(&state) * 255) - (type == EPI_I8 ? 127 : 0)
                       : f->shape->rank == 0 ? uniform(&state) * 1e-3
                       : f->shape->rank == 1 ? 0.5 + uniform(&state)
                                             : f->scale * normal(&state));
    epi_convert(f->data + (size_t)first * epi_dtype_size(type), type, x, EPI_F32, n);
}

/* Values of a sane size: matrices such that a product of two has unit variance, vectors around one,
 * scalars small and positive, bytes of any size, indices within the axis they count along, other integers within the largest
 * axis of an input. */
void cli_data_random(cli_data *d, uint64_t seed) {
    int64_t range = 1;
    for (int t = 0; t < d->input_count; t++)
        for (int i = 0; i < d->shapes[t].rank; i++)
            range = d->shapes[t].sizes[i] > range ? d->shapes[t].sizes[i] : range;
    for (int t = 0; t < d->input_count; t++) {
        const epi_tensor_shape *shape = &d->shapes[t];
        int64_t inner = shape->rank ? shape->sizes[shape->rank - 1] : 1;
        filling f = {.shape = shape,
                     .data = d->tensors[t].data,
                     .start = seed * 1000003u + (uint64_t)t * 7919u + 17u,
                     .range = (double)(shape->index_below < 0 ? range : shape->index_below),
                     .scale = inner ? pow((double)inner, -0.25) : 1};
        epi_parallel_for(epi_parallel_default(), epi_ceil_div(shape->count, BLOCK), fill_block, &f);
    }
}

/* ---- scalars, files ---- */

epi_status cli_data_set(cli_data *d, const cli_options *o, epi_error *err) {
    for (int i = 0; i < o->scalar_count; i++) {
        const char *name = o->scalars[i].name;
        int t = 0;
        epi_nearest near = {.wanted = name};
        for (; t < d->input_count && strcmp(d->infos[t].name, name) != 0; t++)
            epi_nearest_offer(&near, d->shapes[t].rank ? "" : d->infos[t].name);
        if (t == d->input_count)
            return epi_fail(err, EPI_ERR_ARGUMENT, "--set: the program has no input '%.60s'%s", name,
                            near.all[0] ? epi_nearest_hint(&near, "its scalars are") : "; it has no scalars");
        if (d->shapes[t].rank)
            return epi_fail(err, EPI_ERR_ARGUMENT, "--set: '%s' is a tensor, not a scalar", name);
        d->given[t] = true;
        double value = o->scalars[i].value;
        epi_dtype type = d->shapes[t].type;
        if (!epi_dtype_is_whole(type))
            epi_convert(d->tensors[t].data, type, &value, EPI_F64, 1);
        else if (!cli_store_integer(type, value, d->tensors[t].data))
            return epi_fail(err, EPI_ERR_ARGUMENT, "--set: '%s' is an integer, but %s is not a value of %s",
                            name, epi_number_write(value).text, epi_dtype_name(type));
    }
    return EPI_OK;
}

epi_status cli_data_write(const cli_data *d, const char *path, epi_error *err) {
    epi_safetensor out[CLI_MAX_TENSORS];
    int count = 0;
    for (int t = d->input_count; t < d->count; t++)
        out[count++] = (epi_safetensor){.name = d->infos[t].name,
                                        .type = d->shapes[t].type,
                                        .rank = d->shapes[t].rank,
                                        .shape = d->shapes[t].sizes,
                                        .data = d->tensors[t].data};
    epi_status status = epi_safetensors_write(path, out, (size_t)count, NULL, 0, err);
    if (status != EPI_OK && !strncmp(path, "/dev/fd/", 8)) { /* cli_print_aside */
        char why[sizeof err->message];
        snprintf(why, sizeof why, "standard output%s", err->message + strlen(path));
        epi_fail(err, status, "%s", why);
    }
    return status;
}
