/* gradcheck.c: compares derived gradients with central differences of the program, all in the f64 reference.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/run.h"

enum { STEPS = 4 };

/* One of the two programs with tensors of its own: f64, and integers where the text says so. */
typedef struct side {
    epi_arena arena;
    epi_program program; /* without conversions */
    epi_kernel *kernel;
    int count, inputs;
    epi_tensor tensors[2 * EPI_MAX_TENSORS];
    epi_tensor_shape shapes[2 * EPI_MAX_TENSORS];
    void *work;
} side;

typedef struct checking {
    side forward, gradient;
    int cotangent[EPI_MAX_TENSORS]; /* by result: its cotangent among the gradient's inputs, or -1 */
    uint64_t state;
    double apart, length; /* squared distances of derivatives from differences, and squared differences */
    epi_gradcheck *out;
} checking;

static double *numbers(const side *s, int tensor) {
    return s->tensors[tensor].data;
}

/* A conversion jumps from number to number, as dither does, and its derivative is that of what it converts: so that is
 * what both sides go through. */
static int write_straight(epi_rewrite *r, int node) {
    const epi_node *n = &r->in->nodes[node];
    bool jumps = epi_ops[n->op].converts || n->op == EPI_OP_DITHER;
    return jumps ? r->fresh[n->arg[0]] : EPI_NO_NODE;
}

static epi_status open_side(side *s, const epi_program *given_program, const epi_options *given,
                            epi_error *err) {
    const epi_graph *graph = &given_program->graph;
    EPI_TRY(epi_graph_rewrite(&s->arena, &graph, write_straight, NULL, err));
    epi_program *program = &s->program;
    *program = *given_program;
    program->graph = *graph;
    epi_type_binding types[2 * EPI_MAX_TENSORS];
    epi_options o =
        EPI_OPTIONS(.dims = given->dims, .dim_count = given->dim_count, .threads = 1, /* they are small */
                    .path = EPI_PATH_REFERENCE);
    s->count = epi_program_tensor_count(program);
    s->inputs = program->graph.input_count;
    o.types = types;
    for (int t = 0; t < s->count; t++) {
        const epi_tensor_decl *d = &program->graph.tensors[t];
        if (!d->has_type || !epi_dtype_is_whole(d->type))
            types[o.type_count++] = (epi_type_binding){d->name, EPI_F64};
    }
    epi_status status = epi_kernel_compile(program, &o, &s->kernel, err);
    for (int t = 0; t < s->count && status == EPI_OK; t++) {
        epi_kernel_tensor(s->kernel, t, &s->shapes[t]);
        s->tensors[t].data = calloc((size_t)s->shapes[t].count + 1, sizeof(double));
        if (!s->tensors[t].data)
            status = epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    }
    if (status == EPI_OK && !(s->work = aligned_alloc(64, epi_kernel_workspace(s->kernel))))
        status = epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    return status;
}

static void close_side(side *s) {
    for (int t = 0; t < s->count; t++)
        free(s->tensors[t].data);
    free(s->work);
    epi_kernel_free(s->kernel);
    epi_arena_free(&s->arena);
}

static epi_status run_side(side *s, epi_error *err) {
    return epi_kernel_run(s->kernel, s->tensors, s->count, s->work, err);
}

/* The number whose gradient it is: every result times its cotangent; and the sum of their sizes. */
static double weighed(const checking *c, double *size) {
    const side *f = &c->forward;
    double total = 0;
    *size = 0;
    for (int t = f->inputs; t < f->count; t++) {
        int w = c->cotangent[t - f->inputs];
        for (int64_t e = 0; w >= 0 && e < f->shapes[t].count; e++) {
            double x = numbers(f, t)[e] * numbers(&c->gradient, w)[e];
            if (isinf(x)) /* of what a mask leaves no derivative is asked */
                continue;
            total += x;
            *size += fabs(x);
        }
    }
    return total;
}

/* Elements of an input that are moved along a direction, or one alone. */
typedef struct moving {
    double *x, *kept;
    const double *along; /* NULL: a coordinate */
    int64_t first, past;
} moving;

/* What the program gives with them moved by `step`, and the size of what was added up for it. */
static epi_status value_at(checking *c, const moving *m, double step, double *value, double *size,
                           epi_error *err) {
    for (int64_t e = m->first; e < m->past; e++)
        m->x[e] = m->kept[e - m->first] + step * (m->along ? m->along[e] : 1);
    epi_status status = run_side(&c->forward, err);
    *value = weighed(c, size);
    return status;
}

