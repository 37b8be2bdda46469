/* equal.c: finds parts that are the same program up to names: one kernel serves them all.
 *
 * Two parts are the same if each output is computed by the same operations from the same inputs, that is
 * from inputs with the same types and axes. Names of axes may differ, but not sizes. Inputs and operations
 * may be in another order. */
#include <string.h>

#include "base/hash.h"
#include "ir/index.h"
#include "pass/place/cut.h"

/* ---- a hash that equal parts have in common ---- */

static void hash_axes(epi_hash *h, const epi_axes *axes, const int64_t *sizes) {
    epi_hash_word(h, (uint64_t)axes->count);
    for (int i = 0; i < axes->count; i++) {
        epi_hash_word(h, (uint64_t)sizes[axes->at[i].dim]);
        epi_hash_word(h, (uint64_t)axes->at[i].shift);
    }
}

uint64_t epi_part_hash(epi_arena *arena, const epi_part *part, const int64_t *sizes) {
    const epi_graph *g = &part->graph;
    uint64_t *of = epi_arena_alloc(arena, ((size_t)g->node_count + 1) * sizeof *of);
    epi_hash all = {(uint64_t)g->tensor_count, (uint64_t)g->input_count};
    for (int i = 0; i < g->node_count && of; i++) {
        const epi_node *n = &g->nodes[i];
        epi_hash h = {(uint64_t)n->op, (uint64_t)n->exact | (uint64_t)n->integer << 1};
        uint64_t value;
        memcpy(&value, &n->value, sizeof value);
        epi_hash_word(&h, n->op == EPI_OP_INPUT ? (uint64_t)part->types[n->tensor] : value);
        hash_axes(&h, &n->axes, sizes);
        hash_axes(&h, &n->over, sizes);
        for (int a = 0; a < 3; a++)
            epi_hash_word(&h, n->arg[a] == EPI_NO_NODE ? 0 : of[n->arg[a]]);
        of[i] = h.b;
    }
    for (int t = g->input_count; t < g->tensor_count && of; t++) {
        epi_hash_word(&all, of[g->tensors[t].node]);
        epi_hash_word(&all, (uint64_t)part->types[t]);
        hash_axes(&all, &g->tensors[t].axes, sizes);
    }
    return all.b;
}

const int64_t *epi_largest_sizes(const epi_spec *spec) {
    return spec->open ? spec->open->largest : spec->sizes;
}

/* ---- one by one ---- */

typedef struct matcher {
    const epi_part *a, *b;
    const int64_t *sizes;
    int dim[EPI_MAX_DIMS], dim_back[EPI_MAX_DIMS]; /* a's dims as b's, and b's as a's; -1: not met yet */
    int *node, *node_back;                         /* nodes likewise */
    int (*todo)[2];                                /* pairs of nodes to look at */
    int todo_count;
} matcher;

/* x stands for y from now on; false: one of them stands for something else. */
static bool pair_up(int *to, int *back, int x, int y) {
    if (to[x] != y && (to[x] >= 0 || back[y] >= 0))
        return false;
    to[x] = y;
    back[y] = x;
    return true;
}

static bool same_axes(matcher *m, const epi_axes *x, const epi_axes *y) {
    bool same = x->count == y->count;
    for (int i = 0; i < x->count && same; i++) {
        epi_axis p = x->at[i], q = y->at[i];
        same = p.shift == q.shift && m->sizes[p.dim] == m->sizes[q.dim] &&
               pair_up(m->dim, m->dim_back, p.dim, q.dim);
    }
    return same;
}

/* Slices of tensors of the same axes, wherever they begin, of so many axes. */
static bool same_slice(matcher *m, const epi_slice *x, const epi_slice *y, int count) {
    bool same = same_axes(m, &x->memory, &y->memory);
    for (int i = 0; i < count && x->memory.count && same; i++)
        same = x->along[i] == y->along[i] && x->step[i] == y->step[i];
    return same;
}

static bool same_tensor(matcher *m, int x, int y) {
    return m->a->types[x] == m->b->types[y] &&
           same_axes(m, &m->a->graph.tensors[x].axes, &m->b->graph.tensors[y].axes) &&
           same_slice(m, &m->a->slices[x], &m->b->slices[y], m->a->graph.tensors[x].axes.count);
}

