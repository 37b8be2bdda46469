/* rows_shape.c: how a kernel over rows reaches its tensors and walks over them.
 *
 * Everything here follows from the columns and the program, never from the number of rows: so do a row's
 * bits. Rows come to registers or, on Hopper, through a ring in shared memory that the copy engine fills. */
#include <stdio.h>
#include <string.h>

#include "cuda/emit_rows.h"

enum {
    SHORT_ROW = 1024,  /* columns that the copy engine is not worth it for */
    SHORT_BLOCK = 128, /* threads of a block of such rows */
    FEW_ROWS = 512,    /* that come to registers: nothing hides the engine's latency */
    FLAT_BLOCKS = 512,
    SUM_BLOCKS = 128,
    USUAL_THREADS = 1024, /* at once on a multiprocessor, with 64 registers each */
    MULTIPROCESSORS = 132 /* of a usual Hopper: a guess is good enough */
};

static bool moves(const epi_instr *s) {
    return s->kind == EPI_INSTR_LOAD || s->kind == EPI_INSTR_STORE;
}
static bool reads_or_moves(const epi_instr *s) {
    return moves(s) || s->kind == EPI_INSTR_TAKE || s->kind == EPI_INSTR_RANDOM;
}

/* ---- access ---- */

/* Do `w` neighbouring columns lie together, at a multiple of w, for every vector of every row? */
static bool lies_in_vectors(const epi_rows_emit *e, const epi_rows_access *a, int w) {
    const epi_walk *c = &a->cols.walk;
    if (a->cols.part % w && a->cols.two)
        return false;
    for (int i = 0; i < a->rows.count; i++)
        if (a->rows.stride[i] % w)
            return false;
    for (int i = 0; i < c->count - 1; i++)
        if (c->stride[i] % w)
            return false;
    if (!c->count)
        return w == 1;
    return c->stride[c->count - 1] == 1 &&
           (c->size[c->count - 1] % w == 0 || (e->plan->flat && c->count == 1));
}

static void find_access(epi_rows_emit *e) {
    const int64_t *sizes = e->c->spec->sizes;
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        epi_rows_access *a = &e->access[i];
        if (!reads_or_moves(s) && s->kind != EPI_INSTR_INDEX)
            continue;
        if (s->kind == EPI_INSTR_INDEX || s->kind == EPI_INSTR_RANDOM) {
            a->ref = epi_ref_of_axes(&e->g->nodes[s->node].axes, sizes);
        } else if (s->kind == EPI_INSTR_TAKE) {
            a->ref = epi_emit_ref(e->c, e->g->nodes[s->node].arg[0], -1);
            a->step = epi_ref_drop(&a->ref, e->g->nodes[s->node].over.at[0]);
        } else
            a->ref = epi_emit_ref(e->c, s->node, s->tensor);
        a->rows = epi_walk_axes(&a->ref, &e->plan->rows, sizes);
        a->cols = epi_columns_of(e->plan, &a->ref, sizes, e->tile.values[epi_rows_value(s)].scale);
        a->pointer = moves(s)                     ? epi_emit_pointer(e->k, s->node, s->tensor)
                     : s->kind == EPI_INSTR_INDEX ? -1
                                                  : epi_emit_pointer(e->k, e->g->nodes[s->node].arg[0], -1);
    }
}

/* Sets which tensors are reached in vectors of this many columns; answers whether all of them are, that could
 * be at all. */
static bool set_vectors(epi_rows_emit *e, int vector) {
    bool all = true;
    e->shape.vector = vector;
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        epi_rows_access *a = &e->access[i];
        if (!reads_or_moves(s) || !epi_rows_has_columns(e, epi_rows_value(s)))
            continue;
        int w = epi_rows_width(e, e->tile.values[epi_rows_value(s)].scale) / (a->cols.two ? 2 : 1);
        a->vectors = w >= 1 && a->step % w == 0 && lies_in_vectors(e, a, w);
        all &= a->vectors || s->kind == EPI_INSTR_RANDOM || !lies_in_vectors(e, a, 1);
    }
    return all;
}

