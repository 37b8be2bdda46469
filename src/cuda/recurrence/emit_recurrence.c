/* emit_recurrence.c: writes scans of products, around device/recurrence.cuh. */
#include <stdio.h>

#include "cuda/emit/emit.h"
#include "cuda/product/emit_gemm.h"
#include "pass/analyse/recurrence.h"

enum { CHUNK_STEPS = 64 }; /* of a chunk, as in device/chunks.cuh */
enum { STRETCH = 64 };     /* states of which one is kept for products with the states of another scan */

typedef struct writing {
    const epi_emit_context *c;
    const epi_recurrence *r;
    epi_kernel_text *k;
    epi_text *out;
} writing;

/* Where an operand's or a result's element is, of batch b at position t: along the state's rows r and columns c, those
 * of them that it has. */
static const char *put_place(const writing *w, const epi_ref *ref) {
    const epi_emit_context *c = w->c;
    const int64_t *sizes = c->spec->sizes;
    int64_t time = epi_ref_stride(ref, w->r->time);
    const struct {
        const epi_axes *axes;
        const char *index;
    } parts[] = {{&w->r->batch, "b"}, {&w->r->rows, "r"}, {&w->r->cols, "c"}};
    const char *all = time ? epi_emit_text(c, "t * %s", epi_emit_count(c, time, "LL")) : "0LL";
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        bool has = false;
        for (int a = 0; a < parts[i].axes->count; a++)
            has |= epi_ref_stride(ref, parts[i].axes->at[a]) != 0;
        epi_walk walk = epi_walk_axes(ref, parts[i].axes, sizes);
        if (has)
            all = epi_emit_text(c, "%s + (%s)", all, epi_emit_walk(c, &walk, parts[i].index));
    }
    return all;
}

static const char *put_load(const writing *w, int node) {
    if (epi_emit_is_number(w->c, node))
        return epi_emit_node_number(w->c, node);
    epi_ref ref = epi_emit_ref(w->c, node, -1);
    return epi_emit_load(w->c, ref.type, epi_emit_pointer(w->k, node, -1), put_place(w, &ref));
}

/* The product of the factors that have some of these axes, or of those that have none. */
static const char *put_factors(const writing *w, const epi_factors *of, const epi_axes *axes, bool with) {
    const char *all = "";
    for (int i = 0; i < of->count; i++)
        if (epi_factor_has(w->c->spec->graph, of->at[i], axes) == with)
            all = epi_emit_text(w->c, "%s%s%s", all, *all ? " * " : "", put_load(w, of->at[i]));
    return *all ? all : "1.f";
}

/* All that it reads and stores, before the text says how many there are. */
static void give_pointers(const writing *w) {
    int operands[EPI_RECURRENCE_OPERANDS], count = epi_recurrence_operands(w->r, operands);
    for (int i = 0; i < count; i++)
        if (!epi_emit_is_number(w->c, operands[i]))
            epi_emit_pointer(w->k, operands[i], -1);
    for (int t = 0; t < EPI_TAKE_COUNT; t++)
        if (w->r->out[t] != EPI_NO_NODE)
            epi_emit_pointer(w->k, w->r->out[t], -1);
}

static void put_function(const writing *w, const char *name, const char *arguments, const char *value) {
    epi_text_add(w->out, "  DEV float %s(%s) const { return %s; }\n", name, arguments, value);
}

static void put_store(const writing *w, const char *name, const char *arguments, int node,
                      const char *value) {
    if (node == EPI_NO_NODE) {
        epi_text_add(w->out, "  DEV void %s(%s, float x) const {}\n", name, arguments);
        return;
    }
    epi_ref ref = epi_emit_ref(w->c, node, -1);
    epi_text_add(w->out,
                 "  DEV void %s(%s, float x) const { store<%s>((void *)P.ptr[%d], %s, %s); }   // %s\n", name,
                 arguments, epi_emit_type(ref.type), epi_emit_pointer(w->k, node, -1), put_place(w, &ref),
                 value, epi_emit_name(w->c, node));
}

/* How a block is laid out: so many lanes share four columns. */
static int lanes_of(int64_t rows) {
    return rows <= 32 ? 4 : rows <= 64 ? 8 : rows <= 128 ? 16 : 32; /* as in the device text */
}

