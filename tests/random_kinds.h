/* random_kinds.h: what random programs are made of: products and sums of them, attention with masks and
 * scales, norms, choices, elements by number, shifts, recurrences, slices, halves and calls. */
#ifndef EPI_TESTS_RANDOM_KINDS_H
#define EPI_TESTS_RANDOM_KINDS_H

#include "random_value.h"

static void grow_unary(random_graph *m) {
    static const char *const forms[] = {"tanh(%s)",
                                        "sigmoid(%s)",
                                        "silu(%s)",
                                        "gelu(%s)",
                                        "-%s",
                                        "abs(%s)",
                                        "relu(%s)",
                                        "sin(%s)",
                                        "exp(min(%s, 2))",
                                        "rsqrt(1 + %s**2)",
                                        "softplus(%s)",
                                        "0.5*%s",
                                        "%s + 1",
                                        "%s/3",
                                        "gelu_tanh(%s)",
                                        "floor(4*%s)",
                                        "1.1*%s + 1",
                                        "cos(%s)",
                                        "log(1.5 + abs(%s))",
                                        "e4m3(%s)",
                                        "e5m2(2*%s)",
                                        "i8(8*%s)",
                                        "u8(8*%s)",
                                        "bf16(%s)",
                                        "f32(%s)"};
    static const double grown[] = {0, 0, 1, 1,   1, 1, 1, 0, 0, 0, 1, 1, 1,
                                   1, 1, 4, 1.1, 0, 1, 1, 2, 8, 8, 1, 1};
    graph_value a = one_in(m, 3) ? m->v[random_below(&m->s, m->count)] : some(m, 0);
    int f = random_below(&m->s, 25);
    char line[80];
    snprintf(line, sizeof line, forms[f], a.name);
    tamed(m, let(m, a.axes, a.half, grown[f] > 0 ? grown[f] * a.size + 1 : f == 8 ? 7.4 : 1, "%s", line));
}

static void grow_binary(random_graph *m) {
    static const char *const forms[] = {"%s + %s", "%s - %s",          "%s*%s",
                                        "%s*%s",   "max(%s, %s)",      "min(%s, %s)",
                                        "%s > %s", "%s/(2 + abs(%s))", "where(%s > 0, %s, 1)"};
    graph_value a = some(m, 0), b = some(m, one_in(m, 2) ? 0 : one_axis(m, a.axes ? a.axes : AX_T));
    int f = random_below(&m->s, 9);
    char line[80];
    if (axes_in(a.axes | b.axes) > 4)
        return;
    snprintf(line, sizeof line, forms[f], a.name, b.name);
    double size = f < 2 ? a.size + b.size : f < 4 ? a.size * b.size : f == 6 ? 1 : fmax(a.size, b.size) + 1;
    tamed(m, let(m, a.axes | b.axes, false, size, "%s", line));
}

/* The operands of a product over an axis. */
static bool product_operands(random_graph *m, unsigned *over, graph_value *a, graph_value *b) {
    *over = one_axis(m, AX_D | AX_D | AX_F | AX_T | AX_R);
    unsigned other = one_axis(m, (AX_T | AX_R | AX_D | AX_F | AX_C | AX_H) & ~*over);
    *a = some(m, *over);
    *b = exactly(m, *over | (other & ~a->axes ? other : one_axis(m, ~a->axes & 63)));
    return axes_in((a->axes | b->axes) & ~*over) <= 4 && axes_in(a->axes | b->axes) <= 6;
}

static void product_text(random_graph *m, unsigned over, graph_value a, graph_value b, char *out,
                         size_t size) {
    bool plain = (a.axes & b.axes) == over && one_in(m, 3);
    if (plain)
        snprintf(out, size, "(%s @ %s)", a.name, b.name);
    else
        snprintf(out, size, "sum(%s*%s, %c)", a.name, b.name, letter(over));
}

static void grow_product(random_graph *m) {
    static const char *const scales[] = {"%s", "%s*0.5", "%s*rsqrt(size(D))", "0.25*%s", "%s/2"};
    unsigned over;
    graph_value a, b;
    char p[120], line[160];
    if (!product_operands(m, &over, &a, &b))
        return;
    product_text(m, over, a, b, p, sizeof p);
    int scale = random_below(&m->s, 5); /* not by 1/sqrt(0) */
    snprintf(line, sizeof line, scales[scale == 2 && length_of(m, AX_D) == 0 ? 0 : scale], p);
    tamed(m, let(m, (a.axes | b.axes) & ~over, false, a.size * b.size * sqrt(length_of(m, over)) + 0.1, "%s",
                 line));
}

