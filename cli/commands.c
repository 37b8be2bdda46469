/* commands.c: check, list and devices. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"

/* ---- check ---- */

/* Every line of the text is a warning, behind `about`. The text is freed. */
static void warn(const char *about, char *text, bool json, epi_json_writer *w) {
    char line[4096];
    for (char *at = text ? strtok(text, "\n") : NULL; at; at = strtok(NULL, "\n")) {
        snprintf(line, sizeof line, "%s%s", about, at);
        epi_json_put_text(w, line);
        if (!json)
            cli_complain(EXIT_OK, "warning: %s", line);
    }
    free(text);
}

/* Are the sizes of all its axes known? */
static bool has_sizes(const epi_program *p, const cli_options *o) {
    bool all = o->dim_count > 0;
    for (int i = 0; i < epi_program_dim_count(p); i++)
        all &= epi_program_dim_size(p, i) || cli_find_dim(o, epi_program_dim(p, i)) >= 0;
    return all;
}

/* What is slow about its kernel, or may not be what is wanted. */
static epi_status check_kernel(const char *path, const epi_program *p, const cli_options *o,
                               epi_json_writer *w, epi_error *err) {
    char about[2200];
    epi_kernel *kernel;
    epi_dim_binding dims[CLI_MAX_BINDINGS];
    epi_options options = cli_own_options(p, o, dims);
    EPI_TRY(epi_kernel_compile(p, &options, &kernel, err));
    snprintf(about, sizeof about, "%s: %s: ", path, epi_program_name(p));
    warn(about, cli_kernel_text(epi_kernel_warnings, kernel), o->json, w);
    epi_kernel_free(kernel);
    return EPI_OK;
}

/* What there is to say of programs that are right. */
static epi_status check_programs(const cli_source *s, const cli_options *o, epi_json_writer *w,
                                 epi_error *err) {
    epi_status status = EPI_OK;
    epi_json_put_key(w, "warnings");
    epi_json_put_open(w, '[');
    for (int i = 0; i < epi_module_count(s->module) && status == EPI_OK; i++) {
        const epi_program *p = epi_module_program(s->module, i);
        if (s->program && s->program != p)
            continue;
        warn("", cli_text_of(epi_program_warnings, p), o->json, w);
        if (has_sizes(p, o))
            status = check_kernel(s->path, p, o, w, err);
    }
    epi_json_put_close(w, ']');
    return status;
}

static int check_one(const char *name, const cli_options *given, epi_json_writer *w) {
    cli_source s;
    epi_error err;
    cli_options o = *given;
    bool json = o.json;
    epi_status status = cli_source_open(&s, name, &err);
    int programs = s.program ? 1 : epi_module_count(s.module);
    if (status == EPI_OK && !programs)
        status = epi_fail(&err, EPI_ERR_FILE, "%s: has no programs", name);
    if (status == EPI_OK && cli_device_choose(s.ctx, &o) != EXIT_OK) {
        cli_source_close(&s);
        return EXIT_FAILED;
    }
    epi_json_put_open(w, '{');
    cli_put_text(w, "file", name);
    if (status == EPI_OK)
        status = check_programs(&s, &o, w, &err);
    cli_put_text(w, "status", epi_status_name(status));
    if (status != EPI_OK) {
        cli_put_integer(w, "line", err.line);
        cli_put_integer(w, "column", err.column);
        cli_put_text(w, "message", err.message);
        if (!json)
            cli_error(&err);
    } else {
        cli_put_integer(w, "programs", programs);
        if (!json)
            cli_print("%s: %d program%s, no errors\n", name, programs, programs == 1 ? "" : "s");
    }
    epi_json_put_close(w, '}');
    cli_source_close(&s);
    return status == EPI_OK ? EXIT_OK : EXIT_FAILED;
}

int cmd_check(cli_options *o) {
    if (!o->name_count)
        return cli_complain(EXIT_USAGE, "check needs one or more files; see 'epilog help check'");
    int status = EXIT_OK;
    epi_text out = {0};
    epi_json_writer w = {.text = &out};
    epi_json_put_open(&w, '[');
    for (int i = 0; i < o->name_count; i++)
        if (check_one(o->names[i], o, &w) != EXIT_OK)
            status = EXIT_FAILED;
    epi_json_put_close(&w, ']');
    return cli_print_json(o, &out, status);
}

/* ---- list ---- */

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* What a list prints, and which programs: those whose name has `wanted`, or all where that is NULL. */
typedef struct listing {
    const char *wanted;
    bool json;
    epi_json_writer *w;
    int count;
} listing;

/* What a program takes and gives: the line of its text that ends in a brace. */
static char *signature_of(const epi_program *p) {
    char *text = cli_text_of(epi_program_print, p), *line = text;
    while (line && *line == '#')
        line += strcspn(line, "\n") + 1;
    char *end = line ? strstr(line, " {\n") : NULL;
    if (end) {
        *end = 0;
        memmove(text, line, (size_t)(end - line) + 1);
    }
    return text;
}

/* The first sentence of the comment, on one line. */
static void list_one(const char *name, const char *comment) {
    char line[400];
    size_t n = 0;
    while (comment[n] && n < sizeof line - 1 && !(n && comment[n - 1] == '.' && strchr(" \n", comment[n])))
        n++;
    for (size_t i = 0; i <= n; i++)
        line[i] = (char)(i == n ? 0 : comment[i] == '\n' ? ' ' : comment[i]);
    cli_print("%-42s %s\n", name, line);
}

