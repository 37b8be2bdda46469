/* test_alloc.c: parsing and compiling where one allocation fails, each in turn: the call returns that memory
 * is out, or goes on without what it wanted the memory for. Under AddressSanitizer nothing of it leaks. */
#include "ran.h"

/* The linker puts these in the place of the library's calls. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);

static long left = -1; /* how many allocations are let through before one fails; negative: all */

static bool fails(void) {
    return left >= 0 && left-- == 0;
}

void *__wrap_malloc(size_t size) {
    return fails() ? NULL : __real_malloc(size);
}
void *__wrap_calloc(size_t count, size_t size) {
    return fails() ? NULL : __real_calloc(count, size);
}
void *__wrap_realloc(void *old, size_t size) {
    return fails() ? NULL : __real_realloc(old, size);
}

static const char text[] =
    "mlp(x[T,D], w[D,F], v[F,D]) -> (y[T,D], m: f32[F]) {\n"
    "    h = gelu(x @ w)\n"
    "    m = mean(h, T)\n"
    "    y = (h - m) @ v\n"
    "}\n"
    "back(x[T,D], w[D,F], v[F,D], d[T,D]) -> (dx[T,D], dw[D,F]) { dx, dw = grad(mlp, x, w)(x, w, v, d, 0) "
    "}\n"
    "layer(x[T,D], w[D,F], v[F,D]) -> y[T,D] { y = x + relu(x @ w) @ v }\n"
    "layers(x[T,D], w[L=3,D,F], v[L,F,D]) -> y[T,D] { y = repeat(layer, L)(x, w, v) }\n"
    "statistics(x[T,D], w[D,F]) -> (h[T,F], m: f32[T], r: f32[T]) {\n"
    "    h = x @ w\n"
    "    m = mean(h, F)\n"
    "    r = rsqrt(mean((h - m)**2, F) + 1)\n"
    "}\n"
    "experts(x[T,D], w[E=4,F,D], v[E,D,F], e: i32[T,K=2]) -> y[T,D] {\n"
    "    y = sum(relu(sum(x*gather(w, e, E), D))*gather(v, e, E), K, F)\n"
    "}\n"
    "chosen(x[B=3,T,D], w[E=4,F,D], e: i32[B]) -> y[B,T,F] { y = silu(sum(x*w[e], D)) }\n"
    "along(x[T,D], a[D], w[F]) -> (y[T,D], s[D], z[F]) {\n"
    "    u = rename(x, T, U)\n"
    "    h = scan(a, sum(where(index(U) <= index(T), u, 0), U), T)\n"
    "    y = h*x\n"
    "    z = cumsum(w, F)\n"
    "    s = gather(h, size(T) - 1, T)\n"
    "}\n"
    "cached(q[B=2,T,D], k: i8[B,F,D], s: f32[B,F], v: i8[B,F,D]) -> y[B,T,D] {\n"
    "    y = sum(softmax(sum(q*(k*s), D), F)*(v*s), F)\n"
    "}\n";

/* Where gradients are the text's own. */
static const char own[] = "turn(x[A,B]) -> y[B,A] { y = x }\n"
                          "cube(x[T,D], w[D]) -> (y[T,D], s[T]) by cube_grad { y = x*x*x*w  s = sum(x, D) }\n"
                          "cube_grad(x[T,D], y[T,D], w[D], d_y[T,D], d_s[T]) -> (d_x[T,D], d_w[D]) {\n"
                          "    d_x = d_y*y*w + d_s  d_w = sum(d_y*x, T) }\n"
                          "layer(x[T,D], w[D]) -> y[T,D] { z = turn(x)*2  y, s = cube(turn(z)*0.1, w) }\n"
                          "layers(x[T,D], w[L=12,D]) -> y[T,D] { y = repeat(layer, L)(x, w) }\n";

static const struct row {
    const char *program;
    int device;
    size_t memory;
    bool open;
} rows[] = {
    {"mlp", 0, 0, false},       {"mlp", -90, 0, false},      {"mlp", 0, 400000, false},
    {"mlp", 0, 0, true},        {"back", 0, 0, false},       {"experts", 0, 0, false},
    {"experts", -90, 0, false}, {"chosen", 0, 0, false},     {"chosen", -90, 0, false},
    {"back", -90, 0, false},    {"along", 0, 0, false},      {"along", -90, 0, false},
    {"layers", 0, 0, false},    {"statistics", 0, 0, false}, {"statistics", -90, 0, false},
    {"cached", 0, 0, false},    {"cached", -90, 0, false},
};

/* Ends a call in which one allocation failed, the nth: is that memory is out, or nothing? Returns whether all went
 * through, so that there is no nth. */
static bool all_went(const char *name, const char *what, long n, epi_status status, bool may_go_on,
                     const epi_error *err) {
    bool all = left >= 0;
    left = -1;
    check(status == (all || (may_go_on && status == EPI_OK) ? EPI_OK : EPI_ERR_MEMORY),
          "%s is %s without allocation %ld: %s", name, what, n, err->message);
    return all;
}

static epi_module *parse(epi_context *ctx, const char *from) {
    epi_module *module = NULL;
    epi_error err;
    bool all = false;
    for (long n = 0; !all; n++) {
        epi_module_free(module);
        left = n;
        epi_status status = epi_module_parse(ctx, from, strlen(from), "text", &module, &err);
        all = all_went("a text", "parsed", n, status, false, &err);
    }
    return module;
}

static void compile(const epi_module *module, const struct row *p) {
    const way how = {.type = p->device ? EPI_BF16 : EPI_F32,
                     .device = p->device,
                     .threads = 1,
                     .memory = p->memory,
                     .open = p->open ? "T" : NULL};
    bool all = false;
    for (long n = 0; !all; n++) {
        epi_kernel *kernel;
        epi_error err;
        left = n;
        epi_status status =
            compile_as(epi_module_find(module, p->program), "T=260,D=8,F=40", how, &kernel, &err);
        all = all_went(p->program, p->device ? "compiled for a GPU" : "compiled", n, status, true, &err);
        epi_kernel_free(kernel);
    }
}

/* Gradients, as one program and as two. */
static void derive(const epi_module *module, const char *name) {
    static deriver *const ways[] = {epi_program_grad, epi_program_grad_saved};
    const epi_program *p = epi_module_find(module, name);
    for (int i = 0; i < 2; i++) {
        bool all = false;
        for (long n = 0; !all; n++) {
            epi_module *out = NULL;
            epi_error err;
            left = n;
            epi_status status = ways[i](p, (const char *[]){"x", "w"}, 2, &out, &err);
            all = all_went(name, "derived", n, status, false, &err);
            epi_module_free(out);
        }
    }
}

/* So long a text that an allocation falls into each of its constructions. */
static void parse_long(epi_context *ctx) {
    epi_text t = {0};
    epi_text_add(&t, "long(x[T]) -> y[T] { v0 = x\n");
    for (int i = 1; i < 400; i++)
        epi_text_add(&t, "v%d = v%d + x\n", i, i - 1);
    epi_text_add(&t, "y = v399 }\n");
    epi_module_free(parse(ctx, t.data));
    epi_text_free(&t);
}

int main(void) {
    epi_context *ctx = NULL;
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context"))
        return finish();
    epi_module *module = parse(ctx, text), *gradients = parse(ctx, own);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        compile(module, &rows[i]);
    derive(gradients, "layers");
    parse_long(ctx);
    epi_module_free(module);
    epi_module_free(gradients);
    epi_context_close(ctx);
    return finish();
}
