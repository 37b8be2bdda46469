/* data.c: the tensors of a kernel: made, filled, written, and held against the reference. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/error_rule.h"
#include "base/nearest.h"
#include "base/parallel.h"
#include "cli.h"

static void *allocate(size_t bytes) {
    return aligned_alloc(64, (bytes + 64) / 64 * 64);
}

static size_t bytes_of(const epi_tensor_shape *s) {
    return (size_t)s->count * epi_dtype_size(s->type);
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
        d->tensors[t].data = allocate(bytes_of(&d->shapes[t]));
        if (!d->tensors[t].data) {
            epi_status status = epi_fail(err, EPI_ERR_MEMORY, "there is no memory for '%s' (%zu bytes)",
                                         d->infos[t].name, bytes_of(&d->shapes[t]));
            cli_data_free(d);
            return status;
        }
        memset(d->tensors[t].data, 0xff, bytes_of(&d->shapes[t])); /* NaN in every type: unwritten shows */
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

enum { BLOCK = 4096 }; /* elements that a thread fills, or that are compared, at a time */

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
                            near.all[0] ? epi_nearest_hint(&near, "its scalars are") : ", nor any scalar");
        if (d->shapes[t].rank)
            return epi_fail(err, EPI_ERR_ARGUMENT, "--set: '%s' is a tensor, not a scalar", name);
        d->given[t] = true;
        float value = (float)o->scalars[i].value;
        epi_convert(d->tensors[t].data, d->shapes[t].type, &value, EPI_F32, 1);
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

/* ---- errors ---- */

/* The outputs of another path over the same inputs, in f64, on the CPU. */
static epi_status run_oracle(const cli_source *s, const cli_options *o, const cli_data *d, epi_path path,
                             double perturb, int seed, cli_data *out, epi_error *err) {
    epi_type_binding types[CLI_MAX_BINDINGS + CLI_MAX_TENSORS];
    int count = 0;
    for (; count < o->type_count; count++)
        types[count] = o->types[count];
    for (int t = d->input_count; t < d->count; t++)
        types[count++] = (epi_type_binding){d->infos[t].name, EPI_F64};
    epi_options options = cli_compile_options(o);
    options.types = types;
    options.type_count = count;
    options.path = path;
    options.perturb = perturb;
    options.perturb_seed = seed;
    options.memory = 0;
    options.device = 0;
    options.config = NULL;
    cli_runner r = {0};
    *out = (cli_data){0};
    EPI_TRY(cli_runner_make(&r, s, &options, err));
    epi_status status = cli_data_make(out, s->program, r.kernel, err);
    for (int t = 0; t < d->input_count && status == EPI_OK; t++)
        memcpy(out->tensors[t].data, d->tensors[t].data, bytes_of(&d->shapes[t]));
    if (status == EPI_OK)
        status = epi_kernel_run(r.kernel, out->tensors, out->count, r.work, err);
    cli_runner_free(&r);
    return status;
}

/* What one rounding to the storage type may cost, relative. */
static double unit_of(epi_dtype type) {
    return fmax(epi_dtype_at(type)->unit, 0x1p-24);
}

static double distance(double a, double b) {
    if (a == b || (isnan(a) && isnan(b)))
        return 0;
    return isfinite(a) && isfinite(b) ? fabs(a - b) : INFINITY;
}

/* Of the coarsest type on the way to a tensor: what lies between is stored unless all is one exact kernel. */
static double coarsest_unit(const cli_options *o, const epi_kernel_info *info, epi_dtype type) {
    bool one = !strcmp(info->mainloop, "gemm") || !strcmp(info->mainloop, "rows");
    bool exact = !o->device || o->rounding == EPI_ROUND_EXACT;
    /* Products of e4m3 as they are, whose configurations end so, have no more digits than bf16. */
    if (!strncmp(info->micro, "sm90_", 5) && strstr(info->micro, "_p"))
        return fmax(unit_of(type), unit_of(EPI_BF16));
    return fmax(unit_of(type), one && exact ? 0 : unit_of(o->type));
}

/* Some elements of a tensor, as f32. */
static void values_of(const cli_data *d, int t, int64_t first, int64_t n, float *out) {
    epi_dtype type = d->shapes[t].type;
    epi_convert(out, EPI_F32, (const char *)d->tensors[t].data + (size_t)first * epi_dtype_size(type), type,
                n);
}

/* Takes some elements of output t into its row, whose reference is itself where there is none. The naive
 * path's result is rounded to storage like any other's. */
