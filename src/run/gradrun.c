/* gradrun.c: gradients as they run, in the types and by the plan of the options, held against the f64
 * reference of the same rounded inputs: along a random direction in every row of every gradient. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error_rule.h"
#include "run/run.h"

/* How many times as far as the reference moves by itself, where its values are moved by a rounding each, a
 * run may be: it has more samples of the same than the reference was moved. */
#define SPREADS 3
/* A row that moves by so much of its size then is at an edge: nothing can be said of it. */
#define EDGE 0.25

/* The gradient program, its tensors as they run, and its results in f64. */
typedef struct gradrun {
    const epi_program *program;
    int count, inputs;
    epi_tensor tensors[2 * EPI_MAX_TENSORS];
    epi_tensor_shape shapes[2 * EPI_MAX_TENSORS];
    double *exact[EPI_MAX_TENSORS], *moved[EPI_MAX_TENSORS]; /* by result */
    double *along;                                           /* a direction, as long as the longest result */
    double unit;                                             /* of a rounding on the way */
    uint64_t state;
} gradrun;

static epi_status no_memory(epi_error *err) {
    return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
}

static int64_t count_of(const gradrun *r, int result) {
    return r->shapes[r->inputs + result].count;
}

/* ---- tensors ---- */

static epi_status make_tensors(gradrun *r, const epi_kernel *kernel, epi_error *err) {
    int64_t longest = 1;
    for (int t = 0; t < r->count; t++) {
        epi_kernel_tensor(kernel, t, &r->shapes[t]);
        size_t room = (size_t)r->shapes[t].count + 1;
        bool result = t >= r->inputs;
        r->tensors[t].data = calloc(room, sizeof(double));
        if (result) {
            r->exact[t - r->inputs] = calloc(room, sizeof(double));
            r->moved[t - r->inputs] = calloc(room, sizeof(double));
        }
        if (!r->tensors[t].data || (result && (!r->exact[t - r->inputs] || !r->moved[t - r->inputs])))
            return no_memory(err);
        longest = epi_max64(longest, r->shapes[t].count);
    }
    r->along = calloc((size_t)longest, sizeof(double));
    return r->along ? EPI_OK : no_memory(err);
}

static void free_tensors(gradrun *r) {
    for (int t = 0; t < r->count; t++)
        free(r->tensors[t].data);
    for (int t = 0; t < r->count - r->inputs; t++) {
        free(r->exact[t]);
        free(r->moved[t]);
    }
    free(r->along);
}

/* The program's inputs, and random cotangents, as the run stores them. */
static void fill_tensors(gradrun *r, int given, const epi_tensor *inputs) {
    for (int t = 0; t < r->inputs; t++) {
        const epi_tensor_shape *s = &r->shapes[t];
        for (int64_t e = 0; t >= given && e < s->count; e++)
            r->along[e] = epi_next_number(&r->state);
        epi_dtype from = epi_dtype_is_integer(s->type) ? s->type : EPI_F64;
        epi_convert(r->tensors[t].data, s->type, t < given ? inputs[t].data : r->along,
                    t < given ? from : EPI_F64, s->count);
    }
}

/* ---- runs ---- */

static epi_status run_kernel(const epi_kernel *kernel, const epi_tensor *tensors, int count, epi_error *err) {
    size_t prepared = epi_kernel_prepare_size(kernel);
    void *work = aligned_alloc(64, epi_kernel_workspace(kernel)),
         *once = prepared ? aligned_alloc(64, (prepared + 63) / 64 * 64) : NULL;
    epi_call call = EPI_CALL(.tensors = tensors, .count = count, .workspace = work);
    epi_status status = work && (once || !prepared) ? EPI_OK : no_memory(err);
    if (status == EPI_OK && prepared)
        status = epi_kernel_prepare(kernel, &call, once, err);
    call.prepared = once;
    if (status == EPI_OK)
        status = epi_kernel_call(kernel, &call, err);
    free(work);
    free(once);
    return status;
}

/* Compiles what the options say of the gradient program and runs it; the first to be compiled makes the
 * tensors. */