/* Is a row of the tensor one stretch of memory, of a multiple of 16 bytes? */
static bool lies_whole(const epi_rows_emit *e, int step) {
    const epi_rows_access *a = &e->access[step];
    epi_scale scale = e->tile.values[epi_rows_value(&e->tile.instrs[step])].scale;
    int64_t n = scale == EPI_SCALE_COARSE ? e->tile.n / 2 : e->tile.n;
    int64_t bytes = (int64_t)epi_dtype_size(a->ref.type);
    if (a->cols.walk.count != 1 || a->cols.walk.stride[0] != 1 || n * bytes % 16)
        return false;
    for (int i = 0; i < a->rows.count; i++)
        if (a->rows.stride[i] * bytes % 16)
            return false;
    if (a->cols.two) /* each half is a stretch of its own */
        return 2 * a->cols.walk.size[0] == n && a->cols.part == n / 2 && n / 2 * bytes % 16 == 0;
    return a->cols.walk.size[0] == n;
}

bool epi_rows_fetched(const epi_rows_emit *e, int step) {
    const epi_instr *s = &e->tile.instrs[step];
    return s->kind == EPI_INSTR_LOAD && epi_rows_is_full(e, s->dst) && e->access[step].vectors;
}

/* Is it a load, in vectors, of what all rows read? */
static bool is_weight(const epi_rows_emit *e, int step) {
    const epi_instr *s = &e->tile.instrs[step];
    return s->kind == EPI_INSTR_LOAD && !epi_rows_is_full(e, s->dst) && epi_rows_has_columns(e, s->dst) &&
           e->access[step].vectors;
}

/* How many of them the steps before this one have. */
static int weights_before(const epi_rows_emit *e, int step) {
    int count = 0;
    for (int i = 0; i < step; i++)
        count += is_weight(e, i);
    return count;
}

bool epi_rows_holds(const epi_rows_emit *e, int step) {
    return is_weight(e, step) && weights_before(e, step) < e->shape.weights;
}

/* Numbers may take half of a thread's registers. */
bool epi_rows_holds_words(const epi_rows_emit *e) {
    int numbers = 0, fetched = 0;
    for (int i = 0; i < e->tile.instr_count; i++) {
        numbers += epi_rows_holds(e, i) || e->tile.instrs[i].kind == EPI_INSTR_PARTIAL_COLS;
        fetched += epi_rows_fetched(e, i);
    }
    bool sums = epi_rows_sums(e);
    return numbers * e->shape.vector * e->shape.count > (sums ? 64 : 32) || (!sums && fetched > 1);
}

/* Columns of a row that one block of the cluster has. */
int64_t epi_rows_slice(const epi_rows_emit *e) {
    return (int64_t)e->shape.vector * e->shape.lanes * e->shape.count;
}

/* Bytes of a tensor's slice of a row in the ring: of one part, where its columns are in two. */
int64_t epi_rows_part_bytes(const epi_rows_emit *e, int step) {
    const epi_rows_access *a = &e->access[step];
    bool coarse = e->tile.values[e->tile.instrs[step].dst].scale == EPI_SCALE_COARSE;
    int64_t columns = epi_min64(epi_rows_slice(e), e->tile.n) / (coarse || a->cols.two ? 2 : 1);
    return epi_round_up(columns * (int64_t)epi_dtype_size(a->ref.type), 128);
}

/* Lays a row out in a stage; answers its bytes, 0 where the copy engine cannot fetch it. */
static int64_t lay_out(epi_rows_emit *e) {
    int64_t bytes = 0;
    for (int i = 0; i < e->tile.instr_count; i++) {
        if (!epi_rows_fetched(e, i))
            continue;
        if (!lies_whole(e, i))
            return 0;
        e->access[i].staged = bytes;
        bytes += epi_rows_part_bytes(e, i) * (e->access[i].cols.two ? 2 : 1);
    }
    return bytes;
}

/* Can the copy engine bring the rows, and is it worth it? Short ones come faster to registers. */
static bool rows_lie_whole(const epi_rows_emit *e) {
    int count = 0;
    for (int i = 0; i < e->tile.instr_count; i++) {
        if (epi_rows_fetched(e, i) && !lies_whole(e, i))
            return false;
        count += epi_rows_fetched(e, i);
    }
    return count > 0 && e->tile.n >= SHORT_ROW;
}

/* Sums per column are in registers, which only unrolled loops can name. */
bool epi_rows_sums(const epi_rows_emit *e) {
    for (int i = 0; i < e->tile.instr_count; i++)
        if (e->tile.instrs[i].kind == EPI_INSTR_PARTIAL_COLS)
            return true;
    return false;
}