/* Products that are added up, with a factor that several of them have. */
static void grow_sum_of_products(random_graph *m) {
    static const char *const joins[] = {"0.5*%s + 0.5*%s", "%s + %s", "%s - %s", "%s*2 + %s*2",
                                        "0.5*%s - %s"};
    unsigned over;
    graph_value a, b;
    char p[120], q[120], line[400];
    if (!product_operands(m, &over, &a, &b) || axes_in(a.axes | b.axes) > 4)
        return;
    product_text(m, over, a, b, p, sizeof p);
    graph_value c = exactly(m, a.axes), d = one_in(m, 2) ? b : exactly(m, b.axes),
                s = exactly(m, one_axis(m, a.axes));
    graph_value e =
        one_in(m, 2) ? let(m, a.axes, false, a.size * s.size, "%s*%s", one_in(m, 2) ? a.name : c.name, s.name)
                     : c;
    product_text(m, over, e, d, q, sizeof q);
    snprintf(line, sizeof line, joins[random_below(&m->s, 5)], p, q);
    unsigned left = (a.axes | b.axes) & ~over;
    graph_value v =
        let(m, left, false, 3 * (a.size * b.size + e.size * d.size) * sqrt(length_of(m, over)), "%s", line);
    if (one_in(m, 3) && left) {
        graph_value t = exactly(m, one_axis(m, left));
        v = let(m, left, false, v.size * t.size, "%s*%s", v.name, t.name);
    }
    tamed(m, v);
}

static void mask_text(random_graph *m, unsigned rows, unsigned keys, char *out, size_t size) {
    switch (random_below(&m->s, 4)) {
    case 0: snprintf(out, size, "index(%c) <= index(%c)", letter(keys), letter(rows)); break;
    case 1:
        snprintf(out, size, "index(%c) > index(%c) - 2 and index(%c) <= index(%c)", letter(keys),
                 letter(rows), letter(keys), letter(rows));
        break;
    case 2: snprintf(out, size, "%s == %s", new_index(m, rows).name, new_index(m, keys).name); break;
    default: snprintf(out, size, "%s > 0", exactly(m, rows | keys).name);
    }
}

/* The weights of an attention, [T,R] and what the queries have besides. */
static graph_value grow_weights(random_graph *m, graph_value q, graph_value k, unsigned rows, unsigned keys,
                                const char *mask) {
    static const char *const scaled[] = {"sum(%s*%s, D)", "sum(%s*%s, D)*0.35",
                                         "sum(%s*%s, D)*rsqrt(size(D))", "0.5*sum(%s*%s, D)"};
    char line[200];
    unsigned axes = (q.axes | k.axes) & ~(unsigned)AX_D;
    (void)rows;
    int scale = random_below(&m->s, 4);
    snprintf(line, sizeof line, scaled[scale == 2 && length_of(m, AX_D) == 0 ? 0 : scale], q.name, k.name);
    graph_value s = let(m, axes, false, q.size * k.size * sqrt(length_of(m, AX_D)), "%s", line);
    if (one_in(m, 5))
        s = let(m, axes, false, s.size + 1.5, "%s + %s", s.name, exactly(m, rows | keys).name);
    if (one_in(m, 6))
        s = let(m, axes, false, 3, "3*tanh(%s)", s.name);
    if (mask[0])
        s = let(m, axes, false, s.size, "where(%s, %s, -inf)", mask, s.name);
    return let(m, axes, false, 1, "softmax(%s, %c)", s.name, letter(keys));
}

