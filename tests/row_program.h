/* row_program.h: random programs whose rows do not know of each other.
 *
 * Axes B and T count rows and nothing is reduced over them; D counts columns, N those of a product, R keys. A
 * program is grown from values of these shapes by maps, divisions, statistics of a row, softmax, splits and
 * joins, products with weights and attention over keys that all rows share. Its outputs have their axes in
 * any order, so that rows lie across memory as often as along it. Everything follows from the seed. */
#ifndef EPI_TESTS_ROW_PROGRAM_H
#define EPI_TESTS_ROW_PROGRAM_H

#include "harness.h"

enum { ROW_VALUES = 48, ROW_SEED = 7 };

/* Which columns a value has: none, D, a half of D, N. */
typedef enum across { ACROSS_NONE, ACROSS_D, ACROSS_HALF, ACROSS_N, ACROSS_COUNT } across;
static const char *const across_axis[] = {"", "D", "D/2", "N"};

typedef struct row_value {
    char name[12];
    across cols;
    bool rows; /* it has B and T; else it is the same for all rows */
} row_value;

typedef struct row_maker {
    uint64_t s;
    char text[8192];
    row_value v[ROW_VALUES];
    int count, fresh;
    bool batched, halves, parted, crossed; /* crossed: the first input is [D,T] */
} row_maker;

static const char *row_add(row_maker *m, across cols, bool rows) {
    row_value *v = &m->v[m->count++];
    *v = (row_value){.cols = cols, .rows = rows};
    snprintf(v->name, sizeof v->name, "v%d", m->fresh++);
    return v->name;
}

/* A value with rows and these columns, or (which is the last resort) x. */
static row_value row_pick(row_maker *m, across cols) {
    int found[ROW_VALUES], n = 0;
    for (int i = 0; i < m->count; i++)
        if (m->v[i].rows && m->v[i].cols == cols)
            found[n++] = i;
    return m->v[n ? found[random_below(&m->s, n)] : 0];
}

/* One that may stand beside these columns: it has them or none; or a number. */
static const char *row_beside(row_maker *m, across cols) {
    static const char *const numbers[] = {"3", "0.7", "s", "1.1"};
    static char name[12];
    for (int tries = random_below(&m->s, 4) ? 0 : 20; tries < 20; tries++) {
        const row_value *v = &m->v[random_below(&m->s, m->count)];
        if (v->cols == cols || v->cols == ACROSS_NONE) {
            snprintf(name, sizeof name, "%s", v->name);
            return name;
        }
    }
    return numbers[random_below(&m->s, 4)];
}

/* The columns of some value that has rows and columns. */
static across row_columns(row_maker *m) {
    for (;;) {
        const row_value *v = &m->v[random_below(&m->s, m->count)];
        if (v->rows && v->cols != ACROSS_NONE)
            return v->cols;
    }
}

static bool row_exists(const row_maker *m, across cols) {
    for (int i = 0; i < m->count; i++)
        if (m->v[i].rows && m->v[i].cols == cols)
            return true;
    return false;
}

static void row_map(row_maker *m, across cols) {
    static const char *const unary[] = {"-",    "abs",     "exp",  "tanh", "erf",       "sin",
                                        "sqrt", "sigmoid", "silu", "relu", "gelu_tanh", "softplus"};
    static const char *const binary[] = {"+", "-", "*", "/", "/", "<"};
    row_value a = row_pick(m, cols);
    char b[12];
    snprintf(b, sizeof b, "%s", row_beside(m, cols));
    const char *op = unary[random_below(&m->s, 12)];
    switch (random_below(&m->s, 4)) {
    case 0: {
        const char *lead = !strcmp(op, "exp") ? "min(3, " : !strcmp(op, "sqrt") ? "abs(" : "(";
        ADD(m->text, "    v%d = %s(%s%s))\n", m->fresh, op, lead, a.name);
        break;
    }
    case 1: ADD(m->text, "    v%d = %s/(1.5 + abs(%s))\n", m->fresh, a.name, b); break;
    case 2:
        ADD(m->text, "    v%d = where(%s > 0.1, %s, %s)\n", m->fresh, a.name, b, row_beside(m, cols));
        break;
    default: ADD(m->text, "    v%d = %s %s %s\n", m->fresh, a.name, binary[random_below(&m->s, 6)], b);
    }
    row_add(m, cols, true);
}

