/* lower.c: from the tree to the graph: names become values, calls are inlined, axes are inferred. */
#include "lang/lower.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "lang/hints.h"
#include "lang/packed.h"
#include "lang/words.h"

enum { MAX_EXPRESSIONS = 400000 };

bool epi_lower_ok(const epi_lowering *lo) {
    return lo->g->error.status == EPI_OK && !lo->g->arena->failed;
}

epi_values epi_lower_values(epi_lowering *lo, int count) {
    epi_values v = {epi_arena_alloc(lo->g->arena, (size_t)count * sizeof *v.node), count};
    for (int i = 0; i < count && v.node; i++)
        v.node[i] = EPI_NO_NODE;
    return v;
}

epi_values epi_lower_value(epi_lowering *lo, int node) {
    epi_values v = epi_lower_values(lo, 1);
    if (v.node)
        *v.node = node;
    return v;
}

/* ---- frames ---- */

int epi_frame_dim(const epi_frame *f, const char *name) {
    for (int i = 0; i < f->dim_count; i++)
        if (!strcmp(f->dims[i], name))
            return i;
    return -1;
}

/* Which of the frame's lists has the name. */
static int bucket_of(const char *name) {
    unsigned h = 0;
    for (; *name; name++)
        h = h * 31 + (unsigned char)*name;
    return (int)(h % EPI_NAME_BUCKETS);
}

int epi_frame_value(const epi_frame *f, const char *name) {
    for (const epi_binding *b = f->buckets[bucket_of(name)]; b; b = b->same)
        if (!strcmp(b->name, name))
            return b->node;
    return EPI_NO_NODE;
}

void epi_frame_bind(epi_lowering *lo, epi_frame *f, const char *name, int node, epi_place place) {
    if (!epi_lower_ok(lo))
        return;
    epi_lower_at(lo, place);
    if (epi_frame_value(f, name) != EPI_NO_NODE) {
        epi_graph_fail(lo->g, "'%s' already has a value; values are assigned once, choose another name",
                       name);
        return;
    }
    if (epi_frame_dim(f, name) >= 0) {
        epi_graph_fail(lo->g, "'%s' is an axis of this program and cannot name a value as well", name);
        return;
    }
    epi_binding *b = epi_arena_alloc(lo->g->arena, sizeof *b);
    if (!b)
        return;
    epi_binding **bucket = &f->buckets[bucket_of(name)];
    *b = (epi_binding){name, node, f->values, *bucket};
    f->values = *bucket = b;
    int named[] = {node, epi_graph_value(lo->g, node)};
    for (int i = 0; i < 2 && f->depth == 0; i++)
        if (!lo->g->nodes[named[i]].name)
            lo->g->nodes[named[i]].name = name;
}

/* Notes the size that a declaration gives a dim. */
static void note_size(epi_lowering *lo, epi_frame *f, const epi_ast_axis *axis) {
    int64_t *size = &f->sizes[epi_frame_dim(f, axis->name)];
    if (axis->size && *size && axis->size != *size) {
        epi_lower_at(lo, axis->place);
        epi_graph_fail(lo->g,
                       "the axis %s has %ld elements here, but %ld before; give it one size, or two names",
                       axis->name, (long)axis->size, (long)*size);
    }
    if (axis->size)
        *size = axis->size;
}

/* Adds a dim that the program mentions, unless it is there. */
static void collect_dim(epi_lowering *lo, epi_frame *f, const epi_ast_axis *axis) {
    if (epi_frame_dim(f, axis->name) < 0 && f->dim_count == EPI_MAX_DIMS) {
        epi_lower_at(lo, axis->place);
        epi_graph_fail(lo->g, "a program has at most %d differently named axes", EPI_MAX_DIMS);
        return;
    }
    if (epi_frame_dim(f, axis->name) < 0)
        f->dims[f->dim_count++] = axis->name;
    note_size(lo, f, axis);
}

/* Where in a call the axes begin that no tensor need have: what an index counts along, if that is several axes
 * or it is ordered by its values, and what the largest elements have. INT_MAX: there are none. */
static int find_brought(const epi_ast *e) {
    int first = INT_MAX;
    for (int op = 0; op < EPI_OP_COUNT; op++) {
        int arity = epi_ops[op].arity;
        int before = e->arrow ? e->arrow : arity;
        bool flat = epi_op_by_index(op) && e->arg_count > before + 1;
        if ((flat || epi_ops[op].cls == EPI_CLASS_SORT) && !strcmp(epi_ops[op].text, e->name))
            first = before;
    }
    return first;
}

