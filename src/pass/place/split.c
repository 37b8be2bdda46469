/* split.c: splits parts that are no kernel into several that are.
 *
 * A part that no mainloop supports as a whole, or that the backend refused, is visited in the order of its
 * nodes. Each node joins the part that is being filled if one kernel can do both; otherwise a new part
 * begins. In a refused part a product is alone, and no more than half of the other nodes come together. In
 * the end single operations remain, and the last mainloop supports any of these (a pass). */
#include "pass/place/split.h"

#include <stdio.h>
#include <string.h>

#include "pass/analyse/direction.h"
#include "pass/analyse/stored.h"
#include "pass/place/extract.h"
#include "pass/place/kept.h"
#include "pass/place/placer.h"

enum { FREE = -1 }; /* the group of a node that no part makes for others: an input, a leaf, another name */

typedef struct splitter {
    epi_arena *arena; /* of what is written now: of a trial it is another one */
    const epi_spec *spec;
    const epi_backend_limits *limits;
    const epi_part *from;
    int64_t sizes[EPI_MAX_DIMS]; /* that it has: of a loop over slabs those of a slab */
    const epi_dtype *said;
    bool *forward; /* by node */
    bool *number;  /* by node: it is made of constants and sizes alone, as f32 has them */
    int *group;    /* by node: the part that makes it, or FREE */
    bool *alone;   /* by group: it stores its value once, and copies are made of that */
    int *left;     /* by group: it may take so many more nodes */
    int group_count;
    epi_part_tensor *home; /* by node: where later parts find it, */
    int *as;               /* and the output of `from` that it lies there as, or -1 */
    epi_cut *to;
    int value_capacity, part_capacity;
} splitter;

static const epi_graph *graph_of(const splitter *s) {
    return &s->from->graph;
}

/* ---- what is where ---- */

/* What a value is another name of. */
static int root_of(const epi_graph *g, int node) {
    while (epi_op_is_view(g->nodes[node].op))
        node = g->nodes[node].arg[0];
    return node;
}

/* Is it a leaf, or made of numbers that are known? Whoever makes elements of it makes it for himself. */
static bool is_known_value(const splitter *s, int node) {
    return epi_op_is_free(graph_of(s)->nodes[node].op) || s->number[node];
}

/* Is it an operation in 64 bits, or does one take it? Such a one is a pass by itself. */
static bool meets_integers(const epi_graph *g, int node) {
    epi_use_list uses = epi_graph_uses(g, node);
    bool meets = g->nodes[node].integer;
    for (int i = 0; i < uses.count && !meets; i++)
        meets = uses.at[i].node != EPI_NO_NODE && g->nodes[uses.at[i].node].integer;
    return meets;
}

/* Does the node take the other from memory, whatever it is? */
static bool takes_memory(const epi_graph *g, int user, int node) {
    return !epi_op_is_map(g->nodes[user].op) &&
           !(g->nodes[node].op == EPI_OP_CONST || g->nodes[node].op == EPI_OP_SIZE);
}

/* Does the node have these segments, of which it reads the offsets from memory, and nothing else? */
static bool is_segments(const epi_graph *g, int user, int node) {
    return epi_node_segments(g, &g->nodes[user]) == node;
}

/* Is the node taken by another part than its own, or under another name? */
static bool is_loaded(const splitter *s, int node) {
    epi_use_list uses = epi_graph_uses(graph_of(s), node);
    bool loaded = false;
    for (int i = 0; i < uses.count && !loaded; i++)
        loaded = uses.at[i].node != EPI_NO_NODE && s->group[uses.at[i].node] != s->group[node] &&
                 !is_segments(graph_of(s), uses.at[i].node, node);
    return loaded;
}

/* Does the part of its value store this output? Else it is a copy. */
static bool stores_output(const splitter *s, int t) {
    int node = graph_of(s)->tensors[t].node, group = s->group[node];
    return group != FREE && (!s->alone[group] || s->as[node] == t);
}

