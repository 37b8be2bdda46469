/* bound_fold.h: bounds of what takes many elements together: reductions and products. */
#ifndef EPI_TESTS_BOUND_FOLD_H
#define EPI_TESTS_BOUND_FOLD_H

#include "bound.h"

typedef struct folded {
    double v, e, m, second; /* second: the largest that one other than the largest may be */
    int64_t first;
} folded;

static inline void fold_sum(const bounded *x, const epi_walk *over, int64_t base, int64_t n, folded *f) {
    for (int64_t j = 0; j < n; j++) {
        int64_t at = base + epi_walk_offset(over, j);
        f->v += x->v[at];
        f->e += x->e[at];
        f->m += fmax(fabs(x->v[at]) + x->e[at], x->m[at]);
    }
}

static inline void fold_top(const bounded *x, const epi_walk *over, int64_t base, int64_t n, bool min,
                            folded *f) {
    double sign = min ? -1 : 1, low = -INFINITY;
    f->v = sign * -INFINITY;
    for (int64_t j = 0; j < n; j++) {
        int64_t at = base + epi_walk_offset(over, j);
        if (sign * x->v[at] > sign * f->v || isnan(x->v[at])) {
            f->v = x->v[at];
            f->first = j;
        }
        low = fmax(low, sign * x->v[at] - x->e[at]);
        f->m = fmax(f->m, x->m[at]);
    }
    f->second = -INFINITY;
    for (int64_t j = 0; j < n; j++) {
        int64_t at = base + epi_walk_offset(over, j);
        double high = sign * x->v[at] + x->e[at];
        if (high >= low)
            f->e = fmax(f->e, x->e[at]);
        if (j != f->first)
            f->second = fmax(f->second, high);
    }
}

static inline void fold_variance(const bounded *x, const epi_walk *over, int64_t base, int64_t n, folded *f) {
    folded all = {0};
    fold_sum(x, over, base, n, &all);
    double mean = all.v / (double)n, off = all.e / (double)n;
    for (int64_t j = 0; j < n; j++) {
        int64_t at = base + epi_walk_offset(over, j);
        double d = fabs(x->v[at] - mean), e = x->e[at] + off + 0x1p-23 * d;
        f->v += d * d / (double)n;
        f->e += (2 * d * e + e * e) / (double)n;
    }
    f->m = f->v;
}

static inline void fold_exponentials(const bounded *x, const epi_walk *over, int64_t base, int64_t n,
                                     folded *f) {
    folded top = {0};
    fold_top(x, over, base, n, false, &top);
    double sum = 0;
    for (int64_t j = 0; j < n && isfinite(top.v); j++) {
        int64_t at = base + epi_walk_offset(over, j);
        sum += exp(x->v[at] - top.v);
        f->e = fmax(f->e, isfinite(x->v[at]) ? x->e[at] : 0);
    }
    f->v = isfinite(top.v) ? top.v + log(sum) : top.v;
    f->e += 0x1p-20 * (1 + log((double)(n + 1)) + (isfinite(top.v) ? fabs(top.v) : 0));
    f->m = fabs(f->v);
}

