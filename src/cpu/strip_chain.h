/* strip_chain.h: several operations on a row in one go, on blocks of eight vectors that stay in registers.
 *
 * Only strips.c includes this, after its maps. A chain is carried out link by link on one block after the
 * other: to choose a link costs little against 128 elements (AVX-512; 32 with NEON), and nothing where the
 * compiler knows it. Nothing goes through memory between two links but for functions, whose loops the
 * compiler makes. A row is folded into as many running values as a block has elements, element j into value j
 * % BLOCK, which a tree then joins, so the order of additions follows from the length alone.
 */
#ifndef EPI_CPU_STRIP_CHAIN_H
#define EPI_CPU_STRIP_CHAIN_H

#include "cpu/strip_reduce.h"
#include "cpu/strip_wide.h"

enum { PARTS = 8, BLOCK = WIDE * PARTS };

typedef struct block {
    wide v[PARTS];
} block;

/* The statement for every part i. Not a loop: compilers unroll those after they have decided what lies in
 * registers. */
#define EACH(...) \
    do { \
        { \
            enum { i = 0 }; \
            __VA_ARGS__; \
        } \
        { \
            enum { i = 1 }; \
            __VA_ARGS__; \
        } \
        { \
            enum { i = 2 }; \
            __VA_ARGS__; \
        } \
        { \
            enum { i = 3 }; \
            __VA_ARGS__; \
        } \
        { \
            enum { i = 4 }; \
            __VA_ARGS__; \
        } \
        { \
            enum { i = 5 }; \
            __VA_ARGS__; \
        } \
        { \
            enum { i = 6 }; \
            __VA_ARGS__; \
        } \
        { \
            enum { i = 7 }; \
            __VA_ARGS__; \
        } \
    } while (0)

static ALWAYS_INLINE void block_get(block *b, const float *p) {
    EACH(b->v[i] = wide_get(p + i * WIDE));
}
static ALWAYS_INLINE void block_put(float *p, const block *b) {
    EACH(wide_put(p + i * WIDE, b->v[i]));
}
static ALWAYS_INLINE void block_fill(block *b, float s) {
    EACH(b->v[i] = wide_of(s));
}
static ALWAYS_INLINE void block_fma(block *to, const block *a, const block *b, const block *c) {
    EACH(to->v[i] = wide_fma(a->v[i], b->v[i], c->v[i]));
}
/* By 1 most of the time. */
static ALWAYS_INLINE void block_scale(block *b, float s) {
    if (s != 1)
        EACH(b->v[i] *= s);
}
static ALWAYS_INLINE void block_get_bf16(block *b, const uint16_t *p) {
    EACH(b->v[i] = wide_get_bf16(p + i * WIDE));
}
static ALWAYS_INLINE void block_put_bf16(uint16_t *p, const block *b) {
    EACH(if (i % 2 == 0) wide_put_bf16_two(p + i * WIDE, b->v[i], b->v[i | 1]));
}
static ALWAYS_INLINE void block_stream(float *p, const block *b) {
    EACH(wide_stream(p + i * WIDE, b->v[i]));
}

/* ---- links ---- */

static __attribute__((noinline)) void load_block(float *x, const void *p, epi_dtype type) {
    load(x, p, type, 1, BLOCK);
}

/* From element j of row r on. */
static ALWAYS_INLINE void operand_get(block *to, const epi_operand *o, ptrdiff_t r, ptrdiff_t j) {
    const void *p = (const unsigned char *)o->p + r * o->step;
    if (!o->col) {
        block_fill(to, *(const float *)p);
    } else if (o->type == EPI_F32) {
        block_get(to, (const float *)p + j);
    } else if (o->type == EPI_BF16) {
        block_get_bf16(to, (const uint16_t *)p + j);
    } else {
        float x[BLOCK];
        load_block(x, (const unsigned char *)p + j * (ptrdiff_t)epi_dtype_size(o->type), o->type);
        block_get(to, x);
    }
}

/* A function of each of the block's elements. */
static __attribute__((noinline)) void map_block(epi_op op, float *x) {
    switch (op) {
#define EPI_MAP1(id, ...) \
    case EPI_OP_##id: \
        for (int l = 0; l < BLOCK; l++) \
            x[l] = f_##id(x[l]); \
        break;
#define EPI_MAP2(...)
#define EPI_MAP3(...)
#include "ir/ops.def"
#undef EPI_MAP1
#undef EPI_MAP2
#undef EPI_MAP3
    default: break;
    }
}

