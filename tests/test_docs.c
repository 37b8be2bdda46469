/* test_docs.c: the examples of the documents do what they say, and files of programs (.epi) are laid out
 * well.
 *
 * What stands behind the three backquotes says what a block is; NAME=SIZE,... after that sets sizes
 * that are not 6, and a last word `gemm`, `rows` or `passes` is the mainloop that the last program must get.
 *
 *     epi            checks, prints back, is laid out anew, and runs fused within the error rule, in f32 and
 *                    in bf16
 *     epi-error      fails; the `text` block after it is the formatted error, byte for byte
 *     epi-value      programs without inputs; the `text` block after it is what they compute
 *
 * These follow an `epi` block and are about its last program:
 *
 *     plan           lines that its description must have
 *     grad           its gradients as they are printed, by the inputs that stand behind the word
 *     grad-forward   the same as two programs
 *     rewritten      what the algebra makes of it
 *
 * Pages are Markdown; tests/messages.txt is one, too, with the messages about texts.
 *
 *     docs --update PAGE...    writes the messages of today into the `text` blocks behind `epi-error`
 */
#include <ctype.h>

#include "lang/words.h"
#include "ran.h"

enum { SIZE = 6, MAX_BLOCKS = 1024, TEXT = 65536 };

typedef struct block {
    char info[80];
    const char *text;
    size_t length;
    int line;
} block;

static epi_context *context;
static const char *path; /* of the file */
static bool updates;     /* pages get the messages of today */

static bool is(const block *b, const char *kind) {
    size_t n = strcspn(b->info, " ");
    return strlen(kind) == n && memcmp(b->info, kind, n) == 0;
}

/* ---- blocks ---- */

static int find_blocks(const char *text, block *out) {
    int count = 0, line = 1;
    block *open = NULL;
    for (const char *at = text; *at; line++) {
        size_t n = strcspn(at, "\n");
        bool fence = strncmp(at, "```", 3) == 0;
        if (fence && open) {
            open->length = (size_t)(at - open->text);
            open = NULL;
        } else if (fence && count < MAX_BLOCKS) {
            open = &out[count++];
            *open = (block){.text = at + n + (at[n] != 0), .line = line};
            snprintf(open->info, sizeof open->info, "%.*s", (int)(n - 3), at + 3);
        }
        at += n + (at[n] != 0);
    }
    return count;
}

/* Sizes for a program: what the text fixes, what stands behind the block, SIZE. */
static const char *dims_of(const block *b, const epi_program *p) {
    static char dims[2000];
    size_t at = 0;
    dims[0] = 0;
    for (int d = 0; d < epi_program_dim_count(p); d++) {
        const char *name = epi_program_dim(p, d);
        int64_t fixed = epi_program_dim_size(p, d), size = fixed ? fixed : SIZE;
        for (const char *c = fixed ? NULL : strpbrk(b->info, " ,"); c; c = strpbrk(c + 1, " ,"))
            if (!strncmp(c + 1, name, strlen(name)) && c[1 + strlen(name)] == '=')
                size = strtol(c + strlen(name) + 2, NULL, 10);
        at += (size_t)snprintf(dims + at, sizeof dims - at, "%s%s=%ld", d ? "," : "", name, size);
    }
    return dims;
}

/* ---- running ---- */

/* Numbers that every type holds exactly and whose products f32 adds exactly: a comparison of them comes
 * out the same on every path. Vectors and scalars are positive; indices lie within an axis. */
static void fill(problem *p, uint64_t seed) {
    (void)seed;
    for (int t = 0; t < p->inputs; t++) {
        const epi_tensor_shape *s = &p->t[t].shape;
        uint64_t state = 12345u + (uint64_t)t;
        int below = s->index_below > 0 ? (int)s->index_below : SIZE;
        for (int64_t i = 0; i < s->count; i++) {
            int x = random_below(&state, 64);
            double real = s->rank > 1 ? (x - 32) / 32.0 : (x + 16) / 64.0;
            put_at(&p->t[t], i, s->type == EPI_I32 ? x % below : real);
        }
    }
}

