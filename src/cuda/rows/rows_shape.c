/* rows_shape.c: how a kernel passes over rows: threads, vectors and blocks, and the ring that rows come
 * through.
 *
 * The shape depends on the columns and the program, never on the number of rows, and so do a row's bits. For
 * open columns it is the shape for the largest size. Rows are loaded into registers or, on Hopper, through a
 * ring in shared memory that TMA fills. */
#include "cuda/rows/design_rows.h"

#include <stdio.h>
#include <string.h>

enum {
    SHORT_ROW = 1024,  /* columns that TMA is not worth it for */
    SHORT_BLOCK = 128, /* threads of a block of such rows */
    FEW_ROWS = 512,    /* that come to registers: nothing hides TMA's latency */
    FLAT_BLOCKS = 512,
    SUM_BLOCKS = 128,   /* of sums down the rows, and a multiple of it */
    SUM_ROWS = 64,      /* that a thread adds up: a longer sum would drift */
    SQUARE_LANES = 256, /* threads of a square tile, and rows of it that each has */
    SQUARE_ROWS = 8,
    USUAL_THREADS = 1024 /* at once on a multiprocessor, with 64 registers each */
};

bool epi_rows_are_few(int64_t rows) {
    return rows <= FEW_ROWS;
}

/* Is it a load, in vectors, of what all rows read? */
static bool is_weight(const epi_rows_design *d, int i) {
    const epi_instr *s = &d->tile.instrs[i];
    return s->kind == EPI_INSTR_LOAD && !epi_rows_is_full(d, s->dst) && epi_rows_has_columns(d, s->dst) &&
           d->access[i].vectors;
}

static int count_weights(const epi_rows_design *d) {
    int count = 0;
    for (int i = 0; i < d->tile.instr_count; i++)
        count += is_weight(d, i);
    return count;
}

/* Columns of a row that one block of the cluster has. */
static int64_t slice(const epi_rows_shape *s) {
    return (int64_t)s->vector * s->lanes * s->count;
}

/* Can TMA load the rows, and is it worth it? Short ones come faster to registers. */
static bool rows_are_contiguous(const epi_rows_design *d) {
    int count = 0;
    for (int i = 0; i < d->tile.instr_count; i++) {
        if (d->access[i].fetched && !epi_rows_is_contiguous(d, i))
            return false;
        count += d->access[i].fetched;
    }
    return count > 0 && d->columns >= SHORT_ROW;
}

/* ---- the shape ---- */

/* Shared memory for the rings of a multiprocessor: the rest is for what its blocks fold there. */
static int ring_room(const epi_rows_design *d) {
    return d->c->arch->shared_bytes - (8 << 10);
}

static int power_of_two(int64_t x) {
    int p = 1;
    while (p < x)
        p *= 2;
    return p;
}

/* Threads a row and vectors a thread, at most `per` of these: few threads idle, about four vectors each. */
static void spread(epi_rows_shape *s, int64_t vectors, int per) {
    double best = 1e30;
    if (vectors <= 32) {
        s->lanes = power_of_two(epi_ceil_div(vectors, epi_min64(per, 4)));
        if (s->lanes < 8)
            s->lanes = (int)epi_min64(8, power_of_two(vectors));
        s->count = (int)epi_ceil_div(vectors, s->lanes);
        return;
    }
    for (int nv = s->cluster > 1 ? per : 1; nv <= per; nv++) {
        int64_t lanes = epi_round_up(epi_ceil_div(vectors, nv), 32);
        double idle = (double)(lanes * nv - vectors) / (double)vectors;
        double cost = 4 * idle + 0.1 * (nv > 4 ? nv - 4 : 4 - nv) + (double)lanes / 4096;
        if (lanes <= 1024 && cost < best) {
            best = cost;
            s->lanes = (int)lanes;
            s->count = nv;
        }
    }
}

static int most_vectors(double words, double registers, int vector) {
    double per = registers / (words * vector), most = vector < 4 ? 32.0 / vector : 8;
    return per < 1 ? 1 : per > most ? (int)most : (int)per;
}

