/* test_prepare.c: params, and what is made of them once.
 *
 * Programs with inputs that are marked, with the mark and without it: both keep the error rule, and without
 * it nothing is prepared. What a run reads of params is what they were when it was prepared. Then open sizes,
 * paths that prepare nothing, the texts for GPUs, the mark in texts, and what is refused. */
#include "ran.h"

static epi_context *ctx;

#define FOLD(name, factor) \
    name "(x[T,D], a[T,E], wo: param[D,E], g: param[D], w: param[F,D]) -> (h[T,D], z[T,F]) {\n" \
         "    h = x + a @ wo\n    n = h*rsqrt(mean(h*h, D) + 1e-05)*" factor "\n    z = n @ w\n}\n"

static const struct text {
    const char *dims, *text;
    int parts;       /* of a run */
    const char *has; /* in the program as it is rewritten, with the mark and not without; or NULL */
} texts[] = {
    {"T=70,D=48,E=32,F=64", FOLD("fold", "g"), 2, "h @ (w*g)"},
    {"T=70,D=48,E=32,F=64", FOLD("gemma", "(1 + g)"), 2, "h @ (w*(1 + g))"}, /* the factor is no input */
    {"T=33,D=48,F=64,R=8",
     "lora(x[T,D], w: param[F,D], a: param[F,R], b: param[R,D], s: param) -> y[T,F] {\n"
     "    y = silu(x @ (w + s*(a @ b)))\n"
     "}\n",
     1, NULL},
    /* vectors of weights, made by reductions, for a tile and a row */
    {"T=33,D=48,F=64",
     "sums(x[T,D], w: param[F,D], b: param[D]) -> (y[T,F], z[T,D]) {\n"
     "    y = x @ w + b @ w\n"
     "    z = x*sum(w*w, F)\n"
     "}\n",
     2, NULL},
    /* a value that is a result as well, and one that is made in two steps */
    {"T=33,D=48,F=64,E=32",
     "results(x[T,D], w: param[F,D], v: param[E,D]) -> (y[T,F], n[F,D], q: f32[F]) {\n"
     "    n = w*rsqrt(mean(w*w, D) + 1e-05)\n"
     "    y = x @ n\n"
     "    q = sum(tanh(n @ v), E)\n"
     "}\n",
     0, NULL},
};

/* ---- one program ---- */

static void mark(epi_module *m, bool on, const epi_module *like) {
    epi_graph *g = &m->programs[0].graph;
    for (int t = 0; t < g->input_count; t++)
        g->tensors[t].param = on && like->programs[0].graph.tensors[t].param;
}

/* Runs with what was prepared before; outputs are filled with other bytes first. */
static epi_status run_prepared(const epi_kernel *k, problem *p, const void *prepared, epi_error *err) {
    void *work = aligned_alloc(64, epi_kernel_workspace(k));
    const epi_call call =
        EPI_CALL(.tensors = p->args, .count = p->count, .workspace = work, .prepared = prepared);
    memset(work, POISON, epi_kernel_workspace(k));
    poison_outputs(p);
    epi_status status = epi_kernel_call(k, &call, err);
    free(work);
    return status;
}

/* Params that change are seen when they are prepared again, and not before. */
static void check_changes(const epi_program *p, const char *dims, way how) {
    ran a, b = {0};
    void *old = NULL, *fresh = NULL;
    epi_error err = {0};
    const epi_graph *g = &p->graph;
    how.seed = 5;
    bool ok = made(&a, p, dims, how);
    how.seed = 6;
    if (made(&b, p, dims, how) && ok) {
        const epi_kernel *k = a.k;
        check(problem_prepare(k, &a.p, &old) && run_prepared(k, &a.p, old, &err) == EPI_OK, "it runs: %s",
              err.message);
        /* all that is prepared of a, and all that is not: its bits are a's */
        for (int t = 0; t < b.p.inputs; t++)
            if (!g->tensors[t].param)
                memcpy(b.p.t[t].data, a.p.t[t].data, tensor_bytes(&a.p.t[t]));
        bool only = true; /* no param is read by the run itself */
        for (int i = k->cut.prepared_parts; i < k->part_count; i++)
            for (int t = 0; t < k->parts[i].part->graph.input_count; t++) {
                int tensor = k->parts[i].part->tensors[t].tensor;
                only &= tensor < 0 || !g->tensors[tensor].param;
            }
        check(run_prepared(k, &b.p, old, &err) == EPI_OK && (!only || same_outputs(&a, &b)),
              "%s: a param that changes is not seen before it is prepared again", epi_program_name(p));
        check(problem_prepare(k, &b.p, &fresh) && run_prepared(k, &b.p, fresh, &err) == EPI_OK &&
                  !same_outputs(&a, &b),
              "%s: and it is seen then", epi_program_name(p));
        problem_fill(&b.p, 6);
        free(fresh);
        check(problem_prepare(k, &b.p, &fresh) && run_prepared(k, &b.p, fresh, &err) == EPI_OK, "it runs");
        hold_ran(&b, dims, how);
    }
    free(old);
    free(fresh);
    DISCARD(&a, &b);
}

