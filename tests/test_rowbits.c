/* test_rowbits.c: the bits of a row do not depend on the batch: random programs whose rows do not know of
 * each other, in batches of 200, 100, 37, 2 and 1 rows, in reversed order, on one thread or two and with open
 * sizes. Of a GPU's kernels, which cannot be run here, what decides about bits is compared: mainloops, and
 * who folds a row.
 *
 *     rowbits [programs] [first seed] */
#include "row_program.h"
#include "run/run.h"

static epi_context *ctx;
static int compared, programs, gradients, wrong;

/* One run: so many rows, of B and of T, the last ones first or not. */
typedef struct batch {
    int64_t b, t;
    int threads;
    bool reversed;
    int64_t most; /* 0, or T is open up to so many */
} batch;

/* The batch that the others are rows of; of every fourth program it has rows as long as tapes want them. */
static batch whole_batch(int seed) {
    return (batch){.b = 3, .t = seed % 4 ? 200 : 600, .threads = 2};
}

static epi_kernel *compile(const epi_program *p, const row_maker *m, const int64_t sizes[3], epi_dtype type,
                           batch of, int device) {
    static const char *const rows[] = {"T", "B"}, *const names[] = {"T", "D", "N", "R", "B"};
    epi_dim_binding dims[5];
    const int64_t all[] = {of.most ? of.most : of.t, sizes[0], sizes[1], sizes[2], of.b};
    int count = 0;
    for (int d = 0; d < epi_program_dim_count(p); d++)
        for (int i = 0; i < 5; i++)
            if (!strcmp(epi_program_dim(p, d), names[i]))
                dims[count++] = (epi_dim_binding){names[i], all[i]};
    epi_options o =
        EPI_OPTIONS(.dims = dims, .dim_count = count, .type = type, .threads = of.threads, .device = device,
                    .row_axes = m->crossed ? rows : NULL, .row_axis_count = m->crossed ? 1 + m->batched : 0,
                    .open_axes = rows, .open_axis_count = of.most > 0);
    epi_kernel *k;
    epi_error err;
    check(epi_kernel_compile(p, &o, &k, &err) == EPI_OK, "it compiles for %ld rows: %s", (long)of.t,
          err.message);
    return k;
}

/* Where element i of the tensor of a batch is in that of the whole one. */
static int64_t place_in_whole(const tensor *few, const tensor *many, int reversed, int64_t i) {
    int64_t at = 0, step = 1;
    for (int a = few->shape.rank - 1; a >= 0; a--) {
        int64_t size = few->shape.sizes[a], n = i % size;
        i /= size;
        at += (a == reversed ? many->shape.sizes[a] - 1 - n : n) * step;
        step *= many->shape.sizes[a];
    }
    return at;
}

/* Copies the rows of a batch out of the whole one, or counts elements that differ from it. */
static int64_t move_rows(const epi_program *p, int t, problem *few, const problem *many, batch of,
                         bool compares) {
    tensor *to = &few->t[t];
    size_t size = epi_dtype_size(to->shape.type);
    int64_t differ = 0;
    int reversed = -1;
    epi_tensor_info info;
    epi_program_tensor(p, t, &info);
    for (int a = 0; a < info.rank && of.reversed; a++)
        reversed = !strcmp(info.axes[a].dim, "T") ? a : reversed;
    for (int64_t i = 0; i < to->shape.count; i++) {
        unsigned char *here = to->data + (size_t)i * size;
        const unsigned char *there =
            many->t[t].data + (size_t)place_in_whole(to, &many->t[t], reversed, i) * size;
        if (!compares)
            memcpy(here, there, size);
        else
            differ += memcmp(here, there, size) != 0;
    }
    return differ;
}

/* The same rows by a kernel whose T is open. */
static bool run_open(const epi_kernel *k, problem *p, batch of) {
    size_t bytes = 0;
    if (epi_kernel_workspace_at(k, &of.t, 1, &bytes, NULL) != EPI_OK)
        return false;
    void *work = aligned_alloc(64, bytes);
    if (work)
        memset(work, POISON, bytes);
    const epi_call call = EPI_CALL(.tensors = p->args, .count = p->count, .workspace = work, .sizes = &of.t,
                                   .size_count = 1, .workspace_bytes = bytes);
    bool ok = work && epi_kernel_call(k, &call, NULL) == EPI_OK;
    free(work);
    return ok;
}

