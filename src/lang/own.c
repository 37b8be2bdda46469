/* own.c: programs that declare their own gradient: f(x) -> y by f_grad { … }.
 *
 * When a program is lowered to be derived, the results of f are marked with their call. A derivative does
 * not look behind the mark. It inlines f_grad, the *rule*, with the arguments and results of f that it
 * names, and with the cotangents of the results. */
#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "lang/lower.h"

/* What is known of a call. The frame is f's, with the axes of the call, but of a program that is not f itself,
 * so that the rule may call f. */
struct epi_own_call {
    epi_own own;
    epi_ast_program self; /* f, which names no gradient here */
    const epi_ast_program *rule;
    epi_ast_text *text;
    epi_frame frame;
    int *source;    /* by input of the rule: an argument, a result or a cotangent, numbered in this order */
    int *gradient;  /* by argument: the output of the rule that is its gradient, or -1 */
    epi_axes *axes; /* of arguments, then of results, in the call's order */
};

/* ---- names ---- */

static int find_tensor(const epi_ast_tensor *tensors, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (!strcmp(tensors[i].name, name))
            return i;
    return -1;
}

/* What the rule calls `name`: an input of f, a result, or the cotangent of a result; -1: nothing. */
static int find_source(const epi_ast_program *f, const char *name) {
    int input = find_tensor(f->inputs, f->input_count, name);
    int result = find_tensor(f->outputs, f->output_count, name);
    if (input >= 0 || result >= 0)
        return input >= 0 ? input : f->input_count + result;
    result = strncmp(name, "d_", 2) ? -1 : find_tensor(f->outputs, f->output_count, name + 2);
    return result < 0 ? -1 : f->input_count + f->output_count + result;
}

/* The output of the rule that is the gradient of an input of f, or -1. */
static int find_gradient(const epi_ast_program *rule, const char *input) {
    for (int i = 0; i < rule->output_count; i++)
        if (!strncmp(rule->outputs[i].name, "d_", 2) && !strcmp(rule->outputs[i].name + 2, input))
            return i;
    return -1;
}

/* ---- the call ---- */

/* The frame in which the outermost program is derived, if there is one. */
static const epi_frame *around(const epi_frame *f) {
    while (f->depth)
        f = f->caller;
    return f->caller;
}

static epi_own_call *make_call(epi_lowering *lo, const epi_frame *f, const epi_axes *axes) {
    const epi_ast_program *p = f->program, *rule = p->rule;
    epi_arena *arena = lo->g->arena;
    int inputs = p->input_count, tensors = inputs + p->output_count;
    epi_own_call *c = epi_arena_alloc(arena, sizeof *c);
    bool *flags = epi_arena_alloc(arena, (size_t)(inputs + tensors + 1));
    int *numbers = epi_arena_alloc(arena, (size_t)(rule->input_count + inputs + 1) * sizeof *numbers);
    epi_axes *kept = epi_arena_alloc(arena, (size_t)(tensors + 1) * sizeof *kept);
    if (!c || !flags || !numbers || !kept)
        return NULL;
    *c = (epi_own_call){.own = {inputs, p->output_count, flags, flags + inputs, c},
                        .self = *p,
                        .rule = rule,
                        .text = lo->text,
                        .frame = *f,
                        .source = numbers,
                        .gradient = numbers + rule->input_count,
                        .axes = kept};
    c->self.by = NULL;
    c->self.rule = NULL;
    c->frame.program = &c->self;
    c->frame.caller = around(f);
    c->frame.depth = 0;
    c->frame.values = NULL;
    memset(c->frame.buckets, 0, sizeof c->frame.buckets);
    memcpy(kept, axes, (size_t)tensors * sizeof *kept);
    for (int i = 0; i < rule->input_count; i++) {
        c->source[i] = find_source(p, rule->inputs[i].name);
        if (c->source[i] >= 0 && c->source[i] < tensors)
            flags[inputs + c->source[i]] = true;
    }
    for (int i = 0; i < inputs; i++) {
        c->gradient[i] = find_gradient(rule, p->inputs[i].name);
        flags[i] = c->gradient[i] >= 0;
    }
    return c;
}

void epi_own_mark(epi_lowering *lo, const epi_frame *callee, int *out) {
    const epi_ast_program *p = callee->program;
    epi_graph *g = lo->g;
    if (!lo->own || !p->rule || !p->input_count)
        return;
    int *given = epi_lower_values(lo, p->input_count).node;
    epi_axes *axes = epi_arena_alloc(g->arena, (size_t)(p->input_count + p->output_count) * sizeof *axes);
    for (int i = 0; i < p->input_count && given && axes; i++) {
        given[i] = epi_frame_value(callee, p->inputs[i].name);
        axes[i] = g->nodes[given[i]].axes;
    }
    for (int i = 0; i < p->output_count && axes; i++)
        axes[p->input_count + i] = g->nodes[out[i]].axes;
    const epi_own_call *c = given && axes ? make_call(lo, callee, axes) : NULL;
    if (c)
        epi_graph_own(g, &c->own, given, out);
}

