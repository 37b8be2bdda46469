/* moves.c: gather, scatter and update as passes, sorts, and the check of indices before a run.
 *
 * All visit the elements of the index (outer) and, for each, the axes that the index does not have (inner).
 * Every element of a result belongs to one item of work, and its terms are added in the order of the index.
 * So the bits do not depend on the number of threads. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/parallel.h"
#include "cpu/cpu.h"
#include "cpu/pass/integers.h"
#include "ir/index.h"

enum { STRETCH = 1024 };

typedef struct move {
    const epi_cpu_kernel *k;
    epi_ref to, from, index;
    epi_walk which;                /* the index along its own axes */
    epi_walk from_outer, to_outer; /* the others along the index's axes, */
    epi_walk from_inner, to_inner; /* and along the rest */
    epi_walk from_along, to_along; /* along the axes that the index counts along */
    int64_t size, outer, inner;    /* elements of these axes, of the index, and of the rest */
    int64_t places, each;          /* scatter by batch: of `size` and `outer` those of each kept element */
    bool segments;                 /* the index is what segments make of offsets, which `index` are, */
    bool counts;                   /* or counts its own elements: it is in no memory; */
    int64_t by;                    /* a shift's begins so many places later */
    bool updates;                  /* where the index names nothing, nothing is written; else 0 is */
    int64_t rows, stretches; /* of an item: outer elements (of a scatter: positions); stretches of the rest */
    const int64_t *ends, *list; /* scatter: the index's elements by position, and where each ends */
    float *scratch;
} move;

/* How the work is divided into items. */
static void divide(move *m) {
    m->rows = epi_max64(1, STRETCH / epi_max64(1, m->inner));
    m->stretches = epi_ceil_div(m->inner, STRETCH);
}

static move make_move(const epi_cpu_kernel *k, int node, const epi_ref *refs) {
    const epi_node *n = &k->spec.graph->nodes[node];
    const int64_t *sizes = k->spec.sizes;
    bool gathers = n->op == EPI_OP_GATHER, updates = n->op == EPI_OP_UPDATE;
    move m = {.k = k, .to = refs[node], .from = refs[n->arg[updates ? 2 : 0]], .index = refs[n->arg[1]]};
    const epi_axes *outer = &k->spec.graph->nodes[n->arg[1]].axes;
    epi_axes kept = epi_scatter_kept(k->spec.graph, n), by_batch = kept;
    if (kept.count) { /* they come first, so that what goes to one place stays in the order of the index */
        epi_axes_unite(&by_batch, outer);
        outer = &by_batch;
    }
    int segments = epi_node_segments(k->spec.graph, n);
    if (segments != EPI_NO_NODE) {
        m.segments = true;
        m.index = refs[k->spec.graph->nodes[segments].arg[0]];
    }
    const epi_home *home = &k->steps.homes[n->arg[1]];
    m.counts = k->spec.graph->nodes[n->arg[1]].op == EPI_OP_INDEX && home->tensor < 0 && home->offset < 0;
    if (gathers)
        m.from_along = epi_ref_along(&m.from, &n->over, sizes);
    else
        m.to_along = epi_ref_along(&m.to, &n->over, sizes);
    epi_axes inner = epi_axes_without(gathers ? &n->axes : updates ? &m.to.axes : &m.from.axes, outer);
    m.updates = updates;
    m.which = epi_walk_axes(&m.index, m.segments ? &n->over : outer, sizes);
    m.from_outer = epi_walk_axes(&m.from, outer, sizes);
    m.to_outer = epi_walk_axes(&m.to, outer, sizes);
    m.from_inner = epi_walk_axes(&m.from, &inner, sizes);
    m.to_inner = epi_walk_axes(&m.to, &inner, sizes);
    m.size = epi_axes_size(&n->over, sizes);
    m.outer = epi_axes_size(outer, sizes);
    m.inner = epi_axes_size(&inner, sizes);
    int64_t batch = epi_max64(1, epi_axes_size(&kept, sizes));
    m.places = m.size / batch;
    m.each = m.outer / batch;
    divide(&m);
    return m;
}

