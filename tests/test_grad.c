/* test_grad.c: derived gradients. Every operation, every program of a folder and random programs are held
 * against central differences in f64; derived programs print as programs that parse to the same graph.
 *
 *     grad [programs] [rounds] [first seed] */
#include <dirent.h>

#include "random_program.h"
#include "run/run.h"

static epi_context *ctx;

/* ---- one program ---- */

/* Numbers in f64: between -1 and 1 for matrices, 0.5 and 1.5 for vectors, 0.2 and 0.8 for scalars; indices in
 * their axis, other integers from -1 to 2. */
static void fill(problem *p, uint64_t seed) {
    for (int i = 0; i < p->inputs; i++) {
        tensor *t = &p->t[i];
        uint64_t s = seed * 1000003 + (uint64_t)i;
        for (int64_t e = 0; e < t->shape.count; e++) {
            double u = random_unit(&s);
            int below = (int)t->shape.index_below;
            double x = t->shape.type == EPI_I32
                           ? (below > 0 ? random_below(&s, below) : random_below(&s, 4) - 1)
                       : t->shape.rank == 0 ? 0.2 + 0.6 * u
                       : t->shape.rank == 1 ? 0.5 + u
                                            : 2 * u - 1;
            put_element(t->data, t->shape.type, e, x);
        }
    }
}

/* The inputs that have a gradient; `without` may be letters that name others to leave out. */
static int float_inputs(const epi_program *program, const char *without, const char **names) {
    int count = 0;
    for (int t = 0; t < program->graph.input_count; t++) {
        const epi_tensor_decl *d = &program->graph.tensors[t];
        if ((!d->has_type || d->type != EPI_I32) && !(without && !d->name[1] && strchr(without, *d->name)))
            names[count++] = d->name;
    }
    return count;
}

/* The print of the derived program parses, and prints as it was. */
static void check_print(const epi_program *program, const char **names, int count, const char *label) {
    epi_module *derived, *again;
    epi_error err;
    if (!check(epi_program_grad(program, names, count, &derived, &err) == EPI_OK, "%s is derived: %s", label,
               err.message))
        return;
    epi_text first = {0}, second = {0};
    static char printed[1 << 17]; /* as it was derived */
    const epi_program *program_of = epi_module_program(derived, 0);
    epi_program_print(program_of, printed, sizeof printed);
    epi_graph_print(&program_of->graph, epi_program_name(program_of), &first);
    check(!strcmp(printed, first.data), "%s: the derived graph parses to itself:\n%s\n%s", label, printed,
          first.data);
    epi_text_free(&first);
    epi_graph_print(&epi_module_program(derived, 0)->graph, "f", &first);
    if (check(epi_module_parse(ctx, first.data, first.length, "print", &again, &err) == EPI_OK,
              "%s: the derived program parses: %s\n%s", label, err.message, first.data)) {
        epi_graph_print(&epi_module_program(again, 0)->graph, "f", &second);
        check(!strcmp(first.data, second.data), "%s: it prints as it was:\n%s\n%s", label, first.data,
              second.data);
        check(epi_module_program(derived, 0)->graph.node_count ==
                  epi_module_program(again, 0)->graph.node_count,
              "%s: its graph is the same", label);
        epi_module_free(again);
    }
    epi_text_free(&first);
    epi_text_free(&second);
    epi_module_free(derived);
}

/* Gradients by all inputs that have one, or by all but some. */
static void check_program(const epi_program *program, const char *dims, const char *without, uint64_t seed,
                          const char *label) {
    char store[EPI_MAX_DIMS][16];
    epi_dim_binding bindings[EPI_MAX_DIMS];
    epi_type_binding types[MAX_TENSORS];
    const char *names[EPI_MAX_TENSORS];
    epi_options o = {.dims = bindings, .path = EPI_PATH_REFERENCE, .types = types};
    epi_error err;
    epi_kernel *k;
    o.dim_count = parse_dims(dims, bindings, store);
    for (int t = 0; t < program->graph.tensor_count; t++)
        if (!program->graph.tensors[t].has_type || program->graph.tensors[t].type != EPI_I32)
            types[o.type_count++] = (epi_type_binding){program->graph.tensors[t].name, EPI_F64};
    if (!check(epi_kernel_compile(program, &o, &k, &err) == EPI_OK, "%s compiles: %s", label, err.message))
        return;
    problem p;
    epi_gradcheck got = {0};
    int count = float_inputs(program, without, names);
    problem_make(&p, program, k, LAYOUT_PLAIN);
    fill(&p, seed);
    epi_status status = epi_program_gradcheck(program, names, count, &o, p.args, seed, &got, &err);
    check(status == EPI_OK, "%s: %s", label, err.message);
    check(status != EPI_OK || (got.compared > 0 && got.off <= 1),
          "%s: by %s, element %ld: %.9g derived, %.9g by differences, %g times what is allowed", label,
          got.input < 0 ? "nothing" : program->graph.tensors[got.input].name, (long)got.element, got.derived,
          got.numeric, got.off);
    check_print(program, names, count, label);
    problem_free(&p);
    epi_kernel_free(k);
}

