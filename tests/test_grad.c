/* test_grad.c: derived gradients. Every operation, every program of a folder and random programs are held
 * against central differences in f64; derived programs print as programs that parse to the same graph.
 *
 *     grad [programs] [rounds] */
#include "in_f64.h"
#include "random_program.h"

static epi_context *ctx;

/* ---- one program ---- */

/* A tensor called as another one is, behind a letter more or less. */
static tensor *find_of(const ran *r, const char *prefix, const char *name) {
    char want[100];
    snprintf(want, sizeof want, "%s%s", prefix, name);
    return find(r, want);
}

/* Forward and backward as two programs give what the one gives that computes all of it. */
static void check_saved(const epi_program *program, const epi_program *one, const char *dims, uint64_t seed,
                        const char *label) {
    epi_module *two = derived(program, NULL, epi_program_grad_saved);
    ran f = {0}, b = {0}, whole = {0};
    if (two && made(&whole, one, dims, in_f64(seed)) &&
        made(&f, epi_module_program(two, 0), dims, in_f64(seed)) &&
        made(&b, epi_module_program(two, 1), dims, in_f64(seed))) {
        for (int t = 0; t < f.p.inputs; t++) /* it knows of all indices which are in their axis */
            copy_elements(&f.p.t[t], &whole.p.t[t]);
        bool ok = problem_run(f.k, &f.p) && problem_run(whole.k, &whole.p);
        for (int t = 0; t < b.p.inputs; t++) {
            const char *name = tensor_name(b.program, t);
            const tensor *saved = find(&f, name), *cotangent = find(&whole, name);
            if (check(saved || cotangent, "%s: %s comes from the forward", label, name))
                copy_elements(saved ? saved : cotangent, &b.p.t[t]);
        }
        check(ok && problem_run(b.k, &b.p), "%s: both run", label);
        for (int t = b.p.inputs; t < b.p.count; t++)
            check(off_in_f64(&b.p.t[t], &whole.p.t[whole.p.inputs + t - b.p.inputs]) <= 1e-12,
                  "%s: %s from saved values", label, tensor_name(b.program, t));
    }
    discard(&f);
    discard(&b);
    discard(&whole);
    epi_module_free(two);
}

/* The print of the derived program parses, and prints as it was. */
static void check_print(const epi_program *derived, const char *label) {
    static char printed[1 << 17]; /* as it was derived */
    epi_text first = {0}, second = {0};
    epi_program_print(derived, printed, sizeof printed);
    epi_graph_print(&derived->graph, epi_program_name(derived), &first);
    check(!strcmp(printed, first.data), "%s: the derived graph parses to itself:\n%s\n%s", label, printed,
          first.data);
    epi_text_free(&first);
    epi_graph_print(&derived->graph, "f", &first);
    epi_module *again = parsed(ctx, first.data);
    if (again) {
        epi_graph_print(&epi_module_program(again, 0)->graph, "f", &second);
        check(!strcmp(first.data, second.data), "%s: it prints as it was:\n%s\n%s", label, first.data,
              second.data);
        check(derived->graph.node_count == epi_module_program(again, 0)->graph.node_count,
              "%s: its graph is the same", label);
    }
    epi_module_free(again);
    epi_text_free(&first);
    epi_text_free(&second);
}

/* Gradients by all inputs that have one. */
static void check_program(const epi_program *program, const char *dims, uint64_t seed, const char *label) {
    char store[EPI_MAX_DIMS][16];
    epi_dim_binding bindings[EPI_MAX_DIMS];
    epi_type_binding types[MAX_TENSORS];
    const char *names[MAX_TENSORS];
    epi_options o = EPI_OPTIONS(.dims = bindings, .dim_count = program_dims(program, dims, bindings, store),
                                .path = EPI_PATH_REFERENCE, .types = types,
                                .type_count = wide_types(program, true, types));
    epi_error err;
    epi_gradcheck got = {0};
    ran r;
    if (made(&r, program, dims, in_f64(seed))) {
        int count = number_inputs(program, true, names, MAX_TENSORS);
        epi_status status = epi_program_gradcheck(program, names, count, &o, r.p.args, seed, &got, &err);
        check(status == EPI_OK, "%s: %s", label, err.message);
        check(status != EPI_OK || (got.compared > 0 && (got.off <= 1 || got.own)),
              "%s: by %s, element %ld: %.9g derived, %.9g by differences, %g times what is allowed", label,
              got.input < 0 ? "nothing" : tensor_name(program, got.input), (long)got.element, got.derived,
              got.numeric, got.off);
        epi_module *one = gradient_of(program, NULL);
        if (one && !got.own) /* the graph of one with gradients of its own has no calls */
            check_print(epi_module_program(one, 0), label);
        if (one)
            check_saved(program, epi_module_program(one, 0), dims, seed, label);
        epi_module_free(one);
    }
    discard(&r);
}

/* The derived program, derived once more by all that it takes. */
static void check_second(const epi_program *program, const char *dims, uint64_t seed, const char *label) {
    epi_module *first = gradient_of(program, NULL);
    char second[1000];
    snprintf(second, sizeof second, "the second derivatives of %.900s", label);
    if (first &&
        epi_program_tensor_count(epi_module_program(first, 0)) < MAX_TENSORS / 2) /* all but adamw's */
        check_program(epi_module_program(first, 0), dims, seed + 1, second);
    epi_module_free(first);
}

static void check_text(const char *text, const char *dims, uint64_t seed) {
    epi_module *m = wanted("%s, %s", text, dims) ? parsed(ctx, text) : NULL;
    if (m) {
        const epi_program *program = epi_module_program(m, epi_module_count(m) - 1);
        check_program(program, dims, seed, text);
        check_second(program, dims, seed, text);
    }
    epi_module_free(m);
}

/* ---- every operation ---- */

static void test_maps(void) {
    for (int op = 0; op < EPI_OP_COUNT; op++) {
        const epi_op_row *row = &epi_ops[op];
        char text[400], call[200];
        if (row->cls != EPI_CLASS_MAP || op == EPI_OP_DITHER || row->converts) /* these jump */
            continue;
        bool word = row->text[0] >= 'a' && strcmp(row->text, "and") && strcmp(row->text, "or") &&
                    strcmp(row->text, "not");
        if (word)
            snprintf(call, sizeof call, "%s(a%s%s)", row->text, row->arity > 1 ? ", b" : "",
                     row->arity > 2 ? ", c" : "");
        else
            snprintf(call, sizeof call, row->arity == 1 ? "%s a" : "a %s b", row->text);
        /* of positive numbers where it needs them; the operands have axes of their own */
        snprintf(text, sizeof text,
                 "f(x[T,D], b[D], c[T]) -> y[T,D] { a = 1.5 + x  y = (%s) + 0*(x + b + c) }", call);
        if (row->arity == 1 && strcmp(row->text, "not") && word)
            snprintf(text, sizeof text, "f(x[T,D]) -> y[T,D] { a = 1.5 + x  y = %s }", call);
        check_text(text, "T=3,D=5", (uint64_t)op);
        snprintf(text, sizeof text, "f(a[T], b[D], c[T,D]) -> y[T,D] { y = (%s)*(a + b + c) }", call);
        check_text(text, "T=3,D=4", (uint64_t)op + 1);
    }
}