static bool fits(const epi_recurrence *r, const int64_t *sizes, int *threads) {
    enum { PLAIN = 128, MOST = 512 };
    int64_t columns = epi_ceil_div(epi_axes_size(&r->cols, sizes), 4);
    bool all = r->out[EPI_TAKE_PRODUCT] != EPI_NO_NODE && r->over_cols;
    int64_t wanted = epi_round_up(lanes_of(epi_axes_size(&r->rows, sizes)) * columns, 32);
    *threads = !all ? PLAIN : (int)epi_min64(wanted, MOST);
    return r->out[EPI_TAKE_ALONG] == EPI_NO_NODE &&
           (r->out[EPI_TAKE_PRODUCT] == EPI_NO_NODE || (r->over_rows && (!all || wanted <= MOST)));
}

static const char *truth(bool is) {
    return is ? "true" : "false";
}

static void put_shape(const writing *w, const char *name, int threads) {
    const epi_emit_context *c = w->c;
    const epi_recurrence *r = w->r;
    const epi_graph *g = c->spec->graph;
    const epi_axes time = {1, {r->time}};
    int decay = epi_factor_has(g, r->decay, &r->rows) ? 1 : epi_factor_has(g, r->decay, &r->cols) ? 2 : 0;
    epi_text_add(w->out,
                 "struct %s {\n  const Params &P;\n  static constexpr int THREADS = %d, ROWS = %ld, DECAY = "
                 "%d, AHEAD = %d, "
                 "STRETCH = %d;\n  static constexpr bool BACK = %s, FIRST = %s, ADDED = %s, SUMS = %s, LAST "
                 "= %s, ALL = %s;\n"
                 "  DEV i64 steps() const { return %s; }\n  DEV int cols() const { return %s; }\n",
                 name, threads, (long)epi_axes_size(&r->rows, c->spec->sizes), decay, r->decay_ahead, STRETCH,
                 truth(r->back), truth(r->first != EPI_NO_NODE), truth(r->added != EPI_NO_NODE),
                 truth(r->out[EPI_TAKE_DOWN] != EPI_NO_NODE), truth(r->out[EPI_TAKE_LAST] != EPI_NO_NODE),
                 truth(r->over_cols), epi_emit_count(c, epi_axes_size(&time, c->spec->sizes), "LL"),
                 epi_emit_int(c, epi_axes_size(&r->cols, c->spec->sizes)));
}

/* What the device text asks of a scan. */
static void put_scan(const writing *w, const char *name, int threads) {
    const epi_recurrence *r = w->r;
    const epi_factors *by = &r->by[EPI_TAKE_DOWN];
    const char *of_row = "i64 b, i64 t, int r", *of_column = "i64 b, i64 t, int c",
               *of_state = "i64 b, int r, int c";
    bool by_column = epi_factor_has(w->c->spec->graph, r->decay, &r->cols);
    int sum = r->out[r->other ? EPI_TAKE_PRODUCT : EPI_TAKE_DOWN];
    put_shape(w, name, threads);
    put_function(w, "decay", by_column ? of_column : of_row, put_load(w, r->decay));
    put_function(w, "k", of_row, r->of.count ? put_factors(w, &r->of, &r->rows, true) : "0.f");
    put_function(w, "v", of_column, put_factors(w, &r->of, &r->rows, false));
    put_function(w, "q", of_row, put_factors(w, by, &r->rows, true));
    put_function(w, "first", of_state, r->first != EPI_NO_NODE ? put_load(w, r->first) : "0.f");
    put_function(w, "added", of_state, r->added != EPI_NO_NODE ? put_load(w, r->added) : "0.f");
    put_store(w, "out", of_column, sum, epi_emit_text(w->c, "x * (%s)", put_factors(w, by, &r->rows, false)));
    put_store(w, "last", of_state, r->out[EPI_TAKE_LAST], "x");
    epi_text_add(w->out, "};\n");
}

/* Bytes of the states that a product keeps, and of a stretch of them, at the largest sizes. */
static int64_t room_of(const epi_emit_context *c, const epi_recurrence *r, int threads) {
    const int64_t *most = c->spec->open ? c->spec->open->largest : c->sizes;
    int64_t rows = epi_axes_size(&r->rows, most), lanes = lanes_of(rows), columns = threads / lanes * 4;
    int64_t states = epi_axes_size(&r->batch, most) * epi_ceil_div(epi_axes_size(&r->cols, most), columns) *
                     (epi_ceil_div(epi_axis_size(r->time, most), STRETCH) + STRETCH);
    return states * epi_round_up(rows, 4 * lanes) * columns * (int64_t)sizeof(float);
}

