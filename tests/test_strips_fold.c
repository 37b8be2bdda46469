/* test_strips_fold.c: reductions, pairs and conversions of every table of strips. */
#include "strips_check.h"

/* ---- reductions ---------------------------------------------------------------------------- */

static const epi_op reductions[] = {EPI_OP_SUM, EPI_OP_MEAN, EPI_OP_RMAX, EPI_OP_RMIN, EPI_OP_LOGSUMEXP};
enum { REDUCTIONS = sizeof reductions / sizeof reductions[0] };

/* n elements p[0], p[step], ... reduced in f64, NaN handed on whatever comes after it. */
static double reduced(epi_op op, const float *p, ptrdiff_t step, int n) {
    double r = epi_op_identity(op);
    for (int j = 0; j < n; j++)
        r = epi_op_combine(op, r, p[j * step]);
    return op == EPI_OP_MEAN ? r / n : r;
}

/* Sums may lose an ulp of their largest partial sum at each level of the tree and each step. */
static bool close_to(float y, double exact, int n) {
    if (exact != exact || isinf(exact))
        return same(y, (float)exact);
    return fabs(y - exact) <= (n + 8) * 0x1p-24 * (fabs(exact) + 8);
}

/* One value through the state: reduce, then finish. */
static void rows_value(const epi_strips *s, epi_op op, float *out, epi_view a, int rows, int n) {
    float second[ROWS] = {0};
    s->reduce_rows(op, out, second, a, rows, n);
    s->finish(op, out, second, rows, n);
}

static void check_reduce_rows(const epi_strips *s) {
    static const int lengths[] = {0, 1, 2, 31, 32, 33, 64, 255, 257, COLS};
    for (int r = 0; r < REDUCTIONS; r++)
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++)
            for (int col = 0; col <= 1; col++) {
                epi_op op = reductions[r];
                int n = lengths[l];
                for (int i = 0; i < ROWS * LD; i++)
                    operands[0][i] = random_between(-8, 8);
                float *out = fresh();
                rows_value(s, op, out, (epi_view){operands[0], LD, col}, ROWS, n);
                intact(1, ROOM, ROWS);
                for (int i = 0; i < ROWS; i++) {
                    epi_view row = {operands[0] + i * LD, 0, col};
                    float alone;
                    rows_value(s, op, &alone, row, 1, n);
                    if (!same(alone, out[i]))
                        wrong("%s n %d row %d depends on the others", epi_ops[op].id, n, i);
                    if (!close_to(out[i], reduced(op, row.p, col, n), n))
                        wrong("%s n %d col %d: %a", epi_ops[op].id, n, col, out[i]);
                }
            }
    report(s, "reduce_rows", "");
}

/* Special elements anywhere in a row, through rows, columns, and two halves combined. */
static void check_special_reductions(const epi_strips *s) {
    static const float fills[] = {1.5f, -INFINITY, INFINITY, -1e30f},
                       odd[] = {NAN, INFINITY, -INFINITY, 100.0f};
    for (int r = 0; r < REDUCTIONS; r++)
        for (int k = 0; k < 16; k++)
            for (int at = 0; at < 70; at += 23) {
                epi_op op = reductions[r];
                float x[70], value, first[2] = {epi_reduce_identity(op), epi_reduce_identity(op)},
                                    second[2] = {0};
                for (int j = 0; j < 70; j++)
                    x[j] = j == at ? odd[k % 4] : fills[k / 4];
                double exact = reduced(op, x, 1, 70);
                rows_value(s, op, &value, (epi_view){x, 70, 1}, 1, 70);
                if (!close_to(value, exact, 70) && fabs(exact) < 1e29)
                    wrong("%s of %a and %a: %a along rows", epi_ops[op].id, x[(at + 1) % 70], x[at], value);
                for (int h = 0; h < 2; h++)
                    s->reduce_cols(op, first + h, second + h, (epi_view){x + 35 * h, 1, 1}, 35, 1);
                s->combine(op, first, second, first + 1, second + 1, 1);
                s->finish(op, first, second, 1, 70);
                if (!close_to(first[0], exact, 70) && fabs(exact) < 1e29)
                    wrong("%s of %a and %a: %a along columns", epi_ops[op].id, x[(at + 1) % 70], x[at],
                          first[0]);
            }
    float none[3] = {-INFINITY, -INFINITY, -INFINITY}, max[2] = {0, -INFINITY}, sum[2] = {1, 0};
    s->reduce_rows(EPI_OP_LOGSUMEXP, max, sum, (epi_view){none, 3, 1}, 1, 3);
    s->reduce_cols(EPI_OP_LOGSUMEXP, max + 1, sum + 1, (epi_view){none, 1, 1}, 3, 1);
    for (int way = 0; way < 2; way++)
        if (max[way] != -INFINITY || sum[way] != 0)
            wrong("the state of nothing but -inf is (%g, %g)", max[way], sum[way]);
    report(s, "reductions of infinities and NaN", "");
}

