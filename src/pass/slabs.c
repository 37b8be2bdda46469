/* slabs.c: a cut that needs less memory, because some parts go through the rows slab by slab.
 *
 * A slab is some rows of one row axis. A loop is a run of parts that are carried out for the first slab, then
 * for the second, and so on; what goes from one of them to another is in the workspace for a slab at a time.
 * Rows do not know of each other, so their bits are the same whatever the slab. A sum over the axis, as the
 * gradient of a weight is, is added up in f32 slab after slab, and what is made of it comes after the loop.
 *
 * A part that needs such a sum cannot be in the loop that makes it, so there may be several loops. A long
 * value that an earlier loop has is made again in the later one: only vectors are kept whole. */
#include <stdio.h>
#include <string.h>

#include "pass/cut.h"

typedef struct maker {
    epi_arena *arena;
    const epi_spec *spec;
    const epi_cut *from;
    epi_cut *to;
    int dim;
    bool sums_apart; /* sums are added up by parts of their own */
    bool *can;       /* by part of `from`: it may be in a loop */
    int *loop;       /* likewise: the first part of its loop, or -1 */
    bool **late;     /* likewise, by node: a sum over the axis, or made of one */
    bool *slab;      /* by value of `from`: no more than a slab of it is stored */
    int *value;      /* likewise: its number in `to`, or -1 */
    int *again;      /* likewise, in the loop that is being written: of what is made again in it, or -1 */
} maker;

/* ---- what can go slab by slab ---- */

static bool has_dim(const epi_axes *axes, int dim) {
    return epi_axes_find_dim(axes, dim) >= 0;
}

static bool is_sum(const maker *m, const epi_node *n) {
    return (n->op == EPI_OP_SUM || n->op == EPI_OP_MEAN || n->op == EPI_OP_MATMUL) &&
           has_dim(&n->over, m->dim);
}

/* Does the operation give rows from rows of the same number alone, or sum over all of them? */
static bool node_can(const maker *m, const epi_part *p, const epi_node *n) {
    const epi_graph *g = &p->graph;
    for (int l = 0; l < 2; l++) {
        const epi_axes *axes = l ? &n->over : &n->axes;
        for (int i = 0; i < axes->count; i++)
            if (axes->at[i].dim == m->dim && axes->at[i].shift)
                return false;
    }
    if (epi_ops[n->op].cls == EPI_CLASS_RANDOM && has_dim(&n->axes, m->dim))
        return false; /* it is drawn by its place */
    if (has_dim(&n->over, m->dim) && !is_sum(m, n) && n->op != EPI_OP_SIZE)
        return false;
    for (int a = 0; a < 3; a++)
        if (n->arg[a] != EPI_NO_NODE && has_dim(&g->nodes[n->arg[a]].axes, m->dim) &&
            !has_dim(&n->axes, m->dim) && !is_sum(m, n))
            return false;                       /* scatter */
    if (epi_ops[n->op].cls == EPI_CLASS_MOVE) { /* an index outside its axis is told by its place */
        const epi_node *index = &g->nodes[n->arg[1]];
        return index->op != EPI_OP_INPUT || !has_dim(&index->axes, m->dim);
    }
    return true;
}

/* How a tensor of a part lies in memory. */
static const epi_axes *memory_of(const epi_part *p, int t) {
    return p->slices[t].memory.count ? &p->slices[t].memory : &p->graph.tensors[t].axes;
}

static const epi_axes *axes_of(const maker *m, epi_part_tensor at) {
    const epi_graph *g = m->spec->graph;
    return at.tensor >= 0 ? &g->tensors[at.tensor].axes : &g->nodes[m->from->values[at.value].node].axes;
}