static ALWAYS_INLINE void link_run(const epi_link *k, epi_link_kind kind, ptrdiff_t r, ptrdiff_t j,
                                   block *b) {
    block x, y;
    float buf[BLOCK];
    switch (kind) {
    case EPI_LINK_MUL:
        operand_get(&x, &k->a, r, j);
        EACH(b->v[i] *= x.v[i]);
        break;
    case EPI_LINK_ADD:
        operand_get(&x, &k->a, r, j);
        EACH(b->v[i] += x.v[i]);
        break;
    case EPI_LINK_SUB:
        operand_get(&x, &k->a, r, j);
        EACH(b->v[i] -= x.v[i]);
        break;
    case EPI_LINK_SUB_FROM:
        operand_get(&x, &k->a, r, j);
        EACH(b->v[i] = x.v[i] - b->v[i]);
        break;
    case EPI_LINK_SQUARE: EACH(b->v[i] *= b->v[i]); break;
    case EPI_LINK_SCALE:
        EACH(b->v[i] *= k->scale[0]);
        block_scale(b, k->scale[1]);
        break;
    case EPI_LINK_MULADD:
        operand_get(&x, &k->a, r, j);
        operand_get(&y, &k->b, r, j);
        block_scale(&x, k->scale[0]);
        block_scale(&y, k->scale[1]);
        block_fma(b, b, &x, &y);
        break;
    case EPI_LINK_ADD_PRODUCT:
        operand_get(&x, &k->a, r, j);
        operand_get(&y, &k->b, r, j);
        block_scale(&x, k->scale[0]);
        block_scale(b, k->scale[1]);
        block_fma(b, &x, &y, b);
        break;
    case EPI_LINK_KEEP: block_put(k->keep + j, b); break;
    default:
        if (wide_has(kind - EPI_LINK_MAP)) {
            EACH(b->v[i] = wide_map(kind - EPI_LINK_MAP, b->v[i]));
            break;
        }
        block_put(buf, b);
        map_block(kind - EPI_LINK_MAP, buf);
        block_get(b, buf);
        break;
    }
}

/* Instead of the kinds of a chain's links: the compiler does not know them. */
enum { ANY = 255 };
_Static_assert(EPI_LINK_MAP + EPI_OP_COUNT <= ANY, "a kind of link is a byte");

/* Known links are up to three. */
static ALWAYS_INLINE void links_run(const epi_chain *c, uint64_t known, ptrdiff_t j, block *b) {
    const epi_link *k = c->link;
    operand_get(b, &c->x, 0, j);
    if (known == ANY) {
        for (uint64_t kinds = c->kinds; kinds; kinds >>= 8)
            link_run(k++, kinds & 255, 0, j, b);
        return;
    }
    if (known & 255)
        link_run(&k[0], known & 255, 0, j, b);
    if (known >> 8 & 255)
        link_run(&k[1], known >> 8 & 255, 0, j, b);
    if (known >> 16 & 255)
        link_run(&k[2], known >> 16 & 255, 0, j, b);
}

/* ---- blocks ---- */

/* The operand of n elements from j of row r on, filled up to `most`. */
static void filled(epi_operand *o, ptrdiff_t r, ptrdiff_t j, int n, float *pad, int most) {
    const void *p = (const unsigned char *)o->p + r * o->step;
    o->p = p;
    if (o->col) {
        fill(pad, 0, most);
        load(pad, (const unsigned char *)p + j * (ptrdiff_t)epi_dtype_size(o->type), o->type, 1, n);
        *o = (epi_operand){pad, EPI_F32, 1, 0, 0};
    }
}

/* Fewer than a block's elements from j on: copies of the operands are filled up. */
static __attribute__((noinline)) void links_run_some(const epi_chain *from, ptrdiff_t j, int m,
                                                     float *result) {
    float pads[1 + 2 * EPI_LINKS][BLOCK], keep[BLOCK], (*pad)[BLOCK] = pads;
    epi_chain c = *from;
    block b;
    filled(&c.x, 0, j, m, *pad++, BLOCK);
    operand_get(&b, &c.x, 0, 0);
    epi_link *l = c.link;
    for (uint64_t kinds = c.kinds; kinds; kinds >>= 8, l++) {
        epi_link_kind kind = kinds & 255;
        float *kept = l->keep;
        l->keep = keep;
        if (kind <= EPI_LINK_ADD_PRODUCT)
            filled(&l->a, 0, j, m, *pad++, BLOCK);
        if (kind == EPI_LINK_MULADD || kind == EPI_LINK_ADD_PRODUCT)
            filled(&l->b, 0, j, m, *pad++, BLOCK);
        link_run(l, kind, 0, 0, &b);
        if (kind == EPI_LINK_KEEP)
            memcpy(kept + j, keep, (size_t)m * sizeof *keep);
    }
    block_put(result, &b);
}

