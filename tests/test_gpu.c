/* test_gpu.c: the table of cases on a GPU.
 *
 *     gpu [programs] [quick | sample | full | sanitize | cpu | schedules | attention]
 *
 *     quick      every case as the cost model would run it
 *     sample     every case in the main contract and in one other of type, path and contract, which differs
 *                from case to case; every configuration for some cases; larger properties: about 1,700
 *                kernels, where `full` has 7,700
 *     full       every type, path and contract; every configuration for some cases; larger properties
 *     sanitize   tiny cases in buffers without slack, to be run under compute-sanitizer
 *     cpu        the same flow on the CPU, which tests this test where there is no GPU
 *     schedules  only the schedules of Hopper's product, one beside the other (quick has them, too)
 *     attention  only attention by mma.sync, in every configuration (quick has it, too)
 *
 * Without a GPU it says why and passes, unless EPILOG_NEED_GPU is set. Compiling takes nearly all the time,
 * so a pool of threads compiles ahead while the main thread runs and checks in order. */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <time.h>

#include "cuda/cuda.h"
#include "gpu.h"
#include "gpu_rows.h"
#include "run/run.h"

static const loaded *moved(int i) {
    static const loaded *known[MOVES];
    if (!known[i])
        known[i] = program_with("moves", NULL, moves[i].program, moves[i].dims);
    return known[i];
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- every case by the error rule ---- */

/* Results that must agree bit for bit: what Hopper's mainloops make of one case in one contract. */
typedef struct group {
    const loaded *l;
    epi_options o;
    bits first;
    char micro[64];
} group;

static void group_check(group *g, const task *t, const epi_kernel_info *info, const problem *p,
                        const char *what) {
    if (g->l != t->l || g->o.type != t->o.type || g->o.path != t->o.path || g->o.rounding != t->o.rounding)
        bits_free(&g->first);
    if (t->o.path != EPI_PATH_FUSED || strcmp(info->mainloop, "gemm") != 0 ||
        strncmp(info->micro, "sm90", 4) != 0)
        return;
    if (!g->first.data) {
        g->l = t->l;
        g->o = t->o;
        snprintf(g->micro, sizeof g->micro, "%s", info->micro);
    }
    check(bits_agree(&g->first, p), "%s: the bits of %s are not those of %s", what, info->micro, g->micro);
}

/* How the kernel stores what lies between. A fused one that no tile could hold is a list of passes. Products of
 * e4m3 as they are have no more digits than bf16, whatever the type (docs/numbers.md). */
static epi_dtype between(const task *t, const epi_kernel_info *info) {
    if (!strncmp(info->micro, "sm90_", 5) && strstr(info->micro, "_p"))
        return EPI_BF16;
    bool exact = device == 0 || t->o.rounding == EPI_ROUND_EXACT;
    return t->o.path == EPI_PATH_FUSED && exact && !strcmp(info->mainloop, "gemm") ? EPI_F32 : t->o.type;
}

static void run_task(const task *t, const oracles *oracle, group *g) {
    char variant[128], what[256];
    describe_task(t, variant, sizeof variant);
    if (!task_compiled(t, variant))
        return;
    const test_case *c = t->l->from;
    snprintf(what, sizeof what, "%s:%s %s %s", c->file, c->program, c->dims, variant);
    epi_kernel_info info;
    epi_kernel_get_info(t->kernel, &info);
    on_device d;
    if (!on_device_make(&d, t->l->program, t->kernel))
        return;
    bits first = {0};
    int runs = t->o.config || mode == SANITIZE ? 1 : 3;
    for (int run = 0; run < runs && run_once(t->kernel, &d, what); run++) {
        if (!run) {
            check_rule(&d.host, t->l, oracle, between(t, &info), variant);
            group_check(g, t, &info, &d.host, what);
        }
        check(bits_agree(&first, &d.host), "%s: run %d gives other bits than the first", what, run + 1);
    }
    bits_free(&first);
    on_device_free(&d);
}

/* Which configurations are forced on case `at`: one of each mainloop under the sanitizer, every fourth in a
 * sample. */
static bool takes_config(int at, int c, epi_rounding rounding) {
    if (mode == SANITIZE)
        return !c || epi_config_at(c)->mainloop != epi_config_at(c - 1)->mainloop;
    return mode == FULL || (at + c) % 4 == (rounding == EPI_ROUND_EXACT ? 2 : 0);
}

static int plan_variant(const loaded *l, int at, epi_dtype type, epi_path path, epi_rounding rounding,
                        task *out) {
    int n = 0;
    bool sweep = type == EPI_BF16 && path == EPI_PATH_FUSED &&
                 (mode == SANITIZE || ((mode == FULL || mode == SAMPLE) && l->from->flags & SWEEP));
    out[n++] = compile_task(l, type, path, rounding, NULL);
    for (int c = 0; c < epi_config_count() && sweep; c++)
        if (takes_config(at, c, rounding))
            out[n++] = compile_task(l, type, path, rounding, epi_config_name(c));
    return n;
}

/* Is the type, and the path and contract that `i` stands for, run of case `at`? */
static bool takes_variant(int at, const loaded *l, int type, int i) {
    bool main_one = !type && !i, exact = i & 1;
    switch (mode) {
    case FULL: return true;
    case ON_CPU: return !exact;
    case SAMPLE: /* what is swept is so in both contracts */
        return main_one || 4 * type + i == 1 + at % 11 || (!type && i == 1 && l->from->flags & SWEEP);
    case SANITIZE: return !type && i < 3;
    default: return type ? !i : i < 3;
    }
}

/* What is run of a case, in the order in which it is run: oracles, then the kernels held against them. */
static int plan_case(const loaded *l, int at, task *out) {
    static const epi_dtype types[] = {EPI_BF16, EPI_F16, EPI_F32};
    int n = 0;
    for (int t = 0; t < 3; t++) {
        bool some = false;
        for (int i = 0; i < 4; i++)
            some |= takes_variant(at, l, t, i);
        if (!some)
            continue;
        task oracle = {.l = l, .o = {.type = types[t]}, .oracle = calloc(1, sizeof(oracles))};
        if (!check(oracle.oracle != NULL, "memory"))
            return n;
        out[n++] = oracle;
        for (int i = 0; i < 4; i++) {
            epi_path path = i & 2 ? EPI_PATH_UNFUSED : EPI_PATH_FUSED;
            epi_rounding rounding = i & 1 ? EPI_ROUND_EXACT : EPI_ROUND_PACKED;
            if (takes_variant(at, l, t, i))
                n += plan_variant(l, at, types[t], path, rounding, &out[n]);
        }
    }
    return n;
}

/* Runs them in order: oracles, then the kernels held against them. */
static void run_tasks(task *tasks, int count) {
    pool p;
    group g = {0};
    oracles *oracle = NULL;
    int before = failed_count;
    pool_start(&p, tasks, count);
    for (int i = 0; i < count && !broken; i++) {
        task *t = &tasks[i];
        pool_wait(&p, t);
        if (t->oracle) {
            if (oracle)
                oracles_free(oracle);
            oracle = t->oracle;
            check(oracle->ok, "%s:%s %s has a reference", t->l->from->file, t->l->from->program,
                  t->l->from->dims);
        } else if (oracle->ok) {
            run_task(t, oracle, &g);
        }
        epi_kernel_free(t->kernel);
        t->kernel = NULL;
        if ((i + 1 == count || tasks[i + 1].l != t->l || broken) && failed_count > before) {
            fprintf(stderr, "%s:%s %s: %d failed\n", t->l->from->file, t->l->from->program, t->l->from->dims,
                    failed_count - before);
            before = failed_count;
        }
    }
    pool_end(&p);
    bits_free(&g.first);
}

static void test_cases(void) {
    enum { PER_CASE = 128 };
    task *tasks = calloc(MOST_TASKS, sizeof *tasks);
    int count = 0;
    if (!check(tasks != NULL, "memory"))
        return;
    for (int i = 0; i < CASES && check(count + PER_CASE <= MOST_TASKS, "room for tasks"); i++)
        if (mode != SANITIZE || cases[i].flags & TINY)
            count += plan_case(case_of(i), i, &tasks[count]);
    for (int i = 0; i < MOVES && check(count + PER_CASE <= MOST_TASKS, "room for tasks"); i++)
        if (mode != SANITIZE || moves[i].flags & TINY)
            count += plan_case(moved(i), i, &tasks[count]);
    run_tasks(tasks, count);
    free(tasks);
}

/* ---- attention by mma.sync ---- */

/* What other GPUs than Hopper run, on any of them: every configuration by name. */
static const char *const mma_cases[] = {
    "tests/attention:full B=1,H=3,S=300,R=250,E=32,F=48 bf16 attention_mma_128x64_d64",
    "tests/attention:causal B=2,H=2,S=500,R=500,E=64,F=64 f16 attention_mma_128x64_d64",
    "tests/attention:causal B=2,H=2,S=150,R=150,E=16,F=16 f16 attention_mma_64x64_d64",
    "tests/attention:window B=1,H=2,G=2,S=300,R=300,E=24,F=24 bf16 attention_mma_128x64_d64",
    "tests/attention:causal B=1,H=2,S=500,R=500,E=128,F=128 bf16 attention_mma_128x32_d128",
    "tests/attention:biased B=1,H=2,S=130,R=150,E=72,F=72 bf16 attention_mma_64x32_d128",
    "tests/attention:lengths B=3,H=1,S=70,R=140,E=128,F=128 bf16 attention_mma_64x32_d128",
    "tests/attention:documents B=1,H=1,S=200,R=200,E=16,F=16 bf16 attention_mma_128x64_d64",
    "tests/attention:causal B=1,H=1,S=330,R=260,E=192,F=128 f16 attention_mma_64x64_d192",
    "tests/attention:full B=1,H=1,S=170,R=190,E=256,F=200 bf16 attention_mma_64x32_d256",
    "tests/attention:dropout B=1,H=2,S=130,R=135,E=16,F=16 bf16 attention_mma_64x64_d64",
    "tests/attention:tokens B=3,S=5,R=1500,H=2,G=3,E=72,F=48 bf16 attention_mma_64x32_d128",
    "attention:decode_attention B=3,R=700,G=2,H=3,E=24 bf16 attention_mma_64x64_d64",
    "tests/cliffs:cache_i8 B=2,G=2,J=3,R=700,E=64 bf16 attention_mma_64x64_d64",
    "tests/cliffs:cache_e4m3 B=1,G=2,J=5,R=700,E=112 bf16 attention_mma_64x32_d128",
    "tests/cliffs:cache_mixed B=2,G=1,J=5,R=500,E=208 bf16 attention_mma_64x32_d256",
    "tests/cliffs:cache_prompt B=2,G=2,J=2,S=170,R=350,E=128 bf16 attention_mma_128x32_d128",
    "tests/attention:steep B=1,H=2,S=130,R=560,E=16,F=16 bf16 attention_mma_128x64_d64",
    "tests/attention:packed B=2,H=2,S=500,R=500,E=64,F=64 bf16 attention_mma_128x64_d64",
    "tests/attention:packed_queries B=2,H=2,S=300,R=300,E=64,F=64 bf16 attention_mma_rows_128x32_d64",
    "tests/attention:packed_keys B=2,H=2,G=2,S=300,R=300,E=64,F=64 bf16 attention_mma_pair_64x32_d64",
    "tests/attention:queries B=1,H=3,S=300,R=290,E=32,F=16 bf16 attention_mma_rows_128x32_d64",
    "tests/attention:dropout_queries B=1,H=2,S=150,R=148,E=64,F=64 f16 attention_mma_rows_64x32_d64",
    "tests/attention:queries B=1,H=2,S=330,R=330,E=128,F=128 f16 attention_mma_rows_128x32_d128",
    "tests/attention:queries B=1,H=2,S=130,R=330,E=72,F=104 bf16 attention_mma_rows_64x32_d128",
    "tests/attention:queries B=1,H=1,S=170,R=190,E=192,F=128 bf16 attention_mma_rows_64x32_d192",
    "tests/attention:queries B=1,H=1,S=170,R=150,E=200,F=256 bf16 attention_mma_rows_64x16_d256",
    "tests/attention:keys B=1,H=3,G=2,S=352,R=340,E=64,F=64 bf16 attention_mma_pair_64x32_d64",
    "tests/attention:dropout_keys B=1,H=1,G=2,S=90,R=140,E=16,F=32 bf16 attention_mma_pair_64x32_d64",
    "tests/attention:keys B=1,H=2,G=3,S=190,R=340,E=128,F=128 f16 attention_mma_pair_128x32_d128",
    "tests/attention:keys B=1,H=1,G=3,S=90,R=70,E=72,F=104 bf16 attention_mma_pair_64x32_d128",
    "tests/attention:keys B=1,H=1,G=1,S=150,R=170,E=192,F=128 bf16 attention_mma_pair_64x16_d192",
};
enum { MMA_CASES = sizeof mma_cases / sizeof *mma_cases };

static void test_attention(void) {
    static task tasks[2 * MMA_CASES];
    int count = 0, before = refused + slow;
    for (int i = 0; i < MMA_CASES; i++) {
        variant v;
        char more[80];
        const loaded *l = read_row(mma_cases[i], &v, more);
        task oracle = {.l = l, .o = {.type = v.type}, .oracle = calloc(1, sizeof(oracles))};
        if (!check(oracle.oracle && l, "%s loads", mma_cases[i])) {
            free(oracle.oracle);
            continue;
        }
        tasks[count++] = oracle;
        tasks[count++] = compile_task(l, v.type, EPI_PATH_FUSED, EPI_ROUND_PACKED, device ? v.config : NULL);
    }
    run_tasks(tasks, count);
    check(refused + slow == before, "no configuration of attention that is listed is refused");
}

/* ---- gather, scatter and random numbers ---- */

/* Without a product nothing is left open: a GPU's passes give the bits of the CPU's, sums apart. */
static void test_moves_bits(void) {
    for (int i = 0; i < MOVES && !broken; i++) {
        const test_case *c = &moves[i];
        epi_options o = case_options(moved(i), EPI_F32, EPI_PATH_FUSED);
        epi_kernel *k[2] = {NULL, NULL};
        problem cpu = {0};
        on_device d = {0};
        bits first = {0};
        epi_kernel_info info = {0};
        bool ok = epi_kernel_compile(moved(i)->program, &o, &k[0], NULL) == EPI_OK;
        if (ok)
            epi_kernel_get_info(k[0], &info);
        if (ok && (c->flags & SUMS || info.m || !strcmp(info.mainloop, "gemm") ||
                   !strcmp(info.mainloop, "parts"))) {
            epi_kernel_free(k[0]);
            continue;
        }
        o.device = device;
        ok = ok && epi_kernel_compile(moved(i)->program, &o, &k[1], NULL) == EPI_OK &&
             problem_make(&cpu, moved(i)->program, k[0], LAYOUT_PLAIN);
        if (check(ok, "%s %s compiles on both", c->program, c->dims) &&
            on_device_make(&d, moved(i)->program, k[1])) {
            problem_fill(&cpu, CASE_SEED);
            check(problem_run(k[0], &cpu) && run_once(k[1], &d, c->program) && bits_agree(&first, &cpu) &&
                      bits_agree(&first, &d.host),
                  "%s %s: the bits of the CPU", c->program, c->dims);
            on_device_free(&d);
        }
        bits_free(&first);
        problem_free(&cpu);
        epi_kernel_free(k[0]);
        epi_kernel_free(k[1]);
    }
}

/* An i32 input out of range is no error of a run on a GPU: gather gives 0, scatter leaves it out. */
static void test_outside(void) {
    static const char text[] = "f(x[V], i: i32[T]) -> (y[T], s[V]) { y = x[i] s = scatter(1, i, V) }";
    static const int32_t index[] = {2, -1, 3, 0, 2, INT32_MIN, INT32_MAX};
    static const double y[] = {7, 0, 0, 5, 7, 0, 0}, s[] = {1, 0, 2};
    epi_dim_binding dims[] = {{"V", 3}, {"T", 7}};
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = 2, .device = device);
    epi_module *m = NULL;
    epi_kernel *k = NULL;
    on_device d;
    bool ok = epi_module_parse(ctx, text, sizeof text - 1, "outside", &m, NULL) == EPI_OK &&
              epi_kernel_compile(epi_module_program(m, 0), &o, &k, NULL) == EPI_OK;
    if (check(ok, "compiles") && on_device_make(&d, epi_module_program(m, 0), k)) {
        for (int i = 0; i < 3; i++)
            put_element(d.host.t[0].data, EPI_F32, i, 5 + i);
        memcpy(d.host.t[1].data, index, sizeof index);
        ok = run_once(k, &d, "outside");
        for (int i = 0; i < 7; i++)
            ok &= get_element(d.host.t[2].data, EPI_F32, i) == y[i];
        for (int i = 0; i < 3; i++)
            ok &= get_element(d.host.t[3].data, EPI_F32, i) == s[i];
        check(ok, "indices out of range on a GPU");
        on_device_free(&d);
    }
    epi_kernel_free(k);
    epi_module_free(m);
}

