/* test_indices.c: programs that take rows by number or draw random numbers are what their names say:
 * embeddings, routing and rotary against plain loops; dropout and rounding at random by their statistics; an
 * index out of range; bits that do not depend on threads.
 *
 *     indices [programs]
 */
#include "rows.h"

static const epi_dtype storage[] = {EPI_F32, EPI_BF16, EPI_F16};
static const char *const path_names[] = {"fused", "unfused"};

/* Fused and unfused, in every storage type. */
enum { WAYS = 6 };
static way way_of(int w) {
    return (way){.path = w & 1 ? EPI_PATH_UNFUSED : EPI_PATH_FUSED, .type = storage[w / 2], .threads = 2};
}
static const char *way_name(int w) {
    static char name[32];
    snprintf(name, sizeof name, "%s %s", epi_dtype_name(storage[w / 2]), path_names[w & 1]);
    return name;
}

/* The unfused path stores every value in the type: random numbers, tables and sums are rounded to it. */
static bool rounds_between(int w) {
    return w & 1 && storage[w / 2] != EPI_F32;
}

/* ---- embeddings ---- */

static void test_embedding(void) {
    enum { V = 11, D = 37, T = 53 };
    for (int w = 0; w < WAYS; w++) {
        ran r;
        size_t row = D * epi_dtype_size(storage[w / 2]);
        bool ok = run_program(&r, "embedding", "embedding", "V=11,D=37,T=53", way_of(w), fill_random,
                              &(uint64_t){21});
        for (int t = 0; t < T && ok; t++)
            ok =
                !memcmp(r.p.t[2].data + (size_t)t * row, r.p.t[0].data + (size_t)of(&r, "ids", t) * row, row);
        check(ok, "embedding copies rows bit for bit, %s", way_name(w));
        discard(&r);
    }
    ran r;
    bool ok = run_program(&r, "embedding", "embedding_scaled", "V=11,D=37,T=53", in_f64, fill_random,
                          &(uint64_t){22});
    for (int e = 0; e < T * D && ok; e++)
        ok = of(&r, "x", e) == scalar_value("scale") * of(&r, "table", (int)of(&r, "ids", e / D) * D + e % D);
    check(ok, "embedding_scaled is the row times the scale");
    discard(&r);
}

/* Few rows and many tokens, so every row is named again and again; one is not named at all. The sums have the
 * bits of plain loops in f32 over the tokens in their order: 64 to a running sum, and these to one that keeps
 * what rounding loses. */
static void leave_out_last(ran *r, void *arg) {
    (void)arg;
    for (int t = 0; t < 301; t++)
        put(r, "ids", t, (int)of(r, "ids", t) % 4);
}

static float sum_of_tokens(const ran *r, int v, int d, int tokens, int width) {
    volatile float sum = 0, lost = 0, part = 0; /* as they are stored: nothing is contracted or left out */
    int terms = 0;
    for (int t = 0; t <= tokens; t++) {
        bool more = t < tokens;
        if (more && (int)of(r, "ids", t) != v)
            continue;
        if (!more || terms == 64) {
            volatile float whole = sum + part, of_part = whole - sum, of_sum = whole - of_part;
            volatile float left = sum - of_sum, right = part - of_part, both = left + right;
            lost += both;
            sum = whole;
            part = 0;
            terms = 0;
        }
        if (more)
            part += (float)of(r, "dx", t * width + d);
        terms++;
    }
    return sum + lost;
}

