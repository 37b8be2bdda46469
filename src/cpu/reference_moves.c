/* reference_moves.c: the reference of operations that move, sort or step through elements. */
#include "base/philox.h"
#include "cpu/reference.h"
#include "ir/index.h"

typedef epi_reference eval;

/* Splits and joins copy between the whole axis and its two splits. */
void epi_reference_split(const eval *e, int node) {
    const epi_node *n = &e->k->spec.graph->nodes[node];
    bool joins = epi_ops[n->op].joins;
    bool pairs = epi_ops[n->op].pairs;
    epi_axis fine = n->over.at[0], coarse = {fine.dim, (int16_t)(fine.shift - 1)};
    int64_t half = epi_axis_size(coarse, e->k->spec.sizes);
    for (int split = 0; split < 2; split++) {
        if (!joins && epi_ops[n->op].second != split)
            continue;
        int whole_node = joins ? node : n->arg[0], split_node = joins ? n->arg[split] : node;
        epi_ref whole = epi_reference_ref(e, whole_node), one = epi_reference_ref(e, split_node);
        epi_axes axes = whole.axes; /* walk the whole's axes, the split one at half its length */
        int at = epi_axes_find(&axes, fine);
        int64_t stride = whole.strides[at], base = split * (pairs ? stride : half * stride);
        axes.at[at] = coarse;
        whole.axes.at[at] = coarse;
        whole.strides[at] = pairs ? 2 * stride : stride;
        epi_walk ww = epi_walk_axes(&whole, &axes, e->k->spec.sizes),
                 wp = epi_walk_axes(&one, &axes, e->k->spec.sizes);
        for (int64_t i = 0, count = epi_reference_count(e, &axes); i < count; i++) {
            double *w = &e->value[whole_node][base + epi_walk_offset(&ww, i)];
            double *p = &e->value[split_node][epi_walk_offset(&wp, i)];
            if (joins)
                *w = *p;
            else
                *p = *w;
        }
    }
}

/* The same elements under another name of an axis. A pass may have made the operand with its axes in another
 * order. */
void epi_reference_view(const eval *e, int node) {
    const epi_node *n = &e->k->spec.graph->nodes[node];
    epi_ref r = epi_reference_ref(e, n->arg[0]);
    if (n->op == EPI_OP_RENAME)
        r.axes.at[epi_axes_find(&r.axes, n->over.at[0])] = n->over.at[1];
    epi_walk from = epi_walk_axes(&r, &n->axes, e->k->spec.sizes);
    for (int64_t i = 0, count = epi_reference_count(e, &n->axes); i < count; i++) {
        int64_t at = epi_walk_offset(&from, i);
        e->value[node][i] = e->value[n->arg[0]][at];
        if (e->integer[node])
            e->integer[node][i] = e->integer[n->arg[0]][at];
    }
}

/* Elements that an index names; one that names none gives zero. */
void epi_reference_gather(const eval *e, int node) {
    const epi_node *n = &e->k->spec.graph->nodes[node];
    const int64_t *sizes = e->k->spec.sizes;
    epi_ref x = epi_reference_ref(e, n->arg[0]), index = epi_reference_ref(e, n->arg[1]);
    epi_walk along = epi_ref_along(&x, &n->over, sizes);
    int64_t size = epi_axes_size(&n->over, sizes);
    epi_walk from = epi_walk_axes(&x, &n->axes, sizes), which = epi_walk_axes(&index, &n->axes, sizes);
    for (int64_t i = 0, count = epi_reference_count(e, &n->axes); i < count; i++) {
        int64_t at = epi_position(e->value[n->arg[1]][epi_walk_offset(&which, i)], size);
        const double *at_first = e->value[n->arg[0]] + epi_walk_offset(&from, i);
        e->value[node][i] = at < 0 ? 0 : at_first[epi_walk_offset(&along, at)];
    }
}

/* Elements along the axis, so many places further; 0 where none comes. */
void epi_reference_shift(const eval *e, int node) {
    const epi_node *n = &e->k->spec.graph->nodes[node];
    const int64_t *sizes = e->k->spec.sizes;
    epi_ref x = epi_reference_ref(e, n->arg[0]), to = epi_reference_ref(e, node);
    epi_walk from = epi_walk_axes(&x, &n->axes, sizes);
    int64_t by = epi_shift_by(n), size = epi_axis_size(n->over.at[0], sizes),
            step = epi_ref_stride(&to, n->over.at[0]), back = by * epi_ref_stride(&x, n->over.at[0]);
    for (int64_t i = 0, count = epi_reference_count(e, &n->axes); i < count; i++) {
        int64_t at = i / step % size - by;
        e->value[node][i] = at < 0 || at >= size ? 0 : e->value[n->arg[0]][epi_walk_offset(&from, i) - back];
    }
}