/* Sums of millions of equal terms do not drift; see test_sums.c, which holds the CPU to the same bound. */
static void test_long_sums(void) {
    static const char text[] = "scattered(x[T,D], i: i32[T]) -> y[V,D] { y = scatter(x, i, V) }\n"
                               "down(x[T,D]) -> y[D] { y = sum(x, T) }\n"
                               "along(x[D,T]) -> y[D] { y = sum(x, T) }\n";
    static const struct {
        int program, columns;
        epi_path path;
    } sums[] = {{0, 2, EPI_PATH_FUSED},  {0, 2, EPI_PATH_UNFUSED}, {1, 2, EPI_PATH_FUSED},
                {1, 24, EPI_PATH_FUSED}, {2, 2, EPI_PATH_FUSED},   {1, 2, EPI_PATH_UNFUSED}};
    enum { TERMS = 1 << 22, COUNT = sizeof sums / sizeof *sums };
    epi_module *m = NULL;
    if (!check(epi_module_parse(ctx, text, sizeof text - 1, "sums", &m, NULL) == EPI_OK, "parses"))
        return;
    for (int i = 0; i < COUNT && !broken; i++) {
        epi_dim_binding dims[] = {{"T", TERMS}, {"D", sums[i].columns}, {"V", 1}};
        const epi_program *program = epi_module_program(m, sums[i].program);
        epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = sums[i].program ? 2 : 3, .device = device,
                                    .path = sums[i].path);
        epi_kernel *k = NULL;
        on_device d;
        if (check(epi_kernel_compile(program, &o, &k, NULL) == EPI_OK, "compiles") &&
            on_device_make(&d, program, k)) {
            for (int64_t e = 0; e < d.host.t[0].shape.count; e++)
                put_element(d.host.t[0].data, EPI_F32, e, (double)0.1f);
            if (d.host.inputs > 1)
                memset(d.host.t[1].data, 0, TERMS * sizeof(int32_t));
            double exact = (double)0.1f * TERMS;
            bool ran = run_once(k, &d, epi_program_name(program));
            double error = fabs(get_element(d.host.t[d.host.inputs].data, EPI_F32, 0) / exact - 1);
            check(ran && error <= 2e-6, "%s of %d columns, %s: 0.1 %d times is off by %.2e, 2e-06 is allowed",
                  epi_program_name(program), sums[i].columns,
                  sums[i].path == EPI_PATH_FUSED ? "fused" : "unfused", TERMS, error);
            on_device_free(&d);
        }
        epi_kernel_free(k);
    }
    epi_module_free(m);
}