/* What a row has in registers or in the ring: words a column that are loaded, and that are summed. */
static void weigh(const epi_rows_design *d, double *loaded, double *summed) {
    *loaded = *summed = 0;
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *t = &d->tile.instrs[i];
        int v = t->kind == EPI_INSTR_LOAD ? t->dst : t->arg[0];
        double share = v >= 0 && epi_rows_is_coarse(d, v) ? 0.5 : 1;
        if (d->access[i].fetched)
            *loaded += share * (double)epi_dtype_size(d->access[i].ref.type) / 4;
        *summed += t->kind == EPI_INSTR_PARTIAL_COLS ? share : 0;
    }
}

/* Blocks, of all clusters, for so many rows or columns of a flat row; of rows of clusters there are at most
 * `most`. 0: of cross-tile reductions, totals of a flat row have few partials, and sums down the rows a wave
 * of one block a multiprocessor, or several. */
static int64_t count_blocks(const epi_rows_design *d, int64_t count, int64_t most) {
    const epi_rows_shape *s = &d->shape;
    int64_t turns = epi_max64(1, epi_ceil_div(count, d->plan->flat ? slice(s) : s->rows)),
            wave = SUM_BLOCKS / s->cluster;
    if (!most)
        most = !d->cross_tile  ? turns
               : d->plan->flat ? FLAT_BLOCKS
                               : wave * epi_ceil_div(turns, wave * SUM_ROWS);
    return epi_min64(turns, most) * s->cluster;
}

static void set_blocks(epi_rows_design *d, int64_t most) {
    const epi_open *open = d->c->spec->open;
    int64_t count = d->plan->flat ? d->tile.n : d->tile.m;
    d->shape.blocks = count_blocks(d, epi_open_now(open, count), most);
    d->most_blocks = count_blocks(d, epi_open_most(open, count), most);
}

static void shape_flat(epi_rows_design *d, double loaded) {
    epi_rows_shape *s = &d->shape;
    int per = most_vectors(loaded > 0.25 ? loaded : 0.25, 8, s->vector);
    s->lanes = 256;
    s->count = per > 4 ? 4 : per;
}

/* Threads and vectors for rows that are read from shared memory: four vectors each, more where rows are long.
 */
static void spread_held(epi_rows_shape *s, int64_t vectors) {
    s->lanes = (int)epi_min64(256, epi_round_up(epi_ceil_div(vectors, 4), 32));
    s->count = (int)epi_ceil_div(vectors, s->lanes);
}

/* How far ahead a row is prefetched to the L2 cache: as many rows as are worked on at once, if the cache has
 * room for them beside those, and beside what is stored. Where blocks share rows, these are long. */
static int choose_prefetch(const epi_rows_design *d, double row_bytes) {
    const epi_rows_shape *s = &d->shape;
    bool stores = false;
    for (int i = 0; i < d->tile.instr_count; i++)
        stores |= d->tile.instrs[i].kind == EPI_INSTR_STORE && d->tile.instrs[i].full;
    double most = (stores ? (s->cluster > 1 ? 8e6 : 13e6) : 26e6) / row_bytes;
    int at_once =
        EPI_USUAL_MULTIPROCESSORS * ((s->threads ? s->threads : USUAL_THREADS) / s->lanes) / s->cluster;
    return most < at_once ? (int)most : at_once;
}

/* Rows that TMA loads to shared memory, one at a time and block: small blocks, many of them, so
 * that some load while others compute or store. */
static void shape_held(epi_rows_design *d, int64_t vectors, double loaded) {
    epi_rows_shape *s = &d->shape;
    while (s->cluster < 8 && 4 * loaded * (double)(vectors * s->vector) / s->cluster > (64 << 10))
        s->cluster *= 2;
    spread_held(s, epi_ceil_div(vectors, s->cluster));
    /* the bits are the same either way */
    s->stages = !epi_rows_are_few(epi_axes_size(&d->plan->rows, d->c->chosen)) || s->count > 4;
    double bytes = 4 * loaded * (double)slice(s);
    int weights = count_weights(d);
    int blocks = bytes > 0 ? (int)(ring_room(d) / bytes) : 0; /* that shared memory has room for at once */
    if (s->stages && blocks * s->lanes < 1024)
        s->threads = blocks * s->lanes; /* their registers are free to use */
    else if (s->stages && s->count <= 4 && weights > 0 && weights <= 2) {
        s->weights = weights;
        s->threads = USUAL_THREADS / s->lanes * s->lanes;
    }
    for (int i = 0; i < d->tile.instr_count; i++)
        if (s->stages && !s->threads && d->tile.instrs[i].kind == EPI_INSTR_INDEX)
            s->threads = 768 / s->lanes * s->lanes; /* numbers of columns take registers, too */
    if (s->stages)
        s->prefetch = choose_prefetch(d, 4 * loaded * (double)d->columns);
}