static void check_text(const struct text *t, epi_dtype type) {
    epi_module *m = parsed(ctx, t->text), *other = parsed(ctx, t->text);
    const epi_program *p = epi_module_program(m, 0);
    const char *name = epi_program_name(p);
    const way how = {.type = type, .seed = 7}, padded = {.type = type, .seed = 7, .layout = LAYOUT_PADDED};
    char print[4096], told[8192];
    ran out, again, plain;
    bool ok = run_as(&out, p, t->dims, how);
    if (run_as(&again, p, t->dims, padded) && ok) {
        hold_ran(&out, t->dims, how);
        check(same_outputs(&out, &again), "%s: the bits are the same at each start, and in another layout",
              name);
    }
    epi_kernel_info info = info_of(out.k);
    epi_kernel_print(out.k, print, sizeof print);
    epi_kernel_describe(out.k, told, sizeof told);
    check(epi_kernel_prepare_size(out.k) > 0 && info.prepared > 0 &&
              (!t->parts || info.parts - info.prepared == t->parts),
          "%s: %d parts of which %d are prepared:\n%s", name, info.parts, info.prepared, told);
    check(strstr(told, "computed once") && strstr(told, "prepare again when"), "%s says so:\n%s", name, told);
    check(!t->has || strstr(print, t->has), "%s: %s in\n%s", name, t->has, print);
    check_changes(p, t->dims, how);
    for (int path = EPI_PATH_NAIVE; path <= EPI_PATH_REFERENCE; path++) {
        epi_kernel *k = kernel_of(p, t->dims, (way){.type = type, .path = (epi_path)path});
        check(!epi_kernel_prepare_size(k), "path %d prepares nothing", path);
        epi_kernel_free(k);
    }

    mark(other, false, m);
    p = epi_module_program(other, 0);
    if (run_as(&plain, p, t->dims, how))
        hold_ran(&plain, t->dims, how);
    epi_kernel_print(plain.k, print, sizeof print);
    check(!epi_kernel_prepare_size(plain.k) && !info_of(plain.k).prepared,
          "%s: without the mark nothing is prepared", name);
    check(!t->has || !strstr(print, t->has), "%s: nor folded:\n%s", name, print);
    DISCARD(&out, &again, &plain);
    epi_module_free(m);
    epi_module_free(other);
}

/* ---- open sizes, budgets, GPUs ---- */

static void check_open(const struct text *t, epi_dtype type) {
    static const int64_t sizes[] = {1, 17, 33};
    epi_module *m = parsed(ctx, t->text);
    const epi_program *p = epi_module_program(m, 0);
    epi_kernel *open = kernel_of(p, t->dims, (way){.type = type, .open = "T"});
    for (size_t i = 0; open && i < sizeof sizes / sizeof *sizes; i++) {
        char dims[80];
        ran want, got = {0};
        void *prepared = NULL;
        epi_error err = {0};
        snprintf(dims, sizeof dims, "T=%ld%s", (long)sizes[i], strchr(t->dims, ','));
        if (run_as(&want, p, dims, (way){.type = type}) && made(&got, p, dims, (way){.type = type})) {
            check(epi_kernel_prepare_size(want.k) == epi_kernel_prepare_size(open),
                  "what is prepared does not depend on open sizes");
            check(problem_prepare(open, &got.p, &prepared), "%s is prepared", epi_program_name(p));
            check(run_at(open, &sizes[i], 1, got.p.args, got.p.count, prepared, &err) == EPI_OK &&
                      same_outputs(&want, &got),
                  "%s at %ld rows: %s", epi_program_name(p), (long)sizes[i], err.message);
        }
        free(prepared);
        DISCARD(&want, &got);
    }
    epi_kernel_free(open);
    epi_module_free(m);
}

/* Where the algebra leaves nothing to prepare, an axis without elements, for which the program is as it is written, does
 * not bring it back: the caller has nothing prepared to give. */