/* ---- what a block claims ---- */

/* Says what is wrong with a block; `what` may be several lines. Returns false. */
static bool wrong(const block *b, const char *why, const char *what) {
    printf("%s:%d: %s: %s\n", path, b->line, why, what);
    return false;
}

static bool wrong_error(const block *b, const epi_error *err) {
    char text[2048];
    epi_error_format(err, text, sizeof text);
    return wrong(b, "fails", text);
}

/* Of a program in f32, as the block says; NULL, and told, where it does not compile. */
static epi_kernel *compiled(const block *b, const epi_program *p) {
    epi_kernel *k;
    epi_error err;
    if (compile_as(p, dims_of(b, p), (way){0}, &k, &err) != EPI_OK)
        wrong_error(b, &err);
    return k;
}

/* The rule, as of results that are stored in f32 between parts. */
static bool is_close(const block *b, const epi_program *p, epi_dtype type) {
    const char *dims = dims_of(b, p);
    const way how = {.type = type, .fill = fill};
    const int before = failed_count;
    ran out, ref = {0}, naive = {0};
    if (run_as(&out, p, dims, how) && yardsticks(&ref, &naive, p, dims, how))
        hold_against(&out, &ref, &naive, EPI_F32, epi_program_name(p));
    DISCARD(&out, &ref, &naive);
    return failed_count == before ||
           wrong(b, "does not run, or is too far from the reference", epi_program_name(p));
}

/* The programs of a module, printed one after the other. */
static void print_module(const epi_module *m, char *out) {
    size_t n = 0;
    *out = 0;
    for (int i = 0; i < epi_module_count(m) && n < TEXT; i++)
        n += epi_program_print(epi_module_program(m, i), out + n, TEXT - n);
}

/* A text means what a module does: its programs print the same. */
static bool means(const block *b, const char *text, const epi_module *m, const char *otherwise) {
    static char first[TEXT], again[TEXT];
    epi_module *back;
    epi_error err;
    if (epi_module_parse(context, text, strlen(text), "written anew", &back, &err) != EPI_OK)
        return wrong_error(b, &err);
    print_module(m, first);
    print_module(back, again);
    epi_module_free(back);
    return !strcmp(first, again) || wrong(b, otherwise, again);
}

/* ---- laid out anew ---- */

static char *laid_out(const block *b, const char *text, size_t length) {
    size_t n;
    epi_error err;
    if (epi_format(text, length, path, NULL, 0, &n, &err) != EPI_OK) {
        wrong_error(b, &err);
        return NULL;
    }
    char *out = malloc(n + 1);
    if (out && epi_format(text, length, path, out, n + 1, &n, &err) == EPI_OK && strlen(out) == n)
        return out;
    free(out);
    return NULL;
}

/* The next comment from `at` on, without the blanks around it; NULL past the last. */
static const char *next_comment(const char *at, const char *end, size_t *length) {
    const char *c = memchr(at, '#', (size_t)(end - at));
    if (!c)
        return NULL;
    const char *to = memchr(c, '\n', (size_t)(end - c));
    for (to = to ? to : end, c++; c < to && *c == ' '; c++)
        ;
    while (to > c && (to[-1] == ' ' || to[-1] == '\t'))
        to--;
    *length = (size_t)(to - c);
    return c;
}

/* Every comment of one text is in the other, and there are no others. */
static bool keeps_comments(const block *b, const char *text, size_t length, const char *after) {
    const char *end = after + strlen(after);
    size_t n, m;
    int more = 0;
    for (const char *c = text; (c = next_comment(c, text + length, &n)); c += n, more--) {
        const char *d = after;
        while ((d = next_comment(d, end, &m)) && !(m == n && memcmp(c, d, n) == 0))
            d += m;
        if (!d)
            return wrong(b, "laid out anew it lacks a comment", after);
    }
    for (const char *d = after; (d = next_comment(d, end, &m)); d += m)
        more++;
    return !more || wrong(b, "laid out anew it has other comments", after);
}

