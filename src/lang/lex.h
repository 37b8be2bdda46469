/* lex.h: the tokens of a source text. */
#ifndef EPI_LANG_LEX_H
#define EPI_LANG_LEX_H

#include "base/base.h"

enum { EPI_MAX_DIGITS = 64 }; /* a number is shorter */

typedef enum epi_token_kind {
    EPI_TOKEN_END,
    EPI_TOKEN_NAME,
    EPI_TOKEN_NUMBER,
    EPI_TOKEN_SYMBOL, /* one of ( ) [ ] { } , : ; = + - * / @ < > <= >= == != -> ** */
    EPI_TOKEN_BAD,    /* text that is none of these */
} epi_token_kind;

typedef struct epi_token {
    epi_token_kind kind;
    const char *text; /* into the source */
    size_t length;
    double number;
    epi_place place;
    const char *comment; /* the comment lines directly before it, or NULL */
    size_t comment_length;
} epi_token;

typedef struct epi_lexer {
    const char *at, *end;
    epi_place place;
} epi_lexer;

epi_token epi_lex(epi_lexer *lexer);
bool epi_token_is(const epi_token *token, const char *symbol_or_word);

#endif
