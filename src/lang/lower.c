/* lower.c: from the tree to the graph: names become values, calls are inlined, axes are inferred.
 *
 * A program in the middle of being lowered is a frame. The outermost frame is the program itself;
 * a call pushes a frame whose inputs are the caller's values and whose axes are the caller's. */
#include <string.h>

#include "lang/ast.h"

enum { MAX_CALLS = 32, MAX_STEPS = 100000, MAX_DEPTH = 1000, MAX_VALUES = EPI_MAX_TENSORS };

typedef struct binding {
    const char *name;
    int node;
    struct binding *next;
} binding;

typedef struct frame {
    const epi_ast_program *program;
    const struct frame *caller;
    int depth;
    binding *values;
    /* the dims of this program by name, and the axis each stands for in the outermost one */
    const char *dims[EPI_MAX_DIMS];
    epi_axis axes[EPI_MAX_DIMS];
    bool bound[EPI_MAX_DIMS];
    int dim_count;
} frame;

typedef struct lowering {
    const epi_ast_text *text;
    epi_graph *g;
    int steps, depth; /* expressions lowered so far, and how many are in the middle of it */
} lowering;

/* What an expression yields: several nodes for pairs, halves and programs of many outputs. */
typedef struct values {
    int node[MAX_VALUES];
    int count;
} values;

static bool ok(const lowering *lo) {
    return lo->g->error.status == EPI_OK && !lo->g->arena->failed;
}

static int find_dim(const frame *f, const char *name) {
    for (int i = 0; i < f->dim_count; i++)
        if (!strcmp(f->dims[i], name))
            return i;
    return -1;
}

static int find_value(const frame *f, const char *name) {
    for (const binding *b = f->values; b; b = b->next)
        if (!strcmp(b->name, name))
            return b->node;
    return EPI_NO_NODE;
}

static void bind_value(lowering *lo, frame *f, const char *name, int node, epi_place place) {
    if (!ok(lo))
        return;
    lo->g->place = place;
    if (find_value(f, name) != EPI_NO_NODE) {
        epi_graph_fail(lo->g, "'%s' already has a value; values are assigned once, choose another name",
                       name);
        return;
    }
    if (find_dim(f, name) >= 0) {
        epi_graph_fail(lo->g, "'%s' is an axis of this program and cannot name a value as well", name);
        return;
    }
    binding *b = epi_arena_alloc(lo->g->arena, sizeof *b);
    if (!b)
        return;
    *b = (binding){name, node, f->values};
    f->values = b;
    if (!lo->g->nodes[node].name && f->depth == 0)
        lo->g->nodes[node].name = name;
}

/* Collects the dims that a program's declarations mention, in order. */
static void collect_dims(lowering *lo, frame *f) {
    const epi_ast_program *p = f->program;
    for (int i = 0; i < p->input_count + p->output_count; i++) {
        const epi_ast_tensor *t = i < p->input_count ? &p->inputs[i] : &p->outputs[i - p->input_count];
        for (int j = 0; j < t->axis_count; j++) {
            if (find_dim(f, t->axes[j].name) >= 0)
                continue;
            if (f->dim_count == EPI_MAX_DIMS) {
                lo->g->place = t->axes[j].place;
                epi_graph_fail(lo->g, "a program has at most %d differently named axes", EPI_MAX_DIMS);
                return;
            }
            f->dims[f->dim_count++] = t->axes[j].name;
        }
    }
}

