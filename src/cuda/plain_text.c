/* plain_text.c: reduces CUDA source to what the compiler sees: no comments, and numbers in place of names of
 * values.
 *
 * Emitters name a value by the program's own word and its number on the tile: gate_v7, then _0, _c or the
 * like. The words are for readers. Here each name becomes n0, n1, ... in the order of appearance. Distinct
 * names stay distinct, so two sources that are equal afterwards differ only in names. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/jit.h"

typedef struct word {
    const char *at;
    size_t length;
} word;

typedef struct words {
    word *list;
    size_t count, room;
} words;

static bool in_name(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

/* The number of a word, which is a new one where it was not there; negative: there is no memory. */
static long number_of(words *w, const char *at, size_t length) {
    for (size_t i = 0; i < w->count; i++)
        if (w->list[i].length == length && !memcmp(w->list[i].at, at, length))
            return (long)i;
    if (w->count == w->room) {
        size_t room = 2 * w->room + 64;
        word *list = realloc(w->list, room * sizeof *list);
        if (!list)
            return -1;
        w->list = list;
        w->room = room;
    }
    w->list[w->count] = (word){at, length};
    return (long)w->count++;
}

/* How long the word of a value's name is: what is before its last _v and a digit. 0: it is no such name. */
static size_t word_length(const char *name, size_t length) {
    for (size_t i = length; i-- > 1;)
        if (name[i] == '_' && i + 2 < length && name[i + 1] == 'v' && isdigit((unsigned char)name[i + 2]))
            return i;
    return 0;
}

/* A name or number as it goes into the plain text; NULL: there is no memory. */
static char *put_name(words *w, const char *name, size_t length, char *to) {
    size_t head = isdigit((unsigned char)*name) ? 0 : word_length(name, length);
    long number = head ? number_of(w, name, head) : 0;
    if (number < 0)
        return NULL;
    if (head)
        to += sprintf(to, "n%ld", number);
    memcpy(to, name + head, length - head);
    return to + length - head;
}

/* The length of a text in quotes, with them. */
static size_t quoted(const char *at) {
    size_t i = 1;
    for (; at[i] && at[i] != '"'; i++)
        i += at[i] == '\\' && at[i + 1];
    return i + (at[i] == '"');
}

char *epi_plain_text(const char *source) {
    words w = {0};
    enum { LONGEST_NUMBER = 20, SHORTEST_NAME = 4 }; /* a_v0 */
    size_t length = strlen(source);
    char *out = malloc(length / SHORTEST_NAME * LONGEST_NUMBER + length + LONGEST_NUMBER + 1), *to = out;
    for (const char *at = source; *at && to;) {
        size_t n = 1;
        if (at[0] == '/' && at[1] == '/') {
            at += strcspn(at, "\n");
            continue;
        }
        if (*at == '"')
            n = quoted(at);
        for (; in_name(*at) && in_name(at[n]);)
            n++;
        if (in_name(*at)) {
            to = put_name(&w, at, n, to);
        } else {
            memcpy(to, at, n);
            to += n;
        }
        at += n;
    }
    if (to)
        *to = 0;
    else
        free(out);
    free(w.list);
    return to ? out : NULL;
}
