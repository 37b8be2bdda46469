/* prepare.c: splits a program in two if inputs are declared `param`.
 *
 * A value that depends on params alone, and has no row axis, is the same in every call. Such values are
 * prepared if something else reads them: parts of their own compute them once, and they are inputs to the
 * rest. Not every one is worth it. A value that is elementwise in params costs nothing where it is used,
 * unless it is an operand of a product. And a value is not prepared if it takes more memory than its
 * operands, as a 16-bit weight would that is stored as integers and a scale. */
#include "pass/rewrite/prepare.h"

#include <stdio.h>
#include <string.h>

#include "pass/analyse/stored.h"
#include "pass/place/extract.h"

typedef enum kind { KIND_CONSTANT, KIND_PARAM, KIND_OTHER } kind;

typedef struct chooser {
    const epi_spec *spec;
    const epi_graph *g;
    kind *kinds;           /* by node */
    const epi_dtype *said; /* by node; see stored.h */
    bool *rest;            /* by node: the rest makes it, or reads it where it is an input */
    bool *once;            /* by node: it is made when preparing */
    bool *chosen;          /* by node: it is a prepared value */
    epi_visits visits;
} chooser;

/* ---- what is prepared ---- */

static kind kind_of(const chooser *c, int node) {
    const epi_node *n = &c->g->nodes[node];
    kind worst = KIND_CONSTANT;
    if (epi_spec_has_rows(c->spec, &n->axes) || epi_spec_has_rows(c->spec, &n->over))
        return KIND_OTHER;
    if (n->op == EPI_OP_INPUT)
        return c->g->tensors[n->tensor].param ? KIND_PARAM : KIND_OTHER;
    for (int a = 0; a < 3; a++)
        if (n->arg[a] != EPI_NO_NODE && c->kinds[n->arg[a]] > worst)
            worst = c->kinds[n->arg[a]];
    return worst;
}

/* Operands of products are kept in the storage type, all else in f32. */
static epi_dtype type_of(const chooser *c, int node) {
    bool operand = !epi_is_vector(&c->g->nodes[node].axes) && epi_feeds_product(c->g, node);
    return epi_stored_type(c->said[node], !operand, c->spec->type);
}

/* Is it another view of its operand: other names of axes, or a slice? */
static bool is_view(const epi_graph *g, int node) {
    int64_t at;
    return epi_op_is_view(g->nodes[node].op) ||
           (g->nodes[node].op == EPI_OP_GATHER && epi_graph_at_number(g, node, &at));
}

static int64_t bytes_of(const chooser *c, int node, epi_dtype type) {
    return epi_axes_size(&c->g->nodes[node].axes, c->spec->sizes) * (int64_t)epi_dtype_size(type);
}

/* Are these segments that someone has made of offsets, which he reads instead? Then the offsets are what there is to
 * prepare. */
static bool is_read_by_offsets(const epi_graph *g, int node) {
    epi_use_list uses = epi_graph_uses(g, node);
    bool read = false;
    for (int i = 0; i < uses.count && g->nodes[node].op == EPI_OP_SEGMENTS; i++)
        read |= uses.at[i].node != EPI_NO_NODE && epi_node_segments(g, &g->nodes[uses.at[i].node]) == node;
    return read;
}

static bool is_worth_it(chooser *c, int node) {
    const epi_graph *g = c->g;
    int64_t made = bytes_of(c, node, type_of(c, node)), of = 0;
    bool views = true, maps = true;
    epi_visits_begin(&c->visits, node);
    for (int i; epi_visits_next(&c->visits, &i);) {
        const epi_node *n = &g->nodes[i];
        if (n->op == EPI_OP_INPUT) {
            of += bytes_of(c, i, c->spec->types[n->tensor]);
            continue;
        }
        views &= is_view(g, i);
        maps &= is_view(g, i) || epi_op_on_tile(n->op) || epi_op_is_leaf(n->op);
        for (int a = 0; a < epi_node_operands(n); a++)
            if (c->kinds[n->arg[a]] == KIND_PARAM)
                epi_visit(&c->visits, n->arg[a]);
    }
    bool nowhere = g->nodes[node].on_load ||
                   epi_scaled_is_read(g, node) || /* a product makes it as it loads it */
                   is_read_by_offsets(g, node);
    return !nowhere && !views && (!maps || epi_feeds_product(g, node)) && made <= of;
}

