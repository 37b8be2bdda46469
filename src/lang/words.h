/* words.h: words that are written like operations and stand for a few of them. */
#ifndef EPI_LANG_WORDS_H
#define EPI_LANG_WORDS_H

#include "ir/graph.h"

/* How many values an operation takes, and how many axes behind them. */
typedef struct epi_arity {
    int values, least_axes, most_axes;
} epi_arity;

typedef struct epi_word {
    const char *name;
    epi_arity takes;
    int (*build)(epi_graph *g, const int *values, const epi_axes *axes);
} epi_word;

const epi_word *epi_word_at(int index); /* NULL past the last */
const epi_word *epi_word_find(const char *name);

/* grad, backward and repeat make a program of a program, which is called where it is made: grad(f, x)(…). NULL
 * past the last. */
const char *epi_maker_at(int index);
bool epi_is_maker(const char *name);

/* An operation or one of these words. */
bool epi_is_word(const char *name);

#endif
