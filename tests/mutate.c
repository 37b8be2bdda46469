/* mutate.c: puts one fault into a source file, drawn by a seed from all places where one could be.
 *
 *     mutate SEED DRAW FILE...     changes one of the files in place, and says what it did
 *
 * A fault is a sign, a bound, a comparison, a type, or a store that is left out. Places are found in code
 * alone: not in comments, strings and lines of the preprocessor. tests/mutate.sh builds and tests each. */
#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A place: what stands there, and what takes its place. */
typedef struct site {
    int file;
    size_t at, length;
    const char *kind;
    char with[24];
} site;

typedef struct source {
    const char *name;
    char *text, *code; /* code: the text with blanks for all that is no code */
    size_t length;
} source;

typedef struct sites {
    site *at;
    size_t count, capacity;
} sites;

static void add(sites *s, int file, size_t at, size_t length, const char *kind, const char *with) {
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 1024;
        s->at = realloc(s->at, s->capacity * sizeof *s->at);
        if (!s->at)
            exit(2);
    }
    site *n = &s->at[s->count++];
    *n = (site){.file = file, .at = at, .length = length, .kind = kind};
    snprintf(n->with, sizeof n->with, "%s", with);
}

static bool is_name(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

/* Where a comment, a text in quotes or a line of the preprocessor that begins here ends; or here. */
static size_t skip(const char *t, size_t i, bool line_start) {
    const char *end;
    if (!strncmp(t + i, "/*", 2))
        return (end = strstr(t + i + 2, "*/")) ? (size_t)(end + 2 - t) : strlen(t);
    if (!strncmp(t + i, "//", 2))
        return i + strcspn(t + i, "\n");
    if (t[i] == '"' || t[i] == '\'') {
        char quote = t[i++];
        for (; t[i] && t[i] != quote; i++)
            i += t[i] == '\\' && t[i + 1];
        return i + (t[i] != 0);
    }
    if (t[i] == '#' && line_start) {
        for (; t[i] && t[i] != '\n'; i++)
            i += t[i] == '\\' && t[i + 1];
        return i;
    }
    return i;
}

static void blank_out(source *s) {
    bool line_start = true;
    s->code = strdup(s->text);
    for (size_t i = 0; s->text[i];) {
        size_t end = skip(s->text, i, line_start);
        for (size_t k = i; k < end; k++)
            if (s->code[k] != '\n')
                s->code[k] = ' ';
        if (end == i) {
            line_start = s->text[i] == '\n' || (line_start && isspace((unsigned char)s->text[i]));
            end = i + 1;
        }
        i = end;
    }
}

static source read_source(const char *name) {
    source s = {.name = name};
    FILE *f = fopen(name, "rb");
    if (!f || fseek(f, 0, SEEK_END) || (s.length = (size_t)ftell(f)) > 1u << 24 || fseek(f, 0, SEEK_SET) ||
        !(s.text = calloc(s.length + 1, 1)) || fread(s.text, 1, s.length, f) != s.length) {
        fprintf(stderr, "mutate: %s cannot be read\n", name);
        exit(2);
    }
    fclose(f);
    blank_out(&s);
    return s;
}

/* Words and signs with what takes their place. Layout is clang-format's, so an operator of two operands has
 * blanks around it. */
static const struct rule {
    const char *kind, *old, *with;
} rules[] = {
    {"comparison", " < ", " <= "},   {"comparison", " <= ", " < "},   {"comparison", " > ", " >= "},
    {"comparison", " >= ", " > "},   {"comparison", " == ", " != "},  {"comparison", " != ", " == "},
    {"sign", " + ", " - "},          {"sign", " - ", " + "},          {"sign", " += ", " -= "},
    {"sign", " -= ", " += "},        {"type", "EPI_F32", "EPI_BF16"}, {"type", "EPI_BF16", "EPI_F16"},
    {"type", "EPI_F16", "EPI_BF16"}, {"comparison", " && ", " || "},  {"comparison", " || ", " && "},
};

static void find_rules(sites *out, int file, const char *code, size_t i) {
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        size_t n = strlen(rules[r].old);
        bool word = is_name(rules[r].old[0]);
        if (!strncmp(code + i, rules[r].old, n) &&
            !(word && ((i && is_name(code[i - 1])) || is_name(code[i + n]))))
            add(out, file, i, n, rules[r].kind, rules[r].with);
    }
}

