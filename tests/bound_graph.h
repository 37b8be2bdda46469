/* bound_graph.h: bounds of elements that only change places, and of a whole graph, operation by operation. */
#ifndef EPI_TESTS_BOUND_GRAPH_H
#define EPI_TESTS_BOUND_GRAPH_H

#include "bound_fold.h"

static inline void bound_take(bounded *y, int64_t i, const bounded *x, int64_t at) {
    y->v[i] = at < 0 ? 0 : x->v[at];
    y->e[i] = at < 0 ? 0 : x->e[at];
    y->m[i] = at < 0 ? 0 : x->m[at];
}

static inline void bound_input(const bounding *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    epi_ref r = {.axes = b->g->tensors[n->tensor].axes};
    int64_t begin = epi_ref_lay_out(&r, b->slices ? &b->slices[n->tensor] : NULL, NULL, b->sizes);
    epi_walk w = epi_walk_axes(&r, &n->axes, b->sizes);
    for (int64_t i = 0; i < b->at[node].count; i++)
        bound_take(&b->at[node], i, &b->tensors[b->of[n->tensor]], begin + epi_walk_offset(&w, i));
}

static inline void bound_leaf(const bounding *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    bounded *y = &b->at[node];
    for (int64_t i = 0; i < y->count; i++) {
        y->v[i] = n->op == EPI_OP_INDEX  ? (double)i
                  : n->op == EPI_OP_SIZE ? (double)epi_axis_size(n->over.at[0], b->sizes)
                                         : n->value;
        y->m[i] = fabs(y->v[i]);
        y->e[i] = n->op == EPI_OP_CONST && isfinite(n->value) ? fabs((double)(float)n->value - n->value) : 0;
    }
}

static inline void bound_random(const bounding *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    bounded *y = &b->at[node];
    for (int64_t i = 0; i < y->count; i++) {
        float x;
        epi_philox_uniform(&x, (int32_t)b->at[n->arg[0]].v[0], i, 1);
        y->v[i] = y->m[i] = (double)x;
    }
}

/* A rename: the same elements in the same order; the axes of both go by position. */
static inline void bound_view(const bounding *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    epi_ref r = epi_ref_of_axes(&b->g->nodes[n->arg[0]].axes, b->sizes);
    for (int i = 0; i < r.axes.count; i++)
        if (epi_axis_equal(r.axes.at[i], n->over.at[0]))
            r.axes.at[i] = n->over.at[1];
    epi_walk w = epi_walk_axes(&r, &n->axes, b->sizes);
    for (int64_t i = 0; i < b->at[node].count; i++)
        bound_take(&b->at[node], i, &b->at[n->arg[0]], epi_walk_offset(&w, i));
}

static inline void bound_split(const bounding *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    bool joins = n->op == EPI_OP_JOIN || n->op == EPI_OP_CONCAT;
    for (int half = 0; half < 2; half++) {
        if (!joins && (n->op == EPI_OP_ODD || n->op == EPI_OP_HIGH) != half)
            continue;
        int whole_node = joins ? node : n->arg[0], part_node = joins ? n->arg[half] : node;
        epi_ref whole = epi_ref_of_axes(&b->g->nodes[whole_node].axes, b->sizes),
                part = epi_ref_of_axes(&b->g->nodes[part_node].axes, b->sizes);
        int64_t begin = epi_ref_half(&whole, n, half, b->sizes);
        epi_walk from = epi_walk_axes(&whole, &whole.axes, b->sizes),
                 to = epi_walk_axes(&part, &whole.axes, b->sizes);
        for (int64_t i = 0, count = epi_axes_size(&whole.axes, b->sizes); i < count; i++) {
            int64_t w = begin + epi_walk_offset(&from, i), p = epi_walk_offset(&to, i);
            if (joins)
                bound_take(&b->at[node], w, &b->at[part_node], p);
            else
                bound_take(&b->at[node], p, &b->at[whole_node], w);
        }
    }
}

