/* test_algebra.c: the algebra. Every program of a folder, its gradients, layers of models and random
 * programs: what the rules make of them is, as a text that is parsed again, the same in f64.
 *
 *     algebra [programs] [tests/models.epi] [rounds] */
#include "in_f64.h"
#include "random_program.h"

static epi_context *ctx;

/* ---- one program ---- */

/* The rewritten program as a module of its own; NULL after a failed check. */
static epi_module *rewrite(const epi_program *program, const char *dims, unsigned without,
                           epi_algebra_log *log, const char *label) {
    char store[EPI_MAX_DIMS][16];
    epi_dim_binding bindings[EPI_MAX_DIMS];
    epi_options o = EPI_OPTIONS(.dims = bindings);
    epi_arena arena = {0};
    epi_spec spec;
    epi_error err;
    epi_module *m = NULL;
    epi_graph g = {.arena = &arena};
    epi_text text = {0};
    o.dim_count = program_dims(program, dims, bindings, store);
    if (check(epi_spec_bind(&arena, program, &o, NULL, &spec, &err) == EPI_OK, "%s: %s", label,
              err.message)) {
        epi_algebra_rewrite(&spec, &(epi_algebra_choice){.without = without}, &g, log);
        if (check(!epi_graph_failed(&g), "%s is rewritten: %s", label, g.error.message)) {
            epi_graph_print(&g, epi_program_name(program), &text);
            m = parsed(ctx, text.data);
        }
    }
    epi_text_free(&text);
    epi_arena_free(&arena);
    return m;
}

static int applied_in_all[EPI_RULE_COUNT];

static void check_program(const epi_program *program, const char *dims, uint64_t seed, const char *label) {
    epi_algebra_log log;
    int failed = failed_count;
    epi_module *m = rewrite(program, dims, 0, &log, label);
    ran a, b = {0};
    if (!m)
        return;
    for (int i = 0; i < EPI_RULE_COUNT; i++)
        applied_in_all[i] += log.applied[i];
    if (run_as(&a, program, dims, in_f64(seed)) && made(&b, epi_module_program(m, 0), dims, in_f64(seed))) {
        for (int t = 0; t < a.p.inputs; t++)
            copy_elements(&a.p.t[t], &b.p.t[t]);
        run_again(&b);
        for (int t = a.p.inputs; t < a.p.count; t++) {
            double off = off_in_f64(&b.p.t[t], &a.p.t[t]);
            check(off <= 1e-12, "%s: %s is off by %g", label, tensor_name(program, t), off);
        }
    }
    discard(&a);
    discard(&b);
    if (failed_count > failed) {
        static char text[1 << 17];
        epi_program_print(epi_module_program(m, 0), text, sizeof text);
        printf("%s\n", text);
    }
    epi_module_free(m);
}

/* Its gradients by all inputs that have one. */
static void check_gradients(const epi_program *program, const char *dims, uint64_t seed, const char *label) {
    const char *names[MAX_TENSORS];
    char name[1000];
    int count = number_inputs(program, true, names, MAX_TENSORS);
    epi_module *m;
    if (!count || epi_program_grad(program, names, count, &m, NULL) != EPI_OK)
        return;
    snprintf(name, sizeof name, "the gradients of %.900s", label);
    check_program(epi_module_program(m, 0), dims, seed, name);
    epi_module_free(m);
}

static void check_with_gradients(const epi_program *p, const char *dims, uint64_t seed, const char *label) {
    check_program(p, dims, seed, label);
    check_gradients(p, dims, seed, label);
}

static void test_file(const char *path) {
    epi_module *m = parsed_file(ctx, path);
    for (int i = 0; m && i < epi_module_count(m); i++) {
        const epi_program *p = epi_module_program(m, i);
        char dims[400], label[800];
        small_sizes(p, dims, sizeof dims);
        snprintf(label, sizeof label, "%s:%s", path, epi_program_name(p));
        if (wanted("%s", label))
            check_with_gradients(p, dims, (uint64_t)i + 3, label);
    }
    epi_module_free(m);
}

/* ---- random layers ---- */

/* A text of a few layers: norms, products, gates, softmaxes and rotations in any order, and a program that
 * has it and its gradients by everything in it. */
typedef struct layers {
    uint64_t s;
    char body[8192], inputs[2048], names[1024], gradients[1024], outputs[2048];
    int weights, values;
} layers;

