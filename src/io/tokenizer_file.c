/* tokenizer_file.c: reads tokenizer.json. An unsupported entry is an error that names it, because a
 * tokenizer that is almost right gives a model another text. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "io/json.h"
#include "io/tokenizer.h"
#include "io/unicode.h"

/* One read: the file, and the sticky outcome. */
typedef struct parser {
    epi_tokenizer *t;
    const char *file;
    epi_status status;
    epi_error *err;
} parser;

static bool refuse(parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(parser *p, const char *fmt, ...) {
    if (p->status != EPI_OK)
        return false;
    char reason[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(reason, sizeof reason, fmt, args);
    va_end(args);
    p->status = epi_fail(p->err, EPI_ERR_FILE, "%.300s: %s", p->file, reason);
    return false;
}

/* White space, of which a zero is none. */
static void skip_space(epi_json_reader *r) {
    while (r->at < r->size && memchr(" \t\r\n", r->text[r->at], 4))
        r->at++;
}

/* Did the reader stay in step with the file? */
static bool is_well(parser *p, const epi_json_reader *r) {
    if (r->why)
        refuse(p, "byte %zu: %s", r->at, r->why);
    return p->status == EPI_OK;
}

static void *allocate(parser *p, size_t count, size_t size) {
    void *made = epi_arena_alloc(&p->t->arena, (count + 1) * size);
    if (!made && p->status == EPI_OK)
        p->status = epi_fail(p->err, EPI_ERR_MEMORY, "out of memory");
    return made;
}

/* ---- objects by rule ---- */

/* A member that an object may have: as one of these values, separated by | (NULL: any); `keep` has the reader
 * before its value. */
typedef struct rule {
    const char *key, *values;
    epi_json_reader *keep;
} rule;

/* Is the text one of the values? */
static bool is_listed(const char *values, const char *text, size_t size) {
    for (const char *at = values;; at++) {
        size_t n = strcspn(at, "|");
        if (n == size && !memcmp(at, text, n))
            return true;
        at += n;
        if (!*at)
            return false;
    }
}

static const rule *find_rule(const rule *rules, epi_json_string key) {
    for (; rules->key; rules++)
        if (epi_json_is(key, rules->key))
            return rules;
    return NULL;
}

static bool check_object(parser *p, epi_json_reader *r, const char *where, const rule *rules) {
    epi_json_string key;
    epi_json_object(r);
    while (p->status == EPI_OK && epi_json_member(r, &key)) {
        const rule *found = find_rule(rules, key);
        if (!found)
            return refuse(p, "%s has \"%.*s\", which is not supported", where,
                          (int)epi_min64(60, (int64_t)key.size), key.data);
        skip_space(r);
        size_t begin = r->at;
        if (found->keep)
            *found->keep = *r;
        epi_json_skip(r);
        if (!r->why && found->values && !is_listed(found->values, r->text + begin, r->at - begin))
            return refuse(p, "%s has \"%s\": %.*s; it must be %s", where, found->key,
                          (int)epi_min64(60, (int64_t)(r->at - begin)), r->text + begin, found->values);
    }
    return is_well(p, r);
}

static bool is_null(const epi_json_reader *r) {
    return !r->text || (r->size - r->at >= 4 && !memcmp(r->text + r->at, "null", 4));
}

/* The "type" of an object, whose reader stays where it is. */
static bool read_type(parser *p, const epi_json_reader *object, const char *where, epi_json_string *type) {
    epi_json_reader r = *object;
    epi_json_string key;
    bool found = false;
    epi_json_object(&r);
    while (epi_json_member(&r, &key))
        if (epi_json_is(key, "type"))
            found = epi_json_text(&r, type);
        else
            epi_json_skip(&r);
    return is_well(p, &r) && (found || refuse(p, "%s has no \"type\"", where));
}

static bool refuse_type(parser *p, const char *where, epi_json_string type) {
    return refuse(p, "%s has type %.*s, which is not supported", where,
                  (int)epi_min64(60, (int64_t)type.size), type.data);
}

/* ---- characters that stand for bytes ---- */

/* The byte that a character of a token stands for, or -1. Bytes that can be seen are themselves, the others in
 * their order are the characters from 256 on. */
static int byte_of(uint32_t c) {
    enum { HIDDEN = 68, LOW = 33, MIDDLE = LOW + 34 };
    if ((c > 32 && c < 127) || (c > 160 && c < 256 && c != 173))
        return (int)c;
    if (c < 256 || c >= 256 + HIDDEN)
        return -1;
    c -= 256;
    return c < LOW ? (int)c : c < MIDDLE ? (int)(127 + c - LOW) : 173;
}

/* The bytes of a token, over its text; the text itself where a character stands for none. */
static bool to_bytes(char *text, size_t *size) {
    size_t made = 0, n;
    for (size_t pass = 0; pass < 2; pass++) {
        made = 0;
        for (size_t at = 0; at < *size; at += n) {
            n = epi_utf8_length(text + at, *size - at);
            int byte = byte_of(epi_utf8_code(text + at, n));
            if (byte < 0)
                return false;
            if (pass) /* over what was read already */
                text[made] = (char)byte;
            made++;
        }
    }
    *size = made;
    return true;
}

/* A text of the file with its escapes resolved; none has a zero in it. */
static char *copy_text(parser *p, epi_json_string s, size_t *size) {
    char *made = epi_json_copy(s, &p->t->arena);
    if (!made && p->status == EPI_OK)
        p->status = epi_fail(p->err, EPI_ERR_MEMORY, "out of memory");
    *size = made ? strlen(made) : 0;
    return made;
}

/* ---- tables ---- */

static uint64_t hash_of(const void *data, size_t size) {
    epi_hash h = {1, 2};
    epi_hash_add(&h, data, size);
    return h.a ^ h.b;
}

/* A power of two beyond twice the count. */
static uint64_t table_size(size_t count) {
    uint64_t size = 16;
    while (size < 2 * (uint64_t)count + 2)
        size *= 2;
    return size;
}

int32_t epi_tokenizer_word(const epi_tokenizer *t, const char *data, size_t size) {
    for (uint64_t at = hash_of(data, size) & t->word_mask;; at = (at + 1) & t->word_mask) {
        int32_t id = t->words[at];
        if (id < 0 || (t->tokens[id].size == size && !memcmp(t->tokens[id].data, data, size)))
            return id;
    }
}

static uint64_t merge_place(const epi_tokenizer *t, int32_t left, int32_t right) {
    const int32_t both[2] = {left, right};
    uint64_t at = hash_of(both, sizeof both) & t->merge_mask;
    while (t->merges[at].left >= 0 && (t->merges[at].left != left || t->merges[at].right != right))
        at = (at + 1) & t->merge_mask;
    return at;
}

const epi_merge *epi_tokenizer_merge(const epi_tokenizer *t, int32_t left, int32_t right) {
    const epi_merge *m = &t->merges[merge_place(t, left, right)];
    return m->left >= 0 ? m : NULL;
}

/* ---- the vocabulary ---- */

static bool read_id(parser *p, epi_json_reader *r, int64_t *id) {
    if (!epi_json_size(r, id))
        return is_well(p, r);
    return *id < EPI_MOST_TOKENS || refuse(p, "a token has the id %" PRId64 ", which is too large", *id);
}

/* Numbers of an object or a list: the largest, and how many. */
static bool measure(parser *p, epi_json_reader vocab, epi_json_reader added, int64_t *most, size_t *count) {
    epi_json_string key;
    int64_t id;
    epi_json_object(&vocab);
    while (epi_json_member(&vocab, &key) && read_id(p, &vocab, &id)) {
        *most = epi_max64(*most, id);
        ++*count;
    }
    if (!is_well(p, &vocab) || is_null(&added))
        return p->status == EPI_OK;
    epi_json_array(&added);
    while (p->status == EPI_OK && epi_json_element(&added)) {
        epi_json_object(&added);
        while (p->status == EPI_OK && epi_json_member(&added, &key))
            if (!epi_json_is(key, "id"))
                epi_json_skip(&added);
            else if (read_id(p, &added, &id))
                *most = epi_max64(*most, id);
        p->t->added_count++;
    }
    return is_well(p, &added);
}

static bool read_vocab(parser *p, epi_json_reader r) {
    epi_tokenizer *t = p->t;
    epi_json_string key;
    int64_t id;
    epi_json_object(&r);
    while (p->status == EPI_OK && epi_json_member(&r, &key) && read_id(p, &r, &id)) {
        epi_token *token = &t->tokens[id];
        size_t size;
        if (token->data)
            return refuse(p, "two tokens have the id %" PRId64, id);
        char *text = copy_text(p, key, &size);
        if (!text)
            return false;
        if (!size)
            return refuse(p, "token %" PRId64 " is empty", id);
        *token = (epi_token){.is_word = to_bytes(text, &size)};
        token->data = text;
        token->size = size;
        if (!token->is_word)
            continue;
        if (epi_tokenizer_word(t, text, size) >= 0)
            return refuse(p, "token %" PRId64 " is there twice", id);
        uint64_t at = hash_of(text, size) & t->word_mask;
        while (t->words[at] >= 0)
            at = (at + 1) & t->word_mask;
        t->words[at] = (int32_t)id;
        if (size == 1)
            t->bytes[(unsigned char)*text] = (int32_t)id;
    }
    return is_well(p, &r);
}

/* One merge of the list: "left right", or ["left", "right"]. */
static bool read_pair(parser *p, epi_json_reader *r, char **left, char **right, size_t *left_size,
                      size_t *right_size) {
    epi_json_string s[2];
    int n = 0;
    skip_space(r);
    if (r->at < r->size && r->text[r->at] == '[') {
        epi_json_array(r);
        while (epi_json_element(r) && n < 2)
            epi_json_text(r, &s[n++]);
        if (!is_well(p, r))
            return false;
        *left = n ? copy_text(p, s[0], left_size) : NULL;
        *right = n > 1 ? copy_text(p, s[1], right_size) : NULL;
        return *left && *right;
    }
    if (!epi_json_text(r, &s[0]))
        return is_well(p, r);
    *left = copy_text(p, s[0], left_size);
    char *gap = *left ? strchr(*left, ' ') : NULL;
    if (!gap)
        return false;
    *gap = 0;
    *right = gap + 1;
    *right_size = *left_size - (size_t)(gap + 1 - *left);
    *left_size = (size_t)(gap - *left);
    return true;
}

static bool add_merge(parser *p, char *left, size_t left_size, char *right, size_t right_size, int32_t rank) {
    epi_tokenizer *t = p->t;
    char both[512];
    if (!to_bytes(left, &left_size) || !to_bytes(right, &right_size) || left_size + right_size > sizeof both)
        return refuse(p, "merge %" PRId32 " is not made of bytes, or is too long", rank);
    memcpy(both, left, left_size);
    memcpy(both + left_size, right, right_size);
    int32_t a = epi_tokenizer_word(t, left, left_size), b = epi_tokenizer_word(t, right, right_size),
            made = epi_tokenizer_word(t, both, left_size + right_size);
    if (a < 0 || b < 0 || made < 0)
        return refuse(p, "merge %" PRId32 " uses or makes something that is not a token", rank);
    epi_merge *m = &t->merges[merge_place(t, a, b)];
    if (m->left >= 0)
        return refuse(p, "merge %" PRId32 " is there twice", rank);
    *m = (epi_merge){a, b, rank, made};
    return true;
}

static bool read_merges(parser *p, epi_json_reader r) {
    epi_json_reader counting = r;
    size_t count = 0;
    epi_json_array(&counting);
    for (; epi_json_element(&counting); count++)
        epi_json_skip(&counting);
    if (!is_well(p, &counting))
        return false;
    if (count > EPI_MOST_TOKENS)
        return refuse(p, "there are %zu merges, which is too many", count);
    uint64_t size = table_size(count);
    p->t->merge_mask = size - 1;
    p->t->merges = allocate(p, size, sizeof *p->t->merges);
    if (!p->t->merges)
        return false;
    for (uint64_t i = 0; i < size; i++)
        p->t->merges[i].left = -1;
    int32_t rank = 0;
    epi_json_array(&r);
    for (; p->status == EPI_OK && epi_json_element(&r); rank++) {
        char *left = NULL, *right = NULL;
        size_t left_size = 0, right_size = 0;
        if (!read_pair(p, &r, &left, &right, &left_size, &right_size))
            return refuse(p, "merge %" PRId32 " is not a pair of tokens", rank);
        add_merge(p, left, left_size, right, right_size, rank);
    }
    return is_well(p, &r);
}

static bool read_model(parser *p, epi_json_reader model, epi_json_reader added) {
    epi_tokenizer *t = p->t;
    epi_json_string type;
    epi_json_reader vocab = {0}, merges = {0}, whole = {0};
    const rule rules[] = {{"type", NULL, NULL},
                          {"vocab", NULL, &vocab},
                          {"merges", NULL, &merges},
                          {"dropout", "null|0|0.0", NULL},
                          {"unk_token", NULL, NULL}, /* what it is for is refused: bytes without a token */
                          {"fuse_unk", NULL, NULL},
                          {"continuing_subword_prefix", "null|\"\"", NULL},
                          {"end_of_word_suffix", "null|\"\"", NULL},
                          {"byte_fallback", "false", NULL},
                          {"ignore_merges", "false|true", &whole},
                          {0}};
    if (!read_type(p, &model, "the model", &type))
        return false;
    if (!epi_json_is(type, "BPE"))
        return refuse_type(p, "the model", type);
    if (!check_object(p, &model, "the model", rules))
        return false;
    if (!vocab.text || !merges.text)
        return refuse(p, "the model has no %s", vocab.text ? "merges" : "vocab");
    t->whole_words = whole.text && whole.text[whole.at] == 't';
    int64_t most = -1;
    size_t count = 0;
    if (!measure(p, vocab, added, &most, &count))
        return false;
    t->count = (int32_t)(most + 1);
    t->tokens = allocate(p, (size_t)t->count, sizeof *t->tokens);
    t->word_mask = table_size(count) - 1;
    t->words = allocate(p, t->word_mask + 1, sizeof *t->words);
    t->added = allocate(p, (size_t)t->added_count, sizeof *t->added);
    if (p->status != EPI_OK)
        return false;
    memset(t->words, -1, (t->word_mask + 1) * sizeof *t->words);
    memset(t->bytes, -1, sizeof t->bytes);
    return read_vocab(p, vocab) && read_merges(p, merges);
}

/* ---- added tokens ---- */

static bool add_token(parser *p, epi_json_reader *r, epi_added_token *to) {
    epi_json_reader id = {0}, content = {0}, special = {0}, normalized = {0};
    const rule rules[] = {{"id", NULL, &id},
                          {"content", NULL, &content},
                          {"special", "false|true", &special},
                          {"normalized", "false|true", &normalized},
                          {"single_word", "false", NULL},
                          {"lstrip", "false", NULL},
                          {"rstrip", "false", NULL},
                          {0}};
    epi_json_string text;
    int64_t number;
    if (!check_object(p, r, "an added token", rules))
        return false;
    if (!id.text || !content.text)
        return refuse(p, "an added token has no \"id\", or no \"content\"");
    if (!read_id(p, &id, &number) || !epi_json_text(&content, &text))
        return is_well(p, &content);
    to->text = copy_text(p, text, &to->size);
    to->id = (int32_t)number;
    to->normalized = normalized.text && normalized.text[normalized.at] == 't';
    size_t size = to->size;
    char *bytes = copy_text(p, text, &size);
    if (!bytes || !to->text)
        return false;
    if (!size)
        return refuse(p, "added token %" PRId64 " is empty", number);
    bool mapped = to_bytes(bytes, &size);
    epi_token *token = &p->t->tokens[number];
    if (token->data && (token->size != size || memcmp(token->data, bytes, size) != 0))
        return refuse(p, "added token %" PRId64 " has the id of another token", number);
    *token = (epi_token){.data = bytes, .size = size, .is_word = token->data && mapped};
    token->special = special.text && special.text[special.at] == 't';
    p->t->starts[(unsigned char)*to->text] = true;
    return true;
}

static bool read_added(parser *p, epi_json_reader r) {
    if (is_null(&r))
        return true;
    epi_json_array(&r);
    for (int i = 0; p->status == EPI_OK && epi_json_element(&r); i++)
        add_token(p, &r, &p->t->added[i]);
    return is_well(p, &r);
}

/* ---- how a text is cut into words ---- */

static bool read_pattern(parser *p, epi_json_reader pattern, epi_split *split) {
    epi_json_reader expression = {0};
    epi_json_string text;
    const rule rules[] = {{"Regex", NULL, &expression}, {0}};
    if (!check_object(p, &pattern, "the pattern of a Split", rules))
        return false;
    if (!expression.text || !epi_json_text(&expression, &text))
        return refuse(p, "the pattern of a Split has no \"Regex\"");
    for (*split = EPI_SPLIT_GPT2; *split < EPI_SPLIT_COUNT; ++*split)
        if (epi_json_is(text, epi_split_pattern(*split)))
            return true;
    return refuse(p, "text is split by %.*s, which is not supported", (int)epi_min64(120, (int64_t)text.size),
                  text.data);
}

/* One step of cutting; *last: the ByteLevel one, which ends them. */
static bool read_cut(parser *p, epi_json_reader *r, bool *last) {
    epi_tokenizer *t = p->t;
    epi_json_string type;
    epi_json_reader regex = {0}, pattern = {0};
    const rule bytes[] = {{"type", NULL, NULL},
                          {"add_prefix_space", "false", NULL},
                          {"trim_offsets", NULL, NULL},
                          {"use_regex", "true|false", &regex},
                          {0}};
    const rule digits[] = {{"type", NULL, NULL}, {"individual_digits", "true", NULL}, {0}};
    const rule split[] = {{"type", NULL, NULL},
                          {"pattern", NULL, &pattern},
                          {"behavior", "\"Isolated\"", NULL},
                          {"invert", "false", NULL},
                          {0}};
    if (!read_type(p, r, "the pre_tokenizer", &type))
        return false;
    if (*last)
        return refuse(p, "the pre_tokenizer has a step after ByteLevel");
    if (epi_json_is(type, "ByteLevel")) {
        bool own = check_object(p, r, "ByteLevel", bytes) && !(regex.text && regex.text[regex.at] == 'f');
        if (own && t->split != EPI_SPLIT_NONE)
            return refuse(p, "the pre_tokenizer splits by two regular expressions");
        t->split = own ? EPI_SPLIT_GPT2 : t->split;
        *last = true;
        return p->status == EPI_OK;
    }
    if (t->split != EPI_SPLIT_NONE || (!epi_json_is(type, "Digits") && !epi_json_is(type, "Split")))
        return refuse_type(p, "a step of the pre_tokenizer", type);
    if (epi_json_is(type, "Digits"))
        return t->digits = check_object(p, r, "Digits", digits);
    if (!check_object(p, r, "Split", split))
        return false;
    return pattern.text ? read_pattern(p, pattern, &t->split) : refuse(p, "a Split has no \"pattern\"");
}

static bool read_cuts(parser *p, epi_json_reader r) {
    epi_json_string type;
    epi_json_reader list = {0};
    const rule rules[] = {{"type", NULL, NULL}, {"pretokenizers", NULL, &list}, {0}};
    bool last = false;
    if (is_null(&r))
        return refuse(p, "there is no pre_tokenizer");
    if (!read_type(p, &r, "the pre_tokenizer", &type))
        return false;
    if (!epi_json_is(type, "Sequence"))
        return read_cut(p, &r, &last) && (last || refuse_type(p, "the pre_tokenizer", type));
    if (!check_object(p, &r, "the pre_tokenizer", rules))
        return false;
    epi_json_array(&list);
    while (p->status == EPI_OK && epi_json_element(&list))
        read_cut(p, &list, &last);
    return is_well(p, &list) && (last || refuse(p, "the pre_tokenizer has no ByteLevel"));
}

/* ---- tokens around a text ---- */

/* The tokens that a template calls by a name. */
static bool add_around(parser *p, epi_json_reader special, epi_json_string name, int32_t *list, int *count) {
    epi_json_string key;
    size_t size;
    char *wanted = copy_text(p, name, &size);
    bool found = false;
    epi_json_object(&special);
    while (wanted && p->status == EPI_OK && epi_json_member(&special, &key)) {
        epi_json_reader ids = {0};
        const rule rules[] = {{"id", NULL, NULL}, {"ids", NULL, &ids}, {"tokens", NULL, NULL}, {0}};
        if (!epi_json_is(key, wanted)) {
            epi_json_skip(&special);
            continue;
        }
        found = check_object(p, &special, "a special token", rules) && ids.text;
        epi_json_array(&ids);
        for (int64_t id; found && epi_json_element(&ids) && read_id(p, &ids, &id);) {
            if (id >= p->t->count || !p->t->tokens[id].data || *count == EPI_MOST_AROUND)
                return refuse(p, "the post_processor adds something that is not a token, or too many tokens");
            list[(*count)++] = (int32_t)id;
        }
        if (found && !is_well(p, &ids))
            return false;
    }
    return p->status == EPI_OK &&
           (found || refuse(p, "the post_processor adds a token that it does not declare"));
}

static bool read_template(parser *p, epi_json_reader *r) {
    epi_tokenizer *t = p->t;
    epi_json_reader single = {0}, special = {0};
    epi_json_string key, inner, name;
    bool behind = false;
    const rule rules[] = {{"type", NULL, NULL},
                          {"single", NULL, &single},
                          {"pair", NULL, NULL},
                          {"special_tokens", NULL, &special},
                          {0}};
    if (!check_object(p, r, "TemplateProcessing", rules))
        return false;
    if (!single.text || !special.text)
        return refuse(p, "TemplateProcessing has no \"single\", or no \"special_tokens\"");
    epi_json_array(&single);
    while (p->status == EPI_OK && epi_json_element(&single)) {
        epi_json_object(&single);
        while (p->status == EPI_OK && epi_json_member(&single, &key)) {
            bool text = epi_json_is(key, "Sequence");
            name = (epi_json_string){"", 0};
            epi_json_object(&single);
            while (epi_json_member(&single, &inner))
                if (epi_json_is(inner, "id"))
                    epi_json_text(&single, &name);
                else
                    epi_json_skip(&single);
            if (text && (behind || !epi_json_is(name, "A")))
                return refuse(p, "the post_processor has more than one text");
            behind |= text;
            if (!text && !epi_json_is(key, "SpecialToken"))
                return refuse(p, "the post_processor has a piece that is not supported");
            if (!text)
                add_around(p, special, name, behind ? t->behind : t->before,
                           behind ? &t->behind_count : &t->before_count);
        }
    }
    return is_well(p, &single) && (behind || refuse(p, "the post_processor leaves out the text"));
}

static bool read_around(parser *p, epi_json_reader *r, bool inside) {
    epi_json_string type;
    epi_json_reader list = {0};
    const rule bytes[] = {{"type", NULL, NULL},
                          {"add_prefix_space", NULL, NULL},
                          {"trim_offsets", NULL, NULL},
                          {"use_regex", NULL, NULL},
                          {0}};
    const rule rules[] = {{"type", NULL, NULL}, {"processors", NULL, &list}, {0}};
    if (!read_type(p, r, "the post_processor", &type))
        return false;
    if (epi_json_is(type, "ByteLevel")) /* which moves offsets alone */
        return check_object(p, r, "ByteLevel", bytes);
    if (epi_json_is(type, "TemplateProcessing"))
        return p->t->before_count + p->t->behind_count ? refuse(p, "the post_processor has two templates")
                                                       : read_template(p, r);
    if (!epi_json_is(type, "Sequence") || inside)
        return refuse_type(p, "the post_processor", type);
    if (!check_object(p, r, "the post_processor", rules))
        return false;
    epi_json_array(&list);
    while (p->status == EPI_OK && epi_json_element(&list))
        read_around(p, &list, true);
    return is_well(p, &list);
}

static bool read_decoder(parser *p, epi_json_reader r) {
    epi_json_string type;
    if (is_null(&r))
        return refuse(p, "there is no decoder");
    if (!read_type(p, &r, "the decoder", &type))
        return false;
    return epi_json_is(type, "ByteLevel") || refuse_type(p, "the decoder", type);
}

epi_status epi_tokenizer_read(epi_tokenizer *t, const char *text, size_t size, const char *name,
                              epi_error *err) {
    parser p = {.t = t, .file = name, .err = err};
    epi_json_reader r = {.text = text, .size = size}, model = {0}, added = {0}, cuts = {0}, around = {0},
                    decoder = {0};
    const rule rules[] = {{"version", "\"1.0\"", NULL},      {"truncation", "null", NULL},
                          {"padding", "null", NULL},         {"added_tokens", NULL, &added},
                          {"normalizer", "null", NULL},      {"pre_tokenizer", NULL, &cuts},
                          {"post_processor", NULL, &around}, {"decoder", NULL, &decoder},
                          {"model", NULL, &model},           {0}};
    bool whole = check_object(&p, &r, "the file", rules);
    epi_json_end(&r);
    if (!whole || !is_well(&p, &r))
        return p.status;
    if (!model.text)
        refuse(&p, "there is no model");
    else if (read_model(&p, model, added) && read_added(&p, added) && read_cuts(&p, cuts) &&
             read_decoder(&p, decoder) && !is_null(&around))
        read_around(&p, &around, false);
    return p.status;
}
