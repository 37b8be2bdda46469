/* cut_parts.c: the parts of a cut as graphs of their own, and the memory between them. */
#include <stdio.h>
#include <string.h>

#include "pass/cut_sites.h"

typedef struct writer {
    epi_arena *arena;
    const epi_spec *spec;
    epi_sites *s;
    bool **loads;
    epi_cut *cut;
    int *value; /* by node: its number among the cut's values, or -1 */
    int *home;  /* by node: the output that keeps it for later parts, or -1 */
    int *fresh; /* by node: its number in the part that is being written */
} writer;

/* ---- types and homes ---- */

/* One per row, or one per column, of the part that makes it. */
static bool is_vector(const epi_site_part *p, const epi_axes *axes) {
    uint64_t dims = epi_dims_of(axes), rows = epi_dims_of(&p->rows), cols = epi_dims_of(&p->cols);
    return dims != (rows | cols) && (!(dims & ~rows) || !(dims & ~cols));
}

static epi_dtype stored_type(const writer *w, int node) {
    const epi_node *n = &w->spec->graph->nodes[node];
    const epi_site_part *p = &w->s->parts[w->s->site[node].part];
    return !n->axes.count || is_vector(p, &n->axes) ? EPI_F32 : w->spec->type;
}

/* Values that go from part to part lie in an output that holds them, or in the workspace. */
static epi_status give_homes(writer *w, epi_error *err) {
    const epi_graph *g = w->spec->graph;
    for (int i = 0; i < g->node_count; i++)
        w->value[i] = w->home[i] = -1;
    for (int t = g->tensor_count - 1; t >= g->input_count; t--)
        if (w->spec->types[t] <= EPI_F16)
            w->home[g->tensors[t].node] = t;
    for (int i = 0; i < g->node_count; i++) {
        int last = -1;
        for (int q = 0; q < w->s->part_count; q++)
            last = w->loads[q][i] ? q : last;
        if (last < 0 || g->nodes[i].op == EPI_OP_INPUT || w->home[i] >= 0)
            continue;
        epi_dtype type = stored_type(w, i);
        int64_t count = epi_axes_size(&g->nodes[i].axes, w->spec->sizes);
        if (count < 0 || count > (int64_t)1 << 48)
            return epi_fail(err, EPI_ERR_MEMORY, "%s would have more than 2^48 elements",
                            epi_node_label(g, i).text);
        w->value[i] = w->cut->value_count;
        w->cut->values[w->cut->value_count++] =
            (epi_cut_value){.node = i,
                            .type = type,
                            .bytes = epi_round_up(count * (int64_t)epi_dtype_size(type), 256),
                            .first = w->s->site[i].part,
                            .last = last};
    }
    return EPI_OK;
}

/* ---- memory ---- */

static bool overlap(const epi_cut_value *a, const epi_cut_value *b) {
    return a->first <= b->last && b->first <= a->last;
}

/* First fit, the largest first: a value goes to the lowest place that is free while it is alive. */
static epi_status lay_out(epi_arena *arena, epi_cut *cut, epi_error *err) {
    int n = cut->value_count;
    int *order = epi_arena_alloc(arena, ((size_t)n + 1) * sizeof *order);
    if (!order)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && cut->values[order[at - 1]].bytes < cut->values[i].bytes; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    for (int i = 0; i < n; i++) {
        epi_cut_value *v = &cut->values[order[i]];
        int64_t at = 0;
        for (int j = 0; j < i; j++) { /* begins again whenever something is in the way */
            const epi_cut_value *o = &cut->values[order[j]];
            if (overlap(v, o) && at < o->offset + o->bytes && o->offset < at + v->bytes) {
                at = o->offset + o->bytes;
                j = -1;
            }
        }
        v->offset = at;
        cut->bytes = epi_max64(cut->bytes, at + v->bytes);
    }
    for (int q = 0; q < cut->part_count; q++) {
        int64_t alive = 0;
        for (int i = 0; i < n; i++)
            alive += cut->values[i].first <= q && q <= cut->values[i].last ? cut->values[i].bytes : 0;
        cut->lowest = epi_max64(cut->lowest, alive);
    }
    return EPI_OK;
}

/* ---- a part's graph ---- */

