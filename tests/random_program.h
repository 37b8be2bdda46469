/* random_program.h: random programs around one product, or without one.
 *
 * A program is grown from values of the shapes a tile can hold: maps of what is there, pairs and
 * halves, elements of inputs by number, random numbers, reductions that leave and reductions that stay.
 * Everything follows from the seed. */
#ifndef EPI_TESTS_RANDOM_PROGRAM_H
#define EPI_TESTS_RANDOM_PROGRAM_H

#include "harness.h"

enum { MAX_VALUES = 64 };

typedef struct value {
    char name[16];
    bool rows, cols, half, tile; /* half: columns at half their number; tile: depends on the product */
} value;

typedef struct maker {
    uint64_t s;
    char text[8192];
    value v[MAX_VALUES];
    int count, fresh;
    bool parted, halves;
} maker;

static value *add(maker *m, bool rows, bool cols, bool half, bool tile) {
    value *v = &m->v[m->count++];
    *v = (value){.rows = rows, .cols = cols, .half = half, .tile = tile};
    snprintf(v->name, sizeof v->name, "v%d", m->fresh++);
    return v;
}

/* A value that may stand beside one of this column scale. */
static const value *pick(maker *m, bool half, bool exact) {
    for (;;) {
        const value *v = &m->v[random_below(&m->s, m->count)];
        if (v->cols ? v->half == half : !exact)
            return v;
    }
}

static bool exists(const maker *m, bool half) {
    for (int i = 0; i < m->count; i++)
        if (m->v[i].cols && m->v[i].half == half)
            return true;
    return false;
}

static void grow(maker *m) {
    static const char *const unary[] = {"-",    "abs",       "exp",      "tanh",  "erf",
                                        "sin",  "cos",       "sigmoid",  "silu",  "relu",
                                        "gelu", "gelu_tanh", "softplus", "floor", "not "};
    static const char *const binary[] = {"+", "-", "*", "<", ">=", "=="};
    bool half = exists(m, true) && random_below(&m->s, 2);
    const value a = *pick(m, half, true), b = *pick(m, half, false), c = *pick(m, half, false);
    int what = random_below(&m->s, 12);
    bool rows = a.rows | b.rows, tile = a.tile | b.tile;
    if (what < 4) {
        const char *op = unary[random_below(&m->s, 15)];
        value *v = add(m, a.rows, true, half, a.tile);
        if (!strcmp(op, "exp")) /* kept small, so that sums of it stay comparable */
            ADD(m->text, "    %s = exp(min(%s, 3))\n", v->name, a.name);
        else
            ADD(m->text, "    %s = %s(%s)\n", v->name, op, a.name);
    } else if (what < 8) {
        value *v = add(m, rows, true, half, tile);
        ADD(m->text, "    %s = %s %s %s\n", v->name, a.name, binary[random_below(&m->s, 6)], b.name);
    } else if (what == 8) {
        value *v = add(m, rows | c.rows, true, half, tile | c.tile);
        ADD(m->text, "    %s = where(%s > 0, %s, %s)\n", v->name, a.name, b.name, c.name);
    } else if (what == 9 && !m->parted && exists(m, false)) {
        const value whole = *pick(m, false, true);
        m->parted = true;
        m->halves = random_below(&m->s, 2);
        value *x = add(m, whole.rows, true, true, whole.tile),
              *y = add(m, whole.rows, true, true, whole.tile);
        ADD(m->text, "    %s, %s = %s(%s, D)\n", x->name, y->name, m->halves ? "halves" : "pairs",
            whole.name);
    } else if (what == 10 && exists(m, true)) {
        const value x = *pick(m, true, true), y = *pick(m, true, true);
        value *v = add(m, x.rows | y.rows, true, false, x.tile | y.tile);
        ADD(m->text, "    %s = %s(%s, %s, D)\n", v->name, m->halves ? "concat" : "join", x.name, y.name);
    } else if (what == 11) {
        value *v = add(m, false, true, half, false);
        ADD(m->text, "    %s = index(%s)/size(%s)\n", v->name, half ? "D/2" : "D", half ? "D/2" : "D");
    }
}

/* An element of an input by number, an input with one replaced, or a random number, added to the last value
 * of the tile. It has a random state of its own, so that the rest of a program stays what it was. */
