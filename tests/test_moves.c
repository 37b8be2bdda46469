/* test_moves.c: gather, scatter, update, uniform and dither: known answers, the table of moves.h against the
 * reference, what an index out of range does, and that nothing depends on the number of threads. */
#include "base/philox.h"
#include "cpu/strips.h"
#include "ir/ops.h"
#include "moves.h"

static epi_context *ctx;

/* ---- random numbers ---- */

/* The vectors that come with Random123. */
static void test_philox(void) {
    static const uint32_t known[][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb,
         0x5001e420, 0x24126ea1}};
    for (int i = 0; i < 3; i++) {
        uint32_t c[4][EPI_PHILOX_LANES];
        bool same = true;
        for (int w = 0; w < 4; w++)
            for (int l = 0; l < EPI_PHILOX_LANES; l++)
                c[w][l] = known[i][w];
        epi_philox(c, known[i][4], known[i][5]);
        for (int w = 0; w < 4; w++)
            for (int l = 0; l < EPI_PHILOX_LANES; l++)
                same &= c[w][l] == known[i][6 + w];
        check(same, "known answer %d of Philox4x32-10", i);
    }
}

/* The same generator once more, one number at a time. */
static double one_uniform(int32_t seed, int64_t e) {
    uint32_t c[4] = {(uint32_t)(e / 4), (uint32_t)((uint64_t)(e / 4) >> 32), 0, 0},
             k[2] = {(uint32_t)seed, 0};
    for (int round = 0; round < 10; round++) {
        uint64_t a = UINT64_C(0xd2511f53) * c[0], b = UINT64_C(0xcd9e8d57) * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k[1],
                            (uint32_t)a};
        memcpy(c, next, sizeof c);
        k[0] += 0x9e3779b9u;
        k[1] += 0xbb67ae85u;
    }
    return (double)(c[e % 4] >> 8) * 0x1p-24;
}

static void test_stretches(void) {
    static const int64_t firsts[] = {0, 1, 3, 4, 255, 1021, (INT64_C(1) << 34) - 2, (INT64_C(1) << 45) + 7};
    static const int lengths[] = {0, 1, 5, 64, 255, 1024};
    float x[1024];
    for (int f = 0; f < 8; f++)
        for (int n = 0; n < 6; n++) {
            bool same = true;
            epi_philox_uniform(x, -12345, firsts[f], lengths[n]);
            for (int i = 0; i < lengths[n]; i++)
                same &= (double)x[i] == one_uniform(-12345, firsts[f] + i);
            check(same, "uniform numbers %ld and the next %d", (long)firsts[f], lengths[n]);
        }
}

/* ---- a text with inputs that the test gives ---- */

typedef struct given {
    epi_module *module;
    epi_kernel *kernel;
    problem p;
} given;

static bool prepare(given *g, const char *text, const char *dims, epi_options o, layout how) {
    epi_dim_binding bound[16];
    char names[16][16];
    epi_error err = {0};
    *g = (given){0};
    o.dims = bound;
    o.dim_count = parse_dims(dims, bound, names);
    bool ok = epi_module_parse(ctx, text, strlen(text), "t.epi", &g->module, &err) == EPI_OK &&
              epi_kernel_compile(epi_module_program(g->module, 0), &o, &g->kernel, &err) == EPI_OK &&
              problem_make(&g->p, epi_module_program(g->module, 0), g->kernel, how);
    return check(ok, "%s compiles: %s", text, err.message);
}

static void drop(given *g) {
    problem_free(&g->p);
    epi_kernel_free(g->kernel);
    epi_module_free(g->module);
}

static void put(given *g, int tensor, const double *values) {
    const struct tensor *t = &g->p.t[tensor];
    for (int64_t i = 0; i < t->shape.count; i++)
        put_element(t->data, t->shape.type, tensor_at(t, i), values[i]);
}

static bool holds(const given *g, int tensor, const double *values) {
    const struct tensor *t = &g->p.t[tensor];
    bool same = true;
    for (int64_t i = 0; i < t->shape.count; i++)
        same &= get_element(t->data, t->shape.type, tensor_at(t, i)) == values[i];
    return same;
}

/* ---- by hand ---- */

