/* test_tokenizer.c: a small tokenizer.json made here: texts become the tokens that BPE makes of them, and back; files that
 * are broken, or say what is not understood, are refused by name. python/tests/test_tokenizer.py holds it against
 * Hugging Face's own. */
#include "epilog_io.h"
#include "harness.h"
#include "io/json.h"

/* ---- a file ---- */

static const char *const merges[] = {"h e", "l l",   "he ll", "hell o", "Ġ w",
                                     "o r", "Ġw or", "Ġ Ġ",   "1 2",    "\\\" \\\""};
enum { MERGES = sizeof merges / sizeof *merges, FIRST_ADDED = 256 + MERGES };

/* The character that stands for a byte, in UTF-8 and with JSON's escapes. */
static void put_byte(epi_text *out, int byte) {
    static const unsigned char hidden_from[] = {0, 127, 173, 255}, hidden_to[] = {32, 160, 173, 254};
    int c = byte, before = 0;
    for (int i = 0; i < 3; i++) {
        if (byte >= hidden_from[i] && byte <= hidden_to[i])
            c = 256 + before + byte - hidden_from[i];
        before += hidden_to[i] - hidden_from[i] + 1;
    }
    if (c == '"' || c == '\\')
        epi_text_add(out, "\\%c", c);
    else if (c < 128)
        epi_text_add(out, "%c", c);
    else
        epi_text_add(out, "%c%c", 0xC0 | c >> 6, 0x80 | (c & 63));
}

static void put_vocab(epi_text *out) {
    for (int i = 0; i < 256; i++) {
        epi_text_add(out, "%s\"", i ? ", " : "");
        put_byte(out, i);
        epi_text_add(out, "\": %d", i);
    }
    for (int i = 0; i < MERGES; i++) {
        const char *gap = strchr(merges[i], ' ');
        epi_text_add(out, ", \"%.*s%s\": %d", (int)(gap - merges[i]), merges[i], gap + 1, 256 + i);
    }
}

#define BYTES \
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}"
#define AROUND \
    "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": " \
    "0}}, " \
    "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [], \"special_tokens\": {\"<s>\": " \
    "{\"id\": " \
    "\"<s>\", \"ids\": [266], \"tokens\": [\"<s>\"]}}}"

static char *make_file(const char *cut, const char *around) {
    epi_text out = {0};
    epi_text_add(
        &out,
        "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [{\"id\": %d, "
        "\"content\": \"<s>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
        "\"normalized\": false, \"special\": true}, {\"id\": %d, \"content\": \"<s><s>\", \"special\": "
        "false}], \"normalizer\": null, \"pre_tokenizer\": %s, \"post_processor\": %s, \"decoder\": %s, "
        "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
        "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
        "\"byte_fallback\": false, \"vocab\": {",
        FIRST_ADDED, FIRST_ADDED + 1, cut, around, BYTES);
    put_vocab(&out);
    epi_text_add(&out, "}, \"merges\": [");
    for (int i = 0; i < MERGES; i++)
        epi_text_add(&out, "%s\"%s\"", i ? ", " : "", merges[i]);
    epi_text_add(&out, "]}}");
    return out.data;
}

static epi_tokenizer *parse(const char *text, epi_error *err) {
    epi_tokenizer *t = NULL;
    epi_tokenizer_parse(text, strlen(text), "tokenizer.json", &t, err);
    return t;
}

/* ---- texts ---- */

typedef struct row {
    const char *text;
    int count, ids[8];
} row;

static void hold(const epi_tokenizer *t, const row *r) {
    int32_t ids[64];
    size_t count, size;
    char back[256];
    epi_error err = {0};
    epi_status status = epi_tokenizer_encode(t, r->text, strlen(r->text), ids, 64, &count, &err);
    bool same = status == EPI_OK && count == (size_t)r->count;
    for (int i = 0; same && i < r->count; i++)
        same = ids[i] == r->ids[i];
    check(same, "the tokens of '%s': %zu, first %d; %s", r->text, count, ids[0], err.message);
    status = epi_tokenizer_decode(t, ids, count, false, back, sizeof back, &size, &err);
    check(status == EPI_OK && size == strlen(r->text) && !memcmp(back, r->text, size), "'%s' comes back",
          r->text);
}

enum { HE = 256, LL, HELL, HELLO, SPACE_W, OR, SPACE_WOR, TWO_SPACES, TWELVE, QUOTES };