static void test_embedding_grad(void) {
    enum { V = 5, D = 37, T = 301 };
    for (int w = 0; w < WAYS; w++)
        for (int scaled = 0; scaled < 2; scaled++) {
            own o = {23, leave_out_last, NULL, NULL};
            ran r;
            run_program(&r, "embedding", scaled ? "embedding_scaled_grad" : "embedding_grad",
                        "V=5,D=37,T=301", way_of(w), fill_own, &o);
            static float sum[V * D];
            for (int e = 0; e < V * D && r.ok; e++)
                sum[e] = sum_of_tokens(&r, e / D, e % D, T, D);
            bool ok = r.ok;
            for (int e = 0; e < V * D && ok && !(scaled && rounds_between(w)); e++)
                ok = of(&r, "dtable", e) == (double)(sum[e] * (scaled ? (float)scalar_value("scale") : 1));
            check(ok, "%s adds the tokens of a row in their order, %s",
                  scaled ? "embedding_scaled_grad" : "embedding_grad", way_name(w));
            for (int d = 0; d < D && ok; d++)
                ok = of(&r, "dtable", (V - 1) * D + d) == 0;
            check(ok, "a row that no token names has the gradient 0, %s", way_name(w));
            discard(&r);
        }
}

static void test_positions(void) {
    enum { V = 11, P = 7, D = 13, B = 3, S = 5 };
    ran r;
    bool ok = run_program(&r, "embedding", "embedding_learned", "V=11,P=7,D=13,B=3,S=5", in_f64, fill_random,
                          &(uint64_t){24});
    for (int e = 0; e < B * S * D && ok; e++)
        ok = of(&r, "x", e) ==
             of(&r, "wte", (int)of(&r, "ids", e / D) * D + e % D) + of(&r, "wpe", e / D % S * D + e % D);
    check(ok, "embedding_learned adds the row of the position in the sequence");
    discard(&r);
    run_program(&r, "embedding", "embedding_learned_grad", "V=11,P=7,D=13,B=3,S=5", in_f64, fill_random,
                &(uint64_t){24});
    static double wte[V * D], wpe[P * D];
    for (int e = 0; e < B * S * D && r.ok; e++) {
        wte[(int)of(&r, "ids", e / D) * D + e % D] += of(&r, "dx", e);
        wpe[e / D % S * D + e % D] += of(&r, "dx", e);
    }
    ok = r.ok;
    for (int e = 0; e < V * D && ok; e++)
        ok = close_to(of(&r, "dwte", e), wte[e]) && (e >= P * D || close_to(of(&r, "dwpe", e), wpe[e]));
    check(ok, "embedding_learned_grad; positions beyond the sequence have the gradient 0");
    discard(&r);
    ok = run_program(&r, "embedding", "embedding_packed", "V=11,P=7,D=13,T=15", in_f64, fill_random,
                     &(uint64_t){24});
    for (int e = 0; e < 15 * D && ok; e++)
        ok = of(&r, "x", e) == of(&r, "wte", (int)of(&r, "ids", e / D) * D + e % D) +
                                   of(&r, "wpe", (int)of(&r, "pos", e / D) * D + e % D);
    check(ok, "embedding_packed adds the row of the position that the token says");
    discard(&r);
}

/* ---- rows for experts ---- */

static void fill_permutation(ran *r, void *arg) {
    int n = *(int *)arg;
    for (int i = 0; i < n; i++)
        put(r, "order", i, (i * 29 + 13) % n);
}

/* There and back by a permutation is where it was, bit for bit. */
static void test_permutation(void) {
    int n = 67;
    for (int w = 0; w < WAYS; w++) {
        ran there, back;
        own o = {25, fill_permutation, &n, NULL};
        run_program(&there, "embedding", "permute_rows", "T=67,R=67,D=41", way_of(w), fill_own, &o);
        own again = {26, NULL, NULL, &there};
        run_program(&back, "embedding", "unpermute_rows", "T=67,R=67,D=41", way_of(w), fill_own, &again);
        bool ok = there.ok && back.ok;
        for (int e = 0; e < 67 * 41 && ok; e++)
            ok = of(&there, "y", e) == of(&there, "x", (e / 41 * 29 + 13) % 67 * 41 + e % 41);
        check(ok, "permute_rows takes rows in the order given, %s", way_name(w));
        check(ok && same_bits(&there.p.t[0], find(&back, "x")), "unpermute_rows puts them back, %s",
              way_name(w));
        DISCARD(&there, &back);
    }
}

