/* test_rows.c: programs of rows, whatever way they run: statistics of rows far from zero, rows that are
 * special, gradients against central differences, rows that do not see each other, bits that do not depend on
 * threads.
 *
 *     rows [programs]
 */
#include "rows.h"

static const epi_path both[] = {EPI_PATH_FUSED, EPI_PATH_UNFUSED};
static const char *const path_names[] = {"fused", "unfused"};
static const epi_dtype storage[] = {EPI_F32, EPI_BF16, EPI_F16};

/* ---- rows far from zero ---- */

enum { FAR_T = 7, FAR_D = 4099 };

/* The first tensor is `mean` plus noise between -1 and 1; the others are random. */
static void fill_far(ran *r, void *arg) {
    uint64_t seed = 5, s = 6;
    fill_random(r, &seed);
    for (int64_t e = 0; e < r->p.t[0].shape.count; e++)
        put_at(&r->p.t[0], e, *(double *)arg + 2 * random_unit(&s) - 1);
}

static double whole(double x) {
    return x;
}
static double to_f32(double x) {
    return (double)(float)x;
}

/* What the programs should give for row t, in two passes, each value rounded as told. */
static void normalise(const ran *r, int t, bool centre, double (*round)(double), double *y) {
    double mu = 0, squares = 0, eps = of(r, "eps", 0);
    static double x[FAR_D];
    for (int d = 0; d < FAR_D; d++) {
        x[d] = of(r, "x", t * FAR_D + d);
        if (find(r, "res"))
            x[d] = round(x[d] + of(r, "res", t * FAR_D + d));
        mu = centre ? round(mu + x[d]) : 0;
    }
    mu = round(mu / FAR_D);
    for (int d = 0; d < FAR_D; d++) {
        x[d] = round(x[d] - mu);
        squares = round(squares + round(x[d] * x[d]));
    }
    double rstd = round(1 / round(sqrt(round(round(squares / FAR_D) + eps))));
    for (int d = 0; d < FAR_D; d++) {
        y[d] = round(round(x[d] * rstd) * of(r, "g", d));
        if (centre)
            y[d] = round(y[d] + of(r, "b", d));
    }
}

/* The error rule with a reference and a plain computation that are written here, as the library's own would
 * share a bad formula of the program's. Nothing is rounded in between on the fused path, so the plain
 * computation is one in f32 whatever the storage. */
static void test_far_program(const char *program, epi_dtype type, epi_path path) {
    static double want[FAR_D], plain[FAR_D];
    double mean = 1000, error = 0, naive = 0, scale = 0;
    ran r;
    if (!wanted("%s far from 0 %s %s", program, epi_dtype_name(type), path_names[path]))
        return;
    run_program(&r, "norms", program, "T=7,D=4099", (way){.path = path, .type = type}, fill_far, &mean);
    for (int t = 0; t < FAR_T && r.ok; t++) {
        bool centre = !strncmp(program, "layer", 5);
        normalise(&r, t, centre, whole, want);
        normalise(&r, t, centre, to_f32, plain);
        for (int d = 0; d < FAR_D; d++) {
            unsigned char one[8];
            put_element(one, type, 0, plain[d]);
            error = fmax(error, apart(of(&r, "y", t * FAR_D + d), want[d]));
            naive = fmax(naive, apart(get_element(one, type, 0), want[d]));
            scale = fmax(scale, fabs(want[d]));
        }
    }
    double bound = 2 * naive + type_unit(type) * scale;
    check(r.ok && error <= bound, "%s of rows around 1000, %s %s: error %g, allowed %g", program,
          epi_dtype_name(type), path_names[path], error, bound);
    discard(&r);
}

static void test_far(void) {
    static const char *const programs[] = {"rmsnorm",   "rmsnorm_saved",   "add_rmsnorm",
                                           "layernorm", "layernorm_saved", NULL};
    for (int i = 0; programs[i]; i++) {
        for (int t = 0; t < 3; t++)
            test_far_program(programs[i], storage[t], EPI_PATH_FUSED);
        test_far_program(programs[i], EPI_F32, EPI_PATH_UNFUSED); /* it rounds a mean to its storage type */
    }
}

