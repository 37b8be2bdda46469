/* strip_reduce.h: reductions of strips along rows, along columns and within groups of columns.
 *
 * Only strips.c includes this. A row is reduced into LANES running values, element j into value j % LANES.
 * After EPI_SUM_TERMS elements each, they are added to others, and at the end a tree joins them. A row
 * shorter than LANES is reduced from left to right. So the order of additions depends on the row's length
 * alone, and is the same for every instruction set. The state of LOGSUMEXP is (max, sum of exp(x - max)). An
 * infinite max is not subtracted, so -inf - -inf never occurs. The state of VAR is (mean, sum of squared
 * distances from the mean). The distances take a second pass over a stretch of the row, so nothing cancels.
 */
#ifndef EPI_CPU_STRIP_REDUCE_H
#define EPI_CPU_STRIP_REDUCE_H

#include "cpu/rows/strip_wide.h"

enum { LANES = 32, SPAN = EPI_SUM_TERMS * LANES };

typedef float fold(float a, float b);

static inline float fold_add(float a, float b) {
    return a + b;
}
static inline float fold_max(float a, float b) {
    return choose((a > b) | (a != a), a, b);
}
static inline float fold_min(float a, float b) {
    return choose((a < b) | (a != a), a, b);
}

/* What can be taken from every element before exp without changing which are infinite. */
static inline float exp_shift(float max) {
    return choose(fabsf(max) == INFINITY, 0.0f, max);
}

typedef struct state {
    float first, second;
} state;

/* ---- along a row --------------------------------------------------------------------------- */

static ALWAYS_INLINE float short_fold(fold *f, float start, const float *x, int n) {
    for (int j = 0; j < n; j++)
        start = f(start, x[j]);
    return start;
}

/* The running values are held apart from memory: the loop is as long as their additions take. */
static ALWAYS_INLINE void lanes_fold(fold *f, float *lane, const float *x, int n) {
    float run[LANES];
    int j = 0;
    for (int l = 0; l < LANES; l++)
        run[l] = lane[l];
    for (; j + LANES <= n; j += LANES)
        for (int l = 0; l < LANES; l++)
            run[l] = f(run[l], x[j + l]);
    for (int l = 0; l < LANES; l++)
        lane[l] = run[l];
    for (int l = 0; j + l < n; l++)
        lane[l] = f(lane[l], x[j + l]);
}

static ALWAYS_INLINE void lanes_halve(fold *f, float *lane, int width) {
    for (int l = 0; l < width; l++)
        lane[l] = f(lane[l], lane[l + width]);
}

/* Not a loop, so that compilers see every width. */
static ALWAYS_INLINE float lanes_join(fold *f, float *lane) {
    lanes_halve(f, lane, 16);
    lanes_halve(f, lane, 8);
    lanes_halve(f, lane, 4);
    lanes_halve(f, lane, 2);
    return f(lane[0], lane[1]);
}

/* What has no column is one element, spread over a stretch. */
static ALWAYS_INLINE void span_fold(fold *f, float identity, float *lane, const float *x, int col, int n) {
    fill(lane, identity, LANES);
    if (col)
        lanes_fold(f, lane, x, n);
    for (int j = 0; j < n && !col; j += STRETCH)
        lanes_fold(f, lane, x, stretch_length(n, j));
}

static ALWAYS_INLINE float row_fold(fold *f, float identity, const float *x, int col, int n) {
    if (n < LANES)
        return short_fold(f, identity, x, n);
    float lane[LANES], run[LANES];
    span_fold(f, identity, lane, x, col, n < SPAN ? n : SPAN);
    for (int j = SPAN; j < n; j += SPAN) {
        span_fold(f, identity, run, x + j * col, col, n - j < SPAN ? n - j : SPAN);
        for (int l = 0; l < LANES; l++)
            lane[l] = f(lane[l], run[l]);
    }
    return lanes_join(f, lane);
}

static inline void exps(float *e, const float *x, float shift, int n) {
    if (wide_has(EPI_OP_EXP)) {
        wide_row(EPI_OP_EXP, e, x, shift, n);
        return;
    }
    for (int j = 0; j < n; j++)
        e[j] = vexp(x[j] - shift);
}

static float row_exp_sum(const float *x, int col, int n, float shift) {
    float lane[LANES], e[STRETCH];
    if (n < LANES) {
        exps(e, x, shift, n);
        return short_fold(fold_add, 0.0f, e, n);
    }
    fill(lane, 0.0f, LANES);
    for (int j = 0; j < n; j += STRETCH) {
        int m = stretch_length(n, j);
        exps(e, x + j * col, shift, m);
        lanes_fold(fold_add, lane, e, m);
    }
    return lanes_join(fold_add, lane);
}