/* Two experts a token, rows sorted by expert; the last token has none. */
enum { TOKENS = 9, ROUTED = 16, WIDE = 5 };
static void fill_routed(ran *r, void *arg) {
    (void)arg;
    for (int i = 0; i < ROUTED; i++)
        put(r, "order", i, i * 3 % (TOKENS - 1));
}

static void test_combine(void) {
    own o = {27, fill_routed, NULL, NULL};
    ran r;
    bool ok = run_program(&r, "embedding", "combine_rows", "T=9,R=16,D=5", in_f64, fill_own, &o);
    for (int t = 0; t < TOKENS && ok; t++)
        for (int d = 0; d < WIDE; d++) {
            double want = 0;
            int rows = 0;
            for (int i = 0; i < ROUTED; i++)
                if ((int)of(&r, "order", i) == t) {
                    want += of(&r, "weight", i) * of(&r, "y", i * WIDE + d);
                    rows++;
                }
            ok &= close_to(of(&r, "x", t * WIDE + d), want) && rows == (t < TOKENS - 1 ? 2 : 0);
        }
    check(ok, "combine_rows adds up what a token's experts made, by their weights");
    discard(&r);
}

/* ---- rotary ---- */

enum { POSITIONS = 5, HEADS = 3, HEAD = 8 };
static void fill_angles(ran *r, void *arg) {
    for (int s = 0; s < POSITIONS; s++)
        for (int i = 0; i < HEAD / 2; i++) {
            put(r, "cos_t", s * HEAD / 2 + i, cos(s * pow(0.1, i)));
            put(r, "sin_t", s * HEAD / 2 + i, sin(s * pow(0.1, i)));
        }
    for (int t = 0; arg && t < 2 * POSITIONS; t++)
        put(r, "pos", t, t % POSITIONS);
}

/* A pair is a complex number, turned by the angle of its position: where it stands, or what `pos` says. */
static void test_rotary(void) {
    static const struct {
        const char *program, *dims;
        int tokens;
        bool halves, packed;
    } cases[] = {{"rotary_pairs", "B=2,S=5,H=3,D=8", 10, false, false},
                 {"rotary_halves", "B=2,S=5,H=3,D=8", 10, true, false},
                 {"rotary_packed_pairs", "P=5,T=11,H=3,D=8", 11, false, true},
                 {"rotary_packed_halves", "P=5,T=11,H=3,D=8", 11, true, true}};
    for (int c = 0; c < 4; c++) {
        own o = {28, fill_angles, NULL, NULL};
        ran r;
        bool ok = run_program(&r, "rotary", cases[c].program, cases[c].dims, in_f64, fill_own, &o);
        for (int head = 0; head < cases[c].tokens * HEADS && ok; head++)
            for (int i = 0; i < HEAD / 2; i++) {
                int a = head * HEAD + (cases[c].halves ? i : 2 * i), b = a + (cases[c].halves ? HEAD / 2 : 1);
                double position = cases[c].packed ? of(&r, "pos", head / HEADS) : head / HEADS % POSITIONS,
                       angle = position * pow(0.1, i), x = of(&r, "x", a), y = of(&r, "x", b);
                ok &= close_to(of(&r, "y", a), hypot(x, y) * cos(atan2(y, x) + angle)) &&
                      close_to(of(&r, "y", b), hypot(x, y) * sin(atan2(y, x) + angle));
            }
        check(ok, "%s turns each pair by the angle of its position", cases[c].program);
        discard(&r);
    }
}

