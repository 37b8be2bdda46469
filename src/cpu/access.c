/* access.c: walks over tensors, and the columns of a tile. */
#include "cpu/access.h"

void epi_ref_contiguous(epi_ref *ref, const int64_t *sizes) {
    int64_t step = 1;
    for (int i = ref->axes.count - 1; i >= 0; i--) {
        ref->strides[i] = step;
        step *= epi_max64(1, epi_axis_size(ref->axes.at[i], sizes));
    }
}

int64_t epi_ref_step(const epi_ref *ref, epi_axis axis) {
    int at = epi_axes_find(&ref->axes, axis);
    return at < 0 ? 0 : ref->strides[at];
}

void epi_walk_add(epi_walk *w, int64_t size, int64_t step) {
    if (size == 1)
        return;
    if (w->count && w->step[w->count - 1] == size * step) {
        w->size[w->count - 1] *= size;
        w->step[w->count - 1] = step;
        return;
    }
    w->size[w->count] = size;
    w->step[w->count++] = step;
}

epi_walk epi_walk_axes(const epi_ref *ref, const epi_axes *axes, const int64_t *sizes) {
    epi_walk w = {0};
    for (int i = 0; i < axes->count; i++)
        epi_walk_add(&w, epi_axis_size(axes->at[i], sizes), epi_ref_step(ref, axes->at[i]));
    return w;
}

int64_t epi_walk_offset(const epi_walk *w, int64_t index) {
    int64_t offset = 0;
    for (int d = w->count - 1; d > 0; d--) {
        offset += index % w->size[d] * w->step[d];
        index /= w->size[d];
    }
    return w->count ? offset + index * w->step[0] : 0;
}

/* The elements left in the fastest digit's run that `start` lies in. */
static int64_t run_left(const epi_walk *w, int64_t start, int64_t n) {
    return w->count <= 1 ? n : epi_min64(n, w->size[w->count - 1] - start % w->size[w->count - 1]);
}

void epi_walk_load(const epi_strips *s, float *dst, const epi_ref *ref, int64_t base, const epi_walk *w,
                   int64_t start, int64_t n) {
    size_t bytes = epi_dtype_size(ref->type);
    int64_t step = w->count ? w->step[w->count - 1] : 0;
    while (n > 0) {
        int64_t run = run_left(w, start, n);
        const unsigned char *p = ref->data + (base + epi_walk_offset(w, start)) * (int64_t)bytes;
        if (step == 0) {
            float x;
            s->load(&x, p, ref->type, 1, 1);
            for (int64_t i = 0; i < run; i++)
                dst[i] = x;
        } else {
            s->load(dst, p, ref->type, step, run);
        }
        dst += run;
        start += run;
        n -= run;
    }
}

void epi_walk_store(const epi_strips *s, const epi_ref *ref, int64_t base, const epi_walk *w, int64_t start,
                    const float *src, int64_t n) {
    size_t bytes = epi_dtype_size(ref->type);
    int64_t step = w->count ? w->step[w->count - 1] : 0;
    while (n > 0) {
        int64_t run = run_left(w, start, n);
        unsigned char *p = ref->data + (base + epi_walk_offset(w, start)) * (int64_t)bytes;
        if (step == 0) /* the columns of a local reduction repeat one result: the last one stands */
            s->store(p, ref->type, 1, src + run - 1, 1);
        else
            s->store(p, ref->type, step, src, run);
        src += run;
        start += run;
        n -= run;
    }
}

/* ---- columns ---- */

epi_columns epi_columns_of(const epi_plan *plan, const epi_ref *ref, const int64_t *sizes, epi_scale scale) {
    epi_columns c = {0};
    if (scale == EPI_SCALE_NONE)
        return c;
    epi_axis coarse = {plan->fine.dim, (int16_t)(plan->fine.shift - 1)};
    for (int i = 0; i < plan->cols.count; i++) {
        epi_axis a = plan->cols.at[i];
        if (plan->part == EPI_OP_COUNT || a.dim != plan->fine.dim) {
            epi_walk_add(&c.walk, epi_axis_size(a, sizes), epi_ref_step(ref, a));
            continue;
        }
        int64_t size = epi_axis_size(coarse, sizes), step = epi_ref_step(ref, coarse);
        int64_t fine = epi_ref_step(ref, plan->fine);
        if (scale == EPI_SCALE_FINE) {
            bool pairs = plan->part == EPI_OP_EVEN;
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

/* Fine columns whose parts lie apart start and end at whole pairs: tiles are even. */
void epi_columns_load(const epi_strips *s, float *dst, const epi_ref *ref, int64_t base, const epi_columns *c,
                      int64_t start, int64_t n, float *tmp) {
    if (!c->two) {
        epi_walk_load(s, dst, ref, base, &c->walk, start, n);
        return;
    }
    int half = (int)(n / 2);
    epi_walk_load(s, tmp, ref, base, &c->walk, start / 2, half);
    epi_walk_load(s, tmp + half, ref, base + c->part, &c->walk, start / 2, half);
    s->interleave(dst, 0, (epi_view){tmp, 0, 1}, (epi_view){tmp + half, 0, 1}, 1, half);
}

void epi_columns_store(const epi_strips *s, const epi_ref *ref, int64_t base, const epi_columns *c,
                       int64_t start, const float *src, int64_t n, float *tmp) {
    if (!c->two) {
        epi_walk_store(s, ref, base, &c->walk, start, src, n);
        return;
    }
    int half = (int)(n / 2);
    for (int part = 0; part < 2; part++) {
        s->deinterleave(tmp, 0, (epi_view){src, 0, 1}, part, 1, half);
        epi_walk_store(s, ref, base + part * c->part, &c->walk, start / 2, tmp, half);
    }
}