/* The text laid out anew means the same, has the comments, and stays as it is the second time. */
static bool lays_out(const block *b, const char *text, size_t length, const epi_module *m) {
    char *once = laid_out(b, text, length), *twice = once ? laid_out(b, once, strlen(once)) : NULL;
    bool ok = twice && (!strcmp(once, twice) || wrong(b, "laid out twice it differs", twice)) &&
              keeps_comments(b, text, length, once) &&
              means(b, once, m, "laid out anew it means something else");
    free(once);
    free(twice);
    return ok;
}

static bool has_mainloop(const block *b, const epi_program *p) {
    const char *word = strrchr(b->info, ' ');
    if (!word || strchr(word, '='))
        return true;
    epi_kernel *k = compiled(b, p);
    const char *got = k ? info_of(k).mainloop : "";
    bool ok = k && (!strcmp(got, word + 1) || wrong(b, "gets the mainloop", got));
    epi_kernel_free(k);
    return ok;
}

static bool check_example(const block *b, const epi_module *m) {
    static char printed[TEXT];
    int count = epi_module_count(m);
    bool ok = count > 0 || wrong(b, "has", "no program");
    for (int i = 0; i < count && ok; i++) {
        const epi_program *p = epi_module_program(m, i);
        ok = is_close(b, p, EPI_F32) && is_close(b, p, EPI_BF16);
    }
    print_module(m, printed);
    return ok && has_mainloop(b, last_of(m)) && means(b, printed, m, "prints differently the second time");
}

static bool same_as(const block *b, const char *text, size_t length) {
    return b->length == length && memcmp(b->text, text, length) == 0;
}

/* Is `line` one of the lines of `text`? */
static bool has_line(const char *text, const char *line, size_t n) {
    for (; *text; text += strcspn(text, "\n"), text += *text == '\n')
        if (strcspn(text, "\n") == n && memcmp(text, line, n) == 0)
            return true;
    return false;
}

static bool check_plan(const block *b, const block *example, const epi_module *m) {
    epi_kernel *k = compiled(example, last_of(m));
    char how[4096] = "";
    epi_kernel_describe(k, how, sizeof how);
    epi_kernel_free(k);
    bool ok = true;
    for (const char *at = b->text; at < b->text + b->length && ok; at += strcspn(at, "\n") + 1)
        ok = has_line(how, at, strcspn(at, "\n")) || wrong(b, "is not all in", how);
    return ok;
}

static bool check_grad(const block *b, const epi_module *m) {
    char got[TEXT];
    size_t n = 0;
    epi_module *gradients = derived(last_of(m), b->info + strcspn(b->info, " "),
                                    is(b, "grad") ? epi_program_grad : epi_program_grad_saved);
    for (int i = 0; i < epi_module_count(gradients) && n < TEXT - 2; i++) {
        n += (size_t)snprintf(got + n, TEXT - n, "%s", i ? "\n" : "");
        n += epi_program_print(epi_module_program(gradients, i), got + n, TEXT - n);
    }
    epi_module_free(gradients);
    return same_as(b, got, n) || wrong(b, "grad prints", got);
}

/* What the algebra makes of the last program, at the sizes that the block names. */
static bool check_rewritten(const block *b, const epi_module *m) {
    char got[TEXT] = "";
    epi_kernel *k = compiled(b, last_of(m));
    size_t n = epi_kernel_print(k, got, sizeof got);
    epi_kernel_free(k);
    return same_as(b, got, n) || wrong(b, "it is rewritten as", got);
}

/* The error of a text that does not parse, check or, if sizes are given, compile. */
static bool fails(const block *b, epi_error *err) {
    epi_module *m;
    if (epi_module_parse(context, b->text, b->length, "example.epi", &m, err) != EPI_OK)
        return true;
    bool yes = false;
    for (int i = 0; i < epi_module_count(m) && !yes && strchr(b->info, '='); i++) {
        const epi_program *p = epi_module_program(m, i);
        epi_kernel *k;
        yes = compile_as(p, dims_of(b, p), (way){0}, &k, err) != EPI_OK;
        epi_kernel_free(k);
    }
    epi_module_free(m);
    return yes;
}

