/* manual.c: describes the command for shells and for man, from its own tables. */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"

/* ---- lists ---- */

/* Lists are texts with blanks between the words. */
static void add_word(epi_text *list, const char *word) {
    epi_text_add(list, "%s%s", list->length ? " " : "", word);
}

static bool has_word(const epi_text *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list->data; at && *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == n && !strncmp(at, word, n))
            return true;
    return false;
}

static void add_commands(epi_text *list) {
    for (int i = 0; cli_command_at(i); i++)
        add_word(list, cli_command_at(i)->name);
}

static void add_options(epi_text *list, const cli_command *c) {
    cli_option o;
    for (int i = 0; cli_option_at(i, &o); i++)
        if (cli_takes(c, o.name) && strncmp(o.name, "--", 2) == 0)
            add_word(list, o.name);
}

/* The programs that come with Epilog, by their own names. */
static void add_programs(epi_text *list) {
    for (int i = 0; epi_bundled_name(i); i++) {
        cli_source s;
        if (cli_bundled_open(&s, i, NULL) != EPI_OK)
            continue;
        for (int p = 0; p < epi_module_count(s.module); p++) {
            const char *name = epi_program_name(epi_module_program(s.module, p));
            if (!has_word(list, name))
                add_word(list, name);
        }
        cli_source_close(&s);
    }
}

/* What may stand behind a command beside options; returns whether files may, too. */
static bool add_names(epi_text *list, const cli_command *c) {
    bool program = !strcmp(c->names, "PROGRAM");
    bool files = program || !strcmp(c->names, "FILE") || !strcmp(c->names, "FOLDER");
    if (!strcmp(c->names, "COMMAND"))
        add_commands(list);
    else if (program)
        add_programs(list);
    else if (!files)
        epi_text_add(list, "%s", c->names);
    return files;
}

/* The options with a value of one kind: "FILE", or NULL for anything; as a pattern of `case`. */
static void add_pattern(epi_text *list, const char *values) {
    cli_option o;
    for (int i = 0; cli_option_at(i, &o); i++)
        if (o.has_value && (values ? o.values && !strcmp(o.values, values) : !o.values))
            epi_text_add(list, "%s%s", list->length ? " | " : "", o.name);
}

/* ---- shells ---- */

/* The options whose values are words: a line of `case` each. */
static void put_values(epi_text *out) {
    cli_option o;
    for (int i = 0; cli_option_at(i, &o); i++)
        if (o.values && strcmp(o.values, "FILE") != 0)
            epi_text_add(out, "    %s) _epilog_words %s; return ;;\n", o.name, o.values);
    epi_text file = {0}, any = {0};
    add_pattern(&file, "FILE");
    add_pattern(&any, NULL);
    epi_text_add(out, "    %s) _epilog_files; return ;;\n    %s) return ;;\n", file.data ? file.data : "--",
                 any.data ? any.data : "--");
    epi_text_free(&file);
    epi_text_free(&any);
}

/* For each command its options, and what else may stand there. */
static void put_commands(epi_text *out) {
    for (int i = 0; cli_command_at(i); i++) {
        const cli_command *c = cli_command_at(i);
        epi_text options = {0}, names = {0};
        add_options(&options, c);
        bool files = add_names(&names, c);
        epi_text_add(out, "    %s) options='%s' names='%s' files=%d ;;\n", c->name,
                     options.data ? options.data : "", names.data ? names.data : "", files);
        epi_text_free(&options);
        epi_text_free(&names);
    }
}

/* Prints the programs of a file, a line each, in bash and zsh. */
#define PROGRAMS_OF \
    "_epilog_programs() {\n" \
    "    local line\n" \
    "    epilog list \"$1\" 2>/dev/null | while read -r line; do line=${line#\"$1:\"}; echo \"${line%%%% " \
    "*}\"; done\n" \
    "}\n"

