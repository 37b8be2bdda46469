/* test_random.c: random programs around one product or without one, fused and unfused, against the f64
 * reference. A failure prints the seed and the program. */
#include "ran.h"
#include "random_program.h"

static epi_context *ctx;
static int fused_count, skipped;

/* A step function of a rounded value may land on the other side: such programs prove nothing. */
static bool is_stable(const ran *ref, const ran *naive) {
    for (int t = ref->p.inputs; t < ref->p.count; t++)
        for (int64_t e = 0; e < ref->p.t[t].shape.count; e++)
            if (!(apart(at(&ref->p.t[t], e), at(&naive->p.t[t], e)) <=
                  1e-3 * (1 + fabs(at(&ref->p.t[t], e)))))
                return false;
    return true;
}

static void check_seed(uint64_t seed) {
    static const int heads[] = {2, 8, 16, 64, 100};
    maker m;
    ran ref = {0}, naive = {0}, got;
    char dims[100], what[100];
    int failed = failed_count;
    epi_module *module = random_module(ctx, seed, &m);
    const epi_program *program = module ? epi_module_program(module, 0) : NULL;
    int b = 1 + random_below(&m.s, 3), s = 1 + random_below(&m.s, 90), h = 1 + random_below(&m.s, 6),
        d = heads[random_below(&m.s, 5)], k = random_below(&m.s, 40);
    way how = {.threads = 1 + random_below(&m.s, 2), .seed = 3};
    snprintf(dims, sizeof dims, "B=%d,S=%d,H=%d,D=%d,K=%d", b, s, h, d, k);
    if (program && yardsticks(&ref, &naive, program, dims, how)) {
        bool use = !has_steps(m.text) || is_stable(&ref, &naive);
        skipped += !use;
        for (how.path = EPI_PATH_FUSED; how.path <= EPI_PATH_UNFUSED && use; how.path++) {
            snprintf(what, sizeof what, "seed %lu, path %d", seed, how.path);
            if (run_as(&got, program, dims, how)) {
                epi_kernel_info info;
                epi_kernel_get_info(got.k, &info);
                fused_count += how.path == EPI_PATH_FUSED && strcmp(info.mainloop, "passes") != 0;
                hold_against(&got, &ref, &naive, EPI_F32, what);
            }
            discard(&got);
        }
    }
    if (failed_count > failed)
        printf("%s", m.text);
    discard(&ref);
    discard(&naive);
    epi_module_free(module);
}

int main(int argc, char **argv) {
    int known = 3774; /* was wrong once: a scalar where the naive path is right by luck */
    int count = 0;
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    for (rounds r = rounds_of(argc > 1 ? atoi(argv[1]) : 300); next_round(&r); count++)
        check_seed(r.seed);
    check_seed((uint64_t)known);
    printf("%d programs, %d fused, %d with an unstable step left out\n", count, fused_count, skipped);
    check(2 * fused_count > count, "most random programs are fused");
    epi_context_close(ctx);
    return finish();
}
