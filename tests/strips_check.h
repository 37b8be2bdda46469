/* strips_check.h: what the tests of the strips share: counting, odd values, guarded memory. */
#ifndef EPI_TESTS_STRIPS_CHECK_H
#define EPI_TESTS_STRIPS_CHECK_H

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "bytes.h"
#include "cpu/rows/strips.h"
#include "draw.h"

/* ---- counting ------------------------------------------------------------------------------ */

static int passed, failed;
static char trouble[256]; /* the first thing wrong in the current check */

static inline void wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static inline void wrong(const char *fmt, ...) {
    if (*trouble)
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(trouble, sizeof trouble, fmt, args);
    va_end(args);
}

static inline void report(const epi_strips *s, const char *what, const char *measured) {
    printf("%-4s %-8s %s%s%s%s\n", *trouble ? "FAIL" : "ok", s->name, what, measured, *trouble ? ": " : "",
           trouble);
    *trouble ? failed++ : passed++;
    if (*trouble)
        print_again();
    *trouble = 0;
}

/* ---- values -------------------------------------------------------------------------------- */

static inline bool same(float a, float b) {
    return memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);
}

static uint64_t random_state = 1; /* a case that runs alone sets it, so that it has its own numbers */
static inline uint32_t random_bits(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static inline float random_between(float low, float high) {
    return low + (high - low) * ((float)(random_bits() >> 8) * 0x1p-24f);
}

static const float specials[] = {
    0.0f,      -0.0f,      1.0f,    -1.0f,    INFINITY,   -INFINITY,   NAN,    FLT_MIN, -FLT_MIN,
    0x1p-149f, -0x1p-149f, FLT_MAX, -FLT_MAX, 0.5f,       -0.5f,       2.0f,   -2.0f,   3.0f,
    -3.0f,     0.3f,       -2.5f,   1e-20f,   -1e-20f,    1e20f,       -1e20f, 88.7f,   88.8f,
    -87.5f,    -103.9f,    -104.1f, -14.3f,   8388607.5f, 16777215.0f,
};
enum { SPECIALS = sizeof specials / sizeof specials[0] };

/* Anything: a special, a number of ordinary size, or any bits at all. */
static inline float random_float(void) {
    uint32_t kind = random_bits() % 8;
    if (kind == 0)
        return specials[random_bits() % SPECIALS];
    return kind < 6 ? random_between(-8.0f, 8.0f) : from_bits(random_bits());
}

/* ---- guarded memory ------------------------------------------------------------------------ */

enum { GUARD = 64, ROOM = 8192, ROWS = 3, COLS = 300, LD = COLS + 5 };
static const float SENTINEL = -12345.678f;
static float arena[GUARD + ROOM + GUARD];

static inline float *fresh(void) {
    for (int i = 0; i < GUARD + ROOM + GUARD; i++)
        arena[i] = SENTINEL;
    return arena + GUARD;
}

/* Nothing but n elements of each row was written. */
static inline void intact(int rows, ptrdiff_t ld, int n) {
    for (ptrdiff_t i = -GUARD; i < ROOM + GUARD; i++) {
        bool inside = i >= 0 && i < rows * ld && i % ld < n;
        if (!inside && arena[GUARD + i] != SENTINEL)
            wrong("wrote outside, at %td", i);
    }
}

/* Operands of maps and reductions: ROWS rows, LD apart. */
static __attribute__((unused)) float operands[3][ROWS * LD];

static inline int summary(void) {
    draw_one();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}

#endif
