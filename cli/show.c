/* show.c: shows how a program will be executed: in words and numbers, or as its CUDA source. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"

char *cli_text_of(size_t (*print)(const epi_program *, char *, size_t), const epi_program *program) {
    size_t n = print(program, NULL, 0);
    char *text = malloc(n + 1);
    if (text)
        print(program, text, n + 1);
    return text;
}

char *cli_kernel_text(size_t (*print)(const epi_kernel *, char *, size_t), const epi_kernel *kernel) {
    size_t n = print(kernel, NULL, 0);
    char *text = malloc(n + 1);
    if (text)
        print(kernel, text, n + 1);
    return text;
}

char *cli_part_text(size_t (*print)(const epi_kernel *, int, char *, size_t), const epi_kernel *kernel,
                    int index) {
    size_t n = print(kernel, index, NULL, 0);
    char *text = malloc(n + 1);
    if (text)
        print(kernel, index, text, n + 1);
    return text;
}

static void put_info(epi_json_writer *w, const epi_kernel_info *info) {
    cli_put_text(w, "mainloop", info->mainloop);
    cli_put_text(w, "micro", info->micro);
    cli_put_integer(w, "threads", info->threads);
    cli_put_integer(w, "m", info->m);
    cli_put_integer(w, "n", info->n);
    cli_put_integer(w, "k", info->k);
    cli_put_integer(w, "tile_m", info->tile_m);
    cli_put_integer(w, "tile_n", info->tile_n);
    cli_put_number(w, "flops", info->flops);
    cli_put_number(w, "bytes_fused", info->bytes_fused);
    cli_put_number(w, "bytes_unfused", info->bytes_unfused);
    cli_put_number(w, "intensity", info->flops / info->bytes_fused);
    cli_put_integer(w, "part_count", info->parts);
    cli_put_integer(w, "kernel_count", info->kernels);
    cli_put_integer(w, "launch_count", info->launches);
}

/* Every part: the first of equal ones whole, of the others which that is. Then the values between them. */
static void put_parts(epi_json_writer *w, const epi_kernel *kernel, const epi_kernel_info *whole) {
    epi_part_info p;
    epi_value_info v;
    cli_put_integer(w, "workspace", (int64_t)epi_kernel_workspace(kernel));
    cli_put_integer(w, "value_bytes", whole->value_bytes);
    cli_put_integer(w, "value_bytes_least", whole->value_bytes_least);
    if (whole->workspace_whole) {
        cli_put_integer(w, "slabs", whole->slabs);
        cli_put_integer(w, "workspace_whole", whole->workspace_whole);
    }
    if (whole->prepared) {
        cli_put_integer(w, "prepared_parts", whole->prepared);
        cli_put_integer(w, "prepared_bytes", (int64_t)epi_kernel_prepare_size(kernel));
    }
    epi_json_put_key(w, "parts");
    epi_json_put_open(w, '[');
    for (int i = 0; epi_kernel_part(kernel, i, &p) == EPI_OK; i++) {
        epi_json_put_open(w, '{');
        cli_put_integer(w, "first", p.first + 1);
        if (p.first == i) {
            char *text = cli_part_text(epi_kernel_part_print, kernel, i),
                 *how = cli_part_text(epi_kernel_part_describe, kernel, i);
            put_info(w, &p.info);
            cli_put_text(w, "text", text);
            cli_put_text(w, "description", how);
            free(text);
            free(how);
        }
        epi_json_put_close(w, '}');
    }
    epi_json_put_close(w, ']');
    epi_json_put_key(w, "values");
    epi_json_put_open(w, '[');
    for (int i = 0; epi_kernel_value(kernel, i, &v) == EPI_OK; i++) {
        epi_json_put_open(w, '{');
        cli_put_text(w, "name", v.name);
        cli_put_text(w, "expression", v.expression);
        cli_put_text(w, "type", epi_dtype_name(v.type));
        cli_put_integer(w, "bytes", v.bytes);
        cli_put_integer(w, "offset", v.offset);
        cli_put_integer(w, "first", v.first + 1);
        cli_put_integer(w, "last", v.last + 1);
        epi_json_put_close(w, '}');
    }
    epi_json_put_close(w, ']');
}

static bool begins(const char *line, const char *with) {
    return !strncmp(line, with, strlen(with));
}

/* What every launch says of its own: from where the text written for the program begins to the mainloop, or
 * to the next launch. Cuts in place. */
static void keep_own(char *text) {
    bool own = false;
    char *to = text;
    for (char *line = text, *next; *line; line = next) {
        size_t length = strcspn(line, "\n");
        length += line[length] == '\n';
        next = line + length;
        if (begins(line, "// ---- written for this program"))
            own = true;
        else if (begins(line, "// ---- the mainloop") || begins(line, "#define NAME ") ||
                 begins(line, "#define EPI_FAST "))
            own = false;
        if (own) {
            memmove(to, line, length);
            to += length;
        }
    }
    *to = 0;
}

/* The CUDA text, and nothing else beside it. */
static int show_cuda(const epi_kernel *kernel, const cli_options *o, epi_json_writer *w) {
    char *text = cli_kernel_text(epi_kernel_source, kernel);
    if (!text)
        return cli_complain(EXIT_FAILED, "out of memory");
    if (o->brief)
        keep_own(text);
    if (o->json)
        cli_put_text(w, "cuda", text);
    else
        fputs(text, stdout);
    free(text);
    return EXIT_OK;
}