/* Into storage of other types than f32. */
static __attribute__((noinline)) void block_convert(unsigned char *to, epi_dtype type, bool past,
                                                    const float *x) {
    _Alignas(LINE) double raw[BLOCK];
    int64_t bytes = BLOCK * (int64_t)epi_dtype_size(type);
    store(raw, type, 1, x, BLOCK);
    if (past)
        stream_lines(to, (const unsigned char *)raw, bytes);
    else
        memcpy(to, raw, (size_t)bytes);
}

/* A stream's lines, as many for every block. */
typedef struct ahead {
    const unsigned char *at;
    ptrdiff_t apart;
    int64_t left, each;
} ahead;

static int ahead_begin(ahead *a, const epi_fetch *f, ptrdiff_t n) {
    for (int k = 0; k < f->count; k++)
        a[k] = (ahead){f->stream[k].at, f->stream[k].apart, f->stream[k].lines,
                       (f->stream[k].lines * BLOCK + n - 1) / (n > 0 ? n : 1)};
    return f->count;
}

static ALWAYS_INLINE void fetch_some(ahead *a, int count) {
    for (int k = 0; k < count; k++)
        for (int64_t l = 0; l < a[k].each && a[k].left > 0; l++) {
            const unsigned char *p = a[k].at, *q = p + 2 * a[k].apart;
            __builtin_prefetch(p, 0, 3);
            __builtin_prefetch(p + a[k].apart, 0, 3);
            __builtin_prefetch(q, 0, 3);
            __builtin_prefetch(q + a[k].apart, 0, 3);
            a[k].at += LINE;
            a[k].left--;
        }
}

/* ---- chains ---- */

/* The block goes to `to`, past the caches or not. */
static ALWAYS_INLINE void block_store(epi_dtype type, bool past, unsigned char *to, const block *b) {
    float x[BLOCK];
    _Alignas(LINE) uint16_t halves[BLOCK];
    if (type == EPI_BF16 && past) {
        block_put_bf16(halves, b);
        stream_lines(to, (const unsigned char *)halves, sizeof halves);
    } else if (type == EPI_BF16) {
        block_put_bf16((uint16_t *)(void *)to, b);
    } else if (type != EPI_F32) {
        block_put(x, b);
        block_convert(to, type, past, x);
    } else if (past) {
        block_stream((float *)(void *)to, b);
    } else {
        block_put((float *)(void *)to, b);
    }
}

static __attribute__((noinline)) void store_some(const epi_chain *c, ptrdiff_t j, int m) {
    float some[BLOCK];
    links_run_some(c, j, m, some);
    store((unsigned char *)c->out + j * (ptrdiff_t)epi_dtype_size(c->out_type), c->out_type, 1, some, m);
}

/* Elements before the first that begins a line, where that matters. */
static ptrdiff_t unaligned(const epi_chain *c) {
    return c->stream ? (ptrdiff_t)(-(uintptr_t)c->out % LINE / epi_dtype_size(c->out_type)) : 0;
}

static ALWAYS_INLINE float chain_store(const epi_chain *c, uint64_t kinds, ptrdiff_t n) {
    ptrdiff_t j = unaligned(c) < n ? unaligned(c) : n, size = (ptrdiff_t)epi_dtype_size(c->out_type);
    unsigned char *to = c->out;
    ahead next[EPI_STREAMS];
    int streams = ahead_begin(next, c->ahead, n - j);
    block b;
    if (j > 0)
        store_some(c, 0, (int)j);
    for (; j + BLOCK <= n; j += BLOCK) {
        fetch_some(next, streams);
        links_run(c, kinds, j, &b);
        block_store(c->out_type, c->stream, to + j * size, &b);
    }
    if (j < n)
        store_some(c, j, (int)(n - j));
    return 0;
}

static ALWAYS_INLINE wide wide_fold(epi_op op, wide a, wide b) {
    if (op == EPI_OP_RMAX)
        return wide_max(a, b);
    return op == EPI_OP_RMIN ? wide_min(a, b) : (wide)(a + b);
}

