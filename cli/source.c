/* source.c: finds and reads texts, and picks programs out of them. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "cli.h"

static bool is_file(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

static bool is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

epi_status cli_program_folder(char *out, size_t size, epi_error *err) {
    const char *set = getenv("EPILOG_PROGRAMS");
    if (set && *set) {
        snprintf(out, size, "%s", set);
        return is_folder(out)
                   ? EPI_OK
                   : epi_fail(err, EPI_ERR_FILE, "EPILOG_PROGRAMS is '%s', which is no folder", set);
    }
    /* beside the command: build/epilog has ../programs, PREFIX/bin/epilog has ../share/epilog/programs */
    static const char *const beside[] = {"../programs", "../share/epilog/programs"};
    char exe[700];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n > 0) {
        exe[n] = 0;
        *strrchr(exe, '/') = 0;
        for (int i = 0; i < 2; i++) {
            snprintf(out, size, "%s/%s", exe, beside[i]);
            if (is_folder(out))
                return EPI_OK;
        }
    }
    return epi_fail(err, EPI_ERR_FILE, "the folder of Epilog's programs was not found; set EPILOG_PROGRAMS");
}

char *cli_read_text(const char *path, size_t *length, epi_error *err) {
    FILE *f = !strcmp(path, "-") ? stdin : fopen(path, "rb");
    if (!f) {
        epi_fail(err, EPI_ERR_FILE, "%s: %s", path, strerror(errno));
        return NULL;
    }
    char *text = NULL;
    size_t capacity = 0;
    *length = 0;
    while (!ferror(f)) {
        if (*length + 4096 > capacity) {
            capacity = 2 * capacity + 8192;
            char *bigger = realloc(text, capacity);
            if (!bigger)
                break;
            text = bigger;
        }
        size_t got = fread(text + *length, 1, capacity - *length - 1, f);
        *length += got;
        if (!got && feof(f)) {
            if (f != stdin)
                fclose(f);
            text[*length] = 0;
            return text;
        }
    }
    epi_fail(err, EPI_ERR_FILE, "%s: %s", path, ferror(f) ? strerror(errno) : "out of memory");
    if (f != stdin)
        fclose(f);
    free(text);
    return NULL;
}

/* The text of a program. Standard input can be read but once, and a command may open a program more than
 * once: its text is kept. */
static char *read_program(const char *path, size_t *length, epi_error *err) {
    static char *kept;
    static size_t kept_length;
    if (strcmp(path, "-") != 0)
        return cli_read_text(path, length, err);
    if (!kept && !(kept = cli_read_text(path, &kept_length, err)))
        return NULL;
    char *copy = malloc(kept_length + 1);
    if (copy)
        memcpy(copy, kept, kept_length + 1);
    else
        epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    *length = kept_length;
    return copy;
}

/* Finds FILE as it stands, or among the programs that come with Epilog. */
static epi_status locate(const char *file, char *out, size_t size, epi_error *err) {
    snprintf(out, size, "%s", file);
    if (is_file(out) || !strcmp(out, "-"))
        return EPI_OK;
    char folder[800];
    if (!strchr(file, '/') && cli_program_folder(folder, sizeof folder, NULL) == EPI_OK) {
        snprintf(out, size, "%s/%s", folder, file);
        if (is_file(out))
            return EPI_OK;
        snprintf(out, size, "%s/%s.epi", folder, file);
        if (is_file(out))
            return EPI_OK;
    }
    if (is_folder(file))
        return epi_fail(err, EPI_ERR_FILE, "%s: is a folder", file);
    return epi_fail(err, EPI_ERR_FILE, "%s: no such file, and no program of that name comes with Epilog",
                    file);
}

/* ---- names that are close ---- */

/* Letters to put in, leave out or exchange to make one of the other; names of 63 letters and more are far
 * from all. */
static int distance(const char *a, const char *b) {
    int row[64], n = (int)strlen(b);
    if (n >= 64)
        return n;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 0; a[i]; i++) {
        int diagonal = row[0];
        row[0] = i + 1;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i] != b[j - 1]);
            diagonal = row[j];
            best = row[j] + 1 < best ? row[j] + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
        }
    }
    return row[n];
}

/* The program whose name is closest, if it is within a third of the name and closer than the one before. */
typedef struct close_name {
    char name[64];
    int distance;
} close_name;

