/* test_rowbits.c: the bits of a row do not depend on the batch: random programs whose rows do not know of
 * each other, in batches of 200, 100, 37, 2 and 1 rows, in reversed order, on one thread or two and with open
 * sizes. Of a GPU's kernels, which cannot be run here, what decides about bits is compared: mainloops, and
 * who folds a row.
 *
 *     rowbits [programs] */
#include "ran.h"
#include "row_program.h"

static epi_context *ctx;

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

/* What all batches of a program have: it, its name, its columns, and how it is compiled. */
typedef struct subject {
    const epi_program *program;
    const char *label;
    int64_t columns[3];
    way how;
} subject;

static epi_kernel *compile(const subject *s, batch of, bool open, int device) {
    char dims[200];
    way how = s->how;
    how.threads = of.threads;
    how.device = device;
    how.open = open ? "T" : NULL;
    snprintf(dims, sizeof dims, "T=%ld,D=%ld,N=%ld,R=%ld,B=%ld", open ? of.most : of.t, s->columns[0],
             s->columns[1], s->columns[2], of.b);
    return kernel_of(s->program, dims, how);
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

static void check_batch(const subject *s, batch of, const problem *many) {
    problem few = {0};
    epi_kernel *k = compile(s, of, false, 0), *open = of.most ? compile(s, of, true, 0) : NULL;
    if (k && problem_make(&few, s->program, k, LAYOUT_PLAIN)) {
        for (int t = 0; t < few.inputs; t++)
            move_rows(s->program, t, &few, many, of, false);
        check(open ? run_open(open, &few, of) : problem_run(k, &few), "%s runs", s->label);
        for (int t = few.inputs; t < few.count; t++) {
            int64_t differ = move_rows(s->program, t, &few, many, of, true);
            check(differ == 0, "%s, B=%ld T=%ld%s%s, %d threads: %ld of %ld elements of output %d differ",
                  s->label, (long)of.b, (long)of.t, of.reversed ? " reversed" : "", of.most ? " open" : "",
                  of.threads, (long)differ, (long)few.t[t].shape.count, t - few.inputs);
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

static void check_orders(const subject *s, int device) {
    static const int64_t counts[] = {4096, 200, 37, 2, 1};
    char first[2000] = "", now[2000];
    for (int i = 0; i < 5; i++) {
        epi_kernel *k = compile(s, (batch){.b = counts[i] > 1 ? 3 : 1, .t = counts[i]}, false, device);
        if (!k)
            return;
        list_orders(k, now, sizeof now);
        epi_kernel_free(k);
        if (i == 0)
            memcpy(first, now, sizeof first);
        check(!strcmp(first, now), "%s on sm_%d: of 4096 rows\n    %s\nof %ld\n    %s", s->label, -device,
              first, (long)counts[i], now);
    }
}

/* ---- programs ---- */

static void check_program(subject *s, int seed) {
    const batch whole = whole_batch(seed);
    const batch less[] = {{.b = 3, .t = whole.t, .threads = 1, .reversed = true},
                          {.b = 3, .t = 100, .threads = 1},
                          {.b = 1, .t = 37, .threads = 2, .most = seed % 2 ? 200 : 0},
                          {.b = 2, .t = 2, .threads = 1},
                          {.b = 1, .t = 1, .threads = 1, .most = seed % 2 ? 0 : 100}};
    problem many = {0};
    epi_kernel *k = compile(s, whole, false, 0);
    if (k && problem_make(&many, s->program, k, LAYOUT_PLAIN)) {
        problem_fill(&many, ROW_SEED);
        if (check(problem_run(k, &many), "%s runs", s->label))
            for (int i = 0; i < 5; i++)
                check_batch(s, less[i], &many);
    }
    problem_free(&many);
    epi_kernel_free(k);
    if (seed % 2)
        s->how.type = EPI_BF16;
    check_orders(s, seed % 8 == 6 ? -80 : -90);
}

/* Programs that were wrong once: a statistic of rows that lie across
 * the output, a division by a number, a statistic by a pass over what lies contiguous where there is one row.
 */
static const char *const known[] = {
    "f(x[T,D]) -> (s: f32[T], y[D,T]) {\n    y = x - mean(x, D)\n    s = mean(y*y, D)\n}\n",
    "f(x[T,D]) -> y[D/2,T] {\n    a, b = pairs(x, D)\n    y = a/3\n}\n",
    "f(x[T,D], t[D,T], w[N,D]) -> (o: f32[T], m: f32[T]) {\n    o = min(t @ w, N)\n    m = mean(t, D)\n}\n",
};
enum { KNOWN = sizeof known / sizeof *known };

/* The program, or in its place one that was wrong once; of every fifth the gradient by x, too, where there is one: its
 * rows do not know of each other, either, and they are named. */
static void check_seed(int seed, const char *text) {
    static const int64_t columns[] = {2, 16, 16, 64, 40, 300, 514, 1100}, others[] = {1, 8, 24, 70, 300};
    row_maker m;
    char label[100];
    make_row_program(&m, (uint64_t)seed);
    subject s = {.label = label,
                 .columns = {columns[random_below(&m.s, 8)], others[random_below(&m.s, 5)],
                             others[1 + random_below(&m.s, 4)]}};
    s.how.type = random_below(&m.s, 3) ? EPI_F32 : EPI_BF16;
    s.how.rows = m.crossed ? "T B" : NULL;
    if (text) {
        s.columns[0] = seed == 2 ? 64 : 16;
        s.how = (way){0};
    }
    const way how = s.how;
    epi_module *module = parsed(ctx, text ? text : m.text), *grad = NULL;
    snprintf(label, sizeof label, "seed %d, D=%ld N=%ld R=%ld %s", seed, s.columns[0], s.columns[1],
             s.columns[2], epi_dtype_name(how.type));
    int failed = failed_count;
    if (module) {
        s.program = epi_module_program(module, 0);
        check_program(&s, seed);
        if (seed % 5 == 4 &&
            epi_program_grad(s.program, (const char *const[]){"x"}, 1, &grad, NULL) == EPI_OK) {
            s.program = epi_module_program(grad, 0);
            s.how = how;
            s.how.rows = "T B";
            check_program(&s, seed);
        }
        if (failed_count > failed)
            printf("%s", text ? text : m.text);
    }
    epi_module_free(grad);
    epi_module_free(module);
}

int main(int argc, char **argv) {
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    for (int i = 0; i < KNOWN; i++)
        check_seed(i, known[i]);
    for (rounds r = rounds_of(argc > 1 ? atoi(argv[1]) : 400); next_round(&r);)
        check_seed((int)r.seed, NULL);
    epi_context_close(ctx);
    return finish();
}
