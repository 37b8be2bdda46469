/* test_own.c: programs that name their own gradient, f(x) -> y by f_grad. Where f_grad is what would be derived,
 * gradients of all that calls f are held against differences, and so are second ones; where it is something else,
 * against the same written by hand: as one program, forward and backward apart, in f64 and as it runs. Random
 * programs by the gradients that are derived of them have those gradients.
 *
 *     own [rounds] */
#include "in_f64.h"
#include "random_program.h"

static epi_context *ctx;

/* ---- programs whose tensors are told by their names ---- */

static uint64_t seed_of(const char *name) {
    uint64_t s = 7;
    for (; *name; name++)
        s = s * 131 + (unsigned char)*name;
    return s;
}

/* Random numbers by the names of the inputs; scalars and integers are small. */
static void fill_named(problem *p, uint64_t seed) {
    (void)seed;
    for (int t = 0; t < p->inputs; t++) {
        tensor *x = &p->t[t];
        uint64_t s = seed_of(tensor_name(p->program, t));
        for (int64_t e = 0; e < x->shape.count; e++) {
            int below = (int)(x->shape.index_below > 0 ? x->shape.index_below : 3);
            double u = random_unit(&s);
            put_at(x, e,
                   x->shape.type == EPI_I32 ? random_below(&s, below)
                   : x->shape.rank          ? 2 * u - 1
                                            : 0.3 + 0.5 * u);
        }
    }
}

static const way exact = {
    .type = EPI_F64, .path = EPI_PATH_REFERENCE, .threads = 1, .wide = true, .fill = fill_named};

/* Runs a program, with what `from` has of inputs by their names. */
static bool run(ran *r, const epi_program *program, const char *dims, way how, const ran *from) {
    if (!made(r, program, dims, how))
        return false;
    for (int t = 0; t < r->p.inputs && from; t++) {
        const tensor *source = find(from, tensor_name(program, t));
        if (source)
            copy_elements(source, &r->p.t[t]);
    }
    return run_again(r);
}

/* Has each gradient of the one the numbers of the other's? */
static void compare(const ran *got, const ran *want, double allowed, const char *how, const char *text) {
    for (int t = got->p.inputs; t < got->p.count; t++) {
        const char *name = got->program->graph.tensors[t].name;
        const tensor *x = &got->p.t[t], *y = find(want, name);
        bool same = y && x->shape.count == y->shape.count;
        for (int64_t e = 0; e < x->shape.count && same; e++) {
            double a = at(x, e), b = at(y, e);
            same = apart(a, b) <= allowed * (1 + fabs(b));
            check(same, "%s: %s, element %ld is %.9g, and by hand %.9g, in\n%s", how, name, (long)e, a, b,
                  text);
        }
        check(same, "%s: %s, in\n%s", how, name, text);
    }
}

/* ---- gradients that are not what would be derived ---- */

/* The last program of a text is the gradient by hand of the one before it. */
static void check_by_hand(const char *text, const char *wrt, const char *dims) {
    static const way fused = {.threads = 1, .fill = fill_named};
    epi_module *m = parsed(ctx, text);
    const epi_program *p = m ? epi_module_program(m, epi_module_count(m) - 2) : NULL;
    epi_module *one = gradient_of(p, wrt),
               *two[] = {derived(p, wrt, epi_program_grad_saved), derived(p, wrt, epi_program_grad_lean)};
    ran hand = {0};
    if (one && two[0] && two[1] && run(&hand, last_of(m), dims, exact, NULL))
        for (int way = 0; way < 2; way++) {
            double allowed = way ? 2e-5 : 1e-12;
            ran whole, f, b;
            if (run(&whole, epi_module_program(one, 0), dims, way ? fused : exact, NULL))
                compare(&whole, &hand, allowed, "one program", text);
            discard(&whole);
            for (int k = 0; k < 2; k++) {
                b = (ran){0};
                if (run(&f, epi_module_program(two[k], 0), dims, way ? fused : exact, NULL) &&
                    run(&b, epi_module_program(two[k], 1), dims, way ? fused : exact, &f))
                    compare(&b, &hand, allowed, k ? "lean" : "saved", text);
                discard(&b);
                discard(&f);
            }
        }
    discard(&hand);
    epi_module_free(one);
    epi_module_free(two[0]);
    epi_module_free(two[1]);
    epi_module_free(m);
}

