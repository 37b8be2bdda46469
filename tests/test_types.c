/* test_types.c: a type that the text gives a value holds for whatever is stored in its place.
 *
 * Each program stores f32 alone between its parts: what the text says so of, what that is made of by maps,
 * and what is made of positions and of f32 inputs. So whatever the storage type is, the algebra and the path,
 * a result is as far from f64 as f32 takes it: the program `most`, in f64, has the sums of absolute values
 * that this is measured by, element by element. And a look at each cut, for the CPU and for a GPU, tells that
 * all values between parts are f32. */
#include "harness.h"

static epi_context *ctx;

static const struct test {
    const char *name, *dims, *text;
    int rounded;       /* values that the unfused path rounds to the storage type on the way to a result */
    const char *exact; /* what may be stored in the storage type, as it loses nothing there; or NULL */
} tests[] = {
    {"a sign", "T=24,U=24,D=16,F=20",
     "f(x[T,D], w[F,D]) -> y: f32[T,U,F] { c: f32 = -(x @ w); y = c - rename(c, T, U)*3 }\n"
     "most(x[T,D], w[F,D]) -> y[T,U,F] { c = abs(x) @ abs(w); y = c + rename(c, T, U)*3 }\n",
     1, NULL},
    {"a sign of an operand", "T=24,U=24,D=16,F=20",
     "f(x[T,D], w[F,D]) -> y: f32[T,U,F] { c: f32 = -x @ w; y = exp(c - rename(c, T, U)) }\n"
     "most(x[T,D], w[F,D]) -> y[T,U,F] { c = x @ w; d = abs(x) @ abs(w)"
     " y = exp(rename(c, T, U) - c)*(1 + d + rename(d, T, U)) }\n",
     1, "-x"},
    {"scales", "T=24,U=24,D=16,F=20",
     "f(x[T,D], w[F,D], g[F], r[T]) -> y: f32[T,U,F] { c: f32 = 3*(x @ w)*g/r; y = rename(c, T, U) - c }\n"
     "most(x[T,D], w[F,D], g[F], r[T]) -> y[T,U,F] { c = 3*(abs(x) @ abs(w))*g/r; y = rename(c, T, U) + c "
     "}\n",
     0, NULL},
    {"what a function is taken of", "T=24,D=16,F=20",
     "f(x[T,D], w[F,D]) -> y: f32[T,F] { c: f32 = exp(x @ w); y = c - mean(c, T) }\n"
     "most(x[T,D], w[F,D]) -> y[T,F] { c = exp(x @ w)*(1 + abs(x) @ abs(w)); y = c + mean(c, T) }\n",
     1, NULL},
    {"a difference", "T=24,U=24,D=16,F=20",
     "f(x[T,D], w[F,D], b[F]) -> y: f32[T,U,F] { c: f32 = b - x @ w; y = rename(c, T, U)*b - c*b }\n"
     "most(x[T,D], w[F,D], b[F]) -> y[T,U,F] { c = b + abs(x) @ abs(w); y = rename(c, T, U)*b + c*b }\n",
     2, NULL},
    {"halves of it", "T=24,U=24,D=16,F=20",
     "f(x[T,D], w[F,D]) -> y: f32[T,U,F/2] { c: f32 = -(x @ w); a, b = halves(c, F); y = a - rename(b, T, U) "
     "}\n"
     "most(x[T,D], w[F,D]) -> y[T,U,F/2] { c = abs(x) @ abs(w); a, b = halves(c, F); y = a + rename(b, T, U) "
     "}\n",
     0, NULL},
    {"halves that have it", "T=24,U=24,D=16,F=20",
     "f(x[T,D], w[F,D]) -> y: f32[T,U,F] { a: f32, b: f32 = pairs(x @ w, F); c = join(a, b, F)"
     " y = c - rename(c, T, U) }\n"
     "most(x[T,D], w[F,D]) -> y[T,U,F] { c = abs(x) @ abs(w); y = c + rename(c, T, U) }\n",
     0, NULL},
    {"two put together", "T=24,U=24,D=16,F=20",
     "f(x[T,D], w[F,D]) -> y: f32[T,U,F] { a, b = halves(x @ w, F); c: f32 = concat(b*2, -a, F)"
     " y = c - rename(c, T, U) }\n"
     "most(x[T,D], w[F,D]) -> y[T,U,F] { a, b = halves(abs(x) @ abs(w), F); c = concat(b*2, a, F)"
     " y = c + rename(c, T, U) }\n",
     0, NULL},
    {"half of two put together", "T=24,U=24,D=16,F=20",
     "f(x[T,D], w[F,D]) -> y: f32[T,U,F/2] { a, b = halves(x @ w, F); c: f32 = concat(b, a, F)"
     " d, e = halves(c, F); y = d - rename(e, T, U) }\n"
     "most(x[T,D], w[F,D]) -> y[T,U,F/2] { a, b = halves(abs(x) @ abs(w), F); y = b + rename(a, T, U) }\n",
     0, NULL},
    {"another name", "T=24,U=24,D=16,F=20",
     "f(x[T,D], w[F,D]) -> y: f32[T,U,F] { z = x @ w; u: f32 = rename(z, T, U); y = u - z }\n"
     "most(x[T,D], w[F,D]) -> y[T,U,F] { z = abs(x) @ abs(w); y = rename(z, T, U) + z }\n",
     0, NULL},
    {"a slice of it", "T=24,U=24,D=16,F=24",
     "f(x[T,D], w[C=3,F,D]) -> y: f32[T,U,F] { z: f32 = -(x @ w)"
     " y = gather(z, 0, C) - rename(gather(z, 2, C), T, U) }\n"
     "most(x[T,D], w[C=3,F,D]) -> y[T,U,F] { z = abs(x) @ abs(w)"
     " y = gather(z, 0, C) + rename(gather(z, 2, C), T, U) }\n",
     0, NULL},
    {"a slice that has it", "T=24,U=24,D=16,F=24",
     "f(x[T,D], w[C=3,F,D]) -> (y: f32[T,U,F], s: f32[T,F]) { z = x @ w; a: f32 = gather(z, 0, C)"
     " s = sum(z, C); y = a - rename(a, T, U) }\n"
     "most(x[T,D], w[C=3,F,D]) -> (y[T,U,F], s[T,F]) { z = abs(x) @ abs(w); a = gather(z, 0, C)"
     " s = sum(z, C); y = a + rename(a, T, U) }\n",
     0, NULL},
    {"elements of it", "T=24,N=9,D=16,F=20",
     "f(x[T,D], w[F,D], i: i32[N]) -> y: f32[N,F] { z = x @ w; c: f32 = gather(z, i, T); y = c - mean(c, N) "
     "}\n"
     "most(x[T,D], w[F,D], i: i32[N]) -> y[N,F] { c = gather(abs(x) @ abs(w), i, T); y = c + mean(c, N) }\n",
     1, NULL},
    {"an operand times a vector", "T=24,D=16,F=20,G=28",
     "f(x[T,D], w[F,D], v[G,F], s[F]) -> (y: f32[T,G], z: f32[T,F]) { c: f32 = -(x @ w)"
     " y = c @ v; z = c - mean(c*s, T) }\n"
     "most(x[T,D], w[F,D], v[G,F], s[F]) -> (y[T,G], z[T,F]) { c = abs(x) @ abs(w); y = c @ abs(v)"
     " z = c + mean(c*s, T) }\n",
     2, NULL},
    {"inside of a program", "T=24,U=24,D=16,F=20",
     "inner(x[T,D], w[F,D]) -> y[T,F] { c: f32 = x @ w; y = -c }\n"
     "f(x[T,D], w[F,D]) -> y: f32[T,U,F] { c = inner(x, w); y = c - rename(c, T, U) }\n"
     "most(x[T,D], w[F,D]) -> y[T,U,F] { c = abs(x) @ abs(w); y = c + rename(c, T, U) }\n",
     0, NULL},
    {"a running sum of f32", "T=24,H=6",
     "f(dt: f32[T,H]) -> y: f32[T,U,H] { u = rename(dt, T, U)\n"
     " c: f32 = sum(where(index(U) <= index(T), -u, 0), U)\n"
     " y = where(index(U) <= index(T), c - rename(c, T, U), 0) }\n"
     "most(dt: f32[T,H]) -> y[T,U,H] { u = rename(abs(dt), T, U)\n"
     " c = sum(where(index(U) <= index(T), u, 0), U); y = c + rename(c, T, U) }\n",
     0, NULL},
    {"f32 alone", "T=24,D=16,U=24",
     "f(x: f32[T,D], s: f32[D]) -> y: f32[T,U,D] { c = exp(x)*s; y = c - rename(c, T, U) }\n"
     "most(x: f32[T,D], s: f32[D]) -> y[T,U,D] { c = exp(x)*s*(1 + abs(x)); y = c + rename(c, T, U) }\n",
     0, NULL},
    {"frequencies", "E=32,K=32",
     "f(base) -> y: f32[E,K] { f = (base + 10)**(-2*index(E)/size(E)); y = sin(1000*f) + rename(f, E, K) }\n"
     "most(base) -> y[E,K] { f = (base + 10)**(-2*index(E)/size(E))*8; y = 1 + 1000*f + rename(f, E, K) }\n",
     0, NULL},
    {"angles", "S=300,U=300,E=32",
     "f(base) -> y: f32[S,U,E/2] { t = index(S)*exp2(-13*index(E/2)/size(E/2) + 0*base)\n"
     " y = sin(t - 0.5*rename(t, S, U)) }\n"
     "most(base) -> y[S,U,E/2] { t = index(S)*exp2(-13*index(E/2)/size(E/2))*8; y = 1 + t + rename(t, S, U) "
     "}\n",
     0, NULL},
};

