/* ran.h: from a text to what it computes: parsed, derived, compiled, filled, run, held against f64. Whatever
 * goes wrong on the way is a failed check that says what and where. */
#ifndef EPI_TESTS_RAN_H
#define EPI_TESTS_RAN_H

#include <dirent.h>

#include "harness.h"
#include "run/run.h"

/* ---- texts and programs ---- */

static inline epi_module *parsed(epi_context *ctx, const char *text) {
    epi_module *m = NULL;
    epi_error err = {0};
    check(epi_module_parse(ctx, text, strlen(text), "text", &m, &err) == EPI_OK, "%s\n%d:%d: %s", text,
          err.line, err.column, err.message);
    return m;
}

static inline epi_module *parsed_file(epi_context *ctx, const char *path) {
    epi_module *m = NULL;
    epi_error err = {0};
    size_t length = 0;
    char *text = read_whole(path, &length);
    if (check(text != NULL, "%s can be read", path))
        check(epi_module_parse(ctx, text, length, path, &m, &err) == EPI_OK, "%s:%d:%d: %s", path, err.line,
              err.column, err.message);
    free(text);
    return m;
}

/* Calls a function with the path of each text of a folder. */
static inline void for_texts(const char *folder, void (*with)(const char *path)) {
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (strstr(e->d_name, ".epi"))
            with(path);
    }
    if (check(dir != NULL, "%s can be read", folder))
        closedir(dir);
}

/* The words of a text, up to `most`; they lie in `store`. */
static inline int words_of(const char *text, char *store, size_t size, const char **words, int most) {
    int count = 0;
    snprintf(store, size, "%s", text);
    for (char *w = strtok(store, " ,"); w && count < most; w = strtok(NULL, " ,"))
        words[count++] = w;
    return count;
}

typedef epi_status deriver(const epi_program *, const char *const *, int, epi_module **, epi_error *);

/* What `how` derives (epi_program_grad, _saved, _lean) by the inputs that `wrt` names, with commas or spaces
 * between, or by all of numbers. */
static inline epi_module *derived(const epi_program *p, const char *wrt, deriver *how) {
    const char *names[MAX_TENSORS];
    char store[1000];
    epi_module *m = NULL;
    epi_error err = {0};
    int count = wrt ? words_of(wrt, store, sizeof store, names, MAX_TENSORS)
                    : number_inputs(p, true, names, MAX_TENSORS);
    check(p && how(p, names, count, &m, &err) == EPI_OK, "%s is derived by %s: %s",
          p ? epi_program_name(p) : "what is missing", wrt ? wrt : "all", err.message);
    return m;
}

static inline epi_module *gradient_of(const epi_program *p, const char *wrt) {
    return derived(p, wrt, epi_program_grad);
}

static inline const epi_program *last_of(const epi_module *m) {
    return epi_module_program(m, epi_module_count(m) - 1);
}

/* ---- kernels ---- */

/* How a program is compiled, filled and run; what is 0 is f32, fused, on a CPU, by two threads, and plain. */
typedef struct way {
    epi_dtype type;
    epi_path path;
    int device, threads;
    layout layout;
    bool wide;         /* inputs are f64, too, and not the outputs of yardsticks alone */
    bool narrow;       /* nor are those: types are the text's own */
    const char *open;  /* axes that are open, with spaces between */
    const char *rows;  /* axes of rows; NULL: as they come */
    const char *types; /* of tensors: "y=f64,x=bf16" */
    const char *micro, *config;
    epi_rounding rounding;
    epi_algebra algebra;
    size_t memory;
    double perturb;
    int perturb_seed;
    void (*fill)(problem *p, uint64_t seed); /* NULL: problem_fill */
    uint64_t seed;                           /* 0: 5 */
} way;

/* The number of an axis; -1: the program has none of that name. */
static inline int program_dim(const epi_program *program, const char *name) {
    for (int d = 0; d < epi_program_dim_count(program); d++)
        if (!strcmp(epi_program_dim(program, d), name))
            return d;
    return -1;
}

/* Those of the sizes whose dims the program has, and leaves open. Returns how many. */
static inline int program_dims(const epi_program *program, const char *dims, epi_dim_binding *out,
                               char (*store)[16]) {
    int kept = 0;
    for (int i = 0, n = parse_dims(dims, out, store); i < n; i++) {
        int d = program_dim(program, out[i].name);
        if (d >= 0 && !epi_program_dim_size(program, d))
            out[kept++] = out[i];
    }
    return kept;
}

