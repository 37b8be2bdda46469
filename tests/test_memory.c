/* test_memory.c: a budget for the workspace.
 *
 *     memory [tests/models.epi]
 *
 * Losses, layers of models and what else has something to loop over, with the least budget that there is and
 * with some between: the workspace is within it, rows have the bits that they have without a budget, sums
 * over rows keep the error rule, whatever the layout of the tensors. Then what is refused, and the texts for
 * GPUs; and values in the place of inputs that are spent. */
#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "harness.h"
#include "run/run.h"

static epi_context *ctx;
static int tails_in_place;

static const struct text {
    const char *name, *dims, *text;
    int loops; /* that it is gone through in; 0: any number */
} texts[] = {
    {"step", "T=1000,D=24,V=320",
     "loss(x[T,D], w[V,D], y: i32[T]) -> l: f32[T] {\n"
     "    z = x @ w\n"
     "    l = logsumexp(z, V) - sum(where(index(V) == y, z, 0), V)\n"
     "}\n"
     "step(x[T,D], w[V,D], y: i32[T], dl: cotangent f32[T]) -> (l: f32[T], dx[T,D], dw[V,D]) {\n"
     "    l = loss(x, w, y)\n"
     "    dx, dw = grad(loss, x, w)(x, w, y, dl)\n"
     "}\n",
     1},
    /* an output of stretches is put together of sums over rows */
    {"stretches", "T=2000,D=24",
     "stretches(x[T,D], a[T,F=3], b[T,F], v[T,D]) -> (w[C=6,D], y[T,D]) {\n"
     "    n = x*rsqrt(mean(x*x, D) + 0.000001)\n"
     "    h = silu(n)*v\n"
     "    w = scatter(sum(h*a, T), index(F), C) + scatter(sum(n*b, T), index(F) + 3, C)\n"
     "    y = h*n\n"
     "}\n",
     0},
    /* the gradient of the logits waits for a sum over all rows: they are made again */
    {"mean_step", "T=640,D=24,V=320",
     "mean_step(x[T,D], w[V,D], y: i32[T], ignore: i32) -> (l: f32, dx[T,D], dw[V,D]) {\n"
     "    z = x @ w\n"
     "    losses, lse = token_loss(z, y, ignore)\n"
     "    l, dl = mean_loss(losses, y, ignore)\n"
     "    dz = token_loss_grad(z, y, ignore, lse, dl)\n"
     "    dx = dz @ w\n"
     "    dw = dz @ x\n"
     "}\n",
     1},
    /* means, sums that leave a tile, sums of weights and a factor after them; rows of two axes */
    {"chain", "B=5,S=96,D=40,F=72",
     "chain(x[B,S,D], w[F,D], v[D,F], b[F], g[D]) -> (y[B,S,D], dv[D,F], db[F], s: f32, m[F]) {\n"
     "    h = gelu(x @ w + b)\n"
     "    y = tanh(h @ v)*size(B)\n"
     "    q = y/size(S)\n"
     "    dv = (q @ h)*g\n"
     "    e = (q @ v)*h\n"
     "    db = sum(e, B, S)\n"
     "    s = mean(e*e, B, S, F)\n"
     "    m = mean(e, B, S) + b\n"
     "}\n",
     0},
    {"batch_of_one", "B=1,S=700,D=40,F=72",
     "batch_of_one(x[B,S,D], w[F,D], v[D,F]) -> (y[B,S,D], dv[D,F]) {\n"
     "    h = relu(x @ w)\n"
     "    y = rmsnorm(h @ v, sum(v, F), 0.001)\n"
     "    dv = y @ h\n"
     "}\n",
     1},
};

static bool has_row(const epi_kernel *k, int t) {
    const epi_axes *axes = &k->program->graph.tensors[t].axes;
    return epi_axes_find_dim(axes, k->cut.slab_dim) >= 0;
}

/* The least budget, from what the library says of one that is too small. */
static size_t least_of(const epi_program *p, epi_options options) {
    epi_kernel *k = NULL;
    epi_error err = {0};
    options.memory = 1;
    epi_status status = epi_kernel_compile(p, &options, &k, &err);
    const char *needs = strstr(err.message, "needs ");
    check(status == EPI_ERR_UNSUPPORTED && !k && needs, "a byte is too little: %s", err.message);
    return needs ? strtoull(needs + 6, NULL, 10) : 0;
}