/* In f32: wherever f(a) is finite, f'(a) is a number, even where squares and cubes of a are infinite. */
static void check_large(const char *call) {
    char text[200];
    ran r = {0};
    snprintf(text, sizeof text,
             "f(a[T]) -> y[T] { y = %s }\n"
             "g(a[T], d[T]) -> (y[T], da[T]) { y = f(a)  da = grad(f, a)(a, d) }",
             call);
    epi_module *m = wanted("large %s", call) ? parsed(ctx, text) : NULL;
    if (m && made(&r, epi_module_program(m, 1), "T=40", (way){0})) {
        tensor *a = find(&r, "a"), *d = find(&r, "d"), *y = find(&r, "y"), *da = find(&r, "da");
        for (int e = 0; e < 40; e++) { /* 1, -1, 100, -100, ... -1e38 */
            put_at(a, e, (e % 2 ? -1 : 1) * pow(10, e / 2 * 2));
            put_at(d, e, 1);
        }
        run_again(&r);
        for (int e = 0; e < 40; e++)
            check(!isfinite(at(y, e)) || !isnan(at(da, e)), "%s is %g where a is %g, but its derivative %g",
                  call, at(y, e), at(a, e), at(da, e));
    }
    discard(&r);
    epi_module_free(m);
}

static void test_large(void) {
    for (int op = 0; op < EPI_OP_COUNT; op++) {
        const epi_op_row *row = &epi_ops[op];
        char call[50];
        if (row->cls != EPI_CLASS_MAP || row->arity != 1 || row->converts)
            continue;
        bool word = row->text[0] >= 'a' && strcmp(row->text, "not");
        snprintf(call, sizeof call, word ? "%s(a)" : "%s a", row->text);
        check_large(call);
    }
}

