/* lower_call.c: calls. A call of a program is inlined: its inputs become the arguments, and its axes the
 * axes of the arguments. */
#include "lang/lower.h"

#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "lang/bundled.h"
#include "lang/hints.h"
#include "lang/words.h"

enum { MAX_CALLS = 32 };

/* The callee says how long an axis is: then the caller's is as long, or this call is a mistake. */
static EPI_NOINLINE void bind_size(epi_lowering *lo, const epi_frame *callee, int dim, epi_axis axis) {
    epi_graph *g = lo->g;
    int64_t want = callee->sizes[dim], factor = (int64_t)1 << (axis.shift < 0 ? -axis.shift : axis.shift);
    int64_t size = axis.shift < 0 ? want * factor : want % factor ? 0 : want / factor;
    if (!want || axis.dim >= g->declared_count)
        return; /* what an axis is renamed to has its size, and that is looked at when sizes are known */
    if (!size || (g->fixed[axis.dim] && g->fixed[axis.dim] != size))
        epi_graph_fail(g, "%s: its axis %s has %ld elements, but %s does not", callee->program->name,
                       callee->dims[dim], (long)want, epi_axis_label(g, axis).text);
    g->fixed[axis.dim] = size;
}

/* "; last axes are matched, and those in front carried: declare turn(x[E], …)": the first input that has the
 * axis, without it and what stands before it. */
static EPI_NOINLINE void say_carried(const epi_ast_program *p, const char *axis, char *out, size_t size) {
    epi_text says = {0};
    for (int i = 0; i < p->input_count && !says.length; i++)
        for (int j = 0; j < p->inputs[i].axis_count && !says.length; j++)
            if (!strcmp(p->inputs[i].axes[j].name, axis)) {
                epi_ast_tensor rest = p->inputs[i];
                rest.axis_count -= j + 1;
                memmove(rest.axes, rest.axes + j + 1, (size_t)rest.axis_count * sizeof *rest.axes);
                epi_ast_print_tensor(&rest, &says);
            }
    snprintf(
        out, size,
        "; arguments bind their last axes, and extra axes in front are carried: declare %.60s(%.100s, …)",
        p->name, says.data ? says.data : "…");
    epi_text_free(&says);
}

/* Two axes of the arguments are one of the callee's. */
static EPI_NOINLINE void fail_two_axes(epi_lowering *lo, const epi_frame *callee, const epi_ast_tensor *t,
                                       const char *axis, epi_axis one, epi_axis other, const char *hint) {
    char carried[300] = "";
    const char *what = callee->program->name;
    if (!*hint && callee->carried.count)
        say_carried(callee->program, axis, carried, sizeof carried);
    epi_graph_fail(lo->g, "%s: the axis %s of %s is %s in one argument, but %s in '%s'%s%s", what, axis, what,
                   epi_axis_label(lo->g, one).text, epi_axis_label(lo->g, other).text, t->name, hint,
                   carried);
}

/* Binds one dim of the callee to an axis of an argument. */
static EPI_NOINLINE void bind_axis(epi_lowering *lo, epi_frame *callee, const epi_ast_tensor *t,
                                   const epi_ast_axis *declared, epi_axis have) {
    epi_graph *g = lo->g;
    const char *what = callee->program->name;
    int dim = epi_frame_dim(callee, declared->name);
    epi_axis axis = {have.dim, (int16_t)(have.shift - declared->shift)};
    bool product = callee->bundled && !strncmp(what, "matmul", 6);
    const char *hint = product ? "; write x @ w, which sums over the axes that both have" : "";
    if (callee->bound[dim] && !epi_axis_equal(callee->axes[dim], axis))
        fail_two_axes(lo, callee, t, declared->name, callee->axes[dim], axis, hint);
    for (int j = 0; j < callee->dim_count; j++)
        if (j != dim && callee->bound[j] && callee->axes[j].dim == axis.dim)
            epi_graph_fail(g, "%s: the axes %s and %s of %s would both be %s%s", what, callee->dims[j],
                           declared->name, what, g->dims[axis.dim],
                           *hint ? hint : "; rename it in one of the arguments");
    callee->axes[dim] = axis;
    callee->bound[dim] = true;
    bind_size(lo, callee, dim, axis);
}