static epi_axis resolve_axis(lowering *lo, const frame *f, const epi_ast_axis *a) {
    int dim = find_dim(f, a->name);
    if (dim < 0 || !f->bound[dim]) {
        lo->g->place = a->place;
        if (find_value(f, a->name) != EPI_NO_NODE)
            epi_graph_fail(lo->g, "'%s' is a value; an axis is wanted here", a->name);
        else if (dim < 0)
            epi_graph_fail(lo->g, "unknown axis '%s'; no input or output of %s has it", a->name,
                           f->program->name);
        else
            epi_graph_fail(lo->g, "the size of axis '%s' of %s cannot be told from the arguments of the call",
                           a->name, f->program->name);
        return (epi_axis){0, 0};
    }
    int shift = f->axes[dim].shift + a->shift;
    if (shift > EPI_MAX_SHIFT || shift < -EPI_MAX_SHIFT) {
        lo->g->place = a->place;
        epi_graph_fail(lo->g, "the factor of axis '%s' is too large", a->name);
        shift = 0;
    }
    return (epi_axis){f->axes[dim].dim, (int16_t)shift};
}

static epi_axes resolve_axes(lowering *lo, const frame *f, const epi_ast_tensor *t) {
    epi_axes axes = {0};
    for (int i = 0; i < t->axis_count && ok(lo); i++) {
        epi_axis axis = resolve_axis(lo, f, &t->axes[i]);
        lo->g->place = t->axes[i].place;
        if (ok(lo) && epi_axes_find_dim(&axes, axis.dim) >= 0)
            epi_graph_fail(lo->g, "'%s' has the axis %s twice", t->name, lo->g->dims[axis.dim]);
        axes.at[axes.count++] = axis;
    }
    return axes;
}

static int lower_one(lowering *lo, frame *f, const epi_ast *e);
static void lower_body(lowering *lo, frame *f);

/* ---- calls of programs ---- */

/* Binds the dims of the callee that occur in `t` to the axes of the argument, by position. */
static void bind_axes(lowering *lo, frame *callee, const epi_ast_tensor *t, const epi_axes *have,
                      const char *what) {
    epi_graph *g = lo->g;
    if (t->axis_count != have->count) {
        epi_graph_fail(g, "%s: %s has %d axes, the argument has %d %s", what, t->name, t->axis_count,
                       have->count, epi_axes_label(g, have).text);
        return;
    }
    for (int i = 0; i < have->count; i++) {
        int dim = find_dim(callee, t->axes[i].name);
        epi_axis axis = {have->at[i].dim, (int16_t)(have->at[i].shift - t->axes[i].shift)};
        if (callee->bound[dim] && !epi_axis_equal(callee->axes[dim], axis)) {
            epi_graph_fail(g, "%s: the axis %s of %s stands for %s in one argument and for %s in '%s'", what,
                           t->axes[i].name, callee->program->name, epi_axis_label(g, callee->axes[dim]).text,
                           epi_axis_label(g, axis).text, t->name);
            return;
        }
        for (int j = 0; j < callee->dim_count; j++)
            if (j != dim && callee->bound[j] && callee->axes[j].dim == axis.dim) {
                epi_graph_fail(g, "%s: the axes %s and %s of %s would both stand for %s", what,
                               callee->dims[j], t->axes[i].name, callee->program->name, g->dims[axis.dim]);
                return;
            }
        callee->axes[dim] = axis;
        callee->bound[dim] = true;
    }
}

static void lower_program_call(lowering *lo, frame *f, const epi_ast *e, const epi_ast_program *p,
                               values *out) {
    epi_graph *g = lo->g;
    g->place = e->place;
    out->count = p->output_count;
    for (const frame *c = f; c; c = c->caller)
        if (c->program == p) {
            epi_graph_fail(g, "'%s' calls itself%s; programs are inlined and cannot recurse", p->name,
                           c == f ? "" : " through others");
            return;
        }
    if (e->arg_count != p->input_count)
        epi_graph_fail(g, "%s takes %d argument%s, %d %s given", p->name, p->input_count,
                       p->input_count == 1 ? "" : "s", e->arg_count, e->arg_count == 1 ? "was" : "were");
    if (f->depth == MAX_CALLS)
        epi_graph_fail(g, "calls are nested more than %d deep", MAX_CALLS);
    if (!ok(lo))
        return;
    frame callee = {.program = p, .caller = f, .depth = f->depth + 1};
    collect_dims(lo, &callee);
    for (int i = 0; i < e->arg_count && ok(lo); i++) {
        int node = lower_one(lo, f, e->args[i]);
        if (!ok(lo))
            return;
        g->place = e->args[i]->place;
        bind_axes(lo, &callee, &p->inputs[i], &g->nodes[node].axes, p->name);
        bind_value(lo, &callee, p->inputs[i].name, node, e->args[i]->place);
    }
    lower_body(lo, &callee);
    for (int i = 0; i < p->output_count && ok(lo); i++) {
        out->node[i] = find_value(&callee, p->outputs[i].name);
        if (out->node[i] == EPI_NO_NODE) {
            g->place = p->outputs[i].place;
            epi_graph_fail(g, "the output '%s' of %s is never assigned", p->outputs[i].name, p->name);
        }
    }
}

