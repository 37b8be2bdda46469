/* lower_grad.c: grad(f, x, w)(…) and backward(f, x, w)(…): the programs that src/pass/derive/grad.c and
 * save.c derive from f, called like any other.
 *
 * f is lowered by itself and derived. The result is written as a program, which is inlined at the call. So
 * all rules for calls hold for it. */
#include <stdio.h>
#include <string.h>

#include "lang/bundled.h"
#include "lang/lower.h"
#include "lang/parse.h"
#include "pass/derive/grad.h"
#include "pass/derive/save.h"
#include "pass/derive/simplify.h"

/* ---- rules: the texts of ops.def ---- */

/* A text that was parsed, with X written out for so many axes. */
typedef struct parsed_rule {
    const char *text;
    int axes;
    epi_ast *value;
    struct parsed_rule *next;
} parsed_rule;

typedef struct rules {
    parsed_rule *parsed;
    epi_ast_program program; /* that their frame belongs to */
    epi_ast_text text;
    epi_frame frame;
} rules;

static const char *const axis_names[EPI_MAX_AXES] = {"X", "X2", "X3", "X4", "X5", "X6", "X7", "X8"};

/* In `sum(…, X)` X stands for all axes. */
static const char *write_axes_out(epi_arena *arena, const char *text, int axes) {
    epi_text out = {0};
    for (const char *at = text; *at; at++) {
        epi_text_add(&out, "%c", *at);
        if (at > text + 1 && *at == 'X' && at[-1] == ' ' && at[-2] == ',' && at[1] == ')')
            for (int i = 1; i < axes; i++)
                epi_text_add(&out, ", %s", axis_names[i]);
    }
    arena->failed |= out.failed; /* or the value would seem to have no gradient */
    const char *written = out.failed ? NULL : epi_arena_text(arena, out.data, out.length);
    epi_text_free(&out);
    return written;
}

/* NULL, which the graph knows, without memory. */
static epi_ast *parse_rule(epi_graph *g, rules *r, const epi_rule *rule) {
    epi_arena *arena = g->arena;
    for (const parsed_rule *p = r->parsed; p; p = p->next)
        if (p->text == rule->text && p->axes == rule->over.count)
            return p->value;
    const char *text = write_axes_out(arena, rule->text, rule->over.count);
    parsed_rule *p = epi_arena_alloc(arena, sizeof *p);
    if (!text || !p)
        return NULL;
    epi_parser parser = {.arena = arena, .lexer = {text, text + strlen(text), {1, 1}}};
    epi_parse_next(&parser);
    *p = (parsed_rule){rule->text, rule->over.count, epi_parse_expr(&parser), r->parsed};
    if (!arena->failed && (!p->value || parser.error.status != EPI_OK)) {
        EPI_INTERNAL(&g->error, g->place, "the rule of a derivative does not parse");
        return NULL;
    }
    r->parsed = p;
    return p->value;
}

static int apply_rule(void *language, epi_graph *g, const epi_rule *rule) {
    static const char *const names[] = {"a", "b", "c", "d", "y", "n"};
    const int nodes[] = {rule->a, rule->b, rule->c, rule->d, rule->y, rule->n};
    rules *r = language;
    const epi_ast *e = parse_rule(g, r, rule);
    epi_lowering lo = {.text = &r->text, .g = g, .site = g->place.line ? g->place : (epi_place){1, 1}};
    epi_frame *f = &r->frame;
    *f = (epi_frame){.program = &r->program, .depth = 1, .dim_count = rule->over.count};
    for (int i = 0; i < rule->over.count; i++) {
        f->dims[i] = axis_names[i];
        f->axes[i] = rule->over.at[i];
        f->bound[i] = true;
    }
    if (rule->renames) {
        f->dims[f->dim_count] = "Y";
        f->axes[f->dim_count] = rule->to;
        f->bound[f->dim_count++] = true;
    }
    for (int i = 0; i < 6; i++)
        if (nodes[i] != EPI_NO_NODE)
            epi_frame_bind(&lo, f, names[i], nodes[i], lo.site);
    if (!e || !epi_lower_ok(&lo))
        return epi_graph_failed(g), EPI_NO_NODE;
    if (e->kind != EPI_AST_CALL)
        return epi_lower_one(&lo, f, e);
    epi_values v = epi_lower_call(&lo, f, e);
    return epi_lower_ok(&lo) ? v.node[v.count > 1 ? rule->operand : 0] : EPI_NO_NODE;
}

