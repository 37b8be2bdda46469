/* module.c: parses a source text into programs, and answers questions about them. */
#include <stdlib.h>
#include <string.h>

#include "lang/bundled.h"
#include "pass/place/plan.h"
#include "run/run.h"

epi_status epi_module_parse(epi_context *ctx, const char *text, size_t length, const char *file,
                            epi_module **out, epi_error *err) {
    epi_error_clear(err);
    if (!ctx || !text || !out)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_module_parse: ctx, text and out may not be NULL");
    *out = NULL;
    epi_module *m = calloc(1, sizeof *m);
    EPI_TRY(epi_has_memory(m, err));
    atomic_init(&m->owners, 1);
    m->context = ctx;
    const char *source = epi_arena_text(&m->arena, text, length);
    const char *name = epi_arena_text(&m->arena, file ? file : "", file ? strlen(file) : 0);
    epi_status status = m->arena.failed ? epi_fail(err, EPI_ERR_MEMORY, "out of memory")
                                        : epi_ast_parse(&m->arena, source, length, name, &m->text, err);
    if (status == EPI_OK) {
        m->programs = epi_arena_alloc(&m->arena, (size_t)(m->text.program_count + 1) * sizeof *m->programs);
        if (!m->programs)
            status = epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    }
    for (const epi_ast_program *a = m->text.programs; a && status == EPI_OK; a = a->next) {
        epi_program *p = &m->programs[m->count++];
        p->module = m;
        p->ast = a;
        status = epi_ast_lower(&m->arena, &m->text, a, false, &p->graph, err);
        if (status == EPI_OK)
            status = epi_sizes_check(p, err);
    }
    if (status != EPI_OK) {
        epi_module_free(m);
        return status;
    }
    *out = m;
    return EPI_OK;
}

epi_status epi_format(const char *text, size_t length, const char *file, char *buf, size_t size,
                      size_t *needed, epi_error *err) {
    epi_error_clear(err);
    if (!text || !needed)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_format: text and needed may not be NULL");
    epi_arena arena = {0};
    epi_ast_text ast;
    epi_text out = {0};
    *needed = 0;
    epi_status status = epi_ast_parse(&arena, text, length, file ? file : "", &ast, err);
    if (status == EPI_OK)
        status = epi_ast_format(&arena, &ast, &out, err);
    epi_arena_free(&arena);
    if (status == EPI_OK)
        *needed = epi_text_give(&out, buf, size);
    epi_text_free(&out);
    return status;
}

void epi_module_free(epi_module *module) {
    if (!module || atomic_fetch_sub(&module->owners, 1) > 1)
        return;
    epi_arena_free(&module->arena);
    free(module);
}

int epi_module_count(const epi_module *module) {
    return module ? module->count : 0;
}

const epi_program *epi_module_program(const epi_module *module, int index) {
    return module && index >= 0 && index < module->count ? &module->programs[index] : NULL;
}

const epi_program *epi_module_find(const epi_module *module, const char *name) {
    for (int i = 0; module && name && i < module->count; i++)
        if (!strcmp(module->programs[i].ast->name, name))
            return &module->programs[i];
    return NULL;
}

const char *epi_bundled_name(int index) {
    return epi_bundled_at(index) ? epi_bundled_at(index)->name : NULL;
}

const char *epi_bundled_text(int index) {
    return epi_bundled_at(index) ? epi_bundled_at(index)->text : NULL;
}

const char *epi_program_name(const epi_program *program) {
    return program ? program->ast->name : "";
}

const char *epi_program_gradient(const epi_program *program) {
    return program ? program->ast->by : NULL;
}

const char *epi_program_comment(const epi_program *program) {
    return program ? program->ast->comment : "";
}

size_t epi_program_print(const epi_program *program, char *buf, size_t size) {
    epi_text t = {0};
    if (program)
        epi_ast_print(program->ast, &t);
    return epi_text_give(&t, buf, size);
}

size_t epi_program_warnings(const epi_program *program, char *buf, size_t size) {
    epi_text t = {0};
    if (program)
        epi_ast_unused(&program->module->text, program->ast, &t);
    if (program)
        epi_ast_notes(&program->module->text, program->ast, &t);
    return epi_text_give(&t, buf, size);
}

int epi_program_dim_count(const epi_program *program) {
    return program ? program->graph.declared_count : 0;
}

const char *epi_program_dim(const epi_program *program, int index) {
    return index >= 0 && index < epi_program_dim_count(program) ? program->graph.dims[index] : NULL;
}

int64_t epi_program_dim_size(const epi_program *program, int index) {
    return index >= 0 && index < epi_program_dim_count(program) ? program->graph.fixed[index] : 0;
}

int epi_program_renamed(const epi_program *program, int index, const char **from, const char **to,
                        int *shift) {
    epi_axis a = {0, 0}, b = {0, 0};
    int at = 0;
    bool found = program && from && to && shift && index >= 0;
    for (int i = 0; found && i <= index; i++)
        found = epi_graph_next_pair(&program->graph, &at, &a, &b);
    if (!found)
        return 0;
    *from = program->graph.dims[a.dim];
    *to = program->graph.dims[b.dim];
    *shift = a.shift - b.shift;
    return 1;
}

int epi_program_tensor_count(const epi_program *program) {
    return program ? program->graph.tensor_count : 0;
}

epi_status epi_program_tensor(const epi_program *program, int index, epi_tensor_info *out) {
    if (!out || index < 0 || index >= epi_program_tensor_count(program))
        return EPI_ERR_ARGUMENT;
    const epi_tensor_decl *t = &program->graph.tensors[index];
    *out = (epi_tensor_info){.name = t->name,
                             .is_output = t->is_output,
                             .is_cotangent = t->cotangent,
                             .has_type = t->has_type,
                             .type = t->type,
                             .rank = t->axes.count};
    for (int i = 0; i < t->axes.count; i++) {
        out->axes[i].dim = program->graph.dims[t->axes.at[i].dim];
        out->axes[i].shift = t->axes.at[i].shift;
    }
    return EPI_OK;
}
