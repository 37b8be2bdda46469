/* test_open.c: one handle for many sizes of the row axes.
 *
 *     open [programs]
 *
 * For every program whose first input has row axes: the CPU's results are, bit by bit, those of kernels
 * compiled for one size alone; and the texts for GPUs are the same for all sizes, three for each launch at
 * most. Then what is refused, and many threads that start one handle with many sizes. */
#include <pthread.h>

#include "cases.h"
#include "cuda/cuda.h"
#include "ran.h"

static const char *programs;
static epi_context *ctx;

/* ---- a program with its row axes open ---- */

typedef struct opened {
    loaded l; /* its dims are the largest */
    const char *axes[EPI_MAX_AXES];
    int axis_count;
} opened;

/* The first case of each program, its row axes at other sizes: 160 of one, a few of the outer ones of
 * several. */
static bool open_case(int i, opened *o) {
    epi_tensor_info first;
    memset(o, 0, sizeof *o);
    for (int j = 0; j < i; j++)
        if (!strcmp(cases[i].file, cases[j].file) && !strcmp(cases[i].program, cases[j].program))
            return false;
    if (!load_case(ctx, programs, &cases[i], &o->l) ||
        !check(epi_program_tensor(o->l.program, 0, &first) == EPI_OK, "a first input"))
        return false;
    for (int a = 0; a + 1 < first.rank; a++)
        o->axes[o->axis_count++] = first.axes[a].dim;
    for (int d = 0; d < o->l.dim_count; d++)
        for (int a = 0; a < o->axis_count; a++)
            if (!strcmp(o->l.dims[d].name, o->axes[a]))
                o->l.dims[d].size = o->axis_count == 1 ? 160 : a + 1 == o->axis_count ? 44 : 3;
    return o->axis_count > 0 && o->axis_count <= EPI_MAX_OPEN;
}

static epi_options open_options(const opened *o, epi_dtype type, int device) {
    epi_options options = case_options(&o->l, type, EPI_PATH_FUSED);
    options.device = device;
    options.threads = device ? 0 : 2;
    options.open_axes = o->axes;
    options.open_axis_count = o->axis_count;
    return options;
}

/* Size number n, of SIZES, of each open axis; those of outer axes change in turn. */
enum { SIZES = 4 };
static void sizes_of(const opened *o, int n, int64_t *sizes) {
    static const int64_t one[SIZES] = {1, 7, 128, 160}, inner[SIZES] = {1, 7, 32, 44};
    for (int a = 0; a < o->axis_count; a++)
        sizes[a] = o->axis_count == 1 ? one[n] : a + 1 == o->axis_count ? inner[n] : n % 3 + 1;
}

/* The same options with these sizes, and no axis open. */
static epi_options closed_options(const opened *o, epi_options options, const int64_t *sizes,
                                  epi_dim_binding *dims) {
    for (int d = 0; d < o->l.dim_count; d++) {
        dims[d] = o->l.dims[d];
        for (int a = 0; a < o->axis_count; a++)
            if (!strcmp(dims[d].name, o->axes[a]))
                dims[d].size = sizes[a];
    }
    options.dims = dims;
    options.open_axis_count = 0;
    return options;
}

static epi_status call_at(const epi_kernel *k, const int64_t *sizes, int size_count, const problem *p,
                          void *workspace, size_t bytes, epi_error *err) {
    const epi_call call = EPI_CALL(.tensors = p->args, .count = p->count, .workspace = workspace,
                                   .workspace_bytes = bytes, .sizes = sizes, .size_count = size_count);
    return epi_kernel_call(k, &call, err);
}

/* ---- the CPU ---- */