/* The last value whose segment begins at a place or before it, by halves; 0 before the first. */
static int64_t segment_at(const move *m, int64_t place) {
    int64_t first = 0, last = m->size - 1;
    while (first < last) {
        int64_t middle = (first + last + 1) / 2;
        float x;
        m->k->strips->load(
            &x, m->index.data + epi_walk_offset(&m->which, middle) * (int64_t)epi_dtype_size(m->index.type),
            m->index.type, 1, 1);
        bool begun = x <= (float)place;
        first = begun ? middle : first;
        last = begun ? last : middle - 1;
    }
    return first;
}

static int64_t index_at(const move *m, int64_t i) {
    if (m->segments)
        return m->size ? segment_at(m, i) : -1;
    if (m->counts)
        return i >= m->by && i - m->by < m->size ? i - m->by : -1;
    int64_t at = epi_position_load(m->k->strips, &m->index, epi_walk_offset(&m->which, i), m->places);
    return at < 0 || m->each == m->outer ? at : at + i / m->each * m->places;
}

/* Do the elements of the walk lie side by side? */
static bool is_plain(const epi_walk *w) {
    return w->count == 0 || (w->count == 1 && w->stride[0] == 1);
}

static void run_items(move *m, int64_t rows, epi_parallel_body *body) {
    epi_parallel_for(m->k->spec.threads, epi_ceil_div(rows, m->rows) * m->stretches, body, m);
}

/* ---- gather and update ---- */

/* One walk along the axes is empty: gather goes through what it takes from, update through what it puts
 * something into. */
static void take_item(void *ctx, int64_t item, int thread) {
    (void)thread;
    const move *m = ctx;
    float tmp[STRETCH];
    int64_t first = item / m->stretches * m->rows, start = item % m->stretches * STRETCH;
    int64_t n = epi_min64(STRETCH, m->inner - start), last = epi_min64(m->outer, first + m->rows);
    size_t size = epi_dtype_size(m->to.type);
    bool plain = m->to.type == m->from.type && is_plain(&m->from_inner) && is_plain(&m->to_inner);
    for (int64_t i = first; i < last; i++) {
        int64_t at = index_at(m, i);
        int64_t to = epi_walk_offset(&m->to_outer, i), from = epi_walk_offset(&m->from_outer, i);
        if (at >= 0) { /* an axis that has no element has no place, either */
            to += epi_walk_offset(&m->to_along, at);
            from += epi_walk_offset(&m->from_along, at);
        }
        if (at < 0 && m->updates)
            continue;
        if (at >= 0 && plain) {
            memcpy(m->to.data + (to + start) * (int64_t)size, m->from.data + (from + start) * (int64_t)size,
                   (size_t)n * size);
            continue;
        }
        if (at < 0)
            memset(tmp, 0, (size_t)n * sizeof *tmp);
        else
            epi_walk_load(m->k->strips, tmp, &m->from, from, &m->from_inner, start, n);
        epi_walk_store(m->k->strips, &m->to, to, &m->to_inner, start, tmp, n);
    }
}

void epi_gather_run(const epi_cpu_kernel *k, int node, const epi_ref *refs, unsigned char *scratch) {
    (void)scratch;
    move m = make_move(k, node, refs);
    run_items(&m, m.outer, take_item);
}

/* A copy, unless the result takes its operand's place; then what is new of it. */
void epi_update_run(const epi_cpu_kernel *k, int node, const epi_ref *refs) {
    const epi_node *n = &k->spec.graph->nodes[node];
    if (refs[node].data != refs[n->arg[0]].data)
        epi_pass_copy(k, &refs[node], &refs[n->arg[0]], &n->axes);
    move m = make_move(k, node, refs);
    run_items(&m, m.outer, take_item);
}

