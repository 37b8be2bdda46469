/* rows.h: a program of a file run with inputs that a test makes, for the tests of programs of rows. */
#ifndef EPI_TESTS_ROWS_H
#define EPI_TESTS_ROWS_H

#include "cases.h"

static const char *folder;
static epi_context *ctx;

/* ---- a program, run with inputs that the test makes ---- */

typedef struct run {
    loaded l;
    epi_kernel *kernel;
    problem p;
    char names[MAX_TENSORS][16];
    bool ok; /* the results are there */
} run;

typedef void filler(run *r, void *arg);

static inline int tensor_named(const run *r, const char *name) {
    for (int i = 0; i < r->p.count; i++)
        if (!strcmp(r->names[i], name))
            return i;
    return -1;
}

static inline double at(const run *r, const char *name, int64_t e) {
    const tensor *t = &r->p.t[tensor_named(r, name)];
    return get_element(t->data, t->shape.type, e);
}

static inline void put(run *r, const char *name, int64_t e, double value) {
    tensor *t = &r->p.t[tensor_named(r, name)];
    put_element(t->data, t->shape.type, e, value);
}

static inline void run_free(run *r) {
    problem_free(&r->p);
    epi_kernel_free(r->kernel);
    epi_module_free(r->l.module);
    *r = (run){0};
}

typedef struct manner {
    epi_path path;
    epi_dtype type;
    int threads;
    bool wide; /* every tensor is stored as f64, but for integers */
} manner;

/* The oracle, of which results differ by the order of operations alone. */
static const manner in_f64 __attribute__((unused)) = {.path = EPI_PATH_REFERENCE, .wide = true};

static inline bool close_to(double got, double want) {
    return fabs(got - want) <= 1e-12 * (1 + fabs(want));
}

static inline bool run_again(run *r, filler *fill, void *arg) {
    fill(r, arg);
    return r->ok = problem_run(r->kernel, &r->p);
}

/* Compiles, fills and runs; says whether the results are there. Free it in any case. */
static inline bool run_program(run *r, const char *file, const char *program, const char *dims, manner how,
                               filler *fill, void *arg) {
    const test_case c = {file, program, dims, 0};
    epi_type_binding types[MAX_TENSORS];
    epi_error err = {0};
    epi_tensor_info info;
    *r = (run){0};
    if (!load_case(ctx, folder, &c, &r->l))
        return false;
    epi_options o = case_options(&r->l, how.type, how.path);
    o.threads = how.threads;
    o.types = types;
    o.type_count = how.wide ? wide_types(r->l.program, true, types) : 0;
    for (int i = 0; epi_program_tensor(r->l.program, i, &info) == EPI_OK; i++)
        snprintf(r->names[i], sizeof r->names[i], "%s", info.name);
    if (check(epi_kernel_compile(r->l.program, &o, &r->kernel, &err) == EPI_OK, "%s %s compiles: %s", program,
              dims, err.message) &&
        check(problem_make(&r->p, r->l.program, r->kernel, LAYOUT_PLAIN), "memory"))
        check(run_again(r, fill, arg), "%s %s runs", program, dims);
    r->l.from = NULL; /* it was this call's */
    return r->ok;
}

/* Scalars by name, as a trainer would set them. */
static inline double scalar_value(const char *name) {
    static const struct {
        const char *name;
        double value;
    } known[] = {{"eps", 1e-5}, {"smoothing", 0.1}, {"zloss", 0.02}, {"cap", 3}, {"dloss", 0.3},
                 {"ignore", 2}, {"most", 1},        {"seed", 77},    {"p", 0.3}, {"scale", 1.5}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, name))
            return known[i].value;
    check(false, "the scalar %s has a value", name);
    return 0;
}

/* Random elements; an index is within its axis, labels are over the vocabulary, with some negative ones. */
static inline double random_element(const run *r, int i, uint64_t *s) {
    const tensor *t = &r->p.t[i];
    if (!t->shape.rank)
        return scalar_value(r->names[i]);
    if (t->shape.index_below > 0)
        return random_below(s, (int)t->shape.index_below);
    if (t->shape.type == EPI_I32 || t->shape.type == EPI_I64) {
        int v = (int)r->p.t[0].shape.sizes[1];
        return random_below(s, v + 1 + v / 4) - v / 4 - 1;
    }
    return 2 * random_unit(s) - 1;
}

/* A trainer's third step of AdamW. */
static inline void put_adamw_scalars(run *r, double lr, double decay) {
    static const char *const names[] = {"beta1", "beta2", "eps", "correct1", "correct2", "scale", "clip"};
    static const double values[] = {0.9, 0.999, 1e-8, 1 - 0.729, 0.002997001, 0.25, 0.5};
    for (int i = 0; i < 7; i++)
        put(r, names[i], 0, values[i]);
    put(r, "lr", 0, lr);
    put(r, "decay", 0, decay);
}

/* What it makes of element e, in the words of the paper: the weight decays, then takes its step. */
typedef struct adamw {
    double w, m, v;
} adamw;

static inline adamw adamw_step(const run *r, int64_t e, double lr, double decay) {
    double g = at(r, "grad", e) * 0.125, m = 0.9 * at(r, "m", e) + 0.1 * g,
           v = 0.999 * at(r, "v", e) + 0.001 * g * g, w = at(r, "w", e) * (1 - lr * decay);
    return (adamw){w - lr * (m / (1 - pow(0.9, 3))) / (sqrt(v / (1 - pow(0.999, 3))) + 1e-8), m, v};
}

static inline void fill_random(run *r, void *arg) {
    uint64_t seed = *(uint64_t *)arg;
    for (int i = 0; i < r->p.inputs; i++) {
        uint64_t s = seed * 1000003 + (uint64_t)i;
        for (int64_t e = 0; e < r->p.t[i].shape.count; e++)
            put_element(r->p.t[i].data, r->p.t[i].shape.type, e, random_element(r, i, &s));
    }
}

#endif