/* Programs whose dims are being collected. */
enum { MOST_PROGRAMS = 256 };
typedef struct collection {
    const epi_ast_program *seen[MOST_PROGRAMS];
    int count;
} collection;

static void collect_body(epi_lowering *lo, epi_frame *f, const epi_ast_program *p, collection *c);

/* Collects the dims that such calls in an expression name, and in programs that it calls. */
static void collect_from(epi_lowering *lo, epi_frame *f, const epi_ast *e, collection *c) {
    for (; e; e = e->arg_count ? e->args[0] : NULL) { /* chains are long to the left */
        bool call = e->kind == EPI_AST_CALL && e->name;
        const epi_ast *of =
            call && e->callee && e->callee->arg_count ? e->callee->args[0] : e; /* grad(f, x)(…) */
        const epi_ast_program *p = call && of->name ? epi_lower_callee(lo, f, of->name) : e->program;
        int first = call && !p && !e->callee ? find_brought(e) : INT_MAX;
        if (p)
            collect_body(lo, f, p, c);
        for (int i = 1; i < e->arg_count; i++) {
            epi_ast_axis axis;
            if (i >= first && epi_ast_as_axis(e->args[i], &axis))
                collect_dim(lo, f, &axis);
            else
                collect_from(lo, f, e->args[i], c);
        }
    }
}

static void collect_body(epi_lowering *lo, epi_frame *f, const epi_ast_program *p, collection *c) {
    for (int i = 0; i < c->count; i++)
        if (c->seen[i] == p)
            return;
    if (c->count == MOST_PROGRAMS)
        return;
    c->seen[c->count++] = p;
    for (int i = 0; i < p->body_count; i++)
        collect_from(lo, f, p->body[i].value, c);
}

/* Collects the dims that a program's declarations mention, in order, then those that calls bring into being. */
void epi_frame_collect_dims(epi_lowering *lo, epi_frame *f) {
    const epi_ast_program *p = f->program;
    for (int i = 0; i < p->input_count + p->output_count; i++) {
        const epi_ast_tensor *t = i < p->input_count ? &p->inputs[i] : &p->outputs[i - p->input_count];
        for (int j = 0; j < t->axis_count; j++)
            collect_dim(lo, f, &t->axes[j]);
    }
    collection *c = epi_arena_alloc(lo->g->arena, sizeof *c);
    if (c)
        collect_body(lo, f, p, c);
}

/* The line in which an expression renames an axis to this name, or 0. */
static int renamed_in(const epi_ast *e, const char *name) {
    int line = 0;
    for (; e && !line; e = e->arg_count ? e->args[0] : NULL) { /* chains are long to the left */
        for (int i = 1; i < e->arg_count && !line; i++)
            line = renamed_in(e->args[i], name);
        if (e->kind == EPI_AST_CALL && e->name && !strcmp(e->name, epi_ops[EPI_OP_RENAME].text) &&
            e->arg_count == 3 && e->args[2]->kind == EPI_AST_NAME && !strcmp(e->args[2]->name, name))
            line = e->place.line;
    }
    return line;
}

static EPI_NOINLINE void fail_unknown_axis(epi_lowering *lo, const epi_frame *f, const char *name) {
    int line = 0;
    for (int i = 0; i < f->program->body_count && !line; i++)
        line = renamed_in(f->program->body[i].value, name);
    if (line)
        epi_graph_fail(lo->g, "the axis '%s' is created only later, by the rename in line %d", name, line);
    epi_nearest near = {.wanted = name};
    for (int i = 0; i < f->dim_count; i++)
        epi_nearest_offer(&near, f->dims[i]);
    if (near.best[0])
        epi_graph_fail(lo->g, "unknown axis '%s'%s", name, epi_nearest_hint(&near, ""));
    epi_graph_fail(lo->g,
                   "unknown axis '%s'; no input or output of %s has it, and no rename(x, T, %s) creates it",
                   name, f->program->name, name);
}