/* ---- the rule ---- */

/* The axes of what the rule takes. */
static const epi_axes *source_axes(const epi_own_call *c, int source) {
    int tensors = c->own.input_count + c->own.result_count;
    return &c->axes[source < tensors ? source : source - c->own.result_count];
}

/* A program, f or its rule, inlined with these values. */
static epi_values inline_with(epi_lowering *lo, const epi_own_call *c, const epi_ast_program *p,
                              const int *values) {
    epi_arena *arena = lo->g->arena;
    int count = p->input_count;
    epi_ast call = {.kind = EPI_AST_CALL, .place = lo->g->place, .name = p->name, .arg_count = count};
    epi_ast *arguments = epi_arena_alloc(arena, (size_t)(count + 1) * sizeof *arguments);
    epi_frame *frame = epi_arena_alloc(arena, sizeof *frame);
    call.args = epi_arena_alloc(arena, (size_t)(count + 1) * sizeof *call.args);
    if (!arguments || !frame || !call.args)
        return (epi_values){0};
    *frame = c->frame;
    for (int i = 0; i < count; i++) {
        arguments[i].place = p->inputs[i].place;
        call.args[i] = &arguments[i];
    }
    return epi_lower_inline(lo, frame, &call, p, frame->bundled, values);
}

/* The rule, inlined with these values. */
static epi_values inline_rule(epi_lowering *lo, const epi_own_call *c, const int *values) {
    int count = c->rule->input_count, *given = epi_lower_values(lo, count + 1).node;
    epi_lower_check_recursion(lo, &c->frame, c->rule);
    for (int i = 0; i < count && epi_lower_ok(lo); i++)
        given[i] = epi_graph_ordered(lo->g, values[i], source_axes(c, c->source[i]));
    return epi_lower_ok(lo) ? inline_with(lo, c, c->rule, given) : (epi_values){0};
}

static void check_carried(epi_graph *g, const epi_own_call *c) {
    for (int i = 0; i < c->own.result_count; i++) {
        epi_axes lacks = epi_axes_without(&c->frame.carried, &c->axes[c->own.input_count + i]);
        if (lacks.count)
            epi_graph_fail(
                g,
                "%s declares its own gradient, but its result '%s' lacks the extra axis %s of its arguments",
                c->self.name, c->self.outputs[i].name, epi_axis_label(g, lacks.at[0]).text);
    }
}

void epi_own_apply(epi_graph *g, const epi_own *own, const int *given, int *out) {
    const epi_own_call *c = own->call;
    epi_lowering lo = {
        .text = c->text, .g = g, .own = true, .site = c->frame.bundled ? g->place : (epi_place){0}};
    int *values = epi_lower_values(&lo, c->rule->input_count + 1).node;
    check_carried(g, c);
    for (int i = 0; i < c->rule->input_count && values; i++)
        values[i] = given[c->source[i]];
    epi_values made = {0};
    if (values && epi_lower_ok(&lo))
        made = inline_rule(&lo, c, values);
    for (int i = 0; i < own->input_count; i++)
        out[i] =
            c->gradient[i] >= 0 && made.node ? epi_graph_value(g, made.node[c->gradient[i]]) : EPI_NO_NODE;
}

/* ---- what the text says ---- */

/* What is wrong with a tensor of the rule, at both places. */
static void fail_at(epi_lowering *lo, const epi_ast_program *f, const epi_ast_tensor *t, const char *says) {
    epi_lower_at(lo, f->by_place);
    epi_graph_fail(lo->g, "%s cannot be the gradient of %s: in line %d '%s' %s", f->rule->name, f->name,
                   t->place.line, t->name, says);
}

