/* test_json.c: what the JSON writer writes, the strict reader reads. Malformed texts are the subject of
 * test_safetensors.c, whose headers go through the same reader. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "io/json.h"

static int passed, failed;

static void check(bool ok, const char *what, const char *got) {
    *(ok ? &passed : &failed) += 1;
    if (!ok)
        printf("  FAILED %s: %s\n", what, got);
}

static void write_all_kinds(epi_text *text) {
    epi_json_writer w = {.text = text};
    epi_json_put_open(&w, '{');
    epi_json_put_key(&w, "a\"\\\x1f");
    epi_json_put_open(&w, '[');
    epi_json_put_integer(&w, INT64_MIN);
    epi_json_put_number(&w, 0.1);
    epi_json_put_number(&w, 1.0 / 3);
    epi_json_put_number(&w, DBL_MAX);
    epi_json_put_number(&w, NAN);
    epi_json_put_number(&w, -INFINITY);
    epi_json_put_bool(&w, true);
    epi_json_put_text(&w, "\xC3\xA9\xFF");
    epi_json_put_text(&w, NULL);
    epi_json_put_open(&w, '{');
    epi_json_put_close(&w, '}');
    epi_json_put_close(&w, ']');
    epi_json_put_key(&w, "b");
    epi_json_put_bool(&w, false);
    epi_json_put_close(&w, '}');
}

static void writer(void) {
    const char *expected =
        "{\"a\\\"\\\\\\u001f\":[-9223372036854775808,0.1,0.3333333333333333,1.7976931348623157e+308,"
        "null,null,true,\"\xC3\xA9\xEF\xBF\xBD\",null,{}],\"b\":false}";
    epi_text text = {0};
    write_all_kinds(&text);
    check(!text.failed && strcmp(text.data, expected) == 0, "text", text.data);
    epi_text_free(&text);
}

static void reader(void) {
    epi_text text = {0};
    write_all_kinds(&text);
    epi_json_reader r = {.text = text.data, .size = text.length};
    epi_json_skip(&r);
    epi_json_end(&r);
    check(!r.why, "reads back", r.why);

    epi_arena arena = {0};
    epi_json_string key = {0};
    r = (epi_json_reader){.text = text.data, .size = text.length};
    epi_json_object(&r);
    bool more = epi_json_member(&r, &key);
    const char *copy = epi_json_copy(key, &arena);
    check(more && epi_json_is(key, "a\"\\\x1f") && !epi_json_is(key, "a\"\\"), "key", key.data);
    check(copy && strcmp(copy, "a\"\\\x1f") == 0, "copy", copy);
    epi_arena_free(&arena);
    epi_text_free(&text);
}

/* The first error stays, and nothing moves after it. */
static void sticky(void) {
    epi_json_reader r = {.text = "[1,x,2]", .size = 7};
    int64_t n, sum = 0;
    epi_json_array(&r);
    while (epi_json_element(&r) && epi_json_size(&r, &n))
        sum += n;
    epi_json_end(&r);
    epi_json_refuse(&r, "something else");
    check(sum == 1 && r.at == 3 && strcmp(r.why, "expected an integer that is not negative") == 0, "sticky",
          r.why);
}

int main(void) {
    static const struct {
        const char *name;
        void (*run)(void);
    } groups[] = {{"writer", writer}, {"reader", reader}, {"sticky errors", sticky}};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        int p = passed, f = failed;
        groups[i].run();
        printf("json: %s: %d passed, %d failed\n", groups[i].name, passed - p, failed - f);
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
