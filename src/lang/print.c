/* print.c: prints a program in canonical form, with as few parentheses as possible. */
#include <math.h>
#include <string.h>

#include "lang/ast.h"

static epi_level level_of(const epi_ast *e) {
    return e->kind == EPI_AST_UNARY || e->kind == EPI_AST_BINARY ? epi_ops[e->op].level : EPI_LEVEL_ATOM;
}

enum { MOST_APART = 16 };

/* Is it an @ whose first operand is a * or /, or the other way round? */
static bool is_mixed(const epi_ast *e) {
    const epi_ast *first = e->args[0];
    return e->kind == EPI_AST_BINARY && first->kind == EPI_AST_BINARY && level_of(e) == EPI_LEVEL_TERM &&
           level_of(first) == EPI_LEVEL_TERM && (e->op == EPI_OP_MATMUL) != (first->op == EPI_OP_MATMUL);
}

/* The two stand apart, unless a chain has so many of them that their parentheses would be nested too deeply.
 */
static bool stands_apart(const epi_ast *first, const epi_ast *e) {
    int count = 0;
    for (const epi_ast *at = first; at != e; at = at->outer)
        count += is_mixed(at->outer);
    return count <= MOST_APART;
}

/* How tightly the first operand of e must bind to stand without parentheses. Operators go from left to right,
 * but powers do not, comparisons do not chain, and an @ may stand apart from a * or / beside it. */
static epi_level least_first(const epi_ast *e, bool apart) {
    epi_level level = level_of(e);
    bool tighter = level == EPI_LEVEL_COMPARE || level == EPI_LEVEL_POWER || (apart && is_mixed(e));
    return tighter ? level + 1 : level;
}

/* Does `e` stand in parentheses where what it stands in wants `least`? As written also in those that it needs
 * not. */
static bool in_parentheses(const epi_ast *e, epi_level least, bool written) {
    return level_of(e) < least || (written && e->parentheses);
}

static void print_expr(const epi_ast *e, epi_level least, bool written, epi_text *out);

/* An expression that is no chain of operators. */
static void print_operand(const epi_ast *e, bool written, epi_text *out) {
    if (e->kind == EPI_AST_NUMBER && written) {
        epi_text_add(out, "%s", e->name);
    } else if (e->kind == EPI_AST_NUMBER) {
        epi_text_add(out, "%s", isinf(e->number) ? "inf" : epi_number_write(e->number).text);
    } else if (e->kind == EPI_AST_UNARY) {
        epi_text_add(out, "%s%s", epi_ops[e->op].text, e->op == EPI_OP_NOT ? " " : "");
        print_expr(e->args[0], level_of(e), written, out);
    } else {
        if (e->callee)
            print_operand(e->callee, written, out);
        const char *name = e->callee ? "" : e->program ? e->program->name : e->name;
        epi_text_add(out, e->kind == EPI_AST_CALL ? "%s(" : "%s", name);
        if (e->kind == EPI_AST_NAME && e->number > 0)
            epi_text_add(out, "=%ld", (long)e->number);
        for (int i = 0; i < e->arg_count; i++) {
            epi_text_add(out, "%s", !i ? "" : i == e->arrow ? " -> " : ", ");
            print_expr(e->args[i], EPI_LEVEL_OR, written, out);
        }
        epi_text_add(out, e->kind == EPI_AST_CALL ? ")" : "");
    }
}

/* What stands behind the first operand. */
static void print_rest(const epi_ast *e, bool written, epi_text *out) {
    if (e->kind == EPI_AST_TAKE) {
        epi_text_add(out, "[");
        print_expr(e->args[1], EPI_LEVEL_OR, written, out);
        epi_text_add(out, "]");
        return;
    }
    const char *gap = epi_op_has_factors(e->op) || e->op == EPI_OP_POW ? "" : " ";
    epi_text_add(out, "%s%s%s", gap, epi_op_symbol(e->op), gap);
    print_expr(e->args[1], epi_level_second(level_of(e)), written, out);
}

