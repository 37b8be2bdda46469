/* emit_integers.c: writes operations on integers that f32 cannot hold, as passes over memory. */
#include "cuda/emit/emit.h"
#include "ir/index.h"

#include <math.h>

enum { ROOM = 4096 }; /* sums of a scatter that a block has, as in device/integers.cuh */

typedef struct writer {
    const epi_emit_context *c;
    const epi_node *n;
    epi_kernel_text *k;
    epi_ref to;
    int node, put;
    int pointer[3]; /* of operands in memory; -1: numbers and positions */
} writer;

static epi_axes along_of(const epi_node *n) {
    return epi_op_gives_places(n->op) ? (epi_axes){1, {n->over.at[0]}} : n->over;
}

/* The axes that results are counted along: of scans and orders those of lines. */
static epi_axes axes_of(const epi_node *n) {
    epi_axes own = {1, {n->over.at[epi_op_gives_places(n->op)]}}, axes = n->axes;
    if (epi_op_scans(n->op) || n->op == EPI_OP_TOPK)
        return epi_axes_without(&n->axes, &own);
    if (epi_ops[n->op].joins)
        axes.at[epi_axes_find(&axes, n->over.at[0])].shift--;
    return axes;
}

int64_t epi_integers_elements(const epi_emit_context *c, int node) {
    const epi_node *n = &c->spec->graph->nodes[node];
    epi_axes axes = axes_of(n);
    int64_t count = epi_axes_size(&axes, c->sizes);
    if (epi_op_scatters(n->op))
        return 256 * epi_ceil_div(epi_axes_size(&n->axes, c->sizes), ROOM);
    return epi_op_reduces(n->op) || epi_op_scans(n->op) || epi_op_gives_places(n->op) ? 256 * count : count;
}

/* A number or a position, which is in no memory; NULL: the operand is in memory. */
static const char *known(const writer *w, int operand, const epi_axes *axes, const char *x) {
    const int64_t *sizes = w->c->spec->sizes;
    const epi_node *n = &w->c->spec->graph->nodes[operand];
    if (n->op == EPI_OP_CONST)
        return epi_emit_text(w->c, "%ldLL", (long)n->value);
    if (n->op == EPI_OP_SIZE)
        return epi_emit_count(w->c, epi_axis_size(n->over.at[0], sizes), "LL");
    if (n->op != EPI_OP_INDEX)
        return NULL;
    epi_ref ref = epi_ref_of_axes(&n->axes, sizes);
    epi_walk walk = epi_walk_axes(&ref, axes, sizes);
    return epi_emit_text(w->c, "(%s)", epi_emit_walk(w->c, &walk, x));
}

static const char *load_at(const writer *w, int a, const epi_ref *ref, const char *at) {
    bool truth = w->n->op == EPI_OP_WHERE && a == 0 && !epi_dtype_is_integer(ref->type);
    return truth
               ? epi_emit_text(w->c, "(i64)(%s != 0.f)", epi_emit_load(w->c, ref->type, w->pointer[a], at))
               : epi_emit_text(w->c, "whole<%s>(P.ptr[%d], %s)", epi_emit_type(ref->type), w->pointer[a], at);
}

/* The operand's element x along these axes, `more` behind what they say. */
static const char *element(const writer *w, int a, const epi_axes *axes, const char *x, const char *more) {
    const char *text = known(w, w->n->arg[a], axes, x);
    if (text)
        return text;
    epi_ref ref = epi_emit_ref(w->c, w->n->arg[a], -1);
    epi_walk walk = epi_walk_axes(&ref, axes, w->c->spec->sizes);
    return load_at(w, a, &ref, epi_emit_text(w->c, "%s%s", epi_emit_walk(w->c, &walk, x), more));
}

/* `, and y along the others` */
static const char *and_along(const writer *w, int node, const epi_axes *axes, const char *y) {
    epi_ref ref = epi_emit_ref(w->c, node, -1);
    epi_walk walk = epi_walk_axes(&ref, axes, w->c->spec->sizes);
    return epi_emit_text(w->c, " + %s", epi_emit_walk(w->c, &walk, y));
}

