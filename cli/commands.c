/* commands.c: check, list and devices. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"

/* ---- check ---- */

int cmd_check(const cli_options *o) {
    if (!o->name_count)
        return cli_complain(EXIT_USAGE, "check wants one or more files; see 'epilog help check'");
    int status = EXIT_OK;
    epi_text out = {0};
    epi_json_writer w = {.text = &out};
    epi_json_put_open(&w, '[');
    for (int i = 0; i < o->name_count; i++) {
        cli_source s;
        epi_error err;
        epi_status st = cli_source_open(&s, o->names[i], &err);
        int programs = s.program ? 1 : epi_module_count(s.module);
        for (int p = 0; p < programs && st == EPI_OK; p++)
            st = epi_program_check(s.program ? s.program : epi_module_program(s.module, p), &err);
        if (st == EPI_OK && !programs)
            st = epi_fail(&err, EPI_ERR_FILE, "%s: holds no programs", o->names[i]);
        cli_source_close(&s);
        epi_json_put_open(&w, '{');
        epi_json_put_key(&w, "file");
        epi_json_put_text(&w, o->names[i]);
        epi_json_put_key(&w, "status");
        epi_json_put_text(&w, epi_status_name(st));
        if (st != EPI_OK) {
            status = EXIT_FAILED;
            epi_json_put_key(&w, "line");
            epi_json_put_integer(&w, err.line);
            epi_json_put_key(&w, "column");
            epi_json_put_integer(&w, err.column);
            epi_json_put_key(&w, "message");
            epi_json_put_text(&w, err.message);
            if (!o->json)
                cli_error(&err);
        } else {
            epi_json_put_key(&w, "programs");
            epi_json_put_integer(&w, programs);
            if (!o->json)
                cli_print("%s: %d program%s, all well\n", o->names[i], programs, programs == 1 ? "" : "s");
        }
        epi_json_put_close(&w, '}');
    }
    epi_json_put_close(&w, ']');
    if (o->json && cli_print_json(&out) != EXIT_OK)
        return EXIT_FAILED;
    epi_text_free(&out);
    return status;
}

/* ---- list ---- */

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list_file(const char *path, const char *file, bool json, epi_json_writer *w) {
    cli_source s;
    epi_error err;
    if (cli_source_open(&s, path, &err) != EPI_OK) {
        cli_error(&err);
        return EXIT_FAILED;
    }
    for (int i = 0; i < epi_module_count(s.module); i++) {
        const epi_program *p = epi_module_program(s.module, i);
        const char *comment = epi_program_comment(p);
        char name[1400];
        snprintf(name, sizeof name, "%s:%s", file, epi_program_name(p));
        epi_json_put_open(w, '{');
        epi_json_put_key(w, "name");
        epi_json_put_text(w, name);
        epi_json_put_key(w, "comment");
        epi_json_put_text(w, comment);
        epi_json_put_close(w, '}');
        if (!json)
            cli_print("%-42s %.*s\n", name, (int)strcspn(comment, "\n"), comment);
    }
    cli_source_close(&s);
    return EXIT_OK;
}

int cmd_list(const cli_options *o) {
    char folder[800];
    epi_error err;
    if (o->name_count > 1)
        return cli_complain(EXIT_USAGE, "list wants at most one folder");
    if (o->name_count)
        snprintf(folder, sizeof folder, "%s", o->names[0]);
    else if (cli_program_folder(folder, sizeof folder, &err) != EPI_OK)
        return cli_fail(&err);
    DIR *dir = opendir(folder);
    if (!dir)
        return cli_complain(EXIT_FAILED, "%s: cannot be listed: %s", folder, strerror(errno));
    char *files[1024];
    int count = 0, status = EXIT_OK;
    for (struct dirent *e; (e = readdir(dir)) && count < 1024;) {
        size_t n = strlen(e->d_name);
        if (n > 4 && !strcmp(e->d_name + n - 4, ".epi") && (files[count] = strdup(e->d_name)))
            count++;
    }
    closedir(dir);
    qsort(files, (size_t)count, sizeof *files, by_name);
    epi_text out = {0};
    epi_json_writer w = {.text = &out};
    epi_json_put_open(&w, '[');
    for (int i = 0; i < count; i++) {
        char path[1100];
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        if (list_file(path, o->name_count ? path : files[i], o->json, &w) != EXIT_OK)
            status = EXIT_FAILED;
        free(files[i]);
    }
    epi_json_put_close(&w, ']');
    if (o->json && cli_print_json(&out) != EXIT_OK)
        return EXIT_FAILED;
    epi_text_free(&out);
    return status;
}

/* ---- devices ---- */

static void put_device(epi_json_writer *w, const epi_device_info *d) {
    epi_json_put_open(w, '{');
    cli_put_text(w, "name", d->name);
    cli_put_text(w, "model", d->model);
    cli_put_text(w, "features", d->features);
    cli_put_bool(w, "is_gpu", d->is_gpu);
    cli_put_integer(w, "threads", d->threads);
    epi_json_put_close(w, '}');
}

int cmd_devices(const cli_options *o) {
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
    if (o->json)
        return cli_print_json(&out);
    epi_text_free(&out);
    return EXIT_OK;
}