/* The position that an index names, -1: none; *sure where it cannot be another one. */
static inline int64_t bound_position(const bounded *index, int64_t i, int64_t size, bool *sure) {
    double v = index->v[i], e = index->e[i];
    *sure = e == 0 || rint(v - e) == rint(v + e);
    double at = rint(v);
    return at >= 0 && at < (double)size ? (int64_t)at : -1;
}

static inline void bound_gather(const bounding *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    epi_ref x = epi_ref_of_axes(&b->g->nodes[n->arg[0]].axes, b->sizes),
            index = epi_ref_of_axes(&b->g->nodes[n->arg[1]].axes, b->sizes);
    epi_walk along = epi_ref_along(&x, &n->over, b->sizes);
    int64_t size = epi_axes_size(&n->over, b->sizes);
    epi_walk from = epi_walk_axes(&x, &n->axes, b->sizes), which = epi_walk_axes(&index, &n->axes, b->sizes);
    bounded *y = &b->at[node];
    for (int64_t i = 0; i < y->count; i++) {
        bool sure;
        int64_t at = bound_position(&b->at[n->arg[1]], epi_walk_offset(&which, i), size, &sure);
        int64_t place = at < 0 ? -1 : epi_walk_offset(&from, i) + epi_walk_offset(&along, at);
        bound_take(y, i, &b->at[n->arg[0]], place);
        y->e[i] = sure ? y->e[i] : INFINITY;
    }
}

static inline void bound_scatter(const bounding *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    bounded *y = &b->at[node];
    const bounded *d = &b->at[n->arg[0]];
    epi_ref from = epi_ref_of_axes(&b->g->nodes[n->arg[0]].axes, b->sizes),
            to =
                epi_ref_of_axes(&n->axes, b->sizes); /* a part has them in the order of the program's value */
    const epi_axes *index = &b->g->nodes[n->arg[1]].axes;
    epi_axes rest = epi_axes_without(&from.axes, index);
    epi_walk outer = epi_walk_axes(&from, index, b->sizes), inner = epi_walk_axes(&from, &rest, b->sizes);
    epi_axes counts = epi_index_along(b->g, n);
    epi_walk along = epi_walk_axes(&to, &counts, b->sizes), there = epi_walk_axes(&to, &rest, b->sizes);
    int64_t size = epi_axes_size(&counts, b->sizes), width = epi_axes_size(&rest, b->sizes);
    epi_ref one = to;
    for (int i = 0; i < counts.count; i++)
        epi_ref_drop(&one, counts.at[i]);
    epi_walk kept = epi_walk_axes(&one, index, b->sizes);
    bool all_sure = true;
    int64_t count = epi_axes_size(index, b->sizes);
    for (int64_t i = 0; i < count; i++) {
        bool sure;
        int64_t at = bound_position(&b->at[n->arg[1]], i, size, &sure);
        all_sure &= sure;
        for (int64_t j = 0; j < width && at >= 0; j++) {
            int64_t t = epi_walk_offset(&kept, i) + epi_walk_offset(&along, at) + epi_walk_offset(&there, j),
                    f = epi_walk_offset(&outer, i) + epi_walk_offset(&inner, j);
            y->v[t] += d->v[f];
            y->e[t] += d->e[f];
            y->m[t] += fmax(d->m[f], fabs(d->v[f]));
        }
    }
    for (int64_t i = 0; i < y->count; i++)
        y->e[i] = all_sure ? y->e[i] + 0x1p-24 * (double)(count + 8) * (y->m[i] + y->e[i]) : INFINITY;
}

