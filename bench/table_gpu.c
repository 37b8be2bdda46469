/* table_gpu.c: ours beside cuBLAS, torch.compile and eager PyTorch, as tables. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "record.h"

/* ---- problems: a row each, with columns from the rows of both roundings ---- */

typedef struct column {
    const char *title;
    const char *rounding; /* NULL: whichever has it */
    const char *path;
    const char *format; /* NULL: the path is a shape */
    bool ratio;         /* means something on average */
} column;

enum { MOST_COLUMNS = 12 };

typedef struct table {
    const char *section, *caption;
    const char *first; /* the first column's path and title */
    column columns[MOST_COLUMNS];
} table;

static const table tables[] = {
    {"product",
     "The plain product, ours over cuBLAS:",
     "layout",
     {{"cuBLAS ms, hot", NULL, "hot/base_ms", "%.3f", false},
      {"cuBLAS TFLOP/s", NULL, "hot/base_tflops", "%.0f", false},
      {"hot", "packed", "hot/ratio", "%.3f", true},
      {"cool", "packed", "cool/ratio", "%.3f", true},
      {"flushed", "packed", "flushed/ours_ratio", "%.3f", true},
      {"exact, hot", "exact", "hot/ratio", "%.3f", true},
      {"exact, cool", "exact", "cool/ratio", "%.3f", true}}},
    {"kernels",
     "The kernels, over cuBLAS's raw product of the same shape and layout:",
     "kernel",
     {{"raw ms, hot", NULL, "hot/base_ms", "%.3f", false},
      {"hot", "packed", "hot/ratio", "%.3f", true},
      {"cool", "packed", "cool/ratio", "%.3f", true},
      {"flushed", "packed", "flushed/ours_ratio", "%.3f", true},
      {"exact, hot", "exact", "hot/ratio", "%.3f", true},
      {"exact, cool", "exact", "cool/ratio", "%.3f", true},
      {"torch.compile, flushed", NULL, "flushed/compile_ratio", "%.3f", true},
      {"eager, flushed", NULL, "flushed/eager_ratio", "%.3f", true},
      {"error / eager's", "packed", "worst/of_eager", "%.2f", false},
      {"exact error / eager's", "exact", "worst/of_eager", "%.2f", false},
      {"eager's error", NULL, "worst/eager", "%.1e", false}}},
    {"ragged",
     "Sizes off the tiles, over our own time for the next aligned shape; flushed, over cuBLAS's for the "
     "same:",
     "kernel",
     {{"beside", NULL, "aligned", NULL, false},
      {"hot", "packed", "hot/ratio", "%.3f", false},
      {"cool", "packed", "cool/ratio", "%.3f", false},
      {"flushed / cuBLAS", "packed", "flushed/ours_ratio", "%.3f", false},
      {"exact, hot", "exact", "hot/ratio", "%.3f", false},
      {"exact, cool", "exact", "cool/ratio", "%.3f", false}}},
    {.section = "rows"},
    {.section = "chain"},
    {.section = "launch"},
    {.section = "compile"},
};
enum { TABLES = sizeof tables / sizeof *tables };

static bool same_problem(const record *a, const record *b) {
    return !strcmp(text(a, "kernel"), text(b, "kernel")) && number(a, "m") == number(b, "m") &&
           number(a, "n") == number(b, "n") && number(a, "k") == number(b, "k");
}

static bool is_first(const results *res, const char *section, const record *row) {
    const record *r = res->rows;
    while (r != row && !(belongs(r, section) && same_problem(r, row)))
        r = r->next;
    return r == row;
}

/* The row that has a column's value for a problem, or for any where that is NULL. */
static const record *row_with(const results *res, const char *section, const record *problem,
                              const column *c) {
    char path[80];
    snprintf(path, sizeof path, "%s%s", c->path, c->format ? "" : "/0");
    for (const record *r = res->rows; r; r = r->next)
        if (belongs(r, section) && (!problem || same_problem(r, problem)) &&
            (!c->rounding || !strcmp(text(r, "rounding"), c->rounding)) && !isnan(number(r, path)))
            return r;
    return NULL;
}

static void put_column(const results *res, const char *section, const record *problem, const column *c,
                       epi_text *out) {
    const record *r = row_with(res, section, problem, c);
    double shape[3];
    for (int i = 0; i < 3 && !c->format; i++) {
        char path[80];
        snprintf(path, sizeof path, "%s/%d", c->path, i);
        shape[i] = number(r, path);
    }
    if (c->format)
        put_cell(out, c->format, number(r, c->path));
    else
        put_shape(out, shape[0], shape[1], shape[2]);
}

/* What was wrong with a problem's rows stands with its name. */
static void put_name(const results *res, const table *t, const record *problem, epi_text *out) {
    epi_text_add(out, "| %s", text(problem, t->first));
    for (const record *r = res->rows; r; r = r->next)
        if (belongs(r, t->section) && same_problem(r, problem) && number(r, "ok") == 0)
            epi_text_add(out, " (%s: %s)", text(r, "rounding"), *text(r, "error") ? "failed" : "wrong");
    epi_text_add(out, " |");
}