static void check_inputs(epi_lowering *lo, const epi_ast_program *f) {
    const epi_ast_program *rule = f->rule;
    for (int i = 0; i < rule->input_count; i++) {
        const epi_ast_tensor *t = &rule->inputs[i];
        int source = find_source(f, t->name), tensors = f->input_count + f->output_count;
        if (source < 0) {
            fail_at(lo, f, t, "is neither an input nor a result of it, nor d_… for a result");
            return;
        }
        const epi_ast_tensor *of = source < f->input_count ? &f->inputs[source]
                                   : source < tensors      ? &f->outputs[source - f->input_count]
                                                           : &f->outputs[source - tensors];
        char says[200];
        bool integer = of->has_type && epi_dtype_is_whole(of->type);
        if (source >= tensors && integer)
            fail_at(lo, f, t, "is the cotangent of an integer, which has no gradient");
        if (source < tensors && !strncmp(t->name, "d_", 2) &&
            find_tensor(f->outputs, f->output_count, t->name + 2) >= 0)
            fail_at(lo, f, t, "is both one of its tensors and a cotangent: give it another name");
        snprintf(says, sizeof says, "has %d %s, but '%.60s' in line %d has %d", t->axis_count,
                 t->axis_count == 1 ? "axis" : "axes", of->name, of->place.line, of->axis_count);
        if (t->axis_count != of->axis_count)
            fail_at(lo, f, t, says);
        snprintf(says, sizeof says, "is declared %s, but '%.60s' in line %d is %s", epi_dtype_name(t->type),
                 of->name, of->place.line, epi_dtype_name(of->type));
        if (source < tensors && t->has_type && of->has_type && t->type != of->type)
            fail_at(lo, f, t, says);
    }
}

static void check_outputs(epi_lowering *lo, const epi_ast_program *f) {
    const epi_ast_program *rule = f->rule;
    for (int i = 0; i < rule->output_count; i++) {
        const epi_ast_tensor *t = &rule->outputs[i];
        int input = strncmp(t->name, "d_", 2) ? -1 : find_tensor(f->inputs, f->input_count, t->name + 2);
        if (input < 0)
            fail_at(lo, f, t, "is not d_… for one of its inputs");
        else if (f->inputs[input].has_type && epi_dtype_is_whole(f->inputs[input].type))
            fail_at(lo, f, t, "would be the gradient of an integer, which has no gradient");
    }
    for (int i = 0; i < f->output_count; i++) {
        char name[170];
        const epi_ast_tensor *of = &f->outputs[i];
        bool integer = of->has_type && epi_dtype_is_whole(of->type);
        snprintf(name, sizeof name, "d_%.160s", of->name);
        epi_lower_at(lo, f->by_place);
        if (!integer && find_tensor(rule->inputs, rule->input_count, name) < 0)
            epi_graph_fail(lo->g,
                           "%s cannot be the gradient of %s: in line %d it does not take '%s', the cotangent "
                           "of '%s' in line %d",
                           rule->name, f->name, rule->place.line, name, of->name, of->place.line);
    }
}

/* ---- as programs by themselves ---- */

/* An empty graph with the dims of another, and an input for each of so many tensors; false: no memory. */
static bool begin_graph(epi_graph *out, const epi_graph *dims, int inputs, int outputs) {
    epi_arena *arena = out->arena;
    *out = (epi_graph){.arena = arena, .input_count = inputs, .tensor_count = inputs + outputs};
    epi_graph_take_dims(out, dims);
    out->tensors = epi_arena_alloc(arena, (size_t)(out->tensor_count + 1) * sizeof *out->tensors);
    return out->tensors != NULL;
}

static void declare(epi_graph *g, int tensor, const epi_ast_tensor *t, const epi_axes *axes) {
    g->tensors[tensor] = (epi_tensor_decl){.name = t->name,
                                           .is_output = tensor >= g->input_count,
                                           .has_type = t->has_type,
                                           .cotangent = t->cotangent,
                                           .param = t->param,
                                           .infinite = t->infinite,
                                           .type = t->packed ? EPI_I8 : t->type, /* nothing is stored here */
                                           .axes = *axes,
                                           .place = t->place,
                                           .node = EPI_NO_NODE};
}

/* A value summed to these axes: it may have those that the call carries beyond them. */
static int sum_carried(epi_graph *g, const epi_own_call *c, int value, const epi_axes *axes) {
    epi_axes gone = epi_axes_without(&g->nodes[value].axes, axes);
    return gone.count && epi_axes_include(&c->frame.carried, &gone)
               ? epi_graph_value(g, epi_graph_reduce(g, EPI_OP_SUM, value, &gone))
               : epi_graph_value(g, value);
}