static inline void bound_reduce(const bounding *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    const bounded *x = &b->at[n->arg[0]];
    bounded *y = &b->at[node];
    epi_ref r = epi_ref_of_axes(&b->g->nodes[n->arg[0]].axes, b->sizes);
    epi_walk kept = epi_walk_axes(&r, &n->axes, b->sizes), over = epi_walk_axes(&r, &n->over, b->sizes);
    int64_t length = epi_axes_size(&n->over, b->sizes);
    bool top = n->op == EPI_OP_RMAX || n->op == EPI_OP_RMIN, mean = n->op == EPI_OP_MEAN;
    y->sure = top ? calloc((size_t)y->count + 1, sizeof *y->sure) : NULL;
    for (int64_t i = 0; i < y->count; i++) {
        int64_t base = epi_walk_offset(&kept, i);
        folded f = {0};
        if (top)
            fold_top(x, &over, base, length, n->op == EPI_OP_RMIN, &f);
        else if (n->op == EPI_OP_VAR)
            fold_variance(x, &over, base, length, &f);
        else if (n->op == EPI_OP_LOGSUMEXP)
            fold_exponentials(x, &over, base, length, &f);
        else
            fold_sum(x, &over, base, length, &f);
        double count = mean ? (double)length : 1;
        y->v[i] = n->op == EPI_OP_VAR && !length ? NAN : f.v / count;
        y->m[i] = f.m / count;
        y->e[i] = (f.e + (top ? 0 : 0x1p-24 * (double)(length + 8) * f.m)) / count;
        if (!isfinite(y->v[i]) && !isinf(f.e))
            y->e[i] = 0;
        if (isnan(y->e[i]))
            y->e[i] = INFINITY;
        if (top && length && isfinite(f.v))
            y->sure[i] =
                (n->op == EPI_OP_RMIN ? -f.v : f.v) - x->e[base + epi_walk_offset(&over, f.first)] > f.second;
    }
}

static inline void bound_product(const bounding *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    bounded *y = &b->at[node];
    const bounded *x[2] = {&b->at[n->arg[0]], &b->at[n->arg[1]]};
    epi_walk kept[2], over[2];
    for (int s = 0; s < 2; s++) {
        epi_ref r = epi_ref_of_axes(&b->g->nodes[n->arg[s]].axes, b->sizes);
        kept[s] = epi_walk_axes(&r, &n->axes, b->sizes);
        over[s] = epi_walk_axes(&r, &n->over, b->sizes);
    }
    int64_t depth = epi_axes_size(&n->over, b->sizes);
    const bounded *s = n->op == EPI_OP_GROUPED ? &b->at[n->arg[2]] : NULL;
    epi_walk which = {0}, group = {0}; /* of a product of groups: where in the segments, and the number of the group */
    bool rows = s && epi_grouped_rows(b->g, n);
    if (s) {
        epi_axes along = {1, {epi_grouped_axis(b->g, n)}};
        epi_ref segments = epi_ref_of_axes(&b->g->nodes[n->arg[2]].axes, b->sizes),
                groups = epi_ref_of_axes(&along, b->sizes),
                w = epi_ref_of_axes(&b->g->nodes[n->arg[1]].axes, b->sizes);
        which = epi_walk_axes(&segments, rows ? &n->axes : &n->over, b->sizes);
        group = rows ? epi_walk_axes(&w, &along, b->sizes) : epi_walk_axes(&groups, &n->axes, b->sizes);
    }
    for (int64_t i = 0; i < y->count; i++) {
        int64_t at[2] = {epi_walk_offset(&kept[0], i), epi_walk_offset(&kept[1], i)};
        double v = 0, e = 0, m = 0, a = 0;
        if (rows)
            at[1] += epi_walk_offset(&group, (int64_t)s->v[epi_walk_offset(&which, i)]);
        for (int64_t k = 0; k < depth; k++) {
            int64_t in = epi_walk_offset(&which, rows ? i : k);
            if (s && s->e[in] != 0)
                e = INFINITY;
            if (s && !rows && s->v[in] != (double)epi_walk_offset(&group, i))
                continue;
            int64_t p = at[0] + epi_walk_offset(&over[0], k), q = at[1] + epi_walk_offset(&over[1], k);
            v += x[0]->v[p] * x[1]->v[q];
            e += fabs(x[0]->v[p]) * x[1]->e[q] + fabs(x[1]->v[q]) * x[0]->e[p] + x[0]->e[p] * x[1]->e[q];
            a += fabs(x[0]->v[p] * x[1]->v[q]);
            m += x[0]->m[p] * x[1]->m[q];
        }
        e += 0x1p-24 * (double)(depth + 8) * (a + e) + 0x1p-126 * (double)depth;
        y->v[i] = v;
        y->m[i] = fmax(m, a);
        y->e[i] = isnan(e) ? isfinite(v) ? INFINITY : 0 : e;
    }
}

#endif
