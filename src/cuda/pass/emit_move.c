/* emit_move.c: writes gather, scatter, update and random numbers as passes over memory. */
#include "cuda/emit/emit.h"

#include "ir/index.h"

/* Where the elements of an index lie: its own home, or what it is a slice of. */
static epi_index_source source_of(const epi_emit_context *c, const epi_node *n) {
    const epi_graph *g = c->spec->graph;
    int own = (int)(epi_index_of(g, n) - g->nodes);
    const epi_home *home = &c->steps->homes[own];
    return home->tensor < 0 && home->offset < 0 ? epi_index_find(g, n) : (epi_index_source){.node = own};
}

int epi_emit_index_pointer(const epi_emit_context *c, epi_kernel_text *k, int node) {
    int index = source_of(c, &c->spec->graph->nodes[node]).node;
    bool stored = !epi_emit_is_number(c, index) && c->spec->graph->nodes[index].op != EPI_OP_INDEX;
    return stored ? epi_emit_pointer(k, index, -1) : -1;
}

/* An index's element: which tensor has it, where in that, and of what type it is. */
typedef struct index_element {
    int node;
    bool counts; /* it is its own number, inside the axis: compiling has seen to it */
    epi_dtype type;
    const char *at;
} index_element;

/* With the index's elements walked along these axes. */
static index_element element_of(const epi_emit_context *c, const epi_node *n, const epi_axes *axes,
                                const char *index) {
    const int64_t *sizes = c->spec->sizes;
    epi_index_source from = source_of(c, n);
    const epi_node *i = &c->spec->graph->nodes[from.node];
    bool counts = i->op == EPI_OP_INDEX;
    epi_ref ref = counts ? epi_ref_of_axes(&i->axes, sizes) : epi_emit_ref(c, from.node, -1);
    int64_t begin = from.sliced ? from.at * epi_ref_drop(&ref, from.axis) : 0;
    epi_walk w = epi_walk_axes(&ref, axes, sizes);
    const char *at = epi_emit_walk(c, &w, index);
    if (begin)
        at = epi_emit_text(c, "%s + %s", epi_emit_count(c, begin, "LL"), at);
    return (index_element){.node = from.node, .counts = counts, .type = ref.type, .at = at};
}

static const char *positions_of(const epi_emit_context *c, const epi_node *n) {
    epi_axes along = epi_index_along(c->spec->graph, n);
    return epi_emit_count(c, epi_axes_size(&along, c->spec->sizes), "LL");
}

/* `position<I32>(P.ptr[1], …, 50257LL)` */
const char *epi_emit_position(const epi_emit_context *c, const epi_node *n, const epi_axes *axes,
                              const char *pointer, const char *index) {
    epi_index_source from = source_of(c, n);
    if (epi_emit_is_number(c, from.node))
        return epi_emit_text(c, "position_of(%s, %s)", epi_emit_node_number(c, from.node),
                             positions_of(c, n));
    index_element e = element_of(c, n, axes, index);
    epi_axes along = epi_index_along(c->spec->graph, n);
    /* passes find index(C) in index(C) + 0, too, which may count further */
    if (e.counts && epi_axes_size(&c->spec->graph->nodes[e.node].axes, c->spec->sizes) >
                        epi_axes_size(&along, c->spec->sizes))
        return epi_emit_text(c, "position_of((int)(%s), %s)", e.at, positions_of(c, n));
    return e.counts ? epi_emit_text(c, "(i64)(%s)", e.at)
                    : epi_emit_text(c, "position<%s>(%s, %s, %s)", epi_emit_type(e.type), pointer, e.at,
                                    positions_of(c, n));
}

void epi_emit_names(epi_text *out, const epi_emit_context *c, const epi_node *n, const epi_axes *axes,
                    const char *pointer) {
    epi_index_source from = source_of(c, n);
    const char *type = "float",
               *name = epi_emit_is_number(c, from.node) ? epi_emit_node_number(c, from.node) : "";
    if (!*name) {
        index_element e = element_of(c, n, axes, "k");
        bool integer = epi_dtype_is_integer(e.type);
        type = e.counts || e.type == EPI_I32 ? "int" : integer ? "i64" : "float";
        name = e.counts ? e.at
                        : epi_emit_text(c, "%s<%s>(%s, %s)", integer ? "integer" : "load",
                                        epi_emit_type(e.type), pointer, e.at);
    }
    epi_text_add(out,
                 "typedef %s A_Name;\nDEV A_Name A_name(const Params &P, int k) { return (A_Name)(%s); }\n"
                 "DEV i64 A_position(const Params &P, A_Name name) { return position_of(name, %s); }\n",
                 type, name, positions_of(c, n));
}