/* ---- a row does not see its batch ---- */

enum { BATCH = 300 };
static const char *const row_cases[] = {
    "matmul:matmul M=300,N=520,K=200",
    "residual_rms:residual_rms T=300,D=512,K=256",
    "layernorm_linear:layernorm_residual T=300,D=520,K=256",
    "norm_cross_entropy:norm_cross_entropy T=300,D=64,V=2048",
};
enum { ROW_CASES = sizeof row_cases / sizeof *row_cases };

static void compare_rows(const task *many, const task *one, const char *what) {
    epi_kernel_info a, b;
    on_device m;
    epi_kernel_get_info(many->kernel, &a);
    epi_kernel_get_info(one->kernel, &b);
    if (strcmp(a.mainloop, b.mainloop) != 0 || strncmp(a.micro, b.micro, 4) != 0)
        return; /* the model chose another mainloop for one row: another order of the sum */
    if (!on_device_make(&m, many->l->program, many->kernel))
        return;
    if (run_once(many->kernel, &m, what))
        compare_with_one(BATCH, one, &m, what);
    on_device_free(&m);
}

static void test_rows(void) {
    int configs = mode == FULL || mode == SAMPLE ? epi_config_count() : 0, count = 0;
    task *tasks = calloc((size_t)(2 * ROW_CASES * (configs + 1)), sizeof *tasks);
    bool ok = check(tasks != NULL, "memory");
    for (int i = 0; i < ROW_CASES && ok; i++) {
        variant v;
        char more[80];
        const loaded *many = read_row(row_cases[i], &v, more),
                     *one = many ? with_size(many, "=300", "=1") : NULL;
        ok = one != NULL;
        for (int c = -1; c < configs && ok; c++)
            for (int n = 0; n < 2; n++)
                tasks[count++] = compile_task(n ? one : many, EPI_BF16, EPI_PATH_FUSED, EPI_ROUND_PACKED,
                                              c < 0 ? NULL : epi_config_name(c));
    }
    pool p;
    pool_start(&p, tasks, ok ? count : 0);
    for (int i = 0; i < p.count && !broken; i += 2) {
        char what[256], variant[128];
        pool_wait(&p, &tasks[i]);
        pool_wait(&p, &tasks[i + 1]);
        describe_task(&tasks[i], variant, sizeof variant);
        snprintf(what, sizeof what, "rows of %s, %s", tasks[i].l->from->program, variant);
        bool both = task_compiled(&tasks[i], variant); /* each is counted */
        both &= task_compiled(&tasks[i + 1], variant);
        if (both)
            compare_rows(&tasks[i], &tasks[i + 1], what);
    }
    pool_end(&p);
    free(tasks);
}

