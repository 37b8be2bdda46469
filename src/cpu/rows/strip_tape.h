/* strip_tape.h: tapes: many operations on some rows, on octets in registers.
 *
 * Only strips.c includes this, after its maps. Invariants while a tape runs:
 *   - An octet goes through all links before the next one does. A value that a later link needs again is
 *     also stored in memory, and is in the first-level cache when it is read.
 *   - Links are only read. A link's state belongs to it alone, and to one row at a time: it begins with the
 *     row's first octet and ends with its last.
 *   - The rest at the end of a row goes through the links in copies that are padded to an octet, so an
 *     element's bits do not depend on its place.
 *   - A row is reduced octet by octet. A tree reduces the eight vectors to one, which is added to a running
 *     vector; after EPI_SUM_TERMS of them, that is added to another one, whose elements a tree adds at the
 *     end. So the order of additions depends on the length alone.
 */
#ifndef EPI_CPU_STRIP_TAPE_H
#define EPI_CPU_STRIP_TAPE_H

#include "cpu/rows/strip_octet.h"

/* Element j of row r. */
static ALWAYS_INLINE unsigned char *place(const epi_link_operand *o, ptrdiff_t r, ptrdiff_t j) {
    return (unsigned char *)(uintptr_t)o->p + r * o->row + j * (ptrdiff_t)epi_dtype_size(o->type);
}
static ALWAYS_INLINE uint16_t *halves(const epi_link_operand *o, ptrdiff_t r, ptrdiff_t j) {
    return (uint16_t *)(void *)((unsigned char *)(uintptr_t)o->p + r * o->row) + j;
}
static ALWAYS_INLINE float *floats(const epi_link_operand *o, ptrdiff_t r, ptrdiff_t j) {
    return (float *)(void *)((unsigned char *)(uintptr_t)o->p + r * o->row) + j;
}

static ALWAYS_INLINE octet operand(const epi_link_operand *o, ptrdiff_t r, ptrdiff_t j) {
    octet x;
    if (o->col)
        octet_get_any(&x, place(o, r, j), o->type);
    else
        octet_fill(&x, *floats(o, r, 0));
    return x;
}

/* ---- links that are more than an expression ---- */

/* NEON's processors bring rows from the second-level cache and from memory in time by themselves. */
#if defined(__aarch64__)
enum { TAPE_PREFETCHES = 0 };
#else
enum { TAPE_PREFETCHES = 1 };
#endif

static ALWAYS_INLINE void prefetch(const epi_link *k, ptrdiff_t r, ptrdiff_t j) {
    ptrdiff_t line = j * k->rate >> 16, lines = ((j + OCTET) * k->rate >> 16) - line;
    const unsigned char *p = (const unsigned char *)k->a.p + r * k->a.row + line * LINE;
    for (; lines > 0; lines--, p += LINE) {
        const unsigned char *q = p + 2 * k->ahead;
        __builtin_prefetch(p, 0, 3);
        __builtin_prefetch(p + k->ahead, 0, 3);
        __builtin_prefetch(q, 0, 3);
        __builtin_prefetch(q + k->ahead, 0, 3);
    }
}
_Static_assert(EPI_WAYS == 4, "a line at each of four places");

/* Factors instead of a division by b: the inverse and 1. Where a float does not hold the inverse well, a
 * power of two and the inverse of b brought near 1 by it: neither of them nor a product in between leaves the
 * range of a float where the quotient does not. */
static void factors_of(float b, float *factor) {
    uint32_t exponent = float_bits(b) >> 23 & 255;
    float power = bits_float((exponent > 253 ? 1 : 254 - exponent) << 23), inverse = 1 / (b * power);
    bool normal = exponent > 0 && exponent < 253;
    factor[0] = normal ? inverse * power : power > 1 ? power / 2 : inverse;
    factor[1] = normal ? 1 : power > 1 ? inverse * 2 : power;
}

static ALWAYS_INLINE void over(const epi_link *k, octet *v) {
    wide factor = wide_of(k->state[0]);
    EACH(v->v[i] *= factor);
    octet_scale(v, k->state[1]);
}

