/* expr.c: parses expressions by the precedence of their operators.
 *
 * Operators that group from left to right are parsed in a loop, so `a + b + c` is no deeper than `a`. Real
 * nesting (parentheses, arguments, indices, operands on the right) is counted, so that no text overflows the
 * stack. */
#include "lang/parse.h"

#include <stdio.h>
#include <string.h>

#include "lang/words.h"

static const epi_op infixes[] = {
    EPI_OP_OR,       EPI_OP_AND,       EPI_OP_LT,     EPI_OP_LE,  EPI_OP_GT,  EPI_OP_GE,
    EPI_OP_EQ,       EPI_OP_NE,        EPI_OP_ADD,    EPI_OP_SUB, EPI_OP_MUL, EPI_OP_DIV,
    EPI_OP_QUOTIENT, EPI_OP_REMAINDER, EPI_OP_MATMUL, EPI_OP_POW,
};

/* The operator that comes next, or EPI_OP_COUNT. */
static epi_op infix_at(const epi_parser *p) {
    for (size_t i = 0; i < sizeof infixes / sizeof *infixes; i++)
        if (epi_parse_at(p, epi_op_symbol(infixes[i])))
            return infixes[i];
    return EPI_OP_COUNT;
}

static epi_ast *new_ast(epi_parser *p, epi_ast_kind kind, epi_place place) {
    epi_ast *e = epi_arena_alloc(p->arena, sizeof *e);
    if (e) {
        e->kind = kind;
        e->place = place;
    }
    return e;
}

/* An expression with one operand or two. */
static epi_ast *with_operands(epi_parser *p, epi_ast_kind kind, epi_place place, epi_ast *a, epi_ast *b) {
    epi_ast *e = new_ast(p, kind, place);
    epi_ast **args = epi_arena_alloc(p->arena, 2 * sizeof *args);
    if (!e || !args || !a || (kind != EPI_AST_UNARY && !b))
        return NULL;
    args[0] = a;
    args[1] = b;
    a->outer = e;
    e->args = args;
    e->arg_count = kind == EPI_AST_UNARY ? 1 : 2;
    return e;
}

static epi_ast *parse_level(epi_parser *p, epi_level least);

/* Does a call of this name bring an axis into being, which it may give a size? */
static bool may_give_size(const char *name) {
    bool may = false;
    for (int op = 0; op < EPI_OP_COUNT; op++)
        may |= epi_ops[op].cls == EPI_CLASS_SORT && !strcmp(epi_ops[op].text, name);
    return may;
}

/* Takes the arrow of scatter(d, i, P -> T). */
static bool accept_arrow(epi_parser *p, epi_ast *e) {
    epi_place place = p->token.place;
    if (!epi_parse_accept(p, "->"))
        return false;
    if (!strcmp(e->name, epi_ops[EPI_OP_TOPK].text))
        epi_parse_fail(p, place, "topk takes no arrow: write its new axis last, as in topk(x, E, K=8)");
    else if (strcmp(e->name, epi_ops[EPI_OP_SCATTER].text) != 0 || e->arrow)
        epi_parse_fail(p, place, "only scatter takes an arrow, and only one, as in scatter(d, i, P -> T)");
    if (e->arg_count < 3)
        epi_parse_fail(p, place,
                       "before the arrow, name the axes of the index to sum over, as in scatter(d, i, P -> "
                       "T); to sum over none, write where(index(T) == i, d, 0)");
    e->arrow = e->arg_count;
    return true;
}

/* At the parenthesis behind a name. */
static epi_ast *parse_call(epi_parser *p, const char *name, epi_place place) {
    epi_ast *e = new_ast(p, EPI_AST_CALL, place);
    int capacity = 0;
    if (!e)
        return NULL;
    e->name = name;
    epi_called outer = p->call;
    p->call = (epi_called){name, place};
    epi_parse_expect(p, "(", "before the arguments");
    if (!epi_parse_at(p, ")"))
        do {
            if (e->arg_count == EPI_MAX_ARGS)
                epi_parse_fail(p, p->token.place, "a call takes at most %d arguments", EPI_MAX_ARGS);
            if (epi_parse_at(p, "->"))
                accept_arrow(p, e);
            epi_ast *arg = epi_parse_expr(p);
            if (!arg || !epi_parse_grow(p, (void **)&e->args, e->arg_count, &capacity, sizeof *e->args))
                return NULL;
            e->args[e->arg_count++] = arg;
            epi_ast_axis axis = {.name = arg->name, .place = arg->place};
            if (arg->kind == EPI_AST_NAME && may_give_size(name) && epi_parse_accept(p, "="))
                arg->number = (double)epi_parse_size(p, &axis);
        } while (epi_parse_accept(p, ",") || accept_arrow(p, e));
    if (epi_parse_at(p, "="))
        epi_parse_fail(
            p, p->token.place,
            "arguments have no names: write them in order; an axis goes by its own name, as in sum(x, D)");
    p->call = outer;
    epi_parse_expect(p, ")", "after the arguments");
    return e;
}

