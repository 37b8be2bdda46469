/* slabs.c: a cut that needs less memory, because some parts run on slabs of rows.
 *
 * A slab is some rows of one row axis. A loop is a run of parts that run on the first slab, then on the
 * second, and so on. Values between them take the workspace of one slab. Rows do not depend on each other,
 * so they are bitwise the same for every slab size. A sum over the axis, such as the gradient of a weight,
 * is added up in f32 slab after slab, and values computed from it come after the loop.
 *
 * A part that needs such a sum cannot be in the loop that computes it, so there may be several loops. A
 * later loop recomputes large values of an earlier one; only vectors are stored whole. */
#include "pass/schedule/slabs.h"

#include <stdio.h>
#include <string.h>

#include "pass/place/extract.h"
#include "pass/place/split.h"

/* ---- the parts, once more ---- */

/* A part that is being written: some of another one. */
typedef struct writing {
    epi_slab_maker *m;
    const epi_part *from;
    epi_part *to;
    epi_extract x;
    bool whole; /* it sees all rows */
} writing;

/* In a loop the size of the axis is that of all slabs, and a mean over it is a sum until they are added up.
 */
static int write_node(epi_extract *x, const epi_node *n) {
    const writing *w = x->context;
    if (!w->whole && n->op == EPI_OP_SIZE && n->over.at[0].dim == w->m->dim)
        return epi_graph_const(x->to, (double)epi_axis_size(n->over.at[0], w->m->spec->sizes));
    if (!w->whole && n->op == EPI_OP_MEAN && epi_slabs_is_sum(w->m, n))
        return epi_graph_reduce(x->to, EPI_OP_SUM, x->fresh[n->arg[0]], &n->over);
    return EPI_NO_NODE;
}

static bool begin(writing *w, epi_slab_maker *m, const epi_part *from) {
    const epi_graph *g = &from->graph;
    size_t tensors = (size_t)g->tensor_count + (size_t)g->node_count + 3;
    *w = (writing){.m = m, .from = from, .to = &m->to->parts[m->to->part_count]};
    w->x = (epi_extract){.write = write_node, .context = w, .names = true};
    *w->to = (epi_part){.graph = {.arena = m->arena}, .loop = -1};
    w->to->tensors = epi_arena_alloc(m->arena, tensors * sizeof *w->to->tensors);
    w->to->slices = epi_arena_alloc(m->arena, tensors * sizeof *w->to->slices);
    w->to->types = epi_arena_alloc(m->arena, tensors * sizeof *w->to->types);
    return epi_extract_begin(&w->x, g, &w->to->graph, (int)tensors);
}

/* Marks what the needed nodes are made of; what is made of nodes with `stop` set comes from memory. */
static void need_operands(writing *w, const int *stop) {
    for (int i = w->from->graph.node_count - 1; i >= 0; i--)
        for (int a = 0;
             a < epi_node_operands(&w->from->graph.nodes[i]) && w->x.needed[i] && (!stop || stop[i] < 0); a++)
            w->x.needed[w->from->graph.nodes[i].arg[a]] = true;
}

/* Says where the part's next tensor lies, and gives it a name that no other one has. */
static epi_tensor_decl place_tensor(writing *w, const epi_tensor_decl *decl, epi_part_tensor at,
                                    epi_dtype type) {
    int t = w->to->graph.tensor_count;
    epi_tensor_decl own = *decl;
    own.name = epi_free_name(w->m->arena, decl->name, epi_graph_has_tensor, &w->to->graph);
    w->to->tensors[t] = at;
    w->to->types[t] = type;
    return own;
}

/* Adds an input that stands for this node of the old part, or for none. */
static int add_input(writing *w, const epi_tensor_decl *decl, epi_part_tensor at, epi_dtype type, int node) {
    epi_tensor_decl own = place_tensor(w, decl, at, type);
    return epi_extract_input(&w->x, &own, node);
}

static void add_output(writing *w, const epi_tensor_decl *decl, epi_part_tensor at, epi_dtype type,
                       int value) {
    epi_tensor_decl own = place_tensor(w, decl, at, type);
    epi_extract_output(&w->x, &own, value);
}