/* A name for a value between parts: its own, if no other tensor of the part has it. */
static const char *name_of(const writer *w, const epi_graph *part, int node) {
    const char *name = w->spec->graph->nodes[node].name;
    char text[32];
    snprintf(text, sizeof text, "v%d", node);
    for (int t = 0; t < part->tensor_count && name; t++)
        if (part->tensors[t].name && !strcmp(part->tensors[t].name, name))
            name = NULL;
    return name ? name : epi_arena_text(w->arena, text, strlen(text));
}

static void add_tensor(writer *w, epi_part *p, int node, const char *name, epi_part_tensor at, bool output) {
    const epi_graph *g = w->spec->graph;
    epi_graph *part = &p->graph;
    int t = part->tensor_count++;
    epi_dtype type = at.tensor >= 0 ? w->spec->types[at.tensor] : w->cut->values[at.value].type;
    p->tensors[t] = at;
    p->types[t] = type;
    part->tensors[t] =
        (epi_tensor_decl){.name = name,
                          .is_output = output,
                          .has_type = (at.tensor >= 0 && g->tensors[at.tensor].has_type) ||
                                      (type != w->spec->type && g->nodes[node].axes.count),
                          .type = type,
                          .axes = at.tensor >= 0 ? g->tensors[at.tensor].axes : g->nodes[node].axes,
                          .node = EPI_NO_NODE,
                          .place = g->nodes[node].place};
    if (!output) {
        part->input_count++;
        w->fresh[node] = part->tensors[t].node = epi_graph_input(part, t);
    }
}

/* Marks what the part makes to get at its outputs, and what it loads. */
static void find_needed(writer *w, int q, const bool *stores, unsigned char *mark) {
    const epi_graph *g = w->spec->graph;
    memset(mark, 0, (size_t)g->node_count);
    for (int i = g->node_count - 1; i >= 0; i--) {
        mark[i] |= stores[i];
        if (!mark[i])
            continue;
        bool load = g->nodes[i].op == EPI_OP_INPUT || (w->loads[q][i] && !stores[i]);
        mark[i] = load ? EPI_MARK_READ : EPI_MARK_CONE;
        for (int a = 0; a < 3 && !load; a++)
            if (g->nodes[i].arg[a] != EPI_NO_NODE)
                mark[g->nodes[i].arg[a]] = EPI_MARK_CONE;
    }
}

static int copy_node(epi_graph *part, const epi_node *n, const int *fresh) {
    int arg[3];
    for (int a = 0; a < 3; a++)
        arg[a] = n->arg[a] == EPI_NO_NODE ? EPI_NO_NODE : fresh[n->arg[a]];
    part->place = n->place;
    return epi_graph_again(part, n, arg);
}

static epi_part_tensor place_of(const writer *w, int node) {
    const epi_node *n = &w->spec->graph->nodes[node];
    if (n->op == EPI_OP_INPUT)
        return (epi_part_tensor){n->tensor, -1};
    return (epi_part_tensor){w->home[node], w->value[node]};
}

/* Writes the part that stores these values; `only` >= 0 is an output that is a copy of an input. */
static epi_status write_part(writer *w, int q, const bool *stores, int only, epi_error *err) {
    const epi_graph *g = w->spec->graph;
    epi_part *p = &w->cut->parts[w->cut->part_count];
    size_t tensors = (size_t)g->node_count + (size_t)g->tensor_count + 1;
    *p = (epi_part){.graph = {.arena = w->arena, .dim_count = g->dim_count}};
    memcpy(p->graph.dims, g->dims, sizeof p->graph.dims);
    p->tensors = epi_arena_alloc(w->arena, tensors * sizeof *p->tensors);
    p->types = epi_arena_alloc(w->arena, tensors * sizeof *p->types);
    p->graph.tensors = epi_arena_alloc(w->arena, tensors * sizeof *p->graph.tensors);
    if (!p->tensors || !p->types || !p->graph.tensors)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    unsigned char *mark = w->s->mark;
    find_needed(w, q, stores, mark);
    for (int t = 0; t < g->input_count; t++) /* the program's own first, in their order */
        if (mark[g->tensors[t].node] == EPI_MARK_READ)
            add_tensor(w, p, g->tensors[t].node, g->tensors[t].name, (epi_part_tensor){t, -1}, false);
    for (int i = 0; i < g->node_count; i++)
        if (mark[i] == EPI_MARK_READ && g->nodes[i].op != EPI_OP_INPUT)
            add_tensor(w, p, i, name_of(w, &p->graph, i), place_of(w, i), false);
    for (int i = 0; i < g->node_count; i++)
        if (mark[i] == EPI_MARK_CONE)
            w->fresh[i] = copy_node(&p->graph, &g->nodes[i], w->fresh);
    for (int t = g->input_count; t < g->tensor_count; t++) {
        int node = g->tensors[t].node;
        if (only >= 0 ? t != only : !stores[node])
            continue;
        add_tensor(w, p, node, g->tensors[t].name, (epi_part_tensor){t, -1}, true);
        p->graph.tensors[p->graph.tensor_count - 1].node = w->fresh[node];
    }
    for (int i = 0; i < g->node_count; i++)
        if (stores[i] && w->value[i] >= 0) {
            add_tensor(w, p, i, name_of(w, &p->graph, i), (epi_part_tensor){-1, w->value[i]}, true);
            p->graph.tensors[p->graph.tensor_count - 1].node = w->fresh[i];
        }
    epi_graph_finish(&p->graph);
    if (w->arena->failed || p->graph.error.status != EPI_OK) {
        if (err && p->graph.error.status != EPI_OK)
            *err = p->graph.error;
        return w->arena->failed ? epi_fail(err, EPI_ERR_MEMORY, "out of memory") : p->graph.error.status;
    }
    w->cut->part_count++;
    return EPI_OK;
}