/* Are all results numbers, and finite? */
static bool is_finite(const checking *c) {
    const side *f = &c->forward;
    for (int t = f->inputs; t < f->count; t++)
        for (int64_t e = 0; c->cotangent[t - f->inputs] >= 0 && e < f->shapes[t].count; e++)
            if (!isfinite(numbers(f, t)[e]))
                return false;
    return true;
}

/* Where differences and the derivative do not agree: is it the place? There the program has another
 * derivative on one side than on the other, or jumps, as a comparison changes sides. Or some result is
 * infinite, as the logarithm of nothing, and has no derivative. */
typedef enum place { PLACE_PLAIN, PLACE_EDGE, PLACE_INFINITE } place;

static epi_status look_at_place(checking *c, const moving *m, double derived, double scale, place *out,
                                epi_error *err) {
    double h = ldexp(1, -13 - 4 * (STEPS - 1)), at[3], size[3];
    epi_status status = EPI_OK;
    bool finite = true;
    for (int i = 0; i < 3 && status == EPI_OK; i++) {
        status = value_at(c, m, (i - 1) * h, &at[i], &size[i], err);
        finite &= is_finite(c);
    }
    double left = (at[1] - at[0]) / h, right = (at[2] - at[1]) / h;
    double allowed = 1e-6 * fmax(scale, fabs(derived)) + 0x1p-44 * size[1] / h;
    *out = !finite ? PLACE_INFINITE : fabs(left - right) > 4 * allowed ? PLACE_EDGE : PLACE_PLAIN;
    return status;
}

/* The difference of any of several steps: one over a kink of the program is wrong. *off is how far it is from
 * what was derived, *numeric what it is. */
static epi_status difference(checking *c, const moving *m, double derived, double scale, double *off,
                             double *numeric, epi_error *err) {
    epi_status status = EPI_OK;
    *off = INFINITY;
    *numeric = NAN;
    for (int s = 0; s < STEPS && !(*off <= 1) && status == EPI_OK; s++) {
        double h = ldexp(1, -13 - 4 * s), value[2], size[2];
        for (int side = 0; side < 2 && status == EPI_OK; side++)
            status = value_at(c, m, side ? -h : h, &value[side], &size[side], err);
        double now = (value[0] - value[1]) / (2 * h);
        /* a millionth for the curve, and 128 roundings of the sum */
        double allowed = 1e-6 * fmax(scale, fabs(now)) + 0x1p-46 * fmax(size[0], size[1]) / h;
        double far = fabs(now - derived) / allowed;
        if (now == derived || (isnan(now) && isnan(derived)))
            far = 0;
        if (!(far >= *off)) {
            *off = far;
            *numeric = now;
        }
    }
    return status;
}

/* The derivative along a direction, which is a coordinate where `along` is NULL, beside what it should be.
 * `scale` is the size of what was added up for `derived`. */
static epi_status compare(checking *c, int input, int64_t element, const double *along, double derived,
                          double scale, epi_error *err) {
    moving m = {.x = numbers(&c->forward, input), .along = along, .first = along ? 0 : element};
    m.past = along ? c->forward.shapes[input].count : element + 1;
    size_t bytes = (size_t)(m.past - m.first) * sizeof *m.kept;
    double off, numeric;
    place where = PLACE_PLAIN;
    if (!(m.kept = malloc(bytes + 1)))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    memcpy(m.kept, m.x + m.first, bytes);
    epi_status status = difference(c, &m, derived, scale, &off, &numeric, err);
    if (off <= 1 && !isfinite(numeric)) /* neither is a number */
        where = PLACE_INFINITE;
    if (status == EPI_OK && !(off <= 1))
        status = look_at_place(c, &m, derived, scale, &where, err);
    memcpy(m.x + m.first, m.kept, bytes);
    free(m.kept);
    c->out->compared++;
    c->out->edges += where == PLACE_EDGE;
    c->out->infinite += where == PLACE_INFINITE;
    if (where == PLACE_PLAIN) {
        c->apart += (derived - numeric) * (derived - numeric);
        c->length += numeric * numeric;
    }
    if (where == PLACE_PLAIN && (c->out->input < 0 || !(off <= c->out->off))) {
        c->out->off = off;
        c->out->input = input;
        c->out->element = along ? -1 : element;
        c->out->derived = derived;
        c->out->numeric = numeric;
    }
    return status;
}