static void weight(layers *m, const char *axes, char *name, size_t size) {
    snprintf(name, size, "w%d", m->weights++);
    ADD(m->inputs, ", %s[%s]", name, axes);
    ADD(m->names, ", %s", name);
    ADD(m->gradients, ", d_%s", name);
    ADD(m->outputs, ", d_%s[%s]", name, axes);
}

/* A value of h[T,D] normalised, or not; its name. */
static void normed(layers *m, const char *h, char *out, size_t size) {
    char g[16], b[16];
    int kind = random_below(&m->s, 5), v = m->values++;
    snprintf(out, size, "n%d", v);
    if (kind > 0)
        weight(m, "D", g, sizeof g);
    if (kind == 0)
        ADD(m->body, "    n%d = %s*rsqrt(mean(%s*%s, D) + 0.1)\n", v, h, h, h);
    else if (kind == 1)
        ADD(m->body, "    n%d = %s*rsqrt(mean(%s*%s, D) + 0.1)*%s\n", v, h, h, h, g);
    else if (kind == 2)
        ADD(m->body, "    n%d = %s*%s/sqrt(sum(%s*%s, D) + 0.1)\n", v, h, g, h, h);
    else if (kind == 3) {
        weight(m, "D", b, sizeof b);
        ADD(m->body, "    c%d = %s - mean(%s, D)\n    n%d = c%d*rsqrt(mean(c%d*c%d, D) + 0.1)*%s + %s\n", v,
            h, h, v, v, v, v, g, b);
    } else {
        ADD(m->body, "    n%d = %s*%s\n", v, h, g);
    }
}

static void add_layer(layers *m, char *h, size_t size) {
    char n[16], a[16], b[16], c[16], d[16];
    int v = m->values++, kind = random_below(&m->s, 7);
    normed(m, h, n, sizeof n);
    if (kind == 0) { /* two linear layers with a bias */
        weight(m, "F,D", a, sizeof a), weight(m, "D,F", b, sizeof b), weight(m, "F", c, sizeof c);
        ADD(m->body, "    y%d = gelu(%s @ %s + %s) @ %s\n", v, n, a, c, b);
    } else if (kind == 1) { /* gated */
        weight(m, "F,D", a, sizeof a), weight(m, "F,D", b, sizeof b), weight(m, "D,F", c, sizeof c);
        ADD(m->body, "    y%d = (silu(%s @ %s)*(%s @ %s)) @ %s\n", v, n, a, n, b, c);
    } else if (kind == 2) { /* rotated */
        weight(m, "D,F", b, sizeof b);
        weight(m, "F,D", a, sizeof a);
        ADD(m->body, "    p%d, q%d = pairs(%s @ %s, F)\n", v, v, n, a);
        ADD(m->body, "    y%d = join(p%d*cs - q%d*sn, p%d*sn + q%d*cs, F) @ %s\n", v, v, v, v, v, b);
    } else if (kind == 3) { /* attention over itself */
        weight(m, "F,D", a, sizeof a), weight(m, "F,D", b, sizeof b), weight(m, "F,D", c, sizeof c);
        weight(m, "D,F", d, sizeof d);
        ADD(m->body, "    k%d = rename(%s, T, R)\n", v, n);
        ADD(m->body, "    s%d = sum((%s @ %s)*(k%d @ %s), F)\n", v, n, a, v, b);
        ADD(m->body, "    y%d = (softmax(s%d, R) @ (k%d @ %s)) @ %s\n", v, v, v, c, d);
    } else if (kind == 4) { /* a softmax over features, and one product after another */
        weight(m, "F,D", a, sizeof a), weight(m, "D,F", b, sizeof b);
        ADD(m->body, "    y%d = softmax(%s @ %s, F) @ %s\n", v, n, a, b);
    } else if (kind == 5) { /* two products and nothing between */
        weight(m, "R2,D", a, sizeof a), weight(m, "D,R2", b, sizeof b);
        ADD(m->body, "    y%d = (%s @ %s) @ %s\n", v, n, a, b);
    } else { /* normalised after the product */
        weight(m, "F,D", a, sizeof a), weight(m, "D,F", b, sizeof b);
        ADD(m->body, "    t%d = (%s @ %s) @ %s\n    y%d = t%d*rsqrt(mean(t%d*t%d, D) + 0.1)\n", v, n, a, b, v,
            v, v, v);
    }
    if (random_below(&m->s, 4))
        ADD(m->body, "    h%d = %s + y%d\n", v, h, v);
    else
        ADD(m->body, "    h%d = y%d\n", v, v);
    snprintf(h, size, "h%d", v);
}

