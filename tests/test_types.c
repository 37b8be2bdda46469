/* test_types.c: a type that the text gives a value holds for whatever is stored in its place.
 *
 * Each program stores f32 alone between its parts: what the text says so of, what that is made of by maps,
 * and what is made of positions and of f32 inputs. So whatever the storage type is, the algebra and the path,
 * a result is as far from f64 as f32 takes it: the program `most`, in f64, has the sums of absolute values
 * that this is measured by, element by element. And a look at each cut, for the CPU and for a GPU, tells that
 * all values between parts are f32. */
#include "ran.h"

static epi_context *ctx;

static const struct test {
    const char *name, *dims;
    int rounded;       /* values that the unfused path rounds to the storage type on the way to a result */
    const char *exact; /* what may be stored in the storage type, as it loses nothing there; or NULL */
    const char *text;
} tests[] = {
    {"a sign", "T=24,U=24,D=16,F=20", 1, NULL,
     "f(x[T,D], w[F,D]) -> y: f32[T,U,F] { c: f32 = -(x @ w); y = c - rename(c, T, U)*3 }"
     "most(x[T,D], w[F,D]) -> y[T,U,F] { c = abs(x) @ abs(w); y = c + rename(c, T, U)*3 }"},
    {"a sign of an operand", "T=24,U=24,D=16,F=20", 1, "-x",
     "f(x[T,D], w[F,D]) -> y: f32[T,U,F] { c: f32 = -x @ w; y = exp(c - rename(c, T, U)) }"
     "most(x[T,D], w[F,D]) -> y[T,U,F] { c = x @ w; d = abs(x) @ abs(w)"
     " y = exp(rename(c, T, U) - c)*(1 + d + rename(d, T, U)) }"},
    {"scales", "T=24,U=24,D=16,F=20", 0, NULL,
     "f(x[T,D], w[F,D], g[F], r[T]) -> y: f32[T,U,F] { c: f32 = 3*(x @ w)*g/r; y = rename(c, T, U) - c }"
     "most(x[T,D], w[F,D], g[F], r[T]) -> y[T,U,F] { c = 3*(abs(x) @ abs(w))*g/r; y = rename(c, T, U) + c }"},
    {"what a function is taken of", "T=24,D=16,F=20", 1, NULL,
     "f(x[T,D], w[F,D]) -> y: f32[T,F] { c: f32 = exp(x @ w); y = c - mean(c, T) }"
     "most(x[T,D], w[F,D]) -> y[T,F] { c = exp(x @ w)*(1 + abs(x) @ abs(w)); y = c + mean(c, T) }"},
    {"a difference", "T=24,U=24,D=16,F=20", 2, NULL,
     "f(x[T,D], w[F,D], b[F]) -> y: f32[T,U,F] { c: f32 = b - x @ w; y = rename(c, T, U)*b - c*b }"
     "most(x[T,D], w[F,D], b[F]) -> y[T,U,F] { c = b + abs(x) @ abs(w); y = rename(c, T, U)*b + c*b }"},
    {"halves of it", "T=24,U=24,D=16,F=20", 0, NULL,
     "f(x[T,D], w[F,D]) -> y: f32[T,U,F/2] { c: f32 = -(x @ w); a, b = halves(c, F); y = a - rename(b, T, U)}"
     "most(x[T,D], w[F,D]) -> y[T,U,F/2] { c = abs(x) @ abs(w); a, b = halves(c, F); y = a + rename(b, T, "
     "U)}"},
    {"halves that have it", "T=24,U=24,D=16,F=20", 0, NULL,
     "f(x[T,D], w[F,D]) -> y: f32[T,U,F] { a: f32, b: f32 = pairs(x @ w, F); c = join(a, b, F)"
     " y = c - rename(c, T, U) }"
     "most(x[T,D], w[F,D]) -> y[T,U,F] { c = abs(x) @ abs(w); y = c + rename(c, T, U) }"},
    {"two put together", "T=24,U=24,D=16,F=20", 0, NULL,
     "f(x[T,D], w[F,D]) -> y: f32[T,U,F] { a, b = halves(x @ w, F); c: f32 = concat(b*2, -a, F)"
     " y = c - rename(c, T, U) }"
     "most(x[T,D], w[F,D]) -> y[T,U,F] { a, b = halves(abs(x) @ abs(w), F); c = concat(b*2, a, F)"
     " y = c + rename(c, T, U) }"},
    {"half of two put together", "T=24,U=24,D=16,F=20", 0, NULL,
     "f(x[T,D], w[F,D]) -> y: f32[T,U,F/2] { a, b = halves(x @ w, F); c: f32 = concat(b, a, F)"
     " d, e = halves(c, F); y = d - rename(e, T, U) }"
     "most(x[T,D], w[F,D]) -> y[T,U,F/2] { a, b = halves(abs(x) @ abs(w), F); y = b + rename(a, T, U) }"},
    {"another name", "T=24,U=24,D=16,F=20", 0, NULL,
     "f(x[T,D], w[F,D]) -> y: f32[T,U,F] { z = x @ w; u: f32 = rename(z, T, U); y = u - z }"
     "most(x[T,D], w[F,D]) -> y[T,U,F] { z = abs(x) @ abs(w); y = rename(z, T, U) + z }"},
    {"a slice of it", "T=24,U=24,D=16,F=24", 0, NULL,
     "f(x[T,D], w[C=3,F,D]) -> y: f32[T,U,F] { z: f32 = -(x @ w)"
     " y = gather(z, 0, C) - rename(gather(z, 2, C), T, U) }"
     "most(x[T,D], w[C=3,F,D]) -> y[T,U,F] { z = abs(x) @ abs(w)"
     " y = gather(z, 0, C) + rename(gather(z, 2, C), T, U) }"},
    {"a slice that has it", "T=24,U=24,D=16,F=24", 0, NULL,
     "f(x[T,D], w[C=3,F,D]) -> (y: f32[T,U,F], s: f32[T,F]) { z = x @ w; a: f32 = gather(z, 0, C)"
     " s = sum(z, C); y = a - rename(a, T, U) }"
     "most(x[T,D], w[C=3,F,D]) -> (y[T,U,F], s[T,F]) { z = abs(x) @ abs(w); a = gather(z, 0, C)"
     " s = sum(z, C); y = a + rename(a, T, U) }"},
    {"elements of it", "T=24,N=9,D=16,F=20", 1, NULL,
     "f(x[T,D], w[F,D], i: i32[N]) -> y: f32[N,F] { z = x @ w; c: f32 = gather(z, i, T); y = c - mean(c, N) }"
     "most(x[T,D], w[F,D], i: i32[N]) -> y[N,F] { c = gather(abs(x) @ abs(w), i, T); y = c + mean(c, N) }"},
    {"an operand times a vector", "T=24,D=16,F=20,G=28", 2, NULL,
     "f(x[T,D], w[F,D], v[G,F], s[F]) -> (y: f32[T,G], z: f32[T,F]) { c: f32 = -(x @ w)"
     " y = c @ v; z = c - mean(c*s, T) }"
     "most(x[T,D], w[F,D], v[G,F], s[F]) -> (y[T,G], z[T,F]) { c = abs(x) @ abs(w); y = c @ abs(v)"
     " z = c + mean(c*s, T) }"},
    {"inside of a program", "T=24,U=24,D=16,F=20", 0, NULL,
     "inner(x[T,D], w[F,D]) -> y[T,F] { c: f32 = x @ w; y = -c }"
     "f(x[T,D], w[F,D]) -> y: f32[T,U,F] { c = inner(x, w); y = c - rename(c, T, U) }"
     "most(x[T,D], w[F,D]) -> y[T,U,F] { c = abs(x) @ abs(w); y = c + rename(c, T, U) }"},
    {"a running sum of f32", "T=24,H=6", 0, NULL,
     "f(dt: f32[T,H]) -> y: f32[T,U,H] { u = rename(dt, T, U)"
     " c: f32 = sum(where(index(U) <= index(T), -u, 0), U)"
     " y = where(index(U) <= index(T), c - rename(c, T, U), 0) }"
     "most(dt: f32[T,H]) -> y[T,U,H] { u = rename(abs(dt), T, U)"
     " c = sum(where(index(U) <= index(T), u, 0), U); y = c + rename(c, T, U) }"},
    {"f32 alone", "T=24,D=16,U=24", 0, NULL,
     "f(x: f32[T,D], s: f32[D]) -> y: f32[T,U,D] { c = exp(x)*s; y = c - rename(c, T, U) }"
     "most(x: f32[T,D], s: f32[D]) -> y[T,U,D] { c = exp(x)*s*(1 + abs(x)); y = c + rename(c, T, U) }"},
    {"frequencies", "E=32,K=32", 0, NULL,
     "f(base) -> y: f32[E,K] { f = (base + 10)**(-2*index(E)/size(E)); y = sin(1000*f) + rename(f, E, K) }"
     "most(base) -> y[E,K] { f = (base + 10)**(-2*index(E)/size(E))*8; y = 1 + 1000*f + rename(f, E, K) }"},
    {"angles", "S=300,U=300,E=32", 0, NULL,
     "f(base) -> y: f32[S,U,E/2] { t = index(S)*exp2(-13*index(E/2)/size(E/2) + 0*base)"
     " y = sin(t - 0.5*rename(t, S, U)) }"
     "most(base) -> y[S,U,E/2] { t = index(S)*exp2(-13*index(E/2)/size(E/2))*8; y = 1 + t + rename(t, S, "
     "U)}"},
};