/* Stores the value as element x of the result along these axes. */
static const char *store_of(const writer *w, const epi_axes *axes, const char *x, const char *more,
                            const char *value) {
    epi_walk walk = epi_walk_axes(&w->to, axes, w->c->spec->sizes);
    return epi_emit_text(w->c, "put_whole<%s>((void *)P.ptr[%d], %s%s, %s);", epi_emit_type(w->to.type),
                         w->put, epi_emit_walk(w->c, &walk, x), more, value);
}

static const char *expression(epi_op op) {
    switch (op) {
    case EPI_OP_NEG: return "i_neg(a)";
    case EPI_OP_ADD: return "i_add(a, b)";
    case EPI_OP_SUB: return "i_add(a, i_neg(b))";
    case EPI_OP_MUL: return "i_mul(a, b)";
    case EPI_OP_QUOTIENT: return "i_quotient(a, b)";
    case EPI_OP_REMAINDER: return "i_rest(a, b)";
    case EPI_OP_MIN: return "i_min(a, b)";
    case EPI_OP_MAX: return "i_max(a, b)";
    case EPI_OP_RELU: return "i_max(a, 0)";
    case EPI_OP_ABS: return "a < 0 ? i_neg(a) : a";
    case EPI_OP_SIGN: return "(a > 0) - (a < 0)";
    case EPI_OP_LT: return "a < b";
    case EPI_OP_LE: return "a <= b";
    case EPI_OP_GT: return "a > b";
    case EPI_OP_GE: return "a >= b";
    case EPI_OP_EQ: return "a == b";
    case EPI_OP_NE: return "a != b";
    case EPI_OP_AND: return "a && b";
    case EPI_OP_OR: return "a || b";
    case EPI_OP_NOT: return "!a";
    case EPI_OP_WHERE: return "a ? b : c";
    default: return "a"; /* floor, round and conversions of an integer */
    }
}

/* ---- what is done for each element x ---- */

static void map_body(const writer *w) {
    epi_axes axes = axes_of(w->n);
    for (int a = 0; a < epi_ops[w->n->op].arity; a++)
        epi_text_add(&w->k->source, "    const i64 %c = %s;\n", 'a' + a, element(w, a, &axes, "x", ""));
    epi_text_add(&w->k->source, "    %s\n", store_of(w, &axes, "x", "", expression(w->n->op)));
}

static void leaf_body(const writer *w) {
    epi_text_add(&w->k->source, "    %s\n",
                 store_of(w, &w->n->axes, "x", "", known(w, w->node, &w->n->axes, "x")));
}

static void split_body(const writer *w) {
    const int64_t *sizes = w->c->spec->sizes;
    epi_axes axes = axes_of(w->n);
    bool joins = epi_ops[w->n->op].joins;
    for (int half = 0; half < (joins ? 2 : 1); half++) {
        const epi_node *of = &w->c->spec->graph->nodes[w->n->arg[half]];
        bool counts = of->op == EPI_OP_INDEX, memory = w->pointer[half] >= 0;
        epi_ref from = counts ? epi_ref_of_axes(&of->axes, sizes) : epi_emit_ref(w->c, w->n->arg[half], -1),
                to = w->to;
        int64_t read = 0, write = 0;
        if (joins)
            write = epi_ref_half(&to, w->n, half, sizes);
        else
            read = epi_ref_half(&from, w->n, epi_ops[w->n->op].second, sizes);
        epi_walk rd = epi_walk_axes(&from, &axes, sizes), wr = epi_walk_axes(&to, &axes, sizes);
        const char *at =
            epi_emit_text(w->c, "%s + %s", epi_emit_count(w->c, read, "LL"), epi_emit_walk(w->c, &rd, "x"));
        const char *value = memory   ? load_at(w, half, &from, at)
                            : counts ? epi_emit_text(w->c, "(%s)", at)
                                     : known(w, w->n->arg[half], &axes, "x");
        epi_text_add(&w->k->source, "    put_whole<%s>((void *)P.ptr[%d], %s + %s, %s);\n",
                     epi_emit_type(to.type), w->put, epi_emit_count(w->c, write, "LL"),
                     epi_emit_walk(w->c, &wr, "x"), value);
    }
}

