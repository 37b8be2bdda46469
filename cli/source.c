/* source.c: finds and reads source texts, and picks programs from them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/nearest.h"
#include "cli.h"

typedef enum found { NOTHING, A_FILE, A_FOLDER } found;
static found look_for(const char *path) {
    struct stat st;
    return stat(path, &st) != 0 ? NOTHING : S_ISDIR(st.st_mode) ? A_FOLDER : A_FILE;
}

char *cli_read_text(const char *path, cli_more *wants_more, size_t *length, epi_error *err) {
    FILE *f = !strcmp(path, "-") ? stdin : fopen(path, "rb");
    if (!f) {
        epi_fail(err, EPI_ERR_FILE, "%s: %s", path, strerror(errno));
        return NULL;
    }
    char *text = NULL;
    size_t capacity = 0, got = 1;
    *length = 0;
    while (got && !ferror(f) && wants_more(text, *length)) {
        if (*length + 4096 > capacity) {
            capacity = 2 * capacity + 8192;
            char *bigger = realloc(text, capacity);
            if (!bigger)
                break;
            text = bigger;
        }
        got = fread(text + *length, 1, capacity - *length - 1, f);
        *length += got;
        text[*length] = 0;
    }
    bool whole = !got && feof(f), stopped = !wants_more(text, *length), failed = ferror(f) != 0;
    if (!whole && !stopped)
        epi_fail(err, EPI_ERR_FILE, "%s: %s", path, failed ? strerror(errno) : "out of memory");
    if (f != stdin)
        fclose(f);
    if (whole || stopped)
        return text;
    free(text);
    return NULL;
}

/* No program is so long: what is, may have no end. */
static bool is_text(const char *text, size_t length) {
    (void)text;
    return length <= CLI_MAX_TEXT;
}

char *cli_read_program(const char *path, size_t *length, epi_error *err) {
    char *text = cli_read_text(path, is_text, length, err);
    if (!text || *length <= CLI_MAX_TEXT)
        return text;
    epi_fail(err, EPI_ERR_FILE, "%s: larger than %d MB, so not a file of programs", path, CLI_MAX_TEXT >> 20);
    free(text);
    return NULL;
}

/* The text of a program. Standard input can be read but once, and a command may open a program more than
 * once: its text is kept. */
static char *read_program(const char *path, size_t *length, epi_error *err) {
    static char *kept;
    static size_t kept_length;
    if (strcmp(path, "-") != 0)
        return cli_read_program(path, length, err);
    if (!kept && !(kept = cli_read_program(path, &kept_length, err)))
        return NULL;
    char *copy = malloc(kept_length + 1);
    if (copy)
        memcpy(copy, kept, kept_length + 1);
    else
        epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    *length = kept_length;
    return copy;
}

/* Which of the files that come with Epilog has this name, with or without ".epi"; -1 for none. */
static int bundled_file(const char *name) {
    size_t n = strlen(name);
    for (int i = 0; epi_bundled_name(i); i++) {
        const char *file = epi_bundled_name(i);
        if (!strncmp(file, name, n) && (!file[n] || !strcmp(file + n, ".epi")))
            return i;
    }
    return -1;
}

static epi_status parse(cli_source *s, const char *text, size_t length, epi_error *err) {
    EPI_TRY(epi_context_open(&s->ctx, err));
    return epi_module_parse(s->ctx, text, length, s->path, &s->module, err);
}

epi_status cli_bundled_open(cli_source *s, int index, epi_error *err) {
    *s = (cli_source){0};
    snprintf(s->path, sizeof s->path, "%s", epi_bundled_name(index));
    epi_status status = parse(s, epi_bundled_text(index), strlen(epi_bundled_text(index)), err);
    if (status != EPI_OK)
        cli_source_close(s);
    return status;
}

/* "; did you mean FILE.epi?" where there is one, else `other`. */
static const char *hint_of(const char *file, const char *other, char *buf, size_t size) {
    snprintf(buf, size, "%s.epi", file);
    if (look_for(buf) != A_FILE)
        return other;
    snprintf(buf, size, "; did you mean %s.epi?", file);
    return buf;
}

/* Opens FILE as it stands, or the one of this name that comes with Epilog. */
static epi_status open_file(cli_source *s, const char *file, epi_error *err) {
    size_t length = 0;
    bool found = look_for(file) == A_FILE || !strcmp(file, "-");
    int bundled = found ? -1 : bundled_file(file);
    if (bundled >= 0)
        return cli_bundled_open(s, bundled, err);
    char hint[1100];
    if (!found && look_for(file))
        return epi_fail(err, EPI_ERR_FILE, "%s: is a folder", file);
    if (!found)
        return epi_fail(err, EPI_ERR_FILE, "%s: no such file, and no file of this name comes with Epilog%s",
                        file, hint_of(file, "", hint, sizeof hint));
    snprintf(s->path, sizeof s->path, "%s", file);
    s->text = read_program(file, &length, err);
    return s->text ? parse(s, s->text, length, err) : EPI_ERR_FILE;
}