static void put_bash(epi_text *out) {
    epi_text commands = {0};
    add_commands(&commands);
    epi_text_add(
        out,
        "# epilog for bash: source <(epilog completion bash)\n" PROGRAMS_OF "_epilog() {\n"
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} options names files\n"
        "    _epilog_words() { COMPREPLY=($(compgen -W \"$*\" -- \"$cur\")); }\n"
        "    _epilog_files() { compopt -o filenames 2>/dev/null; COMPREPLY+=($(compgen -f -- \"$cur\")); }\n"
        "    COMPREPLY=()\n"
        "    # FILE.epi:NAME is one word, or three\n"
        "    local file=$prev\n"
        "    if [[ $cur == *.epi:* ]]; then file=${cur%%:*} cur=${cur##*:} prev=:; fi\n"
        "    if [[ $prev == : && $COMP_CWORD -gt 2 && $file == : ]]; then file=${COMP_WORDS[COMP_CWORD - "
        "2]}; fi\n"
        "    if [ \"$cur\" = : ]; then cur= prev=:; fi\n"
        "    if [[ $prev == : && $file == *.epi ]]; then _epilog_words \"$(_epilog_programs \"$file\")\"; "
        "return; fi\n"
        "    if [ \"$COMP_CWORD\" -eq 1 ]; then _epilog_words %s; return; fi\n"
        "    case $prev in\n",
        commands.data ? commands.data : "");
    put_values(out);
    epi_text_add(out, "    esac\n    case ${COMP_WORDS[1]} in\n");
    put_commands(out);
    epi_text_add(out, "    *) return ;;\n"
                      "    esac\n"
                      "    if [[ $cur == -* ]]; then _epilog_words \"$options\"; return; fi\n"
                      "    _epilog_words \"$names\"\n"
                      "    if [ \"$files\" = 1 ]; then _epilog_files; fi\n"
                      "}\n"
                      "complete -F _epilog epilog\n");
    epi_text_free(&commands);
}

static void put_zsh(epi_text *out) {
    epi_text_add(out, "#compdef epilog\n"
                      "# epilog for zsh: source <(epilog completion zsh), after compinit\n" PROGRAMS_OF
                      "_epilog() {\n"
                      "    local options names files=0\n"
                      "    local -a commands\n"
                      "    _epilog_words() { compadd -- $* }\n"
                      "    _epilog_files() { _files }\n"
                      "    commands=(\n");
    for (int i = 0; cli_command_at(i); i++) {
        epi_text_add(out, "        '%s:", cli_command_at(i)->name);
        for (const char *c = cli_command_at(i)->line; *c; c++)
            epi_text_add(out, *c == '\'' ? "'\\''" : "%c", *c);
        epi_text_add(out, "'\n");
    }
    epi_text_add(out, "    )\n"
                      "    if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
                      "    case ${words[CURRENT-1]} in\n");
    put_values(out);
    epi_text_add(out, "    esac\n    case ${words[2]} in\n");
    put_commands(out);
    epi_text_add(out, "    *) return ;;\n"
                      "    esac\n"
                      "    if [[ $PREFIX == -* ]]; then compadd -- ${=options}; return; fi\n"
                      "    if [[ $PREFIX == *.epi:* ]]; then\n"
                      "        local file=${PREFIX%%:*}\n"
                      "        compset -P '*:'\n"
                      "        compadd -- $(_epilog_programs \"$file\")\n"
                      "        return\n"
                      "    fi\n"
                      "    compadd -- ${=names}\n"
                      "    if (( files )); then _epilog_files; fi\n"
                      "}\n"
                      "compdef _epilog epilog\n");
}

