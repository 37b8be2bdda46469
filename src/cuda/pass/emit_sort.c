/* emit_sort.c: writes the sort of an index, and the largest elements of rows, as passes over memory. */
#include "cuda/emit/emit.h"
#include "ir/index.h"

enum { OWN = 128, SHARED = 48 * 1024 }; /* elements of a warp, as in device/sort.cuh */
enum { MOST_COUNTED = 4096 };           /* values; more are compared */

/* Values that are counted: all there may be, where the axis is open. */
static int64_t values_of(const epi_emit_context *c, const epi_node *n) {
    return epi_open_most(c->spec->open, epi_axis_size(n->over.at[0], c->spec->sizes));
}

static bool is_counted(const epi_emit_context *c, const epi_node *n) {
    return values_of(c, n) <= MOST_COUNTED;
}

/* As many warps as their counts leave room for, and as elements and values want. */
static int warps_of(const epi_emit_context *c, const epi_node *n) {
    epi_axes places = epi_order_places(c->spec->graph, n);
    int64_t counts = values_of(c, n) + 1, room = SHARED - 1024 - 2 * (int64_t)sizeof(int) * counts,
            count = epi_open_most(c->spec->open, epi_axes_size(&places, c->spec->sizes));
    int warps = is_counted(c, n) ? 32 : 8;
    while (is_counted(c, n) && warps > 1 && warps * 2 * counts > room)
        warps /= 2;
    while (is_counted(c, n) && warps > 4 && warps / 2 * OWN >= count && warps / 2 * 32 >= counts)
        warps /= 2;
    return warps;
}

/* Does the part want the elements' places, or only where values begin? */
static bool wants_places(const epi_graph *g) {
    bool wants = false;
    for (int i = 0; i < g->node_count && !wants; i++)
        wants = g->live[i] && (g->nodes[i].op == EPI_OP_ARGSORT || g->nodes[i].op == EPI_OP_RANK);
    return wants;
}

int64_t epi_sort_items(const epi_emit_context *c, int node) {
    const epi_node *n = &c->spec->graph->nodes[node];
    epi_axes places = epi_order_places(c->spec->graph, n);
    int64_t count = epi_axes_size(&places, c->sizes), values = epi_axis_size(n->over.at[0], c->sizes),
            stretches = epi_ceil_div(count, warps_of(c, n) * OWN);
    if (!is_counted(c, n))
        return epi_ceil_div(epi_max64(count, values), 32 * warps_of(c, n));
    return wants_places(c->spec->graph) ? epi_max64(1, stretches) : 1;
}

void epi_sort_pointers(const epi_emit_context *c, epi_kernel_text *k) {
    const epi_graph *g = c->spec->graph;
    for (int i = 0; i < g->node_count; i++) {
        if (g->live[i] && epi_is_sorted(g, i))
            epi_emit_pointer(k, g->nodes[i].arg[0], -1);
        if (g->live[i] && !epi_op_is_leaf(g->nodes[i].op))
            epi_emit_pointer(k, i, -1);
    }
}

/* `store<I32>((void *)P.ptr[2], place, (float)q);` */
static void put_order(const epi_emit_context *c, int node, epi_kernel_text *k, const epi_axes *axes,
                      const char *at, const char *what) {
    epi_ref to = epi_emit_ref(c, node, -1);
    epi_walk write = epi_walk_axes(&to, axes, c->spec->sizes);
    c->finished[node] = true;
    epi_text_add(&k->source, "    store<%s>((void *)P.ptr[%d], %s, %s);   // %s\n", epi_emit_type(to.type),
                 epi_emit_pointer(k, node, -1), epi_emit_walk(c, &write, at), what, epi_emit_name(c, node));
}

/* Element q of the index comes at a place. */
static void put_places(const epi_emit_context *c, epi_kernel_text *k, const epi_axes *places) {
    const epi_graph *g = c->spec->graph;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        if (g->live[i] && n->op == EPI_OP_ARGSORT)
            put_order(c, i, k, places, "place", "(float)q");
        else if (g->live[i] && n->op == EPI_OP_RANK)
            put_order(c, i, k, places, "q", "(float)place");
        else if (g->live[i] && epi_is_sorted(g, i)) {
            epi_ref from = epi_emit_ref(c, n->arg[0], -1);
            epi_walk along = epi_ref_along(&from, &n->over, c->spec->sizes);
            put_order(c, i, k, places, "place",
                      epi_emit_load(c, from.type, epi_emit_pointer(k, n->arg[0], -1),
                                    epi_emit_along(c, &along, "q")));
        }
    }
}

