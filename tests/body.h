/* body.h: what stands around a `c body` block of a page (tests/test_pages.sh): the names that such a block may use. */
#include <epilog.h>

void body(const epi_program *program, const epi_dim_binding *dims, float *x, float *re, float *im, void *workspace) {
    epi_error err;
    epi_kernel *kernel;