/* The statistics themselves: at 1000 a variance by E[x*x] - mu*mu is lost in f32, this one is not. */
static void test_far_statistics(void) {
    for (int p = 0; p < 2; p++) {
        double mean = 1000;
        ran r;
        if (!wanted("far statistics %s", path_names[p]))
            continue;
        run_program(&r, "norms", "layernorm_saved", "T=7,D=4099", (way){.path = both[p]}, fill_far, &mean);
        for (int t = 0; t < FAR_T && r.ok; t++) {
            double mu = 0, var = 0, squares = 0, shift = 0;
            float sum = 0, sum_squares = 0;
            for (int d = 0; d < FAR_D; d++) {
                mu += of(&r, "x", t * FAR_D + d) / FAR_D;
                sum += (float)of(&r, "x", t * FAR_D + d);
                sum_squares += (float)of(&r, "x", t * FAR_D + d) * (float)of(&r, "x", t * FAR_D + d);
            }
            for (int d = 0; d < FAR_D; d++)
                var += pow(of(&r, "x", t * FAR_D + d) - mu, 2) / FAR_D;
            /* a mean that is off by e adds e*e to the variance, and each difference is rounded once */
            shift = fabs(of(&r, "mu", t) - mu);
            squares = (double)(sum_squares / FAR_D - sum / FAR_D * (sum / FAR_D));
            double want = 1 / sqrt(var + 1e-5), off = fabs(of(&r, "rstd", t) - want) / want;
            check(shift <= FAR_D * 0x1p-24 * 1000, "row %d: the mean of a sum of %d terms is off by %g", t,
                  FAR_D, shift);
            check(off <= shift * shift / var + FAR_D * 0x1p-24, "row %d, %s: rstd is off by %g of itself", t,
                  path_names[p], off);
            check(fabs(squares - var) > 0.01 * var, "row %d: in one pass the variance would be lost", t);
        }
        discard(&r);
    }
}

/* ---- special rows ---- */

static void fill_equal(ran *r, void *arg) {
    (void)arg;
    uint64_t seed = 3;
    fill_random(r, &seed);
    for (int64_t e = 0; e < r->p.t[0].shape.count; e++)
        put_at(&r->p.t[0], e, 0.5 + (double)(e / r->p.t[0].shape.sizes[1]));
}

/* All elements of a row are equal: what comes out is known. 512 halves, ones and so on add up exactly; g is at most 1, and
 * RMSNorm has four operations. */
static void test_equal(void) {
    enum { T = 5, D = 512 };
    no_case();
    for (int p = 0; p < 2; p++) {
        const way how = {.path = both[p]};
        static const char *const programs[][2] = {
            {"norms", "layernorm_saved"}, {"norms", "rmsnorm"}, {"softmax", "softmax"}};
        for (int n = 0; n < 3; n++) {
            ran r;
            run_program(&r, programs[n][0], programs[n][1], "T=5,D=512", how, fill_equal, NULL);
            bool ok = r.ok;
            for (int e = 0; e < T * D && ok; e++) {
                double x = 0.5 + e / D, y = of(&r, "y", e);
                ok = n == 0   ? y == of(&r, "b", e % D)
                     : n == 2 ? y == 1.0 / D
                              : apart(y, x / sqrt(x * x + 1e-5) * of(&r, "g", e % D)) <= 4 * 0x1p-24;
            }
            check(ok, "%s of equal elements is b, g but for eps, or 1/D, %s", programs[n][1], path_names[p]);
            discard(&r);
        }
    }
}

enum { PLAIN_ROW, MASKED, ONE_LEFT, ONE_INF, ONE_NAN, HUGE_ROW, ONE_MINUS_INF, LAST_ROW, SPECIAL_ROWS };

