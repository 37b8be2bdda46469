/* token_words.c: the regular expressions that split a text into words before BPE, each written as a scanner.
 */
#include <string.h>

#include "io/json.h"
#include "io/tokenizer.h"
#include "io/unicode.h"

static const char *const patterns[EPI_SPLIT_COUNT] = {
    [EPI_SPLIT_NONE] = "",
    [EPI_SPLIT_GPT2] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    [EPI_SPLIT_LLAMA3] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                         "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    [EPI_SPLIT_QWEN2] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
};

const char *epi_split_pattern(epi_split split) {
    return patterns[split];
}

typedef struct rest {
    const char *text;
    size_t size;
} rest;

typedef enum kind { END, LETTER, NUMBER, SPACE, OTHER } kind;

static kind kind_at(rest r, size_t at) {
    if (at >= r.size)
        return END;
    uint32_t c = epi_utf8_code(r.text + at, epi_utf8_length(r.text + at, r.size - at));
    return epi_char_is_letter(c) ? LETTER : epi_char_is_number(c) ? NUMBER : epi_char_is_space(c) ? SPACE : OTHER;
}

static size_t step(rest r, size_t at) {
    return at + epi_utf8_length(r.text + at, r.size - at);
}

/* Behind at most so many characters of a kind. */
static size_t run(rest r, size_t at, kind k, size_t most) {
    for (; most > 0 && kind_at(r, at) == k; most--)
        at = step(r, at);
    return at;
}

static bool is_newline(rest r, size_t at) {
    return at < r.size && (r.text[at] == '\r' || r.text[at] == '\n');
}

/* 's, 't, 're, 've, 'm, 'll, 'd; where case does not count, a long s is an s, too. 0: there is none. */
static size_t contraction(rest r, bool any_case) {
    static const char *const ends[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (r.size < 2 || r.text[0] != '\'')
        return 0;
    if (any_case && r.size > 2 && !memcmp(r.text + 1, "\xC5\xBF", 2))
        return 3;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t n = strlen(ends[i]), same = 0;
        for (; same < n && 1 + same < r.size; same++) {
            char c = r.text[1 + same];
            if (any_case && c >= 'A' && c <= 'Z')
                c = (char)(c - 'A' + 'a');
            if (c != ends[i][same])
                break;
        }
        if (same == n)
            return 1 + n;
    }
    return 0;
}

/* \s+(?!\S)|\s+: white space but for the last character of it, unless nothing is behind or before that. */
static size_t white_space(rest r) {
    size_t end = run(r, 0, SPACE, SIZE_MAX), last = 0;
    if (end == r.size)
        return end;
    for (size_t at = 0; at < end; at = step(r, at))
        last = at;
    return last ? last : end;
}

static size_t next_gpt2(rest r) {
    size_t found = contraction(r, false), at = r.text[0] == ' ';
    kind k = kind_at(r, at);
    if (found)
        return found;
    return k == SPACE || k == END ? white_space(r) : run(r, at, k, SIZE_MAX);
}

/* \s*[\r\n]+: up to the last end of a line in white space; 0: there is none. */
static size_t lines(rest r) {
    size_t end = run(r, 0, SPACE, SIZE_MAX), found = 0;
    for (size_t at = 0; at < end; at++)
        if (is_newline(r, at))
            found = at + 1;
    return found;
}

static size_t next_llama3(rest r, size_t most_digits) {
    size_t found = contraction(r, true), second = step(r, 0), at;
    kind k = kind_at(r, 0);
    if (found)
        return found;
    if (k == LETTER)
        return run(r, 0, LETTER, SIZE_MAX);
    if (k != NUMBER && !is_newline(r, 0) && kind_at(r, second) == LETTER)
        return run(r, second, LETTER, SIZE_MAX);
    if (k == NUMBER)
        return run(r, 0, NUMBER, most_digits);
    at = r.text[0] == ' ';
    if (kind_at(r, at) == OTHER) {
        for (at = run(r, at, OTHER, SIZE_MAX); is_newline(r, at);)
            at++;
        return at;
    }
    found = lines(r);
    return found ? found : white_space(r);
}

size_t epi_split_next(epi_split split, const char *text, size_t size) {
    rest r = {text, size};
    switch (split) {
    case EPI_SPLIT_GPT2: return next_gpt2(r);
    case EPI_SPLIT_LLAMA3: return next_llama3(r, 3);
    case EPI_SPLIT_QWEN2: return next_llama3(r, 1);
    default: return size;
    }
}