static void test_others(void) {
    static const struct {
        const char *text, *dims;
    } cases[] = {
        {"f(x[T,D]) -> y[T] { y = sum(x*x, D) }", "T=3,D=4"},
        {"f(x[A,B,C]) -> y[B] { y = mean(x*x, A, C) }", "A=2,B=3,C=4"},
        {"f(x[A,B,C]) -> y { y = mean(x**3, C, A, B) }", "A=2,B=3,C=4"},
        {"f(x[A,B,C]) -> y[B] { y = max(x, A, C) }", "A=2,B=3,C=4"},
        {"f(x[A,B,C]) -> y[A] { y = min(x, B, C) }", "A=2,B=3,C=4"},
        {"f(r[T], x[T,D]) -> y[T] { y = max(r + 0*x, D)*min(r*r + 0*x, D) }", "T=3,D=4"}, /* all are equal */
        {"f(x[A,B,C]) -> y[B] { y = logsumexp(2*x, A, C) }", "A=2,B=3,C=4"},
        {"f(x[T,D]) -> y[T,D] { y = x*sum(x, T, D) }", "T=3,D=4"},
        {"f(x[T], w[D]) -> y[T] { y = x*sum(w*w, D) }", "T=3,D=4"}, /* a gradient that lacks axes */
        {"f(x[T,D], w[F,D]) -> y { y = sum(x @ w, T, F) }", "T=3,D=4,F=5"},
        {"f(x[T,D], w[F,D]) -> y[T,F] { y = x @ w }", "T=3,D=4,F=5"},
        {"f(x[T,D], w[D]) -> y[T] { y = (x @ w)**2 }", "T=3,D=4"},
        {"f(x[D], w[D]) -> y { y = (x @ w)**2 }", "D=4"},
        {"f(x[B,S,E], w[H,D,E]) -> y[B,S,H,D] { y = tanh(x @ w) }", "B=2,S=3,E=2,H=2,D=3"},
        {"f(x[B,S,H,D], w[E,H,D]) -> y[B,S,E] { y = sin(x @ w) }", "B=2,S=3,E=2,H=2,D=3"},
        {"f(x[T,F]) -> (a[T,F/2], b[T,F/2]) { p, q = pairs(x, F)  a = p*q  b = p + q*q }", "T=3,F=6"},
        {"f(x[T,2*F]) -> y[T,F] { p, q = halves(x*x, 2*F)  y = q*sin(p) }", "T=3,F=3"},
        {"f(x[T,2*F]) -> y { p, q = pairs(x, 2*F)  y = sum(q, T, F) }", "T=3,F=3"},
        {"f(a[T,F], b[F]) -> y[T,2*F] { y = join(a*a, b, 2*F)**2 }", "T=3,F=3"},
        {"f(a[F], b[T,F]) -> y[T,2*F] { y = concat(a, b, 2*F)**2 }", "T=3,F=3"},
        {"f(a[T,F], b[F]) -> y[T] { y = sum(join(a*a, b, 2*F), 2*F) }", "T=3,F=3"},
        {"f(x[V,D], i: i32[T]) -> y[T,D] { y = x[i]**2 }", "V=4,D=3,T=5"},
        {"f(x[V,D], i: i32[T]) -> y { y = sum(x[i], T, D) }", "V=4,D=3,T=5"},
        {"f(x[D,V], i: i32[S,T]) -> y[S,T,D] { y = gather(x, i, V)**2 }", "V=4,D=3,T=5,S=2"},
        {"f(x[T,V], i: i32[T]) -> y[T] { y = gather(x, i, V)**2 }", "V=4,T=5"}, /* a batch axis */
        {"f(x[B,V,D], i: i32[B,S]) -> y[B,S,D] { y = gather(x, i, V)**2 }", "B=2,V=4,D=3,S=3"},
        {"f(x[T,V], i: i32[V]) -> y[T,V] { y = gather(x, i, V)**2 }", "V=4,T=5"},
        {"f(x[B,S,D], i: i32[B,S]) -> y[B,S,D] { y = gather(x, i, S)**2 }", "B=2,S=3,D=2"}, /* both */
        {"f(x[P,D], z[S,D]) -> y[S,D] { y = z*x[index(S)] }", "P=4,D=3,S=3"},
        {"f(x[T,D], i: i32[T]) -> y[V,D] { y = scatter(x, i, V)**2 }", "V=4,D=3,T=5"},
        {"f(x[D], i: i32[T]) -> y[V,D] { y = scatter(x, i, V)**2 }", "V=4,D=3,T=5"},
        {"f(x[R,D], v[D], i: i32) -> y[R,D] { y = update(x, v, i, R)**2 }", "R=4,D=3"},
        {"f(x[B,R,D], v[D], i: i32[B]) -> y[B,R,D] { y = update(x*x, sin(v), i, R)**2 }", "B=3,R=4,D=2"},
        {"f(x[R,D], v) -> y { y = sum(update(x, v, 1, R), R, D) }", "R=4,D=3"},
        {"f(x[B,R], i: i32[B]) -> y[B,R] { y = update(x, sum(x, R), i, R)**2 }", "B=3,R=4"},
        {"f(x[S,D]) -> y[S,R] { y = sum(x*rename(x, S, R), D) }", "S=3,D=4,R=3"},
        {"f(x[S,D]) -> y[S,D] { y = softmax(x @ rename(x, S, R), R) @ rename(x, S, R) }", "S=3,D=4"},
        {"f(x[S]) -> y { y = sum(rename(x*x, S, R), R) }", "S=3"},
        /* names of axes whose rename nothing needs, or something needs only later */
        {"f(x[T,D]) -> y[T,D] { a = rename(x, T, R)  m = where(index(R) <= index(T), sum(x*a, D), 0)\n"
         "  b = rename(x*2, T, R)  y = sum(where(index(R) <= index(T), sum(x*b, D), 0)*b, R) }",
         "T=3,D=4"},
        {"f(x[T,D]) -> y[T,D] { a = rename(x, T, R)  b = rename(a, R, U)\n"
         "  y = x*x*sum(index(U)*size(U), U) }",
         "T=3,D=2"},
        {"f(x[T,D]) -> y[T,D] { a = rename(x, T, R)  b = rename(a, R, U)\n"
         "  y = x*x + size(R)*sum(rename(x*x, T, U), U) }",
         "T=3,D=2"},
        {"f(x[T,D], i: i32[T]) -> y[T,D] { y = gather(rename(x, T, R), i, R)*x }", "T=3,D=2"},
        {"f(x[T,D], s: i32) -> y[T,D] { a = rename(x, T, R)  y = x*x*sum(uniform(s, R), R) }", "T=3,D=2"},
        {"f(x[T,D], s: i32) -> y[T,D] { y = x*x*uniform(s, T, D) }", "T=3,D=4"},
        {"f(x[T,D]) -> y[T,D] { y = softmax(3*x, D) }", "T=3,D=5"},
        {"f(x[T,D]) -> y[T,D] { y = softmax(x, D) }", "T=3,D=1"},
        {"f(x[T,D]) -> y[T,D] { y = log_softmax(3*x, T, D) }", "T=3,D=5"},
        {"f(x[T,D]) -> y[T,D] { m = max(x, D)  y = softmax(x, D) + where(m == -inf, 0, m) }", "T=3,D=5"},
        {"f(x[T,D]) -> y[T] { y = var(x, D) }", "T=3,D=5"},
        {"f(x[T,D], l, h) -> y[T,D] { y = clamp(2*x, -l, h) }", "T=3,D=5"},
        {"f(x[T,D]) -> (y[T,D], z[T,D], k: i32[T]) { y = x*x  z = y  k = argmax(x, D) }", "T=3,D=5"},
        {"f(x[T,D]) -> (y[T,D], z[D]) { y = floor(3*x)  z = sum(x, T) }", "T=3,D=5"},
        {"f(x[T,D], w[F,D]) -> y[T,D] { y = x }", "T=3,D=5,F=2"}, /* nothing depends on w */
        {"f(x[T]) -> y[T] { y = 2 + 0*floor(x) }", "T=3"},
        {"f(a[T], b[T]) -> y[T] { y = pow(a, b) + a**0 + a**-0.5 }", "T=3"},
        {"f(x[T,D], d_x[T,D]) -> y[T,D] { y = x*d_x }", "T=2,D=3"}, /* a name that is taken */
        /* what someone new would write */
        {"geglu(x[T,D], wg[F,D], bg[F], wu[F,D], bu[F], wd[D,F]) -> y[T,D] {\n"
         "  y = (gelu(x @ wg + bg)*(x @ wu + bu)) @ wd }",
         "T=3,D=4,F=3"},
        {"lora(x[T,D], w[F,D], a[R,D], b[F,R], scale) -> y[T,F] { y = x @ w + scale*((x @ a) @ b) }",
         "T=3,D=4,F=3,R=2"},
        {"loss(x[T,D], w[V,D], y: i32[T], smoothing, zloss, cap) -> l: f32 {\n"
         "  z = cap*tanh((x @ w)/cap)  lse = logsumexp(z, V)  hit = sum(where(index(V) == y, z, 0), V)\n"
         "  l = mean(lse - (1 - smoothing)*hit - smoothing*mean(z, V) + zloss*lse**2, T) }",
         "T=4,D=3,V=5"},
        {"qk(x[S,E], w[H,D,E], g[D], c[S,D/2], s[S,D/2]) -> q[S,H,D] {\n"
         "  h = x @ w  n = h*rsqrt(mean(h*h, D) + 0.1)*g  a, b = pairs(n, D)\n"
         "  q = join(a*c - b*s, a*s + b*c, D) }",
         "S=3,E=4,H=2,D=4"},
        {"attend(q[B,S,H,E], k[B,R,H,E], v[B,R,H,E]) -> o[B,S,H,E] {\n"
         "  s = where(index(R) <= index(S) + 1, sum(q*k, E)*rsqrt(size(E)), -inf)\n"
         "  o = sum(softmax(s, R)*v, R) }",
         "B=2,S=2,H=2,E=2,R=3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_text(cases[i].text, cases[i].dims, 7 + i);
}

/* ---- programs ---- */

static void test_file(const char *path) {
    epi_module *m = parsed_file(ctx, path);
    for (int i = 0; m && i < epi_module_count(m); i++) {
        const epi_program *p = epi_module_program(m, i);
        char dims[400], label[800];
        small_sizes(p, dims, sizeof dims);
        snprintf(label, sizeof label, "%s:%s", path, epi_program_name(p));
        if (strstr(label, "adamw_bf16")) /* dither jumps; its derivative is that of its mean */
            continue;
        if (wanted("%s", label))
            check_program(p, dims, (uint64_t)i + 3, label);
        if (wanted("%s, second derivatives", label))
            check_second(p, dims, (uint64_t)i + 3, label);
    }
    epi_module_free(m);
}

/* ---- statistics that are taken before their product ---- */

/* A text of which forward and backward have one thing, and lack another. */
typedef struct form {
    const char *text, *dims, *has, *lacks;
} form;

static void check_forms(const form *forms, size_t count, const char *wrt, uint64_t seed) {
    for (size_t i = 0; i < count; i++) {
        check_saved_text(ctx, forms[i].text, wrt, forms[i].has, forms[i].lacks);
        check_text(forms[i].text, forms[i].dims, seed + i);
    }
}

/* Where the rule holds, and where it must not: each is also held against the program as it is derived, in
 * f64. */
static void test_relocated(void) {
    static const form forms[] = {
        /* FlashAttention's delta, and no scores kept; a mask, groups of heads */
        {"f(q[S,E], k[R,E], v[R,C]) -> o[S,C] { o = softmax(q @ k, R) @ v }", "S=3,E=2,R=4,C=5",
         "sum(o*d_o, C)", "S,R]"},
        {"f(q[B,S,G,H,E], k[B,R,G,E], v[B,R,G,C]) -> o[B,S,G,H,C] {\n"
         "  s = where(index(R) <= index(S), sum(q*k, E)*0.125, -inf)  o = sum(softmax(s, R)*v, R) }",
         "B=2,S=3,G=2,H=2,E=2,R=4,C=3", "sum(o*d_o, C)", "H,R]"},
        {"f(q[S,E], k[R,E], v[R,C]) -> o[S,C] { s = q @ k  o = exp(s - logsumexp(s, R)) @ v }",
         "S=3,E=2,R=4,C=5", "sum(o*d_o, C)", "S,R]"},
        {"f(q[S,E], k[R,E], v[R,C]) -> o[S,C] { e = exp(q @ k)  o = (e/sum(e, R)) @ v }", "S=3,E=2,R=4,C=5",
         "sum(o*d_o, C)", "S,R]"},
        {"f(q[S,E], k[R,E], v[R,C], w[C,D]) -> y[S,D] { o = softmax(q @ k, R) @ v  y = o @ w }",
         "S=3,E=2,R=4,C=5,D=3", "sum(o*d_o, C)", "S,R]"},
        /* RMSNorm: the result is at hand, up to the row's scale */
        {"f(x[T,D], g[D], w[F,D]) -> z[T,F] { r = rsqrt(mean(x*x, D) + 0.1)  z = (x*r*g) @ w }",
         "T=3,D=4,F=5", "r*r*sum(z*d_z, F)", "*g*x, D)"},
        {"f(x[T,D], g[D], w[F,D], v[F,D]) -> y[T,F] { n = x*rsqrt(mean(x*x, D) + 0.1)*g\n"
         "  a = n @ w  b = n @ v  y = sigmoid(a)*b }",
         "T=3,D=4,F=5", "saved*saved*(sum(b*d_b, F) + sum(a*d_a, F))", "*g*x, D)"},
        /* a function between, a sum that is not at hand, a shift that is not at hand by itself: nothing */
        {"f(x[T,D], w[F,D]) -> y[T,F] { n = tanh(x*rsqrt(mean(x*x, D) + 0.1))  y = n @ w }", "T=3,D=4,F=5",
         "*x, D)", "sum(y*d_y"},
        {"f(x[T,D], b[D], w[F,D]) -> y[T,F] { n = x*rsqrt(mean(x*x, D) + 0.1) + b  y = n @ w }",
         "T=3,D=4,F=5", "*x, D)", "sum(y*d_y"},
        {"f(x[T,D], r[T], w[F,D]) -> y[T,F] { n = x*max(x, D)*rsqrt(mean(x*x, D))  y = n @ w }",
         "T=3,D=4,F=5", "sum(", "/max("}, /* the scale may be 0: no division by it */
    };
    check_forms(forms, sizeof forms / sizeof *forms, NULL, 70);
}

/* A condition for whole rows that is in all terms of a gradient is asked last, and only then. */
static void test_vanishing(void) {
    static const form forms[] = {
        {"f(z[T,V], c: i32[T]) -> l[T] { l = where(c > 0, logsumexp(z, V), 0) }", "T=3,V=4",
         "d_z = where(c > 0, exp(z - saved)*d_l, 0)", "*where(c"},
        {"f(z[T,V], c: i32[T], y: i32[T]) -> l[T] { n = where(index(V) == y, z, 0)\n"
         "  l = where(c > 0, logsumexp(z, V) - sum(n, V)/3, 0) }",
         "T=3,V=4", "d_z = where(c > 0, ", "*where(c"},
        {"f(z[T,V], c: i32[T]) -> (l[T], s[T]) { l = where(c > 0, logsumexp(z, V), 0)  s = sum(z, V) }",
         "T=3,V=4", "*where(c > 0, d_l, 0)", "d_z = where("},
        {"f(z[T,V], c: i32[T], e: i32[T]) -> l[T] {\n"
         "  l = where(c > 0, logsumexp(z, V), 0) + where(e > 0, sum(z*z, V), 0) }",
         "T=3,V=4", "where(e > 0, d_l, 0)", "d_z = where("},
    };
    check_forms(forms, sizeof forms / sizeof *forms, "z", 90);
}

/* ---- beside those written by hand ---- */

typedef struct pair {
    const char *file, *forward, *wrt, *by_hand, *small, *large;
} pair;

static const pair pairs[] = {
    {"norms", "rmsnorm_saved", "x,g", "rmsnorm_grad", "T=3,D=7", "T=512,D=1024"},
    {"norms", "layernorm_saved", "x,g,b", "layernorm_grad", "T=3,D=7", "T=512,D=1024"},
    {"softmax", "softmax", "x", "softmax_grad", "T=3,D=7", "T=512,D=1024"},
    {"softmax", "log_softmax", "x", "log_softmax_grad", "T=3,D=7", "T=512,D=1024"},
    {"losses", "token_loss", "z", "token_loss_grad", "T=5,V=7", "T=512,V=1024"},
    {"losses", "token_loss_smooth", "z", "token_loss_smooth_grad", "T=5,V=7", "T=512,V=1024"},
    {"losses", "token_loss_capped", "z", "token_loss_capped_grad", "T=5,V=7", "T=512,V=1024"},
    {"gated", "swiglu_gate", "gate,up", "swiglu_gate_grad", "T=3,F=5", "T=512,F=1024"},
    {"gated", "swiglu_gate_pairs", "z", "swiglu_gate_pairs_grad", "T=3,F=5", "T=512,F=1024"},
    {"gated", "swiglu_gate_halves", "z", "swiglu_gate_halves_grad", "T=3,F=5", "T=512,F=1024"},
    {"gated", "geglu_gate", "gate,up", "geglu_gate_grad", "T=3,F=5", "T=512,F=1024"},
    {"gated", "geglu_gate_pairs", "z", "geglu_gate_pairs_grad", "T=3,F=5", "T=512,F=1024"},
    {"gated", "geglu_gate_halves", "z", "geglu_gate_halves_grad", "T=3,F=5", "T=512,F=1024"},
    {"gated", "geglu_tanh_gate", "gate,up", "geglu_tanh_gate_grad", "T=3,F=5", "T=512,F=1024"},
    {"gated", "reglu_gate", "gate,up", "reglu_gate_grad", "T=3,F=5", "T=512,F=1024"},
    {"gated", "reglu_gate_pairs", "z", "reglu_gate_pairs_grad", "T=3,F=5", "T=512,F=1024"},
    {"gated", "reglu_gate_halves", "z", "reglu_gate_halves_grad", "T=3,F=5", "T=512,F=1024"},
    {"rotary", "rotary_pairs", "x", "rotary_pairs_grad", "B=2,S=3,H=1,D=2", "B=4,S=128,H=8,D=64"},
    {"rotary", "rotary_halves", "x", "rotary_halves_grad", "B=2,S=3,H=1,D=2", "B=4,S=128,H=8,D=64"},
    {"rotary", "rotary_packed_pairs", "x", "rotary_packed_pairs_grad", "P=5,T=3,H=1,D=2",
     "P=64,T=256,H=8,D=64"},
    {"rotary", "rotary_packed_halves", "x", "rotary_packed_halves_grad", "P=5,T=3,H=1,D=2",
     "P=64,T=256,H=8,D=64"},
    {"embedding", "embedding", "table", "embedding_grad", "V=3,D=5,T=7", "V=300,D=512,T=128"},
    {"embedding", "embedding_scaled", "table", "embedding_scaled_grad", "V=3,D=5,T=7", "V=300,D=512,T=128"},
    {"embedding", "embedding_learned", "wte,wpe", "embedding_learned_grad", "V=3,P=7,D=5,B=3,S=5",
     "V=300,P=64,D=512,B=2,S=64"},
    {"embedding", "embedding_packed", "wte,wpe", "embedding_packed_grad", "V=3,P=5,D=5,T=11",
     "V=300,P=64,D=512,T=128"},
    {"embedding", "permute_rows", "x", "permute_rows_grad", "T=5,R=11,D=3", "T=128,R=256,D=512"},
    {"embedding", "unpermute_rows", "y", "unpermute_rows_grad", "T=5,R=11,D=3", "T=128,R=256,D=512"},
    {"embedding", "combine_rows", "y,weight", "combine_rows_grad", "T=5,R=11,D=3", "T=128,R=256,D=512"},
    {"dropout", "dropout", "x", "dropout_grad", "T=5,D=7", "T=512,D=1024"},
    {"linear", "linear", "w,b", "linear_grad_w", "T=5,D=7,F=3", "T=512,D=256,F=256"},
};

/* A program of a file of the folder; the module is the caller's. */
static const epi_program *open_program(const char *folder, const char *file, const char *name,
                                       epi_module **m) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s.epi", folder, file);
    *m = parsed_file(ctx, path);
    const epi_program *p = *m ? epi_module_find(*m, name) : NULL;
    check(p != NULL, "%s has %s", path, name);
    return p;
}

/* What is by hand is called dx and takes dy, a result of the forward, or its inputs. */
static void compare_numbers(const pair *p, const epi_program *forward, const epi_program *derived,
                            const epi_program *by_hand) {
    ran f, d = {0}, h = {0};
    bool ok = run_as(&f, forward, p->small, in_f64(5)) && made(&d, derived, p->small, in_f64(5)) &&
              made(&h, by_hand, p->small, in_f64(6));
    for (int t = 0; t < h.p.inputs && ok; t++) { /* inputs and results of the forward */
        const tensor *same = find(&f, tensor_name(by_hand, t));
        if (same)
            copy_elements(same, &h.p.t[t]);
    }
    for (int t = 0; t < d.p.inputs && ok; t++) {
        const tensor *same = t < f.p.inputs ? &f.p.t[t] : find_of(&h, "d", tensor_name(derived, t) + 2);
        for (int64_t e = 0; !same && e < d.p.t[t].shape.count; e++) /* by hand none: 0 */
            put_at(&d.p.t[t], e, 0);
        if (same)
            copy_elements(same, &d.p.t[t]);
    }
    ok = ok && run_again(&d) && run_again(&h);
    for (int t = d.p.inputs; t < d.p.count && ok; t++) {
        const tensor *want = find_of(&h, "d", tensor_name(derived, t) + 2);
        double off = want ? off_in_f64(&d.p.t[t], want) : INFINITY;
        check(off <= 1e-12, "%s: %s is off by %g beside %s", p->forward, tensor_name(derived, t), off,
              p->by_hand);
    }
    discard(&f);
    discard(&d);
    discard(&h);
}

/* Parts, and the bytes that they move, without those of inputs with fewer than two axes where `but_short` is set: the
 * cotangent of every loss where by hand it is one number for all, or eps. */
static int count_parts(const epi_program *program, const char *dims, bool but_short, double *bytes) {
    epi_kernel *k = kernel_of(program, dims, (way){0});
    epi_kernel_info info;
    if (!k)
        return -1;
    int parts = k->part_count;
    epi_kernel_get_info(k, &info);
    *bytes = info.bytes_fused;
    for (int t = 0; t < program->graph.input_count && but_short; t++) {
        epi_tensor_shape shape;
        epi_kernel_tensor(k, t, &shape);
        *bytes -= shape.rank < 2 ? 4 * (double)shape.count : 0;
    }
    epi_kernel_free(k);
    return parts;
}

/* As many parts as by hand, and no more bytes. */
static void compare_parts(const pair *p, const epi_program *one, const epi_program *by_hand, bool but_short) {
    double bytes = 0, bytes_by_hand = 0;
    int parts = count_parts(one, p->large, but_short, &bytes),
        others = count_parts(by_hand, p->large, false, &bytes_by_hand);
    check(parts == others, "%s: %d parts, by hand %d", epi_program_name(one), parts, others);
    check(bytes <= bytes_by_hand, "%s: %.0f bytes moved, by hand %.0f", epi_program_name(one), bytes,
          bytes_by_hand);
}

/* A program of the folder that calls a derived backward, and the one by hand of the same name: the same
 * inputs and numbers. */
static void compare_bundled(const pair *p, const epi_program *bundled, const epi_program *by_hand) {
    ran b, h = {0};
    bool ok = run_as(&b, bundled, p->small, in_f64(6)) && made(&h, by_hand, p->small, in_f64(6));
    for (int t = 0; t < b.p.inputs && ok; t++) /* the indices that b knows to be of an axis */
        if (check(!strcmp(tensor_name(by_hand, t), tensor_name(bundled, t)), "%s takes %s", p->by_hand,
                  tensor_name(bundled, t)))
            copy_elements(&b.p.t[t], &h.p.t[t]);
    ok = ok && run_again(&h);
    for (int t = b.p.inputs; t < b.p.count && ok; t++) {
        double off = off_in_f64(&b.p.t[t], &h.p.t[t]);
        check(off <= 1e-12, "%s: %s is off by %g beside the one by hand", p->by_hand, tensor_name(bundled, t),
              off);
    }
    discard(&b);
    discard(&h);
}

static void test_by_hand(const char *folder) {
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const pair *p = &pairs[i];
        epi_module *m[3];
        if (!wanted("%s beside %s", p->forward, p->by_hand))
            continue;
        const epi_program *forward = open_program(folder, p->file, p->forward, &m[0]),
                          *bundled = open_program(folder, p->file, p->by_hand, &m[1]),
                          *by_hand = open_program(folder, "../tests/by_hand", p->by_hand, &m[2]);
        epi_module *own = forward ? gradient_of(forward, p->wrt) : NULL;
        if (own && by_hand) {
            compare_numbers(p, forward, epi_module_program(own, 0), by_hand);
            compare_parts(p, epi_module_program(own, 0), by_hand, true);
        }
        if (bundled && by_hand) {
            compare_bundled(p, bundled, by_hand);
            compare_parts(p, bundled, by_hand, false);
        }
        epi_module_free(own);
        for (int n = 0; n < 3; n++)
            epi_module_free(m[n]);
    }
}

