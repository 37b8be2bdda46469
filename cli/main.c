/* main.c: the table of commands. The help of a command also decides which options the command takes. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/nearest.h"
#include "cli.h"

static int run_help(cli_options *o) {
    return cmd_help(o->name_count ? o->names[0] : NULL);
}

#define OPEN_OPTION \
    "--open T=N compiles once for every size of the axis T up to N. A run uses the size in --dims.\n\n"
#define GPU_OPTIONS \
    "--device is cpu (the default), gpu for the first GPU, or gpu1 for the second. On a GPU, --type is\n" \
    "bf16 by default. --rounding packed (the default) rounds a product to 16 bits before the operations\n" \
    "after it; exact does not. --config NAME forces a GPU configuration; a wrong name lists them all.\n"
#define ALGEBRA_OPTION \
    "--algebra free (the default) may reorder sums of products in a program of several kernels, if that\n" \
    "moves fewer bytes. --algebra written computes everything as the program is written.\n\n"
#define MEMORY_OPTION \
    "--memory BYTES (500M, 2G) limits the workspace. If a program of several kernels needs more, its\n" \
    "kernels run on one chunk of rows after the other.\n\n"

static const cli_command commands[] = {
    {"new", "write a first program, with comments",
     "epilog new NAME\n\n"
     "Writes NAME.epi, a small program with comments that say what to try next. NAME may include a\n"
     "folder. An existing file is not changed.\n",
     "", cmd_new},
    {"check", "check programs for errors and warn about likely mistakes",
     "epilog check FILE[:NAME]|NAME... [--dims M=...,N=... [--type T] [--types x=T,...]\n"
     "             [--device cpu|gpu|gpu1 | --arch A]] [--json]\n\n"
     "Checks every program in each file, or the named program. An error says what is wrong, where, and\n"
     "what to write instead; the exit status is then 1. Warnings name unused inputs and values, calls\n"
     "that bind axes in an order that the program does not show, and scatters that sum over a batch.\n\n"
     "With --dims, programs whose sizes are all given are also compiled. Warnings then name what makes\n"
     "them slow, as 'epilog show' does, and what to write instead if that is known.\n",
     "PROGRAM", cmd_check},
    {"fmt", "format programs",
     "epilog fmt FILE... [--check]\n\n"
     "Formats each file: one assignment a line, spaces as in 'epilog show', lines of at most 120\n"
     "characters. Comments, single blank lines, numbers and parentheses stay. A list of inputs that\n"
     "begins on a new line keeps its groups. The meaning does not change. A file with a syntax error is\n"
     "not changed. With -, it formats standard input to standard output. --check writes nothing: it\n"
     "names the files that would change, and exits with status 1 if there are any.\n",
     "FILE", cmd_fmt},
    {"list", "list the programs that come with Epilog",
     "epilog list [FOLDER | FILE.epi | NAME] [--json]\n\n"
     "Lists the programs in FILE.epi, in all .epi files of FOLDER, or those that come with Epilog. With\n"
     "NAME, it lists only programs with NAME in their name, with their inputs and outputs. Operations of\n"
     "the language are not programs; docs/language.md lists them.\n",
     "FOLDER", cmd_list},
    {"show", "show the kernels of a program",
     "epilog show FILE:NAME --dims M=...,N=... [--type T] [--types x=T,...] [--path P] [--threads N]\n"
     "            [--micro NAME] [--device cpu|gpu|gpu1 | --arch A] [--rounding R] [--config NAME]\n"
     "            [--algebra A] [--memory BYTES] [--open T=N,...] [--cuda [--brief]] [--json]\n\n"
     "Prints the program in canonical form. If --dims gives its sizes, also the mainloop and the tile,\n"
     "the reductions that leave the tile as partial sums, flops, bytes moved, and flops per byte.\n"
     "--device gpu shows the kernel for a GPU of this machine. --arch sm_90a (sm_80, ...) shows it for\n"
     "such a GPU, which this machine need not have. --cuda prints only the CUDA source, one launch after\n"
     "the other (for sm_90a by default). --brief prints only the part of it that is written for this\n"
     "program.\n\n" ALGEBRA_OPTION MEMORY_OPTION OPEN_OPTION GPU_OPTIONS,
     "PROGRAM", cmd_show},
    {"explain", "explain step by step how a program is compiled",
     "epilog explain FILE:NAME [--dims M=...,N=...] [--wrt x,w] [--type T] [--types x=T,...] [--threads N]\n"
     "               [--algebra A] [--device cpu|gpu|gpu1 | --arch A] [--passes | --after PASS]\n\n"
     "Explains how the program is compiled: what the checker found, the program of its gradients (with\n"
     "respect to the inputs in --wrt, or to all inputs), and, with --dims, which kernels it is split\n"
     "into, what each computes on chip, and what goes through memory. 'epilog show' has the same facts\n"
     "in fewer words.\n\n"
     "--passes prints the passes of the compiler instead: what each does, how many values the program\n"
     "has before and after it, what it changed, and which limits it hit. --after PASS prints the program\n"
     "after that pass, as source text that you can run; after 'cut', one program for each kernel.\n",
     "PROGRAM", cmd_explain},
    {"run", "run a program and compare the result with f64",
     "epilog run FILE:NAME [--dims M=...,N=...] [--type T] [--types x=T,...] [--seed N] [--in F] [--random]\n"
     "           [--out F] [--set s=V,...] [--path fused|unfused|naive|reference] [--threads N] [--micro "
     "NAME]\n"
     "           [--device cpu|gpu|gpu1] [--rounding R] [--config NAME] [--no-check]\n"
     "           [--algebra A] [--memory BYTES] [--open T=N,...] [--json]\n\n"
     "Runs the program once and prints its time. Inputs come from the safetensors file --in, except\n"
     "those that --set gives. Sizes that --dims does not give come from the file. Elements of another\n"
     "type are converted, with a note. --random fills in missing inputs at random; without --in all\n"
     "inputs are random. --seed chooses the random numbers: matrices are scaled so that a product of two\n"
     "has unit variance, vectors are between 0.5 and 1.5, indices are inside their axis, scalars are\n"
     "below 0.001. --json names the random inputs.\n\n"
     "For every output it prints the largest error against an f64 reference, the largest error allowed,\n"
     "and the error of the naive path (plain loops, every value rounded to the storage type). All are\n"
     "relative to the largest value. Then comes a verdict:\n"
     "  ok             the output is within the allowed error\n"
     "  TOO FAR        the error is above twice the naive error plus a few roundings; or the output is NaN\n"
     "                 or infinite and the exact number fits its type; or a whole number (a position, an\n"
     "                 id, a count) is not equal, and a rounding on the way, as in a tie, does not explain\n"
     "                 that\n"
     "  not compared   f64 has no number there either\n"
     "TOO FAR names the element that is furthest off; the exit status is then 1. --no-check skips the\n"
     "reference and the naive path, which take most of the time.\n\n"
     "--out writes the outputs as safetensors, to a file that is no input. --type is the storage type of\n"
     "tensors without a declared type: f32, bf16 or f16. On a GPU the time is the best of five runs\n"
     "after a warm-up run; the reference and the naive path always run on the CPU.\n\n" ALGEBRA_OPTION
         MEMORY_OPTION OPEN_OPTION GPU_OPTIONS,
     "PROGRAM", cmd_run},
    {"bench", "time programs, fused and unfused",
     "epilog bench [--size N,...] [--type T] [--repeat N] [--threads N] [--micro NAME] [--seed N]\n"
     "             [--device cpu|gpu|gpu1] [--rounding R] [--config NAME] [--out FILE.json]\n"
     "             [--plot FILE.svg] [--json]\n"
     "epilog bench FILE:NAME... --dims M=...,N=... [--open T=N,...] [--types x=T,...] [--set s=V,...]\n"
     "             [the same but --size]\n\n"
     "Times programs fused and unfused, in turn, and checks their outputs against f64 in the same run.\n"
     "Without names it times the plain product and ten kernels at --size: up to eight multiples of 128\n"
     "(default 1024, on a GPU 4096). With several programs, each uses the entries of --dims, --types and\n"
     "--set that name its axes and tensors.\n\n"
     "  of raw     the fused time divided by the time of OpenBLAS's or MKL's sgemm for the same products,\n"
     "             which is timed in between: below 1, Epilog is faster. Only if one is installed\n"
     "  of copy    for a program without a product: the time of a copy of as many bytes, by the C library\n"
     "             or by non-temporal stores, whichever is faster, divided by the fused time\n\n"
     "The first lines name the CPU, that library and the core that its kernels are for. A note warns if\n"
     "OPENBLAS_CORETYPE or MKL_ENABLE_INSTRUCTIONS is set, or if this CPU has wider vectors than that\n"
     "core.\n\n"
     "Programs above 64 MB are checked with their axes cut to about 512. Errors are relative to the\n"
     "largest value. --out also writes the result file that the project's tables are made from. --plot\n"
     "also writes a chart of times: relative to the product or the copy if every program has one, else\n"
     "to the unfused path. On a terminal the table is followed by the same chart as bars.\n\n"
     "On a GPU a time is the median of five bursts (--repeat) of at least 20 ms, by the host's clock.\n"
     "The f64 reference would take minutes at such sizes. So the configuration that was timed is checked\n"
     "against it with every axis cut to about 256, and at full size against the unfused path on the\n"
     "GPU's plain mainloop.\n\n" GPU_OPTIONS,
     "PROGRAM", cmd_bench},
    {"profile", "time each kernel of a program",
     "epilog profile FILE:NAME [--dims M=...,N=...] [--type T] [--types x=T,...] [--repeat N] [--seed N]\n"
     "               [--in F] [--random] [--set s=V,...] [--threads N] [--micro NAME] [--no-check]\n"
     "               [--device cpu|gpu|gpu1] [--rounding R] [--config NAME] [--algebra A]\n"
     "               [--memory BYTES] [--json]\n\n"
     "Runs the program many times (--repeat N, at most 500) and prints one line for each kernel: its time\n"
     "and its share of the whole, the bytes that it moves, and the rates. Equal kernels share a line.\n\n"
     "  of copy    the time of a copy that moves as many bytes, divided by the kernel's time. 1 is the\n"
     "             best that a kernel without a product can do with data that is not in a cache\n"
     "  of FMA     for a product: its rate divided by the rate of multiply-adds in f32 on registers. A\n"
     "             16-bit product whose instructions do more at a time can be above 1\n\n"
     "Both yardsticks are measured in the same run. The outputs are checked as 'epilog run' does; its help\n"
     "explains --in, --random, --seed and --no-check.\n\n"
     "On a GPU, times are between events. 'of copy' is then about one large copy on the GPU, and 'of prod'\n"
     "about one large plain product of the same type. If NVIDIA's profiler ncu is in the PATH, the program\n"
     "runs once more under ncu. 'L2 hit' is the share of its requests that the L2 cache "
     "answered.\n\n" ALGEBRA_OPTION MEMORY_OPTION GPU_OPTIONS,
     "PROGRAM", cmd_profile},
    {"grad", "derive the gradients of a program",
     "epilog grad FILE:NAME [--wrt x,w] [--forward] [--dims M=...,N=... [--type T] [--types x=T,...]\n"
     "            [--memory BYTES]]\n\n"
     "Prints a new program that computes gradients. For each result y it has an input d_y, the gradient\n"
     "of some scalar with respect to y. It returns the gradient of that scalar with respect to each\n"
     "input in --wrt, or to every input that is no integer. You can compile it like any other program.\n\n"
     "--forward prints two programs. The forward also returns saved values; the backward takes them.\n"
     "Saved are products, reductions, rows that both would compute in a pass over memory, and every\n"
     "keep(x). The backward recomputes everything else, and every again(x). With --dims, comments list\n"
     "the saved values with their bytes. If these are more than --memory BYTES (500M, 2G), the backward\n"
     "recomputes such rows too. Types in --types are declared in both programs.\n",
     "PROGRAM", cmd_grad},
    {"gradcheck", "compare derived gradients with differences",
     "epilog gradcheck FILE:NAME --dims M=...,N=... [--wrt x,w] [--type T] [--types x=T,...] [--algebra A]\n"
     "                 [--set s=V,...] [--seed N] [--json]\n\n"
     "Derives the gradients and compares them with central differences of the program, in f64, on random\n"
     "inputs (--seed). Inputs of up to 256 elements are checked by every element, and every input along\n"
     "four random directions. It prints the largest error: the input, the element, and both numbers. The\n"
     "verdict is ok, TOO FAR if rounding and curvature do not explain the difference, or not compared.\n"
     "The exit status is 1 unless it is ok. --wrt names the inputs, as in 'epilog grad'. The program\n"
     "runs many times in plain loops: sizes of 3 to 30 are quick and show as much, sizes in the\n"
     "thousands take minutes or hours.\n\n"
     "With --type or --types it also runs the gradients in these types, both as one program and as\n"
     "separate forward and backward programs. It compares each row, along a random direction, with the\n"
     "f64 reference of the same rounded inputs. The error of a row may be as large as the change of the\n"
     "reference when a rounding is added to each of its values.\n\n"
     "Some places cannot be judged; they are counted and named: places where a comparison changes sides,\n"
     "results that are infinite (as log(0) is), and rows that roundings alone change by a quarter of\n"
     "their size. If the program calls programs that declare their own gradient (by), it reports how far\n"
     "these are from the differences, and that is no failure.\n",
     "PROGRAM", cmd_gradcheck},
    {"devices", "list the CPU and the GPUs",
     "epilog devices [--json]\n\n"
     "Lists the devices that programs can run on: the CPU and every GPU, or why there is no GPU.\n",
     "", cmd_devices},
    {"completion", "print a completion script for a shell",
     "epilog completion bash|zsh|fish\n\n"
     "Prints a script that completes commands, options, their values, and programs: the programs that\n"
     "come with Epilog, and after FILE.epi: the programs in the file.\n\n"
     "    source <(epilog completion bash)                             in ~/.bashrc\n"
     "    source <(epilog completion zsh)                              in ~/.zshrc, after compinit\n"
     "    epilog completion fish >~/.config/fish/completions/epilog.fish\n",
     "bash zsh fish", cmd_completion},
    {"man", "print the manual page",
     "epilog man\n\nPrints the manual page in the format of man(1): epilog man | man -l -\n", "", cmd_man},
    {"help", "show this help, or the help of a COMMAND", "epilog help [COMMAND]\n", "COMMAND", run_help},
};

enum { COMMANDS = sizeof commands / sizeof *commands };

const cli_command *cli_command_at(int index) {
    return index < COMMANDS ? &commands[index] : NULL;
}

const char cli_names_help[] =
    "FILE:NAME is a program in a file. A bare name is a file, or a program that comes with Epilog. For\n"
    "FILE and --in, - means standard input. For --out it means standard output; messages then go to\n"
    "standard error. After --, arguments are names even if they begin with a dash.\n";

static int no_command(const char *name, const char *remedy) {
    epi_nearest near = {.wanted = name};
    for (int i = 0; i < COMMANDS; i++)
        epi_nearest_offer(&near, commands[i].name);
    epi_nearest_offer(&near, "--version");
    if (near.best[0])
        return cli_complain(EXIT_USAGE, "there is no command '%s'%s", name, epi_nearest_hint(&near, ""));
    return cli_complain(EXIT_USAGE, "there is no command '%s'; %s", name, remedy);
}

int cmd_help(const char *topic) {
    for (int i = 0; i < COMMANDS && topic; i++)
        if (!strcmp(topic, commands[i].name)) {
            fputs(commands[i].help, stdout);
            return EXIT_OK;
        }
    if (topic)
        return no_command(topic, "'epilog list' lists the programs; docs/language.md lists the operations");
    printf("epilog %s: fused Transformer kernels from a small tensor language\n\nusage: epilog COMMAND "
           "[NAMES] [--options]\n\n",
           epi_version());
    for (int i = 0; i < COMMANDS; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].line);
    printf("\n%sExit status: 0 ok, 1 failed, 2 wrong usage.\n", cli_names_help);
    return EXIT_OK;
}

/* Does the help of the command name the option? */
bool cli_takes(const cli_command *c, const char *option) {
    size_t n = strlen(option);
    for (const char *at = c->help; (at = strstr(at, option)); at++)
        if (!strchr("abcdefghijklmnopqrstuvwxyz-", at[n]))
            return true;
    return !strcmp(option, "--help") || !strcmp(option, "-h");
}

