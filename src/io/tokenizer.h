/* tokenizer.h: a tokenizer in memory: byte-level BPE, as tokenizer.json of Hugging Face has it. */
#ifndef EPI_IO_TOKENIZER_H
#define EPI_IO_TOKENIZER_H

#include "base/base.h"
#include "epilog_io.h"

/* Which regular expression cuts a text into words; unicode.c knows what its classes are. */
typedef enum epi_split {
    EPI_SPLIT_NONE,
    EPI_SPLIT_GPT2,
    EPI_SPLIT_LLAMA3, /* numbers in threes */
    EPI_SPLIT_QWEN2,  /* numbers one by one, else as Llama 3 */
    EPI_SPLIT_COUNT
} epi_split;

/* The length of the first word of a text that is UTF-8 and not empty. */
size_t epi_split_next(epi_split split, const char *text, size_t size);
/* The expression as tokenizer.json writes it. */
const char *epi_split_pattern(epi_split split);

enum { EPI_MOST_AROUND = 16, EPI_MOST_TOKENS = 1 << 24 };

typedef struct epi_token {
    const char *data; /* its bytes; NULL: no token has this number */
    size_t size;
    bool is_word; /* BPE makes it: its characters stand for bytes */
    bool special;
} epi_token;

/* A token that is looked for in the text before it is cut into words. */
typedef struct epi_added_token {
    const char *text;
    size_t size;
    int32_t id;
    bool normalized; /* then behind those that are not */
} epi_added_token;

typedef struct epi_merge {
    int32_t left, right; /* left -1: no merge */
    int32_t rank, made;
} epi_merge;

struct epi_tokenizer {
    epi_arena arena;
    epi_token *tokens; /* by number */
    int32_t count;
    int32_t *words; /* numbers of tokens by the hash of their bytes, -1: none */
    uint64_t word_mask;
    epi_merge *merges; /* by the hash of both */
    uint64_t merge_mask;
    int32_t bytes[256]; /* tokens of one byte, -1: there is none */
    epi_added_token *added;
    int added_count;
    bool starts[256]; /* bytes that added tokens begin with */
    epi_split split;
    bool digits;      /* each number is a word before the text is cut into others */
    bool whole_words; /* a word that is a token is that, whatever merges make of it */
    int32_t before[EPI_MOST_AROUND], behind[EPI_MOST_AROUND]; /* tokens around every text */
    int before_count, behind_count;
};

/* The token of these bytes that BPE makes, or -1. */
int32_t epi_tokenizer_word(const epi_tokenizer *t, const char *data, size_t size);
/* What two tokens become, or NULL. */
const epi_merge *epi_tokenizer_merge(const epi_tokenizer *t, int32_t left, int32_t right);
/* tokenizer_file.c: fills it from the text of a tokenizer.json. */
epi_status epi_tokenizer_read(epi_tokenizer *t, const char *text, size_t size, const char *name,
                              epi_error *err);

#endif