static void test_by_hand(void) {
    static const struct {
        const char *text, *dims;
        double in[2][12], out[12];
    } cases[] = {
        {"f(x[V,D], i: i32[T]) -> y[T,D] { y = x[i] }",
         "V=3,D=2,T=4",
         {{1, 2, 3, 4, 5, 6}, {2, 0, 2, 1}},
         {5, 6, 1, 2, 5, 6, 3, 4}},
        {"f(x[T,V], i: i32[T]) -> y[T] { y = gather(x, i, V) }",
         "V=3,T=2",
         {{1, 2, 3, 4, 5, 6}, {2, 0}},
         {3, 4}},
        {"f(x[T,V], p: i32[V]) -> y[T,V] { y = gather(x, p, V) }",
         "V=3,T=2",
         {{1, 2, 3, 4, 5, 6}, {2, 0, 1}},
         {3, 1, 2, 6, 4, 5}},
        {"f(x[T,E], w[E]) -> y[T,K] { y = topk(x, E, K=3) }", /* of equal ones the first */
         "T=2,E=5",
         {{1, 3, 2, 3, 0, -7, -7, -0.0, 0, -7}, {0}},
         {1, 3, 2, 2, 3, 0}},
        {"f(x[E,T], w[E]) -> y[K,T] { y = topk(where(x > 8, 0/0, x), E, K) }", /* NaN is larger than all */
         "T=1,E=6,K=4",
         {{1, 9, -1, 9, 8, 0}, {0}},
         {1, 3, 4, 0}},
        {"f(e: i32[T,K], w[T]) -> p[T,K] { p = argsort(e, E) }",
         "T=3,K=2,E=4",
         {{3, 0, 3, 1, 3, 2}, {0}},
         {1, 3, 5, 0, 2, 4}},
        {"f(e: i32[T,K], w[T]) -> q[T,K] { q = rank(e, E) }",
         "T=3,K=2,E=4",
         {{3, 0, 3, 1, 3, 2}, {0}},
         {3, 0, 4, 1, 5, 2}},
        {"f(e: i32[T,K], w[T]) -> o[E] { o = offsets(e, E) }",
         "T=3,K=2,E=5",
         {{3, 0, 3, 1, 3, 1}, {0}},
         {0, 1, 3, 3, 6}},
        {"f(o[E], w[E]) -> s[T,K] { s = segments(o, E, T, K) }",
         "T=3,K=2,E=5",
         {{0, 1, 3, 3, 6}, {0}},
         {0, 1, 1, 3, 3, 3}},
        {"f(x[T,D], i: i32[S]) -> y[S,D] { y = gather(x, i, T, K) }",
         "T=2,K=3,D=2,S=4",
         {{1, 2, 3, 4}, {5, 0, 3, 2}},
         {3, 4, 1, 2, 3, 4, 1, 2}},
        {"f(d[S], i: i32[S]) -> y[K,T] { y = scatter(d, i, T, K) }",
         "T=2,K=2,S=4",
         {{1, 2, 3, 4}, {1, 0, 1, 2}},
         {2, 4, 4, 0}},
        {"f(x[T,V], p: i32[V]) -> y[T,V] { y = scatter(x, p, V) }",
         "V=3,T=2",
         {{3, 1, 2, 6, 4, 5}, {2, 0, 1}},
         {1, 2, 3, 4, 5, 6}},
        {"f(d[B,P], i: i32[B,P]) -> y[B,V] { y = scatter(d, i, P -> V) }",
         "B=2,V=3,P=3",
         {{1, 2, 4, 8, 16, 32}, {2, 0, 2, 1, 1, 0}},
         {2, 0, 5, 32, 24, 0}},
        {"f(d[P,B], i[Q,P]) -> y[V,P,B] { y = scatter(d, i, Q -> V) }", /* computed; d is the same along Q */
         "B=2,V=2,P=2,Q=2",
         {{1, 2, 4, 8}, {0.4, 1.6, -0.4, 1.4}},
         {2, 4, 0, 0, 0, 0, 4, 8}},
        {"f(d[P,B], i: i32[P,B]) -> y[K,B,T] { y = scatter(d, i, P -> T, K) }",
         "B=2,P=3,T=2,K=2",
         {{1, 2, 4, 8, 16, 32}, {3, 0, 1, 0, 3, 2}},
         {0, 0, 10, 32, 4, 17, 0, 0}},
        {"f(d[B,V], p: i32[B,V]) -> y[B,V] { y = scatter(d, p, V -> V) }",
         "V=3,B=2",
         {{1, 2, 3, 4, 5, 6}, {2, 0, 1, 1, 2, 0}},
         {2, 3, 1, 6, 4, 5}},
        {"f(d[B,P], i: i32[B,P]) -> y[B,V] { y = s(d, i) }  " /* a call carries the batch */
         "s(d[P], i: i32[P]) -> y[V] { y = scatter(d, i, P -> V) }",
         "B=2,V=3,P=3",
         {{1, 2, 4, 8, 16, 32}, {2, 0, 2, 1, 1, 0}},
         {2, 0, 5, 32, 24, 0}},
        {"f(d[B,P], i: i32[P]) -> y[B,V] { y = s(2*d, i) }  " /* or what is added up alone */
         "s(d[P], i: i32[P]) -> y[V] { y = scatter(d, i, V) }",
         "B=2,V=3,P=3",
         {{1, 2, 4, 8, 16, 32}, {2, 0, 2}},
         {4, 0, 10, 32, 0, 80}},
        {"f(d[T,D], i: i32[T]) -> y[V,D] { y = scatter(d, i, V) }",
         "V=3,D=2,T=4",
         {{1, 2, 3, 4, 5, 6, 7, 8}, {2, 0, 2, 2}},
         {3, 4, 0, 0, 13, 16}},
        {"f(d[D], i: i32[T]) -> y[V,D] { y = scatter(d, i, V) }",
         "V=3,D=2,T=4",
         {{1, 2}, {2, 0, 2, 2}},
         {1, 2, 0, 0, 3, 6}},
        {"f(d[T], i[T]) -> y[V] { y = scatter(d, i, V) }", /* computed: rounded, and dropped where outside */
         "V=3,T=4",
         {{1, 2, 4, 8}, {-0.4, 1.25, 2.75, 1.75}},
         {1, 2, 8}},
        {"f(x[V,D], c[T]) -> y[T,D] { y = gather(x, index(T) + 0, V) + 0*c }", /* counts further than there are */
         "V=2,D=2,T=4",
         {{1, 2, 4, 8}, {1, 2, 3, 4}},
         {1, 2, 4, 8, 0, 0, 0, 0}},
        {"f(x[V], i[T]) -> y[T] { y = x[i] }", "V=3,T=4", {{1, 2, 4}, {-0.4, 1.25, 2.75, -1}}, {1, 2, 0, 0}},
        {"f(x[V,2*D], i: i32[T]) -> y[T,2*D] { y = x[i] }",
         "V=2,D=1,T=3",
         {{1, 2, 3, 4}, {1, 0, 1}},
         {3, 4, 1, 2, 3, 4}},
        {"f(x[V], i: i32[V/2]) -> y[V/2] { y = x[i] }", "V=4", {{1, 2, 3, 4}, {3, 0}}, {4, 1}},
        {"f(x[T,R], i: i32[T]) -> y[T,R] { y = update(x, 9, i, R) }",
         "T=2,R=3",
         {{1, 2, 3, 4, 5, 6}, {2, 0}},
         {1, 2, 9, 9, 5, 6}},
        {"f(x[R,D], v[D]) -> y[R,D] { y = update(x, v, 1, R) }",
         "R=3,D=2",
         {{1, 2, 3, 4, 5, 6}, {7, 8}},
         {1, 2, 7, 8, 5, 6}},
        {"f(x[R], i[T]) -> y[R,T] { y = update(x + 0*index(T), 9, i, R) }", /* computed: rounded, or no place
                                                                             */
         "R=2,T=5",
         {{1, 2}, {-0.4, 1.25, 1.75, -1, 0.75}},
         {9, 1, 1, 1, 1, 2, 9, 2, 2, 9}},
    };
    static const epi_dtype types[] = {EPI_F32, EPI_BF16, EPI_F16};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int n = 0; n < 4 * 3 * LAYOUT_COUNT; n++) {
            given g;
            epi_options o = EPI_OPTIONS(.path = (epi_path)(n % 4), .type = types[n / 4 % 3], .threads = 2);
            if (prepare(&g, cases[c].text, cases[c].dims, o, (layout)(n / 12))) {
                put(&g, 0, cases[c].in[0]);
                put(&g, 1, cases[c].in[1]);
                check(problem_run(g.kernel, &g.p) && holds(&g, 2, cases[c].out),
                      "%s: by hand, path %d, type %d, layout %d", cases[c].text, n % 4, n / 4 % 3, n / 12);
                check(tensor_intact(&g.p.t[2]), "%s stays inside its output", cases[c].text);
            }
            drop(&g);
        }
}

