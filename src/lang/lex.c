/* lex.c: splits a source text into tokens. It never fails: a bad character is a token of its own. */
#include "lang/lex.h"

#include <string.h>

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static void advance(epi_lexer *lx) {
    if (*lx->at == '\n') {
        lx->place.line++;
        lx->place.column = 1;
    } else {
        lx->place.column++;
    }
    lx->at++;
}

/* Skips blanks and comments. Remembers the comment lines that touch the next token: a blank line
 * between forgets them. */
static void skip(epi_lexer *lx, epi_token *token) {
    bool fresh = lx->place.column == 1; /* a comment behind something on its line belongs to that */
    int newlines = 0;
    while (lx->at < lx->end) {
        char c = *lx->at;
        if (c == '#') {
            if (fresh && (!token->comment || newlines > 1))
                token->comment = lx->at;
            while (lx->at < lx->end && *lx->at != '\n')
                advance(lx);
            if (token->comment)
                token->comment_length = (size_t)(lx->at - token->comment);
            newlines = 0;
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
            newlines += c == '\n';
            fresh |= c == '\n';
            advance(lx);
        } else {
            break;
        }
    }
    if (newlines > 1)
        token->comment = NULL;
}

/* The length of a number at p: digits, a fraction, an exponent; 0 if there is none. */
static size_t number_length(const char *p, const char *end) {
    const char *q = p;
    while (q < end && is_digit(*q))
        q++;
    if (q < end && *q == '.' && (q > p || (q + 1 < end && is_digit(q[1]))))
        for (q++; q < end && is_digit(*q);)
            q++;
    if (q == p)
        return 0;
    if (q < end && (*q == 'e' || *q == 'E')) {
        const char *r = q + 1;
        if (r < end && (*r == '+' || *r == '-'))
            r++;
        if (r < end && is_digit(*r)) {
            while (r < end && is_digit(*r))
                r++;
            q = r;
        }
    }
    return (size_t)(q - p);
}

static size_t symbol_length(const char *p, const char *end) {
    static const char *const two[] = {"->", "<=", ">=", "==", "!=", "**", "//"};
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (end - p >= 2 && memcmp(p, two[i], 2) == 0)
            return 2;
    return memchr("()[]{},:;=+-*/%@<>", *p, 18) ? 1 : 0;
}

epi_token epi_lex(epi_lexer *lx) {
    epi_token t = {0};
    skip(lx, &t);
    t.text = lx->at;
    t.place = lx->place;
    if (lx->at == lx->end)
        return t;
    if (is_letter(*lx->at)) {
        t.kind = EPI_TOKEN_NAME;
        while (t.text + t.length < lx->end && (is_letter(t.text[t.length]) || is_digit(t.text[t.length])))
            t.length++;
    } else if ((t.length = number_length(lx->at, lx->end))) {
        t.kind = t.length < EPI_MAX_DIGITS ? EPI_TOKEN_NUMBER : EPI_TOKEN_BAD;
        if (t.kind == EPI_TOKEN_NUMBER)
            t.number = epi_number_read(t.text, t.length);
        /* 2x and 0x10 are neither numbers nor names */
        while (t.text + t.length < lx->end && is_letter(t.text[t.length])) {
            t.kind = EPI_TOKEN_BAD;
            t.length++;
        }
    } else if ((t.length = symbol_length(lx->at, lx->end))) {
        t.kind = EPI_TOKEN_SYMBOL;
    } else {
        t.kind = EPI_TOKEN_BAD;
        t.length = 1;
    }
    for (size_t i = 0; i < t.length; i++)
        advance(lx);
    return t;
}

bool epi_token_is(const epi_token *t, const char *word) {
    size_t n = strlen(word);
    return (t->kind == EPI_TOKEN_SYMBOL || t->kind == EPI_TOKEN_NAME) && t->length == n &&
           memcmp(t->text, word, n) == 0;
}
