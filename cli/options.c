/* options.c: parses the command line. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/nearest.h"
#include "cli.h"

static bool parse_int(const char *text, int64_t *out) {
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    *out = v;
    return end != text && !*end && errno == 0;
}

char *cli_next_item(char **rest) {
    char *item = *rest, *end = item ? strchr(item, ',') : NULL;
    if (!item)
        return NULL;
    *rest = end ? end + 1 : NULL;
    item += strspn(item, " ");
    for (end = end ? end : item + strlen(item); end > item && end[-1] == ' ';)
        end--;
    *end = 0;
    return *item || *rest ? item : NULL; /* nothing behind the last comma */
}

/* "A=1,B=2": calls set(o, name, value) for each. The text is argv's own and is cut up in place. */
static int each_binding(cli_options *o, const char *option, char *text,
                        int (*set)(cli_options *, const char *, char *)) {
    for (char *item; (item = cli_next_item(&text));) {
        char *value = strchr(item, '=');
        size_t length = strcspn(item, " =");
        if (!length || item + length + strspn(item + length, " ") != value)
            return cli_complain(EXIT_USAGE, "%s needs NAME=VALUE pairs, separated by commas; got '%s'",
                                option, item);
        item[length] = 0;
        value += 1 + strspn(value + 1, " ");
        int status = set(o, item, value);
        if (status != EXIT_OK)
            return status;
    }
    return EXIT_OK;
}

static int add_size(epi_dim_binding *to, int *count, const char *name, const char *value) {
    int64_t size;
    if (!parse_int(value, &size))
        return cli_complain(EXIT_USAGE, "the size of axis %s must be a 64-bit integer; got '%s'", name,
                            value);
    if (*count == CLI_MAX_BINDINGS)
        return cli_complain(EXIT_USAGE, "too many axes");
    to[(*count)++] = (epi_dim_binding){name, size};
    return EXIT_OK;
}

static int set_dim(cli_options *o, const char *name, char *value) {
    return add_size(o->dims, &o->dim_count, name, value);
}

static int set_open(cli_options *o, const char *name, char *value) {
    return add_size(o->open, &o->open_count, name, value);
}

static int set_type(cli_options *o, const char *name, char *value) {
    epi_dtype type = epi_dtype_find(value);
    if (type == EPI_DTYPE_COUNT && epi_dtype_meant(value))
        return cli_complain(EXIT_USAGE, "'%s' is not a type; did you mean %s?", value,
                            epi_dtype_meant(value));
    if (type == EPI_DTYPE_COUNT)
        return cli_complain(EXIT_USAGE, "'%s' is not a type; the types are %s", value, epi_dtype_names());
    if (o->type_count == CLI_MAX_BINDINGS)
        return cli_complain(EXIT_USAGE, "too many types");
    for (int i = 0; i < o->type_count; i++)
        if (!strcmp(o->types[i].tensor, name))
            return cli_complain(EXIT_USAGE, "--types names %s twice", name);
    o->types[o->type_count++] = (epi_type_binding){name, type};
    return EXIT_OK;
}

static int set_scalar(cli_options *o, const char *name, char *value) {
    char *end;
    double number = strtod(value, &end);
    if (end == value || *end)
        return cli_complain(EXIT_USAGE, "the value of %s must be a number; got '%s'", name, value);
    if (o->scalar_count == CLI_MAX_BINDINGS)
        return cli_complain(EXIT_USAGE, "too many scalars");
    for (int i = 0; i < o->scalar_count; i++)
        if (!strcmp(o->scalars[i].name, name))
            return cli_complain(EXIT_USAGE, "--set names %s twice", name);
    o->scalars[o->scalar_count].name = name;
    o->scalars[o->scalar_count++].value = number;
    return EXIT_OK;
}

