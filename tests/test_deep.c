/* test_deep.c: long programs compile, print and run on a thread with a small stack: what a program's length
 * multiplies is lists, not recursion. Expressions nest as deep as the language allows. */
#include <pthread.h>

#include "base/base.h"
#include "harness.h"

#if defined(__SANITIZE_ADDRESS__)
enum { STACK = 1 << 20 }; /* AddressSanitizer's frames are larger */
#else
enum { STACK = 128 << 10 };
#endif
enum { LENGTH = 1000, NESTED = 190, MAX_DIMS = 4 };

typedef struct program {
    const char *name, *dims;
    void (*write)(epi_text *out);
} program;

/* ---- the programs ---- */

static void repeat(epi_text *out, int count, const char *what) {
    for (int i = 0; i < count; i++)
        epi_text_add(out, "%s", what);
}

static void write_epilogue(epi_text *out) {
    epi_text_add(out, "p(x[T,D], w[F,D], b[F]) -> y[T,F] { y = x @ w");
    repeat(out, LENGTH, " + b");
    epi_text_add(out, " }");
}

static void write_muladds(epi_text *out) {
    epi_text_add(out, "p(x[T,D], w[F,D], b[F], c[T,F]) -> y[T,F] { y0 = x @ w ");
    for (int i = 1; i < LENGTH; i++)
        epi_text_add(out, "y%d = c*y%d + b ", i, i - 1);
    epi_text_add(out, "y = y%d }", LENGTH - 1);
}

static void write_operand(epi_text *out) {
    epi_text_add(out, "p(x[T,D], w[F,D], b[D], c[T,F]) -> y[T,F] { y = (x @ (w");
    repeat(out, LENGTH, " + b");
    epi_text_add(out, ")) + (c");
    repeat(out, LENGTH, "*c");
    epi_text_add(out, ") }");
}

static void write_group(epi_text *out) {
    epi_text_add(out, "p(x[T,D], w[H,E,D], b[E]) -> y[T,H,E] { h = x @ w");
    repeat(out, LENGTH, " + b");
    epi_text_add(out, " y = h*rsqrt(mean(h*h, E)) }");
}

static void write_rows(epi_text *out) {
    epi_text_add(out, "p(x[T,D], w[D]) -> (y[T,D], s: f32[T]) { h = x");
    repeat(out, LENGTH, " + w");
    epi_text_add(out, " s = mean(h*h, D) z = h*rsqrt(s)");
    epi_text_add(out, " y = z");
    repeat(out, LENGTH, "*w");
    epi_text_add(out, " }");
}

/* Every value is used twice: the ways to the first are 2^LENGTH. */
static void write_twice(epi_text *out) {
    epi_text_add(out, "p(x[T,D]) -> (y[T,D], z[T,D]) { y0 = x ");
    for (int i = 1; i < LENGTH; i++)
        epi_text_add(out, "y%d = cos(y%d)*y%d ", i, i - 1, i - 1);
    epi_text_add(out, "y = y%d z = y + x }", LENGTH - 1);
}

/* Late values of which each needs another part than the one before it. */
static void write_unplaced(epi_text *out) {
    epi_text_add(out, "p(x[T,D], w[F,D]) -> y[T,F] { h = x @ w y0 = h*rsqrt(mean(h*h, F)) ");
    for (int i = 1; i < LENGTH / 5; i++)
        epi_text_add(out, "a%d, b%d = %s(y%d, F) y%d = %s(b%d, a%d, F) ", i, i, i % 2 ? "pairs" : "halves",
                     i - 1, i, i % 2 ? "join" : "concat", i, i);
    epi_text_add(out, "y = y%d }", LENGTH / 5 - 1);
}

static void write_after(epi_text *out) {
    epi_text_add(out, "p(x[T,D], w[F,D]) -> s[T] { h = x @ w t = sum(h, F) s = t");
    repeat(out, LENGTH, "*t");
    epi_text_add(out, " }");
}

/* A divisor that is a long product, and a factor with as many signs: the algebra takes both apart. */
static void write_divisor(epi_text *out) {
    epi_text_add(out, "p(x[T,D], w[F,D], u[E,F], r[T], s[T]) -> y[T,E] { h = x @ w v0 = r ");
    for (int i = 1; i < LENGTH; i++)
        epi_text_add(out, "v%d = v%d*%s ", i, i - 1, i % 2 ? "s" : "r");
    epi_text_add(out, "q = h/v%d y = (q*rsqrt(mean(q*q, F))) @ u }", LENGTH - 1);
}