/* What an index sends to one place is added up in the index's order. */
void epi_reference_scatter(const eval *e, int node) {
    const epi_graph *g = e->k->spec.graph;
    const epi_node *n = &g->nodes[node];
    const int64_t *sizes = e->k->spec.sizes;
    epi_ref d = epi_reference_ref(e, n->arg[0]), index = epi_reference_ref(e, n->arg[1]),
            to = epi_reference_ref(e, node), kept = to;
    epi_axes rest = epi_axes_without(&d.axes, &index.axes), along = epi_index_along(g, n);
    epi_walk outer = epi_walk_axes(&d, &index.axes, sizes), inner = epi_walk_axes(&d, &rest, sizes),
             to_along = epi_ref_along(&to, &along, sizes), to_inner = epi_walk_axes(&to, &rest, sizes);
    for (int i = 0; i < along.count; i++)
        epi_ref_drop(&kept, along.at[i]);
    epi_walk to_outer = epi_walk_axes(&kept, &index.axes, sizes);
    int64_t size = epi_axes_size(&along, sizes), width = epi_reference_count(e, &rest),
            all = epi_reference_count(e, &n->axes);
    for (int64_t i = 0; i < all; i++)
        e->value[node][i] = 0;
    for (int64_t i = 0, count = epi_reference_count(e, &index.axes); i < count; i++) {
        int64_t at = epi_position(e->value[n->arg[1]][i], size);
        if (at < 0)
            continue;
        double *place = e->value[node] + epi_walk_offset(&to_outer, i) + epi_walk_offset(&to_along, at);
        for (int64_t j = 0; j < width; j++) {
            double *sum = place + epi_walk_offset(&to_inner, j);
            *sum += e->value[n->arg[0]][epi_walk_offset(&outer, i) + epi_walk_offset(&inner, j)];
            if (epi_reference_rounds_sums(e, node))
                *sum = (double)(float)*sum;
        }
    }
    for (int64_t i = 0; i < all; i++)
        e->value[node][i] = epi_reference_rounded(e, node, e->value[node][i]);
}

/* The operand with one element along an axis replaced, if the index names one. */
void epi_reference_update(const eval *e, int node) {
    const epi_node *n = &e->k->spec.graph->nodes[node];
    const int64_t *sizes = e->k->spec.sizes;
    epi_ref to = epi_reference_ref(e, node), old = epi_reference_ref(e, n->arg[0]),
            index = epi_reference_ref(e, n->arg[1]), v = epi_reference_ref(e, n->arg[2]);
    epi_walk stays = epi_walk_axes(&old, &n->axes, sizes);
    for (int64_t i = 0, count = epi_reference_count(e, &n->axes); i < count; i++)
        e->value[node][i] = e->value[n->arg[0]][epi_walk_offset(&stays, i)];
    int64_t stride = epi_ref_drop(&to, n->over.at[0]), size = epi_axis_size(n->over.at[0], sizes);
    epi_walk put = epi_walk_axes(&to, &to.axes, sizes), which = epi_walk_axes(&index, &to.axes, sizes),
             from = epi_walk_axes(&v, &to.axes, sizes);
    for (int64_t i = 0, count = epi_reference_count(e, &to.axes); i < count; i++) {
        int64_t at = epi_position(e->value[n->arg[1]][epi_walk_offset(&which, i)], size);
        if (at >= 0)
            e->value[node][epi_walk_offset(&put, i) + at * stride] =
                e->value[n->arg[2]][epi_walk_offset(&from, i)];
    }
}

/* The number of an index's element along its axis; one that names none comes behind all. */
static int64_t value_at(const eval *e, const epi_node *n, const epi_walk *which, int64_t i, int64_t size) {
    int64_t at = epi_position(e->value[n->arg[0]][epi_walk_offset(which, i)], size);
    return at < 0 ? size : at;
}

static bool is_larger(double a, double b) {
    return a > b || (a != a && b == b);
}

/* Elements in the order of their values, one value after the other: counted, not sorted. */
void epi_reference_order(const eval *e, int node) {
    const epi_node *n = &e->k->spec.graph->nodes[node];
    const int64_t *sizes = e->k->spec.sizes;
    epi_ref index = epi_reference_ref(e, n->arg[0]);
    epi_axes places = n->op == EPI_OP_OFFSETS ? index.axes : n->axes;
    epi_walk which = epi_walk_axes(&index, &places, sizes);
    int64_t size = epi_axis_size(n->over.at[0], sizes), next = 0;
    for (int64_t v = 0; v <= size; v++) {
        if (n->op == EPI_OP_OFFSETS && v < size)
            e->value[node][v] = (double)next;
        for (int64_t i = 0, count = epi_reference_count(e, &places); i < count; i++)
            if (value_at(e, n, &which, i, size) == v) {
                if (n->op != EPI_OP_OFFSETS)
                    e->value[node][n->op == EPI_OP_RANK ? i : next] =
                        (double)(n->op == EPI_OP_RANK ? next : i);
                next++;
            }
    }
}

