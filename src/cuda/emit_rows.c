/* emit_rows.c: the kernel that walks over rows, with the steps of the program written out.
 *
 * A value with columns is an array of a vector's elements, at its scale; any other is one number. What a
 * phase needs is written where it is first needed. Tensors that lie in vectors are fetched into registers as
 * a row is taken up (*resident*), or again in every phase where a row is too long for that. */
#include <stdio.h>
#include <string.h>

#include "cuda/emit.h"

enum { SHORT_ROW = 1024 /* columns */, FLAT_BLOCKS = 512, SUM_BLOCKS = 128 };

/* How a tensor's elements are reached. */
typedef struct access {
    epi_ref ref;
    epi_walk rows;
    epi_columns cols;
    int pointer;
    bool vectors;   /* whole vectors lie together */
    int64_t staged; /* where its part of a row lies in a stage of the ring, in bytes */
} access;

typedef struct emitter {
    epi_emit_context *c;
    const epi_graph *g;
    const epi_plan *plan;
    epi_kernel_text *k;
    epi_tile tile;
    epi_rows_shape shape;
    access *access; /* by step */
    int *maker;     /* by value: the step that makes it */
    int *written;   /* by value: the scope it was last written in */
    int scope;      /* the phase being written */
    bool tail;      /* the last vector may be cut: one long row */
    bool fast;      /* every result is stored in 16 bits */
    epi_text body;
} emitter;

#define PUT(...) epi_text_add(&e->body, __VA_ARGS__)

static bool is_full(const emitter *e, int v) {
    return e->tile.values[v].rows && e->tile.values[v].scale != EPI_SCALE_NONE;
}
static bool has_columns(const emitter *e, int v) {
    return e->tile.values[v].scale != EPI_SCALE_NONE;
}
static int width(const emitter *e, epi_scale scale) {
    return scale == EPI_SCALE_COARSE ? e->shape.vector / 2 : e->shape.vector;
}
static epi_name name_of(const emitter *e, int v) {
    epi_name n = epi_emit_name(e->g, e->tile.values[v].node);
    size_t at = strlen(n.text);
    snprintf(n.text + at, sizeof n.text - at, "_%d", v);
    return n;
}
static bool moves(const epi_tile_step *s) {
    return s->kind == EPI_TILE_LOAD || s->kind == EPI_TILE_STORE;
}
static int value_of(const epi_tile_step *s) {
    return s->kind == EPI_TILE_STORE ? s->arg[0] : s->dst;
}

/* ---- access ---- */

/* Do `w` neighbouring columns lie together, at a multiple of w, for every vector of every row? */
static bool lies_in_vectors(const emitter *e, const access *a, int w) {
    const epi_walk *c = &a->cols.walk;
    if (a->cols.part % w && a->cols.two)
        return false;
    for (int i = 0; i < a->rows.count; i++)
        if (a->rows.step[i] % w)
            return false;
    for (int i = 0; i < c->count - 1; i++)
        if (c->step[i] % w)
            return false;
    if (!c->count)
        return w == 1;
    return c->step[c->count - 1] == 1 && (c->size[c->count - 1] % w == 0 || (e->plan->flat && c->count == 1));
}

static void find_access(emitter *e) {
    const int64_t *sizes = e->c->spec->sizes;
    for (int i = 0; i < e->tile.step_count; i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        access *a = &e->access[i];
        if (!moves(s) && s->kind != EPI_TILE_INDEX)
            continue;
        if (s->kind == EPI_TILE_INDEX) /* an index is the offset in a tensor of that one axis */
            a->ref = (epi_ref){.axes = e->g->nodes[s->node].axes, .strides = {1}};
        else
            a->ref = epi_emit_ref(e->c, s->node, s->tensor);
        a->rows = epi_walk_axes(&a->ref, &e->plan->rows, sizes);
        a->cols = epi_columns_of(e->plan, &a->ref, sizes, e->tile.values[value_of(s)].scale);
        a->pointer = moves(s) ? epi_emit_pointer(e->k, s->node, s->tensor) : -1;
    }
}

/* Sets which tensors are reached in vectors of this many columns; answers whether all of them are, that could
 * be at all. */
static bool set_vectors(emitter *e, int vector) {
    bool all = true;
    e->shape.vector = vector;
    for (int i = 0; i < e->tile.step_count; i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        access *a = &e->access[i];
        if (!moves(s) || !has_columns(e, value_of(s)))
            continue;
        int w = width(e, e->tile.values[value_of(s)].scale) / (a->cols.two ? 2 : 1);
        a->vectors = w >= 1 && lies_in_vectors(e, a, w);
        all &= a->vectors || !lies_in_vectors(e, a, 1);
    }
    return all;
}

/* Is a row of the tensor one stretch of memory, of a multiple of 16 bytes? */
static bool lies_whole(const emitter *e, int step) {
    const access *a = &e->access[step];
    epi_scale scale = e->tile.values[value_of(&e->tile.steps[step])].scale;
    int64_t n = scale == EPI_SCALE_COARSE ? e->tile.n / 2 : e->tile.n;
    int64_t bytes = (int64_t)epi_dtype_size(a->ref.type);
    if (a->cols.walk.count != 1 || a->cols.walk.step[0] != 1 || n * bytes % 16)
        return false;
    for (int i = 0; i < a->rows.count; i++)
        if (a->rows.step[i] * bytes % 16)
            return false;
    if (a->cols.two) /* each half is a stretch of its own */
        return 2 * a->cols.walk.size[0] == n && a->cols.part == n / 2 && n / 2 * bytes % 16 == 0;
    return a->cols.walk.size[0] == n;
}

static bool fetched(const emitter *e, int step) {
    const epi_tile_step *s = &e->tile.steps[step];
    return s->kind == EPI_TILE_LOAD && is_full(e, s->dst) && e->access[step].vectors;
}

/* Columns of a row that one block of the cluster has. */
static int64_t slice(const emitter *e) {
    return (int64_t)e->shape.vector * e->shape.lanes * e->shape.count;
}

/* Bytes of a tensor's slice of a row in the ring: of one part, where its columns are in two. */
static int64_t part_bytes(const emitter *e, int step) {
    const access *a = &e->access[step];
    bool coarse = e->tile.values[e->tile.steps[step].dst].scale == EPI_SCALE_COARSE;
    int64_t columns = epi_min64(slice(e), e->tile.n) / (coarse || a->cols.two ? 2 : 1);
    return epi_round_up(columns * (int64_t)epi_dtype_size(a->ref.type), 128);
}