static void check_batch(const epi_program *p, const row_maker *m, const int64_t sizes[3], epi_dtype type,
                        batch of, const problem *many, const char *label) {
    problem few = {0};
    batch closed = of;
    closed.most = 0;
    epi_kernel *k = compile(p, m, sizes, type, closed, 0),
               *open = of.most ? compile(p, m, sizes, type, of, 0) : NULL;
    if (k && problem_make(&few, p, k, LAYOUT_PLAIN)) {
        for (int t = 0; t < few.inputs; t++)
            move_rows(p, t, &few, many, of, false);
        check(open ? run_open(open, &few, of) : problem_run(k, &few), "%s runs", label);
        for (int t = few.inputs; t < few.count; t++) {
            int64_t differ = move_rows(p, t, &few, many, of, true);
            check(differ == 0, "%s, B=%ld T=%ld%s%s, %d threads: %ld of %ld elements of output %d differ",
                  label, (long)of.b, (long)of.t, of.reversed ? " reversed" : "", of.most ? " open" : "",
                  of.threads, (long)differ, (long)few.t[t].shape.count, t - few.inputs);
            compared++;
        }
    }
    problem_free(&few);
    epi_kernel_free(k);
    epi_kernel_free(open);
}

/* ---- kernels of a GPU ---- */

static bool folds(const epi_graph *g) {
    for (int i = 0; i < g->node_count; i++)
        if (g->live[i] && epi_ops[g->nodes[i].op].cls == EPI_CLASS_REDUCE)
            return true;
    return false;
}

/* In which order parts add up: each one's mainloop; and where rows are folded, how many threads share one,
 * with how many vectors each, in how many blocks, and whether it is on chip as a whole. */
static void list_orders(const epi_kernel *k, char *out, size_t size) {
    epi_part_info p;
    out[0] = 0;
    for (int i = 0; epi_kernel_part(k, i, &p) == EPI_OK; i++) {
        const epi_graph *g = k->cut.part_count ? &k->cut.parts[i].graph : k->spec.graph;
        int lanes, count, rows, cluster;
        size_t n = strlen(out);
        if (sscanf(p.info.micro, "rows_%dx%d_r%d_c%d", &lanes, &count, &rows, &cluster) != 4)
            snprintf(out + n, size - n, "%s %.*s; ", p.info.mainloop, (int)strcspn(p.info.micro, "_"),
                     p.info.micro);
        else if (folds(g))
            snprintf(out + n, size - n, "rows %dx%d in %d%s; ", lanes, count, cluster,
                     strstr(p.info.micro, "_s") ? ", again in every phase" : "");
        else
            snprintf(out + n, size - n, "rows; ");
    }
}

static void check_orders(const epi_program *p, const row_maker *m, const int64_t sizes[3], epi_dtype type,
                         int device, const char *label) {
    static const int64_t counts[] = {4096, 200, 37, 2, 1};
    char first[2000] = "", now[2000];
    for (int i = 0; i < 5; i++) {
        const batch of = {.b = counts[i] > 1 ? 3 : 1, .t = counts[i], .threads = 1};
        epi_kernel *k = compile(p, m, sizes, type, of, device);
        if (!k)
            return;
        list_orders(k, now, sizeof now);
        epi_kernel_free(k);
        if (i == 0)
            memcpy(first, now, sizeof first);
        check(!strcmp(first, now), "%s on sm_%d: of 4096 rows\n    %s\nof %ld\n    %s", label, -device, first,
              (long)counts[i], now);
    }
}

/* ---- programs ---- */

