/* gradrun.c: runs gradients in the types and by the plan of the options, as one program or as separate
 * forward and backward. It compares them with the f64 reference of the same rounded inputs, along a random
 * direction in every row of every gradient. */
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
    const epi_program *forward, *backward; /* what runs in its place, or NULL */
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
        epi_dtype from = epi_dtype_is_whole(s->type) ? s->type : EPI_F64;
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

/* The options for a program that is derived: types by name are of tensors that it has, and sizes of axes. */
typedef struct settings {
    epi_options o;
    epi_type_binding types[4 * EPI_MAX_TENSORS];
    epi_dim_binding dims[EPI_MAX_DIMS];
} settings;

static bool has_dim(const epi_graph *g, const char *name) {
    for (int i = 0; i < g->declared_count; i++)
        if (!strcmp(g->dims[i], name))
            return true;
    return false;
}

static void settle(settings *s, const epi_options *given, const epi_graph *g) {
    s->o = (epi_options)EPI_OPTIONS(.dims = s->dims, .type = given->type, .types = s->types,
                                    .threads = given->threads, .micro = given->micro,
                                    .algebra = given->algebra, .path = given->path, .memory = given->memory);
    for (int i = 0; i < given->type_count && i < 2 * EPI_MAX_TENSORS; i++)
        if (epi_graph_find_tensor(g, given->types[i].tensor) >= 0)
            s->types[s->o.type_count++] = given->types[i];
    for (int i = 0; i < given->dim_count && i < EPI_MAX_DIMS; i++)
        if (given->dims[i].name && has_dim(g, given->dims[i].name))
            s->dims[s->o.dim_count++] = given->dims[i];
}

/* Is every type of a tensor that the program has, or its gradient? */
static epi_status check_types(const epi_options *o, const epi_graph *g, const epi_graph *gradient,
                              epi_error *err) {
    for (int i = 0; i < o->type_count; i++) {
        const char *name = o->types[i].tensor;
        if (!name || (epi_graph_find_tensor(g, name) < 0 && epi_graph_find_tensor(gradient, name) < 0))
            return epi_fail(err, EPI_ERR_ARGUMENT, "neither the program nor its gradient has a tensor '%s'",
                            name ? name : "");
    }
    return EPI_OK;
}

/* A tensor that the gradient program has is of the same type in a program of the pair. */
static void settle_shared(settings *s, const gradrun *r, const epi_graph *half) {
    for (int t = 0; t < half->tensor_count; t++) {
        const char *name = half->tensors[t].name;
        int whole = epi_graph_find_tensor(&r->program->graph, name);
        if (whole >= 0)
            s->types[s->o.type_count++] = (epi_type_binding){name, r->shapes[whole].type};
    }
}

/* Compiles a program of the pair and runs it. Its tensors are there, or, where they are NULL, made. */
static epi_status run_half(const gradrun *r, const epi_program *half, const epi_options *given,
                           epi_tensor *tensors, epi_error *err) {
    settings s;
    epi_kernel *kernel;
    epi_tensor_shape shape;
    int count = epi_program_tensor_count(half);
    settle(&s, given, &half->graph);
    settle_shared(&s, r, &half->graph);
    epi_status status = epi_kernel_compile(half, &s.o, &kernel, err);
    if (status != EPI_OK)
        return status;
    for (int t = 0; t < count && status == EPI_OK; t++) {
        epi_kernel_tensor(kernel, t, &shape);
        if (!tensors[t].data && !(tensors[t].data = calloc((size_t)shape.count + 1, sizeof(double))))
            status = no_memory(err);
    }
    if (status == EPI_OK)
        status = run_kernel(kernel, tensors, count, err);
    epi_kernel_free(kernel);
    return status;
}

/* Forward and backward apart. The backward takes what the gradient program takes, by name, or what the
 * forward gives; the gradients are those of that program, in its order. */