/* A value of the new cut. */
static int add_value(epi_slab_maker *m, const epi_axes *axes, epi_dtype type, int node, bool slab) {
    int64_t sizes[EPI_MAX_DIMS];
    memcpy(sizes, m->spec->sizes, sizeof sizes);
    if (slab)
        sizes[m->dim] = m->to->slab_rows;
    m->to->values[m->to->value_count] = (epi_cut_value){
        .node = node,
        .axes = *axes,
        .type = type,
        .slab = slab,
        .bytes = epi_round_up(epi_axes_size(axes, sizes) * (int64_t)epi_dtype_size(type), 256)};
    return m->to->value_count++;
}

/* Where a tensor of the old cut is in the new one. */
static epi_part_tensor place_of(const epi_slab_maker *m, epi_part_tensor at) {
    if (at.tensor >= 0)
        return at;
    return (epi_part_tensor){-1, m->recomputed[at.value] >= 0 ? m->recomputed[at.value] : m->value[at.value]};
}

static void add_inputs(writing *w) {
    const epi_part *p = w->from;
    for (int t = 0; t < p->graph.input_count; t++) {
        int node = p->graph.tensors[t].node;
        if (!w->x.needed[node])
            continue;
        w->to->slices[w->to->graph.tensor_count] = p->slices[t];
        add_input(w, &p->graph.tensors[t], place_of(w->m, p->tensors[t]), p->types[t], node);
    }
}

/* Adds the needed nodes but those with `stop` set, which are there. */
static void add_nodes(writing *w, const int *stop) {
    for (int i = 0; i < w->from->graph.node_count; i++)
        if (w->x.needed[i] && w->from->graph.nodes[i].op != EPI_OP_INPUT && (!stop || stop[i] < 0))
            epi_extract_node(&w->x, i);
}

static epi_status end(writing *w, bool in_loop, epi_error *err) {
    epi_graph_finish(&w->to->graph);
    w->to->loop = in_loop ? w->m->to->loop_count : -1;
    w->m->to->part_count++;
    return epi_graph_status(&w->to->graph, err);
}

/* ---- sums over slabs ---- */

/* The output that a sum is, as it is: it is added up there. -1: none. */
static int output_of(const epi_part *p, int node, bool f32) {
    for (int t = p->graph.input_count; t < p->graph.tensor_count; t++)
        if (p->graph.tensors[t].node == node &&
            (!f32 || (p->types[t] == EPI_F32 && p->tensors[t].tensor >= 0)))
            return t;
    return -1;
}

/* How a sum lies where it is added up: as the output that it is, if it is one. */
static epi_tensor_decl sum_decl(const epi_slab_maker *m, const epi_part *p, int node) {
    const epi_node *n = &p->graph.nodes[node];
    int t = output_of(p, node, false);
    const char *name = t >= 0 ? p->graph.tensors[t].name : n->name;
    char text[80];
    snprintf(text, sizeof text, "%.60s_sum", name ? name : "v");
    name = epi_arena_text(m->arena, text, strlen(text));
    return (epi_tensor_decl){.name = name ? name : "",
                             .has_type = true,
                             .type = EPI_F32,
                             .axes = t >= 0 ? p->graph.tensors[t].axes : n->axes,
                             .place = n->place};
}

/* Gives a sum a place where it is added up. */
static epi_part_tensor place_sum(epi_slab_maker *m, const epi_part *p, int node,
                                 const epi_tensor_decl *decl) {
    int home = p->graph.nodes[node].op == EPI_OP_MEAN ? -1 : output_of(p, node, true);
    epi_part_tensor at = {-1, -1};
    if (home >= 0)
        at = p->tensors[home];
    else
        at.value = add_value(m, &decl->axes, EPI_F32, EPI_NO_NODE, false);
    m->to->sums[m->to->sum_count++] = (epi_cut_sum){at, decl->axes, m->to->loop_count};
    return at;
}

/* sum + the sum of a slab, where another part has stored that. */
static epi_status write_addition(epi_slab_maker *m, const epi_part *p, const epi_tensor_decl *decl,
                                 epi_part_tensor sum, epi_part_tensor slab, epi_error *err) {
    writing w;
    if (!begin(&w, m, p))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    int a = add_input(&w, decl, sum, EPI_F32, EPI_NO_NODE),
        b = add_input(&w, decl, slab, EPI_F32, EPI_NO_NODE);
    int both = epi_graph_map2(&w.to->graph, EPI_OP_ADD, a, b);
    add_output(&w, decl, sum, EPI_F32, both);
    return end(&w, true, err);
}