/* ---- streams and graphs: the driver's own calls, as a caller has them ---- */

static struct {
    int (*stream_make)(void **stream, unsigned flags);
    int (*stream_free)(void *stream);
    int (*stream_wait)(void *stream);
    int (*event_make)(void **event, unsigned flags);
    int (*event_free)(void *event);
    int (*capture_begin)(void *stream, int capture_mode);
    int (*capture_end)(void *stream, void **graph);
    int (*graph_ready)(void **executable, void *graph, unsigned long long flags);
    int (*graph_start)(void *executable, void *stream);
    int (*graph_free)(void *graph);
    int (*ready_free)(void *executable);
} cu;

static bool find_driver(void) {
    static const struct {
        const char *name;
        void *to;
    } calls[] = {
        {"cuStreamCreate", &cu.stream_make},      {"cuStreamDestroy_v2", &cu.stream_free},
        {"cuStreamSynchronize", &cu.stream_wait}, {"cuStreamBeginCapture_v2", &cu.capture_begin},
        {"cuStreamEndCapture", &cu.capture_end},  {"cuGraphInstantiateWithFlags", &cu.graph_ready},
        {"cuGraphLaunch", &cu.graph_start},       {"cuGraphDestroy", &cu.graph_free},
        {"cuGraphExecDestroy", &cu.ready_free},   {"cuEventCreate", &cu.event_make},
        {"cuEventDestroy_v2", &cu.event_free},
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    bool ok = check(library != NULL, "the driver opens");
    for (size_t i = 0; i < sizeof calls / sizeof *calls && ok; i++) {
        void *call = dlsym(library, calls[i].name);
        ok = check(call != NULL, "the driver has %s", calls[i].name);
        memcpy(calls[i].to, &call, sizeof call);
    }
    return ok;
}

enum { NON_BLOCKING = 1, CAPTURE_GLOBAL = 0 };

/* NULL on the CPU. */
static bool make_stream(void **stream) {
    *stream = NULL;
    return !device || check(cu.stream_make(stream, NON_BLOCKING) == 0, "a stream is made");
}

static void free_stream(void *stream) {
    if (stream)
        cu.stream_free(stream);
}

/* Compiled as the model would, by the calling thread. */
static epi_kernel *chosen_kernel(const loaded *l) {
    task t = compile_task(l, EPI_BF16, EPI_PATH_FUSED, EPI_ROUND_PACKED, NULL);
    t.status = epi_kernel_compile(l->program, &t.o, &t.kernel, &t.err);
    return task_compiled(&t, "bf16 chosen") ? t.kernel : NULL;
}

/* The last case of a program: the largest. */
static const loaded *last_case(const char *program, int flag) {
    int found = 0;
    for (int i = 0; i < CASES; i++)
        if (!strcmp(cases[i].program, program) && cases[i].flags & flag)
            found = i;
    return case_of(found);
}

/* Records the start of a kernel, and returns whether all went well up to an executable graph. */
static bool capture(const epi_kernel *k, const on_device *d, void *stream, void **ready) {
    epi_error err = {0};
    void *graph = NULL;
    *ready = NULL;
    if (!check(cu.capture_begin(stream, CAPTURE_GLOBAL) == 0, "a capture begins"))
        return false;
    epi_status status = epi_kernel_start(k, d->args, d->host.count, d->workspace, stream, &err);
    int code = cu.capture_end(stream, &graph);
    bool ok = check(status == EPI_OK && code == 0 && graph, "a start is captured: %s, %d", err.message, code);
    if (ok) {
        code = cu.graph_ready(ready, graph, 0);
        ok = check(code == 0, "the graph is made ready: %d", code);
    }
    if (graph)
        cu.graph_free(graph);
    return ok;
}

/* The same bits as before, again and again from one graph. */
static void repeat_graph(const epi_kernel *k, on_device *d, bits *first, const char *what) {
    void *stream = NULL, *ready = NULL;
    epi_error err = {0};
    bool intact;
    if (make_stream(&stream) && capture(k, d, stream, &ready))
        for (int i = 0; i < 2 && !broken; i++) {
            watch("a graph");
            bool ok = upload(d, &err) && cu.graph_start(ready, stream) == 0;
            broken = cu.stream_wait(stream) != 0;
            ok = ok && !broken && download(d, &intact, &err) && intact;
            alarm(0);
            check(ok && bits_agree(first, &d->host), "%s from a graph gives the same bits: %s", what,
                  err.message);
        }
    if (ready)
        cu.ready_free(ready);
    free_stream(stream);
}

static void test_graph(const char *program) {
    epi_kernel *k = chosen_kernel(last_case(program, LARGE));
    on_device d;
    bits first = {0};
    if (!k || !on_device_make(&d, last_case(program, LARGE)->program, k)) {
        epi_kernel_free(k);
        return;
    }
    if (run_once(k, &d, program) && bits_agree(&first, &d.host))
        repeat_graph(k, &d, &first, program);
    bits_free(&first);
    on_device_free(&d);
    epi_kernel_free(k);
}

/* One graph of a layer of decode.epi serves every step: positions are read from device memory, and the caches
 * are updated in place. The bits are those of a start with results apart. */
static void test_decode_graph(void) {
    enum { POSITION = 12, KEYS = 13, Y = 16, STEPS = 4 };
    const loaded *l = last_case("decode_layer", LARGE);
    epi_kernel *k = chosen_kernel(l);
    on_device d;
    epi_error err = {0};
    void *stream = NULL, *ready = NULL;
    if (!k || !on_device_make(&d, l->program, k)) {
        epi_kernel_free(k);
        return;
    }
    void *apart[] = {d.args[Y + 1].data, d.args[Y + 2].data};
    for (int cache = 0; cache < 2; cache++)
        d.args[Y + 1 + cache].data = d.args[KEYS + cache].data;
    bool captured = make_stream(&stream) && capture(k, &d, stream, &ready);
    for (int cache = 0; cache < 2; cache++)
        d.args[Y + 1 + cache].data = apart[cache];
    for (int step = 0; step < STEPS && captured && !broken; step++) {
        const tensor *at = &d.host.t[POSITION];
        bits want = {0};
        for (int64_t b = 0; b < at->shape.count; b++)
            put_element(at->data, EPI_I32, b, (double)((37 * step + 11 * b) % d.host.t[KEYS].shape.sizes[1]));
        bool ok = run_once(k, &d, "a step of decoding") && bits_agree(&want, &d.host);
        watch("a graph");
        ok = ok && upload(&d, &err) && cu.graph_start(ready, stream) == 0;
        broken = broken || cu.stream_wait(stream) != 0;
        for (int o = 0; o < 3 && ok && !broken; o++) {
            const tensor *out = &d.host.t[Y + o];
            ok = epi_device_copy(ctx, device, out->data, d.args[o ? KEYS - 1 + o : Y].data,
                                 (size_t)out->span * epi_dtype_size(out->shape.type), &err) == EPI_OK;
        }
        alarm(0);
        check(ok && !broken && bits_agree(&want, &d.host),
              "step %d from the one graph, caches in place, gives the bits of a start: %s", step,
              err.message);
        bits_free(&want);
    }
    if (ready)
        cu.ready_free(ready);
    free_stream(stream);
    on_device_free(&d);
    epi_kernel_free(k);
}

/* ---- schedules of Hopper's product ---- */

/* Whoever takes a tile, whenever its epilogue runs, the bits are the same. Returns whether it ran. */
static bool run_schedule(const task *t, bits *first) {
    const char *config = t->o.config;
    on_device d;
    if (!task_compiled(t, config))
        return false;
    if (on_device_make(&d, t->l->program, t->kernel)) {
        for (int run = 0; run < 3 && run_once(t->kernel, &d, config); run++)
            check(bits_agree(first, &d.host), "%s, run %d: another schedule, other bits", config, run);
        if (!broken)
            repeat_graph(t->kernel, &d, first, config);
        on_device_free(&d);
    }
    return true;
}

/* Tiles for several waves; fewer slots than the ring has, and more; loads, and folds down the rows; operands
 * that tiles of 192 and more columns copy themselves and others have copied ahead; last columns of tiles that
 * are narrow, but in turn. */
static void test_schedules(void) {
    static const char *const wide[] = {
        "matmul:matmul M=300,N=20480,K=64",
        "residual_rms:residual_rms T=300,D=20480,K=520",
        "rmsnorm_backward:rmsnorm_backward T=300,D=20480,F=200",
        "matmul:matmul M=300,N=16384,K=2571",
        "residual_rms:residual_rms T=3001,D=3072,K=1023",
        "layernorm_linear:layernorm_residual T=3001,D=3072,K=520",
        "matmul:matmul_nn M=3001,N=3080,K=520",
        "norm_swiglu:norm_swiglu T=3001,F=3078,D=1023",
        "cross_entropy:cross_entropy T=3001,V=3077,D=520",
        "rmsnorm_backward:rmsnorm_backward T=3001,D=2856,F=200",
        "norm_swiglu:norm_swiglu T=300,F=20490,D=200",
    };
    enum { WIDE = sizeof wide / sizeof *wide };
    static const char *const configs[2][4] = {
        {"sm90_128x256_c2_d", "sm90_128x256_c2_dq", "sm90_128x128_c2_d", "sm90_128x256_c1_d"},
        {"sm90_128x256_c2_e", "sm90_128x256_c2_eq", "sm90_128x192_c2_dq", "sm90_128x128_c2_d"}};
    enum { CONFIGS = 4, TASKS = 2 * WIDE * CONFIGS };
    const loaded *l[WIDE];
    static task tasks[TASKS];
    if (ctx->cuda.devices[device - 1].major != 9)
        return;
    for (int i = 0; i < WIDE; i++) {
        variant v;
        char more[80];
        if (!(l[i] = read_row(wide[i], &v, more)))
            return;
    }
    for (int i = 0; i < TASKS; i++) {
        int exact = i / CONFIGS % 2;
        tasks[i] = compile_task(l[i / CONFIGS / 2], EPI_BF16, EPI_PATH_FUSED,
                                exact ? EPI_ROUND_EXACT : EPI_ROUND_PACKED, configs[exact][i % CONFIGS]);
    }
    pool p;
    bits first = {0};
    int ran = 0;
    pool_start(&p, tasks, TASKS);
    for (int i = 0; i < TASKS && !broken; i++) {
        pool_wait(&p, &tasks[i]);
        ran += run_schedule(&tasks[i], &first);
        epi_kernel_free(tasks[i].kernel);
        tasks[i].kernel = NULL;
        if (i % CONFIGS == CONFIGS - 1) {
            check(ran > 1, "%s: %d schedules to compare", tasks[i].l->from->program, ran);
            bits_free(&first);
            ran = 0;
        }
    }
    pool_end(&p);
    bits_free(&first);
}

/* ---- what a start costs the host ---- */

static void test_launch_cost(void) {
    enum { ROUNDS = 10, EACH = 200 };
    const loaded *l = last_case("norm_swiglu", TINY);
    epi_kernel *k = chosen_kernel(l);
    on_device d;
    void *stream = NULL;
    epi_error err = {0};
    if (!k || !on_device_make(&d, l->program, k)) {
        epi_kernel_free(k);
        return;
    }
    bool ok = run_once(k, &d, "the launch cost") && make_stream(&stream);
    double spent = 0;
    watch("the launch cost");
    for (int round = 0; round <= ROUNDS && ok; round++) { /* the first warms up */
        double start = seconds();
        for (int i = 0; i < EACH && ok; i++)
            ok = epi_kernel_start(k, d.args, d.host.count, d.workspace, stream, &err) == EPI_OK;
        spent += round ? seconds() - start : 0;
        ok = ok && cu.stream_wait(stream) == 0;
    }
    alarm(0);
    double us = 1e6 * spent / (ROUNDS * EACH);
    printf("a start of norm_swiglu takes %.2f us of the host's time (goal: 4)\n", us);
    check(ok && us < 20, "a start takes %.2f us of the host's time: %s", us, err.message);
    free_stream(stream);
    on_device_free(&d);
    epi_kernel_free(k);
}

/* ---- two threads, two kernels, two streams ---- */

typedef struct runner {
    const epi_kernel *kernel;
    on_device d;
    void *stream;
    bool ok;
    epi_error err;
} runner;

static void *run_often(void *arg) {
    runner *r = arg;
    r->ok = true;
    for (int i = 0; i < 50 && r->ok; i++)
        r->ok = epi_kernel_start(r->kernel, r->d.args, r->d.host.count, r->d.workspace, r->stream, &r->err) ==
                EPI_OK;
    if (device)
        r->ok &= cu.stream_wait(r->stream) == 0;
    return NULL;
}

static void test_threads(void) {
    static const char *const programs[] = {"residual_rms", "swiglu_backward"};
    runner r[2] = {0};
    bits alone[2] = {0};
    pthread_t threads[2];
    bool ok = true;
    epi_error err = {0};
    for (int i = 0; i < 2 && ok; i++) {
        const loaded *l = last_case(programs[i], LARGE);
        r[i].kernel = chosen_kernel(l);
        ok = r[i].kernel && on_device_make(&r[i].d, l->program, r[i].kernel) &&
             run_once(r[i].kernel, &r[i].d, programs[i]) && bits_agree(&alone[i], &r[i].d.host) &&
             make_stream(&r[i].stream);
    }
    for (int i = 0; i < 2 && ok; i++)
        ok = check(upload(&r[i].d, &err), "%s", err.message);
    watch("two threads");
    int started = 0;
    while (started < 2 && ok && pthread_create(&threads[started], NULL, run_often, &r[started]) == 0)
        started++;
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < started; i++) {
        bool intact = false, same = r[i].ok && download(&r[i].d, &intact, &err) && intact;
        same = same && bits_agree(&alone[i], &r[i].d.host);
        check(same, "%s beside another kernel gives what it gives alone: %s%s", programs[i], r[i].err.message,
              err.message);
    }
    alarm(0);
    check(!ok || started == 2, "two threads");
    for (int i = 0; i < 2; i++) {
        free_stream(r[i].stream);
        bits_free(&alone[i]);
        on_device_free(&r[i].d);
        epi_kernel_free((epi_kernel *)(uintptr_t)r[i].kernel);
    }
}