/* A run names an index that is outside its axis: then names count. One that another part makes is not checked. */
static bool same_index(const matcher *m, const epi_node *x, const epi_node *y) {
    const epi_graph *a = &m->a->graph, *b = &m->b->graph;
    const epi_node *i = epi_index_of(a, x), *j = epi_index_of(b, y);
    if (i->op != EPI_OP_INPUT || j->op != EPI_OP_INPUT)
        return true;
    const epi_tensor_decl *from = &a->tensors[i->tensor], *as = &b->tensors[j->tensor];
    if (from->made || as->made)
        return from->made && as->made;
    bool same = !strcmp(from->name, as->name);
    for (int k = 0; k < x->over.count; k++)
        same &= !strcmp(a->dims[x->over.at[k].dim], b->dims[y->over.at[k].dim]);
    return same;
}

/* Are these the same, as far as one sees without their operands? */
static bool same_node(matcher *m, int x, int y) {
    const epi_node *p = &m->a->graph.nodes[x], *q = &m->b->graph.nodes[y];
    if (p->op != q->op || p->exact != q->exact || p->integer != q->integer ||
        memcmp(&p->value, &q->value, sizeof p->value) != 0 || !same_axes(m, &p->axes, &q->axes) ||
        !same_axes(m, &p->over, &q->over))
        return false;
    if (epi_op_index(p->op) >= 0 && !same_index(m, p, q))
        return false;
    return p->op != EPI_OP_INPUT || same_tensor(m, p->tensor, q->tensor);
}

static bool match_nodes(matcher *m) {
    while (m->todo_count) {
        int x = m->todo[--m->todo_count][0], y = m->todo[m->todo_count][1];
        bool known = m->node[x] == y;
        if (!pair_up(m->node, m->node_back, x, y) || (!known && !same_node(m, x, y)))
            return false;
        for (int i = 0; i < 3 && !known; i++) {
            int p = m->a->graph.nodes[x].arg[i], q = m->b->graph.nodes[y].arg[i];
            if ((p == EPI_NO_NODE) != (q == EPI_NO_NODE))
                return false;
            if (p != EPI_NO_NODE) {
                m->todo[m->todo_count][0] = p;
                m->todo[m->todo_count++][1] = q;
            }
        }
    }
    return true;
}

bool epi_parts_equal(epi_arena *arena, const epi_part *a, const epi_part *b, const int64_t *sizes, int *to) {
    const epi_graph *g = &a->graph;
    if (g->tensor_count != b->graph.tensor_count || g->input_count != b->graph.input_count ||
        g->node_count != b->graph.node_count)
        return false;
    size_t nodes = (size_t)g->node_count + 1;
    matcher m = {.a = a, .b = b, .sizes = sizes};
    m.node = epi_arena_alloc(arena, nodes * sizeof *m.node);
    m.node_back = epi_arena_alloc(arena, nodes * sizeof *m.node_back);
    m.todo = epi_arena_alloc(arena, (3 * nodes + (size_t)g->tensor_count) * sizeof *m.todo);
    if (!m.node || !m.node_back || !m.todo)
        return false;
    memset(m.dim, -1, sizeof m.dim);
    memset(m.dim_back, -1, sizeof m.dim_back);
    memset(m.node, -1, nodes * sizeof *m.node);
    memset(m.node_back, -1, nodes * sizeof *m.node_back);
    for (int t = g->input_count; t < g->tensor_count; t++) {
        if (!same_tensor(&m, t, t))
            return false;
        to[t] = t;
        m.todo[m.todo_count][0] = g->tensors[t].node;
        m.todo[m.todo_count++][1] = b->graph.tensors[t].node;
    }
    if (!match_nodes(&m))
        return false;
    for (int t = 0; t < g->input_count; t++) {
        int node = m.node[g->tensors[t].node];
        if (node < 0) /* an input that nothing reads */
            return false;
        to[t] = b->graph.nodes[node].tensor;
    }
    return true;
}
