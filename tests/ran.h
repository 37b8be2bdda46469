/* ran.h: a kernel and its tensors, which are found by their names. */
#ifndef EPI_TESTS_RAN_H
#define EPI_TESTS_RAN_H

#include "harness.h"
#include "run/run.h"

typedef struct ran {
    problem p;
    epi_kernel *k;
    const epi_program *program;
} ran;

static inline void discard(ran *r) {
    problem_free(&r->p);
    epi_kernel_free(r->k);
}

static inline tensor *find(const ran *r, const char *name) {
    int t = epi_graph_find_tensor(&r->program->graph, name);
    return t >= 0 && t < r->p.count ? (tensor *)&r->p.t[t] : NULL; /* of a ran that the caller may change */
}

static inline double at(const tensor *t, int64_t e) {
    return get_element(t->data, t->shape.type, e);
}

/* Those of the sizes whose dims the program has. Returns how many. */
static inline int program_dims(const epi_program *program, const char *dims, epi_dim_binding *out,
                               char (*store)[16]) {
    int kept = 0;
    for (int i = 0, n = parse_dims(dims, out, store); i < n; i++)
        for (int d = 0; d < epi_program_dim_count(program); d++)
            if (!strcmp(epi_program_dim(program, d), out[i].name)) {
                out[kept++] = out[i];
                break;
            }
    return kept;
}

#endif