/* "y=f64,x=bf16" into bindings that point into `store`. */
static inline int parse_types(const char *text, epi_type_binding *out, char *store, size_t size) {
    const char *words[16];
    int count = words_of(text, store, size, words, 16);
    for (int i = 0; i < count; i++) {
        char *type = strchr(words[i], '=');
        *type = 0;
        out[i] = (epi_type_binding){words[i], epi_dtype_find(type + 1)};
    }
    return count;
}

/* Compiles; `*k` is NULL where that fails, and nothing is checked. Dims that the program lacks are left out. */
static inline epi_status compile_as(const epi_program *p, const char *dims, way how, epi_kernel **k,
                                    epi_error *err) {
    epi_dim_binding bindings[32];
    epi_type_binding types[MAX_TENSORS];
    char store[32][16], names[100], row_names[100], type_names[200];
    const char *open[4], *rows[8];
    epi_options o = EPI_OPTIONS(.dims = bindings, .type = how.type, .types = types, .path = how.path,
                                .device = how.device, .threads = how.threads || how.device ? how.threads : 2,
                                .micro = how.micro, .config = how.config, .rounding = how.rounding,
                                .algebra = how.algebra, .memory = how.memory, .open_axes = open,
                                .perturb = how.perturb, .perturb_seed = how.perturb_seed);
    *k = NULL;
    o.dim_count = program_dims(p, dims, bindings, store);
    o.type_count =
        how.wide || (how.path >= EPI_PATH_NAIVE && !how.narrow) ? wide_types(p, how.wide, types) : 0;
    if (how.types)
        o.type_count = parse_types(how.types, types, type_names, sizeof type_names);
    o.open_axis_count = how.open ? words_of(how.open, names, sizeof names, open, 4) : 0;
    for (int i = 0, n = how.rows ? words_of(how.rows, row_names, sizeof row_names, rows, 8) : 0; i < n; i++)
        if (program_dim(p, rows[i]) >= 0)
            rows[o.row_axis_count++] = rows[i];
    o.row_axes = o.row_axis_count ? rows : NULL;
    return epi_kernel_compile(p, &o, k, err);
}

static inline epi_kernel *kernel_of(const epi_program *p, const char *dims, way how) {
    epi_kernel *k = NULL;
    epi_error err = {0};
    check(p && compile_as(p, dims, how, &k, &err) == EPI_OK, "%s %s %s, path %d, compiles: %s",
          p ? epi_program_name(p) : "what is missing", dims, epi_dtype_name(how.type), how.path, err.message);
    return k;
}

/* Of the first program of a text. */
static inline epi_kernel *text_kernel(epi_context *ctx, const char *text, const char *dims, way how) {
    epi_module *m = parsed(ctx, text);
    epi_kernel *k = m ? kernel_of(epi_module_program(m, 0), dims, how) : NULL;
    epi_module_free(m);
    return k;
}

/* Runs it on tensors of the test's own, which may fail. */
static inline epi_status run_with(const epi_kernel *k, const epi_tensor *tensors, int count, epi_error *err) {
    void *work = aligned_alloc(64, epi_kernel_workspace(k));
    epi_status status = epi_kernel_run(k, tensors, count, work, err);
    free(work);
    return status;
}

/* And may not; false where there is no kernel. */
static inline bool run_on(const epi_kernel *k, const epi_tensor *tensors, int count) {
    epi_error err = {0};
    return k && check(run_with(k, tensors, count, &err) == EPI_OK, "a kernel runs: %s", err.message);
}

/* Runs a kernel with open axes at these sizes of theirs. */
static inline epi_status run_at(const epi_kernel *k, const int64_t *sizes, int size_count,
                                const epi_tensor *tensors, int count, const void *prepared, epi_error *err) {
    epi_call call = EPI_CALL(.tensors = tensors, .count = count, .sizes = sizes, .size_count = size_count,
                             .prepared = prepared);
    epi_status status = epi_kernel_workspace_at(k, sizes, size_count, &call.workspace_bytes, err);
    if (status != EPI_OK)
        return status;
    call.workspace = aligned_alloc(64, call.workspace_bytes);
    status = epi_kernel_call(k, &call, err);
    free(call.workspace);
    return status;
}