/* ---- by chunks, on tensor cores ---- */

/* What a chunk is made of: tiles of 16 bits. Other factors are numbers of a step. */
typedef struct chunks {
    int q, k, v, columns, warps, shared;
    bool wgmma;
} chunks;

/* Are a value's elements along these axes neighbours, in runs from multiples of so many elements on? */
static bool lies_along(const writing *w, const epi_ref *ref, const epi_axes *axes, int64_t run) {
    const int64_t *sizes = w->c->spec->sizes;
    const epi_axes *others[] = {&w->r->batch, axes == &w->r->rows ? &w->r->cols : &w->r->rows};
    epi_walk along = epi_walk_axes(ref, axes, sizes);
    bool lies = along.count == 1 && along.stride[0] == 1 && epi_ref_stride(ref, w->r->time) % run == 0;
    for (int i = 0; i < 2 && lies; i++) {
        epi_walk other = epi_walk_axes(ref, others[i], sizes);
        lies = epi_walk_aligned(&other, run);
    }
    return lies;
}

static bool is_tile(const writing *w, int node, const epi_axes *axes) {
    if (epi_emit_is_number(w->c, node))
        return false;
    epi_ref ref = epi_emit_ref(w->c, node, -1);
    return ref.type == EPI_BF16 && lies_along(w, &ref, axes, 8);
}

/* The one of the factors that has these axes; EPI_NO_NODE: none has, or several have. */
static int only_one(const writing *w, const epi_factors *of, const epi_axes *axes) {
    int found = EPI_NO_NODE, count = 0;
    for (int i = 0; i < of->count; i++)
        if (epi_factor_has(w->c->spec->graph, of->at[i], axes)) {
            found = of->at[i];
            count++;
        }
    return count == 1 ? found : EPI_NO_NODE;
}

/* Columns of a block: as many as accumulators hold beside the rows; by mma.sync fewer where blocks would be too few. */
static int columns_of(const writing *w, bool wgmma, int64_t rows, int64_t cols) {
    const epi_emit_context *c = w->c;
    if (wgmma)
        return rows <= 64 && cols > 64 ? 128 : 64;
    int64_t batches = epi_axes_size(&w->r->batch, c->spec->sizes);
    int columns = rows <= 64 ? 128 : rows <= 128 ? 64 : 32;
    while (columns > 16 && columns / 2 >= cols)
        columns /= 2;
    while (columns > 16 && !epi_emit_grows(c, batches) &&
           batches * epi_ceil_div(cols, columns) < c->multiprocessors)
        columns /= 2;
    return columns;
}

/* Bytes of shared memory, as in the device text. */
static int64_t chunk_bytes(int64_t rows, int64_t columns) {
    int64_t row = epi_round_up(2 * rows, 128), column = epi_round_up(2 * columns, 128);
    return 2 * CHUNK_STEPS * (2 * row + column) + rows * column +
           (3 * CHUNK_STEPS + 4 * 16 * 16) * (int64_t)sizeof(float);
}

/* Is an axis of the state one that wgmma takes? Not by the number of batches: mma.sync's bits are others. */
static bool has_wide(const writing *w, int64_t size) {
    return w->c->arch->wgmma && (size == 64 || size == 128);
}

/* Are its steps so few that an int counts them, and those of the chunk behind? */
static bool has_int_steps(const writing *w) {
    return epi_axis_size(w->r->time, w->c->spec->sizes) <= INT32_MAX - CHUNK_STEPS;
}