void epi_shift_run(const epi_cpu_kernel *k, int node, const epi_ref *refs) {
    const epi_node *n = &k->spec.graph->nodes[node];
    const int64_t *sizes = k->spec.sizes;
    epi_axes inner = epi_axes_without(&n->axes, &n->over);
    move m = {.k = k, .from = refs[n->arg[0]], .to = refs[node], .counts = true, .by = epi_shift_by(n)};
    m.from_along = epi_ref_along(&m.from, &n->over, sizes);
    m.to_outer = epi_walk_axes(&m.to, &n->over, sizes);
    m.from_inner = epi_walk_axes(&m.from, &inner, sizes);
    m.to_inner = epi_walk_axes(&m.to, &inner, sizes);
    m.size = m.outer = epi_axes_size(&n->over, sizes);
    m.inner = epi_axes_size(&inner, sizes);
    divide(&m);
    run_items(&m, m.outer, take_item);
}

/* ---- scatter ---- */

int64_t epi_move_scratch(const epi_spec *spec, int node) {
    const epi_node *n = &spec->graph->nodes[node];
    int64_t numbers = 0;
    if (epi_op_scatters(n->op))
        numbers = epi_axes_size(&n->over, spec->sizes) + 1 +
                  epi_axes_size(&spec->graph->nodes[n->arg[1]].axes, spec->sizes);
    else if (epi_op_orders(n->op))
        numbers = epi_axis_size(n->over.at[0], spec->sizes) + 1;
    return numbers * (int64_t)sizeof(int64_t);
}

/* The elements of the index by the position they name, those of one position in their order. */
static void sort_index(move *m, int64_t *room) {
    int64_t *ends = room, *list = room + m->size + 1, sum = 0;
    memset(ends, 0, (size_t)(m->size + 1) * sizeof *ends);
    for (int64_t i = 0; i < m->outer; i++)
        ends[index_at(m, i) + 1]++; /* the first counts those that name none */
    ends[0] = 0;
    for (int64_t v = 0; v <= m->size; v++)
        ends[v] = sum += ends[v];
    for (int64_t i = 0; i < m->outer; i++) {
        int64_t at = index_at(m, i);
        if (at >= 0)
            list[ends[at]++] = i; /* where a position starts moves on to where it ends */
    }
    m->ends = ends;
    m->list = list;
}

/* Adds a running sum to one that keeps what rounding loses, and starts it again. */
static void add_run(const epi_strips *s, float *sum, float *lost, float *run, int64_t n, bool first) {
    if (first) {
        memset(sum, 0, (size_t)n * sizeof *sum);
        memset(lost, 0, (size_t)n * sizeof *lost);
    }
    s->combine(EPI_OP_SUM, sum, lost, run, NULL, n);
    memset(run, 0, (size_t)n * sizeof *run);
}

static void scatter_item(void *ctx, int64_t item, int thread) {
    const move *m = ctx;
    const epi_strips *s = m->k->strips;
    float *room = m->scratch + (int64_t)thread * 4 * STRETCH, *sum = room, *run = sum + STRETCH,
          *lost = run + STRETCH, *row = lost + STRETCH;
    int64_t first = item / m->stretches * m->rows, start = item % m->stretches * STRETCH;
    int64_t n = epi_min64(STRETCH, m->inner - start), last = epi_min64(m->size, first + m->rows);
    bool plain = m->from.type == EPI_F32 && is_plain(&m->from_inner);
    for (int64_t v = first; v < last; v++) {
        int64_t begin = v ? m->ends[v - 1] : 0, end = m->ends[v];
        bool many = end - begin > EPI_SUM_TERMS;
        memset(run, 0, (size_t)n * sizeof *run);
        for (int64_t i = begin; i < end; i++) {
            int64_t from = epi_walk_offset(&m->from_outer, m->list[i]);
            epi_view views[2] = {{run, 0, 1}, {row, 0, 1}};
            if (plain)
                views[1].p = (const float *)(const void *)m->from.data + from + start;
            else
                epi_walk_load(s, row, &m->from, from, &m->from_inner, start, n);
            s->map[EPI_OP_ADD](run, 0, views, 1, (int)n);
            if (many && ((i - begin) % EPI_SUM_TERMS == EPI_SUM_TERMS - 1 || i + 1 == end))
                add_run(s, sum, lost, run, n, i - begin < EPI_SUM_TERMS);
        }
        if (many)
            s->finish(EPI_OP_SUM, sum, lost, n, 1);
        epi_walk_store(s, &m->to, epi_walk_offset(&m->to_along, v), &m->to_inner, start, many ? sum : run, n);
    }
}