static void grow_attention(random_graph *m) {
    unsigned head = one_in(m, 3) ? AX_H : 0, rows = AX_T, keys = AX_R;
    graph_value q = exactly(m, rows | AX_D | head), k = exactly(m, keys | AX_D | (one_in(m, 2) ? head : 0));
    graph_value v = exactly(m, keys | (one_in(m, 2) ? AX_D : AX_F) | (k.axes & head));
    char mask[100] = "";
    if (one_in(m, 2))
        mask_text(m, rows, keys, mask, sizeof mask);
    graph_value p = grow_weights(m, q, k, rows, keys, mask);
    if (mask[0] && one_in(m, 3))
        p = let(m, p.axes, false, 1, "where(%s, %s, 0)", mask, p.name);
    if (one_in(m, 5)) {
        graph_value p2 = grow_weights(m, exactly(m, q.axes), k, rows, keys, one_in(m, 2) ? mask : "");
        p = let(m, p.axes | p2.axes, false, 1.5, "%s - 0.5*%s", p.name, p2.name);
    }
    if (one_in(m, 6))
        p = let(m, p.axes, false, p.size * 1.5, "%s*%s", p.name, exactly(m, keys).name);
    graph_value o = let(m, (p.axes | v.axes) & ~keys, false, p.size * v.size, "%ssum(%s*%s, R)",
                        one_in(m, 4) ? "0.5*" : "", p.name, v.name);
    if (one_in(m, 3))
        let(m, o.axes | AX_T, false, o.size + 1.5, "%s + %s", exactly(m, one_in(m, 2) ? o.axes : AX_T).name,
            o.name);
}

/* Attention of a sequence with itself. */
static void grow_self_attention(random_graph *m) {
    graph_value x = exactly(m, AX_T | AX_D);
    char c[20];
    snprintf(c, sizeof c, "c%d", m->fresh++);
    ADD(m->body, "    %s = rename(%s, T, P)\n", c, x.name);
    const char *mask = one_in(m, 2) ? "where(index(P) <= index(T), " : "(";
    let(m, AX_T | AX_D, false, x.size, "sum(softmax(%ssum(%s*%s, D)%s), P)*%s, P)", mask, x.name, c,
        mask[0] == 'w' ? ", -inf" : "", c);
}

static void grow_reduction(random_graph *m) {
    static const char *const words[] = {"sum", "mean", "max",     "min",        "logsumexp",
                                        "var", "max",  "softmax", "log_softmax"};
    graph_value a = some(m, 0);
    if (!a.axes)
        return;
    unsigned over = one_axis(m, a.axes);
    int w = random_below(&m->s, 9);
    double size = w == 0   ? a.size * length_of(m, over)
                  : w == 5 ? a.size * a.size
                  : w == 8 ? 2 * a.size + 4
                           : a.size + 4;
    if (one_in(m, 4) && axes_in(a.axes) > 1 && w < 7) {
        unsigned second = one_axis(m, a.axes & ~over);
        tamed(m, let(m, a.axes & ~(over | second), false, size * length_of(m, second), "%s(%s, %c, %c)",
                     words[w], a.name, letter(over), letter(second)));
        return;
    }
    tamed(m,
          let(m, w < 7 ? a.axes & ~over : a.axes, false, size, "%s(%s, %c)", words[w], a.name, letter(over)));
}

static void grow_norm(random_graph *m) {
    graph_value a = some(m, AX_D), g = exactly(m, AX_D);
    switch (random_below(&m->s, 4)) {
    case 0:
        let(m, a.axes, false, 5, "%s*rsqrt(mean(%s*%s, D) + 1e-3)*%s", a.name, a.name, a.name, g.name);
        break;
    case 1:
        let(m, a.axes, false, 5, "(%s - mean(%s, D))*rsqrt(var(%s, D) + 1e-2)", a.name, a.name, a.name);
        break;
    case 2: let(m, a.axes, false, 5, "%s/(max(abs(%s), D) + 0.5)", a.name, a.name); break;
    default: let(m, AX_T | AX_D, false, 5, "rmsnorm(%s, %s, 1e-3)", input_of(m, AX_T | AX_D).name, g.name);
    }
}

/* Bytes with a scale for each group along an axis: of a norm's rows, whose groups are some of its columns, and along another axis, too. */
static void grow_quantised(random_graph *m) {
    graph_value a = some(m, 0);
    if (axes_in(a.axes) < 2)
        return;
    unsigned over = one_axis(m, a.axes), other = one_axis(m, a.axes & ~over);
    if (one_in(m, 2))
        a = let(m, a.axes, false, 5, "%s*rsqrt(mean(%s*%s, %c, %c) + 1e-3)", a.name, a.name, a.name,
                letter(over), letter(other));
    graph_value s = let(m, a.axes & ~over, false, 1, "max(max(abs(%s), %c)/448, 1e-3)", a.name, letter(over));
    graph_value q = let(m, a.axes, false, 448, "e4m3(%s/%s)", a.name, s.name);
    let(m, a.axes, false, a.size, "%s*%s", s.name, q.name);
    if (one_in(m, 2))
        let(m, a.axes, false, 448, "e4m3(%s/max(max(abs(%s), %c)/448, 1e-3))", a.name, a.name, letter(other));
}