const char *epi_emit_along(const epi_emit_context *c, const epi_walk *w, const char *at) {
    return w->count > 1
               ? epi_emit_text(c, "(%s)", epi_emit_walk(c, w, at))
               : epi_emit_text(c, "%s * %s", at, epi_emit_count(c, w->count ? w->stride[0] : 0, "LL"));
}

void epi_emit_gather(const epi_emit_context *c, int node, const epi_pass_pointers *p, epi_text *out) {
    const epi_node *n = &c->spec->graph->nodes[node];
    epi_ref from = epi_emit_ref(c, n->arg[0], -1), to = epi_emit_ref(c, node, -1);
    epi_walk along = epi_ref_along(&from, &n->over, c->spec->sizes);
    epi_walk read = epi_walk_axes(&from, &n->axes, c->spec->sizes),
             write = epi_walk_axes(&to, &n->axes, c->spec->sizes);
    epi_text_add(out,
                 "    const i64 at = %s;\n    const float v = at < 0 ? 0.f : load<%s>(P.ptr[%d], %s + "
                 "%s);\n    store<%s>((void *)P.ptr[%d], %s, v);\n",
                 epi_emit_position(c, n, &n->axes, epi_emit_text(c, "P.ptr[%d]", p->from[1]), "x"),
                 epi_emit_type(from.type), p->from[0], epi_emit_along(c, &along, "at"),
                 epi_emit_walk(c, &read, "x"), epi_emit_type(to.type), p->to, epi_emit_walk(c, &write, "x"));
}

void epi_emit_shift(const epi_emit_context *c, int node, const epi_pass_pointers *p, epi_text *out) {
    const epi_node *n = &c->spec->graph->nodes[node];
    epi_ref from = epi_emit_ref(c, n->arg[0], -1), to = epi_emit_ref(c, node, -1);
    int64_t step = epi_ref_stride(&from, n->over.at[0]);
    epi_walk read = epi_walk_axes(&from, &n->axes, c->spec->sizes),
             write = epi_walk_axes(&to, &n->axes, c->spec->sizes);
    epi_text_add(out,
                 "    const i64 at = %s - %ldLL;\n    const float v = at < 0 || at >= %s ? 0.f : "
                 "load<%s>(P.ptr[%d], %s - %ldLL * %s);\n    store<%s>((void *)P.ptr[%d], %s, v);\n",
                 epi_emit_digit(c, &n->axes, epi_axes_find(&n->axes, n->over.at[0]), "x"),
                 (long)epi_shift_by(n), epi_emit_count(c, epi_axes_size(&n->over, c->spec->sizes), "LL"),
                 epi_emit_type(from.type), p->from[0], epi_emit_walk(c, &read, "x"), (long)epi_shift_by(n),
                 epi_emit_count(c, step, "LL"), epi_emit_type(to.type), p->to, epi_emit_walk(c, &write, "x"));
}

/* `const float v = load<BF16>(P.ptr[1], …);`, of an operand that is walked along these axes; integers that
 * stay integers of the same type are loaded as they are. */
static const char *put_operand(const epi_emit_context *c, const epi_node *n, int operand,
                               const epi_axes *axes, int pointer, epi_dtype to) {
    if (pointer < 0)
        return epi_emit_text(c, "const float v = %s;", epi_emit_node_number(c, n->arg[operand]));
    epi_ref from = epi_emit_ref(c, n->arg[operand], -1);
    epi_walk walk = epi_walk_axes(&from, axes, c->spec->sizes);
    const char *at = epi_emit_walk(c, &walk, "x");
    if (from.type == to && epi_dtype_is_integer(to))
        return epi_emit_text(c, "const i64 v = integer<%s>(P.ptr[%d], %s);", epi_emit_type(to), pointer, at);
    return epi_emit_text(c, "const float v = %s;", epi_emit_load(c, from.type, pointer, at));
}

/* In its operand's place an update goes through the elements that are new, and stores each where the index
 * says. Elsewhere it goes through all of the result, each of which is new or the operand's. */