/* Sequences that are not packed are a case of it. */
static void test_rotary_plain(void) {
    static const char *const names[][2] = {{"rotary_pairs", "rotary_packed_pairs"},
                                           {"rotary_pairs_grad", "rotary_packed_pairs_grad"},
                                           {"rotary_halves", "rotary_packed_halves"},
                                           {"rotary_halves_grad", "rotary_packed_halves_grad"}};
    for (int n = 0; n < 4; n++)
        for (int w = 0; w < WAYS; w++) {
            if (rounds_between(w))
                continue;
            ran plain, packed;
            own o = {29, fill_angles, NULL, NULL}, again = {30, fill_angles, &again, &plain};
            run_program(&plain, "rotary", names[n][0], "B=2,S=5,H=3,D=8", way_of(w), fill_own, &o);
            run_program(&packed, "rotary", names[n][1], "P=5,T=10,H=3,D=8", way_of(w), fill_own, &again);
            check(plain.ok && packed.ok &&
                      same_bits(&plain.p.t[plain.p.inputs], &packed.p.t[packed.p.inputs]),
                  "%s is %s where positions are in order, %s", names[n][1], names[n][0], way_name(w));
            DISCARD(&plain, &packed);
        }
}

/* ---- dropout ---- */

enum { DROP_T = 131, DROP_D = 1031, DROPS = DROP_T * DROP_D };

typedef struct drop {
    double seed, p;
    bool ones; /* the first tensor is 1; otherwise it is random and nowhere 0 */
} drop;

static void fill_drop(ran *r, void *arg) {
    const drop *d = arg;
    for (int e = 0; e < DROPS; e++)
        put(r, tensor_name(r->program, 0), e, d->ones ? 1 : 0.5 + of(r, tensor_name(r->program, 0), e) / 4);
    put(r, "seed", 0, d->seed);
    put(r, "p", 0, d->p);
}

static void run_drop(ran *r, const char *program, way how, drop d) {
    own o = {31, fill_drop, &d, NULL};
    run_program(r, "dropout", program, "T=131,D=1031", how, fill_own, &o);
}

/* How many are kept, where an element is kept with the probability `keep`: five deviations are allowed. */
static bool likely(int64_t count, double of, double keep) {
    return fabs((double)count - of * keep) <= 5 * sqrt(of * keep * (1 - keep)) + 1e-9;
}

static void test_dropout_mean(void) {
    static const double ps[] = {0, 0.1, 0.5, 0.9, 1};
    for (int i = 0; i < 5; i++)
        for (int w = 0; w < WAYS; w++) {
            if (rounds_between(w))
                continue;
            ran r;
            run_drop(&r, "dropout", way_of(w), (drop){5, ps[i], true});
            float keep = 1 - (float)ps[i];
            unsigned char one[8];
            put_element(one, storage[w / 2], 0, (double)(1 / keep));
            double value = get_element(one, storage[w / 2], 0);
            int64_t kept = 0, by_row = 0, by_column = 0;
            bool ok = r.ok;
            for (int e = 0; e < DROPS && ok; e++) {
                double y = of(&r, "y", e);
                ok = y == 0 || y == value;
                kept += y != 0;
                by_row += e / DROP_D == 77 && y != 0;
                by_column += e % DROP_D == 901 && y != 0;
            }
            check(ok, "dropout by %g: 0 or one over 1 - p, %s", ps[i], way_name(w));
            check(likely(kept, DROPS, 1 - ps[i]) && likely(by_row, DROP_D, 1 - ps[i]) &&
                      likely(by_column, DROP_T, 1 - ps[i]),
                  "dropout by %g keeps %ld of %d, %ld of a row, %ld of a column, %s", ps[i], (long)kept,
                  DROPS, (long)by_row, (long)by_column, way_name(w));
            discard(&r);
        }
}