/* The program t of forward and gradients. */
static void make_layers(layers *m, uint64_t seed, char *text, size_t size) {
    char h[16] = "x";
    *m = (layers){.s = seed * 7919 + 1};
    for (int i = 0, n = 1 + random_below(&m->s, 4); i < n; i++)
        add_layer(m, h, sizeof h);
    snprintf(text, size,
             "f(x[T,D], cs[T,F/2], sn[T,F/2]%s) -> h[T,D] {\n%s    h = %s\n}\n"
             "t(x[T,D], cs[T,F/2], sn[T,F/2]%s, dh: cotangent[T,D]) -> (h[T,D], d_x[T,D]%s) {\n"
             "    h = f(x, cs, sn%s)\n    d_x%s = grad(f, x%s)(x, cs, sn%s, dh)\n}\n",
             m->inputs, m->body, h, m->inputs, m->outputs, m->names, m->gradients, m->names, m->names);
}

/* Its forward and its backward as two programs: the gradients by all inputs but integers, and but for two of
 * these names. */
static epi_module *halves_of(const epi_program *p, const char *but, const char *nor) {
    char wrt[1000] = "";
    for (int t = 0; t < p->graph.input_count; t++) {
        const epi_tensor_decl *d = &p->graph.tensors[t];
        if (strcmp(d->name, but) && strcmp(d->name, nor) && !(d->has_type && epi_dtype_is_whole(d->type)))
            ADD(wrt, "%s ", d->name);
    }
    return derived(p, wrt, epi_program_grad_saved);
}

static void check_halves(const epi_program *p, uint64_t seed, const char *label) {
    epi_module *halves = halves_of(p, "cs", "sn");
    for (int i = 0; halves && i < epi_module_count(halves); i++) {
        char dims[100];
        small_sizes(epi_module_program(halves, i), dims, sizeof dims);
        check_program(epi_module_program(halves, i), dims, seed, label);
    }
    epi_module_free(halves);
}

static void test_layers(int count) {
    for (rounds r = rounds_of(count); next_round(&r);) {
        layers m;
        char text[20000], label[100], dims[100];
        int failed = failed_count;
        make_layers(&m, r.seed, text, sizeof text);
        snprintf(label, sizeof label, "layers of seed %lu", r.seed);
        epi_module *module = parsed(ctx, text);
        if (!module)
            continue;
        small_sizes(epi_module_program(module, 1), dims, sizeof dims);
        check_program(epi_module_program(module, 1), dims, r.seed, label);
        check_halves(epi_module_program(module, 0), r.seed, label);
        if (failed_count > failed)
            printf("%s", text);
        epi_module_free(module);
    }
}

/* ---- where a rule holds, and where it must not ---- */

/* The rewritten text of the last program, which the caller frees. */
static char *rewritten_text(const char *text, const char *dims, unsigned without, epi_algebra_log *log) {
    epi_module *m = parsed(ctx, text), *r = NULL;
    char *out = NULL;
    if (m) {
        const epi_program *p = epi_module_program(m, epi_module_count(m) - 1);
        check_program(p, dims, 11, text);
        r = rewrite(p, dims, without, log, text);
    }
    if (r && (out = calloc(1, 1 << 16)))
        epi_program_print(epi_module_program(r, 0), out, 1 << 16);
    epi_module_free(r);
    epi_module_free(m);
    return out;
}

#define NORM "c = x - mean(x, D)  n = c*rsqrt(mean(c*c, D) + 0.1)*g + b"
#define GRAD(inputs) \
    "t(" inputs \
    ", dz: cotangent[T,F]) -> (z[T,F], d_x[T,D]) { z = f(x, g, b, w)  d_x = grad(f, x)(x, g, b, w, dz) }"

/* A norm's backward by itself, with another result, what makes it, and what is added to the gradient. */
#define SIZES "T=3,D=4,F=5,V=6,C=2"
#define BACKWARD(result, is, more) \
    "f(x[T,D], g[D], w[F,D], v[F,V], r: f32[T], z[T,F], e[T,C], c[C,D], dy: cotangent[T,V]) -> (d_x[T,D], " \
    "d_w[F,D]" result ") { n = x*r*g  d_z = dy @ v  " \
    "d_x = (d_z @ w)*g*r - x*(r*r*sum(z*d_z, F)/size(D))" more "  d_w = d_z @ n" is " }"