/* ---- a run that waits for another stream's ---- */

/* One is added again and again, from one tensor to the other, by two streams in turn: each start waits for
 * the event that the one before records behind its work. Were one of them early, some sum would be short. */
static void test_events(void) {
    enum { ROUNDS = 100, ELEMENTS = 1 << 24 };
    static const char text[] = "f(x: f32[N]) -> y: f32[N] { y = x + 1 }";
    epi_dim_binding dims[] = {{"N", ELEMENTS}};
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = 1, .device = device);
    epi_module *m = NULL;
    epi_kernel *k = NULL;
    epi_error err = {0};
    void *tensor[2] = {NULL, NULL}, *workspace[2] = {NULL, NULL}, *stream[2] = {NULL, NULL},
         *event[2] = {NULL, NULL};
    float *host = calloc(ELEMENTS, sizeof *host);
    bool ok = host && epi_module_parse(ctx, text, strlen(text), "events", &m, &err) == EPI_OK &&
              epi_kernel_compile(epi_module_program(m, 0), &o, &k, &err) == EPI_OK;
    for (int i = 0; i < 2 && ok; i++)
        ok = epi_device_alloc(ctx, device, ELEMENTS * sizeof *host, &tensor[i], &err) == EPI_OK &&
             epi_device_alloc(ctx, device, epi_kernel_workspace(k), &workspace[i], &err) == EPI_OK &&
             epi_device_copy(ctx, device, tensor[i], host, ELEMENTS * sizeof *host, &err) == EPI_OK &&
             make_stream(&stream[i]) && cu.event_make(&event[i], 0) == 0;
    watch("events");
    for (int i = 0; i < ROUNDS && ok; i++) {
        epi_tensor tensors[] = {{tensor[i % 2], NULL}, {tensor[!(i % 2)], NULL}};
        epi_call call = EPI_CALL(.tensors = tensors, .count = 2, .workspace = workspace[i % 2],
                                 .stream = stream[i % 2], .signal = event[i % 2]);
        call.wait = i ? event[!(i % 2)] : NULL;
        ok = epi_kernel_call(k, &call, &err) == EPI_OK;
    }
    for (int i = 0; i < 2 && ok; i++)
        ok = cu.stream_wait(stream[i]) == 0;
    ok = ok && epi_device_copy(ctx, device, host, tensor[0], ELEMENTS * sizeof *host, &err) == EPI_OK;
    alarm(0);
    int64_t wrong = 0;
    for (int64_t i = 0; i < ELEMENTS && ok; i++)
        wrong += host[i] != ROUNDS;
    check(ok && !wrong, "starts wait for events and record them: %ld elements are wrong: %s", (long)wrong,
          err.message);
    for (int i = 0; i < 2; i++) {
        if (event[i])
            cu.event_free(event[i]);
        free_stream(stream[i]);
        if (workspace[i])
            epi_device_free(ctx, device, workspace[i], NULL);
        if (tensor[i])
            epi_device_free(ctx, device, tensor[i], NULL);
    }
    epi_kernel_free(k);
    epi_module_free(m);
    free(host);
}