static epi_dtype type_of(const splitter *s, int node);

/* The type in which parts find a value: that of a tensor of the old part, or of the workspace. */
static epi_dtype found_type(const splitter *s, int node) {
    const epi_graph *g = graph_of(s);
    int root = root_of(g, node), as = g->nodes[root].op == EPI_OP_INPUT ? g->nodes[root].tensor : s->as[root];
    return as >= 0 ? s->from->types[as] : type_of(s, root);
}

/* The type of a value between parts: f32, but products take what is of the storage type, unless it meets an
 * input of f32 there; else a 16-bit product would run at f32's speed. An extreme has the numbers
 * of what it is taken of: it is compared with that. */
static epi_dtype type_of(const splitter *s, int node) {
    const epi_graph *g = graph_of(s);
    bool operand = false, copied = false; /* to an output of more digits */
    epi_use_list uses = epi_graph_uses(g, node);
    for (int i = 0; i < uses.count; i++) {
        epi_use use = uses.at[i];
        copied |= use.node == EPI_NO_NODE && !epi_dtype_is_narrow(s->from->types[use.operand]);
        if (use.node == EPI_NO_NODE || !epi_is_operand(g, use))
            continue;
        const epi_node *other = &g->nodes[g->nodes[use.node].arg[!use.operand]];
        operand |= other->op != EPI_OP_INPUT || epi_dtype_is_narrow(s->from->types[other->tensor]);
    }
    bool narrow = epi_dtype_is_narrow(s->spec->type) && operand && !copied;
    epi_dtype type = narrow || s->spec->path == EPI_PATH_UNFUSED ? s->spec->type : EPI_F32;
    const epi_node *n = &g->nodes[node];
    if (epi_op_reduces(n->op) && epi_ops[n->op].elements && !epi_dtype_holds(type, found_type(s, n->arg[0])))
        type = EPI_F32;
    return epi_stored_type(s->said[node], is_known_value(s, node), type);
}

/* May an update be made in this output, in its operand's place, and others be copies of it? Not where it
 * would be rounded there and the other one would have kept it: an output has its value rounded once, to its
 * own type. */
static bool holds_update(const splitter *s, int node, int output) {
    const epi_graph *g = graph_of(s);
    const epi_node *n = &g->nodes[node];
    epi_dtype type = s->from->types[output];
    bool all = true, others = true;
    for (int a = 0; a < 3; a += 2) /* what it is made of: its first operand and the new elements */
        all &= epi_dtype_holds(type, found_type(s, n->arg[a]));
    for (int t = g->input_count; t < g->tensor_count; t++)
        others &= g->tensors[t].node != node || epi_dtype_holds(type, s->from->types[t]);
    return all || others;
}

static epi_part_tensor add_value(splitter *s, const epi_axes *axes, epi_dtype type, int64_t count) {
    epi_cut *cut = s->to;
    void *values =
        epi_arena_grow(s->arena, cut->values, cut->value_count, &s->value_capacity, sizeof *cut->values);
    if (!values)
        return (epi_part_tensor){-1, -1}; /* the arena tells */
    cut->values = values;
    cut->values[cut->value_count] =
        (epi_cut_value){.node = EPI_NO_NODE,
                        .axes = *axes,
                        .type = type,
                        .slab = s->from->loop >= 0 && epi_axes_has_dim(axes, cut->slab_dim),
                        .bytes = epi_round_up(count * (int64_t)epi_dtype_size(type), 256)};
    return (epi_part_tensor){-1, cut->value_count++};
}