/* What an operand has at the place `at` along axes that are taken out of it. */
static const char *element_along(const writer *w, int a, const char *at) {
    const int64_t *sizes = w->c->spec->sizes;
    const epi_node *of = &w->c->spec->graph->nodes[w->n->arg[a]];
    epi_axes along = along_of(w->n);
    bool counts = of->op == EPI_OP_INDEX;
    if (w->pointer[a] < 0 && !counts)
        return known(w, w->n->arg[a], &w->n->axes, "x");
    epi_ref ref = counts ? epi_ref_of_axes(&of->axes, sizes) : epi_emit_ref(w->c, w->n->arg[a], -1);
    epi_walk out = epi_ref_along(&ref, &along, sizes), rest = epi_walk_axes(&ref, &w->n->axes, sizes);
    const char *place =
        epi_emit_text(w->c, "%s + %s", epi_emit_along(w->c, &out, at), epi_emit_walk(w->c, &rest, "x"));
    return counts ? epi_emit_text(w->c, "(%s)", place) : load_at(w, a, &ref, place);
}

static void gather_body(const writer *w) {
    epi_text_add(
        &w->k->source, "    const i64 at = %s;\n    %s\n",
        epi_emit_position(w->c, w->n, &w->n->axes, epi_emit_text(w->c, "P.ptr[%d]", w->pointer[1]), "x"),
        store_of(w, &w->n->axes, "x", "", epi_emit_text(w->c, "at < 0 ? 0 : %s", element_along(w, 0, "at"))));
}

static void shift_body(const writer *w) {
    epi_text_add(
        &w->k->source, "    const i64 at = %s - %ldLL;\n    %s\n",
        epi_emit_digit(w->c, &w->n->axes, epi_axes_find(&w->n->axes, w->n->over.at[0]), "x"),
        (long)epi_shift_by(w->n),
        store_of(w, &w->n->axes, "x", "",
                 epi_emit_text(w->c, "at < 0 || at >= %s ? 0 : %s",
                               epi_emit_count(w->c, epi_axes_size(&w->n->over, w->c->spec->sizes), "LL"),
                               element_along(w, 0, "at"))));
}

/* Each element is the new one where the index names it, else the operand's. */
static void update_body(const writer *w) {
    epi_text_add(
        &w->k->source, "    const bool named = %s == %s;\n    %s\n",
        epi_emit_digit(w->c, &w->n->axes, epi_axes_find(&w->n->axes, w->n->over.at[0]), "x"),
        epi_emit_position(w->c, w->n, &w->n->axes, epi_emit_text(w->c, "P.ptr[%d]", w->pointer[1]), "x"),
        store_of(w, &w->n->axes, "x", "",
                 epi_emit_text(w->c, "named ? %s : %s", element(w, 2, &w->n->axes, "x", ""),
                               element(w, 0, &w->n->axes, "x", ""))));
}

static void put_elements(const writer *w) {
    epi_text_add(
        &w->k->source,
        "  for (i64 x = (i64)blockIdx.x * 256 + threadIdx.x; x < P.extra[0]; x += (i64)gridDim.x * 256) {\n");
    (epi_op_is_leaf(w->n->op)      ? leaf_body
     : epi_op_has_halves(w->n->op) ? split_body
     : w->n->op == EPI_OP_SHIFT    ? shift_body
     : w->n->op == EPI_OP_GATHER   ? gather_body
     : w->n->op == EPI_OP_UPDATE   ? update_body
                                   : map_body)(w);
    epi_text_add(&w->k->source, "  }\n");
}

