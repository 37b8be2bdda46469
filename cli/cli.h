/* cli.h: the `epilog` command: options, programs by name, tensors, output. */
#ifndef EPI_CLI_H
#define EPI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "epilog.h"
#include "io/json.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };
enum { CLI_MAX_BINDINGS = 64, CLI_MAX_NAMES = 256, CLI_MAX_TENSORS = 128 };

typedef struct cli_options {
    const char *command;
    const char *names[CLI_MAX_NAMES]; /* what is no option */
    int name_count;
    epi_dim_binding dims[CLI_MAX_BINDINGS];
    int dim_count;
    epi_type_binding types[CLI_MAX_BINDINGS];
    int type_count;
    epi_dtype type;
    epi_path path;
    const char *in, *out, *micro;
    uint64_t seed;
    int threads, repeat;
    int64_t sizes[8]; /* --size: the scales of the standard benchmark */
    int size_count;
    bool json, help;
} cli_options;

/* options.c. Answers EXIT_OK, or EXIT_USAGE after saying what is wrong. */
int cli_parse(int argc, char **argv, cli_options *out);

/* report.c: what people read */
void cli_error(const epi_error *err);
int cli_fail(const epi_error *err); /* prints it and answers the exit status */
int cli_complain(int status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void cli_progress(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void cli_progress_end(void);
double cli_seconds(void);
int cli_print_json(epi_text *text);

/* source.c: texts and programs by name */
typedef struct cli_source {
    epi_context *ctx;
    char path[2048];
    char *text;
    epi_module *module;
    const epi_program *program; /* NULL where only the file was named */
} cli_source;

/* Opens FILE or FILE:NAME; a FILE that is not found as it stands is looked for among the programs that come
 * with Epilog, with or without ".epi". */
epi_status cli_source_open(cli_source *s, const char *name, epi_error *err);
/* The same, and a program must come out: the one named, or the only one of its file. */
epi_status cli_program_open(cli_source *s, const char *name, epi_error *err);
void cli_source_close(cli_source *s);
/* The folder of the programs that come with Epilog. */
epi_status cli_program_folder(char *out, size_t size, epi_error *err);

/* data.c: the tensors of a kernel */
typedef struct cli_data {
    int count, input_count;
    epi_tensor tensors[CLI_MAX_TENSORS];
    epi_tensor_shape shapes[CLI_MAX_TENSORS];
    epi_tensor_info infos[CLI_MAX_TENSORS];
} cli_data;

epi_status cli_data_make(cli_data *d, const epi_program *program, const epi_kernel *kernel, epi_error *err);
void cli_data_random(cli_data *d, uint64_t seed);
epi_status cli_data_read(cli_data *d, const char *path, epi_error *err);
epi_status cli_data_write(const cli_data *d, const char *path, epi_error *err);
void cli_data_free(cli_data *d);

/* How far an output is from the f64 reference, beside the naive path's distance. */
typedef struct cli_error_row {
    double fused, naive, scale; /* max|out-ref|, max|naive-ref|, max|ref| */
    bool ok; /* fused <= 2*naive + one unit of storage + what f32 loses in the product's sums */
} cli_error_row;

/* `depth` is the length of the product's sums. */
epi_status cli_errors(const epi_program *program, const cli_options *o, const cli_data *d, int64_t depth,
                      cli_error_row *rows, epi_error *err);

epi_options cli_compile_options(const cli_options *o);

/* Runs a kernel with a workspace of its own. */
typedef struct cli_runner {
    epi_kernel *kernel;
    void *work;
} cli_runner;
epi_status cli_runner_make(cli_runner *r, const epi_program *program, const epi_options *o, epi_error *err);
void cli_runner_free(cli_runner *r);

/* commands: each answers the exit status */
int cmd_check(const cli_options *o);
int cmd_list(const cli_options *o);
int cmd_show(const cli_options *o);
int cmd_run(const cli_options *o);
int cmd_bench(const cli_options *o);
int cmd_devices(const cli_options *o);
int cmd_help(const char *topic);

#endif