/* grad(f, x) and the like are programs: their arguments stand behind them. */
static epi_ast *parse_called(epi_parser *p, epi_ast *callee) {
    epi_place place = p->token.place;
    if (!callee || !epi_parse_at(p, "("))
        return callee;
    if (!epi_is_maker(callee->name))
        epi_parse_fail(
            p, place,
            "%s(…) gives a value, and a value cannot be called; write * before the parenthesis for a product",
            callee->name);
    epi_ast *e = parse_call(p, callee->name, callee->place);
    if (e)
        e->callee = callee;
    return e;
}

/* Digits alone are an integer, which is exact or not at all. */
static void check_digits(epi_parser *p) {
    const char *text = p->token.text, *first = text;
    int length = (int)p->token.length, zeros = 0;
    char exact[EPI_MAX_DIGITS + 1];
    for (int i = 0; i < length; i++)
        if (text[i] < '0' || text[i] > '9' || p->token.number < 0x1p53)
            return;
    while (zeros < length - 1 && *first == '0')
        first = text + ++zeros;
    int digits = snprintf(exact, sizeof exact, "%.0f", p->token.number);
    if (digits != length - zeros || memcmp(exact, first, (size_t)digits) != 0)
        epi_parse_fail(
            p, p->token.place,
            "the integer %.*s is not exact: integers go up to 2^53; write %.*s.0 for the nearest float",
            length, text, length, text);
}

static epi_ast *parse_atom(epi_parser *p) {
    epi_place place = p->token.place;
    if (p->token.kind == EPI_TOKEN_NUMBER)
        check_digits(p);
    if (p->token.kind == EPI_TOKEN_NUMBER || epi_parse_at(p, "inf")) {
        epi_ast *e = new_ast(p, EPI_AST_NUMBER, place);
        if (e) {
            e->number = p->token.kind == EPI_TOKEN_NUMBER ? p->token.number : (double)__builtin_inff();
            e->name = epi_arena_text(p->arena, p->token.text, p->token.length);
        }
        epi_parse_next(p);
        return e;
    }
    if (epi_parse_accept(p, "(")) {
        epi_ast *e = epi_parse_expr(p);
        epi_parse_expect(p, ")", "to close the parenthesis");
        if (e)
            e->parentheses = true;
        return e;
    }
    bool logic = epi_parse_at(p, "and") || epi_parse_at(p, "or") || epi_parse_at(p, "not");
    if (p->token.kind == EPI_TOKEN_NAME && !logic) {
        const char *name = epi_parse_name(p, "a name", false);
        if (epi_parse_at(p, "("))
            return parse_called(p, parse_call(p, name, place));
        if (!strcmp(name, "if") && p->token.kind == EPI_TOKEN_NAME) /* if x > 0 … */
            epi_parse_foreign(p, name, place);
        epi_ast *e = new_ast(p, EPI_AST_NAME, place);
        if (e)
            e->name = name;
        return e;
    }
    epi_parse_expected(p, "a value");
    return NULL;
}

/* Any number of [index] behind a value. */
static epi_ast *parse_taken(epi_parser *p) {
    epi_ast *e = parse_atom(p);
    for (epi_place place = p->token.place; e && epi_parse_accept(p, "["); place = p->token.place) {
        epi_ast *index = epi_parse_at(p, ":") ? NULL : epi_parse_expr(p);
        if (epi_parse_at(p, ":"))
            epi_parse_fail(p, p->token.place,
                           "there are no slices: halves(x, F) and pairs(x, F) split an axis, x[i] and "
                           "gather(x, i, V) take elements by index");
        if (epi_parse_at(p, ","))
            epi_parse_fail(
                p, p->token.place,
                "x[i] takes one index, along the first axis of x; gather(x, i, V) takes elements along V");
        epi_parse_expect(p, "]", "after the index");
        e = with_operands(p, EPI_AST_TAKE, place, e, index);
    }
    return e;
}

