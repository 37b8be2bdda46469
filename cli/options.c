/* options.c: the command line. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "cuda/cuda.h"

static bool parse_int(const char *text, int64_t *out) {
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    *out = v;
    return end != text && !*end && errno == 0;
}

/* "A=1,B=2": calls set(o, name, value) for each. The text is argv's own and is cut up in place. */
static int each_binding(cli_options *o, const char *option, char *text,
                        int (*set)(cli_options *, char *, char *)) {
    for (char *item = text, *next; item; item = next) {
        next = strchr(item, ',');
        if (next)
            *next++ = 0;
        item += strspn(item, " ");
        char *value = strchr(item, '=');
        if (!value || value == item)
            return cli_complain(EXIT_USAGE, "%s wants NAME=VALUE, separated by commas; got '%s'", option,
                                item);
        *value++ = 0;
        int status = set(o, item, value);
        if (status != EXIT_OK)
            return status;
    }
    return EXIT_OK;
}

static int set_dim(cli_options *o, char *name, char *value) {
    int64_t size;
    if (!parse_int(value, &size))
        return cli_complain(EXIT_USAGE, "the size of axis %s is no 64-bit integer: '%s'", name, value);
    if (o->dim_count == CLI_MAX_BINDINGS)
        return cli_complain(EXIT_USAGE, "too many dims");
    o->dims[o->dim_count++] = (epi_dim_binding){name, size};
    return EXIT_OK;
}

static int set_type(cli_options *o, char *name, char *value) {
    epi_dtype type = epi_dtype_find(value);
    if (type == EPI_DTYPE_COUNT)
        return cli_complain(EXIT_USAGE, "'%s' is no type; the types are f32, bf16, f16, i32, f64", value);
    if (o->type_count == CLI_MAX_BINDINGS)
        return cli_complain(EXIT_USAGE, "too many types");
    for (int i = 0; i < o->type_count; i++)
        if (!strcmp(o->types[i].tensor, name))
            return cli_complain(EXIT_USAGE, "--types names %s twice", name);
    o->types[o->type_count++] = (epi_type_binding){name, type};
    return EXIT_OK;
}

static int set_scalar(cli_options *o, char *name, char *value) {
    char *end;
    double number = strtod(value, &end);
    if (end == value || *end)
        return cli_complain(EXIT_USAGE, "the value of %s is no number: '%s'", name, value);
    if (o->scalar_count == CLI_MAX_BINDINGS)
        return cli_complain(EXIT_USAGE, "too many scalars");
    for (int i = 0; i < o->scalar_count; i++)
        if (!strcmp(o->scalars[i].name, name))
            return cli_complain(EXIT_USAGE, "--set names %s twice", name);
    o->scalars[o->scalar_count].name = name;
    o->scalars[o->scalar_count++].value = number;
    return EXIT_OK;
}

static int set_sizes(cli_options *o, char *text) {
    for (char *item = text, *next; item; item = next) {
        next = strchr(item, ',');
        if (next)
            *next++ = 0;
        if (o->size_count == 8 || !parse_int(item, &o->sizes[o->size_count]) ||
            o->sizes[o->size_count] < 128 || o->sizes[o->size_count] % 128)
            return cli_complain(
                EXIT_USAGE, "--size wants up to eight multiples of 128, separated by commas; got '%s'", item);
        o->size_count++;
    }
    return EXIT_OK;
}

static int set_config(cli_options *o, char *name) {
    epi_text all = {0};
    if (!strncmp(name, "rows_", 5)) /* shapes of rows are not in the table: compiling reads the name */
        return o->config = name, EXIT_OK;
    for (int i = 0; i < epi_config_count(); i++) {
        if (!strcmp(name, epi_config_name(i))) {
            epi_text_free(&all);
            return o->config = name, EXIT_OK;
        }
        epi_text_add(&all, "%s%s", i ? ", " : "", epi_config_name(i));
    }
    int status = cli_complain(EXIT_USAGE,
                              "there is no configuration '%s'; there are %s; and for rows names like "
                              "rows_128x4_r1_c1_b8192_m1, of which 'show' tells the one that is chosen",
                              name, all.data ? all.data : "");
    epi_text_free(&all);
    return status;
}

static int set_arch(cli_options *o, const char *name) {
    static const struct {
        const char *name;
        int capability;
    } archs[] = {{"sm_90a", 90}, {"sm_80", 80}, {"sm_86", 86}, {"sm_89", 89}, {"sm_120", 120}};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (!strcmp(name, archs[i].name))
            return o->capability = archs[i].capability, EXIT_OK;
    return cli_complain(EXIT_USAGE, "--arch wants sm_90a, sm_80, sm_86, sm_89 or sm_120; got '%s'", name);
}

/* The place of a word in a list that ends with NULL, or -1. */
static int place_of(const char *word, const char *const *words) {
    for (int i = 0; words[i]; i++)
        if (!strcmp(word, words[i]))
            return i;
    return -1;
}

static int set_word(cli_options *o, const char *name, const char *value) {
    static const char *const paths[] = {"fused", "unfused", "naive", "reference", NULL};
    static const char *const roundings[] = {"packed", "exact", NULL};
    int at;
    if (!strcmp(name, "--type")) {
        o->type = epi_dtype_find(value);
        o->has_type = true;
        if (o->type > EPI_F16)
            return cli_complain(EXIT_USAGE, "--type wants f32, bf16 or f16; got '%s'", value);
    } else if (!strcmp(name, "--path")) {
        if ((at = place_of(value, paths)) < 0)
            return cli_complain(EXIT_USAGE, "--path wants fused, unfused, naive or reference; got '%s'",
                                value);
        o->path = (epi_path)at;
    } else {
        if ((at = place_of(value, roundings)) < 0)
            return cli_complain(EXIT_USAGE, "--rounding wants exact or packed; got '%s'", value);
        o->rounding = (epi_rounding)at;
        o->has_rounding = true;
    }
    return EXIT_OK;
}