/* Finds where later parts find a value: in an output that holds it, or in the workspace. */
static epi_status give_home(splitter *s, int node, epi_error *err) {
    const epi_graph *g = graph_of(s);
    epi_dtype type = type_of(s, node);
    bool loaded = is_loaded(s, node);
    int outputs = 0, last = -1;
    for (int t = g->tensor_count - 1; t >= g->input_count; t--) {
        if (g->tensors[t].node != node)
            continue;
        outputs++;
        last = t;
        bool same = s->from->types[t] == type || (s->from->types[t] == EPI_F32 && epi_dtype_in_f32(type));
        bool updates = g->nodes[node].op == EPI_OP_UPDATE && !g->nodes[node].integer;
        if (updates ? holds_update(s, node, t) : same)
            s->as[node] = t;
    }
    if (s->as[node] < 0 && outputs == 1 && !loaded)
        s->as[node] = last; /* nobody else wants it */
    if (s->as[node] >= 0 || (!loaded && !s->alone[s->group[node]]))
        return EPI_OK;
    int64_t count = epi_axes_size(&g->nodes[node].axes, s->sizes);
    if (count < 0 || count > (int64_t)1 << 48)
        return epi_fail(err, EPI_ERR_MEMORY, "%s would have more than 2^48 elements",
                        epi_node_label(g, node).text);
    s->home[node] = add_value(s, &g->nodes[node].axes, type, count);
    return EPI_OK;
}

/* ---- a part that is being written ---- */

typedef struct writing {
    epi_extract x;
    const splitter *s;
    epi_part *p;
    bool *taken; /* by node: it is an input, or a leaf that is made here, */
    bool *again; /* or segments, which come with who reads their offsets */
} writing;

/* Has the part or the one that is split a tensor of this name? */
static bool is_known(const void *context, const char *name) {
    const writing *w = context;
    return epi_graph_has_tensor(w->x.to, name) || epi_graph_has_tensor(w->x.from, name);
}

static const char *name_of(const writing *w, int node) {
    char text[32];
    const char *name = w->x.from->nodes[node].name;
    if (name && !is_known(w, name))
        return name;
    snprintf(text, sizeof text, "v%d", node);
    return epi_free_name(w->s->arena, text, is_known, w);
}

/* As a program of its own the part could not name an axis that no tensor of it has. */
static int write_size(epi_extract *x, const epi_node *n) {
    const writing *w = x->context;
    const epi_spec *spec = w->s->spec;
    if (n->op != EPI_OP_SIZE)
        return EPI_NO_NODE;
    if (epi_open_has(spec->open, n->over.at[0].dim))
        return EPI_NO_NODE;
    for (int t = 0; t < x->to->tensor_count; t++)
        if (epi_axes_has_dim(&x->to->tensors[t].axes, n->over.at[0].dim))
            return EPI_NO_NODE;
    return epi_graph_const(x->to, (double)epi_axis_size(n->over.at[0], w->s->sizes));
}

/* Begins a part of so many operations: each has three operands at most, and is stored. Numbers that are
 * stored are among them. */
static epi_status begin(writing *w, const splitter *s, int operations, epi_part *p, epi_error *err) {
    const epi_graph *g = graph_of(s);
    size_t tensors = 4 * (size_t)operations + (size_t)(g->tensor_count - g->input_count) + 1;
    *p = (epi_part){.graph = {.arena = s->arena}, .loop = s->from->loop};
    *w = (writing){.x = {.write = write_size, .names = true}, .s = s, .p = p};
    w->x.context = w;
    p->tensors = epi_arena_alloc(s->arena, tensors * sizeof *p->tensors);
    p->slices = epi_arena_alloc(s->arena, tensors * sizeof *p->slices);
    p->types = epi_arena_alloc(s->arena, tensors * sizeof *p->types);
    w->taken = epi_arena_alloc(s->arena, (size_t)g->node_count + 1);
    w->again = epi_arena_alloc(s->arena, (size_t)g->node_count + 1);
    EPI_TRY(
        epi_has_memory(epi_extract_begin(&w->x, g, &p->graph, (int)tensors) && w->taken && w->again, err));
    p->graph.declared_count = g->dim_count;
    return EPI_OK;
}

/* Adds an input that stands for this node: a tensor of the old part, or a value that another part stores, by
 * its own names of axes. */