/* ---- a tensor of more than 2^31 elements ---- */

enum { BIG_M = 70000, BIG_N = 32768, BIG_K = 64, SAMPLES = 400 };

/* One element of the result against its dot product. Its error: the rounding when it is stored, and one unit
 * of f32 for every term. */
static bool sample_big(const uint16_t *a, const uint16_t *b, const void *c, int64_t row, int64_t col) {
    uint16_t got;
    epi_error err;
    const unsigned char *at = (const unsigned char *)c + 2 * (row * BIG_N + col);
    if (epi_device_copy(ctx, device, &got, at, 2, &err) != EPI_OK)
        return check(false, "%s", err.message);
    double want = 0, size = 0;
    for (int k = 0; k < BIG_K; k++) {
        double term = get_element(a, EPI_BF16, row * BIG_K + k) * get_element(b, EPI_BF16, col * BIG_K + k);
        want += term;
        size += fabs(term);
    }
    double error = apart(get_element(&got, EPI_BF16, 0), want);
    return check(error <= type_unit(EPI_BF16) * fabs(want) + BIG_K * 0x1p-24 * size,
                 "element %ld,%ld of a large result: error %g of %g", (long)row, (long)col, error, want);
}

static void sample_all(const uint16_t *a, const uint16_t *b, const void *c) {
    /* element 2^31 is the first of row 65536 */
    static const int64_t rows[] = {0, 1, 32767, 32768, 65535, 65536, 65537, BIG_M - 1};
    bool ok = true;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int64_t col = 0; col < BIG_N; col += BIG_N - 1)
            ok &= sample_big(a, b, c, rows[i], col);
    uint64_t s = 31;
    for (int i = 0; i < SAMPLES && ok; i++) {
        int row = random_below(&s, BIG_M), col = random_below(&s, BIG_N);
        ok = sample_big(a, b, c, row, col);
    }
}

