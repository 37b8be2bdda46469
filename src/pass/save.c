/* save.c: what a backward program gets from the forward and what it makes again.
 *
 * Both are put into one graph, where equal values are one node. What the backward reads of the forward is
 * followed down to values that are worth their memory; there the graph is taken apart. */
#include "pass/save.h"

#include <stdio.h>
#include <string.h>

typedef struct split {
    epi_graph g;    /* both: the program's inputs, the cotangents; its results, the gradients */
    int own;        /* how many of the inputs are the program's: the others are cotangents */
    int results;    /* how many of the outputs are the program's */
    bool *backward; /* by node: it depends on a cotangent */
    bool *looked;   /* by node: the backward wants it, and it was decided how */
    bool *saved;    /* by node */
    bool *vector;   /* by node: made of reductions alone */
} split;

/* ---- both in one ---- */

static void copy_nodes(epi_graph *to, const epi_graph *from, int *copy) {
    for (int i = 0; i < from->node_count && !epi_graph_failed(to); i++) {
        const epi_node *n = &from->nodes[i];
        int arg[3];
        for (int a = 0; a < 3; a++)
            arg[a] = n->arg[a] == EPI_NO_NODE ? EPI_NO_NODE : copy[n->arg[a]];
        to->place = n->place;
        copy[i] = epi_graph_value(to, epi_graph_again(to, n, arg));
    }
}

static void unite(split *s, const epi_graph *program, const epi_graph *gradient) {
    epi_graph *g = &s->g;
    epi_arena *arena = g->arena;
    size_t nodes = (size_t)(program->node_count + gradient->node_count) + 1;
    int *first = epi_arena_alloc(arena, nodes * sizeof *first), *second = first;
    g->dim_count = program->dim_count;
    memcpy(g->dims, program->dims, sizeof g->dims);
    g->input_count = gradient->input_count;
    s->own = program->input_count;
    s->results = program->tensor_count - program->input_count;
    g->tensor_count = gradient->tensor_count + s->results;
    g->tensors = epi_arena_alloc(arena, (size_t)(g->tensor_count + 1) * sizeof *g->tensors);
    if (epi_graph_failed(g))
        return;
    second = first + program->node_count;
    copy_nodes(g, program, first);
    copy_nodes(g, gradient, second);
    for (int t = 0; t < g->tensor_count && !epi_graph_failed(g); t++) {
        bool input = t < g->input_count, result = !input && t < g->input_count + s->results;
        int from = result ? t - g->input_count + program->input_count : input ? t : t - s->results;
        g->tensors[t] = result ? program->tensors[from] : gradient->tensors[from];
        g->tensors[t].node = result ? first[g->tensors[t].node] : second[g->tensors[t].node];
    }
    epi_graph_finish(g);
}

/* ---- the choice ---- */

static bool is_leaf(const epi_graph *g, int node) {
    return epi_ops[g->nodes[node].op].cls == EPI_CLASS_LEAF;
}

/* A reduction; or a map of such, and of numbers, that is no longer than they are. */
static bool is_vector(const split *s, int node) {
    const epi_node *n = &s->g.nodes[node];
    epi_op_class cls = epi_ops[n->op].cls;
    if (cls == EPI_CLASS_REDUCE)
        return true;
    bool any = false;
    for (int a = 0; a < 3 && cls == EPI_CLASS_MAP; a++) {
        int arg = n->arg[a];
        if (arg == EPI_NO_NODE || !s->g.nodes[arg].axes.count)
            continue;
        if (!s->vector[arg] || !epi_axes_same_set(&s->g.nodes[arg].axes, &n->axes))
            return false;
        any = true;
    }
    return any;
}

static bool is_result(const split *s, int node) {
    for (int t = s->g.input_count; t < s->g.input_count + s->results; t++)
        if (s->g.tensors[t].node == node && !(s->g.tensors[t].has_type && s->g.tensors[t].type == EPI_I32))
            return true;
    return false;
}

static bool is_worth_saving(const split *s, int node) {
    const epi_node *n = &s->g.nodes[node];
    epi_op_class cls = epi_ops[n->op].cls;
    if (n->saving != EPI_SAVE_OPEN)
        return n->saving == EPI_SAVE_KEEP;
    return s->vector[node] || cls == EPI_CLASS_PRODUCT || n->op == EPI_OP_SCATTER || is_result(s, node);
}