/* A run with the budget beside one without, on the CPU. */
static void compare(const epi_program *p, const bound *b, size_t memory, layout how, epi_kernel *whole,
                    const problem *want, const problem *reference, const problem *naive) {
    const char *name = epi_program_name(p);
    epi_options options = b->options;
    epi_kernel *k = NULL;
    epi_error err = {0};
    epi_kernel_info info;
    problem got;
    options.memory = memory;
    if (!check(epi_kernel_compile(p, &options, &k, &err) == EPI_OK, "%s within %zu: %s", name, memory,
               err.message))
        return;
    epi_kernel_get_info(k, &info);
    check(epi_kernel_workspace(k) <= memory && info.slabs > 1 &&
              info.workspace_whole == (int64_t)epi_kernel_workspace(whole),
          "%s: %zu bytes of %zu in %d slabs", name, epi_kernel_workspace(k), memory, info.slabs);
    if (check(problem_make(&got, p, k, how), "memory")) {
        problem_fill(&got, 7);
        for (int again = 0; again < 2; again++) /* sums begin with 0 each time */
            check(problem_run(k, &got), "%s runs within %zu", name, memory);
        for (int t = got.inputs; t < got.count; t++) {
            const tensor *out = &got.t[t], *same = &want->t[t];
            double error, bound;
            bool equal = true;
            for (int64_t e = 0; e < out->shape.count && has_row(k, t); e++)
                equal &= !memcmp(out->data + (size_t)tensor_at(out, e) * epi_dtype_size(out->shape.type),
                                 same->data + (size_t)e * epi_dtype_size(out->shape.type),
                                 epi_dtype_size(out->shape.type));
            check(equal && tensor_intact(out), "%s within %zu: rows of output %d have their bits", name,
                  memory, t);
            bool near =
                within_rule(out, &reference->t[t], &naive->t[t], b->options.type, got.terms, &error, &bound);
            check(near, "%s within %zu: output %d is off by %g, of %g", name, memory, t, error, bound);
        }
    }
    problem_free(&got);
    epi_kernel_free(k);
}

/* Runs the program on another path. */
static bool evaluate(const epi_program *p, epi_options options, epi_path path, epi_dtype type, problem *out) {
    epi_type_binding types[MAX_TENSORS];
    epi_kernel *k = NULL;
    options.path = path;
    options.types = types;
    options.type_count = wide_types(p, false, types); /* inputs as they are stored */
    options.type = type;
    bool ok = epi_kernel_compile(p, &options, &k, NULL) == EPI_OK && problem_make(out, p, k, LAYOUT_PLAIN);
    if (ok) {
        problem_fill(out, 7);
        ok = problem_run(k, out);
    }
    epi_kernel_free(k);
    return ok;
}

static void check_cpu(const epi_program *p, const char *dims, epi_dtype type, int loops) {
    bound b;
    epi_kernel *k = NULL;
    epi_error err = {0};
    problem want, reference, naive;
    const char *name = epi_program_name(p);
    bind_dims(&b, dims, type, 0);
    if (!check(epi_kernel_compile(p, &b.options, &k, &err) == EPI_OK, "%s: %s", name, err.message))
        return;
    bool ok = problem_make(&want, p, k, LAYOUT_PLAIN);
    problem_fill(&want, 7);
    ok &= problem_run(k, &want) && evaluate(p, b.options, EPI_PATH_REFERENCE, type, &reference) &&
          evaluate(p, b.options, EPI_PATH_NAIVE, type, &naive);
    if (check(ok, "%s runs", name)) {
        size_t least = least_of(p, b.options), whole = epi_kernel_workspace(k);
        check(least > 1 && least < whole, "%s: %zu bytes instead of %zu", name, least, whole);
        b.options.memory = least - 1;
        epi_kernel *less = NULL;
        check(epi_kernel_compile(p, &b.options, &less, &err) != EPI_OK, "%s: %zu is the least", name, least);
        compare(p, &b, least, LAYOUT_PLAIN, k, &want, &reference, &naive);
        compare(p, &b, (least + whole) / 2, LAYOUT_PADDED, k, &want, &reference, &naive);
        compare(p, &b, whole - 1, LAYOUT_REVERSED, k, &want, &reference, &naive);
        b.options.memory = whole;
        if (check(epi_kernel_compile(p, &b.options, &less, &err) == EPI_OK, "%s: %s", name, err.message))
            check(!less->cut.loop_count && epi_slab_count(less) == 1, "%s needs no slabs within %zu", name,
                  whole);
        epi_kernel_free(less);
        less = NULL;
        b.options.memory = least;
        if (loops && epi_kernel_compile(p, &b.options, &less, &err) == EPI_OK)
            check(less->cut.loop_count == loops, "%s is gone through in %d loops", name,
                  less->cut.loop_count);
        epi_kernel_free(less);
    }
    problem_free(&want);
    problem_free(&reference);
    problem_free(&naive);
    epi_kernel_free(k);
}