/* Do the tensor's slabs lie one after the other, and each begin where a tensor may? */
static bool tensor_can(const maker *m, const epi_part *p, int t, int64_t grain, int aligned) {
    const epi_axes *axes = memory_of(p, t);
    int at = epi_axes_find_dim(axes, m->dim);
    if ((at >= 0) != has_dim(axes_of(m, p->tensors[t]), m->dim))
        return false; /* under another name */
    int64_t inner = grain * (int64_t)epi_dtype_size(p->types[t]);
    for (int i = 0; i < axes->count && at >= 0; i++) {
        int64_t size = epi_axis_size(axes->at[i], m->spec->sizes);
        if (i < at && size != 1)
            return false;
        inner *= i > at ? size : 1;
    }
    return at < 0 || inner % aligned == 0;
}

static bool part_can(const maker *m, const epi_part *p, bool *late, int64_t grain, int aligned) {
    const epi_graph *g = &p->graph;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        if (!node_can(m, p, n))
            return false;
        late[i] = is_sum(m, n);
        for (int a = 0; a < 3 && !late[i]; a++)
            late[i] = n->arg[a] != EPI_NO_NODE && late[n->arg[a]];
        if (late[i] && has_dim(&n->axes, m->dim))
            return false; /* the sum must be complete first */
        for (int a = 0; a < 3; a++)
            if (is_sum(m, n) && n->arg[a] != EPI_NO_NODE && late[n->arg[a]])
                return false;
    }
    for (int t = 0; t < g->tensor_count; t++)
        if (!tensor_can(m, p, t, grain, aligned))
            return false;
    return true;
}

static bool same_place(epi_part_tensor a, epi_part_tensor b) {
    return a.tensor >= 0 ? a.tensor == b.tensor : b.tensor < 0 && a.value == b.value;
}

/* Does the part read a sum that parts from `first` on make? */
static bool reads_sum(const maker *m, int part, int first) {
    const epi_part *p = &m->from->parts[part];
    for (int q = first; q < part; q++) {
        const epi_part *other = &m->from->parts[q];
        for (int t = other->graph.input_count; t < other->graph.tensor_count; t++)
            for (int u = 0; u < p->graph.input_count && m->late[q][other->graph.tensors[t].node]; u++)
                if (same_place(other->tensors[t], p->tensors[u]))
                    return true;
    }
    return false;
}

static bool reads(const epi_part *p, int value) {
    for (int t = 0; t < p->graph.input_count; t++)
        if (p->tensors[t].tensor < 0 && p->tensors[t].value == value)
            return true;
    return false;
}

/* Is the value in memory for a slab at a time? Where it is long, and everyone who needs it is in a loop. */
static bool goes_by_slabs(const maker *m, int value) {
    const epi_cut_value *v = &m->from->values[value];
    const epi_axes *axes = &m->spec->graph->nodes[v->node].axes;
    bool is_long = false;
    for (int i = 0; i < axes->count; i++)
        is_long |= !m->spec->is_row[axes->at[i].dim];
    if (!is_long || !has_dim(axes, m->dim) || !m->can[v->part])
        return false;
    for (int q = 0; q < m->from->part_count; q++)
        if (m->loop[q] < 0 && reads(&m->from->parts[q], value))
            return false;
    return true;
}

/* Does a part of this loop load the value? */
static bool wanted_in(const maker *m, int value, int loop) {
    for (int q = 0; q < m->from->part_count; q++)
        if (m->loop[q] == loop && reads(&m->from->parts[q], value))
            return true;
    return false;
}

/* Is a value that goes by slabs stored or loaded by it? */
static bool needs_loop(const maker *m, int part) {
    for (int v = 0; v < m->from->value_count; v++)
        if (m->slab[v] && (reads(&m->from->parts[part], v) ||
                           (m->from->values[v].part == part && wanted_in(m, v, m->loop[part]))))
            return true;
    return false;
}

