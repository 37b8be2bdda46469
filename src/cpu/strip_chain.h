/* strip_chain.h: several operations on a row in one go, on blocks of 128 elements that stay in registers.
 *
 * Only strips.c includes this, after its maps. A chain is carried out link by link on one block after the
 * other: to choose a link costs little against 128 elements, and nothing goes through memory between two
 * links but for functions, whose loops the compiler makes. A row is folded into 128 running values, element j
 * into value j % 128, which a tree then joins, so the order of additions follows from the length alone.
 */
#ifndef EPI_CPU_STRIP_CHAIN_H
#define EPI_CPU_STRIP_CHAIN_H

#include "cpu/strip_convert.h"
#include "cpu/strip_reduce.h"
#include "cpu/strip_wide.h"

enum { WIDE = 16, PARTS = 8, BLOCK = WIDE * PARTS };

/* Compilers break a vector of this length up where the CPU has shorter ones. */
typedef float wide __attribute__((vector_size(WIDE * sizeof(float))));
typedef float wide_at __attribute__((vector_size(WIDE * sizeof(float)), aligned(4), may_alias));

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
    EACH(b->v[i] = *(const wide_at *)(p + i * WIDE));
}
static ALWAYS_INLINE void block_put(float *p, const block *b) {
    EACH(*(wide_at *)(p + i * WIDE) = b->v[i]);
}
static ALWAYS_INLINE void block_fill(block *b, float s) {
    EACH(b->v[i] = (wide){s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s});
}

/* ---- what compilers do not make of plain vectors ---- */

#if defined(__AVX512F__)
static ALWAYS_INLINE void block_fmadd(block *to, const block *a, const block *b, const block *c) {
    EACH(to->v[i] = (wide)_mm512_fmadd_ps((__m512)a->v[i], (__m512)b->v[i], (__m512)c->v[i]));
}
/* As fold_max and fold_min: the instruction gives the second where the first is no more, or either is NaN. */
static ALWAYS_INLINE void block_max(block *to, const block *b) {
    EACH({
        __m512 x = (__m512)to->v[i], y = _mm512_max_ps(x, (__m512)b->v[i]);
        to->v[i] = (wide)_mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
    });
}
static ALWAYS_INLINE void block_min(block *to, const block *b) {
    EACH({
        __m512 x = (__m512)to->v[i], y = _mm512_min_ps(x, (__m512)b->v[i]);
        to->v[i] = (wide)_mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
    });
}
static ALWAYS_INLINE void block_stream(float *p, const block *b) {
    EACH(_mm512_stream_ps(p + i * WIDE, (__m512)b->v[i]));
}
static ALWAYS_INLINE void block_get_bf16(block *b, const uint16_t *p) {
    EACH(b->v[i] = (wide)_mm512_slli_epi32(
             _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(p + i * WIDE))), 16));
}
static ALWAYS_INLINE void block_put_bf16(uint16_t *p, const block *b) {
    EACH(_mm256_storeu_si256((void *)(p + i * WIDE), wide_bf16((__m512)b->v[i])));
}
#else
static ALWAYS_INLINE void block_fmadd(block *to, const block *a, const block *b, const block *c) {
    float x[BLOCK], y[BLOCK], z[BLOCK];
    block_put(x, a);
    block_put(y, b);
    block_put(z, c);
    for (int l = 0; l < BLOCK; l++)
        x[l] = fmadd(x[l], y[l], z[l]);
    block_get(to, x);
}
static ALWAYS_INLINE void block_fold(fold *f, block *to, const block *b) {
    float x[BLOCK], y[BLOCK];
    block_put(x, to);
    block_put(y, b);
    for (int l = 0; l < BLOCK; l++)
        x[l] = f(x[l], y[l]);
    block_get(to, x);
}
static ALWAYS_INLINE void block_max(block *to, const block *b) {
    block_fold(fold_max, to, b);
}
static ALWAYS_INLINE void block_min(block *to, const block *b) {
    block_fold(fold_min, to, b);
}
static ALWAYS_INLINE void block_stream(float *p, const block *b) {
    float x[BLOCK];
    block_put(x, b);
    stream(p, EPI_F32, x, BLOCK);
}
static ALWAYS_INLINE void block_get_bf16(block *b, const uint16_t *p) {
    float x[BLOCK];
    for (int l = 0; l < BLOCK; l++)
        x[l] = bf16_float(p[l]);
    block_get(b, x);
}
static ALWAYS_INLINE void block_put_bf16(uint16_t *p, const block *b) {
    float x[BLOCK];
    block_put(x, b);
    for (int l = 0; l < BLOCK; l++)
        p[l] = float_bf16(x[l]);
}
#endif

