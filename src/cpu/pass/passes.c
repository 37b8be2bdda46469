/* passes.c: one operation over whole tensors in memory: a part that no other mainloop supports, or the work
 * before and after a mainloop.
 *
 * A pass walks the result in stretches of its fastest axis. Stretches do not depend on the number of
 * threads, so neither do the bits. */
#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "base/philox.h"
#include "cpu/cpu.h"
#include "cpu/pass/integers.h"

enum { STRETCH = 1024, OPERANDS = 3 };

/* The result's axes, merged where every tensor involved runs on; index 0 is the result. */
typedef struct space {
    int count;
    int64_t size[EPI_MAX_AXES], stride[EPI_MAX_AXES][OPERANDS + 1];
    int64_t stretch, outer,
        stretches; /* elements of a stretch, rows of the fastest axis, stretches of such a row */
} space;

typedef struct pass {
    const epi_cpu_kernel *k;
    const epi_node *n;
    epi_ref to, from[OPERANDS];
    int64_t to_base, from_base[OPERANDS];
    int operands;
    space s;
    epi_walk over;           /* reductions: the operand along the axes removed, */
    int64_t over_count, run; /* all elements of them, and those of a run: the axes of it that come last */
    int32_t seed;            /* random numbers */
    float *scratch;
} pass;

int64_t epi_pass_scratch(int threads) {
    return (int64_t)threads * (OPERANDS + 3) * STRETCH * (int64_t)sizeof(float);
}

static void make_space(pass *p, const epi_axes *axes, int64_t stretch) {
    space *s = &p->s;
    const int64_t *sizes = p->k->spec.sizes;
    for (int i = 0; i < axes->count; i++) {
        int64_t size = epi_axis_size(axes->at[i], sizes),
                stride[OPERANDS + 1] = {epi_ref_stride(&p->to, axes->at[i])};
        if (size == 1)
            continue;
        for (int a = 0; a < p->operands; a++)
            stride[a + 1] = epi_ref_stride(&p->from[a], axes->at[i]);
        bool merges = s->count > 0;
        for (int a = 0; a <= p->operands && merges; a++)
            merges = s->stride[s->count - 1][a] == size * stride[a];
        int at = merges ? s->count - 1 : s->count++;
        s->size[at] = merges ? s->size[at] * size : size;
        for (int a = 0; a <= p->operands; a++)
            s->stride[at][a] = stride[a];
    }
    if (!s->count) {
        s->count = 1;
        s->size[0] = 1;
    }
    s->outer = 1;
    for (int i = 0; i + 1 < s->count; i++)
        s->outer *= s->size[i];
    s->stretch = stretch;
    s->stretches = epi_ceil_div(s->size[s->count - 1], stretch);
}

/* Where stretch `item` starts, in each tensor, and how long it is. */
static int stretch_at(const pass *p, int64_t item, int64_t *base) {
    const space *s = &p->s;
    int64_t row = item / s->stretches, start = item % s->stretches * s->stretch, last = s->count - 1;
    base[0] = p->to_base;
    for (int a = 0; a < p->operands; a++)
        base[a + 1] = p->from_base[a];
    for (int a = 0; a <= p->operands; a++)
        base[a] += start * s->stride[last][a];
    for (int64_t i = last - 1; i >= 0; i--) {
        int64_t at = row % s->size[i];
        row /= s->size[i];
        for (int a = 0; a <= p->operands; a++)
            base[a] += at * s->stride[i][a];
    }
    return (int)epi_min64(s->stretch, s->size[last] - start);
}

static const void *element(const epi_ref *ref, int64_t offset) {
    return ref->data + offset * (int64_t)epi_dtype_size(ref->type);
}

