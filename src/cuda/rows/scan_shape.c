/* scan_shape.c: how a kernel passes over scans: which threads have which lines and steps, and the ring that
 * chunks come through.
 *
 * None of it affects the bits, which depend only on the positions of steps (device/scan.cuh). So it may
 * depend on the number of lines. */
#include "cuda/rows/design_rows.h"

enum {
    RUN_DOWN = 4, /* rows that a thread has; */
    RUN = 8,      /* columns that it has side by side, */
    PIECES = 4,   /* and how often */
    GROUP_STEPS = 32,
    USUAL_BLOCK = 256,
    AT_ONCE = 512, /* threads on a multiprocessor, with 128 registers each */
    MOST_STAGES = 4,
    LINE_BYTES = 128, /* of memory, that neighbouring lanes read; where columns are few as little as this: */
    LEAST_BYTES = 16,
    HELD = 80 /* numbers of its scans that a thread keeps */
};

static int64_t lesser_power(int64_t x) {
    int64_t p = 1;
    while (2 * p <= x)
        p *= 2;
    return p;
}

/* The sizes that a shape is chosen for: open ones as the first kernel had them. */
static int64_t chosen_size(const epi_rows_design *d, const epi_axes *axes) {
    return epi_max64(1, epi_axes_size(axes, d->c->chosen));
}

static int64_t chosen_steps(const epi_rows_design *d) {
    return epi_max64(1, epi_axis_size(d->along, d->c->chosen));
}

/* Lines of all blocks: columns and batches, or rows. */
static int64_t chosen_blocks(const epi_rows_design *d) {
    const epi_rows_shape *s = &d->shape;
    int64_t rows = chosen_size(d, &d->plan->rows);
    if (!d->down)
        return epi_ceil_div(rows, s->rows);
    return rows / chosen_steps(d) *
           epi_ceil_div(chosen_size(d, &d->plan->cols), (int64_t)s->lanes * s->vector);
}

/* Does something that is made at each step need this value, which is the same at all of them? */
static bool is_kept(const epi_rows_design *d, int v) {
    bool kept = false;
    for (int i = 0; i < d->tile.instr_count && !epi_rows_steps(d, v) && epi_rows_has_columns(d, v); i++) {
        const epi_instr *s = &d->tile.instrs[i];
        for (int a = 0; a < 3; a++)
            kept |= s->arg[a] == v && (s->dst < 0 || epi_rows_steps(d, s->dst));
    }
    return kept;
}

int epi_scan_vector(const epi_rows_design *d) {
    int numbers = 0, vector = 8; /* a column */
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        if (s->kind == EPI_INSTR_SCAN)
            numbers += RUN_DOWN * (1 + epi_rows_steps(d, s->arg[0]));
        numbers += s->kind == EPI_INSTR_PARTIAL_COLS ? 2 : s->dst >= 0 && is_kept(d, s->dst);
    }
    while (d->down && vector > 1 && numbers * vector > HELD)
        vector /= 2;
    return vector;
}

/* Bytes of the vectors that neighbouring lanes read side by side. */
static int64_t vector_bytes(const epi_rows_design *d) {
    int64_t least = 4;
    for (int i = 0; i < d->tile.instr_count; i++)
        if (d->access[i].fetched)
            least = epi_min64(least, (int64_t)epi_dtype_size(d->access[i].ref.type));
    return least * d->shape.vector;
}

/* Columns side by side that are a line of memory, fewer where blocks would be too few; the rest of the threads
 * have further rows. */
static void spread_down(epi_rows_design *d) {
    epi_rows_shape *s = &d->shape;
    int64_t vectors = epi_ceil_div(chosen_size(d, &d->plan->cols), s->vector), bytes = vector_bytes(d);
    int64_t least = epi_max64(1, LEAST_BYTES / bytes), steps = chosen_steps(d);
    s->count = RUN_DOWN;
    s->lanes = (int)epi_min64(32, epi_max64(1, LINE_BYTES / bytes));
    while (s->lanes > 1 && s->lanes >= 2 * vectors)
        s->lanes /= 2;
    while (s->lanes > least && 2 * chosen_blocks(d) < 3 * d->c->multiprocessors)
        s->lanes /= 2;
    s->rows = USUAL_BLOCK / s->lanes;
    while (s->rows > GROUP_STEPS / RUN_DOWN && s->rows / 2 * RUN_DOWN >= steps)
        s->rows /= 2;
}

/* Rows that are read a line of memory at a time, or where they are few and long several such. */
static void spread_across(epi_rows_design *d) {
    epi_rows_shape *s = &d->shape;
    int64_t steps = chosen_steps(d);
    s->count = RUN * PIECES / s->vector;
    s->lanes = 8;
    s->rows = USUAL_BLOCK / s->lanes;
    while (s->rows > 1 && 2 * chosen_blocks(d) < 3 * d->c->multiprocessors) {
        s->rows /= 2;
        s->lanes *= 2;
    }
    while (s->lanes > 1 && s->lanes / 2 * RUN * PIECES >= steps)
        s->lanes /= 2;
    while (s->rows * s->lanes < 32)
        s->rows *= 2;
}