/* An output that the part's loop does not store: nobody in it needs it. */
static bool is_dropped(const epi_slab_maker *m, const epi_part *p, int t, int loop) {
    epi_part_tensor at = p->tensors[t];
    return at.tensor < 0 && m->slab[at.value] && !epi_slabs_wanted_in(m, at.value, loop);
}

/* Stores a value of the part as its output t, at a place of its own in the new cut, which number[] gets. */
static void store(writing *w, int t, bool slab, int *number) {
    const epi_tensor_decl *decl = &w->from->graph.tensors[t];
    epi_part_tensor to = w->from->tensors[t];
    if (to.tensor < 0) {
        const epi_cut_value *v = &w->m->from->values[to.value];
        to.value = number[to.value] = add_value(w->m, &decl->axes, v->type, v->node, slab);
    }
    add_output(w, decl, to, w->from->types[t], w->x.fresh[decl->node]);
}

/* A sum over slabs that a part makes. */
typedef struct slab_sum {
    int node;
    epi_tensor_decl decl;
    epi_part_tensor
        separate; /* where the sum of a slab is stored: where all of it is added up, or by itself */
    int before;   /* in the part that is written: the sum of the slabs before, or EPI_NO_NODE */
} slab_sum;

/* What a part of a loop does for one slab. `at` is by node: the place where a sum is added up. */
static epi_status write_slab(epi_slab_maker *m, int part, int loop, epi_part_tensor *at, epi_error *err) {
    const epi_part *p = &m->from->parts[part];
    const epi_graph *g = &p->graph;
    const bool *summed = m->summed[part];
    writing w;
    slab_sum *sums = epi_arena_alloc(m->arena, ((size_t)g->node_count + 1) * sizeof *sums);
    int kept = 0, count = 0;
    if (!sums || !begin(&w, m, p))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (!summed[g->tensors[t].node] && !is_dropped(m, p, t, loop)) {
            w.x.needed[g->tensors[t].node] = true;
            kept++;
        }
    for (int i = 0; i < g->node_count; i++)
        if (g->live[i] && epi_slabs_is_sum(m, &g->nodes[i])) {
            w.x.needed[i] = true;
            sums[count++] = (slab_sum){.node = i, .decl = sum_decl(m, p, i), .before = EPI_NO_NODE};
        }
    if (!kept && !count)
        return EPI_OK;
    need_operands(&w, NULL);
    add_inputs(&w);
    for (slab_sum *s = sums; s < sums + count; s++) {
        s->separate = at[s->node] = place_sum(m, p, s->node, &s->decl);
        if (g->nodes[s->node].op == EPI_OP_MATMUL && !m->separate_sums)
            s->before = add_input(&w, &s->decl, at[s->node], EPI_F32, EPI_NO_NODE);
    }
    add_nodes(&w, NULL);
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (!summed[g->tensors[t].node] && !is_dropped(m, p, t, loop))
            store(&w, t, p->tensors[t].tensor < 0 && m->slab[p->tensors[t].value], m->value);
    for (slab_sum *s = sums; s < sums + count; s++) {
        int node = w.x.fresh[s->node];
        if (s->before != EPI_NO_NODE)
            node = epi_graph_map2(&w.to->graph, EPI_OP_ADD, s->before, node);
        else
            s->separate = (epi_part_tensor){-1, add_value(m, &s->decl.axes, EPI_F32, EPI_NO_NODE, true)};
        add_output(&w, &s->decl, s->separate, EPI_F32, node);
    }
    epi_status status = end(&w, true, err);
    for (const slab_sum *s = sums; s < sums + count && status == EPI_OK; s++)
        if (s->before == EPI_NO_NODE)
            status = write_addition(m, p, &s->decl, at[s->node], s->separate, err);
    return status;
}

/* Is the tensor of the program where the sum is added up? */
static bool is_home(const epi_part_tensor *at, const int *stop, int node, epi_part_tensor to) {
    return stop[node] >= 0 && to.tensor >= 0 && epi_slabs_same_place(at[node], to);
}

