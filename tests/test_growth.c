/* test_growth.c: the time that a program takes to compile grows with its length: a program that is four times
 * as long takes at most ten times as long, where a square would take sixteen, and of memory in proportion. And
 * no part makes again all that comes before it. */
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "layers.h"
#include "long_text.h"
#include "ran.h"

enum { TRIES = 8, LONGER = 4, MAX_WEIGHTS = 512 };

/* Programs of a length. */
typedef struct program {
    const char *name, *dims;
    int length;
    const char *text; /* for long_text */
} program;

static const program programs[] = {
    {"alternating", "T=64,D=64", 20,
     "p(x[T,D]) -> y[T,D] { y0 = x ~y# = softmax(y$, D) |y# = softmax(y$, T) ~y = y$ }"},
    {"norms", "T=64,D=64", 100,
     "p(x[T,D]) -> y[T,D] { y0 = x ~y# = tanh(y$*rsqrt(mean(y$*y$, D) + 1e-6)) + x ~y = y$ }"},
    {"choices", "T=64,D=64", 500, "p(x[T,D], c[D]) -> y[T,D] { y0 = x ~y# = where(x < #, c, y$) ~y = y$ }"},
    /* equal factors of a vector, and of two that take turns */
    {"powers", "D=64,F=64", 1000, "p(x[D], w[F,D]) -> y[F] { y = (x~*x~) @ w }"},
    {"turns", "T=64,D=64,F=64,E=64", 150,
     "p(x[T,D], w[F,D], u[E,F], r[T], s[T]) -> y[T,E] { h = x @ w v0 = r "
     "~v# = v$*s |v# = v$*r ~q = h*v$ y = (q*rsqrt(mean(q*q, F))) @ u }"},
    {"map", "T=64,D=64", 2000, "p(x[T,D]) -> y[T,D] { y = x~*x~ }"},
};

/* As many operations as there may be, but for a few. */
static const program many = {"many", "T=4,D=8,F=8,E=8", 65536 - 12,
                             "p(x[T,D], w[F,D], u[E,F], r[T]) -> y[T,E] { h = x @ w v0 = r "
                             "~v# = sin(v$) ~q = h*v$ y = (q*rsqrt(mean(q*q, F))) @ u }"};

/* More operands of products than one part can make. */
static const program operands = {"operands", "T=4,D=8,F=8", 2100,
                                 "p(x[T,D], w[F,D]) -> y[T,F] { y = x @ w~ + sin(x*#) @ w~ }"};

static epi_context *ctx;

static epi_module *program_of(const program *p, int length) {
    epi_text text = long_text(p->text, length);
    epi_module *m = parsed(ctx, text.data);
    epi_text_free(&text);
    return m;
}

static epi_kernel *compile(const program *p, const epi_module *m, int device) {
    return kernel_of(epi_module_program(m, 0), p->dims,
                     (way){.type = device ? EPI_BF16 : EPI_F32, .device = device});
}

/* Seconds of a processor. */
static double seconds(const program *p, const epi_module *m, int device) {
    clock_t start = clock();
    epi_kernel_free(compile(p, m, device));
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

/* The least time of each length counts. Other processes share the caches and make single times longer, so both
 * lengths are timed again, in turns, until they keep the law. What is too short to measure does not count. */
static void check_growth(const program *p, int device) {
    const double SHORT = 0.01, MOST = 10;
    double less = 1e9, more = 1e9;
    if (!wanted("%s %d", p->name, device))
        return;
    epi_module *shorter = program_of(p, p->length), *longer = program_of(p, LONGER * p->length);
    for (int i = 0; i < TRIES && shorter && longer && (!i || more > MOST * less + SHORT); i++) {
        less = fmin(less, seconds(p, shorter, device));
        more = fmin(more, seconds(p, longer, device));
    }
    check(more <= MOST * less + SHORT, "%s for device %d: %.3f s for %d, %.3f s for %d", p->name, device,
          less, p->length, more, LONGER * p->length);
    epi_module_free(longer);
    epi_module_free(shorter);
}

/* How a program is computed, in words. */
static char *description(const program *p) {
    epi_module *m = program_of(p, p->length);
    epi_kernel *k = m ? compile(p, m, 0) : NULL;
    size_t length = k ? epi_kernel_describe(k, NULL, 0) : 0;
    char *text = calloc(1, length + 1);
    if (k && text)
        epi_kernel_describe(k, text, length + 1);
    epi_kernel_free(k);
    epi_module_free(m);
    return text;
}

/* The operations of all parts are some times those of the program, however long it is. */
static void check_work(const program *p) {
    if (!wanted("%s, its work", p->name))
        return;
    char *text = description(p);
    int exps = 0;
    for (const char *at = text; (at = strstr(at, "exp(")); at++)
        exps++;
    check(exps > 0 && exps < 8 * p->length, "parts of %d softmaxes have %d exponentials", p->length, exps);
    free(text);
}

/* What is too long for the algebra is compiled as it is written, and the description says so; what is too much
 * for one part is cut into several. */
static void check_said(const program *p, const char *what) {
    if (!wanted("%s, what is said", p->name))
        return;
    char *text = description(p);
    check(strstr(text, what), "%s: it is said: %s", p->name, what);
    free(text);
}

/* ---- memory ---- */

static bool compile_gradient(int layers) {
    epi_text text = stacked_layers(&model_layers[0], layers);
    epi_module *m = parsed(ctx, text.data), *gradient = NULL;
    const epi_program *p = m ? epi_module_find(m, "net") : NULL;
    epi_kernel *k = NULL;
    const char *wrt[MAX_WEIGHTS];
    int inputs = p ? number_inputs(p, false, wrt, MAX_WEIGHTS) : 0;
    if (p && epi_program_grad(p, wrt + 1, inputs - 1, &gradient, NULL) == EPI_OK) /* but for x */
        k = kernel_of(epi_module_program(gradient, 0), "B=1,S=256,D=256,F=512,H=4,E=64",
                      (way){.type = EPI_BF16, .device = -90});
    bool ok = k != NULL;
    epi_kernel_free(k);
    epi_module_free(gradient);
    epi_module_free(m);
    epi_text_free(&text);
    return ok;
}

/* The most memory of a process that compiles the gradient of so many layers, in KB. */
static double kilobytes(int layers) {
    struct rusage used = {0};
    int status = -1;
    pid_t child = fork();
    if (child == 0)
        _exit(!compile_gradient(layers));
    check(child > 0 && wait4(child, &status, 0, &used) == child && status == 0,
          "the gradient of %d layers compiles", layers);
    return (double)used.ru_maxrss;
}

static void check_memory(void) {
    enum { LAYERS = 24 };
    if (!wanted("memory"))
        return;
    double once = kilobytes(LAYERS), twice = kilobytes(2 * LAYERS);
    check(twice <= 2.2 * once, "compiling takes %.0f KB for %d layers, %.0f KB for %d", once, LAYERS, twice,
          2 * LAYERS);
}

int main(void) {
    static const int devices[] = {0, -90};
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context"))
        return finish();
    check_memory(); /* first: a child begins with the memory of this process */
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        for (int d = 0; d < 2; d++)
            check_growth(&programs[i], devices[d]);
    check_work(&programs[0]);
    check_said(&many, "not rewritten: the program has more than 65536 operations");
    check_said(&operands, "part 1 of 2131, rows");
    epi_context_close(ctx);
    return finish();
}
