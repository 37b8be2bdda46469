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
#include "ran.h"

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
static size_t least_of(const epi_program *p, const char *dims, way how) {
    epi_kernel *k = NULL;
    epi_error err = {0};
    how.memory = 1;
    epi_status status = compile_as(p, dims, how, &k, &err);
    const char *needs = strstr(err.message, "needs ");
    check(status == EPI_ERR_UNSUPPORTED && !k && needs, "a byte is too little: %s", err.message);
    return needs ? strtoull(needs + 6, NULL, 10) : 0;
}

/* A run with the budget beside one without, on the CPU. */
static void compare(const char *dims, way how, const ran *whole, const ran *reference, const ran *naive) {
    const char *name = epi_program_name(whole->program);
    ran got;
    if (made(&got, whole->program, dims, how)) {
        epi_kernel_info info = info_of(got.k);
        check(epi_kernel_workspace(got.k) <= how.memory && info.slabs > 1 &&
                  info.workspace_whole == (int64_t)epi_kernel_workspace(whole->k),
              "%s: %zu bytes of %zu in %d slabs", name, epi_kernel_workspace(got.k), how.memory, info.slabs);
        for (int again = 0; again < 2; again++) /* sums begin with 0 each time */
            run_again(&got);
        for (int t = got.p.inputs; t < got.p.count; t++)
            check((!has_row(got.k, t) || same_bits(&got.p.t[t], &whole->p.t[t])) &&
                      tensor_intact(&got.p.t[t]),
                  "%s within %zu: rows of output %d have their bits", name, how.memory, t);
        hold_against(&got, reference, naive, how.type, name);
    }
    discard(&got);
}

static void check_cpu(const epi_program *p, const char *dims, epi_dtype type, int loops) {
    way how = {.type = type, .seed = 7};
    ran whole, reference = {0}, naive = {0};
    const char *name = epi_program_name(p);
    epi_error err;
    epi_kernel *k = NULL;
    if (!wanted("%s %s", name, epi_dtype_name(type)))
        return;
    if (run_as(&whole, p, dims, how) && yardsticks(&reference, &naive, p, dims, how)) {
        size_t least = least_of(p, dims, how), most = epi_kernel_workspace(whole.k);
        check(least > 1 && least < most, "%s: %zu bytes instead of %zu", name, least, most);
        how.memory = least - 1;
        check(compile_as(p, dims, how, &k, &err) != EPI_OK, "%s: %zu is the least", name, least);
        const size_t budgets[LAYOUT_COUNT] = {least, (least + most) / 2, most - 1};
        for (int layout = 0; layout < LAYOUT_COUNT; layout++) {
            how.layout = (enum layout)layout;
            how.memory = budgets[layout];
            compare(dims, how, &whole, &reference, &naive);
        }
        how.memory = most;
        k = kernel_of(p, dims, how);
        check(k && !k->cut.loop_count && epi_slab_count(k) == 1, "%s needs no slabs within %zu", name, most);
        epi_kernel_free(k);
        how.memory = least;
        k = loops ? kernel_of(p, dims, how) : NULL;
        if (k)
            check(k->cut.loop_count == loops, "%s is gone through in %d loops", name, k->cut.loop_count);
        epi_kernel_free(k);
    }
    DISCARD(&whole, &reference, &naive);
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
    const char *name = epi_program_name(p);
    way how = {.type = EPI_BF16, .device = device};
    if (!wanted("%s %d", name, device))
        return;
    size_t least = how.memory = least_of(p, dims, how);
    epi_kernel *k = kernel_of(p, dims, how);
    if (!k)
        return;
    epi_kernel_info info = info_of(k);
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
} models[] = {{"llama", "T=400,D=32,F=48,H=4,G=2,E=8"},
              {"llama_head", "T=520,D=32,F=48,H=4,E=8,V=200"},
              {"gpt2", "T=300,D=32,F=48,H=4,E=8"}},
  layers[] = {{"llama_layer", "T=4096,D=256,H=8,E=32,F=1024,G=4"},
              {"qwen3_layer", "T=4096,D=256,H=8,E=32,F=1024,G=4"},
              {"llama_loss", "T=4096,D=256,H=8,E=32,F=1024,V=4096"}};

static void test_models(const epi_module *m) {
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const epi_program *p = epi_module_find(m, models[i].name);
        if (!check(p != NULL, "%s is there", models[i].name))
            continue;
        check_cpu(p, models[i].dims, EPI_BF16, 0);
        check_gpu(p, models[i].dims, -90);
    }
}

/* Parts come in such an order that no more is alive at once than one of them stores and loads. */
static void test_order(const epi_module *m) {
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        if (!wanted("order of %s", layers[i].name))
            continue;
        epi_module *two = derived(epi_module_find(m, layers[i].name), NULL, epi_program_grad_saved);
        epi_kernel *k = two ? kernel_of(epi_module_program(two, 1), layers[i].dims,
                                        (way){.type = EPI_BF16, .device = -90})
                            : NULL;
        if (!k)
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
}