static void add_input(writing *w, int node) {
    const splitter *s = w->s;
    const epi_graph *g = graph_of(s);
    int root = root_of(g, node), t = w->p->graph.tensor_count;
    int as = g->nodes[root].op == EPI_OP_INPUT ? g->nodes[root].tensor : s->as[root];
    epi_tensor_decl decl = {.type = type_of(s, root), .axes = g->nodes[root].axes};
    if (as >= 0) {
        decl = g->tensors[as];
        w->p->slices[t] = s->from->slices[as];
        w->p->types[t] = s->from->types[as];
        w->p->tensors[t] = s->from->tensors[as];
    } else {
        decl.has_type = decl.type != s->spec->type && decl.axes.count;
        w->p->types[t] = decl.type;
        w->p->tensors[t] = s->home[root];
    }
    decl.axes = epi_graph_rename_axes(g, node, &decl.axes);
    decl.cotangent = decl.param = false;
    decl.made |= as < 0 || as >= g->input_count;
    if (as < 0 || as >= g->input_count || root != node)
        decl.name = name_of(w, root);
    decl.place = g->nodes[node].place;
    epi_extract_input(&w->x, &decl, node);
}

static void add_output(writing *w, int node, int t) {
    const splitter *s = w->s;
    const epi_graph *g = graph_of(s);
    int at = w->p->graph.tensor_count;
    epi_tensor_decl decl = {.name = t >= 0 ? g->tensors[t].name : name_of(w, node),
                            .type = t >= 0 ? s->from->types[t] : type_of(s, node),
                            .axes = t >= 0 ? g->tensors[t].axes : g->nodes[node].axes,
                            .place = g->nodes[node].place};
    decl.has_type = t >= 0 ? g->tensors[t].has_type : decl.type != s->spec->type && decl.axes.count;
    w->p->types[at] = decl.type;
    w->p->tensors[at] = t >= 0 ? s->from->tensors[t] : s->home[node];
    if (t >= 0)
        w->p->slices[at] = s->from->slices[t];
    epi_extract_output(&w->x, &decl, w->x.fresh[node]);
}

static epi_status end(writing *w, epi_error *err) {
    epi_graph_finish(&w->p->graph);
    return epi_graph_status(&w->p->graph, err);
}

/* Writes the part of a group. */
static epi_status write_group(const splitter *s, int group, epi_part *p, epi_error *err) {
    const epi_graph *g = graph_of(s);
    writing w;
    int operations = 0;
    for (int i = 0; i < g->node_count; i++)
        operations += s->group[i] == group || (s->group[i] != FREE && is_known_value(s, i));
    EPI_TRY(begin(&w, s, operations, p, err));
    for (int i = 0; i < g->node_count; i++)
        for (int a = 0; a < epi_node_operands(&g->nodes[i]) && s->group[i] == group; a++)
            w.taken[g->nodes[i].arg[a]] |= s->group[g->nodes[i].arg[a]] != group;
    for (int i = 0; i < g->node_count; i++)
        if (s->group[i] == group && epi_node_segments(g, &g->nodes[i]) != EPI_NO_NODE) {
            int segments = epi_node_segments(g, &g->nodes[i]);
            w.again[segments] = true;
            w.taken[g->nodes[segments].arg[0]] = true;
        }
    for (int i = g->node_count - 1; i >= 0; i--)
        for (int a = 0;
             a < epi_node_operands(&g->nodes[i]) && w.taken[i] && s->number[i] && s->group[i] == FREE; a++)
            w.taken[g->nodes[i].arg[a]] = true;
    for (int i = 0; i < g->node_count; i++)
        if (w.taken[i] && !w.again[i] && (!is_known_value(s, i) || s->group[i] != FREE))
            add_input(&w, i);
    for (int i = 0; i < g->node_count; i++)
        if (s->group[i] == group || (w.taken[i] && w.x.fresh[i] == EPI_NO_NODE))
            epi_extract_node(&w.x, i);
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (s->group[g->tensors[t].node] == group && stores_output(s, t))
            add_output(&w, g->tensors[t].node, t);
    for (int i = 0; i < g->node_count; i++)
        if (s->group[i] == group && s->as[i] < 0 && (is_loaded(s, i) || s->home[i].value >= 0))
            add_output(&w, i, -1);
    return end(&w, err);
}

