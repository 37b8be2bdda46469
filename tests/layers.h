/* layers.h: a model of many layers as one program: each calls a bundled half-block with weights of its own.
 */
#ifndef EPI_TESTS_LAYERS_H
#define EPI_TESTS_LAYERS_H

#include "long_text.h"

/* layers(x[T,D], g1[D], wg1[F,D], wu1[F,D], wd1[D,F], ..., eps) -> y[T,D]: the MLP half of a Llama block, so
 * many times. The caller frees the text. */
static inline epi_text llama_layers(int count) {
    return long_text("layers(x[T,D]~, g#[D], wg#[F,D], wu#[F,D], wd#[D,F]~, eps) -> y[T,D] {\n    h0 = x\n"
                     "~    h# = llama_mlp(h$, g#, wg#, wu#, wd#, eps)\n~    y = h$\n}\n",
                     count + 1);
}

/* A layer of a model: its text, `layer(x[B,S,D], tables, weights) -> y[B,S,D]`, and what it takes besides x:
 * tables that all layers share, and weights of its own. */
typedef struct layer_text {
    const char *name, *body;
    struct {
        const char *name, *axes; /* with a type, where it has one */
    } tables[2], weights[12];
} layer_text;

static const layer_text model_layers[] = {
    {"gpt2",
     "    c = x - mean(x, D)\n"
     "    n = c*rsqrt(mean(c*c, D) + 1e-5)*g + a\n"
     "    i, j = pairs(n @ wk, E)\n"
     "    k = rename(join(i*cos(index(S)) - j, j*cos(index(S)) + i, E), S, R)\n"
     "    v = rename(n @ wv, S, R)\n"
     "    s = where(index(R) <= index(S), sum((n @ wq)*k, E)*rsqrt(size(E)), -inf)\n"
     "    h = x + sum(softmax(s, R)*v, R) @ wo\n"
     "    d = h - mean(h, D)\n"
     "    y = h + gelu((d*rsqrt(mean(d*d, D) + 1e-5)*m + b) @ wf) @ wp\n",
     {{0}},
     {{"g", "[D]"},
      {"a", "[D]"},
      {"wq", "[H,E,D]"},
      {"wk", "[H,E,D]"},
      {"wv", "[H,E,D]"},
      {"wo", "[D,H,E]"},
      {"m", "[D]"},
      {"b", "[D]"},
      {"wf", "[F,D]"},
      {"wp", "[D,F]"}}},
    {"gpt2 with qkv in one",
     "    d = x - mean(x, D)\n"
     "    z = (d*rsqrt(mean(d*d, D) + 1e-5)*g + b) @ wa\n"
     "    o, t = pairs(gather(z, 0, C), E)\n"
     "    q = join(o*c - t*s, o*s + t*c, E)\n"
     "    i, j = pairs(gather(z, 1, C), E)\n"
     "    k = rename(join(i*c - j*s, i*s + j*c, E), S, R)\n"
     "    v = rename(gather(z, 2, C), S, R)\n"
     "    p = softmax(where(index(R) <= index(S), sum(q*k, E)*rsqrt(size(E)), -inf), R)\n"
     "    h = x + sum(p*v, R) @ wo\n"
     "    e = h - mean(h, D)\n"
     "    y = h + gelu((e*rsqrt(mean(e*e, D) + 1e-5)*m + f) @ wf) @ wp\n",
     {{"c", ": f32[S,E/2]"}, {"s", ": f32[S,E/2]"}},
     {{"g", "[D]"},
      {"b", "[D]"},
      {"wa", "[D,C,H,E]"},
      {"wo", "[D,H,E]"},
      {"m", "[D]"},
      {"f", "[D]"},
      {"wf", "[F,D]"},
      {"wp", "[D,F]"}}},
    {"llama",
     "    n = x*rsqrt(mean(x*x, D) + 1e-5)*g\n"
     "    a, b = pairs(n @ wq, E)\n"
     "    q = join(a*c - b*s, a*s + b*c, E)\n"
     "    i, j = pairs(n @ wk, E)\n"
     "    k = rename(join(i*c - j*s, i*s + j*c, E), S, R)\n"
     "    v = rename(n @ wv, S, R)\n"
     "    p = softmax(where(index(R) <= index(S), sum(q*k, E)*rsqrt(size(E)), -inf), R)\n"
     "    h = x + sum(p*v, R) @ wo\n"
     "    m = h*rsqrt(mean(h*h, D) + 1e-5)*f\n"
     "    y = h + (silu(m @ wg)*(m @ wu)) @ wd\n",
     {{"c", ": f32[S,E/2]"}, {"s", ": f32[S,E/2]"}},
     {{"g", "[D]"},
      {"wq", "[G,H,E,D]"},
      {"wk", "[G,E,D]"},
      {"wv", "[G,E,D]"},
      {"wo", "[D,G,H,E]"},
      {"f", "[D]"},
      {"wg", "[F,D]"},
      {"wu", "[F,D]"},
      {"wd", "[D,F]"}}},
    {"gemma",
     "    n = x*rsqrt(mean(x*x, D) + 1e-6)*(1 + g1)\n"
     "    a, b = halves(n @ wq, E)\n"
     "    q = concat(a*c - b*s, a*s + b*c, E)\n"
     "    i, j = halves(n @ wk, E)\n"
     "    k = rename(concat(i*c - j*s, i*s + j*c, E), S, R)\n"
     "    v = rename(n @ wv, S, R)\n"
     "    z = tanh(sum(q*k, E)*rsqrt(size(E))/50)*50\n"
     "    o = sum(softmax(where(index(R) <= index(S), z, -inf), R)*v, R) @ wo\n"
     "    h = x + o*rsqrt(mean(o*o, D) + 1e-6)*(1 + g2)\n"
     "    m = h*rsqrt(mean(h*h, D) + 1e-6)*(1 + g3)\n"
     "    u = (gelu(m @ wg)*(m @ wu)) @ wd\n"
     "    y = h + u*rsqrt(mean(u*u, D) + 1e-6)*(1 + g4)\n",
     {{"c", ": f32[S,E/2]"}, {"s", ": f32[S,E/2]"}},
     {{"g1", "[D]"},
      {"wq", "[G,H,E,D]"},
      {"wk", "[G,E,D]"},
      {"wv", "[G,E,D]"},
      {"wo", "[D,G,H,E]"},
      {"g2", "[D]"},
      {"g3", "[D]"},
      {"wg", "[F,D]"},
      {"wu", "[F,D]"},
      {"wd", "[D,F]"},
      {"g4", "[D]"}}},
};