/* Lays a row out in a stage; answers its bytes, 0 where the copy engine cannot fetch it. */
static int64_t lay_out(emitter *e) {
    int64_t bytes = 0;
    for (int i = 0; i < e->tile.step_count; i++) {
        if (!fetched(e, i))
            continue;
        if (!lies_whole(e, i))
            return 0;
        e->access[i].staged = bytes;
        bytes += part_bytes(e, i) * (e->access[i].cols.two ? 2 : 1);
    }
    return bytes;
}

/* Can the copy engine bring the rows, and is it worth it? Short ones come faster to registers. */
static bool rows_lie_whole(const emitter *e) {
    int count = 0;
    for (int i = 0; i < e->tile.step_count; i++) {
        if (fetched(e, i) && !lies_whole(e, i))
            return false;
        count += fetched(e, i);
    }
    return count > 0 && e->tile.n >= SHORT_ROW;
}

/* ---- the shape ---- */

static int64_t round_up(int64_t x, int64_t to) {
    return epi_ceil_div(x, to) * to;
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
        int64_t lanes = round_up(epi_ceil_div(vectors, nv), 32);
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
static void weigh(const emitter *e, double *loaded, double *summed, bool *total) {
    *loaded = *summed = 0;
    *total = false;
    for (int i = 0; i < e->tile.step_count; i++) {
        const epi_tile_step *t = &e->tile.steps[i];
        int v = t->kind == EPI_TILE_LOAD ? t->dst : t->arg[0];
        double share = v >= 0 && e->tile.values[v].scale == EPI_SCALE_COARSE ? 0.5 : 1;
        if (fetched(e, i))
            *loaded += share * (double)epi_dtype_size(e->access[i].ref.type) / 4;
        *summed += t->kind == EPI_TILE_REDUCE_COLS ? share : 0;
        *total |= t->kind == EPI_TILE_REDUCE_ROWS;
    }
}

static void shape_flat(emitter *e, int64_t vectors, double loaded, bool total) {
    epi_rows_shape *s = &e->shape;
    int per = most_vectors(loaded > 0.25 ? loaded : 0.25, 8, s->vector);
    s->lanes = 256;
    s->count = per > 4 ? 4 : per;
    s->blocks = epi_max64(1, epi_ceil_div(vectors, (int64_t)s->lanes * s->count));
    if (total)
        s->blocks = epi_min64(s->blocks, FLAT_BLOCKS);
}

/* Rows that the copy engine brings to shared memory, one at a time and block: small blocks, many of them, so
 * that some load while others compute or store. */
static void shape_held(emitter *e, int64_t vectors) {
    epi_rows_shape *s = &e->shape;
    double loaded, summed;
    bool total;
    weigh(e, &loaded, &summed, &total);
    while (s->cluster < 8 && 4 * loaded * (double)(vectors * s->vector) / s->cluster > (32 << 10))
        s->cluster *= 2;
    spread(s, epi_ceil_div(vectors, s->cluster), vectors > 1024 ? 8 : 4);
    s->stages = 1;
    s->rows = s->cluster == 1 && s->lanes < 64 ? 64 / s->lanes : 1;
}

/* Sums down the rows: a block a multiprocessor, with as many teams as it holds, each with rows ahead. */
static void shape_sums(emitter *e, int64_t vectors, double summed, bool ring) {
    epi_rows_shape *s = &e->shape;
    double loaded, ignored;
    bool total;
    weigh(e, &loaded, &ignored, &total);
    int per = ring ? most_vectors(summed, 16, s->vector) : most_vectors(2 * loaded + summed, 28, s->vector);
    while (e->c->capability >= 90 && s->cluster < 8 && vectors > (int64_t)per * 1024 * s->cluster)
        s->cluster *= 2;
    spread(s, epi_ceil_div(vectors, s->cluster), per);
    s->ahead = true;
}

/* Everything here follows from the columns and the program, never from the rows: so do a row's bits. */
static epi_status choose_shape(emitter *e, epi_error *err) {
    epi_rows_shape *s = &e->shape;
    int64_t n = e->tile.n, m = e->tile.m, vectors = epi_max64(1, epi_ceil_div(n, s->vector));
    double loaded, summed;
    bool total, ring = e->c->capability == 90 && rows_lie_whole(e);
    weigh(e, &loaded, &summed, &total);
    s->cluster = s->rows = 1;
    s->resident = true;
    if (e->plan->flat) {
        shape_flat(e, vectors, loaded, total);
        return EPI_OK;
    }
    int per = most_vectors(loaded > 0.25 ? loaded : 0.25, 32, s->vector);
    int threads = summed > 0 ? (s->vector > 8 ? 512 : 1024) : 256; /* sums: see give_partials */
    if (summed > 0)
        shape_sums(e, vectors, summed, ring);
    else if (ring)
        shape_held(e, vectors);
    else {
        while (e->c->capability >= 90 && s->cluster < 8 && vectors > (int64_t)per * 512 * s->cluster)
            s->cluster *= 2;
        if (vectors <= (int64_t)per * 1024 * s->cluster)
            spread(s, epi_ceil_div(vectors, s->cluster), per);
    }
    if (!s->lanes && summed > 0)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "a sum down rows of %ld columns", (long)n);
    if (!s->lanes) { /* too long: read again in every phase */
        s->cluster = 1;
        s->stages = 0;
        s->resident = false;
        s->lanes = 512;
        s->count = (int)epi_ceil_div(vectors, 512);
    }
    if (s->cluster == 1 && s->lanes < threads && !s->stages)
        s->rows = (int)epi_min64(threads / s->lanes, s->lanes > 32 ? 15 : 1024);
    s->blocks = epi_max64(1, epi_ceil_div(m, s->rows)) * s->cluster;
    if (summed > 0)
        s->blocks = epi_min64(s->blocks, SUM_BLOCKS / s->cluster * s->cluster);
    return EPI_OK;
}