void epi_scatter_run(const epi_cpu_kernel *k, int node, const epi_ref *refs, unsigned char *scratch) {
    move m = make_move(k, node, refs);
    m.scratch = (float *)(void *)scratch;
    sort_index(&m, (int64_t *)(void *)(scratch + epi_pass_scratch(k->spec.threads)));
    run_items(&m, m.size, scatter_item);
}

/* ---- orders ---- */

/* Counts the elements of each value, and adds up how many come before; what names none comes behind all. Then
 * each element is where its value's next one belongs. */
void epi_order_run(const epi_cpu_kernel *k, int node, const epi_ref *refs, unsigned char *scratch) {
    const epi_node *n = &k->spec.graph->nodes[node];
    const int64_t *sizes = k->spec.sizes;
    bool offsets = n->op == EPI_OP_OFFSETS;
    epi_axes along = {1, {n->over.at[0]}},
             places = offsets ? refs[n->arg[0]].axes : epi_axes_without(&n->over, &along);
    move m = {.k = k, .index = refs[n->arg[0]], .size = epi_axis_size(along.at[0], sizes)};
    m.which = epi_walk_axes(&m.index, &places, sizes);
    m.places = m.size;
    m.each = m.outer = epi_axes_size(&places, sizes);
    epi_walk to = epi_walk_axes(&refs[node], offsets ? &along : &places, sizes);
    int64_t *next = (int64_t *)(void *)scratch, sum = 0;
    memset(next, 0, (size_t)(m.size + 1) * sizeof *next);
    for (int64_t i = 0; i < m.outer; i++) {
        int64_t at = index_at(&m, i);
        next[at < 0 ? m.size : at]++;
    }
    for (int64_t v = 0; v <= m.size; v++) {
        int64_t count = next[v];
        next[v] = sum;
        sum += count;
        if (offsets && v < m.size)
            epi_whole_store(k->strips, &refs[node], epi_walk_offset(&to, v), next[v]);
    }
    for (int64_t i = 0; i < m.outer && !offsets; i++) {
        int64_t at = index_at(&m, i), place = next[at < 0 ? m.size : at]++;
        bool rank = n->op == EPI_OP_RANK;
        epi_whole_store(k->strips, &refs[node], epi_walk_offset(&to, rank ? i : place), rank ? place : i);
    }
}

void epi_segments_run(const epi_cpu_kernel *k, int node, const epi_ref *refs) {
    const epi_node *n = &k->spec.graph->nodes[node];
    const int64_t *sizes = k->spec.sizes;
    epi_axes along = {1, {n->over.at[0]}}, places = epi_axes_without(&n->over, &along);
    move m = {.k = k, .index = refs[n->arg[0]], .size = epi_axes_size(&along, sizes)};
    m.which = epi_walk_axes(&m.index, &along, sizes);
    epi_walk to = epi_walk_axes(&refs[node], &places, sizes);
    for (int64_t i = 0, count = epi_axes_size(&places, sizes); i < count; i++)
        epi_whole_store(k->strips, &refs[node], epi_walk_offset(&to, i), segment_at(&m, i));
}

/* ---- the largest ---- */

enum { MOST_TAKEN = 64 };

/* The largest so far, in order. */
typedef struct largest {
    float value[MOST_TAKEN];
    int64_t at[MOST_TAKEN];
    int64_t count, most;
} largest;

static bool is_larger(float a, float b) {
    return a > b || (a != a && b == b); /* NaN is larger than all */
}