static void check_reduce_cols(const epi_strips *s) {
    static float second[COLS];
    for (int r = 0; r < REDUCTIONS; r++)
        for (int col = 0; col <= 1; col++)
            for (int n = 1; n <= COLS; n += 13) {
                epi_op op = reductions[r];
                epi_view a = {operands[0], LD, col}, rest = {operands[0] + LD, LD, col};
                float *acc = fresh();
                for (int j = 0; j < n; j++) {
                    acc[j] = epi_reduce_identity(op);
                    second[j] = 0;
                }
                s->reduce_cols(op, acc, second, a, 1, n);
                s->reduce_cols(op, acc, second, rest, ROWS - 1, n);
                s->finish(op, acc, second, n, ROWS);
                intact(1, ROOM, n);
                for (int j = 0; j < n; j++)
                    if (!close_to(acc[j], reduced(op, operands[0] + j * col, LD, ROWS), ROWS))
                        wrong("%s n %d column %d: %a", epi_ops[op].id, n, j, acc[j]);
            }
    report(s, "reduce_cols, finish", "");
}

static void check_reduce_groups(const epi_strips *s) {
    static const int sizes[] = {1, 2, 12, 50, 75, 150, COLS};
    for (int r = 0; r < REDUCTIONS; r++)
        for (size_t l = 0; l < sizeof sizes / sizeof sizes[0]; l++)
            for (int col = 0; col <= 1; col++) {
                epi_op op = reductions[r];
                int g = sizes[l];
                float *y = fresh(), value;
                s->reduce_groups(op, y, LD, (epi_view){operands[0], LD, col}, ROWS, COLS, g);
                intact(ROWS, LD, COLS);
                for (int i = 0; i < ROWS; i++)
                    for (int j = 0; j < COLS; j++) {
                        epi_view group = {operands[0] + i * LD + j / g * g * col, 0, col};
                        rows_value(s, op, &value, group, 1, g);
                        if (!same(value, y[i * LD + j]))
                            wrong("%s g %d at (%d, %d): %a, not %a", epi_ops[op].id, g, i, j, y[i * LD + j],
                                  value);
                    }
            }
    report(s, "reduce_groups as reduce_rows of each", "");
}

/* The variance of a row far from 0, and of its two pieces merged, whatever their lengths: a distance from the
 * mean is off by the rounding of that, as in the plain formula, and nothing else is lost. */
