/* law_text.h: what can be done to a text without knowing what it means: other names of axes, inputs in
 * another order. */
#ifndef EPI_TESTS_LAW_TEXT_H
#define EPI_TESTS_LAW_TEXT_H

#include <ctype.h>

#include "law_run.h"

enum { LAW_TEXT = 1 << 16 };

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

/* The length of a comment at `at`, with its line end; 0 where there is none. */
static size_t comment_at(const char *at) {
    return *at == '#' ? strcspn(at, "\n") : 0;
}

/* The text with every axis of `sizes` under another name, and the sizes with it. Names are given in reverse,
 * so that nothing can go by their order. */
static bool rename_axes(const char *text, const law_sizes *from, char *out, size_t size, law_sizes *to) {
    size_t n = 0;
    *to = *from;
    for (int i = 0; i < from->count; i++)
        snprintf(to->name[i], sizeof to->name[i], "Q%dq", from->count - i);
    for (const char *at = text; *at && n + 32 < size;) {
        size_t skip = comment_at(at), length = 0;
        if (skip || !is_word(*at)) {
            at += skip;
            out[n++] = *at;
            at += *at != 0;
            continue;
        }
        while (is_word(at[length]))
            length++;
        int which = -1;
        for (int i = 0; i < from->count; i++)
            if (strlen(from->name[i]) == length && !memcmp(from->name[i], at, length))
                which = i;
        n += (size_t)snprintf(out + n, size - n, "%.*s",
                              (int)(which < 0 ? (int)length : (int)strlen(to->name[which])),
                              which < 0 ? at : to->name[which]);
        at += length;
    }
    out[n] = 0;
    return n + 32 < size;
}

/* Where the program of this name begins: at the start of a line, before a parenthesis. */
static const char *find_head(const char *text, const char *name) {
    size_t length = strlen(name);
    for (const char *at = text; at; at = strchr(at, '\n'), at += at != NULL)
        if (!strncmp(at, name, length) && at[length] == '(')
            return at;
    return NULL;
}

/* The parts between commas of a list that begins behind an opening parenthesis: where each one starts and, as
 * the last, where the list is closed. */
static int split_list(const char *at, const char **parts, int most) {
    int count = 0, depth = 0;
    parts[count++] = at;
    for (; *at && depth >= 0 && count < most; at++) {
        depth += (*at == '(' || *at == '[') - (*at == ')' || *at == ']');
        if ((*at == ',' && depth == 0) || depth < 0)
            parts[count++] = at + 1;
    }
    return depth < 0 ? count - 1 : 0;
}

/* The text with the inputs of one program in reverse. */
static bool reverse_inputs(const char *text, const char *name, char *out, size_t size) {
    const char *head = find_head(text, name), *parts[MAX_TENSORS];
    int count = head ? split_list(head + strlen(name) + 1, parts, MAX_TENSORS) : 0;
    if (count < 2 || strlen(text) + 64 > size)
        return false;
    size_t n = (size_t)(parts[0] - text);
    memcpy(out, text, n);
    for (int i = count - 1; i >= 0; i--) {
        size_t length = (size_t)(parts[i + 1] - parts[i]) - 1;
        n += (size_t)snprintf(out + n, size - n, "%.*s%s", (int)length, parts[i], i ? ", " : ")");
    }
    snprintf(out + n, size - n, "%s", parts[count]);
    return true;
}

/* The text with every value that has a line of its own declared as f32, and every output whose type is open
 * or a float. Types of inputs stay. */
static bool declare_all(const char *text, const char *name, char *out, size_t size) {
    const char *head = find_head(text, name), *arrow = head ? strstr(head, ") -> (") : NULL,
               *body = arrow ? strchr(arrow, '{') : NULL;
    size_t n = body ? (size_t)(arrow + 6 - text) : 0;
    if (!body || strlen(text) * 2 > size)
        return false;
    memcpy(out, text, n);
    for (const char *at = arrow + 6; at < body; at++) {
        if (is_word(*at) && !is_word(at[-1]) && (at[-1] == ' ' || at[-1] == '(') && at[-2] != ':') {
            while (is_word(*at))
                out[n++] = *at++;
            n += (size_t)snprintf(out + n, size - n, ": f32");
            at += *at == ':' ? 1 + strspn(at + 1, " abcdefghijklmnopqrstuvwxyz0123456789") : 0;
        }
        out[n++] = *at;
    }
    for (const char *line = body; *line; line++) {
        char one[64], type[8];
        int length = 0;
        bool typed =
            sscanf(line, "\n    %40[a-z0-9_]: %7[a-z0-9]%n", one, type, &length) == 2 && line[length] == ' ';
        bool plain = !typed && sscanf(line, "\n    %40[a-z0-9_]%n", one, &length) == 1 &&
                     !strncmp(line + length, " = ", 3);
        if (*line == '\n' && (typed || plain) && one[0] != 'y') {
            n += (size_t)snprintf(out + n, size - n, "\n    %s: f32", one);
            line += length - 1;
        } else
            out[n++] = *line;
    }
    out[n] = 0;
    return true;
}

#endif