/* What stands before an operator: `-` or `not` and its operand, or a value. */
static epi_ast *parse_prefixed(epi_parser *p, epi_level least) {
    epi_place place = p->token.place;
    bool minus = epi_parse_accept(p, "-");
    if (!minus && !(least <= EPI_LEVEL_NOT && epi_parse_accept(p, "not")))
        return parse_taken(p);
    epi_ast *a = parse_level(p, minus ? EPI_LEVEL_UNARY : EPI_LEVEL_NOT);
    epi_ast *e = with_operands(p, EPI_AST_UNARY, place, a, NULL);
    if (e)
        e->op = minus ? EPI_OP_NEG : EPI_OP_NOT;
    return e;
}

/* Operators that bind at least so tightly, and their operands. */
static epi_ast *parse_level(epi_parser *p, epi_level least) {
    if (++p->depth > EPI_MAX_NESTING)
        epi_parse_fail(p, p->token.place, "expressions are nested too deeply; assign inner ones to names");
    epi_ast *e = parse_prefixed(p, least);
    for (bool compared = false; e;) {
        epi_place place = p->token.place;
        epi_op op = infix_at(p);
        epi_level level = op == EPI_OP_COUNT ? EPI_LEVEL_ATOM : epi_ops[op].level;
        if (op == EPI_OP_COUNT || level < least)
            break;
        if (compared && level == EPI_LEVEL_COMPARE)
            epi_parse_fail(p, place, "comparisons do not chain; join two with 'and'");
        compared = level == EPI_LEVEL_COMPARE;
        epi_parse_next(p);
        epi_ast *right = parse_level(p, epi_level_second(level));
        e = with_operands(p, EPI_AST_BINARY, place, e, right);
        if (e)
            e->op = op;
    }
    p->depth--;
    return e;
}

epi_ast *epi_parse_expr(epi_parser *p) {
    return parse_level(p, EPI_LEVEL_OR);
}

/* ---- axes ---- */

static bool shift_of(double factor, int *shift) {
    for (*shift = 0; *shift <= EPI_MAX_SHIFT; ++*shift)
        if (factor == (double)(1L << *shift))
            return true;
    return false;
}

bool epi_ast_as_axis(const epi_ast *e, epi_ast_axis *out) {
    *out = (epi_ast_axis){.place = e->place};
    if (e->kind == EPI_AST_NAME) {
        out->name = e->name;
        out->size = (int64_t)e->number;
        return true;
    }
    if (e->kind != EPI_AST_BINARY)
        return false;
    const epi_ast *a = e->args[0], *b = e->args[1];
    if (e->op == EPI_OP_MUL && a->kind == EPI_AST_NUMBER && b->kind == EPI_AST_NAME &&
        shift_of(a->number, &out->shift)) {
        out->name = b->name;
        return true;
    }
    if (e->op == EPI_OP_DIV && a->kind == EPI_AST_NAME && b->kind == EPI_AST_NUMBER &&
        shift_of(b->number, &out->shift)) {
        out->name = a->name;
        out->shift = -out->shift;
        return true;
    }
    return false;
}

epi_ast_axis epi_parse_axis(epi_parser *p) {
    epi_ast_axis axis = {.name = ""};
    epi_ast *e = parse_level(p, EPI_LEVEL_SUM);
    if (e && !epi_ast_as_axis(e, &axis)) {
        epi_parse_fail(p, e->place,
                       e->kind == EPI_AST_NUMBER && e->name
                           ? "an axis needs a name: declare one with %s elements as C=%s"
                           : "expected an axis: a name, or a name with a power of two as in 2*F or F/2",
                       e->name, e->name);
        axis.name = "";
    }
    if (p->error.status == EPI_OK && epi_is_reserved(axis.name))
        epi_parse_fail(p, axis.place, "'%s' is a word of the language and cannot be used as an axis",
                       axis.name);
    return axis;
}
