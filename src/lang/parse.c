/* parse.c: recursive descent from tokens to the tree; the first error wins. */
#include <stdio.h>
#include <string.h>

#include "lang/ast.h"
#include "lang/lex.h"

enum { MAX_DEPTH = 200, MAX_ARGS = EPI_MAX_TENSORS, MAX_PROGRAMS = 4096 };

typedef struct parser {
    epi_arena *arena;
    epi_lexer lexer;
    epi_token token;
    epi_error error;
    int depth;
} parser;

static void fail_at(parser *p, epi_place place, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void fail_at(parser *p, epi_place place, const char *fmt, ...) {
    if (p->error.status != EPI_OK)
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(p->error.message, sizeof p->error.message, fmt, args);
    va_end(args);
    p->error.status = EPI_ERR_SYNTAX;
    p->error.line = place.line;
    p->error.column = place.column;
    p->token = (epi_token){.place = place}; /* every later look sees the end */
    p->lexer.at = p->lexer.end;
}

static void next(parser *p) {
    if (p->error.status != EPI_OK)
        return;
    p->token = epi_lex(&p->lexer);
    if (p->token.kind == EPI_TOKEN_BAD) {
        unsigned char c = (unsigned char)p->token.text[0];
        if (p->token.length >= EPI_MAX_DIGITS)
            fail_at(p, p->token.place, "this number is too long");
        else if (p->token.length > 1)
            fail_at(p, p->token.place, "'%.*s' is neither a number nor a name; a product is written 2*x",
                    (int)p->token.length, p->token.text);
        else if (c == '^')
            fail_at(p, p->token.place, "a power is written pow(x, 2), a square x*x");
        else if (c > 32 && c < 127)
            fail_at(p, p->token.place, "the character '%c' has no meaning here", c);
        else
            fail_at(p, p->token.place, "the byte 0x%02x has no meaning here", c);
    }
}

static epi_label token_label(const epi_token *t) {
    epi_label l;
    if (t->kind == EPI_TOKEN_END)
        snprintf(l.text, sizeof l.text, "the end of the text");
    else
        snprintf(l.text, sizeof l.text, "'%.*s'", (int)(t->length < 60 ? t->length : 60), t->text);
    return l;
}

static bool at(parser *p, const char *word) {
    return epi_token_is(&p->token, word);
}

static bool accept(parser *p, const char *word) {
    bool yes = at(p, word);
    if (yes)
        next(p);
    return yes;
}

static void expect(parser *p, const char *symbol, const char *where) {
    if (!accept(p, symbol))
        fail_at(p, p->token.place, "expected '%s' %s, found %s", symbol, where, token_label(&p->token).text);
}

/* Words that cannot name a program or a value. */
static bool reserved(const char *name) {
    if (!strcmp(name, "inf") || epi_dtype_find(name) != EPI_DTYPE_COUNT)
        return true;
    for (int i = 0; i < EPI_OP_COUNT; i++)
        if (!strcmp(name, epi_ops[i].text))
            return true;
    return false;
}

static const char *take_name(parser *p, const char *what, bool fresh) {
    if (at(p, "/") && p->lexer.at < p->lexer.end && *p->lexer.at == '/')
        fail_at(p, p->token.place, "a comment begins with #");
    if (p->token.kind != EPI_TOKEN_NAME) {
        fail_at(p, p->token.place, "expected %s, found %s", what, token_label(&p->token).text);
        return "";
    }
    const char *name = epi_arena_text(p->arena, p->token.text, p->token.length);
    if (!name)
        return "";
    if (fresh && reserved(name))
        fail_at(p, p->token.place, "'%s' is a word of the language and cannot be used as %s", name, what);
    next(p);
    return name;
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

static epi_ast *parse_sum(parser *p);

static epi_ast_axis parse_axis(parser *p) {
    epi_ast_axis axis = {.name = ""};
    epi_ast *e = parse_sum(p);
    if (e && !epi_ast_as_axis(e, &axis)) {
        fail_at(p, e->place, "expected an axis: a name, or a name with a power of two as in 2*F or F/2");
        axis.name = "";
    }
    if (p->error.status == EPI_OK && reserved(axis.name))
        fail_at(p, axis.place, "'%s' is a word of the language and cannot be used as an axis", axis.name);
    return axis;
}

/* ---- expressions ---- */

static epi_ast *new_ast(parser *p, epi_ast_kind kind, epi_place place, int args) {
    epi_ast *e = epi_arena_alloc(p->arena, sizeof *e);
    if (!e)
        return NULL;
    e->kind = kind;
    e->place = place;
    e->arg_count = args;
    e->args = epi_arena_alloc(p->arena, (size_t)(args ? args : 1) * sizeof *e->args);
    return e->args ? e : NULL;
}

static epi_ast *parse_expr(parser *p);

static epi_ast *parse_call(parser *p, const char *name, epi_place place) {
    epi_ast *args[MAX_ARGS];
    int count = 0;
    if (!at(p, ")"))
        do {
            if (count == MAX_ARGS) {
                fail_at(p, p->token.place, "a call takes at most %d arguments", MAX_ARGS);
                return NULL;
            }
            args[count++] = parse_expr(p);
        } while (accept(p, ","));
    expect(p, ")", "after the arguments");
    epi_ast *e = new_ast(p, EPI_AST_CALL, place, count);
    if (!e || p->error.status != EPI_OK)
        return NULL;
    e->name = name;
    memcpy(e->args, args, (size_t)count * sizeof *args);
    return e;
}

static epi_ast *parse_atom(parser *p) {
    epi_place place = p->token.place;
    if (p->token.kind == EPI_TOKEN_NUMBER || at(p, "inf")) {
        epi_ast *e = new_ast(p, EPI_AST_NUMBER, place, 0);
        if (e)
            e->number = p->token.kind == EPI_TOKEN_NUMBER ? p->token.number : (double)__builtin_inff();
        next(p);
        return e;
    }
    if (accept(p, "(")) {
        epi_ast *e = parse_expr(p);
        expect(p, ")", "to close the parenthesis");
        return e;
    }
    if (p->token.kind == EPI_TOKEN_NAME && !at(p, "and") && !at(p, "or") && !at(p, "not")) {
        const char *name = take_name(p, "a name", false);
        if (accept(p, "("))
            return parse_call(p, name, place);
        epi_ast *e = new_ast(p, EPI_AST_NAME, place, 0);
        if (e)
            e->name = name;
        return e;
    }
    fail_at(p, place, "expected a value, found %s", token_label(&p->token).text);
    return NULL;
}

/* Any number of [index] behind a value. */
static epi_ast *parse_taken(parser *p) {
    epi_ast *e = parse_atom(p);
    for (epi_place place = p->token.place; e && accept(p, "["); place = p->token.place) {
        epi_ast *index = parse_expr(p);
        expect(p, "]", "after the index");
        epi_ast *taken = new_ast(p, EPI_AST_TAKE, place, 2);
        if (!taken || !index)
            return NULL;
        taken->args[0] = e;
        taken->args[1] = index;
        e = taken;
    }
    return e;
}

static epi_ast *make_op(parser *p, epi_op op, epi_place place, epi_ast *a, epi_ast *b) {
    epi_ast *e = new_ast(p, b ? EPI_AST_BINARY : EPI_AST_UNARY, place, b ? 2 : 1);
    if (!e || !a)
        return NULL;
    e->op = op;
    e->args[0] = a;
    if (b)
        e->args[1] = b;
    return e;
}

static epi_ast *parse_unary(parser *p) {
    if (++p->depth > MAX_DEPTH)
        fail_at(p, p->token.place, "expressions are nested too deeply");
    epi_place place = p->token.place;
    epi_ast *e = accept(p, "-") ? make_op(p, EPI_OP_NEG, place, parse_unary(p), NULL) : parse_taken(p);
    p->depth--;
    return e;
}

/* One level of left-associative operators: words[i] means ops[i]. */
static epi_ast *parse_level(parser *p, epi_ast *(*lower)(parser *), const char *const *words,
                            const epi_op *ops, bool chain) {
    epi_ast *e = lower(p);
    for (int i = 0; e && words[i];) {
        epi_place place = p->token.place;
        if (!accept(p, words[i])) {
            i++;
            continue;
        }
        epi_ast *right = lower(p);
        e = right ? make_op(p, ops[i], place, e, right) : NULL;
        i = 0;
        if (chain)
            continue;
        for (; words[i]; i++)
            if (at(p, words[i]))
                fail_at(p, p->token.place, "comparisons do not chain; join two with 'and'");
    }
    return e;
}

static epi_ast *parse_term(parser *p) {
    static const char *const words[] = {"*", "/", "@", NULL};
    static const epi_op ops[] = {EPI_OP_MUL, EPI_OP_DIV, EPI_OP_MATMUL};
    return parse_level(p, parse_unary, words, ops, true);
}

static epi_ast *parse_sum(parser *p) {
    static const char *const words[] = {"+", "-", NULL};
    static const epi_op ops[] = {EPI_OP_ADD, EPI_OP_SUB};
    return parse_level(p, parse_term, words, ops, true);
}

static epi_ast *parse_comparison(parser *p) {
    static const char *const words[] = {"<", "<=", ">", ">=", "==", "!=", NULL};
    static const epi_op ops[] = {EPI_OP_LT, EPI_OP_LE, EPI_OP_GT, EPI_OP_GE, EPI_OP_EQ, EPI_OP_NE};
    return parse_level(p, parse_sum, words, ops, false);
}

static epi_ast *parse_not(parser *p) {
    if (++p->depth > MAX_DEPTH)
        fail_at(p, p->token.place, "expressions are nested too deeply");
    epi_place place = p->token.place;
    epi_ast *e = accept(p, "not") ? make_op(p, EPI_OP_NOT, place, parse_not(p), NULL) : parse_comparison(p);
    p->depth--;
    return e;
}

static epi_ast *parse_and(parser *p) {
    static const char *const words[] = {"and", NULL};
    static const epi_op ops[] = {EPI_OP_AND};
    return parse_level(p, parse_not, words, ops, true);
}

static epi_ast *parse_expr(parser *p) {
    static const char *const words[] = {"or", NULL};
    static const epi_op ops[] = {EPI_OP_OR};
    return parse_level(p, parse_and, words, ops, true);
}

/* ---- programs ---- */

static epi_ast_tensor parse_tensor(parser *p, const char *what) {
    epi_ast_tensor t = {.place = p->token.place};
    t.name = take_name(p, what, true);
    if (accept(p, ":")) {
        epi_place place = p->token.place;
        const char *type = take_name(p, "a type (f32, bf16, f16, i32, f64)", false);
        t.has_type = true;
        t.type = epi_dtype_find(type);
        if (t.type == EPI_DTYPE_COUNT)
            fail_at(p, place, "'%s' is no type; the types are f32, bf16, f16, i32, f64", type);
    }
    if (accept(p, "[")) {
        do {
            if (t.axis_count == EPI_MAX_AXES) {
                fail_at(p, p->token.place, "a tensor has at most %d axes", EPI_MAX_AXES);
                break;
            }
            t.axes[t.axis_count++] = parse_axis(p);
        } while (accept(p, ","));
        expect(p, "]", "after the axes");
    }
    return t;
}

/* A list of tensors up to a closing parenthesis. */
static int parse_tensors(parser *p, epi_ast_tensor **out, const char *what) {
    epi_ast_tensor list[MAX_ARGS];
    int count = 0;
    if (!at(p, ")"))
        do {
            if (count == MAX_ARGS) {
                fail_at(p, p->token.place, "a program has at most %d inputs and as many outputs", MAX_ARGS);
                break;
            }
            list[count++] = parse_tensor(p, what);
        } while (accept(p, ","));
    expect(p, ")", "after the list");
    *out = epi_arena_alloc(p->arena, (size_t)(count ? count : 1) * sizeof **out);
    if (*out)
        memcpy(*out, list, (size_t)count * sizeof *list);
    return count;
}

static epi_ast_assign parse_assign(parser *p) {
    const char *names[MAX_ARGS];
    epi_place places[MAX_ARGS];
    epi_ast_assign s = {0};
    do {
        if (s.name_count == MAX_ARGS) {
            fail_at(p, p->token.place, "an assignment has at most %d names", MAX_ARGS);
            break;
        }
        places[s.name_count] = p->token.place;
        names[s.name_count++] = take_name(p, "a name to assign", true);
    } while (accept(p, ","));
    expect(p, "=", "after the name");
    s.value = parse_expr(p);
    s.names = epi_arena_alloc(p->arena, (size_t)s.name_count * sizeof *s.names);
    s.places = epi_arena_alloc(p->arena, (size_t)s.name_count * sizeof *s.places);
    if (s.names && s.places) {
        memcpy(s.names, names, (size_t)s.name_count * sizeof *names);
        memcpy(s.places, places, (size_t)s.name_count * sizeof *places);
    }
    return s;
}

/* Comment lines without their marks and one blank after each mark. */
static const char *clean_comment(parser *p, const epi_token *t) {
    if (!t->comment)
        return "";
    char *out = epi_arena_alloc(p->arena, t->comment_length + 1), *o = out;
    if (!out)
        return "";
    const char *c = t->comment, *end = c + t->comment_length;
    while (c < end) {
        while (c < end && *c != '#')
            c++;
        c += c < end;
        c += c < end && *c == ' ';
        for (; c < end && *c != '\n'; c++)
            *o++ = *c ? *c : ' '; /* a NUL would end the text early */
        while (o > out && (o[-1] == ' ' || o[-1] == '\t' || o[-1] == '\r'))
            o--;
        *o++ = '\n';
    }
    while (o > out && o[-1] == '\n')
        o--;
    *o = 0;
    return out;
}

static epi_ast_program *parse_program(parser *p) {
    epi_ast_program *g = epi_arena_alloc(p->arena, sizeof *g);
    if (!g)
        return NULL;
    g->comment = clean_comment(p, &p->token);
    g->place = p->token.place;
    g->name = take_name(p, "a program's name", true);
    expect(p, "(", "after the program's name");
    g->input_count = parse_tensors(p, &g->inputs, "an input's name");
    expect(p, "->", "between inputs and outputs");
    if (accept(p, "(")) {
        g->output_count = parse_tensors(p, &g->outputs, "an output's name");
    } else {
        g->output_count = 1;
        g->outputs = epi_arena_alloc(p->arena, sizeof *g->outputs);
        epi_ast_tensor only = parse_tensor(p, "an output's name");
        if (g->outputs)
            *g->outputs = only;
    }
    if (!g->output_count)
        fail_at(p, g->place, "the program %s has no outputs", g->name);
    if (at(p, ","))
        fail_at(p, p->token.place, "several outputs stand in parentheses: -> (a[T], b[T])");
    if (at(p, ":"))
        fail_at(p, p->token.place, "the type stands before the axes: y: bf16[T]");
    expect(p, "{", "before the program's body");
    int capacity = 0;
    while (!at(p, "}") && p->token.kind != EPI_TOKEN_END && !p->arena->failed) {
        if (g->body_count == capacity) {
            capacity = capacity ? 2 * capacity : 8;
            epi_ast_assign *body = epi_arena_alloc(p->arena, (size_t)capacity * sizeof *body);
            if (!body)
                break;
            if (g->body_count)
                memcpy(body, g->body, (size_t)g->body_count * sizeof *body);
            g->body = body;
        }
        g->body[g->body_count++] = parse_assign(p);
        while (accept(p, ";"))
            ;
    }
    expect(p, "}", "after the program's body");
    return g;
}

void epi_ast_locate(const epi_ast_text *text, epi_error *err) {
    snprintf(err->file, sizeof err->file, "%s", text->file);
    const char *line = text->source, *end = text->source + text->length;
    for (int i = 1; i < err->line && line < end; line++)
        i += *line == '\n';
    size_t n = 0;
    while (line + n < end && line[n] != '\n' && line[n] != '\r' && n < sizeof err->source - 1)
        n++;
    memcpy(err->source, line, n);
    err->source[n] = 0;
    if ((size_t)err->column > n + 1) /* the place lies past what is kept of a very long line */
        err->source[0] = 0;
}

epi_status epi_ast_parse(epi_arena *arena, const char *source, size_t length, const char *file,
                         epi_ast_text *out, epi_error *err) {
    *out = (epi_ast_text){.file = file, .source = source, .length = length};
    size_t mark = length >= 3 && !memcmp(source, "\xef\xbb\xbf", 3) ? 3 : 0; /* a byte order mark */
    parser p = {.arena = arena, .lexer = {source + mark, source + length, {1, 1}}};
    next(&p);
    epi_ast_program **tail = &out->programs;
    while (p.token.kind != EPI_TOKEN_END && p.error.status == EPI_OK && !arena->failed) {
        epi_ast_program *g = parse_program(&p);
        if (!g)
            break;
        for (epi_ast_program *q = out->programs; q; q = q->next)
            if (!strcmp(q->name, g->name))
                fail_at(&p, g->place, "the program '%s' is defined twice; the first is at line %d", g->name,
                        q->place.line);
        *tail = g;
        tail = &g->next;
        if (++out->program_count > MAX_PROGRAMS)
            fail_at(&p, p.token.place, "a text has at most %d programs", MAX_PROGRAMS);
    }
    if (arena->failed)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    if (p.error.status != EPI_OK) {
        epi_ast_locate(out, &p.error);
        if (err)
            *err = p.error;
    }
    return p.error.status;
}