/* ---- the shape ---- */

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
static void weigh(const epi_rows_emit *e, double *loaded, double *summed, bool *total) {
    *loaded = *summed = 0;
    *total = false;
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *t = &e->tile.instrs[i];
        int v = t->kind == EPI_INSTR_LOAD ? t->dst : t->arg[0];
        double share = v >= 0 && e->tile.values[v].scale == EPI_SCALE_COARSE ? 0.5 : 1;
        if (epi_rows_fetched(e, i))
            *loaded += share * (double)epi_dtype_size(e->access[i].ref.type) / 4;
        *summed += t->kind == EPI_INSTR_PARTIAL_COLS ? share : 0;
        *total |= t->kind == EPI_INSTR_PARTIAL_ROWS;
    }
}

static void shape_flat(epi_rows_emit *e, int64_t vectors, double loaded, bool total) {
    epi_rows_shape *s = &e->shape;
    int per = most_vectors(loaded > 0.25 ? loaded : 0.25, 8, s->vector);
    s->lanes = 256;
    s->count = per > 4 ? 4 : per;
    s->blocks = epi_max64(1, epi_ceil_div(vectors, (int64_t)s->lanes * s->count));
    if (total)
        s->blocks = epi_min64(s->blocks, FLAT_BLOCKS);
}

/* Threads and vectors for rows that are read from shared memory: four vectors each, more where rows are long.
 */
static void spread_held(epi_rows_shape *s, int64_t vectors) {
    s->lanes = (int)epi_min64(256, epi_round_up(epi_ceil_div(vectors, 4), 32));
    s->count = (int)epi_ceil_div(vectors, s->lanes);
}

/* How far ahead a row is brought to the L2 cache: as many rows as are worked on at once, if the cache has
 * room for them beside those, and beside what is stored. Where blocks share rows, these are long. */
static int choose_hint(const epi_rows_emit *e, double row_bytes) {
    const epi_rows_shape *s = &e->shape;
    bool stores = false;
    for (int i = 0; i < e->tile.instr_count; i++)
        stores |= e->tile.instrs[i].kind == EPI_INSTR_STORE && e->tile.instrs[i].full;
    double most = (stores ? (s->cluster > 1 ? 8e6 : 13e6) : 26e6) / row_bytes;
    int at_once = MULTIPROCESSORS * ((s->threads ? s->threads : USUAL_THREADS) / s->lanes) / s->cluster;
    return most < at_once ? (int)most : at_once;
}

/* Rows that the copy engine brings to shared memory, one at a time and block: small blocks, many of them, so
 * that some load while others compute or store. */
static void shape_held(epi_rows_emit *e, int64_t vectors, double loaded) {
    epi_rows_shape *s = &e->shape;
    while (s->cluster < 8 && 4 * loaded * (double)(vectors * s->vector) / s->cluster > (64 << 10))
        s->cluster *= 2;
    spread_held(s, epi_ceil_div(vectors, s->cluster));
    s->stages = e->tile.m > FEW_ROWS || s->count > 4; /* the bits are the same either way */
    double bytes = 4 * loaded * (double)epi_rows_slice(e);
    int weights = weights_before(e, e->tile.instr_count);
    int blocks = bytes > 0 ? (int)((220 << 10) / bytes) : 0; /* that shared memory has room for at once */
    if (s->stages && blocks * s->lanes < 1024)
        s->threads = blocks * s->lanes; /* their registers are free to use */
    else if (s->stages && s->count <= 4 && weights > 0 && weights <= 2) {
        s->weights = weights;
        s->threads = USUAL_THREADS / s->lanes * s->lanes;
    }
    for (int i = 0; i < e->tile.instr_count; i++)
        if (s->stages && !s->threads && e->tile.instrs[i].kind == EPI_INSTR_INDEX)
            s->threads = 768 / s->lanes * s->lanes; /* numbers of columns take registers, too */
    if (s->stages)
        s->hint = choose_hint(e, 4 * loaded * (double)e->tile.n);
}

/* Sums down the rows: a block a multiprocessor, with as many teams as it holds, each with rows ahead. */
static void shape_sums(epi_rows_emit *e, int64_t vectors, double loaded, double summed, bool ring) {
    epi_rows_shape *s = &e->shape;
    int per = ring ? most_vectors(summed, 64, s->vector) : most_vectors(2 * loaded + summed, 28, s->vector);
    int threads = ring || s->vector > 8 ? 512 : 1024; /* the sums of a block fit in shared memory */
    per = per > 4 ? 4 : per;
    while (e->c->capability >= 90 && s->cluster < 8 && vectors > (int64_t)per * threads * s->cluster)
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
    bool whole = (int64_t)s->lanes * s->count * s->vector == e->tile.n;
    s->weights =
        ring && s->lanes < 256 && numbers <= (whole ? 64 : 32) && weights_before(e, e->tile.instr_count) > 0;
}