static void take(maker *m, uint64_t seed) {
    static const char *const taken[] = {"gather(r, ids, S)", "gather(t, ids, S)", "gather(g, order, D)", NULL,
                                        "update(t, g, max(ids, S), S)"};
    uint64_t s = ~seed;
    int last = m->count - 1, which = random_below(&s, 6);
    while (last > 0 && !(m->v[last].tile && m->v[last].cols))
        last--;
    const value from = m->v[last];
    if (which > 4 || (which && which != 3 && from.half))
        return;
    value *v = add(m, true, true, from.half, true);
    if (which != 3)
        ADD(m->text, "    %s = %s + %s\n", v->name, from.name, taken[which]);
    else
        ADD(m->text, "    %s = %s + uniform(seed, B, S, H, %s)\n", v->name, from.name,
            from.half ? "D/2" : "D");
}

/* The inputs that both kinds of programs start from. */
static inline void begin_program(maker *m, uint64_t seed) {
    static const char *const inputs[] = {"p", "r", "g", "t"};
    static const bool has_rows[] = {true, true, false, true}, has_cols[] = {true, false, true, true};
    *m = (maker){.s = seed};
    for (int i = 0; i < 4; i++) {
        value *v = add(m, has_rows[i], has_cols[i], false, i == 0);
        snprintf(v->name, sizeof v->name, "%s", inputs[i]);
    }
}

/* A program whose last values become outputs; some of them reduced. */
static void make_program(maker *m, uint64_t seed) {
    static const char *const reductions[] = {"sum", "mean", "max", "min", "logsumexp", "var"};
    begin_program(m, seed);
    char body[8192], outputs[1024] = "";
    bool local = random_below(&m->s, 3) == 0; /* a reduction inside a head */
    ADD(m->text, "    p = x @ w\n");
    if (local) {
        value *v = add(m, true, true, false, true);
        v->cols = false; /* may stand beside anything */
        ADD(m->text, "    %s = %s(p, D)\n", v->name, reductions[random_below(&m->s, 6)]);
    }
    for (int i = 0, n = 2 + random_below(&m->s, 9); i < n; i++)
        grow(m);
    take(m, seed);
    int stored = 0;
    for (int i = m->count - 1; i >= 4 && stored < 3; i--) {
        const value *v = &m->v[i];
        if (!v->tile || !v->cols)
            continue;
        const char *d = v->half ? "D/2" : "D";
        int kind = random_below(&m->s, 4);
        if (kind == 0)
            ADD(m->text, "    o%d = %s(%s, H, %s)\n", stored, reductions[random_below(&m->s, 6)], v->name, d);
        else if (kind == 1)
            ADD(m->text, "    o%d = %s(%s, B, S)\n", stored, reductions[random_below(&m->s, 6)], v->name);
        else
            ADD(m->text, "    o%d = %s + 0*p%s\n", stored, v->name, v->half ? "h" : "");
        ADD(outputs, "%so%d[%s%s]", stored ? ", " : "", stored, kind == 1 ? "" : "B,S",
            kind == 0   ? ""
            : kind == 1 ? (v->half ? "H,D/2" : "H,D")
            : v->half   ? ",H,D/2"
                        : ",H,D");
        stored++;
    }
    bool half = strstr(m->text, "*ph\n") != NULL;
    snprintf(body, sizeof body, "%s", m->text);
    m->text[0] = 0;
    ADD(m->text,
        "f(x[B,S,K], w[H,D,K], r[B,S], g[D], t[B,S,H,D], ids: i32[B,S], order: i32[D], seed: i32) -> "
        "(%s%sy[B,S,H,D]) {\n%s%s    y = p\n}\n",
        outputs, stored ? ", " : "",
        half ? (m->parted && m->halves ? "    ph, ph2 = halves(p0, D)\n" : "    ph, ph2 = pairs(p0, D)\n")
             : "",
        body);
    if (half) { /* the product under a second name, so that its part can be taken up front */
        char *at = strstr(m->text, "    ph, ph2");
        char rest[8192];
        snprintf(rest, sizeof rest, "%s", at);
        *at = 0;
        ADD(m->text, "    p0 = x @ w\n%s", rest);
    }
}

/* A program without a product over rows [B,S] and columns [H,D]: reductions over the columns stand beside
 * anything afterwards; others leave, or make passes. */
