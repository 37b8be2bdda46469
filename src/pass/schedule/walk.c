/* walk.c: walks over tensors, and the columns of a tile. */
#include "pass/schedule/walk.h"

void epi_ref_contiguous(epi_ref *ref, const int64_t *sizes) {
    int64_t step = 1;
    for (int i = ref->axes.count - 1; i >= 0; i--) {
        ref->strides[i] = step;
        step *= epi_max64(1, epi_axis_size(ref->axes.at[i], sizes));
    }
}

epi_ref epi_ref_of_axes(const epi_axes *axes, const int64_t *sizes) {
    epi_ref ref = {.axes = *axes};
    epi_ref_contiguous(&ref, sizes);
    return ref;
}

int64_t epi_ref_stride(const epi_ref *ref, epi_axis axis) {
    int at = epi_axes_find(&ref->axes, axis);
    return at < 0 ? 0 : ref->strides[at];
}

int64_t epi_ref_drop(epi_ref *ref, epi_axis axis) {
    int at = epi_axes_find(&ref->axes, axis);
    if (at < 0)
        return 0;
    int64_t step = ref->strides[at];
    epi_axes_remove(&ref->axes, at);
    for (int i = at; i < ref->axes.count; i++)
        ref->strides[i] = ref->strides[i + 1];
    return step;
}

int64_t epi_ref_lay_out(epi_ref *ref, const epi_slice *slice, const int64_t *strides, const int64_t *sizes) {
    if (!slice || !slice->memory.count) {
        epi_ref_contiguous(ref, sizes);
        return 0;
    }
    epi_ref memory = epi_ref_of_axes(&slice->memory, sizes);
    const int64_t *stride = strides ? strides : memory.strides;
    int64_t begin = 0;
    for (int i = 0; i < slice->memory.count; i++)
        begin += slice->begin[i] * stride[i];
    for (int i = 0; i < ref->axes.count; i++)
        ref->strides[i] = slice->step[i] * stride[slice->along[i]];
    return begin;
}

void epi_walk_add(epi_walk *w, int64_t size, int64_t step) {
    if (size == 1)
        return;
    if (w->count && w->stride[w->count - 1] == size * step) {
        w->size[w->count - 1] *= size;
        w->stride[w->count - 1] = step;
        return;
    }
    w->size[w->count] = size;
    w->stride[w->count++] = step;
}

epi_walk epi_walk_axes(const epi_ref *ref, const epi_axes *axes, const int64_t *sizes) {
    epi_walk w = {0};
    for (int i = 0; i < axes->count; i++)
        epi_walk_add(&w, epi_axis_size(axes->at[i], sizes), epi_ref_stride(ref, axes->at[i]));
    return w;
}

epi_walk epi_ref_along(epi_ref *ref, const epi_axes *along, const int64_t *sizes) {
    epi_walk w = epi_walk_axes(ref, along, sizes);
    for (int i = 0; i < along->count; i++)
        epi_ref_drop(ref, along->at[i]);
    return w;
}

int64_t epi_walk_offset(const epi_walk *w, int64_t index) {
    int64_t offset = 0;
    for (int d = w->count - 1; d > 0; d--) {
        offset += index % w->size[d] * w->stride[d];
        index /= w->size[d];
    }
    return w->count ? offset + index * w->stride[0] : 0;
}

/* ---- columns ---- */

epi_columns epi_columns_of(const epi_plan *plan, const epi_ref *ref, const int64_t *sizes, epi_scale scale) {
    epi_columns c = {0};
    if (scale == EPI_SCALE_NONE)
        return c;
    epi_axis coarse = {plan->fine.dim, (int16_t)(plan->fine.shift - 1)};
    for (int i = 0; i < plan->cols.count; i++) {
        epi_axis a = plan->cols.at[i];
        if (plan->split == EPI_OP_COUNT || a.dim != plan->fine.dim) {
            epi_walk_add(&c.walk, epi_axis_size(a, sizes), epi_ref_stride(ref, a));
            continue;
        }
        int64_t size = epi_axis_size(coarse, sizes), step = epi_ref_stride(ref, coarse);
        int64_t fine = epi_ref_stride(ref, plan->fine);
        if (scale == EPI_SCALE_FINE) {
            bool pairs = plan->split == EPI_OP_EVEN;
            step = pairs ? 2 * fine : fine;
            c.part = pairs ? fine : size * fine;
            c.two = true;
        }
        epi_walk_add(&c.walk, size, step);
    }
    if (c.two) { /* merge the part where it runs on from the fastest digit */
        epi_walk merged = c.walk;
        epi_walk_add(&merged, 2, c.part);
        if (merged.count <= epi_max64(1, c.walk.count)) {
            c.walk = merged;
            c.two = false;
        }
    }
    return c;
}

int64_t epi_columns_offset(const epi_columns *c, int64_t column) {
    if (!c->two)
        return epi_walk_offset(&c->walk, column);
    return epi_walk_offset(&c->walk, column / 2) + column % 2 * c->part;
}

/* ---- parts ---- */

int64_t epi_ref_half(epi_ref *whole, const epi_node *n, int part, const int64_t *sizes) {
    epi_axis fine = n->over.at[0], coarse = {fine.dim, (int16_t)(fine.shift - 1)};
    bool pairs = epi_ops[n->op].pairs;
    int at = epi_axes_find(&whole->axes, fine);
    int64_t step = whole->strides[at];
    whole->axes.at[at] = coarse;
    whole->strides[at] = pairs ? 2 * step : step;
    return part * (pairs ? step : epi_axis_size(coarse, sizes) * step);
}