/* The running vector has OCTET elements for each of its own: `before` of the row's come before this octet. */
static ALWAYS_INLINE void fold_row(const epi_link *k, epi_op op, ptrdiff_t r, ptrdiff_t before, bool ends,
                                   const octet *v) {
    enum { SPAN_OF_OCTETS = EPI_SUM_TERMS * OCTET };
    float *run = k->state, *all = k->state + WIDE;
    wide x = octet_folded(op, v);
    if (before % SPAN_OF_OCTETS) /* what runs on second: a maximum looks at its first operand for longer */
        x = wide_fold(op, x, wide_get(run));
    else if (before)
        wide_put(all, before > SPAN_OF_OCTETS ? wide_fold(op, wide_get(run), wide_get(all)) : wide_get(run));
    if (ends)
        *floats(&k->b, r, 0) =
            wide_folded(op, before >= SPAN_OF_OCTETS ? wide_fold(op, x, wide_get(all)) : x);
    else
        wide_put(run, x);
}

static ALWAYS_INLINE void fold_columns(const epi_link *k, epi_op op, ptrdiff_t r, ptrdiff_t j,
                                       const octet *v) {
    float *p = floats(&k->a, r, j);
    EACH(wide_put(p + i * WIDE, wide_fold(op, wide_get(p + i * WIDE), v->v[i])));
}

static ALWAYS_INLINE void store_octet(const epi_link *k, ptrdiff_t r, ptrdiff_t j, const octet *v) {
    if (k->nontemporal)
        octet_nontemporal(place(&k->a, r, j), k->a.type, v);
    else
        octet_put_any(place(&k->a, r, j), k->a.type, v);
}

/* ---- links that are a formula ---- */

static ALWAYS_INLINE wide muladd_of(wide a, wide b, wide c) {
    return wide_fma(a, b, c);
}
/* a where c is not 0, else b. */
static ALWAYS_INLINE wide chosen(wide c, wide a, wide b) {
    return wide_choose((wide_bits)(c != wide_of(0)), a, b);
}

#define FORMULA_OF_ONE(id, formula) \
    static ALWAYS_INLINE wide make_##id(wide v, wide a) { \
        return formula; \
    }
#define FORMULA_OF_TWO(id, formula) \
    static ALWAYS_INLINE wide make_##id(wide v, wide a, wide b) { \
        return formula; \
    }
#define FORMULA_OF_COMPARISON(id, formula) \
    static ALWAYS_INLINE wide make_##id(wide v, wide a) { \
        return (wide)((wide_bits)(formula) & (wide_bits)wide_of(1)); \
    }
EPI_LINKS_OF_ONE(FORMULA_OF_ONE)
EPI_LINKS_OF_TWO(FORMULA_OF_TWO)
EPI_LINKS_OF_COMPARISON(FORMULA_OF_COMPARISON)

/* ---- links that are more ---- */

static ALWAYS_INLINE void join_octets(const epi_link *k, ptrdiff_t r, ptrdiff_t j, const octet *even,
                                      const octet *odd) {
    float x[2 * OCTET];
    octet half;
    if (!k->nontemporal) {
        join_put_any(place(&k->b, r, 2 * j), k->b.type, even, odd);
        return;
    }
    join_put(x, even, odd);
    for (int h = 0; h < 2; h++) {
        octet_get(&half, x + h * OCTET);
        octet_nontemporal(place(&k->b, r, 2 * j + h * OCTET), k->b.type, &half);
    }
}

/* ---- any link ---- */

/* After the last link come those that prefetch, and the end. */
static ALWAYS_INLINE bool is_end(const epi_link *k) {
    return k->kind == EPI_LINK_NONE || k->kind == EPI_LINK_PREFETCH;
}

