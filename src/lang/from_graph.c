/* from_graph.c: writes a graph as a program in the language, so that the result of a pass can be read,
 * parsed and run.
 *
 * A value gets an assignment of its own if it is an output, has a name in the source, is one of the two
 * halves of an axis, or is used more than once. Every other value is part of the expression that uses it. */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "lang/lower.h"
#include "lang/words.h"

enum { MOST_NESTED = 24 }; /* deeper expressions are given names */

typedef struct writer {
    epi_arena *arena;
    const epi_graph *g;
    epi_made *called;
    epi_ast_program *program;
    const char **names; /* by node: what it is called, or NULL: it stands where it is used */
    int *depth;         /* by node: how deep its expression is */
    int given;          /* names that were made up */
    const char *
        *given_names; /* all that were given, by their hash: a table with room for four times as many */
    size_t name_mask;
    bool *named;             /* by node: a product that has to name what it sums over */
    bool made[EPI_MAX_DIMS]; /* the text so far has this name of an axis */
} writer;

/* ---- names ---- */

/* Where a name is among those that were given, or would be. */
static size_t name_slot(const writer *w, const char *name) {
    epi_hash h = {1, 2};
    epi_hash_add(&h, name, strlen(name));
    size_t at = (size_t)h.b & w->name_mask;
    while (w->given_names[at] && strcmp(w->given_names[at], name) != 0)
        at = (at + 1) & w->name_mask;
    return at;
}

static bool is_taken(const writer *w, const char *name) {
    const epi_graph *g = w->g;
    for (int d = 0; d < g->dim_count; d++)
        if (!strcmp(g->dims[d], name))
            return true;
    if (epi_graph_find_tensor(g, name) >= 0)
        return true;
    if (w->given_names[name_slot(w, name)])
        return true;
    for (int op = 0; op < EPI_OP_COUNT; op++)
        if (!strcmp(epi_ops[op].text, name))
            return true;
    return false;
}

/* The wanted name, with a number after it if that is taken; made up if there is none. */
static const char *fresh_name(writer *w, const char *wanted) {
    char text[160];
    if (wanted)
        snprintf(text, sizeof text, "%.120s", wanted);
    else
        snprintf(text, sizeof text, "v%d", ++w->given);
    for (int i = 2; is_taken(w, text); i++)
        wanted ? snprintf(text, sizeof text, "%.120s_%d", wanted, i)
               : snprintf(text, sizeof text, "v%d", ++w->given);
    const char *name = epi_arena_text(w->arena, text, strlen(text));
    w->given_names[name_slot(w, text)] = name;
    return name;
}

/* ---- expressions ---- */

static epi_ast *new_ast(writer *w, epi_ast_kind kind, int args) {
    epi_ast *e = epi_arena_alloc(w->arena, sizeof *e);
    if (!e)
        return NULL;
    e->kind = kind;
    e->arg_count = args;
    e->args = epi_arena_alloc(w->arena, (size_t)(args + 1) * sizeof *e->args);
    return e->args ? e : NULL;
}

static epi_ast *name_ast(writer *w, const char *name) {
    epi_ast *e = new_ast(w, EPI_AST_NAME, 0);
    if (e)
        e->name = name;
    return e;
}

static epi_ast *number_ast(writer *w, double value) {
    epi_ast *e = new_ast(w, EPI_AST_NUMBER, 0);
    if (e)
        e->number = value;
    return e;
}

/* The operation of these operands: an operator, or a call that names its axes behind them. */
static epi_ast *operation_of(writer *w, epi_op op, epi_ast *const *args, int count) {
    bool word = epi_ops[op].level == EPI_LEVEL_WORD;
    epi_ast *e = new_ast(w, word ? EPI_AST_CALL : count == 1 ? EPI_AST_UNARY : EPI_AST_BINARY, count);
    if (!e)
        return NULL;
    e->op = op;
    e->name = word ? epi_ops[op].text : NULL;
    memcpy(e->args, args, (size_t)count * sizeof *args);
    if (e->kind == EPI_AST_BINARY && args[0]) /* which knows what it is an operand of */
        args[0]->outer = e;
    return e;
}

/* An axis as it is written among arguments: F, 2*F or F/2. */
static epi_ast *axis_ast(writer *w, epi_axis axis) {
    epi_ast *name = name_ast(w, w->g->dims[axis.dim]);
    if (!axis.shift)
        return name;
    epi_ast *factor = number_ast(w, (double)(1L << (axis.shift > 0 ? axis.shift : -axis.shift)));
    return axis.shift > 0 ? operation_of(w, EPI_OP_MUL, (epi_ast *[]){factor, name}, 2)
                          : operation_of(w, EPI_OP_DIV, (epi_ast *[]){name, factor}, 2);
}

