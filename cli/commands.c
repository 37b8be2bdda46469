/* commands.c: check, list, show, run and devices. */
#include <dirent.h>
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
        int programs = epi_module_count(s.module);
        for (int p = 0; p < programs && st == EPI_OK; p++)
            st = epi_program_check(epi_module_program(s.module, p), &err);
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
                printf("%s: %d program%s, all well\n", o->names[i], programs, programs == 1 ? "" : "s");
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
            printf("%-42s %.*s\n", name, (int)strcspn(comment, "\n"), comment);
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
        return cli_complain(EXIT_FAILED, "%s: cannot be listed", folder);
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

/* ---- show ---- */

/* Calls print(what, buf, size) into a buffer that is large enough; the caller frees it. */
static char *printed(size_t (*print)(const void *, char *, size_t), const void *what) {
    size_t n = print(what, NULL, 0);
    char *text = malloc(n + 1);
    if (text)
        print(what, text, n + 1);
    return text;
}

static size_t print_program(const void *program, char *buf, size_t size) {
    return epi_program_print(program, buf, size);
}

static size_t print_kernel(const void *kernel, char *buf, size_t size) {
    return epi_kernel_describe(kernel, buf, size);
}

static void put_info(epi_json_writer *w, const epi_kernel_info *info) {
    epi_json_put_key(w, "mainloop");
    epi_json_put_text(w, info->mainloop);
    epi_json_put_key(w, "micro");
    epi_json_put_text(w, info->micro);
    static const char *const keys[] = {"threads", "m", "n", "k", "tile_m", "tile_n"};
    int64_t values[] = {info->threads, info->m, info->n, info->k, info->tile_m, info->tile_n};
    for (int i = 0; i < 6; i++) {
        epi_json_put_key(w, keys[i]);
        epi_json_put_integer(w, values[i]);
    }
    static const char *const reals[] = {"flops", "bytes_fused", "bytes_unfused", "intensity"};
    double numbers[] = {info->flops, info->bytes_fused, info->bytes_unfused, info->flops / info->bytes_fused};
    for (int i = 0; i < 4; i++) {
        epi_json_put_key(w, reals[i]);
        epi_json_put_number(w, numbers[i]);
    }
}

static int show_program(const epi_program *program, const cli_options *o, epi_json_writer *w) {
    char *text = printed(print_program, program);
    epi_json_put_key(w, "text");
    epi_json_put_text(w, text);
    if (!o->json)
        printf("%s", text ? text : "");
    free(text);
    if (!o->dim_count && epi_program_dim_count(program)) {
        if (!o->json)
            printf("\ngive --dims for the kernel: its axes are");
        for (int i = 0; i < epi_program_dim_count(program) && !o->json; i++)
            printf(" %s", epi_program_dim(program, i));
        if (!o->json)
            printf("\n");
        return EXIT_OK;
    }
    epi_error err;
    epi_kernel *kernel;
    epi_options options = cli_compile_options(o);
    if (epi_kernel_compile(program, &options, &kernel, &err) != EPI_OK)
        return cli_fail(&err);
    epi_kernel_info info;
    epi_kernel_get_info(kernel, &info);
    char *how = printed(print_kernel, kernel);
    double intensity = info.bytes_fused > 0 ? info.flops / info.bytes_fused : 0;
    put_info(w, &info);
    epi_json_put_key(w, "description");
    epi_json_put_text(w, how);
    if (!o->json)
        printf("\nmainloop %s, %d thread%s\n%s%.4g GFLOP; %.4g MB moved fused, %.4g MB unfused; %.1f flops "
               "per byte\n",
               info.mainloop, info.threads, info.threads == 1 ? "" : "s", how ? how : "", info.flops / 1e9,
               info.bytes_fused / 1e6, info.bytes_unfused / 1e6, intensity);
    free(how);
    epi_kernel_free(kernel);
    return EXIT_OK;
}

int cmd_show(const cli_options *o) {
    cli_source s;
    epi_error err;
    if (o->name_count != 1)
        return cli_complain(EXIT_USAGE, "show wants one FILE:NAME; see 'epilog help show'");
    if (cli_program_open(&s, o->names[0], &err) != EPI_OK)
        return cli_fail(&err);
    epi_text out = {0};
    epi_json_writer w = {.text = &out};
    epi_json_put_open(&w, '{');
    int status = show_program(s.program, o, &w);
    epi_json_put_close(&w, '}');
    if (o->json && status == EXIT_OK)
        status = cli_print_json(&out);
    epi_text_free(&out);
    cli_source_close(&s);
    return status;
}

/* ---- run ---- */