static bool same_text(const block *b, const char *got) {
    size_t n = strlen(got);
    bool same = b->length == n + 1 && memcmp(b->text, got, n) == 0 && b->text[n] == '\n';
    return same || wrong(b, "the text is not", got);
}

static bool check_error(const block *b, const block *expected) {
    epi_error err;
    char got[2048];
    if (!fails(b, &err))
        return wrong(b, "does not fail", "");
    epi_error_format(&err, got, sizeof got);
    return same_text(expected, got);
}

/* The page with the messages of today, and the caret and line that go with them. */
static bool update(const char *text, const block *blocks, int count) {
    FILE *out = fopen(path, "w");
    const char *done = text;
    for (int i = 0; i + 1 < count && out; i++) {
        const block *to = &blocks[i + 1];
        epi_error err;
        char got[2048];
        if (!is(&blocks[i], "epi-error") || !is(to, "text") || !fails(&blocks[i], &err))
            continue;
        epi_error_format(&err, got, sizeof got);
        fprintf(out, "%.*s%s\n", (int)(to->text - done), done, got);
        done = to->text + to->length;
    }
    return out && fprintf(out, "%s", done) >= 0 && fclose(out) == 0;
}

/* Prints the outputs of a program on one path, a line each. */
static bool print_values(const block *b, const epi_program *p, epi_path of, char *out) {
    ran r;
    bool ok = run_as(&r, p, dims_of(b, p), (way){.path = of, .fill = fill, .narrow = true}) ||
              wrong(b, "does not run", epi_program_name(p));
    size_t n = 0;
    for (int t = 0; t < r.p.count && ok; t++) {
        n += (size_t)snprintf(out + n, TEXT - n, "%s%s =", n ? "\n" : "", tensor_name(p, t));
        for (int64_t i = 0; i < r.p.t[t].shape.count && n < TEXT - 256; i++) {
            double x = at(&r.p.t[t], i);
            const char *form = isnan(x) ? " nan" : x == rint(x) ? " %.0f" : " %g";
            n += (size_t)snprintf(out + n, TEXT - n, form, x);
        }
    }
    discard(&r);
    return ok;
}

static bool check_values(const block *b, const block *expected, const epi_module *m) {
    static char got[TEXT];
    const epi_program *p = last_of(m);
    return print_values(b, p, EPI_PATH_FUSED, got) && same_text(expected, got) &&
           print_values(b, p, EPI_PATH_NAIVE, got) && same_text(expected, got);
}

/* ---- every operation has an example ---- */

static bool seen[EPI_OP_COUNT];

static size_t token_length(const char *at) {
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789.";
    size_t n = strspn(at, word);
    bool two = (strchr("<>=!-", at[0]) && (at[1] == '=' || at[1] == '>')) || !strncmp(at, "//", 2);
    return n ? n : two ? 2 : 1;
}

/* Marks the operations that occur between braces, outside comments. */
static void mark_operations(const block *b) {
    bool body = false;
    for (const char *at = b->text; at < b->text + b->length;) {
        size_t n = *at == '#' ? strcspn(at, "\n") : token_length(at);
        body = *at == '{' || (body && *at != '}');
        for (int i = 0; i < EPI_OP_COUNT && body; i++)
            seen[i] |= strlen(epi_ops[i].text) == n && memcmp(epi_ops[i].text, at, n) == 0;
        at += n;
    }
}

/* ---- the page for language models ---- */

/* Does a `code` of the text have this name in it, apart from others? */
static bool names(const char *text, const char *name) {
    size_t n = strlen(name);
    bool code = false;
    for (const char *at = text; *at;) {
        size_t length = token_length(at);
        if (*at == '`')
            code = !code;
        if (code && length == n && memcmp(at, name, n) == 0)
            return true;
        at += length;
    }
    return false;
}

