/* test_edges.c: programs at the edges of what is allowed: axes of no element and of one, slices of
 * everything, scales and operands that a program has several times.
 *
 * Each one and its gradients run fused, as the algebra rewrites them and as they are written, and unfused;
 * outputs and workspace are filled with NaN before, and results are held against the f64 reference.
 *
 *     edges [programs] [texts.epi dims]    the last two: programs of a file besides, at these sizes */
#include "cuda/cuda.h"
#include "ran.h"

static epi_context *ctx;

/* ---- one program ---- */

/* Is there an index that no number can be: of an axis without elements? */
static bool lacks_index(const problem *p) {
    bool lacks = false;
    for (int i = 0; i < p->inputs; i++)
        lacks |= p->t[i].shape.index_below == 0 && p->t[i].shape.count;
    return lacks;
}

static epi_status run_way(const epi_program *program, const char *dims, way how, ran *r, epi_error *err) {
    *r = (ran){.program = program};
    how.seed = 3;
    epi_status status = compile_as(program, dims, how, &r->k, err);
    if (status != EPI_OK)
        return status;
    bool ok = problem_make(&r->p, program, r->k, LAYOUT_PLAIN);
    if (ok && lacks_index(&r->p))
        return EPI_ERR_DIMS;
    if (ok)
        problem_fill(&r->p, 3);
    ok = ok && problem_run(r->k, &r->p);
    for (int t = 0; t < r->p.count && ok; t++)
        ok = tensor_intact(&r->p.t[t]);
    snprintf(err->message, sizeof err->message, "it does not run, or writes where it must not");
    return ok ? EPI_OK : EPI_ERR_ARGUMENT;
}

/* Is it an integer that the reference has no number for: the position of the largest of nothing? */
static bool is_nowhere(const tensor *out, const tensor *ref) {
    bool nowhere = out->shape.type == EPI_I32 || out->shape.type == EPI_I64;
    for (int64_t e = 0; e < out->shape.count && nowhere; e++)
        nowhere = !isfinite(at(ref, e));
    return nowhere;
}

static void compare(const ran *got, const ran *ref, const ran *naive, const char *dims, const char *how,
                    const char *label) {
    for (int t = got->p.inputs; t < got->p.count; t++) {
        double error, most;
        if (is_nowhere(&got->p.t[t], &ref->p.t[t]) ||
            within_rule(&got->p.t[t], &ref->p.t[t], &naive->p.t[t], EPI_F32, got->p.terms, &error, &most)) {
            passed++;
            continue;
        }
        most += 2 * spread_of(ref, dims, (way){.seed = 3}, t);
        check(error <= most, "%s at %s, %s: %s is off by %g, allowed %g", label, dims, how,
              tensor_name(got->program, t), error, most);
    }
}

/* A program's yardsticks; those with no such sizes are refused. */
static bool run_yardsticks(const epi_program *program, const char *dims, const char *label, ran *ref,
                           ran *naive) {
    epi_error err = {0};
    epi_status status = run_way(program, dims, (way){.path = EPI_PATH_REFERENCE}, ref, &err);
    *naive = (ran){0};
    check(status == EPI_OK || status == EPI_ERR_DIMS, "%s at %s has a reference: %s", label, dims,
          err.message);
    return status == EPI_OK &&
           check(run_way(program, dims, (way){.path = EPI_PATH_NAIVE}, naive, &err) == EPI_OK,
                 "%s at %s runs naively: %s", label, dims, err.message);
}

/* Runs one program every way. */
static void check_program(const epi_program *program, const char *dims, const char *label) {
    static const struct {
        const char *name;
        way how;
    } ways[] = {{"fused", {0}},
                {"written", {.algebra = EPI_ALGEBRA_WRITTEN}},
                {"unfused", {.path = EPI_PATH_UNFUSED}}};
    ran ref, naive, got;
    epi_error err;
    if (run_yardsticks(program, dims, label, &ref, &naive))
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            if (check(run_way(program, dims, ways[i].how, &got, &err) == EPI_OK, "%s at %s, %s: %s", label,
                      dims, ways[i].name, err.message))
                compare(&got, &ref, &naive, dims, ways[i].name, label);
            discard(&got);
        }
    discard(&ref);
    discard(&naive);
}

