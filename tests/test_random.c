/* test_random.c: random programs around one product or without one, fused and unfused, against the f64
 * reference. A failure prints the seed and the program. */
#include "random_program.h"

static bool run_path(const epi_program *program, epi_options o, epi_path path, bool oracle, problem *p) {
    epi_type_binding types[MAX_TENSORS];
    epi_error err;
    epi_kernel *k;
    o.path = path;
    o.type_count = oracle ? wide_types(program, false, types) : 0;
    o.types = types;
    epi_status status = epi_kernel_compile(program, &o, &k, &err);
    if (status != EPI_OK) {
        printf("compile: %s\n", err.message);
        return false;
    }
    bool ok = problem_make(p, program, k, LAYOUT_PLAIN);
    problem_fill(p, 3);
    ok = ok && problem_run(k, p);
    epi_kernel_free(k);
    return ok;
}

/* A step function of a rounded value may land on the other side: such programs prove nothing. */
static bool is_stable(const problem *ref, const problem *naive) {
    for (int i = ref->inputs; i < ref->count; i++)
        for (int64_t e = 0; e < ref->t[i].shape.count; e++) {
            double a = get_element(ref->t[i].data, EPI_F64, e), b = get_element(naive->t[i].data, EPI_F64, e);
            if (!(apart(a, b) <= 1e-3 * (1 + fabs(a))))
                return false;
        }
    return true;
}

/* Seeds of which one was wrong once: 3774 is a scalar where the naive path is right by luck. */
static const int known[] = {3774};
enum { KNOWN = sizeof known / sizeof *known };

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 300, first = argc > 2 ? atoi(argv[2]) : 1, fused_count = 0,
        skipped = 0;
    static const int heads[] = {2, 8, 16, 64, 100};
    epi_context *ctx;
    epi_error err;
    if (!check(epi_context_open(&ctx, &err) == EPI_OK, "a context opens"))
        return finish();
    for (int n = 0; n < rounds + KNOWN; n++) {
        int i = n < rounds ? first + n : known[n - rounds];
        maker m;
        bool rows = i % 3 == 0;
        (rows ? make_rows_program : make_program)(&m, (uint64_t)i);
        epi_module *module;
        if (!check(epi_module_parse(ctx, m.text, strlen(m.text), "random", &module, &err) == EPI_OK,
                   "seed %d: %s\n%s", i, err.message, m.text))
            continue;
        const epi_program *program = epi_module_program(module, 0);
        epi_dim_binding dims[] = {{"B", 1 + random_below(&m.s, 3)},
                                  {"S", 1 + random_below(&m.s, 90)},
                                  {"H", 1 + random_below(&m.s, 6)},
                                  {"D", heads[random_below(&m.s, 5)]},
                                  {"K", random_below(&m.s, 40)}};
        epi_options o =
            EPI_OPTIONS(.dims = dims, .dim_count = rows ? 4 : 5, .threads = 1 + random_below(&m.s, 2));
        problem ref = {0}, naive = {0}, out[2] = {{0}, {0}};
        if (check(run_path(program, o, EPI_PATH_REFERENCE, true, &ref) &&
                      run_path(program, o, EPI_PATH_NAIVE, true, &naive),
                  "seed %d has a reference\n%s", i, m.text)) {
            bool use = !has_steps(m.text) || is_stable(&ref, &naive);
            skipped += !use;
            for (int path = 0; path < 2 && use; path++) {
                if (!check(run_path(program, o, (epi_path)path, false, &out[path]), "seed %d runs\n%s", i,
                           m.text))
                    continue;
                for (int t = out[path].inputs; t < out[path].count; t++) {
                    double error, bound;
                    bool ok = within_rule(&out[path].t[t], &ref.t[t], &naive.t[t], EPI_F32, out[path].terms,
                                          &error, &bound);
                    check(ok, "seed %d path %d output %d: error %g, allowed %g\n%s", i, path, t, error, bound,
                          m.text);
                }
            }
        }
        epi_kernel *k;
        if (epi_kernel_compile(program, &o, &k, &err) == EPI_OK) {
            epi_kernel_info info;
            epi_kernel_get_info(k, &info);
            fused_count += strcmp(info.mainloop, "passes") != 0;
            epi_kernel_free(k);
        }
        problem_free(&ref);
        problem_free(&naive);
        problem_free(&out[0]);
        problem_free(&out[1]);
        epi_module_free(module);
    }
    printf("%d programs, %d fused, %d with an unstable step left out\n", rounds, fused_count, skipped);
    check(fused_count * 2 > rounds, "most random programs are fused");
    epi_context_close(ctx);
    return finish();
}
