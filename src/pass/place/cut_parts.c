/* cut_parts.c: writes the parts of a cut as graphs of their own, and lays out the memory between them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pass/place/extract.h"
#include "pass/place/kept.h"
#include "pass/place/placer.h"
#include "pass/place/split.h"
#include "pass/rewrite/variance.h"

typedef struct writer {
    epi_arena *arena;
    const epi_spec *spec;
    epi_placer *s;
    const epi_part_values *values; /* by part */
    epi_cut *cut;
    int *value;        /* by node: its number among the cut's values, or -1 */
    int *home;         /* by node: the output that keeps it for later parts, or -1 */
    int *fresh;        /* by node: its number in the part that is being written */
    int *loads;        /* by node: the last part that loads it and was written, counted from 1 */
    unsigned *without; /* by product: what its part may not have */
    unsigned gone;     /* what is marked there of any */
    unsigned refused;  /* and more of it than this cut was made with */
    bool attends;      /* an attention of this cut was not */
} writer;

/* ---- homes ---- */

/* What is stored in an output: its value; where that only has other names of axes than what a part makes,
 * that. */
static int value_of(const writer *w, int t) {
    const epi_graph *g = w->spec->graph;
    int node = g->tensors[t].node;
    while (w->s->placement[node].kind == EPI_PLACED_VIEW && g->nodes[node].op == EPI_OP_RENAME)
        node = g->nodes[node].arg[0];
    epi_cut_placement_kind kind = w->s->placement[node].kind;
    return kind == EPI_PLACED_TILE || kind == EPI_PLACED_AFTER ? node : g->tensors[t].node;
}

/* How a tensor of the program lies, in the axes of what is stored in it. */
static epi_axes axes_of(const writer *w, int t) {
    const epi_graph *g = w->spec->graph;
    epi_axes axes = g->tensors[t].axes;
    for (int node = g->tensors[t].node; t >= g->input_count && node != value_of(w, t);
         node = g->nodes[node].arg[0])
        axes.at[epi_axes_find(&axes, g->nodes[node].over.at[1])] = g->nodes[node].over.at[0];
    return axes;
}

/* May later parts load the value from this output? Not if it is to be stored in another way for them. */
static bool serves_as_home(const writer *w, int t) {
    int node = value_of(w, t);
    const epi_node *n = &w->spec->graph->nodes[node];
    epi_dtype type = w->spec->types[t];
    epi_cut_placement_kind kind = w->s->placement[node].kind;
    if (kind != EPI_PLACED_TILE && kind != EPI_PLACED_AFTER)
        return false;            /* no part makes it */
    if (!epi_dtype_in_f32(type)) /* positions are the same numbers in integers */
        return epi_op_gives_places(n->op) && epi_dtype_is_integer(type);
    return n->has_stored ? n->stored == type : type == EPI_F32 || type == epi_placer_type(w->s, node);
}

/* Values that go from part to part lie in an output that holds them, or in the workspace. */
static epi_status give_homes(writer *w, epi_error *err) {
    const epi_graph *g = w->spec->graph;
    int *loaded = w->fresh; /* by node: does a part load it, or a view of it? */
    for (int i = 0; i < g->node_count; i++)
        w->value[i] = w->home[i] = -1;
    for (int q = 0; q < w->s->part_count; q++)
        for (int i = 0; i < w->values[q].loads.count; i++)
            loaded[epi_placer_root(w->s, w->values[q].loads.at[i])] = true;
    for (int t = g->input_count; t < g->tensor_count; t++) /* copies of views are the last parts */
        if (w->s->placement[value_of(w, t)].kind == EPI_PLACED_VIEW)
            loaded[epi_placer_root(w->s, g->tensors[t].node)] = true;
    for (int t = g->tensor_count - 1; t >= g->input_count; t--)
        if (serves_as_home(w, t))
            w->home[value_of(w, t)] = t;
    for (int i = 0; i < g->node_count; i++) {
        if (!loaded[i] || g->nodes[i].op == EPI_OP_INPUT || w->home[i] >= 0)
            continue;
        epi_dtype type = epi_placer_type(w->s, i);
        int64_t count = epi_axes_size(&g->nodes[i].axes, w->spec->sizes);
        if (count < 0 || count > (int64_t)1 << 48)
            return epi_fail(err, EPI_ERR_MEMORY, "%s would have more than 2^48 elements",
                            epi_node_label(g, i).text);
        w->value[i] = w->cut->value_count;
        w->cut->values[w->cut->value_count++] =
            (epi_cut_value){.node = i,
                            .axes = g->nodes[i].axes,
                            .type = type,
                            .bytes = epi_round_up(count * (int64_t)epi_dtype_size(type), 256)};
    }
    return EPI_OK;
}

