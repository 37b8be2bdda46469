/* layers.h: a model of many layers as one program: each calls a bundled half-block with weights of its own.
 */
#ifndef EPI_TESTS_LAYERS_H
#define EPI_TESTS_LAYERS_H

#include "base/base.h"

/* layers(x[T,D], g1[D], wg1[F,D], wu1[F,D], wd1[D,F], ..., eps) -> y[T,D]: the MLP half of a Llama block, so
 * many times. The caller frees the text. */
static inline epi_text llama_layers(int count) {
    epi_text t = {0};
    epi_text_add(&t, "layers(x[T,D]");
    for (int i = 1; i <= count; i++)
        epi_text_add(&t, ", g%d[D], wg%d[F,D], wu%d[F,D], wd%d[D,F]", i, i, i, i);
    epi_text_add(&t, ", eps) -> y[T,D] {\n");
    for (int i = 1; i <= count; i++) {
        char from[16] = "x", to[16] = "y";
        if (i > 1)
            snprintf(from, sizeof from, "h%d", i - 1);
        if (i < count)
            snprintf(to, sizeof to, "h%d", i);
        epi_text_add(&t, "    %s = llama_mlp(%s, g%d, wg%d, wu%d, wd%d, eps)\n", to, from, i, i, i, i);
    }
    epi_text_add(&t, "}\n");
    return t;
}

#endif