/* After a loop: what is made of the sums of one of its parts. */
static epi_status write_end(epi_slab_maker *m, int part, const epi_part_tensor *at, epi_error *err) {
    const epi_part *p = &m->from->parts[part];
    const epi_graph *g = &p->graph;
    writing w;
    int *stop = epi_arena_alloc(m->arena, ((size_t)g->node_count + 1) * sizeof *stop), wanted = 0;
    if (!stop || !begin(&w, m, p))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int i = 0; i < g->node_count; i++)
        stop[i] = g->live[i] && epi_slabs_is_sum(m, &g->nodes[i]) ? i : -1;
    for (int t = g->input_count; t < g->tensor_count; t++) {
        int node = g->tensors[t].node;
        if (!m->summed[part][node] || is_home(at, stop, node, p->tensors[t]))
            continue; /* it is no sum, or is added up where it belongs */
        w.x.needed[node] = true;
        wanted++;
    }
    if (!wanted)
        return EPI_OK;
    need_operands(&w, stop);
    add_inputs(&w);
    for (int i = 0; i < g->node_count; i++) {
        if (!w.x.needed[i] || stop[i] < 0)
            continue;
        epi_tensor_decl decl = sum_decl(m, p, i);
        add_input(&w, &decl, at[i], EPI_F32, i);
    }
    for (int i = 0; i < g->node_count; i++) { /* nodes may follow now */
        const epi_node *n = &g->nodes[i];
        if (w.x.needed[i] && stop[i] >= 0 && n->op == EPI_OP_MEAN) {
            int count = epi_graph_const(&w.to->graph, (double)epi_axes_size(&n->over, m->spec->sizes));
            w.x.fresh[i] = epi_graph_map2(&w.to->graph, EPI_OP_DIV, w.x.fresh[i], count);
        }
    }
    add_nodes(&w, stop);
    for (int t = g->input_count; t < g->tensor_count; t++) {
        int node = g->tensors[t].node;
        if (m->summed[part][node] && w.x.needed[node] && !is_home(at, stop, node, p->tensors[t]))
            store(&w, t, false, m->value);
    }
    return end(&w, false, err);
}

/* ---- loops ---- */

/* Marks the values that parts of the loop load, that go by slabs and were made before it: they are made
 * again, and so is what those are made of. Parts come behind what they load. */
static void mark_recomputed(const epi_slab_maker *m, int loop, bool *marked) {
    int part = loop;
    while (part + 1 < m->from->part_count && m->loop[part + 1] == loop)
        part++;
    for (; part >= 0; part--) {
        const epi_part *p = &m->from->parts[part];
        bool needed = m->loop[part] == loop;
        for (int t = p->graph.input_count; t < p->graph.tensor_count; t++)
            needed |= p->tensors[t].tensor < 0 && marked[p->tensors[t].value];
        for (int t = 0; t < p->graph.input_count && needed; t++) {
            epi_part_tensor at = p->tensors[t];
            if (at.tensor < 0 && m->slab[at.value] && m->loop[m->from->values[at.value].part] != loop)
                marked[at.value] = true;
        }
    }
}

/* A part with some of its outputs: outside loops without those that go by slabs, which whoever needs them
 * makes again; in a loop with those that are to be recomputed. */
static epi_status write_some(epi_slab_maker *m, int part, const bool *recomputes, epi_error *err) {
    const epi_part *p = &m->from->parts[part];
    const epi_graph *g = &p->graph;
    writing w;
    int *number = recomputes ? m->recomputed : m->value, wanted = 0;
    bool *stored = epi_arena_alloc(m->arena, (size_t)g->tensor_count + 1);
    if (!stored || !begin(&w, m, p))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    w.whole = !recomputes;
    for (int t = g->input_count; t < g->tensor_count; t++) {
        int value = p->tensors[t].tensor < 0 ? p->tensors[t].value : -1;
        stored[t] = recomputes ? value >= 0 && recomputes[value] : value < 0 || !m->slab[value];
        w.x.needed[g->tensors[t].node] |= stored[t];
        wanted += stored[t];
    }
    if (!wanted)
        return EPI_OK;
    need_operands(&w, NULL);
    add_inputs(&w);
    add_nodes(&w, NULL);
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (stored[t])
            store(&w, t, recomputes != NULL, number);
    return end(&w, recomputes != NULL, err);
}

/* At the begin of a loop: parts that make values of earlier loops again. */
static epi_status write_recomputed(epi_slab_maker *m, int loop, epi_error *err) {
    int values = m->from->value_count;
    bool *marked = epi_arena_alloc(m->arena, (size_t)values + 1);
    EPI_TRY(epi_has_memory(marked, err));
    for (int v = 0; v < values; v++)
        m->recomputed[v] = -1;
    mark_recomputed(m, loop, marked);
    epi_status status = EPI_OK;
    for (int q = 0; q < loop && status == EPI_OK; q++)
        status = write_some(m, q, marked, err);
    return status;
}