void epi_emit_update(const epi_emit_context *c, int node, const epi_pass_pointers *p, epi_text *out) {
    const epi_node *n = &c->spec->graph->nodes[node];
    epi_axes rest = epi_axes_without(&n->axes, &n->over);
    epi_ref to = epi_emit_ref(c, node, -1), one = to;
    int64_t stride = epi_ref_drop(&one, n->over.at[0]);
    epi_walk all = epi_walk_axes(&to, &n->axes, c->spec->sizes),
             few = epi_walk_axes(&one, &rest, c->spec->sizes);
    const char *index = epi_emit_text(c, "P.ptr[%d]", p->from[1]), *at = epi_emit_walk(c, &all, "x"),
               *put = epi_emit_text(c, "put<%s>((void *)P.ptr[%d]", epi_emit_type(to.type), p->to);
    epi_text_add(
        out,
        "    if (P.ptr[%d] == P.ptr[%d]) {\n      const i64 at = %s;\n      %s\n"
        "      if (at >= 0) %s, at * %s + %s, v);\n      continue;\n    }\n    if (%s == %s) {\n"
        "      %s\n      %s, %s, v);\n    } else {\n      %s\n      %s, %s, v);\n    }\n",
        p->from[0], p->to, epi_emit_position(c, n, &rest, index, "x"),
        put_operand(c, n, 2, &rest, p->from[2], to.type), put, epi_emit_count(c, stride, "LL"),
        epi_emit_walk(c, &few, "x"), epi_emit_digit(c, &n->axes, epi_axes_find(&n->axes, n->over.at[0]), "x"),
        epi_emit_position(c, n, &n->axes, index, "x"), put_operand(c, n, 2, &n->axes, p->from[2], to.type),
        put, at, put_operand(c, n, 0, &n->axes, p->from[0], to.type), put, at);
}

const char *epi_emit_seed(const epi_emit_context *c, int node, int pointer) {
    epi_dtype type = epi_emit_ref(c, c->spec->graph->nodes[node].arg[0], -1).type;
    return epi_dtype_is_integer(type)
               ? epi_emit_text(c, "(u32)integer<%s>(P.ptr[%d], 0)", epi_emit_type(type), pointer)
               : epi_emit_text(c, "(u32)__float2int_rn(%s)", epi_emit_load(c, type, pointer, "0"));
}

/* Four neighbours a thread: what one counter gives. */
void epi_emit_random(const epi_emit_context *c, int node, const epi_pass_pointers *p, epi_text *out) {
    const epi_node *n = &c->spec->graph->nodes[node];
    epi_ref to = epi_emit_ref(c, node, -1);
    epi_walk write = epi_walk_axes(&to, &n->axes, c->spec->sizes);
    epi_text_add(out,
                 "    u32 word[4];\n    philox(x, %s, word);\n#pragma unroll\n"
                 "    for (int w = 0; w < 4; w++) {\n      const i64 e = 4 * x + w;\n"
                 "      if (e < %s) store<%s>((void *)P.ptr[%d], %s, uniform(word[w]));\n    }\n",
                 epi_emit_seed(c, node, p->from[0]),
                 epi_emit_count(c, epi_axes_size(&n->axes, c->spec->sizes), "LL"), epi_emit_type(to.type),
                 p->to, epi_emit_walk(c, &write, "e"));
}

/* ---- scatter ---- */

enum { SUMS = 4096, COLUMNS = 1024, ITEMS = 256, GROUP_COLUMNS = 64 };

/* How the sums are divided between blocks and, within one, between threads. It follows from the sizes alone,
 * the largest where they are open, and the bits do not depend on it. */
typedef struct division {
    int64_t batch;              /* elements that are kept, of each of which there are */
    int64_t size, count, inner; /* positions, elements of the index, elements of the rest */
    int64_t rows, cols;         /* of a block */
    int width, groups;          /* threads along the rest; such groups take turns at positions */
    int offsets; /* where positions of the same number follow each other, what says where; or EPI_NO_NODE */
    epi_axes kept, along, outer, rest; /* outer: of the index, those that are kept first */
} division;

static division divide(const epi_emit_context *c, int node) {
    const epi_graph *g = c->spec->graph;
    const epi_node *n = &g->nodes[node];
    const int64_t *sizes = c->spec->sizes;
    int segments = epi_node_segments(g, n);
    division p = {
        .kept = epi_scatter_kept(g, n), .along = epi_index_along(g, n), .width = 1, .offsets = EPI_NO_NODE};
    p.outer = p.kept;
    epi_axes_unite(&p.outer, &g->nodes[n->arg[1]].axes);
    if (segments != EPI_NO_NODE) {
        p.offsets = g->nodes[segments].arg[0];
        p.outer = g->nodes[segments].over; /* in the order in which they are counted */
        epi_axes_remove(&p.outer, 0);
    }
    p.rest = epi_axes_without(&g->nodes[n->arg[0]].axes, &p.outer);
    epi_axes sums = epi_axes_without(&p.outer, &p.kept);
    p.batch = epi_axes_size(&p.kept, sizes);
    p.size = epi_axes_size(&p.along, sizes);
    p.count = epi_axes_size(&sums, sizes);
    p.inner = epi_axes_size(&p.rest, sizes);
    int64_t most = epi_open_most(c->spec->open, p.inner),
            size = epi_open_most(c->spec->open, p.size) * epi_open_most(c->spec->open, p.batch);
    p.cols = epi_max64(1, epi_min64(most, COLUMNS));
    while (p.width < 256 && p.width < p.cols)
        p.width *= 2;
    p.groups = 256 / p.width;
    /* as many positions as there is room for, unless that leaves multiprocessors without work */
    int64_t enough = epi_ceil_div(size * epi_ceil_div(most, p.cols), ITEMS);
    p.rows = epi_max64(p.groups, epi_min64(SUMS / p.cols, enough));
    if (p.offsets != EPI_NO_NODE) {
        p.rows = 1;
        p.cols = GROUP_COLUMNS;
    }
    return p;
}