/* The geometric mean and the largest of each ratio over the problems of one size. */
static void put_means(const results *res, const table *t, const column *const *columns, int count,
                      double size, epi_text *out) {
    for (int worst = 0; worst < 2; worst++) {
        epi_text_add(out, "| **%s** | %.0f |", worst ? "worst" : "geometric mean", size);
        for (int c = 0; c < count; c++) {
            spread all = {0};
            for (const record *p = res->rows; p; p = p->next)
                if (belongs(p, t->section) && number(p, "size") == size && is_first(res, t->section, p))
                    spread_add(&all, number(row_with(res, t->section, p, columns[c]), columns[c]->path));
            put_cell(out, "**%.3f**",
                     !columns[c]->ratio || !all.count ? NAN
                     : worst                          ? all.most
                                                      : spread_mean(&all));
        }
        epi_text_add(out, "\n");
    }
}

static void put_problems(const results *res, const table *t, epi_text *out) {
    const column *columns[MOST_COLUMNS];
    int count = 0;
    double size = NAN;
    for (int i = 0; i < MOST_COLUMNS && t->columns[i].title; i++)
        if (row_with(res, t->section, NULL, &t->columns[i]))
            columns[count++] = &t->columns[i];
    epi_text_add(out, "%s\n\n| %s | rows×cols×depth |", t->caption, t->first);
    for (int c = 0; c < count; c++)
        epi_text_add(out, " %s |", columns[c]->title);
    epi_text_add(out, "\n");
    put_rule(out, count + 2);
    for (const record *p = res->rows; p; p = p->next) {
        if (!belongs(p, t->section) || !is_first(res, t->section, p))
            continue;
        if (!isnan(size) && number(p, "size") != size)
            put_means(res, t, columns, count, size, out);
        size = number(p, "size");
        put_name(res, t, p, out);
        put_shape(out, number(p, "m"), number(p, "n"), number(p, "k"));
        for (int c = 0; c < count; c++)
            put_column(res, t->section, p, columns[c], out);
        epi_text_add(out, "\n");
    }
    if (!isnan(size))
        put_means(res, t, columns, count, size, out);
}

/* What follows `prefix` in the paths of a record, one call after another; NULL at the end. */
static const char *next_under(const field **at, const char *prefix) {
    for (; *at; *at = (*at)->next)
        if (!strncmp((*at)->path, prefix, strlen(prefix))) {
            const char *name = (*at)->path + strlen(prefix);
            *at = (*at)->next;
            return name;
        }
    return NULL;
}

static void put_chain(const results *res, epi_text *out) {
    const record *first = NULL;
    for (const record *r = res->rows; r; r = r->next) {
        if (!belongs(r, "chain"))
            continue;
        const field *at = (first ? first : r)->first;
        const char *name;
        if (!first) {
            int count = 0;
            first = r;
            epi_text_add(out, "%s with the delayed scale (", text(r, "kernel"));
            for (const char *between = ""; (name = next_under(&at, "dims/")); between = ", ") {
                char path[80];
                snprintf(path, sizeof path, "dims/%.70s", name);
                epi_text_add(out, "%s%s = %.0f", between, name, number(r, path));
            }
            epi_text_add(out, "), relative Frobenius distances from f64 and from PyTorch:\n\n| rounding |");
            for (at = r->first; (name = next_under(&at, "errors/")); count++)
                epi_text_add(out, " %s |", name);
            epi_text_add(out, "\n");
            put_rule(out, count + 1);
            at = r->first;
        }
        epi_text_add(out, "| %s%s |", text(r, "rounding"), number(r, "ok") == 0 ? " (wrong)" : "");
        while ((name = next_under(&at, "errors/"))) {
            char path[80];
            snprintf(path, sizeof path, "errors/%.70s", name);
            put_cell(out, "%.2e", number(r, path));
        }
        epi_text_add(out, "\n");
    }
}

/* Kernels over rows, beside a copy that moves as many bytes. */
static void put_rows(const results *res, double rows, epi_text *out) {
    static const struct {
        const char *title, *path, *format;
    } columns[] = {{"µs", "ours_us", "%.1f"},        {"GB/s", "gb_s", "%.0f"},
                   {"of a copy", "of_copy", "%.3f"}, {"torch.compile µs", "compile_us", "%.1f"},
                   {"eager µs", "eager_us", "%.1f"}, {"error / eager's", "worst/of_eager", "%.2f"}};
    enum { COLUMNS = sizeof columns / sizeof *columns };
    epi_text_add(out, "Rows, bytes that must be moved over the time, beside a copy of as many:\n\n"
                      "| kernel | rows×columns |");
    for (int c = 0; c < COLUMNS; c++)
        epi_text_add(out, " %s |", columns[c].title);
    epi_text_add(out, "\n");
    put_rule(out, COLUMNS + 2);
    for (const record *r = res->rows; r; r = r->next) {
        if (!belongs(r, "rows") || (rows > 0 && number(r, "m") != rows))
            continue;
        epi_text_add(out, "| %s%s |", text(r, "kernel"),
                     number(r, "ok") != 0 ? ""
                     : *text(r, "error")  ? " (failed)"
                                          : " (wrong)");
        epi_text_add(out, " %.0f×%.0f |", number(r, "m"), number(r, "n"));
        for (int c = 0; c < COLUMNS; c++)
            put_cell(out, columns[c].format, number(r, columns[c].path));
        epi_text_add(out, "\n");
    }
}