static epi_ast *value_ast(writer *w, int node);
static void assign(writer *w, int count, const char *const *names, const epi_dtype *types, epi_ast *value);

/* rename(index(T), T, R): the positions along R, where the text has no R yet. */
static epi_ast *renamed_index_ast(writer *w, int dim) {
    epi_axis from = w->g->same[dim];
    epi_ast *of = axis_ast(w, from);
    w->made[dim] = true;
    epi_ast *index =
        w->made[from.dim] ? operation_of(w, EPI_OP_INDEX, &of, 1) : renamed_index_ast(w, from.dim);
    return operation_of(w, EPI_OP_RENAME,
                        (epi_ast *[]){index, axis_ast(w, from), axis_ast(w, (epi_axis){(int16_t)dim, 0})}, 3);
}

/* What names an axis comes after what makes the name: where that is no value of this graph, a line of its own
 * makes it. */
static void make_axis(writer *w, epi_axis axis) {
    if (w->made[axis.dim])
        return;
    epi_ast *value = renamed_index_ast(w, axis.dim);
    assign(w, 1, (const char *[]){fresh_name(w, NULL)}, NULL, value);
}

/* scatter(d, i, P, Q -> T), of a scatter by batch and where an index has several axes; with one it is scatter(d, i, T). */
static epi_ast *scatter_ast(writer *w, epi_ast *of, int index, const epi_axes *kept, const epi_axes *along) {
    epi_ast *args[2 + 2 * EPI_MAX_AXES] = {of, value_ast(w, index)};
    const epi_axes *have = &w->g->nodes[index].axes;
    epi_axes sums = epi_axes_without(have, kept);
    bool arrow = have->count > 1;
    int count = 2;
    for (int i = 0; i < sums.count && arrow; i++)
        args[count++] = axis_ast(w, sums.at[i]);
    int before = arrow ? count : 0;
    for (int i = 0; i < along->count; i++) {
        make_axis(w, along->at[i]);
        args[count++] = axis_ast(w, along->at[i]);
    }
    epi_ast *e = operation_of(w, EPI_OP_SCATTER, args, count);
    if (e)
        e->arrow = before;
    return e;
}

static epi_ast *call_ast(writer *w, const epi_node *n) {
    epi_ast *args[4 + EPI_MAX_AXES];
    int count = epi_node_operands(n);
    int axes = epi_op_is_map(n->op) ? 0 : n->over.count;
    if (epi_op_scatters(n->op)) {
        epi_axes kept = epi_scatter_kept(w->g, n), along = epi_axes_without(&n->over, &kept);
        return scatter_ast(w, value_ast(w, n->arg[0]), n->arg[1], &kept, &along);
    }
    if (n->op == EPI_OP_INDEX && !n->over.at[0].shift && !w->made[n->over.at[0].dim])
        return renamed_index_ast(w, n->over.at[0].dim);
    for (int i = 0; i < count; i++)
        args[i] = value_ast(w, n->arg[epi_op_written(n->op, i)]);
    if (n->op == EPI_OP_RENAME && !n->over.at[1].shift &&
        epi_axis_equal(n->over.at[0], w->g->same[n->over.at[1].dim]))
        w->made[n->over.at[1].dim] = true;
    for (int i = 0; i < axes; i++) {
        make_axis(w, n->over.at[i]);
        args[count] = axis_ast(w, n->over.at[i]);
        if (args[count] && n->op == EPI_OP_TOPK && i && !n->over.at[i].shift) /* which no tensor may have */
            args[count]->number = (double)w->g->fixed[n->over.at[i].dim];
        count++;
    }
    if (n->op == EPI_OP_SHIFT)
        args[count++] = number_ast(w, n->value);
    return operation_of(w, n->op, args, count);
}

/* Marks products that sum over an axis, and over others, that an output has which they are seen from without
 * another product between: as `@` they would be taken for mistakes. */