static int run_command(const cli_command *c, cli_options *o) {
    for (int i = 0; i < o->given_count; i++)
        if (!cli_takes(c, o->given[i]))
            return cli_complain(EXIT_USAGE, "'%s' takes no %s; see 'epilog help %s'", c->name, o->given[i],
                                c->name);
    int status = cli_apply(o);
    if (status != EXIT_OK)
        return status;
    if (o->help)
        return cmd_help(c->name);
    return c->run(o);
}

/* Ends the process as the signal would have, without a half-written file. */
static void end_by_signal(int number) {
    epi_file_remove_unfinished();
    raise(number); /* comes when this returns, and finds the default action */
}

static void watch_signals(void) {
    signal(SIGXFSZ, SIG_IGN); /* a limit on files is an error of the write */
    static const int ending[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof ending / sizeof *ending; i++) {
        struct sigaction old, ours = {.sa_handler = end_by_signal, .sa_flags = (int)SA_RESETHAND};
        if (sigaction(ending[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
            sigaction(ending[i], &ours, NULL);
    }
}

static int run_arguments(int argc, char **argv) {
    cli_options o;
    if (argc > 1 && !strcmp(argv[1], "--version"))
        return cli_version();
    if (argc < 2 && isatty(STDOUT_FILENO)) {
        cli_begin();
        return EXIT_OK;
    }
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
        return cmd_help(NULL) == EXIT_OK && argc > 1 ? EXIT_OK : EXIT_USAGE;
    int status = cli_parse(argc, argv, &o);
    if (status != EXIT_OK)
        return status;
    for (int i = 0; i < COMMANDS; i++)
        if (!strcmp(o.command, commands[i].name))
            return run_command(&commands[i], &o);
    return no_command(o.command, "see 'epilog help'");
}

int main(int argc, char **argv) {
    watch_signals();
    int status = run_arguments(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        cli_complain(EXIT_FAILED, "cannot write to standard output");
        status = status ? status : EXIT_FAILED;
    }
    return status;
}