static void write_signs(epi_text *out) {
    epi_text_add(out, "p(x[T,D], w[F,D], u[E,F], r[T]) -> y[T,E] { h = x @ w v0 = r ");
    for (int i = 1; i < LENGTH; i++)
        epi_text_add(out, "v%d = -v%d ", i, i - 1);
    epi_text_add(out, "q = h*v%d y = (q*rsqrt(mean(q*q, F))) @ u }", LENGTH - 1);
}

static void write_choices(epi_text *out) {
    epi_text_add(out, "p(x[T,D], c[D]) -> y[T,D] { y0 = x ");
    for (int i = 1; i < LENGTH; i++)
        epi_text_add(out, "y%d = where(x < %d, c, y%d) ", i, i, i - 1);
    epi_text_add(out, "y = y%d }", LENGTH - 1);
}

/* Each needs what the one before it makes of whole rows, or of whole columns. */
static void write_alternating(epi_text *out) {
    epi_text_add(out, "p(x[T,D]) -> y[T,D] { y0 = x ");
    for (int i = 1; i < LENGTH / 5; i++)
        epi_text_add(out, "y%d = softmax(y%d, %s) ", i, i - 1, i % 2 ? "D" : "T");
    epi_text_add(out, "y = y%d }", LENGTH / 5 - 1);
}

/* What is added to a product, before it. */
static void write_addends(epi_text *out) {
    epi_text_add(out, "p(x[T,D], w[F,D], b[T,F]) -> (y[T,F], z[T,F]) { y = b");
    for (int i = 2; i < 3 * LENGTH; i++)
        epi_text_add(out, " + b*%d", i);
    epi_text_add(out, " + x @ w z = sin(x) @ w }");
}

/* Scores are scaled by a number with 2^LENGTH ways to its first. */
static void write_scale(epi_text *out) {
    epi_text_add(out, "p(q[T,E], k[R,E], v[R,E]) -> y[T,E] { v0 = 1/size(E) ");
    for (int i = 1; i < LENGTH; i++)
        epi_text_add(out, "v%d = v%d*v%d + v%d ", i, i - 1, i - 1, i - 1);
    epi_text_add(out, "y = softmax((q @ k)*v%d, R) @ v }", LENGTH - 1);
}

/* What is made of a product of groups. */
static void write_groups(epi_text *out) {
    epi_text_add(out, "p(a[T,D], w[E=2,F,D], o: i32[E]) -> y[T,F] { "
                      "y0 = sum(a*gather(w, segments(o, E, T), E), D) ");
    for (int i = 1; i < LENGTH; i++)
        epi_text_add(out, "y%d = sin(y%d) + y0 ", i, i - 1);
    epi_text_add(out, "y = y%d }", LENGTH - 1);
}

static void write_parentheses(epi_text *out) {
    epi_text_add(out, "p(x[T,D], w[F,D]) -> y[T,F] { y = ");
    repeat(out, NESTED / 4, "exp(-(1 - "); /* each is four deep */
    epi_text_add(out, "x @ w");
    repeat(out, NESTED / 4, "))");
    epi_text_add(out, " }");
}

static void write_nested(epi_text *out) {
    epi_text_add(out, "p(x[T,D]) -> y[T,D] { y = ");
    repeat(out, NESTED, "sigmoid(");
    epi_text_add(out, "x");
    repeat(out, NESTED, ")");
    epi_text_add(out, " }");
}

static const program programs[] = {
    {"epilogue", "T=8,D=16,F=32", write_epilogue},
    {"muladds", "T=8,D=16,F=32", write_muladds},
    {"operand", "T=8,D=16,F=32", write_operand},
    {"group", "T=8,D=16,H=2,E=64", write_group},
    {"rows", "T=8,D=64", write_rows},
    {"twice", "T=8,D=64", write_twice},
    {"late", "T=8,D=16,F=64", write_unplaced},
    {"after", "T=8,D=16,F=32", write_after},
    {"divisor", "T=8,D=16,F=32,E=16", write_divisor},
    {"signs", "T=8,D=16,F=32,E=16", write_signs},
    {"choices", "T=8,D=64", write_choices},
    {"alternating", "T=8,D=64", write_alternating},
    {"addends", "T=8,D=16,F=32", write_addends},
    {"scale", "T=64,R=64,E=64", write_scale},
    {"groups", "T=8,D=16,F=32", write_groups},
    {"nested", "T=8,D=64", write_nested},
    {"parentheses", "T=8,D=16,F=32", write_parentheses},
};