static const epi_ast_program *find_program(const epi_ast_program *list, const char *name) {
    while (list && strcmp(list->name, name) != 0)
        list = list->next;
    return list;
}

/* What to write instead of a call that does not fit, if the program is one that comes with Epilog; or "". */
static const char *call_hint(const epi_lowering *lo, const epi_ast_program *p) {
    const char *hint = find_program(lo->text->programs, p->name) == p ? NULL : epi_hint_call(p->name);
    return hint ? hint : "";
}

/* An argument has fewer axes than the callee declares. */
static EPI_NOINLINE void fail_too_few(epi_lowering *lo, const epi_ast_program *p, const epi_ast_tensor *t,
                                      int node) {
    const char *hint = call_hint(lo, p);
    epi_graph_fail(lo->g, "%s: %s has %d %s, but its argument, %s, has %d%s%s", p->name, t->name,
                   t->axis_count, t->axis_count == 1 ? "axis" : "axes", epi_node_label(lo->g, node).text,
                   lo->g->nodes[node].axes.count, *hint ? "; " : "", hint);
}

/* The last axes of an argument are those that the callee declares; what it has in front of them is carried.
 */
static EPI_NOINLINE void bind_axes(epi_lowering *lo, epi_frame *callee, const epi_ast_tensor *t, int node) {
    epi_graph *g = lo->g;
    const epi_axes *have = &g->nodes[node].axes;
    epi_axes *carried = &callee->carried;
    int lead = have->count - t->axis_count;
    if (lead < 0)
        fail_too_few(lo, callee->program, t, node);
    for (int i = 0; i < have->count && epi_lower_ok(lo); i++) {
        bool fresh = i < lead && epi_axes_find(carried, have->at[i]) < 0;
        if (i >= lead)
            bind_axis(lo, callee, t, &t->axes[i - lead], have->at[i]);
        else if (fresh && carried->count == EPI_MAX_AXES)
            epi_graph_fail(g, "the result would have more than %d axes", EPI_MAX_AXES);
        else if (fresh)
            carried->at[carried->count++] = have->at[i];
    }
    for (int i = 0; i < callee->dim_count && epi_lower_ok(lo); i++)
        if (callee->bound[i] && epi_axes_find_dim(carried, callee->axes[i].dim) >= 0)
            epi_graph_fail(g,
                           "%s: %s is the axis %s of %s in one argument, but an extra axis of another; "
                           "rename it in one of them",
                           callee->program->name, g->dims[callee->axes[i].dim], callee->dims[i],
                           callee->program->name);
}

/* What a call yields has the carried axes in front, then the others as the callee declares them. */
static int in_declared_order(epi_lowering *lo, const epi_frame *callee, const epi_ast_tensor *t, int node) {
    const epi_axes have = lo->g->nodes[node].axes;
    epi_axes order = {0};
    for (int i = 0; i < callee->carried.count; i++)
        if (epi_axes_find(&have, callee->carried.at[i]) >= 0)
            order.at[order.count++] = callee->carried.at[i];
    if (order.count + t->axis_count != have.count)
        return node;
    for (int i = 0; i < t->axis_count; i++) {
        int dim = epi_frame_dim(callee, t->axes[i].name);
        epi_axis axis = {callee->axes[dim].dim, (int16_t)(callee->axes[dim].shift + t->axes[i].shift)};
        if (!callee->bound[dim] || epi_axes_find(&have, axis) < 0)
            return node; /* the callee's own check says what is wrong with it */
        order.at[order.count++] = axis;
    }
    return epi_graph_ordered(lo->g, node, &order);
}