static epi_status run_pair(const gradrun *r, const epi_options *given, epi_error *err) {
    epi_tensor forward[2 * EPI_MAX_TENSORS] = {{NULL, NULL}}, backward[2 * EPI_MAX_TENSORS] = {{NULL, NULL}};
    const epi_graph *f = &r->forward->graph, *b = &r->backward->graph;
    memcpy(forward, r->tensors, (size_t)f->input_count * sizeof *forward);
    epi_status status = run_half(r, r->forward, given, forward, err);
    for (int t = 0; t < b->input_count && status == EPI_OK; t++) {
        int whole = epi_graph_find_tensor(&r->program->graph, b->tensors[t].name);
        int given_on = epi_graph_find_tensor(f, b->tensors[t].name);
        if (whole >= 0 && whole < r->inputs)
            backward[t] = r->tensors[whole];
        else if (given_on >= 0)
            backward[t] = forward[given_on];
        else
            status = epi_fail(err, EPI_ERR_INTERNAL, "nothing gives the backward '%s'", b->tensors[t].name);
    }
    memcpy(&backward[b->input_count], &r->tensors[r->inputs],
           (size_t)(r->count - r->inputs) * sizeof *backward);
    if (status == EPI_OK)
        status = run_half(r, r->backward, given, backward, err);
    for (int t = f->input_count; t < f->tensor_count; t++)
        free(forward[t].data);
    return status;
}

