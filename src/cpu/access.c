/* access.c: loads and stores the strips of a walk. */
#include "cpu/access.h"

#include <math.h>
#include <string.h>

/* The elements left in the fastest digit's run that `start` lies in. */
static int64_t run_left(const epi_walk *w, int64_t start, int64_t n) {
    return w->count <= 1 ? n : epi_min64(n, w->size[w->count - 1] - start % w->size[w->count - 1]);
}

void epi_walk_load(const epi_strips *s, float *dst, const epi_ref *ref, int64_t base, const epi_walk *w,
                   int64_t start, int64_t n) {
    size_t bytes = epi_dtype_size(ref->type);
    int64_t stride = w->count ? w->stride[w->count - 1] : 0;
    while (n > 0) {
        int64_t run = run_left(w, start, n);
        const unsigned char *p = ref->data + (base + epi_walk_offset(w, start)) * (int64_t)bytes;
        if (stride == 0) {
            float x;
            s->load(&x, p, ref->type, 1, 1);
            for (int64_t i = 0; i < run; i++)
                dst[i] = x;
        } else {
            s->load(dst, p, ref->type, stride, run);
        }
        dst += run;
        start += run;
        n -= run;
    }
}

void epi_walk_store(const epi_strips *s, const epi_ref *ref, int64_t base, const epi_walk *w, int64_t start,
                    const float *src, int64_t n) {
    size_t bytes = epi_dtype_size(ref->type);
    int64_t stride = w->count ? w->stride[w->count - 1] : 0;
    while (n > 0) {
        int64_t run = run_left(w, start, n);
        unsigned char *p = ref->data + (base + epi_walk_offset(w, start)) * (int64_t)bytes;
        if (stride == 0) /* the columns of a local reduction repeat one result: the last one stands */
            s->store(p, ref->type, 1, src + run - 1, 1);
        else
            s->store(p, ref->type, stride, src, run);
        src += run;
        start += run;
        n -= run;
    }
}

/* ---- columns ---- */

/* Fine columns whose splits lie apart start and end at whole pairs: tiles are even. */
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
    for (int split = 0; split < 2; split++) {
        s->deinterleave(tmp, 0, (epi_view){src, 0, 1}, split, 1, half);
        epi_walk_store(s, ref, base + split * c->part, &c->walk, start / 2, tmp, half);
    }
}

/* ---- numbers of elements, and seeds ---- */

int64_t epi_position(double index, int64_t size) {
    int64_t at = index >= -0.5 && index < 0x1p62 ? (int64_t)nearbyint(index) : -1;
    return at < size ? at : -1;
}

int64_t epi_integer_load(const unsigned char *p, epi_dtype type) {
    int32_t word;
    int64_t wide;
    if (type == EPI_I64)
        return memcpy(&wide, p, sizeof wide), wide;
    return memcpy(&word, p, sizeof word), word;
}

int64_t epi_position_load(const epi_strips *s, const epi_ref *index, int64_t offset, int64_t size) {
    const unsigned char *p = index->data + offset * (int64_t)epi_dtype_size(index->type);
    if (epi_dtype_is_integer(index->type)) {
        int64_t at = epi_integer_load(p, index->type);
        return at >= 0 && at < size ? at : -1;
    }
    float x;
    s->load(&x, p, index->type, 1, 1);
    return epi_position((double)x, size);
}

int32_t epi_seed_load(const epi_strips *s, const epi_ref *ref) {
    int32_t seed;
    float x;
    if (epi_dtype_is_integer(ref->type))
        return (int32_t)(uint32_t)epi_integer_load(ref->data, ref->type);
    s->load(&x, ref->data, ref->type, 1, 1);
    s->store(&seed, EPI_I32, 1, &x, 1);
    return seed;
}
