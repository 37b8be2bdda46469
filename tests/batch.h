/* batch.h: what test_batch.c and test_gpu_batch.c have in common: which outputs have rows that do not depend
 * on each other, and the first rows of a tensor of many. */
#ifndef EPI_TESTS_BATCH_H
#define EPI_TESTS_BATCH_H

#include "harness.h"
#include "run/run.h"

/* Does a row of the value depend on other rows, or on their number? */
static inline bool mixes_rows(const epi_graph *g, int node, int dim) {
    bool *needed = calloc((size_t)node + 1, 1), mixes = needed == NULL;
    if (needed)
        needed[node] = true;
    for (int i = node; i >= 0 && !mixes; i--) {
        const epi_node *n = &g->nodes[i];
        if (!needed[i])
            continue;
        mixes = n->op != EPI_OP_INDEX && epi_axes_find_dim(&n->over, dim) >= 0 &&
                !(epi_ops[n->op].cls == EPI_CLASS_RANDOM && n->over.at[0].dim == dim);
        for (int a = 0; a < 3; a++)
            if (n->arg[a] != EPI_NO_NODE)
                needed[n->arg[a]] = true;
    }
    free(needed);
    return mixes;
}

/* Copies the first rows of a tensor of more of them, or compares with them: axis a is the rows'. */
static inline bool first_rows(tensor *few, const tensor *many, int a, bool compares) {
    size_t inner = epi_dtype_size(few->shape.type), outer = 1;
    for (int i = 0; i < few->shape.rank; i++)
        *(i < a ? &outer : &inner) *= (size_t)few->shape.sizes[i];
    size_t step = a < 0 ? inner : inner / (size_t)few->shape.sizes[a] * (size_t)many->shape.sizes[a];
    for (size_t i = 0; i < outer; i++) {
        if (!compares)
            memcpy(few->data + i * inner, many->data + i * step, inner);
        else if (memcmp(few->data + i * inner, many->data + i * step, inner) != 0)
            return false;
    }
    return true;
}

/* Indices are of elements that there are for every number of rows. */
static inline void hold_indices(problem *many, const problem *few) {
    for (int t = 0; t < many->inputs; t++)
        for (int64_t i = 0; many->t[t].shape.type == EPI_I32 && i < many->t[t].shape.count; i++) {
            double below = (double)few->t[t].shape.index_below, x = get_element(many->t[t].data, EPI_I32, i);
            if (below > 0)
                put_element(many->t[t].data, EPI_I32, i, fmod(x, below));
        }
}

#endif