/* ---- what is saved ---- */

/* What the backward takes beside cotangents, in its order. */
static void check_taken(const char *text, const char *wrt, const char *want) {
    epi_module *m = parsed(ctx, text),
               *two = m ? derived(epi_module_program(m, 0), wrt, epi_program_grad_saved) : NULL;
    char taken[400] = "";
    if (two) {
        const epi_graph *g = &epi_module_program(two, 1)->graph;
        for (int t = 0; t < g->input_count; t++)
            if (!g->tensors[t].cotangent)
                ADD(taken, "%s ", g->tensors[t].name);
        check(!strcmp(taken, want), "%s: the backward takes %s", text, taken);
    }
    epi_module_free(two);
    epi_module_free(m);
}

/* A backward has the row axes of its forward, whatever it begins with. */
static void test_row_axes(void) {
    static const struct {
        const char *text, *wrt, *dims, *rows;
    } cases[] = {
        {"f(x[T,D], w[F,D]) -> y[T,F] { y = x @ w }", "x", "T=3,D=4,F=5", "T"}, /* w, d_y */
        {"f(x[B,S,D], w[F,D]) -> y[B,S,F] { y = tanh(x @ w) }", "x", "B=2,S=3,D=4,F=5", "B S"},
        {"f(x[T,D], wq[H,E,D]) -> q[T,H,E] { q = sigmoid(x @ wq) }", "wq", "T=3,D=4,H=2,E=5", "T"},
        {"f(x[T,D], w[V,D], y: i32[T]) -> l: f32[T] { z = x @ w  l = logsumexp(z, V) - gather(z, y, V) }",
         "x", "T=3,D=4,V=5", "T"},
        {"f(x[T,D], w[F,D]) -> s: f32 { s = sum(tanh(x @ w), T, F) }", "x", "T=3,D=4", "T"},
        {"f(q[B,H,S,E], k[B,H,R,E]) -> s[B,H,S,R] { s = sum(q*k, E) }", "q", "B=2,H=2,S=3,R=4,E=5",
         "B H R"}}; /* begins with k: the last of its axes is no row */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        epi_module *m = parsed(ctx, cases[i].text),
                   *two = m ? derived(epi_module_program(m, 0), cases[i].wrt, epi_program_grad_saved) : NULL;
        epi_kernel *k = two ? kernel_of(epi_module_program(two, 1), cases[i].dims, (way){0}) : NULL;
        char rows[100] = "";
        for (int d = 0; k && d < k->spec.graph->declared_count; d++)
            if (k->spec.is_row[d])
                ADD(rows, "%s%s", rows[0] ? " " : "", k->spec.graph->dims[d]);
        check(!strcmp(rows, cases[i].rows), "%s: rows of the backward are %s", cases[i].text, rows);
        epi_kernel_free(k);
        epi_module_free(two);
        epi_module_free(m);
    }
}