#define STE \
    "ste(x[T,D]) -> y[T,D] by ste_grad { y = round(x) }\n" \
    "ste_grad(d_y[T,D]) -> d_x[T,D] { d_x = d_y }\n"
#define CLIP \
    "clip(x[T,D], most) -> y[T,D] by clip_grad { y = x }\n" \
    "clip_grad(most, d_y[T,D]) -> d_x[T,D] { d_x = clamp(d_y, -most, most) }\n"

static void test_by_hand(void) {
    static const struct {
        const char *text, *wrt, *dims;
    } cases[] = {
        /* the program itself, and a call of it */
        {STE "h(x[T,D], d_y[T,D]) -> d_x[T,D] { d_x = d_y }\nste2(x[T,D]) -> y[T,D] by ste_grad { y = "
             "floor(x) }\n"
             "by_hand(x[T,D], d_y[T,D]) -> d_x[T,D] { d_x = d_y }",
         "x", "T=3,D=4"},
        {STE "net(x[T,D], w[F,D]) -> o[T,F] { h = ste(4*x)/4  o = tanh(h @ w) }\n"
             "by_hand(x[T,D], w[F,D], d_o[T,F]) -> (d_x[T,D], d_w[F,D]) {\n"
             "    h = round(4*x)/4  o = tanh(h @ w)  d = d_o*(1 - o*o)  d_x = d @ w  d_w = d @ h }",
         "x,w", "T=3,D=4,F=2"},
        /* a quotient that a step looks at is a division: 49 times its inverse is less than 1 */
        {"up(x[T]) -> y[T] by up_grad { y = x }\nup_grad(d_y[T]) -> d_x[T] { d_x = d_y*floor(index(T)/49) }\n"
         "net(x[T]) -> o[T] { o = up(x) }\n"
         "by_hand(x[T], d_o[T]) -> d_x[T] { d_x = d_o*where(index(T) < 49, 0, where(index(T) < 98, 1, 2)) }",
         "x", "T=100"},
        /* the same value outside has no gradient */
        {STE "net(x[T,D]) -> o[T,D] { o = ste(x)*round(x)*x }\n"
             "by_hand(x[T,D], d_o[T,D]) -> d_x[T,D] { r = round(x)  d_x = d_o*(r*x + r*r) }",
         "x", "T=3,D=4"},
        /* two calls are two, though their values are one; a gradient that is not linear */
        {CLIP "net(x[T,D], w[D]) -> o[T,D] { o = clip(x*w, 0.1)*w + clip(x*w, 0.1)*3 }\n"
              "by_hand(x[T,D], w[D], d_o[T,D]) -> (d_x[T,D], d_w[D]) {\n"
              "    d = clamp(d_o*w, -0.1, 0.1) + clamp(3*d_o, -0.1, 0.1)\n"
              "    d_x = d*w  d_w = sum(d*x + d_o*x*w, T) }",
         "x,w", "T=3,D=4"},
        /* of two results one is used: the cotangent of the other is 0; what is taken is an input, a result, a value */
        {"two(x[T,D], v[D]) -> (y[T,D], z[T]) by two_grad { y = x*x*v  z = sum(x, D) }\n"
         "two_grad(x[T,D], z[T], y[T,D], d_y[T,D], d_z[T]) -> d_x[T,D] { d_x = 3*d_y*y + 5*d_z*z*x }\n"
         "net(x[T,D], v[D], w[F,D]) -> o[T,F] { y, z = two(tanh(x), v)  o = y @ w }\n"
         "by_hand(x[T,D], v[D], w[F,D], d_o[T,F]) -> (d_x[T,D], d_v[D]) {\n"
         "    t = tanh(x)  d_x = 3*(d_o @ w)*t*t*v*(1 - t*t)  d_v = 0*v }",
         "x,v", "T=3,D=4,F=2"},
        {"two(x[T,D], v[D]) -> (y[T,D], z[T]) by two_grad { y = x*x*v  z = sum(x, D) }\n"
         "two_grad(x[T,D], z[T], y[T,D], d_y[T,D], d_z[T]) -> d_x[T,D] { d_x = 3*d_y*y + 5*d_z*z*x }\n"
         "net(x[T,D], v[D]) -> (o[T], u[T,D]) { y, z = two(tanh(x), v)  o = z*z  u = tanh(x)*y }\n"
         "by_hand(x[T,D], v[D], d_o[T], d_u[T,D]) -> d_x[T,D] {\n"
         "    t = tanh(x)  y = t*t*v  z = sum(t, D)  d_z = 2*z*d_o  d_y = d_u*t\n"
         "    d_x = (3*d_y*y + 5*d_z*z*t + d_u*y)*(1 - t*t) }",
         "x", "T=3,D=4"},
        /* an argument twice; an argument without a gradient; an integer */
        {"f(a[T,D], b[T,D], i: i32[T]) -> y[T,D] by f_grad { y = a*b }\n"
         "f_grad(a[T,D], b[T,D], i: i32[T], d_y[T,D]) -> (d_a[T,D], d_b[T,D]) { d_a = d_y*i  d_b = d_y*a*b "
         "}\n"
         "net(x[T,D], i: i32[T]) -> o[T,D] { o = f(x, x, i) }\n"
         "by_hand(x[T,D], i: i32[T], d_o[T,D]) -> d_x[T,D] { d_x = d_o*i + d_o*x*x }",
         "x", "T=3,D=4"},
        /* axes that the call carries: a weight's gradient is summed over them */
        {"f(x[D], w[D]) -> y[D] by f_grad { y = x*w }\n"
         "f_grad(x[D], w[D], d_y[D]) -> (d_x[D], d_w[D]) { d_x = 2*d_y*w  d_w = 3*d_y*x*sum(w, D) }\n"
         "net(x[B,T,D], w[D]) -> o[B,T,D] { o = f(f(x, w), w) }\n"
         "by_hand(x[B,T,D], w[D], d_o[B,T,D]) -> (d_x[B,T,D], d_w[D]) {\n"
         "    s = sum(w, D)  d = 2*d_o*w  d_x = 2*d*w  d_w = sum(3*d_o*x*w*s + 3*d*x*s, B, T) }",
         "x,w", "B=2,T=3,D=4"},
        /* axes by their places: an argument in another order than it was made in */
        {"turn(x[A,B]) -> y[B,A] { y = x }\n"
         "f(x[M,N]) -> y[M,N] by f_grad { y = x*x }\n"
         "f_grad(x[M,N], y[M,N], d_y[M,N]) -> d_x[M,N] { d_x = d_y*index(M) + y }\n"
         "net(x[T,D]) -> o[T,D] { z = turn(x)*2  u = f(z)  v = f(x)  o = u*3 + v }\n"
         "by_hand(x[T,D], d_o[T,D]) -> d_x[T,D] {\n"
         "    d_x = 2*(3*d_o*index(D) + 4*x*x) + d_o*index(T) + x*x }",
         "x", "T=3,D=4"},
        /* the gradient calls programs, f itself among them; f calls another such program */
        {CLIP "inner(x[T,D]) -> y[T,D] { y = 2*clip(x, 0.2) }\n"
              "f(x[T,D]) -> y[T,D] by f_grad { y = inner(x)*x }\n"
              "double(x[T,D]) -> y[T,D] { y = 2*x }\n"
              "f_grad(x[T,D], d_y[T,D]) -> d_x[T,D] { d_x = double(d_y*f(x)) + grad(inner, x)(x, d_y) }\n"
              "net(x[T,D]) -> o[T,D] { o = f(inner(x)) }\n"
              "by_hand(x[T,D], d_o[T,D]) -> d_x[T,D] {\n"
              "    i = 2*x  d = 2*d_o*2*i*i + clamp(2*d_o, -0.2, 0.2)  d_x = clamp(2*d, -0.2, 0.2) }",
         "x", "T=3,D=4"},
        /* layers, written out; and a text's own grad() and backward() */
        {CLIP
         "layer(x[T,D], w[D]) -> y[T,D] { y = clip(x, 0.3)*w }\n"
         "net(x[T,D], w[L=3,D]) -> o[T,D] { o = repeat(layer, L)(x, w) }\n"
         "by_hand(x[T,D], w[L=3,D], d_o[T,D]) -> d_x[T,D] {\n"
         "    a = clamp(d_o*w[2], -0.3, 0.3)  b = clamp(a*w[1], -0.3, 0.3)  d_x = clamp(b*w[0], -0.3, 0.3) }",
         "x", "T=3,D=4,L=3"},
        {CLIP
         "layer(x[T,D], w[D]) -> y[T,D] { y = clip(tanh(x), 0.3)*w }\n"
         "net(x[T,D], w[D]) -> o[T,D] { o = grad(layer, x)(x, w, x*x) + backward(layer, x)(x, w, x*x) }\n"
         "by_hand(x[T,D], w[D], d_o[T,D]) -> d_w[D] {\n"
         "    t = tanh(x)  c = x*x*w\n"
         "    d_w = sum(2*d_o*(1 - t*t)*where(c >= -0.3 and c <= 0.3, x*x, 0), T) }",
         "w", "T=3,D=4"},
        /* types, sizes that the text fixes, halves, a new name of an axis, a seed */
        {"f(x: f32[T,2*F], seed: i32, C: i32) -> (y[T,F], s: f32[T]) by f_grad {\n"
         "    a, b = pairs(x, 2*F)  y = a*b*(uniform(seed, T, F) < 0.5)  s = sum(x, 2*F) }\n"
         "f_grad(x: f32[T,2*F], seed: i32, s: f32[T], d_y[T,F], d_s[T]) -> d_x[T,2*F] {\n"
         "    k = uniform(seed, T, F) < 0.5  d_x = join(d_y*k, 2*d_y*k, 2*F) + d_s*s }\n"
         "net(x: f32[T,2*F], seed: i32) -> o[T,F] { y, s = f(x, seed, seed)  o = y + s }\n"
         "by_hand(x: f32[T,2*F], seed: i32, d_o[T,F]) -> d_x[T,2*F] {\n"
         "    k = uniform(seed, T, F) < 0.5  d_x = join(d_o*k, 2*d_o*k, 2*F) + sum(d_o, F)*sum(x, 2*F) }",
         "x", "T=3,F=2"},
        {"f(x[T,D]) -> y[T] by f_grad { c = rename(x, T, R)  y = sum(tanh(x @ c), R) }\n"
         "f_grad(x[T,D], d_y[T]) -> d_x[T,D] { c = rename(d_y, T, R)  d_x = x*d_y + sum(c, R) }\n"
         "net(x[T,D]) -> o[T] { o = f(2*x)*f(x) }\n"
         "by_hand(x[T,D], d_o[T]) -> d_x[T,D] {\n"
         "    c = rename(x, T, R)  p = sum(tanh(4*(x @ c)), R)  q = sum(tanh(x @ c), R)\n"
         "    d_x = 2*(2*x*d_o*q + sum(d_o*q, T)) + x*d_o*p + sum(d_o*p, T) }",
         "x", "T=3,D=4"},
        {"f(x[T,E]) -> (y[T,K=2], i: i32[T,K]) by f_grad { i = topk(x, E, K)  y = gather(x, i, E) }\n"
         "f_grad(i: i32[T,K=2], d_y[T,K], x[T,E]) -> d_x[T,E] { d_x = 7*sum(where(index(E) == i, d_y, 0), K) "
         "}\n"
         "net(x[T,E]) -> o[T] { y, i = f(x)  o = sum(y*y, K) }\n"
         "by_hand(x[T,E], d_o[T]) -> d_x[T,E] {\n"
         "    i = topk(x, E, K=2)  y = gather(x, i, E)  d_x = 7*sum(where(index(E) == i, 2*d_o*y, 0), K) }",
         "x", "T=3,E=5,K=2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_by_hand(cases[i].text, cases[i].wrt, cases[i].dims);
}

/* ---- gradients that are what would be derived ---- */

/* Gradients of the last program by all its numbers, beside differences; so many times derived. */
static void check_differences(const epi_program *program, const char *dims, int times, const char *text) {
    const char *names[MAX_TENSORS];
    char store[EPI_MAX_DIMS][16];
    epi_dim_binding bindings[EPI_MAX_DIMS];
    epi_options o = EPI_OPTIONS(.dims = bindings, .dim_count = program_dims(program, dims, bindings, store));
    epi_gradcheck got = {0};
    epi_error err = {0};
    ran r;
    int count = number_inputs(program, true, names, MAX_TENSORS);
    if (run(&r, program, dims, exact, NULL)) {
        epi_status status = epi_program_gradcheck(program, names, count, &o, r.p.args, 5, &got, &err);
        check(status == EPI_OK && got.own > 0 && got.compared > got.edges + got.infinite && got.off <= 1,
              "%s: %s; %d calls; by %s, element %ld: %.9g derived, %.9g by differences, in\n%s",
              epi_program_name(program), err.message, got.own,
              got.input < 0 ? "nothing" : tensor_name(program, got.input), (long)got.element, got.derived,
              got.numeric, text);
    }
    discard(&r);
    epi_module *own = times > 1 ? gradient_of(program, NULL) : NULL;
    if (own)
        check_differences(epi_module_program(own, 0), dims, times - 1, text);
    epi_module_free(own);
}

#define CUBE "cube(x[T,D]) -> y[T,D] by cube_grad { y = x*x*x }\n"

/* Such gradients, whose value the derivative needs, so that the call is in the derived program, too. */
static void test_differences(void) {
    static const struct {
        const char *text, *dims;
    } cases[] = {
        {"f(x[T,D], w[F,D]) -> y[T,F] by f_grad { y = tanh(x @ w) }\n"
         "f_grad(x[T,D], w[F,D], y[T,F], d_y[T,F]) -> (d_x[T,D], d_w[F,D]) { d = d_y*(1 - y*y)  d_x = d @ w  "
         "d_w = d @ x }\n"
         "net(x[T,D], w[F,D]) -> o[T,F] { y = f(x*x, w)  o = y*y + f(x, w) }",
         "T=3,D=4,F=2"},
        {CUBE "cube_grad(x[T,D], d_y[T,D]) -> d_x[T,D] { d_x = 3*x*x*d_y }\n"
              "net(x[T,D]) -> o[T,D] { y = cube(x)  o = y*cube(y)*cube(x) }",
         "T=2,D=3"},
        {CUBE "cube_grad(x[T,D], y[T,D], d_y[T,D]) -> d_x[T,D] { d_x = 3*y/x*d_y }\n"
              "net(x[T,D]) -> o[T,D] { o = cube(1 + x*x) }",
         "T=2,D=3"},
        {CUBE "cube_grad(x[T,D], d_y[T,D]) -> d_x[T,D] { d_x = 3*cube(x)/x*d_y }\n"
              "net(x[T,D]) -> o[T,D] { o = cube(1 + x*x) }",
         "T=2,D=3"},
        {"f(x[D], w[D]) -> y[D] by f_grad { y = exp(x*w) }\n"
         "f_grad(x[D], w[D], y[D], d_y[D]) -> (d_x[D], d_w[D]) { d_x = d_y*y*w  d_w = d_y*y*x }\n"
         "net(x[B,T,D], w[D]) -> o[T,D] { o = sum(f(x, w), B) }",
         "B=2,T=2,D=3"},
        {"turn(x[A,B]) -> y[B,A] { y = x }\n"
         "f(x[M,N]) -> (y[M,N], s[M]) by f_grad { s = sum(x*x, N)  y = x*s*(1 + index(N)) }\n"
         "f_grad(x[M,N], s[M], y[M,N], d_y[M,N], d_s[M]) -> d_x[M,N] {\n"
         "    d_x = d_y*s*(1 + index(N)) + 2*x*(d_s + sum(d_y*y, N)/s) }\n"
         "net(x[T,D]) -> o[T,D] { z = turn(x)*2  a, b = f(z)  c, d = f(turn(a)*b)  o = c*d*x }",
         "T=2,D=3"},
        {"f(q[S,E], k[R,E], v[R,E]) -> o[S,E] by f_grad { o = softmax(q @ k, R) @ v }\n"
         "f_grad(q[S,E], k[R,E], v[R,E], o[S,E], d_o[S,E]) -> (d_q[S,E], d_k[R,E], d_v[R,E]) {\n"
         "    p = softmax(q @ k, R)  d_p = d_o @ v  d_s = p*(d_p - sum(o*d_o, E))\n"
         "    d_q = d_s @ k  d_k = d_s @ q  d_v = p @ d_o }\n"
         "net(x[S,D], w[E,D]) -> o[S,E] { h = x @ w  c = rename(h, S, R)  o = f(h, c, c) }",
         "S=3,D=2,E=2"},
        {"f(x[T,2*F]) -> y[T,F] by f_grad { a, b = halves(x, 2*F)  y = a*b }\n"
         "f_grad(x[T,2*F], y[T,F], d_y[T,F]) -> d_x[T,2*F] {\n"
         "    a, b = halves(x, 2*F)  d_x = concat(d_y*y/a, d_y*y/b, 2*F) }\n"
         "layer(x[T,2*F], w[F]) -> y[T,2*F] { h = f(x)*w  y = x + 0.1*concat(h, h, 2*F) }\n"
         "net(x[T,2*F], w[L=2,F]) -> o[T,2*F] { o = repeat(layer, L)(1 + x*x, w) }",
         "T=2,F=2,L=2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        epi_module *m = parsed(ctx, cases[i].text);
        if (m)
            check_differences(last_of(m), cases[i].dims, 3, cases[i].text);
        epi_module_free(m);
    }
}

/* ---- what is saved ---- */

static void test_saved(void) {
    static const struct {
        const char *text, *has, *lacks; /* of forward and backward */
    } cases[] = {
        /* what is taken is saved, though it could be made again; nothing else is */
        {"f(x[T,D]) -> y[T,D] by f_grad { y = x*x }\nf_grad(x[T,D], d_y[T,D]) -> d_x[T,D] { d_x = x*d_y }\n"
         "net(x[T,D]) -> o[T,D] { h = tanh(x)*2  o = f(h) }",
         "-> (o[T,D], h[T,D])", "saved"},
        {"f(x[T,D]) -> y[T,D] by f_grad { y = x*x }\nf_grad(y[T,D], d_y[T,D]) -> d_x[T,D] { d_x = y*d_y }\n"
         "net(x[T,D]) -> o[T,D] { h = tanh(x)*2  o = exp(f(h)) }",
         "saved", "h[T,D])"},
        {"f(x[T,D]) -> y[T,D] by f_grad { y = round(x @ rename(x, T, R) @ rename(x, T, R)) }\n"
         "f_grad(d_y[T,D]) -> d_x[T,D] { d_x = 2*d_y }\nnet(x[T,D]) -> o[T,D] { o = f(x) }",
         "backward(d_o: cotangent[T,D])", "saved"},
        /* unless the text says otherwise, or it is a slice of an input */
        {"f(x[T,D]) -> y[T,D] by f_grad { y = x*x }\nf_grad(x[T,D], d_y[T,D]) -> d_x[T,D] { d_x = x*d_y }\n"
         "net(x[T,D]) -> o[T,D] { h = again(tanh(x)*2)  o = f(h) }",
         "-> o[T,D] {", "saved"},
        {"f(x[T,D], w[D]) -> y[T,D] by f_grad { y = x*w }\n"
         "f_grad(w[D], d_y[T,D]) -> d_x[T,D] { d_x = clamp(d_y, -w, w) }\n"
         "net(x[T,D], w[L=2,D]) -> o[T,D] { o = repeat(f, L)(x, w) }",
         "backward(w[L=2,D], d_o: cotangent[T,D])", "saved"},
        /* what is saved is what the forward has, though the gradient would write silu(h) as a product */
        {"f(x[T,D]) -> (y[T,D], s: f32[T]) by f_grad { s = max(abs(x), D)  y = round(x/s) }\n"
         "f_grad(y[T,D], s: f32[T], d_y[T,D], d_s[T]) -> d_x[T,D] { d_x = d_y*y*s }\n"
         "net(x[T,D], w[E,D], v[E,F]) -> o[T,F] { h = x @ w  y, s = f(silu(h))  o = y @ v }",
         "-> (o[T,F], h[T,E], saved: f32[T], y[T,E])", "h*sigmoid"},
        /* so is a result that the forward itself does not use; few bits lie as the product wants them */
        {"f(x[F,D], w[T,D]) -> (y[T,F], z: e4m3[T,D]) by f_grad { z = e4m3(w/3)  y = w @ x }\n"
         "f_grad(z: e4m3[T,D], d_y[T,F], d_z[T,D]) -> d_x[F,D] { d_x = d_y @ (2*z) }\n"
         "net(w[T,D], x[F,D]) -> y[T,F] { y, z = f(x, w) }",
         "z: e4m3[D,T])", "saved"},
        /* scores of attention are in no memory */
        {"cap(s[S,R]) -> y[S,R] by cap_grad { y = 30*tanh(s/30) }\n"
         "cap_grad(s[S,R], d_y[S,R]) -> d_s[S,R] { d_s = where(abs(s) < 30, d_y, 0) }\n"
         "net(x[S,E], k[R,E], v[R,C]) -> o[S,C] { o = softmax(cap(x @ k), R) @ v }",
         "where(abs(", "S,R]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_saved_text(ctx, cases[i].text, "x", cases[i].has, cases[i].lacks);
}

/* ---- what does not fit ---- */

static void test_errors(void) {
    static const struct {
        const char *text;
        int line;
        const char *message;
    } cases[] = {
        {"f(x[T]) -> y[T] by g { y = x }", 1,
         "there is no program 'g' here, which is declared as the gradient of f"},
        {"f(x[T]) -> y[T] by f { y = x }", 1,
         "f cannot be the gradient of f: in line 1 'y' is not d_… for one of its inputs"},
        {"f(x[T]) -> y[T] by g { y = x }\ng(z[T], d_y[T]) -> d_x[T] { d_x = d_y }", 1,
         "g cannot be the gradient of f: in line 2 'z' is neither an input nor a result of it, nor d_… for a "
         "result"},
        {"f(x[T]) -> y[T] by g { y = x }\ng(x[T]) -> d_x[T] { d_x = x }", 1,
         "g cannot be the gradient of f: in line 2 it does not take 'd_y', the cotangent of 'y' in line 1"},
        {"f(x[T]) -> y[T] by g { y = x }\ng(d_y[T]) -> d_w[T] { d_w = d_y }", 1,
         "g cannot be the gradient of f: in line 2 'd_w' is not d_… for one of its inputs"},
        {"f(x[T,D]) -> y[T,D] by g { y = x }\ng(x[D], d_y[T,D]) -> d_x[T,D] { d_x = d_y*x }", 1,
         "g cannot be the gradient of f: in line 2 'x' has 1 axis, but 'x' in line 1 has 2"},
        {"f(x[T,D]) -> y[T,D] by g { y = x }\ng(x[T,D],\n d_y[D,T]) -> d_x[T,D] { d_x = d_y*x }", 1,
         "g cannot be the gradient of f: in line 3 g: the axis D of g is D in one argument, but T in 'd_y'"},
        {"f(x[T,D]) -> y[T,D] by g { y = x }\ng(d_y[T,D]) -> d_x[T] { d_x = sum(d_y, D) }", 1,
         "g cannot be the gradient of f: in line 2 'd_x' would be [T], but 'x' of f is [T,D]"},
        {"f(x: bf16[T]) -> y[T] by g { y = x }\ng(x: f32[T], d_y[T]) -> d_x[T] { d_x = d_y*x }", 1,
         "g cannot be the gradient of f: in line 2 'x' is declared f32, but 'x' in line 1 is bf16"},
        {"f(x[T], i: i32[T]) -> y[T] by g { y = x*i }\ng(d_y[T]) -> d_i[T] { d_i = d_y }", 1,
         "g cannot be the gradient of f: in line 2 'd_i' would be the gradient of an integer, which has no "
         "gradient"},
        {"f(x[T]) -> (y[T], i: i32[T]) by g { y = x  i = x }\ng(d_y[T], d_i[T]) -> d_x[T] { d_x = d_y + d_i "
         "}",
         1,
         "g cannot be the gradient of f: in line 2 'd_i' is the cotangent of an integer, which has no "
         "gradient"},
        {"f(x[T], d_y[T]) -> y[T] by g { y = x*d_y }\ng(d_y[T]) -> d_x[T] { d_x = d_y }", 1,
         "g cannot be the gradient of f: in line 2 'd_y' is both one of its tensors and a cotangent: give it "
         "another "
         "name"},
        {"f(x[T]) -> y[T] by g { y = x }\ng(x[T], d_y[T]) -> d_x[T] { d_x = grad(f, x)(x, d_y) }", 1,
         "g cannot be the gradient of f: in line 1 in f: 'g' calls itself through others; programs are "
         "inlined and "
         "cannot recurse"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        epi_module *m = NULL;
        epi_error err = {0};
        epi_status status = epi_module_parse(ctx, cases[i].text, strlen(cases[i].text), "own.epi", &m, &err);
        check(status != EPI_OK && err.line == cases[i].line &&
                  !strncmp(err.message, cases[i].message, strlen(cases[i].message)),
              "%s\nline %d: %s", cases[i].text, err.line, err.message);
        epi_module_free(m);
    }
}

/* `by` is a word behind results alone. */
static void test_word(void) {
    epi_module *m = parsed(
        ctx,
        "by(by[T]) -> y[T] by by_grad { by2 = 2*by  y = by2 }\nby_grad(d_y[T]) -> d_by[T] { d_by = d_y }");
    char text[400];
    if (m) {
        epi_program_print(epi_module_program(m, 0), text, sizeof text);
        check(!strcmp(text, "by(by[T]) -> y[T] by by_grad {\n    by2 = 2*by\n    y = by2\n}\n"), "%s", text);
    }
    epi_module_free(m);
}

/* ---- random programs ---- */

static bool is_number(const epi_ast_tensor *t) {
    return !t->has_type || !epi_dtype_is_integer(t->type);
}

/* A list of tensors' names, or of declarations; only numbers, where nothing but those is wanted. */
static void list(epi_text *out, const char *prefix, const epi_ast_tensor *t, int count, bool numbers,
                 bool declared) {
    for (int i = 0; i < count; i++) {
        epi_ast_tensor one = t[i];
        char name[200];
        snprintf(name, sizeof name, "%s%.150s", prefix, one.name);
        one.name = name;
        one.has_type &= !*prefix;
        one.param = false;
        if (numbers && !is_number(&t[i]))
            continue;
        epi_text_add(out, out->length && !strchr("({ ", out->data[out->length - 1]) ? ", " : "");
        if (declared)
            epi_ast_print_tensor(&one, out);
        else
            epi_text_add(out, "%s", name);
    }
}

/* The program f; g, which is f by the gradient that is derived of f; and h, which calls g. */
static char *around(const epi_ast_program *f) {
    epi_text out = {0};
    epi_ast_program g = *f;
    epi_ast_print(f, &out);
    g.name = "own_g";
    g.by = "own_rule";
    epi_ast_print(&g, &out);
    epi_text_add(&out, "own_rule(");
    list(&out, "", f->inputs, f->input_count, false, true);
    list(&out, "d_", f->outputs, f->output_count, true, true);
    epi_text_add(&out, ") -> (");
    list(&out, "d_", f->inputs, f->input_count, true, true);
    epi_text_add(&out, ") { ");
    list(&out, "d_", f->inputs, f->input_count, true, false);
    epi_text_add(&out, " = grad(%s, ", f->name);
    list(&out, "", f->inputs, f->input_count, true, false);
    epi_text_add(&out, ")(");
    list(&out, "", f->inputs, f->input_count, false, false);
    list(&out, "d_", f->outputs, f->output_count, true, false);
    epi_text_add(&out, ") }\nown_h(");
    list(&out, "", f->inputs, f->input_count, false, true);
    epi_text_add(&out, ") -> (");
    list(&out, "", f->outputs, f->output_count, false, true);
    epi_text_add(&out, ") { ");
    list(&out, "", f->outputs, f->output_count, false, false);
    epi_text_add(&out, " = own_g(");
    list(&out, "", f->inputs, f->input_count, false, false);
    epi_text_add(&out, ") }\n");
    return out.data;
}

/* Both programs have the same gradients, and the same second ones. */
static void same_gradients(const epi_program *p, const epi_program *q, const char *dims, int times,
                           const char *text) {
    epi_module *a = gradient_of(p, NULL), *b = gradient_of(q, NULL);
    ran x = {0}, y = {0};
    if (a && b && epi_program_tensor_count(epi_module_program(a, 0)) < MAX_TENSORS) {
        if (run(&x, epi_module_program(a, 0), dims, exact, NULL) &&
            run(&y, epi_module_program(b, 0), dims, exact, NULL))
            compare(&y, &x, 1e-9, times > 1 ? "random" : "random, second", text);
        if (times > 1)
            same_gradients(epi_module_program(a, 0), epi_module_program(b, 0), dims, times - 1, text);
    }
    discard(&x);
    discard(&y);
    epi_module_free(a);
    epi_module_free(b);
}

static void check_around(const epi_program *p, const char *dims, uint64_t seed, const char *label) {
    (void)seed;
    (void)label;
    char *text = around(p->ast);
    epi_module *m = text ? parsed(ctx, text) : NULL;
    if (m)
        same_gradients(epi_module_program(m, 0), last_of(m), dims, 2, text);
    epi_module_free(m);
    free(text);
}

int main(int argc, char **argv) {
    epi_error err;
    if (!check(epi_context_open(&ctx, &err) == EPI_OK, "a context"))
        return finish();
    test_by_hand();
    test_differences();
    test_saved();
    test_errors();
    test_word();
    check_random_programs(ctx, argc > 1 ? atoi(argv[1]) : 100, check_around);
    epi_context_close(ctx);
    return finish();
}