/* Everything here follows from the columns and the program, never from the rows: so do a row's bits. */
static epi_status choose_shape(epi_rows_emit *e, epi_error *err) {
    epi_rows_shape *s = &e->shape;
    int64_t n = e->tile.n, m = e->tile.m, vectors = epi_max64(1, epi_ceil_div(n, s->vector));
    double loaded, summed;
    bool total, ring = e->c->capability == 90 && rows_lie_whole(e);
    weigh(e, &loaded, &summed, &total);
    ring &= 4 * loaded * (double)n / 8 < (200 << 10); /* what eight blocks hold */
    s->cluster = s->rows = 1;
    s->resident = true;
    if (e->plan->flat) {
        shape_flat(e, vectors, loaded, total);
        return EPI_OK;
    }
    int per = most_vectors(loaded > 0.25 ? loaded : 0.25, 32, s->vector);
    if (summed > 0)
        shape_sums(e, vectors, loaded, summed, ring);
    else if (ring)
        shape_held(e, vectors, loaded);
    else {
        while (e->c->capability >= 90 && s->cluster < 8 && vectors > (int64_t)per * 512 * s->cluster)
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
    if (s->cluster == 1 && s->lanes < SHORT_BLOCK && !ring && !s->ahead)
        s->rows = (int)epi_min64(SHORT_BLOCK / s->lanes, s->lanes > 32 ? 15 : 1024);
    s->blocks = epi_max64(1, epi_ceil_div(m, s->rows)) * s->cluster;
    if (summed > 0)
        s->blocks = epi_min64(s->blocks, SUM_BLOCKS / s->cluster * s->cluster);
    return EPI_OK;
}

/* The ring in shared memory that the copy engine fills with rows. */
static epi_status give_ring(epi_rows_emit *e, epi_error *err) {
    epi_rows_shape *s = &e->shape;
    if ((!s->stages && !s->ahead) || e->plan->flat)
        return EPI_OK;
    int64_t room = (int64_t)220 << 10, teams = s->rows * s->lanes / (s->lanes < 32 ? 32 : s->lanes);
    s->row_bytes = lay_out(e);
    if (!s->stages) /* rows ahead wait in registers where the copy engine cannot bring them */
        s->stages = e->c->capability == 90 && s->row_bytes && s->rows * s->lanes % 32 == 0
                        ? (int)epi_min64(s->weights ? 2 : 4,
                                         room / epi_max64(1, epi_ceil_div(s->blocks, SUM_BLOCKS)) /
                                             (s->rows * s->row_bytes))
                        : 0;
    else if (e->c->capability != 90 || !s->row_bytes || s->rows * s->lanes % 32 || teams < 1)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "the copy engine cannot bring these rows");
    int64_t bytes = s->stages * s->rows * s->row_bytes;
    if (s->stages && epi_rows_sums(e) && s->rows > 1) /* at the end the ring takes all sums of the block */
        bytes = epi_max64(bytes, 4 * s->rows * epi_rows_slice(e));
    if (bytes > room)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "the rows do not fit in shared memory");
    e->k->shared = (int)bytes;
    return EPI_OK;
}

/* ---- names ---- */

static void name_part(char *label, size_t size, char letter, int64_t number) {
    size_t at = strlen(label);
    if (number)
        snprintf(label + at, size - at, "_%c%ld", letter, (long)number);
}

static void name_shape(const epi_rows_shape *s, char *label, size_t size) {
    snprintf(label, size, "rows_%dx%d_r%d_c%d_b%ld", s->lanes, s->count, s->rows, s->cluster,
             (long)s->blocks);
    name_part(label, size, 'm', s->stages);
    name_part(label, size, 't', s->threads);
    name_part(label, size, 'w', s->weights);
    name_part(label, size, 'p', s->hint);
    snprintf(label + strlen(label), size - strlen(label), "%s%s", s->ahead ? "_a" : "",
             s->resident ? "" : "_s");
}