/* The ring in shared memory that the copy engine fills with rows. */
static epi_status give_ring(emitter *e, epi_error *err) {
    epi_rows_shape *s = &e->shape;
    if ((!s->stages && !s->ahead) || e->plan->flat)
        return EPI_OK;
    int64_t room = (int64_t)220 << 10, teams = s->rows * s->lanes / (s->lanes < 32 ? 32 : s->lanes);
    for (int i = 0; i < e->tile.step_count; i++)
        if (e->tile.steps[i].kind == EPI_TILE_REDUCE_COLS) {
            room -= (int64_t)4 * (s->rows - 1) * s->lanes * s->vector; /* put_kernel's sums */
            break;
        }
    s->row_bytes = lay_out(e);
    if (!s->stages) /* rows ahead wait in registers where the copy engine cannot bring them */
        s->stages = e->c->capability == 90 && s->row_bytes && s->rows * s->lanes % 32 == 0
                        ? (int)epi_min64(4, room / epi_max64(1, epi_ceil_div(s->blocks, SUM_BLOCKS)) /
                                                (s->rows * s->row_bytes))
                        : 0;
    else if (e->c->capability != 90 || !s->row_bytes || s->rows * s->lanes % 32 || teams < 1)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "the copy engine cannot bring these rows");
    if (s->stages * s->rows * s->row_bytes > room)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "the rows do not fit in shared memory");
    e->k->shared = (int)(s->stages * s->rows * s->row_bytes);
    return EPI_OK;
}

/* ---- names ---- */

static void name_shape(const epi_rows_shape *s, char *label, size_t size) {
    char ring[16] = "";
    if (s->stages)
        snprintf(ring, sizeof ring, "_m%d", s->stages);
    snprintf(label, size, "rows_%dx%d_r%d_c%d_b%ld%s%s%s", s->lanes, s->count, s->rows, s->cluster,
             (long)s->blocks, ring, s->ahead ? "_a" : "", s->resident ? "" : "_s");
}

/* A shape by the name that name_shape gives; only the first part has to be there. */
static epi_status take_name(emitter *e, const char *name, epi_error *err) {
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
    s->blocks = s->stages = 0;
    for (const char *p = name + at; *p;) {
        long number = 0;
        char letter = 0;
        int used = 0;
        bool counted = sscanf(p, "_%c%ld%n", &letter, &number, &used) == 2;
        letter = p[0] == '_' ? p[1] : 0;
        if (letter && counted != (strchr("rcbm", letter) != NULL))
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
        else if (letter == 'm')
            s->stages = (int)number;
        else if (letter == 's')
            s->resident = false;
        else
            return epi_fail(err, EPI_ERR_ARGUMENT, "'%s' in the configuration '%s' says nothing", p, name);
        p += used;
    }
    bool whole = s->lanes > 0 && (s->lanes % 32 == 0 || (s->lanes < 32 && 32 % s->lanes == 0));
    bool right =
        whole && s->count > 0 && s->rows > 0 && s->stages >= 0 && s->stages <= 8 && s->cluster > 0 &&
        s->cluster <= 8 && s->blocks >= 0 && (int64_t)s->lanes * s->rows <= 1024 &&
        (s->rows <= 15 || s->lanes <= 32) &&
        (s->cluster == 1 || (s->rows == 1 && s->lanes >= s->cluster && e->c->capability >= 90)) &&
        (s->resident || !s->ahead) &&
        (!e->plan->flat || (s->rows == 1 && s->cluster == 1 && !s->stages && s->resident && !s->ahead));
    if (!right || (!e->plan->flat && (int64_t)s->lanes * s->count * s->cluster * s->vector < e->tile.n))
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "the configuration '%s' does not fit these rows", name);
    int64_t all = e->plan->flat ? epi_ceil_div(e->tile.n, (int64_t)s->lanes * s->count * s->vector)
                                : epi_ceil_div(e->tile.m, s->rows);
    all = epi_max64(1, all) * s->cluster;
    s->blocks = s->blocks ? epi_min64(all, round_up(s->blocks, s->cluster)) : all;
    return EPI_OK;
}

/* ---- values ---- */

static void put_column(epi_text *out, const epi_columns *c, const char *index) {
    char half[64];
    snprintf(half, sizeof half, c->two ? "((%s) >> 1)" : "(%s)", index);
    epi_emit_walk(out, &c->walk, half);
    if (c->two)
        epi_text_add(out, " + ((%s) & 1) * %ldLL", index, (long)c->part);
}

/* The offset of the first column of the vector in hand, beyond the row's; `part` for columns in two parts. */
static void put_vector(emitter *e, const access *a, epi_scale scale, int part) {
    char index[32];
    snprintf(index, sizeof index, scale == EPI_SCALE_COARSE || a->cols.two ? "(c / 2)" : "c");
    epi_emit_walk(&e->body, &a->cols.walk, index);
    if (part)
        PUT(" + %ldLL", (long)a->cols.part);
}

static void put_row(emitter *e, const access *a, const char *row) {
    epi_emit_walk(&e->body, &a->rows, row);
}

static void need(emitter *e, int v);

static void put_comment(emitter *e, int node) {
    const epi_node *n = &e->g->nodes[node];
    PUT("   // %s, line %d\n", epi_ops[n->op].text[0] ? epi_ops[n->op].text : "input", n->place.line);
}

/* An operand in an expression on element e, or on one number. */
static epi_name operand(const emitter *e, int v) {
    epi_name n = name_of(e, v);
    size_t at = strlen(n.text);
    if (has_columns(e, v))
        snprintf(n.text + at, sizeof n.text - at, "[e]");
    return n;
}

static void put_map(emitter *e, const epi_tile_step *s, const char *to) {
    epi_name a[3] = {{{0}}};
    for (int i = 0; i < 3 && s->arg[i] >= 0; i++)
        a[i] = operand(e, s->arg[i]);
    PUT("%s = ", to);
    bool by_row = e->fast && s->kind == EPI_TILE_MAP && s->op == EPI_OP_DIV && !has_columns(e, s->arg[1]) &&
                  has_columns(e, s->dst);
    if (by_row)
        PUT("over_%d.of(%s)", s->dst, a[0].text);
    else if (s->kind == EPI_TILE_MULADD)
        PUT("__fmaf_rn(%s%s, %s, %s%s)", s->sign < 0 ? "-" : "", a[0].text, a[1].text,
            s->other < 0 ? "-" : "", a[2].text);
    else
        epi_emit_op(&e->body, s->op, a[0].text, a[1].text, a[2].text);
    PUT(";");
}