epi_axis epi_frame_axis(epi_lowering *lo, const epi_frame *f, const epi_ast_axis *a) {
    int dim = epi_frame_dim(f, a->name);
    if (dim < 0 || !f->bound[dim]) {
        epi_lower_at(lo, a->place);
        if (epi_frame_value(f, a->name) != EPI_NO_NODE)
            epi_graph_fail(lo->g, "'%s' is a value, but this must be an axis", a->name);
        else if (dim < 0)
            fail_unknown_axis(lo, f, a->name);
        else
            epi_graph_fail(lo->g,
                           "the arguments of the call do not give the size of axis '%s' of %s; add an input "
                           "that has this axis",
                           a->name, f->program->name);
        return (epi_axis){0, 0};
    }
    int shift = f->axes[dim].shift + a->shift;
    if (shift > EPI_MAX_SHIFT || shift < -EPI_MAX_SHIFT) {
        epi_lower_at(lo, a->place);
        epi_graph_fail(lo->g, "the factor of axis '%s' is too large", a->name);
        shift = 0;
    }
    return (epi_axis){f->axes[dim].dim, (int16_t)shift};
}

static EPI_NOINLINE void fail_twice(epi_lowering *lo, const char *tensor, const char *axis) {
    epi_graph_fail(
        lo->g,
        "'%s' has the axis %s twice: call one of them %s2; rename(v, %s, %s2) makes another value v match it",
        tensor, axis, axis, axis, axis);
}

static epi_axes resolve_axes(epi_lowering *lo, const epi_frame *f, const epi_ast_tensor *t) {
    epi_axes axes = {0};
    for (int i = 0; i < t->axis_count && epi_lower_ok(lo); i++) {
        epi_axis axis = epi_frame_axis(lo, f, &t->axes[i]);
        epi_lower_at(lo, t->axes[i].place);
        if (epi_lower_ok(lo) && epi_axes_find_dim(&axes, axis.dim) >= 0)
            fail_twice(lo, t->name, lo->g->dims[axis.dim]);
        axes.at[axes.count++] = axis;
    }
    return axes;
}

/* ---- expressions ---- */

/* Counts one more expression; false where there are too many, in all or inside each other. */
static bool enter(epi_lowering *lo, const epi_ast *e) {
    epi_lower_at(lo, e->place);
    if (++lo->expressions > MAX_EXPRESSIONS)
        epi_graph_fail(lo->g, "the program is too large once its calls are inlined");
    if (lo->depth == EPI_MAX_NESTING)
        epi_graph_fail(
            lo->g,
            "expressions are nested more than %d deep once calls are inlined; assign inner ones to names",
            EPI_MAX_NESTING);
    return epi_lower_ok(lo);
}

/* Where a program assigns a name; line 0: nowhere. */
static epi_place assigned_at(const epi_frame *f, const char *name) {
    for (int i = 0; i < f->program->body_count; i++)
        for (int j = 0; j < f->program->body[i].name_count; j++)
            if (!strcmp(f->program->body[i].names[j].text, name))
                return f->program->body[i].names[j].place;
    return (epi_place){0};
}

/* There is no value of this name. */
static EPI_NOINLINE void fail_unknown(epi_lowering *lo, const epi_frame *f, const char *name) {
    epi_nearest near = {.wanted = name};
    const char *hint = epi_hint_name(name);
    if (hint)
        epi_graph_fail(lo->g, "unknown name '%s': %s", name, hint);
    for (const epi_binding *b = f->values; b; b = b->next)
        epi_nearest_offer(&near, b->name);
    epi_graph_fail(lo->g, "unknown name '%s'%s", name, near.best[0] ? epi_nearest_hint(&near, "") : "");
}

static int lower_name(epi_lowering *lo, const epi_frame *f, const epi_ast *e) {
    int node = epi_frame_value(f, e->name);
    if (e->number > 0)
        epi_graph_fail(lo->g, "%s=%ld gives an axis a size, but this must be a value", e->name,
                       (long)e->number);
    else if (node == EPI_NO_NODE && epi_frame_dim(f, e->name) >= 0)
        epi_graph_fail(lo->g, "'%s' is an axis, but this must be a value: write size(%s) or index(%s)",
                       e->name, e->name, e->name);
    else if (node == EPI_NO_NODE && epi_is_word(e->name))
        epi_graph_fail(lo->g, "'%s' is an operation: write %s(…)", e->name, e->name);
    else if (node == EPI_NO_NODE && assigned_at(f, e->name).line)
        epi_graph_fail(lo->g, "'%s' is assigned only later, in line %d", e->name,
                       assigned_at(f, e->name).line);
    else if (node == EPI_NO_NODE)
        fail_unknown(lo, f, e->name);
    return node;
}

