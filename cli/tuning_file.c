/* tuning_file.c: the tuning file: read strictly, all of it or nothing, and written. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "tuning.h"

static const char first_line[] = "epilog tuning 1";

/* ---- growing ---- */

void tuning_free(tuning *t) {
    for (int i = 0; i < t->count; i++)
        free(t->sections[i].entries);
    free(t->sections);
    *t = (tuning){0};
}

tuning_section *tuning_add_section(tuning *t) {
    tuning_section *bigger = realloc(t->sections, ((size_t)t->count + 1) * sizeof *bigger);
    if (!bigger)
        return NULL;
    t->sections = bigger;
    bigger[t->count] = (tuning_section){0};
    return &bigger[t->count++];
}

tuning_entry *tuning_add_entry(tuning_section *s) {
    tuning_entry *bigger = realloc(s->entries, ((size_t)s->count + 1) * sizeof *bigger);
    if (!bigger)
        return NULL;
    s->entries = bigger;
    bigger[s->count] = (tuning_entry){0};
    return &bigger[s->count++];
}

/* ---- reading ---- */

/* A line that is read word by word; the first thing wrong with it is kept. */
typedef struct line_reader {
    const char *at;
    char why[200];
} line_reader;

static void refuse(line_reader *r, const char *fmt, const char *what) {
    if (!r->why[0])
        snprintf(r->why, sizeof r->why, fmt, what);
}

/* The next word, or what stands between quotes. */
static void take(line_reader *r, const char *what, char *out, size_t size) {
    r->at += strspn(r->at, " ");
    bool quoted = *r->at == '"';
    r->at += quoted;
    size_t n = strcspn(r->at, quoted ? "\"" : " \"");
    if ((!n && !quoted) || (quoted && r->at[n] != '"'))
        refuse(r, n ? "%s has no closing quote" : "%s is missing", what);
    else if (n >= size)
        refuse(r, "%s is too long", what);
    if (n < size)
        snprintf(out, size, "%.*s", (int)n, r->at);
    r->at += n + (quoted && r->at[n] == '"');
}

static void expect(line_reader *r, const char *word) {
    size_t n = strlen(word);
    r->at += strspn(r->at, " ");
    if (strncmp(r->at, word, n) == 0 && (r->at[n] == ' ' || !r->at[n]))
        r->at += n;
    else
        refuse(r, "'%s' is missing", word);
}

static void take_number(line_reader *r, const char *what, double *out) {
    char word[40] = "", *end;
    take(r, what, word, sizeof word);
    *out = strtod(word, &end);
    if (end == word || *end || !isfinite(*out) || *out <= 0)
        refuse(r, "%s is no positive number", what);
}

static void end_line(line_reader *r) {
    if (r->at[strspn(r->at, " ")])
        refuse(r, "there is more than %s", "a line has");
}

static void read_device(line_reader *r, tuning_section *s) {
    expect(r, "device");
    take(r, "the device", s->model, sizeof s->model);
    expect(r, "driver");
    take(r, "the driver", s->driver, sizeof s->driver);
    expect(r, "library");
    take(r, "the library", s->library, sizeof s->library);
    end_line(r);
}

static void read_entry(line_reader *r, tuning_entry *e) {
    expect(r, "program");
    take(r, "the program", e->program, sizeof e->program);
    take(r, "the program's hash", e->hash, sizeof e->hash);
    expect(r, "dims");
    take(r, "the sizes", e->dims, sizeof e->dims);
    expect(r, "type");
    take(r, "the type", e->type, sizeof e->type);
    expect(r, "rounding");
    take(r, "the rounding", e->rounding, sizeof e->rounding);
    expect(r, "config");
    take(r, "the configuration", e->config, sizeof e->config);
    expect(r, "ms");
    take_number(r, "ms", &e->ms);
    expect(r, "model_ms");
    take_number(r, "model_ms", &e->model_ms);
    end_line(r);
    if (strlen(e->hash) != 16 || strspn(e->hash, "0123456789abcdef") != 16)
        refuse(r, "'%s' is no hash of 16 digits", e->hash);
    if (epi_dtype_find(e->type) > EPI_F16)
        refuse(r, "'%s' is no type of f32, bf16 and f16", e->type);
    if (strcmp(e->rounding, "packed") != 0 && strcmp(e->rounding, "exact") != 0)
        refuse(r, "'%s' is no rounding", e->rounding);
}

/* One line into the tuning; what it is begins it. */
static epi_status read_line(tuning *t, const char *line, int number, const char *path, epi_error *err) {
    line_reader r = {.at = line};
    tuning_section *s = t->count ? &t->sections[t->count - 1] : NULL;
    tuning_entry *e = NULL;
    if (!strncmp(line, "device ", 7)) {
        if (!(s = tuning_add_section(t)))
            return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
        read_device(&r, s);
    } else if (!strncmp(line, "program ", 8) && !s) {
        refuse(&r, "a program stands before %s", "any device");
    } else if (!strncmp(line, "program ", 8)) {
        if (!(e = tuning_add_entry(s)))
            return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
        read_entry(&r, e);
    } else {
        refuse(&r, "a line begins with %s", "'device' or 'program'");
    }
    return r.why[0]
               ? epi_fail(err, EPI_ERR_FILE, "%s:%d: the tuning file is malformed: %s", path, number, r.why)
               : EPI_OK;
}

epi_status tuning_read(tuning *t, const char *path, bool may_lack, epi_error *err) {
    *t = (tuning){0};
    size_t length = 0;
    if (may_lack && access(path, F_OK) != 0)
        return EPI_OK;
    char *text = cli_read_text(path, &length, err);
    if (!text)
        return EPI_ERR_FILE;
    size_t head = strlen(first_line);
    epi_status status = EPI_OK;
    if (strncmp(text, first_line, head) != 0 || (text[head] && text[head] != '\n'))
        status = epi_fail(err, EPI_ERR_FILE, "%s: is no tuning file: its first line is not '%s'", path,
                          first_line);
    else if (strlen(text) != length)
        status = epi_fail(err, EPI_ERR_FILE, "%s: is no tuning file: it has zero bytes", path);
    int number = 1;
    for (char *line = strchr(text, '\n'), *next; line && status == EPI_OK; line = next) {
        number++;
        next = strchr(++line, '\n');
        if (next)
            *next = 0;
        if (*line)
            status = read_line(t, line, number, path, err);
    }
    free(text);
    if (status != EPI_OK)
        tuning_free(t);
    return status;
}

/* ---- writing ---- */

/* What fails here fails again, with a reason, when the file is made. */
static void make_folders(const char *path) {
    char *copy = strdup(path);
    for (char *slash = copy ? strchr(copy + 1, '/') : NULL; slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(copy, 0777);
        *slash = '/';
    }
    free(copy);
}

epi_status tuning_write(const tuning *t, const char *path, epi_error *err) {
    epi_text out = {0};
    epi_text_add(&out, "%s\n", first_line);
    for (int i = 0; i < t->count; i++) {
        const tuning_section *s = &t->sections[i];
        epi_text_add(&out, "\ndevice \"%s\" driver \"%s\" library %s\n", s->model, s->driver, s->library);
        for (int k = 0; k < s->count; k++) {
            const tuning_entry *e = &s->entries[k];
            epi_text_add(&out, "program %s %s dims %s type %s rounding %s config %s ms %.6g model_ms %.6g\n",
                         e->program, e->hash, e->dims, e->type, e->rounding, e->config, e->ms, e->model_ms);
        }
    }
    make_folders(path);
    epi_status status = cli_write_text(path, &out, err);
    epi_text_free(&out);
    return status;
}