/* A load of elements that are in registers already, or that are fetched here. */
static void put_load(emitter *e, int step, const char *name) {
    const epi_tile_step *s = &e->tile.steps[step];
    const access *a = &e->access[step];
    epi_scale scale = e->tile.values[s->dst].scale;
    int w = width(e, scale);
    const char *type = epi_emit_type(a->ref.type);
    bool full = is_full(e, s->dst);
    PUT("        float %s[%d]; ", name, w);
    if (!a->vectors) {
        PUT("EACH(%d) %s[e] = load<%s>(P.ptr[%d], ", w, name, type, a->pointer);
        if (full) {
            put_row(e, a, "row");
            PUT(" + ");
        }
        put_column(&e->body, &a->cols, scale == EPI_SCALE_COARSE ? "c / 2 + e" : "c + e");
        PUT(");");
    } else {
        for (int part = 0; part < (a->cols.two ? 2 : 1); part++) {
            char get[48] = "";
            snprintf(get, sizeof get, a->cols.two ? "get_part(%s, %d)" : "get(%s)", name, part);
            if (full && e->shape.stages) {
                PUT("{ Raw<%s, %d> r; r.staged(from + %ld + %ld * (u32)(l%s)); r.%s; } ", type,
                    a->cols.two ? w / 2 : w, (long)(a->staged + part * part_bytes(e, step)),
                    (long)epi_dtype_size(a->ref.type), scale == EPI_SCALE_COARSE || a->cols.two ? " / 2" : "",
                    get);
                continue;
            }
            if (full && e->shape.resident) {
                PUT("%s_raw%d[i].%s; ", name, part, get);
                continue;
            }
            PUT("{ Raw<%s, %d> r; r.%s(P.ptr[%d], ", type, a->cols.two ? w / 2 : w,
                full ? "stream" : "cached", a->pointer);
            if (full) {
                put_row(e, a, "row");
                PUT(" + ");
            }
            put_vector(e, a, scale, part);
            PUT("); r.%s; } ", get);
        }
    }
    put_comment(e, s->node);
}

/* Is an index along the columns just the column's number, and small enough to be exact in f32? */
static bool counts_columns(const access *a) {
    const epi_walk *c = &a->cols.walk;
    return !a->rows.count && !a->cols.two && c->count == 1 && c->step[0] == 1 && c->size[0] < 1 << 24;
}

/* Writes the step that makes a value of a vector. */
static void put_elements(emitter *e, int step) {
    const epi_tile_step *s = &e->tile.steps[step];
    epi_name name = name_of(e, s->dst);
    int w = width(e, e->tile.values[s->dst].scale);
    char to[160];
    snprintf(to, sizeof to, "%s[e]", name.text);
    if (s->kind == EPI_TILE_LOAD) {
        put_load(e, step, name.text);
        return;
    }
    PUT("        float %s[%d]; ", name.text, w);
    if (e->fast && s->kind == EPI_TILE_MAP && s->op == EPI_OP_DIV && !has_columns(e, s->arg[1]))
        PUT("const Over over_%d(%s); ", s->dst, name_of(e, s->arg[1]).text);
    switch (s->kind) {
    case EPI_TILE_INDEX: {
        const access *a = &e->access[step];
        if (counts_columns(a)) { /* exact: one conversion serves a vector */
            PUT("{ const float first = (float)(%s); EACH(%d) %s = first + (float)e; }",
                e->tile.values[s->dst].scale == EPI_SCALE_COARSE ? "c / 2" : "c", w, to);
            break;
        }
        PUT("EACH(%d) %s = (float)(", w, to);
        if (is_full(e, s->dst) && a->rows.count) {
            put_row(e, a, "row");
            PUT(" + ");
        }
        put_column(&e->body, &a->cols,
                   e->tile.values[s->dst].scale == EPI_SCALE_COARSE ? "c / 2 + e" : "c + e");
        PUT(");");
        break;
    }
    case EPI_TILE_CONST: PUT("EACH(%d) %s = %s;", w, to, epi_emit_node_number(e->c, s->node).text); break;
    case EPI_TILE_PART:
        PUT("EACH(%d) %s = %s[2 * e + %d];", w, to, name_of(e, s->arg[0]).text, s->odd);
        break;
    case EPI_TILE_JOIN:
        PUT("EACH(%d) { %s[2 * e] = %s; %s[2 * e + 1] = %s; }", w / 2, name.text, operand(e, s->arg[0]).text,
            name.text, operand(e, s->arg[1]).text);
        break;
    default: PUT("EACH(%d) ", w); put_map(e, s, to);
    }
    put_comment(e, s->node);
}

/* The value of a vector, written in this scope if it is not yet. */
static void need(emitter *e, int v) {
    if (!has_columns(e, v) || e->written[v] == e->scope)
        return;
    e->written[v] = e->scope;
    const epi_tile_step *s = &e->tile.steps[e->maker[v]];
    for (int a = 0; a < 3; a++)
        if (s->arg[a] >= 0)
            need(e, s->arg[a]);
    put_elements(e, e->maker[v]);
}

/* A value per row that comes from memory. */
static bool loads_row(const emitter *e, int step) {
    const epi_tile_step *s = &e->tile.steps[step];
    return s->kind == EPI_TILE_LOAD && e->tile.values[s->dst].rows && !has_columns(e, s->dst) &&
           e->plan->rows.count;
}

/* Numbers, and values per row: those that are ready at the start of a phase. */
static void put_short(emitter *e, int step, const char *indent) {
    const epi_tile_step *s = &e->tile.steps[step];
    const access *a = &e->access[step];
    epi_name name = name_of(e, value_of(s));
    char to[160];
    snprintf(to, sizeof to, "const float %s", name.text);
    PUT("%s", indent);
    switch (s->kind) {
    case EPI_TILE_LOAD:
        if (e->shape.ahead && loads_row(e, step)) {
            PUT("%s = %s_now;", to, name.text);
            break;
        }
        PUT("%s = %sload<%s>(P.ptr[%d], ", to, loads_row(e, step) ? "on ? " : "", epi_emit_type(a->ref.type),
            a->pointer);
        put_row(e, a, "row");
        PUT(")%s;", loads_row(e, step) ? " : 0.f" : "");
        break;
    case EPI_TILE_INDEX:
        PUT("%s = (float)(", to);
        put_row(e, a, "row");
        PUT(");");
        break;
    case EPI_TILE_CONST: PUT("%s = %s;", to, epi_emit_node_number(e->c, s->node).text); break;
    case EPI_TILE_STORE:
        PUT("if (on && lane == 0%s) store<%s>((void *)P.ptr[%d], ",
            e->shape.cluster > 1 ? " && rank == 0" : "", epi_emit_type(a->ref.type), a->pointer);
        put_row(e, a, "row");
        PUT(", %s);", name.text);
        break;
    default: put_map(e, s, to);
    }
    put_comment(e, s->node);
}