static int lower_single_call(epi_lowering *lo, epi_frame *f, const epi_ast *e) {
    epi_values v = epi_lower_call(lo, f, e);
    epi_lower_at(lo, e->place);
    if (epi_lower_ok(lo) && v.count != 1)
        epi_graph_fail(lo->g,
                       "this gives %d values, but there must be one; assign them to names first: a, b = …",
                       v.count);
    return epi_lower_ok(lo) ? *v.node : EPI_NO_NODE;
}

/* x[i] takes along the first axis of x that is not carried. */
static EPI_NOINLINE int take(epi_graph *g, int a, int index) {
    const epi_node *n = &g->nodes[a];
    epi_axes own = epi_axes_without(&n->axes, &g->carried);
    if (own.count)
        return epi_graph_move(g, EPI_OP_GATHER, a, index, EPI_NO_NODE, &(epi_axes){1, {own.at[0]}});
    return epi_graph_fail(g, "x[i] takes elements along the first axis of x, but %s has no axes",
                          n->name ? n->name : "this");
}

/* An expression that is no chain of operators. */
static int lower_operand(epi_lowering *lo, epi_frame *f, const epi_ast *e) {
    switch (e->kind) {
    case EPI_AST_NUMBER: return epi_graph_const(lo->g, e->number);
    case EPI_AST_NAME: return lower_name(lo, f, e);
    case EPI_AST_CALL: return lower_single_call(lo, f, e);
    default: break;
    }
    int a = epi_lower_one(lo, f, e->args[0]);
    epi_lower_at(lo, e->place);
    return epi_lower_ok(lo) ? epi_graph_map1(lo->g, e->op, a) : EPI_NO_NODE;
}

/* 2**40 is the number 1099511627776, an integer; 0: it is none that f64 holds. */
static double whole_power(double base, double power) {
    double y = 1;
    if (base < 2 || base != rint(base) || power < 0 || power > 53 || power != rint(power))
        return 0;
    while (power-- > 0 && y <= 0x1p53)
        y *= base;
    return y <= 0x1p53 ? y : 0;
}

/* Squares and cubes are products, which cost less than powers and are as close. */
static EPI_NOINLINE int lower_power(epi_graph *g, int a, int b) {
    bool known = g->nodes[b].op == EPI_OP_CONST;
    double power = known ? g->nodes[b].value : 0;
    double whole = known && g->nodes[a].op == EPI_OP_CONST ? whole_power(g->nodes[a].value, power) : 0;
    if (whole > 0)
        return epi_graph_const(g, whole);
    if (power != 2 && power != 3)
        return epi_graph_map2(g, EPI_OP_POW, a, b);
    int square = epi_graph_map2(g, EPI_OP_MUL, a, a);
    return power == 2 ? square : epi_graph_map2(g, EPI_OP_MUL, square, a);
}

/* One more operation of a chain, whose first operand is there already. */
static int lower_link(epi_lowering *lo, epi_frame *f, const epi_ast *e, int a) {
    int b = epi_lower_one(lo, f, e->args[1]);
    epi_lower_at(lo, e->place);
    if (!epi_lower_ok(lo))
        return EPI_NO_NODE;
    if (e->kind == EPI_AST_TAKE)
        return take(lo->g, a, b);
    if (e->op == EPI_OP_POW)
        return lower_power(lo->g, a, b);
    return e->op == EPI_OP_MATMUL ? epi_graph_product(lo->g, a, b) : epi_graph_map2(lo->g, e->op, a, b);
}

/* A chain of operators is lowered from its first operand on: its length does not count as depth. */
int epi_lower_one(epi_lowering *lo, epi_frame *f, const epi_ast *e) {
    const epi_ast *at = epi_ast_leftmost(e);
    if (!epi_lower_ok(lo) || !enter(lo, at))
        return EPI_NO_NODE;
    lo->depth++;
    int node = lower_operand(lo, f, at);
    while (at != e && epi_lower_ok(lo)) {
        at = at->outer;
        lo->expressions++;
        node = lower_link(lo, f, at, node);
    }
    lo->depth--;
    return node;
}