/* An operand's stretch as a view: in place, as one broadcast element, or converted into tmp. */
static epi_view operand_view(const pass *p, const epi_ref *ref, int64_t base, int64_t stride, int n,
                             float *tmp) {
    const epi_strips *s = p->k->strips;
    if (stride == 0) {
        s->load(tmp, element(ref, base), ref->type, 1, 1);
        return (epi_view){tmp, 0, 0};
    }
    if (stride == 1 && ref->type == EPI_F32)
        return (epi_view){element(ref, base), 0, 1};
    s->load(tmp, element(ref, base), ref->type, stride, n);
    return (epi_view){tmp, 0, 1};
}

static void put(const pass *p, int64_t base, const float *src, int n) {
    int64_t stride = p->s.stride[p->s.count - 1][0];
    p->k->strips->store((void *)(uintptr_t)element(&p->to, base), p->to.type, n == 1 ? 1 : stride, src, n);
}

static float *scratch_of(const pass *p, int thread) {
    return p->scratch + (int64_t)thread * (OPERANDS + 3) * STRETCH;
}

/* ---- bodies ---- */

static void map_stretch(void *ctx, int64_t item, int thread) {
    const pass *p = ctx;
    float *tmp = scratch_of(p, thread);
    int64_t base[OPERANDS + 1];
    int n = stretch_at(p, item, base), last = p->s.count - 1;
    epi_view v[OPERANDS] = {{0}};
    for (int a = 0; a < p->operands; a++)
        v[a] =
            operand_view(p, &p->from[a], base[a + 1], p->s.stride[last][a + 1], n, tmp + (a + 1) * STRETCH);
    bool in_place = p->to.type == EPI_F32 && p->s.stride[last][0] == 1;
    float *dst = in_place ? (float *)(uintptr_t)element(&p->to, base[0]) : tmp;
    p->k->strips->map[p->n->op](dst, 0, v, 1, n);
    if (!in_place)
        put(p, base[0], dst, n);
}

static void copy_stretch(void *ctx, int64_t item, int thread) {
    const pass *p = ctx;
    (void)thread;
    float tmp[STRETCH];
    int64_t base[OPERANDS + 1];
    int n = stretch_at(p, item, base), last = p->s.count - 1;
    if (p->from[0].type == p->to.type &&
        !epi_dtype_in_f32(p->to.type)) { /* integers and f64 hold more than f32 */
        size_t size = epi_dtype_size(p->to.type);
        for (int j = 0; j < n; j++)
            memcpy((void *)(uintptr_t)element(&p->to, base[0] + j * p->s.stride[last][0]),
                   element(&p->from[0], base[1] + j * p->s.stride[last][1]), size);
        return;
    }
    if (epi_dtype_is_integer(p->from[0].type) && epi_dtype_is_whole(p->to.type)) {
        for (int j = 0; j < n; j++)
            epi_whole_store(p->k->strips, &p->to, base[0] + j * p->s.stride[last][0],
                            epi_whole_load(p->k->strips, &p->from[0], base[1] + j * p->s.stride[last][1]));
        return;
    }
    epi_view v = operand_view(p, &p->from[0], base[1], p->s.stride[last][1], n, tmp);
    for (int j = 1; j < n && !v.col; j++)
        tmp[j] = tmp[0];
    put(p, base[0], v.p, n);
}

/* How many elements the axes have that an operand's last ones are, if they are removed; 0: the last one
 * stays. Neither strides nor an axis of one element have a say: sums are taken in one order, however the
 * operand lies and however many rows there are. */
static int64_t run_length(const epi_axes *axes, const epi_axes *over, const int64_t *sizes) {
    int64_t run = 1;
    int count = 0;
    while (count < over->count && count < axes->count &&
           epi_axis_equal(over->at[over->count - 1 - count], axes->at[axes->count - 1 - count]))
        run *= epi_axis_size(over->at[over->count - 1 - count++], sizes);
    return count ? run : 0;
}