/* f32 has no 2^24 + 1: an index that is an i32 input is read as an integer. */
static void test_large_index(void) {
    given g;
    if (prepare(&g, "f(x[V], i: i32[T]) -> (y[T], s[V]) { y = x[i]  s = scatter(y, i, V) }", "V=16777220,T=3",
                (epi_options)EPI_OPTIONS(.type = EPI_F32), LAYOUT_PLAIN)) {
        float *x = (float *)(void *)g.p.t[0].data;
        static const double index[] = {16777217, 16777219, 16777216}, y[] = {1, 3, 2};
        memset(x, 0, 16777220 * sizeof *x);
        x[16777216] = 2;
        x[16777217] = 1;
        x[16777219] = 3;
        put(&g, 1, index);
        check(problem_run(g.kernel, &g.p) && holds(&g, 2, y), "indices above 2^24 are exact");
        check(!memcmp(g.p.t[3].data, x, 16777220 * sizeof *x), "in a scatter too");
    }
    drop(&g);
}

/* An i64 where the text says i32: what Python programs have. Axes may be longer than 2^31, and of a seed the
 * low 32 bits count; the reference would need the whole of a long axis. */
static void test_wide(void) {
    static const epi_type_binding types[] = {{"i", EPI_I64}, {"seed", EPI_I64}};
    for (int n = 0; n < 6; n++) {
        bool far = n < 2;
        epi_options o = EPI_OPTIONS(.types = types, .type_count = 2, .path = (epi_path)(far ? n : n - 2));
        epi_error err = {0};
        given g = {0};
        const char *text = "f(x[V], i: i32[T], seed: i32) -> (y[T], u[T]) { y = x[i]  u = uniform(seed, T) }";
        epi_dim_binding dims[] = {{"V", far ? INT64_C(1) << 33 : 7}, {"T", 3}};
        o.dims = dims;
        o.dim_count = 2;
        bool ok = epi_module_parse(ctx, text, strlen(text), "t.epi", &g.module, &err) == EPI_OK &&
                  epi_kernel_compile(epi_module_program(g.module, 0), &o, &g.kernel, &err) == EPI_OK;
        if (check(ok, "i64 for i32 compiles: %s", err.message)) {
            float x[7] = {3, 4, 5, 6, 7, 8, 9}, y[3] = {0}, u[3] = {0};
            int64_t i[] = {far ? (INT64_C(1) << 33) - 1 : 6, far ? INT64_C(1) << 32 : 1, 0};
            int64_t seed = (INT64_C(77) << 32) | 5, stride = far ? 0 : 1;
            epi_tensor tensors[] = {{x, &stride}, {i, NULL}, {&seed, NULL}, {y, NULL}, {u, NULL}};
            void *work = aligned_alloc(64, epi_kernel_workspace(g.kernel));
            ok = work && epi_kernel_run(g.kernel, tensors, 5, work, &err) == EPI_OK;
            check(ok && y[0] == (far ? 3 : 9) && y[1] == (far ? 3 : 4) && y[2] == 3,
                  "i64 for i32, path %d: %s", (int)o.path, err.message);
            check(ok && (double)u[2] == one_uniform(5, 2), "the seed's low bits, path %d", (int)o.path);
            i[1] = INT64_C(1) << 34;
            check(epi_kernel_run(g.kernel, tensors, 5, work, &err) == EPI_ERR_INDEX &&
                      strstr(err.message, "i[1] is 17179869184: outside axis V of"),
                  "outside, path %d: %s", (int)o.path, err.message);
            free(work);
        }
        epi_kernel_free(g.kernel);
        epi_module_free(g.module);
    }
}