static bool find_named(writer *w) {
    const epi_graph *g = w->g;
    epi_visits v;
    if (!epi_visits_make(w->arena, g->node_count, &v))
        return false;
    for (int t = g->input_count; t < g->tensor_count; t++) {
        epi_visits_begin(&v, g->tensors[t].node);
        for (int node; epi_visits_next(&v, &node);) {
            const epi_node *n = &g->nodes[node];
            if (n->op == EPI_OP_MATMUL && n->over.count > 1)
                w->named[node] |= epi_axes_count_in(&n->over, &g->tensors[t].axes) > 0;
            for (int a = 0; a < epi_node_operands(n) && n->op != EPI_OP_MATMUL; a++)
                epi_visit(&v, n->arg[a]);
        }
    }
    return true;
}

/* A product that keeps an axis which both operands have is written as a sum: `@` would sum over all of them.
 */
static bool is_written_as_sum(const writer *w, int node) {
    const epi_node *n = &w->g->nodes[node];
    return n->op == EPI_OP_GROUPED ||
           (n->op == EPI_OP_MATMUL && (w->named[node] || !epi_product_sums_all(w->g, n)));
}

/* gather(w, s, E), or scatter(a*b, s, T -> E). */
static epi_ast *moved_ast(writer *w, epi_op op, epi_ast *of, const epi_node *n) {
    epi_axes none = {0}, group = {1, {epi_grouped_axis(w->g, n)}};
    if (op == EPI_OP_SCATTER)
        return scatter_ast(w, of, n->arg[2], &none, &group);
    epi_ast *args[3] = {of, value_ast(w, n->arg[2]), axis_ast(w, group.at[0])};
    return operation_of(w, op, args, 3);
}

static epi_ast *sum_ast(writer *w, const epi_node *n) {
    epi_ast *factors[2], *args[1 + EPI_MAX_AXES];
    for (int i = 0; i < 2; i++)
        factors[i] = value_ast(w, n->arg[i]);
    bool grouped = n->op == EPI_OP_GROUPED, rows = grouped && epi_grouped_rows(w->g, n);
    if (rows)
        factors[1] = moved_ast(w, EPI_OP_GATHER, factors[1], n);
    args[0] = operation_of(w, EPI_OP_MUL, factors, 2);
    if (grouped && !rows)
        return moved_ast(w, EPI_OP_SCATTER, args[0], n);
    for (int i = 0; i < n->over.count; i++)
        args[1 + i] = axis_ast(w, n->over.at[i]);
    return operation_of(w, EPI_OP_SUM, args, 1 + n->over.count);
}

static epi_ast *operation_ast(writer *w, int node) {
    const epi_node *n = &w->g->nodes[node];
    epi_ast *args[3];
    if (n->op == EPI_OP_CONST)
        return number_ast(w, n->value);
    if (n->op == EPI_OP_INPUT)
        return name_ast(w, w->g->tensors[n->tensor].name);
    if (is_written_as_sum(w, node))
        return sum_ast(w, n);
    if (epi_ops[n->op].level == EPI_LEVEL_WORD)
        return call_ast(w, n);
    for (int i = 0; i < epi_ops[n->op].arity; i++)
        args[i] = value_ast(w, n->arg[i]);
    return operation_of(w, n->op, args, epi_ops[n->op].arity);
}

static epi_ast *value_ast(writer *w, int node) {
    while (w->g->nodes[node].op == EPI_OP_ONCE) /* the text does not say where a value is */
        node = w->g->nodes[node].arg[0];
    return w->names[node] ? name_ast(w, w->names[node]) : operation_ast(w, node);
}

/* ---- assignments ---- */

/* How the text says that a value is stored. An integer is as large as it is, which no text says. */
static epi_dtype stored_type(const epi_graph *g, int node) {
    bool said = node != EPI_NO_NODE && g->nodes[node].has_stored && !epi_dtype_is_integer(g->nodes[node].stored);
    return said ? g->nodes[node].stored : EPI_DTYPE_COUNT;
}

static bool has_stored_type(const epi_graph *g, int node) {
    return stored_type(g, node) != EPI_DTYPE_COUNT;
}

/* What the names are assigned; `types` is how each is stored, or NULL. */
static void assign(writer *w, int count, const char *const *names, const epi_dtype *types, epi_ast *value) {
    epi_ast_assign *a = &w->program->body[w->program->body_count];
    a->names = epi_arena_alloc(w->arena, (size_t)count * sizeof *a->names);
    if (!a->names || !value)
        return;
    for (int i = 0; i < count; i++)
        a->names[i] = (epi_ast_name){.text = names[i], .type = types ? types[i] : EPI_DTYPE_COUNT};
    a->name_count = count;
    a->value = value;
    w->program->body_count++;
}