static epi_status run_typed(gradrun *r, const epi_options *options, int given, const epi_tensor *inputs,
                            epi_error *err) {
    epi_kernel *kernel;
    epi_kernel_info info;
    epi_status status = epi_kernel_compile(r->program, options, &kernel, err);
    if (status != EPI_OK)
        return status;
    epi_kernel_get_info(kernel, &info);
    r->unit = epi_error_floor(epi_dtype_at(options->type)->unit, info.terms);
    status = make_tensors(r, kernel, err);
    for (int t = 0; t < given && status == EPI_OK; t++)
        if (!inputs[t].data && r->shapes[t].count)
            status = epi_fail(err, EPI_ERR_ARGUMENT, "epi_program_gradrun: input %d is NULL", t);
    if (status == EPI_OK) {
        fill_tensors(r, given, inputs);
        status = run_kernel(kernel, r->tensors, r->count, err);
    }
    epi_kernel_free(kernel);
    return status;
}

/* The reference of the tensors as they are; its values moved by `perturb`. Results go to `out`. */
static epi_status run_exact(const gradrun *r, const epi_options *given, double perturb, int seed,
                            double *const *out, epi_error *err) {
    epi_type_binding types[2 * EPI_MAX_TENSORS];
    epi_tensor tensors[2 * EPI_MAX_TENSORS];
    epi_kernel *kernel;
    epi_options o =
        EPI_OPTIONS(.dims = given->dims, .dim_count = given->dim_count, .types = types, .threads = 1,
                    .path = EPI_PATH_REFERENCE, .perturb = perturb, .perturb_seed = seed);
    for (int t = 0; t < r->count; t++) {
        tensors[t] = (epi_tensor){t < r->inputs ? r->tensors[t].data : out[t - r->inputs], NULL};
        types[o.type_count++] = (epi_type_binding){r->program->graph.tensors[t].name,
                                                   t < r->inputs ? r->shapes[t].type : EPI_F64};
    }
    epi_status status = epi_kernel_compile(r->program, &o, &kernel, err);
    if (status != EPI_OK)
        return status;
    status = run_kernel(kernel, tensors, r->count, err);
    epi_kernel_free(kernel);
    return status;
}

/* ---- rows ---- */

/* Elements of a row: those that differ along the last axis alone. */
static int64_t row_length(const gradrun *r, int result) {
    const epi_tensor_shape *s = &r->shapes[r->inputs + result];
    return s->rank > 1 ? s->sizes[s->rank - 1] : s->count;
}

typedef struct row_sums {
    double got, exact, size;
} row_sums;

/* The derivative along the direction in a row, as it ran and exactly, and the same of absolute values. */
static row_sums sums_of(const gradrun *r, int result, int64_t first, int64_t length) {
    row_sums s = {0, 0, 0};
    const epi_tensor_shape *shape = &r->shapes[r->inputs + result];
    const char *data = r->tensors[r->inputs + result].data;
    for (int64_t e = first; e < first + length; e++) {
        double got;
        epi_convert(&got, EPI_F64, data + (size_t)e * epi_dtype_size(shape->type), shape->type, 1);
        s.got += r->along[e] * got;
        s.exact += r->along[e] * r->exact[result][e];
        s.size += fabs(r->along[e] * r->exact[result][e]);
    }
    return s;
}

/* How far the rows of a result move by themselves: the most of some samples, in `spread` by row. */
static epi_status find_spreads(gradrun *r, const epi_options *o, double **spread, epi_error *err) {
    epi_status status = EPI_OK;
    for (int sample = 0; sample < EPI_SPREAD_SAMPLES && status == EPI_OK; sample++) {
        status = run_exact(r, o, r->unit, sample, r->moved, err);
        for (int t = 0; t < r->count - r->inputs && status == EPI_OK; t++) {
            int64_t length = row_length(r, t);
            for (int64_t e = 0; e < count_of(r, t); e += length) {
                double far = 0;
                for (int64_t i = e; i < e + length; i++)
                    far += r->along[i] * (r->moved[t][i] - r->exact[t][i]);
                spread[t][e / length] = fmax(spread[t][e / length], isnan(far) ? INFINITY : fabs(far));
            }
        }
    }
    return status;
}

/* Takes one row into what is found. */
static void judge(const gradrun *r, int input, int64_t row, row_sums s, double spread, epi_gradrun *out) {
    double allowed = SPREADS * spread + r->unit * s.size + 0x1p-126, off = fabs(s.got - s.exact) / allowed;
    out->compared++;
    if (!isfinite(s.exact)) {
        out->infinite++;
        return;
    }
    if (!(spread <= EDGE * s.size) && !(s.got == s.exact)) {
        out->edges++;
        return;
    }
    if (off <= out->off && out->input >= 0)
        return;
    out->off = isnan(off) ? INFINITY : off;
    out->input = input;
    out->row = row;
    out->derived = s.got;
    out->exact = s.exact;
}