static void texts(void) {
    static const row rows[] = {
        {"", 0, {0}},
        {"hello", 1, {HELLO}},
        {"hello wor", 2, {HELLO, SPACE_WOR}},
        {"hell", 1, {HELL}},
        {"lll", 2, {LL, 'l'}}, /* from the left */
        {"12", 1, {TWELVE}},
        {"   x", 3, {TWO_SPACES, ' ', 'x'}}, /* the last space belongs to the word */
        {"<s>he<s><s>", 3, {FIRST_ADDED, HE, FIRST_ADDED + 1}},
        {"\"\"", 1, {QUOTES}},
        {"\xC3\xA9", 2, {0xC3, 0xA9}},
        {"he<s", 3, {HE, '<', 's'}},
    };
    char *file = make_file(BYTES, "null");
    epi_error err = {0};
    epi_tokenizer *t = parse(file, &err);
    if (check(t != NULL, "the file: %s", err.message))
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            hold(t, &rows[i]);
    check(epi_tokenizer_count(t) == FIRST_ADDED + 2 && epi_tokenizer_added(t, "<s>") == FIRST_ADDED &&
              epi_tokenizer_added(t, "he") == -1,
          "tokens by name");
    size_t count, size;
    char back[8] = "????";
    epi_tokenizer *none = NULL;
    int32_t ids[2] = {FIRST_ADDED, HELLO}, few[1], bad = FIRST_ADDED + 2;
    check(epi_tokenizer_decode(t, ids, 2, true, back, 3, &size, &err) == EPI_OK && size == 5 &&
              !memcmp(back, "hel?", 4),
          "special tokens are left out, and what has no room");
    check(epi_tokenizer_encode(t, "he he", 5, few, 1, &count, &err) == EPI_OK && count == 3 && few[0] == HE,
          "tokens that have no room");
    check(epi_tokenizer_decode(t, &bad, 1, true, back, 8, &size, &err) == EPI_ERR_ARGUMENT &&
              strstr(err.message, "268"),
          "a token that there is not: %s", err.message);
    check(epi_tokenizer_encode(t, "ab\xFFz", 4, ids, 2, &count, &err) == EPI_ERR_ARGUMENT &&
              strstr(err.message, "byte 2, 0xff"),
          "what is not UTF-8: %s", err.message);
    check(epi_tokenizer_encode(NULL, "", 0, ids, 2, &count, &err) == EPI_ERR_ARGUMENT &&
              epi_tokenizer_encode(t, NULL, 1, ids, 2, &count, &err) == EPI_ERR_ARGUMENT &&
              epi_tokenizer_encode(t, "a", 1, NULL, 2, &count, NULL) == EPI_ERR_ARGUMENT &&
              epi_tokenizer_decode(t, NULL, 1, 0, back, 8, &size, &err) == EPI_ERR_ARGUMENT &&
              epi_tokenizer_open(NULL, &none, NULL) == EPI_ERR_ARGUMENT && !none,
          "arguments that are NULL");
    epi_tokenizer_close(t);
    free(file);
}

/* A long word must not take time by its square. */
static void long_words(void) {
    enum { LONG = 1 << 20 };
    char *file = make_file(BYTES, "null"), *text = malloc(LONG);
    epi_tokenizer *t = parse(file, NULL);
    size_t count = 0;
    memset(text, 'l', LONG);
    check(epi_tokenizer_encode(t, text, LONG, NULL, 0, &count, NULL) == EPI_OK && count == LONG / 2,
          "a word of %d letters: %zu", LONG, count);
    epi_tokenizer_close(t);
    free(text);
    free(file);
}

static void ways_to_cut(void) {
    static const char digits[] = "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", "
                                 "\"individual_digits\": true}, " BYTES "]}";
    char *file = make_file(digits, AROUND);
    epi_error err = {0};
    epi_tokenizer *t = parse(file, &err);
    int32_t ids[8];
    size_t count;
    if (check(t != NULL, "digits: %s", err.message)) {
        check(epi_tokenizer_encode(t, "12", 2, ids, 8, &count, &err) == EPI_OK && count == 3 &&
                  ids[0] == FIRST_ADDED && ids[1] == '1' && ids[2] == '2',
              "digits are words, and a token stands before every text");
        epi_tokenizer_close(t);
    }
    free(file);
}

/* ---- bad files ---- */

/* A zero is no white space, before a value of an object or a merge. */
static void zeros(void) {
    static const char *const spaces[] = {" \"1.0\"", " \"l l\""};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        char *file = make_file(BYTES, AROUND), *at = strstr(file, spaces[i]);
        size_t size = strlen(file);
        epi_tokenizer *t = NULL;
        epi_error err = {0};
        if (check(at != NULL, "the file has '%s'", spaces[i]))
            *at = 0;
        epi_status status = epi_tokenizer_parse(file, size, "zero", &t, &err);
        check(status == EPI_ERR_FILE && !t, "a zero in place of the space of '%s': %s", spaces[i],
              t ? "it is taken" : err.message);
        epi_tokenizer_close(t);
        free(file);
    }
}