void epi_scan_choose_shape(epi_rows_design *d) {
    epi_rows_shape *s = &d->shape;
    s->cluster = 1;
    s->stages = MOST_STAGES;
    d->down ? spread_down(d) : spread_across(d);
}

bool epi_scan_fits(const epi_rows_design *d) {
    const epi_rows_shape *s = &d->shape;
    int threads = s->lanes * s->rows;
    if (s->lanes < 1 || s->rows < 1 || s->lanes > 1024 || s->rows > 1024 || threads > 1024 || threads % 32 ||
        lesser_power(threads) != threads || lesser_power(s->lanes) != s->lanes || s->stages < 1 ||
        s->stages > MOST_STAGES || s->cluster != 1 || s->vector > 8 || s->span)
        return false;
    if (d->down)
        return s->count == RUN_DOWN && s->rows >= GROUP_STEPS / RUN_DOWN;
    return s->count == RUN * PIECES / s->vector;
}

static void count_blocks(epi_rows_design *d, int64_t steps) {
    epi_rows_shape *s = &d->shape;
    const epi_open *open = d->c->spec->open;
    int64_t rows = epi_open_now(open, d->tile.m), columns = epi_open_now(open, d->tile.n);
    d->shape.lines = rows / epi_max64(1, epi_open_now(open, steps));
    d->most_lines = epi_open_most(open, d->tile.m / epi_max64(1, steps));
    s->blocks = d->down ? d->shape.lines * epi_ceil_div(columns, (int64_t)s->lanes * s->vector)
                        : epi_ceil_div(rows, s->rows);
    d->most_blocks = s->blocks;
}

/* Bytes of what one scan's runs end with, as scan.cuh has them. */
static int64_t ends_bytes(const epi_rows_design *d) {
    const epi_rows_shape *s = &d->shape;
    int64_t runs = d->down ? s->rows : (int64_t)s->lanes * PIECES,
            pitch = d->down ? (int64_t)s->lanes * s->vector : s->rows + (s->rows < 32 ? 1 : 4);
    return 8 * runs * pitch;
}

/* The most scans that are folded together: those of one phase. */
static int scans_together(const epi_rows_design *d) {
    int most = 1; /* sums leave the block through the same room */
    for (int p = 0; p < d->tile.phases; p++) {
        int count = 0;
        for (int i = 0; i < d->tile.instr_count; i++)
            count += d->tile.instrs[i].kind == EPI_INSTR_SCAN && d->tile.instrs[i].phase == p;
        most = count > most ? count : most;
    }
    return most;
}

/* Finds the loads that shifted values read other teams' rows of, of what is in the ring. */
static void find_shared(epi_rows_design *d) {
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        d->access[i].shared = -1;
        for (int j = 0; j < d->tile.instr_count && s->kind == EPI_INSTR_SHIFT && d->access[i].fetched; j++)
            if (d->tile.instrs[j].kind == EPI_INSTR_LOAD && d->access[j].fetched &&
                d->tile.instrs[j].node == d->g->nodes[s->node].arg[0])
                d->access[i].shared = j;
    }
}

/* What there is no room for is loaded when it is needed. Copies are of 4, 8 or 16 bytes. */
int64_t epi_walk_stage(epi_rows_design *d, int64_t room) {
    const epi_rows_shape *s = &d->shape;
    int64_t stage = 0;
    for (int i = 0; i < d->tile.instr_count; i++) {
        epi_rows_access *a = &d->access[i];
        if (!a->fetched || a->shared >= 0 || !epi_rows_is_walked(d, d->tile.instrs[i].dst))
            continue;
        int64_t vector = epi_rows_width(d, d->tile.instrs[i].dst) / epi_rows_pieces(a) *
                         (int64_t)epi_dtype_size(a->ref.type),
                bytes = vector * s->count * s->lanes * s->rows;
        if (vector < 4 || 2 * (stage + epi_rows_pieces(a) * bytes) > room)
            continue;
        a->staged = stage;
        a->bytes = bytes;
        stage += epi_rows_pieces(a) * bytes;
    }
    return stage;
}

epi_status epi_scan_lay_out(epi_rows_design *d, epi_error *err) {
    epi_rows_shape *s = &d->shape;
    const epi_open *open = d->c->spec->open;
    int64_t steps = epi_axis_size(d->along, d->c->spec->sizes);
    count_blocks(d, steps);
    find_shared(d);
    s->threads = AT_ONCE;
    s->resident = false; /* what a chunk loads is in the ring, or in memory */
    d->ends = scans_together(d) * ends_bytes(d);
    int64_t threads = (int64_t)s->lanes * s->rows,
            room = (d->c->arch->shared_bytes - (4 << 10)) / (threads > USUAL_BLOCK ? 1 : 2) - d->ends;
    s->row_bytes = epi_walk_stage(d, room);
    s->stages = (int)epi_min64(s->stages, s->row_bytes ? room / s->row_bytes : 1);
    if (room < 0 || epi_open_most(open, steps) > INT32_MAX / 2 || s->blocks > INT32_MAX)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "a scan of %ld steps, of %d values at once", (long)steps,
                        scans_together(d));
    d->kernel.shared = (int)(s->stages * s->row_bytes + d->ends);
    return EPI_OK;
}