/* The rule as a graph, with the axes of the call; `own`: to be derived. Its error is in out->error. */
static void write_rule(const epi_own_call *c, const epi_graph *dims, bool own, epi_graph *out) {
    const epi_ast_program *rule = c->rule, *f = &c->self;
    epi_lowering lo = {.text = c->text, .g = out, .own = own};
    int *values = epi_arena_alloc(out->arena, (size_t)(rule->input_count + 1) * sizeof *values);
    if (!begin_graph(out, dims, rule->input_count, rule->output_count) || !values)
        return;
    for (int i = 0; i < rule->input_count; i++) {
        declare(out, i, &rule->inputs[i], source_axes(c, c->source[i]));
        out->tensors[i].cotangent = c->source[i] >= f->input_count + f->output_count;
        out->tensors[i].node = values[i] = epi_graph_input(out, i);
    }
    epi_values made = inline_rule(&lo, c, values);
    for (int i = 0; i < f->input_count && epi_lower_ok(&lo); i++) {
        int d = c->gradient[i], t = rule->input_count + d;
        if (d < 0)
            continue;
        declare(out, t, &rule->outputs[d], &c->axes[i]);
        out->tensors[t].node = sum_carried(out, c, made.node[d], &c->axes[i]);
        const epi_axes *have = &out->nodes[out->tensors[t].node].axes;
        out->place = rule->outputs[d].place;
        if (!epi_axes_same_set(have, &c->axes[i]))
            epi_graph_fail(out, "'%s' would be %s, but '%s' of %s is %s", rule->outputs[d].name,
                           epi_axes_label(out, have).text, f->inputs[i].name, f->name,
                           epi_axes_label(out, &c->axes[i]).text);
    }
    epi_graph_finish(out);
}

/* And the program itself. */
static void write_self(const epi_own_call *c, const epi_graph *dims, epi_graph *out) {
    const epi_ast_program *f = &c->self;
    epi_lowering lo = {.text = c->text, .g = out, .own = true};
    int *values = epi_arena_alloc(out->arena, (size_t)(f->input_count + 1) * sizeof *values);
    if (!begin_graph(out, dims, f->input_count, f->output_count) || !values)
        return;
    for (int i = 0; i < f->input_count; i++) {
        declare(out, i, &f->inputs[i], &c->axes[i]);
        out->tensors[i].node = values[i] = epi_graph_input(out, i);
    }
    epi_values made = inline_with(&lo, c, f, values);
    for (int i = 0; i < f->output_count && epi_lower_ok(&lo); i++) {
        declare(out, f->input_count + i, &f->outputs[i], &c->axes[f->input_count + i]);
        out->tensors[f->input_count + i].node = epi_graph_value(out, made.node[i]);
    }
    epi_graph_finish(out);
}

bool epi_made_add(epi_made *made, const epi_own_call *call, const epi_graph *g, epi_ast_program *program) {
    struct epi_made_program *at =
        epi_arena_grow(made->arena, made->at, made->count, &made->capacity, sizeof *at);
    if (!at)
        return false;
    made->at = at;
    at[made->count++] = (struct epi_made_program){call, g, program, NULL};
    return true;
}

static bool same_axis(const epi_graph *g, epi_axis a, const epi_graph *h, epi_axis b) {
    return a.shift == b.shift && !strcmp(g->dims[a.dim], h->dims[b.dim]);
}

/* Is it the same program, with axes of the same names? */
static bool same_call(const struct epi_made_program *a, const epi_own_call *c, const epi_graph *g) {
    if (!a->call || a->call->rule != c->rule || strcmp(a->call->self.name, c->self.name) != 0 ||
        a->call->frame.dim_count != c->frame.dim_count)
        return false;
    for (int i = 0; i < c->frame.dim_count; i++)
        if (a->call->frame.bound[i] != c->frame.bound[i] ||
            (c->frame.bound[i] && !same_axis(a->g, a->call->frame.axes[i], g, c->frame.axes[i])))
            return false;
    for (int i = 0; i < c->own.input_count + c->own.result_count; i++) {
        const epi_axes *x = &a->call->axes[i], *y = &c->axes[i];
        bool same = x->count == y->count;
        for (int k = 0; k < x->count && same; k++)
            same = same_axis(a->g, x->at[k], g, y->at[k]);
        if (!same)
            return false;
    }
    return true;
}

epi_ast_program *epi_own_program(epi_made *made, const epi_graph *g, const epi_own *own) {
    const epi_own_call *c = own->call;
    for (int i = 0; i < made->count; i++)
        if (same_call(&made->at[i], c, g))
            return made->at[i].program;
    epi_ast_program *p = epi_arena_alloc(made->arena, sizeof *p);
    epi_graph *two = epi_arena_alloc(made->arena, 2 * sizeof *two);
    int index = made->count;
    if (!p || !two || !epi_made_add(made, c, g, p))
        return NULL;
    two[0].arena = two[1].arena = made->arena;
    write_self(c, g, &two[0]);
    write_rule(c, g, true, &two[1]);
    for (int i = 0; i < 2; i++)
        if (epi_graph_failed(&two[i])) {
            epi_fail(&made->error, two[i].error.status, "in %.60s: %.600s", i ? c->rule->name : c->self.name,
                     two[i].error.message);
            return NULL;
        }
    epi_ast_program *self = epi_graph_write(made, &two[0], c->self.name, true);
    epi_ast_program *rule = self ? epi_graph_write(made, &two[1], c->rule->name, true) : NULL;
    if (!rule)
        return NULL;
    *p = *self;
    p->rule = made->at[index].rule = rule;
    return p;
}

