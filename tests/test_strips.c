/* test_strips.c: every map of every table of strips against the f64 reference and against itself.
 *
 * Destinations come from fresh(), which surrounds them with sentinels, and intact() looks at those
 * after the call.
 */
#include "strips_check.h"

/* ---- accuracy ------------------------------------------------------------------------------ */

/* Largest error in units of the last place of the result, for |operand| <= limit; less where there is a
 * fused multiply-add (GELU 3.4, LOG2 1.6). What is not here must be correctly rounded. */
static const struct bound {
    epi_op op;
    double ulp;
    float limit;
} bounds[] = {
    {EPI_OP_EXP, 1.1, INFINITY},       {EPI_OP_EXP2, 1.1, INFINITY},     {EPI_OP_LOG, 1.0, INFINITY},
    {EPI_OP_LOG2, 2.1, INFINITY},      {EPI_OP_RSQRT, 1.6, INFINITY},    {EPI_OP_TANH, 2.5, INFINITY},
    {EPI_OP_ERF, 1.2, INFINITY},       {EPI_OP_SIN, 1.6, 1.3e7f},        {EPI_OP_COS, 1.6, 1.3e7f},
    {EPI_OP_SIGMOID, 2.1, INFINITY},   {EPI_OP_SILU, 2.5, INFINITY},     {EPI_OP_GELU, 4.5, INFINITY},
    {EPI_OP_GELU_TANH, 2.6, INFINITY}, {EPI_OP_SOFTPLUS, 2.0, INFINITY}, {EPI_OP_POW, 1.2, INFINITY},
    {EPI_OP_LOG1P, 1.1, INFINITY},
};

static struct bound bound_of(epi_op op) {
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++)
        if (bounds[i].op == op)
            return bounds[i];
    return (struct bound){op, 0.5001, INFINITY};
}

/* The error of y in ulp; 0 if both are the same NaN, infinity or zero, infinite if only one is. */
static double ulp_error(float y, double exact) {
    if (y != y || exact != exact)
        return (y != y) == (exact != exact) ? 0 : INFINITY;
    if (y == 0 && !signbit(y) != !signbit(exact))
        return INFINITY;
    if (isinf(y) && fabs(exact) > FLT_MAX)
        return (y < 0) == (exact < 0) ? 0 : INFINITY;
    int e = fabs(exact) < FLT_MIN ? -125 : ilogb(exact) + 1;
    return fabs((double)y - exact) / ldexp(1, e - 24);
}

enum { BATCH = 1000 };
static float xs[3][BATCH];

/* Runs op over the first n of xs, as a strip or as a tape's only function, and takes the largest error into
 * *worst. */
static void measure(const epi_strips *s, epi_op op, bool taped, int n, double *worst) {
    struct bound bound = bound_of(op);
    epi_view v[3] = {{xs[0], 0, 1}, {xs[1], 0, 1}, {xs[2], 0, 1}};
    float *y = fresh();
    epi_link tape[] = {{.kind = EPI_LINK_MAP + op,
                        .from = {.p = xs[0], .type = EPI_F32, .col = 1},
                        .to = {.p = y, .type = EPI_F32, .col = 1}},
                       {.kind = EPI_LINK_NONE}};
    if (taped) {
        s->ready(tape);
        s->tape(tape, 1, n);
    } else {
        s->map[op](y, ROOM, v, 1, n);
    }
    intact(1, ROOM, n);
    for (int j = 0; j < n; j++) {
        float a = xs[0][j], b = xs[1][j], c = xs[2][j];
        if (fabsf(a) > bound.limit) {
            if (fabsf(y[j]) > 1)
                wrong("%s(%a) is %a", epi_ops[op].id, a, y[j]);
            continue;
        }
        double error = ulp_error(y[j], epi_op_reference(op, a, b, c));
        if (error > bound.ulp)
            wrong("%s(%a, %a, %a) is %a, %.3g ulp away", epi_ops[op].id, a, b, c, y[j], error);
        *worst = fmax(*worst, error);
    }
}

/* One operand: every 9001st float. Several: bits at random, and bases whose powers are in range. */
static void check_accuracy(const epi_strips *s, epi_op op) {
    double worst = 0;
    bool one = epi_ops[op].arity == 1;
    uint64_t bits = 0;
    for (int batch = 0; one ? bits < 1ull << 32 : batch < 200; batch++) {
        for (int j = 0; j < BATCH; j++, bits += 9001) {
            xs[0][j] = one ? from_bits((uint32_t)bits) : random_float();
            xs[1][j] = random_float();
            xs[2][j] = random_float();
            if (op == EPI_OP_POW && batch % 2) {
                xs[0][j] = fabsf(from_bits(random_bits()));
                xs[1][j] = random_between(-126, 126) / fabsf(log2f(xs[0][j]));
            }
        }
        for (int taped = 0; taped <= one; taped++)
            measure(s, op, taped, BATCH, &worst);
    }
    for (int i = 0; i < SPECIALS * SPECIALS; i++) {
        for (int j = 0; j < SPECIALS; j++) {
            xs[0][j] = specials[i / SPECIALS];
            xs[1][j] = specials[i % SPECIALS];
            xs[2][j] = specials[j];
        }
        for (int taped = 0; taped <= one; taped++)
            measure(s, op, taped, SPECIALS, &worst);
    }
    char measured[64];
    snprintf(measured, sizeof measured, " (%.3f ulp, bound %g)", worst, bound_of(op).ulp);
    report(s, epi_ops[op].id, measured);
}