static inline epi_kernel_info info_of(const epi_kernel *k) {
    epi_kernel_info info = {0};
    epi_kernel_get_info(k, &info);
    return info;
}

/* ---- what a kernel computes ---- */

typedef struct ran {
    problem p;
    epi_kernel *k;
    const epi_program *program;
    epi_module *module; /* of its own, or NULL */
    bool ok;            /* it ran */
} ran;

static inline void discard(ran *r) {
    problem_free(&r->p);
    epi_kernel_free(r->k);
    epi_module_free(r->module);
    *r = (ran){0};
}

/* Several: DISCARD(&got, &want, &naive). */
static inline void discard_each(ran *const *r, size_t count) {
    for (size_t i = 0; i < count; i++)
        discard(r[i]);
}
#define DISCARD(...) discard_each((ran *[]){__VA_ARGS__}, sizeof((ran *[]){__VA_ARGS__}) / sizeof(ran *))

/* A way's fill where tensors are filled later. */
static inline void unfilled(problem *p, uint64_t seed) {
    (void)p, (void)seed;
}

/* A kernel and its tensors, filled. Discard it in any case. */
static inline bool made(ran *r, const epi_program *p, const char *dims, way how) {
    *r = (ran){.program = p, .k = kernel_of(p, dims, how)};
    if (!r->k || !check(problem_make(&r->p, p, r->k, how.layout), "memory"))
        return false;
    (how.fill ? how.fill : problem_fill)(&r->p, how.seed ? how.seed : 5);
    return true;
}

/* The same of the first program of a text. */
static inline bool made_of(ran *r, epi_context *ctx, const char *text, const char *dims, way how) {
    epi_module *m = parsed(ctx, text);
    bool ok = made(r, epi_module_program(m, 0), dims, how);
    r->module = m;
    return ok;
}

static inline bool run_again(ran *r) {
    return r->ok = check(problem_run(r->k, &r->p), "%s runs", epi_program_name(r->program));
}

static inline bool run_as(ran *r, const epi_program *p, const char *dims, way how) {
    return made(r, p, dims, how) && run_again(r);
}

static inline const char *tensor_name(const epi_program *p, int t) {
    return p->graph.tensors[t].name;
}

static inline tensor *find(const ran *r, const char *name) {
    for (int t = 0; t < r->p.count; t++)
        if (!strcmp(tensor_name(r->program, t), name))
            return (tensor *)&r->p.t[t]; /* of a ran that the caller may change */
    return NULL;
}

static inline double at(const tensor *t, int64_t e) {
    return get_element(t->data, t->shape.type, tensor_at(t, e));
}

static inline void put_at(tensor *t, int64_t e, double value) {
    put_element(t->data, t->shape.type, tensor_at(t, e), value);
}

/* Elements of equal bits, whatever the layouts. */
static inline bool same_bits(const tensor *a, const tensor *b) {
    size_t size = epi_dtype_size(a->shape.type);
    bool same = a->shape.type == b->shape.type && a->shape.count == b->shape.count;
    if (same && a->plain && b->plain)
        return !memcmp(a->data, b->data, (size_t)a->shape.count * size);
    for (int64_t e = 0; e < a->shape.count && same; e++)
        same =
            !memcmp(a->data + (size_t)tensor_at(a, e) * size, b->data + (size_t)tensor_at(b, e) * size, size);
    return same;
}

/* All outputs of two runs have the same bits. */
static inline bool same_outputs(const ran *a, const ran *b) {
    bool same = a->p.count == b->p.count;
    for (int t = a->p.inputs; t < a->p.count && same; t++)
        same = same_bits(&a->p.t[t], &b->p.t[t]);
    return same;
}

/* ---- rows ---- */

/* Does the tensor have this axis as its first? */
static inline bool has_first(const epi_program *p, int t, const char *axis) {
    epi_tensor_info info;
    return epi_program_tensor(p, t, &info) == EPI_OK && info.rank && !info.axes[0].shift &&
           !strcmp(info.axes[0].dim, axis);
}

/* Row i of the inputs that have rows depends on the number from[i] alone; the other inputs are the same for all. */
static inline void fill_rows_from(problem *p, const char *axis, const int *from,
                                  double (*element)(const problem *p, int t, uint64_t *s)) {
    for (int t = 0; t < p->inputs; t++) {
        bool rows = has_first(p->program, t, axis);
        int64_t count = rows ? p->t[t].shape.sizes[0] : 1, width = count ? p->t[t].shape.count / count : 0;
        for (int64_t e = 0; e < count * width; e++) {
            uint64_t s = (uint64_t)t * 7919 + (uint64_t)(rows ? from[e / width] : 0) * 104729 * 64 +
                         (uint64_t)(e % width);
            put_at(&p->t[t], e, element(p, t, &s));
        }
    }
}

