/* explain.c: explains in words how a program is checked, differentiated, split and compiled. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/kinds.h"
#include "cli.h"

/* ---- words ---- */

static void head(int number, const char *what) {
    printf("\n%s%d. %s%s\n\n", cli_styled(stdout, CLI_BOLD), number, what, cli_styled(stdout, CLI_PLAIN));
}

static const char *s_of(int count) {
    return count == 1 ? "" : "s";
}

/* A text in a paragraph of its own, four blanks further in. */
static void print_indented(const char *text) {
    for (const char *end; text && *text; text = end) {
        end = text + strcspn(text, "\n");
        end += *end == '\n';
        cli_print("%s%.*s", *text == '\n' ? "" : "    ", (int)(end - text), text);
    }
}

/* What a mainloop is. */
static const char *kind_of(const char *mainloop) {
    const epi_kind_row *kind = epi_kind_named(mainloop);
    return kind                         ? kind->what
           : !strcmp(mainloop, "parts") ? "several kernels, one after the other"
                                        : "a kernel of its own kind";
}

/* ---- 1: what the checker found ---- */

static void print_tensors(const epi_program *p, const cli_options *o, bool outputs) {
    epi_tensor_info info;
    for (int t = 0; epi_program_tensor(p, t, &info) == EPI_OK; t++) {
        if ((bool)info.is_output != outputs)
            continue;
        cli_print("    %-5s %s", outputs ? "gives" : "takes", info.name);
        for (int a = 0; a < info.rank; a++) {
            int shift = info.axes[a].shift;
            cli_print("%s", a ? "," : "[");
            if (shift > 0)
                cli_print("%d*", 1 << shift);
            cli_print("%s", info.axes[a].dim);
            if (shift < 0)
                cli_print("/%d", 1 << -shift);
        }
        if (info.has_type || info.rank)
            cli_print("%s, stored as %s%s\n", info.rank ? "]" : "",
                      epi_dtype_name(info.has_type ? info.type : o->type),
                      info.has_type ? "" : " (from --type)");
        else
            cli_print(", a number\n");
    }
}

static void explain_check(const epi_program *p, const char *path, const cli_options *o) {
    char *text = cli_text_of(epi_program_print, p);
    head(1, "The program is checked");
    cli_print("%s is a program in %s. In canonical form:\n\n", epi_program_name(p), path);
    print_indented(text);
    printf("\n"
           "Names, types and axes are correct: axes of the same name match, both operands of @ have the axes "
           "that\n"
           "it sums over, and every output has the axes that it declares. The program\n\n");
    print_tensors(p, o, false);
    print_tensors(p, o, true);
    printf("\nAll arithmetic is f32, whatever the storage type. Axes:");
    for (int i = 0; i < epi_program_dim_count(p); i++)
        cli_print("%s %s", i ? "," : "", epi_program_dim(p, i));
    printf("%s.\n", epi_program_dim_count(p) ? "; you give their sizes when you compile it" : " none");
    free(text);
}

/* ---- 2: its gradients ---- */

static int explain_grad(const epi_program *p, const cli_options *o) {
    epi_error err;
    cli_wrt wrt;
    epi_module *derived = NULL;
    head(2, "Its gradients are a program too");
    int status = cli_wrt_read(&wrt, p, o);
    if (status != EXIT_OK)
        return o->wrt ? status : EXIT_OK;
    if (epi_program_grad(p, wrt.names, wrt.count, &derived, &err) != EPI_OK) {
        if (o->wrt)
            return cli_fail(&err);
        cli_print("It has no gradients with respect to all of its inputs: %s\n", err.message);
        return EXIT_OK;
    }
    const epi_program *g = epi_module_program(derived, 0);
    char *text = cli_text_of(epi_program_print, g);
    printf("Every operation has a derivative rule, written in the language itself. Epilog applies these "
           "rules from\n"
           "the outputs back to the inputs and simplifies the result. For each output y, the new program "
           "takes d_y,\n"
           "the gradient of some scalar with respect to y. It gives the gradients with respect to %s:\n\n",
           o->wrt ? "the inputs in --wrt" : "the inputs");
    print_indented(text);
    free(text);
    epi_dim_binding dims[CLI_MAX_BINDINGS];
    epi_options options = cli_own_options(g, o, dims);
    epi_kernel *k;
    if (o->dim_count && epi_kernel_compile(g, &options, &k, &err) == EPI_OK) {
        epi_kernel_info info;
        epi_kernel_get_info(k, &info);
        printf("\n"
               "Compiled like any other program, it is %d kernel%s. 'epilog grad --forward' prints a forward "
               "and a\n"
               "backward instead, with the values that the forward saves.\n",
               info.parts, s_of(info.parts));
        epi_kernel_free(k);
    }
    epi_module_free(derived);
    return EXIT_OK;
}