/* Programs of f32: an input of 16 bits rounds nothing that it is multiplied with. */
static const struct test in_f32[] = {
    {"an operand of passes", "T=6,D=6,V=6", 0, NULL,
     "f(x[T,D], u[D,V], w: f16[D,V]) -> (y[2*T,V], m[D]) { c = concat(x, x @ u, 2*T); m = mean(u, V)"
     " y = rsqrt(sum(c*c, V) + 0.01) @ w }"
     "most(x[T,D], u[D,V], w: f16[D,V]) -> (y[2*T,V], m[D]) { c = concat(x, x @ u, 2*T); m = mean(abs(u), V)"
     " d = concat(abs(x), abs(x) @ abs(u), 2*T); r = rsqrt(sum(c*c, V) + 0.01)"
     " y = (r + r*r*r*sum(d*d, V)) @ abs(w) }"},
    {"an operand before a product", "T=24,D=16,F=20", 0, NULL,
     "f(x[T,D], w: bf16[F,D], i: i32[T]) -> y[T,F] { y = exp(gather(x, i, T)) @ w }"
     "most(x[T,D], w: bf16[F,D], i: i32[T]) -> y[T,F] { y = exp(gather(x, i, T)) @ abs(w) }"},
    {"weights of attention", "S=40,R=150,E=16,F=24", 0, NULL,
     "f(q[S,E], k[R,E], v: bf16[R,F]) -> y[S,F] { y = softmax(q @ k, R) @ v }"
     "most(q[S,E], k[R,E], v: bf16[R,F]) -> y[S,F] {"
     " y = (softmax(q @ k, R) @ abs(v))*(2 + 2*max(abs(q) @ abs(k), R)) }"},
    {"weights of attention, all of 16 bits", "S=40,R=150,E=16,F=24", 0, NULL,
     "f(q: bf16[S,E], k: bf16[R,E], v: bf16[R,F]) -> y[S,F] { y = softmax(q @ k, R) @ v }"
     "most(q: bf16[S,E], k: bf16[R,E], v: bf16[R,F]) -> y[S,F] {"
     " y = (softmax(q @ k, R) @ abs(v))*(2 + 2*max(abs(q) @ abs(k), R)) }"},
    {"gradients of attention", "S=40,R=150,E=16,F=24", 0, NULL,
     "g(q[S,E], k[R,E], v[R,F]) -> y[S,F] { y = softmax(q @ k, R) @ v }"
     "f(q: bf16[S,E], k: bf16[R,E], v: bf16[R,F], d: cotangent[S,F]) -> dv[R,F] {"
     " dv = grad(g, v)(q, k, v, d) }"
     "most(q: bf16[S,E], k: bf16[R,E], v: bf16[R,F], d: cotangent[S,F]) -> dv[R,F] {"
     " dv = softmax(q @ k, R) @ (abs(d)*(2 + 2*max(abs(q) @ abs(k), R))) }"},
};

