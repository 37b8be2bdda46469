/* window_shape.c: how a kernel passes over rows that shift values they load or compute: which threads have
 * which rows, and how much of earlier rows is kept.
 *
 * A thread goes down some rows of its columns, one at a time. Every value is computed once for each row: for
 * the current one, or for one that is a few rows behind, because a value that looks ahead has to wait for
 * what it looks at. The distance is its *lag*. A value that is needed after it is computed stays in
 * registers until then, in a *window*.
 *
 * Other threads have the rows before and after a thread's own rows. So its walk begins before its first row
 * and ends after its last; what it computes there serves only its own rows. */
#include "cuda/rows/design_rows.h"

enum {
    TEAMS = 8, /* threads down the rows in a block, and */
    SPAN =
        64, /* rows of each: sums of more would drift, and of fewer the ends would count. Sums follow from both */
    LEAST_SPAN = 8,
    CHUNK = 4, /* rows that are asked for at a time */
    MOST_STAGES = 4,
    AT_ONCE = 512, /* threads on a multiprocessor, with 128 registers each, */
    HELD = 80      /* of which so many are for what is kept */
};

/* ---- windows ---- */

static bool is_walked(const epi_rows_design *d, int i) {
    const epi_instr *s = &d->tile.instrs[i];
    return s->dst < 0 || epi_rows_is_walked(d, s->dst);
}

/* The instruction that makes the value, whatever it is called, or -1 if it is the same for all rows; and the lag at which the
 * value is there under this name. */
static int source_of(const epi_rows_design *d, int v, int *lag) {
    if (v < 0 || !epi_rows_is_walked(d, v))
        return -1;
    int i = d->maker[v];
    const epi_instr *s = &d->tile.instrs[i];
    int from = epi_rows_is_alias(s) ? d->maker[s->arg[0]] : i;
    *lag = d->access[from].lag - (from == i ? 0 : (int)epi_shift_by(&d->g->nodes[s->node]));
    return from;
}

int epi_window_source(const epi_rows_design *d, int v, int *before) {
    int lag = d->at, from = source_of(d, v, &lag);
    *before = d->at - lag;
    return from;
}

/* Each as soon as what it is made of is there. */
static void find_lags(epi_rows_design *d) {
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        epi_rows_access *access = &d->access[i];
        access->lag = 0;
        for (int a = 0, lag; a < 3 && !epi_rows_is_alias(s); a++)
            if (source_of(d, s->arg[a], &lag) >= 0)
                access->lag = (int)epi_max64(access->lag, lag);
    }
}

/* Loads are for the row that is wanted first. */
static void put_off_loads(epi_rows_design *d) {
    for (int i = 0; i < d->tile.instr_count; i++) {
        int least = INT32_MAX;
        for (int j = i + 1; j < d->tile.instr_count && d->tile.instrs[i].kind == EPI_INSTR_LOAD; j++)
            for (int a = 0, lag; a < 3 && !epi_rows_is_alias(&d->tile.instrs[j]); a++)
                if (source_of(d, d->tile.instrs[j].arg[a], &lag) == i)
                    least = (int)epi_min64(least, d->access[j].lag - lag);
        d->access[i].lag += least == INT32_MAX ? 0 : least;
    }
}

void epi_window_find(epi_rows_design *d) {
    find_lags(d);
    put_off_loads(d);
    d->begin = INT32_MAX;
    for (int i = 0; i < d->tile.instr_count; i++) {
        bool root = d->tile.instrs[i].dst < 0;
        d->access[i].begin = root ? d->access[i].lag : INT32_MAX;
        if (root)
            d->beyond = (int)epi_max64(d->beyond, d->access[i].lag);
    }
    for (int i = d->tile.instr_count - 1; i >= 0; i--) {
        const epi_instr *s = &d->tile.instrs[i];
        const epi_rows_access *access = &d->access[i];
        if (!is_walked(d, i) || epi_rows_is_alias(s) || access->begin == INT32_MAX)
            continue;
        d->begin = (int)epi_min64(d->begin, access->begin);
        for (int a = 0; a < 3; a++) {
            int lag, from = source_of(d, s->arg[a], &lag);
            if (from < 0)
                continue;
            epi_rows_access *of = &d->access[from];
            of->kept = (int)epi_max64(of->kept, access->lag - lag);
            of->begin = (int)epi_min64(of->begin, access->begin - (access->lag - lag));
            of->shifted |= epi_rows_is_alias(&d->tile.instrs[d->maker[s->arg[a]]]);
        }
    }
}