/* An octet that ends its row or does not. */
static ALWAYS_INLINE void link_any_kind(const epi_link *k, ptrdiff_t r, ptrdiff_t j, bool ends, octet *v) {
    octet x, y;
    if (k->from.p)
        *v = operand(&k->from, r, j);
    if (k->kind == EPI_LINK_JOIN || (k->kind >= EPI_LINK_MUL && k->kind <= EPI_LINK_NE))
        x = operand(&k->a, r, j);
    if (k->kind >= EPI_LINK_MUL_MUL && k->kind <= EPI_LINK_ELSE)
        y = operand(&k->b, r, j);
    switch (k->kind) {
    case EPI_LINK_GET: break;
#define ANY_OF_ONE(id, formula) \
    case EPI_LINK_##id: \
        EACH(v->v[i] = make_##id(v->v[i], x.v[i])); \
        break;
#define ANY_OF_TWO(id, formula) \
    case EPI_LINK_##id: EACH(v->v[i] = make_##id(v->v[i], x.v[i], y.v[i])); break;
        EPI_LINKS_OF_ONE(ANY_OF_ONE)
        EPI_LINKS_OF_COMPARISON(ANY_OF_ONE)
        EPI_LINKS_OF_TWO(ANY_OF_TWO)
    case EPI_LINK_SQUARE: EACH(v->v[i] *= v->v[i]); break;
    case EPI_LINK_OVER: over(k, v); break;
    case EPI_LINK_SPLIT: split_get_any(v, place(&k->a, r, 2 * j), k->a.type, floats(&k->b, r, j)); break;
    case EPI_LINK_JOIN: join_octets(k, r, j, v, &x); break;
    case EPI_LINK_STORE: store_octet(k, r, j, v); break;
    case EPI_LINK_COLUMNS: fold_columns(k, k->op, r, j, v); break;
    default: octet_map(k->kind - EPI_LINK_MAP, v); break;
    }
    if (k->folds)
        fold_row(k, k->op, r, j, ends, v);
    if (k->to.p)
        octet_put(floats(&k->to, r, j), v);
}

/* Makes `o`, an operand from element j of row r on, a copy of n elements in `pad`, filled up to `most`. */
static void fill_up(epi_link_operand *o, ptrdiff_t r, ptrdiff_t j, int n, float *pad, int most) {
    if (!o->p)
        return;
    const unsigned char *p = place(o, r, o->col ? j : 0);
    if (o->col) {
        fill(pad, 0, most);
        load(pad, p, o->type, 1, n);
    }
    *o = (epi_link_operand){.p = o->col ? (const void *)pad : p, .type = EPI_F32, .col = o->col};
}

/* m elements of row r from j on, fewer than an octet: links work on copies, and what they write is copied to
 * where it belongs. */
static __attribute__((noinline)) void tape_some(const epi_link *link, ptrdiff_t r, ptrdiff_t j, int m) {
    float pad[3][2 * OCTET], out[2 * OCTET], kept[OCTET];
    octet v;
    octet_fill(&v, 0);
    for (; !is_end(link); link++) {
        epi_link k = *link;
        bool wide_a = k.kind == EPI_LINK_SPLIT, wide_b = k.kind == EPI_LINK_JOIN;
        fill_up(&k.from, r, j, m, pad[0], OCTET);
        if (k.to.p)
            k.to = (epi_link_operand){.p = kept, .type = EPI_F32, .col = 1};
        k.folds = false;
        if (k.kind == EPI_LINK_STORE) {
            k.kind = EPI_LINK_GET;
        } else {
            fill_up(&k.a, r, wide_a ? 2 * j : j, wide_a ? 2 * m : m, pad[1], 2 * OCTET);
            if (wide_a || wide_b)
                k.b = (epi_link_operand){.p = out, .type = EPI_F32, .col = 1};
            else if (!link->folds)
                fill_up(&k.b, r, j, m, pad[2], OCTET);
        }
        k.nontemporal = false;
        link_any_kind(&k, 0, 0, false, &v);
        if (k.to.p)
            memcpy(floats(&link->to, r, j), kept, (size_t)m * sizeof(float));
        if (wide_a)
            memcpy(floats(&link->b, r, j), out, (size_t)m * sizeof(float));
        if (wide_b)
            store(place(&link->b, r, 2 * j), link->b.type, 1, out, 2 * m);
        if (k.kind == EPI_LINK_COLUMNS)
            memcpy(floats(&link->a, r, j), pad[1], (size_t)m * sizeof(float));
        if (link->kind == EPI_LINK_STORE) {
            octet_put(out, &v);
            store(place(&link->a, r, j), link->a.type, 1, out, m);
        } else if (link->folds) {
            octet x;
            octet_put(out, &v);
            fill(out + m, link->identity, OCTET - m);
            octet_get(&x, out);
            fold_row(link, link->op, r, j, true, &x);
        }
    }
}

/* ---- links with a function of their own ---- */

/* A link is a function that ends by calling the next one, which compilers make a jump; v goes along in
 * registers, eight of which the calling conventions have for vectors. The forms that are met most have
 * functions of their own, in which there is nothing to choose: three for where v comes from (registers, f32,
 * bf16) times two for where it goes besides (nowhere, f32). */
typedef void link_function(const epi_link *k, ptrdiff_t r, ptrdiff_t j, ptrdiff_t n, wide v0, wide v1,
                           wide v2, wide v3, wide v4, wide v5, wide v6, wide v7);

#define LINK_FUNCTION(name, get, put, ...) \
    static void name(const epi_link *k, ptrdiff_t r, ptrdiff_t j, ptrdiff_t n, wide v0, wide v1, wide v2, \
                     wide v3, wide v4, wide v5, wide v6, wide v7) { \
        octet v = {{v0, v1, v2, v3, v4, v5, v6, v7}}; \
        get; \
        __VA_ARGS__; \
        put; \
        k++; \
        if (k->run) \
            ((link_function *)k->run)(k, r, j, n, v.v[0], v.v[1], v.v[2], v.v[3], v.v[4], v.v[5], v.v[6], \
                                      v.v[7]); \
    }

#define GET_F32 octet_get(&v, floats(&k->from, r, j))
#define GET_BF16 octet_get_bf16(&v, halves(&k->from, r, j))
#define PUT_F32 octet_put(floats(&k->to, r, j), &v)

#define LINK(name, ...) \
    LINK_FUNCTION(link_##name, (void)0, (void)0, __VA_ARGS__) \
    LINK_FUNCTION(link_##name##_to, (void)0, PUT_F32, __VA_ARGS__) \
    LINK_FUNCTION(link_f32_##name, GET_F32, (void)0, __VA_ARGS__) \
    LINK_FUNCTION(link_f32_##name##_to, GET_F32, PUT_F32, __VA_ARGS__) \
    LINK_FUNCTION(link_bf16_##name, GET_BF16, (void)0, __VA_ARGS__) \
    LINK_FUNCTION(link_bf16_##name##_to, GET_BF16, PUT_F32, __VA_ARGS__) \
    static link_function *const name##_links[3][2] = {{link_##name, link_##name##_to}, \
                                                      {link_f32_##name, link_f32_##name##_to}, \
                                                      {link_bf16_##name, link_bf16_##name##_to}};

#define ROW_A const float *p = floats(&k->a, r, j)
#define ROW_B const float *q = floats(&k->b, r, j)
#define ONE_A wide a = wide_of(*floats(&k->a, r, 0))
#define ONE_B wide b = wide_of(*floats(&k->b, r, 0))

/* With a row of f32 for a; a row of bf16; one number. */
#define OWN_OF_ONE(id, formula) \
    LINK(id##_row, ROW_A; EACH(v.v[i] = make_##id(v.v[i], wide_get(p + i * WIDE)))) \
    LINK(id##_bf16, octet x; octet_get_bf16(&x, halves(&k->a, r, j)); \
         EACH(v.v[i] = make_##id(v.v[i], x.v[i]))) \
    LINK(id##_one, ONE_A; EACH(v.v[i] = make_##id(v.v[i], a)))
/* With rows of f32 or one number for a and b. */
#define OWN_OF_TWO(id, formula) \
    LINK(id##_rows, ROW_A; ROW_B; \
         EACH(v.v[i] = make_##id(v.v[i], wide_get(p + i * WIDE), wide_get(q + i * WIDE)))) \
    LINK(id##_row_one, ROW_A; ONE_B; EACH(v.v[i] = make_##id(v.v[i], wide_get(p + i * WIDE), b))) \
    LINK(id##_one_row, ONE_A; ROW_B; EACH(v.v[i] = make_##id(v.v[i], a, wide_get(q + i * WIDE)))) \
    LINK(id##_ones, ONE_A; ONE_B; EACH(v.v[i] = make_##id(v.v[i], a, b)))
/* With one number. */
#define OWN_OF_COMPARISON(id, formula) LINK(id##_one, ONE_A; EACH(v.v[i] = make_##id(v.v[i], a)))

EPI_LINKS_OF_ONE(OWN_OF_ONE)
EPI_LINKS_OF_TWO(OWN_OF_TWO)
EPI_LINKS_OF_COMPARISON(OWN_OF_COMPARISON)
LINK(get, (void)0)
LINK(square, EACH(v.v[i] *= v.v[i]))
LINK(over, over(k, &v))
LINK(exp, octet_map(EPI_OP_EXP, &v))
LINK(sigmoid, octet_map(EPI_OP_SIGMOID, &v))
LINK(silu, octet_map(EPI_OP_SILU, &v))
LINK(gelu, octet_map(EPI_OP_GELU, &v))
LINK(bf16, EACH(v.v[i] = wide_narrow(v.v[i])))
/* Functions that have no vectors of their own */
LINK(map, float y[OCTET]; octet_put(y, &v); map_elements(k->kind - EPI_LINK_MAP, y); octet_get(&v, y))
LINK(split, split_get(&v, floats(&k->a, r, 2 * j), floats(&k->b, r, j)))
LINK(split_bf16, split_get_bf16(&v, halves(&k->a, r, 2 * j), floats(&k->b, r, j)))
LINK(join, octet x; octet_get(&x, floats(&k->a, r, j)); join_put(floats(&k->b, r, 2 * j), &v, &x))
LINK(join_bf16, octet x; octet_get(&x, floats(&k->a, r, j)); join_put_bf16(halves(&k->b, r, 2 * j), &v, &x))
LINK(store, octet_put(floats(&k->a, r, j), &v))
LINK(store_bf16, octet_put_bf16(halves(&k->a, r, j), &v))
LINK(nontemporal, octet_nontemporal((unsigned char *)floats(&k->a, r, j), EPI_F32, &v))
LINK(nontemporal_bf16, octet_nontemporal((unsigned char *)halves(&k->a, r, j), EPI_BF16, &v))
/* With the sum of what they make, or its maximum. */
#define SUM_ROW fold_row(k, EPI_OP_SUM, r, j, j + OCTET == n, &v)
LINK(get_sum, SUM_ROW)
LINK(get_max, fold_row(k, EPI_OP_RMAX, r, j, j + OCTET == n, &v))
LINK(square_sum, EACH(v.v[i] *= v.v[i]); SUM_ROW)
LINK(exp_sum, octet_map(EPI_OP_EXP, &v); SUM_ROW)
LINK(mul_row_sum, ROW_A; EACH(v.v[i] *= wide_get(p + i * WIDE)); SUM_ROW)
LINK(mul_bf16_sum, octet x; octet_get_bf16(&x, halves(&k->a, r, j)); EACH(v.v[i] *= x.v[i]); SUM_ROW)
LINK(sum_columns, fold_columns(k, EPI_OP_SUM, r, j, &v))
LINK_FUNCTION(link_any, (void)0, (void)0, link_any_kind(k, r, j, j + OCTET == n, &v))

typedef link_function *const (*link_variants)[2]; /* by source, and whether v goes to memory besides */

static bool is_row(const epi_link_operand *o, epi_dtype type) {
    return o->p && o->col && o->type == type;
}

static link_variants by_type(const epi_link_operand *o, link_variants f32, link_variants bf16) {
    return is_row(o, EPI_F32) ? f32 : is_row(o, EPI_BF16) ? bf16 : NULL;
}

/* NULL: none of its own. */
static link_variants folding_variants_of(const epi_link *k) {
    if (k->op == EPI_OP_RMAX && k->kind == EPI_LINK_GET)
        return get_max_links;
    if (k->op != EPI_OP_SUM && k->op != EPI_OP_MEAN)
        return NULL;
    switch ((int)k->kind) {
    case EPI_LINK_GET: return get_sum_links;
    case EPI_LINK_SQUARE: return square_sum_links;
    case EPI_LINK_MUL: return by_type(&k->a, mul_row_sum_links, mul_bf16_sum_links);
    case EPI_LINK_MAP + EPI_OP_EXP: return wide_has(EPI_OP_EXP) ? exp_sum_links : NULL;
    default: return NULL;
    }
}

static link_variants variants_of(const epi_link *k) {
    bool a_row = is_row(&k->a, EPI_F32), b_row = is_row(&k->b, EPI_F32), a_one = k->a.p && !k->a.col,
         b_one = k->b.p && !k->b.col, sums = k->op == EPI_OP_SUM || k->op == EPI_OP_MEAN;
    if (k->folds)
        return folding_variants_of(k);
    switch ((int)k->kind) {
    case EPI_LINK_GET: return get_links;
#define FORMS_OF_ONE(id, formula) \
    case EPI_LINK_##id: \
        return a_one ? id##_one_links : by_type(&k->a, id##_row_links, id##_bf16_links);
#define FORMS_OF_TWO(id, formula) \
    case EPI_LINK_##id: \
        return a_row && b_row   ? id##_rows_links \
               : a_row && b_one ? id##_row_one_links \
               : a_one && b_row ? id##_one_row_links \
               : a_one && b_one ? id##_ones_links \
                                : NULL;
#define FORMS_OF_COMPARISON(id, formula) \
    case EPI_LINK_##id: return a_one ? id##_one_links : NULL;
        EPI_LINKS_OF_ONE(FORMS_OF_ONE)
        EPI_LINKS_OF_TWO(FORMS_OF_TWO)
        EPI_LINKS_OF_COMPARISON(FORMS_OF_COMPARISON)
    case EPI_LINK_SQUARE: return square_links;
    case EPI_LINK_OVER: return over_links;
    case EPI_LINK_SPLIT: return by_type(&k->a, split_links, split_bf16_links);
    case EPI_LINK_JOIN: return a_row && !k->nontemporal ? by_type(&k->b, join_links, join_bf16_links) : NULL;
    case EPI_LINK_STORE:
        return k->nontemporal ? by_type(&k->a, nontemporal_links, nontemporal_bf16_links)
                              : by_type(&k->a, store_links, store_bf16_links);
    case EPI_LINK_COLUMNS: return sums ? sum_columns_links : NULL;
    case EPI_LINK_MAP + EPI_OP_STORED_BF16: return bf16_links;
    case EPI_LINK_MAP + EPI_OP_EXP: return wide_has(EPI_OP_EXP) ? exp_links : map_links;
    case EPI_LINK_MAP + EPI_OP_SIGMOID: return wide_has(EPI_OP_SIGMOID) ? sigmoid_links : map_links;
    case EPI_LINK_MAP + EPI_OP_SILU: return wide_has(EPI_OP_SILU) ? silu_links : map_links;
    case EPI_LINK_MAP + EPI_OP_GELU: return wide_has(EPI_OP_GELU) ? gelu_links : map_links;
    default: return k->kind >= EPI_LINK_MAP ? map_links : NULL;
    }
}

static link_function *function_of(const epi_link *k) {
    if (is_end(k))
        return NULL;
    link_variants variants = variants_of(k);
    int source = !k->from.p ? 0 : is_row(&k->from, EPI_F32) ? 1 : is_row(&k->from, EPI_BF16) ? 2 : -1;
    return variants && source >= 0 ? variants[source][k->to.p != NULL] : link_any;
}

static void ready(epi_link *link) {
    for (;; link++) {
        link->run = (void (*)(void))function_of(link);
        if (link->kind == EPI_LINK_NONE)
            return;
    }
}

/* The loops of other functions, which compilers make, are better over a row than over an octet, at whose end
 * they wait; unless an octet is long. */
static bool takes(epi_op op) {
    return wide_has(op) || OCTET >= 128;
}

/* ---- tapes ---- */

/* Makes the factors of row r, and returns how many elements come before the first that begins a line of what
 * is stored by non-temporal stores. A row that is folded begins with a whole octet all the same: the order of
 * additions may not depend on where it lies. */
static ptrdiff_t begin_row(const epi_link *link, ptrdiff_t r) {
    ptrdiff_t head = 0;
    bool folds = false;
    for (; !is_end(link); link++) {
        folds |= link->folds;
        if (link->kind == EPI_LINK_OVER)
            factors_of(*floats(&link->a, r, 0), link->state);
        if (NONTEMPORAL && link->kind == EPI_LINK_STORE && link->nontemporal && !head)
            head = (ptrdiff_t)(-(uintptr_t)place(&link->a, r, 0) % LINE / epi_dtype_size(link->a.type));
    }
    return folds ? 0 : head;
}

/* Links end with upper halves of vector registers in use, as compilers cannot know which one is the last;
 * then every instruction of those before AVX, which the rest of the library is compiled to, takes long. */
static void clean_registers(void) {
#if defined(__AVX__)
    _mm256_zeroupper();
#endif
}

static void tape(const epi_link *link, int rows, int n) {
    const epi_link *ahead = link;
    wide v = wide_of(0);
    while (!is_end(ahead))
        ahead++;
    for (int r = 0; r < rows; r++) {
        ptrdiff_t j = begin_row(link, r);
        j = j < n ? j : n;
        if (j > 0)
            tape_some(link, r, 0, (int)j);
        for (; link->run && j + OCTET <= n; j += OCTET) {
            for (const epi_link *k = ahead; TAPE_PREFETCHES && k->kind == EPI_LINK_PREFETCH; k++)
                prefetch(k, r, j);
            ((link_function *)link->run)(link, r, j, n, v, v, v, v, v, v, v, v);
        }
        if (j < n)
            tape_some(link, r, j, (int)(n - j));
    }
    clean_registers();
}

#endif