/* The sums of distances from a mean, and of their squares. */
static state row_distances(const float *x, int col, int n, float mean) {
    float lane[2][LANES], run[LANES], e[2][STRETCH];
    for (int k = 0; k < 2; k++)
        fill(lane[k], 0.0f, LANES);
    for (int j = 0; j < n; j += STRETCH) {
        const float *p = x + j * col;
        int m = stretch_length(n, j);
        VECTOR_LOOP
        for (int i = 0; i < m; i++) {
            e[0][i] = p[i] - mean;
            e[1][i] = (p[i] - mean) * (p[i] - mean);
        }
        if (n < LANES)
            return (state){short_fold(fold_add, 0.0f, e[0], n), short_fold(fold_add, 0.0f, e[1], n)};
        for (int k = 0; k < 2; k++) {
            fill(run, 0.0f, LANES);
            lanes_fold(fold_add, run, e[k], m);
            for (int l = 0; l < LANES; l++)
                lane[k][l] += run[l];
        }
    }
    return (state){lanes_join(fold_add, lane[0]), lanes_join(fold_add, lane[1])};
}

/* The mean is rounded, so distances from it do not sum to 0: squared distances from the mean as it would be.
 */
static inline float less_rounding(float squares, float distances, float count) {
    float rest = squares - distances * (distances / count);
    return choose(squares < INFINITY, choose(rest < 0.0f, 0.0f, rest), squares);
}

static state row_state(epi_op op, const float *x, int col, int n) {
    switch (op) {
    case EPI_OP_RMAX: return (state){row_fold(fold_max, -INFINITY, x, col, n), 0.0f};
    case EPI_OP_RMIN: return (state){row_fold(fold_min, INFINITY, x, col, n), 0.0f};
    case EPI_OP_LOGSUMEXP: {
        float max = row_fold(fold_max, -INFINITY, x, col, n);
        return (state){max, row_exp_sum(x, col, n, exp_shift(max))};
    }
    case EPI_OP_VAR: {
        float count = (float)(n ? n : 1), mean = row_fold(fold_add, 0.0f, x, col, n) / count;
        state d = row_distances(x, col, n, mean);
        return (state){choose(fabsf(d.first) < INFINITY, mean + d.first / count, mean),
                       less_rounding(d.second, d.first, count)};
    }
    default: return (state){row_fold(fold_add, 0.0f, x, col, n), 0.0f};
    }
}

static void reduce_rows(epi_op op, float *out, float *out2, epi_view a, int rows, int n) {
    float buf[STRETCH];
    for (int i = 0; i < rows; i++) {
        state s = row_state(op, row_spread(a, i, buf, n), a.col, n);
        out[i] = s.first;
        if (op == EPI_OP_LOGSUMEXP || op == EPI_OP_VAR)
            out2[i] = s.second;
    }
}

/* ---- along columns, and state with state --------------------------------------------------- */

static ALWAYS_INLINE void fold_into(fold *f, float *acc, const float *x, int64_t n) {
    VECTOR_LOOP
    for (int64_t j = 0; j < n; j++)
        acc[j] = f(acc[j], x[j]);
}

/* One exp serves: whichever of max and x is the smaller is the one to scale. Equal ones have the
 * difference 0 even when infinite; an element of -inf adds nothing even then. */
static void logsumexp_into(float *max, float *sum, const float *x, int n) {
    VECTOR_LOOP
    for (int j = 0; j < n; j++) {
        float m = max[j], s = sum[j], v = x[j];
        float e = vexp(choose(m == v, 0.0f, -fabsf(m - v)));
        e = choose(v == -INFINITY, 0.0f, e);
        sum[j] = choose(v > m, fmadd(s, e, 1.0f), s + e);
        max[j] = fold_max(m, v);
    }
}

static void row_into(epi_op op, float *acc, float *acc2, const float *x, int n) {
    switch (op) {
    case EPI_OP_RMAX: fold_into(fold_max, acc, x, n); break;
    case EPI_OP_RMIN: fold_into(fold_min, acc, x, n); break;
    case EPI_OP_LOGSUMEXP: logsumexp_into(acc, acc2, x, n); break;
    default: fold_into(fold_add, acc, x, n); break;
    }
}

