/* overlap.c: ranges of memory, and tensors that lie in each other's gaps. */
#include "run/overlap.h"

/* Unsigned: a caller's strides may be anything. */
static uint64_t magnitude(int64_t x) {
    return x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
}

/* The bytes from the first to behind the last element, along the axes whose stride is below `limit`; 0 where
 * there is no element. *low is where they start. */
static uint64_t stretch(const epi_extent *e, uint64_t limit, uintptr_t *low) {
    uint64_t bytes = (uint64_t)e->size;
    *low = e->data;
    for (int i = 0; i < e->rank; i++) {
        uint64_t reach = ((uint64_t)e->counts[i] - 1) * magnitude(e->strides[i]);
        if (e->counts[i] == 0)
            return 0;
        if (e->strides[i] < 0)
            *low -= (uintptr_t)reach;
        bytes += magnitude(e->strides[i]) < limit ? reach : 0;
    }
    return bytes;
}

uint64_t epi_extent_stretch(const epi_extent *e, uintptr_t *low) {
    return stretch(e, UINT64_MAX, low);
}

/* Do all longer strides keep the place within a period? */
static bool is_periodic(const epi_extent *e, uint64_t period) {
    for (int i = 0; i < e->rank; i++)
        if (e->counts[i] > 1 && magnitude(e->strides[i]) >= period && magnitude(e->strides[i]) % period != 0)
            return false;
    return true;
}

/* Every element of a lies in one stretch of a period and every element of b in another. */
static bool in_gaps(const epi_extent *a, const epi_extent *b, uint64_t period) {
    uintptr_t low[2];
    uint64_t length[2] = {stretch(a, period, &low[0]), stretch(b, period, &low[1])};
    if (!is_periodic(a, period) || !is_periodic(b, period))
        return false;
    uint64_t apart =
        low[0] <= low[1] ? (low[1] - low[0]) % period : (period - (low[0] - low[1]) % period) % period;
    return length[0] <= apart && length[1] <= period - apart;
}

bool epi_extents_overlap(const epi_extent *a, const epi_extent *b) {
    uintptr_t low[2];
    uint64_t length[2] = {epi_extent_stretch(a, &low[0]), epi_extent_stretch(b, &low[1])};
    if (!length[0] || !length[1] || low[0] + length[0] <= low[1] || low[1] + length[1] <= low[0])
        return false;
    for (int i = 0; i < a->rank + b->rank; i++) {
        uint64_t stride = magnitude(i < a->rank ? a->strides[i] : b->strides[i - a->rank]);
        if (stride > 0 && in_gaps(a, b, stride))
            return false;
    }
    return true;
}

bool epi_extents_same(const epi_extent *a, const epi_extent *b) {
    bool same = a->data == b->data && a->size == b->size && a->rank == b->rank;
    for (int i = 0; i < a->rank && same; i++)
        same = a->counts[i] == b->counts[i] && (a->counts[i] < 2 || a->strides[i] == b->strides[i]);
    return same;
}