/* ---- 3 and 4: the cut, and what its kernels do ---- */

/* Says what a limit was in the way of, where the plan has a line that begins so. */
static void explain_limit(const char *plan, const char *begin, const char *means) {
    const char *line = plan ? strstr(plan, begin) : NULL, *why = line ? line + strlen(begin) : "";
    if (line)
        cli_print("%s: %.*s.\n\n", means, (int)strcspn(why, "\n"), why);
}

/* Says where sums of products are taken in another order than the text has them, and where a limit was in
 * the way of that. */
static void explain_algebra(const epi_program *p, const epi_kernel *k) {
    char *text = cli_text_of(epi_program_print, p), *rewritten = cli_kernel_text(epi_kernel_print, k),
         *plan = cli_kernel_text(epi_kernel_describe, k);
    explain_limit(plan, "not rewritten: ", "Its sums of products are not reordered but computed as written");
    explain_limit(plan,
                  "not split into kernels: ", "It is not split into kernels of several operations each");
    if (text && rewritten && strcmp(text, rewritten) != 0) {
        printf("First, Epilog reorders sums of products, so that fewer bytes move. The result is the same "
               "except for\n"
               "rounding; --algebra written turns this off. The program is now:\n\n");
        print_indented(rewritten);
        printf("\n");
    }
    free(text);
    free(rewritten);
    free(plan);
}

static void explain_cut(const epi_program *p, const epi_kernel *k, const epi_kernel_info *info) {
    head(3, "It is split into kernels");
    explain_algebra(p, k);
    if (info->parts == 1) {
        cli_print("%s becomes one kernel, of the kind %s: %s.\n", epi_program_name(p), info->mainloop,
                  kind_of(info->mainloop));
        return;
    }
    printf("A kernel has one mainloop: one matrix product, or two that share a tile, or a loop over rows. "
           "And an\n"
           "operation that needs a whole row of a product cannot run on one of its tiles. So the program is "
           "split\n"
           "into %d parts, %d of them different. Each is a kernel. They run in this order:\n\n",
           info->parts, info->kernels);
    epi_part_info part;
    for (int i = 0; epi_kernel_part(k, i, &part) == EPI_OK; i++) {
        if (part.first != i)
            printf("    part %d, the same as part %d on other tensors\n", i + 1, part.first + 1);
        else
            cli_print("    part %d, %s%s: %s\n", i + 1, part.info.mainloop,
                      i < info->prepared ? ", computed once and not in every run" : "",
                      kind_of(part.info.mainloop));
    }
    epi_value_info v;
    const char *before = "\nThese values go from part to part through memory:\n\n";
    for (int i = 0; epi_kernel_value(k, i, &v) == EPI_OK; i++)
        if (*v.name) { /* one that is empty has none */
            cli_print("%s    %-12s %10.4g MB as %s, from part %d to part %d: %s\n", before, v.name,
                      (double)v.bytes / 1e6, epi_dtype_name(v.type), v.first + 1, v.last + 1, v.expression);
            char *why = cli_part_text(epi_kernel_value_why, k, i);
            cli_print("%17sbecause %s\n", "", why ? why : "");
            free(why);
            before = "";
        }
}

static void explain_kernels(const epi_kernel *k, const epi_kernel_info *info) {
    epi_part_info part;
    head(4, "What each kernel does");
    if (info->parts == 1) {
        char *how = cli_kernel_text(epi_kernel_describe, k);
        print_indented(how);
        free(how);
    }
    for (int i = 0; info->parts > 1 && epi_kernel_part(k, i, &part) == EPI_OK; i++) {
        if (part.first != i)
            continue;
        char *text = cli_part_text(epi_kernel_part_print, k, i),
             *how = cli_part_text(epi_kernel_part_describe, k, i);
        printf("%sPart %d is this program:\n\n", i ? "\n" : "", i + 1);
        print_indented(text);
        printf("\nIt runs like this:\n\n");
        print_indented(how);
        free(text);
        free(how);
    }
    printf("\n"
           "Values 'on the tile' or 'in the row' are computed on chip. A reduction that 'leaves as partials' "
           "needs\n"
           "more than one tile: each tile stores its share, and a small last step combines the shares.\n");
}