/* An integer, not a part of a name or of a number with a point. */
static void find_bound(sites *out, int file, const char *code, size_t i) {
    size_t n = strspn(code + i, "0123456789");
    char with[24];
    if (!n || n > 9 || (i && (is_name(code[i - 1]) || code[i - 1] == '.')) || is_name(code[i + n]) ||
        code[i + n] == '.')
        return;
    snprintf(with, sizeof with, "%ld", strtol(code + i, NULL, 10) + 1);
    add(out, file, i, n, "bound", with);
}

/* A line that is one assignment and declares nothing: what is left of the sign has no blank outside of
 * brackets. */
static void find_store(sites *out, int file, const char *code, size_t line) {
    size_t n = strcspn(code + line, "\n"), i = line + strspn(code + line, " "), depth = 0, k = i;
    if (n < 5 || code[line + n - 1] != ';' || (!isalpha((unsigned char)code[i]) && code[i] != '*'))
        return;
    for (; k < line + n && (depth || code[k] != ' '); k++)
        depth += (size_t)(code[k] == '[' || code[k] == '(') - (size_t)(code[k] == ']' || code[k] == ')');
    k += code[k] == ' ';
    size_t sign = code[k] == '=' ? 1 : strchr("+-*|&/", code[k]) && code[k + 1] == '=' ? 2 : 0;
    if (sign && code[k + sign] == ' ')
        add(out, file, i, line + n - i, "store", ";");
}

static void find(sites *out, int file, const source *s) {
    for (size_t i = 0; s->code[i]; i++) {
        find_rules(out, file, s->code, i);
        find_bound(out, file, s->code, i);
        if (!i || s->code[i - 1] == '\n')
            find_store(out, file, s->code, i);
    }
}

/* Prints where it is, of which kind, and the line before and after. */
static void tell(const source *s, const site *at) {
    size_t line = at->at, number = 1;
    while (line && s->text[line - 1] != '\n')
        line--;
    for (size_t i = 0; i < line; i++)
        number += s->text[i] == '\n';
    size_t blanks = strspn(s->text + line, " "), n = strcspn(s->text + line, "\n"), end = at->at + at->length;
    printf("%s:%zu: %s: %.*s => %.*s%s%.*s\n", s->name, number, at->kind, (int)(n - blanks),
           s->text + line + blanks, (int)(at->at - line - (blanks < at->at - line ? blanks : 0)),
           s->text + line + (blanks < at->at - line ? blanks : 0), at->with, (int)(line + n - end),
           s->text + end);
}

static void change(const source *s, const site *at) {
    FILE *f = fopen(s->name, "wb");
    if (!f || fwrite(s->text, 1, at->at, f) != at->at || fputs(at->with, f) < 0 ||
        fputs(s->text + at->at + at->length, f) < 0 || fclose(f)) {
        fprintf(stderr, "mutate: %s cannot be written\n", s->name);
        exit(2);
    }
}

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: mutate SEED DRAW FILE...\n");
        return 2;
    }
    int files = argc - 3;
    source *all = calloc((size_t)files, sizeof *all);
    sites found = {0};
    for (int i = 0; i < files && all; i++) {
        all[i] = read_source(argv[i + 3]);
        find(&found, i, &all[i]);
    }
    if (!found.count)
        return 2;
    uint64_t drawn =
        mix(mix(strtoull(argv[1], NULL, 10) + 0x9e3779b97f4a7c15u) + strtoull(argv[2], NULL, 10));
    const site *at = &found.at[drawn % found.count];
    tell(&all[at->file], at);
    change(&all[at->file], at);
    return 0;
}
