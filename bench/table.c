/* table.c: makes the tables of a Markdown file from the result files that `epilog bench --out` wrote.
 *
 *     table FILE.md           rewrites what stands between <!-- table: RESULT.json --> and <!-- end -->
 *     table --check FILE.md   only says whether that would change anything
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

static char *read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    char *text = f ? malloc(1 << 22) : NULL;
    *size = text ? fread(text, 1, (1 << 22) - 1, f) : 0;
    if (f)
        fclose(f);
    if (text)
        text[*size] = 0;
    return text;
}

/* The text of a number as the file has it. */
static double number(epi_json_reader *r) {
    while (r->at < r->size && strchr(" \n\t", r->text[r->at]))
        r->at++;
    size_t start = r->at;
    epi_json_skip(r);
    return epi_number_read(r->text + start, r->at - start);
}

static void copy_text(epi_json_reader *r, char *out, size_t size) {
    epi_json_string s = {"", 0};
    epi_json_text(r, &s);
    snprintf(out, size, "%.*s", (int)s.size, s.data);
}

static void table_row(epi_json_reader *r, epi_text *out) {
    static const char *const keys[] = {"m",        "n",      "k",      "fused_ms", "unfused_ms",
                                       "sgemm_ms", "of_raw", "gflops", "error"};
    enum { KEYS = sizeof keys / sizeof *keys };
    double v[KEYS] = {0};
    char name[64] = "";
    epi_json_string key;
    epi_json_object(r);
    while (epi_json_member(r, &key)) {
        int i = 0;
        while (i < KEYS && !epi_json_is(key, keys[i]))
            i++;
        if (i < KEYS)
            v[i] = number(r);
        else if (epi_json_is(key, "kernel"))
            copy_text(r, name, sizeof name);
        else
            epi_json_skip(r);
    }
    epi_text_add(out, "| %s | %.0f×%.0f×%.0f | %.2f | %.2f | %.2f× | %.0f |", name, v[0], v[1], v[2], v[3],
                 v[4], v[4] / v[3], v[7]);
    if (v[5] > 0)
        epi_text_add(out, " %.2f | %.3f |", v[5], v[6]);
    else
        epi_text_add(out, " | |");
    epi_text_add(out, " %.1e |\n", v[8]);
}

/* One result file as a table with a line that says where it is from. */
static bool table(const char *path, epi_text *out) {
    size_t size;
    char *text = read_file(path, &size);
    if (!text) {
        fprintf(stderr, "%s: cannot be read\n", path);
        return false;
    }
    epi_json_reader r = {.text = text, .size = size};
    epi_json_string key;
    char cpu[128] = "", type[16] = "", date[32] = "", commit[64] = "";
    double threads = 0;
    epi_text rows = {0};
    epi_json_object(&r);
    while (epi_json_member(&r, &key)) {
        if (epi_json_is(key, "cpu"))
            copy_text(&r, cpu, sizeof cpu);
        else if (epi_json_is(key, "type"))
            copy_text(&r, type, sizeof type);
        else if (epi_json_is(key, "date"))
            copy_text(&r, date, sizeof date);
        else if (epi_json_is(key, "commit"))
            copy_text(&r, commit, sizeof commit);
        else if (epi_json_is(key, "threads"))
            threads = number(&r);
        else if (epi_json_is(key, "rows")) {
            epi_json_array(&r);
            while (epi_json_element(&r))
                table_row(&r, &rows);
        } else
            epi_json_skip(&r);
    }
    if (r.why)
        fprintf(stderr, "%s: byte %zu: %s\n", path, r.at, r.why);
    epi_text_add(out, "%s operands, %.0f threads, %s; %s at commit %s (`%s`)\n\n", type, threads, cpu, date,
                 commit, path);
    epi_text_add(out, "| kernel | rows×cols×depth | fused ms | unfused ms | speed-up | GFLOP/s | sgemm ms | "
                      "fused / sgemm | error |\n");
    epi_text_add(out, "|---|---|---|---|---|---|---|---|---|\n%s", rows.data ? rows.data : "");
    epi_text_free(&rows);
    free(text);
    return !r.why;
}

int main(int argc, char **argv) {
    bool only_check = argc > 2 && !strcmp(argv[1], "--check"), ok = true;
    const char *path = argv[argc - 1];
    size_t size;
    char *text = argc > 1 ? read_file(path, &size) : NULL;
    if (!text) {
        fprintf(stderr, "usage: table [--check] FILE.md\n");
        return 2;
    }
    static const char open[] = "<!-- table: ", close[] = "<!-- end -->";
    epi_text out = {0};
    int tables = 0;
    for (char *at = text; *at;) {
        char *start = strstr(at, open), *end = start ? strstr(start, close) : NULL,
             *name_end = start ? strstr(start, " -->") : NULL;
        if (!end || !name_end) {
            epi_text_add(&out, "%s", at);
            break;
        }
        char result[512];
        snprintf(result, sizeof result, "%.*s", (int)(name_end - start - (long)strlen(open)),
                 start + strlen(open));
        epi_text_add(&out, "%.*s%s%s -->\n", (int)(start - at), at, open, result);
        ok &= table(result, &out);
        epi_text_add(&out, "%s", close);
        at = end + strlen(close);
        tables++;
    }
    bool same = out.length == size && !memcmp(out.data, text, size);
    if (only_check) {
        ok &= same;
        printf("%d passed, %d failed\n", ok ? tables + 1 : tables, !ok);
    } else if (ok && !same) {
        FILE *f = fopen(path, "wb");
        ok = f && fwrite(out.data, 1, out.length, f) == out.length;
        ok &= f && fclose(f) == 0;
    }
    epi_text_free(&out);
    free(text);
    return ok ? 0 : 1;
}
