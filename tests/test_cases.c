/* test_cases.c: one table of programs and sizes, run in three modes.
 *
 *     test      every case against the f64 reference, by the error rule, for every storage type,
 *               layout, path, micro-kernel and thread count; poisoned outputs, guarded buffers
 *     perf      the time of every case, fused and unfused
 *     support   what every case compiles to
 */
#include <time.h>

#include "harness.h"

static const struct test_case {
    const char *file, *program, *dims;
} cases[] = {
    {"matmul", "matmul", "M=1,N=1,K=1"},
    {"matmul", "matmul", "M=7,N=13,K=5"},
    {"matmul", "matmul", "M=193,N=257,K=301"},
    {"matmul", "matmul", "M=0,N=5,K=3"},
    {"matmul", "matmul", "M=5,N=0,K=3"},
    {"matmul", "matmul", "M=5,N=6,K=0"},
    {"matmul", "matmul", "M=1,N=300,K=64"},
    {"matmul", "matmul", "M=300,N=1,K=64"},
    {"matmul", "matmul", "M=64,N=64,K=1031"},
    {"matmul", "matmul_nn", "M=50,N=67,K=41"},
    {"matmul", "matmul_tn", "M=50,N=67,K=41"},
    {"matmul", "matmul_tt", "M=50,N=67,K=41"},
    {"matmul", "matmul_tn", "M=200,N=300,K=259"},
    {"linear", "linear", "T=33,D=29,F=270"},
    {"linear", "linear_gelu", "T=33,D=29,F=270"},
    {"rope", "rope", "B=2,S=19,E=31,H=3,D=16"},
    {"rope", "rope", "B=1,S=200,E=8,H=5,D=64"},
    {"rope", "rope_halves", "B=2,S=19,E=31,H=3,D=16"},
    {"rope", "rope_halves", "B=3,S=71,E=13,H=5,D=96"},
    {"swiglu", "swiglu", "T=29,D=17,F=2"},
    {"swiglu", "swiglu", "T=197,D=17,F=514"},
    {"swiglu", "swiglu_halves", "T=197,D=17,F=514"},
    {"cross_entropy", "cross_entropy", "T=31,D=17,V=1"},
    {"cross_entropy", "cross_entropy", "T=31,D=17,V=523"},
    {"cross_entropy", "cross_entropy", "T=3,D=2,V=0"},
    {"residual_rms", "residual_rms", "T=37,D=517,K=11"},
    {"residual_rms", "residual_rms", "T=1,D=1,K=1"},
    {"norm_linear", "norm_linear", "T=37,D=41,F=43"},
    {"norm_swiglu", "norm_swiglu", "T=200,D=19,F=262"},
    {"norm_rope", "norm_rope", "B=2,S=101,E=31,H=3,D=128"},
    {"norm_rope", "qk_norm", "B=2,S=9,E=31,H=7,D=80"},
    {"norm_rope", "qk_norm", "B=1,S=5,E=31,H=3,D=256"},
    {"norm_rope", "qk_norm", "B=1,S=5,E=31,H=2,D=300"},
    {"norm_cross_entropy", "norm_cross_entropy", "T=193,D=17,V=259"},
    {"rmsnorm_backward", "rmsnorm_backward", "T=391,F=23,D=261"},
    {"rmsnorm_backward", "rmsnorm_backward", "T=1,F=23,D=261"},
    {"swiglu_backward", "swiglu_backward", "T=195,D=13,F=259"},
    {"swiglu_backward", "swiglu_backward", "T=3,D=1,F=1"},
    {"layernorm_linear", "layernorm_linear", "T=41,D=37,F=43"},
    {"layernorm_linear", "layernorm_fold", "D=37,F=43"},
    {"layernorm_linear", "layernorm_stats", "T=41,D=1037"},
};
enum { CASES = sizeof cases / sizeof *cases };

static const char *folder;
static epi_context *ctx;

typedef struct loaded {
    epi_module *module;
    const epi_program *program;
    epi_dim_binding dims[16];
    char names[16][16];
    int dim_count;
} loaded;