static void check_text(const char *text, const char *dims, uint64_t seed) {
    epi_module *m;
    epi_error err;
    if (!check(epi_module_parse(ctx, text, strlen(text), "test", &m, &err) == EPI_OK, "%s parses: %s", text,
               err.message))
        return;
    check_program(epi_module_program(m, epi_module_count(m) - 1), dims, NULL, seed, text);
    epi_module_free(m);
}

/* ---- every operation ---- */

static void test_maps(void) {
    for (int op = 0; op < EPI_OP_COUNT; op++) {
        const epi_op_row *row = &epi_ops[op];
        char text[400], call[200];
        if (row->cls != EPI_CLASS_MAP || op == EPI_OP_DITHER) /* its derivative is that of its mean */
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
        {"f(x[P,D], z[S,D]) -> y[S,D] { y = z*x[index(S)] }", "P=4,D=3,S=3"},
        {"f(x[T,D], i: i32[T]) -> y[V,D] { y = scatter(x, i, V)**2 }", "V=4,D=3,T=5"},
        {"f(x[D], i: i32[T]) -> y[V,D] { y = scatter(x, i, V)**2 }", "V=4,D=3,T=5"},
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
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_text(cases[i].text, cases[i].dims, 7 + i);
}

/* ---- programs ---- */

static int size_of_dim(const char *name) {
    static const struct {
        const char *name;
        int size;
    } sizes[] = {{"D", 4}, {"F", 4}, {"E", 3}, {"T", 5}, {"V", 6}, {"P", 7}, {"N", 6}, {"R", 6}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(name, sizes[i].name))
            return sizes[i].size;
    return 3;
}

static void test_file(const char *path) {
    size_t length;
    char *text = read_whole(path, &length);
    epi_module *m;
    epi_error err;
    if (check(text && epi_module_parse(ctx, text, length, path, &m, &err) == EPI_OK, "%s parses", path)) {
        for (int i = 0; i < epi_module_count(m); i++) {
            const epi_program *p = epi_module_program(m, i);
            char dims[400] = "", label[800];
            for (int d = 0; d < epi_program_dim_count(p); d++)
                snprintf(dims + strlen(dims), sizeof dims - strlen(dims), "%s%s=%d", d ? "," : "",
                         epi_program_dim(p, d), size_of_dim(epi_program_dim(p, d)));
            snprintf(label, sizeof label, "%s:%s", path, epi_program_name(p));
            if (strstr(label, "adamw_bf16")) /* dither jumps; its derivative is that of its mean */
                continue;
            check_program(p, dims, NULL, (uint64_t)i + 3, label);
        }
        epi_module_free(m);
    }
    free(text);
}

static void test_folder(const char *folder) {
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (strstr(e->d_name, ".epi"))
            test_file(path);
    }
    if (check(dir != NULL, "%s can be read", folder))
        closedir(dir);
}

/* ---- random programs ---- */

static void test_random(int rounds, int first) {
    int before = failed_count, left_out = 0;
    for (int i = first; i < first + rounds; i++) {
        maker m;
        epi_module *module;
        epi_error err;
        char dims[100], label[200];
        bool rows = i % 3 == 0;
        (rows ? make_rows_program : make_program)(&m, (uint64_t)i);
        if (!check(epi_module_parse(ctx, m.text, strlen(m.text), "random", &module, &err) == EPI_OK,
                   "seed %d: %s\n%s", i, err.message, m.text))
            continue;
        int at =
            snprintf(dims, sizeof dims, "B=%d,S=%d,H=%d,D=%d", 1 + random_below(&m.s, 2),
                     1 + random_below(&m.s, 3), 1 + random_below(&m.s, 2), 2 + 2 * random_below(&m.s, 2));
        if (!rows)
            snprintf(dims + at, sizeof dims - (size_t)at, ",K=%d", 1 + random_below(&m.s, 3));
        snprintf(label, sizeof label, "seed %d, %s", i, dims);
        int failed = failed_count;
        /* an index that shares an axis with what it takes from and has the one that it counts along */
        bool twice = strstr(m.text, "gather(r, ids, S)") || strstr(m.text, "gather(t, ids, S)");
        left_out += twice;
        check_program(epi_module_program(module, 0), dims, twice ? "rt" : NULL, (uint64_t)i, label);
        if (failed_count > failed)
            printf("%s", m.text);
        epi_module_free(module);
    }
    printf("%d random programs from seed %d, %d of them not by what gather takes from, %d failed checks\n",
           rounds, first, left_out, failed_count - before);
}

int main(int argc, char **argv) {
    epi_error err;
    if (!check(epi_context_open(&ctx, &err) == EPI_OK, "a context opens"))
        return finish();
    test_maps();
    test_others();
    if (argc > 1)
        test_folder(argv[1]);
    test_random(argc > 2 ? atoi(argv[2]) : 100, argc > 3 ? atoi(argv[3]) : 1);
    epi_context_close(ctx);
    return finish();
}