/* ---- memory ---- */

void epi_cut_lives(epi_cut *cut) {
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

static bool overlap(const epi_cut_value *a, const epi_cut_value *b) {
    return a->first <= b->last && b->first <= a->last;
}

/* The largest first; of equal ones that which is stored first. */
static int compare_values(const void *a, const void *b) {
    const epi_cut_value *x = *(epi_cut_value *const *)a, *y = *(epi_cut_value *const *)b;
    return x->bytes != y->bytes ? (x->bytes < y->bytes) - (x->bytes > y->bytes) : x < y ? -1 : x > y;
}

/* Does no part load what only a later one stores? A part of a loop may add to its own result. */
static bool is_in_order(const epi_cut *cut) {
    bool order = true;
    for (int q = 0; q < cut->part_count; q++) {
        const epi_part *p = &cut->parts[q];
        for (int t = 0; t < p->graph.input_count; t++)
            order &= p->tensors[t].tensor >= 0 || cut->values[p->tensors[t].value].part < q + (p->loop >= 0);
    }
    return order;
}

/* First fit, the largest first: a value goes to the lowest place that is free while it is alive. */
epi_status epi_cut_lay_out(epi_arena *arena, epi_cut *cut, epi_error *err) {
    size_t most = (size_t)(cut->value_count - cut->prepared_values), n = 0; /* those have places already */
    epi_cut_value **order = epi_arena_alloc(arena, (most + 1) * sizeof(epi_cut_value *)),
                  **placed = epi_arena_alloc(arena, (most + 1) * sizeof(epi_cut_value *));
    int64_t *alive = epi_arena_alloc(arena, ((size_t)cut->part_count + 2) * sizeof *alive);
    EPI_TRY(epi_has_memory(order && placed && alive, err));
    if (!is_in_order(cut))
        return EPI_INTERNAL(err, (epi_place){0}, "a part loads a value that a later part stores");
    cut->bytes = cut->lowest = 0;
    for (size_t i = 0; i < most; i++)
        if (!cut->values[i].over && cut->values[i].first >= 0) /* else no part has it */
            order[n++] = &cut->values[i];
    qsort(order, n, sizeof *order, compare_values);
    for (size_t i = 0; i < n; i++) {
        epi_cut_value *v = order[i];
        size_t j = 0;
        v->offset = 0;
        for (; j < i && placed[j]->offset < v->offset + v->bytes;
             j++) /* these lie in order of their offsets */
            if (overlap(v, placed[j]))
                v->offset = epi_max64(v->offset, placed[j]->offset + placed[j]->bytes);
        for (j = i; j && placed[j - 1]->offset > v->offset; j--)
            placed[j] = placed[j - 1];
        placed[j] = v;
        cut->bytes = epi_max64(cut->bytes, v->offset + v->bytes);
        alive[v->first] += v->bytes;
        alive[v->last + 1] -= v->bytes;
    }
    for (int q = 0; q < cut->part_count; q++) {
        alive[q + 1] += alive[q];
        cut->lowest = epi_max64(cut->lowest, alive[q]);
    }
    return EPI_OK;
}

/* ---- a part's graph ---- */

static bool is_stored(const epi_node_list *stores, int node) {
    for (int i = 0; i < stores->count; i++)
        if (stores->at[i] == node)
            return true;
    return false;
}

/* Does the part that stores these values store this output? `only` >= 0 is the one that it stores alone. */
static bool stores_output(const writer *w, const epi_node_list *stores, int only, int t) {
    return only >= 0 ? t == only : is_stored(stores, value_of(w, t));
}

/* A part that is being written. */
typedef struct writing {
    epi_extract x;
    writer *w;
    epi_part *p;
    const epi_node_list *stores;
    int only; /* >= 0: the output that it stores alone */
    bool rows;
} writing;

/* Has a tensor of the part this name, or will an output of it that the program names? */
static bool is_taken(const void *context, const char *name) {
    const writing *t = context;
    const epi_graph *g = t->w->spec->graph;
    int tensor = epi_graph_find_tensor(g, name);
    return epi_graph_has_tensor(t->x.to, name) ||
           (tensor >= g->input_count && stores_output(t->w, t->stores, t->only, tensor));
}

/* Has a tensor of the part or of the program it? */
static bool is_known(const void *context, const char *name) {
    const writing *t = context;
    return epi_graph_has_tensor(t->x.to, name) || epi_graph_has_tensor(t->x.from, name);
}

/* A name for a value between parts: its own, if no other tensor of the part has it; else one that neither the
 * part nor the program has. */
static const char *name_of(const writing *t, int node) {
    if (t->x.from->nodes[node].op == EPI_OP_ONCE)
        node = t->x.from->nodes[node].arg[0];
    const char *name = t->x.from->nodes[node].name;
    char text[32];
    if (name && !is_taken(t, name))
        return name;
    snprintf(text, sizeof text, "v%d", node);
    return epi_free_name(t->w->arena, text, is_known, t);
}

/* Is it not all of what it lies in? */
static bool is_slice(const epi_slice *s, const epi_axes *own) {
    bool part = own->count != s->memory.count;
    for (int i = 0; i < own->count && !part; i++)
        part = !epi_axis_equal(own->at[i], s->memory.at[s->along[i]]);
    return part;
}

static void add_tensor(writing *to, int node, const char *name, epi_part_tensor at, bool output) {
    const writer *w = to->w;
    const epi_graph *g = w->spec->graph;
    epi_part *p = to->p;
    int t = p->graph.tensor_count;
    epi_dtype type = at.tensor >= 0 ? w->spec->types[at.tensor] : w->cut->values[at.value].type;
    epi_axes axes =
        at.tensor >= 0 ? axes_of(w, at.tensor) : epi_cut_layout(w->spec, w->cut->values[at.value].node);
    if (output && at.tensor >= 0 && value_of(w, at.tensor) != node) /* a copy of it */
        axes = g->tensors[at.tensor].axes;
    epi_axes own = axes;
    p->tensors[t] = at;
    p->types[t] = type;
    if (output && at.tensor >= 0 && w->s->put_by[node] != EPI_NO_NODE && w->s->put_into[node] == at.tensor) {
        own = epi_placer_piece(w->s, node, &axes, &p->slices[t]);
    } else if (!output) {
        own = epi_placer_view(w->s, node, &axes, &p->slices[t]);
        if (!is_slice(&p->slices[t], &own))
            p->slices[t].memory.count = 0;
    }
    epi_tensor_decl decl = {.name = name,
                            .has_type = (at.tensor >= 0 && g->tensors[at.tensor].has_type) ||
                                        (type != w->spec->type && g->nodes[node].axes.count),
                            .type = type,
                            .axes = own,
                            .made = !output && (at.tensor < 0 || at.tensor >= g->input_count),
                            .place = g->nodes[node].place};
    if (output)
        epi_extract_output(&to->x, &decl, to->x.fresh[node]);
    else
        epi_extract_input(&to->x, &decl, node);
}

/* Lists what the part makes to get at its outputs, in s->cone, and what it loads, in s->read. */
static void find_needed(writer *w, int q, const epi_node_list *stores) {
    const epi_graph *g = w->spec->graph;
    epi_placer *s = w->s;
    epi_visits *v = &s->visits;
    int stored = v->round + 1;
    s->cone.count = s->read.count = 0;
    epi_visits_begin(v, stores->at[0]);
    for (int i = 1; i < stores->count; i++)
        epi_visit(v, stores->at[i]);
    for (int i = 0; q >= 0 && i < w->values[q].loads.count; i++)
        w->loads[w->values[q].loads.at[i]] = q + 1;
    v->round++; /* what these are made of: its mark is another */
    for (int node; epi_visits_next(v, &node);) {
        const epi_node *n = &g->nodes[node];
        bool load = n->op == EPI_OP_INPUT || epi_placer_is_view(s, node) ||
                    (q >= 0 && w->loads[node] == q + 1 && v->seen[node] != stored);
        epi_node_list *list = load ? &s->read : &s->cone;
        list->at[list->count++] = node;
        for (int a = 0; a < epi_node_operands(n) && !load; a++)
            if (v->seen[n->arg[a]] != stored)
                epi_visit(v, n->arg[a]);
    }
    epi_list_sort(&s->cone);
    epi_list_sort(&s->read);
}

/* Has a value that the part loads or makes this dim, or is its size given at each run? */
static bool knows_dim(const writer *w, int dim) {
    const epi_graph *g = w->spec->graph;
    if (epi_open_has(w->spec->open, dim))
        return true;
    for (int i = 0; i < w->s->read.count + w->s->cone.count; i++) {
        int node = i < w->s->read.count ? w->s->read.at[i] : w->s->cone.at[i - w->s->read.count];
        bool stored = i < w->s->read.count || w->s->forced[node];
        if (stored && epi_axes_find_dim(&g->nodes[node].axes, dim) >= 0)
            return true;
    }
    return false;
}

/* A variance that comes to rows is a few reductions there; one that is a pass by itself stays one. */
static int write_node(epi_extract *x, const epi_node *n) {
    const writing *to = x->context;
    /* as a program of its own the part could not name the axis */
    if (n->op == EPI_OP_SIZE && !knows_dim(to->w, n->over.at[0].dim))
        return epi_graph_const(x->to, (double)epi_axis_size(n->over.at[0], to->w->spec->sizes));
    if (n->op == EPI_OP_VAR && to->rows)
        return epi_variance_write(x->to, x->fresh[n->arg[0]], n);
    return n->op == EPI_OP_ONCE ? x->fresh[n->arg[0]] : EPI_NO_NODE; /* on the tile that it is compared on */
}

static epi_part_tensor place_of(const writer *w, int node) {
    int value = epi_placer_root(w->s, node);
    const epi_node *n = &w->spec->graph->nodes[value];
    if (n->op == EPI_OP_INPUT)
        return (epi_part_tensor){n->tensor, -1};
    return (epi_part_tensor){w->home[value], w->value[value]};
}

/* Writes the part that stores these values; `only` >= 0 is an output that is a copy of an input. */
static epi_status write_part(writer *w, int q, const epi_node_list *stores, int only, epi_error *err) {
    const epi_graph *g = w->spec->graph;
    epi_part *p = &w->cut->parts[w->cut->part_count];
    const epi_node_list *made = &w->s->cone, *read = &w->s->read;
    find_needed(w, q, stores);
    size_t tensors = (size_t)read->count + 2 * (size_t)stores->count + 1;
    for (int t = g->input_count; t < g->tensor_count; t++)
        tensors += stores_output(w, stores, only, t);
    *p = (epi_part){.graph = {.arena = w->arena}, .loop = -1, .placed = q >= 0 ? &w->s->parts[q] : NULL};
    writing to = {.x = {.fresh = w->fresh, .write = write_node, .context = &to, .names = true},
                  .w = w,
                  .p = p,
                  .stores = stores,
                  .only = only,
                  .rows = q >= 0 && w->s->parts[q].kind == EPI_KIND_ROWS};
    p->tensors = epi_arena_alloc(w->arena, tensors * sizeof *p->tensors);
    p->slices = epi_arena_alloc(w->arena, tensors * sizeof *p->slices);
    p->types = epi_arena_alloc(w->arena, tensors * sizeof *p->types);
    if (!epi_extract_begin(&to.x, g, &p->graph, (int)tensors))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    p->graph.declared_count = g->dim_count; /* a part declares other names of axes, too */
    for (int i = 0; i < read->count; i++) { /* the program's own first: inputs are its first nodes */
        const epi_node *n = &g->nodes[read->at[i]];
        epi_part_tensor at = place_of(w, read->at[i]);
        if (at.tensor < 0 && at.value < 0)
            return EPI_INTERNAL(err, n->place, "a part loads a value that no part stores");
        if (n->op == EPI_OP_ONCE && is_stored(read, n->arg[0])) /* it is loaded already */
            w->fresh[read->at[i]] = w->fresh[n->arg[0]];
        else
            add_tensor(&to, read->at[i], name_of(&to, read->at[i]), at, false);
    }
    for (int i = 0; i < made->count; i++)
        epi_extract_node(&to.x, made->at[i]);
    for (int t = g->input_count; t < g->tensor_count; t++) {
        int node = only >= 0 ? g->tensors[t].node : value_of(w, t);
        if (stores_output(w, stores, only, t))
            add_tensor(&to, node, g->tensors[t].name, (epi_part_tensor){t, -1}, true);
    }
    for (int i = 0; i < stores->count; i++) {
        int node = stores->at[i];
        if (w->s->put_by[node] != EPI_NO_NODE)
            add_tensor(&to, node, name_of(&to, node), (epi_part_tensor){w->s->put_into[node], -1}, true);
        if (w->value[node] < 0)
            continue;
        add_tensor(&to, node, name_of(&to, node), (epi_part_tensor){-1, w->value[node]}, true);
    }
    if (p->graph.tensor_count > 2 * EPI_MAX_TENSORS)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "a part has more than %d tensors", 2 * EPI_MAX_TENSORS);
    int slices = 0;
    for (int t = 0; t < p->graph.tensor_count; t++)
        slices += p->slices[t].memory.count > 0;
    if (slices > EPI_PART_SLICES)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "a part has more than %d slices", EPI_PART_SLICES);
    epi_graph_finish(&p->graph);
    w->cut->part_count++;
    return epi_graph_status(&p->graph, err);
}