static void test_dropout_mask(void) {
    for (int w = 0; w < WAYS; w++) {
        static const char *const programs[] = {"dropout", "dropout_grad", "dropout_add", "dropout",
                                               "dropout"};
        static const drop drops[] = {
            {-9, 0.25, false}, {-9, 0.25, true}, {-9, 0.25, true}, {-8, 0.25, false}, {3, 0, false}};
        enum { FORWARD, GRADIENT, ADDED, OTHER, BY_0, DRAWN };
        ran r[DRAWN];
        bool ok = true;
        for (int i = 0; i < DRAWN; i++) {
            run_drop(&r[i], programs[i], way_of(w), drops[i]);
            ok &= r[i].ok;
        }
        bool same = ok, sum = ok;
        int64_t both = 0;
        for (int e = 0; e < DROPS && ok; e++) {
            bool kept = of(&r[FORWARD], "y", e) != 0;
            same &= kept == (of(&r[GRADIENT], "dx", e) != 0);
            sum &= kept == (of(&r[ADDED], "y", e) != of(&r[ADDED], "res", e));
            both += kept && of(&r[OTHER], "y", e) != 0;
        }
        check(same, "the gradient of dropout has the same mask, %s", way_name(w));
        check(sum, "dropout_add has the same mask, and the residual where nothing is kept, %s", way_name(w));
        check(rounds_between(w) || likely(both, DROPS, 0.75 * 0.75), "masks of two seeds share %ld of %d, %s",
              (long)both, DROPS, way_name(w));
        check(ok && same_bits(&r[BY_0].p.t[0], &r[BY_0].p.t[r[BY_0].p.inputs]),
              "dropout by 0 keeps every bit, %s", way_name(w));
        for (int i = 0; i < DRAWN; i++)
            discard(&r[i]);
    }
}

/* What is dropped is 0 whatever it was. */
static void fill_nan(ran *r, void *arg) {
    (void)arg;
    for (int e = 0; e < 35; e++)
        put(r, "x", e, NAN);
}

static void test_dropout_nan(void) {
    own o = {32, fill_nan, NULL, NULL};
    ran r;
    run_program(&r, "dropout", "dropout", "T=5,D=7", way_of(0), fill_own, &o);
    int zero = 0, nan = 0;
    for (int e = 0; e < 35 && r.ok; e++) {
        zero += of(&r, "y", e) == 0;
        nan += isnan(of(&r, "y", e));
    }
    check(zero > 0 && nan > 0 && zero + nan == 35, "dropout makes zeros of NaN, and hands it on where kept");
    discard(&r);
}

/* ---- AdamW on bf16 weights ---- */

enum { WEIGHTS = 100003 };

/* Weights between 1 and 2, of either sign, where bf16 numbers are 2^-7 apart. Every step is about the rate,
 * an eighth of that, away from zero: rounded to the nearest, hardly a weight would move. */
static void fill_adamw(ran *r, void *arg) {
    uint64_t s = 33;
    put_adamw_scalars(r, 0x1p-10, 0.125);
    put(r, "seed", 0, *(double *)arg);
    for (int64_t e = 0; e < r->p.t[0].shape.count; e++) {
        double sign = e & 1 ? -1 : 1;
        put(r, "w", e, sign * (1 + random_below(&s, 100) * 0x1p-7));
        put(r, "grad", e, -sign * (0.5 + random_unit(&s)));
        put(r, "m", e, -sign * 0.02 * random_unit(&s));
        put(r, "v", e, 1e-4 * random_unit(&s));
    }
}

static double exact_step(const ran *r, int e) {
    return adamw_step(r, e, 0x1p-10, 0.125).w;
}

static void test_adamw_formula(void) {
    double seed = 4;
    ran r;
    bool ok = run_program(&r, "optim", "adamw_bf16", "N=1009", in_f64, fill_adamw, &seed), near = ok;
    for (int e = 0; e < 1009 && ok; e++) {
        adamw want = adamw_step(&r, e, 0x1p-10, 0.125);
        double w = of(&r, "w_next", e), unit = fabs(w) < 1 ? 0x1p-8 : 0x1p-7;
        ok = close_to(of(&r, "m_next", e), want.m) && close_to(of(&r, "v_next", e), want.v);
        near &= fabs(w - want.w) < unit && fmod(w, unit) == 0;
    }
    check(ok, "adamw_bf16 has the moments of AdamW");
    check(near, "its weights are the bf16 neighbours of AdamW's");
    discard(&r);
}

