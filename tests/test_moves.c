/* test_moves.c: gather, scatter, update, uniform and dither: known answers, the table of moves.h against the
 * reference, what an index out of range does, and that nothing depends on the number of threads. */
#include "base/philox.h"
#include "cpu/rows/strips.h"
#include "ir/ops.h"
#include "moves.h"
#include "ran.h"

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

/* The elements are the numbers of a text, and then 0. */
static void put(ran *r, int tensor, const char *values) {
    for (int64_t i = 0; i < r->p.t[tensor].shape.count; i++) {
        char *end;
        put_at(&r->p.t[tensor], i, strtod(values, &end));
        values = end;
    }
}

static bool holds(const ran *r, int tensor, const char *values) {
    bool same = true;
    for (int64_t i = 0; i < r->p.t[tensor].shape.count; i++) {
        char *end;
        same &= at(&r->p.t[tensor], i) == strtod(values, &end);
        values = end;
    }
    return same;
}

/* ---- by hand ---- */

static void test_by_hand(void) {
    static const struct {
        const char *text, *dims, *first, *second, *out;
    } cases[] = {
        {"f(x[V,D], i: i32[T]) -> y[T,D] { y = x[i] }", "V=3,D=2,T=4", "1 2 3 4 5 6", "2 0 2 1",
         "5 6 1 2 5 6 3 4"},
        {"f(x[T,V], i: i32[T]) -> y[T] { y = gather(x, i, V) }", "V=3,T=2", "1 2 3 4 5 6", "2 0", "3 4"},
        {"f(x[T,V], p: i32[V]) -> y[T,V] { y = gather(x, p, V) }", "V=3,T=2", "1 2 3 4 5 6", "2 0 1",
         "3 1 2 6 4 5"},
        {"f(x[T,E], w[E]) -> y[T,K] { y = topk(x, E, K=3) }", /* of equal ones the first */
         "T=2,E=5", "1 3 2 3 0 -7 -7 -0.0 0 -7", "0", "1 3 2 2 3 0"},
        {"f(x[E,T], w[E]) -> y[K,T] { y = topk(where(x > 8, 0/0, x), E, K) }", /* NaN is larger than all */
         "T=1,E=6,K=4", "1 9 -1 9 8 0", "0", "1 3 4 0"},
        {"f(e: i32[T,K], w[T]) -> p[T,K] { p = argsort(e, E) }", "T=3,K=2,E=4", "3 0 3 1 3 2", "0",
         "1 3 5 0 2 4"},
        {"f(e: i32[T,K], w[T]) -> q[T,K] { q = rank(e, E) }", "T=3,K=2,E=4", "3 0 3 1 3 2", "0",
         "3 0 4 1 5 2"},
        {"f(e: i32[T,K], w[T]) -> o[E] { o = offsets(e, E) }", "T=3,K=2,E=5", "3 0 3 1 3 1", "0",
         "0 1 3 3 6"},
        {"f(o[E], w[E]) -> s[T,K] { s = segments(o, E, T, K) }", "T=3,K=2,E=5", "0 1 3 3 6", "0",
         "0 1 1 3 3 3"},
        {"f(x[T,D], i: i32[S]) -> y[S,D] { y = gather(x, i, T, K) }", "T=2,K=3,D=2,S=4", "1 2 3 4", "5 0 3 2",
         "3 4 1 2 3 4 1 2"},
        {"f(d[S], i: i32[S]) -> y[K,T] { y = scatter(d, i, T, K) }", "T=2,K=2,S=4", "1 2 3 4", "1 0 1 2",
         "2 4 4 0"},
        {"f(x[T,V], p: i32[V]) -> y[T,V] { y = scatter(x, p, V) }", "V=3,T=2", "3 1 2 6 4 5", "2 0 1",
         "1 2 3 4 5 6"},
        {"f(d[B,P], i: i32[B,P]) -> y[B,V] { y = scatter(d, i, P -> V) }", "B=2,V=3,P=3", "1 2 4 8 16 32",
         "2 0 2 1 1 0", "2 0 5 32 24 0"},
        {"f(d[P,B], i[Q,P]) -> y[V,P,B] { y = scatter(d, i, Q -> V) }", /* computed; d is the same along Q */
         "B=2,V=2,P=2,Q=2", "1 2 4 8", "0.4 1.6 -0.4 1.4", "2 4 0 0 0 0 4 8"},
        {"f(d[P,B], i: i32[P,B]) -> y[K,B,T] { y = scatter(d, i, P -> T, K) }", "B=2,P=3,T=2,K=2",
         "1 2 4 8 16 32", "3 0 1 0 3 2", "0 0 10 32 4 17 0 0"},
        {"f(d[B,V], p: i32[B,V]) -> y[B,V] { y = scatter(d, p, V -> V) }", "V=3,B=2", "1 2 3 4 5 6",
         "2 0 1 1 2 0", "2 3 1 6 4 5"},
        {"f(d[B,P], i: i32[B,P]) -> y[B,V] { y = s(d, i) }  " /* a call carries the batch */
         "s(d[P], i: i32[P]) -> y[V] { y = scatter(d, i, P -> V) }",
         "B=2,V=3,P=3", "1 2 4 8 16 32", "2 0 2 1 1 0", "2 0 5 32 24 0"},
        {"f(d[B,P], i: i32[P]) -> y[B,V] { y = s(2*d, i) }  " /* or what is added up alone */
         "s(d[P], i: i32[P]) -> y[V] { y = scatter(d, i, V) }",
         "B=2,V=3,P=3", "1 2 4 8 16 32", "2 0 2", "4 0 10 32 0 80"},
        {"f(d[T,D], i: i32[T]) -> y[V,D] { y = scatter(d, i, V) }", "V=3,D=2,T=4", "1 2 3 4 5 6 7 8",
         "2 0 2 2", "3 4 0 0 13 16"},
        {"f(d[D], i: i32[T]) -> y[V,D] { y = scatter(d, i, V) }", "V=3,D=2,T=4", "1 2", "2 0 2 2",
         "1 2 0 0 3 6"},
        {"f(d[T], i[T]) -> y[V] { y = scatter(d, i, V) }", /* computed: rounded, and dropped where outside */
         "V=3,T=4", "1 2 4 8", "-0.4 1.25 2.75 1.75", "1 2 8"},
        {"f(x[V,D], c[T]) -> y[T,D] { y = gather(x, index(T) + 0, V) + 0*c }", /* counts further than there are */
         "V=2,D=2,T=4", "1 2 4 8", "1 2 3 4", "1 2 4 8 0 0 0 0"},
        {"f(x[V], i[T]) -> y[T] { y = x[i] }", "V=3,T=4", "1 2 4", "-0.4 1.25 2.75 -1", "1 2 0 0"},
        {"f(x[V,2*D], i: i32[T]) -> y[T,2*D] { y = x[i] }", "V=2,D=1,T=3", "1 2 3 4", "1 0 1", "3 4 1 2 3 4"},
        {"f(x[V], i: i32[V/2]) -> y[V/2] { y = x[i] }", "V=4", "1 2 3 4", "3 0", "4 1"},
        {"f(x[T,R], i: i32[T]) -> y[T,R] { y = update(x, 9, i, R) }", "T=2,R=3", "1 2 3 4 5 6", "2 0",
         "1 2 9 9 5 6"},
        {"f(x[R,D], v[D]) -> y[R,D] { y = update(x, v, 1, R) }", "R=3,D=2", "1 2 3 4 5 6", "7 8",
         "1 2 7 8 5 6"},
        {"f(x[R], i[T]) -> y[R,T] { y = update(x + 0*index(T), 9, i, R) }", /* computed: rounded, or no place
                                                                             */
         "R=2,T=5", "1 2", "-0.4 1.25 1.75 -1 0.75", "9 1 1 1 1 2 9 2 2 9"},
    };
    static const epi_dtype types[] = {EPI_F32, EPI_BF16, EPI_F16};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int n = 0; n < 4 * 3 * LAYOUT_COUNT; n++) {
            const way how = {.path = (epi_path)(n % 4),
                             .type = types[n / 4 % 3],
                             .layout = (layout)(n / 12),
                             .narrow = true};
            ran r;
            if (!n && !wanted("%s %s", cases[c].text, cases[c].dims))
                break;
            if (made_of(&r, ctx, cases[c].text, cases[c].dims, how)) {
                put(&r, 0, cases[c].first);
                put(&r, 1, cases[c].second);
                check(run_again(&r) && holds(&r, 2, cases[c].out), "%s: by hand, path %d, type %d, layout %d",
                      cases[c].text, n % 4, n / 4 % 3, n / 12);
                check(tensor_intact(&r.p.t[2]), "%s stays inside its output", cases[c].text);
            }
            discard(&r);
        }
}