/* Programs of f32: an input of 16 bits rounds nothing that it is multiplied with. */
static const struct test in_f32[] = {
    {"an operand of passes", "T=6,D=6,V=6",
     "f(x[T,D], u[D,V], w: f16[D,V]) -> (y[2*T,V], m[D]) { c = concat(x, x @ u, 2*T); m = mean(u, V)\n"
     " y = rsqrt(sum(c*c, V) + 0.01) @ w }\n"
     "most(x[T,D], u[D,V], w: f16[D,V]) -> (y[2*T,V], m[D]) { c = concat(x, x @ u, 2*T); m = mean(abs(u), "
     "V)\n"
     " d = concat(abs(x), abs(x) @ abs(u), 2*T); r = rsqrt(sum(c*c, V) + 0.01)\n"
     " y = (r + r*r*r*sum(d*d, V)) @ abs(w) }\n",
     0, NULL},
    {"an operand before a product", "T=24,D=16,F=20",
     "f(x[T,D], w: bf16[F,D], i: i32[T]) -> y[T,F] { y = exp(gather(x, i, T)) @ w }\n"
     "most(x[T,D], w: bf16[F,D], i: i32[T]) -> y[T,F] { y = exp(gather(x, i, T)) @ abs(w) }\n",
     0, NULL},
    {"weights of attention", "S=40,R=150,E=16,F=24",
     "f(q[S,E], k[R,E], v: bf16[R,F]) -> y[S,F] { y = softmax(q @ k, R) @ v }\n"
     "most(q[S,E], k[R,E], v: bf16[R,F]) -> y[S,F] {"
     " y = (softmax(q @ k, R) @ abs(v))*(2 + 2*max(abs(q) @ abs(k), R)) }\n",
     0, NULL},
    {"weights of attention, all of 16 bits", "S=40,R=150,E=16,F=24",
     "f(q: bf16[S,E], k: bf16[R,E], v: bf16[R,F]) -> y[S,F] { y = softmax(q @ k, R) @ v }\n"
     "most(q: bf16[S,E], k: bf16[R,E], v: bf16[R,F]) -> y[S,F] {"
     " y = (softmax(q @ k, R) @ abs(v))*(2 + 2*max(abs(q) @ abs(k), R)) }\n",
     0, NULL},
    {"gradients of attention", "S=40,R=150,E=16,F=24",
     "g(q[S,E], k[R,E], v[R,F]) -> y[S,F] { y = softmax(q @ k, R) @ v }\n"
     "f(q: bf16[S,E], k: bf16[R,E], v: bf16[R,F], d: cotangent[S,F]) -> dv[R,F] {"
     " dv = grad(g, v)(q, k, v, d) }\n"
     "most(q: bf16[S,E], k: bf16[R,E], v: bf16[R,F], d: cotangent[S,F]) -> dv[R,F] {"
     " dv = softmax(q @ k, R) @ (abs(d)*(2 + 2*max(abs(q) @ abs(k), R))) }\n",
     0, NULL},
};