static bool is_copy(epi_cut_placement_kind kind) {
    return kind == EPI_PLACED_INPUT || kind == EPI_PLACED_VIEW;
}

/* Does the backend refuse the part that was written last? Then its products do without one thing that was taken
 * for granted of them: they lose no more than they must. */
static void mark_refused(writer *w, const epi_placer_part *p) {
    const epi_spec part = epi_part_spec(w->spec, &w->cut->parts[w->cut->part_count - 1]);
    if (p->product == EPI_NO_NODE)
        return;
    unsigned what = epi_refused_of(&part) & ~w->without[p->product];
    w->attends |= p->attention && !what;
    what &= -what & EPI_REFUSED_OF_PART;
    w->refused |= what;
    w->gone |= what;
    w->without[p->product] |= what;
    if (p->pair != EPI_NO_NODE)
        w->without[p->pair] |= what;
    for (int i = 0; i < p->added_count; i++)
        w->without[p->added[i]] |= what;
    for (int v = 1; p->attention && v < p->attention->plan.sum_count; v++)
        w->without[p->attention->plan.sums[v].product] |= what;
}

/* An output that is a copy of an input is stored by rows of its shape that read it anyway. */
static void add_copies(writer *w, int q, epi_node_list *stores, bool *copied) {
    const epi_graph *g = w->spec->graph;
    const epi_placer_part *p = &w->s->parts[q];
    epi_axes axes = p->rows;
    epi_axes_unite(&axes, &p->cols);
    for (int t = g->input_count; t < g->tensor_count && p->kind == EPI_KIND_ROWS; t++) {
        int node = g->tensors[t].node;
        const epi_node *n = &g->nodes[node];
        if (n->op != EPI_OP_INPUT || !is_stored(&w->values[q].loads, node) ||
            !epi_axes_same_set(&n->axes, &axes) || !epi_dtype_in_f32(w->spec->types[n->tensor]) ||
            (w->s->first && (q < w->s->first) != w->s->forward[node]) || copied[t])
            continue;
        copied[t] = true;
        if (!is_stored(stores, node))
            stores->at[stores->count++] = node;
    }
}