/* The largest of something computed, where it is, and what stands there. */
static void grow_choice(random_graph *m) {
    graph_value a = some(m, 0);
    if (axes_in(a.axes) < 2)
        return;
    unsigned over = one_axis(m, a.axes);
    graph_value i = let(m, a.axes & ~over, false, 4, "argmax(%s, %c)", a.name, letter(over));
    if (one_in(m, 2) && over != AX_C) {
        graph_value x = exactly(m, over | one_axis(m, 63 & ~(a.axes | over | AX_C)));
        if (axes_in(x.axes | i.axes) <= 4)
            let(m, (x.axes | i.axes) & ~over, false, x.size, "gather(%s, %s, %c)", x.name, i.name,
                letter(over));
    } else if (one_in(m, 2)) {
        let(m, a.axes, false, a.size, "where(%s == max(%s, %c), %s, 0)", a.name, a.name, letter(over),
            a.name);
    }
}

static void grow_move(random_graph *m) {
    graph_value x;
    switch (random_below(&m->s, 4)) {
    case 0:
        x = exactly(m, AX_R | AX_D);
        let(m, AX_T | AX_D, false, x.size, "gather(%s, %s, R)", x.name, new_index(m, AX_T).name);
        break;
    case 1:
        x = exactly(m, AX_T | (one_in(m, 2) ? AX_D : AX_F));
        if (!(m->declared & AX_R))
            new_input(m, AX_R);
        tamed(m, let(m, (x.axes & ~(unsigned)AX_T) | AX_R, false, 3 * x.size, "scatter(%s, %s, R)", x.name,
                     new_index(m, AX_T).name));
        break;
    case 2:
        x = exactly(m, AX_R | AX_D | (one_in(m, 2) ? AX_T : 0));
        let(m, x.axes, false, x.size + 1.5, "update(%s, %s, %s, R)", x.name, exactly(m, AX_D).name,
            new_index(m, x.axes & AX_T).name);
        break;
    default:
        x = some(m, AX_D);
        let(m, x.axes, false, x.size, "gather(%s, %s, D)", x.name, new_index(m, AX_D).name);
    }
}

/* Rows that choose their weights among R, once or twice, and what may stand between them. */
static void grow_experts(random_graph *m) {
    unsigned rows = AX_T | (one_in(m, 2) ? AX_H : 0), in = one_in(m, 3) ? rows : AX_T;
    graph_value i = new_index(m, rows), x = exactly(m, in | AX_D), w = exactly(m, AX_R | AX_D | AX_F);
    double size = x.size * w.size * sqrt(length_of(m, AX_D));
    graph_value h = let(m, rows | AX_F, false, size, "sum(%s*gather(%s, %s, R), D)", x.name, w.name, i.name);
    if (one_in(m, 3))
        h = let(m, h.axes, false, h.size + 1.5, "%s + gather(%s, %s, R)", h.name,
                exactly(m, AX_R | AX_F).name, i.name);
    if (one_in(m, 2))
        h = let(m, h.axes, false, h.size * 1.5, "%s*silu(%s)", exactly(m, rows).name, h.name);
    h = tamed(m, h);
    if (one_in(m, 3))
        return;
    graph_value v = exactly(m, AX_R | AX_D | AX_F);
    bool all = one_in(m, 2);
    tamed(m, let(m, (all ? AX_T : rows) | AX_D, false, 4 * h.size * v.size * sqrt(length_of(m, AX_F)),
                 "sum(%s*gather(%s, %s, R), %sF)", h.name, v.name, i.name, all && rows & AX_H ? "H, " : ""));
}

