/* test_deep.c: long programs compile, print and run on a thread with a small stack: what a program's length
 * multiplies is lists, not recursion. Expressions nest as deep as the language allows. */
#include <pthread.h>

#include "base/base.h"
#include "ran.h"

#if defined(__SANITIZE_ADDRESS__)
enum { STACK = 1 << 20 }; /* AddressSanitizer's frames are larger */
#else
enum { STACK = 128 << 10 };
#endif
enum { LENGTH = 1000, NESTED = 190 };

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

/* A program on a path for a device, or what is derived of it. */
typedef struct one {
    const program *program;
    int device; /* 1: no kernel but its derivatives */
    epi_path path;
} one;

/* The program of its gradients, and forward and backward apart. */
static void derive(const epi_program *p, const char *name) {
    epi_tensor_info first;
    epi_program_tensor(p, 0, &first);
    check(epi_program_print(p, NULL, 0) > 0, "%s is printed", name);
    epi_module_free(derived(p, first.name, epi_program_grad));
    epi_module_free(derived(p, first.name, epi_program_grad_saved));
}

static void compile(const epi_program *p, const one *o) {
    const char *name = o->program->name;
    static ran r; /* too large for the stack */
    epi_error err = {0};
    way how = {.type = o->device ? EPI_BF16 : EPI_F32, .device = o->device, .path = o->path};
    epi_status status = compile_as(p, o->program->dims, how, &r.k, &err);
    /* what is too much for a mainloop is said in words */
    if (check(status == EPI_OK || status == EPI_ERR_UNSUPPORTED, "%s for device %d, path %d: %s", name,
              o->device, o->path, err.message) &&
        r.k) {
        r.program = p;
        check(epi_kernel_describe(r.k, NULL, 0) > 0, "%s is described", name);
        check((epi_kernel_source(r.k, NULL, 0) > 0) == (o->device < 0), "%s has a text on a GPU", name);
        if (o->device == 0 && o->path == EPI_PATH_FUSED &&
            check(problem_make(&r.p, p, r.k, LAYOUT_PLAIN), "memory")) {
            problem_fill(&r.p, 5);
            run_again(&r);
        }
    }
    discard(&r);
}

static void *on_thread(void *arg) {
    const one *o = arg;
    epi_text text = {0};
    epi_context *ctx = NULL;
    o->program->write(&text);
    if (check(!text.failed && epi_context_open(&ctx, NULL) == EPI_OK, "a context")) {
        epi_module *m = parsed(ctx, text.data);
        const epi_program *p = m ? epi_module_program(m, 0) : NULL;
        if (p && o->device > 0)
            derive(p, o->program->name);
        else if (p)
            compile(p, o);
        epi_module_free(m);
    }
    epi_context_close(ctx);
    epi_text_free(&text);
    return NULL;
}

static void test_one(one o) {
    pthread_attr_t attr;
    pthread_t id;
    if (!wanted("%s %d %d", o.program->name, o.device, o.path))
        return;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK);
    if (check(pthread_create(&id, &attr, on_thread, &o) == 0, "a thread"))
        pthread_join(id, NULL);
    pthread_attr_destroy(&attr);
}

int main(void) {
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        test_one((one){&programs[i], 1, EPI_PATH_FUSED});
        for (int path = EPI_PATH_FUSED; path <= EPI_PATH_REFERENCE; path++)
            test_one((one){&programs[i], 0, (epi_path)path});
        for (int device = -80; device >= -90; device -= 10)
            for (int path = EPI_PATH_FUSED; path <= EPI_PATH_UNFUSED; path++)
                test_one((one){&programs[i], device, (epi_path)path});
    }
    return finish();
}
