/* say.h: texts that grow at their end. What does not fit is left out. */
#ifndef EPI_TESTS_SAY_H
#define EPI_TESTS_SAY_H

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static inline void append(char *text, size_t size, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static inline void append(char *text, size_t size, const char *fmt, ...) {
    size_t n = strlen(text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(text + n, size - n, fmt, args);
    va_end(args);
}

/* Of an array. */
#define ADD(text, ...) append(text, sizeof(text), __VA_ARGS__)

#endif