/* Sums down the rows: a block a multiprocessor, with as many teams as it holds, each with rows ahead. */
static void shape_sums(epi_rows_design *d, int64_t vectors, double loaded, double summed, bool ring) {
    epi_rows_shape *s = &d->shape;
    int per = ring ? most_vectors(summed, 64, s->vector) : most_vectors(2 * loaded + summed, 28, s->vector);
    int threads = ring || s->vector > 8 ? 512 : 1024; /* the sums of a block fit in shared memory */
    per = per > 4 ? 4 : per;
    while (d->c->arch->clusters && s->cluster < 8 && vectors > (int64_t)per * threads * s->cluster)
        s->cluster *= 2;
    int64_t lanes = epi_round_up(epi_ceil_div(vectors, (int64_t)per * s->cluster), 32);
    if (ring && lanes <= threads) { /* as many vectors a thread as its registers hold */
        s->lanes = (int)lanes;
        s->count = (int)epi_ceil_div(vectors, lanes * s->cluster);
    } else {
        spread(s, epi_ceil_div(vectors, s->cluster), per);
    }
    if (s->cluster == 1 && s->lanes && s->lanes < threads)
        s->rows = (int)epi_min64(threads / s->lanes, s->lanes > 32 ? 15 : 1024);
    s->ahead = true;
    double numbers = summed * s->vector * s->count;
    bool whole = (int64_t)s->lanes * s->count * s->vector == d->columns;
    /* beside 64 sums and one that is held, a second one that is loaded takes more registers than there are */
    bool held = numbers <= 32 || (whole && numbers <= 64 && count_weights(d) == 1);
    s->weights = ring && s->lanes < 256 && held && count_weights(d) > 0;
}

/* Are elements loaded one by one that lie side by side from row to row? Then neighbouring threads have neighbouring rows:
 * of short ones a thread has as many vectors as can be. */
static bool lies_across(const epi_rows_design *d) {
    bool across = false;
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        const epi_walk *rows = &d->access[i].many_rows;
        across |= s->kind == EPI_INSTR_LOAD && epi_rows_is_full(d, s->dst) && !d->access[i].vectors &&
                  rows->count > 0 && rows->stride[rows->count - 1] == 1;
    }
    return across;
}

/* A square tile a block, eight rows and eight columns of it a thread: what is loaded waits in registers, if it
 * takes no more than half of them. Three blocks are at work at once, but where extremes down the tile are wanted of
 * two tensors. */
static void shape_square(epi_rows_design *d, double loaded) {
    epi_rows_shape *s = &d->shape;
    s->lanes = SQUARE_LANES;
    s->count = SQUARE_ROWS;
    s->resident = loaded <= 1;
    s->threads = (loaded <= (d->downs ? 0.5 : 1) ? 3 : 2) * SQUARE_LANES;
}