/* A row of one run and one of another: do all outputs that have rows have the same bits there? */
static inline bool same_rows(const ran *a, int64_t ra, const ran *b, int64_t rb, const char *axis) {
    bool same = true;
    for (int t = a->p.inputs; t < a->p.count; t++) {
        const epi_tensor_shape *s = &a->p.t[t].shape;
        int64_t width = has_first(a->program, t, axis) ? s->count / s->sizes[0] : 0;
        size_t bytes = (size_t)width * epi_dtype_size(s->type);
        same &= !memcmp(a->p.t[t].data + (size_t)ra * bytes, b->p.t[t].data + (size_t)rb * bytes, bytes);
    }
    return same;
}

/* ---- results ---- */

/* What a program should compute, in f64, and what it does written plainly, from the inputs of the way. Discard
 * both in any case. */
static inline bool yardsticks(ran *want, ran *naive, const epi_program *p, const char *dims, way how) {
    how =
        (way){.type = how.type, .path = EPI_PATH_REFERENCE, .threads = 1, .fill = how.fill, .seed = how.seed};
    *naive = (ran){0};
    if (!run_as(want, p, dims, how))
        return false;
    how.path = EPI_PATH_NAIVE;
    return run_as(naive, p, dims, how);
}

/* Holds each output to the rule. `between` is the type of what lies between parts. */
static inline void hold_against(const ran *got, const ran *want, const ran *naive, epi_dtype between,
                                const char *what) {
    for (int t = got->p.inputs; t < got->p.count; t++) {
        double error, most;
        bool right =
            within_rule(&got->p.t[t], &want->p.t[t], &naive->p.t[t], between, want->p.terms, &error, &most);
        check(right && tensor_intact(&got->p.t[t]), "%s: %s is %g off, at most %g", what,
              tensor_name(got->program, t), error, most);
    }
}

/* How far the reference of an output moves where each value on the way is moved by the rule's floor. */
static inline double spread_of(const ran *want, const char *dims, way how, int t) {
    double spread = 0;
    how = (way){.type = how.type,
                .path = EPI_PATH_REFERENCE,
                .perturb = epi_error_floor(type_unit(how.type), want->p.terms),
                .fill = how.fill,
                .seed = how.seed};
    for (how.perturb_seed = 1; how.perturb_seed <= EPI_SPREAD_SAMPLES; how.perturb_seed++) {
        ran moved;
        if (run_as(&moved, want->program, dims, how))
            for (int64_t e = 0; e < want->p.t[t].shape.count; e++)
                spread = fmax(spread, apart(at(&want->p.t[t], e), at(&moved.p.t[t], e)));
        discard(&moved);
    }
    return isfinite(spread) ? spread : 0;
}

/* Holds what was run against the yardsticks, by the rule; where large terms may cancel, by their spread, too. */
static inline void hold_ran(const ran *got, const char *dims, way how) {
    ran want, naive;
    epi_kernel_info info;
    epi_kernel_get_info(got->k, &info);
    epi_dtype between = how.path == EPI_PATH_FUSED && info.parts < 2 ? EPI_F32 : how.type;
    bool ok = yardsticks(&want, &naive, got->program, dims, how);
    for (int t = got->p.inputs; t < got->p.count && ok; t++) {
        double error, most;
        if (!within_rule(&got->p.t[t], &want.p.t[t], &naive.p.t[t], between, want.p.terms, &error, &most))
            most += 2 * spread_of(&want, dims, how, t);
        check(error <= most && tensor_intact(&got->p.t[t]), "%s %s %s: %s is %g off, at most %g",
              epi_program_name(got->program), dims, epi_dtype_name(how.type), tensor_name(got->program, t),
              error, most);
    }
    discard(&want);
    discard(&naive);
}

/* Runs a program, and holds it. */
static inline void hold(const epi_program *p, const char *dims, way how) {
    ran got;
    if (run_as(&got, p, dims, how))
        hold_ran(&got, dims, how);
    discard(&got);
}

#endif