/* A few of the elements along an axis, under one or two other names; a product takes them as they lie. */
static void grow_stretch(random_graph *m) {
    bool two = one_in(m, 2);
    unsigned of = one_in(m, 2) ? AX_F : AX_R, as = two ? AX_C | AX_H : AX_C;
    graph_value w = exactly(m, of | AX_D), x = some(m, AX_D);
    for (unsigned axis = AX_C; axis <= AX_H; axis *= 2)
        if (as & axis & ~m->declared)
            new_input(m, axis);
    graph_value part =
        let(m, as | AX_D, false, w.size,
            two ? "gather(%s, index(H)*size(C) + index(C) + %d, %c)" : "gather(%s, index(C) + %d, %c)",
            w.name, random_below(&m->s, 3), letter(of));
    if (one_in(m, 3) || x.axes & as || axes_in(x.axes) > 3)
        return;
    tamed(m, let(m, (x.axes | as) & ~(unsigned)AX_D, false, x.size * w.size * sqrt(length_of(m, AX_D)),
                 "sum(%s*%s, D)", x.name, part.name));
}

static void grow_slices(random_graph *m) {
    if (one_in(m, 2)) {
        grow_stretch(m);
        return;
    }
    graph_value z = some(m, AX_C);
    int first = random_below(&m->s, 3), second = random_below(&m->s, 3);
    unsigned axes = z.axes & ~(unsigned)AX_C;
    graph_value a = let(m, axes, false, z.size, "gather(%s, %d, C)", z.name, first);
    if (one_in(m, 3))
        return;
    graph_value b = let(m, axes, false, z.size, "gather(%s, %d, C)", z.name, second);
    tamed(m, let(m, axes, false, a.size * b.size, one_in(m, 2) ? "silu(%s)*%s" : "%s*%s", a.name, b.name));
}

static void grow_halves(random_graph *m) {
    graph_value a = some(m, AX_D);
    bool pairs = one_in(m, 2);
    char x[12], y[12];
    snprintf(x, sizeof x, "h%d", m->fresh++);
    snprintf(y, sizeof y, "h%d", m->fresh++);
    ADD(m->body, "    %s, %s = %s(%s, D)\n", x, y, pairs ? "pairs" : "halves", a.name);
    switch (random_below(&m->s, 4)) {
    case 0:
        tamed(m, let(m, a.axes, false, 2 * a.size, "%s(%s - %s, %s + %s, D)", pairs ? "join" : "concat", x, y,
                     x, y));
        break;
    case 1: tamed(m, let(m, a.axes, true, a.size * a.size, "%s*silu(%s)", x, y)); break;
    case 2: let(m, a.axes, true, a.size, "%s/3", one_in(m, 2) ? x : y); break;
    default:
        tamed(m, let(m, a.axes & ~(unsigned)AX_D, false, a.size * a.size * length_of(m, AX_D),
                     "sum(%s*%s, D/2)", x, y));
    }
}

/* A value and its neighbours along an axis: by a number, by an index, and a sum over a few distances. */
static void grow_shift(random_graph *m) {
    graph_value a = some(m, one_in(m, 2) ? AX_T : 0);
    if (!a.axes || a.half)
        return;
    unsigned over = one_in(m, 2) && a.axes & AX_T ? AX_T : one_axis(m, a.axes);
    int by = random_below(&m->s, 7) - 3;
    char x = letter(over);
    switch (random_below(&m->s, 4)) {
    case 0: let(m, a.axes, false, a.size, "shift(%s, %c, %d)", a.name, x, by); break;
    case 1:
        tamed(m, let(m, a.axes, false, 2 * a.size, "%s - shift(%s, %c, %d)", a.name, a.name, x, by));
        break;
    case 2:
        let(m, a.axes, false, a.size, "gather(rename(%s, %c, Q%c), index(%c) - %d, Q%c)", a.name, x, x, x,
            1 + random_below(&m->s, 3), x);
        break;
    default:
        if (a.axes & AX_C)
            return;
        tamed(m, let(m, a.axes, false, 3 * a.size,
                     "sum(gather(rename(%s, %c, Q%c), index(%c) + index(C) - 2, Q%c)*%s, C)", a.name, x, x, x,
                     x, exactly(m, one_in(m, 2) ? AX_C | (a.axes & AX_D) : AX_C).name));
    }
}

