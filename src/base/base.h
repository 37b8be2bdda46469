/* base.h: what every file may use: errors, the arena, checked sizes. */
#ifndef EPI_BASE_H
#define EPI_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "epilog.h"

/* A place in a text. */
typedef struct epi_place {
    int line, column;
} epi_place;

/* Fills *err (which may be NULL) and returns status. Keeps no place. */
epi_status epi_fail(epi_error *err, epi_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void epi_error_clear(epi_error *err);

/* Does a step; where that fails, the function returns its status. */
#define EPI_TRY(step) \
    do { \
        epi_status status_of_step = (step); \
        if (status_of_step != EPI_OK) \
            return status_of_step; \
    } while (0)
/* The step of having got memory. */
epi_status epi_has_memory(bool got, epi_error *err);

/* An arena: many small allocations, freed together. Sticky: after one failure every later
 * allocation returns NULL and `failed` stays set, so a builder checks once at its end. */
typedef struct epi_arena {
    struct epi_arena_block *head;
    bool failed;
} epi_arena;

void *epi_arena_alloc(epi_arena *arena, size_t size); /* zeroed, 16-byte aligned */
char *epi_arena_text(epi_arena *arena, const char *text, size_t length);
/* Room for one more element in a list that has so many of them, and *capacity: the list, or a longer copy. */
void *epi_arena_grow(epi_arena *arena, void *list, int count, int *capacity, size_t size);
void epi_arena_free(epi_arena *arena);

/* A growing text, with the same stickiness as the arena. */
typedef struct epi_text {
    char *data;
    size_t length, capacity;
    bool failed;
} epi_text;

void epi_text_add(epi_text *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Adds a text that may come from anywhere, for a terminal: control characters are shown, as in \x1b. */
void epi_text_add_shown(epi_text *text, const char *from);
void epi_text_free(epi_text *text);
/* Copies into a caller's buffer as snprintf would; frees the text; returns the full length. */
size_t epi_text_give(epi_text *text, char *buf, size_t size);

/* Numbers in texts, the same in every locale: '.' is the decimal point. The first reads a number that
 * was found to be one; the second writes the shortest text that reads back as the same value. */
double epi_number_read(const char *text, size_t length);
typedef struct epi_number_text {
    char text[40];
} epi_number_text;
epi_number_text epi_number_write(double value);

/* a*b and a+b of non-negative sizes; false on overflow. */
static inline bool epi_mul_size(int64_t a, int64_t b, int64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool epi_add_size(int64_t a, int64_t b, int64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}
static inline int64_t epi_ceil_div(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}
static inline int64_t epi_round_up(int64_t a, int64_t b) {
    return epi_ceil_div(a, b) * b;
}
static inline int64_t epi_min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t epi_max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Reserves room for `count` things of `size` bytes at a multiple of 64 and returns where it starts; the first
 * overflow sticks in *total as -1. */
static inline int64_t epi_reserve(int64_t *total, int64_t count, int64_t size) {
    int64_t at = *total, bytes;
    if (at < 0 || !epi_mul_size(count, size, &bytes) || !epi_add_size(at, bytes, total) ||
        !epi_add_size(*total, 63, total))
        return *total = -1;
    *total -= *total % 64;
    return at;
}

/* For MemorySanitizer, and nothing in other builds: what lies there counts as written by nobody, whatever it
 * was used for before, so that whoever reads it is found; and as written, by instructions that it does not
 * follow. */
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#define EPI_HAS_MSAN 1
#endif
#endif
#ifdef EPI_HAS_MSAN
#include <sanitizer/msan_interface.h>
#define EPI_UNWRITTEN(p, bytes) __msan_allocated_memory(p, (size_t)(bytes))
#define EPI_WRITTEN(p, bytes) __msan_unpoison(p, (size_t)(bytes))
#else
#define EPI_UNWRITTEN(p, bytes) ((void)(p), (void)(bytes))
#define EPI_WRITTEN(p, bytes) ((void)(p), (void)(bytes))
#endif

/* Our own mistakes, never a user's: an error as any other, in every build, with the place in the program
 * where there is one ({0}: there is none) and that in the library's sources. The library never aborts. */
epi_status epi_fail_internal(epi_error *err, epi_place at, const char *what, const char *file, int line);
#define EPI_INTERNAL(err, at, what) epi_fail_internal(err, at, what, __FILE__, __LINE__)

#endif
