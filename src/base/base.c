/* base.c: errors, the arena and the growing text. */
#include "base/base.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

epi_status epi_fail(epi_error *err, epi_status status, const char *fmt, ...) {
    if (!err)
        return status;
    epi_error_clear(err);
    err->status = status;
    va_list args;
    va_start(args, fmt);
    vsnprintf(err->message, sizeof err->message, fmt, args);
    va_end(args);
    return status;
}

epi_status epi_has_memory(bool got, epi_error *err) {
    return got ? EPI_OK : epi_fail(err, EPI_ERR_MEMORY, "out of memory");
}

epi_status epi_fail_internal(epi_error *err, epi_place at, const char *what, const char *file, int line) {
    epi_fail(err, EPI_ERR_INTERNAL, "internal error: %s (%s:%d)", what, file, line);
    if (err) {
        err->line = at.line;
        err->column = at.column;
    }
    return EPI_ERR_INTERNAL;
}

void epi_error_clear(epi_error *err) {
    if (err)
        *err = (epi_error){0};
}

/* How many bytes at s are a control character that a terminal might obey: one, or two of UTF-8; 0 for text.
 */
static int control_length(const char *s) {
    unsigned char c = (unsigned char)s[0], next = c ? (unsigned char)s[1] : 0;
    if ((c < 32 && c != '\n' && c != '\t') || c == 127)
        return c ? 1 : 0;
    return c == 0xc2 && next >= 0x80 && next < 0xa0 ? 2 : 0;
}

void epi_text_add_shown(epi_text *t, const char *s) {
    while (*s) {
        int control = control_length(s);
        for (int i = 0; i < control; i++)
            epi_text_add(t, "\\x%02x", (unsigned char)*s++);
        if (!control)
            epi_text_add(t, "%c", *s++);
    }
}

size_t epi_error_format(const epi_error *err, char *buf, size_t size) {
    epi_text t = {0};
    if (!err)
        return epi_text_give(&t, buf, size);
    epi_text_add_shown(&t, err->file);
    if (err->file[0])
        epi_text_add(&t, ":");
    if (err->line)
        epi_text_add(&t, "%d:%d:", err->line, err->column);
    epi_text_add(&t, t.length ? " " : "");
    epi_text_add_shown(&t, err->message);
    if (err->source[0]) {
        epi_text_add(&t, "\n  ");
        epi_text_add_shown(&t, err->source);
        epi_text_add(&t, "\n  ");
        const char *s = err->source;
        for (int i = 1, control = 0; i < err->column; i++, s += *s != 0) {
            control = control ? control : control_length(s);
            epi_text_add(&t, *s == '\t' ? "\t" : control ? "    " : " ");
            control -= control > 0;
        }
        epi_text_add(&t, "^");
    }
    return epi_text_give(&t, buf, size);
}

const char *epi_status_name(epi_status status) {
    static const char *const names[] = {"ok",   "argument",    "memory", "syntax", "check",
                                        "dims", "unsupported", "file",   "index",  "internal"};
    return (unsigned)status < sizeof names / sizeof *names ? names[status] : "unknown";
}

#define TEXT_OF(x) #x
#define VERSION_TEXT(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)

const char *epi_version(void) {
    return VERSION_TEXT(EPI_VERSION_MAJOR, EPI_VERSION_MINOR, EPI_VERSION_PATCH);
}

/* ---- arena ---- */

enum { ARENA_BLOCK = 16384, ARENA_ALIGN = 16 };

struct epi_arena_block {
    struct epi_arena_block *next;
    size_t used, capacity;
    _Alignas(ARENA_ALIGN) unsigned char data[];
};

