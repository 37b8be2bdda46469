/* begin.c: the first steps: `epilog` without arguments, and `epilog new`, which writes a first program. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "cli.h"

void cli_begin(void) {
    static const struct {
        const char *command, *what;
    } steps[] = {
        {"epilog new first", "writes first.epi, a small program with comments"},
        {"epilog explain first.epi --dims T=256,D=512,F=1024", "explains step by step how it is compiled"},
        {"epilog run first.epi --dims T=256,D=512,F=1024", "runs it and compares the result with f64"},
        {"epilog grad first.epi", "derives its gradients, as a program"},
        {"epilog list", "lists programs to call or copy"},
        {"epilog bench", "times ten fused kernels on this machine"},
        {"epilog help", "lists all commands; 'epilog help run' explains one"},
    };
    printf("epilog %s: fused Transformer kernels from a small tensor language\n\nTo begin:\n\n",
           epi_version());
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        printf("  %s%-52s%s %s\n", cli_styled(stdout, CLI_BOLD), steps[i].command,
               cli_styled(stdout, CLI_PLAIN), steps[i].what);
    printf("\ndocs/tutorial.md is a tour; docs/language.md describes the language.\n");
}

static void write_first(epi_text *out, const char *file, const char *name) {
    epi_text_add(
        out,
        "# %s: a first program. Text after a # is a comment.\n"
        "#\n"
        "# A program has inputs, outputs and assignments. A tensor such as x[T,D] has named axes. You give\n"
        "# their sizes when you compile the program:\n"
        "#\n"
        "#     epilog explain %s --dims T=256,D=512,F=1024     explains step by step how it is compiled\n"
        "#     epilog run %s --dims T=256,D=512,F=1024         runs it on random inputs\n"
        "#     epilog grad %s                                  derives its gradients, as a program\n"
        "#\n"
        "# Try these changes: silu, relu or tanh in place of gelu; an input res[T,F] that is added to y; an\n"
        "# output z[T,F] = y*rsqrt(s). The last needs a whole row of y, so it becomes a second kernel.\n"
        "\n"
        "# Half of a feed-forward block: a linear layer, GELU, and the mean square of each row.\n"
        "%s(x[T,D], w[F,D], b[F]) -> (y[T,F], s: f32[T]) {\n"
        "    h = x @ w + b    # @ sums over D, the axis that both have; b[F] is added to every row\n"
        "    y = gelu(h)      # computed on the tile of the product, before it is stored\n"
        "    s = mean(y*y, F) # the mean removes the axis F\n"
        "}\n",
        file, file, file, file, name);
}

/* The library's own judgement of the text, so that a name that the language does not allow is found here. */
static epi_status check_text(const epi_text *text, const char *path, epi_error *err) {
    epi_context *ctx;
    epi_module *module;
    EPI_TRY(epi_context_open(&ctx, err));
    epi_status status = epi_module_parse(ctx, text->data, text->length, path, &module, err);
    epi_module_free(module);
    epi_context_close(ctx);
    return status;
}

/* A file that is there is left alone, also where it appears only now. */
static int write_new(const char *path, const epi_text *text) {
    FILE *f = fopen(path, "wx");
    if (!f)
        return cli_complain(EXIT_FAILED,
                            errno == EEXIST ? "%s: exists already and was not changed" : "%s: %s", path,
                            strerror(errno));
    bool ok = fwrite(text->data, 1, text->length, f) == text->length;
    ok &= fclose(f) == 0;
    if (ok)
        return EXIT_OK;
    int status = cli_complain(EXIT_FAILED, "%s: %s", path, strerror(errno));
    unlink(path);
    return status;
}

int cmd_new(cli_options *o) {
    if (o->name_count != 1)
        return cli_complain(EXIT_USAGE, "new needs one NAME; see 'epilog help new'");
    const char *slash = strrchr(o->names[0], '/'), *base = slash ? slash + 1 : o->names[0];
    size_t n = strlen(base), folder = (size_t)(base - o->names[0]);
    n -= n > 4 && !strcmp(base + n - 4, ".epi") ? 4 : 0;
    char name[200], path[2048];
    snprintf(name, sizeof name, "%.*s", (int)n, base);
    if (!n || n >= sizeof name || folder + n + sizeof ".epi" > sizeof path)
        return cli_complain(EXIT_USAGE, "'%s' cannot name a program", o->names[0]);
    for (const char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '_')
            return cli_complain(EXIT_USAGE, "'%s' cannot name a program: use letters, digits and _", name);
    if (isdigit((unsigned char)name[0]))
        return cli_complain(EXIT_USAGE, "'%s' cannot name a program: begin with a letter", name);
    snprintf(path, sizeof path, "%.*s%s.epi", (int)folder, o->names[0], name);
    epi_text text = {0};
    epi_error err;
    write_first(&text, path + folder, name);
    int status = text.failed ? cli_complain(EXIT_FAILED, "out of memory") : EXIT_OK;
    if (status == EXIT_OK && check_text(&text, path, &err) != EPI_OK)
        status = cli_fail(&err);
    if (status == EXIT_OK)
        status = write_new(path, &text);
    if (status == EXIT_OK)
        cli_print("%s is written. Next:\n\n    epilog explain %s --dims T=256,D=512,F=1024\n", path, path);
    epi_text_free(&text);
    return status;
}