static void put_launch(const results *res, epi_text *out) {
    for (const record *r = res->rows; r; r = r->next) {
        if (!belongs(r, "launch"))
            continue;
        epi_text_add(out, "Host time of a launch (%s,", text(r, "kernel"));
        epi_text_add(out, " %.0f×%.0f×%.0f):\n\n| call | median µs | mean µs |\n", number(r, "m"),
                     number(r, "n"), number(r, "k"));
        put_rule(out, 3);
        const field *at = r->first;
        for (const char *name; (name = next_under(&at, "host/"));) {
            static const char end[] = "/median_us";
            size_t length = strlen(name), cut = sizeof end - 1;
            char path[160];
            if (length <= cut || strcmp(name + length - cut, end))
                continue;
            epi_text_add(out, "| %.*s |", (int)(length - cut), name);
            snprintf(path, sizeof path, "host/%.130s", name);
            put_cell(out, "%.2f", number(r, path));
            snprintf(path, sizeof path, "host/%.*s/mean_us", (int)(length - cut > 120 ? 120 : length - cut),
                     name);
            put_cell(out, "%.2f", number(r, path));
            epi_text_add(out, "\n");
        }
    }
}

static void put_compile(const results *res, epi_text *out) {
    epi_text_add(out, "Seconds to compile at 4096, and to load from the cache in another process:\n\n"
                      "| kernel | compiled | from the cache |\n");
    put_rule(out, 3);
    for (const record *r = res->rows; r; r = r->next) {
        if (!belongs(r, "compile"))
            continue;
        epi_text_add(out, "| %s%s |", text(r, "kernel"), number(r, "ok") == 0 ? " (failed)" : "");
        put_cell(out, "%.2f", number(r, "cold_s"));
        put_cell(out, "%.4f", number(r, "cached_s"));
        epi_text_add(out, "\n");
    }
}

/* Clocks and power while the hot rows ran. */
static void put_clocks(const results *res, epi_text *out) {
    double low = INFINITY, high = 0, watts = 0;
    for (const record *r = res->rows; r; r = r->next)
        for (int side = 0; side < 2; side++) {
            double mhz = number(r, side ? "hot/ours_mhz" : "hot/base_mhz"),
                   w = number(r, side ? "hot/ours_watts" : "hot/base_watts");
            low = fmin(low, mhz); /* of NaN and a number, the number */
            high = fmax(high, mhz);
            watts = fmax(watts, w);
        }
    if (high > 0)
        epi_text_add(out, "; hot at %.0f to %.0f MHz", low, high);
    if (watts > 0)
        epi_text_add(out, ", up to %.0f W", watts);
}

static void put_head(const results *res, const char *path, epi_text *out) {
    static const struct {
        const char *key, *before;
    } parts[] = {{"device", ""},
                 {"driver", ", driver "},
                 {"torch", ", PyTorch "},
                 {"cuda", ", CUDA "},
                 {"type", ", "}};
    const record *h = &res->head;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (*text(h, parts[i].key))
            epi_text_add(out, "%s%s", parts[i].before, text(h, parts[i].key));
    put_clocks(res, out);
    epi_text_add(out, "; %.10s at commit %s (`%s`)\n", text(h, "date"), text(h, "commit"), path);
}

/* Every table that `names` has (all, where it is empty) and the file has rows of. */
bool put_gpu(const results *res, const char *path, const char *names, epi_text *out) {
    int known = 0, asked = 0;
    put_head(res, path, out);
    for (const char *at = names; *(at += strspn(at, " ")); at += strcspn(at, " "))
        asked++;
    for (int i = 0; i < TABLES; i++) {
        bool wanted = !asked, there = false;
        double rows = 0; /* "rows@8192": those alone */
        for (const char *at = names; *(at += strspn(at, " ")); at += strcspn(at, " "))
            if (strcspn(at, " @") == strlen(tables[i].section) &&
                !strncmp(at, tables[i].section, strlen(tables[i].section))) {
                wanted = true;
                known++;
                rows = at[strcspn(at, " @")] == '@' ? strtod(at + strcspn(at, " @") + 1, NULL) : 0;
            }
        for (const record *r = res->rows; r; r = r->next)
            there |= belongs(r, tables[i].section);
        if (!wanted || !there)
            continue;
        epi_text_add(out, "\n");
        if (tables[i].caption)
            put_problems(res, &tables[i], out);
        else if (!strcmp(tables[i].section, "rows"))
            put_rows(res, rows, out);
        else if (!strcmp(tables[i].section, "chain"))
            put_chain(res, out);
        else if (!strcmp(tables[i].section, "launch"))
            put_launch(res, out);
        else
            put_compile(res, out);
    }
    if (known != asked)
        fprintf(stderr, "%s: '%s' names a table that there is not\n", path, names);
    return known == asked;
}