/* Is it one by chunks? Its operands are of bf16 (f16 has too few exponents for a state), and a step has one decay. */
static bool find_chunks(const writing *w, chunks *out) {
    enum { FEW = 16, MOST_ROWS = 256, RESERVED = 1024 };
    const epi_emit_context *c = w->c;
    const epi_recurrence *r = w->r;
    const epi_graph *g = c->spec->graph;
    const epi_axes time = {1, {r->time}};
    const epi_factors *by = &r->by[EPI_TAKE_DOWN];
    int64_t rows = epi_axes_size(&r->rows, c->spec->sizes), cols = epi_axes_size(&r->cols, c->spec->sizes),
            steps = epi_axes_size(&time, c->spec->sizes);
    int sum = r->out[EPI_TAKE_DOWN];
    if (c->exact || r->other || epi_factor_has(g, r->decay, &r->rows) ||
        epi_factor_has(g, r->decay, &r->cols) || rows % 16 || rows > MOST_ROWS || cols % 8 ||
        epi_emit_grows(c, cols) || !has_int_steps(w) || (!epi_emit_grows(c, steps) && steps <= FEW))
        return false;
    bool wgmma = has_wide(w, rows) && cols > 32;
    *out = (chunks){.q = only_one(w, by, &r->rows),
                    .k = only_one(w, &r->of, &r->rows),
                    .v = only_one(w, &r->of, &r->cols),
                    .columns = columns_of(w, wgmma, rows, cols),
                    .wgmma = wgmma};
    bool are = out->k != EPI_NO_NODE && out->v != EPI_NO_NODE && out->k != out->v &&
               is_tile(w, out->k, &r->rows) && is_tile(w, out->v, &r->cols);
    if (are && sum != EPI_NO_NODE) {
        epi_ref to = epi_emit_ref(c, sum, -1);
        are = out->q != EPI_NO_NODE && is_tile(w, out->q, &r->rows) &&
              (to.type == EPI_BF16 || to.type == EPI_F32) && lies_along(w, &to, &r->cols, 2);
        for (int i = 0; i < by->count; i++)
            are &= !epi_factor_has(g, by->at[i], &r->cols);
    }
    out->warps = out->columns >= 64 && !wgmma ? 8 : 4;
    out->shared = (int)chunk_bytes(rows, out->columns);
    return are && out->shared <= c->arch->shared_bytes - RESERVED;
}

/* A row of a tile. */
static void put_row(const writing *w, const char *name, int node, const char *along) {
    if (node == EPI_NO_NODE) {
        epi_text_add(w->out, "  DEV const u16 *%s(i64 b, i64 t) const { return 0; }\n", name);
        return;
    }
    epi_ref ref = epi_emit_ref(w->c, node, -1);
    epi_text_add(w->out,
                 "  DEV const u16 *%s(i64 b, i64 t) const { const int %s = 0; return (const u16 "
                 "*)P.ptr[%d] + %s; }   // %s\n",
                 name, along, epi_emit_pointer(w->k, node, -1), put_place(w, &ref),
                 epi_emit_name(w->c, node));
}

/* The product of the factors that are numbers of a step. */
static const char *put_numbers(const writing *w, const epi_factors *of) {
    epi_factors numbers = {0};
    const epi_graph *g = w->c->spec->graph;
    for (int i = 0; i < of->count; i++)
        if (!epi_factor_has(g, of->at[i], &w->r->rows) && !epi_factor_has(g, of->at[i], &w->r->cols))
            numbers.at[numbers.count++] = of->at[i];
    return put_factors(w, &numbers, &w->r->rows, false);
}

static void put_chunks(const writing *w, const chunks *h) {
    const epi_emit_context *c = w->c;
    const epi_recurrence *r = w->r;
    const epi_axes time = {1, {r->time}};
    int sum = r->out[EPI_TAKE_DOWN];
    const char *of_step = "i64 b, i64 t", *of_state = "i64 b, int r, int c";
    epi_text_add(w->out,
                 "struct S {\n  const Params &P;\n  static constexpr int ROWS = %ld, COLS = %ld, COLUMNS = "
                 "%d, WARPS = %d, AHEAD = %d;\n  static constexpr bool BACK = %s, FIRST = %s, ADDED = %s, "
                 "SUMS = %s, LAST "
                 "= %s;\n  DEV i64 steps() const { return %s; }\n",
                 (long)epi_axes_size(&r->rows, c->spec->sizes), (long)epi_axes_size(&r->cols, c->spec->sizes),
                 h->columns, h->warps, r->decay_ahead, truth(r->back), truth(r->first != EPI_NO_NODE),
                 truth(r->added != EPI_NO_NODE), truth(sum != EPI_NO_NODE),
                 truth(r->out[EPI_TAKE_LAST] != EPI_NO_NODE),
                 epi_emit_count(c, epi_axes_size(&time, c->spec->sizes), "LL"));
    put_row(w, "q", h->q, "r");
    put_row(w, "k", h->k, "r");
    put_row(w, "v", h->v, "c");
    put_function(w, "decay", of_step, put_load(w, r->decay));
    put_function(w, "factor", of_step, put_numbers(w, &r->of));
    put_function(w, "scale", of_step, put_numbers(w, &r->by[EPI_TAKE_DOWN]));
    put_function(w, "first", of_state, r->first != EPI_NO_NODE ? put_load(w, r->first) : "0.f");
    put_function(w, "added", of_state, r->added != EPI_NO_NODE ? put_load(w, r->added) : "0.f");
    if (sum != EPI_NO_NODE) {
        epi_ref to = epi_emit_ref(c, sum, -1);
        epi_text_add(w->out,
                     "  DEV void out(i64 b, i64 t, int c, float x, float y) const { store_pair<%s>((void "
                     "*)P.ptr[%d], %s, x, y); }   // %s\n",
                     epi_emit_type(to.type), epi_emit_pointer(w->k, sum, -1), put_place(w, &to),
                     epi_emit_name(c, sum));
    } else {
        epi_text_add(w->out, "  DEV void out(i64, i64, int, float, float) const {}\n");
    }
    put_store(w, "last", of_state, r->out[EPI_TAKE_LAST], "x");
    epi_text_add(w->out, "};\n");
}