/* "8.607 GFLOP in 1 kernel, 1 launch; ..." */
static void print_total(const epi_kernel_info *info, double intensity) {
    int parts = info->parts - info->prepared;
    printf("%.4g GFLOP in %d kernel%s", info->flops / 1e9, parts, parts == 1 ? "" : "s");
    if (info->prepared)
        printf(" plus %d that prepare%s", info->prepared, info->prepared == 1 ? "s" : "");
    else if (info->parts > 1)
        printf(", %d of them different", info->kernels);
    printf(", %d launch%s; %.4g MB moved fused, %.4g MB unfused; %.1f flops per byte\n", info->launches,
           info->launches == 1 ? "" : "es", info->bytes_fused / 1e6, info->bytes_unfused / 1e6, intensity);
}

/* The program as the algebra rewrote it, where it did. */
static void show_rewritten(const epi_kernel *kernel, const char *written, const cli_options *o,
                           epi_json_writer *w) {
    char *text = cli_kernel_text(epi_kernel_print, kernel);
    if (text && written && strcmp(text, written) != 0) {
        cli_put_text(w, "rewritten", text);
        if (!o->json)
            printf("\n# the same program with its sums of products reordered\n%s", text);
    }
    free(text);
}

void cli_print_slow(const char *warnings) {
    if (warnings && *warnings)
        printf("\nslow, see docs/speed.md:\n%s", warnings);
}

static int show_kernel(const epi_kernel *kernel, const cli_options *o, epi_json_writer *w) {
    epi_kernel_info info;
    epi_kernel_get_info(kernel, &info);
    char *how = cli_kernel_text(epi_kernel_describe, kernel);
    char *warnings = cli_kernel_text(epi_kernel_warnings, kernel);
    double intensity = info.bytes_fused > 0 ? info.flops / info.bytes_fused : 0;
    put_info(w, &info);
    put_parts(w, kernel, &info);
    cli_put_text(w, "description", how);
    cli_put_text(w, "warnings", warnings);
    if (!o->json) {
        printf("\nmainloop %s", info.mainloop);
        if (!o->device)
            printf(", %d thread%s", info.threads, info.threads == 1 ? "" : "s");
        printf("\n%s", how ? how : "");
        print_total(&info, intensity);
        cli_print_slow(warnings);
    }
    free(warnings);
    free(how);
    return o->json && o->cuda ? show_cuda(kernel, o, w) : EXIT_OK;
}

static int ask_for_dims(const epi_program *program, const cli_options *o) {
    if (o->cuda) {
        cli_complain(EXIT_USAGE, "CUDA source depends on sizes: add --dims; see 'epilog help show'");
        return EXIT_USAGE;
    }
    if (o->json)
        return EXIT_OK;
    printf("\nadd --dims to see the kernel; the axes are");
    for (int i = 0; i < epi_program_dim_count(program); i++)
        if (!epi_program_dim_size(program, i))
            printf(" %s", epi_program_dim(program, i));
    printf("\n");
    return EXIT_OK;
}

static int show_compiled(const epi_program *program, const char *text, const cli_options *o,
                         epi_json_writer *w) {
    epi_error err;
    epi_kernel *kernel;
    epi_options options;
    cli_open open;
    int status = cli_open_options(o, program, &open, &options);
    if (status != EXIT_OK)
        return status;
    if (epi_kernel_compile(program, &options, &kernel, &err) != EPI_OK)
        return cli_fail(&err);
    if (o->cuda && !o->json) {
        status = show_cuda(kernel, o, w);
    } else {
        show_rewritten(kernel, text, o, w);
        status = show_kernel(kernel, o, w);
    }
    epi_kernel_free(kernel);
    return status;
}

static int show_program(const epi_program *program, const cli_options *o, epi_json_writer *w) {
    bool only_cuda = o->cuda && !o->json;
    char *text = cli_text_of(epi_program_print, program);
    cli_put_text(w, "text", text);
    if (!o->json && !only_cuda)
        printf("%s", text ? text : "");
    int status = EXIT_OK;
    if (!o->dim_count && epi_program_dim_count(program))
        status = ask_for_dims(program, o);
    else
        status = show_compiled(program, text, o, w);
    free(text);
    return status;
}

int cmd_show(cli_options *given) {
    cli_options o = *given;
    cli_source s;
    if (o.brief && !o.cuda)
        return cli_complain(EXIT_USAGE, "--brief shortens the output of --cuda: add --cuda");
    if (o.cuda && !o.device_name && !o.arch)
        o.arch = epi_gpu_arch_device("sm_90a");
    int opened = cli_only_program(&s, &o);
    if (opened != EXIT_OK)
        return opened;
    epi_text out = {0};
    epi_json_writer w = {.text = &out};
    int status = cli_device_choose(s.ctx, &o);
    if (status == EXIT_OK && o.cuda && !o.device)
        status = cli_complain(EXIT_USAGE, "a CPU kernel has no CUDA source");
    epi_json_put_open(&w, '{');
    if (status == EXIT_OK)
        status = show_program(s.program, &o, &w);
    epi_json_put_close(&w, '}');
    cli_source_close(&s);
    o.json &= status == EXIT_OK;
    return cli_print_json(&o, &out, status);
}
