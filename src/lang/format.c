/* format.c: formats a whole source text, with its comments.
 *
 * A program is split into items: its head up to the parenthesis, each input, the arrow, each output, the
 * opening brace, each assignment, the closing brace. Every comment belongs to one item. A comment on the
 * line where an item ends comes after that item. Any other comment comes before the next item, and a comment
 * inside an item comes before it. Items are printed from the syntax tree; comments, numbers and parentheses
 * stay as they are written. Line breaks of the text do not matter, with two exceptions. Single blank lines
 * between assignments and comments stay. A list of tensors that begins on a new line keeps the groups that
 * its lines form. */
#include <string.h>

#include "lang/ast.h"
#include "lang/lex.h"

enum { WIDTH = 120, INDENT = 4 };

typedef struct comment {
    const char *text; /* from its mark on */
    size_t length;
    bool blank; /* a blank line stands before it */
    struct comment *next;
} comment;

typedef struct item {
    comment *before, *last; /* of those before it, the first and the last */
    comment *behind;
    bool blank;   /* a blank line stands directly before it, behind the comments before it */
    bool on_line; /* it begins a line */
} item;

typedef struct formatter {
    epi_arena *arena;
    epi_lexer lexer;
    epi_token token;  /* the next one */
    const char *done; /* up to here the text belongs to items */
    item *last;       /* that the token before belongs to */
    epi_text *out;
} formatter;

/* ---- comments and their items ---- */

static void add_before(item *it, comment *c) {
    if (it->before)
        it->last->next = c;
    else
        it->before = c;
    it->last = c;
}

/* Takes the next token for an item, and the comments that stand before the token. */
static void take(formatter *f, item *it) {
    int newlines = 0;
    bool same_line = f->last != NULL, inside = f->last == it;
    for (const char *at = f->done; at < f->token.text;) {
        const char *rest = memchr(at, '\n', (size_t)(f->token.text - at));
        if (*at == '#') {
            comment *c = epi_arena_alloc(f->arena, sizeof *c);
            if (!c)
                return;
            *c = (comment){at, (size_t)((rest ? rest : f->token.text) - at), newlines > 1 && !inside, NULL};
            if (same_line && !inside)
                f->last->behind = c;
            else
                add_before(it, c);
            at += c->length;
            newlines = 0;
        } else {
            newlines += *at == '\n';
            at++;
        }
        same_line &= !newlines;
    }
    it->blank |= newlines > 1 && !inside;
    it->on_line |= newlines && !inside;
    f->last = it;
    f->done = f->token.text + f->token.length;
    f->token = epi_lex(&f->lexer);
}

static bool at_end(const formatter *f) {
    return f->token.kind == EPI_TOKEN_END || f->arena->failed;
}

/* Takes up to and with a symbol. */
static void take_through(formatter *f, item *it, const char *symbol) {
    while (!at_end(f) && !epi_token_is(&f->token, symbol))
        take(f, it);
    take(f, it);
}

/* Tensors with the commas behind them; leaves the parenthesis that closes the list. */
static void take_tensors(formatter *f, item *items, int count) {
    for (int i = 0, depth = 0; i < count && !at_end(f);) {
        bool comma = !depth && epi_token_is(&f->token, ",");
        depth += epi_token_is(&f->token, "[") || epi_token_is(&f->token, "(");
        depth -= epi_token_is(&f->token, "]") || epi_token_is(&f->token, ")");
        if (depth < 0)
            return;
        take(f, &items[i]);
        i += comma;
    }
}

static bool is_at(const formatter *f, epi_place place) {
    return f->token.place.line == place.line && f->token.place.column == place.column;
}

/* ---- lines ---- */

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || !c;
}

static void put_comment(epi_text *out, const comment *c) {
    const char *at = c->text + 1, *end = c->text + c->length;
    while (end > at && is_blank(end[-1]))
        end--;
    at += at < end && *at == ' ';
    epi_text_add(out, at < end ? "# " : "#");
    for (; at < end; at++)
        epi_text_add(out, "%c", *at ? *at : ' '); /* a NUL would end the text */
}