/* The text up to what is written for this scan: what is common, and its products by wgmma, with so many columns of
 * the state, or by mma.sync. */
static void put_head(const writing *w, const char *name, int64_t columns, bool wgmma) {
    const epi_emit_context *c = w->c;
    const char *products = epi_emit_text(c, "%s_%s", name, wgmma ? "sm90" : "mma");
    epi_text_add(&w->k->source, "#define HALF BF16\n");
    epi_emit_begin(c, w->k, epi_emit_text(c, "%s%s", epi_device_text("mma"), epi_device_text("chunks")));
    if (wgmma) {
        epi_emit_wgmma(w->out, EPI_BF16, EPI_BF16, "wgmma_score", 32, 64, false, "0, 0");
        epi_emit_wgmma(w->out, EPI_BF16, EPI_BF16, "wgmma_score", 16, 32, false, "0, 0");
        epi_emit_wgmma(w->out, EPI_BF16, EPI_BF16, "wgmma_value", 32, 64, true, "1");
        epi_emit_wgmma(w->out, EPI_BF16, EPI_BF16, "wgmma_state", 32, 64, false, "0, 1");
        epi_emit_wgmma(w->out, EPI_BF16, EPI_BF16, "wgmma_rows", (int)columns / 2, (int)columns, true, "1");
        epi_text_add(w->out, "%s", epi_device_text("chunks_sm90"));
    }
    epi_text_add(w->out, "%s%s", epi_device_text(name), epi_device_text(products));
}

/* `together`: blocks that a multiprocessor is to hold at once. */
static void put_entry(const writing *w, int together, const char *call) {
    epi_text_add(
        &w->k->source,
        "// line %d\nextern \"C\" __global__ void __launch_bounds__(%d, %d) "
        "pass(const __grid_constant__ Params P) {\n  extern __shared__ __align__(1024) u8 memory[];\n"
        "  dependency_start();\n  dependency_wait();\n  %s\n}\n",
        w->c->spec->graph->nodes[w->r->scan].place.line, w->k->block, together, call);
}

static epi_status emit_chunks(const writing *w, const chunks *h, int64_t *items, epi_error *err) {
    epi_kernel_text *k = w->k;
    const epi_emit_context *c = w->c;
    *k = (epi_kernel_text){.name = "pass", .block = 32 * h->warps, .shared = h->shared};
    snprintf(k->label, sizeof k->label, "by chunks of %d steps and %d columns, by %s", CHUNK_STEPS,
             h->columns, h->wgmma ? "wgmma" : "mma.sync");
    *items = epi_axes_size(&w->r->batch, c->sizes) *
             epi_ceil_div(epi_axes_size(&w->r->cols, c->sizes), h->columns);
    give_pointers(w);
    put_head(w, "chunks_sums", h->columns, h->wgmma);
    put_chunks(w, h);
    put_entry(w, 2, "walk_chunks<S, Chunks<S>>(S{P}, P.extra[0] / 256, memory);");
    return epi_emit_end(k, err);
}

/* ---- products with the states of a scan the other way, by chunks ---- */

typedef struct chunks_product {
    int x, z, u, w; /* along rows and along columns: of the other scan, and of this one */
    int warps, shared;
    bool wgmma;
    int64_t image; /* bytes of a state of 16 bits */
} chunks_product;

