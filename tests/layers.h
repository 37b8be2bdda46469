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

/* net(x[T,D], g1[D], a1[D], wq1[H,E,D], ..., wp1[D,F], ...) -> y[T,D]: layers with attention and an MLP, so
 * many times. */
static inline epi_text gpt_layers(int count) {
    epi_text t = {0};
    epi_text_add(&t,
                 "layer(x[T,D], g[D], a[D], wq[H,E,D], wk[H,E,D], wv[H,E,D], wo[D,H,E], m[D], b[D], wf[F,D], "
                 "wp[D,F]) -> y[T,D] {\n"
                 "    c = x - mean(x, D)\n"
                 "    n = c*rsqrt(mean(c*c, D) + 1e-5)*g + a\n"
                 "    i, j = pairs(n @ wk, E)\n"
                 "    k = rename(join(i*cos(index(T)) - j, j*cos(index(T)) + i, E), T, R)\n"
                 "    v = rename(n @ wv, T, R)\n"
                 "    s = where(index(R) <= index(T), sum((n @ wq)*k, E)*rsqrt(size(E)), -inf)\n"
                 "    h = x + sum(softmax(s, R)*v, R) @ wo\n"
                 "    d = h - mean(h, D)\n"
                 "    y = h + gelu((d*rsqrt(mean(d*d, D) + 1e-5)*m + b) @ wf) @ wp\n"
                 "}\n"
                 "net(x[T,D]");
    for (int i = 1; i <= count; i++)
        epi_text_add(&t,
                     ", g%d[D], a%d[D], wq%d[H,E,D], wk%d[H,E,D], wv%d[H,E,D], wo%d[D,H,E], m%d[D], b%d[D], "
                     "wf%d[F,D], wp%d[D,F]",
                     i, i, i, i, i, i, i, i, i, i);
    epi_text_add(&t, ") -> y[T,D] {\n    h0 = x\n");
    for (int i = 1; i <= count; i++)
        epi_text_add(&t, "    h%d = layer(h%d, g%d, a%d, wq%d, wk%d, wv%d, wo%d, m%d, b%d, wf%d, wp%d)\n", i,
                     i - 1, i, i, i, i, i, i, i, i, i, i);
    epi_text_add(&t, "    y = h%d\n}\n", count);
    return t;
}

/* The same layers and their gradients, written out: back(x[T,D], dy[T,D], g1[D], ...) -> (dx[T,D], dg1[D],
 * dwg1[F,D], dwu1[F,D], dwd1[D,F], ...). */
static inline epi_text llama_gradients(int count) {
    epi_text t = {0};
    epi_text_add(&t, "back(x[T,D], dy[T,D]");
    for (int i = 1; i <= count; i++)
        epi_text_add(&t, ", g%d[D], wg%d[F,D], wu%d[F,D], wd%d[D,F]", i, i, i, i);
    epi_text_add(&t, ") -> (dx[T,D]");
    for (int i = 1; i <= count; i++)
        epi_text_add(&t, ", dg%d[D], dwg%d[F,D], dwu%d[F,D], dwd%d[D,F]", i, i, i, i);
    epi_text_add(&t, ") {\n    h0 = x + 0\n");
    for (int i = 1; i <= count; i++) {
        epi_text_add(&t, "    r%d = rsqrt(mean(h%d*h%d, D) + 1e-6)\n", i, i - 1, i - 1);
        epi_text_add(&t, "    n%d = h%d*r%d*g%d\n", i, i - 1, i, i);
        epi_text_add(&t, "    z%d = n%d @ wg%d\n", i, i, i);
        epi_text_add(&t, "    u%d = n%d @ wu%d\n", i, i, i);
        epi_text_add(&t, "    a%d = silu(z%d)*u%d\n", i, i, i);
        epi_text_add(&t, "    h%d = h%d + a%d @ wd%d\n", i, i - 1, i, i);
    }
    epi_text_add(&t, "    d%d = dy + 0\n", count);
    for (int i = count; i >= 1; i--) {
        epi_text_add(&t, "    da%d = d%d @ wd%d\n", i, i, i);
        epi_text_add(&t, "    s%d = sigmoid(z%d)\n", i, i);
        epi_text_add(&t, "    du%d = da%d*z%d*s%d\n", i, i, i, i);
        epi_text_add(&t, "    dz%d = da%d*u%d*(s%d + z%d*s%d*(1 - s%d))\n", i, i, i, i, i, i, i);
        epi_text_add(&t, "    dwd%d = d%d @ a%d\n", i, i, i);
        epi_text_add(&t, "    dwg%d = dz%d @ n%d\n", i, i, i);
        epi_text_add(&t, "    dwu%d = du%d @ n%d\n", i, i, i);
        epi_text_add(&t, "    dn%d = dz%d @ wg%d + du%d @ wu%d\n", i, i, i, i, i);
        epi_text_add(&t, "    dg%d = sum(dn%d*h%d*r%d, T)\n", i, i, i - 1, i);
        epi_text_add(&t, "    e%d = dn%d*g%d\n", i, i, i);
        epi_text_add(&t, "    d%d = d%d + r%d*(e%d - h%d*r%d*r%d*mean(e%d*h%d, D))\n", i - 1, i, i, i, i - 1,
                     i, i, i, i - 1);
    }
    epi_text_add(&t, "    dx = d0 + 0\n}\n");
    return t;
}

#endif
