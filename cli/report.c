/* report.c: messages to people on the terminal, and what is written for machines. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "cli.h"

const char *cli_styled(FILE *to, cli_style style) {
    static const char *const codes[] = {
        [CLI_PLAIN] = "\033[0m",  [CLI_BOLD] = "\033[1m",  [CLI_RED] = "\033[1;31m",
        [CLI_GREEN] = "\033[32m", [CLI_BLUE] = "\033[34m",
    };
    const char *no = getenv("NO_COLOR"), *terminal = getenv("TERM");
    bool dumb = !terminal || !*terminal || !strcmp(terminal, "dumb");
    return isatty(fileno(to)) && !(no && *no) && !dumb ? codes[style] : "";
}

/* What every message begins with. It stands behind what was printed before it, in a pipe and a file, too. */
static void put_prefix(void) {
    fflush(stdout);
    fprintf(stderr, "%sepilog:%s ", cli_styled(stderr, CLI_RED), cli_styled(stderr, CLI_PLAIN));
}

void cli_error(const epi_error *err) {
    char text[2048];
    epi_error_format(err, text, sizeof text);
    cli_progress_end();
    put_prefix();
    fprintf(stderr, "%s\n", text);
}

int cli_fail(const epi_error *err) {
    cli_error(err);
    return EXIT_FAILED;
}

/* Prints with control characters shown: what people read may have names and comments from anywhere in it. */
static void print_shown(FILE *to, const char *fmt, va_list args) {
    char text[4096];
    epi_text shown = {0};
    vsnprintf(text, sizeof text, fmt, args);
    epi_text_add_shown(&shown, text);
    fputs(shown.data && !shown.failed ? shown.data : "", to);
    epi_text_free(&shown);
}

int cli_complain(int status, const char *fmt, ...) {
    va_list args;
    cli_progress_end();
    put_prefix();
    va_start(args, fmt);
    print_shown(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    return status;
}

void cli_print(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    print_shown(stdout, fmt, args);
    va_end(args);
}

cli_number cli_number_of(double x) {
    cli_number n;
    snprintf(n.text, sizeof n.text, isnan(x) ? "NaN" : "%.9g", x);
    return n;
}

double cli_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int cli_print_json(const cli_options *o, epi_text *text, int status) {
    if (o->json && (text->failed || !text->length))
        status = cli_complain(EXIT_FAILED, "out of memory");
    else if (o->json)
        printf("%s\n", text->data);
    epi_text_free(text);
    return status;
}

void cli_put_text(epi_json_writer *w, const char *key, const char *value) {
    epi_json_put_key(w, key);
    epi_json_put_text(w, value);
}

void cli_put_number(epi_json_writer *w, const char *key, double value) {
    epi_json_put_key(w, key);
    epi_json_put_number(w, value);
}

void cli_put_integer(epi_json_writer *w, const char *key, int64_t value) {
    epi_json_put_key(w, key);
    epi_json_put_integer(w, value);
}

void cli_put_bool(epi_json_writer *w, const char *key, bool value) {
    epi_json_put_key(w, key);
    epi_json_put_bool(w, value);
}

epi_status cli_write_text(const char *path, const epi_text *text, epi_error *err) {
    EPI_TRY(epi_has_memory(!text->failed, err));
    epi_file f;
    epi_file_open(&f, path);
    epi_file_write(&f, text->data, text->length);
    return epi_file_status(path, epi_file_close(&f), err);
}

bool cli_may_write(const char *path, epi_error *err) {
    if (path && !*path)
        return epi_fail(err, EPI_ERR_FILE, "the name of the output file is empty"), false;
    return !path || epi_file_status(path, epi_file_check(path), err) == EPI_OK;
}

int cli_print_aside(cli_options *o) {
    static char path[32];
    if (!o->out || strcmp(o->out, "-") != 0)
        return EXIT_OK;
    int fd = dup(STDOUT_FILENO);
    if (fd < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        return cli_complain(EXIT_FAILED, "standard output: %s", strerror(errno));
    snprintf(path, sizeof path, "/dev/fd/%d", fd);
    o->out = path;
    return EXIT_OK;
}

int cli_check_distinct(const char *out, const char *what, const char *in) {
    struct stat x, y;
    if (!out || !in || stat(out, &x) != 0 || stat(in, &y) != 0 || !S_ISREG(x.st_mode) ||
        x.st_dev != y.st_dev || x.st_ino != y.st_ino)
        return EXIT_OK;
    return cli_complain(EXIT_USAGE, "the output would overwrite %s, %s", what, in);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double cli_median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}