/* Returns how many values are prepared. */
static int choose(chooser *c) {
    const epi_graph *g = c->g;
    int count = 0;
    for (int i = 0; i < g->node_count; i++)
        c->kinds[i] = kind_of(c, i);
    for (int t = g->input_count; t < g->tensor_count; t++)
        c->rest[g->tensors[t].node] = true;
    for (int i = g->node_count - 1; i >= 0; i--) {
        const epi_node *n = &g->nodes[i];
        if (c->rest[i] && c->kinds[i] == KIND_PARAM && n->op != EPI_OP_INPUT && is_worth_it(c, i)) {
            c->chosen[i] = c->once[i] = true;
            count++;
        }
        for (int a = 0; a < epi_node_operands(n); a++) {
            c->once[n->arg[a]] |= c->once[i];
            c->rest[n->arg[a]] |= c->rest[i] && !c->chosen[i];
        }
    }
    return count;
}

/* ---- the halves ---- */

/* A half that is being written. */
typedef struct writing {
    epi_extract x;
    const chooser *c;
    epi_half *half;
} writing;

/* A name for a prepared value: its own, if no tensor of the program has it. */
static const char *name_of(epi_arena *arena, const epi_graph *g, int node) {
    char text[32];
    const char *name = g->nodes[node].name;
    if (name && !epi_graph_has_tensor(g, name))
        return name;
    snprintf(text, sizeof text, "v%d", node);
    return epi_free_name(arena, text, epi_graph_has_tensor, g);
}

static void add_tensor(writing *w, const epi_tensor_decl *decl, epi_dtype type, epi_part_tensor at,
                       int node) {
    epi_tensor_decl own = *decl;
    int t = w->half->graph.tensor_count;
    own.param = false;
    w->half->types[t] = type;
    w->half->at[t] = at;
    if (decl->is_output)
        epi_extract_output(&w->x, &own, w->x.fresh[node]);
    else
        epi_extract_input(&w->x, &own, node);
}

static void add_prepared(writing *w, int number, int node, bool output) {
    const epi_node *n = &w->c->g->nodes[node];
    epi_dtype type = type_of(w->c, node);
    epi_tensor_decl decl = {.name = name_of(w->half->graph.arena, w->c->g, node),
                            .is_output = output,
                            .has_type = n->axes.count && type != w->c->spec->type,
                            .type = type,
                            .axes = n->axes,
                            .place = n->place};
    add_tensor(w, &decl, type, (epi_part_tensor){-1, number}, node);
}

/* Has a tensor of the half this dim? Else a text of it could not name the axis. */
static bool knows_dim(const epi_graph *g, int dim) {
    for (int t = 0; t < g->tensor_count; t++)
        if (epi_axes_find_dim(&g->tensors[t].axes, dim) >= 0)
            return true;
    return false;
}

static int write_size(epi_extract *x, const epi_node *n) {
    const epi_spec *spec = x->context;
    if (n->op != EPI_OP_SIZE || spec->is_row[n->over.at[0].dim] || knows_dim(x->to, n->over.at[0].dim))
        return EPI_NO_NODE;
    return epi_graph_const(x->to, (double)epi_axis_size(n->over.at[0], spec->sizes));
}

/* Writes the half that has these nodes; the first one makes prepared values, the second takes them. */
static epi_status write_half(epi_arena *arena, const chooser *c, const epi_prepared *p, bool first,
                             epi_half *half, epi_error *err) {
    const epi_graph *g = c->g;
    const bool *wanted = first ? c->once : c->rest;
    size_t tensors = (size_t)g->tensor_count + (size_t)p->count + 1, nodes = (size_t)g->node_count + 1;
    writing w = {.x = {.write = write_size, .context = c->spec}, .c = c, .half = half};
    *half = (epi_half){.graph = {.arena = arena}};
    half->types = epi_arena_alloc(arena, tensors * sizeof *half->types);
    half->at = epi_arena_alloc(arena, tensors * sizeof *half->at);
    half->node = epi_arena_alloc(arena, 2 * nodes * sizeof *half->node);
    if (!epi_extract_begin(&w.x, g, &half->graph, (int)tensors))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int t = 0; t < g->input_count; t++)
        if (wanted[g->tensors[t].node])
            add_tensor(&w, &g->tensors[t], c->spec->types[t], (epi_part_tensor){t, -1}, g->tensors[t].node);
    for (int i = 0; i < p->count && !first; i++)
        add_prepared(&w, i, p->values[i], false);
    memcpy(w.x.needed, wanted, (size_t)g->node_count);
    epi_extract_copy(&w.x);
    for (int i = 0; i < p->count && first; i++)
        add_prepared(&w, i, p->values[i], true);
    for (int t = g->input_count; t < g->tensor_count && !first; t++)
        add_tensor(&w, &g->tensors[t], c->spec->types[t], (epi_part_tensor){t, -1}, g->tensors[t].node);
    for (int i = 0; i < g->node_count && !epi_graph_failed(&half->graph); i++)
        if (wanted[i])
            half->node[w.x.fresh[i]] = i;
    epi_graph_finish(&half->graph);
    return epi_graph_status(&half->graph, err);
}