/* Rows that the forward stores for a product are saved for one of the backward, unless memory comes first. */
static void test_passed(void) {
#define CENTRED(then) \
    "f(x[T,D], g[D], w[F,D]) -> y[T,F] { c = x - mean(x, D)  r = rsqrt(mean(c*c, D) + 0.1)  n = " then \
    "  y = n @ w }"
    check_taken(CENTRED("c*r*g"), "w", "n ");
    check_taken(CENTRED("tanh(c*r*g)"), "w", "n ");
    check_taken(CENTRED("again(c*r*g)"), "w", "x g saved r ");
    check_taken(CENTRED("c*r*g"), "x", "x g w y saved r "); /* no product of the backward wants them */
    /* a scale goes past the product; scores are in no memory */
    check_taken("f(x[T,D], w[F,D]) -> y[T,F] { r = rsqrt(mean(x*x, D) + 0.1)  n = x*r  y = n @ w }", "w",
                "x r ");
    check_taken("f(q[S,E], k[R,E], v[R,C]) -> o[S,C] { p = softmax(q @ k, R)  o = p @ v }", "v",
                "q k saved saved_2 ");
    /* what was chosen is saved: of what is made again it might be another one */
    check_taken("f(x[T,E]) -> g[T,K] { p = sigmoid(x)  g = gather(p, topk(p, E, K=2), E) }", "x", "x saved ");
    /* where the rows that are scaled are a result, they are in memory; else what is scaled is stored */
    check_taken("f(x[T,D], w[F,D]) -> (h[T,D], y[T,F]) { h = x - mean(x, D)  n = h*rsqrt(mean(h*h, D) + 0.1)"
                "  y = n @ w }",
                "w", "h saved ");
    check_taken("f(x[T,D], w[F,D]) -> y[T,F] { h = x - mean(x, D)  n = h*rsqrt(mean(h*h, D) + 0.1)"
                "  y = n @ w }",
                "w", "n ");
    epi_module *m = parsed(ctx, CENTRED("c*r*g")),
               *lean = m ? derived(epi_module_program(m, 0), "x w", epi_program_grad_lean) : NULL;
    for (int t = 0; lean && t < epi_module_program(lean, 1)->graph.input_count; t++)
        check(strcmp(tensor_name(epi_module_program(lean, 1), t), "n") != 0,
              "rows are made again where memory comes first");
    epi_module_free(lean);
    epi_module_free(m);
#undef CENTRED
}