/* Its gradients by all inputs that can have one, made once; NULL: it has none. */
static const epi_program *gradients(const epi_program *program, epi_module **made) {
    const char *wrt[MAX_TENSORS];
    int count = number_inputs(program, true, wrt, MAX_TENSORS);
    if (count && !*made)
        epi_program_grad(program, wrt, count, made, NULL);
    return *made ? epi_module_program(*made, 0) : NULL;
}

/* The program, and its gradients: each a case. */
static void check_with_gradient(const epi_program *program, const char *dims, const char *label) {
    epi_module *made = NULL;
    char name[1200];
    if (wanted("%s at %s", label, dims))
        check_program(program, dims, label);
    snprintf(name, sizeof name, "the gradient of %.1100s", label);
    if (wanted("%s at %s", name, dims) && gradients(program, &made))
        check_program(epi_module_program(made, 0), dims, name);
    epi_module_free(made);
}

static void check_text(const char *text, const char *dims) {
    epi_module *m = parsed(ctx, text);
    for (int i = 0; m && i < epi_module_count(m); i++)
        check_with_gradient(epi_module_program(m, i), dims,
                            epi_module_count(m) == 1 ? text : epi_program_name(epi_module_program(m, i)));
    epi_module_free(m);
}

static void check_texts(const char *const (*texts)[2], size_t count) {
    for (size_t i = 0; i < count; i++)
        check_text(texts[i][0], texts[i][1]);
}

/* ---- scales and operands that a program has several times ---- */

/* A number that scales products which are added up goes to an operand once, whatever else that is in. */
static const char *const scaled[][2] = {
    {"f(w[H,D], d[T,D], q[T,D], u[T,H], x[T,D]) -> y[H,D] { e = d @ w  y = 0.5*(e @ q) + 0.5*((e*u) @ x) }",
     "T=64,D=64,H=64"},
    {"f(w[H,D], d[T,D], q[T,D], u[T,H], x[T,D]) -> y[H,D] { s = rsqrt(size(D))  e = d @ w"
     "  y = (e @ q)*s + ((e*u) @ x)*s }",
     "T=20,D=24,H=28"},
    {"f(x[T,D], w[F,D], s) -> y[T,F] { y = tanh((x @ w)*s) + ((x*x) @ w)*s }", "T=20,D=24,F=28"},
    {"f(w[H,D], d[T,D], x[T,D], s) -> y[H,D] { e = d @ w  y = (e @ x)*s + ((e*e) @ x)*s }", "T=20,D=24,H=28"},
    {"f(w[H,D], d[T,D], x[T,D], s, r[D]) -> y[H,D] { e = d @ w  y = (e @ x)*s + sum(e*x, T)*(s*r) }",
     "T=20,D=24,H=28"},
    {"f(w[H,D], d[T,D], s) -> y[H,H2] { e = d @ w  g = rename(e, H, H2)  y = (e @ g)*s + ((e*e) @ g)*s }",
     "T=20,D=24,H=28,H2=28"},
};

/* An axis that a product sums over, and one of that name around it. */
static const char *const captured[][2] = {
    {"f(a[T,D], b[D,R], g[D], e[T,D,R], n: i32[T], s) -> y[D] {"
     " y = var(gather(mean(((a @ b)*s - (a*g) @ b)*e, T), n, R), T) }",
     "T=4,D=5,R=6"},
};

/* ---- slices of everything ---- */