static inline void bound_update(const bounding *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    bounded *y = &b->at[node];
    epi_ref to = epi_ref_of_axes(&n->axes, b->sizes),
            index = epi_ref_of_axes(&b->g->nodes[n->arg[1]].axes, b->sizes),
            v = epi_ref_of_axes(&b->g->nodes[n->arg[2]].axes, b->sizes),
            x = epi_ref_of_axes(&b->g->nodes[n->arg[0]].axes, b->sizes);
    epi_walk whole = epi_walk_axes(&x, &n->axes, b->sizes);
    for (int64_t i = 0; i < y->count; i++)
        bound_take(y, i, &b->at[n->arg[0]], epi_walk_offset(&whole, i));
    int64_t stride = epi_ref_drop(&to, n->over.at[0]), size = epi_axis_size(n->over.at[0], b->sizes);
    epi_walk put = epi_walk_axes(&to, &to.axes, b->sizes), which = epi_walk_axes(&index, &to.axes, b->sizes),
             from = epi_walk_axes(&v, &to.axes, b->sizes);
    for (int64_t i = 0, count = epi_axes_size(&to.axes, b->sizes); i < count; i++) {
        bool sure;
        int64_t at = bound_position(&b->at[n->arg[1]], epi_walk_offset(&which, i), size, &sure);
        for (int64_t k = 0; k < size; k++)
            if (!sure)
                y->e[epi_walk_offset(&put, i) + k * stride] = INFINITY;
        if (at >= 0 && sure)
            bound_take(y, epi_walk_offset(&put, i) + at * stride, &b->at[n->arg[2]],
                       epi_walk_offset(&from, i));
    }
}

/* The numbers of an order are exact where those that it orders cannot be others. */
static inline void bound_order(const bounding *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    bounded *y = &b->at[node];
    const bounded *x = &b->at[n->arg[0]];
    epi_axes along = {1, {n->over.at[0]}};
    epi_axes places =
        n->op == EPI_OP_OFFSETS ? b->g->nodes[n->arg[0]].axes : epi_axes_without(&n->over, &along);
    epi_ref index = epi_ref_of_axes(&b->g->nodes[n->arg[0]].axes, b->sizes),
            result = epi_ref_of_axes(&n->axes, b->sizes);
    epi_walk which = epi_walk_axes(&index, &places, b->sizes), to = epi_walk_axes(&result, &places, b->sizes);
    int64_t size = epi_axis_size(along.at[0], b->sizes), next = 0;
    bool all_sure = true, sure, offsets = n->op == EPI_OP_OFFSETS;
    for (int64_t v = 0; v <= size; v++) {
        if (offsets && v < size)
            y->v[v] = (double)next;
        for (int64_t i = 0; i < x->count; i++) {
            int64_t at = bound_position(x, epi_walk_offset(&which, i), size, &sure);
            all_sure &= sure;
            if ((at < 0 ? size : at) != v)
                continue;
            if (n->op == EPI_OP_RANK)
                y->v[epi_walk_offset(&to, i)] = (double)next;
            else if (!offsets)
                y->v[epi_walk_offset(&to, next)] = (double)i;
            next++;
        }
    }
    for (int64_t i = 0; i < y->count; i++)
        y->e[i] = all_sure ? 0 : INFINITY;
}

static inline void bound_segments(const bounding *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    bounded *y = &b->at[node];
    const bounded *o = &b->at[n->arg[0]];
    epi_axes along = {1, {n->over.at[0]}}, places = epi_axes_without(&n->over, &along);
    epi_ref result = epi_ref_of_axes(&n->axes, b->sizes);
    epi_walk to = epi_walk_axes(&result, &places, b->sizes);
    for (int64_t i = 0; i < y->count; i++) {
        int64_t first = 0, last = o->count - 1, at = epi_walk_offset(&to, i);
        while (first < last) {
            int64_t middle = (first + last + 1) / 2;
            if (o->e[middle] != 0)
                y->e[at] = INFINITY;
            if (o->v[middle] <= (double)i)
                first = middle;
            else
                last = middle - 1;
        }
        y->v[at] = (double)first;
    }
}