static inline void make_rows_program(maker *m, uint64_t seed) {
    static const char *const reductions[] = {"sum", "mean", "max", "min", "logsumexp", "var"};
    static const char *const over[] = {"H, %s", "B, S", "B, S, H, %s", "%s", "S"};
    static const char *const left[] = {"[B,S]", "[H,%s]", "", "[B,S,H]", "[B,H,%s]"};
    begin_program(m, seed);
    char body[8192], outputs[1024] = "";
    for (int i = 0, n = 2 + random_below(&m->s, 12); i < n; i++) {
        const value last = m->v[m->count - 1];
        if (random_below(&m->s, 4) || !last.cols || !last.rows || !last.tile) {
            grow(m);
            continue;
        }
        value *v = add(m, true, false, false, true); /* of the whole row, or of a head of it */
        ADD(m->text, "    %s = %s(%s + 0*%s, %s%s)\n", v->name, reductions[random_below(&m->s, 6)], last.name,
            last.half ? "ph" : "p", random_below(&m->s, 6) ? "H, " : "", last.half ? "D/2" : "D");
    }
    int stored = 0;
    for (int i = m->count - 1; i >= 4 && stored < 3; i--) {
        const value *v = &m->v[i];
        if (!v->tile || !v->cols || !v->rows)
            continue;
        const char *d = v->half ? "D/2" : "D";
        char list[64], axes[64];
        int kind = random_below(&m->s, 9);
        snprintf(axes, sizeof axes, "[B,S,H,%s]", d);
        if (kind < 5) {
            snprintf(list, sizeof list, over[kind], d);
            snprintf(axes, sizeof axes, left[kind], d);
            ADD(m->text, "    o%d = %s(%s + 0*%s, %s)\n", stored, reductions[random_below(&m->s, 6)], v->name,
                v->half ? "ph" : "p", list);
        } else {
            ADD(m->text, "    o%d = %s + 0*%s\n", stored, v->name, v->half ? "ph" : "p");
        }
        ADD(outputs, "o%d%s, ", stored++, axes);
    }
    snprintf(body, sizeof body, "%s", m->text);
    m->text[0] = 0;
    ADD(m->text, "f(p[B,S,H,D], r[B,S], g[D], t[B,S,H,D]) -> (%sy[B,S,H,D]) {\n%s%s    y = p*r\n}\n", outputs,
        strstr(body, "0*ph") ? (m->halves ? "    ph, ph2 = halves(p, D)\n" : "    ph, ph2 = pairs(p, D)\n")
                             : "",
        body);
}

/* ---- products one after another ---- */

/* A value of exactly these axes, any of those that there are; NULL: none. Halves are what has F for its columns. */
static inline const char *of_axes(maker *m, bool rows, bool cols, bool half) {
    const char *found = NULL;
    for (int i = 0, seen = 0; i < m->count; i++)
        if (m->v[i].rows == rows && m->v[i].cols == cols && m->v[i].half == half &&
            !random_below(&m->s, ++seen))
            found = m->v[i].name;
    return found;
}

/* One more value: a product, a norm, a softmax as it is written out, a statistic, a rotation, or a map of what is there. */
static inline void chain_step(maker *m) {
    static const char *const maps[] = {"silu", "tanh", "sigmoid", "abs", "gelu"};
    bool f = random_below(&m->s, 2);
    int what = random_below(&m->s, 9);
    const char *axis = f ? "F" : "D", *x = of_axes(m, true, true, f), *y = of_axes(m, true, true, f),
               *row = of_axes(m, true, false, false), *col = of_axes(m, false, true, f);
    if (!x)
        return;
    const char *v = add(m, true, what != 4, what != 4 && (what < 2 ? !f : f), true)->name;
    if (what < 2)
        ADD(m->text, "    %s = (%s @ %s)/size(%s)\n", v, x, f ? "wc" : what ? "wa" : "wb", axis);
    else if (what == 2)
        ADD(m->text, "    %s = %s*rsqrt(mean(%s*%s, %s) + 0.01)\n", v, x, x, x, axis);
    else if (what == 3)
        ADD(m->text, "    %s_e = exp(tanh(%s) - max(tanh(%s), %s))\n    %s = %s_e/sum(%s_e, %s)\n", v, x, x,
            axis, v, v, v, axis);
    else if (what == 4)
        ADD(m->text, "    %s = %s(%s, %s)\n", v, random_below(&m->s, 2) ? "mean" : "var", x, axis);
    else if (what == 5) {
        ADD(m->text, "    %s_a, %s_b = %s(%s, %s)\n", v, v, random_below(&m->s, 2) ? "pairs" : "halves", x,
            axis);
        ADD(m->text, "    %s = %s(%s_a - %s_b, %s_a, %s)\n", v, random_below(&m->s, 2) ? "join" : "concat", v,
            v, v, axis);
    } else if (what == 6 && row && col)
        ADD(m->text, "    %s = %s*%s + %s\n", v, x, row, col);
    else if (what == 7)
        ADD(m->text, "    %s = %s(%s)\n", v, maps[random_below(&m->s, 5)], x);
    else
        ADD(m->text, "    %s = %s %c %s\n", v, x, "+-*"[random_below(&m->s, 3)], y);
}