static void add_errors(cli_error_row *row, const cli_data *d, const cli_data *ref, const cli_data *naive,
                       int t, int64_t first, int64_t n) {
    float got[BLOCK], plain[BLOCK];
    unsigned char stored[BLOCK * 8];
    values_of(d, t, first, n, got);
    if (ref->count) {
        epi_convert(stored, d->shapes[t].type, (const double *)naive->tensors[t].data + first, EPI_F64, n);
        epi_convert(plain, EPI_F32, stored, d->shapes[t].type, n);
    }
    for (int64_t i = 0; i < n; i++) {
        double want = ref->count ? ((const double *)ref->tensors[t].data)[first + i] : (double)got[i];
        row->fused = fmax(row->fused, distance((double)got[i], want));
        row->naive = fmax(row->naive, ref->count ? distance((double)plain[i], want) : 0);
        row->scale = fmax(row->scale, isfinite(want) ? fabs(want) : 0);
        row->nan += isnan(got[i]) != 0;
        row->infinite += isinf(got[i]) != 0;
    }
}

static bool is_ok(const cli_error_row *row) {
    return row->fused <= epi_error_bound(row->naive, row->spread, row->scale, row->floor);
}

/* How far results come apart when values on the way are perturbed: of those that are beyond the rule's rest.
 */
static epi_status add_spread(const cli_source *source, const cli_options *o, const cli_data *d,
                             const epi_kernel_info *info, const cli_data *ref, cli_error_row *rows,
                             epi_error *err) {
    double unit = epi_error_floor(coarsest_unit(o, info, EPI_F32), info->terms);
    epi_status status = EPI_OK;
    for (int seed = 0; seed < EPI_SPREAD_SAMPLES && status == EPI_OK; seed++) {
        cli_data moved = {0};
        status = run_oracle(source, o, d, EPI_PATH_REFERENCE, unit, seed, &moved, err);
        for (int t = d->input_count; t < d->count && status == EPI_OK; t++) {
            const double *to = moved.tensors[t].data, *from = ref->tensors[t].data;
            cli_error_row *row = &rows[t - d->input_count];
            for (int64_t i = 0; i < d->shapes[t].count && !row->ok; i++)
                if (isfinite(to[i]) && isfinite(from[i])) /* others say nothing */
                    row->spread = fmax(row->spread, distance(to[i], from[i]));
        }
        cli_data_free(&moved);
    }
    return status;
}

epi_status cli_errors(const cli_source *source, const cli_options *o, const cli_data *d,
                      const epi_kernel_info *info, cli_error_row *rows, epi_error *err) {
    cli_data ref = {0}, naive = {0};
    epi_status status = o->no_check ? EPI_OK : run_oracle(source, o, d, EPI_PATH_REFERENCE, 0, 0, &ref, err);
    if (status == EPI_OK && !o->no_check)
        status = run_oracle(source, o, d, EPI_PATH_NAIVE, 0, 0, &naive, err);
    bool all = true;
    for (int t = d->input_count; t < d->count && status == EPI_OK; t++) {
        cli_error_row *row = &rows[t - d->input_count];
        *row = (cli_error_row){0};
        for (int64_t at = 0; at < d->shapes[t].count; at += BLOCK)
            add_errors(row, d, &ref, &naive, t, at, epi_min64(BLOCK, d->shapes[t].count - at));
        row->floor = epi_error_floor(coarsest_unit(o, info, d->shapes[t].type), info->terms);
        row->ok = is_ok(row);
        all &= row->ok;
    }
    if (status == EPI_OK && !all)
        status = add_spread(source, o, d, info, &ref, rows, err);
    for (int t = d->input_count; t < d->count && status == EPI_OK; t++)
        rows[t - d->input_count].ok = is_ok(&rows[t - d->input_count]);
    cli_data_free(&ref);
    cli_data_free(&naive);
    return status;
}

double cli_compare(const cli_data *d, const cli_data *plain, const cli_error_row *rows, bool *ok) {
    double worst = 0;
    *ok = true;
    for (int t = d->input_count; t < d->count; t++) {
        const cli_error_row *row = &rows[t - d->input_count];
        const epi_tensor_shape *shape = &d->shapes[t];
        double far = 0, scale = 0;
        float a[BLOCK], b[BLOCK];
        for (int64_t at = 0; at < shape->count; at += BLOCK) {
            int64_t n = epi_min64(BLOCK, shape->count - at);
            values_of(d, t, at, n, a);
            values_of(plain, t, at, n, b);
            for (int64_t i = 0; i < n; i++) {
                far = fmax(far, isnan(b[i]) ? (double)INFINITY : distance((double)a[i], (double)b[i]));
                scale = fmax(scale, isfinite(b[i]) ? fabs((double)b[i]) : 0);
            }
        }
        far /= scale > 0 ? scale : 1;
        worst = fmax(worst, far);
        *ok &= far <= 2 * epi_error_bound(cli_relative(row->naive, row), cli_relative(row->spread, row), 1,
                                          row->floor);
    }
    return worst;
}