/* A sum over slabs is added up in place only where the kernel of the shorter slab at the end can do so, too:
 * here as if it had been refused as one kernel. */
static void check_tail_in_place(const epi_kernel *k) {
    for (int i = 0; i < k->part_count; i++) {
        const epi_part_kernel *p = &k->parts[i];
        epi_plan *plan = p->tail.cpu    ? &p->tail.cpu->steps.plan
                         : p->tail.cuda ? &p->tail.cuda->steps.plan
                                        : NULL;
        for (int t = p->part->graph.input_count; plan && t < p->part->graph.tensor_count; t++)
            for (int u = 0; u < p->part->graph.input_count; u++) {
                if (!epi_part_in_place(p, t, u))
                    continue;
                plan->fused = false;
                check(!epi_part_in_place(p, t, u), "part %d is not in place where its tail is not", i);
                plan->fused = true;
                tails_in_place++;
            }
    }
}

/* Texts for a GPU: planned, not run. */
static void check_gpu(const epi_program *p, const char *dims, int device) {
    bound b;
    epi_kernel *k = NULL;
    epi_error err = {0};
    const char *name = epi_program_name(p);
    bind_dims(&b, dims, EPI_BF16, device);
    size_t least = least_of(p, b.options);
    b.options.memory = least;
    if (!check(epi_kernel_compile(p, &b.options, &k, &err) == EPI_OK, "%s for %d within %zu: %s", name,
               device, least, err.message))
        return;
    epi_kernel_info info;
    epi_kernel_get_info(k, &info);
    check(epi_kernel_workspace(k) <= least && info.slabs > 1 && (size_t)info.workspace_whole > least,
          "%s for %d: %zu bytes of %zu in %d slabs", name, device, epi_kernel_workspace(k), least,
          info.slabs);
    for (int i = 0; i < k->part_count; i++)
        check(k->parts[i].full.cuda && k->parts[i].full.cuda->count > 0 &&
                  (k->parts[i].tail.cuda != NULL) ==
                      (k->parts[i].part->loop >= 0 && epi_slab_tail(k) != k->cut.slab_rows),
              "%s for %d: part %d has its texts", name, device, i);
    check_tail_in_place(k);
    epi_kernel_free(k);
}

static const struct model {
    const char *name, *dims;
} models[] = {
    {"llama", "T=400,D=32,F=48,H=4,G=2,E=8"},
    {"llama_head", "T=520,D=32,F=48,H=4,E=8,V=200"},
    {"gpt2", "T=300,D=32,F=48,H=4,E=8"},
};

static void test_models(const char *path) {
    size_t length;
    char *text = read_whole(path, &length);
    epi_module *m = NULL;
    epi_error err = {0};
    bool ok = text && epi_module_parse(ctx, text, length, path, &m, &err) == EPI_OK;
    for (size_t i = 0; check(ok, "%s: %s", path, err.message) && i < sizeof models / sizeof *models; i++) {
        const epi_program *p = epi_module_find(m, models[i].name);
        if (!check(p != NULL, "%s is there", models[i].name))
            continue;
        check_cpu(p, models[i].dims, EPI_BF16, 0);
        check_gpu(p, models[i].dims, -90);
    }
    epi_module_free(m);
    free(text);
}