/* Without scales in its norms: the gradient wants sums of the weights themselves, which no layer waits for.
 */
static const layer_text bare_layer = {
    "gpt2 without scales",
    "    c = x - mean(x, D)\n"
    "    z = (c*rsqrt(mean(c*c, D) + 1e-5)) @ wa\n"
    "    i, j = pairs(gather(z, 1, C), E)\n"
    "    k = rename(join(i*cos(index(S)) - j, j*cos(index(S)) + i, E), S, R)\n"
    "    v = rename(gather(z, 2, C), S, R)\n"
    "    s = where(index(R) <= index(S), sum(gather(z, 0, C)*k, E)*rsqrt(size(E)), -inf)\n"
    "    h = x + sum(softmax(s, R)*v, R) @ wo\n"
    "    d = h - mean(h, D)\n"
    "    y = h + gelu((d*rsqrt(mean(d*d, D) + 1e-5)) @ wf) @ wp\n",
    {{0}},
    {{"wa", "[C,H,E,D]"}, {"wo", "[D,H,E]"}, {"wf", "[F,D]"}, {"wp", "[D,F]"}}};

/* net(x[B,S,D], tables, weights of all layers) -> y[B,S,D]: so many layers, one after the other. */
static inline epi_text stacked_layers(const layer_text *layer, int count) {
    epi_text t = {0};
    for (int i = -1; i < count; i++) { /* the layer's head, then net's: x and tables come first */
        if (i < 1)
            epi_text_add(&t, i < 0 ? "layer(x[B,S,D]" : ") -> y[B,S,D] {\n%s}\nnet(x[B,S,D]", layer->body);
        for (int k = 0; k < 2 && layer->tables[k].name && i < 1; k++)
            epi_text_add(&t, ", %s%s", layer->tables[k].name, layer->tables[k].axes);
        for (int k = 0; k < 12 && layer->weights[k].name; k++)
            if (i < 0)
                epi_text_add(&t, ", %s%s", layer->weights[k].name, layer->weights[k].axes);
            else
                epi_text_add(&t, ", %s_%d%s", layer->weights[k].name, i, layer->weights[k].axes);
    }
    epi_text_add(&t, ") -> y[B,S,D] {\n    h_0 = x\n");
    for (int i = 0; i < count; i++) {
        epi_text_add(&t, "    h_%d = layer(h_%d", i + 1, i);
        for (int k = 0; k < 2 && layer->tables[k].name; k++)
            epi_text_add(&t, ", %s", layer->tables[k].name);
        for (int k = 0; k < 12 && layer->weights[k].name; k++)
            epi_text_add(&t, ", %s_%d", layer->weights[k].name, i);
        epi_text_add(&t, ")\n");
    }
    epi_text_add(&t, "    y = h_%d\n}\n", count);
    return t;
}

/* The same layers and their gradients, written out: back(x[T,D], dy[T,D], g1[D], ...) -> (dx[T,D], dg1[D],
 * dwg1[F,D], dwu1[F,D], dwd1[D,F], ...). */
static inline epi_text llama_gradients(int count) {
    static const char backward[] = "    da# = d# @ wd#\n"
                                   "    s# = sigmoid(z#)\n"
                                   "    du# = da#*z#*s#\n"
                                   "    dz# = da#*u#*(s# + z#*s#*(1 - s#))\n"
                                   "    dwd# = d# @ a#\n"
                                   "    dwg# = dz# @ n#\n"
                                   "    dwu# = du# @ n#\n"
                                   "    dn# = dz# @ wg# + du# @ wu#\n"
                                   "    dg# = sum(dn#*h$*r#, T)\n"
                                   "    e# = dn#*g#\n"
                                   "    d$ = d# + r#*(e# - h$*r#*r#*mean(e#*h$, D))\n";
    epi_text t = long_text("back(x[T,D], dy[T,D]~, g#[D], wg#[F,D], wu#[F,D], wd#[D,F]~) -> (dx[T,D]"
                           "~, dg#[D], dwg#[F,D], dwu#[F,D], dwd#[D,F]~) {\n    h0 = x + 0\n"
                           "~    r# = rsqrt(mean(h$*h$, D) + 1e-6)\n"
                           "    n# = h$*r#*g#\n"
                           "    z# = n# @ wg#\n"
                           "    u# = n# @ wu#\n"
                           "    a# = silu(z#)*u#\n"
                           "    h# = h$ + a# @ wd#\n~    d$ = dy + 0\n",
                           count + 1);
    for (int i = count; i >= 1; i--)
        add_numbered(&t, backward, sizeof backward - 1, i);
    epi_text_add(&t, "    dx = d0 + 0\n}\n");
    return t;
}

#endif
