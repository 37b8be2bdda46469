/* blas.c: opens OpenBLAS at run time; nothing of it is needed to build. */
#include "blas.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

/* dlsym hands functions out as void *; POSIX wants them copied, not cast. */
static bool find(const blas *b, const char *name, void *function) {
    void *symbol = dlsym(b->library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

bool blas_open(blas *b, int threads) {
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so"};
    *b = (blas){.name = ""};
    for (int i = 0; i < 2 && !b->library; i++)
        b->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    void (*set_threads)(int);
    char *(*config)(void);
    if (!b->library || !find(b, "cblas_sgemm", &b->sgemm) ||
        !find(b, "openblas_set_num_threads", &set_threads)) {
        blas_close(b);
        return false;
    }
    set_threads(threads);
    if (find(b, "openblas_get_config", &config))
        b->name = config();
    return true;
}

void blas_close(blas *b) {
    if (b->library)
        dlclose(b->library);
    *b = (blas){.name = ""};
}

void blas_product(const blas *b, int64_t m, int64_t n, int64_t k, const float *x, const float *y, float *c) {
    enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
    b->sgemm(ROW_MAJOR, PLAIN, TRANSPOSED, (int)m, (int)n, (int)k, 1, x, (int)k, y, (int)k, 0, c, (int)n);
}