/* ---- links ---- */

static __attribute__((noinline)) void load_block(float *x, const void *p, epi_dtype type) {
    load(x, p, type, 1, BLOCK);
}

static ALWAYS_INLINE void operand_get(block *to, const epi_operand *o, ptrdiff_t j) {
    if (!o->col) {
        block_fill(to, *(const float *)o->p);
    } else if (o->type == EPI_F32) {
        block_get(to, (const float *)o->p + j);
    } else if (o->type == EPI_BF16) {
        block_get_bf16(to, (const uint16_t *)o->p + j);
    } else {
        float x[BLOCK];
        load_block(x, (const unsigned char *)o->p + j * (ptrdiff_t)epi_dtype_size(o->type), o->type);
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

#if defined(__AVX512F__)
/* Those that the CPU has better means for than plain C can say. */
static ALWAYS_INLINE bool wide_map(epi_op op, block *b) {
    if (op == EPI_OP_EXP)
        EACH(b->v[i] = (wide)wide_exp((__m512)b->v[i]));
    else if (op == EPI_OP_SILU)
        EACH(b->v[i] = (wide)wide_silu((__m512)b->v[i]));
    else if (op == EPI_OP_SIGMOID)
        EACH(b->v[i] = (wide)wide_sigmoid((__m512)b->v[i]));
    return op == EPI_OP_EXP || op == EPI_OP_SILU || op == EPI_OP_SIGMOID;
}
#else
static ALWAYS_INLINE bool wide_map(epi_op op, block *b) {
    (void)op;
    (void)b;
    return false;
}
#endif

static ALWAYS_INLINE void link_run(const epi_link *k, ptrdiff_t j, block *b) {
    block x, y;
    float buf[BLOCK];
    switch (k->kind) {
    case EPI_LINK_MUL:
        operand_get(&x, &k->a, j);
        EACH(b->v[i] *= x.v[i]);
        break;
    case EPI_LINK_ADD:
        operand_get(&x, &k->a, j);
        EACH(b->v[i] += x.v[i]);
        break;
    case EPI_LINK_SUB:
        operand_get(&x, &k->a, j);
        EACH(b->v[i] -= x.v[i]);
        break;
    case EPI_LINK_SUB_FROM:
        operand_get(&x, &k->a, j);
        EACH(b->v[i] = x.v[i] - b->v[i]);
        break;
    case EPI_LINK_SQUARE: EACH(b->v[i] *= b->v[i]); break;
    case EPI_LINK_SCALE: EACH(b->v[i] = b->v[i] * k->scale[0] * k->scale[1]); break;
    case EPI_LINK_MULADD:
        operand_get(&x, &k->a, j);
        operand_get(&y, &k->b, j);
        EACH(x.v[i] *= k->scale[0]);
        EACH(y.v[i] *= k->scale[1]);
        block_fmadd(b, b, &x, &y);
        break;
    case EPI_LINK_ADD_PRODUCT:
        operand_get(&x, &k->a, j);
        operand_get(&y, &k->b, j);
        EACH(x.v[i] *= k->scale[0]);
        EACH(b->v[i] *= k->scale[1]);
        block_fmadd(b, &x, &y, b);
        break;
    case EPI_LINK_MAP:
        if (wide_map(k->op, b))
            break;
        block_put(buf, b);
        map_block(k->op, buf);
        block_get(b, buf);
        break;
    case EPI_LINK_KEEP: block_put(k->keep + j, b); break;
    }
}

static ALWAYS_INLINE void links_run(const epi_chain *c, ptrdiff_t j, block *b) {
    operand_get(b, &c->x, j);
    for (const epi_link *k = c->link, *end = k + c->count; k < end; k++)
        link_run(k, j, b);
}

/* ---- blocks ---- */

static const epi_operand *padded(epi_operand *o, ptrdiff_t j, int m, float *pad) {
    if (o->col) {
        fill(pad, 0, BLOCK);
        load(pad, (const unsigned char *)o->p + j * (ptrdiff_t)epi_dtype_size(o->type), o->type, 1, m);
        *o = (epi_operand){pad, EPI_F32, 1, 0};
    }
    return o;
}

/* Fewer than a block's elements from j on: copies of the operands are filled up. */
static __attribute__((noinline)) void links_run_some(const epi_chain *from, ptrdiff_t j, int m,
                                                     float *result) {
    float pads[1 + 2 * EPI_LINKS][BLOCK], keep[BLOCK], (*pad)[BLOCK] = pads;
    epi_chain c = *from;
    block b;
    operand_get(&b, padded(&c.x, j, m, *pad++), 0);
    for (int k = 0; k < c.count; k++) {
        epi_link *l = &c.link[k];
        float *kept = l->keep;
        l->keep = keep;
        if (l->kind <= EPI_LINK_ADD_PRODUCT)
            padded(&l->a, j, m, *pad++);
        if (l->kind == EPI_LINK_MULADD || l->kind == EPI_LINK_ADD_PRODUCT)
            padded(&l->b, j, m, *pad++);
        link_run(l, 0, &b);
        if (l->kind == EPI_LINK_KEEP)
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

static void chain_store(const epi_chain *c, ptrdiff_t j, ptrdiff_t n, ptrdiff_t size) {
    ahead next[EPI_STREAMS];
    int streams = ahead_begin(next, c->ahead, n - j);
    unsigned char *to = c->out;
    block b;
    float x[BLOCK];
    _Alignas(LINE) uint16_t halves[BLOCK];
    for (; j < n; j += BLOCK) {
        fetch_some(next, streams);
        links_run(c, j, &b);
        if (c->out_type == EPI_BF16 && c->stream) {
            block_put_bf16(halves, &b);
            stream_lines(to + j * size, (const unsigned char *)halves, sizeof halves);
        } else if (c->out_type == EPI_BF16) {
            block_put_bf16((uint16_t *)(void *)(to + j * size), &b);
        } else if (c->out_type != EPI_F32) {
            block_put(x, &b);
            block_convert(to + j * size, c->out_type, c->stream, x);
        } else if (c->stream) {
            block_stream((float *)(void *)(to + j * size), &b);
        } else {
            block_put((float *)(void *)(to + j * size), &b);
        }
    }
}

static void chain_fold(const epi_chain *c, ptrdiff_t n, float *lane) {
    ahead next[EPI_STREAMS];
    int streams = ahead_begin(next, c->ahead, n);
    block acc, b;
    block_fill(&acc, epi_reduce_identity(c->fold));
    for (ptrdiff_t j = 0; j < n; j += BLOCK) {
        fetch_some(next, streams);
        links_run(c, j, &b);
        if (c->fold == EPI_OP_RMAX)
            block_max(&acc, &b);
        else if (c->fold == EPI_OP_RMIN)
            block_min(&acc, &b);
        else
            EACH(acc.v[i] += b.v[i]);
    }
    block_put(lane, &acc);
}

static ALWAYS_INLINE float some_folded(fold *f, float *lane, const float *x, int n) {
    for (int l = 0; l < n; l++)
        lane[l] = f(lane[l], x[l]);
    return lanes_join(f, lane, BLOCK);
}

static float chain(const epi_chain *c, int n) {
    float some[BLOCK], lane[BLOCK];
    ptrdiff_t head = 0, size = 1;
    if (c->out)
        size = (ptrdiff_t)epi_dtype_size(c->out_type);
    if (c->out && c->stream && (uintptr_t)c->out % LINE) {
        head = (ptrdiff_t)(-(uintptr_t)c->out % LINE) / size;
        head = head < n ? head : n;
        links_run_some(c, 0, (int)head, some);
        store(c->out, c->out_type, 1, some, head);
    }
    ptrdiff_t whole = head + (n - head) / BLOCK * BLOCK;
    int rest = n - (int)whole;
    if (c->out)
        chain_store(c, head, whole, size);
    else
        chain_fold(c, whole, lane);
    if (rest > 0)
        links_run_some(c, whole, rest, some);
    if (c->out) {
        store((unsigned char *)c->out + whole * size, c->out_type, 1, some, rest);
        return 0;
    }
    return c->fold == EPI_OP_RMAX   ? some_folded(fold_max, lane, some, rest)
           : c->fold == EPI_OP_RMIN ? some_folded(fold_min, lane, some, rest)
                                    : some_folded(fold_add, lane, some, rest);
}

#endif