/* The last value whose segment begins at a place or before it, by halves; 0 before the first. */
void epi_reference_segments(const eval *e, int node) {
    const epi_node *n = &e->k->spec.graph->nodes[node];
    for (int64_t i = 0, count = epi_reference_count(e, &n->axes); i < count; i++) {
        int64_t first = 0, last = epi_axis_size(n->over.at[0], e->k->spec.sizes) - 1;
        while (first < last) {
            int64_t middle = (first + last + 1) / 2;
            bool begun = e->value[n->arg[0]][middle] <= (double)i;
            first = begun ? middle : first;
            last = begun ? last : middle - 1;
        }
        e->value[node][i] = (double)first;
    }
}

/* Positions of the largest elements, the largest first and the first of equal ones; NaN is larger than
 * all. */
void epi_reference_largest(const eval *e, int node) {
    const epi_node *n = &e->k->spec.graph->nodes[node];
    const int64_t *sizes = e->k->spec.sizes;
    epi_ref x = epi_reference_ref(e, n->arg[0]), y = epi_reference_ref(e, node);
    int64_t of = epi_axis_size(n->over.at[0], sizes), taken = epi_axis_size(n->over.at[1], sizes);
    int64_t step = epi_ref_drop(&x, n->over.at[0]), put = epi_ref_drop(&y, n->over.at[1]);
    epi_walk from = epi_walk_axes(&x, &y.axes, sizes), to = epi_walk_axes(&y, &y.axes, sizes);
    for (int64_t i = 0, rows = epi_reference_count(e, &y.axes); i < rows; i++) {
        const double *row = e->value[n->arg[0]] + epi_walk_offset(&from, i);
        int64_t last = -1;
        for (int64_t k = 0; k < taken; k++) {
            int64_t best = -1; /* the first behind the last one, in the order of the result */
            for (int64_t j = 0; j < of; j++) {
                bool behind = last < 0 || (j > last ? !is_larger(row[j * step], row[last * step])
                                                    : is_larger(row[last * step], row[j * step]));
                if (j != last && behind && (best < 0 || is_larger(row[j * step], row[best * step])))
                    best = j;
            }
            last = best;
            e->value[node][epi_walk_offset(&to, i) + k * put] = (double)last;
        }
    }
}

/* Step by step; what is carried on is not rounded as what is stored is. */
void epi_reference_scan(const eval *e, int node) {
    const epi_node *n = &e->k->spec.graph->nodes[node];
    const int64_t *sizes = e->k->spec.sizes;
    epi_ref a = epi_reference_ref(e, n->arg[0]), b = epi_reference_ref(e, n->arg[1]),
            y = epi_reference_ref(e, node);
    epi_axes rest = epi_axes_without(&n->axes, &n->over);
    epi_walk row[3] = {epi_walk_axes(&a, &rest, sizes), epi_walk_axes(&b, &rest, sizes),
                       epi_walk_axes(&y, &rest, sizes)},
             along[3] = {epi_walk_axes(&a, &n->over, sizes), epi_walk_axes(&b, &n->over, sizes),
                         epi_walk_axes(&y, &n->over, sizes)};
    for (int64_t i = 0, rows = epi_reference_count(e, &rest), steps = epi_reference_count(e, &n->over);
         i < rows; i++) {
        double h = 0;
        for (int64_t k = 0; k < steps; k++) {
            int64_t t = epi_ops[n->op].back ? steps - 1 - k : k;
            double x = e->value[n->arg[1]][epi_walk_offset(&row[1], i) + epi_walk_offset(&along[1], t)];
            if (k)
                x += h * e->value[n->arg[0]][epi_walk_offset(&row[0], i) + epi_walk_offset(&along[0], t)];
            h = e->naive ? (double)(float)x : x;
            e->value[node][epi_walk_offset(&row[2], i) + epi_walk_offset(&along[2], t)] =
                epi_reference_rounded(e, node, h);
        }
    }
}

/* Random numbers are the same on every path, and so are never rounded. */
void epi_reference_random(const eval *e, int node) {
    const epi_node *n = &e->k->spec.graph->nodes[node];
    float x[EPI_PHILOX_BATCH];
    int64_t count = epi_reference_count(e, &n->axes);
    int32_t seed = epi_seed_load(e->k->strips, &e->tensors[e->k->spec.graph->nodes[n->arg[0]].tensor]);
    for (int64_t i = 0; i < count; i += EPI_PHILOX_BATCH) {
        int m = (int)epi_min64(EPI_PHILOX_BATCH, count - i);
        epi_philox_uniform(x, seed, i, m);
        for (int j = 0; j < m; j++)
            e->value[node][i + j] = (double)x[j];
    }
}