static epi_status check_input(checking *c, int input, int output, epi_error *err) {
    const double *g = numbers(&c->gradient, output);
    int64_t count = c->forward.shapes[input].count;
    double *along = malloc((size_t)(count + 1) * sizeof *along), largest = 0;
    epi_status status = epi_has_memory(along, err);
    for (int64_t e = 0; e < count; e++)
        largest = fmax(largest, fabs(g[e]));
    for (int64_t e = 0; e < count && count <= EPI_GRADCHECK_ELEMENTS && status == EPI_OK; e++)
        status = compare(c, input, e, NULL, g[e], largest, err);
    for (int i = 0; i < EPI_GRADCHECK_DIRECTIONS && count && status == EPI_OK; i++) {
        double derived = 0, scale = 0;
        for (int64_t e = 0; e < count; e++) {
            along[e] = epi_next_number(&c->state);
            derived += along[e] * g[e];
            scale += fabs(along[e] * g[e]);
        }
        status = compare(c, input, -1, along, derived, scale, err);
    }
    free(along);
    return status;
}

/* Which input of the gradient is which result's cotangent: they stand in the results' order. */
static void find_cotangents(checking *c, const epi_program *program) {
    const epi_graph *g = &program->graph;
    for (int t = g->input_count, d = g->input_count; t < g->tensor_count; t++) {
        bool integer = g->tensors[t].has_type && epi_dtype_is_whole(g->tensors[t].type);
        c->cotangent[t - g->input_count] = integer ? -1 : d++;
    }
}

static epi_status fill_sides(checking *c, const epi_tensor *inputs, epi_error *err) {
    side *f = &c->forward, *g = &c->gradient;
    for (int t = 0; t < f->inputs; t++)
        if (!inputs[t].data && f->shapes[t].count)
            return epi_fail(err, EPI_ERR_ARGUMENT, "epi_program_gradcheck: input %d is NULL", t);
    for (int t = 0; t < g->inputs; t++) {
        size_t bytes = (size_t)g->shapes[t].count * epi_dtype_size(g->shapes[t].type);
        for (int64_t e = 0; t >= f->inputs && e < g->shapes[t].count; e++)
            numbers(g, t)[e] = epi_next_number(&c->state);
        if (t < f->inputs && bytes) {
            memcpy(f->tensors[t].data, inputs[t].data, bytes);
            memcpy(g->tensors[t].data, inputs[t].data, bytes);
        }
    }
    return EPI_OK;
}

epi_status epi_program_gradcheck_sized(const epi_program *program, const char *const *wrt, int wrt_count,
                                       const epi_options *options, const epi_tensor *inputs, uint64_t seed,
                                       epi_gradcheck *out, size_t size, epi_error *err) {
    epi_gradcheck found = {.input = -1};
    epi_error_clear(err);
    if (!program || !wrt || !options || !inputs || !out)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_program_gradcheck: nothing but err may be NULL");
    epi_module *module = NULL;
    epi_status status = epi_program_grad(program, wrt, wrt_count, &module, err);
    if (status == EPI_OK)
        status = epi_own_count(program, &found.own, err);
    checking *c = calloc(1, sizeof *c);
    if (!c && status == EPI_OK)
        status = epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    if (status == EPI_OK)
        status = open_side(&c->forward, program, options, err);
    if (status == EPI_OK)
        status = open_side(&c->gradient, epi_module_program(module, 0), options, err);
    if (status == EPI_OK) {
        c->state = seed;
        c->out = &found;
        find_cotangents(c, program);
        status = fill_sides(c, inputs, err);
        if (status == EPI_OK)
            status = run_side(&c->gradient, err);
    }
    for (int i = 0; i < wrt_count && status == EPI_OK; i++)
        for (int t = 0; t < c->forward.inputs && status == EPI_OK; t++)
            if (!strcmp(program->graph.tensors[t].name, wrt[i]))
                status = check_input(c, t, c->gradient.inputs + i, err);
    if (c) {
        found.distance = c->apart > 0 ? sqrt(c->apart / c->length) : 0;
        close_side(&c->forward);
        close_side(&c->gradient);
    }
    free(c);
    epi_module_free(module);
    epi_struct_give(out, size, &found, sizeof found);
    return status;
}