/* A frame for a call. Frames that are done with are used again: a text may have many calls. */
static epi_frame *new_frame(epi_lowering *lo, const epi_ast_program *p, const epi_frame *caller) {
    epi_frame *f = lo->spare ? lo->spare : epi_arena_alloc(lo->g->arena, sizeof *f);
    if (!f)
        return NULL;
    lo->spare = f->next_spare;
    *f = (epi_frame){.program = p, .caller = caller, .depth = caller->depth + 1};
    epi_frame_collect_dims(lo, f);
    return f;
}

/* Is the program one of those that are being lowered? */
EPI_NOINLINE void epi_lower_check_recursion(epi_lowering *lo, const epi_frame *f, const epi_ast_program *p) {
    int depth = 0;
    for (const epi_frame *c = f; c; c = c->caller, depth++)
        if (c->program == p)
            epi_graph_fail(lo->g, "'%s' calls itself%s; programs are inlined and cannot recurse", p->name,
                           c == f ? "" : " through others");
    if (depth > MAX_CALLS)
        epi_graph_fail(lo->g, "calls are nested more than %d deep", MAX_CALLS);
}

/* Says what the program takes: of a derived one only the names, since its axes are its caller's. */
static EPI_NOINLINE void fail_argument_count(epi_lowering *lo, const epi_ast *e, const epi_ast_program *p) {
    epi_text inputs = {0};
    for (int i = 0; i < p->input_count; i++) {
        epi_text_add(&inputs, "%s%s", i ? ", " : "", e->callee ? p->inputs[i].name : "");
        if (!e->callee)
            epi_ast_print_tensor(&p->inputs[i], &inputs);
    }
    const char *hint = call_hint(lo, p);
    epi_graph_fail(lo->g, "%s takes %d argument%s, but %d %s given: it takes %.400s%s%s", p->name,
                   p->input_count, p->input_count == 1 ? "" : "s", e->arg_count,
                   e->arg_count == 1 ? "was" : "were", inputs.data ? inputs.data : "none", *hint ? "; " : "",
                   hint);
    epi_text_free(&inputs);
}

static EPI_NOINLINE void check_call(epi_lowering *lo, const epi_frame *f, const epi_ast *e,
                                    const epi_ast_program *p) {
    epi_lower_at(lo, e->place);
    epi_lower_check_recursion(lo, f, p);
    if (e->arg_count != p->input_count)
        fail_argument_count(lo, e, p);
}

/* An error inside a bundled program says which, as its place is the call's. */
static EPI_NOINLINE void tell_of_call(epi_graph *g, const char *name) {
    char message[sizeof g->error.message];
    snprintf(message, sizeof message, "in %.60s: %.690s", name, g->error.message);
    memcpy(g->error.message, message, sizeof message);
}

/* The callee's formula, once its inputs are bound. What goes wrong in a bundled program is told of its call.
 */
static EPI_NOINLINE void inline_body(epi_lowering *lo, epi_frame *callee, epi_place call, epi_values *out) {
    const epi_ast_program *p = callee->program;
    epi_axes carried = lo->g->carried;
    bool enters = callee->bundled && !callee->caller->bundled;
    if (enters)
        lo->site = call;
    lo->g->carried = callee->carried;
    epi_lower_body(lo, callee);
    for (int i = 0; i < p->output_count && epi_lower_ok(lo); i++) {
        out->node[i] = epi_frame_value(callee, p->outputs[i].name);
        if (out->node[i] == EPI_NO_NODE) {
            epi_lower_at(lo, p->outputs[i].place);
            epi_graph_fail(lo->g, "the output '%s' of %s is never assigned", p->outputs[i].name, p->name);
        } else {
            out->node[i] = in_declared_order(lo, callee, &p->outputs[i], out->node[i]);
        }
    }
    if (epi_lower_ok(lo))
        epi_own_mark(lo, callee, out->node);
    lo->g->carried = carried;
    if (enters && !epi_lower_ok(lo))
        tell_of_call(lo->g, p->name);
    if (enters)
        lo->site = (epi_place){0};
}

static bool is_number_for_all(const epi_lowering *lo, const epi_ast_tensor *input, int node) {
    return input->cotangent && input->axis_count && !lo->g->nodes[node].axes.count;
}

