/* once.c: a value that is compared with its own extreme is computed once, and all users see the same
 * numbers.
 *
 * v == max(v, X) holds somewhere only if both sides see exactly the same numbers. If v were computed twice,
 * by other instructions or in another order, or stored in 16 bits for one side only, the two would differ by
 * a rounding, and the equality would hold nowhere. So the extreme and the comparison read v from memory. A
 * node marks this (ONCE): the algebra does not look behind it, the cut stores its value, and no part
 * recomputes it. A value that is exact however often it is computed, and loses nothing when stored, does not
 * need this: an input of the storage type, and operations that select, compare, rename or change the sign of
 * such values. */
#include "pass/rewrite/once.h"

#include <math.h>

#include "pass/analyse/stored.h"

typedef struct search {
    const epi_graph *g;
    const epi_dtype *types; /* by tensor, or NULL: only what the text says is known */
    epi_dtype storage;
    bool *plain; /* by node: stored, it loses nothing */
    bool *exact; /* by node: the same bits whoever makes it */
    int *root;   /* by node: what it is but for exact operations; itself where it is more than that */
    int *of;     /* by node that is an extreme: the root of what it is taken of; else EPI_NO_NODE */
    bool *once;  /* by node: it is a root that is made once */
} search;

static bool is_extreme(const epi_node *n) {
    return n->op == EPI_OP_RMAX || n->op == EPI_OP_RMIN;
}

/* Has the input no other numbers than the storage type? */
static bool is_of_storage(const search *s, int tensor) {
    const epi_tensor_decl *t = &s->g->tensors[tensor];
    epi_dtype open = t->axes.count ? s->storage : EPI_F32;
    return (s->types ? s->types[tensor] : t->has_type ? t->type : open) == s->storage;
}

/* Is the operand one that the elements of the result are of? */
static bool gives_elements(const epi_node *n, int operand) {
    unsigned elements = epi_ops[n->op].elements;
    return !elements || elements >> operand & 1;
}

/* Are its elements those of one operand, and numbers that storing does not change? */
static bool is_one_of(const search *s, const epi_node *n, int operand) {
    bool one = !n->has_stored || n->stored == EPI_F32;
    for (int a = 0; a < epi_node_operands(n); a++)
        one &= n->arg[a] == operand || !gives_elements(n, a) ||
               (s->g->nodes[n->arg[a]].op == EPI_OP_CONST && s->plain[n->arg[a]]);
    return one;
}

/* Do all its elements stay what they are where it is stored? */
static bool is_plain(const search *s, const epi_node *n) {
    if (n->has_stored || s->storage == EPI_F32)
        return n->has_stored ? n->stored == EPI_F32 : true;
    if (n->op == EPI_OP_INPUT)
        return is_of_storage(s, n->tensor);
    if (n->op == EPI_OP_CONST || epi_ops[n->op].signs)
        return epi_is_few(n);
    if (epi_ops[n->op].along == EPI_WHOLE || epi_ops[n->op].converts)
        return false;
    for (int a = 0; a < epi_node_operands(n); a++)
        if (gives_elements(n, a) && !s->plain[n->arg[a]])
            return false;
    return true;
}

/* Which values are exact, and what the others are but for exact operations on one of them. */
static void find_roots(search *s) {
    for (int i = 0; i < s->g->node_count; i++) {
        const epi_node *n = &s->g->nodes[i];
        int vague = 0, from = EPI_NO_NODE;
        for (int a = 0; a < epi_node_operands(n); a++)
            if (!s->exact[n->arg[a]]) {
                vague += n->arg[a] != from;
                from = n->arg[a];
            }
        s->plain[i] = is_plain(s, n);
        bool there = epi_op_is_leaf(n->op) && (s->types || n->op != EPI_OP_INPUT);
        s->exact[i] = epi_ops[n->op].exact && !vague && (there || s->plain[i]);
        s->root[i] =
            epi_ops[n->op].exact && vague == 1 && !is_extreme(n) && is_one_of(s, n, from) ? s->root[from] : i;
        s->of[i] = is_extreme(n) && vague ? s->root[from] : EPI_NO_NODE;
    }
}

/* Is one of them an extreme, or an extreme of extremes, of the other? */
static bool is_extreme_of(const search *s, int extreme, int value) {
    for (int at = s->of[extreme]; at != EPI_NO_NODE; at = s->of[at])
        if (at == value)
            return true;
    return false;
}

/* What a comparison is of: the roots of its operands, and of what a difference or a choice among them is of.
 */
static int list_roots(const search *s, const epi_node *n, int *out) {
    int count = 0;
    for (int a = 0; a < 2; a++) {
        int root = s->root[n->arg[a]];
        const epi_node *r = &s->g->nodes[root];
        out[count++] = root;
        bool opens = r->op == EPI_OP_SUB || (epi_ops[r->op].exact && !is_extreme(r));
        for (int b = 0; b < epi_node_operands(r) && opens; b++)
            out[count++] = s->root[r->arg[b]];
    }
    return count;
}

/* Is it a comparison of a value with its own extreme? Then the value is made once. */
static bool note_comparison(search *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    int roots[8], count = epi_op_compares(n->op) && s->g->live[node] ? list_roots(s, n, roots) : 0;
    bool compares = false;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++)
            if (is_extreme_of(s, roots[i], roots[j]))
                compares = s->once[roots[j]] = true;
    return compares;
}