/* ---- the shape ---- */

int epi_window_vector(const epi_rows_design *d) {
    int numbers = 0, vector = 8; /* a column */
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        if (s->kind == EPI_INSTR_PARTIAL_COLS)
            numbers++;
        else if (s->dst >= 0 && epi_rows_has_columns(d, s->dst))
            numbers += epi_rows_steps(d, s->dst) ? d->access[i].kept : 1;
    }
    while (vector > 1 && numbers * vector > HELD)
        vector /= 2;
    return vector;
}

/* Pieces of the rows, each a thread's. */
static int64_t count_pieces(const epi_rows_design *d, int64_t rows, int64_t steps) {
    return rows / epi_max64(1, steps) * epi_ceil_div(steps, d->shape.span);
}

static int64_t chosen_threads(const epi_rows_design *d) {
    int64_t rows = epi_axes_size(&d->plan->rows, d->c->chosen), steps = epi_axis_size(d->along, d->c->chosen);
    return count_pieces(d, rows, steps) * epi_axes_size(&d->plan->cols, d->c->chosen) / d->shape.vector;
}

/* Neighbouring lanes have neighbouring columns. Where there are few threads and no sums, which rows they share out differently
 * would change, each has fewer rows. */
void epi_window_choose_shape(epi_rows_design *d) {
    epi_rows_shape *s = &d->shape;
    s->cluster = 1;
    s->stages = MOST_STAGES;
    s->count = CHUNK;
    s->rows = TEAMS;
    s->lanes = 32;
    while (s->lanes > 32 / TEAMS && (int64_t)s->lanes / 2 * s->vector >= d->columns)
        s->lanes /= 2;
    d->shape.span = SPAN;
    while (!d->sums && d->shape.span > LEAST_SPAN &&
           chosen_threads(d) < (int64_t)AT_ONCE * d->c->multiprocessors)
        d->shape.span /= 2;
}

bool epi_window_fits(const epi_rows_design *d) {
    const epi_rows_shape *s = &d->shape;
    int threads = s->lanes * s->rows;
    return s->lanes > 0 && s->lanes <= 32 && 32 % s->lanes == 0 && s->rows > 0 && s->rows <= 32 &&
           threads % 32 == 0 && s->count > 0 && s->count <= 8 && s->stages > 0 && s->stages <= MOST_STAGES &&
           s->cluster == 1 && s->vector <= 8 && s->span >= 0 && s->span <= 1 << 16;
}

epi_status epi_window_lay_out(epi_rows_design *d, epi_error *err) {
    epi_rows_shape *s = &d->shape;
    const epi_open *open = d->c->spec->open;
    int64_t steps = epi_axis_size(d->along, d->c->spec->sizes), rows = d->tile.m;
    int64_t stripes = epi_ceil_div(epi_open_now(open, d->tile.n), (int64_t)s->lanes * s->vector);
    if (!s->span) /* a name without it */
        s->span = SPAN;
    if (!s->threads)
        s->threads = AT_ONCE;
    s->resident = false;
    d->shape.lines =
        epi_ceil_div(count_pieces(d, epi_open_now(open, rows), epi_open_now(open, steps)), s->rows);
    d->most_lines = epi_ceil_div(epi_open_most(open, rows / epi_max64(1, steps)) *
                                     epi_ceil_div(epi_open_most(open, steps), d->shape.span),
                                 s->rows);
    s->blocks = d->most_blocks = d->shape.lines * stripes;
    d->ends = d->sums ? (int64_t)4 * s->rows * s->lanes * s->vector : 0;
    int64_t blocks = epi_max64(1, s->threads / (s->lanes * s->rows)),
            room = (d->c->arch->shared_bytes - (4 << 10)) / blocks - d->ends - (1 << 10);
    for (int i = 0; i < d->tile.instr_count; i++)
        d->access[i].shared = -1;
    s->row_bytes = epi_walk_stage(d, room);
    s->stages = (int)epi_min64(s->stages, s->row_bytes ? room / s->row_bytes : 1);
    if (epi_open_most(open, steps) > INT32_MAX / 2 || s->blocks > INT32_MAX)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "a walk over %ld rows", (long)steps);
    d->kernel.shared = (int)(s->stages * s->row_bytes + d->ends);
    return EPI_OK;
}