/* Positions of the largest, where no other order of them is within their errors. */
static inline void bound_largest(const bounding *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    bounded *y = &b->at[node];
    const bounded *x = &b->at[n->arg[0]];
    epi_ref from = epi_ref_of_axes(&b->g->nodes[n->arg[0]].axes, b->sizes),
            to = epi_ref_of_axes(&n->axes, b->sizes);
    int64_t of = epi_axis_size(n->over.at[0], b->sizes), taken = epi_axis_size(n->over.at[1], b->sizes);
    int64_t step = epi_ref_drop(&from, n->over.at[0]), put = epi_ref_drop(&to, n->over.at[1]);
    epi_walk read = epi_walk_axes(&from, &to.axes, b->sizes), write = epi_walk_axes(&to, &to.axes, b->sizes);
    for (int64_t i = 0, rows = epi_axes_size(&to.axes, b->sizes); i < rows; i++)
        for (int64_t j = 0; j < of; j++) {
            int64_t at = epi_walk_offset(&read, i), mine = at + j * step, place = 0;
            bool sure = true;
            for (int64_t o = 0; o < of; o++) {
                double v = x->v[mine], w = x->v[at + o * step], e = x->e[mine] + x->e[at + o * step];
                bool nan = v != v, other = w != w;
                place += o != j && (nan || other ? (other && !nan) || (other && nan && o < j)
                                                 : w > v || (w == v && o < j));
                sure &= o == j || e == 0 || (nan && x->e[mine] == 0) || (other && x->e[at + o * step] == 0) ||
                        fabs(v - w) > e;
            }
            if (place < taken) {
                y->v[epi_walk_offset(&write, i) + place * put] = (double)j;
                y->e[epi_walk_offset(&write, i) + place * put] = sure ? 0 : INFINITY;
            }
        }
}

static inline void bound_shift(const bounding *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    bounded *y = &b->at[node];
    const bounded *x = &b->at[n->arg[0]];
    epi_ref from = epi_ref_of_axes(&b->g->nodes[n->arg[0]].axes, b->sizes),
            to = epi_ref_of_axes(&n->axes, b->sizes);
    int64_t size = epi_axis_size(n->over.at[0], b->sizes), by = epi_shift_by(n);
    int64_t step = epi_ref_stride(&to, n->over.at[0]), back = by * epi_ref_stride(&from, n->over.at[0]);
    epi_walk read = epi_walk_axes(&from, &n->axes, b->sizes);
    for (int64_t i = 0; i < y->count; i++) {
        int64_t at = i / step % size - by, place = epi_walk_offset(&read, i) - back;
        bool inside = at >= 0 && at < size;
        bound_take(y, i, x, inside ? place : -1);
    }
}

/* Step by step: what a step makes is rounded, at most three times in f32, and what it is off by is carried on. */
static inline void bound_scan(const bounding *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    epi_ref ref[3] = {epi_ref_of_axes(&b->g->nodes[n->arg[0]].axes, b->sizes),
                      epi_ref_of_axes(&b->g->nodes[n->arg[1]].axes, b->sizes),
                      epi_ref_of_axes(&n->axes, b->sizes)};
    const bounded *a = &b->at[n->arg[0]], *x = &b->at[n->arg[1]];
    bounded *y = &b->at[node];
    epi_axes rest = epi_axes_without(&n->axes, &n->over);
    epi_walk row[3], along[3];
    for (int i = 0; i < 3; i++) {
        row[i] = epi_walk_axes(&ref[i], &rest, b->sizes);
        along[i] = epi_walk_axes(&ref[i], &n->over, b->sizes);
    }
    int64_t rows = epi_axes_size(&rest, b->sizes), steps = epi_axes_size(&n->over, b->sizes);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0, before = 0; k < steps; k++) {
            int64_t t = n->op == EPI_OP_SCAN_BACK ? steps - 1 - k : k, at[3];
            for (int j = 0; j < 3; j++)
                at[j] = epi_walk_offset(&row[j], i) + epi_walk_offset(&along[j], t);
            int64_t o = at[2];
            bound_take(y, o, x, at[1]);
            if (k) {
                double f = fabs(a->v[at[0]]), h = fabs(y->v[before]);
                y->v[o] += a->v[at[0]] * y->v[before];
                y->e[o] += (f + a->e[at[0]]) * y->e[before] + a->e[at[0]] * h;
                y->m[o] += f * fmax(y->m[before], h);
                y->e[o] += 0x1p-22 * (fabs(y->v[o]) + f * h + y->e[o]);
            }
            before = o;
        }
}

/* ---- a graph ---- */