static int set_sizes(cli_options *o, const char *option, char *text) {
    (void)option;
    for (char *item; (item = cli_next_item(&text));) {
        if (o->size_count == 8 || !parse_int(item, &o->sizes[o->size_count]) ||
            o->sizes[o->size_count] < 128 || o->sizes[o->size_count] % 128)
            return cli_complain(
                EXIT_USAGE, "--size needs up to eight multiples of 128, separated by commas; got '%s'", item);
        o->size_count++;
    }
    return EXIT_OK;
}

static int set_config(cli_options *o, const char *option, char *name) {
    (void)option;
    /* shapes of rows are not in the table: compiling reads the name */
    if (!strncmp(name, "rows_", 5) || epi_gpu_config_find(name) >= 0)
        return o->config = name, EXIT_OK;
    epi_text all = {0};
    for (int i = 0; i < epi_gpu_config_count(); i++)
        epi_text_add(&all, "%s%s", i ? ", " : "", epi_gpu_config_name(i));
    int status = cli_complain(EXIT_USAGE,
                              "there is no configuration '%s'; there are %s; for rows, 'show' prints the "
                              "chosen name, such as rows_128x4_r1_c1_b8192_m1",
                              name, all.data ? all.data : "");
    epi_text_free(&all);
    return status;
}

/* The place of a word in a list with blanks between, or -1. */
static int place_of(const char *word, const char *words) {
    size_t n = strlen(word);
    for (int i = 0; *words; i++, words += strcspn(words, " "), words += *words == ' ')
        if (strcspn(words, " ") == n && !strncmp(words, word, n))
            return i;
    return -1;
}

/* The names of --arch, with blanks between. */
static const char *archs(void) {
    static char all[200];
    const char *name;
    for (int i = 0; (name = epi_gpu_arch_name(i)); i++)
        if (place_of(name, all) < 0)
            snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", all[0] ? " " : "", name);
    return all;
}

/* The one of these words that is close to the value, or the type that others call so. */
static const char *meant_by(const char *value, const char *words, epi_nearest *near) {
    const char *type = epi_dtype_meant(value);
    char word[64];
    if (type && place_of(type, words) >= 0)
        return type;
    for (size_t n; (n = strcspn(words, " ")); words += n + (words[n] == ' ')) {
        snprintf(word, sizeof word, "%.*s", (int)n, words);
        epi_nearest_offer(near, word);
    }
    return near->best;
}

/* The place of a value among those that an option takes. */
static int choose(const char *option, const char *values, const char *value, int *at) {
    char all[200];
    size_t n = 0;
    *at = place_of(value, values);
    if (*at >= 0)
        return EXIT_OK;
    for (const char *v = values; *v && n < sizeof all - 8; v++)
        n += (size_t)snprintf(all + n, sizeof all - n,
                              *v != ' '            ? "%c"
                              : strchr(v + 1, ' ') ? ", "
                                                   : " or ",
                              *v);
    epi_nearest near = {.wanted = value};
    const char *meant = meant_by(value, values, &near);
    return cli_complain(EXIT_USAGE, "%s needs %s; got '%s'%s%s%s", option, all, value,
                        *meant ? "; did you mean " : "", meant, *meant ? "?" : "");
}

static int set_arch(cli_options *o, const char *option, char *name) {
    int at;
    o->arch = epi_gpu_arch_device(name);
    return choose(option, archs(), name, &at);
}

static int set_number(cli_options *o, const char *name, char *value) {
    int64_t n;
    bool seed = !strcmp(name, "--seed"), threads = !strcmp(name, "--threads");
    if (!parse_int(value, &n) || n < (seed ? 0 : 1) || (!seed && n > 1000000))
        return cli_complain(EXIT_USAGE, "%s needs a number%s; got '%s'", name, seed ? "" : " of 1 or more",
                            value);
    if (seed)
        o->seed = (uint64_t)n;
    else
        *(threads ? &o->threads : &o->repeat) = (int)n;
    return EXIT_OK;
}