/* From the last value to the first: what is wanted is saved, or what it is made of is wanted. */
static void choose(split *s) {
    const epi_graph *g = &s->g;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        s->backward[i] = n->op == EPI_OP_INPUT && n->tensor >= s->own;
        for (int a = 0; a < 3; a++)
            s->backward[i] |= n->arg[a] != EPI_NO_NODE && s->backward[n->arg[a]];
        s->vector[i] = !s->backward[i] && is_vector(s, i);
    }
    for (int t = g->input_count + s->results; t < g->tensor_count; t++)
        s->looked[g->tensors[t].node] = true;
    for (int i = g->node_count - 1; i >= 0; i--) {
        if (!s->looked[i] || is_leaf(g, i))
            continue;
        s->saved[i] = !s->backward[i] && is_worth_saving(s, i);
        for (int a = 0; a < 3 && !s->saved[i]; a++)
            if (g->nodes[i].arg[a] != EPI_NO_NODE)
                s->looked[g->nodes[i].arg[a]] = true;
    }
}

/* ---- two programs ---- */

/* The output that is this value and no integer, or -1. */
static int result_of(const split *s, int node) {
    for (int t = s->g.input_count; t < s->g.input_count + s->results; t++)
        if (s->g.tensors[t].node == node && is_result(s, node))
            return t;
    return -1;
}

static bool is_taken(const epi_tensor_decl *tensors, int count, const char *name) {
    for (int t = 0; t < count; t++)
        if (!strcmp(tensors[t].name, name))
            return true;
    return false;
}

/* A name for a saved value: its own, unless a tensor of either program has it. */
static const char *name_of(const split *s, int node, const epi_tensor_decl *saved, int count) {
    const epi_graph *g = &s->g;
    const char *own = g->nodes[node].name ? g->nodes[node].name : "saved";
    char text[100];
    snprintf(text, sizeof text, "%.80s", own);
    for (int number = 2; is_taken(g->tensors, g->tensor_count, text) || is_taken(saved, count, text);
         number++)
        snprintf(text, sizeof text, "%.80s_%d", own, number);
    return epi_arena_text(g->arena, text, strlen(text));
}

static epi_tensor_decl declare(const split *s, int node, const char *name, bool output) {
    const epi_node *n = &s->g.nodes[node];
    bool is_short = n->axes.count < 2; /* it is kept in f32 */
    return (epi_tensor_decl){.name = name,
                             .is_output = output,
                             .has_type = is_short && n->axes.count,
                             .type = EPI_F32,
                             .axes = n->axes,
                             .node = node,
                             .place = n->place};
}

/* A program of these tensors: inputs stand for what they are of the whole, and what is made of them is
 * copied. Tensors' nodes are those of the whole. */
static void extract(const split *s, const epi_tensor_decl *tensors, int inputs, int count, epi_graph *out) {
    const epi_graph *g = &s->g;
    epi_arena *arena = out->arena;
    *out =
        (epi_graph){.arena = arena, .dim_count = g->dim_count, .input_count = inputs, .tensor_count = count};
    memcpy(out->dims, g->dims, sizeof out->dims);
    size_t nodes = (size_t)g->node_count + 1;
    int *copy = epi_arena_alloc(arena, nodes * sizeof *copy);
    bool *needed = epi_arena_alloc(arena, nodes);
    out->tensors = epi_arena_alloc(arena, (size_t)(count + 1) * sizeof *out->tensors);
    if (epi_graph_failed(out))
        return;
    for (int i = 0; i < g->node_count; i++)
        copy[i] = EPI_NO_NODE;
    for (int t = 0; t < count; t++)
        out->tensors[t] = tensors[t];
    for (int t = 0; t < inputs; t++)
        copy[tensors[t].node] = out->tensors[t].node = epi_graph_input(out, t);
    for (int t = inputs; t < count; t++)
        needed[tensors[t].node] = true;
    for (int i = g->node_count - 1; i >= 0; i--)
        for (int a = 0; a < 3 && needed[i] && copy[i] == EPI_NO_NODE; a++)
            if (g->nodes[i].arg[a] != EPI_NO_NODE)
                needed[g->nodes[i].arg[a]] = true;
    for (int i = 0; i < g->node_count && !epi_graph_failed(out); i++) {
        if (!needed[i] || copy[i] != EPI_NO_NODE)
            continue;
        int arg[3];
        for (int a = 0; a < 3; a++)
            arg[a] = g->nodes[i].arg[a] == EPI_NO_NODE ? EPI_NO_NODE : copy[g->nodes[i].arg[a]];
        copy[i] = epi_graph_value(out, epi_graph_again(out, &g->nodes[i], arg));
    }
    for (int t = inputs; t < count; t++)
        out->tensors[t].node = copy[tensors[t].node];
    epi_graph_finish(out);
}