/* Finds the loops: the longest runs of parts, less what needs none at both of their ends. */
static bool find_loops(maker *m, int64_t grain, int aligned) {
    int count = m->from->part_count;
    bool any = false;
    for (int q = 0, first = 0; q < count; q++) {
        const epi_part *p = &m->from->parts[q];
        m->late[q] = epi_arena_alloc(m->arena, (size_t)p->graph.node_count + 1);
        if (!m->late[q])
            return false;
        m->can[q] = part_can(m, p, m->late[q], grain, aligned);
        m->loop[q] = -1;
        if (!m->can[q])
            continue;
        if (!q || m->loop[q - 1] < 0 || reads_sum(m, q, first))
            first = q;
        m->loop[q] = first;
    }
    for (int v = 0; v < m->from->value_count; v++)
        m->slab[v] = goes_by_slabs(m, v);
    for (int q = 0; q < count;) {
        int first = m->loop[q], from = q, to = q, past = q + 1;
        while (first >= 0 && past < count && m->loop[past] == first)
            past++;
        for (from = q; from < past && (first < 0 || !needs_loop(m, from)); from++)
            ;
        for (to = past; to > from && !needs_loop(m, to - 1); to--)
            ;
        for (int i = q; i < past; i++)
            m->loop[i] = i >= from && i < to ? from : -1;
        any |= from < to;
        q = past;
    }
    return any;
}

/* ---- the parts, once more ---- */

/* A part that is being written: some of another one. */
typedef struct writing {
    maker *m;
    const epi_part *from;
    epi_part *to;
    bool *needed; /* by node of `from` */
    int *fresh;   /* likewise: its number in `to` */
} writing;

static bool begin(writing *w, maker *m, const epi_part *from) {
    const epi_graph *g = &from->graph;
    size_t tensors = (size_t)g->tensor_count + (size_t)g->node_count + 3;
    *w = (writing){.m = m, .from = from, .to = &m->to->parts[m->to->part_count]};
    w->needed = epi_arena_alloc(m->arena, (size_t)g->node_count + 1);
    w->fresh = epi_arena_alloc(m->arena, ((size_t)g->node_count + 1) * sizeof *w->fresh);
    *w->to = (epi_part){.graph = {.arena = m->arena}, .loop = -1};
    epi_graph_take_dims(&w->to->graph, g);
    w->to->tensors = epi_arena_alloc(m->arena, tensors * sizeof *w->to->tensors);
    w->to->slices = epi_arena_alloc(m->arena, tensors * sizeof *w->to->slices);
    w->to->types = epi_arena_alloc(m->arena, tensors * sizeof *w->to->types);
    w->to->graph.tensors = epi_arena_alloc(m->arena, tensors * sizeof *w->to->graph.tensors);
    return !m->arena->failed;
}

/* Marks what the needed nodes are made of; what is made of nodes with `stop` set comes from memory. */
static void need_operands(writing *w, const int *stop) {
    for (int i = w->from->graph.node_count - 1; i >= 0; i--)
        for (int a = 0; a < 3 && w->needed[i] && (!stop || stop[i] < 0); a++)
            if (w->from->graph.nodes[i].arg[a] != EPI_NO_NODE)
                w->needed[w->from->graph.nodes[i].arg[a]] = true;
}

/* A name that no tensor of the part has. */
static const char *free_name(writing *w, const char *name) {
    char text[80];
    for (int t = 0, tried = 2; t < w->to->graph.tensor_count; t++)
        if (!strcmp(w->to->graph.tensors[t].name, name)) {
            snprintf(text, sizeof text, "%.60s_%d", name, tried++);
            name = epi_arena_text(w->m->arena, text, strlen(text));
            if (!name)
                return "";
            t = -1;
        }
    return name;
}

static int add_tensor(writing *w, const epi_tensor_decl *decl, epi_part_tensor at, epi_dtype type) {
    const char *name = free_name(w, decl->name);
    int t = w->to->graph.tensor_count++;
    w->to->graph.tensors[t] = *decl;
    w->to->graph.tensors[t].name = name;
    w->to->tensors[t] = at;
    w->to->types[t] = type;
    return t;
}