static void test_adamw_rounding(void) {
    for (int w = 0; w < WAYS; w++) {
        if (rounds_between(w))
            continue;
        ran r, other;
        double seed = 5, next = 6;
        run_program(&r, "optim", "adamw_bf16", "N=100003", way_of(w), fill_adamw, &seed);
        run_program(&other, "optim", "adamw_bf16", "N=100003", way_of(w), fill_adamw, &next);
        double off = 0, variance = 0;
        bool ok = r.ok && other.ok;
        int moved = 0, differ = 0;
        for (int e = 0; e < WEIGHTS && ok; e++) {
            double sign = e & 1 ? -1 : 1, x = sign * exact_step(&r, e), w = sign * of(&r, "w_next", e),
                   unit = x < 1 ? 0x1p-8 : 0x1p-7, fraction = x / unit - floor(x / unit);
            /* the exact weight is known to f32's precision here; w is a bf16 number as it is stored */
            ok = fabs(w - x) < unit * (1 + 0x1p-12);
            off += (w - x) / unit;
            variance += fraction * (1 - fraction);
            moved += w != sign * of(&r, "w", e);
            differ += w != sign * of(&other, "w_next", e);
        }
        check(ok, "every weight is one of the two neighbours of the exact one, %s", way_name(w));
        check(ok && fabs(off) <= 5 * sqrt(variance), "weights are off by %g units in sum, deviation %g, %s",
              off, sqrt(variance), way_name(w));
        check(moved > WEIGHTS / 20 && differ > WEIGHTS / 20, "%d weights move, %d by the seed, %s", moved,
              differ, way_name(w));
        DISCARD(&r, &other);
    }
}

/* ---- indices out of range ---- */

static void test_out_of_range(void) {
    static const struct {
        const char *file, *program, *dims, *index;
        int64_t element;
        const char *place, *axis;
        int value;
    } cases[] = {
        {"embedding", "embedding", "V=50257,D=3,T=5", "ids", 4, "4", "V", 50257},
        {"embedding", "embedding_grad", "V=7,D=3,T=5", "ids", 0, "0", "V", -1},
        {"embedding", "embedding_scaled", "V=7,D=3,T=5", "ids", 2, "2", "V", 7},
        {"embedding", "embedding_scaled_grad", "V=7,D=3,T=5", "ids", 2, "2", "V", 8},
        {"embedding", "embedding_learned", "V=7,P=4,D=3,B=2,S=3", "ids", 5, "1,2", "V", 7},
        {"embedding", "embedding_learned_grad", "V=7,P=4,D=3,B=2,S=3", "ids", 3, "1,0", "V", -5},
        {"embedding", "embedding_packed", "V=7,P=4,D=3,T=5", "pos", 1, "1", "P", 4},
        {"embedding", "embedding_packed_grad", "V=7,P=4,D=3,T=5", "pos", 1, "1", "P", 5},
        {"../tests/experts", "bias_grad", "T=5,K=2,E=7,D=3", "e", 3, "1,1", "E", 7},
        {"../tests/chosen", "of_two", "B=3,H=2,T=2,D=8,F=8,E=4", "e", 4, "1,1", "E", 4},
        {"../tests/chosen", "turned", "B=3,T=2,D=8,F=8,E=4", "e", 2, "2", "E", -1},
        {"embedding", "permute_rows", "T=5,R=10,D=3", "order", 9, "9", "T", 5},
        {"embedding", "permute_rows_grad", "T=5,R=10,D=3", "order", 9, "9", "T", 5},
        {"embedding", "unpermute_rows", "T=5,R=10,D=3", "order", 0, "0", "T", 9},
        {"embedding", "unpermute_rows_grad", "T=5,R=10,D=3", "order", 0, "0", "T", 9},
        {"embedding", "combine_rows", "T=5,R=10,D=3", "order", 7, "7", "T", -2},
        {"embedding", "combine_rows_grad", "T=5,R=10,D=3", "order", 7, "7", "T", 6},
        {"rotary", "rotary_packed_pairs", "P=6,T=5,H=2,D=4", "pos", 3, "3", "P", 6},
        {"rotary", "rotary_packed_pairs_grad", "P=6,T=5,H=2,D=4", "pos", 3, "3", "P", 6},
        {"rotary", "rotary_packed_halves", "P=6,T=5,H=2,D=4", "pos", 3, "3", "P", 6},
        {"rotary", "rotary_packed_halves_grad", "P=6,T=5,H=2,D=4", "pos", 3, "3", "P", 6},
        {"attention", "paged_attention", "B=2,P=6,C=4,N=3,G=1,H=2,E=8", "page", 4, "1,1", "P", 6},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int w = 0; w < WAYS; w++) {
            char says[200];
            ran r;
            if (run_program(&r, cases[c].file, cases[c].program, cases[c].dims, way_of(w), fill_random,
                            &(uint64_t){34})) {
                put(&r, cases[c].index, cases[c].element, (double)cases[c].value);
                poison_outputs(&r.p);
                epi_error err = {0};
                epi_status status = run_with(r.k, r.p.args, r.p.count, &err);
                snprintf(says, sizeof says, "%s[%s] is %d: outside axis %s of %d", cases[c].index,
                         cases[c].place, cases[c].value, cases[c].axis,
                         atoi(strstr(cases[c].dims, cases[c].axis) + 2)); /* axes have one letter here */
                check(status == EPI_ERR_INDEX && !strcmp(err.message, says), "%s says '%s', expected '%s'",
                      cases[c].program, err.message, says);
                check(outputs_untouched(&r.p), "%s writes nothing then, %s", cases[c].program, way_name(w));
            }
            discard(&r);
        }
}