/* Is every element as near as its sum of absolute values says? */
static void compare(const struct test *t, const ran *got, const ran *want, const ran *most, double unit,
                    const char *how) {
    for (int i = got->p.inputs; i < got->p.count; i++) {
        const tensor *out = &got->p.t[i];
        double worst = 0;
        for (int64_t e = 0; e < out->shape.count; e++) {
            double bound = unit * at(&most->p.t[i], e), error = apart(at(out, e), at(&want->p.t[i], e));
            worst = fmax(worst, error <= bound ? error / bound : error == 0 ? 0 : fmax(2, error / bound));
        }
        check(worst <= 1, "%s, %s: output %d is off by %g times what is allowed", t->name, how,
              i - got->p.inputs, worst);
    }
}

/* Is all that is stored between parts f32? */
static void look(const struct test *t, const epi_program *p, way how, const char *name) {
    epi_kernel *k = kernel_of(p, t->dims, how);
    epi_value_info value;
    int count = 0;
    for (; k && epi_kernel_value(k, count, &value) == EPI_OK; count++)
        check(value.type == EPI_F32 || (t->exact && !strcmp(value.expression, t->exact)),
              "%s, %s: %s = %s is stored as %s", t->name, name, value.name, value.expression,
              epi_dtype_name(value.type));
    check(count > 0, "%s, %s: something is stored", t->name, name);
    epi_kernel_free(k);
}

