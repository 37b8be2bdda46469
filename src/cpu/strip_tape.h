/* strip_tape.h: many operations on some rows, on blocks of eight vectors in registers.
 *
 * Only strips.c includes this, after its maps. A tape is for lists that are no chain: a value that is wanted
 * again goes to memory, where it stays in the first-level cache, besides going on to the next link in
 * registers. A block goes through all links before the next one does. What is left of a row does so in copies
 * that are filled up, so an element's bits do not depend on its place.
 */
#ifndef EPI_CPU_STRIP_TAPE_H
#define EPI_CPU_STRIP_TAPE_H

#include "cpu/strip_chain.h"

_Static_assert((int)BLOCK <= (int)EPI_BLOCK_MOST, "whoever makes a tape gives its folds room for a block");

/* Element j of row r in what a link writes. */
static ALWAYS_INLINE void *place(const epi_operand *to, ptrdiff_t r, ptrdiff_t j) {
    return (unsigned char *)(uintptr_t)to->p + r * to->step + j * (ptrdiff_t)epi_dtype_size(to->type);
}
static ALWAYS_INLINE uint16_t *halves(const epi_operand *to, ptrdiff_t r, ptrdiff_t j) {
    return (uint16_t *)(void *)((unsigned char *)(uintptr_t)to->p + r * to->step) + j;
}
static ALWAYS_INLINE float *floats(const epi_operand *to, ptrdiff_t r, ptrdiff_t j) {
    return (float *)(void *)((unsigned char *)(uintptr_t)to->p + r * to->step) + j;
}

static __attribute__((noinline)) void load_blocks(float *x, const void *p, epi_dtype type) {
    load(x, p, type, 1, 2 * BLOCK);
}

static ALWAYS_INLINE void parts_get(const float *p, block *even, float *odd) {
    EACH(wide low = wide_get(p + 2 * i * WIDE), high = wide_get(p + (2 * i + 1) * WIDE);
         even->v[i] = wide_even(low, high); wide_put(odd + i * WIDE, wide_odd(low, high)));
}
static ALWAYS_INLINE void parts_get_bf16(const uint16_t *p, block *even, float *odd) {
    EACH(wide low = wide_get_bf16(p + 2 * i * WIDE), high = wide_get_bf16(p + (2 * i + 1) * WIDE);
         even->v[i] = wide_even(low, high); wide_put(odd + i * WIDE, wide_odd(low, high)));
}
static ALWAYS_INLINE void parts_get_any(const void *p, epi_dtype type, block *even, float *odd) {
    float x[2 * BLOCK];
    if (type == EPI_F32) {
        parts_get(p, even, odd);
    } else if (type == EPI_BF16) {
        parts_get_bf16(p, even, odd);
    } else {
        load_blocks(x, p, type);
        parts_get(x, even, odd);
    }
}

static __attribute__((noinline)) void store_blocks(void *p, epi_dtype type, const float *x) {
    store(p, type, 1, x, 2 * BLOCK);
}

static ALWAYS_INLINE void parts_put(float *to, const block *even, const block *odd) {
    EACH(wide_put(to + 2 * i * WIDE, wide_low(even->v[i], odd->v[i]));
         wide_put(to + (2 * i + 1) * WIDE, wide_high(even->v[i], odd->v[i])));
}
static ALWAYS_INLINE void parts_put_bf16(uint16_t *to, const block *even, const block *odd) {
    EACH(wide_put_bf16_two(to + 2 * i * WIDE, wide_low(even->v[i], odd->v[i]),
                           wide_high(even->v[i], odd->v[i])));
}
static ALWAYS_INLINE void parts_put_any(void *to, epi_dtype type, const block *even, const block *odd) {
    float x[2 * BLOCK];
    if (type == EPI_F32) {
        parts_put(to, even, odd);
    } else if (type == EPI_BF16) {
        parts_put_bf16(to, even, odd);
    } else {
        parts_put(x, even, odd);
        store_blocks(to, type, x);
    }
}

/* NEON's processors bring rows from the second-level cache in time by themselves. */
#if defined(__aarch64__)
enum { TAPE_FETCHES = 0 };
#else
enum { TAPE_FETCHES = 1 };
#endif

/* Two rows on. */
static ALWAYS_INLINE void fetch_next(const epi_operand *a, ptrdiff_t r, ptrdiff_t j) {
    const char *p = (const char *)a->p + (r + 2) * a->step + j * a->col;
    for (int l = 0; l < BLOCK * a->col; l += EPI_LINE)
        __builtin_prefetch(p + l, 0, 3);
}