/* What has no budget, and that a budget may not be given with. */
static void test_refused(void) {
    static const struct {
        way how;
        const char *message;
    } refused[] = {
        {{.memory = 1}, "needs"}, /* one kernel needs what it needs */
        {{.memory = 1, .path = EPI_PATH_UNFUSED}, "fused path"},
        {{.memory = 1, .open = "T"}, "open"},
    };
    epi_module *m = parsed(ctx, "one(x[T,D], w[F,D]) -> y[T,F] { y = x @ w }");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        epi_kernel *k = NULL;
        epi_error err = {0};
        refused_as(compile_as(epi_module_program(m, 0), "T=512,D=64,F=64", refused[i].how, &k, &err),
                   EPI_ERR_UNSUPPORTED, &err, refused[i].message);
    }
    epi_module_free(m);
}

/* ---- inputs that are spent ---- */

static const char spending[] =
#define SPENDING(name, g, dw) \
    name "(z[T,V], x[T,D], w[V,D], lse: f32[T], d: f32[T]) -> (dx[T,D], dw[V,D]) {\n" \
         "    g = " g "\n    dx = g @ w\n    dw = " dw "\n}\n"
    SPENDING("gradient", "exp(z - lse)*d", "g @ x")
        SPENDING("read_again", "exp(z - lse)*d", "(g @ x)*2 + z @ x")
            SPENDING("shifted", "exp(shift(z, T, 1) - lse)*d", "g @ x");

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
static void run_spending(const epi_program *p, epi_kernel *plain, epi_kernel *spent, bool may_take) {
    ran a = {.program = p, .k = plain}, b = {.program = p, .k = spent};
    if (!check(problem_make(&a.p, p, plain, LAYOUT_PLAIN) && problem_make(&b.p, p, spent, LAYOUT_PLAIN),
               "memory"))
        return;
    problem_fill(&a.p, 11);
    problem_fill(&b.p, 11);
    check(run_again(&a) && run_again(&b) && same_outputs(&a, &b), "results are the same");
    for (int t = 0; t < b.p.count; t += t ? 1 : b.p.inputs)
        check(tensor_intact(&b.p.t[t]), "nothing beside a tensor is written");
    tensor *z = &a.p.t[0];
    check(is_taken(spent) == may_take && !memcmp(z->data, b.p.t[0].data, 64) == !may_take,
          "an input is written over where it may be, and nowhere else");
    size_t less = epi_kernel_workspace(plain) - epi_kernel_workspace(spent);
    check(may_take ? less >= (size_t)z->shape.count * epi_dtype_size(z->shape.type) : !less,
          "%zu bytes of the workspace less", less);
    b.p.args[1].data = b.p.args[0].data;
    check(problem_run(spent, &b.p) == !may_take, "a spent input shares no memory");
    problem_free(&a.p);
    problem_free(&b.p);
    if (check(problem_make(&b.p, p, spent, LAYOUT_PADDED), "memory")) {
        problem_fill(&b.p, 11);
        check(problem_run(spent, &b.p) == !may_take, "a spent input is contiguous");
    }
    problem_free(&b.p);
}

static void test_spent(void) {
    static const char *const names[] = {"z"}, *const wrong[] = {"dx"}, *const open[] = {"T"};
    epi_module *m = parsed(ctx, spending);
    epi_error err = {0};
    for (int i = 0; i < epi_module_count(m); i++)
        for (int how = 0; how < 8; how++) {
            const epi_program *p = epi_module_program(m, i);
            if (!wanted("spending %s %d", epi_program_name(p), how))
                continue;
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
    no_case();
    bind_dims(&b, "T=640,V=320,D=24", EPI_F32, 0);
    for (int i = 0; i < 2; i++, b.options.memory = 1 << 20)
        check(!spend(epi_module_program(m, 0), &b, i ? names : wrong, &err) &&
                  strstr(err.message, i ? "memory budget" : "no input 'dx'"),
              "%s", err.message);
    epi_module_free(m);
}

int main(int argc, char **argv) {
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    test_refused();
    test_spent();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        epi_module *m = parsed(ctx, texts[i].text);
        const epi_program *p = epi_module_find(m, texts[i].name);
        check_cpu(p, texts[i].dims, EPI_F32, texts[i].loops);
        check_cpu(p, texts[i].dims, EPI_BF16, texts[i].loops);
        check_gpu(p, texts[i].dims, -90);
        check_gpu(p, texts[i].dims, -80);
        epi_module_free(m);
    }
    epi_module *m = parsed_file(ctx, argc > 1 ? argv[1] : "tests/models.epi");
    if (m) {
        test_models(m);
        test_order(m);
    }
    epi_module_free(m);
    no_case();
    check(!all_run() || tails_in_place > 0, "some shorter slabs are added up in place");
    epi_context_close(ctx);
    return finish();
}