/* Notes how a value is to be stored; what is in memory anyway, and what needs no memory, is not. */
static void note_stored(epi_lowering *lo, const epi_frame *f, const char *name, int value, epi_dtype type) {
    epi_node *n = &lo->g->nodes[epi_graph_value(lo->g, value)];
    for (int i = 0; i < f->program->output_count; i++)
        if (!strcmp(f->program->outputs[i].name, name))
            epi_graph_fail(lo->g, "'%s' is an output: write its type in the declaration, -> %s: %s…", name,
                           name, epi_dtype_name(type));
    if (n->op == EPI_OP_RENAME) /* what is stored is the value itself */
        epi_graph_store_as(lo->g, value, &(epi_node){.has_stored = true, .stored = type});
    if (n->op == EPI_OP_RENAME || epi_op_is_leaf(n->op))
        return;
    if (n->has_stored && n->stored != type)
        epi_graph_fail(lo->g,
                       "'%s' is equal to a value that is stored as %s, and cannot be stored as %s too; give "
                       "both the same type",
                       name, epi_dtype_name(n->stored), epi_dtype_name(type));
    n->has_stored = true;
    n->stored = type;
}

/* The value with the axes that the text states, in their order; what a call carries stays in front. */
static EPI_NOINLINE int in_stated_order(epi_lowering *lo, const epi_frame *f, const epi_ast_name *name,
                                        int node) {
    const epi_axes have = lo->g->nodes[node].axes, own = epi_axes_without(&have, &f->carried);
    epi_axes stated = {0}, order = epi_axes_without(&have, &own);
    for (int i = 0; i < name->axis_count && epi_lower_ok(lo); i++) {
        epi_axis axis = epi_frame_axis(lo, f, &name->axes[i]);
        epi_lower_at(lo, name->axes[i].place);
        if (epi_axes_has_dim(&stated, axis.dim) && epi_lower_ok(lo))
            epi_graph_fail(lo->g, "'%s' has the axis %s twice here", name->text, name->axes[i].name);
        stated.at[stated.count++] = axis;
    }
    epi_lower_at(lo, name->place);
    if (epi_lower_ok(lo) && !epi_axes_same_set(&own, &stated))
        epi_graph_fail(lo->g, "'%s' is declared with the axes %s, but its value has %s", name->text,
                       epi_axes_label(lo->g, &stated).text,
                       own.count ? epi_axes_label(lo->g, &own).text : "none");
    if (!epi_lower_ok(lo))
        return EPI_NO_NODE;
    epi_axes_unite(&order, &stated);
    return epi_graph_ordered(lo->g, node, &order);
}

/* As many names as values stand in an assignment; topk(…) is the one that gives two elsewhere. */
static EPI_NOINLINE void fail_name_count(epi_lowering *lo, const epi_ast_assign *s, int values) {
    const epi_ast *call = s->value->kind == EPI_AST_CALL ? s->value : NULL;
    const char *hint = call && s->name_count == 2 ? epi_hint_call(call->name) : NULL;
    epi_graph_fail(lo->g, "%d name%s on the left, %d value%s on the right%s%s", s->name_count,
                   s->name_count == 1 ? "" : "s", values, values == 1 ? "" : "s", hint ? ": " : "",
                   hint ? hint : "");
}

void epi_lower_body(epi_lowering *lo, epi_frame *f) {
    for (int i = 0; i < f->program->body_count && epi_lower_ok(lo); i++) {
        const epi_ast_assign *s = &f->program->body[i];
        epi_values v = {0};
        if (s->value->kind != EPI_AST_CALL)
            v = epi_lower_value(lo, epi_lower_one(lo, f, s->value));
        else if (enter(lo, s->value))
            v = epi_lower_call(lo, f, s->value);
        epi_lower_at(lo, s->names[0].place);
        if (epi_lower_ok(lo) && v.count != s->name_count)
            fail_name_count(lo, s, v.count);
        for (int j = 0; j < s->name_count && epi_lower_ok(lo); j++) {
            const epi_ast_name *name = &s->names[j];
            if (name->axis_count)
                v.node[j] = in_stated_order(lo, f, name, v.node[j]);
            if (!epi_lower_ok(lo))
                break;
            epi_frame_bind(lo, f, name->text, v.node[j], name->place);
            if (epi_lower_ok(lo) && name->type != EPI_DTYPE_COUNT)
                note_stored(lo, f, name->text, v.node[j], name->type);
        }
    }
}