/* And of losses the labels: within the vocabulary, the one to ignore (2), and negative. */
static void fill_special(ran *r, void *arg) {
    uint64_t seed = 8;
    fill_random(r, &seed);
    const int width = (int)r->p.t[0].shape.sizes[1];
    const char *x = tensor_name(r->program, 0);
    for (int d = 0; d < width; d++) {
        put(r, x, MASKED * width + d, -INFINITY);
        put(r, x, ONE_LEFT * width + d, d == 7 ? -3 : -INFINITY);
        put(r, x, HUGE_ROW * width + d, (d & 1 ? -3e38 : d == 8 || d == 10 ? 3e38 : 2.9e38));
    }
    put(r, x, ONE_INF * width + 11, INFINITY);
    put(r, x, ONE_NAN * width + 12, NAN);
    put(r, x, ONE_MINUS_INF * width + 13, -INFINITY);
    for (int t = 0; t < SPECIAL_ROWS && *(bool *)arg; t++) {
        put(r, "y", t, t == PLAIN_ROW ? 5 : t == ONE_LEFT ? 7 : t == LAST_ROW ? 2 : t == ONE_NAN ? -1 : 9);
        if (!find(r, "lse")->output)
            put(r, "lse", t, t == ONE_LEFT ? -3 : 6);
    }
}

/* What a row of results is. */
typedef enum expected {
    ZERO,
    POSITIVE,
    MINUS_INF,
    NANS,
    NAN_THERE,
    FINITE,
    ONE,
    LOG_OF_ONE,
    SHARED,
    GAP
} expected;

static bool meets(expected what, int64_t d, double v) {
    switch (what) {
    case ZERO: return v == 0;
    case POSITIVE: return v > 0 && isfinite(v);
    case MINUS_INF: return v == -INFINITY;
    case NANS: return isnan(v);
    case NAN_THERE: return d != 11 || isnan(v);
    case FINITE: return isfinite(v);
    case ONE: return v == (d == 7);
    case LOG_OF_ONE: return d == 7 ? v == 0 : v == -INFINITY;
    case SHARED: return v == (d == 8 || d == 10 ? 0.5 : 0);
    default: return d == 13 ? v == 0 : v > 0 && v < 1;
    }
}

static const struct {
    const char *program, *output;
    int row;
    expected what;
    const char *says;
} special[] = {
    {"softmax", "y", MASKED, ZERO, "a row of -inf has the softmax 0"},
    {"softmax", "y", ONE_LEFT, ONE, "what a mask leaves has the softmax 1"},
    {"softmax", "y", ONE_INF, NANS, "+inf makes the softmax of its row NaN"},
    {"softmax", "y", ONE_NAN, NANS, "NaN makes the softmax of its row NaN"},
    {"softmax", "y", HUGE_ROW, SHARED, "the softmax of huge elements"},
    {"softmax", "y", ONE_MINUS_INF, GAP, "-inf has the softmax 0"},
    {"softmax", "y", LAST_ROW, FINITE, "other rows see nothing of it"},
    {"log_softmax", "y", MASKED, MINUS_INF, "a row of -inf has the log-softmax -inf"},
    {"log_softmax", "y", ONE_LEFT, LOG_OF_ONE, "what a mask leaves has the log-softmax 0"},
    {"log_softmax", "y", ONE_INF, NANS, "+inf makes the log-softmax of its row NaN"},
    {"log_softmax", "y", ONE_NAN, NANS, "and so does NaN"},
    {"log_softmax", "y", LAST_ROW, FINITE, "other rows see nothing of it"},
    {"rmsnorm", "y", ONE_NAN, NANS, "NaN goes through the row"},
    {"rmsnorm", "y", ONE_INF, NAN_THERE, "an infinity gives NaN"},
    {"rmsnorm", "y", PLAIN_ROW, FINITE, "other rows see nothing of it"},
    {"rmsnorm", "y", LAST_ROW, FINITE, "other rows see nothing of it"},
    {"rmsnorm", "y", HUGE_ROW, ZERO, "squares that overflow give zeros"},
    {"layernorm", "y", ONE_NAN, NANS, "NaN goes through the row"},
    {"layernorm", "y", ONE_INF, NAN_THERE, "an infinity gives NaN"},
    {"layernorm", "y", PLAIN_ROW, FINITE, "other rows see nothing of it"},
    {"layernorm", "y", LAST_ROW, FINITE, "other rows see nothing of it"},
    {"token_loss", "loss", LAST_ROW, ZERO, "an ignored label has no loss"},
    {"token_loss", "loss", ONE_NAN, ZERO, "a negative label has none, even of NaN"},
    {"token_loss", "loss", ONE_LEFT, ZERO, "a sure token has none either"},
    {"token_loss", "lse", MASKED, MINUS_INF, "the log-sum-exp of a row of -inf"},
    {"token_loss", "loss", ONE_MINUS_INF, POSITIVE, "a -inf that is not the label's"},
    {"token_loss_grad", "dz", LAST_ROW, ZERO, "an ignored label has no gradient"},
    {"token_loss_grad", "dz", ONE_NAN, ZERO, "a negative label has none, even of NaN"},
    {"token_loss_grad", "dz", ONE_LEFT, ZERO, "a sure token has none either"},
};