static void check_program(const epi_program *p, const row_maker *m, const int64_t sizes[3], epi_dtype type,
                          int seed) {
    const batch whole = whole_batch(seed);
    const batch less[] = {{.b = 3, .t = whole.t, .threads = 1, .reversed = true},
                          {.b = 3, .t = 100, .threads = 1},
                          {.b = 1, .t = 37, .threads = 2, .most = seed % 2 ? 200 : 0},
                          {.b = 2, .t = 2, .threads = 1},
                          {.b = 1, .t = 1, .threads = 1, .most = seed % 2 ? 0 : 100}};
    char label[100];
    problem many = {0};
    epi_kernel *k = compile(p, m, sizes, type, whole, 0);
    snprintf(label, sizeof label, "seed %d, D=%ld N=%ld R=%ld %s", seed, (long)sizes[0], (long)sizes[1],
             (long)sizes[2], epi_dtype_name(type));
    if (k && problem_make(&many, p, k, LAYOUT_PLAIN)) {
        problem_fill(&many, ROW_SEED);
        if (check(problem_run(k, &many), "%s runs", label))
            for (int i = 0; i < 5; i++)
                check_batch(p, m, sizes, type, less[i], &many, label);
    }
    problem_free(&many);
    epi_kernel_free(k);
    check_orders(p, m, sizes, seed % 2 ? EPI_BF16 : type, seed % 8 == 6 ? -80 : -90, label);
}

/* Programs that were wrong once, in place of those of the first seeds: a statistic of rows that lie across
 * the output, a division by a number, a statistic by a pass over what lies contiguous where there is one row.
 */
static const char *const known[] = {
    "f(x[T,D]) -> (s: f32[T], y[D,T]) {\n    y = x - mean(x, D)\n    s = mean(y*y, D)\n}\n",
    "f(x[T,D]) -> y[D/2,T] {\n    a, b = pairs(x, D)\n    y = a/3\n}\n",
    "f(x[T,D], t[D,T], w[N,D]) -> (o: f32[T], m: f32[T]) {\n    o = min(t @ w, N)\n    m = mean(t, D)\n}\n",
};
enum { KNOWN = sizeof known / sizeof *known };

/* The gradient by x has rows that do not know of each other, too; where there is one. */
static void check_gradient(const epi_program *p, row_maker *m, const int64_t sizes[3], epi_dtype type,
                           int seed) {
    static const char *const wrt[] = {"x"};
    epi_module *grad = NULL;
    epi_error err;
    if (epi_program_grad(p, wrt, 1, &grad, &err) != EPI_OK)
        return;
    m->crossed = true; /* its rows are named: T, and B if there is one */
    int before = failed_count;
    check_program(epi_module_program(grad, 0), m, sizes, type, seed);
    if (failed_count > before)
        printf("of the gradient by x of:\n");
    gradients++;
    epi_module_free(grad);
}

static void check_seed(int seed) {
    static const int64_t columns[] = {2, 16, 16, 64, 40, 300, 514, 1100}, others[] = {1, 8, 24, 70, 300};
    row_maker m;
    epi_module *module;
    epi_error err;
    make_row_program(&m, (uint64_t)seed);
    int64_t sizes[] = {columns[random_below(&m.s, 8)], others[random_below(&m.s, 5)],
                       others[1 + random_below(&m.s, 4)]};
    epi_dtype type = random_below(&m.s, 3) ? EPI_F32 : EPI_BF16;
    if (seed < KNOWN) {
        snprintf(m.text, sizeof m.text, "%s", known[seed]);
        sizes[0] = seed == 2 ? 64 : 16;
        m.crossed = false;
        type = EPI_F32;
    }
    int failed = failed_count;
    if (check(epi_module_parse(ctx, m.text, strlen(m.text), "random", &module, &err) == EPI_OK, "seed %d: %s",
              seed, err.message)) {
        check_program(epi_module_program(module, 0), &m, sizes, type, seed);
        if (seed % 5 == 4)
            check_gradient(epi_module_program(module, 0), &m, sizes, type, seed);
        epi_module_free(module);
        programs++;
    }
    if (failed_count > failed)
        printf("%s", m.text);
    wrong += failed_count > failed;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 400, first = argc > 2 ? atoi(argv[2]) : 0;
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    for (int i = first; i < first + rounds; i++)
        check_seed(i);
    printf("%d row-wise programs from seed %d and gradients of %d, %d outputs compared, %d programs wrong\n",
           programs, first, gradients, compared, wrong);
    epi_context_close(ctx);
    return finish();
}