/* Compiles the gradient program for the options, which says what its tensors are, and runs it or the pair. */
static epi_status run_typed(gradrun *r, const epi_options *options, int given, const epi_tensor *inputs,
                            epi_error *err) {
    epi_kernel *kernel;
    epi_kernel_info info;
    EPI_TRY(epi_kernel_compile(r->program, options, &kernel, err));
    epi_kernel_get_info(kernel, &info);
    r->unit = epi_error_floor(epi_dtype_at(options->type)->unit, info.terms);
    epi_status status = make_tensors(r, kernel, err);
    for (int t = 0; t < given && status == EPI_OK; t++)
        if (!inputs[t].data && r->shapes[t].count)
            status = epi_fail(err, EPI_ERR_ARGUMENT, "epi_program_gradrun: input %d is NULL", t);
    if (status == EPI_OK) {
        fill_tensors(r, given, inputs);
        status = r->forward ? run_pair(r, options, err) : run_kernel(kernel, r->tensors, r->count, err);
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
    EPI_TRY(epi_kernel_compile(r->program, &o, &kernel, err));
    epi_status status = run_kernel(kernel, tensors, r->count, err);
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
    bool broken; /* NaN or an infinity stands where the reference has a number that the type can hold */
} row_sums;

/* With a quarter to spare, which roundings may make of it. */
static bool can_hold(epi_dtype type, double x) {
    unsigned char stored[8];
    double more = x * (1 + EDGE), back;
    epi_convert(stored, type, &more, EPI_F64, 1);
    epi_convert(&back, EPI_F64, stored, type, 1);
    return isfinite(back);
}

/* The derivative along the direction in a row, as it ran and exactly, and the same of absolute values. */
static row_sums sums_of(const gradrun *r, int result, int64_t first, int64_t length) {
    row_sums s = {0};
    const epi_tensor_shape *shape = &r->shapes[r->inputs + result];
    const char *data = r->tensors[r->inputs + result].data;
    for (int64_t e = first; e < first + length; e++) {
        double got;
        epi_convert(&got, EPI_F64, data + (size_t)e * epi_dtype_size(shape->type), shape->type, 1);
        s.got += r->along[e] * got;
        s.exact += r->along[e] * r->exact[result][e];
        s.size += fabs(r->along[e] * r->exact[result][e]);
        s.broken |=
            !isfinite(got) && isfinite(r->exact[result][e]) && can_hold(shape->type, r->exact[result][e]);
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
    if (!(spread <= EDGE * s.size) && !(s.got == s.exact) && !(s.broken && isfinite(spread))) {
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

static epi_status run_all(gradrun *r, const epi_program *program, const char *const *wrt,
                          const epi_options *given, const epi_tensor *inputs, epi_gradrun *out,
                          epi_error *err) {
    settings s;
    int input[EPI_MAX_TENSORS];
    settle(&s, given, &r->program->graph);
    s.o.dims = given->dims; /* one that it has not is an error */
    s.o.dim_count = given->dim_count;
    epi_status status = run_typed(r, &s.o, program->graph.input_count, inputs, err);
    if (status == EPI_OK)
        status = run_exact(r, &s.o, 0, 0, r->exact, err);
    for (int t = 0; t < r->count - r->inputs; t++)
        input[t] = epi_graph_find_tensor(&program->graph, wrt[t]);
    return status == EPI_OK ? judge_rows(r, &s.o, input, out, err) : status;
}

/* As one program where `pair` is NULL. */
static epi_status run_derived(const epi_program *program, const char *const *wrt, const epi_module *whole,
                              const epi_module *pair, const epi_options *o, const epi_tensor *inputs,
                              uint64_t seed, epi_gradrun *out, epi_error *err) {
    gradrun *r = calloc(1, sizeof *r);
    if (!r)
        return no_memory(err);
    *r = (gradrun){.program = epi_module_program(whole, 0), .state = seed};
    if (pair) {
        r->forward = epi_module_program(pair, 0);
        r->backward = epi_module_program(pair, 1);
    }
    r->count = epi_program_tensor_count(r->program);
    r->inputs = r->program->graph.input_count;
    epi_status status = run_all(r, program, wrt, o, inputs, out, err);
    free_tensors(r);
    free(r);
    return status;
}

static epi_status derive_and_run(const epi_program *program, const char *const *wrt, int wrt_count,
                                 bool apart, const epi_options *options, const epi_tensor *inputs,
                                 uint64_t seed, epi_gradrun *out, size_t size, epi_error *err) {
    epi_options o;
    settings s;
    epi_module *whole = NULL, *pair = NULL;
    epi_gradrun found = {.input = -1};
    epi_error_clear(err);
    if (!program || !wrt || !options || !inputs || !out)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_program_gradrun: nothing but err may be NULL");
    epi_status status = epi_options_take(&o, options, err);
    if (status == EPI_OK && o.device)
        status = epi_fail(err, EPI_ERR_UNSUPPORTED, "epi_program_gradrun runs on the CPU only: set device 0");
    if (status == EPI_OK)
        status = epi_program_grad(program, wrt, wrt_count, &whole, err);
    if (status == EPI_OK)
        status = check_types(&o, &program->graph, &epi_module_program(whole, 0)->graph, err);
    if (status == EPI_OK && apart) {
        settle(&s, &o, &program->graph);
        s.o.memory = 0;
        status = epi_program_grad_typed(program, wrt, wrt_count, &s.o, &pair, err);
    }
    if (status == EPI_OK)
        status = run_derived(program, wrt, whole, pair, &o, inputs, seed, &found, err);
    epi_module_free(whole);
    epi_module_free(pair);
    epi_struct_give(out, size, &found, sizeof found);
    return status;
}

epi_status epi_program_gradrun_sized(const epi_program *program, const char *const *wrt, int wrt_count,
                                     const epi_options *options, const epi_tensor *inputs, uint64_t seed,
                                     epi_gradrun *out, size_t size, epi_error *err) {
    return derive_and_run(program, wrt, wrt_count, false, options, inputs, seed, out, size, err);
}

epi_status epi_program_gradrun_saved_sized(const epi_program *program, const char *const *wrt, int wrt_count,
                                           const epi_options *options, const epi_tensor *inputs,
                                           uint64_t seed, epi_gradrun *out, size_t size, epi_error *err) {
    return derive_and_run(program, wrt, wrt_count, true, options, inputs, seed, out, size, err);
}