static void test_special(const char *file, const char *program, const char *dims, epi_dtype type) {
    bool losses = !strcmp(file, "losses");
    for (int p = 0; p < 2; p++) {
        ran r;
        if (!wanted("special %s %s %s %s", program, dims, epi_dtype_name(type), path_names[p]))
            continue;
        run_program(&r, file, program, dims, (way){.path = both[p], .type = type}, fill_special, &losses);
        for (size_t i = 0; i < sizeof special / sizeof *special && r.ok; i++) {
            bool is_own = !strcmp(special[i].program, program), all = true;
            int64_t width = is_own ? find(&r, special[i].output)->shape.count / SPECIAL_ROWS : 0;
            for (int64_t d = 0; d < width; d++)
                all &= meets(special[i].what, d, of(&r, special[i].output, special[i].row * width + d));
            if (is_own)
                check(all, "%s %s %s, %s: %s", program, dims, epi_dtype_name(type), path_names[p],
                      special[i].says);
        }
        discard(&r);
    }
}

/* ---- losses ---- */

static void fill_counted(ran *r, void *arg) {
    int counted = *(int *)arg;
    for (int t = 0; t < 1000; t++) {
        put(r, "loss", t, t < counted ? t % 8 : 0);
        put(r, "y", t, t < counted ? 17 : t & 1 ? -100 : 2);
    }
    put(r, "ignore", 0, 2);
}

static void test_mean_loss(void) {
    static const int counted[] = {0, 1, 640};
    for (int i = 0; i < 3; i++)
        for (int p = 0; p < 2; p++) {
            int n = counted[i];
            ran r;
            run_program(&r, "losses", "mean_loss", "T=1000", (way){.path = both[p]}, fill_counted, &n);
            float part = n ? 1.0f / (float)n : 1;
            check(r.ok && of(&r, "dloss", 0) == (double)part, "the part of one of %d tokens, %s", n,
                  path_names[p]);
            check(r.ok && of(&r, "mean_of", 0) == (double)(part * (float)(n == 640 ? 3.5 * 640 : 0)),
                  "the mean of %d tokens, %s", n, path_names[p]);
            discard(&r);
        }
}

/* ---- rows do not see each other ---- */

static char row_axis[2]; /* its name, the first of the sizes */

static void fill_rows(ran *r, void *from) {
    fill_rows_from(&r->p, row_axis, from, random_element);
}

enum { ROWS = 67 };

typedef struct row_program {
    const char *file, *program, *dims; /* of a row */
} row_program;

