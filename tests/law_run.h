/* law_run.h: a program run in some way with inputs that follow from their names, and its results held against
 * the f64 reference of the same inputs within the bounds of plan_bound.h. */
#ifndef EPI_TESTS_LAW_RUN_H
#define EPI_TESTS_LAW_RUN_H

#include "law_gpu.h"
#include "law_sizes.h"
#include "plan_bound.h"

enum { LAW_MESSAGE = 600 };

/* What is being looked at; a law that fails says in `message` how. */
typedef struct law_case {
    epi_context *ctx;
    const char *text, *program; /* the text, and the name of one of its programs */
    law_sizes sizes;
    uint64_t seed;
    bool thorough;
    char message[LAW_MESSAGE];
} law_case;

/* What became of it all, for the summary. */
typedef struct law_counts {
    long runs, refused, elements, open, gradients;
} law_counts;
static law_counts counts;

static bool law_broken(law_case *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool law_broken(law_case *c, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(c->message, sizeof c->message, fmt, args);
    va_end(args);
    return false;
}

/* ---- inputs ---- */

static uint64_t name_hash(const char *name) {
    uint64_t h = 1469598103934665603u;
    for (; *name; name++)
        h = (h ^ (uint64_t)(unsigned char)*name) * 1099511628211u;
    return h;
}

/* Numbers that follow from the seed, the name and the element alone, so that a program with its inputs in
 * another order, its gradient and its backward have the same ones. Integers lie in every axis. */
static void law_fill(problem *p, uint64_t seed, const law_sizes *sizes) {
    int64_t least = 4;
    for (int i = 0; i < sizes->count; i++)
        least = sizes->size[i] > 0 && sizes->size[i] < least ? sizes->size[i] : least;
    for (int i = 0; i < p->inputs; i++) {
        tensor *t = &p->t[i];
        epi_tensor_info info;
        epi_program_tensor(p->program, i, &info);
        uint64_t s = seed * 1000003 + name_hash(info.name);
        int64_t inner = t->shape.rank ? t->shape.sizes[t->shape.rank - 1] : 1;
        double scale = pow((double)(inner > 0 ? inner : 1), -0.25) * 1.7;
        for (int64_t e = 0; e < t->shape.count; e++) {
            bool integer = t->shape.type == EPI_I32 || t->shape.type == EPI_I64;
            double u = random_unit(&s);
            double x = integer              ? floor(u * (double)least)
                       : t->shape.rank == 0 ? (strstr(info.name, "eps") ? 1e-3 : 0.25 + 0.5 * u)
                       : info.is_cotangent  ? 2 * u - 1
                       : t->shape.rank == 1 ? 0.5 + u
                                            : scale * (2 * u - 1);
            put_element(t->data, t->shape.type, e, meant(meaning_of(info.name), t, e, x));
        }
    }
}

/* ---- one run ---- */

typedef struct law_way {
    epi_dtype type;
    epi_path path;
    epi_algebra algebra;
    int threads;
} law_way;

/* A kernel with its tensors. */
typedef struct law_side {
    epi_kernel *kernel;
    bool gpu;
    problem p;
} law_side;

static void side_close(law_side *s) {
    epi_kernel_free(s->kernel);
    s->kernel = NULL;
    problem_free(&s->p);
}

/* 1: compiled and filled; 0: refused with a reason, which is no failure; -1: something is wrong. */
static int side_open(law_case *c, const epi_program *program, law_way way, law_side *s) {
    epi_dim_binding dims[MAX_LAW_DIMS];
    epi_type_binding types[MAX_TENSORS];
    epi_error err;
    int names = epi_program_dim_count(program), count = epi_program_tensor_count(program);
    epi_options o = EPI_OPTIONS(.dims = dims, .type = way.type, .path = way.path, .algebra = way.algebra,
                                .types = types, .rounding = EPI_ROUND_EXACT);
    *s = (law_side){0};
    s->gpu = way.path <= EPI_PATH_UNFUSED && law_device;
    if (s->gpu)
        o.device = law_device;
    else
        o.threads = way.threads ? way.threads : 1;
    if (names > MAX_LAW_DIMS || count > MAX_TENSORS)
        return 0;
    for (int i = 0; i < names; i++) {
        int64_t fixed = epi_program_dim_size(program, i);
        dims[o.dim_count++] = (epi_dim_binding){
            epi_program_dim(program, i), fixed ? fixed : law_size(&c->sizes, epi_program_dim(program, i))};
    }
    o.type_count = way.path == EPI_PATH_REFERENCE ? wide_types(program, false, types) : 0;
    epi_status status = epi_kernel_compile(program, &o, &s->kernel, &err);
    if (status == EPI_ERR_DIMS || status == EPI_ERR_UNSUPPORTED) {
        counts.refused++;
        return 0;
    }
    if (status != EPI_OK) {
        law_broken(c, "does not compile: %s", err.message);
        return -1;
    }
    if (!problem_make(&s->p, program, s->kernel, LAYOUT_PLAIN)) {
        law_broken(c, "no memory");
        return -1;
    }
    law_fill(&s->p, c->seed, &c->sizes);
    return 1;
}

/* What the workspace and the outputs hold before a run must not matter: NaN, or a large number in any type.
 */
static void poison(unsigned char *at, size_t bytes, bool large) {
    static const unsigned char pattern[4] = {0xca, 0x71, 0x49, 0x71}; /* 1e30 in f32, and large in 16 bits */
    for (size_t i = 0; i < bytes; i++)
        at[i] = large ? pattern[i % 4] : 0xff;
}

/* 1: it ran; 0: refused for an index outside an empty axis; -1: wrong. */
static int side_run(law_case *c, law_side *s, bool large) {
    size_t bytes = epi_kernel_workspace(s->kernel);
    unsigned char *work = aligned_alloc(64, bytes + 2 * GUARD);
    epi_error err;
    void *prepared = NULL;
    int result = 1;
    memset(work, SENTINEL, bytes + 2 * GUARD);
    poison(work + GUARD, bytes, large);
    for (int i = s->p.inputs; i < s->p.count; i++)
        poison(s->p.t[i].data, (size_t)s->p.t[i].span * epi_dtype_size(s->p.t[i].shape.type), large);
    bool ok = s->gpu || problem_prepare(s->kernel, &s->p, &prepared);
    const epi_call call =
        EPI_CALL(.tensors = s->p.args, .count = s->p.count, .workspace = work + GUARD, .prepared = prepared);
    epi_status status = !ok      ? EPI_ERR_MEMORY
                        : s->gpu ? gpu_call(c->ctx, s->kernel, &s->p, work, bytes + 2 * GUARD, &err)
                                 : epi_kernel_call(s->kernel, &call, &err);
    if (status == EPI_ERR_INDEX)
        result = 0;
    else if (status != EPI_OK)
        result = (law_broken(c, "does not run: %s", ok ? err.message : "prepare"), -1);
    for (int i = 0; i < GUARD && result > 0; i++)
        if (work[i] != SENTINEL || work[GUARD + bytes + (size_t)i] != SENTINEL)
            result = (law_broken(c, "writes outside the workspace"), -1);
    for (int i = 0; i < s->p.count && result > 0; i++)
        if (!tensor_intact(&s->p.t[i]))
            result = (law_broken(c, "writes outside tensor %d", i), -1);
    free(prepared);
    free(work);
    counts.runs++;
    return result;
}

/* ---- results within bounds ---- */

/* The tensors of a program as bounds know them: inputs are exact. */
static bounded *bounds_of_inputs(const problem *p) {
    bounded *all = calloc((size_t)p->count + 1, sizeof *all);
    for (int t = 0; all && t < p->inputs; t++) {
        if (!bounded_make(&all[t], p->t[t].shape.count))
            continue;
        for (int64_t e = 0; e < all[t].count; e++) {
            all[t].v[e] = get_element(p->t[t].data, p->t[t].shape.type, e);
            all[t].m[e] = fabs(all[t].v[e]);
        }
    }
    return all;
}

static void bounds_free(bounded *all, int count) {
    for (int t = 0; all && t < count; t++)
        bounded_free(&all[t]);
    free(all);
}

/* Is one element within its bound? An element that is NaN or infinite must be so, where that is certain; the algebra
 * may make a number of it, as of x - x, and then the plan has that number. */
static bool element_holds(double got, double want, double bound, double planned, double by_plan) {
    if (isinf(bound) || isnan(bound))
        return true;
    if (!isfinite(want))
        return bound > 0 || (isnan(want) ? isnan(got) : got == want) || fabs(got - planned) <= by_plan;
    return fabs(got - want) <= bound;
}

static bool outputs_hold(law_case *c, const law_side *s, const law_side *ref, const bounded *plan,
                         const bounded *contract) {
    for (int t = s->p.inputs; t < s->p.count; t++) {
        const tensor *out = &s->p.t[t], *want = &ref->p.t[t + ref->p.inputs - s->p.inputs];
        epi_tensor_info info;
        epi_program_tensor(s->p.program, t, &info);
        for (int64_t e = 0; e < out->shape.count; e++) {
            double got = get_element(out->data, out->shape.type, e),
                   exact = get_element(want->data, EPI_F64, e);
            double by_plan = plan[t].e[e], by_contract = contract[t].e[e];
            double bound = fmin(by_plan, by_contract);
            counts.elements++;
            counts.open += !isfinite(bound) || bound > 0.25 * (fabs(exact) + contract[t].m[e]) + 1e-30;
            if (!element_holds(got, exact, bound, plan[t].v[e], by_plan))
                return law_broken(c,
                                  "%s[%lld] is %.9g and should be %.9g: %.3g off, bound %.3g by %s (%.3g by "
                                  "the other; the plan makes %.9g)",
                                  info.name, (long long)e, got, exact, fabs(got - exact), bound,
                                  by_plan <= by_contract ? "plan" : "contract", fmax(by_plan, by_contract),
                                  plan[t].v[e]);
        }
    }
    return true;
}

/* One way of a program against the reference. 1 holds, 0 refused, -1 broken. */
static int way_holds(law_case *c, const epi_program *program, law_way way, law_side *out) {
    law_side s, ref = {0};
    law_way oracle = way;
    oracle.path = EPI_PATH_REFERENCE;
    int result = side_open(c, program, way, &s);
    if (result > 0)
        result = side_run(c, &s, false);
    if (result > 0)
        result = side_open(c, program, oracle, &ref);
    if (result > 0)
        result = side_run(c, &ref, false);
    if (result > 0) {
        bounded *plan = bounds_of_inputs(&s.p), *contract = bounds_of_inputs(&s.p);
        if (!bound_plan(s.kernel, plan) || !bound_contract(program, s.kernel, contract))
            result = (law_broken(c, "no memory"), -1);
        else
            result = outputs_hold(c, &s, &ref, plan, contract) ? 1 : -1;
        bounds_free(plan, s.p.count);
        bounds_free(contract, s.p.count);
    }
    side_close(&ref);
    if (out && result > 0)
        *out = s;
    else
        side_close(&s);
    return result;
}

/* Have two runs of the same tensors the same bits? */
static bool same_bits(law_case *c, const law_side *a, const law_side *b, const char *what) {
    for (int t = a->p.inputs; t < a->p.count; t++) {
        size_t size = epi_dtype_size(a->p.t[t].shape.type);
        for (int64_t e = 0; e < a->p.t[t].shape.count; e++)
            if (memcmp(a->p.t[t].data + (size_t)e * size, b->p.t[t].data + (size_t)e * size, size)) {
                epi_tensor_info info;
                epi_program_tensor(a->p.program, t, &info);
                return law_broken(c, "%s[%lld] is %.9g, and %.9g %s", info.name, (long long)e,
                                  get_element(a->p.t[t].data, a->p.t[t].shape.type, e),
                                  get_element(b->p.t[t].data, b->p.t[t].shape.type, e), what);
            }
    }
    return true;
}

#endif