/* ---- the whole program ---- */

/* Is it a tensor of bytes with two elements each? Of a program that is derived to be called, nothing is stored: the caller
 * gives elements, and takes them. */
static bool has_halves(const epi_frame *f, const epi_ast_tensor *t) {
    return t->packed && !f->caller;
}

static void declare(epi_lowering *lo, epi_frame *f) {
    epi_graph *g = lo->g;
    const epi_ast_program *p = f->program;
    g->input_count = p->input_count;
    g->tensor_count = p->input_count + p->output_count;
    g->tensors = epi_arena_alloc(g->arena, (size_t)(g->tensor_count + 1) * sizeof *g->tensors);
    for (int i = 0; i < g->tensor_count && epi_lower_ok(lo); i++) {
        bool output = i >= p->input_count;
        const epi_ast_tensor *t = output ? &p->outputs[i - p->input_count] : &p->inputs[i];
        g->tensors[i] = (epi_tensor_decl){.name = t->name,
                                          .is_output = output,
                                          .has_type = t->has_type,
                                          .cotangent = t->cotangent,
                                          .param = t->param,
                                          .infinite = t->infinite,
                                          .type = t->packed && !has_halves(f, t) ? EPI_I8 : t->type,
                                          .place = t->place,
                                          .node = EPI_NO_NODE};
        g->tensors[i].axes = resolve_axes(lo, f, t);
        for (int j = 0; j < i; j++)
            if (!strcmp(g->tensors[j].name, t->name)) {
                epi_lower_at(lo, t->place);
                epi_graph_fail(g,
                               output && !g->tensors[j].is_output
                                   ? "'%s' is an input; an output needs a name of its own"
                                   : "'%s' is declared twice",
                               t->name);
            }
        if (!output && epi_lower_ok(lo)) {
            epi_lower_at(lo, t->place);
            const epi_axes axes = g->tensors[i].axes;
            if (has_halves(f, t))
                g->tensors[i].axes = epi_packed_axes(g, t, axes);
            g->tensors[i].node = epi_graph_input(g, i);
            epi_frame_bind(lo, f, t->name,
                           has_halves(f, t) ? epi_packed_read(g, t, g->tensors[i].node, &axes)
                                            : g->tensors[i].node,
                           t->place);
        }
    }
}

/* Is the @ at this place one whose first operand is a * or / without parentheses, which was taken first? */
static bool scaled_first(const epi_ast *e, epi_place at) {
    for (; e->kind == EPI_AST_BINARY || e->kind == EPI_AST_TAKE; e = e->args[0]) {
        const epi_ast *first = e->args[0];
        if (e->op == EPI_OP_MATMUL && e->place.line == at.line && e->place.column == at.column)
            return first->kind == EPI_AST_BINARY && !first->parentheses && epi_op_has_factors(first->op);
        if (scaled_first(e->args[1], at))
            return true;
    }
    for (int i = 0; i < e->arg_count; i++)
        if (scaled_first(e->args[i], at))
            return true;
    return false;
}

/* An @ that sums over an axis which the output keeps may have been meant for its nearest factor alone. */
static void tell_of_order(epi_lowering *lo) {
    epi_error *err = &lo->g->error;
    epi_place at = {err->line, err->column};
    bool found = false;
    for (const epi_ast_program *p = lo->text->programs; p; p = p->next)
        for (int i = 0; i < p->body_count; i++)
            found |= scaled_first(p->body[i].value, at);
    size_t length = strlen(err->message);
    if (found)
        snprintf(err->message + length, sizeof err->message - length,
                 "; or put the product in parentheses, as in a*(b @ c), because the * before it comes first");
}