/* ---- the order of axes ---- */

epi_ast *epi_own_order(epi_made *made, const epi_ast_tensor *input, const epi_axes *have,
                       const epi_axes *want, epi_ast *argument) {
    epi_arena *arena = made->arena;
    epi_ast_program *p = epi_arena_alloc(arena, sizeof *p);
    epi_ast *all = epi_arena_alloc(arena, 2 * sizeof *all), **args = epi_arena_alloc(arena, sizeof *args);
    epi_ast_assign *body = epi_arena_alloc(arena, sizeof *body);
    if (!p || !all || !args || !body || !(body->names = epi_arena_alloc(arena, sizeof *body->names)) ||
        !(p->inputs = epi_arena_alloc(arena, 2 * sizeof *p->inputs)))
        return argument;
    all[0] = (epi_ast){.kind = EPI_AST_CALL, .args = args, .arg_count = 1, .program = p};
    all[1] = (epi_ast){.kind = EPI_AST_NAME, .name = "x"};
    args[0] = argument;
    *body = (epi_ast_assign){.names = body->names, .name_count = 1, .value = &all[1]};
    body->names[0] = (epi_ast_name){.text = "y", .type = EPI_DTYPE_COUNT};
    epi_ast_tensor *t = p->inputs;
    *p = (epi_ast_program){.name = "in_order",
                           .comment = "",
                           .inputs = t,
                           .input_count = 1,
                           .outputs = t + 1,
                           .output_count = 1,
                           .body = body,
                           .body_count = 1};
    t[0] = (epi_ast_tensor){.name = "x", .axis_count = input->axis_count};
    t[1] = (epi_ast_tensor){.name = "y", .axis_count = input->axis_count};
    for (int i = 0; i < input->axis_count; i++) {
        int at = epi_axes_find(want, have->at[i]);
        t[0].axes[i] = (epi_ast_axis){.name = input->axes[at].name, .shift = input->axes[at].shift};
        t[1].axes[i] = (epi_ast_axis){.name = input->axes[i].name, .shift = input->axes[i].shift};
    }
    return epi_made_add(made, NULL, NULL, p) ? &all[0] : argument;
}

bool epi_own_settle(epi_made *made, const epi_ast_program *program) {
    epi_graph *out = epi_arena_alloc(made->arena, 2 * sizeof *out);
    epi_ast_text text = {.file = "", .source = ""};
    if (!out)
        return false;
    out[0].arena = made->arena;
    epi_lowering lo = {.text = &text, .g = &out[0], .made = made};
    epi_lower_whole(&lo, NULL, program, true, false, made->arena, &out[1]);
    return !epi_graph_failed(&out[1]);
}

/* ---- the check ---- */

/* The rule's axes, for axes of f as they are declared. */
static void check_axes(epi_lowering *lo, const epi_frame *f, epi_graph *scratch) {
    const epi_graph *g = lo->g;
    epi_axes *axes = epi_arena_alloc(g->arena, (size_t)(g->tensor_count + 1) * sizeof *axes);
    for (int t = 0; t < g->tensor_count && axes; t++)
        axes[t] = g->tensors[t].axes;
    const epi_own_call *c = axes ? make_call(lo, f, axes) : NULL;
    scratch->arena = g->arena;
    if (c)
        write_rule(c, g, false, scratch);
}

void epi_own_check(epi_lowering *lo, const epi_frame *f) {
    const epi_ast_program *p = f->program;
    if (!p->rule)
        return;
    check_inputs(lo, p);
    check_outputs(lo, p);
    epi_graph *scratch = epi_lower_ok(lo) ? epi_arena_alloc(lo->g->arena, sizeof *scratch) : NULL;
    if (!scratch)
        return;
    check_axes(lo, f, scratch);
    epi_lower_at(lo, p->by_place);
    if (scratch->error.status != EPI_OK)
        epi_graph_fail(lo->g, "%s cannot be the gradient of %s: in line %d %.500s", p->rule->name, p->name,
                       scratch->error.line ? scratch->error.line : p->rule->place.line,
                       scratch->error.message);
}