static bool start_at(const epi_kernel *k, const opened *o, const int64_t *sizes, problem *p, epi_error *err) {
    size_t bytes = 0;
    if (epi_kernel_workspace_at(k, sizes, o->axis_count, &bytes, err) != EPI_OK)
        return false;
    unsigned char *memory = aligned_alloc(64, bytes + 2 * GUARD);
    if (!memory)
        return false;
    memset(memory, SENTINEL, bytes + 2 * GUARD);
    bool ok = call_at(k, sizes, o->axis_count, p, memory + GUARD, bytes, err) == EPI_OK;
    for (int i = 0; i < GUARD; i++)
        ok &= memory[i] == SENTINEL && memory[GUARD + bytes + (size_t)i] == SENTINEL;
    free(memory);
    return ok;
}

/* One size: the same result, or the same refusal, as of a kernel for that size alone. */
static void compare(const opened *o, const epi_kernel *k, epi_options options, const int64_t *sizes) {
    epi_dim_binding dims[16];
    epi_options closed = closed_options(o, options, sizes, dims);
    epi_kernel *exact = NULL;
    epi_error err = {0}, other = {0};
    ran want = {.program = o->l.program};
    problem got = {0};
    const char *name = o->l.from->program;
    if (epi_kernel_compile(o->l.program, &closed, &exact, &err) != EPI_OK) {
        size_t bytes;
        check(epi_kernel_workspace_at(k, sizes, o->axis_count, &bytes, &other) == err.status &&
                  !strcmp(err.message, other.message),
              "%s at %ld is refused alike: %s; %s", name, (long)sizes[0], err.message, other.message);
        return;
    }
    if (check(problem_make(&want.p, o->l.program, exact, LAYOUT_PLAIN) &&
                  problem_make(&got, o->l.program, exact, LAYOUT_PLAIN),
              "memory")) {
        want.k = exact;
        problem_fill(&want.p, CASE_SEED);
        problem_fill(&got, CASE_SEED);
        run_again(&want);
        check(start_at(k, o, sizes, &got, &err), "%s open, at %ld runs: %s", name, (long)sizes[0],
              err.message);
        for (int i = got.inputs; i < got.count; i++)
            check(tensor_intact(&got.t[i]) && same_bits(&want.p.t[i], &got.t[i]),
                  "%s at %ld: tensor %d is the same as of a kernel for that size", name, (long)sizes[0], i);
    }
    problem_free(&got);
    discard(&want);
}

static void test_cpu(const opened *o, epi_dtype type) {
    epi_options options = open_options(o, type, 0);
    for (int n = 0; n < SIZES; n++) {
        epi_kernel *k = NULL;
        epi_error err = {0};
        int64_t sizes[EPI_MAX_AXES];
        if (!wanted("%s %s %s size %d", o->l.from->program, o->l.from->dims, epi_dtype_name(type), n))
            continue;
        epi_status status = epi_kernel_compile(o->l.program, &options, &k, &err);
        if (check(status == EPI_OK || status == EPI_ERR_DIMS, "%s compiles open: %s", o->l.from->program,
                  err.message) &&
            status == EPI_OK) {
            sizes_of(o, n, sizes);
            compare(o, k, options, sizes);
        }
        epi_kernel_free(k);
    }
}

/* ---- texts ---- */

/* Is the part's every text one of a form's? */
static bool is_in_forms(const epi_kernel *k, const epi_kernel *sized, int part) {
    const epi_cuda_kernel *own = sized->parts[part].full.cuda;
    bool found = epi_cuda_same_text(own, k->parts[part].full.cuda);
    for (int f = 0; f < k->form_count; f++)
        found |= epi_cuda_same_text(own, k->forms[f]->parts[part].full.cuda);
    return found;
}