/* May a line that is too long go on below from the blank at `p`? Behind commas and operators, and before an
 * arrow, it may. */
static bool may_break(const char *line, const char *p) {
    if (*p != ' ' || p - line < 2)
        return false;
    bool word = p - line > 3 && (!strncmp(p - 4, " and", 4) || !strncmp(p - 3, " or", 3));
    bool arrow = !strncmp(p - 2, "->", 2);
    return word || !strncmp(p, " ->", 3) || (!arrow && strchr(",+-/%@<>=", p[-1]));
}

/* The best place to break the line before `width`: the least nested one, the last of those. NULL: none. */
static const char *find_break(const char *line, const char *from, size_t width) {
    const char *best = NULL;
    int depth = 0, least = 0;
    for (const char *p = line; *p && p < line + width; p++) {
        depth += *p == '(' || *p == '[';
        depth -= *p == ')' || *p == ']';
        if (p > from && may_break(line, p) && (!best || depth <= least)) {
            best = p;
            least = depth;
        }
    }
    return best;
}

/* Adds a line, cut where it is too long; not before `from`. Returns how wide the last piece is. */
static size_t put_line(epi_text *out, const char *line, size_t from, size_t indent) {
    for (size_t gap = indent;; gap = indent + INDENT) {
        size_t room = gap < WIDTH ? WIDTH - gap : 0, n = strlen(line);
        const char *cut = n > room ? find_break(line, line + from, room) : NULL;
        epi_text_add(out, "%*s%.*s", (int)gap, "", cut ? (int)(cut - line) : (int)n, line);
        if (!cut)
            return gap + n;
        epi_text_add(out, "\n");
        line = cut + 1;
        from = 0;
    }
}

/* Comments on lines of their own; *first where nothing stands above them in their list. */
static void put_before(formatter *f, const item *it, int indent, bool *first) {
    for (const comment *c = it->before; c; c = c->next) {
        epi_text_add(f->out, "%s%*s", c->blank && !*first ? "\n" : "", indent, "");
        put_comment(f->out, c);
        epi_text_add(f->out, "\n");
        *first = false;
    }
}

static void put_behind(formatter *f, const item *it) {
    if (it->behind) {
        epi_text_add(f->out, " ");
        put_comment(f->out, it->behind);
    }
    epi_text_add(f->out, "\n");
}

/* Items on lines of their own, a text each. Comments behind neighbouring ones stand below each other. */
typedef struct line {
    const item *it;
    epi_text text;
    size_t from;  /* where it may be broken at the earliest */
    size_t width; /* of its last piece, once it is printed */
} line;

/* How wide the widest is of the lines from i on that have comments side by side. */
static size_t widest(const line *lines, int i, int count, size_t indent) {
    size_t most = 0;
    for (int k = i; k < count && lines[k].it->behind; k++) {
        if (k > i && (lines[k].it->before || lines[k].it->blank))
            break;
        epi_text cut = {0};
        size_t width = put_line(&cut, lines[k].text.data ? lines[k].text.data : "", lines[k].from, indent);
        epi_text_free(&cut);
        most = width > most ? width : most;
    }
    return most;
}

static void put_lines(formatter *f, line *lines, int count, bool *first) {
    size_t column = 0;
    for (int i = 0; i < count; i++) {
        const item *it = lines[i].it;
        bool alone = i == 0 || !lines[i - 1].it->behind || it->before || it->blank;
        put_before(f, it, INDENT, first);
        if (it->blank && !*first)
            epi_text_add(f->out, "\n");
        if (alone)
            column = widest(lines, i, count, INDENT);
        size_t width = put_line(f->out, lines[i].text.data ? lines[i].text.data : "", lines[i].from, INDENT);
        if (it->behind && width < column)
            epi_text_add(f->out, "%*s", (int)(column - width), "");
        put_behind(f, it);
        *first = false;
        f->arena->failed |= lines[i].text.failed;
        epi_text_free(&lines[i].text);
    }
}

