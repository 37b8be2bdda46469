/* main.c: which command, what each is for, and by that the options that it takes. */
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
    "--open T=N compiles for all sizes of the axis T up to N at once; the run has the one that --dims " \
    "gives.\n\n"
#define GPU_OPTIONS \
    "--device: cpu (the default), gpu for the first GPU, gpu1 for the second. On a GPU --type is bf16 " \
    "unless\n" \
    "told otherwise; --rounding packed (the default: the product is rounded to 16 bits before the rest) " \
    "or\n" \
    "exact; --config forces a configuration of the mainloop by name, a wrong name lists them.\n"
#define ALGEBRA_OPTION \
    "--algebra free (the default) takes sums of products of a program of several kernels in another order\n" \
    "where fewer bytes move, written as the text says.\n\n"
#define MEMORY_OPTION \
    "--memory BYTES (500M, 2G) is the most that the workspace may take: where a program of several " \
    "kernels\n" \
    "needs more, these go through its rows slab by slab.\n\n"

static const cli_command commands[] = {
    {"new", "write a first program, with comments",
     "epilog new NAME\n\n"
     "Writes NAME.epi, a small program with comments that say how to go on. NAME may have a folder before "
     "it.\n"
     "A file that is there already stays as it is.\n",
     "", cmd_new},
    {"check", "parse and check texts",
     "epilog check FILE[:NAME]|NAME... [--dims M=...,N=... [--type T] [--types x=T,...]\n"
     "             [--device cpu|gpu|gpu1 | --arch A]] [--json]\n\n"
     "Parses each file and checks every program in it, or the one that is named. Says what is wrong, where,\n"
     "and what to do instead. Exit status 1 if anything is. Warns of inputs and values that are not used,\n"
     "of calls that bind axes in an order that no text shows, and of sums over a batch by scatter.\n"
     "Programs of which --dims gives all sizes are compiled, too, and warned of where they are slow for a\n"
     "reason that 'show' tells, with the text that avoids it where one is known.\n",
     "PROGRAM", cmd_check},
    {"fmt", "lay texts out anew, with their comments",
     "epilog fmt FILE... [--check]\n\n"
     "Lays each file out anew: an assignment a line, blanks as 'epilog show' has them, lines of at most 120\n"
     "characters; comments, single blank lines, numbers and parentheses as they were, and so the groups of\n"
     "a list of inputs that begins on a new line. What the text means does not change. A file that does not\n"
     "parse stays as it is. With - standard input is printed so on standard output. --check writes nothing\n"
     "and names the files that would change, with exit status 1.\n",
     "FILE", cmd_fmt},
    {"list", "list the programs that come with Epilog",
     "epilog list [FOLDER | FILE.epi | NAME] [--json]\n\n"
     "Lists the programs of the .epi files in FOLDER, of FILE.epi, or those that come with Epilog; with "
     "NAME\n"
     "only those whose name has it, and what each takes and gives. Operations are no programs:\n"
     "docs/language.md lists them.\n",
     "FOLDER", cmd_list},
    {"show", "say how a program will be carried out",
     "epilog show FILE:NAME --dims M=...,N=... [--type T] [--types x=T,...] [--path P] [--threads N]\n"
     "            [--micro NAME] [--device cpu|gpu|gpu1 | --arch A] [--rounding R] [--config NAME]\n"
     "            [--algebra A] [--memory BYTES] [--open T=N,...] [--cuda [--brief]] [--json]\n\n"
     "Prints the program in canonical form and, once its sizes are given, the mainloop and tile it\n"
     "gets, which reductions leave the tile as partials, flops, bytes moved and flops per byte.\n"
     "--device gpu shows the kernel of this machine's GPU; --arch sm_90a (sm_80 and so on) the\n"
     "one of such a GPU, which need not be here. --cuda prints only its CUDA text, launch after launch (for\n"
     "sm_90a unless told otherwise), --brief of that only what was written for this "
     "program.\n\n" ALGEBRA_OPTION MEMORY_OPTION OPEN_OPTION GPU_OPTIONS,
     "PROGRAM", cmd_show},
    {"explain", "walk through what becomes of a program",
     "epilog explain FILE:NAME [--dims M=...,N=...] [--wrt x,w] [--type T] [--types x=T,...] [--threads N]\n"
     "               [--algebra A] [--device cpu|gpu|gpu1 | --arch A] [--passes | --after PASS]\n\n"
     "Tells in words what the checker found, which program its gradients are by the inputs that --wrt names\n"
     "(all, without it), and once its sizes are given into which kernels it is cut, what each computes on\n"
     "chip and what goes through memory. 'show' has the same facts more briefly.\n\n"
     "--passes prints instead the compiler's passes in their order: what each does, how many values the\n"
     "program has before it and after it, what it changed here, and limits that were hit. --after PASS "
     "prints\n"
     "the program as that pass leaves it, a text that can be run; after 'cut' the parts, a program each.\n",
     "PROGRAM", cmd_explain},
    {"run", "run a program and hold it against f64",
     "epilog run FILE:NAME [--dims M=...,N=...] [--type T] [--types x=T,...] [--seed N] [--in F] [--random]\n"
     "           [--out F] [--set s=V,...] [--path fused|unfused|naive|reference] [--threads N] [--micro "
     "NAME]\n"
     "           [--device cpu|gpu|gpu1] [--rounding R] [--config NAME] [--no-check]\n"
     "           [--algebra A] [--memory BYTES] [--open T=N,...] [--json]\n\n"
     "Runs once, on inputs from the safetensors file --in, which must have all but those that --set gives a\n"
     "value. Sizes that --dims does not give are those of the file; elements of another type are converted,\n"
     "with a note. With --random what the file lacks, and without --in everything, is random by --seed:\n"
     "matrices such that a product of two has unit variance, vectors between 0.5 and 1.5, indices within\n"
     "their axis, scalars below 0.001. --json names the inputs that were random.\n\n"
     "Prints for every output its largest error against an f64 reference, how large it may be, and that of\n"
     "the naive path (plain loops, every value rounded to the storage type), all relative to the largest\n"
     "value; then a verdict: ok, TOO FAR with the element that is furthest off, or not compared, where f64\n"
     "has no number either. TOO FAR is more than twice the naive error and a few roundings; also NaN or an\n"
     "infinity for a number that the output's type can hold. Positions, ids, counts and other whole numbers\n"
     "must be equal, unless a rounding on the way would change them, too, as in a tie. Exit status 1 if an\n"
     "output is TOO FAR. --no-check leaves out the reference and the naive path, which take most of the\n"
     "time.\n\n"
     "--out writes the outputs as safetensors; it may be none of the inputs. --type is the storage type of\n"
     "tensors whose type the text leaves open: f32, bf16, f16. On a GPU the time is the best of five runs\n"
     "after one to warm up; the reference and the naive path always run on the CPU.\n\n" ALGEBRA_OPTION
         MEMORY_OPTION OPEN_OPTION GPU_OPTIONS,
     "PROGRAM", cmd_run},
    {"bench", "measure programs, fused beside unfused",
     "epilog bench [--size N,...] [--type T] [--repeat N] [--threads N] [--micro NAME] [--seed N]\n"
     "             [--device cpu|gpu|gpu1] [--rounding R] [--config NAME] [--out FILE.json]\n"
     "             [--plot FILE.svg] [--json]\n"
     "epilog bench FILE:NAME... --dims M=...,N=... [--open T=N,...] [--types x=T,...] [--set s=V,...]\n"
     "             [the same but --size]\n\n"
     "Times programs fused and unfused, interleaved, and checks their outputs against f64 in the same run.\n"
     "Of --dims, --types and --set each of several programs takes what names its own axes and tensors.\n"
     "Without names: the plain product and the ten kernels at --size, up to eight multiples of 128\n"
     "(default 1024, on a GPU 4096). Where OpenBLAS or MKL is installed, its sgemm of the same shape is timed\n"
     "in between (of a program of several products the sgemms of all): 'of raw' is fused over that. The first\n"
     "lines name the CPU, that library and the core whose kernels it takes. A note warns where\n"
     "OPENBLAS_CORETYPE or MKL_ENABLE_INSTRUCTIONS is set, and where this CPU has wider vectors than that\n"
     "core.\n"
     "A program without a product is timed beside a copy of as many bytes, by the C library or by\n"
     "non-temporal stores, whichever is faster: 'of copy' is that over fused.\n"
     "Beyond 64 MB it is checked with its axes cut to about 512. Errors are relative to the largest\n"
     "value. --out also writes the result file that the project's tables are made from, --plot a picture of\n"
     "the times over that product's or that copy's where every program has one, else over the unfused "
     "path's;\n"
     "on a terminal the same are bars below the table.\n"
     "On a GPU a time is the median of five bursts (--repeat) of at least 20 ms, by the host's clock. The "
     "f64\n"
     "reference takes minutes at such sizes: the configuration that was timed is checked against it with\n"
     "every axis cut to about 256, and at full size against the unfused path on the GPU's plain "
     "mainloop.\n\n" GPU_OPTIONS,
     "PROGRAM", cmd_bench},
    {"grad", "derive the program of a program's gradients",
     "epilog grad FILE:NAME [--wrt x,w] [--forward] [--dims M=...,N=... [--type T] [--types x=T,...]\n"
     "            [--memory BYTES]]\n\n"
     "Prints the program that takes the inputs of FILE:NAME and, for each result y, the gradient d_y of "
     "some\n"
     "number by it, and gives the gradients of that number by the inputs that --wrt names, or by all that "
     "are\n"
     "no integers. What is printed is a program like any other.\n\n"
     "--forward prints two programs instead: the forward, which also gives what the backward needs of its\n"
     "values, and the backward, which takes that. Products, reductions, rows that both would make by a pass\n"
     "over memory and what the text says keep(x) of are saved; the rest, and what it says again(x) of, is\n"
     "made again. With --dims what is kept between the two is listed with its bytes, in comments; where\n"
     "that is more than --memory BYTES (500M, 2G), such rows are made again, too. Tensors that --types "
     "names\n"
     "are declared so in both.\n",
     "PROGRAM", cmd_grad},
    {"gradcheck", "hold derived gradients against differences",
     "epilog gradcheck FILE:NAME --dims M=...,N=... [--wrt x,w] [--type T] [--types x=T,...] [--algebra A]\n"
     "                 [--set s=V,...] [--seed N] [--json]\n\n"
     "Derives the gradients and compares them with central differences of the program, in f64, on random\n"
     "inputs by --seed: by every element of inputs of up to 256, and along four random directions of each.\n"
     "Names the worst: the input, the element, and both numbers. The verdict is ok, TOO FAR where they are\n"
     "further apart than rounding and curvature explain, or not compared; exit status 1 but for ok. --wrt\n"
     "names the inputs, as for grad. The program is run in plain loops, many times: axes of 3 to 30 are\n"
     "soon done and show as much, thousands take minutes or hours.\n\n"
     "With --type or --types the gradients are also run in these types, as one program and as forward and\n"
     "backward apart (grad --forward), and each of their rows is held, along a random direction, against\n"
     "the f64 reference of the same rounded inputs: within what the reference itself moves by when each\n"
     "value on the way is moved by a rounding.\n\n"
     "Places of which nothing can be said are counted and named: edges, where a comparison changes sides;\n"
     "results that are infinite, as the logarithm of nothing; rows that roundings alone move by a quarter "
     "of\n"
     "their size. Where the program calls such as name their own gradients (by), these need not be the\n"
     "formulas': how far they are from the differences is told, and is no failure.\n",
     "PROGRAM", cmd_gradcheck},
    {"devices", "list devices",
     "epilog devices [--json]\n\nLists what programs can run on: the CPU and every GPU, or why there is "
     "none.\n",
     "", cmd_devices},
    {"completion", "print what completes this command in a shell",
     "epilog completion bash|zsh|fish\n\n"
     "Prints a script that completes commands, options, their values, and programs: those that come with\n"
     "Epilog, and behind FILE.epi: those of the file.\n\n"
     "    source <(epilog completion bash)                             in ~/.bashrc\n"
     "    source <(epilog completion zsh)                              in ~/.zshrc, after compinit\n"
     "    epilog completion fish >~/.config/fish/completions/epilog.fish\n",
     "bash zsh fish", cmd_completion},
    {"man", "print the manual page",
     "epilog man\n\nPrints the manual page in the form that man(1) reads: epilog man | man -l -\n", "",
     cmd_man},
    {"help", "this text, or 'epilog help COMMAND'", "epilog help [COMMAND]\n", "COMMAND", run_help},
};

enum { COMMANDS = sizeof commands / sizeof *commands };

const cli_command *cli_command_at(int index) {
    return index < COMMANDS ? &commands[index] : NULL;
}

const char cli_names_help[] =
    "FILE:NAME is a program in a file; a bare name is a file or a program among those that come with\n"
    "Epilog. As FILE and after --in, - is standard input; after --out it is standard output, and what is\n"
    "printed goes to standard error. Behind -- are names, also those that begin with a dash.\n";

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
        return no_command(topic,
                          "'epilog list' lists programs, docs/language.md the operations of the language");
    printf("epilog %s: fused Transformer kernels from a small tensor language\n\nusage: epilog COMMAND "
           "[NAMES] [--options]\n\n",
           epi_version());
    for (int i = 0; i < COMMANDS; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].line);
    printf("\n%sExit status: 0 ok, 1 failed, 2 wrong usage.\n", cli_names_help);
    return EXIT_OK;
}

/* Is the option one that the command's help names? */
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
    if (argc > 1 && !strcmp(argv[1], "--version")) {
        printf("epilog %s\n", epi_version());
        return EXIT_OK;
    }
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
        cli_complain(EXIT_FAILED, "the output could not be written");
        status = status ? status : EXIT_FAILED;
    }
    return status;
}