/* The kernel of one size, as a start would make it. */
static void check_texts(const opened *o, const epi_kernel *k, epi_options options, const int64_t *sizes) {
    epi_dim_binding dims[16];
    epi_kernel *sized = NULL;
    epi_error err = {0};
    int axes = options.open_axis_count;
    options = closed_options(o, options, sizes, dims);
    options.open_axis_count = axes;
    epi_status status = epi_kernel_make(o->l.program, &options, k, false, &sized, &err);
    if (status == EPI_ERR_DIMS) /* an odd size of an axis that is halved */
        return;
    if (!check(status == EPI_OK && sized->part_count == k->part_count, "%s at %ld has launches: %s",
               o->l.from->program, (long)sizes[0], err.message))
        return;
    bool all = true, apart = true;
    for (int p = 0; p < k->part_count; p++) {
        all &= is_in_forms(k, sized, p);
        apart &= sized->parts[p].leader == p || sized->parts[p].concurrent;
    }
    check(all, "%s, sm_%d at %ld: every text is a form's", o->l.from->program, -options.device,
          (long)sizes[0]);
    check(apart, "%s, sm_%d at %ld: parts that are launched as one share no memory", o->l.from->program,
          -options.device, (long)sizes[0]);
    epi_kernel_free(sized);
}

static void check_sizes(opened o, int device, bool every, int first) {
    static const int64_t few[] = {1, 2, 64, 65, 300};
    for (int d = 0; d < o.l.dim_count; d++)
        if (o.axis_count == 1 && !strcmp(o.l.dims[d].name, o.axes[0]))
            o.l.dims[d].size = every ? 4096 : 300;
    epi_options options = open_options(&o, EPI_BF16, device);
    epi_kernel *k = NULL;
    epi_error err = {0};
    epi_status status = epi_kernel_compile(o.l.program, &options, &k, &err);
    if (!check(status == EPI_OK || status == EPI_ERR_DIMS, "%s compiles open for sm_%d: %s",
               o.l.from->program, -device, err.message) ||
        status != EPI_OK)
        return;
    int forms = info_of(k).forms;
    check(forms >= 1 && forms <= 3, "%s has %d forms", o.l.from->program, forms);
    for (int n = first; n < first + (every ? 60 : 5); n++) {
        int64_t sizes[EPI_MAX_AXES];
        sizes_of(&o, n % SIZES, sizes);
        if (o.axis_count == 1)
            sizes[0] = every ? n + 1 : few[n];
        check_texts(&o, k, options, sizes);
    }
    epi_kernel_free(k);
}

/* `every`: all sizes up to 300, in several cases; else a few. */
static void test_texts(opened o, int device, bool every) {
    for (int first = 0; first < (every ? 300 : 5); first += every ? 60 : 5)
        if (wanted("%s %s sm_%d%s from %d", o.l.from->program, o.l.from->dims, -device,
                   every ? " every size" : "", first))
            check_sizes(o, device, every, first);
}
static void test_programs(void) {
    static const char *const whole[] = {"llama_mlp",          "linear_grad_w", "rmsnorm",
                                        "norm_cross_entropy", "matmul",        "softmax"};
    int count = 0;
    for (int i = 0; i < CASES; i++) {
        opened o;
        if (open_case(i, &o)) {
            bool every = false;
            for (size_t w = 0; w < sizeof whole / sizeof *whole; w++)
                every |= !strcmp(cases[i].program, whole[w]) && o.axis_count == 1;
            test_cpu(&o, count++ % 2 ? EPI_BF16 : EPI_F32);
            test_texts(o, -90, every);
            test_texts(o, -80, every);
        }
        epi_module_free(o.l.module);
    }
    no_case();
    check(count > 60, "%d programs have row axes", count);
}

/* ---- one program in hand ---- */