static void test_rows_of(const row_program *c, epi_dtype type, epi_path path) {
    int plain[ROWS], mixed[ROWS];
    char what[96], full_dims[64], one_dims[64];
    for (int i = 0; i < ROWS; i++) {
        plain[i] = i;
        mixed[i] = (i * 29 + 13) % ROWS;
    }
    snprintf(what, sizeof what, "%s %s %s", c->program, epi_dtype_name(type), path_names[path]);
    if (!wanted("%s", what))
        return;
    row_axis[0] = c->dims[0];
    snprintf(full_dims, sizeof full_dims, "%s=%d%s", row_axis, ROWS, c->dims + 1);
    snprintf(one_dims, sizeof one_dims, "%s=1%s", row_axis, c->dims + 1);
    way how = {.path = path, .type = type};
    ran full, other;
    run_program(&full, c->file, c->program, full_dims, how, fill_rows, plain);
    run_program(&other, c->file, c->program, full_dims, how, fill_rows, mixed);
    bool ok = full.ok && other.ok;
    for (int i = 0; i < ROWS && ok; i++)
        ok = same_rows(&other, i, &full, mixed[i], row_axis);
    check(ok, "%s: permuting rows permutes the results, bit for bit", what);
    discard(&other);
    for (int i = 0; i < ROWS; i += 33) {
        run_program(&other, c->file, c->program, one_dims, how, fill_rows, &plain[i]);
        check(full.ok && other.ok && same_rows(&other, 0, &full, i, row_axis),
              "%s: a batch of one is row %d of a larger batch, bit for bit", what, i);
        discard(&other);
    }
    how.threads = 1;
    run_program(&other, c->file, c->program, full_dims, how, fill_rows, plain);
    check(full.ok && other.ok && same_outputs(&full, &other),
          "%s: the same bits with one thread and with two", what);
    DISCARD(&full, &other);
}

static void test_rows(void) {
    static const row_program programs[] = {
        {"norms", "rmsnorm_saved", "T,D=1037"},
        {"norms", "add_rmsnorm", "T,D=515"},
        {"norms", "layernorm_saved", "T,D=4099"},
        {"norms", "rmsnorm_grad", "T,D=515"},
        {"norms", "layernorm_grad", "T,D=1037"},
        {"norms", "head_rmsnorm", "B,S=2,H=3,D=19"},
        {"softmax", "softmax", "T,D=1037"},
        {"softmax", "log_softmax", "T,D=515"},
        {"softmax", "softmax_grad", "T,D=1037"},
        {"losses", "token_loss", "T,V=1037"},
        {"losses", "token_loss_grad", "T,V=515"},
        {"losses", "token_loss_capped", "T,V=515"},
        {"losses", "token_loss_capped_grad", "T,V=515"},
        {"gated", "swiglu_gate_grad", "T,F=515"},
        {"gated", "geglu_gate_pairs_grad", "T,F=257"},
        {"gated", "reglu_gate_halves", "T,F=257"},
        {"rotary", "rotary_pairs", "B,S=3,H=2,D=22"},
        {"rotary", "rotary_halves_grad", "B,S=3,H=2,D=22"},
        {"rotary", "rotary_packed_pairs", "T,P=31,H=2,D=22"},
        {"rotary", "rotary_packed_halves_grad", "T,P=31,H=2,D=22"},
        {"embedding", "embedding", "T,V=31,D=515"},
        {"embedding", "embedding_learned", "B,V=31,P=5,S=3,D=131"},
        {"embedding", "embedding_packed", "T,V=31,P=13,D=257"},
        {"embedding", "combine_rows_grad", "R,T=31,D=1037"},
    };
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        for (int t = 0; t < 3; t++)
            for (int p = 0; p < 2; p++)
                test_rows_of(&programs[i], storage[t], both[p]);
}

int main(int argc, char **argv) {
    folder = argc > 1 ? argv[1] : "programs";
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    test_equal();
    test_mean_loss();
    test_far();
    test_far_statistics();
    for (int type = EPI_F32; type <= EPI_BF16; type++) { /* f16 does not hold 3e38 */
        test_special("softmax", "softmax", "T=8,D=300", (epi_dtype)type);
        test_special("softmax", "log_softmax", "T=8,D=300", (epi_dtype)type);
        test_special("softmax", "softmax", "T=8,D=640", (epi_dtype)type); /* long enough for tapes */
        test_special("softmax", "log_softmax", "T=8,D=640", (epi_dtype)type);
    }
    test_special("norms", "rmsnorm", "T=8,D=300", EPI_F32);
    test_special("norms", "layernorm", "T=8,D=300", EPI_F32);
    test_special("losses", "token_loss", "T=8,V=300", EPI_F32);
    test_special("losses", "token_loss_grad", "T=8,V=300", EPI_F32);
    test_rows();
    epi_context_close(ctx);
    return finish();
}