static int add_input(writing *w, const epi_tensor_decl *decl, epi_part_tensor at, epi_dtype type) {
    int t = add_tensor(w, decl, at, type);
    w->to->graph.tensors[t].is_output = false;
    w->to->graph.input_count++;
    return w->to->graph.tensors[t].node = epi_graph_input(&w->to->graph, t);
}

static void add_output(writing *w, const epi_tensor_decl *decl, epi_part_tensor at, epi_dtype type,
                       int node) {
    int t = add_tensor(w, decl, at, type);
    epi_node *n = node >= 0 ? &w->to->graph.nodes[node] : NULL;
    w->to->graph.tensors[t].is_output = true;
    w->to->graph.tensors[t].node = node;
    if (n && n->op != EPI_OP_INPUT)
        n->name = n->name ? n->name : w->to->graph.tensors[t].name;
}

/* A value of the new cut. */
static int add_value(maker *m, const epi_axes *axes, epi_dtype type, int node, bool slab) {
    int64_t sizes[EPI_MAX_DIMS];
    memcpy(sizes, m->spec->sizes, sizeof sizes);
    if (slab)
        sizes[m->dim] = m->to->slab_rows;
    m->to->values[m->to->value_count] = (epi_cut_value){
        .node = node,
        .type = type,
        .slab = slab,
        .bytes = epi_round_up(epi_axes_size(axes, sizes) * (int64_t)epi_dtype_size(type), 256)};
    return m->to->value_count++;
}

/* Where a tensor of the old cut is in the new one. */
static epi_part_tensor place_of(const maker *m, epi_part_tensor at) {
    if (at.tensor >= 0)
        return at;
    return (epi_part_tensor){-1, m->again[at.value] >= 0 ? m->again[at.value] : m->value[at.value]};
}

static void add_inputs(writing *w) {
    const epi_part *p = w->from;
    for (int t = 0; t < p->graph.input_count; t++) {
        int node = p->graph.tensors[t].node;
        if (!w->needed[node])
            continue;
        w->to->slices[w->to->graph.tensor_count] = p->slices[t];
        w->fresh[node] = add_input(w, &p->graph.tensors[t], place_of(w->m, p->tensors[t]), p->types[t]);
    }
}

/* The size of the axis is that of all slabs; a mean over it is a sum until they are added up. */
static void add_node(writing *w, int node) {
    const epi_node *n = &w->from->graph.nodes[node];
    epi_graph *g = &w->to->graph;
    int arg[3];
    for (int a = 0; a < 3; a++)
        arg[a] = n->arg[a] == EPI_NO_NODE ? EPI_NO_NODE : w->fresh[n->arg[a]];
    g->place = n->place;
    if (n->op == EPI_OP_SIZE && n->over.at[0].dim == w->m->dim)
        w->fresh[node] = epi_graph_const(g, (double)epi_axis_size(n->over.at[0], w->m->spec->sizes));
    else if (n->op == EPI_OP_MEAN && is_sum(w->m, n))
        w->fresh[node] = epi_graph_reduce(g, EPI_OP_SUM, arg[0], &n->over);
    else
        w->fresh[node] = epi_graph_again(g, n, arg);
}

/* Adds the needed nodes but those with `stop` set, which are there. */
static void add_nodes(writing *w, const int *stop) {
    for (int i = 0; i < w->from->graph.node_count; i++)
        if (w->needed[i] && w->from->graph.nodes[i].op != EPI_OP_INPUT && (!stop || stop[i] < 0))
            add_node(w, i);
}