static const char text[] =
    "f(x[T,D], w[F,D], r[T]) -> (y[T,F], s[F]) {\n"
    "    y = silu((x @ w) * r)\n    s = sum(y, T)\n}\n"
    "g(x[B,S,D]) -> y[B,S,R] {\n    y = sum(x * rename(x, S, R), D)\n}\n"
    "back(x[B,S,D]) -> y[B,S,D] {\n"
    "    w = exp(sum(x * rename(x, S, R), D))\n"
    "    y = x + rename(sum(w * x, S), R, S)\n}\n"
    "ends(x[B,S,D]) -> (y[B,S,D], z[B,D]) {\n"
    "    a = x*tanh(x)\n    y = a + 1\n    z = gather(a, size(S) - 1, S)\n}\n"
    "steps(x[B,S,D]) -> (y[B,S,D], u[B,S,D], z[B,D]) {\n"
    "    s = scan(0.5, x, S)\n    y = s*shift(x, S, 2) + scan_back(0.5, x, S)\n"
    "    r = rename(x, S, R)\n    u = sum(where(index(R) < index(S), r, 0), R)\n"
    "    z = gather(s, size(S) - 1, S)\n}\n"
    "sent(x[B,S,D]) -> (y[B,R=12,D], z[B,S,D]) {\n    y = scatter(x, index(S) + 1, R)\n"
    "    z = gather(rename(x, S, U), index(S) - 2, U) + shift(x, S, -1)\n}\n"
    "h(x[T,D]) -> y[T/2,D] {\n    a, b = halves(x, T)\n    y = a + b\n}\n"
    "p(x[T,D], w[F,D], v[F,D]) -> (y[C,T], z[G,T]) {\n"
    "    y = scatter(x @ w, index(F), C) + scatter(silu(x @ v), index(F) + size(F), C)\n"
    "    z = gather(y, 2*index(G) + 4, C)\n}\n"
    "rows(x[T,D], c[S,D], w[F,D], v[F,D]) -> (a[T,F], b[S,F]) {\n    a = x @ w\n    b = c @ v\n}\n"
    "q(x[T,D], w[F,D], v[F,D]) -> y[C,T] {\n"
    "    y = scatter(x @ w, index(F), C) + scatter(silu(x @ v), index(F) + size(F), C)\n}\n";

static epi_module *module; /* of this text */

/* Of products that are launched as one some may have no rows: an error; where none has any, nothing is done. */
static void test_joined_without_rows(void) {
    epi_dim_binding dims[] = {{"T", 256}, {"S", 256}, {"D", 128}, {"F", 128}};
    static const char *const open[] = {"T", "S"};
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = 4, .type = EPI_BF16, .device = -90,
                                .open_axes = open, .open_axis_count = 2);
    const epi_program *p = epi_module_find(module, "rows");
    epi_kernel *k = NULL, *sized = NULL;
    epi_error err = {0};
    if (check(epi_kernel_compile(p, &o, &k, &err) == EPI_OK && k->parts[0].joint, "two in one launch: %s",
              err.message)) {
        dims[1].size = 0;
        refused_as(epi_kernel_make(p, &o, k, false, &sized, &err), EPI_ERR_UNSUPPORTED, &err, "no rows");
        epi_kernel_free(sized);
        sized = NULL;
        dims[0].size = 0;
        check(epi_kernel_make(p, &o, k, false, &sized, &err) == EPI_OK, "both without rows: %s", err.message);
        epi_kernel_free(sized);
    }
    epi_kernel_free(k);
}