/* All orders of the part, which are of one index, and what is sorted by them. */
void epi_emit_sort(const epi_emit_context *c, int node, const epi_pass_pointers *p, epi_kernel_text *k) {
    const epi_graph *g = c->spec->graph;
    const epi_node *n = &g->nodes[node];
    const int64_t *sizes = c->spec->sizes;
    epi_axes first = {1, {n->over.at[0]}}, places = epi_order_places(g, n);
    k->block = 32 * warps_of(c, n);
    epi_text_add(
        &k->source,
        "struct S {\n  const Params &P;\n  DEV i64 size() const { return %s; }\n"
        "  DEV i64 count() const { return %s; }\n"
        "  DEV i64 at(i64 q) const { return %s; }\n  DEV void offset(i64 value, i64 begin) const {\n",
        epi_emit_count(c, epi_axis_size(n->over.at[0], sizes), "LL"),
        epi_emit_count(c, epi_axes_size(&places, sizes), "LL"),
        epi_emit_position(c, n, &places, epi_emit_text(c, "P.ptr[%d]", p->from[0]), "q"));
    for (int i = 0; i < g->node_count; i++)
        if (g->live[i] && g->nodes[i].op == EPI_OP_OFFSETS)
            put_order(c, i, k, &first, "value", "(float)begin");
    epi_text_add(&k->source, "  }\n  DEV void put(i64 q, i64 place) const {\n");
    put_places(c, k, &places);
    epi_text_add(&k->source,
                 "  }\n  static constexpr int VALUES = %ld, WARPS = %d;\n"
                 "  static constexpr bool PLACES = %s;\n};\n"
                 "// line %d\nextern \"C\" __global__ void __launch_bounds__(%d) "
                 "pass(const __grid_constant__ Params P) {\n  dependency_start();\n  dependency_wait();\n"
                 "  sort%s(S{P}, P.extra[0] / 256);\n}\n",
                 (long)values_of(c, n), warps_of(c, n), wants_places(g) ? "true" : "false", n->place.line,
                 k->block, is_counted(c, n) ? "" : "_compared");
}

/* The last value whose segment begins at a place or before it, by halves; 0 before the first. */
void epi_emit_segments(const epi_emit_context *c, int node, const epi_pass_pointers *p, epi_text *out) {
    const epi_node *n = &c->spec->graph->nodes[node];
    const int64_t *sizes = c->spec->sizes;
    epi_axes first = {1, {n->over.at[0]}}, places = epi_axes_without(&n->over, &first);
    epi_ref from = epi_emit_ref(c, n->arg[0], -1), to = epi_emit_ref(c, node, -1);
    epi_walk read = epi_walk_axes(&from, &first, sizes), write = epi_walk_axes(&to, &places, sizes);
    epi_text_add(out,
                 "    i64 first = 0, last = %s - 1;\n    while (first < last) {\n"
                 "      const i64 middle = (first + last + 1) / 2;\n"
                 "      if (load<%s>(P.ptr[%d], %s) <= (float)x) first = middle; else last = middle - 1;\n"
                 "    }\n    store<%s>((void *)P.ptr[%d], %s, (float)first);\n",
                 epi_emit_count(c, epi_axis_size(n->over.at[0], sizes), "LL"), epi_emit_type(from.type),
                 p->from[0], epi_emit_walk(c, &read, "middle"), epi_emit_type(to.type), p->to,
                 epi_emit_walk(c, &write, "x"));
}

/* ---- the largest elements ---- */

enum { WARP = 32, BLOCK = 1024, MOST_HELD = 32 };

/* Elements of a row: the most there may be, where the axis is open. A warp has rows that fit its registers. */
static int64_t row_of(const epi_emit_context *c, const epi_node *n) {
    return epi_open_most(c->spec->open, epi_axis_size(n->over.at[0], c->spec->sizes));
}

bool epi_topk_by_block(const epi_emit_context *c, int node) {
    return row_of(c, &c->spec->graph->nodes[node]) > WARP * MOST_HELD;
}

int64_t epi_topk_rows(const epi_emit_context *c, int node) {
    const epi_node *n = &c->spec->graph->nodes[node];
    epi_axes own = {1, {n->over.at[1]}}, rows = epi_axes_without(&n->axes, &own);
    return epi_axes_size(&rows, c->sizes);
}