/* Writes an output that is a copy: of an input, of a leaf, or of what another part stores. */
static epi_status write_copy(const splitter *s, int t, epi_part *p, epi_error *err) {
    const epi_graph *g = graph_of(s);
    int node = g->tensors[t].node;
    writing w;
    EPI_TRY(begin(&w, s, 1, p, err));
    bool known = is_known_value(s, node) && s->group[node] == FREE;
    if (!known)
        add_input(&w, node);
    w.x.needed[node] = true;
    epi_extract_copy(&w.x);
    add_output(&w, node, t);
    return end(&w, err);
}

/* ---- which come together ---- */

static epi_spec spec_of(const splitter *s, const epi_part *part) {
    epi_spec spec = epi_part_spec(s->spec, part);
    if (part->loop >= 0)
        spec.sizes[s->to->slab_dim] = s->to->slab_rows;
    return spec;
}

/* Is the part one kernel, as far as its plan knows? */
static bool is_kernel(const splitter *s, const epi_part *part) {
    epi_spec spec = spec_of(s, part);
    return epi_verdict_of(&spec).fused;
}

static bool is_plain_kernel(const splitter *s, const epi_part *part) {
    epi_spec spec = spec_of(s, part);
    return part->graph.tensor_count <= s->limits->tensors && epi_verdict_of(&spec).plain;
}

/* Would the group be a kernel as it is now? */
static bool try_group(const splitter *s, int group, bool one) {
    epi_arena scratch = {0};
    splitter trial = *s;
    epi_part part;
    trial.arena = &scratch;
    bool is = write_group(&trial, group, &part, NULL) == EPI_OK &&
              (one ? is_kernel(s, &part) : is_plain_kernel(s, &part));
    epi_arena_free(&scratch);
    return is;
}

/* Can the node join the group? Then it has. */
static bool joins(splitter *s, int node, int group) {
    const epi_graph *g = graph_of(s);
    const epi_node *n = &g->nodes[node];
    for (int a = 0; a < epi_node_operands(n); a++) { /* under another name it is loaded */
        int root = root_of(g, n->arg[a]);
        if (root != n->arg[a] && s->group[root] == group)
            return false;
    }
    s->group[node] = group;
    if (try_group(s, group, false))
        return true;
    s->group[node] = FREE;
    return false;
}

/* Is it a value that has no elements, so that nobody makes it? */
static bool is_empty(const splitter *s, int node) {
    const epi_graph *g = graph_of(s);
    epi_op op = g->nodes[node].op;
    return g->live[node] && !epi_op_is_leaf(op) && !epi_op_is_view(op) &&
           epi_axes_size(&g->nodes[node].axes, s->sizes) == 0;
}

/* Has a part to make the node for others? A leaf where someone wants it in memory. */
static bool is_made(const splitter *s, int node) {
    const epi_graph *g = graph_of(s);
    const epi_node *n = &g->nodes[node];
    epi_use_list uses = epi_graph_uses(g, node);
    bool known = is_known_value(s, node),
         made = g->live[node] && n->op != EPI_OP_INPUT && root_of(g, node) == node && !known;
    for (int u = 0; u < uses.count && known; u++)
        made |= uses.at[u].node != EPI_NO_NODE && takes_memory(g, uses.at[u].node, node);
    return made && epi_axes_size(&n->axes, s->sizes) != 0 && !epi_segments_are_read(g, node);
}

/* The first of the groups from `first` on after which all that the node is made of is there. */
static int earliest_group(const splitter *s, int node, int first) {
    const epi_graph *g = graph_of(s);
    const epi_node *n = &g->nodes[node];
    int reads[EPI_PRODUCT_READS], count = epi_op_is_product(n->op) ? epi_product_reads(g, node, reads) : 0;
    for (int a = 0; a < epi_node_operands(n); a++)
        first = (int)epi_max64(first, s->group[root_of(g, n->arg[a])]);
    for (int i = 0; i < count; i++)
        first = (int)epi_max64(first, s->group[root_of(g, reads[i])]);
    return first;
}

