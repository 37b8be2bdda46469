/* test_cliffs.c: programs of cliffs.epi move no more bytes, and take no more launches, than their bounds.
 *
 *     cliffs [tests/cliffs.epi]
 *
 * A bound is what a kernel moves that one would write by hand, times 1.3 at most: inputs once and outputs once. */
#include "ran.h"

#define CACHE "B=32,G=8,J=4,R=8192,E=128,S=64,N=64,C=128,P=3000"

static const struct cliff {
    const char *program, *dims;
    int device;       /* 0: the CPU; -90: sm_90a; -80: sm_80 */
    double megabytes; /* at most */
    int launches;     /* at most; on the CPU parallel loops */
    bool gradient;    /* of the program, by all inputs of numbers */
} cliffs[] = {
    {"cache_bf16", CACHE, -90, 1.3 * 1074, 2, false},
    {"cache_scaled_values", CACHE, -90, 1.3 * 1083, 2, false},
    {"cache_i8", CACHE, -90, 1.3 * 554, 2, false},
    {"cache_e4m3", CACHE, -90, 1.3 * 554, 2, false},
    {"cache_shared_scales", CACHE, -90, 1.3 * 538, 2, false},
    {"cache_u8", CACHE, -90, 1.3 * 557, 3, false},
    {"cache_features", CACHE, -90, 1.3 * 538, 3, false},
    {"cache_mixed", CACHE, -90, 1.3 * 814, 2, false},
    {"cache_blocks", CACHE, -90, 1.3 * 538, 2, false},
    {"cache_pages", CACHE, -90, 1.3 * 571, 4, false}, /* scales are gathered first */
    {"cache_step", CACHE, -90, 1.3 * 554, 7, false},
    {"cache_i8", CACHE, -80, 1.3 * 554, 1, false},
    {"cache_e4m3", CACHE, -80, 1.3 * 554, 1, false},
    {"cache_prompt", CACHE, -80, 1.3 * 588, 1, false},
    {"cache_step", CACHE, 0, 1.01 * 555, 6, false},
    {"cache_scaled_values", CACHE, 0, 1.01 * 1083, 1, false},
    {"cache_i8", CACHE, 0, 1.01 * 554, 1, false},
    {"cache_e4m3", CACHE, 0, 1.01 * 554, 1, false},
    {"cache_shared_scales", CACHE, 0, 1.01 * 538, 1, false},
    {"cache_u8", CACHE, 0, 1.01 * 557, 2, false},
    {"cache_features", CACHE, 0, 1.01 * 538, 2, false},
    {"cache_blocks", CACHE, 0, 1.01 * 538, 1, false},
    {"cache_prompt", CACHE, 0, 1.01 * 588, 1, false},
    {"take", "B=8,T=8192,D=2048,P=1024", -90, 1.3 * 67.2, 1, false},
    {"take", "B=8,T=8192,D=2048,P=1024", -90, 1.3 * 302.1, 1, true},
    {"take", "B=8,T=8192,D=2048,P=1024", -80, 1.3 * 302.1, 1, true},
    {"take", "B=8,T=8192,D=2048,P=1024", 0, 1.3 * 302.1, 1, true},
    {"take_heads", "B=8,H=8,T=8192,D=128,P=1024", -90, 1.3 * 151.1, 1, true},
    {"take_by_head", "B=8,H=8,T=8192,D=128,P=1024", -90, 1.3 * 33.9, 1, true},
    {"largest", "B=8,T=8192", -90, 1.3 * 0.27, 3, true},
    {"delta_step", "B=32,H=16,N=128,P=128", -90, 1.3 * 67.7, 1, false},
    {"delta_step", "B=32,H=16,N=128,P=128", -80, 1.3 * 67.7, 1, false},
    {"delta_step", "B=32,H=16,N=128,P=128", 0, 1.3 * 67.7, 1, false},
    {"softmax_middle", "B=32,N=64,P=2048", -90, 1.3 * 16.8, 1, false},
};

static epi_context *ctx;

static void test_cliff(const epi_module *m, const struct cliff *c) {
    const char *target = c->device ? c->device == -80 ? "sm_80" : "sm_90" : "cpu";
    if (!wanted("%s%s %s", c->program, c->gradient ? " gradient" : "", target))
        return;
    const epi_program *p = epi_module_find(m, c->program);
    epi_kernel *k = NULL;
    epi_error err = {0};
    epi_module *derived = p && c->gradient ? gradient_of(p, NULL) : NULL;
    if (!check(p != NULL, "%s is there", c->program) ||
        !check(compile_as(derived ? last_of(derived) : p, c->dims,
                          (way){.type = EPI_BF16, .device = c->device}, &k, &err) == EPI_OK,
               "%s is compiled for %s: %s", c->program, target, err.message)) {
        epi_module_free(derived);
        return;
    }
    epi_kernel_info info;
    epi_kernel_get_info(k, &info);
    check(info.bytes_fused <= c->megabytes * 1e6, "%s on %s moves %.4g MB, %.4g at most", c->program, target,
          info.bytes_fused / 1e6, c->megabytes);
    check(info.launches <= c->launches, "%s on %s takes %d launches, %d at most", c->program, target,
          info.launches, c->launches);
    epi_kernel_free(k);
    epi_module_free(derived);
}

int main(int argc, char **argv) {
    epi_error err = {0};
    if (!check(epi_context_open(&ctx, &err) == EPI_OK, "a context: %s", err.message))
        return finish();
    epi_module *m = parsed_file(ctx, argc > 1 ? argv[1] : "tests/cliffs.epi");
    for (size_t i = 0; m && i < sizeof cliffs / sizeof *cliffs; i++)
        test_cliff(m, &cliffs[i]);
    epi_module_free(m);
    no_case();
    epi_context_close(ctx);
    return finish();
}