/* Is the decay that this scan has at a step the one that the other has at its next one? */
static bool has_that_decay(const writing *w) {
    const epi_recurrence *r = w->r, *o = r->other;
    bool still = epi_emit_is_number(w->c, r->decay);
    if (!still) {
        epi_ref ref = epi_emit_ref(w->c, r->decay, -1);
        still = epi_ref_stride(&ref, r->time) == 0;
    }
    return r->decay == o->decay && r->back != o->back && r->first == EPI_NO_NODE &&
           (still || r->decay_ahead - o->decay_ahead == (o->back ? -1 : 1));
}

static bool find_chunks_product(const writing *w, chunks_product *out) {
    enum { FOUR_WARPS = 8192, EIGHT_WARPS = 16384, SUMS = 1 << 14, RESERVED = 1024 };
    const epi_emit_context *c = w->c;
    const epi_recurrence *r = w->r, *o = r->other;
    const epi_graph *g = c->spec->graph;
    int64_t rows = epi_axes_size(&r->rows, c->spec->sizes), cols = epi_axes_size(&r->cols, c->spec->sizes);
    if (c->exact || !o || !r->over_rows || !r->over_cols || epi_emit_grows(c, cols) || !has_int_steps(w) ||
        epi_factor_has(g, r->decay, &r->rows) || epi_factor_has(g, r->decay, &r->cols) ||
        !has_that_decay(w) || rows % 16 || cols % 16 || rows * cols > EIGHT_WARPS ||
        (rows * cols > FOUR_WARPS && cols % 64))
        return false;
    for (int t = 0; t < EPI_TAKE_COUNT; t++)
        if (t != EPI_TAKE_PRODUCT && r->out[t] != EPI_NO_NODE)
            return false;
    *out = (chunks_product){.x = only_one(w, &o->of, &r->rows),
                            .z = only_one(w, &o->of, &r->cols),
                            .u = only_one(w, &r->of, &r->rows),
                            .w = only_one(w, &r->of, &r->cols),
                            .warps = rows * cols > FOUR_WARPS ? 8 : 4,
                            .wgmma = has_wide(w, rows) && has_wide(w, cols)};
    const int nodes[] = {out->x, out->u, out->z, out->w};
    int64_t row = epi_round_up(2 * rows, 128), column = epi_round_up(2 * cols, 128);
    out->image = rows * column;
    out->shared = (int)(2 * CHUNK_STEPS * (row + column) + 2 * out->image + SUMS);
    bool are = out->shared <= c->arch->shared_bytes - RESERVED && out->x != out->z && out->u != out->w;
    for (int i = 0; i < 4 && are; i++)
        are = nodes[i] != EPI_NO_NODE && is_tile(w, nodes[i], i < 2 ? &r->rows : &r->cols);
    return are;
}

static void put_chunks_product(const writing *w, const chunks_product *h) {
    const epi_emit_context *c = w->c;
    const epi_recurrence *r = w->r, *o = r->other;
    const epi_axes time = {1, {r->time}};
    writing other = {c, o, w->k, w->out};
    const char *of_step = "i64 b, i64 t", *of_state = "i64 b, int r, int c";
    epi_text_add(w->out,
                 "struct S {\n  const Params &P;\n  static constexpr int ROWS = %ld, COLS = %ld, WARPS = %d, "
                 "AHEAD = %d;\n  static constexpr bool BACK = %s, FIRST = %s, ADDED = %s, LATE = %s;\n"
                 "  DEV i64 steps() const { return %s; }\n",
                 (long)epi_axes_size(&r->rows, c->spec->sizes), (long)epi_axes_size(&r->cols, c->spec->sizes),
                 h->warps, o->decay_ahead, truth(o->back), truth(o->first != EPI_NO_NODE),
                 truth(o->added != EPI_NO_NODE), truth(r->added != EPI_NO_NODE),
                 epi_emit_count(c, epi_axes_size(&time, c->spec->sizes), "LL"));
    put_row(w, "x", h->x, "r");
    put_row(w, "z", h->z, "c");
    put_row(w, "u", h->u, "r");
    put_row(w, "w", h->w, "c");
    put_function(w, "decay", of_step, put_load(w, r->decay));
    put_function(w, "factor", of_step, put_numbers(&other, &o->of));
    put_function(w, "factor_own", of_step, put_numbers(w, &r->of));
    put_function(w, "first", of_state, o->first != EPI_NO_NODE ? put_load(w, o->first) : "0.f");
    put_function(w, "added", of_state, o->added != EPI_NO_NODE ? put_load(w, o->added) : "0.f");
    put_function(w, "late", of_state, r->added != EPI_NO_NODE ? put_load(w, r->added) : "0.f");
    put_store(w, "out", of_step, r->out[EPI_TAKE_PRODUCT], "x");
    epi_text_add(w->out, "};\n");
}

