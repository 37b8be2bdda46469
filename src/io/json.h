/* json.h: a strict JSON reader that pulls values one at a time, and a small JSON writer.
 *
 * The reader builds no tree: the caller walks the text and says what it expects next.
 *
 *     epi_json_reader r = {.text = text, .size = size};
 *     epi_json_object(&r);
 *     while (epi_json_member(&r, &key))
 *         if (epi_json_is(key, "size")) epi_json_size(&r, &n); else epi_json_skip(&r);
 *     epi_json_end(&r);
 *     if (r.why) ... byte r.at is where it went wrong
 *
 * Errors are sticky: the first is kept, every later read does nothing, every loop ends.
 */
#ifndef EPI_IO_JSON_H
#define EPI_IO_JSON_H

#include "base/base.h"

enum { EPI_JSON_MAX_DEPTH = 64 };

typedef struct epi_json_reader {
    const char *text;
    size_t size;
    size_t at;       /* the next byte; once `why` is set, the offending one */
    const char *why; /* NULL while all is well */
    int depth;
    bool fresh; /* directly after '{' or '[': no comma stands before the next value */
} epi_json_reader;

/* A string of the text between its quotes: valid UTF-8 and valid escapes, still escaped. */
typedef struct epi_json_string {
    const char *data;
    size_t size;
} epi_json_string;

void epi_json_object(epi_json_reader *r);                       /* '{' */
bool epi_json_member(epi_json_reader *r, epi_json_string *key); /* the next key, or false at '}' */
void epi_json_array(epi_json_reader *r);                        /* '[' */
bool epi_json_element(epi_json_reader *r);                      /* another element, or false at ']' */
bool epi_json_text(epi_json_reader *r, epi_json_string *out);
bool epi_json_size(epi_json_reader *r, int64_t *out); /* an integer in 0 .. 2^63-1 */
void epi_json_skip(epi_json_reader *r);               /* one value of any kind */
void epi_json_end(epi_json_reader *r);                /* only white space is left */
/* For a caller that does not like what it read. `why` must outlive the reader. */
void epi_json_refuse(epi_json_reader *r, const char *why);

/* Whether the string, its escapes resolved, is `text`. */
bool epi_json_is(epi_json_string s, const char *text);
/* The string with its escapes resolved, in the arena. */
char *epi_json_copy(epi_json_string s, epi_arena *arena);

/* The length of the well-formed UTF-8 character that starts at s, or 0. */
size_t epi_utf8_length(const char *s, size_t size);

/* The writer puts the commas. Inside an object, every value follows its key. */
typedef struct epi_json_writer {
    epi_text *text;
    bool comma; /* a value came last at this level */
} epi_json_writer;

void epi_json_put_open(epi_json_writer *w, char bracket); /* '{' or '[' */
void epi_json_put_close(epi_json_writer *w, char bracket);
void epi_json_put_key(epi_json_writer *w, const char *key);
/* Bytes that are not UTF-8 become U+FFFD; NULL becomes null. */
void epi_json_put_text(epi_json_writer *w, const char *value);
void epi_json_put_integer(epi_json_writer *w, int64_t value);
/* The fewest digits that read back as the same value; null for what JSON has no number for. */
void epi_json_put_number(epi_json_writer *w, double value);
void epi_json_put_bool(epi_json_writer *w, bool value);

#endif