static void explain_cost(const epi_kernel_info *info) {
    head(5, "What fusion saves");
    printf(
        "A run takes %.4g GFLOP in %d launch%s and moves %.4g MB through memory: %.1f flops per byte. One\n"
        "operation at a time would move %.4g MB, %.2f times as much.\n",
        info->flops / 1e9, info->launches, info->launches == 1 ? "" : "es", info->bytes_fused / 1e6,
        info->bytes_fused > 0 ? info->flops / info->bytes_fused : 0, info->bytes_unfused / 1e6,
        info->bytes_fused > 0 ? info->bytes_unfused / info->bytes_fused : 0);
}

static void explain_slow(const epi_kernel *k) {
    char *warnings = cli_kernel_text(epi_kernel_warnings, k);
    if (warnings && *warnings) {
        head(6, "What is slow");
        print_indented(warnings);
        printf("\ndocs/speed.md says more.\n");
    }
    free(warnings);
}

/* The sizes as they were given, or ones to begin with. */
static void print_dims(const epi_program *p, const cli_options *o) {
    const char *before = " --dims ";
    for (int i = 0; i < o->dim_count; i++, before = ",")
        cli_print("%s%s=%lld", before, o->dims[i].name, (long long)o->dims[i].size);
    for (int i = 0; i < epi_program_dim_count(p) && !o->dim_count; i++)
        if (!epi_program_dim_size(p, i)) {
            cli_print("%s%s=256", before, epi_program_dim(p, i));
            before = ",";
        }
}

static int explain_kernel(const epi_program *p, const cli_options *o) {
    epi_error err;
    epi_kernel *k;
    epi_kernel_info info;
    epi_options options = cli_compile_options(o);
    if (!o->dim_count && epi_program_dim_count(p)) {
        head(3, "It is split into kernels");
        printf("This depends on the sizes: add --dims, as in");
        print_dims(p, o);
        printf("\n");
        return EXIT_OK;
    }
    if (epi_kernel_compile(p, &options, &k, &err) != EPI_OK)
        return cli_fail(&err);
    epi_kernel_get_info(k, &info);
    if (info.launches) {
        explain_cut(p, k, &info);
        explain_kernels(k, &info);
        explain_cost(&info);
        explain_slow(k);
    } else {
        head(3, "It is split into kernels");
        printf("At these sizes there are no kernels: no result has elements.\n");
    }
    epi_kernel_free(k);
    return EXIT_OK;
}

/* The table of passes, or the program after one of them, and nothing beside it. */
static int explain_passes(const epi_program *p, const cli_options *o) {
    epi_error err;
    epi_kernel *k;
    epi_options options = cli_compile_options(o);
    if (!o->dim_count && epi_program_dim_count(p))
        return cli_complain(EXIT_USAGE, "passes need sizes: add --dims; see 'epilog help explain'");
    if (epi_kernel_compile(p, &options, &k, &err) != EPI_OK)
        return cli_fail(&err);
    size_t length = o->after ? epi_kernel_print_after(k, o->after, NULL, 0) : 0;
    char *text = o->after ? malloc(length + 1) : cli_kernel_text(epi_kernel_describe_passes, k);
    int status = EXIT_OK;
    if (o->after && !length)
        status =
            cli_complain(EXIT_USAGE, "there is no pass '%s'; 'epilog explain --passes' lists them", o->after);
    else if (!text)
        status = cli_complain(EXIT_FAILED, "out of memory");
    else if (o->after)
        epi_kernel_print_after(k, o->after, text, length + 1);
    if (status == EXIT_OK)
        fputs(text, stdout);
    free(text);
    epi_kernel_free(k);
    return status;
}

int cmd_explain(cli_options *given) {
    cli_options o = *given;
    cli_source s;
    if (o.passes && o.after)
        return cli_complain(EXIT_USAGE, "--passes prints a table, --after PASS a program: use one of them");
    int opened = cli_only_program(&s, &o);
    if (opened != EXIT_OK)
        return opened;
    int status = cli_device_choose(s.ctx, &o);
    if (o.passes || o.after) {
        status = status == EXIT_OK ? explain_passes(s.program, &o) : status;
        cli_source_close(&s);
        return status;
    }
    if (status == EXIT_OK) {
        explain_check(s.program, s.path, &o);
        status = explain_grad(s.program, &o);
    }
    if (status == EXIT_OK)
        status = explain_kernel(s.program, &o);
    if (status == EXIT_OK) {
        cli_print(
            "\n"
            "Next, run it and compare the result with f64, or time it with 'bench' instead of 'run':\n\n"
            "    epilog run %s",
            o.names[0]);
        print_dims(s.program, &o);
        printf("\n");
    }
    cli_source_close(&s);
    return status;
}
