/* cli.h: the `epilog` command: options, programs by name, tensors, output. */
#ifndef EPI_CLI_H
#define EPI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "epilog.h"
#include "epilog_io.h"
#include "io/json.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };
enum {
    CLI_MAX_BINDINGS = 256,
    CLI_MAX_NAMES = 256,
    CLI_MAX_TENSORS = 2048, /* as many as the language allows */
    CLI_MAX_TEXT = 64 << 20 /* bytes of a text of programs */
};

typedef struct cli_options {
    const char *command;
    const char *names[CLI_MAX_NAMES]; /* what is no option */
    int name_count;
    const char *given[CLI_MAX_NAMES]; /* options, as they were written, */
    char *values[CLI_MAX_NAMES];      /* and their values; NULL: a flag */
    int given_count;
    epi_dim_binding dims[CLI_MAX_BINDINGS];
    int dim_count;
    epi_dim_binding open[CLI_MAX_BINDINGS]; /* --open: axes, and their largest sizes */
    int open_count;
    epi_type_binding types[CLI_MAX_BINDINGS];
    int type_count;
    struct {
        const char *name;
        double value;
    } scalars[CLI_MAX_BINDINGS]; /* --set */
    int scalar_count;
    epi_dtype type;
    epi_path path;
    epi_rounding rounding;
    epi_algebra algebra;
    size_t memory; /* of the workspace, at most; 0: no budget */
    const char *in, *out, *plot, *micro, *config, *wrt, *after;
    const char *device_name; /* --device, or NULL */
    int arch;                /* --arch: the device that stands for it; 0: not given */
    int device;              /* what cli_device_choose made of the two, for epi_options.device */
    uint64_t seed;
    int threads, repeat;
    int64_t sizes[8]; /* --size: the scales of the standard benchmark */
    int size_count;
    bool json, help, cuda, passes, brief, no_check, random, forward, check;
} cli_options;

/* options.c. Returns EXIT_OK, or EXIT_USAGE after saying what is wrong. */
int cli_parse(int argc, char **argv, cli_options *out); /* what is given */
int cli_apply(cli_options *o);                          /* and what that means */
bool cli_is_given(const cli_options *o, const char *option);
/* The next item of a list with commas between, without blanks around it, or NULL. It is cut out in place. */
char *cli_next_item(char **rest);

/* The table of options, for who describes the command. */
typedef struct cli_option {
    const char *name;
    bool has_value;
    const char *values; /* the words it may have, apart by blanks; "FILE" for a path; NULL: anything */
} cli_option;
bool cli_option_at(int index, cli_option *out); /* false past the last */

/* main.c: the table of commands. */
typedef struct cli_command {
    const char *name, *line, *help; /* the help names every option that the command takes */
    const char *names; /* what may stand behind it: PROGRAM, FILE, FOLDER, COMMAND, or the words themselves */
    int (*run)(cli_options *);
} cli_command;
const cli_command *cli_command_at(int index); /* NULL past the last */
bool cli_takes(const cli_command *c, const char *option);
extern const char cli_names_help[]; /* how programs and files are named */