/* What each step keeps of the one before: a number, or one for each element of some of these axes. */
static void decay_text(random_graph *m, unsigned axes, char *out, size_t size) {
    static const char *const forms[] = {"sigmoid(%s)", "exp(-abs(%s))", "tanh(%s)", "%s*0.5"};
    unsigned own = one_axis(m, axes) | (one_in(m, 2) ? one_axis(m, axes) : 0);
    graph_value a = exactly(m, own);
    if (one_in(m, 4))
        snprintf(out, size, "%s", one_in(m, 2) ? "1" : "0.9");
    else
        snprintf(out, size, forms[random_below(&m->s, a.size < 2 ? 4 : 3)], a.name);
}

/* Running sums and recurrences along an axis, from either end; running sums that are written with a mask; the last step. */
static void grow_scan(random_graph *m) {
    graph_value b = some(m, one_in(m, 2) ? AX_T : 0);
    if (!b.axes || b.half)
        return;
    unsigned over = one_in(m, 2) && b.axes & AX_T ? AX_T : one_axis(m, b.axes);
    double steps = length_of(m, over) + 1;
    char x = letter(over), decay[80];
    const char *op = one_in(m, 3) ? "scan_back" : "scan";
    decay_text(m, b.axes, decay, sizeof decay);
    switch (random_below(&m->s, 5)) {
    case 0: tamed(m, let(m, b.axes, false, steps * b.size, "cumsum(%s, %c)", b.name, x)); break;
    case 1: { /* the name is made first */
        static const char *const sides[] = {"<=", "<", ">=", ">"};
        char c[12];
        snprintf(c, sizeof c, "c%d", m->fresh++);
        ADD(m->body, "    %s = rename(%s, %c, Q%c)\n", c, b.name, x, x);
        tamed(m, let(m, b.axes, false, steps * b.size, "sum(where(index(Q%c) %s index(%c), %s, 0), Q%c)", x,
                     sides[random_below(&m->s, 4)], x, c, x));
        break;
    }
    case 2:
        if (axes_in(b.axes) > 1) {
            graph_value h = exactly(m, b.axes & ~over);
            tamed(m, let(m, b.axes, false, steps * b.size + h.size, "%s(%s, %s, %c, %s)", op, decay, b.name,
                         x, h.name));
            break;
        } /* else without a first state */
    /* fall through */
    case 3: tamed(m, let(m, b.axes, false, steps * b.size, "%s(%s, %s, %c)", op, decay, b.name, x)); break;
    default:
        if (length_of(m, over) == 0)
            return;
        tamed(m, let(m, b.axes & ~over, false, steps * b.size, "gather(scan(%s, %s, %c), size(%c) - 1, %c)",
                     decay, b.name, x, x, x));
    }
}

/* A scan of products: a state of two axes, D and F, of which sums along the one leave, or the other, and the last state. */
static void grow_states(random_graph *m) {
    unsigned batch = one_in(m, 3) ? AX_H : 0, time = one_in(m, 4) ? AX_R : AX_T;
    graph_value k = exactly(m, time | AX_D | (one_in(m, 2) ? batch : 0)), v = exactly(m, time | AX_F | batch);
    unsigned over = one_in(m, 4) ? AX_F : AX_D, state = AX_D | AX_F | k.axes | v.axes;
    graph_value q = exactly(m, time | over | (one_in(m, 2) ? batch : 0));
    double size = (length_of(m, time) + 1) * k.size * v.size;
    char x = letter(time), decay[80], first[20] = "";
    decay_text(m, time | batch | (one_in(m, 2) ? one_axis(m, AX_D | AX_F) : 0), decay, sizeof decay);
    if (one_in(m, 3))
        snprintf(first, sizeof first, ", %s", exactly(m, state & ~time).name);
    char s[12];
    snprintf(s, sizeof s, "s%d", m->fresh++);
    ADD(m->body, "    %s = %s(%s, %s*%s, %c%s)\n", s, one_in(m, 3) ? "scan_back" : "scan", decay, k.name,
        v.name, x, first);
    tamed(m, let(m, (state | q.axes) & ~over, false, (size + 1) * q.size * sqrt(length_of(m, over) + 1),
                 "sum(%s*%s, %c)", q.name, s, letter(over)));
    if (one_in(m, 3) && length_of(m, time) > 0)
        tamed(m, let(m, state & ~time, false, size + 1, "gather(%s, size(%c) - 1, %c)", s, x, x));
}