void *epi_arena_alloc(epi_arena *arena, size_t size) {
    if (arena->failed || size > PTRDIFF_MAX / 2)
        return arena->failed = true, NULL;
    size = (size + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    struct epi_arena_block *b = arena->head;
    if (!b || b->capacity - b->used < size) {
        size_t capacity = size > ARENA_BLOCK ? size : ARENA_BLOCK;
        b = malloc(sizeof *b + capacity);
        if (!b)
            return arena->failed = true, NULL;
        *b = (struct epi_arena_block){.next = arena->head, .capacity = capacity};
        arena->head = b;
    }
    void *p = b->data + b->used;
    b->used += size;
    return memset(p, 0, size);
}

char *epi_arena_text(epi_arena *arena, const char *text, size_t length) {
    char *copy = epi_arena_alloc(arena, length + 1);
    return copy ? memcpy(copy, text, length) : NULL;
}

void *epi_arena_grow(epi_arena *arena, void *list, int count, int *capacity, size_t size) {
    if (count < *capacity)
        return list;
    int more = *capacity ? 2 * *capacity : 8;
    void *copy = epi_arena_alloc(arena, (size_t)more * size);
    if (!copy)
        return NULL;
    if (count)
        memcpy(copy, list, (size_t)count * size);
    *capacity = more;
    return copy;
}

void epi_arena_free(epi_arena *arena) {
    for (struct epi_arena_block *b = arena->head, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    *arena = (epi_arena){0};
}

/* ---- text ---- */

void epi_text_add(epi_text *text, const char *fmt, ...) {
    if (text->failed)
        return;
    va_list args;
    va_start(args, fmt);
    int need = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    size_t end = text->length + (need > 0 ? (size_t)need : 0) + 1;
    if (need < 0) {
        text->failed = true;
        return;
    }
    if (end > text->capacity) {
        size_t capacity = end > 2 * text->capacity ? end : 2 * text->capacity;
        char *data = realloc(text->data, capacity);
        if (!data) {
            text->failed = true;
            return;
        }
        text->data = data;
        text->capacity = capacity;
    }
    va_start(args, fmt);
    vsnprintf(text->data + text->length, (size_t)need + 1, fmt, args);
    va_end(args);
    text->length += (size_t)need;
}

void epi_text_free(epi_text *text) {
    free(text->data);
    *text = (epi_text){0};
}

size_t epi_text_give(epi_text *text, char *buf, size_t size) {
    size_t length = text->length;
    if (buf && size) {
        size_t copy = length < size - 1 ? length : size - 1;
        if (copy)
            memcpy(buf, text->data, copy);
        buf[copy] = 0;
    }
    epi_text_free(text);
    return length;
}

/* ---- numbers ---- */

/* strtod and printf speak the locale of the program we are part of, but only about the decimal point: a
 * number as an integer times a power of ten has none. */

enum { MOST_DIGITS = 800 }; /* more than decide to which double a number is rounded */

double epi_number_read(const char *text, size_t length) {
    char buf[MOST_DIGITS + 40];
    size_t n = 0, digits = 0, i = 0;
    long exponent = 0, given = 0;
    bool point = false, rest = false, negative = false;
    if (i < length && (text[i] == '-' || text[i] == '+'))
        buf[n++] = text[i++];
    for (; i < length && text[i] != 'e' && text[i] != 'E'; i++) {
        if (text[i] == '.') {
            point = true;
            continue;
        }
        bool keep = digits < MOST_DIGITS && (digits || text[i] != '0');
        exponent += keep ? -(long)point : !digits ? -(long)point : !point;
        if (keep) {
            buf[n++] = text[i];
            digits++;
        } else if (digits && text[i] != '0') {
            rest = true;
        }
    }
    if (i < length) {
        i++;
        negative = i < length && text[i] == '-';
        if (i < length && (text[i] == '-' || text[i] == '+'))
            i++;
        for (; i < length && given < 1000000000; i++)
            given = 10 * given + (text[i] - '0');
    }
    exponent += negative ? -given : given;
    if (rest) { /* just above what was kept */
        buf[n++] = '1';
        exponent--;
    }
    snprintf(buf + n, sizeof buf - n, "%se%ld", digits ? "" : "0", exponent);
    return strtod(buf, NULL);
}

/* The digits of a positive number, so many, and the power of ten of the first. */
static int digits_of(double value, int count, char *digits) {
    char text[40];
    int n = 0;
    const char *c = text;
    snprintf(text, sizeof text, "%.*e", count - 1, value);
    for (; *c && *c != 'e'; c++) /* whatever the decimal point is */
        if (*c >= '0' && *c <= '9')
            digits[n++] = *c;
    digits[n] = 0;
    return (int)strtol(c + 1, NULL, 10);
}

epi_number_text epi_number_write(double value) {
    epi_number_text out;
    char digits[24], again[40];
    const char *sign = signbit(value) ? "-" : "";
    int count = 0, first = 0;
    if (!isfinite(value) || (value == floor(value) && fabs(value) < 1e15)) {
        snprintf(out.text, sizeof out.text, "%.0f", value);
        return out;
    }
    do {
        first = digits_of(fabs(value), ++count, digits);
        snprintf(again, sizeof again, "%se%d", digits, first - count + 1);
    } while (count < 17 && strtod(again, NULL) != fabs(value));
    if (first < -4 || first >= count) /* as %g has it */
        snprintf(out.text, sizeof out.text, "%s%c%s%se%c%02d", sign, digits[0], count > 1 ? "." : "",
                 digits + 1, first < 0 ? '-' : '+', abs(first));
    else if (first < 0)
        snprintf(out.text, sizeof out.text, "%s0.%.*s%s", sign, -first - 1, "000", digits);
    else
        snprintf(out.text, sizeof out.text, "%s%.*s%s%s", sign, first + 1, digits,
                 count > first + 1 ? "." : "", digits + first + 1);
    return out;
}