/* Beside a place the element itself, where that is wanted. */
static const char *put_largest(const epi_emit_context *c, int node, const epi_pass_pointers *p,
                               epi_kernel_text *k) {
    const epi_graph *g = c->spec->graph;
    const epi_node *n = &g->nodes[node];
    epi_axes own = {1, {n->over.at[1]}}, rows = epi_axes_without(&n->axes, &own);
    const char *text = "";
    for (int i = 0; i < g->node_count; i++) {
        if (!g->live[i] || !epi_is_largest(g, i) || g->nodes[i].arg[1] != node)
            continue;
        epi_ref to = epi_emit_ref(c, i, -1);
        epi_walk write = epi_walk_axes(&to, &rows, c->spec->sizes),
                 put = epi_walk_axes(&to, &own, c->spec->sizes);
        c->finished[i] = true;
        text = epi_emit_text(
            c, "%s\n    store<%s>((void *)P.ptr[%d], %s + %s, value(P.ptr[%d], row(x), number));   // %s",
            text, epi_emit_type(to.type), epi_emit_pointer(k, i, -1), epi_emit_walk(c, &write, "x"),
            epi_emit_walk(c, &put, "k"), p->from[0], epi_emit_name(c, i));
    }
    return text;
}

void epi_emit_topk(const epi_emit_context *c, int node, const epi_pass_pointers *p, epi_kernel_text *k) {
    const epi_node *n = &c->spec->graph->nodes[node];
    const int64_t *sizes = c->spec->sizes;
    epi_axes of = {1, {n->over.at[0]}}, own = {1, {n->over.at[1]}}, rows = epi_axes_without(&n->axes, &own);
    epi_ref from = epi_emit_ref(c, n->arg[0], -1), to = epi_emit_ref(c, node, -1);
    epi_walk read = epi_walk_axes(&from, &rows, sizes), along = epi_walk_axes(&from, &of, sizes),
             write = epi_walk_axes(&to, &rows, sizes), put = epi_walk_axes(&to, &own, sizes);
    bool block = epi_topk_by_block(c, node);
    int team = block ? BLOCK : WARP;
    int64_t held = epi_ceil_div(row_of(c, n), team);
    const char *place = epi_emit_text(c, "%s + %s", epi_emit_walk(c, &write, "x"), epi_emit_walk(c, &put, "k"));
    const char *stored = row_of(c, n) > 1 << 24 && epi_dtype_is_integer(to.type) /* f32 does not hold it */
                             ? epi_emit_text(c, "((%s *)p)[%s] = (%s)number", to.type == EPI_I32 ? "int" : "i64", place,
                                             to.type == EPI_I32 ? "int" : "i64")
                             : epi_emit_text(c, "store<%s>(p, %s, (float)number)", epi_emit_type(to.type), place);
    k->block = block ? BLOCK : 256;
    epi_text_add(&k->source,
                 "struct S {\n  const Params &P;\n  DEV i64 size() const { return %s; }\n"
                 "  DEV i64 count() const { return %s; }\n  static constexpr int TEAM = %d, HELD = %d;\n"
                 "  DEV i64 row(i64 x) const { return %s; }\n"
                 "  DEV float value(const void *p, i64 at, i64 e) const { return load<%s>(p, at + %s); }\n"
                 "  DEV void put(void *p, i64 x, i64 k, i64 number) const {\n    %s;%s\n  }\n};\n",
                 epi_emit_count(c, epi_axes_size(&of, sizes), "LL"),
                 epi_emit_count(c, epi_axes_size(&own, sizes), "LL"), team, held > MOST_HELD ? 0 : (int)held,
                 epi_emit_walk(c, &read, "x"), epi_emit_type(from.type), epi_emit_walk(c, &along, "e"),
                 stored, put_largest(c, node, p, k));
    epi_text_add(
        &k->source,
        "// %s, line %d\nextern \"C\" __global__ void __launch_bounds__(%d) "
        "pass(const __grid_constant__ Params P) {\n  dependency_start();\n  dependency_wait();\n"
        "  for (i64 x = ((i64)blockIdx.x * %d + threadIdx.x) / %d; x < P.extra[0] / %d; x += gridDim.x * "
        "%dLL)\n    topk(S{P}, P.ptr[%d], (void *)P.ptr[%d], x);\n}\n",
        epi_emit_name(c, node), n->place.line, k->block, k->block, team, block ? 256 : 32, k->block / team,
        p->from[0], p->to);
}