/* A program f of several products, which stores its last value and another one; and the same for a batch, where all but
 * wb have an axis more, so that products keep it. Nothing in it jumps. */
static inline void make_chain(maker *m, uint64_t seed) {
    static const value inputs[] = {{"x", true, true, false, false},
                                   {"r", true, false, false, false},
                                   {"gd", false, true, false, false},
                                   {"gf", false, true, true, false}};
    char body[8192], axes[2][8];
    *m = (maker){.s = seed * 7919 + 1, .count = 4};
    memcpy(m->v, inputs, sizeof inputs);
    for (int i = 4 + random_below(&m->s, 14); (i > 0 || m->count == 4) && m->count < MAX_VALUES - 4; i--)
        chain_step(m);
    const value *last = &m->v[m->count - 1], *stored[] = {last, &m->v[4 + random_below(&m->s, m->count - 4)]};
    for (int i = 0; i < 2; i++)
        snprintf(axes[i], sizeof axes[i], "%s", !stored[i]->cols ? "T]" : stored[i]->half ? "T,F]" : "T,D]");
    snprintf(body, sizeof body, "%s", m->text);
    m->text[0] = 0;
    ADD(m->text,
        "f(x[T,D], r[T], gd[D], gf[F], wa[F,D], wb[F,D], wc[D,F]) -> (y[%s, z[%s) {\n%s    y = %s + 0\n    z "
        "= -%s\n}\n"
        "batch(x[B,T,D], r[B,T], gd[B,D], gf[B,F], wa[B,F,D], wb[F,D], wc[B,D,F]) -> (y[B,%s, z[B,%s) {\n"
        "    y, z = f(x, r, gd, gf, wa, wb, wc)\n}\n",
        axes[0], axes[1], body, last->name, stored[1]->name, axes[0], axes[1]);
}

/* Has it functions that jump, where a rounded value may land on the other side? */
static inline bool has_steps(const char *text) {
    static const char *const steps[] = {"floor", "not ", "<", ">", "=="};
    for (int i = 0; i < 5; i++)
        for (const char *at = text; (at = strstr(at, steps[i])); at++)
            if (!(steps[i][0] == '>' && at > text && at[-1] == '-')) /* the arrow of the head */
                return true;
    return false;
}

/* The program of a seed, every third one of rows alone, and sizes of its own; the module is the caller's. NULL after a
 * failed check. */
static inline epi_module *random_module(epi_context *ctx, uint64_t seed, maker *m) {
    epi_module *module = NULL;
    epi_error err;
    (seed % 3 == 0 ? make_rows_program : make_program)(m, seed);
    check(epi_module_parse(ctx, m->text, strlen(m->text), "random", &module, &err) == EPI_OK,
          "seed %lu: %s\n%s", seed, err.message, m->text);
    return module;
}

/* So many random programs at small sizes; what fails a check is printed. */
static inline void check_random_programs(epi_context *ctx, int count,
                                         void (*check_one)(const epi_program *p, const char *dims,
                                                           uint64_t seed, const char *label)) {
    for (rounds r = rounds_of(count); next_round(&r);) {
        maker m;
        char dims[100], label[200];
        int failed = failed_count;
        epi_module *module = random_module(ctx, r.seed, &m);
        int b = 1 + random_below(&m.s, 2), s = 1 + random_below(&m.s, 3), h = 1 + random_below(&m.s, 2),
            d = 2 + 2 * random_below(&m.s, 2), k = 1 + random_below(&m.s, 3);
        snprintf(dims, sizeof dims, "B=%d,S=%d,H=%d,D=%d,K=%d", b, s, h, d, k);
        snprintf(label, sizeof label, "seed %lu, %s", r.seed, dims);
        if (module)
            check_one(epi_module_program(module, 0), dims, r.seed, label);
        if (failed_count > failed)
            printf("%s", m.text);
        epi_module_free(module);
    }
}

#endif