/* ---- operations ---- */

static bool arity(lowering *lo, const epi_ast *e, int least, int most) {
    if (e->arg_count >= least && e->arg_count <= most)
        return true;
    lo->g->place = e->place;
    if (least == most)
        epi_graph_fail(lo->g, "%s takes %d argument%s, %d %s given", e->name, least, least == 1 ? "" : "s",
                       e->arg_count, e->arg_count == 1 ? "was" : "were");
    else
        epi_graph_fail(lo->g, "%s takes a %s; %d argument%s given", e->name,
                       strcmp(e->name, epi_ops[EPI_OP_UNIFORM].text) ? "value and the axes to reduce over"
                                                                     : "seed and the axes of the result",
                       e->arg_count, e->arg_count == 1 ? " was" : "s were");
    return false;
}

static epi_axis axis_argument(lowering *lo, const frame *f, const epi_ast *call, int i) {
    epi_ast_axis a;
    if (!epi_ast_as_axis(call->args[i], &a)) {
        lo->g->place = call->args[i]->place;
        epi_graph_fail(lo->g,
                       "argument %d of %s is an axis: a name, or a name with a power of two as in 2*F or F/2",
                       i + 1, call->name);
        return (epi_axis){0, 0};
    }
    return resolve_axis(lo, f, &a);
}

/* max(a, b) is a map and max(x, D) a reduction: the second argument decides. */
static bool names_an_axis(const frame *f, const epi_ast *e) {
    epi_ast_axis a;
    return epi_ast_as_axis(e, &a) && find_dim(f, a.name) >= 0;
}

static int lower_reduction(lowering *lo, frame *f, const epi_ast *e, epi_op op) {
    int a = lower_one(lo, f, e->args[0]);
    epi_axes over = {0};
    for (int i = 1; i < e->arg_count && ok(lo); i++)
        over.at[over.count++] = axis_argument(lo, f, e, i);
    lo->g->place = e->place;
    return ok(lo) ? epi_graph_reduce(lo->g, op, a, &over) : EPI_NO_NODE;
}

static void lower_part(lowering *lo, frame *f, const epi_ast *e, epi_op op, values *out) {
    bool joins = op == EPI_OP_JOIN || op == EPI_OP_CONCAT;
    if (!arity(lo, e, joins ? 3 : 2, joins ? 3 : 2))
        return;
    int a = lower_one(lo, f, e->args[0]);
    int b = joins ? lower_one(lo, f, e->args[1]) : EPI_NO_NODE;
    epi_axis axis = axis_argument(lo, f, e, joins ? 2 : 1);
    lo->g->place = e->place;
    if (!ok(lo))
        return;
    if (joins) {
        out->node[0] = epi_graph_join(lo->g, op, a, b, axis);
    } else {
        out->count = 2;
        out->node[0] = epi_graph_split(lo->g, op, a, axis);
        out->node[1] = epi_graph_split(lo->g, op + 1, a, axis); /* EVEN, ODD and LOW, HIGH are neighbours */
    }
}