static inline void bound_node(const bounding *b, int node) {
    epi_op op = b->g->nodes[node].op;
    switch (epi_ops[op].cls) {
    case EPI_CLASS_MAP: bound_map(b, node); break;
    case EPI_CLASS_REDUCE: bound_reduce(b, node); break;
    case EPI_CLASS_SPLIT: bound_split(b, node); break;
    case EPI_CLASS_PRODUCT: bound_product(b, node); break;
    case EPI_CLASS_VIEW: bound_view(b, node); break;
    case EPI_CLASS_RANDOM: bound_random(b, node); break;
    case EPI_CLASS_SHIFT: bound_shift(b, node); break;
    case EPI_CLASS_MOVE:
        (op == EPI_OP_GATHER ? bound_gather : epi_op_scatters(op) ? bound_scatter : bound_update)(b, node);
        break;
    case EPI_CLASS_SCAN: bound_scan(b, node); break;
    case EPI_CLASS_SORT:
        (op == EPI_OP_SEGMENTS ? bound_segments : op == EPI_OP_TOPK ? bound_largest : bound_order)(b, node);
        break;
    default: (op == EPI_OP_INPUT ? bound_input : bound_leaf)(b, node);
    }
    double unit = b->unit(b, node);
    bool f16 = b->g->nodes[node].has_stored && b->g->nodes[node].stored == EPI_F16;
    for (int64_t i = 0; i < b->at[node].count && unit > 0; i++) {
        round_element(&b->at[node], i, unit, b->absolute);
        if (f16 && unit != 0x1p-11) /* a coarser rounding has other small numbers, and another largest one */
            round_element(&b->at[node], i, 0x1p-11, false);
    }
}

/* Every live value of the graph, in b->at. False: no memory. */
static inline bool bound_graph(bounding *b) {
    bool ok = (b->at = calloc((size_t)b->g->node_count + 1, sizeof *b->at)) != NULL;
    for (int i = 0; i < b->g->node_count && ok; i++)
        if (b->g->live[i]) {
            ok = bounded_make(&b->at[i], epi_axes_size(&b->g->nodes[i].axes, b->sizes));
            if (ok)
                bound_node(b, i);
        }
    return ok;
}

static inline void bound_graph_free(bounding *b) {
    for (int i = 0; b->at && i < b->g->node_count; i++)
        bounded_free(&b->at[i]);
    free(b->at);
}

/* How far a byte of what is between v - e and v + e is from v: rounding goes up as its operand does. */
static inline double stored_byte(epi_dtype type, double v, double e) {
    double low = byte_value(type, value_byte(type, v - e)), high = byte_value(type, value_byte(type, v + e));
    return isnan(v) || e == INFINITY ? e : fmax(fabs(low - v), fabs(high - v));
}

/* An output as it lies in memory, rounded to its type; where it is a piece of another, there. */
static inline bool bound_output(const bounding *b, int tensor, epi_dtype type, bounded *out) {
    const epi_tensor_decl *d = &b->g->tensors[tensor];
    const bounded *x = &b->at[d->node];
    const epi_slice *piece = b->slices && b->slices[tensor].memory.count ? &b->slices[tensor] : NULL;
    epi_ref r = epi_ref_of_axes(&b->g->nodes[d->node].axes, b->sizes), to = {.axes = d->axes};
    int64_t count = piece ? epi_axes_size(&piece->memory, b->sizes) : x->count,
            begin = epi_ref_lay_out(&to, piece, NULL, b->sizes);
    epi_walk w = epi_walk_axes(&r, &d->axes, b->sizes), there = epi_walk_axes(&to, &d->axes, b->sizes);
    if (!piece || out->count != count) {
        bounded_free(out);
        if (!bounded_make(out, count))
            return false;
    }
    for (int64_t i = 0; i < x->count; i++) {
        int64_t at = begin + epi_walk_offset(&there, i);
        bound_take(out, at, x, epi_walk_offset(&w, i));
        if (type == EPI_I32 || type == EPI_I64)
            out->e[at] += 0.5;
        else if (is_byte(type))
            out->e[at] = stored_byte(type, out->v[at], out->e[at]);
        else
            round_element(out, at, storage_unit(type), false);
    }
    return true;
}

#endif