static epi_kernel *compile(const epi_program *p, const epi_options *o) {
    epi_kernel *k = NULL;
    epi_error err = {0};
    check(epi_kernel_compile(p, o, &k, &err) == EPI_OK, "%s: %s", epi_program_name(p), err.message);
    return k;
}

/* Runs a program of the module; false after an error. */
static bool run(const epi_program *p, const epi_options *o, problem *out) {
    epi_kernel *k = compile(p, o);
    bool ok = k && problem_make(out, p, k, LAYOUT_PLAIN);
    if (ok) {
        problem_fill(out, 5);
        ok = check(problem_run(k, out), "%s runs", epi_program_name(p));
    }
    epi_kernel_free(k);
    return ok;
}

/* The same in f64. */
static bool evaluate(const epi_program *p, epi_options o, problem *out) {
    epi_type_binding types[MAX_TENSORS];
    o.path = EPI_PATH_REFERENCE;
    o.types = types;
    o.type_count = wide_types(p, false, types);
    return run(p, &o, out);
}

/* Is every element as near as its sum of absolute values says? */
static void compare(const struct test *t, const problem *got, const problem *want, const problem *most,
                    double unit, const char *how) {
    for (int i = got->inputs; i < got->count; i++) {
        const tensor *out = &got->t[i];
        double worst = 0;
        for (int64_t e = 0; e < out->shape.count; e++) {
            double ref = get_element(want->t[i].data, EPI_F64, e),
                   bound = unit * get_element(most->t[i].data, EPI_F64, e),
                   error = apart(get_element(out->data, out->shape.type, e), ref);
            worst = fmax(worst, error <= bound ? error / bound : error == 0 ? 0 : fmax(2, error / bound));
        }
        check(worst <= 1, "%s, %s: output %d is off by %g times what is allowed", t->name, how,
              i - got->inputs, worst);
    }
}