int64_t epi_scatter_items(const epi_emit_context *c, int node) {
    division p = divide(c, node);
    int64_t inner = epi_open_now(c->spec->open, p.inner), size = epi_open_now(c->spec->open, p.size);
    return epi_open_now(c->spec->open, p.batch) * epi_ceil_div(size, p.rows) * epi_ceil_div(inner, p.cols);
}

/* Where the positions of group e begin: those of the first at 0, of the one behind the last where all end. */
static const char *put_begin(const epi_emit_context *c, const epi_node *n, const division *p) {
    epi_ref ref = epi_emit_ref(c, p->offsets, -1);
    epi_walk w = epi_walk_axes(&ref, &n->over, c->spec->sizes);
    return epi_emit_text(c, "e == 0 ? 0 : e < size() ? min(max((i64)%s<%s>(p, %s), 0LL), count()) : count()",
                         epi_dtype_is_integer(ref.type) ? "integer" : "load", epi_emit_type(ref.type),
                         epi_emit_walk(c, &w, "e"));
}

void epi_emit_scatter(const epi_emit_context *c, int node, const epi_pass_pointers *pointers, epi_text *out) {
    const epi_node *n = &c->spec->graph->nodes[node];
    const int64_t *sizes = c->spec->sizes;
    division p = divide(c, node);
    epi_ref from = epi_emit_ref(c, n->arg[0], -1), to = epi_emit_ref(c, node, -1);
    epi_walk along = epi_ref_along(&to, &p.along, sizes), kept = epi_walk_axes(&to, &p.kept, sizes);
    epi_walk outer = epi_walk_axes(&from, &p.outer, sizes), inner = epi_walk_axes(&from, &p.rest, sizes),
             write = epi_walk_axes(&to, &p.rest, sizes);
    /* an operand or an index that is a number has no pointer, and none is read */
    int result = pointers->to, operand = pointers->from[0] < 0 ? result : pointers->from[0],
        index = pointers->from[1] < 0 ? result : pointers->from[1];
    const char *value = pointers->from[0] < 0
                            ? epi_emit_node_number(c, n->arg[0])
                            : epi_emit_text(c, "load<%s>(p, at + %s)", epi_emit_type(from.type),
                                            epi_emit_walk(c, &inner, "x"));
    const char *at =
        p.offsets == EPI_NO_NODE
            ? epi_emit_text(c, "i64 at(const void *p, i64 q) const { return %s; }",
                            epi_emit_position(c, n, &p.outer, "p", "q"))
            : epi_emit_text(c, "i64 begin(const void *p, i64 e) const { return %s; }", put_begin(c, n, &p));
    epi_text_add(out,
                 "struct S {\n  const Params &P;\n  DEV i64 size() const { return %s; }\n"
                 "  DEV i64 count() const { return %s; }\n  DEV i64 inner() const { return %s; }\n"
                 "  static constexpr int ROWS = %ld, COLS = %ld, WIDTH = %d, GROUPS = %d;\n"
                 "  static constexpr bool BY_BATCH = %s;\n"
                 "  DEV %s\n  DEV i64 outer(i64 q) const { return %s; "
                 "}\n  DEV float value(const void *p, i64 at, i64 x) const { return %s; }\n"
                 "  DEV void put(void *p, i64 b, i64 v, i64 x, float sum) const { store<%s>(p, %s + %s + %s, "
                 "sum); }\n};\n",
                 epi_emit_count(c, p.size, "LL"), epi_emit_count(c, p.count, "LL"),
                 epi_emit_count(c, p.inner, "LL"), (long)p.rows, (long)p.cols, p.width, p.groups,
                 p.kept.count ? "true" : "false", at, epi_emit_walk(c, &outer, "q"), value,
                 epi_emit_type(to.type), epi_emit_walk(c, &kept, "b"), epi_emit_along(c, &along, "v"),
                 epi_emit_walk(c, &write, "x"));
    epi_text_add(out,
                 "// %s, line %d\nextern \"C\" __global__ void __launch_bounds__(256) "
                 "pass(const __grid_constant__ Params P) {\n  dependency_start();\n  dependency_wait();\n"
                 "  %s(S{P}, P.ptr[%d], P.ptr[%d], (void *)P.ptr[%d], P.extra[0] / 256);\n}\n",
                 epi_emit_name(c, node), n->place.line,
                 p.offsets == EPI_NO_NODE ? "scatter" : "scatter_groups", operand, index, result);
}