/* ---- on the thread ---- */

static void run_kernel(const char *name, const epi_kernel *k, int tensors) {
    epi_tensor t[8] = {0};
    bool ok = true;
    for (int i = 0; i < tensors; i++) {
        epi_tensor_shape shape;
        ok &= epi_kernel_tensor(k, i, &shape) == EPI_OK;
        t[i].data = calloc((size_t)shape.count, epi_dtype_size(shape.type));
        ok &= t[i].data != NULL;
    }
    void *work = aligned_alloc(64, epi_kernel_workspace(k));
    check(ok && work && epi_kernel_run(k, t, tensors, work, NULL) == EPI_OK, "%s runs", name);
    free(work);
    for (int i = 0; i < tensors; i++)
        free(t[i].data);
}

static void compile(const char *name, const epi_program *p, epi_options o) {
    epi_error err;
    epi_kernel *k = NULL;
    epi_status status = epi_kernel_compile(p, &o, &k, &err);
    /* what is too much for a mainloop is said in words */
    if (!check(status == EPI_OK || status == EPI_ERR_UNSUPPORTED, "%s for device %d, path %d: %s", name,
               o.device, o.path, err.message) ||
        !k)
        return;
    check(epi_kernel_describe(k, NULL, 0) > 0, "%s is described", name);
    check((epi_kernel_source(k, NULL, 0) > 0) == (o.device < 0), "%s has a text on a GPU", name);
    if (o.device == 0 && o.path == EPI_PATH_FUSED)
        run_kernel(name, k, epi_program_tensor_count(p));
    epi_kernel_free(k);
}

/* The program of its gradients, and forward and backward apart. */
static void derive(const char *name, const epi_program *p) {
    epi_tensor_info first;
    epi_module *m = NULL;
    epi_error err;
    epi_program_tensor(p, 0, &first);
    check(epi_program_grad(p, &first.name, 1, &m, &err) == EPI_OK, "%s has a gradient: %s", name,
          err.message);
    epi_module_free(m);
    m = NULL;
    check(epi_program_grad_saved(p, &first.name, 1, &m, &err) == EPI_OK, "%s has a backward: %s", name,
          err.message);
    epi_module_free(m);
}

static void *on_thread(void *arg) {
    const program *p = arg;
    static const int devices[] = {0, -80, -90};
    char names[MAX_DIMS][16];
    epi_dim_binding dims[MAX_DIMS];
    epi_text text = {0};
    epi_error err;
    epi_context *ctx = NULL;
    epi_module *m = NULL;
    p->write(&text);
    if (check(!text.failed && epi_context_open(&ctx, NULL) == EPI_OK, "a context") &&
        check(epi_module_parse(ctx, text.data, text.length, p->name, &m, &err) == EPI_OK, "%s: %s", p->name,
              err.message)) {
        const epi_program *program = epi_module_program(m, 0);
        check(epi_program_print(program, NULL, 0) > 0, "%s is printed", p->name);
        derive(p->name, program);
        epi_options o =
            EPI_OPTIONS(.dims = dims, .dim_count = parse_dims(p->dims, dims, names), .threads = 2);
        for (int d = 0; d < 3; d++)
            for (int path = EPI_PATH_FUSED; path <= (devices[d] ? EPI_PATH_UNFUSED : EPI_PATH_REFERENCE);
                 path++) {
                o.device = devices[d];
                o.type = devices[d] ? EPI_BF16 : EPI_F32;
                o.path = (epi_path)path;
                compile(p->name, program, o);
            }
    }
    epi_module_free(m);
    epi_context_close(ctx);
    epi_text_free(&text);
    return NULL;
}

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        if (argc > 1 && strcmp(argv[1], programs[i].name) != 0)
            continue;
        pthread_attr_t attr;
        pthread_t id;
        pthread_attr_init(&attr);
        pthread_attr_setstacksize(&attr, STACK);
        if (check(pthread_create(&id, &attr, on_thread, (void *)(uintptr_t)&programs[i]) == 0, "a thread"))
            pthread_join(id, NULL);
        pthread_attr_destroy(&attr);
    }
    return finish();
}