/* ---- what a block shares: S, and the function of device/integers.cuh that is given it ---- */

static const char *put_fold(const writer *w) {
    epi_op op = w->n->op;
    epi_text_add(
        &w->k->source,
        "  DEV i64 begin() const { return %s; }\n  DEV i64 combine(i64 a, i64 b) const { return %s; }\n"
        "  DEV i64 length() const { return %s; }\n  DEV i64 value(i64 x, i64 y) const { return %s; }\n"
        "  DEV void put(i64 x, i64 v) const { %s }\n",
        op == EPI_OP_SUM    ? "0"
        : op == EPI_OP_RMAX ? "-9223372036854775807LL - 1"
                            : "9223372036854775807LL",
        op == EPI_OP_SUM    ? "i_add(a, b)"
        : op == EPI_OP_RMAX ? "i_max(a, b)"
                            : "i_min(a, b)",
        epi_emit_count(w->c, epi_axes_size(&w->n->over, w->c->spec->sizes), "LL"),
        w->pointer[0] < 0 ? known(w, w->n->arg[0], &w->n->over, "y")
                          : element(w, 0, &w->n->axes, "x", and_along(w, w->n->arg[0], &w->n->over, "y")),
        store_of(w, &w->n->axes, "x", "", "v"));
    return "fold_integers";
}

/* An operand of a scan at step k of line x. */
static const char *step(const writer *w, int a, const epi_axes *lines, const char *y) {
    const epi_node *of = &w->c->spec->graph->nodes[w->n->arg[a]];
    if (w->pointer[a] < 0)
        return of->op == EPI_OP_INDEX && epi_axes_find(&of->axes, w->n->over.at[0]) >= 0
                   ? y
                   : known(w, w->n->arg[a], lines, "x");
    return element(w, a, lines, "x", and_along(w, w->n->arg[a], &w->n->over, y));
}

static const char *put_scan(const writer *w) {
    epi_axes lines = axes_of(w->n);
    const char *length = epi_emit_count(w->c, epi_axes_size(&w->n->over, w->c->spec->sizes), "LL"),
               *y = epi_ops[w->n->op].back ? epi_emit_text(w->c, "(%s - 1 - k)", length) : "k";
    epi_text_add(
        &w->k->source,
        "  DEV i64 length() const { return %s; }\n  DEV i64 scale(i64 x, i64 k) const { return %s; }\n"
        "  DEV i64 value(i64 x, i64 k) const { return %s; }\n  DEV void put(i64 x, i64 k, i64 v) const { %s "
        "}\n",
        length, step(w, 0, &lines, y), step(w, 1, &lines, y),
        store_of(w, &lines, "x", and_along(w, w->node, &w->n->over, y), "v"));
    return "scan_integers";
}

static const char *put_scatter(const writer *w) {
    const epi_graph *g = w->c->spec->graph;
    const int64_t *sizes = w->c->spec->sizes;
    epi_axes kept = epi_scatter_kept(g, w->n), sent = kept, rest = epi_axes_without(&w->n->axes, &w->n->over);
    epi_axes_unite(&sent, &g->nodes[w->n->arg[1]].axes);
    epi_ref to = w->to;
    epi_walk along = epi_ref_along(&to, &w->n->over, sizes), put = epi_walk_axes(&to, &rest, sizes);
    epi_axes summed = epi_axes_without(&sent, &kept), names = epi_index_along(g, w->n);
    const char *each = epi_emit_count(w->c, epi_axes_size(&summed, sizes), "LL"),
               *places = epi_emit_count(w->c, epi_axes_size(&names, sizes), "LL"),
               *at =
                   epi_emit_position(w->c, w->n, &sent, epi_emit_text(w->c, "P.ptr[%d]", w->pointer[1]), "q");
    const char *value = w->pointer[0] < 0 ? known(w, w->n->arg[0], &sent, "q")
                                          : element(w, 0, &sent, "q", and_along(w, w->n->arg[0], &rest, "c"));
    if (kept.count) /* each kept element has places of its own */
        at = epi_emit_text(w->c, "in_batch(%s, q / %s * %s)", at, each, places);
    epi_text_add(
        &w->k->source,
        "  DEV i64 size() const { return %s; }\n  DEV i64 count() const { return %s; }\n"
        "  DEV i64 inner() const { return %s; }\n  DEV i64 at(i64 q) const { return %s; }\n"
        "  DEV i64 value(i64 q, i64 c) const { return %s; }\n"
        "  DEV void put(i64 v, i64 c, i64 sum) const { put_whole<%s>((void *)P.ptr[%d], %s + %s, sum); }\n",
        epi_emit_count(w->c, epi_axes_size(&w->n->over, sizes), "LL"),
        epi_emit_count(w->c, epi_axes_size(&sent, sizes), "LL"),
        epi_emit_count(w->c, epi_axes_size(&rest, sizes), "LL"), at, value, epi_emit_type(to.type), w->put,
        epi_emit_along(w->c, &along, "v"), epi_emit_walk(w->c, &put, "c"));
    return "scatter_integers";
}

