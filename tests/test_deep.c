/* test_deep.c: long programs compile, print and run on a thread with a small stack: what a program's length
 * multiplies is lists, not recursion. Expressions nest as deep as the language allows. */
#include <pthread.h>

#include "long_text.h"
#include "ran.h"

#if defined(__SANITIZE_ADDRESS__)
enum { STACK = 1 << 20 }; /* AddressSanitizer's frames are larger */
#else
enum { STACK = 128 << 10 };
#endif
enum { LENGTH = 1000, NESTED = 190 };

typedef struct program {
    const char *name, *dims;
    int length;
    const char *text; /* for long_text */
} program;

static const program programs[] = {
    {"epilogue", "T=8,D=16,F=32", LENGTH, "p(x[T,D], w[F,D], b[F]) -> y[T,F] { y = x @ w~ + b~ }"},
    {"muladds", "T=8,D=16,F=32", LENGTH,
     "p(x[T,D], w[F,D], b[F], c[T,F]) -> y[T,F] { y0 = x @ w ~y# = c*y$ + b ~y = y$ }"},
    {"operand", "T=8,D=16,F=32", LENGTH,
     "p(x[T,D], w[F,D], b[D], c[T,F]) -> y[T,F] { y = (x @ (w~ + b~)) + (c~*c~) }"},
    {"group", "T=8,D=16,H=2,E=64", LENGTH,
     "p(x[T,D], w[H,E,D], b[E]) -> y[T,H,E] { h = x @ w~ + b~ y = h*rsqrt(mean(h*h, E)) }"},
    {"rows", "T=8,D=64", LENGTH,
     "p(x[T,D], w[D]) -> (y[T,D], s: f32[T]) { h = x~ + w~ s = mean(h*h, D) z = h*rsqrt(s) y = z~*w~ }"},
    /* every value is used twice: the ways to the first are 2^LENGTH */
    {"twice", "T=8,D=64", LENGTH,
     "p(x[T,D]) -> (y[T,D], z[T,D]) { y0 = x ~y# = cos(y$)*y$ ~y = y$ z = y + x }"},
    /* late values of which each needs another part than the one before it */
    {"late", "T=8,D=16,F=64", LENGTH / 5,
     "p(x[T,D], w[F,D]) -> y[T,F] { h = x @ w y0 = h*rsqrt(mean(h*h, F)) "
     "~a#, b# = pairs(y$, F) y# = join(b#, a#, F) |a#, b# = halves(y$, F) y# = concat(b#, a#, F) ~y = y$ }"},
    {"after", "T=8,D=16,F=32", LENGTH, "p(x[T,D], w[F,D]) -> s[T] { h = x @ w t = sum(h, F) s = t~*t~ }"},
    /* a divisor that is a long product, and a factor with as many signs: the algebra takes both apart */
    {"divisor", "T=8,D=16,F=32,E=16", LENGTH,
     "p(x[T,D], w[F,D], u[E,F], r[T], s[T]) -> y[T,E] { h = x @ w v0 = r "
     "~v# = v$*s |v# = v$*r ~q = h/v$ y = (q*rsqrt(mean(q*q, F))) @ u }"},
    {"signs", "T=8,D=16,F=32,E=16", LENGTH,
     "p(x[T,D], w[F,D], u[E,F], r[T]) -> y[T,E] { h = x @ w v0 = r "
     "~v# = -v$ ~q = h*v$ y = (q*rsqrt(mean(q*q, F))) @ u }"},
    {"choices", "T=8,D=64", LENGTH, "p(x[T,D], c[D]) -> y[T,D] { y0 = x ~y# = where(x < #, c, y$) ~y = y$ }"},
    /* each needs what the one before it makes of whole rows, or of whole columns */
    {"alternating", "T=8,D=64", LENGTH / 5,
     "p(x[T,D]) -> y[T,D] { y0 = x ~y# = softmax(y$, D) |y# = softmax(y$, T) ~y = y$ }"},
    /* what is added to a product, before it */
    {"addends", "T=8,D=16,F=32", 3 * LENGTH,
     "p(x[T,D], w[F,D], b[T,F]) -> (y[T,F], z[T,F]) { y = b~ + b*#~ + x @ w z = sin(x) @ w }"},
    /* scores are scaled by a number with 2^LENGTH ways to its first */
    {"scale", "T=64,R=64,E=64", LENGTH,
     "p(q[T,E], k[R,E], v[R,E]) -> y[T,E] { v0 = 1/size(E) ~v# = v$*v$ + v$ ~y = softmax((q @ k)*v$, R) @ v "
     "}"},
    /* what is made of a product of groups */
    {"groups", "T=8,D=16,F=32", LENGTH,
     "p(a[T,D], w[E=2,F,D], o: i32[E]) -> y[T,F] { y0 = sum(a*gather(w, segments(o, E, T), E), D) "
     "~y# = sin(y$) + y0 ~y = y$ }"},
    {"nested", "T=8,D=64", NESTED + 1, "p(x[T,D]) -> y[T,D] { y = ~sigmoid(~x~)~ }"},
    {"parentheses", "T=8,D=16,F=32", NESTED / 4 + 1, /* each is four deep */
     "p(x[T,D], w[F,D]) -> y[T,F] { y = ~exp(-(1 - ~x @ w~))~ }"},
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
    epi_text text = long_text(o->program->text, o->program->length);
    epi_context *ctx = NULL;
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