/* Parts come in such an order that no more is alive at once than one of them stores and loads. */
static void test_order(const char *path) {
    static const struct {
        const char *name, *dims;
    } layers[] = {{"llama_layer", "T=4096,D=256,H=8,E=32,F=1024,G=4"},
                  {"qwen3_layer", "T=4096,D=256,H=8,E=32,F=1024,G=4"},
                  {"llama_loss", "T=4096,D=256,H=8,E=32,F=1024,V=4096"}};
    size_t length;
    char *text = read_whole(path, &length);
    epi_module *m = NULL;
    epi_error err = {0};
    bool ok = text && epi_module_parse(ctx, text, length, path, &m, &err) == EPI_OK;
    for (size_t i = 0; check(ok, "%s: %s", path, err.message) && i < sizeof layers / sizeof *layers; i++) {
        const epi_program *p = epi_module_find(m, layers[i].name);
        const char *wrt[EPI_MAX_TENSORS];
        epi_module *two = NULL;
        epi_kernel *k = NULL;
        int count = p ? number_inputs(p, false, wrt, EPI_MAX_TENSORS) : 0;
        bound b;
        bind_dims(&b, layers[i].dims, EPI_BF16, -90);
        if (!check(p && epi_program_grad_saved(p, wrt, count, &two, &err) == EPI_OK &&
                       epi_kernel_compile(epi_module_program(two, 1), &b.options, &k, &err) == EPI_OK,
                   "%s: %s", layers[i].name, err.message))
            continue;
        int64_t most = 0;
        for (int q = 0; q < k->cut.part_count; q++) {
            int64_t bytes = 0;
            for (int v = 0; v < k->cut.value_count; v++) {
                bool touched = false;
                for (int t = 0; t < k->cut.parts[q].graph.tensor_count; t++)
                    touched |= k->cut.parts[q].tensors[t].tensor < 0 && k->cut.parts[q].tensors[t].value == v;
                bytes += touched ? k->cut.values[v].bytes : 0;
            }
            most = epi_max64(most, bytes);
        }
        printf("%s: %ld bytes between the parts of the backward, of which one touches %ld\n", layers[i].name,
               (long)k->cut.bytes, (long)most);
        check(k->cut.bytes == most, "%s: no more is alive than one part touches", layers[i].name);
        epi_kernel_free(k);
        epi_module_free(two);
    }
    epi_module_free(m);
    free(text);
}

/* What has no budget, and that a budget may not be given with. */
static void test_refused(void) {
    const char *text = "one(x[T,D], w[F,D]) -> y[T,F] { y = x @ w }";
    epi_module *m = NULL;
    epi_kernel *k = NULL;
    epi_error err = {0};
    bound b;
    if (!check(epi_module_parse(ctx, text, strlen(text), "one", &m, &err) == EPI_OK, "%s", err.message))
        return;
    const epi_program *p = epi_module_find(m, "one");
    bind_dims(&b, "T=512,D=64,F=64", EPI_F32, 0);
    b.options.memory = 1;
    check(epi_kernel_compile(p, &b.options, &k, &err) == EPI_ERR_UNSUPPORTED && strstr(err.message, "needs"),
          "one kernel needs what it needs: %s", err.message);
    b.options.path = EPI_PATH_UNFUSED;
    check(epi_kernel_compile(p, &b.options, &k, &err) == EPI_ERR_UNSUPPORTED &&
              strstr(err.message, "fused path"),
          "not of other paths: %s", err.message);
    const char *open[] = {"T"};
    b.options.path = EPI_PATH_FUSED;
    b.options.open_axes = open;
    b.options.open_axis_count = 1;
    check(epi_kernel_compile(p, &b.options, &k, &err) == EPI_ERR_UNSUPPORTED && strstr(err.message, "open"),
          "not with open axes: %s", err.message);
    epi_module_free(m);
}

/* ---- inputs that are spent ---- */

static const char spending[] =
    "gradient(z[T,V], x[T,D], w[V,D], lse: f32[T], d: f32[T]) -> (dx[T,D], dw[V,D]) {\n"
    "    g = exp(z - lse)*d\n"
    "    dx = g @ w\n"
    "    dw = g @ x\n"
    "}\n"
    "read_again(z[T,V], x[T,D], w[V,D], lse: f32[T], d: f32[T]) -> (dx[T,D], dw[V,D]) {\n"
    "    g = exp(z - lse)*d\n"
    "    dx = g @ w\n"
    "    dw = (g @ x)*2 + z @ x\n"
    "}\n"
    "shifted(z[T,V], x[T,D], w[V,D], lse: f32[T], d: f32[T]) -> (dx[T,D], dw[V,D]) {\n"
    "    g = exp(shift(z, T, 1) - lse)*d\n"
    "    dx = g @ w\n"
    "    dw = g @ x\n"
    "}\n";

static epi_kernel *spend(const epi_program *p, bound *b, const char *const *names, epi_error *err) {
    epi_kernel *k = NULL;
    b->options.spent = names;
    b->options.spent_count = names != NULL;
    epi_kernel_compile(p, &b->options, &k, err);
    return k;
}

static bool is_taken(const epi_kernel *k) {
    bool taken = false;
    for (int v = 0; v < k->cut.value_count; v++)
        taken |= k->cut.values[v].over == 1;
    return taken;
}