/* An axis that no argument has, as what topk brings into being, is the caller's of that name. */
static EPI_NOINLINE void bind_others(epi_lowering *lo, const epi_frame *f, epi_frame *callee,
                                     const epi_ast *e) {
    for (int i = 0; i < callee->dim_count && epi_lower_ok(lo); i++) {
        if (callee->bound[i] || epi_frame_dim(f, callee->dims[i]) < 0)
            continue;
        epi_axis axis = epi_frame_axis(lo, f, &(epi_ast_axis){.name = callee->dims[i], .place = e->place});
        bool taken = false;
        for (int j = 0; j < callee->dim_count; j++)
            taken |= callee->bound[j] && callee->axes[j].dim == axis.dim;
        callee->axes[i] = axis;
        callee->bound[i] = !taken;
        if (!taken)
            bind_size(lo, callee, i, axis);
    }
}

/* A cotangent of a derived program that is a number is that number everywhere. */
static EPI_NOINLINE void complete_derived(epi_lowering *lo, epi_frame *callee, const int *given,
                                          const epi_ast *e) {
    const epi_ast_program *p = callee->program;
    for (int i = 0; i < p->input_count && epi_lower_ok(lo); i++) {
        epi_axes axes = {0};
        if (!is_number_for_all(lo, &p->inputs[i], given[i]))
            continue;
        for (int j = 0; j < p->inputs[i].axis_count && epi_lower_ok(lo); j++)
            axes.at[axes.count++] = epi_frame_axis(lo, callee, &p->inputs[i].axes[j]);
        if (epi_lower_ok(lo))
            epi_frame_bind(lo, callee, p->inputs[i].name, epi_graph_complete(lo->g, given[i], &axes),
                           e->args[i]->place);
    }
}

/* One argument of a call: its axes say what the callee's are. */
static EPI_NOINLINE void bind_argument(epi_lowering *lo, epi_frame *callee, const epi_ast *e, int i,
                                       int node) {
    const epi_ast_tensor *in = &callee->program->inputs[i];
    const epi_axes *have = &lo->g->nodes[node].axes;
    epi_lower_at(lo, e->args[i]->place);
    if (e->callee && is_number_for_all(lo, in, node))
        return;
    if (e->callee && epi_axes_without(have, &lo->g->carried).count > in->axis_count)
        epi_graph_fail(
            lo->g, "%s: %s has %d axes, the argument has %d %s, and a gradient takes no extra axes",
            callee->program->name, in->name, in->axis_count, have->count, epi_axes_label(lo->g, have).text);
    bind_axes(lo, callee, in, node);
    epi_frame_bind(lo, callee, in->name, node, e->args[i]->place);
}

EPI_NOINLINE int *epi_lower_arguments(epi_lowering *lo, epi_frame *f, const epi_ast *e,
                                      const epi_ast_program *p) {
    check_call(lo, f, e, p);
    int *given = epi_lower_values(lo, e->arg_count).node;
    for (int i = 0; i < e->arg_count && epi_lower_ok(lo); i++)
        given[i] = epi_lower_one(lo, f, e->args[i]);
    return epi_lower_ok(lo) ? given : NULL;
}

EPI_NOINLINE epi_values epi_lower_inline(epi_lowering *lo, epi_frame *f, const epi_ast *e,
                                         const epi_ast_program *p, bool bundled, const int *given) {
    epi_values out = epi_lower_values(lo, p->output_count);
    epi_frame *callee = given ? new_frame(lo, p, f) : NULL;
    if (!callee)
        return out;
    callee->bundled = bundled;
    for (int i = 0; i < e->arg_count && epi_lower_ok(lo); i++)
        bind_argument(lo, callee, e, i, given[i]);
    if (epi_lower_ok(lo))
        bind_others(lo, f, callee, e);
    if (e->callee && epi_lower_ok(lo))
        complete_derived(lo, callee, given, e);
    if (epi_lower_ok(lo))
        inline_body(lo, callee, e->place, &out);
    callee->next_spare = lo->spare;
    lo->spare = callee;
    return out;
}