static void reduce_cols(epi_op op, float *acc, float *acc2, epi_view a, int rows, int n) {
    float buf[STRETCH];
    for (int i = 0; i < rows; i++) {
        const float *x = row_spread(a, i, buf, n);
        for (int j = 0; j < n; j += STRETCH)
            row_into(op, acc + j, acc2 ? acc2 + j : NULL, x + j * a.col, stretch_length(n, j));
    }
}

static void logsumexp_combine(float *max, float *sum, const float *max2, const float *sum2, int64_t n) {
    VECTOR_LOOP
    for (int64_t j = 0; j < n; j++) {
        float m = fold_max(max[j], max2[j]), shift = exp_shift(m);
        sum[j] = fmadd(sum[j], vexp(max[j] - shift), sum2[j] * vexp(max2[j] - shift));
        max[j] = m;
    }
}

/* The sum, and what is lost by rounding it (Knuth's two-sum). */
static void sum_combine(float *sum, float *lost, const float *x, int64_t n) {
    VECTOR_LOOP
    for (int64_t j = 0; j < n; j++) {
        float a = sum[j], b = x[j], s = a + b, of_b = s - a, of_a = s - of_b;
        lost[j] += (a - of_a) + (b - of_b);
        sum[j] = s;
    }
}

static void combine(epi_op op, float *acc, float *acc2, const float *x, const float *x2, int64_t n) {
    switch (op) {
    case EPI_OP_RMAX: fold_into(fold_max, acc, x, n); break;
    case EPI_OP_RMIN: fold_into(fold_min, acc, x, n); break;
    case EPI_OP_LOGSUMEXP: logsumexp_combine(acc, acc2, x, x2, n); break;
    default: sum_combine(acc, acc2, x, n); break;
    }
}

/* The squared distance of the means counts for as many elements as half the harmonic mean of both numbers.
 * Means are weighted, not moved by a share of their distance: that of an infinite one is NaN. */
static void combine_var(float *mean, float *squares, const float *mean2, const float *squares2, int64_t n,
                        double have, double more) {
    float share = (float)(more / (have + more)), rest = (float)(have / (have + more)),
          weight = (float)(have * more / (have + more));
    VECTOR_LOOP
    for (int64_t j = 0; j < n; j++) {
        float apart = mean2[j] - mean[j];
        squares[j] += fmadd(apart * weight, apart, squares2[j]);
        mean[j] = fmadd(mean[j], rest, mean2[j] * share);
    }
}

/* ---- values -------------------------------------------------------------------------------- */

static inline float mean_value(float sum, double count) {
    return (float)((double)sum / count);
}
static inline float logsumexp_value(float max, float sum) {
    return max + vlog(sum);
}

/* Of an infinite sum NaN is lost. */
static inline float whole_sum(float sum, float lost) {
    return choose(fabsf(sum) < INFINITY, sum + lost, sum);
}

static void finish(epi_op op, float *acc, const float *acc2, int64_t n, double count) {
    if (op == EPI_OP_SUM) {
        VECTOR_LOOP
        for (int64_t j = 0; j < n; j++)
            acc[j] = whole_sum(acc[j], acc2[j]);
    } else if (op == EPI_OP_MEAN) {
        for (int64_t j = 0; j < n; j++)
            acc[j] = mean_value(whole_sum(acc[j], acc2[j]), count);
    } else if (op == EPI_OP_LOGSUMEXP) {
        VECTOR_LOOP
        for (int64_t j = 0; j < n; j++)
            acc[j] = logsumexp_value(acc[j], acc2[j]);
    } else if (op == EPI_OP_VAR) {
        for (int64_t j = 0; j < n; j++)
            acc[j] = mean_value(acc2[j], count);
    }
}

static float state_value(epi_op op, state s, double count) {
    if (op == EPI_OP_MEAN)
        return mean_value(s.first, count);
    if (op == EPI_OP_VAR)
        return mean_value(s.second, count);
    return op == EPI_OP_LOGSUMEXP ? logsumexp_value(s.first, s.second) : s.first;
}

static void reduce_groups(epi_op op, float *dst, ptrdiff_t ld, epi_view a, int rows, int n, int g) {
    float buf[STRETCH];
    for (int i = 0; i < rows; i++) {
        const float *x = row_spread(a, i, buf, g);
        for (int j = 0; j < n; j += g) {
            state s = row_state(op, x + j * a.col, a.col, g);
            fill(dst + i * ld + j, state_value(op, s, g), g);
        }
    }
}

#endif