/* Sorts the nodes of a direction into groups of at most so many: each joins the first that takes it. */
static void sort_nodes(splitter *s, bool forward, int most, bool refused) {
    const epi_graph *g = graph_of(s);
    int first = s->group_count;
    bool only = refused && epi_graph_operations(g) < 2; /* it was the operation together with copies of it */
    for (int i = 0; i < g->node_count; i++) {
        if (!is_made(s, i) || s->forward[i] != forward)
            continue;
        bool alone = is_known_value(s, i) || (refused && epi_op_is_product(g->nodes[i].op));
        int group = alone ? s->group_count : earliest_group(s, i, first);
        while (group < s->group_count && !(s->left[group] && joins(s, i, group)))
            group++;
        if (group < s->group_count) {
            s->left[group]--;
            continue;
        }
        group = s->group[i] = s->group_count++;
        s->alone[group] = only || !try_group(s, group, true);
        s->left[group] = !alone && !s->alone[group] && try_group(s, group, false) ? most - 1 : 0;
    }
}

/* ---- all parts ---- */

/* Does the backend refuse the part to be one kernel? What the whole program is to do without is none of ours. */
static bool is_refused(const splitter *s, const epi_part *part) {
    epi_spec spec = spec_of(s, part);
    unsigned what = epi_refused_of(&spec);
    return what && (part->loop >= 0 || !(what & EPI_REFUSED_OF_ALL));
}

static bool make_room(splitter *s) {
    const epi_graph *g = graph_of(s);
    size_t nodes = (size_t)g->node_count + 1;
    s->said = epi_stored_find(s->arena, g, s->from->types, s->spec->type);
    s->forward = epi_arena_alloc(s->arena, nodes);
    s->number = epi_arena_alloc(s->arena, nodes);
    s->group = epi_arena_alloc(s->arena, nodes * sizeof *s->group);
    s->alone = epi_arena_alloc(s->arena, nodes);
    s->left = epi_arena_alloc(s->arena, nodes * sizeof *s->left);
    s->home = epi_arena_alloc(s->arena, nodes * sizeof *s->home);
    s->as = epi_arena_alloc(s->arena, nodes * sizeof *s->as);
    if (s->arena->failed)
        return false;
    epi_find_forward(g, s->forward);
    s->group_count = 0;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        s->number[i] =
            n->op == EPI_OP_CONST || n->op == EPI_OP_SIZE || (epi_op_is_map(n->op) && !meets_integers(g, i));
        for (int a = 0; a < epi_node_operands(n); a++)
            s->number[i] &= s->number[n->arg[a]];
        s->group[i] = FREE;
        s->home[i] = (epi_part_tensor){-1, -1};
        s->as[i] = -1;
    }
    return true;
}

static epi_part *add_part(splitter *s) {
    epi_cut *cut = s->to;
    void *parts =
        epi_arena_grow(s->arena, cut->parts, cut->part_count, &s->part_capacity, sizeof *cut->parts);
    if (parts)
        cut->parts = parts;
    return parts ? &cut->parts[cut->part_count++] : NULL;
}

/* Is the part to be split? Into how many operations at a time? */
static bool is_split(const splitter *s, const epi_part *part, bool *refused, int *most) {
    epi_spec spec = spec_of(s, part);
    int count = epi_graph_operations(&part->graph);
    bool apart = s->spec->path == EPI_PATH_UNFUSED || (!spec.open && epi_spec_has_empty(&spec)),
         views = false;
    *refused = false;
    for (int i = 0; i < part->graph.node_count; i++)
        views |= part->graph.live[i] && epi_op_is_view(part->graph.nodes[i].op);
    if (count < 2 && part->graph.tensor_count - part->graph.input_count == 1 && !views)
        return false;
    bool splits = (count > 1 && apart) || !is_kernel(s, part);
    *refused = !splits && is_refused(s, part);
    *most = apart || count < 2 ? 1 : *refused ? count / 2 : count - 1;
    if (*refused)
        s->to->without |= EPI_REFUSED_KERNEL;
    return splits || *refused;
}