/* Prints a chain from its first operand on; every parenthesis that one of its operations needs opens before
 * that. */
static void print_expr(const epi_ast *e, epi_level least, bool written, epi_text *out) {
    const epi_ast *first = epi_ast_leftmost(e);
    bool apart = stands_apart(first, e);
    for (const epi_ast *at = first;; at = at->outer) {
        if (in_parentheses(at, at == e ? least : least_first(at->outer, apart), written))
            epi_text_add(out, "(");
        if (at == e)
            break;
    }
    for (const epi_ast *at = first;; at = at->outer) {
        if (at == first)
            print_operand(at, written, out);
        else
            print_rest(at, written, out);
        if (in_parentheses(at, at == e ? least : least_first(at->outer, apart), written))
            epi_text_add(out, ")");
        if (at == e)
            break;
    }
}

static void print_axes(const epi_ast_axis *axes, int count, epi_text *out) {
    for (int i = 0; i < count; i++) {
        const epi_ast_axis *a = &axes[i];
        epi_text_add(out, "%s", i ? "," : "[");
        if (a->shift > 0)
            epi_text_add(out, "%ld*", 1L << a->shift);
        epi_text_add(out, "%s", a->name);
        if (a->shift < 0)
            epi_text_add(out, "/%ld", 1L << -a->shift);
        if (a->size)
            epi_text_add(out, "=%ld", (long)a->size);
    }
    epi_text_add(out, "%s", count ? "]" : "");
}

void epi_ast_print_tensor(const epi_ast_tensor *t, epi_text *out) {
    epi_text_add(out, "%s", t->name);
    if (t->has_type || t->cotangent || t->param || t->infinite)
        epi_text_add(out, ":%s%s%s",
                     t->cotangent  ? " cotangent"
                     : t->param    ? " param"
                     : t->infinite ? " inf"
                                   : "",
                     t->has_type ? " " : "",
                     t->packed     ? t->packed
                     : t->has_type ? epi_dtype_name(t->type)
                                   : "");
    print_axes(t->axes, t->axis_count, out);
}

void epi_ast_print_tensors(const epi_ast_tensor *t, int count, epi_text *out) {
    for (int i = 0; i < count; i++) {
        epi_text_add(out, "%s", i ? ", " : "");
        epi_ast_print_tensor(&t[i], out);
    }
}

void epi_ast_print_assign(const epi_ast_assign *s, bool written, epi_text *out) {
    for (int j = 0; j < s->name_count; j++) {
        epi_text_add(out, "%s%s", j ? ", " : "", s->names[j].text);
        if (s->names[j].type != EPI_DTYPE_COUNT)
            epi_text_add(out, ": %s", epi_dtype_name(s->names[j].type));
        print_axes(s->names[j].axes, s->names[j].axis_count, out);
    }
    epi_text_add(out, " = ");
    print_expr(s->value, EPI_LEVEL_OR, written, out);
}

void epi_ast_print_by(const epi_ast_program *g, epi_text *out) {
    if (g->by || g->rule)
        epi_text_add(out, " by %s", g->rule ? g->rule->name : g->by);
}

void epi_ast_print(const epi_ast_program *g, epi_text *out) {
    for (const char *c = g->comment, *end; *c; c = *end ? end + 1 : end) {
        end = c + strcspn(c, "\n");
        epi_text_add(out, "#%s%.*s\n", end > c ? " " : "", (int)(end - c), c);
    }
    epi_text_add(out, "%s(", g->name);
    epi_ast_print_tensors(g->inputs, g->input_count, out);
    epi_text_add(out, g->output_count == 1 ? ") -> " : ") -> (");
    epi_ast_print_tensors(g->outputs, g->output_count, out);
    epi_text_add(out, g->output_count == 1 ? "" : ")");
    epi_ast_print_by(g, out);
    epi_text_add(out, " {\n");
    for (int i = 0; i < g->body_count; i++) {
        epi_text_add(out, "    ");
        epi_ast_print_assign(&g->body[i], false, out);
        epi_text_add(out, "\n");
    }
    epi_text_add(out, "}\n");
}