static void check_variance(const epi_strips *s) {
    static const float means[] = {0, 1000, -3e6f};
    static const int lengths[] = {1, 2, 31, 33, 150, COLS};
    for (int m = 0; m < 3; m++)
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++)
            for (int cut = 0; cut < lengths[l]; cut += 1 + cut) {
                int n = lengths[l];
                double mean = 0, exact = 0;
                for (int j = 0; j < n; j++) {
                    operands[0][j] = means[m] + random_between(-8, 8);
                    mean += (double)operands[0][j] / n;
                }
                for (int j = 0; j < n; j++)
                    exact += ((double)operands[0][j] - mean) * ((double)operands[0][j] - mean) / n;
                float first[2] = {0}, second[2] = {0};
                s->reduce_rows(EPI_OP_VAR, first, second, (epi_view){operands[0], 0, 1}, 1, n - cut);
                s->reduce_rows(EPI_OP_VAR, first + 1, second + 1, (epi_view){operands[0] + n - cut, 0, 1}, 1,
                               cut);
                if (cut)
                    s->combine_var(first, second, first + 1, second + 1, 1, n - cut, cut);
                double off = (n + 8) * 0x1p-24 * (fabs(means[m]) + 8); /* of the mean */
                if (!(fabs(first[0] - mean) <= off))
                    wrong("the mean of %d and %d near %g: %a", n - cut, cut, means[m], first[0]);
                s->finish(EPI_OP_VAR, first, second, 1, n);
                if (!(fabs(first[0] - exact) <=
                      (n + 8) * 0x1p-24 * exact + 2 * off * sqrt(exact) + off * off))
                    wrong("the variance of %d and %d near %g: %a", n - cut, cut, means[m], first[0]);
                float *group = fresh();
                s->reduce_groups(EPI_OP_VAR, group, n, (epi_view){operands[0], 0, 1}, 1, n, n);
                if (!cut && !same(group[n - 1], first[0]))
                    wrong("the variance of a group of %d", n);
            }
    /* an infinite element: the mean is infinite, and the variance NaN */
    float x[4] = {1, INFINITY, 2, 3}, mean[2], squares[2];
    for (int h = 0; h < 2; h++)
        s->reduce_rows(EPI_OP_VAR, mean + h, squares + h, (epi_view){x + 2 * h, 0, 1}, 1, 2);
    s->combine_var(mean, squares, mean + 1, squares + 1, 1, 2, 2);
    if (mean[0] != INFINITY || !isnan(squares[0]))
        wrong("of an infinite element the state is (%g, %g)", mean[0], squares[0]);
    report(s, "variances", "");
}

/* ---- pairs --------------------------------------------------------------------------------- */

static void check_pairs(const epi_strips *s) {
    for (int mix = 0; mix < 4; mix++)
        for (int n = 0; n <= COLS; n += 1 + n / 3) {
            epi_view a = {operands[0], LD, !(mix & 1)}, b = {operands[1], LD, !(mix & 2)};
            float *y = fresh();
            s->interleave(y, 2 * LD, a, b, ROWS, n);
            intact(ROWS, 2 * LD, 2 * n);
            for (int i = 0; i < ROWS; i++)
                for (int j = 0; j < n; j++)
                    if (!same(y[i * 2 * LD + 2 * j], a.p[i * LD + j * a.col]) ||
                        !same(y[i * 2 * LD + 2 * j + 1], b.p[i * LD + j * b.col]))
                        wrong("interleave mix %d n %d", mix, n);
        }
    for (int odd = 0; odd < 2; odd++)
        for (int col = 0; col < 2; col++)
            for (int n = 0; n <= COLS / 2; n += 1 + n / 3) {
                float *y = fresh();
                s->deinterleave(y, LD, (epi_view){operands[0], LD, col}, odd, ROWS, n);
                intact(ROWS, LD, n);
                for (int i = 0; i < ROWS; i++)
                    for (int j = 0; j < n; j++)
                        if (!same(y[i * LD + j], operands[0][i * LD + (2 * j + odd) * col]))
                            wrong("deinterleave odd %d n %d", odd, n);
            }
    report(s, "interleave, deinterleave", "");
}

/* ---- storage ------------------------------------------------------------------------------- */

enum { COUNT = 1003, SPAN = 3 * COUNT, PAD = 64, UNTOUCHED = 0xa5 };

static _Alignas(64) unsigned char memory[PAD + SPAN * 8 + PAD];

static void *storage(void) {
    memset(memory, UNTOUCHED, sizeof memory);
    return memory + PAD;
}

/* Nothing but n elements of `size` bytes, `stride` apart, was written. */
static void storage_intact(size_t size, size_t stride, size_t n) {
    for (size_t b = 0; b < sizeof memory; b++) {
        bool inside = b >= PAD && (b - PAD) / size < n * stride && (b - PAD) / size % stride == 0;
        if (!inside && memory[b] != UNTOUCHED)
            wrong("stored outside, at byte %zu", b);
    }
}