static bool load(const struct test_case *c, loaded *out) {
    char path[1024];
    size_t length;
    epi_error err;
    snprintf(path, sizeof path, "%s/%s.epi", folder, c->file);
    char *text = read_whole(path, &length);
    memset(out, 0, sizeof *out);
    bool ok = text && epi_module_parse(ctx, text, length, path, &out->module, &err) == EPI_OK;
    free(text);
    out->program = ok ? epi_module_find(out->module, c->program) : NULL;
    out->dim_count = parse_dims(c->dims, out->dims, out->names);
    return check(out->program != NULL, "%s:%s loads", c->file, c->program);
}

static epi_options options_of(const loaded *l, epi_dtype type, epi_path path, int threads,
                              const char *micro) {
    return (epi_options){.dims = l->dims,
                         .dim_count = l->dim_count,
                         .type = type,
                         .path = path,
                         .threads = threads,
                         .micro = micro};
}

/* The outputs of an oracle path, in f64, for the inputs of a seed. */
static bool oracle(const loaded *l, epi_dtype type, epi_path path, uint64_t seed, problem *p) {
    epi_options o = options_of(l, type, path, 2, NULL);
    epi_type_binding types[MAX_TENSORS];
    epi_error err;
    int count = epi_program_tensor_count(l->program), n = 0;
    for (int i = 0; i < count; i++) {
        epi_tensor_info info;
        epi_program_tensor(l->program, i, &info);
        if (info.is_output)
            types[n++] = (epi_type_binding){info.name, EPI_F64};
    }
    o.types = types;
    o.type_count = n;
    epi_kernel *k;
    if (epi_kernel_compile(l->program, &o, &k, &err) != EPI_OK)
        return false;
    bool ok = problem_make(p, l->program, k, LAYOUT_PLAIN);
    if (ok) {
        problem_fill(p, seed);
        ok = problem_run(k, p);
    }
    epi_kernel_free(k);
    return ok;
}

/* ---- test ---- */

static void test_variant(const struct test_case *c, const loaded *l, epi_options o, layout how,
                         const problem *ref, const problem *naive, const char *what) {
    epi_kernel *k;
    epi_error err;
    problem p;
    epi_status status = epi_kernel_compile(l->program, &o, &k, &err);
    if (!check(status == EPI_OK, "%s:%s %s %s compiles: %s", c->file, c->program, c->dims, what,
               status ? err.message : ""))
        return;
    if (check(problem_make(&p, l->program, k, how), "memory")) {
        problem_fill(&p, 7);
        check(problem_run(k, &p), "%s:%s %s %s runs inside its workspace", c->file, c->program, c->dims,
              what);
        for (int i = 0; i < p.count; i++) {
            double error, bound;
            check(tensor_intact(&p.t[i]), "%s:%s %s %s: tensor %d, nothing outside it touched", c->file,
                  c->program, c->dims, what, i);
            if (!p.t[i].output)
                continue;
            bool ok = within_rule(&p.t[i], &ref->t[i], &naive->t[i],
                                  o.path == EPI_PATH_FUSED ? EPI_F32 : o.type, 1, &error, &bound);
            check(ok, "%s:%s %s %s: tensor %d, error %g, allowed %g", c->file, c->program, c->dims, what, i,
                  error, bound);
        }
    }
    problem_free(&p);
    epi_kernel_free(k);
}