static int report_errors(const cli_data *d, const cli_error_row *rows, double seconds, const cli_options *o) {
    int status = EXIT_OK;
    epi_text out = {0};
    epi_json_writer w = {.text = &out};
    epi_json_put_open(&w, '{');
    epi_json_put_key(&w, "ms");
    epi_json_put_number(&w, 1e3 * seconds);
    epi_json_put_key(&w, "outputs");
    epi_json_put_open(&w, '[');
    if (!o->json)
        printf("%-12s %-5s %12s %12s %12s\n", "output", "type", "max|f64|", "rel. error", "naive path");
    for (int t = d->input_count; t < d->count; t++) {
        const cli_error_row *r = &rows[t - d->input_count];
        epi_json_put_open(&w, '{');
        epi_json_put_key(&w, "name");
        epi_json_put_text(&w, d->infos[t].name);
        static const char *const keys[] = {"scale", "error", "naive_error"};
        double values[] = {r->scale, r->fused, r->naive};
        for (int i = 0; i < 3; i++) {
            epi_json_put_key(&w, keys[i]);
            epi_json_put_number(&w, values[i]);
        }
        epi_json_put_key(&w, "ok");
        epi_json_put_bool(&w, r->ok);
        epi_json_put_close(&w, '}');
        if (!o->json)
            printf("%-12s %-5s %12.4g %12.3e %12.3e%s\n", d->infos[t].name, epi_dtype_name(d->shapes[t].type),
                   r->scale, r->fused / (r->scale > 0 ? r->scale : 1),
                   r->naive / (r->scale > 0 ? r->scale : 1), r->ok ? "" : "   TOO FAR");
        if (!r->ok)
            status = EXIT_FAILED;
    }
    epi_json_put_close(&w, ']');
    epi_json_put_close(&w, '}');
    if (o->json && cli_print_json(&out) != EXIT_OK)
        return EXIT_FAILED;
    if (!o->json)
        printf("%.3f ms\n", 1e3 * seconds);
    epi_text_free(&out);
    return status;
}

static epi_status run_program(const epi_program *program, const cli_options *o, cli_runner *r, cli_data *d,
                              cli_error_row *rows, double *seconds, epi_error *err) {
    epi_options options = cli_compile_options(o);
    epi_status status = cli_runner_make(r, program, &options, err);
    if (status == EPI_OK)
        status = cli_data_make(d, program, r->kernel, err);
    if (status != EPI_OK)
        return status;
    cli_data_random(d, o->seed);
    if (o->in && (status = cli_data_read(d, o->in, err)) != EPI_OK)
        return status;
    cli_progress("running %s", epi_program_name(program));
    double start = cli_seconds();
    status = epi_kernel_run(r->kernel, d->tensors, d->count, r->work, err);
    *seconds = cli_seconds() - start;
    cli_progress("computing the f64 reference of %s", epi_program_name(program));
    epi_kernel_info info;
    epi_kernel_get_info(r->kernel, &info);
    if (status == EPI_OK)
        status = cli_errors(program, o, d, info.k, rows, err);
    cli_progress_end();
    if (status == EPI_OK && o->out)
        status = cli_data_write(d, o->out, err);
    return status;
}

int cmd_run(const cli_options *o) {
    cli_source s;
    epi_error err;
    if (o->name_count != 1)
        return cli_complain(EXIT_USAGE, "run wants one FILE:NAME; see 'epilog help run'");
    if (cli_program_open(&s, o->names[0], &err) != EPI_OK)
        return cli_fail(&err);
    cli_runner r = {0};
    cli_data d = {0};
    cli_error_row rows[CLI_MAX_TENSORS];
    double seconds = 0;
    epi_status st = run_program(s.program, o, &r, &d, rows, &seconds, &err);
    int status = st == EPI_OK ? report_errors(&d, rows, seconds, o) : cli_fail(&err);
    cli_data_free(&d);
    cli_runner_free(&r);
    cli_source_close(&s);
    return status;
}

/* ---- devices ---- */

int cmd_devices(const cli_options *o) {
    epi_context *ctx;
    epi_error err;
    if (epi_context_open(&ctx, &err) != EPI_OK)
        return cli_fail(&err);
    epi_text out = {0};
    epi_json_writer w = {.text = &out};
    epi_json_put_open(&w, '[');
    for (int i = 0; i < epi_device_count(ctx); i++) {
        epi_device_info d;
        epi_device_get(ctx, i, &d);
        if (!o->json)
            printf("%s: %s, %d threads\n  micro-kernels: %s\n", d.name, d.model, d.threads, d.features);
        epi_json_put_open(&w, '{');
        static const char *const keys[] = {"name", "model", "features"};
        const char *values[] = {d.name, d.model, d.features};
        for (int k = 0; k < 3; k++) {
            epi_json_put_key(&w, keys[k]);
            epi_json_put_text(&w, values[k]);
        }
        epi_json_put_key(&w, "threads");
        epi_json_put_integer(&w, d.threads);
        epi_json_put_close(&w, '}');
    }
    epi_json_put_close(&w, ']');
    epi_context_close(ctx);
    if (o->json)
        return cli_print_json(&out);
    epi_text_free(&out);
    return EXIT_OK;
}