/* report.c: what people read */
void cli_error(const epi_error *err);
int cli_fail(const epi_error *err); /* prints it and returns the exit status */
int cli_complain(int status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* To standard output, with control characters shown, as in messages. */
void cli_print(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A number as people read it: NaN has no sign. */
typedef struct cli_number {
    char text[32];
} cli_number;
cli_number cli_number_of(double x);
double cli_seconds(void);
/* How a stretch of text looks, "" unless `to` is a terminal that shows it and NO_COLOR is not set. */
typedef enum cli_style { CLI_PLAIN, CLI_BOLD, CLI_RED, CLI_GREEN, CLI_BLUE } cli_style;
const char *cli_styled(FILE *to, cli_style style);
/* The text of --json, which is freed, where that is given. Returns `status`, unless there was no memory. */
int cli_print_json(const cli_options *o, epi_text *text, int status);
/* Members of an object. */
void cli_put_text(epi_json_writer *w, const char *key, const char *value);
void cli_put_number(epi_json_writer *w, const char *key, double value);
void cli_put_integer(epi_json_writer *w, const char *key, int64_t value);
void cli_put_bool(epi_json_writer *w, const char *key, bool value);
/* The text as a file, by base/file.h; its folder must exist. */
epi_status cli_write_text(const char *path, const epi_text *text, epi_error *err);
/* Both are asked before work whose result would be lost. May a file be made there? NULL: none is. */
bool cli_may_write(const char *path, epi_error *err);
/* For --out -: what is printed goes to standard error from here on, and o->out names standard output. */
int cli_print_aside(cli_options *o);
/* Complains where an output would replace an input, of which `what` tells what it is. Either may be NULL. */
int cli_check_distinct(const char *out, const char *what, const char *in);
double cli_median(double *values, int count); /* sorts them */

/* progress.c: a line that says what is going on, on standard error where that is a terminal, once two seconds
 * have passed since the first call. It overwrites itself and is gone at the end. */
void cli_progress(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void cli_progress_end(void);

/* source.c: texts and programs by name */
typedef struct cli_source {
    epi_context *ctx;
    char path[2048];
    char *text;
    epi_module *module;
    const epi_program *program; /* NULL where only the file was named */
} cli_source;

/* Opens FILE or FILE:NAME; "-" is standard input. A FILE that is not found as it stands is looked for among
 * those that come with Epilog, with or without ".epi"; a bare NAME that is none of these, among their
 * programs. */
epi_status cli_source_open(cli_source *s, const char *name, epi_error *err);
/* The same, and a program must come out: the one named, or the only one of its file. */
epi_status cli_program_open(cli_source *s, const char *name, epi_error *err);
/* The one program of a command, with those of the sizes given that are of its axes. Returns EXIT_OK, or another
 * status after saying what is wrong. */
int cli_only_program(cli_source *s, cli_options *o);
void cli_source_close(cli_source *s);
/* The whole file ("-": what is left of standard input), ended by a zero that is not counted; NULL with *err
 * filled. The caller frees it. It ends early where `wants_more` says so of what there is: a pipe
 * may have no end. */
typedef bool cli_more(const char *text, size_t length);
char *cli_read_text(const char *path, cli_more *wants_more, size_t *length, epi_error *err);
/* The same of programs. */
char *cli_read_program(const char *path, size_t *length, epi_error *err);
/* A file that comes with Epilog, by its number. */
epi_status cli_bundled_open(cli_source *s, int index, epi_error *err);

/* data.c: the tensors of a kernel */
typedef struct cli_data {
    int count, input_count;
    epi_tensor *tensors;
    epi_tensor_shape *shapes;
    epi_tensor_info *infos;
    bool *given; /* by a file or --set: not random */
} cli_data;

epi_status cli_data_make(cli_data *d, const epi_program *program, const epi_kernel *kernel, epi_error *err);
void cli_data_random(cli_data *d, uint64_t seed);
/* The scalars of --set. */
epi_status cli_data_set(cli_data *d, const cli_options *o, epi_error *err);
epi_status cli_data_write(const cli_data *d, const char *path, epi_error *err);
void cli_data_free(cli_data *d);
size_t cli_bytes_of(const epi_tensor_shape *s);
/* "w[3,5]" */
void cli_name_element(const cli_data *d, int t, int64_t element, char *out, size_t size);

/* inputs.c: the file of --in */
typedef struct cli_inputs {
    const char *path;
    epi_safetensors *file;
    char *bytes; /* of what cannot be mapped: standard input, pipes */
} cli_inputs;

epi_status cli_inputs_open(cli_inputs *in, const char *path, epi_error *err);
void cli_inputs_close(cli_inputs *in);
/* Adds the sizes that --dims does not give, as the file's tensors have them. */
void cli_inputs_dims(cli_inputs *in, const epi_program *program, cli_options *o);
/* Has the file all inputs that --set does not give, or where the others may be random, some? */
epi_status cli_inputs_check(const cli_inputs *in, const epi_program *program, const cli_options *o,
                            epi_error *err);
/* Stores a number in an integer's place, if it is whole and fits. */
bool cli_store_integer(epi_dtype type, double value, void *to);
/* Reads them. Elements of another type are converted. */
epi_status cli_data_read(cli_data *d, const cli_inputs *in, epi_error *err);

/* verdict.c: outputs beside the f64 reference */
typedef enum cli_verdict { CLI_OK, CLI_TOO_FAR, CLI_NOT_COMPARED } cli_verdict;
const char *cli_verdict_name(cli_verdict v);

/* How far an output is from the f64 reference, beside the naive path's distance. Where nothing was checked
 * there is no distance, and the scale is the output's own. */
typedef struct cli_error_row {
    cli_verdict verdict;
    int64_t compared;           /* elements that f64 has a number of */
    double fused, naive, scale; /* max|out-ref|, max|naive-ref|, max|ref| of what the type can hold */
    double allowed;             /* how far the first may be: 0 for whole numbers */
    double sound;               /* the second, but for NaN and infinities in the place of numbers */
    double spread;              /* of the reference where values are perturbed; 0: it was not asked for */
    double floor;               /* the least that is allowed, relative: base/error_rule.h */
    double infinity;            /* the first of infinities in the place of numbers alone */
    bool whole;                 /* f64 has whole numbers alone, also where values are perturbed */
    int64_t differ, wrong;      /* these are not equal; and no rounding explains it */
    int64_t broken; /* NaN in the place of a number, or what is no number, and ought to be another */
    int64_t worst;  /* the element that is furthest off, or -1 */
    double got, want;
    int64_t nan, infinite; /* elements of the output */
} cli_error_row;

static inline double cli_relative(double error, const cli_error_row *r) {
    return error / (r->scale > 0 ? r->scale : 1);
}

/* Of what the kernel of `o` left in d; with --no-check without a reference. */
epi_status cli_errors(const cli_source *s, const cli_options *o, const cli_data *d,
                      const epi_kernel_info *info, cli_error_row *rows, epi_error *err);
/* The largest distance between two runs' outputs, relative to the largest value of `plain`; *ok where each is
 * within twice what `rows`, the errors of either, allow. */
double cli_compare(const cli_data *d, const cli_data *plain, const cli_error_row *rows, bool *ok);

/* outputs.c: prints the outputs with their errors, unless --json is given, and puts them into an object. Returns
 * EXIT_FAILED if one of them is too far off. */
int cli_report_outputs(const cli_data *d, const cli_error_row *rows, const cli_options *o,
                       epi_json_writer *w);

epi_options cli_compile_options(const cli_options *o);
/* The same with the sizes of axes that the program has, which are put into `dims`. */
epi_options cli_own_options(const epi_program *program, const cli_options *o, epi_dim_binding *dims);
bool cli_has_axis(const epi_program *program, const char *axis);
/* What a name is to a program. */
typedef enum cli_role { CLI_NONE, CLI_INPUT, CLI_RESULT } cli_role;
cli_role cli_role_of(const epi_program *program, const char *tensor);
int cli_find_dim(const cli_options *o, const char *axis); /* which of --dims it is, or -1 */
/* The same with the axes of --open open, up to their largest sizes; the lists are in `room`, with the sizes
 * that --dims gives. Complains of an axis that the program does not have, or that --dims gives no size of. */
typedef struct cli_open {
    epi_dim_binding dims[CLI_MAX_BINDINGS];
    const char *axes[CLI_MAX_BINDINGS];
    int64_t sizes[CLI_MAX_BINDINGS];
    int count;
} cli_open;
int cli_open_options(const cli_options *o, const epi_program *program, cli_open *room, epi_options *out);

/* device.c: which device, its memory, and time on it */

/* Settles o->device, and the type that is the default there. The CPU where none was asked for.
 * Returns EXIT_OK, or another status after saying what is wrong. */
int cli_device_choose(const epi_context *ctx, cli_options *o);

/* A kernel with a workspace of its own. */
typedef struct cli_runner {
    epi_context *ctx;
    int device;
    epi_kernel *kernel;
    void *work;
    size_t bytes;         /* of the workspace */
    const int64_t *sizes; /* of its open axes, of which there are so many; known before it is made */
    int size_count;
    void *prepared; /* what is made of params; NULL: there is nothing to prepare */
} cli_runner;
epi_status cli_runner_make(cli_runner *r, const cli_source *s, const epi_options *o, epi_error *err);
void cli_runner_free(cli_runner *r);

/* Where a device finds the tensors: the host's own on the CPU, copies of them on a GPU. */
typedef struct cli_place {
    epi_context *ctx;
    int device, count, input_count;
    epi_tensor tensors[CLI_MAX_TENSORS];
    size_t bytes[CLI_MAX_TENSORS];
} cli_place;
epi_status cli_place_make(cli_place *p, epi_context *ctx, int device, const cli_data *d, epi_error *err);
/* The outputs become NaN, here and there, so that what a kernel does not write shows. */
epi_status cli_place_reset(const cli_place *p, cli_data *d, epi_error *err);
/* The outputs, back into the host's. */
epi_status cli_place_fetch(const cli_place *p, cli_data *d, epi_error *err);
void cli_place_free(cli_place *p);

/* Starts `runs` runs, waits for them, and returns the seconds of one. */
epi_status cli_burst(const cli_runner *r, const cli_place *p, int runs, double *seconds, epi_error *err);
/* After so many runs ahead of it, which it does not wait for, one run whose parts are timed (epi_kernel_time_parts). */
epi_status cli_time_parts(const cli_runner *r, const cli_place *p, int ahead, double *seconds, int *runs,
                          int *launches, int count, epi_error *err);
/* How many runs make a burst of so many seconds; leaves the kernel warm. */
epi_status cli_burst_size(const cli_runner *r, const cli_place *p, double seconds, int *runs, epi_error *err);

/* show.c: what the library prints, as a text that the caller frees; NULL without memory. */
char *cli_text_of(size_t (*print)(const epi_program *, char *, size_t), const epi_program *program);
char *cli_kernel_text(size_t (*print)(const epi_kernel *, char *, size_t), const epi_kernel *kernel);
char *cli_part_text(size_t (*print)(const epi_kernel *, int, char *, size_t), const epi_kernel *kernel,
                    int index);
/* What is slow, if anything. */
void cli_print_slow(const char *warnings);

/* grad.c: the inputs that --wrt names, or all that have a gradient. They point into `store`. */
typedef struct cli_wrt {
    const char *names[CLI_MAX_TENSORS];
    int count;
    char store[4096];
} cli_wrt;
int cli_wrt_read(cli_wrt *w, const epi_program *program, const cli_options *o);

/* commands: each returns the exit status */
int cmd_new(cli_options *o);
int cmd_check(cli_options *o);
int cmd_fmt(cli_options *o);
int cmd_list(cli_options *o);
int cmd_show(cli_options *o);
int cmd_explain(cli_options *o);
int cmd_run(cli_options *o);
int cmd_grad(cli_options *o);
int cmd_gradcheck(cli_options *o);
int cmd_bench(cli_options *o);
int cmd_profile(cli_options *o);
int cmd_devices(cli_options *o);
int cmd_help(const char *topic);
int cli_version(void); /* prints what this build is, and what it finds here */
int cmd_completion(cli_options *o);
int cmd_man(cli_options *o);
void cli_begin(void); /* where to begin, for who typed the command alone */

#endif
