/* report.c: messages to people on the terminal. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

void cli_error(const epi_error *err) {
    char text[2048];
    epi_error_format(err, text, sizeof text);
    cli_progress_end();
    fprintf(stderr, "epilog: %s\n", text);
}

int cli_fail(const epi_error *err) {
    cli_error(err);
    return EXIT_FAILED;
}

int cli_complain(int status, const char *fmt, ...) {
    va_list args;
    cli_progress_end();
    fputs("epilog: ", stderr);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    return status;
}

/* A line that overwrites itself, only where someone is watching. */
void cli_progress(const char *fmt, ...) {
    if (!isatty(STDERR_FILENO))
        return;
    va_list args;
    fputs("\r\033[K", stderr);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fflush(stderr);
}

void cli_progress_end(void) {
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}

double cli_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int cli_print_json(epi_text *text) {
    bool ok = !text->failed && text->length;
    if (ok)
        printf("%s\n", text->data);
    epi_text_free(text);
    return ok ? EXIT_OK : cli_complain(EXIT_FAILED, "out of memory");
}