/* Places are saved: of what is made again they could be others. 16 bits do not hold them, a result of other
 * types does. */
static void test_places(void) {
#define CHOSEN(result, places) \
    "f(x[T,E]) -> (" result "y[T]) { e = " places "  y = sum(sin(gather(x, e, E)), K) }"
    check_taken(CHOSEN("", "topk(tanh(x), E, K=2)"), "x", "e saved ");
    check_taken(CHOSEN("", "again(topk(tanh(x), E, K=2))"), "x", "e saved ");
    check_taken(CHOSEN("e: i64[T,K], ", "topk(tanh(x), E, K=2)"), "x", "e saved ");
    check_taken(CHOSEN("e: f32[T,K], ", "topk(tanh(x), E, K=2)"), "x", "e saved ");
    check_taken(CHOSEN("e[T,K], ", "topk(tanh(x), E, K=2)"), "x", "e_2 saved ");
#undef CHOSEN
}

static void test_choice(void) {
    /* a result that suffices is taken, and the product it was made of is not saved */
    check_taken("f(x[T,D], w[F,D]) -> y[T,F] { z = x @ w  y = sigmoid(z) }", "x", "w y ");
    check_taken("f(x[T,D], w[F,D]) -> y[T,F] { z = x @ w  y = silu(z) }", "x", "w z ");
    check_taken("f(x[T,D], w[F,D]) -> y[T,F] { z = again(x @ w)  y = silu(z) }", "x", "x w ");
    check_taken("f(x[T,D], w[F,D]) -> y[T,F] { z = x @ w  s = keep(sigmoid(z))  y = z*s }", "x", "w z s ");
    check_taken("f(x[T,D]) -> y[T,D] { y = softmax(x, D) }", "x", "y ");
    check_taken("f(x[T,D]) -> y[T,D] { y = log_softmax(x, D) }", "x", "y ");
    /* statistics are saved, what is elementwise is made again, and a vector as late as it can be */
    check_taken("f(x[T,D], g[D]) -> y[T,D] { r = rsqrt(mean(x*x, D) + 0.1)  n = x*r  y = n*g }", "x",
                "x g r ");
    check_taken("f(x[T,D], g[D]) -> y[T,D] { r = rsqrt(mean(x*x, D) + 0.1)  n = keep(x*r)  y = n*g }", "g",
                "n ");
    test_passed();
    test_places();
    test_row_axes();
    check_taken("f(x[T,D], g[D]) -> y[T,D] { r = again(rsqrt(again(mean(x*x, D)) + 0.1))  y = x*r*g }", "x",
                "x g ");
}