static void want_name(const char *text, const char *name) {
    if (*name)
        check(names(text, name), "%s names '%s'", path, name);
}

/* It names every operation, word and type of the tables, and is short. */
static void check_llms(const char *text) {
    int words = 0;
    for (const char *at = text; *at; at++)
        words += !isspace((unsigned char)at[0]) && (!at[1] || isspace((unsigned char)at[1]));
    check(words <= 4200, "%s has %d words, more than 4200", path, words);
    for (int i = 0; i < EPI_OP_COUNT; i++)
        want_name(text, epi_ops[i].text);
    for (int i = 0; epi_word_at(i); i++)
        want_name(text, epi_word_at(i)->name);
    for (int i = 0; epi_maker_at(i); i++)
        want_name(text, epi_maker_at(i));
}

/* ---- syntax files of editors ---- */

/* The next of the words that stand side by side with `|` or `\|` between them; NULL past the last. */
static const char *next_listed(const char *text, const char *at, size_t *length) {
    static const char word[] = "abcdefghijklmnopqrstuvwxyz_0123456789";
    for (; *at; at += *length ? *length : 1) {
        *length = strspn(at, word);
        const char *behind = at + *length;
        bool first = *behind == '|' || !strncmp(behind, "\\|", 2);
        if (*length && isalpha((unsigned char)*at) && (first || (at > text && at[-1] == '|')))
            return at;
    }
    return NULL;
}

static bool is_in(const char *name, const char *const *list, int count) {
    for (int i = 0; i < count; i++)
        if (!strcmp(name, list[i]))
            return true;
    return false;
}

/* Words that stand in quotes in the grammar of docs/language.md, which is read before the editors' files. */
static char grammar[64][20];
static const char *grammar_words[64];
static int grammar_count;

static void read_grammar(const block *b) {
    for (const char *at = b->text; at < b->text + b->length; at++) {
        size_t n = *at == '"' ? strspn(at + 1, "abcdefghijklmnopqrstuvwxyz0123456789") : 0;
        if (n && n < 20 && at[n + 1] == '"' && isalpha((unsigned char)at[1]) && grammar_count < 64) {
            char *word = grammar[grammar_count];
            snprintf(word, 20, "%.*s", (int)n, at + 1);
            grammar_words[grammar_count++] = word;
        }
    }
    for (int i = 0; epi_maker_at(i); i++)
        check(is_in(epi_maker_at(i), grammar_words, grammar_count), "the grammar of %s has '%s'", path,
              epi_maker_at(i));
}

/* A syntax file lists the words of the language, all and no others. */
static void check_editor(const char *text) {
    const char *want[EPI_OP_COUNT + 128], *listed[EPI_OP_COUNT + 128];
    int count = 0, listed_count = 0;
    size_t n;
    check(grammar_count > 0, "the grammar comes before %s", path);
    for (int i = 0; i < grammar_count; i++)
        want[count++] = grammar[i];
    for (int i = 0; i < EPI_OP_COUNT; i++)
        if (isalpha((unsigned char)epi_ops[i].text[0]) && !is_in(epi_ops[i].text, want, count))
            want[count++] = epi_ops[i].text;
    for (int i = 0; epi_word_at(i); i++)
        want[count++] = epi_word_at(i)->name;
    for (int i = 0; i < EPI_DTYPE_COUNT; i++)
        want[count++] = epi_dtype_name((epi_dtype)i);
    for (const char *at = text; (at = next_listed(text, at, &n)) && listed_count < EPI_OP_COUNT + 128;
         at += n) {
        char *name = strndup(at, n);
        if (!name)
            break;
        check(is_in(name, want, count), "%s lists '%s', a word of the language", path, name);
        listed[listed_count++] = name;
    }
    for (int i = 0; i < count; i++)
        check(is_in(want[i], listed, listed_count), "%s lists '%s'", path, want[i]);
    for (int i = 0; i < listed_count; i++)
        free((void *)listed[i]);
}

/* ---- the file ---- */

