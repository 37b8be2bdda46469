/* grad.c: the gradients of a program as a module: derived, printed, and parsed again like any text. */
#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "pass/derive/save.h"
#include "run/run.h"

static epi_status find_asked(const epi_graph *g, const char *name, const char *const *names, int *out,
                             int count, epi_error *err) {
    for (int i = 0; i < count; i++) {
        int t = 0;
        epi_nearest near = {.wanted = names[i] ? names[i] : ""};
        for (; t < g->input_count && strcmp(g->tensors[t].name, near.wanted) != 0; t++)
            epi_nearest_offer(&near, g->tensors[t].name);
        if (t == g->input_count)
            return epi_fail(err, EPI_ERR_ARGUMENT, "%s has no input '%.60s'%s", name, near.wanted,
                            epi_nearest_hint(&near, "its inputs are"));
        for (int j = 0; j < i; j++)
            if (out[j] == t)
                return epi_fail(err, EPI_ERR_ARGUMENT, "'%.60s' is named twice", names[i]);
        out[i] = t;
    }
    return EPI_OK;
}

/* Programs as a text, parsed. */
static epi_status parse_derived(const epi_program *program, const epi_graph *const *graphs,
                                const char *const *suffixes, int count, epi_module **out, epi_error *err) {
    epi_text text = {0};
    char name[160];
    epi_status status = EPI_OK;
    for (int i = 0; i < count && status == EPI_OK; i++) {
        snprintf(name, sizeof name, "%.130s_%s", program->ast->name, suffixes[i]);
        epi_text_add(&text, "%s", i ? "\n" : "");
        status = epi_graph_print_derived(graphs[i], name, &text, err);
    }
    if (status == EPI_OK)
        status = epi_module_parse(program->module->context, text.data, text.length,
                                  program->module->text.file, out, err);
    epi_text_free(&text);
    return status;
}

/* What went wrong has its place in the program's own text. */
static epi_status tell(const epi_program *program, epi_graph *g, epi_error *err) {
    epi_graph_failed(g); /* takes the arena's word */
    if (g->error.status != EPI_OK) {
        epi_ast_locate(&program->module->text, &g->error);
        if (err)
            *err = g->error;
    }
    return g->error.status;
}

/* One program, or two; of these, which values are saved. */
typedef enum saving { SAVE_NOTHING, SAVE_FOR_TIME, SAVE_FOR_MEMORY } saving;

/* A program's graph with the types that the options name, as if its text said them. */
static epi_status declare(epi_graph *g, const epi_options *o, epi_arena *arena, epi_error *err) {
    size_t count = (size_t)g->tensor_count;
    epi_tensor_decl *tensors = epi_arena_alloc(arena, (count + 1) * sizeof *tensors);
    epi_dtype *types = epi_arena_alloc(arena, (count + 1) * sizeof *types);
    EPI_TRY(epi_has_memory(tensors && types, err));
    memcpy(tensors, g->tensors, count * sizeof *tensors);
    epi_status status = epi_types_bind(g, o, types, err);
    for (int i = 0; i < o->type_count && status == EPI_OK; i++) {
        int t = epi_graph_find_tensor(g, o->types[i].tensor);
        tensors[t].has_type = true;
        tensors[t].type = types[t];
    }
    g->tensors = tensors;
    return status;
}

/* The graph once more, where the text has programs with gradients of their own: with calls of those marked. */
static epi_status mark(const epi_program *program, epi_arena *arena, epi_graph *g, epi_error *err) {
    const epi_ast_program *const lists[] = {program->module->text.programs, program->module->text.bundled};
    bool any = false;
    for (int i = 0; i < 2; i++)
        for (const epi_ast_program *p = lists[i]; p; p = p->next)
            any |= p->rule != NULL;
    if (!any)
        return EPI_OK;
    epi_ast_text *text = epi_arena_alloc(arena, sizeof *text); /* lowering notes things in it */
    EPI_TRY(epi_has_memory(text, err));
    *text = program->module->text;
    return epi_ast_lower(arena, text, program->ast, true, g, err);
}