static void test_one(const struct test *t, epi_dtype type) {
    static const struct {
        const char *name;
        epi_algebra algebra;
        epi_path path;
    } ways[] = {{"free", EPI_ALGEBRA_FREE, EPI_PATH_FUSED},
                {"written", EPI_ALGEBRA_WRITTEN, EPI_PATH_FUSED},
                {"unfused", EPI_ALGEBRA_WRITTEN, EPI_PATH_UNFUSED}};
    const way exact = {.type = type, .path = EPI_PATH_REFERENCE};
    epi_module *m = parsed(ctx, t->text);
    const epi_program *f = epi_module_find(m, "f");
    ran want, most, got;
    bool known = run_as(&want, f, t->dims, exact);
    known = run_as(&most, epi_module_find(m, "most"), t->dims, exact) && known;
    for (int i = 0; i < 3 && known; i++) {
        way how = {.type = type, .algebra = ways[i].algebra, .path = ways[i].path};
        bool fused = how.path == EPI_PATH_FUSED;
        char name[64];
        snprintf(name, sizeof name, "%s, %s", epi_dtype_name(type), ways[i].name);
        /* in f32 a sum of n terms is off by n units, a function by 4.5 ulp */
        double unit = (2 + want.p.terms + 9) * type_unit(EPI_F32);
        unit += fused ? 0 : t->rounded * type_unit(type);
        if (run_as(&got, f, t->dims, how))
            compare(t, &got, &want, &most, unit, name);
        discard(&got);
        for (how.device = 0; how.device >= -90 && fused && type != EPI_F32; how.device -= 90)
            look(t, f, how, name);
    }
    discard(&want);
    discard(&most);
    epi_module_free(m);
}

/* What a backward program reads of the forward, and is as long as a value that has a type, has it, too. */
static void test_saved(void) {
    static const char text[] = "f(x[T,D], w[F,D], g[F]) -> y: f32[T] {\n"
                               "    a, b = halves(x @ w, F)\n"
                               "    c: f32 = concat(b, -a, F)\n"
                               "    y = sum(c*c*g, F)\n"
                               "}\n";
    epi_module *m = parsed(ctx, text),
               *both = derived(epi_module_program(m, 0), "x,g", epi_program_grad_saved);
    const epi_program *forward = epi_module_program(both, 0);
    epi_tensor_info info;
    int saved = 0;
    for (int t = 0; forward && epi_program_tensor(forward, t, &info) == EPI_OK; t++)
        if (info.is_output && info.rank == 2) {
            check(info.has_type && info.type == EPI_F32, "%s is saved as f32", info.name);
            saved++;
        }
    check(saved == 1, "%d values are saved", saved);
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