/* f32 has no 2^24 + 1: an index that is an i32 input is read as an integer. */
static void test_large_index(void) {
    ran g;
    if (!wanted("an index of 2^24"))
        return;
    if (made_of(&g, ctx, "f(x[V], i: i32[T]) -> (y[T], s[V]) { y = x[i]  s = scatter(y, i, V) }",
                "V=16777220,T=3", (way){.threads = 1})) {
        float *x = (float *)(void *)g.p.t[0].data;
        memset(x, 0, 16777220 * sizeof *x);
        x[16777216] = 2;
        x[16777217] = 1;
        x[16777219] = 3;
        put(&g, 1, "16777217 16777219 16777216");
        check(run_again(&g) && holds(&g, 2, "1 3 2"), "indices above 2^24 are exact");
        check(!memcmp(g.p.t[3].data, x, 16777220 * sizeof *x), "in a scatter too");
    }
    discard(&g);
}

/* An i64 where the text says i32: what Python programs have. Axes may be longer than 2^31, and of a seed the
 * low 32 bits count; the reference would need the whole of a long axis. */
static void test_wide(void) {
    static const char text[] =
        "f(x[V], i: i32[T], seed: i32) -> (y[T], u[T]) { y = x[i]  u = uniform(seed, T) }";
    no_case();
    for (int n = 0; n < 6; n++) {
        bool far = n < 2;
        epi_error err = {0};
        epi_path path = (epi_path)(far ? n : n - 2);
        epi_kernel *k = text_kernel(ctx, text, far ? "V=8589934592,T=3" : "V=7,T=3",
                                    (way){.types = "i=i64,seed=i64", .path = path});
        float x[7] = {3, 4, 5, 6, 7, 8, 9}, y[3] = {0}, u[3] = {0};
        int64_t i[] = {far ? (INT64_C(1) << 33) - 1 : 6, far ? INT64_C(1) << 32 : 1, 0};
        int64_t seed = (INT64_C(77) << 32) | 5, stride = far ? 0 : 1;
        epi_tensor tensors[] = {{x, &stride}, {i, NULL}, {&seed, NULL}, {y, NULL}, {u, NULL}};
        if (!run_on(k, tensors, 5))
            continue;
        check(y[0] == (far ? 3 : 9) && y[1] == (far ? 3 : 4) && y[2] == 3, "i64 for i32, path %d", (int)path);
        check((double)u[2] == one_uniform(5, 2), "the seed's low bits, path %d", (int)path);
        i[1] = INT64_C(1) << 34;
        refused_as(run_with(k, tensors, 5, &err), EPI_ERR_INDEX, &err,
                   "i[1] is 17179869184: outside axis V of");
        epi_kernel_free(k);
    }
}