static void look_closer(close_name *c, const epi_module *m, const char *name) {
    for (int p = 0; p < epi_module_count(m); p++) {
        const char *other = epi_program_name(epi_module_program(m, p));
        int d = distance(name, other);
        if (3 * d <= (int)strlen(name) + 2 && (!c->name[0] || d < c->distance)) {
            snprintf(c->name, sizeof c->name, "%s", other);
            c->distance = d;
        }
    }
}

static epi_status no_program(const cli_source *s, const char *name, epi_error *err) {
    enum { MOST = 8 };
    close_name close = {0};
    epi_text hint = {0};
    look_closer(&close, s->module, name);
    if (close.name[0]) {
        epi_text_add(&hint, "; did you mean '%s'?", close.name);
    } else {
        int count = epi_module_count(s->module);
        for (int p = 0; p < count && p < MOST; p++)
            epi_text_add(&hint, "%s%s", p ? ", " : "; it has ",
                         epi_program_name(epi_module_program(s->module, p)));
        if (count > MOST)
            epi_text_add(&hint, " and %d more", count - MOST);
    }
    epi_status status =
        epi_fail(err, EPI_ERR_FILE, "%s has no program '%s'%s", s->path, name, hint.data ? hint.data : "");
    epi_text_free(&hint);
    return status;
}

epi_status cli_source_open(cli_source *s, const char *name, epi_error *err) {
    *s = (cli_source){0};
    char file[1000];
    const char *colon = is_file(name) ? NULL : strrchr(name, ':');
    snprintf(file, sizeof file, "%.*s", colon ? (int)(colon - name) : (int)strlen(name), name);
    epi_status status = locate(file, s->path, sizeof s->path, err);
    size_t length = 0;
    if (status == EPI_OK && !(s->text = read_program(s->path, &length, err)))
        status = EPI_ERR_FILE;
    if (status == EPI_OK)
        status = epi_context_open(&s->ctx, err);
    if (status == EPI_OK)
        status = epi_module_parse(s->ctx, s->text, length, s->path, &s->module, err);
    if (status == EPI_OK && colon && !(s->program = epi_module_find(s->module, colon + 1)))
        status = no_program(s, colon + 1, err);
    if (status != EPI_OK)
        cli_source_close(s);
    return status;
}

/* Looks for a program by its own name in all the files that come with Epilog. */
static epi_status find_program(cli_source *s, const char *name, epi_error *err) {
    char folder[800], path[1400];
    close_name close = {0};
    DIR *dir = cli_program_folder(folder, sizeof folder, NULL) == EPI_OK ? opendir(folder) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        size_t n = strlen(e->d_name);
        if (n < 5 || strcmp(e->d_name + n - 4, ".epi") != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (cli_source_open(s, path, NULL) != EPI_OK)
            continue;
        if ((s->program = epi_module_find(s->module, name))) {
            closedir(dir);
            return EPI_OK;
        }
        look_closer(&close, s->module, name);
        cli_source_close(s);
    }
    if (dir)
        closedir(dir);
    epi_text hint = {0};
    if (close.name[0])
        epi_text_add(&hint, "did you mean '%s'?", close.name);
    epi_status status =
        epi_fail(err, EPI_ERR_FILE, "%s: no such file, and no program of that name comes with Epilog; %s",
                 name, hint.data ? hint.data : "see 'epilog list'");
    epi_text_free(&hint);
    return status;
}

epi_status cli_program_open(cli_source *s, const char *name, epi_error *err) {
    epi_status status = cli_source_open(s, name, err);
    bool bare = !strpbrk(name, "/.:");
    char beside[1100];
    if (status == EPI_ERR_FILE && bare && locate(name, beside, sizeof beside, NULL) != EPI_OK)
        return find_program(s, name, err);
    if (status != EPI_OK || s->program)
        return status;
    if (epi_module_count(s->module) == 1)
        s->program = epi_module_program(s->module, 0);
    else if (!strchr(name, '/') && !strchr(name, '.')) /* a program named like its file */
        s->program = epi_module_find(s->module, name);
    if (s->program)
        return EPI_OK;
    status = epi_fail(err, EPI_ERR_FILE, "%s has %d programs; say which: %s:NAME", s->path,
                      epi_module_count(s->module), name);
    cli_source_close(s);
    return status;
}

void cli_source_close(cli_source *s) {
    epi_module_free(s->module);
    epi_context_close(s->ctx);
    free(s->text);
    *s = (cli_source){0};
}