/* One line for each thing: fish joins those whose condition holds. */
static void put_fish(epi_text *out) {
    cli_option o;
    epi_text_add(out,
                 "# epilog for fish: epilog completion fish >~/.config/fish/completions/epilog.fish\n"
                 "complete -c epilog -f\n"
                 "complete -c epilog -n 'string match -q \"*.epi:*\" -- (commandline -ct)' -a '(epilog list "
                 "(string split -m 1 -r : -- (commandline -ct))[1] 2>/dev/null | string replace -r \" .*\" "
                 "\"\")'\n");
    for (int i = 0; cli_command_at(i); i++) {
        epi_text_add(out, "complete -c epilog -n __fish_use_subcommand -a %s -d '", cli_command_at(i)->name);
        for (const char *c = cli_command_at(i)->line; *c; c++)
            epi_text_add(out, *c == '\'' ? "\\'" : "%c", *c);
        epi_text_add(out, "'\n");
    }
    for (int i = 0; cli_command_at(i); i++) {
        const cli_command *c = cli_command_at(i);
        for (int k = 0; cli_option_at(k, &o); k++) {
            if (!cli_takes(c, o.name) || strncmp(o.name, "--", 2) != 0)
                continue;
            bool file = o.values && !strcmp(o.values, "FILE");
            epi_text_add(out, "complete -c epilog -n '__fish_seen_subcommand_from %s' -l %s%s", c->name,
                         o.name + 2,
                         file          ? " -r -F"
                         : o.has_value ? " -x"
                                       : "");
            if (o.values && !file)
                epi_text_add(out, " -a '%s'", o.values);
            epi_text_add(out, "\n");
        }
        epi_text names = {0};
        if (add_names(&names, c))
            epi_text_add(out, "complete -c epilog -n '__fish_seen_subcommand_from %s' -F\n", c->name);
        if (names.length)
            epi_text_add(out, "complete -c epilog -n '__fish_seen_subcommand_from %s' -a '%s'\n", c->name,
                         names.data);
        epi_text_free(&names);
    }
}

int cmd_completion(cli_options *o) {
    static const struct {
        const char *name;
        void (*put)(epi_text *);
    } shells[] = {{"bash", put_bash}, {"zsh", put_zsh}, {"fish", put_fish}};
    for (size_t i = 0; i < sizeof shells / sizeof *shells && o->name_count == 1; i++)
        if (!strcmp(o->names[0], shells[i].name)) {
            epi_text out = {0};
            shells[i].put(&out);
            int status = out.failed ? cli_complain(EXIT_FAILED, "out of memory") : EXIT_OK;
            if (status == EXIT_OK)
                fputs(out.data, stdout);
            epi_text_free(&out);
            return status;
        }
    return cli_complain(EXIT_USAGE, "completion needs bash, zsh or fish; see 'epilog help completion'");
}

/* ---- the manual page ---- */

static const struct {
    const char *name, *what;
} environment[] = {
    {"EPILOG_CACHE", "folder for compiled GPU kernels, or off. Default: ~/.cache/epilog"},
    {"EPILOG_NVRTC", "path of libnvrtc.so, if it is neither in LD_LIBRARY_PATH nor in a usual folder"},
    {"OMP_NUM_THREADS", "number of threads on the CPU, unless --threads is given"},
    {"XDG_CACHE_HOME", "folder to use instead of ~/.cache"},
    {"NO_COLOR", "if set, the output has no colours. Without it, only output to a terminal has colours"},
};

/* A text as it stands: roff takes a line's first . or ' and every \\ for its own, and - for a hyphen. */
static void put_plain(const char *text) {
    for (const char *at = text; *at; at++) {
        if ((at == text || at[-1] == '\n') && (*at == '.' || *at == '\''))
            fputs("\\&", stdout);
        fputs(*at == '\\' ? "\\e" : *at == '-' ? "\\-" : (char[]){*at, 0}, stdout);
    }
}

int cmd_man(cli_options *o) {
    if (o->name_count)
        return cli_complain(EXIT_USAGE, "man takes no names");
    printf(".TH EPILOG 1 \"\" \"epilog %s\" \"User Commands\"\n", epi_version());
    printf(".SH NAME\nepilog \\- fused Transformer kernels from a small tensor language\n"
           ".SH SYNOPSIS\n.B epilog\n.I COMMAND\n[NAMES] [\\-\\-options]\n"
           ".SH DESCRIPTION\n.nf\n");
    put_plain(cli_names_help);
    printf(".fi\n.SH COMMANDS\n");
    for (int i = 0; cli_command_at(i); i++) {
        const cli_command *c = cli_command_at(i);
        printf(".SS \"epilog %s: ", c->name);
        put_plain(c->line);
        printf("\"\n.nf\n");
        put_plain(c->help);
        printf(".fi\n");
    }
    printf(".SH ENVIRONMENT\n");
    for (size_t i = 0; i < sizeof environment / sizeof *environment; i++) {
        printf(".TP\n.B %s\n", environment[i].name);
        put_plain(environment[i].what);
        printf("\n");
    }
    printf(".SH EXIT STATUS\n0: success. 1: something failed. 2: wrong usage.\n");
    return EXIT_OK;
}