/* ---- the kernel ---- */

static bool of_row(const emitter *e, const epi_tile_step *s) {
    return e->tile.values[value_of(s)].rows;
}

/* Those of a phase: numbers come once, before the rows, as phase -1. */
static void put_shorts(emitter *e, int phase) {
    for (int i = 0; i < e->tile.step_count; i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        if (s->full || s->kind == EPI_TILE_FOLD || (s->dst >= 0 && has_columns(e, s->dst)) ||
            (s->dst < 0 && s->kind != EPI_TILE_STORE))
            continue;
        int own = of_row(e, s) ? s->phase : -1;
        if (own == phase)
            put_short(e, i, phase < 0 ? "  " : "    ");
    }
}

static const char *fold_end(emitter *e, const epi_tile_step *s, char *buffer, size_t size) {
    double count = (double)epi_axes_size(&e->g->nodes[s->node].over, e->c->spec->sizes);
    if (s->op == EPI_OP_MEAN)
        snprintf(buffer, size, "__fdiv_rn(f%d.end(1.f), %s)", s->dst, epi_emit_number(count).text);
    else
        snprintf(buffer, size, "f%d.end(1.f)", s->dst);
    return buffer;
}

/* Is some lane without a vector? */
static bool ragged(const emitter *e) {
    const epi_rows_shape *s = &e->shape;
    return e->plan->flat || (int64_t)s->vector * s->lanes * s->count * s->cluster != e->tile.n;
}

/* Sums per column are in registers, which only unrolled loops can name. */
static bool sums(const emitter *e) {
    for (int i = 0; i < e->tile.step_count; i++)
        if (e->tile.steps[i].kind == EPI_TILE_REDUCE_COLS)
            return true;
    return false;
}

static void put_vector_loop(emitter *e, const char *indent) {
    PUT("%s%s for (int i = 0; i < NV; i++) {\n%s  const %s c = COLUMN(i);%s\n%s  if (%s%s) {\n", indent,
        e->shape.resident && (!e->shape.stages || sums(e) || e->shape.count <= 4) ? "UNROLL" : "UNROLL_SOME",
        indent, e->plan->flat ? "i64" : "int",
        e->shape.stages ? " const int l = (i * LANES + lane) * VEC;" : "", indent, e->plan->flat ? "" : "on",
        ragged(e) ? (e->plan->flat ? "c < N" : " && c < N") : "");
}

static void put_store(emitter *e, int step) {
    const epi_tile_step *s = &e->tile.steps[step];
    const access *a = &e->access[step];
    epi_scale scale = e->tile.values[s->arg[0]].scale;
    epi_name name = name_of(e, s->arg[0]);
    int w = width(e, scale);
    const char *type = epi_emit_type(a->ref.type);
    if (!a->vectors) {
        PUT("        EACH(%d) store<%s>((void *)P.ptr[%d], ", w, type, a->pointer);
        put_row(e, a, "row");
        PUT(" + ");
        put_column(&e->body, &a->cols, scale == EPI_SCALE_COARSE ? "c / 2 + e" : "c + e");
        PUT(", %s[e]);", name.text);
    }
    for (int part = 0; part < (a->cols.two ? 2 : 1) && a->vectors; part++) {
        PUT("        { Raw<%s, %d> r; r.put_part(%s, %d, %d); ", type, a->cols.two ? w / 2 : w, name.text,
            part, a->cols.two ? 2 : 1);
        if (e->tail)
            PUT("if (N - c < VEC) r.write_some((void *)P.ptr[%d], %s, %s); else ", a->pointer,
                scale == EPI_SCALE_COARSE ? "c / 2" : "c",
                scale == EPI_SCALE_COARSE ? "(N - c) / 2" : "N - c");
        PUT("r.write((void *)P.ptr[%d], ", a->pointer);
        put_row(e, a, "row");
        PUT(" + ");
        put_vector(e, a, scale, part);
        PUT("); }");
    }
    PUT("   // %s\n", e->g->tensors[s->tensor >= 0 ? s->tensor : 0].name);
}

static void put_phase(emitter *e, int phase) {
    bool any = false;
    e->scope = phase + 1;
    put_shorts(e, phase);
    for (int i = 0; i < e->tile.step_count; i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        if (!s->full || s->phase != phase || (s->dst >= 0 && s->kind != EPI_TILE_FOLD))
            continue;
        any = true;
        if (s->kind == EPI_TILE_FOLD)
            PUT("    %s f%d; f%d.clear();\n", epi_emit_fold(s->op), s->dst, s->dst);
    }
    if (!any)
        return;
    put_vector_loop(e, "    ");
    for (int i = 0; i < e->tile.step_count; i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        if (!s->full || s->phase != phase || (s->dst >= 0 && s->kind != EPI_TILE_FOLD))
            continue;
        need(e, s->arg[0]);
        epi_name name = name_of(e, s->arg[0]);
        bool coarse = e->tile.values[s->arg[0]].scale == EPI_SCALE_COARSE;
        if (s->kind == EPI_TILE_FOLD)
            PUT("        take_all(f%d, %s);\n", s->dst, name.text);
        else if (s->kind == EPI_TILE_REDUCE_COLS)
            PUT("        EACH(%d) sum%d[i][e].take(%s[e]);\n", width(e, e->tile.values[s->arg[0]].scale), i,
                name.text);
        else if (s->kind == EPI_TILE_REDUCE_ROWS && e->tail)
            PUT("        if (N - c < VEC) take_some(sum%d, %s, %s); else take_all(sum%d, %s);\n", i,
                name.text, coarse ? "(N - c) / 2" : "N - c", i, name.text);
        else if (s->kind == EPI_TILE_REDUCE_ROWS)
            PUT("        take_all(sum%d, %s);\n", i, name.text);
        else
            put_store(e, i);
    }
    PUT("      }\n    }\n");
    for (int i = 0; i < e->tile.step_count; i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        char end[200];
        if (s->kind == EPI_TILE_FOLD && s->phase == phase) {
            PUT("    f%d = fold_row(f%d, &rooms, turn);\n    const float %s = %s;", s->dst, s->dst,
                name_of(e, s->dst).text, fold_end(e, s, end, sizeof end));
            put_comment(e, s->node);
        }
    }
}