/* Elements come in the order of their positions: an equal one goes behind. */
static void take_element(largest *l, float value, int64_t at) {
    if (l->count == l->most && !is_larger(value, l->value[l->most - 1]))
        return;
    int64_t i = l->count < l->most ? l->count++ : l->most - 1;
    for (; i > 0 && is_larger(value, l->value[i - 1]); i--) {
        l->value[i] = l->value[i - 1];
        l->at[i] = l->at[i - 1];
    }
    l->value[i] = value;
    l->at[i] = at;
}

static void largest_item(void *ctx, int64_t row, int thread) {
    (void)thread;
    const move *m = ctx;
    largest l = {.most = m->inner};
    float tmp[STRETCH];
    epi_walk along = {.count = 1, .size = {m->size}, .stride = {m->from_along.stride[0]}};
    for (int64_t start = 0; start < m->size && l.most; start += STRETCH) {
        int64_t n = epi_min64(STRETCH, m->size - start);
        epi_walk_load(m->k->strips, tmp, &m->from, epi_walk_offset(&m->from_outer, row), &along, start, n);
        for (int64_t j = 0; j < n; j++)
            take_element(&l, tmp[j], start + j);
    }
    for (int64_t k = 0; k < l.most; k++)
        epi_whole_store(m->k->strips, &m->to,
                   epi_walk_offset(&m->to_outer, row) + epi_walk_offset(&m->to_inner, k), l.at[k]);
}

void epi_largest_run(const epi_cpu_kernel *k, int node, const epi_ref *refs) {
    const epi_node *n = &k->spec.graph->nodes[node];
    const int64_t *sizes = k->spec.sizes;
    epi_axes of = {1, {n->over.at[0]}}, own = {1, {n->over.at[1]}}, rows = epi_axes_without(&n->axes, &own);
    move m = {.k = k, .from = refs[n->arg[0]], .to = refs[node]};
    m.size = epi_axes_size(&of, sizes);
    m.inner = epi_axes_size(&own, sizes);
    m.from_along = (epi_walk){.stride = {epi_ref_stride(&m.from, of.at[0])}};
    m.to_inner = epi_walk_axes(&m.to, &own, sizes);
    m.from_outer = epi_walk_axes(&m.from, &rows, sizes);
    m.to_outer = epi_walk_axes(&m.to, &rows, sizes);
    epi_parallel_for(k->spec.threads, epi_axes_size(&rows, sizes), largest_item, &m);
}

/* ---- indices ---- */

/* Was an index that this is, along as many elements, looked through before? */
static bool is_known_index(const epi_spec *spec, int node) {
    const epi_graph *g = spec->graph;
    epi_axes along = epi_index_along(g, &g->nodes[node]);
    for (int i = 0; i < node; i++) {
        if (!epi_index_is_input(spec, i) || epi_index_of(g, &g->nodes[i]) != epi_index_of(g, &g->nodes[node]))
            continue;
        epi_axes other = epi_index_along(g, &g->nodes[i]);
        if (epi_axes_size(&other, spec->sizes) == epi_axes_size(&along, spec->sizes))
            return true;
    }
    return false;
}

epi_status epi_indices_check(const epi_spec *spec, const epi_tensor *tensors, epi_error *err) {
    const epi_graph *g = spec->graph;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        if (!epi_index_is_input(spec, i) || is_known_index(spec, i))
            continue;
        epi_axes along = epi_index_along(g, n);
        int t = epi_index_of(g, n)->tensor;
        epi_ref ref = epi_cpu_tensor(spec, t, &tensors[t]);
        epi_walk w = epi_walk_axes(&ref, &ref.axes, spec->sizes);
        int64_t size = epi_axes_size(&along, spec->sizes);
        for (int64_t at = 0, count = epi_axes_size(&ref.axes, spec->sizes); at < count; at++) {
            int64_t value = epi_integer_load(
                ref.data + epi_walk_offset(&w, at) * (int64_t)epi_dtype_size(ref.type), ref.type);
            if (value < 0 || value >= size)
                return epi_index_fail(spec, i, at, value, err);
        }
    }
    return EPI_OK;
}