static int lower_move(lowering *lo, frame *f, const epi_ast *e, epi_op op) {
    int a = lower_one(lo, f, e->args[0]), index = lower_one(lo, f, e->args[1]);
    epi_axis axis = ok(lo) ? axis_argument(lo, f, e, 2) : (epi_axis){0, 0};
    lo->g->place = e->place;
    return ok(lo) ? epi_graph_move(lo->g, op, a, index, axis) : EPI_NO_NODE;
}

/* x[i] takes along the first axis of x. */
static int lower_take(lowering *lo, frame *f, const epi_ast *e) {
    int a = lower_one(lo, f, e->args[0]), index = lower_one(lo, f, e->args[1]);
    lo->g->place = e->place;
    if (ok(lo) && !lo->g->nodes[a].axes.count)
        epi_graph_fail(lo->g, "x[i] takes from the first axis of x, and %s has no axes",
                       lo->g->nodes[a].name ? lo->g->nodes[a].name : "this");
    return ok(lo) ? epi_graph_move(lo->g, EPI_OP_GATHER, a, index, lo->g->nodes[a].axes.at[0]) : EPI_NO_NODE;
}

static int lower_random(lowering *lo, frame *f, const epi_ast *e, epi_op op) {
    int seed = lower_one(lo, f, e->args[0]);
    epi_axes axes = {0};
    for (int i = 1; i < e->arg_count && ok(lo); i++)
        axes.at[axes.count++] = axis_argument(lo, f, e, i);
    lo->g->place = e->place;
    return ok(lo) ? epi_graph_random(lo->g, op, seed, &axes) : EPI_NO_NODE;
}

static int lower_map(lowering *lo, frame *f, const epi_ast *e, epi_op op) {
    int node[3] = {EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE};
    for (int i = 0; i < epi_ops[op].arity && ok(lo); i++)
        node[i] = lower_one(lo, f, e->args[i]);
    lo->g->place = e->place;
    return ok(lo) ? epi_graph_map(lo->g, op, node[0], node[1], node[2]) : EPI_NO_NODE;
}

/* What a call yields: of a program, of an operation, of a reduction. */
static void lower_call(lowering *lo, frame *f, const epi_ast *e, values *out) {
    out->count = 1;
    for (const epi_ast_program *p = lo->text->programs; p; p = p->next)
        if (!strcmp(p->name, e->name)) {
            lower_program_call(lo, f, e, p, out);
            return;
        }
    bool axis_second = e->arg_count >= 2 && names_an_axis(f, e->args[1]);
    for (int op = 0; op < EPI_OP_COUNT; op++) {
        const epi_op_row *row = &epi_ops[op];
        if (strcmp(row->text, e->name) != 0)
            continue;
        if (row->cls == EPI_CLASS_MAP && !(axis_second && (op == EPI_OP_MAX || op == EPI_OP_MIN))) {
            if (arity(lo, e, row->arity, row->arity))
                out->node[0] = lower_map(lo, f, e, (epi_op)op);
        } else if (row->cls == EPI_CLASS_REDUCE) {
            if (arity(lo, e, 2, 1 + EPI_MAX_AXES))
                out->node[0] = lower_reduction(lo, f, e, (epi_op)op);
        } else if (row->cls == EPI_CLASS_SPLIT) {
            lower_part(lo, f, e, (epi_op)op, out);
        } else if (row->cls == EPI_CLASS_MOVE) {
            if (arity(lo, e, 3, 3))
                out->node[0] = lower_move(lo, f, e, (epi_op)op);
        } else if (row->cls == EPI_CLASS_RANDOM) {
            if (arity(lo, e, 2, 1 + EPI_MAX_AXES))
                out->node[0] = lower_random(lo, f, e, (epi_op)op);
        } else if (row->cls == EPI_CLASS_LEAF) {
            if (arity(lo, e, 1, 1)) {
                epi_axis axis = axis_argument(lo, f, e, 0);
                lo->g->place = e->place;
                out->node[0] = ok(lo) ? epi_graph_leaf(lo->g, (epi_op)op, axis) : EPI_NO_NODE;
            }
        } else {
            continue;
        }
        return;
    }
    lo->g->place = e->place;
    epi_graph_fail(lo->g,
                   !strcmp(e->name, "if")
                       ? "unknown operation or program '%s'; a choice is written where(a, b, c)"
                       : "unknown operation or program '%s'",
                   e->name);
}