/* ---- the table ---- */

/* Is the error within the rule on every path, layout and type, and are the bits those of one thread? */
static void test_table(void) {
    static const epi_dtype types[] = {EPI_F32, EPI_BF16, EPI_F16};
    for (int c = 0; c < MOVES; c++) {
        loaded l;
        bool ok = load_move(ctx, &moves[c], &l);
        for (int t = 0; t < 3 && ok; t++) {
            oracles oracle;
            oracles_make(&l, types[t], &oracle);
            check(oracle.ok, "%s %s has a reference", moves[c].program, moves[c].dims);
            for (int n = 0; n < 2 * LAYOUT_COUNT && oracle.ok; n++) {
                problem p[2] = {{0}, {0}};
                char what[100];
                snprintf(what, sizeof what, "%s path %d layout %d", epi_dtype_name(types[t]), n % 2, n / 2);
                for (int threads = 2; threads >= 1; threads--) {
                    epi_options o = case_options(&l, types[t], (epi_path)(n % 2));
                    epi_kernel *k = NULL;
                    o.threads = threads;
                    bool ran = epi_kernel_compile(l.program, &o, &k, NULL) == EPI_OK &&
                               problem_make(&p[threads - 1], l.program, k, (layout)(n / 2));
                    if (ran) {
                        problem_fill(&p[threads - 1], CASE_SEED);
                        ran = problem_run(k, &p[threads - 1]);
                    }
                    check(ran, "%s %s %s runs", moves[c].program, moves[c].dims, what);
                    epi_kernel_free(k);
                }
                check_rule(&p[0], &l, &oracle, n % 2 ? types[t] : EPI_F32, what);
                for (int i = 0; i < p[0].count; i++) {
                    const tensor *a = &p[0].t[i], *b = &p[1].t[i];
                    check(tensor_intact(a) && tensor_intact(b), "%s %s stays inside", moves[c].program, what);
                    check(!memcmp(a->data, b->data, (size_t)a->span * epi_dtype_size(a->shape.type)),
                          "%s %s %s: the bits do not depend on the threads", moves[c].program, moves[c].dims,
                          what);
                }
                problem_free(&p[0]);
                problem_free(&p[1]);
            }
            oracles_free(&oracle);
        }
        epi_module_free(l.module);
    }
}

/* ---- uniform by its definition, and wherever it is asked for ---- */

static void test_uniform(void) {
    static const epi_path paths[] = {EPI_PATH_FUSED, EPI_PATH_UNFUSED, EPI_PATH_NAIVE, EPI_PATH_REFERENCE};
    static const char text[] =
        "f(seed: i32, x[A,B]) -> (u[B,A], v[B,A], kept[A,B]) { u = uniform(seed, A, B)  v = uniform(seed, B, "
        "A)  kept = x*(uniform(seed, A, B) < 0.5) }";
    for (int n = 0; n < 4 * LAYOUT_COUNT; n++) {
        given g;
        epi_options o = EPI_OPTIONS(.path = paths[n % 4], .threads = 1 + n % 2);
        if (prepare(&g, text, "A=37,B=1051", o, (layout)(n / 4))) {
            int64_t a_count = 37, b_count = 1051;
            problem_fill(&g.p, 3);
            put(&g, 0, &(double){-77});
            bool ok = problem_run(g.kernel, &g.p), same = true;
            for (int64_t i = 0; i < a_count * b_count; i++) {
                int64_t a = i % a_count, b = i / a_count, e = a * b_count + b;
                double x = get_element(g.p.t[1].data, EPI_F32, tensor_at(&g.p.t[1], e));
                same &= get_element(g.p.t[2].data, EPI_F32, tensor_at(&g.p.t[2], i)) == one_uniform(-77, e);
                same &= get_element(g.p.t[3].data, EPI_F32, tensor_at(&g.p.t[3], i)) == one_uniform(-77, i);
                same &= get_element(g.p.t[4].data, EPI_F32, tensor_at(&g.p.t[4], e)) ==
                        (one_uniform(-77, e) < 0.5 ? x : 0);
            }
            check(ok && same, "uniform on path %d, layout %d", n % 4, n / 4);
        }
        drop(&g);
    }
}