static epi_status write_loop(epi_slab_maker *m, int loop, int *past, epi_error *err) {
    int first = m->to->part_count;
    epi_status status = write_recomputed(m, loop, err);
    epi_part_tensor **at =
        epi_arena_alloc(m->arena, ((size_t)m->from->part_count + 1) * sizeof(epi_part_tensor *));
    EPI_TRY(epi_has_memory(at, err));
    for (*past = loop; *past < m->from->part_count && m->loop[*past] == loop && status == EPI_OK; ++*past) {
        size_t nodes = (size_t)m->from->parts[*past].graph.node_count + 1;
        at[*past] = epi_arena_alloc(m->arena, nodes * sizeof **at);
        status = at[*past] ? write_slab(m, *past, loop, at[*past], err)
                           : epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    }
    m->to->loops[m->to->loop_count++] = (epi_loop){first, m->to->part_count - 1};
    for (int v = 0; v < m->from->value_count; v++)
        m->recomputed[v] = -1;
    for (int q = loop; q < *past && status == EPI_OK; q++)
        status = write_end(m, q, at[q], err);
    return status;
}

static bool allocate(epi_slab_maker *m) {
    size_t parts = (size_t)m->from->part_count, values = (size_t)m->from->value_count;
    m->can = epi_arena_alloc(m->arena, parts + 1);
    m->loop = epi_arena_alloc(m->arena, (parts + 1) * sizeof *m->loop);
    m->summed = epi_arena_alloc(m->arena, (parts + 1) * sizeof(bool *));
    m->slab = epi_arena_alloc(m->arena, values + 1);
    m->value = epi_arena_alloc(m->arena, (values + 1) * sizeof *m->value);
    m->recomputed = epi_arena_alloc(m->arena, (values + 1) * sizeof *m->recomputed);
    for (size_t v = 0; v < values && !m->arena->failed; v++)
        m->value[v] = m->recomputed[v] = -1;
    return !m->arena->failed;
}

/* Once the loops are known: each makes a part again once at most, a sum may have an addition, and a part an
 * end. */
static bool allocate_parts(epi_slab_maker *m) {
    size_t parts = (size_t)m->from->part_count, values = (size_t)m->from->value_count, loops = 0, sums = 0;
    for (int q = 0; q < m->from->part_count; q++) {
        loops += m->loop[q] == q;
        for (int i = 0; m->loop[q] >= 0 && i < m->from->parts[q].graph.node_count; i++)
            sums += epi_slabs_is_sum(m, &m->from->parts[q].graph.nodes[i]);
    }
    m->to->parts = epi_arena_alloc(m->arena, (parts * (loops + 2) + sums) * sizeof *m->to->parts);
    m->to->values = epi_arena_alloc(m->arena, (values * (loops + 1) + 2 * sums + 1) * sizeof *m->to->values);
    m->to->sums = epi_arena_alloc(m->arena, (sums + 1) * sizeof *m->to->sums);
    m->to->loops = epi_arena_alloc(m->arena, loops * sizeof *m->to->loops);
    return !m->arena->failed;
}

epi_status epi_cut_slabs(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                         const epi_cut *from, const epi_slab_plan *plan, epi_cut *out, epi_error *err) {
    epi_slab_maker m = {.arena = arena,
                        .spec = spec,
                        .from = from,
                        .to = out,
                        .dim = plan->dim,
                        .separate_sums = plan->separate_sums};
    *out = (epi_cut){.slab_dim = plan->dim, .slab_rows = plan->rows};
    if (!allocate(&m))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    if (!epi_slabs_find(&m, plan->grain, plan->aligned))
        return epi_has_memory(!arena->failed, err);
    epi_status status = allocate_parts(&m) ? EPI_OK : epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int q = 0; q < from->part_count && status == EPI_OK;) {
        if (m.loop[q] >= 0)
            status = write_loop(&m, q, &q, err);
        else
            status = write_some(&m, q++, NULL, err);
    }
    if (status == EPI_OK)
        status = epi_cut_split(arena, spec, limits, out, err);
    if (status != EPI_OK)
        return status;
    epi_cut_lives(out);
    return epi_cut_lay_out(arena, out, err);
}