static epi_status end(writing *w, bool in_loop, epi_error *err) {
    epi_graph_finish(&w->to->graph);
    if (w->m->arena->failed)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    if (w->to->graph.error.status != EPI_OK) {
        if (err)
            *err = w->to->graph.error;
        return w->to->graph.error.status;
    }
    w->to->loop = in_loop ? w->m->to->loop_count : -1;
    w->m->to->part_count++;
    return EPI_OK;
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
static epi_tensor_decl sum_decl(const maker *m, const epi_part *p, int node) {
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
static epi_part_tensor place_sum(maker *m, const epi_part *p, int node, const epi_tensor_decl *decl) {
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
static epi_status write_addition(maker *m, const epi_part *p, const epi_tensor_decl *decl,
                                 epi_part_tensor sum, epi_part_tensor slab, epi_error *err) {
    writing w;
    if (!begin(&w, m, p))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    int a = add_input(&w, decl, sum, EPI_F32), b = add_input(&w, decl, slab, EPI_F32);
    int both = epi_graph_map(&w.to->graph, EPI_OP_ADD, a, b, EPI_NO_NODE);
    add_output(&w, decl, sum, EPI_F32, both);
    return end(&w, true, err);
}

/* Outputs of a part that are not among those that the loop stores. */
static bool is_dropped(const maker *m, const epi_part *p, int t, int loop) {
    epi_part_tensor at = p->tensors[t];
    return at.tensor < 0 && m->slab[at.value] && !wanted_in(m, at.value, loop);
}

/* What a part of a loop does for one slab. `at` is by node: the place where a sum is added up. */
static epi_status write_slab(maker *m, int part, int loop, epi_part_tensor *at, epi_error *err) {
    const epi_part *p = &m->from->parts[part];
    const epi_graph *g = &p->graph;
    const bool *late = m->late[part];
    size_t nodes = (size_t)g->node_count + 1;
    writing w;
    epi_tensor_decl *decl = epi_arena_alloc(m->arena, nodes * sizeof *decl);
    epi_part_tensor *apart = epi_arena_alloc(m->arena, nodes * sizeof *apart);
    int *before = epi_arena_alloc(m->arena, nodes * sizeof *before), kept = 0, sums = 0;
    if (!decl || !apart || !before || !begin(&w, m, p))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (!late[g->tensors[t].node] && !is_dropped(m, p, t, loop)) {
            w.needed[g->tensors[t].node] = true;
            kept++;
        }
    for (int i = 0; i < g->node_count; i++)
        if (g->live[i] && is_sum(m, &g->nodes[i])) {
            w.needed[i] = true;
            sums++;
        }
    if (!kept && !sums)
        return EPI_OK;
    need_operands(&w, NULL);
    add_inputs(&w);
    for (int i = 0; i < g->node_count; i++) {
        if (!g->live[i] || !is_sum(m, &g->nodes[i]))
            continue;
        decl[i] = sum_decl(m, p, i);
        at[i] = place_sum(m, p, i, &decl[i]);
        before[i] = EPI_NO_NODE;
        if (g->nodes[i].op == EPI_OP_MATMUL && !m->sums_apart)
            before[i] = add_input(&w, &decl[i], at[i], EPI_F32);
    }
    add_nodes(&w, NULL);
    for (int t = g->input_count; t < g->tensor_count; t++) {
        epi_part_tensor to = p->tensors[t];
        if (late[g->tensors[t].node] || is_dropped(m, p, t, loop))
            continue;
        if (to.tensor < 0) {
            const epi_cut_value *v = &m->from->values[to.value];
            to.value = m->value[to.value] =
                add_value(m, &g->tensors[t].axes, v->type, v->node, m->slab[to.value]);
        }
        add_output(&w, &g->tensors[t], to, p->types[t], w.fresh[g->tensors[t].node]);
    }
    for (int i = 0; i < g->node_count; i++) {
        if (!g->live[i] || !is_sum(m, &g->nodes[i]))
            continue;
        int node = w.fresh[i];
        apart[i] = at[i];
        if (before[i] != EPI_NO_NODE)
            node = epi_graph_map(&w.to->graph, EPI_OP_ADD, before[i], node, EPI_NO_NODE);
        else
            apart[i] = (epi_part_tensor){-1, add_value(m, &decl[i].axes, EPI_F32, EPI_NO_NODE, true)};
        add_output(&w, &decl[i], apart[i], EPI_F32, node);
    }
    epi_status status = end(&w, true, err);
    for (int i = 0; i < g->node_count && status == EPI_OK; i++)
        if (g->live[i] && is_sum(m, &g->nodes[i]) && before[i] == EPI_NO_NODE)
            status = write_addition(m, p, &decl[i], at[i], apart[i], err);
    return status;
}

/* After a loop: what is made of the sums of one of its parts. */
static epi_status write_end(maker *m, int part, const epi_part_tensor *at, epi_error *err) {
    const epi_part *p = &m->from->parts[part];
    const epi_graph *g = &p->graph;
    writing w;
    int *stop = epi_arena_alloc(m->arena, ((size_t)g->node_count + 1) * sizeof *stop), wanted = 0;
    if (!stop || !begin(&w, m, p))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int i = 0; i < g->node_count; i++)
        stop[i] = g->live[i] && is_sum(m, &g->nodes[i]) ? i : -1;
    for (int t = g->input_count; t < g->tensor_count; t++) {
        int node = g->tensors[t].node;
        if (!m->late[part][node] ||
            (stop[node] >= 0 && same_place(at[node], p->tensors[t]) && p->tensors[t].tensor >= 0))
            continue; /* it is no sum, or is added up where it belongs */
        w.needed[node] = true;
        wanted++;
    }
    if (!wanted)
        return EPI_OK;
    need_operands(&w, stop);
    add_inputs(&w);
    for (int i = 0; i < g->node_count; i++) {
        if (!w.needed[i] || stop[i] < 0)
            continue;
        epi_tensor_decl decl = sum_decl(m, p, i);
        w.fresh[i] = add_input(&w, &decl, at[i], EPI_F32);
    }
    for (int i = 0; i < g->node_count; i++) { /* nodes may follow now */
        const epi_node *n = &g->nodes[i];
        if (w.needed[i] && stop[i] >= 0 && n->op == EPI_OP_MEAN) {
            int count = epi_graph_const(&w.to->graph, (double)epi_axes_size(&n->over, m->spec->sizes));
            w.fresh[i] = epi_graph_map(&w.to->graph, EPI_OP_DIV, w.fresh[i], count, EPI_NO_NODE);
        }
    }
    add_nodes(&w, stop);
    for (int t = g->input_count; t < g->tensor_count; t++) {
        int node = g->tensors[t].node;
        epi_part_tensor to = p->tensors[t];
        if (!m->late[part][node] || !w.needed[node] ||
            (stop[node] >= 0 && same_place(at[node], to) && to.tensor >= 0))
            continue;
        if (to.tensor < 0) {
            const epi_cut_value *v = &m->from->values[to.value];
            to.value = m->value[to.value] = add_value(m, &g->tensors[t].axes, v->type, v->node, false);
        }
        add_output(&w, &g->tensors[t], to, p->types[t], w.fresh[node]);
    }
    return end(&w, false, err);
}

/* ---- loops ---- */

/* Marks the values that a part loads, go by slabs and were made before its loop: they are made again, and so
 * is what those are made of. */
static void mark_again(const maker *m, const epi_part *p, int loop, bool *marked) {
    for (int t = 0; t < p->graph.input_count; t++) {
        epi_part_tensor at = p->tensors[t];
        if (at.tensor >= 0 || !m->slab[at.value] || marked[at.value] ||
            m->loop[m->from->values[at.value].part] == loop)
            continue;
        marked[at.value] = true;
        mark_again(m, &m->from->parts[m->from->values[at.value].part], loop, marked);
    }
}

/* At the begin of a loop: parts that make values of earlier loops again. */
static epi_status write_again(maker *m, int loop, epi_error *err) {
    int values = m->from->value_count;
    bool *marked = epi_arena_alloc(m->arena, (size_t)values + 1);
    if (!marked)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int v = 0; v < values; v++)
        m->again[v] = -1;
    for (int q = loop; q < m->from->part_count && m->loop[q] == loop; q++)
        mark_again(m, &m->from->parts[q], loop, marked);
    for (int q = 0; q < loop; q++) {
        const epi_part *p = &m->from->parts[q];
        int wanted = 0;
        writing w;
        if (!begin(&w, m, p))
            return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
        for (int t = p->graph.input_count; t < p->graph.tensor_count; t++)
            if (p->tensors[t].tensor < 0 && marked[p->tensors[t].value]) {
                w.needed[p->graph.tensors[t].node] = true;
                wanted++;
            }
        if (!wanted)
            continue;
        need_operands(&w, NULL);
        add_inputs(&w);
        add_nodes(&w, NULL);
        for (int t = p->graph.input_count; t < p->graph.tensor_count; t++)
            if (p->tensors[t].tensor < 0 && marked[p->tensors[t].value]) {
                const epi_cut_value *v = &m->from->values[p->tensors[t].value];
                int value = m->again[p->tensors[t].value] =
                    add_value(m, &p->graph.tensors[t].axes, v->type, v->node, true);
                add_output(&w, &p->graph.tensors[t], (epi_part_tensor){-1, value}, p->types[t],
                           w.fresh[p->graph.tensors[t].node]);
            }
        epi_status status = end(&w, true, err);
        if (status != EPI_OK)
            return status;
    }
    return EPI_OK;
}

static epi_status write_loop(maker *m, int loop, int *past, epi_error *err) {
    int first = m->to->part_count;
    epi_status status = write_again(m, loop, err);
    epi_part_tensor **at =
        epi_arena_alloc(m->arena, ((size_t)m->from->part_count + 1) * sizeof(epi_part_tensor *));
    if (!at)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (*past = loop; *past < m->from->part_count && m->loop[*past] == loop && status == EPI_OK; ++*past) {
        size_t nodes = (size_t)m->from->parts[*past].graph.node_count + 1;
        at[*past] = epi_arena_alloc(m->arena, nodes * sizeof **at);
        status = at[*past] ? write_slab(m, *past, loop, at[*past], err)
                           : epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    }
    m->to->loops[m->to->loop_count++] = (epi_loop){first, m->to->part_count - 1};
    for (int v = 0; v < m->from->value_count; v++)
        m->again[v] = -1;
    for (int q = loop; q < *past && status == EPI_OK; q++)
        status = write_end(m, q, at[q], err);
    return status;
}

/* A part outside loops, less what goes by slabs: whoever needs that makes it again. */
static epi_status write_whole(maker *m, int part, epi_error *err) {
    const epi_part *p = &m->from->parts[part];
    const epi_graph *g = &p->graph;
    writing w;
    int wanted = 0;
    if (!begin(&w, m, p))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (!is_dropped(m, p, t, -2)) {
            w.needed[g->tensors[t].node] = true;
            wanted++;
        }
    if (!wanted)
        return EPI_OK;
    need_operands(&w, NULL);
    add_inputs(&w);
    for (int i = 0; i < g->node_count; i++) { /* as it is: it sees all rows */
        const epi_node *n = &g->nodes[i];
        int arg[3];
        for (int a = 0; a < 3; a++)
            arg[a] = n->arg[a] == EPI_NO_NODE ? EPI_NO_NODE : w.fresh[n->arg[a]];
        if (w.needed[i] && n->op != EPI_OP_INPUT)
            w.fresh[i] = epi_graph_again(&w.to->graph, n, arg);
    }
    for (int t = g->input_count; t < g->tensor_count; t++) {
        epi_part_tensor to = p->tensors[t];
        if (is_dropped(m, p, t, -2))
            continue;
        if (to.tensor < 0) {
            const epi_cut_value *v = &m->from->values[to.value];
            to.value = m->value[to.value] = add_value(m, &g->tensors[t].axes, v->type, v->node, false);
        }
        add_output(&w, &g->tensors[t], to, p->types[t], w.fresh[g->tensors[t].node]);
    }
    return end(&w, false, err);
}

/* When each value is alive: one that is whole for as long as a loop takes that touches it. */
static void find_lives(epi_cut *cut) {
    for (int v = 0; v < cut->value_count; v++)
        cut->values[v].first = cut->values[v].last = cut->values[v].part = -1;
    for (int q = 0; q < cut->part_count; q++) {
        const epi_part *p = &cut->parts[q];
        for (int t = 0; t < p->graph.tensor_count; t++) {
            if (p->tensors[t].tensor >= 0)
                continue;
            epi_cut_value *v = &cut->values[p->tensors[t].value];
            const epi_loop *loop = p->loop >= 0 && !v->slab ? &cut->loops[p->loop] : NULL;
            int from = loop ? loop->first : q, to = loop ? loop->last : q;
            if (v->first < 0 || from < v->first)
                v->first = from;
            if (to > v->last)
                v->last = to;
            if (v->part < 0 && t >= p->graph.input_count)
                v->part = q;
        }
    }
}

static bool give_room(maker *m) {
    size_t parts = (size_t)m->from->part_count, values = (size_t)m->from->value_count;
    m->can = epi_arena_alloc(m->arena, parts + 1);
    m->loop = epi_arena_alloc(m->arena, (parts + 1) * sizeof *m->loop);
    m->late = epi_arena_alloc(m->arena, (parts + 1) * sizeof(bool *));
    m->slab = epi_arena_alloc(m->arena, values + 1);
    m->value = epi_arena_alloc(m->arena, (values + 1) * sizeof *m->value);
    m->again = epi_arena_alloc(m->arena, (values + 1) * sizeof *m->again);
    for (size_t v = 0; v < values && !m->arena->failed; v++)
        m->value[v] = m->again[v] = -1;
    return !m->arena->failed;
}

/* Once the loops are known: each makes a part again once at most, a sum may have an addition, and a part an
 * end. */
static bool give_room_for_parts(maker *m) {
    size_t parts = (size_t)m->from->part_count, values = (size_t)m->from->value_count, loops = 0, sums = 0;
    for (int q = 0; q < m->from->part_count; q++) {
        loops += m->loop[q] == q;
        for (int i = 0; m->loop[q] >= 0 && i < m->from->parts[q].graph.node_count; i++)
            sums += is_sum(m, &m->from->parts[q].graph.nodes[i]);
    }
    m->to->parts = epi_arena_alloc(m->arena, (parts * (loops + 2) + sums) * sizeof *m->to->parts);
    m->to->values = epi_arena_alloc(m->arena, (values * (loops + 1) + 2 * sums + 1) * sizeof *m->to->values);
    m->to->sums = epi_arena_alloc(m->arena, (sums + 1) * sizeof *m->to->sums);
    m->to->loops = epi_arena_alloc(m->arena, loops * sizeof *m->to->loops);
    return !m->arena->failed;
}

epi_status epi_cut_slabs(epi_arena *arena, const epi_spec *spec, const epi_cut *from,
                         const epi_slab_plan *plan, epi_cut *out, epi_error *err) {
    maker m = {.arena = arena,
               .spec = spec,
               .from = from,
               .to = out,
               .dim = plan->dim,
               .sums_apart = plan->sums_apart};
    *out = (epi_cut){.slab_dim = plan->dim, .slab_rows = plan->rows};
    if (!give_room(&m))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    if (!find_loops(&m, plan->grain, plan->aligned))
        return arena->failed ? epi_fail(err, EPI_ERR_MEMORY, "out of memory") : EPI_OK;
    epi_status status = give_room_for_parts(&m) ? EPI_OK : epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int q = 0; q < from->part_count && status == EPI_OK;) {
        if (m.loop[q] >= 0)
            status = write_loop(&m, q, &q, err);
        else
            status = write_whole(&m, q++, err);
    }
    if (status != EPI_OK)
        return status;
    find_lives(out);
    return epi_cut_lay_out(arena, out, err);
}
