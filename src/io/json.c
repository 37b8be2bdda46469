/* json.c: JSON by recursive descent over bytes, with one position and one sticky error. */
#include "io/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- characters ---------------------------------------------------------------------------- */

size_t epi_utf8_length(const char *s, size_t size) {
    if (size == 0)
        return 0;
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80)
        return 1;
    size_t n = u[0] < 0xC2 ? 0 : u[0] < 0xE0 ? 2 : u[0] < 0xF0 ? 3 : u[0] < 0xF5 ? 4 : 0;
    if (n == 0 || size < n)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((u[i] & 0xC0) != 0x80)
            return 0;
    /* The second byte tells overlong forms, surrogates and values past U+10FFFF. */
    bool overlong = (u[0] == 0xE0 && u[1] < 0xA0) || (u[0] == 0xF0 && u[1] < 0x90);
    bool surrogate = u[0] == 0xED && u[1] > 0x9F;
    bool too_big = u[0] == 0xF4 && u[1] > 0x8F;
    return overlong || surrogate || too_big ? 0 : n;
}

static size_t put_utf8(uint32_t c, char out[4]) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint32_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(lead[n] | c);
    return n;
}

/* The value of four hexadecimal digits, or -1. */
static int hex4(const char *s, size_t size) {
    int value = 0;
    if (size < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Reads the escape at s (size >= 1, s[0] a backslash) and returns its length, or 0 with *why. */
static size_t read_escape(const char *s, size_t size, uint32_t *out, const char **why) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    *why = "an unknown escape in a string";
    const char *name = size > 1 ? memchr(names, s[1], sizeof names - 1) : NULL;
    if (name) {
        *out = (uint32_t)values[name - names];
        return 2;
    }
    if (size < 2 || s[1] != 'u')
        return 0;
    int c = hex4(s + 2, size - 2);
    *why = c < 0 ? "\\u needs four hexadecimal digits" : "a NUL character in a string";
    if (c <= 0)
        return 0;
    *out = (uint32_t)c;
    if (c < 0xD800 || c > 0xDFFF)
        return 6;
    *why = "half of a surrogate pair";
    int low = c <= 0xDBFF && size > 8 && s[6] == '\\' && s[7] == 'u' ? hex4(s + 8, size - 8) : -1;
    if (low < 0xDC00 || low > 0xDFFF)
        return 0;
    *out = 0x10000u + (((uint32_t)c & 0x3FF) << 10) + ((uint32_t)low & 0x3FF);
    return 12;
}

/* The next character of a verified string as UTF-8; returns the bytes read, *written those put. */
static size_t unescape_one(const char *s, size_t size, char out[4], size_t *written) {
    uint32_t c = 0;
    const char *why;
    if (*s != '\\') {
        out[0] = *s;
        *written = 1;
        return 1;
    }
    size_t n = read_escape(s, size, &c, &why);
    *written = put_utf8(c, out);
    return n ? n : 1;
}

bool epi_json_is(epi_json_string s, const char *text) {
    size_t length = strlen(text), at = 0, n;
    char c[4];
    for (size_t i = 0; i < s.size; at += n) {
        i += unescape_one(s.data + i, s.size - i, c, &n);
        if (n > length - at || memcmp(text + at, c, n) != 0)
            return false;
    }
    return at == length;
}

char *epi_json_copy(epi_json_string s, epi_arena *arena) {
    char *out = epi_arena_alloc(arena, s.size + 1); /* resolving an escape never lengthens it */
    size_t at = 0, n;
    char c[4];
    for (size_t i = 0; out && i < s.size; at += n) {
        i += unescape_one(s.data + i, s.size - i, c, &n);
        memcpy(out + at, c, n);
    }
    return out;
}

/* ---- reading ------------------------------------------------------------------------------- */

void epi_json_refuse(epi_json_reader *r, const char *why) {
    if (!r->why)
        r->why = why;
}

static int peek(const epi_json_reader *r) {
    return r->at < r->size ? (unsigned char)r->text[r->at] : -1;
}

static void space(epi_json_reader *r) {
    int c;
    while (!r->why && ((c = peek(r)) == ' ' || c == '\t' || c == '\n' || c == '\r'))
        r->at++;
}

/* Takes the byte c, after white space, or refuses. */
static bool expect(epi_json_reader *r, char c, const char *why) {
    space(r);
    if (peek(r) != c)
        epi_json_refuse(r, why);
    if (r->why)
        return false;
    r->at++;
    return true;
}

static void enter(epi_json_reader *r, char bracket, const char *why) {
    if (!expect(r, bracket, why))
        return;
    if (++r->depth > EPI_JSON_MAX_DEPTH)
        epi_json_refuse(r, "nested too deeply");
    r->fresh = true;
}

/* Whether another value follows before the closing bracket, which is consumed. */
static bool next(epi_json_reader *r, char close, const char *why) {
    space(r);
    if (r->why)
        return false;
    bool fresh = r->fresh;
    r->fresh = false;
    if (peek(r) == close) {
        r->at++;
        r->depth--;
        return false;
    }
    return fresh || expect(r, ',', why);
}

void epi_json_object(epi_json_reader *r) {
    enter(r, '{', "expected an object");
}

bool epi_json_member(epi_json_reader *r, epi_json_string *key) {
    return next(r, '}', "expected ',' or '}'") && epi_json_text(r, key) &&
           expect(r, ':', "expected ':' after the key");
}

void epi_json_array(epi_json_reader *r) {
    enter(r, '[', "expected an array");
}

bool epi_json_element(epi_json_reader *r) {
    return next(r, ']', "expected ',' or ']'");
}

bool epi_json_text(epi_json_reader *r, epi_json_string *out) {
    *out = (epi_json_string){"", 0};
    if (!expect(r, '"', "expected a string"))
        return false;
    const char *start = r->text + r->at;
    for (int c; (c = peek(r)) != '"';) {
        const char *why = c < 0      ? "the string has no end"
                          : c < 0x20 ? "a control character in a string"
                                     : "invalid UTF-8";
        uint32_t value;
        const char *s = r->text + r->at;
        size_t n = c < 0x20    ? 0
                   : c == '\\' ? read_escape(s, r->size - r->at, &value, &why)
                               : epi_utf8_length(s, r->size - r->at);
        if (n == 0) {
            epi_json_refuse(r, why);
            return false;
        }
        r->at += n;
    }
    *out = (epi_json_string){start, (size_t)(r->text + r->at - start)};
    r->at++;
    return true;
}

static bool is_digit(int c) {
    return c >= '0' && c <= '9';
}

static bool digits(epi_json_reader *r) {
    size_t start = r->at;
    while (is_digit(peek(r)))
        r->at++;
    if (r->at == start)
        epi_json_refuse(r, "expected a digit");
    return r->at > start;
}

bool epi_json_size(epi_json_reader *r, int64_t *out) {
    *out = 0;
    space(r);
    if (r->why)
        return false;
    size_t start = r->at;
    for (; is_digit(peek(r)); r->at++)
        if (!epi_mul_size(*out, 10, out) || !epi_add_size(*out, r->text[r->at] - '0', out)) {
            epi_json_refuse(r, "the number is over 2^63-1");
            return false;
        }
    int c = peek(r);
    if (r->at == start || c == '.' || c == 'e' || c == 'E')
        epi_json_refuse(r, "expected an integer that is not negative");
    else if (r->text[start] == '0' && r->at - start > 1)
        epi_json_refuse(r, "a number with a leading zero");
    return r->why == NULL;
}

static void skip_number(epi_json_reader *r) {
    if (peek(r) == '-')
        r->at++;
    size_t start = r->at;
    if (!digits(r))
        return;
    if (r->text[start] == '0' && r->at - start > 1) {
        epi_json_refuse(r, "a number with a leading zero");
        return;
    }
    if (peek(r) == '.') {
        r->at++;
        if (!digits(r))
            return;
    }
    if (peek(r) == 'e' || peek(r) == 'E') {
        r->at++;
        if (peek(r) == '+' || peek(r) == '-')
            r->at++;
        digits(r);
    }
}

static void skip_word(epi_json_reader *r, const char *word) {
    size_t n = strlen(word);
    if (r->size - r->at < n || memcmp(r->text + r->at, word, n) != 0)
        epi_json_refuse(r, "expected a value");
    else
        r->at += n;
}

void epi_json_skip(epi_json_reader *r) {
    epi_json_string text;
    space(r);
    if (r->why)
        return;
    int c = peek(r);
    switch (c) {
    case '{':
        epi_json_object(r);
        while (epi_json_member(r, &text))
            epi_json_skip(r);
        break;
    case '[':
        epi_json_array(r);
        while (epi_json_element(r))
            epi_json_skip(r);
        break;
    case '"': epi_json_text(r, &text); break;
    case 't': skip_word(r, "true"); break;
    case 'f': skip_word(r, "false"); break;
    case 'n': skip_word(r, "null"); break;
    default:
        if (c == '-' || is_digit(c))
            skip_number(r);
        else
            epi_json_refuse(r, "expected a value");
    }
}

void epi_json_end(epi_json_reader *r) {
    space(r);
    if (r->at < r->size)
        epi_json_refuse(r, "expected nothing more");
}

/* ---- writing ------------------------------------------------------------------------------- */

static void before_value(epi_json_writer *w) {
    if (w->comma)
        epi_text_add(w->text, ",");
    w->comma = true;
}

static void put_quoted(epi_text *text, const char *s) {
    epi_text_add(text, "\"");
    for (size_t left = strlen(s), n; left > 0; s += n, left -= n) {
        size_t good = epi_utf8_length(s, left);
        n = good ? good : 1;
        if (!good)
            epi_text_add(text, "\xEF\xBF\xBD");
        else if (*s == '"' || *s == '\\')
            epi_text_add(text, "\\%c", *s);
        else if ((unsigned char)*s < 0x20)
            epi_text_add(text, "\\u%04x", (unsigned)*s);
        else
            epi_text_add(text, "%.*s", (int)n, s);
    }
    epi_text_add(text, "\"");
}

void epi_json_put_open(epi_json_writer *w, char bracket) {
    before_value(w);
    epi_text_add(w->text, "%c", bracket);
    w->comma = false;
}

void epi_json_put_close(epi_json_writer *w, char bracket) {
    epi_text_add(w->text, "%c", bracket);
    w->comma = true;
}

void epi_json_put_key(epi_json_writer *w, const char *key) {
    before_value(w);
    put_quoted(w->text, key);
    epi_text_add(w->text, ":");
    w->comma = false;
}

void epi_json_put_text(epi_json_writer *w, const char *value) {
    before_value(w);
    if (value)
        put_quoted(w->text, value);
    else
        epi_text_add(w->text, "null");
}

void epi_json_put_integer(epi_json_writer *w, int64_t value) {
    before_value(w);
    epi_text_add(w->text, "%" PRId64, value);
}

void epi_json_put_number(epi_json_writer *w, double value) {
    before_value(w);
    epi_text_add(w->text, "%s", isfinite(value) ? epi_number_write(value).text : "null");
}

void epi_json_put_bool(epi_json_writer *w, bool value) {
    before_value(w);
    epi_text_add(w->text, value ? "true" : "false");
}