static const char *const sliced[][2] = {
    {"f(x[T,D], w[V,D]) -> (z[T,D], y[T,V]) { z = index(D)*x  y = (x @ w)*gather(index(D), 2, D) }",
     "T=40,D=40,V=40"},
    {"f(x[T,D]) -> (z[D], y[T]) { z = index(D)*2  y = sum(x, D)*gather(index(D), 3, D) }", "T=5,D=8"},
    {"f(x[T,D]) -> (i[T], y[T]) { i = argmax(x, D)  y = gather(x, gather(index(T), 1, T), D) + i }",
     "T=5,D=8"},
    {"f(x[T,D]) -> (a[D], y[T]) { p = index(D)*index(T)  a = gather(p, 2, T)  y = gather(p, 3, D)*sum(x, D) "
     "}",
     "T=5,D=8"},
    {"f(x[T,D], w[F,D]) -> y[T,F] { y = where(gather(index(D), 1, D) == 1, x @ w, 0) }", "T=5,D=8,F=6"},
    {"f(seed: i32, x[T,D], w[F,D]) -> (u[T,D], y[T,F]) { u = uniform(seed, T, D)"
     "  y = (x @ w)*gather(u, 2, D) }",
     "T=5,D=8,F=6"},
    {"f(x[T,C,D], w[F,D]) -> (y[T,F], z[T]) { s = gather(x, 1, C)  y = s @ w  z = gather(s*s, 2, D) }",
     "T=5,C=3,D=8,F=6"},
    {"f(x[T,D], w[F,D]) -> y[F] { r = rename(x, T, R)  y = gather(r, 2, R) @ w }", "T=5,R=5,D=8,F=6"},
    {"f(x[T,D], w[F,D]) -> y[T] { a, b = halves(x @ w, F)  p, q = pairs(a*b, F/2)  y = gather(p - q, 1, F/4) "
     "}",
     "T=5,D=8,F=12"},
    {"f(x[T,D], w[F,D]) -> y[F] { y = gather(x @ w, 1, T) + gather(softmax(x @ w, F), 3, T) }",
     "T=5,D=8,F=6"},
    {"f(x[T,D]) -> y[T] { y = gather(where(index(D) < 3, x, size(D)), 4, D) }", "T=5,D=8"},
    /* an axis that is sliced away, and another that gets its name */
    {"f(x[T,F]) -> y[T,F,R] { y = scatter(rename(x, T, R), 3, T) }", "T=6,F=4,R=6"},
    {"f(a[F,T], b[R,C,D,T], n: i32[T]) -> y[F,C] {"
     " y = sum(rename(gather(-gather(b, n, D), 2, R), T, R)*rename(a, T, R), R) }",
     "T=6,R=6,C=3,D=4,F=5"},
};

/* More slices than are looked at: the positions are none of memory's. */
static void test_many_slices(void) {
    char text[8000] = "f(x[T,D], w[V,D]) -> (z[T,D], y[T,V]) { z = index(D)*x  y = (x @ w)*(0";
    for (int i = 0; i < 80; i++)
        ADD(text, " + gather(index(D), %d, D)*0.001", i);
    strcat(text, ") }");
    check_text(text, "T=6,D=80,V=9");
}

/* Within a budget rows go through the parts slab by slab: a slice of the rows is the same in each. */
static void check_budget(const char *text, const char *dims) {
    ran ref = {0}, naive = {0}, got;
    epi_error err;
    if (!wanted("within budgets, %s", text))
        return;
    epi_module *m = parsed(ctx, text);
    if (m && run_yardsticks(epi_module_program(m, 0), dims, text, &ref, &naive))
        for (size_t memory = 600000; memory < 4000000; memory += memory / 2) {
            epi_status status = run_way(ref.program, dims, (way){.memory = memory}, &got, &err);
            if (check(status == EPI_OK || status == EPI_ERR_UNSUPPORTED, "%s in %zu bytes: %s", text, memory,
                      err.message) &&
                status == EPI_OK)
                compare(&got, &ref, &naive, dims, "within a budget", text);
            discard(&got);
        }
    discard(&ref);
    discard(&naive);
    epi_module_free(m);
}

static void test_slabs(void) {
    check_budget("f(x[T,D], w[F,D], v[E,F]) -> y[T,E] { y = (gelu(x @ w) @ v)*sum(gather(x, 3, T), D) }",
                 "T=2048,D=16,F=256,E=16");
    check_budget("f(x[T,D], w[F,D], v[E,F]) -> y[T,E] { a = gelu(x @ w)  y = (a*gather(a, 300, T)) @ v }",
                 "T=2048,D=16,F=256,E=16");
    check_budget("f(x[T,D], w[D,F], v[E,F]) -> y[T,E] {"
                 " a = gelu(x @ w)*gather(rename(x, D, F), 300, T)  y = a @ v }",
                 "T=4096,D=64,F=64,E=16");
}

/* ---- axes of no element and of one ---- */