/* As lanes_join. */
static ALWAYS_INLINE float block_join(epi_op op, const block *b) {
    float lane[WIDE];
    wide x[PARTS / 2];
    for (int i = 0; i < PARTS / 2; i++)
        x[i] = wide_fold(op, b->v[i], b->v[i + PARTS / 2]);
    wide_put(lane, wide_fold(op, wide_fold(op, x[0], x[2]), wide_fold(op, x[1], x[3])));
    fold *f = op == EPI_OP_RMAX ? fold_max : op == EPI_OP_RMIN ? fold_min : fold_add;
    if (WIDE > 8)
        lanes_halve(f, lane, 8);
    if (WIDE > 4)
        lanes_halve(f, lane, 4);
    lanes_halve(f, lane, 2);
    return f(lane[0], lane[1]);
}

static ALWAYS_INLINE void fold_row(const epi_link *k, epi_op op, ptrdiff_t r, bool begins, bool ends,
                                   const block *b) {
    block x;
    if (begins)
        block_fill(&x, k->scale[0]);
    else
        block_get(&x, k->keep);
    block_fold(op, &x, b);
    if (ends)
        *floats(&k->a, r, 0) = block_join(op, &x);
    else
        block_put(k->keep, &x);
}

static ALWAYS_INLINE void fold_columns(const epi_link *k, epi_op op, ptrdiff_t r, ptrdiff_t j,
                                       const block *b) {
    block x;
    float *p = floats(&k->a, r, j);
    block_get(&x, p);
    block_fold(op, &x, b);
    block_put(p, &x);
}

/* A block that begins and ends its row or does not. */
static ALWAYS_INLINE void tape_link(const epi_link *k, ptrdiff_t r, ptrdiff_t j, bool begins, bool ends,
                                    block *b) {
    block x;
    if (k->kind <= EPI_LINK_SUB_FROM && k->b.p)
        operand_get(b, &k->b, r, j);
    switch (k->kind) {
    case EPI_LINK_GET: operand_get(b, &k->a, r, j); break;
    case EPI_LINK_PARTS: parts_get_any(place(&k->a, r, 2 * j), k->a.type, b, floats(&k->b, r, j)); break;
    case EPI_LINK_JOIN:
        operand_get(&x, &k->a, r, j);
        parts_put_any(place(&k->b, r, 2 * j), k->b.type, b, &x);
        break;
    case EPI_LINK_STORE: block_store(k->a.type, false, place(&k->a, r, j), b); break;
    case EPI_LINK_FOLD: fold_row(k, k->op, r, begins, ends, b); break;
    case EPI_LINK_COLUMNS: fold_columns(k, k->op, r, j, b); break;
    case EPI_LINK_FETCH: fetch_next(&k->a, r, j); break;
    default: link_run(k, k->kind, r, j, b); break;
    }
    if (k->to.p)
        block_put(floats(&k->to, r, j), b);
}

/* The last m elements of row r, from j on. */
static __attribute__((noinline)) void tape_some(const epi_link *link, ptrdiff_t r, ptrdiff_t j, int m) {
    float pad[2][2 * BLOCK], v[2 * BLOCK], kept[BLOCK];
    block b;
    block_fill(&b, 0);
    for (; link->kind != EPI_LINK_NONE; link++) {
        epi_link k = *link;
        bool two = k.kind == EPI_LINK_PARTS;
        if (k.kind == EPI_LINK_FETCH) {
            continue;
        } else if (k.kind == EPI_LINK_STORE) {
            block_put(v, &b);
            store(place(&k.a, r, j), k.a.type, 1, v, m);
        } else if (k.kind == EPI_LINK_FOLD) {
            if (j == 0)
                fill(k.keep, k.scale[0], BLOCK);
            block_put(v, &b);
            *floats(&k.a, r, 0) = lanes_folded(k.op, k.keep, v, m);
        } else if (k.kind == EPI_LINK_COLUMNS) {
            filled(&k.a, r, j, m, pad[0], BLOCK);
            tape_link(&k, 0, 0, false, false, &b);
            memcpy(floats(&link->a, r, j), pad[0], (size_t)m * sizeof(float));
        } else {
            if (k.kind == EPI_LINK_GET || k.kind == EPI_LINK_JOIN || two || k.kind <= EPI_LINK_ADD_PRODUCT)
                filled(&k.a, r, two ? 2 * j : j, two ? 2 * m : m, pad[0], 2 * BLOCK);
            if (k.kind <= EPI_LINK_ADD_PRODUCT && k.b.p)
                filled(&k.b, r, j, m, pad[1], BLOCK);
            if (two || k.kind == EPI_LINK_JOIN)
                k.b = (epi_operand){v, EPI_F32, 1, 0, 0};
            if (k.to.p)
                k.to = (epi_operand){kept, EPI_F32, 1, 0, 0};
            tape_link(&k, 0, 0, false, false, &b);
            if (k.to.p)
                memcpy(floats(&link->to, r, j), kept, (size_t)m * sizeof(float));
            if (two)
                memcpy(floats(&link->b, r, j), v, (size_t)m * sizeof(float));
            if (k.kind == EPI_LINK_JOIN)
                store(place(&link->b, r, 2 * j), link->b.type, 1, v, 2 * m);
        }
    }
}

