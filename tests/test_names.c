/* test_names.c: programs whose values are called what the emitted texts call their own (tests/names.epi): the
 * texts must compile, in rows and in the epilogue of every mainloop.
 *
 *     names [programs] [cache folder] [some | texts | forms | all]     the first two compile nothing */
#include <ctype.h>

#include "cases.h"
#include "cuda/cuda.h"
#include "cuda/jit.h"
#include "spec.h"

static const test_case named[] = {
    {"../tests/names", "rows", "T=37,D=72", 0},
    {"../tests/names", "rows", "T=3,D=2048", 0},
    {"../tests/names", "sums", "T=37,D=72", 0},
    {"../tests/names", "product", "T=40,F=72,D=64", 0},
};
enum { NAMED = sizeof named / sizeof *named };

static const struct {
    int capability; /* a product gets a mainloop of its own on each */
    epi_dtype type;
} targets[] = {{90, EPI_BF16}, {80, EPI_F16}, {80, EPI_F32}};

/* Nothing but a value is called NAME_v<digits>. */
static void device_texts(void) {
    static const char *const texts[] = {"base",      "ptx",       "folds",   "tiles",
                                        "index",     "rows",      "random",  "gemm_sm90_tile",
                                        "gemm_sm90", "gemm_sm80", "gemm_any"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        bool found = false;
        for (const char *p = epi_device_text(texts[i]); (p = strstr(p, "_v")); p++)
            found |= isdigit((unsigned char)p[2]) != 0;
        check(!found, "device/%s.cuh has no name that ends as those of values do", texts[i]);
    }
}

static void compile_launch(const epi_kernel_text *t, const char *label) {
    epi_jit_item item = {.source = t->source.data, .name = t->name, .arch = t->arch, .keep_slow = true};
    check(epi_jit_compile(&item) == EPI_OK, "%s, %s: %s", label, t->name, item.error.message);
    epi_cubin_free(&item.cubin);
}

static void compile_case(const loaded *l, int target, bool compiling) {
    epi_arena arena = {0};
    epi_spec spec;
    epi_error err = {0};
    epi_cuda_kernel *k = NULL;
    char label[160];
    epi_cuda_target t = {.arch = epi_arch_of(targets[target].capability), .multiprocessors = 132};
    snprintf(label, sizeof label, "%s %s %s sm_%d", l->from->program, l->from->dims,
             epi_dtype_name(targets[target].type), targets[target].capability);
    if (!wanted("%s", label))
        return;
    epi_status status = bind_spec(l, targets[target].type, EPI_PATH_FUSED, &arena, &spec)
                            ? epi_cuda_compile(&arena, &spec, &t, &k, &err)
                            : EPI_ERR_MEMORY;
    if (check(status == EPI_OK, "%s: %s", label, err.message))
        for (int i = 0; i < k->count && compiling; i++)
            if (!k->launches[i].empty && !k->launches[i].joined)
                compile_launch(&k->launches[i].text, label);
    epi_cuda_kernel_free(k);
    epi_arena_free(&arena);
}

int main(int argc, char **argv) {
    char why[300] = "asked for texts alone";
    bool compiling = (argc < 4 || (strcmp(argv[3], "some") != 0 && strcmp(argv[3], "texts") != 0)) &&
                     epi_jit_available(why, sizeof why);
    epi_context *ctx;
    if (argc > 2)
        setenv("EPILOG_CACHE", argv[2], 1);
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    device_texts();
    for (int i = 0; i < NAMED; i++) {
        loaded l = {0};
        if (!load_case(ctx, argc > 1 ? argv[1] : "programs", &named[i], &l))
            continue;
        for (int t = 0; t < (has_product(&l) ? 3 : 1); t++) /* products: one of each mainloop */
            compile_case(&l, t, compiling);
        epi_module_free(l.module);
    }
    if (!compiling)
        printf("nothing is compiled: %s\n", why);
    epi_context_close(ctx);
    return finish();
}