/* A batch whose number names no matrix gets zeros, the others their own. */
static void fill_outside(ran *r, void *arg) {
    fill_random(r, arg);
    put(r, "e", 0, 4);
    put(r, "e", 1, 3);
    put(r, "e", 2, -1);
}

static void check_unchecked(const ran *r, const char *how) {
    enum { B = 3, T = 2, F = 8 };
    for (int i = 0; i < B * T * F; i++)
        if (!check((of(r, "y", i) != 0) == (i / (T * F) == 1), "unchecked, %s: y[%d] is %g", how, i,
                   of(r, "y", i)))
            break;
}

/* The same by a kernel for more rows. */
static bool run_of_more(const ran *r) {
    const int64_t rows = 2;
    epi_error err = {0};
    epi_kernel *k = kernel_of(r->program, "B=3,T=70,D=8,F=8,E=4", (way){.open = "T"});
    bool ok = run_at(k, &rows, 1, r->p.args, r->p.count, NULL, &err) == EPI_OK;
    epi_kernel_free(k);
    return check(ok, "unchecked, open: %s", err.message);
}

static void test_unchecked(void) {
    for (int w = 0; w < WAYS; w++) {
        ran r;
        if (run_program(&r, "../tests/chosen", "unchecked", "B=3,T=2,D=8,F=8,E=4", way_of(w), fill_outside,
                        &(uint64_t){35}))
            check_unchecked(&r, way_name(w));
        if (r.ok && w == 0 && run_of_more(&r))
            check_unchecked(&r, "open");
        discard(&r);
    }
}

/* ---- threads ---- */

static void fill_any(ran *r, void *arg) { /* scalars too, whatever their names */
    problem_fill(&r->p, *(uint64_t *)arg);
}

