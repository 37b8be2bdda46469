/* apart.c: checks that what a call writes to overlaps nothing else: outputs, inputs that values are stored
 * over, the workspace, and the prepared buffer.
 *
 * Tensors are visited in the order in which they begin, together with those that have not ended yet. So only
 * pairs that may overlap are compared, and only if the call writes to one of the two. */
#include <string.h>

#include "base/heap.h"
#include "run/overlap.h"
#include "run/run.h"

static epi_extent extent_of(const epi_kernel *kernel, int t, const epi_tensor *tensor) {
    const epi_axes *axes = &kernel->program->graph.tensors[t].axes;
    epi_extent e = {.data = (uintptr_t)tensor->data,
                    .size = (int64_t)epi_dtype_size(kernel->spec.types[t]),
                    .rank = axes->count};
    int64_t stride = 1;
    for (int i = axes->count - 1; i >= 0; i--) {
        e.counts[i] = epi_axis_size(axes->at[i], kernel->spec.sizes);
        e.strides[i] =
            (int64_t)((uint64_t)e.size * (uint64_t)(tensor->strides ? tensor->strides[i] : stride));
        stride *= epi_max64(1, e.counts[i]);
    }
    return e;
}

/* The bytes from the first to behind the last element, and where they begin. */
static uint64_t stretch_of(const epi_kernel *kernel, int t, const epi_tensor *tensor, uintptr_t *low) {
    *low = (uintptr_t)tensor->data;
    if (!tensor->data)
        return 0;
    if (!tensor->strides)
        return (uint64_t)kernel->counts[t] * epi_dtype_size(kernel->spec.types[t]);
    epi_extent e = extent_of(kernel, t, tensor);
    return epi_extent_stretch(&e, low);
}

/* ---- tensors in pairs ---- */

static epi_status check_output(const epi_kernel *kernel, const epi_tensor *tensors, int o, int t,
                               epi_error *err) {
    const epi_graph *g = &kernel->program->graph;
    epi_extent out = extent_of(kernel, o, &tensors[o]), other = extent_of(kernel, t, &tensors[t]);
    bool input = t < g->input_count, may = epi_kernel_in_place(kernel, o, t);
    if (may && epi_extents_same(&out, &other))
        return EPI_OK;
    return epi_fail(err, EPI_ERR_ARGUMENT, "the output '%s' overlaps the %s '%s'%s", g->tensors[o].name,
                    input ? "input" : "output", g->tensors[t].name,
                    may     ? ": it may be stored over it, but only with the same address and strides"
                    : input ? ": this kernel cannot store the one over the other"
                            : "");
}

/* Two tensors whose stretches meet, of which one is written to. */
static epi_status check_pair(const epi_lying *l, const epi_kernel *kernel, const epi_tensor *tensors, int a,
                             int b, epi_error *err) {
    const epi_graph *g = &kernel->program->graph;
    int first = a < b ? a : b, second = a < b ? b : a, spent = l->spent[first] ? first : second;
    epi_extent x = extent_of(kernel, a, &tensors[a]), y = extent_of(kernel, b, &tensors[b]);
    if (!epi_extents_overlap(&x, &y))
        return EPI_OK;
    if (second >= g->input_count)
        EPI_TRY(check_output(kernel, tensors, second, first, err));
    if (!l->spent[spent])
        return EPI_OK;
    return epi_fail(err, EPI_ERR_ARGUMENT, "the input '%s', which is spent, overlaps '%s'",
                    g->tensors[spent].name, g->tensors[first + second - spent].name);
}

static bool is_written(const epi_lying *l, const epi_kernel *kernel, int t) {
    return t >= kernel->program->graph.input_count || l->spent[t];
}

/* Holds a tensor against those at hand, and leaves out those that have ended before it begins. */
static epi_status check_at_hand(const epi_lying *l, const epi_kernel *kernel, const epi_tensor *tensors,
                                int t, int *at_hand, int *count, epi_error *err) {
    int kept = 0;
    for (int i = 0; i < *count; i++) {
        uintptr_t low,
            other = stretch_of(kernel, at_hand[i], &tensors[at_hand[i]], &low) + l->low[at_hand[i]];
        if (other <= l->low[t])
            continue;
        EPI_TRY(check_pair(l, kernel, tensors, t, at_hand[i], err));
        at_hand[kept++] = at_hand[i];
    }
    *count = kept;
    return EPI_OK;
}

static bool begins_behind(const void *ctx, int a, int b) {
    const epi_lying *l = ctx;
    return l->low[a] > l->low[b] || (l->low[a] == l->low[b] && a > b);
}

/* The tensors that have bytes, by where these begin; returns how many. */
static int sort(epi_lying *l, const epi_kernel *kernel, const epi_tensor *tensors) {
    int count = 0;
    for (int t = 0; t < kernel->program->graph.tensor_count; t++)
        if (stretch_of(kernel, t, &tensors[t], &l->low[t]))
            epi_heap_put(l->order, &count, t, begins_behind, l);
    for (int left = count; left;) {
        int last = epi_heap_take(l->order, &left, begins_behind, l);
        l->order[left] = last; /* which has become free */
    }
    return count;
}

epi_status epi_check_apart(epi_lying *l, const epi_kernel *kernel, const epi_tensor *tensors,
                           epi_error *err) {
    int read = 0, written = 0;
    memset(l->spent, 0, sizeof l->spent);
    for (int v = 0; v < kernel->cut.value_count; v++)
        if (kernel->cut.values[v].over)
            l->spent[kernel->cut.values[v].over - 1] = true;
    for (int i = 0, count = sort(l, kernel, tensors); i < count; i++) {
        int t = l->order[i];
        bool writes = is_written(l, kernel, t);
        EPI_TRY(check_at_hand(l, kernel, tensors, t, l->written, &written, err));
        EPI_TRY(writes ? check_at_hand(l, kernel, tensors, t, l->read, &read, err) : EPI_OK);
        if (writes)
            l->written[written++] = t;
        else
            l->read[read++] = t;
    }
    return EPI_OK;
}

/* ---- tensors and memory beside them ---- */

static bool meets(const epi_memory *m, uintptr_t low, uint64_t bytes) {
    uintptr_t from = (uintptr_t)m->data;
    return bytes && m->bytes && low < from + m->bytes && from < low + bytes;
}

bool epi_memory_meets(const epi_memory *a, const epi_memory *b) {
    return meets(a, (uintptr_t)b->data, b->bytes);
}

epi_status epi_check_beside(const epi_kernel *kernel, int t, const epi_tensor *tensor, const epi_memory *m,
                            epi_error *err) {
    const epi_graph *g = &kernel->program->graph;
    uintptr_t low;
    uint64_t bytes = stretch_of(kernel, t, tensor, &low);
    return !meets(m, low, bytes)
               ? EPI_OK
               : epi_fail(err, EPI_ERR_ARGUMENT,
                          "the %s '%s' overlaps %s, which takes %zu bytes: give it memory of its own",
                          t < g->input_count ? "input" : "output", g->tensors[t].name, m->name, m->bytes);
}