/* Adds what the part is split into. */
static epi_status split(splitter *s, const epi_part *part, bool refused, int most, epi_error *err) {
    const epi_graph *g = &part->graph;
    epi_spec own = spec_of(s, part);
    s->from = part;
    memcpy(s->sizes, own.sizes, sizeof s->sizes);
    EPI_TRY(epi_has_memory(make_room(s), err));
    for (int forward = 1; forward >= 0; forward--)
        sort_nodes(s, forward, most, refused);
    for (int i = 0; i < g->node_count; i++)
        if (s->group[i] != FREE)
            EPI_TRY(give_home(s, i, err));
        else if (is_empty(s, i)) /* whoever takes it has a tensor for it */
            s->home[i] = add_value(s, &g->nodes[i].axes, EPI_F32, 0);
    for (int k = 0; k < s->group_count; k++) {
        epi_part *to = add_part(s);
        EPI_TRY(epi_has_memory(to, err));
        EPI_TRY(write_group(s, k, to, err));
    }
    for (int t = g->input_count; t < g->tensor_count; t++) {
        if (stores_output(s, t) || epi_axes_size(&g->tensors[t].axes, s->sizes) == 0)
            continue;
        epi_part *to = add_part(s);
        EPI_TRY(epi_has_memory(to, err));
        EPI_TRY(write_copy(s, t, to, err));
    }
    return EPI_OK;
}

epi_status epi_cut_split(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                         epi_cut *cut, epi_error *err) {
    splitter s = {
        .arena = arena, .spec = spec, .limits = limits, .to = cut, .value_capacity = cut->value_count};
    for (bool again = true; again;) { /* parts that come of it may be refused in turn */
        const epi_part *parts = cut->parts;
        int count = cut->part_count, most;
        bool refused;
        again = false;
        cut->parts = NULL;
        cut->part_count = s.part_capacity = 0;
        for (int i = 0; i < count; i++) {
            int had = cut->part_count;
            if (is_split(&s, &parts[i], &refused, &most)) {
                EPI_TRY(split(&s, &parts[i], refused, most, err));
                again |= cut->part_count > had + 1;
            } else {
                epi_part *to = add_part(&s);
                EPI_TRY(epi_has_memory(to, err));
                *to = parts[i];
            }
        }
    }
    for (int i = cut->part_count - 1; i >= 0; i--) /* loops go on from the first to the last of theirs */
        if (cut->parts[i].loop >= 0)
            cut->loops[cut->parts[i].loop].first = i;
    for (int i = 0; i < cut->part_count; i++)
        if (cut->parts[i].loop >= 0)
            cut->loops[cut->parts[i].loop].last = i;
    return EPI_OK;
}

epi_status epi_cut_apart(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                         epi_cut *out, epi_error *err) {
    const epi_graph *g = spec->graph;
    size_t tensors = (size_t)g->tensor_count + 1;
    *out = (epi_cut){.parts = epi_arena_alloc(arena, sizeof *out->parts), .part_count = 1};
    epi_part_tensor *at = epi_arena_alloc(arena, tensors * sizeof *at);
    epi_slice *slices = epi_arena_alloc(arena, tensors * sizeof *slices);
    EPI_TRY(epi_has_memory(out->parts && at && slices, err));
    for (int t = 0; t < g->tensor_count; t++)
        at[t] = (epi_part_tensor){t, -1};
    *out->parts = (epi_part){.graph = *g, .tensors = at, .slices = slices, .types = spec->types, .loop = -1};
    EPI_TRY(epi_cut_split(arena, spec, limits, out, err));
    epi_cut_lives(out);
    return epi_cut_lay_out(arena, out, err);
}
