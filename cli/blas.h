/* blas.h: OpenBLAS or MKL as a yardstick, if the machine has one. */
#ifndef EPI_CLI_BLAS_H
#define EPI_CLI_BLAS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct blas {
    void *library;
    const char *maker; /* "OpenBLAS", "MKL", or "" */
    char name[256];    /* its own words about itself, or "" */
    char core[64];     /* the processor that it took its kernels for, as it calls it: "Haswell"; or "" */
    void (*sgemm)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *,
                  int);
} blas;

bool blas_open(blas *b, int threads);
void blas_close(blas *b);
/* c[m,n] = a[m,k] * b[n,k]^T, row-major. */
void blas_product(const blas *b, int64_t m, int64_t n, int64_t k, const float *x, const float *y, float *c);
/* blas_core.c: why it may be slower than it could be here: a variable that tells it which kernels to take, or kernels
 * for less than this processor has. "" where nothing speaks for that. */
void blas_doubt(const blas *b, char *buf, size_t size);

#endif