/* Of those that test_rows.c has not. */
static void test_threads(void) {
    static const char *const programs[][3] = {
        {"embedding", "embedding_grad", "V=13,D=257,T=301"},
        {"embedding", "embedding_scaled", "V=101,D=257,T=67"},
        {"embedding", "embedding_scaled_grad", "V=13,D=257,T=301"},
        {"embedding", "embedding_learned_grad", "V=13,P=67,D=257,B=3,S=31"},
        {"embedding", "embedding_packed_grad", "V=13,P=7,D=257,T=301"},
        {"embedding", "permute_rows", "T=67,R=134,D=257"},
        {"embedding", "permute_rows_grad", "T=67,R=134,D=257"},
        {"embedding", "unpermute_rows", "T=67,R=134,D=257"},
        {"embedding", "unpermute_rows_grad", "T=67,R=134,D=257"},
        {"embedding", "combine_rows", "T=67,R=134,D=257"},
        {"dropout", "dropout", "T=131,D=257"},
        {"dropout", "dropout_grad", "T=131,D=257"},
        {"dropout", "dropout_add", "T=131,D=257"},
        {"optim", "adamw_bf16", "N=30011"},
        {"rotary", "rotary_packed_pairs_grad", "P=31,T=67,H=5,D=64"},
        {"rotary", "rotary_packed_halves", "P=31,T=67,H=5,D=64"},
    };
    for (size_t c = 0; c < sizeof programs / sizeof *programs; c++)
        for (int w = 0; w < WAYS; w++) {
            ran two, one;
            way alone = way_of(w);
            alone.threads = 1;
            run_program(&two, programs[c][0], programs[c][1], programs[c][2], way_of(w), fill_any,
                        &(uint64_t){35});
            run_program(&one, programs[c][0], programs[c][1], programs[c][2], alone, fill_any,
                        &(uint64_t){35});
            check(two.ok && one.ok && same_outputs(&two, &one),
                  "%s: the same bits with one thread and with two, %s", programs[c][1], way_name(w));
            DISCARD(&two, &one);
        }
}

/* ---- numbers that follow from sizes ---- */

/* The first element of what the program gives, of an x[T,D] whose elements are their t. NaN: it did not run. */
static double first_of(const char *text, int t) {
    char dims[40];
    ran r;
    double first = NAN;
    snprintf(dims, sizeof dims, "T=%d,D=3", t);
    bool ok = made_of(&r, ctx, text, dims, (way){.type = EPI_F32});
    for (int i = 0; ok && i < 3 * t; i++)
        put_at(&r.p.t[0], i, i / 3);
    if (ok && run_again(&r))
        first = at(&r.p.t[1], 0);
    discard(&r);
    return first;
}

/* A number names the element that it is where it is stored, whether a pass knows it or a kernel makes it. Of 100 elements
 * floor(0.29*100) is 29 in f32, and 28 in f64. */
static void test_numbers(void) {
    static const char *const numbers[] = {"floor(size(T)*0.29)", "floor(size(T)*0.7)", "floor(size(T)/2)",
                                          "size(T) - round(exp(log(size(T)/2)))"};
    for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++)
        for (int t = 80; t <= 110; t += 10) {
            char stored[200], taken[200], before[200];
            snprintf(stored, sizeof stored, "f(x[T,D]) -> i { i = %s }", numbers[n]);
            snprintf(taken, sizeof taken, "f(x[T,D]) -> y[D] { y = gather(2*x, %s, T)/2 }", numbers[n]);
            snprintf(before, sizeof before,
                     "f(x[T,D]) -> y[D] { y = gather(gather(2*x, index(T) - (%s), T), size(T) - 1, T)/2 }",
                     numbers[n]);
            double i = first_of(stored, t), one = first_of(taken, t), other = first_of(before, t);
            check(one == i && other == t - 1 - i,
                  "%s of %d elements: %g, the element is %g, %g before the end", numbers[n], t, i, one,
                  t - 1 - other);
        }
}

int main(int argc, char **argv) {
    folder = argc > 1 ? argv[1] : "programs";
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    test_embedding();
    test_embedding_grad();
    test_positions();
    test_permutation();
    test_combine();
    test_rotary();
    test_rotary_plain();
    test_dropout_mean();
    test_dropout_mask();
    test_dropout_nan();
    test_adamw_formula();
    test_adamw_rounding();
    test_out_of_range();
    test_unchecked();
    test_threads();
    test_numbers();
    epi_context_close(ctx);
    return finish();
}