/* The elements i to i + n of those that a result folds, which are from `from` on. */
static epi_view run_view(const pass *p, int64_t from, int64_t i, int n, float *tmp) {
    const epi_walk *w = &p->over;
    const epi_ref *ref = &p->from[0];
    int64_t digit = w->count ? w->size[w->count - 1] : 1, stride = w->count ? w->stride[w->count - 1] : 1;
    if (stride == 1 && ref->type == EPI_F32 && i % digit + n <= digit)
        return (epi_view){element(ref, from + epi_walk_offset(w, i)), 0, 1};
    for (int at = 0, m; at < n; at += m) {
        m = (int)epi_min64(n - at, digit - (i + at) % digit);
        p->k->strips->load(tmp + at, element(ref, from + epi_walk_offset(w, i + at)), ref->type, stride, m);
    }
    return (epi_view){tmp, 0, 1};
}

/* What is folded: elements, their distances from a mean, or the squares of these. */
typedef enum folded { FOLD_ELEMENTS, FOLD_DISTANCES, FOLD_SQUARES } folded;

static float distance(folded what, float x, float mean) {
    return what == FOLD_SQUARES ? (x - mean) * (x - mean) : x - mean;
}

/* Runs of the operand, or their distances from `mean`, are folded into one state. */
static void fold_inner(const pass *p, epi_op op, int64_t from, folded what, float mean, float *acc,
                       float *acc2, float *in) {
    const epi_strips *s = p->k->strips;
    *acc = epi_reduce_identity(op);
    *acc2 = 0;
    for (int64_t i = 0; i < p->over_count;) {
        int m = (int)epi_min64(STRETCH, p->run - i % p->run);
        epi_view v = run_view(p, from, i, m, in);
        float x, x2 = 0;
        for (int e = m - 1; e >= 0 && what != FOLD_ELEMENTS; e--)
            in[e] = distance(what, v.p[e * v.col], mean);
        s->reduce_rows(op, &x, &x2, what != FOLD_ELEMENTS ? (epi_view){in, 0, 1} : v, 1, m);
        s->combine(op, acc, acc2, &x, &x2, 1);
        i += m;
    }
}

/* The mean of squared distances from a mean that is rounded, less the square of what it is off by. */
static void take_rounding(float *squares, const float *off, int n) {
    for (int j = 0; j < n; j++) {
        float rest = squares[j] - off[j] * off[j];
        squares[j] = !(squares[j] < INFINITY) ? squares[j] : rest < 0 ? 0 : rest;
    }
}

/* A reduction whose fastest axis is removed: each result folds runs of the operand. A variance walks over
 * them three times: nothing cancels. */
static void reduce_inner(void *ctx, int64_t item, int thread) {
    const pass *p = ctx;
    const epi_strips *s = p->k->strips;
    float *tmp = scratch_of(p, thread), *acc = tmp + STRETCH, *acc2 = acc + STRETCH, *in = acc2 + STRETCH,
          *off = tmp + 4 * STRETCH;
    int64_t base[OPERANDS + 1];
    int n = stretch_at(p, item, base), last = p->s.count - 1;
    bool var = p->n->op == EPI_OP_VAR;
    epi_op op = var ? EPI_OP_MEAN : p->n->op;
    double count = (double)p->over_count;
    for (int j = 0; j < n; j++) {
        int64_t from = base[1] + j * p->s.stride[last][1];
        fold_inner(p, op, from, FOLD_ELEMENTS, 0, acc + j, acc2 + j, in);
        if (!var)
            continue;
        s->finish(op, acc + j, acc2 + j, 1, count);
        float mean = acc[j];
        fold_inner(p, op, from, FOLD_DISTANCES, mean, acc + j, acc2 + j, in);
        s->finish(op, acc + j, acc2 + j, 1, count);
        off[j] = acc[j];
        fold_inner(p, op, from, FOLD_SQUARES, mean, acc + j, acc2 + j, in);
    }
    s->finish(op, acc, acc2, n, count);
    if (var)
        take_rounding(acc, off, n);
    put(p, base[0], acc, n);
}