epi_status epi_own_count(const epi_program *program, int *out, epi_error *err) {
    epi_arena arena = {0};
    epi_graph g = program->graph;
    epi_status status = mark(program, &arena, &g, err);
    *out = 0;
    for (int i = 0; i < g.node_count && status == EPI_OK; i++) {
        bool another = g.nodes[i].own && (!i || g.nodes[i - 1].own != g.nodes[i].own);
        *out += another;
    }
    epi_arena_free(&arena);
    return status;
}

static epi_status derive(const epi_program *program, const int *asked, int count, saving saves,
                         const epi_options *o, epi_arena *arena, epi_module **out, epi_error *err) {
    epi_graph derived = {.arena = arena}, forward = {.arena = arena}, backward = {.arena = arena};
    epi_graph g = program->graph;
    EPI_TRY(mark(program, arena, &g, err));
    if (o)
        EPI_TRY(declare(&g, o, arena, err));
    epi_derive(&g, asked, count, NULL, &derived);
    EPI_TRY(tell(program, &derived, err));
    if (saves == SAVE_NOTHING)
        return parse_derived(program, (const epi_graph *[]){&derived}, (const char *[]){"grad"}, 1, out, err);
    const epi_graph *whole = &g, *gradient = &derived;
    EPI_TRY(epi_own_drop(arena, &whole, err));
    EPI_TRY(epi_own_drop(arena, &gradient, err));
    epi_save(whole, gradient, saves == SAVE_FOR_MEMORY ? EPI_SAVE_FOR_MEMORY : EPI_SAVE_FOR_TIME, &forward,
             &backward);
    EPI_TRY(tell(program, &forward, err));
    return parse_derived(program, (const epi_graph *[]){&forward, &backward},
                         (const char *[]){"forward", "backward"}, 2, out, err);
}

/* The options are for their types, and may be NULL. */
static epi_status make(const epi_program *program, const char *const *wrt, int wrt_count, saving saves,
                       const epi_options *o, epi_module **out, epi_error *err) {
    epi_error_clear(err);
    if (out)
        *out = NULL;
    if (!program)
        return epi_fail(err, EPI_ERR_ARGUMENT,
                        "epi_program_grad: the program is NULL, as epi_module_find returns where a module "
                        "has none of that name");
    if (!wrt || !out || wrt_count < 1 || wrt_count > EPI_MAX_TENSORS)
        return epi_fail(err, EPI_ERR_ARGUMENT,
                        "epi_program_grad: wrt and out may not be NULL, and wrt names 1 to %d inputs",
                        EPI_MAX_TENSORS);
    int asked[EPI_MAX_TENSORS];
    epi_arena arena = {0};
    epi_status status = find_asked(&program->graph, program->ast->name, wrt, asked, wrt_count, err);
    if (status == EPI_OK)
        status = derive(program, asked, wrt_count, saves, o, &arena, out, err);
    epi_arena_free(&arena);
    return status;
}

epi_status epi_program_grad(const epi_program *program, const char *const *wrt, int wrt_count,
                            epi_module **out, epi_error *err) {
    return make(program, wrt, wrt_count, SAVE_NOTHING, NULL, out, err);
}

epi_status epi_program_grad_saved(const epi_program *program, const char *const *wrt, int wrt_count,
                                  epi_module **out, epi_error *err) {
    return make(program, wrt, wrt_count, SAVE_FOR_TIME, NULL, out, err);
}

epi_status epi_program_grad_lean(const epi_program *program, const char *const *wrt, int wrt_count,
                                 epi_module **out, epi_error *err) {
    return make(program, wrt, wrt_count, SAVE_FOR_MEMORY, NULL, out, err);
}

epi_status epi_program_grad_typed(const epi_program *program, const char *const *wrt, int wrt_count,
                                  const epi_options *options, epi_module **out, epi_error *err) {
    epi_options o;
    epi_error_clear(err);
    if (out)
        *out = NULL;
    EPI_TRY(epi_options_take(&o, options, err));
    return make(program, wrt, wrt_count, o.memory ? SAVE_FOR_MEMORY : SAVE_FOR_TIME, &o, out, err);
}