/* ---- programs ---- */

static bool has_comments(const item *items, int count) {
    for (int i = 0; i < count; i++)
        if (items[i].before || items[i].behind)
            return true;
    return false;
}

/* Has the list lines of its own? Where it begins on a new one, and where there are comments in it. */
static bool has_lines(const item *opening, const item *items, int count, const item *closing) {
    return opening->behind || closing->before || (count && items->on_line) || has_comments(items, count);
}

/* The lines of a list: the groups that it was written in, or a tensor each. */
static int group_tensors(formatter *f, const item *items, const epi_ast_tensor *tensors, int count,
                         line *lines) {
    int n = 0;
    item *group = NULL;
    for (int i = 0; i < count; i++) {
        epi_text text = {0};
        epi_ast_print_tensor(&tensors[i], &text);
        epi_text_add(&text, i + 1 < count ? "," : "");
        bool full = n && INDENT + lines[n - 1].text.length + 1 + text.length > WIDTH;
        if (!group || full || !items->on_line || items[i].on_line || items[i].before || group->behind) {
            group = epi_arena_alloc(f->arena, sizeof *group);
            if (!group)
                break;
            *group = items[i];
            lines[n++] = (line){.it = group, .text = text};
        } else {
            group->behind = items[i].behind;
            epi_text_add(&lines[n - 1].text, " %s", text.data ? text.data : "");
            lines[n - 1].text.failed |= text.failed;
            epi_text_free(&text);
        }
    }
    return n;
}

/* A list of tensors on lines of its own, after what is on the line already. */
static void put_tensors_below(formatter *f, epi_text *line_text, const item *opening, const item *items,
                              const epi_ast_tensor *tensors, int count, const item *closing) {
    line *lines = epi_arena_alloc(f->arena, (size_t)(count + 1) * sizeof *lines);
    bool first = true;
    if (!lines)
        return;
    put_line(f->out, line_text->data ? line_text->data : "", 0, 0);
    epi_text_free(line_text);
    put_behind(f, opening);
    put_lines(f, lines, group_tensors(f, items, tensors, count, lines), &first);
    put_before(f, closing, INDENT, &first);
}

typedef struct layout {
    item *head, *inputs, *arrow, *outputs, *open, *body, *close;
} layout;

static void put_head(formatter *f, const epi_ast_program *g, const layout *l) {
    epi_text text = {0};
    epi_text_add(&text, "%s(", g->name);
    if (has_lines(l->head, l->inputs, g->input_count, l->arrow))
        put_tensors_below(f, &text, l->head, l->inputs, g->inputs, g->input_count, l->arrow);
    else
        epi_ast_print_tensors(g->inputs, g->input_count, &text);
    epi_text_add(&text, g->output_count > 1 ? ") -> (" : ") -> ");
    if (g->output_count > 1 && has_lines(l->arrow, l->outputs, g->output_count, l->open))
        put_tensors_below(f, &text, l->arrow, l->outputs, g->outputs, g->output_count, l->open);
    else
        epi_ast_print_tensors(g->outputs, g->output_count, &text);
    epi_text_add(&text, g->output_count > 1 ? ")" : "");
    epi_ast_print_by(g, &text);
    epi_text_add(&text, " {");
    put_line(f->out, text.data ? text.data : "", 0, 0);
    put_behind(f, l->open);
    f->arena->failed |= text.failed;
    epi_text_free(&text);
}

