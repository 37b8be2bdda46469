/* unused.c: inputs and values of a program that nothing in it uses. */
#include <string.h>

#include "lang/ast.h"

/* Does the expression use a value of this name? An axis is none: size(T) does not use what is called T. */
static bool uses(const epi_ast *e, const char *name) {
    for (const epi_ast *at = epi_ast_leftmost(e);; at = at->outer) {
        bool first_done =
            at->kind == EPI_AST_BINARY || at->kind == EPI_AST_TAKE; /* it was walked from there */
        if (at->kind == EPI_AST_NAME && !strcmp(at->name, name))
            return true;
        for (int i = first_done; i < at->arg_count; i++)
            if (uses(at->args[i], name))
                return true;
        if (at == e)
            return false;
    }
}

static bool body_uses(const epi_ast_program *p, const char *name) {
    bool found = false;
    for (int i = 0; i < p->output_count && !found; i++)
        found = !strcmp(p->outputs[i].name, name);
    for (int i = 0; i < p->body_count && !found; i++)
        found = uses(p->body[i].value, name);
    return found;
}

/* Has it an axis that no other input has? Then it says how long that is. */
static bool brings_axis(const epi_ast_program *p, const epi_ast_tensor *t) {
    for (int a = 0; a < t->axis_count; a++) {
        bool other = false;
        for (int i = 0; i < p->input_count; i++)
            for (int b = 0; b < p->inputs[i].axis_count && &p->inputs[i] != t; b++)
                other |= !strcmp(p->inputs[i].axes[b].name, t->axes[a].name);
        if (!other)
            return true;
    }
    return false;
}

static void say(const epi_ast_text *text, epi_place place, const char *what, const char *name,
                epi_text *out) {
    epi_text_add(out, "%s:%d:%d: the %s '%s' is not used\n", text->file, place.line, place.column, what,
                 name);
}

/* Does its gradient take the input, or give one by it? */
static bool rule_has(const epi_ast_program *p, const char *name) {
    for (int i = 0; p->rule && i < p->rule->input_count; i++)
        if (!strcmp(p->rule->inputs[i].name, name))
            return true;
    for (int i = 0; p->rule && i < p->rule->output_count; i++)
        if (!strncmp(p->rule->outputs[i].name, "d_", 2) && !strcmp(p->rule->outputs[i].name + 2, name))
            return true;
    return false;
}

/* Is it a cotangent of a program whose gradient this is? It has to be taken. */
static bool is_due(const epi_ast_text *text, const epi_ast_program *p, const char *name) {
    bool rule = false;
    for (const epi_ast_program *q = text->programs; q && !rule; q = q->next)
        rule = q->rule == p;
    return rule && !strncmp(name, "d_", 2);
}

void epi_ast_unused(const epi_ast_text *text, const epi_ast_program *p, epi_text *out) {
    for (int i = 0; i < p->input_count; i++)
        if (!body_uses(p, p->inputs[i].name) && !brings_axis(p, &p->inputs[i]) &&
            !rule_has(p, p->inputs[i].name) && !is_due(text, p, p->inputs[i].name))
            say(text, p->inputs[i].place, "input", p->inputs[i].name, out);
    for (int i = 0; i < p->body_count; i++) {
        const epi_ast_assign *a = &p->body[i];
        bool any = false; /* of two halves one may be all that is wanted */
        for (int j = 0; j < a->name_count; j++)
            any |= body_uses(p, a->names[j].text);
        if (!any)
            say(text, a->names[0].place, "value", a->names[0].text, out);
    }
}