/* An integer for each element of these axes: a position, an index, or what is made of such by arithmetic, larger than f32 holds
 * here and there. Its size counts for nothing: whoever takes it brings it back. */
static graph_value grow_whole(random_graph *m, unsigned axes) {
    static const char *const forms[] = {
        "(%s*5 - 3) // 4", "%s %% 3 + 2*%s",  "-%s // 2",      "%s*1000003 %% 17 - %s // 3",
        "%s*%s - 7",       "max(%s, 2) - %s", "(%s - 9) %% 5", "where(%s %% 2 == 1, %s, -1)",
        "%s*%s*7000001",   "abs(3 - %s)"};
    unsigned along = one_axis(m, axes);
    char from[60], line[200];
    graph_value i = new_index(m, one_in(m, 2) ? axes : along);
    if (one_in(m, 3) && i.axes == axes)
        snprintf(from, sizeof from, "%s", i.name);
    else if (one_in(m, 2))
        snprintf(from, sizeof from, "(%s + index(%c))", i.name, letter(along));
    else
        snprintf(from, sizeof from, "(2*index(%c) - %s)", letter(along), i.name);
    snprintf(line, sizeof line, forms[random_below(&m->s, 10)], from, from);
    graph_value v = {.axes = i.axes | along, .size = 1};
    snprintf(v.name, sizeof v.name, "n%d", m->fresh++);
    ADD(m->body, "    %s = %s\n", v.name, line);
    return v;
}

/* Integers that choose elements, that make a mask, or that become numbers. */
static void grow_integers(random_graph *m) {
    graph_value x = some(m, AX_T);
    graph_value n = grow_whole(m, one_in(m, 2) ? AX_T : x.axes), other;
    int use = random_below(&m->s, 5);
    switch (n.axes & AX_R && use % 3 == 0 ? 2 : n.axes & AX_T ? use : use % 4) {
    case 0:
        other = exactly(m, AX_R | AX_D);
        let(m, n.axes | AX_D, false, other.size, "gather(%s, %s // 2 %% 5, R)", other.name, n.name);
        break;
    case 1: let(m, x.axes | n.axes, false, x.size + 1, "where(%s %% 3 == 1, %s, 0.5)", n.name, x.name); break;
    case 2: let(m, n.axes, false, 1, "0.125*(%s %% 8)", n.name); break;
    case 3:
        if (!(m->declared & AX_R))
            new_input(m, AX_R);
        other = exactly(m, n.axes | AX_D);
        tamed(m, let(m, AX_R | (AX_D & ~n.axes), false, 9 * other.size, "scatter(%s, %s // 3, R)", other.name,
                     n.name));
        break;
    default: let(m, n.axes, false, 1, "0.125*(sum(%s, T) %% 7 + %s %% 2)", n.name, n.name);
    }
}

static void grow_call(random_graph *m) {
    graph_value a = input_of(m, AX_D | (one_in(m, 3) ? AX_R : AX_T)), b = exactly(m, AX_D);
    m->calls = true;
    tamed(m, let(m, a.axes, false, a.size * 1.5 + 1, "mixed(%s, %s)", a.name, b.name));
}

static const struct {
    void (*grow)(random_graph *m);
    int weight;
} graph_kinds[] = {
    {grow_unary, 5},          {grow_binary, 6},    {grow_product, 6},   {grow_sum_of_products, 4},
    {grow_attention, 4},      {grow_reduction, 5}, {grow_norm, 3},      {grow_choice, 2},
    {grow_move, 3},           {grow_slices, 2},    {grow_halves, 2},    {grow_call, 1},
    {grow_self_attention, 1}, {grow_experts, 3},   {grow_quantised, 2}, {grow_shift, 3},
    {grow_scan, 4},           {grow_states, 3},    {grow_integers, 3}};

static void grow_one(random_graph *m) {
    int all = 0;
    for (size_t i = 0; i < sizeof graph_kinds / sizeof *graph_kinds; i++)
        all += graph_kinds[i].weight;
    int at = random_below(&m->s, all);
    for (size_t i = 0; i < sizeof graph_kinds / sizeof *graph_kinds; i++)
        if ((at -= graph_kinds[i].weight) < 0) {
            graph_kinds[i].grow(m);
            return;
        }
}

#endif