/* A shape by the name that name_shape gives; only the first part has to be there. */
static epi_status take_name(epi_rows_emit *e, const char *name, epi_error *err) {
    epi_rows_shape *s = &e->shape;
    int at = 0;
    if (strncmp(name, "rows_", 5))
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "the configuration '%s' is for products: this is rows",
                        name);
    if (sscanf(name, "rows_%dx%d%n", &s->lanes, &s->count, &at) != 2)
        return epi_fail(err, EPI_ERR_ARGUMENT, "there is no configuration '%s' for rows: rows_LANESxCOUNT",
                        name);
    s->ahead = false;
    s->resident = true;
    s->rows = s->cluster = 1;
    s->blocks = s->stages = s->threads = s->weights = s->hint = 0;
    for (const char *p = name + at; *p;) {
        long number = 0;
        char letter = 0;
        int used = 0;
        bool counted = sscanf(p, "_%c%ld%n", &letter, &number, &used) == 2;
        letter = p[0] == '_' ? p[1] : 0;
        if (letter && counted != (strchr("rcbmtwp", letter) != NULL))
            letter = 0;
        if (!counted)
            used = 2;
        number = number > INT32_MAX ? INT32_MAX : number;
        if (letter == 'r')
            s->rows = (int)number;
        else if (letter == 'c')
            s->cluster = (int)number;
        else if (letter == 'b')
            s->blocks = number;
        else if (letter == 'a')
            s->ahead = true;
        else if (letter == 'w')
            s->weights = (int)number;
        else if (letter == 'p')
            s->hint = (int)number;
        else if (letter == 'm')
            s->stages = (int)number;
        else if (letter == 't')
            s->threads = (int)number;
        else if (letter == 's')
            s->resident = false;
        else
            return epi_fail(err, EPI_ERR_ARGUMENT, "'%s' in the configuration '%s' says nothing", p, name);
        p += used;
    }
    bool whole = s->lanes > 0 && (s->lanes % 32 == 0 || (s->lanes < 32 && 32 % s->lanes == 0));
    bool right =
        whole && s->count > 0 && s->rows > 0 && s->stages >= 0 && s->stages <= 8 && s->cluster > 0 &&
        s->cluster <= 8 && s->blocks >= 0 && s->threads >= 0 && s->threads <= 2048 &&
        (int64_t)s->lanes * s->rows <= 1024 && (s->rows <= 15 || s->lanes <= 32) &&
        (s->cluster == 1 || (s->rows == 1 && s->lanes >= s->cluster && e->c->capability >= 90)) &&
        (s->resident || !s->ahead) && s->hint >= 0 && (!s->hint || s->stages) &&
        (!s->weights || (s->count <= 8 && s->weights > 0 && s->resident && !e->plan->flat)) &&
        (!e->plan->flat || (s->rows == 1 && s->cluster == 1 && !s->stages && s->resident && !s->ahead));
    int64_t columns = (int64_t)s->lanes * s->cluster * s->vector; /* in 32 bits, as the kernel counts them */
    right = right && s->count <= INT32_MAX / columns;
    if (!right || (!e->plan->flat && columns * s->count < e->tile.n))
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "the configuration '%s' does not fit these rows", name);
    int64_t all = e->plan->flat ? epi_ceil_div(e->tile.n, (int64_t)s->lanes * s->count * s->vector)
                                : epi_ceil_div(e->tile.m, s->rows);
    all = epi_max64(1, all) * s->cluster;
    s->blocks = s->blocks ? epi_min64(all, epi_round_up(s->blocks, s->cluster)) : all;
    return EPI_OK;
}

/* ---- all of it ---- */

/* The widest vector that all tensors allow that lie in vectors at all. */
static void choose_vector(epi_rows_emit *e) {
    int smallest = 4;
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        int size = (int)epi_dtype_size(e->access[i].ref.type);
        if (moves(s) && epi_rows_is_full(e, epi_rows_value(s)) && size < smallest)
            smallest = size;
    }
    int vector = 16 / smallest * (e->plan->split != EPI_OP_COUNT ? 2 : 1);
    while (vector > 1 && ((!e->plan->flat && e->tile.n % vector) || !set_vectors(e, vector)))
        vector /= 2;
    set_vectors(e, vector);
    e->tail = e->plan->flat && e->tile.n % vector != 0;
}

epi_status epi_rows_choose(epi_rows_emit *e, epi_error *err) {
    if (!e->plan->flat && e->tile.n > INT32_MAX / 2)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "a row of %ld columns", (long)e->tile.n);
    find_access(e);
    choose_vector(e);
    epi_status status = choose_shape(e, err);
    if (status == EPI_OK && e->c->config)
        status = take_name(e, e->c->config, err);
    if (status == EPI_OK)
        status = give_ring(e, err);
    if (status == EPI_OK)
        name_shape(&e->shape, e->k->label, sizeof e->k->label);
    return status;
}
