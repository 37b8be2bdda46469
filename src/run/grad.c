/* grad.c: the gradients of a program as a module: derived, printed, and parsed again like any text. */
#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "run/run.h"

static epi_status find_asked(const epi_graph *g, const char *name, const char *const *names, int *out,
                             int count, epi_error *err) {
    for (int i = 0; i < count; i++) {
        int t = 0;
        epi_nearest near = {.wanted = names[i] ? names[i] : ""};
        for (; t < g->input_count && strcmp(g->tensors[t].name, near.wanted) != 0; t++)
            epi_nearest_offer(&near, g->tensors[t].name);
        if (t == g->input_count)
            return epi_fail(err, EPI_ERR_ARGUMENT, "%s has no input '%.60s'%s%s%s", name, near.wanted,
                            near.best[0] ? "; did you mean " : "", near.best, near.best[0] ? "?" : "");
        for (int j = 0; j < i; j++)
            if (out[j] == t)
                return epi_fail(err, EPI_ERR_ARGUMENT, "'%.60s' is asked for twice", names[i]);
        out[i] = t;
    }
    return EPI_OK;
}

/* The derived graph as a text, parsed. */
static epi_status parse_derived(const epi_program *program, const epi_graph *g, epi_module **out,
                                epi_error *err) {
    epi_text text = {0};
    char name[160];
    snprintf(name, sizeof name, "%.140s_grad", program->ast->name);
    epi_graph_print(g, name, &text);
    epi_status status =
        text.failed ? epi_fail(err, EPI_ERR_MEMORY, "out of memory")
                    : epi_module_parse(program->module->context, text.data, text.length, name, out, err);
    epi_text_free(&text);
    return status;
}

epi_status epi_program_grad(const epi_program *program, const char *const *wrt, int wrt_count,
                            epi_module **out, epi_error *err) {
    epi_error_clear(err);
    if (out)
        *out = NULL;
    if (!program || !wrt || !out || wrt_count < 1 || wrt_count > EPI_MAX_TENSORS)
        return epi_fail(
            err, EPI_ERR_ARGUMENT,
            "epi_program_grad: program, wrt and out may not be NULL, and wrt names 1 to %d inputs",
            EPI_MAX_TENSORS);
    int asked[EPI_MAX_TENSORS];
    epi_status status = find_asked(&program->graph, program->ast->name, wrt, asked, wrt_count, err);
    if (status != EPI_OK)
        return status;
    epi_arena arena = {0};
    epi_graph derived = {.arena = &arena};
    epi_derive(&program->graph, asked, wrt_count, &derived);
    if (epi_graph_failed(&derived)) {
        epi_ast_locate(&program->module->text, &derived.error);
        status = derived.error.status;
        if (err)
            *err = derived.error;
    } else {
        status = parse_derived(program, &derived, out, err);
    }
    epi_arena_free(&arena);
    return status;
}