static void check_open_empty(void) {
    const int64_t none = 0;
    static float y[1], z[6], u[6] = {1, 2, 3, 4, 5, 6};
    static int32_t n[4] = {3, 1, 0, 2}, at[6] = {0, 1, 2, 3, 2, 1};
    const epi_tensor tensors[] = {{y, NULL}, {u, NULL}, {n, NULL}, {at, NULL}, {y, NULL}, {z, NULL}};
    epi_error err = {0};
    epi_kernel *open = text_kernel(ctx,
                                   "p(x[T,D], u[B], n: param i32[V], i: param i32[B]) -> (y[T], z[B]) {"
                                   " y = max(x, D)  v = gather(u, gather(n, i, V), B)  z = v - v }",
                                   "T=3,D=8,B=6,V=4", (way){.open = "T"});
    z[3] = 7;
    if (open && check(epi_kernel_prepare_size(open) == 0, "nothing is prepared"))
        check(run_at(open, &none, 1, tensors, 6, NULL, &err) == EPI_OK && z[3] == 0, "without rows: %s",
              err.message);
    epi_kernel_free(open);
}

static void check_gpus(const struct text *t) {
    static const int devices[] = {-80, -90, -120};
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        epi_kernel *k = text_kernel(ctx, t->text, t->dims, (way){.type = EPI_BF16, .device = devices[i]});
        epi_kernel_info info = info_of(k);
        check(epi_kernel_prepare_size(k) > 0 && info.prepared > 0 && info.prepared < info.parts,
              "%s for %d: %d parts of which %d are prepared", t->text, devices[i], info.parts, info.prepared);
        for (int q = 0; k && q < k->part_count; q++)
            check(!k->parts[q].concurrent || q != info.prepared,
                  "a run does not begin beside what it has not");
        epi_kernel_free(k);
    }
}

/* ---- the mark, and what is refused ---- */

