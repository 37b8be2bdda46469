/* lower_call.c: calls. A call of a program is inlined: its inputs are the arguments, its axes theirs. */
#include "lang/lower.h"

#include <string.h>

#include "lang/bundled.h"
#include "lang/words.h"

enum { MAX_CALLS = 32 };

/* Binds the dims of the callee that occur in `t` to the axes of the argument, by position. */
static EPI_NOINLINE void bind_axes(epi_lowering *lo, epi_frame *callee, const epi_ast_tensor *t,
                                   const epi_axes *have) {
    epi_graph *g = lo->g;
    const char *what = callee->program->name;
    if (t->axis_count != have->count) {
        epi_graph_fail(g, "%s: %s has %d axes, the argument has %d %s", what, t->name, t->axis_count,
                       have->count, epi_axes_label(g, have).text);
        return;
    }
    for (int i = 0; i < have->count; i++) {
        int dim = epi_frame_dim(callee, t->axes[i].name);
        epi_axis axis = {have->at[i].dim, (int16_t)(have->at[i].shift - t->axes[i].shift)};
        if (callee->bound[dim] && !epi_axis_equal(callee->axes[dim], axis)) {
            epi_graph_fail(g, "%s: the axis %s of %s stands for %s in one argument and for %s in '%s'", what,
                           t->axes[i].name, what, epi_axis_label(g, callee->axes[dim]).text,
                           epi_axis_label(g, axis).text, t->name);
            return;
        }
        for (int j = 0; j < callee->dim_count; j++)
            if (j != dim && callee->bound[j] && callee->axes[j].dim == axis.dim) {
                epi_graph_fail(g, "%s: the axes %s and %s of %s would both stand for %s", what,
                               callee->dims[j], t->axes[i].name, what, g->dims[axis.dim]);
                return;
            }
        callee->axes[dim] = axis;
        callee->bound[dim] = true;
    }
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

static void check_call(epi_lowering *lo, const epi_frame *f, const epi_ast *e, const epi_ast_program *p) {
    epi_lower_at(lo, e->place);
    for (const epi_frame *c = f; c; c = c->caller)
        if (c->program == p)
            epi_graph_fail(lo->g, "'%s' calls itself%s; programs are inlined and cannot recurse", p->name,
                           c == f ? "" : " through others");
    if (e->arg_count != p->input_count)
        epi_graph_fail(lo->g, "%s takes %d argument%s, %d %s given", p->name, p->input_count,
                       p->input_count == 1 ? "" : "s", e->arg_count, e->arg_count == 1 ? "was" : "were");
    if (f->depth == MAX_CALLS)
        epi_graph_fail(lo->g, "calls are nested more than %d deep", MAX_CALLS);
}

/* The callee's formula, once its inputs are bound. What goes wrong in a bundled program is told of its call.
 */
static void inline_body(epi_lowering *lo, epi_frame *callee, epi_place call, epi_values *out) {
    const epi_ast_program *p = callee->program;
    bool enters = callee->bundled && !callee->caller->bundled;
    if (enters)
        lo->site = call;
    epi_lower_body(lo, callee);
    for (int i = 0; i < p->output_count && epi_lower_ok(lo); i++) {
        out->node[i] = epi_frame_value(callee, p->outputs[i].name);
        if (out->node[i] == EPI_NO_NODE) {
            epi_lower_at(lo, p->outputs[i].place);
            epi_graph_fail(lo->g, "the output '%s' of %s is never assigned", p->outputs[i].name, p->name);
        }
    }
    if (enters)
        lo->site = (epi_place){0};
}

static EPI_NOINLINE epi_values lower_program(epi_lowering *lo, epi_frame *f, const epi_ast *e,
                                             const epi_ast_program *p, bool bundled) {
    epi_values out = epi_lower_values(lo, p->output_count);
    check_call(lo, f, e, p);
    epi_frame *callee = epi_lower_ok(lo) ? new_frame(lo, p, f) : NULL;
    if (!callee)
        return out;
    callee->bundled = bundled;
    for (int i = 0; i < e->arg_count && epi_lower_ok(lo); i++) {
        int node = epi_lower_one(lo, f, e->args[i]);
        if (!epi_lower_ok(lo))
            break;
        epi_lower_at(lo, e->args[i]->place);
        bind_axes(lo, callee, &p->inputs[i], &lo->g->nodes[node].axes);
        epi_frame_bind(lo, callee, p->inputs[i].name, node, e->args[i]->place);
    }
    if (epi_lower_ok(lo))
        inline_body(lo, callee, e->place, &out);
    callee->next_spare = lo->spare;
    lo->spare = callee;
    return out;
}

static const epi_ast_program *find_program(const epi_ast_program *list, const char *name) {
    while (list && strcmp(list->name, name) != 0)
        list = list->next;
    return list;
}

/* A program of the text comes before a word of its name, but inside the program itself the name is the word.
 * Then come the words, then the programs that come with Epilog. */
epi_values epi_lower_call(epi_lowering *lo, epi_frame *f, const epi_ast *e) {
    epi_values out = {0};
    bool own_word = !strcmp(f->program->name, e->name) && epi_is_word(e->name);
    const epi_ast_program *p = f->bundled || own_word ? NULL : find_program(lo->text->programs, e->name);
    if (p)
        return lower_program(lo, f, e, p, false);
    if (epi_lower_op(lo, f, e, &out))
        return out;
    p = find_program(epi_bundled_programs(lo->g->arena, lo->text), e->name);
    if (p)
        return lower_program(lo, f, e, p, true);
    epi_lower_at(lo, e->place);
    epi_graph_fail(lo->g,
                   !strcmp(e->name, "if")
                       ? "unknown operation or program '%s'; a choice is written where(a, b, c)"
                       : "unknown operation or program '%s'",
                   e->name);
    return out;
}
