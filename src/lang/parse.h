/* parse.h: the state that the parser's two files share: the position in the text, and the first error. */
#ifndef EPI_LANG_PARSE_H
#define EPI_LANG_PARSE_H

#include "lang/ast.h"
#include "lang/lex.h"

enum { EPI_MAX_ARGS = EPI_MAX_TENSORS };

typedef struct epi_called {
    const char *name;
    epi_place place;
} epi_called;

typedef struct epi_parser {
    epi_arena *arena;
    epi_lexer lexer;
    epi_token token; /* the next one; nothing was made of it yet */
    epi_error error; /* the first one; after it every token is the end of the text */
    int depth;       /* expressions that are open around this place */
    epi_called call; /* whose arguments are being read; no name outside of calls */
} epi_parser;

void epi_parse_fail(epi_parser *p, epi_place place, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void epi_parse_next(epi_parser *p);
bool epi_parse_at(const epi_parser *p, const char *word);
bool epi_parse_accept(epi_parser *p, const char *word);
void epi_parse_expect(epi_parser *p, const char *symbol, const char *where);
void epi_parse_expected(epi_parser *p, const char *what); /* fails: something else is here */

/* Takes a name; `what` it names is for messages. A fresh one must not be a reserved word. */
const char *epi_parse_name(epi_parser *p, const char *what, bool fresh);
bool epi_is_reserved(const char *name);

/* Fails where the name is a word of other languages, and says how this one has it. */
void epi_parse_foreign(epi_parser *p, const char *name, epi_place place);

/* A list that grows in the arena. Makes room for one more element of `size` bytes; false without memory. */
bool epi_parse_grow(epi_parser *p, void **list, int count, int *capacity, size_t size);

epi_ast *epi_parse_expr(epi_parser *p);
epi_ast_axis epi_parse_axis(epi_parser *p);
/* The size that a text gives an axis, behind the = of C=3. */
int64_t epi_parse_size(epi_parser *p, const epi_ast_axis *axis);

#endif