/* ---- indices out of range ---- */

static void test_out_of_range(void) {
    static const struct {
        const char *text, *dims, *message;
        int input;
        double index[6];
    } cases[] = {
        {"f(x[V,D], ids: i32[T]) -> y[T,D] { y = x[ids] }",
         "V=50257,D=1,T=4",
         "ids[3] is 50257: outside axis V of 50257",
         1,
         {0, 50256, 7, 50257}},
        {"f(d[T,K,D], ids: i32[T,K]) -> y[V,D] { y = scatter(d, ids, V) }",
         "V=5,D=2,T=2,K=3",
         "ids[1,2] is -1: outside axis V of 5",
         1,
         {0, 1, 2, 3, 4, -1}},
        {"f(d[T,K,D], ids: i32[T,K]) -> y[T,V,D] { y = scatter(d, ids, K -> V) }",
         "V=5,D=2,T=2,K=3",
         "ids[1,2] is 5: outside axis V of 5",
         1,
         {0, 1, 2, 3, 4, 5}},
        {"f(x[V,D], ids: i64[T]) -> y[T,D] { y = x[ids] }", /* whose low 32 bits are inside */
         "V=5,D=1,T=4",
         "ids[2] is 4294967297: outside axis V of 5",
         1,
         {0, 4, 4294967297, 1}},
        {"f(d[T,D], ids: i64[T]) -> y[V,D] { y = scatter(d, ids, V) }",
         "V=5,D=2,T=1",
         "ids[0] is -4294967295: outside axis V of 5",
         1,
         {-4294967295}},
        {"f(x[F], at: i32, w[F,K]) -> (z[K], y) { z = x @ w  y = gather(x, at, F) }",
         "F=3,K=2",
         "at is 3: outside axis F of 3",
         1,
         {3}},
        {"f(x[B,R], at: i32[B]) -> (y[B,R], z[B]) { y = update(x, 1, at, R)  z = sum(y, R) }",
         "B=2,R=3",
         "at[1] is 3: outside axis R of 3",
         1,
         {2, 3}},
        {"f(x[F/2], at: i32[T]) -> y[T] { y = x[at] }",
         "F=6,T=1",
         "at[0] is 3: outside axis F/2 of 3",
         1,
         {3}},
        {"f(x[V], at: i32[T]) -> y[T] { y = x[at] }", "V=0,T=1", "at[0] is 0: outside axis V of 0", 1, {0}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int n = 0; n < 4 * LAYOUT_COUNT; n++) {
            given g;
            epi_error err = {0};
            if (prepare(&g, cases[c].text, cases[c].dims, (epi_options)EPI_OPTIONS(.path = (epi_path)(n % 4)),
                        (layout)(n / 4))) {
                problem_fill(&g.p, 1);
                put(&g, cases[c].input, cases[c].index);
                void *work = aligned_alloc(64, epi_kernel_workspace(g.kernel));
                epi_status status = epi_kernel_run(g.kernel, g.p.args, g.p.count, work, &err);
                free(work);
                check(status == EPI_ERR_INDEX && !strcmp(err.message, cases[c].message),
                      "says '%s', expected '%s'", err.message, cases[c].message);
                for (int t = g.p.inputs; t < g.p.count; t++) {
                    bool untouched = true;
                    EPI_WRITTEN(g.p.t[t].data, (size_t)g.p.t[t].span * epi_dtype_size(g.p.t[t].shape.type));
                    for (size_t i = 0; i < (size_t)g.p.t[t].span * epi_dtype_size(g.p.t[t].shape.type); i++)
                        untouched &= g.p.t[t].data[i] == POISON;
                    check(untouched, "%s: nothing is written, path %d", cases[c].text, n % 4);
                }
            }
            drop(&g);
        }
    check(!strcmp(epi_status_name(EPI_ERR_INDEX), "index"), "the status has a name");
}

/* ---- update in its operand's place ---- */

/* With the result over its input only the new elements are written: the others keep bits that arithmetic
 * would not, of a NaN and of an i64 beyond 2^53. Apart, all of them are copied. */
static void test_in_place(void) {
    static const char text[] =
        "f(x[B,R,D], ids: i64[B,R], v[B,D], at: i32[B]) -> (y[B,R,D], next: i64[B,R], s[B]) {\n"
        "    y = update(x, 2*v, at, R)\n    next = update(ids, 7, at, R)\n    s = sum(y*v, R, D)\n}";
    static const double at[] = {3, 0, 4};
    enum { B = 3, R = 5, D = 8 };
    for (int n = 0; n < 2 * 3 * LAYOUT_COUNT; n++) {
        given apart, over;
        epi_options o = EPI_OPTIONS(.path = (epi_path)(n % 2), .type = (epi_dtype)(n / 2 % 3), .threads = 2);
        bool ok = prepare(&apart, text, "B=3,R=5,D=8", o, (layout)(n / 6));
        ok &= prepare(&over, text, "B=3,R=5,D=8", o, (layout)(n / 6));
        for (int k = 0; k < 2 && ok; k++) {
            given *g = k ? &over : &apart;
            problem_fill(&g->p, 5);
            put(g, 3, at);
            for (int64_t i = 0; i < B * R; i++)
                ((int64_t *)(void *)g->p.t[1].data)[tensor_at(&g->p.t[1], i)] =
                    (INT64_C(1) << 60) + 2 * i + 1;
            if (k) {
                check(epi_kernel_in_place(g->kernel, 4, 0) && epi_kernel_in_place(g->kernel, 5, 1) &&
                          !epi_kernel_in_place(g->kernel, 4, 1) && !epi_kernel_in_place(g->kernel, 6, 0),
                      "results of updates may take their operands' place");
                g->p.args[4] = g->p.args[0];
                g->p.args[5] = g->p.args[1];
            }
            ok = check(problem_run(g->kernel, &g->p), "an update runs");
        }
        bool same = ok;
        for (int t = 0; t < 2 && ok; t++) {
            const tensor *x = &apart.p.t[4 + t], *y = &over.p.t[t], *old = &apart.p.t[t];
            size_t size = epi_dtype_size(x->shape.type);
            for (int64_t i = 0; i < x->shape.count; i++) {
                const unsigned char *a = x->data + tensor_at(x, i) * (int64_t)size,
                                    *b = y->data + tensor_at(y, i) * (int64_t)size,
                                    *c = old->data + tensor_at(old, i) * (int64_t)size;
                int64_t per = t ? 1 : D, r = i / per % R, batch = i / (per * R);
                same &= !memcmp(a, b, size) && (r == (int64_t)at[batch] || !memcmp(a, c, size));
            }
        }
        if (ok) {
            check(same, "in place and apart have the same bits, and those of the operand, path %d, layout %d",
                  n % 2, n / 6);
            check(get_element(over.p.t[6].data, over.p.t[6].shape.type, tensor_at(&over.p.t[6], 1)) ==
                      get_element(apart.p.t[6].data, apart.p.t[6].shape.type, tensor_at(&apart.p.t[6], 1)),
                  "and so has what is made of them");
        }
        drop(&apart);
        drop(&over);
    }
}

/* What else reads the operand keeps its result from the operand's place, unless it comes before. */
static void test_not_in_place(void) {
    static const struct {
        const char *text;
        int may;
    } cases[] = {
        {"f(x[R,D], v[D], i: i32) -> y[R,D] { y = update(x, v, i, R) }", 1},
        {"f(x[R,D], v[D], i: i32) -> y[D,R] { y = update(x, v, i, R) }", 0},
        {"f(x[R,D], v[D], i: i32) -> y[R,D] { y = 2*update(x, v, i, R) }", 0},
        {"f(x[R,D], v[D], i: i32) -> y: f64[R,D] { y = update(x, v, i, R) }", 0},
        {"f(x[R,D], v[D], i: i32) -> y[R,D] { y = update(2*x, v, i, R) }", 0},
        {"f(x[R,D], v[D], i: i32) -> (y[R,D], z[R,D]) { y = update(x, v, i, R)  z = x*y }", 0},
        {"f(x[R,D], v[D], i: i32) -> y[R,D] { y = update(x, v*sum(x, R), i, R) }", 1},
        {"f(x[R,D], v[D], i: i32) -> y[R,D] { y = update(update(x, v, i, R), 2*v, 0, R) }", 0},
        /* a piece of x has the axes of y */
        {"f(x[R,D], v[D], i: i32) -> y[D] { y = gather(scan_back(x, i*v, R), 0, R)*gather(x, 0, R) }", 0},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        given g;
        if (prepare(&g, cases[c].text, "R=5,D=4", (epi_options)EPI_OPTIONS(), LAYOUT_PLAIN))
            check(epi_kernel_in_place(g.kernel, 3, 0) == cases[c].may, "%s: in place %d", cases[c].text,
                  cases[c].may);
        drop(&g);
    }
}

/* What is made of an update that is stored in a narrower type is made of the update, not of what is stored;
 * in its operand's place too. */
static void test_stored_narrow(void) {
    static const char text[] = "f(x[R,D], v: f32[D], i: i32) -> (c[R,D], z: f32[R,D]) {\n"
                               "    c = update(x, v, i, R)\n    z = 2*c\n}";
    static const epi_dtype types[][2] = {{EPI_F32, EPI_BF16},
                                         {EPI_F32, EPI_I32},
                                         {EPI_BF16, EPI_BF16},
                                         {EPI_BF16, EPI_F16},
                                         {EPI_F32, EPI_F64}};
    enum { TYPES = sizeof types / sizeof *types };
    for (int n = 0; n < 2 * TYPES; n++) {
        epi_type_binding given_types[] = {{"x", types[n / 2][0]}, {"c", types[n / 2][1]}};
        epi_options o = EPI_OPTIONS(.types = given_types, .type_count = 2);
        const double row = 2;
        given g;
        if (prepare(&g, text, "R=5,D=7", o, LAYOUT_PLAIN)) {
            const tensor *x = &g.p.t[0], *v = &g.p.t[1], *c = &g.p.t[3], *z = &g.p.t[4];
            double want[5 * 7];
            bool over = n % 2, right = true;
            problem_fill(&g.p, 5);
            put(&g, 2, &row);
            for (int i = 0; i < 5 * 7; i++)
                want[i] = i / 7 == 2 ? get_element(v->data, EPI_F32, i % 7)
                                     : get_element(x->data, x->shape.type, i);
            if (over && epi_kernel_in_place(g.kernel, 3, 0)) {
                g.p.args[3] = g.p.args[0];
                c = x;
            }
            check(c != x || types[n / 2][0] == types[n / 2][1], "only types that are alike, in place");
            right = check(problem_run(g.kernel, &g.p), "an update with two types runs");
            for (int i = 0; i < 5 * 7 && right; i++) {
                unsigned char rounded[8];
                put_element(rounded, c->shape.type, 0, want[i]);
                right &= get_element(c->data, c->shape.type, i) == get_element(rounded, c->shape.type, 0);
                right &= get_element(z->data, EPI_F32, i) == 2 * want[i];
            }
            check(right, "an update of %s, stored as %s: what is made of it is not rounded",
                  epi_dtype_name(types[n / 2][0]), epi_dtype_name(types[n / 2][1]));
        }
        drop(&g);
    }
}

/* ---- each is the derivative of the other ---- */

/* sum(scatter(d)*x) == sum(d*gather(x)), for integers exactly. */
static void test_adjoint(void) {
    static const char *const texts[] = {
        "f(x[V,D], d[T,D], i: i32[T]) -> (a, b) { a = sum(scatter(d, i, V)*x, V, D)  b = sum(d*x[i], T, D) }",
        "f(x[D,V], d[D,T,S], i: i32[S,T]) -> (a, b) {\n"
        "  a = sum(scatter(d, i, V)*x, V, D)  b = sum(d*gather(x, i, V), T, S, D) }",
        "f(x[T,V], d[T,V], i: i32[V]) -> (a, b) {\n"
        "  a = sum(scatter(d, i, V)*x, V, T)  b = sum(d*gather(x, i, V), T, V) }",
        "f(x[V,T,D], d[T,D,S], i: i32[S,T]) -> (a, b) {\n"
        "  a = sum(scatter(d, i, S -> V)*x, T, V, D)  b = sum(d*gather(x, i, V), T, S, D) }"};
    for (int n = 0; n < 4 * 20; n++) {
        given g;
        if (prepare(&g, texts[n % 4],
                    n % 4 == 2 ? "V=23,T=7"
                    : n % 4    ? "V=11,D=5,T=7,S=23"
                               : "V=11,D=5,T=70",
                    (epi_options)EPI_OPTIONS(.threads = 2), LAYOUT_PLAIN)) {
            uint64_t s = (uint64_t)n;
            problem_fill(&g.p, (uint64_t)n);
            for (int t = 0; t < 2; t++)
                for (int64_t i = 0; i < g.p.t[t].shape.count; i++)
                    put_element(g.p.t[t].data, EPI_F32, i, random_below(&s, 41) - 20);
            check(problem_run(g.kernel, &g.p), "runs");
            double a = get_element(g.p.t[3].data, EPI_F32, 0), b = get_element(g.p.t[4].data, EPI_F32, 0);
            check(a == b, "%s: %g and %g", texts[n % 4], a, b);
        }
        drop(&g);
    }
}

/* The derivatives in ops.def are texts in the language: gather's of scatter, scatter's of gather. */
static void test_derivatives(void) {
    char text[400];
    snprintf(text, sizeof text, "f(a[X,D], b: i32[T], d[T,D]) -> p[X,D] { p = %s }",
             epi_ops[EPI_OP_GATHER].derivative[0]);
    given g;
    if (prepare(&g, text, "X=2,D=1,T=3", (epi_options)EPI_OPTIONS(), LAYOUT_PLAIN)) {
        put(&g, 0, (double[]){0, 0});
        put(&g, 1, (double[]){1, 1, 0});
        put(&g, 2, (double[]){1, 2, 4});
        check(problem_run(g.kernel, &g.p) && holds(&g, 3, (double[]){4, 3}), "the derivative of gather");
    }
    drop(&g);
    snprintf(text, sizeof text, "f(a[T,D], b: i32[T], d[X,D]) -> p[T,D] { p = %s }",
             epi_ops[EPI_OP_SCATTER].derivative[0]);
    if (prepare(&g, text, "X=2,D=1,T=3", (epi_options)EPI_OPTIONS(), LAYOUT_PLAIN)) {
        put(&g, 0, (double[]){0, 0, 0});
        put(&g, 1, (double[]){1, 1, 0});
        put(&g, 2, (double[]){3, 5});
        check(problem_run(g.kernel, &g.p) && holds(&g, 3, (double[]){5, 5, 3}), "the derivative of scatter");
    }
    drop(&g);
}

/* ---- dither ---- */

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Its definition in f32 bits, on every instruction set, and in the f64 reference. */
static void test_dither(void) {
    enum { COUNT = 4096 };
    static float x[COUNT], u[COUNT], y[COUNT], want[COUNT];
    static const uint32_t special[] = {0,          0x80000000, 1,          0x807fffff, 0x00800000,
                                       0x3f800000, 0x3f808000, 0x7f7fffff, 0xff7fffff, 0x7f800000,
                                       0xff800000, 0x7fc00000, 0xffc12345, 0x7f7f0000, 0x0000ffff};
    uint64_t s = 1;
    bool reference = true;
    for (int i = 0; i < COUNT; i++) {
        uint32_t bits = i < 15 * 8 ? special[i / 8] : (uint32_t)random_bits(&s);
        x[i] = float_of(bits);
        u[i] = i % 8 == 0   ? 0
               : i % 8 == 1 ? 0x1.fffffep-1f
               : i % 8 == 2 ? 0.5f
                            : (float)(random_bits(&s) >> 40) * 0x1p-24f;
        want[i] = isfinite(x[i]) ? float_of((bits + (uint32_t)(u[i] * 65536)) & 0xffff0000u) : x[i];
        double exact = epi_op_reference(EPI_OP_DITHER, (double)x[i], (double)u[i], 0);
        reference &= isnan(x[i]) ? isnan(exact) : exact == (double)want[i];
    }
    check(reference, "the reference has the same neighbours");
    for (int i = 0; epi_strips_at(i); i++) {
        epi_view v[3] = {{x, 0, 1}, {u, 0, 1}, {0}};
        epi_strips_at(i)->map[EPI_OP_DITHER](y, 0, v, 1, COUNT);
        check(!memcmp(y, want, sizeof y), "dither by %s", epi_strips_at(i)->name);
        epi_view scalar[3] = {{x + 200, 0, 0}, {u, 0, 1}, {0}};
        epi_strips_at(i)->map[EPI_OP_DITHER](y, 0, scalar, 1, COUNT);
        bool same = true;
        for (int j = 0; j < COUNT; j++)
            same &= (double)y[j] == epi_op_reference(EPI_OP_DITHER, (double)x[200], (double)u[j], 0);
        check(same || isnan(x[200]), "dither of one number by %s", epi_strips_at(i)->name);
    }
    static const double outside[] = {-1, 1, 1e30, -INFINITY, INFINITY, NAN};
    for (int i = 0; i < 6; i++) { /* a number outside [0,1) counts as the nearest inside */
        float one = 1.0f + 0x1p-9f, out;
        float number = (float)outside[i];
        epi_view v[3] = {{&one, 0, 1}, {&number, 0, 1}, {0}};
        epi_strips_choose()->map[EPI_OP_DITHER](&out, 0, v, 1, 1);
        double expected = outside[i] >= 1 ? 1 + 0x1p-7 : 1;
        check((double)out == expected &&
                  epi_op_reference(EPI_OP_DITHER, (double)one, outside[i], 0) == expected,
              "dither by %g", outside[i]);
    }
}

/* Stored as bf16 the mean of many stays what it was: rounding to nearest would lose the fraction. */
static void test_mean(void) {
    given g;
    if (prepare(&g, "f(seed: i32, c) -> y: bf16[N] { y = dither(c + 0*index(N), uniform(seed, N)) }",
                "N=100000", (epi_options)EPI_OPTIONS(), LAYOUT_PLAIN)) {
        double sum = 0;
        put(&g, 0, &(double){5});
        put(&g, 1, &(double){1 + 0x1p-9});
        check(problem_run(g.kernel, &g.p), "runs");
        for (int i = 0; i < 100000; i++)
            sum += get_element(g.p.t[2].data, EPI_BF16, i);
        /* a quarter goes up by 2^-7; the deviation of the mean is 1.1e-5 */
        check(fabs(sum / 100000 - (1 + 0x1p-9)) < 5e-5, "the mean of dither is %g", sum / 100000 - 1);
    }
    drop(&g);
}

int main(void) {
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    test_philox();
    test_stretches();
    test_by_hand();
    test_large_index();
    test_wide();
    test_table();
    test_uniform();
    test_out_of_range();
    test_in_place();
    test_not_in_place();
    test_stored_narrow();
    test_adjoint();
    test_derivatives();
    test_dither();
    test_mean();
    epi_context_close(ctx);
    return finish();
}