/* `check` has nothing to say of it but what is not used. */
static bool has_no_notes(const block *b, const epi_module *m) {
    static char notes[TEXT];
    for (int i = 0; i < epi_module_count(m); i++) {
        epi_program_warnings(epi_module_program(m, i), notes, sizeof notes);
        for (char *line = strtok(notes, "\n"); line; line = strtok(NULL, "\n"))
            if (!strstr(line, "is not used"))
                return wrong(b, "is warned of", line);
    }
    return true;
}

static bool check_block(const block *b, const block *next) {
    epi_module *m;
    epi_error err;
    if (is(b, "epi-error"))
        return is(next, "text") ? check_error(b, next) : wrong(b, "is followed by no", "text");
    if (epi_module_parse(context, b->text, b->length, "example.epi", &m, &err) != EPI_OK)
        return wrong_error(b, &err);
    bool ok = lays_out(b, b->text, b->length, m) && has_no_notes(b, m);
    if (ok && is(b, "epi-value")) {
        ok = is(next, "text") ? check_values(b, next, m) : wrong(b, "is followed by no", "text");
    } else if (ok) {
        mark_operations(b);
        ok = check_example(b, m) && (!is(next, "plan") || check_plan(next, b, m));
        for (; ok && (is(next, "grad") || is(next, "grad-forward")); next++)
            ok = check_grad(next, m);
        if (ok && is(next, "rewritten"))
            ok = check_rewritten(next, m);
    }
    epi_module_free(m);
    return ok;
}

/* A file of programs is laid out as it should be. */
static bool check_program_file(const char *text, size_t length) {
    const block b = {.text = text, .length = length, .line = 1};
    epi_module *m;
    epi_error err;
    if (epi_module_parse(context, text, length, path, &m, &err) != EPI_OK)
        return wrong_error(&b, &err);
    char *out = laid_out(&b, text, length);
    bool ok = lays_out(&b, text, length, m) && out && has_no_notes(&b, m);
    ok = ok && ((strlen(out) == length && memcmp(out, text, length) == 0) ||
                wrong(&b, "is not laid out as 'epilog fmt' does it", "run that"));
    free(out);
    epi_module_free(m);
    return ok;
}

static void check_page(const char *text, const block *blocks, int count) {
    if (strstr(path, "llms.txt"))
        check_llms(text);
    for (int i = 0; i < count; i++)
        if (!strcmp(blocks[i].info, "ebnf") && strstr(path, "language.md"))
            read_grammar(&blocks[i]);
    for (int i = 0; i < count; i++)
        if (!strncmp(blocks[i].info, "epi", 3))
            check(check_block(&blocks[i], &blocks[i + 1]), "%s:%d", path, blocks[i].line);
}

static bool check_file(void) {
    static block blocks[MAX_BLOCKS + 1];
    size_t length;
    bool ok = true;
    char *text = read_whole(path, &length);
    if (!text) {
        printf("%s cannot be read\n", path);
        return false;
    }
    memset(blocks, 0, sizeof blocks);
    if (!strcmp(path + strlen(path) - 4, ".epi"))
        check(check_program_file(text, length), "%s", path);
    else if (strstr(path, "editors/"))
        check_editor(text);
    else if (updates)
        ok = update(text, blocks, find_blocks(text, blocks));
    else
        check_page(text, blocks, find_blocks(text, blocks));
    free(text);
    return ok;
}

int main(int argc, char **argv) {
    if (argc < 2 || epi_context_open(&context, NULL) != EPI_OK) {
        printf("usage: test_docs [--update] PAGE.md... PROGRAMS.epi...\n");
        return 1;
    }
    updates = !strcmp(argv[1], "--update");
    for (int i = 1 + updates; i < argc; i++) {
        path = argv[i];
        if (!check_file())
            return 1;
    }
    for (int i = 0; i < EPI_OP_COUNT && !updates; i++)
        check(!epi_ops[i].text[0] || seen[i], "the operation '%s' has an example", epi_ops[i].text);
    epi_context_close(context);
    return finish();
}