static const char *put_topk(const writer *w) {
    epi_axes of = along_of(w->n), own = {1, {w->n->over.at[1]}}, lines = axes_of(w->n);
    epi_text_add(&w->k->source,
                 "  DEV i64 length() const { return %s; }\n  DEV i64 count() const { return %s; }\n"
                 "  DEV i64 value(i64 x, i64 y) const { return %s; }\n  DEV void put(i64 x, i64 k, i64 v) "
                 "const { %s }\n",
                 epi_emit_count(w->c, epi_axes_size(&of, w->c->spec->sizes), "LL"),
                 epi_emit_count(w->c, epi_axes_size(&own, w->c->spec->sizes), "LL"),
                 w->pointer[0] < 0 ? known(w, w->n->arg[0], &of, "y")
                                   : element(w, 0, &lines, "x", and_along(w, w->n->arg[0], &of, "y")),
                 store_of(w, &lines, "x", and_along(w, w->node, &own, "k"), "v"));
    return "topk_integers";
}

epi_status epi_emit_integers(epi_emit_context *c, int node, epi_kernel_text *k, epi_error *err) {
    const epi_node *n = &c->spec->graph->nodes[node];
    writer w = {
        .c = c, .n = n, .k = k, .node = node, .to = epi_emit_ref(c, node, -1), .pointer = {-1, -1, -1}};
    for (int a = 0; a < epi_node_operands(n); a++)
        if (a == epi_op_index(n->op))
            w.pointer[a] = epi_emit_index_pointer(c, k, node);
        else if (!epi_op_is_free(c->spec->graph->nodes[n->arg[a]].op))
            w.pointer[a] = epi_emit_pointer(k, n->arg[a], -1);
    w.put = epi_emit_pointer(k, node, -1);
    epi_emit_begin(c, k, epi_device_text("integers"));
    const char *(*shared)(const writer *) = epi_op_reduces(n->op)    ? put_fold
                                            : epi_op_scans(n->op)    ? put_scan
                                            : epi_op_scatters(n->op) ? put_scatter
                                            : n->op == EPI_OP_TOPK   ? put_topk
                                                                     : NULL;
    const char *function = NULL;
    if (shared) {
        epi_text_add(&k->source, "struct S {\n  const Params &P;\n");
        function = shared(&w);
        epi_text_add(&k->source, "};\n");
    }
    epi_text_add(
        &k->source,
        "// %s, line %d\nextern \"C\" __global__ void __launch_bounds__(256) pass(const __grid_constant__ "
        "Params P) {\n  dependency_start();\n  dependency_wait();\n",
        epi_emit_name(c, node), n->place.line);
    if (shared)
        epi_text_add(&k->source, "  %s(S{P}, P.extra[0] / 256);\n", function);
    else
        put_elements(&w);
    epi_text_add(&k->source, "}\n");
    return epi_emit_end(k, err);
}