static void look_closer(epi_nearest *n, const epi_module *m) {
    for (int p = 0; p < epi_module_count(m); p++)
        epi_nearest_offer(n, epi_program_name(epi_module_program(m, p)));
}

static epi_status no_program(const cli_source *s, const char *name, epi_error *err) {
    epi_nearest near = {.wanted = name};
    look_closer(&near, s->module);
    return epi_fail(err, EPI_ERR_FILE, "%s has no program '%s'%s", s->path, name,
                    epi_nearest_hint(&near, "it has"));
}

/* Looks for a program by its own name in all the files that come with Epilog. */
static epi_status find_program(cli_source *s, const char *name, epi_error *err) {
    epi_nearest near = {.wanted = name};
    for (int i = 0; epi_bundled_name(i); i++) {
        epi_status status = cli_bundled_open(s, i, err);
        if (status != EPI_OK || (s->program = epi_module_find(s->module, name)))
            return status;
        look_closer(&near, s->module);
        cli_source_close(s);
    }
    char hint[1100];
    const char *listed = near.best[0] ? epi_nearest_hint(&near, "") : "; see 'epilog list'";
    return epi_fail(err, EPI_ERR_FILE, "%s: no such file, and no program of this name comes with Epilog%s",
                    name, hint_of(name, listed, hint, sizeof hint));
}

epi_status cli_source_open(cli_source *s, const char *name, epi_error *err) {
    *s = (cli_source){0};
    bool bare = !strpbrk(name, "/.:") && strcmp(name, "-") != 0;
    if (bare && !look_for(name) && bundled_file(name) < 0)
        return find_program(s, name, err);
    char file[1000];
    const char *colon = look_for(name) == A_FILE ? NULL : strrchr(name, ':');
    snprintf(file, sizeof file, "%.*s", colon ? (int)(colon - name) : (int)strlen(name), name);
    epi_status status = open_file(s, file, err);
    if (status == EPI_OK && colon && !(s->program = epi_module_find(s->module, colon + 1)))
        status = no_program(s, colon + 1, err);
    if (status != EPI_OK)
        cli_source_close(s);
    return status;
}

epi_status cli_program_open(cli_source *s, const char *name, epi_error *err) {
    epi_status status = cli_source_open(s, name, err);
    if (status != EPI_OK || s->program)
        return status;
    if (epi_module_count(s->module) == 1)
        s->program = epi_module_program(s->module, 0);
    else if (!strchr(name, '/') && !strchr(name, '.')) /* a program named like its file */
        s->program = epi_module_find(s->module, name);
    if (s->program)
        return EPI_OK;
    epi_nearest near = {.wanted = name};
    look_closer(&near, s->module);
    status = near.all[0]
                 ? epi_fail(err, EPI_ERR_FILE, "%s has %d programs; write %s:NAME with one of %s%s", s->path,
                            epi_module_count(s->module), name, near.all, near.more ? " and more" : "")
                 : epi_fail(err, EPI_ERR_FILE, "%s has no programs", s->path);
    cli_source_close(s);
    return status;
}

/* Sizes of axes that other programs of the file have are dropped, as a backward may lack one of its forward. */
static void keep_own_dims(const cli_source *s, cli_options *o) {
    int count = 0;
    for (int i = 0; i < o->dim_count; i++) {
        bool other = false;
        for (int p = 0; p < epi_module_count(s->module) && !cli_has_axis(s->program, o->dims[i].name); p++)
            other |= cli_has_axis(epi_module_program(s->module, p), o->dims[i].name);
        if (other)
            cli_complain(EXIT_OK, "note: %s has no axis %s; its size is ignored",
                         epi_program_name(s->program), o->dims[i].name);
        else
            o->dims[count++] = o->dims[i];
    }
    o->dim_count = count;
}

int cli_only_program(cli_source *s, cli_options *o) {
    epi_error err;
    if (o->name_count != 1)
        return cli_complain(EXIT_USAGE, "%s needs one FILE:NAME; see 'epilog help %s'", o->command,
                            o->command);
    if (cli_program_open(s, o->names[0], &err) != EPI_OK)
        return cli_fail(&err);
    keep_own_dims(s, o);
    return EXIT_OK;
}

void cli_source_close(cli_source *s) {
    epi_module_free(s->module);
    epi_context_close(s->ctx);
    free(s->text);
    *s = (cli_source){0};
}