/* Both halves of an axis are assigned at once, where the first of them is met. */
static void assign_halves(writer *w, int node) {
    const epi_graph *g = w->g;
    const epi_node *n = &g->nodes[node];
    bool second = epi_ops[n->op].second;
    int other = EPI_NO_NODE;
    for (int i = node + 1; i < g->node_count; i++)
        if (epi_op_is_half(g->nodes[i].op) && g->nodes[i].op == (second ? n->op - 1 : n->op + 1) &&
            g->nodes[i].arg[0] == n->arg[0] && epi_axis_equal(g->nodes[i].over.at[0], n->over.at[0]))
            other = i;
    w->names[node] = fresh_name(w, n->name);
    const char *name = fresh_name(w, other == EPI_NO_NODE ? NULL : g->nodes[other].name);
    if (other != EPI_NO_NODE)
        w->names[other] = name;
    epi_dtype mine = stored_type(g, node), others = stored_type(g, other);
    assign(w, 2, (const char *[]){second ? name : w->names[node], second ? w->names[node] : name},
           (epi_dtype[]){second ? others : mine, second ? mine : others}, call_ast(w, n));
}

/* The first output that the value is, or NULL. An output's name has no type in the body: a value that the text
 * gives one has a name of its own, and the output is that. */
static const char *output_name(const epi_graph *g, int node) {
    for (int t = g->input_count; t < g->tensor_count && !has_stored_type(g, node); t++)
        if (g->tensors[t].node == node)
            return g->tensors[t].name;
    return NULL;
}

/* All results of a call that has its own gradient are assigned where the first of them is met. */
static void assign_own(writer *w, int node) {
    const epi_graph *g = w->g;
    const epi_own *own = g->nodes[node].own;
    int count = own->result_count,
        *arguments = epi_arena_alloc(w->arena, (size_t)own->input_count * sizeof *arguments);
    const char **names = epi_arena_alloc(w->arena, (size_t)count * sizeof *names);
    epi_dtype *types = epi_arena_alloc(w->arena, (size_t)count * sizeof *types);
    epi_ast *call = new_ast(w, EPI_AST_CALL, own->input_count);
    if (!arguments || !names || !types || !call || !(call->program = epi_own_program(w->called, g, own)))
        return;
    epi_own_arguments(g, node, arguments);
    for (int i = 0; i < own->input_count; i++)
        call->args[i] = value_ast(w, arguments[i]);
    for (int i = node; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        if (n->op != EPI_OP_OWN || n->own != own || !g->live[i])
            continue;
        const char *output = output_name(g, i);
        names[n->tensor] = w->names[i] = output ? output : fresh_name(w, n->name);
        types[n->tensor] = stored_type(g, i);
    }
    for (int i = 0; i < count; i++)
        if (!names[i]) {
            names[i] = fresh_name(w, NULL);
            types[i] = EPI_DTYPE_COUNT;
        }
    assign(w, count, names, types, call);
}

static bool is_scaled(const epi_graph *g, int node) {
    return epi_op_has_factors(g->nodes[node].op);
}

/* The factors of a value that stand in one expression with it. */
static int find_factors(const writer *w, int node, int *out, int count, int most) {
    for (int a = 0; a < 2 && count < most; a++) {
        int arg = w->g->nodes[node].arg[a];
        if (!w->names[arg] && is_scaled(w->g, arg))
            count = find_factors(w, arg, out, count, most);
        else
            out[count++] = arg;
    }
    return count;
}

/* Would a sum of this value be read as a product? */
static bool is_contraction(const writer *w, int node, const epi_axes *over) {
    enum { MOST = 32 };
    int factors[MOST], count = find_factors(w, node, factors, 0, MOST);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++)
            if (epi_graph_is_contraction(w->g, factors[i], factors[j], over))
                return true;
    return false;
}

/* What is summed and a product of factors itself, which without a name would be sorted anew. */
static bool is_factored(const writer *w, int node) {
    epi_use_list uses = epi_graph_uses(w->g, node);
    for (int i = 0; i < uses.count && is_scaled(w->g, node); i++) {
        const epi_node *user = uses.at[i].node == EPI_NO_NODE ? NULL : &w->g->nodes[uses.at[i].node];
        if (user && is_written_as_sum(w, uses.at[i].node))
            return true;
        if (user && epi_ops[user->op].adds && is_contraction(w, node, &user->over))
            return true;
    }
    return false;
}

