/* record.c: reads a result file. Keys that nobody asks for do no harm, and missing ones read as nothing. */
#include "record.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

char *read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    char *text = f ? malloc(1 << 24) : NULL;
    *size = text ? fread(text, 1, (1 << 24) - 1, f) : 0;
    if (f)
        fclose(f);
    if (text)
        text[*size] = 0;
    return text;
}

static void add_field(epi_arena *arena, record *to, const char *path, const char *text, double number) {
    field *f = epi_arena_alloc(arena, sizeof *f);
    if (!f || !path)
        return;
    *f = (field){NULL, path, text, number};
    *(to->last ? &to->last->next : &to->first) = f;
    to->last = f;
}

static const char *join(epi_arena *arena, const char *path, const char *name) {
    size_t size = (path ? strlen(path) : 0) + (name ? strlen(name) : 0) + 2;
    char *out = epi_arena_alloc(arena, size);
    if (out)
        snprintf(out, size, "%s%s%s", path ? path : "", path && *path ? "/" : "", name ? name : "");
    return out;
}

/* One value of any kind; null is as good as nothing. */
static void read_value(epi_json_reader *r, epi_arena *arena, record *to, const char *path) {
    epi_json_string s;
    r->at += strspn(r->text + r->at, " \n\r\t");
    const char *start = r->text + r->at;
    if (*start == '{') {
        epi_json_object(r);
        while (epi_json_member(r, &s))
            read_value(r, arena, to, join(arena, path, epi_json_copy(s, arena)));
    } else if (*start == '[') {
        epi_json_array(r);
        for (int i = 0; epi_json_element(r); i++) {
            char name[16];
            snprintf(name, sizeof name, "%d", i);
            read_value(r, arena, to, join(arena, path, name));
        }
    } else if (*start == '"') {
        if (epi_json_text(r, &s))
            add_field(arena, to, path, epi_json_copy(s, arena), NAN);
    } else {
        epi_json_skip(r);
        if (!r->why && *start != 'n')
            add_field(arena, to, path, NULL,
                      *start == 't'   ? 1
                      : *start == 'f' ? 0
                                      : epi_number_read(start, (size_t)(r->text + r->at - start)));
    }
}

const field *find(const record *r, const char *path) {
    static const field none = {NULL, "", "", NAN};
    for (const field *f = r ? r->first : NULL; f; f = f->next)
        if (!strcmp(f->path, path))
            return f;
    return &none;
}

double number(const record *r, const char *path) {
    return find(r, path)->number;
}

const char *text(const record *r, const char *path) {
    const char *t = find(r, path)->text;
    return t ? t : "";
}

bool belongs(const record *r, const char *section) {
    return !strcmp(text(r, "section"), section) && !*text(r, "config");
}

/* Of the outputs of a row the one nearest to its bound, which is twice eager PyTorch's error: its error over
 * eager's, and that over the largest value, go beside the other fields. */
static void find_worst(epi_arena *arena, record *r) {
    double worst = NAN, eager = NAN;
    for (int i = 0; i < 64; i++) {
        char path[4][40];
        static const char *const names[] = {"error", "bound", "eager_error", "largest"};
        for (int n = 0; n < 4; n++)
            snprintf(path[n], sizeof path[n], "errors/%d/%s", i, names[n]);
        if (!*find(r, path[0])->path)
            break;
        double of_eager = 2 * number(r, path[0]) / number(r, path[1]);
        if (i == 0 || isnan(of_eager) || of_eager > worst) {
            worst = isnan(of_eager) ? INFINITY : of_eager;
            eager = number(r, path[2]) / number(r, path[3]);
        }
    }
    add_field(arena, r, "worst/of_eager", NULL, worst);
    add_field(arena, r, "worst/eager", NULL, eager);
}

bool read_results(const char *path, const char *json, size_t size, results *out) {
    epi_json_reader r = {.text = json, .size = size};
    epi_json_string key;
    epi_json_object(&r);
    while (epi_json_member(&r, &key)) {
        if (!epi_json_is(key, "rows")) {
            read_value(&r, &out->arena, &out->head, epi_json_copy(key, &out->arena));
            continue;
        }
        epi_json_array(&r);
        while (epi_json_element(&r)) {
            record *row = epi_arena_alloc(&out->arena, sizeof *row);
            if (!row)
                break;
            read_value(&r, &out->arena, row, "");
            find_worst(&out->arena, row);
            *(out->last ? &out->last->next : &out->rows) = row;
            out->last = row;
        }
    }
    epi_json_end(&r);
    if (out->arena.failed)
        epi_json_refuse(&r, "out of memory");
    if (r.why)
        fprintf(stderr, "%s: byte %zu: %s\n", path, r.at, r.why);
    return !r.why;
}

/* ---- ratios ---- */

void spread_add(spread *s, double ratio) {
    if (!(ratio > 0))
        return;
    s->least = s->count ? fmin(s->least, ratio) : ratio;
    s->most = s->count ? fmax(s->most, ratio) : ratio;
    s->logs += log(ratio);
    s->count++;
}

double spread_mean(const spread *s) {
    return s->count ? exp(s->logs / s->count) : NAN;
}

/* ---- files that are made ---- */

bool settle_file(const char *path, const epi_text *text, bool only_check) {
    size_t size;
    char *old = read_file(path, &size);
    bool same = old && size == text->length && !memcmp(old, text->data, size);
    free(old);
    if (only_check || same)
        return same && !text->failed;
    FILE *f = text->failed ? NULL : fopen(path, "wb");
    bool ok = f && fwrite(text->data, 1, text->length, f) == text->length;
    return f && fclose(f) == 0 && ok;
}

/* ---- cells ---- */

void put_cell(epi_text *out, const char *format, double value) {
    epi_text_add(out, " ");
    if (!isnan(value)) {
        epi_text_add(out, format, value);
        epi_text_add(out, " ");
    }
    epi_text_add(out, "|");
}

void put_shape(epi_text *out, double m, double n, double k) {
    if (isnan(m) || isnan(n) || isnan(k))
        epi_text_add(out, " |");
    else if (m == 0)
        epi_text_add(out, " several |"); /* a program of several products */
    else
        epi_text_add(out, " %.0f×%.0f×%.0f |", m, n, k);
}

void put_rule(epi_text *out, int columns) {
    for (int i = 0; i < columns; i++)
        epi_text_add(out, "|---");
    epi_text_add(out, "|\n");
}
