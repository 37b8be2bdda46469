/* rows.h: a program of a file run with inputs that a test makes, for the tests of programs of rows. */
#ifndef EPI_TESTS_ROWS_H
#define EPI_TESTS_ROWS_H

#include "ran.h"

static const char *folder;
static epi_context *ctx;

/* ---- a program, run with inputs that the test makes ---- */

typedef void filler(ran *r, void *arg);

static inline double of(const ran *r, const char *name, int64_t e) {
    return at(find(r, name), e);
}

static inline void put(ran *r, const char *name, int64_t e, double value) {
    put_at(find(r, name), e, value);
}

/* Fills and runs; says whether the results are there. */
static inline bool refill(ran *r, filler *fill, void *arg) {
    fill(r, arg);
    return run_again(r);
}

/* The same of a program of the folder. Discard it in any case. */
static inline bool run_program(ran *r, const char *file, const char *program, const char *dims, way how,
                               filler *fill, void *arg) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s.epi", folder, file);
    epi_module *m = parsed_file(ctx, path);
    how.fill = unfilled;
    bool ok = made(r, epi_module_find(m, program), dims, how) && refill(r, fill, arg);
    r->module = m;
    return ok;
}

/* The oracle, of which results differ by the order of operations alone. */
static const way in_f64 __attribute__((unused)) = {.path = EPI_PATH_REFERENCE, .wide = true};

static inline bool close_to(double got, double want) {
    return fabs(got - want) <= 1e-12 * (1 + fabs(want));
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
static inline double random_element(const problem *p, int i, uint64_t *s) {
    const tensor *t = &p->t[i];
    if (!t->shape.rank)
        return scalar_value(tensor_name(p->program, i));
    if (t->shape.index_below > 0)
        return random_below(s, (int)t->shape.index_below);
    if (t->shape.type == EPI_I32 || t->shape.type == EPI_I64) {
        int v = (int)p->t[0].shape.sizes[1];
        return random_below(s, v + 1 + v / 4) - v / 4 - 1;
    }
    return 2 * random_unit(s) - 1;
}

/* A trainer's third step of AdamW. */
static inline void put_adamw_scalars(ran *r, double lr, double decay) {
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

static inline adamw adamw_step(const ran *r, int64_t e, double lr, double decay) {
    double g = of(r, "grad", e) * 0.125, m = 0.9 * of(r, "m", e) + 0.1 * g,
           v = 0.999 * of(r, "v", e) + 0.001 * g * g, w = of(r, "w", e) * (1 - lr * decay);
    return (adamw){w - lr * (m / (1 - pow(0.9, 3))) / (sqrt(v / (1 - pow(0.999, 3))) + 1e-8), m, v};
}

static inline void fill_random(ran *r, void *arg) {
    uint64_t seed = *(uint64_t *)arg;
    for (int i = 0; i < r->p.inputs; i++) {
        uint64_t s = seed * 1000003 + (uint64_t)i;
        for (int64_t e = 0; e < r->p.t[i].shape.count; e++)
            put_at(&r->p.t[i], e, random_element(&r->p, i, &s));
    }
}

/* Random tensors, and the inputs that the test has of its own. */
typedef struct own {
    uint64_t seed;
    filler *fill;
    void *arg;
    const ran *from; /* inputs that an earlier run has a tensor of the same name for are taken from it */
} own;

static inline void fill_own(ran *r, void *arg) {
    own *o = arg;
    fill_random(r, &o->seed);
    for (int i = 0; i < r->p.inputs && o->from; i++) {
        const tensor *from = find(o->from, tensor_name(r->program, i));
        if (from)
            memcpy(r->p.t[i].data, from->data, tensor_bytes(&r->p.t[i]));
    }
    if (o->fill)
        o->fill(r, o->arg);
}

#endif