/* Bytes: 500000000, 64K, 500M or 2G, where M is 10^6. */
static int set_memory(cli_options *o, const char *name, char *value) {
    size_t length = strlen(value);
    const char *units = "kKmMgG", *unit = length ? strchr(units, value[length - 1]) : NULL;
    int64_t n, times = 1;
    char last = unit ? *unit : 0;
    if (unit)
        value[length - 1] = 0;
    for (int64_t u = unit ? (unit - units) / 2 : -1; u >= 0; u--)
        times *= 1000;
    if (!parse_int(value, &n) || n < 1 || n > ((int64_t)1 << 50) / times)
        return cli_complain(EXIT_USAGE,
                            "%s needs a number of bytes, such as 500000000, 64K, 500M or 2G; got '%s%.1s'",
                            name, value, &last);
    o->memory = (size_t)(n * times);
    return EXIT_OK;
}

/* What there is. A list may be given in parts. */
typedef enum option_kind { FLAG, TEXT, CHOICE, WORD, LIST } option_kind;
static const struct option {
    const char *name;
    option_kind kind;
    size_t at; /* of flags, texts and choices, in the options */
    int (*set)(cli_options *, const char *name,
               char *value); /* of words by the option's name, of a list by that of each item */
    const char *values;      /* as cli_option has them */
} options[] = {
    {"--json", FLAG, offsetof(cli_options, json), NULL, NULL},
    {"--help", FLAG, offsetof(cli_options, help), NULL, NULL},
    {"-h", FLAG, offsetof(cli_options, help), NULL, NULL},
    {"--cuda", FLAG, offsetof(cli_options, cuda), NULL, NULL},
    {"--passes", FLAG, offsetof(cli_options, passes), NULL, NULL},
    {"--brief", FLAG, offsetof(cli_options, brief), NULL, NULL},
    {"--forward", FLAG, offsetof(cli_options, forward), NULL, NULL},
    {"--random", FLAG, offsetof(cli_options, random), NULL, NULL},
    {"--no-check", FLAG, offsetof(cli_options, no_check), NULL, NULL},
    {"--check", FLAG, offsetof(cli_options, check), NULL, NULL},
    {"--in", TEXT, offsetof(cli_options, in), NULL, "FILE"},
    {"--out", TEXT, offsetof(cli_options, out), NULL, "FILE"},
    {"--plot", TEXT, offsetof(cli_options, plot), NULL, "FILE"},
    {"--micro", TEXT, offsetof(cli_options, micro), NULL, NULL},
    {"--after", TEXT, offsetof(cli_options, after), NULL, NULL},
    {"--wrt", TEXT, offsetof(cli_options, wrt), NULL, NULL},
    {"--device", TEXT, offsetof(cli_options, device_name), NULL, "cpu gpu gpu0 gpu1"},
    {"--dims", LIST, 0, set_dim, NULL},
    {"--open", LIST, 0, set_open, NULL},
    {"--types", LIST, 0, set_type, NULL},
    {"--set", LIST, 0, set_scalar, NULL},
    {"--size", WORD, 0, set_sizes, NULL},
    {"--config", WORD, 0, set_config, NULL},
    {"--arch", WORD, 0, set_arch, NULL},
    {"--type", CHOICE, offsetof(cli_options, type), NULL, "f32 bf16 f16"},
    {"--path", CHOICE, offsetof(cli_options, path), NULL, "fused unfused naive reference"},
    {"--rounding", CHOICE, offsetof(cli_options, rounding), NULL, "packed exact"},
    {"--algebra", CHOICE, offsetof(cli_options, algebra), NULL, "free written"},
    {"--memory", WORD, 0, set_memory, NULL},
    {"--seed", WORD, 0, set_number, NULL},
    {"--threads", WORD, 0, set_number, NULL},
    {"--repeat", WORD, 0, set_number, NULL},
};

