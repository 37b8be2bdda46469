/* emit_recurrence.c: scans of products as texts, around device/recurrence.cuh. */
#include "cuda/emit.h"

#include "pass/analyse/recurrence.h"

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

static void put_shape(const writing *w) {
    const epi_emit_context *c = w->c;
    const epi_recurrence *r = w->r;
    const epi_graph *g = c->spec->graph;
    const epi_axes time = {1, {r->time}};
    epi_text_add(
        w->out,
        "struct S {\n  const Params &P;\n  static constexpr int ROWS = %ld, DECAY = %d, AHEAD = %d;\n"
        "  static constexpr bool BACK = %s, FIRST = %s, ADDED = %s, LAST = %s;\n"
        "  DEV i64 steps() const { return %s; }\n  DEV int cols() const { return %s; }\n",
        (long)epi_axes_size(&r->rows, c->spec->sizes),
        epi_factor_has(g, r->decay, &r->rows)   ? 1
        : epi_factor_has(g, r->decay, &r->cols) ? 2
                                                : 0,
        r->decay_ahead, r->back ? "true" : "false", r->first != EPI_NO_NODE ? "true" : "false",
        r->added != EPI_NO_NODE ? "true" : "false", r->out[EPI_TAKE_LAST] != EPI_NO_NODE ? "true" : "false",
        epi_emit_count(c, epi_axes_size(&time, c->spec->sizes), "LL"),
        epi_emit_int(c, epi_axes_size(&r->cols, c->spec->sizes)));
}

epi_status epi_emit_recurrence(epi_emit_context *c, const epi_recurrence *r, epi_kernel_text *k,
                               int64_t *items, epi_error *err) {
    enum { THREADS = 128 };
    *k = (epi_kernel_text){.name = "pass", .block = THREADS};
    writing w = {c, r, k, &k->source};
    int64_t rows = epi_axes_size(&r->rows, c->spec->sizes);
    if (epi_emit_grows(c, rows) || r->out[EPI_TAKE_ALONG] != EPI_NO_NODE)
        return epi_fail(err, EPI_ERR_UNSUPPORTED,
                        "no kernel has a state of so many rows, or sums along both axes");
    int lanes = rows <= 32 ? 4 : rows <= 64 ? 8 : rows <= 128 ? 16 : 32; /* as in the device text */
    *items = epi_axes_size(&r->batch, c->sizes) *
             epi_ceil_div(epi_axes_size(&r->cols, c->sizes), 4 * (THREADS / lanes));
    epi_emit_begin(c, k, epi_device_text("recurrence"));
    put_shape(&w);
    const epi_factors *by = &r->by[EPI_TAKE_DOWN];
    const char *of_row = "i64 b, i64 t, int r", *of_column = "i64 b, i64 t, int c";
    bool by_column = epi_factor_has(c->spec->graph, r->decay, &r->cols);
    put_function(&w, "decay", by_column ? of_column : of_row, put_load(&w, r->decay));
    put_function(&w, "k", of_row, put_factors(&w, &r->of, &r->rows, true));
    put_function(&w, "v", of_column, put_factors(&w, &r->of, &r->rows, false));
    put_function(&w, "q", of_row, put_factors(&w, by, &r->rows, true));
    put_function(&w, "first", "i64 b, int r, int c",
                 r->first != EPI_NO_NODE ? put_load(&w, r->first) : "0.f");
    put_function(&w, "added", "i64 b, int r, int c",
                 r->added != EPI_NO_NODE ? put_load(&w, r->added) : "0.f");
    put_store(&w, "out", of_column, r->out[EPI_TAKE_DOWN],
              epi_emit_text(c, "x * (%s)", put_factors(&w, by, &r->rows, false)));
    put_store(&w, "last", "i64 b, int r, int c", r->out[EPI_TAKE_LAST], "x");
    epi_text_add(&k->source,
                 "};\n// line %d\nextern \"C\" __global__ void __launch_bounds__(%d) "
                 "pass(const __grid_constant__ Params P) {\n  dependency_start();\n  dependency_wait();\n"
                 "  recurrence(S{P}, P.extra[0] / 256);\n}\n",
                 c->spec->graph->nodes[r->scan].place.line, THREADS);
    return epi_emit_end(k, err);
}