/* x to `bits` significant bits, exponents from `low`, beyond `max` infinity. */
static double rounded(double x, int bits, int low, double max) {
    if (x == 0 || x != x || isinf(x))
        return x;
    int e = ilogb(x) < low ? low : ilogb(x);
    double unit = ldexp(1, e - bits + 1), r = nearbyint(x / unit) * unit;
    return fabs(r) > max ? copysign(INFINITY, x) : r;
}

/* What x becomes in storage, as a number. */
static double stored(epi_dtype type, float x) {
    switch (type) {
    case EPI_BF16: return rounded(x, 8, -126, 0x1.fep127);
    case EPI_F16: return rounded(x, 11, -14, 65504);
    case EPI_I32: return x != x ? 0 : fmin(fmax(nearbyint((double)x), INT32_MIN), INT32_MAX) + 0.0;
    case EPI_I64: return x != x ? 0 : fmin(fmax(nearbyint((double)x), -0x1p63), 0x1p63) + 0.0;
    default: return is_byte(type) ? byte_value(type, value_byte(type, x)) : (double)x;
    }
}

/* Stores n floats and reads them back, both at the stride; an integer also as such, for f32 holds few. */
static void check_stored(const epi_strips *s, epi_dtype type, const float *x, int n, ptrdiff_t stride) {
    void *out = storage();
    s->store(out, type, stride, x, n);
    storage_intact(epi_dtype_size(type), (size_t)stride, (size_t)n);
    float *y = fresh();
    s->load(y, out, type, stride, n);
    intact(1, ROOM, n);
    for (int j = 0; j < n; j++) {
        double want = stored(type, x[j]);
        if (!same(y[j], (float)want))
            wrong("type %d stride %td: %a comes back as %a, not %a", type, stride, x[j], y[j], want);
        int32_t whole;
        memcpy(&whole, memory + PAD + j * stride * 4, sizeof whole);
        if (type == EPI_I32 && whole != want)
            wrong("%a is stored as the i32 %d, not %.0f", x[j], whole, want);
        int64_t wide;
        memcpy(&wide, memory + PAD + j * stride * 8, sizeof wide);
        if (type == EPI_I64 && wide != (want < 0x1p63 ? (int64_t)want : INT64_MAX))
            wrong("%a is stored as the i64 %ld, not %.0f", x[j], (long)wide, want);
    }
}

static void check_rounding(const epi_strips *s) {
    static float x[COUNT];
    for (int type = 0; type < EPI_DTYPE_COUNT; type++)
        for (int batch = 0; batch < 60; batch++) {
            for (int j = 0; j < COUNT; j++) {
                uint32_t kind = random_bits() % 4;
                x[j] = kind == 0   ? random_float()
                       : kind == 1 ? from_bits(random_bits())
                       : kind == 2 ? (float)(int32_t)random_bits() * 0.5f
                                   : random_between(-70000, 70000);
            }
            check_stored(s, (epi_dtype)type, x, batch % 7 ? COUNT - batch : batch, batch % 3 ? 1 : 3);
        }
    report(s, "store and load: rounding, strides", "");
}

/* All patterns of a 16-bit type: each loads, comes back, and rounds rightly on either side of its
 * midpoint with the next. */