/* Is it an input of f32 or less, so that rows can copy it? */
static bool is_copied_by_rows(const writer *w, int node) {
    const epi_node *n = &w->spec->graph->nodes[node];
    return n->op == EPI_OP_INPUT && epi_dtype_in_f32(w->spec->types[n->tensor]);
}

/* With the output that is a copy of an input come the others of the same axes and direction. Are there any? */
static bool add_others(writer *w, int first, epi_node_list *stores, bool *copied) {
    const epi_graph *g = w->spec->graph;
    int of = g->tensors[first].node, tensors = 2;
    for (int t = first + 1; t < g->tensor_count && is_copied_by_rows(w, of); t++) {
        int node = g->tensors[t].node;
        if (copied[t] || !is_copied_by_rows(w, node) || w->s->forward[node] != w->s->forward[of] ||
            !epi_axes_same_set(&g->nodes[node].axes, &g->nodes[of].axes) ||
            (tensors + 2 > w->s->limits->tensors && !is_stored(stores, node)))
            continue;
        tensors += 2;
        copied[t] = true;
        if (!is_stored(stores, node))
            stores->at[stores->count++] = node;
    }
    return tensors > 2;
}

/* Does anyone want the value in memory: a later part, or an output? */
static bool is_wanted(const writer *w, int node) {
    const epi_graph *g = w->spec->graph;
    bool wanted = w->value[node] >= 0 || w->s->put_by[node] != EPI_NO_NODE;
    for (int t = g->input_count; t < g->tensor_count && !wanted; t++)
        wanted = value_of(w, t) == node;
    return w->s->forced[node] && wanted;
}