/* Rows of the operand, or their distances from `mean`, are folded into a row of states. */
static void fold_outer(const pass *p, epi_op op, int64_t from, int n, folded what, const float *mean,
                       float *tmp) {
    const epi_strips *s = p->k->strips;
    float *acc = tmp + STRETCH, *acc2 = acc + STRETCH, *in = acc2 + STRETCH;
    bool sums = epi_ops[op].adds;
    for (int j = 0; j < n; j++) {
        acc[j] = epi_reduce_identity(op);
        acc2[j] = 0;
    }
    for (int64_t i = 0; i < p->over_count; i++) {
        epi_view v = operand_view(p, &p->from[0], from + epi_walk_offset(&p->over, i),
                                  p->s.stride[p->s.count - 1][1], n, in);
        if (sums && i % EPI_SUM_TERMS == 0)
            memset(tmp, 0, (size_t)n * sizeof *tmp);
        for (int j = n - 1; j >= 0 && what != FOLD_ELEMENTS; j--) /* in[0], where all are it, changes last */
            in[j] = distance(what, v.p[j * v.col], mean[j]);
        s->reduce_cols(op, sums ? tmp : acc, acc2, what != FOLD_ELEMENTS ? (epi_view){in, 0, 1} : v, 1, n);
        if (sums && (i % EPI_SUM_TERMS == EPI_SUM_TERMS - 1 || i + 1 == p->over_count))
            s->combine(op, acc, acc2, tmp, NULL, n);
    }
}

/* A reduction whose fastest axis stays. */
static void reduce_outer(void *ctx, int64_t item, int thread) {
    const pass *p = ctx;
    const epi_strips *s = p->k->strips;
    float *tmp = scratch_of(p, thread), *acc = tmp + STRETCH, *acc2 = acc + STRETCH,
          *mean = tmp + 4 * STRETCH, *off = mean + STRETCH;
    int64_t base[OPERANDS + 1];
    int n = stretch_at(p, item, base);
    bool var = p->n->op == EPI_OP_VAR;
    epi_op op = var ? EPI_OP_MEAN : p->n->op;
    fold_outer(p, op, base[1], n, FOLD_ELEMENTS, NULL, tmp);
    s->finish(op, acc, acc2, n, (double)p->over_count);
    if (var) {
        memcpy(mean, acc, (size_t)n * sizeof *mean);
        fold_outer(p, op, base[1], n, FOLD_DISTANCES, mean, tmp);
        s->finish(op, acc, acc2, n, (double)p->over_count);
        memcpy(off, acc, (size_t)n * sizeof *off);
        fold_outer(p, op, base[1], n, FOLD_SQUARES, mean, tmp);
        s->finish(op, acc, acc2, n, (double)p->over_count);
        take_rounding(acc, off, n);
    }
    put(p, base[0], acc, n);
}

static void random_stretch(void *ctx, int64_t item, int thread) {
    const pass *p = ctx;
    float *tmp = scratch_of(p, thread);
    int64_t base[OPERANDS + 1], first = item / p->s.stretches * p->s.size[p->s.count - 1];
    int n = stretch_at(p, item, base);
    epi_philox_uniform(tmp, p->seed, first + item % p->s.stretches * p->s.stretch, n);
    put(p, base[0], tmp, n);
}

static void index_stretch(void *ctx, int64_t item, int thread) {
    const pass *p = ctx;
    (void)thread;
    float tmp[STRETCH];
    int64_t base[OPERANDS + 1];
    int n = stretch_at(p, item, base);
    for (int j = 0; j < n; j++)
        tmp[j] = (float)(item % p->s.stretches * p->s.stretch + j);
    put(p, base[0], tmp, n);
}

/* ---- passes ---- */

static void run_stretches(pass *p, const epi_axes *axes, epi_parallel_body *body) {
    /* a stretch of results that each fold a whole row is short, so that there is work for every thread */
    make_space(p, axes, body == reduce_inner ? 16 : STRETCH);
    epi_parallel_for(p->k->spec.threads, p->s.outer * p->s.stretches, body, p);
}