static void run_big(const loaded *l, const uint16_t *a, const uint16_t *b, epi_rounding rounding) {
    const size_t bytes[] = {2ul * BIG_M * BIG_K, 2ul * BIG_N * BIG_K, 2ul * BIG_M * BIG_N + ZONE};
    const void *from[] = {a, b};
    task t = compile_task(l, EPI_BF16, EPI_PATH_FUSED, rounding, NULL);
    epi_tensor args[3] = {0};
    void *workspace = NULL;
    epi_error err = {0};
    bool ok = true;
    t.status = epi_kernel_compile(l->program, &t.o, &t.kernel, &t.err);
    if (!task_compiled(&t, "beyond 2^31 elements"))
        return;
    watch("a large result");
    for (int i = 0; i < 3 && ok; i++) {
        ok = epi_device_alloc(ctx, device, bytes[i], &args[i].data, &err) == EPI_OK;
        if (ok && i < 2)
            ok = epi_device_copy(ctx, device, args[i].data, from[i], bytes[i], &err) == EPI_OK;
        else if (ok)
            ok = epi_cuda_fill(&ctx->cuda, args[i].data, POISON, bytes[i], &err) == EPI_OK;
    }
    ok = ok && epi_device_alloc(ctx, device, epi_kernel_workspace(t.kernel), &workspace, &err) == EPI_OK &&
         epi_kernel_run(t.kernel, args, 3, workspace, &err) == EPI_OK;
    if (ok) {
        unsigned char zone[ZONE];
        broken = epi_device_wait(ctx, device, &err) != EPI_OK;
        ok = !broken &&
             epi_device_copy(ctx, device, zone, (char *)args[2].data + bytes[2] - ZONE, ZONE, &err) == EPI_OK;
        for (int i = 0; i < ZONE && ok; i++)
            ok = check(zone[i] == POISON, "a large result: nothing is written behind it");
    }
    if (check(ok, "a large result: %s", err.message))
        sample_all(a, b, args[2].data);
    alarm(0);
    for (int i = 0; i < 3; i++)
        epi_device_free(ctx, device, args[i].data, NULL);
    epi_device_free(ctx, device, workspace, NULL);
    epi_kernel_free(t.kernel);
}

static void test_big(void) {
    if (ctx->cuda.devices[device - 1].memory < (int64_t)40 << 30) {
        printf("a result beyond 2^31 elements is left out: the device has less than 40 GiB\n");
        return;
    }
    uint16_t *a = malloc(2ul * BIG_M * BIG_K), *b = malloc(2ul * BIG_N * BIG_K);
    const loaded *l = program_with("matmul", NULL, "matmul", "M=70000,N=32768,K=64");
    uint64_t s = 17;
    if (check(a && b, "memory") && l) {
        for (int64_t i = 0; i < (int64_t)BIG_M * BIG_K; i++)
            put_element(a, EPI_BF16, i, 2 * random_unit(&s) - 1);
        for (int64_t i = 0; i < (int64_t)BIG_N * BIG_K; i++)
            put_element(b, EPI_BF16, i, 2 * random_unit(&s) - 1);
        for (int exact = 0; exact < 2 && !broken; exact++)
            run_big(l, a, b, exact ? EPI_ROUND_EXACT : EPI_ROUND_PACKED);
    }
    free(a);
    free(b);
}