void epi_derive(const epi_graph *forward, const int *wrt, int wrt_count, const bool *none, epi_graph *out) {
    rules *r = epi_arena_alloc(out->arena, sizeof *r);
    if (!r)
        return;
    r->program.name = "grad";
    epi_grad_request request = {.forward = forward,
                                .wrt = wrt,
                                .wrt_count = wrt_count,
                                .none = none,
                                .apply = apply_rule,
                                .apply_own = epi_own_apply,
                                .language = r};
    epi_graph *derived = epi_arena_alloc(out->arena, sizeof *derived);
    if (!derived)
        return;
    derived->arena = out->arena;
    int forward_nodes = epi_grad(&request, derived);
    if (epi_graph_failed(derived))
        *out = *derived;
    else
        epi_simplify(derived, forward_nodes, out);
}

/* ---- calls ---- */

/* Which inputs of f are asked for, by the names that stand behind it. */
static int find_asked(epi_lowering *lo, const epi_ast *names, const epi_graph *f, int *wrt) {
    for (int i = 1; i < names->arg_count && epi_lower_ok(lo); i++) {
        const epi_ast *name = names->args[i];
        epi_lower_at(lo, name->place);
        wrt[i - 1] = name->kind == EPI_AST_NAME ? epi_graph_find_tensor(f, name->name) : -1;
        if (wrt[i - 1] < 0 || wrt[i - 1] >= f->input_count)
            epi_graph_fail(lo->g, "this is not an input of %s: %s needs names of its inputs here",
                           names->args[0]->name, names->name);
        for (int j = 0; j < i - 1 && epi_lower_ok(lo); j++)
            if (wrt[j] == wrt[i - 1])
                epi_graph_fail(lo->g, "%s names '%s' twice", names->name, name->name);
    }
    return names->arg_count - 1;
}

/* The error of a graph that was made on the way, at its place in the text or, inside a bundled program, at
 * the call. */
static void take_error(epi_lowering *lo, const epi_graph *from, const char *name, bool bundled,
                       epi_place call) {
    if (from->error.status == EPI_OK || !epi_lower_ok(lo))
        return;
    lo->g->place = bundled || lo->site.line ? call : (epi_place){from->error.line, from->error.column};
    epi_lower_at(lo, lo->g->place);
    epi_graph_fail(lo->g, "in %.60s: %.600s", name, from->error.message);
}

/* Cotangents stand last. One that is written as the number 0 is none: *call gets the call without it. Answers
 * which results of f have none, or NULL: all have one. */
static const bool *leave_out_zeros(epi_lowering *lo, const epi_graph *f, epi_ast *call) {
    int results = f->tensor_count - f->input_count, at = call->arg_count, kept = 0;
    bool *none = epi_arena_alloc(lo->g->arena, (size_t)results + 1), any = false;
    epi_ast **args = epi_arena_alloc(lo->g->arena, (size_t)(call->arg_count + 1) * sizeof *args);
    if (!none || !args)
        return NULL;
    for (int i = 0; i < call->arg_count; i++)
        args[i] = call->args[i];
    for (int t = f->tensor_count - 1; t >= f->input_count && at > 0; t--) {
        if (!epi_has_gradient(&f->tensors[t]))
            continue;
        const epi_ast *given = args[--at];
        if (given->kind == EPI_AST_NUMBER && given->number == 0) {
            none[t - f->input_count] = any = true;
            args[at] = NULL;
        }
    }
    for (int i = 0; i < call->arg_count; i++)
        if (args[i])
            args[kept++] = args[i];
    call->args = args;
    call->arg_count = kept;
    return any ? none : NULL;
}