/* What has fewer axes than its neighbours is stored where these have no element. */
static const char *const empty[][2] = {
    {"f(x[T,D], y[T,H,D]) -> (v[T,D], s[H,D]) { v = 2*x  s = sum(v*y, T) }", "T=8,D=8,H=0"},
    {"f(x[T,D], y[T,H,D]) -> (v[T,D], s[T,D]) { v = 2*x  s = sum(v*y, H) }", "T=8,D=8,H=0"},
    {"f(x[T,D], w[F,D], b[T]) -> (r[T], y[T,F]) { r = exp(b)  y = (x @ w)*r }", "T=8,D=8,F=0"},
    {"f(x[T,D], w[F,D], b[F]) -> (r[F], y[T,F]) { r = exp(b)  y = (x @ w)*r }", "T=0,D=8,F=8"},
    {"f(x[B,S,H,G,R], k[B,R,H,E]) -> y[B,S,H,G,E] { y = sum(x*k, R) }", "B=0,S=3,H=2,G=2,R=4,E=5"},
    {"f(x[B,S,H,G,R], k[B,R,H,E]) -> y[B,S,H,G,E] { y = sum(x*k, R) }", "B=2,S=3,H=0,G=2,R=4,E=5"},
    {"f(x[B,S,H,G,R], k[B,R,H,E]) -> y[B,S,H,G,E] { y = sum(x*k, R) }", "B=2,S=3,H=2,G=2,R=0,E=5"},
    {"att(q[B,S,H,E], k[B,R,H,E], v[B,R,H,E]) -> o[B,S,H,E] { o = sum(softmax(sum(q*k, E), R)*v, R) }",
     "B=0,S=8,R=8,H=2,E=4"},
    {"att(q[B,S,H,E], k[B,R,H,E], v[B,R,H,E]) -> o[B,S,H,E] { o = sum(softmax(sum(q*k, E), R)*v, R) }",
     "B=2,S=8,R=0,H=2,E=4"},
    {"att(q[B,S,H,E], k[B,R,H,E], v[B,R,H,E]) -> o[B,S,H,E] { o = sum(softmax(sum(q*k, E), R)*v, R) }",
     "B=2,S=8,R=8,H=0,E=4"},
    {"f(x[T,D], g[D], w[F,D]) -> y[T,F] { y = (x*rsqrt(mean(x*x, D))*g) @ w }", "T=4,D=0,F=6"},
};

enum { NONE = -2, ALL = -1 };

/* Sizes of a program's axes, one of which, or all, have `size` elements. */
static void sizes_with(const epi_program *p, int which, int size, char *out, size_t room) {
    out[0] = 0;
    for (int d = 0; d < epi_program_dim_count(p); d++) {
        int64_t fixed = epi_program_dim_size(p, d);
        int64_t use = fixed ? fixed : d == which || which == ALL ? size : d % 2 ? 6 : 4;
        append(out, room, "%s%s=%d", d ? "," : "", epi_program_dim(p, d), (int)use);
    }
}

/* What a GPU would launch: grids of at least a block, or nothing. */
static void check_launches(const epi_program *p, const char *dims, const char *label) {
    epi_kernel *k;
    epi_error err;
    epi_status status = compile_as(p, dims, (way){.type = EPI_BF16, .device = -90}, &k, &err);
    check(status == EPI_OK || status == EPI_ERR_DIMS, "%s at %s has texts: %s", label, dims, err.message);
    for (int i = 0; k && i < k->part_count; i++) {
        const epi_cuda_kernel *cuda = k->parts[i].full.cuda;
        for (int n = 0; n < cuda->count; n++) {
            const epi_launch *l = &cuda->launches[n];
            check(l->empty || (l->how.grid > 0 && l->how.block > 0),
                  "%s at %s: part %d, launch %d has a grid of %u", label, dims, i, n, l->how.grid);
        }
    }
    epi_kernel_free(k);
}

/* A program, or its gradients, at all sizes with one axis of no element or of one. */
static void check_sizes(const epi_program *p, bool of_gradient) {
    epi_module *gradient = NULL;
    char label[200], dims[600];
    snprintf(label, sizeof label, "%s%s", of_gradient ? "the gradient of " : "", epi_program_name(p));
    for (int which = NONE; which < epi_program_dim_count(p); which++)
        for (int size = 0; size < (which == NONE ? 1 : 2); size++) {
            if (which >= 0 && (epi_program_dim_size(p, which) || epi_program_dim_count(p) == 1))
                continue; /* it is given, or it is all */
            sizes_with(p, which, size, dims, sizeof dims);
            const epi_program *of = !wanted("%s at %s", label, dims) ? NULL
                                    : of_gradient                    ? gradients(p, &gradient)
                                                                     : p;
            if (of)
                check_program(of, dims, label);
            if (of && size == 0)
                check_launches(of, dims, label);
        }
    epi_module_free(gradient);
}