/* Bytes of the states before chunks, at the largest sizes. */
static int64_t chunks_room(const epi_emit_context *c, const epi_recurrence *r, const chunks_product *h) {
    const int64_t *most = c->spec->open ? c->spec->open->largest : c->sizes;
    return epi_axes_size(&r->batch, most) * epi_ceil_div(epi_axis_size(r->time, most), CHUNK_STEPS) *
           h->image;
}

static epi_status emit_chunks_product(epi_emit_context *c, const writing *w, const chunks_product *h,
                                      int64_t *items, epi_error *err) {
    epi_kernel_text *k = w->k;
    *k = (epi_kernel_text){.name = "pass", .block = 32 * h->warps, .shared = h->shared};
    snprintf(k->label, sizeof k->label, "by chunks of %d steps, by %s", CHUNK_STEPS,
             h->wgmma ? "wgmma" : "mma.sync");
    *items = epi_axes_size(&w->r->batch, c->sizes);
    give_pointers(w);
    int room = epi_emit_place(k, c->workspace);
    c->workspace += epi_round_up(chunks_room(c, w->r, h), 256);
    put_head(w, "chunks_product", epi_axes_size(&w->r->cols, c->spec->sizes), h->wgmma);
    put_chunks_product(w, h);
    put_entry(
        w, 1,
        epi_emit_text(
            c,
            "static_assert(sizeof(ChunksProduct<S>::Memory) + ChunksProduct<S>::FLOATS <= "
            "%d, \"\");\n"
            "  walk_chunks_product<S, ChunksProduct<S>>(S{P}, P.extra[0] / 256, (u8 *)P.ptr[%d], memory);",
            h->shared, room));
    return epi_emit_end(k, err);
}

epi_status epi_emit_recurrence(epi_emit_context *c, const epi_recurrence *r, epi_kernel_text *k,
                               int64_t *items, epi_error *err) {
    int threads, room = -1;
    writing w = {c, r, k, &k->source};
    chunks h;
    chunks_product p;
    int64_t rows = epi_axes_size(&r->rows, c->spec->sizes);
    if (!epi_emit_grows(c, rows) && find_chunks(&w, &h))
        return emit_chunks(&w, &h, items, err);
    if (!epi_emit_grows(c, rows) && find_chunks_product(&w, &p))
        return emit_chunks_product(c, &w, &p, items, err);
    if (!fits(r, c->sizes, &threads) || epi_emit_grows(c, rows) ||
        (r->over_cols && epi_emit_grows(c, epi_axes_size(&r->cols, c->spec->sizes))))
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "no kernel has such a state of a scan of products");
    *k = (epi_kernel_text){.name = "pass", .block = threads, .label = "step by step"};
    *items = epi_axes_size(&r->batch, c->sizes) *
             epi_ceil_div(epi_axes_size(&r->cols, c->sizes), 4 * (threads / lanes_of(rows)));
    give_pointers(&w);
    if (r->other) {
        room = epi_emit_place(k, c->workspace);
        c->workspace += epi_round_up(room_of(c, r, threads), 256);
    }
    epi_emit_begin(c, k, epi_device_text("recurrence"));
    put_scan(&w, "S", threads);
    if (r->other) {
        writing other = {c, r->other, k, &k->source};
        put_scan(&other, "O", threads);
    }
    epi_text_add(&k->source,
                 "// line %d\nextern \"C\" __global__ void __launch_bounds__(%d) "
                 "pass(const __grid_constant__ Params P) {\n  dependency_start();\n  dependency_wait();\n",
                 c->spec->graph->nodes[r->scan].place.line, threads);
    if (r->other)
        epi_text_add(&k->source,
                     "  recurrence_product(S{P}, O{P}, (float *)P.ptr[%d], P.extra[0] / 256);\n}\n", room);
    else
        epi_text_add(&k->source, "  recurrence(S{P}, P.extra[0] / 256);\n}\n");
    return epi_emit_end(k, err);
}
