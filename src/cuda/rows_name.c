/* rows_name.c: a shape of rows has a name that says all of it: rows_128x4_r1_c1_b8192_m1. */
#include <stdio.h>
#include <string.h>

#include "cuda/design_rows.h"

/* The number that a letter of a name stands for. */
static int *field(epi_rows_shape *s, char letter) {
    switch (letter) {
    case 'r': return &s->rows;
    case 'c': return &s->cluster;
    case 'm': return &s->stages;
    case 't': return &s->threads;
    case 'w': return &s->weights;
    case 'p': return &s->prefetch;
    default: return NULL;
    }
}

void epi_rows_name_shape(const epi_rows_shape *shape, char *label, size_t size) {
    epi_rows_shape s = *shape;
    snprintf(label, size, "rows_%dx%d_r%d_c%d_b%ld", s.lanes, s.count, s.rows, s.cluster, (long)s.blocks);
    for (const char *letter = "mtwp"; *letter; letter++)
        if (*field(&s, *letter))
            snprintf(label + strlen(label), size - strlen(label), "_%c%d", *letter, *field(&s, *letter));
    snprintf(label + strlen(label), size - strlen(label), "%s%s", s.ahead ? "_a" : "",
             s.resident ? "" : "_s");
}

/* Reads one "_LETTER" or "_LETTERNUMBER"; returns its length, 0 where it means nothing. */
static int read_field(epi_rows_shape *s, const char *text) {
    long number = 0;
    char letter = 0;
    int length = 0;
    if (sscanf(text, "_%c%ld%n", &letter, &number, &length) == 2) {
        int *to = field(s, letter);
        number = number > INT32_MAX ? INT32_MAX : number;
        if (to)
            *to = (int)number;
        else if (letter == 'b')
            s->blocks = number;
        else
            return 0;
        return length;
    }
    s->ahead |= !strncmp(text, "_a", 2);
    s->resident &= strncmp(text, "_s", 2) != 0;
    return !strncmp(text, "_a", 2) || !strncmp(text, "_s", 2) ? 2 : 0;
}

/* Can the kernel be written in this shape? */
static bool fits(const epi_rows_design *d) {
    const epi_rows_shape *s = &d->shape;
    bool flat = d->plan->flat;
    bool threads = s->lanes > 0 && (s->lanes % 32 == 0 || (s->lanes < 32 && 32 % s->lanes == 0)) &&
                   s->rows > 0 && (int64_t)s->lanes * s->rows <= 1024 && (s->rows <= 15 || s->lanes <= 32);
    bool blocks = s->blocks >= 0 && s->cluster > 0 && s->cluster <= 8 &&
                  (s->cluster == 1 || (s->rows == 1 && s->lanes >= s->cluster && d->c->arch->clusters));
    bool ring = s->stages >= 0 && s->stages <= 8 && s->prefetch >= 0 && (!s->prefetch || s->stages);
    bool registers = s->threads >= 0 && s->threads <= 2048 && (s->resident || !s->ahead) &&
                     (!s->weights || (s->count <= 8 && s->weights > 0 && s->resident && !flat)) &&
                     (!flat || (s->rows == 1 && s->cluster == 1 && !s->stages && s->resident && !s->ahead));
    if (!threads || !blocks || !ring || !registers || s->count <= 0)
        return false;
    int64_t columns = (int64_t)s->lanes * s->cluster * s->vector; /* in 32 bits, as the kernel counts them */
    return s->count <= INT32_MAX / columns && (flat || columns * s->count >= d->columns);
}

/* Only threads and vectors have to be in the name. */
epi_status epi_rows_take_shape(epi_rows_design *d, const char *name, epi_error *err) {
    epi_rows_shape *s = &d->shape;
    int at = 0;
    *s = (epi_rows_shape){.vector = s->vector, .rows = 1, .cluster = 1, .resident = true};
    if (sscanf(name, "rows_%dx%d%n", &s->lanes, &s->count, &at) != 2)
        return epi_fail(err, EPI_ERR_ARGUMENT, "there is no configuration '%s' for rows: rows_LANESxCOUNT",
                        name);
    while (name[at]) {
        int length = read_field(s, name + at);
        if (!length)
            return epi_fail(err, EPI_ERR_ARGUMENT, "'%s' in the configuration '%s' says nothing", name + at,
                            name);
        at += length;
    }
    if (!fits(d))
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "the configuration '%s' does not fit these rows", name);
    epi_rows_set_blocks(d, s->blocks ? epi_ceil_div(s->blocks, s->cluster) : INT64_MAX);
    return EPI_OK;
}
