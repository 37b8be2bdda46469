/* blas.h: OpenBLAS as a yardstick, if the machine has it. */
#ifndef EPI_CLI_BLAS_H
#define EPI_CLI_BLAS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct blas {
    void *library;
    const char *name; /* its own words about itself, or "" */
    void (*sgemm)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *,
                  int);
} blas;

bool blas_open(blas *b, int threads);
void blas_close(blas *b);
/* c[m,n] = a[m,k] * b[n,k]^T, row-major. */
void blas_product(const blas *b, int64_t m, int64_t n, int64_t k, const float *x, const float *y, float *c);

#endif