/* Writes the parts that store something; values then count by what was written. */
static epi_status write_parts(writer *w, epi_error *err) {
    const epi_graph *g = w->spec->graph;
    bool *stores = epi_arena_alloc(w->arena, (size_t)g->node_count + 1);
    int *number = epi_arena_alloc(w->arena, ((size_t)w->s->part_count + 1) * sizeof *number);
    epi_status status = stores && number ? EPI_OK : epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int q = 0; q < w->s->part_count && status == EPI_OK; q++) {
        bool any = false;
        for (int i = 0; i < g->node_count; i++) {
            epi_site site = w->s->site[i];
            stores[i] = w->s->forced[i] && site.kind != EPI_SITE_INPUT && site.part == q;
            any |= stores[i];
        }
        number[q] = w->cut->part_count;
        status = any ? write_part(w, q, stores, -1, err) : EPI_OK;
    }
    for (int i = 0; i < w->cut->value_count && status == EPI_OK; i++) {
        w->cut->values[i].first = number[w->cut->values[i].first];
        w->cut->values[i].last = number[w->cut->values[i].last];
    }
    for (int t = g->input_count; t < g->tensor_count && status == EPI_OK; t++)
        if (w->s->site[g->tensors[t].node].kind == EPI_SITE_INPUT) { /* a copy of an input, or a constant */
            memset(stores, 0, (size_t)g->node_count);
            stores[g->tensors[t].node] = true;
            status = write_part(w, 0, stores, t, err);
        }
    return status;
}

epi_status epi_cut_make(epi_arena *arena, const epi_spec *spec, const epi_tile_limits *limits, epi_cut *out,
                        epi_error *err) {
    const epi_graph *g = spec->graph;
    size_t nodes = (size_t)g->node_count + 1;
    epi_sites sites;
    writer w = {.arena = arena, .spec = spec, .s = &sites, .cut = out};
    *out = (epi_cut){0};
    epi_status status = epi_sites_make(arena, spec, limits, &sites, err);
    if (status != EPI_OK)
        return status;
    w.loads = epi_sites_loads(arena, &sites);
    if (!w.loads)
        return arena->failed ? epi_fail(err, EPI_ERR_MEMORY, "out of memory")
                             : epi_fail(err, EPI_ERR_UNSUPPORTED, "it cannot be cut into kernels");
    out->parts =
        epi_arena_alloc(arena, ((size_t)sites.part_count + (size_t)g->tensor_count + 1) * sizeof *out->parts);
    out->values = epi_arena_alloc(arena, nodes * sizeof *out->values);
    w.value = epi_arena_alloc(arena, nodes * sizeof *w.value);
    w.home = epi_arena_alloc(arena, nodes * sizeof *w.home);
    w.fresh = epi_arena_alloc(arena, nodes * sizeof *w.fresh);
    if (!out->parts || !out->values || !w.value || !w.home || !w.fresh)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    status = give_homes(&w, err);
    if (status == EPI_OK)
        status = write_parts(&w, err);
    return status == EPI_OK ? lay_out(arena, out, err) : status;
}