static void check_patterns(const epi_strips *s, epi_dtype type, uint16_t infinity, uint16_t quiet) {
    static float x[COUNT], y[COUNT];
    static uint16_t in[COUNT];
    uint16_t *out = storage();
    for (int start = 0; start < 65536; start += COUNT) {
        int n = 65536 - start < COUNT ? 65536 - start : COUNT;
        for (int j = 0; j < n; j++)
            in[j] = (uint16_t)(start + j);
        s->load(x, in, type, 1, n);
        s->store(out, type, 1, x, n);
        for (int j = 0; j < n; j++) {
            bool nan = (in[j] & 0x7fff) > infinity;
            int e = type == EPI_F16 ? in[j] >> 10 & 31 : in[j] >> 7 & 255, bits = type == EPI_F16 ? 10 : 7;
            int mantissa = (in[j] & ((1 << bits) - 1)) + (e ? 1 << bits : 0);
            double value = ldexp(mantissa, (e ? e : 1) - (type == EPI_F16 ? 15 : 127) - bits);
            value = (in[j] & 0x7fff) == infinity ? INFINITY : nan ? NAN : value;
            if (!same(x[j], (float)(in[j] >> 15 ? -value : value)))
                wrong("pattern %04x loads as %a", in[j], x[j]);
            if (out[j] != (nan ? in[j] | quiet : in[j]))
                wrong("pattern %04x comes back as %04x", in[j], out[j]);
        }
        for (int side = -1; side <= 1; side++) {
            for (int j = 0; j + 1 < n; j++) {
                float mid = x[j] + (x[j + 1] - x[j]) * 0.5f;
                y[j] = side ? nextafterf(mid, side < 0 ? -INFINITY : INFINITY) : mid;
            }
            check_stored(s, type, y, n - 1, 1);
            out = storage();
        }
    }
    report(s, type == EPI_F16 ? "all f16 patterns" : "all bf16 patterns", "");
}

static void check_load(const epi_strips *s) {
    static double d[COUNT];
    static int32_t k[COUNT];
    static int64_t wide[COUNT];
    for (int stride = 1; stride <= 3; stride += 2) {
        int n = COUNT / stride;
        for (int j = 0; j < COUNT; j++) {
            d[j] = ldexp((double)random_bits() + 0.5, (int)(random_bits() % 300) - 190);
            k[j] = (int32_t)random_bits();
            wide[j] = (int64_t)((uint64_t)random_bits() << 32 | random_bits()) >> random_bits() % 60;
        }
        for (int from = 0; from < 3; from++) {
            static const epi_dtype types[] = {EPI_F64, EPI_I32, EPI_I64};
            const void *const data[] = {d, k, wide};
            float *y = fresh();
            s->load(y, data[from], types[from], stride, n);
            intact(1, ROOM, n);
            for (int j = 0, at = 0; j < n; j++, at += stride)
                if (y[j] != (from == 2 ? (float)wide[at] : from == 1 ? (float)k[at] : (float)d[at]))
                    wrong("%s at %d: %a", epi_dtype_name(types[from]), j, y[j]);
        }
    }
    report(s, "load: integers and f64", "");
}

/* Past the caches the same bytes arrive, wherever they start and however many there are. */
static void check_stream(const epi_strips *s) {
    enum { MOST = 700 };
    static float x[MOST];
    _Alignas(64) static unsigned char a[MOST * 8 + 128], b[MOST * 8 + 128];
    for (int i = 0; i < MOST; i++)
        x[i] = (float)(i - 300) * 0.37f;
    for (int type = 0; type < EPI_DTYPE_COUNT; type++)
        for (int n = 0; n < MOST; n = n < 70 ? n + 1 : n * 2 - 3) {
            size_t size = epi_dtype_size((epi_dtype)type), start = (size_t)(n % 33) * size;
            memset(a, 0xa5, sizeof a);
            memset(b, 0xa5, sizeof b);
            s->store(a + start, (epi_dtype)type, 1, x, n);
            s->store_nontemporal(b + start, (epi_dtype)type, x, n);
            s->settle();
            if (memcmp(a, b, sizeof a) != 0)
                wrong("%d elements of type %d at byte %zu differ", n, type, start);
        }
    report(s, "stream: as store", "");
}

int main(void) {
    for (int t = 0; epi_strips_at(t); t++) {
        const epi_strips *s = epi_strips_at(t);
        check_reduce_rows(s);
        check_special_reductions(s);
        check_reduce_cols(s);
        check_reduce_groups(s);
        check_variance(s);
        check_pairs(s);
        check_rounding(s);
        check_patterns(s, EPI_BF16, 0x7f80, 0x40);
        check_patterns(s, EPI_F16, 0x7c00, 0x200);
        check_load(s);
        check_stream(s);
    }
    return summary();
}