static void test_rules(void) {
    static const struct {
        const char *text, *dims;
        unsigned without;
        const char *has, *lacks;
    } cases[] = {
        /* a scale goes past the product, a function does not */
        {"f(x[T,D], w[F,D]) -> z[T,F] { z = (x*rsqrt(mean(x*x, D) + 0.1)) @ w }", "T=3,D=4,F=5", 0,
         "(x @ w)*", "*w"},
        {"f(x[T,D], w[F,D]) -> z[T,F] { z = tanh(x*rsqrt(mean(x*x, D) + 0.1)) @ w }", "T=3,D=4,F=5", 0,
         "tanh(x*", "x @ w"},
        /* a factor that has the axis stays */
        {"f(x[T,D], g[D], w[F,D]) -> z[T,F] { z = (x*g) @ w }", "T=3,D=4,F=5", 0, "(x*g) @ w", "w*g"},
        /* the mean does not go past the product, and the variance is of what is left without it */
        {"f(x[T,D], g[D], w[F,D]) -> z[T,F] { c = x - mean(x, D)  z = (c*rsqrt(mean(c*c, D) + 0.1)*g) @ w }",
         "T=3,D=4,F=5", 0, "x - mean(x, D)", "x @ w"},
        {"f(x[T,D]) -> y[T] { y = mean((x - mean(x, D))**2, D) }", "T=3,D=4", 0, "x - mean(x, D)",
         "mean(x*x, D)"},
        {"f(x[T,D]) -> y[T] { y = var(x, D) }", "T=3,D=4", 0, "var(x, D)", "mean(x*x, D)"},
        /* LayerNorm's shift stays in the product, which then serves for no statistic */
        {"f(x[T,D], g[D], b[D], w[F,D]) -> z[T,F] { " NORM
         "  z = n @ w }\n" GRAD("x[T,D], g[D], b[D], w[F,D]"),
         "T=3,D=4,F=5", 0, "dz", "sum(z*dz"},
        /* a stored value with a bias does not serve for the one without */
        {"f(x[T,D], g[D], b[F], w[F,D]) -> z[T,F] { z = (x*rsqrt(mean(x*x, D) + 0.1)*g) @ w + b }\n" GRAD(
             "x[T,D], g[D], b[F], w[F,D]"),
         "T=3,D=4,F=5", 0, "dz", "z - b"},
        /* no division by what may be 0 */
        {"f(x[T,D], g[D], b[T], w[F,D]) -> z[T,F] { z = (x*b*g*rsqrt(mean(x*x, D) + 0.1)) @ w }\n" GRAD(
             "x[T,D], g[D], b[T], w[F,D]"),
         "T=3,D=4,F=5", 0, "dz", "/b"},
        /* one product after another, by the work it is: rows count as 1024 */
        {"f(x[T,D], a[R,D], b[F,R]) -> y[T,F] { y = (x @ a) @ b }", "T=3,D=8,R=64,F=8", 0, "x @ (a @ b)",
         "x @ a"},
        {"f(x[T,D], a[R,D], b[F,R]) -> y[T,F] { y = (x @ a) @ b }", "T=3,D=64,R=2,F=64", 0, "x @ a",
         "(a @ b)"},
        /* softmax's gradient through its own maximum, and sums of what is centred, vanish */
        {"f(x[T,D]) -> y[T] { y = sum(x - mean(x, D), D) }", "T=3,D=4", 0, "0", "sum("},
        /* integers are converted where the text does it */
        {"f(x: i32[T,D], w[F,D]) -> y[T,F] { y = (x + 0) @ w }", "T=3,D=4,F=5", 0, "(x + 0) @ w", "x @"},
        /* the cube of a normalised value is not that of a large one and a small one */
        {"f(x[T,D], w[F,D]) -> y[T,F] { n = (x*rsqrt(mean(x*x, D) + 0.1)) @ w  y = n*n*n }", "T=3,D=4,F=5", 0,
         "v2*v2*(v1*v1)*n", "v2*v2*v2"},
        /* x/x is 1 only where x is never 0 */
        {"f(x[T,D], r[T]) -> y[T,D] { y = x*r/r }", "T=3,D=4", 0, "/r", "y = x\n"},
        {"f(x[T,D], r[T]) -> y[T,D] { s = rsqrt(r)  y = x*s/s }", "T=3,D=4", 0, "y = x\n", "rsqrt"},
        /* nor infinite, as far as the text says */
        {"f(x[T,D], m[T,D]) -> y[T,D] { s = max(max(abs(where(m > 0, x, -inf)), D), 0.1)  y = x*s/s }",
         "T=3,D=4", 0, "/s", "y = x\n"},
        /* a scale of which nothing is known goes to the gradient where all that is made of it has the scale
         */
        {BACKWARD("", "", ""), SIZES, 0, "(v1 @ x)*g", "/r"},
        {BACKWARD("", "", ""), SIZES, 0, "r*sum(z*v1, F)", "/r"},
        {BACKWARD("", "", " + e @ c"), SIZES, 0, "v1 @ w", "/r"},
        /* and nowhere else */
        {BACKWARD(", d_b[D]", "  d_b = sum(d_z @ w, T)", ""), SIZES, 0, "d_z @ w", "/r"},
        {BACKWARD(", d_n[T,D]", "  d_n = d_z @ w", ""), SIZES, 0, "d_z @ w", "/r"},
        {BACKWARD(", q[T]", "  q = 1/r", ""), SIZES, 0, "d_z @ w", "v1 @ w"},
        /* a vector that is made of the product is not what the product is divided by */
        {"f(y[T,E], a[D,E], w[F,D], u[T,G]) -> (z[T,F], d[D,G]) { x = gelu(y @ a)  z = x @ w  "
         "d = (x*rsqrt(mean(z*z, F) + 0.1)) @ u }",
         "T=3,E=4,D=5,F=6,G=2", 0, "z = x @ w", "/rsqrt"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        epi_algebra_log log;
        char *got = rewritten_text(cases[i].text, cases[i].dims, cases[i].without, &log);
        const char *body = got ? strchr(got, '{') : NULL;
        check(body && strstr(body, cases[i].has) && !strstr(body, cases[i].lacks),
              "%s: has %s and lacks %s:\n%s", cases[i].text, cases[i].has, cases[i].lacks, got);
        free(got);
    }
}

/* ---- layers of models ---- */

/* Sizes for the plan, and sizes to run with. */
static const struct model {
    const char *name, *plan, *run;
    bool rewritten; /* where that is cheaper */
} models[] = {
    {"llama", "T=4096,D=4096,H=32,G=8,E=128,F=14336", "T=24,D=64,H=4,G=2,E=16,F=80", true},
    {"llama_head", "T=4096,D=4096,H=32,E=128,F=14336,V=128256", "T=24,D=64,H=4,E=16,F=80,V=100", true},
    {"qwen3", "T=4096,D=4096,H=32,G=8,E=128,F=14336", "T=24,D=64,H=4,G=2,E=16,F=80", true},
    {"gpt2", "T=4096,D=1600,H=25,E=64,F=6400", "T=24,D=64,H=4,E=16,F=80", false},
    {"gemma2", "T=4096,D=3584,H=16,G=8,E=256,F=14336", "T=24,D=64,H=4,G=2,E=16,F=80", false},
};
enum { MODELS = sizeof models / sizeof *models };

/* In 16 bits. Rows are tokens, also where the first input of a backward has heads. */
static way as_model(const char *dims, int device) {
    return (way){.type = EPI_BF16, .device = device, .rows = *dims == 'T' ? "T" : NULL};
}

/* The algebra is taken where the plan for Hopper is cheaper by it; tests/plans.txt has what it comes to. */
static void check_rewritten(const epi_program *program, const struct model *model) {
    epi_kernel *k = kernel_of(program, model->plan, as_model(model->plan, -90));
    check(k && k->rewriting.applies == model->rewritten, "%s is rewritten where that is cheaper",
          model->name);
    epi_kernel_free(k);
}

/* ---- hostile data ---- */

enum { PLAIN, MEANS, SCALES, OUTLIERS, ZEROS, KINDS };
static const char *const kind_names[] = {"plain", "rows of mean 1000", "rows of 1e-5 to 1e5",
                                         "three channels of 1e4", "zero rows"};

/* The first input, in all its rows, or what else has such rows. */
static void make_hostile(tensor *x, int kind) {
    int64_t rows = x->shape.sizes[0] * (x->shape.rank > 2 ? x->shape.sizes[1] : 1),
            cols = x->shape.count / rows;
    for (int64_t e = 0; e < x->shape.count; e++) {
        double v = get_element(x->data, x->shape.type, e);
        int64_t row = e / cols, col = e % cols;
        v = kind == MEANS      ? 1000 + v
            : kind == SCALES   ? v * pow(10, -5 + 10.0 * (double)row / (double)(rows - 1))
            : kind == OUTLIERS ? (col % (cols / 3) == 5 ? 1e4 * v : v)
            : kind == ZEROS    ? (row % 3 ? v : 0)
                               : v;
        put_element(x->data, x->shape.type, e, v);
    }
}

/* The kind of data that is filled in. */
static int hostile;

static void fill_hostile(problem *p, uint64_t seed) {
    problem_fill(p, seed);
    make_hostile(&p->t[0], hostile);
    for (int t = 1; t < p->inputs && hostile != OUTLIERS; t++) { /* and the scales that a backward takes */
        const epi_tensor_decl *d = &p->program->graph.tensors[t];
        if (!strncmp(d->name, "saved", 5) && d->has_type)
            make_hostile(&p->t[t], hostile);
    }
}

/* The rule over a few seeds together: the largest error of the one against the largest of the other. One draw
 * of few elements may be right by luck. */
static void check_hostile(const epi_program *program, const struct model *model, int kind) {
    enum { SEEDS = 5, MOST = 64 };
    double error[MOST] = {0}, bound[MOST] = {0}, worst = 0;
    int first = program->graph.input_count, count = program->graph.tensor_count;
    way how = as_model(model->run, 0);
    how.fill = fill_hostile;
    hostile = kind;
    for (how.seed = 1; how.seed <= SEEDS; how.seed++) {
        ran out, ref = {0}, naive = {0};
        bool ok =
            run_as(&out, program, model->run, how) && yardsticks(&ref, &naive, program, model->run, how);
        for (int t = first; t < count && ok; t++) {
            double e, b;
            within_rule(&out.p.t[t], &ref.p.t[t], &naive.p.t[t], EPI_BF16, out.p.terms, &e, &b);
            error[t - first] = fmax(error[t - first], e);
            bound[t - first] = fmax(bound[t - first], b);
        }
        discard(&out);
        discard(&ref);
        discard(&naive);
    }
    for (int t = first; t < count; t++) {
        worst = fmax(worst, error[t - first] / bound[t - first]);
        check(error[t - first] <= bound[t - first], "%s, %s: %s is off by %g, allowed %g", model->name,
              kind_names[kind], tensor_name(program, t), error[t - first], bound[t - first]);
    }
    printf("%s, %s: %.2f of what is allowed\n", model->name, kind_names[kind], worst);
}

/* A row's bits do not depend on the rows beside it. */
static void check_rows(const epi_program *program, const struct model *model) {
    char fewer[200];
    const char rows[] = {model->run[0], 0};
    const way how = as_model(model->run, 0);
    ran all, some = {0};
    snprintf(fewer, sizeof fewer, "%s=%d%s", rows, *rows == 'T' ? 7 : 1, strchr(model->run, ','));
    if (run_as(&all, program, model->run, how) && made(&some, program, fewer, how)) {
        for (int t = 0; t < some.p.inputs; t++) /* the first rows of all; weights as they are */
            memcpy(some.p.t[t].data, all.p.t[t].data,
                   (size_t)some.p.t[t].shape.count * epi_dtype_size(some.p.t[t].shape.type));
        run_again(&some);
        for (int t = some.p.inputs; t < some.p.count; t++) {
            const epi_axes *a = &program->graph.tensors[t].axes;
            if (a->count && strcmp(program->graph.dims[a->at[0].dim], rows) == 0)
                check(!memcmp(some.p.t[t].data, all.p.t[t].data,
                              (size_t)some.p.t[t].shape.count * epi_dtype_size(some.p.t[t].shape.type)),
                      "%s: %s has the same bits with fewer rows", model->name, tensor_name(program, t));
        }
    }
    discard(&all);
    discard(&some);
}

/* ---- beside the kernels written by hand ---- */

/* A part of a layer, found by tensors that it has, and a program of programs/ that is the same. What each
 * tensor of that one is: a tensor of the part by name; a value that the part loads, #1, or stores, by number;
 * two of them whose elements (or rows, for weights) take turns, a|b; or a number for all elements. Scales of
 * rows that the part has in other places are 1. */
static const struct by_hand {
    const char *model, *tensors[4], *program, *dims, *is[10];
} by_hand[] = {
    {"llama",
     {"x", "a", "wo"},
     "residual_rms",
     "T=24,K=64,D=64",
     {"a", "wo", "x", "g1", "0.00001", ">1", ">3", ">2"}},
    {"llama", {"wg", "wu", "!d_wg"}, "norm_swiglu", "T=24,D=64,F=160", {"#2", "wg|wu", "1", ">1|>2", ">3"}},
    {"llama", {"wq", "q"}, "norm_rope", "B=1,S=24,E=64,H=4,D=16", {"#2", "wq", "#1", "c", "s", "q"}},
    {"llama_head",
     {"wv", "y", "l"},
     "norm_cross_entropy",
     "T=24,D=64,V=100",
     {"#2", "wv", "1", "y", ">2", "l", ">3"}},
    {"llama_head",
     {"gf", "wv", "d_gf"},
     "rmsnorm_backward",
     "T=24,F=100,D=64",
     {"#2", "wv", "#1", "1", "gf", "#3", "0", ">2", NULL, "d_gf"}},
    {"llama",
     {"wd", "!g2", "!o"},
     "swiglu_backward",
     "T=24,D=64,F=80",
     {"#4", "wd", "#2|#3", ">2|>1", NULL, ">3"}},
};

static int part_tensor(const epi_graph *g, const char *name) {
    for (int t = 0; t < g->tensor_count; t++)
        if (!strcmp(g->tensors[t].name, name))
            return t;
    return -1;
}

/* The part of the kernel that has these tensors, and not those with a mark. */
static int find_part(const epi_kernel *k, const char *const *tensors) {
    for (int i = 0; i < k->part_count; i++) {
        bool all = true;
        for (int t = 0; t < 4 && tensors[t]; t++)
            all &= (part_tensor(&k->parts[i].part->graph, tensors[t] + (*tensors[t] == '!')) < 0) ==
                   (*tensors[t] == '!');
        if (all)
            return i;
    }
    return -1;
}

/* A tensor of the part as the table names it. Values are those that are no tensors of the program. */
static const tensor *named_tensor(const ran *part, const epi_part *of, const char *name) {
    int want = atoi(name + 1), first = name[0] == '>' ? part->p.inputs : 0;
    int past = name[0] == '>' ? part->p.count : part->p.inputs;
    if (name[0] != '#' && name[0] != '>') {
        int t = part_tensor(&part->program->graph, name);
        return t < 0 ? NULL : &part->p.t[t];
    }
    for (int t = first; t < past; t++)
        if (name[0] == '>' || of->tensors[t].tensor < 0)
            if (--want == 0)
                return &part->p.t[t];
    return NULL;
}

/* Element e of what the table says, of so many in a last axis; NaN where there is none such. */
static double said_element(const ran *part, const epi_part *of, const char *is, const tensor *hand,
                           int64_t e) {
    char name[2][40] = {"", ""};
    if (is[0] >= '0' && is[0] <= '9')
        return atof(is);
    sscanf(is, "%39[^|]|%39s", name[0], name[1]);
    const tensor *a = named_tensor(part, of, name[0]);
    if (!a || !name[1][0])
        return a && e < a->shape.count ? get_element(a->data, a->shape.type, e) : NAN;
    const tensor *b = named_tensor(part, of, name[1]);
    int64_t inner = name[0][0] == '#' || name[0][0] == '>' ? 1 : hand->shape.sizes[1]; /* elements, or rows */
    const tensor *from = e / inner % 2 ? b : a;
    return from ? get_element(from->data, from->shape.type, e / inner / 2 * inner + e % inner) : NAN;
}

/* Runs the part and the program on the same numbers. */
static void compare_by_hand(const struct by_hand *h, const epi_kernel *k, int index, const epi_program *hand,
                            const char *dims) {
    char text[1 << 14];
    const epi_part *of = k->parts[index].part;
    ran part = {0}, own = {0};
    epi_kernel_part_print(k, index, text, sizeof text);
    epi_module *m = parsed(ctx, text);
    if (m && made(&part, epi_module_program(m, 0), dims, in_f64(9)) && made(&own, hand, h->dims, in_f64(9))) {
        for (int t = 0; t < part.p.inputs; t++) /* scales of rows where the program has them elsewhere */
            if (of->tensors[t].tensor < 0 && part.p.t[t].shape.rank == 1 && strcmp(h->program, "norm_rope") &&
                strcmp(h->program, "rmsnorm_backward"))
                for (int64_t e = 0; e < part.p.t[t].shape.count; e++)
                    put_at(&part.p.t[t], e, 1);
        for (int t = 0; t < own.p.inputs; t++)
            for (int64_t e = 0; e < own.p.t[t].shape.count; e++)
                put_at(&own.p.t[t], e, said_element(&part, of, h->is[t], &own.p.t[t], e));
        check(problem_run(part.k, &part.p) && problem_run(own.k, &own.p), "%s: both run", h->program);
        for (int t = own.p.inputs; t < own.p.count; t++) {
            double worst = 0;
            for (int64_t e = 0; e < own.p.t[t].shape.count && h->is[t]; e++) {
                double want = get_element(own.p.t[t].data, EPI_F64, e),
                       got = said_element(&part, of, h->is[t], &own.p.t[t], e);
                worst = fmax(worst, isnan(got) ? INFINITY : fabs(got - want) / (1 + fabs(want)));
            }
            check(worst < 1e-12, "%s, %s of the part is off by %g:\n%s", h->program,
                  hand->graph.tensors[t].name, worst, text);
        }
    }
    discard(&part);
    discard(&own);
    epi_module_free(m);
}

static void test_by_hand(const char *folder, const epi_module *m) {
    for (size_t i = 0; i < sizeof by_hand / sizeof *by_hand; i++) {
        const struct by_hand *h = &by_hand[i];
        const struct model *model = models;
        char path[400];
        if (!wanted("%s in %s", h->program, h->model))
            continue;
        while (strcmp(model->name, h->model))
            model++;
        snprintf(path, sizeof path, "%s/%s.epi", folder, h->program);
        epi_module *programs = parsed_file(ctx, path);
        epi_kernel *k =
            kernel_of(epi_module_find(m, h->model), model->plan, (way){.type = EPI_BF16, .device = -90});
        int part = k ? find_part(k, h->tensors) : -1;
        if (check(part >= 0, "%s has a part that is %s", h->model, h->program) && programs)
            compare_by_hand(h, k, part, epi_module_find(programs, h->program), model->run);
        epi_kernel_free(k);
        epi_module_free(programs);
    }
}

/* ---- the backward by itself ---- */

/* As PyTorch runs it. */
static const struct half {
    const char *name;
    struct model model;
} halves[] = {
    {"mlp", {"mlp_backward", "T=4096,D=2048,F=8192", "T=24,D=64,F=80", true}},
    {"mlp_eps", {"mlp_eps_backward", "T=4096,D=2048,F=8192", "T=24,D=64,F=80", true}},
    {"llama_loss",
     {"llama_loss_backward", "T=4096,D=4096,H=32,E=128,F=14336,V=128256", "T=24,D=64,H=4,E=16,F=80,V=100",
      true}},
    {"llama_layer",
     {"llama_layer_backward", "T=4096,D=4096,H=32,G=8,E=128,F=14336", "T=24,D=64,H=4,G=2,E=16,F=80", true}},
    {"attention_layer",
     {"attention_layer_backward", "B=2,S=4096,D=2048,G=8,H=4,E=64,F=8192", "B=2,S=12,D=64,G=2,H=2,E=16,F=80",
      true}},
};

/* Each kind of data is a case, and so is what the rules make of it. A model's backward is derived where it is wanted. */
static void check_model(const epi_program *p, const struct model *model, bool backward) {
    epi_module *derived = NULL;
    for (int kind = check(p != NULL, "%s is there", model->name) ? -1 : KINDS; kind < KINDS; kind++) {
        if (!wanted("%s, %s", model->name, kind < 0 ? "as it is rewritten" : kind_names[kind]))
            continue;
        if (backward && !derived) {
            if (!(derived = halves_of(p, "c", "s")))
                return;
            p = epi_module_program(derived, 1);
        }
        if (kind >= 0) {
            check_hostile(p, model, kind);
            continue;
        }
        check_program(p, model->run, 5, model->name);
        check_rewritten(p, model);
        check_rows(p, model);
    }
    epi_module_free(derived);
}

static void test_models(const char *folder, const char *path) {
    epi_module *m = parsed_file(ctx, path);
    if (!m)
        return;
    for (int i = 0; i < MODELS; i++)
        check_model(epi_module_find(m, models[i].name), &models[i], false);
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
        check_model(epi_module_find(m, halves[i].name), &halves[i].model, true);
    test_by_hand(folder, m);
    epi_module_free(m);
}

int main(int argc, char **argv) {
    epi_error err;
    if (!check(epi_context_open(&ctx, &err) == EPI_OK, "a context opens"))
        return finish();
    test_rules();
    if (argc > 1)
        for_texts(argv[1], test_file);
    if (argc > 2)
        test_models(argv[1], argv[2]);
    check_random_programs(ctx, argc > 3 ? atoi(argv[3]) : 100, check_with_gradients);
    test_layers(argc > 3 ? atoi(argv[3]) : 100);
    for (int i = 0; i < EPI_RULE_COUNT; i++)
        printf("%s%s %d", i ? ", " : "applied: ", epi_rule_name((epi_algebra_rule)i), applied_in_all[i]);
    printf("\n");
    epi_context_close(ctx);
    return finish();
}