/* What goes from the forward to the backward has the axes that the program declares. */
static void test_saved_axes(void) {
    static const char text[] =
        "f(x[B,S,D], wq[E,D], wk[E,D], wv[E,D]) -> o[B,S,E] { q = x @ wq  c = rename(x, S, R)\n"
        "  k = c @ wk  v = rename(c @ wv, R, U)  s = where(index(R) <= index(S), sum(q*k, E), -inf)\n"
        "  o = sum(softmax(rename(s, R, U), U)*v, U) }";
    check_saved_text(ctx, text, NULL, "k[B,S,E]", "B,R");
    check_saved_text(ctx, text, NULL, "(o[B,S,E], q[B,S,E], ", "B,U");
    check_text(text, "B=2,S=3,D=4,E=2", 11);
}

/* What is kept is not made again, so nothing that it is made of is saved for the sake of a statistic. */
static void test_saved_once(void) {
    static const char text[] = "f(x[T,D], w[F,D]) -> y[T,F] {\n"
                               "  q = (x*rsqrt(mean(x*x, D) + 1)) @ w  r = keep(exp(q))  y = r*r + r }";
    check_saved_text(ctx, text, NULL, "r[T,F]) {", " q[T,F]");
    check_text(text, "T=3,D=4,F=2", 11);
}

/* ---- forward and backward in one program ---- */

static bool depends_on_cotangent(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    bool yes = n->op == EPI_OP_INPUT && g->tensors[n->tensor].cotangent;
    for (int a = 0; a < 3 && !yes; a++)
        yes = n->arg[a] != EPI_NO_NODE && depends_on_cotangent(g, n->arg[a]);
    return yes;
}

/* A part that stores a result of the forward reads nothing of the backward, and the forward's parts come
 * first. */
static void check_directions(const epi_kernel *k, const epi_program *p) {
    bool backward = false;
    for (int q = 0; q < k->cut.part_count; q++) {
        const epi_part *part = &k->cut.parts[q];
        bool reads = false, stores = false;
        for (int t = 0; t < part->graph.tensor_count; t++) {
            epi_part_tensor at = part->tensors[t];
            int node = at.tensor >= 0 ? p->graph.tensors[at.tensor].node : k->cut.values[at.value].node;
            bool back = depends_on_cotangent(&p->graph, node);
            reads |= t < part->graph.input_count && back;
            stores |= t >= part->graph.input_count && at.tensor >= 0 && !back;
        }
        check(!(reads && stores), "%s: part %d is forward or backward", epi_program_name(p), q + 1);
        check(!(backward && stores), "%s: part %d comes before the backward", epi_program_name(p), q + 1);
        backward |= reads;
    }
}