static void row_grow(row_maker *m) {
    static const char *const folds[] = {"sum", "mean", "max", "min", "logsumexp", "var", "mean"};
    across cols = row_columns(m);
    row_value a = row_pick(m, cols);
    int what = random_below(&m->s, 14), at = m->fresh;
    const char *fold = folds[random_below(&m->s, 7)], *axis = across_axis[cols];
    if (what < 5) {
        row_map(m, cols);
    } else if (what < 8) {
        ADD(m->text, "    v%d = %s(%s, %s)\n", at, fold, a.name, axis);
        row_add(m, ACROSS_NONE, true);
    } else if (what == 8) {
        ADD(m->text, "    v%d = %s - %s(%s, %s)\n", at, a.name, fold, a.name, axis);
        row_add(m, cols, true);
    } else if (what == 9) {
        ADD(m->text, "    v%d = softmax(%s, %s)\n", at, a.name, axis);
        row_add(m, cols, true);
    } else if (what == 10 && !m->parted) {
        row_value x = row_pick(m, ACROSS_D);
        m->parted = true;
        ADD(m->text, "    v%d, v%d = %s(%s, D)\n", at, at + 1, m->halves ? "halves" : "pairs", x.name);
        row_add(m, ACROSS_HALF, true);
        row_add(m, ACROSS_HALF, true);
    } else if (what == 11 && row_exists(m, ACROSS_HALF)) {
        row_value x = row_pick(m, ACROSS_HALF), y = row_pick(m, ACROSS_HALF);
        ADD(m->text, "    v%d = %s(%s, %s, D)\n", at, m->halves ? "concat" : "join", x.name, y.name);
        row_add(m, ACROSS_D, true);
    } else if (what == 12) {
        bool back = row_exists(m, ACROSS_N) && random_below(&m->s, 2);
        ADD(m->text, "    v%d = %s @ %s\n", at, row_pick(m, back ? ACROSS_N : ACROSS_D).name,
            back ? "u" : "w");
        row_add(m, back ? ACROSS_D : ACROSS_N, true);
    } else if (what == 13) {
        ADD(m->text, "    v%d = softmax(%s @ k, R) @ e\n", at, row_pick(m, ACROSS_D).name);
        row_add(m, ACROSS_D, true);
    }
}

/* The axes of a value, in some order. */
static void row_axes_of(row_maker *m, across cols, bool written, char out[64]) {
    const char *at[4];
    int n = 0;
    if (m->batched)
        at[n++] = "B";
    at[n++] = "T";
    if (cols != ACROSS_NONE)
        at[n++] = across_axis[cols];
    for (int i = n - 1; i > 0 && !written; i--) {
        int j = random_below(&m->s, i + 1);
        const char *swap = at[i];
        at[i] = at[j];
        at[j] = swap;
    }
    out[0] = 0;
    for (int i = 0; i < n; i++)
        append(out, 64, "%s%s", i ? "," : "", at[i]);
}

static void row_begin(row_maker *m, uint64_t seed) {
    static const char *const names[] = {"x", "t", "r", "g"};
    static const across cols[] = {ACROSS_D, ACROSS_D, ACROSS_NONE, ACROSS_D};
    *m = (row_maker){.s = seed * 3 + 1};
    m->batched = random_below(&m->s, 3) == 0;
    m->halves = random_below(&m->s, 2);
    m->crossed = random_below(&m->s, 6) == 0;
    for (int i = 0; i < 4; i++) {
        row_add(m, cols[i], i < 3);
        snprintf(m->v[i].name, sizeof m->v[i].name, "%s", names[i]);
    }
}

static void make_row_program(row_maker *m, uint64_t seed) {
    char body[8192], outputs[1024] = "", axes[64], of_x[64], of_t[64], of_r[64];
    row_begin(m, seed);
    for (int i = 0, n = 1 + random_below(&m->s, 7); i < n; i++)
        row_grow(m);
    while (m->count == 4)
        row_grow(m);
    int stored = 0, most = 1 + random_below(&m->s, 3);
    for (int i = m->count - 1; i >= 4 && stored < most; i--) {
        const row_value *v = &m->v[i];
        if (i + 1 < m->count && random_below(&m->s, 3) == 0)
            continue;
        row_axes_of(m, v->cols, random_below(&m->s, 3) == 0, axes);
        ADD(m->text, "    o%d = %s\n", stored, v->name);
        ADD(outputs, "%so%d%s[%s]", stored ? ", " : "", stored,
            v->cols == ACROSS_NONE || random_below(&m->s, 4) == 0 ? ": f32" : "", axes);
        stored++;
    }
    snprintf(body, sizeof body, "%s", m->text);
    row_axes_of(m, ACROSS_D, !m->crossed, of_x);
    row_axes_of(m, ACROSS_D, random_below(&m->s, 3) > 0, of_t);
    row_axes_of(m, ACROSS_NONE, true, of_r);
    m->text[0] = 0;
    ADD(m->text, "f(x[%s], t[%s], r[%s], g[D], s, w[N,D], u[D,N], k[R,D], e[D,R]) -> (%s) {\n%s}\n", of_x,
        of_t, of_r, outputs, body);
}

#endif
