/* tokenizer.c: converts text to tokens by byte-level BPE, and back.
 *
 * Added tokens are taken out of the text first: the longest one at the first place where one begins. The
 * rest is split into words. A word starts as its bytes. Of all neighbours that a merge can join, those of
 * the first merge in the list are joined, from left to right. This repeats until no merge applies. */
#include "io/tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "io/map.h"
#include "io/unicode.h"

/* ---- one word ---- */

/* A symbol of a word: a token, and its neighbours; -1: none, of a token: it was joined. */
typedef struct symbol {
    int32_t token;
    int64_t before, behind;
} symbol;

/* Two neighbours that could be joined, as they were when it was noted. */
typedef struct candidate {
    const epi_merge *merge;
    int64_t at;
} candidate;

/* The memory of one call, and where its tokens go. */
typedef struct encoder {
    const epi_tokenizer *t;
    symbol *symbols;
    candidate *heap; /* the first to be joined is at 0 */
    size_t symbol_room, heap_count;
    int32_t *ids;
    size_t room, count;
    epi_status status;
    epi_error *err;
} encoder;

static bool fail_memory(encoder *e) {
    if (e->status == EPI_OK)
        e->status = epi_fail(e->err, EPI_ERR_MEMORY, "out of memory");
    return false;
}

static void put(encoder *e, int32_t id) {
    if (e->count < e->room)
        e->ids[e->count] = id;
    e->count++;
}

static bool is_first(const candidate *a, const candidate *b) {
    return a->merge->rank != b->merge->rank ? a->merge->rank < b->merge->rank : a->at < b->at;
}

static void swap(candidate *a, candidate *b) {
    candidate c = *a;
    *a = *b;
    *b = c;
}

/* Notes the symbol and the one behind it, if a merge joins them. There is room: a word has fewer than three notes
 * for each of its bytes. */
static void note(encoder *e, int64_t at) {
    const symbol *s = e->symbols;
    if (at < 0 || s[at].behind < 0)
        return;
    const epi_merge *m = epi_tokenizer_merge(e->t, s[at].token, s[s[at].behind].token);
    if (!m)
        return;
    size_t i = e->heap_count++;
    e->heap[i] = (candidate){m, at};
    for (; i > 0 && is_first(&e->heap[i], &e->heap[(i - 1) / 2]); i = (i - 1) / 2)
        swap(&e->heap[i], &e->heap[(i - 1) / 2]);
}

static candidate take_first(encoder *e) {
    candidate first = e->heap[0];
    e->heap[0] = e->heap[--e->heap_count];
    for (size_t i = 0, next; (next = 2 * i + 1) < e->heap_count; i = next) {
        if (next + 1 < e->heap_count && is_first(&e->heap[next + 1], &e->heap[next]))
            next++;
        if (!is_first(&e->heap[next], &e->heap[i]))
            break;
        swap(&e->heap[next], &e->heap[i]);
    }
    return first;
}

/* Joins two neighbours, if they are still what they were. */
static void join(encoder *e, candidate c) {
    symbol *s = e->symbols, *left = &s[c.at];
    if (left->token != c.merge->left || left->behind < 0 || s[left->behind].token != c.merge->right)
        return;
    symbol *right = &s[left->behind];
    left->token = c.merge->made;
    right->token = -1;
    left->behind = right->behind;
    if (left->behind >= 0)
        s[left->behind].before = c.at;
    note(e, left->before);
    note(e, c.at);
}

static bool make_room(encoder *e, size_t size) {
    if (size <= e->symbol_room)
        return true;
    if (size > SIZE_MAX / (4 * sizeof(symbol)))
        return fail_memory(e);
    symbol *symbols = realloc(e->symbols, size * sizeof *symbols);
    if (symbols)
        e->symbols = symbols;
    candidate *heap = realloc(e->heap, 3 * size * sizeof *heap);
    if (heap)
        e->heap = heap;
    if (!symbols || !heap)
        return fail_memory(e);
    e->symbol_room = size;
    return true;
}

static void encode_word(encoder *e, const char *word, size_t size) {
    int32_t whole = e->t->whole_words ? epi_tokenizer_word(e->t, word, size) : -1;
    if (whole >= 0) {
        put(e, whole);
        return;
    }
    if (!make_room(e, size))
        return;
    for (size_t i = 0; i < size; i++) {
        int32_t id = e->t->bytes[(unsigned char)word[i]];
        if (id < 0) {
            e->status = epi_fail(e->err, EPI_ERR_UNSUPPORTED,
                                 "the tokenizer has no token for the byte 0x%02x", (unsigned char)word[i]);
            return;
        }
        e->symbols[i] = (symbol){id, (int64_t)i - 1, i + 1 < size ? (int64_t)i + 1 : -1};
    }
    e->heap_count = 0;
    for (size_t i = 0; i < size; i++)
        note(e, (int64_t)i);
    while (e->heap_count)
        join(e, take_first(e));
    for (int64_t i = 0; i >= 0; i = e->symbols[i].behind)
        put(e, e->symbols[i].token);
}

/* ---- words of a text ---- */

static void encode_words(encoder *e, const char *text, size_t size) {
    for (size_t at = 0, n; at < size && e->status == EPI_OK; at += n) {
        n = epi_split_next(e->t->split, text + at, size - at);
        encode_word(e, text + at, n);
    }
}

/* The length of a number of one character, or 0. */
static size_t number_length(const char *text, size_t size) {
    size_t n = epi_utf8_length(text, size);
    return epi_char_is_number(epi_utf8_code(text, n)) ? n : 0;
}