/* Counts one more expression in hand; false where there are too many, in all or inside each other. */
static bool enter(lowering *lo, const epi_ast *e) {
    lo->g->place = e->place;
    if (++lo->steps > MAX_STEPS)
        epi_graph_fail(lo->g, "the program is too large once its calls are inlined");
    if (lo->depth == MAX_DEPTH)
        epi_graph_fail(lo->g, "this expression is nested more than %d deep; give parts of it names",
                       MAX_DEPTH);
    return ok(lo);
}

static int lower_single_call(lowering *lo, frame *f, const epi_ast *e) {
    values v;
    lower_call(lo, f, e, &v);
    lo->g->place = e->place;
    if (ok(lo) && v.count != 1)
        epi_graph_fail(
            lo->g, "this gives %d values where one is wanted; assign them to names first: a, b = …", v.count);
    return ok(lo) ? v.node[0] : EPI_NO_NODE;
}

static bool is_operation(const char *name) {
    for (int op = 0; op < EPI_OP_COUNT; op++)
        if (!strcmp(epi_ops[op].text, name))
            return true;
    return false;
}

/* The line in which a program assigns a name, or 0. */
static int assigned_at(const frame *f, const char *name) {
    for (int i = 0; i < f->program->body_count; i++)
        for (int j = 0; j < f->program->body[i].name_count; j++)
            if (!strcmp(f->program->body[i].names[j], name))
                return f->program->body[i].places[j].line;
    return 0;
}

static int lower_name(lowering *lo, const frame *f, const epi_ast *e) {
    int node = find_value(f, e->name);
    if (node == EPI_NO_NODE && find_dim(f, e->name) >= 0)
        epi_graph_fail(lo->g, "'%s' is an axis; as a value write size(%s) or index(%s)", e->name, e->name,
                       e->name);
    else if (node == EPI_NO_NODE && is_operation(e->name))
        epi_graph_fail(lo->g, "'%s' is an operation: write %s(…)", e->name, e->name);
    else if (node == EPI_NO_NODE && assigned_at(f, e->name))
        epi_graph_fail(lo->g, "'%s' is assigned only later, in line %d", e->name, assigned_at(f, e->name));
    else if (node == EPI_NO_NODE)
        epi_graph_fail(lo->g, "unknown name '%s'", e->name);
    return node;
}

static int lower_product(lowering *lo, frame *f, const epi_ast *e) {
    int a = lower_one(lo, f, e->args[0]), b = lower_one(lo, f, e->args[1]);
    lo->g->place = e->place;
    return ok(lo) ? epi_graph_product(lo->g, a, b) : EPI_NO_NODE;
}

static int lower_one(lowering *lo, frame *f, const epi_ast *e) {
    int node = EPI_NO_NODE;
    if (!ok(lo) || !enter(lo, e))
        return node;
    lo->depth++;
    switch (e->kind) {
    case EPI_AST_NUMBER: node = epi_graph_const(lo->g, e->number); break;
    case EPI_AST_NAME: node = lower_name(lo, f, e); break;
    case EPI_AST_UNARY: node = lower_map(lo, f, e, e->op); break;
    case EPI_AST_BINARY:
        node = e->op == EPI_OP_MATMUL ? lower_product(lo, f, e) : lower_map(lo, f, e, e->op);
        break;
    case EPI_AST_CALL: node = lower_single_call(lo, f, e); break;
    case EPI_AST_TAKE: node = lower_take(lo, f, e); break;
    }
    lo->depth--;
    return node;
}