static void write_forward(const split *s, const epi_tensor_decl *saved, int saved_count, epi_graph *out) {
    const epi_graph *g = &s->g;
    epi_tensor_decl tensors[3 * EPI_MAX_TENSORS];
    int count = 0, inputs;
    for (int t = 0; t < s->own; t++)
        tensors[count++] = g->tensors[t];
    inputs = count;
    for (int t = g->input_count; t < g->input_count + s->results; t++)
        tensors[count++] = g->tensors[t];
    for (int i = 0; i < saved_count; i++)
        tensors[count++] = saved[i];
    extract(s, tensors, inputs, count, out);
}

static void write_backward(const split *s, const epi_tensor_decl *saved, int saved_count, epi_graph *out) {
    const epi_graph *g = &s->g;
    epi_tensor_decl tensors[4 * EPI_MAX_TENSORS];
    int count = 0, inputs;
    for (int t = 0; t < s->own; t++)
        if (s->looked[g->tensors[t].node])
            tensors[count++] = g->tensors[t];
    for (int t = g->input_count; t < g->input_count + s->results; t++)
        if (s->saved[g->tensors[t].node] && result_of(s, g->tensors[t].node) == t)
            tensors[count++] = g->tensors[t];
    for (int i = 0; i < saved_count; i++)
        tensors[count++] = saved[i];
    for (int t = s->own; t < g->input_count; t++)
        tensors[count++] = g->tensors[t];
    inputs = count;
    for (int t = g->input_count + s->results; t < g->tensor_count; t++)
        tensors[count++] = g->tensors[t];
    for (int t = 0; t < inputs; t++)
        tensors[t].is_output = false;
    if (inputs > EPI_MAX_TENSORS)
        epi_graph_fail(out, "the backward would have more than %d inputs", EPI_MAX_TENSORS);
    else
        extract(s, tensors, inputs, count, out);
}

void epi_save(const epi_graph *program, const epi_graph *gradient, epi_graph *forward, epi_graph *backward) {
    split s = {.g = {.arena = forward->arena}};
    unite(&s, program, gradient);
    size_t nodes = (size_t)s.g.node_count + 1;
    s.backward = epi_arena_alloc(s.g.arena, nodes);
    s.looked = epi_arena_alloc(s.g.arena, nodes);
    s.saved = epi_arena_alloc(s.g.arena, nodes);
    s.vector = epi_arena_alloc(s.g.arena, nodes);
    epi_tensor_decl *saved = epi_arena_alloc(s.g.arena, nodes * sizeof *saved);
    if (!epi_graph_failed(&s.g)) {
        int count = 0;
        choose(&s);
        for (int i = 0; i < s.g.node_count; i++)
            if (s.saved[i] && result_of(&s, i) < 0) {
                if (s.results + count == EPI_MAX_TENSORS) {
                    epi_graph_fail(&s.g, "more than %d values would have to be saved",
                                   EPI_MAX_TENSORS - s.results);
                    break;
                }
                const char *name = name_of(&s, i, saved, count);
                saved[count++] = declare(&s, i, name ? name : "", true);
            }
        if (!epi_graph_failed(&s.g)) {
            write_forward(&s, saved, count, forward);
            write_backward(&s, saved, count, backward);
        }
    }
    if (epi_graph_failed(&s.g))
        forward->error = s.g.error;
    else if (epi_graph_failed(backward) && forward->error.status == EPI_OK)
        forward->error = backward->error;
}