static void check_marks(void) {
    const char *text =
        "f(x[T,D], w: param bf16[F,D], b: param[F], s: param) -> y[T,F] { y = s*(x @ w) + b }\n"
        "g(x[T,D], w[F,D], b[F]) -> y[T,F] { y = f(x, w, b, 2) }\n";
    char print[2048];
    epi_module *m = parsed(ctx, text);
    epi_program_print(epi_module_program(m, 0), print, sizeof print);
    check(strstr(print, "w: param bf16[F,D], b: param[F], s: param)"), "the mark is printed:\n%s", print);
    check(!m->programs[1].graph.tensors[1].param, "a mark counts in the outermost program");
    epi_module *back = gradient_of(epi_module_program(m, 0), "x");
    epi_program_print(epi_module_program(back, 0), print, sizeof print);
    check(strstr(print, "w: param bf16[F,D]") && strstr(print, "d_y: cotangent[T,F]"),
          "a gradient keeps the marks:\n%s", print);
    epi_module_free(back);
    back = derived(epi_module_program(m, 0), "x", epi_program_grad_saved);
    for (int i = 0; i < 2; i++) {
        epi_program_print(epi_module_program(back, i), print, sizeof print);
        check(strstr(print, "w: param bf16[F,D]"), "and so do both of its halves:\n%s", print);
    }
    epi_module_free(back);
    epi_module_free(m);
    static const char *const refused[][2] = {
        {"f(x[T]) -> y: param[T] { y = x }", "only inputs can be declared param"},
        {"f(x[T]) -> (y: param f32[T], z[T]) { y = x; z = x }", "only inputs can be declared param"},
        {"f(x: param cotangent[T]) -> y[T] { y = x }", "cannot be both"},
        {"f(x: cotangent param[T]) -> y[T] { y = x }", "cannot be both"},
        {"f(x: param parameter[T]) -> y[T] { y = x }", "not a type"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        epi_error err = {0};
        check(epi_module_parse(ctx, refused[i][0], strlen(refused[i][0]), "text", &m, &err) != EPI_OK &&
                  strstr(err.message, refused[i][1]),
              "%s: %s", refused[i][0], err.message);
    }
}

static void check_calls(void) {
    const char *dims = texts[2].dims;
    const way how = {.seed = 3};
    void *prepared = NULL;
    epi_error err = {0};
    ran r;
    bool ok = made_of(&r, ctx, texts[2].text, dims, how);
    const epi_program *p = r.program;
    epi_kernel *k = r.k;
    problem *in = &r.p;
    if (ok) {
        void *work = aligned_alloc(64, epi_kernel_workspace(k));
        epi_call call = EPI_CALL(.tensors = in->args, .count = in->count, .workspace = work);
        refused_as(epi_kernel_run(k, in->args, in->count, work, &err), EPI_ERR_ARGUMENT, &err,
                   "epi_kernel_prepare");
        refused_as(epi_kernel_call(k, &call, &err), EPI_ERR_ARGUMENT, &err, "");
        refused_as(epi_kernel_prepare(k, &call, NULL, &err), EPI_ERR_ARGUMENT, &err, "");
        refused_as(epi_kernel_prepare(k, &call, (char *)work + 4, &err), EPI_ERR_ARGUMENT, &err, "aligned");
        check(epi_kernel_prepare(NULL, &call, work, &err) == EPI_ERR_ARGUMENT &&
                  epi_kernel_prepare(k, NULL, work, &err) == EPI_ERR_ARGUMENT &&
                  !epi_kernel_prepare_size(NULL),
              "NULL");
        void *x = in->args[0].data, *y = in->args[in->count - 1].data, *w = in->args[1].data;
        in->args[0].data = in->args[in->count - 1].data = NULL; /* preparing looks at neither */
        check(problem_prepare(k, in, &prepared), "only params are looked at");
        in->args[1].data = NULL;
        refused_as(epi_kernel_prepare(k, &call, prepared, &err), EPI_ERR_ARGUMENT, &err, "'w'");
        call.prepared = prepared;
        in->args[in->count - 1].data = y;
        refused_as(epi_kernel_call(k, &call, &err), EPI_ERR_ARGUMENT, &err, "'x'");
        in->args[0].data = x; /* the weight is not needed any more */
        check(epi_kernel_call(k, &call, &err) == EPI_OK, "without the weight: %s", err.message);
        in->args[1].data = w;
        hold_ran(&r, dims, how);

        double numbers[MAX_TENSORS] = {0}; /* the scale as a number */
        void *s = in->args[4].data;
        numbers[4] = get_element(in->t[4].data, in->t[4].shape.type, 0);
        in->args[4].data = NULL;
        call.numbers = numbers;
        memset(prepared, 0, epi_kernel_prepare_size(k));
        poison_outputs(in);
        check(epi_kernel_prepare(k, &call, prepared, &err) == EPI_OK &&
                  epi_kernel_call(k, &call, &err) == EPI_OK,
              "a param that is a number: %s", err.message);
        in->args[4].data = s;
        hold_ran(&r, dims, how);
        free(work);
    }
    free(prepared);
    epi_kernel *small = kernel_of(p, dims, (way){.memory = (size_t)1 << 30});
    check(small && !epi_kernel_prepare_size(small), "with a memory budget nothing is prepared");
    epi_kernel_free(small);
    discard(&r);
}

/* What is made once: (x @ a) @ b is merged where a @ b costs nothing; a value that would take more memory than what it
 * is made of stays where it is. */
static void check_worth(void) {
    static const struct {
        const char *text, *dims;
        size_t bytes;
    } cases[] = {
        {"f(x[T,D], a: param[R,D], b: param[F,R]) -> y[T,F] { y = (x @ a) @ b }", "T=8,D=2048,R=2048,F=2048",
         2048 * 2048 * 2},
        {"f(x[T,D], a: param[R,D], b[F,R]) -> y[T,F] { y = (x @ a) @ b }", "T=8,D=2048,R=2048,F=2048", 0},
        {"f(x[T,D], w: param i32[F,D], s: param f32[F]) -> y[T,F] { y = x @ (w*s) }", "T=8,D=16,F=32",
         32 * 16 * 2}, /* bf16 would be less */
        {"f(x[T,D], a: param[D], b: param[D]) -> y[T,D] { y = x*(a + b) }", "T=8,D=16", 0},
        {"f(x[T,D], w: param[D,C=2,F]) -> y[T,F] { y = x @ gather(w, 1, C) }", "T=8,D=16,F=32", 0},
        {"f(x[T,D], a: param[F], b: param[D]) -> y[T,F] { y = x @ (a*b) }", "T=8,D=16,F=32", 0},
        {"f(x[T,D], w: param[F,D]) -> y[T,F] { y = x @ w }", "T=8,D=16,F=32", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        epi_kernel *k = text_kernel(ctx, cases[i].text, cases[i].dims, (way){.type = EPI_BF16});
        epi_kernel_info info = info_of(k);
        check(epi_kernel_prepare_size(k) == cases[i].bytes && (i > 1 || info.parts == 2),
              "%s: %d parts, %zu bytes are prepared", cases[i].text, info.parts, epi_kernel_prepare_size(k));
        epi_kernel_free(k);
    }
}

int main(void) {
    epi_error err;
    if (!check(epi_context_open(&ctx, &err) == EPI_OK, "%s", err.message))
        return finish();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        for (int type = EPI_F32; type <= EPI_BF16; type++) {
            check_text(&texts[i], (epi_dtype)type);
            check_open(&texts[i], (epi_dtype)type);
        }
        check_gpus(&texts[i]);
    }
    check_open_empty();
    check_marks();
    check_calls();
    check_worth();
    epi_context_close(ctx);
    return finish();
}