void epi_pass_copy(const epi_cpu_kernel *k, const epi_ref *to, const epi_ref *from, const epi_axes *axes) {
    pass p = {.k = k, .to = *to, .from = {*from}, .operands = 1};
    run_stretches(&p, axes, copy_stretch);
}

static void run_part(pass p) {
    const int64_t *sizes = p.k->spec.sizes;
    if (!epi_ops[p.n->op].joins) {
        p.from_base[0] = epi_ref_half(&p.from[0], p.n, epi_ops[p.n->op].second, sizes);
        run_stretches(&p, &p.n->axes, copy_stretch);
        return;
    }
    for (int split = 0; split < 2; split++) {
        pass q = p;
        q.operands = 1;
        q.from[0] = p.from[split];
        q.to_base = epi_ref_half(&q.to, p.n, split, sizes);
        run_stretches(&q, &q.to.axes, copy_stretch);
    }
}

void epi_pass_run(const epi_cpu_kernel *k, int node, const epi_ref *refs, unsigned char *scratch) {
    const epi_node *n = &k->spec.graph->nodes[node];
    pass p = {.k = k,
              .n = n,
              .to = refs[node],
              .operands = epi_ops[n->op].arity,
              .scratch = (float *)(void *)scratch};
    for (int a = 0; a < p.operands; a++)
        p.from[a] = refs[n->arg[a]];
    if (n->integer) {
        const epi_ref *from[OPERANDS] = {NULL, NULL, NULL};
        for (int a = 0; a < p.operands; a++)
            from[a] = &refs[n->arg[a]];
        epi_integers_run(&k->spec, k->strips, node, &refs[node], from,
                         (int64_t *)(void *)(scratch + epi_pass_scratch(k->spec.threads)));
        return;
    }
    switch (epi_ops[n->op].cls) {
    case EPI_CLASS_MAP: run_stretches(&p, &n->axes, map_stretch); break;
    case EPI_CLASS_SPLIT: run_part(p); break;
    case EPI_CLASS_REDUCE: {
        p.over = epi_walk_axes(&p.from[0], &n->over, k->spec.sizes);
        p.over_count = epi_axes_size(&n->over, k->spec.sizes);
        p.run = run_length(&p.from[0].axes, &n->over, k->spec.sizes);
        run_stretches(&p, &n->axes, p.run ? reduce_inner : reduce_outer);
        break;
    }
    case EPI_CLASS_LEAF:
        if (n->op == EPI_OP_INDEX) {
            run_stretches(&p, &n->axes, index_stretch);
        } else {
            float x = (float)(n->op == EPI_OP_CONST ? n->value
                                                    : (double)epi_axis_size(n->over.at[0], k->spec.sizes));
            k->strips->store(p.to.data, p.to.type, 1, &x, 1);
        }
        break;
    case EPI_CLASS_MOVE:
        if (n->op == EPI_OP_UPDATE)
            epi_update_run(k, node, refs);
        else
            (n->op == EPI_OP_GATHER ? epi_gather_run : epi_scatter_run)(k, node, refs, scratch);
        break;
    case EPI_CLASS_SORT:
        if (n->op == EPI_OP_SEGMENTS || n->op == EPI_OP_TOPK)
            (n->op == EPI_OP_TOPK ? epi_largest_run : epi_segments_run)(k, node, refs);
        else
            epi_order_run(k, node, refs, scratch + epi_pass_scratch(k->spec.threads));
        break;
    case EPI_CLASS_SHIFT: epi_shift_run(k, node, refs); break;
    case EPI_CLASS_SCAN: epi_scan_run(k, node, refs); break;
    case EPI_CLASS_RANDOM:
        p.seed = epi_seed_load(k->strips, &p.from[0]);
        p.operands = 0;
        run_stretches(&p, &n->axes, random_stretch);
        break;
    case EPI_CLASS_PRODUCT: /* these are no passes, see epi_cpu_compile */
    case EPI_CLASS_VIEW: break;
    }
}