epi_status epi_prepare_split(epi_arena *arena, const epi_spec *spec, epi_prepared *out, epi_error *err) {
    const epi_graph *g = spec->graph;
    size_t nodes = (size_t)g->node_count + 1;
    chooser c = {.spec = spec, .g = g};
    bool any = false;
    *out = (epi_prepared){0};
    for (int t = 0; t < g->input_count; t++)
        any |= g->tensors[t].param;
    if (!any)
        return EPI_OK;
    c.kinds = epi_arena_alloc(arena, nodes * sizeof *c.kinds);
    c.said = epi_stored_find(arena, g, spec->types, spec->type);
    c.rest = epi_arena_alloc(arena, nodes);
    c.once = epi_arena_alloc(arena, nodes);
    c.chosen = epi_arena_alloc(arena, nodes);
    out->values = epi_arena_alloc(arena, nodes * sizeof *out->values);
    if (!epi_visits_make(arena, g->node_count, &c.visits))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    int count = choose(&c);
    for (int i = 0; i < g->node_count; i++)
        if (c.chosen[i])
            out->values[out->count++] = i;
    if (!count)
        return EPI_OK;
    EPI_TRY(write_half(arena, &c, out, true, &out->once, err));
    return write_half(arena, &c, out, false, &out->rest, err);
}

/* ---- their cuts as one ---- */

/* Adds the parts and the values of a half. Prepared values have numbers from `prepared` on. */
static void add_half(const epi_half *half, const epi_cut *from, int prepared, epi_cut *to) {
    int values = to->value_count, parts = to->part_count;
    for (int i = 0; i < from->value_count; i++) {
        epi_cut_value v = from->values[i];
        v.node = v.node == EPI_NO_NODE ? EPI_NO_NODE : half->node[v.node];
        v.offset = 0; /* they are laid out once more */
        v.first += parts;
        v.last += parts;
        v.part += parts;
        to->values[to->value_count++] = v;
    }
    for (int i = 0; i < from->part_count; i++) {
        epi_part *p = &to->parts[to->part_count++];
        *p = from->parts[i];
        for (int t = 0; t < p->graph.tensor_count; t++) {
            epi_part_tensor at = p->tensors[t];
            if (at.tensor < 0)
                at.value += values;
            else if (half->at[at.tensor].tensor >= 0)
                at = half->at[at.tensor];
            else
                at = (epi_part_tensor){-1, prepared + half->at[at.tensor].value};
            p->tensors[t] = at;
        }
    }
}

/* The part that stores a value, or -1: it has no elements. */
static int find_part(const epi_cut *cut, int value) {
    for (int i = 0; i < cut->part_count; i++)
        for (int t = cut->parts[i].graph.input_count; t < cut->parts[i].graph.tensor_count; t++)
            if (cut->parts[i].tensors[t].tensor < 0 && cut->parts[i].tensors[t].value == value)
                return i;
    return -1;
}

epi_status epi_prepare_join(epi_arena *arena, const epi_spec *spec, const epi_prepared *halves,
                            const epi_cut *once, const epi_cut *rest, epi_cut *out, epi_error *err) {
    int between = once->value_count + rest->value_count;
    size_t values = (size_t)between + (size_t)halves->count + 1;
    *out = (epi_cut){.prepared_parts = once->part_count, .prepared_values = halves->count};
    out->parts =
        epi_arena_alloc(arena, (size_t)(once->part_count + rest->part_count + 1) * sizeof *out->parts);
    out->values = epi_arena_alloc(arena, values * sizeof *out->values);
    EPI_TRY(epi_has_memory(out->parts && out->values, err));
    out->without = once->without | rest->without;
    add_half(&halves->once, once, between, out);
    add_half(&halves->rest, rest, between, out);
    for (int i = 0; i < halves->count; i++) {
        int node = halves->values[i], part = find_part(out, between + i);
        const epi_graph *g = &halves->once.graph;
        epi_dtype type = halves->once.types[g->input_count + i];
        int64_t count = epi_axes_size(&spec->graph->nodes[node].axes, spec->sizes);
        epi_cut_value v = {.node = node,
                           .axes = spec->graph->nodes[node].axes,
                           .type = type,
                           .bytes = epi_round_up(count * (int64_t)epi_dtype_size(type), 256),
                           .offset = out->prepared_bytes,
                           .first = part,
                           .last = out->part_count - 1,
                           .part = part,
                           .prepared = true};
        out->prepared_bytes += v.bytes;
        out->values[out->value_count++] = v;
    }
    return epi_cut_lay_out(arena, out, err);
}