static bool search_all(epi_arena *arena, const epi_graph *g, const epi_spec *spec, search *s, bool *compares,
                       bool *any) {
    size_t nodes = (size_t)g->node_count + 1;
    *s = (search){.g = g,
                  .types = spec ? spec->types : NULL,
                  .storage = spec ? spec->type : EPI_DTYPE_COUNT,
                  .plain = epi_arena_alloc(arena, nodes),
                  .exact = epi_arena_alloc(arena, nodes),
                  .root = epi_arena_alloc(arena, nodes * sizeof *s->root),
                  .of = epi_arena_alloc(arena, nodes * sizeof *s->of),
                  .once = epi_arena_alloc(arena, nodes)};
    if (arena->failed)
        return false;
    find_roots(s);
    for (int i = 0; i < g->node_count; i++) {
        compares[i] = note_comparison(s, i);
        *any |= compares[i];
    }
    return true;
}

bool epi_once_find(epi_arena *arena, const epi_graph *g, bool *compares) {
    search s;
    bool any = false;
    return search_all(arena, g, NULL, &s, compares, &any);
}

void epi_once_store(epi_graph *g) {
    search s;
    bool *compares = epi_arena_alloc(g->arena, (size_t)g->node_count + 1), any = false;
    if (!compares || !search_all(g->arena, g, NULL, &s, compares, &any))
        return; /* the arena tells */
    for (int i = 0; i < g->node_count; i++)
        if (s.once[i] && g->nodes[i].op != EPI_OP_INPUT && !g->nodes[i].has_stored &&
            !epi_feeds_product(g, i)) {
            g->nodes[i].has_stored = true;
            g->nodes[i].stored = EPI_F32;
        }
    /* the extreme is one of the elements, which may be an input's: a narrower type is not enough */
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        for (int a = 0; a < 2 && epi_op_compares(n->op); a++) {
            epi_node *top = &g->nodes[n->arg[a]];
            if (top->has_stored && is_extreme(top) && (compares[i] || top->arg[0] == n->arg[1 - a]))
                top->stored = EPI_F32;
        }
    }
}

/* ---- the new graph ---- */

typedef struct writer {
    const search *s;
    const bool *compares; /* by node: it compares a value with its own extreme */
    int *compared;        /* by node: the value as those see it who ask how it compares; EPI_NO_NODE: alike */
    bool *behind;         /* by node: it is made of the extreme of a value that is made once */
} writer;

/* The node with its operands as those who ask see them. */
static int copy_compared(epi_rewrite *r, const epi_node *n) {
    const int *compared = ((writer *)r->ctx)->compared;
    int arg[3];
    for (int a = 0; a < 3; a++)
        arg[a] = n->arg[a] == EPI_NO_NODE             ? EPI_NO_NODE
                 : compared[n->arg[a]] == EPI_NO_NODE ? r->fresh[n->arg[a]]
                                                      : compared[n->arg[a]];
    return epi_graph_value(r->g, epi_graph_rebuild(r->g, n, arg));
}

/* Has the node an operand that those who ask see otherwise? */
static bool takes_asked(const writer *w, const epi_node *n) {
    for (int a = 0; a < epi_node_operands(n); a++)
        if (w->compared[n->arg[a]] != EPI_NO_NODE)
            return true;
    return false;
}

/* An extreme and a comparison see what is made once as it is in memory. So do maps that take both a value and
 * its extreme, as a softmax does beside an argmax: they come after it anyway. */
static int write_node(epi_rewrite *r, int node) {
    writer *w = r->ctx;
    const epi_node *n = &r->in->nodes[node];
    bool behind = epi_node_takes(n, w->behind), takes = takes_asked(w, n);
    bool sees = w->compares[node] || is_extreme(n) || (behind && epi_op_is_map(n->op));
    w->behind[node] = behind || (is_extreme(n) && takes);
    int value = sees ? copy_compared(r, n) : epi_graph_copy(r->g, n, r->fresh);
    if (w->s->once[node])
        w->compared[node] = epi_graph_once(r->g, value);
    else if (!sees && takes && (epi_ops[n->op].exact || n->op == EPI_OP_SUB))
        w->compared[node] = copy_compared(r, n);
    return value;
}

epi_status epi_once_write(epi_arena *arena, epi_spec *spec, epi_error *err) {
    const epi_graph *in = spec->graph;
    size_t nodes = (size_t)in->node_count + 1;
    search s;
    bool *compares = epi_arena_alloc(arena, nodes), any = false;
    if (!compares || !search_all(arena, in, spec, &s, compares, &any))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    if (!any)
        return EPI_OK;
    writer w = {.s = &s,
                .compares = compares,
                .compared = epi_arena_alloc(arena, nodes * sizeof *w.compared),
                .behind = epi_arena_alloc(arena, nodes)};
    EPI_TRY(epi_has_memory(!arena->failed, err));
    for (int i = 0; i < in->node_count; i++)
        w.compared[i] = EPI_NO_NODE;
    return epi_graph_rewrite(arena, &spec->graph, write_node, &w, err);
}