static void encode_plain(encoder *e, const char *text, size_t size) {
    size_t begin = 0, n;
    for (size_t at = 0; at < size && e->t->digits; at += n ? n : epi_utf8_length(text + at, size - at)) {
        n = number_length(text + at, size - at);
        if (!n)
            continue;
        encode_words(e, text + begin, at - begin);
        encode_words(e, text + at, n);
        begin = at + n;
    }
    encode_words(e, text + begin, size - begin);
}

/* ---- added tokens ---- */

/* The longest one that the text begins with, or NULL. */
static const epi_added_token *find_added(const epi_tokenizer *t, const char *text, size_t size,
                                         bool normalized) {
    const epi_added_token *found = NULL;
    for (int i = 0; i < t->added_count && t->starts[(unsigned char)*text]; i++) {
        const epi_added_token *a = &t->added[i];
        if (a->normalized == normalized && a->size <= size && (!found || a->size > found->size) &&
            !memcmp(a->text, text, a->size))
            found = a;
    }
    return found;
}

/* Those that count before the text is normalized come first; what is between them is looked through for the
 * others. */
static void encode_text(encoder *e, const char *text, size_t size, bool normalized) {
    size_t begin = 0;
    for (size_t at = 0; at <= size && e->status == EPI_OK;) {
        const epi_added_token *a = at < size ? find_added(e->t, text + at, size - at, normalized) : NULL;
        if ((a || at == size) && at > begin) {
            if (normalized)
                encode_plain(e, text + begin, at - begin);
            else
                encode_text(e, text + begin, at - begin, true);
        }
        if (a)
            put(e, a->id);
        at += a ? a->size : 1;
        begin = a ? at : begin;
    }
}

static bool find_broken(const char *text, size_t size, size_t *at) {
    for (size_t n; *at < size; *at += n)
        if (!(n = epi_utf8_length(text + *at, size - *at)))
            return true;
    return false;
}

epi_status epi_tokenizer_encode(const epi_tokenizer *t, const char *text, size_t size, int32_t *ids,
                                size_t room, size_t *count, epi_error *err) {
    epi_error_clear(err);
    if (count)
        *count = 0;
    if (!t || !count || (!text && size) || (!ids && room))
        return epi_fail(err, EPI_ERR_ARGUMENT,
                        "epi_tokenizer_encode: tokenizer, text, ids and count may not be NULL");
    size_t broken = 0;
    if (find_broken(text, size, &broken))
        return epi_fail(err, EPI_ERR_ARGUMENT, "the text is not UTF-8: byte %zu, 0x%02x, begins no character",
                        broken, (unsigned char)text[broken]);
    encoder e = {.t = t, .ids = ids, .room = room, .err = err};
    for (int i = 0; i < t->before_count; i++)
        put(&e, t->before[i]);
    encode_text(&e, text, size, false);
    for (int i = 0; i < t->behind_count; i++)
        put(&e, t->behind[i]);
    free(e.symbols);
    free(e.heap);
    *count = e.status == EPI_OK ? e.count : 0;
    return e.status;
}

/* ---- and back ---- */

epi_status epi_tokenizer_decode(const epi_tokenizer *t, const int32_t *ids, size_t count, int skip_special,
                                char *to, size_t room, size_t *size, epi_error *err) {
    epi_error_clear(err);
    if (size)
        *size = 0;
    if (!t || !size || (!ids && count) || (!to && room))
        return epi_fail(err, EPI_ERR_ARGUMENT,
                        "epi_tokenizer_decode: tokenizer, ids, to and size may not be NULL");
    size_t made = 0;
    for (size_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= t->count || !t->tokens[ids[i]].data)
            return epi_fail(err, EPI_ERR_ARGUMENT, "the tokenizer has no token %" PRId32, ids[i]);
        const epi_token *token = &t->tokens[ids[i]];
        if (skip_special && token->special)
            continue;
        if (made < room)
            memcpy(to + made, token->data, token->size < room - made ? token->size : room - made);
        made += token->size;
    }
    *size = made;
    return EPI_OK;
}

/* ---- the tokenizer ---- */

int32_t epi_tokenizer_count(const epi_tokenizer *t) {
    return t ? t->count : 0;
}

int32_t epi_tokenizer_added(const epi_tokenizer *t, const char *text) {
    for (int i = 0; t && text && i < t->added_count; i++)
        if (!strcmp(t->added[i].text, text))
            return t->added[i].id;
    return -1;
}

epi_status epi_tokenizer_parse(const char *text, size_t size, const char *name, epi_tokenizer **out,
                               epi_error *err) {
    epi_error_clear(err);
    if (out)
        *out = NULL;
    if (!out || (!text && size) || !name)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_tokenizer_parse: text, name and out may not be NULL");
    epi_tokenizer *t = calloc(1, sizeof *t);
    EPI_TRY(epi_has_memory(t, err));
    epi_status status = epi_tokenizer_read(t, text, size, name, err);
    if (status == EPI_OK)
        *out = t;
    else
        epi_tokenizer_close(t);
    return status;
}

epi_status epi_tokenizer_open(const char *path, epi_tokenizer **out, epi_error *err) {
    void *map = NULL;
    size_t size = 0;
    epi_error_clear(err);
    if (out)
        *out = NULL;
    if (!out || !path)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_tokenizer_open: path and out may not be NULL");
    EPI_TRY(epi_map_file(path, &map, &size, err));
    epi_status status = epi_tokenizer_parse(map, size, path, out, err);
    epi_unmap_file(map, size);
    return status;
}

void epi_tokenizer_close(epi_tokenizer *t) {
    if (!t)
        return;
    epi_arena_free(&t->arena);
    free(t);
}