static epi_status choose_shape(epi_rows_design *d, epi_error *err) {
    epi_rows_shape *s = &d->shape;
    int64_t n = d->columns, vectors = epi_max64(1, epi_ceil_div(n, s->vector));
    double loaded, summed;
    bool ring = d->c->arch->row_ring && rows_are_contiguous(d);
    weigh(d, &loaded, &summed);
    ring &= 4 * loaded * (double)n / 8 < (200 << 10); /* what eight blocks hold */
    s->cluster = s->rows = 1;
    s->resident = true;
    if (d->plan->flat) {
        shape_flat(d, loaded);
        return EPI_OK;
    }
    if (d->plan->square) {
        shape_square(d, loaded);
        return EPI_OK;
    }
    int per = most_vectors(loaded > 0.25 ? loaded : 0.25, 32, s->vector);
    if (summed > 0)
        shape_sums(d, vectors, loaded, summed, ring);
    else if (ring)
        shape_held(d, vectors, loaded);
    else {
        while (d->c->arch->clusters && s->cluster < 8 && vectors > (int64_t)per * 512 * s->cluster)
            s->cluster *= 2;
        if (vectors <= (int64_t)per * 1024 * s->cluster)
            spread(s, epi_ceil_div(vectors, s->cluster), per);
    }
    if (!s->lanes && summed > 0)
        return epi_fail(err, EPI_ERR_UNSUPPORTED,
                        "its sums down the rows do not fit in registers: %ld columns, %d loaded at a time%s",
                        (long)n, s->vector, n % 8 ? " (8, were they a multiple of 8)" : "");
    if (!s->lanes) { /* too long: read again in every phase */
        s->cluster = 1;
        s->stages = 0;
        s->resident = false;
        s->lanes = 512;
        s->count = (int)epi_ceil_div(vectors, 512);
    }
    if (vectors <= 32 && s->cluster == 1 && !s->stages && !s->ahead && lies_across(d)) {
        s->lanes = power_of_two(epi_ceil_div(vectors, 8));
        s->count = (int)epi_ceil_div(vectors, s->lanes);
    }
    if (d->plan->local_axes && s->lanes < 32) { /* a warp has all of a group, and one row */
        s->lanes = 32;
        s->count = (int)epi_ceil_div(vectors, 32);
    }
    if (s->cluster == 1 && s->lanes < SHORT_BLOCK && !ring && !s->ahead)
        s->rows = (int)epi_min64(SHORT_BLOCK / s->lanes, s->lanes > 32 ? 15 : 1024);
    return EPI_OK;
}

/* ---- its name: rows_128x4_r1_c1_b8192_m1 says all of it ---- */

/* The number that a letter of a name stands for. */
static int *field(epi_rows_shape *s, char letter) {
    switch (letter) {
    case 'r': return &s->rows;
    case 'c': return &s->cluster;
    case 'm': return &s->stages;
    case 't': return &s->threads;
    case 'w': return &s->weights;
    case 'p': return &s->prefetch;
    case 'n': return &s->span;
    default: return NULL;
    }
}

static void name_shape(const epi_rows_shape *shape, char *label, size_t size) {
    epi_rows_shape s = *shape;
    snprintf(label, size, "rows_%dx%d_r%d_c%d_b%ld", s.lanes, s.count, s.rows, s.cluster, (long)s.blocks);
    for (const char *letter = "mtwpn"; *letter; letter++)
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
                     (!s->weights || (s->count <= 8 && s->weights > 0 && s->resident && !flat)) && !s->span &&
                     (!flat || (s->rows == 1 && s->cluster == 1 && !s->stages && s->resident && !s->ahead));
    if (!threads || !blocks || !ring || !registers || s->count <= 0)
        return false;
    if (d->plan->local_axes && s->lanes % 32)
        return false;
    if (d->plan->square && (s->lanes != SQUARE_LANES || s->count != SQUARE_ROWS || s->rows != 1 ||
                            s->cluster != 1 || s->stages || s->ahead))
        return false;
    int64_t columns = (int64_t)s->lanes * s->cluster * s->vector; /* in 32 bits, as the kernel counts them */
    return s->count <= INT32_MAX / columns && (flat || columns * s->count >= d->columns);
}

/* Takes the shape of that name instead of the one that was chosen. Only threads and vectors have to be in it.
 */
static epi_status take_shape(epi_rows_design *d, const char *name, epi_error *err) {
    epi_rows_shape *s = &d->shape;
    int at = 0;
    *s = (epi_rows_shape){.vector = s->vector, .rows = 1, .cluster = 1, .resident = true};
    if (sscanf(name, "rows_%dx%d%n", &s->lanes, &s->count, &at) != 2)
        return epi_fail(err, EPI_ERR_ARGUMENT, "there is no configuration '%s' for rows: rows_LANESxCOUNT",
                        name);
    while (name[at]) {
        int length = read_field(s, name + at);
        if (!length)
            return epi_fail(err, EPI_ERR_ARGUMENT, "'%s' in the configuration '%s' has no meaning", name + at,
                            name);
        at += length;
    }
    if (d->window ? !epi_window_fits(d) : d->walks ? !epi_scan_fits(d) : !fits(d))
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "the configuration '%s' does not fit these rows", name);
    set_blocks(d, s->blocks ? epi_ceil_div(s->blocks, s->cluster) : INT64_MAX);
    return EPI_OK;
}