/* ---- the table ---- */

/* Is the error within the rule on every path, layout and type, and are the bits those of one thread? */
static void test_case_in(const test_case *c, epi_dtype type) {
    const way plain = {.type = type, .seed = CASE_SEED};
    ran want, naive;
    loaded l;
    if (!wanted("%s %s %s", c->program, c->dims, epi_dtype_name(type)) || !load_move(ctx, c, &l))
        return;
    bool ok = yardsticks(&want, &naive, l.program, c->dims, plain);
    for (int n = 0; n < 2 * LAYOUT_COUNT && ok; n++) {
        way how = {.type = type, .path = (epi_path)(n % 2), .layout = (layout)(n / 2), .seed = CASE_SEED};
        char what[200];
        ran one, two = {0};
        snprintf(what, sizeof what, "%s %s %s path %d layout %d", c->program, c->dims, epi_dtype_name(type),
                 n % 2, n / 2);
        bool both = run_as(&two, l.program, c->dims, how);
        how.threads = 1;
        if (run_as(&one, l.program, c->dims, how) && both) {
            hold_against(&one, &want, &naive, n % 2 ? type : EPI_F32, what);
            for (int i = 0; i < one.p.count; i++)
                check(tensor_intact(&one.p.t[i]) && tensor_intact(&two.p.t[i]), "%s stays inside", what);
            check(same_outputs(&one, &two), "%s: the bits do not depend on the threads", what);
        }
        DISCARD(&one, &two);
    }
    DISCARD(&want, &naive);
    epi_module_free(l.module);
}

