/* test_cases.c: the table of cases on the CPU, in five modes.
 *
 *     test      every small case against the f64 reference, by the error rule, for every storage type,
 *               layout, path, micro-kernel and thread count; poisoned outputs, guarded buffers
 *     some      each in one storage type alone: for the sanitizers, under which all of them are slow
 *     gradients  of every small case the gradient by all inputs of numbers, in f32 and bf16, by the error rule
 *     perf      the time of every case, fused and unfused
 *     support   what every case compiles to
 */
#include <time.h>

#include "cases.h"
#include "ran.h"

static const char *folder;
static epi_context *ctx;

/* ---- test ---- */

static void test_variant(const loaded *l, way how, const oracles *oracle, const char *what) {
    const test_case *c = l->from;
    ran r;
    how.seed = CASE_SEED;
    if (made(&r, l->program, c->dims, how)) {
        check(problem_run(r.k, &r.p), "%s:%s %s %s runs inside its workspace", c->file, c->program, c->dims,
              what);
        for (int i = 0; i < r.p.count; i++)
            check(tensor_intact(&r.p.t[i]), "%s:%s %s %s: tensor %d, nothing outside it touched", c->file,
                  c->program, c->dims, what, i);
        check_rule(&r.p, l, oracle, how.path == EPI_PATH_FUSED ? EPI_F32 : how.type, what);
    }
    discard(&r);
}

/* Every micro-kernel of this machine that takes the type. */
static void test_micros(const loaded *l, epi_dtype type, const oracles *oracle) {
    epi_device_info cpu;
    char store[256], what[128];
    const char *micros[32];
    epi_device_get(ctx, 0, &cpu);
    for (int i = 0, n = words_of(cpu.features, store, sizeof store, micros, 32); i < n; i++) {
        const way how = {.type = type, .threads = 1, .micro = micros[i]};
        epi_kernel *k;
        if (compile_as(l->program, l->from->dims, how, &k, NULL) != EPI_OK)
            continue;
        epi_kernel_free(k);
        snprintf(what, sizeof what, "%s %s", epi_dtype_name(type), micros[i]);
        test_variant(l, how, oracle, what);
    }
}

static void test_type(const loaded *l, epi_dtype type) {
    static const char *const paths[] = {"fused", "unfused"}, *const layouts[] = {"plain", "padded",
                                                                                 "reversed"};
    oracles oracle;
    char what[128];
    oracles_make(l, type, &oracle);
    if (check(oracle.ok, "%s:%s %s has a reference", l->from->file, l->from->program, l->from->dims)) {
        for (int how = 0; how < LAYOUT_COUNT; how++)
            for (int path = 0; path < 2; path++) {
                snprintf(what, sizeof what, "%s %s %s", epi_dtype_name(type), layouts[how], paths[path]);
                test_variant(l, (way){.type = type, .path = (epi_path)path, .layout = (layout)how}, &oracle,
                             what);
            }
        test_micros(l, type, &oracle);
    }
    oracles_free(&oracle);
}

static void run_case(const test_case *c, bool sparing) {
    static const epi_dtype types[] = {EPI_F32, EPI_BF16, EPI_F16};
    loaded l = {0};
    for (int t = 0; t < 3; t++) {
        if ((sparing && (c - cases) % 3 != t) ||
            !wanted("%s:%s %s %s", c->file, c->program, c->dims, epi_dtype_name(types[t])))
            continue;
        if (!l.program && !load_case(ctx, folder, c, &l))
            break;
        test_type(&l, types[t]);
    }
    epi_module_free(l.module);
}

/* ---- gradients ---- */

/* What has no gradient (an index that is an output, a step by hand) says so, and is left out. */
static void gradients_case(const test_case *c) {
    static const epi_dtype types[] = {EPI_F32, EPI_BF16};
    const char *names[MAX_TENSORS];
    for (int t = 0; t < 2; t++) {
        loaded l = {0};
        epi_module *m = NULL;
        if (!wanted("%s:%s %s %s gradient", c->file, c->program, c->dims, epi_dtype_name(types[t])) ||
            !load_case(ctx, folder, c, &l))
            continue;
        int count = number_inputs(l.program, true, names, MAX_TENSORS);
        if (count && epi_program_grad(l.program, names, count, &m, NULL) == EPI_OK)
            hold(epi_module_program(m, 0), c->dims, (way){.type = types[t], .seed = CASE_SEED});
        epi_module_free(m);
        epi_module_free(l.module);
    }
}

/* ---- perf and support ---- */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The best of twenty runs, or infinity where it does not compile. */
static double best_time(const loaded *l, epi_path path) {
    epi_options o = case_options(l, EPI_F32, path);
    epi_kernel *k;
    problem p;
    double best = INFINITY;
    if (epi_kernel_compile(l->program, &o, &k, NULL) != EPI_OK)
        return best;
    void *work = aligned_alloc(64, epi_kernel_workspace(k));
    if (problem_make(&p, l->program, k, LAYOUT_PLAIN) && work) {
        problem_fill(&p, CASE_SEED);
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

static void perf_case(const test_case *c) {
    loaded l;
    if (load_case(ctx, folder, c, &l))
        printf("%-22s %-26s fused %9.1f us, unfused %9.1f us\n", c->program, c->dims,
               1e6 * best_time(&l, EPI_PATH_FUSED), 1e6 * best_time(&l, EPI_PATH_UNFUSED));
    epi_module_free(l.module);
}

static void support_case(const test_case *c) {
    loaded l;
    char how[2048];
    if (!load_case(ctx, folder, c, &l))
        return;
    epi_kernel *k;
    epi_error err;
    if (compile_as(l.program, c->dims, (way){0}, &k, &err) == EPI_OK) {
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
        else if (!strcmp(mode, "gradients") && !(cases[i].flags & LARGE))
            gradients_case(&cases[i]);
        else if (!(cases[i].flags & LARGE))
            run_case(&cases[i], !strcmp(mode, "some"));
    epi_context_close(ctx);
    return finish();
}