static ALWAYS_INLINE void block_fold(epi_op op, block *acc, const block *b) {
    EACH(acc->v[i] = wide_fold(op, acc->v[i], b->v[i]));
}

static ALWAYS_INLINE float some_folded(fold *f, float *lane, const float *x, int n) {
    for (int l = 0; l < n; l++)
        lane[l] = f(lane[l], x[l]);
    return lanes_join(f, lane, BLOCK);
}

/* The running values, with n more elements. */
static ALWAYS_INLINE float lanes_folded(epi_op op, float *lane, const float *x, int n) {
    return op == EPI_OP_RMAX   ? some_folded(fold_max, lane, x, n)
           : op == EPI_OP_RMIN ? some_folded(fold_min, lane, x, n)
                               : some_folded(fold_add, lane, x, n);
}

/* The chain beside, if any, first: what it reads of a block this one may put something else in place of. */
static ALWAYS_INLINE float chain_fold(const epi_chain *c, uint64_t kinds, const epi_chain *beside,
                                      uint64_t beside_kinds, ptrdiff_t n) {
    ahead next[EPI_STREAMS];
    int streams = ahead_begin(next, c->ahead, n);
    ptrdiff_t j = 0, size = beside ? (ptrdiff_t)epi_dtype_size(beside->out_type) : 0;
    unsigned char *to = beside ? beside->out : NULL;
    block acc, b;
    block_fill(&acc, epi_reduce_identity(c->fold));
    for (; j + BLOCK <= n; j += BLOCK) {
        fetch_some(next, streams);
        if (beside) {
            links_run(beside, beside_kinds, j, &b);
            block_store(beside->out_type, beside->stream, to + j * size, &b);
        }
        links_run(c, kinds, j, &b);
        block_fold(c->fold, &acc, &b);
    }
    float some[BLOCK], lane[BLOCK];
    int rest = (int)(n - j);
    if (rest > 0)
        links_run_some(c, j, rest, some);
    block_put(lane, &acc);
    return lanes_folded(c->fold, lane, some, rest);
}

/* ---- forms ---- */

/* Chains that are met often have a loop of their own, in which there is nothing to choose. */
enum {
    EXP_LINK = EPI_LINK_MAP + EPI_OP_EXP,
    SILU_LINK = EPI_LINK_MAP + EPI_OP_SILU,
    ELEMENTS = 0,
    SQUARES = EPI_LINK_SQUARE,
    EXPS = EPI_KINDS(EPI_LINK_SUB, EXP_LINK, 0),
    KEPT_EXPS = EPI_KINDS(EPI_LINK_SUB, EXP_LINK, EPI_LINK_KEEP),
    SCALED = EPI_LINK_SCALE,
    SHIFTED = EPI_KINDS(EPI_LINK_SUB, EPI_LINK_SUB, 0),
    PRODUCTS = EPI_KINDS(EPI_LINK_MUL, EPI_LINK_MUL, 0),
    GATED = EPI_KINDS(SILU_LINK, EPI_LINK_MUL, 0),
};

static float chain_stored(const epi_chain *c, int n) {
    switch (c->kinds) {
    case SCALED: return chain_store(c, SCALED, n);
    case PRODUCTS: return chain_store(c, PRODUCTS, n);
    case GATED: return chain_store(c, GATED, n);
    default: return chain_store(c, ANY, n);
    }
}

/* The chain beside if its links are of these kinds and it can be in the same loop; if not, it is carried out
 * here. */
static const epi_chain *beside_of(const epi_chain *c, uint64_t kinds, int n) {
    const epi_chain *beside = c->beside;
    if (!beside || (beside->kinds == kinds && n % BLOCK == 0 && !unaligned(beside)))
        return beside;
    chain_stored(beside, n);
    return NULL;
}

static float chain(const epi_chain *c, int n) {
    if (c->out)
        return chain_stored(c, n);
    switch (c->kinds) {
    case EXPS: return chain_fold(c, EXPS, beside_of(c, SHIFTED, n), SHIFTED, n);
    case KEPT_EXPS: return chain_fold(c, KEPT_EXPS, beside_of(c, SCALED, n), SCALED, n);
    }
    beside_of(c, ANY, n);
    switch (c->kinds) {
    case ELEMENTS: return chain_fold(c, ELEMENTS, NULL, 0, n);
    case SQUARES: return chain_fold(c, SQUARES, NULL, 0, n);
    default: return chain_fold(c, ANY, NULL, 0, n);
    }
}

#endif