static EPI_NOINLINE epi_values lower_program(epi_lowering *lo, epi_frame *f, const epi_ast *e,
                                             const epi_ast_program *p, bool bundled) {
    const int *given = epi_lower_arguments(lo, f, e, p);
    epi_values out = epi_lower_inline(lo, f, e, p, bundled, given);
    if (lo->notes && epi_lower_ok(lo))
        epi_note_orders(lo, f, e, p, bundled, given, &out);
    return out;
}

/* Programs that may have been meant: not those that are being lowered, which cannot call themselves. */
static void offer_programs(const epi_lowering *lo, const epi_frame *f, epi_nearest *near) {
    const epi_ast_program *lists[] = {f->bundled ? NULL : lo->text->programs,
                                      epi_bundled_programs(lo->g->arena, lo->text)};
    for (int i = 0; i < 2; i++)
        for (const epi_ast_program *p = lists[i]; p; p = p->next) {
            bool open = false;
            for (const epi_frame *c = f; c; c = c->caller)
                open |= c->program == p;
            epi_nearest_offer(near, open ? "" : p->name);
        }
}

/* There is nothing of this name to call. */
static EPI_NOINLINE void fail_unknown(epi_lowering *lo, const epi_frame *f, const epi_ast *e) {
    epi_nearest near = {.wanted = e->name};
    const char *hint = epi_hint_operation(e->name);
    epi_lower_at(lo, e->place);
    if (epi_frame_value(f, e->name) != EPI_NO_NODE)
        epi_graph_fail(lo->g, "'%s' is a value and cannot be called; write a product as %s*(…)", e->name,
                       e->name);
    if (!strcmp(e->name, "repeat"))
        epi_graph_fail(lo->g, "repeat(f, L) is a program: call it with the inputs of f, as repeat(f, L)(…); "
                              "values need no repeat: they extend along axes that they lack");
    if (hint)
        epi_graph_fail(lo->g, EPI_UNKNOWN_OPERATION, e->name, hint);
    for (int op = 0; op < EPI_OP_COUNT; op++)
        epi_nearest_offer(&near, epi_ops[op].text);
    for (int i = 0; epi_word_at(i); i++)
        epi_nearest_offer(&near, epi_word_at(i)->name);
    offer_programs(lo, f, &near);
    if (!strcmp(e->name, "grad"))
        epi_graph_fail(lo->g,
                       "grad(f, x) is a program: call it with the inputs of f and a cotangent for each "
                       "of its results, grad(f, x)(…)");
    if (!strcmp(e->name, "backward"))
        epi_graph_fail(lo->g, "backward(f, x) is a program: call it with the inputs and results of f that it "
                              "needs and a cotangent for each of its results, backward(f, x)(…)");
    if (near.best[0])
        epi_graph_fail(lo->g, "unknown operation or program '%s'%s", e->name, epi_nearest_hint(&near, ""));
    epi_graph_fail(
        lo->g,
        "unknown operation or program '%s'; docs/language.md lists the operations, 'epilog list' the "
        "programs that come with Epilog",
        e->name);
}

/* A program of the text comes before a word of its name, but inside the program itself the name is the word.
 * Then come the words, then the programs that come with Epilog. */
static const epi_ast_program *own_program(const epi_lowering *lo, const epi_frame *f, const char *name) {
    bool own_word = !strcmp(f->program->name, name) && epi_is_word(name);
    return f->bundled || own_word ? NULL : find_program(lo->text->programs, name);
}

const epi_ast_program *epi_lower_callee(epi_lowering *lo, const epi_frame *f, const char *name) {
    const epi_ast_program *p = own_program(lo, f, name);
    return p || epi_is_word(name) ? p : find_program(epi_bundled_programs(lo->g->arena, lo->text), name);
}

/* The program of this name that f sees, or NULL. */
static const epi_ast_program *find_seen(epi_lowering *lo, const epi_frame *f, const char *name,
                                        bool *bundled) {
    const epi_ast_program *p = own_program(lo, f, name);
    *bundled = !p;
    if (!p)
        p = find_program(epi_bundled_programs(lo->g->arena, lo->text), name);
    if (p)
        epi_lower_check_recursion(lo, f, p);
    return p;
}