static void check_file(const char *path) {
    epi_module *m = parsed_file(ctx, path);
    for (int i = 0; m && i < epi_module_count(m); i++)
        for (int of_gradient = 0; of_gradient < 2; of_gradient++)
            check_sizes(epi_module_program(m, i), of_gradient);
    epi_module_free(m);
}

/* A kernel whose axis S is open, asked for no elements along it. */
static void check_open(const char *text, const char *dims, int device, epi_status want) {
    const int64_t size = 0;
    epi_error err = {0};
    size_t bytes;
    epi_kernel *k = text_kernel(ctx, text, dims, (way){.type = EPI_BF16, .device = device, .open = "S"});
    if (k) {
        epi_status status = epi_kernel_workspace_at(k, &size, 1, &bytes, &err);
        check(status == want, "%s without S: %s", text, status ? err.message : "it is taken");
    }
    epi_kernel_free(k);
}

/* On the CPU no elements along an open axis give what they give a program of that size: a sum of none is 0,
 * also where the mean that scales it is NaN. */
static void test_open_sum(void) {
    static const char text[] = "f(x[S,D], w[S,F], g[D]) -> y[D,F] { y = (x*rsqrt(mean(x*x, S))*g) @ w }";
    const int64_t size = 0;
    static float g[8], y[96];
    const epi_tensor tensors[] = {{NULL, NULL}, {NULL, NULL}, {g, NULL}, {y, NULL}};
    epi_error err = {0};
    size_t bytes = 0;
    epi_kernel *k = text_kernel(ctx, text, "S=64,D=8,F=12", (way){.open = "S"});
    if (k && check(epi_kernel_workspace_at(k, &size, 1, &bytes, &err) == EPI_OK, "%s", err.message)) {
        void *work = aligned_alloc(64, bytes);
        const epi_call call =
            EPI_CALL(.tensors = tensors, .count = 4, .workspace = work, .sizes = &size, .size_count = 1);
        y[5] = 7;
        check(epi_kernel_call(k, &call, &err) == EPI_OK && y[5] == 0, "a sum of nothing is %g", (double)y[5]);
        free(work);
    }
    epi_kernel_free(k);
}

/* A GPU's texts are one for all sizes of an open axis: where it has no elements, there is nothing to do, or
 * it is refused. On the CPU it is as ever. */
static void test_open(void) {
    static const struct {
        const char *text, *dims;
        epi_status gpu;
    } cases[] = {
        {"f(q[S,H,E], k[R,H,E], v[R,H,E]) -> o[S,H,E] { o = sum(softmax(sum(q*k, E), R)*v, R) }",
         "S=64,R=64,H=2,E=32", EPI_OK},
        {"f(q[S,E], k[R,E], g[E]) -> (y[S,R], h[E]) { h = exp(g)  y = (q*h) @ k }", "S=64,R=64,E=32", EPI_OK},
        {"f(q[S,E], k[S,R]) -> y[E,R] { y = q @ k }", "S=64,R=64,E=32", EPI_ERR_UNSUPPORTED},
        {"f(q[S,E], g[E]) -> (y[S,E], s[E]) { y = q*g  s = sum(y, S) }", "S=64,E=32", EPI_ERR_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int device = 0; device >= -90; device -= 90)
            check_open(cases[i].text, cases[i].dims, device, device ? cases[i].gpu : EPI_OK);
}

int main(int argc, char **argv) {
    epi_error err;
    if (!check(epi_context_open(&ctx, &err) == EPI_OK, "a context opens"))
        return finish();
    check_texts(scaled, sizeof scaled / sizeof *scaled);
    check_texts(captured, sizeof captured / sizeof *captured);
    check_texts(sliced, sizeof sliced / sizeof *sliced);
    test_many_slices();
    test_slabs();
    check_texts(empty, sizeof empty / sizeof *empty);
    if (argc > 1 && *argv[1])
        for_texts(argv[1], check_file);
    if (argc > 3) {
        epi_module *m = parsed_file(ctx, argv[2]);
        for (int i = 0; m && i < epi_module_count(m); i++)
            check_with_gradient(epi_module_program(m, i), argv[3],
                                epi_program_name(epi_module_program(m, i)));
        epi_module_free(m);
    }
    no_case();
    test_open();
    test_open_sum();
    epi_context_close(ctx);
    return finish();
}