/* The registers that hold a row as it lies in memory, and the function that fills them. */
static void put_fetch(emitter *e, const char *suffix) {
    for (int i = 0; i < e->tile.step_count && !(suffix[0] && e->shape.stages); i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        const access *a = &e->access[i];
        if (!fetched(e, i))
            continue;
        int w = width(e, e->tile.values[s->dst].scale) / (a->cols.two ? 2 : 1);
        for (int part = 0; part < (a->cols.two ? 2 : 1); part++)
            PUT("    Raw<%s, %d> %s_raw%d%s[NV];\n", epi_emit_type(a->ref.type), w, name_of(e, s->dst).text,
                part, suffix);
    }
    for (int i = 0; i < e->tile.step_count && e->shape.ahead && suffix[0]; i++)
        if (loads_row(e, i))
            PUT("    float %s%s;\n", name_of(e, e->tile.steps[i].dst).text, suffix);
}

static void put_fill(emitter *e, const char *suffix) {
    put_vector_loop(e, "    ");
    for (int i = 0; i < e->tile.step_count; i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        const access *a = &e->access[i];
        if (!fetched(e, i))
            continue;
        epi_scale scale = e->tile.values[s->dst].scale;
        for (int part = 0; part < (a->cols.two ? 2 : 1); part++) {
            PUT("        ");
            epi_name name = name_of(e, s->dst);
            if (e->tail)
                PUT("if (N - c < VEC) %s_raw%d%s[i].some(P.ptr[%d], %s, %s); else ", name.text, part, suffix,
                    a->pointer, scale == EPI_SCALE_COARSE ? "c / 2" : "c",
                    scale == EPI_SCALE_COARSE ? "(N - c) / 2" : "N - c");
            PUT("%s_raw%d%s[i].stream(P.ptr[%d], ", name.text, part, suffix, a->pointer);
            put_row(e, a, "row");
            PUT(" + ");
            put_vector(e, a, scale, part);
            PUT(");\n");
        }
    }
    PUT("      }\n    }\n");
}

static void put_take_over(emitter *e) {
    for (int i = 0; i < e->tile.step_count; i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        const access *a = &e->access[i];
        for (int part = 0; part < (a->cols.two ? 2 : 1); part++)
            if (fetched(e, i) && !e->shape.stages)
                PUT("    UNROLL for (int i = 0; i < NV; i++) %s_raw%d[i] = %s_raw%d_next[i];\n",
                    name_of(e, s->dst).text, part, name_of(e, s->dst).text, part);
        if (loads_row(e, i))
            PUT("    const float %s_now = %s_next;\n", name_of(e, s->dst).text, name_of(e, s->dst).text);
    }
}

/* The ring: every team has stages of its own, and one thread that asks for its rows, tensor by tensor. */
static void put_barriers(emitter *e) {
    PUT("  extern __shared__ __align__(128) u8 ring[];\n  __shared__ u64 bars[2 * STAGES * TEAMS];\n"
        "  const u32 full = smem_u32(bars + 2 * STAGES * team), empty = full + 8 * STAGES;\n"
        "  if (threadIdx.x %% TEAM == 0) {\n    for (int s = 0; s < STAGES; s++) { mbar_init(full + 8 * s, "
        "1); mbar_init(empty "
        "+ 8 * s, TEAM / 32); }\n    mbar_fence();\n  }\n  __syncthreads();\n");
}

static void put_ring(emitter *e) {
    const char *rank = e->shape.cluster > 1 ? "rank" : "0";
    bool none = e->shape.cluster > 1; /* the last blocks of a cluster may have no columns */
    PUT("  const auto ask = [&](i64 row0, int s) {\n    const int rows = (int)min((i64)(TEAM / LANES), M - "
        "row0);\n"
        "    const int columns = (int)%smin((i64)SLICE, N - %s * SLICE)%s;\n    int bytes = 0;\n",
        none ? "max((i64)0, " : "", rank, none ? ")" : "");
    for (int i = 0; i < e->tile.step_count; i++)
        if (fetched(e, i))
            PUT("    bytes += columns * %ld%s;\n", (long)epi_dtype_size(e->access[i].ref.type),
                e->tile.values[e->tile.steps[i].dst].scale == EPI_SCALE_COARSE ? " / 2" : "");
    PUT("    mbar_expect(full + 8 * s, rows * bytes);\n    for (int r = 0; r < rows%s; r++) {\n"
        "      const i64 row = row0 + r;\n      const u32 to = smem_u32(ring) + ((team * STAGES + s) * (TEAM "
        "/ LANES) + r) * ROW_BYTES;\n",
        none ? " && columns" : "");
    for (int i = 0; i < e->tile.step_count; i++) {
        if (!fetched(e, i))
            continue;
        const access *a = &e->access[i];
        bool half = e->tile.values[e->tile.steps[i].dst].scale == EPI_SCALE_COARSE || a->cols.two;
        for (int part = 0; part < (a->cols.two ? 2 : 1); part++) {
            PUT("      bulk_load(to + %ld, (const char *)P.ptr[%d] + %ld * (",
                (long)(a->staged + part * part_bytes(e, i)), a->pointer, (long)epi_dtype_size(a->ref.type));
            put_row(e, a, "row");
            PUT(" + %ldLL + %s * (SLICE%s)), columns * %ld%s, full + 8 * s);   // %s\n",
                (long)(part * a->cols.part), rank, half ? " / 2" : "", (long)epi_dtype_size(a->ref.type),
                half ? " / 2" : "", epi_emit_name(e->g, e->tile.steps[i].node).text);
        }
    }
    PUT("    }\n  };\n"
        "  if (threadIdx.x %% TEAM == 0)\n    for (int s = 0; s < STAGES; s++)\n"
        "      if (first + s * step < M) ask(first + s * step, s);\n  u32 turns = 0;\n");
}

/* Waits for the row; asks for the rows that the stage of the turn before is now free for. */
static void put_take(emitter *e) {
    PUT("    const int stage = turns %% STAGES;\n"
        "    if (turns && threadIdx.x %% TEAM == 0 && row0 + (STAGES - 1) * step < M) {\n"
        "      const u32 last = turns - 1;\n      mbar_wait(empty + 8 * (last %% STAGES), last / STAGES & "
        "1);\n"
        "      ask(row0 + (STAGES - 1) * step, last %% STAGES);\n    }\n"
        "    mbar_wait(full + 8 * stage, turns / STAGES & 1);\n"
        "    const u32 from = smem_u32(ring) + ((team * STAGES + stage) * (TEAM / LANES) + sub) * "
        "ROW_BYTES;\n");
}