static void test_refused(void) {
    static const struct {
        const char *program, *dims, *open;
        epi_status status;
        const char *message;
    } refused[] = {
        {"f", "T=40,D=24,F=16", "Q", EPI_ERR_DIMS, "'Q'"},
        {"f", "T=40,D=24,F=16", "T T", EPI_ERR_ARGUMENT, "twice"},
        {"g", "B=2,S=9,D=4,R=9", "R", EPI_ERR_DIMS, "a rename of 'S'"},
    };
    const epi_program *f = epi_module_find(module, "f"), *h = epi_module_find(module, "h");
    static const char *const none[] = {NULL};
    epi_error err = {0};
    epi_kernel *k = NULL;
    bound b;
    int64_t size = 41;
    size_t bytes = 7;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        refused_as(compile_as(epi_module_find(module, refused[i].program), refused[i].dims,
                              (way){.open = refused[i].open}, &k, &err),
                   refused[i].status, &err, refused[i].message);
    bind_dims(&b, refused[0].dims, EPI_F32, 0);
    b.options.open_axis_count = 1;
    for (int i = 0; i < 2; i++) {
        b.options.open_axes = i ? none : NULL;
        check(epi_kernel_compile(f, &b.options, &k, &err) == EPI_ERR_ARGUMENT, i ? "no name" : "no list");
    }
    k = kernel_of(f, refused[0].dims, (way){0});
    check(epi_kernel_workspace_at(k, &size, 1, &bytes, &err) == EPI_ERR_ARGUMENT && bytes == 0,
          "no axis of it is open");
    epi_kernel_free(k);
    ran r;
    if (!made(&r, f, refused[0].dims, (way){.open = "T"}))
        return;
    const size_t most = epi_kernel_workspace(r.k);
    unsigned char *work = aligned_alloc(64, most);
    size = 30;
    check(epi_kernel_workspace_at(r.k, &size, 1, &bytes, &err) == EPI_OK && bytes <= most, "for 30 rows: %s",
          err.message);
    const struct {
        int64_t size;
        int count;
        size_t bytes;
        epi_status status;
        const char *message;
    } calls[] = {
        {41, 1, most, EPI_ERR_DIMS, "41"},
        {41, 1, most, EPI_ERR_DIMS, "40"},
        {-1, 1, most, EPI_ERR_DIMS, ""},
        {30, 0, most, EPI_ERR_ARGUMENT, ""},
        {30, 1, bytes - 64, EPI_ERR_ARGUMENT, "workspace"},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        refused_as(call_at(r.k, &calls[i].size, calls[i].count, &r.p, work, calls[i].bytes, &err),
                   calls[i].status, &err, calls[i].message);
    refused_as(call_at(r.k, NULL, 1, &r.p, work, most, &err), EPI_ERR_ARGUMENT, &err, "");
    check(outputs_untouched(&r.p), "nothing was written");
    size = 0;
    check(run_at(r.k, &size, 1, r.p.args, r.p.count, NULL, &err) == EPI_OK, "no rows: %s", err.message);
    check(at(&r.p.t[4], 0) == 0 && r.p.t[3].data[0] == POISON, "their sum is zero, and there are none");
    free(work);
    discard(&r);
    k = kernel_of(h, "T=40,D=24", (way){.open = "T"});
    size = 7;
    refused_as(epi_kernel_workspace_at(k, &size, 1, &bytes, &err), EPI_ERR_DIMS, &err, "divisible");
    epi_kernel_free(k);
}

/* What is renamed follows, whether it was bound or not, and renamed back or not. */
static void test_renamed(const char *name) {
    const epi_program *g = epi_module_find(module, name);
    static const epi_dim_binding dims[] = {{"B", 3}, {"S", 12}, {"D", 20}, {"R", 12}};
    static const char *const names[] = {"S", "B"};
    for (int bound = 0; bound <= epi_program_dim_count(g) - 3; bound++) {
        const test_case c = {"", name, bound ? "R bound" : "", 0};
        opened o = {.l = {.from = &c, .program = g, .dim_count = 3 + bound}, .axis_count = 2};
        epi_kernel *k = NULL;
        epi_error err = {0};
        memcpy(o.l.dims, dims, sizeof dims);
        memcpy(o.axes, names, sizeof names);
        epi_options options = open_options(&o, EPI_F32, 0);
        if (!check(epi_kernel_compile(g, &options, &k, &err) == EPI_OK, "renamed: %s", err.message))
            continue;
        for (int64_t s = 1; s <= 12; s += 5) {
            int64_t sizes[2] = {s, 2};
            o.l.dim_count = 3; /* alone, R has the size of S */
            options.dim_count = 3;
            compare(&o, k, options, sizes);
        }
        epi_kernel_free(k);
        for (int device = -80; device >= -90; device -= 10) {
            o.l.dim_count = 3 + bound;
            test_texts(o, device, false);
        }
    }
}

/* Where pieces of an output begin does not depend on the rows between them; of 8 of them a GPU's tensors may. */
static void test_pieces(const char *name) {
    for (int64_t f = 4; f <= 8; f += 4) {
        const test_case c = {"", name, f == 4 ? "F=4" : "F=8", 0};
        opened o = {
            .l = {.from = &c, .program = epi_module_find(module, name)}, .axes = {"T"}, .axis_count = 1};
        const epi_dim_binding dims[] = {{"T", 160}, {"D", 24}, {"F", f}, {"C", 2 * f}, {"G", 2}};
        memcpy(o.l.dims, dims, sizeof dims);
        o.l.dim_count = epi_program_dim_count(o.l.program);
        test_cpu(&o, EPI_F32);
        test_texts(o, -90, true);
        test_texts(o, -80, false);
    }
}

/* ---- threads ---- */

enum { THREADS = 4, ROUNDS = 200, MOST = 90 /* more than are kept */, DEPTH = 5, WIDTH = 3 };

static epi_kernel *shared_kernel;
static float shared_want[MOST + 1]; /* by size: the sum of the last column */

static float run_once(int64_t rows, bool *ok) {
    float x[MOST * DEPTH], w[WIDTH * DEPTH], r[MOST], y[MOST * WIDTH], s[WIDTH] = {0};
    for (int i = 0; i < MOST * DEPTH; i++)
        x[i] = (float)(i % 13) / 8 - 0.5f;
    for (int i = 0; i < WIDTH * DEPTH; i++)
        w[i] = (float)(i % 7) / 4;
    for (int i = 0; i < MOST; i++)
        r[i] = 1 + (float)(i % 3);
    epi_tensor t[5] = {{x, NULL}, {w, NULL}, {r, NULL}, {y, NULL}, {s, NULL}};
    *ok &= run_at(shared_kernel, &rows, 1, t, 5, NULL, NULL) == EPI_OK;
    return s[WIDTH - 1];
}

static void *run_many(void *arg) {
    uint64_t seed = (uint64_t) * (int *)arg;
    bool ok = true;
    for (int i = 0; i < ROUNDS && ok; i++) {
        int64_t rows = 1 + random_below(&seed, MOST);
        ok &= run_once(rows, &ok) == shared_want[rows];
    }
    *(int *)arg = ok;
    return NULL;
}

static void test_threads(void) {
    pthread_t id[THREADS];
    int args[THREADS], started = 0;
    bool ok = true;
    /* its module is gone: it has what it needs */
    shared_kernel = text_kernel(ctx, text, "T=90,D=5,F=3", (way){.threads = 1, .open = "T"});
    if (!shared_kernel)
        return;
    for (int rows = 1; rows <= MOST; rows++)
        shared_want[rows] = run_once(rows, &ok);
    for (; started < THREADS; started++) {
        args[started] = started + 1;
        if (pthread_create(&id[started], NULL, run_many, &args[started]) != 0)
            break;
    }
    for (int i = 0; i < started; i++) {
        pthread_join(id[i], NULL);
        ok &= args[i];
    }
    check(ok && started > 0, "%d threads start one handle with %d sizes", started, MOST);
    epi_kernel_free(shared_kernel);
}

int main(int argc, char **argv) {
    programs = argc > 1 ? argv[1] : "programs";
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    module = parsed(ctx, text);
    test_joined_without_rows();
    test_refused();
    for (int i = 0; i < 5; i++)
        test_renamed((const char *[]){"g", "back", "ends", "steps", "sent"}[i]);
    test_pieces("p");
    test_pieces("q");
    test_threads();
    test_programs();
    epi_module_free(module);
    epi_context_close(ctx);
    return finish();
}