static void test_directions(void) {
    static const char text[] =
        "half(x[T,D], g[D], w[F,D]) -> z[T,F] { n = rmsnorm(x, g, 0.1)  z = gelu(n @ w) }\n"
        "both(x[T,D], g[D], w[F,D], dz: cotangent[T,F]) -> (z[T,F], dx[T,D], dg: f32[D], dw[F,D]) {\n"
        "  z = half(x, g, w)  dx, dg, dw = grad(half, x, g, w)(x, g, w, dz) }\n"
        "loss(z[T,V], y: i32[T], ignore: i32, dl: cotangent f32[T]) -> (l: f32[T], dz[T,V]) {\n"
        "  l, lse = token_loss(z, y, ignore)  dz = grad(token_loss, z)(z, y, ignore, dl, 0*dl) }\n"
        "at_once(z[T,V], y: i32[T], ignore: i32, dl: f32[T]) -> (l: f32[T], dz[T,V]) {\n"
        "  l, lse = token_loss(z, y, ignore)  dz = grad(token_loss, z)(z, y, ignore, dl, 0*dl) }\n";
    static const struct {
        const char *name, *dims;
        int parts;
    } cases[] = {{"both", "T=64,D=128,F=256", 5}, {"loss", "T=64,V=128", 2}, {"at_once", "T=64,V=128", 1}};
    epi_module *m = parsed(ctx, text);
    for (int i = 0; i < 3 && m; i++) {
        const epi_program *p = epi_module_find(m, cases[i].name);
        epi_kernel *k = kernel_of(p, cases[i].dims, (way){0});
        if (!k)
            continue;
        check(k->part_count == cases[i].parts, "%s has %d parts, not %d", cases[i].name, k->part_count,
              cases[i].parts);
        check_directions(k, p);
        epi_kernel_free(k);
    }
    epi_module_free(m);
}

/* ---- an epilogue that joins the product its gradient comes from ---- */

/* Are two values the same, node by node, up to the order of the operands of * and +? Inputs are matched by
 * name, d_y with dy. */
static bool same_value(const epi_graph *g, int a, const epi_graph *h, int b) {
    if (a == EPI_NO_NODE || b == EPI_NO_NODE)
        return a == b;
    const epi_node *x = &g->nodes[a], *y = &h->nodes[b];
    if (x->op != y->op || x->value != y->value || x->over.count != y->over.count)
        return false;
    if (x->op == EPI_OP_INPUT) {
        const char *name = g->tensors[x->tensor].name, *other = h->tensors[y->tensor].name;
        return !strcmp(name, other) || (!strcmp(name, "d_y") && !strcmp(other, "dy"));
    }
    bool same = true, swapped = x->op == EPI_OP_MUL || x->op == EPI_OP_ADD;
    for (int i = 0; i < 3 && same; i++)
        same = same_value(g, x->arg[i], h, y->arg[i]);
    return same ||
           (swapped && same_value(g, x->arg[0], h, y->arg[1]) && same_value(g, x->arg[1], h, y->arg[0]));
}

static void test_kernel_10(const char *folder) {
    static const char text[] = "f(z[T,2*F], w[D,F]) -> y[T,D] { y = swiglu_gate_pairs(z) @ w }\n";
    epi_module *m = parsed(ctx, text), *hand, *own = m ? gradient_of(epi_module_program(m, 0), "z") : NULL;
    const epi_program *by_hand = open_program(folder, "swiglu_backward", "swiglu_backward", &hand);
    if (own && by_hand) {
        const epi_graph *g = &epi_module_program(own, 0)->graph, *h = &by_hand->graph;
        double bytes;
        check(same_value(g, g->tensors[g->input_count].node, h, h->tensors[h->input_count].node),
              "the gradient through SwiGLU and the down projection is kernel 10's, node by node");
        check(count_parts(epi_module_program(own, 0), "T=512,D=256,F=512", false, &bytes) == 1,
              "it is one part");
    }
    epi_module_free(m);
    epi_module_free(own);
    epi_module_free(hand);
}

/* ---- gradients that are added up in place ---- */

static void run_in_place(const char *text, const char *dims, epi_dtype type, int output, int input) {
    epi_module *m = parsed(ctx, text);
    const epi_program *program = m ? epi_module_program(m, epi_module_count(m) - 1) : NULL;
    const way how = {.type = type, .seed = 4};
    ran p, q = {0};
    if (program && run_as(&p, program, dims, how) && made(&q, program, dims, how)) {
        check(epi_kernel_in_place(q.k, output, input), "%s: %d may lie over %d", text, output, input);
        q.p.args[output] = q.p.args[input];
        run_again(&q);
        check(same_bits(&p.p.t[output], &q.p.t[input]), "%s: in place and apart have the same bits", text);
    }
    discard(&p);
    discard(&q);
    epi_module_free(m);
}

static void test_accumulation(void) {
    static const char linear[] = "f(dy[T,F], x[T,D], dw0: f32[F,D]) -> dw: f32[F,D] { dw = dw0 + dy @ x }\n",
                      stored[] = "f(dy[T,F], x[T,D], dw0[F,D]) -> dw[F,D] { dw = dw0 + dy @ x }\n",
                      block[] = "m(x[T,D], w[F,D], v[D,F]) -> y[T,D] { y = gelu(x @ w) @ v }\n"
                                "f(x[T,D], w[F,D], v[D,F], dy: cotangent[T,D], dw0: f32[F,D])\n"
                                "    -> (dx[T,D], dw: f32[F,D]) {\n"
                                "  dx, dw1 = grad(m, x, w)(x, w, v, dy)  dw = dw0 + dw1 }\n",
                      no[] =
                          "f(dy[T,F], x[T,D], d0[F,D]) -> (a[F,D], b[F,D]) { a = d0 + dy @ x  b = d0*a }\n";
    for (int type = EPI_F32; type <= EPI_F16; type++) {
        run_in_place(linear, "T=131,D=157,F=301", (epi_dtype)type, 3, 2);
        run_in_place(stored, "T=131,D=157,F=301", (epi_dtype)type, 3, 2);
        run_in_place(block, "T=67,D=157,F=301", (epi_dtype)type, 6, 4);
    }
    epi_kernel *k = text_kernel(ctx, no, "T=8,D=8,F=8", (way){0});
    check(k && !epi_kernel_in_place(k, 3, 2) && !epi_kernel_in_place(k, 4, 2) &&
              !epi_kernel_in_place(k, 3, 0),
          "not over an input that is read twice, nor over an operand");
    epi_kernel_free(k);
}

int main(int argc, char **argv) {
    epi_error err;
    if (!check(epi_context_open(&ctx, &err) == EPI_OK, "a context opens"))
        return finish();
    test_maps();
    test_large();
    test_others();
    test_relocated();
    test_vanishing();
    if (argc > 1) {
        for_texts(argv[1], test_file);
        test_by_hand(argv[1]);
        test_kernel_10(argv[1]);
    }
    test_choice();
    test_saved_axes();
    test_saved_once();
    test_directions();
    test_accumulation();
    check_random_programs(ctx, argc > 2 ? atoi(argv[2]) : 100, check_program);
    epi_context_close(ctx);
    return finish();
}
