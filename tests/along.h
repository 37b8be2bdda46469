/* along.h: what test_time.c and test_shifts.c share: tensors of some axes in some order, of which T is gone along. */
#ifndef EPI_TESTS_ALONG_H
#define EPI_TESTS_ALONG_H

#include "ran.h"

typedef struct shape {
    const char *axes; /* B, T, and C or D */
    int64_t b, t, d;
} shape;

static inline int64_t size_of(const shape *s, char axis) {
    return axis == 'B' ? s->b : axis == 'T' ? s->t : s->d;
}

/* "B,T,D", or without T; and with the sizes: "B=2,T=7,D=5". */
static inline void write_axes(char *out, const char *axes, bool with_t) {
    const char *comma = "";
    for (*out = 0; *axes; axes++)
        if (with_t || *axes != 'T') {
            out += sprintf(out, "%s%c", comma, *axes);
            comma = ",";
        }
}

static inline void write_sizes(char *out, const shape *s) {
    for (const char *a = s->axes; *a; a++)
        out += sprintf(out, "%s%c=%ld", a == s->axes ? "" : ",", *a, (long)size_of(s, *a));
}

/* Elements from one step along T to the next. */
static inline int64_t step_of(const shape *s) {
    int64_t step = 1;
    for (const char *a = strchr(s->axes, 'T') + 1; *a; a++)
        step *= size_of(s, *a);
    return step;
}

#endif