const epi_ast_program *epi_lower_program(epi_lowering *lo, const epi_frame *f, const epi_ast *names,
                                         bool *bundled) {
    epi_lower_at(lo, names->place);
    if (names->arg_count < 2 || names->args[0]->kind != EPI_AST_NAME) {
        epi_graph_fail(lo->g, "%s needs a program and names of its inputs: %s(f, x, w)(…)", names->name,
                       names->name);
        return NULL;
    }
    epi_lower_at(lo, names->args[0]->place);
    const epi_ast_program *p = find_seen(lo, f, names->args[0]->name, bundled);
    epi_nearest near = {.wanted = names->args[0]->name};
    if (!p)
        offer_programs(lo, f, &near);
    if (!p)
        epi_graph_fail(lo->g, "%s: there is no program '%s'%s", names->name, names->args[0]->name,
                       near.best[0] ? epi_nearest_hint(&near, "") : "");
    return epi_lower_ok(lo) ? p : NULL;
}

/* A call of grad(f, x): nothing is carried but what the caller carries, since a gradient of a shared weight
 * would be summed over it. */
static EPI_NOINLINE epi_values lower_derived(epi_lowering *lo, epi_frame *f, const epi_ast *e) {
    epi_values none = {0};
    epi_ast call = *e;
    const epi_ast_program *p = epi_lower_derived(lo, f, &call);
    return p && epi_lower_ok(lo) ? lower_program(lo, f, &call, p, true) : none;
}

/* The axes that an input of a program that was made from a graph has, by their names in the caller's; a count of
 * -1: not all of them are known there. */
static epi_axes named_axes(const epi_frame *f, const epi_ast_tensor *t) {
    epi_axes axes = {0};
    for (int i = 0; i < t->axis_count; i++) {
        int dim = epi_frame_dim(f, t->axes[i].name);
        if (dim < 0 || !f->bound[dim])
            return (epi_axes){.count = -1};
        axes.at[axes.count++] =
            (epi_axis){f->axes[dim].dim, (int16_t)(f->axes[dim].shift + t->axes[i].shift)};
    }
    return axes;
}

/* A call of a program that was made from a graph: axes have the same names there. */
static EPI_NOINLINE epi_values lower_made(epi_lowering *lo, epi_frame *f, const epi_ast *e) {
    const epi_ast_program *p = e->program;
    int *given = epi_lower_arguments(lo, f, e, p);
    for (int i = 0; i < p->input_count && given; i++) {
        epi_axes have = lo->g->nodes[given[i]].axes, want = named_axes(f, &p->inputs[i]);
        if (want.count != have.count || !epi_axes_same_set(&have, &want))
            continue;
        int ordered = epi_graph_ordered(lo->g, given[i], &want);
        if (ordered != given[i] && lo->made)
            e->args[i] = epi_own_order(lo->made, &p->inputs[i], &have, &want, e->args[i]);
        given[i] = ordered;
    }
    return epi_lower_inline(lo, f, e, p, true, given && epi_lower_ok(lo) ? given : NULL);
}

epi_values epi_lower_call(epi_lowering *lo, epi_frame *f, const epi_ast *e) {
    epi_values out = {0};
    if (e->program)
        return lower_made(lo, f, e);
    if (e->callee && !strcmp(e->callee->name, "repeat"))
        return epi_lower_repeat(lo, f, e);
    if (e->callee)
        return lower_derived(lo, f, e);
    const epi_ast_program *p = own_program(lo, f, e->name);
    if (p)
        return lower_program(lo, f, e, p, false);
    if (epi_lower_op(lo, f, e, &out))
        return out;
    p = find_program(epi_bundled_programs(lo->g->arena, lo->text), e->name);
    if (p)
        return lower_program(lo, f, e, p, true);
    fail_unknown(lo, f, e);
    return out;
}