/* A row that stands twice has other types on a GPU. */
static void test_table(void) {
    for (int c = 0; c < MOVES; c++) {
        const test_case *before = &moves[c ? c - 1 : MOVES - 1];
        if (strcmp(before->program, moves[c].program) || strcmp(before->dims, moves[c].dims))
            for (int type = EPI_F32; type <= EPI_F16; type++)
                test_case_in(&moves[c], (epi_dtype)type);
    }
}

/* ---- uniform by its definition, and wherever it is asked for ---- */

static void test_uniform(void) {
    static const char text[] =
        "f(seed: i32, x[A,B]) -> (u[B,A], v[B,A], kept[A,B]) { u = uniform(seed, A, B)  v = uniform(seed, B, "
        "A)  kept = x*(uniform(seed, A, B) < 0.5) }";
    for (int n = 0; n < 4 * LAYOUT_COUNT; n++) {
        ran g;
        if (!wanted("uniform, path %d, layout %d", n % 4, n / 4))
            continue;
        const way how = {
            .path = (epi_path)(n % 4), .threads = 1 + n % 2, .layout = (layout)(n / 4), .narrow = true};
        if (made_of(&g, ctx, text, "A=37,B=1051", how)) {
            int64_t a_count = 37, b_count = 1051;
            const tensor *t = g.p.t;
            put(&g, 0, "-77");
            bool ok = run_again(&g), same = true;
            for (int64_t i = 0; i < a_count * b_count; i++) {
                int64_t a = i % a_count, b = i / a_count, e = a * b_count + b;
                same &= at(&t[2], i) == one_uniform(-77, e);
                same &= at(&t[3], i) == one_uniform(-77, i);
                same &= at(&t[4], e) == (one_uniform(-77, e) < 0.5 ? at(&t[1], e) : 0);
            }
            check(ok && same, "uniform on path %d, layout %d", n % 4, n / 4);
        }
        discard(&g);
    }
}

/* ---- indices out of range ---- */