/* Writes the part of what q stores, if it stores something, in its place among the placer's. */
static epi_status write_stores(writer *w, int q, epi_node_list *stores, bool *copied, epi_error *err) {
    const epi_node_list *own = &w->values[q].own;
    stores->count = 0;
    for (int i = 0; i < own->count; i++)
        if (is_wanted(w, own->at[i]))
            stores->at[stores->count++] = own->at[i];
    if (!stores->count)
        return EPI_OK;
    add_copies(w, q, stores, copied);
    w->cut->part_count = q;
    EPI_TRY(write_part(w, q, stores, -1, err));
    mark_refused(w, &w->s->parts[q]);
    return EPI_OK;
}

/* Writes the parts that store something: those with products first, and the others where none of these is refused.
 * *backward is the first of the direction that comes last. */
static epi_status write_parts(writer *w, int *backward, epi_error *err) {
    const epi_graph *g = w->spec->graph;
    epi_cut *cut = w->cut;
    epi_node_list stores = {epi_arena_alloc(w->arena, ((size_t)g->node_count + 1) * sizeof *stores.at), 0};
    bool *copied = epi_arena_alloc(w->arena, (size_t)g->tensor_count + 1);
    epi_status status = epi_has_memory(stores.at && copied, err);
    for (int others = 0; others < 2 && !w->refused; others++)
        for (int q = 0; q < w->s->part_count && status == EPI_OK; q++)
            if ((w->s->parts[q].product == EPI_NO_NODE) == others)
                status = write_stores(w, q, &stores, copied, err);
    if (w->refused & EPI_REFUSED_ATTENTION && !w->attends)
        w->gone |= EPI_REFUSED_ATTENTIONS;
    if (status != EPI_OK || w->refused)
        return status;
    *backward = cut->part_count = 0;
    for (int q = 0; q < w->s->part_count; q++) {
        if (q == w->s->first)
            *backward = cut->part_count;
        if (cut->parts[q].tensors)
            cut->parts[cut->part_count++] = cut->parts[q];
    }
    for (int t = g->input_count; t < g->tensor_count && status == EPI_OK; t++)
        if (is_copy(w->s->placement[value_of(w, t)].kind) &&
            !copied[t]) { /* of an input, a value or a constant */
            stores.at[0] = g->tensors[t].node;
            stores.count = 1;
            bool several = add_others(w, t, &stores, copied);
            status = write_part(w, -1, &stores, several ? -1 : t, err);
        }
    if (status == EPI_OK)
        epi_cut_lives(w->cut);
    return status;
}