/* The graph without marks of calls that have their own gradients. */
static void drop_marks(epi_lowering *lo, const epi_graph **g) {
    epi_error err = {0};
    if (epi_own_drop((*g)->arena, g, &err) != EPI_OK)
        epi_graph_fail(lo->g, "%.600s", err.message);
}

/* The backward of f by itself, in *derived: it takes inputs and results of f, and nothing else of it. */
static void take_backward(epi_lowering *lo, const epi_graph *f, const char *name, epi_graph *derived) {
    epi_graph *two = epi_arena_alloc(lo->g->arena, 2 * sizeof *two);
    if (!two)
        return;
    two[0].arena = two[1].arena = derived->arena;
    const epi_graph *plain = f;
    drop_marks(lo, &plain);
    epi_save(plain, derived, EPI_SAVE_AS_RESULTS, &two[0], &two[1]); /* what is none cannot be had */
    for (int t = 0; t < two[1].input_count && two[0].error.status == EPI_OK; t++) {
        const epi_tensor_decl *in = &two[1].tensors[t];
        if (!in->cotangent && epi_graph_find_tensor(f, in->name) < 0) {
            two[0].place = lo->g->place;
            epi_graph_fail(&two[0],
                           "the backward also needs %s%s, which is not a result of %s: make it a result, or "
                           "use grad(%s, …)",
                           in->name, epi_axes_label(&two[1], &in->axes).text, name, name);
        }
    }
    *derived = two[1];
    derived->error = two[0].error;
}

static EPI_NOINLINE const epi_ast_program *derive_program(epi_lowering *lo, epi_frame *f, epi_ast *call,
                                                          const epi_ast_program *p, bool bundled) {
    epi_arena *arena = lo->g->arena;
    const epi_ast *e = call->callee;
    epi_graph *forward = epi_arena_alloc(arena, 2 * sizeof *forward), *derived = forward + 1;
    int wrt[EPI_MAX_TENSORS];
    if (!forward)
        return NULL;
    epi_lower_whole(lo, f, p, bundled, true, arena, forward);
    take_error(lo, forward, p->name, bundled, e->place);
    int count = epi_lower_ok(lo) ? find_asked(lo, e, forward, wrt) : 0;
    const bool *none = epi_lower_ok(lo) ? leave_out_zeros(lo, forward, call) : NULL;
    if (!epi_lower_ok(lo))
        return NULL;
    derived->arena = arena;
    epi_derive(forward, wrt, count, none, derived);
    bool backward = !strcmp(e->name, "backward");
    if ((backward || !lo->own) && !epi_graph_failed(derived)) { /* no one derives it again */
        const epi_graph *plain = derived;
        drop_marks(lo, &plain);
        *derived = *plain;
    }
    if (backward && !epi_graph_failed(derived)) {
        epi_lower_at(lo, e->place);
        take_backward(lo, forward, p->name, derived);
    }
    take_error(lo, derived, p->name, bundled, e->place);
    char name[100];
    snprintf(name, sizeof name, "%s(%.80s)", e->name, p->name);
    epi_made made = {.arena = arena};
    const epi_ast_program *program =
        epi_lower_ok(lo) ? epi_graph_write(&made, derived, epi_arena_text(arena, name, strlen(name)), false)
                         : NULL;
    epi_lower_at(lo, e->place);
    if (made.error.status != EPI_OK)
        epi_graph_fail(lo->g, "%s", made.error.message);
    return program;
}

const epi_ast_program *epi_lower_derived(epi_lowering *lo, epi_frame *f, epi_ast *call) {
    bool bundled = false;
    const epi_ast_program *p = epi_lower_program(lo, f, call->callee, &bundled);
    return p ? derive_program(lo, f, call, p, bundled) : NULL;
}
