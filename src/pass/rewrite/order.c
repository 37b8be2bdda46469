/* order.c: reorders the nodes of a graph so that nodes that wait for nothing come first: elementwise
 * operations and sums before products, and of the products those that most others wait for. The cut makes
 * parts in the order of nodes. So a statistic is complete before the product whose epilogue reads it, and
 * weight gradients come last. */
#include <string.h>

#include "base/heap.h"
#include "pass/rewrite/algebra.h"

int *epi_list_needed(epi_arena *arena, const epi_graph *in, int count, epi_needs *needs, const void *ctx,
                     int *listed) {
    int needed[EPI_MOST_NEEDED], room = in->node_count + 1; /* for each as often as something needs it */
    for (int i = 0; i < in->node_count; i++)
        room += needs(ctx, i, needed);
    int *list = epi_arena_alloc(arena, ((size_t)in->node_count + 1) * sizeof *list);
    int *todo = epi_arena_alloc(arena, (size_t)room * sizeof *todo);
    bool *done = epi_arena_alloc(arena, (size_t)in->node_count + 1);
    *listed = 0;
    for (int i = 0, top = 0; i < count && !arena->failed; i++) {
        if (in->live[i] || in->nodes[i].op == EPI_OP_INPUT)
            todo[top++] = i;
        while (top) {
            int node = todo[top - 1], before = top, k = done[node] ? 0 : needs(ctx, node, needed);
            if (top + k > room)
                return NULL; /* in a circle they would never end */
            for (; k > 0; k--)
                if (!done[needed[k - 1]])
                    todo[top++] = needed[k - 1];
            if (top > before)
                continue;
            if (!done[node])
                list[(*listed)++] = node;
            done[node] = true;
            top--;
        }
    }
    return arena->failed ? NULL : list;
}

typedef struct ordering {
    const epi_graph *in;
    int *height;  /* by node: products on the longest way from it to an output */
    int *missing; /* by node: operands that are not there yet */
    int *heap, count;
} ordering;

/* Does a come before b? */
static bool before(const void *ctx, int a, int b) {
    const ordering *o = ctx;
    bool product[2] = {epi_op_is_product(o->in->nodes[a].op), epi_op_is_product(o->in->nodes[b].op)};
    if (product[0] != product[1])
        return product[1];
    if (product[0] && o->height[a] != o->height[b])
        return o->height[a] > o->height[b];
    return a < b;
}

static void find_heights(ordering *o, int count) {
    const epi_graph *in = o->in;
    for (int i = count - 1; i >= 0; i--)
        for (int a = 0; a < 3 && in->live[i]; a++) {
            int arg = in->nodes[i].arg[a], height = o->height[i] + epi_op_is_product(in->nodes[i].op);
            if (arg == EPI_NO_NODE)
                continue;
            o->missing[i]++;
            o->height[arg] = height > o->height[arg] ? height : o->height[arg];
        }
}

/* A tensor's name is its own: another value that had it loses it. */
static bool has_name_of_tensor(const epi_graph *in, int node) {
    const char *name = in->nodes[node].name;
    bool taken = false;
    for (int t = 0; t < in->tensor_count && name; t++) {
        if (in->tensors[t].node == node)
            return false;
        taken |= !strcmp(in->tensors[t].name, name);
    }
    return taken;
}

void epi_order(const epi_graph *in, int count, epi_graph *out) {
    epi_arena *arena = out->arena;
    size_t nodes = (size_t)count + 1;
    ordering o = {.in = in};
    o.height = epi_arena_alloc(arena, nodes * sizeof *o.height);
    o.missing = epi_arena_alloc(arena, nodes * sizeof *o.missing);
    o.heap = epi_arena_alloc(arena, nodes * sizeof *o.heap);
    int *copy = epi_arena_alloc(arena, nodes * sizeof *copy);
    if (!epi_graph_begin(out, in))
        return;
    find_heights(&o, count);
    for (int t = 0; t < in->input_count; t++) /* inputs are the first nodes, used or not */
        copy[in->tensors[t].node] = epi_graph_input(out, t);
    for (int i = 0; i < count; i++)
        if (in->live[i] && !o.missing[i])
            epi_heap_put(o.heap, &o.count, i, before, &o);
    while (o.count && !epi_graph_failed(out)) {
        int node = epi_heap_take(o.heap, &o.count, before, &o);
        copy[node] = epi_graph_copy(out, &in->nodes[node], copy);
        if (has_name_of_tensor(in, node) && copy[node] != EPI_NO_NODE)
            out->nodes[copy[node]].name = NULL;
        epi_use_list uses = epi_graph_uses(in, node);
        for (int u = 0; u < uses.count; u++)
            if (uses.at[u].node != EPI_NO_NODE && --o.missing[uses.at[u].node] == 0)
                epi_heap_put(o.heap, &o.count, uses.at[u].node, before, &o);
    }
    epi_graph_end(out, in, copy);
}