/* ---- one after the other ---- */

/* A link is a function that ends by calling the next one, which compilers make a jump; v goes along in
 * registers, eight of which the calling conventions have for vectors. The forms that are met most have
 * functions of their own, in which there is nothing to choose. */
typedef void link_function(const epi_link *k, ptrdiff_t r, ptrdiff_t j, ptrdiff_t n, wide v0, wide v1,
                           wide v2, wide v3, wide v4, wide v5, wide v6, wide v7);

#define LINK_ONE(name, ...) \
    static void link_##name(const epi_link *k, ptrdiff_t r, ptrdiff_t j, ptrdiff_t n, wide v0, wide v1, \
                            wide v2, wide v3, wide v4, wide v5, wide v6, wide v7) { \
        block b = {{v0, v1, v2, v3, v4, v5, v6, v7}}; \
        __VA_ARGS__; \
        k++; \
        ((link_function *)k->run)(k, r, j, n, b.v[0], b.v[1], b.v[2], b.v[3], b.v[4], b.v[5], b.v[6], \
                                  b.v[7]); \
    }

/* Two of them: v goes elsewhere besides or not. */
#define LINK(name, ...) \
    LINK_ONE(name, __VA_ARGS__) \
    LINK_ONE(name##_to, __VA_ARGS__; block_put(floats(&k->to, r, j), &b))

/* With a row of f32 for a, one for v as well; a row of bf16; one number. */
#define LINKS(name, ...) \
    LINK(name##_row, const float *p = floats(&k->a, r, j); \
         EACH(wide a = wide_get(p + i * WIDE); __VA_ARGS__)) \
    LINK(name##_two, const float *p = floats(&k->a, r, j), *q = floats(&k->b, r, j); \
         EACH(wide a = wide_get(p + i * WIDE); b.v[i] = wide_get(q + i * WIDE); __VA_ARGS__)) \
    LINK(name##_bf16, const uint16_t *p = halves(&k->a, r, j); \
         EACH(wide a = wide_get_bf16(p + i * WIDE); __VA_ARGS__)) \
    LINK(name##_one, wide a = wide_of(*floats(&k->a, r, 0)); EACH(__VA_ARGS__))

LINKS(mul, b.v[i] *= a)
LINKS(add, b.v[i] += a)
LINKS(sub, b.v[i] -= a)
LINKS(sub_from, b.v[i] = a - b.v[i])
LINK(get, block_get(&b, floats(&k->a, r, j)))
LINK(get_bf16, block_get_bf16(&b, halves(&k->a, r, j)))
LINK(muladd, const float *x = floats(&k->a, r, j), *y = floats(&k->b, r, j);
     EACH(b.v[i] = wide_fma(b.v[i], wide_get(x + i * WIDE), wide_get(y + i * WIDE))))
LINK(add_product, const float *x = floats(&k->a, r, j), *y = floats(&k->b, r, j);
     EACH(b.v[i] = wide_fma(wide_get(x + i * WIDE), wide_get(y + i * WIDE), b.v[i])))
LINK(square, EACH(b.v[i] *= b.v[i]))
LINK(exp, EACH(b.v[i] = wide_map(EPI_OP_EXP, b.v[i])))
LINK(sigmoid, EACH(b.v[i] = wide_map(EPI_OP_SIGMOID, b.v[i])))
LINK(silu, EACH(b.v[i] = wide_map(EPI_OP_SILU, b.v[i])))
LINK(parts, parts_get(floats(&k->a, r, 2 * j), &b, floats(&k->b, r, j)))
LINK(parts_bf16, parts_get_bf16(halves(&k->a, r, 2 * j), &b, floats(&k->b, r, j)))
LINK_ONE(join, block x; block_get(&x, floats(&k->a, r, j)); parts_put(floats(&k->b, r, 2 * j), &b, &x))
LINK_ONE(join_bf16, block x; block_get(&x, floats(&k->a, r, j));
         parts_put_bf16(halves(&k->b, r, 2 * j), &b, &x))
LINK_ONE(store, block_put(floats(&k->a, r, j), &b))
LINK_ONE(store_bf16, block_put_bf16(halves(&k->a, r, j), &b))
LINK_ONE(sum_row, fold_row(k, EPI_OP_SUM, r, j == 0, j + BLOCK == n, &b))
LINK_ONE(sum_columns, fold_columns(k, EPI_OP_SUM, r, j, &b))
LINK_ONE(fetch, fetch_next(&k->a, r, j))
LINK_ONE(any, tape_link(k, r, j, j == 0, j + BLOCK == n, &b))

static void link_none(const epi_link *k, ptrdiff_t r, ptrdiff_t j, ptrdiff_t n, wide v0, wide v1, wide v2,
                      wide v3, wide v4, wide v5, wide v6, wide v7) {
    (void)k, (void)r, (void)j, (void)n;
    (void)v0, (void)v1, (void)v2, (void)v3, (void)v4, (void)v5, (void)v6, (void)v7;
}

static bool is_row(const epi_operand *o, epi_dtype type) {
    return o->p && o->col && o->type == type;
}

#define TO(name) (k->to.p ? link_##name##_to : link_##name)
#define BY_TYPE(o, name) (is_row(o, EPI_F32) ? link_##name : is_row(o, EPI_BF16) ? link_##name##_bf16 : NULL)
#define BY_TYPE_TO(o, name) (is_row(o, EPI_F32) ? TO(name) : is_row(o, EPI_BF16) ? TO(name##_bf16) : NULL)
#define BY_FORM(name) \
    (k->b.p                    ? (both ? TO(name##_two) : NULL) \
     : is_row(&k->a, EPI_F32)  ? TO(name##_row) \
     : is_row(&k->a, EPI_BF16) ? TO(name##_bf16) \
     : k->a.col                ? NULL \
                               : TO(name##_one))

/* NULL: none of its own. */
static link_function *function_of(const epi_link *k) {
    bool both = is_row(&k->a, EPI_F32) && is_row(&k->b, EPI_F32),
         plain = both && k->scale[0] == 1 && k->scale[1] == 1, joins = is_row(&k->a, EPI_F32),
         sums = k->op == EPI_OP_SUM || k->op == EPI_OP_MEAN;
    switch ((int)k->kind) {
    case EPI_LINK_NONE: return link_none;
    case EPI_LINK_MUL: return BY_FORM(mul);
    case EPI_LINK_ADD: return BY_FORM(add);
    case EPI_LINK_SUB: return BY_FORM(sub);
    case EPI_LINK_SUB_FROM: return BY_FORM(sub_from);
    case EPI_LINK_MULADD: return plain ? TO(muladd) : NULL;
    case EPI_LINK_ADD_PRODUCT: return plain ? TO(add_product) : NULL;
    case EPI_LINK_SQUARE: return TO(square);
    case EPI_LINK_GET: return BY_TYPE_TO(&k->a, get);
    case EPI_LINK_PARTS: return BY_TYPE_TO(&k->a, parts);
    case EPI_LINK_JOIN: return joins ? BY_TYPE(&k->b, join) : NULL;
    case EPI_LINK_STORE: return BY_TYPE(&k->a, store);
    case EPI_LINK_FOLD: return sums ? link_sum_row : NULL;
    case EPI_LINK_COLUMNS: return sums ? link_sum_columns : NULL;
    case EPI_LINK_FETCH: return link_fetch;
    case EPI_LINK_MAP + EPI_OP_EXP: return wide_has(EPI_OP_EXP) ? TO(exp) : NULL;
    case EPI_LINK_MAP + EPI_OP_SIGMOID: return wide_has(EPI_OP_SIGMOID) ? TO(sigmoid) : NULL;
    case EPI_LINK_MAP + EPI_OP_SILU: return wide_has(EPI_OP_SILU) ? TO(silu) : NULL;
    default: return NULL;
    }
}

/* The loops of the others, which compilers make, are better over a row than over a block, at whose end they
 * wait. */
static bool takes(epi_op op) {
    return wide_has(op);
}

static void ready(epi_link *link) {
    for (;; link++) {
        link_function *f = function_of(link);
        link->run = (void (*)(void))(f ? f : link_any);
        if (link->kind == EPI_LINK_NONE)
            return;
    }
}

static void tape(const epi_link *link, int rows, int n) {
    wide v = wide_of(0);
    for (int r = 0; r < rows; r++) {
        ptrdiff_t j = 0;
        for (; j + BLOCK <= n; j += BLOCK)
            ((link_function *)link->run)(link, r, j, n, v, v, v, v, v, v, v, v);
        if (j < n)
            tape_some(link, r, j, (int)(n - j));
    }
}

#endif
