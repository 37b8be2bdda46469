/* unused.c: inputs and values of a program that nothing in it uses. */
#include <string.h>

#include "base/hash.h"
#include "lang/ast.h"

/* The names that a program uses, by their hash: a table with room for twice as many. An axis among them is none of its
 * values: size(T) does not use what is called T. */
typedef struct used {
    const char **names;
    size_t mask;
} used;

static const char **slot_of(const used *u, const char *name) {
    epi_hash h = {1, 2};
    epi_hash_add(&h, name, strlen(name));
    size_t at = (size_t)h.b & u->mask;
    while (u->names[at] && strcmp(u->names[at], name) != 0)
        at = (at + 1) & u->mask;
    return &u->names[at];
}

/* Counts the names in an expression, and notes them where there is a table. */
static size_t add_names(const used *u, const epi_ast *e) {
    size_t count = 0;
    for (const epi_ast *at = epi_ast_leftmost(e);; at = at->outer) {
        bool first_done =
            at->kind == EPI_AST_BINARY || at->kind == EPI_AST_TAKE; /* it was walked from there */
        if (at->kind == EPI_AST_NAME && u->names)
            *slot_of(u, at->name) = at->name;
        count += at->kind == EPI_AST_NAME;
        for (int i = first_done; i < at->arg_count; i++)
            count += add_names(u, at->args[i]);
        if (at == e)
            return count;
    }
}

static size_t add_all(const used *u, const epi_ast_program *p) {
    size_t count = (size_t)p->output_count;
    for (int i = 0; i < p->output_count && u->names; i++)
        *slot_of(u, p->outputs[i].name) = p->outputs[i].name;
    for (int i = 0; i < p->body_count; i++)
        count += add_names(u, p->body[i].value);
    return count;
}

static used find_used(epi_arena *arena, const epi_ast_program *p) {
    used u = {.mask = 15};
    for (size_t count = add_all(&u, p); u.mask < 2 * count;)
        u.mask = 2 * u.mask + 1;
    u.names = epi_arena_alloc(arena, (u.mask + 1) * sizeof *u.names);
    if (u.names)
        add_all(&u, p);
    return u;
}

static bool uses(const used *u, const char *name) {
    return *slot_of(u, name) != NULL;
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

static void say_unused(const epi_ast_text *text, const epi_ast_program *p, const used *names, epi_text *out) {
    for (int i = 0; i < p->input_count; i++)
        if (!uses(names, p->inputs[i].name) && !brings_axis(p, &p->inputs[i]) &&
            !rule_has(p, p->inputs[i].name) && !is_due(text, p, p->inputs[i].name))
            say(text, p->inputs[i].place, "input", p->inputs[i].name, out);
    for (int i = 0; i < p->body_count; i++) {
        const epi_ast_assign *a = &p->body[i];
        bool any = false; /* of two halves one may be all that is wanted */
        for (int j = 0; j < a->name_count; j++)
            any |= uses(names, a->names[j].text);
        if (!any)
            say(text, a->names[0].place, "value", a->names[0].text, out);
    }
}

void epi_ast_unused(const epi_ast_text *text, const epi_ast_program *p, epi_text *out) {
    epi_arena arena = {0};
    used names = find_used(&arena, p);
    if (names.names)
        say_unused(text, p, &names, out);
    out->failed |= arena.failed;
    epi_arena_free(&arena);
}