static void lower_body(lowering *lo, frame *f) {
    for (int i = 0; i < f->program->body_count && ok(lo); i++) {
        const epi_ast_assign *s = &f->program->body[i];
        values v = {.count = 1};
        if (s->value->kind == EPI_AST_CALL && enter(lo, s->value))
            lower_call(lo, f, s->value, &v);
        else
            v.node[0] = lower_one(lo, f, s->value);
        lo->g->place = s->places[0];
        if (ok(lo) && v.count != s->name_count)
            epi_graph_fail(lo->g, "%d name%s on the left, %d value%s on the right", s->name_count,
                           s->name_count == 1 ? "" : "s", v.count, v.count == 1 ? "" : "s");
        for (int j = 0; j < s->name_count && ok(lo); j++)
            bind_value(lo, f, s->names[j], v.node[j], s->places[j]);
    }
}

/* ---- the whole program ---- */

static void declare(lowering *lo, frame *f) {
    epi_graph *g = lo->g;
    const epi_ast_program *p = f->program;
    g->input_count = p->input_count;
    g->tensor_count = p->input_count + p->output_count;
    g->tensors = epi_arena_alloc(g->arena, (size_t)(g->tensor_count + 1) * sizeof *g->tensors);
    for (int i = 0; i < g->tensor_count && ok(lo); i++) {
        bool output = i >= p->input_count;
        const epi_ast_tensor *t = output ? &p->outputs[i - p->input_count] : &p->inputs[i];
        g->tensors[i] = (epi_tensor_decl){.name = t->name,
                                          .is_output = output,
                                          .has_type = t->has_type,
                                          .type = t->type,
                                          .place = t->place,
                                          .node = EPI_NO_NODE};
        g->tensors[i].axes = resolve_axes(lo, f, t);
        for (int j = 0; j < i; j++)
            if (!strcmp(g->tensors[j].name, t->name)) {
                g->place = t->place;
                epi_graph_fail(g,
                               output && !g->tensors[j].is_output
                                   ? "'%s' is an input; an output needs a name of its own"
                                   : "'%s' is declared twice",
                               t->name);
            }
        if (!output && ok(lo)) {
            g->place = t->place;
            g->tensors[i].node = epi_graph_input(g, i);
            bind_value(lo, f, t->name, g->tensors[i].node, t->place);
        }
    }
}

static void collect_outputs(lowering *lo, const frame *f) {
    epi_graph *g = lo->g;
    for (int t = g->input_count; t < g->tensor_count && ok(lo); t++) {
        epi_tensor_decl *out = &g->tensors[t];
        g->place = out->place;
        out->node = find_value(f, out->name);
        if (out->node == EPI_NO_NODE)
            epi_graph_fail(g, "the output '%s' is never assigned", out->name);
        for (int i = 0; i < f->program->body_count; i++) /* errors about its axes point at its assignment */
            for (int j = 0; j < f->program->body[i].name_count; j++)
                if (!strcmp(f->program->body[i].names[j], out->name))
                    g->place = f->program->body[i].places[j];
        epi_graph_check_output(g, t);
    }
}

epi_status epi_ast_lower(epi_arena *arena, const epi_ast_text *text, const epi_ast_program *program,
                         epi_graph *out, epi_error *err) {
    *out = (epi_graph){.arena = arena};
    lowering lo = {.text = text, .g = out};
    frame top = {.program = program};
    collect_dims(&lo, &top);
    for (int i = 0; i < top.dim_count; i++) {
        out->dims[i] = top.dims[i];
        top.axes[i] = (epi_axis){(int16_t)i, 0};
        top.bound[i] = true;
    }
    out->dim_count = top.dim_count;
    declare(&lo, &top);
    lower_body(&lo, &top);
    collect_outputs(&lo, &top);
    epi_graph_finish(out);
    if (arena->failed)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    if (out->error.status != EPI_OK) {
        epi_ast_locate(text, &out->error);
        if (err)
            *err = out->error;
    }
    return out->error.status;
}