/* The same bits, in less memory; and no run with tensors that would be destroyed. */
static void run_spending(const epi_program *p, const epi_kernel *plain, const epi_kernel *spent,
                         bool may_take) {
    problem a, b;
    if (!check(problem_make(&a, p, plain, LAYOUT_PLAIN) && problem_make(&b, p, spent, LAYOUT_PLAIN),
               "memory"))
        return;
    problem_fill(&a, 11);
    problem_fill(&b, 11);
    check(problem_run(plain, &a) && problem_run(spent, &b), "both run");
    for (int t = a.inputs; t < a.count; t++)
        check(!memcmp(a.t[t].data, b.t[t].data,
                      (size_t)a.t[t].shape.count * epi_dtype_size(a.t[t].shape.type)) &&
                  tensor_intact(&b.t[t]) && tensor_intact(&b.t[0]),
              "results are the same");
    check(is_taken(spent) == may_take && !memcmp(a.t[0].data, b.t[0].data, 64) == !may_take,
          "an input is written over where it may be, and nowhere else");
    size_t less = epi_kernel_workspace(plain) - epi_kernel_workspace(spent);
    check(may_take ? less >= (size_t)a.t[0].shape.count * epi_dtype_size(a.t[0].shape.type) : !less,
          "%zu bytes of the workspace less", less);
    b.args[1].data = b.args[0].data;
    check(problem_run(spent, &b) == !may_take, "a spent input shares no memory");
    problem_free(&a);
    problem_free(&b);
    if (check(problem_make(&b, p, spent, LAYOUT_PADDED), "memory")) {
        problem_fill(&b, 11);
        check(problem_run(spent, &b) == !may_take, "a spent input is contiguous");
    }
    problem_free(&b);
}

static void test_spent(void) {
    static const char *const names[] = {"z"}, *const wrong[] = {"dx"}, *const open[] = {"T"};
    epi_module *m = NULL;
    epi_error err = {0};
    if (!check(epi_module_parse(ctx, spending, strlen(spending), "spending", &m, &err) == EPI_OK, "%s",
               err.message))
        return;
    for (int i = 0; i < epi_module_count(m); i++)
        for (int how = 0; how < 8; how++) {
            const epi_program *p = epi_module_program(m, i);
            bound b;
            bind_dims(&b, "T=640,V=320,D=24", how & 1 ? EPI_BF16 : EPI_F32, how & 2 ? -90 : 0);
            b.options.open_axes = how & 4 ? open : NULL;
            b.options.open_axis_count = how >> 2;
            epi_kernel *plain = spend(p, &b, NULL, &err), *spent = spend(p, &b, names, &err);
            if (check(plain && spent, "%s", err.message) && !(how & 2) && !(how & 4))
                run_spending(p, plain, spent, i == 0);
            else if (plain && spent)
                check(is_taken(spent) == (i == 0) && !is_taken(plain), "%s, %d", epi_program_name(p), how);
            epi_kernel_free(plain);
            epi_kernel_free(spent);
        }
    bound b;
    bind_dims(&b, "T=640,V=320,D=24", EPI_F32, 0);
    check(!spend(epi_module_program(m, 0), &b, wrong, &err) && strstr(err.message, "no input 'dx'"), "%s",
          err.message);
    b.options.memory = 1 << 20;
    check(!spend(epi_module_program(m, 0), &b, names, &err) && strstr(err.message, "budget"), "%s",
          err.message);
    epi_module_free(m);
}

int main(int argc, char **argv) {
    epi_error err = {0};
    if (!check(epi_context_open(&ctx, &err) == EPI_OK, "%s", err.message))
        return finish();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        epi_module *m = NULL;
        if (!check(epi_module_parse(ctx, texts[i].text, strlen(texts[i].text), texts[i].name, &m, &err) ==
                       EPI_OK,
                   "%s: %s", texts[i].name, err.message))
            continue;
        const epi_program *p = epi_module_find(m, texts[i].name);
        check_cpu(p, texts[i].dims, EPI_F32, texts[i].loops);
        check_cpu(p, texts[i].dims, EPI_BF16, texts[i].loops);
        check_gpu(p, texts[i].dims, -90);
        check_gpu(p, texts[i].dims, -80);
        epi_module_free(m);
    }
    if (argc > 1) {
        test_models(argv[1]);
        test_order(argv[1]);
    }
    test_refused();
    test_spent();
    check(tails_in_place > 0, "some shorter slabs are added up in place");
    epi_context_close(ctx);
    return finish();
}