static void put_release(emitter *e) {
    PUT("    __syncwarp();\n    if (threadIdx.x %% 32 == 0) mbar_arrive(empty + 8 * stage);\n    turns++;\n");
}

static void put_row_values(emitter *e, const char *suffix) {
    for (int i = 0; i < e->tile.step_count; i++)
        if (loads_row(e, i)) {
            const access *a = &e->access[i];
            PUT("    %s%s = on ? load<%s>(P.ptr[%d], ", name_of(e, e->tile.steps[i].dst).text, suffix,
                epi_emit_type(a->ref.type), a->pointer);
            put_row(e, a, "row");
            PUT(") : 0.f;\n");
        }
}

static void put_rows(emitter *e) {
    static const char *const set_row = "const i64 row = row0 + sub; const bool on = row < M;";
    bool ahead = e->shape.ahead, ring = e->shape.stages > 0;
    if (ring)
        put_ring(e);
    if (ahead) {
        put_fetch(e, "_next");
        PUT("  {\n    const i64 row0 = first; %s\n    (void)row; (void)on;\n", set_row);
        put_row_values(e, "_next");
        if (!ring)
            put_fill(e, "_next");
        PUT("  }\n");
    }
    PUT("  for (i64 row0 = first; row0 < M; row0 += step) {\n");
    if (e->shape.resident && !ring)
        put_fetch(e, "");
    if (ahead) {
        put_take_over(e);
        PUT("    {\n    const i64 row = row0 + step + sub; const bool on = row < M;\n    (void)row; "
            "(void)on;\n");
        put_row_values(e, "_next");
        if (!ring)
            put_fill(e, "_next");
        PUT("    }\n");
    }
    PUT("    %s\n    (void)row; (void)on;\n", set_row);
    if (ring)
        put_take(e);
    else if (e->shape.resident && !ahead)
        put_fill(e, "");
    for (int p = 0; p < e->tile.phases; p++)
        put_phase(e, p);
    put_shorts(e, e->tile.phases);
    if (ring)
        put_release(e);
    PUT("  }\n");
}

/* One long row, a piece at a time. */
static void put_flat(emitter *e) {
    PUT("  const i64 row = 0; const bool on = true; (void)row; (void)on;\n"
        "  for (i64 piece = (i64)blockIdx.x * PIECE; piece < N; piece += (i64)gridDim.x * PIECE) {\n");
    put_fetch(e, "");
    put_fill(e, "");
    for (int p = 0; p < e->tile.phases; p++)
        put_phase(e, p);
    PUT("  }\n");
}

/* Running values of the reductions that leave. */
static void put_sums(emitter *e) {
    for (int i = 0; i < e->tile.step_count; i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        if (s->kind == EPI_TILE_REDUCE_ROWS)
            PUT("  %s sum%d; sum%d.clear();\n", epi_emit_fold(s->op), i, i);
        if (s->kind == EPI_TILE_REDUCE_COLS) {
            int w = width(e, e->tile.values[s->arg[0]].scale);
            PUT("  %s sum%d[NV][%d]; UNROLL for (int i = 0; i < NV; i++) EACH(%d) sum%d[i][e].clear();\n",
                epi_emit_fold(s->op), i, w, w, i);
        }
    }
}

/* What a block has of a reduction leaves: folded over its rows, in order. */
static void put_partials(emitter *e) {
    for (int i = 0; i < e->tile.step_count; i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        if (s->kind != EPI_TILE_REDUCE_ROWS && s->kind != EPI_TILE_REDUCE_COLS)
            continue;
        int workspace = epi_emit_pointer(e->k, 0, EPI_POINTER_WORKSPACE);
        if (s->kind == EPI_TILE_REDUCE_ROWS)
            PUT("  sum%d = fold_row(sum%d, &rooms, turn);\n"
                "  if (threadIdx.x == 0) sum%d.leave((float *)P.ptr[%d] + %ldLL, blockIdx.x, %ldLL);\n",
                i, i, i, workspace, (long)(e->c->partials[s->node] / 4), (long)e->shape.blocks);
        if (s->kind != EPI_TILE_REDUCE_COLS)
            continue;
        bool coarse = e->tile.values[s->arg[0]].scale == EPI_SCALE_COARSE;
        int w = width(e, e->tile.values[s->arg[0]].scale);
        PUT("  leave_columns<%d>(sum%d, (float *)P.ptr[%d] + %ldLL + (i64)(blockIdx.x / CLUSTER) * %ldLL, "
            "%s, sums);\n",
            w, i, workspace, (long)(e->c->partials[s->node] / 4), (long)(coarse ? e->tile.n / 2 : e->tile.n),
            coarse ? "2" : "1");
    }
}

static void put_kernel(emitter *e) {
    const epi_rows_shape *s = &e->shape;
    bool sums = false, folds = false;
    for (int i = 0; i < e->tile.step_count; i++) {
        sums |= e->tile.steps[i].kind == EPI_TILE_REDUCE_COLS;
        folds |= e->tile.steps[i].kind == EPI_TILE_FOLD || e->tile.steps[i].kind == EPI_TILE_REDUCE_ROWS;
    }
    PUT("extern \"C\" __global__ void __launch_bounds__(%d) rows(const __grid_constant__ Params P) {\n",
        s->lanes * s->rows);
    if (folds)
        PUT("  __shared__ Rooms rooms;\n  int turn = 0;\n");
    if (sums)
        PUT("  __shared__ float sums[ROWS > 1 ? (ROWS - 1) * LANES * VEC : 1];\n");
    PUT("  const int lane = threadIdx.x %% LANES, team = threadIdx.x / TEAM, sub = threadIdx.x %% TEAM / "
        "LANES;\n"
        "  (void)lane; (void)team; (void)sub;\n");
    if (s->cluster > 1)
        PUT("  const int rank = cluster_rank();\n  cluster_sync();   // all blocks are there before one "
            "writes to another\n");
    PUT("  const i64 first = (i64)(blockIdx.x / CLUSTER) * ROWS + team * (TEAM / LANES);\n"
        "  const i64 step = (i64)(gridDim.x / CLUSTER) * ROWS;\n  (void)first; (void)step;\n");
    if (s->stages)
        put_barriers(e);
    PUT("  dependency_start();\n  dependency_wait();\n");
    put_shorts(e, -1);
    put_sums(e);
    e->plan->flat ? put_flat(e) : put_rows(e);
    put_partials(e);
    if (s->cluster > 1)
        PUT("  cluster_sync();   // nobody leaves while another may still write to it\n");
    PUT("}\n");
}