/* The file with one place changed. */
static char *edited(const char *file, const char *from, const char *to) {
    const char *at = strstr(file, from);
    epi_text out = {0};
    if (!check(at != NULL, "the file has %s", from))
        return strdup(file);
    epi_text_add(&out, "%.*s%s%s", (int)(at - file), file, to, at + strlen(from));
    return out.data;
}

static void bad_files(void) {
    static const struct {
        const char *from, *to, *why;
    } edits[] = {
        {"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}", "normalizer"},
        {"\"truncation\": null", "\"truncation\": {}", "truncation"},
        {"\"version\"", "\"revision\"", "revision"},
        {"\"BPE\"", "\"Unigram\"", "Unigram"},
        {"\"byte_fallback\": false", "\"byte_fallback\": true", "byte_fallback"},
        {"\"dropout\": null", "\"dropout\": 0.1", "dropout"},
        {"\"add_prefix_space\": false", "\"add_prefix_space\": true", "add_prefix_space"},
        {"\"lstrip\": false", "\"lstrip\": true", "lstrip"},
        {"\"merges\"", "\"mergers\"", "mergers"},
        {", \"merges\": [\"h e\"", ", \"fuse_unk\": [\"h e\"", "no merges"},
        {"\"h e\"", "\"h x\"", "merge 0"},
        {"\"h e\"", "\"he\"", "merge 0 is not a pair"},
        {"\"h e\"", "[\"h\"]", "merge 0 is not a pair"},
        {"\"h e\"", "\"l l\"", "merge 1 is there twice"},
        {"\"h e\"", "7", "expected a string"},
        {"\"A\": 65", "\"A\": 66", "two tokens have the id 66"},
        {"\"A\": 65", "\"B\": 65", "twice"},
        {"\"A\": 65", "\"\": 65", "empty"},
        {"\"A\": 65", "\"A\": 99999999", "too large"},
        {"\"A\": 65", "\"A\": -1", "integer"},
        {"\"A\": 65", "\"A\\u0000\": 65", "NUL"},
        {"{\"id\": 266, ", "{\"id\": 65, ", "another token"},
        {"\"content\": \"<s>\"", "\"content\": \"\"", "empty"},
        {"\"pre_tokenizer\": {\"type\": \"ByteLevel\"", "\"pre_tokenizer\": {\"type\": \"Metaspace\"",
         "Metaspace"},
        {"\"decoder\": {\"type\": \"ByteLevel\"", "\"decoder\": {\"type\": \"Fuse\"", "Fuse"},
        {"\"ids\": [266]", "\"ids\": [999]", "not a token"},
        {"\"ids\": [266]", "\"ids\": 266", "expected an array"},
        {"\"Sequence\": {\"id\": \"A\"", "\"Sequence\": {\"id\": \"B\"", "text"},
        {"\\\"\"]}}", "\\\"\"]}", "byte"}, /* the end */
        {"\\\"\"]}}", "\\\"\"]}}x", "byte"},
    };
    char *file = make_file(BYTES, AROUND);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char *bad = edited(file, edits[i].from, edits[i].to);
        epi_error err = {0};
        epi_tokenizer *t = parse(bad, &err);
        check(!t && err.status == EPI_ERR_FILE && strstr(err.message, edits[i].why), "%s for %s: %s",
              edits[i].to, edits[i].from, t ? "it is taken" : err.message);
        epi_tokenizer_close(t);
        free(bad);
    }
    for (size_t n = 0; n < strlen(file); n += n < 1500 ? 1 : 97) {
        epi_tokenizer *t = NULL;
        char *cut = malloc(n + 1); /* so that a byte behind it is seen */
        memcpy(cut, file, n);
        check(epi_tokenizer_parse(cut, n, "cut", &t, NULL) == EPI_ERR_FILE && !t, "the first %zu bytes", n);
        free(cut);
    }
    free(file);
    epi_tokenizer *t = NULL;
    epi_error err = {0};
    check(epi_tokenizer_open("/there/is/none", &t, &err) == EPI_ERR_FILE && !t,
          "a file that there is not: %s", err.message);
    check(epi_tokenizer_open("/", &t, &err) == EPI_ERR_FILE && !t, "a directory: %s", err.message);
}

int main(void) {
    texts();
    long_words();
    ways_to_cut();
    bad_files();
    zeros();
    return finish();
}
