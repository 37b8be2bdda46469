/* parse.c: from tokens to programs; the first error wins. Expressions are in expr.c. */
#include "lang/parse.h"

#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "lang/hints.h"

enum { MAX_PROGRAMS = 4096 };

void epi_parse_fail(epi_parser *p, epi_place place, const char *fmt, ...) {
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

/* The next token is none. A text in quotes is what other languages' operations take, as einsum does. */
static void fail_token(epi_parser *p) {
    unsigned char c = (unsigned char)p->token.text[0];
    size_t rest = (size_t)(p->lexer.end - p->token.text), length = epi_character_length(p->token.text, rest);
    const char *hint = epi_hint_character(p->token.text, rest);
    const char *call = (c == '"' || c == '\'') && p->call.name ? epi_hint_operation(p->call.name) : NULL;
    if (call)
        epi_parse_fail(p, p->call.place, EPI_UNKNOWN_OPERATION, p->call.name, call);
    else if (p->token.length >= EPI_MAX_DIGITS)
        epi_parse_fail(p, p->token.place, "this number is too long: it may have at most %d characters",
                       EPI_MAX_DIGITS - 1);
    else if (p->token.length > 1)
        epi_parse_fail(p, p->token.place, "'%.*s' is neither a number nor a name; write a product as 2*x",
                       (int)p->token.length, p->token.text);
    else if (length)
        epi_parse_fail(p, p->token.place, "the character '%.*s' has no meaning here%s%s", (int)length,
                       p->token.text, hint ? "; " : "", hint ? hint : "");
    else
        epi_parse_fail(p, p->token.place, "the byte 0x%02x has no meaning here; a program is plain text", c);
}

void epi_parse_next(epi_parser *p) {
    if (p->error.status != EPI_OK)
        return;
    p->token = epi_lex(&p->lexer);
    if (p->token.kind == EPI_TOKEN_BAD)
        fail_token(p);
}

static epi_label token_label(const epi_token *t) {
    epi_label l;
    if (t->kind == EPI_TOKEN_END)
        snprintf(l.text, sizeof l.text, "the end of the text");
    else
        snprintf(l.text, sizeof l.text, "'%.*s'", (int)(t->length < 60 ? t->length : 60), t->text);
    return l;
}

bool epi_parse_at(const epi_parser *p, const char *word) {
    return epi_token_is(&p->token, word);
}

bool epi_parse_accept(epi_parser *p, const char *word) {
    bool yes = epi_parse_at(p, word);
    if (yes)
        epi_parse_next(p);
    return yes;
}

void epi_parse_expected(epi_parser *p, const char *what) {
    epi_parse_fail(p, p->token.place, "expected %s, found %s", what, token_label(&p->token).text);
}

void epi_parse_expect(epi_parser *p, const char *symbol, const char *where) {
    if (!epi_parse_accept(p, symbol))
        epi_parse_fail(p, p->token.place, "expected '%s' %s, found %s", symbol, where,
                       token_label(&p->token).text);
}

/* Words that cannot name a program, a value or an axis. Operations can: their names stand before a
 * parenthesis; and so can types of 8 bits, as u8 and i8 did before they were types. */
bool epi_is_reserved(const char *name) {
    static const char *const words[] = {"inf", "and", "or", "not"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(name, words[i]))
            return true;
    return epi_dtype_size(epi_dtype_find(name)) > 1;
}

const char *epi_parse_name(epi_parser *p, const char *what, bool fresh) {
    if (epi_parse_at(p, "//"))
        epi_parse_fail(p, p->token.place, "a comment begins with #");
    if (p->token.kind != EPI_TOKEN_NAME) {
        epi_parse_expected(p, what);
        return "";
    }
    const char *name = epi_arena_text(p->arena, p->token.text, p->token.length);
    if (!name)
        return "";
    if (fresh && epi_is_reserved(name))
        epi_parse_fail(p, p->token.place, "'%s' is a word of the language and cannot be used as %s", name,
                       what);
    epi_parse_next(p);
    return name;
}

bool epi_parse_grow(epi_parser *p, void **list, int count, int *capacity, size_t size) {
    void *more = epi_arena_grow(p->arena, *list, count, capacity, size);
    *list = more ? more : *list;
    return more != NULL;
}

/* ---- programs ---- */

/* `def` and `return` are read as names, and what comes behind them as a mistake. */
void epi_parse_foreign(epi_parser *p, const char *name, epi_place place) {
    const char *hint = epi_hint_name(name);
    if (hint)
        epi_parse_fail(p, place, "'%s' is not a word of the language; %s", name, hint);
}

/* y += x */
static void fail_augmented(epi_parser *p, const char *name) {
    int n = (int)p->token.length;
    if (p->token.kind == EPI_TOKEN_SYMBOL && strchr("+-*/%@", *p->token.text) && p->lexer.at < p->lexer.end &&
        *p->lexer.at == '=')
        epi_parse_fail(p, p->token.place,
                       "values are assigned once, and there is no '%.*s=': write z = %s %.*s …", n,
                       p->token.text, name, n, p->token.text);
}

/* The type after a colon. */
static epi_dtype parse_type(epi_parser *p) {
    epi_place place = p->token.place;
    const char *name = epi_parse_name(p, "a type, such as f32 or bf16", false);
    epi_dtype type = epi_dtype_find(name);
    if (type == EPI_DTYPE_COUNT && epi_dtype_meant(name))
        epi_parse_fail(p, place, "'%s' is not a type; did you mean %s?", name, epi_dtype_meant(name));
    else if (type == EPI_DTYPE_COUNT)
        epi_parse_fail(p, place, "'%s' is not a type; the types are %s, i4, u4", name, epi_dtype_names());
    return type;
}

int64_t epi_parse_size(epi_parser *p, const epi_ast_axis *axis) {
    const double most = 1 << 30;
    double size = p->token.kind == EPI_TOKEN_NUMBER ? p->token.number : 0;
    if (!(size >= 1) || size > most || size != (double)(int64_t)size)
        epi_parse_fail(p, p->token.place,
                       "the size of an axis must be a whole number from 1 to 2^30, as in %s=3", axis->name);
    else if (axis->shift)
        epi_parse_fail(p, axis->place, "give the size to the axis itself: %s=…", axis->name);
    epi_parse_next(p);
    return p->error.status == EPI_OK ? (int64_t)size : 0;
}

/* The axes in brackets, if there are any; `declares`: they may have sizes. */
static int parse_axes(epi_parser *p, epi_ast_axis *axes, bool declares) {
    int count = 0;
    if (!epi_parse_accept(p, "["))
        return 0;
    do {
        if (count == EPI_MAX_AXES) {
            epi_parse_fail(p, p->token.place, "a tensor has at most %d axes", EPI_MAX_AXES);
            break;
        }
        epi_ast_axis *axis = &axes[count++];
        *axis = epi_parse_axis(p);
        if (epi_parse_at(p, "=") && !declares)
            epi_parse_fail(
                p, p->token.place,
                "give the size of an axis in the declaration of an input or output, as in x[T,%.60s=3]",
                axis->name);
        if (epi_parse_accept(p, "="))
            axis->size = epi_parse_size(p, axis);
    } while (epi_parse_accept(p, ","));
    epi_parse_expect(p, "]", "after the axes");
    return count;
}

static epi_ast_tensor parse_tensor(epi_parser *p, const char *what) {
    epi_ast_tensor t = {.place = p->token.place};
    t.name = epi_parse_name(p, what, true);
    if (epi_parse_accept(p, ":")) {
        t.param = epi_parse_accept(p, "param");
        t.cotangent = epi_parse_accept(p, "cotangent");
        if (t.cotangent && (t.param || epi_parse_at(p, "param")))
            epi_parse_fail(p, t.place,
                           "an input cannot be both param and cotangent: a param is the same in every call, "
                           "a cotangent is not");
        t.infinite = !(t.cotangent || t.param) && epi_parse_accept(p, "inf");
        t.has_type = !(t.cotangent || t.param || t.infinite) || p->token.kind == EPI_TOKEN_NAME;
        t.packed = epi_parse_accept(p, "i4") ? "i4" : epi_parse_accept(p, "u4") ? "u4" : NULL;
        if (t.has_type)
            t.type = t.packed ? EPI_U8 : parse_type(p);
    }
    t.axis_count = parse_axes(p, t.axes, true);
    return t;
}

/* Marks are for inputs. */
static void check_output(epi_parser *p, const epi_ast_tensor *t) {
    if (t->cotangent || t->param || t->infinite)
        epi_parse_fail(p, t->place, "'%s' is an output; only inputs can be declared %s", t->name,
                       t->cotangent ? "cotangent"
                       : t->param   ? "param"
                                    : "inf");
}

/* A list of tensors up to a closing parenthesis. */
static int parse_tensors(epi_parser *p, epi_ast_tensor **out, const char *what, bool inputs) {
    int count = 0, capacity = 0;
    if (!epi_parse_at(p, ")"))
        do {
            if (count == EPI_MAX_ARGS)
                epi_parse_fail(p, p->token.place, "a program has at most %d inputs and as many outputs",
                               EPI_MAX_ARGS);
            if (!epi_parse_grow(p, (void **)out, count, &capacity, sizeof **out))
                break;
            (*out)[count] = parse_tensor(p, what);
            if (!inputs)
                check_output(p, &(*out)[count]);
            count++;
        } while (epi_parse_accept(p, ","));
    if (!epi_parse_accept(p, ")"))
        epi_parse_expected(p, "',' or ')' in the list");
    return count;
}

/* How a value is stored, if it is. */
static epi_dtype parse_stored(epi_parser *p) {
    if (!epi_parse_accept(p, ":"))
        return EPI_DTYPE_COUNT;
    epi_place place = p->token.place;
    bool packed = epi_parse_at(p, "i4") || epi_parse_at(p, "u4");
    if (packed)
        epi_parse_fail(p, place,
                       "a value is stored as f32, bf16 or f16; i4 and u4 are for inputs and outputs");
    epi_dtype type = packed ? EPI_DTYPE_COUNT : parse_type(p);
    if (type != EPI_DTYPE_COUNT && !epi_dtype_is_operand(type))
        epi_parse_fail(
            p, place,
            "a value is stored as f32, bf16 or f16; %s is for inputs and outputs, and %s(…) for values",
            epi_dtype_name(type), epi_dtype_name(type));
    return type;
}

static epi_ast_assign parse_assign(epi_parser *p) {
    epi_ast_assign s = {0};
    int capacity = 0;
    do {
        if (s.name_count == EPI_MAX_ARGS)
            epi_parse_fail(p, p->token.place, "an assignment has at most %d names", EPI_MAX_ARGS);
        if (!epi_parse_grow(p, (void **)&s.names, s.name_count, &capacity, sizeof *s.names))
            break;
        epi_ast_name *name = &s.names[s.name_count++];
        name->place = p->token.place;
        name->text = epi_parse_name(p, "a name to assign", true);
        name->type = parse_stored(p);
        name->axes =
            epi_parse_at(p, "[") ? epi_arena_alloc(p->arena, EPI_MAX_AXES * sizeof *name->axes) : NULL;
        name->axis_count = name->axes ? parse_axes(p, name->axes, false) : 0;
    } while (epi_parse_accept(p, ","));
    if (p->arena->failed)
        return s;
    if (!epi_parse_at(p, "=")) {
        epi_parse_foreign(p, s.names[0].text, s.names[0].place);
        fail_augmented(p, s.names[0].text);
    }
    epi_parse_expect(p, "=", "after the name");
    s.value = epi_parse_expr(p);
    return s;
}

/* Comment lines without their marks and one blank after each mark. */
static const char *clean_comment(epi_parser *p, const epi_token *t) {
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

static epi_ast_program *parse_program(epi_parser *p) {
    epi_ast_program *g = epi_arena_alloc(p->arena, sizeof *g);
    if (!g)
        return NULL;
    g->comment = clean_comment(p, &p->token);
    g->place = p->token.place;
    g->name = epi_parse_name(p, "a program's name", true);
    if (!epi_parse_at(p, "("))
        epi_parse_foreign(p, g->name, g->place);
    epi_parse_expect(p, "(", "after the program's name");
    g->input_count = parse_tensors(p, &g->inputs, "an input's name", true);
    epi_parse_expect(p, "->", "between inputs and outputs");
    if (epi_parse_accept(p, "(")) {
        g->output_count = parse_tensors(p, &g->outputs, "an output's name", false);
    } else {
        g->output_count = 1;
        g->outputs = epi_arena_alloc(p->arena, sizeof *g->outputs);
        epi_ast_tensor only = parse_tensor(p, "an output's name");
        check_output(p, &only);
        if (g->outputs)
            *g->outputs = only;
    }
    if (!g->output_count)
        epi_parse_fail(p, g->place, "the program %s has no outputs", g->name);
    if (epi_parse_at(p, ","))
        epi_parse_fail(p, p->token.place, "write several outputs in parentheses: -> (a[T], b[T])");
    if (epi_parse_at(p, ":"))
        epi_parse_fail(p, p->token.place, "write the type before the axes: y: bf16[T]");
    if (epi_parse_accept(p, "by")) {
        g->by_place = p->token.place;
        g->by = epi_parse_name(p, "the name of the program that is its gradient", false);
    }
    epi_parse_expect(p, "{", "before the program's body");
    int capacity = 0;
    while (!epi_parse_at(p, "}") && p->token.kind != EPI_TOKEN_END) {
        if (!epi_parse_grow(p, (void **)&g->body, g->body_count, &capacity, sizeof *g->body))
            break;
        g->body[g->body_count++] = parse_assign(p);
        while (epi_parse_accept(p, ";"))
            ;
    }
    epi_parse_expect(p, "}", "after the program's body");
    return g;
}

/* Finds the programs that are gradients of others. */
static void link_rules(epi_parser *p, epi_ast_program *programs) {
    for (epi_ast_program *g = programs; g; g = g->next) {
        epi_nearest near = {.wanted = g->by};
        for (const epi_ast_program *q = programs; q && g->by && !g->rule; q = q->next) {
            g->rule = strcmp(q->name, g->by) ? NULL : q;
            epi_nearest_offer(&near, q == g ? "" : q->name);
        }
        if (g->by && !g->rule)
            epi_parse_fail(p, g->by_place,
                           "there is no program '%.60s' here, which is declared as the gradient of %s%s",
                           g->by, g->name, near.best[0] ? epi_nearest_hint(&near, "") : "");
    }
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
    epi_parser p = {.arena = arena, .lexer = {source + mark, source + length, {1, 1}}};
    epi_parse_next(&p);
    epi_ast_program **tail = &out->programs;
    while (p.token.kind != EPI_TOKEN_END && p.error.status == EPI_OK && !arena->failed) {
        epi_ast_program *g = parse_program(&p);
        if (!g)
            break;
        for (epi_ast_program *q = out->programs; q; q = q->next)
            if (!strcmp(q->name, g->name))
                epi_parse_fail(&p, g->place, "the program '%s' is defined twice; the first is at line %d",
                               g->name, q->place.line);
        *tail = g;
        tail = &g->next;
        if (++out->program_count > MAX_PROGRAMS)
            epi_parse_fail(&p, p.token.place, "a file has at most %d programs", MAX_PROGRAMS);
    }
    link_rules(&p, out->programs);
    EPI_TRY(epi_has_memory(!arena->failed, err));
    if (p.error.status != EPI_OK) {
        epi_ast_locate(out, &p.error);
        if (err)
            *err = p.error;
    }
    return p.error.status;
}
