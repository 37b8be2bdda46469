/* print.c: a program in canonical form, with as few parentheses as keep its meaning. */
#include <math.h>
#include <string.h>

#include "lang/ast.h"

/* How tightly an expression holds together; an operand that binds less is parenthesised. */
enum { LEVEL_OR, LEVEL_AND, LEVEL_NOT, LEVEL_COMPARE, LEVEL_SUM, LEVEL_TERM, LEVEL_UNARY, LEVEL_ATOM };

static int level_of(const epi_ast *e) {
    if (e->kind != EPI_AST_UNARY && e->kind != EPI_AST_BINARY)
        return LEVEL_ATOM;
    switch (e->op) {
    case EPI_OP_OR: return LEVEL_OR;
    case EPI_OP_AND: return LEVEL_AND;
    case EPI_OP_NOT: return LEVEL_NOT;
    case EPI_OP_ADD:
    case EPI_OP_SUB: return LEVEL_SUM;
    case EPI_OP_MUL:
    case EPI_OP_DIV:
    case EPI_OP_MATMUL: return LEVEL_TERM;
    case EPI_OP_NEG: return LEVEL_UNARY;
    default: return LEVEL_COMPARE;
    }
}

static void print_number(double x, epi_text *out) {
    epi_text_add(out, "%s", isinf(x) ? "inf" : epi_number_write(x).text);
}

static void print_expr(const epi_ast *e, int least, epi_text *out) {
    int level = level_of(e);
    bool parens = level < least;
    if (parens)
        epi_text_add(out, "(");
    switch (e->kind) {
    case EPI_AST_NUMBER: print_number(e->number, out); break;
    case EPI_AST_NAME: epi_text_add(out, "%s", e->name); break;
    case EPI_AST_UNARY:
        epi_text_add(out, "%s%s", epi_ops[e->op].text, e->op == EPI_OP_NOT ? " " : "");
        print_expr(e->args[0], level, out);
        break;
    case EPI_AST_BINARY: {
        const char *gap = e->op == EPI_OP_MUL || e->op == EPI_OP_DIV ? "" : " ";
        /* left-associative; comparisons do not chain, and a product stands apart from what scales it */
        bool apart = level == LEVEL_COMPARE ||
                     (e->op != EPI_OP_MATMUL && e->args[0]->op == EPI_OP_MATMUL && level == LEVEL_TERM);
        print_expr(e->args[0], apart ? level + 1 : level, out);
        epi_text_add(out, "%s%s%s", gap, epi_ops[e->op].text, gap);
        print_expr(e->args[1], level + 1, out);
        break;
    }
    case EPI_AST_CALL:
        epi_text_add(out, "%s(", e->name);
        for (int i = 0; i < e->arg_count; i++) {
            epi_text_add(out, "%s", i ? ", " : "");
            print_expr(e->args[i], LEVEL_OR, out);
        }
        epi_text_add(out, ")");
        break;
    case EPI_AST_TAKE:
        print_expr(e->args[0], LEVEL_ATOM, out);
        epi_text_add(out, "[");
        print_expr(e->args[1], LEVEL_OR, out);
        epi_text_add(out, "]");
        break;
    }
    if (parens)
        epi_text_add(out, ")");
}

static void print_tensor(const epi_ast_tensor *t, epi_text *out) {
    epi_text_add(out, "%s", t->name);
    if (t->has_type)
        epi_text_add(out, ": %s", epi_dtype_name(t->type));
    for (int i = 0; i < t->axis_count; i++) {
        const epi_ast_axis *a = &t->axes[i];
        epi_text_add(out, "%s", i ? "," : "[");
        if (a->shift > 0)
            epi_text_add(out, "%ld*", 1L << a->shift);
        epi_text_add(out, "%s", a->name);
        if (a->shift < 0)
            epi_text_add(out, "/%ld", 1L << -a->shift);
    }
    epi_text_add(out, "%s", t->axis_count ? "]" : "");
}

static void print_tensors(const epi_ast_tensor *t, int count, epi_text *out) {
    epi_text_add(out, "(");
    for (int i = 0; i < count; i++) {
        epi_text_add(out, "%s", i ? ", " : "");
        print_tensor(&t[i], out);
    }
    epi_text_add(out, ")");
}

void epi_ast_print(const epi_ast_program *g, epi_text *out) {
    for (const char *c = g->comment, *end; *c; c = *end ? end + 1 : end) {
        end = c + strcspn(c, "\n");
        epi_text_add(out, "#%s%.*s\n", end > c ? " " : "", (int)(end - c), c);
    }
    epi_text_add(out, "%s", g->name);
    print_tensors(g->inputs, g->input_count, out);
    epi_text_add(out, " -> ");
    if (g->output_count == 1)
        print_tensor(g->outputs, out);
    else
        print_tensors(g->outputs, g->output_count, out);
    epi_text_add(out, " {\n");
    for (int i = 0; i < g->body_count; i++) {
        const epi_ast_assign *s = &g->body[i];
        epi_text_add(out, "    ");
        for (int j = 0; j < s->name_count; j++)
            epi_text_add(out, "%s%s", j ? ", " : "", s->names[j]);
        epi_text_add(out, " = ");
        print_expr(s->value, LEVEL_OR, out);
        epi_text_add(out, "\n");
    }
    epi_text_add(out, "}\n");
}
