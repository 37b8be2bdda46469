/* heap.h: a heap of numbers, with the first in order on top. */
#ifndef EPI_BASE_HEAP_H
#define EPI_BASE_HEAP_H

#include <stdbool.h>

typedef bool epi_before(const void *ctx, int a, int b);

static inline void epi_heap_put(int *heap, int *count, int value, epi_before *before, const void *ctx) {
    int at = (*count)++;
    for (; at && before(ctx, value, heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = value;
}

static inline int epi_heap_take(int *heap, int *count, epi_before *before, const void *ctx) {
    int top = heap[0], last = heap[--*count], at = 0;
    for (int next; (next = 2 * at + 1) < *count; at = next) {
        next += next + 1 < *count && before(ctx, heap[next + 1], heap[next]);
        if (!before(ctx, heap[next], last))
            break;
        heap[at] = heap[next];
    }
    heap[at] = last;
    return top;
}

#endif
