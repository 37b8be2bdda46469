/* blas.c: opens OpenBLAS or MKL at run time. The build needs neither. */
#include "blas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* dlsym hands functions out as void *; POSIX wants them copied, not cast. */
static bool find(const blas *b, const char *name, void *function) {
    void *symbol = dlsym(b->library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

static void ask_openblas(blas *b) {
    char *(*config)(void), *(*core)(void);
    if (find(b, "openblas_get_config", &config))
        snprintf(b->name, sizeof b->name, "%s", config());
    if (find(b, "openblas_get_corename", &core))
        snprintf(b->core, sizeof b->core, "%s", core());
}

/* MKL names no core, but the number of the instructions that it takes (mkl_cbwr.h). */
static void ask_mkl(blas *b) {
    static const char *const cores[] = {[3] = "SSE2", "SSE2",    "SSE3",    "SSSE3",
                                        "SSE4.1",     "SSE4.2",  "AVX",     "AVX2",
                                        "AVX-512",    "AVX-512", "AVX-512", [14] = "AVX-512"};
    void (*version)(char *, int);
    int (*branch)(void);
    if (find(b, "MKL_Get_Version_String", &version))
        version(b->name, (int)sizeof b->name - 1);
    if (!find(b, "MKL_CBWR_Get_Auto_Branch", &branch))
        return;
    size_t at = (size_t)branch();
    if (at < sizeof cores / sizeof *cores && cores[at])
        snprintf(b->core, sizeof b->core, "%s", cores[at]);
}

/* The first that is installed. MKL ends the process where a part of it is missing, so it comes last. */
static const struct library {
    const char *maker, *file, *set_threads;
    void (*ask)(blas *);
} libraries[] = {
    {"OpenBLAS", "libopenblas.so.0", "openblas_set_num_threads", ask_openblas},
    {"OpenBLAS", "libopenblas.so", "openblas_set_num_threads", ask_openblas},
    {"MKL", "libmkl_rt.so.2", "MKL_Set_Num_Threads", ask_mkl},
    {"MKL", "libmkl_rt.so", "MKL_Set_Num_Threads", ask_mkl},
};

bool blas_open(blas *b, int threads) {
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        const struct library *l = &libraries[i];
        void (*set_threads)(int);
        *b = (blas){.maker = l->maker, .library = dlopen(l->file, RTLD_NOW | RTLD_LOCAL)};
        if (b->library && find(b, "cblas_sgemm", &b->sgemm) && find(b, l->set_threads, &set_threads)) {
            set_threads(threads);
            l->ask(b);
            return true;
        }
        blas_close(b);
    }
    return false;
}

void blas_close(blas *b) {
    if (b->library)
        dlclose(b->library);
    *b = (blas){.maker = ""};
}

void blas_product(const blas *b, int64_t m, int64_t n, int64_t k, const float *x, const float *y, float *c) {
    enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
    b->sgemm(ROW_MAJOR, PLAIN, TRANSPOSED, (int)m, (int)n, (int)k, 1, x, (int)k, y, (int)k, 0, c, (int)n);
}