/* Room for what leaves, and how many partials a result has. */
static epi_status give_partials(emitter *e, epi_error *err) {
    for (int i = 0; i < e->tile.step_count; i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        bool rows = s->kind == EPI_TILE_REDUCE_ROWS;
        if (!rows && s->kind != EPI_TILE_REDUCE_COLS)
            continue;
        if (!rows && s->op == EPI_OP_LOGSUMEXP)
            return epi_fail(err, EPI_ERR_UNSUPPORTED, "a log-sum-exp down the rows");
        const epi_rows_shape *shape = &e->shape;
        if (!rows && /* a thread's sums are registers, a block's are static shared memory */
            (shape->count > 32 || (int64_t)4 * (shape->rows - 1) * shape->lanes * shape->vector > 40 << 10))
            return epi_fail(err, EPI_ERR_UNSUPPORTED, "the sums of these rows do not fit on chip");
        int64_t blocks = e->shape.blocks / e->shape.cluster;
        e->c->partials[s->node] = e->c->workspace;
        e->c->workspace += epi_round_up(blocks * (rows ? 1 : e->tile.n) * 8, 64);
        e->c->partial_blocks = blocks;
    }
    return EPI_OK;
}

static epi_status prepare(emitter *e, const epi_step *step, epi_error *err) {
    epi_arena *arena = e->c->arena;
    epi_status status =
        epi_tile_build_rows(arena, e->c->spec, step->plan, step->roots, step->root_count, &e->tile, err);
    if (status != EPI_OK)
        return status;
    e->access = epi_arena_alloc(arena, ((size_t)e->tile.step_count + 1) * sizeof *e->access);
    e->maker = epi_arena_alloc(arena, ((size_t)e->tile.value_count + 1) * sizeof *e->maker);
    e->written = epi_arena_alloc(arena, ((size_t)e->tile.value_count + 1) * sizeof *e->written);
    if (!e->access || !e->maker || !e->written)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    if (!e->plan->flat && e->tile.n > INT32_MAX / 2)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "a row of %ld columns", (long)e->tile.n);
    int smallest = 4;
    e->fast = true;
    for (int i = 0; i < e->tile.step_count; i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        if (s->dst >= 0)
            e->maker[s->dst] = i;
    }
    find_access(e);
    for (int i = 0; i < e->tile.step_count; i++) {
        const epi_tile_step *s = &e->tile.steps[i];
        int size = (int)epi_dtype_size(e->access[i].ref.type);
        if (moves(s) && is_full(e, value_of(s)) && size < smallest)
            smallest = size;
        if (s->kind == EPI_TILE_STORE)
            e->fast &= size == 2;
        e->fast &= s->kind != EPI_TILE_REDUCE_COLS && s->kind != EPI_TILE_REDUCE_ROWS;
    }
    int vector = 16 / smallest * (e->plan->part != EPI_OP_COUNT ? 2 : 1);
    while (vector > 1 && ((!e->plan->flat && e->tile.n % vector) || !set_vectors(e, vector)))
        vector /= 2;
    set_vectors(e, vector);
    e->tail = e->plan->flat && e->tile.n % vector != 0;
    status = choose_shape(e, err);
    if (status == EPI_OK && e->c->config)
        status = take_name(e, e->c->config, err);
    if (status == EPI_OK)
        status = give_ring(e, err);
    return status == EPI_OK ? give_partials(e, err) : status;
}

epi_status epi_emit_rows(epi_emit_context *c, const epi_step *step, epi_kernel_text *k, epi_error *err) {
    *k = (epi_kernel_text){.arch = epi_emit_arch(c)};
    emitter em = {.c = c, .g = c->spec->graph, .plan = step->plan, .k = k}, *e = &em;
    epi_status status = prepare(e, step, err);
    if (status != EPI_OK)
        return status;
    const epi_rows_shape *s = &e->shape;
    k->block = s->lanes * s->rows;
    k->rows = *s;
    snprintf(k->name, sizeof k->name, "rows");
    name_shape(s, k->label, sizeof k->label);
    put_kernel(e);
    epi_text_add(&k->source,
                 "#define EPI_FAST %d\n#define VEC %d\n#define LANES %d\n#define NV %d\n#define ROWS %d\n"
                 "#define CLUSTER %d\n#define TEAM (LANES < 32 ? 32 : LANES)\n#define TEAMS (ROWS * LANES / "
                 "TEAM)\n%sstatic const i64 M = %ldLL, N = %ldLL;\n%s%s%s\n// ---- written for "
                 "this program\n\n",
                 e->fast, s->vector, s->lanes, s->count, s->rows, s->cluster, epi_device_text("base"),
                 (long)e->tile.m, (long)e->tile.n, epi_device_text("ptx"), epi_device_text("folds"),
                 epi_device_text("rows"));
    epi_text_add(&k->source,
                 "struct Params {\n  TMap map[1];\n  const void *ptr[%d];\n  i64 M, group, extra[2];\n};\n",
                 k->pointer_count ? k->pointer_count : 1);
    if (s->stages)
        epi_text_add(&k->source, "#define STAGES %d\n#define ROW_BYTES %ld\n#define SLICE %ld\n", s->stages,
                     (long)s->row_bytes, (long)slice(e));
    epi_text_add(&k->source, e->plan->flat ? "#define PIECE ((i64)LANES * NV * VEC)\n"
                                             "#define COLUMN(i) (piece + ((i)*LANES + lane) * VEC)\n"
                             : s->cluster > 1
                                 ? "#define COLUMN(i) (((rank * NV + (i)) * LANES + lane) * VEC)\n"
                                 : "#define COLUMN(i) (((i)*LANES + lane) * VEC)\n");
    epi_text_add(&k->source, "%s", e->body.data ? e->body.data : "");
    k->source.failed |= e->body.failed;
    epi_text_free(&e->body);
    if (!k->source.failed && !k->full)
        return EPI_OK;
    epi_text_free(&k->source);
    return k->full ? epi_fail(err, EPI_ERR_UNSUPPORTED, "it needs more tensors than one launch takes")
                   : epi_fail(err, EPI_ERR_MEMORY, "out of memory");
}