/* The programs of an open file. */
static void list_programs(const cli_source *s, listing *l) {
    for (int i = 0; i < epi_module_count(s->module); i++) {
        const epi_program *p = epi_module_program(s->module, i);
        const char *comment = epi_program_comment(p);
        epi_json_writer *w = l->w;
        char name[2200];
        if (l->wanted && !strstr(epi_program_name(p), l->wanted))
            continue;
        char *signature = signature_of(p);
        l->count++;
        snprintf(name, sizeof name, "%s:%s", s->path, epi_program_name(p));
        epi_json_put_open(w, '{');
        cli_put_text(w, "name", name);
        cli_put_text(w, "comment", comment);
        cli_put_text(w, "signature", signature ? signature : "");
        epi_json_put_close(w, '}');
        if (!l->json)
            list_one(name, comment);
        if (!l->json && l->wanted)
            cli_print("    %s\n", signature ? signature : "");
        free(signature);
    }
}

/* Lists a file and closes it; of one that could not be opened it tells why. */
static int list_source(cli_source *s, epi_status opened, const epi_error *err, listing *l) {
    if (opened != EPI_OK) {
        cli_error(err);
        return EXIT_FAILED;
    }
    list_programs(s, l);
    cli_source_close(s);
    return EXIT_OK;
}

static int list_bundled(listing *l) {
    int status = EXIT_OK;
    for (int i = 0; epi_bundled_name(i); i++) {
        cli_source s;
        epi_error err;
        epi_status opened = cli_bundled_open(&s, i, &err);
        if (list_source(&s, opened, &err, l) != EXIT_OK)
            status = EXIT_FAILED;
    }
    return status;
}

static int list_file(const char *path, listing *l) {
    cli_source s;
    epi_error err;
    epi_status opened = cli_source_open(&s, path, &err);
    return list_source(&s, opened, &err, l);
}

static int list_folder(DIR *dir, const char *folder, listing *l) {
    char *files[1024];
    int count = 0, status = EXIT_OK;
    for (struct dirent *e; (e = readdir(dir)) && count < 1024;) {
        size_t n = strlen(e->d_name);
        if (n > 4 && !strcmp(e->d_name + n - 4, ".epi") && (files[count] = strdup(e->d_name)))
            count++;
    }
    qsort(files, (size_t)count, sizeof *files, by_name);
    for (int i = 0; i < count; i++) {
        char path[1100];
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        if (list_file(path, l) != EXIT_OK)
            status = EXIT_FAILED;
        free(files[i]);
    }
    return status;
}

int cmd_list(cli_options *o) {
    if (o->name_count > 1)
        return cli_complain(EXIT_USAGE, "list takes at most one folder, file or name");
    const char *name = o->name_count ? o->names[0] : NULL, *end = name ? strrchr(name, '.') : NULL;
    DIR *dir = name ? opendir(name) : NULL;
    bool file = end && !strcmp(end, ".epi") && !dir;
    if (name && !dir && !file && strchr(name, '/'))
        return cli_complain(EXIT_FAILED, "%s: cannot read the folder: %s", name, strerror(errno));
    epi_text out = {0};
    epi_json_writer w = {.text = &out};
    epi_json_put_open(&w, '[');
    listing l = {.wanted = dir || file ? NULL : name, .json = o->json, .w = &w};
    int status = dir ? list_folder(dir, name, &l) : file ? list_file(name, &l) : list_bundled(&l);
    if (l.wanted && !l.count && status == EXIT_OK)
        status = cli_complain(EXIT_FAILED,
                              "'%s' is not a folder, and no program that comes with Epilog has it in its "
                              "name; docs/language.md lists the operations",
                              name);
    epi_json_put_close(&w, ']');
    if (dir)
        closedir(dir);
    return cli_print_json(o, &out, status);
}

/* ---- devices ---- */

static void put_device(epi_json_writer *w, const epi_device_info *d) {
    epi_json_put_open(w, '{');
    cli_put_text(w, "name", d->name);
    cli_put_text(w, "model", d->model);
    cli_put_text(w, "features", d->features);
    cli_put_bool(w, "is_gpu", d->is_gpu);
    cli_put_integer(w, "threads", d->threads);
    if (d->is_gpu) {
        char uuid[2 * sizeof d->uuid + 1];
        for (size_t i = 0; i < sizeof d->uuid; i++)
            snprintf(uuid + 2 * i, 3, "%02x", d->uuid[i]);
        cli_put_integer(w, "ordinal", d->ordinal);
        cli_put_text(w, "uuid", uuid);
    }
    epi_json_put_close(w, '}');
}

int cmd_devices(cli_options *o) {
    epi_context *ctx;
    epi_error err;
    if (epi_context_open(&ctx, &err) != EPI_OK)
        return cli_fail(&err);
    epi_text out = {0};
    epi_json_writer w = {.text = &out};
    const char *why = epi_device_why_no_gpu(ctx);
    bool gpu = epi_device_count(ctx) > 1;
    epi_json_put_open(&w, '{');
    epi_json_put_key(&w, "devices");
    epi_json_put_open(&w, '[');
    for (int i = 0; i < epi_device_count(ctx); i++) {
        epi_device_info d;
        epi_device_get(ctx, i, &d);
        put_device(&w, &d);
        if (!o->json && d.is_gpu)
            printf("%s: %s\n  %s\n", d.name, d.model, d.features);
        else if (!o->json)
            printf("%s: %s, %d threads\n  micro-kernels: %s\n", d.name, d.model, d.threads, d.features);
    }
    epi_json_put_close(&w, ']');
    cli_put_bool(&w, "gpu", gpu);
    if (!gpu)
        cli_put_text(&w, "why", why);
    if (!gpu && !o->json)
        printf("no GPU: %s\n", why);
    epi_json_put_close(&w, '}');
    epi_context_close(ctx);
    return cli_print_json(o, &out, EXIT_OK);
}