static const struct option *option_of(const char *name) {
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (!strcmp(name, options[i].name))
            return &options[i];
    return NULL;
}

bool cli_option_at(int index, cli_option *out) {
    if (index >= (int)(sizeof options / sizeof *options))
        return false;
    const struct option *it = &options[index];
    *out = (cli_option){it->name, it->kind != FLAG, it->set == set_arch ? archs() : it->values};
    return true;
}

bool cli_is_given(const cli_options *o, const char *name) {
    for (int i = 0; i < o->given_count; i++)
        if (!strcmp(o->given[i], name))
            return true;
    return false;
}

static int unknown_option(const cli_options *o, const char *name) {
    epi_nearest near = {.wanted = name};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        epi_nearest_offer(&near, options[i].name);
    if (near.best[0])
        return cli_complain(EXIT_USAGE, "unknown option '%s'%s", name, epi_nearest_hint(&near, ""));
    return cli_complain(EXIT_USAGE, "unknown option '%s'; see 'epilog help %s'", name, o->command);
}

/* "D=5" behind "--dims T=4" goes on with that list. */
static bool goes_on(const char *arg, const char *list) {
    size_t n = strspn(arg, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    return list && n && arg[n] == '=';
}

/* One option with its value, if it has one in the same word or may take the next. */
static int parse_option(cli_options *o, char *arg, char *next, bool *took_next) {
    char *value = !strncmp(arg, "--", 2) ? strchr(arg, '=') : NULL;
    if (value)
        *value++ = 0;
    const struct option *it = option_of(arg);
    if (!it && arg[1] != '-')
        return cli_complain(EXIT_USAGE, "unknown option '%s'; options have long names, as in --json", arg);
    if (!it)
        return unknown_option(o, arg);
    *took_next = it->kind != FLAG && !value && next && strncmp(next, "--", 2) != 0;
    if (*took_next)
        value = next;
    if (it->kind != FLAG && !value)
        return cli_complain(EXIT_USAGE, "%s needs a value", arg);
    if (it->kind == FLAG && value)
        return cli_complain(EXIT_USAGE, "%s takes no value", arg);
    if (it->kind != FLAG && it->kind != LIST && cli_is_given(o, arg))
        return cli_complain(EXIT_USAGE, "%s is given twice", arg);
    if (o->given_count == CLI_MAX_NAMES)
        return cli_complain(EXIT_USAGE, "too many options");
    o->values[o->given_count] = value;
    o->given[o->given_count++] = it->name;
    return EXIT_OK;
}

int cli_parse(int argc, char **argv, cli_options *o) {
    const char *list = NULL;    /* the one that the last argument was of */
    bool options_ended = false; /* behind -- */
    *o = (cli_options){.command = argc > 1 ? argv[1] : "help", .type = EPI_F32};
    for (int i = 2; i < argc; i++) {
        bool named = options_ended || argv[i][0] != '-' || !argv[i][1] || argv[i][1] == ':';
        if (!named && !strcmp(argv[i], "--")) {
            options_ended = true;
            list = NULL;
        } else if (!named) { /* "-" and "-:NAME" are standard input */
            bool took_next = false;
            int status = parse_option(o, argv[i], i + 1 < argc ? argv[i + 1] : NULL, &took_next);
            if (status != EXIT_OK)
                return status;
            i += took_next;
            const struct option *it = option_of(o->given[o->given_count - 1]);
            list = it->kind == LIST ? it->name : NULL;
        } else if (goes_on(argv[i], list) && o->given_count < CLI_MAX_NAMES) {
            o->values[o->given_count] = argv[i];
            o->given[o->given_count++] = list;
        } else if (o->name_count == CLI_MAX_NAMES) {
            return cli_complain(EXIT_USAGE, "too many names");
        } else {
            o->names[o->name_count++] = argv[i];
            list = NULL;
        }
    }
    return EXIT_OK;
}

int cli_apply(cli_options *o) {
    int status = EXIT_OK;
    for (int i = 0; i < o->given_count && status == EXIT_OK; i++) {
        const struct option *it = option_of(o->given[i]);
        if (it->kind == FLAG)
            *(bool *)((char *)o + it->at) = true;
        else if (it->kind == TEXT)
            *(const char **)(void *)((char *)o + it->at) = o->values[i];
        else if (it->kind == CHOICE)
            status = choose(it->name, it->values, o->values[i], (int *)(void *)((char *)o + it->at));
        else if (it->kind == LIST)
            status = each_binding(o, it->name, o->values[i], it->set);
        else
            status = it->set(o, it->name, o->values[i]);
    }
    return status;
}

epi_options cli_compile_options(const cli_options *o) {
    return (epi_options)EPI_OPTIONS(.dims = o->dims, .dim_count = o->dim_count, .type = o->type,
                                    .types = o->types, .type_count = o->type_count, .device = o->device,
                                    .threads = o->threads, .path = o->path, .micro = o->micro,
                                    .rounding = o->rounding, .config = o->config, .algebra = o->algebra,
                                    .memory = o->path == EPI_PATH_FUSED ? o->memory : 0);
}

bool cli_has_axis(const epi_program *program, const char *axis) {
    for (int d = 0; d < epi_program_dim_count(program); d++)
        if (!strcmp(epi_program_dim(program, d), axis))
            return true;
    return false;
}

cli_role cli_role_of(const epi_program *program, const char *tensor) {
    epi_tensor_info info;
    for (int t = 0; epi_program_tensor(program, t, &info) == EPI_OK; t++)
        if (!strcmp(info.name, tensor))
            return info.is_output ? CLI_RESULT : CLI_INPUT;
    return CLI_NONE;
}

int cli_find_dim(const cli_options *o, const char *axis) {
    for (int d = 0; d < o->dim_count; d++)
        if (!strcmp(o->dims[d].name, axis))
            return d;
    return -1;
}

epi_options cli_own_options(const epi_program *program, const cli_options *o, epi_dim_binding *dims) {
    epi_options options = cli_compile_options(o);
    options.dims = dims;
    options.dim_count = 0;
    for (int i = 0; i < o->dim_count; i++)
        if (cli_has_axis(program, o->dims[i].name))
            dims[options.dim_count++] = o->dims[i];
    return options;
}

/* Complains of an axis of --open that the program does not have. */
static int check_open_axis(const epi_program *program, const char *axis) {
    epi_nearest near = {.wanted = axis};
    if (cli_has_axis(program, axis))
        return EXIT_OK;
    for (int i = 0; i < epi_program_dim_count(program); i++)
        epi_nearest_offer(&near, epi_program_dim(program, i));
    return cli_complain(EXIT_USAGE, "--open names %s: %s has no such axis%s", axis, epi_program_name(program),
                        epi_nearest_hint(&near, "it has"));
}

int cli_open_options(const cli_options *o, const epi_program *program, cli_open *room, epi_options *out) {
    *out = cli_compile_options(o);
    *room = (cli_open){.count = o->open_count};
    if (!o->open_count)
        return EXIT_OK;
    memcpy(room->dims, o->dims, sizeof room->dims);
    for (int i = 0; i < o->open_count; i++) {
        int d = cli_find_dim(o, o->open[i].name), status = check_open_axis(program, o->open[i].name);
        if (status != EXIT_OK)
            return status;
        if (d < 0)
            return cli_complain(EXIT_USAGE, "--open names %s: give its size in --dims too", o->open[i].name);
        room->axes[i] = o->open[i].name;
        room->sizes[i] = o->dims[d].size;
        room->dims[d].size = o->open[i].size;
    }
    out->dims = room->dims;
    out->open_axes = room->axes;
    out->open_axis_count = o->open_count;
    return EXIT_OK;
}