/* ---- open sizes ---- */

/* What compiling has written to an empty cache. */
static int count_cubins(const char *folder) {
    int count = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));)
        count += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return count;
}

static void remove_folder(const char *folder) {
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.')
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    rmdir(folder);
}

/* One size: the bits of a kernel that was compiled for it alone. */
static void compare_open(const epi_kernel *open, const loaded *l, int64_t size) {
    epi_kernel *exact = chosen_kernel(l);
    on_device d;
    char what[200];
    bits first = {0};
    if (!exact)
        return;
    snprintf(what, sizeof what, "%s at %ld", l->from->program, (long)size);
    if (on_device_make(&d, l->program, exact)) {
        check(run_once(exact, &d, what) && bits_agree(&first, &d.host) && run_sized(open, &d, &size, what) &&
                  bits_agree(&first, &d.host),
              "%s: one handle for all sizes gives the same bits", what);
        on_device_free(&d);
    }
    bits_free(&first);
    epi_kernel_free(exact);
}

/* A handle is compiled into an empty cache; its forms for fewer rows come with the first other size, and nothing with the next. */
static void test_open(const char *program) {
    static const int64_t sizes[] = {1, 130, 1500};
    static const char *const axes[] = {"T"};
    char cache[] = "/tmp/epilog_open_XXXXXX";
    const char *set = getenv("EPILOG_CACHE");
    char *before = set ? strdup(set) : NULL;
    loaded l = *last_case(program, LARGE);
    epi_kernel *k = NULL;
    epi_error err = {0};
    if (!check(mkdtemp(cache) != NULL, "a folder for a cache"))
        return;
    setenv("EPILOG_CACHE", cache, 1);
    for (int i = 0; i < l.dim_count; i++)
        l.dims[i].size = strcmp(l.dims[i].name, "T") ? l.dims[i].size : 2048;
    epi_options o = case_options(&l, EPI_BF16, EPI_PATH_FUSED);
    o.device = device;
    o.open_axes = axes;
    o.open_axis_count = 1;
    bool ok = check(epi_kernel_compile(l.program, &o, &k, &err) == EPI_OK, "%s compiles open: %s", program,
                    err.message);
    int compiled = count_cubins(cache);
    check(!ok || !device || compiled > 0, "%s was compiled", program);
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes && ok; n++) {
        size_t bytes;
        check(epi_kernel_workspace_at(k, &sizes[n], 1, &bytes, &err) == EPI_OK, "%s at %ld: %s", program,
              (long)sizes[n], err.message);
        check(n == 0 || count_cubins(cache) == compiled,
              "%s: nothing is compiled when its size changes again", program);
        compiled = count_cubins(cache);
    }
    if (before)
        setenv("EPILOG_CACHE", before, 1);
    else
        unsetenv("EPILOG_CACHE");
    free(before);
    remove_folder(cache);
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes && ok && !broken; n++) {
        for (int i = 0; i < l.dim_count; i++)
            l.dims[i].size = strcmp(l.dims[i].name, "T") ? l.dims[i].size : sizes[n];
        compare_open(k, &l, sizes[n]);
    }
    epi_kernel_free(k);
}

/* ---- all of it ---- */

static void test_all(void) {
    bool ok = true;
    for (int i = 0; i < CASES; i++)
        ok &= case_of(i) != NULL;
    for (int i = 0; i < MOVES; i++)
        ok &= moved(i) != NULL;
    if (ok) {
        test_cases();
        if (!broken)
            test_attention();
        if (!broken && mode != SANITIZE)
            test_moves_bits();
        if (!broken)
            test_row_shapes();
        if (device && !broken)
            test_outside();
        if (!broken && mode != SANITIZE)
            test_long_sums();
        bool driver = device && !broken && mode != SANITIZE && find_driver();
        if (!broken && mode != SANITIZE)
            test_rows();
        if (driver && !broken)
            test_graph("residual_rms");
        if (driver && !broken)
            test_graph("norm_swiglu");
        if (driver && !broken)
            test_graph("llama_mlp"); /* a program in parts */
        if (driver && !broken)
            test_decode_graph();
        static const char *const opened[] = {"llama_mlp", "norm_swiglu", "linear_grad_w", "rmsnorm_backward"};
        for (int i = 0; i < 4 && (driver || !device) && !broken && mode != QUICK; i++)
            test_open(opened[i]);
        if (driver && !broken)
            test_schedules();
        if (driver && !broken)
            test_launch_cost();
        if ((driver || !device) && !broken)
            test_threads();
        if (driver && !broken)
            test_events();
        if (driver && !broken && (mode == FULL || mode == SAMPLE))
            test_big();
    }
    printf("%d combinations skipped: %d where the program does not fit the configuration, %d that would be "
           "slow\n",
           refused + slow, refused, slow);
}

int main(int argc, char **argv) {
    static const char *const modes[] = {"quick", "sample",    "full",     "sanitize",
                                        "cpu",   "schedules", "attention"};
    enum { MODES = sizeof modes / sizeof *modes };
    const char *name = argc > 2 ? argv[2] : "quick";
    int found = 0;
    setvbuf(stdout, NULL, _IOLBF, 0); /* what was found is not lost where a run is cut short */
    programs = argc > 1 ? argv[1] : "programs";
    while (found < MODES && strcmp(modes[found], name) != 0)
        found++;
    if (!check(found < MODES, "there is no mode '%s'", name) ||
        !check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    mode = found;
    device = mode != ON_CPU;
    passed = 0;
    signal(SIGALRM, on_alarm);
    if (device < epi_device_count(ctx)) {
        epi_device_info info;
        epi_device_get(ctx, device, &info);
        printf("%s: %s, %s\n", info.name, info.model, info.features);
        if (mode == ATTENTION)
            test_attention();
        else if (mode != SCHEDULES)
            test_all();
        else if (find_driver())
            test_schedules();
        free_programs();
        epi_context_close(ctx);
        return finish();
    }
    printf("no GPU: %s\n", epi_device_why_no_gpu(ctx));
    const char *need = getenv("EPILOG_NEED_GPU");
    if (need && *need && strcmp(need, "0") != 0)
        check(false, "a GPU is needed: %s", epi_device_why_no_gpu(ctx));
    epi_context_close(ctx);
    finish();
    return failed_count > 0;
}