/* ---- what follows from it ---- */

/* Which tensors wait in registers, and as what: numbers may take half of a thread's registers. */
static void hold_weights(epi_rows_design *d) {
    int weights = 0, numbers = 0, fetched = 0;
    for (int i = 0; i < d->tile.instr_count; i++) {
        d->access[i].held = is_weight(d, i) && weights < d->shape.weights;
        weights += is_weight(d, i);
        numbers += d->access[i].held || d->tile.instrs[i].kind == EPI_INSTR_PARTIAL_COLS;
        fetched += d->access[i].fetched;
    }
    d->words = numbers * d->shape.vector * d->shape.count > (d->sums ? 64 : 32) || (!d->sums && fetched > 1);
}

/* Lays a row out in a stage; returns its bytes, 0 where TMA cannot load it. */
static int64_t lay_out_row(epi_rows_design *d) {
    int64_t bytes = 0;
    for (int i = 0; i < d->tile.instr_count; i++) {
        epi_rows_access *a = &d->access[i];
        if (!a->fetched)
            continue;
        if (!epi_rows_is_contiguous(d, i))
            return 0;
        int64_t columns = epi_min64(d->slice, d->tile.n) / (epi_rows_loads_half(d, i) ? 2 : 1);
        a->staged = bytes;
        a->bytes = epi_round_up(columns * (int64_t)epi_dtype_size(a->ref.type), 128);
        bytes += a->bytes * epi_rows_pieces(a);
    }
    return bytes;
}

/* The ring in shared memory that TMA fills with rows. */
static epi_status lay_out_ring(epi_rows_design *d, epi_error *err) {
    epi_rows_shape *s = &d->shape;
    if ((!s->stages && !s->ahead) || d->plan->flat)
        return EPI_OK;
    int64_t room = ring_room(d);
    s->row_bytes = lay_out_row(d);
    bool can = d->c->arch->row_ring && s->row_bytes && s->rows * s->lanes % 32 == 0;
    /* of rows that share a warp one lane would ask for each piece of each, of a few hundred bytes */
    bool pays = s->lanes >= 32;
    if (s->stages && !can)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "TMA cannot load these rows");
    int64_t at_once = d->sums ? 1 : epi_max64(1, epi_ceil_div(d->most_blocks, SUM_BLOCKS));
    if (!s->stages && can && pays) /* else rows ahead wait in registers */
        s->stages = (int)epi_min64(s->weights ? 2 : 4, room / at_once / (s->rows * s->row_bytes));
    int64_t bytes = s->stages * s->rows * s->row_bytes;
    if (s->stages && d->sums && s->rows > 1) /* at the end the ring takes all sums of the block */
        bytes = epi_max64(bytes, 4 * s->rows * d->slice);
    if (bytes > room)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "the rows do not fit in shared memory");
    d->kernel.shared = (int)bytes;
    return EPI_OK;
}

epi_status epi_rows_make_shape(epi_rows_design *d, epi_error *err) {
    const epi_rows_shape *s = &d->shape;
    epi_status status = EPI_OK;
    if (d->walks)
        (d->window ? epi_window_choose_shape : epi_scan_choose_shape)(d);
    else
        status = choose_shape(d, err);
    if (status == EPI_OK)
        set_blocks(d, 0);
    if (status == EPI_OK && d->c->config)
        status = take_shape(d, d->c->config, err);
    if (status != EPI_OK)
        return status;
    d->slice = slice(s);
    d->ragged = d->plan->flat || epi_emit_grows(d->c, d->tile.n) || d->slice * s->cluster != d->tile.n;
    hold_weights(d);
    status = (d->window ? epi_window_lay_out : d->walks ? epi_scan_lay_out : lay_out_ring)(d, err);
    name_shape(s, d->kernel.label, sizeof d->kernel.label);
    return status;
}
