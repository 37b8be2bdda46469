/* emit_recurrence.c: scans of products as texts, around device/recurrence.cuh. */
#include "cuda/emit.h"

#include "pass/analyse/recurrence.h"

enum { STRETCH = 64 }; /* states of which one is kept for products with the states of another scan */

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
    put_function(w, "k", of_row, put_factors(w, &r->of, &r->rows, true));
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

epi_status epi_emit_recurrence(epi_emit_context *c, const epi_recurrence *r, epi_kernel_text *k,
                               int64_t *items, epi_error *err) {
    int threads, room = -1;
    writing w = {c, r, k, &k->source};
    int64_t rows = epi_axes_size(&r->rows, c->spec->sizes);
    if (!fits(r, c->sizes, &threads) || epi_emit_grows(c, rows) ||
        (r->over_cols && epi_emit_grows(c, epi_axes_size(&r->cols, c->spec->sizes))))
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "no kernel has such a state of a scan of products");
    *k = (epi_kernel_text){.name = "pass", .block = threads};
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