/* Is all that is stored between parts f32? */
static void look(const struct test *t, const epi_program *p, const epi_options *o, const char *how) {
    epi_kernel *k = compile(p, o);
    epi_value_info value;
    int count = 0;
    for (; k && epi_kernel_value(k, count, &value) == EPI_OK; count++)
        check(value.type == EPI_F32 || (t->exact && !strcmp(value.expression, t->exact)),
              "%s, %s: %s = %s is stored as %s", t->name, how, value.name, value.expression,
              epi_dtype_name(value.type));
    check(count > 0, "%s, %s: something is stored", t->name, how);
    epi_kernel_free(k);
}

static void test_one(const struct test *t, epi_dtype type) {
    epi_module *m = NULL;
    epi_error err = {0};
    bound b;
    problem want = {0}, most = {0}, got = {0};
    if (!check(epi_module_parse(ctx, t->text, strlen(t->text), t->name, &m, &err) == EPI_OK, "%s: %s",
               t->name, err.message))
        return;
    const epi_program *f = epi_module_find(m, "f"), *bounds = epi_module_find(m, "most");
    bind_dims(&b, t->dims, type, 0);
    if (evaluate(f, b.options, &want) && evaluate(bounds, b.options, &most))
        for (int way = 0; way < 3; way++) {
            static const char *const hows[] = {"free", "written", "unfused"};
            char how[64];
            snprintf(how, sizeof how, "%s, %s", epi_dtype_name(type), hows[way]);
            b.options.algebra = way ? EPI_ALGEBRA_WRITTEN : EPI_ALGEBRA_FREE;
            b.options.path = way == 2 ? EPI_PATH_UNFUSED : EPI_PATH_FUSED;
            /* in f32 a sum of n terms is off by n units, a function by 4.5 ulp */
            double unit = (2 + want.terms + 9) * type_unit(EPI_F32);
            if (way == 2)
                unit += t->rounded * type_unit(type);
            if (run(f, &b.options, &got))
                compare(t, &got, &want, &most, unit, how);
            problem_free(&got);
            for (int gpu = 0; gpu < 2 && way < 2 && type != EPI_F32; gpu++) {
                b.options.device = gpu ? -90 : 0;
                look(t, f, &b.options, how);
            }
            b.options.device = 0;
        }
    problem_free(&want);
    problem_free(&most);
    epi_module_free(m);
}

/* What a backward program reads of the forward, and is as long as a value that has a type, has it, too. */
static void test_saved(void) {
    static const char text[] = "f(x[T,D], w[F,D], g[F]) -> y: f32[T] {\n"
                               "    a, b = halves(x @ w, F)\n"
                               "    c: f32 = concat(b, -a, F)\n"
                               "    y = sum(c*c*g, F)\n"
                               "}\n";
    const char *wrt[] = {"x", "g"};
    epi_module *m = NULL, *both = NULL;
    epi_error err = {0};
    epi_tensor_info info;
    int saved = 0;
    if (check(epi_module_parse(ctx, text, strlen(text), "saved", &m, &err) == EPI_OK &&
                  epi_program_grad_saved(epi_module_program(m, 0), wrt, 2, &both, &err) == EPI_OK,
              "%s", err.message)) {
        const epi_program *forward = epi_module_program(both, 0);
        for (int t = 0; epi_program_tensor(forward, t, &info) == EPI_OK; t++)
            if (info.is_output && info.rank == 2) {
                check(info.has_type && info.type == EPI_F32, "%s is saved as f32", info.name);
                saved++;
            }
        check(saved == 1, "%d values are saved", saved);
    }
    epi_module_free(both);
    epi_module_free(m);
}

int main(void) {
    if (epi_context_open(&ctx, NULL) != EPI_OK)
        return 1;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        for (int type = 0; type < 2; type++)
            test_one(&tests[i], type ? EPI_F16 : EPI_BF16);
    for (size_t i = 0; i < sizeof in_f32 / sizeof *in_f32; i++)
        test_one(&in_f32[i], EPI_F32);
    test_saved();
    epi_context_close(ctx);
    return finish();
}