static void put_body(formatter *f, const epi_ast_program *g, const layout *l) {
    line *lines = epi_arena_alloc(f->arena, (size_t)(g->body_count + 1) * sizeof *lines);
    bool first = true;
    if (!lines)
        return;
    if (g->output_count == 1) { /* a single output has no line for them */
        item early = {.before = l->arrow->behind};
        put_before(f, &early, INDENT, &first);
        put_before(f, l->open, INDENT, &first);
    }
    for (int i = 0; i < g->body_count; i++) {
        lines[i].it = &l->body[i];
        epi_ast_print_assign(&g->body[i], true, &lines[i].text);
        const char *equals = lines[i].text.data ? strstr(lines[i].text.data, " = ") : NULL;
        lines[i].from = equals ? (size_t)(equals - lines[i].text.data) + 2 : 0;
    }
    put_lines(f, lines, g->body_count, &first);
    put_before(f, l->close, INDENT, &first);
    epi_text_add(f->out, "}");
    put_behind(f, l->close);
}

/* The name and the parenthesis. A comment between them goes to the item behind: before the name it would
 * describe the program. */
static void take_head(formatter *f, item *head) {
    take(f, head);
    comment *own = head->last;
    take(f, head);
    comment **rest = own ? &own->next : &head->before;
    if (!*rest)
        return;
    head[1].before = *rest;
    head[1].last = head->last;
    *rest = NULL;
    head->last = own;
}

/* Takes all tokens of a program for its items. */
static bool take_program(formatter *f, const epi_ast_program *g, layout *l) {
    int outputs = g->output_count > 1 ? g->output_count : 0;
    int count = 4 + g->input_count + outputs + g->body_count;
    item *items = epi_arena_alloc(f->arena, (size_t)count * sizeof *items);
    if (!items)
        return false;
    l->head = items;
    l->inputs = l->head + 1;
    l->arrow = l->inputs + g->input_count;
    l->outputs = l->arrow + 1;
    l->open = l->outputs + outputs;
    l->body = l->open + 1;
    l->close = l->body + g->body_count;
    take_head(f, l->head);
    take_tensors(f, l->inputs, g->input_count);
    take_through(f, l->arrow, outputs ? "(" : "->");
    take_tensors(f, l->outputs, outputs);
    take_through(f, l->open, "{");
    for (int i = 0; i < g->body_count; i++)
        do
            take(f, &l->body[i]);
        while (!at_end(f) && !epi_token_is(&f->token, "}") &&
               !(i + 1 < g->body_count && is_at(f, g->body[i + 1].names[0].place)));
    take(f, l->close);
    return !f->arena->failed;
}

/* A comment behind a program is seen with the token that comes next: so all is taken before it is printed. */
epi_status epi_ast_format(epi_arena *arena, const epi_ast_text *text, epi_text *out, epi_error *err) {
    size_t mark = text->length >= 3 && !memcmp(text->source, "\xef\xbb\xbf", 3) ? 3 : 0;
    const char *begin = text->source + mark, *end = text->source + text->length;
    formatter f = {.arena = arena, .lexer = {begin, end, {1, 1}}, .done = begin, .out = out};
    layout *layouts = epi_arena_alloc(arena, (size_t)(text->program_count + 1) * sizeof *layouts),
           *l = layouts;
    item ending = {0};
    bool first = true;
    f.token = epi_lex(&f.lexer);
    for (const epi_ast_program *g = text->programs; g && layouts && take_program(&f, g, l); g = g->next)
        l++;
    take(&f, &ending);
    l = layouts;
    for (const epi_ast_program *g = text->programs; g && !arena->failed; g = g->next, l++) {
        const comment *above = l->head->before;
        if (g != text->programs && !(above ? above->blank : l->head->blank))
            epi_text_add(out, "\n");
        put_before(&f, l->head, 0, &first);
        if (l->head->blank && !first)
            epi_text_add(out, "\n");
        put_head(&f, g, l);
        put_body(&f, g, l);
        first = false;
    }
    if (!arena->failed)
        put_before(&f, &ending, 0, &first);
    return arena->failed || out->failed ? epi_fail(err, EPI_ERR_MEMORY, "out of memory") : EPI_OK;
}