static void test_case(const struct test_case *c) {
    static const epi_dtype types[] = {EPI_F32, EPI_BF16, EPI_F16};
    static const char *const paths[] = {"fused", "unfused"}, *const layouts[] = {"plain", "padded",
                                                                                 "reversed"};
    epi_device_info cpu;
    epi_device_get(ctx, 0, &cpu);
    loaded l;
    if (!load(c, &l)) {
        epi_module_free(l.module);
        return;
    }
    for (int t = 0; t < 3; t++) {
        problem ref = {0}, naive = {0};
        char what[128];
        if (check(oracle(&l, types[t], EPI_PATH_REFERENCE, 7, &ref) &&
                      oracle(&l, types[t], EPI_PATH_NAIVE, 7, &naive),
                  "%s:%s %s has a reference", c->file, c->program, c->dims)) {
            for (int how = 0; how < LAYOUT_COUNT; how++)
                for (int path = 0; path < 2; path++) {
                    snprintf(what, sizeof what, "%s %s %s", epi_dtype_name(types[t]), layouts[how],
                             paths[path]);
                    test_variant(c, &l, options_of(&l, types[t], (epi_path)path, 2, NULL), (layout)how, &ref,
                                 &naive, what);
                }
            char micros[256], *save = NULL; /* every micro-kernel of this machine that takes the type */
            snprintf(micros, sizeof micros, "%s", cpu.features);
            for (char *m = strtok_r(micros, " ", &save); m; m = strtok_r(NULL, " ", &save)) {
                epi_options o = options_of(&l, types[t], EPI_PATH_FUSED, 1, m);
                epi_kernel *k;
                if (epi_kernel_compile(l.program, &o, &k, NULL) != EPI_OK)
                    continue;
                epi_kernel_free(k);
                snprintf(what, sizeof what, "%s %s", epi_dtype_name(types[t]), m);
                test_variant(c, &l, o, LAYOUT_PLAIN, &ref, &naive, what);
            }
        }
        problem_free(&ref);
        problem_free(&naive);
    }
    epi_module_free(l.module);
}

/* ---- perf and support ---- */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The best of twenty runs, or infinity where it does not compile. */
static double best_time(const loaded *l, epi_path path) {
    epi_options o = options_of(l, EPI_F32, path, 0, NULL);
    epi_kernel *k;
    problem p;
    double best = INFINITY;
    if (epi_kernel_compile(l->program, &o, &k, NULL) != EPI_OK)
        return best;
    void *work = aligned_alloc(64, epi_kernel_workspace(k));
    if (problem_make(&p, l->program, k, LAYOUT_PLAIN) && work) {
        problem_fill(&p, 7);
        for (int i = 0; i < 20; i++) {
            double start = seconds();
            epi_kernel_run(k, p.args, p.count, work, NULL);
            best = fmin(best, seconds() - start);
        }
    }
    free(work);
    problem_free(&p);
    epi_kernel_free(k);
    return best;
}

static void perf_case(const struct test_case *c) {
    loaded l;
    if (load(c, &l))
        printf("%-22s %-26s fused %9.1f us, unfused %9.1f us\n", c->program, c->dims,
               1e6 * best_time(&l, EPI_PATH_FUSED), 1e6 * best_time(&l, EPI_PATH_UNFUSED));
    epi_module_free(l.module);
}

static void support_case(const struct test_case *c) {
    loaded l;
    char how[2048];
    if (!load(c, &l))
        return;
    epi_options o = options_of(&l, EPI_F32, EPI_PATH_FUSED, 0, NULL);
    epi_kernel *k;
    epi_error err;
    if (epi_kernel_compile(l.program, &o, &k, &err) == EPI_OK) {
        epi_kernel_info info;
        epi_kernel_get_info(k, &info);
        epi_kernel_describe(k, how, sizeof how);
        printf("%s:%s %s: %s\n%s", c->file, c->program, c->dims, info.mainloop, how);
        epi_kernel_free(k);
    } else {
        printf("%s:%s %s: %s\n", c->file, c->program, c->dims, err.message);
    }
    epi_module_free(l.module);
}

int main(int argc, char **argv) {
    const char *mode = argc > 2 ? argv[2] : "test";
    folder = argc > 1 ? argv[1] : "programs";
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    for (int i = 0; i < CASES; i++)
        if (!strcmp(mode, "perf"))
            perf_case(&cases[i]);
        else if (!strcmp(mode, "support"))
            support_case(&cases[i]);
        else
            test_case(&cases[i]);
    epi_context_close(ctx);
    return finish();
}