static epi_status judge_rows(gradrun *r, const epi_options *o, const int *input, epi_gradrun *out,
                             epi_error *err) {
    double *spread[EPI_MAX_TENSORS] = {NULL};
    epi_status status = EPI_OK;
    int results = r->count - r->inputs;
    int64_t longest = 0;
    for (int t = 0; t < results; t++) {
        longest = epi_max64(longest, count_of(r, t));
        spread[t] = calloc((size_t)count_of(r, t) + 1, sizeof(double));
        if (!spread[t])
            status = no_memory(err);
    }
    for (int64_t e = 0; e < longest; e++)
        r->along[e] = epi_next_number(&r->state);
    if (status == EPI_OK)
        status = find_spreads(r, o, spread, err);
    for (int t = 0; t < results && status == EPI_OK; t++) {
        int64_t length = row_length(r, t);
        for (int64_t e = 0; e < count_of(r, t); e += length)
            judge(r, input[t], e / length, sums_of(r, t, e, length), spread[t][e / length], out);
    }
    for (int t = 0; t < results; t++)
        free(spread[t]);
    return status;
}

/* The options for the gradient program: types by name are of tensors that it has. */
static epi_options typed_options(const epi_options *given, const epi_program *gradient,
                                 epi_type_binding *types) {
    epi_options o = EPI_OPTIONS(.dims = given->dims, .dim_count = given->dim_count, .type = given->type,
                                .types = types, .threads = given->threads, .micro = given->micro,
                                .algebra = given->algebra, .path = given->path, .memory = given->memory);
    for (int i = 0; i < given->type_count && i < 2 * EPI_MAX_TENSORS; i++)
        if (epi_graph_find_tensor(&gradient->graph, given->types[i].tensor) >= 0)
            types[o.type_count++] = given->types[i];
    return o;
}

static epi_status run_all(gradrun *r, const epi_program *program, const char *const *wrt,
                          const epi_options *given, const epi_tensor *inputs, epi_gradrun *out,
                          epi_error *err) {
    epi_type_binding types[2 * EPI_MAX_TENSORS];
    int input[EPI_MAX_TENSORS];
    epi_options o = typed_options(given, r->program, types);
    epi_status status = run_typed(r, &o, program->graph.input_count, inputs, err);
    if (status == EPI_OK)
        status = run_exact(r, &o, 0, 0, r->exact, err);
    for (int t = 0; t < r->count - r->inputs; t++)
        input[t] = epi_graph_find_tensor(&program->graph, wrt[t]);
    return status == EPI_OK ? judge_rows(r, &o, input, out, err) : status;
}

epi_status epi_program_gradrun_sized(const epi_program *program, const char *const *wrt, int wrt_count,
                                     const epi_options *options, const epi_tensor *inputs, uint64_t seed,
                                     epi_gradrun *out, size_t size, epi_error *err) {
    epi_options o;
    epi_module *module = NULL;
    epi_gradrun found = {.input = -1};
    epi_error_clear(err);
    if (!program || !wrt || !options || !inputs || !out)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_program_gradrun: nothing but err may be NULL");
    epi_status status = epi_struct_take(&o, sizeof o, options, "epi_options", "EPI_OPTIONS", err);
    if (status == EPI_OK && o.device)
        status =
            epi_fail(err, EPI_ERR_UNSUPPORTED, "gradients as they run are compared on the CPU: device 0");
    if (status == EPI_OK)
        status = epi_program_grad(program, wrt, wrt_count, &module, err);
    gradrun *r = calloc(1, sizeof *r);
    if (!r && status == EPI_OK)
        status = no_memory(err);
    if (status == EPI_OK) {
        *r = (gradrun){.program = epi_module_program(module, 0), .state = seed};
        r->count = epi_program_tensor_count(r->program);
        r->inputs = r->program->graph.input_count;
        status = run_all(r, program, wrt, &o, inputs, &found, err);
    }
    if (r)
        free_tensors(r);
    free(r);
    epi_module_free(module);
    epi_struct_give(out, size, &found, sizeof found);
    return status;
}