/* The parts, where products do without what is marked; and what is marked now, as the backend refused some.
 * *backward is the first of the direction that comes last. */
static epi_status make_parts(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                             unsigned *without, epi_cut *out, bool *refused, int *backward, epi_error *err) {
    const epi_graph *g = spec->graph;
    size_t nodes = (size_t)g->node_count + 1;
    epi_placer placer;
    writer w = {
        .arena = arena, .spec = spec, .s = &placer, .cut = out, .without = without, .gone = out->without};
    *out = (epi_cut){0};
    EPI_TRY(epi_placer_make(arena, spec, limits, without, NULL, &placer, err));
    epi_part_values *values = epi_placer_loads(arena, &placer);
    if (!values)
        return arena->failed ? epi_fail(err, EPI_ERR_MEMORY, "out of memory")
                             : epi_fail(err, EPI_ERR_UNSUPPORTED,
                                        "a kernel would need a value that none before it can store");
    EPI_TRY(epi_placer_spill(arena, &placer, &values, err));
    w.values = values;
    out->parts = epi_arena_alloc(arena, ((size_t)placer.part_count + (size_t)g->tensor_count + 1) *
                                            sizeof *out->parts);
    out->values = epi_arena_alloc(arena, nodes * sizeof *out->values);
    w.value = epi_arena_alloc(arena, nodes * sizeof *w.value);
    w.home = epi_arena_alloc(arena, nodes * sizeof *w.home);
    w.fresh = epi_arena_alloc(arena, nodes * sizeof *w.fresh);
    w.loads = epi_arena_alloc(arena, nodes * sizeof *w.loads);
    EPI_TRY(epi_has_memory(out->parts && out->values && w.value && w.home && w.fresh && w.loads, err));
    epi_status status = give_homes(&w, err);
    if (status == EPI_OK)
        status = write_parts(&w, backward, err);
    *refused = status == EPI_OK && w.refused != 0;
    out->without = w.gone;
    return status;
}

epi_status epi_cut_make(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                        epi_cut *out, epi_error *err) {
    unsigned *without = epi_arena_alloc(arena, ((size_t)spec->graph->node_count + 1) * sizeof *without);
    int backward;
    bool refused = true;
    epi_status status = epi_has_memory(without, err);
    out->without = 0;
    while (status == EPI_OK && refused)
        status = make_parts(arena, spec, limits, without, out, &refused, &backward, err);
    if (status == EPI_OK && !epi_cut_order(arena, spec, out, backward))
        status = epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    if (status == EPI_OK)
        status = epi_cut_split(arena, spec, limits, out, err);
    if (status == EPI_OK)
        epi_cut_lives(out);
    return status == EPI_OK ? epi_cut_lay_out(arena, out, err) : status;
}