/* ---- the same bits however it is computed -------------------------------------------------- */

static void check_mixes(const epi_strips *s, int op) {
    static const int lengths[] = {0, 1, 7, 16, 33, 64, 257, COLS};
    for (int mix = 0; mix < 1 << epi_ops[op].arity; mix++)
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
            int n = lengths[l], shift = (int)l % 5;
            epi_view v[3];
            for (int k = 0; k < 3; k++)
                v[k] = (epi_view){operands[k] + shift, LD, !(mix >> k & 1)};
            float *y = fresh();
            s->map[op](y, LD, v, ROWS, n);
            intact(ROWS, LD, n);
            for (int i = 0; i < ROWS; i++)
                for (int j = 0; j < n; j++) {
                    epi_view e[3];
                    for (int k = 0; k < 3; k++)
                        e[k] = (epi_view){v[k].p + i * v[k].row + j * v[k].col, 0, 1};
                    float alone;
                    s->map[op](&alone, 1, e, 1, 1);
                    if (!same(alone, y[i * LD + j]))
                        wrong("mix %d n %d at (%d, %d): %a, alone %a", mix, n, i, j, y[i * LD + j], alone);
                }
        }
    report(s, epi_ops[op].id, ": every mix, length and position gives the same bits");
}

/* Whole operands into y. */
static void map_whole(const epi_strips *s, int op, float *y) {
    epi_view v[3] = {{operands[0], LD, 1}, {operands[1], LD, 1}, {operands[2], LD, 1}};
    s->map[op](y, LD, v, ROWS, COLS);
}

static void expect_same(const float *y, const float *want, const char *what, int k) {
    for (int i = 0; i < ROWS * COLS; i++)
        if (!same(y[i / COLS * LD + i % COLS], want[i / COLS * LD + i % COLS]))
            wrong("%s %d", what, k);
}

static void check_in_place(const epi_strips *s, int op) {
    static float apart[ROWS * LD];
    map_whole(s, op, apart);
    for (int k = 0; k < epi_ops[op].arity; k++) {
        epi_view v[3] = {{operands[0], LD, 1}, {operands[1], LD, 1}, {operands[2], LD, 1}};
        float *y = fresh();
        for (int i = 0; i < ROWS; i++)
            memcpy(y + i * LD, operands[k] + i * LD, COLS * sizeof *y);
        v[k].p = y;
        s->map[op](y, LD, v, ROWS, COLS);
        intact(ROWS, LD, COLS);
        expect_same(y, apart, "other bits over its operand", k);
    }
    report(s, epi_ops[op].id, ": in place as apart");
}

/* AVX-512 has means of its own for these. */
static bool has_own(int op) {
    return op == EPI_OP_EXP || op == EPI_OP_SIGMOID || op == EPI_OP_SILU || op == EPI_OP_GELU;
}

/* Tables that have a fused multiply-add do the same arithmetic, whatever their width. */
static void check_agreement(int t, int op) {
    static float theirs[ROWS * LD];
    float *y = fresh();
    map_whole(epi_strips_at(t), op, y);
    map_whole(epi_strips_at(t - 1), op, theirs);
    expect_same(y, theirs, "other bits than table", t - 1);
    report(epi_strips_at(t), epi_ops[op].id, ": the same bits as the table before");
}

/* No kernel has these: a pass writes them as a division and a floor, which are as exact as they are together. */
static bool is_written_out(int op) {
    return op == EPI_OP_QUOTIENT || op == EPI_OP_REMAINDER;
}

int main(void) {
    for (int t = 0; epi_strips_at(t); t++)
        for (int op = 0; op < EPI_OP_COUNT; op++) {
            const epi_strips *s = epi_strips_at(t);
            if (!s->map[op] || !wanted("%s %s", s->name, epi_ops[op].id))
                continue;
            random_state = (uint64_t)op + 1;
            for (int i = 0; i < 3 * ROWS * LD; i++)
                operands[i / (ROWS * LD)][i % (ROWS * LD)] = random_float();
            if (!is_written_out(op))
                check_accuracy(s, (epi_op)op);
            check_mixes(s, op);
            check_in_place(s, op);
            if (t > 1 && !has_own(op))
                check_agreement(t, op);
        }
    return summary();
}