static int set_number(cli_options *o, const char *name, const char *value) {
    int64_t n;
    bool seed = !strcmp(name, "--seed"), threads = !strcmp(name, "--threads");
    if (!parse_int(value, &n) || n < (seed ? 0 : 1) || (!seed && n > 1000000))
        return cli_complain(EXIT_USAGE, "%s wants a number%s; got '%s'", name, seed ? "" : " of 1 or more",
                            value);
    if (seed)
        o->seed = (uint64_t)n;
    else
        *(threads ? &o->threads : &o->repeat) = (int)n;
    return EXIT_OK;
}

static int set_option(cli_options *o, const char *name, char *value) {
    const struct {
        const char *name, **to;
    } texts[] = {{"--in", &o->in},
                 {"--out", &o->out},
                 {"--micro", &o->micro},
                 {"--tuning", &o->tuning},
                 {"--device", &o->device_name}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!strcmp(name, texts[i].name))
            return *texts[i].to = value, EXIT_OK;
    if (!strcmp(name, "--dims"))
        return each_binding(o, name, value, set_dim);
    if (!strcmp(name, "--types"))
        return each_binding(o, name, value, set_type);
    if (!strcmp(name, "--set"))
        return each_binding(o, name, value, set_scalar);
    if (!strcmp(name, "--size"))
        return set_sizes(o, value);
    if (!strcmp(name, "--config"))
        return set_config(o, value);
    if (!strcmp(name, "--arch"))
        return set_arch(o, value);
    if (!strcmp(name, "--type") || !strcmp(name, "--path") || !strcmp(name, "--rounding"))
        return set_word(o, name, value);
    return set_number(o, name, value);
}

/* Does the option want a value? -1: there is none of that name. */
static int wants_value(const char *name) {
    static const char *const flags[] = {"--json", "--help", "-h", "--cuda", "--brief", NULL};
    static const char *const others[] = {"--in",      "--out",    "--micro", "--tuning",   "--device",
                                         "--dims",    "--types",  "--set",   "--size",     "--config",
                                         "--arch",    "--type",   "--path",  "--rounding", "--seed",
                                         "--threads", "--repeat", NULL};
    return place_of(name, flags) >= 0 ? 0 : place_of(name, others) >= 0 ? 1 : -1;
}

int cli_parse(int argc, char **argv, cli_options *o) {
    *o = (cli_options){.command = argc > 1 ? argv[1] : "help", .type = EPI_F32};
    for (int i = 2; i < argc; i++) {
        char *arg = argv[i], *value = NULL;
        if (arg[0] != '-' || !arg[1]) {
            if (o->name_count == CLI_MAX_NAMES)
                return cli_complain(EXIT_USAGE, "too many names");
            o->names[o->name_count++] = arg;
            continue;
        }
        if (!strncmp(arg, "--", 2) && (value = strchr(arg, '=')))
            *value++ = 0;
        int wants = wants_value(arg);
        if (wants < 0 && arg[1] != '-')
            return cli_complain(EXIT_USAGE, "unknown option '%s'; options are long, as in --json", arg);
        if (wants < 0)
            return cli_complain(EXIT_USAGE, "unknown option '%s'; see 'epilog help %s'", arg, o->command);
        if (wants && !value && i + 1 < argc && strncmp(argv[i + 1], "--", 2) != 0)
            value = argv[++i];
        if (wants && !value)
            return cli_complain(EXIT_USAGE, "%s wants a value", arg);
        if (!wants && value)
            return cli_complain(EXIT_USAGE, "%s takes no value", arg);
        if (o->given_count == CLI_MAX_NAMES)
            return cli_complain(EXIT_USAGE, "too many options");
        bool list = !strcmp(arg, "--dims") || !strcmp(arg, "--types") || !strcmp(arg, "--set");
        for (int k = 0; k < o->given_count && wants && !list; k++)
            if (!strcmp(o->given[k], arg))
                return cli_complain(EXIT_USAGE, "%s is given twice", arg);
        o->values[o->given_count] = value;
        o->given[o->given_count++] = arg;
    }
    return EXIT_OK;
}

int cli_apply(cli_options *o) {
    const struct {
        const char *name;
        bool *to;
    } flags[] = {{"--json", &o->json},
                 {"--help", &o->help},
                 {"-h", &o->help},
                 {"--cuda", &o->cuda},
                 {"--brief", &o->brief}};
    for (int i = 0; i < o->given_count; i++) {
        int status = o->values[i] ? set_option(o, o->given[i], o->values[i]) : EXIT_OK;
        for (size_t f = 0; f < sizeof flags / sizeof *flags; f++)
            if (!strcmp(o->given[i], flags[f].name))
                *flags[f].to = true;
        if (status != EXIT_OK)
            return status;
    }
    return EXIT_OK;
}

epi_options cli_compile_options(const cli_options *o) {
    return (epi_options){.dims = o->dims,
                         .dim_count = o->dim_count,
                         .type = o->type,
                         .types = o->types,
                         .type_count = o->type_count,
                         .device = o->device,
                         .threads = o->threads,
                         .path = o->path,
                         .micro = o->micro,
                         .rounding = o->rounding,
                         .config = o->config};
}