/* Is the value used more than once? What is kept in memory is. */
static bool is_shared(const epi_graph *g, int node) {
    epi_use_list uses = epi_graph_uses(g, node);
    return uses.count > 1 || (uses.count && epi_use_op(g, uses.at[0]) == EPI_OP_ONCE);
}

static void write_node(writer *w, int i) {
    const epi_graph *g = w->g;
    const epi_node *n = &g->nodes[i];
    const char *output = output_name(g, i);
    if (n->op == EPI_OP_INPUT) {
        w->names[i] = g->tensors[n->tensor].name;
        return;
    }
    if (w->names[i] || n->op == EPI_OP_ONCE) /* the other half */
        return;
    for (int a = 0; a < 3; a++)
        if (n->arg[a] != EPI_NO_NODE && !w->names[n->arg[a]] && w->depth[n->arg[a]] >= w->depth[i])
            w->depth[i] = w->depth[n->arg[a]] + 1;
    if (n->op == EPI_OP_LIST)
        return;
    if (n->op == EPI_OP_OWN) {
        assign_own(w, i);
        return;
    }
    if (epi_op_is_half(n->op)) {
        assign_halves(w, i);
        return;
    }
    bool leaf =
        epi_op_is_leaf(n->op) || (n->op == EPI_OP_NEG && !n->name && g->nodes[n->arg[0]].op == EPI_OP_CONST);
    bool inside = !n->name && !has_stored_type(g, i) && !is_shared(g, i) && w->depth[i] < MOST_NESTED;
    if (!output && (leaf || (inside && !is_factored(w, i))))
        return;
    epi_ast *value = operation_ast(w, i);
    w->names[i] = output ? output : fresh_name(w, n->name);
    assign(w, 1, &w->names[i], &(epi_dtype){stored_type(g, i)}, value);
}

/* Does no tensor before this one mention the dim? */
static bool is_first_mention(const epi_graph *g, int t, int dim) {
    for (int i = 0; i < t; i++)
        if (epi_axes_find_dim(&g->tensors[i].axes, dim) >= 0)
            return false;
    return true;
}

static void write_tensor(const epi_graph *g, int t, epi_ast_tensor *out) {
    const epi_tensor_decl *d = &g->tensors[t];
    const epi_op_row *made = &epi_ops[d->is_output ? g->nodes[d->node].op : EPI_OP_INPUT];
    *out = (epi_ast_tensor){.name = d->name,
                            .has_type = d->has_type || made->converts, /* which fixes the type, read again */
                            .cotangent = d->cotangent,
                            .param = d->param,
                            .infinite = d->infinite,
                            .type = d->has_type ? d->type : made->type,
                            .axis_count = d->axes.count};
    for (int i = 0; i < d->axes.count; i++) {
        epi_axis a = d->axes.at[i];
        out->axes[i] = (epi_ast_axis){.name = g->dims[a.dim], .shift = a.shift};
        if (!a.shift && g->fixed[a.dim] && is_first_mention(g, t, a.dim))
            out->axes[i].size = g->fixed[a.dim];
    }
}

/* Where a call that has its own gradient is written, its program's formula is not: the mark takes the arguments
 * alone. */
static int leave_formula(epi_rewrite *r, int node) {
    const epi_node *n = &r->in->nodes[node];
    if (n->op != EPI_OP_OWN)
        return EPI_NO_NODE;
    int list = r->fresh[n->arg[1]];
    return epi_graph_rebuild(r->g, n, (int[]){list, EPI_NO_NODE, EPI_NO_NODE});
}

static bool has_calls(const epi_graph *g) {
    for (int i = 0; i < g->node_count; i++)
        if (g->nodes[i].op == EPI_OP_OWN)
            return true;
    return false;
}