static void test_out_of_range(void) {
    no_case();
    static const struct {
        const char *text, *dims, *message, *index;
    } cases[] = {
        {"f(x[V,D], ids: i32[T]) -> y[T,D] { y = x[ids] }", "V=50257,D=1,T=4",
         "ids[3] is 50257: outside axis V of 50257", "0 50256 7 50257"},
        {"f(d[T,K,D], ids: i32[T,K]) -> y[V,D] { y = scatter(d, ids, V) }", "V=5,D=2,T=2,K=3",
         "ids[1,2] is -1: outside axis V of 5", "0 1 2 3 4 -1"},
        {"f(d[T,K,D], ids: i32[T,K]) -> y[T,V,D] { y = scatter(d, ids, K -> V) }", "V=5,D=2,T=2,K=3",
         "ids[1,2] is 5: outside axis V of 5", "0 1 2 3 4 5"},
        {"f(x[V,D], ids: i64[T]) -> y[T,D] { y = x[ids] }", /* whose low 32 bits are inside */
         "V=5,D=1,T=4", "ids[2] is 4294967297: outside axis V of 5", "0 4 4294967297 1"},
        {"f(d[T,D], ids: i64[T]) -> y[V,D] { y = scatter(d, ids, V) }", "V=5,D=2,T=1",
         "ids[0] is -4294967295: outside axis V of 5", "-4294967295"},
        {"f(x[F], at: i32, w[F,K]) -> (z[K], y) { z = x @ w  y = gather(x, at, F) }", "F=3,K=2",
         "at is 3: outside axis F of 3", "3"},
        {"f(x[B,R], at: i32[B]) -> (y[B,R], z[B]) { y = update(x, 1, at, R)  z = sum(y, R) }", "B=2,R=3",
         "at[1] is 3: outside axis R of 3", "2 3"},
        {"f(x[F/2], at: i32[T]) -> y[T] { y = x[at] }", "F=6,T=1", "at[0] is 3: outside axis F/2 of 3", "3"},
        {"f(x[V], at: i32[T]) -> y[T] { y = x[at] }", "V=0,T=1", "at[0] is 0: outside axis V of 0", "0"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int n = 0; n < 4 * LAYOUT_COUNT; n++) {
            ran g;
            epi_error err = {0};
            const way how = {.path = (epi_path)(n % 4), .layout = (layout)(n / 4), .narrow = true, .seed = 1};
            if (made_of(&g, ctx, cases[c].text, cases[c].dims, how)) {
                put(&g, 1, cases[c].index);
                check(run_with(g.k, g.p.args, g.p.count, &err) == EPI_ERR_INDEX &&
                          !strcmp(err.message, cases[c].message),
                      "says '%s', expected '%s'", err.message, cases[c].message);
                check(outputs_untouched(&g.p), "%s: nothing is written, path %d", cases[c].text, n % 4);
            }
            discard(&g);
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
    static const double at_rows[] = {3, 0, 4};
    enum { B = 3, R = 5, D = 8 };
    for (int n = 0; n < 2 * 3 * LAYOUT_COUNT; n++) {
        ran r[2] = {0}; /* apart, and over its inputs */
        bool ok = true, same = true;
        for (int k = 0; k < 2 && ok; k++) {
            problem *p = &r[k].p;
            const way how = {
                .path = (epi_path)(n % 2), .type = (epi_dtype)(n / 2 % 3), .layout = (layout)(n / 6)};
            if (!(ok = made_of(&r[k], ctx, text, "B=3,R=5,D=8", how)))
                break;
            put(&r[k], 3, "3 0 4");
            for (int64_t i = 0; i < B * R; i++)
                ((int64_t *)(void *)p->t[1].data)[tensor_at(&p->t[1], i)] = (INT64_C(1) << 60) + 2 * i + 1;
            if (k) {
                check(epi_kernel_in_place(r[k].k, 4, 0) && epi_kernel_in_place(r[k].k, 5, 1) &&
                          !epi_kernel_in_place(r[k].k, 4, 1) && !epi_kernel_in_place(r[k].k, 6, 0),
                      "results of updates may take their operands' place");
                p->args[4] = p->args[0];
                p->args[5] = p->args[1];
            }
            ok = run_again(&r[k]);
        }
        for (int t = 0; t < 2 && ok; t++) {
            const tensor *x = &r[0].p.t[4 + t], *y = &r[1].p.t[t], *old = &r[0].p.t[t];
            size_t size = epi_dtype_size(x->shape.type);
            for (int64_t i = 0; i < x->shape.count; i++) {
                const unsigned char *a = x->data + tensor_at(x, i) * (int64_t)size,
                                    *b = y->data + tensor_at(y, i) * (int64_t)size,
                                    *c = old->data + tensor_at(old, i) * (int64_t)size;
                int64_t per = t ? 1 : D, row = i / per % R, batch = i / (per * R);
                same &= !memcmp(a, b, size) && (row == (int64_t)at_rows[batch] || !memcmp(a, c, size));
            }
        }
        if (ok) {
            check(same, "in place and apart have the same bits, and those of the operand, path %d, layout %d",
                  n % 2, n / 6);
            check(at(&r[1].p.t[6], 1) == at(&r[0].p.t[6], 1), "and so has what is made of them");
        }
        DISCARD(&r[0], &r[1]);
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
        epi_kernel *k = text_kernel(ctx, cases[c].text, "R=5,D=4", (way){0});
        check(epi_kernel_in_place(k, 3, 0) == cases[c].may, "%s: in place %d", cases[c].text, cases[c].may);
        epi_kernel_free(k);
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
        char stored[40];
        ran g;
        snprintf(stored, sizeof stored, "x=%s,c=%s", epi_dtype_name(types[n / 2][0]),
                 epi_dtype_name(types[n / 2][1]));
        if (made_of(&g, ctx, text, "R=5,D=7", (way){.types = stored})) {
            const tensor *x = &g.p.t[0], *v = &g.p.t[1], *c = &g.p.t[3], *z = &g.p.t[4];
            double want[5 * 7];
            bool over = n % 2, right = true;
            put(&g, 2, "2");
            for (int i = 0; i < 5 * 7; i++)
                want[i] = i / 7 == 2 ? at(v, i % 7) : at(x, i);
            if (over && epi_kernel_in_place(g.k, 3, 0)) {
                g.p.args[3] = g.p.args[0];
                c = x;
            }
            check(c != x || types[n / 2][0] == types[n / 2][1], "only types that are alike, in place");
            right = run_again(&g);
            for (int i = 0; i < 5 * 7 && right; i++) {
                unsigned char rounded[8];
                put_element(rounded, c->shape.type, 0, want[i]);
                right &= at(c, i) == get_element(rounded, c->shape.type, 0);
                right &= at(z, i) == 2 * want[i];
            }
            check(right, "an update of %s, stored as %s: what is made of it is not rounded",
                  epi_dtype_name(types[n / 2][0]), epi_dtype_name(types[n / 2][1]));
        }
        discard(&g);
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
        static const char *const dims[] = {"V=11,D=5,T=70", "V=11,D=5,T=7,S=23", "V=23,T=7",
                                           "V=11,D=5,T=7,S=23"};
        ran g;
        if (made_of(&g, ctx, texts[n % 4], dims[n % 4], (way){.seed = (uint64_t)n + 1})) {
            uint64_t s = (uint64_t)n;
            for (int t = 0; t < 2; t++)
                for (int64_t i = 0; i < g.p.t[t].shape.count; i++)
                    put_at(&g.p.t[t], i, random_below(&s, 41) - 20);
            run_again(&g);
            double a = at(&g.p.t[3], 0), b = at(&g.p.t[4], 0);
            check(a == b, "%s: %g and %g", texts[n % 4], a, b);
        }
        discard(&g);
    }
}

/* The derivatives in ops.def are texts in the language: gather's of scatter, scatter's of gather. */
static void test_derivatives(void) {
    static const struct {
        epi_op op;
        const char *form, *given, *want;
    } cases[] = {
        {EPI_OP_GATHER, "f(a[X,D], b: i32[T], d[T,D]) -> p[X,D] { p = %s }", "1 2 4", "4 3"},
        {EPI_OP_SCATTER, "f(a[T,D], b: i32[T], d[X,D]) -> p[T,D] { p = %s }", "3 5", "5 5 3"},
    };
    for (int i = 0; i < 2; i++) {
        char text[400];
        ran g;
        snprintf(text, sizeof text, cases[i].form, epi_ops[cases[i].op].derivative[0]);
        if (made_of(&g, ctx, text, "X=2,D=1,T=3", (way){0})) {
            put(&g, 0, "0 0 0");
            put(&g, 1, "1 1 0");
            put(&g, 2, cases[i].given);
            check(run_again(&g) && holds(&g, 3, cases[i].want), "the derivative of %s",
                  epi_ops[cases[i].op].id);
        }
        discard(&g);
    }
}

/* ---- dither ---- */

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
        x[i] = from_bits(bits);
        u[i] = i % 8 == 0   ? 0
               : i % 8 == 1 ? 0x1.fffffep-1f
               : i % 8 == 2 ? 0.5f
                            : (float)(random_bits(&s) >> 40) * 0x1p-24f;
        want[i] = isfinite(x[i]) ? from_bits((bits + (uint32_t)(u[i] * 65536)) & 0xffff0000u) : x[i];
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
    ran g;
    if (made_of(&g, ctx, "f(seed: i32, c) -> y: bf16[N] { y = dither(c + 0*index(N), uniform(seed, N)) }",
                "N=100000", (way){0})) {
        double sum = 0;
        put(&g, 0, "5");
        put(&g, 1, "0x1.008p0");
        run_again(&g);
        for (int i = 0; i < 100000; i++)
            sum += at(&g.p.t[2], i);
        /* a quarter goes up by 2^-7; the deviation of the mean is 1.1e-5 */
        check(fabs(sum / 100000 - (1 + 0x1p-9)) < 5e-5, "the mean of dither is %g", sum / 100000 - 1);
    }
    discard(&g);
}

int main(void) {
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    test_philox();
    test_stretches();
    test_wide();
    test_out_of_range();
    test_in_place();
    test_not_in_place();
    test_stored_narrow();
    test_adjoint();
    test_derivatives();
    test_dither();
    test_mean();
    test_by_hand();
    test_large_index();
    test_table();
    test_uniform();
    epi_context_close(ctx);
    return finish();
}
