/* test_json.c: what the JSON writer writes, the strict reader reads. Malformed texts are the subject of
 * test_safetensors.c, whose headers go through the same reader. Charts, too. */
#include <float.h>
#include <locale.h>

#include "../cli/chart.h"
#include "harness.h"
#include "io/json.h"

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
    check(!text.failed && strcmp(text.data, expected) == 0, "text: %s", text.data);
    epi_text_free(&text);
}

static void reader(void) {
    epi_text text = {0};
    write_all_kinds(&text);
    epi_json_reader r = {.text = text.data, .size = text.length};
    epi_json_skip(&r);
    epi_json_end(&r);
    check(!r.why, "reads back: %s", r.why);

    epi_arena arena = {0};
    epi_json_string key = {0};
    r = (epi_json_reader){.text = text.data, .size = text.length};
    epi_json_object(&r);
    bool more = epi_json_member(&r, &key);
    const char *copy = epi_json_copy(key, &arena);
    check(more && epi_json_is(key, "a\"\\\x1f") && !epi_json_is(key, "a\"\\"), "key: %s", key.data);
    check(copy && strcmp(copy, "a\"\\\x1f") == 0, "copy: %s", copy);
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
    check(sum == 1 && r.at == 3 && strcmp(r.why, "expected an integer that is not negative") == 0,
          "sticky: %s", r.why);
}

/* Numbers are the same in every locale. One with a decimal comma is made here, where localedef can. */
static void numbers(void) {
    static const struct {
        const char *text;
        double value;
        const char *written;
    } cases[] = {{"0.5", 0.5, "0.5"},
                 {"-1.25e-3", -0.00125, "-0.00125"},
                 {"1e-7", 1e-7, "1e-07"},
                 {"00.10", 0.1, "0.1"},
                 {"12345678.9e10", 12345678.9e10, "1.23456789e+17"},
                 {"1e400", INFINITY, "inf"},
                 {"9007199254740993.00000000000000000000001", 9007199254740994.0, "9007199254740994"},
                 {"3", 3, "3"}};
    char folder[] = "/tmp/epilog-locale-XXXXXX", command[200];
    bool comma = false;
    if (mkdtemp(folder)) {
        snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE >/dev/null 2>&1", folder);
        if (system(command) >= 0 && setenv("LOCPATH", folder, 1) == 0 && setlocale(LC_ALL, "de_DE"))
            comma = *localeconv()->decimal_point == ',';
        snprintf(command, sizeof command, "rm -rf %s", folder);
    }
    printf("json: numbers, in a locale with a decimal %s\n", comma ? "comma" : "point: no other was found");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double value = epi_number_read(cases[i].text, strlen(cases[i].text));
        check(value == cases[i].value, "read: %s", cases[i].text);
        check(!strcmp(epi_number_write(value).text, cases[i].written), "written: %s",
              epi_number_write(value).text);
    }
    char zeros[400] = "0.";
    memset(zeros + 2, '0', 300);
    strcpy(zeros + 302, "25e301");
    check(epi_number_read(zeros, strlen(zeros)) == 2.5, "read: a long number");
    setlocale(LC_ALL, "C");
    if (system(command) != 0)
        check(false, "remove: %s", folder);
}

/* Charts: what is not there, names from anywhere, values past the axis, bars. */
static void charts(void) {
    static epi_chart c = {
        .title = "a<b & c", .axis = "time", .series = {"ours", "theirs"}, .series_count = 2};
    epi_text out = {0};
    epi_chart_row *r = epi_chart_add(&c);
    snprintf(r->name, sizeof r->name, "<x&\n>");
    r->values[0] = 0.5;
    r = epi_chart_add(&c);
    snprintf(r->name, sizeof r->name, "far");
    r->values[0] = 2;
    r->values[1] = 1000;
    epi_chart_svg(&c, &out);
    const char *svg = out.data ? out.data : "";
    check(strstr(svg, ">a&lt;b &amp; c<") && strstr(svg, ">&lt;x& >") == NULL &&
              strstr(svg, ">&lt;x&amp; ><"),
          "names are escaped: %s", svg);
    check(strstr(svg, ">–</text>") != NULL, "a value that is not there: %s", svg);
    check(strstr(svg, "geometric mean") && strstr(svg, ">1.00</text>"), "the mean of a whole series: %s",
          svg);
    check(strstr(svg, "nan") == NULL && strstr(svg, "inf") == NULL, "no places without numbers: %s", svg);
    epi_text_free(&out);
    epi_chart_bars(&c, 60, NULL, &out);
    check(out.data && strstr(out.data, "far") && strstr(out.data, "█ 1000.00\n"), "bars: %s", out.data);
    size_t longest = 0;
    for (const char *at = out.data; at && *at; at += strcspn(at, "\n") + 1) {
        size_t n = 0; /* characters, of which those of several bytes go on with 10xxxxxx */
        for (const char *p = at; *p && *p != '\n'; p++)
            n += (*p & 0xc0) != 0x80;
        longest = n > longest ? n : longest;
    }
    check(longest > 40 && longest <= 60, "bars fit the width: %s", out.data);
    epi_text_free(&out);
    int room = 0;
    while (epi_chart_add(&c))
        room++;
    check(room == EPI_CHART_ROWS - 2, "a chart has an end: more rows than there is room for");
}

int main(void) {
    writer();
    reader();
    sticky();
    numbers();
    charts();
    return finish();
}