epi_ast_program *epi_graph_write(epi_made *made, const epi_graph *g, const char *name, bool called) {
    epi_arena *arena = made->arena;
    if (has_calls(g) && epi_graph_rewrite(arena, &g, leave_formula, NULL, NULL) != EPI_OK)
        return NULL;
    size_t nodes = (size_t)g->node_count + 1, tensors = (size_t)g->tensor_count + 1;
    epi_ast_program *p = epi_arena_alloc(arena, sizeof *p);
    writer w = {.arena = arena, .g = g, .called = made, .program = p};
    w.names = epi_arena_alloc(arena, nodes * sizeof *w.names);
    w.depth = epi_arena_alloc(arena, nodes * sizeof *w.depth);
    for (w.name_mask = 63; w.name_mask < 12 * nodes;) /* a node has three names at most */
        w.name_mask = 2 * w.name_mask + 1;
    w.given_names = epi_arena_alloc(arena, (w.name_mask + 1) * sizeof *w.given_names);
    w.named = epi_arena_alloc(arena, nodes);
    if (!p || !w.names || !w.depth || !w.given_names || !w.named || !find_named(&w))
        return NULL;
    for (int i = 0; i < g->node_count && called; i++) /* outputs of the caller may have any axes */
        w.named[i] |= g->nodes[i].op == EPI_OP_MATMUL && g->nodes[i].over.count > 1;
    *p = (epi_ast_program){.name = name,
                           .comment = "",
                           .input_count = g->input_count,
                           .output_count = g->tensor_count - g->input_count};
    p->body = epi_arena_alloc(arena, (nodes + tensors + (size_t)g->dim_count) * sizeof *p->body);
    p->inputs = epi_arena_alloc(arena, tensors * sizeof *p->inputs);
    if (!p->body || !p->inputs)
        return NULL;
    for (int d = 0; d < g->dim_count; d++)
        w.made[d] = d < g->declared_count || !is_first_mention(g, g->tensor_count, d);
    p->outputs = p->inputs + g->input_count;
    for (int t = 0; t < g->tensor_count; t++)
        write_tensor(g, t, &p->inputs[t]);
    for (int i = 0; i < g->node_count; i++)
        if (g->live[i] && made->error.status == EPI_OK)
            write_node(&w, i);
    for (int t = g->input_count; t < g->tensor_count; t++) { /* a value that is stored twice, or an input */
        int node = g->tensors[t].node;
        if (w.names[node] && strcmp(w.names[node], g->tensors[t].name) != 0)
            assign(&w, 1, &g->tensors[t].name, NULL, name_ast(&w, w.names[node]));
    }
    return arena->failed || made->error.status != EPI_OK ? NULL : p;
}

/* A name for a called program that no other has, and no operation. */
static void name_called(epi_arena *arena, const epi_ast_program *main, const epi_made *made,
                        epi_ast_program *p) {
    char text[160];
    snprintf(text, sizeof text, "%.120s", p->name);
    for (int number = 2;; number++) {
        bool taken = !strcmp(main->name, text) || epi_is_word(text);
        for (int i = 0; i < made->count; i++) {
            const epi_ast_program *q = made->at[i].program;
            taken |= (q != p && !strcmp(q->name, text)) ||
                     (q->rule && q->rule != p && !strcmp(q->rule->name, text));
        }
        if (!taken)
            break;
        snprintf(text, sizeof text, "%.120s_%d", p->name, number);
    }
    const char *name = epi_arena_text(arena, text, strlen(text));
    p->name = name ? name : p->name;
}

/* What a program calls, behind it. */
static void print_called(epi_made *made, const epi_ast_program *main, epi_text *out) {
    out->failed |= !epi_own_settle(made, main);
    for (int i = 0; i < made->count; i++) { /* which may add to them */
        epi_ast_program *p = made->at[i].program;
        out->failed |= made->at[i].call && (!epi_own_settle(made, p) || !epi_own_settle(made, p->rule));
    }
    for (int i = 0; i < made->count; i++) {
        name_called(made->arena, main, made, made->at[i].program);
        if (made->at[i].call)
            name_called(made->arena, main, made, made->at[i].rule);
    }
    epi_ast_print(main, out);
    for (int i = 0; i < made->count; i++) {
        epi_text_add(out, "\n");
        epi_ast_print(made->at[i].program, out);
        if (made->at[i].call) {
            epi_text_add(out, "\n");
            epi_ast_print(made->at[i].rule, out);
        }
    }
}

epi_status epi_graph_print_derived(const epi_graph *g, const char *name, epi_text *out, epi_error *err) {
    epi_arena arena = {0};
    epi_made made = {.arena = &arena};
    const epi_ast_program *p = epi_graph_write(&made, g, name, false);
    if (p && made.count)
        print_called(&made, p, out);
    else if (p)
        epi_ast_print(p, out);
    out->failed |= !p || arena.failed;
    if (made.error.status != EPI_OK && err)
        *err = made.error;
    epi_arena_free(&arena);
    return made.error.status != EPI_OK ? made.error.status : epi_has_memory(!out->failed, err);
}

void epi_graph_print(const epi_graph *g, const char *name, epi_text *out) {
    epi_graph_print_derived(g, name, out, NULL);
}