static void collect_outputs(epi_lowering *lo, const epi_frame *f) {
    epi_graph *g = lo->g;
    for (int t = g->input_count; t < g->tensor_count && epi_lower_ok(lo); t++) {
        epi_tensor_decl *out = &g->tensors[t];
        epi_lower_at(lo, out->place);
        out->node = epi_graph_value(g, epi_frame_value(f, out->name));
        if (out->node == EPI_NO_NODE)
            epi_graph_fail(g, "the output '%s' is never assigned", out->name);
        if (assigned_at(f, out->name).line) /* errors about its axes point at its assignment */
            epi_lower_at(lo, assigned_at(f, out->name));
        epi_graph_check_output(g, t);
        const epi_ast_tensor *said = &f->program->outputs[t - g->input_count];
        if (!epi_lower_ok(lo)) {
            tell_of_order(lo);
        } else if (has_halves(f, said)) {
            out->node = epi_graph_value(g, epi_packed_write(g, said, out->node, &out->axes));
            out->axes = epi_packed_axes(g, said, out->axes);
        } else if (!out->has_type &&
                   epi_ops[g->nodes[out->node].op].converts) { /* it is stored as what it is */
            out->has_type = true;
            out->type = epi_ops[g->nodes[out->node].op].type;
        }
    }
}

/* A program that names its own gradient is derived by that. */
static void mark_outputs(epi_lowering *lo, const epi_frame *top) {
    epi_graph *g = lo->g;
    int *values = epi_lower_values(lo, g->tensor_count).node, count = g->tensor_count - g->input_count;
    for (int i = 0; i < count && values; i++)
        values[i] =
            epi_graph_ordered(g, g->tensors[g->input_count + i].node, &g->tensors[g->input_count + i].axes);
    if (values && epi_lower_ok(lo))
        epi_own_mark(lo, top, values);
    for (int i = 0; i < count && values && epi_lower_ok(lo); i++) {
        epi_tensor_decl *t = &g->tensors[g->input_count + i];
        t->node = epi_graph_value(g, values[i]);
        if (!g->nodes[t->node].name)
            g->nodes[t->node].name = t->name;
    }
}

static void lower_whole(epi_lowering *lo, epi_frame *top) {
    epi_graph *g = lo->g;
    epi_frame_collect_dims(lo, top);
    for (int i = 0; i < top->dim_count; i++) {
        g->dims[i] = top->dims[i];
        g->fixed[i] = top->sizes[i];
        top->axes[i] = (epi_axis){(int16_t)i, 0};
        top->bound[i] = true;
    }
    g->dim_count = g->declared_count = top->dim_count;
    declare(lo, top);
    epi_lower_body(lo, top);
    collect_outputs(lo, top);
    if (epi_lower_ok(lo) && !top->caller) /* or it was looked at before */
        epi_own_check(lo, top);
    if (epi_lower_ok(lo))
        mark_outputs(lo, top);
    if (lo->notes && epi_lower_ok(lo))
        epi_note_batches(lo);
    epi_graph_finish(g);
}

void epi_lower_whole(epi_lowering *lo, const epi_frame *around, const epi_ast_program *program, bool bundled,
                     bool own, epi_arena *arena, epi_graph *out) {
    epi_frame *top = epi_arena_alloc(arena, sizeof *top);
    *out = (epi_graph){.arena = arena};
    if (!top)
        return;
    epi_lowering inner = {.text = lo->text,
                          .g = out,
                          .site = bundled && !lo->site.line ? lo->g->place : lo->site,
                          .expressions = lo->expressions,
                          .depth = lo->depth,
                          .own = own,
                          .made = lo->made};
    *top = (epi_frame){.program = program, .bundled = bundled, .caller = around};
    lower_whole(&inner, top);
    lo->expressions = inner.expressions;
}

void epi_ast_notes(const epi_ast_text *text, const epi_ast_program *program, epi_text *out) {
    epi_arena arena = {0};
    epi_ast_text own = *text; /* which takes up the programs that come with Epilog */
    epi_notes notes = {.out = out};
    epi_graph g = {.arena = &arena, .notes = true};
    epi_lowering lo = {.text = &own, .g = &g, .notes = &notes};
    epi_frame top = {.program = program};
    if (epi_notes_may(program))
        lower_whole(&lo, &top);
    out->failed |= arena.failed;
    epi_arena_free(&arena);
}

epi_status epi_ast_lower(epi_arena *arena, epi_ast_text *text, const epi_ast_program *program, bool own,
                         epi_graph *out, epi_error *err) {
    *out = (epi_graph){.arena = arena};
    epi_lowering lo = {.text = text, .g = out, .own = own};
    epi_frame top = {.program = program};
    lower_whole(&lo, &top);
    EPI_TRY(epi_has_memory(!arena->failed, err));
    if (out->error.status != EPI_OK) {
        epi_ast_locate(text, &out->error);
        if (err)
            *err = out->error;
    }
    return out->error.status;
}
