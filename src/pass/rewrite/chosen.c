/* chosen.c: reads matrices that batches choose in place.
 *
 * In sum(x*gather(w, i, E), D) with x[B,T,D] and i[B] the index chooses a matrix for each batch of the
 * product, such as the one of its task or adapter. Such a gather is marked: the mainloop reads a batch's
 * matrix where the index says, and makes no copy. If each row chooses for itself, slots.c sorts the rows. */
#include "pass/rewrite/chosen.h"

#include "ir/index.h"
#include "pass/analyse/attention.h"

typedef struct marker {
    const epi_spec *spec, *written;
    bool *kept; /* by node: a product of attention takes it */
} marker;

/* Is this table an input of the type that a copy of what is chosen from it would have? */
static bool is_table(const epi_spec *spec, int node) {
    const epi_node *n = &spec->graph->nodes[node];
    return n->op == EPI_OP_INPUT && spec->types[n->tensor] == spec->type && epi_dtype_is_operand(spec->type);
}

/* Do its matrices lie such that a mainloop takes them as well as copies? Their elements are neighbours along some axis;
 * and of the depth's axes, as of the others, none lie on both sides of the one that counts the matrices. */
static bool lies_well(const epi_axes *table, epi_axis matrices, const epi_axes *depth) {
    int at = epi_axes_find(table, matrices);
    bool well = at < table->count - 1;
    for (int i = 0; i < at; i++)
        for (int j = at + 1; j < table->count; j++)
            well &= (epi_axes_find(depth, table->at[i]) >= 0) != (epi_axes_find(depth, table->at[j]) >= 0);
    return well;
}

/* Can this product read the gather through its index? Its other operand has all axes of the index, and keeps them. */
static bool may_read(const marker *m, int product, int gather) {
    const epi_graph *g = m->spec->graph;
    const epi_node *p = &g->nodes[product], *n = &g->nodes[gather];
    if (p->op != EPI_OP_MATMUL || p->scaled || (p->arg[0] == gather) == (p->arg[1] == gather))
        return false;
    const epi_node *other = &g->nodes[p->arg[p->arg[0] == gather]];
    epi_axes rest = epi_axes_without(&g->nodes[n->arg[0]].axes, &n->over);
    rest = epi_axes_without(&rest, &p->over);
    return lies_well(&g->nodes[n->arg[0]].axes, n->over.at[0], &p->over) && !other->on_load &&
           other->op != EPI_OP_GATHER && !epi_axes_meet(&rest, &other->axes) &&
           epi_axes_include(&other->axes, &g->nodes[n->arg[1]].axes) &&
           !epi_axes_meet(&p->over, &g->nodes[n->arg[1]].axes);
}

/* Is the index looked through ahead of a run? Of one that was computed, as in e + 0, the algebra may have left an input,
 * whose numbers may be any. */
static bool is_inside(const marker *m, int node) {
    const epi_graph *g = m->spec->graph, *written = m->written->graph;
    const epi_node *index = &g->nodes[g->nodes[node].arg[1]];
    bool inside = false;
    for (int i = 0; i < written->node_count && index->op == EPI_OP_INPUT && !inside; i++) {
        if (!epi_index_is_input(m->written, i) ||
            epi_index_of(written, &written->nodes[i])->tensor != index->tensor)
            continue;
        epi_axes along = epi_index_along(written, &written->nodes[i]);
        inside = along.count == 1 && epi_axis_equal(along.at[0], g->nodes[node].over.at[0]);
    }
    return inside;
}

static bool is_chosen(const marker *m, int node) {
    const epi_graph *g = m->spec->graph;
    const epi_node *n = &g->nodes[node];
    if (!g->live[node] || n->op != EPI_OP_GATHER || n->has_stored || n->over.count != 1 || m->kept[node] ||
        !is_inside(m, node) || epi_axes_meet(&g->nodes[n->arg[0]].axes, &g->nodes[n->arg[1]].axes) ||
        !is_table(m->spec, n->arg[0]))
        return false;
    epi_use_list uses = epi_graph_uses(g, node);
    bool read = uses.count > 0;
    for (int i = 0; i < uses.count && read; i++)
        read = uses.at[i].node != EPI_NO_NODE && may_read(m, uses.at[i].node, node);
    return read;
}

static int write_marked(epi_rewrite *r, int node) {
    if (!is_chosen(r->ctx, node))
        return EPI_NO_NODE;
    int fresh = epi_graph_copy(r->g, &r->in->nodes[node], r->fresh);
    if (fresh != EPI_NO_NODE)
        r->g->nodes[fresh].on_load = true;
    return fresh;
}

epi_status epi_chosen_mark(epi_arena *arena, epi_spec *spec, const epi_graph *written,
                           const epi_backend_limits *limits, epi_error *err) {
    const epi_graph *g = spec->graph;
    epi_spec before = *spec, as_written = *spec;
    as_written.graph = written;
    marker m = {&before, &as_written, epi_arena_alloc(arena, (size_t)g->node_count + 1)};
    bool any = false;
    EPI_TRY(epi_has_memory(m.kept, err));
    for (int i = 0; i < g->node_count && !any; i++)
        any = is_chosen(&m, i);
    if (!any)
        return EPI_OK;
    EPI_TRY(epi_has_memory(epi_attentions_mark_operands(arena, spec, limits, m.kept), err));
    return epi_graph_rewrite(arena, &spec->graph, write_marked, &m, err);
}
